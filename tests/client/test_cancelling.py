"""Work that nobody waits for any more, with a real broker: handlers stop, and their slots are free afterwards."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import zmq

from scale0_core.client import CallError, CallTimedOutError, Client, Worker, aio, cancelled, time_left
from scale0_core.testing import BrokerStarter
from scale0_core.testing.broker import RealBroker

from .conftest import QUICK, Flavour, Programs, echo, eventually

SOON = 0.1
"""Seconds within which a handler ends after it was cancelled."""
ROUNDS = 5
"""The best of so many counts: other processes may be in the way."""


class Forever:
    """Services that never end by themselves, and when they began and ended."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.ended: list[float] = []
        self.left: list[float] = []

    def parts(self) -> Iterator[bytes]:
        self.began.append(time.monotonic())
        try:
            while True:
                yield b"part"
                time.sleep(0.005)
        finally:
            self.ended.append(time.monotonic())

    def looks(self) -> bytes:
        self.began.append(time.monotonic())
        self.left.append(time_left())
        while not cancelled():
            time.sleep(0.005)
        self.ended.append(time.monotonic())
        return b"nobody waits for this"

    async def async_parts(self) -> Any:
        self.began.append(time.monotonic())
        try:
            while True:
                yield b"part"
                await asyncio.sleep(0.005)
        finally:
            self.ended.append(time.monotonic())

    async def coroutine(self) -> None:
        self.began.append(time.monotonic())
        try:
            await asyncio.sleep(3600)
        finally:
            self.ended.append(time.monotonic())

    def services(self, kind: str) -> dict[str, Any]:
        services = {"parts": self.parts, "looks": self.looks, "echo": echo}
        return services if kind == "sync" else {**services, "async": self.async_parts, "waits": self.coroutine}


@pytest.fixture
def forever() -> Forever:
    return Forever()


def best(forever: Forever, stop: Callable[[], Any]) -> float:
    """Give the seconds from when a handler is stopped until it has ended."""
    rounds = []
    for number in range(1, ROUNDS + 1):
        stopped = stop()
        eventually(lambda number=number: len(forever.ended) == number)
        rounds.append(forever.ended[-1] - stopped)
    return min(rounds)


def slot_is_free(client: Any) -> bool:
    """Tell whether the only slot of the worker does other work, soon."""
    return bool(client.call("echo", b"free", timeout=20) == (b"free",))


# --- streams ----------------------------------------------------------------------------------------------------------


def test_a_break_in_a_stream_stops_the_generator_and_frees_its_slot(address: str, forever: Forever):
    with Worker(address, heartbeat_interval=0.2) as worker, Client(address) as client:
        for name, function in forever.services("sync").items():
            worker.add(name, function)
        worker.wait_ready()

        def stop() -> float:
            for part in client.stream("parts", timeout=60):
                assert part == (b"part",)
                break
            return time.monotonic()

        assert best(forever, stop) < SOON
        assert slot_is_free(client)
        assert len(forever.began) == ROUNDS


@pytest.mark.parametrize("service", ["parts", "async"])
def test_a_break_in_a_stream_of_asyncio_stops_the_generator_and_frees_its_slot(
    address: str, forever: Forever, service: str
):
    async def main() -> None:
        async with aio.Worker(address, heartbeat_interval=0.2) as worker, aio.Client(address) as client:
            for name, function in forever.services("aio").items():
                worker.add(name, function)
            await worker.wait_ready()
            rounds = []
            for number in range(1, ROUNDS + 1):
                async for part in client.stream(service, timeout=60):
                    assert part == (b"part",)
                    break
                stopped = time.monotonic()
                while len(forever.ended) < number:
                    await asyncio.sleep(0.001)
                rounds.append(forever.ended[-1] - stopped)
            assert min(rounds) < SOON
            assert await client.call("echo", b"free", timeout=20) == (b"free",)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_stream_that_is_closed_stops_the_generator(flavour: Flavour, address: str, forever: Forever):
    flavour.worker(address, forever.services(flavour.name))
    client = flavour.client(address)
    stream = client.stream("parts", timeout=60)
    next(stream)
    stream.close()
    eventually(lambda: forever.ended)
    assert slot_is_free(client)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_stream_that_the_garbage_collector_finds_stops_the_generator(address: str, forever: Forever):
    with Worker(address, heartbeat_interval=0.2) as worker, Client(address) as client:
        worker.add("parts", forever.parts)
        worker.wait_ready()
        knot: list[Any] = [client.stream("parts", timeout=60)]
        next(knot[0])
        knot.append(knot)
        del knot
        gc.collect()
        eventually(lambda: forever.ended)


