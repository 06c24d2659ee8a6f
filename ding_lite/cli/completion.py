"""Shell completion: ``ding-lite --install-completion`` writes a script for bash, zsh or fish.

shtab makes the script from the parser. It is static, so that TAB starts no Python. Added here are the words
that the parser does not know: shipped configs, registered policies, the keys of a config.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

from ding_lite.errors import ConfigError

SHELLS = ("bash", "zsh", "fish")
# A key is completed up to its "=", and no space may follow. fish adds none behind "=".
BASH_END = """
_ding_lite() {
  _shtab_ding_lite "$@"
  [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
  return 0
}
complete -o filenames -F _ding_lite ding-lite
"""


def install(shell: str, parser: argparse.ArgumentParser) -> str:
    """Writes the completion script of a shell, and returns where it is and what is left to do.

    Args:
        shell: "bash", "zsh" or "fish"; "" is the user's, as ``$SHELL`` says.
        parser: of the program. Its arguments are marked with what completes them.

    Raises:
        ConfigError: if shtab is not installed, the shell is another one, or the file cannot be written.
    """
    of_user = Path(os.environ.get("SHELL", "")).name
    if (shell or of_user) not in SHELLS:
        got = f"got {shell!r}" if shell else f"and $SHELL is {of_user!r}; name one"
        raise ConfigError(f"--install-completion: expected {', '.join(SHELLS)}, {got}")
    shell = shell or of_user
    file = script_file(shell)
    text = script(shell, parser)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--install-completion: {file} cannot be written: {error.strerror}") from error
    left = {
        "bash": "Open a new shell (the package bash-completion must be installed)",
        "zsh": f"Write into ~/.zshrc, before compinit: fpath=({file.parent} $fpath)\nThen open a new shell",
        "fish": "Open a new shell",
    }
    return f"wrote {file}\n{left[shell]}; remove the file to undo this"


def script_file(shell: str) -> Path:
    """Returns the file that a shell reads the completion of ``ding-lite`` from."""
    home = Path.home()
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local/share")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
    return {
        "bash": data / "bash-completion/completions/ding-lite",
        "zsh": home / ".zfunc/_ding-lite",
        "fish": config / "fish/completions/ding-lite.fish",
    }[shell]


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Returns the completion script of a shell, from the parser of the program.

    Raises:
        ConfigError: if shtab is not installed.
    """
    try:
        import shtab
    except ImportError as error:
        raise ConfigError('--install-completion needs shtab: pip install "ding_lite[completion]"') from error
    words = {"config": _configs(), "policy": _policies(), "overrides": _keys()}
    preamble = "\n".join(_functions(words)[shell])
    for action in _actions(parser):
        if action.dest in words:
            action.complete = _completer(action.dest, words[action.dest])  # type: ignore[attr-defined]
        elif action.nargs != 0 and not action.choices and isinstance(action.metavar, str):
            kinds = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY, "RUN": shtab.DIRECTORY}
            kind = next((kinds[word] for word in kinds if word in action.metavar), None)
            if kind is not None:
                action.complete = kind  # type: ignore[attr-defined]
    text = str(shtab.complete(parser, shell, preamble=preamble))
    return text + BASH_END if shell == "bash" else text


def _completer(name: str, words: list[str]) -> dict[str, str]:
    """Returns what completes an argument in each shell: a function of :func:`_functions`, or words."""
    function = f"_ding_lite_{name}"
    paths = " (__fish_complete_path)" if name == "config" else ""
    return {"bash": function, "zsh": function, "fish": " ".join(words) + paths}


def _functions(words: dict[str, list[str]]) -> dict[str, list[str]]:
    """Returns the functions that complete arguments, by shell. A config may be a file, too."""
    bash, zsh = [], []
    for name, known in words.items():
        text = " ".join(known)
        files = '; compgen -f -- "$1"' if name == "config" else ""
        bash.append(f'_ding_lite_{name}() {{ compgen -W "{text}" -- "$1"{files}; }}')
        files = "; _files" if name == "config" else ""
        space = "-S '' " if name == "overrides" else ""
        zsh.append(f"_ding_lite_{name}() {{ compadd {space}-- {text}{files} }}")
    return {"bash": bash, "zsh": zsh, "fish": []}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the arguments of a parser and of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _configs() -> list[str]:
    from ding_lite.config.compile import shipped_configs

    return list(shipped_configs())


def _policies() -> list[str]:
    from ding_lite.config.registry import POLICY_REGISTRY

    return POLICY_REGISTRY.names()


def _keys() -> list[str]:
    """Returns "path=" of every key that some policy reads."""
    from ding_lite.tools.key_reference import keys_of_policies

    return [f"{path}=" for path in keys_of_policies(_policies())]
