"""The command line as a user meets it: real processes, real run folders, exit codes and messages."""

from __future__ import annotations

import ast
import csv
import json
import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest

from ding_lite.cli import build_parser, main
from ding_lite.cli.common import config_of
from ding_lite.cli.program import COMMANDS, command_module, parse
from ding_lite.config.compile import compile_config

ROOT = Path(__file__).parents[2]
DING_LITE = (sys.executable, "-m", "ding_lite")  # a process that nothing else was in
TINY = """\
config = dict(
    exp_name="tiny",
    max_env_step=100_000,
    env=dict(env_id="CartPole-v1", collector_env_num=4, evaluator_env_num=3, n_evaluator_episode=4),
    policy=dict(type="ppo", learn=dict(epoch_per_collect=2, learning_rate=1e-3)),
)
"""
SMALL = ("max_env_step=512", "policy.collect.n_sample=256", "policy.eval.eval_freq=256")
RESULT_KEYS = {
    *("status", "solved", "eval_value", "eval_value_std", "best_eval_value", "env_step", "train_iter"),
    *("iterations", "wall_time_s", "env_steps_per_second", "seed", "policy", "env_id", "checkpoint"),
    *("best_checkpoint", "error"),
}


def run(*arguments, cwd, program=None):
    """Runs one command to its end; its output is text."""
    command = [*(program or [processes.ding_lite()]), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


def done_well(*arguments, cwd, program=None):
    """Runs a command that must succeed and print nothing to standard error."""
    done = run(*arguments, cwd=cwd, program=program)
    assert (done.returncode, done.stderr) == (0, "")
    return done


def result_of(folder):
    return json.loads((folder / "result.json").read_text())


def rows_of(folder, name="metrics.csv"):
    with (folder / name).open(newline="") as stream:
        return list(csv.DictReader(stream))


def contents(folder):
    """Every file below a folder with its bytes, and every folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """The folder where a user works: one config file, and the runs of these tests."""
    folder = tmp_path_factory.mktemp("home")
    (folder / "tiny.py").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def trained(home):
    """The first run: from a file, with overrides."""
    return done_well("train", "-c", "tiny.py", *SMALL, cwd=home)


@pytest.fixture(scope="module")
def first(home, trained):
    return home / "runs" / "tiny"


@pytest.fixture
def copied(first, tmp_path):
    """A copy of the first run, alone in a folder, that a test may change."""
    return shutil.copytree(first, tmp_path / "copied")


# ------------------------------------------------------------------ help


def test_help_takes_less_than_a_quarter_of_a_second(home):
    """By CPU time, which the load of the machine hardly changes."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = done_well("--help", cwd=home, program=DING_LITE)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.25
    assert all(command in done.stdout for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command, capsys):
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert text.startswith(f"usage: ding-lite {command}")
    *_, examples = text.partition("\nexamples:\n")
    assert f"  ding-lite {command} " in examples


@pytest.mark.parametrize("command", COMMANDS)
def test_every_example_in_the_help_can_be_parsed(command):
    """Every line of the help that begins with "ding-lite", without its comment (behind two spaces)."""
    lines = [line.strip() for line in command_module(command).EXAMPLES.splitlines()]
    examples = [
        line.partition("  ")[0].partition(" > ")[0] for line in lines if line.startswith("ding-lite ")
    ]
    assert examples
    for example in examples:
        parse(shlex.split(example)[1:])


GREET = """\
SUMMARY = "print a greeting"
DESCRIPTION = "Prints a greeting."
EXAMPLES = "examples:\\n  ding-lite greet-user --name Ada"


def add_arguments(parser):
    parser.add_argument("--name", default="you")


def run(args):
    print(f"Hello {args.name}")
    return 0
"""


def test_new_command_needs_one_file_and_its_name_in_the_list(tmp_path, monkeypatch, capsys):
    import ding_lite.cli

    (tmp_path / "greet_user.py").write_text(GREET)
    monkeypatch.setattr(ding_lite.cli, "__path__", [*ding_lite.cli.__path__, str(tmp_path)])
    monkeypatch.setattr("ding_lite.cli.program.COMMANDS", (*COMMANDS, "greet-user"))
    assert main(["greet-user", "--name", "Ada"]) == 0
    assert capsys.readouterr().out == "Hello Ada\n"
    build_parser().print_help()
    assert "print a greeting" in capsys.readouterr().out
    del sys.modules["ding_lite.cli.greet_user"]


def test_config_without_its_option_is_refused_with_the_option(capsys):
    assert main(["config", "cartpole_ppo"]) == 2
    assert "-c cartpole_ppo" in capsys.readouterr().err


def test_no_command_shows_the_help(home):
    done = run(cwd=home)
    assert done.returncode == 2
    assert "usage: ding-lite" in done.stdout


def test_unknown_command_is_refused_with_the_known_ones(home):
    done = run("trian", cwd=home)
    assert done.returncode == 2
    assert all(command in done.stderr for command in COMMANDS)
    assert done.stderr.endswith("; did you mean 'train'?\n")
    assert "did you mean" not in run("fly", cwd=home).stderr


def refusal(arguments, capsys):
    """Returns the last paragraph that a command prints when argparse refuses its arguments."""
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    usage, _, message = capsys.readouterr().err.partition(f"ding-lite {arguments[0]}: error: ")
    assert usage.startswith(f"usage: ding-lite {arguments[0]} ")
    return message.rstrip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train -c x --max-env-steps 3000", "--max-env-steps of train; did you mean --max-env-step?"),
        ("train -c x --sed 3", "--sed of train; did you mean --seed?"),
        ("train -c x --seeds=3", "--seeds of train; did you mean --seed?"),
        ("train -c x --expname d", "--expname of train; did you mean --exp-name?"),
        ("train -c x --exp_name d", "--exp_name of train; did you mean --exp-name?"),
        ("sweep -c x --exp_name d", "--exp_name of sweep; did you mean --exp-name?"),
        ("eval runs/x --n-episodes 3", "--n-episodes of eval; did you mean --episodes?"),
        ("train --learning-rate 1e-3", "--learning-rate of train; write policy.learn.learning_rate=..."),
        ("train --total-timesteps 9", "--total-timesteps of train; write --max-env-step or max_env_step=..."),
        (
            "config --total-timesteps 9",
            "--total-timesteps of config; write max_env_step=...",
        ),
        ("train --algo ppo", "--algo of train; write --policy ppo or --policy ppg"),
        ("train --n-steps 9", "--n-steps of train; write policy.collect.n_sample=...: steps x environments"),
        ("train --n-aux-epochs 9", "--n-aux-epochs of train; write policy.learn.aux_train_epoch=..."),
        ("train --target_kl 1", "--target_kl of train; write policy.learn.target_kl=..."),
        ("train --optimizer sgd", "--optimizer of train; the optimiser is Adam; policy.learn.learning_rate"),
        (
            "plot runs/x --learning-rate 1",
            "--learning-rate of plot; `ding-lite plot --help` shows its options",
        ),
        ("train --qq", "--qq of train; `ding-lite train --help` shows its options"),
    ],
)
def test_option_that_a_command_has_not_is_answered_with_what_was_meant(arguments, message, capsys):
    assert refusal(arguments.split(), capsys).startswith(f"unknown option {message}")


