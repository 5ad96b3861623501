"""Sessions, drivers and flows, beside what clients and workers show of them."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from scale0_core.client.kit.drivers import SLICE, CallerDriver, ThreadDriver
from scale0_core.client.kit.errors import (
    CallError,
    CallTimedOutError,
    ClientError,
    ClosedError,
    NoBrokerError,
    WorkerError,
)
from scale0_core.client.kit.flows import Flow, Item, arun, run
from scale0_core.client.kit.link import CONTEXT, Link
from scale0_core.client.kit.loop import LoopDriver
from scale0_core.client.kit.sessions import Limits
from scale0_core.errors import AddressError, NotReachedError, Scale0Error, TimedOutError
from scale0_core.service import Frames

pytestmark = pytest.mark.real

PATIENCE = 20.0


class Asking:
    """A session that asks and keeps the answers."""

    limits = Limits()

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection = 1
        self.out: list[Frames] = []
        self.ended = self.linked = False
        self.answers: list[bytes] = []
        self.error: BaseException | None = None
        self.due: float | None = None
        self.ticks = 0

    def start(self, now: float) -> None: ...

    def on_linked(self, now: float) -> None:
        self.linked = True

    def on_unlinked(self, now: float) -> None:
        self.linked = False

    def on_nobody(self, reason: str, now: float) -> None: ...

    def receive(self, frames: Frames, now: float) -> None:
        if frames == (b"burst",):
            raise ValueError("a fault of the session")
        self.answers.append(frames[0])

    def next_deadline(self) -> float | None:
        return self.due

    def on_deadline(self, now: float) -> None:
        self.ticks += 1
        self.due = now + 0.01

    def ask(self, *frames: bytes) -> None:
        self.out.append(frames)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        if not self.ended:
            self.ended, self.error = True, error
            self.ask(b"bye")


class Echo:
    """A ROUTER on a thread that sends everything back, and keeps what came."""

    def __init__(self, address: str) -> None:
        self.heard: list[bytes] = []
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(address)
        self._stopped = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped:
            if self._socket.poll(20):
                peer, *frames = self._socket.recv_multipart()
                self.heard.append(frames[0])
                self._socket.send_multipart([peer, *frames])

    def close(self) -> None:
        self._stopped = True
        self._thread.join(PATIENCE)
        self._socket.close()
        self._context.term()


@pytest.fixture
def address(real: None, tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/echo"


@pytest.fixture
def echo(address: str) -> Iterator[Echo]:
    found = Echo(address)
    yield found
    found.close()


def eventually(condition: Callable[[], object]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def asked(driver, text: bytes) -> Flow[bytes]:
    """Ask, and return the answer: the same flow for every driver."""
    session = driver.session
    driver.post(lambda: session.ask(text))
    if not (yield driver.until(lambda: text in session.answers, PATIENCE)):
        raise CallTimedOutError("no answer")
    return text


def linked(driver) -> Flow[bool]:
    found: bool = yield driver.until(lambda: driver.session.linked, PATIENCE)
    return found


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_a_flow_runs_on_threads(echo: Echo, address: str, kind: str):
    session = Asking(address)
    driver = ThreadDriver(session, "test") if kind == "thread" else CallerDriver(session)
    driver.start()
    assert driver.run(linked(driver))
    assert driver.run(asked(driver, b"hello")) == b"hello"
    driver.close()
    assert session.ended
    assert not driver.post(lambda: None)
    eventually(lambda: b"bye" in echo.heard)


def test_the_same_flow_runs_on_a_loop(echo: Echo, address: str):
    async def main() -> None:
        session = Asking(address)
        driver = LoopDriver(session)
        driver.start()
        assert await driver.run(linked(driver))
        assert await driver.run(asked(driver, b"hello")) == b"hello"
        await driver.closing()
        assert session.ended
        assert not driver.post(lambda: None)

    asyncio.run(main())
    eventually(lambda: b"bye" in echo.heard)


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_time_is_a_bound_of_a_wait(address: str, kind: str):
    session = Asking(address)
    driver = ThreadDriver(session, "test") if kind == "thread" else CallerDriver(session)
    driver.start()
    began = time.monotonic()
    assert driver.until(lambda: False, 0.05)() is False
    assert time.monotonic() - began < PATIENCE
    driver.close()


@pytest.mark.parametrize("kind", ["thread", "loop"])
def test_a_session_that_raises_is_stopped_with_its_error(echo: Echo, address: str, kind: str):
    session = Asking(address)

    def fail(driver) -> Flow[bool]:
        yield from linked(driver)
        driver.post(lambda: session.ask(b"burst"))
        ended: bool = yield driver.until(lambda: session.ended, PATIENCE)
        return ended

    if kind == "thread":
        driver = ThreadDriver(session, "test")
        driver.start()
        assert driver.run(fail(driver))
        driver.close()
    else:

        async def main() -> None:
            driver = LoopDriver(session)
            driver.start()
            assert await driver.run(fail(driver))
            await driver.closing()

        asyncio.run(main())
    assert isinstance(session.error, ValueError)


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_one_driver_turns_several_sessions(echo: Echo, address: str, kind: str):
    first, second = Asking(address), Asking(address)
    driver = ThreadDriver(first, "test") if kind == "thread" else CallerDriver(first)
    driver.start()
    driver.post(lambda: driver.add(second))
    assert driver.until(lambda: first.linked and second.linked, PATIENCE)()
    driver.post(lambda: second.ask(b"second"))
    assert driver.until(lambda: second.answers == [b"second"], PATIENCE)()
    assert first.answers == []
    driver.post(lambda: second.stop(0.0))
    assert driver.until(lambda: not driver._others, PATIENCE)()
    assert driver.run(asked(driver, b"first")) == b"first"
    driver.close()


def test_a_loop_turns_several_sessions(echo: Echo, address: str):
    async def main() -> None:
        first, second = Asking(address), Asking(address)
        driver = LoopDriver(first)
        driver.start()
        driver.add(second)
        assert await driver.until(lambda: first.linked and second.linked, PATIENCE)
        driver.post(lambda: second.ask(b"second"))
        assert await driver.until(lambda: second.answers == [b"second"], PATIENCE)
        await driver.closing()
        assert second.ended

    asyncio.run(main())


class Following(Asking):
    """Has another session ask what it is answered itself."""

    def __init__(self, address: str, other: Asking) -> None:
        super().__init__(address)
        self._other = other

    def receive(self, frames: Frames, now: float) -> None:
        self._other.ask(*frames)


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_what_a_session_has_another_send_is_sent_in_the_same_turn(echo: Echo, address: str, kind: str):
    first = Asking(address)
    second = Following(address, first)
    driver = ThreadDriver(first, "test") if kind == "thread" else CallerDriver(first)
    driver.start()
    driver.post(lambda: driver.add(second))
    assert driver.until(lambda: first.linked and second.linked, PATIENCE)()
    driver.post(lambda: second.ask(b"passed on"))
    assert driver.until(lambda: first.answers == [b"passed on"], PATIENCE)()
    driver.close()


class Impatient(Asking):
    """Wants to know of every attempt that failed, and frames that are not copied."""

    limits = Limits(report_failures=True, views=True)
    failures = 0

    def on_nobody(self, reason: str, now: float) -> None:
        self.failures += 1


def test_a_session_may_learn_of_every_attempt_that_failed(address: str):
    echo = Echo(address)
    session = Impatient(address)
    driver = CallerDriver(session)
    driver.start()
    assert driver.run(linked(driver))
    assert driver.run(asked(driver, b"hello"))
    assert type(session.answers[0]) is memoryview
    echo.close()
    assert driver.until(lambda: session.failures >= 2, PATIENCE)()
    driver.close()


def test_a_ticker_turns_a_busy_session_while_its_user_does_other_things(echo: Echo, address: str):
    session = Asking(address)
    driver = CallerDriver(session, tick=0.01, busy=lambda: session.ticks < 5)
    driver.start()
    session.due = 0.0
    driver.kick()
    eventually(lambda: session.ticks >= 5)
    driver.close()


class Noting(Asking):
    """Notes what is still to be sent when an engine has looked for messages and asks for the deadline."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.unsent: list[int] = []

    def next_deadline(self) -> float | None:
        self.unsent.append(len(self.out))
        return None


