"""Wrappers by name: what each does, games of several lives, and their restored open games."""

import contextlib
import copy
import math
import subprocess
import sys
import textwrap

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_worlds import CountingEnv, LengthEnv
from strategies import boxes, values_of
from worlds import copy_of, policy_for, same_tree, section

from ding_lite.data.collector import Collector
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.wrappers import ActionBins
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.rl.scales import RAW


class LivesEnv(gym.Env):
    """A game of three lives; what happens follows from the seed, the actions and the game's own draws.

    Observation (number of the game, step, lives, a draw); reward -2, 0 or 2.
    """

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self):
        self.game = -1

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.game, self.count, self.lives = self.game + 1, 0, 3
        return self.obs(), {"lives": self.lives}

    def step(self, action):
        self.count += 1
        if self.np_random.random() < 0.1 + 0.1 * action:
            self.lives -= 1
        truncated = self.count >= 25
        reward = float(self.np_random.integers(-1, 2)) * 2
        return self.obs(), reward, self.lives == 0, truncated, {"lives": self.lives}

    def obs(self):
        return np.array([0, self.count, self.lives, self.np_random.random()], np.float32)


class Buttons(LivesEnv):
    """Loses a life at each third step (or ``every``), and remembers which actions it got."""

    every = 3
    meanings = ("NOOP", "FIRE", "RIGHT", "LEFT")
    action_space = gym.spaces.Discrete(4)

    def get_action_meanings(self):
        return list(self.meanings)

    def reset(self, *, seed=None, options=None):
        self.pressed = []
        return super().reset(seed=seed)

    def step(self, action):
        self.pressed.append(int(action))
        self.count += 1
        self.lives -= self.count % self.every == 0
        return self.obs(), 1.0, self.lives == 0, False, {"lives": self.lives}


class Noops(gym.Wrapper):
    """Begins each game with 1 to 3 steps, as AtariPreprocessing does."""

    def reset(self, *, seed=None, options=None):
        self.draws = self.draws if seed is None else np.random.default_rng(seed)
        obs, info = self.env.reset(seed=seed, options=options)
        for _ in range(self.draws.integers(1, 4)):
            obs, _, terminated, truncated, info = self.env.step(0)
            if terminated or truncated:
                obs, info = self.env.reset(options=options)
        return obs, info


def made(*wrappers, kind=CountingEnv, evaluate=False, index=0, **env):
    source = {"env_id": kind} if isinstance(kind, str) else {"type": kind}
    return make_env(section(**source, wrappers=list(wrappers), **env), evaluate=evaluate, index=index)


def vector(*wrappers, kind=LivesEnv, num_envs=3, evaluate=False, **manager):
    cfg = section(type=kind, wrappers=list(wrappers), manager={"type": "base", **manager})
    return make_vector_env(cfg, num_envs, seed=5, evaluate=evaluate)


def rollout(envs, steps, seed=0):
    rng = np.random.default_rng(seed)
    return [copy_of(envs.step(rng.integers(0, 3, envs.num_envs))) for _ in range(steps)]


# ------------------------------------------------------------------ names


class KeywordOnly(gym.Wrapper):
    def __init__(self, env, index=7, *, evaluate=None):
        super().__init__(env)
        self.arguments = (evaluate, index)


@pytest.mark.parametrize("evaluate", [False, True])
def test_wrapper_receives_evaluate_and_index_by_keyword_only_parameters(evaluate):
    for wrapper, told in (
        (KeywordOnly, (evaluate, 7)),
        ({"type": KeywordOnly, "evaluate": "mine"}, ("mine", 7)),
    ):
        env = made(wrapper, evaluate=evaluate, index=2)
        assert env.get_wrapper_attr("arguments") == told


# ------------------------------------------------------------------ single wrappers


@pytest.mark.parametrize("evaluate", [False, True])
def test_time_limit_of_training_only_leaves_evaluation_whole_episodes(evaluate):
    short = {"type": "time_limit", "max_episode_steps": 2, "training_only": True}
    env = made(short, kind=LengthEnv, evaluate=evaluate)
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(2)] == [False, not evaluate]


def test_action_rescale_stretches_minus_one_to_one_to_the_bounds():
    env = made("action_rescale", kind="Pendulum-v1")
    assert env.action_space == gym.spaces.Box(-1, 1, (1,), np.float32)
    env.reset(seed=0)
    env.step(np.array([0.5], np.float32))
    assert env.unwrapped.last_u == 1.0  # of 2
    env.close()


