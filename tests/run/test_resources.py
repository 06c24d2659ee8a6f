"""Threads and memory: what a run changes in its process, when asked, and how missing memory is reported."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from worlds import small_config

from ding_lite import SerialPipeline, serial_pipeline
from ding_lite.envs.workers.cores import cores, leaving_cores
from ding_lite.errors import ConfigError
from ding_lite.run import pipeline as pipeline_module
from ding_lite.run.resources import explained_memory_errors, memory_error_message, thread_count

VECTOR, IMAGE = gym.spaces.Box(-1, 1, (4,)), gym.spaces.Box(0, 255, (8, 8, 3), np.uint8)
SMALL_RUN = small_config(
    max_env_step=64, policy={"collect": {"n_sample": 64}}, env={"manager": "base", "max_eval_steps": 20}
)
ZEROED_PAGES = """
    import resource, torch

    def zeroed_pages():
        "Pages that the system zeroes while 64 MiB are allocated and freed ten times."
        count = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):  # the heap grows at first; a small block between two large ones may cost some
            torch.ones(2**24)
        before = count()
        for _ in range(10):
            torch.ones(2**24)
        return count() - before
"""
ALL_PAGES = 10 * 2**26 // 4096
needs_glibc = pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")


def freed_memory_is_kept(zeroed_pages):
    # Huge pages may spare some of the pages; glibc may return one of the ten blocks.
    assert zeroed_pages > ALL_PAGES / 4 or zeroed_pages < ALL_PAGES / 5
    return zeroed_pages < ALL_PAGES / 5


def run_python(code, *arguments, cwd=None, **environment):
    """Runs ``code`` in a new process without OpenMP's variables and returns the JSON that it prints.

    Python reports an error at the end of a process on stderr, and exits with 0.
    """
    plain = {name: x for name, x in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**plain, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Exception ignored" not in done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


# ---------------------------------------------------------------------- the process of a script


SCRIPT = (
    ZEROED_PAGES
    + """
    import json, os, sys
    from ding_lite import SerialPipeline

    def process():
        return torch.get_num_threads(), zeroed_pages(), dict(os.environ) == environment

    config, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
    torch.set_num_threads(2)
    environment, processes = dict(os.environ), [(2, zeroed_pages(), True)]
    pipeline = SerialPipeline(config, folder="run", **options)
    processes.append(process())
    for _ in pipeline:
        break
    processes.append(process())
    pipeline.close()
    resumed = SerialPipeline.resume("run", **options)
    processes.append(process())
    for _ in resumed:
        pass
    processes.append(process())
    print(json.dumps(processes))
