"""The calls that a client has open: numbers, deadlines, stages, and sending again. Without I/O.

Each time a call is sent it gets a number of its own, so a late reply is never taken for another's. A call that may be
repeated (``retry``) is sent again when the connection was lost or the broker could not place it; others are sent once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Protocol

from scale0_core.client.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    RemoteError,
    Stage,
    TooLargeError,
    error_for,
)
from scale0_core.logs import printable
from scale0_core.parts.timers import Deadlines
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Options
from scale0_core.protocol.options import LONGEST_SERVICE
from scale0_core.service import MIB, Frames

LARGEST_FRAME = MIB
MOST_PAYLOAD_FRAMES = 24

GRAIN = 0.01
MARGIN = 0.2
"""The broker is given a little less time than the caller has, so that its answer, which knows more, comes first."""

RETRIED = frozenset((404, 429, 503))
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class Reply(tuple[bytes, ...]):
    """What a service answered: a tuple of frames. ``body`` is all of it in one piece, ``text`` the same decoded."""

    __slots__ = ()

    @property
    def body(self) -> bytes:
        """All frames, one after the other."""
        return b"".join(self)

    @property
    def text(self) -> str:
        """All frames as text in UTF-8."""
        return self.body.decode()


class Sink(Protocol):
    """Where a call's outcome goes: one final reply or one error."""

    def final(self, reply: Reply) -> None:
        """Take the reply; for a stream it may be empty."""

    def fail(self, error: CallError) -> None:
        """Take the error."""


class Call:
    """One call, from when it is made until it has a reply or an error.

    With ``on_part``, the parts of a streamed reply go there as they come; without, they are part of the final reply.
    """

    __slots__ = (
        "collected", "deadline", "done", "last_error", "numbers", "on_part", "payload", "retry", "sends", "sent", "seq",
        "service", "sink", "timeout",
    )  # fmt: skip

    def __init__(
        self, service: str, payload: Frames, sink: Sink, *, timeout: float, retry: bool = False,
        on_part: Callable[[Reply], None] | None = None,
    ) -> None:  # fmt: skip
        self.service, self.payload, self.sink = service.encode(), payload, sink
        self.timeout, self.retry, self.on_part = timeout, bool(retry), on_part
        self.deadline = 0.0
        self.sent: float | None = None
        self.sends = 0
        self.seq = 0
        self.numbers: list[bytes] = []
        self.collected: list[bytes] = []
        self.last_error: CallError | None = None
        self.done = False


def check_call(service: str, payload: Iterable[bytes]) -> Frames:
    """Give the payload as frames that a broker takes, or raise what is wrong with it."""
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


