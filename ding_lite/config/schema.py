"""The schema of a config: the default, type and range of each key, and the check against them.

A class declares its keys in a nested dict named ``config``. A leaf of it is either a plain default, whose
type the value must have, or a :class:`Key` with more rules. The dicts are merged along the bases of the
class, so a subclass declares only the keys that it adds and the defaults that it replaces.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ding_lite.config.other_names import ADVICE, NOTES, SYNONYMS

MAX_NAMES = 8  # names of keys in one message


@dataclass(frozen=True)
class Key:
    """One key of a config: its default, and the rules for its values.

    Attributes:
        default: the value of a config that does not have the key.
        kind: the accepted types; empty: the type of the default, or any type if the default is None.
        item: the type of each item of a list; None: any.
        low, high: inclusive bounds of a number, or of each item of a list.
        above, below: exclusive bounds.
        choices: accepted values; with ``kind``, in addition to the values of these types.
        optional: whether None is accepted too; it always is if it is the default.
        fixed_because: why only the default is accepted. For keys of DI-engine that exist here for
            compatibility only; they are not part of the complete config.
        faults: returns further faults of ``(value, path)``, one message each. needs: what gives the key an
        effect, by the paths of other keys of its section: "a.b" (set), "not a.b",
            "a.b=value", or several of these with " or " between them.
    """

    default: Any
    kind: tuple[type, ...] = ()
    item: type | None = None
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    optional: bool = False
    fixed_because: str = ""
    faults: Callable[[Any, str], list[str]] | None = None
    needs: str = ""

    @property
    def kinds(self) -> tuple[type, ...]:
        """Returns the accepted types; empty if any type is accepted."""
        return self.kind or (() if self.default is None else (type(self.default),))


Schema = dict[str, Any]  # nested; every leaf is a Key


def merged_config(cls: type) -> Schema:
    """Returns the schema of ``cls``: the ``config`` of each base class, overlaid with its subclass's."""
    merged: Schema = {}
    for base in reversed(cls.__mro__):
        merged = _overlay(merged, vars(base).get("config", {}))
    return merged


def as_schema(config: Mapping[str, Any]) -> Schema:
    """Returns a nested dict of defaults as a schema; ``{}`` becomes a key that takes a dict with any keys."""
    return _overlay({}, config)


def arguments_of(factory: Callable[..., Any], given: int = 1) -> Schema | None:
    """Returns the schema of the keyword arguments of ``factory``, or None if it accepts any.

    The first parameters, ``given`` of them, are left out, because the library passes them (a space or an
    environment). Arguments without an entry in the ``config`` of the class accept any value.
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())[given:]
    except ValueError:  # a built-in callable without a signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    schema: Schema = {parameter.name: Key(None) for parameter in parameters if parameter.kind in by_name}
    if isinstance(factory, type) and isinstance(getattr(factory, "config", None), Mapping):
        schema |= {name: rule for name, rule in merged_config(factory).items() if name in schema}
    return schema


def argument_faults(
    factory: Callable[..., Any], arguments: Mapping[str, Any], own: Collection[str] = ()
) -> list[str]:
    """Returns why ``factory`` does not accept the keyword arguments, one message each.

    Args:
        factory: a class or function, whose first argument the library passes.
        arguments: from a config.
        own: names of ``arguments`` that the library has set; the message does not offer them.
    """
    schema = arguments_of(factory)
    faults = [] if schema is None else check(arguments, schema)[1]
    known = {name: value for name, value in arguments.items() if schema is None or name in schema}
    try:
        signature = inspect.signature(factory)
    except ValueError:  # a built-in callable without a signature
        return faults
    try:
        signature.bind(None, **known)
    except TypeError as error:
        faults = [str(error), *faults]
    takes = [name for name in list(signature.parameters)[1:] if name not in own]
    return [*faults, f"it takes {', '.join(takes) or 'no arguments'}"] if faults else []


def _overlay(base: Schema, config: Mapping[str, Any]) -> Schema:
    """Returns the schema ``base`` with the keys and defaults of ``config`` added or replaced."""
    merged = dict(base)
    for name, value in config.items():
        inherited = merged.get(name)
        if isinstance(value, Key):
            merged[name] = value
        elif isinstance(inherited, Key) and not (isinstance(value, Mapping) and dict not in inherited.kinds):
            merged[name] = _with_default(inherited, value)
        elif isinstance(value, Mapping) and value:
            merged[name] = _overlay(inherited if isinstance(inherited, dict) else {}, value)
        elif not (isinstance(inherited, dict) and isinstance(value, Mapping)):
            merged[name] = Key(value)
    return merged


def _with_default(key: Key, value: Any) -> Key:
    """Returns ``key`` with another default; if its type is not accepted yet, it is added to the types."""
    kinds = key.kinds
    if float in kinds and type(value) is int:
        value = float(value)
    if key.choices or value is None or type(value) in kinds:
        return dataclasses.replace(key, default=value, kind=key.kind if key.choices else kinds)
    return dataclasses.replace(key, default=value, kind=(*kinds, type(value)))


def default_values(schema: Schema) -> dict[str, Any]:
    """Returns all defaults as a nested dict, without the keys that have ``fixed_because``."""
    return {
        name: default_values(key) if isinstance(key, dict) else copy.deepcopy(key.default)
        for name, key in schema.items()
        if isinstance(key, dict) or not key.fixed_because
    }


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``("a.b.c", leaf)`` for every leaf of a nested dict; an empty dict is a leaf."""
    for name, value in tree.items():
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, where)
        else:
            yield where, value


