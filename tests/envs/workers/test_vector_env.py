"""Worker processes: the same transitions as in one process; every fault is bounded, typed and leaves nothing.

Real processes and real signals. The fixture ``no_leaks`` looks at children and descriptors after each test.
"""

import contextlib
import copy
import functools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import broken_worlds
import faulty_worlds as worlds
import numpy as np
import pytest
from ding_lite.envs.workers.messages import HEADER, Channel
from gymnasium.vector import SyncVectorEnv
from leaks import alive, no_leaks  # noqa: F401 (a fixture)
from same_transitions import assert_same, assert_same_rows, assert_same_transition, batches

from ding_lite.envs.in_process import AUTORESET, InProcessVectorEnv
from ding_lite.envs.native import NativeVectorEnv
from ding_lite.envs.recorder import EpisodeRecorder
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import CheckpointError, EnvContractError, EnvError, EnvWorkerError
from ding_lite.trees import map_tree

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@contextlib.contextmanager
def pool(make, num_envs=4, **kwargs):
    kwargs.setdefault("num_workers", 2)
    envs = SubprocessVectorEnv(make, num_envs, **kwargs)
    try:
        yield envs
    finally:
        start = time.monotonic()
        envs.close()
        assert time.monotonic() - start < envs.close_timeout + 2


def faulty(where, how):
    return functools.partial(worlds.faulty, where, how)


def discrete(num_envs=4):
    return np.arange(num_envs)


@pytest.mark.daily(3)
@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize(
    ("num_workers", "kind"), [(1, "dict"), (2, "discrete"), (2, "box"), (2, "tuple"), (2, "dict"), (3, "box")]
)
def test_the_same_transitions_as_in_one_process(num_workers, kind, autoreset):
    make = functools.partial(worlds.counting, kind)
    base = InProcessVectorEnv(make, 5, 7, autoreset)
    seen = {"terminated": 0, "truncated": 0, "invalid": 0}
    with pool(make, 5, seed=7, autoreset=autoreset, num_workers=num_workers) as envs:
        assert (envs.obs_space, envs.action_space) == (base.obs_space, base.action_space)
        for stream in (("collect",), ("evaluate", 3)):
            assert_same(envs.reset(*stream), base.reset(*stream))
            for _, action in zip(range(40), batches(kind, 5), strict=False):
                x, y = envs.step(action), base.step(action)
                assert_same_transition(x, y)
                assert_same(envs.episode_returns, base.episode_returns)
                assert_same(envs.episode_lengths, base.episode_lengths)
                assert [envs.describe(i) for i in range(5)] == [base.describe(i) for i in range(5)]
                seen["terminated"] += x.terminated.sum()
                seen["truncated"] += x.truncated.sum()
                seen["invalid"] += (~x.valid).sum()
    assert min(seen["terminated"], seen["truncated"]) > 10
    assert (seen["invalid"] > 0) == (autoreset == "next_step")


@pytest.mark.daily(1)
@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize(("num_workers", "kind"), [(1, "box"), (2, "dict"), (3, "box"), (5, "dict")])
def test_two_halves_give_the_transitions_of_the_whole(num_workers, kind, autoreset):
    make = functools.partial(worlds.counting, kind)
    base = InProcessVectorEnv(make, 5, 7, autoreset)
    options = dict(seed=7, autoreset=autoreset, num_workers=num_workers, double_buffer=True)
    with pool(make, 5, **options) as envs:
        assert [np.arange(5)[rows].tolist() for rows in envs.groups] == [[0, 2, 4], [1, 3]]
        assert_same(envs.reset("collect"), base.reset("collect"))
        actions, ended = batches(kind, 5), 0
        for t, action in zip(range(40), actions, strict=False):
            for group, rows in enumerate(envs.groups):
                envs.send(map_tree(lambda leaf, rows=rows: leaf[rows], action), group)
            whole = base.step(action)
            for group, rows in enumerate(envs.groups):
                part = envs.receive(group)
                assert_same_rows(part, rows, whole)
                ended += len(part.final_env)
            assert_same(envs.episode_lengths, base.episode_lengths)
            if t % 10 == 9:  # both at once is a step as any
                action = next(actions)
                assert_same_transition(envs.step(action), base.step(action))
        assert ended > 5
        assert_same(envs.state_dict()["obs"], base.state_dict()["obs"])


