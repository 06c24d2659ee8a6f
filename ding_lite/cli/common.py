"""The options that name a config, shared by several commands, and the config made from them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config

# Options that set a key of the config: attribute of the arguments, option, key.
KEY_OPTIONS = (
    ("seed", "-s", "seed"),
    ("max_env_step", "--max-env-step", "max_env_step"),
    ("max_train_iter", "--max-train-iter", "max_train_iter"),
    ("env", "--env", "env.env_id"),
    ("policy", "--policy", "policy.type"),
)


def add_import(parser: argparse._ActionsContainer) -> None:
    """Adds ``--import``."""
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module or a .py file first, such as one that registers a policy; may be repeated",
    )


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``-c``, ``--env``, ``--policy``, ``--import`` and the overrides, which :func:`config_of` reads."""
    group = parser.add_argument_group("config", "Give either -c, or --env with or without --policy.")
    group.add_argument(
        "-c",
        "--config",
        metavar="FILE|NAME",
        help="a .py or .json config file, or the name of a shipped config (see `ding-lite list configs`)",
    )
    group.add_argument(
        "--env",
        metavar="ENV_ID",
        help="an environment: a gymnasium id, a registered name, or package.module:Class",
    )
    group.add_argument("--policy", metavar="NAME", help="a policy, with --env (default: ppo)")
    add_import(group)
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="key.path=value",
        help="set a key of the config, such as policy.learn.batch_size=128; "
        "`ding-lite config -c NAME` shows all keys",
    )


def add_player_options(parser: argparse.ArgumentParser, episodes: int) -> None:
    """Adds the options of commands that play episodes with a checkpoint.

    Args:
        parser: of the command.
        episodes: played by default.
    """
    parser.add_argument(
        "run", metavar="RUN|CKPT", help="a run's folder (its best checkpoint), or a checkpoint"
    )
    parser.add_argument(
        "-n", "--episodes", type=int, default=episodes, metavar="N", help=f"episodes (default: {episodes})"
    )
    parser.add_argument(
        "-s", "--seed", type=int, default=0, metavar="SEED", help="seed of the start states (default: 0)"
    )
    parser.add_argument(
        "--stochastic", action="store_true", help="sample the actions; without it, take the most likely ones"
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="the config file of the run, if it names classes of your own"
    )
    add_import(parser)


def trusted_modules(args: argparse.Namespace) -> list[str]:
    """Returns the modules that the arguments of :func:`add_player_options` name, after checking these.

    Raises:
        ConfigError: if the number of episodes or the seed is out of range, or the config has a fault.
    """
    if args.episodes < 1:
        raise ConfigError(f"-n: expected at least 1 episode, got {args.episodes}")
    if args.seed < 0:
        raise ConfigError(f"-s: expected a seed of at least 0, got {args.seed}")
    of_config = compile_file(args.config, {}).modules() if args.config else []
    return [*args.modules, *of_config]


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json`` for commands that otherwise print a table."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def config_of(args: argparse.Namespace) -> Config:
    """Returns the complete config of the arguments that :func:`add_config_options` adds.

    Raises:
        ConfigError: if there is no config, or it has a fault.
    """
    overrides = overrides_of(args, args.overrides)
    if args.config and (args.env or args.policy):
        raise ConfigError(
            "-c and --env or --policy exclude each other; with -c, change the environment by env.env_id=ID "
            "and the policy by policy.type=NAME"
        )
    if args.config:
        return compile_file(args.config, overrides)
    if not args.env:
        raise ConfigError(
            "no config: give -c FILE or NAME (`ding-lite list configs` lists the names), or --env ENV_ID "
            "with --policy NAME"
        )
    return compile_arguments(
        {"env": env_section(args.env), "policy": {"type": args.policy or "ppo"}}, overrides
    )


def compile_arguments(user: Mapping[str, Any], overrides: Mapping[str, Any]) -> Config:
    """Returns the complete config for a command line that names no config file."""
    from ding_lite.config.compile import COMMAND_LINE, compile_config

    return compile_config(user, overrides, origin=COMMAND_LINE)


def compile_file(name: str, overrides: Mapping[str, Any]) -> Config:
    """Returns the complete config of ``-c NAME`` with overrides."""
    from ding_lite.config.compile import compile_config
    from ding_lite.config.files import find_config, read_config

    file = find_config(name)
    return compile_config(read_config(file), overrides, origin=str(file))


def overrides_of(args: argparse.Namespace, tokens: Sequence[str]) -> dict[str, Any]:
    """Returns the overrides in ``tokens`` as ``{"key.path": value}``.

    Raises:
        ConfigError: for a malformed token, or if an option or another token sets the key to another value.
    """
    from ding_lite.config.files import parse_overrides

    overrides = parse_overrides(tokens)
    for name, option, key in KEY_OPTIONS:
        value = getattr(args, name, None)
        if value is not None and overrides.get(key, value) != value:
            raise ConfigError(
                f"{option} {value} and {key}={overrides[key]} contradict each other: remove one of them"
            )
    return overrides


def env_section(name: str) -> dict[str, Any]:
    """Returns the section ``env`` for a registered name, "package.module:Class", or a gymnasium id.

    The id of gymnasium may have the form "module:Name-v0".
    """
    from ding_lite.config.registry import ENV_REGISTRY

    is_type = name in ENV_REGISTRY or (":" in name and not re.search(r"-v\d+$", name))
    return {"type": name} if is_type else {"env_id": name}
