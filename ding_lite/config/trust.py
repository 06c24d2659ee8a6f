"""Which modules a checkpoint's config may import: those that the user has named, and no other."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from ding_lite.config.registry import modules_of
from ding_lite.config.user_modules import (
    OF_CONFIG_FILE,
    SCRIPT,
    import_user_module,
    is_class_of_script,
    script_name,
)
from ding_lite.config.values import decode
from ding_lite.errors import FOREIGN, CheckpointError, error_text

WITHOUT_NAME = (SCRIPT, OF_CONFIG_FILE)  # modules that another process cannot import by these names


def _refuse_untrusted(modules: Sequence[str], trust: Sequence[str], started_with: str) -> None:
    """Checks that the user trusts the modules that a checkpoint's config names.

    Args:
        modules: that the config names. Building the run would import and so execute them.
        trust: modules that the user has named in this call.
        started_with: options that the run was started with, or "".

    Raises:
        CheckpointError: naming all modules that are not in ``trust``.
    """
    unknown = [module for module in dict.fromkeys(modules) if module not in trust]
    if not unknown:
        return
    one = len(unknown) == 1
    names = ["MODULE" if module in WITHOUT_NAME else module for module in unknown]
    options = " ".join(f"--import {name}" for name in names)
    message = (
        f"the checkpoint's config names classes of the module{'' if one else 's'} "
        f"{' and '.join(map(repr, unknown))}. A module that only a checkpoint names is not imported. If you "
        f"trust {'it, name it' if one else 'them, name all'}: {options}, or -c FILE with the config file "
        f"that uses {'it' if one else 'them'} (in Python: trust={names!r})"
    )
    if SCRIPT in unknown:
        message += f". {SCRIPT!r} was the script that made the run: MODULE is the name of its file"
    if started_with not in ("", options):
        message += f". The options of its commands: {started_with}"
    raise CheckpointError(message)


def trusted_config(
    saved: Mapping[str, Any], names: Callable[[Mapping[str, Any]], list[Any]], trust: Sequence[str]
) -> dict[str, Any]:
    """Returns the config in a checkpoint, if the user trusts all modules that it names.

    The trusted modules are imported, since they may register names that the config has. Classes of the script
    that runs need no trust. Names of "__main__" or "<config file>", which a notebook or a file without an
    importable name leaves, are returned as those of the trusted module that has them.

    Args:
        saved: content of the checkpoint's ``config.json``.
        names: returns the names of classes in a config.
        trust: modules that the user has named in this call.

    Raises:
        CheckpointError: if a module is not trusted or cannot be imported, or if ``saved`` has no config of a
            run.
    """
    try:
        config: dict[str, Any] = decode(saved["config"], "config")
        paths = [name for name in names(config) if isinstance(name, str) and ":" in name]
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"the checkpoint's config is not that of a run: {error!r}") from error
    foreign = [path for path in paths if not is_class_of_script(path)]
    without_name = {*WITHOUT_NAME}.difference(trust) if trust else set()
    moved = [path for path in foreign if path.partition(":")[0] in without_name]
    not_moved = [path for path in foreign if path not in moved]
    _refuse_untrusted(modules_of(not_moved), trust, advised_imports(saved, trust))
    loaded = {module: _import_trusted(module) for module in trust}
    found = {path: _found_in(loaded, path) for path in moved}
    own = [path for path in paths if path not in foreign]
    found |= {path: f"{script_name()}:{path.partition(':')[2]}" for path in own}
    renamed: dict[str, Any] = _renamed(config, found)
    return renamed


def _import_trusted(module: str) -> ModuleType:
    try:
        return import_user_module(module)
    except FOREIGN as error:
        advice = (
            ". Name a module that Python finds (its folder is on sys.path), as trust=['pack.module'] or "
            "--import pack.module"
        )
        raise CheckpointError(
            f"the trusted module {module!r} cannot be imported: {error_text(error)}"
            f"{advice if isinstance(error, ModuleNotFoundError) else ''}"
        ) from error


def _found_in(modules: Mapping[str, ModuleType], path: str) -> str:
    """Returns "module:Name" for "__main__:Name", with the trusted module that has the name."""
    name = path.partition(":")[2]
    module = next((m for m, loaded in modules.items() if hasattr(loaded, name.partition(".")[0])), None)
    if module is None:
        raise CheckpointError(
            f"the checkpoint's config names {path!r}, and no trusted module has {name!r}: "
            f"{', '.join(modules)}. Name the file that defines it: --import FILE.py"
        )
    return f"{module}:{name}"


def _renamed(tree: Any, names: Mapping[str, str]) -> Any:
    """Returns plain data in which those texts that ``names`` has are replaced."""
    if isinstance(tree, Mapping):
        return {key: _renamed(value, names) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(value, names) for value in tree]
    return names.get(tree, tree) if isinstance(tree, str) else tree


def advised_imports(saved: Mapping[str, Any], trust: Sequence[str]) -> str:
    """Returns the options that a run was started with, for the message about a name that is unknown, or "".

    They are data of a checkpoint, which may come from an untrusted source. Nothing imports them.

    Args:
        saved: content of the checkpoint's ``config.json``.
        trust: modules that the user has named in this call. Options that name one of these are left out.
    """
    words = saved.get("imports")
    if not (isinstance(words, list) and all(isinstance(word, str) and word.isprintable() for word in words)):
        return ""
    pairs = [
        (option, word)
        for option, word in zip(words[::2], words[1::2], strict=False)
        if option in ("-c", "--import") and Path(word).name.removesuffix(".py") not in trust
    ]
    return " ".join(f"{option} {shlex.quote(word)}" for option, word in pairs)