@pytest.mark.slow
def test_one_half_steps_while_the_other_is_acted_on():
    """Of one worker, so that nothing else can save time."""
    acted = []
    with pool(worlds.clocked, 4, num_workers=1, double_buffer=True) as envs:
        envs.reset("x")
        shown = [[], []]
        for t in range(10):
            for group in (0, 1):
                if t:
                    shown[group].append(envs.receive(group).obs.copy())
                began = time.monotonic()
                time.sleep(0.02)
                acted.append((began, time.monotonic()))
                envs.send(np.zeros(2, int), group)
        for group in (0, 1):
            envs.receive(group)
    steps = [step for one in shown for rows in one for step in rows.tolist()]
    beside = [any(a < end and begin < b for a, b in acted) for begin, end in steps]
    assert np.mean(beside) > 0.9


def test_whole_vectors_of_other_backends_are_sent_and_received_too():
    envs = InProcessVectorEnv(functools.partial(worlds.counting, "discrete"), 3)
    other = InProcessVectorEnv(functools.partial(worlds.counting, "discrete"), 3)
    envs.reset("x")
    other.reset("x")
    assert (len(envs.groups), envs.busy_cores) == (1, 0)
    for action, _ in zip(batches("discrete", 3), range(9), strict=False):
        envs.send(action)
        assert_same_transition(envs.receive(), other.step(action))


@pytest.mark.slow
def test_actions_of_another_dtype_reach_the_environments_as_they_are():
    make = functools.partial(worlds.counting, "box")
    base = InProcessVectorEnv(make, 4)
    with pool(make) as envs:
        envs.reset("x")
        base.reset("x")
        action = np.random.default_rng(0).uniform(-1, 1, (4, 2))  # float64: float32 would round it
        assert_same_transition(envs.step(action), base.step(action))
        assert_same_transition(envs.step(action.astype(np.float32)), base.step(action.astype(np.float32)))
    with pool(make, double_buffer=True, num_workers=3) as envs:
        envs.reset("x")
        base.reset("x")
        for group, rows in enumerate(envs.groups):
            envs.send(action[rows], group)
        whole = base.step(action)
        for group, rows in enumerate(envs.groups):
            assert_same_rows(envs.receive(group), rows, whole)


@pytest.mark.daily(2)
@pytest.mark.parametrize("autoreset", AUTORESET)
@pytest.mark.parametrize("way", ["to workers", "to one process", "other slices"])
def test_a_state_taken_in_mid_episode_goes_on_anywhere(way, autoreset):
    make = functools.partial(worlds.counting, "dict")
    one = functools.partial(InProcessVectorEnv, make, 5, 3, autoreset)
    many = functools.partial(SubprocessVectorEnv, make, 5, 3, autoreset)
    first, second = {
        "to workers": (one, functools.partial(many, num_workers=2)),
        "to one process": (functools.partial(many, num_workers=2), one),
        "other slices": (functools.partial(many, num_workers=3), functools.partial(many, num_workers=2)),
    }[way]
    with contextlib.closing(first()) as a, contextlib.closing(second()) as b:
        a.reset("collect")
        actions = batches("dict", 5)
        for _, action in zip(range(13), actions, strict=False):
            obs = a.step(action).obs
        state = a.state_dict()
        before = copy.deepcopy(state)
        assert_same(b.load_state_dict(state), obs)
        assert state.keys() == before.keys()
        assert state["envs"][0]["episode"] == before["envs"][0]["episode"]
        assert_same(a.episode_returns, b.episode_returns)
        for _, action in zip(range(20), actions, strict=False):
            assert_same_transition(a.step(action), b.step(action))
        del obs