def test_what_is_to_be_sent_is_sent_before_anybody_looks_for_answers(echo: Echo, address: str):
    session = Noting(address)
    driver = CallerDriver(session)
    driver.start()
    assert driver.run(linked(driver))
    session.ask(b"a")
    driver.kick()
    session.ask(b"b")
    assert driver.until(lambda: session.answers == [b"a", b"b"], PATIENCE)()
    assert not any(session.unsent)
    driver.close()


@pytest.mark.parametrize("kind", ["caller", "loop"])
def test_a_new_connection_is_made_before_anybody_waits(echo: Echo, address: str, kind: str):
    def again(driver) -> Flow[float]:
        yield from linked(driver)
        session = driver.session
        session.linked, began = False, time.monotonic()
        session.connection += 1
        yield from linked(driver)
        return time.monotonic() - began

    session = Asking(address)
    if kind == "caller":
        driver = CallerDriver(session)
        driver.start()
        waits = [driver.run(again(driver)) for _ in range(5)]
        driver.close()
    else:

        async def main() -> list[float]:
            driver = LoopDriver(session)
            driver.start()
            found = [await driver.run(again(driver)) for _ in range(5)]
            await driver.closing()
            return found

        waits = asyncio.run(main())
    assert min(waits) < SLICE / 2


