"""Every shipped config runs, made small; and atari_ppo has the settings of labml's PPO, number by number."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib.util
import json
import math
import os
import subprocess
import sys
from ctypes.util import find_library
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from cases import slow_but

from ding_lite import SerialPipeline, load_policy
from ding_lite.config.compile import (
    compile_config,
    differences,
    load_config,
    read_config,
    shipped_configs,
)
from ding_lite.config.schema import leaves
from ding_lite.data.samples import Batch
from ding_lite.envs.packages import EXTRAS
from ding_lite.errors import ConfigError, EnvError
from ding_lite.policies import PPOPolicy
from ding_lite.policies.optimizer import ADAM

ROOT = Path(__file__).parents[2]
CONFIGS = shipped_configs()
PAPER = ROOT / "examples" / "procgen_paper_ppg.py"


def learning(policy):
    """Returns overrides for 8 updates per iteration, and an auxiliary phase in the second iteration."""
    if not policy.type.startswith("ppg"):
        updates = {"epoch_per_collect": 2} if policy.on_policy else {"update_per_collect": 8}
    else:
        epochs = {f"{who}_epoch_per_collect": 2 for who in ("actor", "critic")}
        updates = {**epochs, "aux_batch_size": 16, "aux_freq": 2, "aux_train_epoch": 1}
    return {f"policy.learn.{name}": value for name, value in updates.items()}


def small(name):
    """Returns a shipped config with rollouts of 4 minibatches of 8 samples, and a run of two of them."""
    values = load_config(name).values
    envs = min(2, values.env.collector_env_num)
    overrides = {
        "max_train_iter": 9,  # one iteration has 8 updates, or fewer where rows were resets
        "num_threads": 1,
        "env.collector_env_num": envs,
        "env.evaluator_env_num": 1,
        "env.n_evaluator_episode": 1,
        "env.max_eval_steps": 15,
        "env.stop_value": None,
        "env.manager.worker_num": 2,
        "policy.device": "cpu",
        "policy.collect.n_sample": 32,
        "policy.collect.n_step": None,
        "policy.learn.batch_size": 8,
        "policy.learn.sequence_length": 8,
        **learning(values.policy),
        "policy.eval.eval_freq": 0,
        "checkpoint.freq": 0,
        "logger.trackers": [],
    }
    return compile_config(values, overrides)


def lacking(error):
    """Returns whether an error says how to install a package that is indeed not installed."""
    text = str(error)
    if "requires the system Qt 5" in text:  # of EnvPool's Procgen; it is no Python package
        return find_library("Qt5Gui") is None
    if "No module named 'mujoco_playground'" in text:
        return True
    missing = {extra for module, extra in EXTRAS.items() if importlib.util.find_spec(module) is None}
    return any(f'pip install "ding_lite[{extra}]"' in text for extra in missing)


def begun(name, folder):
    """Returns the pipeline; skips the test if the error says how to install its extra, which is missing."""
    try:
        return SerialPipeline(small(name), folder=folder)
    except EnvError as error:
        if not lacking(error):
            raise
        pytest.skip(str(error))


DAILY = ("cartpole_ppo", "pendulum_ppg", "memory_ppo", "cliffwalking_ppo")


# Box2D is built with an old SWIG, whose types Python complains about when they are imported.
@pytest.mark.filterwarnings("ignore:builtin type .* has no __module__ attribute:DeprecationWarning")
@pytest.mark.parametrize("name", slow_but(DAILY, [*CONFIGS, PAPER]), ids=lambda name: Path(name).stem)
def test_shipped_config_runs_two_iterations_and_its_policy_acts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # MuJoCo writes its warnings to a file wherever it is
    pipeline = begun(name, tmp_path / "run")
    updates = [progress.metrics["learn/updates"] for progress in pipeline]
    assert len(updates) == 2
    phases = pipeline.cfg.policy.type.startswith("ppg")
    assert ("learn/aux_updates" in pipeline.progress.metrics) is phases
    assert all(6 <= count <= 8 for count in updates)
    result = json.loads((pipeline.folder / "result.json").read_text())
    assert (result["status"], result["iterations"]) == ("finished", 2)
    assert 48 <= result["env_step"] <= 64
    assert math.isfinite(result["eval_value"])
    policy = load_policy(pipeline.folder)
    assert policy.act(policy.obs_space.sample()) in policy.action_space


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_config_repeats_no_default(name):
    written, whole = read_config(CONFIGS[name]), load_config(name)
    assert (whole.values.exp_name, whole.notes) == (name, ())
    for path, _ in leaves(written):
        *sections, key = path.split(".")
        fewer = copy.deepcopy(written)
        del functools.reduce(dict.__getitem__, sections, fewer)[key]
        with contextlib.suppress(ConfigError):  # another key of the config needs it
            assert differences(whole.values, compile_config(fewer, name=name).values), path


@pytest.mark.slow
def test_configs_and_templates_are_found_in_an_installed_package(tmp_path):
    """Built as pip builds it, and run from elsewhere."""
    site = tmp_path / "site"
    build = ["build", "--build-base", str(tmp_path / "base"), "--build-lib", str(site)]
    subprocess.run([sys.executable, "setup.py", "-q", *build], cwd=ROOT, check=True, capture_output=True)
    installed = {file.name for file in (site / "ding_lite" / "_configs").iterdir()}
    assert installed == {file.name for file in (ROOT / "configs").glob("*.py")}
    environment = {**os.environ, "PYTHONPATH": str(site)}
    new = [sys.executable, "-m", "ding_lite", "new", "env", "thing"]
    subprocess.run(new, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "thing.py").is_file()
    limits = ["--max-env-step", "64", "policy.collect.n_sample=64", "env.max_eval_steps=15"]
    command = [sys.executable, "-m", "ding_lite", "train", "-c", "cartpole_pole_ppo", *limits]
    command += ["policy.learn.batch_size=32", "env.n_evaluator_episode=2"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "cartpole_pole_ppo" / "result.json").is_file()
    where = "from ding_lite.config.compile import find_config; print(find_config('cartpole_pole_ppo'))"
    command = [sys.executable, "-c", where]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(site / "ding_lite" / "_configs" / "cartpole_pole_ppo.py")


# ------------------------------------------------------------------ labml's PPO

BREAKOUT = load_config("atari_ppo").values


@pytest.fixture(scope="module")
def policy():
    frames = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    return PPOPolicy({**BREAKOUT.policy, "device": "cpu"}, frames, gym.spaces.Discrete(4))


def at(policy, update):
    """Returns the policy as it is after ``update`` updates."""
    policy.progress.env_step = update * 1024
    policy.set_coefficients()
    policy.set_learning_rates()
    return policy


def test_breakout_is_ten_thousand_updates_of_eight_environments_by_128_steps():
    env, policy = BREAKOUT.env, BREAKOUT.policy
    assert (env.collector_env_num, env.manager.type, env.manager.double_buffer) == (8, "subprocess", True)
    assert policy.collect.n_sample == 8 * 128
    assert BREAKOUT.max_env_step / policy.collect.n_sample == 10_000
    assert policy.collect.n_sample / policy.learn.batch_size == 4
    assert (policy.learn.epoch_per_collect, policy.learn.adv_norm) == (4, "minibatch")
    assert policy.learn.schedule_env_step == BREAKOUT.max_env_step
    assert (policy.learn.entropy_weight, policy.learn.value_weight) == (0.01, 0.5)
    assert (policy.learn.grad_clip_type, policy.learn.grad_clip_value) == ("clip_norm", 0.5)


@pytest.mark.parametrize("update", [0, 1, 2500, 5000, 9999, 10_000])
def test_rate_and_clip_ranges_of_breakout_fall_to_0_together(policy, update):
    left = 1 - update / 10_000
    at(policy, update)
    assert policy.optimizer.learning_rate == pytest.approx(2.5e-4 * left, abs=1e-12)
    assert float(policy.clip_ratio) == pytest.approx(0.1 * left, abs=1e-12)
    batch = Batch(new_value=torch.tensor([3.0]), value=torch.tensor([0.0]), value_target=torch.tensor([3.0]))
    loss, _ = policy.value_loss(batch)  # as if the value had only moved by the clip range
    assert float(loss) == pytest.approx(0.5 * (3 - 0.1 * left) ** 2, rel=1e-5)


def test_optimiser_of_breakout_is_plain_adam(policy):
    plain = torch.optim.Adam([torch.zeros(1)]).param_groups[0]
    assert ((ADAM["beta1"], ADAM["beta2"]), policy.optimizer.eps) == (plain["betas"], plain["eps"])


def test_network_of_breakout_is_shared_and_initialised_as_torch_does(policy):
    model = policy.model
    assert model.critic_encoder is None
    shapes = [tuple(layer.weight.shape) for layer in model.modules() if hasattr(layer, "weight")]
    convolutions = [(32, 4, 8, 8), (64, 32, 4, 4), (64, 64, 3, 3)]
    assert shapes == [*convolutions, (512, 64 * 7 * 7), (4, 512), (1, 512)]
    for layer in model.modules():
        if hasattr(layer, "weight"):
            weight, bias = layer.weight.detach(), layer.bias.detach()
            bound = 1 / math.sqrt(weight[0].numel())
            assert max(float(weight.abs().max()), float(bias.abs().max())) <= bound
            assert float(weight.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)
            assert float(bias.abs().max()) > 0


def test_frames_of_breakout_are_scaled_by_the_network_alone(policy):
    frames = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    encoder = policy.model.actor_encoder
    by_hand = encoder.leaves[0].layers(frames.float() / 255).flatten(1)
    assert torch.allclose(encoder(frames), encoder.trunk(by_hand), atol=1e-6)
    assert policy._inputs(frames.numpy()).dtype == torch.uint8
