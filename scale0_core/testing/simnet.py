"""A network of services in one process, on virtual time, from a seed.

Brokers, workers and clients are nodes with services, the same state machines that run in the real broker.
Messages between them are delayed, lost, repeated and overtaken; nodes are killed, restarted, cut off and paused;
and after every step the invariants are checked. The same seed gives the same run: a failing seed is a bug report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random

import attrs

from scale0_core.container.host import HostLimits
from scale0_core.testing.simlink import Carrier, Link, NetCounts, Pipe, Range, Weather
from scale0_core.testing.simnode import Factory, SimNode
from scale0_core.testing.simsockets import PARTNERS, SimSocket
from scale0_core.testing.virtual import Action, Agenda


class SimFailure(AssertionError):  # noqa: N818  # as pytest's Failed: what failed is the test
    """A simulated run went wrong; ``seed`` and ``time`` say which one and when, the cause says what."""

    def __init__(self, what: str, *, seed: int, time: float, step: int) -> None:
        self.seed = seed
        self.time = time
        self.step = step
        super().__init__(f"{what}\n  seed {seed}, time {time:.6f}, step {step}")


@attrs.define(eq=False)
class _Connector:
    """One address that a socket connects to, for as long as its node is up or until it disconnects."""

    node: SimNode
    socket: SimSocket
    address: str
    routing_id: bytes = b""
    link: Link | None = None
    trying: bool = False


class SimNetwork:
    """Nodes, the network between them, and everything that can go wrong.

    How long things take is given as (least, most) seconds: ``delay`` of a message, ``job_delay``, ``reconnect``
    (until a missing connection is tried) and ``detection`` (until both ends know that a partition has cut them
    off). How likely they go wrong is a probability: ``loss``, ``duplication`` and ``reordering`` of a message,
    ``job_failure``. Addresses are compared as text. With ``strict``, what a service raises ends the run; without,
    its host counts it as in a broker. With ``trace``, all that happens is kept in ``trace``.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        delay: Range = (0.0, 0.01),
        loss: float = 0.0,
        duplication: float = 0.0,
        reordering: float = 0.0,
        job_delay: Range = (0.0, 0.005),
        job_failure: float = 0.0,
        reconnect: Range = (0.01, 0.1),
        detection: Range = (0.0, 1.0),
        strict: bool = True,
        trace: bool = False,
    ) -> None:
        weather = Weather(
            delay=delay,
            loss=loss,
            duplication=duplication,
            reordering=reordering,
            job_delay=job_delay,
            job_failure=job_failure,
            reconnect=reconnect,
            detection=detection,
        )
        self.seed = seed
        self.steps = 0
        self.nodes: dict[str, SimNode] = {}
        self._strict = strict
        self._agenda = Agenda()
        self._random = Random(seed)  # noqa: S311  # a seed must give the same run
        self._carrier = Carrier(self._agenda, self._random, weather)
        self._carrier.trace = [] if trace else None
        self._connectors: list[_Connector] = []
        self._binders: dict[str, tuple[SimNode, SimSocket]] = {}
        self._links: list[tuple[Link, _Connector, SimNode]] = []
        self._partitions: list[tuple[frozenset[str], frozenset[str]]] = []
        self._invariants: list[Callable[[], object]] = []

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self._agenda.now

    @property
    def counts(self) -> NetCounts:
        """What became of every message so far."""
        return self._carrier.counts

    @property
    def weather(self) -> Weather:
        """How bad the network is; may be set anew at any time."""
        return self._carrier.weather

    @weather.setter
    def weather(self, weather: Weather) -> None:
        self._carrier.weather = weather

    @property
    def in_flight(self) -> int:
        """How many messages are under way, counted where they are."""
        return sum(socket.in_flight for node in self.nodes.values() for socket in node.sockets)

    @property
    def trace(self) -> list[tuple[object, ...]]:
        """All that happened, as (time, event, ...), when the network was made with ``trace=True``."""
        return self._carrier.trace or []

    def add(self, name: str, factory: Factory, *, limits: HostLimits | None = None) -> SimNode:
        """Add a node and start it. ``factory(node)`` makes its services, now and at each restart."""
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        node = SimNode(self, self._carrier, name, factory, strict=self._strict, limits=limits)
        self.nodes[name] = node
        self._start(node)
        return node

    def invariant(self, check: Callable[[], object]) -> None:
        """Check this after every step: it raises, or returns False, when something is wrong."""
        self._invariants.append(check)

    def at(self, time: float, action: Action) -> None:
        """Do something at a time, such as ``net.at(3.0, lambda: net.kill("broker"))``."""
        self._agenda.at(time, action)

    # ---- time

    def step(self) -> bool:
        """Do the next thing and check the invariants; False when there is nothing left to do."""
        if self._agenda.next_time is None:
            return False
        self.steps += 1
        try:
            self._agenda.step()
        except Exception as error:
            raise self._failure(f"{type(error).__name__}: {error}") from error
        self._check()
        return True

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while (due := self._agenda.next_time) is not None and due <= until:
            self.step()
        self._agenda.advance(until)

    def run_until(self, predicate: Callable[[], object], limit: float = 60.0) -> bool:
        """Let time pass until something holds; False if it did not within ``limit`` seconds."""
        until = self.now + limit
        while not predicate():
            due = self._agenda.next_time
            if due is None or due > until:
                self._agenda.advance(until)
                return bool(predicate())
            self.step()
        return True

    # ---- faults

    def kill(self, name: str) -> None:
        """End a node as ``kill -9`` and a power cut at once would: state, queues and unsynced bytes are gone."""
        node = self._node(name)
        if not node.up:
            return
        self._carrier.note("kill", name)
        sockets = node.sockets
        node.crash()
        self._connectors = [connector for connector in self._connectors if connector.node is not node]
        self._binders = {a: binder for a, binder in self._binders.items() if binder[0] is not node}
        for link, connector, peer in list(self._links):
            if node in (connector.node, peer):
                self._cut(link, "killed", self._carrier.duration(self.weather.delay))
        for socket in sockets:
            socket.close("killed")

    def restart(self, name: str) -> None:
        """Start a node again, with new services and its old disk; one that is up is killed before."""
        self.kill(name)
        self._start(self._node(name))

    def pause(self, name: str) -> None:
        """Let a node stand still, as SIGSTOP would: it is connected, and does nothing."""
        node = self._node(name)
        node.paused = True
        for host in node.hosts:
            host.halt()

    def resume(self, name: str) -> None:
        """Let a paused node go on with all that has come and become due."""
        node = self._node(name)
        node.paused = False
        for host in node.hosts:
            host.resume()

    def partition(self, some: Iterable[str], others: Iterable[str]) -> None:
        """Cut all connections between two groups of nodes; new ones wait for ``heal``."""
        self._partitions.append((frozenset(some), frozenset(others)))
        self._carrier.note("partition", len(self._partitions))
        for link, connector, peer in list(self._links):
            if self._parted(connector.node, peer):
                self._cut(link, "partitioned", self._carrier.duration(self.weather.detection))

    def heal(self) -> None:
        """End all partitions; connections come back by themselves."""
        self._partitions.clear()
        self._carrier.note("heal")
        for link, *_ in list(self._links):
            if link.forward.cut:
                self._close(link)
        self._connect_all()

    # ---- connections

    def _start(self, node: SimNode) -> None:
        self._carrier.note("start", node.name)
        node.start()
        for socket in node.sockets:
            for address in socket.endpoint.bind:
                if address in self._binders:
                    raise ValueError(f"{address} is in use by node {self._binders[address][0].name!r}")
                self._binders[address] = node, socket
            self._connectors += [_Connector(node, socket, address) for address in socket.endpoint.connect]
        self._connect_all()
        for host in node.hosts:
            host.begin()

    def change(self, node: SimNode, socket: SimSocket, address: str, routing_id: bytes, connect: bool) -> str:
        """Connect a socket to an address, or end that connection; say why not, if so. For nodes."""
        self._carrier.note("change", node.name, socket.name, address, connect)
        if connect:
            if reason := socket.connect(address, routing_id):
                return reason
            self._connectors.append(_Connector(node, socket, address, routing_id))
            self._connect_all()
            return ""
        for connector in [c for c in self._connectors if c.socket is socket and c.address == address]:
            self._connectors.remove(connector)
            if connector.link is not None:
                self._cut(connector.link, "disconnected", self._carrier.duration(self.weather.delay))
                socket.detach(connector.link.forward, connector.link.backward)  # this end knows at once
        socket.disconnect(address, routing_id)
        return ""

    def _connect_all(self) -> None:
        """Try, soon, all connections that are missing: something has changed that may let them succeed."""
        for connector in self._connectors:
            if connector.link is None and not connector.trying:
                connector.trying = True
                delay = self._carrier.duration(self.weather.reconnect)
                self._agenda.at(self.now + delay, partial(self._connect, connector))

    def _connect(self, connector: _Connector) -> None:
        connector.trying = False
        binder = self._binders.get(connector.address)
        if binder is None or connector not in self._connectors or self._parted(connector.node, binder[0]):
            return
        node, socket = binder
        if socket.endpoint.kind not in PARTNERS[connector.socket.endpoint.kind]:
            kinds = f"{connector.socket.endpoint.kind.value} cannot talk to {socket.endpoint.kind.value}"
            raise ValueError(f"{kinds} at {connector.address}")
        forward = Pipe(connector.socket, socket, self._routing_id(connector.socket))
        backward = Pipe(socket, connector.socket, connector.routing_id or self._routing_id(socket))
        named = bool(connector.routing_id)
        if socket.accepts(forward.routing_id) and (named or connector.socket.accepts(backward.routing_id)):
            connector.link = Link(forward, backward)
            self._links.append((connector.link, connector, node))
            self._carrier.note("connect", connector.node.name, node.name, forward.routing_id)
            socket.attach(backward, forward)
            connector.socket.attach(forward, backward)

    def _routing_id(self, socket: SimSocket) -> bytes:
        given = socket.endpoint.options.get("ROUTING_ID", b"")
        return given if isinstance(given, bytes) and given else b"\0" + self._random.randbytes(4)

    def _cut(self, link: Link, reason: str, detected_after: float) -> None:
        """Lose what is under way; the ends learn of it a little later, and lose what they send until then."""
        self._carrier.cut(link.forward, reason)
        self._carrier.cut(link.backward, reason)
        self._agenda.at(self.now + detected_after, partial(self._close, link))

    def _close(self, link: Link) -> None:
        if link.closed:
            return
        link.closed = True
        for entry in [entry for entry in self._links if entry[0] is link]:
            self._links.remove(entry)
            entry[1].link = None
        for pipe in (link.forward, link.backward):
            if pipe.sender.open and pipe in pipe.sender.pipes:
                pipe.sender.detach(pipe, link.opposite(pipe))
                if pipe.sender.endpoint.watch_peers:
                    pipe.sender.on_lost()
        self._connect_all()

    def _parted(self, one: SimNode, other: SimNode) -> bool:
        return any(
            (one.name in some and other.name in others) or (other.name in some and one.name in others)
            for some, others in self._partitions
        )

    # ---- checks

    def _check(self) -> None:
        under_way = self.in_flight
        if under_way != self.counts.in_flight:
            counted = f"{self.counts} leaves {self.counts.in_flight}"
            raise self._failure(f"{under_way} messages are under way, but {counted}")
        for check in self._invariants:
            try:
                held = check()
            except Exception as error:
                raise self._failure(f"{_name(check)}: {error}") from error
            if held is False:
                raise self._failure(f"{_name(check)} does not hold")

    def _failure(self, what: str) -> SimFailure:
        return SimFailure(what, seed=self.seed, time=self.now, step=self.steps)

    def _node(self, name: str) -> SimNode:
        try:
            return self.nodes[name]
        except KeyError:
            raise ValueError(f"there is no node {name!r}; there are {', '.join(self.nodes)}") from None


def _name(check: Callable[[], object]) -> str:
    return f"invariant {getattr(check, '__name__', check)}"
