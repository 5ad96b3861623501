"""Connections at run time in the testing kit: Script, check_service and SimNetwork."""

from __future__ import annotations

import pytest

from scale0_core.container.connections import ID_IN_USE, REUSE_AFTER
from scale0_core.errors import ServiceFaultError
from scale0_core.service import Connect, Disconnect, Endpoint
from scale0_core.testing import ConformanceError, Script, SimNetwork, check_service

HUB, SECOND = "tcp://hub:1", "tcp://second:1"
SETTLED = 1.0
"""By then every connection stands."""


class Mover:
    """Goes where a message on ``front`` says, says hello there, and tells who refused."""

    name = "mover"

    def __init__(self):
        self.endpoints = {"front": Endpoint(kind="ROUTER", bind="tcp://mover:1"), "up": Endpoint(kind="DEALER")}
        self.father = ""

    def receive(self, socket, frames, now):
        if socket != "front":
            return ()
        old, self.father = self.father, frames[-1].decode(errors="replace")
        leave = [Disconnect("up", old)] if old else []
        return [("up", (b"hello",)), *leave, Connect("up", self.father)]

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()

    def on_refused(self, effect, reason, now):
        return [("up", (b"refused", effect.address.encode(), reason.encode()))]


def test_connections_are_expected_like_sends_and_stand_before_those_of_their_turn():
    script = Script(Mover())
    script.feed("front", "me", HUB)
    script.expect_connect("up", HUB)
    script.expect("up", "hello")
    script.feed("front", "me", SECOND)
    script.expect_disconnect("up", HUB)
    script.expect_connect("up", SECOND)
    script.expect("up", "hello")
    script.expect_nothing()


def test_a_script_says_what_came_instead():
    script = Script(Mover())
    script.feed("front", "me", HUB)
    with pytest.raises(AssertionError, match=r"expected on 'up'.*\n.*sent was Connect"):
        script.expect("up", "hello")
    with pytest.raises(AssertionError, match=r"expected Disconnect.*\n.*sent was Connect"):
        script.expect_disconnect("up", HUB)
    with pytest.raises(AssertionError, match=r"expected nothing(.|\n)*Connect"):
        script.expect_nothing()
    script.expect_connect("up", HUB)
    with pytest.raises(AssertionError, match=r"expected Connect.*\n.*sent was 'up'"):
        script.expect_connect("up", SECOND)


def test_a_script_may_refuse():
    script = Script(Mover())
    script.refuse_connect(HUB, "EINVAL")
    script.feed("front", "me", HUB)
    script.expect("up", "hello")
    script.expect("up", "refused", HUB, "EINVAL")
    script.expect_nothing()


def test_a_service_that_connects_where_peers_say_conforms():
    check_service(Mover, samples=[("front", (b"me", HUB.encode()))])


@pytest.mark.parametrize(
    ("effect", "fault"),
    [
        (Connect("nowhere", HUB), "no such socket"),
        (Connect("up", b"tcp://hub:1"), "an address is a text"),
        (Connect("front", HUB, "name"), "a routing id bytes"),
        (Connect("up", HUB, b"name"), "only on a ROUTER"),
    ],
)
def test_what_no_peer_can_be_blamed_for_is_a_fault(effect, fault):
    mover = Mover()
    mover.receive = lambda socket, frames, now: [effect]
    with pytest.raises(ServiceFaultError, match=fault):
        Script(mover).feed("front", "me", HUB)
    with pytest.raises(ConformanceError, match=fault):
        check_service(lambda: mover)


def test_a_service_that_connects_takes_refusals():
    class Careless(Mover):
        on_refused = None

    with pytest.raises(ServiceFaultError, match="no on_refused"):
        Script(Careless()).feed("front", "me", HUB)


class Planned:
    """Returns what its plan says when it says so, and remembers what came."""

    def __init__(self, *plan, answer=None, **endpoint):
        self.name = "planned"
        self.endpoints = {"s": Endpoint(**endpoint)}
        self.plan = list(plan)
        self.answer = answer
        self.received, self.returned, self.refused = [], [], []

    def receive(self, socket, frames, now):
        self.received.append(frames)
        return [("s", self.answer(frames))] if self.answer else ()

    def next_deadline(self):
        return self.plan[0][0] if self.plan else None

    def on_deadline(self, now):
        return self.plan.pop(0)[1:]

    def on_undelivered(self, socket, frames, reason, now):
        self.returned.append((frames, reason))
        return ()

    def on_refused(self, effect, reason, now):
        self.refused.append((effect, reason))
        return ()


def hub(address=HUB, **more):
    return Planned(kind="ROUTER", bind=[address], answer=lambda frames: frames, **more)


def network(seed=0, **services):
    net = SimNetwork(seed)
    for name, service in services.items():
        net.add(name, lambda node, service=service: [service])
    return net