def test_every_unknown_option_is_reported(capsys):
    message = refusal(["train", "--sed", "3", "--expname", "d"], capsys)
    assert [line.strip().split(" of ")[0] for line in message.splitlines()] == [
        "unknown option --sed",
        "unknown option --expname",
    ]


def test_argument_too_many_is_refused_by_its_command(capsys):
    assert refusal(["list", "policies", "foo"], capsys) == "unrecognized arguments: foo"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train -s abc", "argument -s/--seed: a seed is a whole number, got 'abc'"),
        ("train -c x.py -s 1.5 seed=3", "argument -s/--seed: a seed is a whole number, got '1.5'"),
        (
            "train -c x.py -s 0,1",
            "argument -s/--seed: a seed is a whole number, got '0,1'; several are written with spaces, as in "
            "-s 0 1 2",
        ),
        ("eval -s abc runs/x", "argument -s/--seed: a seed is a whole number, got 'abc'"),
        ("train --max-env-step 1.5", "argument --max-env-step: expected a whole number, got '1.5'"),
        ("train --max-env-step inf", "argument --max-env-step: expected a whole number, got 'inf'"),
        ("eval runs/x -n nan", "argument -n/--episodes: expected a whole number, got 'nan'"),
        ("eval", "the following arguments are required: RUN|CKPT"),
        ("play", "the following arguments are required: RUN|CKPT"),
    ],
)
def test_wrong_or_missing_value_of_an_option_is_said_plainly(arguments, message, capsys):
    assert refusal(arguments.split(), capsys) == message


@pytest.mark.parametrize("text", ["10000", "10_000", "1e4", "1E4", "10000.0"])
def test_whole_number_may_be_written_as_in_a_config(text):
    args = parse(["train", "-c", "x", "--max-env-step", text])
    assert (args.max_env_step, type(args.max_env_step)) == (10_000, int)


def test_seeds_do_not_take_what_stands_behind_them():
    args = parse(["train", "-s", "0", "1", "seed=3", "a.b=3"])
    assert (args.seeds, args.overrides) == ([0, 1], ["seed=3", "a.b=3"])
    assert parse(["train", "-s", "1e1", "2", "a.b=3"]).seeds == [10, 2]


def test_console_script_is_the_same_program(home):
    script = shutil.which("ding-lite", path=str(Path(sys.executable).parent))
    assert script is not None
    by_script = done_well("--version", cwd=home, program=(script,))
    assert by_script.stdout == done_well("--version", cwd=home, program=DING_LITE).stdout
    assert re.fullmatch(r"ding_lite \d+\.\d+\.\d+\n", by_script.stdout)


# ------------------------------------------------------------------ a run


