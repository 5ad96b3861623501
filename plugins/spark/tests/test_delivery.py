"""Plans reach real music servers and a real discovery, and are acted upon. Needs no Spark."""

import json
import socket
from datetime import datetime, timedelta, timezone
from threading import Thread

import pyarrow as pa
import pytest
import zmq
from click.testing import CliRunner

from scale0_core.cli import kit
from scale0_spark import command, tables
from scale0_spark.delivery import apply_placement, apply_replication

from .music_quest import ANY, PATIENCE, Quest, advice_at, ask, holders, until

SONG = b"song" * 100_000


@pytest.fixture
def quest(scale0_broker, tmp_path):
    return Quest(scale0_broker, tmp_path)


def wanted(song, server, source):
    return {"song": song, "server": server, "source": source, "score": 1.0, "wanted": 5, "reason": "wanted there"}


def states(outcome):
    return {(row.song, row.server): row.state for row in outcome.rows}


@pytest.fixture
def nowhere():
    """Give an address at which nobody is."""
    with socket.socket() as taken:  # bound and not listening: nobody else gets this port
        taken.bind(("127.0.0.1", 0))
        yield f"tcp://127.0.0.1:{taken.getsockname()[1]}"


def sent(*words):
    """Run `scale0 spark apply`."""
    return CliRunner().invoke(command.main, ["apply", *map(str, words), "-o", "json"])


# --- songs ------------------------------------------------------------------------------------------------------------


def test_a_plan_makes_replicas_and_the_next_search_finds_them(quest):
    first = quest.server({"a.ogg": SONG, "b.ogg": b"b" * 1000})
    second, third = quest.server({}), quest.server({"c.ogg": b"c" * 1000})
    rows = [wanted("a.ogg", second, first), wanted("a.ogg", third, first), wanted("c.ogg", second, third)]
    said = []
    outcome = apply_replication(rows, timeout=PATIENCE, wait=PATIENCE, progress=said.append)
    assert [(row.state, row.why) for row in outcome.rows] == [("arrived", "")] * 3
    assert (outcome.complete, outcome.counts) == (True, {"arrived": 3})
    assert said[-1] == "3 of 3 songs have arrived"
    for server in (first, second, third):
        assert holders(server, "a.ogg") >= {server}, "each finds it at home"
    until(lambda: holders(first, "a.ogg") == {first, second, third})
    assert holders(second, "c.ogg") >= {second}
    again = apply_replication(rows, timeout=PATIENCE)
    assert again.counts == {"present": 3}, "who asks twice gets the same"
    assert json.loads(json.dumps(again.to_json()))["counts"] == {"present": 3}


def test_a_plan_that_stands_in_the_tables_is_sent_without_a_job(quest, tmp_path):
    first, second = quest.server({"a.ogg": SONG}), quest.server({})
    rows = [wanted("a.ogg", second, first)]
    tables.write(tmp_path / "tables", "replication_plan", pa.Table.from_pylist(rows))
    words = ("replication", "--out", tmp_path / "tables", "--wait", PATIENCE)
    done = sent(*words)
    assert (done.exit_code, [row["state"] for row in json.loads(done.stdout)["items"]]) == (0, ["arrived"])
    assert "1 of 1 songs have arrived" in done.stderr
    again = sent(*words, "--quiet")
    assert (again.stderr, json.loads(again.stdout)["items"][0]["state"]) == ("", "present")
    rows = [wanted("none.ogg", second, first)]
    tables.write(tmp_path / "tables", "replication_plan", pa.Table.from_pylist(rows))
    assert sent(*words).exit_code == kit.Exit.NEGATIVE


def test_without_waiting_it_is_on_its_way(quest):
    first, second = quest.server({"a.ogg": SONG}), quest.server({})
    outcome = apply_replication([wanted("a.ogg", second, first)], timeout=PATIENCE)
    assert (outcome.counts, outcome.complete) == ({"accepted": 1}, True)
    until(lambda: second in holders(second, "a.ogg"))


