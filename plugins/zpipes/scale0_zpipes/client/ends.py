"""The ends of a pipe, but for how they wait: from what a user says to a session, its driver, and flows."""

# does I/O: draws the writer's id, and chance for its pauses

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any, Generic, Literal, TypeVar, overload

from scale0_core.api import Scale0Error, get_logger
from scale0_core.client.kit.drivers import SLICE, Driver
from scale0_core.client.kit.flows import Flow, Item
from scale0_core.client.kit.route import Broker, target
from scale0_zpipes.client.errors import PipeError, PipeLostError, PipeTimeoutError, Stage, closed, inherited
from scale0_zpipes.client.session import NEVER, Session
from scale0_zpipes.client.sessions import BATCH_BYTES, BATCH_CHUNKS, WINDOW, ReaderSession, WriterSession

LOG = get_logger("zpipes")

Start = Literal["first", "next"] | int
TIMEOUT = 30.0
MAX_NAME = 255
MAX_LEASE = 86_400
SHORT = 1.0
"""Seconds that a broker has to answer whether there is a chunk, though the time to wait for one is over."""
GOODBYE = 1.0
"""Seconds that a broker has to answer when a pipe is closed."""
FASTEST_TICK = 0.005

R = TypeVar("R", bound="Reading")
W = TypeVar("W", bound="Writing")


def name_of(name: str | bytes, what: str = "the name of a pipe") -> bytes:
    """Return a name as bytes."""
    found = name.encode() if isinstance(name, str) else bytes(name)
    if not 1 <= len(found) <= MAX_NAME:
        raise ValueError(f"{what} has 1 to {MAX_NAME} bytes, not {len(found)}")
    return found


class Opens(ABC, Generic[R, W]):
    """Opens a pipe as one of two classes."""

    @classmethod
    @abstractmethod
    def _kinds(cls) -> tuple[type[R], type[W]]:
        """Return the class that reads, and the one that writes."""

    @overload
    @classmethod
    def open(
        cls, name: str | bytes, mode: Literal["r"], *, broker: Broker = ..., timeout: float = ...,
        group: str | bytes | None = ..., start: Start = ..., lease: float | None = ..., auto_ack: bool | None = ...,
        batch_bytes: int = ..., batch_chunks: int = ...,
    ) -> R: ...  # fmt: skip

    @overload
    @classmethod
    def open(
        cls, name: str | bytes, mode: Literal["w"], *, broker: Broker = ..., timeout: float = ...,
        batch: bool = ..., batch_bytes: int = ..., batch_chunks: int = ..., window: int = ..., delay: float = ...,
    ) -> W: ...  # fmt: skip

    @classmethod
    def open(cls, name: str | bytes, mode: str, **options: Any) -> Any:
        """Open a pipe for reading ("r") or writing ("w"); it is made if it is not there.

        The options are those of ``PipeReader`` and ``PipeWriter``.
        """
        if mode not in ("r", "w"):
            raise ValueError(f"a pipe is opened for reading, 'r', or for writing, 'w': {mode!r}")
        reader, writer = cls._kinds()
        return reader(name, **options) if mode == "r" else writer(name, **options)


