"""``ding-lite config``: every key of a config, its value, and where it came from."""

from __future__ import annotations

import argparse
import json

from ding_lite.cli.sources import config_of
from ding_lite.config import plain
from ding_lite.schema import leaves


def run(args: argparse.Namespace) -> int:
    """Prints the resolved config."""
    config = config_of(args)
    if args.json:
        print(json.dumps(config.as_json(), indent=2))
        return 0
    rows = [(path, repr(value), config.source[path]) for path, value in leaves(plain(config.values))]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for path, value, source in rows:
        print(f"{path:<{widths[0]}}  {value:<{min(widths[1], 40)}}  {source}")
    return 0
