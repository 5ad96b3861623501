"""The service itself: a state machine without I/O that speaks both dialects (docs/reference/zpipes-protocol.md).

The two commands that make up nearly all traffic, WRITE and READ of a DEALER socket, have fast paths; all commands are
in the table COMMANDS.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import ClassVar

from scale0_core.api import KIB, Effect, Endpoint, Event, FastPath, Frames, JobResult, SocketKind, get_logger
from scale0_zpipes.batches import ROOM, BatchError, TooManyChunksError, unpack_chunks
from scale0_zpipes.service.activity import Activity
from scale0_zpipes.service.answers import (
    OK,
    PONG,
    PROBE,
    SAYS_OK,
    SOCKET,
    Refusal,
    command_in,
    is_chunk,
    name_in,
    number_in,
    patience_in,
    when_safe,
)
from scale0_zpipes.service.forgotten import Forgotten
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.keeper import Keeper
from scale0_zpipes.service.ordering import OVERTAKING, Answer, Early
from scale0_zpipes.service.pipe import PRODUCER, BlockedWrite, Log, Pipe, Waiting
from scale0_zpipes.service.readers import Readers, use_nameless
from scale0_zpipes.service.records import Acked, Dropped, GroupDropped, Purged, Record, Removed
from scale0_zpipes.service.rows import group_row, pipe_row, stream_row
from scale0_zpipes.service.staging import MAX_MOVED, Staging
from scale0_zpipes.service.stock import Stock, TooLarge, group_of
from scale0_zpipes.service.streams import Streams
from scale0_zpipes.service.turns import Turn
from scale0_zpipes.service.writers import Writers
from scale0_zpipes.settings import ZpipesSettings

LOG = get_logger("plugin.zpipes")

SIGNATURE = b"\xaa\xa0"
"""The first bytes of every message of the binary dialect."""

MAX_PRODUCER = 64
MAX_LISTED = 1000
MAX_FETCHED = 100_000
SWEEP_SLICE = 1000
SWEEP_PAUSE = 0.01
NEVER = float("inf")


Method = Callable[["ZpipesService", Frames, Frames, float], Iterable[Effect]]


class ZpipesService:
    """Named pipes.

    Large, since it is a method for each request of the text dialect, and one for each thing that its parts need.
    """

    name = "zpipes"

    def __init__(
        self,
        settings: ZpipesSettings | None = None,
        bind: Iterable[str] = ("inproc://zpipes",),
        journal: Journal | None = None,
    ) -> None:
        self._settings = settings = settings or ZpipesSettings()
        self.endpoints: Mapping[str, Endpoint] = {
            SOCKET: Endpoint(
                kind=SocketKind.ROUTER,
                bind=bind,
                max_message=2 * settings.max_message + ROOM,
                blob_over=8 * KIB,
                watch_peers=True,
            )
        }
        self._stock = Stock(settings)
        self._pipes = self._stock.pipes
        self._keeper = Keeper(self._stock, settings.durable, journal)
        self._readers = Readers(self._stock, self._keeper)
        self._writers = Writers(self._stock, self._keeper, self._readers)
        self._staging = Staging(self._stock, self._keeper, self._writers, self._forget)
        self._too_large = TooLarge()
        self._streams = Streams(
            timeout=settings.binary_timeout, max_buffered=settings.max_pipe_bytes, max_total=settings.max_bytes,
            max_chunk=settings.max_message, too_large=self._too_large.note,
        )  # fmt: skip
        self._ordering = self._writers.ordering
        self._lines = self._ordering.lines
        self._early = Early(settings.max_blocked_bytes)
        self._probed: dict[bytes, list[tuple[Pipe, Turn]]] = {}
        """Writers that were asked at ``_probed_at`` whether they are there, by connection."""
        self._probed_at = NEVER
        self._leases: dict[tuple[Pipe, bytes], float] = {}
        """Groups with a lease, and when it ends."""
        self._activity: Activity | None = None
        """Tells how pipes are used, while somebody observes."""
        self._forgotten = Forgotten(settings.expire_empty or settings.expire or NEVER)
        self._sweep: list[bytes] = []
        times = [seconds for seconds in (settings.expire, settings.expire_empty) if seconds]
        self._sweep_every = max(0.1, min(times) / 10) if times else NEVER
        self._sweep_due = 0.0 if times else NEVER

    @property
    def events(self) -> list[Event] | None:
        """What happened since the last turn, or None while nobody observes."""
        return None if self._activity is None else self._activity.events

    @events.setter
    def events(self, events: list[Event] | None) -> None:
        self._activity = None if events is None else Activity(events)
        self._streams.observe(self._activity)

    # --- what the core calls ------------------------------------------------------------------------------------------

    @property
    def fast_paths(self) -> Iterable[FastPath]:
        """WRITE and READ of a DEALER socket, and the binary dialect. Who does not observe does not pay for it."""
        observed = self._activity is not None
        write = self._fast_write_observed if observed else self._fast_write
        read = self._fast_read_observed if observed else self._fast_read
        return FastPath(SOCKET, 4, 1, b"WRITE", write), FastPath(SOCKET, 3, 1, b"READ", read)

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take one request."""
        first = frames[1] if len(frames) > 1 else b""
        if (first[:2] if type(first) is bytes else memoryview(first)[:2]) == SIGNATURE:  # further frames are ignored
            if self._activity is None:
                return self._streams.receive(frames[0], bytes(first), now)
            replies = self._streams.receive_observed(frames[0], bytes(first), now)
            self._activity.streams_used(now)
            return replies
        if self._activity is not None:
            self._watch(frames, now)
        effects = [*self._settle(now), *self._request(frames, now)]
        return [*effects, *self._go_on(now)] if self._writers.starved or self._lines else effects

    def _watch(self, frames: Frames, now: float) -> Pipe | None:
        """Note that something is about to happen at the pipe that a request names; return the pipe."""
        place = 2 if len(frames) > 1 and len(frames[1]) else 3
        pipe = self._pipes.get(frames[place]) if len(frames) > place else None
        if pipe is not None and self._activity is not None:
            self._activity.watch(pipe, now)
        return pipe

    def _fast_write(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        peer, _, name, chunk = frames
        pipe = self._pipes.get(name)
        length = len(chunk)
        if (
            pipe is None
            or pipe.log is not None
            or pipe.blocked
            or peer in self._lines
            or length > self._stock.max_chunk
        ):
            return None
        if pipe.waiting:
            waiting = pipe.waiting[0]
            if type(waiting) is not tuple or pipe.depth or self._readers.refusing:
                return None
            pipe.waiting.popleft()
            pipe.written += 1
            pipe.wrote = now
            answer = (*waiting, chunk)
            if pipe.reads_others or not pipe.links:
                self._readers.note_delivery(pipe, answer, now)
            return ((socket, answer), (socket, (peer, OK)))
        stock = self._stock
        own, total = pipe.bytes + length, stock.bytes + length
        if (
            own > stock.max_pipe_bytes
            or total > stock.max_bytes
            or pipe.depth >= stock.max_pipe_chunks
            or stock.depth >= stock.max_chunks
        ):
            return None
        pipe.written += 1
        pipe.wrote = now
        pipe.depth += 1
        pipe.bytes = own
        stock.depth += 1
        stock.bytes = total
        if pipe.writer == peer and pipe.turns is None and pipe.queue is not None:
            pipe.queue.append(chunk)
        else:
            pipe.push(peer, chunk)
        return ((socket, (peer, OK)),)

    def _fast_read(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        peer, _, name = frames
        pipe = self._pipes.get(name)
        if pipe is None or pipe.reader != peer or pipe.log is not None or pipe.lent:
            return None
        if not pipe.depth:
            queue = pipe.waiting
            if queue is None or len(queue) >= self._settings.max_waiting or (queue and type(queue[0]) is not tuple):
                return None
            pipe.heard = now
            queue.append((peer,))
            return ()
        pipe.heard = now
        chunk = pipe.queue.popleft() if pipe.queue else pipe.pop()
        length = len(chunk)
        pipe.depth -= 1
        pipe.bytes -= length
        stock = self._stock
        stock.depth -= 1
        stock.bytes -= length
        answer = (peer, chunk)
        if pipe.reads_others or not pipe.links:
            self._readers.note_delivery(pipe, answer, now)
        if self._writers.starved:
            return [(socket, answer), *self._go_on(now, pipe)]
        return ((socket, answer),)

    def _fast_write_observed(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        pipe = self._watch(frames, now)
        effects = self._fast_write(socket, frames, now)
        if effects is not None and pipe is not None:
            pipe.came += len(frames[3])
        return effects

    def _fast_read_observed(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        self._watch(frames, now)
        return self._fast_read(socket, frames, now)

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        # asked once a turn of the loop, and mostly there is nothing but the sweep
        due = min(self._sweep_due, self._keeper.due)
        readers, writers = self._readers, self._writers
        if readers.timers or readers.unsettled:
            due = min(due, readers.due)
        if writers.timers:
            due = min(due, writers.due)
        if self._staging.opened:
            due = min(due, self._staging.due)
        if self._leases:
            due = min(due, *self._leases.values())
        if self._activity is not None:
            due = min(due, self._activity.due)
        stream = self._streams.next_deadline()
        if stream is not None and stream < due:
            return stream
        return None if due == NEVER else due

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        effects: list[Effect] = [*self._streams.on_deadline(now)]
        effects += self._readers.on_deadline(now)
        effects += self._settle(now)
        effects += self._writers.on_deadline(now)
        effects += self._keeper.on_deadline(now)
        if self._sweep_due <= now:
            effects += self._expire(now)
        if self._staging.opened:
            effects += self._staging.on_deadline(now)
        if self._leases and min(self._leases.values()) <= now:
            effects += self._end_leases(now)
        effects += self._go_on(now)
        if self._activity is not None:
            self._activity.streams_used(now)
            if self._activity.due <= now:
                self._activity.on_deadline(now)
        return effects

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Tell the disk what was read."""
        if self._activity is not None:
            self._activity.stop(now)
        return [*self._settle(now, at_once=True), *self._keeper.on_stop()]

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Take what the disk says."""
        if self._keeper.recovering:
            self._keeper.recovered(result, now)
            return self._begin(now)
        effects = [*self._keeper.done(result, now), *self._settle(now)]
        self._ordering.job_done(result.token)
        return [*effects, *self._go_on(now)]

    def on_delayed(self, socket: str, frames: Frames, now: float) -> None:
        """Note that a chunk is not with its reader yet."""
        if is_chunk(frames) and self._readers.knows(frames, now):
            self._readers.delayed(frames, now)

    def on_sent(self, socket: str, frames: Frames, now: float) -> None:
        """Note that a chunk that had to wait has left."""
        self._readers.sent(frames, now)

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Effect]:
        """Note that a connection was lost."""
        self._readers.connection_lost(now)
        return ()

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Take a chunk back that its reader could not be given."""
        peer = frames[0]
        if frames[-1] is PROBE:
            for probed, turn in self._probed.pop(peer, ()):
                probed.lose(turn, now)
        is_binary = len(frames) == 2 and memoryview(frames[1])[:2] == SIGNATURE
        is_given = is_chunk(frames) and self._readers.knows(frames, now)
        if is_binary and (self._streams.knows(peer) or not is_given):
            replies = self._streams.undelivered(peer, bytes(frames[1]), reason == "EHOSTUNREACH", now)
            if self._activity is not None:
                self._activity.streams_used(now)
            return replies
        if is_given:
            pipe = self._readers.take_back(frames, now)
            if pipe is not None:
                self._pipes.setdefault(pipe.name, pipe)  # it may have been forgotten as empty
        # it is gone; or so far behind that even the core gave up: whatever it waited for, it will not get
        return [effect for pipe in self._readers.gone(peer, now) for effect in self._forget_if_unused(pipe, now)]

    # --- requests -----------------------------------------------------------------------------------------------------

    def _request(self, frames: Frames, now: float) -> Iterable[Effect]:
        line = self._lines.get(frames[0])
        if line is not None and (line.waits or line.held or line.on_disk):
            start, word = command_in(frames)
            if word not in OVERTAKING and (line.waits or line.held or not self._goes_to_disk(word, frames[start:])):
                self._ordering.hold(line, frames, frames[:start], now)
                return ()
        return self._take(frames, now)

    def _goes_to_disk(self, word: bytes, frames: Frames) -> bool:
        """Tell whether a request is answered by the disk, so after all that it owes."""
        pipe = self._pipes.get(bytes(frames[1])) if word in (b"WRITE", b"PUT", b"MOVE") and len(frames) > 1 else None
        return pipe is not None and pipe.log is not None and pipe.log.kept

    def _take(self, frames: Frames, now: float) -> Iterable[Effect]:
        """Carry out a request; what it answers is the next answer of its connection."""
        start, word = command_in(frames)
        envelope = frames[:start]
        try:
            if self._keeper.recovering:
                self._early.hold(frames, envelope)
                return ()
            if len(frames) == start:
                raise Refusal(400, "a request has a command")
            if word not in self.COMMANDS:
                raise Refusal(501, f"there is no such command; there are {', '.join(map(bytes.decode, self.COMMANDS))}")
            method, least, most = self.COMMANDS[word]
            arguments = frames[start + 1 :]
            if not least <= len(arguments) <= most:
                several = str(least) if least == most else f"{least} to {most}"
                raise Refusal(400, f"{word.decode()} takes {several} frames, not {len(arguments)}")
            effects = method(self, envelope, arguments, now)
        except Refusal as refusal:
            says = (*envelope, *refusal.frames)
            in_order = word not in OVERTAKING
            return [*refusal.before, *(self._ordering.answer(frames[0], says) if in_order else [(SOCKET, says)])]
        if word not in OVERTAKING:
            self._ordering.note_jobs(frames[0], effects)
        return effects

    def _go_on(self, now: float, pipe: Pipe | None = None) -> list[Effect]:
        """Store what waited for room, as far as there is some now, and take what was held behind it."""
        effects = self._writers.unblock(now, pipe) if self._writers.starved else []
        ready = self._ordering.ready
        while ready:
            effects += self._advance(ready.popleft(), now)
            if self._writers.starved:
                effects += self._writers.unblock(now)
        return effects

    def _advance(self, peer: bytes, now: float) -> list[Effect]:
        """Take the requests of a connection that were held, until one has no answer yet."""
        effects: list[Effect] = []
        line = self._lines.get(peer)
        while line is not None:
            effects += self._ordering.take(peer, line)
            entry = line.held[0] if line.held else None
            if line.waits or not isinstance(entry, tuple):
                break
            start, word = command_in(entry[1])
            if line.on_disk and not self._goes_to_disk(word, entry[1][start:]):
                break
            effects += self._take(self._ordering.next_request(line), now)
            line.arrived = None
        return effects

    def _begin(self, now: float) -> list[Effect]:
        """Take the requests that came before the pipes on disk were known."""
        effects: list[Effect] = []
        for each in self._early.take_all():
            if isinstance(each, Answer):
                effects += self._ordering.answer_last(each.frames[0], each)
            else:
                effects += self.receive(SOCKET, each, now)
        return [*effects, *self._go_on(now)]

    def _open(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        name = name_in(arguments[0])
        pipe = self._pipes.get(name)
        if len(arguments) > 1:
            self._staging.open(name, patience_in(arguments[1]), now)
            return [(SOCKET, (*envelope, OK))]
        if pipe is None:
            pipe = self._stock.make(name, now)
            pipe.producers = self._forgotten.recall(name, now)
            if self._keeper.keeps(name):
                pipe.keep_log(kept=True)
        asked = self._ask_for_writers(pipe, now) if pipe.readable else []
        pipe.links += 1
        pipe.wrote = now
        return [*asked, (SOCKET, (*envelope, OK))]

    def _ask_for_writers(self, pipe: Pipe, now: float) -> list[Effect]:
        """Find out who left chunks and is gone: what they left comes before those of writers that begin now.

        A writer that uses PUT is asked; if that cannot be delivered, it is gone. Another cannot be asked, so it counts
        as gone until it is heard.
        """
        if now != self._probed_at:
            self._probed_at = now
            self._probed.clear()
        asked: list[Effect] = []
        for turn in pipe.silent_since(self._readers.lost):
            if turn.key.startswith(PRODUCER):
                turn.heard = now
                self._probed.setdefault(turn.peer, []).append((pipe, turn))
                asked.append((SOCKET, (turn.peer, PROBE)))
            else:
                pipe.lose(turn, now)
        return asked

    def _close(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe = self._stock.pipe(arguments[0])
        if not pipe.links:
            raise Refusal(404, "all links of the pipe are closed already")
        pipe.links -= 1
        pipe.left(envelope[0])
        effects: list[Effect] = []
        if not pipe.links and pipe.reader == envelope[0]:
            effects += self._readers.displace(pipe, Refusal(404, "the pipe was closed by this reader"))
        return [*effects, (SOCKET, (*envelope, OK)), *self._forget_if_unused(pipe, now)]

    def _write(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe, chunk = self._stock.pipe(arguments[0]), arguments[1]
        self._check_size(pipe, len(chunk), now)
        return self._writers.admit(pipe, BlockedWrite(envelope, [chunk], len(chunk)), None, now)

    def _put(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe = self._stock.pipe(arguments[0])
        producer, first = bytes(arguments[1]), number_in(arguments[2], "the number of the first chunk")
        if not 1 <= len(producer) <= MAX_PRODUCER or not first:
            raise Refusal(400, f"a writer's id has 1 to {MAX_PRODUCER} bytes, and its chunks are counted from 1")
        try:
            chunks = unpack_chunks(arguments[3], self._settings.max_pipe_chunks)
        except TooManyChunksError as error:
            raise Refusal(413, f"{error}, which a pipe may hold") from error
        except BatchError as error:
            raise Refusal(400, str(error)) from error
        patience = patience_in(arguments[4]) if len(arguments) > 4 else None
        self._check_size(pipe, max(map(len, chunks), default=0), now)
        write = BlockedWrite(envelope, chunks, sum(map(len, chunks)), producer, first)
        return self._writers.admit(pipe, write, patience, now)

    def _check_size(self, pipe: Pipe, size: int, now: float) -> None:
        if size > self._stock.max_chunk:
            self._too_large.note(pipe.name, size, now)
            raise Refusal(413, f"a chunk has at most {self._stock.max_chunk} bytes, not {size}")

    def _move(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe, writer = self._stock.pipe(arguments[0]), bytes(arguments[1])
        number = number_in(arguments[2], "the number of the move")
        if not 1 <= len(writer) <= MAX_PRODUCER or not number:
            raise Refusal(400, f"a writer's id has 1 to {MAX_PRODUCER} bytes, and its moves are counted from 1")
        return self._staging.move(pipe, BlockedWrite(envelope, [], 0, writer, number), arguments[3:], now)

    def _read(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe = self._stock.pipe(arguments[0])
        patience = patience_in(arguments[1]) if len(arguments) > 1 else None
        effects = self._readers.enter(pipe, envelope[0], now)
        if pipe.lent:
            raise Refusal(409, "chunks that FETCH has lent are not acknowledged yet")
        if pipe.waiting and isinstance(pipe.waiting[0], Waiting) and pipe.waiting[0].chunks:
            raise Refusal(409, "a FETCH waits already")
        read = envelope if patience is None else Waiting(envelope)
        return [*effects, *self._readers.wait(pipe, read, patience, now)]

    def _rows(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        if not len(arguments[1]):
            raise Refusal(400, "ROWS is for groups with a name")
        return self._fetch(envelope, arguments, now, columns=True)

    def _fetch(self, envelope: Frames, arguments: Frames, now: float, *, columns: bool = False) -> Iterable[Effect]:
        pipe, group = self._stock.pipe(arguments[0]), bytes(arguments[1])
        chunks = max(1, number_in(arguments[3], "the number of chunks", MAX_FETCHED))
        size = number_in(arguments[4], "the number of bytes")
        patience = patience_in(arguments[5])
        if not group:
            if len(arguments[2]):
                raise Refusal(400, "the nameless group reads what is next, so no number is given")
            effects = self._readers.enter(pipe, envelope[0], now)
            return [*effects, *self._readers.wait(pipe, Waiting(envelope, chunks, size), patience, now)]
        log, acknowledged = group_of(pipe, group)
        self._renew(pipe, log, group, now + patience)
        start = number_in(arguments[2], "the number to begin with")
        if start <= acknowledged:
            raise Refusal(410, f"the group has acknowledged all up to {acknowledged}")
        if columns and start <= log.purged:
            raise Refusal(410, f"all up to {log.purged} was thrown away")
        read = Waiting(envelope, chunks, size, start, columns=columns)
        return self._readers.wait_for_group(pipe, log, read, patience, now)

    def _ack(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe, group = self._stock.pipe(arguments[0]), bytes(arguments[1])
        number = number_in(arguments[2], "the number")
        if number >= pipe.following:
            raise Refusal(400, f"there is no chunk {number} yet")
        if group:
            log, acknowledged = group_of(pipe, group)
            self._renew(pipe, log, group, now)
            log.groups[group] = max(number, acknowledged)
            leased = group in log.leases
            records: list[Record] = [] if leased else [Acked(pipe.name, group, log.groups[group])]
            return self._acknowledged(pipe, log, envelope, records)
        if pipe.lent and pipe.reader != envelope[0]:
            raise Refusal(409, "the chunks are lent to another reader")
        pipe.heard = now
        self._readers.acknowledge(pipe, number, now)
        if (
            pipe.log is not None and pipe.log.kept
        ):  # also what was acknowledged before: it may be on its way to the disk
            return self._keeper.tell([], when_safe(envelope, SAYS_OK))
        return [(SOCKET, (*envelope, OK)), *self._forget_if_unused(pipe, now)]

    def _make_group(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe, group = self._stock.pipe(arguments[0]), name_in(arguments[1])
        lease = patience_in(arguments[3]) if len(arguments) > 3 else 0.0
        if pipe.log is not None and group in pipe.log.groups:
            self._renew(pipe, pipe.log, group, now)
            found = (OK, b"%d" % (pipe.log.groups[group] + 1))
            if pipe.log.kept and group not in pipe.log.leases:  # it may be on its way to the disk
                return self._keeper.tell([], when_safe(envelope, found))
            return [(SOCKET, (*envelope, *found))]
        begin = bytes(arguments[2]) if len(arguments) > 2 else b"first"
        ends = {b"first": pipe.first, b"next": pipe.following}
        first = ends[begin] if begin in ends else number_in(begin, "the number to begin with")
        if not pipe.first <= first <= pipe.following:
            raise Refusal(410, f"a group begins between {pipe.first} and {pipe.following}")
        log = pipe.keep_log()
        if not lease and log.groups.keys() == log.leases.keys():
            # from the first group that stays, chunks are kept for groups; but what it does not begin with is nobody's
            log.open = pipe.was_read or first > pipe.first
            if not log.open:
                pipe.throw_away()
        log.add_group(group, first - 1)
        says = (OK, b"%d" % first)
        if lease:
            log.leases[group] = lease
            self._renew(pipe, log, group, now)
            return [(SOCKET, (*envelope, *says))]
        return self._acknowledged(pipe, log, envelope, [Acked(pipe.name, group, first - 1)], says)

    def _renew(self, pipe: Pipe, log: Log, group: bytes, now: float) -> None:
        """Let the lease of a group begin anew, if it has one."""
        if group in log.leases:
            self._leases[pipe, group] = now + log.leases[group]

    def _end_leases(self, now: float) -> list[Effect]:
        """Forget groups that were not used for as long as they wanted to be kept."""
        effects: list[Effect] = []
        for (pipe, group), due in list(self._leases.items()):
            if due <= now:
                del self._leases[pipe, group]
                if pipe.log is not None and group in pipe.log.leases and self._pipes.get(pipe.name) is pipe:
                    LOG.info("a group that nobody used is forgotten", pipe=pipe.name, group=group)
                    self._without(pipe, pipe.log, group)
                    removed, size = pipe.log.trim()
                    self._stock.account(pipe, -len(removed), -size)
                    if pipe.log.kept:
                        for number in removed:
                            self._keeper.removed(pipe, number, now)
                    effects += self._forget_if_unused(pipe, now)
        return effects

    def _drop_group(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe, group = self._stock.pipe(arguments[0]), bytes(arguments[1])
        log, _ = group_of(pipe, group)
        records: list[Record] = [] if group in log.leases else [GroupDropped(pipe.name, group)]
        taken = self._without(pipe, log, group)
        if taken:
            records.append(Removed(pipe.name, taken))
        return [*self._acknowledged(pipe, log, envelope, records), *self._forget_if_unused(pipe, now)]

    def _list_groups(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        log = self._stock.pipe(arguments[0]).log
        rows = [] if log is None else [group_row(log, group, *waits) for group, waits in log.behind().items()]
        return [(SOCKET, (*envelope, b"GROUPS", json.dumps({"groups": rows}).encode()))]

    def _without(self, pipe: Pipe, log: Log, group: bytes) -> list[int]:
        """Take a group away; give the chunks that go with it, since the nameless reader is done with them."""
        del log.groups[group]
        log.leases.pop(group, None)
        self._leases.pop((pipe, group), None)
        if log.groups.keys() != log.leases.keys():
            return []
        use_nameless(pipe, log)
        if log.groups:
            return []
        taken, log.taken = sorted(log.taken), set()
        for number in taken:
            self._stock.account(pipe, -1, -log.done(number))
        return taken

    def _acknowledged(
        self, pipe: Pipe, log: Log, envelope: Frames, records: list[Record], says: Frames = SAYS_OK
    ) -> list[Effect]:
        """Remove what no group needs any more, and answer; of a durable pipe when that is on disk."""
        removed, size = log.trim()
        self._stock.account(pipe, -len(removed), -size)
        if not log.kept:
            return [(SOCKET, (*envelope, *says))]
        if removed:
            records.append(Removed(pipe.name, removed))
        return self._keeper.tell(records, when_safe(envelope, says))

    def _purge(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe = self._stock.pipe(arguments[0])
        log = pipe.log
        if self._activity is not None:
            self._activity.leave(pipe, now)
        pipe.throw_away()
        pipe.lent = None
        if log is None:
            chunks, size = pipe.depth, pipe.bytes
        else:  # what is on its way to the disk stays
            chunks, size = len(log.chunks), sum(map(len, log.chunks.values()))
            log.chunks.clear()
            log.taken.clear()
            log.purged = log.last
        self._stock.account(pipe, -chunks, -size)
        waited, effects = self._writers.purge(pipe, lambda: self._go_on(now))
        says = (OK, b"%d" % (chunks + waited))
        if log is not None and log.kept:
            return [*effects, *self._keeper.tell([Purged(pipe.name, log.last + 1)], when_safe(envelope, says))]
        return [*effects, (SOCKET, (*envelope, *says)), *self._forget_if_unused(pipe, now)]

    def _info(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        pipe = self._stock.pipe(arguments[0])
        row = pipe_row(pipe, self._stock.max_chunk, self._writers.waiting(pipe), now)
        return [(SOCKET, (*envelope, b"INFO", json.dumps(row).encode()))]

    def _list(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        prefix, after = (bytes(arguments[place]) if len(arguments) > place else b"" for place in (0, 1))
        limit = number_in(arguments[2], "the limit", MAX_LISTED) if len(arguments) > 2 else MAX_LISTED
        names = sorted(name for name in self._pipes if name.startswith(prefix) and name > after)
        told = {
            "pipes": [
                pipe_row(pipe, self._stock.max_chunk, self._writers.waiting(pipe), now)
                for pipe in map(self._pipes.__getitem__, names[:limit])
            ],
            "more": names[limit - 1].hex() if 0 < limit < len(names) else None,
            "streams": [] if after else [stream_row(row) for row in self._streams.rows()[:limit]],
        }
        return [(SOCKET, (*envelope, b"LIST", json.dumps(told).encode()))]

    def _ping(self, envelope: Frames, arguments: Frames, now: float) -> Iterable[Effect]:
        return [(SOCKET, (*envelope, PONG))]

    # --- pipes that nobody uses ---------------------------------------------------------------------------------------

    def _settle(self, now: float, *, at_once: bool = False) -> list[Effect]:
        """Be done with what was delivered before, and forget pipes that were closed and are empty now."""
        self._readers.settle(now, at_once=at_once)
        emptied, self._readers.emptied = self._readers.emptied, []
        return [effect for pipe in emptied for effect in self._forget_if_unused(pipe, now)]

    def _forget_if_unused(self, pipe: Pipe, now: float) -> Iterable[Effect]:
        if pipe.links or pipe.depth or pipe.in_use or self._pipes.get(pipe.name) is not pipe:
            return ()
        if pipe.log is not None and pipe.log.kept and pipe.producers:
            return ()  # a writer that had no answer may put its last chunks again; the pipe expires in time
        if pipe.producers and not pipe.lease:  # the same for a pipe in memory, which goes at once
            self._forgotten.remember(pipe, now)
        return self._forget(pipe, now)

    def _forget(self, pipe: Pipe, now: float) -> Iterable[Effect]:
        if self._activity is not None:
            self._activity.leave(pipe, now)
        del self._pipes[pipe.name]
        self._stock.account(pipe, -pipe.depth, -pipe.bytes)
        self._readers.leave(pipe, now)
        self._keeper.forget(pipe)
        return self._keeper.tell([Dropped(pipe.name)]) if pipe.log is not None and pipe.log.kept else ()

    def _expire(self, now: float) -> list[Effect]:
        """Look at some of the pipes, and forget those that nobody has used for long."""
        self._forgotten.expire(now)
        if not self._sweep:
            self._sweep = list(self._pipes)
        effects: list[Effect] = []
        for _ in range(min(SWEEP_SLICE, len(self._sweep))):
            pipe = self._pipes.get(self._sweep.pop())
            if pipe is None:
                continue
            limit = self._settings.expire if pipe.depth else self._settings.expire_empty or self._settings.expire
            idle = now - max(pipe.heard, pipe.wrote)
            if not limit or idle < limit:
                continue
            if (pipe.waiting or pipe.lent) and self._readers.lost_since_heard(pipe):
                effects += self._readers.displace(
                    pipe, Refusal(408, "nobody wrote for long, and a connection was lost")
                )
            if not pipe.in_use:
                LOG.info("a pipe that nobody used is forgotten", pipe=pipe.name, chunks=pipe.depth, idle=f"{idle:.0f}s")
                effects += self._forget(pipe, now)
        self._sweep_due = now + (SWEEP_PAUSE if self._sweep else self._sweep_every)
        return effects

    COMMANDS: ClassVar[Mapping[bytes, tuple[Method, int, int]]] = {
        b"OPEN": (_open, 1, 2),
        b"CLOSE": (_close, 1, 1),
        b"WRITE": (_write, 2, 2),
        b"READ": (_read, 1, 2),
        b"PUT": (_put, 4, 5),
        b"MOVE": (_move, 3, 3 + MAX_MOVED),
        b"FETCH": (_fetch, 6, 6),
        b"ROWS": (_rows, 6, 6),
        b"ACK": (_ack, 3, 3),
        b"GROUP": (_make_group, 2, 4),
        b"UNGROUP": (_drop_group, 2, 2),
        b"GROUPS": (_list_groups, 1, 1),
        b"INFO": (_info, 1, 1),
        b"LIST": (_list, 0, 3),
        b"PURGE": (_purge, 1, 1),
        b"PING": (_ping, 0, 0),
    }
    """Each command with the least and the most frames that follow it."""