class End(ABC):
    """One end of a pipe, with its session and what turns it."""

    _session: Session

    def __init__(self, session: Session, tick: float = 0.0) -> None:
        self._session = session
        self._driver = self._driven(session, tick)
        self._driver.forked_error = partial(inherited, session.name)
        self._driver.belong_to(self)
        self._opened = self._closing = self._left = False
        self._begin()

    @abstractmethod
    def _driven(self, session: Session, tick: float) -> Driver[Any]:
        """Make what turns the session; with a tick, also every so many seconds while it is busy."""

    @abstractmethod
    def _begin(self) -> None:
        """Open the pipe, if that is done when an end is made."""

    @property
    def name(self) -> bytes:
        """The name of the pipe."""
        return self._session.name

    @property
    def closed(self) -> bool:
        """Whether this end is closed."""
        return self._closing

    @property
    def timeout(self) -> float:
        """Seconds for which the broker may be away."""
        return self._session.patience

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._session.patience = seconds

    # --- flows --------------------------------------------------------------------------------------------------------

    def _open(self) -> Flow[None]:
        """Connect and open the pipe, unless that was done."""
        if self._opened:
            return
        try:
            self._driver.start()
        except Scale0Error as error:
            problem = error.problem
            raise PipeError(
                problem.what, problem.why, problem.consequence, problem.remedy, pipe=self.name, stage=Stage.CONNECTING
            ) from error
        self._opened = True
        try:
            yield from self._wait(lambda: self._session.ready)
        except BaseException:
            self._closing = True
            yield self._driver.closing()
            raise

    def _wait(self, done: Callable[[], bool], timeout: float | None = None) -> Flow[None]:
        """Wait until something holds; an error ends it, or the time. The condition may use the session."""
        session, now = self._session, self._driver.now
        began = now()
        fault: PipeError | None = None

        def over() -> bool:
            nonlocal fault
            if done():
                return True
            fault = session.fault(now(), began) or (closed(session.name) if self._closing else None)
            return fault is not None

        if not (yield self._driver.until(over, timeout, SLICE)):
            raise closed(session.name) if timeout is None else session.late(timeout)
        if fault is not None:
            raise fault

    def _check(self) -> None:
        if not self._opened:
            raise RuntimeError("open a pipe by await Pipe.open(...) or async with Pipe.open(...)")
        if self._closing:
            raise closed(self._session.name)
        if self._session.error is not None:
            raise self._session.error

    def _may_leave(self) -> bool:
        """Return whether closing is this process's business; in a forked child it is the parent's."""
        self._closing |= self._driver.forked
        return self._opened and not self._driver.forked

    def _leave(self) -> Flow[None]:
        """Take leave of the broker, and close; once."""
        if self._left:
            return
        self._left = self._closing = True
        session, driver = self._session, self._driver
        try:
            if session.error is None:
                session.leave(driver.now())
                yield driver.until(lambda: session.left, min(GOODBYE, session.patience))
        finally:
            yield driver.closing()

    @abstractmethod
    def _end(self, error: BaseException | None) -> Flow[None]:
        """Close after a ``with`` block, and after its error if there was one."""


