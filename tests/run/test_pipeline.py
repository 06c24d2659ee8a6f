"""The pipeline: its loop, limits, evaluations, checkpoints and failures, and the results it writes."""

import csv
import functools
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time

import gymnasium as gym
import numpy as np
import pytest
import torch
from small_worlds import LengthEnv, RaisingEnv, SeededBox, SeededEnv, SpoiledEnv
from worlds import digest, merged, small_config, vector_of

from ding_lite import SerialPipeline, compile_config, serial_pipeline, serial_pipeline_onpolicy
from ding_lite.data.collector import Collector
from ding_lite.data.episodes import Evaluation, Evaluator
from ding_lite.errors import CheckpointError, ConfigError, ContractError, EnvContractError, EnvError
from ding_lite.models import VAC, ActorCritic
from ding_lite.policies import PPOPolicy
from ding_lite.run import checkpoint
from ding_lite.run.checkpoint import load_checkpoint
from ding_lite.testing import MatchEnv


def counted(**others):
    """Returns a config on CartPole in which every row is valid: env steps are multiples of 256."""
    return small_config(**merged({"env": {"manager": {"type": "base"}}}, others))


@pytest.fixture
def make(tmp_path):
    """Returns a function that makes pipelines in folders of their own, and closes them in the end."""
    made = []

    def make(config=None, **options):
        folder = tmp_path / f"run_{len(made)}"
        made.append(SerialPipeline(config or counted(), folder=folder, **options))
        return made[-1]

    yield make
    for pipeline in made:
        pipeline.close()


def finished(pipeline):
    for _ in pipeline:
        pass
    return pipeline


def remade(cls, pipeline):
    """Returns an evaluator of another class in place of the pipeline's own."""
    old = pipeline.evaluator
    return cls(old.envs, old.mode, old.n_episode, old.max_steps)


def result_of(pipeline):
    return json.loads((pipeline.folder / "result.json").read_text())


class Narrow(PPOPolicy):
    def __init__(self, cfg, obs_space, action_space):
        super().__init__(cfg, obs_space, action_space)


def test_a_policy_that_does_not_take_the_arguments_of_all_is_told_what_to_declare(make):
    with pytest.raises(ContractError, match=r"Narrow.__init__.*\*\*options"):
        make(merged(small_config(), {"policy": {"type": Narrow}}))


# ---------------------------------------------------------------------- the loop


def test_every_turn_yields_a_progress_with_its_counters(make):
    counters = [(p.iteration, p.env_step, p.train_iter) for p in make()]
    # 256 rows in minibatches of 64, two passes: 8 steps an iteration.
    assert counters == [(n, 256 * n, 8 * n) for n in range(1, 7)]


def test_metrics_of_a_turn_have_the_four_kinds(make):
    for progress in make(counted(policy={"eval": {"eval_freq": 256}}, max_env_step=256)):
        kinds = {name.split("/")[0] for name in progress.metrics}
    assert kinds == {"collect", "learn", "time", "eval"}


def test_break_saves_the_run_and_says_interrupted(make):
    pipeline = make()
    for progress in pipeline:
        if progress.iteration == 2:
            break
    result = result_of(pipeline)
    assert (result["status"], result["iterations"], result["checkpoint"]) == ("interrupted", 2, "ckpt/last")
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "last")
    assert state["progress"]["env_step"] == 512


def test_a_break_whose_save_fails_is_an_error_of_the_pipelines_end(make):
    def leave(pipeline):
        for _ in pipeline:
            (pipeline.folder / "ckpt").write_text("in the way")
            break

    pipeline = make()
    with pytest.warns(RuntimeWarning, match="that a loop has left could not be saved: .*ckpt"):
        leave(pipeline)
    assert result_of(pipeline)["status"] == "failed"
    assert "CheckpointError" in (pipeline.folder / "log.txt").read_text()
    with pytest.raises(CheckpointError, match="ckpt"):
        pipeline.close()
    pipeline.close()  # once


def test_run_that_was_left_by_break_can_be_resumed(make):
    pipeline = make()
    for _ in pipeline:
        break
    pipeline.close()
    again = SerialPipeline.resume(pipeline.folder)
    assert [progress.iteration for progress in again] == [2, 3, 4, 5, 6]
    assert result_of(again)["status"] == "finished"


def test_pipeline_left_by_break_can_be_continued_in_place(make):
    straight, pipeline = finished(make()), make()
    for _ in pipeline:
        break
    finished(pipeline)
    assert digest(pipeline.policy.state_dict()) == digest(straight.policy.state_dict())


def test_best_score_is_that_of_the_best_checkpoint_though_another_save_failed(make, monkeypatch):
    config = counted(policy={"eval": {"eval_freq": 256}}, checkpoint={"freq": 256})
    write, returns = checkpoint.write_checkpoint, iter([1.0, 5.0, 3.0, 2.0, 2.0, 2.0])

    def full_for_last(folder, contents):
        iteration = json.loads(contents[checkpoint.STATE])["progress"]["iteration"]
        if folder.name == "last" and iteration == 2:
            raise CheckpointError("no room") from OSError()
        write(folder, contents)

    monkeypatch.setattr(checkpoint, "write_checkpoint", full_for_last)
    pipeline = make(config)
    monkeypatch.setattr(pipeline.evaluator, "evaluate", lambda *stream: Evaluation((next(returns),), (1,), 0))
    finished(pipeline)
    assert "Training goes on" in (pipeline.folder / "log.txt").read_text()
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "best")
    assert state["progress"]["iteration"] == 2
    assert result_of(pipeline)["best_eval_value"] == 5.0


def test_best_score_is_set_back_if_the_state_for_it_cannot_be_taken(make, monkeypatch):
    returns = iter([1.0, 5.0, 3.0, 2.0, 2.0, 2.0, 2.0])
    pipeline = make(counted(policy={"eval": {"eval_freq": 256}}, checkpoint={"freq": 256}))
    state = pipeline.collector.state_dict

    def hanging():
        if pipeline.progress.iteration == 2:
            raise EnvError("a worker hangs")
        return state()

    monkeypatch.setattr(pipeline.evaluator, "evaluate", lambda *stream: Evaluation((next(returns),), (1,), 0))
    monkeypatch.setattr(pipeline.collector, "state_dict", hanging)
    with pytest.raises(EnvError):
        finished(pipeline)
    best, _ = load_checkpoint(pipeline.folder / "ckpt" / "best")
    assert best["progress"]["iteration"] == 1
    assert result_of(pipeline)["best_eval_value"] == 1.0


