"""The service in a real broker, with real REQ and DEALER sockets."""

from __future__ import annotations

import json
import os
import threading
import time
from random import Random

import pytest
import zmq

from scale0_majordomo.settings import MajordomoSettings

PATIENCE_MS = 20_000
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = b"\1", b"\2", b"\3", b"\4", b"\5"


class Peers:
    """Makes sockets, and closes them at the end."""

    def __init__(self, address):
        self.context = zmq.Context()
        self.address = address
        self.made = []

    def __call__(self, kind=zmq.DEALER, **options):
        socket = self.plain(kind)
        socket.rcvtimeo = socket.sndtimeo = PATIENCE_MS
        for name, value in options.items():
            socket.set(getattr(zmq, name), value)
        socket.connect(self.address)
        return socket

    def plain(self, kind):
        self.made.append(self.context.socket(kind))
        self.made[-1].linger = 0
        return self.made[-1]

    def close(self):
        for socket in self.made:
            socket.close()
        self.context.term()

    def worker(self, service=b"echo", **options):
        """Connect a worker of 0.1, and wait until it is known."""
        socket = self(**options)
        socket.send_multipart([b"", b"MDPW01", READY, service])
        self.until(service, b"200")
        return socket

    def until(self, service, code, seconds=PATIENCE_MS / 1000):
        """Wait until a service is there or not; tell whether it came to that in time."""
        end = time.monotonic() + seconds
        with self(zmq.REQ) as asking:
            while time.monotonic() < end:
                asking.send_multipart([b"MDPC01", b"mmi.service", service])
                if asking.recv_multipart()[-1] == code:
                    return True
        assert seconds < PATIENCE_MS / 1000, (service, code)
        return False

    def stubborn_worker(self, **options):
        """Connect a worker as stock ones do: if it hears nothing of the broker, it makes another socket."""
        for _ in range(20):
            socket = self(**options)
            socket.send_multipart([b"", b"MDPW01", READY, b"echo"])
            if self.until(b"echo", b"200", seconds=1.0):
                return socket
            socket.close()
        raise AssertionError("it is not let in")

    def mmi(self, name, service):
        with self(zmq.REQ) as asking:
            asking.send_multipart([b"MDPC01", name, service])
            return json.loads(asking.recv_multipart()[-1])

    def stats(self, service=b"echo"):
        return self.mmi(b"mmi.stats", service)[service.decode()]


def served(worker, *reply):
    """Answer the next request of a worker of 0.1, and give its body."""
    while (frames := worker.recv_multipart())[2] == HEARTBEAT:
        pass
    assert frames[:3] == [b"", b"MDPW01", REQUEST]
    worker.send_multipart([b"", b"MDPW01", REPLY, frames[3], b"", *(reply or frames[5:])])
    return frames[5:]


@pytest.fixture
def start(scale0_broker):
    made = []

    def start(**settings):
        settings = {"bind": ["ipc://{runtime}/majordomo"], "heartbeat": 60.0, **settings}  # none where none is meant
        broker = scale0_broker(["majordomo"], {"plugin": {"majordomo": settings}})
        made.append(Peers(broker.address("majordomo", "requests")))
        return made[-1]

    yield start
    for peers in made:
        peers.close()


def test_the_address_is_that_of_the_zguide():
    assert MajordomoSettings().bind == ("tcp://127.0.0.1:5555",)


