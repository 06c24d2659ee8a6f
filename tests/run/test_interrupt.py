"""Ctrl-C in a script: the iteration ends, the run is saved, and KeyboardInterrupt is raised."""

import json
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from worlds import small_config

from ding_lite import SerialPipeline

SCRIPT = """
import signal, sys
from ding_lite import SerialPipeline
{before}
pipeline = SerialPipeline({config!r}, folder="run", max_env_step=10**9)
for progress in pipeline:
    print(progress.iteration, flush=True)
"""
SLOW_FROM_THE_THIRD_ON = """
import time
from ding_lite.run.learner import Learner
quick = Learner.train
def train(self, rollout):
    time.sleep(60 if self.train_iter >= 16 else 0)
    return quick(self, rollout)
Learner.train = train
"""


@contextmanager
def started(folder, before=""):
    """Starts the script, gives its process after two iterations, and kills it in the end."""
    script = SCRIPT.format(before=before, config=small_config(env={"manager": {"type": "base"}}))
    command, pipe = [sys.executable, "-c", script], subprocess.PIPE
    with subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
            yield process
        finally:
            process.kill()


def result_of(folder):
    return json.loads((folder / "run" / "result.json").read_text())


def test_ctrl_c_ends_the_iteration_saves_the_run_and_raises(tmp_path):
    # The third iteration learns for three seconds: the signal arrives while it does.
    with started(tmp_path, SLOW_FROM_THE_THIRD_ON.replace("60", "3")) as process:
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        rows, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt: interrupted after" in errors
    assert "train --resume run" in errors
    result = result_of(tmp_path)
    assert (result["status"], result["checkpoint"]) == ("interrupted", "ckpt/last")
    again = SerialPipeline.resume(tmp_path / "run")
    assert again.progress.iteration == result["iterations"] == 3
    assert rows == "", "the loop's body does not see the iteration"
    again.step()
    again.close()


def test_second_ctrl_c_stops_at_once(tmp_path):
    with started(tmp_path, SLOW_FROM_THE_THIRD_ON) as process:
        time.sleep(1.0)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
        _, errors = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    assert (result_of(tmp_path)["status"], result_of(tmp_path)["checkpoint"]) == ("interrupted", None)


def test_handler_of_the_program_decides(tmp_path):
    own = "signal.signal(signal.SIGINT, lambda number, frame: sys.exit(7))"
    with started(tmp_path, own) as process:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 7


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN])
def test_a_run_leaves_the_handler_as_it_was(handler, tmp_path):
    before = signal.signal(signal.SIGINT, handler)
    try:
        config = small_config(env={"manager": {"type": "base"}})
        with SerialPipeline(config, folder=tmp_path / "run", max_env_step=512) as pipeline:
            assert [signal.getsignal(signal.SIGINT) for _ in pipeline] == [handler] * 2
    finally:
        signal.signal(signal.SIGINT, before)