def test_seconds_of_an_earlier_loop_count(make):
    pipeline = make()
    for _ in pipeline:
        pipeline.clock._began -= 1000  # as if this iteration had taken so long
        break
    assert 1000 < result_of(pipeline)["wall_time_s"] < 1900
    finished(pipeline)
    assert 1000 < result_of(pipeline)["wall_time_s"] < 1900


def test_seconds_of_the_script_between_two_loops_and_after_the_end_do_not_count(make):
    pipeline = make()
    for _ in pipeline:
        break
    seconds = pipeline.wall_time
    time.sleep(0.01)
    assert pipeline.wall_time == seconds
    finished(pipeline)
    seconds = pipeline.wall_time
    time.sleep(0.01)
    assert pipeline.wall_time == seconds


def with_fillers(num_envs, length=5):
    """Returns gymnasium's vector of environments, in its autoreset mode NEXT_STEP."""
    return gym.vector.SyncVectorEnv([functools.partial(LengthEnv, length)] * num_envs)


def test_rollout_without_a_step_is_an_error_that_says_what_to_change(make):
    # With a row per environment, each second rollout of episodes of one step has resets only.
    make_envs = functools.partial(with_fillers, length=1)
    env = dict(type=make_envs, collector_env_num=4, manager=dict(type="vector"))
    pipeline = make(small_config(env=env, policy=dict(collect=dict(n_sample=4), learn=dict(batch_size=4))))
    with pytest.raises(EnvError, match=r"none of the 4 rows .*policy\.collect\.n_sample"):
        finished(pipeline)


@pytest.mark.slow
@pytest.mark.parametrize("manager", ["base", "subprocess"])
def test_loop_that_is_open_when_the_interpreter_ends_is_saved(manager, tmp_path):
    script = f"""if True:
        from ding_lite import SerialPipeline
        config = {counted(env={"manager": manager})!r}
        turns = iter(SerialPipeline(config, folder="run"))
        next(turns), next(turns)
    """
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (result["status"], result["iterations"], result["checkpoint"]) == ("interrupted", 2, "ckpt/last")
    again = finished(SerialPipeline.resume(tmp_path / "run"))
    assert (again.progress.iteration, again.status) == (6, "finished")


def test_close_ends_a_loop_that_is_still_open(make):
    pipeline = make()
    turns = iter(pipeline)
    assert next(turns).iteration == 1
    pipeline.close()
    assert result_of(pipeline)["status"] == "interrupted"
    assert next(turns, None) is None
    again = finished(SerialPipeline.resume(pipeline.folder))
    assert again.status == "finished"


def test_close_twice_is_fine(make):
    pipeline = finished(make(counted(max_env_step=256)))
    pipeline.close()
    pipeline.close()
    assert result_of(pipeline)["status"] == "finished"


def test_with_block_closes_the_pipeline_and_saves_the_run_that_an_error_left(make):
    def trained_until_an_error(pipeline):
        with pipeline:
            for progress in pipeline:
                assert progress.iteration < 3 or 1 / 0

    pipeline = make(counted(max_env_step=2_560))
    with pytest.raises(ZeroDivisionError):
        trained_until_an_error(pipeline)
    with pytest.raises(EnvError, match="closed"):
        pipeline.step()
    again = SerialPipeline.resume(pipeline.folder)
    assert again.progress.iteration == 3
    again.close()


def test_name_that_is_taken_is_said_and_a_folder_without_an_iteration_is_replaced(tmp_path, monkeypatch):
    class Failing(PPOPolicy):
        def policy_loss(self, batch):
            raise ValueError("mine")

    monkeypatch.chdir(tmp_path)
    config = counted(exp_name="mine")
    for _ in range(2):
        with pytest.raises(ValueError, match="mine"):
            serial_pipeline(merged(config, {"policy": {"type": Failing}}))
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["mine"]
    (tmp_path / "runs" / "mine" / "notes.txt").write_text("kept")
    with pytest.raises(ConfigError, match="run folder .* exists"):
        SerialPipeline(config, folder=tmp_path / "runs" / "mine")
    (tmp_path / "runs" / "mine" / "notes.txt").unlink()
    for number, folder in enumerate(["mine", "mine_2"]):
        pipeline = finished(SerialPipeline(config, max_env_step=256))
        assert pipeline.folder.name == folder
        told = "runs/mine exists: this run is runs/mine_2" in (pipeline.folder / "log.txt").read_text()
        assert told is bool(number)


def test_serial_pipeline_takes_a_folder_and_weights_to_begin_with(make, tmp_path, capsys):
    first = finished(make())
    policy = serial_pipeline(counted(max_env_step=256), folder=tmp_path / "own", init_from=first.folder)
    assert load_checkpoint(tmp_path / "own" / "ckpt" / "last")[0]["progress"]["env_step"] == 256
    assert policy.act(policy.obs_space.sample()) in policy.action_space


def stopped_in(make, monkeypatch, iteration):
    """Returns a run that a signal stopped while an iteration learned, too late for its evaluation."""
    pipeline = make(counted(policy={"eval": {"eval_freq": 512}}, stop_timeout=0))
    train = pipeline.learner.train

    def train_and_stop(rollout):
        if pipeline.progress.iteration + 1 == iteration:
            pipeline.request_stop("SIGTERM")
        return train(rollout)

    monkeypatch.setattr(pipeline.learner, "train", train_and_stop)
    assert [bool(progress.evaluation) for progress in pipeline][-1] is False
    assert result_of(pipeline)["status"] == "interrupted"
    return pipeline


