"""What a Client and a Worker do together through a real broker; each test for threads and for asyncio."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

import pytest
import zmq

from scale0_core.client import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoServiceError,
    RemoteError,
    Stage,
    TooLargeError,
    TooManyError,
    UnavailableError,
    WorkerError,
)
from scale0_core.errors import AddressError
from scale0_core.testing import BrokerStarter
from scale0_core.testing.broker import ThreadBroker

from .conftest import QUICK, Flavour, eventually


def echo(*frames: bytes):
    return frames


def count(number: bytes):
    for value in range(int(number)):
        yield str(value)


def slow(seconds: bytes):
    time.sleep(float(seconds))
    return b"after " + seconds


# --- calls ------------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R3")
def test_a_call_and_its_reply(flavour: Flavour, address: str):
    flavour.worker(address, {"echo": echo})
    client = flavour.client(address)
    reply = client.call("echo", b"hello")
    assert reply == (b"hello",)
    assert (reply.body, reply.text) == (b"hello", "hello")
    assert client.call("echo", b"a", b"", b"c") == (b"a", b"", b"c")
    assert client.call("echo") == ()


RESULTS = [
    (b"x", (b"x",)),
    ("ä", ("ä".encode(),)),
    (None, ()),
    ((b"x", "y"), (b"x", b"y")),
    ([b"x"], (b"x",)),
    (b"", (b"",)),
    (bytearray(b"x"), (b"x",)),
    ((), ()),
]


def test_what_a_service_may_return(flavour: Flavour, address: str):
    flavour.worker(address, {"give": lambda number: RESULTS[int(number)][0]})
    client = flavour.client(address)
    for number, (_, frames) in enumerate(RESULTS):
        assert client.call("give", b"%d" % number) == frames


def test_a_streamed_reply(flavour: Flavour, address: str):
    flavour.worker(address, {"count": count})
    client = flavour.client(address)
    assert [part.text for part in client.stream("count", b"5")] == ["0", "1", "2", "3", "4"]
    assert client.call("count", b"3") == (b"0", b"1", b"2")
    assert list(client.stream("count", b"0")) == []


def test_parts_come_as_they_are_made(flavour: Flavour, address: str):
    go_on = threading.Event()

    def two():
        yield "first"
        assert go_on.wait(10)
        yield "second"

    flavour.worker(address, {"two": two})
    stream = flavour.client(address).stream("two")
    assert next(stream).text == "first"
    go_on.set()
    assert next(stream).text == "second"
    with pytest.raises(StopIteration):
        next(stream)


def test_a_long_stream_has_no_hole(flavour: Flavour, address: str):
    flavour.worker(address, {"count": count})
    parts = [int(part.body) for part in flavour.client(address).stream("count", b"3000")]
    assert parts == list(range(3000))


def test_a_stream_that_fails_midway(flavour: Flavour, address: str):
    def breaks():
        yield "first"
        raise ValueError("midway")

    flavour.worker(address, {"breaks": breaks})
    stream = flavour.client(address).stream("breaks")
    assert next(stream).text == "first"
    with pytest.raises(RemoteError, match="midway"):
        next(stream)


def test_a_stream_that_is_left_harms_nobody(flavour: Flavour, address: str):
    flavour.worker(address, {"count": count, "echo": echo})
    client = flavour.client(address)
    stream = client.stream("count", b"2000")
    next(stream)
    stream.close()
    assert client.call("echo", b"x") == (b"x",)
    with pytest.raises(StopIteration):
        next(stream)


def test_a_map_keeps_the_order(flavour: Flavour, address: str):
    flavour.worker(address, {"echo": echo}, concurrency=8, prefetch=8)
    payloads = [b"%d" % number for number in range(1000)]
    replies = flavour.client(address).map("echo", payloads, window=100)
    assert [reply.body for reply in replies] == payloads


def test_an_error_ends_a_map(flavour: Flavour, address: str):
    def only_small(number: bytes):
        if int(number) > 3:
            raise ValueError(f"{number!r} is too large")
        return number

    flavour.worker(address, {"small": only_small})
    replies = flavour.client(address).map("small", (b"%d" % number for number in range(10)))
    assert [next(replies).body for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    with pytest.raises(RemoteError, match="too large"):
        next(replies)


def test_many_calls_at_once(flavour: Flavour, address: str):
    flavour.worker(address, {"echo": echo}, concurrency=4)
    client = flavour.client(address)
    futures = [client.submit("echo", b"%d" % number) for number in range(200)]
    assert [future.result(20).body for future in futures] == [b"%d" % number for number in range(200)]


def test_a_ping(flavour: Flavour, address: str):
    assert 0 < flavour.client(address).ping() < 5


def test_what_is_too_large_is_not_sent(flavour: Flavour, address: str):
    flavour.worker(address, {"echo": echo, "large": lambda: b"x" * (2 << 20)})
    client = flavour.client(address)
    with pytest.raises(TooLargeError):
        client.call("echo", b"x" * (2 << 20))
    with pytest.raises(RemoteError) as caught:
        client.call("large")
    assert caught.value.code == 413
    assert len(client.call("echo", b"x" * (1 << 20)).body) == 1 << 20


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_service_that_nobody_offers(flavour: Flavour, address: str):
    with pytest.raises(NoServiceError) as caught:
        flavour.client(address).call("nothing")
    assert (caught.value.code, caught.value.service) == (404, "nothing")


def test_a_service_whose_workers_have_gone(flavour: Flavour, address: str):
    worker = flavour.worker(address, {"echo": echo})
    client = flavour.client(address)
    client.call("echo")
    assert worker.drain()
    with pytest.raises(UnavailableError) as caught:
        client.call("echo")
    assert caught.value.code == 503


def test_too_many_calls(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], {"network": {**QUICK["network"], "queue_limit": 1}})
    address = broker.address("scale0", "frontend")
    release = threading.Event()
    flavour.worker(address, {"wait": lambda: release.wait(20) and b"done"})
    client = flavour.client(address)
    futures = [client.submit("wait") for _ in range(3)]
    with pytest.raises(TooManyError) as caught:
        futures[2].result(10)
    assert caught.value.code == 429
    release.set()
    assert [future.result(10) for future in futures[:2]] == [(b"done",)] * 2


def test_a_worker_that_is_too_slow(flavour: Flavour, address: str):
    flavour.worker(address, {"slow": slow})
    client = flavour.client(address)
    began = time.monotonic()
    with pytest.raises(CallTimedOutError) as caught:
        client.call("slow", b"1.5", timeout=0.8)
    assert time.monotonic() - began < 1.2
    assert (caught.value.code, caught.value.stage) == (504, Stage.WORKER)
    assert "the worker did not answer in time" in str(caught.value)


def test_a_late_reply_is_not_mistaken_for_another(flavour: Flavour, address: str):
    flavour.worker(address, {"slow": slow})
    client = flavour.client(address)
    with pytest.raises(CallTimedOutError):
        client.call("slow", b"0.5", timeout=0.2)
    for seconds in (b"0.3", b"0.01", b"0.02"):
        assert client.call("slow", seconds).body == b"after " + seconds


def test_a_function_that_raises(flavour: Flavour, address: str):
    def fails(*_: bytes):
        raise ValueError("no \x1b[31m colours \udc80")

    flavour.worker(address, {"fails": fails, "echo": echo})
    client = flavour.client(address)
    with pytest.raises(RemoteError, match="ValueError: no") as caught:
        client.call("fails")
    assert caught.value.code == 500
    assert "\x1b" not in str(caught.value)
    assert client.call("echo", b"x") == (b"x",)


def test_a_function_chooses_the_code(flavour: Flavour, address: str):
    def missing():
        raise RemoteError("no such file", 404)

    flavour.worker(address, {"missing": missing})
    with pytest.raises(RemoteError) as caught:
        flavour.client(address).call("missing")
    assert (caught.value.code, caught.value.message) == (404, "no such file")


def test_functions_that_keep_no_rule(flavour: Flavour, address: str):
    wrong = {"a": lambda: 3, "b": lambda: (b"x", 3), "c": lambda one: one, "d": lambda: [b""] * 40, "e": dict}
    flavour.worker(address, wrong)
    client = flavour.client(address)
    for name in wrong:
        with pytest.raises(RemoteError):
            client.call(name)


# --- deadlines --------------------------------------------------------------------------------------------------------


def test_without_a_broker_a_call_says_that_it_could_not_connect(flavour: Flavour, tmp_path: Path):
    client = flavour.client(f"ipc://{tmp_path}/nobody")
    began = time.monotonic()
    with pytest.raises(CallTimedOutError) as caught:
        client.call("echo", timeout=0.3)
    assert 0.25 < time.monotonic() - began < 1
    assert caught.value.stage is Stage.CONNECTING
    assert f"{tmp_path}/nobody" in str(caught.value)
    assert "connecting" in str(caught.value)
    with pytest.raises(CallTimedOutError):
        client.ping(timeout=0.1)


def test_a_frozen_broker(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker([], QUICK)
    address = broker.address("scale0", "frontend")
    began, release = threading.Event(), threading.Event()

    def wait() -> bytes:
        began.set()
        assert release.wait(20)
        return b"in hand"

    flavour.worker(address, {"echo": echo, "wait": wait}, concurrency=2)
    client = flavour.client(address)
    in_hand = client.submit("wait", timeout=20)
    assert began.wait(10)
    client.ping()  # whatever else the broker has said was heard before its answer
    os.kill(broker.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(CallTimedOutError) as caught:
            client.call("echo", timeout=0.5)
        assert caught.value.stage is Stage.BROKER
        held = client.submit("echo", b"held")
        time.sleep(0.8)  # longer than workers wait that have nothing in hand
        release.set()
    finally:
        os.kill(broker.process.pid, signal.SIGCONT)
    assert in_hand.result(10) == (b"in hand",)
    assert held.result(10) == (b"held",)


def test_a_broker_that_comes_later(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    address = broker.address("scale0", "frontend")
    broker.stop()
    worker = flavour.idle_worker(address, {"echo": echo})
    worker.start()
    client = flavour.client(address)
    future = client.submit("echo", b"patience", timeout=20, retry=True)
    held = client.submit("echo", b"also without", timeout=20)
    again = ThreadBroker(broker.folder / "broker.toml", broker.name, broker.folder, {})
    try:
        assert future.result(20) == (b"patience",)
        with contextlib.suppress(NoServiceError):  # the worker may come after the client
            assert held.result(20) == (b"also without",)
    finally:
        again.stop()


@pytest.mark.parametrize("broker", ["what://ever", "tcp://no-port", "nonsense://"])
def test_an_address_that_is_none(flavour: Flavour, broker: str):
    with pytest.raises(AddressError, match="cannot connect"):
        flavour.client(broker).call("echo", timeout=1)


def test_wrong_numbers_are_refused(flavour: Flavour, address: str):
    client = flavour.client(address)
    for timeout in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="a timeout is longer than nothing"):
            client.call("echo", timeout=timeout)
    for options in ({"concurrency": 0}, {"prefetch": -1}, {"heartbeat_interval": 0}, {"concurrency": 100_000}):
        with pytest.raises(ValueError, match=r"worker|heartbeat"):
            flavour.idle_worker(address, **options)
    with pytest.raises(ValueError, match="identity"):
        flavour.idle_worker(address, identity="")


# --- configuration ----------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R10")
@pytest.mark.requirement("R11")
@pytest.mark.requirement("R34")
@pytest.mark.requirement("R35")
@pytest.mark.requirement("R77")
def test_the_configuration_is_asked_for_kept_and_acknowledged(flavour: Flavour, address: str, tmp_path: Path):
    for _ in range(2):
        client = flavour.client(address, identity="me", config_dir=tmp_path / "kept")
        client.ping()
        eventually(lambda client=client: client.config_version == 1)
        client.close()
        (path,) = (tmp_path / "kept").iterdir()
        assert path.stat().st_mode & 0o077 == 0
        assert '"version": 1' in path.read_text()
        before = path.stat().st_mtime_ns, path.stat().st_ino
    # acknowledged, not given again: the file is the same
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before


@pytest.mark.requirement("R31")
@pytest.mark.parametrize("config_type", ["JSON", "XML", "ZFL"])
def test_the_configuration_comes_in_the_type_asked_for(flavour: Flavour, address: str, config_type: str):
    worker = flavour.worker(address, {"echo": echo}, config_type=config_type)
    assert worker.config_version == 1
    assert flavour.client(address, config_type=config_type).call("echo", b"x") == (b"x",)


def test_a_type_that_nobody_has_is_no_obstacle(flavour: Flavour, address: str):
    flavour.worker(address, {"echo": echo}, config_type="STONE")
    assert flavour.client(address, config_type="STONE").call("echo", b"x") == (b"x",)


@pytest.mark.requirement("R47")
@pytest.mark.requirement("R56")
def test_a_new_configuration_reaches_a_worker_that_runs(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    address = broker.address("scale0", "frontend")
    release = threading.Event()
    worker = flavour.worker(address, {"wait": lambda: release.wait(20) and b"done"})
    future = flavour.client(address).submit("wait")
    toml = broker.folder / "broker.toml"
    toml.write_text(toml.read_text().replace("default_heartbeat_interval = 200", "default_heartbeat_interval = 300"))
    reload_config(broker.address("scale0", "management"))
    eventually(lambda: worker.config_version == 2 and worker.state.value == "serving")
    release.set()
    assert future.result(10) == (b"done",)


def reload_config(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.rcvtimeo = 5000
        socket.connect(address)
        socket.send_multipart([b"S0C01", b"MANAGEMENTREQ", b'{"command":"reload_config"}'])
        assert b"200" in socket.recv_multipart()[2]


def test_a_folder_that_cannot_be_written_is_no_obstacle(flavour: Flavour, address: str, tmp_path: Path):
    (tmp_path / "file").write_text("x")
    client = flavour.client(address, config_dir=tmp_path / "file" / "below")
    client.ping()
    eventually(lambda: client.config_version == 1)


def test_a_stored_configuration_that_is_broken_counts_as_none(flavour: Flavour, address: str, tmp_path: Path):
    flavour.worker(address, {"echo": echo}, identity="me", config_dir=tmp_path / "kept").stop()
    (path,) = (tmp_path / "kept").iterdir()
    for content in ("", "{", "[]", '{"version": 1}', '{"version": 1, "config": {"what": 1}}'):
        path.write_text(content)
        flavour.worker(address, {"echo": echo}, identity="me", config_dir=tmp_path / "kept").stop()
        assert '"version": 1,' in path.read_text()


def test_over_tcp(flavour: Flavour, scale0_broker: BrokerStarter):
    """The worker knows the frontend's port alone; that of the backend is in its configuration."""
    network = {**QUICK["network"], "frontend_port": 0, "backend_port": 0}
    broker = scale0_broker.in_thread([], {"network": network})
    address = broker.address("scale0", "frontend")
    assert address.startswith("tcp://")
    flavour.worker(address, {"echo": echo})
    assert flavour.client(address).call("echo", b"x") == (b"x",)


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
    began = threading.Event()

    def work():
        began.set()
        time.sleep(0.4)
        return b"done"

    leaving = flavour.worker(address, {"work": work})
    client = flavour.client(address)
    in_hand = client.submit("work")
    assert began.wait(10)
    waiting = client.submit("work")
    flavour.worker(address, {"work": lambda: b"by another"})
    assert waiting.result(10) == (b"by another",)
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
    assert time.monotonic() - began < 2
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
    with pytest.raises(WorkerError, match="locating"):
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
    assert time.monotonic() - began < 2
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
    assert time.monotonic() - began < 2
    release.set()


