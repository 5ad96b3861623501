"""One pipe of the text dialect: its chunks, and who waits at it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from scale0_core.api import Frames
from scale0_zpipes.service.turns import NEVER, Turn, Turns

PRODUCER = b"\0\0PUT:"
"""In front of a writer's own id, so that it is nobody's routing id."""


MANY_WRITERS = 1000
"""So many writers of a pipe are remembered that have nothing waiting."""

_STRIDE = 1024
"""So many chunks are looked up at a time."""


class Waiting:
    """A read that waits and is not a plain READ: it has a time limit, or wants many chunks."""

    __slots__ = ("chunks", "columns", "envelope", "late", "over", "refusal", "size", "start", "times")

    def __init__(
        self, envelope: Frames, chunks: int = 0, size: int = 0, start: int = 0, *, columns: bool = False
    ) -> None:
        self.envelope = envelope
        self.chunks = chunks
        """How many chunks a FETCH wants; 0 for a READ."""
        self.size = size
        self.start = start
        """The number from which a group's FETCH wants chunks; 0 for the nameless group."""
        self.columns = columns
        """Whether it is a ROWS, which wants its answer in columns."""
        self.over = False
        """Whether it is answered."""
        self.late = False
        """Whether its time is over, though it is not answered: one that came before it still waits."""
        self.refusal: Frames = ()
        """What it is refused with when its turn comes,"""
        self.times = 1
        """and how many reads stand here that are refused alike."""


class BlockedWrite:
    """A write whose answer waits for room."""

    __slots__ = ("chunks", "cost", "envelope", "first", "producer", "size")

    def __init__(self, envelope: Frames, chunks: list[bytes], size: int, producer: bytes = b"", first: int = 0) -> None:
        self.envelope = envelope
        self.chunks = chunks
        self.size = size
        self.cost = 0
        """What it takes of the memory for writes that wait."""
        self.producer = producer
        """The writer's own id, of a PUT; empty for a WRITE."""
        self.first = first

    @property
    def peer(self) -> bytes:
        """The connection that it came on."""
        return self.envelope[0]

    @property
    def writer(self) -> bytes:
        """Who wrote it: a writer that counts its chunks is the same on every connection."""
        return PRODUCER + self.producer if self.producer else self.envelope[0]


