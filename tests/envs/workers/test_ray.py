"""Ray actors: the same transitions as in one process; every fault is bounded, typed and leaves nothing.

Real clusters of this machine, real actors and real signals. What workers of all kinds have in common is
tested with worker processes.
"""

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import faulty_worlds as worlds
import numpy as np
import pytest
from leaks import alive
from same_transitions import assert_same, assert_same_rows, assert_same_transition, batches
from worlds import digest

from ding_lite.envs.in_process import AUTORESET, InProcessVectorEnv
from ding_lite.envs.workers.ray_actors import RayLauncher
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv
from ding_lite.errors import EnvContractError, EnvError, EnvWorkerError
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.trees import map_tree

ZEROS = np.zeros(4, int)


def test_without_ray_the_error_has_the_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvError, match=r'manager.type="ray".*pip install "ding_lite\[ray\]"'):
        RayLauncher()


@pytest.fixture(scope="module")
def ray():
    """Ray, connected to a cluster of two CPUs on this machine, as by a script of the user."""
    module = pytest.importorskip("ray", reason="the extra ray is not installed")
    module.init(
        address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield module
    module.shutdown()


@contextlib.contextmanager
def pool(make, num_envs=4, num_workers=2, address=None, **kwargs):
    launcher = RayLauncher(address, num_workers)
    envs = SubprocessVectorEnv(make, num_envs, num_workers=num_workers, launcher=launcher, **kwargs)
    envs.lines = []
    envs.say = envs.lines.append
    try:
        yield envs
    finally:
        began = [pid for pid in map(pid_of, envs._pool.workers) if pid]
        envs.close()
        wait_for(lambda: not any(map(alive, began)))


def pid_of(worker):
    """Returns the process of an actor, or None if it cannot answer."""
    import ray

    try:
        return ray.get(worker.actor.__ray_call__.remote(lambda self: os.getpid()), timeout=10)
    except ray.exceptions.RayError:
        return None


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("autoreset", AUTORESET)
def test_the_same_transitions_as_in_one_process(autoreset, ray):
    make = functools.partial(worlds.counting, "dict")
    base = InProcessVectorEnv(make, 5, 7, autoreset)
    ended = 0
    with pool(make, 5, seed=7, autoreset=autoreset) as envs:
        assert (envs.obs_space, envs.action_space) == (base.obs_space, base.action_space)
        assert envs.backend == "5 environments in 2 Ray actors"
        for stream in (("collect",), ("evaluate", 3)):
            assert_same(envs.reset(*stream), base.reset(*stream))
            for _, action in zip(range(40), batches("dict", 5), strict=False):
                x, y = envs.step(action), base.step(action)
                assert_same_transition(x, y)
                assert_same(envs.episode_returns, base.episode_returns)
                assert_same(envs.episode_lengths, base.episode_lengths)
                assert [envs.describe(i) for i in range(5)] == [base.describe(i) for i in range(5)]
                ended += len(x.final_env)
    assert ended > 10
    assert ray.is_initialized()  # the user's own connection stays


@pytest.mark.slow
def test_two_halves_give_the_transitions_of_the_whole(ray):
    make = functools.partial(worlds.counting, "dict")
    base = InProcessVectorEnv(make, 5, 7)
    with pool(make, 5, seed=7, double_buffer=True) as envs:
        assert_same(envs.reset("collect"), base.reset("collect"))
        for _, action in zip(range(40), batches("dict", 5), strict=False):
            for group, rows in enumerate(envs.groups):
                envs.send(map_tree(lambda leaf, rows=rows: leaf[rows], action), group)
            whole = base.step(action)
            for group, rows in enumerate(envs.groups):
                assert_same_rows(envs.receive(group), rows, whole)
            assert_same(envs.episode_lengths, base.episode_lengths)
        assert_same(envs.state_dict()["obs"], base.state_dict()["obs"])


@pytest.mark.slow
def test_a_state_taken_in_mid_episode_goes_on_anywhere(ray):
    make = functools.partial(worlds.counting, "dict")
    base, actions = InProcessVectorEnv(make, 5, 3), batches("dict", 5)
    base.reset("collect")
    for _, action in zip(range(13), actions, strict=False):
        obs = base.step(action).obs
    with pool(make, 5, seed=3) as envs:
        assert_same(envs.load_state_dict(base.state_dict()), obs)
        for _, action in zip(range(20), actions, strict=False):
            assert_same_transition(envs.step(action), base.step(action))
        other = InProcessVectorEnv(make, 5, 3)
        other.load_state_dict(envs.state_dict())
        for _, action in zip(range(20), actions, strict=False):
            assert_same_transition(other.step(action), base.step(action))


def kill_idle(envs):
    os.kill(pid_of(envs._pool.workers[0]), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("kill", "worker 0 (envs 0-1) died"),
        ("crash", "RuntimeError: a crash on purpose, at step 3. worker 0 (envs 0-1)"),
        ("hang", "worker 0 (envs 0-1) did not answer within step_timeout=1 s. Killed; raise that limit"),
        (kill_idle, "worker 0 (envs 0-1) died"),
    ],
    ids=["kill", "crash", "hang", "killed idle"],
)
def test_an_actor_is_replaced_and_its_step_left_out(fault, cause, ray, tmp_path):
    at = {fault: [3]} if isinstance(fault, str) else {}
    make = functools.partial(worlds.marked, dict(at=at, once=str(tmp_path), envs=[1]))
    alone = InProcessVectorEnv(functools.partial(worlds.marked, {}), 4)
    with pool(make, step_timeout=1.0, max_restarts=3) as envs:
        shown, reference = envs.reset("x").copy(), alone.reset("x").copy()
        old = pid_of(envs._pool.workers[0])
        lost = []
        for t in range(8):
            if t == 2 and callable(fault):
                fault(envs)
            names = shown[:, 0].copy()
            transition, expected = envs.step(ZEROS), alone.step(ZEROS)
            shown, reference = transition.obs.copy(), expected.obs
            # The other worker's rows are as if nothing had been.
            assert shown[2:].tolist() == reference[2:].tolist()
            assert transition.valid[2:].all()
            if not transition.valid[:2].any():
                lost.append(t)
                assert not (transition.terminated | transition.truncated)[:2].any()
                assert transition.reward[:2].tolist() == [0, 0]
                assert shown[:2, 1].tolist() == [0, 0]  # of new episodes
                assert not set(shown[:2, 0]) & set(names[:2])
        assert (lost, envs.restarts, len(envs.lines)) == ([2], 1, 1)
        assert cause in envs.lines[0]
        assert "2 of 3 restarts" in envs.lines[0]
        wait_for(lambda: not alive(old))


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["crash", "kill"])
def test_an_environment_that_always_fails_ends_the_pool(fault, ray):
    """Also if it fails in every reset, of which an actor that is killed cannot tell."""
    make = functools.partial(worlds.marked, dict(at={fault: [0]}, envs=[2]))
    with pool(make, max_restarts=1) as envs:
        with pytest.raises(EnvWorkerError, match="max_restarts") as caught:
            envs.reset("x")
        assert "1 were replaced within the last 100,000 steps" in str(caught.value)
        assert (caught.value.worker, len(envs.lines)) == (1, 1)
        assert ("faulty.py" in caught.value.remote_traceback) == (fault == "crash")
        assert ("episode 1" in str(caught.value)) == (fault == "crash")
        with pytest.raises(EnvError, match="closed.*failure"):
            envs.step(ZEROS)