def test_closing_without_a_broker_is_prompt(flavour: Flavour, tmp_path: Path):
    client = flavour.client(f"ipc://{tmp_path}/nobody")
    future = client.submit("echo")
    worker = flavour.idle_worker("tcp://127.0.0.1:1", {"echo": echo})
    worker.start()
    began = time.monotonic()
    client.close()
    worker.stop()
    assert time.monotonic() - began < 2
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
        assert time.monotonic() - began < 4
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
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    once()
    before = held()
    for _ in range(5):
        once()
    eventually(lambda: held() <= before)


# --- faults -----------------------------------------------------------------------------------------------------------

WORKER = """
import os, sys, time
from scale0_core.client import Worker
worker = Worker(sys.argv[1], heartbeat_interval=0.2, identity=sys.argv[2])
@worker.service("work")
def work(seconds):
    print("began", flush=True)
    time.sleep(float(seconds))
    return sys.argv[2]
worker.start()
worker.wait_ready()
print("ready", flush=True)
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
    assert time.monotonic() - began < 2
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
    await worker.start()
    await worker.wait_ready()
    print("ready", flush=True)
    await worker.run()

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
    out, err = program.communicate(timeout=10)
    assert (program.returncode, out, err) == (0, "ended\n", "")


def test_a_broker_that_is_killed_and_started_again(flavour: Flavour, scale0_broker: BrokerStarter, restart):
    broker = scale0_broker([], {"network": {"default_heartbeat_interval": 500}})
    address = broker.address("scale0", "frontend")
    release = threading.Event()
    worker = flavour.worker(
        address, {"echo": echo, "wait": lambda: release.wait(30) and b"old"}, concurrency=4, heartbeat_interval=0.5
    )
    client = flavour.client(address)
    once, again = client.submit("wait", timeout=20), client.submit("echo", b"warm")
    assert again.result(10) == (b"warm",)
    broker.kill()
    with pytest.raises(BrokerLostError, match="may have been carried out"):
        once.result(5)
    again = client.submit("echo", b"again", timeout=20, retry=True)
    restart(broker)
    began = time.monotonic()
    assert again.result(20) == (b"again",)
    worker.wait_ready()
    assert time.monotonic() - began < 3 * 0.5
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
