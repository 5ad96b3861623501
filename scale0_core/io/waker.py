"""How another thread hands work to the loop."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable


class Waker:
    """A queue of calls and a descriptor that becomes readable when something is in it."""

    def __init__(self) -> None:
        self.fd, self.write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self.write_fd, False)
        self._calls: deque[Callable[[], None]] = deque()

    def call(self, function: Callable[[], None]) -> None:
        """Have ``function`` called on the loop's thread. Any thread, and a signal handler, may use this."""
        self._calls.append(function)
        self.wake()

    def wake(self) -> None:
        """End the loop's sleep."""
        try:
            os.write(self.write_fd, b"\0")
        except BlockingIOError:
            pass  # the pipe is full, so the loop will wake anyway

    def run(self) -> None:
        """Run what other threads have asked for; on the loop's thread."""
        try:
            while os.read(self.fd, 4096) == b"\0" * 4096:
                pass
        except BlockingIOError:
            pass
        for _ in range(len(self._calls)):
            self._calls.popleft()()

    def close(self) -> None:
        """Close the descriptors."""
        os.close(self.fd)
        os.close(self.write_fd)
