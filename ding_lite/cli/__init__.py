r"""The command line: ``ding-lite COMMAND ...``, also ``python -m ding_lite COMMAND ...``.

``program`` builds the parser and runs commands. Each command is one file of this folder, with its options
and its function ``run``. ``common`` has what several commands share: the options that name a config, and
the config made from them. ``process`` and ``signals`` set up the process that a command runs in;
``completion`` makes scripts for shells; ``unknown_options`` says which option was meant.

To add the command ``ding-lite my-command``:

1. Write ``ding_lite/cli/my_command.py`` (a Python keyword gets an underscore: ``import_.py``), with a
   docstring that says what the command does, and::

       import argparse

       SUMMARY = "print a greeting"        # its line in `ding-lite --help`
       DESCRIPTION = "Prints a greeting."  # the top of `ding-lite my-command --help`
       EXAMPLES = "examples:\n  ding-lite my-command --name Ada"  # the end of it

       def add_arguments(parser: argparse.ArgumentParser) -> None:
           parser.add_argument("--name", default="you", help="whom to greet (default: you)")

       def run(args: argparse.Namespace) -> int:
           print(f"Hello {args.name}")
           return 0                        # the exit code

2. Add ``"my-command"`` to ``COMMANDS`` in ``program.py``, at its place in the help.

All command files are imported to build the parser, which must take milliseconds. So a command file imports
the standard library, ``ding_lite.errors`` and ``ding_lite.cli`` at its top, and the rest of the library,
which may load NumPy, gymnasium and torch, inside its functions. It imports each name from the module that
defines it: ``from ding_lite.run.load import load_policy``, not ``from ding_lite import load_policy``, since
``ding_lite`` itself is for scripts of users. ``PRELOAD = ("ding_lite.run.pipeline",)`` in the file is
optional: these modules are imported before ``run``, without garbage collection, which is faster.

``run`` reports a fault of the user by raising a :class:`ding_lite.errors.DingLiteError`; the program prints
its message and exits with its code. ``args`` also has ``modules``, the names of the modules that
``--import`` has imported, and ``signals``, the signal handlers (see ``signals``).
"""

from ding_lite.cli.program import build_parser, main

__all__ = ["build_parser", "main"]
