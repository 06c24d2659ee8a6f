"""``ding-lite new``: writes the files that a policy, environment, model, encoder or config begins with."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

SUMMARY = "write a policy, environment, model, encoder or config to start from"
DESCRIPTION = """\
Writes a part of your own to start from: a working file NAME.py, its config and its test. Both
run as they are; change the file, and the test tells what breaks. Nothing is overwritten.

policy   PPO with a loss of its own         model    a network for policy and value
env      a gymnasium environment            encoder  features of one part of an observation
config   an experiment, with the keys that matter most
"""
EXAMPLES = """\
examples:
  ding-lite new policy my_policy           my_policy.py, my_policy_config.py, test_my_policy.py
  ding-lite new env robot-arm -o envs      the class RobotArm in envs/robot_arm.py
"""
KINDS = ("policy", "env", "model", "encoder", "config")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of ``ding-lite new``."""
    parser.add_argument("kind", choices=KINDS, help="what to write")
    parser.add_argument("name", metavar="NAME", help="of the module: my_part, my-part or MyPart")
    parser.add_argument(
        "-o", "--output", default=".", metavar="FOLDER", help="folder of the files (default: the current one)"
    )


def run(args: argparse.Namespace) -> int:
    """Writes the files, and prints the commands that run them."""
    from ding_lite.tools.new import write_new

    files = write_new(args.kind, args.name, args.output)
    stems = {file.stem: file for file in files}
    test = next(file for stem, file in stems.items() if stem.removeprefix("test_") in stems.keys() - {stem})
    module = stems[test.stem.removeprefix("test_")]
    config = stems.get(f"{module.stem}_config", module)
    commands = [f"python -m pytest {_quoted(test)}"]
    if args.kind == "env":
        commands.append(f"ding-lite check-env -c {_quoted(config)}")
    commands.append(f"ding-lite train -c {_quoted(config)}")
    print(
        "\n".join(["wrote:", *(f"  {file}" for file in files), "try:", *(f"  {line}" for line in commands)])
    )
    return 0


def _quoted(file: Path) -> str:
    return shlex.quote(str(file))
