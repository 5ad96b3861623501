"""The music folder: which songs there are, what their tags and hashes say, their bytes, and replicas of others' songs.

Songs are the regular files of the folder itself, by their suffix; links are never followed. Everything here waits for
the disk, so it runs in jobs, and every method may be called from several threads at once.
"""

# does I/O: the music folder; run in jobs only

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import attrs

from scale0_core.api import MIB, printable
from scale0_musicquest.service.server import remembered
from scale0_musicquest.service.server.files import (
    PIECE,
    SUFFIXES,
    Mark,
    ShelfError,
    SongMissingError,
    failed,
    open_song,
    read_at,
    song_fault,
)
from scale0_musicquest.service.server.remembered import Known
from scale0_musicquest.service.server.replicas import Replicas
from scale0_musicquest.service.server.tags import read_tags
from scale0_musicquest.songs import MAX_SIZE, Song

REPLICAS = ".replicas"
MOST_READ = MIB
MOST_SONGS = 1_000
"""Songs that one scan tells of at most, so that whoever takes them in is not held up."""
TAGS_COST = 64 * 1024
"""Bytes of a scan's budget that the tags of a song count for."""
SAVE_AFTER = 1024 * MIB
"""Bytes hashed after which the hashes are written down, though there is more to do."""
FRESH_NS = 2_000_000_000
"""A file written so shortly ago may change again without a later time; it is hashed once more by the next scan."""


@attrs.frozen
class Scan:
    """What a scan has found: songs that are new or have changed, names of those that are gone."""

    added: list[Song]
    removed: list[str]
    complete: bool
    """Whether all was looked at; otherwise the next scan goes on where this one ended."""
    seconds: float
    problems: list[str] = attrs.field(factory=list)
    """Sentences about files that cannot be songs, each told once."""


@attrs.define
class _Candidate:
    """A file that is new or has changed, and how far it is hashed."""

    name: str
    replica: bool
    mark: Mark
    expected: Song | None = None
    """What a replica was when it was last looked at; it must be that still."""
    offset: int = 0
    digest: hashlib._Hash = attrs.field(factory=hashlib.sha256)


