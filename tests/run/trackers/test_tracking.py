"""What a run sends to its trackers, read by trackers of the tests' own; and what it does with bad ones."""

import csv
import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
from worlds import small_config

from ding_lite import SerialPipeline, Tracker
from ding_lite.cli import main
from ding_lite.config.compile import compile_config
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.run.trackers.tracking import Tracking


class Recorder(Tracker):
    """Keeps what it receives in a list of the test."""

    received: list = []

    def __init__(self, run, word=""):
        self.received.append(("start", run, word))
        self.identity = {"id": run.identity.get("id", f"id of {word}")}

    def scalars(self, env_step, values):
        self.received.append(("scalars", env_step, values))

    def histogram(self, env_step, name, values):
        self.received.append(("histogram", env_step, name, values))

    def result(self, values):
        self.received.append(("result", values))

    def close(self):
        self.received.append(("close",))


class Broken(Tracker):
    """Raises in the method that the config names, each time it is called."""

    def __init__(self, run, method):
        self.method = method
        self.calls = 0
        if method == "__init__":
            raise OSError("no network")
        if method == "identity":
            self.identity = "x1"

    def scalars(self, env_step, values):
        self.calls += 1
        if self.method == "scalars":
            raise OSError(f"no network at call {self.calls}")

    def result(self, values):
        if self.method == "result":
            raise SystemExit(3)

    def close(self):
        raise ValueError("closed twice")


class NeedsMore(Tracker):
    requires = ("a_package_that_is_not_there", "wandb")


@pytest.fixture
def received(monkeypatch):
    monkeypatch.setattr(Recorder, "received", [])
    return Recorder.received


def train(folder, *trackers, freq=500, **others):
    config = small_config(
        env={"manager": "base"}, logger={"trackers": list(trackers), "freq": freq}, **others
    )
    pipeline = SerialPipeline(config, folder=folder)
    for _ in pipeline:
        pass
    return pipeline


def rows_of(folder):
    with (folder / "metrics.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def of_kind(received, kind):
    return [event[1:] for event in received if event[0] == kind]


def test_tracker_gets_config_rows_at_the_interval_result_and_is_closed_last(tmp_path, received):
    train(tmp_path / "run", {"type": Recorder, "word": "x"})
    ((run, word),) = of_kind(received, "start")
    saved = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert (run.folder, run.config, run.resume_at, word) == (tmp_path / "run", saved, None, "x")
    rows = {int(row["env_step"]): row for row in rows_of(tmp_path / "run")}
    sent = of_kind(received, "scalars")
    assert list(rows) == [256, 512, 768, 1024, 1280, 1536]
    assert [step for step, _ in sent] == [512, 1024, 1536]
    for step, values in sent:
        assert {name: repr(float(x)) for name, x in values.items()} == {
            name: repr(float(x)) for name, x in rows[step].items() if "/" in name and x
        }
    assert "eval/episode_return_mean" in sent[-1][1]
    assert of_kind(received, "result")[-1][0] == json.loads((tmp_path / "run" / "result.json").read_text())
    assert [event[0] for event in received].count("close") == 1
    assert received[-1] == ("close",)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"wrd": "x"}, "unknown key 'wrd'; did you mean 'word'\\?; it takes word"),
        ({"word": "x", "run": 1}, "unknown key 'run'"),
    ],
)
def test_argument_that_a_tracker_does_not_take_is_refused(tmp_path, received, arguments, fault):
    with pytest.raises(ConfigError, match=rf"^logger.trackers\[0\]: 'test_tracking:Recorder': {fault}"):
        train(tmp_path / "run", {"type": "test_tracking:Recorder", **arguments})
    assert (received, (tmp_path / "run").exists()) == ([], False)


def test_argument_that_a_tracker_needs_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"^logger.trackers\[1\]: .*missing a required argument: 'method'"):
        train(tmp_path / "run", "csv", {"type": "test_tracking:Broken"})


def test_histograms_have_the_actions_of_the_iteration_and_the_returns_since_the_last_row(tmp_path, received):
    train(tmp_path / "run", Recorder)
    with (tmp_path / "run" / "episodes.csv").open(newline="") as stream:
        episodes = [(int(row["env_step"]), float(row["return"])) for row in csv.DictReader(stream)]
    sent = {(step, name): values for step, name, values in of_kind(received, "histogram")}
    for step in (512, 1024, 1536):
        actions = sent[step, "collect/action"]
        assert actions.shape == (256,)
        assert set(np.unique(actions)) == {0, 1}
    for after, step in ((0, 512), (512, 1024), (1024, 1536)):
        expected = [value for at, value in episodes if after < at <= step]
        assert sorted(sent[step, "collect/episode_return"]) == sorted(expected)


