"""What this service tells while somebody observes: how much was written to the pipes and read from them.

Not each chunk is told, but once a second what has come and gone since, of the pipes that were used meanwhile.
"""

from __future__ import annotations

from typing import NamedTuple

from scale0_core.api import Event, events
from scale0_zpipes.service.pipe import Pipe

EVERY = 1.0
"""Seconds between two events of one pipe."""
SLICE = 1000
PAUSE = 0.01
"""So many pipes are told of at a time, and so many seconds later the next ones."""
NEVER = float("inf")


class Seen(NamedTuple):
    """The counters of a pipe when it was last looked at; what is not there any more was read."""

    written: int
    came: int
    gone: int
    gone_bytes: int

    @classmethod
    def of(cls, pipe: Pipe) -> Seen:
        """Look at a pipe."""
        return cls(pipe.written, pipe.came, pipe.written - pipe.depth, pipe.came - pipe.bytes)


class Used:
    """How a pipe of the binary dialect was used since it was last told."""

    __slots__ = ("came", "gone", "read", "written")

    def __init__(self) -> None:
        self.written = self.came = self.read = self.gone = 0


class Activity:
    """Knows which pipes are in use. The others cost nothing, however many there are.

    Pipes of the text dialect are looked at from time to time. Those of the binary dialect end with their ends, so that
    each WRITE and READ of them is noted.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self._streams: dict[bytes, Used] = {}
        self._streams_round: dict[bytes, Used] = {}
        self._pipes_due = NEVER
        self._streams_due = NEVER
        self._busy: dict[Pipe, Seen] = {}
        self._round: list[Pipe] = []

    def watch(self, pipe: Pipe, now: float) -> None:
        """Note that something is about to happen at a pipe."""
        if pipe not in self._busy:
            self._busy[pipe] = Seen.of(pipe)
            if self._pipes_due == NEVER:
                self._pipes_due = now + EVERY

    def wrote(self, name: bytes, size: int) -> None:
        """Note a WRITE of the binary dialect that was taken."""
        used = self._streams.get(name) or self._streams.setdefault(name, Used())
        used.written += 1
        used.came += size

    def read(self, name: bytes, size: int) -> None:
        """Note a READ of the binary dialect that was answered with data."""
        used = self._streams.get(name) or self._streams.setdefault(name, Used())
        used.read += 1
        used.gone += size

    def streams_used(self, now: float) -> None:
        """See to it that what was noted is told a second later."""
        if self._streams_due == NEVER and self._streams:
            self._streams_due = now + EVERY

    @property
    def due(self) -> float:
        """When to tell again."""
        return min(self._pipes_due, self._streams_due)

    def on_deadline(self, now: float) -> None:
        """Tell of some of the pipes in use."""
        if self._pipes_due <= now:
            self._look_at_pipes(now)
        if self._streams_due <= now:
            self._tell_streams(now)

    def _tell_streams(self, now: float) -> None:
        if not self._streams_round:
            self._streams_round, self._streams = self._streams, {}
        for _ in range(min(SLICE, len(self._streams_round))):
            self._tell_stream(*self._streams_round.popitem(), now)
        self._streams_due = now + (PAUSE if self._streams_round else EVERY if self._streams else NEVER)

    def _tell_stream(self, pipe: bytes, used: Used, now: float) -> None:
        name = pipe.decode("utf-8", "backslashreplace")
        if used.written:
            self.events.append((events.PIPE_WRITE, now, name, used.written, used.came))
        if used.read:
            self.events.append((events.PIPE_READ, now, name, used.read, used.gone))

    def _look_at_pipes(self, now: float) -> None:
        if not self._round:
            self._round = list(self._busy)
        for _ in range(min(SLICE, len(self._round))):
            self._look_at(self._round.pop(), now)
        self._pipes_due = now + (PAUSE if self._round else EVERY if self._busy else NEVER)

    def _look_at(self, pipe: Pipe, now: float) -> None:
        """Tell of a pipe, and go on as long as something happens there, or may without a request: see ``blocked``."""
        if self._tell(pipe, now) or pipe.blocked:
            self._busy[pipe] = Seen.of(pipe)

    def leave(self, pipe: Pipe, now: float) -> None:
        """Tell of a pipe for the last time: what it loses now is not read."""
        self._tell(pipe, now)

    def stop(self, now: float) -> None:
        """Tell what was not told yet."""
        for pipe in list(self._busy):
            self._tell(pipe, now)
        for streams in (self._streams_round, self._streams):
            for name, used in streams.items():
                self._tell_stream(name, used, now)
            streams.clear()

    def _tell(self, pipe: Pipe, now: float) -> bool:
        """Tell what happened at a pipe since it was last looked at; say whether anything did."""
        before = self._busy.pop(pipe, None)
        if before is None:
            return False
        after = Seen.of(pipe)
        name = pipe.name.decode("utf-8", "backslashreplace")
        if after.written > before.written:
            written = after.written - before.written, after.came - before.came
            self.events.append((events.PIPE_WRITE, now, name, *written))
        if after.gone > before.gone:
            read = after.gone - before.gone, max(0, after.gone_bytes - before.gone_bytes)
            self.events.append((events.PIPE_READ, now, name, *read))
        return after != before
