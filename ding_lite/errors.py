"""The errors that ding_lite raises on purpose. Each has the exit code of the command line.

* DingLiteError            1
  x ConfigError            2   an unknown key or an invalid value in a config
  x RegistryError          2   a name that is not registered, or is registered twice
  x EnvError               3   an environment that cannot be made, or fails in a step
    . EnvContractError     3   an environment that breaks gymnasium's API or its own spaces
      - NotFiniteError     3   an observation or a reward that is not finite
    . EnvWorkerError       3   a worker process that died or hung, or whose environment raised
  x NumericsError          4   a loss or a gradient that is not finite
  x CheckpointError        5   a file that is not a checkpoint, or belongs to another run
    . ReplayError          5   open episodes of a checkpoint that cannot be restored
  x RankError              1   another process of a data-parallel run has ended
  x ContractError          2   a registered policy or model that breaks its base class's contract
"""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from traceback import walk_tb

# The errors to catch around calls of code outside of ding_lite: environments, config files, user modules.
# SystemExit is one of them, because sys.exit in that code would end a run without a message.
# KeyboardInterrupt is not: it comes from the user.
FOREIGN = (Exception, SystemExit)
OWN_PREFIX = os.path.dirname(__file__) + os.sep
# An error raised in these files comes from the arguments of their caller.
HELPERS = tuple(OWN_PREFIX + path for path in ("rl" + os.sep, os.path.join("data", "samples.py")))
# Frames whose file name begins with one of these are not code of the user.
LIBRARY_PREFIXES = (
    "<",  # frozen modules, and code without a file
    OWN_PREFIX,
    *(sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")),
)


class DingLiteError(Exception):
    """Base class of all errors that ding_lite raises on purpose."""

    exit_code = 1


class ConfigError(DingLiteError, ValueError):
    """Raised when a config has an unknown key or an invalid value."""

    exit_code = 2


class RegistryError(DingLiteError, LookupError):
    """Raised when a name is not registered, or is registered twice."""

    exit_code = 2


class ContractError(DingLiteError, TypeError):
    """Raised when a registered class breaks the contract of its base class."""

    exit_code = 2


class RankError(DingLiteError, RuntimeError):
    """Raised when another process of a data-parallel run has ended."""


class EnvError(DingLiteError, RuntimeError):
    """Raised when an environment cannot be made, or fails in ``reset`` or ``step``."""

    exit_code = 3


class EnvContractError(EnvError):
    """Raised when an environment breaks gymnasium's API, or returns values outside of its spaces."""


class NotFiniteError(EnvContractError):
    """Raised when an observation or a reward is nan or infinite."""


class EnvWorkerError(EnvError):
    """Raised when a worker process died or hung, or an environment in it raised."""


class NumericsError(DingLiteError, ArithmeticError):
    """Raised when a loss or a gradient is not finite. That step does not change the parameters."""

    exit_code = 4


class CheckpointError(DingLiteError, OSError):
    """Raised when a file is not a checkpoint, is damaged, or belongs to another model or run."""

    exit_code = 5


class ReplayError(CheckpointError):
    """Raised when the open episodes of a checkpoint cannot be restored; new ones can start instead."""


def require(package: str, what: str, extra: str = "") -> None:
    """Raises a ConfigError with the install line if a package is missing.

    Args:
        package: to look for; it is not imported.
        what: needs the package, such as "a video".
        extra: of ding_lite that installs the package; "": none does.
    """
    if importlib.util.find_spec(package) is None:
        install = f'"ding_lite[{extra}]"' if extra else package
        raise ConfigError(f"{what} needs the package {package}: pip install {install}")


def error_text(error: BaseException) -> str:
    """Returns the message of an exception, to be quoted in another message.

    The message of an exception from outside of ding_lite gets its type in front, and at its end the file
    and line of the user's code that raised it, if the traceback has such a line.
    """
    message, name = str(error), type(error).__name__
    if isinstance(error, DingLiteError):
        return message
    message = f"{name}: {message}" if message else name
    place = ""
    for frame, line in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY_PREFIXES):
            place = f"{os.path.basename(file)}:{line}"
    return f"{message} (at {place})" if place else message


def counted(number: int, noun: str) -> str:
    """Returns "1 run", or "1,200 runs"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def is_of_user(error: BaseException) -> bool:
    """Returns whether an exception was raised by the user's code, or by another library that it called.

    This is so if no frame of ding_lite is deeper than the innermost frame of the user's code, except for
    frames of ``HELPERS``, which the user's code calls.
    """
    of_user = False
    for frame, _ in walk_tb(error.__traceback__):
        file = frame.f_code.co_filename
        if not file.startswith(LIBRARY_PREFIXES):
            of_user = True
        elif file.startswith(OWN_PREFIX) and not file.startswith(HELPERS):
            of_user = False
    return of_user
