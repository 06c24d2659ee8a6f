"""Native vector environments: flags and observations checked against gymnasium's own single environments."""

import copy
import signal
import sys

import gymnasium as gym
import numpy as np
import pytest
from ding_lite.envs.env_pool import EnvPoolVectorEnv
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from small_worlds import CountingEnv, LengthEnv, SeededEnv
from worlds import copy_of, same_tree

from ding_lite.config.compile import compile_config
from ding_lite.envs.make import make_env
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.errors import CheckpointError, EnvContractError, EnvError

CARTPOLE = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
NUM_ENVS, STEPS = 6, 1600


def cartpole(seed=0):
    env = gym.make_vec("CartPole-v1", num_envs=NUM_ENVS, vectorization_mode="vector_entry_point")
    return NativeVectorEnv(env, seed, CARTPOLE)


def act(obs, rng):
    """Balances in the first three environments until the limit, acts at random in the others."""
    action = rng.integers(0, 2, NUM_ENVS)
    action[:3] = obs[:3, 2] + 0.3 * obs[:3, 3] + 0.02 * obs[:3, 0] + 0.05 * obs[:3, 1] > 0
    return action


def env_pool(seed=0):
    pytest.importorskip("envpool", reason="the extra envpool is not installed")
    return EnvPoolVectorEnv("CartPole-v1", NUM_ENVS, seed, {"num_threads": 1})


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(cartpole, id="gymnasium"),
        pytest.param(env_pool, id="EnvPool", marks=pytest.mark.slow),
    ],
)
def recorded(request):
    """Rows (obs before, action, transition) of some thousands of steps."""
    envs, rng = request.param(), np.random.default_rng(0)
    obs, rows = envs.reset("collect").copy(), []
    for _ in range(STEPS):
        action = act(obs, rng)
        transition = copy_of(envs.step(action))
        rows.append((obs, action, transition))
        obs = transition.obs
    return rows


def test_every_transition_is_reproduced_by_the_single_environment(recorded):
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    length, checked = np.zeros(NUM_ENVS, int), 0
    for obs, action, transition in recorded:
        for i in range(NUM_ENVS):
            if not transition.valid[i]:
                length[i] = 0
                continue
            env.state, env.steps_beyond_terminated = tuple(obs[i].astype(np.float64)), None
            expected, reward, terminated, _, _ = env.step(int(action[i]))
            length[i] += 1
            assert transition.obs[i] == pytest.approx(expected, abs=1e-5)
            assert transition.reward[i] == reward
            assert transition.terminated[i] == terminated
            assert transition.truncated[i] == (length[i] >= 500 and not terminated)
            checked += 1
    assert checked > 5 * STEPS
    assert sum(row[2].truncated.sum() for row in recorded) >= 6
    assert sum(row[2].terminated.sum() for row in recorded) >= 100


def test_final_observations_are_what_the_single_environment_ends_in(recorded):
    env = gym.make("CartPole-v1").unwrapped
    env.reset(seed=0)
    checked = 0
    for obs, action, transition in recorded:
        assert transition.final_env.tolist() == np.flatnonzero(transition.truncated).tolist()
        for row, i in enumerate(transition.final_env):
            env.state, env.steps_beyond_terminated = tuple(obs[i].astype(np.float64)), None
            expected = env.step(int(action[i]))[0]
            assert transition.final_obs[row] == pytest.approx(expected, abs=1e-5)
            checked += 1
    assert checked >= 6


def test_row_after_an_end_is_not_valid_and_shows_a_start(recorded):
    ended = np.zeros(NUM_ENVS, bool)
    for _, _, transition in recorded:
        assert np.array_equal(transition.valid, ~ended)
        assert np.abs(transition.obs[ended]).max(initial=0) <= 0.05
        assert not transition.reward[ended].any()
        ended = transition.terminated | transition.truncated


def test_episodes_are_the_sums_of_the_valid_rows(recorded):
    total, length = np.zeros(NUM_ENVS), np.zeros(NUM_ENVS, int)
    for _, _, transition in recorded:
        total += transition.reward * transition.valid
        length += transition.valid
        done = np.flatnonzero(transition.terminated | transition.truncated)
        episodes = [(e.env, e.episode_return, e.length) for e in transition.episodes]
        assert episodes == [(i, total[i], length[i]) for i in done]
        total[done], length[done] = 0, 0


def test_same_seed_and_name_give_the_same_starts():
    assert np.array_equal(cartpole().reset("collect"), cartpole().reset("collect"))
    assert not np.array_equal(cartpole().reset("collect"), cartpole().reset("evaluate"))
    assert not np.array_equal(cartpole().reset("collect"), cartpole(seed=1).reset("collect"))


