"""Messages for peers whose queue is full, kept for a while."""

from __future__ import annotations

from collections.abc import Container

from scale0_core.service import Send

RETRY_AFTER = 0.01
"""Seconds until a peer whose queue was full is tried again."""

FULL = "EAGAIN"
GONE = "EHOSTUNREACH"

Peer = tuple[str, bytes]


class Outbox:
    """What could not be sent since a peer reads too slowly; it is tried again, in order, until there is too much of it.

    Only messages on ROUTER sockets are kept: there a slow peer must not hold up the others.
    """

    def __init__(self, routers: Container[str], most_bytes: int) -> None:
        self._routers = routers
        self._most_bytes = most_bytes
        self._waiting: list[Send] = []
        self._bytes = 0
        self._peers: set[Peer] = set()
        self._cut_off: set[Peer] = set()
        """Peers of which a message was refused: the following ones must not overtake it."""
        self.due: float | None = None
        """When to try again; None when nothing waits."""

    def __len__(self) -> int:
        return len(self._waiting)

    def kept(self, since: int) -> list[Send]:
        """Give what was put in after so many."""
        return self._waiting[since:]

    def outgoing(self, sends: list[Send], now: float) -> tuple[list[Send], list[Send]]:
        """Give what to send now, in order, and what is refused since too much waits for that peer already."""
        if not self._waiting:
            return sends, []
        if self.due is not None and now >= self.due:
            # those that waited come first; once a peer refuses one, the wire tries no more for it
            everything = self._waiting + sends
            self._waiting, self._bytes, self.due = [], 0, None
            self._peers.clear()
            self._cut_off.clear()
            return everything, []
        free = [send for send in sends if _peer(send) not in self._peers]
        return free, self.keep([send for send in sends if _peer(send) in self._peers], now)

    def keep(self, sends: list[Send], now: float) -> list[Send]:
        """Keep messages that a peer's queue had no room for; give back those that are too much."""
        refused: list[Send] = []
        for send in sends:
            peer, size = _peer(send), sum(map(len, send[1]))
            if peer in self._cut_off or self._bytes + size > self._most_bytes:
                self._cut_off.add(peer)
                refused.append(send)
                continue
            if not self._waiting:
                self.due = now + RETRY_AFTER
            self._waiting.append(send)
            self._peers.add(peer)
            self._bytes += size
        if not self._waiting:
            self._cut_off.clear()
        return refused

    def give_up(self, socket: str, routing_id: bytes) -> list[Send]:
        """Give back what waits for a peer: the next one of that name is another."""
        peer = (socket, routing_id)
        gone = [send for send in self._waiting if _peer(send) == peer]
        if gone:
            self._waiting = [send for send in self._waiting if _peer(send) != peer]
            self._bytes -= sum(len(frame) for _, frames in gone for frame in frames)
            self._peers.discard(peer)
        self._cut_off.discard(peer)
        if not self._waiting:
            self._cut_off.clear()
            self.due = None
        return gone

    def keeps(self, send: Send, reason: str) -> bool:
        """Tell whether a message that failed is one to keep."""
        return reason == FULL and send[0] in self._routers


def _peer(send: Send) -> Peer:
    try:
        socket, frames = send
        return socket, bytes(frames[0])
    except (TypeError, ValueError, IndexError):
        return "", b""  # malformed: the wire will say so
