"""Registries: tables from the names in a config to classes, and the import of the user's modules.

A config names a class as ``type="ppo"`` or as ``type="my_package.my_module:MyPolicy"``. Names in a
checkpoint are looked up within :func:`importing_only`, which imports the modules of the user and no other.

Example::

    @POLICY_REGISTRY.register("my_ppo")
    class MyPPO(PPOPolicy): ...

    POLICY_REGISTRY.get("my_ppo")
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.machinery import PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, TypeVar

from ding_lite.config.schema import Schema, arguments_of, check, meant, refuse
from ding_lite.errors import FOREIGN, CheckpointError, ConfigError, RegistryError, error_text

T = TypeVar("T", bound=Callable[..., Any])
SCRIPT = "__main__"
_files: dict[str, tuple[Path, int]] = {}  # of import_file: path and time, by the module's name
# The modules that may be imported; None: any.
_importable: ContextVar[frozenset[str] | None] = ContextVar("importable", default=None)


def import_file(path: str | Path) -> ModuleType:
    """Imports a Python file once, as a module named after it, and puts its folder first on ``sys.path``.

    A file that has changed since the import is imported again.

    Raises:
        ConfigError: if a module of this name is already loaded from another file.
        Exception: any that the code of the file raises.
    """
    file = Path(path).resolve()
    name, version = file.stem, (file, file.stat().st_mtime_ns)
    sys.path[:] = [str(file.parent), *(folder for folder in sys.path if folder != str(file.parent))]
    if loaded := sys.modules.get(name):
        is_this = Path(getattr(loaded, "__file__", None) or "").resolve() == file
        if _files.get(name, version) == version and is_this:
            return loaded
        if name not in _files:
            raise ConfigError(f"{path}: a module named {name!r} is loaded already: rename the file")
    loader = _Loader(name, str(file))
    module = ModuleType(name)
    module.__file__, module.__loader__ = str(file), loader
    _files[name], sys.modules[name] = version, module
    try:
        loader.exec_module(module)
    except BaseException:
        del _files[name], sys.modules[name]
        raise
    return module


def names_in(path: Path) -> dict[str, Any]:
    """Returns the globals of a library's file. It is not imported, so a user's module may have its name."""
    return runpy.run_path(str(path))


class _Loader(SourceFileLoader):
    """Always compiles the file: Python may reuse the bytecode of a version that is up to a second older."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


def script_name() -> str:
    """Returns the name by which another process imports the script that runs, or "__main__".

    A notebook has no such name, nor has a script from standard input.
    """
    spec = getattr(sys.modules[SCRIPT], "__spec__", None)  # of python -m package.module
    file = Path(getattr(sys.modules[SCRIPT], "__file__", None) or "")
    return spec.name if spec else file.stem if file.is_file() else SCRIPT


@contextlib.contextmanager
def importing_only(modules: Sequence[str]) -> Iterator[None]:
    """Imports modules that the user has named; within the block, a name cannot import any other module."""
    before = _importable.set(None)
    try:
        found = [import_module(module) for module in modules]
        files = [str(Path(file).resolve()) for module in found if (file := getattr(module, "__file__", None))]
        _importable.set(frozenset([*modules, *(module.__name__ for module in found), *files]))
        yield
    finally:
        _importable.reset(before)


def import_fault(name: str) -> str:
    """Returns why the module of "module:Name" cannot be imported within :func:`importing_only`, or ""."""
    module, importable = name.partition(":")[0], _importable.get()
    file = str(Path(module).resolve()) if module.endswith(".py") else module
    if importable is None or not importable.isdisjoint((module, file)):
        return ""
    return (
        f"the module {module!r}, which only a checkpoint names, is not imported; if you trust it: "
        f"--import {module} (in Python: trust=[{module!r}])"
    )


def import_module(name: str) -> ModuleType:
    """Imports a module of the user by its name, or "FILE.py"; the script that runs is not executed again.

    Raises:
        CheckpointError: if it must not be imported, see :func:`import_fault`.
        ConfigError: if a module of this name is loaded already from another folder.
    """
    if name in (SCRIPT, script_name()):
        return sys.modules[SCRIPT]
    if fault := import_fault(name):
        raise CheckpointError(fault)
    if name.endswith(".py"):
        return import_file(name)
    module, top = importlib.import_module(name), name.partition(".")[0]
    loaded, spec = getattr(sys.modules[top], "__file__", None), PathFinder.find_spec(top)
    if loaded and spec and spec.origin and Path(loaded).resolve() != Path(spec.origin).resolve():
        raise ConfigError(f"{name}: {loaded} is loaded already, not {spec.origin}: rename one of them")
    return module


