"""Trends of services, counted by hand."""

from __future__ import annotations

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.testing import assertDataFrameEqual

from scale0_spark.jobs import JOBS, run
from scale0_spark.transforms.trends import ACCURACY, PERCENTILES, trends

from .event_rows import DAY, HOUR, MONDAY, Log, by_chance, frame, plain

COLUMNS = [
    "window_start", "service", "kind", "requests", "errors", "rate_per_s", "error_share",
    "queue_p50", "queue_p95", "queue_p99", "service_p50", "service_p95", "service_p99", "passed_on", "passed_on_errors",
]  # fmt: skip


def test_trends_of_a_minute_counted_by_hand(spark: SparkSession):
    log = Log()
    for at, outcome, queue_us, service_us in (
        (0.0, "ok", 10, 100),
        (1.0, "error", 20, 200),
        (59.999999, "cancelled", 30, 300),
        (60.0, "timeout", 40, 400),
    ):
        log.add("task", at, service="echo", peer="w", outcome=outcome, queue_us=queue_us, service_us=service_us)
    for outcome in ("ok", "error"):  # a bridge passes them on, or a service of the broker itself has them
        log.add("task", 60.0, weight=2.0, service="inner", outcome=outcome, queue_us=0, service_us=1)
    log.add("task", 60.0, service="inner", outcome="refused", queue_us=0)  # nobody had it
    log.add("rpc", 5.0, service="echo", outcome="refused", queue_us=7)
    log.add("join", 5.0, service="echo", peer="w")
    table = trends(frame(spark, log.rows), "minute").orderBy("window_start", "kind")
    assert table.columns == COLUMNS
    first, second = MONDAY, MONDAY.replace(minute=1)
    expected = spark.createDataFrame(
        [
            (first, "echo", "rpc", 1.0, 1.0, 1 / 60, 1.0, 7.0, 7.0, 7.0, None, None, None, 0.0, 0.0),
            (first, "echo", "task", 3.0, 1.0, 3 / 60, 1 / 3, 20.0, 30.0, 30.0, 200.0, 300.0, 300.0, 0.0, 0.0),
            (second, "echo", "task", 1.0, 1.0, 1 / 60, 1.0, 40.0, 40.0, 40.0, 400.0, 400.0, 400.0, 0.0, 0.0),
            (second, "inner", "task", 5.0, 3.0, 5 / 60, 0.6, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 4.0, 2.0),
        ],
        table.schema,
    )
    assertDataFrameEqual(table, expected)


def test_seconds_hours_and_days_begin_in_utc_and_a_sampled_event_stands_for_many(spark: SparkSession):
    log = Log()
    log.add("task", 3599.0, weight=10.0, service="echo", outcome="ok", queue_us=1, service_us=1)
    log.add("task", 3600.0, weight=10.0, service="echo", outcome="error", queue_us=3, service_us=3)
    events = frame(spark, log.rows)
    seconds = plain(trends(events, "second").orderBy("window_start"))
    assert [(row["window_start"], row["rate_per_s"]) for row in seconds] == [(3599, 10), (3600, 10)]
    hours = plain(trends(events, "hour").orderBy("window_start"))
    assert [(row["window_start"], row["requests"], row["errors"]) for row in hours] == [(0, 10, 0), (HOUR, 10, 10)]
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        (day,) = plain(trends(events, "day"))
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert (day["window_start"], day["requests"], day["error_share"]) == (0, 20, 0.5)
    assert day["rate_per_s"] == pytest.approx(20 / DAY)


def test_counts_are_right_where_brokers_sample_at_different_rates_and_percentiles_are_of_what_was_kept(
    spark: SparkSession,
):
    """The latter is a limit, and the docs tell of it."""
    every, tenth = Log("every"), Log("tenth")
    for place in range(10):
        every.add("task", 1.0 + place, service="echo", outcome="ok", queue_us=1, service_us=100)
    tenth.add("task", 5.0, weight=10.0, service="echo", outcome="error", queue_us=1, service_us=900)
    (hour,) = plain(trends(frame(spark, every.rows, tenth.rows), "hour"))
    assert (hour["requests"], hour["errors"], hour["error_share"]) == (20.0, 10.0, 0.5)
    assert (hour["service_p50"], hour["service_p99"]) == (100.0, 900.0)
    assert [(row["service_p50"], row["service_p95"]) for row in plain(trends(frame(spark, tenth.rows), "hour"))] == [
        (900.0, 900.0)
    ]


def test_ranks_of_percentiles_of_large_windows_are_off_by_as_much_as_is_stated_at_most(spark: SparkSession):
    number, count = F.col("id"), 40_000
    rows = spark.range(0, count, 1, 4).select(
        F.timestamp_seconds(F.lit(int(MONDAY.timestamp())) + number % 3600).alias("ts"),
        F.lit("echo").alias("service"), F.lit("task").alias("kind"), F.lit("ok").alias("outcome"),
        F.lit(1.0).alias("weight"), F.lit("w").alias("peer"),
        (number * 7919 % count).alias("queue_us"),  # each value once, by and by
        (10 * (number * 104_729 % count)).alias("service_us"),
    )  # fmt: skip
    (hour,) = plain(trends(rows, "hour"))
    assert hour["requests"] == count
    for name, rank in PERCENTILES.items():
        for value in (hour[f"queue_{name}"], hour[f"service_{name}"] / 10):
            assert abs(value - rank * count) <= count / ACCURACY + 1


def test_no_job_computes_a_table_twice_to_put_it_in_order(spark: SparkSession):
    events = frame(spark, by_chance(1, 20))

    def plan(table: DataFrame) -> str:
        return str(table._jdf.queryExecution().executedPlan().toString())

    assert "rangepartitioning" in plan(trends(events).orderBy("service"))
    for job in JOBS.values():
        for name, table in run(job, events).items():
            assert "rangepartitioning" not in plan(table), name
