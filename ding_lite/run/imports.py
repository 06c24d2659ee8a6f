"""How another process finds the classes of a run: the options of the command line that import them."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ding_lite.config.compile import Config
from ding_lite.config.named_classes import classes_of, registered_classes
from ding_lite.config.registry import modules_to_import, name_of
from ding_lite.config.user_modules import (
    OF_CONFIG_FILE,
    SCRIPT,
    executed_name,
    is_importable,
    script_name,
)
from ding_lite.envs.packages import registering_module
from ding_lite.models.heads import Head
from ding_lite.policies.base import Policy
from ding_lite.rl.distributions import BOX_DISTRIBUTIONS


def import_options(policy: Policy, config: Config) -> list[str]:
    """Returns ``-c FILE`` and ``--import MODULE``, as far as a run needs them to find its classes."""
    modules = {name for cls in _classes_of(policy, config) for name in modules_to_import(cls)}
    modules = {name for name in modules if not name.startswith("ding_lite.")} | {*config.trusted}
    modules.discard("functools")  # of a partial, see not_importable
    registering = registering_module(config.values.env.env_id)
    if registering and registering.split(".")[0] not in {name.split(".")[0] for name in modules}:
        modules.add(registering)
    modules = {script_name() if name == SCRIPT else name for name in modules} - {SCRIPT}
    of_file = set() if config.file is None else modules & {executed_name(config.file), OF_CONFIG_FILE}
    options = ["-c", str(config.file)] if of_file else []
    return [
        *options,
        *(word for name in sorted(modules - of_file) for word in ("--import", _importable(name))),
    ]


def not_importable(policy: Policy, config: Config) -> list[str]:
    """Returns the names of the classes and functions of a run that no other process can import."""
    named = [entry for _, entry in classes_of(config.values) if callable(entry) or isinstance(entry, str)]
    entries = [*_classes_of(policy, config), *named]
    return sorted({name_of(entry) for entry in entries if not is_importable(entry)})


def _classes_of(policy: Policy, config: Config) -> Iterator[Any]:
    """Yields the classes that a run uses and that a module of the user may have registered."""
    yield from (type(policy), type(policy.model), *registered_classes(config.values))
    yield from (type(part) for part in policy.model.modules() if isinstance(part, Head))
    distribution = BOX_DISTRIBUTIONS.get(config.values.policy.model.get("box_distribution"))
    if distribution is not None:
        yield distribution


def _importable(module: str) -> str:
    """Returns what ``--import`` finds a module by: its name, or with its folder if that is not searched."""
    found = sys.modules.get(module) or (sys.modules[SCRIPT] if module == script_name() else None)
    file = getattr(found, "__file__", None)
    if file is None or not Path(file).is_file():
        return module
    is_package = hasattr(found, "__path__")
    folder = Path(file).absolute().parents[module.count(".") + is_package]  # that has to be searched
    installed = {Path(path) for path in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))}
    if module != SCRIPT and folder in {Path.cwd(), *installed}:
        return module
    whole = folder / module if is_package or "." in module else Path(file).absolute()
    return os.path.relpath(whole) if whole.is_relative_to(Path.cwd()) else str(whole)
