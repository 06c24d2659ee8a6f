"""The pipeline: its loop, limits, evaluations and checkpoints, and how runs end."""

import subprocess
import sys

import pytest
import torch
from broken_worlds import Alone
from small_worlds import LengthEnv, SeededEnv
from threadpoolctl import threadpool_limits
from torch import nn
from worlds import digest, finished, merged, result_of, rows_of, small_config, until

from ding_lite import Hook, SerialPipeline, serial_pipeline, serial_pipeline_onpolicy
from ding_lite.config.compile import compile_config
from ding_lite.config.schema import set_value
from ding_lite.data.episodes import Evaluation
from ding_lite.envs.workers.cores import torch_threads
from ding_lite.errors import CheckpointError, ConfigError, ContractError, EnvError
from ding_lite.fast.stacks import has_one_thread
from ding_lite.models import VAC
from ding_lite.policies import PPOPolicy
from ding_lite.run.checkpoint import checkpoints_of, load_checkpoint
from ding_lite.tools.runs import read_run, seed_groups


def counted(world="CartPole-v1", **others):
    """Returns a config in which every row is valid: env steps are multiples of 256."""
    return small_config(world, **merged({"env": {"manager": {"type": "base"}}}, others))


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


def saved(pipeline, name="last"):
    return load_checkpoint(pipeline.folder / "ckpt" / f"{name}.safetensors")[0]["progress"]["iteration"]


# ---------------------------------------------------------------------- the loop


def test_a_loop_yields_the_progress_of_each_iteration_and_ends_at_the_limit(make):
    pipeline = make(counted(max_env_step=1000))
    steps = [(progress.iteration, progress.env_step, progress.train_iter) for progress in pipeline]
    assert steps == [(1, 256, 8), (2, 512, 16), (3, 768, 24), (4, 1024, 32)]
    result = result_of(pipeline.folder)
    assert (result["status"], result["env_step"], result["error"]) == ("finished", 1024, None)
    assert result["eval_value"] == pipeline.progress.eval_value, "the last iteration is evaluated"
    assert list(pipeline) == [], "it is over"


class Late(Hook):
    def after_iter(self, pipeline):
        if pipeline.progress.iteration == 3:
            pipeline.progress.metrics["my/late"] = 1.5


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("learn.value_weight", 5.0),
        ("learn.entropy_weight", 1.0),
        ("learn.clip_ratio", 0.001),
        ("learn.value_clip", 0.001),
        ("learn.dual_clip", 1.001),
        ("learn.batch_size", 128),
        ("learn.adv_norm", False),
        ("learn.target_kl", 1e-9),
        ("collect.discount_factor", 0.5),
        ("collect.gae_lambda", 0.5),
    ],
)
def test_a_loop_may_assign_a_key_between_iterations(path, value, make):
    """Those that docs/python.md names: the next iteration learns otherwise."""

    def learned(*, assigns):
        pipeline = make(seed=0)
        iterations = iter(pipeline)
        next(iterations)
        if assigns:
            set_value(pipeline.policy.cfg, path, value)
        next(iterations)
        next(iterations)
        return nn.utils.parameters_to_vector(pipeline.policy.model.parameters())

    assert not torch.equal(learned(assigns=True), learned(assigns=False))


def test_rows_have_the_counters_and_every_metric_of_the_progress_also_a_late_one(make):
    pipeline = make(counted(policy={"eval": {"eval_freq": 512}}, hooks=[Late]))
    expected = []
    for progress in pipeline:
        expected.append({"env_step": progress.env_step, "iteration": progress.iteration, **progress.metrics})
    rows = rows_of(pipeline.folder)
    assert [{k: float(v) for k, v in row.items() if v and k != "train_iter"} for row in rows] == expected
    evaluated = [bool(row["eval/episode_return_mean"]) for row in rows]
    assert evaluated == [False, True, False, True, False, True]
    assert [row["my/late"] for row in rows] == ["", "", "1.5", "", "", ""]
    episodes = rows_of(pipeline.folder, "episodes.csv")
    assert len(episodes) == int(float(rows[-1]["collect/episode_count"]))
    assert set(episodes[0]) == {"env_step", "return", "length"}


