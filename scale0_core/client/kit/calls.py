"""Open calls: idents, deadlines, stages, retries; and what a client that makes them can do. Without I/O.

Each time a call is sent it gets an ident of its own, so a late reply is never taken for another's. A call that may be
carried out twice (``retry``) is sent again when the connection was lost or the broker could not place it; others are
sent once.

A session owns ``Calls`` and a ``Codec``, which says the bytes. It hands in what its broker says by ``final``, ``part``,
``refused`` and ``failed``; its connection by ``connected``, ``disconnected`` and ``resume``; and time. ``Caller`` has
the operations of a client over such a session, once for threads and asyncio.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scale0_core.client.kit.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    Stage,
    closed_error,
)
from scale0_core.client.kit.flows import Flow, Inbox, Item
from scale0_core.client.kit.sessions import Payload
from scale0_core.errors import Exit
from scale0_core.logs import printable
from scale0_core.parts.backoff import backoff_seconds
from scale0_core.parts.timers import Deadlines
from scale0_core.service import Frames

if TYPE_CHECKING:  # they do I/O
    from scale0_core.client.kit.drivers import Driver

GRAIN = 0.01
"""Seconds by which a deadline may be late."""
MARGIN = 0.2
"""The broker is given a little less time than the caller has, so that its answer, which knows more, comes first."""
LONGEST_TIMEOUT = 86_400
"""Seconds: the protocols take no longer timeout of a task."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
WINDOW = 500


class Reply(Payload):
    """What a service answered: a tuple of frames. ``body`` is all of it in one piece, ``text`` the same decoded."""

    number = 0
    """Of a reply that ``map`` gives: which of the items it answers, counted from 0."""


class Sink(Protocol):
    """Where a call's outcome goes: one final reply or one error."""

    def final(self, reply: Reply) -> None:
        """Take the reply; for a stream it may be empty."""

    def fail(self, error: CallError) -> None:
        """Take the error."""


class FutureSink:
    """Puts the outcome of a call into a future of threads or of asyncio, unless it was cancelled."""

    __slots__ = ("_future", "_number")

    def __init__(self, future: Any, number: int = 0) -> None:
        self._future, self._number = future, number

    def final(self, reply: Reply) -> None:
        """Take the reply."""
        if self._number:
            reply.number = self._number
        try:
            self._future.set_result(reply)
        except Exception:  # each flavour has an error of its own for that
            if not self._future.cancelled():
                raise

    def fail(self, error: CallError) -> None:
        """Take the error."""
        try:
            self._future.set_exception(error)
        except Exception:
            if not self._future.cancelled():
                raise


class Call:
    """One call, from when it is made until it has a reply or an error.

    With ``on_part``, the parts of a streamed reply go there as they come; without, they are part of the final reply.

    :param terms: what else the codec writes about it.
    """

    __slots__ = (
        "body", "collected", "deadline", "done", "idents", "last_error", "on_part", "parts", "retry", "sends", "sent",
        "service", "sink", "terms", "timeout",
    )  # fmt: skip

    def __init__(
        self, service: str, body: Frames, sink: Sink | None = None, *, timeout: float, retry: bool | None = None,
        terms: Hashable = None, on_part: Callable[[Reply], None] | None = None,
    ) -> None:  # fmt: skip
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise ValueError(f"timeout must be positive and at most {LONGEST_TIMEOUT} s, got {timeout}")
        self.service, self.body, self.terms = service.encode(), body, terms
        self.timeout, self.retry, self.on_part = timeout, bool(retry), on_part
        self.sink: Sink = sink or _NOWHERE
        self.deadline = 0.0
        self.sent: float | None = None
        self.sends = 0
        self.parts = 0
        self.idents: list[bytes] = []
        self.collected: list[bytes] = []
        self.last_error: CallError | None = None
        self.done = False

    @property
    def name(self) -> str:
        """The service's name."""
        return self.service.decode()


class _Nowhere:
    def final(self, reply: Reply) -> None: ...

    def fail(self, error: CallError) -> None: ...


