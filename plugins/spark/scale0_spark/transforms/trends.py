"""Trends of services: how many requests, how many failed, and how long they waited and took.

Percentiles are those of Spark's `percentile_approx`. With an accuracy of 1,000 the value given for p99 lies, in the
order of all values, between p98.9 and p99.1. A window with few events gives exact ones.

Counts are sums of weights. Percentiles are taken of the events that were kept, without their weights: Spark has no
weighted `percentile_approx`, and exact ones would cost another pass over all events. Within a broker each request of a
kind has the same chance to be kept. Brokers that sample it at different rates have a say by what they keep: the
percentiles of a service that they share lean to the one with the highest rate.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.windows import SECONDS, share, total, window, window_start

KINDS = ("task", "rpc")
"""The kinds of events that trends are made of."""

ACCURACY = 1000
"""Ranks of percentiles are off by 1/1000 of the events of a window at most."""

PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

KEYS = ("window_start", "service", "kind")
"""What rows are told apart by."""


def failed() -> Column:
    """Tell whether a request ended badly; one that its client took back did not."""
    outcome = F.col("outcome")
    return outcome.isNotNull() & ~outcome.isin("ok", "cancelled")


def passed_on() -> Column:
    """Tell whether no worker of the broker had a request, but a bridge or a service of the broker itself.

    Who has it from a bridge may tell of it, too: as `rpc`.
    """
    return (F.col("kind") == "task") & F.col("peer").isNull() & F.col("service_us").isNotNull()


def trends(
    events: DataFrame, every: str = "minute", *, accuracy: int = ACCURACY, kinds: Sequence[str] = KINDS
) -> DataFrame:
    """Give a row for each window, service and kind of requests; `every` is `second`, `minute`, `hour` or `day`."""
    ranks = F.array(*(F.lit(rank) for rank in PERCENTILES.values()))
    key, start = (window(every), "window.start") if events.isStreaming else (window_start(every), "window_start")
    counted = (
        events.where(F.col("kind").isin(*kinds))
        .groupBy(key, "service", "kind")
        .agg(
            total().alias("requests"),
            total(failed()).alias("errors"),
            total(passed_on()).alias("passed_on"),
            total(passed_on() & failed()).alias("passed_on_errors"),
            F.percentile_approx("queue_us", ranks, accuracy).alias("queue"),
            F.percentile_approx("service_us", ranks, accuracy).alias("service_time"),
        )
    )
    return counted.select(
        F.col(start).alias("window_start"),
        "service",
        "kind",
        "requests",
        "errors",
        (F.col("requests") / F.lit(float(SECONDS[every]))).alias("rate_per_s"),
        share(F.col("errors"), F.col("requests")).alias("error_share"),
        *_percentiles("queue", "queue"),
        *_percentiles("service_time", "service"),
        "passed_on",
        "passed_on_errors",
    )


def _percentiles(column: str, prefix: str) -> list[Column]:
    return [F.col(column)[place].cast("double").alias(f"{prefix}_{name}") for place, name in enumerate(PERCENTILES)]
