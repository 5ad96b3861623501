"""What workers do with tasks: handlers in threads (here) or as asyncio tasks (in ``loop_serving``), once for all.

A worker has *lines*: each is a session with the driver and the handlers behind it. A session of the Scale0 protocol has
all services of a worker in one line; Majordomo's has a line for each service. ``Serving`` has the operations.

**What a session must provide** beside ``sessions.Session`` is ``ServingSession``. It is made with two callbacks, the
``begin`` and ``cancel`` of its ``Handling``, and calls ``begin`` for each task, once, and ``cancel`` when nobody waits
for a task any more, after it has set ``task.over``. What comes of a task goes to ``part`` and, once, to ``answer``, on
the side of the session, also for a task that is over: that frees its slot.
"""

from __future__ import annotations

import inspect
import math
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextvars import ContextVar
from functools import partial
from types import GeneratorType
from typing import Any, Generic, Protocol, TypeVar

import attrs

from scale0_core.client.kit.drivers import Bell, Driver, HeededSignals, ThreadDriver
from scale0_core.client.kit.errors import FORKED, RemoteError, WorkerError
from scale0_core.client.kit.flows import Flow, Step, run
from scale0_core.client.kit.sessions import Answer, Session
from scale0_core.logs import get_logger
from scale0_core.service import Frames

LOG = get_logger("worker")

Part = bytes | bytearray | memoryview | str
Result = Part | tuple[Part, ...] | list[Part] | None
Handler = Callable[..., Any]
"""Takes a task's arguments; returns a Result, or yields several, or does so asynchronously."""

LONGEST_MESSAGE = 2000
PARTS_AT_ONCE = 100
"""Parts of a streamed reply after which a generator waits until they have left."""
LOOK_EVERY = 0.05
"""Seconds after which a generator that waits looks whether anybody still does."""


class Task(Protocol):
    """A task in a worker's hands."""

    over: int
    """0, or the code with which it ends because nobody waits for it any more."""
    begun: bool
    """Whether its handler runs; set by ``Handling``."""

    @property
    def arguments(self) -> tuple[Any, ...]:
        """What its handler is called with."""

    @property
    def about(self) -> dict[str, Any]:
        """What the log says about it: the service, and what else tells it from others."""


WORKING_ON: ContextVar[Any] = ContextVar("scale0_task", default=None)
"""The task whose handler runs in this thread or coroutine."""


def cancelled() -> bool:
    """Return whether nobody waits for the task any more that the calling handler works on.

    A plain function that runs for long looks at it now and then, and returns. Generators are closed, and coroutines
    are cancelled, without a look.
    """
    task = WORKING_ON.get()
    return task is not None and task.over != 0


def time_left() -> float:
    """Return the seconds until the deadline of the task that the calling handler works on; infinity without one."""
    deadline: float = getattr(WORKING_ON.get(), "deadline", math.inf)
    return deadline - time.monotonic()


# --- what handlers return ---------------------------------------------------------------------------------------------


def failure(task: Task, error: BaseException) -> Answer:
    """Make the answer for a handler that raised; what it raised is logged, unless the task was over already."""
    if task.over:
        return OVER
    if isinstance(error, RemoteError):
        return Answer(code=int(error.code) or RemoteError.code, message=error.message[:LONGEST_MESSAGE])
    LOG.failure("service raised", error, **task.about)
    message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
    return Answer(code=RemoteError.code, message=message.encode("utf-8", "replace").decode())


OVER = Answer(message="nobody waits for it any more")
"""The answer to a task that is over: the session says how that ends."""


