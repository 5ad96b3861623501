"""Conversations with one music server: its clients, its neighbours, and the words of the original."""

from __future__ import annotations

import json

import pytest

from scale0_core.testing import check_service
from scale0_musicquest import wire
from scale0_musicquest.server.settings import MusicServerSettings
from scale0_musicquest.service.server.batches import read_searches
from scale0_musicquest.service.server.searches import Search
from scale0_musicquest.songs import UNTOLD_SHA256, Hit, Query, Song

from .server_world import Talk, holders, make_server, sha256

SONGS = {"tune.ogg": b"la la la", "other.wav": b"", "été.flac": b"soleil", "NF": b"x", "content.mp3": b"NF"}
HERE = "tcp://127.0.0.1:5556"
HOSTILE = ["", ".", "..", ".hidden", "../etc/passwd", "a/b", "a\\b", "nul\0", b"\xff\xfe", "x" * 256, "x" * 5000]


@pytest.fixture
def talk(tmp_path):
    return Talk(tmp_path, SONGS)


def found(answer):
    assert answer[0] == b"found"
    return json.loads(answer[1])


# --- words of the original --------------------------------------------------------------------------------------------


@pytest.mark.requirement("M28")
@pytest.mark.requirement("M38")
def test_an_original_client_gets_the_holders_address_or_nf_in_one_frame(talk):
    """A root without children never answered in the original."""
    talk.feed("clients", "c", "search", "some-uuid", "tune.ogg")
    talk.expect("clients", "c", HERE)
    talk.feed("clients", "c", "search", "other-uuid", "nothing.ogg")
    talk.expect("clients", "c", "NF")
    talk.expect_nothing()


@pytest.mark.requirement("M29")
@pytest.mark.requirement("M21")
def test_an_original_client_fetches_on_the_same_socket(talk):
    talk.feed("clients", "c", "fetch", "tune.ogg", bytes(8), b"\0\0\0\0\0\0\0\x04")
    talk.expect("clients", "c", "la l")
    talk.feed("clients", "c", "fetch", "tune.ogg", b"\0\0\0\0\0\0\0\x04", b"\0\0\0\0\0\x03\xd0\x90")
    talk.expect("clients", "c", "a la")
    talk.feed("clients", "c", "fetch", "tune.ogg", b"\0\0\0\0\0\0\0\x08", b"\0\0\0\0\0\x03\xd0\x90")
    talk.expect("clients", "c", "")
    talk.feed("clients", "c", "fetch", "tune.ogg", b"\xff" * 8, b"\xff" * 8)
    talk.expect("clients", "c", "")
    talk.feed("clients", "c", "fetch", "gone.ogg", bytes(8), b"\0\0\0\0\0\0\0\x04")
    talk.expect("clients", "c", "NF")
    talk.expect_nothing()


@pytest.mark.requirement("M8")
def test_a_req_client_gets_its_empty_frame_back(talk):
    talk.feed("clients", "c", "", "search", "some-uuid", "tune.ogg")
    talk.expect("clients", "c", "", HERE)
    talk.feed("clients", "c", "", "ZMQ01", "hugz", "t")
    talk.expect("clients", "c", "", "ZMQ01", "hugz", "t")
    talk.expect_nothing()


def test_numbers_of_the_wrong_size_are_an_error_and_no_more(talk):
    for frame in (b"", b"1", b"123456789"):
        talk.feed("clients", "c", "fetch", "tune.ogg", bytes(8), frame)
        talk.expect("clients", "c", "ERROR", ...)
    talk.feed("clients", "c", "fetch", "tune.ogg")
    talk.expect("clients", "c", "ERROR", ...)
    talk.feed("clients", "c", "nonsense")
    talk.expect("clients", "c", "ERROR", ...)