@pytest.mark.parametrize("owns", [True, False])
def test_only_a_process_of_its_own_is_spared_the_search_for_garbage(home, owns):
    given = "" if owns else "['list', 'configs']"
    code = (
        "import gc, sys; from ding_lite.cli import main; sys.argv[1:] = ['list', 'configs']\n"
        f"main({given}); print(gc.isenabled(), gc.get_freeze_count() > 10_000)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=home, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"True {owns}", done.stderr


def test_run_folder_is_complete(first):
    files = {name for name, data in contents(first).items() if data}
    checkpoint = {"config.json", "manifest.json", "state.json", "tensors.safetensors"}
    expected = {"config.json", "episodes.csv", "metrics.csv", "log.txt", "git.txt", "result.json"}
    expected |= {f"ckpt/{name}/{file}" for name in ("last", "best") for file in checkpoint}
    assert expected <= files
    others = files - expected
    assert len(others) == 1
    assert others.pop().startswith("tb/events.out.tfevents")


def test_only_the_runs_folder_is_made(home, first):
    assert {path.name for path in home.iterdir()} - {"tiny.py", "__pycache__"} == {"runs"}


def test_result_has_every_key_and_true_values(first):
    result = result_of(first)
    rows = rows_of(first)
    assert set(result) >= RESULT_KEYS
    assert (result["status"], result["solved"], result["error"]) == ("finished", False, None)
    assert (result["seed"], result["policy"], result["env_id"]) == (0, "ppo", "CartPole-v1")
    assert (result["checkpoint"], result["best_checkpoint"]) == (
        "ckpt/last.safetensors",
        "ckpt/best.safetensors",
    )
    assert result["env_step"] == int(rows[-1]["env_step"])
    assert result["train_iter"] == int(rows[-1]["train_iter"])
    assert result["iterations"] == int(rows[-1]["iteration"]) == len(rows)
    evaluations = [float(r["eval/episode_return_mean"]) for r in rows if r["eval/episode_return_mean"]]
    assert result["eval_value"] == evaluations[-1]
    assert result["best_eval_value"] == max(evaluations)
    assert result["eval_value_std"] >= 0
    assert 0 < result["wall_time_s"] < 60
    assert result["env_steps_per_second"] == pytest.approx(
        result["env_step"] / result["wall_time_s"], rel=0.1
    )


def test_run_stops_at_the_first_boundary_at_or_past_its_limit(first):
    steps = [int(row["env_step"]) for row in rows_of(first)]
    assert steps[-2] < 512 <= steps[-1]


def test_metrics_have_one_row_an_iteration(first):
    rows = rows_of(first)
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    names = set(rows[0])
    assert names >= {"env_step", "train_iter", "collect/episode_return", "learn/policy_loss"}
    assert names >= {"learn/approx_kl", "learn/explained_variance", "time/env_steps_per_second"}


def test_evaluation_columns_are_filled_where_there_was_an_evaluation(first):
    rows = rows_of(first)
    steps = [0, *(int(row["env_step"]) for row in rows)]
    due = [now // 256 > before // 256 for before, now in zip(steps, steps[1:], strict=False)]
    assert [row["eval/episode_return_mean"] != "" for row in rows] == due


def test_episodes_are_listed_with_return_and_length(first):
    episodes = rows_of(first, "episodes.csv")
    assert all(row["return"] == f"{int(row['length'])}.0" for row in episodes)  # CartPole: 1 a step
    assert sum(int(row["length"]) for row in episodes) <= result_of(first)["env_step"]


def test_config_json_tells_values_and_where_they_came_from(first):
    saved = json.loads((first / "config.json").read_text())
    assert set(saved) == {"config", "source", "imports"}
    assert saved["config"]["policy"]["collect"]["n_sample"] == 256
    assert saved["source"]["policy.collect.n_sample"] == "command line"
    assert saved["source"]["policy.learn.learning_rate"] == "tiny.py"
    assert saved["source"]["policy.learn.clip_ratio"] == "default"


def test_what_was_shown_is_in_the_log_with_the_time(first, trained):
    log = (first / "log.txt").read_text().splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in log)
    assert "runs/tiny" in log[0]
    assert log[0][21:] in trained.stdout


def test_output_ends_with_how_it_went_and_what_to_do_next(first, trained):
    *_, outcome, advice = trained.stdout.splitlines()
    assert outcome.startswith(f"finished after {result_of(first)['env_step']:,} env steps")
    assert "ding-lite eval runs/tiny" in advice


@pytest.fixture(scope="module")
def second(home, first):
    """The first run once more: by the entry script, from the config that the first one saved."""
    entry = (sys.executable, ROOT / "entry" / "train.py")
    done_well("-c", "runs/tiny/config.json", cwd=home, program=entry)
    return home / "runs" / "tiny_2"


@pytest.mark.slow
def test_entry_script_trains_and_a_taken_name_gets_a_number(second):
    assert result_of(second)["status"] == "finished"


def test_saved_config_gives_the_same_run_to_the_last_bit(first, second):
    timeless = [
        [{k: v for k, v in row.items() if not k.startswith("time/")} for row in rows_of(folder)]
        for folder in (first, second)
    ]
    assert timeless[0] == timeless[1]
    for name in (
        "episodes.csv",
        "config.json",
        "ckpt/last.safetensors",
        "ckpt/best.safetensors",
    ):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.fixture(scope="module")
def without_file(home, first):
    arguments = ("--env", "CartPole-v1", "--policy", "ppo", "--exp-name", "no_file", "-s", "5", "-q")
    done = done_well("train", *arguments, "--max-env-step", "300", "policy.collect.n_sample=256", cwd=home)
    return home / "no_file", done


def test_run_needs_no_file(without_file):
    folder, _ = without_file
    result = result_of(folder)
    assert (result["status"], result["seed"], result["env_id"]) == ("finished", 5, "CartPole-v1")
    assert result["env_step"] >= 300


def test_quiet_run_shows_nothing(without_file):
    assert without_file[1].stdout == ""


def test_last_evaluation_does_not_give_an_iteration_a_second_row(without_file):
    rows = rows_of(without_file[0])
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert rows[-1]["eval/episode_return_mean"] != ""


# ------------------------------------------------------------------ eval


EVALUATION_KEYS = {"episodes", "mean", "std", "returns", "lengths", "cut_short", "checkpoint", "seed"}


@pytest.fixture(scope="module")
def greedy(home, first):
    before = contents(first)
    done = done_well("eval", "runs/tiny", "-n", "5", "-s", "3", "--json", cwd=home)
    done.run_before, done.run_after = before, contents(first)
    return done


def test_eval_prints_one_json_object_and_nothing_else(greedy):
    found = json.loads(greedy.stdout)
    assert set(found) == EVALUATION_KEYS
    assert found["seed"] == 3
    assert greedy.stdout.count("\n") == 1


def test_eval_plays_exactly_as_many_episodes_as_asked(greedy):
    found = json.loads(greedy.stdout)
    assert found["episodes"] == len(found["returns"]) == len(found["lengths"]) == 5
    assert found["mean"] == pytest.approx(sum(found["returns"]) / 5)
    assert found["returns"] == found["lengths"]  # CartPole: 1 a step


def test_eval_of_a_run_takes_its_best_checkpoint(greedy):
    assert json.loads(greedy.stdout)["checkpoint"] == "runs/tiny/ckpt/best"


@pytest.mark.slow
def test_entry_script_evaluates_the_same(home, greedy):
    entry = (sys.executable, ROOT / "entry" / "evaluate.py")
    done = done_well("runs/tiny", "-n", "5", "-s", "3", "--json", cwd=home, program=entry)
    assert done.stdout == greedy.stdout


@pytest.mark.slow
def test_eval_takes_a_checkpoint_folder_too(home, first):
    done = done_well("eval", "runs/tiny/ckpt/last", "-n", "2", "--json", cwd=home)
    found = json.loads(done.stdout)
    assert (found["checkpoint"], found["episodes"]) == ("runs/tiny/ckpt/last", 2)


@pytest.mark.slow
def test_drawn_actions_play_other_episodes_than_greedy_ones(home, greedy):
    done = done_well("eval", "runs/tiny", "-n", "5", "-s", "3", "--stochastic", "--json", cwd=home)
    drawn, best = json.loads(done.stdout), json.loads(greedy.stdout)
    assert drawn["episodes"] == 5
    assert drawn["returns"] != best["returns"]


def test_eval_changes_nothing_in_the_run(greedy):
    assert greedy.run_before == greedy.run_after


@pytest.mark.slow
def test_eval_records_videos_without_a_screen_and_tells_the_numbers(home, first, monkeypatch):
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")  # else SDL complains of a missing display
    done = done_well("eval", "runs/tiny", "-n", "2", "--video", "video", cwd=home)
    again = json.loads(done_well("eval", "runs/tiny", "--video", "video", "--json", cwd=home).stdout)
    videos = {f"video/{file.name}" for file in (home / "video").iterdir()}
    shutil.rmtree(home / "video")
    assert again["episodes"] == 3
    names = [f"video/episode_{i}_return_{value:g}.mp4" for i, value in enumerate(again["returns"])]
    assert again["videos"] == names
    assert set(names) == videos  # the same start states: the first two are replaced
    assert re.search(r"^episodes +2 ", done.stdout, re.MULTILINE)
    assert "runs/tiny/ckpt/best" in done.stdout
    assert done.stdout.endswith("\nvideos: video (2 files)\n")


LUCKY = """
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv


class Lucky(CartPoleEnv):
    steps = 0

    def reset(self, **kwargs):
        self.steps = 0
        print("a word of the environment's own")
        return super().reset(**kwargs)

    def step(self, action):
        self.steps += 1
        obs, reward, terminated, truncated, info = super().step(action)
        return obs, reward, terminated, truncated, info | {"is_success": self.steps % 2}


gym.register("Lucky-v0", Lucky)
"""


def test_eval_tells_the_share_of_successes_that_the_environment_reports(home, first):
    (home / "lucky.py").write_text(LUCKY)
    command = ("eval", "runs/tiny", "-n", "8", "--import", "lucky.py", "env.env_id=Lucky-v0")
    done = run(*command, "--json", cwd=home)
    assert set(done.stderr.splitlines()) == {"a word of the environment's own"}
    found = json.loads(done.stdout)
    share = sum(length % 2 for length in found["lengths"]) / 8
    assert 0 < share < 1
    assert found["success"] == share
    output = done_well(*command, cwd=home).stdout
    assert f"\nsuccess     {share:.1%} of the episodes (is_success)\n" in output
    assert f"\nreturn      {found['mean']:.2f} ± {found['std']:.2f} (std)   min " in output


def test_eval_shows_its_progress_in_a_terminal(home, first):
    script = shutil.which("script")
    if script is None or sys.platform != "linux":
        pytest.skip("needs the script of Linux")
    command = shlex.join([processes.ding_lite(), "eval", "runs/tiny", "-n", "3"])
    done = subprocess.run([script, "-qec", command, "/dev/null"], cwd=home, capture_output=True, timeout=120)
    assert b"of 3 episodes" in done.stdout


# ------------------------------------------------------------------ plot, list, config


def test_plot_draws_a_picture_and_says_where(first, tmp_path):
    done = done_well("plot", first, "-o", "curves.png", cwd=tmp_path)
    assert "curves.png" in done.stdout
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG\r\n")


@pytest.fixture(scope="module")
def everything(home):
    """The list of all kinds: its names by kind."""
    kinds = {}
    for line in done_well("list", cwd=home).stdout.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            names = kinds.setdefault(line[:-1], [])
        else:
            names.append(line.split()[0])
    return kinds


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("policies", "ppo"),
        ("models", "vac"),
        ("encoders", "mlp"),
        ("distributions", "beta"),
        ("envs", "gymnasium"),
        ("configs", "cartpole_ppo"),
    ],
)
def test_list_names_every_kind(everything, kind, name):
    assert name in everything[kind]


