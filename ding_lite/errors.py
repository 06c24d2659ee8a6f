"""Every error that ding_lite raises on purpose, and the exit code each gives the command line.

* DingLiteError            1
  x ConfigError            2   a key or a value that a config may not have
  x RegistryError          2   a name that nothing is registered under, or one that is taken
  x EnvError               3   an environment that cannot be made or stepped
    . EnvContractError     3   an environment that breaks gymnasium's API, or the contract of its spaces
      - NotFiniteError     3   an observation or a reward that is not finite
    . EnvWorkerError       3   a worker process that died, hung, or whose environment raised
  x NumericsError          4   a loss or a gradient that is not finite
  x CheckpointError        5   a file that is not a checkpoint, or not one for this run
  x ContractError          2   a registered policy or model that breaks its base class's contract
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Mapping
from types import TracebackType
from typing import Any

# What code that is not ours may raise where an error of ours answers for it. It may call sys.exit, which
# would end a run without a word; KeyboardInterrupt is the user's own.
FOREIGN = (Exception, SystemExit)
NOT_THE_USERS = (
    "<",  # frozen modules, and code without a file
    os.path.dirname(__file__) + os.sep,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)


class DingLiteError(Exception):
    """Base class: ``except DingLiteError`` catches all that the library can explain."""

    exit_code = 1


class ConfigError(DingLiteError, ValueError):
    """Raised when a config has an unknown key or an impossible value."""

    exit_code = 2


class RegistryError(DingLiteError, LookupError):
    """Raised when a registered name is missing, or is registered twice."""

    exit_code = 2


class ContractError(DingLiteError, TypeError):
    """Raised when a registered class does not do what its base class promises."""

    exit_code = 2


class EnvError(DingLiteError, RuntimeError):
    """Raised when an environment cannot be made, or fails while it is stepped."""

    exit_code = 3


class EnvContractError(EnvError):
    """Raised when an environment breaks gymnasium's API, or returns what its spaces do not declare."""


class NotFiniteError(EnvContractError):
    """Raised when an observation or a reward is nan or infinite; see ``env.on_bad_value``."""


class EnvWorkerError(EnvError):
    """Raised when a worker process died or hung, or an environment in it raised.

    Attributes:
        worker: number of the worker process.
        envs: numbers of its environments.
        remote_traceback: the worker's own traceback as text; empty if it left none.
    """

    def __init__(
        self, message: str, worker: int = -1, envs: tuple[int, ...] = (), remote_traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.worker, self.envs, self.remote_traceback = worker, envs, remote_traceback


class NumericsError(DingLiteError, ArithmeticError):
    """Raised when a loss or a gradient is not finite; the parameters are as they were before it.

    Attributes:
        dump: the minibatch and the policy's state, to take the step again; None where there was no step.
    """

    exit_code = 4

    def __init__(self, message: str, dump: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.dump = dump


class CheckpointError(DingLiteError, OSError):
    """Raised when a checkpoint is damaged, foreign, or belongs to another model or run."""

    exit_code = 5


def told(error: BaseException) -> str:
    """Returns an exception in words, with the last line of the user's own code that it went through."""
    try:
        said = str(error)
    except Exception as second:
        said = f"(its __str__ raises {type(second).__name__})"
    if isinstance(error, DingLiteError):
        return said
    said = f"{type(error).__name__}: {said}" if said else type(error).__name__
    where = _last_line(error.__traceback__)
    return f"{said} (at {where})" if where else said


def _last_line(traceback: TracebackType | None) -> str:
    """Returns file and line of the innermost frame that is neither installed nor ours; "" without one."""
    found = ""
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if not file.startswith(NOT_THE_USERS):
            found = f"{os.path.basename(file)}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return found
