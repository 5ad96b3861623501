"""What the journal gives back when it is opened: pipes with their chunks, and what of them is lost."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from scale0_core.api import journal
from scale0_zpipes.service.index import Index
from scale0_zpipes.service.records import AnyRecord, Dropped, Known, Purged, Removed, Stored


@attrs.frozen
class RecoveredPipe:
    """A pipe as it was: chunks in the order of their numbers, groups with the last number each is done with."""

    next_number: int
    chunks: list[tuple[int, bytes]]
    groups: dict[bytes, int]
    writers: dict[bytes, int]
    purged: int = 0
    """The last number that was thrown away unread."""
    lost: int = 0
    """How many chunks were damaged and could not be read, as far as it can be told from the numbers around them."""


@attrs.frozen
class Recovered:
    """All that the journal holds. ``problems`` says, for people, what could not be read; ``lost`` counts its bytes."""

    pipes: dict[bytes, RecoveredPipe]
    problems: list[str]
    lost: int


@attrs.define
class _Missing:
    """The numbers of a pipe that are missing since something could not be read, and are needed by somebody."""

    since: int = 0
    """What was next before the damage; 0 when a later number was read."""
    numbers: set[int] = attrs.field(factory=set)
    removed: set[int] = attrs.field(factory=set)
    purged: int = 0

    def found(self, record: Stored | Known) -> None:
        following = record.number if isinstance(record, Stored) else record.next_number
        if self.since:
            self.numbers.update(range(self.since, following))
            self.since = 0
        if isinstance(record, Stored):
            self.numbers.discard(record.number)  # a copy of it
        else:
            self.purged = max(self.purged, record.first)

    def gone(self, record: Removed | Purged) -> None:
        if isinstance(record, Purged):
            self.purged = max(self.purged, record.before)
        else:
            self.removed.update(record.numbers)

    @property
    def count(self) -> int:
        return sum(number >= self.purged for number in self.numbers - self.removed)


class Contents(Index):
    """What the journal holds of the pipes; while it is opened also their chunks."""

    def __init__(self, segments: journal.Segments) -> None:
        super().__init__(segments)
        self._chunks: dict[bytes, dict[int, bytes]] = {}
        self._damaged = False
        self._missing: dict[bytes, _Missing] = {}
        """After damage: what may be missing, by pipe."""

    def restore(self, snapshot: Sequence[AnyRecord]) -> None:
        """Take in the beginning of a segment."""
        self._look_for_lost(snapshot)
        super().restore(snapshot)

    def load(self, records: Sequence[AnyRecord], place: int) -> None:
        """Take in the records of a frame, and keep the chunks."""
        self._look_for_lost(records)
        for record in records:
            if type(record) is Stored:
                self._chunks.setdefault(record.pipe, {})[record.number] = record.chunk
        self.apply(records, place)

    def segment_read(self) -> None:
        """Let go of chunks that are no longer live."""
        for name, chunks in list(self._chunks.items()):
            pipe = self.pipes.get(name)
            if pipe is None:
                del self._chunks[name]
            elif len(chunks) > len(pipe.live):
                self._chunks[name] = {number: chunk for number, chunk in chunks.items() if number in pipe.live}

    def damaged(self) -> None:
        """Note, where bytes cannot be read, how far each pipe was."""
        self._damaged = True
        for name, pipe in self.pipes.items():
            missing = self._missing.setdefault(name, _Missing())
            missing.since = missing.since or pipe.next_number

    def found(self, problems: list[str], lost: int) -> Recovered:
        """Return what was read, and keep no chunk."""
        pipes = {}
        for name, pipe in self.pipes.items():
            chunks = sorted(self._chunks.pop(name, {}).items())
            missing = self._missing[name].count if name in self._missing else 0
            pipes[name] = RecoveredPipe(
                pipe.next_number, chunks, dict(pipe.groups), dict(pipe.writers), pipe.first - 1, missing
            )
        return Recovered(pipes, problems, lost)

    def _look_for_lost(self, records: Sequence[AnyRecord]) -> None:
        """See from the records after damage which numbers are missing, and which of those nobody needs any more."""
        for record in records if self._damaged else ():
            if isinstance(record, Stored | Known):
                if record.pipe not in self.pipes and record.pipe not in self._missing:
                    self._missing[record.pipe] = _Missing(since=1)
                if record.pipe in self._missing:
                    self._missing[record.pipe].found(record)
            elif isinstance(record, Removed | Purged) and record.pipe in self._missing:
                self._missing[record.pipe].gone(record)
            elif isinstance(record, Dropped):
                self._missing[record.pipe] = _Missing()