def test_list_names_what_an_imported_file_registers(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from ding_lite import POLICY_REGISTRY, PPOPolicy\n\n\n"
        '@POLICY_REGISTRY.register("mine")\nclass Mine(PPOPolicy):\n    """PPO of my own."""\n'
    )
    lines = done_well("list", "policies", "--import", "mine.py", cwd=tmp_path).stdout.splitlines()
    assert "mine PPO of my own." in [" ".join(line.split()) for line in lines]


def test_second_imported_file_of_one_name_is_refused(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "of_one_name.py").touch()
    (tmp_path / "link").symlink_to("a")
    files = ["a/of_one_name.py", "link/of_one_name.py", "b/of_one_name.py"]
    options = [word for file in files for word in ("--import", file)]
    done_well("list", "policies", *options[:4], cwd=tmp_path)
    done = run("list", "policies", *options, cwd=tmp_path)
    assert done.returncode == 2
    loaded = f"another module 'of_one_name' is loaded already ({tmp_path / files[0]})"
    assert f"--import {files[2]}: {loaded}: rename the file" in done.stderr


def test_what_may_not_be_read_is_named(tmp_path):
    (tmp_path / "mine.py").touch(mode=0o000)
    (tmp_path / "closed").mkdir(mode=0o000)
    program = processes.without_privileges([sys.executable, "-m", "ding_lite"])
    faults = {
        ("list", "policies", "--import", "mine.py"): "--import mine.py cannot be read: Permission denied",
        ("runs", "closed"): "the folder closed cannot be read: permission denied",
        ("plot", "closed"): "the folder closed cannot be read: permission denied",
    }
    for command, fault in faults.items():
        done = run(*command, cwd=tmp_path, program=program)
        assert done.returncode == 2
        assert done.stderr == f"ding-lite {command[0]}: error: {fault}\n"


