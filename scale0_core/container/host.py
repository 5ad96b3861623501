"""Calls one service, and contains what it does wrong.

The real loop, the testing kit and the simulated network all drive services through a ``ServiceHost``, so that counting,
budgets and quarantine are the same everywhere.
"""

from __future__ import annotations

import math
import traceback
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from scale0_core.container.jobs import JobQueue
from scale0_core.container.outbox import GONE, MALFORMED
from scale0_core.errors import ServiceFaultError
from scale0_core.events import Event
from scale0_core.logs import Logger, get_logger, printable
from scale0_core.service import (
    Connect,
    Connecting,
    Delayed,
    Disconnect,
    Effect,
    EventSource,
    FastPaths,
    Finishing,
    Frames,
    Job,
    JobResult,
    LaterResults,
    PackedEventSource,
    PeerWatcher,
    Send,
    SendFailure,
    Service,
    SocketKind,
    Stopping,
    Undelivered,
)

if TYPE_CHECKING:
    from scale0_core.container.task_host import TaskHost

STUCK_PAUSE = 0.1
"""Seconds until a service whose deadline did not move is asked again."""

CAUGHT = (Exception, SystemExit)
"""What a service may raise without ending the broker: a call of sys.exit() in a library is no reason either."""

BUSY = 4
"""So many messages of one service in a turn are a sign that more will follow at once."""

ReceiveBatch = Callable[[str, Iterator[Frames], float, list[Effect]], None]
"""Gives messages of a socket to a service, and adds to the effects what it returns."""

Take = Callable[[str, Frames, float], Iterable[Effect] | None]

PUBLISHERS = frozenset((SocketKind.PUB, SocketKind.XPUB))
"""Sockets by which nobody is answered."""

_SENDS_ALONE = frozenset((tuple,))


@attrs.frozen(kw_only=True)
class HostLimits:
    """The budget of errors of a service, and the limit of its jobs."""

    errors: int = 10
    errors_window: float = 60.0
    jobs: int = 1024


@attrs.define
class HostCounts:
    """What happened at one service since the start. What the core could not deliver or take shows up here."""

    received: int = 0
    sent: int = 0
    errors: int = 0
    last_error: str = attrs.field(default="", eq=False)
    jobs: int = 0
    jobs_failed: int = 0
    slow: int = 0
    undelivered: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    dropped: Counter[str] = attrs.field(factory=Counter)
    refused: Counter[tuple[str, str]] = attrs.field(factory=Counter)
    """Connections that were not made, or not ended, by socket and reason."""


