"""Clients and workers in Python, for threads and for asyncio, with real brokers."""

from __future__ import annotations

import gc
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import CancelledError, wait
from pathlib import Path
from typing import Any

import pytest
import zmq

import scale0_majordomo
from scale0_core import client as core
from scale0_core.api import Scale0Error
from scale0_core.client.kit import drivers
from scale0_core.testing import Flavour
from scale0_majordomo import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    Client,
    ClosedError,
    NoBrokerError,
    RemoteError,
    Stage,
    Worker,
    WorkerError,
    aio,
)
from scale0_majordomo.client.codec import told_by_broker

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[3]
BIND = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}}
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def here(scale0_broker) -> str:
    """The address of a broker."""
    return scale0_broker.in_thread(["majordomo"], BIND).address("majordomo", "requests")


@pytest.fixture
def folder():
    # short, since a unix socket's path has about 100 characters in all
    path = Path(tempfile.mkdtemp(prefix="s0-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_worker(flavour: Flavour):
    """Makes workers, with functions for their services."""

    def make(address, functions: dict[str, Any] | None = None, **options):
        worker = flavour.make(Worker, aio.Worker, address, close=lambda worker: worker.stop(), **options)
        for name, function in (functions or {}).items():
            worker.add(name, function)
        return worker

    return make


@pytest.fixture
def make_client(flavour: Flavour):
    def make(*address, **options):
        return flavour.make(Client, aio.Client, *address, **options)

    return make


@pytest.fixture
def worker(here, make_worker):
    """A worker that runs; tests add services to it."""
    worker = make_worker(here, credit=4)
    worker.start()
    return worker


@pytest.fixture
def client(here, make_client):
    return make_client(here, timeout=20)


def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_function_serves(here, client, make_worker):
    worker = make_worker(here)

    @worker.service("upper")
    def upper(request):
        return request.text.upper()

    worker.start()
    reply = client.call("upper", "hello")
    assert reply == (b"HELLO",)
    assert reply.text == "HELLO"
    assert upper(type("R", (), {"text": "it is the same function"})) == "IT IS THE SAME FUNCTION"
    assert worker.services == ("upper",)


@pytest.mark.parametrize(
    ("result", "reply"),
    [(None, (b"",)), (b"x", (b"x",)), ("ä", ("ä".encode(),)), ((b"a", "b"), (b"a", b"b")), ([], (b"",)),
     (bytearray(b"x"), (b"x",))],
)  # fmt: skip
def test_what_a_function_may_return(client, worker, result, reply):
    worker.add("s", lambda request: result)
    assert client.call("s") == reply


def test_frames_are_kept_and_may_be_large(client, worker):
    worker.add("echo", lambda request: request)
    body = (b"", b"x" * 3_000_000, b"\x00\xff")
    assert client.call("echo", *body) == body


def test_what_a_function_raises_is_an_error_of_the_caller(flavour, client, worker):
    def bad(request):
        raise ValueError("not this one")

    worker.add("bad", bad)

    def own(request):
        raise RemoteError("my own", 555)

    worker.add("own", own)

    def exits(request):
        sys.exit(3)

    worker.add("exits", exits)

    def wrong(request):
        return 5

    worker.add("wrong", wrong)
    exits_with = "SystemExit: 3" if flavour.name == "sync" else "RuntimeError: SystemExit: 3"
    for service, code, message in (
        ("bad", 500, "ValueError: not this one"), ("own", 555, "my own"), ("exits", 500, exits_with),
        ("wrong", 500, "TypeError: a payload is bytes, text, a tuple of these, or None, but not int"),
    ):  # fmt: skip
        with pytest.raises(RemoteError) as caught:
            client.call(service)
        assert (caught.value.code, caught.value.message) == (code, message)
        assert caught.value.stage is Stage.REPLY
        assert caught.value.service == service


def test_a_generator_sends_as_it_goes(client, worker):
    go_on = threading.Event()

    def count(request):
        yield b"1"
        assert go_on.wait(30)
        yield b"2", b"3"
        return b"end"

    worker.add("count", count)
    stream = client.stream("count")
    assert next(stream) == (b"1",)
    go_on.set()
    assert list(stream) == [(b"2", b"3"), (b"end",)]
    assert list(stream) == []
    assert client.call("count") == (b"1", b"2", b"3", b"end")


def test_a_long_stream_comes_whole(client, worker):
    def numbers(request):
        for number in range(int(request.text)):
            yield b"%d" % number

    worker.add("numbers", numbers)
    assert [int(part.body) for part in client.stream("numbers", "20000")] == list(range(20_000))
    assert list(client.stream("numbers", "0")) == []


def test_a_stream_that_fails_in_the_middle(client, worker):
    def half(request):
        yield b"1"
        raise ValueError("half")

    worker.add("half", half)
    stream = client.stream("half")
    assert next(stream) == (b"1",)
    with pytest.raises(RemoteError, match="half"):
        next(stream)


def test_a_stream_that_is_closed_ends_its_generator(client, worker):
    closed = threading.Event()

    def endless(request):
        try:
            while True:
                yield b"x"
                time.sleep(0.001)
        finally:
            closed.set()

    worker.add("endless", endless)
    with client.stream("endless") as stream:
        next(stream)
    assert closed.wait(30)


def test_options_reach_the_handler(client, worker):
    worker.add("trace", lambda request: (request.traceparent, str(request.options["priority"]), request.service))
    assert client.call("trace", traceparent=TRACE, priority=5) == (TRACE.encode(), b"5", b"trace")
    with pytest.raises(ValueError, match="traceparent"):
        client.call("trace", traceparent="mine")
    with pytest.raises(TypeError):
        client.call("trace", wrong=1)


# --- many -------------------------------------------------------------------------------------------------------------


def test_map_gives_replies_in_the_order_of_the_items(client, worker):
    def double(request):
        time.sleep(0.001 * (int(request.text) % 3))
        return b"%d" % (int(request.text) * 2)

    worker.add("double", double)
    seen = []
    items = [str(number) for number in range(200)]
    replies = client.map("double", items, window=20, progress=lambda done, total: seen.append((done, total)))
    assert [int(reply.body) for reply in replies] == [2 * number for number in range(200)]
    assert seen == [(number, 200) for number in range(1, 201)]


def test_map_gives_replies_as_they_come(client, worker):
    gate = threading.Event()

    def wait_for_it(request):
        if request == (b"0",):
            assert gate.wait(30)
        return request

    worker.add("wait", wait_for_it)
    replies = client.map("wait", (b"%d" % number for number in range(50)), window=10, ordered=False)
    first = [next(replies) for _ in range(20)]
    assert all(reply.number == int(reply.body) != 0 for reply in first)
    gate.set()
    assert sorted(reply.number for reply in [*first, *replies]) == list(range(50))


@pytest.mark.parametrize("ordered", [True, False])
def test_map_has_no_more_than_its_window_under_way_and_ends_at_the_first_error(client, worker, ordered):
    taken = []

    def items():
        for number in range(1000):
            taken.append(number)
            yield b"%d" % number

    def until5(request):
        if int(request.text) >= 5:
            raise ValueError("enough")
        return request

    worker.add("until5", until5)
    with pytest.raises(RemoteError, match="enough"):
        list(client.map("until5", items(), window=3, ordered=ordered))
    assert len(taken) < 20
    with pytest.raises(ValueError, match="window"):
        client.map("until5", [], window=0)


def test_many_threads_may_use_one_client(client, worker):
    worker.add("echo", lambda request: request)
    wrong = []

    def use(letter: bytes) -> None:
        replies = [client.call("echo", letter, b"%d" % number) for number in range(100)]
        wrong.extend(reply for number, reply in enumerate(replies) if reply != (letter, b"%d" % number))

    threads = [threading.Thread(target=use, args=(letter,)) for letter in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


# --- time and cancelling ----------------------------------------------------------------------------------------------


def test_a_call_ends_in_time_and_the_handler_learns_of_it(client, worker):
    cancelled = threading.Event()

    def slow(request):
        until(lambda: request.cancelled)
        cancelled.set()

    worker.add("slow", slow)
    worker.wait_ready(30)
    assert client.offers("slow")
    began = time.monotonic()
    with pytest.raises(CallTimedOutError) as caught:
        client.call("slow", timeout=1.5)  # long enough to be begun
    assert time.monotonic() - began < 15
    assert caught.value.code == 408
    assert cancelled.wait(30)


def test_a_future_that_is_cancelled_cancels_the_request(client, worker):
    begun, cancelled = threading.Event(), threading.Event()

    def slow(request):
        begun.set()
        until(lambda: request.cancelled)
        cancelled.set()

    worker.add("slow", slow)
    future = client.submit("slow")
    assert begun.wait(30)
    assert future.cancel()
    assert cancelled.wait(30)
    assert wait([future], 30).done == {future}
    with pytest.raises(CancelledError):
        future.result()
    worker.add("echo", lambda request: request)
    done = client.submit("echo", b"x")
    assert done.result(30) == (b"x",)
    assert not done.cancel()


def test_a_request_that_waits_is_taken_back(client):
    future = client.submit("nobody", b"x")
    until(lambda: client.services().get("nobody", {}).get("waiting") == 1)
    future.cancel()
    until(lambda: not client.services().get("nobody", {}).get("waiting"))


def test_heartbeats_go_on_while_functions_work(scale0_broker, make_worker, make_client):
    settings = {"plugin": {"majordomo": {**BIND["plugin"]["majordomo"], "heartbeat": 0.1, "busy_timeout": 2.0}}}
    here = scale0_broker.in_thread(["majordomo"], settings).address("majordomo", "requests")
    calls = []

    def slow(request):
        calls.append(request)
        time.sleep(3.0)
        return b"done"

    worker, client = make_worker(here, {"slow": slow}, heartbeat=0.1), make_client(here)
    worker.start()
    worker.wait_ready()
    assert client.call("slow").body == b"done"
    assert len(calls) == 1


def test_functions_of_one_service_work_at_once(client, worker):
    meeting = threading.Barrier(4)

    def meet(request):
        meeting.wait(30)

    worker.add("meet", meet)
    assert len(list(client.map("meet", [b""] * 4))) == 4


# --- how things end ---------------------------------------------------------------------------------------------------


def test_nobody_there_is_told_with_the_stage(folder, make_client, make_worker):
    nowhere = f"ipc://{folder}/none"
    with pytest.raises(CallTimedOutError) as caught:
        make_client(nowhere, wait_for_broker=True).call("s", timeout=0.3)
    assert caught.value.stage is Stage.CONNECTING
    assert caught.value.problem.consequence == "nothing was sent"
    with pytest.raises(NoBrokerError, match="nobody listens") as refused:
        make_client(nowhere).call("s", timeout=1000)
    assert (refused.value.stage, int(refused.value.exit_code)) == (Stage.CONNECTING, 69)
    worker = make_worker(nowhere, {"s": lambda request: None})
    worker.start()
    with pytest.raises(WorkerError):
        worker.wait_ready(0.2)


@pytest.mark.parametrize("address", ["tcp://nowhere", "tcp://", "xyz://a"])
def test_an_address_that_is_none_is_told(flavour, make_client, make_worker, address):
    worker = make_worker(address, {"s": lambda request: None})
    for _ in range(2):  # it has not begun
        with pytest.raises(Scale0Error, match="cannot connect"):
            worker.start()
    if flavour.name == "sync":
        with pytest.raises(Scale0Error, match="cannot connect"):
            make_client(address)
    else:
        client = make_client(address)  # it connects when it is used
        for _ in range(2):
            with pytest.raises(Scale0Error, match="cannot connect"):
                client.call("s")


def test_what_catches_the_errors_of_all_clients_catches_ours(folder, client):
    with pytest.raises(core.CallTimedOutError) as caught:
        client.call("nobody", timeout=0.3)
    assert (caught.value.code, isinstance(caught.value, core.CallError)) == (408, True)
    ours = [found for found in vars(scale0_majordomo.client).values() if isinstance(found, type)]
    errors = [found for found in ours if issubclass(found, Exception)]
    assert WorkerError in errors
    assert all(issubclass(found, core.ClientError) for found in errors)


def test_a_closed_client_says_so(here, make_client):
    client = make_client(here)
    future = client.submit("nobody")
    client.close()
    client.close()
    with pytest.raises(ClosedError):
        future.result(30)
    with pytest.raises(ClosedError):
        client.call("nobody")


def test_a_client_that_nobody_refers_to_is_closed(here):
    def threads() -> int:
        return sum(here in thread.name for thread in threading.enumerate())

    client = Client(here)
    assert threads() == 1
    del client
    gc.collect()
    until(lambda: threads() == 0)


def test_wrong_use_of_a_worker_is_told(here, flavour, make_worker):
    worker = make_worker(here)

    async def waits(request):
        return b""

    if flavour.name == "sync":
        with pytest.raises(TypeError, match="aio"):
            worker.add("s", waits)
    with pytest.raises(TypeError):
        worker.add("s", "not a function")
    for name in ("", "x" * 256, "mmi.mine"):
        with pytest.raises(ValueError, match=r"bytes|mmi"):
            worker.add(name, print)
    for wrong in ({"credit": 0}, {"credit": 10_001}):
        with pytest.raises(ValueError, match="at once"):
            worker.add("s", print, **wrong)
    worker.add("s", print)
    with pytest.raises(ValueError, match="already"):
        worker.add("s", print)
    for wrong in (
        {"heartbeat": 0}, {"liveness": 0}, {"dialect": "mdp03"}, {"dialect": "mdp02", "credit": 2}, {"credit": 0},
        {"threads": 0},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"heartbeat|dialect|credit|at once|thread"):
            make_worker(here, **wrong)
    worker.start()
    with pytest.raises(RuntimeError):
        worker.start()
    worker.wait_ready()  # it serves all the same


def test_a_request_that_comes_while_the_worker_starts_is_answered(here, monkeypatch):
    with Client(here) as client:
        future = client.submit("waiting", timeout=60)
        begin = drivers.ThreadDriver.start

        def start_and_wait(driver):
            begin(driver)
            assert future.result(60).body == b"done"

        monkeypatch.setattr(drivers.ThreadDriver, "start", start_and_wait)
        worker = Worker(here)
        worker.add("waiting", lambda request: b"done")
        worker.start()
        worker.stop()


def test_a_worker_that_drains_finishes_its_requests(here, client, make_worker):
    begun = threading.Event()

    def slow(request):
        begun.set()
        time.sleep(0.3)
        return b"done"

    worker = make_worker(here, {"slow": slow})
    worker.start()
    future = client.submit("slow")
    assert begun.wait(30)
    assert worker.drain()
    assert future.result(30).body == b"done"
    until(lambda: not client.offers("slow"))
    worker.start()  # it may begin again
    assert client.call("slow").body == b"done"


def test_a_service_that_is_removed_is_offered_no_more(client, worker):
    worker.add("a", lambda request: b"a")
    worker.add("b", lambda request: b"b")
    assert client.call("a").body == b"a"
    assert worker.remove("a")
    until(lambda: not client.offers("a"))
    assert client.call("b").body == b"b"
    assert [row["service"] for row in client.workers()] == ["b"]
    assert client.services()["b"]["workers"] == 1
    with pytest.raises(KeyError):
        worker.remove("a")
    assert worker.services == ("b",)


def test_what_the_broker_does_not_know_is_told(client):
    with pytest.raises(CallError) as caught:
        told_by_broker("mmi.x", client.call("mmi.x"), dict)
    assert caught.value.code == 501


# --- when something dies ----------------------------------------------------------------------------------------------

VICTIM = """
import os, sys, time
from scale0_majordomo import Worker

worker = Worker(sys.argv[1])

@worker.service("job")
def job(request):
    print("begun", flush=True)
    time.sleep(60)

worker.run()
"""

AIO_VICTIM = """
import asyncio, sys, time
from scale0_majordomo.aio import Worker

async def main():
    worker = Worker(sys.argv[1])

    @worker.service("job")
    async def job(request):
        print("begun", flush=True)
        await asyncio.sleep(60)

    await worker.run()

asyncio.run(main())
"""

VICTIMS = {"sync": VICTIM, "aio": AIO_VICTIM}


def test_a_worker_killed_in_mid_request_is_replaced_by_another(here, flavour, client, make_worker):
    """The request goes to the other worker, and its client notices nothing."""
    with subprocess.Popen([sys.executable, "-c", VICTIMS[flavour.name], here], stdout=subprocess.PIPE) as victim:
        future = client.submit("job", b"x", timeout=60)
        assert victim.stdout.readline() == b"begun\n"
        other = make_worker(here, {"job": lambda request: (b"by the other", *request)})
        other.start()
        other.wait_ready()
        victim.send_signal(signal.SIGKILL)
        assert future.result(60) == (b"by the other", b"x")
        assert client.services()["job"]["retried"] == 1


def test_signals_end_a_worker_once_its_requests_are_done(here, flavour, client):
    program = VICTIMS[flavour.name].replace("sleep(60)", "sleep(0.3); return b'done'")
    with subprocess.Popen([sys.executable, "-c", program, here], stdout=subprocess.PIPE) as process:
        future = client.submit("job")
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert future.result(60).body == b"done"
        assert process.wait(20) == 0


def test_a_second_signal_does_not_wait(here, flavour, client):
    with subprocess.Popen([sys.executable, "-c", VICTIMS[flavour.name], here], stdout=subprocess.PIPE) as process:
        client.submit("job")
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        until(lambda: not client.offers("job"))  # it drains
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_broker_that_is_restarted_is_found_again(scale0_broker, folder, make_worker, make_client, how):
    settings = {"plugin": {"majordomo": {"bind": [f"ipc://{folder}/majordomo"]}}}
    here = f"ipc://{folder}/majordomo"
    broker = scale0_broker(["majordomo"], settings)
    gate = threading.Event()

    def serve(request):
        if request == (b"wait",):
            gate.wait(20)
        return request

    worker, client = make_worker(here, {"s": serve}), make_client(here)
    worker.start()
    worker.wait_ready()
    assert client.call("s", b"1").body == b"1"
    lost = client.submit("s", b"wait")
    kept = client.submit("s", b"2", retry=True)
    until(lambda: client.workers("s")[0]["in_hand"])
    getattr(broker, how)()
    with pytest.raises(CallError) as caught:
        lost.result(60)
    assert caught.value.code in (0, 503)
    if how == "kill":
        assert isinstance(caught.value, BrokerLostError)
        assert "unknown" in caught.value.problem.consequence
    gate.set()
    scale0_broker(["majordomo"], settings)
    assert kept.result(60).body == b"2"
    assert client.call("s", b"3").body == b"3"


@pytest.mark.parametrize("dialect", ["mdp01", "mdp02"])
def test_stock_dialects(here, make_worker, make_client, dialect):
    worker = make_worker(here, {"echo": lambda request: request}, dialect=dialect)
    client = make_client(here, dialect=dialect)
    worker.start()
    assert client.call("echo", b"a", b"b") == (b"a", b"b")
    assert [reply.body for reply in client.map("echo", [b"1", b"2", b"3"])] == [b"1", b"2", b"3"]
    with pytest.raises(CallTimedOutError):
        client.call("nobody", timeout=0.3)  # which costs the connection
    assert client.call("echo", b"c") == (b"c",)


def test_a_plain_socket_is_enough_to_serve_and_to_call(here, client):
    """The library and stock programs work together."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(here)
        socket.send_multipart([b"", b"MDPW01", b"\x01", b"stock"])
        future = client.submit("stock", b"hello")
        assert socket.poll(10_000)
        *_, address, empty, body = socket.recv_multipart()
        socket.send_multipart([b"", b"MDPW01", b"\x03", address, empty, body.upper()])
        assert future.result(30) == (b"HELLO",)


def test_importing_the_plugin_is_light():
    code = "import sys, scale0_majordomo; print(*(name for name in ('zmq', 'asyncio', 'attrs') if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split() == []
    with pytest.raises(AttributeError):
        _ = scale0_majordomo.nothing


def test_both_flavours_have_the_same_names():
    from scale0_majordomo import aio, client

    ours, others = (
        {name for name, found in vars(module).items() if isinstance(found, type)} for module in (client, aio)
    )
    assert ours == others
    assert scale0_majordomo.Client is client.Client


def test_the_example_runs(here):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "majordomo.py", here],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:3] == ["HELLO", "1000 bytes", "0 1 2 3 4"]
    assert lines[3].startswith("500 ValueError")
    assert lines[4] == "408 timed out"


def test_a_broker_is_found_by_its_name_or_as_the_first_of_several_that_is_there(
    scale0_broker, make_worker, make_client
):
    broker = scale0_broker.in_thread(["majordomo"], BIND)
    several = ["gone", "tcp://127.0.0.1:1", broker.name]
    worker = make_worker(broker.name, {"upper": lambda request: request.text.upper()})
    worker.start()
    one, other = make_client(broker.name), make_client(several, timeout=30)
    worker.wait_ready(30)
    assert one.call("upper", "a").text == other.call("upper", "a").text == "A"
    assert one.address == worker.address == broker.address("majordomo", "requests")
    with pytest.raises(NoBrokerError, match="no broker gone runs on this machine"):
        make_client("gone").call("upper", "a")