@pytest.mark.slow
def test_errors_of_environments_say_what_they_say_in_one_process(ray):
    make = functools.partial(worlds.faulty, "step", "raise")
    with pytest.raises(EnvWorkerError) as there, pool(make) as envs:
        run_to_the_fault(envs)
    with pytest.raises(EnvError, match=r"env 1.*ValueError: broken in") as here:
        run_to_the_fault(InProcessVectorEnv(make, 4))
    assert str(there.value) == str(here.value)
    assert "faulty_worlds.py" in there.value.remote_traceback
    shape = functools.partial(worlds.faulty, "shape", "")
    with pytest.raises(EnvContractError, match=r"env 1 .*shape \(3,\)"), pool(shape) as envs:
        run_to_the_fault(envs)


@pytest.mark.slow
def test_an_error_of_a_method_names_it_and_ends_nothing(ray):
    with pool(functools.partial(worlds.faulty, "", "")) as envs:
        envs.reset("x")
        with pytest.raises(EnvContractError, match=r"^env 0 \(seed .* has no method 'harder'$"):
            envs.call("harder")
        with pytest.raises(EnvError, match=r"^env 0 \(seed .*, method reset: TypeError: "):
            envs.call("reset", 1)
        envs.step(ZEROS)
        assert envs.restarts == 0


