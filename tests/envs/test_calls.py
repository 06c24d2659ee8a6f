"""Methods of environments that a run calls between its iterations, such as for a curriculum."""

import contextlib
import signal

import gymnasium as gym
import numpy as np
import pytest
from level_worlds import Levels, make
from worlds import digest, small_config

from ding_lite import Hook, SerialPipeline
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvContractError, EnvError


def in_process():
    return InProcessVectorEnv(make, 3)


def in_workers():
    return SubprocessVectorEnv(make, 3, num_workers=2, max_restarts=1)


BACKENDS = pytest.mark.parametrize("backend", [in_process, in_workers])


@BACKENDS
def test_a_method_is_called_in_every_environment(backend):
    with contextlib.closing(backend()) as envs:
        assert envs.call("set_level", 2) == [20, 20, 20]  # before the first reset, too
        assert envs.reset("collect")[:, 1].tolist() == [2, 2, 2]
        assert envs.call("set_level", 3, "hard") == [30, 30, 30]
        assert envs.call("get") == [(3, "hard")] * 3
        assert envs.calls == {"set_level": (3, "hard"), "get": ()}
        obs = envs.step(np.zeros(3, np.int64)).obs
        assert obs.tolist() == [[3, 2, 1]] * 3


@BACKENDS
def test_a_missing_method_is_named(backend):
    with contextlib.closing(backend()) as envs:
        envs.reset("collect")
        with pytest.raises(EnvContractError, match="Levels has no method 'set_leve'"):
            envs.call("set_leve", 2)
        assert envs.calls == {}


def native():
    return NativeVectorEnv(LevelsVector(3))


def steps_on(envs):
    """Returns whether environments go on, in the workers that they began in."""
    return envs.step(np.zeros(3, np.int64)).valid.all() and not envs.restarts


@pytest.mark.parametrize("backend", [in_process, in_workers, native])
@pytest.mark.parametrize(
    ("method", "kind", "text"),
    [
        ("fail", EnvError, "method fail: OSError: no such level (at level_worlds.py:"),
        ("refuse", EnvContractError, "method refuse: levels are from 0 to 9"),
        ("leave", EnvError, "method leave: SystemExit: 3"),
        ("set_leve", EnvContractError, " has no method 'set_leve'"),
    ],
)
def test_an_error_of_a_method_reads_the_same_everywhere_and_ends_nothing(method, kind, text, backend):
    with contextlib.closing(backend()) as envs:
        envs.reset("collect")
        assert steps_on(envs)
        where = envs.backend if backend is native else envs.describe(0)
        for _ in range(2):  # more often than a worker may be replaced
            with pytest.raises(EnvError) as caught:
                envs.call(method)
            assert type(caught.value) is kind
            assert str(caught.value).startswith(where)
            assert text in str(caught.value)
        assert steps_on(envs)
        assert envs.calls == {}


def test_an_error_in_a_worker_has_its_traceback_as_cause():
    with contextlib.closing(in_workers()) as envs, pytest.raises(EnvError) as caught:
        envs.call("fail")
    assert "in fail\n" in str(caught.value.__cause__)


def test_a_result_that_cannot_be_sent_names_the_method_and_ends_nothing():
    with contextlib.closing(in_workers()) as envs:
        envs.reset("collect")
        for _ in range(2):
            with pytest.raises(EnvContractError, match="method lock: its result cannot be sent .*TypeError"):
                envs.call("lock")
        assert steps_on(envs)


@pytest.mark.parametrize("backend", [in_process, in_workers, native])
@pytest.mark.parametrize(
    ("argument", "kind"),
    [(make, "function"), ({"level": [1, {2}]}, "set"), (np.array([object()]), "ndarray")],
    ids=["function", "set", "array of objects"],
)
def test_an_argument_that_cannot_be_saved_is_refused_at_the_call(argument, kind, backend):
    with contextlib.closing(backend()) as envs:
        envs.reset("collect")
        with pytest.raises(
            EnvContractError, match=rf"call\('set_level', \.\.\.\): .* a {kind}, which cannot"
        ):
            envs.call("set_level", argument)
        assert envs.calls == {}
        assert steps_on(envs)


class FailsOnce(Levels):
    """Its level cannot be set as long as there is a file, which the first failure removes."""

    def __init__(self, file):
        super().__init__()
        self.file = file

    def set_level(self, level):
        if self.file.exists():
            self.file.unlink()
            raise OSError("not yet")
        return super().set_level(level)