def test_evaluation_that_a_signal_cut_short_is_made_up_for_by_the_next_iteration(make, monkeypatch):
    straight = [
        (p.env_step, p.evaluation is not None) for p in make(counted(policy={"eval": {"eval_freq": 512}}))
    ]
    assert straight == [(256, False), (512, True), (768, False), (1024, True), (1280, False), (1536, True)]
    again = SerialPipeline.resume(stopped_in(make, monkeypatch, 2).folder)
    resumed = [(progress.env_step, progress.evaluation is not None) for progress in again]
    assert resumed == [(768, True), *straight[3:]]


def test_last_evaluation_that_a_signal_cut_short_is_made_when_the_run_goes_on(make, monkeypatch):
    straight = finished(make(counted(policy={"eval": {"eval_freq": 512}})))
    again = SerialPipeline.resume(stopped_in(make, monkeypatch, 6).folder)
    assert list(again) == []
    assert again.scores.last == straight.scores.last
    assert result_of(again)["status"] == "finished"
    assert result_of(again)["eval_value"] == result_of(straight)["eval_value"]
    of_straight, of_again = (
        list(csv.DictReader((p.folder / "metrics.csv").read_text().splitlines())) for p in (straight, again)
    )
    assert of_again[-1]["env_step"] == of_straight[-1]["env_step"]
    assert of_again[-1]["eval/episode_return_mean"] == of_straight[-1]["eval/episode_return_mean"] != ""


def test_last_evaluation_that_an_environment_ended_is_made_when_the_run_goes_on(make, monkeypatch):
    config = counted(checkpoint={"keep_freq": 1024, "keep": 2})
    straight = finished(make(config))

    def broken(*stream, **options):
        raise EnvError("the simulator is gone")

    failed = make(config)
    monkeypatch.setattr(failed.evaluator, "evaluate", broken)
    with pytest.raises(EnvError):
        list(failed)
    again = SerialPipeline.resume(failed.folder)
    assert list(again) == []
    assert again.scores.last == straight.scores.last
    assert result_of(again)["status"] == "finished"
    assert result_of(again)["eval_value"] == result_of(straight)["eval_value"]
    # The evaluation is no iteration: it adds no snapshot.
    assert [f.name for f in (again.folder / "ckpt").glob("iteration_*")] == ["iteration_00000004"]


def test_each_turn_yields_a_progress_of_its_own(make):
    pipeline = make()
    seen = list(pipeline)
    assert [progress.env_step for progress in seen] == [256, 512, 768, 1024, 1280, 1536]
    assert len({progress.metrics["learn/policy_loss"] for progress in seen}) == 6


def test_loop_over_a_closed_pipeline_says_how_to_go_on(make):
    pipeline = make()
    for _ in pipeline:
        break
    pipeline.close()
    before = result_of(pipeline)
    with pytest.raises(ContractError, match=r"is closed.*SerialPipeline\.resume\("):
        next(iter(pipeline))
    assert result_of(pipeline) == before


def test_save_after_a_cut_iteration_is_refused_and_the_checkpoints_stay_whole(make, monkeypatch):
    pipeline = make()
    train = pipeline.learner.train

    def train_and_stop(rollout):
        train(rollout)
        if pipeline.progress.iteration == 2:
            raise KeyboardInterrupt

    turns = iter(pipeline)
    next(turns)
    pipeline.save()
    monkeypatch.setattr(pipeline.learner, "train", lambda rollout: train_and_stop(rollout) or train(rollout))
    with pytest.raises(KeyboardInterrupt):
        list(turns)
    with pytest.raises(CheckpointError, match="did not end"):
        pipeline.save()
    again = SerialPipeline.resume(pipeline.folder)
    assert again.progress.iteration == 1
    again.close()


def test_resuming_a_finished_run_takes_no_further_turn(make):
    pipeline = finished(make())
    again = SerialPipeline.resume(pipeline.folder)
    assert again.is_over()
    assert list(again) == []


def test_resuming_twice_from_one_checkpoint_gives_the_same(make):
    pipeline = make()
    for _ in pipeline:
        break
    pipeline.close()
    snapshot = pipeline.folder / "ckpt" / "last"
    digests = []
    for _ in range(2):
        again = SerialPipeline.resume(snapshot)
        again.step()
        again.close()  # without a save
        digests.append(digest(again.policy.state_dict()))
    assert digests[0] == digests[1]


def test_request_to_stop_ends_the_run_at_the_next_boundary(make):
    pipeline = make()
    for progress in pipeline:
        if progress.iteration == 2:
            pipeline.request_stop("SIGTERM")
    result = result_of(pipeline)
    assert (result["status"], result["iterations"], result["error"]) == ("interrupted", 2, "SIGTERM")
    assert result["eval_value"] is None
    assert pipeline.summary().startswith("interrupted after 512 env steps")


def test_a_pipeline_that_was_only_stepped_is_interrupted_when_it_is_closed(make):
    pipeline = make()
    pipeline.step()
    pipeline.close()
    result = result_of(pipeline)
    assert (result["status"], result["iterations"], result["checkpoint"]) == ("interrupted", 1, None)
    assert "without a save" in result["error"]


class Unsaveable(PPOPolicy):
    """Raises an error when its state is taken, from the third iteration on."""

    def state_dict(self):
        if self.replay.iteration > 2:
            raise KeyError("own")
        return super().state_dict()


def test_a_state_that_cannot_be_taken_leaves_a_result_and_nothing_open(make):
    pipeline = make(counted(checkpoint=dict(freq=64)))
    pipeline.policy.__class__ = Unsaveable
    with pytest.raises(KeyError, match="own"):
        finished(pipeline)
    result = result_of(pipeline)
    assert (result["status"], result["error"]) == ("failed", "KeyError: 'own'")
    with pytest.raises(ContractError, match="closed"):
        iter(pipeline)


def test_a_stepped_run_whose_checkpoint_is_still_written_is_saved(make):
    pipeline = make(counted(checkpoint=dict(freq=64)))
    pipeline.step()
    pipeline.close()
    assert (pipeline.folder / "ckpt" / "last").exists()
    assert not (pipeline.folder / "result.json").exists()


