"""Files that are there whole or not at all, and what durable means.

A thing is *durable* when a power cut takes nothing of it back: not its bytes, not its name, not the folders that were
made for it. A function with ``durable=True`` returns when that is so, or raises OSError. Without it, readers and a
process that is killed still see a file whole or not at all, but after a power cut it may be the old one, or empty.
"""

# does I/O: files, and their age

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

PRIVATE = 0o600
"""The rights of a file that only its owner may read; the user's umask takes from these and any other."""

LEFT_BEHIND = 600.0
"""Seconds after which a file that is not in its place is taken for one of a process that was killed."""

if sys.platform == "darwin":
    from fcntl import F_FULLFSYNC, fcntl

    def sync_file(descriptor: int) -> None:
        """Make the bytes of an open file durable."""
        fcntl(descriptor, F_FULLFSYNC)  # fsync leaves them in the disk's memory

else:

    def sync_file(descriptor: int) -> None:
        """Make the bytes of an open file durable."""
        os.fdatasync(descriptor)


def sync_path(path: Path) -> None:
    """Make the bytes of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path, *, durable: bool, mode: int = 0o700) -> None:
    """Make a folder and those above it that are missing."""
    if folder.is_dir():
        return
    make_folder(folder.parent, durable=durable, mode=mode)
    folder.mkdir(mode=mode, exist_ok=True)
    if durable:
        sync_path(folder.parent)


def put_in_place(fresh: Path, path: Path, *, durable: bool) -> None:
    """Give a finished file the name of another, which it replaces; its bytes must be durable already."""
    fresh.replace(path)
    if durable:
        sync_path(path.parent)


def put_in_new_place(fresh: Path, path: Path, *, durable: bool) -> None:
    """Give a finished file a name that no other has; raise FileExistsError where there is one, even if it just came."""
    try:
        os.link(fresh, path, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without links: as good as can be there
        if os.path.lexists(path):
            raise FileExistsError(str(path)) from None
        fresh.rename(path)
    else:
        fresh.unlink()
    if durable:
        sync_path(path.parent)


@contextmanager
def new_file(path: Path, *, durable: bool, mode: int = PRIVATE) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of ``path`` when it is written; after an error nothing of it is left.

    Folders that are missing are made, with the rights of the file and those to enter them.
    """
    make_folder(path.parent, durable=durable, mode=mode | (mode & 0o444) >> 2)
    beginning = f".{path.name[:40]}-"  # together with the rest never longer than a name may be
    beside = path.with_name(beginning + secrets.token_hex(8))
    _remove_leftovers(path.parent, beginning)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            if durable:
                file.flush()
                sync_file(descriptor)
        put_in_place(beside, path, durable=durable)
    except BaseException:
        with suppress(OSError):  # it is in its place, or cannot be removed
            beside.unlink()
        raise


def write_atomically(path: Path, data: bytes | str, *, durable: bool, mode: int = PRIVATE) -> None:
    """Write a file anew, all of it or nothing; text as UTF-8."""
    with new_file(path, durable=durable, mode=mode) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def _remove_leftovers(folder: Path, beginning: str) -> None:
    """Remove what writes that were killed have left; a write that still goes on is younger than that."""
    for left in os.scandir(folder):
        if left.name.startswith(beginning):
            with suppress(OSError):  # another process may be at it as well
                if time.time() - left.stat().st_mtime > LEFT_BEHIND:
                    Path(left).unlink()


def write_all(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    """Write all of the data at an offset; when it fails, such as on a full disk, a beginning of it may be there."""
    left = memoryview(data)
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
