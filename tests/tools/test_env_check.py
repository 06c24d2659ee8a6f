"""``check_env`` finds each planted fault, in the words of training; environments without one pass."""

from __future__ import annotations

import functools
import os
import re

import broken_worlds as broken
import gymnasium as gym
import numpy as np
import pytest
from worlds import finished, small_config

from ding_lite import SerialPipeline
from ding_lite.envs.checks import notes_on
from ding_lite.errors import DingLiteError
from ding_lite.tools.env_check import FAIL, OK, WARN, check_env, suited_backend


def alone(env, steps=100):
    """Returns the findings in this process by check, the worst of each."""
    found = {}
    for finding in check_env(env, steps=steps, backends=("base",)):
        if found.setdefault(finding.check, finding).verdict == OK:
            found[finding.check] = finding
    return found


def troubles(found):
    return [(f.check, f.verdict) for f in found if f.verdict != OK]


def limited(env, steps):
    return {"type": env, "wrappers": [{"type": "time_limit", "max_episode_steps": steps}]}


# ------------------------------------------------------------------ sound ones


@pytest.mark.parametrize("env", [broken.Sound, broken.Pushed, broken.Masked, functools.partial(broken.Sound)])
def test_the_world_that_the_faults_are_planted_in_is_sound(env):
    assert troubles(check_env(env, steps=100, backends=("base",))) == []


@pytest.mark.parametrize(
    "env_id",
    ["CartPole-v1", *(pytest.param(e, marks=pytest.mark.slow) for e in ("Pendulum-v1", "Blackjack-v1"))],
)
def test_sound_environment_passes_every_check(env_id):
    found = check_env(env_id, steps=250)
    assert troubles(found) == []
    # A leaf of a tree has a line of its own.
    checks = list(dict.fromkeys(finding.check.split("[")[0] for finding in found))
    assert checks == [
        *("make", "contract", "same seed", "other seeds", "base"),
        *("episodes end", "time limit", "observation", "reward", "speed"),
    ]
    (compared,) = [finding.text for finding in found if finding.check == "base"]
    assert "the same 500 transitions, bit for bit" in compared


def test_an_environment_that_is_made_is_played_and_left_open():
    env = gym.make("CartPole-v1", render_mode="rgb_array")
    found = check_env(env, steps=100)
    assert troubles(found) == []
    assert not {finding.check for finding in found} & {"subprocess", "vector"}
    assert env.render().shape == (400, 600, 3)
    env.close()
    assert troubles(check_env(broken.OldStep(), steps=20)) == [("contract", FAIL)]


@pytest.mark.parametrize(
    ("milliseconds", "num_envs", "cores", "suited"),
    [
        (0.03, 8, 8, "env.manager.type=base suits it"),
        (0.03, 256, 2, "env.manager.type=subprocess suits it"),  # many steps a message
        (0.1, 8, 2, "env.manager.type=base suits it"),
        (1.0, 8, 8, "env.manager.type=subprocess suits it"),
        (1.0, 8, 1, "env.manager.type=base suits it"),
    ],
)
def test_backend_is_advised_where_it_is_clear(milliseconds, num_envs, cores, suited, monkeypatch):
    monkeypatch.setattr("ding_lite.tools.env_check.cores", lambda: cores)
    assert suited_backend(milliseconds / 1000, num_envs).endswith(suited)


# ------------------------------------------------------------------ faults that end a training

WORKERS = {"manager": {"type": "subprocess", "worker_num": 1, "step_timeout": 0.5, "restart_share": 0.0}}
FAULTS = [  # tests/envs has those of single steps
    (broken.WholeBoxAction, "contract", "Box of integers"),
    (broken.IntegerKeys, "make", r"observation_space is Dict\(0: .*strings as their names"),
    (broken.EmptyPart, "make", r"observation_space\['bag'\] is Dict\(\): a Dict needs parts"),
    (
        broken.Raises,
        "contract",
        r"env \d \(seed \d+, ep.*, step \d+\), .*action .*: KeyError: 'key' \(at broken_worlds.py:\d+\)",
    ),
    (broken.OutOfRange, "contract", r"env \d .*: observation\['0'\] = 2, which is not in Discrete\(2\)"),
    (
        {"type": broken.Hangs, **WORKERS},
        "contract",
        r"worker 0 .*did not answer within step_timeout=0.5 s, in env 0 \(seed \d+, ep.*step \d\)",
    ),
]


