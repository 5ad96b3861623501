"""The state machine on virtual time: the table of the RFCs, bridging, queues, and what ours has beyond them."""

from __future__ import annotations

import json

import pytest

from scale0_majordomo.settings import ServiceSettings

from .conversation import (
    DISCONNECT,
    FINAL,
    HEARTBEAT,
    PARTIAL,
    READY,
    REQUEST,
    SOCKET,
    VERSIONS,
    WORKER_HEAD,
    Majordomo,
    conserved,
    nothing_left,
)


@pytest.fixture
def majordomo():
    script = Majordomo()
    yield script
    conserved(script.service)


# --- the table of what a worker may say when --------------------------------------------------------------------------

COMMANDS = {
    "READY": lambda v, address: (READY[v], "echo"),
    "REQUEST": lambda v, address: (REQUEST[v], address, "", "x"),
    "FINAL": lambda v, address: (FINAL[v], address, "", "reply"),
    "FINAL of another": lambda v, address: (FINAL[v], "4711", "", "forged"),
    "PARTIAL": lambda v, address: (PARTIAL[v], address, "", "part"),
    "PARTIAL of another": lambda v, address: (PARTIAL[v], "4711", "", "forged"),
    "HEARTBEAT": lambda v, address: (HEARTBEAT[v],),
    "DISCONNECT": lambda v, address: (DISCONNECT[v],),
    "nonsense": lambda v, address: ("\x77",),
}
STAYS, LEAVES, SENT_AWAY, REPLIED, STREAMED = "stays", "leaves", "sent away", "replied", "streamed"
TABLE = {
    "unknown": {
        "READY": STAYS, "REQUEST": SENT_AWAY, "FINAL": SENT_AWAY, "PARTIAL": SENT_AWAY, "HEARTBEAT": SENT_AWAY,
        "DISCONNECT": LEAVES, "nonsense": LEAVES,
    },
    "idle": {
        "READY": SENT_AWAY, "REQUEST": SENT_AWAY, "FINAL": SENT_AWAY, "PARTIAL": SENT_AWAY, "HEARTBEAT": STAYS,
        "DISCONNECT": LEAVES, "nonsense": SENT_AWAY, "expiry": LEAVES,
    },
    "busy": {
        "READY": SENT_AWAY, "REQUEST": SENT_AWAY, "FINAL": REPLIED, "FINAL of another": SENT_AWAY, "PARTIAL": STREAMED,
        "PARTIAL of another": SENT_AWAY, "HEARTBEAT": STAYS, "DISCONNECT": LEAVES, "nonsense": SENT_AWAY,
        "expiry": LEAVES,
    },
}  # fmt: skip
CASES = [
    (version, state, command)
    for version in VERSIONS
    for state, row in TABLE.items()
    for command in row
    if version != "0.1" or not command.startswith("PARTIAL")
]


@pytest.mark.parametrize(("version", "state", "command"), CASES)
def test_the_table_of_states(version, state, command):
    majordomo = Majordomo(heartbeat=10.0, liveness=3, busy_timeout=35.0)
    address = "4711"
    if state != "unknown":
        majordomo.ready("w", version=version)
    if state == "busy":
        majordomo.ask("c", "question", version="0.2")
        address = majordomo.gets("w", "question", version=version)
    if command == "expiry":
        majordomo.sleep(29.9 if state == "idle" else 34.9)
        assert len(majordomo.all_sent()) >= 2  # heartbeats
        assert majordomo.service._workers
        majordomo.sleep(0.2)
    else:
        majordomo.feed(SOCKET, "w", *WORKER_HEAD[version], *COMMANDS[command](version, address))
    outcome = TABLE[state][command]
    if outcome is SENT_AWAY:
        majordomo.sent_away("w", version)
    elif outcome is REPLIED:
        majordomo.answered("c", "reply", version="0.2")
    elif outcome is STREAMED:
        majordomo.gets_part("c", "part", version="0.2")
    majordomo.expect_nothing()
    conserved(majordomo.service)
    there = outcome in (STAYS, REPLIED, STREAMED)
    assert (b"w" in majordomo.service._workers) == there
    busy = state == "busy" and outcome in (STAYS, STREAMED)
    majordomo.ready("other")
    if state == "busy" and not there:
        majordomo.gets("other", "question")  # back to the queue's head, and to the next worker
    elif busy:
        majordomo.reply("w", address, "later", version=version)
        majordomo.answered("c", "later", version="0.2")
    majordomo.expect_nothing()
    conserved(majordomo.service)