@pytest.mark.parametrize("cut", [0, 1, 17, 60, 499, 500, 501, 640])
def test_state_adapter_goes_on_exactly_where_it_was_saved(cut):
    envs, rng = cartpole(), np.random.default_rng(1)
    obs = envs.reset("collect").copy()
    for _ in range(cut):
        obs = copy_of(envs.step(act(obs, rng))).obs
    state = copy.deepcopy(envs.state_dict())
    other = cartpole(seed=99)
    assert np.array_equal(other.load_state_dict(state), obs)
    assert np.array_equal(other.episode_lengths, envs.episode_lengths)
    assert np.array_equal(other.episode_returns, envs.episode_returns)
    for _ in range(150):
        action = act(obs, rng)
        one, again = envs.step(action), other.step(action)
        assert same_tree(list(one), list(again))
        obs = one.obs.copy()


def test_saved_state_does_not_change_while_the_environments_go_on():
    envs, rng = cartpole(), np.random.default_rng(1)
    obs = envs.reset("collect")
    state = envs.state_dict()
    before = copy.deepcopy(state)
    for _ in range(60):
        obs = envs.step(act(obs, rng)).obs
    assert same_tree(state, before)


# ---------------------------------------------------------------------- any gymnasium vector environment

SCRIPTS = (((2, "terminated"), (3, "truncated")), ((3, "both"), (1, "truncated"), (1, "terminated")))
MODES = list(AutoresetMode)


def synced(mode, make=CountingEnv):
    env = SyncVectorEnv([lambda s=script: make(s) for script in SCRIPTS], autoreset_mode=mode)
    return NativeVectorEnv(env)


def rows_of(envs, count):
    envs.reset("collect")
    return [copy_of(envs.step(np.zeros(envs.num_envs, np.int64))) for _ in range(count)]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_rewards_and_flags_of_each_mode_are_those_counted_by_hand(mode):
    valid = [[], []]
    for one in rows_of(synced(mode), 9):
        for i in range(2):
            if one.valid[i]:
                valid[i].append((one.reward[i], bool(one.terminated[i]), bool(one.truncated[i])))
    first = [(1, False, False), (2, True, False), (11, False, False), (12, False, False), (13, False, True)]
    second = [(1, False, False), (2, False, False), (3, True, False), (11, False, True), (21, True, False)]
    assert valid[0][:5] == first
    assert valid[1][:5] == second


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_final_observations_of_each_mode_are_the_true_last_ones(mode):
    found = []
    for one in rows_of(synced(mode), 8):
        if one.final_obs is not None:
            found += zip(one.final_env.tolist(), one.final_obs.tolist(), strict=True)
    assert found[:2] == [(1, [1, 1]), (0, [1, 3])]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_observation_after_an_end_is_the_new_episode_s_first(mode):
    """Under NEXT_STEP one row later, which is not valid."""
    transitions = rows_of(synced(mode), 3)
    ended, after = transitions[1], transitions[2]
    if mode is AutoresetMode.NEXT_STEP:
        assert ended.obs[0].tolist() == [0, 2]
        assert after.obs[0].tolist() == [1, 0]
        assert not after.valid[0]
    else:
        assert ended.obs[0].tolist() == [1, 0]
        assert after.obs[0].tolist() == [1, 1]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_episodes_of_each_mode_have_the_returns_and_lengths_counted_by_hand(mode):
    episodes = [(e.env, e.episode_return, e.length) for one in rows_of(synced(mode), 9) for e in one.episodes]
    assert [e for e in episodes if e[0] == 0][:2] == [(0, 3, 2), (0, 36, 3)]
    assert [e for e in episodes if e[0] == 1][:3] == [(1, 6, 3), (1, 11, 1), (1, 21, 1)]


def test_reward_of_a_filler_is_no_part_of_an_episode():
    class Paying(SyncVectorEnv):
        def step(self, action):
            obs, reward, *rest = super().step(action)
            return (obs, np.ones_like(reward), *rest)

    rows = rows_of(NativeVectorEnv(Paying([lambda: LengthEnv(2)])), 8)
    assert [row.valid[0] for row in rows[:3]] == [True, True, False]
    assert [(e.episode_return, e.length) for row in rows for e in row.episodes] == [(2, 2)] * 3


class WithGoal(LengthEnv):
    """Has a number in its infos if ``has_goal``."""

    def __init__(self, has_goal):
        super().__init__(2)
        self.has_goal = has_goal

    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "goal": 3.0} if self.has_goal else info