def run_to_the_fault(envs):
    envs.reset("x")
    for _ in range(2):
        envs.step(ZEROS)


@pytest.mark.slow
def test_actors_are_light_leave_ctrl_c_to_the_parent_and_are_as_many_as_the_cpus(ray):
    with pool(worlds.witness) as envs:
        assert envs.reset("x").tolist() == [[0, 1, 1, 0]] * 4
    with pytest.raises(EnvError, match="worker_num: 3 workers need a CPU each.* has 2"):
        RayLauncher(num_workers=3)
    make = functools.partial(worlds.counting, "box")
    launcher = RayLauncher()
    wait_for(lambda: launcher.default_workers(False) == 2)  # Ray reports freed CPUs a moment later
    with contextlib.closing(SubprocessVectorEnv(make, 8, launcher=launcher)) as envs:
        assert envs.backend == "8 environments in 2 Ray actors"
        wait_for(lambda: ray.available_resources().get("CPU", 0) == 0)
        with pytest.raises(EnvWorkerError, match="start_timeout=1 s.* has 0 free CPUs of 2"):
            SubprocessVectorEnv(make, 1, launcher=RayLauncher(num_workers=1), start_timeout=1.0)
        # Those of an evaluation step only while the others wait.
        with contextlib.closing(SubprocessVectorEnv(make, 1, launcher=RayLauncher(reserve=False))) as other:
            other.reset("evaluate", 1)


# ---- what needs a process or a cluster of its own

WALK = """
import gymnasium as gym, numpy as np

class Walk(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.count = self.np_random.normal(size=2).astype(np.float32), 0
        return self.at.copy(), {}

    def step(self, action):
        self.at += self.np_random.normal(size=2).astype(np.float32) * (action - 0.5)
        self.count += 1
        return self.at.copy(), -float(abs(self.at).sum()), bool(abs(self.at[0]) > 3), self.count >= 40, {}
"""
CONFIG = """
config = dict(
    max_env_step=1024,
    env=dict(
        type="walk_env:Walk", collector_env_num=4, evaluator_env_num=2, n_evaluator_episode=4,
        manager=dict(type="ray", worker_num=2, double_buffer=True),
    ),
    policy=dict(collect=dict(n_sample=256), learn=dict(batch_size=64), eval=dict(eval_freq=512)),
)
"""