def test_a_histogram_of_a_large_rollout_has_some_values_of_every_dimension(monkeypatch):
    monkeypatch.setattr("ding_lite.run.trackers.tracking.HISTOGRAM_VALUES", 100)
    tracking = Tracking.__new__(Tracking)
    tracking._episodes = []
    actions = np.tile(np.arange(6.0), (256, 1))  # the number of each dimension
    ((name, values),) = tracking._histograms(actions)
    assert (name, values.shape) == ("collect/action", (100,))
    assert min(np.bincount(values.astype(int), minlength=6)) > 5
    ((_, again),) = tracking._histograms(actions)
    assert np.array_equal(values, again)
    ((_, all_of_few),) = tracking._histograms(actions[:16])
    assert np.array_equal(all_of_few, actions[:16].reshape(-1))


def test_two_trackers_of_one_class_and_a_resumed_run_get_their_own_identities_back(tmp_path, received):
    items = [{"type": Recorder, "word": "a"}, {"type": Recorder, "word": "b"}]
    train(tmp_path / "run", *items, checkpoint={"freq": 256})
    SerialPipeline.resume(
        tmp_path / "run", changes={"max_env_step": 1792}, trust=[Recorder.__module__]
    ).close()
    started = of_kind(received, "start")
    assert [dict(run.identity) for run, _ in started] == [{}, {}, {"id": "id of a"}, {"id": "id of b"}]
    assert [run.resume_at for run, _ in started] == [None, None, 1536, 1536]


def test_trackers_of_a_finished_run_that_is_resumed_get_its_result_again(tmp_path, received):
    folder = train(tmp_path / "run", {"type": Recorder}).folder
    result = of_kind(received, "result")
    del received[:]
    assert main(["train", "-q", "--resume", str(folder), "--import", Recorder.__module__]) == 0
    assert of_kind(received, "result") == result
    assert [event[0] for event in received] == ["start", "result", "close"]


def test_every_evaluation_is_sent(tmp_path, received):
    train(tmp_path / "run", Recorder, freq=10**6, policy={"eval": {"eval_freq": 512}})
    sent = of_kind(received, "scalars")
    assert [step for step, _ in sent] == [512, 1024, 1536]
    assert all("eval/episode_return_mean" in values for _, values in sent)


def killed(folder, *trackers, freq=1):
    """Leaves in ``folder`` what a run that is killed at env step 1280 leaves: a checkpoint at 768."""
    config = small_config(
        env={"manager": "base"},
        max_env_step=2304,
        checkpoint={"freq": 768, "keep_freq": 256, "keep": 9},
        logger={"trackers": list(trackers), "freq": freq},
    )
    pipeline = SerialPipeline(config, folder=folder.with_name("alive"))
    while pipeline.progress.env_step < 1280:
        pipeline.step()
    pipeline.checkpoints.wait()
    shutil.copytree(pipeline.folder, folder)
    for later in ("iteration_00000004", "iteration_00000005"):
        shutil.rmtree(folder / "ckpt" / later)
    pipeline.close()


def resumed(path, **options):
    pipeline = SerialPipeline.resume(path, trust=[Recorder.__module__], **options)
    for _ in pipeline:
        pass


def untimed(events):
    return [(step, {name: x for name, x in values.items() if "time/" not in name}) for step, values in events]


@pytest.mark.parametrize("freq", [1, 500])
def test_killed_run_and_its_continuation_send_what_one_session_sends(freq, tmp_path, received):
    train(tmp_path / "straight", Recorder, freq=freq, max_env_step=2304)
    straight = received[:]
    received.clear()
    killed(tmp_path / "run", Recorder, freq=freq)
    resumed(tmp_path / "run")
    assert untimed(of_kind(received, "scalars")) == untimed(of_kind(straight, "scalars"))
    histograms = [[event[:2] for event in of_kind(run, "histogram")] for run in (received, straight)]
    assert set(histograms[0]) == set(histograms[1])
    steps = [step for step, name in histograms[0] if name == "collect/action"]
    assert steps == [step for step, _ in of_kind(straight, "scalars")]


@pytest.mark.parametrize(
    ("path", "options"),
    [
        ("run", {"changes": {"policy.learn.clip_ratio": 0.1}}),
        ("run", {"override": True}),
        ("run/ckpt/iteration_00000002", {}),
    ],
)
def test_rows_that_may_differ_from_those_before_are_sent(path, options, tmp_path, received):
    killed(tmp_path / "run", Recorder)
    received.clear()
    resumed(tmp_path / path, **options)
    first = 768 if "ckpt" in path else 1024
    assert [step for step, _ in of_kind(received, "scalars")] == list(range(first, 2305, 256))


