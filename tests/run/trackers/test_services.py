"""Weights & Biases offline, MLflow and Aim in local stores: what a run and its continuation leave in them."""

import importlib.util
import json
import signal
import struct
import subprocess
import sys
import warnings

import pytest

from ding_lite.run.trackers import WandbTracker

pytestmark = pytest.mark.slow
TRAIN = ["-m", "ding_lite", "train"]
OPTIONS = [
    *("-c", "cartpole_ppo", "--exp-name", "run", "-q"),
    *("policy.collect.n_sample=512", "policy.learn.batch_size=256", "logger.freq=1"),
]


# Saves the run after two iterations, pauses after three, and ends it after four by a signal or an error.
ENDING = """
import os, signal, time
from pathlib import Path
from ding_lite import Hook


class Ending(Hook):
    def __init__(self, kill, pause):
        self.kill, self.pause = kill, pause

    def before_iter(self, pipeline):
        if Path("ended").exists():
            return
        if pipeline.progress.iteration == 2:
            pipeline.save()
        if pipeline.progress.iteration == 3:
            time.sleep(self.pause)
        if pipeline.progress.iteration == 4:
            Path("ended").touch()
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError("on purpose")
"""


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs the extra {module}")


def run(*command, cwd, code=0):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done


def train_twice(cwd, tracker, kill=True, pause=0):
    """Trains past a checkpoint until the run is killed or fails, and resumes it; returns the run's folder."""
    (cwd / "ending.py").write_text(ENDING)
    hook = {"type": "ending:Ending", "kill": kill, "pause": pause}
    options = [*OPTIONS, "--max-env-step", 3500, "checkpoint.freq=0"]
    lists = [f"logger.trackers=[{tracker!r}]", f"hooks=[{hook!r}]", "--import", "ending"]
    run(*TRAIN, *options, *lists, cwd=cwd, code=-signal.SIGKILL if kill else 2)
    before = steps_of(cwd / "run")
    run(*TRAIN, "-q", "--resume", "run", "--import", "ending", cwd=cwd)
    steps = steps_of(cwd / "run")
    assert (len(before), before) == (4, steps[:4])
    assert steps[-1] >= 3500
    log = (cwd / "run" / "log.txt").read_text()
    assert "WARNING" not in log, log
    return cwd / "run"


def identity(folder, name):
    return json.loads((folder / "trackers.json").read_text())[name]


def steps_of(folder):
    lines = (folder / "metrics.csv").read_text().splitlines()
    return [int(line.split(",")[0]) for line in lines[1:]]


