"""SimNetwork: each kind of socket keeps ZeroMQ's rules."""

from __future__ import annotations

import pytest

from scale0_core.service import Endpoint
from scale0_core.testing import SimFailure, SimNetwork

HUB = "tcp://hub:1"
SECOND = "tcp://second:1"
SETTLED = 1.0
"""By then every connection stands."""


class Probe:
    """Sends what its plan says when it says so, answers by a function, and remembers what came."""

    def __init__(self, *plan, answer=None, **endpoint):
        self.name = "probe"
        self.endpoints = {"s": Endpoint(**endpoint)}
        self.plan = list(plan)
        self.answer = answer
        self.received = []
        self.returned = []

    def receive(self, socket, frames, now):
        self.received.append(frames)
        return [("s", self.answer(frames))] if self.answer else ()

    def next_deadline(self):
        return self.plan[0][0] if self.plan else None

    def on_deadline(self, now):
        return [("s", self.plan.pop(0)[1])]

    def on_undelivered(self, socket, frames, reason, now):
        self.returned.append((frames, reason))
        return ()


def network(seed=0, **probes):
    net = SimNetwork(seed)
    for name, probe in probes.items():
        net.add(name, lambda node, probe=probe: [probe])
    return net


def test_router_names_its_peers_and_answers_each():
    hub = Probe(kind="ROUTER", bind=[HUB], answer=lambda frames: frames)
    one = Probe((SETTLED, (b"a",)), kind="DEALER", connect=[HUB])
    two = Probe((SETTLED, (b"b", b"")), kind="DEALER", connect=[HUB])
    network(hub=hub, one=one, two=two).run(2)
    assert one.received == [(b"a",)]
    assert two.received == [(b"b", b"")]
    peers = {frames[0] for frames in hub.received}
    assert len(peers) == 2
    assert all(len(peer) == 5 and peer[:1] == b"\0" for peer in peers)


def test_router_gives_a_new_routing_id_after_a_reconnect():
    hub = Probe(kind="ROUTER", bind=[HUB])
    one = Probe((SETTLED, (b"a",)), (5.0, (b"b",)), kind="DEALER", connect=[HUB])
    net = network(hub=hub, one=one)
    net.at(2.0, lambda: net.partition(["hub"], ["one"]))
    net.at(3.0, net.heal)
    net.run(6)
    (first, _), (second, _) = hub.received
    assert first != second


def test_router_takes_the_routing_id_a_peer_chose():
    hub = Probe(kind="ROUTER", bind=[HUB])
    one = Probe((SETTLED, (b"a",)), kind="DEALER", connect=[HUB], options={"ROUTING_ID": b"me"})
    same = Probe((SETTLED, (b"b",)), kind="DEALER", connect=[HUB], options={"ROUTING_ID": b"me"})
    net = network(hub=hub, one=one, same=same)
    net.run(2)
    assert len(hub.received) == 1, "the second one must wait"
    net.kill("one")
    net.kill("same")
    net.restart("same")
    net.run(2)
    assert {frames[0] for frames in hub.received} == {b"me"}


def test_router_says_when_a_peer_is_unknown_or_gone():
    hub = Probe(kind="ROUTER", bind=[HUB], answer=lambda frames: frames)
    one = Probe((SETTLED, (b"a",)), kind="DEALER", connect=[HUB])
    net = network(hub=hub, one=one)
    net.run(2)
    peer = hub.received[0][0]
    net.kill("one")
    net.run(1)
    hub.plan = [(net.now + 1, (peer, b"late")), (net.now + 2, (b"nobody", b"x"))]
    net.nodes["hub"].hosts[0].begin()
    net.run(3)
    assert hub.returned == [((peer, b"late"), "EHOSTUNREACH"), ((b"nobody", b"x"), "EHOSTUNREACH")]
    assert net.nodes["hub"].service_hosts[0].counts.undelivered["s", "EHOSTUNREACH"] == 2
    assert net.counts.dropped["EHOSTUNREACH"] == 2


def test_router_says_when_a_peer_is_full():
    hub = Probe(kind="ROUTER", bind=[HUB], high_water=2)
    one = Probe((SETTLED, (b"a",)), kind="DEALER", connect=[HUB])
    net = network(hub=hub, one=one)
    net.run(2)
    peer = hub.received[0][0]
    net.pause("one")
    hub.plan = [(2.1 + n / 10, (peer, b"%d" % n)) for n in range(3)]
    net.nodes["hub"].hosts[0].begin()
    net.run(1)
    assert hub.returned == [((peer, b"2"), "EAGAIN")]
    assert net.in_flight == 2
    net.resume("one")
    assert one.received == [(b"0",), (b"1",)]


