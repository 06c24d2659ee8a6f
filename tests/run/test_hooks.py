"""Hooks: when they are called, what they may change, their state, and how their errors are told."""

import csv
import json
import sys

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import digest, small_config

from ding_lite import HOOK_REGISTRY, Hook, SerialPipeline
from ding_lite.config.compile import compile_config
from ding_lite.errors import CheckpointError, ConfigError, HookError
from ding_lite.run.checkpoint import load_checkpoint


class Diary(Hook):
    """Writes down its calls."""

    calls: list = []

    def __init__(self, word="it"):
        self.word = word

    def before_run(self, pipeline):
        self.calls.append((self.word, "before_run", pipeline.progress.iteration))

    def before_iter(self, pipeline):
        self.calls.append((self.word, "before_iter", pipeline.progress.iteration))

    def after_iter(self, pipeline):
        self.calls.append((self.word, "after_iter", pipeline.progress.iteration))

    def after_run(self, pipeline):
        saved = json.loads((pipeline.folder / "result.json").read_text())["status"]
        self.calls.append((self.word, "after_run", pipeline.status, saved))


class Counter(Hook):
    """Counts iterations, lowers the learning rate by what it has counted, and keeps both in its state."""

    def __init__(self):
        self.count = 0
        self.returns = np.zeros(0)

    def after_iter(self, pipeline):
        self.count += 1
        self.returns = np.append(self.returns, pipeline.progress.metrics["collect/episode_return"])
        pipeline.policy.learning_rate = 1e-3 / self.count
        pipeline.progress.metrics["my/count"] = float(self.count)

    def state_dict(self):
        return {"count": self.count, "returns": self.returns}

    def load_state_dict(self, state):
        self.count, self.returns = int(state["count"]), np.array(state["returns"])


class Broken(Hook):
    error = ValueError

    def __init__(self, method):
        def fail(pipeline):
            raise self.error("the disk of a user")

        setattr(self, method, fail)


class Stateless(Hook):
    """Loses what it counts."""

    count = 0

    def after_iter(self, pipeline):
        type(self).count += 1


HERE = [Diary.__module__]


def config_with(*hooks, **others):
    return small_config(env={"manager": "base"}, hooks=list(hooks), **others)


def train(folder, *hooks, **others):
    pipeline = SerialPipeline(config_with(*hooks, **others), folder=folder)
    for _ in pipeline:
        pass
    return pipeline


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(Diary, "calls", [])
    return Diary.calls


def test_hooks_are_called_in_the_order_of_the_config(tmp_path, calls):
    train(tmp_path / "run", {"type": Diary, "word": "a"}, {"type": Diary, "word": "b"}, max_env_step=512)
    expected = [("before_run", 0)]
    for iteration in (0, 1):
        expected += [("before_iter", iteration), ("after_iter", iteration + 1)]
    expected.append(("after_run", "finished", "finished"))
    assert calls == [(word, *call) for call in expected for word in "ab"]


def test_metric_of_a_hook_is_in_the_row_of_its_iteration(tmp_path):
    train(tmp_path / "run", Counter)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as stream:
        assert [row["my/count"] for row in csv.DictReader(stream)] == [f"{n}.0" for n in range(1, 7)]


def stop_after(folder, config, iterations):
    pipeline = SerialPipeline(config, folder=folder)
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()


def test_state_of_a_hook_makes_a_resumed_run_equal_to_a_straight_one(tmp_path):
    straight = train(tmp_path / "straight", Counter)
    stop_after(tmp_path / "run", config_with(Counter), 3)
    resumed = SerialPipeline.resume(tmp_path / "run", trust=HERE)
    for _ in resumed:
        pass
    states = [load_checkpoint(p.folder / "ckpt" / "last")[0] for p in (straight, resumed)]
    assert states[0]["hooks"][f"{__name__}:Counter"]["count"] == 6
    for part in ("policy", "hooks", "collector"):
        assert digest(states[0][part]) == digest(states[1][part])


def test_hooks_without_a_state_add_nothing_to_a_checkpoint(tmp_path):
    train(tmp_path / "run", Stateless, max_env_step=256)
    assert "hooks" not in load_checkpoint(tmp_path / "run" / "ckpt" / "last")[0]


