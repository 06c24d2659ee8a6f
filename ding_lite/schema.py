"""What a config may say: each key with its default, its type and its range, checked in one pass.

A class declares its keys in a nested dict named ``config``. A leaf is a plain default, whose type
is then the rule, or a :class:`Key` that says more. Subclasses add keys or replace defaults; the
dicts are merged along the bases, so a subclass writes only what is new.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

# What a key is called elsewhere (Stable-Baselines3, CleanRL, TorchRL), and what it is called here.
SYNONYMS = {
    "gamma": "discount_factor",
    "lambda": "gae_lambda",
    "gae_lambda_": "gae_lambda",
    "lr": "learning_rate",
    "ent_coef": "entropy_weight",
    "vf_coef": "value_weight",
    "clip_range": "clip_ratio",
    "clip_coef": "clip_ratio",
    "n_epochs": "epoch_per_collect",
    "update_epochs": "epoch_per_collect",
    "minibatch_size": "batch_size",
    "n_steps": "n_sample",
    "num_steps": "n_sample",
    "num_envs": "collector_env_num",
    "n_envs": "collector_env_num",
    "total_timesteps": "max_env_step",
    "max_grad_norm": "grad_clip_value",
    "normalize_advantage": "adv_norm",
    "norm_adv": "adv_norm",
    "env": "env_id",
    # The names of the PPG paper and of its codes.
    "n_pi": "aux_freq",
    "n_iteration": "aux_freq",
    "e_pi": "actor_epoch_per_collect",
    "e_policy": "actor_epoch_per_collect",
    "e_v": "critic_epoch_per_collect",
    "v_value": "critic_epoch_per_collect",
    "e_aux": "aux_train_epoch",
    "e_auxiliary": "aux_train_epoch",
    "epochs_aux": "aux_train_epoch",
    "n_aux_epochs": "aux_train_epoch",
    "beta_clone": "aux_bc_weight",
    "beta_weight": "aux_bc_weight",
    "aux_lr": "aux_learning_rate",
}


NOTES = {name: ": steps x environments" for name in ("n_steps", "num_steps")}


@dataclass(frozen=True)
class Key:
    """One key of a config: its default and what else may stand there.

    The type is that of the default unless ``kind`` says otherwise. ``low`` and ``high`` are
    inclusive bounds, ``above`` and ``below`` exclusive ones; for a list they bound its items.
    """

    default: Any
    kind: tuple[type, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    choices: tuple[Any, ...] = ()
    optional: bool = False
    # Why only the default will do: DI-engine's keys that we know, and do not follow.
    fixed_because: str = ""
    # Returns what else is wrong with a value at a path, a line each.
    faults: Callable[[Any, str], list[str]] | None = None

    @property
    def kinds(self) -> tuple[type, ...]:
        return self.kind or (() if self.default is None else (type(self.default),))

    @property
    def is_open(self) -> bool:
        """An open dict holds keyword arguments of somebody else's constructor: any key goes."""
        return self.kinds == (dict,)


Schema = dict[str, Any]  # nested; every leaf is a Key


def merged_config(cls: type) -> Schema:
    """Returns the schema of ``cls``: every ``config`` along its bases, the most derived last."""
    merged: Schema = {}
    for base in reversed(cls.__mro__):
        merged = _overlay(merged, vars(base).get("config", {}))
    return merged


def as_schema(config: Mapping[str, Any]) -> Schema:
    """Turns plain defaults into keys; ``{}`` becomes an open dict."""
    return _overlay({}, config)


