"""Playing with a saved policy: rows per episode, and windows on a real (virtual) display."""

import json
import os
import shutil
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from worlds import digest, finished, return_on_cartpole, small_config

from ding_lite import SerialPipeline, evaluate, load_policy
from ding_lite.envs.workers.cores import torch_threads
from ding_lite.errors import ConfigError, EnvError
from ding_lite.tools.evaluate import DISPLAYS, evaluate_checkpoint


class OtherBounds(gym.Wrapper):
    """Has the observations of CartPole, in a space without bounds."""

    def __init__(self, env):
        super().__init__(env)
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, env.observation_space.shape, np.float32)


class ThreeActions(gym.Wrapper):
    """Has one action more than CartPole."""

    action_space = gym.spaces.Discrete(3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return finished(SerialPipeline(small_config(max_env_step=256), folder=folder)).folder


def test_policy_plays_in_a_changed_environment(run):
    def played(changes):
        return evaluate_checkpoint(run, episodes=4, seed=7, changes=changes)[1]

    assert max(played({"env.max_eval_steps": 5}).lengths) == 5
    # A reward of -1 where the pole falls, and of 0 before it.
    assert set(played({"env.kwargs.sutton_barto_reward": True}).returns) == {-1.0}
    # Other bounds of the observations, which a network does not see.
    assert len(played({"env.wrappers": [{"type": "test_evaluate:OtherBounds"}]}).returns) == 4


def test_vectors_are_played_with_one_thread(run):
    found = set()

    class Watched(CartPoleEnv):
        def step(self, action):
            found.add(torch.get_num_threads())
            return super().step(action)

    with torch_threads(3):
        evaluate(load_policy(run), Watched, episodes=1)
        assert (found, torch.get_num_threads()) == ({1}, 3)


def test_changes_that_a_policy_cannot_play_with_are_refused(run):
    for changes, kind, text in (
        ({"env.env_id": "Acrobot-v1"}, EnvError, "observation space is Box.*trained with Box"),
        (
            {"env.wrappers": [{"type": "test_evaluate:ThreeActions"}]},
            EnvError,
            r"action space is Discrete\(3\).*trained with Discrete\(2\)",
        ),
        ({"env.env_kind": 1}, ConfigError, "unknown key 'env_kind'"),
        ({"policy.type": "ppg"}, ConfigError, "policy.type: only keys of env"),
    ):
        with pytest.raises(kind, match=text):
            evaluate_checkpoint(run, episodes=1, changes=changes)


def test_without_a_display_the_error_says_how_to_get_a_video(run, monkeypatch):
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no display .*ding-lite eval RUN --video videos"):
        evaluate_checkpoint(run, episodes=1, human=True)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("xvfb-run") is None, reason="it needs a virtual display: xvfb-run")
def test_window_is_open_while_the_policy_plays_at_its_own_speed(run):
    environment = {name: value for name, value in os.environ.items() if name not in DISPLAYS}
    program = ["xvfb-run", "-a", sys.executable, "-m", "ding_lite"]
    command = [*program, "eval", str(run), "--human", "-n", "3", "--json"]
    began = time.monotonic()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    lengths = json.loads(done.stdout)["lengths"]
    assert len(lengths) == 3
    assert time.monotonic() - began >= 0.9 * sum(lengths) / CartPoleEnv.metadata["render_fps"]


def test_evaluate_plays_what_a_loop_over_the_environment_plays(run):
    policy = load_policy(run)

    class Seeds(gym.Wrapper):
        seeds: dict[int, list[int]] = {}

        def reset(self, *, seed=None, options=None):
            self.seeds.setdefault(id(self), []).append(seed)
            return self.env.reset(seed=seed, options=options)

    evaluation = evaluate(policy, lambda: Seeds(gym.make("CartPole-v1")), episodes=5, num_envs=2, seed=3)
    one, other = Seeds.seeds.values()
    expected = sorted(return_on_cartpole(policy, seed) for seed in (*one[:3], *other[:2]))
    assert sorted(evaluation.returns) == expected
    assert evaluate(policy, "CartPole-v1", episodes=3, max_steps=4).lengths == (4, 4, 4)
    for short in (dict(kwargs=dict(max_episode_steps=4)), dict(max_eval_steps=4)):
        assert evaluate(policy, dict(env_id="CartPole-v1", **short), episodes=3).lengths == (4, 4, 4)
    for env, number, said in ((gym.make("CartPole-v1"), 1, "a function"), ("CartPole-v1", 0, "at least 1")):
        with pytest.raises(EnvError, match=said):
            evaluate(policy, env, num_envs=number)


def test_evaluate_leaves_a_training_as_it_is(tmp_path):
    states = []
    for name in ("alone", "evaluated"):
        with SerialPipeline(small_config(max_env_step=512), folder=tmp_path / name) as pipeline:
            for _ in pipeline:
                if name == "evaluated":
                    evaluate(pipeline.policy, "CartPole-v1", episodes=2, stochastic=True)
        states.append(digest(pipeline.policy.state_dict()))
    assert states[0] == states[1]


def test_evaluate_samples_actions_by_the_seed_if_asked(run):
    policy = load_policy(run)
    sampled = evaluate(policy, "CartPole-v1", seed=1, stochastic=True).returns
    assert sampled != evaluate(policy, "CartPole-v1", seed=1).returns
    assert sampled != evaluate(policy, "CartPole-v1", seed=2, stochastic=True).returns
    policy.act(policy.obs_space.sample(), deterministic=False)
    assert sampled == evaluate(policy, "CartPole-v1", seed=1, stochastic=True).returns
