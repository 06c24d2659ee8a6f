"""Environments in one process: transitions, error messages, and restored open episodes."""

import copy
from contextlib import nullcontext
from itertools import pairwise
from types import MappingProxyType

import gymnasium as gym
import numpy as np
import pytest
from broken_worlds import SeedlessReset
from small_worlds import (
    AliasingEnv,
    CountingEnv,
    HalveReward,
    SeededBox,
    SeededEnv,
    SeededTree,
    SpoiledEnv,
    UnseededEnv,
)
from worlds import copy_of, random_actions, same_tree, vector_of

from ding_lite.envs.in_process import AUTORESET, InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.errors import CheckpointError, EnvContractError, EnvError, NotFiniteError
from ding_lite.rl.seeding import integer_seed
from ding_lite.trees import map_tree

SCRIPTS = (
    ((2, "terminated"), (3, "truncated")),
    ((3, "both"), (1, "truncated"), (1, "terminated")),
)
# By hand: what each environment gives at each step, as (observation, reward, what the row is).
AT_ONCE = (
    [(0, 1, 1, ""), (1, 0, 2, "end"), (1, 1, 11, ""), (1, 2, 12, ""), (2, 0, 13, "cut"), (2, 1, 21, "")],
    [(0, 1, 1, ""), (0, 2, 2, ""), (1, 0, 3, "end"), (2, 0, 11, "cut"), (3, 0, 21, "end"), (3, 1, 31, "")],
)
NEXT_STEP = (
    [
        *[(0, 1, 1, ""), (0, 2, 2, "end"), (1, 0, 0, "reset"), (1, 1, 11, ""), (1, 2, 12, "")],
        *[(1, 3, 13, "cut"), (2, 0, 0, "reset"), (2, 1, 21, "")],
    ],
    [
        *[(0, 1, 1, ""), (0, 2, 2, ""), (0, 3, 3, "end"), (1, 0, 0, "reset"), (1, 1, 11, "cut")],
        *[(2, 0, 0, "reset"), (2, 1, 21, "end"), (3, 0, 0, "reset")],
    ],
)
TABLES = {"same_step": AT_ONCE, "disabled": AT_ONCE, "next_step": NEXT_STEP}


def counting(autoreset="same_step", cls=CountingEnv, seed=0):
    return vector_of(lambda index: cls(SCRIPTS[index]), 2, autoreset=autoreset, seed=seed)


def steps(envs, count, seed=0):
    """Returns the transitions of ``count`` steps with random actions."""
    rng = np.random.default_rng(seed)
    return [copy_of(envs.step(random_actions(envs.action_space, envs.num_envs, rng))) for _ in range(count)]


def kind_of(transition, env):
    flags = {
        "end": transition.terminated[env],
        "cut": transition.truncated[env],
        "reset": not transition.valid[env],
    }
    return "+".join(name for name, on in flags.items() if on)


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_transitions_are_those_of_the_table_written_by_hand(autoreset):
    envs = counting(autoreset)
    assert envs.reset("collect").tolist() == [[0, 0], [0, 0]]
    table = TABLES[autoreset]
    for t, transition in enumerate(steps(envs, len(table[0]))):
        for env in range(2):
            row = (*transition.obs[env], transition.reward[env], kind_of(transition, env))
            assert row == table[env][t], f"step {t}, env {env}"


@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize("cls", [CountingEnv, AliasingEnv])
def test_final_observations_are_the_true_last_ones_of_cut_episodes_alone(autoreset, cls):
    envs = counting(autoreset, cls)
    envs.reset("collect")
    found = []
    for transition in steps(envs, 8):
        assert (transition.final_obs is None) == (len(transition.final_env) == 0)
        assert transition.final_env.tolist() == np.flatnonzero(transition.truncated).tolist()
        if transition.final_obs is not None:
            pairs = zip(transition.final_env.tolist(), transition.final_obs.tolist(), strict=True)
            found += list(pairs)
    assert found[:2] == ([(1, [1, 1]), (0, [1, 3])])


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_final_observations_are_not_overwritten_by_later_steps(autoreset):
    envs = counting(autoreset, AliasingEnv)
    envs.reset("collect")
    held = [envs.step(np.zeros(2, np.int64)) for _ in range(6)]
    finals = [row.tolist() for one in held if one.final_obs is not None for row in one.final_obs]
    assert finals[:2] == [[1, 1], [1, 3]]


def test_an_episode_that_both_ends_is_terminated_and_never_truncated():
    envs = vector_of(lambda index: CountingEnv(((2, "both"),)), 1)
    envs.reset("collect")
    _, last = steps(envs, 2)
    assert last.terminated[0]
    assert not last.truncated[0]
    assert last.final_obs is None