def test_a_second_loop_ends_the_first_as_a_break_does(make):
    pipeline = make()
    first, second = iter(pipeline), None
    next(first)
    second = iter(pipeline)
    assert pipeline.status == "interrupted"
    assert list(first) == []
    progress = next(second)
    del first
    assert (progress.iteration, pipeline.status) == (2, "running")
    seconds = pipeline.wall_time
    time.sleep(0.01)
    assert pipeline.wall_time > seconds
    second.close()


def test_a_signal_alone_bounds_the_time_of_an_evaluation(make):
    pipeline = make()
    pipeline.request_stop("my own reason")
    assert pipeline.evaluator.stop_at is None
    pipeline.request_stop("SIGTERM")
    assert pipeline.evaluator.stop_at is not None


# ---------------------------------------------------------------------- limits


@pytest.mark.parametrize(("limit", "steps"), [(1, 256), (256, 256), (257, 512), (1000, 1024)])
def test_env_step_limit_stops_at_the_first_boundary_at_or_past_it(make, limit, steps):
    assert finished(make(max_env_step=limit)).progress.env_step == steps


@pytest.mark.parametrize(("limit", "iterations"), [(1, 1), (8, 1), (9, 2), (24, 3)])
def test_train_iter_limit_stops_at_the_first_boundary_at_or_past_it(make, limit, iterations):
    pipeline = finished(make(max_train_iter=limit))
    assert pipeline.progress.iteration == iterations


def test_limits_given_to_the_pipeline_leave_the_schedules_alone(make):
    pipeline = make(counted(policy={"learn": {"lr_schedule": "linear"}}), max_env_step=256)
    assert pipeline.cfg.policy.learn.schedule_env_step == 1536


def test_rounded_n_sample_is_logged(make):
    pipeline = make(counted(policy={"collect": {"n_sample": 130}, "learn": {"batch_size": 32}}))
    assert next(iter(pipeline)).env_step == 132
    assert "n_sample=130 is rounded up to 132" in (pipeline.folder / "log.txt").read_text()


def test_env_step_counts_valid_rows_alone(make):
    pipeline = make(small_config(with_fillers, env={"manager": "vector"}, max_env_step=100))
    (progress,) = list(pipeline)
    # Episodes of 5 steps and a filler: in 64 rows there are 10 fillers.
    assert progress.env_step == 256 - 4 * 10


# ---------------------------------------------------------------------- evaluation


LENGTH = small_config(LengthEnv, env={"stop_value": 5.0}, policy={"eval": {"eval_freq": 256}})


def test_solved_ends_the_run_after_a_second_evaluation(make):
    pipeline = finished(make(LENGTH))
    assert pipeline.progress.iteration == 1
    assert pipeline.progress.solved
    assert len(pipeline.scores.last.returns) == 2 * 2  # both evaluations
    assert result_of(pipeline)["status"] == "solved"
    assert result_of(pipeline)["solved"] is True


def test_one_lucky_evaluation_does_not_solve(make):
    """Every second evaluation is one below the bar."""
    pipeline = make(merged(LENGTH, {"env": {"stop_value": 4.5}}))
    asked = []

    class Moody(Evaluator):
        def evaluate(self, *stream, **options):
            asked.append(stream)
            for env in self.envs.envs:
                env.unwrapped.length = 5 if stream[1] == 0 else 4
            return super().evaluate(*stream, **options)

    pipeline.evaluator = remade(Moody, pipeline)
    finished(pipeline)
    assert not pipeline.progress.solved
    assert asked[:4] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert result_of(pipeline)["status"] == "finished"


def test_a_solved_run_that_trains_on_stays_solved_after_a_worse_evaluation(make, monkeypatch):
    pipeline = make(LENGTH)
    pipeline.progress.solved = pipeline.progress.past_solved = True
    monkeypatch.setattr(pipeline.scores, "evaluate", lambda *_: (Evaluation((0.0,), (1,)), False))
    pipeline._evaluate()
    assert pipeline.progress.solved


def test_no_stop_value_is_never_solved(make):
    pipeline = finished(make(merged(LENGTH, {"env": {"stop_value": None}})))
    assert pipeline.progress.iteration == 6
    assert result_of(pipeline)["solved"] is False


def test_last_evaluation_comes_at_the_end_and_has_a_row(make):
    pipeline = finished(make(small_config(LengthEnv)))
    assert pipeline.scores.iteration == 6
    assert result_of(pipeline)["eval_value"] == 5.0
    first, *rows = (pipeline.folder / "metrics.csv").read_text().splitlines()
    column = first.split(",").index("eval/episode_return_mean")
    assert [row.split(",")[column] for row in rows] == [""] * 5 + ["5.0"]


def test_last_evaluation_is_not_repeated_where_there_was_one(make):
    pipeline = finished(make(small_config(LengthEnv, policy={"eval": {"eval_freq": 256}})))
    assert (pipeline.folder / "metrics.csv").read_text().count("\n") == 1 + 6


@pytest.mark.parametrize(
    ("freq", "iterations"), [(256, [1, 2, 3, 4, 5, 6]), (300, [2, 3, 4, 5, 6]), (700, [3, 6])]
)
def test_evaluations_come_at_the_first_boundary_past_each_multiple(make, freq, iterations):
    pipeline = make(counted(policy={"eval": {"eval_freq": freq}}))
    evaluated = [p.iteration for p in pipeline if p.evaluation is not None]
    assert evaluated == iterations


def test_best_checkpoint_is_that_of_the_best_mean(make):
    """The evaluation environments pay less and less after the third evaluation."""
    pipeline = make(small_config(LengthEnv, policy={"eval": {"eval_freq": 256}}))
    lengths = iter([3, 5, 7, 6, 6, 2])

    class Changing(Evaluator):
        def evaluate(self, *stream, **options):
            length = next(lengths)
            for env in self.envs.envs:
                env.unwrapped.length = length
            return super().evaluate(*stream, **options)

    pipeline.evaluator = remade(Changing, pipeline)
    finished(pipeline)
    state, _ = load_checkpoint(pipeline.folder / "ckpt" / "best")
    assert state["progress"]["iteration"] == 3
    assert state["scores"]["best"] == 7.0
    result = result_of(pipeline)
    assert (result["best_eval_value"], result["best_checkpoint"], result["eval_value"]) == (
        7.0,
        "ckpt/best",
        2.0,
    )


