"""Files and folders that are either complete or absent, and that survive a power loss."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

# Tries of a lock, since is_locked holds it for some microseconds, and seconds between them.
LOCK_TRIES, LOCK_SECONDS = 10, 0.01


def read_bounded(file: Path, limit: int | None, expected: int | None = None) -> bytes:
    """Returns a file's bytes; checks the kind and the size of the file before it reads them.

    Args:
        file: a regular file. A link is refused, and so is a pipe, which could block forever.
        limit: maximum number of bytes, or None.
        expected: exact number of bytes, or None.

    Raises:
        OSError: if the file cannot be read. The message continues a sentence that begins with its name.
    """
    try:
        if file.is_symlink():
            raise OSError("is a link, and links are not followed; put a copy of the file there")
        if not file.is_file():
            raise OSError("is not a file" if file.exists() else "is missing")
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
    """Writes a file and waits until it is on the disk."""
    with file.open("wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def sync_folder(folder: Path) -> None:
    """Waits until renames inside ``folder`` are on the disk; does nothing on Windows."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_folder(new: Path, old: Path) -> None:
    """Renames ``new`` to ``old``, and removes what was there, if anything: of a link only the link itself."""
    if not os.path.lexists(old):
        new.rename(old)
    elif _exchange(new, old):
        remove(new)
    else:
        # Without an atomic exchange the old folder keeps another name until the new one is in place.
        aside = old.with_name(f".{old.name}.old")
        remove(aside, ignore_errors=True)
        old.rename(aside)
        try:
            new.rename(old)
        except BaseException:
            aside.rename(old)
            raise
        remove(aside, ignore_errors=True)


def remove(path: Path, ignore_errors: bool = False) -> None:
    """Removes a folder, or a link and not the folder that it names.

    Args:
        path: of the folder.
        ignore_errors: leave what cannot be removed, or is not there.
    """
    if not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
        return
    with contextlib.suppress(*([OSError] if ignore_errors else [])):
        path.unlink()


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders or links atomically, and returns whether that succeeded (Linux: renameat2)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0


@contextlib.contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yields a temporary path, which replaces ``file`` if the block ends without an error.

    A link stays, and the file that it names is replaced. A device or a pipe is yielded itself.
    """
    file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file():
        yield file
        return
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        temporary.replace(file)
        sync_folder(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def open_locked(file: Path) -> TextIO:
    """Opens ``file`` for appending and locks it against other processes, and against this one.

    The lock is released when the stream is closed or the process ends, whatever signal ends it.

    Raises:
        BlockingIOError: if the file is locked.
        OSError: if the file cannot be written to.
    """
    stream = file.open("a")
    if os.name == "posix":
        import fcntl

        for tries_left in reversed(range(LOCK_TRIES)):
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not tries_left:
                    stream.close()
                    raise
                time.sleep(LOCK_SECONDS)
            except OSError:  # a file system without locks: two runs in the folder are not noticed
                break
    return stream


def is_locked(file: Path) -> bool:
    """Returns whether the lock of :func:`open_locked` is held, by this process or another.

    False where the system has no locks, or the file cannot be read. The lock is tried, and released at once.
    """
    if os.name != "posix":
        return False
    import fcntl

    try:
        with file.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
