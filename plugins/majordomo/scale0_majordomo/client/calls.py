"""A client's side of the protocol, without I/O: open calls, their ids, deadlines and stages, and sending again.

Each time a call is sent it gets an id of its own, so a late reply is never taken for another's. Where the broker knows
no ids, one call is under way at a time, and the connection of one that was given up is given up with it.

A session says where to connect (``address``; anew when ``connection`` grows) and what to send (``out``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from random import Random
from typing import Protocol, TypedDict

from scale0_core.api import Deadlines, Frames, printable
from scale0_core.client.kit.sessions import Limits
from scale0_majordomo.client.errors import (
    UNREACHED,
    BrokerLostError,
    CallError,
    CallTimedOutError,
    Stage,
    error_for,
    no_broker,
)
from scale0_majordomo.client.words import (
    NO_TERMS,
    ClientWords,
    Terms,
    body_frames,
    checked_terms,
    options_of,
    service_name,
)
from scale0_majordomo.dialects import Dialect, Word

MARGIN = 0.2
"""The broker is given a little less time than the caller has, so that its answer, which knows more, comes first."""

LONGEST_MS = 86_400_000
LONGEST_TIMEOUT = LONGEST_MS // 1000
GRAIN = 0.01
"""Seconds by which a deadline may be late."""
RETRIED = frozenset((429, 503))
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0


class Reply(tuple[bytes, ...]):
    """What a service answered: a tuple of frames. ``body`` is all of it in one piece, ``text`` the same decoded."""

    number = 0
    """Of a reply that ``map`` gives: which of the items it answers, counted from 0."""

    @property
    def body(self) -> bytes:
        """All frames, one after the other."""
        return b"".join(self)

    @property
    def text(self) -> str:
        """All frames as text in UTF-8."""
        return self.body.decode()


class CallOptions(TypedDict, total=False):
    """What may be said of a call."""

    timeout: float | None
    """Seconds until the call ends in any case; the client's own, when not given."""
    retry: bool | None
    """True: may be carried out twice, so it is sent again when a worker or the broker dies. False: never, not even to
    another worker by the broker. Not given: as the service's settings have it, and never sent again from here."""
    priority: int
    """Larger is sooner, where the service is scheduled so."""
    key: str
    """Requests of one key go to one worker, where the service is scheduled so."""
    traceparent: str
    """The W3C trace that this call belongs to; handed to the worker as it is."""


class Sink(Protocol):
    """Where a call's outcome goes: one final reply or one error."""

    def final(self, reply: Reply) -> None:
        """Take the reply; that of a stream may be empty."""

    def fail(self, error: CallError) -> None:
        """Take the error."""


class Call:
    """One call, from when it is made until it has a reply or an error.

    With ``on_part``, the parts of a streamed reply go there as they come; without, they are part of the final reply.
    """

    __slots__ = (
        "body", "collected", "deadline", "done", "ident", "last_error", "on_part", "parts", "sends", "sent", "service",
        "sink", "terms", "timeout",
    )  # fmt: skip

    def __init__(
        self, service: str, body: Iterable[bytes | str], sink: Sink, *, timeout: float, retry: bool | None = None,
        priority: int = 0, key: str = "", traceparent: str = "", on_part: Callable[[Reply], None] | None = None,
    ) -> None:  # fmt: skip
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise ValueError(f"timeout must be positive and at most {LONGEST_TIMEOUT} s, got {timeout}")
        self.service, self.body, self.sink = service_name(service), body_frames(body), sink
        plain = retry is None and not priority and not key and not traceparent
        self.terms = NO_TERMS if plain else checked_terms(retry, priority, key, traceparent)
        self.timeout, self.on_part = timeout, on_part
        self.deadline = 0.0
        self.ident = b""
        self.sent: float | None = None
        self.sends = 0
        self.parts = 0
        self.collected: list[bytes] = []
        self.last_error: CallError | None = None
        self.done = False

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.decode()


