"""Queues that serve clients in turn."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scale0_majordomo.service.desk import Request

NEVER = float("inf")
SPARE = 64
"""Number of dead entries that a line may keep before it is compacted."""


class Share:
    """What one client has waiting at one service."""

    __slots__ = ("bytes", "client", "held", "waiting")

    def __init__(self, client: bytes) -> None:
        self.client = client
        self.waiting = 0
        self.bytes = 0
        self.held = False
        """Whether the client reads too slowly: its requests wait until it has read its replies."""


class Line:
    """The requests of one client in a queue, in order; those that ended meanwhile are dead entries."""

    __slots__ = ("entries", "live", "queue", "share")

    def __init__(self, queue: FairQueue, share: Share | None) -> None:
        self.queue = queue
        self.share = share
        self.entries: deque[Request] = deque()
        self.live = 0

    def drop(self) -> None:
        """Note that one of the requests is ``done``."""
        self.live -= 1
        self.queue.dropped(self)
        if not self.live:
            self.entries.clear()
        elif len(self.entries) - self.live > max(SPARE, self.live):
            self.entries = deque(request for request in self.entries if not request.done)


class FairQueue:
    """Requests of many clients, round robin by client; those that are put back come before all others."""

    __slots__ = ("_lines", "_turns", "again", "available")

    def __init__(self) -> None:
        self.available = 0
        """Number of requests that ``take`` can return now: all but those of clients that are held."""
        self.again = Line(self, None)
        self._lines: dict[Share, Line] = {}
        self._turns: OrderedDict[Share, Line] = OrderedDict()

    def append(self, request: Request, share: Share) -> None:
        """Add a request behind the others of its client."""
        line = self._lines.get(share)
        if line is None:
            line = self._lines[share] = Line(self, share)
            if not share.held:
                self._turns[share] = line
        line.entries.append(request)
        line.live += 1
        request.line, request.share = line, share
        if not share.held:
            self.available += 1

    def put_back(self, request: Request, share: Share) -> None:
        """Add a request before all others."""
        self.again.entries.appendleft(request)
        self.again.live += 1
        request.line, request.share = self.again, share
        self.available += 1

    def take(self) -> Request | None:
        """Remove and return the next request, or None."""
        if self.again.live:
            line = self.again
        elif self._turns:
            share, line = self._turns.popitem(last=False)
            if line.live > 1:
                self._turns[share] = line
            else:
                del self._lines[share]
        else:
            return None
        request = line.entries.popleft()
        while request.done:
            request = line.entries.popleft()
        line.live -= 1
        self.available -= 1
        if not line.live:
            line.entries.clear()
        request.line = None
        return request

    def hold(self, share: Share) -> None:
        """Leave out the requests of a client until ``release``; ``share.held`` is the caller's to set."""
        line = self._turns.pop(share, None)
        if line is not None:
            self.available -= line.live

    def release(self, share: Share) -> None:
        """Serve a client again."""
        line = self._lines.get(share)
        if line is not None and share not in self._turns:
            self._turns[share] = line
            self.available += line.live

    def dropped(self, line: Line) -> None:
        """Note that a line has one request less."""
        share = line.share
        if share is None or share in self._turns:
            self.available -= 1
        if share is not None and not line.live:
            del self._lines[share]
            self._turns.pop(share, None)

    def expired(self, now: float, ordered: bool) -> tuple[list[Request], float]:
        """Return the requests that are due, and when the next one is; each line is in that order if ``ordered``."""
        found: list[Request] = []
        next_due = NEVER
        for line in (self.again, *self._lines.values()):
            for request in line.entries:
                if request.done:
                    continue
                if request.due <= now:
                    found.append(request)
                    continue
                next_due = min(next_due, request.due)
                if ordered and line.share is not None:
                    break
        return found, next_due

    def __iter__(self) -> Iterator[Request]:
        """Return the requests that wait, put back ones first, then client by client."""
        lines = (self.again, *self._lines.values())
        return iter([request for line in lines for request in line.entries if not request.done])

    def __len__(self) -> int:
        """Return the number of entries, dead ones included."""
        return len(self.again.entries) + sum(len(line.entries) for line in self._lines.values())
