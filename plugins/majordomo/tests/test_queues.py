"""The state machine on virtual time: queues, our own dialect, and who gets what."""

from __future__ import annotations

import pytest

from scale0_majordomo.settings import ServiceSettings

from .conversation import (
    SOCKET,
    VERSIONS,
    Majordomo,
    conserved,
    nothing_left,
)


@pytest.fixture
def majordomo():
    script = Majordomo()
    yield script
    conserved(script.service)


# --- the queue --------------------------------------------------------------------------------------------------------


def test_requests_wait_for_a_worker_in_their_order(majordomo):
    for number in range(5):
        majordomo.ask("c", str(number))
    majordomo.ready("w")
    for number in range(5):
        majordomo.reply("w", majordomo.gets("w", str(number)), "r")
        majordomo.answered("c", "r")
    majordomo.expect_nothing()


def test_requests_expire_when_their_time_has_come():
    majordomo = Majordomo(expiry=5.0)
    majordomo.ask("c", "0.1")
    majordomo.sleep(3.0)
    majordomo.ask("c", "own", version="own")
    majordomo.sleep(1.99)
    assert majordomo.stats()["waiting"] == 2
    majordomo.sleep(0.02)
    assert majordomo.stats()["waiting"] == 1
    majordomo.expect_nothing()
    majordomo.sleep(2.97)
    majordomo.expect_nothing()
    majordomo.sleep(0.1)
    assert "5 s" in majordomo.fails("c", 408)
    nothing_left(majordomo.service)
    assert majordomo.totals["expired"] == 2
    assert majordomo.service.next_deadline() is None or majordomo.service.next_deadline() > majordomo.now


def test_the_queue_is_bounded_in_number_and_bytes():
    """Of each request 448 bytes count beside its body, and 64 of each frame."""
    majordomo = Majordomo(max_queue=2, services={"bytes": ServiceSettings(max_queue_bytes=448 + 128 + 10 + 512)})
    for ident in "123":
        majordomo.ask("c", version="own", ident=ident)
    majordomo.fails("c", 429, "3")
    majordomo.ask("c", "12345", "67890", service="bytes", version="own", ident="4")
    majordomo.ask("c", "x", service="bytes", version="own", ident="5")
    majordomo.fails("c", 429, "5", "bytes")
    majordomo.ask("c", "", service="bytes", version="own", ident="6")
    majordomo.ask("c", "", service="bytes", version="own", ident="7")
    majordomo.fails("c", 429, "7", "bytes")
    majordomo.ask("c", "x", service="bytes")  # MDP has no word for it
    majordomo.expect_nothing()
    assert majordomo.totals["refused"] == 4
    conserved(majordomo.service)
    majordomo.cancel("c", "1")
    majordomo.fails("c", 410, "1")
    majordomo.ask("c", version="own", ident="8")
    majordomo.expect_nothing()


# --- fair by client ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduling", ["lru", "least", "priority", "sticky"])
def test_clients_are_served_in_turn(scheduling):
    majordomo = Majordomo(scheduling=scheduling)
    options = {"key": "same"} if scheduling == "sticky" else {}
    majordomo.ready("w", version="own")
    for client, requests in (("greedy", 6), ("modest", 2), ("late", 1)):
        for number in range(requests):
            ident = f"{client}{number}"
            majordomo.ask(client, ident, version="own", ident=ident, **options)
    served = []
    for _ in range(9):
        *_, address, _, _, body = majordomo.all_sent()[-1]
        served.append(body.decode())
        majordomo.reply("w", address, "r", version="own")
    expected = "greedy0 greedy1 modest0 late0 greedy2 modest1 greedy3 greedy4 greedy5"
    assert " ".join(served) == expected
    conserved(majordomo.service)


def test_one_client_cannot_fill_the_queue_for_all():
    """Nor can a few: one that comes later finds room."""
    majordomo = Majordomo(max_queue=1000)
    for client in range(3):
        for number in range(1001):
            majordomo.ask(f"greedy{client}", version="own", ident=str(number))
        refused = majordomo.all_sent()
        assert refused
        assert {frames[5] for frames in refused} == {b"429"}
    waiting = {share.client: share.waiting for share in majordomo.service._services[b"echo"].shares.values()}
    assert waiting[b"greedy0"] == 800, "alone it may have four fifths"
    majordomo.ask("modest", version="own")
    majordomo.expect_nothing()
    conserved(majordomo.service)


