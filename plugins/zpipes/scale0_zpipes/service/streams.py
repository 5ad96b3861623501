"""The pipes of the binary dialect: streams of bytes between one writer and one reader, as zbroker has them.

A client is its connection, and has at most one pipe open. Data that waits lives with its reader, and goes when the
reader goes. A pipe ends as soon as one of its ends leaves; the other end goes on without it, *shut*, and its name is
free.

=============  ============  ============  ===========  ===========  ==========================  =======
state          INPUT         OUTPUT        READ         WRITE        CLOSE                       PING
=============  ============  ============  ===========  ===========  ==========================  =======
START          READING       WRITING       INVALID      INVALID      INVALID                     PING_OK
READING        INVALID (1)   INVALID (1)   answered,    INVALID      CLOSE_OK                    PING_OK
                                           or pending
READ-PENDING   waits         waits         waits        waits        READ_FAILED and CLOSE_OK    PING_OK
WRITING        INVALID (1)   INVALID (1)   INVALID      answered,    CLOSE_OK                    PING_OK
                                                        or pending
WRITE-PENDING  waits         waits         waits        waits        WRITE_FAILED and CLOSE_OK   PING_OK
=============  ============  ============  ===========  ===========  ==========================  =======

(1) The client loses its pipe as if it had closed it. What waits is taken, in order, when the pending request has been
answered; CLOSE and PING overtake it. What is no request at all gets INVALID at once and changes nothing.

Two rules are ours, since the reference has no bounds. A WRITE that finds its reader's buffer full, or too much data in
all, is pending until there is room. And a READ that finds the buffer full and still wants more gets READ_FAILED: it and
the writer would wait for each other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from math import inf
from typing import Any, ClassVar, Protocol, TypeAlias

from scale0_core.api import KIB, MIB, Deadlines
from scale0_zpipes.service import binary
from scale0_zpipes.service.answers import SOCKET
from scale0_zpipes.service.binary import (
    CHUNK,
    CLOSE_OK,
    FIELDS,
    INPUT,
    INPUT_FAILED,
    INPUT_OK,
    INVALID,
    MOST,
    OUTPUT_FAILED,
    OUTPUT_OK,
    PING_OK,
    READ,
    READ_END,
    READ_FAILED,
    READ_OK,
    READ_TIMEOUT,
    REQUESTS,
    TIMEOUT,
    WRITE,
    WRITE_FAILED,
    WRITE_OK,
    WRITE_TIMEOUT,
    with_string,
)

Reply: TypeAlias = tuple[str, tuple[bytes, bytes]]
"""The socket, and a peer with the frame for it: ready to be sent."""

Request: TypeAlias = tuple[bytes, Any, int]
"""A kind; a size (READ), a name (INPUT, OUTPUT) or a chunk (WRITE), as it is kept; and a timeout."""


class Usage(Protocol):
    """Notes how pipes are used."""

    def wrote(self, name: bytes, size: int) -> None:
        """Note a WRITE that was taken."""

    def read(self, name: bytes, size: int) -> None:
        """Note a READ that was answered with data."""


Handler: TypeAlias = Callable[["Streams", bytes, Request, float, list[Reply]], bool]
"""Answers a request; false when what waits behind it is dropped."""

BEFORE = CHUNK.size
"""Chunks are kept as the WRITE they came in: so many bytes come before the data,"""

AROUND = CHUNK.size + TIMEOUT.size
"""and so many before and behind it."""

LARGE = 4 * KIB
"""From this size on, cutting a chunk out of its frame by a view pays."""

MANY = 4096
"""So many small chunks become a few large ones, or a byte would take the memory of fifty."""

MERGED = 64 * KIB

GONE = -1.0
"""The alarm of a client that is no longer known."""

FULL = with_string(READ_FAILED, b"more than is kept for one reader; ask for less")

_fields = FIELDS.unpack_from
_number = int.from_bytes


class State(Enum):
    """How far a client has come."""

    START = "START"
    READING = "READING"
    READ_PENDING = "READ-PENDING"
    WRITING = "WRITING"
    WRITE_PENDING = "WRITE-PENDING"


class _Mailbox(deque[Request]):
    """Requests of a client that wait for the pending one, and the bytes of chunks among them."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__()
        self.size = 0


class _Pipe:
    """A name, and who is at its ends."""

    __slots__ = ("name", "reader", "writer")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.reader: _Reader | None = None
        self.writer: _Writer | None = None


