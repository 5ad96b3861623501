"""Clients and workers in Python, with real brokers."""

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

import pytest
import zmq

import scale0_majordomo
from scale0_core.api import Scale0Error
from scale0_majordomo.client.codec import told_by_broker
from scale0_core.client.kit import drivers
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
)

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
def worker(here):
    """A worker that runs; tests add services to it."""
    with Worker(here, credit=4) as running:
        yield running
        running.stop()  # whatever a test left in hand


@pytest.fixture
def client(here):
    with Client(here, timeout=20) as running:
        yield running


def until(condition, seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_function_serves(client, worker):
    @worker.service("upper")
    def upper(request):
        return request.text.upper()

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


def test_what_a_function_raises_is_an_error_of_the_caller(client, worker):
    @worker.service("bad")
    def bad(request):
        raise ValueError("not this one")

    @worker.service("own")
    def own(request):
        raise RemoteError("my own", 555)

    @worker.service("exits")
    def exits(request):
        sys.exit(3)

    @worker.service("wrong")
    def wrong(request):
        return 5

    for service, code, message in (
        ("bad", 500, "ValueError: not this one"), ("own", 555, "my own"), ("exits", 500, "SystemExit: 3"),
        ("wrong", 500, "TypeError: a body is bytes or text, not int"),
    ):  # fmt: skip
        with pytest.raises(RemoteError) as caught:
            client.call(service)
        assert (caught.value.code, caught.value.message) == (code, message)
        assert caught.value.stage is Stage.REPLY
        assert caught.value.service == service


def test_a_generator_sends_as_it_goes(client, worker):
    go_on = threading.Event()

    @worker.service("count")
    def count(request):
        yield b"1"
        assert go_on.wait(30)
        yield b"2", b"3"
        return b"end"

    stream = client.stream("count")
    assert next(stream) == (b"1",)
    go_on.set()
    assert list(stream) == [(b"2", b"3"), (b"end",)]
    assert list(stream) == []
    assert client.call("count") == (b"1", b"2", b"3", b"end")


def test_a_long_stream_comes_whole(client, worker):
    @worker.service("numbers")
    def numbers(request):
        for number in range(int(request.text)):
            yield b"%d" % number

    assert [int(part.body) for part in client.stream("numbers", "20000")] == list(range(20_000))
    assert list(client.stream("numbers", "0")) == []


def test_a_stream_that_fails_in_the_middle(client, worker):
    @worker.service("half")
    def half(request):
        yield b"1"
        raise ValueError("half")

    stream = client.stream("half")
    assert next(stream) == (b"1",)
    with pytest.raises(RemoteError, match="half"):
        next(stream)


def test_a_stream_that_is_closed_ends_its_generator(client, worker):
    closed = threading.Event()

    @worker.service("endless")
    def endless(request):
        try:
            while True:
                yield b"x"
                time.sleep(0.001)
        finally:
            closed.set()

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
    @worker.service("double")
    def double(request):
        time.sleep(0.001 * (int(request.text) % 3))
        return b"%d" % (int(request.text) * 2)

    seen = []
    items = [str(number) for number in range(200)]
    replies = client.map("double", items, window=20, progress=lambda done, total: seen.append((done, total)))
    assert [int(reply.body) for reply in replies] == [2 * number for number in range(200)]
    assert seen == [(number, 200) for number in range(1, 201)]


def test_map_gives_replies_as_they_come(client, worker):
    gate = threading.Event()

    @worker.service("wait")
    def wait_for_it(request):
        if request == (b"0",):
            assert gate.wait(30)
        return request

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

    @worker.service("until5")
    def until5(request):
        if int(request.text) >= 5:
            raise ValueError("enough")
        return request

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

    @worker.service("slow")
    def slow(request):
        until(lambda: request.cancelled)
        cancelled.set()

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

    @worker.service("slow")
    def slow(request):
        begun.set()
        until(lambda: request.cancelled)
        cancelled.set()

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


def test_heartbeats_go_on_while_functions_work(scale0_broker):
    settings = {"plugin": {"majordomo": {**BIND["plugin"]["majordomo"], "heartbeat": 0.1, "busy_timeout": 2.0}}}
    here = scale0_broker.in_thread(["majordomo"], settings).address("majordomo", "requests")
    calls = []
    with Worker(here, heartbeat=0.1) as worker, Client(here) as client:

        @worker.service("slow")
        def slow(request):
            calls.append(request)
            time.sleep(3.0)
            return b"done"

        worker.wait_ready()
        assert client.call("slow").body == b"done"
        assert len(calls) == 1


def test_functions_of_one_service_work_at_once(client, worker):
    meeting = threading.Barrier(4)

    @worker.service("meet")
    def meet(request):
        meeting.wait(30)

    assert len(list(client.map("meet", [b""] * 4))) == 4


# --- how things end ---------------------------------------------------------------------------------------------------


def test_nobody_there_is_told_with_the_stage(folder):
    with Client(f"ipc://{folder}/none", wait_for_broker=True) as client, pytest.raises(CallTimedOutError) as caught:
        client.call("s", timeout=0.3)
    assert caught.value.stage is Stage.CONNECTING
    assert caught.value.problem.consequence == "nothing was sent"
    with Client(f"ipc://{folder}/none") as client, pytest.raises(NoBrokerError, match="nobody listens") as refused:
        client.call("s", timeout=1000)
    assert (refused.value.stage, int(refused.value.exit_code)) == (Stage.CONNECTING, 69)
    with Worker(f"ipc://{folder}/none") as worker:
        worker.add("s", lambda request: None)
        with pytest.raises(WorkerError):
            worker.wait_ready(0.2)
        worker.stop()


@pytest.mark.parametrize("address", ["nowhere", "tcp://", "xyz://a"])
def test_an_address_that_is_none_is_told(address):
    with pytest.raises(Scale0Error, match="cannot connect"):
        Client(address)
    worker = Worker(address)
    worker.add("s", lambda request: None)
    with pytest.raises(Scale0Error, match="cannot connect"):
        worker.start()


def test_a_closed_client_says_so(here):
    client = Client(here)
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


def test_wrong_use_of_a_worker_is_told(here):
    worker = Worker(here)

    async def waits(request):
        return b""

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
    for wrong in ({"heartbeat": 0}, {"liveness": 0}, {"dialect": "mdp03"}, {"dialect": "mdp02", "credit": 2}):
        with pytest.raises(ValueError, match=r"heartbeat|dialect|credit"):
            Worker(here, **wrong)
    with worker, pytest.raises(RuntimeError):
        worker.start()


def test_a_request_that_comes_while_the_worker_starts_is_answered(here, client, monkeypatch):
    future = client.submit("waiting", timeout=60)
    begin = drivers.ThreadDriver.start

    def start_and_wait(thread):
        begin(thread)
        assert future.result(60).body == b"done"

    monkeypatch.setattr(drivers.ThreadDriver, "start", start_and_wait)
    worker = Worker(here)
    worker.add("waiting", lambda request: b"done")
    worker.start()
    worker.stop()


def test_a_worker_that_drains_finishes_its_requests(here, client):
    begun = threading.Event()
    worker = Worker(here)

    @worker.service("slow")
    def slow(request):
        begun.set()
        time.sleep(0.3)
        return b"done"

    worker.start()
    future = client.submit("slow")
    assert begun.wait(30)
    assert worker.drain()
    assert future.result(30).body == b"done"
    until(lambda: not client.offers("slow"))
    worker.start()  # it may begin again
    assert client.call("slow").body == b"done"
    worker.stop()


def test_a_service_that_is_removed_is_offered_no_more(client, worker):
    worker.add("a", lambda request: b"a")
    worker.add("b", lambda request: b"b")
    assert client.call("a").body == b"a"
    assert worker.remove("a")
    until(lambda: not client.offers("a"))
    assert client.call("b").body == b"b"
    assert [row["service"] for row in client.workers()] == ["b"]
    assert client.services()["b"]["workers"] == 1


def test_what_the_broker_does_not_know_is_told(client):
    with pytest.raises(CallError) as caught:
        told_by_broker("mmi.x", client.call("mmi.x"))
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


def test_a_worker_killed_in_mid_request_is_replaced_by_another(here, client):
    """The request goes to the other worker, and its client notices nothing."""
    with subprocess.Popen([sys.executable, "-c", VICTIM, here], stdout=subprocess.PIPE) as victim:
        future = client.submit("job", b"x")
        assert victim.stdout.readline() == b"begun\n"
        with Worker(here) as other:
            other.add("job", lambda request: (b"by the other", *request))
            other.wait_ready()
            victim.send_signal(signal.SIGKILL)
            assert future.result(60) == (b"by the other", b"x")
            assert client.services()["job"]["retried"] == 1


def test_signals_end_a_worker_once_its_requests_are_done(here, client):
    program = VICTIM.replace("time.sleep(60)", "time.sleep(0.3); return b'done'")
    with subprocess.Popen([sys.executable, "-c", program, here], stdout=subprocess.PIPE) as process:
        future = client.submit("job")
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        assert future.result(60).body == b"done"
        assert process.wait(20) == 0


def test_a_second_signal_does_not_wait(here, client):
    with subprocess.Popen([sys.executable, "-c", VICTIM, here], stdout=subprocess.PIPE) as process:
        client.submit("job")
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGTERM)
        until(lambda: not client.offers("job"))  # it drains
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_broker_that_is_restarted_is_found_again(scale0_broker, folder, how):
    settings = {"plugin": {"majordomo": {"bind": [f"ipc://{folder}/majordomo"]}}}
    here = f"ipc://{folder}/majordomo"
    broker = scale0_broker(["majordomo"], settings)
    gate = threading.Event()
    with Worker(here) as worker, Client(here) as client:

        @worker.service("s")
        def serve(request):
            if request == (b"wait",):
                gate.wait(20)
            return request

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
def test_stock_dialects(here, dialect):
    with Worker(here, dialect=dialect) as worker, Client(here, dialect=dialect) as client:
        worker.add("echo", lambda request: request)
        assert client.call("echo", b"a", b"b") == (b"a", b"b")
        assert [reply.body for reply in client.map("echo", [b"1", b"2", b"3"])] == [b"1", b"2", b"3"]


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


def test_a_broker_is_found_by_its_name_or_as_the_first_of_several_that_is_there(scale0_broker):
    broker = scale0_broker.in_thread(["majordomo"], BIND)
    several = ["gone", "tcp://127.0.0.1:1", broker.name]
    with Worker(broker.name) as worker, Client(broker.name) as one, Client(several, timeout=30) as other:
        worker.add("upper", lambda request: request.text.upper())
        worker.wait_ready(30)
        assert one.call("upper", "a").text == other.call("upper", "a").text == "A"
        assert one.address == worker.address == broker.address("majordomo", "requests")
    with Client("gone") as client, pytest.raises(NoBrokerError, match="no broker gone runs on this machine"):
        client.call("upper", "a")