def test_the_share_of_a_client_is_bounded_by_bytes_too():
    majordomo = Majordomo(max_queue_bytes=10 * 1024)
    for number in range(9):
        majordomo.ask("greedy", "x" * 512, version="own", ident=str(number))
    majordomo.fails("greedy", 429, "8")
    majordomo.ask("modest", "x" * 1024, version="own")
    majordomo.expect_nothing()
    conserved(majordomo.service)


@pytest.mark.parametrize("version", ["0.1", "0.2"])
def test_clients_of_mdp_are_told_of_refusals_if_they_asked_for_it(version, caplog):
    majordomo = Majordomo(max_queue=0)
    majordomo.ask("c", version=version)
    majordomo.ask("c", version=version)
    majordomo.expect_nothing()
    assert [record.getMessage() for record in caplog.records] == ["requests refused"], "it is logged, not each time"
    assert majordomo.totals["refused"] == 2
    majordomo = Majordomo(max_queue=0, error_replies=True, max_services=1)
    majordomo.ask("c", version=version)
    majordomo.answered("c", "429", "too many requests wait for this service", version=version)
    majordomo.ready("w", service="only")
    majordomo.ask("c", service="more", version=version)
    majordomo.answered("c", "429", "there are too many services", version=version, service="more")


# --- clients that do not read -----------------------------------------------------------------------------------------


def delayed(majordomo, frames):
    """Let a message wait in the core's outbox."""
    majordomo.service.on_delayed(SOCKET, frames, majordomo.now)
    return frames


def left(majordomo, frames):
    """Let a message leave that waited; as in the loop, what follows comes in the next turn, which a message begins."""
    majordomo.service.on_sent(SOCKET, frames, majordomo.now)
    majordomo.mmi("service", "x")


@pytest.mark.parametrize("scheduling", ["lru", "least", "priority", "sticky"])
def test_requests_of_a_client_that_does_not_read_wait_until_it_does(scheduling):
    majordomo = Majordomo(scheduling=scheduling)
    options = {"key": "same"} if scheduling == "sticky" else {}
    majordomo.ready("w", version="own")
    for number in range(3):
        majordomo.ask("slow", f"slow{number}", version="own", ident=str(number), **options)
    *_, address, _, _, _ = majordomo.all_sent()[-1]
    reply = delayed(majordomo, (b"slow", b"S0MC01", b"\3", b"9", b"echo", b"", b"an earlier reply"))
    majordomo.reply("w", address, "r", version="own")
    (frames,) = majordomo.all_sent()
    delayed(majordomo, frames)
    majordomo.ask("slow", "slow3", version="own", ident="3", **options)
    majordomo.expect_nothing()
    majordomo.ask("other", "other", version="own", ident="1", **options)
    *_, address, _, _, body = majordomo.all_sent()[-1]
    assert body == b"other", "others go on"
    majordomo.reply("w", address, "r", version="own")
    majordomo.answered("other", "r", version="own", ident="1")
    conserved(majordomo.service)
    left(majordomo, reply)
    majordomo.expect_nothing()
    left(majordomo, frames)
    for number in (1, 2, 3):
        *_, address, _, _, body = majordomo.all_sent()[-1]
        assert body == b"slow%d" % number
        majordomo.reply("w", address, "r", version="own")
    conserved(majordomo.service)


def test_a_client_that_does_not_read_and_is_gone_holds_nothing():
    majordomo = Majordomo()
    majordomo.ready("w")
    majordomo.ask("slow", "1")
    address = majordomo.gets("w", "1")
    majordomo.reply("w", address, "r")
    (frames,) = majordomo.all_sent()
    delayed(majordomo, frames)
    majordomo.ask("slow", "2")
    majordomo.expect_nothing()
    majordomo.service.on_undelivered(SOCKET, frames, "EHOSTUNREACH", majordomo.now)
    majordomo.mmi("service", "x")
    majordomo.gets("w", "2")
    assert not majordomo.service._late
    conserved(majordomo.service)


def test_a_queue_of_none_still_lets_requests_through_to_idle_workers():
    majordomo = Majordomo(max_queue=0)
    majordomo.ask("c", version="own", ident="1")
    majordomo.fails("c", 429, "1")
    nothing_left(majordomo.service)
    majordomo.ready("w")
    majordomo.ask("c", "a", version="own", ident="2")
    majordomo.gets("w", "a")
    majordomo.ask("c", "a", version="own", ident="3")
    majordomo.fails("c", 429, "3")
    majordomo.leave("w")  # what was let in once is not refused
    majordomo.expect_nothing()
    assert majordomo.stats()["waiting"] == 1
    conserved(majordomo.service)