@pytest.mark.parametrize(("env", "check", "words"), FAULTS)
def test_fault_has_the_same_words_from_training_and_from_check_env(env, check, words, tmp_path):
    *_, finding = check_env(env, steps=100)
    assert (finding.check, finding.verdict) == (check, FAIL)
    assert re.search(words, finding.text), finding.text
    section = env if isinstance(env, dict) else {"type": env}
    with pytest.raises(DingLiteError) as error:
        finished(SerialPipeline(small_config(env=section), folder=tmp_path / "run"))
    assert re.search(words, str(error.value)), error.value


# ------------------------------------------------------------------ faults that training does not see


@pytest.mark.parametrize(
    ("env", "check", "verdict", "words"),
    [
        (broken.FailsToClose, "contract", WARN, "close raised RuntimeError: no window"),
        (broken.NoSeed, "same seed", FAIL, r"step 0 of env 0: obs\[0\] was 0.*self.np_random"),
        (broken.Remembers, "same seed", FAIL, r"obs\[0\] was \d.0, is .*reset all state in every reset"),
        (broken.AlwaysTheSame, "other seeds", WARN, "self.np_random"),
        (broken.NeverEnds, "episodes end", WARN, r"in 100 steps.*env.max_eval_steps=10000.*TimeLimit"),
        (limited(broken.NeverEnds, 500), "episodes end", OK, "the time limit is 500 steps"),
        (limited(broken.NeverEnds, 20), "time limit", OK, "0 episodes were terminated, 10 truncated"),
        (limited(broken.OldDone, 6), "time limit", FAIL, "of 6 steps were terminated.*truncated=True"),
        (broken.OldDone, "time limit", WARN, "all 32 episodes of 6 steps were terminated"),
    ],
)
def test_other_fault_is_found(env, check, verdict, words):
    found = alone(env)
    assert found[check].verdict == verdict
    assert re.search(words, found[check].text), found[check].text
    if verdict == OK or env is broken.NoSeed:  # nothing else is found
        return
    assert troubles(found.values()) == [(check, verdict)]


@pytest.mark.parametrize(
    ("env", "seen"),
    [
        (broken.OneGeneratorForAll, r"step 1 of env \d: obs\[1\] was 0"),
        (functools.partial(broken.KnowsItsProcess, os.getpid()), "step 0 of env 0: reward was 0.0, is 1.0"),
    ],
)
def test_what_depends_on_its_process_is_found_by_worker_processes(env, seen):
    (failed,) = [f for f in check_env(env, steps=60) if f.verdict == FAIL]
    assert failed.check == "base"
    assert re.search(f"{seen}.*class attributes", failed.text)


def test_vector_environment_of_ones_own_is_checked_as_it_is():
    env = {"type": broken.UnseededCarts, "manager": {"type": "vector"}}
    assert troubles(check_env(env, steps=50)) == [("same seed", FAIL)]
    assert troubles(check_env({**env, "type": broken.CartPoleVectorEnv}, steps=50)) == []


def test_groups_that_only_the_critic_may_read_are_no_fault_of_an_environment():
    def privileged():
        carts = gym.make("CartPole-v1")
        space = gym.spaces.Dict({"policy": carts.observation_space, "critic": carts.observation_space})
        return gym.wrappers.TransformObservation(carts, lambda obs: {"policy": obs, "critic": obs}, space)

    assert troubles(check_env(privileged, steps=60, backends=("base",))) == []


@pytest.mark.parametrize(
    ("shape", "dtype", "warns"),
    [
        ((84, 84), np.float32, True),  # grey images of floats, without a channel
        ((4, 84, 84, 3), np.float32, True),  # gymnasium's FrameStackObservation of RGB
        ((84, 84), np.uint8, False),
        ((1, 84, 84), np.float32, False),
        ((20, 84), np.float32, False),
    ],
)
def test_pictures_that_an_mlp_would_read_are_warned_of(shape, dtype, warns):
    notes = notes_on(gym.Env(), gym.spaces.Box(0, 1, shape, dtype), gym.spaces.Discrete(2))
    assert ("images" in notes) == warns


