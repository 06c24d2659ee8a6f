"""Runs that end badly, begin from damaged files, or meet odd environments: what is said and what is kept."""

import json
import os
import re
import shutil
import signal

import pytest

from ding_lite import SerialPipeline
from ding_lite.run.checkpoint import load_checkpoint

WORLD = """
import warnings

import gymnasium as gym
import numpy as np
import torch

from ding_lite import PPGPolicy, PPOPolicy
from ding_lite.models import IntrinsicReward


class Line(gym.Env):
    observation_space = gym.spaces.Dict({"pose": gym.spaces.Box(-1, 1, (2,), np.float32)})
    action_space = gym.spaces.Discrete(2)
    calls = 0

    def __init__(self, fails_at=0, error="ValueError", scale=1.0):
        self.fails_at, self.error, self.scale = fails_at, error, scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.obs(), {}

    def step(self, action):
        self.steps += 1
        Line.calls += 1
        if Line.calls == self.fails_at:
            raise {"ValueError": ValueError, "KeyboardInterrupt": KeyboardInterrupt}[self.error]("mine")
        return self.obs(), float(action), self.steps == 9, False, {}

    def obs(self):
        return {"pose": np.array([0, self.scale * self.steps / 9], np.float32)}


class NoScalar:
    def policy_loss(self, batch):
        loss, metrics = super().policy_loss(batch)
        return loss.expand(3), metrics


class OnlyLoss:
    def policy_loss(self, batch):
        return super().policy_loss(batch)[0]


class PPONoScalar(NoScalar, PPOPolicy):
    pass


class PPGNoScalar(NoScalar, PPGPolicy):
    pass


class PPOOnlyLoss(OnlyLoss, PPOPolicy):
    pass


class PPGOnlyLoss(OnlyLoss, PPGPolicy):
    pass


class Warns(PPOPolicy):
    def policy_loss(self, batch):
        warnings.warn("this policy is slow", stacklevel=1)
        return super().policy_loss(batch)


class Raises(PPOPolicy):
    def policy_loss(self, batch):
        raise ValueError("boom")


class Multiplies(PPOPolicy):
    def policy_loss(self, batch):
        return torch.ones(2, 3) @ torch.ones(2, 3), {}


class NeedsMore(IntrinsicReward):
    def __init__(self, obs_space, action_space, *, size):
        super().__init__(obs_space, action_space)
"""
SMALL = (
    *("policy.collect.n_sample=64", "policy.learn.batch_size=32", "policy.learn.epoch_per_collect=2"),
    *("env.collector_env_num=2", "env.evaluator_env_num=2", "env.n_evaluator_episode=2"),
)


@pytest.fixture
def train(warm, tmp_path):
    """Trains in a folder with the world above, as a real process; returns its job."""
    (tmp_path / "world.py").write_text(WORLD)

    def call(*arguments, env="world:Line"):
        return warm.run("train", "--env", env, "--exp-name", "run", *SMALL, *arguments, cwd=tmp_path)

    return call


def rows(folder):
    return (folder / "run" / "metrics.csv").read_text().splitlines()[1:]


# ------------------------------------------------------------------ environments that fail


@pytest.mark.daily(1)
@pytest.mark.parametrize("backend", ["base", "subprocess"])
@pytest.mark.parametrize("error", ["ValueError", "KeyboardInterrupt"])
def test_a_run_that_its_environment_ends_keeps_its_last_whole_iteration(
    backend, error, warm, train, tmp_path
):
    """An environment that raises KeyboardInterrupt is at fault: it is not a Ctrl-C."""
    manager = (f"env.manager.type={backend}", "env.manager.worker_num=1", "env.manager.max_restarts=0")
    job = train(*manager, "max_env_step=640", "env.kwargs.fails_at=150", f"env.kwargs.error={error}")
    assert job.code == 3
    assert f"action 0: {error}: mine" in job.errors or f"action 1: {error}: mine" in job.errors
    assert "saved after 128 env steps, at the last whole iteration" in job.output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
    state, _ = load_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors")
    assert state["progress"]["iteration"] == len(rows(tmp_path)) == 2
    command = re.search(r"to continue: ding-lite (.*)", job.output).group(1).split()
    fixed = warm.run(*command, "env.kwargs.fails_at=0", "--override", cwd=tmp_path)
    assert (fixed.code, fixed.errors) == (0, "")
    assert "the rollout after this checkpoint did not end: new episodes" in fixed.output
    assert len(rows(tmp_path)) == 10
    assert [int(row.split(",")[2]) for row in rows(tmp_path)] == [*range(1, 11)]


