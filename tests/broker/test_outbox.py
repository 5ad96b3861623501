from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0_core.broker.outbox import FULL, RETRY_AFTER, Outbox


def message(peer: str, body: str = "x") -> tuple[str, tuple[bytes, ...]]:
    return ("front", (peer.encode(), body.encode()))


def outbox(most_bytes: int = 1000) -> Outbox:
    return Outbox({"front"}, most_bytes)


def test_an_empty_outbox_lets_everything_pass():
    box = outbox()
    sends = [message("a"), message("b")]
    assert box.outgoing(sends, 1.0) == (sends, [])
    assert box.due is None


def test_what_a_full_queue_refused_is_tried_again_before_what_follows():
    box = outbox()
    assert box.keep([message("a", "1"), message("a", "2")], 1.0) == []
    assert box.due == 1.0 + RETRY_AFTER
    assert box.outgoing([message("b", "1"), message("a", "3")], 1.0) == ([message("b", "1")], [])
    now = 1.0 + RETRY_AFTER
    assert box.outgoing([message("a", "4")], now)[0] == [message("a", body) for body in "1234"]
    assert len(box) == 0


def test_too_much_is_refused_and_nothing_overtakes_it():
    box = outbox(most_bytes=10)
    assert box.keep([message("a", "12345")], 1.0) == []
    large, small = message("a", "1234567"), message("a", "1")
    assert box.keep([large, small], 1.0) == [large, small]
    assert box.outgoing([message("a", "2")], 1.0) == ([], [message("a", "2")])
    assert box.outgoing([], 2.0) == ([message("a", "12345")], [])
    assert box.keep([small], 2.0) == []


def test_only_routers_are_helped():
    box = outbox()
    assert box.keeps(message("a"), FULL)
    assert not box.keeps(("back", (b"a", b"x")), FULL)
    assert not box.keeps(message("a"), "EHOSTUNREACH")


def test_malformed_sends_pass_so_that_the_wire_can_name_them():
    box = outbox()
    box.keep([message("a")], 1.0)
    bad = [("front", ()), "nonsense", ("front", 5)]
    assert box.outgoing(bad, 1.0) == (bad, [])  # type: ignore[arg-type]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 30), st.sampled_from(["send", "send", "wait"]),
            st.frozensets(st.sampled_from("ab")),
        ),
        max_size=60,
    )
)  # fmt: skip
def test_messages_of_a_peer_stay_in_order_and_each_has_one_outcome(steps):
    box, now, number = outbox(most_bytes=100), 1.0, 0
    delivered: dict[str, list[int]] = {"a": [], "b": []}
    refused: list[int] = []
    for peer, size, action, full in steps:
        sends = []
        if action == "send":
            sends.append(message(peer, f"{number}:" + "x" * size))
            number += 1
        else:
            now += RETRY_AFTER
        attempt, no = box.outgoing(sends, now)
        failed = [send for send in attempt if send[1][0].decode() in full]
        for send in attempt:
            if send not in failed:
                delivered[send[1][0].decode()].append(int(send[1][1].split(b":")[0]))
        no = no + box.keep(failed, now)
        refused += [int(send[1][1].split(b":")[0]) for send in no]
    for numbers in delivered.values():
        assert numbers == sorted(numbers)
    attempt, _ = box.outgoing([], now + 1)
    waiting = [int(send[1][1].split(b":")[0]) for send in attempt]
    assert sorted([*delivered["a"], *delivered["b"], *refused, *waiting]) == list(range(number))


def test_what_waits_for_a_peer_that_is_left_is_given_back_and_the_rest_stays():
    box = outbox(most_bytes=6)
    assert box.keep([message("a", "1"), message("b", "1"), message("a", "2")], 1.0) == []
    assert box.give_up("front", b"nobody") == []
    assert box.give_up("other", b"a") == []
    assert box.give_up("front", b"a") == [message("a", "1"), message("a", "2")]
    assert box.keep([message("c", "123")], 1.0) == []  # their bytes are free again
    assert box.outgoing([message("a", "3")], 1.0) == ([message("a", "3")], [])
    assert box.give_up("front", b"b") + box.give_up("front", b"c") == [message("b", "1"), message("c", "123")]
    assert (len(box), box.due) == (0, None)
