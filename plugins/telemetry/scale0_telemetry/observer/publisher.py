"""Events into a zpipe, by the protocol of zpipes: each chunk is an Arrow stream of one record batch.

Chunks are numbered, so that one that is sent again is not stored again. What the pipe does not take waits in memory up
to a bound; beyond it, events are dropped and counted.

The broker counts links to a pipe and does not know whose they are. So the pipe is opened once, also if the connection
breaks; again only if the broker does not know it any more, or made it anew. In the end it is closed.
"""
# does I/O: a socket, used by one thread

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from scale0_core.api import MIB, Scale0Error, get_logger, printable, records
from scale0_core.client.kit.link import Link
from scale0_core.client.kit.route import Broker, resolve, target
from scale0_telemetry.observer.columns import Batch
from scale0_telemetry.schema import SCHEMA

LOG = get_logger("plugin.telemetry")

PIPE, LARGE = "pipe", "large"
"""Why events are lost."""

PUT_BYTES = 4 * MIB
"""Bytes of chunks in a request, at most, and never more than a chunk may have at the broker: it cuts the connection of
whoever sends far more, which would be sent again for ever. Spark takes 64 MiB."""

CHUNK_ROWS = 8192
CHUNK_BYTES = PUT_BYTES - 4
"""Rows and bytes in a chunk, at most: with its length in front of it, it fits into a request."""

WAIT_MS = 10_000
"""How long the broker may wait for room in the pipe before it refuses."""

SILENCE = 15.0
"""Seconds without an answer after which the request is sent again, on a new connection."""

GOODBYE = 0.5
"""Seconds in which the link to the pipe is given back; then it is left."""

PATIENCE = 0.05
"""Seconds that a step waits for an answer, or for a connection; it comes in the next step otherwise."""

RECONNECT = 0.1
"""Seconds between two tries to connect."""

ROOM = 1.0
"""Seconds that a burst waits for room here, before events are dropped; once, until the pipe takes something again."""

_AGAIN = {b"408", b"429", b"507"}
"""Errors that pass: the pipe is full, or the disk."""

_ANSWERS = {b"OPEN": b"OK", b"INFO": b"INFO", b"PUT": b"OK", b"CLOSE": b"OK"}
"""The first word of the answer to each request; an error and a probe may come instead."""

_NO_EVENTS = pa.RecordBatch.from_pylist([], schema=SCHEMA)


class Chunk(NamedTuple):
    """What is stored in the pipe as one piece."""

    rows: int
    data: bytes


def cut(
    batches: Sequence[Batch], most_rows: int = CHUNK_ROWS, most_bytes: int = CHUNK_BYTES
) -> tuple[list[Chunk], int]:
    """Make chunks of batches of any kinds; give them, and how many events are too large for any chunk."""
    tables = [pa.Table.from_batches([_with_partitions(batch)]) for batch in batches]
    chunks: list[Chunk] = []
    too_large = 0
    for rows in pa.concat_tables(tables).combine_chunks().to_batches(max_chunksize=most_rows):
        for piece in _halved(rows, most_bytes):
            if _size(piece) <= most_bytes:
                chunks.append(_encoded(piece))
            else:
                too_large += piece.num_rows
    return chunks, too_large


def _halved(rows: Any, most_bytes: int) -> Iterator[Any]:
    """Cut rows in halves until each part is small enough, or one row."""
    if rows.num_rows <= 1 or _size(rows) <= most_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from _halved(rows.slice(0, half), most_bytes)
    yield from _halved(rows.slice(half), most_bytes)


def _encoded(rows: Any) -> Chunk:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(rows)
    return Chunk(rows.num_rows, sink.getvalue().to_pybytes())


def _size(rows: Any) -> int:
    """Say how many bytes the stream of some rows has, without making it."""
    return _AROUND + int(pa.ipc.get_record_batch_size(rows))


def _with_partitions(batch: Batch) -> Any:
    count = batch.rows.num_rows
    kind = pa.repeat(pa.scalar(batch.kind, pa.string()), count)
    date = pa.repeat(pa.scalar(batch.day, pa.int32()), count).cast(pa.date32())
    columns = [column.cast(field.type) for column, field in zip(batch.rows.columns, SCHEMA, strict=False)]
    return pa.RecordBatch.from_arrays([*columns, kind, date], schema=SCHEMA)


