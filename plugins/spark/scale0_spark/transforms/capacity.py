"""How busy services are, and when they will be full if things go on as they did.

Utilisation of an hour is the time that workers spent on requests, divided by the time that they had: an hour for each
task that a worker may do at once, whether it had anything to do or not. A request counts in the hour of its end. The
forecast is the line through all hours by least squares.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.order import in_order
from scale0_spark.transforms.worker_hours import present_workers, worker_hours

KINDS = ("task", "rpc", "join", "heartbeat")
"""The kinds of events that capacity is made of."""

HOUR = 3600.0
DAY = 86_400.0


@attrs.frozen
class Capacity:
    """What the forecast depends on."""

    full: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """The utilisation at which a service is full."""
    hours: int = attrs.field(default=24, validator=attrs.validators.ge(2))
    """A line through fewer hours than this says nothing."""
    horizon_days: float = attrs.field(default=365.0, validator=attrs.validators.gt(0))
    """Nothing is said about times beyond this."""


def capacity(events: DataFrame, options: Capacity = Capacity()) -> DataFrame:
    """Give a row for each hour and service, with the forecast for the service in each."""
    return of_hours(worker_hours(events), options)


def of_hours(sums: DataFrame, options: Capacity = Capacity()) -> DataFrame:
    """Make the table from what workers did by hour."""
    hours = (
        present_workers(sums)
        .groupBy("window_start", "service")
        .agg(
            F.count(F.lit(1)).alias("workers"),
            F.sum("busy_s").alias("busy_s"),
            (F.sum("busy_s") / (F.sum("slots") * F.lit(HOUR))).alias("utilisation"),
            F.max("more_than_joined").alias("more_than_joined"),
        )
    )
    return in_order(_with_forecast(_in_span(hours), options), "service", "window_start")


def _in_span(hours: DataFrame) -> DataFrame:
    """Leave out hours before the first in which a worker served or beat: joins are read from before the span."""
    first = F.min(F.when(F.col("more_than_joined"), F.col("window_start"))).over(Window.partitionBy(F.lit(0)))
    return hours.withColumn("first", first).where(F.col("window_start") >= F.col("first"))


def _with_forecast(hours: DataFrame, options: Capacity) -> DataFrame:
    of_service = Window.partitionBy("service")
    last = F.max(F.unix_micros("window_start")).over(of_service)
    # told in days before the last hour, so that the line's value there is its intercept, and digits are not lost
    placed = hours.withColumn("last", last).withColumn(
        "day", (F.unix_micros("window_start") - F.col("last")) / F.lit(DAY * 1e6)
    )
    enough = F.count(F.lit(1)).over(of_service) >= options.hours
    lined = placed.withColumns(
        {
            "slope": F.when(enough, F.regr_slope("utilisation", "day").over(of_service)),
            "now": F.when(enough, F.regr_intercept("utilisation", "day").over(of_service)),
        }
    )
    return lined.select(
        "window_start", "service", "workers", "busy_s", "utilisation",
        F.col("slope").alias("forecast_per_day"),
        _saturation(options).alias("saturation_at"),
    )  # fmt: skip


def _saturation(options: Capacity) -> Column:
    days = (F.lit(options.full) - F.col("now")) / F.col("slope")
    left = F.greatest(days, F.lit(0.0))  # a service that is full by now is full since its last hour
    moment = F.timestamp_micros((F.col("last") + left * F.lit(DAY * 1e6)).cast("long"))
    return F.when((F.col("slope") > 0) & (left <= options.horizon_days), moment)