def without_effect(values: Mapping[str, Any], cls: type, path: str) -> list[tuple[str, str]]:
    """Returns the keys that were changed although they have no effect, each as a line and what it needs.

    Args:
        values: the complete section that ``cls`` has declared.
        cls: with the ``config``.
        path: of the section.
    """
    found = dict(leaves(values))

    def holds(need: str) -> bool:
        name, _, expected = need.removeprefix("not ").partition("=")
        value = found.get(name)
        return (str(value) == expected if expected else bool(value)) != need.startswith("not ")

    notes = []
    for name, key in leaves(merged_config(cls)):
        if (
            not key.needs
            or found.get(name, key.default) == key.default
            or any(map(holds, key.needs.split(" or ")))
        ):
            continue
        without, word = key.needs.removeprefix("not "), "with" if key.needs.startswith("not ") else "without"
        effect = f"no effect {word} {path}.{without.replace(' or ', f' or {path}.')}"
        notes.append((f"{path}.{name}={found[name]}: {effect}", key.needs))
    return notes


def check(
    user: Mapping[str, Any],
    schema: Schema,
    path: str = "",
    root: Schema | None = None,
    elsewhere: Callable[[str], str] = lambda path: "",
) -> tuple[dict[str, Any], list[str]]:
    """Checks the part of a config that the user wrote.

    Args:
        user: nested dict.
        schema: of ``user``.
        path: of ``user`` in the whole config, for the messages.
        root: the schema in which unknown keys are looked up; None: ``schema``.
        elsewhere: says what has the key of a path that this schema lacks; "" if nothing has it.

    Returns:
        ``(values, faults)``: ``user`` converted to the declared types, and one message for each fault.
    """
    root = schema if root is None else root
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in user.items():
        value = without_numpy(value)
        where = f"{path}.{name}" if path else str(name)
        rule = schema.get(name)
        if rule is None:
            meant = elsewhere(where) or _meant(str(name), value, path, schema, root)
            faults.append(f"{f'{path}: ' if path else ''}unknown key {str(name)!r}; {meant}")
        elif isinstance(rule, dict):
            if isinstance(value, Mapping):
                values[name], section_faults = check(value, rule, where, root, elsewhere)
                faults += section_faults
            else:
                faults.append(
                    f"{where}: expected a dict, got {_show(value)}; {_keys_that_take(value, where, rule)}"
                )
        else:
            values[name], fault = _check_value(value, rule)
            if fault:
                faults.append(f"{where}: {fault}")
            elif rule.fixed_because:
                del values[name]
            elif rule.faults is not None:
                faults += rule.faults(values[name], where)
    return values, faults


