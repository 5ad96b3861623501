"""Songs that are wanted often come to the neighbours, and songs of a plan where the plan says."""

from __future__ import annotations

import json

import pytest

from scale0_musicquest import wire
from scale0_musicquest.service.server.cache import HALF_LIFE, Popularity
from scale0_musicquest.service.server.replication import Demand

from .server_world import Talk, World, endpoint, holders, sha256

SONG = bytes(range(256)) * 20
HERE = "tcp://127.0.0.1:5556"
THERE = "tcp://127.0.0.1:7000"


def offered(data=SONG, name="far.ogg", **more):
    return {"name": name, "size": len(data), "sha256": sha256(data), "endpoint": THERE, **more}


@pytest.fixture
def talk(tmp_path):
    talk = Talk(tmp_path, {"own.ogg": b"own"}, chunk=1024, replicate_after=3)
    talk.join("k", "kid", 7000)
    return talk


def answer_fetches(talk, data=SONG, since=0):
    """Answer as the holder would, until nothing more is asked for."""
    answered = since
    while answered < len(talk.sent_on("holders")):
        peer, _, word, tag, _, offset, size = talk.sent_on("holders")[answered]
        answered += 1
        assert word == b"fetch"
        start = wire.read_number(offset)
        talk.feed("holders", peer, "ZMQ01", "data", tag, offset, data[start : start + wire.read_number(size)])
        talk.sleep(0.01)
    return answered - since


# --- offering ---------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M25")
def test_a_song_wanted_too_often_is_offered_to_the_neighbours_once_a_window(talk):
    def fetch(times):
        for _ in range(times):
            talk.extended("c", "fetch", "t", "own.ogg", bytes(8), wire.number(9))

    fetch(2)
    talk.extended("c", "fetch", "t", "own.ogg", wire.number(3), wire.number(9))  # reading on at the end is no start
    assert talk.told("replicate") == []
    fetch(1)
    (told,) = talk.told("replicate")
    assert (told["name"], told["size"], told["sha256"], told["endpoint"]) == (
        "own.ogg", 3, sha256(b"own"), "tcp://127.0.0.1:5556",
    )  # fmt: skip
    fetch(20)
    assert len(talk.told("replicate")) == 1
    talk.sleep(61)
    fetch(2)
    assert len(talk.told("replicate")) == 1
    fetch(1)
    assert len(talk.told("replicate")) == 2


def test_downloads_that_are_resumed_or_shared_with_other_holders_count_as_well(talk):
    for number in range(3):
        assert talk.told("replicate") == []
        talk.extended(f"c{number}", "fetch", "t", "own.ogg", wire.number(1), wire.number(9))
    assert len(talk.told("replicate")) == 1


def test_neighbours_that_are_known_to_hold_it_are_not_offered_it(talk):
    talk.feed("clients", "c", "ZMQ01", "search", "u", json.dumps({"name": "own.ogg"}))
    hit = {"name": "own.ogg", "size": 3, "sha256": sha256(b"own"), "holders": [{"endpoint": THERE, "hops": 1}]}
    talk.tell("k", "found", [["u", [hit], True]])
    for _ in range(5):
        talk.extended("c", "fetch", "t", "own.ogg", bytes(8), wire.number(9))
    assert talk.told("replicate") == []


def test_demand_slides_and_forgets():
    demand = Demand(3, 60.0)
    assert [demand.add("a", now) for now in (0.0, 50.0, 61.0, 62.0, 63.0)] == [False, False, False, True, False]
    for number in range(25_000):
        demand.add(str(number), 100.0)
    assert len(demand._starts) <= 10_000
    assert not any(Demand(0, 60.0).add("a", 0.0) for _ in range(100))


def test_popularity_halves_each_hour_and_outlives_years():
    popularity = Popularity(100)
    for _ in range(8):
        popularity.add("old.ogg", 0.0)
    popularity.add("new.ogg", 2 * HALF_LIFE)
    assert popularity.top(5, 2 * HALF_LIFE) == [("old.ogg", 2.0), ("new.ogg", 1.0)]
    popularity.add("new.ogg", 10_000 * HALF_LIFE)
    assert popularity.top(5, 10_000 * HALF_LIFE) == [("new.ogg", 1.0)]
    for number in range(1000):
        popularity.add(str(number), 10_000 * HALF_LIFE)
    assert len(popularity) <= 100


