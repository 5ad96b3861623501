"""The seat of a service that answers tasks as well: beside its own sockets it has a door to the broker's backend.

Behind the door is a worker of the broker. It gives each task to the service as a request from a peer that does not
exist: the routing id is a *ticket*, under which the answer is taken out of what the service sends. A ticket begins with
a secret, since a peer that chose the same routing id could answer for the service, and take its answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count

import attrs

from scale0_core.broker.deadlines import Deadlines
from scale0_core.broker.inner_worker import InnerTask, InnerWorker
from scale0_core.broker.seat import Seat, SeatLimits
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import TASKREPLY
from scale0_core.service import Endpoint, Frames, Send, SendFailure, Service

DOOR = "door"
"""The name of the socket to the backend; a service that has one of this name has no door."""

WINDOW = 1_000
"""Tasks that a service may have in hand; more wait in the broker's queue."""


@attrs.frozen(kw_only=True)
class DoorPlan:
    """What a door must know of the broker: where its backend is, and how long tasks may take."""

    backend: str
    identity: str
    secret: bytes
    task_timeout: float = 30.0
    max_task_timeout: float = 3600.0


def task_socket(service: Service) -> str | None:
    """Give the name of the socket whose requests may come as tasks; None when there is none."""
    names = [name for name, endpoint in service.endpoints.items() if endpoint.tasks]
    if len(names) > 1 or (names and DOOR in service.endpoints):
        raise ValueError(f"one socket takes tasks, and none has the name {DOOR}: {', '.join(service.endpoints)}")
    return names[0] if names else None


def make_seat(service: Service, plan: DoorPlan | None, *, plugin: str = "", limits: SeatLimits | None = None) -> Seat:
    """Make the seat of a service: with a door if the service takes tasks, and there is a backend to ask for them."""
    socket = task_socket(service)
    if socket is None or plan is None:
        return Seat(service, plugin=plugin, limits=limits)
    return SeatWithDoor(service, socket, plan, plugin=plugin, limits=limits)


