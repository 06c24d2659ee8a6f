"""The search space of a sweep: which values each key of the config may take.

policy.learn.learning_rate = log(1e-5, 1e-2)      a number, uniform in its logarithm
policy.learn.entropy_weight = uniform(0, 0.02)    a number
policy.learn.epoch_per_collect = int(2, 10)       a whole number, both ends included
policy.learn.batch_size = choice(64, 128, 256)    one of these values; in a config file also a list
"""

from __future__ import annotations

import ast
import difflib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ding_lite.config.compile import LITERALS, Config
from ding_lite.errors import ConfigError

KINDS = ("uniform", "log", "int", "choice")
EXPECTED = "expected uniform(a, b), log(a, b), int(a, b) or choice(a, b, ...)"
# Keys that the sweep sets itself for each run.
OWN_KEYS = {"seed": "give the seeds of each trial as -s 0,1,2", "exp_name": "the sweep names its folders"}


@dataclass(frozen=True)
class Values:
    """The values that a key may take.

    Attributes:
        kind: one of ``KINDS``.
        low, high: inclusive bounds; 0 for a choice.
        choices: of a choice.
    """

    kind: str
    low: float = 0.0
    high: float = 0.0
    choices: tuple[Any, ...] = ()

    def probes(self) -> tuple[Any, ...]:
        """Returns the values that decide whether the key accepts all of them; the lowest first."""
        if self.choices:
            return self.choices
        inside = () if self.kind == "int" else (math.nextafter(self.low, self.high),)  # not a whole number
        return (self.low, *inside, self.high)

    def advice(self) -> str:
        """Returns what to write instead of a range of numbers with a fraction, for a whole number."""
        low, high = math.ceil(self.low), math.floor(self.high)
        doubled = [low << power for power in range(64) if 0 < low << power <= high]
        choices = f" or {Values('choice', choices=tuple(doubled))}" if len(doubled) > 1 else ""
        return f"{self.kind} gives numbers with a fraction; use {Values('int', low, high)}{choices}"

    def labels(self) -> dict[Any, Any]:
        """Returns the choices by their names in the storage, which takes neither lists nor dicts."""
        return {
            choice if isinstance(choice, (str, int, float, bool, type(None))) else json.dumps(choice): choice
            for choice in self.choices
        }

    def __str__(self) -> str:
        arguments = self.choices or (self.low, self.high)
        return f"{self.kind}({', '.join(map(repr, arguments))})"


SearchSpace = dict[str, Values]  # by the path of the key


def parse_searches(texts: Sequence[str]) -> dict[str, Any]:
    """Returns ``["key.path=log(1, 2)"]`` as ``{"key.path": "log(1, 2)"}``.

    Raises:
        ConfigError: for a text without a key or without values, and for a key that occurs twice.
    """
    searches: dict[str, Any] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        key = key.strip()
        if not (equals and key and values.strip()):
            raise ConfigError(
                f"--search {text!r}: {EXPECTED}, as in policy.learn.learning_rate=log(1e-5,1e-2)"
            )
        if key in searches:
            raise ConfigError(f"--search: {key} is given twice")
        searches[key] = values
    return searches


def search_space(searches: Mapping[str, Any]) -> SearchSpace:
    """Returns the search space of ``{"key.path": "log(1, 2)"}``; a list is a choice.

    Raises:
        ConfigError: listing every fault.
    """
    space: SearchSpace = {}
    faults = []
    for key, spec in searches.items():
        try:
            if key in OWN_KEYS:
                raise ValueError(f"cannot be searched: {OWN_KEYS[key]}")
            space[key] = _values(spec)
        except ValueError as error:
            faults.append(f"{key}: {error}")
    if faults:
        raise ConfigError("\n  ".join(["the search space has a fault:", *faults]))
    if not space:
        raise ConfigError(
            "no search space: give --search 'policy.learn.learning_rate=log(1e-5,1e-2)', or a dict in the "
            "config file, sweep = dict(search={'policy.learn.learning_rate': 'log(1e-5, 1e-2)'})"
        )
    return space


def _values(spec: Any) -> Values:
    """Returns the values that ``spec`` describes.

    Raises:
        ValueError: saying what is wrong.
    """
    if isinstance(spec, (list, tuple)):
        return _choice(list(spec))
    try:
        call = ast.parse(str(spec).strip(), mode="eval").body
    except SyntaxError:
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        raise ValueError(f"{EXPECTED}, got {spec!r}")
    kind = call.func.id
    if kind not in KINDS:
        close = ["log"] if "log" in kind.lower() else difflib.get_close_matches(kind, KINDS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"{EXPECTED}, got {spec!r}{hint}")
    arguments = [_argument(node) for node in call.args]
    return _choice(arguments) if kind == "choice" else _range(kind, arguments)


def _argument(node: ast.expr) -> Any:
    """Returns a Python literal; a bare word is a string, as in an override."""
    if isinstance(node, ast.Name):
        return LITERALS.get(node.id.lower(), node.id)
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise ValueError(f"expected numbers, strings or lists, got {ast.unparse(node)}") from error


def _choice(choices: list[Any]) -> Values:
    if len(choices) < 2:
        raise ValueError("a choice needs at least two values")
    values = Values("choice", choices=tuple(choices))
    if len(values.labels()) < len(choices):
        raise ValueError("a choice has the same value twice")
    return values


def _range(kind: str, arguments: list[Any]) -> Values:
    numbers = [x for x in arguments if isinstance(x, (int, float)) and not isinstance(x, bool)]
    if len(arguments) != 2 or len(numbers) != 2 or not numbers[0] < numbers[1]:
        raise ValueError(f"{kind} needs two numbers, the lower one first")
    low, high = numbers
    if kind == "int":
        if not (float(low).is_integer() and float(high).is_integer()):
            raise ValueError("int needs two whole numbers")
        return Values(kind, int(low), int(high))
    if kind == "log" and low <= 0:
        raise ValueError("log needs numbers above 0")
    return Values(kind, float(low), float(high))


def check_space(space: SearchSpace, compiled: Callable[[Mapping[str, Any]], Config]) -> None:
    """Checks that the config accepts the values of each key, before a trial starts.

    A value may need another value beside it (a large minibatch a large rollout), so it is tried alone and
    with all other keys at their first and at their last values.

    Args:
        space: to check.
        compiled: returns the complete config with overrides.

    Raises:
        ConfigError: for the first key with a value that no config accepts.
    """
    first = {key: values.probes()[0] for key, values in space.items()}
    last = {key: values.probes()[-1] for key, values in space.items()}
    for key, values in space.items():
        for value in values.probes():
            try:
                _check_value({key: value}, (first, last), compiled)
            except ConfigError as error:
                whole = f"{key}: expected a whole number"
                if values.kind in ("log", "uniform") and whole in str(error):
                    raise ConfigError(f"the search space: {whole}, and {values.advice()}") from error
                raise


def _check_value(
    one: Mapping[str, Any],
    others: Sequence[Mapping[str, Any]],
    compiled: Callable[[Mapping[str, Any]], Config],
) -> None:
    try:
        compiled(one)
    except ConfigError as error:
        for beside in others:
            try:
                compiled({**beside, **one})
            except ConfigError:
                continue
            return
        raise ConfigError(f"the search space: {error}") from error
