"""Names for classes: a config says ``type="ppo"``, or ``type="my_package.my_module:MyPolicy"``.

Example::

    @POLICY_REGISTRY.register("my_ppo")
    class MyPPO(PPOPolicy): ...

    POLICY_REGISTRY.get("my_ppo")
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from ding_lite.errors import FOREIGN, RegistryError, told
from ding_lite.schema import Schema, arguments_of, check

T = TypeVar("T", bound=Callable[..., Any])


class Registry:
    """A table from names to classes or functions.

    Args:
        noun: what is registered here, for messages.
        modules: the library's own modules that register under it, imported at the first look.
        base: the class that all of its classes must subclass, as "package.module:Name".
    """

    def __init__(self, noun: str, modules: tuple[str, ...] = (), base: str = "builtins:object") -> None:
        self.noun = noun
        self._base = base
        self._modules = modules
        self._own = tuple(f"{module}." for module in modules)
        self._entries: dict[str, Any] = {}
        self._replaced: set[str] = set()  # names that a user took over from the library
        self._section: dict[str, Any] = {}
        self._section_faults: Callable[[Mapping[str, Any]], list[str]] = lambda values: []

    def register(self, name: str, *, force: bool = False) -> Callable[[T], T]:
        """Decorates a class or a function; ``force`` replaces what had the name before.

        Raises:
            RegistryError: if the name is taken, naming both places.
        """

        def decorate(entry: T) -> T:
            taken = self._entries.get(name)
            if force:
                self._replaced.add(name)
            elif name in self._replaced and f"{entry.__module__}.".startswith(self._own):
                return entry  # the library's own module came later than the user's replacement
            if taken is not None and not force and _place(taken) != _place(entry):
                raise RegistryError(
                    f"{self.noun} {name!r} is registered twice: by {_place(taken)} and by "
                    f"{_place(entry)}. Choose another name, or pass force=True to replace it."
                )
            self._entries[name] = entry
            return entry

        return decorate

    def get(self, name: Any) -> Any:
        """Returns what is registered as ``name``, or what ``"package.module:Name"`` points at.

        A class or another callable stands for itself.

        Raises:
            RegistryError: if there is no such name, with the closest one and the list.
        """
        if not isinstance(name, str):
            if callable(name):
                return name
            raise RegistryError(
                f"{name!r} is no {self.noun}; write a registered name ({', '.join(self.names())}), "
                '"package.module:Name", or in Python the class itself'
            )
        if name not in self._entries:
            self._load_own()
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._import(name)
        close = self.closest(name)
        hint = f" Did you mean {close!r}?" if close else ""
        raise RegistryError(
            f"there is no {self.noun} named {name!r}.{hint} Registered: {', '.join(self.names())}. "
            'A class of your own is named by "package.module:Name", or registered by a module that was '
            "imported first (--import MODULE)."
        )

    def closest(self, name: Any) -> str | None:
        """Returns the registered name that ``name`` is likely to stand for, if there is one."""
        text = "" if ":" in str(name) else str(name)
        return next(iter(difflib.get_close_matches(text, self.names(), n=1)), None)

    def choice_faults(self, choice: Mapping[str, Any], path: str) -> list[str]:
        """Returns what is wrong with ``{"type": name, **arguments}`` at ``path``, a line each.

        Without a type, what any of the registered names takes will do. What is yet to be imported
        (``"package.module:Name"``) is not looked at.
        """
        arguments = {name: value for name, value in choice.items() if name != "type"}
        taken: Schema = {}
        for kind in [choice["type"]] if "type" in choice else self.names():
            if isinstance(kind, str) and ":" in kind:
                return []
            try:
                schema = arguments_of(self.get(kind))
            except RegistryError as error:
                return [f"{path}: {error}"]
            if schema is None:
                return []
            taken |= schema
        return check(arguments, taken, path)[1]

    def names(self) -> list[str]:
        """Returns every registered name, sorted."""
        self._load_own()
        return sorted(self._entries)

    def declare_section(
        self, config: dict[str, Any], faults: Callable[[Mapping[str, Any]], list[str]]
    ) -> None:
        """Sets the keys of the config section that all names of this registry share.

        Args:
            config: a nested dict of defaults.
            faults: returns what is wrong between the keys of a complete section, a line each.
        """
        self._section, self._section_faults = config, faults

    @property
    def section(self) -> dict[str, Any]:
        """The keys that were declared, as a nested dict of defaults."""
        self._load_own()
        return self._section

    def section_faults(self, values: Mapping[str, Any]) -> list[str]:
        """Returns what is wrong between the keys of a complete section, a line each."""
        self._load_own()
        return self._section_faults(values)

    @property
    def base(self) -> type:
        """The class that all classes registered here subclass."""
        found: type = self._import(self._base)
        return found

    def __contains__(self, name: str) -> bool:
        self._load_own()
        return name in self._entries

    def _load_own(self) -> None:
        for module in self._modules:
            importlib.import_module(module)

    def _import(self, path: str) -> Any:
        module_name, _, attribute = path.partition(":")
        try:
            target: Any = importlib.import_module(module_name)
            for part in attribute.split("."):
                target = getattr(target, part)
        except (ImportError, AttributeError) as error:
            raise RegistryError(
                f"{self.noun} {path!r} cannot be imported: {error}. Is its folder on the Python path?"
            ) from error
        except FOREIGN as error:  # of the module's own code
            raise RegistryError(f"{self.noun} {path!r} cannot be imported: {told(error)}") from error
        return target


def _place(entry: Any) -> str:
    try:
        file = inspect.getsourcefile(entry) or "?"
        line = inspect.getsourcelines(entry)[1]
    except (OSError, TypeError):
        return f"{entry.__module__}.{entry.__qualname__}"
    return f"{entry.__module__}.{entry.__qualname__} ({file}:{line})"


def modules_of(names: Sequence[Any]) -> list[str]:
    """Returns the modules of those ``names`` that are "package.module:Name", sorted."""
    texts = [text for text in names if isinstance(text, str) and ":" in text]
    return sorted({text.partition(":")[0] for text in texts})


POLICY_REGISTRY = Registry("policy", ("ding_lite.policies",), "ding_lite.policies:Policy")
MODEL_REGISTRY = Registry("model", ("ding_lite.models",), "ding_lite.models:ActorCritic")
ENCODER_REGISTRY = Registry("encoder", modules=("ding_lite.models",))
ENV_REGISTRY = Registry("environment", modules=("ding_lite.envs",))
WRAPPER_REGISTRY = Registry("wrapper", modules=("ding_lite.envs",))