class SeatWithDoor(Seat):
    """Calls a service for its peers, like any seat, and for tasks. As long as no task is open, that costs nothing."""

    def __init__(
        self, service: Service, socket: str, plan: DoorPlan, *, plugin: str = "", limits: SeatLimits | None = None
    ) -> None:
        super().__init__(service, plugin=plugin, limits=limits)
        own: Endpoint = service.endpoints[socket]
        self.endpoints = {**service.endpoints, DOOR: InnerWorker.endpoint(plan.backend, own.blob_over)}
        self._socket, self._plan = socket, plan
        self._largest, self._most = own.max_message, own.max_frames - 2
        self._worker = InnerWorker(DOOR, plan.identity, window=WINDOW, metadata={"plugin": self.plugin})
        self._numbers = count(1)
        self._open: dict[bytes, InnerTask] = {}
        self._expiry: Deadlines[bytes, bytes] = Deadlines()
        self._opened = False
        self._door_due = -math.inf
        self._uncounted = 0
        """Messages among those to be sent that are not the service's."""

    # --- the worker ---------------------------------------------------------------------------------------------------

    def receive(self, socket: str, messages: Sequence[Frames], now: float) -> None:
        """Give a batch of messages to the service; what came through the door is the worker's, or a task."""
        if socket != DOOR:
            super().receive(socket, messages, now)
            return
        for frames in messages:
            sends, task = self._worker.receive(frames, now)
            self._say(sends)
            if task is not None:
                self._take(task, now)
        self._look_ahead()

    def _take(self, task: InnerTask, now: float) -> None:
        """Have the service called with a task, as if a peer had sent a request."""
        if len(task.body) > self._most or any(len(frame) > self._largest for frame in task.body):
            self.sends += self._worker.reply(
                task, (), code=Code.TOO_LARGE, reason=f"this service takes frames of at most {self._largest} bytes"
            )
            return
        ticket = b"\0%b%d" % (self._plan.secret, next(self._numbers))
        self._open[ticket] = task
        self._expiry.set(ticket, now + self._patience(task), ticket)
        failed = self.counts.errors
        super().receive(self._socket, [(ticket, b"", *task.body)], now)
        if ticket in self._open and (self.counts.errors > failed or self.quarantined):
            self._fail(ticket, Code.FAILURE, "the service failed; the broker's log says how")

    def _patience(self, task: InnerTask) -> float:
        """Say after how long a task is forgotten; the broker, whose clock began earlier, has told its client then."""
        asked = task.options.get("timeout")
        wanted = asked / 1000 if type(asked) is int and asked >= 0 else self._plan.task_timeout
        return min(wanted, self._plan.max_task_timeout)

    def next_deadline(self) -> float | None:
        """Say when the service wants to be called, or the worker has something to say."""
        due, door = super().next_deadline(), self._door_due
        if door == math.inf or self.quarantined:
            return due
        return door if due is None or door < due else due

    def on_deadline(self, now: float) -> None:
        """Call the service if something is due, and let the worker speak."""
        if self._door_due <= now and not self.quarantined:
            if not self._opened:
                self._opened = True
                self._say(self._worker.offer((self.service.name,), now))
            if self._worker.due <= now:
                self._say(self._worker.on_deadline(now))
            for ticket in self._expiry.take(now):
                self._fail(ticket, Code.DEADLINE, "the service did not answer in time")
            self._look_ahead()
        super().on_deadline(now)

    def _say(self, sends: Sequence[Send]) -> None:
        """Send what is the worker's own business, and no answer of the service."""
        self.sends += sends
        self._uncounted += len(sends)

    def _look_ahead(self) -> None:
        expiry = self._expiry.next() if self._open else None
        self._door_due = self._worker.due if expiry is None else min(expiry, self._worker.due)

    # --- answers ------------------------------------------------------------------------------------------------------

    def take_sends(self) -> list[Send]:
        """Give all that waits to be sent; answers to tasks among it go through the door."""
        sends = super().take_sends()
        if not self._open:
            return sends
        kept: list[Send] = []
        for send in sends:
            ticket = _first_frame(send, self._socket)
            # the answer to a ticket that is over stays: nobody has that routing id, so it is counted as undelivered
            kept += [send] if ticket not in self._open else self._answer(ticket, send[1])
        return kept

    def _answer(self, ticket: bytes, frames: Frames) -> list[Send]:
        task = self._open.pop(ticket)
        self._expiry.remove(ticket)
        if len(frames) < 2 or len(frames[1]):
            return self._worker.reply(task, (), code=Code.FAILURE, reason="the service answered in another envelope")
        return self._worker.reply(task, frames[2:])

    def _fail(self, ticket: bytes, code: Code, reason: str) -> None:
        task = self._open.pop(ticket)
        self._expiry.remove(ticket)
        self.sends += self._worker.reply(task, (), code=code, reason=reason)

    def sent(self, count: int, failures: Sequence[SendFailure], now: float) -> None:
        """Note the outcome of sending; what the worker said is not the service's business."""
        count, self._uncounted = count - self._uncounted, 0
        ours = [failure for failure in failures if failure.socket == DOOR]
        for failure in ours:
            self.counts.undelivered[DOOR, failure.reason] += 1
            self._worker.undelivered(failure.frames, now)
        if ours:
            self._look_ahead()
            failures = [failure for failure in failures if failure.socket != DOOR]
            count -= sum(failure.frames[1] == TASKREPLY for failure in ours)
        super().sent(count, failures, now)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _failed(self, where: str, error: BaseException, now: float) -> None:
        """Count an exception; a service that is put out answers its tasks no more, and its worker leaves."""
        super()._failed(where, error, now)
        if self.quarantined and self._opened:
            self._opened = False
            for ticket in list(self._open):
                self._fail(ticket, Code.UNAVAILABLE, "the service failed too often and is out of order")
            self._say(self._worker.leave())


def _first_frame(send: object, socket: str) -> bytes:
    """Give the routing id of a send; nothing if it goes elsewhere, or if it is none that could be sent at all."""
    if type(send) is not tuple or len(send) != 2 or send[0] != socket:
        return b""
    frames = send[1]
    return frames[0] if type(frames) is tuple and frames and isinstance(frames[0], bytes) else b""
