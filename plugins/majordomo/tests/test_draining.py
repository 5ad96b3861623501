"""Workers of our own dialect that are about to leave: they get nothing more, and what crosses their word is no try."""

from __future__ import annotations

import pytest

from .conversation import Majordomo, conserved, nothing_left


def asked(majordomo, *bodies):
    for body in bodies:
        majordomo.ask("c", body, version="own", ident=body)


def ready(majordomo, *workers, credit=2):
    majordomo.ready(*workers, version="own", credit=credit)


def test_after_its_word_a_worker_gets_nothing_more():
    majordomo = Majordomo()
    ready(majordomo, "w")
    asked(majordomo, "1", "2", "3")
    first, second = (majordomo.gets("w", body, version="own") for body in "12")
    majordomo.drain("w", first, second)
    majordomo.reply("w", first, "one", version="own")
    majordomo.answered("c", "one", version="own", ident="1")
    majordomo.worker_error("w", second, "500", "no")
    majordomo.fails("c", 500, ident="2")
    majordomo.expect_nothing()
    conserved(majordomo.service)
    majordomo.leave("w", "own")
    ready(majordomo, "v")
    majordomo.gets("v", "3", version="own")
    conserved(majordomo.service)


@pytest.mark.parametrize("scheduling", ["lru", "least", "priority", "sticky"])
def test_what_was_not_begun_goes_to_the_head_of_the_queue_in_its_order(scheduling):
    majordomo = Majordomo(scheduling=scheduling, max_tries=1)
    ready(majordomo, "w", credit=3)
    asked(majordomo, "1", "2", "3", "4")
    begun = majordomo.gets("w", "1", version="own")
    for body in "23":
        majordomo.gets("w", body, version="own")
    majordomo.drain("w", begun)
    majordomo.expect_nothing()
    conserved(majordomo.service)
    ready(majordomo, "v", credit=3)
    for body in "234":
        majordomo.gets("v", body, version="own")
    majordomo.reply("w", begun, "one", version="own")
    majordomo.answered("c", "one", version="own", ident="1")
    majordomo.leave("w", "own")
    conserved(majordomo.service)
    assert majordomo.totals["failed"] == 0


def test_another_worker_that_is_free_gets_it_at_once():
    majordomo = Majordomo(resend=False)
    ready(majordomo, "w", "v", credit=1)
    asked(majordomo, "1")
    majordomo.gets("w", "1", version="own")
    majordomo.drain("w")
    address = majordomo.gets("v", "1", version="own")
    majordomo.leave("w", "own")
    majordomo.reply("v", address, "one", version="own")
    majordomo.answered("c", "one", version="own", ident="1")


def test_what_was_begun_is_a_try_when_the_worker_dies_after_all():
    majordomo = Majordomo(resend=False)
    ready(majordomo, "w")
    asked(majordomo, "1")
    majordomo.drain("w", majordomo.gets("w", "1", version="own"))
    majordomo.leave("w", "own")
    majordomo.fails("c", 502)
    nothing_left(majordomo.service)


def test_what_has_sent_a_part_was_begun_whatever_the_worker_says():
    majordomo = Majordomo()
    ready(majordomo, "w")
    asked(majordomo, "1")
    majordomo.part("w", majordomo.gets("w", "1", version="own"), "part", version="own")
    majordomo.gets_part("c", "part", version="own")
    majordomo.drain("w")
    majordomo.fails("c", 502)
    conserved(majordomo.service)


def test_what_its_client_gave_up_goes_to_nobody():
    majordomo = Majordomo()
    ready(majordomo, "w", "v", credit=1)
    asked(majordomo, "1")
    address = majordomo.gets("w", "1", version="own")
    majordomo.cancel("c")
    majordomo.is_cancelled("w", address)
    majordomo.fails("c", 410)
    majordomo.drain("w")
    majordomo.expect_nothing()
    conserved(majordomo.service)


def test_keys_of_a_draining_worker_belong_to_others():
    majordomo = Majordomo(scheduling="sticky")
    ready(majordomo, "w", credit=1)
    for ident in "123":
        majordomo.ask("c", ident, version="own", ident=ident, key="k")
    options = '{"key": "k"}'
    begun = majordomo.gets("w", "1", version="own", options=options)
    ready(majordomo, "v", credit=3)
    majordomo.all_sent()
    majordomo.drain("w", begun)
    majordomo.all_sent()
    ready(majordomo, "u", credit=3)
    majordomo.all_sent()
    assert majordomo.stats()["in_hand"] == 3
    assert majordomo.stats()["waiting"] == 0
    conserved(majordomo.service)


def test_a_service_whose_workers_all_drain_is_not_offered_and_not_forgotten():
    majordomo = Majordomo()
    ready(majordomo, "w")
    asked(majordomo, "1")
    begun = majordomo.gets("w", "1", version="own")
    majordomo.drain("w", begun)
    assert majordomo.mmi("service", "echo") == 404
    assert majordomo.mmi("services") == (200, [])
    assert majordomo.mmi("workers", "echo")[1][0].items() >= {"credit": 0, "in_hand": 1}.items()
    assert majordomo.stats().items() >= {"workers": 0, "in_hand": 1, "requests": 1}.items()
    majordomo.reply("w", begun, "one", version="own")
    majordomo.answered("c", "one", version="own", ident="1")
    majordomo.leave("w", "own")
    nothing_left(majordomo.service)
    assert (majordomo.totals["requests"], majordomo.totals["replies"]) == (1, 1)


def test_a_draining_worker_is_heard_and_gets_heartbeats_as_any_other():
    majordomo = Majordomo(heartbeat=1.0, busy_timeout=10.0)
    ready(majordomo, "w")
    asked(majordomo, "1")
    majordomo.drain("w", majordomo.gets("w", "1", version="own"))
    majordomo.sleep(1.5)
    majordomo.beaten("w", "own")
    majordomo.sleep(9.0)
    majordomo.all_sent()
    assert majordomo.totals["lost_workers"] == 1
    assert majordomo.stats()["waiting"] == 1


def test_the_word_comes_once_and_from_who_is_known():
    majordomo = Majordomo()
    majordomo.drain("w")
    majordomo.sent_away("w", "own")
    ready(majordomo, "w")
    for _ in range(2):
        majordomo.drain("w", "no such address")
    majordomo.sent_away("w", "own")
    nothing_left(majordomo.service)


def test_stock_workers_that_say_it_make_no_sense():
    majordomo = Majordomo()
    majordomo.ready("w", version="0.2")
    majordomo.feed("requests", "w", "MDPW02", "\x09")
    majordomo.sent_away("w", "0.2")
    assert majordomo.totals["malformed"] == 1
