"""Trackers: what they receive, what is left of one that fails, and what the library's own write."""

import importlib.util
import json
import math
import os
import signal
import struct
import subprocess
import sys
import warnings

import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog
from worlds import finished, small_config

from ding_lite import Hook, SerialPipeline, TrackedRun, Tracker
from ding_lite.errors import ConfigError
from ding_lite.run.trackers import TensorboardTracker, WandbTracker


class Kept(Tracker):
    """Keeps what it receives."""

    received: list = []

    def __init__(self, run, name="kept", fails_in=""):
        self.name, self.fails_in = name, fails_in
        self.place = f"https://{name}"
        self.note("run", run)

    def note(self, method, *arguments):
        self.received.append((self.name, method, *arguments))
        if method == self.fails_in:
            raise RuntimeError("no network")

    def scalars(self, env_step, values):
        self.note("scalars", env_step, values)

    def result(self, values):
        self.note("result", values)

    def close(self):
        self.note("close")


class Seldom(Hook):
    """Has a metric in iterations that need not have a row."""

    def after_iter(self, pipeline):
        if pipeline.progress.iteration % 2:
            pipeline.progress.metrics["seldom"] = pipeline.progress.iteration


@pytest.fixture
def received():
    Kept.received.clear()
    return Kept.received


def train(folder, *trackers, **others):
    config = small_config(
        env={"manager": {"type": "base"}},
        policy={"eval": {"eval_freq": 768}},
        logger={"trackers": list(trackers), "freq": 512},
        **{"max_env_step": 1536, **others},
    )
    return finished(SerialPipeline(config, folder=folder))


def test_a_tracker_gets_rows_at_the_interval_and_at_evaluations_and_is_closed_last(tmp_path, received):
    pipeline = train(tmp_path / "run", Kept, hooks=[Seldom])
    (_, _, run), *rows, (*_, result), closed = received
    assert (run.folder, run.resume_at) == (tmp_path / "run", None)
    assert run.config["env"]["env_id"] == "CartPole-v1"
    assert [entry[1:3] for entry in rows] == [("scalars", step) for step in (512, 768, 1024, 1536)]
    assert rows[-1][-1].items() > pipeline.progress.metrics.items()
    assert [row.get("seldom") for *_, row in rows] == [1, 3, None, 5], "the newest since the last row"
    assert (result["status"], closed) == ("finished", ("kept", "close"))
    assert f"{__name__}:Kept: https://kept" in (tmp_path / "run" / "log.txt").read_text()


def test_a_resumed_run_has_the_same_id_and_begins_after_its_checkpoint(tmp_path, received):
    train(tmp_path / "run", Kept, max_env_step=512)
    (first,) = [entry[2] for entry in received if entry[1] == "run"]
    again = SerialPipeline.resume(tmp_path / "run", changes={"max_env_step": 1536}, trust=[__name__])
    received.clear()
    finished(again)
    (second,) = [entry[2] for entry in received if entry[1] == "run"]
    assert (second.id, second.resume_at) == (first.id, 512)
    assert [entry[2] for entry in received if entry[1] == "scalars"] == [768, 1024, 1536]


@pytest.mark.parametrize("fails_in", ["run", "scalars", "result", "close"])
def test_a_tracker_that_fails_is_left_out_with_one_warning(fails_in, tmp_path, received):
    failing, other = ({"type": Kept, "name": name} for name in ("failing", "other"))
    pipeline = train(tmp_path / "run", {**failing, "fails_in": fails_in}, other)
    assert pipeline.status == "finished"
    assert (tmp_path / "run" / "log.txt").read_text().count("WARNING: tracker") == 1
    assert [method for name, method, *_ in received if name == "other"][-2:] == ["result", "close"]
    assert [method for name, method, *_ in received if name == "failing"].count(fails_in) == 1


def test_a_missing_package_is_named_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(WandbTracker, "requires", "no_such_package")
    with pytest.raises(ConfigError, match="pip install no_such_package"):
        train(tmp_path / "run", "wandb")
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------- TensorBoard


def events(file):
    """Yields the events of a file: records of a length, a checksum, an event and a checksum."""
    data = file.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


