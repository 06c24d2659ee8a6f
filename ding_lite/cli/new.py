"""``ding-lite new``: writes the files that a policy, environment or model begins with."""

from __future__ import annotations

import shlex

import click

from ding_lite.cli import options

KINDS = ("policy", "env", "model")


@options.command()
@click.argument("kind", type=click.Choice(KINDS), help="what to write")
@click.argument("name", help="name of the module: my_part, my-part or MyPart")
@options.option("-o --output FOLDER", "folder of the files (default: .)", default=".")
def run(kind: str, name: str, output: str) -> None:
    """Writes a policy, environment or model to start from.

    Makes a working file NAME.py with a config at its end, and its test. Both run as they are; change the
    file, and the test shows what breaks. Nothing is overwritten.

    policy   PPO with a loss of its own
    env      a gymnasium environment
    model    a network for policy and value

    ding-lite new policy my_policy           my_policy.py, test_my_policy.py
    ding-lite new env robot-arm -o envs      the class RobotArm in envs/robot_arm.py
    """
    from ding_lite.tools.new import write_new

    files = write_new(kind, name, output)
    module, test = (shlex.quote(str(file)) for file in files)
    print("wrote:", *files, sep="\n  ")
    print("try:", f"python -m pytest {test}", sep="\n  ")
    if kind == "env":
        print(f"  ding-lite check-env -c {module}")
    print(f"  ding-lite train -c {module}")
