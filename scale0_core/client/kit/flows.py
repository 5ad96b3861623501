"""Operations written once: a flow is a generator that yields what it waits for.

What it yields is a *step*, made by its driver: for threads a function that blocks and returns a result, for asyncio an
awaitable of the same result. What a step raises is raised inside the flow, KeyboardInterrupt and CancelledError too, so
that a flow cancels what it began in ``except`` or ``finally``. A flow that gives several results yields ``Item``s::

    def search(self, text: str) -> Flow[Result]:                  # once
        question = self._session.ask(text)
        if not (yield self._driver.until(lambda: question.done, self._timeout)):
            raise CallTimedOutError(...)
        return question.result

    def search(self, text: str) -> Result:                        # the surface for threads
        return self._driver.run(self._flows.search(text))

    async def search(self, text: str) -> Result:                  # the surface for asyncio
        return await self._driver.run(self._flows.search(text))

Steps that every driver makes: ``until(predicate, seconds, every)``, ``result(future)``, ``take(mailbox)``,
``in_thread(function)`` and ``closing()``. A flow begins when it is first driven.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")

Step = Any
"""What a driver makes: a function for threads, an awaitable for asyncio."""
Flow = Generator[Step, Any, T]


class Item(Generic[T]):
    """One of the results of a flow that gives several."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


def run(flow: Flow[T]) -> T:
    """Run a flow on this thread, and return what it returns."""
    try:
        step = next(flow)
        while True:
            try:
                value = step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


async def arun(flow: Flow[T]) -> T:
    """Run a flow on this loop, and return what it returns."""
    try:
        step = next(flow)
        while True:
            try:
                value = await step
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)
    except StopIteration as end:
        result: T = end.value
        return result


def each(flow: Flow[Any]) -> Generator[Any, None, None]:
    """Iterate over the items of a flow on this thread; closing the iterator closes the flow."""
    with contextlib.closing(flow), contextlib.suppress(StopIteration):
        step = next(flow)
        while True:
            if type(step) is Item:
                yield step.value
                step = next(flow)
                continue
            try:
                value = step()
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)


async def aeach(flow: Flow[Any]) -> AsyncGenerator[Any, None]:
    """Iterate over the items of a flow on this loop; closing the iterator closes the flow."""
    with contextlib.closing(flow), contextlib.suppress(StopIteration):
        step = next(flow)
        while True:
            if type(step) is Item:
                yield step.value
                step = next(flow)
                continue
            try:
                value = await step
            except BaseException as error:
                step = flow.throw(error)
            else:
                step = flow.send(value)


# --- results in parts -------------------------------------------------------------------------------------------------


class Inbox:
    """Takes the parts of a result, its end and its error, for a mailbox: a ``calls.Sink``.

    A session knows the inbox and not the stream that is read from it: so a stream that nobody has any more is noticed.
    """

    __slots__ = ("part",)

    def __init__(self, put: Callable[[Any], None]) -> None:
        """Make one; the mailbox gets each part, then None or an error."""
        self.part = put

    def final(self, reply: tuple[bytes, ...]) -> None:
        """Take the end, which may be empty."""
        if reply:
            self.part(reply)
        self.part(None)

    def fail(self, error: Exception) -> None:
        """Take an error."""
        self.part(error)


class Stream(Iterator[T]):
    """The parts of a reply, as they come; ends in StopIteration or in an error.

    One that is closed, or dropped before its end, is cancelled: its worker stops. Parts are kept until they are read,
    without a bound: all calls of a client share its connection, so a slow reader of one must not hold up the others.
    """

    def __init__(self, take: Callable[[], Any], cancel: Callable[[], object]) -> None:
        self._take, self._cancel = take, cancel
        self._over = False

    def __iter__(self) -> Stream[T]:
        return self

    def __next__(self) -> T:
        if self._over:
            raise StopIteration
        part = self._take()
        self._over = part is None or isinstance(part, Exception)
        if part is None:
            raise StopIteration
        if self._over:
            raise part
        found: T = part
        return found

    def close(self) -> None:
        """Cancel the rest."""
        if not self._over:
            self._over = True
            self._cancel()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Stream[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncStream(AsyncIterator[T]):
    """The parts of a reply, as they come; ends in StopAsyncIteration or in an error.

    One that is closed, or dropped before its end, is cancelled: its worker stops. Parts are kept until they are read,
    without a bound: all calls of a client share its connection, so a slow reader of one must not hold up the others.
    """

    def __init__(self, take: Callable[[], Awaitable[Any]], cancel: Callable[[], object]) -> None:
        """Make one; ``cancel`` may be called from any thread."""
        self._take, self._cancel = take, cancel
        self._over = False

    def __aiter__(self) -> AsyncStream[T]:
        return self

    async def __anext__(self) -> T:
        if self._over:
            raise StopAsyncIteration
        part = await self._take()
        self._over = part is None or isinstance(part, Exception)
        if part is None:
            raise StopAsyncIteration
        if self._over:
            raise part
        found: T = part
        return found

    async def close(self) -> None:
        """Cancel the rest."""
        self._end()

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._cancel()

    def __del__(self) -> None:
        self._end()  # the garbage collector may run in any thread

    async def __aenter__(self) -> AsyncStream[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()
