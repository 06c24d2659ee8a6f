"""Workers that are killed, hang, end or raise are replaced, without a mix-up, a leak or an endless loop.

Real processes and real signals. Observations of the test environment hold its episode, so a mix-up shows.
"""

import contextlib
import functools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import faulty_worlds
import numpy as np
import pytest
from chains import check_chain
from leaks import alive, no_leaks  # noqa: F401 (a fixture)
from worlds import policy_for

from ding_lite.cli import main
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluator
from ding_lite.envs.in_process import InProcessVectorEnv
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvContractError, EnvError, EnvWorkerError

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

ZEROS = np.zeros(4, int)


def world(**faults):
    return functools.partial(faulty_worlds.marked, faults)


@contextlib.contextmanager
def pool(make, num_envs=4, num_workers=2, max_restarts=3, **kwargs):
    envs = SubprocessVectorEnv(make, num_envs, num_workers=num_workers, max_restarts=max_restarts, **kwargs)
    envs.lines = []
    envs.say = envs.lines.append
    envs.tracebacks = []
    envs.explain = envs.tracebacks.append
    with contextlib.closing(envs):
        yield envs


def pids(envs):
    return [worker.process.pid for worker in envs._pool.workers]


# ---- one fault, after which stepping goes on


def kill_idle(envs):
    os.kill(pids(envs)[0], signal.SIGKILL)


def stop(envs):
    os.kill(pids(envs)[0], signal.SIGSTOP)


@pytest.mark.daily(3)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("kill", "worker 0 (envs 0-1) died, exit code -9 (killed: out of memory?), in env 1 (seed "),
        ("crash", "RuntimeError: a crash on purpose, at step 3. worker 0 (envs 0-1)"),
        ("hang", "step_timeout=1 s, in env 1 (seed "),
        (kill_idle, "worker 0 (envs 0-1) died, exit code -9 (killed: out of memory?). worker 0"),
        (stop, "step_timeout=1 s. "),
    ],
    ids=["kill", "crash", "hang", "killed idle", "SIGSTOP"],
)
def test_a_worker_is_replaced_and_its_step_left_out(tmp_path, fault, cause, autoreset):
    at = {fault: [3]} if isinstance(fault, str) else {}
    make = world(at=at, once=str(tmp_path), envs=[1])
    alone = InProcessVectorEnv(world(), 4, autoreset=autoreset)
    with pool(make, step_timeout=1.0, autoreset=autoreset) as envs:
        shown = envs.reset("x").copy()
        expected = alone.reset("x").copy()
        assert shown.tolist() == expected.tolist()
        lost, old = 0, pids(envs)[0]
        for t in range(8):
            if t == 2 and callable(fault):
                fault(envs)
            names = shown[:, 0].copy()
            transition, reference = envs.step(ZEROS), alone.step(ZEROS)
            shown = transition.obs.copy()
            # The other worker's rows are as if nothing had been.
            assert shown[2:].tolist() == reference.obs[2:].tolist()
            assert transition.valid[2:].tolist() == reference.valid[2:].tolist()
            if envs.restarts == 1 and not lost:
                lost = t + 1
                assert not transition.valid[:2].any()
                assert not (transition.terminated | transition.truncated)[:2].any()
                assert transition.reward[:2].tolist() == [0, 0]
                assert shown[:2, 1].tolist() == [0, 0]  # of new episodes
                assert not set(shown[:2, 0]) & set(names[:2])
                assert envs.episode_lengths[:2].tolist() == [0, 0]
        assert lost
        assert (envs.restarts, len(envs.lines)) == (1, 1)
        assert cause in envs.lines[0]
        assert envs.lines[0].startswith(("worker 0 (envs 0-1) ", "env 1 "))
        assert "2 of 3 restarts" in envs.lines[0]
        assert len(envs.tracebacks) == (fault == "crash")  # the others leave none
        assert not alive(old)
        del transition


@pytest.mark.slow
def test_the_late_answer_of_a_replaced_worker_is_dropped(tmp_path):
    make = world(at={"hang": [2]}, hang_s=0.8, once=str(tmp_path), envs=[1])
    with pool(make, step_timeout=0.5) as envs:
        envs.reset("x")
        envs.step(ZEROS)
        begun = envs.step(ZEROS).obs.copy()
        assert envs.restarts == 1
        time.sleep(0.5)  # it would have answered
        for count in (1, 2, 3):
            transition = envs.step(ZEROS)
            open_still = envs.episode_lengths == count
            assert transition.obs[:2][open_still[:2]].tolist() == [
                [name, count] for name, _ in begun[:2][open_still[:2]]
            ]
        assert envs.restarts == 1
        del transition


