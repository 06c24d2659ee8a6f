"""Imports modules of the user, and names the files that are executed without an import.

These are the script that runs, which is the module ``__main__``, and config files. Another process imports
them by the names of the files, so a saved config has those: "my_script:MyEnv". In this process such a name
stands for what was executed, because an import would execute the file a second time.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any

from ding_lite.errors import ConfigError

SCRIPT = "__main__"
OF_CONFIG_FILE = "<config file>"  # the module of what a config file defines, while it is executed
_config_files: dict[str, ModuleType] = {}  # that were executed, by the names that import them
_imported: ContextVar[str] = ContextVar("imported", default="")  # what is being imported


def executed_name(file: Path) -> str:
    """Returns the name by which another process imports a file, or "" if none does."""
    return file.stem if file.suffix == ".py" and "." not in file.stem else ""


def script_name() -> str:
    """Returns the name by which another process imports the script that runs, or "__main__" if none does.

    A notebook and an interactive session have no such name.
    """
    script = sys.modules[SCRIPT]
    spec = getattr(script, "__spec__", None)
    if spec is not None:  # python -m package.module
        return str(spec.name)
    return executed_name(Path(getattr(script, "__file__", None) or "")) or SCRIPT


def keep_executed(file: Path, names: Mapping[str, Any]) -> None:
    """Keeps what a config file defines, for names such as "my_config:MyEnv"."""
    name = executed_name(file)
    _config_files[name] = module = ModuleType(name)
    vars(module).update(names)


def module_of(entry: Any) -> str:
    """Returns the module from which another process imports a class or a function."""
    module = str(entry.__module__)
    if module == SCRIPT:
        executed = {script_name(): sys.modules[SCRIPT]}
    elif module == OF_CONFIG_FILE:
        executed = _config_files
    else:
        return module
    found = (name for name, loaded in executed.items() if _found(loaded, entry.__qualname__) is entry)
    return next(found, "") or module


def is_importable(entry: Any) -> bool:
    """Returns whether another process can import a class or a function, or what its name stands for.

    It cannot if that has no name (a lambda, a functools.partial), is inside of a function, or belongs to a
    notebook.
    """
    if isinstance(entry, str):
        return not entry.startswith(f"{SCRIPT}:")
    return "<" not in getattr(entry, "__qualname__", "<none>") and module_of(entry) != SCRIPT


def is_class_of_script(path: str) -> bool:
    """Returns whether "module:Name" is a class that the running script itself defines.

    What the script has only imported is left out, such as "my_script:os.system".
    """
    module, _, names = path.partition(":")
    found = _found(sys.modules[SCRIPT], names) if module in (SCRIPT, script_name()) else None
    return isinstance(found, type) and found.__module__ == SCRIPT


def _found(module: ModuleType, names: str) -> Any:
    """Returns the object "Name" or "Class.attribute" of a module, or None if it has none."""
    target: Any = module
    for name in names.split("."):
        target = getattr(target, name, None)
    return target


def import_user_module(module: str, name: str = "") -> ModuleType:
    """Imports a module, or returns the executed file that is meant: the script, or else a config file.

    Args:
        module: to import.
        name: that is looked for in it. An executed file that lacks it is not meant.

    Raises:
        ConfigError: if the module begins a training.
        Exception: any other that the code of the module raises.
    """
    script = sys.modules[SCRIPT] if module in (SCRIPT, script_name()) else None
    for executed in (script, _config_files.get(module)):
        if executed is not None and (not name or _found(executed, name) is not None):
            return executed
    with no_training(module):
        return importlib.import_module(module)


@contextlib.contextmanager
def no_training(imported: str) -> Iterator[None]:
    """In this block :func:`refuse_training` raises an error.

    Args:
        imported: the module or the file that the block imports, for the message.
    """
    token = _imported.set(imported)
    try:
        yield
    finally:
        _imported.reset(token)


def refuse_training() -> None:
    """Checks that a training does not begin because a module of the user is imported.

    Raises:
        ConfigError: if it does; the message has the line of the module.
    """
    imported = _imported.get()
    if not imported:
        return
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>" and frame.f_back is not None:
        frame = frame.f_back
    raise ConfigError(
        f"importing {imported} begins a training ({Path(frame.f_code.co_filename).name}:{frame.f_lineno}). "
        'Put that behind `if __name__ == "__main__":`, so that the classes of the file can be imported alone'
    )