def test_dealer_sends_to_each_peer_in_turn():
    one, two = Probe(kind="DEALER", bind=[HUB]), Probe(kind="DEALER", bind=[SECOND])
    plan = [(SETTLED + n / 10, (b"%d" % n,)) for n in range(6)]
    network(one=one, two=two, client=Probe(*plan, kind="DEALER", connect=[HUB, SECOND])).run(2)
    assert sorted(one.received + two.received) == [frames for _, frames in plan]
    assert len(one.received) == len(two.received) == 3


@pytest.mark.parametrize(("sender", "receiver"), [("DEALER", "ROUTER"), ("PUSH", "PULL"), ("PAIR", "PAIR")])
def test_messages_wait_for_a_connection_up_to_high_water(sender, receiver):
    client = Probe(*[(n / 10, (b"%d" % n,)) for n in range(5)], kind=sender, connect=[HUB], high_water=3)
    net = network(client=client)
    net.run(2)
    assert client.returned == [((b"3",), "EAGAIN"), ((b"4",), "EAGAIN")]
    hub = Probe(kind=receiver, bind=[HUB])
    net.add("hub", lambda node: [hub])
    net.run(1)
    assert [frames[-1] for frames in hub.received] == [b"0", b"1", b"2"]


def test_a_socket_that_only_binds_keeps_nothing_for_peers_to_come():
    push = Probe((0.0, (b"x",)), kind="PUSH", bind=[HUB])
    network(push=push).run(1)
    assert push.returned == [((b"x",), "EAGAIN")]


def test_req_and_rep_hide_the_delimiter_and_keep_the_envelope():
    rep = Probe(kind="REP", bind=[HUB], answer=lambda frames: (b"re", *frames))
    req = Probe((SETTLED, (b"q", b"")), kind="REQ", connect=[HUB])
    dealer = Probe((SETTLED, (b"e1", b"e2", b"", b"q2")), kind="DEALER", connect=[HUB])
    rude = Probe((SETTLED, (b"no delimiter",)), kind="DEALER", connect=[HUB])
    net = network(rep=rep, req=req, dealer=dealer, rude=rude)
    net.run(2)
    assert sorted(rep.received) == [(b"q", b""), (b"q2",)]
    assert req.received == [(b"re", b"q", b"")]
    assert dealer.received == [(b"e1", b"e2", b"", b"re", b"q2")]
    assert net.counts.dropped == {"malformed or out of turn": 1}


def test_req_to_router_shows_the_delimiter():
    hub = Probe(kind="ROUTER", bind=[HUB], answer=lambda frames: frames)
    req = Probe((SETTLED, (b"q",)), kind="REQ", connect=[HUB])
    network(hub=hub, req=req).run(2)
    assert [frames[1:] for frames in hub.received] == [(b"", b"q")]
    assert req.received == [(b"q",)]


def test_req_and_rep_take_turns():
    silent = Probe(kind="REP", bind=[HUB])
    req = Probe((1.0, (b"1",)), (1.5, (b"2",)), kind="REQ", connect=[HUB])
    relaxed = Probe((1.1, (b"3",)), (1.6, (b"4",)), kind="REQ", connect=[HUB], options={"REQ_RELAXED": 1})
    net = network(silent=silent, req=req, relaxed=relaxed)
    net.run(2)
    assert req.returned == [((b"2",), "EFSM")]
    assert relaxed.returned == []
    assert silent.received == [(b"1",)], "a REP gets the next request when it has answered"
    assert net.in_flight == 2
    silent.plan = [(2.1, (b"answer",)), (2.2, (b"answer",)), (2.3, (b"answer",)), (2.4, (b"unasked",))]
    net.nodes["silent"].hosts[0].begin()
    net.run(1)
    assert silent.received == [(b"1",), (b"3",), (b"4",)]
    assert silent.returned == [((b"unasked",), "EFSM")]
    assert req.received == [(b"answer",)]


def test_the_answer_of_a_rep_to_an_asker_that_is_gone_is_counted():
    silent = Probe(kind="REP", bind=[HUB])
    req = Probe((1.0, (b"1",)), kind="REQ", connect=[HUB])
    net = network(silent=silent, req=req)
    net.at(2.0, lambda: net.kill("req"))
    silent.plan = [(3.0, (b"answer",))]
    net.run(4)
    assert silent.received == [(b"1",)]
    assert net.counts.dropped == {"asker gone": 1}