MOMENTS = ["both sent", "one sent", "one received", "none sent"]


def halves_of_each_step(envs, steps, moment):
    """Steps both halves so often, and yields (t, group, transition); kills worker 0 in step 1."""

    def pass_by(t, here):
        if (t, here) == (1, moment):
            kill_idle(envs)

    for t in range(steps):
        envs.send(ZEROS[:2], 0)
        pass_by(t, "one sent")
        envs.send(ZEROS[:2], 1)
        pass_by(t, "both sent")
        yield t, 0, envs.receive(0)
        pass_by(t, "one received")
        yield t, 1, envs.receive(1)
        pass_by(t, "none sent")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_worker_that_is_lost_between_two_halves_is_left_out_of_both_once(moment):
    """Row 0 of each half belongs to the lost worker.

    Its new episodes are stepped only after the row that reports the loss.
    """
    alone = InProcessVectorEnv(world(), 4)
    alone.reset("x")
    expected = [alone.step(ZEROS).obs.copy() for _ in range(5)]
    lost, begun = [None, None], [None, None]
    with pool(world(), 4, 2, double_buffer=True) as envs:
        envs.reset("x")
        for t, group, transition in halves_of_each_step(envs, 5, moment):
            own, other = transition.obs.tolist()
            assert (other, transition.valid[1]) == (expected[t][2 + group].tolist(), True)
            if not transition.valid[0]:
                assert lost[group] is None, "twice"
                lost[group], begun[group] = t, own[0]
                assert own[1] == transition.reward[0] == 0
            elif lost[group] is None:
                assert own == expected[t][group].tolist()
            elif own[0] == begun[group]:  # still the first episode
                assert own[1] == t - lost[group]
        assert envs.restarts == 1
        del transition
    # An answer that was on its way when the worker died may or may not be read.
    possible = {"both sent": {1, 2}, "one sent": {1, 2}, "one received": {1, 2}, "none sent": {2}}
    assert set(lost) <= possible[moment]


@pytest.mark.slow
def test_a_loss_that_one_half_has_not_reported_is_reported_by_the_next_step_of_all():
    """No environment of that worker is stepped before the report, and no step is returned twice."""
    with pool(world(), 6, 2, double_buffer=True) as envs:
        envs.reset("x")
        envs.step(np.zeros(6, int))
        os.kill(pids(envs)[1], signal.SIGKILL)  # that of envs 3, 4 and 5
        for _ in range(2):
            envs.send(np.zeros(3, int), 0)
            transition = envs.receive(0)  # envs 0, 2, 4
        assert transition.valid.all()
        before = transition.obs[2].tolist()
        whole = envs.step(np.zeros(6, int))
        assert whole.valid.tolist() == [True] * 3 + [False] * 3
        assert whole.obs[4].tolist() == before
        assert envs.step(np.zeros(6, int)).valid.all()
        del transition, whole


@pytest.mark.slow
def test_a_state_holds_a_loss_that_one_half_has_not_reported():
    with pool(world(), 4, 2, double_buffer=True) as envs, pool(world(), 4, 2, double_buffer=True) as other:
        envs.reset("x")
        envs.step(ZEROS)
        kill_idle(envs)
        envs.send(ZEROS[:2], 0)
        assert envs.receive(0).valid.tolist() == [False, True]
        assert other.load_state_dict(envs.state_dict()).tolist() == envs._shared.obs.tolist()
        for one in (envs, other):
            one.send(ZEROS[:2], 1)
            transition = one.receive(1)
            assert transition.valid.tolist() == [False, True]
            assert transition.obs[0, 1] == 0
        del transition


@pytest.mark.slow
def test_two_workers_that_die_at_once_are_both_replaced():
    with pool(world(), 6, 3) as envs:
        envs.reset("x")
        for pid in pids(envs)[:2]:
            os.kill(pid, signal.SIGKILL)
        transition = envs.step(np.zeros(6, int))
        assert transition.valid.tolist() == [False] * 4 + [True] * 2
        assert (envs.restarts, len(envs.lines)) == (2, 2)
        assert envs.step(np.zeros(6, int)).valid.sum() >= 4
        del transition


@pytest.mark.slow
def test_a_fault_in_a_reset_begins_the_next_episode(tmp_path):
    once = world(at={"kill": [0]}, once=str(tmp_path), envs=[1])
    with pool(once) as envs:
        obs = envs.reset("x")
        assert obs[:, 1].tolist() == [0] * 4
        assert "in env 1 (seed" in envs.lines[0]
        assert "episode 1, step 0" in envs.describe(1)
        assert "episode 0, step 0" in envs.describe(2)
        assert envs.step(ZEROS).valid.all()
        del obs


