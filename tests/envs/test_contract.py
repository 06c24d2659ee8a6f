"""Environments that misbehave: each is an error that names environment, call and fault, on every backend."""

import contextlib
import functools

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from scripted import Scripted, world

from ding_lite.envs.checks import Watch
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvContractError, EnvError, EnvWorkerError, NotFiniteError

BACKENDS = {
    "base": InProcessVectorEnv,
    "subprocess": functools.partial(SubprocessVectorEnv, num_workers=2, step_timeout=1.0, reset_timeout=1.0),
}


def replaced(place, value):
    """Returns a fault that replaces one value of the result of a call."""
    return lambda result: (*result[:place], value, *result[place + 1 :])


def only(count):
    return lambda result: result[:count]


NAN = np.array([0, np.nan, 0], np.float32)
CONTRACT = EnvContractError
# fault, step (0 is the reset), error, words of its message
FAULTS = {
    "old reset": (lambda result: result[0], 0, CONTRACT, "reset.*old gym API"),
    "old step": (only(4), 2, CONTRACT, "step.*4 values.*old gym API"),
    "nothing": (lambda result: None, 2, CONTRACT, "step.*NoneType"),
    "reset without info": (replaced(1, None), 0, CONTRACT, "reset.*info"),
    "step without info": (replaced(4, None), 2, CONTRACT, "step.*info"),
    "shape at reset": (replaced(0, np.zeros(4, np.float32)), 0, CONTRACT, r"reset.*\(4,\)"),
    "shape at a step": (replaced(0, np.zeros((1, 3), np.float32)), 2, CONTRACT, r"step.*\(1, 3\)"),
    "text": (replaced(0, "left"), 2, CONTRACT, "step.*str"),
    "ragged": (replaced(0, [[1], [2, 3], 4]), 2, EnvError, "step.*inhomogeneous"),
    "observation missing": (replaced(0, None), 2, CONTRACT, "step.*NoneType"),
    "nan at reset": (replaced(0, NAN), 0, NotFiniteError, r"reset\[1\] = nan"),
    "nan at a step": (replaced(0, NAN), 2, NotFiniteError, r"observation\[1\] = nan"),
    "reward nan": (replaced(1, np.nan), 2, NotFiniteError, "step.*reward = nan"),
    "reward too large": (replaced(1, 1e39), 2, NotFiniteError, r"step.*reward = 1e\+39"),
    "reward missing": (replaced(1, None), 2, CONTRACT, "step.*reward"),
    "rewards": (replaced(1, np.zeros(2)), 2, CONTRACT, "step.*reward"),
    "flag of text": (replaced(2, "yes"), 2, CONTRACT, "step.*terminated"),
    "flag missing": (replaced(3, None), 2, CONTRACT, "step.*truncated"),
    "raises in reset": ("raise", 0, EnvError, "reset.*ValueError: broken in 0"),
    "raises in step": ("raise", 2, EnvError, r"step.*ValueError: broken in 2 \(at scripted.py:\d+\)"),
    "sys.exit": ("sys.exit", 2, EnvError, "step.*SystemExit"),
}


def play(envs, steps=12):
    watch = Watch(envs, "")
    watch.reset("x")
    for _ in range(steps):
        transition = envs.step(np.zeros(envs.num_envs, int))
        watch.look(transition)
    return transition


def refused(backend, make, error, words):
    def run():
        with contextlib.closing(BACKENDS[backend](make, 2)) as envs:
            play(envs)

    with pytest.raises(error, match=rf"(?s)env 1\b.*{words}"):
        run()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_with_its_environment_and_call(name):
    fault, at, error, words = FAULTS[name]
    refused("base", world(fault=fault, at=[at], only=1), error, words)


@pytest.mark.parametrize("name", ["raises in step", "nan at a step"])
def test_a_fault_in_a_worker_is_named_by_the_same_words(name):
    fault, at, error, words = FAULTS[name]
    refused("subprocess", world(fault=fault, at=[at], only=1), error, words)


@pytest.mark.parametrize(
    ("fault", "at", "words"),
    [
        ("hang", 2, "step_timeout=1 s, in env 1 .*step 2"),
        ("kill", 0, "died, exit code -9.*in env 1 .*step 0"),
        ("exit", 2, "died, exit code 3, in env 1"),
        ("hang", 0, "reset_timeout=1 s, in env 1"),
        ("kill", "make", r"died.*making its environments"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_named(fault, at, words):
    refused("subprocess", world(fault=fault, at=[at], only=1), EnvWorkerError, words)


def test_numbers_of_other_kinds_that_can_be_taken_are_taken():
    """Steps of the second environment return other kinds than those of the first."""
    for fault in (
        replaced(0, np.zeros(3, np.float64)),
        replaced(0, [0, 1, 2]),
        replaced(1, np.float32(1)),
        replaced(1, np.array(1.0)),
        replaced(1, np.array([1.0])),
        replaced(2, np.False_),
        replaced(3, 0),
        list,
    ):
        transition = play(InProcessVectorEnv(world(fault=fault, at=range(1, 9), only=1), 2))
        assert (transition.obs.shape, transition.obs.dtype) == ((2, 3), np.float32)
        assert (transition.reward.shape, transition.reward.dtype) == ((2,), np.float32)
        assert (transition.terminated.dtype, transition.truncated.dtype) == (bool, bool)


class Seedless(Scripted):
    def reset(self):
        return super().reset()


def spaceless(index):
    env = Scripted(index)
    env.observation_space = None if index else env.observation_space
    return EpisodeRecorder(env)


def other_space(index):
    return EpisodeRecorder(Scripted(index, actions="box" if index else "discrete"))


def textual(index):
    env = Scripted(index)
    env.observation_space = gym.spaces.Dict(mission=gym.spaces.Text(9))
    return EpisodeRecorder(env)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda index: EpisodeRecorder(Seedless()), "env 0.*seed.*old gym API"),
        (spaceless, r"Scripted\.observation_space is None"),
        (other_space, "env 1 has other spaces than env 0"),
        (textual, r"observation\['mission'\]: Text is not supported"),
    ],
    ids=["reset without a seed", "no space", "other spaces", "text"],
)
def test_an_environment_that_does_not_fit_is_refused(make, words):
    with pytest.raises(EnvError, match=words):
        play(InProcessVectorEnv(make, 2))


