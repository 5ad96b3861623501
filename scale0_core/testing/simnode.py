"""One node of the simulated network: its services, their sockets and jobs, and its disk."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from scale0_core.config.running import BrokerRecord
from scale0_core.container.connections import Connections
from scale0_core.container.container import Container
from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.container.jobs import run_batch
from scale0_core.container.outbox import MALFORMED
from scale0_core.service import Connect, Disconnect, Job, JobResult, Send, Service
from scale0_core.testing.contract import StrictHost, send_fault
from scale0_core.testing.frames import as_delivered
from scale0_core.testing.simconnection import Carrier
from scale0_core.testing.simdisk import DiskCrashed, SimDisk
from scale0_core.testing.simsockets import KINDS, SimSocket
from scale0_core.testing.virtual import Driver, InProcess

if TYPE_CHECKING:
    from scale0_core.testing.simnet import SimNetwork

Factory: TypeAlias = Callable[["SimNode"], Iterable[Service]]
"""Makes the services of a node, anew at each start. What outlives a crash, they find on ``node.disk``."""

Change: TypeAlias = Callable[[SimSocket, str, bytes, bool], str]
"""Makes (True) or ends (False) the connection of a socket to an address, under a routing id; says why not, if so."""


@runtime_checkable
class LinkWatcher(Protocol):
    """A service whose connections serve once: it is told when one was made or broke, and connects anew itself."""

    def on_link(self, up: bool, nobody: str) -> None:
        """Note that a connection was made, or that it broke or could not be made, if so since nobody listens."""


class SimNode:
    """A process on a machine of its own: services, a disk, and randomness that belongs to it alone."""

    def __init__(
        self, net: SimNetwork, carrier: Carrier, name: str, factory: Factory, *, strict: bool, limits: HostLimits | None
    ) -> None:
        self.net = net
        self.name = name
        self.disk = SimDisk()
        self.random = Random(f"{net.seed}/{name}")  # noqa: S311  # a seed must give the same run
        self.up = False
        self.paused = False
        self.starts = 0
        self.hosts: list[SimHost] = []
        self.post: Callable[[str, JobResult], None] = partial(self._post, 0)
        """As ``context.post``: for the services of this start, and in vain when these are gone."""
        self._carrier = carrier
        self._factory = factory
        self._strict = strict
        self._limits = limits

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self.net.now

    @property
    def services(self) -> list[Service]:
        """The services that run now; none while the node is down."""
        return [sim.host.service for sim in self.hosts]

    @property
    def service_hosts(self) -> list[ServiceHost]:
        """The hosts of the services that run now, with what they have counted."""
        return [sim.host for sim in self.hosts]

    @property
    def sockets(self) -> list[SimSocket]:
        """All sockets of the services that run now."""
        return [socket for sim in self.hosts for socket in sim.sockets.values()]

    def start(self) -> None:
        """Make the services and let them run."""
        self.up = True
        self.paused = False
        self.starts += 1
        self.post = partial(self._post, self.starts)
        self._in_process = InProcess(self.name.encode())
        for service in self._factory(self):
            self.add(self.make_host(service))

    @property
    def container(self) -> Container:
        """The services of this start, and what they send each other; ``context.services`` of plugins."""
        return self._in_process.container

    def make_host(self, service: Service, plugin: str = "") -> ServiceHost:
        """Make what calls a service; in a strict network, it insists on all that a service promises."""
        return (StrictHost if self._strict else ServiceHost)(service, plugin=plugin, limits=self._limits)

    def add(self, host: ServiceHost) -> SimHost:
        """Run a service; its sockets are connected when the node has started."""
        self.hosts.append(SimHost(host, self._carrier, self.name, self.net.change, self._in_process))
        return self.hosts[-1]

    def remove(self, sim: SimHost) -> None:
        """Forget a service that was added during this start."""
        self.hosts.remove(sim)
        self.container.remove(sim.host)

    def begin(self) -> None:
        """Let the services say what they want at the start."""
        for sim in self.hosts:
            sim.begin()
        self._in_process.start(self.now)

    def _post(self, start: int, service: str, result: JobResult) -> None:
        for host in self.hosts if start == self.starts else ():
            if host.host.service.name == service:
                host.post(result)

    @property
    def record(self) -> BrokerRecord:
        """What a broker on this node writes down of itself."""
        addresses = {sim.host.service.name: sim.addresses for sim in self.hosts}
        return BrokerRecord(
            name=self.name, pid=0, since="", state="", config="", runtime_dir="", data_dir="", addresses=addresses
        )

    def wake(self) -> None:
        """Have the services asked again for their deadlines; something from outside has changed them."""
        for host in self.hosts:
            host.wake()

    def crash(self) -> None:
        """End all at once: running jobs are torn, and the disk loses what was not synced."""
        self.up = False
        hosts, self.hosts = self.hosts, []
        for sim in hosts:
            for batch in sim.die():
                self._tear(batch)
        self.disk.crash(self.random)

    def _tear(self, batch: Sequence[Job]) -> None:
        """Run a part of a batch: the first jobs of it, or all, or none, and of these often only the beginning."""
        random = self.random
        done = batch if random.random() < 0.25 else batch[: random.randint(0, len(batch))]
        if not done:
            return
        if random.random() < 0.75:
            # an append for each and an fsync for all, say: the crash comes anywhere in there, or after it
            self.disk.crash_after(random.randint(0, 2 * len(done) + 1))
        with suppress(DiskCrashed):
            run_batch(done)


class SimHost:
    """One service of a node, between its host and its sockets."""

    __slots__ = (
        "_carrier", "_change", "_connections", "_draining", "_driver", "_in_process", "_lost", "_strict", "_waiting",
        "endpoints", "host", "node", "post", "sockets",
    )  # fmt: skip

    def __init__(self, host: ServiceHost, carrier: Carrier, node: str, change: Change, in_process: InProcess) -> None:
        self.host = host
        self.node = node
        self.endpoints = dict(host.service.endpoints)
        self.sockets = {
            name: KINDS[endpoint.kind](name, endpoint, carrier, self._arrived)
            for name, endpoint in self.endpoints.items()
            if not endpoint.in_process
        }
        for name, socket in self.sockets.items():
            socket.node = node
            socket.on_lost = partial(self.peer_lost, name)
            if isinstance(host.service, LinkWatcher):
                socket.on_link = partial(self._on_link, host.service)
        self._carrier = carrier
        self._connections = Connections(self.endpoints, insecure=True, linger=0.0)
        self._change = change
        self._strict = isinstance(host, StrictHost)  # which insists on well-formed sends itself
        self._waiting: dict[SimSocket, None] = {}
        """Sockets with messages that the service has not got."""
        self._draining = False
        self._lost: list[str] = []
        self._driver = driver = Driver(
            host,
            carrier.agenda,
            self._send,
            job_delay=lambda: carrier.duration(carrier.weather.job_delay),
            run=self._run_jobs,
            settled=self._settled,
            connect=self._connect,
        )
        self.post = driver.post
        self._in_process = in_process
        in_process.add(driver)

    @property
    def addresses(self) -> dict[str, tuple[str, ...]]:
        """Where its sockets are bound."""
        return {name: socket.endpoint.bind for name, socket in self.sockets.items()}

    def begin(self) -> None:
        """Let the service say what it wants at the start."""
        self._driver.settle()

    def wake(self) -> None:
        """Ask the service for its deadline; one that is halted is asked when it goes on."""
        if not (self._driver.halted or self._driver.dead):
            self._driver.settle()

    def _on_link(self, watcher: LinkWatcher, up: bool, nobody: str) -> None:
        watcher.on_link(up, nobody)
        self.wake()

    def peer_lost(self, socket: str) -> None:
        """Tell the service that a connection was lost; one that is halted learns of it when it goes on."""
        if self._driver.halted:
            self._lost.append(socket)
        elif not self._driver.dead:
            self._driver.peer_lost(socket)

    def _arrived(self, socket: SimSocket) -> None:
        self._waiting[socket] = None
        self.drain()

    def drain(self) -> None:
        """Give the service all messages that it can take now."""
        if self._draining:
            return  # called again from within: the loop below goes on by itself
        self._draining = True
        try:
            while (socket := self._next_readable()) is not None:
                self._give(socket)
        finally:
            self._draining = False

    def _settled(self) -> None:
        if self._waiting:
            self.drain()
        if self.host.in_process or self.host.tasks is not None:
            self._in_process.deliver()

    @property
    def running(self) -> list[Job]:
        """The jobs that run now, which a crash would tear."""
        return [job for batch in self._driver.running.values() for job in batch]

    def halt(self) -> None:
        """Stop the service without ending it."""
        self._driver.halt()

    def resume(self) -> None:
        """Let the service go on."""
        self._driver.resume()
        lost, self._lost = self._lost, []
        for socket in lost:
            self._driver.peer_lost(socket)

    def die(self) -> list[list[Job]]:
        """End the service; returns the jobs that were running."""
        return self._driver.die()

    def _next_readable(self) -> SimSocket | None:
        if self._waiting and not (self._driver.dead or self._driver.halted or self.host.paused):
            for socket in self._waiting:
                if socket.readable:
                    return socket
        return None

    def _give(self, socket: SimSocket) -> None:
        frames = socket.take()
        if not socket.inbox:
            del self._waiting[socket]
        if frames is None:
            return
        self._carrier.counts.delivered += 1
        if self._carrier.trace is not None:
            self._carrier.note("deliver", self.node, self.host.service.name, socket.name, frames)
        self._driver.receive(socket.name, as_delivered(frames, socket.endpoint.blob_over))

    def _send(self, send: Send) -> str:
        carrier = self._carrier
        carrier.counts.handed += 1
        if not self._strict and send_fault(send, self.endpoints):
            reason = MALFORMED
        else:
            name, frames = send
            reason = self.sockets[name].send(tuple(f if type(f) is bytes else bytes(f) for f in frames))
        if reason:
            carrier.drop(reason)
        return reason

    def _connect(self, effect: Connect | Disconnect) -> str:
        now = self._carrier.agenda.now
        reason = self._connections.fault(effect, now)
        if reason or not self._connections.changes(effect):
            return reason
        socket = self.sockets[effect.socket]
        if isinstance(effect, Disconnect):
            self._change(socket, effect.address, self._connections.disconnected(effect, now), False)
            return ""
        reason = self._change(socket, effect.address, effect.routing_id, True)
        if not reason:
            self._connections.connected(effect)
        return reason

    def _run_jobs(self, batch: Sequence[Job]) -> list[JobResult]:
        random, failure = self._carrier.random, self._carrier.weather.job_failure
        if not failure or random.random() >= failure:
            return run_batch(batch)
        if random.random() < 0.5:
            run_batch(batch)  # a failure does not mean that nothing was done
        return [JobResult(job.token, error=OSError(5, "the simulation lets this job fail")) for job in batch]