class _End:
    """A client with an open pipe. Without ``pipe`` it is shut: the other end has left.

    ``alarm`` is when it will be looked at: not after ``due``, the end of the pending request's time, nor after it has
    been silent for too long. Most messages leave it alone: an alarm that comes too early is simply set anew.
    """

    __slots__ = ("alarm", "due", "heard", "mailbox", "name", "peer", "pipe")

    def __init__(self, peer: bytes, pipe: _Pipe, now: float) -> None:
        self.peer = peer
        self.name = pipe.name
        self.pipe: _Pipe | None = pipe
        self.heard = now
        self.due = inf
        self.alarm = inf
        self.mailbox: _Mailbox | None = None


class _Reader(_End):
    """A client that reads: ``size`` bytes wait, from ``start`` in the first chunk on; a pending READ wants some."""

    __slots__ = ("chunks", "many", "size", "start", "wanted")

    def __init__(self, peer: bytes, pipe: _Pipe, now: float) -> None:
        super().__init__(peer, pipe, now)
        self.chunks: deque[bytes] | None = None
        self.size = 0
        self.start = BEFORE
        self.many = MANY
        self.wanted = 0

    @property
    def state(self) -> State:
        return State.READ_PENDING if self.wanted else State.READING


class _Writer(_End):
    """A client that writes: ``held`` is the pending chunk; ``reader`` is there when a WRITE may be handed over."""

    __slots__ = ("held", "ok", "reader")

    def __init__(self, peer: bytes, pipe: _Pipe, now: float) -> None:
        super().__init__(peer, pipe, now)
        self.reader = pipe.reader
        self.held: bytes | None = None
        self.ok: Reply = (SOCKET, (peer, WRITE_OK))

    @property
    def state(self) -> State:
        return State.WRITING if self.held is None else State.WRITE_PENDING


