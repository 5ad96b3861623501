"""A network of services in one process, on virtual time, from a seed.

Brokers, workers and clients are nodes with services, the same state machines that run in the real broker.
Messages between them are delayed, lost, repeated and overtaken; nodes are killed, restarted, cut off and paused;
and after every step the invariants are checked. The same seed gives the same run: a failing seed is a bug report.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from random import Random

from scale0_core.client.kit.route import BETWEEN
from scale0_core.config.running import BrokerRecord
from scale0_core.container.host import HostLimits
from scale0_core.testing.simconnection import Carrier, Connection, NetCounts, Pipe, Range, Weather
from scale0_core.testing.simnode import Factory, SimNode
from scale0_core.testing.simsockets import PARTNERS, Connector, SimSocket
from scale0_core.testing.virtual import Action, Agenda


class SimFailure(AssertionError):  # noqa: N818  # as pytest's Failed: what failed is the test
    """A simulated run went wrong; ``seed`` and ``time`` say which one and when, the cause says what."""

    def __init__(self, what: str, *, seed: int, time: float, step: int) -> None:
        self.seed = seed
        self.time = time
        self.step = step
        super().__init__(f"{what}\n  seed {seed}, time {time:.6f}, step {step}")


PARTED = "parted"
"""What a connection waits for that a partition prevents."""


class SimNetwork:
    """Nodes, the network between them, and everything that can go wrong.

    How long things take is given as (least, most) seconds: ``delay`` of a message, ``job_delay``, ``reconnect``
    (until a missing connection is tried) and ``detection`` (until both ends know that a partition has cut them
    off). How likely they go wrong is a probability: ``loss``, ``duplication`` and ``reordering`` of a message,
    ``job_failure``. Addresses are compared as text. With ``strict``, what a service raises ends the run; without,
    its host counts it as in a broker. With ``trace``, all that happens is kept in ``trace``.

    A step costs the same in a network of any size: every message is counted as it moves, and all of them are counted
    where they are (``check``) only once in as many steps as there are sockets, and at the end of ``run``.

    Large, since tests say all of this to one object: who is there, what goes wrong, and how long it runs.
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
        self._binders: dict[str, SimSocket] = {}
        self._waiting: dict[Hashable, list[Connector]] = {}
        """Missing connections by what they wait for: an address to be bound, a socket that refused, or PARTED."""
        self._cut_connections: dict[Connection, None] = {}
        self._check_at = 0
        self._checked_at = 0
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
        """How many messages are under way."""
        return self.counts.in_flight

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

    def brokers(self, target: str) -> tuple[list[BrokerRecord], list[str]]:
        """List the nodes that are up and named in a target, as ``resolve`` lists the brokers of a machine."""
        names = [choice.partition("@")[2] for choice in target.split(BETWEEN)]
        nodes = [self.nodes.get(self._binders[name].node if name in self._binders else name) for name in names]
        return [node.record for node in nodes if node is not None and node.up], []

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
        if self.steps >= self._check_at:
            self.check()
        for invariant in self._invariants:
            self._hold(invariant)
        return True

    def run(self, seconds: float) -> None:
        """Let time pass."""
        until = self.now + seconds
        while (due := self._agenda.next_time) is not None and due <= until:
            self.step()
        self._agenda.advance(until)
        self.check()

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
        for socket in sockets:
            for address in socket.endpoint.bind:
                del self._binders[address]
            for pipe in socket.pipes:
                self._cut(pipe.connection, "killed", self._carrier.duration(self.weather.delay))
            socket.close("killed")
            self._retry(socket)

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
        ours, theirs = frozenset(some), frozenset(others)
        self._partitions.append((ours, theirs))
        self._carrier.note("partition", len(self._partitions))
        nodes = [self.nodes[name] for name in sorted(ours) if name in self.nodes]
        for pipe in [pipe for node in nodes for socket in node.sockets for pipe in socket.pipes]:
            if pipe.receiver.node in theirs:
                self._cut(pipe.connection, "partitioned", self._carrier.duration(self.weather.detection))

    def heal(self) -> None:
        """End all partitions; connections come back by themselves."""
        self._partitions.clear()
        self._carrier.note("heal")
        for connection in list(self._cut_connections):
            self._close(connection)
        self._retry(PARTED)

    # ---- connections

    def _start(self, node: SimNode) -> None:
        self._carrier.note("start", node.name)
        node.start()
        for socket in node.sockets:
            for address in socket.endpoint.bind:
                if address in self._binders:
                    raise ValueError(f"{address} is in use by node {self._binders[address].node!r}")
                self._binders[address] = socket
                self._retry(address)
        for connector in [connector for socket in node.sockets for connector in socket.connects.values()]:
            self._try(connector)
        node.begin()

    def change(self, socket: SimSocket, address: str, routing_id: bytes, connect: bool) -> str:
        """Connect a socket to an address, or end that connection; return why not, if so. For nodes."""
        self._carrier.note("change", socket.node, socket.name, address, connect)
        if connect:
            connector = Connector(socket, address, routing_id)
            reason = socket.connect(connector)
            if not reason:
                self._try(connector)
            return reason
        connector = socket.connects[address]
        if (connection := connector.connection) is not None:
            self._cut(connection, "disconnected", self._carrier.duration(self.weather.delay))
            socket.detach(connection.forward, connection.backward)  # this end knows immediately
        socket.disconnect(connector)
        self._retry(socket)
        return ""

    def _retry(self, what: Hashable) -> None:
        """Try the connections that have waited for this, which may let them succeed now."""
        for connector in self._waiting.pop(what, ()):
            self._try(connector)

    def _try(self, connector: Connector) -> None:
        """Try, soon, a connection that is missing, unless nobody wants it any more."""
        if connector.wanted and not connector.trying:
            connector.trying = True
            delay = self._carrier.duration(self.weather.reconnect)
            self._agenda.at(self.now + delay, self._connect, connector)

    def _connect(self, connector: Connector) -> None:
        connector.trying = False
        if not connector.wanted:
            return
        waits_for = self._why_not(connector)
        if connector.socket.on_link is not None:
            nobody = f"nobody listens at {connector.address}" if waits_for == connector.address else ""
            connector.socket.on_link(waits_for is None, nobody)
        elif waits_for is not None:
            self._waiting.setdefault(waits_for, []).append(connector)

    def _why_not(self, connector: Connector) -> Hashable:
        """Make a connection; return what it waits for if it cannot be made."""
        near, far = connector.socket, self._binders.get(connector.address)
        if far is None:
            return connector.address
        if self._parted(near.node, far.node):
            return PARTED
        if far.endpoint.kind not in PARTNERS[near.endpoint.kind]:
            kinds = f"{near.endpoint.kind.value} cannot talk to {far.endpoint.kind.value}"
            raise ValueError(f"{kinds} at {connector.address}")
        forward = Pipe(near, far, self._routing_id(near))
        backward = Pipe(far, near, connector.routing_id or self._routing_id(far))
        if not far.accepts(forward.routing_id):
            return far
        if not connector.routing_id and not near.accepts(backward.routing_id):
            return near
        connector.connection = Connection(connector, forward, backward)
        self._carrier.note("connect", near.node, far.node, forward.routing_id)
        far.attach(backward, forward)
        near.attach(forward, backward)
        return None

    def _routing_id(self, socket: SimSocket) -> bytes:
        given = socket.endpoint.options.get("ROUTING_ID", b"")
        return given if isinstance(given, bytes) and given else b"\0" + self._random.randbytes(4)

    def _cut(self, connection: Connection, reason: str, detected_after: float) -> None:
        """Lose what is under way; the ends learn of it a little later, and lose what they send until then."""
        self._cut_connections[connection] = None
        self._carrier.cut(connection.forward, reason)
        self._carrier.cut(connection.backward, reason)
        self._agenda.at(self.now + detected_after, self._close, connection)

    def _close(self, connection: Connection) -> None:
        if connection.closed:
            return
        connection.closed = True
        self._cut_connections.pop(connection, None)
        connection.connector.connection = None
        for pipe in (connection.forward, connection.backward):
            if pipe.sender.open and pipe in pipe.sender.pipes:
                pipe.sender.detach(pipe, connection.opposite(pipe))
                if pipe.sender.endpoint.watch_peers:
                    pipe.sender.on_lost()
                if pipe.sender.on_link is not None:
                    pipe.sender.on_link(False, "")
        if connection.connector.socket.on_link is None:
            self._try(connection.connector)
        self._retry(connection.forward.sender)
        self._retry(connection.backward.sender)

    def _parted(self, one: str, other: str) -> bool:
        return any(
            (one in some and other in others) or (other in some and one in others) for some, others in self._partitions
        )

    # ---- checks

    def check(self) -> None:
        """Count all messages where they are; raise a SimFailure if that is not what was counted as they moved."""
        sockets = [socket for node in self.nodes.values() for socket in node.sockets]
        under_way = sum(socket.in_flight for socket in sockets)
        if under_way != self.in_flight:
            counted = f"{self.counts} leaves {self.in_flight}; all was well at step {self._checked_at}"
            raise self._failure(f"{under_way} messages are under way, but {counted}")
        self._checked_at = self.steps
        self._check_at = self.steps + len(sockets)

    def _hold(self, invariant: Callable[[], object]) -> None:
        try:
            held = invariant()
        except Exception as error:
            raise self._failure(f"{_name(invariant)}: {error}") from error
        if held is False:
            raise self._failure(f"{_name(invariant)} does not hold")

    def _failure(self, what: str) -> SimFailure:
        return SimFailure(what, seed=self.seed, time=self.now, step=self.steps)

    def _node(self, name: str) -> SimNode:
        try:
            return self.nodes[name]
        except KeyError:
            raise ValueError(f"there is no node {name!r}; there are {', '.join(self.nodes)}") from None


def _name(check: Callable[[], object]) -> str:
    return f"invariant {getattr(check, '__name__', check)}"
