"""A disk in memory that forgets, at a crash, what was not yet synced."""

from __future__ import annotations

import errno
import math
import os
from random import Random
from typing import TypeAlias

import attrs

Change: TypeAlias = tuple[int, bytes | None]
"""Bytes written at an offset; None instead of bytes: the file was cut there."""


class DiskCrashed(BaseException):
    """The machine went down in the middle of a job.

    Not an Exception: it stands for the end of the process, so nothing but the simulation may catch it.
    """


@attrs.define
class _File:
    """One file: what programs see, what is safe, and the changes between the two, oldest first."""

    content: bytearray = attrs.field(factory=bytearray)
    safe: bytearray = attrs.field(factory=bytearray)
    changes: list[Change] = attrs.field(factory=list)

    def change(self, offset: int, data: bytes | None) -> None:
        _apply(self.content, offset, data)
        self.changes.append((offset, data))

    def sync(self) -> None:
        for offset, data in self.changes:
            _apply(self.safe, offset, data)
        self.changes.clear()

    def crash(self, random: Random) -> None:
        survives = random.randint(0, sum(_weight(data) for _, data in self.changes))
        for offset, data in self.changes:
            if survives < _weight(data):
                if data is not None:
                    _apply(self.safe, offset, data[:survives])
                break
            survives -= _weight(data)
            _apply(self.safe, offset, data)
        self.content[:] = self.safe
        self.changes.clear()


class SimDisk:
    """The files of one simulated node.

    Bytes are safe once ``fsync`` has returned. A crash keeps, of all changes to a file since then, the oldest ones
    up to a random byte. Names (creation, rename, remove) are safe at once, so renaming a file that was not synced
    leaves a torn file under the new name, as on a real disk. A write for which there is no room is cut short, then
    fails.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        """How many bytes all files may have together; None for any number."""
        self._files: dict[str, _File] = {}
        self._error: OSError | None = None
        self._left: int | None = None
        self.operations = 0

    def append(self, path: str, data: bytes) -> int:
        """Write at the end of a file, which is created if need be; returns the offset written at."""
        self._operate()
        file = self._files.setdefault(path, _File())
        offset = len(file.content)
        self._change(file, offset, bytes(data))
        return offset

    def write(self, path: str, data: bytes, offset: int = 0) -> None:
        """Write at an offset of a file, which is created if need be; the rest of it stays."""
        self._operate()
        self._change(self._files.setdefault(path, _File()), offset, bytes(data))

    def allocate(self, path: str, size: int) -> None:
        """Have a file, which is created if need be, take up ``size`` bytes on the disk; safe at once."""
        self._operate()
        file = self._files.setdefault(path, _File())
        more = max(0, size - len(file.content))
        if more > self._room():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        file.content.extend(bytes(more))
        file.safe.extend(bytes(max(0, size - len(file.safe))))

    def truncate(self, path: str, size: int = 0) -> None:
        """Cut a file to ``size`` bytes."""
        self._operate()
        self._file(path).change(size, None)

    def fsync(self, path: str) -> None:
        """Make all that was written to a file safe."""
        self._operate()
        self._file(path).sync()

    def rename(self, old: str, new: str) -> None:
        """Give a file another name, replacing what had it."""
        self._operate()
        file = self._file(old)
        del self._files[old]
        self._files[new] = file

    def remove(self, path: str) -> None:
        """Remove a file."""
        self._operate()
        self._file(path)
        del self._files[path]

    def read(self, path: str, offset: int = 0, size: int | None = None) -> bytes:
        """Read a file, or ``size`` bytes of it."""
        content = self._file(path).content
        return bytes(content[offset:] if size is None else content[offset : offset + size])

    def size(self, path: str) -> int:
        """Tell how long a file is."""
        return len(self._file(path).content)

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file."""
        return path in self._files

    def names(self, prefix: str = "") -> list[str]:
        """Give the names of all files that start with ``prefix``, sorted."""
        return sorted(path for path in self._files if path.startswith(prefix))

    def fail_next(self, error: OSError) -> None:
        """Let the next change or fsync fail with ``error``, such as a full disk."""
        self._error = error

    def crash_after(self, operations: int) -> None:
        """Let the machine go down after so many changes and fsyncs: the next raises ``DiskCrashed``."""
        self._left = operations

    def crash(self, random: Random) -> None:
        """Forget what a crash forgets; afterwards the disk works again."""
        self._left = self._error = None
        for file in self._files.values():
            file.crash(random)

    @property
    def used(self) -> int:
        """Return how many bytes all files have."""
        return sum(len(file.content) for file in self._files.values())

    def _room(self) -> float:
        return math.inf if self.capacity is None else self.capacity - self.used

    def _change(self, file: _File, offset: int, data: bytes) -> None:
        growth = max(0, offset + len(data) - len(file.content))
        room = self._room() if growth else math.inf
        if growth <= room:
            file.change(offset, data)
            return
        fits = len(data) - int(growth - max(0, room))
        if fits > 0:
            file.change(offset, data[:fits])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _operate(self) -> None:
        if self._left is not None:
            if self._left == 0:
                raise DiskCrashed
            self._left -= 1
        self.operations += 1
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _file(self, path: str) -> _File:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(2, "no such file on the simulated disk", path) from None


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    if data is None:
        del content[offset:]
    else:
        content[offset : offset + len(data)] = data


def _weight(data: bytes | None) -> int:
    return 1 if data is None else len(data)