def test_pub_sends_to_those_who_subscribed_to_the_beginning():
    plan = [(SETTLED, (b"ab1", b"x")), (1.1, (b"b2",)), (1.2, (b"c3",))]
    pub = Probe(*plan, kind="PUB", bind=[HUB])
    a = Probe(kind="SUB", connect=[HUB], subscribe=[b"a"])
    ab = Probe(kind="SUB", connect=[HUB], subscribe=[b"ab", b"b"])
    none = Probe(kind="SUB", connect=[HUB])
    net = network(pub=pub, a=a, ab=ab, none=none)
    net.run(2)
    assert a.received == [(b"ab1", b"x")]
    assert ab.received == [(b"ab1", b"x"), (b"b2",)]
    assert none.received == []
    assert (net.counts.handed, net.counts.delivered, dict(net.counts.dropped)) == (4, 3, {"no subscriber": 1})


def test_pub_drops_for_a_subscriber_that_is_full():
    pub = Probe(*[(SETTLED + n / 10, (b"x",)) for n in range(5)], kind="PUB", bind=[HUB], high_water=2)
    sub = Probe(kind="SUB", connect=[HUB], subscribe=[b""])
    net = network(pub=pub, sub=sub)
    net.at(0.9, lambda: net.pause("sub"))
    net.run(2)
    assert net.counts.dropped == {"subscriber full": 3}
    assert pub.returned == []


def test_xpub_learns_of_subscriptions_once_and_of_their_end():
    xpub = Probe(kind="XPUB", bind=[HUB])
    subs = {n: Probe(kind="SUB", connect=[HUB], subscribe=[b"t"]) for n in ("one", "two")}
    net = network(xpub=xpub, **subs)
    net.run(1)
    assert xpub.received == [(b"\1t",)]
    net.kill("one")
    net.run(1)
    assert xpub.received == [(b"\1t",)]
    net.kill("two")
    net.run(1)
    assert xpub.received == [(b"\1t",), (b"\0t",)]


def test_pair_takes_one_peer_only():
    pair = Probe(kind="PAIR", bind=[HUB])
    one = Probe((SETTLED, (b"x",)), kind="PAIR", connect=[HUB])
    two = Probe((SETTLED, (b"x",)), kind="PAIR", connect=[HUB])
    net = network(pair=pair, one=one, two=two)
    net.run(2)
    assert pair.received == [(b"x",)]
    assert net.in_flight == 1


def test_sockets_that_only_receive_do_not_send():
    pull = Probe((0.0, (b"x",)), kind="PULL", bind=[HUB])
    with pytest.raises(SimFailure, match="a PULL socket cannot send"):
        network(pull=pull).run(1)


def test_kinds_that_do_not_fit_are_refused():
    with pytest.raises(SimFailure, match="PUSH cannot talk to ROUTER"):
        network(hub=Probe(kind="ROUTER", bind=[HUB]), push=Probe(kind="PUSH", connect=[HUB])).run(1)


def test_an_address_is_bound_once():
    with pytest.raises(ValueError, match="in use by node 'one'"):
        network(one=Probe(kind="ROUTER", bind=[HUB]), two=Probe(kind="ROUTER", bind=[HUB]))


def test_a_message_over_the_limit_is_dropped_and_counted():
    hub = Probe(kind="PULL", bind=[HUB], max_message=10)
    push = Probe((1.0, (b"x" * 11,)), (1.1, (b"x" * 10,)), kind="PUSH", connect=[HUB])
    net = network(hub=hub, push=push)
    net.run(2)
    assert hub.received == [(b"x" * 10,)]
    assert net.counts.dropped == {"EMSGSIZE": 1}


def test_req_takes_an_answer_only_from_the_peer_it_asked_last():
    one, two = Probe(kind="ROUTER", bind=[HUB]), Probe(kind="ROUTER", bind=[SECOND])
    req = Probe((1.0, (b"first",)), (1.5, (b"second",)), kind="REQ", connect=[HUB, SECOND], options={"REQ_RELAXED": 1})
    net = network(one=one, two=two, req=req)
    net.run(2)
    for name, probe in (("one", one), ("two", two)):
        ((peer, _, question),) = probe.received
        probe.plan = [(2.1 if question == b"first" else 2.5, (peer, b"", b"to " + question))]
        net.nodes[name].hosts[0].begin()
    net.run(1)
    assert req.received == [(b"to second",)]
    assert net.counts.dropped == {"malformed or out of turn": 1}
