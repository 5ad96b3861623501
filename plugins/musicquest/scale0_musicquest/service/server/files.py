"""Files of the music folder, opened so that nothing leads out of it, and written so that they survive a crash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple

from scale0_core.api import files
from scale0_musicquest.names import name_fault

SUFFIXES = (".wav", ".ogg", ".flac", ".mp3")
PIECE = 1024 * 1024
"""Bytes read at a time."""

_NOT_THERE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ENXIO, errno.ENAMETOOLONG}


class ShelfError(Exception):
    """Something about the songs on disk cannot be done; the text says what and why."""


class SongMissingError(ShelfError):
    """There is no such song, or it is no longer what it was."""


class NoRoomError(ShelfError):
    """There is no room for a replica, even without all others."""


class DamagedError(ShelfError):
    """A replica is not the song it should be."""


class Mark(NamedTuple):
    """By what a changed file is known."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Mark:
        """Take it from what the system knows of a file."""
        return cls(status.st_size, status.st_mtime_ns)


def song_fault(name: str) -> str:
    """Say why no song can have this name; nothing when it can."""
    fault = name_fault(name)
    if not fault and not name.lower().endswith(SUFFIXES):
        return f"a song is a file that ends in {', '.join(SUFFIXES)}"
    return fault


def open_song(folder: Path, name: str) -> int:
    """Open a file of a folder to read it. Only a regular file: no link, no pipe, nothing outside."""
    if fault := song_fault(name):
        raise SongMissingError(f"no song can be called that: {fault}")
    try:
        # a pipe would wait for a writer, so it must not wait
        descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in _NOT_THERE:
            raise SongMissingError(f"{name} cannot be opened: {error.strerror}") from error
        raise failed(f"{name} cannot be opened", error) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SongMissingError(f"{name} is not a regular file")
    return descriptor


def read_at(descriptor: int, offset: int, size: int) -> bytes:
    """Read ``size`` bytes at an offset, or as many as there are."""
    pieces = []
    while size > 0 and (piece := os.pread(descriptor, size, offset)):
        pieces.append(piece)
        offset, size = offset + len(piece), size - len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def create(path: Path) -> None:
    """Make an empty file, in place of one that may be there."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600))


def write_at(path: Path, offset: int, data: bytes) -> None:
    """Write at an offset of a file that is there."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        files.write_all(descriptor, data, offset)
    finally:
        os.close(descriptor)


def digest_and_sync(path: Path) -> str:
    """Make a file's bytes safe, and give their SHA-256."""
    digest = hashlib.sha256()
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        files.sync_file(descriptor)
        offset = 0
        while piece := os.pread(descriptor, PIECE, offset):
            digest.update(piece)
            offset += len(piece)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def failed(what: str, error: OSError) -> ShelfError:
    """Make one error of what was to be done and what the system says."""
    hint = "; make room on the disk" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return ShelfError(f"{what}: {error.strerror or error}{hint}")