def test_a_stream_that_was_read_to_its_end_cancels_nothing(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    address = broker.address("scale0", "frontend")
    flavour.worker(address, {"three": lambda: iter_of(b"a", b"b", b"c")})
    client = flavour.client(address)
    assert [part.text for part in client.stream("three")] == ["a", "b", "c"]
    gc.collect()
    client.ping()
    counts = asked(broker, "state")["counts"]
    assert (counts["cancelled"], counts["unknown_cancels"]) == (0, 0)


def asked(broker: RealBroker, command: str) -> Any:
    """Ask a broker by its management."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 0, 20_000
        socket.connect(broker.address("scale0", "management"))
        socket.send_multipart([b"S0C01", b"MANAGEMENTREQ", json.dumps({"command": command}).encode()])
        return json.loads(socket.recv_multipart()[3])


def iter_of(*parts: bytes) -> Iterator[bytes]:
    yield from parts


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_cancelled_future_stops_a_function_that_looks(flavour: Flavour, address: str, forever: Forever):
    flavour.worker(address, forever.services(flavour.name))
    client = flavour.client(address)

    def stop() -> float:
        future = client.submit("looks", timeout=60)
        begun = len(forever.began)
        eventually(lambda: len(forever.began) > len(forever.ended) >= begun - 1)
        assert future.cancel()
        stopped = time.monotonic()
        assert future.cancelled()
        return stopped

    assert best(forever, stop) < SOON
    assert all(58 < left <= 60.1 for left in forever.left)
    assert slot_is_free(client)


def test_a_cancelled_call_cancels_the_coroutine(address: str, forever: Forever):
    async def main() -> None:
        async with aio.Worker(address, heartbeat_interval=0.2) as worker, aio.Client(address) as client:
            worker.add("waits", forever.coroutine)
            worker.add("echo", echo)
            await worker.wait_ready()
            rounds = []
            for number in range(1, ROUNDS + 1):
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(client.call("waits", timeout=60), 0.2)
                stopped = time.monotonic()
                while len(forever.ended) < number:
                    await asyncio.sleep(0.001)
                rounds.append(forever.ended[-1] - stopped)
            assert min(rounds) < SOON
            assert await client.call("echo", b"free", timeout=20) == (b"free",)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_timeout_stops_the_handler(flavour: Flavour, address: str, forever: Forever):
    flavour.worker(address, forever.services(flavour.name))
    client = flavour.client(address)
    with pytest.raises(CallTimedOutError):
        client.call("looks", timeout=0.5)
    eventually(lambda: forever.ended)
    assert slot_is_free(client)


def test_a_future_that_is_cancelled_twice_or_too_late(address: str):
    with Worker(address, heartbeat_interval=0.2) as worker, Client(address) as client:
        worker.add("echo", echo)
        worker.wait_ready()
        done = client.submit("echo", b"x")
        assert done.result(20) == (b"x",)
        assert not done.cancel()
        future = client.submit("nobody", timeout=20, retry=True)
        assert future.cancel()
        assert future.cancel()
        assert slot_is_free(client)


def test_what_a_map_has_under_way_is_cancelled_when_it_is_left(flavour: Flavour, address: str, forever: Forever):
    def first_or_forever(which: bytes) -> bytes:
        return b"first" if which == b"0" else forever.looks()

    flavour.worker(address, {"work": first_or_forever, "echo": echo}, concurrency=3)
    client = flavour.client(address)
    replies = client.map("work", [b"0", b"1", b"2"], timeout=60, window=3)
    assert next(replies) == (b"first",)
    eventually(lambda: len(forever.began) == 2)
    del replies
    gc.collect()
    eventually(lambda: len(forever.ended) == 2)


def test_a_task_that_a_worker_has_in_advance_never_begins(flavour: Flavour, address: str, forever: Forever):
    flavour.worker(address, forever.services(flavour.name), concurrency=1, prefetch=1)
    client = flavour.client(address)
    first = client.submit("looks", timeout=60)
    eventually(lambda: forever.began)
    second = client.submit("parts", timeout=60)
    third = client.submit("echo", b"third", timeout=60)  # waits at the broker
    client.ping()
    second.cancel()
    first.cancel()
    assert third.result(20) == (b"third",)
    assert (len(forever.began), len(forever.ended)) == (1, 1)


# --- clients and brokers that are gone --------------------------------------------------------------------------------


CALLER = """
import sys
from scale0_core.client import Client

for number, part in enumerate(Client(sys.argv[1]).stream("parts", timeout=600)):
    if not number:
        print("streams", flush=True)
"""


def test_a_client_that_is_killed_does_not_keep_a_worker_busy(
    flavour: Flavour, address: str, forever: Forever, programs: Programs
):
    flavour.worker(address, forever.services(flavour.name))
    caller = programs(CALLER, address)
    assert caller.stdout.readline() == "streams\n"
    os.kill(caller.pid, signal.SIGKILL)
    eventually(lambda: forever.ended)
    assert slot_is_free(flavour.client(address))


def test_a_client_that_is_closed_does_not_keep_a_worker_busy(flavour: Flavour, address: str, forever: Forever):
    flavour.worker(address, forever.services(flavour.name))
    client = flavour.client(address)
    future = client.submit("looks", timeout=600)
    eventually(lambda: forever.began)
    client.close()
    with pytest.raises(CallError):
        future.result(20)
    eventually(lambda: forever.ended)
    assert slot_is_free(flavour.client(address))


def test_a_client_with_a_req_socket_is_not_disturbed_when_another_is_lost(address: str):
    go_on = threading.Event()
    with (
        Worker(address, heartbeat_interval=0.2) as worker,
        zmq.Context() as context,
        context.socket(zmq.REQ) as request,
        context.socket(zmq.DEALER) as other,
    ):
        worker.add("waits", lambda: b"done" if go_on.wait(20) else b"")
        worker.wait_ready()
        for socket in (request, other):
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(address)
        request.send_multipart([b"S0C01", b"TASK", b"", b"waits", b"1"])
        other.send_multipart([b"S0C01", b"TASK", b"", b"waits", b"1"])
        other.send_multipart([b"S0C01", b"PING", b""])
        assert other.recv_multipart()[1] == b"PONG"
        other.close()
        time.sleep(0.5)  # longer than it takes until others are probed
        go_on.set()
        assert request.recv_multipart()[1] == b"TASKREPLY"


def test_a_worker_stops_by_itself_what_is_past_its_deadline(
    flavour: Flavour, scale0_broker: BrokerStarter, forever: Forever
):
    broker = scale0_broker([], QUICK)
    address = broker.address("scale0", "frontend")
    flavour.worker(address, forever.services(flavour.name))
    client = flavour.client(address)
    client.submit("looks", timeout=2.0)
    eventually(lambda: forever.began)
    os.kill(broker.process.pid, signal.SIGSTOP)  # it cannot tell that the time is up
    try:
        eventually(lambda: forever.ended, 20)
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    assert 1.0 < forever.ended[0] - forever.began[0] < 10
    assert slot_is_free(client)


# --- all at once ------------------------------------------------------------------------------------------------------


def test_cancels_and_replies_that_cross_leave_nothing_behind(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    address = broker.address("scale0", "frontend")

    def short(milliseconds: bytes) -> bytes:
        time.sleep(int(milliseconds) / 1000)
        return milliseconds

    flavour.worker(address, {"short": short, "echo": echo}, concurrency=4, prefetch=4)
    client = flavour.client(address)
    seeded = random.Random(17)
    futures = []
    for _ in range(300):
        futures.append(client.submit("short", b"%d" % seeded.randrange(3), timeout=60))
        if seeded.random() < 0.5:
            seeded.choice(futures).cancel()
        if seeded.random() < 0.1:
            time.sleep(0.002)
    for future in futures:
        assert future.cancelled() or future.result(30)
    eventually(lambda: not any(each["open_tasks"] for each in asked(broker, "list_clients")))
    state = asked(broker, "state")
    assert state["open_tasks"] == 0
    assert state["counts"]["cancelled"] > 0
    assert slot_is_free(client)


def test_an_old_worker_that_does_not_know_cancel_is_left_alone(scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    frontend, backend = broker.address("scale0", "frontend"), broker.address("scale0", "backend")
    with zmq.Context() as context, context.socket(zmq.DEALER) as old, Client(frontend) as client:
        old.linger, old.rcvtimeo = 0, 20_000
        old.connect(backend)
        old.send_multipart([b"S0W01", b"CHECKCONFIG", json.dumps({"identity": "old", "services": ["slow"]}).encode()])
        assert old.recv_multipart()[1] == b"CONFIG"
        old.send_multipart([b"S0W01", b"READY", json.dumps({"services": ["slow"], "window": 1}).encode()])
        assert old.recv_multipart()[1] == b"READYOK"
        future = client.submit("slow", timeout=60)
        task = old.recv_multipart()
        assert task[1] == b"TASK"
        assert future.cancel()
        second = client.submit("slow", timeout=60)
        client.ping()
        old.send_multipart([b"S0W01", b"TASKREPLY", b"", *task[3:5], b"late"])
        while (message := old.recv_multipart())[1] == b"HEARTBEAT":
            pass
        assert message[1] == b"TASK", "its late reply makes room, and no CANCEL came"
        old.send_multipart([b"S0W01", b"TASKREPLY", b"", *message[3:5], b"in time"])
        assert second.result(20) == (b"in time",)
