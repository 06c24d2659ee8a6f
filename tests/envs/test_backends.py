"""Every backend gives the transitions of a plain rollout by gymnasium's API, bit for bit."""

import contextlib
import copy
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import Scripted, world
from worlds import copy_of, same_tree

from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.native import EnvPoolVectorEnv, NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.spaces import split_actions
from ding_lite.envs.vector import Episode
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import CheckpointError, EnvError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import map_tree, observation_to_tree

SEED, ENVS = 7, 5


def batches(kind, num_envs=ENVS, seed=0):
    """Endless batches of actions of the named space, in the dtypes that policies give."""
    rng = np.random.default_rng(seed)
    while True:
        whole = functools.partial(rng.integers, size=num_envs)
        box = rng.uniform(-1, 1, (num_envs, 2)).astype(np.float32)
        yield {
            "discrete": whole(5),
            "box": box,
            "tuple": {"0": whole(3), "1": box},
            "dict": {"a": rng.integers(0, 2, (num_envs, 2)), "b": whole(4)},
        }[kind]


def own(kind, make, **options):
    return kind(make, ENVS, SEED, **options)


def synced(mode, actions, tree):
    makers = [functools.partial(Scripted, index, actions, tree) for index in range(ENVS)]
    return NativeVectorEnv(SyncVectorEnv(makers, autoreset_mode=mode), SEED, info_keys=("won",))


def ray_actors(make, *arguments, **options):
    pytest.importorskip("ray", reason="ray is not installed")
    from ding_lite.envs.workers.ray_actors import RayActors

    return SubprocessVectorEnv(make, *arguments, starter=RayActors(num_workers=2), **options)


OWN = {
    "base": InProcessVectorEnv,
    "1 worker": functools.partial(SubprocessVectorEnv, num_workers=1),
    "2 workers": functools.partial(SubprocessVectorEnv, num_workers=2),
    "5 workers": functools.partial(SubprocessVectorEnv, num_workers=5),
    "ray": functools.partial(ray_actors, num_workers=2),
}
OWN_CASES = [
    pytest.param(name, kind, marks=pytest.mark.slow if daily_not else ())
    for name, kind, daily_not in [
        *(("base", kind, False) for kind in ("discrete", "box", "tuple", "dict")),
        *(("2 workers", kind, False) for kind in ("discrete", "tuple")),
        *(("2 workers", kind, True) for kind in ("box", "dict")),
        *((name, "box", True) for name in ("1 worker", "5 workers", "ray")),
    ]
]


def check_rollout(envs, plain, begin, kind, steps=80):
    """Plays a vector and plain environments; ``begin(env, i, game)`` begins a game of one."""

    def stored(obs):
        return map_tree(np.array, observation_to_tree(obs, envs.obs_space))

    def row(tree, i):
        return map_tree(lambda leaf: leaf[i], tree)

    def same(a, b):
        assert same_tree(map_tree(np.asarray, a), map_tree(np.asarray, b))

    games, totals, ended, fillers, ends, cuts = [0] * ENVS, [[0.0, 0]] * ENVS, set(), 0, 0, 0
    current = [begin(env, i, 0) for i, env in enumerate(plain)]
    shown = envs.reset("x")
    for i in range(ENVS):
        same(row(shown, i), stored(current[i]))
    for _, action in zip(range(steps), batches(kind), strict=False):
        got, finished = envs.step(action), []
        for i, one in enumerate(split_actions(action, envs.action_space)):
            assert got.valid[i] == (i not in ended)
            if i in ended:  # under NEXT_STEP the row after an end is a reset
                ended.remove(i)
                fillers += 1
                same(row(got.obs, i), stored(current[i]))
                assert (got.reward[i], got.terminated[i], got.truncated[i]) == (0, False, False)
                continue
            obs, reward, terminated, truncated, info = plain[i].step(one)
            totals[i] = [totals[i][0] + reward, totals[i][1] + 1]
            cut = truncated and not terminated
            assert (got.reward[i], got.terminated[i], got.truncated[i]) == (reward, terminated, cut)
            assert (i in got.final_env) == cut
            if cut:
                same(row(got.final_obs, got.final_env.tolist().index(i)), stored(obs))
            if terminated or truncated:
                ends, cuts = ends + terminated, cuts + cut
                finished.append(Episode(i, *totals[i], {"won": float(info["won"])}))
                games[i], totals[i] = games[i] + 1, [0.0, 0]
                current[i] = begin(plain[i], i, games[i])
                ended |= {i} if envs.has_fillers else set()
                obs = obs if envs.has_fillers else current[i]
            same(row(got.obs, i), stored(obs))
        assert got.episodes == finished
        assert envs.episode_returns.tolist() == [total for total, _ in totals]
        assert envs.episode_lengths.tolist() == [length for _, length in totals]
    assert min(ends, cuts) > 10
    assert (fillers > 10) == envs.has_fillers


