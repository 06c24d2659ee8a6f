"""Where a command's config comes from: ``-c FILE|NAME``, or ``--env`` with ``--policy``."""

from __future__ import annotations

import argparse

from ding_lite.config import Config, compile_config
from ding_lite.config_files import find_config, parse_overrides, read_config
from ding_lite.errors import ConfigError


def config_of(args: argparse.Namespace) -> Config:
    """Returns the complete config that the arguments describe."""
    overrides = parse_overrides(args.overrides)
    if args.config and (args.env or args.policy):
        raise ConfigError("give either -c, or --env with --policy; with -c, env.env_id=... changes it")
    if args.config:
        file = find_config(args.config)
        return compile_config(read_config(file), overrides, origin=str(file))
    if not args.env:
        raise ConfigError("what to train? Give -c FILE or NAME, or --env ENV_ID with --policy NAME")
    user = {"env": {"env_id": args.env}, "policy": {"type": args.policy or "ppo"}}
    return compile_config(user, overrides, origin="command line")
