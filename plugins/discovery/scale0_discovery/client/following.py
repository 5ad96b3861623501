"""A watch on the broker's sockets: two sessions, without I/O, and the flow of changes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from scale0_core.api import Frames
from scale0_core.client.kit.flows import Flow, Item
from scale0_core.client.kit.sessions import BaseSession, Limits
from scale0_discovery.client.watching import Row, Watch

SILENCE = 15.0
"""Seconds without a message, bookmarks included, after which a watch looks whether the broker is still there."""


class WatchSession(BaseSession):
    """Asks what a watch wants to know; whoever is not there any more is waited for.

    :param timeout: seconds after which a question counts as lost: it went to a broker that is no more.
    :param on_silence: is called once when nothing was heard for long.
    """

    limits = Limits(max_message=-1, linger_ms=0)

    def __init__(self, address: str, watch: Watch, timeout: float, on_silence: Callable[[], None]) -> None:
        super().__init__(address)
        self.watch = watch
        self.changes: deque[Row] = deque()
        self.error: Exception | None = None
        self._timeout, self._on_silence = timeout, on_silence
        self._linked = self._told = False
        self._asked: float | None = None
        self._heard = 0.0

    def start(self, now: float) -> None:
        """Begin to connect."""
        self._heard = now

    def on_linked(self, now: float) -> None:
        """Ask what is missing."""
        self._linked = True
        self._ask(now)

    def on_unlinked(self, now: float) -> None:
        """Wait until there is a connection again."""
        self._linked, self._asked = False, None

    def receive(self, frames: Frames, now: float) -> None:
        """Take an answer."""
        self._asked, self._told = None, False
        self._take(self.watch.answered, frames, now)

    def published(self, frames: Frames, now: float) -> None:
        """Take what was published."""
        self._take(self.watch.published, frames, now)

    def _take(self, read: Callable[[Frames], list[Row]], frames: Frames, now: float) -> None:
        self._heard = now
        try:
            self.changes += read(frames)
        except Exception as error:  # whoever waits for changes is told
            self.error = error
        self._ask(now)

    def _ask(self, now: float) -> None:
        if self._linked and self._asked is None and (request := self.watch.request()) is not None:
            self.out.append(request)
            self._asked = now

    def next_deadline(self) -> float | None:
        """Return when a question counts as lost, or the silence is long."""
        silent = self._heard + SILENCE
        return silent if self._asked is None else min(silent, self._asked + self._timeout)

    def on_deadline(self, now: float) -> None:
        """Ask again."""
        if self._asked is not None and self._asked + self._timeout <= now:
            self._asked = None
        if self._heard + SILENCE <= now:
            self._heard = now
            self.watch.check()
            if not self._told:
                self._on_silence()
            self._told = True
        self._ask(now)


class NewsSession(BaseSession):
    """Hears what is published."""

    def __init__(self, address: str, following: WatchSession) -> None:
        super().__init__(address)
        self.limits = Limits(topics=following.watch.topics, linger_ms=0)
        self._following = following

    def receive(self, frames: Frames, now: float) -> None:
        """Hand on what was published."""
        self._following.published(frames, now)


def changes(driver: Any) -> Flow[None]:
    """Give the changes as they come, from a driver of a WatchSession."""
    session: WatchSession = driver.session
    while True:
        yield driver.until(lambda: session.changes or session.error or session.ended)
        while session.changes:
            yield Item(session.changes.popleft())
        if session.error is not None:
            raise session.error
        if session.ended:
            return
