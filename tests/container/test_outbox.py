from __future__ import annotations

import tracemalloc
from collections import Counter, defaultdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.container.outbox import FRAME_COST, FULL, GONE, GRAIN, LONGEST_PAUSE, MESSAGE_COST, RETRY_AFTER, Outbox
from scale0_core.service import Send

SOON = RETRY_AFTER + 2 * GRAIN  # deadlines may be late by a step


def message(peer: str, body: str = "x") -> Send:
    return ("front", (peer.encode(), body.encode()))


def cost(send: Send) -> int:
    return MESSAGE_COST + FRAME_COST * len(send[1]) + sum(map(len, send[1]))


class Peers:
    """The wire's side: each peer has room for so many messages, or is gone."""

    def __init__(self, **room: int) -> None:
        self.room: dict[str, int | None] = dict(room)
        self.delivered: dict[str, list[str]] = defaultdict(list)
        self.tries: Counter[str] = Counter()

    def send(self, sends: list[Send]) -> list[tuple[int, str]]:
        errors: list[tuple[int, str]] = []
        failed: dict[str, str] = {}
        for index, send in enumerate(sends):
            if not isinstance(send[1], tuple) or not send[1]:
                errors.append((index, "malformed"))
                continue
            peer, body = (frame.decode() for frame in send[1])
            if peer not in failed:
                self.tries[peer] += 1
                room = self.room.get(peer, 10**9)
                if room:
                    self.room[peer] = room - 1
                    self.delivered[peer].append(body)
                    continue
                failed[peer] = GONE if room is None else FULL
            errors.append((index, failed[peer]))
        return errors


def outbox(most_bytes: int = 100_000) -> Outbox:
    return Outbox({"front"}, most_bytes)


def refused(outcome) -> list[tuple[str, str]]:
    return [(failure.frames[1].decode(), failure.reason) for failure in outcome.failures]


def test_an_empty_outbox_lets_everything_pass():
    box, peers = outbox(), Peers()
    outcome = box.send([message("a"), message("b")], 1.0, peers.send)
    assert (outcome.sent, outcome.failures, outcome.delayed, box.due) == (2, [], [], None)


def test_what_a_full_queue_refused_is_retried_before_what_follows():
    box, peers = outbox(), Peers(a=0)
    outcome = box.send([message("a", "1"), message("a", "2")], 1.0, peers.send)
    assert (outcome.sent, outcome.delayed) == (0, [message("a", "1"), message("a", "2")])
    assert box.due is not None
    assert 1.0 + RETRY_AFTER <= box.due <= 1.0 + SOON
    peers.room["a"] = 9
    assert box.send([message("b", "1"), message("a", "3")], 1.0, peers.send).sent == 1
    assert peers.delivered == {"b": ["1"]}
    outcome = box.send([message("a", "4")], box.due, peers.send)
    assert (outcome.sent, outcome.left) == (4, [message("a", body) for body in "123"])
    assert peers.delivered["a"] == ["1", "2", "3", "4"]
    assert (len(box), box.due, box.cost) == (0, None, 0)


def test_a_retry_looks_at_the_first_message_of_each_peer_only():
    box, peers = outbox(10**9), Peers(deaf=0, deafer=0, slow=0)
    for name in ("deaf", "deafer", "slow"):
        box.send([message(name, str(number)) for number in range(5000)], 1.0, peers.send)
    peers.tries.clear()
    peers.room["slow"] = 3
    outcome = box.send([], 1.0 + SOON, peers.send)
    assert peers.delivered == {"slow": ["0", "1", "2"]}
    assert (outcome.sent, len(box)) == (3, 14_997)
    assert outcome.delayed == [message("deaf", "0"), message("deafer", "0"), message("slow", "3")]
    assert peers.tries == {"deaf": 1, "deafer": 1, "slow": 4}


def test_peers_that_take_nothing_are_tried_ever_more_rarely_and_one_that_reads_as_often_as_before():
    deaf = [f"deaf{number}" for number in range(100)]
    box, peers = outbox(10**9), Peers(**dict.fromkeys(deaf, 0), slow=0)
    box.send([message(peer, str(number)) for peer in [*deaf, "slow"] for number in range(2000)], 0.0, peers.send)
    peers.tries.clear()
    now, ticks = 0.0, 0
    while now < 10.0:
        assert box.due is not None
        now, ticks = box.due, ticks + 1
        peers.room["slow"] = 1
        box.send([], now, peers.send)
    pauses = 10.0 / LONGEST_PAUSE + 6  # those that double
    assert all(peers.tries[peer] <= pauses for peer in deaf)
    # the one that reads has taken a message at each retry
    assert len(peers.delivered["slow"]) >= 10.0 / SOON - 1
    assert peers.tries.total() <= len(deaf) * pauses + 2 * ticks
    peers.room["deaf0"] = 5000
    box.send([], now + LONGEST_PAUSE + GRAIN, peers.send)
    assert peers.delivered["deaf0"] == [str(number) for number in range(2000)]


def test_a_peer_may_keep_as_much_as_is_free_and_not_a_byte_more():
    one = cost(message("a", "1"))
    box, peers = outbox(8 * one), Peers(a=0, b=0, c=0)
    outcome = box.send([message("a", body) for body in "12345"], 1.0, peers.send)
    assert (len(outcome.delayed), refused(outcome)) == (4, [("5", FULL)])
    outcome = box.send([message("b", body) for body in "123"], 1.0, peers.send)
    assert (len(outcome.delayed), refused(outcome)) == (2, [("3", FULL)])
    outcome = box.send([message("c", body) for body in "12"], 1.0, peers.send)
    assert (len(outcome.delayed), refused(outcome)) == (1, [("2", FULL)])
    assert box.cost == 7 * one
    tight, peers = outbox(8 * one - 1), Peers(a=0)
    assert len(tight.send([message("a", body) for body in "12345"], 1.0, peers.send).delayed) == 3


