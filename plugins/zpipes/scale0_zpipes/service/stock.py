"""All pipes of the text dialect, and how much may be in them."""

from __future__ import annotations

from scale0_core.api import get_logger
from scale0_zpipes.service.answers import Refusal, name_in
from scale0_zpipes.service.pipe import Log, Pipe
from scale0_zpipes.settings import ZpipesSettings

LOG = get_logger("plugin.zpipes")

LOG_EVERY = 10.0
"""Seconds between two lines in the log about the same thing."""


class Stock:
    """The pipes by name, and what they hold together."""

    def __init__(self, settings: ZpipesSettings) -> None:
        self.settings = settings
        self.pipes: dict[bytes, Pipe] = {}
        self.depth = 0
        self.bytes = 0
        self.max_pipe_chunks, self.max_pipe_bytes = settings.max_pipe_chunks, settings.max_pipe_bytes
        self.max_chunk = min(settings.max_message, settings.max_pipe_bytes)
        """Bytes in one chunk."""
        self.max_chunks, self.max_bytes = settings.max_chunks, settings.max_bytes

    def pipe(self, frame: bytes) -> Pipe:
        """Find the pipe that a request names."""
        pipe = self.pipes.get(name_in(frame))
        if pipe is None:
            raise Refusal(404, "there is no such pipe; OPEN makes it")
        return pipe

    def make(self, name: bytes, now: float) -> Pipe:
        """Make a pipe."""
        if len(self.pipes) >= self.settings.max_pipes:
            raise Refusal(429, f"there are {len(self.pipes)} pipes already, as many as the setting max_pipes allows")
        pipe = self.pipes[name] = Pipe(name, now)
        return pipe

    def account(self, pipe: Pipe, chunks: int, size: int) -> None:
        """Note that a pipe holds more or less than before."""
        pipe.depth += chunks
        pipe.bytes += size
        self.depth += chunks
        self.bytes += size

    def has_room(self, pipe: Pipe, chunks: int, size: int) -> bool:
        """Tell whether a pipe may hold so much more."""
        return (
            pipe.bytes + size <= self.max_pipe_bytes
            and self.bytes + size <= self.max_bytes
            and pipe.depth + chunks <= self.max_pipe_chunks
            and self.depth + chunks <= self.max_chunks
        )

    def has_room_in_all(self, chunks: int, size: int) -> bool:
        """Tell whether all pipes together may hold so much more."""
        return self.bytes + size <= self.max_bytes and self.depth + chunks <= self.max_chunks

    def why_full(self, pipe: Pipe) -> str:
        """Say what there is no room for."""
        return f"no room: the pipe holds {pipe.depth} chunks, {pipe.bytes} bytes; all pipes {self.bytes} bytes"


class TooLarge:
    """Counts chunks that are refused since they are too large, and says so in the log now and then."""

    def __init__(self) -> None:
        self.count = 0
        self._next = float("-inf")

    def note(self, pipe: bytes, size: int, now: float) -> None:
        """Note a chunk of that size."""
        self.count += 1
        if now >= self._next:
            self._next = now + LOG_EVERY
            LOG.warning("chunk too large, refused", pipe=pipe, bytes=size, refused=self.count)


def group_of(pipe: Pipe, group: bytes) -> tuple[Log, int]:
    """Find a group of a pipe: the log, and the last number that the group has acknowledged."""
    if pipe.log is None or group not in pipe.log.groups:
        raise Refusal(404, "there is no such group; GROUP makes it")
    return pipe.log, pipe.log.groups[group]
