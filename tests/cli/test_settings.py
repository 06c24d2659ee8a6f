"""Settings of ``train --env ID``, which has no config: which they are, and that typed keys win."""

import json

import pytest
from cases import drawn
from worlds import timeless_rows

from ding_lite import settings
from ding_lite.config.compile import POLICIES, read_config, shipped_configs
from ding_lite.config.registry import names_in
from ding_lite.config.schema import leaves
from ding_lite.run.settings import _shipped_for

# Environments of the kinds, and policies of the user: one with defaults of its own, one that extends none.
MINE = """\
import gymnasium as gym
import numpy as np

from ding_lite import Policy, PPOPolicy
from ding_lite.config.schema import DROPPED

SPACES = {
    "numbers": gym.spaces.Box(-9, 9, (3,), np.float32),
    "picture": gym.spaces.Box(0, 255, (40, 40, 3), np.uint8),
    "grey": gym.spaces.Box(0, 255, (40, 40), np.uint8),
    "frames": gym.spaces.Box(0, 255, (4, 40, 40), np.uint8),
    "parts": gym.spaces.Dict(
        camera=gym.spaces.Box(0, 255, (40, 40, 3), np.uint8), arm=gym.spaces.Box(-9, 9, (3,), np.float32)
    ),
    "cells": gym.spaces.Box(0, 255, (7, 7, 3), np.uint8),
    "symbols": gym.spaces.MultiDiscrete([3, 4]),
}
ACTIONS = {
    "unit": gym.spaces.Box(-1, 1, (2,), np.float32),
    "wide": gym.spaces.Box(-5, 5, (2,), np.float32),
    "half": gym.spaces.Box(0, 1, (2,), np.float32),
    "free": gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "index": gym.spaces.Discrete(3),
}


class World(gym.Env):
    def __init__(self, sees="numbers", acts="unit"):
        self.observation_space, self.action_space = SPACES[sees], ACTIONS[acts]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), float(np.sum(action)), self.t == 5, False, {}


class Mine(PPOPolicy):
    config = dict(learn=dict(learning_rate=0.5, epoch_per_collect=10, entropy_weight=DROPPED))


class Other(Policy):
    pass
"""
WORLD = ("--import", "mine.py", "--env", "mine:World")
RATE, OBS, WRAPPERS = "policy.learn.learning_rate", "policy.normalize.obs", "env.wrappers"
EPOCHS, PPG = "policy.learn.epoch_per_collect", "policy.learn.actor_epoch_per_collect"
SHIPPED, KIND = "settings: shipped config ", "settings: for "
ROWS = [
    # words, what the first line says, values of keys
    ("--env CartPole-v1", SHIPPED + "cartpole_ppo", {RATE: 1e-3, "env.stop_value": 475, OBS: False}),
    ("--env CartPole-v1 --policy ppg", SHIPPED + "cartpole_ppg", {"max_env_step": 200_000}),
    (f"--env CartPole-v1 {RATE}=0.1 max_env_step=9", SHIPPED, {RATE: 0.1, "max_env_step": 9}),
    ("--env CartPole-v1 policy.type=ppg", SHIPPED + "cartpole_ppg", {PPG: 1}),
    ("--env CartPole-v1 --plain", "", {RATE: 3e-4, "env.stop_value": None, "max_env_step": 1_000_000}),
    (
        "--env Acrobot-v1 --policy ppg",
        "network, entropy and discount from acrobot_ppo",
        {"max_env_step": 500_000, OBS: True, PPG: 3},
    ),
    (
        "--env MountainCarContinuous-v0 --policy ppg",
        KIND + "vectors",
        {"policy.collect.discount_factor": 0.9999, OBS: True, PPG: 3},
    ),
    ("--env Acrobot-v1 env.env_id=CartPole-v1", SHIPPED + "cartpole_ppo", {EPOCHS: 4}),
    ("--env CliffWalking-v1 --policy ppg", KIND + "grids", {PPG: 3, "policy.learn.entropy_weight": 0.1}),
    (
        "--env MountainCarContinuous-v0 --policy ppo_offpolicy",
        SHIPPED + "mountaincar_continuous_ppo, with a replay buffer",
        {RATE: 3e-4, "policy.collect.n_sample": 8192, "policy.learn.reuse": 9},
    ),
    ("--env Acrobot-v1 --policy ppo_offpolicy", SHIPPED + "acrobot_ppo, with", {RATE: 1e-3}),
    ("--env MinAtar/Breakout-v1 --policy ppg_offpolicy", SHIPPED + "minatar_ppg, with", {PPG: 3}),
    ("--env FrozenLake-v1", KIND + "grids", {EPOCHS: 4}),
    ("W", KIND + "vectors", {OBS: True, WRAPPERS: [], EPOCHS: 10}),
    ("W --plain", "", {OBS: False, WRAPPERS: []}),
    (f"W {OBS}=False", KIND + "vectors", {OBS: False}),
    ("W --policy ppo_offpolicy", KIND + "vectors", {"policy.learn.reuse": 9}),
    ("W --policy ppg_offpolicy", KIND + "vectors", {PPG: 3}),
    ("W --policy mine:Mine", KIND + "vectors", {RATE: 0.5, OBS: True}),
    ("W --policy mine:Other", "none, since mine:Other extends no policy of the library", {OBS: False}),
    ("W env.kwargs.sees=symbols --policy mine:Mine", KIND + "grids", {RATE: 0.5, EPOCHS: 10}),
    (
        "W env.kwargs.sees=cells",
        KIND + "grids, since observations have small images or cells and",
        {RATE: 1e-3, WRAPPERS: []},
    ),
    ("W env.kwargs.sees=picture", "; four frames are stacked (", {WRAPPERS: ["frame_stack"]}),
    ("W env.kwargs.sees=grey", "; four frames are stacked (", {WRAPPERS: ["frame_stack"]}),
    ("W env.kwargs.sees=frames", "with ppo (--plain", {WRAPPERS: [], RATE: 2.5e-4}),  # a stack already
    (
        "W env.kwargs.sees=parts",
        "numbers that are not normalised by default, and no",
        {WRAPPERS: [], OBS: False},
    ),
    ("W env.kwargs.acts=wide", "actions are rescaled", {WRAPPERS: ["action_rescale"]}),
    ("W env.kwargs.acts=half", "actions are rescaled", {WRAPPERS: ["action_rescale"]}),
    ("W env.kwargs.acts=free", "numbers", {WRAPPERS: []}),
    ("W env.kwargs.acts=index", "numbers", {WRAPPERS: []}),
    ("W env.manager.type=vector", "none, since a simulator may exist only once", {OBS: False}),
    ("W env.kwargs.acts=wide env.wrappers=[reward_clip]", "numbers", {WRAPPERS: ["reward_clip"]}),
]