class ServingSession(Session, Protocol):
    """A worker's side of one connection."""

    @property
    def fault(self) -> WorkerError | None:
        """What keeps it from serving, or the last that did."""

    @property
    def draining(self) -> bool:
        """Whether it takes no more tasks."""

    def offers(self, services: Iterable[str]) -> bool:
        """Return whether the broker has taken just these services."""

    def frames_of(self, result: Any) -> Frames:
        """Make frames of what a handler returned or yielded; any thread calls it, and what it raises ends the task."""

    def part(self, task: Any, seq: int, frames: Frames, now: float) -> None:
        """Send a part of a reply."""

    def answer(self, task: Any, answer: Answer, now: float) -> None:
        """Send how a task ends; its slot is free."""

    def drain(self, now: float) -> None:
        """Take no more tasks; end when those in hand are done."""


V = TypeVar("V", bound=ServingSession)


class Offers:
    """The functions behind the services of one worker."""

    def __init__(self, *, asynchronous: str = "") -> None:
        """Begin with none; ``asynchronous`` names the worker that takes async functions, if this one does not."""
        self._elsewhere = asynchronous
        self._by_name: dict[str, Handler] = {}

    def __getitem__(self, name: bytes) -> Handler | None:
        return self._by_name.get(name.decode("utf-8", "replace"))

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    @property
    def names(self) -> tuple[str, ...]:
        """The services there are."""
        return tuple(self._by_name)

    def add(self, name: str, function: Handler) -> None:
        """Have a function serve; one that was there under this name is replaced."""
        if not callable(function):
            raise TypeError(f"a service is a function, not {type(function).__name__}")
        if self._elsewhere and is_async(function):
            raise TypeError(f"{name} is served by an async function: use {self._elsewhere}")
        self._by_name[name] = function

    def remove(self, name: str) -> None:
        """Take a service away."""
        if name not in self._by_name:
            raise KeyError(f"there is no service {name}")
        del self._by_name[name]


def is_async(function: Handler) -> bool:
    """Return whether a function needs a loop."""
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


# --- running handlers -------------------------------------------------------------------------------------------------


class Pool:
    """Threads for handlers. They are daemons: one that never returns does not keep the program."""

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._free = 0
        self._lock = threading.Lock()

    def run(self, job: Callable[[], None]) -> None:
        """Have a job done as soon as a thread is free."""
        with self._lock:
            wanted = not self._free and len(self._threads) < self._size
            if self._free:
                self._free -= 1
        self._jobs.put(job)
        if wanted:
            thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            with self._lock:
                self._free += 1

    def stop(self) -> None:
        """End the threads that are free, the others when their job is done."""
        for _ in self._threads:
            self._jobs.put(None)


class Handling(ABC):
    """Runs handlers for one line."""

    def __init__(self, find: Callable[[Any], Handler | None], threads: int, at_once: int, name: str) -> None:
        """Make one.

        :param find: returns the handler of a task, or None where there is none any more.
        :param threads: how many tasks plain functions work on at once.
        :param at_once: how many tasks are worked on at once in all.
        """
        self._find = find
        self._pool = Pool(threads, name)
        self._at_once = at_once
        self._driver: Driver[Any] | None = None
        self._session: Any = None
        self.stopping = False
        """Whether no answers are wanted any more."""

    def attach(self, driver: Driver[Any]) -> None:
        """Say where answers go; before the driver starts."""
        self._driver, self._session = driver, driver.session

    def _post(self, call: Callable[[], object]) -> None:
        assert self._driver is not None
        self._driver.post(call)

    def begin(self, task: Any) -> None:
        """Have a task done; on the side of the session."""
        handler = self._find(task)
        if handler is None:
            service = task.about.get("service", b"")
            name = service.decode("utf-8", "replace") if isinstance(service, bytes) else service
            self._answer(task, Answer(code=404, message=f"this worker does not offer {name} any more"))
        else:
            self._start(task, handler)

    @abstractmethod
    def cancel(self, task: Any) -> None:
        """Stop the handler of a task that nobody waits for any more; on the side of the session."""

    @abstractmethod
    def closing(self) -> Step:
        """Stop all handlers, as far as they can be stopped; when the session has ended."""

    @abstractmethod
    def _start(self, task: Any, handler: Handler) -> None:
        """Have a handler called."""

    def _part(self, task: Any, seq: int, frames: Frames) -> None:
        if not task.over:
            self._session.part(task, seq, frames, time.monotonic())

    def _answer(self, task: Any, answer: Answer) -> None:
        self._session.answer(task, OVER if task.over else answer, time.monotonic())


