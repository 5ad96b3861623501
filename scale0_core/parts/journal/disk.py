"""Where the journal keeps its files: a real folder, or in tests the disk of the simulation.

Used by jobs only, so never by two threads at once.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from scale0_core.parts import files

MOST_OPEN = 4
"""Files kept open; the journal writes to one and cuts or removes others now and then."""


class Disk(Protocol):
    """Files by name. What was written is safe when ``fsync`` has returned; names are safe at once."""

    def append(self, path: str, data: bytes) -> int:
        """Write at the end of a file, which is created if need be; returns the offset written at."""

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        """Write at an offset of a file, which is created if need be; the rest of it stays."""

    def allocate(self, path: str, size: int) -> None:
        """Have a file, which is created if need be, take up ``size`` bytes on the disk."""

    def truncate(self, path: str, size: int = 0) -> None:
        """Cut a file to ``size`` bytes."""

    def fsync(self, path: str) -> None:
        """Make all that was written to a file safe."""

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""

    def remove(self, path: str) -> None:
        """Remove a file."""

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read a file, or ``size`` bytes of it."""

    def size(self, path: str) -> int:
        """Tell how long a file is."""

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""

    def names(self, prefix: str = "") -> list[str]:
        """Give the names of all files that start with ``prefix``, sorted."""


class FolderDisk:
    """The files of one folder, which nobody but the owner can look into."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        self._folder = folder
        self._open: dict[str, int] = {}
        # names may be from a process that was killed before it made them safe
        with suppress(PermissionError):  # somebody else's folder, then it was there before
            files.sync_path(folder.parent)
        files.sync_path(folder)
        self._names_safe = True

    def append(self, path: str, data: bytes) -> int:
        """Write at the end of a file, which is created if need be; returns the offset written at.

        When it fails, such as on a full disk, a beginning of the data may be there.
        """
        descriptor = self._descriptor(path, create=True)
        offset = os.fstat(descriptor).st_size
        files.write_all(descriptor, data, offset)
        return offset

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        """Write at an offset of a file, which is created if need be; the rest of it stays."""
        files.write_all(self._descriptor(path, create=True), data, offset)

    def allocate(self, path: str, size: int) -> None:
        """Have a file, which is created if need be, take up ``size`` bytes; if that fails, it is as before."""
        descriptor = self._descriptor(path, create=True)
        before = os.fstat(descriptor).st_size
        if size <= before:
            return
        try:
            _allocate(descriptor, before, size - before)
        except OSError:
            os.ftruncate(descriptor, before)
            raise

    def truncate(self, path: str, size: int = 0) -> None:
        """Cut a file to ``size`` bytes."""
        os.ftruncate(self._descriptor(path), size)

    def fsync(self, path: str) -> None:
        """Make all that was written to a file safe, and its name if it is new."""
        files.sync_file(self._descriptor(path))
        if not self._names_safe:
            self._sync_names()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""
        self._close(old)
        self._close(new)
        self._path(old).replace(self._path(new))
        self._sync_names()

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._close(path)
        self._path(path).unlink()
        self._sync_names()

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read a file, or ``size`` bytes of it."""
        with self._path(path).open("rb") as file:
            file.seek(offset)
            return file.read(-1 if size is None else size)

    def size(self, path: str) -> int:
        """Tell how long a file is."""
        return self._path(path).stat().st_size

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""
        return self._path(path).is_file()

    def names(self, prefix: str = "") -> list[str]:
        """Give the names of all files that start with ``prefix``, sorted."""
        return sorted(path.name for path in self._folder.iterdir() if path.is_file() and path.name.startswith(prefix))

    def close(self) -> None:
        """Close all files; they are opened again when they are used."""
        for path in list(self._open):
            self._close(path)

    def _path(self, path: str) -> Path:
        if path in ("", ".", "..") or "/" in path:
            raise ValueError(f"not the name of a file in a folder: {path!r}")
        return self._folder / path

    def _descriptor(self, path: str, *, create: bool = False) -> int:
        descriptor = self._open.get(path)
        if descriptor is not None:
            return descriptor
        while len(self._open) >= MOST_OPEN:
            self._close(next(iter(self._open)))
        try:
            descriptor = os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            if not create:
                raise
            self._names_safe = False
            descriptor = os.open(self._path(path), os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        self._open[path] = descriptor
        return descriptor

    def _close(self, path: str) -> None:
        descriptor = self._open.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)

    def _sync_names(self) -> None:
        self._names_safe = False  # so that after a failure the next fsync tries again
        files.sync_path(self._folder)
        self._names_safe = True


def _allocate(descriptor: int, start: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, start, size)
    else:
        files.write_all(descriptor, bytes(size), start)