"""
)


def process_of_a_script(tmp_path, **options):
    """Returns (threads, freed memory is kept, environment is unchanged) at five points of a script.

    Before the pipeline is built, after that, after ``break``, after ``resume``, and after the end of the run.
    """
    config = {**SMALL_RUN, "num_threads": 3, "max_env_step": 128}
    points = run_python(SCRIPT, json.dumps(config), json.dumps(options), cwd=tmp_path)
    return [(threads, freed_memory_is_kept(pages), unchanged) for threads, pages, unchanged in points]


@pytest.mark.slow
@needs_glibc
def test_pipeline_leaves_the_process_of_a_script_as_it_is(tmp_path):
    assert process_of_a_script(tmp_path) == [(2, False, True)] * 5
    log = (tmp_path / "run" / "log.txt").read_text()
    assert log.count("num_threads=3 (torch threads: 3) is not applied") == 2, "in both sessions"
    assert "2 torch threads" in log


@needs_glibc
def test_pipeline_that_owns_the_process_tunes_it_and_restores_the_threads(tmp_path):
    before, *during, after = process_of_a_script(tmp_path, own_process=True)
    assert before == (2, False, True)
    assert during == [(3, True, True)] * 3
    assert after == (2, True, True), "the allocator cannot be set back"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "3 torch threads" in log
    assert "is not applied" not in log


def test_close_restores_the_threads_once(torch_threads, tmp_path):
    pipeline = SerialPipeline({**SMALL_RUN, "num_threads": 3}, folder=tmp_path / "run", own_process=True)
    assert torch.get_num_threads() == 3
    pipeline.close()
    assert torch.get_num_threads() == torch_threads
    torch.set_num_threads(4)
    pipeline.close()
    assert torch.get_num_threads() == 4


def test_the_last_of_several_owners_restores_the_threads(torch_threads, tmp_path):
    first, second = (
        SerialPipeline(
            {**SMALL_RUN, "num_threads": threads}, folder=tmp_path / str(threads), own_process=True
        )
        for threads in (3, 4)
    )
    first.close()
    assert torch.get_num_threads() == 4
    second.close()
    assert torch.get_num_threads() == torch_threads


def test_script_that_does_not_close_its_pipeline_ends_without_an_error(tmp_path):
    code = """
        import json, sys
        from ding_lite import SerialPipeline

        pipeline = SerialPipeline(json.loads(sys.argv[1]), folder="run", own_process=True)
        print(pipeline.step().iteration)
    """
    assert run_python(code, json.dumps(SMALL_RUN), cwd=tmp_path) == 1


@pytest.mark.parametrize("part", ["build_policy", "warm_start", "claim"])
def test_pipeline_that_cannot_be_built_restores_the_threads(part, torch_threads, tmp_path, monkeypatch):
    seen = []

    def failing(*arguments, **options):
        seen.append(torch.get_num_threads())
        raise ConfigError("the part cannot be built")

    monkeypatch.setattr(pipeline_module, part, failing)
    config = {**SMALL_RUN, "num_threads": 3}
    init_from = "another run" if part == "warm_start" else None
    with pytest.raises(ConfigError, match="the part cannot be built"):
        SerialPipeline(config, folder=tmp_path / "run", init_from=init_from, own_process=True)
    assert seen == [3]
    assert torch.get_num_threads() == torch_threads
    assert not (tmp_path / "run").exists()


def test_serial_pipeline_owns_the_process_only_when_asked(torch_threads, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for options in ({}, {"own_process": True}):
        serial_pipeline({**SMALL_RUN, "num_threads": 3, "exp_name": f"own{len(options)}"}, **options)
        assert torch.get_num_threads() == torch_threads
    assert f"{torch_threads} torch thread" in (tmp_path / "runs/own0/log.txt").read_text()
    assert "3 torch threads" in (tmp_path / "runs/own1/log.txt").read_text()
    capsys.readouterr()


# ---------------------------------------------------------------------- the command line


WATCHING_ENV = (
    "import json, os\nfrom pathlib import Path\n"
    + textwrap.dedent(ZEROED_PAGES)
    + textwrap.dedent(
        """
        from gymnasium.envs.classic_control import CartPoleEnv


        class WatchingEnv(CartPoleEnv):
            "Writes the state of the process at its first step."

            def step(self, action):
                if not Path("process.json").exists():
                    state = [torch.get_num_threads(), zeroed_pages(), os.environ.get("GOMP_SPINCOUNT")]
                    Path("process.json").write_text(json.dumps(state))
                return super().step(action)
        """
    )
)
COMMAND = """
    import json, os, sys

    class WatchTorch:
        "Notes GOMP_SPINCOUNT when torch is first imported."
        seen = []

        def find_spec(self, name, path=None, target=None):
            if name == "torch":
                self.seen.append(os.environ.get("GOMP_SPINCOUNT"))

    sys.meta_path.insert(0, WatchTorch())
    from ding_lite.cli import main
    code = main()
    print()
    print(json.dumps([code, WatchTorch.seen]))
"""


@pytest.mark.daily(1)
@needs_glibc
@pytest.mark.parametrize(
    ("environment", "spincount"),
    [({}, "10000"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["nothing set", "policy set"],
)
def test_command_line_tunes_its_process_before_torch_is_loaded(environment, spincount, tmp_path):
    (tmp_path / "watching.py").write_text(WATCHING_ENV)
    config = {**SMALL_RUN, "num_threads": 3, "env": {**SMALL_RUN["env"], "type": "watching:WatchingEnv"}}
    del config["env"]["env_id"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    arguments = ["train", "-c", "config.json", "--exp-name", "run"]
    code, seen = run_python(COMMAND, *arguments, cwd=tmp_path, **environment)
    assert code == 0
    assert seen[:1] == [spincount]
    threads, pages, spincount_of_env = json.loads((tmp_path / "process.json").read_text())
    assert (threads, freed_memory_is_kept(pages), spincount_of_env) == (3, True, spincount)


def idle_seconds(**environment):
    """Mean CPU time of torch's threads in 20 ms of sleep after a call, tuned as by the command line."""
    code = """
        from ding_lite.cli import main
        main(["--version"])
        import time, torch
        torch.set_num_threads(2)
        x, spent = torch.ones(2**20), 0.0
        for _ in range(20):
            x + 1
            began = time.process_time(); time.sleep(0.02); spent += time.process_time() - began
        print(spent / 20)
    """
    return run_python(code, **environment)