def test_wall_time_is_that_of_the_loops_and_goes_on(make):
    pipeline = finished(make(counted(max_env_step=512)))
    seconds = float(rows_of(pipeline.folder)[-1]["time/wall_s"])
    assert seconds <= result_of(pipeline.folder)["wall_time_s"], "with the last save"
    again = SerialPipeline.resume(pipeline.folder, changes={"max_env_step": 768})
    assert finished(again).progress.wall_time > seconds


# ---------------------------------------------------------------------- evaluations and checkpoints


def scripted(pipeline, *means):
    """Returns the pipeline, whose evaluations have these means."""
    left = list(means)
    pipeline.evaluator.evaluate = lambda *stream: Evaluation((left.pop(0),), (1,))
    return pipeline


def test_best_is_the_best_evaluation_and_of_equal_ones_the_later(make):
    pipeline = make(counted(policy={"eval": {"eval_freq": 256}}))
    finished(scripted(pipeline, 1.0, 3.0, 2.0, 3.0, float("nan"), 0.5))
    assert (saved(pipeline, "best"), saved(pipeline), pipeline.progress.best_eval_value) == (4, 6, 3.0)


def test_solved_needs_a_second_evaluation(make):
    config = counted(env={"stop_value": 5.0}, policy={"eval": {"eval_freq": 256}})
    pipeline = finished(scripted(make(config), 4.0, 6.0, 4.9, 6.0, 5.0))
    assert (pipeline.status, pipeline.progress.iteration) == ("solved", 3)
    result = result_of(pipeline.folder)
    assert (result["solved"], result["eval_value"]) == (True, 5.5)


def test_checkpoints_are_saved_when_they_are_due(make):
    pipeline = make(counted(checkpoint={"freq": 700, "keep_freq": 512, "keep": 1}))
    seen, last = [], []
    for _ in zip(range(5), pipeline, strict=False):
        pipeline.files.checkpoints.wait()
        seen.append(sorted(file.stem for file in checkpoints_of(pipeline.folder)))
        last.append(saved(pipeline) if seen[-1] else None)
    assert last == [None, 2, 3, 4, 4], "also with each snapshot"
    assert (seen[2], seen[4]) == (["iteration_00000002", "last"], ["iteration_00000004", "last"])
    pipeline = make(counted(checkpoint={"freq": 0, "minutes": 1e-9}))
    for progress in pipeline:
        pipeline.files.checkpoints.wait()
        assert saved(pipeline) == progress.iteration


# ---------------------------------------------------------------------- how runs end


def test_a_break_saves_the_run_and_closes_the_pipeline(make):
    pipeline = until(make(), 2)
    assert (pipeline.status, saved(pipeline), result_of(pipeline.folder)["error"]) == ("interrupted", 2, None)
    assert "--resume" in pipeline.summary()
    with pytest.raises(ContractError, match="resume"):
        next(iter(pipeline))
    pipeline.close()  # has no effect
    untrained = make()
    untrained.close()
    assert (checkpoints_of(untrained.folder), result_of(untrained.folder)["status"]) == ([], "interrupted")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # all that Python says of it
def test_a_break_whose_save_fails_raises_at_the_end_of_the_block(make):
    Unsaved = type("Unsaved", (Hook,), {"state_dict": lambda self: {"seen": {1, 2}}})
    pipeline = until(make({**counted(), "hooks": [Unsaved]}), 1)
    with pytest.raises(CheckpointError, match="seen"), pipeline:
        pass
    assert pipeline.status == "failed"


def test_with_closes_whatever_ends_the_block(make):
    def train(pipeline):
        with pipeline:
            for progress in pipeline:
                1 / (progress.iteration - 2)

    def step(pipeline):
        with pipeline:
            pipeline.step()
            raise ZeroDivisionError

    for use in (train, step):
        pipeline = make()
        with pytest.raises(ZeroDivisionError):
            use(pipeline)
        result = result_of(pipeline.folder)
        assert (result["status"], result["error"][:17]) == ("failed", "ZeroDivisionError")
        assert saved(pipeline) == pipeline.progress.iteration > 0