def test_episodes_report_raw_return_and_length_at_the_step_that_ends_them():
    envs = counting()
    envs.reset("collect")
    episodes = [[(e.env, e.episode_return, e.length) for e in one.episodes] for one in steps(envs, 6)]
    assert episodes == [[], [(0, 3, 2)], [(1, 6, 3)], [(1, 11, 1)], [(0, 36, 3), (1, 21, 1)], []]


def test_return_is_recorded_below_wrappers_that_change_rewards():
    envs = InProcessVectorEnv(lambda i: HalveReward(EpisodeRecorder(CountingEnv(SCRIPTS[0]))), 1)
    envs.reset("collect")
    transitions = steps(envs, 2)
    assert [float(one.reward[0]) for one in transitions] == [0.5, 1.0]
    assert transitions[1].episodes[0].episode_return == 3.0


@pytest.mark.parametrize("autoreset", AUTORESET)
def test_episode_cut_by_an_outer_wrapper_is_recorded_once(autoreset):
    envs = InProcessVectorEnv(
        lambda i: gym.wrappers.TimeLimit(EpisodeRecorder(CountingEnv(((50, "terminated"),))), 2),
        1,
        autoreset=autoreset,
    )
    envs.reset("collect")
    transitions = steps(envs, 6)
    episodes = [(e.episode_return, e.length) for one in transitions for e in one.episodes]
    assert episodes[:2] == [(3, 2), (23, 2)]
    assert sum(one.truncated[0] for one in transitions) == (2 if autoreset == "next_step" else 3)


@pytest.mark.parametrize("cls", [SeededEnv, SeededBox, SeededTree])
def test_the_three_modes_give_the_same_transitions(cls):
    """Each environment is fed its own stream of actions, one a valid step, so that fillers shift nothing."""
    transitions = {}
    for autoreset in AUTORESET:
        envs = vector_of(lambda index: cls(), 1, autoreset=autoreset, seed=3)
        envs.reset("collect")
        rng, rows, reset_next = np.random.default_rng(0), [], False
        while len(rows) < 60:
            action = random_actions(envs.action_space, 1, np.random.default_rng(9) if reset_next else rng)
            one = copy_of(envs.step(action))
            reset_next = autoreset == "next_step" and bool(one.terminated[0] | one.truncated[0])
            if one.valid[0]:
                rows.append([one.reward, one.terminated, one.truncated, one.final_obs])
        transitions[autoreset] = rows
    assert same_tree(transitions["same_step"], transitions["next_step"])
    assert same_tree(transitions["same_step"], transitions["disabled"])


def test_every_episode_of_every_environment_has_a_seed_of_its_own():
    envs = counting(seed=11)
    envs.reset("collect")
    steps(envs, 8)
    seeds = [env.unwrapped.seeds for env in envs.envs]
    for index, own in enumerate(seeds):
        assert own == [integer_seed(11, "collect", index, episode) for episode in range(len(own))]
    assert len({*seeds[0], *seeds[1]}) == len(seeds[0]) + len(seeds[1])


def test_seeds_count_from_the_index_offset():
    envs = InProcessVectorEnv(lambda i: EpisodeRecorder(CountingEnv()), 1, seed=2, index_offset=5)
    envs.reset("collect")
    assert envs.envs[0].unwrapped.seeds == [integer_seed(2, "collect", 5, 0)]
    assert envs.describe(0).startswith("env 5 ")


def test_reset_under_another_name_has_other_seeds():
    envs = vector_of(lambda index: SeededEnv(), 4)
    first, again = envs.reset("collect").copy(), envs.reset("collect").copy()
    assert np.array_equal(first, again)
    assert not np.array_equal(first, envs.reset("evaluate", 0, 0))


# ---------------------------------------------------------------------- odd values


def stepped_with(spoil, at=2, script=((3, "terminated"),)):
    envs = vector_of(lambda index: SpoiledEnv(at if index == 1 else -1, spoil, script), 2, seed=17)
    envs.reset("collect")
    return steps(envs, at)[-1]


def with_reward(reward):
    return lambda result: (result[0], reward, *result[2:])


@pytest.mark.parametrize(
    "reward",
    [7, True, np.float64(7), np.float32(7), np.int64(7), np.array(7.0), np.array([7.0]), np.array([[7]])],
    ids=repr,
)
def test_reward_of_an_odd_numeric_type_is_taken_as_a_float(reward):
    expected = pytest.warns(UserWarning, match=r"reward.*shape") if np.ndim(reward) else nullcontext()
    with expected:
        transition = stepped_with(with_reward(reward))
    assert transition.reward.dtype == np.float32
    assert transition.reward[1] == float(np.asarray(reward).reshape(()))