def test_hook_may_be_added_and_left_out_when_a_run_is_resumed(tmp_path):
    stop_after(tmp_path / "run", config_with(Counter), 1)
    pipeline = SerialPipeline.resume(tmp_path / "run", changes={"hooks": [Stateless]}, trust=HERE)
    next(iter(pipeline))
    pipeline.close()
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "warned: applied: hooks: " in log


def test_state_that_does_not_fit_names_the_hook(tmp_path, monkeypatch):
    stop_after(tmp_path / "run", config_with(Counter), 1)
    monkeypatch.setattr(Counter, "load_state_dict", lambda self, state: state["other"])
    with pytest.raises(CheckpointError, match=r"hook 'test_hooks:Counter' does not fit: KeyError: 'other'"):
        SerialPipeline.resume(tmp_path / "run", trust=HERE)


@pytest.mark.parametrize("method", ["before_run", "before_iter", "after_iter", "after_run"])
@pytest.mark.parametrize("error", [ValueError, SystemExit, ConfigError])
def test_error_in_a_hook_names_hook_and_method(method, error, tmp_path, monkeypatch):
    monkeypatch.setattr(Broken, "error", error)
    with pytest.raises(HookError, match=f"hook 'test_hooks:Broken' failed in {method}: .*the disk") as caught:
        train(tmp_path / "run", {"type": Broken, "method": method}, max_env_step=256)
    assert caught.value.exit_code == 2
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    if method == "after_run":  # everything is saved by then
        assert (result["status"], result["error"]) == ("finished", None)
        assert "Traceback" in (tmp_path / "run" / "log.txt").read_text()
    else:
        assert result["status"] == "failed"
        assert result["error"].startswith("HookError: hook ")


class BrokenOnce(Counter):
    """Counts, and raises an error in one method of the third iteration."""

    broken = True

    def __init__(self, method):
        super().__init__()
        self.method = method

    def before_iter(self, pipeline):
        if self.broken and self.method == "before_iter" and self.count == 3:
            raise ValueError("the disk")

    def after_iter(self, pipeline):
        super().after_iter(pipeline)
        if self.broken and self.method == "after_iter" and self.count == 3:
            raise ValueError("the disk")


@pytest.mark.parametrize("method", ["before_iter", "after_iter"])
def test_an_error_in_a_hook_loses_no_iteration(method, tmp_path, monkeypatch):
    folder, hook = tmp_path / "run", {"type": BrokenOnce, "method": method}
    straight = train(tmp_path / "straight", {**hook, "method": "none"})
    with pytest.raises(HookError):
        train(folder, hook)
    monkeypatch.setattr(BrokenOnce, "broken", False)
    with SerialPipeline.resume(folder, trust=HERE) as resumed:
        assert resumed.progress.iteration == 3
        for _ in resumed:
            pass
    assert digest(resumed.policy.state_dict()) == digest(straight.policy.state_dict())
    rows = [(tmp_path / name / "episodes.csv").read_text() for name in ("straight", "run")]
    assert rows[0] == rows[1]
    with (folder / "metrics.csv").open(newline="") as stream:
        assert [row["my/count"] for row in csv.DictReader(stream)] == [f"{n}.0" for n in range(1, 7)]


class Adds(Hook):
    value = None

    def after_iter(self, pipeline):
        pipeline.progress.metrics["my/x"] = self.value


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ("text", r"'text' \(str\)"),
        (torch.ones(3), r"tensor\(\[1., 1., 1.\]\) \(Tensor\)"),
        (np.ones(1), "ndarray"),
        (None, r"None \(NoneType\)"),
        (1j, r"1j \(complex\)"),
    ],
)
def test_metric_that_is_no_number_names_hook_metric_and_value(value, got, tmp_path, monkeypatch):
    monkeypatch.setattr(Adds, "value", value)
    message = f"^hook 'test_hooks:Adds': the metric 'my/x' must be one number, got .*{got}"
    with pytest.raises(HookError, match=message):
        train(tmp_path / "run", Stateless, Adds, max_env_step=256)


class AddsTwo(Hook):
    def after_iter(self, pipeline):
        pipeline.progress.metrics |= {"my/x": "text", "my/y": [1], "my/z": np.float32(0.5)}