class Streams:
    """All pipes of the binary dialect, and their clients.

    ``timeout`` is the seconds after which a silent client is dropped. ``max_buffered`` bytes may wait for one reader,
    and ``max_total`` for all; a WRITE waits from then on, so either may be exceeded by a part of a chunk. Of one client
    ``max_mailbox`` requests may wait for a pending one, with ``max_buffered`` bytes in them (``max_total`` in those of
    all clients); a client that sends more is dropped. A chunk of more than ``max_chunk`` bytes is refused.

    Large, since it is the whole dialect: a method for each request, for each in its states.
    """

    def __init__(
        self,
        *,
        timeout: float = 60.0,
        max_buffered: int = 64 * MIB,
        max_total: int = 1024 * MIB,
        max_mailbox: int = 10_000,
        max_chunk: int = MOST,
        too_large: Callable[[bytes, int, float], None] | None = None,
    ) -> None:
        self._timeout = timeout
        self._max_chunk = max_chunk
        self._note_too_large = too_large
        self._max_buffered = max_buffered
        self._max_total = max_total
        self._max_mailbox = max_mailbox
        self._pipes: dict[bytes, _Pipe] = {}
        self._readers: dict[bytes, _Reader] = {}
        self._writers: dict[bytes, _Writer] = {}
        self._total = 0
        self._waiting = 0
        self._stalled: dict[_Writer, None] = {}
        self._alarms: Deadlines[_Reader | _Writer, _Reader | _Writer] = Deadlines(0)
        self.dropped = {"silent": 0, "gone": 0, "overrun": 0}
        self._usage: Usage | None = None

    @property
    def clients(self) -> int:
        """How many clients have a pipe open."""
        return len(self._readers) + len(self._writers)

    def knows(self, peer: bytes) -> bool:
        """Tell whether a peer has a pipe open."""
        return peer in self._readers or peer in self._writers

    @property
    def pipes(self) -> int:
        """How many names are taken."""
        return len(self._pipes)

    @property
    def buffered(self) -> int:
        """How many bytes wait for readers."""
        return self._total

    def rows(self) -> list[dict[str, Any]]:
        """List the pipes, and after them the readers that still have data of a writer that left."""
        rows = [
            {
                "name": pipe.name,
                "has_reader": pipe.reader is not None,
                "has_writer": pipe.writer is not None,
                "bytes": pipe.reader.size if pipe.reader else 0,
            }
            for pipe in self._pipes.values()
        ]
        rows += [
            {"name": reader.name, "has_reader": True, "has_writer": False, "bytes": reader.size}
            for reader in self._readers.values()
            if reader.pipe is None and reader.size
        ]
        return rows

    # --- messages ---------------------------------------------------------------------------------------------------

    def observe(self, usage: Usage | None) -> None:
        """Have it noted how pipes are used, if messages come by ``receive_observed``."""
        self._usage = usage

    def receive_observed(self, peer: bytes, frame: bytes, now: float) -> Iterable[Reply]:
        """Take a message as ``receive`` does. Who is not observed does not pay for it."""
        replies = self.receive(peer, frame, now)
        end = self._end(peer)
        if type(replies) is tuple and replies and self._usage is not None and end is not None:
            # it took the short way: a WRITE that is answered, perhaps with the READ that waited for it, or a READ
            if frame[:3] == WRITE:
                self._usage.wrote(end.name, len(frame) - AROUND)
            if len(replies) == 2 or frame[:3] == READ:
                self._usage.read(end.name, len(replies[-1][1][1]) - CHUNK.size)
        return replies

    def receive(  # noqa: C901, PLR0912 (calls would cost more than the work)
        self, peer: bytes, frame: bytes, now: float
    ) -> Iterable[Reply]:
        """Take a message; give the replies to it and to others that waited for it."""
        # What nearly all messages are is done here, at the cost of saying some things twice; whatever is out of the
        # ordinary is left to the table.
        kind = frame[:3]
        if kind == WRITE:
            writer = self._writers.get(peer)
            if writer is not None and (reader := writer.reader) is not None:
                size = len(frame) - AROUND
                wanted = reader.wanted
                if 0 < size <= self._max_chunk and _number(frame[3:7], "big") == size:
                    if wanted == size and not reader.size:
                        box = reader.mailbox
                        if not box:
                            reader.wanted = 0
                            writer.heard = now
                            return (writer.ok, (SOCKET, (reader.peer, _read_ok(frame))))
                        following, wanted, timeout = box[0]
                        if following == READ and wanted:
                            box.popleft()
                            reader.wanted = wanted
                            reader.due = due = now + timeout / 1000 if timeout else inf
                            if due < reader.alarm:
                                self._set_alarm(reader, due)
                            writer.heard = now
                            return (writer.ok, (SOCKET, (reader.peer, _read_ok(frame))))
                    elif (
                        not wanted
                        and (chunks := reader.chunks) is not None
                        and reader.size < self._max_buffered
                        and self._total < self._max_total
                    ):
                        chunks.append(frame)
                        reader.size += size
                        self._total += size
                        writer.heard = now
                        if len(chunks) > reader.many:
                            _merge(reader, chunks)
                        return (writer.ok,)
        elif kind == READ and len(frame) >= FIELDS.size and not self._stalled:
            reader = self._readers.get(peer)
            if reader is not None and reader.wanted:
                box = reader.mailbox
                if box is not None and len(box) < self._max_mailbox:
                    reader.heard = now
                    box.append(_fields(frame))
                    return ()
            elif reader is not None and (chunks := reader.chunks):
                chunk = chunks[0]
                if frame[3:7] == chunk[3:7] and reader.start == BEFORE and reader.size < self._max_buffered:
                    size = len(chunk) - AROUND
                    reader.heard = now
                    chunks.popleft()
                    reader.size -= size
                    self._total -= size
                    return ((SOCKET, (peer, _read_ok(chunk))),)
        return self._receive_any(peer, frame, now)

    def _receive_any(self, peer: bytes, frame: bytes, now: float) -> list[Reply]:
        out: list[Reply] = []
        end = self._end(peer)
        if end is not None:
            end.heard = now
        request = _request(frame)
        if request is None:
            return [(SOCKET, (peer, INVALID))]
        self._serve(peer, request, now, out)
        self._settle(now, out)
        return out

    def _serve(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        end = self._end(peer)
        state = State.START if end is None else end.state
        return self._table[state][request[0]](self, peer, request, now, out)

    def _end(self, peer: bytes) -> _Reader | _Writer | None:
        return self._readers.get(peer) or self._writers.get(peer)

    def _take_waiting(self, peer: bytes, box: _Mailbox | None, now: float, out: list[Reply]) -> None:
        """Serve what waited, until one of them is pending itself."""
        while box:
            end = self._end(peer)
            if end is not None:
                end.mailbox = box
                if end.state in (State.READ_PENDING, State.WRITE_PENDING):
                    return
            request = box.popleft()
            if request[0] == WRITE:
                size = len(request[1]) - AROUND
                box.size -= size
                self._waiting -= size
            if not self._serve(peer, request, now, out):
                self._discard(box)

    def _discard(self, box: _Mailbox | None) -> None:
        if box:
            self._waiting -= box.size
            box.size = 0
            box.clear()

    # --- what the table has -----------------------------------------------------------------------------------------

    def _invalid(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        out.append((SOCKET, (peer, INVALID)))
        return True

    def _refuse(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        out.append((SOCKET, (peer, INVALID)))
        end = self._end(peer)
        if end is not None:
            self._forget(end, now, out)
        return False

    def _pong(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        out.append((SOCKET, (peer, PING_OK)))
        return True

    def _wait(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        end = self._end(peer)
        assert end is not None
        box = end.mailbox
        if box is None:
            box = end.mailbox = _Mailbox()
        size = len(request[1]) - AROUND if request[0] == WRITE else 0
        if (
            len(box) >= self._max_mailbox
            or (size and box.size >= self._max_buffered)
            or (size and self._waiting >= self._max_total)
        ):
            self.dropped["overrun"] += 1
            return self._refuse(peer, request, now, out)
        box.append(request)
        box.size += size
        self._waiting += size
        return True

    def _open(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        kind, name, _ = request
        pipe = self._pipes.get(name)
        if pipe is None:
            pipe = self._pipes[name] = _Pipe(name)
        if (pipe.reader if kind == INPUT else pipe.writer) is not None:
            out.append((SOCKET, (peer, with_string(INPUT_FAILED if kind == INPUT else OUTPUT_FAILED))))
        elif kind == INPUT:
            out.append((SOCKET, (peer, INPUT_OK)))
            reader = pipe.reader = self._readers[peer] = _Reader(peer, pipe, now)
            self._set_alarm(reader, now + self._timeout)
            if pipe.writer is not None:
                self._try_held(pipe.writer, now, out)
        else:
            out.append((SOCKET, (peer, OUTPUT_OK)))
            writer = pipe.writer = self._writers[peer] = _Writer(peer, pipe, now)
            self._set_alarm(writer, now + self._timeout)
        return True

    def _close(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        end = self._end(peer)
        assert end is not None
        if end.state is State.READ_PENDING:
            out.append((SOCKET, (peer, with_string(READ_FAILED))))
        elif end.state is State.WRITE_PENDING:
            out.append((SOCKET, (peer, with_string(WRITE_FAILED))))
        box, end.mailbox = end.mailbox, None
        self._forget(end, now, out)
        out.append((SOCKET, (peer, CLOSE_OK)))
        self._take_waiting(peer, box, now, out)
        return True

    def _read(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        _, size, timeout = request
        reader = self._readers[peer]
        if not size:
            out.append((SOCKET, (peer, READ_END)))
        elif not self._answer_read(reader, size, out):
            reader.wanted = size
            self._set_due(reader, timeout, now)
        if reader.pipe is not None and reader.pipe.writer is not None:
            self._try_held(reader.pipe.writer, now, out)  # there may be room now
        return True

    def _write(self, peer: bytes, request: Request, now: float, out: list[Reply]) -> bool:
        _, chunk, timeout = request
        writer = self._writers[peer]
        if writer.pipe is None:
            out.append((SOCKET, (peer, with_string(WRITE_FAILED))))
            return True
        size = len(chunk) - AROUND
        if size > self._max_chunk:
            out.append((SOCKET, (peer, with_string(WRITE_FAILED, b"a chunk has at most %d bytes" % self._max_chunk))))
            if self._note_too_large is not None:
                self._note_too_large(writer.name, size, now)
            return True
        writer.held = chunk
        writer.reader = None
        self._try_held(writer, now, out, waits=False)
        if writer.held is not None:
            self._set_due(writer, timeout, now)
        return True

    _table: ClassVar[dict[State, dict[bytes, Handler]]] = {
        state: dict(zip(REQUESTS, handlers, strict=True))
        for state, *handlers in (
            #                     INPUT    OUTPUT   READ      WRITE     CLOSE    PING
            (State.START,         _open,   _open,   _refuse,  _refuse,  _refuse, _pong),
            (State.READING,       _refuse, _refuse, _read,    _invalid, _close,  _pong),
            (State.READ_PENDING,  _wait,   _wait,   _wait,    _wait,    _close,  _pong),
            (State.WRITING,       _refuse, _refuse, _invalid, _write,   _close,  _pong),
            (State.WRITE_PENDING, _wait,   _wait,   _wait,    _wait,    _close,  _pong),
        )
    }  # fmt: skip

    # --- from writers to readers ------------------------------------------------------------------------------------

    def _answer_read(self, reader: _Reader, size: int, out: list[Reply]) -> bool:
        """Answer a READ, if it can be answered now."""
        have = reader.size
        if have >= size:
            out.append((SOCKET, (reader.peer, self._take(reader, size))))
        elif reader.pipe is None:
            out.append((SOCKET, (reader.peer, self._take(reader, have) if have else READ_END)))
        elif have >= self._max_buffered:
            out.append((SOCKET, (reader.peer, FULL)))
        else:
            return False
        return True

    def _answer_pending(self, reader: _Reader, now: float, out: list[Reply]) -> None:
        """Look at a pending READ again, and at those behind it."""
        wanted, reader.wanted = reader.wanted, 0
        if not wanted:
            return
        if self._answer_read(reader, wanted, out):
            self._take_waiting(reader.peer, reader.mailbox, now, out)
        else:
            reader.wanted = wanted

    def _try_held(self, writer: _Writer, now: float, out: list[Reply], *, waits: bool = True) -> None:
        """Hand over the chunk of a pending WRITE, if there is a reader with room; then take what ``waits``."""
        chunk, pipe = writer.held, writer.pipe
        if chunk is None or pipe is None or pipe.reader is None:
            return
        reader = pipe.reader
        size = len(chunk) - AROUND
        if reader.size >= self._max_buffered:
            return
        # what a blocked READ takes at once needs no room
        if self._total >= self._max_total and not 0 < reader.wanted <= reader.size + size:
            self._stalled[writer] = None
            return
        self._not_pending(writer)
        out.append(writer.ok)
        if self._usage is not None:
            self._usage.wrote(writer.name, size)
        if size:
            chunks = reader.chunks
            if chunks is None:
                chunks = reader.chunks = deque()
            chunks.append(chunk)
            reader.size += size
            self._total += size
            if len(chunks) > reader.many:
                _merge(reader, chunks)
            self._answer_pending(reader, now, out)
        if waits:
            self._take_waiting(writer.peer, writer.mailbox, now, out)

    def _not_pending(self, writer: _Writer) -> None:
        writer.held = None
        writer.reader = writer.pipe.reader if writer.pipe is not None else None
        self._stalled.pop(writer, None)

    def _settle(self, now: float, out: list[Reply]) -> None:
        """Let those go on who waited for room in all, the longest waiting first."""
        while self._stalled and self._total < self._max_total:
            writer = next(iter(self._stalled))
            del self._stalled[writer]
            self._try_held(writer, now, out)

    def _take(self, reader: _Reader, size: int) -> bytes:
        """Take bytes out of a reader's buffer, as the READ_OK to send."""
        chunks, start = reader.chunks, reader.start
        assert chunks
        if self._usage is not None:
            self._usage.read(reader.name, size)
        reader.size -= size
        self._total -= size
        parts: list[bytes | memoryview] = [CHUNK.pack(READ_OK, size)]
        while size:
            chunk = chunks[0]
            part = min(size, len(chunk) - TIMEOUT.size - start)
            parts.append(memoryview(chunk)[start : start + part])
            size -= part
            start += part
            if start + TIMEOUT.size == len(chunk):
                chunks.popleft()
                start = BEFORE
        reader.start = start
        return b"".join(parts)

    # --- coming and going -------------------------------------------------------------------------------------------

    def _reader_dropped(self, writer: _Writer, now: float, out: list[Reply]) -> None:
        writer.pipe = None
        pending = writer.held is not None
        self._not_pending(writer)
        if pending:
            out.append((SOCKET, (writer.peer, with_string(WRITE_FAILED))))
            self._take_waiting(writer.peer, writer.mailbox, now, out)

    def _writer_dropped(self, reader: _Reader, now: float, out: list[Reply]) -> None:
        reader.pipe = None
        self._answer_pending(reader, now, out)

    def _forget(self, end: _Reader | _Writer, now: float, out: list[Reply]) -> None:
        """Detach a client from its pipe, which ends with that, and know it no longer."""
        pipe, end.pipe = end.pipe, None
        end.alarm = GONE
        self._alarms.remove(end)
        self._discard(end.mailbox)
        if pipe is not None:
            del self._pipes[pipe.name]
        if isinstance(end, _Reader):
            del self._readers[end.peer]
            self._total -= end.size
            end.chunks = None  # its alarm stays for a while, and must not keep what waited
            if pipe is not None and pipe.writer is not None:
                self._reader_dropped(pipe.writer, now, out)
        else:
            del self._writers[end.peer]
            self._not_pending(end)
            if pipe is not None and pipe.reader is not None:
                self._writer_dropped(pipe.reader, now, out)

    def undelivered(self, peer: bytes, frame: bytes, gone: bool, now: float) -> list[Reply]:
        """Take note that a reply did not reach its client, which is dropped.

        So is one that is still there, but does not take its replies: it could not know which one it has missed. It
        learns from INVALID.
        """
        out: list[Reply] = []
        end = self._end(peer)
        if end is not None and (gone or frame != PING_OK):
            self.dropped["gone" if gone else "overrun"] += 1
            self._forget(end, now, out)
            self._settle(now, out)
        return out

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when somebody is to be looked at."""
        return self._alarms.next()

    def on_deadline(self, now: float) -> list[Reply]:
        """End pending requests whose time is over, and drop clients that were silent for too long."""
        out: list[Reply] = []
        for end in self._alarms.expire(now):
            self._look_at(end, now, out)
        self._settle(now, out)
        return out

    def _look_at(self, end: _Reader | _Writer, now: float, out: list[Reply]) -> None:
        due, silent = _times(end, self._timeout)
        if min(due, silent) <= end.alarm:  # else it was heard since, or answered: an alarm too early
            if due <= silent:
                self._time_is_over(end, now, out)
            else:
                self.dropped["silent"] += 1
                self._forget(end, now, out)
        if end.alarm != GONE:
            self._set_alarm(end, min(_times(end, self._timeout)))

    def _time_is_over(self, end: _Reader | _Writer, now: float, out: list[Reply]) -> None:
        if isinstance(end, _Reader):
            end.wanted = 0
            out.append((SOCKET, (end.peer, READ_TIMEOUT)))
        else:
            self._not_pending(end)
            out.append((SOCKET, (end.peer, WRITE_TIMEOUT)))
        self._take_waiting(end.peer, end.mailbox, now, out)

    def _set_due(self, end: _Reader | _Writer, timeout: int, now: float) -> None:
        end.due = now + timeout / 1000 if timeout else inf
        if end.due < end.alarm:
            self._set_alarm(end, end.due)

    def _set_alarm(self, end: _Reader | _Writer, when: float) -> None:
        end.alarm = when
        if when == inf:
            self._alarms.remove(end)
        else:
            self._alarms.set(end, when, end)


def _times(end: _Reader | _Writer, timeout: float) -> tuple[float, float]:
    """Say when the time of the pending request is over, and when the client has been silent for too long."""
    pending = end.state in (State.READ_PENDING, State.WRITE_PENDING)
    return end.due if pending else inf, end.heard + timeout


def _request(frame: bytes) -> Request | None:
    message = binary.decode(frame)
    if message is None or message.kind not in REQUESTS:
        return None
    kind, body, size, timeout = message
    if kind == READ:
        return kind, size, timeout
    if kind == WRITE:
        return kind, frame[: len(body) + AROUND], timeout
    return kind, body, 0


def _read_ok(chunk: bytes) -> bytes:
    """Make a WRITE the READ_OK for a reader that asks for just as much: in both a length comes after the kind."""
    if len(chunk) < LARGE:
        return READ_OK + chunk[3:-4]
    return b"".join((READ_OK, memoryview(chunk)[3:-4]))


def _merge(reader: _Reader, chunks: deque[bytes]) -> None:
    """Join neighbours among the small chunks; the first one stays, since a part of it may be read already."""
    merged = [chunks.popleft()]
    small: list[bytes] = []
    size = 0
    for chunk in chunks:
        if len(chunk) < MERGED:
            small.append(chunk[BEFORE : -TIMEOUT.size])
            size += len(chunk) - AROUND
        if small and (size >= MERGED or len(chunk) >= MERGED):
            merged.append(binary.write(b"".join(small)))
            small.clear()
            size = 0
        if len(chunk) >= MERGED:
            merged.append(chunk)
    if small:
        merged.append(binary.write(b"".join(small)))
    chunks.clear()
    chunks.extend(merged)
    reader.many = len(merged) + MANY
