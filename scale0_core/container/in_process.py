"""Connections between services of one broker: as over a socket, without one.

An endpoint that binds to ``@name`` is reached by the endpoints of other services that connect to ``@name``. What they
send each other is delivered in the same iteration of the loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from scale0_core.container.outbox import FULL, GONE, MALFORMED
from scale0_core.service import Endpoint, Frames

if TYPE_CHECKING:
    from scale0_core.container.host import ServiceHost

TOO_LARGE = "EMSGSIZE"
"""The receiver's endpoint takes no such message; over a socket, the connection would end."""


class Receiver(Protocol):
    """Where in-process messages arrive."""

    host: ServiceHost
    routing_id: bytes
    """By which the other end knows it, if that is a ROUTER."""

    @property
    def reachable(self) -> bool:
        """Whether messages can be sent here."""

    @property
    def ready(self) -> bool:
        """Whether the service can take messages now."""

    def post(self, frames: Frames) -> str:
        """Keep a message until it is delivered; return why not, or an empty text."""

    def deliver(self, now: float) -> int:
        """Give the service all that was posted; return the number of messages."""


class Switchboard:
    """Knows who binds which in-process address, and who has connected to it."""

    def __init__(self) -> None:
        self._binders: dict[str, Receiver] = {}
        self._peers: dict[str, dict[bytes, Receiver]] = {}
        self.posted: dict[Receiver, None] = {}
        """Receivers with messages that are not delivered yet."""

    def bind(self, address: str, receiver: Receiver) -> None:
        """Let messages to an address arrive at a receiver."""
        if address in self._binders:
            raise ValueError(f"{address} is in use")
        self._binders[address] = receiver

    def connect(self, address: str, receiver: Receiver) -> None:
        """Let whoever binds an address send to a receiver by its routing id."""
        self._peers.setdefault(address, {})[receiver.routing_id] = receiver

    def leave(self, receiver: Receiver) -> None:
        """Forget a receiver."""
        self.posted.pop(receiver, None)
        self._binders = {address: known for address, known in self._binders.items() if known is not receiver}
        for peers in self._peers.values():
            if peers.get(receiver.routing_id) is receiver:
                del peers[receiver.routing_id]

    def binder(self, address: str) -> Receiver | None:
        """Return who binds an address."""
        return self._binders.get(address)

    def to_binder(self, address: str, sender: Receiver, frames: Frames) -> str:
        """Send a message to whoever binds an address; return why not, or an empty text."""
        binder = self._binders.get(address)
        return FULL if binder is None or not binder.reachable else binder.post((sender.routing_id, *frames))

    def to_peer(self, address: str, frames: Frames) -> str:
        """Send a message to the peer that its first frame names; return why not, or an empty text."""
        if len(frames) < 2:
            return MALFORMED
        peer = self._peers.get(address, {}).get(bytes(frames[0]))
        return GONE if peer is None or not peer.reachable else peer.post(frames[1:])


class InProcessSocket:
    """An endpoint of a service that binds or connects to an in-process address."""

    def __init__(self, host: ServiceHost, name: str, endpoint: Endpoint, board: Switchboard) -> None:
        self.routing_id = f"{host.service.name}/{name}".encode()
        self.address = endpoint.in_process
        self.binds = bool(endpoint.bind)
        self.host, self._name, self._endpoint, self._board = host, name, endpoint, board
        self._posted: list[Frames] = []

    @property
    def reachable(self) -> bool:
        """Whether messages can be sent here."""
        return not self.host.quarantined

    @property
    def ready(self) -> bool:
        """Whether the service can take messages now."""
        return not self.host.paused

    def send(self, frames: Frames) -> str:
        """Send a message of the service; return why not, or an empty text."""
        whole = sendable(frames)
        if whole is None:
            return MALFORMED
        if self.binds:
            return self._board.to_peer(self.address, whole)
        return self._board.to_binder(self.address, self, whole)

    def post(self, frames: Frames) -> str:
        """Keep a message until it is delivered."""
        if not fits(frames, self._endpoint):
            return TOO_LARGE
        if len(self._posted) >= self._endpoint.high_water:
            return FULL
        self._posted.append(as_delivered(frames, self._endpoint))
        self._board.posted[self] = None
        return ""

    def deliver(self, now: float) -> int:
        """Give the service what was posted."""
        posted, self._posted = self._posted, []
        self._board.posted.pop(self, None)
        self.host.receive(self._name, posted, now)
        return len(posted)

    def lose_peer(self, now: float) -> None:
        """Tell the service that a peer is gone."""
        if self._endpoint.watch_peers:
            self.host.peer_lost(self._name, now)


def sendable(frames: Any) -> Frames | None:
    """Return frames as a receiver may have them: nothing that can change any more; None if they cannot be sent."""
    if type(frames) is not tuple or not frames:
        return None
    try:
        return tuple([frame if isinstance(frame, bytes) else _sendable(frame) for frame in frames])
    except TypeError:
        return None


def _sendable(frame: Any) -> bytes:
    if isinstance(frame, bytearray | memoryview):
        return bytes(frame)
    memoryview(frame)  # a blob; anything else is a TypeError
    return cast("bytes", frame)


def fits(frames: Sequence[bytes], endpoint: Endpoint) -> bool:
    """Return whether an endpoint takes a message of these frames."""
    return len(frames) <= endpoint.max_frames and all(len(frame) <= endpoint.max_message for frame in frames)


def as_delivered(frames: Frames, endpoint: Endpoint) -> Frames:
    """Return frames as they would come from a socket: large ones as blobs only if the endpoint asks for that."""
    largest = endpoint.max_message if endpoint.blob_over is None else endpoint.blob_over
    whole: tuple[Any, ...] = frames
    return tuple([frame if isinstance(frame, bytes) or len(frame) > largest else bytes(frame) for frame in whole])
