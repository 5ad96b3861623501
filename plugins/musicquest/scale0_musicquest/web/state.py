"""What is live: the tree of servers and the most played songs, asked for once for all who watch."""

# does I/O: asks again by the clock

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import attrs

from scale0_musicquest.web.source import MusicSource, Trouble, server_json, top_json

INTERVAL = 2.0
KEEP_ALIVE = 15.0
MAX_WATCHERS = 32
MAX_SERVERS = 1_000
TOP = 8


@attrs.frozen
class View:
    """What was seen last."""

    at: float = -1e9
    servers: tuple[dict[str, Any], ...] = ()
    top: tuple[dict[str, Any], ...] = ()
    trouble: Trouble | None = None

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return {
            "servers": list(self.servers),
            "top": list(self.top),
            "trouble": self.trouble.to_json() if self.trouble else None,
        }


class Watch:
    """Asks for the state at most once in an interval, however many browsers look on."""

    def __init__(
        self, source: MusicSource, explain: Callable[[Exception], Trouble], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._source, self._explain, self._clock = source, explain, clock
        self._view = View()
        self._busy = False
        self._asking = anyio.Lock()
        self.watchers = 0
        self.ending = anyio.Event()

    async def look(self, max_age: float = INTERVAL) -> View:
        """Give what was seen at most ``max_age`` seconds ago."""
        async with self._asking:
            # those who come a little early must not wait twice; one question that nobody waits for is enough
            if not self._busy and self._clock() - self._view.at >= max_age * 0.9:
                await anyio.to_thread.run_sync(self._ask_and_keep, abandon_on_cancel=True)
        return self._view

    async def glance(self, seconds: float = 1.0) -> View:
        """Give what was seen last, and wait only a moment for something newer."""
        with anyio.move_on_after(seconds):
            return await self.look()
        return self._view

    def _ask_and_keep(self) -> None:
        self._busy = True
        try:
            self._view = self._ask()
        finally:
            self._busy = False

    def _ask(self) -> View:
        """Ask the broker and the own server; what was seen before stays when they do not answer."""
        try:
            servers = self._source.servers()
            own = self._source.server
            rows = sorted((server_json(one, own) for one in servers[:MAX_SERVERS]), key=lambda row: str(row["label"]))
            self._view = attrs.evolve(self._view, servers=tuple(rows))
            top = top_json(self._source.top(TOP)) if rows else []
        except Exception as error:
            return attrs.evolve(self._view, at=self._clock(), trouble=self._explain(error))
        return View(self._clock(), tuple(rows), tuple(top))

    async def events(self) -> AsyncIterator[bytes]:
        """Give Server-Sent Events: the state whenever it changed; a slow browser skips what is old."""
        self.watchers += 1
        try:
            yield b"retry: 2000\n\n"
            sent, quiet_since = "", self._clock()
            while not self.ending.is_set():
                text = json.dumps((await self.look()).to_json(), separators=(",", ":"))
                if text != sent:
                    yield f"event: state\ndata: {text}\n\n".encode()
                    sent, quiet_since = text, self._clock()
                elif self._clock() - quiet_since >= KEEP_ALIVE:
                    yield b": still here\n\n"
                    quiet_since = self._clock()
                with anyio.move_on_after(INTERVAL):
                    await self.ending.wait()
        finally:
            self.watchers -= 1
