"""Runs with classes of the script that trains, and names that only a module of the user registers."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from processes import ding_lite, python
from test_printed_commands import ENVS, LIMIT, POLICIES, SMALL, lay_out, words_of

from ding_lite.config.registry import name_of
from ding_lite.config.user_modules import is_class_of_script, script_name
from ding_lite.run.checkpoint import load_checkpoint, save_checkpoint

SCRIPT = f"""
import sys

from ding_lite import PPOPolicy, SerialPipeline, load_policy, serial_pipeline
from ding_lite.run.hooks import Hook

{ENVS}

class Mine(PPOPolicy):
    pass

class Quiet(Hook):
    pass

config = dict(
    exp_name="line",
    max_env_step=64,
    env=dict(type=Line, evaluator_env_num=1),
    policy=dict(type=Mine, collect=dict(n_sample=64), learn=dict(batch_size=32)),
    hooks=[Quiet],
)
"""
GUARDED = (
    SCRIPT
    + """
if __name__ == "__main__":
    if "resume" in sys.argv:
        with SerialPipeline.resume("runs/line", config=config, max_env_step=128) as pipeline:
            for _ in pipeline:
                pass
        assert type(pipeline.policy) is Mine and type(load_policy("runs/line")) is Mine
        SerialPipeline.resume("runs/line", trust=["same"]).close()
    else:
        serial_pipeline(config)
"""
)


def run(program, *argv, cwd):
    return subprocess.run([program, *map(str, argv)], cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with ``same.py``, which has trained, and the command that it printed."""
    home = tmp_path_factory.mktemp("home")
    lay_out(home, same=GUARDED)
    done = run(python(), "same.py", cwd=home)
    assert done.returncode == 0, done.stderr
    return home, words_of(done.stdout.partition("try: ")[2])


@pytest.fixture
def home(trained, tmp_path):
    shutil.copytree(trained[0], tmp_path / "home")
    return tmp_path / "home"


