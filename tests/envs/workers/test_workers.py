"""Workers that are killed, hang, end or raise are replaced, without a mix-up, a leak or an endless loop.

Real processes and real signals. Observations hold the name of their episode, so that a mix-up shows.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from leaks import alive, no_leaks  # noqa: F401 (a fixture)
from processes import until
from scripted import Scripted, Spawning, world
from worlds import policy_for

from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import LEAST_RESTARTS, SubprocessVectorEnv
from ding_lite.errors import CheckpointError, EnvContractError, EnvError, EnvWorkerError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

ZEROS = np.zeros(4, int)


@contextlib.contextmanager
def pool(make, num_envs=4, num_workers=2, restart_share=0.01, **kwargs):
    envs = SubprocessVectorEnv(make, num_envs, num_workers=num_workers, restart_share=restart_share, **kwargs)
    envs.lines, envs.tracebacks = [], []
    envs.say, envs.explain = envs.lines.append, envs.tracebacks.append
    with contextlib.closing(envs):
        yield envs


def pids(envs):
    return [worker.process.pid for worker in envs._workers]


def kill_idle(envs):
    os.kill(pids(envs)[0], signal.SIGKILL)


def stop(envs):
    os.kill(pids(envs)[0], signal.SIGSTOP)


# ---------------------------------------------------------------------- one fault, and stepping goes on


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("kill", "worker 0 (envs 0-1) died, exit code -9 (killed: out of memory?), in env 1 (seed "),
        ("hang", "step_timeout=1 s, in env 1 (seed "),
        ("raise", "ValueError: broken in 3 (at scripted.py"),
        (kill_idle, "worker 0 (envs 0-1) died, exit code -9 (killed: out of memory?). worker 0"),
        (stop, "step_timeout=1 s. "),
    ],
    ids=["kill", "hang", "raise", "killed idle", "SIGSTOP"],
)
def test_a_worker_is_replaced_and_its_step_left_out(tmp_path, fault, cause):
    make = world() if callable(fault) else world(fault=fault, at=[3], only=1, once=tmp_path)
    alone = InProcessVectorEnv(world(), 4)
    with pool(make, step_timeout=1.0) as envs:
        shown, expected = envs.reset("x").copy(), alone.reset("x").copy()
        assert shown.tolist() == expected.tolist()
        is_lost, old = False, pids(envs)[0]
        for t in range(12):
            if t == 2 and callable(fault):
                fault(envs)
            names = shown[:, 0].copy()
            got, reference = envs.step(ZEROS), alone.step(ZEROS)
            shown = got.obs.copy()
            # The other worker's rows are as if nothing had been.
            assert shown[2:].tolist() == reference.obs[2:].tolist()
            assert got.valid[2:].all()
            if envs.restarts and not is_lost:
                is_lost = True
                flags = got.valid, got.terminated, got.truncated, got.reward
                assert [flag[:2].tolist() for flag in flags] == [[0, 0]] * 4
                assert shown[:2, 1].tolist() == [0, 0]  # of new episodes
                assert not set(shown[:2, 0]) & set(names[:2])
                assert envs.episode_lengths[:2].tolist() == [0, 0]
            else:
                assert got.valid.all()
        assert (is_lost, envs.restarts, len(envs.lines)) == (True, 1, 1)
        assert cause in envs.lines[0]
        assert "restart 1 in " in envs.lines[0]
        assert len(envs.tracebacks) == (fault == "raise")  # the others leave none
        assert not alive(old)


def check_chain(rollout):
    """Checks that the next step of the episode, or an end, follows every valid row; returns their number."""
    obs, valid = rollout.obs.numpy(), rollout.valid.numpy()
    terminated, truncated = rollout.terminated.numpy(), rollout.truncated.numpy()
    finals = {}
    if "final" in rollout:
        rows = zip(rollout.final.t.tolist(), rollout.final.env.tolist(), strict=True)
        finals = dict(zip(rows, rollout.final.obs.numpy(), strict=True))
    for t, env in np.argwhere(valid & ~terminated).tolist():
        if truncated[t, env]:
            following = finals.pop((t, env))
        else:
            is_last = t + 1 == len(valid)
            following = rollout.last_obs.numpy()[env] if is_last else obs[t + 1, env]
            assert is_last or valid[t + 1, env]
        assert following[:2].tolist() == [obs[t, env, 0], obs[t, env, 1] + 1]
        assert rollout.reward[t, env] == obs[t, env, 1] + 1
    assert not finals
    return int(valid.sum())


@pytest.mark.parametrize("double_buffer", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_no_transition_crosses_a_loss_and_every_step_is_accounted_for(double_buffer):
    make = world(fault="kill", chance=0.01)
    with pool(make, restart_share=1.0, double_buffer=double_buffer) as envs:
        collector = Collector(envs, policy_for(envs), 60)
        said = []
        envs.say = said.append
        steps = finished = 0
        for _ in range(4):
            steps += check_chain(collector.collect())
            finished += sum(episode.length for episode in collector.episodes)
            assert all(e.episode_return == e.length * (e.length + 1) / 2 for e in collector.episodes)
        assert envs.restarts == collector.metrics()["env_restarts"] > 1
        cut = sum(int(re.search(r"cut \((\d+) steps\)", line)[1]) for line in said)
        assert steps == finished + envs.episode_lengths.sum() + cut


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["both sent", "one sent", "one received", "none sent"])
def test_a_loss_between_two_halves_reaches_both(moment):
    with pool(world(), double_buffer=True) as envs:
        envs.reset("x")
        rows = []
        for t in range(6):
            for here in ("none sent", "one sent", "both sent", "one received", ""):
                if (t, here) == (2, moment):
                    kill_idle(envs)
                if here in ("none sent", "one sent"):
                    envs.send(ZEROS[:2], ("none sent", "one sent").index(here))
                elif here:
                    rows.append(envs.receive().valid.copy())
        assert envs.restarts == 1
        for half in (rows[::2], rows[1::2]):  # worker 0 has row 0 of each
            assert np.all(half, axis=0).tolist() == [False, True]
            assert np.sum([~row for row in half]) == 1


@pytest.mark.slow
def test_an_evaluation_plays_a_lost_episode_again(tmp_path):
    with pool(world(fault="kill", at=[1], only=1, once=tmp_path)) as envs:
        result = Evaluator(envs, policy_for(envs), 8, 100).evaluate(0)
        assert envs.restarts == 1
        assert result.returns == tuple(n * (n + 1) / 2 for n in result.lengths)
        assert len(result.returns) == 8


# ---------------------------------------------------------------------- other requests


@pytest.mark.parametrize("request_of", ["reset", "state_dict", "load_state_dict", "call"])
def test_a_worker_that_dies_in_another_request_is_replaced(request_of):
    with pool(world()) as envs:
        envs.reset("x")
        for _ in range(5):
            envs.step(ZEROS)
        state, kept = envs.state_dict(), envs.describe(3)
        kill_idle(envs)
        arguments = {"reset": ["y"], "load_state_dict": [state], "call": ["set_level", 3]}.get(request_of, [])
        found = getattr(envs, request_of)(*arguments)
        assert envs.restarts == 1
        got = envs.step(ZEROS)
        if request_of == "call":
            assert found == [30, 31, 32, 33]
        if request_of == "state_dict":
            assert found["lost"].tolist() == [True, True, False, False]
        if request_of in ("call", "state_dict"):  # the loss is a row that is not valid
            assert got.valid.tolist() == [False, False, True, True]
        else:
            assert got.valid.all()
        if request_of == "load_state_dict":
            assert found.shape == (4, 3)
            assert kept == InProcessVectorEnv.describe(alone_at(state), 3)


def alone_at(state):
    envs = InProcessVectorEnv(world(), 4)
    envs.load_state_dict(state)
    return envs


@pytest.mark.slow
def test_calls_are_repeated_to_new_workers_in_their_order():
    with pool(world()) as envs:
        envs.call("set_level", 7)
        envs.reset("x")
        kill_idle(envs)
        envs.step(ZEROS)
        assert envs.call("get_wrapper_attr", "levels")[0][-1] == 7


@pytest.mark.slow
def test_a_state_that_cannot_be_restored_leaves_environments_that_can_be_reset():
    with pool(world(fault=lambda result: (np.random.random(3), *result[1:]), at=range(9))) as envs:
        envs.reset("x")
        state = envs.state_dict()
        with pytest.raises(CheckpointError, match="deterministic"):
            envs.load_state_dict(state)
        envs.reset("x")
        envs.step(ZEROS)


# ---------------------------------------------------------------------- budgets and errors


@pytest.mark.parametrize("share", [0.3, pytest.param(0.01, marks=pytest.mark.slow)])
def test_restarts_are_a_share_of_the_episodes_and_each_is_said(share):
    with pool(world(), restart_share=share) as envs:
        envs.reset("x")

        def kill_often(times):
            for _ in range(times):
                kill_idle(envs)
                [envs.step(ZEROS) for _ in range(9)]  # an episode of each worker ends

        kill_often(3)
        assert (envs.restarts, len(envs.lines)) == (3, 3)
        if share == 0.3:
            kill_often(4)
            assert envs.restarts == 7
            return
        with pytest.raises(EnvWorkerError, match="restart_share=0.01"):
            kill_often(1)
        assert not envs._workers
        with pytest.raises(EnvError, match="reset"):
            envs.step(ZEROS)


def test_a_worker_that_steps_between_its_failures_is_replaced_as_often_as_the_share_allows():
    with pool(world(fault="raise", at=[2]), num_envs=2, num_workers=1, restart_share=100.0) as envs:
        envs.reset("x")
        while envs.restarts < LEAST_RESTARTS + 2:
            envs.step(ZEROS[:2])


@pytest.mark.slow
def test_an_environment_that_always_fails_ends_the_run_within_the_budget():
    with (
        pool(world(fault="kill", at=[0], only=1)) as envs,
        pytest.raises(EnvWorkerError, match="restart_share"),
    ):
        envs.reset("x")


def test_a_broken_contract_is_an_error_at_once_and_keeps_its_kind():
    with pool(world(fault=lambda result: result[:4], at=[2], only=1)) as envs:
        envs.reset("x")
        envs.step(ZEROS)
        with pytest.raises(EnvContractError, match="step returned 4 values"):
            [envs.step(ZEROS) for _ in range(9)]
        assert envs.restarts == 0
        assert not envs._workers


def test_a_failed_start_is_an_error_at_once_and_leaves_nothing(monkeypatch):
    monkeypatch.setattr("ding_lite.envs.workers.vector_env.START_SECONDS", 1.0)
    began = time.monotonic()
    with pytest.raises(EnvWorkerError, match="reset_timeout=1 s, while making"):
        SubprocessVectorEnv(
            world(fault="hang", at=["make"], only=3), 4, num_workers=2, reset_timeout=1.0, restart_share=1.0
        )
    assert time.monotonic() - began < 30
    lock = threading.Lock()
    with pytest.raises(TypeError, match="cannot pickle"):
        SubprocessVectorEnv(lambda index: lock, 4)


@pytest.mark.slow
def test_environments_of_other_spaces_are_named():
    def make(index):
        return EpisodeRecorder(Scripted(index, actions="box" if index > 1 else "discrete"))

    with pytest.raises(EnvError, match="env 2 has other spaces than env 0"):
        SubprocessVectorEnv(make, 4, num_workers=2)


# ---------------------------------------------------------------------- interrupts, ends, leaks


def test_an_interrupted_step_ends_the_workers_and_a_reset_begins_anew():
    class Interrupt(Exception):
        pass

    def interrupt(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pool(world(fault="hang", at=[4]), step_timeout=60) as envs:
            begun, old = envs.reset("x").copy(), pids(envs)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(Interrupt):
                [envs.step(ZEROS) for _ in range(20)]
            assert not any(map(alive, old))
            assert envs.reset("x").tolist() == begun.tolist()
            assert envs.step(ZEROS).valid.all()
            assert envs.restarts == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


SCRIPT = """
import sys, time
sys.path[:0] = {paths!r}
from scripted import world
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
envs = SubprocessVectorEnv(world(fault="hang", at=[2]), 2, num_workers=2)
envs.reset("x")
print(*[worker.process.pid for worker in envs._workers], flush=True)
import numpy as np
{end}
"""
HANG = "envs.step(np.zeros(2, int)); envs.send(np.zeros(2, int)); time.sleep(100)"


@pytest.mark.parametrize("how", ["killed while workers hang", "exits without close"])
def test_workers_end_with_the_process_that_started_them(how):
    """The script has no ``if __name__ == "__main__"``."""
    end = HANG if how.startswith("killed") else "sys.exit(3)"
    script = SCRIPT.format(paths=[os.path.dirname(os.path.dirname(__file__))], end=end)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        if how.startswith("killed"):
            time.sleep(0.5)
            process.kill()
        assert process.wait(20) == (-9 if how.startswith("killed") else 3)
    until(lambda: not any(map(alive, workers)), seconds=10)


def test_close_is_bounded_kills_what_environments_started_and_can_be_called_twice(tmp_path):
    with pool(lambda index: EpisodeRecorder(Spawning(index, tmp_path))) as envs:
        envs.reset("x")
        started = [int(file.read_text()) for file in tmp_path.iterdir()]
        assert len(started) == 4
        assert all(map(alive, started))
    envs.close()
    until(lambda: not any(map(alive, started)), seconds=10)
    with pytest.raises(EnvError, match="closed"):
        envs.reset("x")


@pytest.mark.slow
def test_an_environment_that_hangs_in_close_is_killed_after_the_grace():
    began = time.monotonic()
    with pool(world(fault="hang", at=["close"])) as envs:
        envs.reset("x")
        workers = pids(envs)
    assert time.monotonic() - began < 20
    assert not any(map(alive, workers))


def test_a_worker_is_a_fresh_process_without_torch_and_with_one_thread():
    assert "torch" in sys.modules
    assert torch.get_num_threads() > 0
    with pool(world(), num_envs=2) as envs:
        (one, *kind), (other, *same_kind) = envs.call("process")
        assert kind == same_kind == [False, True, "1"]
        assert {one, other} == set(pids(envs))