@dataclass(eq=False)
class Registry:
    """A table from names to classes or functions.

    Attributes:
        noun: the kind of the entries, for messages: "policy".
        modules: modules of the library that register entries. They are imported at the first lookup.
        base: the base class of all entries, as "package.module:Name".
        leading: number of leading arguments of an entry, which the library passes; the config has the others.
        entries: the registered classes and functions, by name.
    """

    noun: str
    modules: tuple[str, ...] = ()
    base: str = "builtins:object"
    leading: int = 1
    entries: dict[str, Any] = field(default_factory=dict)

    def register(self, name: str) -> Callable[[T], T]:
        """Registers the decorated class or function; one that is defined again replaces the old one.

        Raises:
            RegistryError: if the name is registered already; the message names both entries.
        """

        def decorate(entry: T) -> T:
            existing = self.entries.setdefault(name, entry)
            if name_of(existing) != name_of(entry):
                both = f"{name_of(existing)} and by {name_of(entry)}"
                raise RegistryError(f"{self.noun} {name!r} is registered twice: by {both}")
            self.entries[name] = entry
            return entry

        return decorate

    def get(self, name: Any) -> Any:
        """Returns an entry.

        Args:
            name: a registered name, "package.module:Name", or a class or another callable, which is returned.

        Raises:
            RegistryError: if the name is unknown; the message has the closest name and all names.
            CheckpointError: if a checkpoint names it, and the user has not named its module.
        """
        if callable(name):
            return name
        if name in self.entries or name in self.names():
            return self.entries[name]
        if ":" in str(name):
            return self._import(name)
        hint = meant(str(name), self.names()) or "."
        raise RegistryError(
            f"there is no {self.noun} named {name!r}{hint} Registered: {', '.join(self.names())}. "
            'For a class of your own, write "package.module:Name", or import the module that registers it '
            "(--import MODULE; load_policy(..., trust=['MODULE']))."
        )

    def get_class(self, name: Any) -> Any:
        """Returns an entry that is a subclass of the base class.

        Args:
            name: as for :meth:`get`.

        Raises:
            RegistryError: if the name is unknown, or names something else.
        """
        cls = self.get(name)
        module, _, base = self.base.partition(":")
        if not (isinstance(cls, type) and issubclass(cls, getattr(importlib.import_module(module), base))):
            raise RegistryError(
                f"{self.noun} {name_of(name)!r} is no subclass of {base} (from {module} import {base})"
            )
        return cls

    def faults(self, value: Any, path: str) -> list[str]:
        """Returns the faults of the value of a key that names entries, one message each.

        Args:
            value: a name, "package.module:Name", a class or function, ``{"type": ..., **arguments}``, or a
                list of these. Without a type, each argument must be an argument of some registered entry.
            path: of the key.

        The arguments of an import path ("package.module:Name") are not checked, because the check would
        import it. Only within :func:`importing_only` the object is imported and checked here, so that no
        import is left for later.
        """
        if isinstance(value, list):
            items = [{"type": None, **as_choice(item)} for item in value]
            return [fault for i, item in enumerate(items) for fault in self.faults(item, f"{path}[{i}]")]
        arguments = as_choice(value)
        accepted: Schema = {}
        for kind in [arguments.pop("type")] if "type" in arguments else self.names():
            is_path = isinstance(kind, str) and ":" in kind
            if is_path and _importable.get() is None:
                return []
            try:
                entry = self.get(kind)
            except (RegistryError, CheckpointError) as error:
                return [f"{path}: {error}"]
            schema = None if is_path else arguments_of(entry, self.leading)
            if schema is None:
                return []
            accepted |= schema
        faults = check(arguments, accepted, path)[1]
        if isinstance(value, Mapping) and "type" in value:  # env.type has its arguments in env.kwargs
            required = [name for name, key in accepted.items() if key.default is inspect.Parameter.empty]
            name, missing = name_of(kind), [argument for argument in required if argument not in arguments]
            faults += [f"{path}: an argument is missing: {{'type': {name!r}, {x!r}: ...}}" for x in missing]
        return faults

    def named_choices(self, items: Sequence[Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yields name, class and arguments of each item of a list; a repeated name gets a number.

        Raises:
            RegistryError: if an item names no entry.
            ConfigError: if it has arguments that its entry does not accept.
        """
        names: list[str] = []
        for item in items:
            choice = as_choice(item)
            kind = choice.pop("type")
            cls = self.get_class(kind)
            # The config does not check the arguments of an import path.
            refuse("the config", self.faults({"type": cls, **choice}, f"{self.noun} {name_of(kind)}"))
            names.append(name_of(kind))
            count = names.count(names[-1])
            yield names[-1] if count == 1 else f"{names[-1]} {count}", cls, choice

    def names(self) -> list[str]:
        """Returns every registered name, sorted; imports the library's modules that register some."""
        for module in self.modules:
            importlib.import_module(module)
        return sorted(self.entries)

    def _import(self, path: str) -> Any:
        """Returns the object at "package.module:Name" or "package.module:Class.attribute".

        Within :func:`importing_only` the object must be defined in the package of the module; in the
        running script it must also be a class.
        """
        module, _, names = path.partition(":")
        try:
            target = functools.reduce(getattr, names.split("."), import_module(module))
        except CheckpointError as error:
            raise CheckpointError(f"{self.noun} {path!r}: {error}") from error
        except FOREIGN as error:  # the module's code may raise anything
            raise RegistryError(f"{self.noun} {path!r} cannot be imported: {error_text(error)}") from error
        is_script = module in (SCRIPT, script_name())
        owner = str(getattr(target, "__module__", None)).split(".")[0]
        root = Path(module).stem if module.endswith(".py") else module.split(".")[0]
        is_own = owner == (SCRIPT if is_script else root)
        if _importable.get() is not None and not (is_own and (isinstance(target, type) or not is_script)):
            raise CheckpointError(f"the checkpoint names {path!r}, which {module} has only imported")
        return target


def as_choice(item: Any) -> dict[str, Any]:
    """Returns an item of a list of entries as ``{"type": ..., **arguments}``."""
    return dict(item) if isinstance(item, Mapping) else {"type": item}


def name_of(kind: Any) -> str:
    """Returns the name of a callable: its registered name if it is the library's, or "package.module:Name".

    A name is returned unchanged.
    """
    if isinstance(kind, str):
        return kind
    if not hasattr(kind, "__qualname__"):  # such as a functools.partial
        return f"{type(kind).__module__}:<{type(kind).__qualname__}>"
    if kind.__module__.startswith("ding_lite."):
        entries = (item for registry in REGISTRIES for item in registry.entries.items())
        if registered := next((name for name, entry in entries if entry is kind), None):
            return registered
    module = script_name() if kind.__module__ == SCRIPT else kind.__module__
    return f"{module}:{kind.__qualname__}"


def env_name(env: Mapping[str, Any]) -> str:
    """Returns the environment's id in a section ``env``, or the name of its type if it has no id."""
    kind = env.get("type", "gymnasium")
    env_id = env.get("env_id") if kind == "gymnasium" else None  # or a spec, in a worker
    return str(getattr(env_id, "id", env_id) or name_of(kind))


def env_section(name: str) -> dict[str, Any]:
    """Returns the section ``env`` for a registered name, "package.module:Class", or a gymnasium id.

    The id of gymnasium may have the form "module:Name-v0".
    """
    is_type = name in ENV_REGISTRY.names() or (":" in name and not re.search(r"-v\d+$", name))
    return {"type": name} if is_type else {"env_id": name}


POLICY_REGISTRY = Registry("policy", ("ding_lite.policies",), "ding_lite.policies:Policy")
MODEL_REGISTRY = Registry("model", ("ding_lite.models",), "ding_lite.models:ActorCritic")
INTRINSIC_REGISTRY = Registry("intrinsic reward", ("ding_lite.models",), "ding_lite.models:IntrinsicReward")
ENCODER_REGISTRY = Registry("encoder", ("ding_lite.models",))
BOX_DISTRIBUTION_REGISTRY = Registry(
    "Box distribution", ("ding_lite.models",), "ding_lite.rl.distributions:BoxDistribution", leading=2
)
ENV_REGISTRY = Registry("environment", ("ding_lite.envs",))
WRAPPER_REGISTRY = Registry("wrapper", ("ding_lite.envs",))
TRACKER_REGISTRY = Registry("tracker", ("ding_lite.run.trackers",), "ding_lite.run.trackers:Tracker")
HOOK_REGISTRY = Registry(
    "hook", ("ding_lite.run.hooks", "ding_lite.run.video"), "ding_lite.run.hooks:Hook", leading=0
)
REGISTRIES = [value for value in list(globals().values()) if isinstance(value, Registry)]