def test_an_episode_whose_info_lacks_a_key_has_no_number_for_it():
    inner = SyncVectorEnv([lambda: WithGoal(True), lambda: WithGoal(False)])
    *_, last = rows_of(NativeVectorEnv(inner, info_keys=("goal",)), 2)
    assert [episode.info for episode in last.episodes] == [{"goal": 3.0}, {}]


def test_no_row_after_a_reset_is_a_filler():
    envs = NativeVectorEnv(SyncVectorEnv([lambda: LengthEnv(1)] * 2))
    (last,) = rows_of(envs, 1)
    assert last.terminated.all()
    (first,) = rows_of(envs, 1)
    assert first.valid.all()


def test_parts_of_a_vector_have_starts_of_their_own():
    parts = [NativeVectorEnv(SyncVectorEnv([SeededEnv] * 2), index_offset=offset) for offset in (0, 2)]
    assert not np.isin(*(part.reset("collect")[:, 2] for part in parts)).any()


def test_messages_count_from_the_index_offset():
    envs = NativeVectorEnv(SyncVectorEnv([CountingEnv, CountingEnv]), index_offset=4)
    envs.reset("collect")
    assert envs.describe(1) == "env 5 (step 0)"


def test_float64_observations_are_handed_over_as_float32():
    envs = NativeVectorEnv(SyncVectorEnv([SeededEnv, SeededEnv]))
    assert envs.reset("collect").dtype == np.float32


def test_open_episodes_without_an_adapter_cannot_be_restored():
    envs = synced(AutoresetMode.NEXT_STEP)
    envs.reset("collect")
    with pytest.raises(CheckpointError, match="SyncVectorEnv.*episodes"):
        envs.load_state_dict(envs.state_dict())


