"""SIGINT and SIGTERM at any moment of an iteration: the run is saved, and the program hears of the signal."""

import os
import random
import signal
import threading

import pytest
from worlds import result_of, small_config, state_of, until

from ding_lite import SerialPipeline
from ding_lite.run.checkpoint import load_checkpoint

CONFIG = small_config(
    max_env_step=10**6,
    env={"manager": {"type": "base"}},
    policy={"eval": {"eval_freq": 512}},
    checkpoint={"freq": 512},
)


class Ended(Exception):
    pass


@pytest.fixture
def handler():
    """A program's handler of SIGINT, which raises."""

    def end(number, frame):
        raise Ended(number)

    before = signal.signal(signal.SIGINT, end)
    yield end
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("seed", range(8))
def test_ctrl_c_at_any_moment_loses_nothing(seed, tmp_path):
    run, rng = tmp_path / "run", random.Random(seed)
    pipeline = SerialPipeline(CONFIG, folder=run)
    timer = threading.Timer(rng.uniform(0.0, 0.4), os.kill, (os.getpid(), signal.SIGINT))

    def train():
        for progress in pipeline:
            if progress.iteration == 1:
                timer.start()

    with pytest.raises(KeyboardInterrupt):
        train()
    result, at = result_of(run), pipeline.progress.iteration
    assert (result["status"], result["error"], result["iterations"]) == ("interrupted", "SIGINT", at)
    assert load_checkpoint(run / "ckpt" / "last.safetensors")[0]["progress"]["iteration"] == at
    assert (run / "metrics.csv").read_text().count("\n") == 1 + at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    straight = SerialPipeline(CONFIG, folder=tmp_path / "straight")
    for pipeline in (SerialPipeline.resume(run), straight):
        until(pipeline, at + 2)
    assert state_of(run) == state_of(tmp_path / "straight")


def interrupted(tmp_path, times, during):
    """Returns a run in which SIGINT comes so many times when ``during`` of the pipeline is called thrice."""
    pipeline = SerialPipeline(CONFIG, folder=tmp_path / "run")
    owner, name = during(pipeline)
    method, calls = getattr(owner, name), []

    def counted(*args):
        calls.append(0)
        if len(calls) == 3:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        return method(*args)

    setattr(owner, name, counted)
    with pytest.raises(KeyboardInterrupt):
        list(pipeline)
    return pipeline


MOMENTS = {
    "collect": lambda pipeline: (pipeline.collector, "collect"),
    "learn": lambda pipeline: (pipeline.policy, "_forward_learn"),
    "evaluate": lambda pipeline: (pipeline.evaluator, "evaluate"),
    "save": lambda pipeline: (pipeline, "_save_what_is_due"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_iteration_ends_and_is_saved_whatever_the_signal_interrupts(moment, tmp_path, capfd):
    pipeline = interrupted(tmp_path, 1, MOMENTS[moment])
    at = pipeline.progress.iteration
    assert at == (6 if moment == "evaluate" else 3)
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "last.safetensors")
    assert state["progress"]["iteration"] == at
    assert "SIGINT: ending after this iteration" in capfd.readouterr().err
    assert "--resume" in (pipeline.folder / "log.txt").read_text().splitlines()[-1]


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_second_ctrl_c_stops_at_once_and_the_last_checkpoint_is_there(moment, tmp_path):
    pipeline = interrupted(tmp_path, 2, MOMENTS[moment])
    assert result_of(pipeline.folder)["status"] == "interrupted"
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "last.safetensors")
    assert state["progress"]["iteration"] == (4 if moment == "evaluate" else 2)


def test_a_program_s_own_handler_decides(handler, tmp_path):
    with pytest.raises(Ended):
        interrupted(tmp_path, 1, MOMENTS["collect"])
    assert result_of(tmp_path / "run")["status"] == "failed"
    assert signal.getsignal(signal.SIGINT) is handler
