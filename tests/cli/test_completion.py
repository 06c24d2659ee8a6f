"""``ding-lite --install-completion``: where the script goes, and what a shell completes with it."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from ding_lite.cli import build_parser, main
from ding_lite.cli.completion import SHELLS, install, script_file

LINES = {
    "ding-lite tra": {"train"},
    "ding-lite train --init": {"--init-from"},
    "ding-lite train --policy ppg": {"ppg", "ppg_offpolicy"},
    "ding-lite train -c cartpole_ppo policy.learn.clip_": {
        "policy.learn.clip_ratio=",
        "policy.learn.clip_schedule=",
        "policy.learn.clip_final=",
    },
    "ding-lite config -c lunarlander_ppo": {"lunarlander_ppo", "lunarlander_ppo_offpolicy"},
    "ding-lite config -c my_": {"my_config.py"},
}
BASH = """
source "$1"
read -ra COMP_WORDS <<< "$2"
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_ding_lite ding-lite "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}" 2> errors
grep -v "compopt: not currently executing" errors >&2
printf '%s\\n' "${COMPREPLY[@]}"
"""
# An interactive zsh in a pseudo-terminal, set up as the guide says: the line is typed, then TAB. compadd is
# what adds a match; with -O, -A or -D it adds none.
ZSH = r"""
cat > ~/.zshrc << 'END'
fpath=(~/.zfunc $fpath)
autoload -Uz compinit && compinit -u
compadd() {
  if [[ ${@[1,(i)(-|--)]} != *-(O|A|D)\ * ]]; then
    local -a added
    builtin compadd -O added "$@"
    all_added+=($added)
  fi
  builtin compadd "$@"
}
complete-and-tell() {
  all_added=()
  zle complete-word
  print -rl -- $all_added > matches
  print -rn -- $BUFFER > line
  print TOLD
}
zle -N complete-and-tell
bindkey '^I' complete-and-tell
PS1=READY
END
zmodload zsh/zpty
zpty shell zsh -d -i
zpty -r shell shown '*READY*'
zpty -n -w shell "$2"$'\t'
zpty -r shell shown '*TOLD*'
cat matches
"""
FISH = 'source $argv[1]; complete -C $argv[2] | string replace -r "\\t.*" ""'


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder of its own, which is also the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_config.py").write_text("config = {}\n")
    return tmp_path


def test_files_are_where_each_shell_looks(home, monkeypatch):
    assert script_file("bash") == home / ".local/share/bash-completion/completions/ding-lite"
    assert script_file("zsh") == home / ".zfunc/_ding-lite"
    assert script_file("fish") == home / ".config/fish/completions/ding-lite.fish"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/config")
    assert str(script_file("bash")) == "/data/bash-completion/completions/ding-lite"
    assert str(script_file("fish")) == "/config/fish/completions/ding-lite.fish"


@pytest.mark.parametrize(
    ("arguments", "shell", "said"), [([], "/bin/ksh", "'ksh'; name one"), (["tcsh"], "", "'tcsh'")]
)
def test_another_shell_is_refused(home, monkeypatch, capsys, arguments, shell, said):
    monkeypatch.setenv("SHELL", shell)
    assert main(["--install-completion", *arguments]) == 2
    error = capsys.readouterr().err
    assert "expected bash, zsh, fish" in error
    assert said in error


def test_missing_package_is_named_with_the_line_that_installs_it(home, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["--install-completion", "bash"]) == 2
    assert 'pip install "ding_lite[completion]"' in capsys.readouterr().err
    assert not (home / ".local").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shell", "program"),
    [
        ("bash", ["bash", "-c", BASH, "_"]),
        ("zsh", ["zsh", "-f", "-c", ZSH, "_"]),
        ("fish", ["fish", "--no-config", "-c", FISH]),
    ],
)
def test_shell_completes_commands_options_names_and_keys(home, shell, program):
    pytest.importorskip("shtab", reason="needs the extra completion")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert f"wrote {script_file(shell)}" in install(shell, build_parser())
    for line, expected in LINES.items():
        command = [*program, str(script_file(shell)), line]
        done = subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        assert set(done.stdout.split()) == expected, line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("ding-lite tra", "ding-lite train "),
        ("ding-lite train policy.learn.clip_ra", "ding-lite train policy.learn.clip_ratio="),
    ],
)
def test_zsh_adds_a_space_behind_a_word_and_none_behind_a_key(home, typed, expected):
    pytest.importorskip("shtab", reason="needs the extra completion")
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed")
    install("zsh", build_parser())
    command = ["zsh", "-f", "-c", ZSH, "_", str(script_file("zsh")), typed]
    subprocess.run(command, cwd=home, check=True, timeout=60)
    assert (home / "line").read_text() == expected


@pytest.mark.slow
@pytest.mark.parametrize("shell", SHELLS)
def test_script_is_without_syntax_errors(home, shell):
    pytest.importorskip("shtab", reason="needs the extra completion")
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    install(shell, build_parser())
    done = subprocess.run([shell, "-n", str(script_file(shell))], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "policy.learn.clip_ratio=" in script_file(shell).read_text()