_NOWHERE = _Nowhere()


class Codec(Protocol):
    """The bytes of a protocol with calls."""

    @property
    def serial(self) -> bool:
        """Whether replies have no ident: one call at a time is under way, and giving it up costs the connection."""

    @property
    def retried(self) -> frozenset[int]:
        """The codes of refusals after which a call that may be retried is sent again."""

    @property
    def look_here(self) -> str:
        """What to do when the broker cannot be reached or says nothing."""

    @property
    def look_there(self) -> str:
        """What to look at when connections break each time; empty where nothing is known."""

    def options(self, milliseconds: int, retry: bool, terms: Any) -> bytes:
        """Write what is said about a call; results are kept."""

    def request(self, ident: bytes, call: Call, options: bytes) -> Frames:
        """Write a call."""

    def cancel(self, ident: bytes, call: Call) -> Frames | None:
        """Write that nobody waits for a call any more; None where that cannot be said, or need not be."""

    def refusal(self, code: int, message: str, service: str, address: str) -> CallError:
        """Make the error for what the broker refused."""


class Calls:
    """All open calls of one client. What is to be sent is appended to ``out``.

    :param renew: has another connection made; for serial codecs.
    """

    def __init__(
        self, codec: Codec, out: list[Frames], *, retries: int, random: Random, address: str = "",
        renew: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.address = address
        self.heard = float("-inf")
        self.online = False
        self.late = 0
        """Replies that came after their call was over."""
        self._codec, self._out, self._retries, self._random, self._renew = codec, out, retries, random, renew
        self._serial = codec.serial
        self._options = lru_cache(1000)(codec.options)
        self._numbers = count(1)
        self._closed: CallError | None = None
        self._open: dict[Call, None] = {}
        """All of them, without a bound: a call that cannot be sent waits here until its deadline; ``map`` has a
        window, and the broker refuses with 429 what is too much for it."""
        self._waiting: dict[Call, None] = {}
        """Calls that are to be sent as soon as there is a connection, or as the one before is over."""
        self._by_ident: dict[bytes, Call] = {}
        self._deadlines: Deadlines[Call, Call] = Deadlines(GRAIN)
        self._pauses: Deadlines[Call, Call] = Deadlines(GRAIN)

    def __len__(self) -> int:
        return len(self._open)

    # --- a call's life ----------------------------------------------------------------------------------------------

    def open(self, call: Call, now: float) -> None:
        """Take a new call; it is sent immediately, or as soon as there is a connection."""
        if self._closed is not None:
            call.done = True
            call.sink.fail(self._closed)
            return
        call.deadline = now + call.timeout
        self._open[call] = None
        self._deadlines.set(call, call.deadline - GRAIN, call)
        if self.online and not (self._serial and self._by_ident):
            self._send(call, now)
        else:
            self._waiting[call] = None

    def cancel(self, call: Call) -> None:
        """Let go of a call that nobody waits for any more; the broker and the worker are told."""
        self._close(call)

    def _send(self, call: Call, now: float) -> None:
        ident = next(self._numbers).to_bytes(8, "big")
        call.idents.append(ident)
        self._by_ident[ident] = call
        call.sent, call.parts = now, 0
        call.sends += 1
        call.collected.clear()
        left = max(call.deadline - now, 0.002)
        milliseconds = max(1, int((left - min(MARGIN, left / 4)) * 1000))
        options = self._options(milliseconds, call.retry, call.terms)
        self._out.append(self._codec.request(ident, call, options))

    def send_waiting(self, now: float) -> None:
        """Send what has waited: for a connection, or where replies have no ident for the end of the call before."""
        while self._waiting and self.online and not (self._serial and self._by_ident):
            call = next(iter(self._waiting))
            del self._waiting[call]
            self._send(call, now)

    def _close(self, call: Call) -> bool:
        if call.done:
            return False
        call.done = True
        self._open.pop(call, None)
        self._waiting.pop(call, None)
        for ident in call.idents:
            # what is still there is under way: a call that has its reply has no more use for it either
            if self._by_ident.pop(ident, None) is not None and self.online:
                self._abandon(ident, call)
        self._deadlines.remove(call)
        self._pauses.remove(call)
        call.body = ()
        return True

    def _abandon(self, ident: bytes, call: Call) -> None:
        if self._serial:
            self.online = False
            self._renew()  # its reply would be taken for that to the next
        elif (frames := self._codec.cancel(ident, call)) is not None:
            self._out.append(frames)

    def _finish(self, call: Call, reply: Reply) -> None:
        if self._close(call):
            call.sink.final(reply)

    def _fail(self, call: Call, error: CallError) -> None:
        if self._close(call):
            call.sink.fail(error)

    # --- what the broker says ---------------------------------------------------------------------------------------

    @property
    def current(self) -> bytes:
        """The ident of the call that is under way, where replies have none; empty when there is none."""
        return next(iter(self._by_ident), b"")

    def final(self, ident: bytes, frames: Frames, seq: object = None) -> None:
        """Take a reply, or the end of one in parts; ``seq`` is then the number of parts before it."""
        call = self._by_ident.get(ident)
        if call is None or (seq is not None and ident != call.idents[-1]):
            self.late += 1
            return
        del self._by_ident[ident]
        if seq is not None and seq != call.parts:
            self._fail(call, self._hole(call, seq))
            return
        if call.collected and ident == call.idents[-1]:
            frames = (*call.collected, *frames)
        self._finish(call, Reply(frames))

    def part(self, ident: bytes, frames: Frames, seq: object = None) -> None:
        """Take one of several replies; ``seq`` counts them, so that a hole is noticed."""
        call = self._by_ident.get(ident)
        if call is None or ident != call.idents[-1]:
            self.late += 1
            return
        if seq is not None and seq != call.parts:
            self._fail(call, self._hole(call, seq))
            return
        call.parts += 1
        if call.on_part is not None:
            call.on_part(Reply(frames))
        else:
            call.collected.extend(frames)

    def failed(self, ident: bytes, error: Callable[[Call], CallError]) -> None:
        """Take the error of a worker: the call is over."""
        call = self._by_ident.get(ident)
        if call is None or ident != call.idents[-1]:
            self.late += 1
            return
        del self._by_ident[ident]
        self._fail(call, error(call))

    def refused(self, ident: bytes, code: int, message: str, now: float) -> None:
        """Take an error of the broker; where it may help, the call is sent again after a pause."""
        call = self._by_ident.pop(ident, None)
        if call is None or ident != call.idents[-1]:
            self.late += 1
            return
        error = self._codec.refusal(code, message, call.name, self.address)
        pause = backoff_seconds(max(call.sends - 1, 0), FIRST_PAUSE, LONGEST_PAUSE, self._random)
        if code not in self._codec.retried or not self._may_repeat(call) or now + pause >= call.deadline:
            self._fail(call, error)
            return
        call.last_error = error
        call.sent = None
        self._pauses.set(call, now + pause, call)

    def _may_repeat(self, call: Call) -> bool:
        """Tell whether a call may be sent again; a stream of which parts were handed on cannot start anew."""
        return call.retry and call.sends <= self._retries and not (call.on_part and call.parts)

    # --- the connection ---------------------------------------------------------------------------------------------

    def connected(self, now: float) -> None:
        """Send what has waited for a connection."""
        self.online = True
        self.send_waiting(now)

    def disconnected(self) -> None:
        """Give up the calls that were under way, but for those that may be sent again."""
        self.online = False
        for call in [call for call in self._open if call.sent is not None]:
            if self._may_repeat(call):
                for ident in call.idents:
                    self._by_ident.pop(ident, None)
                call.sent = None
                if call not in self._pauses:
                    self._waiting[call] = None
            else:
                self._fail(call, self._lost(call))

    def resume(self, now: float) -> None:
        """After a silence of the broker, send again what it may have lost, unless a reply comes soon."""
        for call in self._open:
            if call.sent is not None and self._may_repeat(call):
                self._pauses.set(call, now + self._random.uniform(0.2, 0.5), call)

    def fail_all(self, error: CallError) -> None:
        """Fail all calls; new ones may be made."""
        for call in list(self._open):
            self._fail(call, error)

    def close(self, error: CallError) -> None:
        """Fail all calls, and those that are still made; a session that wants the broker told fails all before."""
        self._closed, self.online = error, False
        self.fail_all(error)

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Return when a call times out or is to be sent again, or None."""
        ends, again = self._deadlines.next(), self._pauses.next()
        return ends if again is None else again if ends is None else min(ends, again)

    def on_deadline(self, now: float) -> None:
        """End the calls whose time is up; send those whose pause is over."""
        for call in self._deadlines.take(now):
            self._fail(call, call.last_error or self._timed_out(call))
        for call in self._pauses.take(now):
            call.sent = None
            self._waiting[call] = None
        self.send_waiting(now)

    # --- errors -----------------------------------------------------------------------------------------------------

    def stage(self, call: Call) -> Stage:
        """Return how far a call has come."""
        if call.sent is None:
            return Stage.WORKER if call.last_error or self.online else Stage.CONNECTING
        if call.parts:
            return Stage.REPLY
        return Stage.WORKER if self._serial or self.heard > call.sent else Stage.BROKER

    def _timed_out(self, call: Call) -> CallError:
        stage = self.stage(call)
        why = {
            Stage.CONNECTING: f"there is no connection to {self.address}",
            Stage.BROKER: f"the broker at {self.address} is connected but says nothing",
            Stage.WORKER: f"the broker at {self.address} is there, but no worker has answered",
            Stage.REPLY: f"{call.parts} parts of the reply came, but not its end",
        }[stage]
        unreached = stage in (Stage.CONNECTING, Stage.BROKER)
        error = CallTimedOutError(
            f"{_what(call)} timed out after {call.timeout:g} s while {stage.value}",
            why,
            "it may have been carried out" if call.sends else "nothing was sent",
            self._codec.look_here if unreached else "give it more time, or add workers",
            service=call.name,
            stage=stage,
        )
        if not call.sends:
            error.exit_code = Exit.UNREACHED
        return error

    def _lost(self, call: Call) -> CallError:
        return BrokerLostError(
            f"{_what(call)} has lost its connection to {self.address}",
            f"it broke while {self.stage(call).value}",
            "the outcome is unknown: it may have been carried out",
            "call again, or use retry=True for services that may be called twice"
            + (f"; if it happens each time, {self._codec.look_there}" if self._codec.look_there else ""),
            service=call.name,
            stage=self.stage(call),
        )

    def _hole(self, call: Call, seq: object) -> CallError:
        missing = seq - call.parts if isinstance(seq, int) else 1
        return BrokerLostError(
            f"{_what(call)} has a hole in its reply",
            f"{missing} parts are missing after the first {call.parts}: the broker could not deliver them in time",
            "the reply is not complete",
            "call again; read faster, or send fewer and larger parts",
            service=call.name,
            stage=Stage.REPLY,
        )


def _what(call: Call) -> str:
    return f"the call of {printable(call.service)}" if call.service else "PING"


# --- what a client can do ---------------------------------------------------------------------------------------------


class CallSession(Protocol):
    """What ``Caller`` needs of a session, beside what its engine does."""

    def open(self, call: Call, now: float) -> None:
        """Make a call."""

    def cancel(self, call: Call) -> None:
        """Let go of a call."""


class Window(NamedTuple):
    """How ``map`` goes through its items."""

    size: int = WINDOW
    ordered: bool = True
    """Whether replies come in the order of the items; else as they come, with ``reply.number``."""
    progress: Callable[[int, int | None], None] | None = None
    """Is called with the number of replies so far, and that of the items if it is known."""


class Caller:
    """The operations of a client that makes calls; what it returns or runs is of its driver's flavour."""

    def __init__(self, driver: Driver[Any]) -> None:
        self.driver = driver
        self._session: CallSession = driver.session
        driver.belong_to(self)

    def begin(self) -> None:
        """Begin to connect, unless that was done."""
        self._post(lambda: None)

    def close(self) -> Flow[None]:
        """Close: open calls get a ClosedError."""
        yield self.driver.closing()

    def submit(self, call: Call, number: int = 0) -> Any:
        """Make a call, and return the future of its reply; cancelling that tells the worker."""
        # neither future nor driver refers to the caller: one that nobody has any more is closed
        future = self.driver.future(self._session.cancel, call)
        call.sink = FutureSink(future, number)
        self._open(call)
        return future

    def call(self, call: Call) -> Flow[Reply]:
        """Make a call, and wait for its reply."""
        future = self.submit(call)
        try:
            reply: Reply = yield self.driver.result(future)
        except BaseException:
            future.cancel()
            raise
        return reply

    def seconds(self, call: Call) -> Flow[float]:
        """Make a call, and return how long it took."""
        began = self.driver.now()
        yield from self.call(call)
        return self.driver.now() - began

    def stream(self, call: Call) -> Any:
        """Make a call, and return the stream of its parts."""
        mailbox = self.driver.mailbox()
        inbox = Inbox(mailbox.put)
        call.sink, call.on_part = inbox, inbox.part
        self._open(call)
        return self.driver.stream(mailbox, partial(self._cancel, call))

    def map(self, make: Callable[[Any], Call], items: Iterable[Any], window: Window) -> Any:
        """Make a call for each item, some at once, and iterate over the replies; the first error cancels the others."""
        if window.size < 1:
            raise ValueError(f"window must be positive, got {window.size}")
        flow = self._in_order if window.ordered else self._as_they_come
        each = Item if window.progress is None else _Progress(window.progress, items).of
        return self.driver.each(flow(make, items, window.size, each))

    def _in_order(
        self, make: Callable[[Any], Call], items: Iterable[Any], size: int, each: Callable[[Reply], Item[Reply]]
    ) -> Flow[None]:
        under_way: deque[Any] = deque()
        result = self.driver.result
        try:
            for number, item in enumerate(items):
                under_way.append(self.submit(make(item), number))
                while len(under_way) >= size or (under_way and under_way[0].done()):
                    yield each((yield result(under_way.popleft())))
            while under_way:
                yield each((yield result(under_way.popleft())))
        finally:
            _cancel_all(under_way)

    def _as_they_come(
        self, make: Callable[[Any], Call], items: Iterable[Any], size: int, each: Callable[[Reply], Item[Reply]]
    ) -> Flow[None]:
        done = self.driver.mailbox()
        under_way: dict[Any, None] = {}
        take, result = self.driver.take, self.driver.result
        numbered: Iterator[tuple[int, Any]] = enumerate(items)
        try:
            while True:
                while len(under_way) < size and done.empty() and (entry := next(numbered, None)) is not None:
                    future = self.submit(make(entry[1]), entry[0])
                    under_way[future] = None
                    future.add_done_callback(done.put)
                if not under_way:
                    return
                future = yield take(done)
                del under_way[future]
                yield each((yield result(future)))
        finally:
            _cancel_all(under_way)

    def _open(self, call: Call) -> None:
        self._post(partial(self._session.open, call, self.driver.now()))

    def _post(self, function: Callable[[], object]) -> None:
        if not self.driver.post(function):
            self.driver.check()
            raise closed_error()

    def _cancel(self, call: Call) -> None:
        self.driver.post(partial(self._session.cancel, call))


class _Progress:
    """Counts the replies of a map."""

    def __init__(self, tell: Callable[[int, int | None], None], items: Iterable[Any]) -> None:
        self._tell, self._done = tell, 0
        self._total = len(items) if isinstance(items, list | tuple | range | set | dict) else None

    def of(self, reply: Reply) -> Item[Reply]:
        self._done += 1
        self._tell(self._done, self._total)
        return Item(reply)


def _cancel_all(futures: Iterable[Any]) -> None:
    for future in futures:
        if not future.cancel() and not future.cancelled():
            future.exception()  # nobody will ask for it, which is no fault