def test_a_plan_of_many_songs_goes_in_parts(quest):
    names = [f"{number}.ogg" for number in range(450)]
    first, second = quest.server({name: name.encode() for name in names}), quest.server({})
    outcome = apply_replication([wanted(name, second, first) for name in names], timeout=PATIENCE, wait=PATIENCE * 2)
    assert outcome.counts == {"arrived": 450}


def test_what_is_refused_is_told(quest):
    first, second = quest.server({"a.ogg": SONG}), quest.server({})
    closed, small = quest.server({}, plans=False), quest.server({}, replica_bytes=1000)
    other = quest.server({"a.ogg": b"another song"})
    rows = [
        wanted("a.ogg", second, first), wanted("nobody.ogg", second, first), wanted("a.ogg", closed, first),
        wanted("a.ogg", small, first), wanted("a.ogg", other, first), wanted("a.ogg", first, other),
    ]  # fmt: skip
    outcome = apply_replication(rows, timeout=PATIENCE)
    assert states(outcome) == {
        ("a.ogg", second): "accepted", ("nobody.ogg", second): "refused", ("a.ogg", closed): "refused",
        ("a.ogg", small): "refused", ("a.ogg", other): "refused", ("a.ogg", first): "refused",
    }  # fmt: skip
    assert not outcome.complete
    why = {(row.song, row.server): row.why for row in outcome.rows}
    assert why["nobody.ogg", second] == f"{first} does not hold this song"
    assert why["a.ogg", closed] == "plans are not taken here"
    assert "larger" in why["a.ogg", small]
    assert "another song" in why["a.ogg", other]


def test_who_is_not_there_is_told(quest, nowhere):
    first = quest.server({"a.ogg": SONG})
    (row,) = apply_replication([wanted("b.ogg", first, nowhere)], timeout=0.3).rows
    assert (row.state, row.why.startswith(nowhere)) == ("unreachable", True)
    (row,) = apply_replication([wanted("a.ogg", nowhere, first)], timeout=2.0).rows  # first has to answer within that
    assert (row.state, "nobody is there" in row.why) == ("unreachable", True)


def test_another_holder_is_found_when_the_source_is_gone(quest, nowhere):
    first, second = quest.server({"a.ogg": SONG}), quest.server({})
    until(lambda: holders(second, "a.ogg") == {first})
    rows = [wanted("a.ogg", second, nowhere), wanted("nobody.ogg", second, first)]
    outcome = apply_replication(rows, broker=quest.address, timeout=2.5, wait=PATIENCE)
    assert states(outcome) == {("a.ogg", second): "arrived", ("nobody.ogg", second): "refused"}
    assert outcome.rows[1].why == "no server holds this song"
    assert second in holders(second, "a.ogg")


def test_a_music_broker_that_is_away_is_told(quest, nowhere):
    second = quest.server({})
    (row,) = apply_replication([wanted("a.ogg", second, second)], broker=nowhere, timeout=0.5).rows
    assert (row.state, nowhere in row.why) == ("unreachable", True)


def test_a_broker_without_a_music_broker_is_not_asked(quest):
    second, said = quest.server({}), []
    (row,) = apply_replication([wanted("a.ogg", second, second)], broker="gone", timeout=2.5, progress=said.append).rows
    assert row.state == "refused"
    assert [text for text in said if "no music broker is asked: no broker gone runs" in text]


def test_a_server_that_says_nothing_is_given_up(quest):
    first = quest.server({"a.ogg": SONG})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        silent.linger = 0
        address = f"tcp://127.0.0.1:{silent.bind_to_random_port('tcp://127.0.0.1')}"
        (row,) = apply_replication([wanted("a.ogg", address, first)], timeout=2.0, wait=5.0).rows
    assert (row.state, row.why) == ("unreachable", "no answer within 2 s")