class Calls:
    """All open calls of one client. What is to be sent is appended to ``out``."""

    def __init__(self, out: list[Frames], *, retries: int, random: Random) -> None:
        self.address = ""
        self.heard = float("-inf")
        self.online = False
        self.late = 0
        self._out, self._retries, self._random = out, retries, random
        self._numbers = count(1)
        self._open: dict[Call, None] = {}
        self._by_number: dict[bytes, Call] = {}
        self._deadlines: Deadlines[Call, Call] = Deadlines(GRAIN)
        self._pauses: Deadlines[Call, Call] = Deadlines(GRAIN)
        self._options: dict[tuple[int, bool], bytes] = {}

    def __len__(self) -> int:
        return len(self._open)

    # --- a call's life ----------------------------------------------------------------------------------------------

    def open(self, call: Call, now: float) -> None:
        """Take a new call; it is sent at once, or as soon as there is a connection."""
        call.deadline = now + call.timeout
        self._open[call] = None
        self._deadlines.set(call, call.deadline - GRAIN, call)
        if self.online:
            self._send(call, now)

    def cancel(self, call: Call) -> None:
        """Let go of a call that nobody waits for any more; the broker and the worker are told."""
        self._close(call)

    def _send(self, call: Call, now: float) -> None:
        number = next(self._numbers).to_bytes(8, "big")
        call.numbers.append(number)
        self._by_number[number] = call
        call.sent, call.seq = now, 0
        call.sends += 1
        call.collected.clear()
        if not call.service:
            self._out.append((wire.FRONTEND, wire.PING, b"", number))
            return
        left = max(call.deadline - now, 0.002)
        options = self._terms(max(1, int((left - min(MARGIN, left / 4)) * 1000)), call.retry)
        self._out.append((wire.FRONTEND, wire.TASK, options, call.service, number, *call.payload))

    def _terms(self, milliseconds: int, retry: bool) -> bytes:
        options = self._options.get((milliseconds, retry))
        if options is None:
            if len(self._options) > 1000:
                self._options.clear()
            options = wire.write_options(timeout=milliseconds, retry=retry or None)
            self._options[milliseconds, retry] = options
        return options

    def _close(self, call: Call) -> bool:
        if call.done:
            return False
        call.done = True
        del self._open[call]
        for number in call.numbers:
            # what is still there is under way: a call that has its reply has no more use for it either
            if self._by_number.pop(number, None) is not None and self.online and call.service:
                self._out.append((wire.FRONTEND, wire.CANCEL, b"", call.service, number))
        self._deadlines.remove(call)
        self._pauses.remove(call)
        call.payload = ()
        return True

    def _finish(self, call: Call, reply: Reply) -> None:
        if self._close(call):
            call.sink.final(reply)

    def _fail(self, call: Call, error: CallError) -> None:
        if self._close(call):
            call.sink.fail(error)

    # --- what the broker says ---------------------------------------------------------------------------------------

    def reply(self, options: bytes, body: Frames) -> None:
        """Take a TASKREPLY: service, number, payload."""
        call = self._by_number.get(body[1])
        if call is None or (body[1] != call.numbers[-1] and options):
            self.late += 1
            return
        if not options:
            frames = body[2:]
            if call.collected and body[1] == call.numbers[-1]:
                frames = (*call.collected, *frames)
            del self._by_number[body[1]]
            self._finish(call, Reply(frames))
            return
        terms = wire.read_options(options)
        if terms.get("more") is not True:
            del self._by_number[body[1]]
        if "code" in terms:
            code, message = _code(terms)
            late = code == Code.DEADLINE  # a worker that waits for others has deadlines too
            error = error_for(code, message, _name(call), self.address) if late else None
            self._fail(call, error or RemoteError(message, code, service=_name(call)))
            return
        self._part(call, terms, body[2:])

    def _part(self, call: Call, terms: Options, frames: Frames) -> None:
        """Take one of several replies; ``seq`` counts them, so that a hole is noticed."""
        seq = terms.get("seq", call.seq)
        if seq != call.seq:
            self._fail(call, self._hole(call, int(seq) - call.seq if isinstance(seq, int) else 1))
            return
        call.seq += 1
        if terms.get("more") is not True:
            self._finish(call, Reply((*call.collected, *frames)))
        elif call.on_part is not None:
            call.on_part(Reply(frames))
        else:
            call.collected.extend(frames)

    def pong(self, body: Frames) -> None:
        """Take a PONG that answers a call of the user's."""
        call = self._by_number.get(body[0]) if body else None
        if call is not None:
            self._finish(call, Reply())

    def error(self, terms: Options, body: Frames, now: float) -> None:
        """Take an ERROR about a task; where it may help, the call is sent again after a pause."""
        call = self._by_number.pop(bytes(body[1]), None)
        if call is None or body[1] != call.numbers[-1]:
            self.late += 1
            return
        code, message = _code(terms)
        error = error_for(code, message, _name(call), self.address)
        pause = self._pause(call)
        if code not in RETRIED or not self._may_repeat(call) or now + pause >= call.deadline:
            self._fail(call, error)
            return
        call.last_error = error
        call.sent = None
        self._pauses.set(call, now + pause, call)

    def _pause(self, call: Call) -> float:
        longest: float = min(FIRST_PAUSE * 2 ** max(call.sends - 1, 0), LONGEST_PAUSE)
        return longest * self._random.uniform(0.5, 1.0)

    def _may_repeat(self, call: Call) -> bool:
        """Tell whether a call may be sent again; a stream of which parts were handed on cannot start anew."""
        repeatable = call.retry or not call.service
        return repeatable and call.sends <= self._retries and not (call.on_part and call.seq)

    # --- the connection ---------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Send what has waited for a connection."""
        self.online = True
        for call in list(self._open):
            if call.sent is None and call not in self._pauses:
                self._send(call, now)

    def disconnected(self) -> None:
        """Give up the calls that were under way, but for those that may be sent again."""
        self.online = False
        for call in [call for call in self._open if call.sent is not None]:
            if self._may_repeat(call):
                for number in call.numbers:
                    self._by_number.pop(number, None)
                call.sent = None
            else:
                self._fail(call, self._lost(call))

    def resume(self, now: float) -> None:
        """After a silence of the broker, send again what it may have lost, unless a reply comes soon."""
        for call in self._open:
            if call.sent is not None and self._may_repeat(call):
                self._pauses.set(call, now + self._random.uniform(0.2, 0.5), call)

    def close(self, error: CallError) -> None:
        """End all calls; the broker is told by DISCONNECT, which cancels them all."""
        self.online = False
        for call in list(self._open):
            self._fail(call, error)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when a call times out or is to be sent again."""
        ends, again = self._deadlines.next(), self._pauses.next()
        return ends if again is None else again if ends is None else min(ends, again)

    def on_deadline(self, now: float) -> None:
        """End the calls whose time is up; send those whose pause is over."""
        for call in self._deadlines.take(now):
            self._fail(call, call.last_error or self._timed_out(call))
        for call in self._pauses.take(now):
            if self.online:
                self._send(call, now)
            else:
                call.sent = None

    def stage(self, call: Call) -> Stage:
        """Say how far a call has come."""
        if call.sent is None:
            return Stage.WORKER if call.last_error else Stage.CONNECTING
        if call.seq:
            return Stage.REPLY
        return Stage.WORKER if self.heard > call.sent else Stage.BROKER

    def _timed_out(self, call: Call) -> CallError:
        stage = self.stage(call)
        why = {
            Stage.CONNECTING: f"there is no connection to {self.address}",
            Stage.BROKER: f"the broker at {self.address} is connected but says nothing",
            Stage.WORKER: f"the broker at {self.address} is there, but no worker has answered",
            Stage.REPLY: f"{call.seq} parts of the reply came, but not its end",
        }[stage]
        remedy = "is the broker running, and is the address right? see: scale0 status"
        return CallTimedOutError(
            f"{_what(call)} timed out after {call.timeout:g} s while {stage.value}",
            why,
            "nothing was sent" if stage is Stage.CONNECTING else "it may have been carried out",
            remedy if stage in (Stage.CONNECTING, Stage.BROKER) else "give it more time, or add workers",
            service=_name(call),
            stage=stage,
        )

    def _lost(self, call: Call) -> CallError:
        return BrokerLostError(
            f"{_what(call)} has lost its connection to {self.address}",
            f"it broke while {self.stage(call).value}",
            "it may have been carried out",
            "call again, or use retry=True for services that may be called twice",
            service=_name(call),
            stage=self.stage(call),
        )

    def _hole(self, call: Call, missing: int) -> CallError:
        return BrokerLostError(
            f"{_what(call)} has a hole in its reply",
            f"{missing} parts are missing after the first {call.seq}: the broker could not deliver them in time",
            "the reply is not complete",
            "call again; read faster, or send fewer and larger parts",
            service=_name(call),
            stage=Stage.REPLY,
        )


def _name(call: Call) -> str:
    return call.service.decode()


def _what(call: Call) -> str:
    return f"the call of {printable(call.service)}" if call.service else "PING"


def _code(terms: Options) -> tuple[int, str]:
    code, message = terms.get("code"), terms.get("message", "")
    if type(code) is not int or not isinstance(message, str):
        raise MalformedError("an error has a code and a message")
    return code, message