@pytest.mark.requirement("M27")
@pytest.mark.requirement("M22")
def test_an_original_child_is_asked_and_answered_in_its_own_words(talk):
    talk.feed("children", "k", "add")
    talk.expect("children", "k", "OK")
    talk.feed("children", "k", "search", "u-1", "tune.ogg")
    talk.expect("children", "k", "found", "u-1", HERE, b"\0\0\0\1")
    talk.feed("children", "k", "search", "u-2", "nothing.ogg")
    talk.expect("children", "k", "found", "u-2", "NF", b"\0\0\0\1")
    talk.feed("clients", "c", "search", "u-3", "far.ogg")
    talk.expect("children", "k", "search", "u-3", "far.ogg")
    talk.feed("children", "k", "found", "u-3", "tcp://127.0.0.1:5599", b"\0\0\0\1")
    talk.expect("clients", "c", "tcp://127.0.0.1:5599")
    talk.feed("children", "k", "search", "u-3", "far.ogg")  # the same search, once around
    talk.expect("children", "k", "found", "u-3", "NF", b"\0\0\0\1")
    talk.feed("children", "k", "search", "u-4", "../passwd")
    talk.expect("children", "k", "found", "u-4", "NF", b"\0\0\0\1")
    talk.expect_nothing()


def test_what_only_an_original_server_has_is_told_after_all_else():
    told, untold = (Song("x.ogg", 1, digest) for digest in ("ab" * 32, UNTOLD_SHA256))
    search = Search("u", Query(name="x.ogg", limit=1), None, 0.0, 5.0, 0)
    search.take([Hit(untold), Hit(told)])
    assert search.best() == [Hit(told)]


@pytest.mark.requirement("M30")
def test_an_original_father_is_joined_with_add_and_searches_downwards(tmp_path):
    talk = Talk(tmp_path, SONGS, father="tcp://127.0.0.1:4400")
    talk.expect_connect("father", "tcp://127.0.0.1:4400")
    talk.expect("father", "add", ...)
    talk.feed("father", "OK")
    talk.feed("father", "search", "u-1", "tune.ogg")
    talk.expect("father", "found", "u-1", HERE, b"\0\0\0\1")
    talk.feed("clients", "c", "search", "u-2", "far.ogg")
    talk.expect("father", "search", "u-2", "far.ogg")
    talk.feed("father", "found", "u-2", "NF", b"\0\0\0\1")
    talk.expect("clients", "c", "NF")
    talk.expect_nothing()


def test_text_is_not_asked_of_original_neighbours_and_the_answer_says_that_it_is_not_complete(talk):
    talk.feed("children", "k", "add")
    told = found(talk.extended("c", "search", "u", {"text": "tune"}))
    assert [hit["name"] for hit in told["hits"]] == ["tune.ogg"]
    assert not told["complete"]


# --- the extended form ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M4")
def test_a_client_is_greeted_and_counted_until_it_says_bye(talk):
    word, told = talk.extended("c", "hello", "t", {"id": "c1"})
    assert word == b"hello"
    assert json.loads(told) == {"id": "me", "heartbeat_ms": 1_000_000_000, "chunk": 250_000}
    assert len(talk.service.uploads.clients) == 1
    assert talk.extended("c", "bye", "t") == [b"bye"]
    assert not talk.service.uploads.clients


@pytest.mark.requirement("M37")
def test_a_silent_client_is_counted_off_and_one_that_says_hugz_is_not(tmp_path):
    talk = Talk(tmp_path, SONGS, heartbeat=2.0)
    talk.extended("quiet", "hello", "t", {})
    for _ in range(6):
        talk.extended("lively", "hugz", "t")
        talk.sleep(2.0)
    assert list(talk.service.uploads.clients) == [b"lively"]


def test_a_client_that_cannot_be_reached_is_counted_off(talk):
    talk.refuse("clients", "c")
    talk.feed("clients", "c", "ZMQ01", "hugz", "t")
    assert not talk.service.uploads.clients


@pytest.mark.requirement("M5")
@pytest.mark.requirement("M20")
def test_a_search_tells_all_that_is_known_of_a_song_and_who_holds_it(talk):
    told = found(talk.extended("c", "search", "u", {"name": "tune.ogg"}))
    (hit,) = told["hits"]
    assert (hit["name"], hit["size"], hit["sha256"]) == ("tune.ogg", 8, sha256(b"la la la"))
    assert hit["holders"] == [{"endpoint": HERE, "load": 0.01, "hops": 0, "replica": False}]
    assert told["complete"]


def test_songs_are_found_by_text_and_what_is_not_found_comes_with_suggestions(talk):
    assert [hit["name"] for hit in found(talk.extended("c", "search", "1", {"text": "ETE"}))["hits"]] == ["été.flac"]
    told = found(talk.extended("c", "search", "2", {"text": "tuna"}))
    assert not told["hits"]
    assert told["suggestions"]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_not_found_and_open_nothing(talk, name):
    assert talk.extended("c", "stat", "t", name)[0] == b"NF"
    assert talk.extended("c", "fetch", "t", name, bytes(8), wire.number(10))[0] == b"NF"
    assert talk.ask("c", "fetch", name, bytes(8), wire.number(10)) == [(b"NF",)]
    assert talk.ask("c", "search", "u", name) == [(b"NF",)]
    if isinstance(name, str):
        assert talk.extended("c", "search", "t", {"name": name})[:2] == [b"ERROR", b"400"]


