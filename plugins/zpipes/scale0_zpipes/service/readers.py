"""Reading: who waits at a pipe, what was lent or delivered, and what comes back."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from scale0_core.api import Deadlines, Effect, Frames, get_logger
from scale0_zpipes.batches import pack_columns, pack_numbered
from scale0_zpipes.service.answers import PROBE, SOCKET, Refusal
from scale0_zpipes.service.keeper import Keeper
from scale0_zpipes.service.pipe import Log, Pipe, Waiting
from scale0_zpipes.service.stock import Stock

LOG = get_logger("plugin.zpipes")

MOST_IN_COLUMNS = 2**31 - 1
"""Bytes that an answer in columns may have: its offsets have 4 bytes."""

TOO_MANY = Refusal(429, "too many reads wait at this pipe")

SETTLE_AFTER = 0.001
"""Seconds after which a chunk is known to be delivered: when it was sent, or came back, the same turn is still on."""


class Readers:
    """All readers of all pipes.

    Large, since it is a method for each thing that a reader may ask for or that happens to one.
    """

    def __init__(self, stock: Stock, keeper: Keeper) -> None:
        self._stock = stock
        self._keeper = keeper
        self._pipes_of: dict[bytes, set[Pipe]] = {}
        self.lost = float("-inf")
        """When a connection was lost last."""
        self.refusing: set[Pipe] = set()
        """Pipes at which reads stand that get no chunk, but must wait for their turn."""
        self.timers: Deadlines[Waiting, tuple[Pipe, Waiting]] = Deadlines(0)
        self._delivered: list[tuple[Frames, Pipe, int]] = []
        """Chunks delivered at ``_delivered_at`` of which it must be known where they came from."""
        self._delivered_at = float("-inf")
        self.unsettled = False
        self.emptied: list[Pipe] = []
        """Pipes of which something was delivered for good: perhaps nobody needs them any more."""
        self._delayed: dict[int, tuple[Frames, Pipe, int]] = {}
        """Chunks that wait, in the core, for a reader that reads slowly."""
        self._former: dict[bytes, Pipe] = {}
        """Who read which pipe and left it at ``_former_at``."""
        self._former_at = float("-inf")
        self._returned: dict[Pipe, int] = {}
        """How many chunks came back to each pipe in this turn."""
        self._returned_at = float("-inf")

    # --- a pipe's reader ----------------------------------------------------------------------------------------------

    def connection_lost(self, now: float) -> None:
        """Note that some connection was lost: from now on another reader may take the place of a silent one."""
        self.lost = now

    def enter(self, pipe: Pipe, peer: bytes, now: float) -> list[Effect]:
        """Let a peer read a pipe; one that waits there already stays, unless it may be gone."""
        effects: list[Effect] = []
        self._returned.clear()
        if pipe.reader != peer:
            if pipe.waiting or pipe.lent:
                effects += self._contend(pipe)
            self.leave(pipe, now)
            self._take_place(pipe, peer)
        pipe.heard = now
        if not pipe.was_read:
            pipe.was_read = True
            if pipe.log is not None and pipe.log.kept:
                self._keeper.passed(pipe, pipe.log.passed, now)
        if pipe.log is not None and not pipe.log.open:
            use_nameless(pipe, pipe.log)
        return effects

    def _contend(self, pipe: Pipe) -> list[Effect]:
        """Take the place of a reader that may be gone and cannot be asked; or else be refused."""
        busy = "another reader is at this pipe; a pipe has one at a time"
        if self.lost < pipe.heard or pipe.reader is None:
            raise Refusal(409, busy)
        first = pipe.waiting[0] if pipe.waiting else None
        if pipe.lent or (isinstance(first, Waiting) and first.chunks):
            # who uses FETCH knows the probe; if it cannot be delivered, the next try finds the place free
            raise Refusal(409, busy, [(SOCKET, (pipe.reader, PROBE))])
        return self.displace(pipe, Refusal(409, "another reader has taken your place"))

    def _take_place(self, pipe: Pipe, peer: bytes) -> None:
        pipe.reader = peer
        pipes = self._pipes_of.setdefault(peer, set())
        pipes.add(pipe)
        if len(pipes) > 1:
            for each in pipes:
                each.reads_others = True

    def leave(self, pipe: Pipe, now: float) -> None:
        """Let a pipe have no reader."""
        if pipe.reader is not None:
            if now != self._former_at:
                self._former_at = now
                self._former.clear()
            self._former[pipe.reader] = pipe
        if pipe.reader is not None and (pipes := self._pipes_of.get(pipe.reader)) is not None:
            pipes.discard(pipe)
            if not pipes:
                del self._pipes_of[pipe.reader]
            # the one that may be left stays one of several: what it is given in this turn may come back, and must
            # not be taken for a chunk of the pipe that was left
        pipe.reader = None
        pipe.reads_others = False

    def displace(self, pipe: Pipe, refusal: Refusal) -> list[Effect]:
        """Take a reader's place away: what was lent to it goes back, and its reads are refused."""
        waiting = self._clear(pipe)
        return [
            (SOCKET, (*envelope_of(each), *refusal.frames))
            for each in waiting
            for _ in range(each.times if isinstance(each, Waiting) else 1)
        ]

    def _clear(self, pipe: Pipe) -> Iterable[Frames | Waiting]:
        if pipe.lent:
            pipe.give_back(pipe.lent)
        waiting, pipe.lent, pipe.waiting = pipe.waiting or (), None, None
        self.refusing.discard(pipe)
        for each in waiting:
            if isinstance(each, Waiting):
                self._end(each)
        return waiting

    def _end(self, read: Waiting) -> None:
        read.over = True
        self.timers.remove(read)

    def gone(self, peer: bytes, now: float) -> list[Pipe]:
        """Let go of all that a peer was waiting for or was lent; give the pipes that it read."""
        pipes = list(self._pipes_of.get(peer, ()))
        for pipe in pipes:
            self._clear(pipe)
            self.leave(pipe, now)
        return pipes

    def lost_since_heard(self, pipe: Pipe) -> bool:
        """Tell whether a reader that waits may be gone."""
        return self.lost >= pipe.heard

    # --- waiting and being served -------------------------------------------------------------------------------------

    def wait(self, pipe: Pipe, read: Frames | Waiting, patience: float | None, now: float) -> list[Effect]:
        """Answer a read of the nameless reader, or let it wait."""
        if pipe.waiting is None:
            pipe.waiting = deque()
        if len(pipe.waiting) >= self._stock.settings.max_waiting:
            self._refuse_in_turn(pipe, pipe.waiting, envelope_of(read))
            return []
        pipe.waiting.append(read)
        effects = self.serve(pipe, now)
        if isinstance(read, Waiting) and patience is not None and not read.over:
            effects += self._set_timer(pipe, read, patience, now)
        return effects

    def wait_for_group(self, pipe: Pipe, log: Log, read: Waiting, patience: float, now: float) -> list[Effect]:
        """Answer a group's read, or let it wait."""
        if read.start <= log.last:
            return [self._batch_for_group(log, read)]
        if len(log.fetching) >= self._stock.settings.max_waiting:
            raise TOO_MANY
        log.fetching.append(read)
        return self._set_timer(pipe, read, patience, now)

    def _refuse_in_turn(self, pipe: Pipe, waiting: deque[Frames | Waiting], envelope: Frames) -> None:
        """Refuse a read when those before it are answered: its answer must not be taken for one of theirs."""
        last = waiting[-1]
        if isinstance(last, Waiting) and last.refusal and last.envelope == envelope:
            last.times += 1
            return
        refused = Waiting(envelope)
        refused.refusal = TOO_MANY.frames
        waiting.append(refused)
        self.refusing.add(pipe)

    def _answer_head(self, pipe: Pipe) -> list[Effect]:
        """Answer the reads at the head that get no chunk."""
        effects: list[Effect] = []
        while pipe.waiting and isinstance(read := pipe.waiting[0], Waiting) and (read.late or read.refusal):
            if read.refusal:
                pipe.waiting.popleft()
                effects += [(SOCKET, (*read.envelope, *read.refusal))] * read.times
            elif pipe.readable:
                break
            else:
                effects.append(self._timed_out(pipe, read))
        if not pipe.waiting:
            self.refusing.discard(pipe)
        return effects

    def _set_timer(self, pipe: Pipe, read: Waiting, patience: float, now: float) -> list[Effect]:
        if not patience:
            return self._time_is_over(pipe, read)
        self.timers.set(read, now + patience, (pipe, read))
        return []

    def serve(self, pipe: Pipe, now: float) -> list[Effect]:
        """Give chunks to those that wait for them."""
        effects: list[Effect] = []
        log = pipe.log
        if pipe in self.refusing:
            effects += self._answer_head(pipe)
        while pipe.waiting and pipe.readable:
            read = pipe.waiting.popleft()
            effects.append((SOCKET, self._chunk_for(pipe, read, now)))
            if pipe in self.refusing:
                effects += self._answer_head(pipe)
        if log is not None and log.fetching:
            effects += self._serve_groups(log)
        return effects

    def _chunk_for(self, pipe: Pipe, read: Frames | Waiting, now: float) -> Frames:
        """Answer a read with the next chunk, or the next ones."""
        if isinstance(read, Waiting):
            self._end(read)
            if read.chunks:
                return self._lend(pipe, read)
        item = pipe.pop()
        if pipe.log is None:
            self._stock.account(pipe, -1, -len(item))
            answer = (*envelope_of(read), item)
            if pipe.reads_others or not pipe.links:
                self.note_delivery(pipe, answer, now)
        else:
            answer = (*envelope_of(read), pipe.log.chunks[item])
            self.note_delivery(pipe, answer, now, item)
        return answer

    def _serve_groups(self, log: Log) -> list[Effect]:
        ready = [read for read in log.fetching if read.start <= log.last]
        if ready:
            log.fetching = [read for read in log.fetching if read.start > log.last]
        for read in ready:
            self._end(read)
        return [self._batch_for_group(log, read) for read in ready]

    def _batch_for_group(self, log: Log, read: Waiting) -> Effect:
        most = min(read.size, self._stock.settings.max_message)
        if read.columns:
            numbers, chunks, following = log.chosen(read.start, read.chunks, min(most, MOST_IN_COLUMNS))
            return rows_answer(read, following, numbers, chunks)
        numbers, chunks, following = log.chosen(read.start, read.chunks, most)
        batch = pack_numbered(zip(numbers, chunks, strict=True))
        return (SOCKET, (*read.envelope, b"BATCH", b"%d" % following, batch))

    def _lend(self, pipe: Pipe, read: Waiting) -> Frames:
        if pipe.lent is None:
            pipe.lent = deque()
        log, lent = pipe.log, pipe.lent
        chosen: list[tuple[int, bytes]] = []
        size = 0
        most = min(read.size, self._stock.settings.max_message)
        number = pipe.first + len(lent)
        while pipe.readable and len(chosen) < read.chunks:
            item = pipe.pop()
            chunk = item
            if log is not None:
                number, chunk = item, log.chunks[item]
            size += len(chunk)
            if chosen and size > most:
                pipe.give_back((item,))
                break
            lent.append(item)
            chosen.append((number, chunk))
            number += 1
        return (*read.envelope, b"BATCH", b"%d" % (chosen[-1][0] + 1), pack_numbered(chosen))

    def acknowledge(self, pipe: Pipe, number: int, now: float) -> None:
        """Be done with chunks that were lent, up to this one."""
        lent, log = pipe.lent, pipe.log
        if not lent:
            return
        if log is None:
            several = min(len(lent), number - pipe.first + 1)
            for _ in range(several):
                self._stock.account(pipe, -1, -len(lent.popleft()))
            return
        if number not in lent:
            return
        done: list[int] = []
        while not done or done[-1] != number:
            done.append(lent.popleft())
        self._done(pipe, log, done, now)

    def _done(self, pipe: Pipe, log: Log, numbers: Iterable[int], now: float) -> None:
        """Note that the nameless reader is done with these chunks of a log."""
        for number in numbers:
            size = log.done(number)
            if size >= 0:
                self._stock.account(pipe, -1, -size)
                if log.kept:
                    self._keeper.removed(pipe, number, now)
        if log.kept and log.groups:  # some of them may still be needed by a group
            self._keeper.passed(pipe, log.passed, now)

    # --- time ---------------------------------------------------------------------------------------------------------

    @property
    def due(self) -> float:
        """When there is something to do; infinity when there is not."""
        due = self.timers.due
        return min(due, self._delivered_at + SETTLE_AFTER) if self.unsettled else due

    def on_deadline(self, now: float) -> list[Effect]:
        """End the reads that have waited long enough."""
        self.settle(now)
        return [effect for pipe, read in self.timers.expire(now) for effect in self._time_is_over(pipe, read)]

    def _time_is_over(self, pipe: Pipe, read: Waiting) -> list[Effect]:
        """Answer a read whose time is over; one behind others, when they are answered."""
        if read.start or not pipe.waiting or pipe.waiting[0] is read:
            return [self._timed_out(pipe, read), *(self._answer_head(pipe) if pipe in self.refusing else ())]
        read.late = True
        self.refusing.add(pipe)
        return []

    def _timed_out(self, pipe: Pipe, read: Waiting) -> Effect:
        self._end(read)
        if read.start and pipe.log is not None:
            pipe.log.fetching.remove(read)
            if read.columns:
                return rows_answer(read, read.start, (), ())
            return (SOCKET, (*read.envelope, b"BATCH", b"%d" % read.start, b""))
        if pipe.waiting:
            pipe.waiting.remove(read)
        if read.chunks:
            following = pipe.first + len(pipe.lent or ()) if pipe.log is None else pipe.following
            return (SOCKET, (*read.envelope, b"BATCH", b"%d" % following, b""))
        return (SOCKET, (*read.envelope, *Refusal(408, "no chunk came in time").frames))

    # --- what was not delivered ---------------------------------------------------------------------------------------

    def note_delivery(self, pipe: Pipe, answer: Frames, now: float, number: int = 0) -> None:
        """Remember where a chunk came from; before the time moves on, it is known whether it was sent."""
        self.settle(now)
        self._delivered.append((answer, pipe, number))
        self.unsettled = self.unsettled or bool(number) or not pipe.links

    def settle(self, now: float, *, at_once: bool = False) -> None:
        """Be done with the chunks that were delivered before ``now``."""
        if now == self._delivered_at and not at_once:
            return
        delivered, self._delivered = self._delivered, []
        self._delivered_at = now
        self.unsettled = False
        for _, pipe, number in delivered:
            if number and pipe.log is not None and number in pipe.log.chunks:
                self._done(pipe, pipe.log, (number,), now)
            if not (pipe.links or pipe.depth):
                self.emptied.append(pipe)

    def knows(self, answer: Frames, now: float) -> bool:
        """Tell whether an answer went to a reader: one that reads a pipe, or did in this turn."""
        peer = answer[0]
        return (
            id(answer) in self._delayed or peer in self._pipes_of or (now == self._former_at and peer in self._former)
        )

    def delayed(self, answer: Frames, now: float) -> None:
        """Note that a chunk waits for its reader: it is not delivered yet."""
        if id(answer) not in self._delayed and (origin := self._origin(answer, now)) is not None:
            self._delayed[id(answer)] = (answer, *origin)

    def sent(self, answer: Frames, now: float) -> None:
        """Note that a chunk that had to wait has left."""
        _, pipe, number = self._delayed.pop(id(answer), (answer, None, 0))
        if pipe is None:
            return
        if number and pipe.log is not None and number in pipe.log.chunks:
            self._done(pipe, pipe.log, (number,), now)
        if not (pipe.links or pipe.depth):
            self.emptied.append(pipe)

    def _origin(self, answer: Frames, now: float) -> tuple[Pipe, int] | None:
        """Say which pipe a chunk came from, and its number in the pipe's log; the answer is no longer noted."""
        if id(answer) in self._delayed:
            return self._delayed.pop(id(answer))[1:]
        for index, (delivered, pipe, number) in enumerate(self._delivered):
            if delivered is answer:
                del self._delivered[index]
                return pipe, number
        peer = answer[0]
        if now == self._former_at and peer in self._former:
            return self._former[peer], 0
        pipes = self._pipes_of.get(peer, ())
        return (next(iter(pipes)), 0) if len(pipes) == 1 else None

    def take_back(self, answer: Frames, now: float) -> Pipe | None:
        """Put a chunk that was not delivered back, behind others that came back in this turn; give its pipe."""
        if now != self._returned_at:
            self._returned_at = now
            self._returned.clear()
        origin = self._origin(answer, now)
        if origin is None:
            LOG.warning("a chunk could not be delivered, nor given back to its pipe", peer=answer[0])
            return None
        pipe, number = origin
        item: bytes | int = answer[-1]
        log = pipe.log
        if log is not None:
            if number and number not in log.chunks:
                return pipe  # it was thrown away meanwhile
            if not number:  # it was delivered before there was a log
                number = log.oldest(log.last + 1) - 1
                if number < 1:  # no chunk ever had such a number: this was none
                    LOG.warning("an answer that is no chunk could not be delivered", peer=answer[0])
                    return None
                log.chunks[number] = answer[-1]
                log.first = number
                self._stock.account(pipe, 1, len(answer[-1]))
            item = number
        else:
            self._stock.account(pipe, 1, len(answer[-1]))
        place = self._returned.get(pipe, 0)
        self._returned[pipe] = place + 1
        pipe.give_back((item,), place)
        return pipe


def rows_answer(read: Waiting, following: int, numbers: Sequence[int], chunks: Sequence[bytes]) -> Effect:
    """Answer a ROWS."""
    if len(chunks) == 1 and len(chunks[0]) > MOST_IN_COLUMNS:
        refusal = Refusal(413, f"chunk {numbers[0]} has more than {MOST_IN_COLUMNS} bytes; FETCH gives it")
        return (SOCKET, (*read.envelope, *refusal.frames))
    return (SOCKET, (*read.envelope, b"ROWS", b"%d" % following, *pack_columns(numbers, chunks)))


def envelope_of(read: Frames | Waiting) -> Frames:
    """Give the frames in front of the answer to a read."""
    return read.envelope if isinstance(read, Waiting) else read


def use_nameless(pipe: Pipe, log: Log) -> None:
    """Let the nameless reader see what is there, from now on."""
    if not log.open:
        log.open = True
        pipe.comes_first(number for number in sorted(log.chunks) if number not in log.taken)