def arguments_of(factory: Callable[..., Any]) -> Schema | None:
    """Returns the schema of what a config may give ``factory`` by name; None where it takes anything.

    The first argument is not the config's. Those that a class declares in its ``config`` are checked by that.
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())[1:]
    except ValueError:  # built-in callables have none
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    schema: Schema = {one.name: Key(None) for one in parameters if one.kind in by_name}
    if isinstance(factory, type) and isinstance(getattr(factory, "config", None), Mapping):
        schema |= {name: rule for name, rule in merged_config(factory).items() if name in schema}
    return schema


def _overlay(below: Schema, above: Mapping[str, Any]) -> Schema:
    merged = dict(below)
    for name, value in above.items():
        known = merged.get(name)
        if isinstance(value, Key):
            merged[name] = value
        elif isinstance(known, Key) and not (isinstance(value, Mapping) and dict not in known.kinds):
            merged[name] = _with_default(known, value)
        elif isinstance(value, Mapping) and value:
            merged[name] = _overlay(known if isinstance(known, dict) else {}, value)
        elif not (isinstance(known, dict) and isinstance(value, Mapping)):
            merged[name] = Key(value)
    return merged


def _with_default(key: Key, value: Any) -> Key:
    """Returns ``key`` with another default; the type stays, unless the default is of a new one."""
    kinds = key.kinds
    if float in kinds and type(value) is int:
        value = float(value)
    if key.choices or value is None or type(value) in kinds:
        return dataclasses.replace(key, default=value, kind=key.kind if key.choices else kinds)
    return dataclasses.replace(key, default=value, kind=(*kinds, type(value)))


def default_values(schema: Schema) -> dict[str, Any]:
    """Returns the plain nested dict of all defaults; a fixed key is left out of it."""
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


def check(user: Mapping[str, Any], schema: Schema, path: str = "") -> tuple[dict[str, Any], list[str]]:
    """Returns ``(values, faults)``: what ``user`` says in the types asked for, and every fault."""
    return _check(user, schema, schema, path)


def _check(
    user: Mapping[str, Any], schema: Schema, root: Schema, path: str
) -> tuple[dict[str, Any], list[str]]:
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in user.items():
        where = f"{path}.{name}" if path else str(name)
        rule = schema.get(name)
        if rule is None:
            faults.append(_unknown(str(name), path, schema, root))
        elif isinstance(rule, dict):
            if isinstance(value, Mapping):
                values[name], below = _check(value, rule, root, where)
                faults += below
            else:
                faults.append(f"{where}: expected a dict, got {_show(value)}")
        else:
            values[name], fault = _check_value(value, rule)
            if fault:
                faults.append(f"{where}: {fault}")
            elif rule.fixed_because:
                del values[name]
            elif rule.faults is not None:
                faults += rule.faults(values[name], where)
    return values, faults


def _unknown(name: str, path: str, schema: Schema, root: Schema) -> str:
    where = f"{path}: " if path else ""
    everywhere = [leaf for leaf, _ in leaves(root)]
    meant = SYNONYMS.get(name, name)
    same_name = [leaf for leaf in everywhere if leaf.split(".")[-1] == meant]
    here = difflib.get_close_matches(name, [str(k) for k in schema], n=1, cutoff=0.75)
    if same_name:
        hint = f"{meant!r} exists at {' and '.join(same_name[:3])}{NOTES.get(name, '')}"
    elif here:
        hint = f"did you mean {here[0]!r}?"
    else:
        last_names = {leaf.split(".")[-1]: leaf for leaf in everywhere}
        close = difflib.get_close_matches(name, last_names, n=1, cutoff=0.7)
        hint = (
            f"did you mean {last_names[close[0]]!r}?"
            if close
            else f"known here: {', '.join(sorted(map(str, schema)))}"
        )
    return f"{where}unknown key {name!r}; {hint}"


def _check_value(value: Any, key: Key) -> tuple[Any, str]:
    """Returns ``(value in the type asked for, what is wrong with it)``."""
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
        return value, f"expected one of {wanted}, got {value!r:.60}{_meant(value, key)}"
    if not key.kinds:
        return value, ""
    converted, fault = _convert(value, key)
    if fault:
        return value, fault
    if isinstance(converted, (Mapping, type)) or callable(converted):
        return converted, ""
    items = converted if isinstance(converted, list) else [converted]
    for item in items:
        fault = _out_of_range(item, key, number=isinstance(converted, list))
        if fault:
            return value, fault
    return converted, ""


def _convert(value: Any, key: Key) -> tuple[Any, str]:
    """Converts only where nothing is lost: 64.0 to 64, 1 to 1.0, a tuple to a list."""
    kinds = key.kinds
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
    names = [{"int": "a whole number", "float": "a number"}.get(k.__name__, f"a {k.__name__}") for k in kinds]
    wanted = " or ".join([*names, *map(repr, key.choices)])
    hint = _meant(value, key)
    if isinstance(value, str) and (int in kinds or float in kinds) and _is_number(value):
        hint = " (a number is written without quotes)"
    return value, f"expected {wanted}, got {_show(value)}{hint}"


def _meant(value: Any, key: Key) -> str:
    texts = [choice for choice in key.choices if isinstance(choice, str)]
    close = difflib.get_close_matches(value, texts, n=1) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _same_as_float(value: float) -> bool:
    try:
        return math.isnan(value) or float(value) == value
    except OverflowError:
        return False


def _out_of_range(item: Any, key: Key, number: bool) -> str:
    """Returns what is wrong with ``item``; where it must be a ``number`` anything else is, too."""
    bounds = [
        (key.low, lambda x, b: x >= b, "at least"),
        (key.high, lambda x, b: x <= b, "at most"),
        (key.above, lambda x, b: x > b, "above"),
        (key.below, lambda x, b: x < b, "below"),
    ]
    if isinstance(item, bool) or not isinstance(item, (int, float)):
        bounded = any(bound is not None for bound, _, _ in bounds)
        return f"expected a list of numbers, got {_show(item)} in it" if number and bounded else ""
    if not math.isfinite(item):
        return f"{item} is not a value to train with"
    if any(bound is not None and not holds(item, bound) for bound, holds, _ in bounds):
        wanted = " and ".join(f"{word} {bound:g}" for bound, _, word in bounds if bound is not None)
        return f"expected a number {wanted}, got {item!r}"
    return ""


def _show(value: Any) -> str:
    text = f"the string {value!r}" if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
