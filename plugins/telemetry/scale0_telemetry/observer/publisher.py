"""Events into a zpipe, by the protocol of zpipes: each chunk is an Arrow stream of one record batch.

Chunks are numbered, so that one that is sent again is not stored again. What the pipe does not take waits in memory up
to a bound; beyond it, events are dropped and counted.

The broker counts links to a pipe and does not know whose they are. So the pipe is opened once, also if the connection
breaks; again only if the broker does not know it any more, or made it anew. In the end it is closed.
"""
# does I/O: a connection, which the thread that calls turns

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from scale0_core.api import MIB, Frames, Scale0Error, get_logger, printable, records
from scale0_core.client.kit.drivers import CallerDriver
from scale0_core.client.kit.flows import Flow
from scale0_core.client.kit.route import Broker, target
from scale0_core.client.kit.sessions import Limits
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


class PipeSession:
    """Puts chunks into one pipe, one request at a time, on any connection that comes. Without I/O.

    What waits, waits here and is counted: nothing is sent unless there is a connection.

    Large, since it is writer, queue and counts in one: nothing is lost between them without being counted.
    """

    reached = ""
    limits = Limits(linger_ms=0)

    def __init__(self, address: str, pipe: bytes, writer: bytes) -> None:
        self.address = address
        self.connection = 0
        self.out: list[Frames] = []
        self.ended = False
        self.lost: Counter[str] = Counter()
        """Events that were lost, by reason; whoever tells of them clears it."""
        self.chunks: deque[Chunk] = deque()
        self.bytes = 0
        self.largest = PUT_BYTES
        """Bytes that the broker takes in a chunk, as far as that is known and less than we send."""
        self.leaving = self.stuck = False
        """Whether the pipe is to be closed; whether nothing was taken since there was no more room."""
        self._pipe, self._writer, self._renewed = pipe, writer, 0
        self._first = 1
        """The number of the first chunk that waits."""
        self._verb, self._in_flight = b"", 0
        """What was asked and is not answered yet, and how many chunks are in that request."""
        self._asked: float | None = None
        self._up = self._refused = False
        self._linked = self._known = False
        """Whether a link to the pipe is this publisher's, and whether that is so on this connection."""
        self._made: float | None = None
        """Tells the pipe that was opened from another of its name."""
        self._told = False

    # --- the connection -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to connect."""
        self.connection += 1

    def on_linked(self, now: float) -> None:
        """Go on with what waits."""
        self._up = True
        self._ask(now)

    def on_unlinked(self, now: float) -> None:
        """Note that there is no answer to come."""
        self._forget()

    def on_nobody(self, reason: str, now: float) -> None:
        """Wait for a broker that is not there yet; what it does not take in time is counted."""

    def next_deadline(self) -> float | None:
        """Return when an answer is late, or None."""
        return None if self._asked is None else self._asked + SILENCE

    def on_deadline(self, now: float) -> None:
        """Ask again on a new connection, since there is no answer."""
        if self._asked is not None and now - self._asked >= SILENCE:
            self.tell("the pipe does not answer; it is asked again", pipe=printable(self._pipe))
            self.reconnect()

    def reconnect(self) -> None:
        """Have a new connection, and ask again on it."""
        self._forget()
        self.connection += 1

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End; a pipe that is to be closed is left before."""
        self.ended = True

    def _forget(self) -> None:
        self.out.clear()
        self._up = self._known = False
        self._linked = self._linked and self._made is not None  # rather a link too many than another's
        self._asked, self._in_flight = None, 0

    # --- what is asked ------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is to be waited for: all is stored, or was refused for now."""
        return self._refused or (self._asked is None and not self._wants)

    @property
    def _wants(self) -> bool:
        return self._linked if self.leaving else bool(self.chunks)

    def resume(self, now: float) -> None:
        """Go on, also with what was refused for now."""
        self._refused = False
        self._ask(now)

    def leave(self) -> None:
        """Have the link to the pipe given back; what else was asked is not waited for."""
        self.leaving, self._known, self._asked = True, False, None

    def add(self, chunk: Chunk) -> None:
        """Take a chunk."""
        self.chunks.append(chunk)
        self.bytes += len(chunk.data)

    def give_up(self) -> None:
        """Count all that waits as lost."""
        self.lost[PIPE] += sum(chunk.rows for chunk in self.chunks)
        self.chunks.clear()
        self.bytes = self._in_flight = 0

    def count_too_large(self, rows: int) -> None:
        """Count events that are too large for a pipe as lost."""
        if rows:
            self.lost[LARGE] += rows
            LOG.warning("events are too large for a pipe", events=rows, most_bytes=min(CHUNK_BYTES, self.largest))

    def _ask(self, now: float) -> None:
        """Send the next request, if there is one to send and somebody to send it to."""
        if not self._up or self._refused or self._asked is not None:
            return
        request, count = self._next_request()
        if request:
            self.out.append(tuple(request))
            self._asked, self._verb, self._in_flight = now, request[0], count

    def _next_request(self) -> tuple[list[bytes], int]:
        """Return what is to be asked next, and how many chunks are in it; nothing when all is done."""
        if not self._wants:
            return [], 0
        if not self._linked:
            return [b"OPEN", self._pipe], 0
        if not self._known:
            return [b"INFO", self._pipe], 0
        if self.leaving:
            return [b"CLOSE", self._pipe], 0
        while self.chunks and len(self.chunks[0].data) > self.largest:  # made before the limit was known
            self.count_too_large(self.chunks[0].rows)
            self._drop(1)
        return self._put() if self.chunks else ([], 0)

    def _put(self) -> tuple[list[bytes], int]:
        batch: list[bytes] = []
        size = count = 0
        for chunk in self.chunks:
            size += 4 + len(chunk.data)
            if count and size > self.largest:
                break
            batch += [len(chunk.data).to_bytes(4, "big"), chunk.data]
            count += 1
        return [b"PUT", self._pipe, self._writer, b"%d" % self._first, b"".join(batch), b"%d" % WAIT_MS], count

    # --- what is answered ---------------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take an answer, and go on, unless it says that this makes no sense now."""
        if self._asked is None or frames[0] not in (b"ERROR", _ANSWERS.get(self._verb)):
            return
        verb, count = self._verb, self._in_flight
        self._asked, self._in_flight = None, 0
        if frames[0] == b"ERROR":
            self._on_error(verb, bytes(frames[1]) if len(frames) > 1 else b"", count)
        elif verb == b"OPEN":
            self._linked, self._known, self._made = True, False, None
        elif verb == b"INFO":
            self._look(_row_in(frames))
        elif verb == b"CLOSE":
            self._linked = False
        else:
            self._drop(count)
            self._told = self.stuck = False
        self._ask(now)

    def _look(self, row: Row) -> None:
        """See whether the pipe is the one that was opened, and how large a chunk may be."""
        made = row.made
        self.largest = min(PUT_BYTES, row.largest)
        self._known = self._made in (None, made)
        self._linked = self._known
        self._made = made

    def _on_error(self, verb: bytes, code: bytes, count: int) -> None:
        if code == b"404" and verb != b"OPEN":
            self._linked = False
            return
        self._refused = True
        self.tell("the pipe refuses events", pipe=printable(self._pipe), code=printable(code))
        if code == b"409":  # it knows another writer of this name; under a new one any number may come first
            self._renewed += 1
            self._writer = self._writer[:56] + b"-%d" % self._renewed
        elif code not in _AGAIN:
            self.lost[PIPE] += sum(self.chunks[place].rows for place in range(count))
            self._drop(count)

    def _drop(self, count: int) -> None:
        for _ in range(count):
            self.bytes -= len(self.chunks.popleft().data)
        self._first += count

    def tell(self, text: str, **about: str) -> None:
        """Log what keeps the pipe from taking events, once until it takes some again."""
        if not self._told:
            self._told = True
            LOG.warning(text, broker=self.address, **about)


