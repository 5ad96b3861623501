"""The same tests for both wires."""

from __future__ import annotations

import errno
import os
import shutil
import sysconfig
import threading
import time
from pathlib import Path

import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_core.errors import Scale0Error
from scale0_core.io import wire as wire_module
from scale0_core.io.wire import NativeWire, PureWire, Wire, choose_wire, native_problem

LONG_MS = 5000


@pytest.fixture
def wire(implementation: str) -> Wire:
    return choose_wire(implementation)


def wait_readable(socket) -> None:
    assert socket.poll(LONG_MS), "nothing arrived"


@pytest.fixture
def pair(context):
    """A ROUTER and a DEALER that have met; the DEALER's routing id is b"d"."""
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    dealer.setsockopt(zmq.ROUTING_ID, b"d")
    router.bind("inproc://wire")
    dealer.connect("inproc://wire")
    dealer.send(b"hello")
    wait_readable(router)
    assert router.recv_multipart() == [b"d", b"hello"]
    return router, dealer


def test_drain_of_an_empty_socket_is_an_empty_list(wire, pair):
    assert wire.port(pair[0], None).drain(10) == []


def test_drain_takes_whole_messages_up_to_the_limit(wire, pair):
    router, dealer = pair
    for number in range(5):
        dealer.send_multipart([b"%d" % number, b"", b"body"])
    port = wire.port(router, None)
    assert port.drain(3) == [(b"d", b"%d" % number, b"", b"body") for number in range(3)]
    assert port.drain(3) == [(b"d", b"%d" % number, b"", b"body") for number in (3, 4)]
    assert port.drain(3) == []


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 100])
def test_any_number_of_frames(wire, pair, count):
    router, dealer = pair
    frames = tuple(b"frame %d" % number for number in range(count))
    dealer.send_multipart(frames)
    assert wire.port(router, None).drain(9) == [(b"d", *frames)]


def test_frames_that_repeat_and_change_arrive_as_they_were_sent(wire, pair):
    router, dealer = pair
    sent = [(b"A", b"x" * size, b"") for size in (1, 1, 2, 16, 17, 16, 0, 1)]
    for frames in sent:
        dealer.send_multipart(frames)
    assert wire.port(router, None).drain(99) == [(b"d", *frames) for frames in sent]


def test_a_drain_ends_after_many_bytes(wire, pair):
    router, dealer = pair
    for _ in range(10):
        dealer.send(bytes(100_000))
    port = wire.port(router, None)
    counts = []
    while messages := port.drain(100):
        counts.append(len(messages))
    assert counts == [3, 3, 3, 1]


def test_large_frames_arrive_as_blobs_and_are_sent_on(wire, pair):
    router, dealer = pair
    large = os.urandom(10_000)
    dealer.send_multipart([b"head", large])
    port = wire.port(router, 1000)
    [(peer, head, blob)] = port.drain(1)
    assert (type(peer), type(head)) == (bytes, bytes)
    assert not isinstance(blob, bytes)
    assert (len(blob), bytes(blob), memoryview(blob).tobytes()) == (len(large), large, large)
    assert "Blob" in repr(blob) or isinstance(blob, zmq.Frame)
    # twice: sending does not use a blob up
    assert wire.send({"s": port}, [("s", (peer, blob)), ("s", (peer, b"again", blob))]) == []
    wait_readable(dealer)
    assert dealer.recv_multipart() == [large]
    assert dealer.recv_multipart() == [b"again", large]
    assert bytes(blob) == large


def test_a_frame_of_just_the_limit_is_bytes(wire, pair):
    router, dealer = pair
    dealer.send_multipart([b"x" * 1000, b"x" * 1001])
    [(_, below, above)] = wire.port(router, 1000).drain(1)
    assert type(below) is bytes
    assert type(above) is not bytes


