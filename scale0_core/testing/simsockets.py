"""The kinds of ZeroMQ socket, as the simulated network knows them.

Each keeps ZeroMQ's rules for whom a message goes to, what is put before it, and what happens when nobody can take it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import attrs

from scale0_core.container.connections import ID_IN_USE
from scale0_core.service import Endpoint, Frames, SocketKind
from scale0_core.testing.simconnection import Carrier, Connection, Pipe

DELIVERED = ""
"""The outcome of a send that worked; otherwise it is the name of an errno."""

PARTNERS: dict[SocketKind, frozenset[SocketKind]] = {
    kind: frozenset(map(SocketKind, partners.split()))
    for kind, partners in {
        SocketKind.ROUTER: "DEALER REQ ROUTER",
        SocketKind.DEALER: "ROUTER REP DEALER",
        SocketKind.REQ: "ROUTER REP",
        SocketKind.REP: "REQ DEALER",
        SocketKind.PUB: "SUB",
        SocketKind.XPUB: "SUB",
        SocketKind.SUB: "PUB XPUB",
        SocketKind.PUSH: "PULL",
        SocketKind.PULL: "PUSH",
        SocketKind.PAIR: "PAIR",
    }.items()
}


@attrs.define(eq=False)
class Connector:
    """One address that a socket connects to, until it disconnects or its node ends."""

    socket: SimSocket
    address: str
    routing_id: bytes = b""
    connection: Connection | None = None
    trying: bool = False

    @property
    def wanted(self) -> bool:
        """Whether the socket still connects there."""
        return self.socket.connects.get(self.address) is self


class SimSocket:
    """One socket of a simulated node; by itself one that only receives (SUB, PULL)."""

    __slots__ = (
        "_wake", "backlog", "carrier", "connects", "endpoint", "inbox", "name", "node", "on_link", "on_lost", "open",
        "pipes",
    )  # fmt: skip

    def __init__(self, name: str, endpoint: Endpoint, carrier: Carrier, wake: Callable[[SimSocket], None]) -> None:
        self.name = name
        self.node = ""
        """The node that it belongs to."""
        self.endpoint = endpoint
        self.carrier = carrier
        self.pipes: dict[Pipe, None] = {}
        self.inbox: deque[tuple[Pipe | None, Frames]] = deque()
        self.backlog: deque[Frames] = deque()
        self.connects = {address: Connector(self, address) for address in endpoint.connect}
        self.open = True
        self.on_lost: Callable[[], None] = lambda: None
        self.on_link: Callable[[bool, str], None] | None = None
        """Called when a connection was made (True) or broke or could not be made (False, and why if nobody listens);
        the socket's owner then connects anew itself."""
        self._wake = wake

    @property
    def in_flight(self) -> int:
        """How many messages wait here or are on their way from here."""
        return len(self.inbox) + len(self.backlog) + sum(pipe.flying for pipe in self.pipes)

    @property
    def readable(self) -> bool:
        """True when a message waits that may be taken now."""
        return bool(self.inbox)

    def accepts(self, routing_id: bytes) -> bool:
        """Tell whether one more connection, from a peer of that id, can be taken."""
        return True

    def attach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Take a new connection into use."""
        self.pipes[outgoing] = None

    def detach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Drop a connection that has broken."""
        del self.pipes[outgoing]

    def connect(self, connector: Connector) -> str:
        """Prepare a connection; return why it cannot be made, or an empty text."""
        self.connects[connector.address] = connector
        return ""

    def disconnect(self, connector: Connector) -> None:
        """Give up a connection, and what waits for it."""
        del self.connects[connector.address]
        if not self.connects:
            self.carrier.drop("disconnected", len(self.backlog))
            self.backlog.clear()

    def send(self, frames: Frames) -> str:
        """Send a message, and say why it failed if it did."""
        return "ENOTSUP"

    def arrived(self, pipe: Pipe | None, frames: Frames) -> None:
        """Queue a message that came in, until the service can take it."""
        limit = self.endpoint.max_message
        if any(len(frame) > limit for frame in frames):
            self.carrier.drop("EMSGSIZE")
            return
        if pipe is not None:
            pipe.waiting += 1
        self.inbox.append((pipe, frames))
        self._wake(self)

    def take(self) -> Frames | None:
        """Give the next message as the service gets it; None if there was nothing in it for the service."""
        pipe, frames = self.inbox.popleft()
        if pipe is None:
            return frames
        pipe.waiting -= 1
        taken = self.unwrap(pipe, frames)
        if taken is None:
            self.carrier.drop("malformed or out of turn")
        return taken

    def unwrap(self, pipe: Pipe, frames: Frames) -> Frames | None:
        """Turn what came through the pipe into what the service gets."""
        return frames

    def close(self, reason: str) -> None:
        """Lose all that waits here."""
        self.open = False
        self.connects.clear()
        self.carrier.drop(reason, len(self.inbox) + len(self.backlog))
        self.inbox.clear()
        self.backlog.clear()


