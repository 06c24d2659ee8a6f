"""Resuming: half a run and the other half are the whole run, bit for bit; and what may change on the way."""

import random
import re
import subprocess
import sys

import pytest
import torch
from cases import slow_but
from small_worlds import LengthEnv, SeededBox, SeededTree, UnseededEnv
from worlds import finished, merged, save_checkpoint, small_config, state_of, timeless_rows, until

from ding_lite import Hook, SerialPipeline
from ding_lite.config.compile import compile_config
from ding_lite.config.schema import leaves
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.run.checkpoint import checkpoints_of, load_checkpoint
from ding_lite.run.resume import EFFECTS, FREE, REFUSED, WARNED, effect_of
from ding_lite.tools.runs import read_run, settings_of

TRUST = ["small_worlds", __name__]
ITERATIONS = 6


class Noise(Hook):
    """Disturbs the learning rate by a number that depends on all calls so far."""

    def __init__(self):
        self.generator = random.Random(1)
        self.calls = 0

    def after_iter(self, pipeline):
        self.calls += 1
        pipeline.policy.learning_rate *= 1 + 0.1 * self.generator.random() / self.calls

    def state_dict(self):
        version, numbers, gauss = self.generator.getstate()
        return {"calls": self.calls, "random": [version, list(numbers), gauss]}

    def load_state_dict(self, state):
        version, numbers, gauss = state["random"]
        self.calls = state["calls"]
        self.generator.setstate((version, tuple(numbers), gauss))


SCALES = {
    "normalize": {"obs": True, "reward": True, "reward_clip": 5.0},
    "learn": {"value_norm": True, "value_clip": 0.3, "lr_schedule": "linear", "entropy_schedule": "linear"},
}
PHASES = {"aux_freq": 4, "aux_train_epoch": 2}
MEMORY = {"model": {"rnn": "lstm", "rnn_hidden_size": 8}, "learn": {"sequence_length": 16}}
RND = {"intrinsic": {"type": "rnd", "weight": 0.5}}
BASE, NEXT = {"manager": {"type": "base"}}, {"manager": {"type": "vector"}}
WORKERS = {"manager": {"type": "subprocess", "worker_num": 2}}
HALVES = {"manager": {"type": "subprocess", "worker_num": 2, "double_buffer": True}}
# Episodes of Pendulum take 200 steps: two of them end in the first half.
PENDULUM = small_config("Pendulum-v1", env={"collector_env_num": 3}, policy={"collect": {"n_sample": 450}})


def without_epochs(config):
    """Returns a config whose policy counts its passes otherwise."""
    del config["policy"]["learn"]["epoch_per_collect"]
    return config


OPTIONS = {
    "native": small_config(policy={"eval": {"eval_freq": 256}}),
    "scales": small_config(env=NEXT, policy=SCALES, hooks=[Noise]),
    "ppo_offpolicy": without_epochs(
        small_config(env=BASE, policy={"type": "ppo_offpolicy", "learn": {"reuse": 2}})
    ),
    "ppg": without_epochs(small_config(env=NEXT, policy=merged(SCALES, {"type": "ppg", "learn": PHASES}))),
    "ppg_offpolicy": without_epochs(
        merged(PENDULUM, {"env": WORKERS, "policy": {"type": "ppg_offpolicy", "learn": PHASES}})
    ),
    "two halves": merged(PENDULUM, {"env": HALVES, "policy": SCALES}),
    "lstm": small_config(env=BASE, policy=merged(MEMORY, SCALES)),
    "lstm, ppg": without_epochs(
        small_config(SeededBox, policy=merged(MEMORY, {"type": "ppg", "learn": PHASES}))
    ),
    "rnd": small_config(env=BASE, policy=merged(RND, SCALES)),
    "tree": small_config(SeededTree, policy=SCALES),
}
DAILY = ("native", "scales", "ppo_offpolicy", "ppg", "lstm")


def train(config, folder, iterations=ITERATIONS, **options):
    until(SerialPipeline(merged(config, {"max_env_step": 10**6}), folder=folder, **options), iterations)


def go_on(run, iterations=ITERATIONS, **options):
    return until(SerialPipeline.resume(run, trust=TRUST, **options), iterations)


def assert_same(run, other):
    assert state_of(run) == state_of(other)
    assert timeless_rows(run) == timeless_rows(other)
    assert (run / "episodes.csv").read_bytes() == (other / "episodes.csv").read_bytes()