def test_a_peer_that_is_not_there_is_unreachable_and_the_others_get_theirs(wire, pair):
    router, dealer = pair
    port = wire.port(router, None)
    sends = [("s", (b"d", b"1")), ("s", (b"nobody", b"x")), ("s", (b"d", b"2"))]
    assert wire.send({"s": port}, sends) == [(1, "EHOSTUNREACH")]
    wait_readable(dealer)
    assert [dealer.recv(), dealer.recv()] == [b"1", b"2"]


def test_no_message_overtakes_one_that_failed(wire, context):
    """The reader makes room in the middle of a batch: what follows a failure is not sent all the same."""
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    router.setsockopt(zmq.ROUTER_MANDATORY, 1)
    router.setsockopt(zmq.SNDHWM, 5)
    dealer.setsockopt(zmq.ROUTING_ID, b"d")
    dealer.setsockopt(zmq.RCVHWM, 5)
    router.bind("inproc://order")
    dealer.connect("inproc://order")
    dealer.send(b"hello")
    wait_readable(router)
    router.recv_multipart()
    got: list[int] = []

    def read() -> None:
        while (number := int(dealer.recv())) >= 0:
            got.append(number)

    reader = threading.Thread(target=read)
    reader.start()
    port, sent = wire.port(router, None), 0
    for _ in range(200):
        batch = [("s", (b"d", b"%d" % number)) for number in range(sent, sent + 50)]
        failures = wire.send({"s": port}, [*batch, ("s", (b"gone", b"x"))])
        assert failures[-1] == (50, "EHOSTUNREACH")
        first = failures[0][0]
        assert failures[:-1] == [(index, "EAGAIN") for index in range(first, 50)]
        sent += first
    while wire.send({"s": port}, [("s", (b"d", b"-1"))]):
        time.sleep(0.001)
    reader.join(LONG_MS / 1000)
    assert got == list(range(sent))


def test_a_full_queue_is_eagain_and_never_waits(wire, context):
    push, pull = context.socket(zmq.PUSH), context.socket(zmq.PULL)
    push.setsockopt(zmq.SNDHWM, 1)
    pull.setsockopt(zmq.RCVHWM, 1)
    pull.bind("inproc://full")
    push.connect("inproc://full")
    port = wire.port(push, None)
    failures = wire.send({"s": port}, [("s", (b"%d" % n, b"second frame")) for n in range(10)])
    assert failures
    assert {reason for _, reason in failures} == {"EAGAIN"}
    failed = {index for index, _ in failures}
    for number in range(10):
        if number not in failed:
            wait_readable(pull)
            assert pull.recv_multipart() == [b"%d" % number, b"second frame"]


def released_view() -> memoryview:
    view = memoryview(b"gone")
    view.release()
    return view


@pytest.mark.parametrize(
    "send",
    [
        ("other", (b"d", b"x")),
        ("s", ()),
        ("s", (b"d",)),
        ("s", b"dx"),
        ("s", [b"d", b"x"]),
        ("s", (b"d", "text")),
        ("s", (b"d", None)),
        ("s", (b"d", b"x", 7)),
        ("s",),
        ("s", (b"d",), 3),
        (b"s", (b"d", b"x")),
        None,
        7,
        [],
        ("s", (b"d", memoryview(b"abcdefgh")[::2])),
        ("s", (b"d", released_view())),
    ],
)
def test_a_malformed_send_is_refused_whole(wire, pair, send):
    router, dealer = pair
    port = wire.port(router, None)
    assert wire.send({"s": port}, [send, ("s", (b"d", b"after"))]) == [(0, "malformed")]
    wait_readable(dealer)
    assert dealer.recv_multipart() == [b"after"]
    assert not dealer.poll(0)


def test_a_message_with_too_many_frames_is_dropped_and_counted(wire, pair):
    router, dealer = pair
    for count in (3, 40, 4, 500, 2):
        dealer.send_multipart([b"%d" % count] * count)
    port = wire.port(router, None, 5)
    assert [frames[1] for frames in port.drain(99)] == [b"3", b"4", b"2"]
    assert port.dropped == 2
    many = wire.port(router, None, 20)
    dealer.send_multipart([b"x"] * 19)
    dealer.send_multipart([b"x"] * 20)
    assert [len(frames) for frames in many.drain(99)] == [20]
    assert many.dropped == 1


