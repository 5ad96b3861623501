"""Events into a zpipe, by the protocol of zpipes: each chunk is an Arrow stream of one record batch.

Chunks are numbered, so that one that is sent again is not stored again. What the pipe does not take waits in memory up
to a bound; beyond it, events are dropped and counted.
"""
# does I/O: a socket, used by one thread

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import zmq

from scale0_core.api import get_logger, printable
from scale0_telemetry.columns import Batch
from scale0_telemetry.schema import SCHEMA

LOG = get_logger("plugin.telemetry")

PIPE = "pipe"
"""Why events are lost."""

CHUNK_ROWS = 8192
PUT_BYTES = 4 << 20
"""Rows in a chunk, and bytes of chunks in a request, at most; a request has one chunk at least."""

WAIT_MS = 10_000
"""How long the broker may wait for room in the pipe before it refuses."""

SILENCE = 15.0
"""Seconds without an answer after which the request is sent again, on a new connection."""

PATIENCE = 0.05
"""Seconds that a step waits for an answer; it comes in the next step otherwise."""

_AGAIN = {b"408", b"429", b"507"}
"""Errors that pass: the pipe is full, or the disk."""


class Chunk(NamedTuple):
    """What is stored in the pipe as one piece."""

    rows: int
    data: bytes


def encoded(batches: Sequence[Batch]) -> Chunk:
    """Make a chunk of batches of any kinds."""
    tables = [pa.Table.from_batches([_with_partitions(batch)]) for batch in batches]
    whole = pa.concat_tables(tables).combine_chunks().to_batches()
    rows = whole[0]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_batch(rows)
    return Chunk(rows.num_rows, sink.getvalue().to_pybytes())


def _with_partitions(batch: Batch) -> Any:
    count = batch.rows.num_rows
    kind = pa.repeat(pa.scalar(batch.kind, pa.string()), count)
    date = pa.repeat(pa.scalar(batch.day, pa.int32()), count).cast(pa.date32())
    return pa.RecordBatch.from_arrays([*batch.rows.columns, kind, date], schema=SCHEMA)


class Publisher:
    """Puts events into one pipe. All of it belongs to one thread."""

    def __init__(self, address: str, pipe: bytes, writer: bytes, most_bytes: int) -> None:
        self.lost: Counter[str] = Counter()
        """Events that were lost, by reason; whoever tells of them clears it."""
        self._address, self._pipe = address, pipe
        self._writer, self._renewed = writer, 0
        self._most_bytes = most_bytes
        self._batches: list[Batch] = []
        self._batch_rows = 0
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._first = 1
        """The number of the first chunk that waits."""
        self._in_flight = 0
        """Chunks of the request that is not answered yet."""
        self._asked: float | None = None
        self._opened = False
        self._told = False
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None

    def put(self, batches: Sequence[Batch]) -> None:
        """Take batches; they go out with the next step."""
        self._batches += batches
        self._batch_rows += sum(batch.rows.num_rows for batch in batches)
        if self._batch_rows >= CHUNK_ROWS:
            self._close_chunk()

    def step(self, patience: float = PATIENCE) -> None:
        """Send what waits, as far as the pipe takes it; wait no longer than that for answers."""
        self._close_chunk()
        end = time.monotonic() + patience
        while self._asked is not None or self._ask():
            socket = self._connected()
            if not socket.poll(max(0, round((end - time.monotonic()) * 1000))):
                if self._asked is not None and time.monotonic() - self._asked > SILENCE:
                    self._disconnect()
                return
            if not self._answered(socket.recv_multipart()):
                return

    def give_up(self) -> None:
        """Count what still waits as lost: nobody will send it."""
        self._close_chunk()
        self.lost[PIPE] += sum(chunk.rows for chunk in self._chunks)
        self._chunks.clear()
        self._bytes = self._in_flight = 0

    def close(self) -> None:
        """Close the socket."""
        self._disconnect()
        if self._context is not None:
            self._context.term()
            self._context = None

    def _close_chunk(self) -> None:
        if not self._batches:
            return
        batches, self._batches = self._batches, []
        rows, self._batch_rows = self._batch_rows, 0
        if self._bytes >= self._most_bytes:
            self.lost[PIPE] += rows
            self._tell("the pipe takes no events; they are dropped", pipe=printable(self._pipe))
            return
        chunk = encoded(batches)
        self._chunks.append(chunk)
        self._bytes += len(chunk.data)

    def _ask(self) -> bool:
        """Send the next request, if there is one to send and somebody to send it to."""
        if not self._chunks:
            return False
        request = [b"OPEN", self._pipe]
        count = 0
        if self._opened:
            batch: list[bytes] = []
            size = 0
            for chunk in self._chunks:
                if batch and size + len(chunk.data) > PUT_BYTES:
                    break
                batch += [len(chunk.data).to_bytes(4, "big"), chunk.data]
                size += len(chunk.data)
                count += 1
            request = [b"PUT", self._pipe, self._writer, b"%d" % self._first, b"".join(batch), b"%d" % WAIT_MS]
        try:
            self._connected().send_multipart(request, zmq.DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            self._tell("the pipe cannot be reached", error=str(error))
            return False
        self._asked, self._in_flight = time.monotonic(), count
        return True

    def _answered(self, answer: Sequence[bytes]) -> bool:
        """Look at an answer; tell whether it makes sense to go on at once."""
        if answer[0] not in (b"OK", b"ERROR"):
            return True
        self._asked, count, self._in_flight = None, self._in_flight, 0
        if answer[0] == b"OK":
            self._opened = True
            self._drop(count)
            self._told = False if count else self._told
            return True
        code = bytes(answer[1]) if len(answer) > 1 else b""
        if code == b"404" and count:
            self._opened = False
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

    def _connected(self) -> zmq.Socket[bytes]:
        if self._socket is None:
            self._context = self._context or zmq.Context()
            socket = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.immediate = True  # so that what waits, waits here and is counted
            try:
                socket.connect(self._address)
            except zmq.ZMQError:
                socket.close()
                raise
            self._socket = socket
        return self._socket

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._opened, self._asked, self._in_flight = False, None, 0

    def _tell(self, text: str, **about: str) -> None:
        if not self._told:
            self._told = True
            LOG.warning(text, address=self._address, **about)
