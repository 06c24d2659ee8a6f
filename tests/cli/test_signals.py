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
from cases import slow_but
from processes import start, until
from worlds import result_of, small_config

from ding_lite.cli import main
from ding_lite.run.checkpoint import load_checkpoint

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

    def start(self, *words, python=()):
        self.process = start(*words, cwd=self.folder, python=python)

    def ended(self, number, group=False):
        """Sends a signal to the command, and returns its exit code and output; it must report no error."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        output, errors = self.process.communicate(timeout=60)
        said = [line for line in errors.splitlines() if line and not line.startswith("import time:")]
        assert [line for line in said if "ending after this iteration" not in line] == []
        return self.process.returncode, output

    def marks(self):
        """The process of each episode that has begun."""
        file = self.folder / "marks"
        return file.read_text().splitlines() if file.exists() else []

    def rows(self):
        file = self.folder / "run" / "metrics.csv"
        return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0

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


@pytest.mark.parametrize("name", slow_but(["SIGTERM"], CODES))
def test_first_signal_finishes_the_iteration_and_saves_it(name, home):
    """It reaches all processes of a job, as from a terminal, systemd or SLURM."""
    home.write(env={"manager": {"type": "subprocess", "worker_num": 1}}).start(*TRAIN)
    until(lambda: home.rows() >= 2, home.process)
    code, output = home.ended(getattr(signal, name), group=True)
    assert code == CODES[name]
    result = result_of(home.folder / "run")
    assert (result["status"], result["error"]) == ("interrupted", name)
    assert home.last()["progress"]["iteration"] == home.rows()
    assert "try: ding-lite train --resume run" in output
    assert not any(Path(f"/proc/{pid}").exists() for pid in home.marks())


def test_signal_before_the_run_leaves_nothing_behind(home):
    home.write(kwargs={"start": 60.0}).start("train", "-c", "c.json")
    until(home.marks, home.process)
    time.sleep(0.1)
    assert home.ended(signal.SIGTERM)[0] == 143
    assert {file.name for file in home.folder.iterdir()} == {"c.json", "marks"}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("module", slow_but(["numpy", "torch"], ["click", "numpy", "torch", "gymnasium"]))
def test_signal_while_modules_are_imported(module, name, home):
    """When the first module of a package has been imported, and some time later."""
    for seconds in (0.0, 0.03, 0.1):
        home.write().start("train", "-c", "c.json", python=("-X", "importtime"))
        while module not in home.process.stderr.readline():
            assert home.process.poll() is None
        time.sleep(seconds)
        assert home.ended(getattr(signal, name)) == (CODES[name], "")


def test_an_environment_may_not_keep_the_signals_of_the_program(home):
    # A signal that comes between its reset and the program's answer is lost: few resets.
    home.write(kwargs={"ignored": ["SIGINT"], "length": 1000}).start(*TRAIN)
    until(lambda: home.rows() >= 2, home.process)
    assert home.ended(signal.SIGINT)[0] == 130


def test_signal_ends_an_evaluation(home, monkeypatch):
    home.write()
    monkeypatch.chdir(home.folder)
    assert main([*TRAIN, "-q", "--max-env-step", "256"]) == 0
    before = len(home.marks())
    home.start("eval", "run", "-n", 100_000, "--import", "slow_worlds")
    until(lambda: len(home.marks()) > before, home.process)
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


def test_training_writes_to_any_output(tmp_path):
    """A pipe whose reader has enough, an output that is closed or ASCII."""
    program = f"{sys.executable} -m ding_lite"
    small = "env.evaluator_env_num=1 env.n_evaluator_episode=1 policy.learn.epoch_per_collect=1"
    train = f"{program} train -c cartpole_ppo --max-env-step 500 {small} --exp-name"
    command = (
        f"set -o pipefail; {train} run | head -1; echo $?; {program} config -c cartpole_ppo | head -1; "
        f"{train} closed >&- <&-; echo $?; PYTHONIOENCODING=ascii {train} ascii | tail -1"
    )
    done = subprocess.run(["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    run_line, code, header, code_closed, last = done.stdout.splitlines()
    assert (run_line, code, header.split()[0], done.stderr) == ("run run", "0", "key", "")
    assert (code_closed, last) == ("0", "run: ascii   try: ding-lite eval ascii -n 100")
    assert {result_of(tmp_path / name)["status"] for name in ("run", "closed", "ascii")} == {"finished"}