@pytest.mark.slow
def test_a_worker_killed_before_its_state_is_asked_has_the_state_of_its_new_episodes():
    with pool(world()) as envs:
        obs = envs.reset("x")
        envs.step(ZEROS)
        kill_idle(envs)
        state = envs.state_dict()
        assert obs[:2, 1].tolist() == [0, 0]  # what the policy sees next
        assert [one["actions"] is None for one in state["envs"]] == [True, True, False, False]
        other = InProcessVectorEnv(world(), 4)
        assert other.load_state_dict(state).tolist() == obs.tolist()
        del obs


@pytest.mark.slow
def test_a_worker_that_dies_while_episodes_are_brought_back_is_asked_again(tmp_path):
    one = InProcessVectorEnv(world(), 4)
    one.reset("x")
    for _ in range(3):
        obs = one.step(ZEROS).obs
    with pool(world(at={"kill": [0]}, once=str(tmp_path), envs=[3])) as envs:
        assert envs.load_state_dict(one.state_dict()).tolist() == obs.tolist()
        assert envs.restarts == 1
        for _ in range(20):
            assert envs.step(ZEROS).obs.tolist() == one.step(ZEROS).obs.tolist()


@pytest.mark.slow
def test_what_an_environment_has_started_ends_with_its_worker(tmp_path):
    with pool(functools.partial(faulty_worlds.spawning, tmp_path), 2) as envs:
        envs.reset("x")
        first = int((tmp_path / str(pids(envs)[0])).read_text())
        assert alive(first)
        kill_idle(envs)
        envs.step(np.zeros(2, int))
        deadline = time.monotonic() + 5
        while alive(first) and time.monotonic() < deadline:
            time.sleep(0.02)
        started = [int(path.read_text()) for path in tmp_path.iterdir()]
        assert [alive(pid) for pid in started].count(True) == 2
        assert not alive(first)


def test_without_a_listener_a_restart_is_a_warning():
    with pool(world()) as envs:
        del envs.say
        envs.reset("x")
        kill_idle(envs)
        with pytest.warns(
            RuntimeWarning,
            match=r"worker 0 \(envs 0-1\) .*\(0 steps\)",
        ):
            envs.step(ZEROS)


# ---- the budget


def step_for_ever(envs):
    while True:
        envs.reset("x")
        envs.step(ZEROS)


@pytest.mark.daily(1)
@pytest.mark.parametrize("step", [0, 1], ids=["reset", "step"])
@pytest.mark.parametrize("fault", ["crash", "kill", "hang"])
def test_an_environment_that_always_fails_ends_the_pool(fault, step):
    limits = dict(reset_timeout=1.0, step_timeout=1.0)
    with pool(world(at={fault: [step]}, envs=[2]), max_restarts=2, **limits) as envs:
        with pytest.raises(EnvWorkerError, match="max_restarts") as caught:
            step_for_ever(envs)
        assert "2 were replaced within the last 100,000 steps" in str(caught.value)
        assert "env 2 (seed" in str(caught.value)
        assert caught.value.worker == 1
        assert ("faulty.py" in caught.value.remote_traceback) == (fault == "crash")
        assert [re.findall(r"\d of 2 restarts", line) for line in envs.lines] == [
            ["1 of 2 restarts"],
            ["0 of 2 restarts"],
        ]
        with pytest.raises(EnvError, match="closed.*failure"):
            envs.step(ZEROS)


@pytest.mark.slow
def test_a_step_of_two_halves_is_one_of_the_window():
    with pool(world(), max_restarts=1, restart_window=4, double_buffer=True) as envs:
        envs.reset("x")
        kill_idle(envs)
        for _ in range(4):
            for group in (0, 1):
                envs.send(ZEROS[:2], group)
                envs.receive(group)
        assert (envs.restarts, envs._pool.budget.left) == (1, 0)
        envs.send(ZEROS[:2], 0)
        assert envs._pool.budget.left == 1


@pytest.mark.slow
def test_the_budget_is_of_a_window_of_steps():
    with pool(world(), max_restarts=1, restart_window=5) as envs:
        envs.reset("x")
        for _ in range(3):
            for _ in range(5):
                envs.step(ZEROS)
            kill_idle(envs)
            envs.step(ZEROS)
        assert envs.restarts == 3
        kill_idle(envs)
        with pytest.raises(EnvWorkerError, match="last 5 steps.*max_restarts"):
            envs.step(ZEROS)


