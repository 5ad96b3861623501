"""The traps that other brokers fell into, by their numbers in the specification; 29 to 31 are in test_titanic."""

from __future__ import annotations

import gc
import json
import time

import pytest

from scale0_majordomo import dialects
from scale0_majordomo.service.majordomo import MajordomoService

from .conversation import SOCKET, VERSIONS, WORKER_HEAD, Majordomo, conserved, nothing_left


@pytest.fixture
def majordomo():
    script = Majordomo()
    yield script
    conserved(script.service)


# --- framing ----------------------------------------------------------------------------------------------------------


def test_trap_01_the_empty_frame_is_mirrored_and_tells_the_versions_apart(majordomo):
    majordomo.ready("w1", service="one", version="0.1")
    majordomo.ready("w2", service="two", version="0.2")
    majordomo.feed(SOCKET, "c1", "", "MDPC01", "two", "x")
    majordomo.feed(SOCKET, "c2", "MDPC02", "\x01", "one", "y")
    two = majordomo.expect(SOCKET, "w2", "MDPW02", "\x02", ..., "", "x")[3]
    one = majordomo.expect(SOCKET, "w1", "", "MDPW01", "\x02", ..., "", "y")[4]
    majordomo.feed(SOCKET, "w2", "MDPW02", "\x04", two, "", "X")
    majordomo.expect(SOCKET, "c1", "", "MDPC01", "two", "X")
    majordomo.feed(SOCKET, "w1", "", "MDPW01", "\x03", one, "", "Y")
    majordomo.expect(SOCKET, "c2", "MDPC02", "\x03", "one", "Y")


@pytest.mark.parametrize(
    "frames",
    [
        (b"\xaa\xa4\x01\x04echo",),  # zeromq/majordomo
        ("MDPC0X", "\x01", "echo", "x"),  # libmdp
        ("", "MDPC02", "\x02", "echo", "x"),  # majortomo's client: the worker's numbers
        ("", "MDPC02", "echo", "x"),  # 0.1's layout
    ],
)
def test_trap_02_what_only_looks_like_0_2_is_counted_and_harms_nobody(frames, majordomo):
    majordomo.ready("w")
    majordomo.feed(SOCKET, "stranger", *frames)
    majordomo.expect_nothing()
    assert majordomo.totals["malformed"] == 1
    majordomo.ask("c")
    majordomo.gets("w", "hello")


def test_trap_03_the_numbers_of_the_versions_are_not_shared(majordomo):
    assert dialects.WORKER_WORDS[dialects.Dialect.MDP01] is not dialects.WORKER_WORDS[dialects.Dialect.MDP02]
    majordomo.ready("w1", service="s1", version="0.1")
    majordomo.ready("w2", service="s2", version="0.2")
    majordomo.feed(SOCKET, "w1", "", "MDPW01", "\x04")  # HEARTBEAT in 0.1, FINAL in 0.2
    majordomo.feed(SOCKET, "w2", "MDPW02", "\x05")  # HEARTBEAT in 0.2, DISCONNECT in 0.1
    majordomo.expect_nothing()
    assert majordomo.mmi("services", "") == (200, ["s1", "s2"])
    majordomo.feed(SOCKET, "w1", "", "MDPW01", "\x05")
    majordomo.feed(SOCKET, "w2", "MDPW02", "\x06")
    assert majordomo.mmi("services", "") == (200, [])
    majordomo.ready("w1", version="0.1")
    majordomo.feed(SOCKET, "w1", "MDPW02", "\x05")  # a version belongs to a READY
    majordomo.sent_away("w1", "0.1")


def test_trap_04_versions_are_bridged_both_ways_and_parts_are_collected_for_0_1(majordomo):
    majordomo.ready("w", version="0.2")
    majordomo.ask("c1", version="0.1")
    address = majordomo.gets("w", "hello", version="0.2")
    majordomo.part("w", address, "a")
    majordomo.part("w", address, "b")
    majordomo.expect_nothing()
    majordomo.reply("w", address, "c", version="0.2")
    majordomo.answered("c1", "a", "b", "c")
    majordomo.leave("w", "0.2")
    majordomo.ready("v", version="0.1")
    majordomo.ask("c2", version="0.2")
    majordomo.reply("v", majordomo.gets("v", "hello"), "r")
    majordomo.answered("c2", "r", version="0.2")