class Log:
    """The chunks of a pipe by number: for a pipe that has groups, or is kept on disk.

    The nameless reader takes chunks writer by writer, so not in the order of their numbers. A chunk goes when that
    reader, if it is in use, and all groups are done with it.
    """

    __slots__ = (
        "chunks", "fetching", "first", "floor", "groups", "kept", "last", "leases", "open", "passed", "purged", "taken",
    )  # fmt: skip

    def __init__(self, first: int, *, kept: bool = False) -> None:
        self.kept = kept
        """Whether it is kept on disk."""
        self.chunks: dict[int, bytes] = {}
        self.first = first
        self.last = first - 1
        """The last number that may be read: on a durable pipe, what is not on disk yet has larger ones."""
        self.groups: dict[bytes, int] = {}
        """The last number that each group has acknowledged."""
        self.floor = 0
        """The last number that all groups have acknowledged."""
        self.open = True
        """Whether the nameless reader is in use; without groups it always is."""
        self.taken: set[int] = set()
        """What the nameless reader is done with and a group is not."""
        self.passed = first - 1
        """The nameless reader is done with all up to this number."""
        self.purged = 0
        """The last number that was thrown away unread. Numbers that are missing behind it were never used."""
        self.leases: dict[bytes, float] = {}
        """Groups that are forgotten when they are not used, and the seconds until then."""
        self.fetching: list[Waiting] = []
        """Reads of groups that wait."""

    def done(self, number: int) -> int:
        """Note that the nameless reader is done with a chunk; give the bytes that are free now, or -1 for none."""
        size = -1
        if self.groups and number > self.floor:
            self.taken.add(number)
        else:
            size = self._remove(number)
        while self.passed < self.last and (self.passed + 1 not in self.chunks or self.passed + 1 in self.taken):
            self.passed += 1
        return size

    def add_group(self, group: bytes, acknowledged: int) -> None:
        """Let a group read from the number after this one on."""
        self.groups[group] = acknowledged
        self.floor = min(self.groups.values())

    def trim(self) -> tuple[list[int], int]:
        """Remove what all groups are done with; give the numbers, and the bytes that are free now."""
        floor = min(self.groups.values(), default=self.floor)
        passed = range(max(self.floor + 1, self.first), floor + 1)
        if self.open:
            numbers = [number for number in passed if number in self.taken and number in self.chunks]
            self.taken.difference_update(numbers)
        else:
            numbers = [number for number in passed if number in self.chunks]
        self.floor = floor
        return numbers, sum(map(self._remove, numbers))

    def behind(self) -> dict[bytes, tuple[int, int]]:
        """Count what waits for each group: chunks, and their bytes."""
        numbers = sorted(self.chunks)
        sizes = list(accumulate((len(self.chunks[number]) for number in numbers), initial=0))
        places = {group: bisect_right(numbers, upto) for group, upto in self.groups.items()}
        return {group: (len(numbers) - place, sizes[-1] - sizes[place]) for group, place in places.items()}

    def chosen(self, start: int, most: int, most_bytes: int) -> tuple[Sequence[int], list[bytes], int]:
        """Give numbers and chunks from a number on, at least one if there is any, and the number after them."""
        number = max(start, self.oldest(self.last + 1))
        if len(self.chunks) == self.last + 1 - self.first:
            chunks = self._row(number, min(number + most, self.last + 1), most_bytes)
            return range(number, number + len(chunks)), chunks, number + len(chunks)
        numbers: list[int] = []
        chunks, size = [], 0
        while number <= self.last and len(chunks) < most:
            chunk = self.chunks.get(number)
            if chunk is not None:
                size += len(chunk)
                if chunks and size > most_bytes:
                    break
                numbers.append(number)
                chunks.append(chunk)
            number += 1
        return numbers, chunks, number

    def _row(self, start: int, end: int, most_bytes: int) -> list[bytes]:
        """Give chunks when none is missing; many at a time, since a reader asks for hundreds of thousands a second."""
        chunks: list[bytes] = []
        size = 0
        for begin in range(start, end, _STRIDE):
            some = list(map(self.chunks.__getitem__, range(begin, min(begin + _STRIDE, end))))
            length = sum(map(len, some))
            if size + length > most_bytes:
                fit = bisect_right(list(accumulate(map(len, some), initial=size)), most_bytes) - 1
                return chunks + some[:fit] if chunks or fit > 0 else some[:1]
            size += length
            chunks += some
        return chunks

    def _remove(self, number: int) -> int:
        return len(self.chunks.pop(number))

    def oldest(self, following: int) -> int:
        """Give the number of the oldest chunk that is there; ``following`` when there is none."""
        if not self.chunks:
            return following  # not noted: chunks that are on their way to the disk have smaller numbers
        while self.first not in self.chunks:
            self.first += 1
        return self.first