def test_names_of_services_are_bounded_and_forgotten():
    majordomo = Majordomo(max_services=2, expiry=5.0)
    majordomo.ask("c", service="a", version="own", ident="a")
    majordomo.ready("w", service="b")
    majordomo.ask("c", service="c", version="own", ident="c")
    majordomo.fails("c", 429, "c", "c")
    majordomo.ask("c", service="c")
    majordomo.ready("v", service="d")
    majordomo.sent_away("v")
    majordomo.expect_nothing()
    majordomo.cancel("c", "a")
    majordomo.fails("c", 410, "a", "a")
    majordomo.ready("v", service="d")
    majordomo.leave("v")
    majordomo.leave("w")
    nothing_left(majordomo.service)


def test_workers_are_bounded():
    majordomo = Majordomo(max_workers=1)
    majordomo.ready("w1")
    majordomo.ready("w2", service="other")
    majordomo.sent_away("w2")
    assert list(majordomo.service._services) == [b"echo"]


def test_requests_that_end_while_they_wait_leave_no_room_taken(majordomo):
    """A client that asks and cancels all day fills no memory."""
    service = majordomo.service
    majordomo.ask("other", "stays")
    for number in range(1000):
        majordomo.ask("c", "x" * 1000, version="own", ident=str(number), timeout=60_000)
        majordomo.cancel("c", str(number))
    echo = service._services[b"echo"]
    assert len(echo.queue) < 200
    assert len(service._timers) == 0
    conserved(service)


def test_a_client_that_is_gone_for_good_leaves_no_requests_behind():
    """Generated routing ids begin with a zero byte, and do not come back."""
    majordomo = Majordomo()
    majordomo.ready("w", version="own")
    for client in ("\0gone", "fixed"):
        for number in range(3):
            majordomo.ask(client, str(number), version="own", ident=str(number))
    address = majordomo.gets("w", "0", version="own")
    majordomo.refuse(SOCKET, "\0gone")
    majordomo.reply("w", address, "r", version="own")
    inhand = majordomo.gets("w", "1", version="own")
    majordomo.sleep(0.3)
    majordomo.is_cancelled("w", inhand)
    stats = majordomo.stats()
    assert stats["abandoned"] == 2
    assert stats["waiting"] == 3, "those of others"
    majordomo.reply("w", inhand, "r", version="own")
    majordomo.gets("w", "0", version="own")
    assert majordomo.stats()["late"] == 1
    conserved(majordomo.service)


def test_the_requests_of_a_client_with_a_name_of_its_own_wait_for_its_return():
    majordomo = Majordomo()
    majordomo.ready("w")
    for number in range(3):
        majordomo.ask("fixed", str(number))
    majordomo.refuse(SOCKET, "fixed")
    majordomo.reply("w", majordomo.gets("w", "0"), "r")
    address = majordomo.gets("w", "1")
    majordomo.sleep(1.0)
    assert majordomo.stats()["waiting"] == 1
    majordomo.accept(SOCKET, "fixed")
    majordomo.reply("w", address, "r")
    majordomo.answered("fixed", "r")


# --- our own dialect --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        "nonsense", "[]", '{"timeout": "soon"}', '{"timeout": 0}', '{"timeout": -1}', '{"timeout": true}',
        '{"timeout": NaN}', '{"timeout": 1e99}', '{"priority": 1.5}', '{"priority": 1e400}', '{"priority": 4294967296}',
        '{"key": 1}', '{"key": "\\ud800"}', '{"retry": 1}', '{"retry": "no"}',
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_answered_400(options):
    majordomo = Majordomo()
    majordomo.feed(SOCKET, "c", "S0MC01", "\x01", "id", "echo", options, "x")
    assert majordomo.fails("c", 400, "id")
    nothing_left(majordomo.service)


@pytest.mark.parametrize("text", ["\\u0000", "\\ud83d\\ude00", "x" * 4000])
def test_any_text_may_be_a_key(text):
    majordomo = Majordomo(scheduling="sticky")
    majordomo.ready("w")
    majordomo.feed(SOCKET, "c", "S0MC01", "\x01", "id", "echo", '{"key": "' + text + '"}', "x")
    majordomo.gets("w", "x")