class PoolHandling(Handling):
    """Runs plain functions on threads, while heartbeats go on."""

    def cancel(self, task: Any) -> None:
        """Stop a task. One that a thread has begun is told by ``task.over``; the others need none to end."""
        if not task.begun:
            self._answer(task, OVER)

    def closing(self) -> Step:
        """End the threads that are free."""
        return self._pool.stop

    def _start(self, task: Any, handler: Handler) -> None:
        self._pool.run(partial(self._work, task, handler))

    def _work(self, task: Any, handler: Handler) -> None:
        """Run a function; on one of the pool's threads."""
        task.begun = True
        if task.over:
            self._post(partial(self._answer, task, OVER))
            return
        WORKING_ON.set(task)
        try:
            result = handler(*task.arguments)
            if isinstance(result, GeneratorType):
                answer = self._parts(task, result)
            else:
                answer = Answer(result, frames=self._session.frames_of(result))
        except BaseException as error:  # a function that exits must not take the thread away
            answer = failure(task, error)
        finally:
            WORKING_ON.set(None)
        self._post(partial(self._answer, task, answer))

    def _parts(self, task: Any, parts: Generator[Any, None, Any]) -> Answer:
        seq = 0
        while True:
            try:
                part = next(parts)
            except StopIteration as end:
                return Answer(end.value, seq, frames=self._session.frames_of(end.value))
            self._post(partial(self._part, task, seq, self._session.frames_of(part)))
            seq += 1
            if seq % PARTS_AT_ONCE == 0:
                self._wait_until_clear(task)
            if task.over:
                parts.close()
                return OVER

    def _wait_until_clear(self, task: Any) -> None:
        clear, driver = threading.Event(), self._driver
        assert driver is not None
        if driver.post(partial(driver.engine.when_clear, clear.set)):
            while not task.over and not clear.wait(LOOK_EVERY):
                pass


# --- what a worker can do ---------------------------------------------------------------------------------------------


@attrs.frozen
class Line(Generic[V]):
    """A session of a worker, who turns it, and who runs its handlers."""

    session: V
    driver: Driver[V]
    handling: Handling

    def post(self, function: Callable[[float], object]) -> None:
        """Have something done where the session is."""
        self.driver.post(lambda: function(time.monotonic()))


