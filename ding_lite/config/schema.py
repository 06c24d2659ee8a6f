"""The schema of a config: default, type, range and meaning of each key, and the check against them.

A class declares its keys in a nested dict named ``config``. A leaf of it is either a plain default, whose
type the value must have, or a :class:`Key` with more rules. The dicts are merged along the bases of the
class, so a subclass declares only the keys that it adds and the defaults that it replaces.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import difflib
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from ding_lite.errors import ConfigError, counted

DROPPED: Any = object()  # as a value of a subclass's ``config``: the key of its base does not exist here
Name = str | Callable  # a registered name, "package.module:Name", or in Python the class or function itself

# Keys, or the ends of their paths, and their names in Stable-Baselines3, CleanRL and rsl_rl.
WORDS = {
    "discount_factor": "gamma",
    "gae_lambda": "lam",
    "n_step": "n_steps num_steps num_steps_per_env",
    "max_env_step": "total_timesteps n_timesteps",
    "learning_rate": "lr",
    "batch_size": "minibatch_size",
    "epoch_per_collect": "n_epochs update_epochs num_learning_epochs",
    "entropy_weight": "ent_coef entropy_coef",
    "value_weight": "vf_coef value_loss_coef",
    "clip_ratio": "clip_range clip_coef clip_param",
    "value_clip": "clip_range_vf clip_vloss clip_value",
    "grad_clip_value": "max_grad_norm",
    "adv_norm": "normalize_advantage norm_adv",
    "lr_schedule": "anneal_lr",
    "collector_env_num": "num_envs n_envs",
    "encoder_hidden_size_list": "net_arch hidden_dims actor_hidden_dims critic_hidden_dims",
    "initial_sigma_value": "log_std_init init_std init_noise_std",
    "model.encoder": "features_extractor_class",
    "share_encoder": "share_features_extractor",
    "normalize.obs": "norm_obs obs_normalization empirical_normalization",
    "normalize.reward": "norm_reward",
    "obs_clip": "clip_obs",
    "keep_freq": "save_freq",
    "hooks": "callback callbacks",
}
OTHER_NUMBERS = {
    "vf_coef": ", twice Stable-Baselines3's number",
    "value_loss_coef": ", twice rsl_rl's number",
    "log_std_init": ", not its logarithm",
}
SYNONYMS = {word: key for key, words in WORDS.items() for word in words.split()}
SCHEDULES = {"learning_rate": "lr_schedule", "clip_ratio": "clip_schedule"}  # for "lin_..." of rl-zoo


@dataclass(frozen=True)
class Key:
    """One key of a config, with its default, type, range and meaning.

    Attributes:
        default: the value of a config that does not have the key.
        type: an annotation, such as ``int | None``, ``Literal["a", "b"]`` or ``list[int]``; None: the type of
            the default, or any type if the default is None.
        low, high: inclusive bounds of a number, or of each item of a list.
        above, below: exclusive bounds.
        needs: the condition under which the key has an effect, by paths of other keys in its section, such as
            ``policy``: "a.b" (it is set), "a.b=value", several joined by " or ", or "not a.b".
        strict: whether a value without effect is an error; else it is a note.
        faults: returns further faults of ``(value, path)``, one message each.
        doc: what the key does.
    """

    default: Any
    type: Any = None
    _: dataclasses.KW_ONLY
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    needs: str = ""
    strict: bool = False
    faults: Callable[[Any, str], list[str]] | None = None
    doc: str = ""

    def __post_init__(self) -> None:
        if self.type is None:
            object.__setattr__(self, "type", Any if self.default is None else type(self.default))

    @property
    def range(self) -> str:
        """The bounds in words, such as "at least 1"; "" without bounds."""
        return " and ".join(f"{word} {bound:,}" for word, bound, _ in self.bounds())

    def bounds(self) -> list[tuple[str, float, Callable[[float, float], bool]]]:
        """Returns each bound with its words, and the function that says whether a number is within it."""
        lower = ("at least", self.low, operator.ge), ("above", self.above, operator.gt)
        upper = ("at most", self.high, operator.le), ("below", self.below, operator.lt)
        return [(word, bound, inside) for word, bound, inside in lower + upper if bound is not None]

    def fitted(self, value: Any) -> Any:
        """Returns a value converted to the type of the key.

        Raises:
            TypeError: if it is of another type, or if a number in it is out of range or not finite.
        """
        value = fitted(value, self.type)
        for number in value if isinstance(value, list) else [value]:
            if type(number) in (int, float) and not (
                math.isfinite(number) and all(inside(number, bound) for _, bound, inside in self.bounds())
            ):
                raise TypeError(f"expected {f'a finite number {self.range}'.rstrip()}, got {number!r}")
        return value


Schema = dict[str, Any]  # nested; every leaf is a Key


class Choice(dict):
    """As an annotation: ``{"type": name, **arguments}``, or the name alone."""


def merged_config(cls: type) -> Schema:
    """Returns the schema of ``cls``: the ``config`` of each base class, overlaid with its subclass's."""
    schema: Schema = {}
    for base in reversed(cls.__mro__):
        schema = as_schema(vars(base).get("config", {}), schema)
    return schema