def test_stat_list_and_top(talk):
    word, told = talk.extended("c", "stat", "t", "tune.ogg")
    table = json.loads(told)
    assert word == b"stat"
    assert table.pop("chunk") == 250_000
    assert Song.from_json(table).sha256 == sha256(b"la la la")
    _, told = talk.extended("c", "list", "t", {"offset": 1, "limit": 2})
    listed = json.loads(told)
    assert listed["total"] == len(talk.service.library)
    assert len(listed["songs"]) == 2
    for uuid in ("1", "2"):
        talk.extended("c", "search", uuid, {"name": "tune.ogg"})
    talk.extended("c", "search", "3", {"name": "other.wav"})
    _, told = talk.extended("c", "top", "t", {"limit": 5})
    assert [entry["name"] for entry in json.loads(told)] == ["tune.ogg", "other.wav"]


def test_answers_with_many_long_rows_are_cut_to_what_a_client_reads(talk):
    for number in range(1000):
        song = Song(f"{number:04}.ogg", 1, "ab" * 32, "rock " + "t" * 890, "a" * 900, "l" * 900)
        talk.service.library.add(song)
        talk.service.popularity.add(song.name, talk.now)
    questions = [("list", {"limit": 1000}), ("top", {"limit": 1000}), ("search", {"text": "rock", "limit": 1000})]
    for word, query in questions:
        frame = talk.extended("c", word, "t", query)[1]
        assert len(frame) <= wire.MAX_JSON
        told = json.loads(frame)
        rows = told if word == "top" else told["songs" if word == "list" else "hits"]
        assert len(rows) > (400 if word == "top" else 200)
        if word == "list":
            assert told["total"] == len(talk.service.library)
            following = talk.extended("c", word, "t", {"offset": len(rows), "limit": 1})[1]
            assert json.loads(following)["songs"][0]["name"] not in {row["name"] for row in rows}
        if word == "search":
            assert not told["complete"]


@pytest.mark.parametrize("word", ["hello", "search", "dance"])
def test_a_tag_that_is_too_long_to_be_repeated_is_refused(talk, word):
    talk.feed("clients", "c", "", "ZMQ01", word, "t" * 65, json.dumps({"name": "tune.ogg"}))
    talk.expect("clients", "c", "", "ZMQ01", "ERROR", "", "400", "a tag has at most 64 bytes")
    assert talk.extended("c", "hello", "t" * 64)[0] == b"hello"
    assert talk.extended("c", "hello", "")[0] == b"hello"


def test_stats_tell_what_was_done(talk):
    talk.extended("c", "search", "1", {"name": "tune.ogg"})
    talk.extended("c", "fetch", "f", "tune.ogg", bytes(8), wire.number(100))
    _, told = talk.extended("c", "stats", "t")
    table = json.loads(told)
    assert table["id"] == "me"
    assert table["searches"]["found"] == 1
    assert table["uploads"]["downloads"] == table["uploads"]["whole"] == 1
    assert table["uploads"]["bytes"] == 8


def test_what_is_not_understood_is_answered_with_400(talk):
    assert talk.extended("c", "dance", "t")[:2] == [b"ERROR", b"400"]
    assert talk.extended("c", "search", "t", "no json")[:2] == [b"ERROR", b"400"]
    assert talk.extended("c", "search", "t", {})[:2] == [b"ERROR", b"400"]
    assert talk.extended("c", "search", "t", '{"text": "\\ud800"}')[:2] == [b"ERROR", b"400"]
    assert talk.extended("c", "fetch", "t", "a")[:2] == [b"ERROR", b"400"]
    assert talk.extended("c", "list", "t", {"limit": -1})[:2] == [b"ERROR", b"400"]


# --- searches and neighbours ------------------------------------------------------------------------------------------


def hit(name, *endpoints, load=0.5, hops=1, data=b"far"):
    told = {"name": name, "size": len(data), "sha256": sha256(data)}
    return {**told, "holders": [{"endpoint": one, "load": load, "hops": hops} for one in endpoints]}