@pytest.mark.parametrize("reward", [None, [1.0, 2.0], "1", "much", 1j, np.zeros(0), {}], ids=repr)
def test_reward_that_is_no_number_is_refused(reward):
    with pytest.raises(EnvContractError, match="^env 1 .*reward"):
        stepped_with(with_reward(reward))


@pytest.mark.parametrize("flag", [1, np.True_, np.array(True), np.array([1])], ids=repr)
def test_flags_that_mean_a_bool_are_taken(flag):
    assert stepped_with(lambda r: (*r[:2], flag, *r[3:])).terminated[1]


@pytest.mark.parametrize("flag", [None, 2, "yes", 0.5, np.array([True, False])], ids=repr)
def test_flag_that_is_no_bool_is_refused(flag):
    with pytest.raises(EnvContractError, match="^env 1 .*terminated"):
        stepped_with(lambda r: (*r[:2], flag, *r[3:]))


@pytest.mark.parametrize(
    ("obs", "message"),
    [
        (np.zeros(3, np.float32), r"shape \(3,\)"),
        (np.zeros((1, 2), np.float32), r"shape \(1, 2\)"),
        (np.array(["a", "b"]), "dtype"),
        (np.zeros(2, np.complex64), "dtype"),
        ([[1.0], [2.0, 3.0]], "observation"),
        (None, r"observation.*None \(NoneType\).*Box.*float32"),
        ("hello", r"observation.*'hello' \(str\).*Box.*float32"),
    ],
)
def test_wrong_observation_says_what_came_and_what_was_declared(obs, message):
    with pytest.raises(EnvContractError, match=message):
        stepped_with(lambda result: (obs, *result[1:]))


@pytest.mark.parametrize("dtype", [np.float64, np.int32, bool])
def test_numbers_of_another_dtype_are_cast_to_the_declared_float(dtype):
    transition = stepped_with(lambda result: (np.ones(2, dtype), *result[1:]))
    assert transition.obs.dtype == np.float32
    assert transition.obs[1].tolist() == [1, 1]


def test_read_only_and_reversed_observations_are_copied():
    frozen = np.array([4.0, 5.0], np.float32)
    frozen.flags.writeable = False
    assert stepped_with(lambda result: (frozen[::-1], *result[1:])).obs[1].tolist() == [5, 4]


class WritesIntoItsAction(gym.Env):
    """Sets the arrays that it gets to 9, and clears the dicts."""

    observation_space = gym.spaces.Box(-9.0, 9.0, (1,))
    action_space = gym.spaces.Dict(
        turn=gym.spaces.Tuple([gym.spaces.Discrete(9), gym.spaces.Box(-1.0, 1.0, (2,))]),
        speed=gym.spaces.Box(-1.0, 1.0, ()),
    )

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        action["turn"][1][:] = 9
        action["speed"][...] = 9
        action.clear()
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_an_environment_may_write_into_its_action():
    envs = vector_of(lambda index: WritesIntoItsAction(), 2)
    envs.reset("collect")
    sent = [random_actions(envs.action_space, 2, np.random.default_rng(seed)) for seed in range(3)]
    kept = copy.deepcopy(sent)
    for action in sent:
        envs.step(action)
    assert same_tree(sent, kept)
    for i, saved in enumerate(envs.state_dict()["envs"]):
        batch = map_tree(lambda *steps, i=i: np.array([step[i] for step in steps]), *kept)
        assert same_tree(saved["actions"], batch)


def test_exception_names_env_seed_episode_step_and_action_and_is_the_cause():
    boom = OverflowError("too far")

    def explode(result):
        raise boom

    envs = vector_of(lambda i: SpoiledEnv(5 if i == 1 else -1, explode, ((2, "terminated"),)), 2, seed=17)
    envs.reset("collect")
    for _ in range(3):
        envs.step(np.array([0, 2]))
    with pytest.raises(EnvError) as caught:
        envs.step(np.array([0, 2]))
    text = str(caught.value)
    # Calls: reset, 2 steps, reset, 2 steps: call number 5 is the second step of episode 1.
    for part in (f"seed {integer_seed(17, 'collect', 1, 1)}", "env 1 ", "episode 1", "step 2", "action 2"):
        assert part in text
    assert "OverflowError: too far" in text
    assert caught.value.__cause__ is boom


