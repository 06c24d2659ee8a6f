"""Ray actors: what differs from processes. Their transitions are compared in test_backends.py."""

import contextlib
import functools
import signal

import numpy as np
import pytest
from scripted import Scripted, world

ray = pytest.importorskip("ray", reason="ray is not installed")
from ding_lite.config.compile import compile_config  # noqa: E402
from ding_lite.envs.make import make_vector_env  # noqa: E402
from ding_lite.envs.workers.ray_actors import RayActors, connect  # noqa: E402
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv  # noqa: E402
from ding_lite.errors import EnvContractError, EnvError  # noqa: E402

pytestmark = pytest.mark.slow
ZEROS = np.zeros(4, int)


@pytest.fixture(scope="module", autouse=True)
def no_ray_afterwards():
    yield
    ray.shutdown()


@contextlib.contextmanager
def pool(make, **options):
    envs = SubprocessVectorEnv(make, 4, num_workers=2, starter=RayActors(num_workers=2), **options)
    envs.lines = []
    envs.say = envs.lines.append
    with contextlib.closing(envs):
        yield envs


def test_an_actor_is_replaced(tmp_path):
    make = world(fault="kill", at=[3], only=1, once=tmp_path)
    with pool(make, restart_share=1.0) as envs:
        envs.reset("x")
        valid = [envs.step(ZEROS).valid.tolist() for _ in range(30)]
        assert envs.restarts == 1
        assert valid.count([False, False, True, True]) == 1
        assert valid.count([True] * 4) == 29
        assert "died" in envs.lines[0]


def test_a_config_takes_it_and_an_error_keeps_its_kind():
    before = signal.getsignal(signal.SIGTERM)
    make = functools.partial(Scripted, fault=lambda result: result[:4], at=[1])
    manager = dict(type="ray", worker_num=2)
    cfg = compile_config({"env": {"type": make, "manager": manager}}).values.env
    with contextlib.closing(make_vector_env(cfg, 4, 0)) as envs:
        envs.reset("x")
        assert signal.getsignal(signal.SIGTERM) is before
        with pytest.raises(EnvContractError, match=r"env \d .*4 values"):
            envs.step(ZEROS)


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EnvError, match=r"127\.0\.0\.1:1"):
        connect()
    assert not ray.is_initialized()
