"""Both flavours of a client behind one face, so that one test serves both: the fixture ``flavour``."""

# does I/O: an asyncio loop on a thread

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import ExitStack
from operator import methodcaller
from typing import Any

PATIENCE = 60.0


class Loop:
    """An asyncio loop on a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="test loop", daemon=True)
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, Any]) -> Future[Any]:
        """Begin to run a coroutine on the loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function on the loop, await what it returns, and put a face for threads on it."""

        async def called() -> Any:
            found = function(*arguments, **options)
            return await found if inspect.isawaitable(found) and not isinstance(found, asyncio.Future) else found

        found = self.begin(called()).result(PATIENCE)
        if isinstance(found, asyncio.Future):
            return self.begin(_awaited(found))
        return _Blocking(self, found) if isinstance(found, AsyncIterator) else found

    def close(self) -> None:
        """Stop the loop."""
        self.begin(self.loop.shutdown_default_executor()).result(PATIENCE)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)
        self.loop.close()


async def _awaited(future: asyncio.Future[Any]) -> Any:
    return await future


class _Blocking:
    """An object of asyncio as its twin of threads looks: every method blocks."""

    def __init__(self, loop: Loop, inner: Any) -> None:
        self._loop, self.inner = loop, inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, "aclose" if name == "close" and hasattr(self.inner, "aclose") else name)
        if not inspect.ismethod(found) and not inspect.isbuiltin(found):
            return found
        return lambda *arguments, **options: self._loop.call(found, *arguments, **options)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self.inner, AsyncIterator):
            return self
        return iter(self._loop.call(self.inner.__aiter__))

    def __next__(self) -> Any:
        try:
            return self._loop.call(self.inner.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Any:
        self._loop.call(self.inner.__aenter__)
        return self

    def __exit__(self, *how: object) -> None:
        self._loop.call(self.inner.__aexit__, *how)


class Flavour:
    """Makes objects of one flavour, which are used as those of threads are; they are closed with the test."""

    def __init__(self, name: str, stack: ExitStack) -> None:
        self.name = name
        self._stack = stack
        self._loop: Loop | None = None

    def make(
        self, threads: Callable[..., Any], aio: Callable[..., Any], /, *arguments: Any,
        close: Callable[[Any], object] = methodcaller("close"), **options: Any,
    ) -> Any:  # fmt: skip
        """Make an object by the one for threads or the one for asyncio, which is awaited if it can be.

        :param close: ends it.
        """
        if self.name == "sync":
            made = threads(*arguments, **options)
        else:
            if self._loop is None:
                self._loop = Loop()
                self._stack.callback(self._loop.close)
            made = _Blocking(self._loop, self._loop.call(aio, *arguments, **options))
        self._stack.callback(close, made)
        return made