def test_exception_in_reset_names_the_env_and_its_seed():
    envs = vector_of(lambda index: SpoiledEnv(0 if index == 1 else -1, lambda result: 1 / 0), 2, seed=3)
    with pytest.raises(EnvError, match=rf"env 1 \(seed {integer_seed(3, 'collect', 1, 0)}.*at reset"):
        envs.reset("collect")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: (*r[:3], {}), r"step.* 4 .*old gym API.*shimmy"),
        (lambda r: r[:3], r"step.* 3 .*\(obs, reward, terminated"),
        (lambda r: None, r"step.*NoneType.*\(obs, reward, terminated"),
        (lambda r: {"obs": 1}, r"step.*dict.*\(obs, reward, terminated"),
        (lambda r: (*r[:4], None), r"step.*info.*NoneType.*dict"),
    ],
)
def test_step_that_does_not_return_five_values_is_refused_with_a_way_out(spoil, message):
    with pytest.raises(EnvContractError, match=rf"env 1 .*episode 0, step 2\).*: {message}"):
        stepped_with(spoil)


@pytest.mark.parametrize("kind", [list, lambda values: (*values[:4], MappingProxyType({}))])
def test_five_values_of_another_kind_are_taken(kind):
    assert stepped_with(kind).reward[1] == 2


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda r: r[0], r"reset.*ndarray.*\(obs, info\).*old gym API.*shimmy"),
        (lambda r: None, r"reset.*NoneType.*\(obs, info\)"),
        (lambda r: (*r, 0), r"reset.* 3.*\(obs, info\)"),
        (lambda r: (r[0], None), r"reset.*info.*NoneType.*dict"),
    ],
)
def test_reset_that_does_not_return_observation_and_info_is_refused_with_a_way_out(spoil, message):
    envs = vector_of(lambda index: SpoiledEnv(0, spoil), 1)
    with pytest.raises(EnvContractError, match=message):
        envs.reset("collect")


def test_reset_that_takes_no_seed_is_refused_with_a_way_out():
    envs = vector_of(lambda index: SeedlessReset(), 1)
    with pytest.raises(EnvContractError, match=r"reset.*'seed'.*old gym API.*shimmy"):
        envs.reset("collect")


def test_type_error_in_a_reset_is_not_taken_for_the_old_api():
    envs = vector_of(lambda index: SpoiledEnv(0, lambda result: int(nope=1)), 1)
    with pytest.raises(EnvError, match=r"TypeError: .*nope.* \(at test_in_process.py:\d+\)$") as caught:
        envs.reset("collect")
    assert type(caught.value) is EnvError


@pytest.mark.parametrize("found", [None, "Box", gym.spaces])
@pytest.mark.parametrize("name", ["observation_space", "action_space"])
def test_environment_without_a_space_is_refused(name, found):
    class Spaceless(CountingEnv):
        pass

    setattr(Spaceless, name, found)
    with pytest.raises(EnvContractError, match=rf"Spaceless\.{name}: .*gymnasium\.spaces"):
        vector_of(lambda index: Spaceless(), 1)


def test_environment_without_any_space_attribute_is_refused():
    with pytest.raises(EnvContractError, match=r"Env\.observation_space: .*gymnasium\.spaces"):
        vector_of(lambda index: gym.Env(), 1)


