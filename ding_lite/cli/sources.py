"""Where a command's config comes from: ``-c FILE|NAME``, or ``--env`` with ``--policy``, and overrides."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any

from ding_lite.config import COMMAND_LINE, Config, compile_config
from ding_lite.config_files import find_config, parse_overrides, read_config
from ding_lite.errors import ConfigError
from ding_lite.registry import ENV_REGISTRY

# Options that say what an override can say, too.
KEYS = {
    "seed": ("-s", "seed"),
    "max_env_step": ("--max-env-step", "max_env_step"),
    "max_train_iter": ("--max-train-iter", "max_train_iter"),
    "env": ("--env", "env.env_id"),
    "policy": ("--policy", "policy.type"),
}


def config_of(args: argparse.Namespace) -> Config:
    """Returns the complete config that the arguments describe."""
    overrides = overrides_of(args, args.overrides)
    if args.config and (args.env or args.policy):
        raise ConfigError("give either -c, or --env with --policy; with -c, env.env_id=... changes it")
    if args.config:
        file = find_config(args.config)
        return compile_config(read_config(file), overrides, origin=str(file))
    if not args.env:
        raise ConfigError("what to train? Give -c FILE or NAME, or --env ENV_ID with --policy NAME")
    user = {"env": env_section(args.env), "policy": {"type": args.policy or "ppo"}}
    return compile_config(user, overrides, origin=COMMAND_LINE)


def overrides_of(args: argparse.Namespace, tokens: Sequence[str]) -> dict[str, Any]:
    """Returns the overrides that ``tokens`` write.

    Raises:
        ConfigError: for one that cannot be read, or that an option or another one contradicts.
    """
    overrides = parse_overrides(tokens)
    for name, (option, key) in KEYS.items():
        said = getattr(args, name, None)
        if said is not None and overrides.get(key, said) != said:
            raise ConfigError(
                f"{option} {said} and {key}={overrides[key]} contradict each other: leave one out"
            )
    return overrides


def env_section(name: str) -> dict[str, Any]:
    """Tells a registered name and "package.module:Class" from a gymnasium id, "module:Name-v0" included."""
    own = name in ENV_REGISTRY or (":" in name and not re.search(r"-v\d+$", name))
    return {"type": name} if own else {"env_id": name}