def test_list_of_one_kind_names_only_that_and_says_what_each_is(home, everything):
    lines = done_well("list", "configs", cwd=home).stdout.splitlines()
    assert [line.split()[0] for line in lines] == everything["configs"]
    assert ["cartpole_ppo", "ppo", "on", "CartPole-v1"] in [line.split() for line in lines]


def test_config_shows_every_value_with_its_source(home):
    done = done_well("config", "-c", "tiny.py", "policy.learn.batch_size=32", cwd=home)
    lines = {line.split()[0]: line.split(maxsplit=1)[1] for line in done.stdout.splitlines()}
    assert lines["policy.learn.batch_size"].split() == ["32", "command", "line"]
    assert lines["policy.learn.learning_rate"].split() == ["0.001", "tiny.py"]
    assert lines["policy.learn.clip_ratio"].split() == ["0.2", "default"]


@pytest.mark.slow
def test_config_as_json_is_one_that_can_be_given_back(home):
    shown = json.loads(done_well("config", "-c", "tiny.py", "seed=4", "--json", cwd=home).stdout)
    assert compile_config(shown).as_json() == shown
    assert shown["config"]["seed"] == 4


@pytest.mark.parametrize(
    ("name", "section"),
    [
        ("CartPole-v1", {"type": "gymnasium", "env_id": "CartPole-v1"}),
        ("small_worlds:LengthEnv", {"type": "small_worlds:LengthEnv", "env_id": ""}),
        ("small_worlds:Length-v0", {"type": "gymnasium", "env_id": "small_worlds:Length-v0"}),
    ],
)
def test_env_takes_an_id_or_a_class(name, section):
    args = build_parser().parse_args(["config", "--env", name])
    args.modules = []
    values = config_of(args).values
    assert {key: values.env[key] for key in section} == section


@pytest.mark.slow
def test_overrides_stand_on_both_sides_of_options(home):
    shown = done_well("config", "seed=4", "-c", "tiny.py", "policy.learn.batch_size=32", "--json", cwd=home)
    config = json.loads(shown.stdout)["config"]
    assert (config["seed"], config["policy"]["learn"]["batch_size"]) == (4, 32)


# ------------------------------------------------------------------ folders and resuming


def test_existing_folder_that_was_named_is_refused_and_left_alone(home, first):
    before = contents(home)
    done = run("train", "-c", "tiny.py", *SMALL, "--exp-name", "runs/tiny", cwd=home)
    assert done.returncode == 2
    assert "run folder runs/tiny exists" in done.stderr
    assert "--resume" in done.stderr
    assert contents(home) == before


def test_existing_folder_that_is_no_run_is_not_offered_to_be_continued(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "tiny.py").write_text(TINY)
    done = run("train", "-c", "tiny.py", "--exp-name", "videos", cwd=tmp_path)
    assert done.returncode == 2
    assert "videos exists and is not a run; choose another --exp-name, such as runs/my_run\n" in done.stderr


def test_finished_run_is_reported_to_be_finished(copied):
    before = contents(copied)
    done = done_well("train", "--exp-name", "copied", "--resume", cwd=copied.parent)
    assert "copied is finished" in done.stdout
    assert "--max-env-step" in done.stdout
    after = contents(copied)
    for name in (
        "metrics.csv",
        "episodes.csv",
        "result.json",
        "config.json",
        "ckpt/last.safetensors",
    ):
        assert after[name] == before[name], name


def test_a_run_whose_name_has_an_equals_sign_is_resumed(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    for name in ("runs/lr=0.1", "lr=0.1"):
        done_well("train", "-q", "-c", "tiny.py", *SMALL, "--exp-name", name, cwd=tmp_path)
        assert f"{name} is finished" in done_well("train", "--resume", name, cwd=tmp_path).stdout


def test_a_later_run_of_a_config_is_named_when_the_first_is_resumed(tmp_path):
    (tmp_path / "tiny.py").write_text(TINY)
    for _ in range(3):
        done_well("train", "-q", "-c", "tiny.py", *SMALL, cwd=tmp_path)
    done = done_well("train", "-c", "tiny.py", *SMALL, "--resume", cwd=tmp_path)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("a later run of this name")]
    assert line == "a later run of this name: --resume runs/tiny_3 continues that one"
    assert "runs/tiny is finished" in done.stdout


def test_finished_run_is_extended_and_keeps_its_rows_byte_for_byte(copied):
    before = contents(copied)
    done_well("train", "--resume", "copied", "--max-env-step", "1200", cwd=copied.parent)
    after = contents(copied)
    for name in ("metrics.csv", "episodes.csv"):
        assert after[name].startswith(before[name]), name
        assert len(after[name]) > len(before[name]), name
    rows, result = rows_of(copied), result_of(copied)
    assert [int(row["iteration"]) for row in rows] == list(range(1, len(rows) + 1))
    assert (result["status"], result["env_step"]) == ("finished", int(rows[-1]["env_step"]))
    assert result["env_step"] >= 1200


