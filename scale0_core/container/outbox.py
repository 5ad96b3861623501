"""Messages for peers whose queue is full, kept for a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from itertools import islice
from typing import TypeAlias

import attrs

from scale0_core.parts.timers import Deadlines
from scale0_core.service import Send, SendFailure

RETRY_AFTER = 0.01
"""Seconds until a peer whose queue was full is tried again; the pause doubles while the peer takes nothing."""

LONGEST_PAUSE = 0.25
"""Seconds between two tries for a peer that has taken nothing for long."""

GRAIN = 0.005
MOST_AT_ONCE = 256

MESSAGE_COST, FRAME_COST = 128, 40
"""Bytes that Python needs for a message and for each frame, beside what is in them."""

FULL = "EAGAIN"
GONE = "EHOSTUNREACH"
MALFORMED = "malformed"
"""Reasons of sends that failed; the last: it was not (socket name, tuple of frames)."""

Peer: TypeAlias = tuple[str, bytes]
SendBatch: TypeAlias = Callable[[list[Send]], list[tuple[int, str]]]
"""Sends a batch and returns (index, reason) of those that failed; after a failure nothing more goes to that peer."""


@attrs.define
class Outcome:
    """What came of a batch: the number of messages sent, and those that were not or had to wait."""

    sent: int = 0
    failures: list[SendFailure] = attrs.field(factory=list)
    delayed: list[Send] = attrs.field(factory=list)
    """Messages that wait from now on, and the first of each peer that was retried and has to wait on."""
    left: list[Send] = attrs.field(factory=list)
    """Messages that had waited and were sent."""


@attrs.define(eq=False)
class _Queue:
    """What waits for one peer."""

    messages: deque[tuple[int, Send]] = attrs.field(factory=deque)
    """Messages with their cost: a frame may have changed when it leaves."""
    cost: int = 0
    pause: float = RETRY_AFTER
    cut_off: bool = False
    """Whether a message was refused: the following ones must not overtake it."""


class Outbox:
    """Keeps what could not be sent since a peer reads too slowly, and retries it in order.

    Only messages on ROUTER sockets are kept: there a slow peer must not hold up the others. A retry looks at the first
    message of a peer only, and a peer that takes nothing is tried ever more rarely: libzmq does not say which peer of a
    ROUTER has room again. A peer may keep as much as is still free, so one alone never has more than half of it all.
    """

    def __init__(self, routers: Container[str], most_bytes: int) -> None:
        self._routers = routers
        self._most_bytes = most_bytes
        self._queues: dict[Peer, _Queue] = {}
        self._retries: Deadlines[Peer, Peer] = Deadlines(GRAIN)
        self._count = 0
        self.cost = 0
        """Bytes of what waits, overhead included."""
        self.due: float | None = None
        """When to try again; None when nothing waits."""

    def __len__(self) -> int:
        return self._count

    def waiting(self) -> list[Send]:
        """Return all that waits, peer by peer."""
        return [send for queue in self._queues.values() for _, send in queue.messages]

    def send(self, sends: list[Send], now: float, send_batch: SendBatch) -> Outcome:
        """Send what waits and is due, then what is new; a message to a peer for which others wait joins these."""
        outcome = Outcome()
        if self.due is not None and now >= self.due:
            self._retry(now, send_batch, outcome)
        fresh = sends
        if self._queues:
            fresh = []
            for send in sends:
                peer = _peer(send)
                if peer in self._queues:
                    self._keep(peer, send, now, outcome)
                else:
                    fresh.append(send)
        return self.settle(fresh, send_batch(fresh), now, outcome)

    def settle(
        self, sends: list[Send], errors: list[tuple[int, str]], now: float, outcome: Outcome | None = None
    ) -> Outcome:
        """Sort out a batch of which some could not be sent: keep them, or return them as failures."""
        outcome = Outcome() if outcome is None else outcome
        outcome.sent += len(sends) - len(errors)
        refused: set[Peer] = set()
        for index, reason in errors:
            send = sends[index]
            peer = _peer(send)
            if reason != FULL or send[0] not in self._routers or peer in refused:
                outcome.failures.append(_failure(send, reason))
            elif not self._keep(peer, send, now, outcome):
                refused.add(peer)
        self.due = self._retries.next()
        return outcome

    def give_up(self, socket: str, routing_id: bytes) -> list[Send]:
        """Return what waits for a peer: the next one of that name is another."""
        queue = self._remove((socket, routing_id))
        self._retries.remove((socket, routing_id))
        self.due = self._retries.next()
        return [send for _, send in queue.messages] if queue is not None else []

    def _keep(self, peer: Peer, send: Send, now: float, outcome: Outcome) -> bool:
        """Keep a message, or add it to the failures and return False if the peer has too much already."""
        queue = self._queues.get(peer)
        try:
            cost = MESSAGE_COST + FRAME_COST * len(send[1]) + sum(map(len, send[1]))
        except (TypeError, ValueError):  # something that is no frame, or no longer
            outcome.failures.append(_failure(send, MALFORMED))
            return True
        held = cost if queue is None else queue.cost + cost
        if (queue is not None and queue.cut_off) or held > self._most_bytes - self.cost - cost:
            if queue is not None:
                queue.cut_off = True
            outcome.failures.append(_failure(send, FULL))
            return False
        if queue is None:
            queue = self._queues[peer] = _Queue()
            self._retries.set(peer, now + queue.pause, peer)
        queue.messages.append((cost, send))
        queue.cost = held
        self.cost += cost
        self._count += 1
        outcome.delayed.append(send)
        return True

    def _retry(self, now: float, send_batch: SendBatch, outcome: Outcome) -> None:
        """Try the first message of each peer that is due, and more of those that take it."""
        peers, some = self._retries.take(now), 1
        stuck = {peer: self._queues[peer].pause * 2 for peer in peers}
        while peers:
            parts = [(peer, [send for _, send in islice(self._queues[peer].messages, some)]) for peer in peers]
            errors = dict(send_batch([send for _, part in parts for send in part]))
            index, peers = 0, []
            for peer, part in parts:
                reasons = [errors.get(place, "") for place in range(index, index + len(part))]
                index += len(part)
                if reasons[0] != FULL:
                    stuck.pop(peer, None)
                if self._tried(peer, part, reasons, outcome):
                    peers.append(peer)
                elif peer in self._queues:
                    self._queues[peer].pause = pause = min(stuck.get(peer, RETRY_AFTER), LONGEST_PAUSE)
                    self._retries.set(peer, now + pause, peer)
            some = min(some * 4, MOST_AT_ONCE)

    def _tried(self, peer: Peer, part: list[Send], reasons: list[str], outcome: Outcome) -> bool:
        """Take out what was sent or failed for good; return whether it is worth trying more for this peer."""
        queue = self._queues[peer]
        for send, reason in zip(part, reasons, strict=True):
            if reason == FULL:
                outcome.delayed.append(send)
                return False
            if reason == GONE:
                self._remove(peer)
                outcome.failures += [_failure(other, GONE) for _, other in queue.messages]
                return False
            cost, _ = queue.messages.popleft()
            queue.cost -= cost
            self.cost -= cost
            self._count -= 1
            queue.cut_off = False
            if reason:
                outcome.failures.append(_failure(send, reason))
            else:
                outcome.sent += 1
                outcome.left.append(send)
        if not queue.messages:
            self._remove(peer)
        return bool(queue.messages)

    def _remove(self, peer: Peer) -> _Queue | None:
        queue = self._queues.pop(peer, None)
        if queue is not None:
            self.cost -= queue.cost
            self._count -= len(queue.messages)
        return queue


def _peer(send: Send) -> Peer:
    try:
        socket, frames = send
        return socket, bytes(frames[0])
    except (TypeError, ValueError, IndexError):
        return "", b""  # malformed: the wire will say so


def _failure(send: object, reason: str) -> SendFailure:
    if isinstance(send, tuple) and len(send) == 2 and isinstance(send[0], str) and isinstance(send[1], tuple):
        return SendFailure(send[0], send[1], reason)
    return SendFailure("?", (), reason)