@pytest.mark.parametrize("version", VERSIONS)
def test_after_disconnect_a_worker_hears_nothing_more(version):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.leave("w", version)
    majordomo.ask("c")
    majordomo.sleep(30)
    majordomo.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_worker_keeps_to_one_dialect(version):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.beat("w", "0.2" if version == "0.1" else "0.1")
    majordomo.sent_away("w", version)
    nothing_left(majordomo.service)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("other", VERSIONS)
def test_a_reply_in_another_dialect_is_none(version, other):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.ask("c")
    majordomo.reply("w", majordomo.gets("w", "hello", version=version), "r", version=other)
    if version == other:
        majordomo.answered("c", "r")
    else:
        majordomo.sent_away("w", version)
    majordomo.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_one_who_was_sent_away_is_told_once_whatever_it_has_sent_meanwhile(version):
    majordomo = Majordomo()
    majordomo.ready("w", version=version)
    majordomo.ready("w", version=version)
    majordomo.sent_away("w", version)
    for _ in range(5):
        majordomo.beat("w", version)
    majordomo.reply("w", "1", "late", version=version)
    majordomo.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_one_who_was_sent_away_may_come_back(version):
    majordomo = Majordomo()
    majordomo.beat("w", version)
    majordomo.sent_away("w", version)
    majordomo.ready("w", version=version)
    majordomo.ask("c", "1")
    majordomo.gets("w", "1", version=version)
    majordomo.ready("w", version=version)
    majordomo.sent_away("w", version)
    majordomo.ready("w", version=version)
    majordomo.gets("w", "1", version=version)


def test_a_worker_that_comes_back_under_its_id_is_not_mistaken_for_its_former_self(majordomo):
    """The old one still stands among those that are ready."""
    for _ in range(3):
        majordomo.ready("w")
        majordomo.leave("w")
    majordomo.ready("w")
    for number in "123":
        majordomo.ask("c", number)
        majordomo.reply("w", majordomo.gets("w", number), number)
        majordomo.answered("c", number)
    majordomo.ask("c", "a")
    majordomo.ask("c", "b")
    address = majordomo.gets("w", "a")
    majordomo.expect_nothing()
    majordomo.reply("w", address, "A")
    majordomo.answered("c", "A")
    majordomo.gets("w", "b")


# --- any client with any worker ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_client", VERSIONS)
@pytest.mark.parametrize("of_worker", VERSIONS)
def test_clients_and_workers_of_all_dialects_work_together(of_client, of_worker, majordomo):
    majordomo.ready("w", version=of_worker)
    majordomo.ask("c", "a", "", "b", version=of_client)
    address = majordomo.gets("w", "a", "", "b", version=of_worker)
    majordomo.reply("w", address, "", "c", version=of_worker)
    majordomo.answered("c", "", "c", version=of_client)
    majordomo.expect_nothing()


