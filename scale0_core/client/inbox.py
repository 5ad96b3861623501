"""Where a client puts the parts of a reply."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Inbox:
    """Takes the parts of a streamed reply, its end and its error, for a queue of any kind.

    A client knows the inbox and not the stream that is read from it: so a stream that nobody has any more is noticed.
    """

    __slots__ = ("part",)

    def __init__(self, put: Callable[[Any], None]) -> None:
        """Make one; the queue gets each part, then None or an error."""
        self.part = put

    def final(self, reply: tuple[bytes, ...]) -> None:
        """Take the end, which may be empty."""
        if reply:
            self.part(reply)
        self.part(None)

    def fail(self, error: Exception) -> None:
        """Take an error."""
        self.part(error)