class RouterSocket(SimSocket):
    """Puts the sender's routing id before each message, and sends to the peer named by the first frame."""

    __slots__ = ("named", "peers")

    def __init__(self, name: str, endpoint: Endpoint, carrier: Carrier, wake: Callable[[SimSocket], None]) -> None:
        super().__init__(name, endpoint, carrier, wake)
        self.peers: dict[bytes, Pipe] = {}
        self.named: set[bytes] = set()
        """Routing ids that the service gave; what is sent to these waits until the peer is there."""

    def accepts(self, routing_id: bytes) -> bool:
        """Take every peer whose id is not taken; a second one must wait until the first is gone."""
        return routing_id not in self.peers and routing_id not in self.named

    def connect(self, connector: Connector) -> str:
        """Keep the routing id for the peer to come."""
        if connector.routing_id:
            if not self.accepts(connector.routing_id):
                return ID_IN_USE
            self.named.add(connector.routing_id)
        return super().connect(connector)

    def disconnect(self, connector: Connector) -> None:
        """Give up a connection, and what waits for it."""
        del self.connects[connector.address]
        self.named.discard(connector.routing_id)
        self._take_waiting(connector.routing_id, lambda frames: self.carrier.drop("disconnected"))

    def attach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Learn the peer's routing id."""
        super().attach(outgoing, incoming)
        self.peers[incoming.routing_id] = outgoing
        self._take_waiting(incoming.routing_id, lambda frames: self.carrier.carry(outgoing, frames[1:]))

    def detach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Forget the peer's routing id."""
        super().detach(outgoing, incoming)
        del self.peers[incoming.routing_id]

    def send(self, frames: Frames) -> str:
        """Send to the peer named by the first frame."""
        pipe = self.peers.get(frames[0])
        if pipe is None:
            return self._wait(frames) if frames[0] in self.named else "EHOSTUNREACH"
        if pipe.full:
            return "EAGAIN"
        self.carrier.carry(pipe, frames[1:])
        return DELIVERED

    def _wait(self, frames: Frames) -> str:
        limit = self.endpoint.high_water
        if limit and sum(waiting[0] == frames[0] for waiting in self.backlog) >= limit:
            return "EAGAIN"
        self.backlog.append(frames)
        return DELIVERED

    def _take_waiting(self, routing_id: bytes, take: Callable[[Frames], None]) -> None:
        for frames in [frames for frames in self.backlog if frames[0] == routing_id]:
            self.backlog.remove(frames)
            take(frames)

    def unwrap(self, pipe: Pipe, frames: Frames) -> Frames:
        """Put the routing id before the message."""
        return (pipe.routing_id, *frames)