@pytest.mark.parametrize("options", slow_but(DAILY, OPTIONS))
def test_half_and_half_equal_straight_through(options, tmp_path):
    cut = 1 + random.Random(options).randrange(ITERATIONS - 1)
    torch.manual_seed(1)
    train(OPTIONS[options], tmp_path / "straight")
    torch.manual_seed(2)
    train(OPTIONS[options], tmp_path / "run", cut)
    go_on(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "straight")


def test_rows_past_the_checkpoint_are_replaced_and_a_torn_one_is_dropped(tmp_path):
    run = tmp_path / "run"
    train(OPTIONS["native"], tmp_path / "straight")
    train(OPTIONS["native"], run, 3)
    kept = (run / "metrics.csv").read_bytes()
    with (run / "metrics.csv").open("a") as metrics, (run / "episodes.csv").open("a") as episodes:
        metrics.write(f"99999{',' * kept.splitlines()[0].count(b',')}\n12")
        episodes.write("99999,1.0,2\n7,")
    go_on(run)
    assert (run / "metrics.csv").read_bytes().startswith(kept)
    assert_same(run, tmp_path / "straight")


@pytest.mark.parametrize("line", ["\0\0\n", '1,"\n', "1,2\n", "\ufeff\n"])
def test_a_file_with_a_damaged_line_stays_as_it_is_until_it_is_moved_away(line, tmp_path):
    run = tmp_path / "run"
    train(OPTIONS["native"], run, 1)
    damaged = (run / "metrics.csv").read_text() + line
    (run / "metrics.csv").write_text(damaged)
    with pytest.raises(CheckpointError, match=r"metrics\.csv has a damaged line"):
        go_on(run, 2)
    assert (run / "metrics.csv").read_text() == damaged
    (run / "metrics.csv").rename(tmp_path / "aside.csv")
    go_on(run, 2)
    assert [row["iteration"] for row in timeless_rows(run)] == ["2"]


# ---------------------------------------------------------------------- which checkpoint


@pytest.fixture
def snapshots(tmp_path):
    """A run of four iterations with a snapshot of each."""
    snapshots = {"checkpoint": {"keep_freq": 1, "keep": 9}, "policy": {"eval": {"eval_freq": 512}}}
    train(merged(OPTIONS["native"], snapshots), tmp_path / "run", 4)
    return tmp_path / "run"


def test_an_older_checkpoint_replaces_what_is_newer_and_leads_to_the_same_end(snapshots, tmp_path):
    before = state_of(snapshots)
    again = SerialPipeline.resume(snapshots / "ckpt" / "iteration_00000002")
    assert load_checkpoint(checkpoints_of(snapshots)[0])[0]["progress"]["iteration"] == 2, "saved at once"
    names = {file.stem for file in checkpoints_of(snapshots)}
    assert names == {"last", "iteration_00000001", "iteration_00000002"}, "the best one was of iteration 4"
    assert again.progress.best_eval_value is None
    until(again, 4)
    assert {file.stem for file in checkpoints_of(snapshots)} > {"best"}
    assert state_of(snapshots) == before


def test_a_damaged_checkpoint_is_named_and_the_next_older_one_continues(snapshots):
    before, last = state_of(snapshots), snapshots / "ckpt" / "last.safetensors"
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="last.safetensors"):
        SerialPipeline.resume(last)
    for name in ("iteration_00000004", "best"):
        (snapshots / "ckpt" / f"{name}.safetensors").write_bytes(b"")
    again = SerialPipeline.resume(snapshots)
    assert again.progress.iteration == 3
    log = (snapshots / "log.txt").read_text()
    assert log.count("WARNING: skipped: ") == 3
    until(again, 4)
    assert state_of(snapshots) == before


def test_a_checkpoint_outside_of_a_run_is_refused(tmp_path):
    (tmp_path / "elsewhere.safetensors").touch()
    with pytest.raises(CheckpointError, match="no run to continue"):
        SerialPipeline.resume(tmp_path / "elsewhere.safetensors")


def test_a_run_is_written_to_by_one_pipeline(tmp_path):
    config = OPTIONS["native"]
    with SerialPipeline(config, folder=tmp_path / "run") as pipeline:
        pipeline.step()
        pipeline.save()
        with pytest.raises(ConfigError, match="in use"):
            SerialPipeline.resume(tmp_path / "run")
        other = [sys.executable, "-m", "ding_lite", "train", "--resume", "run"]
        done = subprocess.run(other, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, "in use" in done.stderr) == (2, True)
        pipeline.step()
    with pytest.raises(CheckpointError):  # nor does one that fails leave a lock
        SerialPipeline.resume(tmp_path / "run" / "ckpt" / "iteration_9")
    SerialPipeline.resume(tmp_path / "run").close()