def test_too_much_is_refused_and_nothing_overtakes_it():
    box, peers = outbox(2 * cost(message("a", "12345")) + 2), Peers(a=0, b=0)
    box.send([message("a", "12345")], 1.0, peers.send)
    outcome = box.send([message("a", "1234567"), message("a", "1")], 1.0, peers.send)
    assert refused(outcome) == [("1234567", FULL), ("1", FULL)]
    # nor where nothing is kept of a peer yet
    assert refused(box.send([message("b", "1" * 999), message("b", "")], 1.0, peers.send)) == [
        ("1" * 999, FULL),
        ("", FULL),
    ]
    peers.room["a"] = 2
    outcome = box.send([message("a", "2")], 1.0 + SOON, peers.send)
    assert peers.delivered["a"] == ["12345", "2"]


def test_what_is_counted_is_not_less_than_the_memory_that_is_used():
    box, many = outbox(10**9), 20_000
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    sends: list[Send] = [("front", (b"a", b"%d" % number)) for number in range(many)]
    box.send(sends, 1.0, lambda sends: [(index, FULL) for index in range(len(sends))])
    del sends
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert len(box) == many
    assert used <= box.cost * 1.05
    box.give_up("front", b"a")
    assert (len(box), box.cost, box.due) == (0, 0, None)


def test_a_peer_that_is_gone_gets_nothing_more_and_all_of_it_comes_back():
    box, peers = outbox(10**6), Peers(a=0, b=0)
    box.send([message("a", str(number)) for number in range(300)] + [message("b")], 1.0, peers.send)
    peers.room["a"] = None
    outcome = box.send([message("a", "300")], 1.0 + SOON, peers.send)
    assert refused(outcome) == [(str(number), GONE) for number in range(301)]
    assert len(box) == 1


def test_only_routers_are_helped():
    box, peers = outbox(), Peers(a=0)
    outcome = box.send([("back", (b"a", b"x"))], 1.0, peers.send)
    assert (refused(outcome), len(box)) == ([("x", FULL)], 0)


@pytest.mark.parametrize("bad", [("front", ()), ("front", 5), ("front", (b"a", 5)), ("front", (b"a", None))])
def test_malformed_sends_are_named_also_when_others_wait(bad):
    box = outbox()
    box.send([message("a")], 1.0, lambda sends: [(0, FULL)])
    outcome = box.send([bad], 1.0, lambda sends: [(index, "malformed") for index in range(len(sends))])
    assert [failure.reason for failure in outcome.failures] == ["malformed"]
    assert len(box) == 1


def test_a_frame_that_changed_while_it_waited_harms_nothing_else():
    box = outbox()
    view = memoryview(b"body")
    box.send([("front", (b"a", view)), message("a", "2")], 1.0, lambda sends: [(0, FULL), (1, FULL)])  # type: ignore[list-item]
    view.release()
    outcome = box.send(
        [], 1.0 + SOON, lambda sends: [(0, "malformed")] if len(sends) == 1 and sends[0][1][1] is view else []
    )
    assert [failure.reason for failure in outcome.failures] == ["malformed"]
    assert (outcome.left, len(box), box.cost) == ([message("a", "2")], 0, 0)


@settings(deadline=None)  # the time of one example says more about the machine
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 300), st.sampled_from(["send", "send", "wait"]),
            st.tuples(st.integers(0, 3), st.integers(0, 3)),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_messages_of_a_peer_stay_in_order_and_each_has_one_outcome(steps):
    box, now, number, peers = outbox(most_bytes=3000), 1.0, 0, Peers()
    failed: list[int] = []
    for peer, size, action, (room_a, room_b) in steps:
        peers.room = {"a": room_a, "b": room_b}
        sends = []
        if action == "send":
            sends.append(message(peer, f"{number}:" + "x" * size))
            number += 1
        else:
            now += LONGEST_PAUSE / 2
        outcome = box.send(sends, now, peers.send)
        failed += [int(body.split(":")[0]) for body, _ in refused(outcome)]
        assert box.cost == sum(map(cost, box.waiting())) <= 3000
        assert (box.due is None) == (len(box) == 0)
    delivered = {peer: [int(body.split(":")[0]) for body in bodies] for peer, bodies in peers.delivered.items()}
    for numbers in delivered.values():
        assert numbers == sorted(numbers)
    waiting = [int(send[1][1].split(b":")[0]) for send in box.waiting()]
    assert sorted([*delivered.get("a", ()), *delivered.get("b", ()), *failed, *waiting]) == list(range(number))


def test_what_waits_for_a_peer_that_is_left_is_given_back_and_the_rest_stays():
    box, peers = outbox(8 * cost(message("a", "1"))), Peers(a=0, b=0, c=0)
    box.send([message("a", "1"), message("b", "1"), message("a", "2")], 1.0, peers.send)
    assert box.give_up("front", b"nobody") == []
    assert box.give_up("other", b"a") == []
    assert box.give_up("front", b"a") == [message("a", "1"), message("a", "2")]
    assert box.send([message("c", "1"), message("c", "2"), message("c", "3")], 1.0, peers.send).failures == []
    peers.room["a"] = 1
    assert box.send([message("a", "3")], 1.0, peers.send).sent == 1
    assert box.give_up("front", b"b") == [message("b", "1")]
    assert len(box.give_up("front", b"c")) == 3
    assert (len(box), box.due, box.cost) == (0, None, 0)
