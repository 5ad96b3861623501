"""Hours that are unlike the same hour of the same weekday in the weeks before.

What is expected is the median of those weeks, and how far they differ from it by themselves is the median of the
distances (MAD, times 1.4826 to compare with a standard deviation). Neither is moved by a single odd week. A service
that always does the same has a MAD of 0; a floor keeps trifles from being anomalies then.

A week in which a service was silent at that hour is a week with 0 requests, if brokers told of anything in that hour
and the service had been seen before. So requests at an hour that is always silent are unusual, and those of a service
that is new are not.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.order import in_order
from scale0_spark.transforms.trends import KINDS as REQUESTS
from scale0_spark.transforms.trends import trends

KINDS = (*REQUESTS, "load")
"""The kinds of events that anomalies are found in; `load` shows that a broker was there, though nobody asked it."""

WEEK_US = 7 * 86_400_000_000

MOST_WEEKS = 104
"""Each hour is looked at once for each week: who compared with ages would wait for ages."""

HOUR_OF_SERVICE = ["window_start", "service", "kind", "measure"]

MEASURES = ("requests", "error_share", "service_p99")

LIKE_SIGMA = 1.4826
"""The standard deviation of normal values is so many times their MAD."""


@attrs.frozen
class Anomalies:
    """What counts as unusual."""

    weeks: int = attrs.field(
        default=4, validator=attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(MOST_WEEKS))
    )
    """How many weeks an hour is compared with."""
    least_weeks: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    """With fewer weeks nothing is said, unless these are all that an hour is compared with."""
    deviation: float = attrs.field(default=4.0, validator=attrs.validators.gt(0))
    """How many times its usual distance an hour is off when it is unusual."""
    relative_floor: float = attrs.field(default=0.05, validator=attrs.validators.gt(0))
    """The usual distance is at least this share of what is expected."""
    requests_floor: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """The usual distance of requests is at least this."""
    error_share_floor: float = attrs.field(default=0.005, validator=attrs.validators.gt(0))
    """The usual distance of shares of errors is at least this."""
    service_p99_floor: float = attrs.field(default=100.0, validator=attrs.validators.gt(0))
    """The usual distance of service times is at least this, in microseconds."""

    def floor(self, measure: str) -> float:
        """Give the least distance of a measure that is usual."""
        floors = {
            "requests": self.requests_floor,
            "error_share": self.error_share_floor,
            "service_p99": self.service_p99_floor,
        }
        return floors[measure]


def anomalies(events: DataFrame, options: Anomalies = Anomalies()) -> DataFrame:
    """Give a row for each unusual hour and measure of a service; the last hour is not over and left out."""
    return unusual(told_hours(events), options)


def told_hours(events: DataFrame) -> DataFrame:
    """Give trends by hour, and beside them a row for each hour in which a broker told of its load."""
    return trends(events, "hour", kinds=KINDS)


def unusual(hours: DataFrame, options: Anomalies = Anomalies()) -> DataFrame:
    """Find the unusual rows of a table of trends by hour; an hour that is not there had no requests."""
    measured = _measured(hours)
    compared = _expected(measured, hours, options).join(
        measured.withColumnRenamed("measured", "value"), HOUR_OF_SERVICE, "left"
    )
    last = hours.agg(F.max("window_start").alias("last"))
    value = F.when(F.col("measure") == "requests", F.coalesce("value", F.lit(0.0))).otherwise(F.col("value"))
    rows = (
        compared.crossJoin(F.broadcast(last))
        .where(F.col("window_start") < F.col("last"))
        .withColumn("value", value)
        .withColumn("deviation", (F.col("value") - F.col("expected")) / F.col("usual"))
        .where(F.abs("deviation") >= options.deviation)
    )
    columns = ("window_start", "service", "kind", "measure", "value", "expected", "deviation", "weeks")
    return in_order(rows.select(*columns), *HOUR_OF_SERVICE)


def _measured(hours: DataFrame) -> DataFrame:
    """Give one row for each measure that there is."""
    pairs = F.array(*(F.struct(F.lit(name).alias("measure"), F.col(name).alias("measured")) for name in MEASURES))
    asked = hours.where(F.col("kind").isin(*REQUESTS))
    return asked.select("window_start", "service", "kind", F.inline(pairs)).where(F.col("measured").isNotNull())


def _expected(measured: DataFrame, hours: DataFrame, options: Anomalies) -> DataFrame:
    """Give, for each hour, what the weeks before it lead one to expect."""
    known = (
        _before(measured, hours, options)
        .groupBy(*HOUR_OF_SERVICE)
        .agg(F.array_sort(F.collect_list("measured")).alias("before"), F.count(F.lit(1)).alias("weeks"))
    )
    least = min(options.least_weeks, options.weeks)
    centred = known.where(F.col("weeks") >= least).withColumn("expected", _middle(F.col("before")))
    distances = F.array_sort(F.transform("before", lambda value: F.abs(value - F.col("expected"))))
    return centred.withColumn(
        "usual",
        F.greatest(
            _middle(distances) * F.lit(LIKE_SIGMA), F.abs("expected") * F.lit(options.relative_floor), _floor(options)
        ),
    ).drop("before")


def _before(measured: DataFrame, hours: DataFrame, options: Anomalies) -> DataFrame:
    """Give, for each hour that may be unusual, what was measured in each of the weeks before of which that is known.

    These are the hours of which there is something, now or in those weeks: between silence and silence all is usual.
    """
    later = F.explode(F.sequence(F.lit(0), F.lit(options.weeks))).alias("later")
    looked_at = (
        measured.select(*HOUR_OF_SERVICE, later)
        .withColumn("window_start", _weeks_from("window_start", F.col("later")))
        .select(*HOUR_OF_SERVICE)
        .distinct()
    )
    weeks = looked_at.withColumn("earlier", F.explode(F.sequence(F.lit(1), F.lit(options.weeks)))).withColumn(
        "then", _weeks_from("window_start", -F.col("earlier"))
    )
    seen = measured.groupBy("service", "kind").agg(F.min("window_start").alias("seen"))
    told = hours.select(F.col("window_start").alias("then"), F.lit(True).alias("told")).distinct()
    silent = (F.col("measure") == "requests") & F.col("told") & (F.col("seen") < F.col("then"))
    return (
        weeks.join(measured.withColumnRenamed("window_start", "then"), ["then", *HOUR_OF_SERVICE[1:]], "left")
        .join(F.broadcast(told), "then", "left")
        .join(seen, ["service", "kind"])
        .withColumn("measured", F.coalesce("measured", F.when(silent, F.lit(0.0))))
        .where(F.col("measured").isNotNull())
    )


def _weeks_from(moment: str, weeks: Column) -> Column:
    return F.timestamp_micros(F.unix_micros(moment) + weeks * F.lit(WEEK_US))


def _middle(ordered: Column) -> Column:
    """Give the median of an array that is in order."""
    size = F.size(ordered)
    low, high = F.floor((size - 1) / 2).cast("int"), F.ceil((size - 1) / 2).cast("int")
    return (F.get(ordered, low) + F.get(ordered, high)) / F.lit(2.0)


def _floor(options: Anomalies) -> Column:
    pairs = [(F.col("measure") == name, F.lit(options.floor(name))) for name in MEASURES]
    (first, floor), *others = pairs
    chosen = F.when(first, floor)
    for condition, value in others:
        chosen = chosen.when(condition, value)
    return chosen
