"""Workers of a real broker: tasks, leaving, what happens when somebody dies; each test for threads and for asyncio."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest

from scale0_core.client import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    Client,
    ClosedError,
    NoServiceError,
    RemoteError,
    UnavailableError,
    WorkerError,
)
from scale0_core.testing import BrokerStarter

from .conftest import QUICK, Flavour, Programs, echo, eventually, slow

# --- workers ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R8")
def test_services_come_and_go_while_a_worker_runs(flavour: Flavour, address: str):
    worker = flavour.worker(address, {"first": echo})
    client = flavour.client(address)
    with pytest.raises(NoServiceError):
        client.call("second")
    worker.add("second", echo)
    assert client.call("second", b"x", retry=True) == (b"x",)
    worker.remove("first")
    eventually(lambda: _code_of(client, "first") == 503)
    assert client.call("second", b"x") == (b"x",)
    with pytest.raises(KeyError):
        worker.remove("first")


def _code_of(client, service: str) -> int:
    try:
        client.call(service, timeout=2)
    except CallError as error:
        return error.code
    return 200


def test_tasks_run_side_by_side(flavour: Flavour, address: str):
    together = threading.Barrier(4)
    flavour.worker(address, {"meet": lambda: str(together.wait(10))}, concurrency=4)
    client = flavour.client(address)
    futures = [client.submit("meet", timeout=10) for _ in range(4)]
    assert sorted(future.result(10).text for future in futures) == ["0", "1", "2", "3"]


def test_what_is_taken_in_advance_waits_its_turn(flavour: Flavour, address: str):
    running, most = [], []

    def work():
        running.append(1)
        most.append(len(running))
        time.sleep(0.01)
        running.pop()
        return b""

    flavour.worker(address, {"work": work}, concurrency=2, prefetch=10)
    assert len(list(flavour.client(address).map("work", [()] * 30))) == 30
    assert max(most) == 2


@pytest.mark.requirement("R14")
def test_heartbeats_go_on_while_a_function_works(flavour: Flavour, address: str):
    worker = flavour.worker(address, {"slow": slow})
    assert flavour.client(address).call("slow", b"1.5") == (b"after 1.5",)
    assert worker.state.value == "serving"
    assert worker.fault is None


def test_draining_finishes_what_is_in_hand(flavour: Flavour, address: str):
    began, release = threading.Event(), threading.Event()

    def work():
        began.set()
        assert release.wait(60)
        return b"done"

    leaving = flavour.worker(address, {"work": work})
    client = flavour.client(address)
    in_hand = client.submit("work")
    assert began.wait(10)
    waiting = client.submit("work")
    flavour.worker(address, {"work": lambda: b"by another"})
    assert waiting.result(30) == (b"by another",)
    threading.Timer(0.3, release.set).start()  # when it drains
    assert leaving.drain()
    assert in_hand.result(10) == (b"done",)
    assert leaving.state.value == "left"
    assert client.call("work") == (b"by another",)


def test_draining_has_an_end(flavour: Flavour, address: str):
    release = threading.Event()
    worker = flavour.worker(address, {"stuck": lambda: release.wait(20) and None})
    client = flavour.client(address)
    future = client.submit("stuck")
    eventually(lambda: getattr(worker, "inner", worker)._session.in_hand)
    began = time.monotonic()
    assert not worker.drain(timeout=0.3)
    assert time.monotonic() - began < 10
    with pytest.raises(CallTimedOutError):
        future.result(10)
    release.set()


def test_a_worker_starts_again_after_it_has_left(flavour: Flavour, address: str):
    worker = flavour.worker(address, {"echo": echo})
    assert worker.drain()
    worker.start()
    worker.wait_ready()
    assert flavour.client(address).call("echo", b"x") == (b"x",)
    with pytest.raises(RuntimeError, match="started already"):
        worker.start()


@pytest.mark.requirement("R79")
def test_two_workers_of_one_identity(flavour: Flavour, address: str):
    first = flavour.worker(address, {"echo": lambda: b"first"}, identity="twin")
    second = flavour.idle_worker(address, {"echo": lambda: b"second"}, identity="twin")
    second.start()
    fault = eventually(lambda: second.fault)
    assert isinstance(fault, WorkerError)
    assert fault.code == 409
    client = flavour.client(address)
    assert client.call("echo") == (b"first",)
    with pytest.raises(WorkerError, match="409"):
        second.wait_ready(timeout=0.2)
    first.drain()
    second.wait_ready()
    assert client.call("echo") == (b"second",)


def test_a_worker_without_a_broker_says_so(flavour: Flavour, tmp_path: Path):
    worker = flavour.idle_worker(f"ipc://{tmp_path}/nobody", {"echo": echo})
    worker.start()
    with pytest.raises(WorkerError, match="nobody listens"):
        worker.wait_ready(timeout=0.2)


def test_services_that_the_broker_does_not_manage(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], {"network": {**QUICK["network"], "services": ["echo"]}})
    worker = flavour.worker(broker.address("scale0", "frontend"), {"echo": echo, "other": echo})
    fault = eventually(lambda: worker.fault)
    assert "other" in str(fault)
    assert flavour.client(broker.address("scale0", "frontend")).call("echo", b"x") == (b"x",)


# --- closing ----------------------------------------------------------------------------------------------------------


def test_closing_ends_open_calls_at_once(flavour: Flavour, address: str):
    release = threading.Event()
    worker = flavour.worker(address, {"wait": lambda: release.wait(20) and None})
    client = flavour.client(address)
    future, stream = client.submit("wait"), client.stream("wait")
    began = time.monotonic()
    client.close()
    assert time.monotonic() - began < 10
    with pytest.raises(ClosedError):
        future.result(1)
    with pytest.raises(ClosedError):
        next(stream)
    with pytest.raises(ClosedError):
        client.call("wait")
    client.close()
    began = time.monotonic()
    worker.stop()
    worker.stop()
    assert time.monotonic() - began < 10
    release.set()


def test_closing_without_a_broker_is_prompt(flavour: Flavour, tmp_path: Path):
    client = flavour.client(f"ipc://{tmp_path}/nobody", wait_for_broker=True)
    future = client.submit("echo")
    worker = flavour.idle_worker("tcp://127.0.0.1:1", {"echo": echo})
    worker.start()
    began = time.monotonic()
    client.close()
    worker.stop()
    assert time.monotonic() - began < 10
    with pytest.raises(ClosedError):
        future.result(1)


def test_closing_while_the_broker_is_frozen_is_prompt(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker([], QUICK)
    address = broker.address("scale0", "frontend")
    worker = flavour.worker(address, {"echo": echo})
    client = flavour.client(address)
    client.ping()
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        for _ in range(100):
            client.submit("echo", b"x" * 100_000)
        began = time.monotonic()
        client.close()
        worker.stop()
        assert time.monotonic() - began < 15
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)


def test_nothing_is_left_behind(flavour: Flavour, address: str):
    def once() -> None:
        worker = flavour.worker(address, {"echo": echo})
        client = flavour.client(address)
        assert client.call("echo", b"x") == (b"x",)
        with contextlib.suppress(CallError):
            client.call("nothing")
        client.close()
        worker.drain()

    def held() -> tuple[int, int]:
        # a loop has threads of its own for what may block; how many, it decides by chance
        threads = [thread for thread in threading.enumerate() if not thread.name.startswith("asyncio_")]
        return len(list(Path("/proc/self/fd").iterdir())), len(threads)

    once()
    before = held()
    for _ in range(5):
        once()
    eventually(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


# --- faults -----------------------------------------------------------------------------------------------------------

WORKER = """
import sys, threading, time
from scale0_core.client import Worker
worker = Worker(sys.argv[1], heartbeat_interval=0.2, identity=sys.argv[2])
@worker.service("work")
def work(seconds):
    print("began", flush=True)
    time.sleep(float(seconds))
    return sys.argv[2]
