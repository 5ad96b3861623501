"""The worker's side of the Scale0 protocol, for services. Without I/O.

A service that the core runs has no connection to look for and no thread to wait in, as a worker of ``client/`` has. Its
socket connects to the broker in its own process, ``@scale0``, or to the backend of another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import NamedTuple

from scale0_core.logs import get_logger, printable
from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Message, Options
from scale0_core.service import KIB, MIB, Endpoint, Frames, Send, SocketKind

LOG = get_logger("worker")

RETRY_AFTER = 5.0
"""Seconds after which what was not answered is said again."""
AGAIN_AFTER = 0.05
"""Seconds after which the error that stands for a reply that could not be sent is tried."""
FIRST_INTERVAL = 2.5
LARGEST_FRAME = MIB
"""Bytes that the broker takes in one frame: it ends the connection of who sends more."""
MOST_FRAMES = wire.MOST_FRAMES - 6
"""Frames in the body of a task or a reply: the others are a routing id, header, command, options, service and id."""


class WorkerTask(NamedTuple):
    """A task for a service."""

    service: bytes
    number: bytes
    options: Options
    body: Frames


class WorkerCancel(NamedTuple):
    """A task that nobody waits for any more. It is answered all the same, with code 410: that frees its slot."""

    number: bytes


class _State(Enum):
    AWAY = "nothing to offer, or gone"
    CHECKING = "CHECKCONFIG sent"
    OFFERING = "READY sent"
    SERVING = "READYOK received"


class ProtocolWorker:
    """Says what to send on one socket of a service, which is to open ``endpoint(address)`` under that name.

    :param cancels: the service takes an ``WorkerCancel``.
    """

    def __init__(
        self, socket: str, identity: str, *, window: int, metadata: Mapping[str, str] | None = None,
        cancels: bool = False,
    ) -> None:  # fmt: skip
        self.identity = identity
        self.due = math.inf
        """When there is something to say; infinity when there is not."""
        self.malformed = 0
        self._socket, self._window, self._metadata, self._cancels = socket, window, dict(metadata or {}), cancels
        self._state = _State.AWAY
        self._services: tuple[str, ...] = ()
        self._version: read.Version | None = None
        self._interval = FIRST_INTERVAL
        self._say_next = math.inf
        self._again: dict[bytes, Send] = {}
        self._broken: set[bytes] = set()

    @staticmethod
    def endpoint(backend: str = "@scale0", blob_over: int | None = 8 * KIB) -> Endpoint:
        """Give the socket to open for an address of a broker's backend."""
        return Endpoint(
            kind=SocketKind.DEALER, connect=backend, blob_over=blob_over, high_water=20_000, max_message=LARGEST_FRAME
        )

    # --- what is offered ----------------------------------------------------------------------------------------------

    def offer(self, services: Iterable[str], now: float) -> list[Send]:
        """Let the broker know which services there are; with none, leave."""
        wanted = tuple(services)[: read.MOST_SERVICES]
        if wanted == self._services:
            return []
        self._services = wanted
        if not wanted:
            return self.leave()
        if self._state is _State.AWAY:
            return self._negotiate(now)
        # while both still negotiate, READY will tell
        return [self._ready(now)] if self._state in (_State.OFFERING, _State.SERVING) else []

    def leave(self) -> list[Send]:
        """Take leave of the broker."""
        known = self._state is not _State.AWAY
        self._state, self._services, self._say_next = _State.AWAY, (), math.inf
        self._look_ahead()
        return [self._say(wire.DISCONNECT, reason="leaving")] if known else []

    # --- what the broker says -----------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> tuple[list[Send], WorkerTask | WorkerCancel | None]:
        """Take what the broker says: something to say in turn, a task, or that one is cancelled."""
        try:
            message = wire.read_message(frames, routed=False)
            if message.header != wire.BACKEND:
                raise MalformedError("the header of a backend is S0W01")
            if message.command == wire.TASK:
                return [], self._task(message)
            if message.command == wire.CANCEL:
                return [], self._cancelled(message)
            return self._heard(message, now), None
        except MalformedError as error:
            self.malformed += 1
            LOG.warning("the broker sent something that cannot be read", worker=self.identity, reason=error.reason)
            return self._refuse_task(frames, error), None

    def _task(self, message: Message) -> WorkerTask:
        if len(message.body) < 2:
            raise MalformedError("a TASK has a service, an id and a payload")
        service, number, *body = message.body
        return WorkerTask(bytes(service), bytes(number), message.options, tuple(body))

    def _cancelled(self, message: Message) -> WorkerCancel:
        if len(message.body) != 2:
            raise MalformedError("a CANCEL has a service and an id")
        return WorkerCancel(bytes(message.body[1]))

    def _refuse_task(self, frames: Frames, error: MalformedError) -> list[Send]:
        """Answer a task that cannot be read, if at least its number can."""
        if len(frames) < 5 or frames[0] != wire.BACKEND or frames[1] != wire.TASK:
            return []
        return [self._error(bytes(frames[3]), bytes(frames[4]), error.code, error.reason)]

    def _heard(self, message: Message, now: float) -> list[Send]:
        command, options, state = message.command, message.options, self._state
        if state is _State.AWAY:
            return []
        if command in (wire.CONFIG, wire.CONFIGACK) and state is _State.CHECKING:
            self._version = read.version(options)
            return [self._ready(now)]
        if command == wire.READYOK and state in (_State.OFFERING, _State.SERVING):
            self._accepted(options, now)
        elif command == wire.HEARTBEAT and "reply_to" not in options and state is _State.SERVING:
            return [self._beat(now)]
        elif command == wire.FORCENEGOTIATE:
            # at once from one that served; who says it to each new offer is asked again in a while
            return self._negotiate(now) if state is _State.SERVING else []
        elif command == wire.DISCONNECTERROR:
            reason = printable(options.get("message", ""))
            LOG.warning("the broker refuses; asked again in a while", worker=self.identity, reason=reason)
            self._wait(_State.CHECKING, now + RETRY_AFTER)
        return []

    def _accepted(self, options: Options, now: float) -> None:
        self._interval = read.interval(options) or FIRST_INTERVAL
        refused = read.texts(options, "refused")
        if refused:
            names = ", ".join(map(printable, refused))
            LOG.warning("the broker does not manage these services", worker=self.identity, services=names)
        self._wait(_State.SERVING, now + self._interval)

    # --- what is sent -------------------------------------------------------------------------------------------------

    def reply(
        self, task: WorkerTask, body: Frames, *, more: bool = False, code: int = 0, reason: str = ""
    ) -> list[Send]:
        """Answer a task; ``more`` announces another part. With a code it is an error."""
        if task.number in self._broken:
            if not more:
                self._broken.discard(task.number)
            return []  # its error is told already, or will be
        if len(body) > MOST_FRAMES or any(len(frame) > LARGEST_FRAME for frame in body):
            if more:
                self._broken.add(task.number)
            told = f"the reply is too large: {MOST_FRAMES} frames of {LARGEST_FRAME} bytes are the most"
            return [self._error(task.service, task.number, Code.TOO_LARGE, told)]
        if code:
            return [self._error(task.service, task.number, code, reason, body)]
        options = wire.write_options(more=True) if more else b""
        return [(self._socket, (wire.BACKEND, wire.TASKREPLY, options, task.service, task.number, *body))]

    def undelivered(self, frames: Frames, now: float) -> None:
        """Take back what could not be sent. Instead of a reply an error is sent soon: no stream has a hole."""
        if len(frames) < 5 or frames[1] != wire.TASKREPLY:
            return  # all else is said again in time
        service, number = bytes(frames[3]), bytes(frames[4])
        if read.flag(wire.read_options(frames[2]), "more"):
            self._broken.add(number)
        self._again[number] = self._error(service, number, Code.UNAVAILABLE, "the reply could not be sent")
        self.due = min(self.due, now + AGAIN_AFTER)

    def on_deadline(self, now: float) -> list[Send]:
        """Send a heartbeat, or say again what was not answered."""
        sends = list(self._again.values())
        self._again.clear()
        if self._say_next <= now:
            sends += [self._beat(now)] if self._state is _State.SERVING else self._negotiate(now)
        self._look_ahead()
        return sends

    def _negotiate(self, now: float) -> list[Send]:
        self._wait(_State.CHECKING, now + RETRY_AFTER)
        return [self._say(wire.CHECKCONFIG, identity=self.identity, services=list(self._services))]

    def _ready(self, now: float) -> Send:
        if self._state is not _State.SERVING:
            self._wait(_State.OFFERING, now + RETRY_AFTER)
        return self._say(
            wire.READY, services=list(self._services), window=self._window, config_version=self._version,
            metadata=self._metadata or None, cancel=self._cancels or None,
        )  # fmt: skip

    def _beat(self, now: float) -> Send:
        self._wait(_State.SERVING, now + self._interval)
        return self._say(wire.HEARTBEAT, config_version=self._version)

    def _error(self, service: bytes, number: bytes, code: int, reason: str, body: Frames = ()) -> Send:
        options = wire.write_options(code=int(code), message=reason)
        return (self._socket, (wire.BACKEND, wire.TASKREPLY, options, service, number, *body))

    def _say(self, command: bytes, /, **options: object) -> Send:
        return (self._socket, (wire.BACKEND, command, wire.write_options(options)))

    def _wait(self, state: _State, until: float) -> None:
        self._state, self._say_next = state, until
        self._look_ahead()

    def _look_ahead(self) -> None:
        self.due = min(self._say_next, self.due) if self._again else self._say_next