def without_numpy(value: Any) -> Any:
    """Returns a value with the scalars and 0-d arrays of NumPy and torch in it as Python numbers."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(without_numpy, value)) if type(value) in (list, tuple) else value
    # By their attributes, since this module imports neither: the command line starts without them.
    is_scalar = not isinstance(value, type) and getattr(value, "ndim", None) == 0 and hasattr(value, "item")
    return value.item() if is_scalar else value


def _meant(name: str, value: Any, path: str, schema: Schema, root: Schema) -> str:
    """Returns what was probably meant by an unknown key, for its message."""
    same_name = paths_named(name, root)
    if same_name:
        key = SYNONYMS.get(name, name).rpartition(".")[2]
        return f"{key!r} exists at {' and '.join(same_name[:3])}{NOTES.get(name, '')}"
    if name in ADVICE:
        return ADVICE[name]
    sections = [(where, keys) for where, keys in _sections(root) if where.rpartition(".")[2] == name]
    if sections:
        return _keys_that_take(value, *sections[0])
    close_here = difflib.get_close_matches(name, [str(key) for key in schema], n=1, cutoff=0.75)
    if close_here:
        return f"did you mean {close_here[0]!r}?"
    path_of = {leaf.split(".")[-1]: leaf for leaf, _ in leaves(root)}
    words = {word: paths[0] for word in SYNONYMS if (paths := paths_named(word, root))}
    close_elsewhere = difflib.get_close_matches(name, {**words, **path_of}, n=1, cutoff=0.7)
    if close_elsewhere:
        (close,) = close_elsewhere
        return (
            f"did you mean {path_of[close]!r}?"
            if close in path_of
            else (f"did you mean {close!r}? It is {words[close]} here{NOTES.get(close, '')}")
        )
    return f"known here: {_listed(sorted(map(str, schema)), path)}"


def paths_named(name: str, schema: Schema) -> list[str]:
    """Returns the paths of the keys that have a name, or that a word of another library means."""
    all_paths = [leaf for leaf, _ in leaves(schema)]
    translated = SYNONYMS.get(name, name)
    same_name = [leaf for leaf in all_paths if f".{leaf}".endswith(f".{translated}")]
    if not same_name and name in SYNONYMS:  # PPG has the key once for each network
        same_name = [leaf for leaf in all_paths if leaf.endswith(f"_{translated}")]
    return same_name


def _listed(names: Sequence[str], path: str) -> str:
    """Returns the names of the keys at ``path`` as a list; of many, the first and where the others are."""
    if not names:
        return "no keys"
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    shown = ", ".join(names[:MAX_NAMES])
    command = f"ding-lite config -c FILE --explain {path}" if path else "ding-lite config -c FILE"
    return f"{shown}, and {len(names) - MAX_NAMES} more (`{command}` has all)"


def _sections(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the path and the keys of every section below ``schema``."""
    for name, rule in schema.items():
        if isinstance(rule, dict):
            where = f"{path}.{name}" if path else name
            yield where, rule
            yield from _sections(rule, where)


def _keys_that_take(value: Any, path: str, section: Schema) -> str:
    """Returns what to write for a value that was given for a whole section."""
    rules = {name: rule for name, rule in section.items() if isinstance(rule, Key) and not rule.fixed_because}
    fitting = [name for name, rule in rules.items() if not _check_value(value, rule)[1]]
    if isinstance(value, str) and "type" in fitting:
        fitting = ["env_id"] if "env_id" in fitting and ":" not in value else ["type"]
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)  # it fits many keys
    if not fitting or is_number or isinstance(value, Mapping):
        return f"{path} is a section, with the keys {_listed(list(map(str, section)), path)}"
    return f"write {' or '.join(f'{path}.{name}={value!r}' for name in fitting[:3])}"