@pytest.mark.parametrize("of_client", VERSIONS)
@pytest.mark.parametrize("of_worker", ["0.2", "own"])
def test_parts_go_to_clients_that_take_them_and_are_collected_for_those_that_do_not(of_client, of_worker, majordomo):
    majordomo.ready("w", version=of_worker)
    majordomo.ask("c", version=of_client)
    address = majordomo.gets("w", "hello", version=of_worker)
    for part in (("1",), ("2", "3"), ("",)):
        majordomo.part("w", address, *part, version=of_worker)
        if of_client != "0.1":
            majordomo.gets_part("c", *part, version=of_client)
    majordomo.expect_nothing()
    majordomo.ask("c2", "next", version="0.1")
    majordomo.expect_nothing()  # parts leave the worker busy
    majordomo.reply("w", address, "end", version=of_worker)
    majordomo.answered("c", *(["1", "2", "3", ""] if of_client == "0.1" else []), "end", version=of_client)
    majordomo.gets("w", "next", version=of_worker)
    majordomo.expect_nothing()


def test_options_pass_between_our_own_peers_and_no_others(majordomo):
    majordomo.ready("w", version="own")
    trace = {"traceparent": "00-1-2-01"}
    majordomo.ask("c", version="own", **trace)
    address = majordomo.gets("w", "hello", version="own", options=json.dumps(trace))
    majordomo.part("w", address, "p", version="own", options='{"n": 1}')
    majordomo.gets_part("c", "p", version="own", options='{"n": 1}')
    majordomo.reply("w", address, "r", version="own", options='{"n": 2}')
    majordomo.answered("c", "r", version="own", options='{"n": 2}')
    majordomo.ask("c", version="0.2")
    address = majordomo.gets("w", "hello", version="own")
    majordomo.reply("w", address, "r", version="own", options='{"n": 2}')
    majordomo.answered("c", "r", version="0.2")


def test_parts_that_are_too_many_to_be_put_together_end_the_request():
    majordomo = Majordomo(max_message=1000)
    majordomo.ready("w", version="0.2")
    majordomo.ask("c")
    address = majordomo.gets("w", "hello", version="0.2")
    for _ in range(4):
        majordomo.part("w", address, "x" * 300)
    majordomo.reply("w", address, "end", version="0.2")
    majordomo.expect_nothing()
    assert majordomo.stats()["failed"] == 1
    conserved(majordomo.service)


def test_parts_of_a_worker_that_died_are_not_mixed_with_those_of_the_next(majordomo):
    """A 0.1 client has seen none of them, so its request may be repeated."""
    majordomo.ready("w1", "w2", version="0.2")
    majordomo.ask("c")
    majordomo.part("w1", majordomo.gets("w1", "hello", version="0.2"), "half")
    majordomo.leave("w1", "0.2")
    majordomo.reply("w2", majordomo.gets("w2", "hello", version="0.2"), "whole", version="0.2")
    majordomo.answered("c", "whole")


def test_a_reply_that_was_begun_is_not_begun_again(majordomo):
    majordomo.ready("w1", "w2", version="0.2")
    majordomo.ask("c", version="own")
    majordomo.part("w1", majordomo.gets("w1", "hello", version="0.2"), "half")
    majordomo.gets_part("c", "half", version="own")
    majordomo.leave("w1", "0.2")
    assert "once" in majordomo.fails("c", 502)
    majordomo.expect_nothing()


# --- envelopes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("envelope", "head"),
    [
        (("\0\0\0\7", ""), ("MDPC01",)),  # REQ_CORRELATE
        (("p1", "", "\0\0\0\7", ""), ("MDPC01",)),
        (("proxy", ""), ("MDPC01",)),
        (("p1", "p2", "p3", ""), ("MDPC01",)),
        (("proxy",), ("MDPC02", "\x01")),
        (("",), ("MDPC02", "\x01")),  # a REQ that speaks 0.2
    ],
)
def test_envelopes_are_kept_and_come_back(envelope, head, majordomo):
    majordomo.ready("w")
    majordomo.feed(SOCKET, "c", *envelope, *head, "echo", "hello")
    majordomo.reply("w", majordomo.gets("w", "hello"), "reply")
    command = () if head[0] == "MDPC01" else ("\x03",)
    majordomo.expect(SOCKET, "c", *envelope, head[0], *command, "echo", "reply")