class Shelf:
    """A folder of songs. ``state`` is the file in which hashes are remembered, ``quota`` the bytes for replicas."""

    def __init__(self, folder: Path, state: Path, quota: int) -> None:
        self.folder = folder
        self.replicas = Replicas(folder / REPLICAS, quota)
        self._state = state
        self._known: dict[str, Known] = {}  # what scans have told
        self._remembered: dict[tuple[str, bool], Known] = {}  # from before the restart
        self._waiting: deque[_Candidate] = deque()
        self._gone: deque[str] = deque()
        self._problems: dict[str, bool] = {}  # of this pass and the one before, and whether they are of this one
        self._news: list[str] = []
        self._unsaved = 0
        self._is_open = False
        self._scanning = threading.RLock()
        self._lock = threading.Lock()

    # --- scanning ---------------------------------------------------------------------------------------

    def scan(self, budget_bytes: int = 64 * MIB) -> Scan:
        """Look for new, changed and removed songs, hashing at most so many bytes; then call it again.

        A song is told as soon as its hash is known. A file that changes meanwhile is left for later.
        """
        started = time.monotonic()
        with self._scanning:
            self._open()
            if not self._waiting and not self._gone:
                self._list()
            removed = [self._gone.popleft() for _ in range(min(len(self._gone), MOST_SONGS))]
            added = self._take(max(1, budget_bytes), removed)
            complete = not self._waiting and not self._gone
            if self._unsaved and (complete or self._unsaved >= SAVE_AFTER):
                self._save_or_complain()
            news, self._news = self._news, []
        return Scan(added, removed, complete, time.monotonic() - started, news)

    def _open(self) -> None:
        if self._is_open:
            return
        with self._scanning:
            if not self.folder.is_dir():
                raise ShelfError(f"the music folder {self.folder} is not there")
            self.replicas.open()
            known = remembered.load(self._state)
            self._remembered = {(each.song.name, each.song.replica): each for each in known}
            self._is_open = True

    def _list(self) -> None:
        """Begin a pass: look at all files, and note what is gone and what must be looked into."""
        self._problems = {text: False for text, current in self._problems.items() if current}
        # what comes while the folders are read is not taken as gone
        with self._lock:
            known = set(self._known)
        accounted = set(self.replicas.names())
        own = dict(self._files(self.folder))
        copies = dict(self._files(self.replicas.folder)) if self.replicas.folder.is_dir() else {}
        for name in [name for name in copies if name in own]:
            self.replicas.adopt([(name, 0)])
            self.replicas.drop(name)  # an own song needs no replica
            del copies[name]
        self._account_for(copies, accounted)
        self._remembered = {
            (name, replica): each
            for (name, replica), each in self._remembered.items()
            if name in (copies if replica else own)
        }
        for name in self.replicas.shrink():
            copies.pop(name, None)
        gone = sorted(known - own.keys() - copies.keys())
        self._forget(gone)
        self._gone.extend(gone)
        for replica, files in ((False, own), (True, copies)):
            news = (_Candidate(name, replica, mark) for name, mark in sorted(files.items()))
            self._waiting.extend(candidate for candidate in news if not self._is_known(candidate))

    def _account_for(self, copies: dict[str, Mark], accounted: set[str]) -> None:
        """Have the replicas that are there in account, in the order in which they were used before the restart."""
        for name in accounted - copies.keys():
            self.replicas.forget(name)
        before = [name for name, replica in self._remembered if replica and name in copies]
        order = dict.fromkeys([*sorted(copies.keys() - set(before)), *before])
        self.replicas.adopt((name, copies[name].size) for name in order if name not in accounted)

    def _files(self, folder: Path) -> Iterator[tuple[str, Mark]]:
        """Give the files of a folder that may be songs."""
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.name.lower().endswith(SUFFIXES):
                        continue
                    try:
                        status, regular = entry.stat(follow_symlinks=False), entry.is_file(follow_symlinks=False)
                    except OSError:
                        continue  # gone meanwhile
                    fault = song_fault(entry.name) if regular else "only regular files are, and links never"
                    if not fault and status.st_size > MAX_SIZE:
                        fault = f"it has more than {MAX_SIZE} bytes"
                    if fault:
                        self._complain(f"{printable(os.fsencode(entry.name))} is not a song: {fault}")
                    else:
                        yield entry.name, Mark.of(status)
        except OSError as error:
            raise failed(f"the folder {folder} cannot be read", error) from error

    def _is_known(self, candidate: _Candidate) -> bool:
        known = self._known.get(candidate.name)
        return (
            known is not None
            and known.song.replica == candidate.replica
            and known.mark == candidate.mark
            and known.settled
        )

    def _take(self, budget: int, removed: list[str]) -> list[Song]:
        """Look into files that wait, as far as the budget goes."""
        added: list[Song] = []
        while self._waiting and budget > 0 and len(added) < MOST_SONGS:
            candidate = self._waiting[0]
            known = self._remembered.pop((candidate.name, candidate.replica), None)
            if known is not None and known.mark == candidate.mark:
                self._waiting.popleft()
                self._tell(known, added)
                continue
            known = known or self._known.get(candidate.name)
            if known is not None and candidate.replica and known.song.replica:
                candidate.expected = known.song
            try:
                spent, done = self._look_into(candidate, budget, added, removed)
            except ShelfError as error:
                if not isinstance(error.__cause__, FileNotFoundError):  # gone meanwhile, which the next pass tells
                    self._complain(str(error))
                spent, done = TAGS_COST, True
            budget -= spent
            if done:
                self._waiting.popleft()
        return added

    def _look_into(self, candidate: _Candidate, budget: int, added: list[Song], removed: list[str]) -> tuple[int, bool]:
        """Hash some of a file; gives what it has cost, and whether the file is done with."""
        folder = self.replicas.folder if candidate.replica else self.folder
        started = candidate.offset
        with os.fdopen(open_song(folder, candidate.name), "rb", buffering=0) as file:
            try:
                finished = self._hash_some(file.fileno(), candidate, budget)
                if Mark.of(os.fstat(file.fileno())) != candidate.mark:
                    return candidate.offset - started, True  # it changes just now: left for the next pass
                if not finished:
                    return candidate.offset - started, False
                tags = read_tags(file)
            except OSError as error:
                raise failed(f"{candidate.name} cannot be read", error) from error
        song = Song(candidate.name, candidate.mark.size, candidate.digest.hexdigest(), *tags, candidate.replica)
        with self._lock:
            self._unsaved += candidate.offset + 1
        if candidate.expected is None or candidate.expected.sha256 == song.sha256:
            # the tags of a replica are those that its holder told
            self._tell(Known(candidate.expected or song, candidate.mark, self._is_settled(candidate)), added)
        else:
            self._complain(f"the replica of {song.name} has changed on disk and is removed")
            self.drop(song.name)
            removed.append(song.name)
        return candidate.offset - started + TAGS_COST, True

    @staticmethod
    def _hash_some(descriptor: int, candidate: _Candidate, budget: int) -> bool:
        """Hash the next bytes of a file; says whether these were the last."""
        while budget > 0:
            piece = os.pread(descriptor, min(PIECE, budget), candidate.offset)
            if not piece:
                return True
            candidate.digest.update(piece)
            candidate.offset += len(piece)
            budget -= len(piece)
        return candidate.offset >= candidate.mark.size

    def _is_settled(self, candidate: _Candidate) -> bool:
        """Say whether a later change would give the file another time; a file is doubted once only."""
        known = self._known.get(candidate.name)
        doubted = known is not None and not known.settled and known.mark == candidate.mark
        return doubted or time.time_ns() - candidate.mark.mtime_ns > FRESH_NS

    def _tell(self, known: Known, added: list[Song]) -> None:
        with self._lock:
            before = self._known.get(known.song.name)
            self._known[known.song.name] = known
        if before is None or before.song != known.song:
            added.append(known.song)

    def _complain(self, text: str) -> None:
        """Tell of a problem, but not in each pass again."""
        if text not in self._problems:
            self._news.append(text)
        self._problems[text] = True

    # --- reading ----------------------------------------------------------------------------------------

    def read(self, name: str, offset: int, size: int) -> bytes:
        """Read ``size`` bytes of a song, at most 1 MiB and never past its end; at the end there are none.

        A file that is no longer the one whose hash was told is missing, until a scan has seen it.
        """
        try:
            descriptor, replica = open_song(self.folder, name), False
        except SongMissingError:
            descriptor, replica = open_song(self.replicas.folder, name), True
        try:
            status = os.fstat(descriptor)
            known = self._known.get(name)
            if known is not None and (known.mark, known.song.replica) != (Mark.of(status), replica):
                raise SongMissingError(f"{name} has changed")
            if replica:
                self.replicas.used(name)
            if not 0 <= offset < status.st_size:
                return b""
            return read_at(descriptor, offset, min(size, MOST_READ, status.st_size - offset))
        except OSError as error:
            raise failed(f"{name} cannot be read", error) from error
        finally:
            os.close(descriptor)

    # --- replicas ---------------------------------------------------------------------------------------

    def room(self, size: int) -> list[str]:
        """Make room for a replica of so many bytes; gives the names of those that had to go."""
        self._open()
        return self._forget_copies(self.replicas.room(size))

    def begin(self, song: Song) -> list[str]:
        """Begin a replica; gives the names of those that had to go for it."""
        self._open()
        if not song_fault(song.name) and os.path.lexists(self.folder / song.name):
            raise ShelfError(f"{song.name} is a song of this server")
        return self._forget_copies(self.replicas.begin(song))

    def write(self, name: str, offset: int, data: bytes) -> None:
        """Write a piece of a replica that was begun."""
        self.replicas.write(name, offset, data)

    def finish(self, song: Song) -> Song:
        """Check a replica and put it in place; gives the song, as a replica."""
        copy = self.replicas.finish(song)
        try:
            mark = Mark.of((self.replicas.folder / song.name).stat())
        except OSError as error:
            raise failed(f"the replica of {song.name} is gone already", error) from error
        with self._lock:
            before = self._known.get(song.name)
            if before is None or before.song.replica:
                self._known[song.name] = Known(copy, mark)
                self._unsaved += 1
                return copy
        self.replicas.drop(song.name)
        raise ShelfError(f"{song.name} is a song of this server")

    def abort(self, name: str) -> None:
        """Give up a replica that was begun; does nothing otherwise."""
        self.replicas.abort(name)

    def drop(self, name: str) -> bool:
        """Remove a replica; says whether it was there. Own songs are never removed."""
        self._open()
        dropped = self.replicas.drop(name)
        if dropped:
            self._forget_copies([name])
        return dropped

    def _forget_copies(self, names: list[str]) -> list[str]:
        self._forget([name for name in names if (known := self._known.get(name)) and known.song.replica])
        return names

    def _forget(self, names: list[str]) -> None:
        with self._lock:
            for name in names:
                self._known.pop(name, None)
            self._unsaved += len(names)

    # --- remembering ------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write down the hashes, and which replicas were used when; scans do so as well, now and then."""
        with self._scanning:
            with self._lock:
                known = dict(self._known)
                self._unsaved = 0
            for each in self._remembered.values():  # not come to yet in this run
                known.setdefault(each.song.name, each)
            recently = {name: place for place, name in enumerate(self.replicas.names())}
            ordered = sorted(known.values(), key=lambda each: recently.get(each.song.name, -1))
            try:
                remembered.save(self._state, (each for each in ordered if each.settled))
            except OSError as error:
                with self._lock:
                    self._unsaved += 1
                raise failed(f"the hashes of songs cannot be written to {self._state}", error) from error

    def _save_or_complain(self) -> None:
        try:
            self.save()
        except ShelfError as error:
            self._complain(str(error))
