"""Ray actors: what differs from processes. Their transitions are compared in test_backends.py."""

import contextlib
import os
import signal

import numpy as np
import pytest
from scripted import world
from worlds import small_config

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
from ding_lite import SerialPipeline  # noqa: E402
from ding_lite.envs.workers.ray_actors import RayActors, connect  # noqa: E402
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv  # noqa: E402
from ding_lite.errors import EnvContractError, EnvError  # noqa: E402

pytestmark = pytest.mark.slow
ZEROS = np.zeros(4, int)


@contextlib.contextmanager
def pool(make, **options):
    envs = SubprocessVectorEnv(make, 4, num_workers=2, starter=RayActors(num_workers=2), **options)
    envs.lines = []
    envs.say = envs.lines.append
    with contextlib.closing(envs):
        yield envs


@pytest.mark.parametrize(
    ("fault", "words"), [("kill", "died"), ("raise", "broken in 3"), ("hang", "step_timeout=3 s")]
)
def test_an_actor_is_replaced(tmp_path, fault, words):
    with pool(world(), step_timeout=3.0) as warm:  # the first start of Ray takes seconds
        warm.reset("x")
    make = world(fault=fault, at=[3], only=1, once=tmp_path)
    with pool(make, max_restarts=1, step_timeout=3.0) as envs:
        envs.reset("x")
        valid = [envs.step(ZEROS).valid.tolist() for _ in range(30)]
        assert envs.restarts == 1
        assert valid.count([False, False, True, True]) == 1
        assert valid.count([True] * 4) == 29
        assert words in envs.lines[0]


def test_a_broken_contract_keeps_its_kind():
    with pool(world(fault=lambda result: result[:4], at=[1], only=2)) as envs:
        envs.reset("x")
        with pytest.raises(EnvContractError, match=r"env 2 .*4 values"):
            envs.step(ZEROS)


def test_handlers_of_signals_stay_those_of_this_process():
    before = signal.getsignal(signal.SIGTERM)
    with pool(world()) as envs:
        envs.reset("x")
        assert signal.getsignal(signal.SIGTERM) is before


def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch):
    ray.shutdown()
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(EnvError, match=r"127\.0\.0\.1:1"):
        connect()
    assert not ray.is_initialized()


def test_workers_need_a_free_cpu_each_in_a_cluster_of_others():
    ray.shutdown()
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(EnvError, match="2 workers need a CPU each"):
            RayActors(num_workers=2)
        RayActors(num_workers=2, reserve=False)
    finally:
        ray.shutdown()


def test_a_run_on_ray_is_that_of_this_process(tmp_path):
    results = []
    for manager in (dict(type="base"), dict(type="ray", worker_num=2)):
        config = small_config("Pendulum-v1", max_env_step=512, env={"manager": manager})
        folder = tmp_path / manager["type"]
        for _ in SerialPipeline(config, folder=folder):
            pass
        rows = (folder / "episodes.csv").read_text()
        results.append(rows)
    assert results[0] == results[1]
    assert os.path.isdir(tmp_path / "ray")
