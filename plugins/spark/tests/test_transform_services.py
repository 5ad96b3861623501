"""Availability, capacity, placement and anomalies, counted by hand."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from scale0_spark.transforms.anomalies import Anomalies, anomalies
from scale0_spark.transforms.availability import availability, flapping
from scale0_spark.transforms.capacity import Capacity, capacity
from scale0_spark.transforms.placement import Placement, placement_plan

from .event_rows import DAY, HOUR, MONDAY, WEEK, Log, frame, plain

WORKER = {"service": "echo", "peer": "w1", "group": "north"}


def test_a_worker_is_down_after_it_was_lost_and_not_missed_after_it_said_goodbye(spark: SparkSession):
    log = Log()
    log.add("join", 0.0, **WORKER, count=1)
    log.add("heartbeat", 50.0, **WORKER)
    log.add("leave", 100.0, **WORKER, outcome="lost")
    log.add("join", 200.0, **WORKER, count=1)
    log.add("leave", 400.0, **WORKER, outcome="left")
    log.add("load", 1000.0, group="north")
    again = Log(epoch=2)
    again.add("join", 2000.0, **WORKER, count=1)
    again.add("load", 2100.0, group="north")
    worker, broker = sorted(
        plain(availability(frame(spark, log.rows, again.rows))), key=lambda row: row["peer"] is None
    )
    assert list(worker) == [
        "broker", "service", "peer", "group", "first_seen", "last_seen", "up_s", "down_s", "availability", "joins",
        "leaves", "lost",
    ]  # fmt: skip
    assert worker == {
        "broker": "b1", **WORKER, "first_seen": 0, "last_seen": 2000, "up_s": 400.0, "down_s": 100.0,
        "availability": 0.8, "joins": 3, "leaves": 2, "lost": 1,
    }  # fmt: skip
    assert broker == {
        "broker": "b1", "service": None, "peer": None, "group": "north", "first_seen": 0, "last_seen": 2100,
        "up_s": 1100.0, "down_s": 1000.0, "availability": 1100 / 2100, "joins": 2, "leaves": 1, "lost": None,
    }  # fmt: skip


def test_a_worker_flaps_when_it_leaves_unexpectedly_three_times_in_an_hour(spark: SparkSession):
    log = Log()
    for turn in range(3):
        log.add("join", 10.0 * turn, **WORKER, count=1)
        log.add("leave", 10.0 * turn + 5, **WORKER, outcome="silent")
    for turn in range(3):
        log.add("leave", HOUR + turn, **WORKER, outcome="left" if turn else "lost")
    table = flapping(frame(spark, log.rows))
    one = MONDAY.replace(hour=1)
    expected = spark.createDataFrame(
        [
            ("b1", None, None, MONDAY, 6.0, 3.0),
            ("b1", "echo", "w1", MONDAY, 6.0, 3.0),
            ("b1", None, None, one, 3.0, 0.0),
            ("b1", "echo", "w1", one, 3.0, 0.0),
        ],
        table.schema,
    )
    assert table.columns == ["broker", "service", "peer", "window_start", "changes", "flaps"]
    assertDataFrameEqual(table, expected)


def busy(log: Log, hour: int, share: float, peer: str = "w1", group: str = "north", service: str = "echo") -> None:
    """Keep a worker busy for a share of an hour."""
    fields = {"service": service, "peer": peer, "group": group, "outcome": "ok", "queue_us": 0}
    log.add("task", hour * HOUR + 1, **fields, service_us=round(share * HOUR * 1e6))


def test_a_line_through_the_hours_tells_when_a_service_is_full(spark: SparkSession):
    log = Log()
    log.add("join", 0.0, **WORKER, count=2)
    for hour in range(5):
        busy(log, hour, 0.2 * hour)  # of two tasks at once: 0.1 more each hour
    busy(log, 0, 0.5, service="calm")
    rows = plain(capacity(frame(spark, log.rows), Capacity(hours=3)))
    calm, *echo = rows
    assert calm == {
        "window_start": 0, "service": "calm", "workers": 1, "busy_s": 1800.0, "utilisation": 0.5,
        "forecast_per_day": None, "saturation_at": None,
    }  # fmt: skip
    assert [row["utilisation"] for row in echo] == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert [row["busy_s"] for row in echo] == pytest.approx([0.0, 720.0, 1440.0, 2160.0, 2880.0])
    assert {round(row["forecast_per_day"], 9) for row in echo} == {2.4}
    assert {round(row["saturation_at"]) for row in echo} == {10 * 3600}
    falling = Log()
    for hour in range(4):
        busy(falling, hour, 0.9 - 0.1 * hour)
    assert {row["saturation_at"] for row in plain(capacity(frame(spark, falling.rows), Capacity(hours=3)))} == {None}


def test_workers_are_wanted_where_requests_come_and_taken_from_where_none_do(spark: SparkSession):
    log = Log()
    for peer, group in (("w1", "north"), ("w2", "south"), ("w3", "south"), ("w4", "east")):
        log.add("join", 0.0, service="echo", peer=peer, group=group, count=1)
    log.add("join", 0.0, service="echo", peer="gone", group="east", count=1)
    log.add("leave", 1.0, service="echo", peer="gone", group="east", outcome="left")
    for hour in range(2):
        busy(log, hour, 1.0)  # one worker has too much
        busy(log, hour, 0.25, "w2", "south")
        busy(log, hour, 0.25, "w3", "south")
    log.add("task", 5.0, service="echo", group="west", outcome="refused", queue_us=1)  # nobody is there
    table = placement_plan(frame(spark, log.rows))
    expected = spark.createDataFrame(
        [
            ("echo", "east", 1, 0, 0.0, 0.0, "move", "only 0.0 % of the requests come here; other groups want workers"),
            ("echo", "north", 1, 2, 1.0, 2 / 7, "add", "busy hours load the workers to 100.0 %"),
            ("echo", "south", 2, 2, 0.25, 4 / 7, "keep", "busy hours load the workers to 25.0 %"),
            ("echo", "west", 0, 1, 0.0, 1 / 7, "add", "100.0 % of the requests were refused or timed out"),
        ],
        table.schema,
    )
    assert table.columns == [
        "service", "group", "workers_now", "workers_wanted", "utilisation", "share", "advice", "reason"
    ]  # fmt: skip
    assertDataFrameEqual(table, expected)


def test_workers_with_little_to_do_are_taken_away_with_care(spark: SparkSession):
    log = Log()
    for peer in ("w1", "w2", "w3", "w4"):
        log.add("join", 0.0, service="echo", peer=peer, group="north", count=1)
    busy(log, 0, 0.6)
    busy(log, 1, 0.6)
    (row,) = plain(placement_plan(frame(spark, log.rows)))
    assert (row["workers_now"], row["workers_wanted"], row["advice"]) == (4, 2, "remove")


def workers_now(spark: SparkSession, *logs: Log, **options: float) -> dict[str, int]:
    plan = placement_plan(frame(spark, *(log.rows for log in logs)), Placement(**options))
    return {row["service"]: row["workers_now"] for row in plain(plan)}


def test_a_worker_that_is_gone_is_gone_though_its_last_task_is_told_after_it(spark: SparkSession):
    log = Log()
    log.add("join", 0.0, **WORKER, count=1)
    log.add("leave", 60.0, **WORKER, outcome="lost")
    log.add("task", 60.0, **WORKER, outcome="lost", queue_us=1, service_us=2)
    for at in (0.0, 30.0):
        log.add("heartbeat", at, service="sum", peer="w1", group="north")
    log.add("leave", 30.0, service="sum", peer="w1", group="north", outcome="left")
    log.add("join", 30.0, service="sum", peer="w2", group="north")
    assert workers_now(spark, log) == {"echo": 0, "sum": 1}


def test_workers_of_a_broker_count_since_its_last_start_and_while_it_is_heard_of(spark: SparkSession):
    killed, again, gone = Log(epoch=1), Log(epoch=2), Log("b2")
    for peer in ("w1", "w2", "w3"):
        killed.add("join", 0.0, service="echo", peer=peer, group="north", count=1)
    again.add("join", 100.0, **WORKER, count=1)
    again.add("heartbeat", 8 * DAY, **WORKER)
    gone.add("join", 200.0, service="sum", peer="w9", group="north", count=1)
    assert workers_now(spark, killed, again, gone) == {"echo": 1}
    assert workers_now(spark, killed, again, gone, alive_days=9.0) == {"echo": 1, "sum": 1}


def test_tasks_that_a_bridge_passes_on_count_once_and_those_of_the_broker_itself_not(spark: SparkSession):
    log = Log()
    log.add("join", 0.0, **WORKER, count=1)
    for place in range(4):  # as the broker tells them, whose worker for them is a bridge
        log.add("task", 10.0 + place, service="echo", group="north", outcome="timeout", queue_us=0, service_us=10**9)
        log.add("task", 10.0 + place, service="clock", group="north", outcome="ok", queue_us=0, service_us=10**9)
    for place in range(2):  # and Majordomo
        log.add("rpc", 10.0 + place, **WORKER, outcome="ok", queue_us=0, service_us=18 * 10**8)
    events = frame(spark, log.rows)
    (row,) = plain(placement_plan(events))
    assert row == {
        "service": "echo", "group": "north", "workers_now": 1, "workers_wanted": 2, "utilisation": 1.0, "share": 1.0,
        "advice": "add", "reason": "busy hours load the workers to 100.0 %",
    }  # fmt: skip
    assert [(row["service"], row["workers"], row["utilisation"]) for row in plain(capacity(events))] == [
        ("echo", 1, 1.0)
    ]


def hour_of_requests(log: Log, at: float, requests: int, errors: int = 0, service_us: int = 1000) -> None:
    for place in range(requests):
        outcome = "error" if place < errors else "ok"
        log.add("task", at + place, service="echo", outcome=outcome, queue_us=1, service_us=service_us)


def test_an_hour_is_unusual_when_it_is_unlike_the_same_hour_of_the_weeks_before(spark: SparkSession):
    log = Log()
    for week, requests in enumerate((9, 10, 11)):
        hour_of_requests(log, week * WEEK, requests)
        hour_of_requests(log, week * WEEK + HOUR, 50)
        hour_of_requests(log, week * WEEK + DAY, 100)
    hour_of_requests(log, 3 * WEEK, 20, errors=20)
    hour_of_requests(log, 3 * WEEK + HOUR, 51, service_us=10_000)  # and at this hour of the next day, nothing
    hour_of_requests(log, 3 * WEEK + 2 * DAY, 10)  # never seen before: nothing is said
    hour_of_requests(log, 3 * WEEK + 2 * DAY + HOUR, 1)  # the last hour is not over
    table = anomalies(frame(spark, log.rows), Anomalies(weeks=3, least_weeks=3))
    rows = [tuple(row.values()) for row in plain(table)]
    assert table.columns == ["window_start", "service", "kind", "measure", "value", "expected", "deviation", "weeks"]
    expected = [
        (3 * WEEK, "echo", "task", "error_share", 1.0, 0.0, 200.0, 3),
        (3 * WEEK, "echo", "task", "requests", 20.0, 10.0, 10 / 1.4826, 3),
        (3 * WEEK + HOUR, "echo", "task", "service_p99", 10_000.0, 1000.0, 90.0, 3),
        (3 * WEEK + DAY, "echo", "task", "requests", 0.0, 100.0, -20.0, 3),
    ]
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    for row, wanted in zip(rows, expected, strict=True):
        assert row[4:] == pytest.approx(wanted[4:])