def test_numbers_that_train_badly_are_warned_of_with_the_key_that_helps():
    found = alone(broken.Numbers, steps=300)
    checks = [check for check, verdict in troubles(found.values()) if verdict == WARN]
    assert checks == ["actions", "images", "action mask", "large numbers", "bounds", "constant", "zeros"]
    assert "bounds 0 .. 512" in found["actions"].text
    assert "observation['film'] of shape (2, 4, 4, 3)" in found["images"].text
    assert "env.action_mask='info'" in found["action mask"].text
    assert found["constant"].text.startswith("observation['still'] never changes")
    assert re.fullmatch(r"\[.* 7\. .*\] \.\. \[.* 7\.000e\+00\]", found["observation['large']"].text)
    assert found["large numbers"].text == "observation['large'] reaches 2e+05: set policy.normalize.obs=True"
    assert re.match(r"observation\['outside'\].* such as [12]\..*policy.normalize.obs", found["bounds"].text)
    assert "policy.intrinsic.type=rnd" in found["zeros"].text
    with SerialPipeline(small_config(env={"type": broken.Numbers})) as pipeline:
        log = (pipeline.folder / "log.txt").read_text()
        assert all(found[check].text in log for check in checks[:3])


ADAPTIVE = [f"gymnasium.wrappers:Normalize{name}" for name in ("Observation", "Reward")]


@pytest.mark.parametrize(
    ("env", "check", "words"),
    [
        ({"type": broken.Sound, "wrappers": ADAPTIVE}, "scale", "reward=True, policy.normalize.obs=True"),
        ({"type": broken.Sound, "wrappers": ADAPTIVE[1:], "manager": "subprocess"}, "scale", "reward=True"),
        ({"type": broken.NormalizedCarts, "manager": "vector"}, "scale", "obs=True"),
        ({"type": broken.Levels}, "seed", "env.seed_resets=first"),
        ({"type": broken.MaskInInfo}, "action mask", "env.action_mask='info'"),
    ],
)
def test_check_env_and_the_first_lines_of_a_run_say_the_same(env, check, words, tmp_path):
    found = check_env(env, steps=50)
    assert troubles(found) == [(check, WARN)]
    (text,) = [f.text for f in found if f.check == check]
    assert words in text
    with SerialPipeline(small_config(env=env), folder=tmp_path / "run"):
        assert (tmp_path / "run" / "log.txt").read_text().count(f"WARNING: {text}") == 1


def test_levels_of_the_first_reset_need_no_warning():
    assert troubles(alone({"type": broken.Levels, "seed_resets": "first"}).values()) == []


@pytest.mark.parametrize(
    ("settings", "fails"),
    [
        ({}, "the port is in use.*env.manager.type=subprocess env.manager.worker_num=8 works"),
        ({"kwargs": {"ends": True}}, "exit code 9.*env.manager.worker_num=8 works"),
        ({"manager": "subprocess"}, ""),
        ({"collector_env_num": 1}, ""),
    ],
)
def test_an_environment_that_exists_once_in_a_process_passes_with_the_settings_it_needs(settings, fails):
    found = [f.text for f in check_env({"type": broken.Alone, **settings}, steps=50) if f.verdict == FAIL]
    assert len(found) == bool(fails)
    assert re.search(f"(?s){fails}", "".join(found))


def test_nan_is_no_problem_of_seeds_and_a_process_that_dies_is_named():
    *_, finding = check_env(broken.NanLater, steps=100)
    assert (finding.check, finding.verdict) == ("contract", FAIL)
    assert re.search(r"env \d .*= nan, which is not finite$", finding.text)
    *_, finding = check_env(broken.Dies, steps=100)
    assert re.search(r"worker \d .*exit code 7", finding.text)


def test_the_smallest_time_limit_is_named_with_the_key_that_lengthens_gymnasium_s():
    key = "gymnasium's: env.kwargs.max_episode_steps"
    assert f"200 steps, {key}" in alone("Pendulum-v1")["episodes end"].text
    wrappers = [{"type": "time_limit", "max_episode_steps": steps} for steps in (30, 50)]
    text = alone({"env_id": "Pendulum-v1", "wrappers": wrappers})["episodes end"].text
    assert "the time limit is 30 steps" in text
    assert key not in text
