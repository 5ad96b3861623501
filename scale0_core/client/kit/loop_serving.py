"""Handlers as asyncio tasks: async functions on the loop, plain ones on threads."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import time
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from types import AsyncGeneratorType, GeneratorType
from typing import Any, TypeVar

from scale0_core.client.kit.drivers import Driver
from scale0_core.client.kit.flows import Flow, Step, arun
from scale0_core.client.kit.loop import LoopBell, LoopDriver, heeding
from scale0_core.client.kit.serving import (
    OVER,
    PARTS_AT_ONCE,
    WORKING_ON,
    Handler,
    Handling,
    Serving,
    V,
    failure,
)
from scale0_core.client.kit.sessions import Answer

T = TypeVar("T")


class TaskHandling(Handling):
    """Runs async functions as tasks of the loop, and plain ones on threads."""

    def __init__(self, find: Callable[[Any], Handler | None], threads: int, at_once: int, name: str) -> None:
        super().__init__(find, threads, at_once, name)
        self._running: dict[int, asyncio.Task[Answer]] = {}
        """By the identity of the task: two may be equal."""
        self._waiting: dict[int, tuple[Any, Handler]] = {}
        """What is not begun, since so many run already."""

    def cancel(self, task: Any) -> None:
        """Cancel what works on a task."""
        if (running := self._running.get(id(task))) is not None:
            running.cancel()
        elif self._waiting.pop(id(task), None) is not None:
            self._answer(task, OVER)

    async def closing(self) -> None:
        """Cancel all, and wait for them; a thread is not waited for."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        self._pool.stop()
        await asyncio.gather(*running, return_exceptions=True)

    def _start(self, task: Any, handler: Handler) -> None:
        if len(self._running) >= self._at_once:
            self._waiting[id(task)] = task, handler
            return
        running = self._running[id(task)] = asyncio.get_running_loop().create_task(self._work(task, handler))
        running.add_done_callback(partial(self._ended, task))

    def _ended(self, task: Any, running: asyncio.Task[Answer]) -> None:
        del self._running[id(task)]
        if self._waiting and not self.stopping:
            self._start(*self._waiting.pop(next(iter(self._waiting))))
        if not running.cancelled():
            answer = running.result()
        elif self.stopping:
            return
        else:  # the worker goes on: it was cancelled, or what it awaited was
            answer = failure(task, asyncio.CancelledError("the handler was cancelled"))
        self._answer(task, answer)
        assert isinstance(self._driver, LoopDriver)
        self._driver.kick()

    async def _work(self, task: Any, handler: Handler) -> Answer:
        task.begun = True
        WORKING_ON.set(task)
        try:
            if inspect.iscoroutinefunction(handler):
                result = await handler(*task.arguments)
            elif inspect.isasyncgenfunction(handler):
                result = handler(*task.arguments)
            else:
                result = await self._in_pool(lambda: handler(*task.arguments))
                if inspect.isawaitable(result):
                    result = await result
            if isinstance(result, AsyncGeneratorType):
                return await self._parts(task, result, [None])
            if isinstance(result, GeneratorType):
                end: list[Any] = [None]
                return await self._parts(task, self._in_threads(result, end), end)
            return Answer(result, frames=self._session.frames_of(result))
        except Exception as error:
            return failure(task, error)

    async def _parts(self, task: Any, parts: AsyncGenerator[Any, None], end: list[Any]) -> Answer:
        seq = 0
        try:
            async for part in parts:
                frames = self._session.frames_of(part)
                self._post(partial(self._session.part, task, seq, frames, time.monotonic()))
                seq += 1
                if seq % PARTS_AT_ONCE == 0:
                    await self._until_clear()
                if task.over:
                    return OVER
        finally:
            await parts.aclose()
        return Answer(end[0], seq, frames=self._session.frames_of(end[0]))

    async def _in_threads(self, parts: Generator[Any, None, Any], end: list[Any]) -> AsyncGenerator[Any, None]:
        def step() -> tuple[bool, Any]:
            try:
                return True, next(parts)
            except StopIteration as stop:
                return False, stop.value

        try:
            while True:
                more, value = await self._in_pool(step)
                if not more:
                    end[0] = value
                    return
                yield value
        finally:
            if not self.stopping:  # else the worker stops, and does not wait for a thread
                await self._in_pool(parts.close)

    async def _in_pool(self, function: Callable[[], T]) -> T:
        """Run a function on a thread. Cancelled, it ends when the thread is free, unless the worker stops."""
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        future: asyncio.Future[T] = loop.create_future()

        def settle(value: Any, error: BaseException | None) -> None:
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    future.set_result(value)

        def job() -> None:
            value, error = None, None  # type: Any, BaseException | None
            try:
                value = context.run(function)
            except Exception as caught:
                error = caught
            except BaseException as caught:  # a function that exits must end neither the thread nor the loop
                error = RuntimeError(f"{type(caught).__name__}: {caught}")
                error.__cause__ = caught
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, value, error)

        self._pool.run(job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not self.stopping:
                await asyncio.wait([future])
            raise

    async def _until_clear(self) -> None:
        driver, clear = self._driver, asyncio.Event()
        assert driver is not None
        if driver.post(partial(driver.engine.when_clear, clear.set)):
            await clear.wait()  # as long as it takes: who does not wait any more has it cancelled


class LoopServing(Serving[V]):
    """Serves on a loop."""

    def __init__(self) -> None:
        super().__init__()
        self._bell = LoopBell()

    def _handling(self, find: Callable[[Any], Handler | None], threads: int, at_once: int, name: str) -> Handling:
        return TaskHandling(find, threads, at_once, name)

    def _driver(self, session: V, name: str) -> Driver[V]:
        return LoopDriver(session, self._bell)

    def until(self, predicate: Callable[[], bool], seconds: float | None) -> Step:
        """Wait for a change of any line."""
        return self._bell.until(predicate, seconds, None)

    async def run(self, flow: Flow[Any]) -> Any:
        """Run a flow."""
        return await arun(flow)

    def signals(self, on_signal: Callable[[int], None]) -> Any:
        """Heed TERM and INT for a while."""
        return heeding(on_signal)
