"""Clients and workers in a forked child: whatever they are asked fails immediately, with a sentence."""

from __future__ import annotations

import asyncio
import time

import pytest

from scale0_core.testing import in_forked_child
from scale0_majordomo import Client, Worker, aio

BIND = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}


@pytest.fixture
def here(scale0_broker) -> str:
    return scale0_broker.in_thread(["majordomo"], BIND).address("majordomo", "requests")


def slow(request):
    yield b"first"
    time.sleep(1)
    yield b"second"


def test_calls_streams_and_workers_of_the_parent_fail_in_the_child(here):
    with Worker(here, credit=3) as worker, Client(here, timeout=30) as client:
        worker.add("upper", lambda request: request.text.upper())
        worker.add("slow", slow)
        worker.wait_ready()
        assert client.call("upper", "x").text == "X"
        future, stream = client.submit("slow"), client.stream("slow")
        for use in (
            lambda: client.call("upper", "y"),
            lambda: client.submit("upper", "y"),
            lambda: list(client.map("upper", ["z"])),
            future.result,
            future.exception,
            lambda: next(stream),
        ):
            assert in_forked_child(use).startswith("ClosedError: "), use
        assert in_forked_child(client.close) == "nothing was raised"
        for use in (worker.wait_ready, worker.drain, worker.run):
            assert in_forked_child(use).startswith("WorkerError: "), use
        assert in_forked_child(worker.stop) == "nothing was raised"
        # the parent goes on as if nothing had happened
        assert future.result(30).body == b"firstsecond"
        assert [part.body for part in stream] == [b"first", b"second"]


def test_a_client_made_after_the_fork_works(here):
    with Worker(here) as worker, Client(here, timeout=30) as client:
        worker.add("upper", lambda request: request.text.upper())
        worker.wait_ready()

        def use() -> None:
            with Client(here, timeout=20) as other:
                assert other.call("upper", "x").text == "X"

        assert in_forked_child(use) == "nothing was raised"
        assert client.call("upper", "y").text == "Y"


def test_asyncio_clients_and_workers_fail_in_the_child_too(here):
    async def main() -> None:
        client, worker = aio.Client(here, timeout=30), aio.Worker(here)
        worker.add("upper", lambda request: request.text.upper())
        await worker.start()
        await worker.wait_ready()
        assert (await client.call("upper", "x")).text == "X"

        def use(make):
            def run() -> None:
                asyncio.events._set_running_loop(None)  # the child begins without the parent's loop
                asyncio.new_event_loop().run_until_complete(make())

            return run

        assert in_forked_child(use(lambda: client.call("upper", "y"))).startswith("ClosedError: ")
        for make in (worker.wait_ready, worker.drain, worker.run):
            assert in_forked_child(use(make)).startswith("WorkerError: "), make
        assert in_forked_child(use(client.close)) == "nothing was raised"
        assert (await client.call("upper", "z")).text == "Z"
        await client.close()
        await worker.stop()

    asyncio.run(main())