def test_buffers_are_sent_like_bytes(wire, pair):
    router, dealer = pair
    port = wire.port(router, None)
    assert wire.send({"s": port}, [("s", (b"d", bytearray(b"one"), memoryview(b"two")))]) == []
    wait_readable(dealer)
    assert dealer.recv_multipart() == [b"one", b"two"]


def test_a_send_out_of_turn_is_named(wire, context):
    request = context.socket(zmq.REQ)
    request.connect("inproc://nowhere-yet")
    failures = wire.send({"s": wire.port(request, None)}, [("s", (b"1",)), ("s", (b"2",))])
    assert failures[-1] == (1, "EFSM")


def test_a_closed_port_sends_and_drains_nothing(wire, pair):
    port = wire.port(pair[0], None)
    port.close()
    assert wire.send({"s": port}, [("s", (b"d", b"x"))]) == [(0, "closed")]
    with pytest.raises(ValueError, match="closed"):
        port.drain(1)
    with pytest.raises(ValueError, match="closed"):
        wire.poller((port,), 0)


def test_a_descriptor_may_be_a_file(wire, pair, tmp_path):
    """epoll does not take files; whatever watches the poller's descriptors does."""
    router, dealer = pair
    port = wire.port(router, None)
    with (tmp_path / "file").open("w") as file:
        poller = wire.poller((port,), file.fileno())
        assert list(poller.wait(0)) == [None]
        dealer.send(b"x")
        assert set(poller.wait(LONG_MS)) == {port, None}


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="nothing tells of open descriptors here")
def test_pollers_leave_no_descriptors_open(wire, pair):
    port, (reader, writer) = wire.port(pair[0], None), os.pipe()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        wire.poller((port,), reader).wait(0)
    os.close(reader)
    os.close(writer)
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 50


def test_the_poller_names_what_is_ready(wire, pair):
    router, dealer = pair
    reader, writer = os.pipe()
    ports = wire.port(router, None), wire.port(dealer, None)
    poller = wire.poller(ports, reader)
    assert list(poller.wait(0)) == []
    dealer.send(b"x")
    assert list(poller.wait(LONG_MS)) == [ports[0]]
    os.write(writer, b"!")
    assert set(poller.wait(LONG_MS)) == {ports[0], None}
    assert len(ports[0].drain(9)) == 1
    assert list(poller.wait(LONG_MS)) == [None]
    os.close(reader)
    os.close(writer)


STEPS = st.tuples(st.sampled_from(["arrives", "sent", "drained", "asked", "time passes"]), st.integers(1, 5))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=300)
@given(steps=st.lists(STEPS, max_size=30))
def test_the_poller_knows_of_every_message_whatever_was_done_before(wire, pair, steps):
    """A socket's descriptor tells of news once, to whoever asks first; a send may swallow it."""
    router, dealer = pair
    port, reader = wire.port(router, None), os.pipe()
    poller = wire.poller((port,), reader[0])
    waiting = 0
    for step, count in steps:
        if step == "arrives":
            for _ in range(count):
                dealer.send(b"x")
            waiting += count
        elif step == "sent":
            assert wire.send({"s": port}, [("s", (b"d", b"y"))] * count) == []
        elif step == "drained":
            assert len(port.drain(count)) == min(count, waiting)
            waiting -= min(count, waiting)
        elif step == "time passes":
            time.sleep(0.0015)  # libzmq lets a send look for news once in a millisecond
        elif waiting:
            assert list(poller.wait(LONG_MS)) == [port]
        elif poller.wait(0):  # it may be mistaken, but finds out
            assert port.drain(1) == []
            assert list(poller.wait(0)) == []
    while waiting:
        assert list(poller.wait(LONG_MS)) == [port]
        waiting -= len(port.drain(3))
    port.drain(1)
    assert list(poller.wait(0)) == []
    while dealer.poll(0):
        dealer.recv()
    for fd in reader:
        os.close(fd)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(messages=st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=20).map(tuple), max_size=20))