def test_a_req_client_and_workers_of_all_versions(start):
    peers = start()
    client = peers(zmq.REQ)
    worker = peers.worker()
    client.send_multipart([b"MDPC01", b"echo", b"hello", b""])
    assert served(worker) == [b"hello", b""]
    assert client.recv_multipart() == [b"MDPC01", b"echo", b"hello", b""]
    worker.send_multipart([b"", b"MDPW01", DISCONNECT])
    peers.until(b"echo", b"404")
    other = peers()
    other.send_multipart([b"MDPW02", b"\1", b"echo"])
    client.send_multipart([b"MDPC01", b"echo", b"again"])
    _, _, address, _, body = other.recv_multipart()
    other.send_multipart([b"MDPW02", b"\3", address, b"", b"part"])
    other.send_multipart([b"MDPW02", b"\4", address, b"", body])
    assert client.recv_multipart() == [b"MDPC01", b"echo", b"part", b"again"]
    modern = peers()
    for ident in (b"a", b"b"):
        modern.send_multipart([b"S0MC01", b"\1", ident, b"echo", b"", b"x"])
    for ident in (b"a", b"b"):
        address = other.recv_multipart()[2]
        other.send_multipart([b"MDPW02", b"\4", address, b"", b"X"])
        assert modern.recv_multipart() == [b"S0MC01", b"\3", ident, b"echo", b"", b"X"]


def test_correlated_requests_and_clients_behind_a_proxy(start):
    peers = start()
    worker = peers.worker()
    client = peers(zmq.REQ, REQ_CORRELATE=1, REQ_RELAXED=1)
    client.send_multipart([b"MDPC01", b"echo", b"first, and given up"])
    served(worker)
    client.send_multipart([b"MDPC01", b"echo", b"second"])
    served(worker)
    assert client.recv_multipart() == [b"MDPC01", b"echo", b"second"]
    front, back = peers.plain(zmq.ROUTER), peers()
    front.bind("inproc://proxy")
    one, two = (peers.plain(zmq.REQ) for _ in range(2))
    for name, socket in ((b"one", one), (b"two", two)):
        socket.connect("inproc://proxy")
        socket.send_multipart([b"MDPC01", b"echo", name])
        back.send_multipart(front.recv_multipart())
        assert served(worker) == [name]
    for _ in range(2):
        front.send_multipart(back.recv_multipart())
    for name, socket in ((b"one", one), (b"two", two)):
        assert socket.recv_multipart() == [b"MDPC01", b"echo", name]


def test_large_frames_pass_unchanged_whatever_way_they_take(start):
    peers = start()
    worker = peers.worker()
    clients = peers(zmq.REQ), peers()
    for size in (8191, 8193, 3_000_000):
        body = os.urandom(size)
        clients[0].send_multipart([b"MDPC01", b"echo", body])
        assert served(worker) == [body]
        assert clients[0].recv_multipart()[-1] == body
        clients[1].send_multipart([b"MDPC02", b"\1", b"echo", b"", body])
        served(worker)
        assert clients[1].recv_multipart() == [b"MDPC02", b"\3", b"echo", b"", body]
    clients[0].send_multipart([b"MDPC01", b"n" * 20_000, b"a name too long"])
    clients[1].send_multipart([b"MDPC02", b"\1", b"echo", b"still there"])
    assert served(worker) == [b"still there"]


def test_a_worker_that_dies_in_mid_request_loses_none(start):
    """Long before it would have been silent for too long."""
    peers = start()
    client = peers()
    for number in range(30):
        dies, lives = peers.worker(), peers.worker()
        for body in (b"a", b"b"):
            client.send_multipart([b"", b"MDPC01", b"echo", b"%d" % number + body])
        assert dies.recv_multipart()[-1] == b"%da" % number
        dies.close()
        got = {served(lives, b"done")[0] for _ in range(2)}
        assert got == {b"%da" % number, b"%db" % number}
        for _ in range(2):
            assert client.recv_multipart()[-1] == b"done"
        lives.send_multipart([b"", b"MDPW01", DISCONNECT])
        peers.until(b"echo", b"404")
        lives.close()
    assert client.poll(0) == 0, "and none is answered twice"


def test_trap_15_nobody_takes_the_place_of_a_worker_by_its_id_while_that_lives(start):
    peers = start()
    client, old = peers(zmq.REQ), peers.worker(IDENTITY=b"worker")
    thief = peers(IDENTITY=b"worker")
    thief.send_multipart([b"", b"MDPW01", READY, b"echo"])
    for _ in range(20):
        client.send_multipart([b"MDPC01", b"echo", b"question"])
        assert served(old, b"answer") == [b"question"]
        assert client.recv_multipart()[-1] == b"answer"
    assert thief.poll(0) == 0
    assert len(peers.mmi(b"mmi.workers", b"echo")) == 1


