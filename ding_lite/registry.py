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
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ding_lite.errors import FOREIGN, RegistryError, told

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

    def get(self, name: str) -> Any:
        """Returns what is registered as ``name``, or what ``"package.module:Name"`` points at.

        Raises:
            RegistryError: if there is no such name, with the closest one and the list.
        """
        if name not in self._entries:
            self._load_own()
        if name in self._entries:
            return self._entries[name]
        if ":" in name:
            return self._import(name)
        close = difflib.get_close_matches(name, self._entries, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise RegistryError(
            f"there is no {self.noun} named {name!r}.{hint} Registered: {', '.join(self.names())}. "
            'A class of your own is named by "package.module:Name", or registered by a module that was '
            "imported first (--import MODULE)."
        )

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


POLICY_REGISTRY = Registry("policy", ("ding_lite.policies",), "ding_lite.policies:Policy")
MODEL_REGISTRY = Registry("model", ("ding_lite.models",), "ding_lite.models:ActorCritic")
ENCODER_REGISTRY = Registry("encoder", modules=("ding_lite.models",))
ENV_REGISTRY = Registry("environment", modules=("ding_lite.envs",))
WRAPPER_REGISTRY = Registry("wrapper", modules=("ding_lite.envs",))
