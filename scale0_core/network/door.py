"""Doors between the broker's own service and the services of plugins: tasks go in, answers come out.

A service that takes tasks is a worker of the broker without a connection. What the broker sends to such a worker is
given to the service as a request from a peer that does not exist: the routing id is a *ticket*, under which the answer
is taken out of what the service sends. A ticket has a secret in it, since a peer that chose the same routing id could
answer for the service, and take its answers.

Both hosts look for such messages only while there are some; all other traffic does not notice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.errors import ServiceFaultError
from scale0_core.network.dispatch import QUARANTINED
from scale0_core.network.hosting import DOOR, Host
from scale0_core.network.inner_worker import LARGEST_FRAME, MOST_FRAMES
from scale0_core.network.service import BrokerService
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import Code
from scale0_core.protocol.states import BrokerState
from scale0_core.service import Frames, Send, Service


def make_seat(service: Service, secret: bytes, *, plugin: str = "", limits: HostLimits | None = None) -> ServiceHost:
    """Make the host that fits a service: the broker's own has doors, and one that takes tasks may get one."""
    if isinstance(service, BrokerService):
        return BrokerSeat(service, plugin=plugin, limits=limits)
    socket = task_socket(service)
    if socket is None:
        return ServiceHost(service, plugin=plugin, limits=limits)
    return SeatWithDoor(service, socket, secret, plugin=plugin, limits=limits)


def task_socket(service: Service) -> str | None:
    """Give the name of the socket whose requests may come as tasks; None when there is none."""
    names = [name for name, endpoint in service.endpoints.items() if endpoint.tasks]
    if len(names) > 1:
        raise ValueError(f"only one socket of a service takes tasks, and here are {', '.join(names)}")
    return names[0] if names else None


class SeatWithDoor(ServiceHost):
    """Calls a service for its peers, like any host, and for tasks."""

    def __init__(
        self, service: Service, socket: str, secret: bytes, *, plugin: str = "", limits: HostLimits | None = None
    ) -> None:
        super().__init__(service, plugin=plugin, limits=limits)
        own = service.endpoints[socket]
        self._socket, self._secret = socket, secret
        self._largest, self._most = own.max_message, own.max_frames - 2
        self._blob_over = own.max_message if own.blob_over is None else own.blob_over
        self._open: dict[bytes, tuple[bytes, bytes]] = {}
        """The service's name and the task's number as they came, by the ticket."""
        self.answer: Callable[[Frames, float], None] | None = None
        """What takes a reply to the broker's service; None while the door is closed."""
        self.leave: Callable[[float], None] | None = None

    @property
    def open_tasks(self) -> int:
        """How many tasks the service has in hand."""
        return len(self._open)

    @property
    def may_rush(self) -> bool:
        """Not while tasks are open, whose answers are among what is sent."""
        return not self._open and super().may_rush

    def take_task(self, frames: Frames, now: float) -> None:
        """Have the service called with a task, as if a peer had sent a request."""
        service, number, *body = frames[4:]
        number = bytes(number)
        ticket = self._ticket(number)
        self._open[ticket] = (service, number)
        self._look_for_answers()
        if len(body) > self._most or any(len(frame) > self._largest for frame in body):
            reason = f"this service takes frames of at most {self._largest} bytes"
            self._fail(ticket, Code.TOO_LARGE, reason, now)
            return
        failed, self.task = self.counts.errors, number
        self._take(self._socket, [(ticket, b"", *map(self._as_delivered, body))], now)
        self.task = b""
        if ticket in self._open and (self.counts.errors > failed or self.quarantined):
            self._fail(ticket, Code.FAILURE, "the service failed; the broker's log says how", now)

    def forget(self, number: bytes) -> None:
        """Note that a task is over. An answer goes to nobody then, as to a peer that is gone."""
        self._open.pop(self._ticket(number), None)
        self._look_for_answers()

    def _ticket(self, number: bytes) -> bytes:
        # libzmq's own are \0 and 4 bytes, and those that peers choose are not known
        return b"\0%b%b" % (self._secret, number)

    def _as_delivered(self, frame: Any) -> bytes:
        """Give a frame as the service would get it from its own socket: as a blob only if it asked for that."""
        is_blob = not isinstance(frame, bytes) and len(frame) > self._blob_over
        return cast("bytes", frame) if is_blob else bytes(frame)

    # --- answers ------------------------------------------------------------------------------------------------------

    def _look_for_answers(self) -> None:
        """Look at what the service sends as long as a task is open, and not at all otherwise."""
        if self._open:
            self.take_sends = self._take_answers  # type: ignore[method-assign]
        else:
            self.__dict__.pop("take_sends", None)

    def _take_answers(self) -> list[Send]:
        kept: list[Send] = []
        for send in self._sort_sends():
            ticket = _first_frame(send, self._socket)
            if ticket in self._open:
                self._answer(ticket, send[1], self._now)
            else:
                kept.append(send)
        return self._unless_suspended(kept)

    def _answer(self, ticket: bytes, frames: Frames, now: float) -> None:
        try:
            if len(frames) < 2 or len(frames[1]):
                raise ServiceFaultError(f"service {self.service.name} answered a task in another envelope")
            body = tuple(map(_sendable, frames[2:]))
        except (TypeError, ServiceFaultError) as error:
            self._failed("send", error, now)
            if ticket in self._open:
                self._fail(ticket, Code.FAILURE, "the service's answer makes no sense; the broker's log says why", now)
            return
        if len(body) > MOST_FRAMES or any(len(frame) > LARGEST_FRAME for frame in body):
            reason = f"the answer is too large: {MOST_FRAMES} frames of {LARGEST_FRAME} bytes are the most"
            self._fail(ticket, Code.TOO_LARGE, reason, now)
            return
        self.counts.sent += 1
        self._reply(ticket, b"", body, now)

    def _fail(self, ticket: bytes, code: Code, reason: str, now: float) -> None:
        self._reply(ticket, wire.write_options(code=int(code), message=reason), (), now)

    def _reply(self, ticket: bytes, options: bytes, body: Frames, now: float) -> None:
        service, number = self._open.pop(ticket)
        self._look_for_answers()
        if self.answer is not None:
            self.answer((wire.BACKEND, wire.TASKREPLY, options, service, number, *body), now)

    # --- the end ------------------------------------------------------------------------------------------------------

    def _failed(self, where: str, error: BaseException, now: float) -> None:
        """Count an exception; a service that is put out ends its tasks and gets no more."""
        super()._failed(where, error, now)
        if self.quarantined and self.leave is not None:
            for ticket in list(self._open):
                self._fail(ticket, Code.UNAVAILABLE, QUARANTINED, now)
            leave, self.leave, self.answer = self.leave, None, None
            leave(now)


