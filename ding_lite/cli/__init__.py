"""The command line: ``ding-lite train | eval | plot | config | list | check-env | profile | import``.

Parsing needs neither torch nor NumPy: ``--help`` answers at once, and thread counts can be chosen
before either is loaded. Each command's work is in the module of its name.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import keyword
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from ding_lite.cli.process import limit_blas_threads, nothing_is_garbage
from ding_lite.cli.signals import Signals
from ding_lite.errors import DingLiteError

EXAMPLES = """\
examples:
  ding-lite train -c cartpole_ppo                    train a shipped config
  ding-lite train -c my.py -s 3 policy.learn.learning_rate=1e-3
  ding-lite train --env Pendulum-v1 --policy ppg     no file needed
  ding-lite train -c cartpole_ppo --resume           go on with its run
  ding-lite train -c my.py --init-from runs/other    begin from the weights of another run
  ding-lite eval runs/cartpole_ppo -n 100            play 100 episodes with the best checkpoint
  ding-lite plot runs/cartpole_ppo* -o curves.png    learning curves, with an interval over seeds
  ding-lite config -c cartpole_ppo                   every key, its value, and where it came from
  ding-lite check-env CartPole-v1                    is the environment sound, on every backend?
  ding-lite profile -c cartpole_ppo                  where the time goes, and which keys to try
  ding-lite profile -c cartpole_ppo --tune           the fastest setting on this machine
"""


class Parser(argparse.ArgumentParser):
    """Adds to its errors what was likely meant: argparse itself does so from Python 3.14 on."""

    def error(self, message: str) -> NoReturn:
        said, _, choices = message.partition("invalid choice: ")[2].partition(" (choose from ")
        close = difflib.get_close_matches(said.strip("'"), re.findall(r"[\w-]+", choices), n=1)
        super().error(f"{message}; did you mean {close[0]!r}?" if close else message)


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = Parser(
        prog="ding-lite",
        description="PPO and PPG: train from a config file, evaluate, and draw learning curves.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_train(commands)
    _add_eval(commands)
    _add_plot(commands)
    _add_config(commands)
    _add_list(commands)
    _add_check_env(commands)
    _add_profile(commands)
    _add_import_weights(commands)
    return parser


def _command(commands: argparse._SubParsersAction, name: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def _add_import(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--import",
        dest="imports",
        metavar="MODULE",
        action="append",
        default=[],
        help="import a module or a .py file first, such as one that registers a policy (repeatable)",
    )


def _add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-c", "--config", metavar="FILE|NAME", help="a .py or .json file, or a shipped config's name"
    )
    parser.add_argument(
        "--env",
        metavar="ENV_ID",
        help="instead of a file: a gymnasium id, a registered name or package.module:Class",
    )
    parser.add_argument("--policy", metavar="NAME", help="with --env: the policy (default ppo)")
    _add_import(parser)


def _add_overrides(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "overrides", nargs="*", metavar="key.path=value", help="such as policy.learn.batch_size=128"
    )


def _add_train(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "train", "train a policy")
    _add_source(parser)
    parser.add_argument("-s", "--seed", type=int, metavar="SEED", help="seed of the run")
    parser.add_argument("--exp-name", metavar="DIR", help="the run's folder, as given; it must not exist")
    parser.add_argument("--max-env-step", type=int, metavar="N", help="stop at N environment steps")
    parser.add_argument("--max-train-iter", type=int, metavar="N", help="stop at N optimiser steps")
    parser.add_argument(
        "--resume",
        nargs="?",
        const="",
        metavar="DIR|CKPT",
        help="go on with a run: this one, or the one that --exp-name or the config names; from a checkpoint, "
        "or the newest one that is whole",
    )
    parser.add_argument(
        "--override",
        action="store_true",
        help="with --resume: begin new episodes, and take over what the saved state does not fit, too",
    )
    parser.add_argument(
        "--init-from",
        metavar="RUN_OR_CKPT",
        help="begin a new run with the weights and scales of another one (its best), or of a checkpoint",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="show nothing (log.txt has it all)")
    _add_overrides(parser)


def _add_eval(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "eval", "play episodes with a trained policy")
    parser.add_argument("run", metavar="RUN_OR_CKPT", help="a run's folder (its best), or a checkpoint")
    parser.add_argument("-n", "--episodes", type=int, default=16, metavar="N", help="episodes (default 16)")
    parser.add_argument("-s", "--seed", type=int, default=0, metavar="SEED", help="of the start states")
    parser.add_argument("--stochastic", action="store_true", help="draw actions instead of the greedy ones")
    parser.add_argument("--video", metavar="DIR", help="record the episodes as mp4 files there")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    parser.add_argument("-c", "--config", metavar="FILE", help="config file whose classes the run needs")
    _add_import(parser)


def _add_plot(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "plot", "draw learning curves of runs")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folders; seeds of one config are grouped")
    parser.add_argument("-o", "--output", default="curves.png", metavar="FILE", help=".png, .pdf or .svg")
    parser.add_argument("--title", metavar="TEXT", help="above the figure")


def _add_config(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "config", "show the resolved config, and where each value came from")
    _add_source(parser)
    parser.add_argument("--json", action="store_true", help="print it as a file that -c takes")
    _add_overrides(parser)


def _add_list(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "list", "list what a config can name")
    parser.add_argument(
        "kind",
        nargs="?",
        choices=("policies", "models", "encoders", "envs", "wrappers", "configs"),
        help="one kind only (default: all)",
    )


def _add_check_env(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "check-env", "check that an environment keeps its contract, on every backend")
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="ENV_ID | key.path=value",
        help="a gymnasium id, a registered name or package.module:Class; overrides such as env.kwargs.x=1",
    )
    parser.add_argument("-c", "--config", metavar="FILE|NAME", help="check the environment of a config")
    parser.add_argument("--steps", type=int, default=1000, metavar="N", help="to play (default 1000)")
    parser.add_argument("-s", "--seed", type=int, metavar="SEED", help="of starts and actions")
    parser.add_argument(
        "--rollout",
        type=int,
        metavar="N",
        help="print N random steps as a tree of shapes and dtypes, and end",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    _add_import(parser)


PROFILE = """\
Trains for some iterations and shows where their time went. No run folder is left behind.

  env          stepping the environments        gradient     losses, backward, clipping
  act          the policy's actions             optimiser    Adam's steps
  store        the rollout, and its checks      auxiliary    PPG's auxiliary phase
  advantages   values and advantages            logging, evaluation, checkpoint
  minibatches  drawn from the samples           other        what is none of these

