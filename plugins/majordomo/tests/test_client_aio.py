"""What only clients and workers with asyncio do, with real brokers: async handlers, and how they are cancelled."""

from __future__ import annotations

import asyncio
import sys
import threading

import pytest

from scale0_majordomo.aio import (
    CallTimedOutError,
    Client,
    RemoteError,
    Worker,
)

BIND = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}


@pytest.fixture
def here(scale0_broker) -> str:
    return scale0_broker.in_thread(["majordomo"], BIND).address("majordomo", "requests")


def run(main) -> None:
    """Run a test's coroutine, with an end."""
    asyncio.run(asyncio.wait_for(main(), 120))


async def until(condition) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_functions_of_all_kinds_serve(here):
    async def main() -> None:
        worker = Worker(here, credit=10)

        @worker.service("async")
        async def waits(request):
            await asyncio.sleep(0)
            return request.text.upper()

        @worker.service("plain")
        def plain(request):
            return threading.current_thread().name

        @worker.service("exits")
        def exits(request):
            sys.exit(3)

        @worker.service("async parts")
        async def async_parts(request):
            for number in range(3):
                yield b"%d" % number

        @worker.service("plain parts")
        def plain_parts(request):
            yield b"1"
            yield b"2"
            return b"end"

        async with worker, Client(here) as client:
            await worker.wait_ready()
            assert (await client.call("async", "hello")).text == "HELLO"
            assert "majordomo worker plain" in (await client.call("plain")).text
            assert [part async for part in client.stream("async parts")] == [(b"0",), (b"1",), (b"2",)]
            assert [part async for part in client.stream("plain parts")] == [(b"1",), (b"2",), (b"end",)]
            assert await client.call("async parts") == (b"0", b"1", b"2")
            assert sorted(await client.services()) == ["async", "async parts", "exits", "plain", "plain parts"]
            assert await client.offers("plain")
            for _ in range(3):
                with pytest.raises(RemoteError, match="SystemExit: 3"):
                    await client.call("exits")
            assert len(await client.workers("plain")) == 1

    run(main)


def test_requests_are_worked_on_at_once_and_map_keeps_their_order(here):
    async def main() -> None:
        together = asyncio.Event()
        there = 0
        worker = Worker(here, credit=100)

        @worker.service("meet")
        async def meet(request):
            nonlocal there
            there += 1
            if there == 100:
                together.set()
            await together.wait()
            return request

        async with worker, Client(here) as client:
            items = [b"%d" % number for number in range(500)]
            seen: list[tuple[int, int | None]] = []
            replies = client.map("meet", items, window=100, progress=lambda *told: seen.append(told))
            assert [reply.body async for reply in replies] == items
            assert seen[-1] == (500, 500)
            found = [reply async for reply in client.map("meet", iter(items), ordered=False)]
            assert sorted(reply.number for reply in found) == list(range(500))
            assert all(reply.body == b"%d" % reply.number for reply in found)

    run(main)


@pytest.mark.parametrize("ordered", [True, False])
def test_the_first_error_ends_a_map_and_cancels_the_rest(here, ordered):
    async def main() -> None:
        begun: list[bytes] = []
        cancelled: list[bytes] = []
        worker = Worker(here, credit=10)

        @worker.service("bad")
        async def bad(request):
            if request == (b"1",):
                await until(lambda: sorted(begun) == [b"2", b"3"])  # one that is cancelled before it began never runs
                raise ValueError("one")
            if request == (b"0",):
                return
            begun.append(request.body)
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                cancelled.append(request.body)
                raise

        async with worker, Client(here) as client:
            with pytest.raises(RemoteError, match="one"):
                async for _ in client.map("bad", [b"0", b"1", b"2", b"3"], ordered=ordered):
                    pass
            await until(lambda: sorted(cancelled) == [b"2", b"3"])

    run(main)


def test_cancelling_reaches_the_handler(here):
    async def main() -> None:
        begun: list[str] = []
        ends: list[str] = []
        worker = Worker(here, credit=10)

        @worker.service("slow")
        async def slow(request):
            begun.append(request.text)
            try:
                await asyncio.sleep(100)
            finally:
                ends.append(request.text)

        @worker.service("stubborn")
        async def stubborn(request):
            begun.append("stubborn")
            try:
                await asyncio.sleep(100)
            except asyncio.CancelledError:
                ends.append("stubborn")
            return b"all the same"

        async with worker, Client(here) as client:
            task = asyncio.ensure_future(client.call("slow", "task"))
            stubborn_task = asyncio.ensure_future(client.call("stubborn"))
            future = client.submit("slow", "future")
            await until(lambda: sorted(begun) == ["future", "stubborn", "task"])  # before that, nothing would be ended
            for each in (task, stubborn_task, future):
                each.cancel()
            with pytest.raises(CallTimedOutError):
                await client.call("slow", "timeout", timeout=2)  # long enough to be begun
            await until(lambda: sorted(ends) == ["future", "stubborn", "task", "timeout"])
            # all places are free again
            while any(row["in_hand"] for row in await client.workers()):
                pass

    run(main)


def test_equal_requests_are_told_apart(here):
    async def main() -> None:
        begun: list[bool] = []
        ends: list[bool] = []
        go_on = asyncio.Event()
        worker = Worker(here, credit=10)

        @worker.service("slow")
        async def slow(request):
            begun.append(True)
            try:
                await go_on.wait()
            except asyncio.CancelledError:
                ends.append(True)
                raise
            return b"done"

        async with worker, Client(here) as client:
            futures = [client.submit("slow", b"same") for _ in range(3)]
            await until(lambda: len(begun) == 3)
            futures[1].cancel()
            await until(lambda: ends)
            go_on.set()
            assert (await futures[0]).body == (await futures[2]).body == b"done"
            assert ends == [True]

    run(main)


def test_a_stream_that_is_closed_ends_its_generator(here):
    async def main() -> None:
        closed = asyncio.Event()
        worker = Worker(here)

        @worker.service("endless")
        async def endless(request):
            try:
                while True:
                    yield b"x" * 1000
            finally:
                closed.set()

        async with worker, Client(here) as client:
            async with client.stream("endless") as stream:
                assert (await stream.__anext__()).body == b"x" * 1000
            await closed.wait()

    run(main)


def test_a_plain_generator_that_is_cancelled_while_it_runs_is_closed_afterwards(here):
    async def main() -> None:
        begun, go_on, closed = threading.Event(), threading.Event(), threading.Event()
        worker = Worker(here, credit=4)

        @worker.service("parts")
        def parts(request):
            try:
                yield b"1"
                begun.set()
                go_on.wait(20)
                yield b"2"
            finally:
                closed.set()

        async with worker, Client(here) as client:
            async with client.stream("parts") as stream:
                assert await stream.__anext__() == (b"1",)
                await until(begun.is_set)
            while not (await client.services())["parts"]["cancelled"]:
                pass
            go_on.set()
            await until(closed.is_set)
            while (await client.workers())[0]["in_hand"]:
                pass
            assert (await client.services())["parts"]["errors"] <= 1

    run(main)
