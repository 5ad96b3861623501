"""How another thread hands work to the loop."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable

from scale0_core.logs import get_logger

LOG = get_logger("loop")


class Waker:
    """A queue of calls and a descriptor that becomes readable when something is in it."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.write_fd, False)
        self._calls: deque[Callable[[], None]] = deque()
        # held while the descriptor is used, since its number may be another file's after close; a signal handler may
        # come in between, hence reentrant
        self._lock = threading.RLock()

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called on the loop's thread. Any thread, and a signal handler, may use this."""
        self._calls.append(function)
        self.wake()

    def wake(self) -> None:
        """End the loop's sleep; does nothing after ``close``."""
        # a full pipe will wake the loop just as well
        with self._lock, contextlib.suppress(BlockingIOError):
            if self.write_fd >= 0:
                os.write(self.write_fd, b"\0")

    def run(self) -> None:
        """Run what other threads have asked for; on the loop's thread."""
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self.fd, 4096)) == 4096:
                pass
        for _ in range(len(self._calls)):
            call = self._calls.popleft()
            try:
                call()
            except Exception as error:
                LOG.error("a call from another thread raised", call=repr(call), error=repr(error))

    def close(self) -> None:
        """Close the descriptors."""
        with self._lock:
            os.close(self.fd)
            os.close(self.write_fd)
            self.fd = self.write_fd = -1
