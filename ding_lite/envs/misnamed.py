"""What is said about an environment that is not found under its name: the name that is probably meant."""

from __future__ import annotations

import ast
import contextlib
import difflib
import sys
from pathlib import Path

import gymnasium as gym

from ding_lite.config.registry import ENV_REGISTRY
from ding_lite.envs.packages import NAMESPACES, register_ids


def meant_class(path: str) -> str:
    """Returns what is wrong with "package.module:Class", which cannot be imported, and what to write.

    Returns:
        "" if the reason is in the module itself, or there is no such module.
    """
    module, _, attribute = path.partition(":")
    if "/" in module or module.endswith(".py"):
        file = Path(module.removesuffix(".py") + ".py")
        if not file.is_file():
            return f"there is no file {file}"
        return f"a module is not written as a file; write {_written(file, attribute)}"
    loaded = sys.modules.get(module)
    if loaded is None or hasattr(loaded, attribute.partition(".")[0]):
        return ""
    classes = {
        name: value
        for name, value in vars(loaded).items()
        if isinstance(value, type) and value is not gym.Env
    }
    names = [name for name, value in classes.items() if issubclass(value, gym.Env)]
    close = difflib.get_close_matches(attribute, names, n=1)
    if close:
        return f"the module {module} has no {attribute}; did you mean {module}:{close[0]}?"
    return f"the module {module} has no {attribute}; its environments are: {', '.join(names) or 'none'}"


def meant_id(env_id: str) -> str:
    """Returns the environments that an id, which gymnasium does not know, may mean, as a sentence; or ""."""
    if env_id in ENV_REGISTRY:
        return f" {env_id!r} is registered in ENV_REGISTRY: write env.type={env_id!r}."
    module, _, name = env_id.partition(":")
    if isinstance(kind := getattr(sys.modules.get(module), name, None), type) and issubclass(kind, gym.Env):
        return f" {name} is a class there and no id: write env.type={env_id}."
    for namespace in NAMESPACES:
        with contextlib.suppress(ImportError):
            register_ids(f"{namespace}/{env_id}")
    file = Path(env_id if env_id.endswith(".py") else f"{env_id.replace('.', '/')}.py")
    if not file.is_file():  # my_module.MyEnv
        file = Path(f"{env_id.rpartition('.')[0].replace('.', '/')}.py")
    classes = env_classes(file) if file.is_file() else []
    meant = [
        *(known for known in gym.registry if known.endswith(f"/{env_id}")),
        *(_written(file, name) for name in classes),
    ]
    if close := difflib.get_close_matches(env_id, [n for n in ENV_REGISTRY.names() if n != "gymnasium"], n=1):
        meant.append(f"{close[0]}, which is registered in ENV_REGISTRY")
    return f" Did you mean {' or '.join(meant)}?" if meant else ""


def env_classes(file: Path) -> list[str]:
    """Returns the names of the environments in a Python file, which is read and not executed.

    They are its classes with a base whose name ends in "Env", such as ``gym.Env``, and their subclasses.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    found: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases]
            if any(base.endswith("Env") or base in found for base in bases):
                found.append(node.name)
    return found


def _written(file: Path, name: str) -> str:
    """Returns how the class of a Python file is named on the command line."""
    if file.is_absolute() or ".." in file.parts:
        return f"{file.stem}:{name} with --import {file}"
    return f"{'.'.join(file.with_suffix('').parts)}:{name}"
