"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ding_lite.cli import options
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.config.schema import Key


@options.command()
@options.config_options
@options.group(
    "Form, such as: --explain clip",
    options.option("--json", "print a JSON file that -c accepts"),
    options.option(
        "--explain TEXT",
        "print value, type, range and effect of the keys whose path contains TEXT; without -c and --env: of "
        "all policies, with the defaults",
    ),
    options.option(
        "-o --output FILE",
        "write a new file that -c accepts: a .py file with the keys that are not defaults, or a .json file "
        "with all keys",
        options.PATH,
    ),
)
def run(source: options.Source, json: bool, explain: str | None, output: Path | None) -> None:
    """Shows every key of a config, its value and its source.

    The value of a key comes from its default, the config file, the command line, or other keys. Each key
    can be set as key.path=value.

    A file of DI-engine (main_config and create_config) is shown as the config that it becomes here; what
    was converted or left out is printed to stderr. -o FILE keeps it as a config of ding_lite.
    """
    from ding_lite.config.compile import POLICIES, save_config
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain

    if explain is not None and not (source or source.overrides):
        _explain(explain, _defaults([source.policy] if source.policy else POLICIES))
        return
    config = source.read()
    for note in config.notes:
        print(note, file=sys.stderr)
    if output:
        save_config(config, output)
        print(f"{output} is written   try: ding-lite train -c {output}")
    elif json:
        options.print_json(config.as_json(), indent=2)
    elif explain is not None:
        _explain(explain, _values(config))
    else:
        rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
        options.print_table(["key", "value", "source"], rows)


def _values(config: Config) -> dict[str, tuple[Key, str, str]]:
    """Returns the keys of a config with their values, for :func:`_explain`."""
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain
    from ding_lite.tools.key_reference import keys_of

    keys = keys_of(config.values)
    return {
        path: (keys[path], repr(value), "") for path, value in leaves(plain(config.values)) if path in keys
    }


def _defaults(policies: Sequence[str]) -> dict[str, tuple[Key, str, str]]:
    """Returns the keys of policies with their defaults, for :func:`_explain`."""
    from ding_lite.tools.key_reference import defaults_of, keys_of_policies

    found = {}
    for path, key in keys_of_policies(policies).items():
        (first, _), *others = defaults_of(key).items()
        default = ", ".join([first, *(f"{' and '.join(names)}: {value}" for value, names in others)])
        only = "" if len(key) == len(policies) else f"; only {' and '.join(key)}"
        found[path] = (next(iter(key.values())), default, only)
    return found


def _explain(text: str, keys: Mapping[str, tuple[Key, str, str]]) -> None:
    """Prints the keys with a text in their path, of another library's word for them, or explained by it.

    Raises:
        ConfigError: if there is none.
    """
    from ding_lite.config.schema import paths_named
    from ding_lite.tools.key_reference import rules, sentences

    found = (
        [path for path in keys if text in path]
        or paths_named(text.replace("-", "_"), {path: key for path, (key, *_) in keys.items()})
        or [path for path, (key, *_) in keys.items() if text.lower() in key.doc.lower()]
    )
    if not found:
        raise ConfigError(
            f"--explain: no key contains {text!r}, and no explanation; `ding-lite config -c NAME` lists all"
        )
    for path in found:
        key, value, note = keys[path]
        print(f"{path} = {value}    ({rules(key)}{note})")
        for line in textwrap.wrap(sentences(key), 100):
            print(f"    {line}")
