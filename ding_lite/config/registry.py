"""Registries: tables from the names in a config to classes.

A config names a class as ``type="ppo"`` or as ``type="my_package.my_module:MyPolicy"``.

Example::

    @POLICY_REGISTRY.register("my_ppo")
    class MyPPO(PPOPolicy): ...

    POLICY_REGISTRY.get("my_ppo")
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ding_lite.config.schema import Schema, arguments_of, check
from ding_lite.config.user_modules import import_user_module, module_of
from ding_lite.errors import FOREIGN, RegistryError, error_text

T = TypeVar("T", bound=Callable[..., Any])
_registered_in: dict[int, tuple[Any, str]] = {}  # entries and the modules that have registered them, by id
CLOSE = 0.65  # ratio of difflib: that of "pgp" and "ppg" is 0.67, that of "ppo_spo" and "ppo" 0.6


class Registry:
    """A table from names to classes or functions.

    Args:
        noun: the kind of the entries, for messages: "policy".
        modules: modules of the library that register entries. They are imported at the first lookup.
        base: the base class of all entries, as "package.module:Name".
        given: number of the first arguments of an entry that the library passes; the config has the others.
    """

    def __init__(
        self,
        noun: str,
        modules: tuple[str, ...] = (),
        base: str = "builtins:object",
        given: int = 1,
    ) -> None:
        self.noun = noun
        self._base = base
        self._given = given
        self._modules = modules
        self._library_prefixes = tuple(f"{module}." for module in modules)
        self._entries: dict[str, Any] = {}
        self._replaced: set[str] = set()  # names registered with force=True

    def register(self, name: str, *, force: bool = False) -> Callable[[T], T]:
        """Registers the decorated class or function.

        Args:
            name: of the entry.
            force: replaces an entry of the same name.

        Raises:
            RegistryError: if the name is registered already; the message has both places.
        """

        def decorate(entry: T) -> T:
            existing = self._entries.get(name)
            if force:
                self._replaced.add(name)
            elif name in self._replaced and f"{entry.__module__}.".startswith(self._library_prefixes):
                return entry  # the user's replacement was registered before the library's entry
            if existing is not None and not force and _place(existing) != _place(entry):
                raise RegistryError(
                    f"{self.noun} {name!r} is registered twice: by {_place(existing)} and by "
                    f"{_place(entry)}. Choose another name, or pass force=True to replace it."
                )
            self._entries[name] = entry
            _registered_in[id(entry)] = entry, sys._getframe(1).f_globals["__name__"]
            return entry

        return decorate

    def share(self, entries: dict[str, Any]) -> None:
        """Uses ``entries`` as the table. ``rl.distributions``, which cannot import this module, fills it."""
        self._entries = entries

    def name_for(self, entry: Any) -> str:
        """Returns the name under which an object is registered, or ""."""
        return next((name for name, registered in self._entries.items() if registered is entry), "")

    def get(self, name: Any) -> Any:
        """Returns an entry.

        Args:
            name: a registered name, "package.module:Name", or a class or another callable, which is returned.

        Raises:
            RegistryError: if the name is unknown; the message has the closest name and all names.
        """
        if not isinstance(name, str):
            if callable(name):
                return name
            raise RegistryError(
                f"{name!r} is no {self.noun}; write a registered name ({', '.join(self.names())}), "
                '"package.module:Name", or in Python the class itself'
            )
        if name not in self._entries:
            self._load_library()
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._import(name)
        close = self.closest(name)
        hint = f" Did you mean {close!r}?" if close else ""
        raise RegistryError(
            f"there is no {self.noun} named {name!r}.{hint} Registered: {', '.join(self.names())}. "
            'For a class of your own, write "package.module:Name", or import the module that registers it '
            "(--import MODULE)."
        )

    def get_class(self, name: Any) -> Any:
        """Returns an entry that is a subclass of the base class.

        Args:
            name: as for :meth:`get`.

        Raises:
            RegistryError: if the name is unknown, or names something else.
        """
        cls, base = self.get(name), self.base
        if not (isinstance(cls, type) and issubclass(cls, base)):
            module, _, base_name = self._base.partition(":")
            raise RegistryError(
                f"{self.noun} {name_of(name)!r} is {_kind_of(cls)}, expected a subclass of {base_name} "
                f"(from {module} import {base_name})"
            )
        return cls

    def closest(self, name: Any) -> str | None:
        """Returns the registered name that is closest to ``name``, or None if none is close.

        A name with more words, such as "ppo_soft" beside "ppo", is one of the user's and no misspelling.
        """
        text = "" if ":" in str(name) else str(name)
        likely = [
            x for x in self.names() if not re.fullmatch(rf".+_{re.escape(x)}(_.+)?|{re.escape(x)}_.+", text)
        ]
        return next(iter(difflib.get_close_matches(text, likely, n=1, cutoff=CLOSE)), None)

    def choice_faults(self, choice: Mapping[str, Any], path: str) -> list[str]:
        """Returns the faults of ``{"type": name, **arguments}`` at ``path``, one message each.

        Without a type, each argument must be one of any registered entry. The arguments of an import path
        ("package.module:Name") are not checked, because the check would import it.
        """
        arguments = {name: value for name, value in choice.items() if name != "type"}
        accepted: Schema = {}
        for kind in [choice["type"]] if "type" in choice else self.names():
            if isinstance(kind, str) and ":" in kind:
                return []
            try:
                schema = arguments_of(self.get(kind), self._given)
            except RegistryError as error:
                return [f"{path}: {error}"]
            if schema is None:
                return []
            accepted |= schema
        _, faults = check(arguments, accepted, path)
        return faults

    def item_faults(self, items: Sequence[Any], path: str) -> list[str]:
        """Returns the faults of a list of entries at ``path``, one message each.

        Args:
            items: each a name, "package.module:Name", a class or function, or ``{"type": ..., **arguments}``.
            path: of the list.
        """
        return [
            fault
            for i, item in enumerate(items)
            for fault in self.choice_faults({"type": None, **as_choice(item)}, f"{path}[{i}]")
        ]

    def named_choices(self, items: Sequence[Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
        """Yields name, class and arguments of each item of a list of entries; repeated names get a number.

        Raises:
            RegistryError: if an item names no entry.
        """
        choices = [as_choice(item) for item in items]
        kinds = [choice.pop("type") for choice in choices]
        for name, kind, arguments in zip(numbered(list(map(name_of, kinds))), kinds, choices, strict=True):
            yield name, self.get_class(kind), arguments

    def names(self) -> list[str]:
        """Returns every registered name, sorted."""
        self._load_library()
        return sorted(self._entries)

    @property
    def base(self) -> type:
        """The base class of all entries."""
        base: type = self._import(self._base)
        return base

    def __contains__(self, name: str) -> bool:
        self._load_library()
        return name in self._entries

    def _load_library(self) -> None:
        """Imports the modules of the library that register entries."""
        for module in self._modules:
            importlib.import_module(module)

    def _import(self, path: str) -> Any:
        """Returns the object at "package.module:Name" or "package.module:Class.attribute"."""
        module, _, names = path.partition(":")
        fault = f"{self.noun} {path!r} cannot be imported"
        try:
            target: Any = import_user_module(module, names)
        except FOREIGN as error:  # its code may raise anything
            missing = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
            is_file = missing and module.endswith(".py")
            advice = (
                f"Write {path.replace('.py:', ':', 1)}" if is_file else "Is its folder on the Python path?"
            )
            reason = f"{error}. {advice}" if missing else error_text(error)
            raise RegistryError(f"{fault}: {reason}") from error
        for name in names.split("."):
            try:
                target = getattr(target, name)
            except AttributeError as error:
                close = difflib.get_close_matches(name, dir(target), n=1)
                file = getattr(sys.modules.get(module), "__file__", None)
                hint = (
                    f"did you mean {close[0]!r}?"
                    if close
                    else f"looked in {file or 'a module without a file'}"
                )
                raise RegistryError(f"{fault}: {error}; {hint}") from error
        return target


def _kind_of(entry: Any) -> str:
    """Returns what an object is: "the class NotHook", "a function"."""
    return f"the class {entry.__name__}" if isinstance(entry, type) else f"a {type(entry).__name__}"


def _place(entry: Any) -> str:
    """Returns where an entry is defined: "package.module.Name (file:line)"."""
    try:
        file = inspect.getsourcefile(entry) or "?"
        line = inspect.getsourcelines(entry)[1]
    except (OSError, TypeError):
        return f"{entry.__module__}.{entry.__qualname__}"
    return f"{entry.__module__}.{entry.__qualname__} ({file}:{line})"


def as_choice(item: Any) -> dict[str, Any]:
    """Returns an item of a list of entries as ``{"type": ..., **arguments}``."""
    return dict(item) if isinstance(item, Mapping) else {"type": item}


def numbered(names: Sequence[str]) -> list[str]:
    """Returns the names, with a number after each repetition: ["a", "b", "a 2"]."""
    return [
        name if (count := names[: i + 1].count(name)) == 1 else f"{name} {count}"
        for i, name in enumerate(names)
    ]


def name_of(kind: Any) -> str:
    """Returns a registered name unchanged, and a class or another callable as "package.module:Name"."""
    if isinstance(kind, str):
        return kind
    named = kind if hasattr(kind, "__qualname__") else type(kind)  # a functools.partial has no name
    return f"{module_of(named)}:{named.__qualname__}"


def env_name(env: Mapping[str, Any]) -> str:
    """Returns the environment's id in a section ``env``, or the name of a type that has none."""
    kind = env.get("type", "gymnasium")
    env_id = env.get("env_id") if kind == "gymnasium" else None  # or a spec, in a worker
    return str(getattr(env_id, "id", env_id) or name_of(kind))


