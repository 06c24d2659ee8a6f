"""Real processes without the seconds that importing torch takes: they are forked from one that has torch.

What such processes have in common is the state of the one that they are forked from, also the seed of hashes.
So a test that compares two processes with each other, or is about how a process starts, takes real ones.
"""

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


@functools.cache
def warm():
    """Returns the process that all commands of this session are forked from."""
    return Warm()


def without_privileges(command):
    """Returns a command that reads no file without permission, also if the tests run as root."""
    if os.geteuid():
        return command
    if not shutil.which("setpriv"):
        pytest.skip("the tests run as root, and setpriv is missing")
    rights = "-dac_override,-dac_read_search"
    return ["setpriv", f"--inh-caps={rights}", f"--bounding-set={rights}", *command]


def python():
    """Returns the path of an interpreter for ``-m MODULE``, ``-c CODE`` or a file, which starts at once."""
    return str(warm().folder / "python")


def ding_lite():
    """Returns the path of the program ``ding-lite``, which starts at once."""
    return str(warm().folder / "ding-lite")


class Job:
    """One command that runs now.

    Attributes:
        pid: its process id.
        code: its exit code, after :meth:`wait`; negative where a signal ended it.
    """

    def __init__(self, warm, argv, cwd, max_file=None):
        self.cwd, self.code = Path(cwd), None
        self.out, self.err = (warm.folder / name for name in ("out", "err"))
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        job = {
            "arguments": ["-m", "ding_lite", *map(str, argv)],
            "cwd": str(cwd),
            "environment": {**os.environ, "PYTHONPATH": paths},
            "max_file": max_file,
        }
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._server.connect(str(warm.folder / "socket"))
        with open(os.devnull) as nothing, self.out.open("w") as out, self.err.open("w") as err:
            files = [file.fileno() for file in (nothing, out, err)]
            socket.send_fds(self._server, [json.dumps(job).encode()], files)
        self.pid = int(self._server.recv(16))

    def send(self, number):
        os.kill(self.pid, number)

    def wait(self):
        with self._server:
            self.code = int(self._server.recv(16))
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
    """A process that has imported everything, which commands are forked from.

    Attributes:
        folder: has the programs ``python`` and ``ding-lite``, whose processes are forked.
    """

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="ding_lite_warm_"))
        atexit.register(shutil.rmtree, self.folder, ignore_errors=True)
        text = (TESTS / "warm_client.py").read_text()
        for name in ("python", "ding-lite"):
            (self.folder / name).write_text(f"#!{sys.executable} -IS\n{text}")
            (self.folder / name).chmod(0o755)
        self.process = subprocess.Popen(
            [sys.executable, TESTS / "warm_server.py", self.folder / "socket"],
            stdin=subprocess.PIPE,  # it ends when this is closed
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self.close)
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