def tell():
    worker.wait_ready()
    print("ready", flush=True)
threading.Thread(target=tell).start()
worker.run()
print("ended", flush=True)
"""


def test_a_worker_that_is_killed(flavour: Flavour, address: str, programs):
    victim = programs(WORKER, address, "victim")
    assert victim.stdout.readline() == "ready\n"
    client = flavour.client(address)
    once = client.submit("work", b"20", timeout=20)
    assert victim.stdout.readline() == "began\n"
    began = time.monotonic()
    victim.kill()
    with pytest.raises(CallTimedOutError, match="the worker that had this task is gone"):
        once.result(20)
    assert time.monotonic() - began < 10
    victim = programs(WORKER, address, "victim")
    assert victim.stdout.readline() == "ready\n"
    again = client.submit("work", b"0.5", timeout=20, retry=True)
    assert victim.stdout.readline() == "began\n"
    flavour.worker(address, {"work": lambda seconds: "another"})
    victim.kill()
    assert again.result(20).text == "another"


AIO_WORKER = """
import asyncio, sys
from scale0_core.client.aio import Worker

async def main():
    worker = Worker(sys.argv[1], heartbeat_interval=0.2)
    @worker.service("work")
    async def work(seconds):
        print("began", flush=True)
        await asyncio.sleep(float(seconds))
        return sys.argv[2]
    async def tell():
        await worker.wait_ready()
        print("ready", flush=True)
    telling = asyncio.create_task(tell())
    await worker.run()
    await telling