def _check_value(value: Any, key: Key) -> tuple[Any, str]:
    """Returns ``(value converted to a declared type, fault)``; the fault is "" if there is none."""
    if key.fixed_because:
        return value, "" if value == key.default else (
            f"only {_show(key.default)} is accepted, got {_show(value)}: {key.fixed_because}"
        )
    if value is None and (key.optional or key.default is None):
        return None, ""
    if any(value is choice or (type(value) is type(choice) and value == choice) for choice in key.choices):
        return value, ""
    if key.choices and not key.kind:
        wanted = ", ".join(map(str, key.choices))
        return value, f"expected one of {wanted}, got {value!r:.60}{_hint(value, key)}"
    if not key.kinds:
        return value, ""
    converted, fault = _convert(value, key)
    if fault:
        return value, fault
    if isinstance(converted, (Mapping, type)) or callable(converted):
        return converted, ""
    in_list = isinstance(converted, list)
    for item in converted if in_list else [converted]:
        fault = _range_fault(item, key, in_list)
        if fault:
            return value, fault
    return converted, ""


def _convert(value: Any, key: Key) -> tuple[Any, str]:
    """Returns ``(converted value, fault)``.

    Converts only without loss: 64.0 to 64, 1 to 1.0, a tuple to a list.
    """
    kinds = key.kinds
    if list in kinds and isinstance(value, (list, tuple)) and key.item is not None:
        found = [_convert(item, Key(None, (key.item,))) for item in value]
        fault = next((f"in the list: {fault}" for _, fault in found if fault), "")
        return [item for item, _ in found], fault
    if type(value) in kinds:
        return (copy.deepcopy(value) if isinstance(value, (list, dict)) else value), ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if float in kinds and _same_as_float(value):
            return float(value), ""
        if int in kinds and float(value).is_integer():
            return int(value), ""
    if list in kinds and isinstance(value, tuple):
        return list(value), ""
    if dict in kinds and isinstance(value, Mapping):
        return copy.deepcopy(dict(value)), ""
    if object in kinds:
        return value, ""
    names = {int: "a whole number", float: "a number"}
    wanted = " or ".join(
        [*(names.get(kind, f"a {kind.__name__}") for kind in kinds), *map(repr, key.choices)]
    )
    return value, f"expected {wanted}, got {_show(value)}{_hint(value, key)}"


def _hint(value: Any, key: Key) -> str:
    """Returns what to write in place of a value that a key does not accept, or ""."""
    if list in key.kinds and key.item in (int, float) and isinstance(value, (int, float)):
        return f"; write [{value!r}]"
    if isinstance(value, type):  # such as torch.nn.ReLU
        value = value.__name__
    if not isinstance(value, str):
        return ""
    if not {int, float}.isdisjoint(key.kinds) and _is_number(value):
        return " (a number is written without quotes)"
    if list in key.kinds and key.item is str:
        return f"; write [{value!r}]"
    texts = [choice for choice in key.choices if isinstance(choice, str)]
    # Choices are in small letters: "ReLU" means "relu".
    close = difflib.get_close_matches(value.lower(), texts, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _same_as_float(value: float) -> bool:
    """Returns whether ``value`` is NaN or exactly representable as a float."""
    try:
        return math.isnan(value) or float(value) == value
    except OverflowError:
        return False


def _range_fault(item: Any, key: Key, in_list: bool) -> str:
    """Returns why ``item`` is outside of the range of ``key``, or "".

    Items of a list with bounds must be numbers.
    """
    bounds = [
        (key.low, lambda x, b: x >= b, "at least"),
        (key.high, lambda x, b: x <= b, "at most"),
        (key.above, lambda x, b: x > b, "above"),
        (key.below, lambda x, b: x < b, "below"),
    ]
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        bounded = any(bound is not None for bound, _, _ in bounds)
        return f"expected a list of numbers, got {_show(item)} in it" if in_list and bounded else ""
    try:
        if not math.isfinite(item):
            return f"expected a finite number, got {item}"
    except OverflowError:
        return "expected a number from -1.7e+308 to 1.7e+308, got an integer beyond them"
    if any(bound is not None and not holds(item, bound) for bound, holds, _ in bounds):
        wanted = " and ".join(f"{word} {bound:g}" for bound, _, word in bounds if bound is not None)
        return f"expected a number {wanted}, got {item!r}"
    return ""


def _show(value: Any) -> str:
    """Returns ``value`` as text of at most 60 characters."""
    text = f"the string {value!r}" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
