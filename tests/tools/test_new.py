"""``ding-lite new`` writes files that work as they are, under names that Python can import."""

import subprocess
from pathlib import Path

import processes
import pytest

from ding_lite.cli import main
from ding_lite.cli import new as command
from ding_lite.errors import ConfigError
from ding_lite.tools.new import KINDS, names_of, write_new

TEMPLATES = Path(__file__).parents[2] / "templates"


def test_kinds_of_the_command_have_templates():
    assert tuple(KINDS) == command.KINDS
    assert sorted(folder.name for folder in TEMPLATES.iterdir()) == sorted(KINDS)


@pytest.mark.parametrize(
    ("name", "module", "cls"),
    [
        ("my_policy", "my_policy", "MyPolicy"),
        ("my-policy", "my_policy", "MyPolicy"),
        ("MyPolicy", "my_policy", "MyPolicy"),
        ("soft PPO", "soft_ppo", "SoftPpo"),
        ("PPOWithMemory2", "ppo_with_memory2", "PpoWithMemory2"),
        ("arm", "arm", "Arm"),
    ],
)
def test_names_of_module_and_class(name, module, cls):
    assert names_of(name) == (module, cls)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        ("policy", "2fast", "cannot be that of a Python module"),
        ("policy", "a/b", "cannot be that of a Python module"),
        ("policy", "a.b", "cannot be that of a Python module"),
        ("policy", "", "cannot be that of a Python module"),
        ("policy", "class", "is a Python keyword"),
        ("policy", "torch", "there is a Python module 'torch' already"),
        ("env", "random", "there is a Python module 'random' already"),
        ("config", "ding_lite", "there is a Python module 'ding_lite' already"),
        ("policy", "ppo", "'ppo' is the name of another policy"),
        ("encoder", "nature_cnn", "'nature_cnn' is the name of another encoder"),
        ("encoder", "key", "the class would be named Key"),
        ("model", "actor_critic", "the class would be named ActorCritic"),
        ("env", "value_error", "the class would be named ValueError"),
    ],
)
def test_name_that_cannot_work_is_refused(tmp_path, kind, name, words):
    with pytest.raises(ConfigError, match=words):
        write_new(kind, name, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["soft.py", "soft_config.py", "test_soft.py"])
def test_existing_file_is_never_overwritten(tmp_path, taken, capsys):
    (tmp_path / taken).write_text("mine")
    assert main(["new", "policy", "soft", "-o", str(tmp_path)]) == 2
    assert f"{taken} exists already" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("kind", KINDS)
def test_no_placeholder_is_left(tmp_path, kind):
    files = write_new(kind, "my-own-thing", tmp_path)
    names = {file.name for file in files}
    assert names >= {"my_own_thing.py", "test_my_own_thing.py"}
    assert ("my_own_thing_config.py" in names) == (kind != "config")
    for file in files:
        text = file.read_text()
        assert "my_own_thing" in text or "MyOwnThing" in text
        assert f"my_{kind}" not in text
        assert f"My{kind.capitalize()}" not in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_printed_commands_run_as_printed(tmp_path, kind):
    """The test passes, and the config trains, in a folder whose name has a space."""
    new = subprocess.run(
        [processes.ding_lite(), "new", kind, "My-Own", "-o", "new parts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (new.returncode, new.stderr) == (0, "")
    test, train = (line.strip() for line in new.stdout.split("try:\n")[1].splitlines())
    assert test.startswith("python -m pytest ")
    assert train.startswith("ding-lite train -c ")
    binaries = {"PATH": f"{processes.warm().folder}:/usr/bin:/bin"}
    for line in (test, f"{train} max_env_step=512"):
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=binaries, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" not in done.stdout
    assert (tmp_path / "runs").is_dir()