def test_a_script_that_ends_within_the_loop_saves_the_run(tmp_path):
    code = (
        "from ding_lite import SerialPipeline\n"
        "loop = iter(SerialPipeline('cartpole_ppo', folder='run'))\n"
        "next(loop)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert load_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors")[0]["progress"]["iteration"] == 1


def test_without_environments_for_evaluation_nothing_is_evaluated(monkeypatch, make):
    monkeypatch.setattr(Alone, "lives", 0)
    monkeypatch.setattr(Alone, "close", lambda self: None)  # a second one is refused at any time
    env = dict(type=Alone, collector_env_num=1, evaluator_env_num=0)
    pipeline = make(small_config(env=env), max_env_step=64)
    assert pipeline.evaluator is None
    rows = list(pipeline)
    assert rows
    assert all(progress.evaluation is None for progress in rows)
    assert [path.name for path in checkpoints_of(pipeline.folder)] == ["last.safetensors"]


def test_after_an_error_in_learning_nothing_is_saved(make):
    pipeline = make(counted(checkpoint={"freq": 512}))
    learn = pipeline.policy._forward_learn

    def fail(rollout):
        metrics = learn(rollout)
        if pipeline.progress.iteration == 2:
            raise RuntimeError("out of luck")
        return metrics

    pipeline.policy._forward_learn = fail
    with pytest.raises(RuntimeError, match="out of luck"):
        finished(pipeline)
    assert (pipeline.status, saved(pipeline), pipeline.progress.iteration) == ("failed", 2, 2)
    with pytest.raises(CheckpointError, match="did not end"):
        pipeline.save()
    assert finished(SerialPipeline.resume(pipeline.folder)).status == "finished"


def test_after_an_error_of_an_evaluation_the_iteration_has_its_row_and_is_saved(make):
    pipeline = scripted(make(counted(policy={"eval": {"eval_freq": 512}})))
    with pytest.raises(IndexError, match="pop from empty list"):
        finished(pipeline)
    assert (saved(pipeline), len(rows_of(pipeline.folder))) == (2, 2)


# ---------------------------------------------------------------------- beginnings


def test_an_existing_folder_that_was_not_named_gets_a_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folders = []
    for _ in range(3):
        with SerialPipeline(counted(exp_name="mine")) as pipeline:
            folders.append(str(pipeline.folder))
            pipeline.save()
    assert folders == ["runs/mine", "runs/mine_2", "runs/mine_3"]


@pytest.mark.parametrize(
    ("config", "options", "error"),
    [
        (counted(policy={"learn": {"learning_rat": 1}}), {}, ConfigError),
        (counted("NoSuchEnv-v0"), {}, EnvError),
        (counted(), {"init_from": "nothing"}, CheckpointError),
        (counted(logger={"trackers": [{"type": "small_worlds:LengthEnv"}]}), {}, LookupError),
    ],
)
def test_a_run_that_cannot_start_leaves_no_folder(config, options, error, tmp_path):
    with pytest.raises(error):
        SerialPipeline(config, folder=tmp_path / "run", **options)
    assert list(tmp_path.iterdir()) == []


def test_environments_and_a_model_of_the_script_are_trained(make):
    built = make(counted(LengthEnv))
    model = VAC(built.policy.obs_space, built.policy.action_space)
    weights = model.actor_head.state_dict()
    before = digest(weights)
    setting = (LengthEnv, [3, 4], [5])
    plain = finished(make(counted(LengthEnv, max_env_step=256), seed=1))
    pipeline = finished(make(counted(LengthEnv, max_env_step=256), env_setting=setting, model=model))
    assert pipeline.policy.model is model
    assert digest(model.actor_head.state_dict()) != before
    assert pipeline.collector.envs.num_envs == 2
    assert ", model=...) in the notebook, shell or script with its" in pipeline.summary()
    assert pipeline.result()["env_id"] == "small_worlds:LengthEnv"
    assert [len(group) for group in seed_groups([read_run(pipeline.folder), read_run(plain.folder)])] == [
        1,
        1,
    ]
    assert "env small_worlds:LengthEnv: 2 environments" in (pipeline.folder / "log.txt").read_text()
    config = compile_config(counted(LengthEnv)).replaced({"policy.collect.n_step": 32})
    of_steps = make(config, env_setting=setting)
    assert (of_steps.collector.steps, of_steps.policy.cfg.collect.n_sample) == (32, 64)
    assert set(pipeline.progress.evaluation.lengths) == {5}


