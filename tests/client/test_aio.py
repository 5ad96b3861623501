"""What only the Client and Worker for asyncio have to show."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from scale0_core import client
from scale0_core.client import CallTimedOutError, ClosedError, RemoteError, aio
from scale0_core.client.aio import Client, Worker


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 120))


def test_async_functions_and_generators(address: str):
    async def main() -> None:
        async with Worker(address) as worker, Client(address) as client:

            @worker.service("later")
            async def later(text: bytes) -> bytes:
                await asyncio.sleep(0.01)
                return text

            @worker.service("parts")
            async def parts(number: bytes):
                for value in range(int(number)):
                    await asyncio.sleep(0)
                    yield str(value)

            @worker.service("fails")
            async def fails() -> None:
                raise ValueError("no")

            worker.add("awaitable", lambda text: later(text))  # noqa: PLW0108
            await worker.wait_ready()
            assert await client.call("later", b"x", retry=True) == (b"x",)
            assert await client.call("awaitable", b"x", retry=True) == (b"x",)
            assert [part.text async for part in client.stream("parts", b"300")] == [str(value) for value in range(300)]
            with pytest.raises(RemoteError, match="ValueError: no"):
                await client.call("fails")

    run(main())


def test_many_tasks_wait_together(address: str):
    async def main() -> None:
        async with Worker(address, concurrency=200) as worker, Client(address) as client:

            @worker.service("sleep")
            async def sleep() -> bytes:
                await asyncio.sleep(0.3)
                return b"rested"

            await worker.wait_ready()
            await client.call("sleep", retry=True)
            loop = asyncio.get_running_loop()
            began = loop.time()
            assert len([reply async for reply in client.map("sleep", [()] * 200)]) == 200
            assert loop.time() - began < 10  # one after the other it would be 60

    run(main())


def test_a_cancelled_call_is_forgotten(address: str):
    async def main() -> None:
        async with Worker(address) as worker, Client(address) as client:

            @worker.service("sleep")
            async def sleep() -> bytes:
                await asyncio.sleep(0.2)
                return b"rested"

            await worker.wait_ready()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.call("sleep", retry=True), 0.05)
            assert len(client._session.calls) == 0
            assert await client.call("sleep") == (b"rested",)

    run(main())


def test_leaving_a_map_lets_go_of_the_rest(address: str):
    async def main() -> None:
        async with Worker(address) as worker, Client(address) as client:
            worker.add("echo", lambda text: text)
            await worker.wait_ready()
            await client.call("echo", b"", retry=True)
            replies = client.map("echo", [b"%d" % number for number in range(1000)])
            async for reply in replies:
                if reply.body == b"3":
                    break
            await replies.aclose()
            await asyncio.sleep(0)
            assert len(client._session.calls) == 0

    run(main())


def test_stopping_cancels_what_runs(address: str):
    async def main() -> None:
        worker = Worker(address)
        begun, cancelled = asyncio.Event(), asyncio.Event()

        @worker.service("sleep")
        async def sleep() -> None:
            begun.set()
            try:
                await asyncio.sleep(20)
            except asyncio.CancelledError:
                cancelled.set()
                raise

        await worker.start()
        await worker.wait_ready()
        async with Client(address) as client:
            future = client.submit("sleep", timeout=20)
            await begun.wait()  # a task that is cancelled before it began never runs
            await worker.stop()
            assert cancelled.is_set()
            with pytest.raises(CallTimedOutError, match="gone"):
                await future

    run(main())


def test_a_closed_client_says_so(address: str):
    async def main() -> None:
        client = Client(address)
        await client.ping()
        await client.close()
        await client.close()
        with pytest.raises(ClosedError):
            await client.call("echo")

    run(main())


def test_a_client_starts_with_its_first_call(address: str):
    client = Client(address)  # no loop is needed for this

    async def main() -> None:
        assert await client.ping() < 5
        await client.close()

    run(main())


FORGETFUL = """
import asyncio, gc, sys
from importlib import import_module

Client = import_module(sys.argv[1]).Client

async def main():
    client = Client(sys.argv[2])
    try:
        async for part in client.stream("nobody", timeout=20):
            break
    except Exception as error:
        print(type(error).__name__)

gc.disable()
for _ in range(10):
    asyncio.run(main())
gc.collect()
print("collected")
"""


def test_a_client_that_was_never_closed_does_not_hang_when_it_is_collected(address: str):
    program = [sys.executable, "-W", "ignore", "-c", FORGETFUL, "scale0_core.client.aio", address]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [*["NoServiceError"] * 10, "collected"], done.stderr


def test_the_module_for_asyncio_has_the_same_names():
    assert {*client.__all__} - {"Stream"} <= {*aio.__all__}
    for name in aio.__all__:
        assert name in ("AsyncStream", "Client", "Worker") or getattr(aio, name) is getattr(client, name)