def test_trap_15_a_worker_that_is_started_again_with_the_same_id_is_let_in(start):
    """As soon as its old connection is gone; what it had in hand is not lost."""
    peers = start()
    client = peers(zmq.REQ)
    for number in range(3):
        old = peers.stubborn_worker(IDENTITY=b"worker")
        client.send_multipart([b"MDPC01", b"echo", b"%d" % number])
        assert old.recv_multipart()[-1] == b"%d" % number
        old.close()
        peers.until(b"echo", b"404")
        new = peers.stubborn_worker(IDENTITY=b"worker")
        assert served(new, b"answer") == [b"%d" % number]
        assert client.recv_multipart()[-1] == b"answer"
        new.send_multipart([b"", b"MDPW01", DISCONNECT])
        peers.until(b"echo", b"404")
        new.close()


def test_trap_16_a_worker_nobody_knows_is_told_to_begin_anew(start):
    peers = start()
    survivor = peers()
    for _ in range(5):
        survivor.send_multipart([b"MDPW02", b"\5"])
    assert survivor.recv_multipart() == [b"MDPW02", b"\6"]
    survivor.send_multipart([b"MDPW02", b"\1", b"echo"])
    peers.until(b"echo", b"200")
    assert survivor.poll(0) == 0


class Serving(threading.Thread):
    """A stock worker that answers with what it got, until it is told to stop."""

    def __init__(self, peers, service=b"echo"):
        super().__init__(daemon=True)
        self.served = 0
        self._stop_it = threading.Event()
        self._socket = peers.worker(service)
        self.start()

    def run(self):
        while not self._stop_it.is_set():
            if self._socket.poll(50):
                message = self._socket.recv_multipart()
                if message[2] == REQUEST:
                    self.served += 1
                    self._socket.send_multipart([b"", b"MDPW01", REPLY, *message[3:]])

    def end(self):
        self._stop_it.set()
        self.join(10)
        assert not self.is_alive()


def test_trap_20_a_client_that_reads_late_loses_no_reply(start):
    """Nor does it fill the broker's memory: while its replies wait, its requests do."""
    peers = start()
    worker = Serving(peers)
    client = peers(RCVHWM=1, SNDHWM=0)
    body = os.urandom(8000)
    requests = 5000
    for number in range(requests):
        client.send_multipart([b"", b"MDPC01", b"echo", b"%d" % number, body])
    for number in range(requests):
        assert client.recv_multipart()[3:] == [b"%d" % number, body]
    worker.end()
    assert worker.served == requests


def test_the_stock_client_of_the_guide_gets_all_its_replies(start):
    """``mdclient2`` sends 100,000 requests before it reads; all is as it is by default, at the broker and at ZeroMQ."""
    peers = start()
    worker = Serving(peers)
    client, other = peers(), peers(zmq.REQ)
    for _ in range(100_000):
        client.send_multipart([b"", b"MDPC01", b"echo", b"Hello world"])
    other.send_multipart([b"MDPC01", b"echo", b"in between"])
    assert other.recv_multipart()[-1] == b"in between", "and others have their turns meanwhile"
    waiting = peers.stats()["waiting"]
    assert waiting > 20_000
    for _ in range(100_000):
        assert client.recv_multipart() == [b"", b"MDPC01", b"echo", b"Hello world"]
    worker.end()
    assert peers.stats()["refused"] == 0


def test_one_client_does_not_shut_out_the_others(start):
    """It has 20,000 requests waiting when others come; each of these waits for one of its requests, not for all."""
    peers = start()
    greedy, modest = peers(SNDHWM=0), peers(zmq.REQ)
    for _ in range(20_000):
        greedy.send_multipart([b"", b"MDPC01", b"echo", b"greedy"])
    end = time.monotonic() + 20
    while peers.stats()["waiting"] < 20_000 and time.monotonic() < end:
        time.sleep(0.01)
    modest.send_multipart([b"MDPC01", b"echo", b"modest"])
    worker = peers.worker()
    got = [served(worker)[0] for _ in range(3)]
    assert b"modest" in got
    assert modest.recv_multipart()[-1] == b"modest"


