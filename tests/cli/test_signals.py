"""Real signals to real runs, at every moment: what is saved and printed, and how the process ends."""

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from worlds import digest, small_config

from ding_lite import SerialPipeline
from ding_lite.cli import main
from ding_lite.run.checkpoint import load_checkpoint

NUMBERS = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 143}


@pytest.fixture
def home(tmp_path):
    """Returns a function that writes a config on SlowEnv to c.json, and gives the arguments to train it."""

    def write(*, kwargs=None, **others):
        marks = tmp_path / "marks"
        marks.touch()
        config = small_config("SlowEnv", max_env_step=10**8, **others)
        config["env"] = {**config["env"], "type": "slow_worlds:SlowEnv", "env_id": ""}
        config["env"]["kwargs"] = {"marks": str(marks), **(kwargs or {})}
        (tmp_path / "c.json").write_text(json.dumps(config))
        return ["train", "-c", "c.json", "--exp-name", "run"]

    write.folder = tmp_path
    return write


def rows(folder):
    file = folder / "run" / "metrics.csv"
    return max(0, file.read_bytes().count(b"\n") - 1) if file.exists() else 0


def marks(folder):
    return (folder / "marks").read_text().splitlines()


def result(folder):
    return json.loads((folder / "run" / "result.json").read_text())


def last(folder):
    return load_checkpoint(folder / "run" / "ckpt" / "last.safetensors")[0]


def gone(pid):
    return not Path(f"/proc/{pid}").exists()


# ---------------------------------------------------------------------- training


@pytest.mark.parametrize("name", NUMBERS)
def test_first_signal_finishes_the_iteration_and_saves_it(name, warm, home):
    job = warm.start(*home(), cwd=home.folder)
    job.until(lambda: rows(home.folder) >= 2)
    job.send(getattr(signal, name))
    assert (job.wait(), job.errors) == (NUMBERS[name], "")
    assert (result(home.folder)["status"], result(home.folder)["error"]) == ("interrupted", name)
    assert last(home.folder)["progress"]["iteration"] == rows(home.folder)
    assert "interrupted after" in job.output


@pytest.mark.slow
@pytest.mark.parametrize("manager", [{"type": "base"}, {"type": "subprocess", "worker_num": 2}], ids=str)
def test_second_ctrl_c_stops_at_once_and_keeps_the_checkpoint_from_before(manager, warm, home):
    kwargs, sample = {"pause": 0.002}, {"collect": {"n_sample": 2000}}
    slow = home(kwargs=kwargs, env={"manager": manager}, checkpoint={"freq": 1}, policy=sample)
    job = warm.start(*slow, cwd=home.folder)
    job.until(lambda: (home.folder / "run" / "ckpt" / "last.safetensors").exists())
    time.sleep(0.3)
    before = digest(last(home.folder))
    job.send(signal.SIGINT)
    time.sleep(0.3)
    assert not gone(job.pid)  # it finishes its iteration, which takes seconds
    began = time.monotonic()
    job.send(signal.SIGINT)
    assert (job.wait(), job.errors) == (130, "")
    assert time.monotonic() - began < 10
    assert digest(last(home.folder)) == before  # the iteration was not finished
    assert result(home.folder)["status"] == "interrupted"
    assert all(gone(pid) for pid in marks(home.folder))  # the workers, too
    assert re.search(
        r"stopped at once; saved up to iteration \d+ of \d+; to continue: ding-lite train", job.output
    )


IN_TRAINING = {"kwargs": {"hangs_at": 80}}  # in the second iteration, which begins with step 64
IN_A_WORKER = {**IN_TRAINING, "env": {"manager": {"type": "subprocess"}}}
IN_AN_EVALUATION = {"kwargs": {"hangs_at": 80, "length": 100}, "policy": {"eval": {"eval_freq": 1}}}


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    "where", [IN_TRAINING, IN_A_WORKER, IN_AN_EVALUATION], ids=["base", "worker", "eval"]
)
def test_signal_ends_a_run_whose_environment_hangs_and_its_last_iteration_is_saved(where, warm, home):
    job = warm.start(*home(**where, stop_timeout=1), cwd=home.folder)
    job.until(lambda: "hangs" in marks(home.folder))
    began = time.monotonic()
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    assert 1 <= time.monotonic() - began < 10
    assert result(home.folder)["status"] == "interrupted"
    assert rows(home.folder) == last(home.folder)["progress"]["iteration"] == 1
    again = SerialPipeline.resume(home.folder / "run", override=True, trust=["slow_worlds"])
    assert again.progress.env_step == 256
    again.close()


@pytest.mark.slow
def test_signal_in_a_learning_phase_lets_it_finish_however_long_it_takes(warm, home):
    learn = {"learn": {"epoch_per_collect": 5000}}
    job = warm.start(*home(stop_timeout=0.5, policy=learn), cwd=home.folder)
    job.until(lambda: len(marks(home.folder)) >= 2 * 51)  # episodes: the second rollout is nearly complete
    time.sleep(0.5)
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    assert result(home.folder)["error"] == "SIGTERM"
    assert last(home.folder)["progress"]["iteration"] == rows(home.folder) >= 2


