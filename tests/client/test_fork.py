"""Clients and workers in a forked child: whatever they are asked fails immediately, with a sentence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from scale0_core.client import Client, Worker, aio
from scale0_core.testing import BrokerStarter
from scale0_core.testing import in_forked_child as in_child


@pytest.fixture
def address(scale0_broker: BrokerStarter) -> str:
    return scale0_broker.in_thread([]).address("scale0", "frontend")


def echo(*frames: bytes):
    return frames


def slow(*frames: bytes):
    yield b"first"
    time.sleep(2)
    yield b"second"


def test_a_client_says_in_a_forked_child_that_it_belongs_to_another_process(address: str):
    with Worker(address, concurrency=3) as worker, Client(address) as client:
        worker.add("echo", echo)
        worker.add("slow", slow)
        worker.wait_ready()
        assert client.call("echo", b"x") == (b"x",)
        future, stream = client.submit("slow", timeout=30), client.stream("slow", timeout=30)
        for use in (
            lambda: client.call("echo", b"y", timeout=30),
            lambda: client.ping(30),
            lambda: client.submit("echo"),
            future.result,
            future.exception,
            lambda: next(stream),
            lambda: list(client.map("echo", [b"z"])),
        ):
            told = in_child(use)
            assert told.startswith("ClosedError: the client belongs to another process"), told
            assert "forked child" in told
        assert in_child(client.close) == "nothing was raised"
        for use in (worker.wait_ready, worker.drain, worker.run):
            assert in_child(use).startswith("WorkerError: the worker"), use
        assert in_child(worker.stop) == "nothing was raised"
        assert future.result(30).body == b"firstsecond"
        assert [part.body for part in stream] == [b"first", b"second"]
        assert client.call("echo", b"still here") == (b"still here",)


def test_a_client_made_after_the_fork_works(address: str):
    def use() -> None:
        with Client(address) as client:
            client.ping(10)

    with Client(address) as client:
        client.ping()
        assert in_child(use) == "nothing was raised"
        client.ping()


def test_asyncio_clients_and_workers_say_so_too(address: str):
    async def main() -> None:
        client, worker = aio.Client(address), aio.Worker(address)
        worker.add("echo", echo)
        await worker.start()
        await worker.wait_ready()
        await client.ping()

        def use(make) -> Callable[[], None]:
            def run() -> None:
                asyncio.events._set_running_loop(None)  # the child begins without the parent's loop
                asyncio.new_event_loop().run_until_complete(make())

            return run

        for make in (lambda: client.call("echo", timeout=30), lambda: client.ping(30)):
            assert in_child(use(make)).startswith("ClosedError: the client belongs to another process")
        for make in (worker.wait_ready, worker.drain, worker.run):
            assert in_child(use(make)).startswith("WorkerError: the worker")
        assert in_child(use(client.close)) == "nothing was raised"
        assert await client.call("echo", b"x") == (b"x",)
        await client.close()
        await worker.stop()

    asyncio.run(main())
