"""torchrun with the same config: one run of several ranks, its checkpoints, and ranks that are killed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import until
from worlds import digest, result_of

from ding_lite import SerialPipeline
from ding_lite.errors import CheckpointError
from ding_lite.run.checkpoint import load_checkpoint

TRAIN = ("-m", "ding_lite", "train")  # of an interpreter for each rank
OPTIONS = [
    *("-c", "pendulum_ppg", "-q"),
    *("policy.collect.n_sample=1024", "policy.learn.aux_freq=2", "policy.eval.eval_freq=2048"),
    *("env.n_evaluator_episode=6", "checkpoint.freq=1024"),
]


@contextlib.contextmanager
def torchrun(ranks, *arguments, cwd, options=("--standalone",)):
    """Runs torchrun inside of the block; its output goes to the file ``output`` in ``cwd``."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "PYTHONFAULTHANDLER": "1"}  # see end_of
    with (cwd / "output").open("w") as output:
        process = subprocess.Popen(
            [*command, *options, *map(str, arguments)], cwd=cwd, stdout=output, stderr=output, env=environment
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def train(ranks, *arguments, cwd):
    with torchrun(ranks, *TRAIN, *arguments, cwd=cwd) as process:
        assert process.wait(120) == 0, (cwd / "output").read_text()


def ranks_in(cwd):
    """Returns the process ids of the ranks that run in ``cwd``, by rank."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if (folder / "cwd").resolve() == cwd:
                variables = (folder / "environ").read_bytes().split(b"\0")
                found |= {int(v[5:]): int(folder.name) for v in variables if v.startswith(b"RANK=")}
        except OSError:
            continue
    return found


def end_of(process, cwd):
    """Returns the exit code of torchrun, which gives its ranks 30 seconds to end.

    A rank that does not end is made to print where all of its threads are.
    """
    try:
        return process.wait(25)
    except subprocess.TimeoutExpired:
        for pid in ranks_in(cwd).values():
            os.kill(pid, signal.SIGABRT)
        process.wait(60)
        raise AssertionError((cwd / "output").read_text()) from None


def last(run):
    return load_checkpoint(run / "ckpt" / "last.safetensors")[0]


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """A run of 4,096 steps with two ranks."""
    cwd = tmp_path_factory.mktemp("straight").resolve()
    train(2, *OPTIONS, "--exp-name", "run", "--max-env-step", 4096, cwd=cwd)
    return cwd / "run"


@pytest.mark.slow
def test_two_ranks_write_one_run_with_the_work_of_one_process(straight):
    result = result_of(straight)
    assert (result["status"], result["env_step"]) == ("finished", 4096)
    episodes = (straight / "episodes.csv").read_text().splitlines()[1:]
    assert len(episodes) == 4096 // 200 // 8 * 8  # of eight environments, four of each rank
    log = (straight / "log.txt").read_text()
    assert "2 ranks, each with 4 of the environments" in log
    assert "over 6 episodes" in log
    state = last(straight)
    mine, others = state["policy"], state["ranks"][0]["policy"]
    assert digest(mine["model"]) == digest(others["model"])
    assert not np.array_equal(mine["generator of action"]["state"], others["generator of action"]["state"])


@pytest.mark.slow
def test_a_resumed_run_ends_bit_equal(straight, tmp_path):
    train(2, *OPTIONS, "--exp-name", "run", "--max-env-step", 2048, cwd=tmp_path)
    train(2, "--resume", "run", "-q", "--max-env-step", 4096, cwd=tmp_path)
    mine, theirs = last(tmp_path / "run"), last(straight)
    for part in ("policy", "collector", "progress", "ranks"):
        assert digest(mine[part]) == digest(theirs[part]), part


@pytest.mark.slow
def test_another_number_of_ranks_is_refused(straight):
    with pytest.raises(CheckpointError, match="number of ranks 2 -> 1"):
        SerialPipeline.resume(straight)


@pytest.mark.slow
def test_a_signal_to_one_rank_ends_all_after_the_same_iteration(tmp_path):
    cwd = tmp_path.resolve()
    with torchrun(2, *TRAIN, *OPTIONS, "--exp-name", "run", cwd=cwd) as process:
        until((cwd / "run" / "ckpt" / "last.safetensors").exists, process)
        os.kill(ranks_in(cwd)[1], signal.SIGTERM)
        end_of(process, cwd)
    result = result_of(cwd / "run")
    assert (result["status"], result["error"]) == ("interrupted", "SIGTERM")
    state = last(cwd / "run")
    iterations = [each["progress"]["iteration"] for each in (state, *state["ranks"])]
    assert iterations == [result["iterations"]] * 2


@pytest.mark.slow
def test_torchrun_starts_the_ranks_again_and_they_resume(tmp_path):
    cwd = tmp_path.resolve()
    run = cwd / "runs" / "pendulum_ppg"
    arguments = (*TRAIN, *OPTIONS, "--max-env-step", 16384)
    with torchrun(2, *arguments, cwd=cwd, options=["--standalone", "--max-restarts=1"]) as process:
        until((run / "ckpt" / "last.safetensors").exists, process)
        os.kill(ranks_in(cwd)[1], signal.SIGKILL)
        assert process.wait(120) == 0, (cwd / "output").read_text()
    assert [path.name for path in (cwd / "runs").iterdir()] == [run.name]
    result = result_of(run)
    assert (result["status"], result["env_step"]) == ("finished", 16384)
    assert "resumed" in (run / "log.txt").read_text()


STARTS = """
import json, sys
import ding_lite

env = dict(env_id="Pendulum-v1", collector_env_num=4, evaluator_env_num=3, n_evaluator_episode=7)
env["manager"] = dict(type="base")
pipeline = ding_lite.SerialPipeline(dict(env=env), folder=sys.argv[1])
obs = [row for rows in pipeline.ranks.from_all(pipeline.collector.obs[0].tolist()) for row in rows]
returns = pipeline.evaluator.evaluate(5, 0).returns
pipeline.close()
if pipeline.ranks.is_first:
    print(json.dumps([obs, returns]))
"""


@pytest.mark.slow
def test_ranks_have_the_start_states_and_the_evaluation_of_one_process(tmp_path):
    (tmp_path / "starts.py").write_text(STARTS)
    with torchrun(2, "--no-python", sys.executable, "starts.py", "two", cwd=tmp_path) as process:
        assert process.wait(90) == 0, (tmp_path / "output").read_text()
    two = next(line for line in (tmp_path / "output").read_text().splitlines() if line.startswith("[["))
    command = [sys.executable, "starts.py", "one"]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    (obs, returns), (obs_alone, returns_alone) = json.loads(two), json.loads(alone)
    assert obs == obs_alone
    assert len(returns) == 7
    # A batch of another size rounds otherwise.
    assert returns == pytest.approx(returns_alone, rel=1e-6)