def test_cut_without_a_final_observation_is_refused_under_same_step():
    class Forgetful(gym.vector.VectorWrapper):
        def step(self, action):
            *result, info = self.env.step(action)
            return (*result, {})

    inner = SyncVectorEnv([lambda: CountingEnv(((1, "truncated"),))], autoreset_mode=AutoresetMode.SAME_STEP)
    envs = NativeVectorEnv(Forgetful(inner))
    envs.reset("collect")
    with pytest.raises(EnvContractError, match=r"\[0\].*SAME_STEP.*'final_obs'"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize("declared", [{}, {"autoreset_mode": "sometimes"}])
def test_vector_environment_that_does_not_declare_its_autoreset_mode_is_refused(declared):
    env = SyncVectorEnv([CountingEnv])
    env.metadata = declared
    with pytest.raises(EnvContractError, match=r"SyncVectorEnv\.metadata\['autoreset_mode'\]"):
        NativeVectorEnv(env)


def test_vector_environment_without_a_space_is_refused():
    env = SyncVectorEnv([CountingEnv])
    env.single_action_space = None
    with pytest.raises(EnvContractError, match=r"SyncVectorEnv\.single_action_space"):
        NativeVectorEnv(env)


def test_exception_of_a_vector_environment_names_its_call_and_line():
    class Exiting(CountingEnv):
        def step(self, action):
            sys.exit(0)

    envs = NativeVectorEnv(SyncVectorEnv([Exiting]))
    envs.reset("collect")
    message = r"SyncVectorEnv.*step.*SystemExit: 0 \(at test_native.py:\d+\)"
    with pytest.raises(EnvError, match=message):
        envs.step(np.zeros(1, np.int64))


class FailingReset(CountingEnv):
    """An environment whose resets fail after the first ``fine`` ones."""

    def __init__(self, fine=1):
        super().__init__(((1, "terminated"),))
        self.left = fine

    def reset(self, **kwargs):
        self.left -= 1
        if self.left < 0:
            raise OSError("no such level")
        return super().reset(**kwargs)


def test_step_after_a_failed_reset_is_refused():
    envs = NativeVectorEnv(SyncVectorEnv([FailingReset]))
    envs.reset("collect")
    with pytest.raises(EnvError, match="SyncVectorEnv.*reset raised OSError"):
        envs.reset("collect")
    with pytest.raises(EnvError, match=r"failed or was interrupted.*reset\(\)"):
        envs.step(np.zeros(1, np.int64))


def test_failed_reset_after_an_end_names_its_call():
    inner = SyncVectorEnv([FailingReset], autoreset_mode=AutoresetMode.DISABLED)
    envs = NativeVectorEnv(inner)
    envs.reset("collect")
    with pytest.raises(EnvError, match=r"SyncVectorEnv.*reset raised OSError: no such level"):
        envs.step(np.zeros(1, np.int64))


def test_failed_reset_of_env_pool_names_its_call(monkeypatch):
    inner = SyncVectorEnv([lambda: FailingReset(0)])
    monkeypatch.setattr(EnvPoolVectorEnv, "_make", lambda self, num_envs, seed: inner)
    with pytest.raises(EnvError, match=r"EnvPool's Some-v0.*reset raised OSError: no such level"):
        EnvPoolVectorEnv("Some-v0", 1).reset("collect")


def test_step_after_a_failed_restore_is_refused():
    envs = cartpole()
    envs.reset("collect")
    state = envs.state_dict()
    del state["native"]["steps"]
    with pytest.raises(KeyError):
        envs.load_state_dict(state)
    with pytest.raises(EnvError, match="failed or was interrupted"):
        envs.step(np.zeros(NUM_ENVS, np.int64))


@pytest.mark.slow
def test_env_pool_begins_anew_from_the_seed_of_the_stream():
    starts = [env_pool(seed).reset("evaluate", number).copy() for seed, number in ((1, 0), (1, 0), (1, 1))]
    assert np.array_equal(starts[0], starts[1])
    assert not np.array_equal(starts[0], starts[2])


@pytest.mark.slow
def test_env_pool_refuses_to_restore_episodes():
    envs = env_pool()
    envs.reset("collect")
    assert not envs.restorable
    with pytest.raises(CheckpointError, match="EnvPool.*episodes"):
        envs.load_state_dict(envs.state_dict())


def test_single_environment_of_env_pool_is_refused_with_the_reason():
    """A video needs one."""
    section = compile_config({"env": {"env_id": "MazeEasy-v0", "manager": "env_pool"}}).values.env
    with pytest.raises(EnvError, match="MazeEasy.* cannot be made.*neither recorded nor shown"):
        make_env(section, evaluate=True, render_mode="rgb_array")
    section.manager.type = "base"
    with pytest.raises(EnvError, match=r"cannot be made: (?!.*recorded)"):
        make_env(section, evaluate=True)


# ---------------------------------------------------------------------- a user's own vector environment


class OwnVector(gym.vector.VectorEnv):
    """Two environments; ``parts`` replaces parts of what its step returns."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, first=None, closing=None, **parts):
        self.num_envs, self.first, self.closing, self.parts = 2, first, closing, parts
        self.single_observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return (np.zeros((2, 3), np.float32), {}) if self.first is None else self.first

    def step(self, action):
        never = np.zeros(2, bool)
        usual = dict(obs=np.zeros((2, 3), np.float32), reward=np.ones(2), terminated=never, truncated=never)
        return tuple((usual | {"info": {}} | self.parts).values())

    def close_extras(self, **kwargs):
        if self.closing is not None:
            raise self.closing


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (dict(obs=np.zeros((2, 4), np.float32)), r"observation must have .* \(2, 3\), got \(2, 4\)"),
        (dict(obs=np.zeros((1, 3), np.float32)), r"observation must have .* \(2, 3\), got \(1, 3\)"),
        (dict(obs=np.full((2, 3), None)), "observation must be an array of numbers, got object"),
        (dict(reward=np.ones(1)), r"reward must have .* \(2,\), got \(1,\)"),
        (dict(reward=np.ones((2, 1))), r"reward must have .* \(2,\), got \(2, 1\)"),
        (dict(reward=1.0), r"reward must have .* \(2,\), got \(\)"),
        (dict(reward=np.array(["a", "b"])), "reward must be an array of numbers"),
        (dict(obs=[[0.0] * 3] * 2), "observations must be an array, got a list"),
        (dict(terminated=[False, False]), "terminated must be an array of bool, got list"),
        (dict(truncated=np.zeros(2)), "truncated must be an array of bool, got float64"),
        (dict(terminated=np.zeros(2, int)), "terminated must be an array of bool, got int64"),
        (dict(info=None), "step's info is a NoneType"),
        (dict(terminated=np.zeros((1, 2), bool)), r"terminated must have .* got \(1, 2\)"),
        (dict(more=0), "6 values, not 5|returned 6 values"),
    ],
    ids=[
        "observation",
        "an observation less",
        "objects",
        "a reward less",
        "column of rewards",
        "one reward",
        "words",
        "list of observations",
        "list",
        "float flags",
        "integer flags",
        "no info",
        "row of flags",
        "six values",
    ],
)
@pytest.mark.parametrize("steps_before", [0, 3])
def test_step_of_another_kind_or_shape_is_refused(steps_before, parts, told):
    inner = OwnVector()
    envs = NativeVectorEnv(inner)
    envs.reset("collect")
    for _ in range(steps_before):
        envs.step(np.zeros(2, int))
    inner.parts = parts
    with pytest.raises(EnvContractError, match=f"OwnVector, .*: step: {told}"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize(
    ("result", "told"),
    [(None, "step returned one NoneType"), ((np.zeros((2, 3)), 1.0, False, {}), "returned 4 .* old gym API")],
    ids=["nothing", "old API"],
)
def test_later_step_that_does_not_return_five_values_is_refused(result, told):
    inner = OwnVector()
    envs = NativeVectorEnv(inner)
    envs.reset("collect")
    envs.step(np.zeros(2, int))
    inner.step = lambda action: result
    with pytest.raises(EnvContractError, match=f"OwnVector, .*: step: .*{told}"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize("parts", [{"a": np.zeros((2, 4))}, {"b": np.zeros((2, 3))}], ids=["shape", "key"])
def test_later_dict_of_observations_of_another_layout_is_refused(parts):
    inner = OwnVector(first=({"a": np.zeros((2, 3))}, {}), obs={"a": np.zeros((2, 3))})
    inner.single_observation_space = gym.spaces.Dict(a=inner.single_observation_space)
    envs = NativeVectorEnv(inner)
    envs.reset("collect")
    envs.step(np.zeros(2, int))
    inner.parts = dict(obs=parts)
    with pytest.raises(EnvError, match="OwnVector, .*: step.*a"):
        envs.step(np.zeros(2, int))


@pytest.mark.parametrize(
    ("info", "told"),
    [
        (dict(is_success=True), r"info\['is_success'\] must have a value for each of the 2 .* got True"),
        (dict(is_success=np.ones(1)), r"info\['is_success'\] must have a value .* got array\(\[1.\]\)"),
        (dict(is_success=np.ones(2), _is_success=True), r"info\['_is_success'\] must have a value"),
        (dict(is_success={"0": 1, "1": 1}), r"info\['is_success'\] must have a value"),
        (dict(final_info=None), r"info\['final_info'\] must have a value for each .* got None"),
        (dict(final_info=[1, 2]), r"info\['final_info'\]\[0\] must be a dict or None, got 1"),
    ],
    ids=["one", "fewer", "one flag", "dict", "no final info", "numbers"],
)
def test_info_without_a_value_for_each_environment_is_refused(info, told):
    envs = NativeVectorEnv(OwnVector(terminated=np.ones(2, bool), info=info), info_keys=("is_success",))
    envs.reset("collect")
    with pytest.raises(EnvContractError, match=f"OwnVector, .*: step: {told}"):
        envs.step(np.zeros(2, int))


def test_final_info_may_be_a_dict_or_none_for_each_environment():
    """As in gymnasium before 1.0."""
    final_info = np.array([{"is_success": 1.0, "other": 3}, None])
    inner = OwnVector(terminated=np.ones(2, bool), info={"final_info": final_info})
    envs = NativeVectorEnv(inner, info_keys=("is_success",))
    envs.reset("collect")
    assert [episode.info for episode in envs.step(np.zeros(2, int)).episodes] == [{"is_success": 1.0}, {}]


@pytest.mark.parametrize(
    "first", [np.zeros((2, 3), np.float32), (np.zeros(3, np.float32), {})], ids=["no info", "one"]
)
def test_reset_of_another_kind_or_shape_is_refused(first):
    with pytest.raises(EnvContractError, match="OwnVector, .*: reset: "):
        NativeVectorEnv(OwnVector(first=first)).reset("collect")


def test_close_that_raises_is_reported():
    envs = NativeVectorEnv(OwnVector(closing=ValueError("no window")))
    told = []
    envs.say = told.append
    envs.close()
    assert [line.split("close raised ")[1].startswith("ValueError: no window") for line in told] == [True]


def test_sys_exit_of_a_signal_handler_ends_a_program_that_steps_or_closes():
    def leave(number, frame):
        sys.exit(7)

    class Interrupted(OwnVector):
        def step(self, action):
            signal.raise_signal(signal.SIGTERM)

        def close_extras(self, **kwargs):
            signal.raise_signal(signal.SIGTERM)

    envs = NativeVectorEnv(Interrupted())
    envs.reset("collect")
    before = signal.signal(signal.SIGTERM, leave)
    try:
        for call in (lambda: envs.step(np.zeros(2, int)), envs.close):
            with pytest.raises(SystemExit):
                call()
    finally:
        signal.signal(signal.SIGTERM, before)
