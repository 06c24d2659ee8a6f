"""``ding-lite train`` in this process: the run's folder, resuming, classes of one's own, errors in a run."""

import json
import re

from worlds import result_of, rows_of, timeless_rows

from ding_lite.run.checkpoint import load_checkpoint

RESULT_KEYS = {
    *("status", "solved", "eval_value", "eval_value_std", "best_eval_value", "env_step", "train_iter"),
    *("iterations", "wall_time_s", "env_steps_per_second", "seed", "policy", "env_id", "checkpoint"),
    *("best_checkpoint", "error"),
}


def test_a_run_writes_its_folder_and_says_what_to_do_next(well, tmp_path):
    output = well("train", "-c", "tiny.py", "policy.learn.batch_size=32", "-s", "5")
    folder = tmp_path / "runs" / "tiny"
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {"tiny.py", "runs"}
    files = {
        *("config.json", "episodes.csv", "metrics.csv", "log.txt", "git.txt", "result.json"),
        *("ckpt", "tb", ".lock"),
    }
    assert {path.name for path in folder.iterdir()} == files
    result, rows = result_of(folder), rows_of(folder)
    assert set(result) == RESULT_KEYS
    assert (result["status"], result["error"], result["seed"]) == ("finished", None, 5)
    assert (result["policy"], result["env_id"]) == ("ppo", "CartPole-v1")
    checkpoints = ("ckpt/last.safetensors", "ckpt/best.safetensors")
    assert (result["checkpoint"], result["best_checkpoint"]) == checkpoints
    assert result["env_step"] == int(rows[-1]["env_step"]) >= 512 > int(rows[-2]["env_step"])
    assert [int(row["iteration"]) for row in rows] == list(range(1, result["iterations"] + 1))
    evaluations = [float(row["eval/episode_return_mean"]) for row in rows if row["eval/episode_return_mean"]]
    assert (result["eval_value"], result["best_eval_value"]) == (evaluations[-1], max(evaluations))
    episodes = rows_of(folder, "episodes.csv")
    assert all(row["return"] == f"{int(row['length'])}.0" for row in episodes)  # CartPole: 1 a step
    saved = json.loads((folder / "config.json").read_text())
    assert saved["versions"].keys() == {"ding_lite", "torch", "numpy", "gymnasium", "python", "cpu"}
    assert "ding-lite eval runs/tiny" in output.splitlines()[-1]


def test_saved_config_gives_the_same_run_to_the_last_bit_in_a_folder_of_its_own(well, tmp_path):
    well("train", "-q", "-c", "tiny.py")
    well("train", "-q", "-c", "runs/tiny/config.json")
    first, second = (tmp_path / "runs" / name for name in ("tiny", "tiny_2"))
    assert timeless_rows(first) == timeless_rows(second)


def test_the_limit_of_this_run_leaves_the_schedules_and_the_key_moves_both(well, tmp_path):
    well("train", "-q", "-c", "tiny.py", "--max-env-step", "1e3", "--exp-name", "option")
    well("train", "-q", "-c", "tiny.py", "max_env_step=1000", "--exp-name", "key")
    well("train", "-q", "-c", "option/config.json", "max_env_step=900", "--exp-name", "saved")
    ends = []
    for name in ("option", "key", "saved"):
        config = json.loads((tmp_path / name / "config.json").read_text())["config"]
        ends.append((config["max_env_step"], config["policy"]["learn"]["schedule_env_step"]))
    assert ends == [(1000, 512), (1000, 1000), (900, 900)]
    assert "tiny.py differs in max_env_step, and is not used" in well(
        "train", "-c", "tiny.py", "--resume", "key"
    )
    assert "is not used" not in well("train", "-c", "tiny.py", "--resume", "option", "--max-env-step", "1100")
    assert "policy.learn.epoch_per_collect" in well("train", "-c", "cartpole_ppo", "--resume", "key")


def test_a_run_begins_from_the_weights_of_another(well, tmp_path):
    well("train", "-q", "-c", "tiny.py", "--exp-name", "a")
    begun = well("train", "-c", "tiny.py", "--init-from", "a", "--exp-name", "b")
    assert f"begins from the weights of {tmp_path}/a/ckpt/best" in begun


WORLD = """
from small_worlds import LengthEnv
from ding_lite import POLICY_REGISTRY, PPOPolicy


class Line(LengthEnv):
    calls = 0

    def __init__(self, fails_at=0):
        super().__init__(9)
        self.fails_at = fails_at

    def step(self, action):
        Line.calls += 1
        if Line.calls == self.fails_at:
            raise ValueError("mine")
        return super().step(action)


@POLICY_REGISTRY.register("mine")
class Mine(PPOPolicy):
    pass
"""
WATCH = """
from ding_lite import HOOK_REGISTRY, Hook
HOOK_REGISTRY.register("watching")(Hook)
"""
SMALL = (
    *("policy.collect.n_sample=64", "policy.learn.batch_size=32", "policy.eval.eval_freq=0"),
    *("env.collector_env_num=2", "env.evaluator_env_num=2", "env.n_evaluator_episode=2"),
)


