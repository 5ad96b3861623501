"""The service in a real broker, with real REQ and DEALER sockets."""

from __future__ import annotations

import json
import os
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

    def until(self, service, code):
        with self(zmq.REQ) as asking:
            while True:
                asking.send_multipart([b"MDPC01", b"mmi.service", service])
                if asking.recv_multipart()[-1] == code:
                    return

    def stats(self, service=b"echo"):
        with self(zmq.REQ) as asking:
            asking.send_multipart([b"MDPC01", b"mmi.stats", service])
            return json.loads(asking.recv_multipart()[-1])[service.decode()]


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


def test_trap_15_a_worker_of_the_same_id_takes_over_while_the_old_connection_is_open(start):
    peers = start()
    old = peers.worker(IDENTITY=b"worker")
    client = peers(zmq.REQ)
    client.send_multipart([b"MDPC01", b"echo", b"question"])
    assert old.recv_multipart()[-1] == b"question"
    new = peers(IDENTITY=b"worker")
    new.send_multipart([b"", b"MDPW01", READY, b"echo"])
    assert new.recv_multipart() == [b"", b"MDPW01", DISCONNECT], "for the broker it is the second READY of one worker"
    new.close()
    newest = peers(IDENTITY=b"worker")
    newest.send_multipart([b"", b"MDPW01", READY, b"echo"])
    assert served(newest, b"answer") == [b"question"]
    assert client.recv_multipart()[-1] == b"answer"


def test_trap_16_a_worker_nobody_knows_is_told_to_begin_anew(start):
    peers = start()
    survivor = peers()
    for _ in range(5):
        survivor.send_multipart([b"MDPW02", b"\5"])
    assert survivor.recv_multipart() == [b"MDPW02", b"\6"]
    survivor.send_multipart([b"MDPW02", b"\1", b"echo"])
    peers.until(b"echo", b"200")
    assert survivor.poll(0) == 0


def test_trap_20_a_client_that_reads_late_loses_no_reply(start):
    peers = start()
    worker = peers.worker()
    client = peers(RCVHWM=1, SNDHWM=0)
    body = os.urandom(8000)
    requests = 5000
    for number in range(requests):
        client.send_multipart([b"", b"MDPC01", b"echo", b"%d" % number, body])
    for _ in range(requests):
        served(worker)
    assert peers.stats()["replies"] == requests
    for number in range(requests):
        assert client.recv_multipart()[3:] == [b"%d" % number, body]


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
    assert worker.recv_multipart() == [b"", b"MDPW01", DISCONNECT]
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
