"""Popularity, rates of caches and plans of replication, counted by hand."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from scale0_spark.transforms.caches import cache_rates
from scale0_spark.transforms.popularity import Popularity, popularity, ranked, totals
from scale0_spark.transforms.replication import Replication, replication_plan

from .event_rows import DAY, HOUR, MONDAY, Log, frame, plain

NORTH, SOUTH, WEST = "tcp://127.0.0.1:1", "tcp://127.0.0.1:2", "tcp://127.0.0.1:3"


def test_a_request_counts_half_after_each_half_life(spark: SparkSession):
    log = Log()
    log.add("song_search", 0.0, subject="old", outcome="hit")
    log.add("song_download", 0.0, subject="old", outcome="ok")
    log.add("song_search", 7 * DAY, subject="new", outcome="miss")
    log.add("song_search", 7 * DAY, subject="also new", weight=1.0)
    log.add("song_search", 7 * DAY, subject=None)
    table = popularity(frame(spark, log.rows)).orderBy("rank")
    rows = [("also new", 1.0, 0.0, 1.0, 1), ("new", 1.0, 0.0, 1.0, 2), ("old", 1.0, 1.0, 1.0, 3)]
    expected = spark.createDataFrame(rows, table.schema)
    assertDataFrameEqual(table, expected, rtol=1e-12)
    later = MONDAY.timestamp() + 14 * DAY
    scores = {row["song"]: row["score"] for row in plain(popularity(frame(spark, log.rows), Popularity(3.5, later)))}
    assert scores == pytest.approx({"old": 2 / 16, "new": 1 / 4, "also new": 1 / 4})


def test_sums_of_songs_hold_for_any_time_of_looking(spark: SparkSession):
    log = Log()
    origin = (datetime(2026, 1, 1, tzinfo=timezone.utc) - MONDAY).total_seconds()
    log.add("song_search", origin, subject="old", outcome="hit")
    log.add("song_download", origin + 7 * DAY, weight=3.0, subject="old", outcome="ok")
    log.add("song_search", origin - 7 * DAY, subject="older", outcome="miss")
    log.add("song_search", origin, subject=None, outcome="miss")
    log.add("song_replica", origin, subject="old", outcome="plan")
    table = totals(frame(spark, log.rows))
    first, second, *_ = (row["ts"] for row in log.rows[1:])
    expected = spark.createDataFrame([("old", 1.0, 3.0, 7.0, first), ("older", 1.0, 0.0, 0.5, second)], table.schema)
    assert table.columns == ["song", "requests", "downloads", "grown", "last_ts"]
    assertDataFrameEqual(table, expected, rtol=1e-12)
    table = ranked(expected)
    assertDataFrameEqual(
        table,
        spark.createDataFrame([("old", 1.0, 3.0, 3.5, 1), ("older", 1.0, 0.0, 0.25, 2)], table.schema),
        rtol=1e-12,
    )


def test_a_half_life_of_minutes_is_no_trouble_for_a_batch_and_refused_by_a_stream(spark: SparkSession):
    log = Log()
    log.add("song_search", 0.0, subject="old", outcome="hit")
    log.add("song_search", 99 * DAY, subject="late", outcome="hit")
    log.add("song_search", 100 * DAY, subject="new", outcome="hit")
    scores = {row["song"]: row["score"] for row in plain(popularity(frame(spark, log.rows), Popularity(0.1)))}
    assert scores == pytest.approx({"old": 2.0**-1000, "late": 2.0**-10, "new": 1.0})
    assert ranked(totals(frame(spark, log.rows), Popularity(7.0)), Popularity(7.0)).count() == 3
    with pytest.raises(PySparkException, match="too short for a stream"):
        totals(frame(spark, log.rows), Popularity(0.1)).collect()


def test_rates_of_caches_tell_library_cache_and_neighbours_apart(spark: SparkSession):
    log = Log()
    for outcome in ("hit", "hit", "cached", "found", "miss", "timeout"):
        log.add("song_search", 10.0, peer=NORTH, outcome=outcome)
    log.add("song_search", HOUR, weight=3.0, peer=NORTH, outcome="hit")
    table = cache_rates(frame(spark, log.rows)).orderBy("window_start")
    expected = spark.createDataFrame(
        [
            (MONDAY, NORTH, 6.0, 2.0, 1.0, 1.0, 2.0, 0.5, 0.25),
            (MONDAY.replace(hour=1), NORTH, 3.0, 3.0, 0.0, 0.0, 0.0, 1.0, 0.0),
        ],
        table.schema,
    )
    assert table.columns[2:] == ["searches", "hits", "cached", "found", "misses", "hit_rate", "cache_hit_rate"]
    assertDataFrameEqual(table, expected)


def searches(log: Log, server: str, song: str, count: int, outcome: str = "found") -> None:
    for place in range(count):
        log.add("song_search", 100.0 + place, peer=server, subject=song, outcome=outcome)


def test_a_song_goes_where_it_is_searched_and_not_held_from_its_last_holder(spark: SparkSession):
    log = Log()
    log.add("song_download", 1.0, peer=SOUTH, subject="blue", outcome="ok")
    log.add("song_search", 2.0, peer=WEST, subject="blue", outcome="hit")
    searches(log, NORTH, "blue", 5)
    searches(log, NORTH, "red", 9, "miss")  # nobody holds it
    searches(log, SOUTH, "blue", 9, "hit")  # it holds it
    searches(log, WEST, "green", 4, "cached")
    searches(log, NORTH, "green", 2)  # too few
    log.add("song_replica", 50.0, peer=SOUTH, subject="green", source=WEST, outcome="plan")
    log.add("song_download", 60.0, peer=NORTH, subject="black", outcome="broken")  # no proof that it has all of it
    table = replication_plan(frame(spark, log.rows), Replication(half_life_days=1e9))
    reason = "{} searches there for a song that it does not hold"
    expected = spark.createDataFrame(
        [("blue", NORTH, SOUTH, 5.0, 5.0, reason.format(5)), ("green", WEST, SOUTH, 4.0, 4.0, reason.format(4))],
        table.schema,
    )
    assert table.columns == ["song", "server", "source", "score", "wanted", "reason"]
    assertDataFrameEqual(table, expected, checkRowOrder=True)


def test_what_was_seen_last_tells_who_holds_a_song(spark: SparkSession):
    log = Log()
    log.add("song_search", 1.0, peer=NORTH, subject="blue", outcome="hit")
    searches(log, NORTH, "blue", 5)  # it held it, and does not any more
    log.add("song_download", 2.0, peer=SOUTH, subject="blue", outcome="ok")
    searches(log, WEST, "blue", 7)
    log.add("song_replica", 500.0, peer=WEST, subject="blue", source=SOUTH, outcome="plan")  # it got it meanwhile
    log.add("song_download", 200.0, peer=NORTH, subject="red", outcome="ok")
    log.add("song_search", 201.0, peer=NORTH, subject="red", outcome="miss")  # so nobody has it
    searches(log, SOUTH, "red", 9)
    searches(log, SOUTH, "green", 3)
    log.add("song_search", 110.0, peer=SOUTH, subject="green", outcome="hit")
    log.add("song_search", 111.0, peer=SOUTH, subject="green", outcome="found")  # one since it was lost, not four
    log.add("song_search", 112.0, peer=WEST, subject="green", outcome="hit")
    plan = plain(replication_plan(frame(spark, log.rows), Replication(half_life_days=1e9)))
    assert [(row["song"], row["server"], row["source"], row["wanted"]) for row in plan] == [("blue", NORTH, WEST, 5.0)]


def test_a_plan_is_limited_for_each_server_and_leaves_out_those_that_are_gone(spark: SparkSession):
    log = Log()
    gone, songs = "tcp://127.0.0.1:9", [f"song {place}" for place in range(5)]
    log.add("song_download", 0.0, peer=gone, subject="song 4", outcome="ok")
    searches(log, gone, "song 0", 50)
    late = Log(started=30 * DAY)
    for place, song in enumerate(songs):
        for turn in range(place + 1):
            late.add("song_search", 30 * DAY + turn, peer=NORTH, subject=song, outcome="found")
        if song != "song 4":
            late.add("song_download", 30 * DAY, peer=SOUTH, subject=song, outcome="ok")
    plan = plain(replication_plan(frame(spark, log.rows, late.rows), Replication(per_server=2, wanted=1.0)))
    assert [(row["song"], row["server"], row["source"]) for row in plan] == [
        ("song 3", NORTH, SOUTH),
        ("song 2", NORTH, SOUTH),
    ]


def test_demand_that_has_faded_is_no_reason_for_a_copy(spark: SparkSession):
    """Three searches are enough until they are a half-life old; more of them for longer."""
    log, now = Log(), 365 * DAY
    days = {"a year ago": [365.0] * 3, "a week ago": [7.0] * 3, "more than a week ago": [7.01] * 3}
    days |= {"long ago and now": [300.0] * 2 + [0.0] * 2, "two now": [0.0] * 2, "many of two weeks ago": [14.0] * 6}
    for song, ages in days.items():
        log.add("song_download", now, peer=SOUTH, subject=song, outcome="ok")
        for age in ages:
            log.add("song_search", now - age * DAY, peer=NORTH, subject=song, outcome="found")
    log.add("song_search", now, peer=NORTH, subject=None, outcome="hit")
    plan = plain(replication_plan(frame(spark, log.rows)))
    assert {row["song"]: (row["wanted"], pytest.approx(row["score"])) for row in plan} == {
        "long ago and now": (4.0, 2.0), "a week ago": (3.0, 1.5), "many of two weeks ago": (6.0, 1.5)
    }  # fmt: skip