Evaluations, checkpoints and auxiliary phases count where they fall due meanwhile; --iterations says how
long to look.

--tune looks for the fastest setting on this machine instead. It tries env.manager.type with its
worker_num and double_buffer, num_threads and policy.learn.compile, one after the other, beginning with
what the largest phase hangs on. Both settings train in turns, each in a process of its own, and one is
taken only where it is faster by more than the measurements differ among themselves. Keys that change
what is learned, such as policy.collect.n_sample, env.collector_env_num or policy.learn.batch_size, are
not touched.
"""


def _add_profile(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "profile", "show where the time of training goes, and which keys to try")
    parser.description, parser.formatter_class = PROFILE, argparse.RawDescriptionHelpFormatter
    _add_source(parser)
    parser.add_argument("-s", "--seed", type=int, metavar="SEED", help="of the run")
    parser.add_argument(
        "--iterations",
        type=int,
        metavar="N",
        help="to measure, after a warm-up of 2 (default 10; for PPG, whole auxiliary cycles)",
    )
    parser.add_argument("--tune", action="store_true", help="find the fastest setting, and how to type it")
    parser.add_argument("--minutes", type=float, metavar="M", help="that --tune may take (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    # What --tune starts: a training that goes on as standard input says, and answers there in JSON.
    parser.add_argument("--contestant", action="store_true", help=argparse.SUPPRESS)
    _add_overrides(parser)


def _add_import_weights(commands: argparse._SubParsersAction) -> None:
    parser = _command(commands, "import", "make a checkpoint, for train --init-from, of a file of weights")
    parser.add_argument("file", metavar="FILE", help="a .pt or .safetensors with a state dict of tensors")
    parser.add_argument("-o", "--output", required=True, metavar="CKPT", help="the folder to make")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit code; see ``errors`` for what each means."""
    parser = build_parser()
    given = [
        *(sys.argv[1:] if argv is None else argv)
    ]  # list is a module of this package, once it is imported
    args = _parsed(parser, _overrides_first(_detach_resume(given)))
    if args.version:
        from importlib.metadata import version

        print(f"ding_lite {version('ding_lite')}")
        return 0
    if args.command is None:
        parser.print_help()
        return 2
    limit_blas_threads()
    # The working directory is where a user's own modules are, as with `python script.py`.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    with Signals() as args.signals:
        lost: OSError | None = None
        try:
            code = _run(args, owns_process=argv is None)
        except KeyboardInterrupt:
            code = args.signals.exit_code or 130
        except OSError as error:
            if args.command == "train" or error.errno not in (errno.EPIPE, errno.ENOSPC):
                raise
            lost, code = error, 0
        lost = _flush_output() or lost
        # Training has its log; and a reader that went away, such as `| head`, has seen enough.
        if lost is None or args.command == "train" or isinstance(lost, BrokenPipeError):
            return code
        print(f"ding-lite {args.command}: error: the output cannot be written: {lost}", file=sys.stderr)
        return code or 1