def test_every_metric_that_is_no_number_is_named_and_left_out(tmp_path):
    with pytest.raises(HookError, match="'my/x' must be one number.*; 'my/y' must be"):
        train(tmp_path / "run", AddsTwo, max_env_step=256)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as stream:
        (row,) = csv.DictReader(stream)
    assert row["my/z"] == "0.5"
    assert row.keys().isdisjoint({"my/x", "my/y"})


@pytest.mark.parametrize("value", [0.5, np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)])
def test_metric_of_any_scalar_type_is_written_as_a_number(value, tmp_path, monkeypatch):
    monkeypatch.setattr(Adds, "value", value)
    train(tmp_path / "run", Adds, max_env_step=256)
    with (tmp_path / "run" / "metrics.csv").open(newline="") as stream:
        assert [row["my/x"] for row in csv.DictReader(stream)] == ["0.5"]


class Unsaveable(Hook):
    def state_dict(self):
        return {"seen": [{1, 2}]}


def test_state_of_a_hook_that_cannot_be_saved_is_the_hooks_fault(tmp_path):
    with pytest.raises(HookError, match=r"'test_hooks:Unsaveable' failed in state_dict: .*'seen.0' is a set"):
        train(tmp_path / "run", Unsaveable)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["iterations"] == 0


def test_keyboard_interrupt_in_a_hook_is_no_error_of_the_hook(tmp_path, monkeypatch):
    monkeypatch.setattr(Broken, "error", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", {"type": Broken, "method": "after_iter"})
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"


@pytest.mark.parametrize(
    ("hooks", "fault"),
    [
        (["stop_fil"], r"hooks\[0\]: there is no hook named 'stop_fil'. Did you mean 'stop_file'"),
        ([{"type": "stop_file", "file": "x"}], r"hooks\[0\]: unknown key 'file'; known here: name"),
        ([3], r"hooks\[0\]: 3 is no hook"),
    ],
)
def test_faulty_hooks_are_named(hooks, fault):
    with pytest.raises(ConfigError, match=fault):
        compile_config(config_with(*hooks))


def test_class_that_is_no_hook_is_refused(tmp_path):
    with pytest.raises(LookupError, match="subclass of Hook"):
        train(tmp_path / "run", dict)
    assert not (tmp_path / "run").exists()


def test_registered_hook_is_found_by_its_name(tmp_path, calls):
    HOOK_REGISTRY.register("diary")(Diary)
    train(tmp_path / "run", "diary", max_env_step=256)
    assert [call[1] for call in calls] == ["before_run", "before_iter", "after_iter", "after_run"]


def test_stop_file_ends_a_run_in_order(tmp_path):
    pipeline = SerialPipeline(config_with("stop_file"), folder=tmp_path / "run")
    iterations = []
    for progress in pipeline:
        iterations.append(progress.iteration)
        if progress.iteration == 2:
            (tmp_path / "run" / "stop").touch()
    assert iterations == [1, 2, 3]
    assert pipeline.status == "interrupted"
    assert "stop appeared" in pipeline.error
    told = f"interrupted (the file {tmp_path / 'run' / 'stop'} appeared) after 768 env steps"
    assert pipeline.summary().startswith(told)
    assert told in (tmp_path / "run" / "log.txt").read_text()
    assert not (tmp_path / "run" / "stop").exists()
    assert load_checkpoint(tmp_path / "run" / "ckpt" / "last")[0]["progress"]["iteration"] == 3


class Scored(gym.Env):
    """Episodes of one step, whose rewards in evaluations are those of ``MEANS``, one after the other."""

    MEANS = (1.0, 3.0, 2.0, 3.0, 3.05, 9.0, 9.0, 9.0)
    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)
    evaluations = 0

    def __init__(self, evaluate=False):
        self.evaluate = evaluate

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        reward = 0.0
        if self.evaluate:
            reward = self.MEANS[Scored.evaluations]
            Scored.evaluations += 1
        return np.zeros(1, np.float32), reward, True, False, {}