def test_a_simulated_dealer_changes_its_father():
    first, second = hub(), hub(SECOND)
    son = Planned(
        (1.0, Connect("s", HUB), ("s", (b"1",))),
        (2.0, Disconnect("s", HUB), ("s", (b"nobody",))),
        (3.0, Connect("s", SECOND), Connect("s", SECOND), ("s", (b"2",))),
        kind="DEALER",
    )
    network(first=first, second=second, son=son).run(5)
    assert [frames[1:] for frames in first.received] == [(b"1",)]
    assert [frames[1:] for frames in second.received] == [(b"2",)]
    assert son.received == [(b"1",), (b"2",)]
    assert son.returned == [((b"nobody",), "EAGAIN")]
    assert not son.refused


def test_what_waited_for_a_father_that_never_came_is_dropped():
    second = hub(SECOND)
    son = Planned(
        (1.0, Connect("s", HUB), ("s", (b"1",))),
        (2.0, Disconnect("s", HUB), Connect("s", SECOND), ("s", (b"2",))),
        kind="DEALER",
    )
    net = network(second=second, son=son)
    net.run(5)
    assert [frames[1:] for frames in second.received] == [(b"2",)]
    assert net.counts.dropped["disconnected"] == 1


def test_a_simulated_router_sends_by_the_id_it_gave():
    far = Planned(kind="DEALER", bind=[HUB], answer=lambda frames: frames)
    near = Planned(
        (1.0, Connect("s", HUB, b"far"), ("s", (b"far", b"1"))),
        (2.0, Connect("s", SECOND, b"far")),
        (3.0, ("s", (b"far", b"2"))),
        (4.0, Disconnect("s", HUB), Disconnect("s", HUB), ("s", (b"far", b"3"))),
        (5.0, Connect("s", HUB, b"far")),
        (6.0 + REUSE_AFTER, Connect("s", HUB, b"far"), ("s", (b"far", b"4"))),
        kind="ROUTER",
    )
    network(far=far, near=near).run(10 + REUSE_AFTER)
    assert far.received == [(b"1",), (b"2",), (b"4",)]
    assert near.received == [(b"far", b"1"), (b"far", b"2"), (b"far", b"4")]
    assert near.returned == [((b"far", b"3"), "EHOSTUNREACH")]
    assert near.refused == [(Connect("s", SECOND, b"far"), ID_IN_USE), (Connect("s", HUB, b"far"), ID_IN_USE)]


def test_a_routing_id_that_a_simulated_peer_has_is_in_use():
    stranger = Planned((1.0, ("s", (b"hello",))), kind="DEALER", connect=[HUB], options={"ROUTING_ID": b"name"})
    own = Planned((2.0, Connect("s", SECOND, b"name")), kind="ROUTER", bind=[HUB])
    network(own=own, stranger=stranger).run(3)
    assert own.refused == [(Connect("s", SECOND, b"name"), ID_IN_USE)]


def test_an_address_that_is_none_is_refused_in_the_simulation():
    son = Planned((1.0, Connect("s", "nonsense")), kind="DEALER")
    network(son=son).run(2)
    assert son.refused == [(Connect("s", "nonsense"), "malformed address")]


def test_the_peer_learns_that_it_was_left():
    own = hub()
    son = Planned((1.0, Connect("s", HUB), ("s", (b"1",))), (2.0, Disconnect("s", HUB)), kind="DEALER")
    net = network(own=own, son=son)
    net.run(3)
    identity = own.received[0][0]
    own.plan.append((net.now, ("s", (identity, b"late"))))
    net.resume("own")
    net.run(1)
    assert own.returned == [((identity, b"late"), "EHOSTUNREACH")]


class Wanderer:
    """Changes its father twice a second, and asks each of them something."""

    name = "wanderer"

    def __init__(self):
        self.endpoints = {"s": Endpoint(kind="DEALER")}
        self.at, self.moves, self.answers = "", 0, 0

    def receive(self, socket, frames, now):
        self.answers += 1
        return ()

    def next_deadline(self):
        return self.moves * 0.5

    def on_deadline(self, now):
        self.moves = int(now * 2) + 1
        old, self.at = self.at, (HUB, SECOND)[self.moves % 2]
        leave = [Disconnect("s", old)] if old else []
        return [*leave, Connect("s", self.at), ("s", (b"%d" % self.moves,))]

    def on_refused(self, effect, reason, now):
        raise AssertionError(reason)


@pytest.mark.seeds(10)
def test_every_message_is_accounted_for_when_nodes_that_move_are_killed(seed):
    def play():
        net = SimNetwork(seed, loss=0.1, duplication=0.1, reordering=0.1, trace=True)
        net.add("hub", lambda node: [hub()])
        net.add("second", lambda node: [hub(SECOND)])
        for number in range(3):
            net.add(f"w{number}", lambda node: [Wanderer()])
        for time in range(1, 20, 3):
            net.at(time + 0.05, lambda: net.restart("w0"))
            net.at(time + 0.51, lambda: net.restart("hub"))
            net.at(time + 1.0, lambda: net.partition(["w1"], ["second", "hub"]))
            net.at(time + 2.0, net.heal)
        net.run(22)
        return net

    net = play()
    wanderers = [net.nodes[f"w{number}"].services[0] for number in range(3)]
    assert all(wanderer.answers for wanderer in wanderers)
    assert net.trace == play().trace