def test_classes_of_ones_own_are_trained_and_only_trusted_when_named(ding_lite, well, tmp_path):
    (tmp_path / "world.py").write_text(WORLD)
    own = ["--policy", "mine", "--import", "world.py"]
    (tmp_path / "watch.py").write_text(WATCH)
    own += ["--import", "watch.py", 'hooks=["watching"]']
    well("train", "-q", "--env", "world:Line", *own, "--exp-name", "run", *SMALL, "max_env_step=64")
    refused = ding_lite("eval", "run", "--json")
    assert (refused.code, refused.out) == (5, "")
    assert "if you trust them: --import world --import watch (in" in refused.err
    assert json.loads(well("eval", "run", "-n", "2", "--json", "--import", "world"))["episodes"] == 2
    file = str(tmp_path / "world.py")  # the environment by the path of its file
    well("train", "-q", "--env", f"{file}:Line", *own, "--exp-name", "by_file", *SMALL, "max_env_step=64")
    assert "--import" in ding_lite("eval", "by_file", "--json").err
    assert json.loads(well("eval", "by_file", "-n", "2", "--json", "--import", file))["episodes"] == 2


def test_a_run_that_its_environment_ends_keeps_its_last_whole_iteration(ding_lite, well, tmp_path):
    (tmp_path / "world.py").write_text(WORLD)
    words = ["--env", "world:Line", "--plain", "--exp-name", "run", *SMALL, "max_env_step=640"]
    done = ding_lite("train", *words, "env.kwargs.fails_at=150")
    assert done.code == 3
    assert "ValueError: mine" in done.err
    assert "train --resume run" in done.err + done.out
    assert "Traceback" in (tmp_path / "run" / "log.txt").read_text()
    assert result_of(tmp_path / "run")["status"] == "failed"
    state, _ = load_checkpoint(tmp_path / "run" / "ckpt" / "last.safetensors")
    assert state["progress"]["iteration"] == len(rows_of(tmp_path / "run")) == 2
    resume = ["train", "--resume", "run", "--import", "world", "--override", "env.kwargs.fails_at=0"]
    well(*resume)
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "run")] == [*range(1, 11)]


def test_one_command_starts_a_run_continues_it_and_replaces_one_without_a_checkpoint(
    ding_lite, well, tmp_path
):
    (tmp_path / "world.py").write_text(WORLD)
    words = ["train", "--env", "world:Line", "--plain", "--exp-name", "run", "--resume", "auto", *SMALL]
    done = ding_lite(*words, "env.kwargs.fails_at=40")
    assert (done.code, "--resume" in done.err + done.out) == (3, False), "before its first checkpoint"
    # As if it had been killed after an iteration.
    (tmp_path / "run" / "metrics.csv").write_text("env_step,iteration,train_iter\n7,1,1\n")
    assert "ended before its first checkpoint" in well(*words, "--max-env-step", 128)
    assert "resumed from run/ckpt/last.safetensors at 128" in well(*words, "--max-env-step", 256)
    assert [int(row["iteration"]) for row in rows_of(tmp_path / "run")] == [1, 2, 3, 4]
    assert "refused: init_from: None -> " in ding_lite(*words, "--init-from", "run").err


def test_an_error_of_the_users_code_is_one_line_and_its_traceback_is_shown_with_debug(ding_lite, tmp_path):
    loss = "    def policy_loss(self, batch):\n        raise ValueError('boom')\n"
    (tmp_path / "world.py").write_text(WORLD.replace("    pass\n", loss))
    words = ["--env", "world:Line", "--policy", "mine", "--import", "world.py", *SMALL]
    done = ding_lite("train", "-q", *words)
    assert done.code == 2
    assert re.fullmatch(r"ding-lite train: error: ValueError: boom \(at world.py:\d+\)\n", done.err)
    assert "in policy_loss" in next(tmp_path.glob("runs/*/log.txt")).read_text()
    done = ding_lite("train", "-q", *words, "--debug")
    assert (done.code, "Traceback" in done.err) == (2, True)


def test_a_loss_that_is_not_finite_has_an_exit_code_of_its_own(ding_lite, tmp_path):
    loss = "    def policy_loss(self, batch):\n        loss, told = super().policy_loss(batch)\n"
    (tmp_path / "world.py").write_text(
        WORLD.replace("    pass\n", loss + "        return loss * float('nan'), told\n")
    )
    done = ding_lite("train", "-q", "--env", "world:Line", "--policy", "mine", "--import", "world.py", *SMALL)
    assert done.code == 4