def test_printed_command_of_a_script_evaluates_its_classes(trained):
    home, command = trained
    assert command == ["eval", "runs/line", "-n", "100", "--import", "same"]
    done = run(ding_lite(), *command, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    refused = run(ding_lite(), "eval", "runs/line", cwd=home)
    assert refused.returncode == 5
    assert "--import same," in refused.stderr
    assert "__main__" not in refused.stderr
    saved = json.loads((home / "runs/line/config.json").read_text())
    assert (saved["config"]["env"]["type"], saved["config"]["hooks"]) == ("same:Line", ["same:Quiet"])
    assert saved["imports"] == ["--import", "same"]
    assert "modules of yours: --import same\n" in (home / "runs/line/log.txt").read_text()


@pytest.mark.daily(1)
@pytest.mark.parametrize("options", [("--import", "same.py"), ("-c", "same.py")])
def test_run_of_a_script_is_resumed_on_the_command_line(home, options):
    done = run(ding_lite(), "train", "--resume", "runs/line", "--max-env-step", "128", *options, cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    done = run(ding_lite(), *words_of(done.stdout.partition("try: ")[2]), cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    assert run(python(), "same.py", "resume", cwd=home).returncode == 0


def test_script_resumes_and_loads_its_own_run_without_trust(home):
    done = run(python(), "same.py", "resume", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")
    # Negative control: to another script it is a module that only a checkpoint names.
    (home / "other.py").write_text('from ding_lite import load_policy\nload_policy("runs/line")\n')
    assert "trust=['same']" in run(python(), "other.py", cwd=home).stderr


@pytest.mark.slow
def test_classes_without_a_file_are_used_in_their_own_process_alone(tmp_path):
    """A notebook has no file either; here the program comes from a pipe."""
    more = """
serial_pipeline(config)
with SerialPipeline.resume("runs/line", max_env_step=128) as pipeline:
    for _ in pipeline:
        pass
    print(pipeline.summary())
assert type(load_policy("runs/line")) is Mine
"""
    words = [sys.executable, "-"]  # not the warm one, which runs files
    done = subprocess.run(words, input=SCRIPT + more, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "__main__:Line is not found by `ding-lite eval` and `--resume`" in done.stdout
    assert done.stdout.count("try: load_policy('runs/line')") == 2
    assert "--import" not in done.stdout


@pytest.mark.slow
def test_saved_config_of_a_script_gives_the_same_run(home):
    done = run(ding_lite(), "train", "-c", "runs/line/config.json", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")


def of_an_earlier_version(home):
    """Writes the checkpoints as before: with ``__main__``, and without the modules of the user."""
    for folder in (home / "runs/line/ckpt").iterdir():
        state, saved = load_checkpoint(folder)
        shutil.rmtree(folder)
        del saved["imports"]
        save_checkpoint(folder, state, json.loads(json.dumps(saved).replace('"same:', '"__main__:')))


def test_earlier_checkpoint_that_names_main_is_found_in_the_file_that_is_named(home):
    of_an_earlier_version(home)
    for options in (["--import", "same.py"], ["-c", "same.py"]):
        done = run(ding_lite(), "eval", "runs/line", "-n", "2", *options, cwd=home)
        assert (done.returncode, done.stderr) == (0, "")
    refused = run(ding_lite(), "eval", "runs/line", cwd=home)
    assert "--import MODULE" in refused.stderr
    assert "--import __main__" not in refused.stderr
    other = run(ding_lite(), "eval", "runs/line", "--import", "json", cwd=home)
    assert (other.returncode, "no trusted module has 'Mine': json" in other.stderr) == (5, True)
    done = run(python(), "same.py", "resume", cwd=home)
    assert (done.returncode, done.stderr) == (0, "")


def test_import_of_a_script_that_trains_at_once_is_refused_before_it_trains(tmp_path):
    lay_out(tmp_path, same=SCRIPT + "serial_pipeline(config)\n")
    done = run(python(), "same.py", cwd=tmp_path)
    line = len(SCRIPT.splitlines()) + 1
    for options in (["--import", "same.py"], ["--import", "same"], ["-c", "same.py"]):
        refused = run(ding_lite(), *words_of(done.stdout.partition("try: ")[2])[:2], *options, cwd=tmp_path)
        assert refused.returncode == 2
        assert f"begins a training (same.py:{line}). Put that behind `if __name__ ==" in refused.stderr
    assert [folder.name for folder in (tmp_path / "runs").iterdir()] == ["line"]


@pytest.mark.slow
def test_class_of_a_config_file_is_evaluated_with_it(tmp_path):
    lay_out(tmp_path / "my project", line=SCRIPT)
    done = run(ding_lite(), "train", "-c", "my project/line.py", cwd=tmp_path)
    command = words_of(done.stdout.partition("try: ")[2])
    assert command[-2:] == ["-c", "my project/line.py"]
    assert run(ding_lite(), *command, cwd=tmp_path).returncode == 0
    refused = run(ding_lite(), *command[:-2], cwd=tmp_path)
    assert refused.stderr.endswith("The options of its commands: -c 'my project/line.py'\n")


def test_only_classes_that_the_script_defines_need_no_trust(monkeypatch):
    import __main__

    class Own:
        pass

    def function():
        pass

    for name, value in dict(Own=Own, function=function, json=json, Path=Path).items():
        monkeypatch.setattr(__main__, name, value, raising=False)
    for value in (Own, function):
        value.__module__, value.__qualname__ = "__main__", value.__name__
    monkeypatch.setattr(__main__, "__spec__", None, raising=False)
    monkeypatch.setattr(__main__, "__file__", "/somewhere/my_script.py", raising=False)
    assert script_name() == "my_script"
    assert (name_of(Own), name_of(function)) == ("my_script:Own", "my_script:function")
    assert is_class_of_script("my_script:Own")
    assert is_class_of_script("__main__:Own")
    for path in ("function", "json.loads", "json", "Path", "Missing", "Own.missing"):
        assert not is_class_of_script(f"my_script:{path}")
    assert not is_class_of_script("other:Own")
    monkeypatch.delattr(__main__, "__file__")  # a notebook
    assert (script_name(), name_of(Own)) == ("__main__", "__main__:Own")


@pytest.mark.slow
def test_unknown_name_of_a_run_is_answered_with_the_modules_that_it_was_started_with(warm, tmp_path):
    policies = POLICIES.replace('"mine"', '"ppo_spo"')
    register = 'import gymnasium\ngymnasium.register("Line-v0", entry_point=Line)\n'
    lay_out(tmp_path, mine=policies + ENVS + register)
    options = ["--import", "mine.py", "--env", "Line-v0", "--policy", "ppo_spo", "--exp-name", "r"]
    assert warm.run("train", *options, *SMALL, LIMIT, cwd=tmp_path).code == 0
    for command in (["train", "--resume", "r"], ["eval", "r"]):
        errors = warm.run(*command, cwd=tmp_path).errors
        assert "no policy named 'ppo_spo'" in errors
        assert errors.endswith("The run was started with --import mine: add that, if you trust it\n")
        assert "Did you mean" not in errors
    assert warm.run("eval", "r", "-n", "2", "--import", "mine", cwd=tmp_path).code == 0
    without = warm.run("train", "--env", "Line-v0", *SMALL, LIMIT, cwd=tmp_path)
    assert "If a module of yours registers it, --import MODULE imports that module" in without.errors