@pytest.mark.requirement("M34")
def test_several_searches_are_told_apart_by_uuid_and_go_in_one_message(talk):
    talk.join("k", "kid", 7000)
    before = len(talk.sent)
    # all at one moment: nothing is sent until the loop has taken all that came
    service, now = talk.service, talk.now
    for number in range(3):
        body = wire.to_json({"name": f"far{number}.ogg"})
        assert not service.receive("clients", (b"c", b"ZMQ01", b"search", b"u%d" % number, body), now)
    talk.sleep(0)
    talk.feed("clients", "c", "ZMQ01", "hugz", "t")
    (batch,) = talk.told("search", since=before)
    assert [(item[0], item[1], item[3]) for item in batch] == [
        (f"u{number}", {"name": f"far{number}.ogg"}, 1) for number in range(3)
    ]
    talk.tell("k", "found", [["u2", [], True], ["u0", [hit("far0.ogg", "tcp://127.0.0.1:7000")], True]])
    talk.tell("k", "found", ["u1"])
    answers = {frames[2]: json.loads(frames[3]) for frames in talk.answers("c") if frames[1] == b"found"}
    assert {uuid: len(told["hits"]) for uuid, told in answers.items()} == {b"u2": 0, b"u0": 1, b"u1": 0}


@pytest.mark.requirement("M38")
def test_when_the_time_is_over_the_client_is_told_what_was_found_by_then(tmp_path):
    talk = Talk(tmp_path, SONGS, grace=0.0)
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.feed("clients", "c", "ZMQ01", "search", "u", json.dumps({"name": "far.ogg", "timeout_ms": 1000}))
    talk.tell("k", "found", [["u", [hit("far.ogg", "tcp://127.0.0.1:7000")], True]])
    talk.sleep(0.9)
    assert not talk.answers("c")
    talk.sleep(0.2)
    told = json.loads(talk.answers("c")[0][3])
    assert holders(told) == ["tcp://127.0.0.1:7000"]
    assert not told["complete"]
    talk.tell("q", "found", [["u", [], True]])  # too late
    assert len(talk.answers("c")) == 1


def test_each_hop_is_given_less_time_than_the_one_before(talk):
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.feed("clients", "c", "ZMQ01", "search", "u", json.dumps({"name": "far.ogg"}))
    assert {item[2] for batch in talk.told("search") for item in batch} == {4480}
    talk.tell("k", "search", [["v", {"name": "x.ogg"}, 1000, 3]])
    ((_, _, left, hops),) = talk.told("search", peer="q")[-1]
    assert (left, hops) == (880, 4)
    before = len(talk.sent)
    talk.sleep(1.1)
    assert talk.told("found", since=before) == [[["v", [], False]]]


def test_a_search_that_has_come_as_far_as_may_be_is_not_passed_on(talk):
    """The next server would refuse it, and with it all others of the message."""
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.tell("k", "search", [["far", {"name": "tune.ogg"}, 1000, 1000], ["near", {"name": "tune.ogg"}, 1000, 999]])
    (batch,) = talk.told("search", peer="q")
    assert [(uuid, hops) for uuid, _, _, hops in batch] == [("near", 1000)]
    ((answer,),) = talk.told("found", peer="k")
    uuid, hits, complete = answer
    assert (uuid, len(hits), complete) == ("far", 1, False)
    assert len(read_searches(json.dumps(batch).encode())) == 1


def test_the_asker_is_not_asked_and_a_search_seen_before_is_answered_with_nothing(talk):
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    before = len(talk.sent)
    talk.tell("k", "search", [["v", {"name": "tune.ogg"}, 1000, 3]])
    assert talk.told("search", peer="k", since=before) == []
    talk.tell("q", "search", [["v", {"name": "tune.ogg"}, 1000, 3]])
    assert talk.told("found", peer="q", since=before) == [["v"]]
    talk.tell("q", "found", [["v", [], True]])
    ((_, hits, complete),) = talk.told("found", peer="k", since=before)[-1]
    assert complete
    assert hits[0]["holders"] == [{"endpoint": HERE, "load": 0.0, "hops": 3, "replica": False}]


