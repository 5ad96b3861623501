"""Requests and replies on disk, in SQLite (docs/adr/0018-titanic-in-sqlite.md).

Everything here blocks, so it is called from jobs, all under one key: one thread at a time. Times on disk are those of
the wall clock, as they must be understood after a restart.
"""
# does I/O: it is run by jobs, and makes ids of time and chance

from __future__ import annotations

import secrets
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from struct import Struct
from typing import Any, ClassVar, NamedTuple, TypeAlias
from zlib import crc32

from scale0_core.api import MIB, Frames, Scale0Error, files

APPLICATION_ID = 0x53305449
"""Marks a file as ours: S0TI."""
VERSION = 1
LOCK_WAIT = 1.0
"""Seconds for which another process that holds the file is waited for."""
WAL_BYTES = 16 * MIB
"""To so many bytes the write-ahead log is cut when a large group has made it larger."""
VACUUM_OVER = 1024
"""So many pages may be free before the file is made shorter."""
VACUUM_PAGES = 1024
"""So many are given back at a time, so that nobody waits long for it."""
LENGTH = Struct(">I")

SCHEMA = f"""
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    uuid TEXT NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    created REAL NOT NULL,
    finished REAL,
    size INTEGER NOT NULL,
    service BLOB NOT NULL,
    body BLOB NOT NULL,
    reply BLOB
);
CREATE INDEX waiting ON requests (created) WHERE state = 0;
CREATE INDEX kept ON requests (finished) WHERE state <> 0;
"""


class StoreError(Scale0Error):
    """The requests on disk cannot be used."""


class State(IntEnum):
    """How far a request on disk has come."""

    WAITING = 0
    DONE = 1
    GIVEN_UP = 2


# --- what can be done -------------------------------------------------------------------------------------------------


class Put(NamedTuple):
    """Store a request; gives nothing."""

    ident: str
    service: bytes
    body: Frames


class Load(NamedTuple):
    """Read the body of a request; gives None when there is no such request, or it is done."""

    ident: str


class Done(NamedTuple):
    """Store the reply to a request, whose body is needed no longer; gives the bytes by which all has grown."""

    ident: str
    reply: Frames


class Read(NamedTuple):
    """Read the reply to a request; gives a ``Found``, or None when there is no such request."""

    ident: str


class Close(NamedTuple):
    """Delete a request and its reply; gives a ``Freed``."""

    ident: str


class Expire(NamedTuple):
    """Delete replies that nobody closed for so many seconds, and give up requests as old; gives a ``Freed``."""

    seconds: float


Operation: TypeAlias = Put | Load | Done | Read | Close | Expire


class Found(NamedTuple):
    """A request that was found; ``reply`` is empty unless it is done."""

    state: State
    reply: Frames = ()


class Freed(NamedTuple):
    """What is gone: requests with their bytes; and those that nobody will try any more, though they are still known."""

    rows: int
    bytes: int
    given_up: tuple[str, ...] = ()


class Opened(NamedTuple):
    """What was found on disk: requests that wait, by uuid and service, oldest first; and how much there is in all."""

    waiting: list[tuple[str, bytes]]
    rows: int
    bytes: int


# --- the store --------------------------------------------------------------------------------------------------------