def test_heartbeats_go_to_idle_and_busy_workers_and_the_silent_are_forgotten(start):
    peers = start(heartbeat=0.5, busy_timeout=60.0)
    idle = peers.worker(b"idle")
    busy = peers.worker(b"busy")
    client = peers()
    client.send_multipart([b"MDPC02", b"\1", b"busy", b"x"])
    address = busy.recv_multipart()[3]
    for socket in (idle, busy):
        assert socket.recv_multipart() == [b"", b"MDPW01", HEARTBEAT]
    peers.until(b"idle", b"404")
    for _ in range(3):
        assert busy.recv_multipart() == [b"", b"MDPW01", HEARTBEAT]
    busy.send_multipart([b"", b"MDPW01", REPLY, address, b"", b"late"])
    assert client.recv_multipart()[-1] == b"late"


def test_damaged_messages_harm_nobody(start):
    peers = start()
    worker, vandal, client = peers.worker(), peers(SNDHWM=0), peers(zmq.REQ)
    random = Random(1)
    words = [b"", b"MDPC01", b"MDPW01", b"MDPC02", b"MDPW02", b"S0MC01", b"S0MW01", b"echo", b"x" * 9000]
    words += [bytes([number]) for number in range(9)]
    for _ in range(5000):
        frames = random.choices(words, k=random.randrange(1, 8))
        vandal.send_multipart(frames if frames[2:4] != [READY, b"echo"] else [b""])
    vandal.send_multipart([b"MDPC02", b"\1", b"mmi.nonsense", b"end"])
    while vandal.recv_multipart()[-1] != b"501":
        pass
    vandal.close()
    client.send_multipart([b"MDPC01", b"echo", b"fine"])
    while served(worker) != [b"fine"]:
        pass
    assert client.recv_multipart() == [b"MDPC01", b"echo", b"fine"]


def test_the_brokers_stop_is_told(scale0_broker):
    broker = scale0_broker(["majordomo"], {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"]}}})
    peers = Peers(broker.address("majordomo", "requests"))
    worker, client = peers.worker(), peers()
    client.send_multipart([b"S0MC01", b"\1", b"id", b"echo", b"", b"x"])
    assert worker.recv_multipart()[2] == REQUEST
    broker.stop()
    while (frames := worker.recv_multipart())[2] == HEARTBEAT:  # where stopping takes long
        pass
    assert frames == [b"", b"MDPW01", DISCONNECT]
    assert client.recv_multipart()[:5] == [b"S0MC01", b"\4", b"id", b"echo", b"503"]
    peers.close()


def test_two_brokers_on_one_machine_and_the_second_says_what_to_set(scale0_broker):
    """By default both want the zguide's port; here it is another one, which nobody else may have."""
    first = scale0_broker(["majordomo"], {"plugin": {"majordomo": {"bind": ["tcp://127.0.0.1:*"]}}})
    address = first.address("majordomo", "requests")
    going_on = {"broker": {"keep_going": True}, "plugin": {"majordomo": {"bind": [address]}}}
    second = scale0_broker(["majordomo"], going_on)
    told = second.wait_for("plugin majordomo could not be started")
    assert address in told["why"]
    assert "in use" in told["why"]
    assert told["consequence"] == "the broker runs without it"
    value = '["ipc://{runtime}/majordomo"]'
    assert f"--set 'plugin.majordomo.bind={value}'" in told["next"]
    assert f"bind = {value} in [plugin.majordomo] of broker.toml" in told["next"]
    second.stop()
    settings = {"plugin": {"majordomo": {"bind": [address]}}}
    third = scale0_broker(["majordomo"], settings, arguments=["--set", f"plugin.majordomo.bind={value}"])
    assert third.address("majordomo", "requests").endswith("/majordomo")
