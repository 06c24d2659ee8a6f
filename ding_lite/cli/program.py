"""The program ``ding-lite``: builds the parser from the command files, and runs one command."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import keyword
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from ding_lite.cli.completion import install
from ding_lite.cli.process import (
    flush_output,
    limit_blas_threads,
    no_garbage_collection,
    shorten_openmp_waiting,
    stdout_to_stderr,
)
from ding_lite.errors import FOREIGN, ConfigError, DingLiteError, error_text, is_of_user
from ding_lite.run.signals import exit_at_once

# In the order of the help; each is the module of its name in this folder.
COMMANDS = (
    *("train", "sweep", "eval", "play", "runs", "plot", "compare", "config", "list", "new"),
    *("check-env", "profile", "export"),
)
USER_CODE = 2  # exit code for an exception of the user's own classes

DESCRIPTION = """\
Trains agents with PPO and PPG, evaluates them, and draws learning curves.

A config file holds one dict with the environment, the policy and all other settings. Every
key has a default, so a config names only what differs. Shipped configs are used by name.
"""
EXAMPLES = """\
first steps:
  ding-lite list configs                             the shipped configs
  ding-lite train -c cartpole_ppo                    train one; writes runs/cartpole_ppo
  ding-lite eval runs/cartpole_ppo -n 100            play 100 episodes with its best checkpoint
  ding-lite plot runs/cartpole_ppo* -o curves.png    learning curves; with several seeds, an interval

a task of your own:
  ding-lite new env my_env                           write an environment to start from, with a test
  ding-lite check-env my_env:MyEnv                   check that the environment works
  ding-lite train --env my_env:MyEnv                 train on it, without a config file
  ding-lite config -c cartpole_ppo                   show every key with its value and source
  ding-lite train -c my.py -s 3 policy.learn.learning_rate=1e-3
                                                     train from my.py with seed 3 and another value
  ding-lite train -c my.py -s 0 1 2 3                train four seeds, as many at a time as there are cores

runs:
  ding-lite train -c cartpole_ppo --resume           continue the run
  ding-lite train -c my.py --init-from runs/other    start from the weights of another run
  ding-lite sweep -c my.py --search "policy.learn.learning_rate=log(1e-5,1e-2)"
                                                     search for the best values of keys
  ding-lite export runs/cartpole_ppo -o policy.onnx  write the policy to a file for other programs
  ding-lite profile -c cartpole_ppo                  show where the time goes
  ding-lite profile -c cartpole_ppo --tune           find the fastest settings on this machine

`ding-lite COMMAND --help` shows the options of one command.

exit codes:
  0  success                          4  a loss or gradient that is not finite
  1  any other error                  5  a fault in a checkpoint
  2  a fault in arguments, config     130, 143  ended by Ctrl-C, by SIGTERM
     or your own classes
  3  a fault in an environment
"""


class Parser(argparse.ArgumentParser):
    """A parser that suggests the closest valid choice; argparse itself does so from Python 3.14."""

    def error(self, message: str) -> NoReturn:
        value, _, choices = message.partition("invalid choice: ")[2].partition(" (choose from ")
        close = difflib.get_close_matches(value.strip("'"), re.findall(r"[\w-]+", choices), n=1)
        super().error(f"{message}; did you mean {close[0]!r}?" if close else message)


def command_module(command: str) -> Any:
    """Imports the file of a command: ``check_env`` for "check-env", ``import_`` for "import"."""
    name = command.replace("-", "_")
    return importlib.import_module(
        f"ding_lite.cli.{name}_" if keyword.iskeyword(name) else f"ding_lite.cli.{name}"
    )


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    parser = Parser(
        prog="ding-lite",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument(
        "--install-completion",
        nargs="?",
        const="",
        metavar="SHELL",
        help="write a script that completes commands, options and keys for bash, zsh or fish, and exit "
        "(default: the shell of $SHELL)",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name in COMMANDS:
        module = command_module(name)
        command = commands.add_parser(
            name,
            help=module.SUMMARY,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_argument("--debug", action="store_true", help="show the traceback of an error")
        module.add_arguments(command)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parses the arguments of the program; overrides (``key.path=value``) may stand anywhere among them.

    argparse accepts the positional arguments of a command at one place only, and returns further ones as
    unrecognized. They are appended to the command's ``overrides`` here.
    """
    parser = build_parser()
    args, rest = parser.parse_known_args(_seeds_last(_options_without_value_last(argv)))
    options = [token for token in rest if token.startswith("-")]
    if rest and (options or "overrides" not in args):
        _refuse(parser, args.command, options, rest)
    if rest:
        args.overrides = [*args.overrides, *rest]
    args.typed = argv
    return args


def _refuse(
    parser: argparse.ArgumentParser, name: str | None, options: list[str], rest: list[str]
) -> NoReturn:
    """Ends the program with a message about arguments that the command does not have."""
    command = _parser_of(parser, name)
    if name is None or not options:
        command.error(f"unrecognized arguments: {' '.join(rest)}")
    from ding_lite.cli.unknown_options import unknown_option

    command.error("\n  ".join(unknown_option(name, command, option) for option in options))


def _parser_of(parser: argparse.ArgumentParser, command: str | None) -> argparse.ArgumentParser:
    """Returns the parser of a command, or without one that of the program."""
    commands = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return next(action.choices[command] for action in commands) if command else parser