def test_events_have_the_config_and_the_rows_and_a_resumed_run_hides_what_came_later(tmp_path):
    for resume_at in (None, 150):
        tracker = TensorboardTracker(TrackedRun(tmp_path, {"seed": 3}, resume_at, "id"))
        tracker.scalars(200, {"learn/policy_loss": math.nan, "collect/episode_return": 3})
        tracker.close()
    first, second = (list(events(file)) for file in sorted((tmp_path / "tb").iterdir()))
    head, start, config, row = first
    assert head.file_version == "brain.Event:2"
    assert b'"seed": 3' in config.summary.value[0].tensor.string_val[0]
    values = {value.tag: value.simple_value for value in row.summary.value}
    assert (row.step, values["collect/episode_return"]) == (200, 3)
    assert math.isnan(values["learn/policy_loss"])
    assert (second[1].step, second[1].session_log.status) == (151, SessionLog.START)


# ---------------------------------------------------------------------- services

KILLED = """
import os, signal
from pathlib import Path
from ding_lite import Hook

class Killed(Hook):
    def before_iter(self, pipeline):
        if pipeline.progress.iteration == 2:
            pipeline.save()
        if pipeline.progress.iteration == 4 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
"""


def train_twice(cwd, tracker):
    """Trains past a checkpoint until the run is killed, and resumes it; returns the run's folder."""
    (cwd / "killed.py").write_text(KILLED)
    config = small_config(
        env={"manager": {"type": "base"}}, hooks=["killed:Killed"], logger={"trackers": [tracker], "freq": 1}
    )
    (cwd / "c.json").write_text(json.dumps(config))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(cwd), os.environ.get("PYTHONPATH", "")])}
    for code, words in (
        (-signal.SIGKILL, ["-c", "c.json", "--exp-name", "run"]),
        (0, ["--resume", "run", "--import", "killed"]),
    ):
        command = [sys.executable, "-m", "ding_lite", "train", "-q", *words]
        done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr[-3000:]
    assert "WARNING" not in (cwd / "run" / "log.txt").read_text()
    return cwd / "run"


def steps_of(folder):
    return [int(line.split(",")[0]) for line in (folder / "metrics.csv").read_text().splitlines()[1:]]


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


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
def test_wandb_offline_has_config_rows_and_result_under_one_id(tmp_path):
    folder = train_twice(tmp_path, {"type": "wandb", "mode": "offline", "project": "mine"})
    files = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    sessions = [list(wandb_records(file)) for file in files]
    ids = {record.run.run_id for records in sessions for record in records if record.HasField("run")}
    assert (len(sessions), len(ids)) == (2, 1)
    (session,) = [record.run for record in sessions[1] if record.HasField("run")]
    config = {entry.key: json.loads(entry.value_json) for entry in session.config.update}
    assert (session.project, config["env"]["env_id"]) == ("mine", "CartPole-v1")
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in sessions[1]
        if record.HasField("history")
    ]
    steps = [row["env_step"] for row in rows if "learn/policy_loss" in row]
    assert steps == steps_of(folder)[2:], "the rows after the checkpoint"
    assert [record.exit.exit_code for record in sessions[1] if record.HasField("exit")] == [0]


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mlflow") is None, reason="needs mlflow")
def test_mlflow_has_config_rows_and_result_in_one_run(tmp_path):
    store = f"sqlite:///{tmp_path / 'store.db'}"
    folder = train_twice(tmp_path, {"type": "mlflow", "tracking_uri": store, "tags": {"a": "b"}})
    with warnings.catch_warnings(action="ignore"):  # of MLflow's own packages
        from mlflow import MlflowClient

        client = MlflowClient(store)
        experiment = client.get_experiment_by_name("ding_lite")
        (found,) = client.search_runs([experiment.experiment_id])
        history = client.get_metric_history(found.info.run_id, "learn/policy_loss")
    assert (found.info.status, found.info.run_name, found.data.tags["a"]) == ("FINISHED", "run", "b")
    assert found.data.params["policy.learn.batch_size"] == "64"
    result = json.loads((folder / "result.json").read_text())
    assert json.loads(found.data.tags["result.eval_value"]) == result["eval_value"]
    assert sorted({metric.step for metric in history}) == steps_of(folder)