class NoNumber(Evaluator):
    """An evaluation that came to nothing, as of an environment that never ends."""

    def evaluate(self, *stream, **options):
        return Evaluation((float("nan"),), (1,))


def test_nan_never_becomes_the_best_and_result_is_json_that_anyone_can_read(make):
    pipeline = make(small_config(LengthEnv, max_env_step=256))
    pipeline.evaluator = remade(NoNumber, pipeline)
    finished(pipeline)
    assert not (pipeline.folder / "ckpt" / "best").exists()
    text = (pipeline.folder / "result.json").read_text()
    assert "NaN" not in text
    result = json.loads(text)
    assert [result[k] for k in ("best_checkpoint", "best_eval_value", "eval_value")] == [None] * 3


# ---------------------------------------------------------------------- checkpoints


def test_checkpoints_come_at_their_multiples_and_snapshots_are_pruned(make):
    pipeline = make(counted(checkpoint={"freq": 512, "keep_freq": 256, "keep": 2}))
    saved = []
    for progress in pipeline:
        last = pipeline.folder / "ckpt" / "last"
        pipeline.checkpoints.wait()
        saved.append(load_checkpoint(last)[0]["progress"]["iteration"] if last.exists() else None)
        assert progress.iteration == len(saved)
    assert saved == [None, 2, 2, 4, 4, 6]
    snapshots = sorted(f.name for f in (pipeline.folder / "ckpt").glob("iteration_*"))
    assert snapshots == ["iteration_00000005", "iteration_00000006"]


def test_snapshot_can_be_resumed_from(make):
    pipeline = finished(make(counted(checkpoint={"keep_freq": 256, "keep": 9})))
    again = SerialPipeline.resume(pipeline.folder, checkpoint="iteration_00000004")
    assert [progress.iteration for progress in again] == [5, 6]
    assert digest(again.policy.state_dict()) == digest(pipeline.policy.state_dict())


def test_assigned_learning_rate_replaces_the_base_of_the_schedule_and_is_saved(make):
    pipeline = make(counted(policy={"learn": {"lr_schedule": "linear", "learning_rate": 1e-3}}))
    rates = []
    for progress in pipeline:
        rates.append(progress.metrics["learn/cur_lr"])
        if progress.iteration == 2:
            pipeline.policy.learning_rate = 4e-3
        if progress.iteration == 3:
            break
    pipeline.close()
    again = SerialPipeline.resume(pipeline.folder)
    assert again.policy.learning_rate == 4e-3
    rates += [progress.metrics["learn/cur_lr"] for progress in again]
    for wrong in (0.0, -1.0, float("nan"), float("inf"), "x", None):
        with pytest.raises(ConfigError, match="learning_rate: expected a positive number, got "):
            again.policy.learning_rate = wrong
    bases = [1e-3, 1e-3, 4e-3, 4e-3, 4e-3, 4e-3]
    assert rates == pytest.approx([base * (1 - n / 6) for n, base in enumerate(bases)])


# ---------------------------------------------------------------------- what is brought along


def test_env_setting_brings_environments_for_both_sides(make):
    setting = (LengthEnv, [3, 3, 3], [9, 9])
    pipeline = finished(make(small_config(LengthEnv), env_setting=setting))
    assert pipeline.collector.metrics()["episode_length"] == 3
    assert pipeline.scores.last.lengths == (9, 9)


class Succeeding(LengthEnv):
    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "is_success": 1}


def test_env_setting_brings_the_keys_of_info_for_both_sides(make):
    pipeline = make(small_config(LengthEnv), env_setting=(Succeeding, [3], [3]))
    for envs in (pipeline.collector.envs, pipeline.evaluator.envs):
        envs.reset("collect")
        (*_, transition) = [envs.step(np.zeros(1, int)) for _ in range(3)]
        assert transition.episodes[0].info == {"is_success": 1.0}


class Tried(LengthEnv):
    """Every third episode of an environment succeeds; the first says nothing about it."""

    episodes = 0

    def reset(self, *, seed=None, options=None):
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action):
        *result, info = super().step(action)
        return *result, info if self.episodes == 1 else {"is_success": self.episodes % 3 == 0}


class Reserved(LengthEnv):
    def step(self, action):
        *result, info = super().step(action)
        return *result, {**info, "length": -9.0, "return": 3.5, "env_step": 1e9}


def test_a_key_of_info_replaces_no_column(make):
    keys = ["length", "return", "env_step"]
    pipeline = finished(make(small_config(Reserved, env={"info_keys": keys})))
    with (pipeline.folder / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {(row["length"], row["return"]) for row in rows} == {("5", "5.0")}
    assert max(int(row["env_step"]) for row in rows) <= pipeline.progress.env_step


def test_episodes_without_infos_count_as_failures_after_a_resume_too(make):
    pipeline = finished(make())
    again = SerialPipeline.resume(pipeline.folder)
    assert again.collector.infos == pipeline.collector.infos
    assert list(again.collector.infos) == [{}] * len(again.collector.finished) != []
    assert again.scores.last == pipeline.scores.last
    again.close()


def test_keys_of_info_have_their_means_among_the_metrics_also_after_a_resume(make, tmp_path):
    config = small_config(
        LengthEnv, max_env_step=32, policy={"collect": {"n_sample": 16}, "learn": {"batch_size": 16}}
    )
    setting = (lambda cfg: Tried(4), [0], [0])
    pipeline = make(config, env_setting=setting)
    metrics = [progress.metrics for progress in pipeline][0]
    assert metrics["collect/is_success"] == 1 / 4, "the first episode says nothing: it has failed"
    last = pipeline.progress.metrics
    assert last["collect/is_success"] == 2 / 8
    assert last["eval/is_success"] == 0.0  # the second of two episodes
    again = SerialPipeline.resume(pipeline.folder, env_setting=setting, trust=["small_worlds"])
    assert again.collector.infos == pipeline.collector.infos
    assert again.scores.last == pipeline.scores.last
    again.close()
    header = (pipeline.folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert {"collect/is_success", "eval/is_success"} <= set(header)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        (LengthEnv, r"expected \(make, collector_cfgs, evaluator_cfgs\), got <class"),
        ((LengthEnv, [3]), "got \\(<class"),
        (([3], [3], [3]), r"make\(cfg\) returns an environment; got \[3\] for make"),
        ((LengthEnv, 3, [3]), "collector_cfgs is a list .* got 3"),
        ((LengthEnv, [3], []), r"evaluator_cfgs is a list .* got \[\]"),
    ],
    ids=["a class", "two", "no function", "a number", "empty"],
)
def test_env_setting_of_another_kind_is_refused(setting, told, make):
    with pytest.raises(ConfigError, match=f"env_setting: .*{told}"):
        make(small_config(LengthEnv), env_setting=setting)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        (lambda obs, actions: "vac", "expected an object of a subclass of ding_lite.ActorCritic"),
        (lambda obs, actions: ActorCritic, "expected an object"),
        (lambda obs, actions: torch.nn.Linear(4, 2), "expected an object"),
        (lambda obs, actions: VAC(obs, type(actions)(3)), r"for .* Discrete\(3\), but .* have Discrete\(2\)"),
    ],
    ids=["a name", "a class", "another module", "another space"],
)
def test_model_that_cannot_act_here_is_refused(model, told, make):
    envs = LengthEnv()
    with pytest.raises(ContractError, match=f"model: .*{told}"):
        make(small_config(LengthEnv), model=model(envs.observation_space, envs.action_space))


