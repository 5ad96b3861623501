"""Threads: one that owns a socket, some that run a worker's functions, and the signals of the main one."""

from __future__ import annotations

import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import FrameType
from typing import Any, TypeVar

import zmq

from scale0_core.client.link import Engine, wait
from scale0_core.io.waker import Waker
from scale0_core.logs import get_logger

LOG = get_logger("client")

JOIN_SECONDS = 5.0

FORKED = "this is a forked child: threads and connections stay in the process that made them"

T = TypeVar("T")


class IoThread:
    """Drives an engine on a thread of its own, from ``start`` on; ``call`` has something done there."""

    def __init__(
        self, engine: Engine, name: str, *, ended: Callable[[], bool], on_end: Callable[[BaseException | None], None]
    ) -> None:
        self._engine, self._ended, self._on_end = engine, ended, on_end
        self._waker = Waker()
        try:
            engine.start()
        except BaseException:
            self._waker.close()
            raise
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; whoever made this has a name for it by now, as what comes may be answered at once."""
        self._thread.start()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, in which the thread does not exist."""
        return self._engine.forked

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called on the thread; in a forked child nothing is done."""
        if not self.forked:
            self._waker.call(function)

    def join(self) -> None:
        """Wait for the thread to end, unless this is it."""
        if threading.current_thread() is not self._thread:
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            more = False
            while True:
                self._wait(0 if more else self._engine.timeout())
                self._waker.run()
                more = self._engine.turn()
                if self._ended():
                    break
        except Exception as caught:
            error = caught
            LOG.error("the client's thread failed", error=repr(caught))
        finally:
            self._on_end(error)
            self._waker.run()
            self._engine.apply()
            self._engine.close()
            self._waker.close()

    def _wait(self, seconds: float | None) -> None:
        sockets: list[tuple[Any, int]] = [(self._waker.fd, zmq.POLLIN)]
        link = self._engine.link
        if link is not None:
            sockets.append((link.socket, zmq.POLLIN | zmq.POLLOUT if link.outbox else zmq.POLLIN))
            sockets.append((link.monitor, zmq.POLLIN))
        wait(sockets, seconds)


class GuardedFuture(Future[T]):
    """A future whose outcome comes from a thread; ``check`` raises where that thread does not exist."""

    def __init__(self, check: Callable[[], None]) -> None:
        super().__init__()
        self._check = check

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome, and return or raise it."""
        if not self.done():
            self._check()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the outcome, and return the error, or None."""
        if not self.done():
            self._check()
        return super().exception(timeout)


class Pool:
    """Threads for the functions of a worker. They are daemons: one that never returns does not keep the program."""

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


class Signals:
    """Heeds TERM and INT for a while, where that is possible."""

    def __init__(self, on_signal: Callable[[int], None]) -> None:
        self.count = 0
        self._on_signal = on_signal
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        self._on_signal(self.count)
