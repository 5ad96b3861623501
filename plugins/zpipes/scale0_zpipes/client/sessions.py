"""A writer's and a reader's side of the text dialect, without I/O: shared by the two flavours of ``Pipe``."""

from __future__ import annotations

from collections import deque
from random import Random

from scale0_core.api import MIB, Frames, printable
from scale0_zpipes.batches import most_chunks, pack_chunks, unpack_numbered
from scale0_zpipes.client.errors import PipeError, Stage, refused, too_large
from scale0_zpipes.client.session import NEVER, Session, read_info

WAIT_MS = 10_000
"""How long a FETCH or a PUT waits at the broker before it is sent again: so a broker that forgot it is found out."""

PING_AFTER = 0.1
"""Seconds without an answer to a PUT after which a writer asks whether the broker is there, so the pipe is full."""

BATCH_BYTES, BATCH_CHUNKS = MIB, 1000
WINDOW = 8


class WriterSession(Session):
    """Collects chunks into batches, sends several at once, and again what was not acknowledged.

    Every chunk has a number, by which the broker knows what it has already. The answers to PUTs do not tell which one
    they belong to, and a refusal may overtake others; so after one nothing is sent until all answers have come, and
    then one batch at a time.

    Large, since what waits, what was sent and what is refused are one state: no chunk may be in two of them, or none.
    """

    def __init__(
        self, name: bytes, target: str, *, writer: bytes, random: Random, patience: float = 30.0,
        batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS, window: int = WINDOW, delay: float = 0.05,
    ) -> None:  # fmt: skip
        super().__init__(name, target, random=random, patience=patience)
        self.writer = writer
        self._give_up = NEVER
        self.failures: list[PipeError] = []
        """What was refused for good, and so not written, since somebody last looked."""
        self.acknowledged = 0
        self.pending_bytes = 0
        self._batch_bytes, self._batch_chunks, self._most, self._delay = batch_bytes, batch_chunks, window, delay
        self._limit: float = NEVER
        """Bytes that a chunk may have."""
        self._open: list[bytes] = []
        self._open_bytes = 0
        self._cut_at = NEVER
        self._batches: deque[list[bytes]] = deque()
        self._first = 1
        """The number of the first chunk that is not acknowledged."""
        self._under_way = 0
        """Batches, of the oldest, that were sent on this connection."""
        self._next_first = 1
        self._owed = 0
        """Answers to PUTs that are still to come."""
        self._window = window
        self._troubled = False
        self._reopen = False
        self._doubt = False
        self._pause_until = NEVER
        self._disk_since = NEVER
        self._ping_at = NEVER
        self._full = False

    @property
    def pending(self) -> int:
        """Chunks that are not acknowledged."""
        return len(self._open) + sum(map(len, self._batches))

    @property
    def idle(self) -> bool:
        """Whether all is acknowledged, or was refused for good."""
        return not self._open and not self._batches

    @property
    def busy(self) -> bool:
        """Whether something is to be sent, or an answer is to come."""
        return self.error is None and not self.idle

    @property
    def has_room(self) -> bool:
        """Whether another chunk is taken."""
        return self.pending_bytes < self._most * self._batch_bytes or self.idle

    def check(self, chunk: bytes) -> None:
        """Raise a PipeTooLargeError for a chunk that the broker would refuse, as it said when the pipe was opened."""
        if len(chunk) > self._limit:
            raise too_large(self.name, len(chunk), int(self._limit))

    def write(self, chunk: bytes, now: float) -> None:
        """Take a chunk; look at ``has_room`` first."""
        if self._open and self._open_bytes + len(chunk) > self._batch_bytes:
            self.flush(now)
        if not self._open:
            self._cut_at = now + self._delay
        self._open.append(chunk)
        self._open_bytes += len(chunk)
        self.pending_bytes += len(chunk)
        # nothing to wait for: who writes seldom does not wait for the delay
        if self._open_bytes >= self._batch_bytes or len(self._open) >= self._batch_chunks or not self._batches:
            self.flush(now)

    def flush(self, now: float) -> None:
        """Send what was collected."""
        if self._open:
            self._batches.append(self._open)
            self._open, self._open_bytes = [], 0
            self._cut_at = NEVER
            self._push(now)

    def give_up_at(self, when: float, now: float) -> None:
        """Have batches refused for certain that find no room until then; after that nothing is sent."""
        self._give_up = when
        self._push(now)

    def withdraw(self) -> bool:
        """Take back all that is not acknowledged, if it is certain that nothing of it was written."""
        if self._owed or self._doubt:
            return False
        self._batches.clear()
        self._open, self._open_bytes, self._cut_at = [], 0, NEVER
        self._under_way = self.pending_bytes = 0
        return True

    def _next_due(self) -> float:
        return min(super()._next_due(), self._cut_at, self._pause_until, self._ping_at)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        super().on_deadline(now)
        if self._cut_at <= now:
            self.flush(now)
        if self._pause_until <= now:
            self._pause_until = NEVER
            self._push(now)
        if self._ping_at <= now:
            self._ping_at = NEVER
            self.out.append((b"PING",))

    def fault(self, now: float, began: float) -> PipeError | None:
        """Give what a call that began then must end with, if it must."""
        if now - max(self._disk_since, began) >= self.patience and self.refusal is not None:
            return refused(self.name, *self.refusal, Stage.ANSWER, self._consequence())
        return super().fault(now, began)

    def _push(self, now: float) -> None:
        if not self.ready or self._troubled or self._pause_until != NEVER:
            return
        patience_ms = min(WAIT_MS, (self._give_up - now) * 1000)
        while self._under_way < min(self._window, len(self._batches)) and patience_ms > 0:
            batch = self._batches[self._under_way]
            if not self._under_way:
                self._next_first = self._first
            frame = pack_chunks(batch)
            self.out.append((b"PUT", self.name, self.writer, b"%d" % self._next_first, frame, b"%d" % patience_ms))
            self._next_first += len(batch)
            self._under_way += 1
            self._owed += 1
            self._await_answer(now)

    def _await_answer(self, now: float) -> None:
        owed = self._owed > 0
        self._due = now + WAIT_MS / 1000 + self.patience if owed else NEVER
        self._ping_at = now + PING_AFTER if owed else NEVER

    def _understood(self, command: bytes, frames: Frames) -> None:
        """Send no more at once than the broker takes in one frame; one that was started anew may take less."""
        if command != b"INFO":
            return
        limit = self.info.get("max_chunk")
        self._limit = NEVER if limit is None else limit
        if limit is None:
            return
        self._batch_bytes = min(self._batch_bytes, limit)
        self._batch_chunks = min(self._batch_chunks, most_chunks(limit))
        if self._open:
            self._batches.append(self._open)
            self._open, self._open_bytes, self._cut_at = [], 0, NEVER
        if any(len(batch) > self._batch_chunks or self._is_too_large(batch) for batch in self._batches):
            self._cut_again()
        largest = max((len(chunk) for batch in self._batches for chunk in batch), default=0)
        if largest > limit:
            self.error = too_large(self.name, largest, limit, f"{self.pending} chunks are not confirmed")

    def _is_too_large(self, batch: list[bytes]) -> bool:
        return len(batch) > 1 and sum(map(len, batch)) > self._batch_bytes

    def _cut_again(self) -> None:
        """Make batches anew of all that is not acknowledged; nothing of it is under way."""
        batches: deque[list[bytes]] = deque()
        size = 0
        for chunk in (chunk for batch in self._batches for chunk in batch):
            size += len(chunk)
            if not batches or len(batches[-1]) >= self._batch_chunks or size > self._batch_bytes:
                batches.append([])
                size = len(chunk)
            batches[-1].append(chunk)
        self._batches = batches

    def _opened(self, now: float) -> None:
        self._push(now)

    def _forget_connection(self) -> None:
        self._doubt = self._doubt or self._owed > 0
        self._under_way = self._owed = 0
        self._troubled = self._reopen = self._full = False
        self._pause_until = self._ping_at = NEVER

    def _answer(self, frames: Frames, now: float) -> None:
        if not self._owed:
            return
        if frames[0] == b"PONG":
            self._full = True  # a PUT waits for room, and nothing else; so the answer to a later request came first
            return
        self._owed -= 1
        self._full = False
        self._await_answer(now)
        if frames[0] == b"OK" and len(frames) == 2:
            self._stored(int(frames[1]))
        else:
            self._refused(*self._read_error(frames), now)
        if not self._owed:
            self._under_way = 0  # with all answers there, what is left is to be sent again
            self._troubled = False
            if self._reopen:
                self._reopen = self.counted = False
                self._greet(now)
                return
        self._push(now)

    def _stored(self, following: int) -> None:
        self._well()
        self._disk_since = NEVER
        self._window = min(self._window * 2, self._most)
        while self._batches and self._first < following:
            batch = self._batches[0]
            done = min(len(batch), following - self._first)
            self._first += done
            self.acknowledged += done
            self.pending_bytes -= sum(map(len, batch[:done]))
            if done < len(batch):
                self._batches[0] = batch[done:]
            else:
                self._batches.popleft()
                self._under_way = max(0, self._under_way - 1)
        if self.idle:
            self._doubt = False

    def _refused(self, code: int, reason: str, now: float) -> None:
        alone = not self._owed and self._under_way == 1
        self._troubled = True
        self._window = 1
        if code == 404:
            self._reopen = True
        elif code in (429, 507):
            self._pause_until = now + self._backoff.next()
            if code == 507:
                self._disk_since = min(self._disk_since, now)
        elif code == 409 and alone:
            why = "chunks that were acknowledged are missing at the broker"
            self.end(PipeError(f"pipe {printable(self.name)}: {reason}", why, self._consequence(), pipe=self.name), now)
        elif code not in (408, 409) and alone:
            self._give_up_first(code, reason)

    def _give_up_first(self, code: int, reason: str) -> None:
        """Be rid of a batch that was refused for good: find out which of its chunks is to blame, or drop it."""
        batch = self._batches.popleft()
        if len(batch) > 1:
            self._batches.extendleft([chunk] for chunk in reversed(batch))
            return
        # its number was not used, so the next chunk gets it
        self.pending_bytes -= len(batch[0])
        self.failures.append(refused(self.name, code, reason, Stage.ANSWER, "the chunk was not written"))

    def _is_goodbye(self, frames: Frames) -> bool:
        return not self._owed or len(frames) == 1

    def _stage_when_ready(self) -> Stage:
        full = self._full or (self.refusal is not None and self.refusal[0] in (408, 429))
        return Stage.ROOM if full else Stage.ANSWER

    def _consequence(self) -> str:
        if self.idle:
            return "nothing was written"
        return f"{self.pending} chunks are not confirmed; they are sent again as long as the pipe is open here"


