"""``check_env`` finds each planted fault and names it; environments without one pass without a word."""

from __future__ import annotations

import functools
import os
import random
import re
import signal

import broken_worlds as broken
import gymnasium as gym
import numpy as np
import pytest
import small_worlds

from ding_lite import compile_config
from ding_lite.envs.in_process import AUTORESET
from ding_lite.envs.make import make_vector_env
from ding_lite.errors import ConfigError
from ding_lite.tools.env_check import (
    FAIL,
    OK,
    WARN,
    Finding,
    check_env,
    interrupted_after,
    random_rollout,
    section_of,
    tree_lines,
)
from ding_lite.tools.env_check.backends import BackendPlay, reference
from ding_lite.tools.env_check.contract import speed
from ding_lite.tools.env_check.playing import Call

TIME_LIMIT = "gymnasium.wrappers:TimeLimit"


def alone(env, steps=200):
    """Returns the findings on the environment itself, by check; no backend is run."""
    return {finding.check: finding for finding in check_env(env, steps=steps, backends=())}


def limited(env, steps):
    return {"type": env, "wrappers": [{"type": TIME_LIMIT, "max_episode_steps": steps}]}


def troubles(found):
    return [(f.check, f.verdict) for f in found if f.verdict != OK]


class MaskInInfo(small_worlds.LengthEnv):
    def reset(self, *, seed=None, options=None):
        obs, info = super().reset(seed=seed)
        return obs, {**info, "action_mask": np.ones(2, np.int8)}


def test_a_mask_in_info_that_is_not_used_gets_a_warning():
    found = alone(MaskInInfo)["action mask"]
    assert (found.verdict, "env.action_mask=info" in found.advice) == (WARN, True)
    assert "action mask" not in alone(small_worlds.LengthEnv)


@pytest.mark.parametrize(
    "space",
    [gym.spaces.Box(-1, 1, (0,)), gym.spaces.Dict(), gym.spaces.Dict(at=gym.spaces.Box(0, 1, (2, 0)))],
)
def test_an_observation_without_numbers_fails(space):
    class Nothing(small_worlds.LengthEnv):
        observation_space = space

        def reset(self, *, seed=None, options=None):
            return space.sample(), super().reset(seed=seed)[1]

        def step(self, action):
            return space.sample(), *super().step(action)[1:]

    found = alone(Nothing)["observation"]
    assert (found.verdict, "without numbers" in found.seen) == (FAIL, True)


# ------------------------------------------------------------------ sound ones


@pytest.mark.slow
@pytest.mark.parametrize(
    "env_id",
    [
        "CartPole-v1",
        "Pendulum-v1",
        *(pytest.param(e, marks=pytest.mark.slow) for e in ("FrozenLake-v1", "Blackjack-v1")),
    ],
)
def test_sound_environment_passes_every_check(env_id):
    found = check_env(env_id, steps=400)  # every backend and mode
    assert troubles(found) == []
    checks = [finding.check for finding in found]
    assert len(checks) == len(set(checks)) == (25 if env_id == "CartPole-v1" else 24)
    assert ("native vector" in checks) == (env_id == "CartPole-v1")
    by_check = {finding.check: finding for finding in found}
    for backend in ("base", "subprocess"):
        for mode in AUTORESET:
            seen = by_check[f"{backend} {mode}"].seen
            assert "transitions equal the reference" in seen
            assert ("0 terminated, 4 truncated" in seen) == (env_id == "Pendulum-v1")
    assert all(finding.seen for finding in found)


@pytest.mark.parametrize("env", [broken.Sound, broken.Pushed, broken.Masked])
def test_the_world_that_the_faults_are_planted_in_is_sound(env):
    assert troubles(check_env(env, steps=200, backends=("base",))) == []


def test_native_cartpole_is_held_against_its_physics():
    found = {f.check: f for f in check_env("CartPole-v1", steps=400, backends=())}
    assert "all agree with the single environment's dynamics" in found["native vector"].seen