# ---------------------------------------------------------------------- changes


def test_every_key_has_an_effect_that_a_person_has_chosen():
    keys = dict(leaves(compile_config({"env": {"env_id": "CartPole-v1"}, "policy": {"type": "ppg"}}).values))
    effects = {key: effect_of(key) for key in keys}
    assert {effects[key] for key in ("max_env_step", "checkpoint.freq", "logger.freq")} == {FREE}
    assert {effects[key] for key in ("policy.learn.learning_rate", "num_threads", "hooks")} == {WARNED}
    assert {effects[key] for key in ("seed", "env.env_id", "policy.type", "policy.model.type")} == {REFUSED}
    unused = [prefix for prefix in EFFECTS if not any(f"{key}.".startswith(f"{prefix}.") for key in keys)]
    assert all(prefix.startswith(("policy.intrinsic", "policy.other", "policy.learn")) for prefix in unused)


def test_changes_are_told_and_refused_ones_are_an_error(tmp_path):
    run = tmp_path / "run"
    train(OPTIONS["native"], run, 2)
    for key, value in (("seed", 4), ("exp_name", "other")):
        with pytest.raises(ConfigError, match=f"refused: {key}: .* -> {value!r}"):
            SerialPipeline.resume(run, changes={key: value, "policy.learn.learning_rate": 1e-4})
    with pytest.raises(ConfigError, match="learning_rat"):
        SerialPipeline.resume(run, changes={"policy.learn.learning_rat": 1e-4})
    changes = {"policy.learn.learning_rate": 1e-5, "checkpoint.freq": 99, "env.evaluator_env_num": 0}
    changes["policy.learn.desired_kl"] = 0.02  # without effect
    with SerialPipeline.resume(run, changes=changes) as again:
        assert again.evaluator is None
    log = (run / "log.txt").read_text()
    assert "warned: policy.learn.learning_rate: " in log
    assert "free: checkpoint.freq: 0 -> 99" in log
    assert "free: policy.learn.desired_kl: " in log
    assert "policy.learn.desired_kl=0.02: no effect without " in log
    saved = load_checkpoint(run / "ckpt" / "last.safetensors")[1]["config"]
    assert (saved["policy"]["learn"]["learning_rate"], saved["checkpoint"]["freq"]) == (1e-5, 99), "at once"
    with SerialPipeline.resume(run, changes={"env.evaluator_env_num": 2}) as again:
        assert len(again.evaluator.evaluate("once more").returns) == 2
    SerialPipeline.resume(run, changes={"policy.learn.learning_rate": 1e-4}).close()
    former = settings_of(read_run(run).config)["policy.learn.learning_rate before"]
    assert former == ["0.0003", "1e-05"], "for the tools that group runs by config"


def test_override_applies_what_is_refused_with_new_episodes(tmp_path):
    run = tmp_path / "run"
    train(OPTIONS["ppo_offpolicy"], run, 2)
    again = SerialPipeline.resume(run, changes={"env.collector_env_num": 8}, override=True)
    assert again.collector.envs.num_envs == 8
    assert again.progress.best_eval_value is None, "the returns may be those of another task"
    assert until(again, 4).progress.iteration == 4
    assert "new episodes" in (run / "log.txt").read_text()
    with pytest.raises(CheckpointError, match="encoder"):  # of another shape
        SerialPipeline.resume(run, changes={"policy.model.encoder_hidden_size_list": [8]}, override=True)


RATE = {"policy.learn.learning_rate": 1e-3}
NEW_LIMITS = {
    "option": (dict(max_env_step=1024), 512, "from 512 env steps on.*schedule_env_step=1024"),
    "option, rate": (
        dict(max_env_step=1024, changes=RATE),
        512,
        "from 512 env steps on.*schedule_env_step=1024",
    ),
    "rate": (dict(changes=RATE), 512, "from 512 env steps on.*max_env_step=N"),
    "key": (dict(changes={"max_env_step": 1024}), 1024, ""),
    "key beyond the option": (dict(max_env_step=768, changes={"max_env_step": 1024}), 1024, ""),
    "length, key": (
        dict(changes={"max_env_step": 1024, "policy.learn.schedule_env_step": 768}),
        768,
        "from 768 env steps on.*schedule_env_step=1024",
    ),
}