@pytest.mark.slow
def test_an_evaluation_that_fails_keeps_the_iteration_before_it_with_its_row(warm, train, tmp_path):
    job = train("max_env_step=640", "policy.eval.eval_freq=128", "env.kwargs.fails_at=130")
    assert job.code == 3
    assert len(rows(tmp_path)) == 2
    state, _ = load_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors")
    assert state["progress"]["env_step"] == 128
    assert state["collector"]["envs"] is not None  # its episodes continue


def test_an_observation_outside_of_its_space_is_reported_once(train):
    job = train("max_env_step=320", "env.kwargs.scale=1.5")
    assert job.code == 0
    (line,) = [line for line in job.output.splitlines() if "WARNING" in line]
    found = re.search(
        r"env (\d): observation\['pose'\]\[1\] = ([\d.]+), and its space is from -1.0 to 1.0", line
    )
    assert 1 < float(found.group(2)) <= 1.5


def test_an_observation_at_its_bound_is_not_reported(train):
    assert "WARNING" not in train("max_env_step=320").output


# ------------------------------------------------------------------ code of the user


@pytest.mark.daily(1)
@pytest.mark.parametrize("base", ["PPO", "PPG"])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("NoScalar", "0-d tensors, got the shape (3,) as 'loss'"),
        ("OnlyLoss", "(loss, dict of metrics), got a Tensor"),
    ],
)
def test_a_loss_of_the_wrong_shape_is_an_error_in_words(fault, message, base, warm, tmp_path):
    (tmp_path / "world.py").write_text(WORLD)
    policy = f"{base}{fault}"
    small = ("policy.collect.n_sample=64", "policy.learn.batch_size=32", "max_env_step=64")
    job = warm.run("train", "--env", "CartPole-v1", "--policy", f"world:{policy}", *small, cwd=tmp_path)
    assert job.code == 2
    assert f"{policy}.policy_loss must return {message}" in job.errors
    assert "Traceback" not in job.errors


def test_a_type_error_of_an_intrinsic_reward_names_its_class(train):
    job = train("policy.intrinsic.type=world:NeedsMore", "max_env_step=64")
    assert job.code == 2
    message = "NeedsMore: TypeError: NeedsMore.__init__() missing 1 required"
    assert f"policy.intrinsic.type: {message}" in job.errors
    assert "Traceback" not in job.errors


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("Raises", "ValueError: boom"),
        ("Multiplies", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 2x3)"),
    ],
)
def test_an_error_of_the_users_loss_is_one_line_and_its_traceback_is_in_the_log(
    policy, message, train, tmp_path
):
    job = train("--policy", f"world:{policy}", "max_env_step=64")
    number = next(n for n, line in enumerate(WORLD.splitlines(), 1) if f"class {policy}(" in line) + 2
    assert job.code == 2
    assert job.errors == f"ding-lite train: error: {message} (at world.py:{number})\n"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "Traceback" in log
    assert f'world.py", line {number}, in policy_loss' in log


@pytest.mark.slow
def test_the_traceback_of_an_error_of_the_user_is_shown_with_debug(warm, tmp_path):
    (tmp_path / "mine.py").write_text("class Mine:\n    x = 1 / 0\n")
    for option, shown in ((), False), (("--debug",), True):
        job = warm.run("train", *option, "--import", "mine", "--env", "CartPole-v1", cwd=tmp_path)
        assert (job.code, "Traceback" in job.errors) == (2, shown)
        assert job.errors.endswith("error: ZeroDivisionError: division by zero (at mine.py:2)\n")


# ------------------------------------------------------------------ what is resumed


@pytest.fixture
def cartpole(warm, tmp_path):
    job = warm.run(
        "train", "--env", "CartPole-v1", "--exp-name", "run", *SMALL, "max_env_step=256", cwd=tmp_path
    )
    assert job.code == 0
    return tmp_path


def test_damage_of_best_is_said_by_resume_and_eval_names_last(warm, cartpole):
    (cartpole / "run" / "ckpt" / "best.safetensors").write_bytes(b"nothing")
    job = warm.run("eval", "run", cwd=cartpole)
    assert job.code == 5
    assert "The run has another checkpoint: run/ckpt/last" in job.errors
    assert warm.run("eval", "run/ckpt/last", "-n", "1", cwd=cartpole).code == 0
    job = warm.run("train", "--resume", "run", "max_env_step=320", "policy.eval.eval_freq=0", cwd=cartpole)
    assert job.code == 0
    assert "WARNING: checkpoint best: run/ckpt/best.safetensors has 7 bytes" in job.output


