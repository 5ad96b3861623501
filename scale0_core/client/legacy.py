"""The loop driver that Majordomo's client still needs: to be deleted when it stands on the kit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.errors import FORKED
from scale0_core.client.kit.link import Link
from scale0_core.logs import get_logger

LOG = get_logger("client")


class LoopDriver:
    """Drives an engine on an asyncio loop: by the sockets' descriptors and a timer."""

    def __init__(self, engine: Engine, *, on_turn: Callable[[], None], on_failure: Callable[[Exception], None]) -> None:
        self.engine = engine
        self._on_turn, self._on_failure = on_turn, on_failure
        self._loop = asyncio.get_running_loop()
        self._watched: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False
        engine.on_link = self._watch
        engine.start()
        self.kick()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child; the sockets are the parent's, and reading them would rob it."""
        return self.engine.forked

    def kick(self) -> None:
        """Have a turn soon."""
        if not self._due and not self._closed and not self.forked:
            self._due = True
            self._loop.call_soon(self._turn)

    async def close(self) -> None:
        """Close everything."""
        if self._closed or self.forked:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        self.engine.apply()
        self.engine.close_link()
        # waits for what is still to be delivered, at most for the linger
        await asyncio.shield(asyncio.to_thread(self.engine.terminate))

    def _watch(self, _: Link | None, new: Link | None) -> None:
        for fd in self._watched:
            self._loop.remove_reader(fd)
        self._watched = []
        if new is not None and new.monitor is not None:
            self._watched = [new.socket.fileno(), new.monitor.fileno()]
            for fd in self._watched:
                self._loop.add_reader(fd, self.kick)
            self.kick()

    def _turn(self) -> None:
        self._due = False
        if self._closed:
            return
        if self.forked:
            self._closed = True
            self._on_failure(RuntimeError(FORKED))
            return
        try:
            more = self.engine.turn()
            self._on_turn()
        except Exception as error:
            LOG.error("the client failed", error=repr(error))
            self._closed = True
            self.engine.close_link()
            self._on_failure(error)
            return
        # the descriptors tell of changes only: what came while we were sending must be looked for
        if more or self._readable():
            self.kick()
        self._arm()

    def _readable(self) -> bool:
        link = self.engine.link
        return link is not None and link.readable

    def _arm(self) -> None:
        deadline = self.engine.next_deadline()
        if self._timer is not None:
            if deadline is not None and self._timer.when() <= deadline and not self._timer.cancelled():
                return  # it comes early, and the next one is set then
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.kick()