@pytest.mark.slow
def test_environments_that_cannot_be_made_again_use_up_the_budget(tmp_path):
    with pool(functools.partial(faulty_worlds.made_once, tmp_path), max_restarts=2) as envs:
        envs.reset("x")
        kill_idle(envs)
        with pytest.raises(EnvWorkerError, match="env 0 .*FileExistsError.*max_restarts"):
            envs.step(ZEROS)
        assert len(envs.lines) == 2


@pytest.mark.daily(1)
@pytest.mark.parametrize("fault", ["nan_reward", "bad_shape"])
def test_a_broken_contract_is_no_matter_of_restarts(fault):
    words = {"nan_reward": "reward = nan", "bad_shape": r"shape \(1, 2\)"}[fault]
    with pool(world(at={fault: [2]}, envs=[1])) as envs:
        envs.reset("x")
        envs.step(ZEROS)
        with pytest.raises(EnvContractError, match=rf"env 1 \(seed \d+, episode 0, step 2\), .*{words}"):
            envs.step(ZEROS)
        assert envs.restarts == 0


@pytest.mark.slow
def test_a_worker_that_cannot_be_started_again_ends_the_pool_with_the_limit_that_was_hit():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with pool(world()) as envs:
        envs.reset("x")
        others = pids(envs)[1:]
        kill_idle(envs)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
            with pytest.raises(EnvError, match=r"worker 0 \(envs 0-1\).*ulimit -n"):
                envs.step(ZEROS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert not any(map(alive, others))


@pytest.mark.slow
def test_an_interrupted_replacement_closes_the_pool():
    def interrupt(line):
        raise KeyboardInterrupt

    with pool(world()) as envs:
        envs.reset("x")
        envs.say = interrupt
        kill_idle(envs)
        with pytest.raises(KeyboardInterrupt):
            envs.step(ZEROS)
        with pytest.raises(EnvError, match="closed.*KeyboardInterrupt"):
            envs.reset("x")


# ---- collector, evaluator and whole runs


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("num_workers", "double_buffer", "autoreset"),
    [
        (3, False, "same_step"),
        (3, True, "next_step"),
        pytest.param(3, False, "next_step", marks=pytest.mark.slow),
        pytest.param(3, True, "same_step", marks=pytest.mark.slow),
        pytest.param(1, True, "same_step", marks=pytest.mark.slow),
        pytest.param(1, True, "next_step", marks=pytest.mark.slow),
        pytest.param(6, True, "same_step", marks=pytest.mark.slow),
        pytest.param(6, True, "next_step", marks=pytest.mark.slow),
    ],
)
def test_no_transition_of_a_rollout_crosses_a_restart(autoreset, num_workers, double_buffer):
    make = world(crash=0.03, kill=0.01, hang=0.002, seed=3)
    options = dict(autoreset=autoreset, max_restarts=100, step_timeout=0.5, reset_timeout=0.5)
    with pool(make, 6, num_workers, double_buffer=double_buffer, **options) as envs:
        collector = Collector(envs, policy_for(envs).collect_mode, 60)
        rows = recorded = 0
        while envs.restarts < 8:
            rows += check_chain(collector.collect())
            recorded += sum(episode.length for episode in collector.episodes)
        assert collector.metrics()["env_restarts"] == envs.restarts == len(envs.lines)
        transition = envs.step(np.zeros(6, int))
        rows += int(transition.valid.sum())
        recorded += sum(episode.length for episode in transition.episodes)
        # Under NEXT_STEP an episode that has just ended is not open any more, though its length stands.
        ended = transition.terminated | transition.truncated
        assert rows == recorded + np.where(ended, 0, envs.episode_lengths).sum() + envs.cut_steps
        del transition


@pytest.mark.slow
def test_an_episode_that_is_lost_in_an_evaluation_is_played_anew():
    make = world(crash=0.03, kill=0.01, in_evaluation=True, seed=1)
    with pool(make, max_restarts=100) as envs:
        result = Evaluator(envs, policy_for(envs).eval_mode, 10, 100).evaluate(0)
        assert envs.restarts > 2
        assert len(result.returns) == 10
        # The reward is the step, so that a whole episode's return follows from its length.
        assert result.returns == tuple(n * (n + 1) / 2 for n in result.lengths)