@pytest.mark.parametrize(("options", "length", "told"), NEW_LIMITS.values(), ids=NEW_LIMITS)
def test_a_finished_schedule_is_stretched_by_the_key_and_said_at_other_new_limits(
    options, length, told, tmp_path
):
    config = small_config(
        max_env_step=512, env=BASE, policy={"learn": {"lr_schedule": "linear", "clip_schedule": "linear"}}
    )
    finished(SerialPipeline(config, folder=tmp_path / "run"))
    again = SerialPipeline.resume(tmp_path / "run", **options)
    assert again.cfg.policy.learn.schedule_env_step == length
    rates = [progress.metrics["learn/cur_lr"] for progress in again]
    assert again.status == "finished"
    log = (tmp_path / "run" / "log.txt").read_text()
    assert bool(re.search(f"WARNING: learning rate 0 {told}", log)) == bool(told)
    assert ("WARNING: learning rate" in log) == ("WARNING: clip ratio 0 from" in log) == bool(told)
    assert ("health: the learning rate is 0" in log) == (0.0 in rates) == (bool(told) and bool(rates))


def test_a_solved_run_goes_on_to_a_new_bar(tmp_path):
    solved = small_config(LengthEnv, env={"stop_value": 1.0}, policy={"eval": {"eval_freq": 256}})
    run = tmp_path / "run"
    finished(SerialPipeline(solved, folder=run))
    again = SerialPipeline.resume(run, trust=TRUST)
    assert ([*again], again.status) == ([], "solved")
    assert "it takes no step; env.stop_value=None" in (run / "log.txt").read_text()
    again = SerialPipeline.resume(run, changes={"env.stop_value": None}, trust=TRUST)
    assert (len([*again]), again.status) == (5, "finished")
    assert "at its limit" not in (run / "log.txt").read_text()
    again = SerialPipeline.resume(run, max_env_step=256, trust=TRUST)
    assert ([*again], again.status) == ([], "finished")
    assert "the run is at a limit, a total: it takes no step" in (run / "log.txt").read_text()


def test_what_a_script_gave_a_run_is_given_again(tmp_path):
    setting = (LengthEnv, [3, 4, 5, 6], [5, 5])
    train(small_config(LengthEnv), tmp_path / "run", 2, env_setting=setting)
    with pytest.raises(ConfigError, match="env_setting"):
        SerialPipeline.resume(tmp_path / "run", trust=TRUST)
    train(small_config(LengthEnv), tmp_path / "straight", 4, env_setting=setting)
    go_on(tmp_path / "run", 4, env_setting=setting)
    assert_same(tmp_path / "run", tmp_path / "straight")


# ---------------------------------------------------------------------- states that do not fit


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    run = tmp_path_factory.mktemp("saved") / "run"
    train(OPTIONS["lstm, ppg"], run, 3)
    return load_checkpoint(run / "ckpt" / "last.safetensors")


def places(tree, path=()):
    """Yields the paths of all parts of a state down to the entries of its parts."""
    for name, value in tree.items():
        yield (*path, name)
        if isinstance(value, dict) and len(path) < 1:
            yield from places(value, (*path, name))


def test_a_state_that_lacks_any_part_is_refused(saved, tmp_path):
    state, config = saved
    for path in places(state):
        if path == ("hooks",):  # the run has none
            continue
        less = {name: dict(part) if isinstance(part, dict) else part for name, part in state.items()}
        part = less if len(path) == 1 else less[path[0]]
        del part[path[-1]]
        save_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors", less, config)
        with pytest.raises(CheckpointError):
            SerialPipeline.resume(tmp_path / "run", trust=TRUST)


@pytest.mark.parametrize("manager", ["base", "subprocess"])
def test_environments_that_are_not_deterministic_begin_new_episodes_with_one_warning(manager, tmp_path):
    run = tmp_path / "run"
    train(small_config(UnseededEnv, env={"manager": {"type": manager, "worker_num": 1}}), run, 2)
    assert go_on(run, 4).progress.iteration == 4
    (line,) = [line for line in (run / "log.txt").read_text().splitlines() if "WARNING" in line]
    assert "not deterministic" in line
    assert "goes on with new episodes" in line
