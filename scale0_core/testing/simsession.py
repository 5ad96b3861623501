"""The session of a client or a worker in the simulated network."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from scale0_core.client.kit.route import resolve
from scale0_core.config.addresses import is_local
from scale0_core.parts.backoff import Backoff
from scale0_core.service import Connect, Disconnect, Effect, Endpoint, Frames, SocketKind
from scale0_core.testing.simnode import SimNode
from scale0_core.testing.virtual import Action, Agenda

if TYPE_CHECKING:
    from scale0_core.client.kit.sessions import Session

SOCKET = "broker"

HIGH_WATER = 10_000
"""Messages that a client's socket holds, as on a real one."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two attempts to connect to the same address."""

TURNS = 10
"""Deadlines that a session may have at one instant."""


class SimSession:
    """A service that drives a session as its engine does, over a simulated DEALER.

    A connection serves once: when it breaks, what was meant for it is lost, and the next attempt follows after a
    backoff, on a socket that knows nothing of the last. The application around the session, such as a handler that
    takes a second, is written as actions: ``at(time, action)``. A factory makes one anew at each start of the node::

        net.add("worker", lambda node: [SimSession(node, make_session(node))])
    """

    name = "session"

    def __init__(self, node: SimNode, session: Session) -> None:
        self.node, self.session = node, session
        self.endpoints = {SOCKET: Endpoint(kind=SocketKind.DEALER, high_water=HIGH_WATER)}
        self.linked = False
        self._agenda = Agenda(node.now)
        self._news: list[tuple[int, bool, str]] = []
        self._changes: list[Effect] = []
        self._address = ""
        """Where the socket is connected or connects to."""
        self._connection = session.connection
        self._linked_before = False
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, node.random)
        self._nowhere = ""
        self._again_at: float | None = None
        self._busy = False
        self.at(node.now, lambda: session.start(self._agenda.now))

    def at(self, time: float, action: Action) -> None:
        """Do something at a time, such as opening a call; what the session wants to be sent then is sent."""
        self._agenda.at(time, action)
        if not self._busy:
            self.node.wake()

    # --- what the network says ----------------------------------------------------------------------------------------

    def on_link(self, up: bool, nobody: str) -> None:
        """Note that a connection was made, or that it broke or could not be made, if so since nobody listens."""
        self._news.append((self._connection, up, nobody))

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Give a message to the session."""
        return self._turn(now, lambda: self._receive(frames, now))

    def _receive(self, frames: Frames, now: float) -> None:
        if self.session.connection == self._connection:  # else it comes from a connection that was given up
            self.session.receive(frames, now)

    def on_refused(self, effect: Connect | Disconnect, reason: str, now: float) -> Iterable[Effect]:
        """Retry an address that is none: it may be another one by then."""
        self._address = ""
        self._pause(now)
        return ()

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when the session, the application or a retry is due."""
        if self._news:
            return self.node.now
        if self.session.connection != self._connection:
            return math.nextafter(self.node.now, math.inf)
        times = (self.session.next_deadline(), self._again_at, self._agenda.next_time)
        return min((time for time in times if time is not None), default=None)

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        return self._turn(now, lambda: self._due(now))

    def _due(self, now: float) -> None:
        news, self._news = self._news, []
        for connection, up, nobody in news:
            if connection == self._connection:
                self._linked(up, nobody, now)
        self._agenda.advance(now)  # first: what it does may be due for the session immediately
        for _ in range(TURNS):
            due = self.session.next_deadline()
            if due is None or due > now:
                break
            self.session.on_deadline(now)
        if self._again_at is not None and self._again_at <= now:
            self._open()

    # --- the connection -----------------------------------------------------------------------------------------------

    def _turn(self, now: float, action: Callable[[], None]) -> Iterable[Effect]:
        """Do something, and return what the session wants now: to send, then to connect elsewhere."""
        self._busy = True
        try:
            action()
        finally:
            self._busy = False
        session = self.session
        sends: list[Effect] = [(SOCKET, frames) for frames in session.out] if self._address else []
        session.out.clear()
        if session.connection != self._connection and not sends:  # else in a moment: connections change before sends
            self._connection = session.connection
            self._close()
            self._open()
        changes, self._changes = self._changes, []
        return [*changes, *sends]

    def _open(self) -> None:
        self._again_at = None
        target = self.session.address
        brokers = partial(self.node.net.brokers, target)
        self._address, self._nowhere = resolve(target, self._backoff.failures, brokers) if target else ("", "")
        if self._address:
            self._changes.append(Connect(SOCKET, self._address))

    def _close(self) -> None:
        self.linked = False
        if self._address:
            self._changes.append(Disconnect(SOCKET, self._address))
            self._address = ""

    def _linked(self, up: bool, nobody: str, now: float) -> None:
        if up:
            self.linked = self._linked_before = True
            self._backoff.reset()
            self.session.on_linked(now)
            return
        was_linked, address, nobody = self.linked, self._address, self._nowhere or nobody
        self._close()
        self._pause(now)
        if was_linked:
            self.session.on_unlinked(now)
        elif nobody and not self._linked_before and is_local(address):
            self.session.on_nobody(nobody, now)

    def _pause(self, now: float) -> None:
        self._again_at = now + self._backoff.next()
