"""Services that connect their sockets at run time, with real sockets, on both wires."""

from __future__ import annotations

import logging

import pytest
import zmq

from scale0_core.config.settings import LimitSettings, WireSettings
from scale0_core.container.connections import ID_IN_USE, MALFORMED_ADDRESS, NO_SOCKET, NOT_LOCAL, REUSE_AFTER
from scale0_core.container.host import ServiceHost
from scale0_core.io.loop import Loop
from scale0_core.service import Connect, Disconnect, Endpoint

LONG_MS = 20_000
TURNS = 4000


class Caller:
    """Returns what the test has put into ``effects``, and keeps all that comes back."""

    def __init__(self, **endpoints):
        self.name = "caller"
        self.endpoints = {name: Endpoint(**endpoint) for name, endpoint in endpoints.items()}
        self.effects = []
        self.received = []
        self.refused = []
        self.undelivered = []
        self.fallback = []

    def receive(self, socket, frames, now):
        self.received.append((socket, frames))
        return ()

    def next_deadline(self):
        return 0.0 if self.effects else None

    def on_deadline(self, now):
        effects, self.effects = self.effects, []
        return effects

    def on_refused(self, effect, reason, now):
        self.refused.append((effect, reason))
        fallback, self.fallback = self.fallback, []
        return fallback

    def on_undelivered(self, socket, frames, reason, now):
        self.undelivered.append((socket, frames, reason))
        return ()


class Place:
    """A loop with one caller, and peers outside of it."""

    def __init__(self, implementation, context, folder, limits=None, **wire):
        self.loop = Loop(WireSettings(implementation=implementation, linger_ms=0, **wire), limits or LimitSettings())
        self.context, self.folder, self.made = context, folder, 0

    def host(self, **endpoints):
        self.caller = Caller(**endpoints)
        station = self.loop.add(ServiceHost(self.caller))
        return self.caller, station.host

    def do(self, *effects):
        self.caller.effects += effects
        self.until(lambda: not self.caller.effects)
        self.loop.run_once(0.0)

    def until(self, condition):
        for _ in range(TURNS):
            if condition():
                return
            self.loop.run_once(0.005)
        raise AssertionError("it never came to pass")

    def peer(self, kind=zmq.ROUTER):
        socket = self.context.socket(kind)
        socket.setsockopt(zmq.RCVTIMEO, LONG_MS)
        self.made += 1
        address = f"ipc://{self.folder}/{self.made}"
        socket.bind(address)
        return socket, address


@pytest.fixture
def make_place(implementation, context, tmp_path_factory):
    places = []

    def make(**more):
        places.append(Place(implementation, context, tmp_path_factory.mktemp("s"), **more))
        return places[-1]

    yield make
    for place in places:
        place.loop.close()


@pytest.fixture
def place(make_place):
    return make_place()


def test_a_connection_stands_before_the_sends_of_the_same_turn(place):
    caller, host = place.host(up={"kind": "DEALER"})
    father, address = place.peer()
    place.do(("up", (b"hello",)), Connect("up", address))
    identity, body = father.recv_multipart()
    assert body == b"hello"
    father.send_multipart([identity, b"welcome"])
    place.until(lambda: caller.received)
    assert caller.received == [("up", (b"welcome",))]
    assert not caller.refused
    assert not host.counts.refused


def test_a_router_sends_to_a_peer_by_the_id_it_gave(place):
    caller, _ = place.host(out={"kind": "ROUTER"})
    (one, first), (two, second) = place.peer(), place.peer(zmq.DEALER)
    place.do(
        Connect("out", first, b"one"), Connect("out", second, b"two"), ("out", (b"two", b"2")), ("out", (b"one", b"1"))
    )
    assert two.recv_multipart() == [b"2"]
    identity, body = one.recv_multipart()
    assert body == b"1"
    one.send_multipart([identity, b"back"])
    two.send(b"back too")
    place.until(lambda: len(caller.received) == 2)
    assert sorted(caller.received) == [("out", (b"one", b"back")), ("out", (b"two", b"back too"))]