@pytest.mark.parametrize("kind", ["caller", "loop"])
def test_a_condition_may_use_the_session(echo: Echo, address: str, kind: str):
    session = Asking(address)

    def answered() -> bool:
        if session.linked and not session.out and not session.answers:
            session.ask(b"from the condition")
        return bool(session.answers)

    if kind == "caller":
        driver = CallerDriver(session)
        driver.start()
        assert driver.until(answered, PATIENCE)()
        driver.close()
    else:

        async def main() -> None:
            driver = LoopDriver(session)
            driver.start()
            assert await driver.until(answered, PATIENCE)
            await driver.closing()

        asyncio.run(main())


def test_what_other_threads_post_comes_in_order_and_completely(echo: Echo, address: str):
    session, found = Asking(address), []
    driver = ThreadDriver(session, "test")
    driver.start()

    def post(name: int) -> None:
        for number in range(3000):
            assert driver.post(lambda entry=(name, number): found.append(entry))

    threads = [threading.Thread(target=post, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert driver.until(lambda: len(found) == 12_000, PATIENCE)()
    assert all([number for name, number in found if name == which] == list(range(3000)) for which in range(4))
    driver.close()


class Owner:
    """Whoever uses a driver."""


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_a_driver_is_closed_when_nobody_has_its_owner(address: str, kind: str):
    session = Asking(address)
    driver = ThreadDriver(session, "test") if kind == "thread" else CallerDriver(session)
    driver.start()
    owner = Owner()
    driver.belong_to(owner)
    del owner
    gc.collect()
    eventually(lambda: session.ended)


@pytest.mark.real
def test_an_address_that_is_not_valid_is_an_error_at_the_start():
    for driver in (ThreadDriver(Asking("nonsense"), "test"), CallerDriver(Asking("nonsense"))):
        with pytest.raises(AddressError):
            driver.start()


# --- failures ---------------------------------------------------------------------------------------------------------


class Wordless(Asking):
    """Has last words that nobody can send."""

    def stop(self, now: float, error: BaseException | None = None) -> None:
        super().stop(now, error)
        self.out.append(("no bytes",))


@pytest.mark.parametrize("kind", ["thread", "caller", "loop"])
def test_sessions_are_stopped_though_one_cannot_say_its_last_words(echo: Echo, address: str, kind: str):
    first, second = Wordless(address), Asking(address)

    def use(driver) -> Flow[None]:
        driver.post(lambda: driver.add(second))
        assert (yield driver.until(lambda: first.linked and second.linked, PATIENCE))
        links.extend([engine.link for engine in (driver.engine, *driver._others)])
        yield driver.closing()
        assert (yield driver.until(lambda: first.ended and second.ended, 1.0))

    links: list[Link] = []
    if kind == "loop":

        async def main() -> None:
            driver = LoopDriver(first)
            driver.start()
            await driver.run(use(driver))

        asyncio.run(main())
    else:
        driver = ThreadDriver(first, "test") if kind == "thread" else CallerDriver(first)
        driver.start()
        run(use(driver))
    eventually(lambda: b"bye" in echo.heard)
    assert len(links) == 2
    assert all(link.socket.closed for link in links)
    assert CONTEXT._context is None


def test_what_was_sent_is_not_sent_again_after_a_failure(echo: Echo, address: str):
    session = Asking(address)
    driver = CallerDriver(session)
    driver.start()
    assert driver.run(linked(driver))
    session.out += [(b"once",), ("no bytes",)]
    with pytest.raises(TypeError):
        driver.kick()
    assert driver.run(asked(driver, b"after")) == b"after"
    assert echo.heard == [b"once", b"after"]
    driver.close()


def test_a_ticker_that_fails_closes_its_driver(echo: Echo, address: str):
    session = Asking(address)
    driver = CallerDriver(session, tick=0.01, busy=lambda: True)
    driver.start()
    assert driver.run(linked(driver))
    session.ask(b"burst")  # its answer makes the session raise
    driver.kick()
    eventually(lambda: driver.closed)
    assert isinstance(session.error, ValueError)
    assert not driver.post(lambda: None)
    assert not driver.until(lambda: False, PATIENCE)()
    driver.abandon()
    eventually(lambda: CONTEXT._context is None)


class Resolving(Asking):
    """Puts the answer into a future."""

    future: concurrent.futures.Future[bytes]

    def receive(self, frames: Frames, now: float) -> None:
        self.future.set_result(frames[0])


@pytest.mark.parametrize("kind", ["thread", "caller"])
def test_a_future_has_its_result_whoever_turns(echo: Echo, address: str, kind: str):
    session = Resolving(address)
    driver = ThreadDriver(session, "test") if kind == "thread" else CallerDriver(session)
    driver.start()
    assert driver.run(linked(driver))
    future = session.future = driver.future(lambda _: None, None)
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.05)
    driver.post(lambda: session.ask(b"hello"))
    assert future.result(PATIENCE) == b"hello"
    assert future.exception() is None
    driver.close()


# --- the context ------------------------------------------------------------------------------------------------------


def test_links_share_zeromqs_threads_until_the_last_is_closed(address: str):
    first, second = Link(address), Link(address)
    assert first._context is second._context
    first.drop()
    assert not second._context.closed
    second.drop()
    assert second._context.closed
    assert CONTEXT._context is None


def test_a_forked_child_has_a_context_of_its_own(echo: Echo, address: str):
    parent = Link(address)
    assert parent.wait_until_connected(PATIENCE)
    pid = os.fork()
    if not pid:
        try:
            link = Link(address)
            fine = link.wait_until_connected(PATIENCE) and link._context is not parent._context
            link.drop()
            os._exit(0 if fine else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    parent.send((b"still here",))
    assert parent.receive(PATIENCE) == (b"still here",)
    parent.drop()


# --- flows ------------------------------------------------------------------------------------------------------------


class Steps:
    """Makes steps that return or raise at once, for threads or for asyncio."""

    def __init__(self, name: str) -> None:
        self._waits = name == "aio"

    def of(self, value):
        async def later():
            return now()

        def now():
            if isinstance(value, BaseException):
                raise value
            return value

        return later() if self._waits else now

    def run(self, flow: Flow):
        return asyncio.run(arun(flow)) if self._waits else run(flow)


@pytest.mark.parametrize("name", ["sync", "aio"])
def test_what_a_step_raises_is_raised_in_the_flow(name: str):
    steps = Steps(name)

    def flow() -> Flow[list[object]]:
        found: list[object] = [(yield steps.of(1))]
        try:
            yield steps.of(KeyError("x"))
        except KeyError as error:
            found.append(repr(error))
        found.append((yield steps.of(2)))
        return found

    assert steps.run(flow()) == [1, "KeyError('x')", 2]

    def failing() -> Flow[None]:
        yield steps.of(OSError("y"))

    with pytest.raises(OSError, match="y"):
        steps.run(failing())


def test_items_of_a_flow_and_its_end():
    closed: list[str] = []
    steps = Steps("sync")

    def flow() -> Flow[None]:
        try:
            for number in range(3):
                yield Item((yield steps.of(number)))
        finally:
            closed.append("closed")

    driver = CallerDriver(Asking("ipc:///nowhere"))
    assert list(driver.each(flow())) == [0, 1, 2]
    items = driver.each(flow())
    assert next(items) == 0
    items.close()
    assert closed == ["closed"] * 2


def test_items_of_a_flow_on_a_loop():
    steps = Steps("aio")

    def flow() -> Flow[None]:
        for number in range(3):
            yield Item((yield steps.of(number)))

    async def main() -> list[int]:
        return [item async for item in LoopDriver(Asking("ipc:///nowhere")).each(flow())]

    assert asyncio.run(main()) == [0, 1, 2]


# --- errors -----------------------------------------------------------------------------------------------------------


def test_there_is_one_tree_of_errors():
    assert issubclass(CallError, ClientError)
    assert issubclass(WorkerError, ClientError)
    assert issubclass(ClientError, Scale0Error)
    assert issubclass(CallTimedOutError, CallError)
    assert issubclass(CallTimedOutError, TimedOutError)
    assert issubclass(NoBrokerError, NotReachedError)
    assert CallTimedOutError.code == 408


def test_a_plugin_makes_errors_that_are_both_its_own_and_everybodys():
    class PipeError(CallError):
        def __init__(self, what: str, *, pipe: bytes = b"", **options) -> None:
            super().__init__(what, **options)
            self.pipe = pipe

    class PipeTimeoutError(PipeError, CallTimedOutError): ...

    class PipeClosedError(PipeError, ClosedError): ...

    error = PipeTimeoutError("late", pipe=b"p")
    assert (error.code, error.pipe, error.exit_code) == (408, b"p", 75)
    assert isinstance(PipeClosedError("x"), ClosedError)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(CallTimedOutError))
        raise error
