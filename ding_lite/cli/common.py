"""The options that name a config, shared by several commands, and the config made from them."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ding_lite.cli.process import stdout_to_stderr
from ding_lite.errors import ConfigError

if TYPE_CHECKING:
    from ding_lite.config.compile import Config
    from ding_lite.tools.several import Crew

# Options that set a key of the config: attribute of the arguments, option, key.
KEY_OPTIONS = (
    ("seed", "-s", "seed"),
    ("max_env_step", "--max-env-step", "max_env_step"),
    ("max_train_iter", "--max-train-iter", "max_train_iter"),
    ("env", "--env", "env.env_id"),
    ("policy", "--policy", "policy.type"),
)


def whole_number(text: str) -> int:
    """Returns the whole number that an option is given, in any form that a key accepts: 10000 or 1e4."""
    for kind in (int, float):
        with contextlib.suppress(ValueError, OverflowError):
            number = kind(text)
            if int(number) == number:
                return int(number)
    raise argparse.ArgumentTypeError(f"expected a whole number, got {text!r}")


def positive_number(text: str) -> int:
    """Returns the whole number of at least 1 that an option is given."""
    if (number := whole_number(text)) < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1, got {number}")
    return number


def seed_number(text: str) -> int:
    """Returns the whole number of at least 0 that is given as a seed."""
    try:
        number = whole_number(text)
    except argparse.ArgumentTypeError:
        several = "; several are written with spaces, as in -s 0 1 2" if re.match(r"\d+[,-]", text) else ""
        raise argparse.ArgumentTypeError(f"a seed is a whole number, got {text!r}{several}") from None
    if number < 0:
        raise argparse.ArgumentTypeError(f"a seed is at least 0, got {number}")
    return number


def path_text(text: str) -> str:
    """Returns the path that an option is given; refuses an empty one, such as of a shell variable not set."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    return text


class Once(argparse.Action):
    """Stores the value of an option that is refused if it is given twice: the first would have no effect."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option: str | None = None,
    ) -> None:
        earlier = getattr(namespace, self.dest)
        if earlier is not None:
            first, second = (value or "without a value" for value in (earlier, values))
            raise argparse.ArgumentError(self, f"given twice, {first} and {second}")
        setattr(namespace, self.dest, values)


def add_import(parser: argparse._ActionsContainer) -> None:
    """Adds ``--import``."""
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module, a .py file, or FOLDER/package.module first, such as one that registers a "
        "policy; may be repeated",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Adds ``-c`` and ``--import`` for commands on a run, which :func:`trusted_modules` reads."""
    parser.add_argument(
        "-c",
        "--config",
        action=Once,
        type=path_text,
        metavar="FILE|NAME",
        help="the config of the run, if it names classes that are not the library's",
    )
    add_import(parser)


def trusted_modules(args: argparse.Namespace) -> list[str]:
    """Returns the modules that a checkpoint may import: those of ``--import``, and of ``-c``."""
    from ding_lite.config.compile import load_config

    with stdout_to_stderr(getattr(args, "json", False)):
        of_config = load_config(args.config).trusted if args.config else []
    return [*args.modules, *of_config]


def add_config_options(parser: argparse.ArgumentParser) -> None:
    """Adds ``-c``, ``--env``, ``--policy``, ``--import`` and the overrides, which :func:`config_of` reads."""
    group = parser.add_argument_group("config", "Give -c, or --env and perhaps --policy.")
    group.add_argument(
        "-c",
        "--config",
        action=Once,
        type=path_text,
        metavar="FILE|NAME",
        help="a .py or .json config file, or the name of a shipped config (see `ding-lite list configs`)",
    )
    group.add_argument(
        "--env",
        action=Once,
        metavar="ENV_ID",
        help="an environment: a gymnasium id, a registered name, or package.module:Class",
    )
    group.add_argument("--policy", action=Once, metavar="NAME", help="a policy, with --env (default: ppo)")
    add_import(group)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="key.path=value",
        help="set a key of the config, such as policy.learn.batch_size=128; "
        "`ding-lite config -c NAME` shows all keys",
    )