class BrokerSeat(ServiceHost):
    """Calls the broker's own service, and passes tasks through the doors of others."""

    def __init__(self, service: BrokerService, *, plugin: str = "", limits: HostLimits | None = None) -> None:
        super().__init__(service, plugin=plugin, limits=limits)
        self._own = service
        self._hosting, self._open = service.hosting, service.dispatcher.tasks
        self._doors: dict[bytes, SeatWithDoor] = {}
        self._others: list[ServiceHost] = []
        self._provider = ""
        service.on_state.append(self._pass_on_state)
        service.quarantined, service.resume = self._quarantined, self._resume
        self.pass_in: Callable[[SeatWithDoor, Frames, float], None] = SeatWithDoor.take_task
        """Gives a task to a service; the loop looks at the clock around it."""

    @property
    def may_rush(self) -> bool:
        """Never: any message may be a task that goes through a door."""
        return False

    @property
    def state(self) -> BrokerState:
        """The broker's state."""
        return self._own.state

    def rule(self, host: ServiceHost) -> None:
        """Have another service serve its peers only while this broker serves."""
        self._others.append(host)
        self._pass_on_state()

    def _pass_on_state(self) -> None:
        """Suspend all services while the broker is disabled or joining."""
        reason, drain_until = self._own.suspension
        for host in self._others:
            host.suspend(reason, drain_until)

    def _quarantined(self) -> list[dict[str, Any]]:
        """List the services that are quarantined, of which plugin, and why."""
        return [
            {"service": host.service.name, "plugin": host.plugin, "errors": host.counts.errors,
             "last_error": host.counts.last_error}
            for host in self._others
            if host.quarantined
        ]  # fmt: skip

    def _resume(self, name: str, now: float) -> list[str]:
        """Take the quarantined services of a plugin, or one by its own name, out of quarantine; return their names.

        Raise a Scale0Error if a socket cannot be opened again.
        """
        found = [host for host in self._others if host.quarantined and name in (host.plugin, host.service.name)]
        for host in found:
            host.resume()
            if isinstance(host, SeatWithDoor):
                self.open_door(host, self._provider, now)
        return [host.service.name for host in found]

    def open_door(self, host: SeatWithDoor, provider: str, now: float) -> None:
        """Let a service take tasks."""
        name, self._provider = host.service.name, provider
        self._doors[name.encode()] = host
        host.answer = lambda frames, now: self.receive(DOOR, [(name.encode(), *frames)], now)
        host.leave = lambda now: self._collect(self._hosting.leave(name, now))
        self._collect(self._hosting.host(Host(name, provider, self._look_for_tasks, host.forget), now))

    def _look_for_tasks(self) -> None:
        self.take_sends = self._take_tasks  # type: ignore[method-assign]

    def _take_tasks(self) -> list[Send]:
        self.__dict__.pop("take_sends", None)
        kept: list[Send] = []
        for send in ServiceHost.take_sends(self):
            if send[0] == DOOR:
                if bytes(send[1][5]) in self._open:  # else it was cancelled before it was passed in
                    self.pass_in(self._doors[send[1][0]], send[1], self._now)
            else:
                kept.append(send)
        return kept


def _first_frame(send: object, socket: str) -> bytes:
    """Give the routing id of a send; nothing if it goes elsewhere, or if it is none that could be sent at all."""
    if type(send) is not tuple or len(send) != 2 or send[0] != socket:
        return b""
    frames = send[1]
    return frames[0] if type(frames) is tuple and frames and isinstance(frames[0], bytes) else b""


def _sendable(frame: Any) -> bytes:
    """Insist that a frame is one: a wrong one would be a fault of the broker's own service, which passes it on."""
    if isinstance(frame, bytes):
        return frame
    if isinstance(frame, bytearray | memoryview):
        return bytes(frame)
    memoryview(frame)  # a blob; anything else is a TypeError
    return cast("bytes", frame)