_AROUND: int = len(_encoded(_NO_EVENTS).data) - pa.ipc.get_record_batch_size(_NO_EVENTS)
"""Bytes of a stream beside its rows: the schema and the end."""


class Publisher:
    """Puts events into one pipe. All of it belongs to one thread."""

    def __init__(self, broker: Broker, pipe: bytes, writer: bytes, most_bytes: int) -> None:
        self.lost: Counter[str] = Counter()
        """Events that were lost, by reason; whoever tells of them clears it."""
        self._target, self._pipe = target(broker, "zpipes", "pipes"), pipe
        self._attempts = 0
        """How often connecting has failed since there was a connection."""
        self._writer, self._renewed = writer, 0
        self._most_bytes = most_bytes
        self._batches: list[Batch] = []
        self._batch_rows = 0
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._first = 1
        """The number of the first chunk that waits."""
        self._verb, self._in_flight = b"", 0
        """What was asked and is not answered yet, and how many chunks are in that request."""
        self._asked: float | None = None
        self._linked = self._known = False
        """Whether a link to the pipe is this publisher's, and whether that is so on this connection."""
        self._made: float | None = None
        """Tells the pipe that was opened from another of its name."""
        self._largest = PUT_BYTES
        """Bytes that the broker takes in a chunk, as far as that is known and less than we send."""
        self._leaving = False
        self._told = False
        self._stuck = False
        """Whether nothing was taken since there was no more room here."""
        self._link: Link | None = None

    def put(self, batches: Sequence[Batch]) -> None:
        """Take batches; they go out with the next step."""
        self._batches += batches
        self._batch_rows += sum(batch.rows.num_rows for batch in batches)
        if self._batch_rows >= CHUNK_ROWS:
            self._close_chunk()

    def step(self, patience: float = PATIENCE) -> None:
        """Send what waits, as far as the pipe takes it; wait no longer than that for answers."""
        self._close_chunk()
        self._converse(patience)

    def _converse(self, patience: float) -> None:
        end = time.monotonic() + patience
        while self._asked is not None or self._ask(end):
            link = self._connected()
            answer = link.receive(_left(end))
            if answer is None:
                if link.broken:
                    self._disconnect()
                elif self._asked is not None and time.monotonic() - self._asked > SILENCE:
                    self._tell("the pipe does not answer; it is asked again", pipe=printable(self._pipe))
                    self._disconnect()
                return
            if not self._answered(answer):
                return

    def give_up(self) -> None:
        """Count what still waits as lost: nobody will send it."""
        self._close_chunk()
        self.lost[PIPE] += sum(chunk.rows for chunk in self._chunks)
        self._chunks.clear()
        self._bytes = self._in_flight = 0

    def close(self, patience: float = 0.0) -> None:
        """Close the socket; before that the pipe, if there is time for it."""
        if patience and self._link is not None:
            self._leaving, self._known, self._asked = True, False, None  # what else was asked is not waited for
            self.step(patience)
        self._disconnect()

    def _close_chunk(self) -> None:
        if not self._batches:
            return
        batches, self._batches = self._batches, []
        rows, self._batch_rows = self._batch_rows, 0
        if not self._has_room(rows):
            return
        chunks, too_large = cut(batches, most_bytes=min(CHUNK_BYTES, self._largest))
        self._count_too_large(too_large)
        for chunk in chunks:
            if self._has_room(chunk.rows):
                self._chunks.append(chunk)
                self._bytes += len(chunk.data)

    def _count_too_large(self, rows: int) -> None:
        if rows:
            self.lost[LARGE] += rows
            LOG.warning("events are too large for a pipe", events=rows, most_bytes=min(CHUNK_BYTES, self._largest))

    def _has_room(self, rows: int) -> bool:
        """Tell whether more may wait; if not, count these rows as lost."""
        if self._bytes >= self._most_bytes and not self._stuck:
            self._converse(ROOM)  # a burst may be more than what may wait, and the pipe quick
            self._stuck = self._bytes >= self._most_bytes
        if self._bytes < self._most_bytes:
            return True
        self.lost[PIPE] += rows
        self._tell("the pipe takes no events; they are dropped", pipe=printable(self._pipe))
        return False

    def _ask(self, end: float) -> bool:
        """Send the next request, if there is one to send and somebody to send it to."""
        request, count = self._next_request()
        if not request:
            return False
        try:
            link = self._connected()
        except Scale0Error as error:
            self._tell("the pipe cannot be reached", error=error.problem.why)
            return False
        # what waits, waits here and is counted: a socket that is not connected yet would take it as well
        while not link.wait_until_connected(_left(end)):
            if not link.broken or not (left := _left(end)):
                return False
            self._disconnect()
            time.sleep(min(RECONNECT, left))
            link = self._connected()
        link.send(tuple(request))
        self._asked, self._verb, self._in_flight = time.monotonic(), request[0], count
        return True

    def _next_request(self) -> tuple[list[bytes], int]:
        """Give what is to be asked next, and how many chunks are in it; nothing when all is done."""
        if not (self._linked if self._leaving else self._chunks):
            return [], 0
        if not self._linked:
            return [b"OPEN", self._pipe], 0
        if not self._known:
            return [b"INFO", self._pipe], 0
        if self._leaving:
            return [b"CLOSE", self._pipe], 0
        while self._chunks and len(self._chunks[0].data) > self._largest:  # made before the limit was known
            self._count_too_large(self._chunks[0].rows)
            self._drop(1)
        return self._put() if self._chunks else ([], 0)

    def _put(self) -> tuple[list[bytes], int]:
        batch: list[bytes] = []
        size = count = 0
        for chunk in self._chunks:
            size += 4 + len(chunk.data)
            if count and size > self._largest:
                break
            batch += [len(chunk.data).to_bytes(4, "big"), chunk.data]
            count += 1
        return [b"PUT", self._pipe, self._writer, b"%d" % self._first, b"".join(batch), b"%d" % WAIT_MS], count

    def _answered(self, answer: Sequence[bytes]) -> bool:
        """Look at an answer; tell whether it makes sense to go on at once."""
        verb, count = self._verb, self._in_flight
        if answer[0] not in (b"ERROR", _ANSWERS.get(verb)):
            return True
        self._asked, self._in_flight = None, 0
        if answer[0] == b"ERROR":
            return self._refused(verb, bytes(answer[1]) if len(answer) > 1 else b"", count)
        if verb == b"OPEN":
            self._linked, self._known, self._made = True, False, None
        elif verb == b"INFO":
            self._look(_row_in(answer))
        elif verb == b"CLOSE":
            self._linked = False
        else:
            self._drop(count)
            self._told = self._stuck = False
        return True

    def _look(self, row: Row) -> None:
        """See whether the pipe is the one that was opened, and how large a chunk may be."""
        made = row.made
        self._largest = min(PUT_BYTES, row.largest)
        self._known = self._made in (None, made)
        self._linked = self._known
        self._made = made

    def _refused(self, verb: bytes, code: bytes, count: int) -> bool:
        if code == b"404" and verb != b"OPEN":
            self._linked = False
            return True
        self._tell("the pipe refuses events", pipe=printable(self._pipe), code=printable(code))
        if code == b"409":  # it knows another writer of this name; under a new one any number may come first
            self._renewed += 1
            self._writer = self._writer[:56] + b"-%d" % self._renewed
        elif code not in _AGAIN:
            self.lost[PIPE] += sum(self._chunks[place].rows for place in range(count))
            self._drop(count)
        return False

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self._bytes -= len(self._chunks.popleft().data)
        self._first += count

    def _connected(self) -> Link:
        if self._link is None:
            self._link = Link(resolve(self._target, self._attempts)[0])
        return self._link

    def _disconnect(self) -> None:
        if self._link is not None:
            self._attempts = 0 if self._link.up else self._attempts + 1
            self._link.drop()
            self._link = None
        self._linked = self._linked and self._made is not None  # rather a link too many than another's
        self._known, self._asked, self._in_flight = False, None, 0

    def _tell(self, text: str, **about: str) -> None:
        if not self._told:
            self._told = True
            LOG.warning(text, broker=self._target, **about)


def _left(end: float) -> float:
    """Return the seconds until then."""
    return max(0.0, end - time.monotonic())


class Row(NamedTuple):
    """The broker's account of a pipe: when it was made, None if it has no links, and the bytes in a chunk, at most."""

    made: float | None
    largest: int


def _row_in(answer: Sequence[bytes]) -> Row:
    """Read the broker's account of a pipe; one that cannot be read is that of no pipe."""
    try:
        row = records.from_json(answer[1])
        return Row(float(row["made"]) if row["links"] else None, int(row.get("max_chunk", PUT_BYTES)))
    except (ValueError, TypeError, LookupError, OverflowError, AttributeError):
        return Row(None, PUT_BYTES)