def add_run(parser: argparse.ArgumentParser) -> None:
    """Adds the run that a command reads."""
    parser.add_argument(
        "run",
        type=path_text,
        metavar="RUN|CKPT",
        help="a run's folder (its best checkpoint), or a checkpoint",
    )


def add_seed(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds ``-s`` with one seed, by default 0.

    Args:
        parser: of the command.
        what: it is, for the help.
    """
    parser.add_argument(
        "-s", "--seed", type=seed_number, default=0, metavar="SEED", help=f"{what} (default: 0)"
    )


def add_limits(group: argparse._ActionsContainer) -> None:
    """Adds the limits of a run, ``--max-env-step`` and ``--max-train-iter``."""
    for option, what in (
        ("--max-env-step", "steps of the environments"),
        ("--max-train-iter", "optimiser steps"),
    ):
        group.add_argument(
            option, action=Once, type=whole_number, metavar="N", help=f"stop a run after N {what}"
        )


def add_player_options(parser: argparse.ArgumentParser, episodes: int) -> None:
    """Adds the options of commands that play episodes with a checkpoint.

    Args:
        parser: of the command.
        episodes: played by default.
    """
    add_run(parser)
    parser.add_argument(
        "-n",
        "--episodes",
        type=positive_number,
        default=episodes,
        metavar="N",
        help=f"episodes (default: {episodes})",
    )
    add_seed(parser, "seed of the start states")
    parser.add_argument(
        "--stochastic", action="store_true", help="sample the actions; without it, take the most likely ones"
    )
    add_trust(parser)
    parser.add_argument(
        "overrides",
        nargs="*",
        default=[],
        metavar="env.key=value",
        help="play in another environment than the run's, such as env.kwargs.g=15",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Adds ``--json`` for commands that otherwise print a table."""
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def add_seeds(parser: argparse._ActionsContainer, what: str) -> None:
    """Adds ``-s`` with any number of seeds; ``program.parse`` keeps it from taking overrides.

    Args:
        parser: of the command.
        what: they are, for the help.
    """
    parser.add_argument(
        "-s",
        "--seed",
        dest="seeds",
        type=seed_number,
        nargs="+",
        action="extend",
        metavar="SEED",
        help=what,
    )


def add_picture_options(parser: argparse.ArgumentParser, names: str) -> None:
    """Adds ``--panels`` and ``--width``.

    Args:
        parser: of the command.
        names: of the panels.
    """
    parser.add_argument(
        "--panels",
        metavar="NAME,...",
        type=lambda text: [name.strip() for name in text.split(",")] if text else [],
        default=[],
        help=f"draw only these plots of the picture: {names} (default: all)",
    )
    parser.add_argument(
        "--width",
        type=float,
        metavar="INCHES",
        help="width of the picture, such as 3.3 for a column of a paper (default: as the plots need it)",
    )


def add_parallel(parser: argparse.ArgumentParser) -> None:
    """Adds ``--jobs`` and ``--ray``, which :func:`open_crew` reads."""
    group = parser.add_argument_group("several runs at a time")
    group.add_argument(
        "--jobs",
        type=positive_number,
        metavar="N",
        help="train N runs at a time (default: as many as there are cores for, by num_threads and "
        "env.manager.worker_num)",
    )
    group.add_argument(
        "--ray",
        nargs="?",
        const="",
        metavar="ADDRESS",
        help="train on a Ray cluster; without an address: the cluster of RAY_ADDRESS or of this machine, "
        "or else a new one",
    )


def seeds_of(args: argparse.Namespace) -> list[int]:
    """Returns the seeds of ``-s``; empty if there are none.

    Raises:
        ConfigError: if one is given twice, or if ``seed=`` is given beside several.
    """
    seeds: list[int] = args.seeds or []
    twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
    if twice:
        raise ConfigError(f"-s: the seed {twice[0]} is given twice, and both runs would be equal")
    if len(seeds) > 1 and any(token.startswith("seed=") for token in args.overrides):
        raise ConfigError(
            f"-s {' '.join(map(str, seeds))} and seed= contradict each other: remove one of them"
        )
    return seeds


@contextlib.contextmanager
def open_crew(args: argparse.Namespace, config: Config, runs: int) -> Iterator[Crew]:
    """Yields what trains so many runs of a config: in processes here, or on the Ray cluster of ``--ray``.

    Raises:
        ConfigError: if there is no such cluster.
        EnvError: if the environment cannot be made; one is made to see what a run needs.
    """
    from ding_lite.tools.board import board_for
    from ding_lite.tools.jobs import Place, Processes, needs_of
    from ding_lite.tools.several import Crew

    with contextlib.ExitStack() as stack:
        with stdout_to_stderr():  # what an environment prints
            needs = needs_of(config)
            place: Place = Processes(needs)
            if args.ray is not None:
                from ding_lite.tools.ray_jobs import RayCluster

                place = stack.enter_context(contextlib.closing(RayCluster(args.ray, needs)))
        board = stack.enter_context(board_for(sys.stdout, args.quiet or args.json))
        yield Crew(place, min(runs, args.jobs or place.slots()), board)


def source_options(args: argparse.Namespace) -> list[str]:
    """Returns the options of this command that name the config and one seed, for another command."""
    names = {"-c": "config", "--env": "env", "--policy": "policy", "-s": "seed"}
    options = _given({option: getattr(args, name, None) for option, name in names.items()})
    return options + [word for name in args.imports for word in ("--import", name)]


def run_options(args: argparse.Namespace) -> list[str]:
    """Returns the arguments that all runs of this command share: config, limits, overrides."""
    limits = _given({"--max-env-step": args.max_env_step, "--max-train-iter": args.max_train_iter})
    return [*source_options(args), *limits, *args.overrides]


def parallel_options(args: argparse.Namespace) -> list[str]:
    """Returns the arguments of :func:`add_parallel`, for another command that trains several runs."""
    # --ray may have no value.
    return list(filter(None, _given({"--jobs": args.jobs, "--ray": args.ray})))


def _given(options: Mapping[str, Any]) -> list[str]:
    """Returns the options that have a value, each followed by it."""
    return [word for name, value in options.items() if value is not None for word in (name, str(value))]


def player_options(args: argparse.Namespace) -> list[str]:
    """Returns the arguments of :func:`add_player_options`, for another command that plays."""
    sampled = ["--stochastic"] if args.stochastic else []
    return [args.run, *args.overrides, "-n", str(args.episodes), *source_options(args), *sampled]


def config_of(args: argparse.Namespace, more: Sequence[str] = ()) -> Config:
    """Returns the complete config of the arguments that :func:`add_config_options` adds.

    Args:
        args: of the command line.
        more: overrides beside those of the command line.

    Raises:
        ConfigError: if there is no config, or it has a fault.
    """
    from ding_lite.config.compile import COMMAND_LINE, compile_config, load_config
    from ding_lite.config.registry import env_section

    overrides = overrides_of(args, [*args.overrides, *more])
    if args.config:
        if args.env or args.policy:
            raise ConfigError(
                "-c and --env or --policy exclude each other; with -c, change the environment by "
                "env.env_id=ID and the policy by policy.type=NAME"
            )
        with stdout_to_stderr(getattr(args, "json", False)):
            config = load_config(args.config, overrides)
    elif args.env:
        user = {"env": env_section(args.env), "policy": {"type": args.policy or "ppo"}}
        config = compile_config(user, overrides, origin=COMMAND_LINE)
    else:
        raise ConfigError(
            "no config: give -c FILE or NAME (`ding-lite list configs` lists the names), or --env ENV_ID"
        )
    return dataclasses.replace(config, imports=tuple(args.modules))


def overrides_of(args: argparse.Namespace, tokens: Sequence[str]) -> dict[str, Any]:
    """Returns the overrides in ``tokens`` as ``{"key.path": value}``.

    Raises:
        ConfigError: for a malformed token, or if an option or another token sets the key to another value.
    """
    from ding_lite.config.compile import parse_overrides

    overrides = parse_overrides(tokens)
    for name, option, key in KEY_OPTIONS:
        value = getattr(args, name, None)
        if value is not None and overrides.get(key, value) != value:
            raise ConfigError(
                f"{option} {value} and {key}={overrides[key]} contradict each other: remove one of them"
            )
    return overrides
