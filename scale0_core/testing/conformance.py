"""One line for the tests of every plugin: ``check_service(MyService)``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

import attrs

from scale0_core.container.connections import ID_IN_USE, NOT_LOCAL, Connections
from scale0_core.container.jobs import run_batch
from scale0_core.errors import ServiceFaultError
from scale0_core.service import Connect, Disconnect, Frames, Job, JobResult, Send, Service, SocketKind
from scale0_core.testing.contract import SENDS_ONLY, StrictHost, endpoint_faults
from scale0_core.testing.frames import show_frames
from scale0_core.testing.fuzz import Fuzzer, Sample
from scale0_core.testing.virtual import Agenda, Driver

START = 1000.0
LONG_SLEEP = 86_400.0
MOST_STEPS = 10_000
"""So many deadlines and jobs within half a second mean that a service never comes to rest."""

REFUSALS = {
    SocketKind.ROUTER: ("EHOSTUNREACH", "EAGAIN"),
    SocketKind.DEALER: ("EAGAIN",),
    SocketKind.PUSH: ("EAGAIN",),
    SocketKind.PAIR: ("EAGAIN",),
}


@attrs.frozen(kw_only=True)
class ConformanceReport:
    """What a run of ``check_service`` has tried."""

    seed: int
    messages: int
    sends: int
    undelivered: int
    jobs: int
    jobs_failed: int
    deadlines: int


class ConformanceError(AssertionError):
    """A service broke the contract. The same seed with ``messages=message + 1`` plays it again."""

    def __init__(self, what: str, *, seed: int, message: int, socket: str = "", frames: Frames = ()) -> None:
        self.seed = seed
        self.message = message
        self.socket = socket
        self.frames = frames
        last = f"\n  last message: {socket!r}: {show_frames(frames)}" if socket else ""
        super().__init__(f"{what}\n  seed {seed}, message {message}{last}")


def check_service(
    factory: Callable[[], Service], *, messages: int = 2000, seed: int = 0, samples: Iterable[Sample] = ()
) -> ConformanceReport:
    """Insist that a service keeps its contract, whatever comes.

    It gets ``messages`` messages: random frames, too few and too many, empty and huge ones, bytes that are not
    text, and mutations of ``samples``, each a ``(socket, frames)`` that the service understands. One without a
    single frame is among them: ZeroMQ would not deliver it, yet nothing should break on it. Meanwhile the clock
    stands, moves and jumps; jobs end late and some fail; some sends are refused and their peers gone, and some
    connections are refused. The service must never raise, send only what is well-formed to sockets it declared, and
    move its deadline on when called. A service with fast paths is made twice and gets all messages a second time
    without them: ``factory`` returns a new one each time, and what both send must be the same.

    Raises a ConformanceError that names the seed, the message and its frames.
    """
    service = factory()
    if faults := endpoint_faults(service):
        raise ConformanceError("\n".join(faults), seed=seed, message=0)
    samples = list(samples)
    run = _Run(service, seed, samples)
    report = run.play(messages)
    if run.host.fast_paths and (other := factory()) is not service:
        _Run(other, seed, samples, expected=run.trail).play(messages)
    return report


LOST_PEERS = 0.01
"""How often a connection is lost after a message."""

REFUSED_CONNECTIONS = 0.1
"""How often a connection that the service wants is refused."""


class _Run:
    """One service under test: it is fed, its jobs and sends may fail, and the clock does what it likes."""

    def __init__(
        self, service: Service, seed: int, samples: Iterable[Sample], expected: Sequence[int] | None = None
    ) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311  # a seed must give the same run
        self.endpoints = dict(service.endpoints)
        self.fuzzer = Fuzzer(self.random, self.endpoints, samples)
        self.connections = Connections(self.endpoints, insecure=True, linger=0.0)
        self.agenda = Agenda(START)
        self.expected = expected
        """The trail of the run with fast paths, if this is the one without."""
        self.trail: list[int] = []
        """A hash of all that was sent until then, for each message; for services with fast paths."""
        self.sent = 0
        self.host = StrictHost(service, fast=expected is None)
        self.driver = Driver(
            self.host, self.agenda, self.send, job_delay=self.job_delay, run=self.run_jobs, connect=self.connect
        )
        self.readable = [name for name, endpoint in self.endpoints.items() if endpoint.kind not in SENDS_ONLY]
        self.sockets_owing: set[str] = set()
        self.gone: set[bytes] = set()
        self.fed = 0
        self.number = 0
        self.last: tuple[str, Frames] = ("", ())

    def play(self, messages: int) -> ConformanceReport:
        try:
            self.driver.settle()
            for self.number in range(messages):
                self.move_clock()
                self.feed_one()
                self.compare()
            self.advance(1.0)
        except Exception as error:
            what = f"service {self.host.service.name} failed: {type(error).__name__}: {error}"
            socket, frames = self.last
            raise ConformanceError(what, seed=self.seed, message=self.number, socket=socket, frames=frames) from error
        counts = self.host.counts
        return ConformanceReport(
            seed=self.seed,
            messages=self.fed,
            sends=counts.sent,
            undelivered=sum(counts.undelivered.values()),
            jobs=counts.jobs,
            jobs_failed=counts.jobs_failed,
            deadlines=self.driver.deadlines,
        )

    def compare(self) -> None:
        """Insist that the service sends the same with its fast paths and without."""
        if self.expected is None:
            if self.host.fast_paths:
                self.trail.append(self.sent)
        elif self.expected[self.number] != self.sent:
            raise ServiceFaultError("it does something else by a fast path than without")

    def feed_one(self) -> None:
        socket = self.pick_socket()
        if socket is None:
            return
        frames = self.fuzzer.message(socket)
        self.last = socket, frames
        self.fed += 1
        if self.endpoints[socket].kind is SocketKind.REP:
            self.sockets_owing.add(socket)
        else:
            self.sockets_owing.discard(socket)
        self.driver.receive(socket, frames)
        self.advance(0.0)
        if self.endpoints[socket].watch_peers and self.random.random() < LOST_PEERS:
            self.driver.peer_lost(socket)

    def pick_socket(self) -> str | None:
        """Choose where a message can arrive, letting deadlines and jobs pass until there is such a place."""
        for _ in range(MOST_STEPS):
            open_sockets = [name for name in self.readable if self.may_receive(name)]
            if open_sockets and not self.host.paused:
                return self.random.choice(open_sockets)
            if self.agenda.next_time is None:
                break
            self.agenda.step()
        for name in self.readable:
            if self.endpoints[name].kind is SocketKind.REP:
                raise ServiceFaultError(f"REP socket {name!r} is stuck", "its last request is never answered")
        return None

    def may_receive(self, socket: str) -> bool:
        # these two take turns: a REP gets a request once the last is answered, a REQ an answer once it has asked
        kind = self.endpoints[socket].kind
        if kind is SocketKind.REP:
            return socket not in self.sockets_owing
        return kind is not SocketKind.REQ or socket in self.sockets_owing

    def move_clock(self) -> None:
        roll = self.random.random()
        due = self.agenda.next_time
        if roll < 0.4:
            return
        if roll < 0.9:
            self.advance(self.random.expovariate(100.0))
        elif roll < 0.99 or due is None:
            self.advance(self.random.uniform(0.0, 0.5))
        elif roll < 0.998:
            self.agenda.now = max(self.agenda.now, due)  # exactly due, and the message comes first
        else:
            self.agenda.now += self.random.uniform(0.0, LONG_SLEEP)  # the whole process stood still

    def advance(self, seconds: float) -> None:
        until = self.agenda.now + seconds
        for _ in range(MOST_STEPS):
            due = self.agenda.next_time
            if due is None or due > until:
                self.agenda.now = until
                return
            self.agenda.step()
        raise ServiceFaultError(f"no rest: {MOST_STEPS} deadlines and jobs within {seconds:.3f} seconds")

    def send(self, send: Send) -> str:
        socket, frames = send
        if self.host.fast_paths or self.expected is not None:
            self.sent = hash((self.sent, socket, *map(bytes, frames)))
        endpoint = self.endpoints[socket]
        kind = endpoint.kind
        if kind is SocketKind.REP or kind is SocketKind.REQ:
            self.take_turn(socket, kind, relaxed=bool(endpoint.options.get("REQ_RELAXED")))
        if kind is SocketKind.ROUTER and self.gone and bytes(frames[0]) in self.gone:
            return "EHOSTUNREACH"
        if self.random.random() > 0.01 or kind not in REFUSALS:
            return ""
        reason = self.random.choice(REFUSALS[kind])
        if reason == "EHOSTUNREACH":
            self.gone.add(bytes(frames[0]))
            self.fuzzer.retire(bytes(frames[0]))
        return reason

    def connect(self, effect: Connect | Disconnect) -> str:
        if isinstance(effect, Disconnect) or self.random.random() > REFUSED_CONNECTIONS:
            return self.connections.fault(effect, self.agenda.now)
        return self.random.choice((NOT_LOCAL, ID_IN_USE, "EINVAL"))

    def take_turn(self, socket: str, kind: SocketKind, *, relaxed: bool) -> None:
        may_send = (socket in self.sockets_owing) == (kind is SocketKind.REP)
        if not may_send and not relaxed:
            raise ServiceFaultError(f"a send out of turn on {kind.value} socket {socket!r} (EFSM)")
        if kind is SocketKind.REP:
            self.sockets_owing.discard(socket)
        else:
            self.sockets_owing.add(socket)

    def job_delay(self) -> float:
        return 0.0 if self.random.random() < 0.5 else self.random.uniform(0.0, 0.05)

    def run_jobs(self, batch: Sequence[Job]) -> list[JobResult]:
        if self.random.random() < 0.1:
            return [JobResult(job.token, error=OSError(5, "the check lets this job fail")) for job in batch]
        return run_batch(batch)