def _run(args: argparse.Namespace, owns_process: bool) -> int:
    try:
        with nothing_is_garbage() if owns_process else contextlib.nullcontext():
            command = importlib.import_module(f"ding_lite.cli.{module_of(args.command)}")
        args.named_imports = getattr(args, "imports", [])  # as they were typed
        args.imports = [_import(name) for name in args.named_imports]
        return int(command.run(args))
    except DingLiteError as error:
        if args.debug:
            traceback.print_exc()
        print(f"ding-lite {args.command}: error: {error}", file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name in [os.path.basename(m).removesuffix(".py") for m in getattr(args, "imports", [])]:
            print(f"ding-lite: error: --import {error.name}: there is no such module", file=sys.stderr)
            return 2
        raise


def _flush_output() -> OSError | None:
    """Returns why standard output cannot be written; it is let go then, or the interpreter would complain."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def _import(module: str) -> str:
    """Imports a module, or a .py file as one, and returns its name."""
    if module.endswith(".py"):
        folder, file = os.path.split(os.path.abspath(module))
        sys.path.insert(0, folder)
        module = file.removesuffix(".py")
    importlib.import_module(module)
    return module


def _parsed(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """Lets overrides stand on both sides of options: argparse takes positionals only side by side."""
    args, rest = parser.parse_known_args(argv)
    if "overrides" in args and all("=" in token and not token.startswith("-") for token in rest):
        args.overrides += rest
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def _detach_resume(argv: list[str]) -> list[str]:
    """Keeps ``--resume`` from taking an override (``a.b=3``) for its value."""
    for i, token in enumerate(argv[:-1]):
        if token == "--resume" and "=" in argv[i + 1]:
            argv[i] = "--resume="
    return argv


def _overrides_first(argv: list[str]) -> list[str]:
    """Lets overrides of ``check-env`` stand anywhere: argparse takes positionals only side by side."""
    if argv[:1] != ["check-env"]:
        return argv
    overrides = [token for token in argv if "=" in token and not token.startswith("-")]
    rest = [token for token in argv[1:] if token not in overrides]
    # The environment's id is the first token that is no option and no option's value.
    valued = ("-c", "--config", "--steps", "-s", "--seed", "--rollout", "--import")
    named = [t for before, t in zip(["", *rest], rest, strict=False) if t[:1] != "-" and before not in valued]
    return ["check-env", *named, *overrides, *(token for token in rest if token not in named)]


def module_of(command: str) -> str:
    """Returns the name of a command's module: check-env is done by ``check_env``, import by ``import_``."""
    return command.replace("-", "_") + "_" * keyword.iskeyword(command)
