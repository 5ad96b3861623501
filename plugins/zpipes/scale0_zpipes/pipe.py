"""One pipe of the text dialect: its chunks, and who waits at it."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Any

from scale0_core.api import Frames

PRODUCER = b"\0\0PUT:"
"""In front of a writer's own id, so that it is nobody's routing id."""


_STRIDE = 1024
"""So many chunks are looked up at a time."""


class Waiting:
    """A read that waits and is not a plain READ: it has a time limit, or wants many chunks."""

    __slots__ = ("chunks", "columns", "envelope", "over", "size", "start")

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


class BlockedWrite:
    """A write whose answer waits for room."""

    __slots__ = ("chunks", "envelope", "first", "over", "producer", "size")

    def __init__(self, envelope: Frames, chunks: list[bytes], size: int, producer: bytes = b"", first: int = 0) -> None:
        self.envelope = envelope
        self.chunks = chunks
        self.size = size
        self.producer = producer
        """The writer's own id, of a PUT; empty for a WRITE."""
        self.first = first
        self.over = False

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

    Most pipes have one writer at a time, whose chunks lie in ``queue``. When a second one comes while chunks wait,
    ``fair`` has a queue for each, ``turns`` says whose turn it is, and ``queue`` keeps what comes first. In a pipe
    with a log the queues hold numbers instead of chunks.
    """

    __slots__ = (
        "blocked", "bytes", "came", "depth", "fair", "gone_before", "heard", "lease", "lent", "links", "log", "looked",
        "lost", "made", "name", "producers", "queue", "reader", "reads_others", "recovered", "turns", "waiting",
        "was_read", "writer", "written", "wrote",
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
        self.fair: dict[bytes, deque[Any]] | None = None
        self.turns: deque[bytes] | None = None
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
        """Put a chunk, or its number, behind the others of its writer."""
        queue, fair = self.queue, self.fair
        if fair is None:
            if queue is None:
                queue = self.queue = deque()
            if self.writer == writer or not queue:
                self.writer = writer
                queue.append(item)
                return
            fair = self.fair = {self.writer: queue}
            self.turns = deque((self.writer,))
            self.queue = deque()
        mine = fair.get(writer)
        if mine is None:
            mine = fair[writer] = deque()
            if self.turns is not None:
                self.turns.append(writer)
        mine.append(item)

    def push_all(self, writer: bytes, items: Iterable[Any]) -> None:
        """Put many behind the others of their writer."""
        some = iter(items)
        for item in some:
            self.push(writer, item)
            mine = self.queue if self.fair is None else self.fair[writer]
            if mine is not None:
                mine.extend(some)

    def pop_all(self) -> list[Any]:
        """Take all, in the order in which ``pop`` gives them."""
        if self.fair is None:
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
        fair, turns = self.fair, self.turns
        if not fair or not turns:
            raise IndexError("the pipe is empty")
        mine = fair[turns[0]]
        item = mine.popleft()
        if mine:
            turns.rotate(-1)
        else:
            del fair[turns.popleft()]
            if len(fair) <= 1:
                self.writer, self.queue = fair.popitem() if fair else (b"", self.queue)
                self.fair = self.turns = None
        return item

    def comes_first(self, items: Iterable[Any]) -> None:
        """Let these be read before whatever is written from now on, so that no writer overtakes itself."""
        self.queue = deque(items)
        self.fair, self.turns = ({}, deque()) if self.queue else (None, None)

    def give_back(self, items: Iterable[Any], place: int = 0) -> None:
        """Put what was popped, oldest first, back to the head, or behind so many that were put back just now."""
        if self.fair is None:
            self.fair = {self.writer: self.queue} if self.queue else {}
            self.turns = deque(self.fair)
            self.queue = None
        if self.queue is None:
            self.queue = deque()
        for item in reversed(list(items)):
            self.queue.insert(place, item)

    @property
    def readable(self) -> bool:
        """Whether there is something that the nameless reader was not given yet."""
        return bool(self.queue or self.fair)

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