def test_resume_does_not_take_an_override_for_the_name_of_a_run(copied):
    done = run("train", "--exp-name", "copied", "--resume", "env.collector_env_num=5", cwd=copied.parent)
    assert done.returncode == 2
    assert "env.collector_env_num: 4 -> 5" in done.stderr
    assert "--override" in done.stderr
    assert "there is no folder" not in done.stderr


def test_resume_into_another_folder_is_refused(copied):
    done = run("train", "--resume", "copied", "--exp-name", "other", cwd=copied.parent)
    assert done.returncode == 2
    assert "continues in its own folder, not in --exp-name other" in done.stderr


def test_resume_from_a_checkpoint_may_name_its_own_folder(copied):
    words = ("--resume", "copied/ckpt/last", "--exp-name", "copied")
    assert "copied is finished" in done_well("train", *words, cwd=copied.parent).stdout


def test_resume_of_nothing_is_refused(tmp_path):
    done = run("train", "--resume", "nowhere", cwd=tmp_path)
    assert done.returncode == 5
    assert "there is no folder nowhere; `ding-lite runs FOLDER` lists the runs in a folder" in done.stderr
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ signals


def interrupt(cwd, number):
    """Starts a long run, signals it and all its workers after its first rows, and returns how it ended."""
    (cwd / "long.py").write_text(TINY.replace("tiny", "long").replace("100_000", "100_000_000"))
    options = ["policy.collect.n_sample=256", "policy.eval.eval_freq=0", "env.manager=subprocess"]
    command = [*DING_LITE, "train", "-c", "long.py", *options]
    metrics = cwd / "runs" / "long" / "metrics.csv"
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, cwd=cwd, start_new_session=True, **pipes) as process:
        try:
            deadline = time.monotonic() + 60
            while not (metrics.exists() and metrics.read_bytes().count(b"\n") > 2):
                assert process.poll() is None, process.communicate()[1]
                assert time.monotonic() < deadline, "the run did not start"
                time.sleep(0.05)
            os.killpg(process.pid, number)  # as a terminal does
            output, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    return process.returncode, output, errors


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    return folder, *interrupt(folder, signal.SIGINT)


def test_ctrl_c_ends_the_run_in_order(interrupted):
    folder, code, output, errors = interrupted
    result = result_of(folder / "runs" / "long")
    assert (code, errors) == (130, "")
    assert (result["status"], result["solved"]) == ("interrupted", False)
    assert "interrupted after" in output


def test_what_was_not_measured_is_null(interrupted):
    result = result_of(interrupted[0] / "runs" / "long")
    assert [result[key] for key in ("eval_value", "eval_value_std", "best_eval_value")] == [None] * 3
    assert (result["checkpoint"], result["best_checkpoint"]) == ("ckpt/last.safetensors", None)


@pytest.mark.slow
def test_interrupted_run_goes_on_with_resume_alone(interrupted):
    folder = interrupted[0]
    run_folder = folder / "runs" / "long"
    before, steps = (run_folder / "metrics.csv").read_bytes(), result_of(run_folder)["env_step"]
    done_well("train", "-c", "long.py", "--resume", "--max-env-step", steps + 300, cwd=folder)
    rows, result = rows_of(run_folder), result_of(run_folder)
    assert (result["status"], result["error"]) == ("finished", None)
    assert result["env_step"] >= steps + 300
    # The last evaluation brings new columns: the old rows are the same, but for these at their end.
    old, new = before.splitlines(), (run_folder / "metrics.csv").read_bytes().splitlines()
    assert all(line.startswith(kept) for kept, line in zip(old, new, strict=False))
    assert sorted({int(row["iteration"]) for row in rows}) == list(range(1, result["iterations"] + 1))


@pytest.mark.slow  # tests/cli/test_signals.py sends SIGTERM at many moments
def test_sigterm_ends_the_run_in_order(tmp_path):
    code, _, errors = interrupt(tmp_path, signal.SIGTERM)
    result = result_of(tmp_path / "runs" / "long")
    assert (code, errors) == (143, "")
    assert result["status"] == "interrupted"
    assert (tmp_path / "runs" / "long" / "ckpt" / "last.safetensors").is_file()


# ------------------------------------------------------------------ classes of one's own


@pytest.mark.slow
def test_the_command_to_type_next_imports_the_module_of_the_environment(tmp_path):
    (tmp_path / "worlds_of_mine.py").write_text(
        "import gymnasium as gym\n\nclass World(gym.Wrapper):\n"
        "    def __init__(self):\n        super().__init__(gym.make('CartPole-v1'))\n"
    )
    trained = done_well("train", "--env", "worlds_of_mine:World", *SMALL, cwd=tmp_path)
    command = trained.stdout.rstrip().splitlines()[-1].partition("try: ding-lite ")[2].split()
    assert command[-2:] == ["--import", "worlds_of_mine"]
    assert "return" in done_well(*command[:2], "-n", "1", *command[-2:], cwd=tmp_path).stdout


@pytest.mark.slow
def test_policy_beside_the_config_file_is_trained_and_only_trusted_when_named(tmp_path):
    project, elsewhere = tmp_path / "project", tmp_path / "elsewhere"
    project.mkdir()
    elsewhere.mkdir()
    (project / "own_policies.py").write_text(
        "from ding_lite import PPOPolicy\n\nclass Own(PPOPolicy):\n    config = dict(learn=dict(own_key=1))\n"
    )
    (project / "own.py").write_text(TINY.replace('"ppo"', '"own_policies:Own"').replace("tiny", "own"))
    trained = done_well("train", "-c", project / "own.py", *SMALL, cwd=elsewhere)
    assert trained.stdout.rstrip().endswith(f"--import {project / 'own_policies.py'}")
    saved = json.loads((elsewhere / "runs" / "own" / "config.json").read_text())
    assert saved["config"]["policy"]["learn"]["own_key"] == 1

    refused = run("eval", "runs/own", "-n", "1", "--json", cwd=elsewhere)
    assert (refused.returncode, refused.stdout) == (5, "")
    assert "--import own_policies" in refused.stderr

    allowed = done_well("eval", "runs/own", "-n", "1", "--json", "-c", project / "own.py", cwd=elsewhere)
    assert json.loads(allowed.stdout)["episodes"] == 1