@pytest.mark.slow
def test_a_state_that_cannot_be_brought_back_leaves_the_pool_usable():
    with pool(worlds.drifting) as envs:
        envs.reset("x")
        state = envs.state_dict()
        with pytest.raises(CheckpointError, match="not deterministic"):
            envs.load_state_dict(state)
        with pytest.raises(EnvError, match="reset"):
            envs.step(discrete() % 5)
        envs.reset("x")
        envs.step(discrete() % 5)
        with pytest.raises(CheckpointError, match="3 environments.* 4"):
            envs.load_state_dict({**state, "envs": state["envs"][:3]})


def test_killed_idle_worker_is_named():
    with pool(faulty("", ""), 8) as envs:
        envs.reset("x")
        os.kill(envs._pool.workers[1].process.pid, signal.SIGKILL)
        start = time.monotonic()
        with pytest.raises(EnvWorkerError) as caught:
            envs.step(discrete(8))
        assert time.monotonic() - start < 2.5
        assert str(caught.value) == "worker 1 (envs 4-7) died, exit code -9 (killed: out of memory?)"
        assert (caught.value.worker, caught.value.envs) == (1, (4, 5, 6, 7))
        assert isinstance(caught.value, EnvError)
        assert caught.value.exit_code == 3
        for call in (lambda: envs.step(discrete(8)), lambda: envs.reset("x"), envs.state_dict):
            with pytest.raises(EnvError, match="closed.*failure: worker 1"):
                call()


def test_a_worker_that_dies_before_its_first_request_names_no_environment_of_another():
    with pool(faulty("", ""), index_offset=8) as envs:
        os.kill(envs._pool.workers[1].process.pid, signal.SIGKILL)
        with pytest.raises(EnvWorkerError) as caught:
            envs.reset("x")
        assert str(caught.value) == "worker 1 (envs 10-11) died, exit code -9 (killed: out of memory?)"


@pytest.mark.daily(2)
@pytest.mark.parametrize(("how", "words"), [("kill", r"exit code -9 \(killed"), ("exit", "exit code 3")])
@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_worker_that_ends_itself_is_noticed_at_once(where, how, words):
    start = time.monotonic()
    with pytest.raises(EnvWorkerError, match=rf"worker 0 \(envs 0-1\) died, {words}") as caught:
        run_to_the_fault(faulty(where, how))
    assert time.monotonic() - start < 5
    if where != "init":
        assert ("episode 0, step 2" if where == "step" else "step 0") in str(caught.value)
        assert "in env 1 (seed " in str(caught.value)


def run_to_the_fault(make, backend=pool, **kwargs):
    with backend(make, **kwargs) as envs:
        envs.reset("x")
        for _ in range(3):
            envs.step(discrete())


@pytest.mark.daily(1)
@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_an_exception_says_which_environment_when_and_where_in_the_code(where):
    with pytest.raises(EnvWorkerError, match=f"env 1.*ValueError: broken in {where}") as caught:
        run_to_the_fault(faulty(where, "raise"))
    error = caught.value
    assert "faulty_worlds.py" in error.remote_traceback
    assert f"broken in {where}" in str(error.__cause__)
    assert error.worker == 0
    if where == "step":
        assert error.envs == (1,)
        assert "(seed " in str(error)
        assert "episode 0, step 2), action 1:" in str(error)


@pytest.mark.daily(1)
@pytest.mark.parametrize("where", ["init", "reset", "step"])
@pytest.mark.parametrize("how", ["raise", "sys.exit"])
def test_a_message_is_the_same_as_in_one_process(where, how):
    """A call of sys.exit is a fault like any other: it must not end the run without a message."""
    message = r"env 1 .*: (ValueError|SystemExit).*\(at faulty_worlds.py:\d+\)"
    with pytest.raises(EnvError, match=message) as here:
        run_to_the_fault(faulty(where, how), in_process)
    with pytest.raises(EnvWorkerError) as there:
        run_to_the_fault(faulty(where, how))
    assert str(there.value).removeprefix("worker 0 (envs 0-1): ") == str(here.value)