class Reading(End):
    """The end that reads."""

    _session: ReaderSession

    def __init__(
        self, name: str | bytes, *, broker: Broker = "default", timeout: float = TIMEOUT,
        group: str | bytes | None = None, start: Start = "first", lease: float | None = None,
        auto_ack: bool | None = None, batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS,
    ) -> None:  # fmt: skip
        """Make a reader.

        :param broker: the name of a broker on this machine, an address of a service zpipes, or several, tried in order.
        :param timeout: seconds for which the broker may be away.
        :param group: read as a group of this name: all chunks, without removing them for others; ``ack`` says what is
            done.
        :param start: where a new group begins: "first", "next" or a number.
        :param lease: have the broker forget the group when it was not used for so many seconds. Such a reader takes
            nothing away from the pipe's own, and does not count as somebody who has the pipe open.
        :param auto_ack: acknowledge chunks by itself; by default not in a group.
        """
        if min(batch_bytes, batch_chunks) < 1:
            raise ValueError("a batch has at least one byte and one chunk")
        if isinstance(start, str) and start not in ("first", "next"):
            raise ValueError(f"a group starts at 'first', 'next' or a number: {start!r}")
        own = group is None
        if lease is not None and (own or not 0.001 <= lease <= MAX_LEASE):
            raise ValueError(f"a lease is of a group, and has 0.001 to {MAX_LEASE} seconds: {lease}")
        super().__init__(
            ReaderSession(
                name_of(name), target(broker, "zpipes", "pipes"), patience=timeout, random=Random(),  # noqa: S311
                group=b"" if group is None else name_of(group, "the name of a group"), start=str(start).encode(),
                lease=lease, auto_ack=own if auto_ack is None else auto_ack, batch_bytes=batch_bytes,
                batch_chunks=batch_chunks,
            )
        )  # fmt: skip

    @property
    def number(self) -> int:
        """The number of the chunk that was read last; 0 before the first."""
        return self._session.number

    @property
    def position(self) -> int:
        """The number of the chunk that is read next, as far as that is known."""
        return self._session.position

    def done(self) -> None:
        """Say that the chunk read last was made use of, before the next one is asked for."""
        if self._opened:
            self._driver.post(lambda: self._session.consume(self._driver.now()))

    # --- flows --------------------------------------------------------------------------------------------------------

    def _take(self) -> bytes | None:
        """Return the next chunk if it is here: without a flow, which costs as much as the rest."""
        self._check()
        session = self._session
        chunk = session.take(self._driver.now())
        if session.out:
            self._driver.kick()
        return chunk

    def _next(self, timeout: float | None) -> Flow[bytes]:
        """Wait for a chunk."""
        found: list[bytes] = []

        def took() -> bool:
            chunk = self._session.take(self._driver.now())
            if chunk is not None:
                found.append(chunk)
            return chunk is not None

        try:
            yield from self._wait(took, timeout)
        except PipeTimeoutError as error:
            # shorter than the way to the broker and back, so it is not known yet whether there is a chunk
            if timeout is None or timeout >= SHORT or error.stage is not Stage.CHUNK:
                raise
            chunk = yield from self._next_if_any(SHORT)
            if chunk is None:
                raise
            return chunk
        return found[0]

    def _next_if_any(self, timeout: float) -> Flow[bytes | None]:
        """Wait for a chunk, or until it is known that there is none."""
        session = self._session
        found: list[bytes] = []

        def took_or_empty() -> bool:
            chunk = session.take(self._driver.now())
            if chunk is not None:
                found.append(chunk)
            elif not session.empty:
                session.probe()
                return False
            return True

        session.empty = False
        yield from self._wait(took_or_empty, timeout)
        return found[0] if found else None

    def _chunks(self, timeout: float | None) -> Flow[None]:
        while True:
            chunk = self._take()
            if chunk is None:
                try:
                    chunk = yield from self._next(timeout)
                except PipeTimeoutError as error:
                    if error.stage is Stage.CHUNK:
                        return
                    raise
            yield Item(chunk)

    def _drain(self) -> Flow[None]:
        while True:
            chunk = self._take()
            if chunk is None:
                chunk = yield from self._next_if_any(self._session.patience)
            if chunk is None:
                return
            yield Item(chunk)

    def _ack(self, number: int | None, timeout: float | None) -> Flow[None]:
        self._check()
        session, now = self._session, self._driver.now()
        lost = session.acks_lost
        if number is None:
            session.consume(now)
        session.ack(now, number)
        yield from self._wait(lambda: session.acks_confirmed or session.acks_lost != lost, timeout)
        if session.acks_lost != lost and not (session.group and session.durable):
            what = "the connection broke before the acknowledgement was confirmed"
            raise PipeLostError(what, "", "the chunks may come again", "", pipe=session.name)
        yield from self._wait(lambda: session.acks_confirmed, timeout)

    def _seek(self, number: int, timeout: float | None) -> Flow[None]:
        self._check()
        if not self._session.group:
            raise ValueError("only a reader with a group can go to another number")
        self._session.seek(number, self._driver.now())
        yield from self._wait(lambda: self._session.ready, timeout)

    def _info(self, timeout: float | None) -> Flow[dict[str, Any]]:
        self._check()
        session = self._session
        yield from self._wait(lambda: session.ready, timeout)
        session.ask_info()
        yield from self._wait(lambda: session.ready and not session.info_asked, timeout)
        return session.info

    def _may_leave(self) -> bool:
        self._closing |= self._opened  # before it is this thread's turn: who waits for a chunk ends by that
        return super()._may_leave()

    def _close(self, *, consumed: bool, drop_group: bool = False) -> Flow[None]:
        if not self._left:
            if consumed:
                self._session.consume(self._driver.now())
            if drop_group:
                self._session.drop_group()
            yield from self._leave()

    def _end(self, error: BaseException | None) -> Flow[None]:
        yield from self._close(consumed=error is None)