def as_schema(config: Mapping[str, Any], base: Mapping[str, Any] | None = None) -> Schema:
    """Returns a nested dict of defaults as a schema; ``{}`` becomes a key that accepts any dict.

    Args:
        config: defaults and :class:`Key` objects.
        base: a schema that ``config`` extends, and whose defaults it replaces.
    """
    schema = dict(base or {})
    for name, value in config.items():
        inherited = schema.get(name)
        if value is DROPPED:
            schema.pop(name, None)
        elif isinstance(value, Key):
            schema[name] = value
        elif isinstance(inherited, Key):
            try:
                schema[name] = dataclasses.replace(inherited, default=fitted(value, inherited.type))
            except TypeError:  # a default of another type: both types are accepted
                schema[name] = dataclasses.replace(
                    inherited, default=value, type=inherited.type | type(value)
                )
        elif isinstance(value, Mapping) and (value or inherited):
            schema[name] = as_schema(value, inherited)
        else:
            schema[name] = Key(value)
    return schema


def default_values(schema: Schema) -> dict[str, Any]:
    """Returns all defaults as a nested dict."""
    return {
        name: default_values(key) if isinstance(key, dict) else copy.deepcopy(key.default)
        for name, key in schema.items()
    }


def leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields ``("a.b.c", leaf)`` for every leaf of a nested dict; an empty dict is a leaf."""
    for name, value in dict(tree).items():  # a key of an EasyDict may hide its methods
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            yield from leaves(value, where)
        else:
            yield where, value


def selected(tree: Mapping[str, Any], is_kept: Callable[[str, Any], bool], path: str = "") -> dict[str, Any]:
    """Returns a nested dict with only the leaves for which ``is_kept("a.b.c", leaf)`` is true."""
    kept: dict[str, Any] = {}
    for name, value in dict(tree).items():
        where = f"{path}.{name}" if path else str(name)
        if isinstance(value, Mapping) and value:
            if inner := selected(value, is_kept, where):
                kept[name] = inner
        elif is_kept(where, value):
            kept[name] = value
    return kept


def set_value(tree: Any, path: str, value: Any) -> None:
    """Sets one value of a nested dict, in place, and creates the sections above it.

    Raises:
        ConfigError: if a section in the path is a plain value.
    """
    *parents, last = path.split(".")
    for name in parents:
        if tree.get(name) is None or isinstance(tree[name], str):  # missing, or written as its type alone
            tree[name] = {} if tree.get(name) is None else {"type": tree[name]}
        tree = tree[name]
        if not isinstance(tree, dict):
            raise ConfigError(f"override {path}={value!r}: {name} is a value, not a section")
    tree[last] = value


def refuse(origin: str, faults: Sequence[str]) -> None:
    """Raises a ConfigError that lists the faults, if there are any."""
    if faults:
        raise ConfigError("\n  ".join([f"{origin} has {counted(len(faults), 'fault')}:", *faults]))


def without_effect(
    values: Mapping[str, Any], schema: Schema, typed: Iterable[str] = ()
) -> tuple[list[str], list[str]]:
    """Returns ``(faults, notes)`` about the keys that were changed although they have no effect.

    Args:
        values: a complete config.
        schema: of the config.
        typed: keys that are noted with their default, too, unless it is false or None.
    """
    by_path = dict(leaves(values))
    faults: list[str] = []
    notes: list[str] = []

    def is_set(need: str) -> bool:
        path, _, expected = need.partition("=")
        value = by_path.get(path, expected or True)  # a class of the user may have other keys
        return str(value) == expected if expected else bool(value)

    for path, key in leaves(schema):
        is_named = path in typed and key.default and not key.strict
        if not key.needs or (by_path[path] == key.default and not is_named):
            continue
        section, negated = path.partition(".")[0], key.needs.startswith("not ")
        needs = [f"{section}.{need}" for need in key.needs.removeprefix("not ").split(" or ")]
        if any(map(is_set, needs)) == negated:
            without = f"{'with' if negated else 'without'} {' or '.join(needs)}"
            (faults if key.strict else notes).append(f"{path}={by_path[path]}: no effect {without}")
    return faults, notes


def arguments_of(factory: Callable[..., Any], leading: int = 1) -> Schema | None:
    """Returns the schema of the keyword arguments of ``factory``, or None if it accepts any.

    The ``leading`` first parameters are left out: the library passes them, such as a space or environment.
    Arguments without an entry in the ``config`` of the class accept any value; a required argument has the
    default ``inspect.Parameter.empty``.
    """
    try:
        parameters = list(inspect.signature(factory).parameters.values())[leading:]
    except ValueError:  # a built-in callable without a signature
        return None
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    plain = inspect.Parameter.POSITIONAL_OR_KEYWORD  # the library passes some that are for keywords only
    schema: Schema = {p.name: Key(p.default if p.kind is plain else None, Any) for p in parameters}
    if isinstance(factory, type) and isinstance(getattr(factory, "config", None), Mapping):
        schema |= {name: rule for name, rule in merged_config(factory).items() if name in schema}
    return schema


def fitted(value: Any, annotation: Any) -> Any:
    """Returns a value converted to the type of an annotation.

    It is converted only without loss: 64.0 to 64, 1 to 1.0, a tuple to a list, a text to a list of one.

    Raises:
        TypeError: if it is of another type.
    """
    kind, parts = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        for part in sorted(parts, key=lambda part: part is not type(value)):
            with contextlib.suppress(TypeError):
                return fitted(value, part)
    elif kind is Literal:
        for choice in parts:
            if type(value) is type(choice) and value == choice:
                return choice
    elif kind is list and isinstance(value, (list, tuple, str)):
        items = [value] if isinstance(value, str) else value
        return [fitted(item, parts[0]) if parts else copy.deepcopy(item) for item in items]
    elif kind is Choice and isinstance(value, str):
        return {"type": value}
    elif kind in (dict, Choice) and isinstance(value, Mapping):
        return {name: fitted(x, parts[1]) if parts else copy.deepcopy(x) for name, x in dict(value).items()}
    elif kind is Any or type(value) is kind:
        return value
    elif kind in (int, float) and type(value) in (int, float):
        with contextlib.suppress(OverflowError, ValueError):  # inf and nan, or an int beyond float
            if kind(value) == value:
                return kind(value)
    elif kind is Callable and callable(value):
        return value
    raise TypeError(f"expected {in_words(annotation)}, got {value!r:.60}")


def in_words(annotation: Any) -> str:
    """Returns an annotation as it is written, such as "int | None"."""
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(in_words, get_args(annotation))).replace("NoneType", "None")
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return re.sub(r"\b(typing|collections\.abc|ding_lite\.config\.schema)\.", "", text)


def _choices(annotation: Any) -> list[str]:
    """Returns the texts among the literals of an annotation."""
    parts = get_args(annotation)
    return [text for part in parts for text in ([part] if isinstance(part, str) else _choices(part))]


def check(
    user: Mapping[str, Any], schema: Schema, path: str = "", root: Schema | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Checks the part of a config that the user wrote.

    Args:
        user: nested dict. A text in place of a section with a key ``type`` is its type.
        schema: of ``user``.
        path: of ``user`` in the whole config, for the messages.
        root: the schema in which unknown keys are looked up; None: ``schema``.

    Returns:
        ``(values, faults)``: ``user`` converted to the declared types, and one message for each fault.
    """
    root = schema if root is None else root
    values: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in user.items():
        where = f"{path}.{name}" if path else str(name)
        rule = schema.get(name)
        if isinstance(rule, dict):
            value = {"type": value} if isinstance(value, str) and "type" in rule else value
            if isinstance(value, Mapping):
                values[name], section_faults = check(value, rule, where, root)
                faults += section_faults
            else:
                faults.append(f"{where}: a section, with the keys {_listed(rule)}; got {value!r:.60}")
        elif rule is None:
            hint = _key_meant(str(name), schema, root)
            faults.append(f"{f'{path}: ' if path else ''}unknown key {str(name)!r}{hint}")
        else:
            try:
                values[name] = rule.fitted(value)
            except TypeError as error:
                text = value.__name__ if isinstance(value, type) else str(value)  # torch.nn.ReLU means "relu"
                hint = meant(text, _choices(rule.type))
                if name in SCHEDULES and text.startswith("lin_"):
                    hint = f"; rl-zoo's {text} is {name}={text[4:]} {SCHEDULES[name]}=linear here"
                faults.append(f"{where}: {error}{hint}")
            else:
                faults += rule.faults(values[name], where) if rule.faults else []
    return values, faults