@pytest.mark.requirement("M38")
def test_a_neighbour_that_is_lost_is_waited_for_no_longer(tmp_path):
    talk = Talk(tmp_path, SONGS)
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.feed("clients", "c", "search", "u", "far.ogg")
    talk.tell("k", "found", [["u", [], True]])
    talk.refuse("children", "q")
    talk.lose_peer("children")
    talk.sleep(0.1)
    assert talk.answers("c") == [(b"NF",)]
    assert [child.ident for child in talk.service.links.children.values()] == ["kid"]


def test_the_best_holder_comes_first_and_holders_of_the_same_song_are_united(tmp_path):
    talk = Talk(tmp_path, {"far.ogg": b"far"}, grace=0.0)
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.feed("clients", "c", "ZMQ01", "search", "u", json.dumps({"name": "far.ogg"}))
    near = hit("far.ogg", "tcp://127.0.0.1:7000", load=0.0, hops=1)
    farther = hit("far.ogg", "tcp://127.0.0.1:7300", load=0.0, hops=2)
    talk.tell("k", "found", [["u", [farther, near], True]])
    talk.tell("q", "found", [["u", [hit("far.ogg", "tcp://127.0.0.1:7100", data=b"another"), near], True]])
    told = json.loads(talk.answers("c")[0][3])
    assert [[holder["endpoint"][-4:] for holder in one["holders"]] for one in told["hits"]] == [
        ["7000", "7300", "5556"],
        ["7100"],
    ]


def test_after_the_first_hit_others_are_given_a_moment_only(talk):
    talk.join("k", "kid", 7000)
    talk.join("q", "quiet", 7100)
    talk.feed("clients", "c", "ZMQ01", "search", "u", json.dumps({"name": "far.ogg"}))
    talk.sleep(1.0)
    talk.tell("k", "found", [["u", [hit("far.ogg", "tcp://127.0.0.1:7000")], True]])
    assert not talk.answers("c")
    talk.sleep(0.07)
    assert holders(json.loads(talk.answers("c")[0][3])) == ["tcp://127.0.0.1:7000"]


def test_a_uuid_that_is_in_use_or_no_text_still_gets_its_answer(talk):
    talk.join("k", "kid", 7000)
    for peer in ("c", "d"):
        talk.feed("clients", peer, "ZMQ01", "search", "same", json.dumps({"name": "far.ogg"}))
    talk.feed("clients", "e", "ZMQ01", "search", b"\xff", json.dumps({"name": "far.ogg"}))
    uuids = [item[0] for batch in talk.told("search") for item in batch]
    assert len(set(uuids)) == 3
    talk.feed("clients", "c", "ZMQ01", "search", "same", json.dumps({"name": "far.ogg"}))  # only repeated
    assert len([item for batch in talk.told("search") for item in batch]) == 3
    talk.tell("k", "found", [[uuid, [], True] for uuid in uuids])
    assert [frames[2] for peer in "cde" for frames in talk.answers(peer)] == [b"same", b"same", b"\xff"]


def test_the_uuids_of_namesakes_differ(tmp_path):
    """What tells their ids apart is at the end."""
    uuids = set()
    for number in range(2):
        talk = Talk(tmp_path / str(number), ident=f"{'x' * 40}-{number:08x}")
        talk.join("k", "kid", 7000)
        talk.feed("clients", "c", "search", b"\xff", "far.ogg")
        uuids |= {item[0] for batch in talk.told("search") for item in batch}
    assert len(uuids) == 2
    assert all(len(uuid) <= 64 for uuid in uuids)


def test_too_many_searches_at_once_are_refused(tmp_path):
    talk = Talk(tmp_path, SONGS, max_searches=2)
    talk.join("k", "kid", 7000)
    for number in range(3):
        talk.feed("clients", "c", "ZMQ01", "search", f"u{number}", json.dumps({"name": f"{number}.ogg"}))
    assert talk.answers("c")[-1][:4] == (b"ZMQ01", b"ERROR", b"u2", b"429")
    before = len(talk.sent)
    talk.join("q", "quiet", 7100)
    talk.tell("q", "search", [["v", {"name": "tune.ogg"}, 1000, 3]])
    ((uuid, hits, complete),) = talk.told("found", peer="q", since=before)[0]
    assert (uuid, len(hits), complete) == ("v", 1, False)


