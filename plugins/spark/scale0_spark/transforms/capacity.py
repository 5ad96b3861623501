"""How busy services are, and when they will be full if things go on as they did.

Utilisation of an hour is the time that workers spent on requests, divided by the time that they had: an hour for each
task that a worker may do at once, whether it had anything to do or not. A request counts in the hour of its end. The
last hour is not over, so only the part of it that has passed is time that they had.

The forecast is a line through days, by least squares. Hours would not do: load goes up and down within a day, and a
line through one day and a half sees that, not growth. A day is 24 hours, counted back from the last whole one, and
stands for how busy its busiest hours were, but for one in twenty: these are the ones that are full first.
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

BUSY_HOURS = 0.95
"""Which percentile of the hours tells how busy the busy ones are."""

LEAST_PASSED = 60.0
"""The last hour counts as having so many seconds at least: a task of half a minute would fill its first second."""


@attrs.frozen
class Capacity:
    """What the forecast depends on."""

    full: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """The utilisation at which a service is full."""
    days: int = attrs.field(default=7, validator=attrs.validators.ge(2))
    """A line through fewer days than this says nothing."""
    horizon_days: float = attrs.field(default=365.0, validator=attrs.validators.gt(0))
    """Nothing is said about times beyond this."""


def capacity(events: DataFrame, options: Capacity = Capacity()) -> DataFrame:
    """Give a row for each hour and service, with the forecast for the service in each."""
    return of_hours(worker_hours(events), options)


def of_hours(sums: DataFrame, options: Capacity = Capacity()) -> DataFrame:
    """Make the table from what workers did by hour."""
    # windows, and no join with their sums: the sums would be made twice
    everything = Window.partitionBy(F.lit(0))
    last, heard = F.max("window_start").over(everything), F.max("heard").over(everything)
    hours = (
        present_workers(sums.withColumns({"last": last, "heard": heard}), "last", "heard")
        .groupBy("window_start", "service", "last", "heard")
        .agg(
            F.count(F.lit(1)).alias("workers"),
            F.sum("busy_s").alias("busy_s"),
            F.sum("slots").alias("slots"),
            F.max("more_than_joined").alias("more_than_joined"),
        )
        .withColumn("utilisation", F.col("busy_s") / (F.col("slots") * _passed()))
    )
    return in_order(_with_forecast(_in_span(hours), options), "service", "window_start")


def _passed() -> Column:
    """Give how many seconds of an hour have passed: all, but for the last one."""
    so_far = (F.unix_micros("heard") - F.unix_micros("last")) / F.lit(1e6)
    is_last = F.col("window_start") == F.col("last")
    return F.when(is_last, F.greatest(so_far, F.lit(LEAST_PASSED))).otherwise(F.lit(HOUR))


def _in_span(hours: DataFrame) -> DataFrame:
    """Leave out hours before the first in which a worker served or beat: joins are read from before the span."""
    first = F.min(F.when(F.col("more_than_joined"), F.col("window_start"))).over(Window.partitionBy(F.lit(0)))
    return hours.withColumn("first", first).where(F.col("window_start") >= F.col("first"))


def _with_forecast(hours: DataFrame, options: Capacity) -> DataFrame:
    of_service = Window.partitionBy("service")
    days = _with_days(hours)
    # days are counted back from the beginning of the last hour: the line's value then is its intercept
    then = -F.col("ago")
    newest = F.min(F.when(F.col("day").isNotNull(), F.col("ago"))).over(of_service)
    # a service that is gone fills up no more, however it went up before
    enough = (F.count("day").over(of_service) >= options.days) & (newest == 0)
    lined = days.withColumns(
        {
            "slope": F.when(enough, F.regr_slope("day", then).over(of_service)),
            "now": F.when(enough, F.regr_intercept("day", then).over(of_service)),
        }
    )
    return lined.select(
        "window_start", "service", "workers", "busy_s", "utilisation",
        F.col("slope").alias("forecast_per_day"),
        F.col("now").alias("forecast_now"),
        _saturation(options).alias("saturation_at"),
    )  # fmt: skip


def _with_days(hours: DataFrame) -> DataFrame:
    """Give each whole day of a service its value, in the first hour that the service has in it; null in all others.

    The hour in which a service was first seen is hardly a whole one, so days begin after it.
    """
    of_day = Window.partitionBy("service", "ago")
    before = (F.unix_micros("last") - F.unix_micros("window_start")) / F.lit(HOUR * 1e6)
    begin = F.unix_micros("last") - (F.col("ago") + 1) * F.lit(DAY * 1e6)
    seen = F.min(F.unix_micros("window_start")).over(Window.partitionBy("service"))
    told_here = F.row_number().over(of_day.orderBy("window_start")) == 1
    whole = (F.col("ago") >= 0) & (begin > F.col("seen"))
    return hours.withColumns({"ago": F.floor((before - 1) / F.lit(24.0)), "seen": seen}).withColumn(
        "day", F.when(whole & told_here, F.percentile("utilisation", BUSY_HOURS).over(of_day))
    )


def _saturation(options: Capacity) -> Column:
    horizon = F.lit(options.horizon_days)
    missing = F.lit(options.full) - F.col("now")
    rising = F.when(F.col("slope") > 0, F.try_divide(missing, F.col("slope")))
    left = F.when(missing <= 0, F.lit(0.0)).otherwise(rising)  # who is full by now is so since the last whole hour
    nearer = F.least(left, horizon)  # of a line that hardly rises, days beyond it are too many for a time
    moment = F.timestamp_micros((F.unix_micros("last") + nearer * F.lit(DAY * 1e6)).cast("long"))
    return F.when(left <= horizon, moment)
