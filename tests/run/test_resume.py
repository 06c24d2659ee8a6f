"""Resuming: the checkpoint that a run continues from, changes of its config, and solved runs."""

import json
import math
import re
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from small_worlds import LengthEnv, UnseededEnv
from worlds import digest, merged, small_config

from ding_lite import SerialPipeline
from ding_lite.config.compile import compile_config, load_config
from ding_lite.config.schema import leaves
from ding_lite.errors import CheckpointError, ConfigError
from ding_lite.run.checkpoint import TENSORS, checkpoints_of, load_checkpoint, save_checkpoint
from ding_lite.run.resume import (
    EFFECTS,
    FREE,
    NOT_BIT_EQUAL,
    REFUSED,
    WARNED,
    ResumeRequest,
    effect_of,
    find_resume_point,
)

CONFIG = small_config(env={"manager": {"type": "base"}}, policy={"eval": {"eval_freq": 256}})
SOLVED = small_config(LengthEnv, env={"stop_value": 1.0}, policy={"eval": {"eval_freq": 256}})
TRUST = [LengthEnv.__module__]


def train(folder, config=CONFIG, iterations=10**9):
    pipeline = SerialPipeline(config, folder=folder)
    for progress in pipeline:
        if progress.iteration == iterations:
            break
    pipeline.close()
    return folder


def go_on(folder, **options):
    pipeline = SerialPipeline.resume(folder, **options)
    for _ in pipeline:
        pass
    return pipeline


def state_of(folder, name="last"):
    state, _ = load_checkpoint(folder / "ckpt" / name)
    state.pop("clock")
    return digest(state)


def tear(folder, name):
    file = folder / "ckpt" / name / TENSORS
    file.write_bytes(file.read_bytes()[:-1])


def log(folder):
    return (folder / "log.txt").read_text()


# ---------------------------------------------------------------------- the newest undamaged checkpoint


@pytest.fixture
def snapshots(tmp_path):
    """A run of four iterations with a snapshot of each, and ``best`` as of the first."""
    snapshots = merged(
        CONFIG, {"checkpoint": {"keep_freq": 256, "keep": 9}, "policy": {"eval": {"eval_freq": 0}}}
    )
    folder = train(tmp_path / "run", snapshots, 4)
    state, config = load_checkpoint(folder / "ckpt" / "iteration_00000001")
    save_checkpoint(folder / "ckpt" / "best", state, config)
    return folder


@pytest.mark.daily(1)
@pytest.mark.parametrize(
    ("torn", "iteration"),
    [
        ([], 4),
        (["last"], 4),
        (["last", "iteration_00000004"], 3),
        (["last", "iteration_00000004", "iteration_00000003", "iteration_00000002"], 1),
    ],
)
def test_torn_checkpoint_falls_back_to_the_newest_undamaged_one_and_the_log_says_so(
    snapshots, torn, iteration, tmp_path
):
    for name in torn:
        tear(snapshots, name)
    pipeline = SerialPipeline.resume(snapshots)
    assert pipeline.progress.iteration == iteration
    assert log(snapshots).count("skipped: ") == len(torn)
    for name in torn:
        assert f"ckpt/{name}/{TENSORS} has" in log(snapshots)
    assert ("the newest undamaged checkpoint: " in log(snapshots)) == bool(torn)
    for _ in pipeline:
        pass
    assert state_of(snapshots) == state_of(train(tmp_path / "straight", pipeline.config))


def test_checkpoint_that_is_named_is_never_replaced_by_another(snapshots):
    tear(snapshots, "last")
    for options in ({"run": snapshots / "ckpt" / "last"}, {"run": snapshots, "checkpoint": "last"}):
        with pytest.raises(CheckpointError, match=f"ckpt/last/{TENSORS} has"):
            SerialPipeline.resume(**options)