@pytest.mark.parametrize(
    ("milliseconds", "num_envs", "cores", "suited"),
    [
        (0.03, 8, 2, "env.manager.type=base suits it"),
        (0.03, 8, 8, "env.manager.type=base suits it"),
        (0.03, 256, 2, "env.manager.type=subprocess suits it"),  # many steps a message
        (0.1, 8, 2, "base or subprocess; `ding-lite profile -c ... --tune` decides"),
        (0.5, 8, 8, "base or subprocess; `ding-lite profile -c ... --tune` decides"),
        (1.0, 8, 2, "env.manager.type=subprocess suits it"),
        (1.0, 8, 8, "env.manager.type=subprocess suits it"),
        (1.0, 1, 8, "env.manager.type=base suits it"),
        (1.0, 8, 1, "env.manager.type=base suits it"),
    ],
)
def test_backend_is_advised_where_it_is_clear(milliseconds, num_envs, cores, suited, monkeypatch):
    monkeypatch.setattr("ding_lite.envs.workers.cores.cores", lambda: cores)
    calls = [Call("", 0, step, None, seconds=milliseconds / 1000) for step in range(3)]
    env_cfg = compile_config(dict(env=dict(type=broken.Sound, collector_env_num=num_envs))).values.env
    assert speed(calls, env_cfg).seen.endswith(suited)
    # Nor does a step that another process has interrupted change it.
    calls = 50 * calls[1:] + [calls[1]._replace(seconds=0.5)]
    assert speed(calls, env_cfg).seen.endswith(suited)


# ------------------------------------------------------------------ planted faults