def test_a_song_that_does_not_come_is_late(quest):
    """The holder knows the song, and ends before it can be fetched."""
    first, second = quest.server({"a.ogg": SONG}), quest.server({})
    with zmq.Context() as context, context.socket(zmq.ROUTER) as holder:
        holder.linger = 0
        address = f"tcp://127.0.0.1:{holder.bind_to_random_port('tcp://127.0.0.1')}"
        told = ask(first, "search", {"name": "a.ogg"})["hits"][0]

        def answer_once():
            peer, header, word, tag, *_ = holder.recv_multipart()
            assert word == b"stat"
            holder.send_multipart([peer, header, b"stat", tag, json.dumps(told).encode()])

        thread = Thread(target=answer_once, daemon=True)
        thread.start()
        (row,) = apply_replication([wanted("a.ogg", second, address)], timeout=PATIENCE, wait=1.0).rows
        thread.join(PATIENCE)
    assert (row.state, row.why) == ("late", "accepted, but not there after 1 s")


def test_no_rows_are_no_work():
    assert apply_replication([]).rows == ()


def test_a_row_that_makes_no_sense_is_refused():
    (row,) = apply_replication([wanted("a.ogg", "inproc://x", "tcp://127.0.0.1:1")]).rows
    assert (row.state, row.why) == ("refused", "inproc://x is not an address such as tcp://127.0.0.1:5556")


def test_what_is_no_plan_is_told():
    with pytest.raises(kit.UsageError, match="row 1 has no song"):
        apply_replication([{"server": ANY, "source": ANY}])
    with pytest.raises(kit.UsageError, match="by its name or by an address"):
        apply_replication([], broker="no where")


# --- advice -----------------------------------------------------------------------------------------------------------


ADVICE = {
    "service": "sum", "group": "eu", "workers_now": 2, "workers_wanted": 3, "utilisation": 0.9, "share": 0.5,
    "advice": "add", "reason": "busy",
}  # fmt: skip


def test_discovery_shows_the_placement_plan(scale0_broker):
    address = scale0_broker.in_thread(["discovery"]).address("discovery", "requests")
    outcome = apply_placement([ADVICE, {**ADVICE, "group": None, "share": float("nan")}], broker=address, timeout=20)
    assert (outcome.rows, outcome.left_out, outcome.address) == (2, 0, address)
    told = advice_at(address)
    assert told["rows"] == [ADVICE, {**ADVICE, "group": None, "share": None}]
    assert (told["as_of"], told["age_s"] < PATIENCE) == (outcome.as_of, True)
    many = [{**ADVICE, "service": f"s{number}", "reason": "\N{SNOWMAN}" * 500} for number in range(3000)]
    outcome = apply_placement(many, broker=address, timeout=20)
    assert (outcome.rows + outcome.left_out, len(advice_at(address)["rows"])) == (3000, outcome.rows)
    east = datetime(2026, 1, 31, 17, tzinfo=timezone(timedelta(hours=5)))
    assert apply_placement([], broker=address, timeout=20, as_of=east).as_of == "2026-01-31T12:00:00Z"
    assert advice_at(address)["rows"] == []


def test_the_placement_plan_of_the_tables_is_shown_with_the_time_at_which_it_was_written(scale0_broker, tmp_path):
    address = scale0_broker.in_thread(["discovery"]).address("discovery", "requests")
    written = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)
    tables.write(tmp_path, "placement_plan", pa.Table.from_pylist([ADVICE]), written)
    done = sent("placement", "--out", tmp_path, "--discovery", address)
    assert done.exit_code == 0, done.exception
    assert json.loads(done.stdout)["rows"] == 1
    told = advice_at(address)
    assert (told["rows"], told["as_of"]) == ([ADVICE], "2026-01-31T12:00:00Z")


def test_a_discovery_that_takes_no_advice_says_so(scale0_broker):
    settings = {"plugin": {"discovery": {"advice": False}}}
    address = scale0_broker.in_thread(["discovery"], settings).address("discovery", "requests")
    with pytest.raises(kit.NegativeError, match="403: advice is not taken here"):
        apply_placement([ADVICE], broker=address, timeout=20)


def test_faults_of_advice_are_told(nowhere):
    with pytest.raises(kit.NotReachedError):
        apply_placement([ADVICE], broker=nowhere, timeout=0.3)
    with pytest.raises(kit.UsageError, match="row 1: advice"):
        apply_placement([{**ADVICE, "advice": None}], broker=nowhere)
    with pytest.raises(kit.UsageError, match="by its name or by an address"):
        apply_placement([ADVICE], broker="no where")
