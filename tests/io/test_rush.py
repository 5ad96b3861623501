"""The rush: a busy socket is served without the rest of a turn, and nothing else is forgotten meanwhile."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager

import pytest
import zmq

from scale0_core.config.settings import LimitSettings, WireSettings
from scale0_core.container.container import Container
from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.io.loop import Loop
from scale0_core.io.wire import native_problem
from scale0_core.service import Endpoint, FastPath, Job, SocketKind

pytestmark = pytest.mark.skipif(bool(native_problem()), reason=f"no native wire: {native_problem()}")

LONG_MS = 20_000
MANY = 3_000
WHO = b"who"
"""The client that fast paths are for."""


class Echo:
    """Answers each message; what else it does comes from the test."""

    name = "echo"

    def __init__(self, address, act=lambda frames, number: None, **more):
        self.endpoints = {"main": Endpoint(kind=SocketKind.ROUTER, bind=address, high_water=MANY * 2, **more)}
        self.act = act
        self.received = 0
        self.undelivered = []
        self.told = set()
        self.jobs = []
        self.due = None
        self.fired = []

    def receive(self, socket, frames, now):
        self.received += 1
        self.told.add(now)
        return self.act(frames, self.received) or [(socket, frames)]

    def next_deadline(self):
        return self.due

    def on_deadline(self, now):
        self.fired.append(now)
        self.due = None
        return ()

    def on_undelivered(self, socket, frames, reason, now):
        self.undelivered.append((frames, reason))
        assert now in self.told, "it is the time at which the message was sent"
        return ()

    def on_job(self, result, now):
        self.jobs.append(result)
        return ()


class Fast(Echo):
    """The same by a fast path for every second message."""

    @property
    def fast_paths(self):
        return (FastPath("main", range(2, 10), 0, WHO, self.take),)

    def take(self, socket, frames, now):
        return self.receive(socket, frames, now) if self.received % 2 else None


@contextmanager
def running(*services, limits=None, observers=()):
    """Run services on a thread of their own; give the loop, which counts its rushes."""
    loop = Loop(WireSettings(implementation="native", linger_ms=0), LimitSettings(), observers=observers)
    loop.rushes = []
    rush = loop.wire.rush

    def counted(*arguments):
        loop.rushes.append(rush(*arguments))
        return loop.rushes[-1]

    loop.wire.rush = counted
    for service in services:
        loop.add(ServiceHost(service, limits=limits))
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield loop
    finally:
        loop.stop()
        thread.join(20)
        loop.finish(1)
        loop.close()


@pytest.fixture
def address(tmp_path_factory):
    return f"ipc://{tmp_path_factory.mktemp('s')}/main"


def client(context, address, **options):
    socket = context.socket(zmq.DEALER)
    socket.set_hwm(MANY * 2)
    socket.setsockopt(zmq.RCVTIMEO, LONG_MS)
    for name, value in options.items():
        socket.setsockopt(getattr(zmq, name), value)
    socket.connect(address)
    return socket


def wait_until(condition):
    for _ in range(LONG_MS // 10):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to pass")


def rushed(loop):
    return sum(one.received for one in loop.rushes)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux has it")
@pytest.mark.parametrize("chosen", [False, True])
def test_in_a_rush_the_loop_interrupts_nobody(context, address, chosen):
    """The scheduler is asked for that in a rush only, and not when somebody has chosen how the thread is scheduled."""
    policies = []

    def act(frames, number):
        if chosen and number == 1:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        policies.append(os.sched_getscheduler(0))

    with running(Echo(address, act)) as loop:
        peer = client(context, address)
        peer.send(b"alone")  # no rush
        assert peer.recv() == b"alone"
        for _ in range(MANY):
            peer.send(b"x" * 100)
        for _ in range(MANY):
            peer.recv()

        def is_alone_again():
            """Once a rush is over, which may wait for more to come, the scheduler is told so."""
            peer.send(b"alone again")
            assert peer.recv() == b"alone again"
            return policies[-1] == (os.SCHED_BATCH if chosen else os.SCHED_OTHER)

        wait_until(is_alone_again)
    assert rushed(loop) > 0
    assert set(policies) == ({os.SCHED_BATCH} if chosen else {os.SCHED_OTHER, os.SCHED_BATCH})


@pytest.mark.parametrize("kind", [Echo, Fast])
def test_all_is_answered_and_counted(context, address, kind):
    reports = []
    with running(kind(address), observers=[reports.append]) as loop:
        peer = client(context, address, ROUTING_ID=WHO)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number, b"x" * 100])
        got = [int(peer.recv_multipart()[0]) for _ in range(MANY)]
        host = loop.stations[0].host
    assert sorted(got) == list(range(MANY))
    assert got == sorted(got), "none overtakes another"
    assert rushed(loop) > 0, "it was busy enough"
    assert (host.counts.received, host.counts.sent) == (MANY, MANY)
    assert sum(report.received.get("echo", 0) for report in reports) == MANY
    assert sum(report.sent for report in reports) == MANY


def test_waiting_is_not_told_as_work(context, address):
    """A rush waits for more; of its time only that counts in which something was done."""
    reports = []
    with running(Fast(address), observers=[reports.append]) as loop:
        peer = client(context, address)
        begun = time.monotonic()
        for _ in range(30):
            for number in range(20):
                peer.send_multipart([b"%d" % number])
            for _ in range(20):
                peer.recv_multipart()
        took = time.monotonic() - begun
    assert loop.rushes
    assert sum(report.seconds for report in reports) < took


def test_a_quiet_socket_is_heard_while_another_is_busy(context, address):
    quiet = Echo(address + "2")
    quiet.name = "quiet"
    with running(Fast(address), quiet) as loop:
        busy, other = client(context, address), client(context, address + "2")
        for number in range(MANY):
            busy.send_multipart([b"%d" % number])
            if number % 100 == 0:
                other.send_multipart([b"here"])
        assert [other.recv_multipart() for _ in range(MANY // 100)] == [[b"here"]] * (MANY // 100)
        for _ in range(MANY):
            busy.recv_multipart()
    assert rushed(loop) > 0


def test_a_deadline_comes_while_a_socket_is_busy(context, address):
    service = Fast(address)
    service.act = lambda frames, number: setattr(service, "due", service.due or loop.clock.now() + 0.02)
    with running(service) as loop:
        peer = client(context, address)
        for _ in range(5):
            for number in range(MANY):
                peer.send_multipart([b"%d" % number])
            for _ in range(MANY):
                peer.recv_multipart()
    assert rushed(loop) > 0
    assert service.fired


@pytest.mark.parametrize("kind", [Echo, Fast])
def test_a_service_that_raises_loses_one_message(context, address, kind):
    def act(frames, number):
        if number % 500 == 0:
            raise ValueError("now and then")

    with running(kind(address, act), limits=HostLimits(errors=1000)) as loop:
        peer = client(context, address, ROUTING_ID=WHO)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        got = {int(peer.recv_multipart()[0]) for _ in range(MANY - MANY // 500)}
        counts = loop.stations[0].host.counts
    assert len(got) == MANY - MANY // 500
    assert (counts.received, counts.errors) == (MANY, MANY // 500)
    assert rushed(loop) > 0


@pytest.mark.parametrize("kind", [Echo, Fast])
def test_a_service_that_raises_too_often_is_put_out(context, address, kind):
    def act(frames, number):
        if number > 1000:
            raise ValueError("always")

    with running(kind(address, act), limits=HostLimits(errors=5)) as loop:
        peer = client(context, address, ROUTING_ID=WHO)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        for _ in range(1000):
            peer.recv_multipart()
        host = loop.stations[0].host
        wait_until(lambda: not loop.stations[0].sockets)
    assert host.quarantined
    assert host.counts.errors == 5


def test_jobs_are_run(context, address):
    service = Fast(address)
    service.act = lambda frames, number: [Job("key", len, frames)] if number % 100 == 0 else None
    with running(service):
        peer = client(context, address)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        for _ in range(MANY - MANY // 100):
            peer.recv_multipart()
        peer.send_multipart([b"last"])
        peer.recv_multipart()
    assert [result.value for result in service.jobs] == [2] * (MANY // 100)


def test_what_cannot_be_sent_comes_back(context, address):
    service = Fast(address)
    service.act = lambda frames, number: [("main", (b"nobody", b"x"))] if number % 10 == 0 else None
    with running(service) as loop:
        peer = client(context, address)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        for _ in range(MANY - MANY // 10):
            peer.recv_multipart()
        host = loop.stations[0].host
    assert rushed(loop) > 0
    assert service.undelivered == [((b"nobody", b"x"), "EHOSTUNREACH")] * (MANY // 10)
    assert host.counts.undelivered["main", "EHOSTUNREACH"] == MANY // 10
    assert host.counts.errors == 0


def test_a_malformed_send_is_counted(context, address):
    service = Fast(address)
    service.act = lambda frames, number: [("nowhere", (b"x", b"y"))] if number % 1000 == 0 else None
    with running(service, limits=HostLimits(errors=1000)) as loop:
        peer = client(context, address)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        for _ in range(MANY - MANY // 1000):
            peer.recv_multipart()
        host = loop.stations[0].host
    assert host.counts.errors == MANY // 1000


def test_a_peer_that_reads_late_gets_all(context, address):
    """Its queue is full for a while, and what has to wait keeps its order."""
    service = Echo(address)
    service.endpoints = {"main": Endpoint(kind=SocketKind.ROUTER, bind=address, high_water=10)}
    with running(service) as loop:
        late, quick = client(context, address, RCVHWM=10), client(context, address)
        for number in range(MANY):
            late.send_multipart([b"%d" % number, b"x" * 1000])
            quick.send_multipart([b"%d" % number])
            assert quick.recv_multipart() == [b"%d" % number]
        assert [int(late.recv_multipart()[0]) for _ in range(MANY)] == list(range(MANY))
        host = loop.stations[0].host
    assert host.counts.sent == 2 * MANY


def test_a_service_that_takes_tasks_rushes_while_no_task_is_open(context, address):
    service = Echo(address, tasks=True)
    host = ServiceHost(service)
    container = Container()
    container.add(host)
    assert host.may_rush
    host.tasks.post((b"TASK", b"1", b"x"))
    (receiver,) = container.ready
    receiver.deliver(0.0)
    assert not host.may_rush
    host.take_sends()
    assert host.may_rush


def test_it_can_be_stopped_in_the_middle(context, address):
    with running(Fast(address)) as loop:
        peer = client(context, address)
        for number in range(MANY):
            peer.send_multipart([b"%d" % number])
        peer.recv_multipart()
    assert not loop.stations[0].host.sends
