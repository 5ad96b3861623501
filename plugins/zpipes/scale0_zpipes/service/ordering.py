"""The requests of a connection in order: what comes behind a write that waits is taken when that is answered.

Clients of the text dialect tell answers by their place. So as long as a write waits for room, or the disk owes an
answer, later requests of the same connection are held here, as if they had not been received. A ROUTER cannot leave
the messages of one connection unread, so what is held is bounded in bytes: beyond that, requests are refused, in
their place, and with them all that follow until everything before them is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from scale0_core.api import Effect, Frames, Job
from scale0_zpipes.service.answers import SOCKET, Refusal

OVERTAKING = frozenset(
    (b"READ", b"FETCH", b"ROWS", b"ACK", b"GROUP", b"UNGROUP", b"GROUPS", b"PURGE", b"INFO", b"LIST", b"PING")
)
"""Commands that make room, or only ask: who waits for room on the same connection may need them."""

OVERHEAD = 256
"""Bytes of memory that a request takes beside its frames."""

SHARE = 4
"""One connection may have at most so many parts of what is held."""


class Answer:
    """Answers that are known, and wait for their place: the same one so many times."""

    __slots__ = ("frames", "times")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.times = 1


class Early:
    """Requests that came before the pipes on disk were known, in the order in which they came, within bounds.

    Beyond these a connection's requests are refused, in their place, and with them all that follow.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._size = 0
        self._held: list[Frames | Answer] = []
        self._size_of: dict[bytes, int] = {}
        self._refused: dict[bytes, Answer] = {}

    def hold(self, frames: Frames, envelope: Frames) -> None:
        """Keep a request, or when too much is held its refusal."""
        peer = frames[0]
        if peer in self._refused:
            self._refused[peer].times += 1
            return
        cost = OVERHEAD + sum(map(len, frames))
        mine = self._size_of.get(peer, 0) + cost
        if self._size + cost > max(self._most, cost) or mine > max(self._most // SHARE, cost):
            refusal = Refusal(429, "the pipes on disk are still being read")
            self._refused[peer] = Answer((*envelope, *refusal.frames))
            self._held.append(self._refused[peer])
            return
        self._held.append(frames)
        self._size += cost
        self._size_of[peer] = mine

    def take_all(self) -> list[Frames | Answer]:
        """Take out the requests, and the answers of those that were refused."""
        held, self._held = self._held, []
        self._size = 0
        self._size_of.clear()
        self._refused.clear()
        return held


class Line:
    """A connection that has requests without an answer."""

    __slots__ = ("arrived", "held", "on_disk", "refused", "size", "waits")

    def __init__(self) -> None:
        self.waits = False
        """Whether a write waits for room."""
        self.on_disk = 0
        """Answers that the disk owes."""
        self.held: deque[tuple[float, Frames] | Answer] = deque()
        self.size = 0
        self.refused: Answer | None = None
        """What requests get that are refused since too much is held."""
        self.arrived: float | None = None
        """When the request came that is being taken now."""


class Ordering:
    """All connections that have requests without an answer; all others cost nothing."""

    def __init__(self, most: int) -> None:
        self.lines: dict[bytes, Line] = {}
        self.ready: deque[bytes] = deque()
        """Connections of which something was answered: perhaps more can be taken."""
        self.size = 0
        """Bytes of all that waits or is held."""
        self._most = most
        self._jobs: dict[int, tuple[object, bytes]] = {}

    def line(self, peer: bytes) -> Line:
        """Find the line of a connection, or make it."""
        return self.lines.get(peer) or self.lines.setdefault(peer, Line())

    def arrived(self, peer: bytes, now: float) -> float:
        """Say when the request of a connection came that is being taken."""
        line = self.lines.get(peer)
        return now if line is None or line.arrived is None else line.arrived

    def held(self, peer: bytes) -> int:
        """Count the requests of a connection that are held."""
        line = self.lines.get(peer)
        return 0 if line is None else len(line.held)

    # --- what has no answer yet ---------------------------------------------------------------------------------------

    def has_room(self, size: int) -> bool:
        """Tell whether so much more may wait."""
        return self.size + size <= self._most

    def wait(self, peer: bytes, size: int) -> None:
        """Note that a write of a connection waits for room."""
        self.line(peer).waits = True
        self.size += size

    def waited(self, peer: bytes, size: int) -> None:
        """Note that it does so no more."""
        self.line(peer).waits = False
        self.size -= size
        self.ready.append(peer)

    def note_jobs(self, peer: bytes, effects: Iterable[Effect]) -> None:
        """Note that the disk owes answers to a connection."""
        for effect in effects:
            if isinstance(effect, Job):
                self._jobs[id(effect.token)] = (effect.token, peer)
                self.line(peer).on_disk += 1

    def job_done(self, token: object) -> None:
        """Note that the disk has answered."""
        _, peer = self._jobs.pop(id(token), (None, None))
        if peer is not None:
            self.lines[peer].on_disk -= 1
            self.ready.append(peer)

    # --- what is held -------------------------------------------------------------------------------------------------

    def hold(self, line: Line, frames: Frames, envelope: Frames, now: float) -> None:
        """Keep a request until those before it are answered; or, when too much is held, its refusal."""
        if line.refused is not None:
            line.refused.times += 1
            return
        cost = OVERHEAD + sum(map(len, frames))
        if not self.has_room(cost) or line.size + cost > max(self._most // SHARE, cost):
            refusal = Refusal(429, "too many requests of this connection wait")
            line.refused = Answer((*envelope, *refusal.frames))
            line.held.append(line.refused)
            return
        line.held.append((now, frames))
        line.size += cost
        self.size += cost

    def answer(self, peer: bytes, frames: Frames) -> list[Effect]:
        """Answer a request of which the line is at hand: now, or when the disk has answered those before it."""
        line = self.lines.get(peer)
        if line is None or not line.on_disk:
            return [(SOCKET, frames)]
        line.held.appendleft(Answer(frames))
        return []

    def answer_last(self, peer: bytes, answer: Answer) -> list[Effect]:
        """Answer requests that come behind all others of their connection: now, or when those are answered."""
        line = self.lines.get(peer)
        if line is None:
            return [(SOCKET, answer.frames)] * answer.times
        line.held.append(answer)
        return []

    def take(self, peer: bytes, line: Line) -> Iterator[Effect]:
        """Send the answers whose place has come."""
        while line.held and not (line.waits or line.on_disk) and isinstance(first := line.held[0], Answer):
            line.held.popleft()
            if first is line.refused:
                line.refused = None
            yield from [(SOCKET, first.frames)] * first.times
        if not (line.held or line.waits or line.on_disk):
            self.lines.pop(peer, None)

    def next_request(self, line: Line) -> Frames:
        """Take the request out that is first."""
        entry = line.held.popleft()
        assert isinstance(entry, tuple)
        line.arrived, frames = entry
        cost = OVERHEAD + sum(map(len, frames))
        line.size -= cost
        self.size -= cost
        return frames