class Serving(ABC, Generic[V]):
    """The lines of one worker, and what can be done with them; flows are run by ``run``."""

    def __init__(self) -> None:
        self.lines: dict[str, Line[V]] = {}
        self.running = False

    # --- lines --------------------------------------------------------------------------------------------------------

    def open(
        self, key: str, make: Callable[[Handling], V], find: Callable[[Any], Handler | None], *,
        threads: int, at_once: int, name: str,
    ) -> V:  # fmt: skip
        """Begin to serve on a line; what goes wrong with its address is raised.

        :param make: makes the session, which calls ``begin`` and ``cancel`` of what it is handed.
        """
        handling = self._handling(find, threads, at_once, name)
        session = make(handling)
        driver = self._driver(session, name)
        handling.attach(driver)
        self.lines[key] = Line(session, driver, handling)
        try:
            driver.start()
        except BaseException:
            self.lines.pop(key, None)  # another thread may have stopped them all
            raise
        return session

    @abstractmethod
    def _handling(self, find: Callable[[Any], Handler | None], threads: int, at_once: int, name: str) -> Handling:
        """Make what runs the handlers of a line."""

    @abstractmethod
    def _driver(self, session: V, name: str) -> Driver[V]:
        """Make what turns a line."""

    @abstractmethod
    def until(self, predicate: Callable[[], bool], seconds: float | None) -> Step:
        """Wait for a change of any line."""

    @abstractmethod
    def run(self, flow: Flow[Any]) -> Any:
        """Run a flow; on asyncio the result is awaited."""

    @abstractmethod
    def signals(self, on_signal: Callable[[int], None]) -> Any:
        """Heed TERM and INT for a while."""

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, whose parent serves."""
        return any(line.driver.forked for line in self.all_lines)

    def check(self, who: str) -> None:
        """Raise a WorkerError in a forked child."""
        if self.forked:
            what = f"{who} belongs to another process"
            raise WorkerError(what, FORKED, "nothing is served here", "start another Worker after the fork")

    @property
    def all_lines(self) -> list[Line[V]]:
        """The lines there are now; other threads add and remove some."""
        return list(self.lines.values())

    @property
    def left(self) -> bool:
        """Whether all lines have ended; without any it is True: a worker ends with its last service."""
        return all(line.session.ended for line in self.all_lines)

    def drain_all(self) -> None:
        """Take no more tasks."""
        for line in self.all_lines:
            line.post(line.session.drain)

    # --- flows --------------------------------------------------------------------------------------------------------

    def wait_ready(self, ready: Callable[[], bool], not_ready: Callable[[], WorkerError], timeout: float) -> Flow[None]:
        """Wait until the broker has taken the services on offer, or raise what is wrong."""
        if not (yield self.until(ready, timeout)):
            raise not_ready()

    def drain(self, timeout: float) -> Flow[bool]:
        """Finish the tasks in hand, then leave; return False if the time was too short for that."""
        self.drain_all()
        done: bool = yield self.until(lambda: self.left, timeout)
        yield from self.stop()
        return done

    def remove(self, key: str, timeout: float) -> Flow[bool]:
        """Finish the tasks of one line, then close it; return False if the time was too short for that."""
        line = self.lines.pop(key, None)
        if line is None:
            return True
        line.post(line.session.drain)
        done: bool = yield self.until(lambda: line.session.ended, timeout)
        yield from self._close(line)
        return done

    def stop(self) -> Flow[None]:
        """Leave immediately; what is in hand gets no reply."""
        if self.forked:
            return
        lines, self.lines, self.running = self.lines, {}, False
        for line in lines.values():  # all of them before any is waited for
            line.handling.stopping = True
            line.post(line.session.stop)
        for line in lines.values():
            yield from self._close(line)

    @staticmethod
    def _close(line: Line[V]) -> Flow[None]:
        line.handling.stopping = True
        yield line.driver.closing()
        yield line.handling.closing()

    def serve(self, start: Callable[[], object], check: Callable[[], object]) -> Flow[None]:
        """Serve until TERM or INT comes, finish the tasks in hand, and return; a second signal does not wait."""
        with self.signals(self._on_signal) as signals:  # before tasks come, so that none is in hand unheeded
            try:
                if not self.running:
                    start()
                check()
                if signals.count:
                    self._on_signal(signals.count)  # it may have come too early for the lines
                yield self.until(lambda: self.left, None)
            finally:
                yield from self.stop()

    def _on_signal(self, count: int) -> None:
        for line in self.all_lines:
            line.post(line.session.drain if count == 1 else line.session.stop)


class ThreadServing(Serving[V]):
    """Serves on threads."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = Bell()

    def _handling(self, find: Callable[[Any], Handler | None], threads: int, at_once: int, name: str) -> Handling:
        return PoolHandling(find, threads, at_once, name)

    def _driver(self, session: V, name: str) -> Driver[V]:
        return ThreadDriver(session, name, self._bell)

    def until(self, predicate: Callable[[], bool], seconds: float | None) -> Step:
        """Wait for a change of any line."""
        return self._bell.until(predicate, seconds, None)

    def run(self, flow: Flow[Any]) -> Any:
        """Run a flow."""
        return run(flow)

    def signals(self, on_signal: Callable[[int], None]) -> Any:
        """Heed TERM and INT for a while."""
        return HeededSignals(on_signal)