@pytest.mark.slow
def test_a_call_that_fails_in_a_new_worker_is_a_failure_of_that_worker(tmp_path):
    file = tmp_path / "not_yet"

    def failing(index):
        return EpisodeRecorder(FailsOnce(file))

    with contextlib.closing(SubprocessVectorEnv(failing, 2, num_workers=1, max_restarts=2)) as envs:
        envs.reset("collect")
        envs.call("set_level", 4)
        file.touch()
        envs._pool.workers[0].process.send_signal(signal.SIGKILL)
        lines = []
        envs.say = lines.append
        envs.step(np.zeros(2, np.int64))
        assert [("method set_level: OSError: not yet" in line) for line in lines] == [False, True]
        assert envs.call("get") == [(4, "")] * 2


def test_a_worker_that_is_replaced_is_called_again():
    with contextlib.closing(in_workers()) as envs:
        envs.reset("collect")
        envs.call("set_level", 4)
        envs._pool.workers[1].process.send_signal(signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="is replaced"):
            envs.step(np.zeros(3, np.int64))
        for _ in range(2):
            obs = envs.step(np.zeros(3, np.int64)).obs
        assert envs.call("get") == [(4, "")] * 3
        assert obs[:, 0].tolist() == [4, 4, 4]


class LevelsVector(gym.vector.VectorEnv):
    metadata = {"autoreset_mode": gym.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space, single_action_space = Levels.observation_space, Levels.action_space

    def __init__(self, num_envs):
        self.num_envs, self.level = num_envs, 0

    def set_level(self, level):
        self.level = level
        return level

    fail, refuse, leave = Levels.fail, Levels.refuse, Levels.leave

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        flags = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 3), np.float32), np.zeros(self.num_envs), flags, flags, {}


@BACKENDS
def test_calls_are_repeated_in_the_order_of_the_last_ones(backend):
    with contextlib.closing(backend()) as envs:
        names = []
        envs.call("set_level", 1, names)
        names.append("later")  # changes nothing that is saved
        envs.call("get")
        assert list(envs.calls) == ["set_level", "get"]
        assert envs.calls["set_level"] == (1, [])
        envs.call("set_level", 2)
        assert list(envs.calls) == ["get", "set_level"]


def test_a_gymnasium_vector_is_called_itself():
    envs = NativeVectorEnv(LevelsVector(3))
    assert envs.call("set_level", 5) == [5]
    assert envs.env.level == 5
    with pytest.raises(EnvContractError, match="LevelsVector has no method 'harder'"):
        envs.call("harder")


class Curriculum(Hook):
    """A level more after each iteration: most episodes see two levels."""

    def after_iter(self, pipeline):
        pipeline.collector.envs.call("set_level", pipeline.progress.iteration)
        pipeline.evaluator.envs.call("set_level", 10 * pipeline.progress.iteration)


class LongLevels(Levels):
    """Its episodes are longer than a rollout, so the first of them begin before the first call."""

    length = 700


IN_WORKERS = pytest.param({"type": "subprocess", "worker_num": 2}, marks=pytest.mark.slow)


@pytest.mark.parametrize("manager", [{"type": "base"}, IN_WORKERS])
@pytest.mark.parametrize("kind", [Levels, LongLevels])
def test_a_run_with_a_curriculum_is_resumed_in_the_middle_of_its_episodes(kind, manager, tmp_path):
    config = small_config(kind, env={"manager": manager}, hooks=[Curriculum], max_env_step=6 * 250)
    config["policy"]["collect"]["n_sample"] = 250
    config["policy"]["eval"]["eval_freq"] = 250

    def rewards(pipeline):
        with pipeline:
            return [(digest(pipeline.policy.state_dict()), progress.evaluation) for progress in pipeline]

    straight = rewards(SerialPipeline(config, folder=tmp_path / "straight"))
    first = []
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        for progress in pipeline:
            first.append((digest(pipeline.policy.state_dict()), progress.evaluation))
            if progress.iteration == 3:
                break
    resumed = SerialPipeline.resume(tmp_path / "run", trust=[kind.__module__, __name__])
    assert list(resumed.collector.envs.calls["set_level"]) == [3]
    assert first + rewards(resumed) == straight