def test_policy_defined_in_the_config_file_itself_is_trained(tmp_path):
    text = "from ding_lite import PPOPolicy\n\nclass Own(PPOPolicy):\n    pass\n\n" + TINY
    (tmp_path / "own.py").write_text(text.replace('"ppo"', "Own"))
    done_well("train", "-c", "own.py", *SMALL, cwd=tmp_path)
    assert result_of(tmp_path / "runs" / "tiny")["status"] == "finished"


# ------------------------------------------------------------------ bad input


BAD_CONFIG = TINY.replace(
    "learning_rate=1e-3", "learning_rat=1e-3, gamma=0.9, gae_lambda=0.9, batch_size='64'"
).replace('type="ppo"', 'type="ppo", collect=dict(discount_factor=1.5)')
# In the working folder it is found before an installed one, and behaves as one that is not there.
NOT_INSTALLED = """raise ModuleNotFoundError("No module named 'ale_py'", name="ale_py")\n"""
BAD_INPUT = {
    "config with four kinds of faults": (
        ["-c", "bad.py"],
        2,
        [
            "bad.py has 5 faults",
            "policy.learn: unknown key 'learning_rat'; did you mean 'learning_rate'?",
            "policy.learn: unknown key 'gamma'; 'discount_factor' exists at policy.collect.discount_factor",
            "policy.learn: unknown key 'gae_lambda'; 'gae_lambda' exists at policy.collect.gae_lambda",
            "policy.learn.batch_size: expected a whole number, got the string '64'",
            "policy.collect.discount_factor: expected a number at least 0 and at most 1, got 1.5",
        ],
    ),
    "unknown policy": (
        ["--env", "CartPole-v1", "--policy", "pppo"],
        2,
        ["policy.type", "'pppo'", "Did you mean 'ppo'?"],
    ),
    "unknown environment": (["--env", "CartPol-v1"], 3, ["'CartPol-v1' cannot be made", "CartPole"]),
    "missing package": (
        ["--env", "ALE/Pong-v5"],
        3,
        ["'ALE/Pong-v5' cannot be made", 'pip install "ding_lite[atari]"'],
    ),
    "missing file": (["-c", "nope.py"], 2, ["config file nope.py does not exist", "looked in"]),
    "file without config": (["-c", "empty.py"], 2, ["config file empty.py has no dict named `config`"]),
    "syntax error": (["-c", "syntax.py"], 2, ["config file syntax.py, line 2: "]),
    "config that ends the program": (
        ["-c", "exit.py"],
        2,
        ["config file exit.py cannot be read: SystemExit: 0"],
    ),
    "folder that cannot be made": (
        ["-c", "tiny.py", "--exp-name", "tiny.py/run"],
        2,
        ["run folder tiny.py/run cannot be created"],
    ),
    "folder where nothing can be written": (
        ["-c", "tiny.py", "--exp-name", "/proc/run"],
        2,
        ["run folder /proc/run cannot be created"],
    ),
    "CUDA where there is none": (
        ["-c", "tiny.py", "policy.device=cuda:99"],
        2,
        ["policy.device: 'cuda:99' was asked for", "cpu"],
    ),
    "device that computes nothing": (
        ["-c", "tiny.py", "policy.device=meta"],
        2,
        ["policy.device: 'meta' is not one of auto, cpu, cuda, cuda:N, mps"],
    ),
    "argument that an encoder has not": (
        ["-c", "tiny.py", "policy.model.encoder={'type':'mlp','hidden_sizes':[64]}"],
        2,
        ["policy.model.encoder: unknown key 'hidden_sizes'; did you mean 'hidden_size_list'?"],
    ),
    "folder outside of runs": (["-c", "tiny.py", "exp_name=../run"], 2, ["exp_name: expected", "'../run'"]),
    "rollout larger than any memory": (
        ["-c", "tiny.py", "policy.collect.n_sample=100_000_000_000_000"],
        2,
        ["out of memory while building the run: ", "Lower ", "policy.collect.n_sample (100,000,000,000,000)"],
    ),
    "rollout larger than any array": (
        ["-c", "tiny.py", f"policy.collect.n_sample={10**30}"],
        2,
        ["out of memory while building the run: ", "policy.collect.n_sample (1,000,"],
    ),
    "network larger than any memory": (
        ["-c", "tiny.py", "policy.model.encoder_hidden_size_list=[1_000_000,1_000_000_000]"],
        2,
        ["out of memory while building the run: ", "Lower the sizes under policy.model, "],
    ),
    "more threads than a process can have": (
        ["-c", "tiny.py", "num_threads=100_000"],
        2,
        ["num_threads: expected a number at least 1 and at most 1024, got 100000"],
    ),
    "seed that is given twice": (
        ["-c", "tiny.py", "-s", "3", "seed=4"],
        2,
        ["-s 3", "seed=4"],
    ),
    "limit that is given twice": (
        ["-c", "tiny.py", "max_env_step=2000", "--max-env-step", "1000"],
        2,
        ["--max-env-step 1000", "max_env_step=2000"],
    ),
    "environment that is given twice": (
        ["--env", "CartPole-v1", "env.env_id=Acrobot-v1"],
        2,
        ["--env CartPole-v1", "env.env_id=Acrobot-v1"],
    ),
    "override that is given twice": (
        ["-c", "tiny.py", "policy.learn.batch_size=32", "seed=1", "policy.learn.batch_size=64"],
        2,
        ["policy.learn.batch_size is given twice", "32", "64"],
    ),
    "class that is none": (
        ["--env", "collections:OrderedDict"],
        3,
        ["env 'collections:OrderedDict' cannot be made: ", "expected a gymnasium.Env, got OrderedDict"],
    ),
    "policy of a resumed run": (
        ["--resume", "runs/a", "--policy", "ppg"],
        2,
        ["--policy ppg is for a new run with --env; a resumed run keeps its policy"],
    ),
    "unknown module to import": (["--import", "nope", "-c", "tiny.py"], 2, ["--import nope"]),
}


