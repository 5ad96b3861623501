"""The sides of a client and of a worker, without I/O: open calls; one service, its requests, and heartbeats.

What was asked on a connection is answered on it or not at all: the broker gives it to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import Any

from scale0_core.api import Backoff, Frames, printable
from scale0_core.client.kit.calls import Call, Calls
from scale0_core.client.kit.errors import closed_error, no_broker
from scale0_core.client.kit.sessions import Answer, Limits, Payload, frames_of
from scale0_majordomo.client.codec import EMPTY, ClientCodec, WorkerCodec, options_of, write_options
from scale0_majordomo.client.errors import START, WorkerError
from scale0_majordomo.dialects import Dialect, Word

FIRST_REST, LONGEST_REST = 0.1, 5.0

ASK_AFTER = 0.6
"""The part of its patience after which a worker that hears nothing asks: a broker's heartbeats may be slower."""

CANCELLED = 410

# --- clients ----------------------------------------------------------------------------------------------------------


class ClientSession:
    """A client's side of its connection."""

    reached = ""
    limits = Limits(max_message=-1, receive_queue=0, send_queue=1000)
    """How large a message may be is the broker's to say; what comes was asked for here, so there is room; beyond that,
    messages wait where it is seen that they do."""

    def __init__(
        self, address: str, *, random: Random, retries: int = 5, dialect: Dialect = Dialect.OWN,
        wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        self.connection = 0
        self.out: list[Frames] = []
        self.ended = False
        self.malformed = 0
        self._place, self._wait_for_broker = address, wait_for_broker
        self._codec = ClientCodec(dialect)
        self.calls = Calls(
            self._codec, self.out, retries=retries, random=random, address=address, renew=self._renew
        )  # fmt: skip

    @property
    def address(self) -> str:
        """Where to connect."""
        return "" if self.ended else self._place

    # --- the connection -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to connect."""
        self._renew()

    def _renew(self) -> None:
        self.connection += 1

    def on_linked(self, now: float) -> None:
        """Send what has waited for a connection."""
        self.calls.connected(now)

    def on_unlinked(self, now: float) -> None:
        """Give up the calls that were under way, but for those that may be sent again."""
        self.out.clear()  # meant for the connection that is gone
        self.calls.disconnected()

    def on_nobody(self, reason: str, now: float) -> None:
        """Fail what is open, unless the broker is to be waited for."""
        if not self._wait_for_broker:
            self.calls.fail_all(no_broker(self._place, reason, START))

    # --- calls --------------------------------------------------------------------------------------------------------

    def open(self, call: Call, now: float) -> None:
        """Make a call."""
        self.calls.open(call, now)

    def cancel(self, call: Call) -> None:
        """Let go of a call."""
        self.calls.cancel(call)

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""
        heard = self._codec.read(frames)
        if heard is None:
            self.malformed += 1
            return
        calls = self.calls
        calls.heard = now
        word, ident, options, body = heard
        if self._codec.serial:
            ident = calls.current
        if word is Word.ERROR:
            code = int(options) if len(options) == 3 and options.isdigit() else 0
            calls.refused(ident, code, body[0].decode("utf-8", "replace") if body else "", now)
            return
        told = options_of(options) if options else {}
        if word is Word.PARTIAL:
            calls.part(ident, body, told.get("seq"))
        else:
            calls.final(ident, () if told.get("empty") is True else body, told.get("seq"))
            if self._codec.serial:
                calls.send_waiting(now)

    def next_deadline(self) -> float | None:
        """Return when a call times out or is to be sent again, or None."""
        return self.calls.next_deadline()

    def on_deadline(self, now: float) -> None:
        """End the calls whose time is up; send those whose pause is over."""
        self.calls.on_deadline(now)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Cancel all calls."""
        if not self.ended:
            self.ended = True
            self.calls.fail_all(closed_error(error))  # while the broker can still be told
            self.calls.close(closed_error(error))


# --- workers ----------------------------------------------------------------------------------------------------------


class WorkerState(str, Enum):
    """How far a worker has come."""

    CONNECTING = "connecting"
    READY = "waiting for the broker's first word"
    SERVING = "serving"
    LEFT = "left"


class Request(Payload):
    """What a client asks for: a tuple of frames. ``body`` is all of it in one piece, ``text`` the same decoded."""

    service: str
    address: bytes
    """By what the broker knows it."""
    over: int = 0
    """0, or the code with which it ends because nobody waits for it any more."""
    begun: bool = False
    """Whether its handler runs."""
    _options: bytes = b""

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the reply any more: a handler that runs for long looks at it now and then."""
        return self.over != 0

    @property
    def arguments(self) -> tuple[Request]:
        """What its handler is called with."""
        return (self,)

    @property
    def about(self) -> dict[str, Any]:
        """What the log says about it."""
        return {"service": self.service, "request": self.address.hex()}

    @property
    def options(self) -> Mapping[str, Any]:
        """What the client said about it: timeout in milliseconds, priority, key, retry, traceparent."""
        return options_of(self._options)

    @property
    def traceparent(self) -> str:
        """The W3C trace that it belongs to, or nothing."""
        return str(self.options.get("traceparent", ""))


def request_of(service: str, address: bytes, options: bytes, body: Frames) -> Request:
    """Make a request of a message."""
    request = Request(body)
    request.service, request.address, request._options = service, address, options  # noqa: SLF001
    return request


class WorkerSession:
    """One service of a worker, and its connection.

    :param begin: has a request done; ``answer`` ends it.
    :param cancel: is told of a request that nobody waits for any more; it is to be ended all the same.
    """

    reached = ""
    limits = Limits(max_message=-1, receive_queue=0, send_queue=1000, linger_ms=1000)

    def __init__(
        self, address: str, service: str, *, begin: Callable[[Request], None], cancel: Callable[[Request], None],
        random: Random, credit: int = 1, heartbeat: float = 2.5, liveness: int = 3,
        dialect: Dialect = Dialect.OWN,
    ) -> None:  # fmt: skip
        self.service = service
        self.connection = 0
        self.out: list[Frames] = []
        self.state = WorkerState.CONNECTING
        self.fault: WorkerError | None = None
        """What keeps it from serving, or the last that did."""
        self.draining = False
        self.malformed = 0
        self._place = address
        self._codec = WorkerCodec(dialect, service.encode(), credit)
        self._begin, self._cancel = begin, cancel
        self._heartbeat, self._patience = heartbeat, heartbeat * liveness
        self._linked = self._asked = False
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, random)
        self._retry_at: float | None = None
        self._heard = self._sent = 0.0
        self._in_hand: dict[bytes, Request] = {}

    @property
    def address(self) -> str:
        """Where to connect; empty while it rests."""
        return "" if self._retry_at is not None or self.state is WorkerState.LEFT else self._place

    @property
    def ended(self) -> bool:
        """Whether it has left."""
        return self.state is WorkerState.LEFT

    def offers(self, services: Iterable[str]) -> bool:
        """Return whether the broker has taken just this service."""
        return self.state is WorkerState.SERVING and tuple(services) == (self.service,)

    # --- the connection -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to connect."""
        self.connection += 1

    def on_linked(self, now: float) -> None:
        """Offer the service."""
        self._linked, self._asked = True, False
        self._heard = self._sent = now
        self.out.append(self._codec.ready)
        if self._codec.stock:
            self._become(WorkerState.SERVING)  # there is no way to learn more
        else:
            self._become(WorkerState.READY)
            self._ask()

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone; another one is made."""
        self._lose(f"the connection to {self._place} broke")
        if self.draining:
            self._become(WorkerState.LEFT)

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens at a local address; a worker waits for its broker to be started."""
        self._lose(reason)

    def _lose(self, why: str) -> None:
        """Let go of what belongs to the connection."""
        self._linked = False
        self.out.clear()
        if self.state is not WorkerState.LEFT:
            what = f"the worker of {printable(self.service)} is not connected"
            self.fault = WorkerError(what, why, "it tries again", "is the broker running, with the plugin majordomo?")
            self._become(WorkerState.CONNECTING)
        given_up, self._in_hand = self._in_hand, {}
        for request in given_up.values():
            self._give_up(request)

    def _begin_anew(self, why: str, now: float) -> None:
        """Leave this connection for another, after a while that grows and is never the same for all."""
        self._lose(why)
        self.connection += 1
        if self.draining:
            self._become(WorkerState.LEFT)
            return
        self._retry_at = now + self._backoff.next()

    def _become(self, state: WorkerState) -> None:
        if self.state is not WorkerState.LEFT:
            self.state = state

    # --- what the broker says -----------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""
        heard = self._codec.read(frames)
        if heard is None:
            self.malformed += 1
            return
        self._heard, self._asked = now, False
        if heard.word is Word.DISCONNECT:
            self._begin_anew(f"the broker at {self._place} sent it away", now)
            return
        if heard.word is Word.CANCEL:
            request = self._in_hand.get(heard.ident)
            if request is not None:
                self._give_up(request)
            return
        self.fault = None
        self._become(WorkerState.SERVING)
        if heard.word is Word.REQUEST:
            self._backoff.reset()
            self._requested(request_of(self.service, heard.ident, heard.options, heard.body))
        elif not heard.ident:
            self._backoff.reset()  # a heartbeat of its own accord: it knows this worker

    def _requested(self, request: Request) -> None:
        # what comes while we are about to leave is not begun: the broker gives it to others
        if not self.draining:
            self._in_hand[request.address] = request
            self._begin(request)

    def _give_up(self, request: Request) -> None:
        if not request.over:
            request.over = CANCELLED
            self._cancel(request)

    def _ask(self) -> None:
        self._asked = True
        self.out.append(self._codec.question)

    # --- what handlers say --------------------------------------------------------------------------------------------

    @staticmethod
    def frames_of(result: Any) -> Frames:
        """Make frames of what a handler returned or yielded: one at least, which may be empty."""
        return frames_of(result) or EMPTY

    def part(self, request: Request, seq: int, frames: Frames, now: float) -> None:
        """Send a part of a reply; they are counted, so that the caller notices when one is missing."""
        self._say(Word.PARTIAL, request, b'{"seq":%d}' % seq, frames, now)

    def answer(self, request: Request, answer: Answer, now: float) -> None:
        """Send how a request ends."""
        if request.over:
            self._error(request, request.over, "cancelled", now)
        elif answer.code:
            self._error(request, answer.code if 500 <= answer.code <= 599 else 500, answer.message, now)
        else:
            options = b""
            if answer.parts >= 0:  # where nothing comes after the parts, that is said
                options = write_options(seq=answer.parts, empty=answer.result is None or None)
            self._say(Word.FINAL, request, options, answer.frames, now)
        self._done(request)

    def _error(self, request: Request, code: int, reason: str, now: float) -> None:
        if not self._codec.stock:
            self._say(Word.ERROR, request, b"%d" % code, (reason.encode("utf-8", "replace"),), now)
        elif self._in_hand.get(request.address) is request:
            # there is no word for it: as if this worker had died, so that its client gets no wrong reply
            self.out.append(self._codec.disconnect)
            farewell = list(self.out)
            self._begin_anew("a handler failed, for which MDP has no word", now)
            self.out += farewell

    def _say(self, word: Word, request: Request, options: bytes, body: Frames, now: float) -> None:
        if self._in_hand.get(request.address) is request:
            self.out.append(self._codec.reply(word, request.address, options, body))
            self._sent = now

    def _done(self, request: Request) -> None:
        if self._in_hand.get(request.address) is request:
            del self._in_hand[request.address]
        if self.draining and not self._in_hand:
            self._leave()

    # --- time ---------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when something is due, or None."""
        if self._retry_at is not None:
            return self._retry_at
        if not self._linked:
            return None
        return min(self._sent + self._heartbeat, self._heard + self._patience * (1.0 if self._asked else ASK_AFTER))

    def on_deadline(self, now: float) -> None:
        """Send a heartbeat; look whether the broker is there; try again."""
        if self._retry_at is not None:
            if self._retry_at <= now:
                self._retry_at = None
                self.connection += 1
            return
        if not self._linked:
            return
        if self._heard + self._patience <= now:
            self._begin_anew(f"the broker at {self._place} was silent for {self._patience:g} s", now)
            return
        if not self._asked and self._heard + self._patience * ASK_AFTER <= now:
            if self._codec.stock:
                self._asked = True
            else:
                self._ask()
        if self._sent + self._heartbeat <= now:
            self.out.append(self._codec.heartbeat)
            self._sent = now

    # --- how it ends --------------------------------------------------------------------------------------------------

    def drain(self, now: float) -> None:
        """Begin no more requests, and leave when those in hand are done."""
        self._say_drain()
        self.draining = True
        if not self._in_hand:
            self._leave()

    def _say_drain(self) -> None:
        """Tell the broker, once, what was begun: whatever else it has sent or would send goes to others."""
        if self._linked and not (self.draining or self._codec.stock):
            self.out.append(self._codec.drain(self._in_hand))

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Leave immediately."""
        self._leave()

    def _leave(self) -> None:
        if self.state is WorkerState.LEFT:
            return
        if self._linked:
            self._say_drain()
            self.out.append(self._codec.disconnect)
        self._linked, self._retry_at, self.draining = False, None, True
        self._become(WorkerState.LEFT)
        given_up, self._in_hand = self._in_hand, {}
        for request in given_up.values():
            self._give_up(request)