class Arm(gym.Env):
    """An environment that keeps its last action."""

    observation_space = gym.spaces.Box(0, 1, (1,))

    def __init__(self, space):
        self.action_space = space

    def step(self, action):
        self.last = action
        return np.zeros(1, np.float32), 0.0, False, False, {}


@given(boxes([np.float32, np.float64], finite=True), st.integers(2, 6), st.data())
def test_action_bins_are_spaced_evenly_from_low_to_high_for_each_number(box, bins, data):
    env = ActionBins(Arm(box), bins)
    for choice in data.draw(values_of(env.action_space, bins)):
        env.step(choice)
        low, high = box.low.astype(float), box.high.astype(float)
        expected, error = low + choice * (high - low) / (bins - 1), 1e-6 * np.abs([low, high]).max()
        np.testing.assert_allclose(env.unwrapped.last, expected, atol=error)
        assert np.asarray(env.unwrapped.last) in box


def test_action_bins_need_finite_bounds():
    with pytest.raises(ConfigError, match=r"^env\.wrappers: action_bins: expected a Box of finite bounds"):
        ActionBins(Arm(gym.spaces.Box(-np.inf, np.inf, (2,))), 3)


def test_frame_stack_has_the_oldest_first_and_keeps_the_dtype():
    env = made("frame_stack")
    assert (env.observation_space.shape, env.observation_space.dtype) == ((4, 2), np.float32)
    obs, _ = env.reset(seed=0)
    assert obs[:, 1].tolist() == [0, 0, 0, 0]
    assert [env.step(0)[0][:, 1].tolist() for _ in range(2)] == [[0, 0, 0, 1], [0, 0, 1, 2]]


def test_a_game_that_ends_under_no_ops_is_not_reported():
    envs = vector(Noops, kind=lambda: LengthEnv(4))
    envs.reset("evaluate")
    episodes = [episode for t in rollout(envs, 40) for episode in t.episodes]
    assert episodes
    assert all(1 <= episode.length <= 4 for episode in episodes)
    assert sum(episode.length for episode in episodes) <= 3 * 40, "more decisions than were taken"


@pytest.mark.parametrize("limits", [{}, {"low": -1, "high": 1}])
def test_reward_clip_does_not_hide_a_reward_that_is_no_number(limits):
    env = made(
        {"type": "reward_clip", **limits},
        kind=lambda: gym.wrappers.TransformReward(LivesEnv(), lambda _: math.nan),
    )
    env.reset(seed=1)
    assert math.isnan(env.step(0)[1])


@pytest.mark.parametrize(
    ("limits", "evaluate", "rewards"),
    [
        ({}, False, {-1, 0, 1}),
        ({}, True, {-2, 0, 2}),
        ({"low": -1}, False, {-1, 0, 2}),
        ({"high": 1.5}, False, {-2, 0, 1.5}),
        ({"low": -0.5, "high": 0.5}, False, {-0.5, 0, 0.5}),
        ({"low": -1}, True, {-2, 0, 2}),
    ],
)
def test_reward_clip_with_limits_clips_at_them(limits, evaluate, rewards):
    env = made({"type": "reward_clip", **limits}, kind=LivesEnv, evaluate=evaluate)
    env.reset(seed=1)
    assert {env.step(0)[1] for _ in range(20)} == rewards


# ------------------------------------------------------------------ lives


def test_a_lost_life_ends_the_agents_episode_and_not_the_game():
    env = made("episodic_life", kind=Buttons)
    env.reset(seed=0)
    assert [env.step(3)[2] for _ in range(3)] == [False, False, True]
    obs, info = env.reset(seed=1)
    assert (obs[1], info["lives"]) == (4, 2), "one step of doing nothing, in the same game"
    assert env.unwrapped.pressed == [3, 3, 3, 0]
    assert [env.step(3)[2] for _ in range(2)] == [False, True]
    env.reset(seed=2)
    assert [env.step(3)[2] for _ in range(2)] == [False, True]
    obs, info = env.reset(seed=3)
    assert (obs[1], info["lives"]) == (0, 3), "the last life: a new game"


class PlaysOn(Buttons):
    """Loses the last of its lives at the ninth step, and ends two steps later."""

    def step(self, action):
        obs, reward, _, truncated, info = super().step(action)
        return obs, reward, self.count == 11, truncated, info


