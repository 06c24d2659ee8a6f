"""Files and folders that are either complete or absent, and that survive a power loss."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
import time
from pathlib import Path
from typing import TextIO

# Tries of a lock, since is_locked holds it for some microseconds, and seconds between them.
LOCK_TRIES, LOCK_SECONDS = 10, 0.01
MAX_JSON_BYTES = 2**26  # parsed JSON takes about thirty times its size: 2 GB at most
MAX_TEXT_BYTES = 2**30  # of a CSV file or a log
ANY_BYTES = "surrogateescape"  # keeps bytes that are not UTF-8 as they are
NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)  # Windows has neither
REFUSED = {
    errno.ELOOP: "is a link, and links in a run's folder are not followed; put a copy in its place",
    errno.ENXIO: "is not a file; remove it",
}


def regular(path: str, flags: int) -> int:
    """Opens a regular file, and no link: the ``opener`` of every file in a run's folder.

    Another person may have made the folder. A link could lead to a file of the user's, a device has no end,
    and a pipe could block forever.

    Raises:
        OSError: if there is something else in the place of the file.
    """
    try:
        descriptor = os.open(path, flags | NO_LINK, 0o666)
    except OSError as error:
        if error.errno in REFUSED:
            raise OSError(f"{path} {REFUSED[error.errno]}") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{path} {REFUSED[errno.ENXIO]}")
    return descriptor


def refuse_links(*folders: Path) -> None:
    """Raises OSError if one of these folders, which are in a run's folder, is a link."""
    for folder in folders:
        if folder.is_symlink():
            raise OSError(f"{folder} {REFUSED[errno.ELOOP]}")


def read_bounded(file: Path, limit: int | None = MAX_JSON_BYTES, expected: int | None = None) -> bytes:
    """Returns the bytes of a :func:`regular` file; checks its size before it reads them.

    Args:
        file: to read.
        limit: maximum number of bytes, or None.
        expected: exact number of bytes, or None.

    Raises:
        OSError: if the file cannot be read; the message names it.
    """
    try:
        with open(file, "rb", opener=regular) as stream:
            size = os.fstat(stream.fileno()).st_size
            if expected is not None and size != expected:
                raise OSError(f"{file} has {size} bytes, its manifest says {expected}")
            if limit is not None and size > limit:
                raise OSError(f"{file} has {size} bytes, and at most {limit} are read")
            return stream.read(size)
    except (MemoryError, OverflowError) as error:
        raise OSError(f"{file} is too large for the memory of this machine") from error


def write_synced(file: Path, data: bytes) -> None:
    """Writes a new file and waits until it is on the disk."""
    with open(file, "xb") as stream:
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
        remove(aside)
        old.rename(aside)
        try:
            new.rename(old)
        except BaseException:
            aside.rename(old)
            raise
        remove(aside)


def remove(path: Path) -> None:
    """Removes a folder or a file, of a link only the link itself; what cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def _exchange(a: Path, b: Path) -> bool:
    """Swaps two folders or links atomically, and returns whether that succeeded (Linux: renameat2)."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    at_cwd, exchange = -100, 2
    return renameat2(at_cwd, os.fsencode(a), at_cwd, os.fsencode(b), exchange) == 0


def write_whole(file: Path, data: bytes | str) -> None:
    """Replaces a file, or a link in its place, by one that is complete; after an error the old one stays."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        write_synced(temporary, data.encode(errors=ANY_BYTES) if isinstance(data, str) else data)
        temporary.replace(file)
        sync_folder(file.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_output(file: Path, data: bytes | str) -> None:
    """Writes a file that the user has named, whole: a link stays, and a device or a pipe is written to."""
    file = Path(os.path.realpath(file))
    if file.exists() and not file.is_file():
        file.write_bytes(data.encode() if isinstance(data, str) else data)
    else:
        write_whole(file, data)


def open_locked(file: Path) -> TextIO:
    """Opens ``file`` for appending and locks it against other processes, and against this one.

    The lock is released when the stream is closed or the process ends, whatever signal ends it.

    Raises:
        BlockingIOError: if the file is locked.
        OSError: if the file cannot be written to.
    """
    stream = open(file, "a", opener=regular)  # noqa: SIM115 - the caller closes it
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
        with open(file, "rb", opener=regular) as stream:
            fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