def test_env_setting_is_bounded_in_evaluation(make):
    setting = (LengthEnv, [3], [10**9])
    config = small_config(LengthEnv, env={"max_eval_steps": 4}, max_env_step=256)
    pipeline = finished(make(config, env_setting=setting))
    assert pipeline.scores.last.lengths == (4, 4)
    assert "(2 cut short)" in (pipeline.folder / "log.txt").read_text()


class Ones(ActorCritic):
    """A model whose parameters are all 0.5."""

    def __init__(self, obs_space, action_space):
        from ding_lite.models import ActionHead

        super().__init__(obs_space, action_space)
        self.actor_head = ActionHead(action_space, obs_space.shape[0])
        self.critic_head = torch.nn.Linear(obs_space.shape[0], 1)
        self.value_heads = (self.critic_head,)
        for parameter in self.parameters():
            torch.nn.init.constant_(parameter, 0.5)

    def compute_actor(self, obs):
        return self.actor_head(obs)

    def compute_critic(self, obs):
        return self.critic_head(obs).squeeze(-1)


def test_user_s_model_is_used_as_it_is(make):
    env = MatchEnv()
    model = Ones(env.observation_space, env.action_space)
    pipeline = make(small_config(MatchEnv), model=model)
    assert pipeline.policy.model is model
    assert all((parameter == 0.5).all() for parameter in model.parameters())
    next(iter(pipeline))
    assert not all((parameter == 0.5).all() for parameter in model.parameters())


def test_config_is_never_changed(make):
    config = counted()
    before = json.dumps(config)
    finished(make(config))
    assert json.dumps(config) == before