def test_clients_behind_one_proxy_are_told_apart(majordomo):
    majordomo.ready("w1", "w2")
    for name in ("a", "b"):
        majordomo.feed(SOCKET, "proxy", name, "", "MDPC01", "echo", name)
    one, two = majordomo.gets("w1", "a"), majordomo.gets("w2", "b")
    majordomo.reply("w2", two, "B")
    majordomo.expect(SOCKET, "proxy", "b", "", "MDPC01", "echo", "B")
    majordomo.reply("w1", one, "A")
    majordomo.expect(SOCKET, "proxy", "a", "", "MDPC01", "echo", "A")


def test_our_own_clients_behind_one_proxy_may_use_the_same_ids(majordomo):
    majordomo.ready("w1", "w2", version="own")
    for name in ("a", "b"):
        majordomo.feed(SOCKET, "proxy", name, "S0MC01", "\x01", "id", "echo", "", name)
    one, two = majordomo.gets("w1", "a", version="own"), majordomo.gets("w2", "b", version="own")
    majordomo.feed(SOCKET, "proxy", "a", "S0MC01", "\x05", "id")
    majordomo.is_cancelled("w1", one)
    majordomo.expect(SOCKET, "proxy", "a", "S0MC01", "\x04", "id", "echo", "410", ...)
    majordomo.reply("w2", two, "B", version="own")
    majordomo.expect(SOCKET, "proxy", "b", "S0MC01", "\x03", "id", "echo", "", "B")


# --- MMI --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_mmi_service_tells_whether_somebody_offers_it(version, majordomo):
    assert majordomo.mmi("service", "echo", version=version) == 404
    majordomo.ask("c")
    assert majordomo.mmi("service", "echo", version=version) == 404, "to be asked for is not to be offered"
    majordomo.ready("w")
    majordomo.gets("w", "hello")
    assert majordomo.mmi("service", "echo", version=version) == 200, "busy ones count"
    majordomo.leave("w")
    assert majordomo.mmi("service", "echo", version=version) == 404
    majordomo.cancel("c")


def test_mmi_for_our_own_clients(majordomo):
    majordomo.ask("c", "echo", service="mmi.service", version="own", ident="7")
    majordomo.answered("c", "404", service="mmi.service", version="own", ident="7")


def test_mmi_answers_400_and_501(majordomo):
    assert majordomo.mmi("service", "") == 400
    assert majordomo.mmi("service", "a", "b") == 400
    assert majordomo.mmi("nonsense", "x") == 501
    assert majordomo.mmi("", "x") == 501
    assert majordomo.mmi("filter", "x") == 501


def test_mmi_lists_services_workers_and_figures(majordomo):
    majordomo.ready("w1")
    majordomo.ready("w2", version="own", credit=5)
    majordomo.ready("x", service="other", version="0.2")
    majordomo.ask("c", service="unoffered")
    majordomo.ask("c")
    majordomo.gets("w1", "hello")
    assert majordomo.mmi("services", "") == (200, ["echo", "other"])
    majordomo.sleep(1.5)
    code, rows = majordomo.mmi("workers", "echo")
    assert code == 200
    row = {"service": "echo", "silent_s": 1.5}
    assert rows == [
        {**row, "worker": "w1", "dialect": "0.1", "credit": 1, "in_hand": 1},
        {**row, "worker": "w2", "dialect": "scale0", "credit": 5, "in_hand": 0},
    ]
    assert len(majordomo.mmi("workers", "")[1]) == 3
    assert majordomo.mmi("workers", "nobody") == (200, [])
    code, figures = majordomo.mmi("stats", "")
    assert code == 200
    assert set(figures) == {"echo", "other", "unoffered"}
    assert figures["echo"]["workers"] == 2
    assert figures["echo"]["in_hand"] == 1
    assert figures["unoffered"]["waiting"] == 1
    assert majordomo.mmi("stats", "nobody") == (200, {})