def test_rows_that_metrics_csv_lacks_are_said(warm, cartpole):
    file = cartpole / "run" / "metrics.csv"
    whole = [int(row.split(",")[0]) for row in rows(cartpole)]
    shutil.copytree(cartpole / "run", cartpole / "whole")
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:3]))
    job = warm.run("train", "--resume", "run", "max_env_step=320", cwd=cartpole)
    assert job.code == 0
    said = r"WARNING: run/metrics.csv ends at env step (\d+), before the checkpoint at (\d+)"
    kept, saved = map(int, re.search(said, job.output).groups())
    assert (kept, saved) == (int(rows(cartpole)[1].split(",")[0]), whole[-1])
    assert "WARNING" not in warm.run("train", "--resume", "whole", "max_env_step=320", cwd=cartpole).output


def test_another_model_with_override_names_the_parameters(warm, cartpole):
    change = "policy.model.encoder_hidden_size_list=[32]"
    job = warm.run("train", "--resume", "run", "--override", "max_env_step=320", change, cwd=cartpole)
    assert job.code == 5
    assert "of another shape: actor_encoder.trunk.0.weight (64, 4), this model has (32, 4)" in job.errors
    assert "unknown to this model: actor_encoder.trunk.2.weight" in job.errors


@pytest.mark.slow
def test_ctrl_c_while_a_finished_run_is_evaluated_is_a_success(warm, tmp_path):
    """The run reaches its limit, and its last evaluation takes seconds."""
    step = "self.steps += 1\n        time.sleep(0.01)\n        print(file=open('steps', 'a'))"
    (tmp_path / "world.py").write_text(
        WORLD.replace("self.steps += 1", step, 1).replace("import torch", "import time\nimport torch")
    )
    small = (*SMALL[:-1], "env.n_evaluator_episode=40", "max_env_step=64")
    job = warm.start("train", "--env", "world:Line", "--exp-name", "run", *small, cwd=tmp_path)
    steps = tmp_path / "steps"
    job.until(lambda: steps.exists() and len(steps.read_text()) > 64 + 10)
    job.send(signal.SIGINT)
    assert job.wait() == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


# ------------------------------------------------------------------ files


@pytest.mark.parametrize("linked_from", [0, 10**9])
def test_equal_states_are_equal_files_and_are_on_the_disk_once(linked_from, tmp_path, monkeypatch):
    """The buffers of a run that was resumed are saved as those of one that was not."""
    monkeypatch.setattr("ding_lite.run.checkpoint.LINKED_FROM", linked_from)
    phases = dict(aux_freq=8, aux_train_epoch=1, batch_size=32)
    config = dict(
        num_threads=1,
        max_env_step=384,
        env=dict(env_id="CartPole-v1", collector_env_num=2, n_evaluator_episode=1, evaluator_env_num=1),
        policy=dict(
            type="ppg_offpolicy",
            collect=dict(n_sample=64),
            eval=dict(eval_freq=64),
            learn=phases,
        ),
        checkpoint=dict(freq=64),
        logger=dict(trackers=[]),
    )
    for _ in SerialPipeline(config, folder=tmp_path / "straight"):
        pass
    for _ in SerialPipeline(config, folder=tmp_path / "halves", max_env_step=128):
        pass
    for _ in SerialPipeline.resume(tmp_path / "halves", max_env_step=384):
        pass
    straight, halves, best = (
        tmp_path / run / "ckpt" / name / "tensors.safetensors"
        for run, name in (("straight", "last"), ("halves", "last"), ("straight", "best"))
    )
    assert straight.read_bytes() == halves.read_bytes()
    states = [load_checkpoint(file.parent)[0]["progress"]["iteration"] for file in (straight, best)]
    one_file = linked_from == 0 and states[0] == states[1]
    assert os.path.samefile(straight, best) is one_file


def test_a_warning_is_one_line_on_the_screen_and_in_the_log(train, tmp_path):
    job = train("--policy", "world:Warns", "max_env_step=64")
    line = f"WARNING: this policy is slow ({tmp_path / 'world.py'}:"
    assert job.code == 0
    assert [found.startswith(line) for found in job.errors.splitlines()] == [True]
    assert (tmp_path / "run" / "log.txt").read_text().count(line) == 1
