"""Real signals to real processes, at many moments: what is saved, and how the process ends."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from worlds import small_config

from ding_lite.cli import main
from ding_lite.run.checkpoint import load_checkpoint

TESTS = Path(__file__).parents[1]
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


class Home:
    """A folder with a config on SlowEnv, in which one command runs at a time."""

    def __init__(self, folder):
        self.folder = folder
        self.process = None

    def write(self, *, kwargs=None, **others):
        config = small_config("SlowEnv", **{"max_env_step": 10**8, **others})
        marks = {"marks": str(self.folder / "marks"), **(kwargs or {})}
        config["env"] = {**config["env"], "type": "slow_worlds:SlowEnv", "env_id": "", "kwargs": marks}
        (self.folder / "c.json").write_text(json.dumps(config))
        return self

    def start(self, *words):
        paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ding_lite", *map(str, words)],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def until(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def ended(self, number, group=False):
        """Sends a signal to the command, and returns its exit code and output; it must report no error."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        output, errors = self.process.communicate(timeout=60)
        assert [line for line in errors.splitlines() if "ending after this iteration" not in line] == []
        return self.process.returncode, output

    def marks(self):
        """The process of each episode that has begun."""
        file = self.folder / "marks"
        return file.read_text().splitlines() if file.exists() else []

    def rows(self):
        file = self.folder / "run" / "metrics.csv"
        return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0

    def result(self):
        return json.loads((self.folder / "run" / "result.json").read_text())

    def last(self):
        return load_checkpoint(self.folder / "run" / "ckpt" / "last.safetensors")[0]


@pytest.fixture
def home(tmp_path):
    home = Home(tmp_path)
    yield home
    if home.process is not None and home.process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(home.process.pid, signal.SIGKILL)
        home.process.communicate()


TRAIN = ("train", "-c", "c.json", "--exp-name", "run")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", pytest.param("SIGHUP", marks=pytest.mark.slow)])
def test_first_signal_finishes_the_iteration_and_saves_it(name, home):
    """It reaches all processes of a job, as from a terminal, systemd or SLURM."""
    home.write(env={"manager": {"type": "subprocess", "worker_num": 1}}).start(*TRAIN)
    home.until(lambda: home.rows() >= 2)
    code, output = home.ended(getattr(signal, name), group=True)
    assert code == CODES[name]
    assert (home.result()["status"], home.result()["error"]) == ("interrupted", name)
    assert home.last()["progress"]["iteration"] == home.rows()
    assert "try: ding-lite train --resume run" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in home.marks())


@pytest.mark.parametrize("moment", [pytest.param("config", marks=pytest.mark.slow), "environments"])
def test_signal_before_the_run_leaves_nothing_behind(moment, home):
    home.write(kwargs={"start": 60.0})
    slow = "import pathlib, time\npathlib.Path('marks').write_text('1')\ntime.sleep(60)\nconfig = {}\n"
    (home.folder / "c.py").write_text(slow)
    home.start("train", "-c", "c.py" if moment == "config" else "c.json")
    home.until(home.marks)
    time.sleep(0.1)
    assert home.ended(signal.SIGTERM)[0] == 143
    assert {file.name for file in home.folder.iterdir()} - {"__pycache__"} == {"c.json", "c.py", "marks"}


def test_signal_ends_an_evaluation(home, monkeypatch):
    home.write()
    monkeypatch.chdir(home.folder)
    assert main([*TRAIN, "-q", "--max-env-step", "256"]) == 0
    before = len(home.marks())
    home.start("eval", "run", "-n", 100_000, "--import", "slow_worlds")
    home.until(lambda: len(home.marks()) > before)
    assert home.ended(signal.SIGTERM) == (143, "")


def test_a_run_outside_of_the_main_thread_leaves_signals_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(small_config(max_env_step=256)))
    before, codes = signal.getsignal(signal.SIGTERM), []

    def train():
        codes.append(main(["train", "-q", "-c", "c.json", "--exp-name", "run"]))
        codes.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert codes == [0, True]


def test_a_pipe_whose_reader_has_enough_stops_no_training(tmp_path):
    program = f"{sys.executable} -m ding_lite"
    train = f"{program} train -c cartpole_ppo --max-env-step 500 --exp-name run"
    command = f"set -o pipefail; {train} | head -1; echo $?; {program} config -c cartpole_ppo | head -1"
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    run_line, code, header = done.stdout.splitlines()
    assert (run_line, code, header.split()[0], done.stderr) == ("run run", "0", "key", "")
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"