@pytest.mark.parametrize("value", [{}, [1], [["u"]], [["", {"name": "x"}, 1, 1]], [["é", {"name": "x"}, 1, 1]],
                                   [["u", {"name": "../x"}, 1, 1]], [["u", {}, 1, 1]], [["u", {"name": "x"}, -1, 1]],
                                   [["u", {"name": "x"}, 1, True]], [["u", {"name": "x"}, 10**9, 1]]])  # fmt: skip
def test_malformed_searches_of_neighbours_are_answered_with_an_error(talk, value):
    talk.join("k", "kid", 7000)
    talk.tell("k", "search", value)
    assert talk.sent_on("children")[-1][:4] == (b"k", b"ZMQ01", b"ERROR", b"400")


# --- the cache --------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M23")
@pytest.mark.requirement("M24")
def test_what_was_found_is_remembered_and_told_at_once(talk):
    talk.join("k", "kid", 7000)
    talk.feed("clients", "c", "ZMQ01", "search", "1", json.dumps({"name": "far.ogg"}))
    talk.tell("k", "found", [["1", [hit("far.ogg", "tcp://127.0.0.1:7000")], True]])
    before = len(talk.sent)
    told = found(talk.extended("d", "search", "2", {"name": "far.ogg"}))
    assert told["cached"]
    assert holders(told) == ["tcp://127.0.0.1:7000"]
    assert not talk.told("search", since=before)
    assert talk.ask("e", "search", "3", "far.ogg") == [(b"tcp://127.0.0.1:7000",)]
    talk.feed("clients", "c", "ZMQ01", "search", "4", json.dumps({"name": "far.ogg", "fresh": True}))
    assert talk.told("search", since=before)
    talk.tell("k", "found", [["4", [], True]])
    talk.sleep(601)
    talk.feed("clients", "c", "ZMQ01", "search", "5", json.dumps({"name": "far.ogg"}))
    assert talk.told("search", since=before)[-1][0][0] == "5"


def test_what_nobody_has_is_remembered_for_a_short_time(talk):
    talk.join("k", "kid", 7000)
    talk.feed("clients", "c", "ZMQ01", "search", "1", json.dumps({"name": "far.ogg"}))
    talk.tell("k", "found", [["1", [], True]])
    assert found(talk.extended("c", "search", "2", {"name": "far.ogg"}))["cached"]
    talk.sleep(5.1)
    talk.feed("clients", "c", "ZMQ01", "search", "3", json.dumps({"name": "far.ogg"}))
    assert talk.told("search")[-1][0][0] == "3"


@pytest.mark.requirement("M39")
def test_a_stale_holder_is_dropped_and_the_song_searched_for_afresh(talk):
    talk.join("k", "kid", 7000)
    talk.feed("clients", "c", "ZMQ01", "search", "1", json.dumps({"name": "far.ogg"}))
    talk.tell("k", "found", [["1", [hit("far.ogg", "tcp://127.0.0.1:7777")], True]])
    before = len(talk.sent)
    told = {"song": "far.ogg", "endpoint": "tcp://127.0.0.1:7777"}
    assert talk.extended("c", "stale", "t", told) == [b"OK"]
    ((uuid, query, *_),) = talk.told("search", since=before)[0]
    assert query == {"name": "far.ogg"}
    talk.tell("k", "found", [[uuid, [hit("far.ogg", "tcp://127.0.0.1:7000")], True]])
    assert holders(found(talk.extended("c", "search", "2", {"name": "far.ogg"}))) == ["tcp://127.0.0.1:7000"]
    assert talk.extended("c", "stale", "t", {"song": "unknown", "endpoint": HERE}) == [b"OK"]
    assert talk.extended("c", "stale", "t", {"song": "x"})[:2] == [b"ERROR", b"400"]


def test_the_folder_is_not_looked_at_each_time_that_somebody_says_so(tmp_path):
    talk = Talk(tmp_path, SONGS)
    watch = talk.service._watches[0]
    looks = 0
    scan = watch._shelf.scan

    def counted():
        nonlocal looks
        looks += 1
        return scan()

    watch._shelf.scan = counted
    talk.sleep(10)
    for _ in range(100):
        talk.extended("c", "stale", "t", {"song": "tune.ogg", "endpoint": HERE})
    assert looks == 1
    talk.sleep(60)
    assert looks == 2