def meant(word: str, words: Iterable[str], cutoff: float = 0.65) -> str:
    """Returns "; did you mean 'x'?" with the most similar of some words, or "" if none is."""
    close = difflib.get_close_matches(word.lower(), words, n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def _key_meant(name: str, schema: Schema, root: Schema) -> str:
    """Returns a hint for the message about an unknown key: the key that was probably meant."""
    if same_name := paths_named(name, root):
        return f"; {name!r} is {' or '.join(same_name[:3])} here{OTHER_NUMBERS.get(name, '')}"
    synonyms = {word: paths[0] for word in SYNONYMS if (paths := paths_named(word, root))}
    names = {**synonyms, **{leaf.split(".")[-1]: leaf for leaf, _ in leaves(root)}, **{n: n for n in schema}}
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
    return f"; did you mean {names[close[0]]!r}?" if close else f"; known here: {_listed(schema)}"


def paths_named(name: str, schema: Schema) -> list[str]:
    """Returns the paths of the keys that have a name, here or in another library."""
    translated = SYNONYMS.get(name, name)
    paths = [f".{path}" for path, _ in leaves(schema)]
    exact = [path for path in paths if path.endswith(f".{translated}")]
    # PPG has some keys once for each network.
    of_both = (f".actor_{translated}", f".critic_{translated}")
    return [path[1:] for path in exact or paths if path in exact or path.endswith(of_both)]


def _listed(schema: Schema) -> str:
    return ", ".join(sorted(map(str, schema))) or "no keys"
