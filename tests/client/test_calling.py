"""Calls through a real broker: replies, errors, deadlines, the configuration; each test for threads and for asyncio."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest
import zmq

from scale0_core.client import (
    CallTimedOutError,
    NoBrokerError,
    NoServiceError,
    RemoteError,
    Stage,
    TooLargeError,
    TooManyError,
    UnavailableError,
)
from scale0_core.errors import AddressError, Exit
from scale0_core.testing import BrokerStarter
from scale0_core.testing.broker import ThreadBroker

from .conftest import QUICK, Flavour, count, echo, eventually, slow

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
        futures[2].result(30)
    assert caught.value.code == 429
    release.set()
    assert [future.result(30) for future in futures[:2]] == [(b"done",)] * 2


def test_a_worker_that_is_too_slow(flavour: Flavour, address: str):
    release = threading.Event()
    flavour.worker(address, {"slow": lambda: release.wait(60) and None})
    client = flavour.client(address)
    client.ping()
    began = time.monotonic()
    with pytest.raises(CallTimedOutError) as caught:
        client.call("slow", timeout=2)  # long enough to be begun
    assert time.monotonic() - began < 20
    release.set()
    assert (caught.value.code, caught.value.stage) == (408, Stage.WORKER)
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
    client = flavour.client(f"ipc://{tmp_path}/nobody", wait_for_broker=True)
    began = time.monotonic()
    with pytest.raises(CallTimedOutError) as caught:
        client.call("echo", timeout=0.3)
    assert 0.25 < time.monotonic() - began < 10
    assert caught.value.stage is Stage.CONNECTING
    assert f"{tmp_path}/nobody" in str(caught.value)
    assert "connecting" in str(caught.value)
    with pytest.raises(CallTimedOutError):
        client.ping(timeout=0.1)


@pytest.mark.parametrize("transport", ["ipc", "refused ipc", "tcp"])
def test_where_nobody_listens_calls_fail_immediately(flavour: Flavour, tmp_path: Path, transport: str):
    place = f"ipc://{tmp_path}/nobody"
    if transport == "refused ipc":
        with socket.socket(socket.AF_UNIX) as left_behind:
            left_behind.bind(f"{tmp_path}/nobody")
    elif transport == "tcp":
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            place = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    client = flavour.client(place)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(NoBrokerError) as caught:
            client.call("echo", timeout=60, retry=True)
    with pytest.raises(NoBrokerError):
        client.ping(timeout=60)
    assert time.monotonic() - began < 20
    assert (caught.value.stage, caught.value.exit_code) == (Stage.CONNECTING, Exit.UNREACHED)
    assert f"nobody listens at {place}" in str(caught.value)


def test_a_client_that_was_connected_waits_for_its_broker_to_come_back(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    client = flavour.client(broker.address("scale0", "frontend"))
    client.ping()
    broker.stop()
    with pytest.raises(CallTimedOutError):
        client.ping(timeout=0.5)
    future = client.submit("nothing", timeout=30)
    again = ThreadBroker(broker.folder / "broker.toml", broker.name, broker.folder, {})
    try:
        with pytest.raises(NoServiceError):
            future.result(30)
    finally:
        again.stop()


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
    assert in_hand.result(30) == (b"in hand",)
    assert held.result(30) == (b"held",)


def test_a_broker_that_comes_later(flavour: Flavour, scale0_broker: BrokerStarter):
    broker = scale0_broker.in_thread([], QUICK)
    address = broker.address("scale0", "frontend")
    broker.stop()
    worker = flavour.idle_worker(address, {"echo": echo})
    worker.start()
    client = flavour.client(address, wait_for_broker=True)
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
    for timeout in (0, -1, float("nan"), float("inf"), 86_400.1):
        with pytest.raises(ValueError, match="timeout must be positive"):
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
    assert future.result(30) == (b"done",)


def reload_config(address: str) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger = 0
        socket.rcvtimeo = 30_000
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