def test_early_stopping_ends_a_run_whose_evaluations_no_longer_improve(tmp_path):
    Scored.evaluations = 0
    config = config_with({"type": "early_stopping", "patience": 3, "min_delta": 0.1})
    config["env"] |= {"evaluator_env_num": 1, "n_evaluator_episode": 1}
    config["policy"]["eval"] = {"eval_freq": 256}
    env_setting = (Scored, [False] * 4, [True])
    pipeline = SerialPipeline(config, folder=tmp_path / "run", env_setting=env_setting)
    # 2.0, 3.0 and 3.05 are not above 3.0 + 0.1.
    assert [progress.iteration for progress in pipeline] == [1, 2, 3, 4, 5]
    assert pipeline.error == "no evaluation of the last 3 was above 3 by more than min_delta=0.1"
    resumed = SerialPipeline.resume(tmp_path / "run", env_setting=env_setting)
    assert next(iter(resumed)).iteration == 6
    assert resumed.hooks.state_dict()["early_stopping"]["best"] == 9.0
    resumed.close()


def test_early_stopping_without_min_delta_names_the_best_alone(tmp_path):
    Scored.evaluations = 0
    config = config_with({"type": "early_stopping", "patience": 1})
    config["env"] |= {"evaluator_env_num": 1, "n_evaluator_episode": 1}
    config["policy"]["eval"] = {"eval_freq": 256}
    env_setting = (Scored, [False] * 4, [True])
    pipeline = SerialPipeline(config, folder=tmp_path / "run", env_setting=env_setting)
    assert [progress.iteration for progress in pipeline] == [1, 2, 3]
    assert pipeline.error == "no evaluation of the last 1 was above 3"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "early_stopping: no effect" not in log


@pytest.mark.parametrize("patience", [0, 2.5, 2.0, True, "3", None])
def test_patience_that_is_no_whole_number_is_refused(patience, tmp_path):
    fault = "hooks: 'early_stopping' cannot be made: .*patience: expected a whole number of at least 1, got "
    with pytest.raises(ConfigError, match=f"{fault}{patience!r}"):
        train(tmp_path / "run", {"type": "early_stopping", "patience": patience})


def test_early_stopping_of_a_run_without_evaluations_says_that_it_never_acts(tmp_path):
    train(tmp_path / "run", "early_stopping", policy={"eval": {"eval_freq": 0}}, max_env_step=256)
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    note = next(n for n, line in enumerate(lines) if "early_stopping: no effect, since policy.eval" in line)
    assert all("iter" not in line for line in lines[1:note])


def test_module_that_only_a_checkpoint_names_as_a_hook_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "foreign_hook.py").write_text(
        "from pathlib import Path\n"
        "from ding_lite import Hook\n"
        "Path('imported').touch()\n"
        "class Mine(Hook): pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    train(tmp_path / "run", {"type": "foreign_hook:Mine"}, max_env_step=256)
    (tmp_path / "imported").unlink()
    del sys.modules["foreign_hook"]
    with pytest.raises(CheckpointError, match="foreign_hook"):
        SerialPipeline.resume(tmp_path / "run")
    assert not (tmp_path / "imported").exists()


def test_process_with_a_broken_hook_ends_with_exit_code_2_and_one_line(warm, tmp_path):
    (tmp_path / "my_hooks.py").write_text(
        "from ding_lite import Hook\n"
        "class Divide(Hook):\n"
        "    def after_iter(self, pipeline):\n"
        "        pipeline.progress.metrics['my/x'] = 1 / 0\n"
    )
    options = ["--env", "CartPole-v1", "--max-env-step", "2000", "--exp-name", "run", "-q"]
    job = warm.run("train", *options, "hooks=my_hooks:Divide", cwd=tmp_path)
    assert job.code == 2
    assert job.errors == (
        "ding-lite train: error: hook 'my_hooks:Divide' failed in after_iter: ZeroDivisionError: division by "
        "zero (at my_hooks.py:4)\n"
    )
    assert "Traceback" in (tmp_path / "run" / "log.txt").read_text()


class Answers(Hook):
    def after_iter(self, pipeline):
        return False


def test_what_a_hook_returns_is_refused_since_it_would_have_no_effect(tmp_path):
    pipeline = SerialPipeline(small_config(hooks=[Answers]), folder=tmp_path / "run")
    with pytest.raises(HookError, match="after_iter returned False, .*call pipeline.request_stop"):
        next(iter(pipeline))
