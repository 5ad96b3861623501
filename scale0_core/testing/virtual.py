"""Virtual time, and a driver that runs one service on it: its sends, its deadlines and its jobs.

``Script``, ``check_service`` and ``SimNetwork`` differ in where messages go; the rest they share, and it is here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from scale0_core.container.container import Container
from scale0_core.container.host import ServiceHost
from scale0_core.container.jobs import run_batch
from scale0_core.errors import ServiceFaultError
from scale0_core.service import Connect, Disconnect, Frames, Job, JobResult, Send, SendFailure

Action: TypeAlias = Callable[[], object]

MOST_AT_ONE_INSTANT = 100_000
"""So many actions without time moving are an endless loop."""

MOST_ROUNDS = 1000
"""So many times in a row a service may answer undelivered messages with more of them."""


class Agenda:
    """A clock that stands until told otherwise, and what is to be done at which time."""

    __slots__ = ("_added", "_at_this_instant", "_entries", "now")

    def __init__(self, start: float = 0.0) -> None:
        self.now = start
        self._entries: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._added = 0
        self._at_this_instant = 0

    def at(self, time: float, action: Callable[..., object], *arguments: Any) -> None:
        """Call ``action`` at ``time``, or now if that is past; what is due together, in the order it was added."""
        self._added += 1
        heapq.heappush(self._entries, (time, self._added, action, arguments))

    @property
    def next_time(self) -> float | None:
        """When something is to be done next; None if nothing is."""
        return self._entries[0][0] if self._entries else None

    def step(self) -> None:
        """Do what is due next, moving the clock there."""
        time, _, action, arguments = heapq.heappop(self._entries)
        if time > self.now:
            self.now = time
            self._at_this_instant = 0
        self._at_this_instant += 1
        if self._at_this_instant > MOST_AT_ONE_INSTANT:
            raise ServiceFaultError(f"time stands still at {self.now}", f"{MOST_AT_ONE_INSTANT} actions at one instant")
        action(*arguments)

    def advance(self, time: float) -> None:
        """Do all that is due until ``time``, each at its moment; the clock then shows ``time``."""
        while self._entries and self._entries[0][0] <= time:
            self.step()
        if time > self.now:
            self.now = time
            self._at_this_instant = 0


class InProcess:
    """Lets services of one process, each with a driver of its own, send to each other."""

    def __init__(self, secret: bytes = b"") -> None:
        self.container = Container(secret)
        self._drivers: dict[ServiceHost, Driver] = {}
        self._delivering = False

    def add(self, driver: Driver) -> None:
        """Take in a driver and its service."""
        self.container.add(driver.host)
        self._drivers[driver.host] = driver

    def start(self, now: float) -> None:
        """Let the services have tasks that take some."""
        self.container.start(now)
        for driver in self._drivers.values():
            driver.settle()

    def deliver(self) -> None:
        """Deliver what they have sent each other, until nothing is left."""
        if self._delivering:
            return  # called again from within: the loop below goes on by itself
        self._delivering = True
        try:
            while ready := self.container.ready:
                for receiver in ready:
                    driver = self._drivers[receiver.host]
                    receiver.deliver(driver.agenda.now)
                    driver.settle()
        finally:
            self._delivering = False


class Driver:
    """Runs one service on virtual time.

    ``send`` takes one message and returns why it failed, or an empty text. ``settled`` is called whenever the
    service has come to rest. ``connect`` makes or ends a connection and returns why not, if so.
    ``run`` runs a batch of jobs, ``job_delay`` seconds after it could start.
    """

    __slots__ = (
        "_batches", "_connect", "_due", "_held_back", "_job_delay", "_run", "_send", "_settled", "agenda", "dead",
        "deadlines", "halted", "host", "running",
    )  # fmt: skip

    def __init__(
        self,
        host: ServiceHost,
        agenda: Agenda,
        send: Callable[[Send], str],
        *,
        job_delay: Callable[[], float] = float,
        run: Callable[[Sequence[Job]], list[JobResult]] = run_batch,
        settled: Action = bool,
        connect: Callable[[Connect | Disconnect], str] = lambda effect: "",
    ) -> None:
        self.host = host
        self.agenda = agenda
        self.running: dict[int, list[Job]] = {}
        self._batches = 0
        self.deadlines = 0
        self.halted = False
        self.dead = False
        self._send = send
        self._job_delay = job_delay
        self._run = run
        self._settled = settled
        self._connect = connect
        self._due: float | None = None
        self._held_back: list[tuple[Callable[[Any], None], Any]] = []

    def receive(self, socket: str, frames: Frames) -> None:
        """Give one message to the service."""
        self.host.receive(socket, (frames,), self.agenda.now)
        self.settle()

    def peer_lost(self, socket: str) -> None:
        """Tell the service that a connection was lost."""
        self.host.peer_lost(socket, self.agenda.now)
        self.settle()

    def post(self, result: JobResult) -> None:
        """Let a result arrive that a thread of the plugin posts now."""
        self.agenda.at(self.agenda.now, self._unless_halted, self._take_posted, result)

    def stop(self) -> None:
        """Let the service have its last words."""
        self.host.stop(self.agenda.now)
        self.settle()

    def settle(self) -> None:
        """Send what waits to be sent, start the jobs that may start, and note the next deadline."""
        host, now = self.host, self.agenda.now
        rounds = 0
        while host.sends:
            rounds += 1
            if rounds > MOST_ROUNDS:
                raise ServiceFaultError(
                    f"service {host.service.name} answers undelivered sends with sends, without end"
                )
            sends = host.take_sends()
            for effect in host.take_connections():
                if reason := self._connect(effect):
                    host.refused(effect, reason, now)
            failures = [failure for failure in map(self._send_one, sends) if failure is not None]
            host.sent(len(sends), failures, now)
        while host.jobs.in_flight and (batch := host.jobs.take()) is not None:
            self._batches += 1
            self.running[self._batches] = batch
            self.agenda.at(now + self._job_delay(), self._unless_halted, self._finish, self._batches)
        self._note_deadline()
        self._settled()

    def halt(self) -> None:
        """Stop the service as SIGSTOP would: time passes and it does not see it."""
        self.halted = True

    def resume(self) -> None:
        """Let a halted service go on with all that has become due."""
        self.halted = False
        held_back, self._held_back = self._held_back, []
        for action, argument in held_back:
            self._unless_halted(action, argument)
        self._due = None
        self.settle()

    def die(self) -> list[list[Job]]:
        """End the service; nothing reaches it any more. Returns the batches of jobs that were running."""
        self.dead = True
        return list(self.running.values())

    def _send_one(self, send: Send) -> SendFailure | None:
        reason = self._send(send)
        if not reason:
            return None
        if type(send) is tuple and len(send) == 2:
            return SendFailure(send[0], send[1], reason)
        return SendFailure("", (), reason)

    def _unless_halted(self, action: Callable[[Any], None], argument: Any) -> None:
        if self.halted:
            self._held_back.append((action, argument))
        elif not self.dead:
            action(argument)
            self.settle()

    def _finish(self, number: int) -> None:
        batch = self.running.pop(number)
        results = self._run(batch)
        self.host.jobs.finished(batch)
        for result in results:
            self.host.job_done(result, self.agenda.now)

    def _take_posted(self, result: JobResult) -> None:
        self.host.job_done(result, self.agenda.now)

    def _note_deadline(self) -> None:
        due = self.host.next_deadline()
        if due != self._due:
            self._due = due
            if due is not None:
                self.agenda.at(due, self._fire, due)

    def _fire(self, due: float) -> None:
        # a deadline that was moved meanwhile has an entry of its own
        if self.dead or self.halted or due != self._due:
            return
        self._due = None
        self.deadlines += 1
        self.host.on_deadline(self.agenda.now)
        self.settle()
