"""Pipes that are opened for a time, and what is in them moved to the end of another pipe: at once, and once only.

A writer that must not show half of its work fills such pipes, from as many processes as it likes, and then moves them.
Should it die before, they are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from scale0_core.api import Effect, get_logger
from scale0_zpipes.service.answers import SOCKET, Refusal, when_safe
from scale0_zpipes.service.keeper import Keeper
from scale0_zpipes.service.pipe import BlockedWrite, Pipe
from scale0_zpipes.service.stock import Stock
from scale0_zpipes.service.writers import Writers, stored

LOG = get_logger("plugin.zpipes")

MAX_MOVED = 10_000
"""Pipes in one move."""

NEVER = float("inf")


class Staging:
    """All pipes that were opened for a time."""

    def __init__(
        self, stock: Stock, keeper: Keeper, writers: Writers, forget: Callable[[Pipe, float], Iterable[Effect]]
    ) -> None:
        self._stock = stock
        self._keeper = keeper
        self._writers = writers
        self._forget = forget
        self.opened: dict[bytes, Pipe] = {}
        self.due = NEVER
        """When to look which of them nobody uses."""

    def open(self, name: bytes, lease: float, now: float) -> None:
        """Make a pipe that is forgotten when it was not used for so many seconds, or find it."""
        if not lease:
            raise Refusal(400, "the time for which a pipe is opened is longer than 0")
        pipe = self._stock.pipes.get(name)
        if pipe is None:
            pipe = self._stock.make(name, now)
        elif not pipe.lease:
            raise Refusal(409, "there is a pipe of this name that was not opened for a time")
        pipe.lease, pipe.wrote = lease, now
        self.opened[name] = pipe
        self.due = min(self.due, now + lease)

    def on_deadline(self, now: float) -> list[Effect]:
        """Forget those that nobody has used for their time."""
        if now < self.due:
            return []
        effects: list[Effect] = []
        self.due = NEVER
        for name, pipe in list(self.opened.items()):
            ends = max(pipe.heard, pipe.wrote) + pipe.lease
            if self._stock.pipes.get(name) is not pipe:
                del self.opened[name]
            elif ends <= now and not pipe.in_use:
                LOG.info("a pipe that was opened for a time is forgotten", pipe=name, chunks=pipe.depth)
                del self.opened[name]
                effects += self._forget(pipe, now)
            else:
                self.due = min(self.due, ends if ends > now else now + pipe.lease)
        return effects

    def move(self, pipe: Pipe, write: BlockedWrite, names: Iterable[bytes], now: float) -> list[Effect]:
        """Put all that is in these pipes at the end of another, unless this writer has moved that number before."""
        known = (pipe.producers or {}).get(write.producer, 0)
        if known >= write.first:
            for each in names:
                found = self._stock.pipes.get(bytes(each))
                if found is not None and found.lease and not found.in_use:
                    self._take_out(found, now)
            return self._answer_again(pipe, write)
        sources = self._sources(pipe, [bytes(name) for name in names])
        chunks, size = sum(each.depth for each in sources), sum(each.bytes for each in sources)
        stock = self._stock
        if size > stock.max_pipe_bytes or chunks > stock.max_pipe_chunks:
            raise Refusal(413, f"a pipe holds {stock.max_pipe_chunks} chunks, {stock.max_pipe_bytes} bytes")
        if pipe.bytes + size > stock.max_pipe_bytes or pipe.depth + chunks > stock.max_pipe_chunks:
            raise Refusal(429, stock.why_full(pipe))
        taken = [(each, self._take_out(each, now)) for each in sources]
        write.chunks = [chunk for _, some in taken for chunk in some]
        write.size = size
        return self._writers.store_move(pipe, write, lambda: self._put_back(taken), now)

    def _sources(self, pipe: Pipe, names: list[bytes]) -> list[Pipe]:
        sources = [self._stock.pipe(name) for name in names]
        if len(set(names)) < len(names) or pipe in sources:
            raise Refusal(400, "a pipe is named twice")
        for each in sources:
            if not each.lease:
                raise Refusal(400, "only pipes that were opened for a time are moved")
            if each.in_use or each.log is not None:
                raise Refusal(409, "somebody reads a pipe that is to be moved, or waits to write to it")
        return sources

    def _take_out(self, pipe: Pipe, now: float) -> list[bytes]:
        """Take a pipe away; give what was in it."""
        chunks = pipe.pop_all()
        self.opened.pop(pipe.name, None)
        self._forget(pipe, now)  # gives no effects, since it is not on disk
        return chunks

    def _put_back(self, taken: Iterable[tuple[Pipe, list[bytes]]]) -> None:
        """Undo what the disk refused."""
        for pipe, chunks in taken:
            if self._stock.pipes.setdefault(pipe.name, pipe) is pipe:
                self.opened[pipe.name] = pipe
                self.due = min(self.due, pipe.wrote + pipe.lease)
                pipe.push_all(pipe.writer, chunks, pipe.writer_peer)
                self._stock.account(pipe, len(chunks), sum(map(len, chunks)))

    def _answer_again(self, pipe: Pipe, write: BlockedWrite) -> list[Effect]:
        """Answer a move that was made before; if it is still on its way to the disk, after that."""
        answer = stored(pipe, write)
        if pipe.log is None or not pipe.log.kept:
            return [(SOCKET, answer)]
        return self._keeper.store([], when_safe(write.envelope, answer[len(write.envelope) :]))