FAULTS = [
    # making and spaces
    ("CartPol-v1", "make", FAIL, r"CartPol.* Did you mean: `CartPole`", "Correct the id"),
    (broken.NeedsMinAtar, "make", FAIL, "No module named 'minatar'", r'pip install "ding_lite\[minatar\]"'),
    (broken.NoSpace, "make", FAIL, r"NoSpace\.observation_space: there is none\. Define it", "^$"),
    (broken.TextLeaf, "spaces", FAIL, r"observation\['name'\]: .*Text", "wrapper"),
    (broken.SequenceAction, "spaces", FAIL, r"action\[1\]: .*Sequence", "wrapper"),
    (broken.WholeBoxAction, "spaces", FAIL, r"action: .*integers", "wrapper"),
    # the old API, and exceptions
    (broken.OldReset, "reset", FAIL, "reset returned one ndarray", "old gym API.*pip install shimmy"),
    (broken.SeedlessReset, "reset", FAIL, "unexpected keyword argument 'seed'", "old gym API"),
    (broken.OldStep, "step", FAIL, "step returned 4 values, not 5", "old gym API.*pip install shimmy"),
    (limited(broken.OldStep, 5), "step", FAIL, "step returned 4 values, not 5", "old gym API"),
    (
        broken.ThreeValues,
        "step",
        FAIL,
        "step returned 3 values, not 5",
        r"^Let it return \(obs, reward, term",
    ),
    (broken.NoInfo, "step", FAIL, "info is a NoneType", "dict"),
    (broken.Exits, "step", FAIL, r"raised SystemExit: 0 \(at broken_worlds.py:\d+\) \(episode", "Exits"),
    (
        broken.Raises,
        "step",
        FAIL,
        r"raised KeyError.*episode \d \(seed \d+\), step \d",
        "broken_worlds.Raises",
    ),
    # observations
    (broken.WrongShape, "observation", FAIL, r"shape \(3,\).*declares \(2,\)", "observation_space"),
    (functools.partial(broken.Shows, [[1.0], 2.0]), "observation", FAIL, "step 0: observation: ", "cast"),
    (functools.partial(broken.Shows, "far"), "observation", FAIL, r"is 'far' \(str\)", "cast"),
    (functools.partial(broken.Shows, None), "observation", FAIL, r"is None \(NoneType\)", "cast"),
    (broken.FloatImage, "observation", FAIL, "dtype float32.*declares uint8", "cast"),
    (broken.MissingKey, "observation", FAIL, r"step 0: the observation has no \['gone'\]", ""),
    (broken.Float64, "observation", OK, "float64 observations become float32", ""),
    (broken.Float64Space, "observation", OK, "float64 observations become float32", ""),
    (broken.OutOfBounds, "bounds", WARN, r"outside of its bounds by up to 0.5 \(.*step 2\)", "Widen"),
    (broken.OutOfRange, "bounds", FAIL, r"step 2: observation\[0\] = 2 is not in Discrete\(2\)", ""),
    (broken.NanObservation, "finite", FAIL, r"step 2: observation\['a'\]\[1\] = nan", "Training stops"),
    (broken.InfiniteObservation, "finite", FAIL, r"step 2: observation\[1\] = inf", ""),
    # rewards and flags
    (functools.partial(broken.Reward, np.nan), "finite", FAIL, "step 3: reward = nan", "finite reward"),
    (functools.partial(broken.Reward, -np.inf), "finite", FAIL, "step 3: reward = -inf", ""),
    (
        functools.partial(broken.Reward, np.ones(1)),
        "reward",
        WARN,
        r"step 3: .*shape \(1,\)",
        r"float\(reward\)",
    ),
    (functools.partial(broken.Reward, np.ones(2)), "reward", FAIL, r"step 3: .*ndarray", r"float\(reward\)"),
    (functools.partial(broken.Reward, None), "reward", FAIL, "step 3: reward = None", ""),
    (functools.partial(broken.Reward, "1"), "reward", FAIL, r"reward = '1' \(str\)", ""),
    (functools.partial(broken.Flags, int), "flags", WARN, r"terminated = 0 \(int\)", "bool"),
    (functools.partial(broken.Flags, broken.true_or_none), "flags", FAIL, "terminated = None", "bool"),
    (functools.partial(broken.Flags, float), "flags", FAIL, r"terminated = 0.0 \(float\)", ""),
    (broken.BothFlags, "both flags", WARN, r"both True \(\d+ times\)", "termination wins"),
    # memory
    (broken.OneArray, "aliasing", WARN, "was overwritten.*step 1", r"obs\.copy\(\)"),
    (small_worlds.AliasingEnv, "aliasing", WARN, "was overwritten", r"obs\.copy\(\)"),
    (broken.TwoArrays, "aliasing", WARN, "was overwritten.*step 2", ""),
    (broken.SharedView, "aliasing", WARN, r"observation\['b'\] shares its memory", ""),
    # randomness
    (broken.NoSeed, "same seed", FAIL, r"two environments.*step 0, obs\[0\]: got", "self.np_random.*resumed"),
    (small_worlds.UnseededEnv, "same seed", FAIL, "two environments", "self.np_random"),
    (
        broken.Remembers,
        "same seed",
        FAIL,
        r"after other episodes.*step 0, obs\[0\]: got",
        "begin every episode",
    ),
    (small_worlds.CountingEnv, "same seed", FAIL, "after other episodes", ""),
    (broken.AlwaysTheSame, "other seeds", WARN, "the same trajectory", "self.np_random"),
    *(
        (
            functools.partial(broken.SeedsGlobally, where),
            "global randomness",
            WARN,
            r"of np\.random and random$",
            "self.np_random",
        )
        for where in ("reset", "step", "reset and draw")
    ),
    (functools.partial(broken.DrawsGlobally, "random"), "global randomness", WARN, "of random$", "np_random"),
    (functools.partial(broken.DrawsGlobally, "np.random"), "global randomness", WARN, r"of np\.random$", ""),
    # ends
    (broken.FailsToClose, "close", FAIL, "raised RuntimeError: no window", "raise nothing"),
    (
        broken.NeverEnds,
        "episodes end",
        WARN,
        "no episode ended in 200",
        r"env\.max_eval_steps=10000.*TimeLimit",
    ),
    (limited(broken.NeverEnds, 500), "episodes end", OK, "the time limit is 500 steps", ""),
    (
        limited(broken.OldDone, 6),
        "time limit",
        FAIL,
        r"all \d+ episodes of 6 steps.*terminated",
        "truncated=True",
    ),
    (broken.OldDone, "time limit", WARN, "every episode terminated at exactly 6 steps", "truncated=True"),
    (limited(broken.NeverEnds, 20), "time limit", OK, "episodes of 20 steps are truncated", ""),
    # actions
    (broken.CountsFromZero, "step", FAIL, r"step\(-1\) raised AssertionError", "CountsFromZero"),
    (broken.RefusesTheEnds, "actions", FAIL, r"step\(array\(\[-2.*too strong", "declare the range"),
    (broken.WritesIntoAction, "actions", WARN, r"writes into the action.*\[-2", "np.array"),
    (broken.NoLegalAction, "action mask", FAIL, "step 2: no action is legal", "End the episode"),
    (broken.MaskTooLong, "action mask", FAIL, r"\(4,\)", r"Box\(False, True, \(3,\), bool\)"),
]