@pytest.mark.daily(12)
@pytest.mark.parametrize("name", BAD_INPUT)
def test_bad_input_is_a_readable_paragraph_and_leaves_nothing_behind(warm, tmp_path, name):
    arguments, code, expected = BAD_INPUT[name]
    (tmp_path / "tiny.py").write_text(TINY)
    (tmp_path / "bad.py").write_text(BAD_CONFIG)
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "exit.py").write_text("import sys\n\nsys.exit(0)\n")
    (tmp_path / "ale_py.py").write_text(NOT_INSTALLED)
    (tmp_path / "syntax.py").write_text("seed = 3\nconfig = dict(seed=seed\n")
    before = contents(tmp_path)
    job = warm.start("train", *arguments, cwd=tmp_path)
    assert (job.wait(), job.output) == (code, "")
    shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
    assert "Traceback" not in job.errors
    assert job.errors.startswith("ding-lite")
    for text in expected:
        assert text in job.errors
    assert contents(tmp_path) == before


def test_debug_shows_the_traceback_of_an_error_too(tmp_path):
    done = run("config", "--debug", "-c", "nope.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("ding-lite config: error: config file nope.py")


@pytest.mark.parametrize(
    ("command", "fault"),
    [
        ("train -c cartpole_ppo -s 0 -1", "-s/--seed: a seed is at least 0, got -1"),
        ("train -c cartpole_ppo -s 0 1 --jobs 0", "--jobs: expected at least 1, got 0"),
        ("train -c cartpole_ppo -c pendulum_ppo", "-c/--config: given twice, cartpole_ppo and pendulum_ppo"),
        ("sweep -c cartpole_ppo --trials 0", "--trials: expected at least 1, got 0"),
        ("eval run -s -1", "-s/--seed: a seed is at least 0, got -1"),
        ("eval run -n 0", "-n/--episodes: expected at least 1, got 0"),
        ("play run -n 0.5", "-n/--episodes: expected a whole number, got '0.5'"),
        ("export run -n 0", "-n/--observations: expected at least 1, got 0"),
        ("check-env CartPole-v1 --steps 0", "--steps: expected at least 1, got 0"),
        ("check-env CartPole-v1 --rollout -1", "--rollout: expected at least 1, got -1"),
        ("check-env CartPole-v1 -s -1", "-s/--seed: a seed is at least 0, got -1"),
        ("profile -c cartpole_ppo --iterations 0", "--iterations: expected at least 1, got 0"),
    ],
)
def test_options_out_of_range_or_given_twice_are_refused_before_anything_is_read(command, fault, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(command.split())
    assert f"error: argument {fault}" in capsys.readouterr().err


def test_every_extra_that_a_message_names_can_be_installed():
    from ding_lite.envs.packages import EXTRAS

    tree = ast.parse((ROOT / "setup.py").read_text())
    offered = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "EXTRAS"
    )
    assert set(EXTRAS.values()) - set(offered) == set()


@pytest.mark.daily(1)
@pytest.mark.parametrize("closed", ["1", "2", "both"])
def test_a_closed_stream_stops_nothing(closed, tmp_path):
    redirection = {"1": ">&-", "2": "2>&-", "both": ">&- 2>&-"}[closed]
    command = (
        f"{sys.executable} -m ding_lite train -c cartpole_ppo --exp-name run --max-env-step 500 {redirection}"
    )
    assert (
        subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, check=False).returncode == 0
    )
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "finished"


def test_a_stream_that_cannot_show_a_character_shows_the_others(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "ding_lite", "train", "-c", "cartpole_ppo", "--max-env-step", "500"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "evaluation" in done.stdout
    assert "finished after" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("train", "-c", "cartpole_ppo", "--init-from", ""), "argument --init-from: expected a path, got ''"),
        (("train", "-c", "cartpole_ppo", "--exp-name", ""), "argument --exp-name: expected a path, got ''"),
        (("train", "--resume", ""), "argument --resume: expected a path, got ''"),
        (("train", "--resume", "--resume", "a"), "argument --resume: given twice, without a value and a"),
        (("eval", "run", "--video", ""), "argument --video: expected a path, got ''"),
        (("eval", ""), "expected a path, got ''"),
        (("plot", "run", "-o", "a.png", "-o", "b.png"), "-o/--output: given twice, a.png and b.png"),
        (("train", "--env", "A", "--env", "B"), "argument --env: given twice, A and B"),
        (("train", "-c", "cartpole_ppo", "-n", "3"), "unknown option -n of train; `ding-lite train --help`"),
        (("check-env", "CartPole-v1", "policy.learn.batch_size=3"), "only keys of env, and seed, have an"),
    ],
)
def test_options_without_a_meaning_are_refused(arguments, told, capsys):
    try:
        code = main(list(arguments))
    except SystemExit as ending:
        code = ending.code
    assert code == 2
    assert told in capsys.readouterr().err