@pytest.mark.parametrize("stubborn", [False, True], ids=["", "catches everything"])
def test_signals_that_follow_do_not_disturb_the_save(stubborn, warm, home):
    kwargs = {"hangs_at": 80, "stubborn": stubborn}
    job = warm.start(*home(kwargs=kwargs, stop_timeout=0.5), cwd=home.folder)
    job.until(lambda: "hangs" in marks(home.folder))
    for _ in range(8):
        with contextlib.suppress(ProcessLookupError):  # it has ended by now
            job.send(signal.SIGTERM)
        time.sleep(0.1)
    # The last one may reach a process that has restored the handlers, since all is saved.
    assert job.wait() in (143, -signal.SIGTERM)
    assert result(home.folder)["status"] == "interrupted"
    assert rows(home.folder) == last(home.folder)["progress"]["iteration"] == 1


def test_environment_that_uses_alarms_keeps_them(warm, home):
    job = warm.start(*home(kwargs={"hangs_at": 80, "alarm": True}, stop_timeout=1), cwd=home.folder)
    job.until(lambda: "hangs" in marks(home.folder))
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    assert last(home.folder)["progress"]["iteration"] == 1


def test_signal_in_an_evaluation_lets_it_finish_and_its_row_is_there(warm, home):
    config = home(
        kwargs={"length": 60, "pause": 0.004},
        env={"n_evaluator_episode": 2, "evaluator_env_num": 1, "collector_env_num": 2},
        policy={"collect": {"n_sample": 4}, "learn": {"batch_size": 4}, "eval": {"eval_freq": 1}},
    )
    job = warm.start(*config, cwd=home.folder)
    job.until(lambda: rows(home.folder) >= 1)
    before = len(marks(home.folder))  # a training episode begins once in thirty iterations
    job.until(lambda: len(marks(home.folder)) > before)
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    state = last(home.folder)
    assert state["progress"]["iteration"] == state["scores"]["iteration"] == rows(home.folder)


@pytest.mark.slow
def test_signal_while_a_checkpoint_is_written_leaves_a_whole_one_and_no_other_file(warm, home):
    config = home(
        checkpoint={"freq": 1}, policy={"model": {"encoder_hidden_size_list": [1500, 1500]}}, num_threads=1
    )
    job = warm.start(*config, cwd=home.folder)
    folder = home.folder / "run" / "ckpt"
    job.until(lambda: rows(home.folder) >= 2)
    job.until(lambda: any(f.name.endswith(".tmp") for f in folder.glob(".last*")))
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    assert last(home.folder)["progress"]["iteration"] == rows(home.folder)
    assert sorted(f.name for f in folder.iterdir()) == ["last"]


@pytest.mark.slow
def test_who_sits_at_a_terminal_is_answered_at_once(home):
    ours, its = pty.openpty()
    command = [sys.executable, "-m", "ding_lite", *home(kwargs={"pause": 0.002})]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = subprocess.Popen(
        command, cwd=home.folder, env=environment, stdout=subprocess.DEVNULL, stderr=its, text=True
    )
    os.close(its)
    try:
        deadline = time.monotonic() + 60
        while rows(home.folder) < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        run.send_signal(signal.SIGINT)
        assert b"ending after this iteration, then saving; Ctrl-C again stops at once" in os.read(ours, 4096)
        assert run.wait(60) == 130
    finally:
        run.kill()
        run.wait()
        os.close(ours)
    assert last(home.folder)["progress"]["iteration"] == rows(home.folder)


def test_signal_at_the_very_end_does_not_undo_that_the_run_is_done(warm, home):
    config = home(kwargs={"pause": 0.002})
    job = warm.start(*config, "--max-env-step", "256", cwd=home.folder)
    job.until(lambda: len(marks(home.folder)) > 4)
    job.send(signal.SIGTERM)
    assert job.wait() == 0  # the signal did not end it
    assert result(home.folder)["status"] == "finished"
    assert result(home.folder)["eval_value"] == 5.0


@pytest.mark.slow
def test_interrupted_run_goes_on_as_if_it_had_not_been(warm, home):
    limit = ("--max-env-step", "5120")
    warm.run(*home(kwargs={"pause": 0.0002}), *limit, cwd=home.folder)
    straight = last(home.folder)
    (home.folder / "run").rename(home.folder / "straight")
    job = warm.start(*home(kwargs={"pause": 0.0002}), *limit, cwd=home.folder)
    for number in (signal.SIGINT, signal.SIGTERM):
        done = rows(home.folder)
        job.until(lambda done=done: rows(home.folder) > done + 1)
        job.send(number)
        assert job.wait() in (130, 143)
        job = warm.start("train", "--resume", "run", "--import", "slow_worlds", cwd=home.folder)
    assert (job.wait(), job.errors) == (0, "")
    assert {k: digest(v) for k, v in last(home.folder).items() if k != "clock"} == {
        k: digest(v) for k, v in straight.items() if k != "clock"
    }


# ---------------------------------------------------------------------- start-up


