"""Real processes of the command line without the seconds that importing torch takes: a warm one forks."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

TESTS = Path(__file__).parent
WARM = """
import json, os, resource, sys, traceback
os.environ.update(OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", OMP_NUM_THREADS="1")
from ding_lite.cli import main
import ding_lite.run.display, ding_lite.run.warm_start, ding_lite.tools.evaluate, ding_lite.envs.in_process
import gymnasium.envs.classic_control.cartpole, safetensors.numpy, torch._dynamo  # an optimiser needs it
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.chdir(job["cwd"])
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for fd, name in ((1, job["out"]), (2, job["err"])):
                os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
            if job["max_file"]:
                resource.setrlimit(resource.RLIMIT_FSIZE, (job["max_file"], job["max_file"]))
            code = main(job["argv"])
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Job:
    """One command that runs now.

    Attributes:
        code: its exit code, after :meth:`wait`; negative where a signal ended it.
    """

    def __init__(self, warm, argv, cwd, max_file=None):
        self.warm, self.cwd, self.code = warm, Path(cwd), None
        self.out, self.err = (warm.folder / name for name in ("out", "err"))
        job = dict(argv=[str(a) for a in argv], cwd=str(cwd), out=str(self.out), err=str(self.err))
        warm.process.stdin.write(json.dumps({**job, "max_file": max_file}) + "\n")
        warm.process.stdin.flush()
        self.pid = int(warm.process.stdout.readline())

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self):
        self.code = int(self.warm.process.stdout.readline())
        return self.code

    @property
    def output(self):
        return self.out.read_text()

    @property
    def errors(self):
        return self.err.read_text()

    def until(self, condition, seconds=60):
        """Waits until ``condition()`` holds; the command must not end before."""
        deadline = time.monotonic() + seconds
        while not condition():
            alive = Path(f"/proc/{self.pid}/status").read_text().split("State:")[1].split()[0] not in "ZX"
            if not alive or time.monotonic() > deadline:
                self.send(signal.SIGKILL)
                raise AssertionError(f"ended with {self.wait()} or too late: {self.output}\n{self.errors}")
            time.sleep(0.005)


class Warm:
    """A process that has imported everything, and forks one command at a time."""

    def __init__(self, folder):
        self.folder = folder
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-c", WARM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths},
        )
        assert self.process.stdout.readline() == "ready\n"

    def start(self, *argv, cwd, **options):
        return Job(self, argv, cwd, **options)

    def run(self, *argv, cwd, **options):
        job = self.start(*argv, cwd=cwd, **options)
        job.wait()
        return job

    def close(self):
        self.process.stdin.close()
        self.process.wait(timeout=60)
        self.process.stdout.close()
