"""Tasks for services that take requests: each is a request of a peer that does not exist.

The routing id of that peer is a *ticket*, under which the answer is taken out of what the service sends. A ticket has a
secret in it, since a peer that chose the same routing id could answer for the service, and take its answers. Whoever
gives the tasks binds the in-process address ``@tasks`` and exchanges messages of these words with each service:

    READY | GONE                      the service takes tasks; takes none any more
    TASK number body... | FORGET number     a request; nobody waits for its answer any more
    DONE number body... | FAILED number why text    its answer; why there is none
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0_core.container.in_process import Switchboard, as_delivered, fits, sendable
from scale0_core.errors import ServiceFaultError
from scale0_core.service import Endpoint, Frames, Send

if TYPE_CHECKING:
    from scale0_core.container.host import ServiceHost

TASKS = "@tasks"
READY, GONE, TASK, FORGET, DONE, FAILED = b"READY", b"GONE", b"TASK", b"FORGET", b"DONE", b"FAILED"
TOO_LARGE, RAISED, QUARANTINED = b"too large", b"raised", b"quarantined"
"""Why a task has failed."""
WHY_QUARANTINED = "quarantined: the service failed too often and is not called"


class TaskHost:
    """Gives a service tasks, and finds their answers. Looks at what the service sends only while tasks are open."""

    def __init__(self, host: ServiceHost, socket: str, endpoint: Endpoint, board: Switchboard, secret: bytes) -> None:
        self.routing_id = host.service.name.encode()
        self.open: dict[bytes, bytes] = {}
        """The numbers of tasks, by ticket."""
        self.host, self._socket, self._endpoint = host, socket, endpoint
        self._board, self._secret = board, secret
        self._posted: list[Frames] = []

    @property
    def reachable(self) -> bool:
        """Whether tasks can be sent here."""
        return not self.host.quarantined

    @property
    def ready(self) -> bool:
        """Whether the service can take tasks now: as many as its window allows, whatever else it does."""
        return True

    def say(self, *frames: bytes) -> str:
        """Send a message to whoever gives the tasks."""
        return self._board.to_binder(TASKS, self, frames)

    def post(self, frames: Frames) -> str:
        """Keep a message until it is delivered."""
        self._posted.append(frames)
        self._board.posted[self] = None
        return ""

    def deliver(self, now: float) -> int:
        """Give the service its tasks, but for those that are forgotten already."""
        posted, self._posted = self._posted, []
        self._board.posted.pop(self, None)
        forgotten = {frames[1] for frames in posted if frames[0] == FORGET}
        for frames in posted:
            if frames[0] == FORGET:
                self.open.pop(self._ticket(frames[1]), None)
            elif frames[1] not in forgotten:
                self._take(frames[1], frames[2:], now)
        return len(posted)

    def _take(self, number: bytes, body: Frames, now: float) -> None:
        """Have the service called with a task, as if a peer had sent a request."""
        host, ticket = self.host, self._ticket(number)
        self.open[ticket] = number
        request = (ticket, b"", *body)
        if not fits(request, self._endpoint):
            self._fail(ticket, TOO_LARGE, f"this service takes frames of at most {self._endpoint.max_message} bytes")
            return
        errors, host.task = host.counts.errors, number
        host.take(self._socket, [as_delivered(request, self._endpoint)], now)
        host.task = b""
        if ticket in self.open and (host.counts.errors > errors or host.quarantined):
            self._fail(ticket, RAISED, "the service failed; the broker's log says how")

    def _ticket(self, number: bytes) -> bytes:
        # libzmq's own are \0 and 4 bytes, and those that peers choose are not known
        return b"\0%b%b" % (self._secret, number)

    def take_answers(self, sends: list[Send], now: float) -> list[Send]:
        """Take the answers to tasks out of what the service sends."""
        kept: list[Send] = []
        for send in sends:
            ticket = _first_frame(send, self._socket)
            if ticket in self.open:
                self._answer(ticket, send[1], now)
            else:
                kept.append(send)
        return kept

    def _answer(self, ticket: bytes, frames: Frames, now: float) -> None:
        body = sendable(frames)
        if body is None or len(body) < 2 or len(body[1]):
            name = self.host.service.name
            self.host.failed("send", ServiceFaultError(f"the answer of service {name} to a task is malformed"), now)
            if ticket in self.open:
                self._fail(ticket, RAISED, "the service's answer makes no sense; the broker's log says why")
            return
        reason = self.say(DONE, self.open[ticket], *body[2:])
        if reason:
            self._fail(ticket, TOO_LARGE, "the answer is too large for a reply")
            return
        del self.open[ticket]
        self.host.counts.sent += 1

    def _fail(self, ticket: bytes, why: bytes, text: str) -> None:
        self.say(FAILED, self.open.pop(ticket), why, text.encode())

    def quarantined(self) -> None:
        """End all tasks, and take no more."""
        self._posted.clear()
        for ticket in list(self.open):
            self._fail(ticket, QUARANTINED, WHY_QUARANTINED)
        self.say(GONE)


def task_socket(endpoints: dict[str, Endpoint]) -> str | None:
    """Return the name of the socket whose requests may come as tasks; None when there is none."""
    names = [name for name, endpoint in endpoints.items() if endpoint.tasks]
    if len(names) > 1:
        raise ValueError(f"only one socket of a service takes tasks, and here are {', '.join(names)}")
    return names[0] if names else None


def _first_frame(send: object, socket: str) -> bytes:
    """Return the routing id of a send; nothing if it goes elsewhere, or if it is none that could be sent at all."""
    if type(send) is not tuple or len(send) != 2 or send[0] != socket:
        return b""
    frames = send[1]
    return frames[0] if type(frames) is tuple and frames and isinstance(frames[0], bytes) else b""