@pytest.mark.slow
def test_an_error_of_the_library_keeps_its_kind():
    with pytest.raises(EnvContractError, match=r"env 1 .*shape \(3,\)"):
        run_to_the_fault(faulty("shape", ""))
    with pytest.raises(EnvError, match="env 2 .*observation_space"), pool(worlds.uneven):
        pass
    with pytest.raises(EnvError, match="env 2 .*observation_space"), pool(worlds.uneven, num_workers=1):
        pass


@pytest.mark.slow
def test_environments_with_different_spaces_are_named_by_their_numbers_in_the_whole_vector():
    expected = pytest.raises(EnvError, match="env 2 has the observation_space .*, env 1 ")
    with expected, pool(worlds.uneven, num_envs=2, index_offset=1):
        pass


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "env", [broken_worlds.ThreeValues, broken_worlds.NoInfo, broken_worlds.SeedlessReset]
)
def test_a_break_of_the_api_ends_the_pool_at_once(env):
    """A new worker would do it again."""
    with pool(lambda index: EpisodeRecorder(env()), 2, max_restarts=3) as envs:
        with pytest.raises(EnvContractError, match=r"env [01] .*(returned 3|NoneType|'seed')"):
            envs.reset("x"), envs.step(discrete(2))
        assert envs.restarts == 0


@pytest.mark.daily(1)
@pytest.mark.parametrize("where", ["init", "reset", "step"])
def test_a_hanging_environment_is_killed_and_named(where):
    limit = {"init": "start", "reset": "reset", "step": "step"}[where] + "_timeout"
    start = time.monotonic()
    with pytest.raises(EnvWorkerError, match=rf"worker 0 \(envs 0-1\) .*{limit}=") as caught:
        run_to_the_fault(faulty(where, "hang"), **{limit: 1.5 if where == "init" else 0.3})
    assert time.monotonic() - start < 5
    assert "worker 1" not in str(caught.value)
    if where == "step":
        assert "in env 1 (seed" in str(caught.value)


@pytest.mark.slow
def test_a_hanging_close_is_cut():
    with pool(faulty("close", "hang"), close_timeout=0.5) as envs:
        envs.reset("x")
        start = time.monotonic()
        envs.close()
        assert time.monotonic() - start < 5


def test_an_unclosed_pool_ends_with_its_object():
    envs = SubprocessVectorEnv(faulty("", ""), 4, num_workers=2)
    del envs  # no_leaks looks


class Interrupt(Exception):
    pass


def interrupt(*_):
    raise Interrupt


@pytest.mark.slow
def test_a_late_reply_is_never_returned():
    with pool(faulty("step", "slow")) as envs:
        envs.reset("x")
        envs.step(discrete())
        previous = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(Interrupt):
                envs.step(discrete())  # the second step of env 1 takes 0.6 s
        finally:
            signal.signal(signal.SIGALRM, previous)
        with pytest.raises(EnvError, match="reset"):
            envs.step(discrete())
        assert envs.reset("x").tolist() == [[0, 0]] * 4
        transition = envs.step(np.full(4, 9))
        assert transition.obs.tolist() == [[1, 9]] * 4
        assert transition.reward.tolist() == [9] * 4
        del transition


@pytest.mark.slow
def test_the_environment_that_raised_is_named_while_its_worker_goes_on_with_the_other_half():
    with pool(faulty("step", "raise"), double_buffer=True, num_workers=1) as envs:
        envs.reset("x")
        for _ in range(2):
            for group in (0, 1):
                envs.send(np.zeros(2, int), group)
            if envs.receive(0).obs[0, 0] == 2:
                break
            envs.receive(1)
        envs.send(np.zeros(2, int), 0)
        time.sleep(0.3)  # by now it is idle
        with pytest.raises(EnvWorkerError, match=r"env 1 \(seed \d+, episode 0, step 2\)") as caught:
            envs.receive(1)
        assert caught.value.envs == (1,)


def sliced(size, num_envs, index):
    return EpisodeRecorder(worlds.Wide(size))