@pytest.mark.parametrize("version", VERSIONS)
def test_nobody_but_the_broker_offers_mmi(version, majordomo):
    for _ in range(3):
        majordomo.ready("w", service="mmi.service", version=version)
        majordomo.sent_away("w", version)
    majordomo.ready("w", version=version)
    majordomo.expect_nothing()


# --- heartbeats and silence -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_idle_workers_get_heartbeats_on_time_and_silent_ones_are_forgotten(version, majordomo):
    majordomo.ready("w", version=version)
    beats = []
    for _ in range(3):
        beats += majordomo.beats_of(2.5)
    assert beats == [("w", 2.5), ("w", 5.0)]
    assert not majordomo.service._workers
    majordomo.ask("c")
    majordomo.sleep(30)
    majordomo.expect_nothing()


@pytest.mark.parametrize("version", VERSIONS)
def test_busy_workers_get_heartbeats_and_have_a_long_time_of_their_own(version):
    majordomo = Majordomo(busy_timeout=60.0)
    majordomo.ready("w", version=version)
    majordomo.ask("c")
    address = majordomo.gets("w", "hello", version=version)
    beats = majordomo.beats_of(59.75)
    assert [when for _, when in beats] == [2.5 * n for n in range(1, 24)]
    majordomo.beat("w", version)
    majordomo.beats_of(59.75)  # what it sends counts
    majordomo.reply("w", address, "late", version=version)
    majordomo.answered("c", "late")
    majordomo.ask("c")
    majordomo.gets("w", "hello", version=version)
    majordomo.beats_of(60)
    majordomo.expect_nothing()
    assert not majordomo.service._workers
    majordomo.ready("w2")
    majordomo.gets("w2", "hello")


def test_who_has_just_been_given_something_needs_no_heartbeat(majordomo):
    majordomo.ready("w")
    for _ in range(20):
        majordomo.sleep(2.0)
        majordomo.ask("c")
        majordomo.reply("w", majordomo.gets("w", "hello"), "r")
        majordomo.answered("c", "r")
    majordomo.expect_nothing()


def test_any_word_is_a_sign_of_life(majordomo):
    majordomo.ready("w", version="0.2")
    majordomo.ask("c", version="0.2")
    address = majordomo.gets("w", "hello", version="0.2")
    majordomo.beats_of(7.25)
    majordomo.part("w", address, "p")
    majordomo.gets_part("c", "p")
    majordomo.beats_of(7.25)
    majordomo.reply("w", address, "r", version="0.2")
    majordomo.answered("c", "r", version="0.2")
    majordomo.beats_of(7.25)
    assert majordomo.mmi("service", "echo") == 200


def test_each_worker_has_a_deadline_of_its_own():
    majordomo = Majordomo()
    majordomo.ready("dead", service="dead")
    majordomo.ready("live")
    majordomo.live(7.0, "live")
    assert majordomo.mmi("service", "dead") == 200
    majordomo.live(1.0, "live")
    assert majordomo.mmi("service", "dead") == 404
    assert majordomo.mmi("service", "echo") == 200


def test_alarms_and_lists_do_not_grow_with_workers_that_come_and_go(majordomo):
    service = majordomo.service
    majordomo.ready("stays")
    for number in range(2000):
        majordomo.ready(f"w{number}")
        majordomo.leave(f"w{number}")
    assert len(service._watch.alarms) == 1
    assert len(service._services[b"echo"].ready) < 200
    for _ in range(2000):
        majordomo.ready("same")
        majordomo.ready("same")
    assert len(service._services[b"echo"].ready) < 200


def test_those_told_to_go_are_remembered_within_bounds(majordomo, monkeypatch):
    monkeypatch.setattr("scale0_majordomo.service.majordomo.MAX_TOLD", 10)
    for number in range(50):
        majordomo.beat(f"w{number}")
        majordomo.ready(f"v{number}")
        majordomo.ready(f"v{number}")
    assert len(majordomo.service._told) <= 10


# --- requests survive their workers -----------------------------------------------------------------------------------