def test_the_last_life_ends_with_the_game():
    env = made("episodic_life", kind=PlaysOn)
    env.reset(seed=0)
    ends = []
    for _ in range(9):  # and two steps of doing nothing, after the first two lives
        ends.append(env.step(3)[2])
        if ends[-1]:
            env.reset()
    assert ends == [False, False, True, False, True, False, False, False, True]


@pytest.mark.parametrize("evaluate", [False, True])
def test_whole_games_are_reported_with_raw_returns(evaluate):
    envs, plain = vector("episodic_life", "reward_clip", evaluate=evaluate), vector(evaluate=evaluate)
    envs.reset("collect")
    ends, games = 0, []
    for transition in rollout(envs, 300):
        ends += int((transition.terminated | transition.truncated).sum())
        games += transition.episodes
    assert len(games) > 20
    assert ends == len(games) if evaluate else ends > 1.5 * len(games)
    assert max(abs(game.episode_return) for game in games) > 2
    assert max(game.length for game in games) <= 25
    if evaluate:  # nothing that is for training is left
        plain.reset("collect")
        same = [one.reward.tolist() for one in rollout(plain, 300)]
        envs.reset("collect")
        assert [one.reward.tolist() for one in rollout(envs, 300)] == same
    envs.close()
    plain.close()


def test_fire_is_pressed_after_a_reset_and_after_a_life_that_is_no_reset(monkeypatch):
    env = made("fire_reset", kind=Buttons, evaluate=True)
    env.reset(seed=0)
    assert env.unwrapped.pressed == [1, 2]
    _, reward, *_ = env.step(3)  # the third step: a life
    assert (env.unwrapped.pressed, reward) == ([1, 2, 3, 1, 2], 3.0)
    monkeypatch.setattr(Buttons, "every", 5)
    env = made("episodic_life", "fire_reset", kind=Buttons)
    env.reset(seed=0)
    assert [env.step(3)[2] for _ in range(3)] == [False, False, True]
    assert env.unwrapped.pressed == [1, 2, 3, 3, 3]
    env.reset(seed=1)
    assert env.unwrapped.pressed == [1, 2, 3, 3, 3, 0, 1, 2]


# ------------------------------------------------------------------ open games brought back

STACKS = {
    "lives": ["episodic_life", "reward_clip"],
    "lives and more": [
        Noops,
        "gymnasium.wrappers:MaxAndSkipObservation",
        "episodic_life",
        {"type": "time_limit", "max_episode_steps": 4},
        "frame_stack",
    ],
    "noops above lives": ["episodic_life", Noops],
}


@pytest.mark.parametrize("stack", STACKS)
def test_open_game_is_brought_back_at_every_step(stack):
    envs, fresh = (vector(*STACKS[stack], num_envs=2) for _ in range(2))
    envs.reset("collect")
    ends = games = 0
    for cut in range(40):
        state = copy.deepcopy(envs.state_dict())
        obs = fresh.load_state_dict(state)
        assert same_tree(obs, state["obs"]), f"after {cut} steps"
        assert same_tree(fresh.state_dict(), state)
        assert fresh.episode_returns.tolist() == envs.episode_returns.tolist()
        # ``fresh`` is used by now: it goes on, and is brought back again in the middle of another game.
        ahead = rollout(fresh, 3, seed=cut)
        (got,) = rollout(envs, 1, seed=cut)
        assert same_tree(ahead[0]._asdict(), got._asdict())
        ends, games = ends + (got.terminated | got.truncated).sum(), games + len(got.episodes)
    assert ends > games + 5, "no game ever went on after an end"


def test_a_run_begins_every_game_anew_even_after_a_lost_life():
    envs = vector("episodic_life")
    begun = envs.reset("collect").copy()
    for steps in range(1, 20):
        rollout(envs, steps, seed=steps)
        assert same_tree(envs.reset("collect").copy(), begun)
        assert all(one["actions"] is None for one in envs.state_dict()["envs"])