@pytest.mark.slow
@pytest.mark.parametrize("double_buffer", [False, True])
def test_large_answers_that_wait_beyond_their_deadline_are_still_read(double_buffer):
    """They are larger than a socket holds."""
    make = functools.partial(sliced, 100_000, 4)
    with pool(make, step_timeout=0.5, double_buffer=double_buffer) as envs:
        envs.reset("x")
        groups = range(len(envs.groups))
        for group in groups:
            envs.send(np.zeros((4 // len(groups), 1), np.float32), group)
        time.sleep(1.0)
        for group in groups:
            transition = envs.receive(group)
            assert transition.truncated.all()
            assert (transition.final_obs == 1).all()
        assert envs.restarts == 0
        del transition


@pytest.mark.slow
def test_large_messages_that_cross_each_other_are_both_read():
    """Last observations one way, actions of another dtype the other way: more than the sockets hold."""
    make = functools.partial(sliced, 100_000, 4)
    with pool(make, step_timeout=5.0, double_buffer=True, num_workers=1) as envs:
        envs.reset("x")
        envs.send(np.zeros((2, 1), np.float32), 0)
        time.sleep(0.3)
        began = time.monotonic()
        envs.send(np.zeros((2, 1_000_000)), 1)  # of another shape, too: the environment does not mind
        assert (envs.receive(0).final_obs == 1).all()
        assert (envs.receive(1).final_obs == 1).all()
        assert time.monotonic() - began < 4


def test_messages_that_came_during_a_send_are_received_one_by_one():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        channel = Channel(ours)
        channel.received_early = HEADER.pack(1, 2, 5) + b"early" + HEADER.pack(3, 4, 0)
        deadline = time.monotonic() + 1
        assert channel.receive(deadline) == (1, 2, b"early")
        assert channel.receive(deadline) == (3, 4, b"")
        assert not channel.in_message


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["waiting", "counting", "between"])
def test_an_interrupted_half_needs_a_reset(moment, monkeypatch):
    with pool(faulty("step", "slow"), double_buffer=True, num_workers=1) as envs:
        envs.reset("x")
        pair = np.zeros(2, int)
        envs.send(pair, 0)
        envs.send(pair, 1)
        with monkeypatch.context() as patch:
            if moment == "waiting":
                patch.setattr(envs._pool, "answers", interrupt)
            elif moment == "counting":
                patch.setattr(envs, "_count_bad_values", interrupt)
            if moment != "between":
                with pytest.raises(Interrupt):
                    envs.receive(0)
        if moment == "between":
            with pytest.raises(EnvError, match="has not been received"):
                envs.step(discrete())
        else:
            for call in (lambda: envs.send(pair, 0), lambda: envs.receive(1), envs.state_dict):
                with pytest.raises(EnvError, match="reset"):
                    call()
        assert envs.reset("y").tolist() == [[0, 0]] * 4
        envs.send(pair, 0)
        assert envs.receive(0).obs.tolist() == [[1, 0]] * 2


@pytest.mark.slow
def test_a_step_of_all_that_was_interrupted_leaves_no_half_to_send(monkeypatch):
    with pool(faulty("", ""), double_buffer=True) as envs:
        envs.reset("x")
        with monkeypatch.context() as patch:
            patch.setattr(envs, "_end_step", interrupt)
            with pytest.raises(Interrupt):
                envs.step(discrete())
        with pytest.raises(EnvError, match="not been received.*reset"):
            envs.send(np.zeros(2, int), 0)


def in_process(make):
    return contextlib.closing(InProcessVectorEnv(make, 4))


def native(make):
    return contextlib.closing(NativeVectorEnv(SyncVectorEnv([functools.partial(make, i) for i in range(4)])))


@pytest.mark.daily(1)
@pytest.mark.parametrize("backend", [pool, in_process, native])
def test_calls_out_of_order_are_refused_alike(backend):
    with backend(faulty("", "")) as envs:
        for call in (lambda: envs.step(discrete()), lambda: envs.send(discrete()), envs.receive):
            with pytest.raises(EnvError, match=r"not been reset.*reset\(\) or load_state_dict\(\)"):
                call()
        envs.reset("x")
        with pytest.raises(EnvError, match="group 0 .*no step"):
            envs.receive()
        envs.send(discrete())
        with pytest.raises(EnvError, match=r"group 0 .*receive\(0\)"):
            envs.send(discrete())
        with pytest.raises(EnvError, match="not been received.*reset"):
            envs.step(discrete())
        assert envs.receive().obs[:, 0].tolist() == [1] * 4  # none of them has changed anything
        with pytest.raises(EnvError, match="group 0 .*no step"):
            envs.receive()
        envs.send(discrete())
        assert envs.reset("x")[:, 0].tolist() == [0] * 4  # the step that was sent is discarded
        assert envs.step(discrete()).obs[:, 0].tolist() == [1] * 4
        envs.close()
        envs.close()
        calls = (lambda: envs.step(discrete()), lambda: envs.send(discrete()), envs.receive, envs.reset)
        for call in (*calls, lambda: envs.load_state_dict({"envs": []})):
            with pytest.raises(EnvError, match="closed"):
                call()


@pytest.mark.daily(1)
@pytest.mark.parametrize("backend", [pool, in_process])
def test_actions_of_another_number_than_the_environments_are_refused_before_any_steps(backend):
    with backend(faulty("", "")) as envs:
        envs.reset("x")
        for count in (3, 5):
            with pytest.raises(EnvError, match=f"{count} actions for 4 environments"):
                envs.step(discrete(count))
        assert envs.step(discrete()).obs[:, 0].tolist() == [1] * 4


def test_what_is_no_batch_of_actions_is_refused_before_any_steps():
    with in_process(functools.partial(worlds.counting, "dict")) as envs:
        envs.reset("x")
        for batch in (
            None,
            3,
            {"a": np.zeros((4, 2), int)},
            {"a": np.zeros((4, 2), int), "b": np.zeros(3, int)},
        ):
            with pytest.raises(EnvError, match="4 environments.*Dict"):
                envs.step(batch)
        assert not envs.episode_lengths.any()


def test_closed_pool_raises_from_every_property():
    with pool(faulty("", "")) as envs:
        envs.reset("x")
        envs.close()
        for call in (envs.state_dict, lambda: envs.episode_returns):
            with pytest.raises(EnvError, match="closed"):
                call()
        assert envs.describe(2) == "env 2"


@pytest.mark.slow
def test_halves_out_of_turn():
    with pool(faulty("step", "slow"), double_buffer=True, num_workers=1) as envs:
        pair = np.zeros(2, int)
        with pytest.raises(EnvError, match="not been reset"):
            envs.send(pair, 0)
        envs.reset("x")
        with pytest.raises(EnvError, match="group 0 .*no step"):
            envs.receive(0)
        with pytest.raises(EnvError, match="4 actions for 2 environments"):
            envs.send(discrete(), 1)
        envs.send(pair, 0)
        envs.send(pair, 1)
        with pytest.raises(EnvError, match=r"group 1 .*receive\(1\)"):
            envs.send(pair, 1)
        with pytest.raises(EnvError, match="group 1 .*another group"):
            envs.receive(1)
        for call in (lambda: envs.step(discrete()), envs.state_dict):
            with pytest.raises(EnvError, match="not been received.*reset"):
                call()
        assert envs.receive(0).obs.tolist() == [[1, 0]] * 2  # none of them has changed anything
        envs.send(pair, 0)
        # The answers that are on their way are dropped; the second step of env 1 takes 0.6 s.
        assert envs.reset("y").tolist() == [[0, 0]] * 4
        envs.send(np.full(2, 7), 1)
        assert envs.receive(1).obs.tolist() == [[1, 7]] * 2
        assert envs.step(discrete()).obs.tolist() == [[1, 0], [2, 1], [1, 2], [2, 3]]
        envs.send(pair, 0)
    with pytest.raises(EnvError, match="closed"):
        envs.receive(0)


@pytest.mark.slow
def test_workers_are_light_and_leave_ctrl_c_to_the_parent():
    import torch  # noqa: F401 (here, so that a worker could inherit it)

    with pool(worlds.witness) as envs:
        assert envs.reset("x").tolist() == [[0, 1, 1, 0]] * 4
        assert envs.backend == "4 environments in 2 worker processes"
        for worker in envs._pool.workers:
            os.kill(worker.process.pid, signal.SIGINT)
        envs.step(np.zeros(4, int))


def test_a_factory_that_cannot_be_sent():
    lock = threading.Lock()
    with pytest.raises(EnvError, match="worker.*env.manager.type='base'"):
        SubprocessVectorEnv(lambda index: lock, 2)


def test_bad_arguments():
    for bad in (dict(autoreset="never"), dict(num_workers=0)):
        with pytest.raises(ValueError, match="autoreset|at least 1"):
            SubprocessVectorEnv(faulty("", ""), 2, **bad)
    with pool(faulty("", ""), 1, double_buffer=True) as envs:  # one environment has no halves
        assert (len(envs.groups), envs.busy_cores) == (1, 0)
    with pool(faulty("", ""), 2, num_workers=9) as envs:
        assert envs.backend == "2 environments in 2 worker processes"


# ---- what needs a parent of its own

SCRIPT = """
    import functools, os, resource, signal, sys, time
    import gymnasium as gym, numpy as np
    from ding_lite.envs.recorder import EpisodeRecorder
    from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
    import faulty_worlds as worlds
"""


def script(body, **kwargs):
    """Starts a script that has no ``if __name__ == "__main__"``."""
    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join([str(root), str(Path(__file__).parents[1])])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SCRIPT) + textwrap.dedent(body)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


@pytest.mark.slow
@pytest.mark.parametrize("thread", ["main", "another"])
@pytest.mark.parametrize("doing", ["nothing", "a step that hangs"])
def test_no_worker_outlives_a_killed_parent(doing, thread):
    body = f"""
        import threading
        envs = []
        make = functools.partial(worlds.faulty, "step", "hang")
        start = lambda: envs.append(SubprocessVectorEnv(make, 4, num_workers=2, close_timeout=2))
        if {thread == "main"}:
            start()
        else:  # a worker must outlive the thread that made it
            maker = threading.Thread(target=start); maker.start(); maker.join(); time.sleep(0.3)
        envs[0].reset("x")
        envs[0].step(np.zeros(4, int))
        print(*[w.process.pid for w in envs[0]._pool.workers], flush=True)
        if {doing != "nothing"}:
            envs[0].step(np.zeros(4, int))
        time.sleep(100)
    """
    with script(body) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        time.sleep(0.2)
        parent.kill()
        deadline = time.monotonic() + 5
        while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(alive(pid) for pid in pids)


def test_a_plain_script_needs_no_guard_and_may_define_its_environments():
    body = """
        class Mine(worlds.Counting):
            def __init__(self, index):
                super().__init__(index)
                self.metadata = {"np": np.__version__}

        bonus = 2
        envs = SubprocessVectorEnv(lambda index: EpisodeRecorder(Mine(index + bonus)), 3, num_workers=2)
        envs.reset("x")
        print(envs.step(np.zeros(3, int)).reward.shape)
        # not closed: the end of the interpreter does it
    """
    with script(body) as parent:
        out, err = parent.communicate(timeout=30)
    assert (parent.returncode, out.strip(), err) == (0, "(3,)", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [("RLIMIT_NOFILE", 12, "ulimit -n"), ("RLIMIT_FSIZE", 4096, "ulimit -f")],
)
def test_a_limit_of_the_machine_is_named(limit, value, words):
    body = f"""
        from ding_lite.errors import EnvError
        make = functools.partial(worlds.counting, "box")
        resource.setrlimit(resource.{limit}, ({value}, {value}))
        try:
            SubprocessVectorEnv(make, 64, num_workers={12 if limit == "RLIMIT_NOFILE" else 2})
        except EnvError as error:
            print(error)
    """
    with script(body) as parent:
        out, err = parent.communicate(timeout=30)
    assert parent.returncode == 0, err
    assert words in out
    assert str(value) in out
