"""Writing: what is stored at once, what waits for room, and what goes to the disk first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from scale0_core.api import Deadlines, Effect, Frames, JobResult
from scale0_zpipes.service.answers import OK, SOCKET, Refusal, disk_refused, when_safe
from scale0_zpipes.service.keeper import Keeper
from scale0_zpipes.service.ordering import OVERHEAD, Ordering
from scale0_zpipes.service.pipe import BlockedWrite, Pipe
from scale0_zpipes.service.readers import Readers
from scale0_zpipes.service.records import Record, Stored, Wrote
from scale0_zpipes.service.stock import Stock

MAX_PRODUCERS = 10_000
CHUNK_OVERHEAD = 64
"""Bytes of memory that a chunk takes beside its own."""


class Writers:
    """All writers of all pipes."""

    def __init__(self, stock: Stock, keeper: Keeper, readers: Readers) -> None:
        self._stock = stock
        self._keeper = keeper
        self._readers = readers
        self.ordering = Ordering(stock.settings.max_blocked_bytes)
        self.starved: dict[Pipe, None] = {}
        """Pipes with writes that wait for room, those that waited longest first."""
        self._blocked = 0
        self._short_of_all = False
        """Whether some write waits since all pipes together are full."""
        self._purging: Pipe | None = None
        self._purged = 0
        self.timers: Deadlines[BlockedWrite, tuple[Pipe, BlockedWrite]] = Deadlines(0)

    def admit(self, pipe: Pipe, write: BlockedWrite, patience: float | None, now: float) -> list[Effect]:
        """Store a write, or let it wait for room."""
        settings = self._stock.settings
        if write.size > settings.max_pipe_bytes or len(write.chunks) > settings.max_pipe_chunks:
            raise Refusal(413, f"a pipe holds {settings.max_pipe_bytes} bytes, not {write.size}")
        if self._purging is pipe:
            return self._throw_away(pipe, write)
        known = pipe.producers.get(write.producer) if write.producer and pipe.producers else None
        if known is not None and write.first > known + 1 and not pipe.blocked:
            raise Refusal(409, f"the writer's chunk {known + 1} is missing")
        arrived = self.ordering.arrived(write.peer, now)
        pipe.heard_from(write.writer, arrived)
        if not pipe.blocked and self._has_room(pipe, write):
            return self._store(pipe, write, now)
        if settings.when_full == "refuse" or patience == 0:
            raise Refusal(429, self._stock.why_full(pipe))
        if patience is not None and arrived + patience <= now:
            raise self._too_late(pipe)
        write.cost = OVERHEAD + write.size + CHUNK_OVERHEAD * len(write.chunks)
        if self._blocked >= settings.max_blocked or not self.ordering.has_room(write.cost):
            raise Refusal(429, f"{self._stock.why_full(pipe)}, and too many writes wait for room")
        self._let_wait(pipe, write)
        if patience is not None:
            self.timers.set(write, arrived + patience, (pipe, write))
        return []

    def _let_wait(self, pipe: Pipe, write: BlockedWrite) -> None:
        if write.producer:
            # from now on it is known: what comes after this write is not stored without it
            pipe.producers = pipe.producers or {}
            pipe.producers.setdefault(write.producer, write.first - 1)
        if pipe.blocked is None:
            pipe.blocked = {}
        pipe.blocked.setdefault(write.writer, deque()).append(write)
        self.starved[pipe] = None
        self._short_of_all = self._short_of_all or not self._stock.has_room_in_all(len(write.chunks), write.size)
        self._blocked += 1
        self.ordering.wait(write.peer, write.cost)

    def unblock(self, now: float, pipe: Pipe | None = None) -> list[Effect]:
        """Store writes that waited, as far as there is room: those of a pipe that got room, each writer in turn."""
        effects: list[Effect] = []
        everywhere = pipe is None or self._short_of_all
        for each in list(self.starved) if everywhere else (pipe,):
            while each is not None and each.blocked:
                write = next(iter(each.blocked.values()))[0]
                if not self._has_room(each, write):
                    break
                self._end_waiting(each, write)
                stored = self._store(each, write, now)
                self.ordering.note_jobs(write.peer, stored)
                effects += stored
        self._short_of_all = self._short_of_all and bool(self.starved)
        return effects

    def _has_room(self, pipe: Pipe, write: BlockedWrite) -> bool:
        if not (write.producer and pipe.producers):
            return self._stock.has_room(pipe, len(write.chunks), write.size)
        new = write.chunks[_known_before(pipe, write) :]  # what was put before needs no room
        return self._stock.has_room(pipe, len(new), sum(map(len, new)))

    def _end_waiting(self, pipe: Pipe, write: BlockedWrite) -> None:
        self.timers.remove(write)
        if pipe.blocked:
            mine = pipe.blocked.pop(write.writer)
            mine.remove(write)
            if mine:
                pipe.blocked[write.writer] = mine  # at the end: now the others have their turn
        if not pipe.blocked:
            self.starved.pop(pipe, None)
        self._blocked -= 1
        self.ordering.waited(write.peer, write.cost)

    def _too_late(self, pipe: Pipe) -> Refusal:
        return Refusal(408, f"{self._stock.why_full(pipe)}; nothing was written")

    def waiting(self, pipe: Pipe) -> int:
        """Count the writes that wait for room in a pipe, with what is held behind them."""
        writes = (write for some in (pipe.blocked or {}).values() for write in some)
        return sum(1 + self.ordering.held(write.peer) for write in writes)

    # --- purging ------------------------------------------------------------------------------------------------------

    def purge(self, pipe: Pipe, go_on: Callable[[], list[Effect]]) -> tuple[int, list[Effect]]:
        """Throw away what waits for room in a pipe, also what is held behind it; give how many chunks those were.

        Their writers may be gone; those that are not are answered as if all had been stored before.
        """
        effects: list[Effect] = []
        self._purging, self._purged = pipe, 0
        try:
            while pipe.blocked:
                write = next(iter(pipe.blocked.values()))[0]
                self._end_waiting(pipe, write)
                thrown = self._throw_away(pipe, write)
                self.ordering.note_jobs(write.peer, thrown)
                effects += thrown
            effects += go_on()
        finally:
            self._purging = None
        return self._purged, effects

    def _throw_away(self, pipe: Pipe, write: BlockedWrite) -> list[Effect]:
        try:
            chunks = self._new_chunks(pipe, write) if write.producer else write.chunks
        except Refusal as refusal:
            return self.ordering.answer(write.peer, (*write.envelope, *refusal.frames))
        self._purged += len(chunks)
        answer = stored(pipe, write)
        if pipe.log is None or not pipe.log.kept:
            return [(SOCKET, answer)]
        known = (pipe.producers or {}).get(write.producer, 0)
        records: list[Record] = [Wrote(pipe.name, write.producer, known)] if write.producer else []
        return self._keeper.tell(records, when_safe(write.envelope, answer[len(write.envelope) :]))

    @property
    def due(self) -> float:
        """When there is something to do; infinity when there is not."""
        return self.timers.due

    def on_deadline(self, now: float) -> list[Effect]:
        """Refuse the writes that have waited long enough."""
        effects: list[Effect] = []
        for pipe, write in self.timers.expire(now):
            self._end_waiting(pipe, write)
            effects += self.ordering.answer(write.peer, (*write.envelope, *self._too_late(pipe).frames))
        return effects

    # --- storing ------------------------------------------------------------------------------------------------------

    def _store(self, pipe: Pipe, write: BlockedWrite, now: float) -> list[Effect]:
        """Put the chunks of a write into the pipe, and answer it."""
        try:
            chunks = self._new_chunks(pipe, write) if write.producer else write.chunks
        except Refusal as refusal:
            return [(SOCKET, (*write.envelope, *refusal.frames))]
        pipe.wrote = now
        if pipe.log is not None and pipe.log.kept:
            return self._store_on_disk(pipe, write, [bytes(chunk) for chunk in chunks])
        self._publish(pipe, write, self._number(pipe, chunks))
        return [*self._readers.serve(pipe, now), (SOCKET, stored(pipe, write))]

    def store_move(self, pipe: Pipe, write: BlockedWrite, undo: Callable[[], None], now: float) -> list[Effect]:
        """Put the chunks of a move, which has one number for all, into the pipe; ``undo`` if the disk refuses."""
        before = (pipe.producers or {}).get(write.producer, 0)
        _remember(pipe, write.producer, write.first)
        pipe.wrote = now
        if pipe.log is None or not pipe.log.kept:
            self._publish(pipe, write, self._number(pipe, write.chunks))
            return [*self._readers.serve(pipe, now), (SOCKET, stored(pipe, write))]
        numbered = self._number(pipe, [bytes(chunk) for chunk in write.chunks])
        records: list[Record] = [
            Stored(pipe.name, number, write.producer, write.first, chunk) for number, chunk in numbered
        ]
        answer = stored(pipe, write)

        def on_disk(result: JobResult, now: float) -> Iterable[Effect]:
            if result.error is None:
                if self._stock.pipes.get(pipe.name) is pipe:
                    self._publish(pipe, write, numbered)
                return [*self._readers.serve(pipe, now), (SOCKET, answer)]
            if self._stock.pipes.get(pipe.name) is pipe:
                self._stock.account(pipe, -len(numbered), -write.size)
            if pipe.producers:
                pipe.producers[write.producer] = min(pipe.producers.get(write.producer, before), before)
            undo()
            self._readers.emptied.append(pipe)
            return [(SOCKET, (*write.envelope, *disk_refused(result.error).frames))]

        return self._keeper.store(records or [Wrote(pipe.name, write.producer, write.first)], on_disk)

    def _new_chunks(self, pipe: Pipe, write: BlockedWrite) -> list[bytes]:
        """Leave out what this writer has put before."""
        if pipe.producers is None:
            pipe.producers = {}
        known = pipe.producers.get(write.producer, write.first - 1)
        if write.first > known + 1:
            raise Refusal(409, f"the writer's chunk {known + 1} is missing")
        chunks = write.chunks[_known_before(pipe, write) :]
        _remember(pipe, write.producer, max(known, write.first + len(write.chunks) - 1))
        return chunks

    def _number(self, pipe: Pipe, chunks: list[bytes]) -> list[tuple[int, bytes]]:
        first = pipe.written + 1
        size = sum(map(len, chunks))
        pipe.written += len(chunks)
        pipe.came += size
        self._stock.account(pipe, len(chunks), size)
        return list(enumerate(chunks, first))

    def _publish(self, pipe: Pipe, write: BlockedWrite, numbered: list[tuple[int, bytes]]) -> None:
        """Let readers see chunks that are accounted for already."""
        log = pipe.log
        if log is None:
            pipe.push_all(write.writer, (chunk for _, chunk in numbered), write.peer)
        elif numbered:
            log.chunks.update(numbered)
            log.last = numbered[-1][0]
            if log.open:
                pipe.push_all(write.writer, (number for number, _ in numbered), write.peer)

    def _store_on_disk(self, pipe: Pipe, write: BlockedWrite, chunks: list[bytes]) -> list[Effect]:
        numbered = self._number(pipe, chunks)
        counted = write.first + len(write.chunks) - len(chunks)
        records: list[Record] = [
            Stored(pipe.name, number, write.producer, place if write.producer else 0, chunk)
            for place, (number, chunk) in enumerate(numbered, counted)
        ]
        answer = stored(pipe, write)

        def on_disk(result: JobResult, now: float) -> Iterable[Effect]:
            if result.error is None:
                if self._stock.pipes.get(pipe.name) is pipe:
                    self._publish(pipe, write, numbered)
                return [*self._readers.serve(pipe, now), (SOCKET, answer)]
            if self._stock.pipes.get(pipe.name) is pipe:
                self._stock.account(pipe, -len(numbered), -sum(map(len, chunks)))
            if numbered and pipe.producers and write.producer in pipe.producers:
                pipe.producers[write.producer] = min(pipe.producers[write.producer], counted - 1)
            self._readers.emptied.append(pipe)
            return [(SOCKET, (*write.envelope, *disk_refused(result.error).frames))]

        return self._keeper.store(records, on_disk)


def _remember(pipe: Pipe, producer: bytes, number: int) -> None:
    """Note the last number of a writer; when there are too many writers, the one silent for longest is forgotten."""
    if pipe.producers is None:
        pipe.producers = {}
    pipe.producers.pop(producer, None)
    pipe.producers[producer] = number
    while len(pipe.producers) > MAX_PRODUCERS:
        del pipe.producers[next(iter(pipe.producers))]


def _known_before(pipe: Pipe, write: BlockedWrite) -> int:
    """Count the chunks of a write that its writer has put before."""
    known = (pipe.producers or {}).get(write.producer, write.first - 1)
    return max(0, known + 1 - write.first)


def stored(pipe: Pipe, write: BlockedWrite) -> Frames:
    """Return the answer to a write that is stored, with all that its writer has put so far.

    For a durable pipe call it when the write goes to the disk, not when it is there: what is put meanwhile is not safe.
    """
    if not write.producer:
        return (*write.envelope, OK)
    known = (pipe.producers or {}).get(write.producer, write.first - 1)
    return (*write.envelope, OK, b"%d" % (known + 1))