class Wordless(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def test_exception_that_cannot_be_printed_is_named():
    def explode(result):
        raise Wordless

    with pytest.raises(EnvError, match=r"Wordless.*RuntimeError.*\(at test_in_process"):
        stepped_with(explode)


@pytest.mark.parametrize(
    ("reward", "message"),
    [(1e300, r"reward = 1e\+300.*float32.*3\.4e\+38"), (np.inf, "reward = inf.*not finite")],
)
def test_reward_beyond_float32_and_infinite_reward_have_different_messages(reward, message):
    with pytest.raises(NotFiniteError, match=message):
        stepped_with(with_reward(reward))


def test_environments_with_different_spaces_are_refused_by_number():
    with pytest.raises(EnvError, match="env 1 .*action_space"):
        vector_of(lambda index: [SeededEnv, SeededBox][index](), 2)


def test_environments_are_closed_when_a_later_one_cannot_be_made():
    closed = []

    class Closing(CountingEnv):
        def close(self):
            closed.append(self)

    def make(index):
        if index == 2:
            raise EnvError("no third one")
        return Closing()

    with pytest.raises(EnvError, match="no third one"):
        vector_of(make, 3)
    assert len(closed) == 2


def test_close_twice_is_fine():
    envs = counting()
    envs.close()
    envs.close()
    assert envs.envs == []


# ---------------------------------------------------------------------- open episodes


@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize("cls", [SeededEnv, SeededBox, SeededTree])
def test_open_episodes_go_on_exactly_where_they_were_saved(cls, autoreset):
    rng = np.random.default_rng(5)
    actions = [random_actions(cls.action_space, 3, rng) for _ in range(40)]
    envs = vector_of(lambda index: cls(), 3, seed=4, autoreset=autoreset)
    obs, before, states = [envs.reset("collect").copy()], [], []
    for action in actions:
        states.append(copy.deepcopy(envs.state_dict()))
        before.append(copy_of(envs.step(action)))
        obs.append(before[-1].obs)
    for cut in range(0, 40, 3):
        other = vector_of(lambda index: cls(), 3, seed=4, autoreset=autoreset)
        assert np.array_equal(other.load_state_dict(states[cut]), obs[cut])
        again = [copy_of(other.step(action)) for action in actions[cut : cut + 15]]
        assert same_tree([list(one) for one in again], [list(one) for one in before[cut : cut + 15]])


def test_saved_state_does_not_change_while_the_environments_go_on():
    envs = vector_of(lambda index: SeededEnv(), 2)
    envs.reset("collect")
    steps(envs, 4)
    state = envs.state_dict()
    before = copy.deepcopy(state)
    steps(envs, 9)
    assert same_tree(state, before)


def test_open_returns_and_lengths_come_back_too():
    envs = vector_of(lambda index: SeededEnv(), 3, seed=1)
    envs.reset("collect")
    steps(envs, 11)
    other = vector_of(lambda index: SeededEnv(), 3, seed=1)
    other.load_state_dict(envs.state_dict())
    assert np.array_equal(other.episode_returns, envs.episode_returns)
    assert np.array_equal(other.episode_lengths, envs.episode_lengths)
    assert envs.episode_lengths.any()


def test_loading_an_environment_that_is_not_deterministic_is_an_error():
    envs = vector_of(lambda index: UnseededEnv(), 2)
    envs.reset("collect")
    steps(envs, 3)
    other = vector_of(lambda index: UnseededEnv(), 2)
    with pytest.raises(CheckpointError, match="not deterministic"):
        other.load_state_dict(envs.state_dict())


def test_step_after_a_failed_restore_is_refused_until_a_reset():
    envs = vector_of(lambda index: UnseededEnv(), 2)
    envs.reset("collect")
    steps(envs, 3)
    with pytest.raises(CheckpointError):
        envs.load_state_dict(envs.state_dict())
    with pytest.raises(EnvError, match=r"failed or was interrupted.*reset\(\)"):
        steps(envs, 1)
    envs.reset("collect")
    steps(envs, 1)


def test_step_after_a_failed_reset_is_refused():
    envs = vector_of(lambda index: SpoiledEnv(1 if index == 1 else -1, lambda result: 1 / 0), 2)
    envs.reset("collect")
    with pytest.raises(EnvError, match="env 1 .*ZeroDivisionError"):
        envs.reset("collect")
    with pytest.raises(EnvError, match=r"failed or was interrupted.*reset\(\)"):
        steps(envs, 1)


def test_step_numbers_of_one_environment_never_jump_inside_an_episode():
    envs = counting()
    obs = [envs.reset("collect").copy()] + [one.obs for one in steps(envs, 20)]
    for env in range(2):
        for (episode, step), (next_episode, next_step) in pairwise(row[env].tolist() for row in obs):
            assert (next_episode, next_step) in {(episode, step + 1), (episode + 1, 0)}


class FailsOnce(CountingEnv):
    """Raises in its second step."""

    def __init__(self, script, fails):
        super().__init__(script)
        self.left = 2 if fails else 0

    def step(self, action):
        self.left -= 1
        if not self.left:
            raise OSError("gone")
        return super().step(action)


def test_after_an_error_environments_that_were_stepped_in_part_are_not_stepped_on():
    envs = vector_of(lambda index: FailsOnce(((9, "terminated"),), index == 1), 3)
    envs.reset("collect")
    action = np.zeros(3, np.int64)
    envs.step(action)
    with pytest.raises(EnvError, match="gone"):
        envs.step(action)
    with pytest.raises(EnvError, match=r"the last call failed .* reset\(\)"):
        envs.step(action)
    envs.reset("collect")
    envs.step(action)


def test_episodes_whose_rewards_are_others_when_played_again_are_not_restored():
    def make():
        return vector_of(lambda index: gym.wrappers.NormalizeReward(SeededEnv()), 2)

    envs = make()
    envs.reset("collect")
    steps(envs, 20)
    with pytest.raises(CheckpointError, match="returned other rewards"):
        make().load_state_dict(envs.state_dict())