@contextlib.contextmanager
def train(cwd, *arguments):
    """Runs a training whose processes, those of Ray too, can be found by their environment variables."""
    (cwd / "config").mkdir(exist_ok=True)
    (cwd / "config" / "walk.py").write_text(CONFIG)
    (cwd / "config" / "walk_env.py").write_text(WALK)
    with subprocess.Popen(
        [sys.executable, "-m", "ding_lite", "train", "-q", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "MARK": str(cwd)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def processes_of(cwd):
    mark = f"MARK={cwd}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
    return found


def trained(cwd, *arguments):
    with train(cwd, *arguments) as process:
        output, _ = process.communicate(timeout=300)
    assert (process.returncode, output) == (0, "")
    wait_for(lambda: not processes_of(cwd))
    return load_checkpoint(cwd / "run" / "ckpt" / "last.safetensors")[0]


@pytest.mark.slow
def test_a_run_starts_or_joins_ray_resumes_bit_equal_and_leaves_no_process(ray, tmp_path):
    folders = [tmp_path / name for name in ("straight", "resumed", "subprocess")]
    for folder in folders:
        folder.mkdir()
    start = ("-c", "config/walk.py", "--exp-name", "run")
    straight = trained(folders[0], *start)
    joins = f"env.manager.ray_address={ray.get_runtime_context().gcs_address}"
    trained(folders[1], *start, "--max-env-step", 512, joins)
    resumed = trained(folders[1], "--resume", "run", "-c", "config/walk.py", "--max-env-step", 1024, joins)
    apart = trained(folders[2], *start, "env.manager.type=subprocess")
    for part in ("policy", "collector", "learner", "progress"):
        assert digest(resumed[part]) == digest(straight[part]) == digest(apart[part]), part


@pytest.mark.slow
def test_ctrl_c_at_the_terminal_saves_the_run_and_leaves_no_process(tmp_path):
    """Every process of the terminal receives it."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    metrics = tmp_path / "run" / "metrics.csv"
    options = ("-c", "config/walk.py", "--exp-name", "run", "--max-env-step", 10**6)
    with train(tmp_path, *options) as process:
        wait_for(lambda: metrics.exists() and len(metrics.read_text().splitlines()) > 2, 200)
        assert len(processes_of(tmp_path)) > 4
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=200)
    assert (process.returncode, output) == (130, "")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    rows = len(metrics.read_text().splitlines()) - 1
    assert load_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors")[0]["progress"]["iteration"] == rows
    wait_for(lambda: not processes_of(tmp_path))


NODES = """
import functools, time, warnings
warnings.simplefilter("ignore")
import numpy as np, ray
from ray.cluster_utils import Cluster
import faulty_worlds as worlds
from ding_lite.envs.workers.ray_actors import RayLauncher
from ding_lite.envs.workers.vector_env import SubprocessVectorEnv

cluster = Cluster(initialize_head=True, head_node_args=dict(num_cpus=1))
second = cluster.add_node(num_cpus=1)
launcher = RayLauncher(cluster.address, 2)
make = functools.partial(worlds.marked, {})
envs = SubprocessVectorEnv(make, 4, num_workers=2, max_restarts=1, launcher=launcher, step_timeout=60)
shown = functools.partial(print, ">")
envs.say = shown
envs.reset("x")
zeros = np.zeros(4, int)
envs.step(zeros)
nodes = lambda w: ray.get(w.actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))
shown(len(set(map(nodes, envs._pool.workers))), launcher.busy_cores(2))
cluster.add_node(num_cpus=1)
cluster.remove_node(second, allow_graceful=False)
for _ in range(1000):
    valid = envs.step(zeros).valid.tolist()
    if envs.restarts:
        break
    time.sleep(0.1)
shown(sorted(valid), envs.restarts)
shown(envs.step(zeros).valid.tolist())
envs.close()
cluster.shutdown()
"""


@pytest.mark.slow
def test_the_actors_of_a_machine_that_is_lost_begin_again_on_another(tmp_path):
    pytest.importorskip("ray", reason="the extra ray is not installed")
    path = os.pathsep.join([str(Path(__file__).parents[3]), str(Path(__file__).parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(NODES)],
        env={**os.environ, "PYTHONPATH": path, "MARK": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line.removeprefix("> ") for line in done.stdout.splitlines() if line.startswith("> ")]
    assert done.returncode == 0, done.stderr
    assert lines[0] == "2 1"
    # Ray may know of the lost connection before it knows of the lost machine.
    assert re.match(r"worker \d \(envs \d-\d\) (died|cannot be reached): ", lines[1])
    assert "is replaced, and its open episodes are cut (" in lines[1]
    assert "0 of 1 restarts left" in lines[1]
    assert lines[2:] == ["[False, False, True, True] 1", "[True, True, True, True]"]
    wait_for(lambda: not processes_of(tmp_path))


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_named():
    pytest.importorskip("ray", reason="the extra ray is not installed")
    env = dict(env_id="CartPole-v1", manager=dict(type="ray", ray_address="127.0.0.1:1"))
    code = f"""
        from ding_lite.config.compile import compile_config
        from ding_lite.envs.make import make_vector_env
        from ding_lite.errors import EnvError
        try:
            make_vector_env(compile_config({{"env": {env!r}}}).values.env, 1, 0)
        except EnvError as error:
            print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert 'manager.type="ray": no cluster at 127.0.0.1:1 can be reached' in done.stdout