def test_after_disconnect_nothing_goes_to_the_next_father(place):
    caller, _ = place.host(up={"kind": "DEALER"})
    (old, first), (new, second) = place.peer(), place.peer()
    place.do(Connect("up", first), ("up", (b"to the first",)))
    assert old.recv_multipart()[1:] == [b"to the first"]
    place.do(Disconnect("up", first), ("up", (b"to nobody",)))
    assert caller.undelivered == [("up", (b"to nobody",), "EAGAIN")]
    place.do(Connect("up", second), ("up", (b"to the second",)))
    assert new.recv_multipart()[1:] == [b"to the second"]
    place.do(Disconnect("up", second), Connect("up", first), ("up", (b"to the first again",)))
    assert old.recv_multipart()[1:] == [b"to the first again"]
    assert len(caller.undelivered) == 1


def test_a_router_gives_back_what_goes_to_a_peer_it_left(place):
    caller, _ = place.host(out={"kind": "ROUTER"})
    peer, address = place.peer(zmq.DEALER)
    place.do(Connect("out", address, b"peer"), ("out", (b"peer", b"x")))
    assert peer.recv() == b"x"
    place.do(Disconnect("out", address), ("out", (b"peer", b"y")))
    assert caller.undelivered == [("out", (b"peer", b"y"), "EHOSTUNREACH")]


def test_what_waits_for_a_peer_that_is_left_comes_back(place):
    caller, _ = place.host(out={"kind": "ROUTER", "high_water": 2})
    nobody = f"ipc://{place.folder}/nobody"
    bodies = [b"%d" % number for number in range(6)]
    place.do(Connect("out", nobody, b"peer"), *[("out", (b"peer", body)) for body in bodies])
    station = place.loop.stations[0]
    waiting = [frames for _, frames in station.outbox.waiting()]
    assert waiting
    place.do(Disconnect("out", nobody))
    assert not len(station.outbox)
    assert caller.undelivered == [("out", frames, "EHOSTUNREACH") for frames in waiting]


def test_twice_is_harmless_and_so_is_ending_what_is_not_there(place):
    caller, _ = place.host(out={"kind": "ROUTER"}, up={"kind": "DEALER"})
    peer, address = place.peer(zmq.DEALER)
    nowhere = "tcp://127.0.0.1:9"
    place.do(*[Connect("out", address, b"p")] * 3, Disconnect("out", nowhere), Disconnect("up", nowhere))
    place.do(Connect("out", address, b"p"), ("out", (b"p", b"once")), ("out", (b"p", b"end")))
    assert [peer.recv(), peer.recv()] == [b"once", b"end"]
    assert not caller.refused


def test_an_address_of_the_endpoint_can_be_left(place):
    peer, address = place.peer(zmq.PULL)
    caller, _ = place.host(up={"kind": "PUSH", "connect": address})
    place.do(("up", (b"1",)))
    assert peer.recv() == b"1"
    place.do(Disconnect("up", address), ("up", (b"2",)))
    assert caller.undelivered == [("up", (b"2",), "EAGAIN")]


REFUSED = [
    (Connect("up", "127.0.0.1:1"), MALFORMED_ADDRESS),
    (Connect("up", "tcp://*:1"), MALFORMED_ADDRESS),
    (Connect("up", "tcp://127.0.0.1:*"), MALFORMED_ADDRESS),
    (Connect("up", "tcp://127.0.0.1:0"), MALFORMED_ADDRESS),
    (Connect("up", "tcp://127.0.0.1:1;127.0.0.1:2"), MALFORMED_ADDRESS),
    (Connect("up", "ipc://a\0b"), MALFORMED_ADDRESS),
    (Connect("up", None), MALFORMED_ADDRESS),
    (Disconnect("up", "nonsense"), MALFORMED_ADDRESS),
    (Connect("up", "tcp://192.0.2.1:1"), NOT_LOCAL),
    (Connect("up", "tcp://example.org:1"), NOT_LOCAL),
    (Connect("down", "tcp://127.0.0.1:1"), NO_SOCKET),
    (Disconnect("down", "tcp://127.0.0.1:1"), NO_SOCKET),
    (Connect(None, "tcp://127.0.0.1:1"), NO_SOCKET),
]


@pytest.mark.parametrize(("effect", "reason"), REFUSED, ids=lambda value: str(value)[:50])
def test_what_is_refused_is_counted_and_told(place, effect, reason):
    caller, host = place.host(up={"kind": "DEALER"})
    father, address = place.peer()
    caller.fallback = [Connect("up", address), ("up", (b"instead",))]
    place.do(effect)
    assert caller.refused == [(effect, reason)]
    assert host.counts.refused == {(str(effect.socket), reason): 1}
    assert father.recv_multipart()[1:] == [b"instead"]


