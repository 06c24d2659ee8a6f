"""Files and folders that are whole or not there, on the disk and not only on their way to it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


def read_bounded(file: Path, limit: int | None, expected: int | None = None) -> bytes:
    """Returns a file's bytes, having looked at its kind and its size before reading any.

    Args:
        file: a regular file; a link is none, and a pipe would keep us waiting for ever.
        limit: bytes that it may have at most.
        expected: bytes that it must have.

    Raises:
        OSError: in words that follow the file's name.
    """
    try:
        if file.is_symlink() or not file.is_file():
            raise OSError("is missing")
        size = file.stat().st_size
        if expected is not None and size != expected:
            raise OSError(f"has {size} bytes, its manifest says {expected}")
        if limit is not None and size > limit:
            raise OSError(f"has {size} bytes, and at most {limit} are read")
        with file.open("rb") as stream:
            return stream.read(size)
    except (MemoryError, OverflowError) as error:
        raise OSError("is too large for the memory of this machine") from error
    except OSError as error:
        raise OSError(f"cannot be read: {error.strerror}" if error.errno else str(error)) from error


def write_synced(file: Path, data: bytes) -> None:
    """Writes a file and waits until the disk has it."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Makes renames inside ``folder`` survive a power loss; Windows has no such call."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_folder(new: Path, old: Path) -> None:
    """Puts ``new`` in the place of ``old``, which may not exist."""
    if not old.exists():
        new.rename(old)
    elif _exchange(new, old):
        shutil.rmtree(new)
    else:
        # Without an atomic exchange the old one waits aside until the new one is in place.
        aside = old.with_name(f".{old.name}.old")
        shutil.rmtree(aside, ignore_errors=True)
        old.rename(aside)
        try:
            new.rename(old)
        except BaseException:
            aside.rename(old)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders in one step, where the system can (Linux: renameat2, RENAME_EXCHANGE)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a temporary path that becomes ``file`` when the block ends without an error."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)


def open_locked(file: Path) -> TextIO:
    """Opens ``file`` to append to it, as long as no other process, or part of this one, has it so.

    The lock goes with the stream: when it is closed, or the process ends, by whatever signal.

    Raises:
        BlockingIOError: if it is taken.
        OSError: if it cannot be written to.
    """
    stream = file.open("a")
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.close()
            raise
        except OSError:  # a file system without locks; nothing is lost but the warning
            pass
    return stream