class ClientSession:
    """All open calls of one client, and its connection."""

    limits = Limits(max_message=-1, receive_queue=0, send_queue=1000)
    """How large a message may be is the broker's to say; what comes was asked for here, so there is room; beyond that,
    messages wait where it is seen that they do."""

    def __init__(
        self, address: str, *, random: Random, retries: int = 5, dialect: Dialect = Dialect.OWN,
        wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        self.address = address
        self.connection = 0
        self.out: list[Frames] = []
        self.linked = False
        self.late = self.malformed = 0
        self._words = ClientWords(dialect)
        self._retries, self._random, self._wait_for_broker = retries, random, wait_for_broker
        self._heard = float("-inf")
        self._ids = count(1)
        self._open: dict[Call, None] = {}
        self._by_id: dict[bytes, Call] = {}
        self._waiting: dict[Call, None] = {}
        """Calls that are to be sent as soon as there is a connection, or as the one before is over."""
        self._deadlines: Deadlines[Call, Call] = Deadlines(GRAIN)
        self._pauses: Deadlines[Call, Call] = Deadlines(GRAIN)
        self._options: dict[tuple[int, Terms], bytes] = {}

    def __len__(self) -> int:
        return len(self._open)

    # --- the connection -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to connect."""
        self.connection += 1

    def on_linked(self, now: float) -> None:
        """Send what has waited for a connection."""
        self.linked = True
        self._send_waiting(now)

    def on_unlinked(self, now: float) -> None:
        """Give up the calls that were under way, but for those that may be sent again."""
        self.linked = False
        self.out.clear()  # meant for the connection that is gone
        under_way = list(self._by_id.values())
        self._by_id.clear()
        for call in under_way:
            if self._may_repeat(call):
                call.sent = None
                self._waiting[call] = None
            else:
                self._fail(call, self._lost(call))

    def on_nobody(self, reason: str, now: float) -> None:
        """Fail what is open, unless the broker is to be waited for."""
        if not self._wait_for_broker:
            self.close(no_broker(self.address, reason))

    # --- a call's life ------------------------------------------------------------------------------------------------

    def open(self, call: Call, now: float) -> None:
        """Take a new call; it is sent at once, or as soon as there is a connection."""
        call.deadline = now + call.timeout
        self._open[call] = None
        self._deadlines.set(call, call.deadline - GRAIN, call)
        if self.linked and not (self._words.stock and self._by_id):
            self._send(call, now)
        else:
            self._waiting[call] = None

    def cancel(self, call: Call) -> None:
        """Let go of a call that nobody waits for any more; the broker is told."""
        self._abandon(call)
        self._close(call)

    def close(self, error: CallError) -> None:
        """End all calls."""
        self._waiting.clear()
        for call in list(self._open):
            self._abandon(call)
            self._fail(call, error)

    def _abandon(self, call: Call) -> None:
        """Have the broker forget a call that is under way."""
        if not self.linked or call.ident not in self._by_id:
            return
        if self._words.stock:
            # its reply would be taken for that to the next
            self.connection += 1
            self.linked = False
            self._by_id.clear()
        else:
            self.out.append(self._words.cancel(call.ident))

    def _send_waiting(self, now: float) -> None:
        while self._waiting and self.linked and not (self._words.stock and self._by_id):
            call = next(iter(self._waiting))
            del self._waiting[call]
            self._send(call, now)

    def _send(self, call: Call, now: float) -> None:
        call.ident = next(self._ids).to_bytes(8, "big")
        self._by_id[call.ident] = call
        call.sent, call.parts = now, 0
        call.sends += 1
        call.collected.clear()
        left = max(call.deadline - now, 0.002)
        options = self._terms(call.terms, max(1, int((left - min(MARGIN, left / 4)) * 1000)))
        self.out.append(self._words.request(call.ident, call.service, options, call.body))

    def _terms(self, terms: Terms, milliseconds: int) -> bytes:
        key = (min(milliseconds, LONGEST_MS), terms)
        options = self._options.get(key)
        if options is None:
            if len(self._options) > 1000:
                self._options.clear()
            options = self._options[key] = terms.options(key[0])
        return options

    def _close(self, call: Call) -> bool:
        if call.done:
            return False
        call.done = True
        del self._open[call]
        self._by_id.pop(call.ident, None)
        self._waiting.pop(call, None)
        self._deadlines.remove(call)
        self._pauses.remove(call)
        call.body = ()
        return True

    def _finish(self, call: Call, reply: Reply) -> None:
        if self._close(call):
            call.sink.final(reply)

    def _fail(self, call: Call, error: CallError) -> None:
        if self._close(call):
            call.sink.fail(error)

    # --- what the broker says -----------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""
        heard = self._words.read(frames)
        if heard is None:
            self.malformed += 1
            return
        self._heard = now
        call = next(iter(self._by_id.values()), None) if self._words.stock else self._by_id.get(heard.ident)
        if call is None:
            self.late += 1
        elif heard.word is Word.PARTIAL:
            self._part(call, heard.options, heard.body)
        elif heard.word is Word.FINAL:
            self._final(call, heard.options, heard.body)
        else:
            self._error(call, heard.options, heard.body, now)
        if self._waiting:
            self._send_waiting(now)

    def _part(self, call: Call, options: bytes, body: Frames) -> None:
        if options and options_of(options).get("seq", call.parts) != call.parts:
            self._hole(call)
            return
        call.parts += 1
        if call.on_part is not None:
            call.on_part(Reply(body))
        else:
            call.collected.extend(body)

    def _final(self, call: Call, options: bytes, body: Frames) -> None:
        if options:
            told = options_of(options)
            if told.get("seq", call.parts) != call.parts:
                self._hole(call)
                return
            if told.get("empty") is True:
                body = ()
        self._finish(call, Reply((*call.collected, *body) if call.collected else body))

    def _error(self, call: Call, code: bytes, body: Frames, now: float) -> None:
        """Take an ERROR; where it may help, the call is sent again after a pause."""
        self._by_id.pop(call.ident, None)
        number = int(code) if len(code) == 3 and code.isdigit() else 0
        reason = body[0].decode("utf-8", "replace") if body else ""
        error = error_for(number, reason, call.name, self.address)
        pause = self._pause(call)
        if number not in RETRIED or not self._may_repeat(call) or now + pause >= call.deadline:
            self._fail(call, error)
            return
        call.last_error, call.sent = error, None
        self._pauses.set(call, now + pause, call)

    def _pause(self, call: Call) -> float:
        longest: float = min(FIRST_PAUSE * 2 ** max(call.sends - 1, 0), LONGEST_PAUSE)
        return longest * self._random.uniform(0.5, 1.0)

    def _may_repeat(self, call: Call) -> bool:
        """Tell whether a call may be sent again; a stream of which parts were handed on cannot start anew."""
        return call.terms.retry is True and call.sends <= self._retries and not (call.on_part and call.parts)

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when a call times out or is to be sent again."""
        ends, again = self._deadlines.next(), self._pauses.next()
        return ends if again is None else again if ends is None else min(ends, again)

    def on_deadline(self, now: float) -> None:
        """End the calls whose time is up; send those whose pause is over."""
        for call in self._deadlines.take(now):
            self._abandon(call)
            self._fail(call, call.last_error or self._timed_out(call))
        for call in self._pauses.take(now):
            self._waiting[call] = None
        self._send_waiting(now)

    # --- errors -------------------------------------------------------------------------------------------------------

    def stage(self, call: Call) -> Stage:
        """Say how far a call has come."""
        if call.sent is None:
            return Stage.CONNECTING if not self.linked else Stage.WORKER
        if call.parts:
            return Stage.REPLY
        return Stage.WORKER if self._heard > call.sent or self._words.stock else Stage.BROKER

    def _timed_out(self, call: Call) -> CallError:
        stage = self.stage(call)
        why = {
            Stage.CONNECTING: f"there is no connection to {self.address}",
            Stage.BROKER: f"the broker at {self.address} is connected but says nothing",
            Stage.WORKER: f"the broker at {self.address} is there, but no worker has answered",
            Stage.REPLY: f"{call.parts} parts of the reply came, but not its end",
        }[stage]
        start = "is a broker with the plugin majordomo running at this address? start one: scale0 broker"
        error = CallTimedOutError(
            f"the call of {printable(call.name)} timed out after {call.timeout:g} s while {stage.value}",
            why,
            "it may have been carried out" if call.sends else "nothing was sent",
            start if stage in (Stage.CONNECTING, Stage.BROKER) else "give it more time, or start more workers",
            service=call.name,
            stage=stage,
        )
        if not call.sends:
            error.exit_code = UNREACHED
        return error

    def _lost(self, call: Call) -> CallError:
        return BrokerLostError(
            f"the call of {printable(call.name)} has lost its connection to {self.address}",
            f"it broke while {self.stage(call).value}",
            "the outcome is unknown: it may have been carried out",
            "call again, or use retry=True for services that may be called twice; if it happens each time, is a frame "
            "larger than plugin.majordomo.max_message?",
            service=call.name,
            stage=self.stage(call),
        )

    def _hole(self, call: Call) -> None:
        self._abandon(call)
        error = BrokerLostError(
            f"the reply of {printable(call.name)} has a hole",
            f"parts are missing after the first {call.parts}: the broker could not deliver them in time",
            "the reply is not complete",
            "call again; read faster, or send fewer and larger parts",
            service=call.name,
            stage=Stage.REPLY,
        )
        self._fail(call, error)