def name_of(value):
    if isinstance(value, dict):
        return f"limited-{name_of(value['type'])}"
    if isinstance(value, functools.partial):
        return f"{value.func.__name__}-{getattr(value.args[0], '__name__', value.args[0])}"
    return getattr(value, "__name__", None) or str(value)


@pytest.mark.daily(15)
@pytest.mark.parametrize(("env", "check", "verdict", "seen", "advice"), FAULTS, ids=name_of)
def test_planted_fault_is_found(env, check, verdict, seen, advice):
    finding = alone(env)[check]
    assert finding.verdict == verdict, finding
    assert re.search(seen, finding.seen), finding
    assert re.search(advice, finding.advice), finding


def test_nothing_but_the_planted_fault_is_found():
    expected = {
        broken.OutOfBounds: [("bounds", WARN)],
        broken.BothFlags: [("both flags", WARN)],
        broken.OneArray: [("aliasing", WARN)],
        broken.NeverEnds: [("episodes end", WARN)],
        broken.OldDone: [("time limit", WARN)],
        broken.NoSeed: [("same seed", FAIL)],
        broken.AlwaysTheSame: [("other seeds", WARN)],
        broken.WritesIntoAction: [("actions", WARN)],
        functools.partial(broken.Reward, np.ones(1)): [("reward", WARN)],
        functools.partial(broken.DrawsGlobally, "random"): [("global randomness", WARN)],
    }
    for env, wanted in expected.items():
        assert troubles(alone(env).values()) == wanted, env


def test_what_the_backends_would_stop_at_is_not_given_to_them():
    found = check_env(functools.partial(broken.Reward, None), steps=100)
    assert troubles(found) == [("reward", FAIL), ("seeds, backends", WARN)]
    assert not any(finding.check.startswith(("base", "subprocess")) for finding in found)


def test_a_close_that_raises_is_a_finding_and_no_error():
    found = check_env(broken.FailsToClose, steps=100)
    assert troubles(found) == [("close", FAIL), ("seeds, backends", WARN)]


def test_reward_flags_and_info_of_one_step_are_reported_together():
    class NoneOfThem(broken.Sound):
        def step(self, action):
            obs, _, _, truncated, _ = super().step(action)
            return obs, None, 0, truncated, None

    found = check_env(NoneOfThem, steps=50)
    assert [(f.check, f.verdict, f.seen) for f in found if f.verdict != OK] == [
        ("step", FAIL, "step's info is a NoneType"),
        ("reward", FAIL, "the same step: reward = None (NoneType)"),
        ("flags", WARN, "the same step: terminated = 0 (int), taken as False"),
    ]


def test_a_check_that_nothing_can_follow_is_the_last():
    assert [f.check for f in check_env(broken.OldStep, steps=50)] == ["make", "spaces", "step"]
    assert [f.check for f in check_env(broken.TextLeaf, steps=50)] == ["make", "spaces"]


# ------------------------------------------------------------------ backends


def test_environments_that_disturb_each_other_are_found():
    found = {f.check: f for f in check_env(broken.OneGeneratorForAll, steps=100, backends=("base",))}
    assert found["same seed"].verdict == OK  # one environment alone repeats itself
    for mode in AUTORESET:
        finding = found[f"base {mode}"]
        assert finding.verdict == FAIL
        assert re.search(r"env \d, episode 0, step \d, observation\[1\]: got 0\.\d+, expected", finding.seen)
        assert "class attributes" in finding.advice