class RoundRobinSocket(SimSocket):
    """Sends to each of its peers in turn, and keeps messages while it is not connected yet (DEALER, PUSH)."""

    __slots__ = ()

    def attach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Send what has waited for a connection."""
        super().attach(outgoing, incoming)
        while self.backlog:
            self.launch(outgoing, self.backlog.popleft())

    def send(self, frames: Frames) -> str:
        """Send to the next peer that can take it."""
        for pipe in self.pipes:
            if not pipe.full:
                if len(self.pipes) > 1:
                    del self.pipes[pipe]
                    self.pipes[pipe] = None  # behind the others
                self.launch(pipe, frames)
                return DELIVERED
        limit = self.endpoint.high_water
        # a socket that only binds has no pipe before somebody connects, and so nowhere to keep a message
        if self.pipes or not self.connects or (limit and len(self.backlog) >= limit):
            return "EAGAIN"
        self.backlog.append(frames)
        return DELIVERED

    def launch(self, pipe: Pipe, frames: Frames) -> None:
        """Send a message to the peer chosen."""
        self.carrier.carry(pipe, frames)


class PairSocket(RoundRobinSocket):
    """Talks to one peer and to no other."""

    def accepts(self, routing_id: bytes) -> bool:
        """Take one peer."""
        return not self.pipes


class ReqSocket(RoundRobinSocket):
    """Sends a request, then takes the answer of the peer that got it, and so on in turn."""

    def __init__(self, name: str, endpoint: Endpoint, carrier: Carrier, wake: Callable[[SimSocket], None]) -> None:
        super().__init__(name, endpoint, carrier, wake)
        self.waits = False
        self.asked: Pipe | None = None

    def send(self, frames: Frames) -> str:
        """Send a request, if the last one is answered."""
        if self.waits and not self.endpoint.options.get("REQ_RELAXED"):
            return "EFSM"
        reason = super().send((b"", *frames))
        self.waits = self.waits or reason == DELIVERED
        return reason

    def launch(self, pipe: Pipe, frames: Frames) -> None:
        """Remember who was asked."""
        self.asked = pipe
        super().launch(pipe, frames)

    def unwrap(self, pipe: Pipe, frames: Frames) -> Frames | None:
        """Take an answer only from the peer that was asked, and once."""
        asked = self.asked is not None and self.asked.connection is pipe.connection
        if not self.waits or not asked or len(frames) < 2 or frames[0] != b"":
            return None
        self.waits = False
        return frames[1:]


class RepSocket(SimSocket):
    """Takes a request, then sends its answer back the way it came, and so on in turn."""

    def __init__(self, name: str, endpoint: Endpoint, carrier: Carrier, wake: Callable[[SimSocket], None]) -> None:
        super().__init__(name, endpoint, carrier, wake)
        self.way_back: tuple[Pipe, Frames] | None = None

    @property
    def readable(self) -> bool:
        """True when a request waits and the last one is answered."""
        return bool(self.inbox) and self.way_back is None

    def send(self, frames: Frames) -> str:
        """Answer the request; when its sender is gone, the answer is lost, as ZeroMQ does it."""
        if self.way_back is None:
            return "EFSM"
        (request, envelope), self.way_back = self.way_back, None
        answer = request.connection.opposite(request)
        if answer not in self.pipes:
            self.carrier.drop("asker gone")
        elif answer.full:
            self.carrier.drop("asker full")
        else:
            self.carrier.carry(answer, envelope + frames)
        return DELIVERED

    def unwrap(self, pipe: Pipe, frames: Frames) -> Frames | None:
        """Keep what stands before the first empty frame for the answer."""
        if b"" not in frames[:-1]:
            return None
        cut = frames.index(b"") + 1
        self.way_back = pipe, frames[:cut]
        return frames[cut:]


class PubSocket(SimSocket):
    """Sends each message to all who subscribed to its beginning (PUB, XPUB). An XPUB learns of subscriptions."""

    def detach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Forget the peer's subscriptions."""
        super().detach(outgoing, incoming)
        for topic in outgoing.topics:
            if not self._subscribed(topic):
                self._tell(b"\0" + topic)

    def subscribe(self, outgoing: Pipe, topic: bytes) -> None:
        """Send a peer, from now on, what begins with ``topic``."""
        known = self._subscribed(topic)
        outgoing.topics[topic] = None
        if not known:
            self._tell(b"\1" + topic)

    def send(self, frames: Frames) -> str:
        """Send a copy to each subscriber; one that is full misses it."""
        counts = self.carrier.counts
        pipes = [pipe for pipe in self.pipes if any(frames[0].startswith(topic) for topic in pipe.topics)]
        if not pipes:
            self.carrier.drop("no subscriber")
            return DELIVERED
        counts.handed += len(pipes) - 1
        for pipe in pipes:
            if pipe.full:
                self.carrier.drop("subscriber full")
            else:
                self.carrier.carry(pipe, frames)
        return DELIVERED

    def _subscribed(self, topic: bytes) -> bool:
        return any(topic in pipe.topics for pipe in self.pipes)

    def _tell(self, news: bytes) -> None:
        if self.endpoint.kind is SocketKind.XPUB and self.open:
            self.carrier.counts.handed += 1
            self.arrived(None, (news,))


class SubSocket(SimSocket):
    """Tells each publisher it is connected to what it subscribes to, which takes a moment to get there."""

    def attach(self, outgoing: Pipe, incoming: Pipe) -> None:
        """Subscribe at the publisher; what it sends before it knows is not sent here."""
        super().attach(outgoing, incoming)
        delay = self.carrier.duration(self.carrier.weather.delay)
        self.carrier.agenda.at(self.carrier.agenda.now + delay, self._subscribe, outgoing, incoming)

    def _subscribe(self, outgoing: Pipe, incoming: Pipe) -> None:
        publisher = outgoing.receiver
        if not outgoing.cut and isinstance(publisher, PubSocket):
            for topic in self.endpoint.subscribe:
                publisher.subscribe(incoming, topic)


KINDS: dict[SocketKind, type[SimSocket]] = {
    SocketKind.ROUTER: RouterSocket,
    SocketKind.DEALER: RoundRobinSocket,
    SocketKind.REQ: ReqSocket,
    SocketKind.REP: RepSocket,
    SocketKind.PUB: PubSocket,
    SocketKind.XPUB: PubSocket,
    SocketKind.SUB: SubSocket,
    SocketKind.PUSH: RoundRobinSocket,
    SocketKind.PULL: SimSocket,
    SocketKind.PAIR: PairSocket,
}