def test_trap_05_longer_envelopes_are_kept_and_the_worker_sees_one_address(majordomo):
    majordomo.ready("w")
    for envelope in (("\0\0\0\1", ""), ("proxy", ""), ("p1", "p2", "\0\0\0\1", "")):
        majordomo.feed(SOCKET, "c", *envelope, "MDPC01", "echo", "x")
        majordomo.reply("w", majordomo.gets("w", "x"), "r")
        majordomo.expect(SOCKET, "c", *envelope, "MDPC01", "echo", "r")


ODD = [
    ("",), ("junk",), ("", ""), ("", "MDPC01"), ("", "MDPC01", "echo"), ("", "MDPC01", "mmi.service"), ("", "MDPW01"),
    ("", "MDPW01", ""), ("", "MDPW01", "\x01"), ("", "MDPW01", "\x03"), ("", "MDPW01", "\x03", "a"),
    ("", "MDPW01", "\x03", "a", ""), ("", "MDPW01", "\x03", "a", "b", "c"), ("", "MDPW01", "\x09"), ("MDPC02",),
    ("MDPC02", "\x01"), ("MDPC02", "\x01", "echo"), ("MDPW02",), ("MDPW02", "\x01"), ("MDPW02", "\x03", "a"),
    ("MDPW02", "\x04"), ("MDPC01", "echo", "x"), ("MDPW01", "\x01", "echo"), ("S0MC01",), ("S0MW01",),
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("sender", ["stranger", "worker"])
def test_trap_06_frames_are_counted_before_they_are_used(odd, sender):
    """The messages that killed other brokers; from a worker too, which is sent away for them."""
    majordomo = Majordomo()
    majordomo.ready("worker", "good")
    majordomo.feed(SOCKET, sender, *odd)
    if sender == "worker":
        majordomo.sent_away("worker")
    majordomo.expect_nothing()
    assert majordomo.totals["malformed"] == 1
    majordomo.ask("c")
    majordomo.ask("c")
    assert len(majordomo.all_sent()) == (1 if sender == "worker" else 2)
    conserved(majordomo.service)


def test_trap_07_names_are_bytes_of_a_bounded_length_and_are_forgotten():
    majordomo = Majordomo(expiry=5.0)
    majordomo.ready("w", service="echo\0x")
    assert majordomo.mmi("service", "echo\0x") == 200
    assert majordomo.mmi("service", "echo") == 404
    majordomo.feed(SOCKET, "w2", "", "MDPW01", "\x01", b"\xff\xfe")
    assert majordomo.mmi("service", b"\xff\xfe") == 200
    assert majordomo.mmi("services", "") == (200, ["\\xff\\xfe", "echo\0x"])
    majordomo.ask("c", service="x" * 255)
    majordomo.ask("c", service="x" * 256)
    majordomo.ask("c", service="x" * 1_000_000)
    assert majordomo.totals["malformed"] == 2
    for number in range(500):
        majordomo.ask("c", service=f"invented{number}")
    majordomo.sleep(5.1)
    assert len(majordomo.service._services) == 2
    conserved(majordomo.service)


# --- liveness ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_08_busy_workers_get_heartbeats_and_may_be_silent_for_long(version):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.ask("c")
    address = majordomo.gets("w", "hello", version=version)
    assert len(majordomo.beats_of(12)) == 4, "0 in zguide"
    majordomo.beats_of(600)  # a handler that computes all the time cannot send heartbeats
    majordomo.reply("w", address, "r", version=version)
    majordomo.answered("c", "r")


def test_trap_09_a_worker_that_dies_in_mid_request_is_forgotten_and_its_request_is_not():
    majordomo = Majordomo(busy_timeout=30.0)
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.gets("w", "hello")
    majordomo.beats_of(30.25)
    assert majordomo.mmi("service", "echo") == 404
    majordomo.ready("v")
    majordomo.reply("v", majordomo.gets("v", "hello"), "r")
    majordomo.answered("c", "r")


def test_trap_10_a_live_worker_hides_no_dead_one(majordomo):
    majordomo.ready("live", service="other")
    majordomo.ready("dead")
    majordomo.live(8.0, "live")
    assert majordomo.mmi("service", "echo") == 404
    assert majordomo.mmi("service", "other") == 200
    majordomo.ready("new")
    majordomo.ask("c")
    majordomo.gets("new", "hello")


def test_trap_11_heartbeats_do_not_drift_with_traffic(majordomo):
    majordomo.ready("w", version="0.2")
    beats = 0
    for _ in range(120):
        majordomo.sleep(0.1)
        majordomo.ask("c", service="nobody")
        majordomo.beat("w", "0.2")
        beats += len(majordomo.all_sent())
    assert beats == 4, "2 in zguide"


def test_trap_11_any_word_is_life_and_liveness_may_be_generous():
    majordomo = Majordomo(liveness=10)
    majordomo.ready("slow")
    for _ in range(5):
        majordomo.beats_of(10.0)
        majordomo.beat("slow")
    assert majordomo.mmi("service", "echo") == 200


def test_trap_12_the_clock_is_the_cores_and_monotonic():
    """A service knows no time but the one it is given: here it starts far from now, and nothing is different."""
    service = MajordomoService()
    start = 1_000_000_000.0
    service.receive(SOCKET, (b"w", b"", b"MDPW01", b"\1", b"echo"), start)
    assert service.next_deadline() == start + 2.5
    assert service.on_deadline(start + 2.5) == [(SOCKET, (b"w", b"", b"MDPW01", b"\4"))]


def test_trap_13_heartbeats_are_mdps_own_and_no_option_of_the_socket():
    options = MajordomoService().endpoints[SOCKET].options
    assert not [name for name in options if "HEARTBEAT" in name or "HELLO" in name]
    assert MajordomoService().endpoints[SOCKET].high_water > 1000, "the assert of libzmq needs a low one"


# --- routing ids and reconnects ---------------------------------------------------------------------------------------


def test_trap_14_a_worker_that_reconnects_under_a_new_id_is_told_so_and_its_request_is_answered(majordomo):
    majordomo.ready("\0old")
    majordomo.ask("c")
    address = majordomo.gets("\0old", "hello")
    majordomo.reply("\0new", address, "lost")
    majordomo.sent_away("\0new")
    majordomo.ready("\0new2")
    majordomo.expect_nothing()  # the old one may live
    majordomo.refuse(SOCKET, "\0old")
    majordomo.lose_peer(SOCKET)
    majordomo.sleep(0.005)
    majordomo.sleep(0.05)  # its last words may be unread
    majordomo.reply("\0new2", majordomo.gets("\0new2", "hello"), "r")
    majordomo.answered("c", "r")


def test_trap_15_a_fixed_id_that_comes_back_is_let_in_and_what_it_had_in_hand_is_not_lost(majordomo):
    """Over real sockets: test_sockets. A connection that lives is not taken over."""
    assert "ROUTER_HANDOVER" not in majordomo.service.endpoints[SOCKET].options
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.gets("w", "hello")
    majordomo.ready("w")
    majordomo.sent_away("w")
    majordomo.ready("w")
    majordomo.gets("w", "hello")
    majordomo.lose_peer(SOCKET)
    majordomo.ready("w")  # of another process, and at once
    majordomo.reply("w", majordomo.gets("w", "hello"), "r")
    majordomo.answered("c", "r")


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_16_heartbeats_that_are_ahead_of_ready_earn_one_disconnect(version):
    majordomo = Majordomo()
    for _ in range(5):
        majordomo.beat("w", version)
    majordomo.sent_away("w", version)
    majordomo.expect_nothing()
    majordomo.ready("w", version=version)
    majordomo.expect_nothing()
    assert majordomo.mmi("service", "echo") == 200


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_17_disconnect_once_for_each_unknown_worker(version):
    majordomo = Majordomo()
    for _ in range(100):
        for worker in ("w1", "w2"):
            majordomo.beat(worker, version)
            majordomo.reply(worker, "17", "late", version=version)
    majordomo.sent_away("w1", version)
    majordomo.sent_away("w2", version)
    majordomo.expect_nothing()
    assert majordomo.totals["unknown_workers"] == 2
    nothing_left(majordomo.service)


def test_trap_17_one_whom_the_news_did_not_reach_is_told_again(majordomo):
    majordomo.refuse(SOCKET, "w", "EAGAIN")
    majordomo.beat("w")
    majordomo.expect_nothing()
    majordomo.accept(SOCKET, "w")
    majordomo.beat("w")
    majordomo.sent_away("w")


def test_trap_18_routing_ids_are_no_text(majordomo):
    for peer in (b"\0\xff\xfe\0\1", b"\xff", b"\xc3\x28"):
        majordomo.ready(peer)
        majordomo.ask(peer, "x")
        majordomo.leave(peer)
        majordomo.beat(peer)
        majordomo.feed(SOCKET, peer, "junk")
    majordomo.all_sent()
    majordomo.ready(b"\0\xff\xfe\0\2")
    majordomo.all_sent()
    (shown,) = majordomo.mmi("workers", "echo")[1]
    assert shown["worker"] == "w4", "a name of the broker's own"
    assert "fffe" not in json.dumps(shown)


# --- requests and replies ---------------------------------------------------------------------------------------------


def test_trap_19_a_client_that_is_gone_takes_nothing_down(majordomo):
    majordomo.ready("w")
    for number in range(3):
        majordomo.ask("\0gone", str(number))
    majordomo.ask("c", "mine")
    majordomo.refuse(SOCKET, "\0gone")
    majordomo.reply("w", majordomo.gets("w", "0"), "r")
    address = majordomo.gets("w", "1")
    majordomo.sleep(0.3)
    assert majordomo.stats()["waiting"] == 1
    assert majordomo.totals["abandoned"] == 2
    majordomo.reply("w", address, "r")
    majordomo.gets("w", "mine")
    assert majordomo.totals["undelivered"] == 1


def test_trap_20_room_for_many_replies_and_a_count_of_those_beyond(majordomo):
    """With a client that reads late, over real sockets: test_sockets."""
    assert majordomo.service.endpoints[SOCKET].options["SNDHWM"] == 1000
    majordomo.ready("w")
    majordomo.ask("slow")
    majordomo.refuse(SOCKET, "slow", "EAGAIN")
    majordomo.reply("w", majordomo.gets("w", "hello"), "r")
    majordomo.expect_nothing()
    assert majordomo.totals["undelivered"] == 1
    majordomo.ask("c")
    majordomo.gets("w", "hello")


def test_trap_21_our_own_dialect_has_ids_and_a_late_reply_is_never_anothers(majordomo):
    """A client of MDP has to look after itself; the library's tests show that of ours."""
    majordomo.ready("w1", "w2")
    majordomo.ask("c", "slow", version="own", ident="1", timeout=100)
    slow = majordomo.gets("w1", "slow")
    majordomo.sleep(0.1)
    majordomo.fails("c", 408, "1")
    majordomo.ask("c", "slow", version="own", ident="2")
    fast = majordomo.gets("w2", "slow")
    majordomo.reply("w1", slow, "late")
    majordomo.expect_nothing()
    majordomo.reply("w2", fast, "r")
    majordomo.answered("c", "r", version="own", ident="2")


def test_trap_22_a_client_can_give_up_what_it_repeats(majordomo):
    """One of MDP cannot, and its work is done as often as it asks; ours cancels first."""
    majordomo.ask("c", "1", version="own", ident="1")
    majordomo.cancel("c", "1")
    majordomo.fails("c", 410, "1")
    majordomo.ask("c", "2", version="own", ident="2")
    majordomo.ready("w")
    majordomo.reply("w", majordomo.gets("w", "2"), "r")
    majordomo.answered("c", "r", version="own", ident="2")
    majordomo.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_23_forged_and_unasked_replies_reach_nobody(version):
    majordomo = Majordomo()
    majordomo.ready("good", version=version)
    majordomo.ask("victim", version="own")
    address = majordomo.gets("good", "hello", version=version)
    for number, target in enumerate((address, "victim", "1")):
        majordomo.ready(f"bad{number}", version=version)
        majordomo.reply(f"bad{number}", target, "forged", version=version)
        majordomo.sent_away(f"bad{number}", version)
    majordomo.reply("good", address, "true", version=version)
    majordomo.answered("victim", "true", version="own")
    majordomo.reply("good", address, "twice", version=version)
    majordomo.sent_away("good", version)
    majordomo.expect_nothing()
    nothing_left(majordomo.service)


def test_trap_23_an_unasked_reply_does_not_get_a_worker_two_requests_at_once(majordomo):
    majordomo.ready("w")
    majordomo.reply("w", "17", "unasked")
    majordomo.sent_away("w")
    majordomo.ready("w")
    majordomo.ask("c", "1")
    majordomo.ask("c", "2")
    majordomo.gets("w", "1")
    majordomo.expect_nothing()


def test_trap_24_mmi_is_the_brokers_and_only_workers_make_a_200(majordomo):
    majordomo.ready("mmi.worker")  # it is the name of the service that counts
    majordomo.expect_nothing()
    majordomo.ready("w", service="mmi.x")
    majordomo.sent_away("w")
    majordomo.ask("c", service="asked-for")
    assert majordomo.mmi("service", "asked-for") == 404


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("busy", [False, True])
def test_trap_25_a_clean_disconnect_is_survived(version, busy):
    majordomo = Majordomo()
    for number in range(50):
        majordomo.ready(f"w{number}", version=version)
        if busy:
            majordomo.ask("c", version="own", ident=str(number), timeout=1000)
    for number in range(50):
        majordomo.leave(f"w{number}", version)
        conserved(majordomo.service)
    majordomo.sleep(20.0)
    nothing_left(majordomo.service)


def test_trap_26_costs_do_not_grow_with_workers_or_requests():
    """Within a generous factor: what grows with their number would be a hundred times as much."""

    def cost(workers, waiting, services=1):
        service = MajordomoService()
        receive = service.receive
        for number in range(workers):
            name = b"echo" if number % services == 0 else b"other%d" % (number % services)
            receive(SOCKET, (b"w%d" % number, b"", b"MDPW01", b"\1", name), 0.0)
        for number in range(waiting):
            receive(SOCKET, (b"c", b"", b"MDPC01", b"idle%d" % (number % 10), b"x"), 0.0)
        best = float("inf")
        gc.disable()
        try:
            for _ in range(5):
                start = time.perf_counter()
                for _ in range(300):
                    ((_, frames),) = receive(SOCKET, (b"c", b"", b"MDPC01", b"echo", b"x"), 0.0)
                    receive(SOCKET, (frames[0], b"", b"MDPW01", b"\3", frames[4], b"", b"r"), 0.0)
                best = min(best, time.perf_counter() - start)
        finally:
            gc.enable()
        return best

    few = cost(1, 0)
    assert cost(1000, 0, services=100) < 5 * few
    assert cost(1, 10_000) < 5 * few


def test_trap_27_the_queue_is_bounded_and_expires():
    majordomo = Majordomo(max_queue=100, expiry=10.0)
    for _ in range(1000):
        majordomo.ask("c")
    assert majordomo.stats()["waiting"] == 80, "one client leaves a fifth to others"
    for number in range(1000):
        majordomo.ask(f"c{number}")
    assert majordomo.stats()["waiting"] == 100
    assert majordomo.stats()["refused"] == 1900
    majordomo.sleep(10.1)
    nothing_left(majordomo.service)
    majordomo.ready("w")
    majordomo.expect_nothing()
    assert majordomo.totals["expired"] == 100


@pytest.mark.parametrize("version", VERSIONS)
def test_trap_28_after_a_final_reply_the_next_request_is_dispatched_and_names_its_own_service(version):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.ready("v", service="other", version=version)
    for number in range(1000):
        majordomo.ask("c", str(number), version="0.2", service="other" if number % 2 else "echo")
    addresses = {"w": majordomo.gets("w", "0", version=version)}
    addresses["v"] = majordomo.gets("v", "1", version=version, service="other")
    for number in range(1000):
        worker, service = ("v", "other") if number % 2 else ("w", "echo")
        majordomo.reply(worker, addresses[worker], str(number), version=version)
        majordomo.answered("c", str(number), version="0.2", service=service)
        if number < 998:
            addresses[worker] = majordomo.gets(worker, str(number + 2), version=version, service=service)
    majordomo.expect_nothing()
    conserved(majordomo.service)


def test_all_heads_of_workers_are_those_of_the_rfcs():
    """Nothing of this file would be shown if its own tables were wrong."""
    assert WORKER_HEAD["0.1"] == ("", "MDPW01")
    assert WORKER_HEAD["0.2"] == ("MDPW02",)