def test_an_id_is_in_use_until_its_answer(majordomo):
    majordomo.ready("w")
    majordomo.ask("c", "first", version="own")
    majordomo.ask("c", "second", version="own")
    address = majordomo.gets("w", "first")
    assert "already" in majordomo.fails("c", 400)
    majordomo.ask("other", "theirs", version="own")  # ids belong to a connection
    majordomo.reply("w", address, "r")
    majordomo.answered("c", "r", version="own")
    majordomo.reply("w", majordomo.gets("w", "theirs"), "r")
    majordomo.answered("other", "r", version="own")
    majordomo.ask("c", "third", version="own")
    majordomo.gets("w", "third")


def test_ids_tell_replies_apart_in_whatever_order_they_come(majordomo):
    majordomo.ready("w1", "w2")
    majordomo.ask("c", "a", version="own", ident="a")
    majordomo.ask("c", "b", version="own", ident="b")
    one, two = majordomo.gets("w1", "a"), majordomo.gets("w2", "b")
    majordomo.reply("w2", two, "B")
    majordomo.answered("c", "B", version="own", ident="b")
    majordomo.reply("w1", one, "A")
    majordomo.answered("c", "A", version="own", ident="a")


@pytest.mark.parametrize(
    ("code", "comes"), [("500", 500), ("599", 599), ("404", 500), ("", 500), ("5", 500), ("60000", 500), ("\xb2", 500)]
)
def test_what_a_worker_reports_reaches_its_client(code, comes, majordomo):
    majordomo.ready("w", version="own")
    majordomo.ask("c", version="own")
    majordomo.worker_error("w", majordomo.gets("w", "hello", version="own"), code, "it broke")
    assert majordomo.fails("c", comes) == "it broke"
    majordomo.ask("c", "next")  # the worker is free again; and MDP has no word for an error
    majordomo.worker_error("w", majordomo.gets("w", "next", version="own"), code, "again")
    majordomo.expect_nothing()
    assert majordomo.stats()["errors"] == 2


def test_a_worker_that_announces_credit_has_several_requests_at_once(majordomo):
    majordomo.ready("w", version="own", credit=3)
    for number in range(5):
        majordomo.ask("c", str(number))
    addresses = [majordomo.gets("w", str(number), version="own") for number in range(3)]
    majordomo.expect_nothing()
    majordomo.reply("w", addresses[1], "r", version="own")
    majordomo.answered("c", "r")
    addresses.append(majordomo.gets("w", "3", version="own"))
    majordomo.reply("w", addresses[0], "r", version="own")
    majordomo.answered("c", "r")
    majordomo.gets("w", "4", version="own")
    majordomo.reply("w", addresses[2], "r", version="own")
    majordomo.answered("c", "r")
    majordomo.ask("c", "5")
    majordomo.gets("w", "5", version="own")


@pytest.mark.parametrize("credit", [0, -1, 10_001, True, 1.0, "3", None, [1]])
def test_credit_is_a_whole_number_within_bounds(credit, majordomo):
    majordomo.ready("w", version="own", credit=credit)
    majordomo.sent_away("w", "own")
    nothing_left(majordomo.service)


def test_workers_with_credit_take_turns(majordomo):
    """The one that was given something longest ago is next."""
    majordomo.ready("w1", "w2", version="own", credit=10)
    for number in range(6):
        majordomo.ask("c", str(number))
        majordomo.gets(f"w{number % 2 + 1}", str(number), version="own")