def test_requests_go_back_to_the_head_in_their_order(majordomo):
    majordomo.ready("w", version="own", credit=3)
    for number in range(6):
        majordomo.ask("c", str(number))
    for number in range(3):
        majordomo.gets("w", str(number), version="own")
    majordomo.leave("w", "own")
    majordomo.ready("v", version="own", credit=10)
    for number in range(6):
        majordomo.gets("v", str(number), version="own")
    assert majordomo.stats()["retried"] == 3


def test_the_oldest_goes_to_the_first_that_is_free(majordomo):
    majordomo.ready("w", version="own", credit=3)
    for number in range(3):
        majordomo.ask("c", str(number))
        majordomo.gets("w", str(number), version="own")
    majordomo.ready("v")
    majordomo.leave("w", "own")
    address = majordomo.gets("v", "0")
    majordomo.expect_nothing()
    majordomo.reply("v", address, "r")
    majordomo.answered("c", "r")
    majordomo.gets("v", "1")


def test_a_request_is_tried_so_many_times_and_no_more():
    majordomo = Majordomo(max_tries=2)
    majordomo.ask("c", version="own")
    for worker in ("w1", "w2"):
        majordomo.ready(worker)
        majordomo.gets(worker, "hello")
        majordomo.leave(worker)
    assert "2 times" in majordomo.fails("c", 502)
    majordomo.ready("w3")
    majordomo.expect_nothing()
    assert majordomo.totals["failed"] == 1
    assert majordomo.totals["retried"] == 1


def test_a_service_may_forbid_repetition_and_a_request_may_say_otherwise():
    once = ServiceSettings(resend=False)
    majordomo = Majordomo(services={"once": once})
    majordomo.ready("w1", service="once", version="own", credit=2)
    majordomo.ask("c", "a", service="once", version="own", ident="a")
    majordomo.ask("c", "b", service="once", version="own", ident="b", retry=True)
    majordomo.ready("w2", service="echo", version="own")
    majordomo.ask("c", "c", version="own", ident="c", retry=False)
    majordomo.all_sent()
    majordomo.leave("w1", "own")
    majordomo.leave("w2", "own")
    majordomo.fails("c", 502, "a", "once")
    majordomo.fails("c", 502, "c", "echo")
    majordomo.ready("w3", service="once", version="own")
    majordomo.gets("w3", "b", version="own", service="once", options='{"retry": true}')
    conserved(majordomo.service)


def test_time_in_hand_is_not_time_in_the_queue():
    """A request whose worker dies late may wait for another one."""
    majordomo = Majordomo(expiry=10.0)
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.gets("w", "hello")
    majordomo.live(300.0, "w")
    majordomo.leave("w")
    majordomo.sleep(9.9)
    majordomo.ready("v")
    majordomo.gets("v", "hello")
    conserved(majordomo.service)


def test_a_worker_that_cannot_be_reached_is_gone_and_the_request_was_no_try():
    majordomo = Majordomo(max_tries=1)
    majordomo.ready("dead", "live")
    majordomo.refuse(SOCKET, "dead")
    majordomo.ask("c")
    address = majordomo.gets("live", "hello")
    assert majordomo.totals["undelivered"] == 1
    majordomo.reply("live", address, "r")
    majordomo.answered("c", "r")
    assert len(majordomo.mmi("workers", "echo")[1]) == 1


def test_the_last_reply_of_a_worker_that_is_gone_already_is_taken():
    """ZeroMQ takes nothing for a peer that has left, while what that sent before is still to be read."""
    majordomo = Majordomo(resend=False, heartbeat=2.5)
    majordomo.ready("w")
    majordomo.ask("c")
    address = majordomo.gets("w", "hello")
    majordomo.refuse(SOCKET, "w")
    majordomo.lose_peer(SOCKET)
    majordomo.sleep(0.005)  # the broker asks whether it is there
    majordomo.ready("other")
    majordomo.ask("c", "next")
    majordomo.gets("other", "next")
    majordomo.reply("w", address, "r")
    majordomo.leave("w")
    majordomo.answered("c", "r")
    assert majordomo.totals["retried"] == majordomo.totals["failed"] == 0
    conserved(majordomo.service)


