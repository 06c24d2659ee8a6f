"""The commands of the program ``ding-lite``, and its exit codes."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

import click

from ding_lite.cli.options import Described
from ding_lite.run.signals import EXIT_CODES

# In the order of the help; each is the module of its name in this folder.
COMMANDS = (
    *("train", "sweep", "eval", "runs", "plot", "compare", "config", "list", "new"),
    *("check-env", "profile", "export"),
)


class Commands(Described, click.Group):
    """Imports the file of a command when the command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"ding_lite.cli.{cmd_name.replace('-', '_')}")
        module.run.name = cmd_name
        return module.run


@click.group(
    cls=Commands,
    commands=dict.fromkeys(COMMANDS),  # for "did you mean"
    context_settings={"max_content_width": 110},
)
@click.version_option(package_name="ding_lite", prog_name="ding_lite", message="%(prog)s %(version)s")
def commands() -> None:
    """Trains agents with PPO and PPG, evaluates them, and draws learning curves.

    A config file has one dict with the environment, the policy and all other settings. Every
    key has a default, so a config names only what differs. Shipped configs are used by name.

    First steps:
      ding-lite list configs                             the shipped configs
      ding-lite train -c cartpole_ppo                    train one; writes runs/cartpole_ppo
      ding-lite eval runs/cartpole_ppo -n 100            play 100 episodes with its best checkpoint
      ding-lite plot runs/cartpole_ppo* -o curves.png    learning curves; with several seeds, an interval
      ding-lite train --resume runs/cartpole_ppo         continue it

    A task of your own:
      ding-lite new env my_env                           write an environment to start from, with a test
      ding-lite check-env my_env:MyEnv                   check that the environment works
      ding-lite train --env my_env:MyEnv                 train on it, without a config file
      ding-lite config -c cartpole_ppo                   show every key with its value and source
      ding-lite train -c my.py -s 0,1,2 policy.learn.learning_rate=1e-3
                                                         train three seeds, with another value

    Exit codes: 0 success, 1 any other error, 2 a fault in arguments, config or your own classes, 3 in an
    environment, 4 a loss or gradient that is not finite, 5 a fault in a checkpoint, 130 Ctrl-C, 143 SIGTERM.
    Completion: eval "$(_DING_LITE_COMPLETE=bash_source ding-lite)" in ~/.bashrc; zsh and fish alike.
    """


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: arguments of the program; None: the arguments of this process.

    Returns:
        the exit code: 0, or the code of the error (see ``ding_lite.errors``) or signal that ended it.
    """
    # NumPy reads these when it loads. MKL_NUM_THREADS would also be torch's number of threads.
    for name in ("OPENBLAS_NUM_THREADS", "BLIS_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        # Idle threads free their core for environments after a third of a millisecond, not after 6.
        os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    # Modules of the user are found in the working directory, as with `python script.py`.
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        code = commands.main(argv, "ding-lite", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except BrokenPipeError:  # the reader, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except click.Abort as error:  # click's word for a KeyboardInterrupt
        code = EXIT_CODES.get(str(error.__cause__), EXIT_CODES["SIGINT"])
    return int(code or 0)