def test_serial_pipeline_returns_the_trained_policy(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = counted(exp_name="mine", max_env_step=256)
    policy = serial_pipeline(config, seed=3)
    assert isinstance(policy, PPOPolicy)
    assert policy.progress.env_step == 256
    assert json.loads((tmp_path / "runs" / "mine" / "result.json").read_text())["seed"] == 3
    assert "finished after 256 env steps" in capsys.readouterr().out


def test_the_name_of_di_engine_is_the_same_function():
    assert serial_pipeline_onpolicy is serial_pipeline


# ---------------------------------------------------------------------- modes alone


def policy_with(*fields, env=SeededEnv):
    cfg = compile_config(small_config(env)).values.policy
    return PPOPolicy(cfg, env.observation_space, env.action_space, enable_field=fields)


@pytest.mark.parametrize("env", [SeededEnv, SeededBox])
def test_collect_mode_works_alone(env):
    policy = policy_with("collect", env=env)
    rollout = Collector(vector_of(lambda i: env(), 2), policy.collect_mode, 8).collect()
    assert rollout.advantage.shape == (4, 2)


@pytest.mark.parametrize("env", [SeededEnv, SeededBox])
def test_eval_mode_works_alone(env):
    policy = policy_with("eval", env=env)
    envs = vector_of(lambda i: env(), 2)
    assert len(Evaluator(envs, policy.eval_mode, 3, 100).evaluate(0).returns) == 3


@pytest.mark.parametrize("env", [SeededEnv, SeededBox])
def test_learn_mode_works_alone(env):
    rollout = Collector(
        vector_of(lambda i: env(), 2), policy_with("collect", env=env).collect_mode, 128
    ).collect()
    assert policy_with("learn", env=env).learn_mode.forward(rollout)["updates"] == 4.0


def test_modes_apart_learn_the_same_as_one_policy_with_all():
    """A collecting and a learning policy that pass the state on are one policy."""
    envs, whole_envs = vector_of(lambda i: SeededEnv(), 2), vector_of(lambda i: SeededEnv(), 2)
    collecting, learning = policy_with("collect"), policy_with("learn")
    whole = policy_with("collect", "learn")
    apart = Collector(envs, collecting.collect_mode, 64)
    together = Collector(whole_envs, whole.collect_mode, 64)
    for _ in range(3):
        learning.learn_mode.forward(apart.collect())
        collecting.collect_mode.load_state_dict(learning.learn_mode.state_dict())
        whole.learn_mode.forward(together.collect())
    assert digest(learning.model.state_dict()) == digest(whole.model.state_dict())
    assert digest(collecting.model.state_dict()) == digest(whole.model.state_dict())


@pytest.mark.parametrize("mode", ["learn", "collect", "eval"])
def test_mode_that_was_not_enabled_says_so(mode):
    others = [name for name in ("learn", "collect", "eval") if name != mode]
    with pytest.raises(ContractError, match=f"without '{mode}'"):
        getattr(policy_with(*others), f"{mode}_mode")


# ---------------------------------------------------------------------- runs that fail


def test_environment_that_raises_fails_the_run_and_keeps_the_last_checkpoint(make):
    config = small_config(RaisingEnv, env={"kwargs": {"at": 150}}, checkpoint={"freq": 256})
    pipeline = make(config)
    with pytest.raises(EnvError, match="the world has ended"):
        finished(pipeline)
    result = result_of(pipeline)
    assert (result["status"], result["iterations"], result["env_step"]) == ("failed", 2, 512)
    assert "the world has ended" in result["error"]
    assert load_checkpoint(pipeline.folder / "ckpt" / "last")[0]["progress"]["iteration"] == 2
    assert "the world has ended" in (pipeline.folder / "log.txt").read_text()


class HungryPPO(PPOPolicy):
    """Wants more memory than there is, from its second iteration on."""

    def policy_loss(self, batch):
        if self.learned:
            torch.empty(2**60)
        return super().policy_loss(batch)

    learned = False

    def _forward_learn(self, data):
        metrics = super()._forward_learn(data)
        self.learned = True
        return metrics


def test_out_of_memory_says_what_to_lower_and_keeps_the_last_checkpoint(make):
    pipeline = make(counted(policy={"type": HungryPPO}, checkpoint={"freq": 256}))
    message = r"out of memory .* 64 steps of 4 environments: .*Lower policy.learn.batch_size"
    with pytest.raises(ConfigError, match=message):
        finished(pipeline)
    assert result_of(pipeline)["status"] == "failed"
    assert load_checkpoint(pipeline.folder / "ckpt" / "last")[0]["progress"]["iteration"] == 1


def test_failed_before_the_first_save_has_no_checkpoint(make):
    pipeline = make(small_config(RaisingEnv))
    with pytest.raises(EnvError):
        finished(pipeline)
    result = result_of(pipeline)
    assert (result["status"], result["checkpoint"], result["best_checkpoint"]) == ("failed", None, None)


def test_bad_observation_fails_the_run_with_the_parameters_of_before(make):
    spoil = (lambda cfg: SpoiledEnv(cfg, lambda r: (r[0] * np.nan, *r[1:])), [-1, 250], [-1])
    pipeline = make(small_config(SpoiledEnv, policy={"learn": {"batch_size": 32}}), env_setting=spoil)
    digests = []
    with pytest.raises(EnvContractError, match="env 1 "):
        digests.extend(digest(pipeline.policy.model.state_dict()) for _ in pipeline)
    assert len(digests) == 1
    assert digest(pipeline.policy.model.state_dict()) == digests[0]
    assert result_of(pipeline)["status"] == "failed"


def test_interrupt_from_the_keyboard_is_interrupted_not_failed(make):
    class Pressed(LengthEnv):
        def step(self, action):
            signal.raise_signal(signal.SIGINT)
            return super().step(action)

    pipeline = make(small_config(LengthEnv), env_setting=(lambda cfg: Pressed(), [0], [0]))
    with pytest.raises(KeyboardInterrupt):
        finished(pipeline)
    assert result_of(pipeline)["status"] == "interrupted"


def test_error_in_the_script_s_own_loop_is_saved_as_interrupted(make):
    pipeline = make()

    def script():
        for progress in pipeline:
            assert progress.iteration > 1, "the script is wrong"

    with pytest.raises(AssertionError, match="the script is wrong"):
        script()
    gc.collect()  # the traceback held the loop open
    assert result_of(pipeline)["status"] == "interrupted"
    assert (pipeline.folder / "ckpt" / "last").exists()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        (small_config("NoSuchEnv-v0"), EnvError),
        (counted(policy={"learn": {"batch_size": 0}}), ConfigError),
    ],
    ids=["env", "config"],
)
def test_run_that_cannot_start_leaves_no_folder(config, error, tmp_path):
    with pytest.raises(error):
        SerialPipeline(config, folder=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


def test_existing_folder_that_was_named_is_refused(make):
    pipeline = make(counted(max_env_step=256))
    with pytest.raises(ConfigError, match="in use by another pipeline of this program"):
        SerialPipeline(counted(), folder=pipeline.folder)
    pipeline.close()
    with pytest.raises(ConfigError, match="exists"):
        SerialPipeline(counted(), folder=pipeline.folder)


def test_result_has_every_promised_key(make):
    result = result_of(finished(make(counted(max_env_step=256))))
    values = {"eval_value", "eval_value_std", "best_eval_value", "wall_time_s", "env_steps_per_second"}
    counters = {"env_step", "train_iter", "iterations", "seed"}
    names = {"status", "solved", "policy", "env_id", "checkpoint", "best_checkpoint", "error"}
    assert values | counters | names <= set(result)
    assert (result["policy"], result["env_id"], result["error"]) == ("ppo", "CartPole-v1", None)
    assert result["env_steps_per_second"] == pytest.approx(
        result["env_step"] / result["wall_time_s"], rel=0.01
    )


@pytest.mark.parametrize("successor", [False, True])
def test_a_run_whose_folder_is_gone_writes_to_no_other_one(successor, make):
    pipeline = make(counted(checkpoint={"freq": 256}))
    pipeline.step()
    pipeline.saves.finish()
    shutil.rmtree(pipeline.folder)
    if successor:  # a later run of the same name
        other = SerialPipeline(counted(seed=5), folder=pipeline.folder)
    with pytest.raises(CheckpointError, match="was removed, moved or replaced"):
        list(pipeline)
    with pytest.raises(CheckpointError, match="was removed, moved or replaced"):
        pipeline.save("last")
    assert pipeline.folder.exists() == successor
    if successor:
        assert [f.name for f in other.folder.glob("ckpt/*")] == []
        assert not (other.folder / "result.json").exists()
        other.close()


class Wanders(LengthEnv):
    """Changes the working directory, as some simulators do, when it is made and at each reset."""

    def __init__(self, first, then):
        super().__init__()
        self.then = then
        os.chdir(first)

    def reset(self, *, seed=None, options=None):
        os.chdir(self.then)
        return super().reset(seed=seed)

    def step(self, action):
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, {**info, "is_success": True}  # a new column


def test_an_environment_that_changes_the_working_directory_moves_no_run(tmp_path, monkeypatch):
    places = {name: tmp_path / name for name in ("here", "first", "then")}
    for place in places.values():
        place.mkdir()
    monkeypatch.chdir(places["here"])
    kwargs = {name: str(places[name]) for name in ("first", "then")}
    config = small_config(
        Wanders, env={"kwargs": kwargs}, exp_name="w", hooks=["stop_file"], max_env_step=768
    )
    with SerialPipeline(config) as pipeline:
        assert [progress.iteration for progress in pipeline] == [1, 2, 3]
    run = places["here"] / "runs" / "w"
    assert json.loads((run / "result.json").read_text())["status"] == "finished"
    assert "is_success" in (run / "episodes.csv").read_text()
    monkeypatch.chdir(places["here"])
    with SerialPipeline.resume("runs/w", max_env_step=1024, trust=[__name__]) as again:
        assert [progress.iteration for progress in again] == [4]
    assert (run / "metrics.csv").read_text().count("\n") == 1 + 4
    assert [f.name for f in tmp_path.glob("*/*")] == ["runs"]


@pytest.mark.parametrize(
    ("learn", "limit", "said"),
    [
        (
            dict(lr_schedule="linear", entropy_schedule="cosine", entropy_final=0.5),
            256,
            "schedules end at 1,024 env steps, this run at 256: the learning rate is then at 0.75 of its "
            "start, the entropy weight is then at 0.927 of its start; to anneal over this run: "
            "policy.learn.schedule_env_step=256",
        ),
        (
            dict(lr_schedule="linear", schedule_env_step=2048),
            None,
            "schedules end at 2,048 env steps, this run at 1,024: the learning rate is then at 0.5 of its "
            "start; to anneal over this run: policy.learn.schedule_env_step=1024",
        ),
        (dict(lr_schedule="linear"), None, ""),
        (dict(lr_schedule="linear"), 1024, ""),
        (
            dict(lr_schedule="linear", schedule_env_step=512),
            None,
            "schedules end at 512 env steps, this run at 1,024: the learning rate stays at 0 of its start; "
            "to anneal over this run: policy.learn.schedule_env_step=1024",
        ),
        ({}, 256, ""),
    ],
)
def test_new_run_that_ends_elsewhere_than_its_schedules_says_so(make, learn, limit, said):
    pipeline = make(counted(max_env_step=1024, policy={"learn": learn}), max_env_step=limit)
    lines = [
        line for line in (pipeline.folder / "log.txt").read_text().splitlines() if "schedules end" in line
    ]
    assert [line.partition("  ")[2] for line in lines] == ([said] if said else [])


def test_a_run_that_is_resumed_past_its_schedules_says_so(make):
    learn = {"lr_schedule": "linear"}
    pipeline = finished(make(counted(max_env_step=512, policy={"learn": learn})))
    said = (
        "schedules end at 512 env steps, this run at 1,024: the learning rate stays at 0 of its start; "
        "to anneal over this run: policy.learn.schedule_env_step=1024"
    )
    longer = {"policy.learn.schedule_env_step": 1024}
    for changes, count in (({}, 1), (longer, 0)):
        before = (pipeline.folder / "log.txt").read_text().count(said)
        SerialPipeline.resume(pipeline.folder, changes=changes, max_env_step=1024).close()
        assert (pipeline.folder / "log.txt").read_text().count(said) == before + count


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (lambda: LengthEnv(), f"{__name__}:<lambda>"),
        (functools.partial(LengthEnv, 4), "functools:partial"),
    ],
    ids=["lambda", "partial"],
)
def test_what_no_other_process_can_import_is_said_and_is_in_no_command(kind, name, make):
    pipeline = finished(make(small_config(kind, max_env_step=256)))
    log = (pipeline.folder / "log.txt").read_text()
    assert f"{name} is not found by `ding-lite eval` and `--resume`" in log
    assert pipeline.summary().endswith(f"try: load_policy({str(pipeline.folder)!r})")
    assert "import functools" not in log


