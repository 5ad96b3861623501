"""Songs of others, kept for a while in a folder of their own: written piece by piece, within a quota."""

# does I/O: the folder of replicas; used by jobs on several threads

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import attrs

from scale0_core.api import files
from scale0_musicquest.service.server.files import (
    DamagedError,
    NoRoomError,
    ShelfError,
    create,
    digest_and_sync,
    failed,
    song_fault,
    write_at,
)
from scale0_musicquest.songs import Song

_PARTIAL = ".part-"
"""How the names of unfinished replicas begin; no song's name begins with a dot."""


class Replicas:
    """The folder of replicas. Who has been used least recently makes room for new ones."""

    def __init__(self, folder: Path, quota: int) -> None:
        self.folder = folder
        self._quota = quota
        self._sizes: OrderedDict[str, int] = OrderedDict()  # the least recently used first
        self._begun: dict[str, Song] = {}
        self._lock = threading.RLock()

    @property
    def taken(self) -> int:
        """What replicas take, also those that are being fetched, by the size they will have."""
        with self._lock:
            return sum(self._sizes.values()) + sum(song.size for song in self._begun.values())

    def names(self) -> list[str]:
        """Give all finished ones, the least recently used first."""
        with self._lock:
            return list(self._sizes)

    def open(self) -> None:
        """Remove what a crash has left unfinished; the folder itself is made with the first replica."""
        if self.folder.is_symlink():
            raise ShelfError(f"{self.folder} is a link; replicas need a folder of their own")
        try:
            for torn in self.folder.glob(f"{_PARTIAL}*"):
                torn.unlink()
        except OSError as error:
            raise failed(f"the folder of replicas {self.folder} cannot be used", error) from error

    def adopt(self, sizes: Iterable[tuple[str, int]]) -> None:
        """Take in replicas found on disk, the least recently used first; those that are known stay where they are."""
        with self._lock:
            for name, size in sizes:
                self._sizes[name] = size

    def forget(self, name: str) -> None:
        """Leave a replica out of account whose file is gone."""
        with self._lock:
            self._sizes.pop(name, None)

    def used(self, name: str) -> None:
        """Note that somebody has just read a replica."""
        with self._lock, suppress(KeyError):
            self._sizes.move_to_end(name)

    def room(self, size: int) -> list[str]:
        """Make room for so many bytes; gives the names of replicas that had to go."""
        with self._lock:
            if size > self._quota - sum(song.size for song in self._begun.values()):
                raise NoRoomError(f"{size} bytes do not fit into the {self._quota} bytes for replicas")
            return self._evict(self._quota - size)

    def _evict(self, most: int) -> list[str]:
        evicted = []
        while self._sizes and self.taken > most:
            name = next(iter(self._sizes))
            self.drop(name)
            evicted.append(name)
        return evicted

    def shrink(self) -> list[str]:
        """Evict what is beyond the quota, as after it was set lower."""
        with self._lock:
            return self._evict(self._quota)

    def begin(self, song: Song) -> list[str]:
        """Begin to fetch a replica, afresh if it was begun before; gives the names of those that had to go for it."""
        if fault := song_fault(song.name):
            raise ShelfError(f"no replica can be called that: {fault}")
        with self._lock:
            self.abort(song.name)
            if song.name in self._sizes:
                raise ShelfError(f"{song.name} is here already")
            evicted = self.room(song.size)
            try:
                self.folder.mkdir(mode=0o700, exist_ok=True)
                create(self._partial(song.name))
            except OSError as error:
                raise failed(f"a replica of {song.name} cannot be begun", error) from error
            self._begun[song.name] = song
            return evicted

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write a piece of a replica that was begun; pieces may come in any order, from several threads."""
        with self._lock:
            song = self._begun.get(name)
        if song is None:
            raise ShelfError(f"a replica of {name!r} has not been begun")
        if not 0 <= offset <= song.size - len(data):
            raise ShelfError(f"{len(data)} bytes at {offset} are beyond the {song.size} bytes of {name}")
        try:
            write_at(self._partial(name), offset, data)
        except OSError as error:
            raise failed(f"a piece of {name} cannot be written", error) from error

    def finish(self, song: Song) -> Song:
        """Check a replica and put it in place; one that is not the song is removed. Gives the song, as a replica."""
        with self._lock:
            begun = self._begun.get(song.name)
        if begun is None or (begun.size, begun.sha256) != (song.size, song.sha256):
            raise ShelfError(f"a replica of {song.name!r} has not been begun")
        partial = self._partial(song.name)
        try:
            size, digest = partial.stat().st_size, digest_and_sync(partial)
        except OSError as error:
            self.abort(song.name)
            raise failed(f"a replica of {song.name} cannot be finished", error) from error
        if (size, digest) != (song.size, song.sha256):
            self.abort(song.name)
            raise DamagedError(f"the replica of {song.name} is not the song: size or SHA-256 differ")
        return self._put_in_place(song, partial)

    def _put_in_place(self, song: Song, partial: Path) -> Song:
        with self._lock:
            if self._begun.pop(song.name, None) is None:
                raise ShelfError(f"the replica of {song.name} was given up meanwhile")
            try:
                files.put_in_place(partial, self.folder / song.name, durable=True)
            except OSError as error:
                with suppress(OSError):
                    partial.unlink()
                raise failed(f"a replica of {song.name} cannot be finished", error) from error
            self._sizes[song.name] = song.size
        return attrs.evolve(song, replica=True)

    def abort(self, name: str) -> None:
        """Give up a replica that was begun; does nothing otherwise."""
        with self._lock:
            if self._begun.pop(name, None) is not None:
                self._remove(self._partial(name))

    def drop(self, name: str) -> bool:
        """Remove a replica; says whether it was there."""
        with self._lock:
            if self._sizes.pop(name, None) is None:
                return False
            self._remove(self.folder / name)
            return True

    def _remove(self, path: Path) -> None:
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise failed(f"{path.name} cannot be removed", error) from error

    def _partial(self, name: str) -> Path:
        # of a fixed length, since a song's name may be as long as names can be
        return self.folder / (_PARTIAL + hashlib.sha256(name.encode()).hexdigest())