def test_run_without_an_undamaged_checkpoint_reports_what_is_wrong_with_each(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    (folder / "ckpt" / "last" / "state.json").unlink()
    tear(folder, "best")
    with pytest.raises(CheckpointError, match="(?s)No such file.*last.state.json.*best"):
        SerialPipeline.resume(folder)


def test_checkpoints_are_ordered_by_their_iterations_not_by_their_names(snapshots):
    (snapshots / "ckpt" / "notes").mkdir()
    iterations = {folder.name: n for folder, n in checkpoints_of(snapshots).items()}
    assert list(iterations.values()) == [4, 4, 3, 2, 1, 1]
    assert list(iterations)[:3] == ["last", "iteration_00000004", "iteration_00000003"]


def test_going_back_keeps_what_was_ahead_aside_and_the_way_back_survives_a_kill(snapshots):
    pipeline = SerialPipeline.resume(snapshots / "ckpt" / "iteration_00000002")
    pipeline.close()  # as good as killed: nothing has been trained
    aside = snapshots / "ckpt" / "abandoned"
    assert sorted(f.name for f in (aside / "1").iterdir()) == [
        "iteration_00000003",
        "iteration_00000004",
        "last",
    ]
    assert "moved below ckpt: abandoned/1/last, abandoned/1/iteration_00000004, " in log(snapshots)
    again = SerialPipeline.resume(snapshots)
    assert again.progress.iteration == 2
    assert [progress.iteration for progress in again] == [3, 4, 5, 6]
    assert (snapshots / "metrics.csv").read_text().count("\n") == 1 + 6
    SerialPipeline.resume(snapshots / "ckpt" / "iteration_00000002", max_env_step=10_000).close()
    assert sorted(f.name for f in aside.iterdir()) == ["1", "2"]  # nothing that was set aside is lost
    assert "best" in [f.name for f in (aside / "2").iterdir()]


def test_going_back_past_the_best_policy_makes_the_next_best_one_again(tmp_path):
    folder = train(tmp_path / "run", merged(CONFIG, {"checkpoint": {"keep_freq": 256, "keep": 9}}), 4)
    with SerialPipeline.resume(folder) as pipeline:
        pipeline.scores.best = 1e9  # none that follows is as good
        pipeline.save("best")
        pipeline.save("last")
    again = SerialPipeline.resume(folder / "ckpt" / "iteration_00000002")
    assert "abandoned/1/best" in log(folder)
    for _ in again:
        pass
    assert again.scores.best < 1e9
    assert (folder / "ckpt" / "best").is_dir()


def test_another_task_has_a_best_policy_of_its_own(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    changes = {"env.kwargs": {"sutton_barto_reward": True}}
    with SerialPipeline.resume(folder, changes=changes, override=True) as pipeline:
        assert pipeline.scores.best == -math.inf
    with SerialPipeline.resume(folder, changes={"env.stop_value": 500.0}) as pipeline:
        assert pipeline.scores.best == -math.inf  # saved at once


@pytest.mark.parametrize(
    ("written", "line"),
    [
        ({"torch": "1.0"}, "written under other versions (torch 1.0 -> "),
        ({"python": 3, "numpy": "0", "gone": "1"}, "written under other versions (python 3 -> "),
        ({}, ""),
        (None, ""),  # as checkpoints before it had them
    ],
)
def test_other_versions_of_packages_are_reported_and_their_numbers_are_others(tmp_path, written, line):
    folder = train(tmp_path / "run", CONFIG, 1)
    state, config = load_checkpoint(folder / "ckpt" / "last")
    assert {"python", "torch", "numpy"} < set(config["versions"])
    save_checkpoint(
        folder / "ckpt" / "last", state, {**config, "versions": written and {**config["versions"], **written}}
    )
    assert find_resume_point(folder, None, ResumeRequest({})).is_exact == (not line)
    SerialPipeline.resume(folder).close()
    assert ("written under" in log(folder)) == bool(line)
    assert line in log(folder)


def test_checkpoint_outside_of_a_run_is_not_resumed(snapshots, tmp_path):
    (snapshots / "ckpt" / "last").rename(tmp_path / "mine")
    with pytest.raises(CheckpointError, match="--init-from"):
        SerialPipeline.resume(tmp_path / "mine")
    assert not (tmp_path / "log.txt").exists()


# ---------------------------------------------------------------------- changes


def test_guide_names_every_key_with_its_kind():
    text = (Path(__file__).parents[2] / "docs" / "resuming.md").read_text()
    rows = {
        kind: re.search(rf"^\| {kind} \|.*\|(.*)\|$", text, re.MULTILINE)[1]
        for kind in (FREE, WARNED, REFUSED)
    }
    named = {
        name.removesuffix(".*"): kind for kind, row in rows.items() for name in re.findall(r"`([^`]+)`", row)
    }
    assert {name: effect_of(name) for name in named} == named
    assert named.keys() >= EFFECTS.keys()


BUFFER = ("replay_buffer_size", "max_use", "max_staleness")


def test_every_key_has_a_kind_and_every_kind_a_key():
    policies = ({"type": "ppo", "intrinsic": {"type": "rnd"}}, {"type": "ppg"})
    configs = [compile_config({"env": {"env_id": "x"}, "policy": policy}) for policy in policies]
    keys = {path for config in configs for path, _ in leaves(config.values)}
    assert all(any(key == path or key.startswith(f"{path}.") for key in keys) for path in EFFECTS)
    kinds = {key: effect_of(key) for key in keys}
    assert {
        k for k, kind in kinds.items() if kind == REFUSED and not k.startswith(("env.", "policy.model."))
    } == {
        *("exp_name", "seed", "policy.type", "policy.action_space", "policy.on_policy"),
        *(f"policy.learn.{who}_epoch_per_collect" for who in ("actor", "critic")),
        *("policy.learn.aux_freq", "policy.learn.aux_train_epoch"),
        "policy.learn.sequence_length",
        *(
            f"policy.intrinsic.{key}"
            for key in ("type", "encoder", "encoder_hidden_size_list", "feature_size")
        ),
        *(f"policy.other.replay_buffer.{name}.{key}" for name in ("policy", "value") for key in BUFFER),
        "policy.learn.value_norm",
        *("policy.normalize.obs", "policy.normalize.reward"),
    }
    assert kinds["policy.learn.learning_rate"] == kinds["num_threads"] == WARNED
    assert kinds["policy.model.encoder_dtype"] == kinds["policy.intrinsic.weight"] == WARNED
    assert effect_of("policy.intrinsic.of_a_class_of_ones_own") == REFUSED
    assert (
        kinds["checkpoint.keep"] == kinds["policy.eval.eval_freq"] == kinds["env.manager.worker_num"] == FREE
    )


def test_a_rate_or_an_eps_that_is_changed_on_resume_is_trained_with(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    before = json.loads((folder / "config.json").read_text())["config"]["policy"]["learn"]
    changes = {"policy.learn.learning_rate": 1e-5, "policy.learn.adam_eps": 0.1}
    for changed in (changes, {}):  # it is saved with the run, too
        pipeline = SerialPipeline.resume(folder, changes=changed)
        pipeline.step()
        assert pipeline.policy.optimizer.learning_rate == 1e-5 != before["learning_rate"]
        assert pipeline.policy.optimizer.eps == 0.1
        pipeline.save("last")
        pipeline.close()


def test_a_rate_that_a_script_has_assigned_stays_where_the_config_does(tmp_path):
    pipeline = SerialPipeline(CONFIG, folder=tmp_path / "run")
    pipeline.policy.learning_rate = 7e-4
    pipeline.step()
    pipeline.save("last")
    pipeline.close()
    again = SerialPipeline.resume(tmp_path / "run")
    assert again.policy.learning_rate == 7e-4
    again.close()


def test_free_and_warned_changes_are_taken_over_and_saved_at_once(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    changes = {"policy.learn.clip_ratio": 0.1, "checkpoint.keep_freq": 512, "logger.freq": 7}
    SerialPipeline.resume(folder, changes=changes).close()
    lines = [line[21:] for line in log(folder).splitlines() if "applied: " in line]
    assert lines == [
        "free: applied: checkpoint.keep_freq: 0 -> 512",
        "free: applied: logger.freq: 5000 -> 7",
        "warned: applied: policy.learn.clip_ratio: 0.2 -> 0.1",
    ]
    assert NOT_BIT_EQUAL in log(folder)
    again = SerialPipeline.resume(folder)
    assert (again.cfg.policy.learn.clip_ratio, again.cfg.logger.freq) == (0.1, 7)
    again.close()
    saved = json.loads((folder / "config.json").read_text())
    assert saved["config"]["checkpoint"]["keep_freq"] == 512
    assert saved["source"]["checkpoint.keep_freq"] == "command line"


def test_free_changes_leave_the_training_as_it_was(tmp_path):
    straight = train(tmp_path / "straight")
    folder = train(tmp_path / "run", CONFIG, 2)
    go_on(folder, changes={"policy.eval.eval_freq": 0, "checkpoint.freq": 256, "env.evaluator_env_num": 1})
    states = [load_checkpoint(f / "ckpt" / "last")[0] for f in (straight, folder)]
    for part in ("policy", "collector", "learner", "progress"):
        assert digest(states[0][part]) == digest(states[1][part])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"env.collector_env_num": 5}, "env.collector_env_num: 4 -> 5"),
        ({"env.env_id": "Acrobot-v1"}, "env.env_id: 'CartPole-v1' -> 'Acrobot-v1'"),
        ({"seed": 1}, "seed: 0 -> 1"),
        ({"policy.model.activation": "relu"}, "policy.model.activation"),
        ({"policy.normalize.obs": True}, "policy.normalize.obs: False -> True"),
    ],
    ids=str,
)
def test_change_that_would_make_the_state_wrong_is_refused_and_changes_nothing(change, message, tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    before = {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()}
    with pytest.raises(ConfigError, match=f"(?s){message}.*--init-from.*--override"):
        SerialPipeline.resume(folder, changes=change)
    assert {f: f.read_bytes() for f in folder.rglob("*") if f.is_file()} == before


def test_refused_change_is_taken_over_by_override_with_new_episodes(tmp_path):
    config = merged(CONFIG, {"policy": {"normalize": {"obs": True, "reward": True}}})
    folder = train(tmp_path / "run", config, 2)
    pipeline = SerialPipeline.resume(folder, changes={"env.collector_env_num": 8}, override=True)
    assert "refused: applied: env.collector_env_num: 4 -> 8" in log(folder)
    assert (pipeline.progress.iteration, pipeline.collector.envs.num_envs) == (2, 8)
    assert [progress.env_step for progress in pipeline] == [768, 1024, 1280, 1536]


def saved_by_two(folder, episodes):
    """Makes the last checkpoint one of two ranks, after so many episodes of each."""
    state, saved = load_checkpoint(folder / "ckpt" / "last")
    state["collector"]["episode_count"] = episodes
    save_checkpoint(folder / "ckpt" / "last", {**state, "ranks": {"size": 2, "rank 1": {}}}, saved)
    return folder


def test_what_another_number_of_ranks_drops_is_named(tmp_path):
    learn = {"aux_freq": 3, "epoch_per_collect": 10}
    config = small_config(LengthEnv, policy={"type": "ppg", "learn": learn})
    for iterations, dropped in ((2, "new episodes, random streams and store"), (3, "streams")):
        folder = saved_by_two(train(tmp_path / f"run{iterations}", config, iterations), 8)
        SerialPipeline.resume(folder, trust=TRUST).close()
        (line,) = (line for line in log(folder).splitlines() if "number of ranks 2 -> 1: " in line)
        assert f"{dropped}; {NOT_BIT_EQUAL}" in line


def test_each_resume_with_another_number_of_ranks_has_start_states_of_its_own(tmp_path):
    """Also on ranks that count their episodes from 0 each time."""
    starts = []
    for iterations in (1, 1, 2):
        folder = train(tmp_path / f"run{len(starts)}", small_config(LengthEnv), iterations)
        with SerialPipeline.resume(saved_by_two(folder, 0), trust=TRUST) as pipeline:
            starts.append(pipeline.collector.obs[0].ravel().tolist())
    assert starts[0] == starts[1]
    assert not set(starts[0]) & set(starts[2])


class MaybeMasked(LengthEnv):
    """Has a mask of its two actions if ``mask``."""

    def __init__(self, mask=True):
        super().__init__()
        self.mask = mask
        if mask:
            mask_space = gym.spaces.MultiBinary(2)
            self.observation_space = gym.spaces.Dict(at=self.observation_space, action_mask=mask_space)
        else:
            self.observation_space = gym.spaces.Dict(at=self.observation_space)

    def _seen(self, obs):
        return {"at": obs, **({"action_mask": np.ones(2, np.int8)} if self.mask else {})}

    def reset(self, **kwargs):
        obs, info = super().reset(**kwargs)
        return self._seen(obs), info

    def step(self, action):
        obs, *rest = super().step(action)
        return (self._seen(obs), *rest)


@pytest.mark.parametrize("has_mask", [True, False])
@pytest.mark.parametrize(
    ("policy", "dropped"),
    [
        (dict(type="ppg"), "store"),
        (dict(type="ppg", model=dict(rnn="gru")), "store"),
        (dict(type="ppo_offpolicy", other=dict(replay_buffer=dict(max_use=20))), "replay"),
        (dict(type="ppg_offpolicy"), "replay and store"),
    ],
    ids=["ppg", "ppg with a memory", "ppo_offpolicy", "ppg_offpolicy"],
)
def test_what_is_stored_of_observations_is_forgotten_where_these_have_another_layout(
    policy, dropped, has_mask, tmp_path
):
    learn = dict(aux_freq=3) if "ppg" in policy["type"] else {}
    config = small_config(MaybeMasked, env={"kwargs": {"mask": has_mask}}, policy=policy | {"learn": learn})
    config["policy"]["learn"].pop("epoch_per_collect")
    folder = train(tmp_path / "run", config, 2)
    pipeline = go_on(folder, changes={"env.kwargs.mask": not has_mask}, override=True, trust=[__name__])
    assert (pipeline.status, pipeline.progress.iteration) == ("finished", 6)
    assert f"the observations have other shapes or dtypes: new {dropped}; {NOT_BIT_EQUAL}" in log(folder)


def test_environments_that_are_not_deterministic_go_on_with_new_episodes_by_override(tmp_path):
    config = small_config(UnseededEnv)
    folder = train(tmp_path / "run", config, 2)
    with pytest.raises(CheckpointError, match="not deterministic.*--override"):
        SerialPipeline.resume(folder, trust=TRUST)
    pipeline = go_on(folder, trust=TRUST, override=True)
    assert (pipeline.status, pipeline.progress.iteration) == ("finished", 6)


@pytest.mark.parametrize("had_it", [False, True])
def test_an_off_policy_run_goes_on_with_another_reference_without_its_old_rollouts(had_it, tmp_path):
    reference = str(train(tmp_path / "reference", CONFIG, 1))
    on = {"kl_beta": 0.1, "pretrained_model_path": reference}
    off = {"kl_beta": 0.0, "pretrained_model_path": None}
    learn = {"epoch_per_collect": 10} | (on if had_it else off)  # the default: it has no effect
    kept = {"replay_buffer": {"max_use": 6}}
    config = merged(CONFIG, {"policy": {"type": "ppo_offpolicy", "learn": learn, "other": kept}})
    folder = train(tmp_path / "run", config, 2)
    with SerialPipeline.resume(folder) as pipeline:
        assert pipeline.policy.replay.rollouts
    changes = {f"policy.learn.{key}": value for key, value in (off if had_it else on).items()}
    with SerialPipeline.resume(folder, changes=changes) as pipeline:
        assert not pipeline.policy.replay.rollouts
        next(iter(pipeline))


def test_a_run_goes_on_beside_a_reference_with_a_memory(tmp_path):
    memory = merged(CONFIG, {"policy": {"model": {"rnn": "lstm", "rnn_hidden_size": 8}}})
    reference = str(train(tmp_path / "reference", memory, 1))
    folder = train(tmp_path / "run", CONFIG, 2)
    changes = {"policy.learn.kl_beta": 0.1, "policy.learn.pretrained_model_path": reference}
    with SerialPipeline.resume(folder, changes=changes) as pipeline:
        assert next(iter(pipeline)).metrics["learn/reference_kl"] > 0


class NewEpisodes(CartPoleVectorEnv):
    """A vector environment whose open episodes cannot be restored."""


gym.register(
    "NewEpisodes-v0",
    "gymnasium.envs.classic_control.cartpole:CartPoleEnv",
    vector_entry_point=NewEpisodes,
    max_episode_steps=500,
)


def test_new_episodes_of_a_resumed_run_begin_the_return_of_the_reward_scale(tmp_path):
    changes = {"env": {"manager": {"type": "vector"}}, "policy": {"normalize": {"reward": True}}}
    folder = train(tmp_path / "run", merged(small_config("NewEpisodes-v0"), changes), 2)
    pipeline = SerialPipeline.resume(folder)
    assert not pipeline.collector.envs.restorable
    assert pipeline.policy.reward_scale.running_return is None
    pipeline.close()


@pytest.mark.parametrize(
    "damage", [b"", b"hello,world\n", b"\xff\xfe", b"env_step,train_iter\n1\n\xff,\n"], ids=str
)
def test_a_damaged_table_is_set_aside_or_cut(damage, tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    (folder / "metrics.csv").write_bytes(damage)
    pipeline = go_on(folder)
    assert pipeline.status == "finished"
    assert (folder / "metrics.csv").read_bytes().startswith(b"env_step,train_iter")
    assert (folder / "metrics.csv.damaged").exists() == (b"env_step" not in damage and damage != b"")


def test_a_finished_run_needs_no_open_episodes(tmp_path):
    folder = train(tmp_path / "run", small_config(UnseededEnv))
    pipeline = go_on(folder, trust=TRUST)
    assert (pipeline.status, pipeline.progress.iteration) == ("finished", 6)
    assert "the open episodes could not be restored" in log(folder)
    with pytest.raises(CheckpointError, match="not deterministic"):  # a run that goes on needs them
        SerialPipeline.resume(
            train(tmp_path / "other", small_config(UnseededEnv)), trust=TRUST, max_env_step=9999
        )


def test_override_of_what_cannot_be_is_a_readable_error(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    with pytest.raises(CheckpointError, match="'model' does not fit"):
        SerialPipeline.resume(folder, changes={"policy.model.encoder_hidden_size_list": [8]}, override=True)
    go_on(folder)  # and the run is as it was


def test_faulty_change_is_a_config_error(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    with pytest.raises(ConfigError, match="did you mean 'clip_ratio'"):
        SerialPipeline.resume(folder, changes={"policy.learn.clip_ration": 0.1})


def test_of_a_file_only_what_is_free_is_taken_over_and_no_command_line_is_overruled(tmp_path):
    started = compile_config(CONFIG, {"checkpoint.keep": 5}, origin="my.py")
    folder = train(tmp_path / "run", started, 1)
    edited = merged(CONFIG, {"max_env_step": 2048, "checkpoint": {"keep": 7, "freq": 99}})
    edited = merged(edited, {"policy": {"learn": {"clip_ratio": 0.3}}, "env": {"collector_env_num": 2}})
    pipeline = SerialPipeline.resume(folder, config=compile_config(edited, origin="my.py"), max_env_step=900)
    cfg = pipeline.cfg
    assert (cfg.max_env_step, cfg.checkpoint.keep, cfg.checkpoint.freq) == (900, 5, 99)
    assert (cfg.policy.learn.clip_ratio, cfg.env.collector_env_num) == (0.2, 4)
    text = log(folder)
    assert "free: applied from the file: checkpoint.freq: 0 -> 99" in text
    assert "free: the run keeps its own value: checkpoint.keep: 5, not 7" in text
    assert "warned: the run keeps its own value: policy.learn.clip_ratio: 0.2, not 0.3" in text
    assert "refused: the run keeps its own value: env.collector_env_num: 4, not 2" in text
    assert pipeline.config.source["checkpoint.freq"] == "my.py"
    pipeline.close()


@pytest.mark.parametrize("limits", [{"max_env_step": 511}, {"max_train_iter": 3}])
def test_limit_below_what_is_done_is_refused_and_changes_nothing(limits, tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    before = (folder / "config.json").read_bytes(), state_of(folder)
    with pytest.raises(ConfigError, match="is a total, and the run has done"):
        SerialPipeline.resume(folder, **limits)
    assert ((folder / "config.json").read_bytes(), state_of(folder)) == before
    SerialPipeline.resume(folder, max_env_step=512).close()  # what is done, and no more


def test_limit_of_a_file_below_what_is_done_is_not_taken_over(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 3)
    pipeline = SerialPipeline.resume(folder, config=compile_config(merged(CONFIG, {"max_env_step": 512})))
    assert pipeline.cfg.max_env_step == CONFIG["max_env_step"]
    pipeline.close()


@pytest.mark.parametrize(
    "other", [{"env": {"env_id": "Acrobot-v1"}}, {"policy": {"type": "ppo_offpolicy"}}], ids=["env", "policy"]
)
def test_file_of_another_run_is_refused(other, tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    config = merged(CONFIG, other)
    if "policy" in other:
        config["policy"]["learn"].pop("epoch_per_collect", None)
    with pytest.raises(ConfigError, match="the config is not that of the run"):
        SerialPipeline.resume(folder, config=compile_config(config))


def test_result_of_the_session_before_goes_when_a_run_goes_on(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    assert (folder / "result.json").exists()
    pipeline = SerialPipeline.resume(folder)
    assert not (folder / "result.json").exists()
    for _ in pipeline:
        pass
    before = (folder / "result.json").read_bytes()
    SerialPipeline.resume(folder).close()  # it is over: there is nothing to go on with
    assert (folder / "result.json").read_bytes() == before


def test_an_edited_config_of_a_run_changes_nothing_and_is_reported(tmp_path):
    list(SerialPipeline(CONFIG, folder=tmp_path / "run"))
    file = tmp_path / "run" / "config.json"
    saved = json.loads(file.read_text())
    rate = saved["config"]["policy"]["learn"]["learning_rate"]
    saved["config"]["policy"]["learn"]["learning_rate"] = 0.5
    file.write_text(json.dumps(saved))
    with SerialPipeline.resume(tmp_path / "run", max_env_step=99_999) as again:
        assert again.policy.learning_rate == rate
    said = "config.json was edited (policy.learn.learning_rate), which changes nothing"
    assert (tmp_path / "run" / "log.txt").read_text().count(said) == 1
    with SerialPipeline.resume(tmp_path / "run", max_env_step=99_999):  # it was written anew
        pass
    file.write_text(json.dumps(saved))
    changes = {"policy.learn.learning_rate": 0.5}
    with SerialPipeline.resume(tmp_path / "run", max_env_step=99_999, changes=changes) as again:
        assert again.policy.learning_rate == 0.5
    assert (tmp_path / "run" / "log.txt").read_text().count("config.json was edited") == 1


def test_config_of_a_checkpoint_is_that_of_its_run(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    ours, theirs = (load_config(folder / path) for path in ("config.json", "ckpt/last/config.json"))
    assert (ours.values, ours.source) == (theirs.values, theirs.source)


# ---------------------------------------------------------------------- solved runs


def test_new_limit_of_a_solved_run_survives_an_interruption(tmp_path):
    folder = train(tmp_path / "run", SOLVED)
    solved_at = load_checkpoint(folder / "ckpt" / "last")[0]["progress"]["env_step"]
    SerialPipeline.resume(folder, max_env_step=solved_at + 512, trust=TRUST).close()  # as good as killed
    pipeline = SerialPipeline.resume(folder, trust=TRUST)
    assert not pipeline.is_over()
    for _ in pipeline:
        break  # and interrupted once more
    pipeline.close()
    assert go_on(folder, trust=TRUST).progress.env_step >= solved_at + 512


def test_optimiser_steps_take_a_solved_run_further_too(tmp_path):
    folder = train(tmp_path / "run", SOLVED)
    done = load_checkpoint(folder / "ckpt" / "last")[0]["progress"]["train_iter"]
    pipeline = go_on(folder, max_train_iter=done + 10, trust=TRUST)
    assert pipeline.progress.train_iter >= done + 10


def test_a_new_limit_does_not_keep_a_run_from_being_solved_later(tmp_path):
    config = merged(SOLVED, {"policy": {"eval": {"eval_freq": 1024}}})
    folder = train(tmp_path / "run", config, 1)
    pipeline = go_on(folder, max_env_step=10**6, trust=TRUST)
    assert (pipeline.status, pipeline.progress.past_solved) == ("solved", False)
    assert pipeline.progress.env_step < 2000


def test_higher_bar_makes_a_solved_run_unsolved(tmp_path):
    folder = train(tmp_path / "run", SOLVED)
    pipeline = SerialPipeline.resume(folder, changes={"env.stop_value": 99.0}, trust=TRUST)
    assert not pipeline.is_over()
    assert not pipeline.progress.solved
    pipeline.close()


def test_a_run_past_solved_ends_at_a_new_bar(tmp_path):
    folder = train(tmp_path / "run", SOLVED)
    pipeline = SerialPipeline.resume(folder, max_env_step=10**6, trust=TRUST)
    for _ in pipeline:
        break
    assert pipeline.progress.past_solved
    pipeline.close()
    pipeline = go_on(folder, changes={"env.stop_value": 1.5}, trust=TRUST)
    assert pipeline.status == "solved"
    assert pipeline.progress.env_step < 2000


# ---------------------------------------------------------------------- one run, one process


def test_folder_is_locked_as_long_as_the_pipeline_is_open(tmp_path):
    pipeline = SerialPipeline(CONFIG, folder=tmp_path / "run")
    for save in (False, True):
        pipeline.step()
        if save:
            pipeline.save()
        with pytest.raises(ConfigError, match="in use by another pipeline of this program: close"):
            SerialPipeline.resume(tmp_path / "run")
    pipeline.close()
    SerialPipeline.resume(tmp_path / "run").close()


def test_resume_that_fails_leaves_no_lock_behind(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 1)
    for _ in range(2):
        with pytest.raises(ConfigError, match="seed: 0 -> 5"):
            SerialPipeline.resume(folder, changes={"seed": 5})
    SerialPipeline.resume(folder).close()


def test_row_torn_by_a_crash_is_dropped_even_where_its_number_looks_small(tmp_path):
    folder = train(tmp_path / "run", CONFIG, 2)
    before = (folder / "metrics.csv").read_bytes()
    (folder / "metrics.csv").write_bytes(before + b"7")  # of 768
    SerialPipeline.resume(folder).close()
    assert (folder / "metrics.csv").read_bytes() == before