@pytest.mark.requirement("M23")
def test_of_a_full_cache_the_least_popular_go(tmp_path):
    talk = Talk(tmp_path, SONGS, cache_size=40)
    talk.join("k", "kid", 7000)

    def search(uuid, name):
        talk.feed("clients", "c", "ZMQ01", "search", uuid, json.dumps({"name": name}))
        talk.tell("k", "found", [[uuid, [hit(name, "tcp://127.0.0.1:7000")], True]])

    for turn in range(3):
        search(f"popular-{turn}", "popular.ogg")
    for number in range(200):
        search(f"rare-{number}", f"{number}.ogg")
        assert len(talk.service.cache) <= 40
    assert found(talk.extended("d", "search", "again", {"name": "popular.ogg"}))["cached"]


# --- adverts ----------------------------------------------------------------------------------------------------------


@pytest.mark.requirement("M36")
def test_adverts_are_off_by_default_and_given_in_turn_when_there_is_a_folder(tmp_path, talk):
    assert talk.ask("c", "adver") == [(b"NF",)]
    assert talk.extended("c", "adver", "t") == [b"NF"]
    other = Talk(tmp_path / "other", SONGS, adverts={"buy.ogg": b"buy now", "more.ogg": b"and more"})
    names = {other.ask("c", "adver")[0][0] for _ in range(2)}
    assert names == {b"buy.ogg", b"more.ogg"}
    assert other.ask("c", "fetch", "adver", "buy.ogg", bytes(8), wire.number(100)) == [(b"buy now",)]
    assert other.ask("c", "fetch", "adver", "tune.ogg", bytes(8), wire.number(100)) == [(b"NF",)]
    assert other.ask("c", "fetch", "adver", "../x", bytes(8), wire.number(100)) == [(b"NF",)]
    assert other.extended("c", "fetch", "t", "adver", "buy.ogg", wire.number(4), wire.number(100))[-1] == b"now"
    assert not other.service.uploads.counts.downloads


# --- events, and whatever comes ---------------------------------------------------------------------------------------


def test_searches_and_downloads_are_told_to_whoever_observes(talk):
    events = talk.service.events = []
    talk.extended("c", "search", "1", {"name": "tune.ogg"})
    talk.extended("c", "search", "2", {"text": "nowhere"})
    talk.extended("c", "search", "3", {"album": "No Such Album"})
    talk.extended("c", "fetch", "f", "tune.ogg", bytes(8), wire.number(4))
    talk.extended("c", "fetch", "f", "tune.ogg", wire.number(4), wire.number(4))
    talk.extended("c", "fetch", "f", "été.flac", bytes(8), wire.number(2))
    talk.extended("c", "bye", "t")
    searched = {"peer": HERE, "subject": None, "text": None, "service_us": 0}
    assert [(kind.name, kind.table((kind, now, *values))) for kind, now, *values in events] == [
        ("song_search", {**searched, "subject": "tune.ogg", "outcome": "hit"}),
        ("song_search", {**searched, "text": "nowhere", "outcome": "miss"}),
        ("song_search", {**searched, "text": "No Such Album", "outcome": "miss"}),
        ("song_download", {"peer": HERE, "subject": "tune.ogg", "bytes": 8, "outcome": "ok"}),
        ("song_download", {"peer": HERE, "subject": "été.flac", "bytes": 2, "outcome": "broken"}),
    ]
    assert all(event[1] == talk.now for event in events)


def test_it_is_told_where_what_was_found_is(talk):
    talk.join("k", "kid", 7000)
    events = talk.service.events = []

    def outcomes():
        told = [(event[0].table(event)["outcome"], event[0].table(event)["service_us"]) for event in events]
        events.clear()
        return told

    talk.feed("clients", "c", "ZMQ01", "search", "1", json.dumps({"name": "far.ogg"}))
    talk.sleep(0.25)
    talk.tell("k", "found", [["1", [hit("far.ogg", "tcp://127.0.0.1:7000")], True]])
    assert outcomes() == [("found", 250_000)]
    talk.extended("c", "search", "2", {"name": "far.ogg"})
    assert outcomes() == [("cached", 0)]
    for number in ("3", "4"):  # the second time, the cache says that nobody has it
        talk.feed("clients", "c", "ZMQ01", "search", number, json.dumps({"name": "lost.ogg"}))
        talk.tell("k", "found", [[number, [], True]])
    assert outcomes() == [("miss", 0), ("miss", 0)]
    for number in ("5", "6"):  # the second time, the cache knows of another holder as well
        talk.feed("clients", "c", "ZMQ01", "search", number, json.dumps({"name": "tune.ogg"}))
        talk.tell("k", "found", [[number, [hit("tune.ogg", "tcp://127.0.0.1:7000")], True]])
    assert [outcome for outcome, _ in outcomes()] == ["hit", "hit"]
    talk.feed("clients", "c", "ZMQ01", "search", "7", json.dumps({"text": "nowhere", "timeout_ms": 100}))
    talk.sleep(1.0)
    assert [outcome for outcome, _ in outcomes()] == ["timeout"]