def has_gnu_openmp():
    """Returns whether this torch uses GNU's OpenMP; that of conda uses another one."""
    return sys.platform == "linux" and "libgomp" in Path("/proc/self/maps").read_text()


@pytest.mark.slow
@pytest.mark.skipif(cores() < 2, reason="threads that share a core do not wait on it")
@pytest.mark.skipif(not has_gnu_openmp(), reason="the variable is one of GNU's OpenMP")
def test_idle_threads_free_their_core():
    whole_sleep = idle_seconds(GOMP_SPINCOUNT="3000000000")  # the user's value is kept, and has an effect
    assert whole_sleep > 2e-3, "20 ms of spinning, as far as the thread gets a core"
    assert idle_seconds() < whole_sleep / 4
    assert idle_seconds(OMP_WAIT_POLICY="active") > whole_sleep / 2


# ---------------------------------------------------------------------- threads


@pytest.mark.parametrize(
    ("num_threads", "space", "threads"),
    [
        ("auto", VECTOR, 1),
        ("auto", IMAGE, cores()),
        ("auto", gym.spaces.Dict(camera=IMAGE, speed=VECTOR), cores()),
        (3, VECTOR, 3),
        (3, IMAGE, 3),
    ],
)
def test_images_get_every_core_and_vectors_one(num_threads, space, threads, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert thread_count(num_threads, space) == threads


@pytest.mark.parametrize(("variable", "threads"), [("1", 1), ("4", 4), ("99", 8), ("", 8), ("many", 8)])
def test_images_get_no_more_threads_than_the_variable_allows(variable, threads, monkeypatch):
    monkeypatch.setattr("ding_lite.run.resources.cores", lambda: 8)
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    assert thread_count("auto", IMAGE) == threads
    assert thread_count(6, IMAGE) == 6


@pytest.mark.parametrize(
    ("threads", "busy", "left"), [(8, 0, 8), (8, 2, 6), (8, 7, 1), (8, 9, 1), (3, 2, 3), (1, 0, 1), (1, 1, 1)]
)
def test_cores_that_others_use_are_left_to_them(threads, busy, left, torch_threads, monkeypatch):
    monkeypatch.setattr("ding_lite.envs.workers.cores.cores", lambda: 8)
    torch.set_num_threads(threads)
    with leaving_cores(busy):
        assert torch.get_num_threads() == left
    assert torch.get_num_threads() == threads


# ---------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "MemoryError"),
        (MemoryError("Unable to allocate 1 TiB\nhere"), "Unable to allocate 1 TiB"),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory"),
            "DefaultCPUAllocator: can't allocate memory",
        ),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ConfigError("DefaultCPUAllocator, says the environment"), None),
        (KeyboardInterrupt(), None),
    ],
)
def test_only_errors_about_missing_memory_are_recognised(error, message):
    assert memory_error_message(error) == message


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(2**62), lambda: np.zeros(2**50), lambda: np.zeros((10**9, 10**9, 10**9))],
    ids=["torch", "numpy", "numpy, beyond its sizes"],
)
def test_memory_that_torch_and_numpy_lack_is_a_config_error_with_advice(allocate):
    with (
        pytest.raises(ConfigError, match="out of memory while testing: .*Lower the size") as caught,
        explained_memory_errors("testing", "Lower the size"),
    ):
        allocate()
    assert isinstance(caught.value.__cause__, (MemoryError, RuntimeError, ValueError))


@pytest.mark.parametrize("error", [ValueError("another"), ConfigError("ours"), KeyError("key")])
def test_other_errors_pass_through(error):
    with pytest.raises(type(error)) as caught, explained_memory_errors("testing", "Lower the size"):
        raise error
    assert caught.value is error