def test_after_an_error_a_reset_comes_first_and_begins_all_anew():
    envs = InProcessVectorEnv(world(fault="raise", at=[3], only=1), 2)
    begun = envs.reset("x").copy()
    with pytest.raises(EnvError, match=r"broken.*only sometimes: env\.manager\.type=subprocess"):
        play(envs, 30)
    with pytest.raises(EnvError, match="reset"):
        envs.step(np.zeros(2, int))
    assert envs.reset("x").tolist() == begun.tolist()
    envs.step(np.zeros(2, int))


def test_environments_are_closed_also_after_one_that_cannot_be_made_and_one_that_fails_to_close():
    closed = []

    class Closing(Scripted):
        def close(self):
            closed.append(self.index)
            raise OSError("no window")

    def make(index):
        return EpisodeRecorder(Closing(index, fault="raise", at=["make"], only=2))

    with (
        pytest.warns(RuntimeWarning, match="close raised OSError: no window") as said,
        pytest.raises(ValueError, match="broken in make"),
    ):
        InProcessVectorEnv(make, 3)
    assert len(said) == 2
    assert closed == [0, 1]


# ---------------------------------------------------------------------- vector environments


class OwnVector(gym.vector.VectorEnv):
    """Two environments; ``parts`` replaces parts of what the call ``at`` returns (0: the reset)."""

    def __init__(self, at=1, mode=AutoresetMode.NEXT_STEP, **parts):
        self.num_envs, self.at, self.parts, self.calls = 2, at, parts, 0
        self.metadata = {"autoreset_mode": mode}
        self.single_observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
        self.single_action_space = gym.spaces.Discrete(2)

    def result(self, **usual):
        parts = self.parts if self.calls == self.at else {}
        self.calls += 1
        return tuple((usual | {"info": {}} | parts).values())

    def reset(self, *, seed=None, options=None):
        return self.result(obs=np.zeros((2, 3), np.float32))

    def step(self, action):
        never = np.zeros(2, bool)
        usual = dict(obs=np.zeros((2, 3), np.float32), reward=np.ones(2), terminated=never, truncated=never)
        return self.result(**usual)


@pytest.mark.parametrize(
    ("at", "parts", "words"),
    [
        (0, dict(obs=np.zeros((1, 3), np.float32)), r"reset.*\(2, 3\), got \(1, 3\)"),
        (0, dict(info=None), "reset.*info"),
        (1, dict(obs=np.zeros((2, 4), np.float32)), r"step.*\(2, 3\), got \(2, 4\)"),
        (1, dict(obs=np.full((2, 3), None)), "step.*object"),
        (1, dict(reward=np.ones((2, 1))), r"step.*reward.*\(2,\), got \(2, 1\)"),
        (1, dict(terminated=np.zeros(2)), "step.*terminated.*float64"),
        (1, dict(truncated=[False, False]), "step.*truncated.*list"),
        (5, dict(obs=np.full((2, 3), np.nan, np.float32)), "env 0.*nan"),
        (5, dict(reward=np.array([0, np.inf])), "env 1.*reward = inf"),
    ],
)
def test_a_vector_environment_that_breaks_the_contract_is_refused(at, parts, words):
    with pytest.raises(EnvContractError, match=words):
        play(NativeVectorEnv(OwnVector(at, **parts)))


def test_a_vector_environment_must_declare_its_mode_and_its_spaces():
    with pytest.raises(EnvContractError, match=r"OwnVector\.metadata\['autoreset_mode'\] is 'sometimes'"):
        NativeVectorEnv(OwnVector(mode="sometimes"))
    vector = OwnVector()
    vector.single_action_space = None
    with pytest.raises(EnvContractError, match=r"OwnVector\.single_action_space"):
        NativeVectorEnv(vector)


def test_a_cut_of_same_step_without_a_final_observation_is_refused():
    vector = OwnVector(mode=AutoresetMode.SAME_STEP, truncated=np.ones(2, bool))
    with pytest.raises(EnvContractError, match=r"SAME_STEP.*'final_obs'"):
        play(NativeVectorEnv(vector))


def test_an_exception_of_a_vector_environment_names_its_call_and_asks_for_a_reset():
    envs = NativeVectorEnv(SyncVectorEnv([lambda: Scripted(fault="sys.exit", at=[1])]))
    envs.reset("x")
    with pytest.raises(EnvError, match=r"SyncVectorEnv.*step.*SystemExit.*scripted.py:\d+"):
        envs.step(np.zeros(1, int))
    with pytest.raises(EnvError, match="reset"):
        envs.step(np.zeros(1, int))