asyncio.run(main())
print("ended", flush=True)
"""


def test_a_signal_lets_a_worker_finish(flavour: Flavour, address: str, programs):
    text, number = (WORKER, signal.SIGTERM) if flavour.name == "sync" else (AIO_WORKER, signal.SIGINT)
    program = programs(text, address, "polite")
    assert program.stdout.readline() == "ready\n"
    client = flavour.client(address)
    future = client.submit("work", b"0.4")
    assert program.stdout.readline() == "began\n"
    program.send_signal(number)
    assert future.result(10).text == "polite"
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "ended\n", "")


EARLY = """
import asyncio, os, signal, sys
from scale0_core.client import Worker, aio

class Early(aio.Worker if sys.argv[2] == "aio" else Worker):
    def _begin(self):
        os.kill(os.getpid(), signal.SIGTERM)
        super()._begin()

program = Early(sys.argv[1]).run()
if sys.argv[2] == "aio":
    asyncio.run(program)
print("ended", flush=True)
"""


def test_a_signal_while_a_worker_starts_is_heeded(flavour: Flavour, address: str, programs):
    program = programs(EARLY, address, flavour.name)
    out, err = program.communicate(timeout=60)
    assert (program.returncode, out, err) == (0, "ended\n", "")


def test_a_broker_that_is_killed_and_started_again(flavour: Flavour, scale0_broker: BrokerStarter, restart):
    broker = scale0_broker([], {"network": {"default_heartbeat_interval": 2000}})
    address = broker.address("scale0", "frontend")
    release = threading.Event()
    worker = flavour.worker(
        address, {"echo": echo, "wait": lambda: release.wait(30) and b"old"}, concurrency=4, heartbeat_interval=2.0
    )
    client = flavour.client(address)
    once, again = client.submit("wait", timeout=20), client.submit("echo", b"warm")
    assert again.result(10) == (b"warm",)
    broker.kill()
    with pytest.raises(BrokerLostError, match="may have been carried out"):
        once.result(30)
    again = client.submit("echo", b"again", timeout=20, retry=True)
    restart(broker)
    began = time.monotonic()
    assert again.result(20) == (b"again",)
    worker.wait_ready()
    assert time.monotonic() - began < 3 * 2.0
    # the reply to a task of the broker's former life is nobody's
    fresh = client.submit("wait", timeout=20)
    release.set()
    assert fresh.result(10) == (b"old",)
    assert client.call("echo", b"fine") == (b"fine",)


def test_no_call_is_without_an_end_while_the_broker_comes_and_goes(flavour: Flavour, scale0_broker, restart):
    broker = scale0_broker([], QUICK)
    address = broker.address("scale0", "frontend")
    flavour.worker(address, {"echo": echo}, concurrency=4)
    client = flavour.client(address)
    client.ping()  # once it was connected, it waits for the broker to come back
    futures = []
    for round_ in range(2):
        for number in range(50):
            payload = b"%d.%d" % (round_, number)
            futures.append((payload, number % 2, client.submit("echo", payload, timeout=10, retry=bool(number % 2))))
        if not round_:
            broker.kill()
            broker = restart(broker)
    for payload, repeatable, future in futures:
        try:
            assert future.result(15) == (payload,)
        except (BrokerLostError, NoServiceError, UnavailableError):
            assert not repeatable


# --- what the log of a worker says ------------------------------------------------------------------------------------

FAILING = """
import asyncio, sys
{setup}

def fails(*_):
    wrong = 1 / 0

async def fails_later(*_):
    fails()

def parts(*_):
    yield b"part"
    fails()

async def main():
    worker = aio.Worker(sys.argv[1])
    for name, function in dict(fails=fails, later=fails_later, parts=parts).items():
        worker.add(name, function)
    await worker.run()

if sys.argv[2] == "aio":
    asyncio.run(main())
else:
    worker = Worker(sys.argv[1])
    worker.add("fails", fails)
    worker.add("parts", parts)
    worker.run()
"""


@pytest.mark.parametrize("setup", ["", "import logging; logging.basicConfig(format='%(message)s')"])
@pytest.mark.parametrize(
    ("kind", "services"), [("sync", ["fails", "parts"]), ("aio", ["fails", "later", "parts"])]
)  # fmt: skip
def test_the_log_of_a_worker_has_the_traceback_the_service_and_the_task_of_a_handler_that_raised(
    address: str, programs: Programs, kind: str, services: list[str], setup: str
):
    imports = "from scale0_core.client import Worker, aio"
    program = programs(FAILING.format(setup=f"{imports}\n{setup}"), address, kind)
    with Client(address, retries=1000) as client:  # the program takes its time to start
        for service in services:
            with pytest.raises(RemoteError, match="ZeroDivisionError"):
                client.call(service, timeout=20, retry=True)
    program.terminate()
    _, log = program.communicate(timeout=30)
    for service in services:
        assert re.search(rf"service raised service={service} task=[0-9a-f]{{16}}\n    Traceback", log), log
    assert log.count("wrong = 1 / 0") == len(services)
    assert log.count("ZeroDivisionError: division by zero") == len(services)
