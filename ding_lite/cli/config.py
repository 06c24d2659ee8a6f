"""``ding-lite config``: shows every key of a config, its value, and the source of the value."""

from __future__ import annotations

import argparse
import json

from ding_lite.cli.common import add_config_options, config_of

SUMMARY = "show every key of a config, its value and its source"
DESCRIPTION = """\
Shows every key of a complete config, its value, and where the value comes from: the default,
the config file, the command line, or other keys. Each key can be set as key.path=value.
"""
EXAMPLES = """\
examples:
  ding-lite config -c cartpole_ppo                     the keys of a shipped config
  ding-lite config --env Pendulum-v1 --policy ppg      the keys of PPG, with its defaults
  ding-lite config -c cartpole_ppo seed=3 --json > my.json
                                                       a complete config file: train -c my.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite config``."""
    add_config_options(parser)
    parser.add_argument("--json", action="store_true", help="print a JSON file that -c accepts")


def run(args: argparse.Namespace) -> int:
    """Prints the complete config."""
    from ding_lite.config.compile import plain
    from ding_lite.config.schema import leaves

    config = config_of(args)
    if args.json:
        print(json.dumps(config.as_json(), indent=2))
        return 0
    rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
    path_width = max(len(path) for path, _, _ in rows)
    value_width = min(40, max(len(value) for _, value, _ in rows))
    for path, value, source in rows:
        print(f"{path:<{path_width}}  {value:<{value_width}}  {source}")
    return 0