def test_what_a_worker_process_changes_is_found():
    found = {f.check: f for f in check_env(functools.partial(broken.KnowsItsProcess, os.getpid()), steps=60)}
    for mode in AUTORESET:
        assert found[f"base {mode}"].verdict == OK
        finding = found[f"subprocess {mode}"]
        assert (finding.verdict, finding.seen) == (
            FAIL,
            "env 0, episode 0, step 1, reward: got 0.0, expected 1.0",
        )


def test_environment_that_no_seed_reaches_is_run_but_not_compared():
    found = {f.check: f for f in check_env(broken.NoSeed, steps=60, backends=("base",))}
    assert found["base same_step"].verdict == WARN
    assert "cannot be compared: env 0, episode 0, step 1, observation" in found["base same_step"].seen
    assert "same seed" in found["base same_step"].advice


def spoiled(change):
    """Compares a right backend with a reference in which ``change`` has falsified a row of environment 1."""
    env_cfg = section_of(broken.Sound)
    rows = reference(env_cfg, 0, 40)
    at = next(k for k, row in enumerate(rows[1]) if row.truncated)
    rows[1][at] = rows[1][at]._replace(**change(rows[1][at]))
    envs = make_vector_env({**env_cfg, "manager": {**env_cfg["manager"], "type": "base"}}, 4, 0)
    found = BackendPlay(envs, rows, False, True).first_difference()
    assert found.startswith(f"env 1, episode {rows[1][at].episode}, step {rows[1][at].step}, ")
    return found.split(", ", 3)[3]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            lambda row: {"obs": row.obs + np.float32([0, 1])},
            r"^observation\[1\]: got 0\.\d+, expected 1\.\d+$",
        ),
        (lambda row: {"reward": row.reward + 1}, r"^reward: got 0\.\d+, expected 1\.\d+$"),
        (lambda row: {"terminated": True}, "^terminated: got False, expected True$"),
        (lambda row: {"truncated": False}, "^truncated: got True, expected False$"),
        (lambda row: {"next_obs": row.next_obs + np.float32([0, 1])}, r"^final observation\[1\]: got 0"),
        (lambda row: {"next_obs": row.next_obs.astype(np.float64)}, r"got float32 \(2,\), expected float64"),
        (lambda row: {"episode_return": 9.0}, r"^finished episode \(return, length\): got .*expected \[\(9"),
    ],
)
def test_first_difference_names_the_field_and_both_values(change, expected):
    assert re.search(expected, spoiled(change))


def test_filler_rows_that_are_missing_are_found():
    env_cfg = section_of(broken.Sound)
    envs = make_vector_env(env_cfg, 4, 0)  # same_step, and the comparison expects next_step
    found = BackendPlay(envs, reference(env_cfg, 0, 40), True, True).first_difference()
    assert re.search(r"env \d, episode \d, step \d, last observation", found)


@pytest.fixture
def registered():
    """Registers a CartPole with a vector environment of this folder; returns the id."""
    ids = []

    def register(vector, **options):
        env_id = f"{vector.__name__}-v0"
        ids.append(env_id)
        cartpole = "gymnasium.envs.classic_control.cartpole:CartPoleEnv"
        gym.register(env_id, cartpole, vector_entry_point=vector, max_episode_steps=500, **options)
        return env_id

    yield register
    for env_id in ids:
        del gym.registry[env_id]


@pytest.mark.parametrize(
    ("vector", "expected"),
    [
        (broken.HeavyCarts, r"row 0: env 0: observation\[\d\]: got .*, expected .*single environment's"),
        (broken.UnseededCarts, r"two runs of one seed differ at row 0: observation\[0\]: got"),
        (broken.ShortCarts, r"row 6: env 0: truncated after 7 steps, the time limit is 500"),
    ],
)
def test_fault_of_a_native_vector_environment_is_found(registered, vector, expected):
    found = {f.check: f for f in check_env(registered(vector), steps=100, backends=())}
    assert troubles(found.values()) == [("native vector", FAIL)]
    assert re.search(expected, found["native vector"].seen)