def test_a_loop_changes_its_own_config_only(make):
    config = compile_config(counted())
    policy = make(config).policy
    policy.cfg.learn.clip_ratio = 0.5
    assert config.values.policy.learn.clip_ratio == 0.2
    with pytest.raises(ContractError, match="a part 'replay' already"):
        policy.keep("replay", Evaluation)


def test_serial_pipeline_trains_shows_and_returns_the_policy(tmp_path, capsys):
    config = counted(max_env_step=512)
    policy = serial_pipeline(config, seed=1, folder=tmp_path / "run")
    assert isinstance(policy, PPOPolicy)
    output = capsys.readouterr().out
    assert "512 steps  evaluation " in output
    assert "finished after 512 env steps" in output
    assert f"ding-lite eval {tmp_path / 'run'}" in output
    assert serial_pipeline_onpolicy is serial_pipeline


def test_a_pipeline_sets_the_threads_and_restores_them(make):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2, user_api="blas"):
            assert not has_one_thread()
            pipeline = make(counted(num_threads=1))
            assert has_one_thread()
            pipeline.close()
            assert torch.get_num_threads() == 2
            torch.set_num_threads(1)
            assert not has_one_thread()
    finally:
        torch.set_num_threads(before)


def test_a_pipeline_that_closes_leaves_an_open_one_its_threads(make):
    with torch_threads(3), threadpool_limits(3, user_api="blas"):
        first, second = make(counted(num_threads=1)), make(counted(num_threads=1))
        first.close()
        assert has_one_thread()
        second.close()
        assert torch.get_num_threads() == 3
        torch.set_num_threads(1)
        assert not has_one_thread()  # NumPy has more again


def test_a_policy_that_does_not_report_its_steps_is_told_what_is_missing(make):
    class Silent(PPOPolicy):
        def _forward_learn(self, rollout):
            return {"loss": 1.0}

    with pytest.raises(ContractError, match="'updates'"):
        finished(make(counted(policy={"type": Silent})))


class Order(Hook):
    calls = []

    def __init__(self, name):
        self.name = name

    def before_run(self, pipeline):
        self.calls.append((self.name, "before_run"))

    def before_iter(self, pipeline):
        self.calls.append((self.name, "before_iter"))

    def after_iter(self, pipeline):
        self.calls.append((self.name, "after_iter"))
        pipeline.progress.metrics[f"my/{self.name}"] = torch.tensor(2.5)

    def after_run(self, pipeline):
        is_written = (pipeline.folder / "result.json").exists()
        self.calls.append((self.name, "after_run", pipeline.status, is_written))

    def say(self, line):
        if line == "hello":
            self.calls.append((self.name, line))


def test_hooks_are_called_in_the_order_of_the_config(make):
    Order.calls.clear()
    hooks = [{"type": Order, "name": name} for name in ("a", "b")]
    pipeline = make(counted(SeededEnv, max_env_step=256, hooks=hooks))
    pipeline.say("hello")
    finished(pipeline)
    calls = [(name, call) for call in ("hello", "before_run", "before_iter", "after_iter") for name in "ab"]
    assert Order.calls == [*calls, *((name, "after_run", "finished", True) for name in "ba")]
    (row,) = rows_of(pipeline.folder)
    assert (row["my/a"], row["my/b"]) == ("2.5", "2.5")
    assert "hello" in (pipeline.folder / "log.txt").read_text()
