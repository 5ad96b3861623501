"""Availability, what workers did by hour, capacity, placement and anomalies, counted by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from scale0_spark import running, tables
from scale0_spark.progress import Progress
from scale0_spark.transforms.anomalies import Anomalies, anomalies
from scale0_spark.transforms.availability import availability, flapping
from scale0_spark.transforms.capacity import Capacity, capacity
from scale0_spark.transforms.placement import Placement, placement_plan
from scale0_spark.transforms.worker_hours import worker_hours

from .event_rows import DAY, HOUR, MONDAY, WEEK, Log, Row, frame, of_arrow, plain, store

WORKER = {"service": "echo", "peer": "w1", "group": "north"}


def after(seconds: float) -> datetime:
    return MONDAY + timedelta(seconds=seconds)


def same(table: DataFrame, columns: str, *rows: tuple[Any, ...]) -> None:
    """Compare a table with one that was counted by hand, and the names of its columns; the order is no matter."""
    assert " ".join(table.columns) == columns
    assertDataFrameEqual(table, table.sparkSession.createDataFrame(list(rows), table.schema), rtol=1e-12)


def test_a_worker_is_down_after_it_was_lost_and_not_missed_after_it_said_goodbye(spark: SparkSession):
    log = Log()
    log.add("join", 0.0, **WORKER, count=1)
    log.add("heartbeat", 50.0, **WORKER)
    log.add("leave", 100.0, **WORKER, outcome="lost")
    log.add("join", 200.0, **WORKER, count=1)
    log.add("leave", 400.0, **WORKER, outcome="left")
    log.add("load", 1000.0, group="north")
    again = Log(started=1990.0)
    again.add("join", 2000.0, **WORKER, count=1)
    again.add("load", 2100.0, group="north")
    same(
        availability(frame(spark, log.rows, again.rows)),
        "broker service peer group first_seen last_seen up_s down_s availability joins leaves lost",
        ("b1", "echo", "w1", "north", MONDAY, after(2000), 400.0, 100.0, 0.8, 3.0, 2.0, 1.0),
        ("b1", None, None, "north", MONDAY, after(2100), 1100.0, 1000.0, 1100 / 2100, 2.0, 1.0, None),
    )


FLAPPING = "broker service peer window_start changes flaps"


def test_a_worker_flaps_when_it_leaves_unexpectedly_three_times_in_an_hour(spark: SparkSession):
    log = Log()
    for turn in range(3):
        log.add("join", 10.0 * turn, **WORKER, count=1)
        log.add("leave", 10.0 * turn + 5, **WORKER, outcome="silent")
    for turn in range(3):
        log.add("leave", HOUR + turn, **WORKER, outcome="left" if turn else "lost")
    same(
        flapping(frame(spark, log.rows)),
        FLAPPING,
        ("b1", None, None, MONDAY, 1.0, 0.0),
        ("b1", "echo", "w1", MONDAY, 6.0, 3.0),
        ("b1", "echo", "w1", after(HOUR), 3.0, 0.0),
    )


def test_a_broker_flaps_when_it_starts_three_times_in_an_hour_though_nobody_tells_of_its_end(spark: SparkSession):
    early = Log("early", -100 * HOUR)  # before all that is told; who knows how often it started in that hour
    early.add("load", HOUR, group="north")
    logs = [early]
    for turn in range(10):  # nobody is left to tell that its worker is gone, too
        log = Log("crashing", HOUR + 60.0 * turn)
        log.add("join", HOUR + 60.0 * turn + 1, **WORKER, count=1)
        logs.append(log)
    for turn in range(3):  # without any worker
        log = Log("lonely", 2 * HOUR - 0.000001 * turn)
        log.add("load", 2 * HOUR + 10 * turn, group="north")
        log.add("load", 3 * HOUR + 10 * turn, group="north")  # in another hour than it started
        logs.append(log)
    same(
        flapping(frame(spark, *(log.rows for log in logs))),
        FLAPPING,
        ("crashing", None, None, after(HOUR), 10.0, 10.0),
        ("crashing", "echo", "w1", after(HOUR), 10.0, 0.0),
        ("lonely", None, None, after(HOUR), 2.0, 0.0),
        ("lonely", None, None, after(2 * HOUR), 1.0, 0.0),
    )


def busy(log: Log, hour: int, share: float, peer: str = "w1", group: str = "north", service: str = "echo") -> None:
    """Keep a worker busy for a share of an hour."""
    fields = {"service": service, "peer": peer, "group": group, "outcome": "ok", "queue_us": 0}
    log.add("task", hour * HOUR + 1, **fields, service_us=round(share * HOUR * 1e6))


def test_what_workers_did_by_hour_adds_up(spark: SparkSession):
    log = Log()
    log.add("join", 10.0, **WORKER, count=None)
    log.add("join", 20.0, **WORKER, count=3)
    log.add("heartbeat", 30.0, **WORKER)
    busy(log, 0, 0.5)  # at 1 s
    log.add("task", 40.0, weight=2.0, **WORKER, outcome="timeout", queue_us=0, service_us=10**6)
    log.add("leave", 50.0, **WORKER, outcome="lost")
    log.add("task", 60.0, service="echo", group="north", outcome="refused", queue_us=0)
    log.add("task", 70.0, service="echo", group="north", outcome="ok", queue_us=0, service_us=10**6)  # a bridge has it
    log.add("heartbeat", HOUR, **WORKER)
    log.add("load", HOUR, group="north")
    moments = [(row["ts"], row["seq"]) for row in log.rows]
    key, never = ("b1", log.epoch, "echo", "w1", "north"), (None, None, None, None, None)
    same(
        worker_hours(frame(spark, log.rows)),
        "window_start broker epoch service peer group told requests turned_away busy_s served_at beats sign_at left_at"
        " seen_at joined_at slots heard",
        (MONDAY, *key, 2, 3.0, 2.0, 1802.0, moments[4], 1, moments[5], after(50), after(30), moments[1], 3, after(50)),
        (MONDAY, *key[:3], None, "north", 1, 1.0, 1.0, None, None, 0, *never, after(70)),
        (after(HOUR), *key, 0, 0.0, 0.0, None, None, 1, moments[8], None, after(HOUR), None, None, after(HOUR)),
    )


CAPACITY = "window_start service workers busy_s utilisation forecast_per_day forecast_now saturation_at"
NO_LINE = (None, None, None)


def heard(log: Log, hour: float, service: str = "other") -> None:
    """Have a worker beat, so that the hours before are over."""
    log.add("heartbeat", hour * HOUR, service=service, peer="w1", group="north")


def lines_of(table: DataFrame) -> dict[str, tuple[Any, ...]]:
    """Give the forecast of each service, which is the same in all of its hours."""
    rows = {
        (row["service"], row["forecast_per_day"], row["forecast_now"], row["saturation_at"]) for row in plain(table)
    }
    lines = {service: tuple(line) for service, *line in rows}
    assert len(lines) == len(rows)
    return lines


def test_a_line_through_days_tells_when_a_service_is_full(spark: SparkSession):
    """Of eight days and two hours, the first hour and the last one are not whole: the oldest day lacks hours."""
    log, end = Log(), 8 * 24 + 1
    log.add("join", 0.0, **WORKER, count=2)
    for hour in range(end):
        day = (hour - 1) // 24  # from the second hour on
        busy(log, hour, 0.2 * day + 0.2)  # of two tasks at once: 0.1 more each day
        busy(log, hour, 0.9 - 0.1 * day, service="falling")
        busy(log, hour, 0.01 * day + 0.93, service="full")
        busy(log, hour, 0.0001 * day, service="hardly rising")
        busy(log, hour, 1.25, service="over")
        if hour < end - 25:
            busy(log, hour, 0.3 * day, service="gone")
        if hour >= 24:
            busy(log, hour, 0.1 * day, service="seven days")
        if hour > 24:
            busy(log, hour, 0.1 * day, service="no seven days")
    busy(log, 0, 0.5, service="calm")
    for place in range(4):  # a service of the broker itself has them, or a bridge whose other side tells of them
        log.add("task", 10.0 + place, service="clock", group="north", outcome="ok", queue_us=0, service_us=10**9)
    heard(log, end + 0.5, "calm")
    table = capacity(frame(spark, log.rows))
    same(
        table.where("service = 'calm'"),
        CAPACITY,
        (MONDAY, "calm", 1, 1800.0, 0.5, *NO_LINE),
        (after(end * HOUR), "calm", 1, 0.0, 0.0, *NO_LINE),
    )
    lines = lines_of(table)
    assert lines.keys() == {
        "gone", "echo", "falling", "full", "hardly rising", "over", "seven days", "no seven days", "calm",
    }  # fmt: skip
    assert lines["echo"] == pytest.approx((0.1, 0.8, end * HOUR + 2 * DAY))
    assert lines["falling"] == (pytest.approx(-0.1), pytest.approx(0.2), None)
    assert lines["full"] == pytest.approx((0.01, 1.0, end * HOUR))
    assert lines["over"] == pytest.approx((0.0, 1.25, end * HOUR))
    assert lines["hardly rising"] == (pytest.approx(0.0001), pytest.approx(0.0007), None)
    assert lines["seven days"] == pytest.approx((0.1, 0.7, end * HOUR + 3 * DAY))
    assert lines["no seven days"] == NO_LINE
    assert lines_of(capacity(frame(spark, log.rows), Capacity(days=5)))["gone"] == NO_LINE


@pytest.mark.parametrize("hours", [38, 71, 8 * 24 + 2, 15 * 24 + 13])
def test_load_that_is_the_same_each_day_is_no_growth(spark: SparkSession, hours: int):
    log = Log()
    for hour in range(hours):
        busy(log, hour, 0.5 - 0.4 * math.cos(hour % 24 / 24 * 2 * math.pi), service="by day")
        busy(log, hour, 0.97 if hour % 24 in (9, 10, 11) else 0.01, service="peak")
    lines = lines_of(capacity(frame(spark, log.rows), Capacity(days=2)))
    if hours < 50:  # of 38, the first and the last are no whole hours, and one day is in between
        assert set(lines.values()) == {NO_LINE}
    else:
        assert [(slope, full_at) for slope, _, full_at in lines.values()] == [(0.0, None)] * 2
        assert lines["peak"][1] == pytest.approx(0.97)


@pytest.mark.parametrize("minutes", [10, 30, 59])
def test_of_the_hour_that_is_not_over_the_part_counts_that_has_passed(spark: SparkSession, minutes: int):
    """A worker that is busy half of the time is so at ten past, too, and the line does not bend."""
    log, hours = Log(), 8 * 24 + 2
    for second in range(0, hours * 3600 + minutes * 60 + 1, 60):
        fields = {**WORKER, "outcome": "ok", "queue_us": 0}
        log.add("task", float(second), **fields, service_us=30 * 10**6 if second % 3600 else 0)
    log.add("task", hours * HOUR + minutes * 60, service="refused", outcome="refused", queue_us=1)
    rows = plain(capacity(frame(spark, log.rows)))
    assert rows[-1]["window_start"] == hours * HOUR
    assert rows[-1]["utilisation"] == pytest.approx(0.5)
    assert rows[-1]["busy_s"] == 30.0 * minutes
    assert (rows[-1]["forecast_per_day"], rows[-1]["saturation_at"]) == (0.0, None)


def test_an_hour_that_has_just_begun_is_no_division_by_nothing(spark: SparkSession):
    log = Log()
    busy(log, 0, 0.5)
    log.add("task", HOUR, **WORKER, outcome="ok", queue_us=0, service_us=30 * 10**6)
    rows = plain(capacity(frame(spark, log.rows)))
    assert [(row["busy_s"], row["utilisation"]) for row in rows] == [(1800.0, 0.5), (30.0, 0.5)]


def test_workers_that_have_nothing_to_do_have_room_for_more(spark: SparkSession):
    """Two of ten do everything; then nobody asks for anything; then eight of them are gone."""
    log = Log()
    for number in range(10):
        idle = {"service": "echo", "peer": f"w{number}", "group": "north"}
        log.add("join", -3 * HOUR, **idle, count=1)
        for hour in range(3 if number < 2 else 2):
            log.add("heartbeat", hour * HOUR + 10, **idle)
        if number >= 2:
            log.add("leave", 2 * HOUR, **idle, outcome="left")
    for peer in ("w0", "w1"):
        busy(log, 0, 1.0, peer)
        busy(log, 2, 1.0, peer)
    heard(log, 3)
    same(
        capacity(frame(spark, log.rows)).where("service = 'echo'"),  # joins from before the span give no hours
        CAPACITY,
        (MONDAY, "echo", 10, 7200.0, 0.2, *NO_LINE),
        (after(HOUR), "echo", 10, 0.0, 0.0, *NO_LINE),
        (after(2 * HOUR), "echo", 2, 7200.0, 1.0, *NO_LINE),
    )


def test_a_worker_may_do_as_many_tasks_as_it_said_when_it_last_joined_by_then(spark: SparkSession):
    log, again = Log(), Log(started=2 * HOUR)
    busy(log, 0, 0.5)  # its join is no longer stored
    log.add("join", HOUR, **WORKER, count=2)
    log.add("join", HOUR + 1, **WORKER, count=4)
    busy(log, 1, 0.5)
    busy(log, 2, 0.5)
    again.add("join", 3 * HOUR, **WORKER, count=8)
    busy(again, 3, 0.5)
    heard(again, 4)
    rows = plain(capacity(frame(spark, log.rows, again.rows)).where("service = 'echo'"))
    assert [row["utilisation"] for row in rows] == [0.5, 0.125, 0.125, 0.0625]


def come(log: Log, at: float, service: str, *peers: str, group: str = "north") -> None:
    for peer in peers:
        log.add("join", at, service=service, peer=peer, group=group, count=1)


def echo_in_four_groups(log: Log) -> None:
    for peer, group in (("w1", "north"), ("w2", "south"), ("w3", "south"), ("w4", "east")):
        come(log, 0.0, "echo", peer, group=group)
    come(log, 0.0, "echo", "gone", group="east")
    log.add("leave", 1.0, service="echo", peer="gone", group="east", outcome="left")
    for hour in range(2):
        busy(log, hour, 1.0)  # one worker has too much
        busy(log, hour, 0.25, "w2", "south")
        busy(log, hour, 0.25, "w3", "south")
    log.add("task", 5.0, service="echo", group="west", outcome="refused", queue_us=1)  # nobody is there


def workers_that_are_gone(log: Log) -> None:
    lost, left = ({"service": service, "peer": "w1", "group": "north"} for service in ("lost", "left"))
    log.add("join", 0.0, **lost, count=1)
    log.add("leave", 60.0, **lost, outcome="lost")
    log.add("task", 60.0, **lost, outcome="lost", queue_us=1, service_us=2)
    for at in (0.0, 30.0):
        log.add("heartbeat", at, **left)
    log.add("leave", 30.0, **left, outcome="left")
    come(log, 30.0, "left", "w2")


def tasks_that_a_bridge_passes_on(log: Log) -> None:
    worker = {"service": "bridged", "peer": "w1", "group": "north"}
    log.add("join", 0.0, **worker, count=1)
    for place in range(4):  # as the broker tells them, whose worker for them is a bridge
        log.add("task", 10.0 + place, service="bridged", group="north", outcome="timeout", queue_us=0, service_us=10**9)
        log.add("task", 10.0 + place, service="clock", group="north", outcome="ok", queue_us=0, service_us=10**9)
    for place in range(2):  # and Majordomo
        log.add("rpc", 10.0 + place, **worker, outcome="ok", queue_us=0, service_us=18 * 10**8)


def turned_away(log: Log, last: float) -> None:
    """Turn requests away more and less than a day before the last hour, and for names that nobody offers."""
    for service, at in (("outage", last - DAY), ("turned away", last - DAY + HOUR)):
        log.add("heartbeat", last, service=service, peer="w1", group="north")
        fields = {"service": service, "group": "north", "queue_us": 1}
        log.add("task", at, weight=9.0, **fields, outcome="timeout")
        log.add("task", last, weight=91.0, **fields, peer="w1", outcome="ok", service_us=1)
    for service in ("misspelt", "also misspelt"):
        log.add("task", last, weight=1000.0, service=service, group="north", outcome="refused", queue_us=1)
    log.add("rpc", last, service="answered", group="north", peer="w1", outcome="ok", queue_us=1, service_us=1)
    log.add("rpc", last, service="answered", group="south", outcome="refused", queue_us=1)


@pytest.fixture(scope="module")
def plan(spark: SparkSession) -> DataFrame:
    """Make one plan for all services of the tests below, since a job costs seconds; none meets another."""
    log, killed, again = Log(), Log("killed"), Log("killed", 90.0)
    echo_in_four_groups(log)
    workers_that_are_gone(log)
    tasks_that_a_bridge_passes_on(log)
    come(log, 0.0, "idle", "w1", "w2", "w3", "w4")
    for hour in range(2):
        busy(log, hour, 0.6, service="idle")
    come(killed, 0.0, "started again", "w1", "w2", "w3")
    come(again, 100.0, "started again", "w1")
    silent, heard = Log("silent"), Log("heard")
    come(silent, 2.9 * DAY, "silent", "w1")
    come(heard, 3.1 * DAY, "heard", "w1")
    for one in (log, again):
        one.add("heartbeat", 8 * DAY, service="here", peer=one.broker, group="north")
    turned_away(log, 8 * DAY)
    rows = (one.rows for one in (log, killed, again, silent, heard))
    table = placement_plan(frame(spark, *rows), Placement(alive_days=5.0))
    return spark.createDataFrame(table.toArrow(), table.schema)


def advised(plan: DataFrame, *columns: str) -> dict[str, tuple[Any, ...]]:
    return {row["service"]: tuple(row[name] for name in columns) for row in plan.collect() if row["service"] != "echo"}


def test_workers_are_wanted_where_requests_come_and_taken_from_where_none_do(plan: DataFrame):
    same(
        plan.where("service = 'echo'"),
        "service group workers_now workers_wanted utilisation share requests load advice reason",
        ("echo", "east", 1, 0, 0.0, 0.0, 0.0, 0.0, "move",
         "only 0.0 % of the requests come here; other groups want workers"),
        ("echo", "north", 1, 2, 1.0, 2 / 7, 2.0, 1.0, "add", "busy hours load the workers to 100.0 %"),
        ("echo", "south", 2, 2, 0.25, 4 / 7, 4.0, 0.5, "keep", "busy hours load the workers to 25.0 %"),
        ("echo", "west", 0, 1, 0.0, 1 / 7, 1.0, 0.0, "add", "14.3 % of the requests come here, and no worker is"),
    )  # fmt: skip


def test_only_recent_requests_that_were_turned_away_ask_for_a_worker_more(plan: DataFrame):
    found = advised(plan, "workers_now", "workers_wanted", "advice", "reason")
    assert found["outage"][:3] == (1, 1, "keep")
    assert found["turned away"] == (1, 2, "add", "9.0 % of the recent requests were refused or timed out")


def test_nothing_is_advised_about_names_that_nobody_ever_offered(plan: DataFrame):
    rows = {(row["service"], row["group"]): row["advice"] for row in plan.collect()}
    assert not {"misspelt", "also misspelt"} & {service for service, _ in rows}
    assert rows["answered", "south"] == "add"


def test_load_is_that_of_the_busy_hours_among_those_in_which_there_was_work(plan: DataFrame):
    assert advised(plan, "load")["idle"] == (0.6,)  # two hours of work in eight days


def test_workers_with_little_to_do_are_taken_away_with_care(plan: DataFrame):
    assert advised(plan, "workers_now", "workers_wanted", "advice")["idle"] == (4, 2, "remove")


def test_a_worker_that_is_gone_is_gone_though_its_last_task_is_told_after_it(plan: DataFrame):
    found = advised(plan, "workers_now")
    assert (found["lost"], found["left"]) == ((0,), (1,))


def test_workers_of_a_broker_count_since_its_last_start_and_while_it_is_heard_of(plan: DataFrame):
    found = advised(plan, "workers_now")
    assert (found["started again"], found["heard"], found["here"]) == ((1,), (1,), (2,))
    assert "silent" not in found


def test_tasks_that_a_bridge_passes_on_count_once_and_those_of_the_broker_itself_not(plan: DataFrame):
    found = advised(plan, "workers_now", "workers_wanted", "utilisation", "share", "advice", "reason")
    assert found["bridged"] == (1, 2, 1.0, 1.0, "add", "busy hours load the workers to 100.0 %")
    assert "clock" not in found


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
    same(
        anomalies(frame(spark, log.rows), Anomalies(weeks=3, least_weeks=3)),
        "window_start service kind measure value expected deviation weeks",
        (after(3 * WEEK), "echo", "task", "error_share", 1.0, 0.0, 200.0, 3),
        (after(3 * WEEK), "echo", "task", "requests", 20.0, 10.0, 10 / 1.4826, 3),
        (after(3 * WEEK + HOUR), "echo", "task", "service_p99", 10_000.0, 1000.0, 90.0, 3),
        (after(3 * WEEK + DAY), "echo", "task", "requests", 0.0, 100.0, -20.0, 3),
    )


def test_requests_at_an_hour_that_is_always_silent_are_unusual_and_those_of_a_new_service_are_not(spark: SparkSession):
    log = Log()
    for week in range(4):
        for day in range(7):
            log.add("load", week * WEEK + day * DAY + 3 * HOUR, group="north")  # nobody asks for anything at three
            hour_of_requests(log, week * WEEK + day * DAY + 9 * HOUR, 10)
    hour_of_requests(log, 3 * WEEK + 3 * HOUR, 40)
    hour_of_requests(log, 3 * WEEK + 4 * HOUR, 40)  # nobody told of anything at four; who knows how it was
    for hour in range(10, 20):
        log.add("task", 3 * WEEK + hour * HOUR, weight=99.0, service="new", outcome="ok", queue_us=1, service_us=1)
    same(
        anomalies(frame(spark, log.rows)).where("measure = 'requests'"),
        "window_start service kind measure value expected deviation weeks",
        (after(3 * WEEK + 3 * HOUR), "echo", "task", "requests", 40.0, 0.0, 40.0, 2),  # it was new in the first week
    )


def test_an_hour_may_be_compared_with_one_week(spark: SparkSession):
    log = Log()
    for week, requests in enumerate((10, 20)):
        hour_of_requests(log, week * WEEK, requests)
        hour_of_requests(log, week * WEEK + HOUR, 1)
    (row,) = plain(anomalies(frame(spark, log.rows), Anomalies(weeks=1)))
    assert (row["window_start"], row["value"], row["expected"], row["weeks"]) == (WEEK, 20.0, 10.0, 1)


def weeks_of_requests() -> list[Row]:
    """Tell of six weeks, with odd hours in the fourth and in the last one."""
    log = Log()
    log.add("join", 0.0, **WORKER, count=1)
    for week in range(6):
        for day in range(2):
            hour_of_requests(log, week * WEEK + day * DAY, 50 if (week, day) in ((3, 0), (5, 0), (5, 1)) else 10)
            hour_of_requests(log, week * WEEK + day * DAY + HOUR, 10)
    return log.rows


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ((), [3 * WEEK, 5 * WEEK, 5 * WEEK + DAY]),
        (("--since", after(4 * WEEK).isoformat()), [5 * WEEK, 5 * WEEK + DAY]),
        (("--since", after(5 * WEEK + 1).isoformat()), [5 * WEEK, 5 * WEEK + DAY]),  # the hour as a whole
        (("--since", after(5 * WEEK + HOUR).isoformat()), [5 * WEEK + DAY]),
        (("--since", after(5 * WEEK).isoformat(), "--until", after(5 * WEEK + DAY).isoformat()), [5 * WEEK]),
        (("--until", after(4 * WEEK).isoformat()), [3 * WEEK]),
        (("--since", after(5 * WEEK).isoformat(), "--weeks", "2"), [5 * WEEK + DAY]),  # 10 and 50 before
    ],
)
def test_the_job_reads_the_weeks_before_the_time_that_it_is_asked_about(
    run_here: Callable[..., Result], tmp_path: Path, words: tuple[str, ...], found: list[float]
):
    place = ("--events", str(tmp_path / "events"), "--out", str(tmp_path), "--quiet")
    store(tmp_path / "events", weeks_of_requests(), "some")
    run_here("anomalies", *place, *(word.replace("+00:00", "") for word in words))
    rows = of_arrow(tables.read(tmp_path, "anomalies"))
    assert [row["window_start"] for row in rows if row["measure"] == "requests"] == found


@pytest.mark.usefixtures("run_here")  # in the session of the tests
def test_among_several_jobs_only_those_that_compare_weeks_read_them(tmp_path: Path):
    rows = weeks_of_requests()
    store(tmp_path / "events", rows, "some")
    store(tmp_path / "events", rows[::7], "again")
    span = running.Span(tmp_path / "events", since=after(5 * WEEK))
    running.run_jobs(["trends", "anomalies"], span, tmp_path, running.Place("local[2]"), Progress(quiet=True))
    unusual = of_arrow(tables.read(tmp_path, "anomalies"))
    assert [row["window_start"] for row in unusual if row["measure"] == "requests"] == [5 * WEEK, 5 * WEEK + DAY]
    assert {row["value"] for row in unusual} == {50.0}  # each event once
    days = of_arrow(tables.read(tmp_path, "trends_day"))
    assert {row["window_start"]: row["requests"] for row in days} == {5 * WEEK: 60.0, 5 * WEEK + DAY: 60.0}
