"""What Majordomo's and Music Quest's clients still need: to be deleted when they stand on the kit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import zmq

from scale0_core.client.kit.drivers import HeededSignals as Signals
from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.errors import FORKED
from scale0_core.client.kit.link import wait
from scale0_core.client.kit.serving import Pool
from scale0_core.io.waker import Waker
from scale0_core.logs import get_logger

__all__ = ["FORKED", "GuardedFuture", "IoThread", "Pool", "Signals"]

LOG = get_logger("client")

T = TypeVar("T")


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
        """Begin."""
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
            self._thread.join(5.0)

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
        if self._engine.link is not None:
            sockets += self._engine.link.polled
        wait(sockets, seconds)