def _options_without_value_last(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with a ``--resume`` or ``--ray`` before an override, which is no value, last."""
    others: list[str] = []
    without_value: list[str] = []
    for token, follows in zip(argv, [*argv[1:], ""], strict=False):
        # A folder may be called lr=0.1.
        is_override = re.match(r"[\w.]+=", follows) and not os.path.exists(follows)
        part = without_value if token in ("--resume", "--ray") and is_override else others
        part.append(token)
    return others + without_value


def _seeds_last(argv: Sequence[str]) -> list[str]:
    """Returns the arguments with ``-s 0 1 2`` behind all others, so that it does not take an override."""
    others: list[str] = []
    seeds: list[str] = []
    part = others
    for token, before in zip(argv, ["", *argv], strict=False):
        is_first = before in ("-s", "--seed") and "=" not in token and not token.startswith("-")
        if token in ("-s", "--seed"):
            part = seeds
        elif not (is_first or re.fullmatch(r"-?\d+", token)):
            part = others
        part.append(token)
    return others + seeds


def _mend_streams() -> None:
    """Makes output possible where it is closed (>&-), or cannot show every character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
        elif hasattr(stream, "reconfigure") and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments of the program; None: those of this process, which then exits after the command.

    Returns:
        the exit code: 0, that of the error (see ``ding_lite.errors``), or that of the signal that ended it.
    """
    _mend_streams()
    args = parse(sys.argv[1:] if argv is None else argv)
    if args.version:
        from importlib.metadata import version

        print(f"ding_lite {version('ding_lite')}")
        return 0
    if args.install_completion is not None:
        return _install_completion(args.install_completion)
    if args.command is None:
        build_parser().print_help()
        return 2
    limit_blas_threads()
    shorten_openmp_waiting()
    # Modules of the user are found in the working directory, as with `python script.py`.
    try:
        if "" not in sys.path and os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
    except FileNotFoundError:
        print("ding-lite: error: the working directory was removed; change to another one", file=sys.stderr)
        return ConfigError.exit_code
    if argv is None:
        for name in ("SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            # Under nohup SIGHUP is ignored, so that the run continues when the terminal is closed.
            if number and signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, exit_at_once)
    return _run_and_flush(args, owns_process=argv is None)


def _install_completion(shell: str) -> int:
    try:
        print(install(shell, build_parser()))
    except DingLiteError as error:
        print(f"ding-lite: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _run_and_flush(args: argparse.Namespace, owns_process: bool) -> int:
    """Runs the command and flushes standard output; a fault of the output is reported once, at the end."""
    output_fault: OSError | None = None
    try:
        code = _run(args, owns_process)
    except KeyboardInterrupt:
        code = 130
    except OSError as error:
        if args.command == "train" or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        code = 0
        output_fault = error
    output_fault = flush_output() or output_fault
    # A training has its log.txt. A closed pipe, as behind `| head`, means that the reader has enough.
    if output_fault is None or args.command == "train" or isinstance(output_fault, BrokenPipeError):
        return code
    print(f"ding-lite {args.command}: error: cannot write the output: {output_fault}", file=sys.stderr)
    return code or 1


def _run(args: argparse.Namespace, owns_process: bool) -> int:
    """Runs the command; prints an error of ding_lite or of the user's code, and returns its exit code."""
    command = command_module(args.command)
    try:
        with no_garbage_collection() if owns_process else contextlib.nullcontext():
            for module in getattr(command, "PRELOAD", ()):
                importlib.import_module(module)
        with stdout_to_stderr(getattr(args, "json", False)):
            args.modules = [_import(name) for name in getattr(args, "imports", [])]
        return int(command.run(args))
    except FOREIGN as error:
        if not (isinstance(error, DingLiteError) or is_of_user(error)):
            raise
        if args.debug:
            import traceback

            traceback.print_exc()
        print(f"ding-lite {args.command}: error: {error_text(error)}", file=sys.stderr)
        return error.exit_code if isinstance(error, DingLiteError) else USER_CODE


def _import(name: str) -> str:
    """Imports a module, a .py file as a module, or FOLDER/package.module, and returns the module's name.

    Raises:
        ConfigError: if there is no such module, or another one of its name is loaded already.
    """
    module, folder = name, ""
    if name.endswith(".py") or os.sep in name:
        folder, file = os.path.split(os.path.abspath(name))
        sys.path.insert(0, folder)
        module = file.removesuffix(".py")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if f"{module}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"--import {name}: there is no such module (looked in {sys.path[0]}). A file elsewhere is "
                "named by its path: --import FOLDER/FILE.py"
            ) from error
        raise
    except OSError as error:
        if is_of_user(error):
            raise
        where = "" if error.filename in (None, os.path.abspath(name)) else f" ({error.filename})"
        raise ConfigError(f"--import {name} cannot be read: {error.strerror}{where}") from error
    except SyntaxError as error:  # its traceback has no line of the file
        raise ConfigError(f"--import {name}: {error_text(error)}") from error
    if folder and not _lies_in(folder, loaded):
        place = getattr(loaded, "__file__", None) or "of Python itself"
        raise ConfigError(
            f"--import {name}: another module {module!r} is loaded already ({place}): rename the file"
        )
    return module


def _lies_in(folder: str, module: Any) -> bool:
    """Returns whether a module has come from a folder or one below it; either may be reached by a link."""
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))  # a package without __init__.py
    return any(
        path(place).startswith(os.path.join(path(folder), ""))
        for place in places
        for path in (os.path.abspath, os.path.realpath)
    )
