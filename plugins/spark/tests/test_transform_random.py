"""Transforms against plain Python on events by chance."""

from __future__ import annotations

import random
import secrets

import pytest
from pyspark.sql import DataFrame, SparkSession

from scale0_spark.transforms.anomalies import Anomalies, anomalies
from scale0_spark.transforms.availability import availability, flapping
from scale0_spark.transforms.caches import cache_rates
from scale0_spark.transforms.capacity import Capacity, capacity
from scale0_spark.transforms.placement import placement_plan
from scale0_spark.transforms.popularity import Popularity, popularity, ranked, totals
from scale0_spark.transforms.replication import Replication, replication_plan
from scale0_spark.transforms.trends import trends

from . import plain_reference as reference
from .event_rows import DAY, HOUR, MONDAY, WEEK, cases, frame, in_few_hours, plain, seconds, shuffled
from .plain_reference import Table


@pytest.fixture
def seeds() -> list[int]:
    """Give seeds that are always tried, and new ones; what is printed is shown when a test fails.

    A test has all of its cases in one table: what costs time is a job of Spark, not its rows.
    """
    new = [secrets.randbelow(2**32) for _ in range(4)]
    print(f"new seeds: {new}")
    return [0, 1, 2, 3, *new]


def check(table: DataFrame, keys: list[str], wanted: Table) -> None:
    """Look whether a table has these rows and no others, and these values in them."""
    got = plain(table)
    by_key = {tuple(row[key] for key in keys): row for row in got}
    assert wanted
    assert len(by_key) == len(got)
    assert by_key.keys() == wanted.keys()
    for key, values in wanted.items():
        for name, value in values.items():
            exact = value is None or isinstance(value, str)
            error = 1e-6 if name == "saturation_at" else 1e-9  # where two lines meet that may be nearly parallel
            assert by_key[key][name] == (value if exact else pytest.approx(value, rel=error, abs=1e-6)), (key, name)


def test_trends_and_rates(spark: SparkSession, seeds: list[int]):
    rows = cases(seeds, 200)
    events = frame(spark, shuffled(rows, 1))
    for every in ("minute", "hour", "day"):
        check(trends(events, every), ["window_start", "service", "kind"], reference.trends(rows, every))
    check(cache_rates(events), ["window_start", "server"], reference.cache_rates(rows))


def test_workers_and_brokers(spark: SparkSession, seeds: list[int]):
    rows = cases(seeds, 200)
    events = frame(spark, shuffled(rows, 2))
    check(availability(events), ["broker", "service", "peer"], reference.availability(rows))
    wanted = reference.flapping(rows)
    assert {key[1] is None for key, values in wanted.items() if values["flaps"]} >= {True}
    check(flapping(events), ["broker", "service", "peer", "window_start"], wanted)


def test_placement(spark: SparkSession, seeds: list[int]):
    rows = cases(seeds, 200)
    chance = random.Random(seeds[-1])
    for row in rows:  # clients that ask for something else; and outages that are over in some places
        if row["outcome"] == "refused" and chance.random() < 0.2:
            row["service"] = "misspelt"
        elif row["outcome"] == "refused" and row["group"] == "south" and seconds(row["ts"]) > DAY / 2:
            row["outcome"] = "cancelled"
    events = frame(spark, shuffled(rows, 3))
    wanted = reference.placement_plan(rows)
    assert "misspelt" in {row["service"] for row in rows} - {service for service, _ in wanted}
    check(placement_plan(events), ["service", "group"], wanted)


def test_capacity(spark: SparkSession, seeds: list[int]):
    rows = cases(seeds, 400, days=6.0)
    wanted = reference.capacity(rows, 3)
    assert {values["saturation_at"] is None for values in wanted.values()} == {True, False}
    assert {values["forecast_per_day"] is None for values in wanted.values()} >= {False}
    check(capacity(frame(spark, shuffled(rows, 3)), Capacity(days=3)), ["window_start", "service"], wanted)


@pytest.mark.parametrize(("half_life", "as_of_day", "least"), [(3.0, None, 2.0), (0.01, 30.0, 0.0)])
def test_songs(spark: SparkSession, seeds: list[int], half_life: float, as_of_day: float | None, least: float):
    rows = cases(seeds[:2] + seeds[-2:], 120, days=20.0)
    events = frame(spark, shuffled(rows, 4))
    as_of = None if as_of_day is None else as_of_day * DAY
    moment = None if as_of is None else MONDAY.timestamp() + as_of
    options = Replication(wanted=least, per_server=1, half_life_days=half_life, alive_days=12.0, as_of=moment)
    wanted = reference.replication_plan(rows, least, 1, half_life, 12.0, as_of)
    check(replication_plan(events, options), ["song", "server"], wanted)
    chosen, songs = Popularity(half_life, moment), reference.popularity(rows, half_life, as_of)
    check(popularity(events, chosen), ["song"], songs)
    if half_life > 1:  # a shorter one is refused by the sums
        check(ranked(totals(events, chosen), chosen), ["song"], songs)


def test_anomalies(spark: SparkSession, seeds: list[int]):
    rows = in_few_hours(cases(seeds, 500, days=42.0), 5 * HOUR)
    chance = random.Random(seeds[-1])
    for row in rows:  # some are silent at some hours, and most of them in some weeks
        at = seconds(row["ts"])
        if row["service"] == "sum/0" and at % WEEK < HOUR and at < 5 * WEEK:
            row["service"] = "sum/1"
        elif WEEK <= at < 2 * WEEK and at % WEEK > 4 * HOUR and chance.random() < 0.9:
            row["kind"] = "load"
    options = Anomalies(weeks=4, least_weeks=2, deviation=1.5)
    wanted = reference.anomalies(rows, 4, 2, 1.5)
    assert any(measure == "requests" and values["expected"] == 0.0 for (*_, measure), values in wanted.items())
    assert {key[3] for key in wanted} == {"requests", "error_share", "service_p99"}
    check(anomalies(frame(spark, rows), options), ["window_start", "service", "kind", "measure"], wanted)