def wandb_records(file):
    """Yields the records of a .wandb file: chunks (checksum, length, kind) in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, body = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 2**15 - at % 2**15
        if room < 7:
            at += room
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        body += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last chunk of one
            yield Record.FromString(body)
            body = b""


def wandb_rows(records):
    """Returns the rows of metrics by their env steps, and the histograms of actions."""
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records
        if record.HasField("history")
    ]
    metrics = [row["env_step"] for row in rows if "learn/policy_loss" in row]
    return metrics, [row for row in rows if "collect/action_histogram/values" in row]


@needs("wandb")
def test_wandb_offline_has_config_rows_histograms_and_result_under_one_id(tmp_path):
    folder = train_twice(tmp_path, {"type": "wandb", "mode": "offline", "project": "mine"}, kill=False)
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    sessions = [list(wandb_records(file)) for file in files]
    for records, (status, code) in zip(sessions, [("failed", 1), ("finished", 0)], strict=True):
        (session,) = [r.run for r in records if r.HasField("run")]
        assert (session.run_id, session.project) == (identity(folder, "wandb")["id"], "mine")
        config = {entry.key: json.loads(entry.value_json) for entry in session.config.update}
        assert config["env"]["env_id"] == "CartPole-v1"
        summary = [u for r in records if r.HasField("summary") for u in r.summary.update]
        assert any(
            "result/status" in (u.key, *u.nested_key) and json.loads(u.value_json) == status for u in summary
        )
        assert [r.exit.exit_code for r in records if r.HasField("exit")] == [code]
    metrics, histograms = wandb_rows([record for records in sessions for record in records])
    assert metrics == steps_of(folder)
    assert [row["env_step"] for row in histograms] == steps_of(folder)
    assert {row["collect/action_histogram/_type"] for row in histograms} == {"histogram"}
    assert all(sum(row["collect/action_histogram/values"]) > 400 for row in histograms)


@needs("wandb")
def test_wandb_of_a_killed_run_is_sent_the_rows_again_that_it_may_not_have_stored(tmp_path):
    pause = WandbTracker.seconds_to_store + 1
    folder = train_twice(tmp_path, {"type": "wandb", "mode": "offline"}, pause=pause)
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    (first, _), (second, histograms) = (wandb_rows(wandb_records(file)) for file in files)
    steps = steps_of(folder)
    assert first[:3] == steps[:3]  # the fourth may be lost
    assert second == steps[3:]  # not the third, though the checkpoint is at the second
    assert [row["env_step"] for row in histograms] == second


@needs("mlflow")
def test_mlflow_store_has_config_rows_result_and_video_in_one_run(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    folder = train_twice(tmp_path, {"type": "mlflow", "tracking_uri": store, "tags": {"a": "b"}})
    with warnings.catch_warnings(action="ignore"):  # of MLflow's own packages
        from mlflow import MlflowClient

        client = MlflowClient(store)
        experiment = client.get_experiment_by_name("ding_lite")
        (found,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(found.info.run_id, "learn/policy_loss")
        files = [file.path for file in client.list_artifacts(found.info.run_id)]
    assert found.info.run_id == identity(folder, "mlflow")["run_id"]
    assert (found.info.status, found.info.run_name) == ("FINISHED", "run")
    assert found.data.params["policy.learn.batch_size"] == "256"
    assert found.data.tags["a"] == "b"
    result = json.loads((folder / "result.json").read_text())
    assert json.loads(found.data.tags["result.eval_value"]) == result["eval_value"]
    assert [metric.step for metric in history] == steps_of(folder)
    assert files == ["config.json"]
    assert "mlflow: has the rows up to env step" in (folder / "log.txt").read_text()


@needs("aim")
def test_aim_repository_has_config_rows_and_result_in_one_run(tmp_path):
    folder = train_twice(tmp_path, {"type": "aim"})
    aim = "from aim.cli.cli import cli_entry_point; cli_entry_point()"
    run("-c", aim, "storage", "reindex", "-y", cwd=tmp_path)  # `aim up` does it by itself
    code = """
        import json, aim
        from aim.storage.context import Context
        (run,) = aim.Repo(".").iter_runs()
        steps, _ = run.get_metric("learn/policy_loss", Context({})).data.items_list()
        print(json.dumps([run.hash, run["config"]["env"]["env_id"], run["result"]["status"], steps]))
    """
    lines = [line.strip() for line in code.strip().splitlines()]
    shown = run("-c", "\n".join(lines), cwd=tmp_path).stdout.splitlines()[-1]
    run_hash = identity(folder, "aim")["run_hash"]
    assert json.loads(shown) == [run_hash, "CartPole-v1", "finished", steps_of(folder)]


@needs("mlflow")
def test_of_two_ranks_only_the_first_one_sends(tmp_path):
    tracker = {"type": "mlflow", "tracking_uri": f"sqlite:///{tmp_path / 'store.db'}"}
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    options = [*OPTIONS, "--max-env-step", 1000, f"logger.trackers=[{tracker!r}]"]
    run(*ranks, *TRAIN, *options, cwd=tmp_path)
    with warnings.catch_warnings(action="ignore"):
        from mlflow import MlflowClient

        client = MlflowClient(tracker["tracking_uri"])
        (found,) = client.search_runs([client.get_experiment_by_name("ding_lite").experiment_id])
        history = client.get_metric_history(found.info.run_id, "learn/policy_loss")
    assert [metric.step for metric in history] == steps_of(tmp_path / "run")
