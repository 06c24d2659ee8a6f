"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ding_lite.cli.common import Once, add_config_options, config_of, path_text
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.config.schema import Key

SUMMARY = "show every key of a config, its value and its source"
DESCRIPTION = """\
Shows every key of a complete config, its value, and where the value comes from: the default,
the config file, the command line, or other keys. Each key can be set as key.path=value.

A file of DI-engine (main_config and create_config) is shown as the config that it becomes here;
what was converted or left out is printed to stderr. -o FILE keeps it as a config of ding_lite.
"""
EXAMPLES = """\
examples:
  ding-lite config -c cartpole_ppo                     the keys of a shipped config
  ding-lite config --env Pendulum-v1 --policy ppg      the keys of PPG, with its defaults
  ding-lite config -c cartpole_ppo --explain clip      what the keys do whose name has "clip"
  ding-lite config --explain aux                       the same for all policies, with the defaults
  ding-lite config -c cartpole_ppo seed=3 --json > my.json
                                                       a complete config file: train -c my.json
  ding-lite config -c their_config.py -o mine.py       a file of DI-engine as one of ding_lite
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite config``."""
    add_config_options(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON file that -c accepts")
    form.add_argument(
        "--explain",
        metavar="TEXT",
        help="print value, type, range and effect of the keys whose path contains TEXT; without -c and "
        "--env: of all policies, with the defaults",
    )
    form.add_argument(
        "-o",
        "--output",
        action=Once,
        type=path_text,
        metavar="FILE",
        help="write a new file that -c accepts: a .py file with the keys that are not defaults, or a .json "
        "file with all keys",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the complete config, or writes it to a file."""
    from ding_lite.config.compile import save_config
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain

    if args.explain is not None and not (args.config or args.env or args.overrides):
        return _explain_defaults(args.explain, [args.policy] if args.policy else [])
    config = config_of(args)
    for note in config.notes:
        print(note, file=sys.stderr)
    if args.output:
        save_config(config, args.output)
        print(f"{args.output} is written   try: ding-lite train -c {args.output}")
        return 0
    if args.json:
        print(json.dumps(config.as_json(), indent=2))
        return 0
    if args.explain is not None:
        return _explain(args.explain, config)
    rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(40, max(len(value) for _, value, _ in rows))
    for path, value, source in rows:
        print(f"{path:<{path_width}}  {value:<{value_width}}  {source}")
    return 0


def _explain(text: str, config: Config) -> int:
    """Prints the keys of a config that a text names, with their values."""
    from ding_lite.config.schema import leaves
    from ding_lite.config.values import plain
    from ding_lite.tools.key_reference import keys_of

    values = dict(leaves(plain(config.values)))
    keys = {path: key for path, key in keys_of(config.values).items() if path in values}
    for path in _named(text, keys):
        _print_key(path, keys[path], repr(values[path]))
    return 0


def _explain_defaults(text: str, policies: list[str]) -> int:
    """Prints the keys of policies, or of all that are shipped, that a text names, with their defaults."""
    from ding_lite.tools.key_reference import POLICIES, defaults_of, keys_of_policies

    policies = policies or list(POLICIES)
    keys = keys_of_policies(policies)
    for path in _named(text, {path: next(iter(key.values())) for path, key in keys.items()}):
        (first, _), *others = defaults_of(keys[path]).items()
        default = ", ".join([first, *(f"{' and '.join(names)}: {value}" for value, names in others)])
        only = "" if len(keys[path]) == len(policies) else f"; only {' and '.join(keys[path])}"
        _print_key(path, next(iter(keys[path].values())), default, only)
    return 0


def _named(text: str, keys: Mapping[str, Key]) -> list[str]:
    """Returns the keys with a text in their path, of another library's word for them, or explained by it.

    Raises:
        ConfigError: if there is none.
    """
    from ding_lite.config.schema import paths_named

    found = (
        [path for path in keys if text in path]
        or paths_named(text.replace("-", "_"), dict(keys))
        or [path for path, key in keys.items() if text.lower() in key.doc.lower()]
    )
    if not found:
        raise ConfigError(
            f"--explain: no key contains {text!r}, and no explanation; `ding-lite config -c NAME` lists all"
        )
    return found


def _print_key(path: str, key: Key, value: str, note: str = "") -> None:
    from ding_lite.tools.key_reference import rules, sentences

    print(f"{path} = {value}    ({rules(key)}{note})")
    for line in textwrap.wrap(sentences(key), 100):
        print(f"    {line}")