@pytest.mark.daily(1)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("manager", ["base", "subprocess"])
def test_signal_while_environments_are_made_leaves_nothing_behind(name, manager, warm, home):
    config = home(kwargs={"start": 60.0}, env={"manager": {"type": manager}})
    job = warm.start(*config, cwd=home.folder)
    job.until(lambda: len(marks(home.folder)) >= 1)
    time.sleep(0.1)
    job.send(getattr(signal, name))
    assert (job.wait(), job.errors) == (NUMBERS[name], "")
    assert sorted(f.name for f in home.folder.iterdir()) == ["c.json", "marks"]
    deadline = time.monotonic() + 10
    while not all(gone(pid) for pid in marks(home.folder)):
        assert time.monotonic() < deadline, "a worker has outlived its run"
        time.sleep(0.05)


def test_signal_while_a_config_file_runs_leaves_nothing_behind(warm, tmp_path):
    (tmp_path / "c.py").write_text(
        "import pathlib, time\npathlib.Path('mark').touch()\ntime.sleep(60)\nconfig = {}\n"
    )
    job = warm.start("train", "-c", "c.py", cwd=tmp_path)
    job.until(lambda: (tmp_path / "mark").exists())
    job.send(signal.SIGTERM)
    assert (job.wait(), job.errors) == (143, "")
    assert sorted(f.name for f in tmp_path.iterdir()) == ["c.py", "mark"]


def test_signal_while_libraries_are_imported_leaves_nothing_behind(tmp_path):
    command = [sys.executable, "-m", "ding_lite", "train", "--env", "CartPole-v1"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    maps = Path(f"/proc/{process.pid}/maps")
    deadline = time.monotonic() + 60
    while "libtorch" not in maps.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, "Traceback" in errors) == (143, False)
    assert list(tmp_path.iterdir()) == []


def test_signal_ends_an_evaluation_on_the_command_line_too(warm, home):
    warm.run(*home(), "--max-env-step", "256", cwd=home.folder)
    before = len(marks(home.folder))
    argv = ("eval", "run", "-n", "100000", "--import", "slow_worlds")
    job = warm.start(*argv, cwd=home.folder)
    job.until(lambda: len(marks(home.folder)) > before)
    job.send(signal.SIGTERM)
    assert (job.wait(), job.output, job.errors) == (143, "", "")


def test_handlers_of_before_come_back(tmp_path, monkeypatch, capsys):
    from ding_lite.cli import main

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["list", "policies"]) == 0
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_a_run_outside_of_the_main_thread_leaves_signals_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.json").write_text(json.dumps(small_config(max_env_step=256)))
    before, codes = signal.getsignal(signal.SIGTERM), []

    def train():
        codes.append(main(["train", "-c", "c.json", "--exp-name", "run"]))
        codes.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(60)
    assert codes == [0, True]


def test_nohup_is_respected(tmp_path):
    code = (
        "import signal; from ding_lite.cli.signals import Signals\n"
        "with Signals(): print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    )
    command = ["nohup", sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.endswith("True\n")


# ---------------------------------------------------------------------- two runs, one folder


def test_second_run_in_a_folder_is_refused_and_changes_nothing(warm, tmp_path):
    pipeline = SerialPipeline(small_config(), folder=tmp_path / "run")
    for progress in pipeline:
        if progress.iteration == 2:
            break
    before = {f: f.read_bytes() for f in sorted((tmp_path / "run").rglob("*")) if f.is_file()}
    job = warm.run("train", "--resume", "run", cwd=tmp_path)
    assert (job.code, job.output) == (2, "")
    assert f"run folder run is in use by process {os.getpid()} on " in job.errors
    assert {f: f.read_bytes() for f in sorted((tmp_path / "run").rglob("*")) if f.is_file()} == before
    pipeline.close()
    assert warm.run("train", "--resume", "run", cwd=tmp_path).code == 0


def test_lock_of_a_killed_run_is_free(warm, home):
    job = warm.start(*home(checkpoint={"freq": 1}), cwd=home.folder)
    job.until(lambda: rows(home.folder) >= 2)
    job.send(signal.SIGKILL)
    assert job.wait() == -9
    steps = last(home.folder)["progress"]["env_step"]
    again = ("train", "--resume", "run", "--import", "slow_worlds", "--max-env-step", steps + 256)
    job = warm.run(*again, cwd=home.folder)
    assert (job.code, job.errors) == (0, "")


def test_a_signal_to_all_processes_of_a_job_saves_the_run(tmp_path):
    """systemd and SLURM send it to the workers, too."""
    command = ["train", "-c", "cartpole_ppo", "--exp-name", "run", "env.manager.type=subprocess"]
    command += ["env.stop_value=None", "max_env_step=100000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ding_lite", *command], cwd=tmp_path, stdout=subprocess.PIPE
    )
    metrics = tmp_path / "run" / "metrics.csv"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        time.sleep(0.05)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    assert children
    for pid in (*map(int, children), process.pid):
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 143
    process.stdout.close()
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "run" / "ckpt" / "last.safetensors").is_dir()