CONFIG = """config = dict(
    exp_name="faults",
    max_env_step=2000,
    env=dict(
        env_id="CartPole-v1",
        wrappers=[dict(type="faulty", {faults})],
        collector_env_num=4,
        evaluator_env_num=2,
        n_evaluator_episode=2,
        manager=dict(type="subprocess", worker_num=2, max_restarts={most}, step_timeout=5.0),
    ),
    policy=dict(type="ppo", collect=dict(n_sample=200), learn=dict(batch_size=100), eval=dict(eval_freq=0)),
)
"""


def train(folder, faults, most):
    (folder / "faulty_config.py").write_text(CONFIG.format(faults=faults, most=most))
    command = [sys.executable, "-m", "ding_lite", "train", "-c", "faulty_config.py", "--exp-name", "run"]
    started = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    out, err = started.communicate(timeout=120)
    assert not [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if belongs(pid, folder)]
    return started.returncode, out, err


def belongs(pid, folder):
    """Returns whether a process has this working folder, as the parent and its workers have."""
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except OSError:
        return False


@pytest.mark.slow
def test_a_run_whose_workers_die_trains_on_and_says_so(tmp_path):
    code, _, err = train(tmp_path, "kill=0.004, crash=0.004", 100)
    assert (code, err) == (0, "")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["env_step"] >= 2000) == ("finished", True)
    restarts = [
        line for line in (tmp_path / "run" / "log.txt").read_text().splitlines() if "is replaced" in line
    ]
    assert len(restarts) >= 3
    assert any("exit code -9" in line for line in restarts)
    assert any("a crash on purpose" in line for line in restarts)
    assert re.search(r'faulty\.py", line \d+, in _fault', (tmp_path / "run" / "log.txt").read_text())
    header, *_, last = (tmp_path / "run" / "metrics.csv").read_text().splitlines()
    row = dict(zip(header.split(","), last.split(","), strict=True))
    assert float(row["collect/env_restarts"]) == len(restarts)


@pytest.mark.slow
@pytest.mark.parametrize("most", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_run_whose_workers_die_too_often_ends_with_exit_code_3(tmp_path, most):
    code, _, err = train(tmp_path, "at=dict(kill=[3]), envs=[1]", most)
    assert code == 3
    assert "worker 0 (envs 0-1) died, exit code -9 (killed: out of memory?), in env 1 (seed " in err
    assert ("env.manager.max_restarts" in err) == (most == 1)
    assert "Traceback" not in err
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "failed"
    assert "worker 0" in result["error"]


@pytest.mark.daily(2)
@pytest.mark.parametrize("manager", ["base", "subprocess"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("crash", "action 0: RuntimeError: a crash on purpose, at step 3"),
        ("nan_reward", "action 0: reward = nan, which is not finite"),
        ("nan_obs", "observation[0] = nan, which is not finite"),
        ("bad_shape", "shape (1, 4)"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_fault_that_ends_a_run_is_one_paragraph_and_exit_code_3(
    tmp_path, monkeypatch, capsys, fault, words, manager
):
    text = CONFIG.format(faults=f"at=dict({fault}=[3]), envs=[1]", most=0)
    (tmp_path / "faulty_config.py").write_text(text.replace('"subprocess"', repr(manager)))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "-c", "faulty_config.py", "--exp-name", "run"]) == 3
    message = capsys.readouterr().err.replace("action 1", "action 0")
    assert re.search(r"env 1 \(seed \d+, episode 0, step 3\)[,:] ", message)
    assert words in message
    assert "Traceback" not in message
    # What the environment's own code did, also where it was a worker's.
    log = (tmp_path / "run" / "log.txt").read_text()
    assert bool(re.search(r'faulty\.py", line \d+, in _fault', log)) == (fault == "crash")
    assert log.index("Traceback") < log.rindex(words.removeprefix("action 0: "))
    assert not (tmp_path / "run" / "ckpt").exists()


@pytest.mark.slow
def test_workers_that_replaced_others_end_with_a_killed_parent(tmp_path):
    code = """
import functools, os, signal, time
import numpy as np
import faulty_worlds
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv

envs = SubprocessVectorEnv(functools.partial(faulty_worlds.marked, {}), 4, num_workers=2, max_restarts=3)
envs.say = lambda line: None
envs.reset("x")
os.kill(envs._pool.workers[1].process.pid, signal.SIGKILL)
envs.step(np.zeros(4, int))
print(*[worker.process.pid for worker in envs._pool.workers], flush=True)
time.sleep(100)
"""
    here = Path(__file__).parents[1]
    path = os.pathsep.join([str(here.parents[2]), str(here)])
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": path}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert [alive(pid) for pid in workers] == [True, True]
        parent.kill()
        deadline = time.monotonic() + 5
        while any(map(alive, workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(alive, workers))