class Writing(End):
    """The end that writes."""

    _session: WriterSession

    def __init__(
        self, name: str | bytes, *, broker: Broker = "default", timeout: float = TIMEOUT,
        batch: bool = True, batch_bytes: int = BATCH_BYTES, batch_chunks: int = BATCH_CHUNKS, window: int = WINDOW,
        delay: float = 0.05,
    ) -> None:  # fmt: skip
        """Make a writer.

        :param broker: the name of a broker on this machine, an address of a service zpipes, or several, tried in order.
        :param timeout: seconds for which the broker may be away.
        :param batch: False has each chunk sent and acknowledged before ``write`` returns.
        :param window: batches that may be under way at once.
        :param delay: seconds for which chunks are collected.
        """
        if min(batch_bytes, batch_chunks, window) < 1 or delay < 0:
            raise ValueError("a batch has at least one byte and one chunk, a window at least one place")
        self._batch = batch
        self._turns: deque[object] = deque()
        """Writes of single chunks, one after the other."""
        session = WriterSession(
            name_of(name), target(broker, "zpipes", "pipes"), writer=secrets.token_hex(16).encode(), patience=timeout,
            random=Random(), batch_bytes=batch_bytes, batch_chunks=batch_chunks, window=window,  # noqa: S311
            delay=delay,
        )  # fmt: skip
        super().__init__(session, max(delay, FASTEST_TICK) if batch else 0.0)

    @property
    def pending(self) -> int:
        """How many chunks are not acknowledged yet."""
        return self._session.pending

    # --- flows --------------------------------------------------------------------------------------------------------

    def _write(self, chunk: bytes | bytearray | memoryview, timeout: float | None) -> Flow[None] | None:
        """Take a chunk; return the flow that does it if that has to wait."""
        data = chunk if type(chunk) is bytes else bytes(memoryview(chunk))  # nobody changes it on its way
        self._check()
        session = self._session
        session.check(data)
        if not self._batch:
            # sent before there is a flow, which is made while the chunk is on its way
            alone = session.idle and not self._turns
            if alone:
                self._send(data, timeout)
            return self._write_through(None if alone else data, timeout)
        if session.failures or not session.has_room:
            return self._write_when_there_is_room(data, timeout)
        session.write(data, self._driver.now())
        self._driver.kick()
        return None

    def _write_when_there_is_room(self, data: bytes, timeout: float | None) -> Flow[None]:
        session = self._session
        yield from self._wait(lambda: session.has_room or bool(session.failures), timeout)
        self._raise_failures()
        session.write(data, self._driver.now())
        self._driver.kick()

    def _send(self, data: bytes, timeout: float | None) -> None:
        session, now = self._session, self._driver.now()
        # so the broker says for certain that there is no room before our time is over
        session.give_up_at(NEVER if timeout is None else now + timeout * 0.9, now)
        self._driver.post(lambda: session.write(data, now))

    def _write_through(self, data: bytes | None, timeout: float | None) -> Flow[None]:
        """Write a chunk, unless it was sent, and wait until it is acknowledged; several of them one after the other."""
        session, turns, turn = self._session, self._turns, object()
        turns.append(turn)
        try:
            if turns[0] is not turn:
                yield from self._wait(lambda: turns[0] is turn)
            if data is not None:
                if not session.idle:  # an earlier one, of which it was not known whether it was written
                    session.give_up_at(NEVER, self._driver.now())
                    yield from self._wait(lambda: session.idle, timeout)
                self._send(data, timeout)
            yield from self._wait(lambda: session.idle, timeout)
        except PipeTimeoutError as error:
            if timeout is not None and session.withdraw():
                raise session.late(timeout) from error
            raise
        finally:
            turns.remove(turn)
            if turns:
                self._driver.post(lambda: None)  # the next one looks whether it is its turn
        self._raise_failures()

    def _flush(self, timeout: float | None) -> Flow[None]:
        self._check()
        session, now = self._session, self._driver.now()
        session.give_up_at(NEVER, now)
        session.flush(now)
        yield from self._wait(lambda: session.idle, timeout)
        self._raise_failures()

    def _raise_failures(self) -> None:
        if self._session.failures:
            failures, self._session.failures = self._session.failures, []
            failures[0].others = tuple(failures[1:])
            raise failures[0]

    def _close(self, timeout: float | None) -> Flow[None]:
        if self._closing:
            return
        session = self._session
        try:
            if session.error is None:
                yield from self._flush(session.patience if timeout is None else timeout)
            elif not session.idle:
                raise session.error
        finally:
            yield from self._leave()

    def _end(self, error: BaseException | None) -> Flow[None]:
        if error is None:
            yield from self._close(None)
            return
        try:
            yield from self._close(min(1.0, self._session.patience))
        except Exception as second:
            # the first error is the one to be told
            LOG.warning("a pipe was closed with chunks that are not confirmed", error=str(second))