@pytest.mark.parametrize("backend", ["base", "subprocess"])
def test_ignore_done_bootstraps_at_the_end_of_an_episode(backend):
    """Rewards of the first episode are 1, 2, 3; with lambda 0, target = r + V(next) / 2."""
    targets = {}
    for wrappers in ([], ["ignore_done"]):
        cfg = section(type=CountingEnv, wrappers=wrappers, manager=backend)
        with contextlib.closing(make_vector_env(cfg, 1, 0)) as envs:
            policy = policy_for(envs, collect=dict(discount_factor=0.5, gae_lambda=0.0))
            policy.value_norm.load_state_dict(RAW)
            rollout = Collector(envs, policy, 6).collect()
        assert bool(rollout.terminated[2, 0]) == (not wrappers) == (not rollout.truncated[2, 0])
        targets[len(wrappers)] = rollout.value_target[2, 0]
        after = policy.values(torch.tensor([[0.0, 3.0]]))[0]  # of the episode's last observation
    assert targets[0] == 3.0
    assert abs(after) > 1e-3
    torch.testing.assert_close(targets[1], 3.0 + 0.5 * after)
    evaluated = make_env(cfg, evaluate=True)
    evaluated.reset()
    assert [evaluated.step(0)[2:4] for _ in range(3)][-1] == (True, False), "an evaluation has the real end"


class EndsUnderNoop(Buttons):
    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated or self.count == 4, truncated, info


def test_a_game_that_ends_under_the_step_of_doing_nothing_is_followed_by_a_new_one():
    envs = vector("episodic_life", kind=EndsUnderNoop, num_envs=1)
    envs.reset("collect")
    last = [copy_of(envs.step(np.full(1, 3))) for _ in range(3)][-1]
    assert (bool(last.terminated[0]), last.obs[0, 1]) == (True, 0)
    assert [(game.episode_return, game.length) for game in last.episodes] == [(4, 3)]
    assert envs.state_dict()["envs"] == [{"episode": 1, "actions": None}]


@pytest.mark.slow
def test_workers_give_the_same_games_and_the_same_state():
    stack = [
        *STACKS["lives and more"],
        lambda env: gym.wrappers.TransformReward(env, lambda reward: 2 * reward),
    ]
    here = vector(*stack, num_envs=3)
    there = vector(*stack, num_envs=3, type="subprocess", worker_num=2)
    assert same_tree(here.reset("collect"), there.reset("collect"))
    for _ in range(3):
        ours, theirs = rollout(here, 15), rollout(there, 15)
        assert all(same_tree(a._asdict(), b._asdict()) for a, b in zip(ours, theirs, strict=True))
        assert [here.describe(i) for i in range(3)] == [there.describe(i) for i in range(3)]
        state = copy.deepcopy(here.state_dict())
        assert same_tree(there.state_dict(), state)
    there.reset("elsewhere")
    assert same_tree(there.load_state_dict(state), state["obs"])
    assert same_tree(rollout(there, 5)[-1]._asdict(), rollout(here, 5)[-1]._asdict())
    there.close()


def test_state_of_another_stack_of_wrappers_is_refused():
    envs = vector("episodic_life")
    envs.reset("collect")
    rollout(envs, 17)
    state = copy.deepcopy(envs.state_dict())
    with pytest.raises(CheckpointError, match="open episodes could not be restored"):
        vector(Noops, "episodic_life").load_state_dict(state)


# ------------------------------------------------------------------ packages that are missing

MISSING = {
    "ALE/Breakout-v5": ("ale_py", "atari"),
    "BreakoutNoFrameskip-v4": ("ale_py", "atari"),
    "MinAtar/Breakout-v1": ("minatar", "minatar"),
    "MiniGrid-Empty-5x5-v0": ("minigrid", "minigrid"),
    "BabyAI-GoToRedBall-v0": ("minigrid", "minigrid"),
    "LunarLander-v3": ("Box2D", "box2d"),
    "InvertedDoublePendulum-v5": ("mujoco", "mujoco"),
}
BLOCKED = """
    import sys

    class Blocker:
        blocked = ("ale_py", "minatar", "minigrid", "Box2D", "mujoco")

        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in self.blocked:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Blocker())
    from ding_lite.cli import main

    for env_id in sys.argv[1:]:
        print("==", env_id, file=sys.stderr)
        code = main(["train", "--env", env_id, "--plain", "--exp-name", "run"])
        print("exit", code, file=sys.stderr)
"""


@pytest.mark.slow
def test_missing_packages_have_an_install_line(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(BLOCKED), *MISSING]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    parts = done.stderr.split("== ")[1:]
    assert [part.split("\n")[0] for part in parts] == list(MISSING)
    for part, (_, extra) in zip(parts, MISSING.values(), strict=True):
        assert f'pip install "ding_lite[{extra}]"' in " ".join(part.split())
        assert part.strip().endswith("exit 3")
        assert "Traceback" not in part
    assert list(tmp_path.iterdir()) == [], "a run that could not start leaves no folder"