# --- taking over ------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M25")
def test_an_offer_is_pulled_verified_and_served(talk):
    events = talk.service.events = []
    talk.tell("k", "replicate", offered(title="Far", artist="Away"))
    assert answer_fetches(talk) == 5
    song = talk.service.library.get("far.ogg")
    assert (song.replica, song.title, song.artist) == (True, "Far", "Away")
    (event,) = [event for event in events if event[0].name == "song_replica"]
    told = {"peer": HERE, "subject": "far.ogg", "source": THERE, "outcome": "popular", "bytes": len(SONG)}
    assert event[0].table(event) == told
    told = json.loads(talk.extended("c", "stat", "t", "far.ogg")[1])
    assert told["replica"]
    *_, part = talk.extended("c", "fetch", "t", "far.ogg", bytes(8), wire.number(10_000))
    assert part == SONG
    assert len(talk.service.pulls) == 0
    assert talk.service.stats()["replicas"] == 1


def test_only_a_few_parts_are_asked_for_at_a_time(talk):
    talk.tell("k", "replicate", offered())
    assert len(talk.sent_on("holders")) == 2


def test_no_more_is_asked_for_while_the_disk_is_slow(tmp_path):
    data = SONG * 10
    talk = Talk(tmp_path, {}, chunk=1024, job_delay=1.0)
    talk.join("k", "kid", 7000)
    talk.tell("k", "replicate", offered(data))
    talk.sleep(1.5)
    answered, most = 0, 0
    for _ in range(200):
        while answered < len(talk.sent_on("holders")):
            peer, _, _, tag, _, offset, size = talk.sent_on("holders")[answered]
            answered += 1
            start = wire.read_number(offset)
            talk.feed("holders", peer, "ZMQ01", "data", tag, offset, data[start : start + wire.read_number(size)])
            most = max([most, *(pull.writing for pull in talk.service.pulls._active.values())])
        talk.sleep(0.5)
    assert 2 <= most <= 5  # two may be asked for, and come while two are written
    assert talk.service.library.get("far.ogg").replica
    assert answered == 50


def test_an_empty_song_is_taken_over_as_well(talk):
    talk.tell("k", "replicate", offered(b""))
    talk.sleep(0.1)
    assert talk.service.library.get("far.ogg").replica


def test_a_song_with_another_hash_than_told_is_not_served(talk):
    talk.tell("k", "replicate", offered())
    answer_fetches(talk, SONG[::-1])
    assert talk.service.library.get("far.ogg") is None
    assert talk.service.pulls.counts.failed == 1
    answered = len(talk.sent_on("holders"))
    talk.tell("k", "replicate", offered())  # and may be offered again
    answer_fetches(talk, SONG, answered)
    assert talk.service.library.get("far.ogg") is not None


def test_a_holder_that_does_not_have_it_or_falls_silent_ends_the_pull(talk):
    talk.tell("k", "replicate", offered())
    peer, _, _, tag, *_ = talk.sent_on("holders")[0]
    talk.feed("holders", peer, "ZMQ01", "NF", tag, "far.ogg")
    assert len(talk.service.pulls) == 0
    talk.tell("k", "replicate", offered())
    talk.sleep(60)
    assert len(talk.service.pulls) == 0
    assert talk.service.pulls.counts.failed == 2


def test_a_holder_that_cannot_be_connected_to_ends_the_pull(talk):
    talk.refuse_connect(THERE)
    talk.tell("k", "replicate", offered())
    assert len(talk.service.pulls) == 0
    assert talk.service.pulls.counts.failed == 1


@pytest.mark.requirement("M25")
def test_a_plan_is_followed_as_far_as_possible_and_refusals_are_told(talk):
    other = {**offered(), "holders": [THERE]}
    plan = {
        "songs": [
            other,
            {**other, "name": "own.ogg"},
            {**other, "name": "own.ogg", "sha256": sha256(b"own"), "size": 3},
            {**other, "name": "../bad.ogg"},
            {**other, "name": "huge.ogg", "size": 1 << 39},
            {**other, "name": "nobody.ogg", "holders": []},
            {**other, "name": "here.ogg", "holders": ["tcp://127.0.0.1:5556"]},
        ]
    }
    word, told = talk.extended("c", "plan", "t", plan)
    assert word == b"OK"
    told = json.loads(told)
    assert told["accepted"] == ["far.ogg"]
    assert [entry["name"] for entry in told["refused"]] == [
        "own.ogg", "own.ogg", "../bad.ogg", "huge.ogg", "nobody.ogg", "here.ogg",
    ]  # fmt: skip
    assert all(entry["why"] for entry in told["refused"])
    answer_fetches(talk)
    assert talk.service.library.get("far.ogg").replica


