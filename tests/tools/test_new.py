"""``ding-lite new`` writes files that work as they are, under names that Python can import."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.cli import main
from ding_lite.cli import new as command
from ding_lite.cli.main import commands
from ding_lite.errors import ConfigError
from ding_lite.tools.new import TEMPLATES, write_new

KINDS = command.KINDS


def test_kinds_of_the_command_have_templates():
    assert sorted(folder.name for folder in TEMPLATES.iterdir()) == sorted(KINDS)


@pytest.mark.parametrize(("kind", "name"), [("env", "test_env"), ("policy", "my_config")])
def test_commands_name_the_test_and_the_module_however_the_module_is_called(kind, name, tmp_path, capsys):
    assert main(["new", kind, name, "-o", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1].endswith(f"-c {tmp_path / name}.py")
    assert any(line.endswith(f"test_{name}.py") and "pytest" in line for line in lines)


@pytest.mark.parametrize("name", ["2fast", "a/b", "a.b", "", "class"])
def test_name_that_no_module_can_have_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot be the name of a Python module"):
        write_new("policy", name, tmp_path / "folder")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("taken", ["soft.py", "test_soft.py"])
def test_existing_file_is_never_overwritten(tmp_path, taken, capsys):
    (tmp_path / taken).write_text("mine")
    assert main(["new", "policy", "soft", "-o", str(tmp_path)]) == 2
    assert f"{taken} exists already" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == [taken]
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize("kind", KINDS)
def test_no_placeholder_is_left(tmp_path, kind):
    files = write_new(kind, "my-own-thing", tmp_path)
    assert [file.name for file in files] == ["my_own_thing.py", "test_my_own_thing.py"]
    for file in files:
        text = file.read_text()
        assert "my_own_thing" in text or "MyOwnThing" in text
        assert f"my_{kind}" not in text
        assert f"My{kind.capitalize()}" not in text


@pytest.mark.parametrize("help_text", [commands.help, command.run.help], ids=["ding-lite", "new"])
def test_examples_of_the_help_write_their_files(tmp_path, monkeypatch, help_text):
    monkeypatch.chdir(tmp_path)
    lines = [line.strip().split("  ")[0] for line in help_text.splitlines()]
    examples = [shlex.split(line)[1:] for line in lines if line.startswith("ding-lite new ")]
    assert examples
    for arguments in examples:
        assert main(arguments) == 0
        (module,) = tmp_path.rglob(f"{arguments[2].replace('-', '_')}.py")
        assert module.with_name(f"test_{module.name}").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_printed_commands_run_as_printed(tmp_path, monkeypatch, capsys, kind):
    """In a folder whose name has a space. Each test trains for an iteration; one config trains here, too."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my-own", "-o", "new parts"]) == 0
    test, *checks, train = (line.strip() for line in capsys.readouterr().out.split("try:\n")[1].splitlines())
    assert test.startswith("python -m pytest ")
    assert [line.partition(" -c ")[0] for line in checks] == ["ding-lite check-env"] * (kind == "env")
    assert train.startswith("ding-lite train -c ")
    binaries = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    for line in (test, *checks, *([f"{train} max_env_step=512"] if kind == "env" else [])):
        done = subprocess.run(
            ["sh", "-c", line], cwd=tmp_path, env=binaries, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