class Pipe:
    """A queue of chunks with several writers and one reader.

    Most pipes have one writer at a time, whose chunks lie in ``queue``. When a second one comes while chunks wait, or
    the one closes, ``turns`` has what each has waiting, and ``queue`` keeps what comes first. In a pipe with a log
    the queues hold numbers instead of chunks.

    Large, since what a pipe has waiting lies in different places while it has one writer, several, or a log.
    """

    __slots__ = (
        "began", "blocked", "bytes", "came", "depth", "gone_before", "heard", "lease", "lent", "links", "log", "looked",
        "lost", "made", "name", "producers", "queue", "reader", "reads_others", "recovered", "since", "tick", "turns",
        "waiting", "was_read", "writer", "writer_peer", "written", "wrote",
    )  # fmt: skip

    def __init__(self, name: bytes, now: float) -> None:
        self.name = name
        self.made = now
        """When this broker made it, or found it on disk."""
        self.links = 0
        self.lease = 0.0
        """Seconds after which it is forgotten when nobody uses it, of a pipe that was opened for a time."""
        self.depth = 0
        """Chunks that are there, those lent to the reader included."""
        self.bytes = 0
        self.written = 0
        """The number of the last chunk that was written."""
        self.came = 0
        """Bytes that were written; those that took the short way count only while somebody observes."""
        self.recovered = 0
        """The number of the last chunk that was written before the broker started."""
        self.gone_before = 0
        """How many chunks were gone before the broker started."""
        self.lost = 0
        """How many chunks could not be read from the disk when the broker started."""
        self.queue: deque[Any] | None = None
        self.writer = b""
        """Whose chunks lie in ``queue``, when there are no turns."""
        self.writer_peer = b""
        self.since = 0
        """When that writer began."""
        self.tick = 0
        """Counts writers that begin or leave."""
        self.began: dict[bytes, tuple[int, bytes]] | None = None
        """When other writers began that have not closed, and on which connection they wrote last."""
        self.turns: Turns | None = None
        self.waiting: deque[Frames | Waiting] | None = None
        """Reads that wait: the envelope of a plain READ, or a Waiting."""
        self.reader: bytes | None = None
        self.reads_others = False
        """Whether the reader reads from other pipes, too."""
        self.was_read = False
        """Whether anybody has been the nameless reader."""
        self.lent: deque[Any] | None = None
        self.blocked: dict[bytes, deque[BlockedWrite]] | None = None
        """Writes that wait for room, by writer, in the order in which they have their turns."""
        self.producers: dict[bytes, int] | None = None
        """The last number of each writer that counts its chunks."""
        self.log: Log | None = None
        self.heard = now
        """When the reader was heard last."""
        self.wrote = now
        self.looked: tuple[float, int, int] | None = None
        """When somebody last looked at the pipe, and how much was written and read by then."""

    def push(self, writer: bytes, item: Any) -> None:
        """Put a chunk, or its number, behind the others of a connection that has just written it."""
        if self.turns is not None:
            self.heard_from(writer, NEVER)
        self.push_all(writer, (item,), writer)

    def push_all(self, writer: bytes, items: Iterable[Any], peer: bytes) -> None:
        """Put many behind the others of their writer, which wrote on this connection last."""
        some = deque(items)
        if not some:
            return
        if self.turns is None and self.writer != writer:
            if self.queue:
                self._take_turns()
            else:
                self._become(writer)
        if self.turns is None:
            self.writer_peer = peer
            if self.queue is None:
                self.queue = some
            else:
                self.queue.extend(some)
        elif (turn := self.turns.get(writer)) is None:
            self.turns.add(Turn(writer, peer, self._began(writer), some, self.wrote))
        else:
            turn.heard, turn.peer = self.wrote, peer
            turn.items.extend(some)

    def _take_turns(self) -> Turns:
        """Go on with turns; what is in the queue is that of the one writer so far."""
        turns = self.turns = Turns()
        if self.queue:
            turns.add(Turn(self.writer, self.writer_peer, self.since, self.queue, self.wrote))
        elif self.writer:
            self._note_begin(self.writer, self.since, self.writer_peer)
        self.queue, self.writer = deque(), b""
        return turns

    def _become(self, writer: bytes) -> None:
        """Let a writer be the only one that has chunks waiting."""
        if self.writer:
            self._note_begin(self.writer, self.since, self.writer_peer)
        self.writer, self.since = writer, self._began(writer)

    def _began(self, writer: bytes) -> int:
        """Say when a writer began: now, unless it has written before and not closed since."""
        if self.began is not None and writer in self.began:
            return self.began.pop(writer)[0]
        self.tick += 1
        return self.tick

    def _note_begin(self, writer: bytes, since: int, peer: bytes) -> None:
        if self.began is None:
            self.began = {}
        self.began[writer] = (since, peer)
        if len(self.began) > MANY_WRITERS:  # most of them are gone without having closed
            del self.began[next(iter(self.began))]

    def left(self, peer: bytes) -> None:
        """Note that whoever wrote on this connection has closed: what it left comes before that of later writers."""
        self.tick += 1
        if self.began:
            self.began = {key: known for key, known in self.began.items() if known[1] != peer}
        if self.turns is None and self.writer and self.writer_peer == peer:
            if not self.queue:
                self.writer = b""
                return
            self._take_turns()
        for turn in [turn for turn in self.turns or () if turn.peer == peer]:
            self.turns.close(turn, self.tick)  # type: ignore[union-attr]

    def heard_from(self, writer: bytes, when: float) -> None:
        """Note that a writer sent something at that time: if it was taken for gone before, it is not."""
        turn = self.turns.get(writer) if self.turns is not None else None
        if turn is not None and self.turns is not None and turn.until != NEVER and turn.gone < when:
            self.turns.revive(turn)

    def lose(self, turn: Turn, now: float) -> None:
        """Note that a writer is gone without having closed."""
        if self.turns is not None and self.turns.get(turn.key) is turn:
            self.tick += 1
            self.turns.lose(turn, self.tick, now)

    def silent_since(self, when: float) -> list[Turn]:
        """List the writers that left chunks and were not heard after that time."""
        if self.turns is None and self.writer and self.queue and self.wrote <= when:
            self._take_turns()
        return [turn for turn in self.turns or () if turn.heard <= when and turn.until == NEVER]

    def pop_all(self) -> list[Any]:
        """Take all, in the order in which ``pop`` gives them."""
        if self.turns is None:
            items, self.queue = list(self.queue or ()), None
            return items
        items = []
        while self.readable:
            items.append(self.pop())
        return items

    def pop(self) -> Any:
        """Take the next chunk, or its number: what was given back first, then each writer in turn."""
        if self.queue:
            return self.queue.popleft()
        turns = self.turns
        if not turns:
            raise IndexError("the pipe is empty")
        item, done = turns.pop()
        if done is not None:
            self._note_begin(done.key, done.since, done.peer)
        if not turns:
            self.turns = None
        elif (last := turns.only) is not None:
            self.writer, self.writer_peer, self.since, self.queue = last.key, last.peer, last.since, last.items
            self.turns = None
        return item

    def comes_first(self, items: Iterable[Any]) -> None:
        """Let these be read before whatever is written from now on, so that no writer overtakes itself."""
        self.queue = deque(items)
        self.writer, self.turns = b"", Turns() if self.queue else None

    def give_back(self, items: Iterable[Any], place: int = 0) -> None:
        """Put what was popped, oldest first, back to the head, or behind so many that were put back just now."""
        if self.turns is None:
            self._take_turns()
        if self.queue is None:
            self.queue = deque()
        for item in reversed(list(items)):
            self.queue.insert(place, item)

    def throw_away(self) -> None:
        """Be rid of all that the nameless reader was not given yet."""
        self.queue = self.turns = None
        self.writer = b""

    @property
    def readable(self) -> bool:
        """Whether there is something that the nameless reader was not given yet."""
        return bool(self.queue or self.turns)

    @property
    def first(self) -> int:
        """The number of the oldest chunk that is there."""
        return self.written + 1 - self.depth if self.log is None else self.log.oldest(self.log.last + 1)

    @property
    def following(self) -> int:
        """The number after the last chunk that may be read."""
        return self.written + 1 if self.log is None else self.log.last + 1

    @property
    def in_use(self) -> bool:
        """Whether somebody waits here, or a group counts on this pipe."""
        return bool(self.waiting or self.blocked or self.lent or (self.log and (self.log.groups or self.log.fetching)))

    def keep_log(self, *, kept: bool = False) -> Log:
        """Give the chunks numbers from now on, those that are there included."""
        if self.log is not None:
            return self.log
        log = self.log = Log(self.written + 1 - self.depth, kept=kept)
        number = log.first
        lent, self.lent = self.lent, None
        for chunk in lent or ():
            log.chunks[number] = chunk
            number += 1
        if lent:
            self.lent = deque(log.chunks)
        numbers: list[int] = []
        while self.readable:
            log.chunks[number] = self.pop()
            numbers.append(number)
            number += 1
        self.comes_first(numbers)
        log.last = number - 1
        return log