def test_cancelled_in_the_queue(majordomo):
    majordomo.ask("c", version="own")
    majordomo.cancel("stranger")
    majordomo.cancel("c", "another")
    majordomo.expect_nothing()
    majordomo.cancel("c")
    majordomo.fails("c", 410)
    majordomo.cancel("c")
    majordomo.ready("w")
    majordomo.expect_nothing()
    assert majordomo.stats()["waiting"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_cancelled_at_the_worker(version, majordomo):
    majordomo.ready("w", version=version)
    majordomo.ask("c", version="own")
    address = majordomo.gets("w", "hello", version=version)
    majordomo.cancel("c")
    if version == "own":
        majordomo.is_cancelled("w", address)
    majordomo.fails("c", 410)
    majordomo.ask("c", "next", version="own")
    majordomo.expect_nothing()  # it has the other in hand until it says something about it
    majordomo.reply("w", address, "late", version=version)
    majordomo.gets("w", "next", version=version)
    majordomo.expect_nothing()
    assert majordomo.stats()["late"] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_what_its_client_gave_up_is_not_repeated_when_the_worker_dies(version, majordomo):
    majordomo.ready("w1", "w2", version=version)
    majordomo.ask("c", version="own")
    majordomo.gets("w1", "hello", version=version)
    majordomo.cancel("c")
    majordomo.all_sent()
    majordomo.leave("w1", version)
    majordomo.expect_nothing()
    assert majordomo.stats()["retried"] == 0


def test_a_timeout_counts_in_the_queue_and_at_the_worker(majordomo):
    majordomo.ask("c", "a", version="own", ident="a", timeout=500)
    majordomo.sleep(0.499)
    majordomo.expect_nothing()
    majordomo.sleep(0.001)
    assert "waited" in majordomo.fails("c", 408, "a")
    majordomo.ready("w", version="own")
    majordomo.ask("c", "b", version="own", ident="b", timeout=500.5)
    address = majordomo.gets("w", "b", version="own", options='{"timeout": 500.5}')
    majordomo.sleep(0.51)
    majordomo.is_cancelled("w", address)
    assert "worked on" in majordomo.fails("c", 408, "b")
    majordomo.reply("w", address, "late", version="own")
    majordomo.ask("c", "c", version="own", ident="c", timeout=500)
    majordomo.reply("w", majordomo.gets("w", "c", version="own", options='{"timeout": 500}'), "r", version="own")
    majordomo.answered("c", "r", version="own", ident="c")
    majordomo.sleep(1)
    majordomo.expect_nothing()
    assert not len(majordomo.service._timers)


def test_when_the_broker_stops_everybody_is_told():
    majordomo = Majordomo()
    for version in VERSIONS:
        majordomo.ready(version, service=version, version=version)
        majordomo.ask(f"c{version}", version=version)
    majordomo.ask("c2", service="own", version="own")
    majordomo.all_sent()
    majordomo.stop()
    for version in VERSIONS:
        majordomo.sent_away(version, version)
    majordomo.fails("cown", 503)
    majordomo.fails("c2", 503, service="own")
    majordomo.expect_nothing()


# --- who gets what ----------------------------------------------------------------------------------------------------


def test_lru_the_longest_idle_worker_is_next(majordomo):
    majordomo.ready("w1", "w2", "w3")
    addresses = []
    for worker in ("w1", "w2", "w3"):
        majordomo.ask("c")
        addresses.append(majordomo.gets(worker, "hello"))
    for worker, address in (("w2", addresses[1]), ("w3", addresses[2]), ("w1", addresses[0])):
        majordomo.reply(worker, address, "r")
        majordomo.answered("c", "r")
    for worker in ("w2", "w3", "w1"):
        majordomo.ask("c")
        majordomo.gets(worker, "hello")


def test_least_the_worker_with_fewest_in_hand_is_next():
    majordomo = Majordomo(scheduling="least")
    majordomo.ready("w1", "w2", version="own", credit=10)
    first = []
    for number in range(6):
        majordomo.ask("c")
        first.append((number % 2, majordomo.gets(f"w{number % 2 + 1}", "hello", version="own")))
        majordomo.sleep(0.01)
    for owner, address in first:
        if owner == 0:
            majordomo.reply("w1", address, "r", version="own")
            majordomo.answered("c", "r")
    for _ in range(3):
        majordomo.ask("c")
        majordomo.gets("w1", "hello", version="own")
    conserved(majordomo.service)


def test_priority_the_most_urgent_is_next_and_what_came_back_is_first_among_its_like():
    majordomo = Majordomo(scheduling="priority")
    for ident, priority in (("a", 0), ("b", 5), ("c", 0), ("d", -3), ("e", 5)):
        majordomo.ask("c", ident, version="own", ident=ident, priority=priority)
    majordomo.ask("c", "plain")
    majordomo.ready("dies", version="own", credit=3)
    majordomo.all_sent()
    majordomo.leave("dies", "own")
    majordomo.ask("c", "f", version="own", ident="f", priority=5)
    majordomo.ready("w")
    for expected in ("b", "e", "f", "a", "c", "plain", "d"):
        majordomo.reply("w", majordomo.gets("w", expected), "r")
        majordomo.answered("c", "r", version="0.1" if expected == "plain" else "own", ident=expected)
    majordomo.expect_nothing()
    conserved(majordomo.service)


def test_sticky_a_key_stays_with_its_worker():
    majordomo = Majordomo(scheduling="sticky")
    majordomo.ready("w1", "w2", "w3", version="own", credit=100)
    owners = {}
    for number in range(60):
        key = f"key{number % 12}"
        majordomo.ask("c", key, version="own", ident=str(number), key=key)
        frames = majordomo.all_sent()[0]
        assert owners.setdefault(key, frames[0]) == frames[0]
    assert len(set(owners.values())) == 3
    majordomo.ready("w4", version="own", credit=100)
    moved = 0
    for number, (key, owner) in enumerate(owners.items()):
        majordomo.ask("c2", key, version="own", ident=str(number), key=key)
        now = majordomo.all_sent()[0][0]
        assert now in (owner, b"w4"), "they move to newcomers only"
        moved += now == b"w4"
    assert moved < 12
    conserved(majordomo.service)


def sticky(**more):
    """Two workers and, for each, a key that is theirs."""
    majordomo = Majordomo(scheduling="sticky", **more)
    majordomo.ready("w1", "w2")
    service = majordomo.service._services[b"echo"]
    keys = {}
    for number in range(100):
        keys.setdefault(service._owner(b"k%d" % number).peer.decode(), f"k{number}")
    return majordomo, keys["w1"], keys["w2"]


def test_sticky_requests_wait_for_their_worker_and_others_pass_by():
    majordomo, key1, _ = sticky()
    majordomo.ask("c", "1", version="own", ident="1", key=key1)
    one = majordomo.gets("w1", "1")
    majordomo.ask("c", "2", version="own", ident="2", key=key1)
    majordomo.expect_nothing()
    majordomo.ask("c", "free")  # w2 is idle, and who waits for w1 is no reason to wait
    two = majordomo.gets("w2", "free")
    majordomo.reply("w2", two, "r")
    majordomo.answered("c", "r")
    majordomo.expect_nothing()
    conserved(majordomo.service)
    majordomo.reply("w1", one, "r")
    majordomo.answered("c", "r", version="own", ident="1")
    majordomo.gets("w1", "2")
    conserved(majordomo.service)


def test_sticky_requests_move_when_their_worker_dies_and_wait_when_there_is_none():
    majordomo, key1, _ = sticky()
    for ident in "1234":
        majordomo.ask("c", ident, version="own", ident=ident, key=key1)
    majordomo.gets("w1", "1")
    majordomo.leave("w1")
    majordomo.gets("w2", "1")
    conserved(majordomo.service)
    majordomo.leave("w2")
    conserved(majordomo.service)
    majordomo.ready("w3", version="own", credit=2)
    assert [frames[-1] for frames in majordomo.all_sent()] == [b"1", b"2"]
    majordomo.ready("w4")
    majordomo.all_sent()
    conserved(majordomo.service)
    assert majordomo.stats()["waiting"] == 2, "they wait for w3, whatever w4 does"


def test_sticky_queues_are_bounded_and_expire():
    majordomo, key1, _ = sticky(max_queue=3, expiry=5.0)
    for number in range(200):
        majordomo.ask("c", str(number), version="own", ident=str(number), key=key1)
    service = majordomo.service._services[b"echo"]
    assert len(service.workers[b"w1"].backlog) == 3
    assert service.counts["refused"] == 196
    conserved(majordomo.service)
    majordomo.live(5.1, "w1", "w2")
    assert service.counts["expired"] == 3
    conserved(majordomo.service)


@pytest.mark.parametrize("scheduling", ["lru", "least", "priority", "sticky"])
def test_what_expires_is_counted_once_wherever_it_waits(scheduling):
    majordomo = Majordomo(scheduling=scheduling, expiry=5.0)
    majordomo.ready("w")
    for number in range(150):
        majordomo.ask("c", version="own", ident=str(number), key="k", priority=number % 3, timeout=4000 + number * 20)
    majordomo.live(2.0, "w")
    for number in range(100, 110):
        majordomo.cancel("c", str(number))
    majordomo.live(20.0, "w")
    service = majordomo.service._services[b"echo"]
    assert service.waiting == 0
    assert service.counts["expired"] == 140
    assert service.counts["cancelled"] == 10
    codes = sorted(frames[5] for frames in majordomo.all_sent() if frames[2] == b"\x04")
    assert codes == [b"408"] * 140 + [b"410"] * 10
    conserved(majordomo.service)