@pytest.mark.parametrize(("words", "said", "values"), ROWS, ids=[words for words, *_ in ROWS])
def test_settings_are_those_of_the_task_or_its_kind_and_typed_keys_win(
    words, said, values, ding_lite, tmp_path
):
    (tmp_path / "mine.py").write_text(MINE)
    typed = [part for word in words.split() for part in (WORLD if word == "W" else (word,))]
    done = ding_lite("config", "--json", *typed)
    assert done.code == 0, done.err
    assert said in done.err
    assert done.err.count("\n") == done.err.count("settings: ") == bool(said)  # one sentence
    found = dict(leaves(json.loads(done.out)["config"]))
    assert {path: found[path] for path in values} == values


QUICK = (
    *("env.collector_env_num=2", "env.evaluator_env_num=1", "env.n_evaluator_episode=1", "max_env_step=96"),
    *("policy.collect.n_sample=32", "policy.learn.batch_size=8", "policy.eval.eval_freq=0"),
)


@pytest.mark.parametrize(("policy", "sees"), drawn(8, POLICIES, ["numbers", "picture", "parts", "symbols"]))
def test_the_settings_of_every_kind_train_every_policy(policy, sees, well, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    kwargs = (f"env.kwargs.sees={sees}", "env.kwargs.acts=wide")
    printed = well("train", *WORLD, *kwargs, "--policy", policy, *QUICK, "--exp-name", "run")
    assert "settings: for" in printed
    assert len(timeless_rows(tmp_path / "run")) == 3


UNITS = """\
import gymnasium as gym
import numpy as np

from ding_lite.testing import ACTION_SPACES, MatchEnv


class World(gym.Wrapper):
    def __init__(self, acts, reward=1.0, scale=1.0, offset=0.0, edge=None):
        env = gym.wrappers.TransformReward(MatchEnv(ACTION_SPACES[acts]), lambda r: reward * r)
        space = gym.spaces.Box(offset - scale, offset + scale, env.observation_space.shape, np.float32)
        env = gym.wrappers.TransformObservation(env, lambda x: np.float32(scale * x + offset), space)
        rescaled = gym.wrappers.RescaleAction(env, np.float32(-edge), np.float32(edge)) if edge else env
        super().__init__(rescaled)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("best", "units"),
    [
        (8000.0, dict(acts="Discrete", reward=1000.0, scale=100.0, offset=300.0)),
        (8.0, dict(acts="Box", edge=2000.0)),
    ],
)
def test_settings_learn_whatever_the_units(best, units, well, tmp_path):
    (tmp_path / "mine.py").write_text(UNITS)
    kwargs = [f"env.kwargs.{name}={value}" for name, value in units.items()]
    keys = ("max_env_step=40_000", f"{RATE}=3e-3", "policy.eval.eval_freq=0")
    well("train", "-q", *WORLD, *kwargs, *keys, "--exp-name", "run")
    result = json.loads(well("eval", "run/ckpt/last", "-n", 40, "--json", "--import", "mine.py"))
    assert result["mean"] > 0.8 * best


def test_the_file_that_config_writes_trains_the_same_run(ding_lite, well, tmp_path):
    words = ("--env", "Acrobot-v1", "--policy", "ppg")
    well("train", "-q", *words, *QUICK, "--exp-name", "typed")
    assert ding_lite("config", *words, "-o", "kept.py").code == 0
    well("train", "-q", "-c", "kept.py", *QUICK, "--exp-name", "kept")
    assert timeless_rows(tmp_path / "kept") == timeless_rows(tmp_path / "typed")
    assert read_config(tmp_path / "kept.py") == settings("Acrobot-v1", policy="ppg")


def test_an_environment_has_one_shipped_config_for_a_policy():
    names = {file.stem: names_in(file) for file in shipped_configs().values()}
    listed = {env for found in names.values() for env in found.get("environments", {})}
    assert listed > {"CartPole-v1", "MiniGrid-*"}
    for name in [pattern.replace("*", "Any").replace("[45]", "5") for pattern in listed]:
        policies = [config["policy"].get("type", "ppo") for config in _shipped_for(name).values()]
        assert len(policies) == len(set(policies)) > 0, name
    assert _shipped_for("MiniGrid-DoorKey-5x5-v0")["minigrid_ppo"]["max_env_step"] == 100_000
    assert _shipped_for("MiniGrid-Empty-8x8-v0")["minigrid_ppo"]["max_env_step"] == 1_000_000
    assert _shipped_for("ALE/Pong-v5")["atari_ppo"]["env"]["kwargs"] == {"frameskip": 1}
