"""The loop: drains the sockets in batches, calls the services, sends what they answer.

One thread, no coroutines. Each turn: wait until a socket is ready or the nearest deadline; read the clock once; drain
each ready socket up to a bound, so that none starves the others; fire what is due; send; tell the observers.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import attrs
import zmq

from scale0_core.config.settings import LimitSettings, WireSettings
from scale0_core.container.connections import CLOSED, Connections
from scale0_core.container.container import Container
from scale0_core.container.host import BUSY, ServiceHost
from scale0_core.container.outbox import GONE, Outbox, Outcome
from scale0_core.events import Event
from scale0_core.io.clock import SteadyClock
from scale0_core.io.jobs import JobThreads
from scale0_core.io.sockets import OpenSocket, open_socket
from scale0_core.io.waker import Waker
from scale0_core.io.wire import Poller, Port, Queues, choose_wire
from scale0_core.logs import get_logger
from scale0_core.plugin_types import BatchReport
from scale0_core.service import Connect, Disconnect, Frames, Job, JobResult, SendFailure, SocketKind

LOG = get_logger("loop")

LOG_INTERVAL = 10.0
"""Seconds between two lines of the log about the same trouble."""
DRAIN_PAUSE = 0.1
"""Seconds for which a socket that cannot be read is left alone."""
LONGEST_WAIT_MS = 2**31 - 1
RUSH = 0.02
"""Seconds for which one busy socket may be served alone; deadlines that arise meanwhile may be as late."""

MOST_ROUNDS = 100
"""How often services of one broker may answer each other within an iteration."""

Observer = Callable[[BatchReport], None]


@attrs.define(eq=False)
class Station:
    """A host with its open sockets."""

    host: ServiceHost
    outbox: Outbox
    connections: Connections
    jobs: JobThreads
    sockets: dict[str, OpenSocket] = attrs.field(factory=dict)
    ports: dict[str, Port] = attrs.field(factory=dict)
    monitors: dict[str, tuple[Port, zmq.Socket[bytes]]] = attrs.field(factory=dict)
    slow_logged: float = float("-inf")
    broken_logged: float = float("-inf")

    @property
    def addresses(self) -> dict[str, Sequence[str]]:
        """Where its sockets are really bound; nowhere while they are closed."""
        return {name: opened.addresses for name, opened in self.sockets.items()}

    def change(self, effect: Connect | Disconnect, now: float, given_up: list[SendFailure]) -> str:
        """Make or end a connection; give the reason if that cannot be, and add what waited for a peer that is gone."""
        opened = self.sockets.get(effect.socket)
        if opened is None:
            return CLOSED
        if isinstance(effect, Connect):
            reason = opened.connect(effect)
            if reason:
                self.connections.rest(effect.socket, effect.routing_id, now)
            else:
                self.connections.connected(effect)
            return reason
        reason = opened.disconnect(effect)
        if not reason and (routing_id := self.connections.disconnected(effect, now)):
            waiting = self.outbox.give_up(effect.socket, routing_id)
            given_up += [SendFailure(*send, GONE) for send in waiting]
        return reason

    def close(self) -> None:
        """Close all its sockets."""
        for name, (port, monitor) in self.monitors.items():
            port.close()
            self.sockets[name].socket.disable_monitor()
            monitor.close(linger=0)
        for port in self.ports.values():
            port.close()
        for opened in self.sockets.values():
            opened.close()
        self.monitors.clear()
        self.sockets.clear()


class Loop:
    """Runs services. All methods but ``stop`` and ``call`` belong to the thread that runs it.

    Large, since sockets, jobs, timers and calls of other threads wait in the same place: one poll.
    """

    def __init__(
        self,
        wire: WireSettings | None = None,
        limits: LimitSettings | None = None,
        *,
        clock: SteadyClock | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.settings = wire or WireSettings()
        self.limits = limits or LimitSettings()
        self.wire = choose_wire(self.settings.implementation)
        self.clock = clock or SteadyClock()
        self.observers: list[Observer] = list(observers)
        self.stations: list[Station] = []
        self.container = Container(secrets.token_bytes(16))
        """The hosts of the services, and what they send each other."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(self.settings.io_threads)
        self._context.set(zmq.MAX_SOCKETS, 4096)
        self._waker = Waker()
        self._poller: Poller | None = None
        self._paused: set[Station] = set()
        """Stations whose services have as many jobs in flight as they may."""
        self._resting: dict[Port, float] = {}
        """Sockets that could not be read, and until when they are left alone."""
        self._by_port: dict[Port, tuple[Station, str]] = {}
        self._by_monitor: dict[Port, tuple[Station, str]] = {}
        self._observes_events = False
        self._telling: list[ServiceHost] = []
        """Hosts whose services emit events, while somebody observes them."""
        self._busy: tuple[Station, str, Port] | None = None
        """The one socket that had messages in the last turn, if it had many."""
        self._slow_after = self.limits.slow_call_ms / 1000
        self.failed = ""
        """The last error of the broker's own service, when it failed so often that the loop stopped."""
        self._stopping = False
        self._closed = False

    @property
    def wake_fd(self) -> int:
        """The descriptor to write to from a signal: ``signal.set_wakeup_fd``."""
        return self._waker.write_fd

    def add(self, host: ServiceHost) -> Station:
        """Open the sockets of a service and serve it from the next turn on; all of them, or none and an error."""
        routers = {name for name, endpoint in host.service.endpoints.items() if endpoint.kind is SocketKind.ROUTER}
        connections = Connections(
            dict(host.service.endpoints), insecure=self.settings.insecure, linger=self.settings.linger_ms / 1000
        )
        jobs = JobThreads(self.limits.job_threads, host.service.name)
        station = Station(host, Outbox(routers, self.limits.outbox_bytes), connections, jobs)
        self._open(station)
        try:
            self.container.add(host)
        except BaseException:
            station.close()
            raise
        host.reopen = lambda: self._open(station)
        self.stations.append(station)
        self._poller = None
        if self._observes_events:
            self._ask_for_events(station)
        return station

    def _open(self, station: Station) -> None:
        """Open the sockets of a service, all or none, and listen to them from the next turn on."""
        try:
            for name, endpoint in station.host.service.endpoints.items():
                if endpoint.in_process:
                    continue
                opened = open_socket(self._context, endpoint, self.settings)
                station.sockets[name] = opened
                station.ports[name] = self.wire.port(opened.socket, endpoint.blob_over, endpoint.max_frames)
                if endpoint.watch_peers:
                    monitor = opened.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                    station.monitors[name] = (self.wire.port(monitor, None), monitor)
            for effect in station.connections.made():  # before a quarantine
                station.sockets[effect.socket].connect(effect)
        except BaseException:
            station.close()
            raise
        self._poller = None

    def remove(self, station: Station) -> None:
        """Close the sockets of a service and forget it."""
        self.stations.remove(station)
        self.container.remove(station.host)
        self._telling = [other for other in self._telling if other is not station.host]
        station.close()
        station.jobs.close()
        self._poller = None

    def observe_events(self) -> None:
        """Have all services that tell of events do so, for the observers."""
        self._observes_events = True
        for station in self.stations:
            self._ask_for_events(station)

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called on the loop's thread, soon. Any thread may use this."""
        self._waker.call(function)

    def post(self, service: str, result: JobResult) -> None:
        """Hand a result to a service, as that of a job. Any thread may use this."""
        self._waker.call(partial(self._posted, service, result))

    def stop(self) -> None:
        """End ``run`` after the turn that is under way. Any thread, and a signal handler, may use this."""
        self._stopping = True
        self._waker.wake()

    def run(self) -> None:
        """Take turns until ``stop``."""
        while not self._stopping:
            self.run_once()
            if self._busy is not None:
                self._rush(*self._busy)

    def run_once(self, longest: float | None = None) -> None:
        """Take one turn; wait no longer than ``longest`` seconds for something to do."""
        due = self._nearest_deadline()
        wait = longest if due is None else _sooner(max(0.0, due - self.clock.now()), longest)
        poller = self._poller or self._make_poller()
        ready = poller.wait(-1 if wait is None else min(math.ceil(wait * 1000), LONGEST_WAIT_MS))
        now = self.clock.woke(wait)
        if self.clock.stalled:
            LOG.warning("the broker stood still; all deadlines move by as much", seconds=f"{self.clock.stalled:.3f}")
        if self._resting:
            self._end_rests(now)
        received = self._receive(ready, now)
        if due is not None and due <= now:
            self._on_deadlines(now)
        self._flush(now, received)

    def finish(self, seconds: float) -> int:
        """Let services have their last words, wait for jobs, send what they bring; give the number not done in time."""
        self._stopping = True
        for station in self.stations:
            station.host.stop(self.clock.now())
        return self.drain(self.clock.now() + seconds)

    def drain(self, end: float) -> int:
        """Wait for jobs and send what they bring, until ``end``; return the number of jobs that are not done."""
        while True:
            self._waker.run()
            self._flush(self.clock.now(), {})
            in_flight = sum(station.host.jobs.in_flight for station in self.stations)
            left = end - self.clock.now()
            if any(station.host.sends for station in self.stations) and left > 0:
                continue  # answers to sends that failed
            retries = [station.outbox.due for station in self.stations if station.outbox.due is not None]
            if not (in_flight or retries) or left <= 0:
                return in_flight
            # only the waker: no new messages are taken any more
            patience = max(0.0, min([end, *retries]) - self.clock.now())
            self.wire.poller((), self._waker.fd).wait(min(math.ceil(patience * 1000), LONGEST_WAIT_MS))

    def close(self) -> None:
        """Close all sockets; what they still hold is delivered for as long as the linger setting says."""
        if self._closed:
            return
        self._closed = True
        self._poller = None
        for station in self.stations:
            unsent = len(station.host.take_sends()) + len(station.outbox)
            if unsent:
                station.host.counts.dropped["closed"] += unsent
            station.close()
            station.jobs.close()
        self._context.term()
        self._waker.close()

    def _nearest_deadline(self) -> float | None:
        """Give the time at which something is to be done without a message; -inf when at once."""
        if self.container.ready:
            return -math.inf
        nearest = min(self._resting.values()) if self._resting else math.inf
        for station in self.stations:
            if station.host.sends:  # answers to sends that failed in the last turn
                return -math.inf
            due, retry = station.host.next_deadline(), station.outbox.due
            if due is not None and due < nearest:
                nearest = due
            if retry is not None and retry < nearest:
                nearest = retry
        return None if nearest == math.inf else nearest

    def _on_deadlines(self, now: float) -> None:
        before = self.clock.now()
        for station in self.stations:
            station.host.on_deadline(now)
            before = self._watch(station, before)

    def _make_poller(self) -> Poller:
        """Listen to all sockets, except those of services that have too much to do already."""
        self._paused = {station for station in self.stations if station.host.paused}
        listening = [station for station in self.stations if station not in self._paused]
        self._by_port = {
            port: (station, name)
            for station in listening
            for name, port in station.ports.items()
            if name in station.sockets and port not in self._resting
        }
        self._by_monitor = {
            port: (station, name)
            for station in listening
            for name, (port, _) in station.monitors.items()
            if port not in self._resting
        }
        self._poller = self.wire.poller((*self._by_port, *self._by_monitor), self._waker.fd)
        return self._poller

    def _look_at_jobs(self, station: Station) -> None:
        """Start the jobs of a service that may start; listen to it or not, when that has changed."""
        while (batch := station.host.jobs.take()) is not None:
            self._start_jobs(station, batch)
        if station.host.paused is not (station in self._paused):
            self._poller = None

    def _receive(self, ready: Sequence[Port | None], now: float) -> dict[str, int]:
        """Drain the ready sockets into their services; give the number of messages by service."""
        received: dict[str, int] = {}
        before = now
        self._busy = None
        for port in ready:
            if port is None:
                continue  # the waker; it runs last, since what it runs may close ports
            if port in self._by_monitor:
                station, name = self._by_monitor[port]
                if self._drain(station, name, port, now):
                    station.host.peer_lost(name, now)
                continue
            station, name = self._by_port[port]
            messages = self._drain(station, name, port, now)
            if not messages:
                continue
            station.host.receive(name, messages, now)
            received[station.host.service.name] = received.get(station.host.service.name, 0) + len(messages)
            before = self._watch(station, before, len(messages))
            if len(messages) >= BUSY and len(ready) == 1:
                self._busy = station, name, port
        if None in ready:
            self._waker.run()
        return received

    def _drain(self, station: Station, name: str, port: Port, now: float) -> list[Frames]:
        """Take messages from a socket; one that cannot be read is left alone for a moment, and harms no other."""
        try:
            messages = port.drain(self.settings.batch)
        except Exception as error:
            self._broken(station, name, port, error, now)
            return []
        if port.dropped:
            by_reason = Counter({"too many frames": port.dropped - port.incomplete, "incomplete": port.incomplete})
            station.host.counts.dropped += by_reason  # without those of which there are none
            port.dropped = port.incomplete = 0
        return messages

    def _broken(self, station: Station, name: str, port: Port, error: Exception, now: float) -> None:
        self._resting[port] = now + DRAIN_PAUSE
        self._poller = None
        station.host.counts.dropped["unreadable socket"] += 1
        if now - station.broken_logged >= LOG_INTERVAL:
            station.broken_logged = now
            station.host.log.error(
                "socket cannot be read; retrying",
                service=station.host.service.name,
                plugin=station.host.plugin,
                socket=name,
                error=repr(error),
                times=station.host.counts.dropped["unreadable socket"],
            )

    def _end_rests(self, now: float) -> None:
        """Listen again to sockets that were left alone for long enough."""
        if any(until <= now for until in self._resting.values()):
            self._resting = {port: until for port, until in self._resting.items() if until > now}
            self._poller = None

    def _watch(self, station: Station, before: float, messages: int = 0) -> float:
        """Tell of a service that has held the loop since ``before`` for too long; give the time now."""
        now = self.clock.now()
        if now - before > self._slow_after:
            self._slow(station, now, now - before, messages)
        return now

    def _slow(self, station: Station, now: float, seconds: float, messages: int) -> None:
        station.host.counts.slow += 1
        if now - station.slow_logged >= LOG_INTERVAL:
            station.slow_logged = now
            station.host.log.warning(
                "service held the loop for long; work that blocks belongs in a job",
                service=station.host.service.name,
                plugin=station.host.plugin,
                ms=round(seconds * 1000),
                messages=messages,
                times=station.host.counts.slow,
            )

    def _flush(self, now: float, received: dict[str, int]) -> None:
        """Send what the services returned, start their jobs, put quarantined ones out, and tell the observers."""
        sent = 0
        failed: list[tuple[str, SendFailure]] = []
        for _ in range(MOST_ROUNDS):
            for station in tuple(self.stations):
                host = station.host
                if host.sends or station.outbox:
                    went, failures = self._send(station, now)
                    sent += went
                    if failures:
                        failed.extend((host.service.name, failure) for failure in failures)
                if host.jobs.in_flight or self._paused:
                    self._look_at_jobs(station)
                if host.quarantined and station.sockets:
                    station.close()
                    self._poller = None
                    if host.vital:
                        self.failed = host.counts.last_error
                        self.stop()
            if not self._deliver(now):
                break
        self._report(now, received, sent, failed)

    def _deliver(self, now: float) -> bool:
        """Give services what others in this process sent them; return whether there was anything."""
        ready = self.container.ready
        before = self.clock.now() if ready else now
        for receiver in ready:
            count = receiver.deliver(now)
            station = next(station for station in self.stations if station.host is receiver.host)
            before = self._watch(station, before, count)
        return bool(ready)

    def _report(self, now: float, received: dict[str, int], sent: int, failed: list[tuple[str, SendFailure]]) -> None:
        """Tell the observers."""
        events = self._take_events() if self._telling else ()
        if self.observers and (received or sent or failed or events):
            report = BatchReport(now, self.clock.now() - now, received, sent, failed, events)
            for observe in self.observers:
                observe(report)

    def _ask_for_events(self, station: Station) -> None:
        if station.host.observe_events(self.clock.now()):
            self._telling.append(station.host)

    def _take_events(self) -> list[tuple[str, Sequence[Event]]]:
        return [(host.service.name, host.take_events()) for host in self._telling if host.events]

    def _send(self, station: Station, now: float) -> tuple[int, list[SendFailure]]:
        """Send what a service returned, and what had to wait; give the number of messages sent, and what failed."""
        host, outbox = station.host, station.outbox
        returned = host.take_sends()
        failures = self._connect(station, now) if host.connections else []
        if outbox:
            outcome = outbox.send(returned, now, partial(self.wire.send, station.ports))
        else:
            errors = self.wire.send(station.ports, returned)
            if not (errors or failures):  # as nearly always
                host.sent(len(returned), (), now)
                return len(returned), []
            outcome = outbox.settle(returned, errors, now)
        return self._settle(station, outcome, failures, now)

    def _settle(
        self, station: Station, outcome: Outcome, failures: list[SendFailure], now: float
    ) -> tuple[int, list[SendFailure]]:
        """Let the service know what could not be sent, or only later; return what ``_send`` returns."""
        failures += outcome.failures
        station.host.delayed(outcome.delayed, outcome.left, now)
        station.host.sent(outcome.sent + len(failures), failures, now)
        return outcome.sent, failures

    def _rush(self, station: Station, name: str, port: Port) -> None:
        """Serve a busy socket without the rest of a turn, for as long as there is nothing else to do."""
        host, poller = station.host, self._poller
        if not host.may_rush or station.outbox or self._stopping or poller is None or not self.clock.is_real:
            return
        begun, due = self.clock.now(), self._nearest_deadline()
        seconds = RUSH if due is None else min(RUSH, due - begun)
        queues = Queues(name, self.settings.batch, station.ports, host.sends)
        rushed = self.wire.rush(poller, port, host.receive_batch, queues, begun, seconds)
        if rushed is None:
            return
        sent, failures = rushed.sent, list[SendFailure]()
        before = self.clock.now()
        host.rushed(name, rushed.received, rushed.error, rushed.left, rushed.now)
        if rushed.error is not None:
            self._watch(station, before, rushed.received)
        host.sent(sent, (), rushed.now)
        if rushed.failures:
            outcome = station.outbox.settle(*host.take_in_process(rushed.batch, rushed.failures), rushed.now)
            went, failures = self._settle(station, outcome, failures, rushed.now)
            sent += went
        now = self.clock.now()
        if rushed.longest > self._slow_after:
            self._slow(station, now, rushed.longest, rushed.received)
        self._report(
            min(now, begun + rushed.slept),  # so that waiting does not look like work
            {host.service.name: rushed.received} if rushed.received else {},
            sent,
            [(host.service.name, failure) for failure in failures],
        )
        if host.quarantined or self.container.ready:
            self._flush(now, {})

    def _connect(self, station: Station, now: float) -> list[SendFailure]:
        """Make and end the connections that a service asked for; give the messages that have nobody to go to now."""
        given_up: list[SendFailure] = []
        for effect in station.host.take_connections():
            reason = station.connections.fault(effect, now)
            if not reason and station.connections.changes(effect):
                reason = station.change(effect, now, given_up)
                self._poller = None  # libzmq may have swallowed the news of messages: a new poller asks for them
            if reason:
                station.host.refused(effect, reason, now)
        return given_up

    def _start_jobs(self, station: Station, batch: list[Job]) -> None:
        def done(results: list[JobResult]) -> None:
            self.call(lambda: self._jobs_done(station, batch, results))

        station.jobs.start(batch, done)

    def _jobs_done(self, station: Station, batch: list[Job], results: list[JobResult]) -> None:
        station.host.jobs.finished(batch)
        self._give_results(station, results)

    def _posted(self, service: str, result: JobResult) -> None:
        named = [station for station in self.stations if station.host.service.name == service]
        for station in named:
            self._give_results(station, [result])
        if not named:
            LOG.warning("result posted to an unknown service", service=service)

    def _give_results(self, station: Station, results: list[JobResult]) -> None:
        now = self.clock.now()
        for result in results:
            station.host.job_done(result, now)
        self._watch(station, now)


def _sooner(one: float | None, other: float | None) -> float | None:
    """Give the shorter of two times to wait, where None waits for ever."""
    return other if one is None else one if other is None else min(one, other)
