"""A conversation with one service, written down as a test.

::

    script = Script(EchoService())
    script.feed("front", "client-1", "hello")
    script.expect("front", "client-1", "hello")
    script.expect_nothing()

No socket is opened and no time is lost: ``sleep(3600)`` returns at once, every deadline fired at its moment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from types import EllipsisType

from scale0_core.container.jobs import run_batch
from scale0_core.events import Event
from scale0_core.service import Connect, Disconnect, Frames, Job, JobResult, Send, Service, SocketKind
from scale0_core.testing.contract import StrictHost
from scale0_core.testing.frames import Text, as_delivered, as_frames, show_frames
from scale0_core.testing.virtual import Agenda, Driver


class Script:
    """Drives one service on virtual time and compares what it sends with what is expected.

    What the service raises, the test sees. Jobs run ``job_delay`` seconds of virtual time after they were returned;
    by default at once. ``sent`` holds every message sent so far, ``now`` is the time.
    """

    def __init__(self, service: Service, start: float = 0.0, *, job_delay: float = 0.0) -> None:
        self.service = service
        self.sent: list[Send] = []
        self._endpoints = dict(service.endpoints)
        self._unexpected: deque[Send | Connect | Disconnect] = deque()
        self._refused_addresses: dict[str, str] = {}
        self._refused: dict[tuple[str, bytes], str] = {}
        self._job_errors: deque[Exception] = deque()
        self._agenda = Agenda(start)
        self._driver = Driver(
            StrictHost(service),
            self._agenda,
            self._send,
            job_delay=lambda: job_delay,
            run=self._run_jobs,
            connect=self._connect,
        )
        self._driver.settle()
        self._agenda.advance(start)

    @property
    def now(self) -> float:
        """The virtual time, in seconds."""
        return self._agenda.now

    @property
    def jobs_in_flight(self) -> int:
        """How many jobs wait or run."""
        return self._driver.host.jobs.in_flight

    def observe_events(self) -> list[Event]:
        """Have the service emit events from now on, into the list that is returned."""
        self._driver.host.observe_events(self.now)
        return self._driver.host.events

    def feed(self, socket: str, *frames: Text) -> None:
        """Let a message arrive; on a ROUTER the first frame is the peer's routing id."""
        self._declared(socket)
        self._driver.receive(socket, as_delivered(as_frames(frames), self._endpoints[socket].blob_over))
        self._agenda.advance(self.now)

    def expect(self, socket: str, *frames: Text | EllipsisType) -> Frames:
        """Insist that this was sent next, and return it; ``...`` stands for any frame."""
        self._declared(socket)
        wanted = tuple(frame.encode() if isinstance(frame, str) else frame for frame in frames)
        sent = self._unexpected[0] if self._unexpected else None
        if not isinstance(sent, tuple) or sent[0] != socket or not _matches(sent[1], wanted):
            raise AssertionError(f"expected on {_show((socket, wanted))}\nbut {self._instead()}")
        self._unexpected.popleft()
        return sent[1]

    def expect_connect(self, socket: str, address: str, routing_id: Text = b"") -> None:
        """Insist that the service connected a socket next; connections come before the sends of the same turn."""
        self._expect_connection(Connect(socket, address, _encoded(routing_id)))

    def expect_disconnect(self, socket: str, address: str) -> None:
        """Insist that the service ended a connection next."""
        self._expect_connection(Disconnect(socket, address))

    def expect_nothing(self) -> None:
        """Insist that nothing was sent beyond what was expected already."""
        if self._unexpected:
            sent = "\n  ".join(map(_show, self._unexpected))
            raise AssertionError(f"expected nothing, but sent was (time {self.now})\n  {sent}")

    def sleep(self, seconds: float) -> None:
        """Let time pass; deadlines fire and jobs end, each at its moment."""
        if seconds < 0:
            raise ValueError(f"time does not run backwards: sleep({seconds})")
        self._agenda.advance(self.now + seconds)

    def fail_next_job(self, error: Exception) -> None:
        """Let the next job (or the next group of jobs) fail with ``error`` instead of running."""
        self._job_errors.append(error)

    def post(self, result: JobResult) -> None:
        """Let a result arrive as by ``context.post``, from threads that the plugin would have."""
        self._driver.post(result)
        self._agenda.advance(self.now)

    def refuse(self, socket: str, routing_id: Text = b"", reason: str = "EHOSTUNREACH") -> None:
        """Let every following send to that peer fail; without a routing id, every send on that socket."""
        self._declared(socket)
        self._refused[socket, _encoded(routing_id)] = reason

    def refuse_connect(self, address: str, reason: str = "not local") -> None:
        """Let every following connection to an address be refused; it is not expected then, as it is not made."""
        self._refused_addresses[address] = reason

    def lose_peer(self, socket: str) -> None:
        """Tell the service that a connection of a socket was lost; ``refuse`` says which peer cannot be reached."""
        self._declared(socket)
        self._driver.peer_lost(socket)

    def stop(self) -> None:
        """Let the broker stop: the service has its last words."""
        self._driver.stop()
        self._agenda.advance(self.now)

    def accept(self, socket: str, routing_id: Text = b"") -> None:
        """Take ``refuse`` back."""
        self._refused.pop((socket, _encoded(routing_id)), None)

    def _declared(self, socket: str) -> None:
        if socket not in self._endpoints:
            declared = ", ".join(map(repr, self._endpoints))
            raise AssertionError(f"service {self.service.name} has no socket {socket!r}; it has {declared}")

    def _expect_connection(self, wanted: Connect | Disconnect) -> None:
        self._declared(wanted.socket)
        if not self._unexpected or self._unexpected[0] != wanted:
            raise AssertionError(f"expected {_show(wanted)}\nbut {self._instead()}")
        self._unexpected.popleft()

    def _instead(self) -> str:
        instead = f"sent was {_show(self._unexpected[0])}" if self._unexpected else "nothing was sent"
        return f"{instead} (time {self.now})"

    def _connect(self, effect: Connect | Disconnect) -> str:
        reason = self._refused_addresses.get(effect.address, "") if isinstance(effect, Connect) else ""
        if not reason:
            self._unexpected.append(effect)
        return reason

    def _send(self, send: Send) -> str:
        socket, frames = send
        reason = self._refused.get((socket, b""), "")
        if self._endpoints[socket].kind is SocketKind.ROUTER:
            reason = self._refused.get((socket, bytes(frames[0])), reason)
        if not reason:
            whole = (socket, tuple(map(bytes, frames)))
            self.sent.append(whole)
            self._unexpected.append(whole)
        return reason

    def _run_jobs(self, batch: Sequence[Job]) -> list[JobResult]:
        if self._job_errors:
            error = self._job_errors.popleft()
            return [JobResult(job.token, error=error) for job in batch]
        return run_batch(batch)


def _encoded(frame: Text) -> bytes:
    return frame.encode() if isinstance(frame, str) else frame


def _matches(came: Frames, wanted: tuple[bytes | EllipsisType, ...]) -> bool:
    return len(came) == len(wanted) and all(w is ... or w == c for c, w in zip(came, wanted, strict=True))


def _show(send: tuple[str, Sequence[object]] | Connect | Disconnect) -> str:
    if not isinstance(send, tuple):
        return repr(send)
    return f"{send[0]!r}: {show_frames(send[1])}"