class Publisher:
    """Puts events into one pipe. All of it belongs to one thread."""

    make_session = PipeSession

    def __init__(self, broker: Broker, pipe: bytes, writer: bytes, most_bytes: int) -> None:
        self.session = self.make_session(target(broker, "zpipes", "pipes"), pipe, writer)
        self.lost = self.session.lost
        self._driver = CallerDriver(self.session)
        self._started = False
        self._pipe = pipe
        self._most_bytes = most_bytes
        self._batches: list[Batch] = []
        self._batch_rows = 0

    @property
    def waiting(self) -> int:
        """Bytes of chunks that the pipe has not taken yet."""
        return self.session.bytes

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
        session, driver = self.session, self._driver
        if self._started:
            driver.turn()  # what has happened since the last step comes first
        elif not session.idle:
            try:
                driver.start()
            except Scale0Error as error:
                session.tell("the pipe cannot be reached", error=error.problem.why)
                return
            self._started = True
        session.resume(driver.now())
        if not session.idle:
            driver.run(self._until_idle(patience))

    def _until_idle(self, patience: float) -> Flow[None]:
        yield self._driver.until(lambda: self.session.idle, patience)

    def give_up(self) -> None:
        """Count what still waits as lost: nobody will send it."""
        self._close_chunk()
        self.session.give_up()

    def close(self, patience: float = 0.0) -> None:
        """Close the connection; before that the pipe, if there is time for it."""
        if patience and self._started:
            self.session.leave()
            self.step(patience)
        self._driver.close()

    def _close_chunk(self) -> None:
        if not self._batches:
            return
        batches, self._batches = self._batches, []
        rows, self._batch_rows = self._batch_rows, 0
        if not self._has_room(rows):
            return
        chunks, too_large = cut(batches, most_bytes=min(CHUNK_BYTES, self.session.largest))
        self.session.count_too_large(too_large)
        for chunk in chunks:
            if self._has_room(chunk.rows):
                self.session.add(chunk)

    def _has_room(self, rows: int) -> bool:
        """Return whether more may wait; if not, count these rows as lost."""
        session = self.session
        if session.bytes >= self._most_bytes and not session.stuck:
            self._converse(ROOM)  # a burst may be more than what may wait, and the pipe quick
            session.stuck = session.bytes >= self._most_bytes
        if session.bytes < self._most_bytes:
            return True
        session.lost[PIPE] += rows
        session.tell("the pipe takes no events; they are dropped", pipe=printable(self._pipe))
        return False


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