def modules_to_import(entry: Any) -> set[str]:
    """Returns the modules that another process imports to find an entry.

    They are the one that defines it, which may register it by a function of another module, and the one that
    calls ``register``.
    """
    _, registering = _registered_in.get(id(entry), (entry, entry.__module__))
    return {module_of(entry), *([registering] if registering != entry.__module__ else [])}


def env_section(name: str) -> dict[str, Any]:
    """Returns the section ``env`` for a registered name, "package.module:Class", or a gymnasium id.

    The id of gymnasium may have the form "module:Name-v0".
    """
    is_type = name in ENV_REGISTRY or (":" in name and not re.search(r"-v\d+$", name))
    return {"type": name} if is_type else {"env_id": name}


def modules_of(names: Sequence[Any]) -> list[str]:
    """Returns the modules of those ``names`` that are import paths ("package.module:Name"), sorted."""
    paths = [name for name in names if isinstance(name, str) and ":" in name]
    return sorted({path.partition(":")[0] for path in paths})


POLICY_REGISTRY = Registry("policy", ("ding_lite.policies",), "ding_lite.policies:Policy")
MODEL_REGISTRY = Registry("model", ("ding_lite.models",), "ding_lite.models:ActorCritic")
INTRINSIC_REGISTRY = Registry("intrinsic reward", ("ding_lite.models",), "ding_lite.models:IntrinsicReward")
ENCODER_REGISTRY = Registry("encoder", modules=("ding_lite.models",))
# Its entries are those of ``rl.distributions.register_box_distribution``.
BOX_DISTRIBUTION_REGISTRY = Registry(
    "Box distribution", ("ding_lite.models",), "ding_lite.rl.distributions:BoxDistribution", given=2
)
ENV_REGISTRY = Registry("environment", modules=("ding_lite.envs",))
WRAPPER_REGISTRY = Registry("wrapper", modules=("ding_lite.envs",))
TRACKER_REGISTRY = Registry("tracker", ("ding_lite.run.trackers",), "ding_lite.run.trackers:Tracker")
HOOK_REGISTRY = Registry(
    "hook", ("ding_lite.run.hooks", "ding_lite.run.video"), "ding_lite.run.hooks:Hook", given=0
)


def library_name(entry: Any) -> str:
    """Returns the name under which the library registers a class of its own, or ""."""
    if not str(getattr(entry, "__module__", "")).startswith("ding_lite."):
        return ""
    registries = (
        *(POLICY_REGISTRY, MODEL_REGISTRY, INTRINSIC_REGISTRY, ENCODER_REGISTRY, BOX_DISTRIBUTION_REGISTRY),
        *(ENV_REGISTRY, WRAPPER_REGISTRY, TRACKER_REGISTRY, HOOK_REGISTRY),
    )
    return next(filter(None, (registry.name_for(entry) for registry in registries)), "")