def test_a_worker_that_is_gone_and_says_nothing_more_is_lost_in_a_moment():
    majordomo = Majordomo()
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.gets("w", "hello")
    majordomo.refuse(SOCKET, "w")
    majordomo.lose_peer(SOCKET)
    majordomo.sleep(0.005)
    majordomo.ready("other")
    majordomo.sleep(0.049)
    majordomo.expect_nothing()
    majordomo.sleep(0.002)
    majordomo.gets("other", "hello")
    assert len(majordomo.mmi("workers", "echo")[1]) == 1
    conserved(majordomo.service)


@pytest.mark.parametrize("reason", ["EHOSTUNREACH", "EAGAIN"])
def test_what_never_left_may_go_to_another_worker_even_where_nothing_is_repeated(reason):
    majordomo = Majordomo(resend=False, max_tries=1, max_queue=2)
    majordomo.ask("c", "1", version="own", ident="1", retry=False)
    majordomo.ask("c", "2", version="own", ident="2")
    majordomo.refuse(SOCKET, "dead", reason)
    majordomo.ready("dead", version="own", credit=2)
    assert majordomo.stats()["waiting"] == 2
    majordomo.ready("live")
    for ident in "12" if reason == "EHOSTUNREACH" else "21":
        majordomo.reply("live", majordomo.gets("live", ident), "r")
        majordomo.answered("c", "r", version="own", ident=ident)
    conserved(majordomo.service)


def test_a_lost_connection_makes_the_broker_ask_busy_workers():
    majordomo = Majordomo()
    majordomo.ready("dead", "live")
    majordomo.ask("c")
    majordomo.gets("dead", "hello")
    majordomo.lose_peer(SOCKET)
    majordomo.sleep(0.005)
    majordomo.beaten("dead")  # the ROUTER took it still
    majordomo.refuse(SOCKET, "dead")
    majordomo.sleep(0.05)
    majordomo.sleep(0.05)  # its last words may be unread
    majordomo.gets("live", "hello")
    majordomo.sleep(1.0)
    majordomo.expect_nothing()


def test_many_lost_connections_do_not_drown_the_workers_in_heartbeats():
    majordomo = Majordomo()
    for number in range(100):
        majordomo.ready(f"w{number}")
        majordomo.ask("c")
    majordomo.all_sent()
    for _ in range(1000):
        majordomo.lose_peer(SOCKET)
        majordomo.sleep(0.001)
    assert len(majordomo.all_sent()) <= 20 * 100
    majordomo.refuse(SOCKET, "w7")  # and the last of them is not missed
    majordomo.lose_peer(SOCKET)
    majordomo.sleep(0.5)
    assert b"w7" not in majordomo.service._workers


def test_a_worker_that_takes_less_than_it_announced_gets_no_more_than_that(majordomo):
    majordomo.ready("w", version="own", credit=5)
    majordomo.ask("c", "1")
    first = majordomo.gets("w", "1", version="own")
    majordomo.refuse(SOCKET, "w", "EAGAIN")
    majordomo.ask("c", "2")
    majordomo.expect_nothing()
    assert majordomo.stats()["waiting"] == 1
    majordomo.accept(SOCKET, "w")
    majordomo.reply("w", first, "r", version="own")
    majordomo.answered("c", "r")
    majordomo.gets("w", "2", version="own")
    majordomo.ask("c", "3")
    majordomo.expect_nothing()


def test_a_worker_that_takes_nothing_at_all_is_gone(majordomo):
    majordomo.ready("w", "v")
    majordomo.refuse(SOCKET, "w", "EAGAIN")
    majordomo.ask("c", "1")
    majordomo.gets("v", "1")
    assert len(majordomo.mmi("workers", "echo")[1]) == 1