def test_each_kind_of_refusal_is_logged_once(place, caplog):
    place.host(up={"kind": "DEALER"})
    with caplog.at_level(logging.WARNING):
        place.do(*[Connect("up", f"tcp://192.0.2.{number}:1") for number in range(5)], Connect("up", "?"))
    assert sum("connection was refused" in record.getMessage() for record in caplog.records) == 2


def test_other_machines_can_be_reached_when_that_is_allowed(make_place):
    place = make_place(insecure=True)
    caller, _ = place.host(up={"kind": "DEALER"})
    place.do(Connect("up", "tcp://192.0.2.1:1"), Disconnect("up", "tcp://192.0.2.1:1"))
    assert not caller.refused


def test_a_routing_id_is_never_used_twice_at_a_time(place):
    caller, _ = place.host(out={"kind": "ROUTER"})
    (one, first), (_, second) = place.peer(zmq.DEALER), place.peer(zmq.DEALER)
    again = [Connect("out", second, b"name"), Connect("out", first, b"other name")]
    place.do(Connect("out", first, b"name"), *again)
    assert [effect for effect, _ in caller.refused] == again
    assert caller.refused[0][1] == ID_IN_USE
    place.do(("out", (b"name", b"x")))
    assert one.recv() == b"x"


def test_a_routing_id_that_was_let_go_rests_before_it_is_used_again(place, monkeypatch):
    # libzmq would end the process
    caller, _ = place.host(out={"kind": "ROUTER"})
    peer, address = place.peer(zmq.DEALER)
    connect, leave = Connect("out", address, b"name"), Disconnect("out", address)
    place.do(connect, ("out", (b"name", b"1")))
    assert peer.recv() == b"1"
    place.do(leave, connect)
    assert caller.refused == [(connect, ID_IN_USE)]
    place.do(Connect("out", address, b"name 2"), ("out", (b"name 2", b"2")))
    assert peer.recv() == b"2"
    now = place.loop.clock.now
    monkeypatch.setattr(place.loop.clock, "woke", lambda wait: now() + REUSE_AFTER + 1)
    place.do(Disconnect("out", address), connect)
    place.do(connect, ("out", (b"name", b"3")))
    assert peer.recv() == b"3"
    assert len(caller.refused) == 1


def test_a_routing_id_that_a_peer_has_is_in_use(place, context):
    address = f"ipc://{place.folder}/own"
    caller, _ = place.host(out={"kind": "ROUTER", "bind": address})
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.ROUTING_ID, b"name")
    stranger.connect(address)
    stranger.send(b"hello")
    place.until(lambda: caller.received)
    connect = Connect("out", place.peer()[1], b"name")
    place.do(connect)
    assert caller.refused == [(connect, ID_IN_USE)]


def test_an_id_whose_connection_failed_goes_to_no_other(make_place):
    place = make_place(insecure=True)
    caller, _ = place.host(out={"kind": "ROUTER"})
    peer, address = place.peer(zmq.DEALER)
    bad = Connect("out", "tcp://a$b:1", b"name")
    place.do(bad, Connect("out", address))
    assert caller.refused == [(bad, "EINVAL")]
    peer.send(b"hello")
    place.until(lambda: caller.received)
    assert caller.received[0][1][0] != b"name"
    place.do(("out", (b"name", b"x")))
    assert caller.undelivered == [("out", (b"name", b"x"), "EHOSTUNREACH")]


@pytest.mark.parametrize("routing_id", [b"x" * 256, "text"])
def test_a_routing_id_has_a_form(place, routing_id):
    caller, _ = place.host(out={"kind": "ROUTER"})
    place.do(Connect("out", "tcp://127.0.0.1:9", routing_id))
    assert [reason for _, reason in caller.refused] == ["malformed routing id"]


def test_connections_asked_for_when_all_is_over_are_left(place):
    caller, host = place.host(up={"kind": "DEALER"})
    _, address = place.peer()
    place.do(Connect("up", address))
    caller.on_stop = lambda now: [Disconnect("up", address)]
    host._on_stop = caller.on_stop
    assert place.loop.finish(5.0) == 0
