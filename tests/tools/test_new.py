"""``ding-lite new`` writes files that work as they are, under names that Python can import."""

import subprocess
import sys
from pathlib import Path

import pytest

from ding_lite.cli import main
from ding_lite.cli.new import KINDS
from ding_lite.errors import ConfigError
from ding_lite.tools.new import write_new


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


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_printed_commands_run_as_printed(tmp_path, monkeypatch, capsys, kind):
    """In a folder whose name has a space. Each test trains for an iteration; one config trains here, too."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", kind, "my-own", "-o", "new parts"]) == 0
    texts = [file.read_text() for file in (tmp_path / "new parts").iterdir()]
    assert [text for text in texts if f"my_{kind}" in text or f"My{kind.capitalize()}" in text] == []
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
