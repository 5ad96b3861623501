"""Services of one broker that send to each other as over a socket: alone, in the loop, and in the simulated network."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import zmq

from scale0_core.config.settings import WireSettings
from scale0_core.container.container import Container
from scale0_core.container.host import HostLimits, ServiceHost
from scale0_core.io.loop import Loop
from scale0_core.io.wire import native_problem
from scale0_core.service import Endpoint, Frames
from scale0_core.testing import Script, SimNetwork

KINDS = ["pure", pytest.param("native", marks=pytest.mark.skipif(bool(native_problem()), reason="no native wire"))]


class Part:
    """Keeps what it gets; the test says what it answers."""

    def __init__(self, name: str, answer: Any = lambda socket, frames: (), **endpoints: Endpoint) -> None:
        self.name, self.endpoints, self.answer = name, endpoints, answer
        self.seen: list[Frames] = []
        self.back: list[str] = []
        self.lost: list[str] = []

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Any]:
        self.seen.append(frames)
        return self.answer(socket, frames)

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Iterable[Any]:
        return ()

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Any]:
        self.back.append(reason)
        return ()

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Any]:
        self.lost.append(socket)
        return ()


@pytest.fixture
def peer(real: None) -> Iterable[Any]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.set_hwm(10_000)
        socket.setsockopt(zmq.RCVTIMEO, 20_000)
        socket.linger = 0
        yield socket


def hub(answer: Any = lambda socket, frames: (), **more: Any) -> Part:
    return Part("hub", answer, inside=Endpoint(kind="ROUTER", bind="@hub", watch_peers=True, **more))


def spoke(answer: Any = lambda socket, frames: (), **more: Any) -> Part:
    return Part("spoke", answer, out=Endpoint(kind="DEALER", connect="@hub", **more))


def together(*parts: Part, **limits: Any) -> tuple[Container, list[ServiceHost]]:
    container = Container()
    hosts = [ServiceHost(part, limits=HostLimits(**limits)) for part in parts]
    for host in hosts:
        container.add(host)
    return container, hosts


def deliver(container: Container, hosts: list[ServiceHost]) -> None:
    for _ in range(10):
        assert not any(host.take_sends() for host in hosts)
        for receiver in container.ready:
            receiver.deliver(1.0)


def test_frames_go_both_ways_and_the_hub_knows_who_sent_them():
    one, other = hub(lambda socket, frames: [(socket, (*frames, b"too"))]), spoke()
    container, hosts = together(one, other)
    hosts[1].sends.append(("out", (b"hello", bytearray(b"you"))))
    deliver(container, hosts)
    assert (one.seen, other.seen) == ([(b"spoke/out", b"hello", b"you")], [(b"hello", b"you", b"too")])
    assert [(host.counts.received, host.counts.sent) for host in hosts] == [(1, 1), (1, 1)]


@pytest.mark.parametrize(
    ("frames", "reason"), [((b"nobody", b"x"), "EHOSTUNREACH"), ((b"spoke/out", bytes(2000)), "EMSGSIZE")]
)
def test_what_cannot_be_delivered_comes_back(frames: Frames, reason: str):
    one, other = hub(), spoke(max_message=1000)
    container, hosts = together(one, other)
    hosts[0].sends.append(("inside", frames))
    deliver(container, hosts)
    assert (one.back, other.seen) == ([reason], [])


@pytest.mark.parametrize("frames", [(b"spoke/out",), (), [b"spoke/out", b"x"], (b"spoke/out", 7)])
def test_a_malformed_message_is_counted_as_an_error_of_its_sender(frames: Any):
    container, hosts = together(hub(), spoke())
    hosts[0].sends.append(("inside", frames))
    deliver(container, hosts)
    assert (hosts[0].counts.errors, hosts[1].counts.errors) == (1, 0)


def test_nobody_there_or_a_full_queue_is_told_as_over_a_socket():
    alone = spoke()
    container, hosts = together(alone)
    hosts[0].sends.append(("out", (b"x",)))
    deliver(container, hosts)
    assert alone.back == ["EAGAIN"]
    one, other = hub(high_water=2), spoke()
    container, hosts = together(one, other)
    hosts[1].sends += [("out", (b"%d" % number,)) for number in range(3)]
    deliver(container, hosts)
    assert (len(one.seen), other.back) == (2, ["EAGAIN"])


def test_large_frames_are_blobs_only_for_those_who_want_them():
    class Blob:
        def __len__(self) -> int:
            return 5000

        def __bytes__(self) -> bytes:
            return bytes(5000)

    for blob_over, kind in ((None, bytes), (1000, Blob)):
        one, other = hub(), spoke(blob_over=blob_over)
        container, hosts = together(one, other)
        hosts[1].in_process["out"].__self__.post((Blob(),))
        deliver(container, hosts)
        assert type(other.seen[0][0]) is kind


def test_a_peer_in_quarantine_is_lost_and_cannot_be_reached():
    def fail(socket: str, frames: Frames) -> Any:
        raise ValueError("broken")

    one, other = hub(), spoke(fail)
    container, hosts = together(one, other, errors=1)
    hosts[0].sends += [("inside", (b"spoke/out", b"x"))]
    deliver(container, hosts)
    assert (hosts[1].quarantined, one.lost) == (True, ["inside"])
    hosts[0].sends += [("inside", (b"spoke/out", b"x"))]
    deliver(container, hosts)
    assert one.back == ["EHOSTUNREACH"]
    assert container.quarantined()[0]["service"] == "spoke"
    assert container.resume("spoke") == ["spoke"]
    hosts[0].sends += [("inside", (b"spoke/out", b"x"))]
    deliver(container, hosts)
    assert len(other.seen) == 2


def test_a_service_that_is_removed_cannot_be_reached_and_its_address_is_free():
    one, other = hub(), spoke()
    container, hosts = together(one, other)
    with pytest.raises(ValueError, match="in use"):
        container.add(ServiceHost(hub()))
    container.remove(hosts[0])
    container.add(ServiceHost(again := hub()))
    hosts[1].sends.append(("out", (b"x",)))
    deliver(container, hosts)
    assert (one.seen, again.seen) == ([], [(b"spoke/out", b"x")])


@pytest.mark.parametrize(
    "endpoint",
    [
        {"kind": "ROUTER", "connect": "@hub"},
        {"kind": "DEALER", "bind": "@hub"},
        {"kind": "PAIR", "connect": "@hub"},
        {"kind": "ROUTER", "bind": ("@hub", "ipc:///tmp/hub")},
    ],
)
def test_an_in_process_address_stands_alone_between_router_and_dealers(endpoint: dict[str, Any]):
    with pytest.raises(ValueError, match="@hub"):
        Endpoint(**endpoint)


def test_a_script_plays_the_other_end():
    script = Script(spoke(lambda socket, frames: [(socket, frames[::-1])]))
    script.feed("out", "a", "b")
    script.expect("out", "b", "a")


@pytest.mark.parametrize("implementation", KINDS)
def test_the_loop_delivers_both_ways_within_one_iteration(peer: Any, tmp_path: Any, implementation: str):
    address = f"ipc://{tmp_path}/front"

    def relay(socket: str, frames: Frames) -> Any:
        return [("out", frames)] if socket == "front" else [("front", frames)]

    service = spoke(relay)
    service.endpoints["front"] = Endpoint(kind="ROUTER", bind=address)
    loop = Loop(WireSettings(implementation=implementation, linger_ms=0))
    try:
        for part in (hub(lambda socket, frames: [(socket, (*frames, b"back"))]), service):
            loop.add(ServiceHost(part))
        peer.connect(address)
        peer.send(b"there")
        while not service.seen:
            loop.run_once(1.0)
        assert peer.recv_multipart() == [b"there", b"back"]
    finally:
        loop.finish(1)
        loop.close()


@pytest.mark.skipif(bool(native_problem()), reason="no native wire")
def test_a_busy_socket_is_served_alone_until_something_goes_inside(peer: Any, tmp_path: Any):
    address, most = f"ipc://{tmp_path}/front", 2000

    def relay(socket: str, frames: Frames) -> Any:
        if socket == "front" and int(frames[1]) % 50 == 0:
            return [("out", frames)]
        return [("front", frames)]

    service = spoke(relay)
    service.endpoints["front"] = Endpoint(kind="ROUTER", bind=address, high_water=2 * most)
    loop = Loop(WireSettings(implementation="native", linger_ms=0))
    try:
        for part in (hub(lambda socket, frames: [(socket, frames)]), service):
            loop.add(ServiceHost(part))
        peer.connect(address)
        for number in range(most):
            peer.send(b"%d" % number)
        while loop.stations[1].host.counts.received < most + most // 50:
            loop.run_once(1.0)
            if loop._busy is not None:
                loop._rush(*loop._busy)
        assert sorted(int(peer.recv()) for _ in range(most)) == list(range(most))
        assert loop.stations[1].host.counts.errors == 0
    finally:
        loop.finish(1)
        loop.close()


def test_nodes_of_the_simulated_network_have_services_that_talk_inside():
    net = SimNetwork(seed=1)
    parts = [hub(lambda socket, frames: [(socket, frames)]), spoke(lambda socket, frames: [("front", frames)])]
    parts[1].endpoints["front"] = Endpoint(kind="ROUTER", bind="tcp://hub")
    parts[1].answer = lambda socket, frames: [("out", frames)] if socket == "front" else [("front", frames)]
    client = Part("client", front=Endpoint(kind="DEALER", connect="tcp://hub"))
    net.add("broker", lambda node: parts)
    node = net.add("client", lambda node: [client])
    node.hosts[0].host.sends.append(("front", (b"hello",)))
    node.hosts[0].begin()
    assert net.run_until(lambda: client.seen)
    assert (client.seen, len(parts[0].seen)) == ([(b"hello",)], 1)