def test_what_was_sent_is_forgotten_with_the_branch_that_sent_it(tmp_path, received):
    killed(tmp_path / "run", Recorder)
    SerialPipeline.resume(
        tmp_path / "run", trust=[Recorder.__module__], changes={"policy.learn.clip_ratio": 0.1}
    ).close()
    received.clear()
    resumed(tmp_path / "run")
    assert [step for step, _ in of_kind(received, "scalars")] == list(range(1024, 2305, 256))


def test_row_that_may_be_lost_in_a_kill_is_sent_again_unless_the_tracker_was_closed(
    tmp_path, received, monkeypatch
):
    monkeypatch.setattr(Recorder, "seconds_to_store", 60.0)
    killed(tmp_path / "run", Recorder)
    closed = json.loads((tmp_path / "alive" / "trackers_stored.json").read_text())
    assert closed == {"test_tracking:Recorder": 1280}
    received.clear()
    resumed(tmp_path / "run")
    assert [step for step, _ in of_kind(received, "scalars")] == list(range(1024, 2305, 256))


def test_tracker_that_begins_a_new_run_gets_all_rows(tmp_path, received):
    killed(tmp_path / "run", Recorder)
    (tmp_path / "run" / "trackers.json").unlink()
    received.clear()
    resumed(tmp_path / "run")
    assert [step for step, _ in of_kind(received, "scalars")] == list(range(1024, 2305, 256))


@pytest.mark.parametrize("method", ["__init__", "identity", "scalars", "result"])
def test_tracker_that_fails_is_left_out_after_one_warning(method, tmp_path, received):
    pipeline = train(tmp_path / "run", {"type": Broken, "method": method}, Recorder, freq=1)
    assert pipeline.status == "finished"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("WARNING: tracker") == 1
    assert "test_tracking:Broken" in log
    assert "the run goes on without it" in log
    assert len(of_kind(received, "scalars")) == 6  # the other tracker misses nothing
    assert len(of_kind(received, "result")) == 1


def test_tracker_without_its_package_is_refused_before_there_is_a_folder(tmp_path):
    with pytest.raises(ConfigError, match=r'a_package_that_is_not_there.*pip install "ding_lite\[wandb\]"'):
        train(tmp_path / "run", NeedsMore)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("trackers", "fault"),
    [
        (["wand"], r"logger.trackers\[0\]: there is no tracker named 'wand'. Did you mean 'wandb'"),
        ([{"type": "mlflow", "uri": "x"}], r"logger.trackers\[0\]: unknown key 'uri'"),
        ([{"project": "x"}], r"logger.trackers\[0\]: None is no tracker"),
        (3, "logger.trackers: expected a list"),
    ],
)
def test_faulty_trackers_are_named(trackers, fault):
    with pytest.raises(ConfigError, match=fault):
        compile_config(small_config(logger={"tensorboard": True, "trackers": trackers}))


@pytest.mark.parametrize(
    ("logger", "trackers"),
    [
        ({}, ["csv", "tensorboard"]),
        ({"tensorboard": False}, ["csv"]),
        ({"tensorboard": True}, ["csv", "tensorboard"]),
        ({"tensorboard": True, "trackers": ["mlflow"]}, ["mlflow", "tensorboard"]),
        ({"trackers": "mlflow"}, ["mlflow"]),
    ],
)
def test_short_form_and_earlier_key(logger, trackers):
    config = {"env": {"env_id": "CartPole-v1"}, "logger": logger}
    values = compile_config(config).values["logger"]
    assert values["trackers"] == trackers
    assert "tensorboard" not in values


def test_metrics_are_written_without_csv_too(tmp_path):
    train(tmp_path / "run")
    assert len(rows_of(tmp_path / "run")) == 6
    assert not (tmp_path / "run" / "tb").exists()


def test_module_that_only_a_checkpoint_names_as_a_tracker_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "foreign_tracker.py").write_text(
        "from pathlib import Path\n"
        "from ding_lite import Tracker\n"
        "Path('imported').touch()\n"
        "class Mine(Tracker): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    train(tmp_path / "run", "foreign_tracker:Mine")
    (tmp_path / "imported").unlink()
    del sys.modules["foreign_tracker"]
    with pytest.raises(CheckpointError, match="foreign_tracker"):
        SerialPipeline.resume(tmp_path / "run")
    assert not (tmp_path / "imported").exists()
    SerialPipeline.resume(tmp_path / "run", trust=["foreign_tracker"]).close()
    assert (tmp_path / "imported").exists()


@pytest.mark.slow
def test_no_package_of_a_tracker_is_imported_unless_it_is_asked_for(tmp_path):
    code = (
        "import sys; from ding_lite.cli import main\n"
        "main(['train', '-c', 'cartpole_ppo', '--max-env-step', '100', '-q', '--exp-name', 'run'])\n"
        "print([name for name in ('wandb', 'mlflow', 'aim', 'moviepy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("[]\n", 0)