def test_an_id_that_the_type_does_not_read_is_said_to_have_no_effect(make):
    log = (make(small_config(LengthEnv, env={"env_id": "CartPole-v1"})).folder / "log.txt").read_text()
    assert "env.env_id='CartPole-v1': no effect, since env.type makes the environment" in log


def test_progress_is_printed_in_a_line(make):
    progress = next(iter(make(small_config(LengthEnv))))
    assert str(progress).startswith("Progress(env_step=256, iteration=1, episode_return=")


def test_a_solved_run_is_taken_further_by_a_higher_limit_and_its_log_says_so(make):
    pipeline = finished(
        make(small_config(LengthEnv, env={"stop_value": 1.0}, policy={"eval": {"eval_freq": 256}}))
    )
    assert pipeline.status == "solved"
    solved_at = pipeline.progress.env_step
    assert solved_at < pipeline.cfg.max_env_step
    trust = [LengthEnv.__module__]
    again = SerialPipeline.resume(pipeline.folder, trust=trust)
    assert again.is_over()
    again.close()
    further = SerialPipeline.resume(pipeline.folder, max_env_step=solved_at + 512, trust=trust)
    finished(further)
    assert further.progress.env_step >= solved_at + 512
    assert further.status == "solved"
    log = (pipeline.folder / "log.txt").read_text()
    assert log.count("evaluation") >= 3
    assert log.count("over 4 episodes (2, and 2 to confirm)  solved") == log.count("steps  evaluation")
    assert f"  resumed at {solved_at:,} env steps  folder {pipeline.folder}\n" in log


class FailsLater(LengthEnv):
    """Raises an error in its 40th step."""

    calls = 0

    def step(self, action):
        self.calls += 1
        if self.calls == 40:
            raise OSError("gone")
        return super().step(action)


def test_a_signal_after_the_end_of_a_failed_run_raises_nothing(make):
    """The phase stays that of the error, a rollout that did not end; the watcher may send one signal more."""
    config = counted()
    config["env"] |= dict(type=lambda: FailsLater(7), manager=dict(type="base"))
    pipeline = make(config)
    with pytest.raises(EnvError):
        finished(pipeline)
    assert pipeline.stopping.phase == "collecting"
    pipeline.request_stop("SIGTERM")
    pipeline.give_up()