@pytest.mark.parametrize(("name", "kind"), OWN_CASES)
def test_transitions_are_those_of_gymnasium(name, kind):
    def begin(env, i, game):
        return env.reset(seed=integer_seed(SEED, "x", i, game))[0]

    options = dict(actions=kind, tree=kind != "box")
    with contextlib.closing(own(OWN[name], world(**options))) as envs:
        check_rollout(envs, [Scripted(i, **options) for i in range(ENVS)], begin, kind)


@pytest.mark.parametrize("tree", [False, True])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_transitions_of_a_native_vector_are_those_of_gymnasium(mode, tree):
    def begin(env, i, game):
        return env.reset(seed=None if game else integer_seed(SEED, "x") + i)[0]

    envs = synced(mode, "tuple", tree)
    check_rollout(envs, [Scripted(i, "tuple", tree) for i in range(ENVS)], begin, "tuple")


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # of EnvPool's bounds
@pytest.mark.parametrize("env_pool", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_native_cartpole_and_env_pool_step_as_the_single_environment(env_pool):
    num_envs, steps = 4, 1200
    if env_pool:
        pytest.importorskip("envpool", reason="the extra envpool is not installed")
        envs = EnvPoolVectorEnv("CartPole-v1", num_envs, 0, {"num_threads": 1})
    else:
        vector = gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point")
        envs = NativeVectorEnv(vector)
    env, rng, length = gym.make("CartPole-v1").unwrapped, np.random.default_rng(0), np.zeros(num_envs, int)
    env.reset(seed=0)
    ends = cuts = 0
    obs, ended = envs.reset("collect").copy(), np.zeros(num_envs, bool)
    for _ in range(steps):
        action = rng.integers(0, 2, num_envs)  # at random, or balanced until the limit
        action[:2] = obs[:2] @ [0.02, 0.05, 1, 0.3] > 0
        got = copy_of(envs.step(action))
        assert np.array_equal(got.valid, ~ended)
        length = np.where(got.valid, length + 1, 0)
        for i in np.flatnonzero(got.valid):
            env.state, env.steps_beyond_terminated = tuple(obs[i].astype(np.float64)), None
            expected, reward, terminated, _, _ = env.step(int(action[i]))
            assert got.obs[i] == pytest.approx(expected, abs=1e-5)
            assert (got.reward[i], got.terminated[i]) == (reward, terminated)
            assert got.truncated[i] == (length[i] >= 500 and not terminated)
        for row, i in enumerate(got.final_env):
            assert np.array_equal(got.final_obs[row], got.obs[i])
        obs, ended = got.obs, got.terminated | got.truncated
        ends, cuts = ends + got.terminated.sum(), cuts + got.truncated.sum()
    assert (ends > 30, cuts > 2) == (True, True)


# ---------------------------------------------------------------------- seeds and numbers


@pytest.mark.parametrize("name", ["base", "2 workers"])
def test_a_part_of_a_vector_has_the_episodes_of_its_rows(name):
    whole = own(InProcessVectorEnv, world(actions="box"))
    with contextlib.closing(OWN[name](world(actions="box"), 3, SEED, index_offset=2)) as part:
        assert same_tree(whole.reset("x")[2:].copy(), part.reset("x").copy())
        for _, action in zip(range(20), batches("box"), strict=False):
            assert same_tree(whole.step(action).obs[2:].copy(), part.step(action[2:]).obs.copy())
        assert [whole.describe(i) for i in (2, 3, 4)] == [part.describe(i) for i in range(3)]


def test_streams_and_seeds_begin_other_episodes():
    def names(seed, *stream):
        return InProcessVectorEnv(world(), ENVS, seed).reset(*stream)[:, 0].tolist()

    assert names(1, "collect") == names(1, "collect")
    found = [*names(1, "collect"), *names(2, "collect"), *names(1, "evaluate", 3), *names(1, "evaluate", 4)]
    assert len(set(found)) == 4 * ENVS


@pytest.mark.parametrize("name", ["base", "2 workers"])
def test_actions_reach_the_environments_in_their_own_dtype(name):
    """A policy of the user may give other dtypes; rows of the batch must be copies."""
    with contextlib.closing(own(OWN[name], world(actions="box"))) as envs:
        envs.reset("x")
        action = np.full((ENVS, 2), 0.1, np.float64)
        got = envs.step(action)
        steps = ~(got.terminated | got.truncated)
        assert (got.obs[steps, 2] == np.float32(0.2)).all()


# ---------------------------------------------------------------------- open episodes


@pytest.mark.parametrize("name", ["base", "2 workers"])
def test_a_state_taken_in_mid_episode_goes_on_anywhere(name):
    make = world(actions="tuple", tree=True)
    again = own(InProcessVectorEnv, make)
    with contextlib.closing(own(OWN[name], make)) as envs:
        envs.reset("x")
        actions = batches("tuple")
        for _ in range(23):
            envs.step(next(actions))
        state = copy.deepcopy(envs.state_dict())
        ahead, kept = [], copy.deepcopy(state)
        for _ in range(20):
            action = next(actions)
            ahead.append((action, copy_of(envs.step(action))))
        assert same_tree(state, kept)
        for _ in range(2):  # the second time in the middle of other games
            assert same_tree(map_tree(np.array, again.load_state_dict(state)), state["obs"])
            assert same_tree(again.state_dict(), state)
            for action, expected in ahead:
                got = copy_of(again.step(action))
                assert same_tree(got._asdict() | {"episodes": 0}, expected._asdict() | {"episodes": 0})
                assert got.episodes == expected.episodes


def test_the_state_of_native_cartpole_goes_on_exactly():
    def cartpole(seed):
        env = gym.make_vec("CartPole-v1", 4, vectorization_mode="vector_entry_point")
        return NativeVectorEnv(env, seed)

    envs, other, rng = cartpole(0), cartpole(9), np.random.default_rng(0)
    envs.reset("x")
    for cut in range(60):
        state = copy.deepcopy(envs.state_dict())
        assert same_tree(np.array(other.load_state_dict(state)).shape, (4, 4))
        assert other.episode_lengths.tolist() == envs.episode_lengths.tolist()
        for _ in range(3 if cut % 10 == 0 else 1):
            action = rng.integers(0, 2, 4)
            assert same_tree(envs.step(action)[:5], other.step(action)[:5])


def test_what_cannot_be_restored_is_a_checkpoint_error():
    envs = own(InProcessVectorEnv, world())
    envs.reset("x")
    envs.step(np.zeros(ENVS, int))
    state = copy.deepcopy(envs.state_dict())
    random = own(
        InProcessVectorEnv, world(fault=lambda result: (np.random.random(3), *result[1:]), at=range(9))
    )
    richer = own(
        InProcessVectorEnv, world(fault=lambda r: (r[0], r[1] + 1, *r[2:]) if len(r) == 5 else r, at=range(9))
    )
    for other, what in ((random, "observations"), (richer, "rewards")):
        with pytest.raises(CheckpointError, match=what):
            other.load_state_dict(state)
        with pytest.raises(EnvError):
            other.step(np.zeros(ENVS, int))
        other.reset("x")
    native = synced(AutoresetMode.NEXT_STEP, "discrete", False)
    assert not native.restorable


# ---------------------------------------------------------------------- arrays and methods


class Careless(Scripted):
    """Returns the same array at every step, and writes into its action."""

    def reset(self, **kwargs):
        self.shown = np.zeros(3, np.float32)
        return self.write(super().reset(**kwargs))

    def step(self, action):
        result = super().step(action)
        action *= 0
        return self.write(result)

    def write(self, result):
        self.shown[:] = result[0]
        return (self.shown, *result[1:])


def test_arrays_that_an_environment_uses_again_change_nothing():
    careful = own(InProcessVectorEnv, world(actions="box"))
    careless = own(InProcessVectorEnv, lambda i: EpisodeRecorder(Careless(i, "box"), ("won",)))
    assert same_tree(careful.reset("x"), careless.reset("x"))
    for _, action in zip(range(40), batches("box"), strict=False):
        given = action.copy()
        expected, got = careful.step(action.copy()), careless.step(given)
        assert np.array_equal(given, action)
        assert same_tree(expected._asdict() | {"episodes": 0}, got._asdict() | {"episodes": 0})
    assert same_tree(careful.state_dict(), careless.state_dict())


@pytest.mark.parametrize("name", ["base", "2 workers"])
def test_a_method_is_called_in_every_environment(name):
    with contextlib.closing(own(OWN[name], world())) as envs:
        assert envs.call("set_level", 3) == [30, 31, 32, 33, 34]
        envs.reset("x")
        assert dict(envs.calls) == {"set_level": [3]}
        for method in ("refuse", "no_such"):
            with pytest.raises(EnvError, match=rf"env \d .*{method}"):
                envs.call(method)
        envs.repeat_calls({"set_level": [5]})
        assert dict(envs.calls) == {"set_level": [5]}


def test_a_method_of_a_native_vector_reaches_its_environments():
    assert synced(AutoresetMode.NEXT_STEP, "discrete", False).call("set_level", 2) == [20, 21, 22, 23, 24]