class ServiceHost:
    """Calls one service, collects what it returns, counts, and takes the service out when it fails too often.

    Large, since it is passed at every message: what it needs is at hand as attributes, not behind further objects.
    """

    __slots__ = (
        "_collect", "_delayed", "_drain_until", "_logged", "_not_before", "_on_job", "_on_peer_lost", "_on_refused",
        "_on_stop", "_on_undelivered", "_packing", "_recent_errors", "_sends_alone", "connections", "counts",
        "events", "fast_paths", "in_process", "jobs", "limits", "log", "may_be_rushed", "now", "on_quarantine",
        "on_resume", "plugin", "quarantined", "reopen", "sends", "service", "suspended", "task", "tasks", "vital",
    )  # fmt: skip

    def __init__(
        self, service: Service, *, plugin: str = "", limits: HostLimits | None = None, vital: bool = False
    ) -> None:
        self.service = service
        self.vital = vital
        """Whether the broker stops when the service is put into quarantine."""
        self.plugin = plugin or service.name
        self.limits = limits or HostLimits()
        self.counts = HostCounts()
        self.jobs = JobQueue()
        self.sends: list[Send] = []
        """What was returned and not taken yet; jobs and connections stand among the sends until ``take_sends``."""
        self.connections: list[Connect | Disconnect] = []
        """Connections to make and to end, in order, before what ``take_sends`` gave is sent."""
        self.events: list[Event] = []
        """What the service told of and nobody has taken yet, if it was asked to."""
        self._collect: Callable[[Iterable[Effect]], None] = cast("Any", self.sends).extend
        self.quarantined = False
        self.task = b""
        """The number of the task that the service is called with, if it is one; for the log."""
        self.on_quarantine: list[Callable[[], None]] = []
        self.on_resume: list[Callable[[], None]] = []
        self.tasks: TaskHost | None = None
        """Gives the service tasks, if it takes some."""
        self.in_process: dict[str, Callable[[Frames], str]] = {}
        """What sends by the endpoints that lead to services of the same broker, by socket."""
        self.may_be_rushed = True
        """Whether the loop may serve a busy socket of the service alone for a while."""
        self.reopen: Callable[[], None] | None = None
        """Opens the sockets again, which are closed in quarantine; raises a Scale0Error if that cannot be."""
        self.suspended = ""
        """Why the service serves no peers, such as ``disabled``; empty while it does."""
        self._drain_until = -math.inf
        self.log: Logger = get_logger(f"plugin.{self.plugin}")
        self.fast_paths: dict[str, dict[int, tuple[tuple[int, bytes, Take], ...]]] = {}
        """Place, word and method of the service's fast paths, by socket and number of frames."""
        self._read_fast_paths()
        self._on_job = service.on_job if isinstance(service, LaterResults) else None
        self._on_undelivered = service.on_undelivered if isinstance(service, Undelivered) else None
        self._on_peer_lost = service.on_peer_lost if isinstance(service, PeerWatcher) else None
        self._on_refused = service.on_refused if isinstance(service, Connecting) else None
        self._sends_alone = self._on_job is None and self._on_refused is None
        self._packing = service.packing if isinstance(service, PackedEventSource) else None
        self._delayed = service if isinstance(service, Delayed) else None
        self._on_stop = service.on_stop if isinstance(service, Stopping) else None
        self._recent_errors: deque[float] = deque(maxlen=self.limits.errors)
        self._logged: set[str] = set()
        self._not_before = -math.inf
        self.now = -math.inf
        """When the service was called last."""

    @property
    def paused(self) -> bool:
        """True while the service has as many jobs in flight as it may: its sockets are not read meanwhile."""
        return self.jobs.in_flight >= self.limits.jobs

    def receive(self, socket: str, messages: Sequence[Frames], now: float) -> None:
        """Give a batch of messages to the service, one by one if it does not take them all at once."""
        if self.suspended:
            messages = self._finishing(socket, messages, now)
        self.take(socket, messages, now)

    def take(self, socket: str, messages: Sequence[Frames], now: float) -> None:
        """Give messages to the service, whether it is suspended or not."""
        self.counts.received += len(messages)
        self.now = now
        self._receive_all(socket, iter(messages), now)

    def suspend(self, reason: str, drain_until: float = -math.inf) -> None:
        """Serve no peers from now on: drop what they send, and from ``drain_until`` on also what is sent to them.

        Until then the answers to what was taken before still leave; what is published answers nobody, and stays. The
        service goes on to be called for its deadlines and jobs, so that leases end and records are kept; to it, all
        peers are gone. An empty reason serves them again.
        """
        self.suspended, self._drain_until = reason, drain_until

    def _finishing(self, socket: str, messages: Sequence[Frames], now: float) -> Sequence[Frames]:
        """Return the messages that finish what was begun before the service was suspended; count the others."""
        kept: Sequence[Frames] = ()
        if now < self._drain_until and not self.quarantined:
            if not self.service.endpoints[socket].bind:  # answers to what the service itself asked for
                kept = messages
            elif isinstance(self.service, Finishing):
                try:
                    kept = [frames for frames in messages if self.service.finishes(socket, frames)]
                except CAUGHT as error:
                    self.failed("finishes", error, now)
        dropped = len(messages) - len(kept)
        self.counts.received += dropped
        self._drop(self.suspended, dropped)
        return kept

    def _receive_all(self, socket: str, pending: Iterator[Frames], now: float) -> None:
        while not self.quarantined:
            effects: list[Effect] = []
            error: BaseException | None = None
            try:
                self.receive_batch(socket, pending, now, effects)
            except CAUGHT as raised:
                error = raised
            finally:  # what was done before counts, whatever came then
                self._collect(effects)
            if error is None:
                return
            self.failed("receive", error, now)
        self._drop("quarantined", sum(1 for _ in pending))

    def receive_batch(self, socket: str, messages: Iterator[Frames], now: float, effects: list[Effect]) -> None:
        """Give messages to the service, by its fast paths where it has some; what it raises is for the caller."""
        receive, collect = self.service.receive, effects.extend
        paths = self.fast_paths.get(socket)
        if not paths:
            for frames in messages:
                collect(receive(socket, frames, now))
            return
        for frames in messages:
            for place, word, take in paths.get(len(frames), ()):
                if frames[place] == word:
                    taken = take(socket, frames, now)
                    collect(receive(socket, frames, now) if taken is None else taken)
                    break
            else:
                collect(receive(socket, frames, now))

    def _read_fast_paths(self) -> None:
        """Make the table in which the fast path of a message is looked up."""
        self.fast_paths.clear()
        for path in self.service.fast_paths if isinstance(self.service, FastPaths) else ():
            by_length = self.fast_paths.setdefault(path.socket, {})
            for length in (path.frames,) if isinstance(path.frames, int) else path.frames:
                by_length[length] = (*by_length.get(length, ()), (path.place, path.word, path.take))

    @property
    def may_rush(self) -> bool:
        """Whether all that the service returns to messages of its peers can be sent as it is."""
        busy = self.sends or self.jobs.in_flight or (self.tasks is not None and self.tasks.open)
        return self.may_be_rushed and not (busy or self.quarantined or self.suspended)

    def rushed(
        self, socket: str, received: int, error: Exception | SystemExit | None, left: Iterator[Frames], now: float
    ) -> None:
        """Note that messages went to ``receive_batch`` without this host; it did not take what is ``left``."""
        self.counts.received += received
        self.now = now
        if error is not None:
            self.failed("receive", error, now)
            self._receive_all(socket, left, now)

    def next_deadline(self) -> float | None:
        """Ask the service when it wants to be called; a deadline that did not move is put off."""
        if self.quarantined:
            return None
        try:
            due = self.service.next_deadline()
            if due is None or due == math.inf:
                return None
            if math.isnan(due):
                raise ServiceFaultError(f"the deadline of service {self.service.name} is not a number")
            return max(due, self._not_before)
        except CAUGHT as error:
            self._not_before = self.now + STUCK_PAUSE
            self.failed("next_deadline", error, self.now)
            return self._not_before

    def on_deadline(self, now: float) -> None:
        """Call the service if something is due."""
        self.now = now
        due = self.next_deadline()
        if due is None or due > now:
            return
        try:
            self._collect(self.service.on_deadline(now))
            moved = self.service.next_deadline()
            if moved is not None and not moved > now:
                raise ServiceFaultError(
                    f"the deadline of service {self.service.name} did not move",
                    f"it is {moved} after on_deadline({now})",
                )
        except CAUGHT as error:
            self._not_before = now + STUCK_PAUSE
            self.failed("on_deadline", error, now)

    def job_done(self, result: JobResult, now: float) -> None:
        """Hand the outcome of a job to the service."""
        self.now = now
        self.counts.jobs += 1
        if result.error is not None:
            self.counts.jobs_failed += 1
        if self.quarantined:
            self._drop("quarantined", 1)
        elif self._on_job is not None:
            self._guarded("on_job", now, self._on_job, result, now)
        else:
            self._drop("no on_job", 1)

    def peer_lost(self, socket: str, now: float) -> None:
        """Tell the service that connections of a socket were lost, if it wants to know."""
        if self._on_peer_lost is not None and not self.quarantined:
            self._guarded("on_peer_lost", now, self._on_peer_lost, socket, now)

    def stop(self, now: float) -> None:
        """Ask the service for its last words, if it has any."""
        if self._on_stop is not None and not self.quarantined:
            self._guarded("on_stop", now, self._on_stop, now)

    def observe_events(self, now: float) -> bool:
        """Have the service tell of events from now on; give whether it does."""
        if not isinstance(self.service, EventSource):
            return False
        try:
            self.service.events = self.events
            self._read_fast_paths()
        except CAUGHT as error:
            self.failed("events", error, now)
            return False
        return True

    def take_events(self) -> Sequence[Event]:
        """Give what the service told of since the last time."""
        # the list stays the same, so that a service may hand it on to its parts
        taken = self.events.copy()
        self.events.clear()
        return taken if self._packing is None else self._packing.told(taken)

    def take_sends(self) -> list[Send]:
        """Give all that waits to be sent; jobs found among it go into ``jobs``, the others into ``connections``."""
        sends = self._sort_sends()
        if self.tasks is not None and self.tasks.open:
            sends = self.tasks.take_answers(sends, self.now)
        sends = self._unless_suspended(sends)
        return self._send_in_process(sends) if self.in_process else sends

    def _send_in_process(self, sends: list[Send]) -> list[Send]:
        """Send what goes to services of the same broker; return the rest."""
        try:
            if self.in_process.keys().isdisjoint([send[0] for send in sends]):
                return sends
        except (TypeError, IndexError):
            pass  # something that is no send; whoever sends the rest counts it
        kept: list[Send] = []
        for send in sends:
            pass_on = self.in_process.get(send[0]) if _is_whole(send) else None
            if pass_on is None:
                kept.append(send)
            else:
                reason = pass_on(send[1])
                self.sent(1, (SendFailure(*send, reason),) if reason else (), self.now)
        return kept

    def take_in_process(
        self, sends: list[Send], failures: list[tuple[int, str]]
    ) -> tuple[list[Send], list[tuple[int, str]]]:
        """Send what failed only because it goes over no socket; return the rest of a batch, and its failures."""
        inside = {index for index, _ in failures if _is_whole(sends[index]) and sends[index][0] in self.in_process}
        if not inside:
            return sends, failures
        self._send_in_process([sends[index] for index in sorted(inside)])
        kept = [index for index in range(len(sends)) if index not in inside]
        places = {index: place for place, index in enumerate(kept)}
        return [sends[index] for index in kept], [(places[index], why) for index, why in failures if index in places]

    def _unless_suspended(self, sends: list[Send]) -> list[Send]:
        """Give back to a suspended service what it publishes, and all that it sends once its time to answer is over."""
        if not self.suspended:
            return sends
        left: list[Send] = []
        for send in sends:
            if _is_whole(send) and not self._may_leave(send[0]):
                self.counts.undelivered[send[0], self.suspended] += 1
                self._undelivered(SendFailure(*send, GONE), self.now)
            else:
                left.append(send)
        return left

    def _may_leave(self, socket: str) -> bool:
        """Return whether a suspended service may still send by a socket."""
        endpoint = self.service.endpoints.get(socket)
        return self.now < self._drain_until and (endpoint is None or endpoint.kind not in PUBLISHERS)

    def _sort_sends(self) -> list[Send]:
        effects: list[Effect] = list(self.sends)
        self.sends.clear()
        # sorted out here and not on arrival: a look at the types of a batch costs a quarter of a test on each message
        if self._sends_alone or _SENDS_ALONE.issuperset(map(type, effects)):
            return cast("list[Send]", effects)
        sends: list[Send] = []
        for effect in effects:
            if isinstance(effect, Job) and self._on_job is not None:
                self.jobs.add(effect)
            elif isinstance(effect, Connect | Disconnect):
                self.connections.append(effect)
            else:
                sends.append(cast("Send", effect))
        return sends

    def take_connections(self) -> list[Connect | Disconnect]:
        """Give the connections to make and to end."""
        taken, self.connections = self.connections, []
        return taken

    def refused(self, effect: Connect | Disconnect, reason: str, now: float) -> None:
        """Count a connection that was refused, log the first of its kind, and tell a service that asks."""
        socket = printable(str(effect.socket))
        self.counts.refused[socket, reason] += 1
        kind = f"refused {type(effect).__name__} {reason}"
        if kind not in self._logged:
            self._logged.add(kind)
            self.log.warning(
                "a connection was refused; further ones of this kind are only counted",
                service=self.service.name,
                plugin=self.plugin,
                wanted=type(effect).__name__,
                socket=socket,
                address=printable(str(effect.address)),
                reason=reason,
            )
        if self._on_refused is not None and not self.quarantined:
            self._guarded("on_refused", now, self._on_refused, effect, reason, now)

    def sent(self, count: int, failures: Sequence[SendFailure], now: float) -> None:
        """Note the outcome of sending ``count`` messages, and give back those that failed to a service that asks."""
        self.counts.sent += count - len(failures)
        for failure in failures:
            self.counts.undelivered[failure.socket, failure.reason] += 1
            if failure.reason == MALFORMED:
                self.failed("send", ServiceFaultError(f"service {self.service.name} returned a malformed send"), now)
            else:
                self._undelivered(failure, now)

    def _undelivered(self, failure: SendFailure, now: float) -> None:
        if self._on_undelivered is not None and not self.quarantined:
            self._guarded(
                "on_undelivered", now, self._on_undelivered, failure.socket, failure.frames, failure.reason, now
            )

    def delayed(self, waiting: Sequence[Send], sent: Sequence[Send], now: float) -> None:
        """Tell the service which of its messages have to wait, and which of those that waited have left."""
        if self._delayed is None or self.quarantined:
            return
        try:
            for socket, frames in waiting:
                self._delayed.on_delayed(socket, frames, now)
            for socket, frames in sent:
                self._delayed.on_sent(socket, frames, now)
        except CAUGHT as error:
            self.failed("on_delayed", error, now)

    def _guarded(self, where: str, now: float, call: Callable[..., Iterable[Effect]], *arguments: object) -> None:
        try:
            self._collect(call(*arguments))
        except CAUGHT as error:
            self.failed(where, error, now)

    def resume(self) -> None:
        """Take the service out of quarantine: its sockets are open again, and its budget of errors is whole."""
        if self.reopen is not None:
            self.reopen()
        self.quarantined = False
        self._recent_errors.clear()
        self._logged.clear()
        self.log.warning("service resumed after quarantine", service=self.service.name, plugin=self.plugin)
        for call in self.on_resume:
            call()

    def _drop(self, reason: str, count: int) -> None:
        if count:
            self.counts.dropped[reason] += count

    def failed(self, where: str, error: BaseException, now: float) -> None:
        """Count an exception, log the first of its kind, and quarantine the service when its budget is used up."""
        self.counts.errors += 1
        self.counts.last_error = printable(f"{where}: {error!r}")
        kind = f"{where} {type(error).__name__} {_place(error)}"
        if kind not in self._logged:
            self._logged.add(kind)
            self.log.error(
                "service raised; further errors of this kind are only counted",
                service=self.service.name,
                plugin=self.plugin,
                where=where,
                **({"task": self.task.hex()} if self.task else {}),
                error=repr(error),
                place=_place(error),
                trace="".join(traceback.format_exception(error)),
            )
        recent = self._recent_errors
        recent.append(now)
        if not self.quarantined and len(recent) == recent.maxlen and now - recent[0] <= self.limits.errors_window:
            self.quarantined = True
            self.log.error(
                "service quarantined: it raised too often and is no longer called; the other services go on",
                service=self.service.name,
                plugin=self.plugin,
                errors=self.counts.errors,
                within=f"{self.limits.errors_window:g}s",
                next=f"scale0 plugins doctor; then scale0 plugins resume {self.plugin}, or restart the broker",
            )
            for call in self.on_quarantine:
                call()


def _is_whole(send: object) -> bool:
    """Return whether a send has a socket and frames; what has not is told by whoever sends it."""
    return type(send) is tuple and len(send) == 2 and type(send[0]) is str


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "unknown"
