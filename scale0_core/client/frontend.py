"""A client's side of the protocol: configuration, liveness, going to another broker; and how calls are written.

Without I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from scale0_core.client.errors import START, error_for
from scale0_core.client.kit.calls import Call, Calls
from scale0_core.client.kit.errors import CallError, RemoteError, Stage, TooLargeError, closed_error, no_broker
from scale0_core.client.kit.route import Route
from scale0_core.client.kit.sessions import Limits
from scale0_core.client.storage import JSON, Stored, other_type, read_config
from scale0_core.logs import get_logger, printable
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Message, Options
from scale0_core.protocol.options import LONGEST_SERVICE
from scale0_core.service import MIB, Frames

LOG = get_logger("client")

PING_AFTER = 1.0
"""Seconds without a word, with calls open, after which the broker is asked whether it is there."""

UNREACHED_AFTER = 3.0
"""Seconds without a connection after which another broker is tried, if one is known."""

LIVENESS = 3


LARGEST_FRAME = MIB
MOST_PAYLOAD_FRAMES = 24


def check_call(service: str, payload: Iterable[bytes]) -> Frames:
    """Return the payload as frames that a broker takes, or raise what is wrong with it."""
    if not 0 < len(service.encode()) <= LONGEST_SERVICE:
        raise ValueError(f"the name of a service has 1 to {LONGEST_SERVICE} bytes: {service!r}")
    frames = tuple(payload)
    for frame in frames:
        if not isinstance(frame, bytes | bytearray | memoryview):
            raise TypeError(f"a payload is bytes, not {type(frame).__name__}")
    if len(frames) > MOST_PAYLOAD_FRAMES or any(len(frame) > LARGEST_FRAME for frame in frames):
        raise TooLargeError(
            f"the call of {printable(service)} is too large",
            f"a call has at most {MOST_PAYLOAD_FRAMES} frames of at most {LARGEST_FRAME} bytes",
            "nothing was sent",
            "send less in one call",
            service=service,
            stage=Stage.CONNECTING,
        )
    return tuple(bytes(frame) for frame in frames)


def ping_call(timeout: float) -> Call:
    """Make a call that the broker answers itself, by PONG; it has no service."""
    return Call("", (), timeout=timeout, retry=True)


class TaskCodec:
    """Calls as TASKs of the Scale0 protocol."""

    serial = False
    retried = frozenset((404, 429, 503))
    look_here = "is the broker running, and is the address right? see: scale0 status"
    look_there = ""

    def options(self, milliseconds: int, retry: bool, terms: Any) -> bytes:
        """Write the options of a TASK."""
        return wire.write_options(timeout=milliseconds, retry=retry or None)

    def request(self, ident: bytes, call: Call, options: bytes) -> Frames:
        """Write TASK, or PING."""
        if not call.service:
            return (wire.FRONTEND, wire.PING, b"", ident)
        return (wire.FRONTEND, wire.TASK, options, call.service, ident, *call.body)

    def cancel(self, ident: bytes, call: Call) -> Frames | None:
        """Write CANCEL."""
        return (wire.FRONTEND, wire.CANCEL, b"", call.service, ident) if call.service else None

    def refusal(self, code: int, message: str, service: str, address: str) -> CallError:
        """Make the error for an ERROR about a task."""
        return error_for(code, message, service, address)


class ClientSession:
    """A client's side of its connection: configuration, liveness, calls."""

    limits = Limits()

    def __init__(
        self, route: Route, *, identity: str, config_type: str = JSON, stored: Stored | None = None, retries: int = 5,
        random: Random | None = None, store: Callable[[Stored], None] = lambda stored: None,
        wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        self.route, self.identity, self.stored = route, identity, stored
        self.connection = 0
        self.reached = ""
        self.linked = False
        self.silent = False
        self.malformed = 0
        self.out: list[Frames] = []
        self.ended = False
        self.calls = Calls(
            TaskCodec(), self.out, retries=retries, random=random or Random(), address=self.address,  # noqa: S311
        )  # fmt: skip
        self._config_type, self._store, self._wait_for_broker = config_type, store, wait_for_broker
        self._pinged: float | None = None
        self._busy_since = self._unlinked_since = 0.0
        if stored is not None:
            route.config = stored.config

    @property
    def address(self) -> str:
        """Where to connect."""
        return self.route.here.frontend

    # --- the connection ---------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to connect."""
        self.connection += 1
        self._unlinked_since = now

    def on_linked(self, now: float) -> None:
        """Validate the configuration, and send what has waited."""
        self.linked, self.silent, self._pinged = True, False, None
        self._busy_since = now
        self.route.linked(self.reached)
        if self.route.asking:
            self._need_broker()
        else:
            self._check_config()
            self.calls.connected(now)

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone; the engine makes another one by itself."""
        if not self.linked:
            return
        self._disconnected(now)
        if self.route.here != self.route.told:
            self.route.back()
            self._reconnect(now)

    def on_nobody(self, reason: str, now: float) -> None:
        """Fail what is open, unless another broker is known, which is tried, or the broker is to be waited for."""
        if self._wait_for_broker or not len(self.calls):
            return
        self._elsewhere(now)
        if self.route.here == self.route.told:
            self.calls.fail_all(no_broker(self.route.told.frontend, reason, START))

    def _reconnect(self, now: float) -> None:
        self.connection += 1
        self._disconnected(now)
        self.calls.address = self.address

    def _disconnected(self, now: float) -> None:
        self.linked, self._unlinked_since = False, now
        self.out.clear()  # meant for the connection that is gone
        self.calls.disconnected()

    def _elsewhere(self, now: float) -> None:
        before = self.address
        if self.route.elsewhere():
            LOG.warning("the broker cannot be reached, another is tried", broker=before, other=self.address)
            self._reconnect(now)

    # --- what the user does -----------------------------------------------------------------------------------------

    def open(self, call: Call, now: float) -> None:
        """Make a call."""
        if not len(self.calls):
            self._busy_since = now
        self.calls.open(call, now)

    def cancel(self, call: Call) -> None:
        """Let go of a call."""
        self.calls.cancel(call)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Fail all calls and take leave: DISCONNECT cancels them all."""
        if self.ended:
            return
        self.ended = True
        self.calls.close(closed_error(error))
        if self.linked:
            self.out.append((wire.FRONTEND, wire.DISCONNECT, b""))

    # --- what the broker says ---------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message from the broker."""
        self.calls.heard = now
        self._pinged = None
        if self.silent:
            self.silent = False
            self.calls.resume(now)
        try:
            if len(frames) > 4 and frames[1] == wire.TASKREPLY and frames[0] == wire.FRONTEND:
                if frames[2]:
                    self._on_reply(wire.read_options(frames[2]), frames[4], frames[5:])
                else:
                    self.calls.final(frames[4], frames[5:])
            else:
                self._receive_any(wire.read_message(frames, routed=False), now)
        except MalformedError as error:
            self.malformed += 1
            LOG.warning("the broker sent something that cannot be read", broker=self.address, reason=error.reason)

    def _on_reply(self, told: Options, ident: bytes, payload: Frames) -> None:
        calls = self.calls
        if "code" in told:
            calls.failed(ident, lambda call: self._failure(call, *_code(told)))
        elif told.get("more") is True:
            calls.part(ident, payload, told.get("seq"))
        else:
            calls.final(ident, payload, told.get("seq"))

    def _failure(self, call: Call, code: int, message: str) -> CallError:
        """Make the error for what a worker reported; one that waits for others has deadlines too."""
        if code == Code.DEADLINE:
            return error_for(code, message, call.name, self.address)
        return RemoteError(message, code, service=call.name)

    def _receive_any(self, message: Message, now: float) -> None:
        command = message.command
        if command == wire.ERROR:
            self._on_error(message, now)
        elif command == wire.PONG:
            if message.body:
                self.calls.final(bytes(message.body[0]), ())
        elif command == wire.CONFIG:
            self._on_config(read_config(message))
        elif command == wire.CONFIGACK:
            self._on_ack(message)
        elif command == wire.FORCENEGOTIATE:
            self._check_config()
        elif command == wire.CHANGEBROKER:
            self._on_change(message, now)
        elif command == wire.DISCONNECTERROR:
            LOG.warning("the broker objects", broker=self.address, **_told(message))

    def _on_error(self, message: Message, now: float) -> None:
        if len(message.body) >= 2:
            self.calls.refused(bytes(message.body[1]), *_code(message.options), now)
        elif message.options.get("code") == 415:
            kind = other_type(message.options.get("types"))
            if kind != self._config_type:
                self._config_type = kind
                self._check_config()
        elif self.route.asking:
            self._elsewhere(now)

    def _on_config(self, stored: Stored | None) -> None:
        if stored is None:
            return
        self.stored = stored
        self.route.config = stored.config or self.route.config
        self.route.arrived()
        self._store(stored)

    def _on_ack(self, message: Message) -> None:
        version = message.options.get("config_version")
        if isinstance(version, int | str) and (self.stored is None or self.stored.version != version):
            self.stored = Stored(version)
        self.route.arrived()

    def _on_change(self, message: Message, now: float) -> None:
        asked = self.route.asking
        if self.route.sent_to(message.options):
            self._reconnect(now)
        elif asked:
            self._check_config()
            self.calls.connected(now)

    def _check_config(self) -> None:
        stored = self.stored
        options = wire.write_options(
            identity=self.identity, services=[], config_type=self._config_type or None,
            config_version=stored.version if stored else None, config_hash=stored.hash or None if stored else None,
        )  # fmt: skip
        self.out.append((wire.FRONTEND, wire.CHECKCONFIG, options))

    def _need_broker(self) -> None:
        options = wire.write_options(
            identity=self.identity, services=[], group=self.route.here.group, unreachable=self.route.unreachable
        )
        self.out.append((wire.FRONTEND, wire.NEEDBROKER, options))

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        calls, check = self.calls.next_deadline(), self._check_at()
        return calls if check is None else check if calls is None else min(calls, check)

    def on_deadline(self, now: float) -> None:
        """End calls whose time is up; look whether the broker is there."""
        self.calls.on_deadline(now)
        check = self._check_at()
        if check is None or check > now:
            return
        if not self.linked:
            self._unlinked_since = now
            self._elsewhere(now)
        elif self._pinged is None:
            self._ping(now)
        else:
            self.silent = True
            self._ping(now)
            self._elsewhere(now)

    def _ping(self, now: float) -> None:
        self._pinged = now
        self.out.append((wire.FRONTEND, wire.PING, b""))

    def _check_at(self) -> float | None:
        if not len(self.calls):
            return None
        if not self.linked:
            return self._unlinked_since + UNREACHED_AFTER
        if self._pinged is None:
            return max(self.calls.heard, self._busy_since) + PING_AFTER
        return self._pinged + self._patience()

    def _patience(self) -> float:
        config = self.route.config
        return LIVENESS * (config.default_heartbeat_interval if config else 2500) / 1000


def _code(told: Options) -> tuple[int, str]:
    code, message = told.get("code"), told.get("message", "")
    if type(code) is not int or not isinstance(message, str):
        raise MalformedError("an error has a code and a message")
    return code, message


def _told(message: Message) -> dict[str, str]:
    return {name: printable(message.options.get(name, "")) for name in ("code", "message")}