def samples():
    offer = {"name": "far.ogg", "size": 3, "sha256": sha256(b"far"), "endpoint": "tcp://127.0.0.1:7000"}
    me = {"id": "kid", "endpoint": "tcp://127.0.0.1:7000", "children_endpoint": "tcp://127.0.0.1:7001"}
    above = {"id": "dad", "endpoint": HERE, "children_endpoint": "tcp://127.0.0.1:4400", "path": ["root"]}
    father = {"id": "dad", "children_endpoint": "tcp://127.0.0.1:4400"}
    plan = {"songs": [{**offer, "holders": ["tcp://127.0.0.1:7000"]}]}
    clients = [
        ("search", "uuid", "tune.ogg"), ("fetch", "tune.ogg", bytes(8), wire.number(9)), ("adver",),
        ("ZMQ01", "hello", "t", {}), ("ZMQ01", "hugz", "t"), ("ZMQ01", "bye", "t"),
        ("ZMQ01", "search", "t", {"name": "tune.ogg", "timeout_ms": 50}), ("ZMQ01", "search", "t", {"text": "tune"}),
        ("ZMQ01", "stat", "t", "tune.ogg"), ("ZMQ01", "list", "t", {"offset": 0, "limit": 3}),
        ("ZMQ01", "top", "t", {}), ("ZMQ01", "fetch", "t", "tune.ogg", bytes(8), wire.number(9)),
        ("ZMQ01", "stale", "t", {"song": "tune.ogg", "endpoint": HERE}), ("ZMQ01", "plan", "t", plan),
        ("ZMQ01", "stats", "t"),
    ]  # fmt: skip
    neighbours = [
        ("ZMQ01", "search", [["u1", {"name": "tune.ogg"}, 1000, 1], ["u2", {"text": "la"}, 1000, 2]]),
        ("ZMQ01", "found", [["u1", [hit("far.ogg", "tcp://127.0.0.1:7000")], True]]),
        ("ZMQ01", "hugz", {"path": ["root"], "grandfather": ""}), ("ZMQ01", "bye"), ("ZMQ01", "replicate", offer),
        ("search", "u3", "tune.ogg"), ("found", "u3", HERE, bytes(4)), ("ZMQ01", "ERROR", "404", "who"),
    ]  # fmt: skip
    yield from (("clients", ("c1", *frames)) for frames in clients)
    yield from (("children", ("k1", *frames)) for frames in [("add",), ("add", me), *neighbours])
    yield from (
        ("father", frames) for frames in [("OK",), ("OK", above), ("full", [HERE]), ("ERROR", "no"), *neighbours]
    )
    yield from (("broker", frames) for frames in [("", "OK"), ("", "OK", {"lease_ms": 300, "father": father})])
    yield from (("holders", ("1", "ZMQ01", "data", "1", bytes(8), "far")) for _ in range(1))


def encoded(frames):
    plain = (frame if isinstance(frame, bytes | str) else json.dumps(frame) for frame in frames)
    return tuple(frame if isinstance(frame, bytes) else frame.encode() for frame in plain)


@pytest.mark.seeds(4)
def test_the_service_keeps_its_contract_whatever_comes(tmp_path, seed):
    father = ("", "none", "tcp://127.0.0.1:4400", "")[seed]
    report = check_service(
        lambda: make_server(tmp_path, SONGS, father=father, heartbeat=0.5, chunk=1024),
        messages=4000,
        seed=seed,
        samples=[(socket, encoded(frames)) for socket, frames in samples()],
    )
    assert report.jobs


def test_the_settings_have_help_and_sensible_values():
    settings = MusicServerSettings()
    assert settings.chunk == 250_000
    with pytest.raises(ValueError, match="slots"):
        MusicServerSettings(slots=-1)
    with pytest.raises(ValueError, match="deadline"):  # neighbours would refuse such searches
        MusicServerSettings(deadline=601.0)