def test_vector_environment_of_ones_own_is_checked_as_it_is():
    env = {"type": broken.UnseededCarts, "manager": {"type": "vector"}}
    [finding] = check_env(env, steps=50)
    assert (finding.check, finding.verdict) == ("native vector", FAIL)
    [finding] = check_env({**env, "type": broken.CartPoleVectorEnv}, steps=50)
    assert finding.verdict == OK
    assert "cannot be compared" in finding.seen


# ------------------------------------------------------------------ wrappers, and the call itself


def test_wrappers_of_the_config_are_checked_too():
    halved = {"type": broken.Sound, "wrappers": ["small_worlds:HalveReward"]}
    assert troubles(check_env(halved, steps=100, backends=("base",))) == []


def test_a_game_that_goes_on_over_resets_keeps_its_seed():
    lives = {"type": broken.Lives, "wrappers": ["episodic_life"]}
    found = check_env(lives, steps=200, backends=("base",))
    assert troubles(found) == []


def test_the_process_is_left_as_it_was():
    before = random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]
    check_env(functools.partial(broken.DrawsGlobally, "np.random"), steps=50, backends=())
    assert (random.getstate(), np.random.get_state(legacy=False)["state"]["pos"]) == before


def test_a_section_with_a_fault_is_a_config_error():
    with pytest.raises(ConfigError, match="unknown key 'kwarg'; did you mean 'kwargs'"):
        check_env({"env_id": "CartPole-v1", "kwarg": {}})


def test_finding_is_a_named_tuple():
    assert Finding._fields == ("check", "verdict", "seen", "advice")
    assert Finding("x", OK, "y").advice == ""


# ------------------------------------------------------------------ rollout


def test_rollout_is_what_gymnasium_gives():
    tree = random_rollout(section_of(broken.Sound), 30)
    assert tree["obs"].shape == tree["next"]["obs"].shape == (30, 2)
    assert {name: tree[name].dtype.name for name in ("action", "reward", "terminated")} == {
        "action": "int64",
        "reward": "float32",
        "terminated": "bool",
    }
    assert set(np.unique(tree["action"])) == {-1, 0, 1}
    ended = tree["terminated"] | tree["truncated"]
    assert ended.sum() >= 3
    assert (tree["next"]["obs"][:-1][~ended[:-1]] == tree["obs"][1:][~ended[:-1]]).all()
    assert (tree["obs"][1:][ended[:-1], 0] == 0).all()
    assert (tree["next"]["obs"][ended, 0] > 2).all()


def test_tree_is_drawn_with_shapes_and_dtypes():
    tree = random_rollout(section_of(broken.Masked), 20)
    lines = tree_lines(tree)
    assert [re.match(r".*?── \w+", line).group() for line in lines] == [
        "├── obs",
        "│   ├── action_mask",
        "│   └── pose",
        "├── action",
        "├── reward",
        "├── terminated",
        "├── truncated",
        "└── next",
        "    └── obs",
        "        ├── action_mask",
        "        └── pose",
    ]
    assert re.fullmatch(r"│   ├── action_mask  +\(20, 3\)  int8     0 \.\. 1", lines[1])
    assert re.fullmatch(r"├── reward  +\(20,\)  +float32  .* \.\. .*", lines[4])
    assert re.fullmatch(r"├── truncated  +\(20,\)  +bool  +\d+ of 20 True", lines[6])


@pytest.mark.parametrize("hangs_at", [20, 41], ids=["while playing", "in the check of actions"])
def test_call_that_hangs_is_interrupted_and_reported(hangs_at):
    env = {"type": "slow_worlds:SlowEnv", "kwargs": {"hangs_at": hangs_at}}
    with interrupted_after(2.0):
        found = check_env(env, steps=30)
    (failed,) = [finding for finding in found if finding.verdict == FAIL]
    assert re.match(r"step\(\d\) did not return before 2 s of checks were over", failed.seen)
    assert "Look for what it waits for" in failed.advice
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