class ReaderSession(Session):
    """Fetches chunks ahead, and acknowledges them as they are consumed.

    A chunk is consumed when the next one is asked for. Acknowledged is at the end of each batch that was fetched, and
    at least every ``ACK_EVERY`` seconds. What was not acknowledged comes again after a broken connection; on a durable
    pipe, whose numbers stay, it is left out here.

    Large, since fetching ahead, the chunk in hand and what is to be acknowledged move together, over broken
    connections too.
    """

    ACK_EVERY = 1.0
    BUSY_GRACE = 1.0
    """Seconds in which a reader that has just gone may be noticed by the broker."""
    RETURN_GRACE = 30.0
    """The same for this reader's own earlier connection, of which the broker may not know that it broke."""

    def __init__(
        self, name: bytes, target: str, *, random: Random, patience: float = 30.0, group: bytes = b"",
        start: bytes = b"first", lease: float | None = None, auto_ack: bool = True, batch_bytes: int = BATCH_BYTES,
        batch_chunks: int = 10_000,
    ) -> None:  # fmt: skip
        super().__init__(name, target, random=random, patience=patience)
        self.group, self.auto_ack = group, auto_ack
        self._lease_ms = 0 if lease is None else max(1, round(lease * 1000))
        self._wait_ms = min(WAIT_MS, max(1, self._lease_ms // 3)) if self._lease_ms else WAIT_MS
        self._dropping = False
        self.number = 0
        """The number of the chunk that was given last."""
        self.durable = False
        self.info_asked = False
        self.empty = False
        """What ``probe`` found out."""
        self.acks_lost = 0
        """How often a connection broke while acknowledgements had no answer."""
        self._start, self._batch_bytes, self._batch_chunks = start, batch_bytes, batch_chunks
        self._held: deque[tuple[int, bytes | None]] = deque()
        self._held_bytes = 0
        self._ends: deque[int] = deque()
        self._given = 0
        self._last_consumed = 0
        self._consumed: deque[int] = deque()
        """In the nameless group: what was consumed, and of which no acknowledgement is confirmed."""
        self._acks: deque[int] = deque()
        """Acknowledgements that have no answer."""
        self._acked = 0
        self._acked_at = 0.0
        self._from = 0
        self._begun = False
        self._seek = 0
        self._skip: set[int] = set()
        self._fetches = 0
        self._fetching = False
        self._probed = -1
        self._fetch_at = NEVER
        self._busy_since = NEVER
        self._established = self._had_place = False

    # --- what the user does -------------------------------------------------------------------------------------------

    def take(self, now: float) -> bytes | None:
        """Give the next chunk, None when there is none here; the one given before is consumed by that."""
        if self._given:
            self.consume(now)
        while self._held:
            number, chunk = self._held.popleft()
            if chunk is None:
                self._note_consumed(number, now)
                continue
            self._given = self.number = number
            self._held_bytes -= len(chunk)
            if not self._fetching:
                self._fetch(now)
            return chunk
        return None

    def consume(self, now: float) -> None:
        """Note that the chunk given last was made use of."""
        if self._given:
            number, self._given = self._given, 0
            self._note_consumed(number, now)

    def _note_consumed(self, number: int, now: float) -> None:
        self._last_consumed = number
        if not self.group:
            self._consumed.append(number)
        at_end = bool(self._ends) and self._ends[0] == number
        if at_end:
            self._ends.popleft()
        if self.auto_ack and (at_end or now - self._acked_at >= self.ACK_EVERY):
            self.ack(now)

    def ack(self, now: float, number: int | None = None) -> None:
        """Acknowledge what was consumed, or all up to a number; it is confirmed when ``acks_confirmed``."""
        upto = self._last_consumed if number is None else number
        self._acked_at = now
        if not upto or upto == self._acked:
            return
        self._acked = upto
        if self.ready:
            self._send_ack(upto)

    def _send_ack(self, number: int) -> None:
        self.out.append((b"ACK", self.name, self.group, b"%d" % number))
        self._acks.append(number)

    @property
    def acks_confirmed(self) -> bool:
        """Whether the broker has confirmed all acknowledgements."""
        return self.ready and not self._acks

    @property
    def position(self) -> int:
        """The number of the chunk that is next, as far as it is known."""
        ahead = next((number for number, chunk in self._held if chunk is not None), 0)
        return ahead or (self._from if self.group else self.number + 1)

    def seek(self, number: int, now: float) -> None:
        """Go on from another number; on a new connection, so that no answer is taken for another."""
        self.consume(now)
        self._seek = number
        if self.ready:
            self._drop(now, at_once=True)

    def probe(self) -> None:
        """Find out whether the pipe is empty; ``empty`` says so, until something comes."""
        self.empty = False
        if self.ready and self._fetching and not self._held and self._probed < 0:
            # a FETCH waits at the broker: had it found something, its answer would come before this one's
            self._probed = self._fetches
            self.out.append((b"PING",))

    def ask_info(self) -> None:
        """Have ``info`` brought up to date; ``info_asked`` as long as it is not."""
        if self.ready and not self.info_asked:
            self.info_asked = True
            self.out.append((b"INFO", self.name))

    def drop_group(self) -> None:
        """Have the broker forget the group; for the end."""
        if self.ready and self.group:
            self._dropping = True
            self.out.append((b"UNGROUP", self.name, self.group))
            self.goodbyes += 1

    # --- the connection -----------------------------------------------------------------------------------------------

    def _requests_to_open(self) -> list[Frames]:
        requests = super()._requests_to_open()
        if self._lease_ms:
            # a group that was forgotten begins as it began; it keeps the pipe, so no link does
            start = self._start if not self._begun or self._start == b"next" else b"first"
            requests.append((b"GROUP", self.name, self.group, start, b"%d" % self._lease_ms))
            requests.append((b"CLOSE", self.name))
        elif self.group:
            requests.append((b"GROUP", self.name, self.group, *((self._start,) if not self._begun else ())))
        return requests

    def _understood(self, command: bytes, frames: Frames) -> None:
        if command == b"INFO":
            self.durable = self.info.get("durable", False)
            if not self.durable or self.info.get("next", 1) <= max(self._skip, default=0):
                self._skip.clear()  # it is another pipe of the same name
        elif command == b"GROUP":
            self._resume_at(int(frames[1]))

    def _resume_at(self, following: int) -> None:
        """Find out where to go on, from the number of the group's first chunk that is not acknowledged."""
        if self._seek:
            self._from = self._seek
            if self._seek < following:
                reason = f"all up to {following - 1} is acknowledged"
                self.error = refused(self.name, 410, reason, Stage.OPENING, "nothing was read")
        elif self._begun and self.durable:
            self._from = max(following, self.number + 1)
        else:
            # in memory, and the broker may be another one with other chunks: rather twice than not at all
            self._from = following
            self._given = self._last_consumed = self._acked = 0
        if self._acked and self._acked < following:
            self._acked = 0
        self._begun, self._seek = True, 0

    def _opened(self, now: float) -> None:
        if self.group and self._acked:
            self._send_ack(self._acked)
        self._fetch(now)

    def _forget_connection(self) -> None:
        if self._acks:
            self.acks_lost += 1
        if not self.group:
            if self.durable:
                self._skip.update(self._consumed, (self._given,))
            self._consumed.clear()
            self._given = self._last_consumed = self._acked = 0
        self._held.clear()
        self._held_bytes = 0
        self._ends.clear()
        self._acks.clear()
        self._fetching = self.info_asked = self._established = False
        self._probed = -1
        self._fetch_at = NEVER
        self._busy_since = NEVER

    # --- what the broker says -----------------------------------------------------------------------------------------

    def _fetch(self, now: float) -> None:
        """Ask for more, unless there is enough here."""
        enough = self._held_bytes >= self._batch_bytes or len(self._held) >= self._batch_chunks
        if enough or self._fetching or not self.ready or self._fetch_at != NEVER:
            return
        start = b"%d" % self._from if self.group else b""
        limits = (b"%d" % self._batch_chunks, b"%d" % self._batch_bytes, b"%d" % self._wait_ms)
        self.out.append((b"FETCH", self.name, self.group, start, *limits))
        self._fetching = True
        self._fetches += 1
        if self._busy_since != NEVER:
            # when its answer comes and no refusal, the FETCH waits: so the place is ours
            self._probed = self._fetches
            self.out.append((b"PING",))
        self._due = now + WAIT_MS / 1000 + self.patience

    def _answer(self, frames: Frames, now: float) -> None:
        kind = frames[0]
        if kind == b"BATCH" and len(frames) == 3:
            self._take_batch(frames, now)
        elif kind == b"OK":
            self._confirmed()
        elif kind == b"PONG":
            found, self._probed = self._probed, -1
            waits = self._fetching and found == self._fetches
            self.empty = waits and not self._held
            if waits:
                self._busy_since = NEVER
        elif kind == b"INFO":
            self.info, self.info_asked = read_info(frames[1]), False
        elif kind == b"ERROR":
            self._refused(*self._read_error(frames), now)

    def _take_batch(self, frames: Frames, now: float) -> None:
        self._fetching = False
        self._due, self._busy_since = NEVER, NEVER
        self._established = self._had_place = True
        self._well()
        numbered = list(unpack_numbered(frames[2]))
        if numbered:
            self.empty = False
            self._ends.append(numbered[-1][0])
            self._held_bytes += sum(len(chunk) for _, chunk in numbered)
            self._held += self._without_known(numbered) if self._skip else numbered
        if self.group:
            self._from = int(frames[1])
        self._fetch(now)

    def _without_known(self, numbered: list[tuple[int, bytes]]) -> list[tuple[int, bytes | None]]:
        """Leave out chunks that were given before the connection broke."""
        found: list[tuple[int, bytes | None]] = []
        for number, chunk in numbered:
            if number in self._skip:
                self._skip.discard(number)
                self._held_bytes -= len(chunk)
                found.append((number, None))
            else:
                found.append((number, chunk))
        return found

    def _confirmed(self) -> None:
        upto = self._acks.popleft() if self._acks else 0
        if upto in self._consumed:
            while self._consumed.popleft() != upto:
                pass

    def _refused(self, code: int, reason: str, now: float) -> None:
        if code == 409 and self._established:
            self.end(refused(self.name, code, reason, Stage.CHUNK, "what was not acknowledged goes to that one"), now)
        elif code == 409:
            self._fetching = False
            self._due = NEVER
            self._busy_since = min(self._busy_since, now)
            self._fetch_at = now + self._backoff.next()
        elif code in (400, 501):
            self.end(refused(self.name, code, reason, Stage.ANSWER), now)
        else:
            self._drop(now)  # whether it was about an ACK or a FETCH is not said; a new connection has neither

    def _next_due(self) -> float:
        return min(super()._next_due(), self._fetch_at)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        super().on_deadline(now)
        if self._fetch_at <= now:
            self._fetch_at = NEVER
            self._fetch(now)

    def leave(self, now: float) -> None:
        """Say good-bye, after acknowledging what was consumed."""
        if self.auto_ack and not self._dropping:
            self.ack(now)
        super().leave(now)

    def _is_goodbye(self, frames: Frames) -> bool:
        return not self._acks

    def fault(self, now: float, began: float) -> PipeError | None:
        """Give what a call that began then must end with, if it must."""
        grace = self.RETURN_GRACE if self._had_place else self.BUSY_GRACE
        if self._busy_since != NEVER and now - max(self._busy_since, began) >= grace:
            return self._busy()
        return super().fault(now, began)

    def late(self, timeout: float) -> PipeError:
        """Make the error for a call whose time is over."""
        return self._busy() if self._busy_since != NEVER else super().late(timeout)

    def _busy(self) -> PipeError:
        code, reason = self.refusal or (409, "")
        return refused(self.name, code, reason, Stage.PLACE, "nothing was read")

    def _stage_when_ready(self) -> Stage:
        return Stage.PLACE if self._busy_since != NEVER else Stage.CHUNK

    def _whereabouts(self) -> tuple[str, str]:
        if self.ready and self.refusal is None:
            return "none came", "is somebody writing? scale0 zpipes ls shows it"
        return super()._whereabouts()

    def _consequence(self) -> str:
        return "nothing was read"
