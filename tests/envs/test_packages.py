"""Atari, MinAtar and MiniGrid as they are: a real game, looked at, and episodes that a seed decides."""

import copy

import cv2
import gymnasium as gym
import numpy as np
import pytest
from worlds import copy_of, same_tree, section

from ding_lite.config.compile import load_config
from ding_lite.envs.make import make_env, make_vector_env
from ding_lite.envs.packages import register_ids
from ding_lite.errors import EnvError

NOOP, FIRE, RIGHT, LEFT = range(4)


def base(env_cfg):
    return {**env_cfg, "manager": {**env_cfg["manager"], "type": "base"}}


@pytest.fixture(scope="module")
def breakout():
    """The section ``env`` of the shipped config."""
    return load_config("atari_ppo").values.env


def test_newest_of_four_uint8_frames_is_the_screen_made_small_after_four_emulator_frames(breakout):
    env = make_env(breakout)
    assert env.observation_space == gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    assert env.unwrapped._frameskip == 1
    obs, _ = env.reset(seed=3)
    for t in range(40):
        before = obs
        obs, reward, *_ = env.step([RIGHT, LEFT, NOOP][t // 3 % 3])
        assert obs in env.observation_space
        assert reward in (0.0, 1.0)
        assert np.array_equal(obs[:-1], before[1:]), "the others move up"
        small = cv2.resize(env.unwrapped.ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
        assert (obs[3] >= small).all(), "the maximum over two screens is never darker than the second"
        assert (obs[3] == small).mean() > 0.98, "and differs only where something moved"
        assert obs.max() > 100, "not scaled, and not dark"
    # 40 decisions of 4 frames, two of fire reset, and 1 to 30 frames of doing nothing
    frames = env.unwrapped.ale.getEpisodeFrameNumber()
    assert 42 * 4 + 1 <= frames <= 42 * 4 + 30
    env.close()


def lives_and_games(env_cfg, evaluate, steps):
    """Returns (ends seen by the agent, finished games) of a player who never moves."""
    envs = make_vector_env(base(env_cfg), 1, seed=0, evaluate=evaluate)
    envs.reset("collect")
    ends, games = 0, []
    for _ in range(steps):
        transition = envs.step(np.array([LEFT]))
        ends += bool(transition.terminated[0])
        games += transition.episodes
        if games:
            break
    envs.close()
    return ends, games


def test_game_of_five_lives_is_five_episodes_in_training_and_one_in_evaluation(breakout):
    training, games = lives_and_games(breakout, False, 600)
    assert (training, len(games)) == (5, 1)
    evaluation, same_games = lives_and_games(breakout, True, 600)
    assert (evaluation, len(same_games)) == (1, 1), "the ball is served again without the agent's FIRE"
    assert games[0].length < 600


def test_open_game_of_breakout_is_brought_back(breakout):
    envs, fresh = (make_vector_env(base(breakout), 1, seed=1) for _ in range(2))
    envs.reset("collect")
    rng, lost = np.random.default_rng(0), 0
    while lost < 2:
        lost += bool(envs.step(rng.integers(0, 4, 1)).terminated[0])
    rows = rng.integers(0, 4, (12, 1))
    for row in rows[:6]:
        envs.step(row)
    state = copy.deepcopy(envs.state_dict())
    assert same_tree(fresh.load_state_dict(state), state["obs"])
    assert fresh.episode_lengths.tolist() == envs.episode_lengths.tolist()
    for row in rows[6:]:
        assert same_tree(copy_of(envs.step(row))._asdict(), fresh.step(row)._asdict())
    envs.close()
    fresh.close()


def test_frames_that_the_game_skips_itself_are_refused():
    with pytest.raises(EnvError, match="Disable frame-skipping in the original env"):
        make_env(section(env_id="ALE/Breakout-v5", wrappers=["atari"]))
    env = make_env(section(env_id="ALE/Breakout-v5", wrappers=["atari"], kwargs={"frameskip": 1}))
    assert env.observation_space.shape == (4, 84, 84)
    env.close()


def test_ids_of_a_package_are_registered_once_also_where_one_is_misspelt(recwarn):
    for env_id in ("MinAtar/Breakout-v1", "MinAtar/Breakot-v1", "MinAtar/Asterx-v1"):
        register_ids(env_id)
    assert "MinAtar/Breakout-v1" in gym.registry
    assert not recwarn.list


def memory_of(game, env, seed, frames=120):
    """The memory of the console at every frame of an episode."""
    env.reset(seed=seed)
    rng, seen = np.random.default_rng(1), []
    for _ in range(frames):
        seen.append(game.ale.getRAM().copy())
        env.step(int(rng.integers(env.action_space.n)))
    return np.array(seen), game.np_random.integers(1000, size=5)


# A reset alone leaves memory of the episode before in 17 of ale_py's 62 games, such as the second.
@pytest.mark.parametrize("name", ["Breakout", "Assault"])
def test_atari_is_reset_by_a_seed_to_what_a_loaded_rom_is(name, monkeypatch):
    env_id = f"{name}NoFrameskip-v4"
    env = make_env(section(env_id=env_id))
    plain = gym.make(env_id, disable_env_checker=True)
    expected = [memory_of(plain.unwrapped, plain, seed) for seed in (3, 4)]
    monkeypatch.setattr(type(env.unwrapped), "load_game", lambda self: pytest.fail("the ROM is loaded again"))
    for seed in (3, 4, 3):
        found = memory_of(env.unwrapped, env, seed)
        assert all(map(np.array_equal, found, expected[seed - 3]))
    assert not np.array_equal(expected[0][1], expected[1][1])  # the wrappers' no-ops are drawn from it
    env.unwrapped.seed_game(3)
    found = memory_of(env.unwrapped, env, None)
    assert np.array_equal(found[0], expected[0][0]) == (name == "Breakout")


@pytest.mark.slow
def test_a_sticky_atari_game_takes_its_seed_with_the_rom():
    env = make_env(section(env_id="ALE/Breakout-v5"))
    first, second, again = (memory_of(env.unwrapped, env, seed)[0] for seed in (3, 4, 3))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("game", ["Breakout", "Asterix"])
def test_seed_and_actions_decide_an_episode_of_minatar_whatever_was_before(game):
    cfg = section(env_id=f"MinAtar/{game}-v1", manager={"type": "base"})
    envs, fresh = (make_vector_env(cfg, 2, seed=4) for _ in range(2))
    envs.reset("collect")
    rng = np.random.default_rng(0)
    for step in range(300):
        envs.step(rng.integers(0, 3, 2))
        if step % 10 == 0:
            state = copy.deepcopy(envs.state_dict())
            assert same_tree(fresh.load_state_dict(state), state["obs"])
            row = rng.integers(0, 3, 2)
            assert same_tree(copy_of(envs.step(row))._asdict(), fresh.step(row)._asdict())
    assert envs.obs_space.dtype == np.bool_


def test_minigrid_flat_is_one_vector_of_bytes():
    env = make_env(section(env_id="MiniGrid-Empty-5x5-v0", wrappers=["minigrid_flat"]))
    obs, _ = env.reset(seed=0)
    assert (obs.shape, obs.dtype) == ((2835,), np.uint8)
    env.close()