def test_any_messages_come_back_as_they_were_sent(wire, pair, messages):
    router, dealer = pair
    there, here = wire.port(router, 100), wire.port(dealer, None)
    assert wire.send({"s": here}, [("s", frames) for frames in messages]) == []
    received = []
    while len(received) < len(messages):
        wait_readable(router)
        received += there.drain(7)
    assert wire.send({"s": there}, [("s", frames) for frames in received]) == []
    returned = []
    while len(returned) < len(messages):
        wait_readable(dealer)
        returned += here.drain(7)
    assert returned == messages


def test_nothing_leaks(wire, pair):
    router, dealer = pair
    there, here = wire.port(router, 100), wire.port(dealer, None)

    def turn() -> None:
        sends = [("s", (b"ECHO", b"%d" % n, b"x" * 50, b"y" * 500)) for n in range(50)]
        assert wire.send({"s": here}, [*sends, ("s", ("bad",))]) == [(50, "malformed")]
        got = []
        while len(got) < 50:
            wait_readable(router)
            got += there.drain(100)
        assert wire.send({"s": there}, [("s", frames) for frames in got] + [("s", (b"gone", b"x"))]) == [
            (50, "EHOSTUNREACH")
        ]
        back = []
        while len(back) < 50:
            wait_readable(dealer)
            back += here.drain(100)

    for _ in range(100):
        turn()
    before = resident_kb()
    for _ in range(1000):
        turn()
    assert resident_kb() - before < 4000, "50,000 messages of 600 bytes left memory behind"


def resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * (os.sysconf("SC_PAGE_SIZE") // 1024)


def test_auto_takes_the_native_wire_where_it_is_there():
    assert type(choose_wire("auto")) is (PureWire if native_problem() else NativeWire)


PYTHON_H = Path(sysconfig.get_path("include")) / "Python.h"


@pytest.mark.skipif(not (shutil.which("cc") and PYTHON_H.exists()), reason="no C compiler, or no headers of Python")
def test_the_native_wire_is_built_where_a_compiler_is():
    assert native_problem() == ""


def test_a_wire_that_is_asked_for_and_missing_is_an_error(monkeypatch):
    def missing() -> None:
        raise ImportError("no module named _wire")

    monkeypatch.setattr(wire_module, "NativeWire", missing)
    assert type(choose_wire("auto")) is PureWire
    with pytest.raises(Scale0Error, match="no module named _wire"):
        choose_wire("native")


def test_reasons_have_names():
    assert wire_module._reason(errno.EAGAIN) == "EAGAIN"
    assert wire_module._reason(zmq.ETERM) == "ETERM"
    assert wire_module._reason(errno.EIO) == "EIO"
    assert wire_module._reason(-1) == "malformed"
    assert wire_module._reason(987654) == "errno 987654"


@pytest.mark.parametrize("most_frames", [1, 1000])
def test_half_a_message_of_an_xpub_is_dropped_and_counted(wire, context, most_frames):
    publisher, peer = context.socket(zmq.XPUB), context.socket(zmq.XSUB)
    publisher.bind("inproc://half")
    peer.connect("inproc://half")
    port = wire.port(publisher, None, most_frames)
    peer.send(b"\1topic")
    wait_readable(publisher)
    assert port.drain(9) == [(b"\1topic",)]
    peer.send_multipart([b"junk", b"\1topic"])  # libzmq takes the known subscription away, and says that more follows
    wait_readable(publisher)
    assert port.drain(9) == []
    assert (port.dropped, port.incomplete) == (1, 1)
    peer.send(b"\1next")
    wait_readable(publisher)
    assert port.drain(9) == [(b"\1next",)]
    assert (port.dropped, port.incomplete) == (1, 1)
