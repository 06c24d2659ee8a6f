"""Weights & Biases offline, MLflow and Aim in local stores: what a run and its continuation leave in them."""

import importlib.util
import json
import struct
import subprocess
import sys
import warnings

import pytest

pytestmark = pytest.mark.slow
TRAIN = ["-m", "ding_lite", "train"]
OPTIONS = [
    *("-c", "cartpole_ppo", "--exp-name", "run", "-q"),
    *("policy.collect.n_sample=512", "policy.learn.batch_size=256", "logger.freq=1"),
]


def needs(module):
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"needs the extra {module}")


def run(*command, cwd):
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def train_twice(cwd, tracker):
    """Trains, and continues the run in a second process; returns its folder."""
    run(*TRAIN, *OPTIONS, "--max-env-step", 2000, f"logger.trackers=[{tracker!r}]", cwd=cwd)
    run(*TRAIN, "-q", "--resume", "run", "--max-env-step", 3000, cwd=cwd)
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


@needs("wandb")
def test_wandb_offline_has_config_rows_histograms_and_result_under_one_id(tmp_path):
    folder = train_twice(tmp_path, {"type": "wandb", "mode": "offline", "project": "mine"})
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    sessions = [list(wandb_records(file)) for file in files]
    rows = []
    for records in sessions:
        (session,) = [r.run for r in records if r.HasField("run")]
        assert (session.run_id, session.project) == (identity(folder, "wandb")["id"], "mine")
        config = {entry.key: json.loads(entry.value_json) for entry in session.config.update}
        assert config["env"]["env_id"] == "CartPole-v1"
        summary = [u for r in records if r.HasField("summary") for u in r.summary.update]
        assert any(
            "result/status" in (u.key, *u.nested_key) and u.value_json == '"finished"' for u in summary
        )
        assert [r.exit.exit_code for r in records if r.HasField("exit")] == [0]
        for record in records:
            if record.HasField("history"):
                items = record.history.item
                rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in items})
    assert [row["env_step"] for row in rows if "learn/policy_loss" in row] == steps_of(folder)
    kind, values = (f"collect/action_histogram/{key}" for key in ("_type", "values"))
    histograms = [row for row in rows if row.get(kind) == "histogram"]
    assert [row["env_step"] for row in histograms] == steps_of(folder)
    assert all(sum(row[values]) > 400 for row in histograms)


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


@needs("aim")
def test_aim_repository_has_config_rows_and_result_in_one_run(tmp_path):
    folder = train_twice(tmp_path, {"type": "aim"})
    aim = "from aim.cli.cli import cli_entry_point; cli_entry_point()"
    run("-c", aim, "storage", "reindex", "-y", cwd=tmp_path)  # `aim up` does it by itself
    code = """
        import json, aim
        from aim.storage.context import Context
        (run,) = aim.Repo(".").iter_runs()
        rows = run.get_metric("learn/policy_loss", Context({})).values.sparse_list()[1]
        print(json.dumps([run.hash, run["config"]["env"]["env_id"], run["result"]["status"], len(rows)]))
    """
    lines = [line.strip() for line in code.strip().splitlines()]
    shown = run("-c", "\n".join(lines), cwd=tmp_path).stdout.splitlines()[-1]
    run_hash = identity(folder, "aim")["run_hash"]
    assert json.loads(shown) == [run_hash, "CartPole-v1", "finished", len(steps_of(folder))]


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