@pytest.mark.parametrize("nameless", [{"size": 1}, {"name": 7}, {"name": "x" * 5000}, {}])
def test_a_plan_with_a_nameless_song_is_followed_for_the_others(talk, nameless):
    """Their places must not be lost: only a few songs are taken over at a time."""
    for number in range(3):
        good = {**offered(name=f"far{number}.ogg"), "holders": [THERE]}
        word, told = talk.extended("c", "plan", "t", {"songs": [good, nameless]})
        assert word == b"OK"
        told = json.loads(told)
        assert told["accepted"] == [f"far{number}.ogg"]
        assert [entry["name"] for entry in told["refused"]] == [""]
        assert told["refused"][0]["why"]
    answer_fetches(talk)
    assert len(talk.service.pulls) == 0
    assert {f"far{number}.ogg" for number in range(3)} <= {song.name for song in talk.service.library}


def test_a_plan_that_is_no_list_of_songs_leaves_nothing_behind(talk):
    good = {**offered(), "holders": [THERE]}
    assert talk.extended("c", "plan", "t", {"songs": [good, "song"]})[:2] == [b"ERROR", b"400"]
    assert len(talk.service.pulls) == 0


def test_replicas_can_be_switched_off(tmp_path):
    talk = Talk(tmp_path, {}, replica_bytes=0)
    _, told = talk.extended("c", "plan", "t", {"songs": [{**offered(), "holders": [THERE]}]})
    assert json.loads(told)["accepted"] == []


def test_replicas_are_the_first_to_go_when_there_is_no_room(tmp_path):
    talk = Talk(tmp_path, {"own.ogg": b"own" * 1000}, chunk=8192, replica_bytes=len(SONG) + 100)
    talk.join("k", "kid", 7000)
    talk.tell("k", "replicate", offered())
    answered = answer_fetches(talk)
    talk.tell("k", "replicate", offered(SONG[::-1], "other.ogg"))
    answer_fetches(talk, SONG[::-1], answered)
    assert [song.name for song in talk.service.library] == ["other.ogg", "own.ogg"]


# --- in a tree --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M25")
def test_replication_closes_the_loop(tmp_path):
    """Wanted often, taken over by the neighbours, found there, and the load is spread."""
    world = World(tmp_path, 3, {0: {"hit.ogg": SONG}}, grace=0.0, chunk=1024, replicate_after=3, capacity=4)
    world.settle()
    for number in range(3):
        world.extended(0, "fetch", f"f{number}", "hit.ogg", wire.number(0), wire.number(1024))
    neighbours = {one.endpoint for one in world.server(0).links.neighbours}

    def replicated():
        return {server.links.endpoint for server in world.servers if "hit.ogg" in server.library} >= neighbours

    assert world.net.run_until(replicated, 30)
    asker = int(next(iter(neighbours))[-1])
    told = world.search(asker, "after", name="hit.ogg", fresh=True)
    assert set(holders(told)) == {endpoint(0), *neighbours}
    assert holders(told)[0] != endpoint(0)  # which has a client, and so more to do
    assert len({hit["sha256"] for hit in told["hits"]}) == 1
    assert {holder["endpoint"] for hit in told["hits"] for holder in hit["holders"] if holder["replica"]} == neighbours


@pytest.mark.requirement("M39")
def test_a_holder_that_is_gone_is_found_out_and_another_found(tmp_path):
    world = World(tmp_path, 4, {1: {"hit.ogg": SONG}, 2: {"hit.ogg": SONG}}, grace=0.0)
    world.settle()
    first = holders(world.search(3, "1", name="hit.ogg"))
    assert sorted(first) == [endpoint(1), endpoint(2)]
    gone = int(first[0][-1])
    world.net.kill(f"s{gone}")
    assert world.net.run_until(world.is_one_tree, 60)
    told = world.search(3, "2", name="hit.ogg")
    assert told["cached"]
    assert endpoint(gone) in holders(told)  # not known yet
    world.extended(3, "stale", "t", {"song": "hit.ogg", "endpoint": endpoint(gone)})
    world.net.run(1.0)
    told = world.search(3, "3", name="hit.ogg")
    assert holders(told) == [endpoint(3 - gone)]