class Store:
    """A file of requests and replies. Nobody else can have it open at the same time."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._connection: sqlite3.Connection | None = None

    def open(self) -> Opened:
        """Open the file, make it where there is none, and tell what it holds; StoreError when that cannot be done."""
        self.close()
        try:
            files.make_folder(self._path.parent, durable=True)
            self._connection = sqlite3.connect(
                self._path, timeout=LOCK_WAIT, isolation_level=None, check_same_thread=False
            )
            return self._opened(self._connection)
        except BaseException as error:  # a damaged file raises almost anything, such as UnicodeDecodeError
            self.close()
            raise (self._problem(error) if isinstance(error, Exception) else error) from error

    def close(self) -> None:
        """Close the file. It can be opened again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def commit(self, operations: Sequence[Operation]) -> list[Any]:
        """Carry out operations in one transaction; when this returns, all is safe on disk.

        Gives a value for each, or an exception where that one alone failed. When it raises, nothing was changed.
        """
        connection = self._connection
        if connection is None:
            raise StoreError(
                "requests cannot be stored", "the store is not open", "nothing was stored", "try again later"
            )
        try:
            connection.execute("BEGIN IMMEDIATE")
            values = [self._one(connection, operation) for operation in operations]
            connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise (self._problem(error) if isinstance(error, Exception) else error) from error
        if any(isinstance(value, Freed) and value.rows for value in values):
            self._shorten(connection)
        return values

    def _one(self, connection: sqlite3.Connection, operation: Operation) -> Any:
        try:
            return self.ACTIONS[type(operation)](self, connection, operation)
        except Exception as error:
            if not connection.in_transaction:
                raise  # SQLite has taken back the whole group: the disk is full, or broken
            return self._problem(error)

    def _put(self, connection: sqlite3.Connection, put: Put) -> None:
        body = pack(put.body)
        connection.execute(
            "INSERT INTO requests (uuid, state, created, size, service, body) VALUES (?, ?, ?, ?, ?, ?)",
            (put.ident, State.WAITING, self._clock(), weight(put.service, put.body), put.service, body),
        )

    def _load(self, connection: sqlite3.Connection, load: Load) -> Frames | None:
        row = connection.execute("SELECT body FROM requests WHERE uuid = ? AND state <> 1", load).fetchone()
        return unpack(row[0]) if row is not None else None

    def _done(self, connection: sqlite3.Connection, done: Done) -> int:
        row = connection.execute(
            "SELECT number, size, service FROM requests WHERE uuid = ? AND state <> 1", (done.ident,)
        ).fetchone()
        if row is None:
            return 0  # closed meanwhile
        number, before, service = row
        size = weight(service, done.reply)
        connection.execute(
            "UPDATE requests SET state = ?, finished = ?, size = ?, body = x'', reply = ? WHERE number = ?",
            (State.DONE, self._clock(), size, pack(done.reply), number),
        )
        return int(size - before)

    def _read(self, connection: sqlite3.Connection, read: Read) -> Found | None:
        row = connection.execute("SELECT state, reply FROM requests WHERE uuid = ?", read).fetchone()
        if row is None:
            return None
        state = State(row[0])
        return Found(state, unpack(row[1])) if state is State.DONE else Found(state)

    def _close(self, connection: sqlite3.Connection, close: Close) -> Freed:
        row = connection.execute("SELECT number, size FROM requests WHERE uuid = ?", close).fetchone()
        if row is None:
            return Freed(0, 0)
        connection.execute("DELETE FROM requests WHERE number = ?", row[:1])
        return Freed(1, row[1])

    def _expire(self, connection: sqlite3.Connection, expire: Expire) -> Freed:
        before = self._clock() - expire.seconds
        old = (before,)
        rows, size = connection.execute(
            "SELECT count(*), total(size) FROM requests WHERE state <> 0 AND finished < ?", old
        ).fetchone()
        if rows:
            connection.execute("DELETE FROM requests WHERE state <> 0 AND finished < ?", old)
        waiting = connection.execute("SELECT uuid FROM requests WHERE state = 0 AND created < ?", old).fetchall()
        connection.executemany(
            "UPDATE requests SET state = ?, finished = ? WHERE uuid = ?",
            [(State.GIVEN_UP, self._clock(), ident) for (ident,) in waiting],
        )
        return Freed(rows, int(size), tuple(ident for (ident,) in waiting))

    ACTIONS: ClassVar[Mapping[type, Callable[[Store, sqlite3.Connection, Any], Any]]] = {
        Put: _put, Load: _load, Done: _done, Read: _read, Close: _close, Expire: _expire,
    }  # fmt: skip

    # --- the file -----------------------------------------------------------------------------------------------------

    def _opened(self, connection: sqlite3.Connection) -> Opened:
        # exclusive: a second broker is told so, and no memory need be shared
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        if new := not _number(connection, "SELECT count(*) FROM sqlite_master"):
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        else:
            self._check(connection)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # what an fsync is elsewhere, on macOS
        connection.execute(f"PRAGMA journal_size_limit = {WAL_BYTES}")
        connection.execute("BEGIN IMMEDIATE")
        for statement in SCHEMA.split(";") if new else ():
            connection.execute(statement)
        connection.execute("COMMIT")
        waiting = connection.execute("SELECT uuid, service FROM requests WHERE state = 0 ORDER BY number").fetchall()
        if not all(type(ident) is str and type(service) is bytes for ident, service in waiting):
            raise self._problem("it is damaged: a request has no name")
        rows, size = connection.execute("SELECT count(*), total(size) FROM requests").fetchone()
        return Opened(waiting, rows, int(size))

    def _check(self, connection: sqlite3.Connection) -> None:
        """Refuse a file that is not ours, or not whole, before anything in it is changed."""
        if _number(connection, "PRAGMA application_id") != APPLICATION_ID:
            raise self._problem("it is a database of something else")
        if (version := _number(connection, "PRAGMA user_version")) != VERSION:
            raise self._problem(f"it has version {version}, and this broker knows version {VERSION}")
        if (verdict := connection.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise self._problem(f"it is damaged: {verdict}")

    def _shorten(self, connection: sqlite3.Connection) -> None:
        """Give pages back that are free, when they are half of the file; what was committed is safe in any case."""
        with suppress(sqlite3.Error):
            free = _number(connection, "PRAGMA freelist_count")
            if free > VACUUM_OVER and 2 * free > _number(connection, "PRAGMA page_count"):
                # as a script: execute() would give back a single page
                connection.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")

    def _problem(self, why: Exception | str) -> StoreError:
        if isinstance(why, StoreError):
            return why
        return StoreError(
            f"the requests in {self._path} cannot be used",
            str(why),
            "titanic.request, titanic.reply and titanic.close answer 500; other services go on",
            "see to it that the disk has room and no other broker has the file; move a damaged file away to begin anew",
        )


def _number(connection: sqlite3.Connection, query: str) -> int:
    return int(connection.execute(query).fetchone()[0])


# --- uuids and frames -------------------------------------------------------------------------------------------------


def new_uuid() -> str:
    """Make a uuid that nobody can guess, of version 7: the time, then 74 bits at random.

    Those made one after the other lie side by side in the index, so that a group writes to few of its pages.
    """
    chance = secrets.randbits(74)
    return f"{time.time_ns() // 1_000_000:012x}7{chance >> 62:03x}{0x8 << 60 | chance & (1 << 62) - 1:016x}"


def weight(service: bytes, frames: Frames) -> int:
    """Give the bytes that a request or a reply counts for."""
    return len(service) + sum(map(len, frames)) + LENGTH.size * len(frames)


def pack(frames: Frames) -> bytes:
    """Write frames as one text of bytes: a checksum, then for each frame its length and what it holds."""
    data = b"".join(part for frame in frames for part in (LENGTH.pack(len(frame)), frame))
    return LENGTH.pack(crc32(data)) + data


def unpack(data: bytes) -> Frames:
    """Read frames; StoreError when they are not what was written."""
    if data[: LENGTH.size] != LENGTH.pack(crc32(memoryview(data)[LENGTH.size :])):
        raise StoreError("a request on disk is damaged", "its checksum is wrong", "it is not used", "send it again")
    frames, at = [], LENGTH.size
    while at < len(data):
        start = at + LENGTH.size
        at = start + LENGTH.unpack_from(data, at)[0]
        frames.append(data[start:at])
    return tuple(frames)
