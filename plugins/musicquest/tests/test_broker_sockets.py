"""The music broker in a real broker, with the sockets that the seed asks for."""

from __future__ import annotations

import json
import time

import pytest
import zmq

PATIENCE_MS = 20_000


class Peers:
    """Makes sockets, and closes them at the end."""

    def __init__(self, broker):
        self.broker = broker
        self.context = zmq.Context()
        self.made = []

    def __call__(self, socket, kind=zmq.REQ):
        self.made.append(self.context.socket(kind))
        self.made[-1].linger = 0
        self.made[-1].rcvtimeo = self.made[-1].sndtimeo = PATIENCE_MS
        self.made[-1].connect(self.broker.address("musicquest-broker", socket))
        return self.made[-1]

    def close(self):
        for socket in self.made:
            socket.close()
        self.context.term()


def ask(socket, *frames):
    socket.send_multipart([frame.encode() if isinstance(frame, str) else frame for frame in frames])
    return socket.recv_multipart()


def announce(socket, ident, **fields):
    report = {"id": ident, "children_endpoint": f"tcp://127.0.0.1:{ident}1", "slots": 2, **fields}
    ok, answer = ask(socket, f"tcp://127.0.0.1:{ident}0", json.dumps(report))
    assert ok == b"OK"
    return json.loads(answer)


@pytest.fixture
def start(scale0_broker):
    made = []

    def start(**settings):
        table = {"bind_servers": ["ipc://{runtime}/servers"], "bind_clients": ["ipc://{runtime}/clients"], **settings}
        broker = scale0_broker(["musicquest-broker"], {"plugin": {"musicquest-broker": table}})
        made.append(Peers(broker))
        return made[-1]

    yield start
    for peers in made:
        peers.close()


@pytest.mark.requirement("M2")
@pytest.mark.requirement("M3")
@pytest.mark.requirement("M12")
@pytest.mark.requirement("M16")
@pytest.mark.requirement("M17")
@pytest.mark.requirement("M31")
@pytest.mark.parametrize("address", ["ipc://{runtime}/%s", "tcp://127.0.0.1:*"])
def test_the_originals_exact_frames_on_req_sockets(start, address):
    peers = start(bind_servers=[address.replace("%s", "s")], bind_clients=[address.replace("%s", "c")])
    client, server = peers("clients"), peers("servers")
    assert ask(client, "hello") == [b"bye"]
    assert ask(server, "tcp://localhost:5556") == [b"OK"]
    assert ask(client, "hello") == [b"hello", b"tcp://localhost:5556"]
    assert ask(server, "tcp://localhost:5557") == [b"OK"]
    assert ask(client, "hello") == [b"hello", b"tcp://localhost:5557"]
    assert ask(client, "nonsense")[0] == b"ERROR"
    assert ask(server, "nonsense")[0] == b"ERROR"
    assert ask(client, "hello")[0] == b"hello", "an error does no harm"


@pytest.mark.requirement("M10")
@pytest.mark.requirement("M11")
@pytest.mark.requirement("M13")
@pytest.mark.requirement("M15")
@pytest.mark.requirement("M26")
@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER], ids=["REQ", "DEALER"])
def test_servers_report_and_clients_get_the_one_with_the_fewest(start, kind):
    peers = start(lease=600.0)
    servers, client = peers("servers", kind), peers("clients", kind)
    assert announce(servers, "1", clients=2)["root"] == "1"
    assert announce(servers, "2", clients=0)["father"] == {"id": "1", "children_endpoint": "tcp://127.0.0.1:11"}

    def hello():
        header, word, tag, told = ask(client, "ZMQ01", "hello", "my tag", "{}")
        assert (header, word, tag) == (b"ZMQ01", b"hello", b"my tag")
        return json.loads(told)["id"]

    assert [hello() for _ in range(5)] == ["2", "2", "1", "2", "1"]
    rows = json.loads(ask(client, "ZMQ01", "servers", "")[3])
    assert [(row["id"], row["clients"], row["root"]) for row in rows] == [("1", 4, True), ("2", 3, False)]


@pytest.mark.requirement("M41")
def test_a_silent_root_is_replaced_over_real_sockets(start):
    peers = start(lease=1.0)
    servers, client = peers("servers"), peers("clients")
    announce(servers, "1")
    end = time.monotonic() + PATIENCE_MS / 1000
    while (answer := announce(servers, "2"))["root"] != "2":
        assert answer["father"]["id"] == "1"
        assert time.monotonic() < end, "the lease of a silent server never ends"
    assert answer["father"] is None
    assert ask(client, "hello") == [b"hello", b"tcp://127.0.0.1:20"]
    assert announce(servers, "3")["father"]["id"] == "2"


def test_many_clients_are_spread_evenly(start):
    peers = start(lease=600.0)
    servers = peers("servers")
    for number in range(1, 8):
        announce(servers, str(number))
    clients = [peers("clients", zmq.DEALER) for _ in range(20)]
    for client in clients:
        for _ in range(35):
            client.send(b"hello")
    given = [client.recv_multipart()[1] for client in clients for _ in range(35)]
    assert {given.count(endpoint) for endpoint in given} == {100}
