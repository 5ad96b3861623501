"""The loop with real sockets, on both wires."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from pathlib import Path

import pytest
import zmq

from scale0_core.config.settings import LimitSettings, WireSettings
from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.io.clock import SteadyClock
from scale0_core.io.loop import DRAIN_PAUSE, Loop
from scale0_core.service import Endpoint, Job, SocketKind

pytestmark = pytest.mark.real

LONG_MS = 5000
TURNS = 2000


class Recorder:
    """A service that keeps what it gets and answers by a function of the test."""

    def __init__(self, endpoints, answer=None, name="recorder"):
        self.name = name
        self.endpoints = endpoints
        self.received = []
        self.answer = answer or (lambda socket, frames: ())

    def receive(self, socket, frames, now):
        self.received.append((socket, frames))
        return self.answer(socket, frames)

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Worker(Recorder):
    """The same with jobs: each message is one job, its result is kept and sent to the peer."""

    def __init__(self, endpoints, work, key=lambda frames: "one", grouped=False, name="worker"):
        super().__init__(endpoints, name=name)
        self.results = []
        self.work, self.key, self.grouped = work, key, grouped

    def receive(self, socket, frames, now):
        super().receive(socket, frames, now)
        return [Job(self.key(frames), self.work, frames, (socket, frames), self.grouped)]

    def on_job(self, result, now):
        self.results.append(result)
        socket, frames = result.token
        return [(socket, (frames[0], repr(result.error).encode() if result.error else b"done"))]


@pytest.fixture
def make_loop(implementation, tmp_path):
    loops = []

    def make(limits=None, clock=None, observers=(), **wire):
        loop = Loop(
            WireSettings(implementation=implementation, linger_ms=0, **wire),
            limits or LimitSettings(),
            clock=clock,
            observers=observers,
        )
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        loop.close()


@pytest.fixture
def ipc(tmp_path_factory):
    folder = tmp_path_factory.mktemp("s")
    numbers = iter(range(100))
    return lambda: f"ipc://{folder}/{next(numbers)}"


def router(address, **more):
    return {"main": Endpoint(kind=SocketKind.ROUTER, bind=address, **more)}


def dealer_to(context, address, kind=zmq.DEALER):
    socket = context.socket(kind)
    socket.setsockopt(zmq.RCVTIMEO, LONG_MS)
    socket.connect(address)
    return socket


def turn_until(loop, condition):
    for _ in range(TURNS):
        if condition():
            return
        loop.run_once(0.005)
    raise AssertionError("it never came to pass")


def test_a_request_is_answered(make_loop, context, ipc):
    address = ipc()
    loop = make_loop()
    echo = Recorder(router(address), lambda socket, frames: [(socket, frames)])
    loop.add(ServiceHost(echo))
    client = dealer_to(context, address)
    client.send_multipart([b"a", b"", b"b"])
    turn_until(loop, lambda: echo.received)
    assert client.recv_multipart() == [b"a", b"", b"b"]
    assert (loop.stations[0].host.counts.received, loop.stations[0].host.counts.sent) == (1, 1)


PEERS = [
    ("ROUTER", zmq.DEALER, [b"hi"], [b"hi"]),
    ("ROUTER", zmq.REQ, [b"hi"], [b"hi"]),
    ("DEALER", zmq.DEALER, [b"hi"], [b"hi"]),
    ("REP", zmq.REQ, [b"hi"], [b"hi"]),
    ("PAIR", zmq.PAIR, [b"hi"], [b"hi"]),
]


@pytest.mark.parametrize(("kind", "peer_kind", "request_frames", "reply"), PEERS)
@pytest.mark.parametrize("bound", [True, False], ids=["bind", "connect"])
def test_kinds_that_talk_both_ways(make_loop, context, ipc, kind, peer_kind, request_frames, reply, bound):
    address = ipc()
    peer = context.socket(peer_kind)
    peer.setsockopt(zmq.RCVTIMEO, LONG_MS)
    if not bound:
        peer.bind(address)
    where = {"bind": address} if bound else {"connect": address}
    service = Recorder({"s": Endpoint(kind=kind, **where)}, lambda socket, frames: [(socket, frames)])
    loop = make_loop()
    loop.add(ServiceHost(service))
    if bound:
        peer.connect(address)
    peer.send_multipart(request_frames)
    turn_until(loop, lambda: service.received)
    assert peer.recv_multipart() == reply


def test_a_req_socket_asks(make_loop, context, ipc):
    address = ipc()
    peer = context.socket(zmq.REP)
    peer.bind(address)
    asker = Asker({"s": Endpoint(kind="REQ", connect=address)})
    loop = make_loop()
    loop.add(ServiceHost(asker))
    loop.run_once(0)
    assert peer.poll(LONG_MS)
    peer.send(peer.recv() + b"!")
    turn_until(loop, lambda: asker.received)
    assert asker.received == [("s", (b"question!",))]


class Asker(Recorder):
    asked = False

    def next_deadline(self):
        return None if self.asked else 0.0

    def on_deadline(self, now):
        self.asked = True
        return [("s", (b"question",))]


@pytest.mark.parametrize(("kind", "peer_kind"), [("PUB", zmq.SUB), ("XPUB", zmq.SUB), ("PUSH", zmq.PULL)])
def test_kinds_that_only_send(make_loop, context, ipc, kind, peer_kind):
    address, trigger = ipc(), ipc()
    service = Recorder(
        {"out": Endpoint(kind=kind, bind=address), "in": Endpoint(kind="PULL", bind=trigger)},
        lambda socket, frames: [("out", frames)] if socket == "in" else (),
    )
    loop = make_loop()
    loop.add(ServiceHost(service))
    peer = dealer_to(context, address, peer_kind)
    if peer_kind == zmq.SUB:
        peer.setsockopt(zmq.SUBSCRIBE, b"topic")
    peer.setsockopt(zmq.RCVTIMEO, 0)
    push = dealer_to(context, trigger, zmq.PUSH)
    got = []

    def arrived():
        push.send_multipart([b"topic", b"news"])  # a publisher drops what nobody has subscribed to yet
        if peer.poll(1):
            got.append(peer.recv_multipart())
        return got

    turn_until(loop, arrived)
    assert got[0] == [b"topic", b"news"]
    if kind == "XPUB":
        assert ("out", (b"\x01topic",)) in service.received


@pytest.mark.parametrize(("kind", "peer_kind"), [("SUB", zmq.PUB), ("PULL", zmq.PUSH)])
def test_kinds_that_only_receive(make_loop, context, ipc, kind, peer_kind):
    address = ipc()
    options = {"subscribe": b"topic"} if kind == "SUB" else {}
    service = Recorder({"in": Endpoint(kind=kind, bind=address, **options)})
    loop = make_loop()
    loop.add(ServiceHost(service))
    peer = dealer_to(context, address, peer_kind)

    def arrived():
        peer.send_multipart([b"other", b"x"] if kind == "SUB" else [b"topic", b"news"])
        peer.send_multipart([b"topic", b"news"])
        return service.received

    turn_until(loop, arrived)
    assert set(service.received) == {("in", (b"topic", b"news"))}


def test_several_addresses_each_way(make_loop, context, ipc):
    bound, connected = [ipc(), "tcp://127.0.0.1:*"], [ipc(), ipc()]
    peers = [context.socket(zmq.ROUTER) for _ in connected]
    for peer, address in zip(peers, connected, strict=True):
        peer.bind(address)
    service = Recorder(
        {"in": Endpoint(kind="PULL", bind=bound), "out": Endpoint(kind="DEALER", connect=connected)},
        lambda socket, frames: [("out", frames)],
    )
    loop = make_loop()
    station = loop.add(ServiceHost(service))
    addresses = station.sockets["in"].addresses
    assert addresses[0] == bound[0]
    assert addresses[1].startswith("tcp://127.0.0.1:")
    for address in addresses:
        dealer_to(context, address, zmq.PUSH).send(b"via " + address[:3].encode())
    turn_until(loop, lambda: len(service.received) == 2)
    heard = []
    for peer in peers:
        assert peer.poll(LONG_MS)
        heard.append(peer.recv_multipart()[1])
    assert sorted(heard) == [b"via ipc", b"via tcp"]


def test_a_busy_socket_does_not_keep_others_waiting(make_loop, context, ipc):
    busy, quiet = ipc(), ipc()
    service = Recorder({"busy": Endpoint(kind="PULL", bind=busy), "quiet": Endpoint(kind="PULL", bind=quiet)})
    loop = make_loop(batch=10)
    loop.add(ServiceHost(service))
    crowd, single = dealer_to(context, busy, zmq.PUSH), dealer_to(context, quiet, zmq.PUSH)
    for number in range(500):
        crowd.send(b"%d" % number)
    turn_until(loop, lambda: len(service.received) >= 10)
    single.send(b"me too")
    before = len(service.received)
    turn_until(loop, lambda: ("quiet", (b"me too",)) in service.received)
    # whatever it took for the message to travel, no turn took more than ten of the crowd
    turn_until(loop, lambda: len(service.received) == 501)
    assert [frames for socket, frames in service.received if socket == "busy"] == [(b"%d" % n,) for n in range(500)]
    assert before <= 500


def test_no_turn_takes_more_than_the_batch_from_a_socket(make_loop, context, ipc):
    address = ipc()
    reports = []
    service = Recorder({"in": Endpoint(kind="PULL", bind=address)})
    loop = make_loop(batch=10, observers=[reports.append])
    loop.add(ServiceHost(service))
    crowd = dealer_to(context, address, zmq.PUSH)
    for _ in range(95):
        crowd.send(b"x")
    turn_until(loop, lambda: len(service.received) == 95)
    assert max(report.received["recorder"] for report in reports) == 10
    assert sum(report.received["recorder"] for report in reports) == 95


def test_failed_sends_are_counted_by_reason_reported_and_given_back(make_loop, context, ipc):
    address = ipc()
    reports = []
    returned = []

    class Asks(Recorder):
        def on_undelivered(self, socket, frames, reason, now):
            returned.append((socket, frames, reason))
            return ()

    service = Asks(router(address), lambda socket, frames: [(socket, (b"nobody", b"x")), ("nowhere", (b"y",))])
    loop = make_loop(observers=[reports.append])
    host = loop.add(ServiceHost(service)).host
    dealer_to(context, address).send(b"go")
    turn_until(loop, lambda: service.received)
    assert dict(host.counts.undelivered) == {("main", "EHOSTUNREACH"): 1, ("nowhere", "malformed"): 1}
    assert returned == [("main", (b"nobody", b"x"), "EHOSTUNREACH")]
    assert [(name, failure.reason) for name, failure in reports[-1].failed] == [
        ("recorder", "EHOSTUNREACH"),
        ("recorder", "malformed"),
    ]
    assert host.counts.errors == 1


def test_what_a_service_sends_instead_goes_out_at_once(make_loop, context, ipc):
    address = ipc()

    class Instead(Recorder):
        def on_undelivered(self, socket, frames, reason, now):
            return [(socket, (self.received[0][1][0], b"could not reach " + frames[0]))]

    service = Instead(router(address), lambda socket, frames: [(socket, (b"nobody", b"x"))])
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    client.send(b"go")
    turn_until(loop, lambda: service.received)
    loop.run_once()  # without a limit: it would sleep for ever if nothing were left to send
    assert client.recv() == b"could not reach nobody"


def test_sends_to_a_peer_that_does_not_read_never_block(make_loop, context, ipc):
    address = ipc()
    service = Recorder(
        router(address, high_water=10), lambda socket, frames: [(socket, (frames[0], bytes(50_000)))] * 50
    )
    loop = make_loop(limits=LimitSettings(outbox_bytes=16 * 1024 * 1024))
    station = loop.add(ServiceHost(service))
    host = station.host
    client = context.socket(zmq.DEALER)
    client.setsockopt(zmq.RCVHWM, 1)
    client.connect(address)
    for _ in range(20):
        client.send(b"more")
    turn_until(loop, lambda: len(service.received) == 20)
    assert host.counts.undelivered["main", "EAGAIN"] > 0
    assert host.counts.sent + host.counts.undelivered["main", "EAGAIN"] + len(station.outbox) == 1000


def test_deadlines_are_met_and_not_early(make_loop):
    class Ticker(Recorder):
        due = None
        fired = ()

        def next_deadline(self):
            return self.due

        def on_deadline(self, now):
            self.fired += (now - self.due,)
            self.due = self.due + 0.01 if len(self.fired) < 5 else None
            return ()

    ticker = Ticker({})
    loop = make_loop()
    loop.add(ServiceHost(ticker))
    ticker.due = loop.clock.now() + 0.01
    turn_until(loop, lambda: len(ticker.fired) == 5)
    assert all(lateness >= 0 for lateness in ticker.fired)


def test_a_stall_of_the_broker_moves_deadlines(make_loop, caplog):
    times = deque([100.0])
    clock = SteadyClock(lambda: times[0])
    loop = make_loop(clock=clock)
    fired = []

    class Waits(Recorder):
        def next_deadline(self):
            return None if fired else 103.0

        def on_deadline(self, now):
            fired.append(now)
            return ()

    loop.add(ServiceHost(Waits({})))
    loop.run_once(0)
    times[0] = 100.2
    loop.run_once(0)
    times[0] = 110.2  # stopped for ten seconds
    with caplog.at_level(logging.WARNING):
        logging.getLogger("scale0").propagate = True
        loop.run_once(0)
    assert fired == []
    assert "stood still" in caplog.text
    times[0] = 110.9
    loop.run_once(0)
    assert fired == []
    times[0] = 111.6
    loop.run_once(0)
    times[0] = 112.4
    loop.run_once(0)
    times[0] = 113.3
    loop.run_once(0)
    assert len(fired) == 1
    assert 103.0 <= fired[0] < 103.9


def test_another_thread_hands_work_to_the_loop(make_loop):
    loop = make_loop()
    ran_on = []
    thread = threading.Thread(target=lambda: loop.call(lambda: ran_on.append(threading.get_ident())))
    thread.start()
    turn_until(loop, lambda: ran_on)
    thread.join()
    assert ran_on == [threading.get_ident()]


def test_stop_from_another_thread_ends_a_sleeping_loop(make_loop):
    loop = make_loop()
    running = threading.Thread(target=loop.run)
    running.start()
    loop.stop()
    running.join(10)
    assert not running.is_alive()


def test_jobs_run_on_other_threads_and_come_back(make_loop, context, ipc):
    address = ipc()
    service = Worker(router(address), lambda frames: threading.get_ident())
    loop = make_loop()
    host = loop.add(ServiceHost(service)).host
    client = dealer_to(context, address)
    client.send(b"go")
    turn_until(loop, lambda: service.results)
    loop.run_once(0)
    assert client.recv() == b"done"
    assert service.results[0].value != threading.get_ident()
    assert (host.counts.jobs, host.counts.jobs_failed) == (1, 0)


def test_jobs_of_one_key_keep_their_order_and_a_failure_is_a_result(make_loop, context, ipc):
    address = ipc()

    def work(frames):
        if int(frames[1]) % 7 == 3:
            raise OSError("disk full")
        return int(frames[1])

    service = Worker(router(address), work, key=lambda frames: int(frames[1]) % 3)
    loop = make_loop()
    host = loop.add(ServiceHost(service)).host
    client = dealer_to(context, address)
    for number in range(60):
        client.send(b"%d" % number)
    turn_until(loop, lambda: len(service.results) == 60)
    for key in range(3):
        numbers = [int(r.token[1][1]) for r in service.results if int(r.token[1][1]) % 3 == key]
        assert numbers == sorted(numbers)
    failed = {int(r.token[1][1]) for r in service.results if r.error}
    assert failed == {n for n in range(60) if n % 7 == 3}
    assert host.counts.jobs_failed == len(failed)
    turn_until(loop, lambda: host.counts.sent == 60)


def test_grouped_jobs_share_one_call(make_loop, context, ipc):
    address = ipc()
    calls = []
    gate = threading.Event()

    def commit(batch):
        gate.wait(10)
        calls.append(len(batch))
        return [frames[1] for frames in batch]

    service = Worker(router(address), commit, grouped=True)
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    for number in range(100):
        client.send(b"%d" % number)
    turn_until(loop, lambda: len(service.received) == 100)
    gate.set()
    turn_until(loop, lambda: len(service.results) == 100)
    assert [r.value for r in service.results] == [b"%d" % n for n in range(100)]
    assert len(calls) <= 10, "one fsync should serve many"


def test_too_many_jobs_in_flight_hold_the_sockets_back(make_loop, context, ipc):
    address = ipc()
    gate = threading.Event()
    service = Worker(router(address), lambda frames: gate.wait(10), key=lambda frames: frames[1])
    loop = make_loop(batch=4)
    host = loop.add(ServiceHost(service, limits=HostLimits(jobs=8))).host
    client = dealer_to(context, address)
    for number in range(100):
        client.send(b"%d" % number)
    turn_until(loop, lambda: host.paused)
    for _ in range(20):
        loop.run_once(0.002)
    assert len(service.received) == 8
    gate.set()
    turn_until(loop, lambda: len(service.results) == 100)
    assert len(service.received) == 100


def test_finish_waits_for_jobs_and_sends_what_they_bring(make_loop, context, ipc):
    address = ipc()
    gate = threading.Event()
    service = Worker(router(address), lambda frames: gate.wait(10))
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    client.send(b"go")
    turn_until(loop, lambda: service.received)
    assert loop.finish(0.01) == 1
    threading.Timer(0.05, gate.set).start()
    assert loop.finish(10) == 0
    assert client.recv() == b"done"


def test_a_service_has_its_last_words_when_the_loop_ends(make_loop, context, ipc):
    class LastWords(Worker):
        def on_stop(self, now):
            return [("main", (self.received[0][1][0], b"farewell")), Job("one", self.work, ("x",), self.received[0])]

    address = ipc()
    service = LastWords(router(address), lambda frames: None)
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    client.send(b"go")
    turn_until(loop, lambda: service.results)
    assert loop.finish(10) == 0
    assert [client.recv() for _ in range(3)] == [b"done", b"farewell", b"done"]


def test_a_peer_that_reads_slowly_gets_all_in_order_and_does_not_hold_up_others(make_loop, context, ipc):
    address = ipc()
    many = 2000

    def answer(socket, frames):
        return [(socket, (frames[0], b"%d" % number)) for number in range(many if frames[1] == b"many" else 1)]

    loop = make_loop()
    service = Recorder(router(address, high_water=10), answer)
    station = loop.add(ServiceHost(service))
    slow, quick = (context.socket(zmq.DEALER) for _ in range(2))
    for socket in (slow, quick):
        socket.setsockopt(zmq.RCVHWM, 10)
        socket.setsockopt(zmq.RCVBUF, 2048)
        socket.connect(address)
    slow.send(b"many")
    turn_until(loop, lambda: len(station.outbox))
    quick.send(b"one")
    turn_until(loop, lambda: quick.poll(0))
    assert quick.recv() == b"0"
    got = []

    def all_read():
        while slow.poll(0):
            got.append(int(slow.recv()))
        return len(got) == many

    turn_until(loop, all_read)
    assert got == list(range(many))
    assert not station.outbox
    assert not station.host.counts.undelivered
    assert station.host.counts.sent == many + 1


def test_a_service_that_asks_learns_when_its_messages_really_leave(make_loop, context, ipc):
    class Careful(Recorder):
        """Keeps what waits, and what has left after waiting."""

        def on_delayed(self, socket, frames, now):
            self.waiting[frames[1]] = None

        def on_sent(self, socket, frames, now):
            del self.waiting[frames[1]]
            self.left.append(frames[1])

    address = ipc()
    many = 500
    service = Careful(
        router(address, high_water=10),
        lambda socket, frames: [(socket, (frames[0], b"%d" % number)) for number in range(many)],
    )
    service.waiting, service.left = {}, []
    loop = make_loop()
    station = loop.add(ServiceHost(service))
    slow = context.socket(zmq.DEALER)
    slow.setsockopt(zmq.RCVHWM, 10)
    slow.setsockopt(zmq.RCVBUF, 2048)
    slow.connect(address)
    slow.send(b"many")
    turn_until(loop, lambda: len(station.outbox))
    assert len(service.waiting) == len(station.outbox)
    delayed = list(service.waiting)
    got = []

    def all_read():
        while slow.poll(0):
            got.append(slow.recv())
        return len(got) == many

    turn_until(loop, all_read)
    assert (service.waiting, service.left) == ({}, delayed)


def test_what_is_too_much_for_a_slow_peer_is_counted(make_loop, context, ipc):
    address = ipc()
    loop = make_loop(limits=LimitSettings(outbox_bytes=5000))
    body = b"x" * 1000
    service = Recorder(router(address, high_water=10), lambda socket, frames: [(socket, (frames[0], body))] * 2000)
    station = loop.add(ServiceHost(service))
    slow = context.socket(zmq.DEALER)
    slow.setsockopt(zmq.RCVHWM, 10)
    slow.connect(address)
    slow.send(b"many")
    turn_until(loop, lambda: station.host.counts.undelivered["main", "EAGAIN"])
    counts = station.host.counts
    assert counts.sent + counts.undelivered["main", "EAGAIN"] + len(station.outbox) == 2000


def test_a_service_that_raises_too_often_is_put_out_and_the_others_go_on(make_loop, context, ipc):
    bad, good = ipc(), ipc()

    def explode(socket, frames):
        raise RuntimeError("broken")

    loop = make_loop()
    broken = loop.add(ServiceHost(Recorder(router(bad), explode, name="broken"), limits=HostLimits(errors=3)))
    loop.add(ServiceHost(Recorder(router(good), lambda socket, frames: [(socket, frames)], name="good")))
    client = dealer_to(context, bad)
    for _ in range(5):
        client.send(b"x")
    turn_until(loop, lambda: broken.host.quarantined)
    assert broken.sockets == {}
    assert not Path(bad.removeprefix("ipc://")).exists()
    assert broken.host.counts.errors == 3
    other = dealer_to(context, good)
    other.send(b"still there?")
    turn_until(loop, lambda: loop.stations[1].host.counts.sent)
    assert other.recv() == b"still there?"


def test_a_service_that_holds_the_loop_is_named(make_loop, context, ipc, caplog):
    address = ipc()
    times = deque([0.0])

    def slow(socket, frames):
        times[0] += 0.3
        return ()

    service = Recorder(router(address), slow, name="snail")
    loop = make_loop(clock=SteadyClock(lambda: times[0]), limits=LimitSettings(slow_call_ms=200))
    host = loop.add(ServiceHost(service, plugin="garden")).host
    client = dealer_to(context, address)
    with caplog.at_level(logging.WARNING):
        logging.getLogger("scale0").propagate = True
        client.send(b"x")
        turn_until(loop, lambda: service.received)
    assert host.counts.slow == 1
    record = next(r for r in caplog.records if "held the loop" in r.getMessage())
    assert (record.fields["service"], record.fields["plugin"], record.fields["ms"]) == ("snail", "garden", 300)


def test_a_socket_that_cannot_be_read_is_logged_and_harms_no_other(make_loop, context, ipc, caplog):
    loop, addresses = make_loop(), (ipc(), ipc())
    good, bad = (
        Recorder(router(address), lambda socket, frames: [(socket, frames)], name=name)
        for address, name in zip(addresses, ("good", "bad"), strict=True)
    )
    loop.add(ServiceHost(good))
    doomed, own = zmq.Context(), loop._context
    loop._context = doomed
    broken = loop.add(ServiceHost(bad))
    loop._context = own
    client = dealer_to(context, addresses[0])
    client.send(b"before")
    turn_until(loop, lambda: good.received)
    ending = threading.Thread(target=doomed.term)  # every call on its sockets fails from now on: ETERM
    ending.start()
    try:
        counts = broken.host.counts
        turn_until(loop, lambda: counts.dropped["unreadable socket"] >= 2)
        client.send(b"after")
        turn_until(loop, lambda: len(good.received) == 2)
        tried, begun = counts.dropped["unreadable socket"], time.monotonic()
        turn_until(loop, lambda: counts.dropped["unreadable socket"] >= tried + 3)
        assert time.monotonic() - begun >= 2 * DRAIN_PAUSE, "it is left alone in between"
        assert [record.getMessage() for record in caplog.records].count("socket cannot be read; retrying") == 1
        assert not broken.host.quarantined
    finally:
        loop.remove(broken)
        ending.join(LONG_MS / 1000)
    assert not ending.is_alive()


def test_an_address_that_cannot_be_opened_leaves_nothing_open(make_loop, ipc):
    first = ipc()
    service = Recorder(
        {"a": Endpoint(kind="ROUTER", bind=first), "b": Endpoint(kind="ROUTER", bind="ipc:///no/such/place")}
    )
    loop = make_loop()
    with pytest.raises(Exception, match="/no/such/place"):
        loop.add(ServiceHost(service))
    assert loop.stations == []
    assert not Path(first.removeprefix("ipc://")).exists()


def test_a_lost_connection_is_told_to_a_service_that_watches(make_loop, context, ipc):
    address = ipc()
    lost = []

    class Watches(Recorder):
        def on_peer_lost(self, socket, now):
            lost.append(socket)
            return ()

        def on_undelivered(self, socket, frames, reason, now):
            lost.append((frames[0], reason))
            return ()

    service = Watches(router(address, watch_peers=True))
    loop = make_loop()
    host = loop.add(ServiceHost(service)).host
    gone, stays = dealer_to(context, address), dealer_to(context, address)
    gone.send(b"1")
    stays.send(b"2")
    turn_until(loop, lambda: len(service.received) == 2)
    peers = {frames[1]: frames[0] for _, frames in service.received}
    gone.close()
    turn_until(loop, lambda: lost)
    assert lost == ["main"]

    def found_out():
        # more than once: for a moment after the event the ROUTER still takes messages for the connection
        host.sends.append(("main", (peers[b"1"], b"still there?")))
        return len(lost) > 1

    turn_until(loop, found_out)
    assert lost[1] == (peers[b"1"], "EHOSTUNREACH")
    host.sends.append(("main", (peers[b"2"], b"still there?")))
    loop.run_once(0)
    assert stays.recv() == b"still there?"


def test_a_call_may_remove_a_service_that_has_messages_waiting(make_loop, context, ipc):
    address = ipc()
    service = Recorder(router(address))
    loop = make_loop()
    station = loop.add(ServiceHost(service))
    dealer_to(context, address).send(b"x")
    turn_until(loop, lambda: service.received)
    loop.call(lambda: loop.remove(station))
    loop.run_once(1)
    assert loop.stations == []
    loop.run_once(0)


def test_jobs_that_were_given_up_do_not_begin_any_more(make_loop, context, ipc):
    address = ipc()
    gate, done = threading.Event(), []

    def work(frames):
        gate.wait(10)
        done.append(frames[1])

    service = Worker(router(address), work)
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    for number in range(6):
        client.send(b"%d" % number)
    turn_until(loop, lambda: len(service.received) == 6)
    assert loop.finish(0.01) == 6
    threads = list(loop.stations[0].jobs._threads)
    loop.close()
    gate.set()
    for thread in threads:
        thread.join(10)
    assert done == [b"0"]


def test_what_is_left_to_send_at_the_end_is_sent(make_loop, context, ipc):
    address = ipc()

    class Instead(Recorder):
        def on_undelivered(self, socket, frames, reason, now):
            return [(socket, (self.received[0][1][0], b"instead"))]

    service = Instead(router(address), lambda socket, frames: [(socket, (b"nobody", b"x"))])
    loop = make_loop()
    loop.add(ServiceHost(service))
    client = dealer_to(context, address)
    client.send(b"go")
    turn_until(loop, lambda: service.received)
    assert loop.finish(5) == 0
    assert client.recv() == b"instead"
