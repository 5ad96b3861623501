"""How long workers and brokers were there, and which of them come and go.

A worker flaps when it leaves unexpectedly again and again. Nobody tells of a broker that it left, so a broker flaps
when it starts again and again.

A worker is up from its join, or from any sign of life, until it leaves. After an unexpected leave it is down until it
comes back. After it said goodbye it is neither: nobody misses it. Only time in which its broker told of events counts.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.order import in_order
from scale0_spark.transforms.windows import total, window

KINDS = ("join", "leave", "heartbeat", "load")
"""The kinds of events that availability is made of; `load` shows that a broker was there."""

HOUR_US = 3_600_000_000

FLAPPING_KINDS = ("join", "leave", "load")
"""The kinds of events that flapping is made of; `load` shows that a broker without workers has started."""

FLAPPING_KEYS = ("broker", "epoch", "service", "peer", "window_start")
"""What rows of the sums are told apart by."""


@attrs.frozen
class Availability:
    """What availability depends on."""

    flaps: int = attrs.field(default=3, validator=attrs.validators.ge(1))
    """How often a worker leaves unexpectedly, or a broker starts, within an hour when it is said to flap."""


def left_unexpectedly() -> Column:
    """Tell whether a worker left in another way than by saying so."""
    return (F.col("kind") == "leave") & (F.coalesce(F.col("outcome"), F.lit("lost")) != "left")


def availability(events: DataFrame) -> DataFrame:
    """Give a row for each worker of each service, and one for each broker, whose service and peer are null."""
    return in_order(_workers(events).unionByName(_brokers(events)), "broker", "service", "peer")


def _workers(events: DataFrame) -> DataFrame:
    told = events.where(F.col("kind").isin(*KINDS))
    ends = told.groupBy("broker", "epoch").agg(F.max("ts").alias("end"))
    of_peer = Window.partitionBy("broker", "epoch", "service", "peer").orderBy("ts", "seq")
    seen = (
        told.where(F.col("kind") != "load")
        .join(F.broadcast(ends), ["broker", "epoch"])
        .withColumn("next", F.coalesce(F.lead("ts").over(of_peer), "end"))
        .withColumn("lasted", _seconds("next") - _seconds("ts"))
    )
    is_up = F.col("kind") != "leave"
    rows = seen.groupBy("broker", "service", "peer").agg(
        F.max_by("group", F.struct("ts", "seq")).alias("group"),
        F.min("ts").alias("first_seen"),
        F.max("ts").alias("last_seen"),
        F.sum(F.when(is_up, F.col("lasted")).otherwise(0.0)).alias("up_s"),
        F.sum(F.when(left_unexpectedly(), F.col("lasted")).otherwise(0.0)).alias("down_s"),
        total(F.col("kind") == "join").alias("joins"),
        total(F.col("kind") == "leave").alias("leaves"),
        total(left_unexpectedly()).alias("lost"),
    )
    return _with_share(rows)


def _brokers(events: DataFrame) -> DataFrame:
    """Give each broker's time from its starts to its last events; how it ended nobody is left to tell."""
    starts = (
        events.where(F.col("kind").isin(*KINDS))
        .groupBy("broker", "epoch")
        .agg(F.min("ts").alias("start"), F.max("ts").alias("end"), F.max("group").alias("group"))
    )
    before = F.lag("end").over(Window.partitionBy("broker").orderBy("epoch"))
    gap = F.greatest(F.coalesce(_seconds("start") - _seconds(before), F.lit(0.0)), F.lit(0.0))
    rows = (
        starts.withColumn("gap", gap)
        .groupBy("broker")
        .agg(
            F.max_by("group", "epoch").alias("group"),
            F.min("start").alias("first_seen"),
            F.max("end").alias("last_seen"),
            F.sum(_seconds("end") - _seconds("start")).alias("up_s"),
            F.sum("gap").alias("down_s"),
            F.count(F.lit(1)).cast("double").alias("joins"),
            (F.count(F.lit(1)) - 1).cast("double").alias("leaves"),
        )
    )
    nobody = F.lit(None).cast("string")
    return _with_share(rows.withColumns({"service": nobody, "peer": nobody, "lost": F.lit(None).cast("double")}))


def _with_share(rows: DataFrame) -> DataFrame:
    observed = F.col("up_s") + F.col("down_s")
    return rows.select(
        "broker", "service", "peer", "group", "first_seen", "last_seen", "up_s", "down_s",
        F.when(observed > 0, F.col("up_s") / observed).otherwise(F.lit(1.0)).alias("availability"),
        "joins", "leaves", "lost",
    )  # fmt: skip


def changes(events: DataFrame) -> DataFrame:
    """Count comings and goings of each worker by hour and start of its broker, which may have none.

    The sums of a stream and of a batch are the same.
    """
    moved = F.col("kind") != "load"
    counted = (
        events.where(F.col("kind").isin(*FLAPPING_KINDS))
        .groupBy(window("hour"), "broker", "epoch", "service", "peer")
        .agg(total(moved).alias("changes"), total(left_unexpectedly()).alias("unexpected"))
    )
    return counted.select(
        "broker", "epoch", "service", "peer", F.col("window.start").alias("window_start"), "changes", "unexpected"
    )


def flaps(counted: DataFrame, options: Availability = Availability()) -> DataFrame:
    """Tell of each worker and of each broker how often it flapped in an hour."""
    workers = (
        counted.where(F.col("changes") > 0)
        .groupBy("broker", "service", "peer", "window_start")
        .agg(F.sum("changes").alias("changes"), F.sum("unexpected").alias("times"))
    )
    rows = workers.unionByName(_starts(counted))
    often = F.col("times") >= F.lit(float(options.flaps))
    flapping = rows.select(
        "broker", "service", "peer", "window_start", "changes",
        F.when(often, F.col("times")).otherwise(F.lit(0.0)).alias("flaps"),
    )  # fmt: skip
    return in_order(flapping, "window_start", "broker", "service", "peer")


def _starts(counted: DataFrame) -> DataFrame:
    """Count the starts of each broker by hour; an epoch is the time of one, so that any event tells of it.

    A broker that runs still tells of a start from before the span that is looked at. Others of that hour are not known.
    """
    hour = F.timestamp_micros(F.col("epoch") - F.pmod(F.col("epoch"), F.lit(HOUR_US)))
    first = F.min("first_told").over(Window.partitionBy(F.lit(0)))
    nobody, starts = F.lit(None).cast("string"), F.count(F.lit(1)).cast("double")
    return (
        counted.groupBy("broker", "epoch")
        .agg(F.min("window_start").alias("first_told"))
        .withColumns({"window_start": hour, "first": first})
        .where(F.col("window_start") >= F.col("first"))
        .groupBy("broker", "window_start")
        .agg(starts.alias("changes"), starts.alias("times"))
        .withColumns({"service": nobody, "peer": nobody})
    )


def flapping(events: DataFrame, options: Availability = Availability()) -> DataFrame:
    """Give a row for each worker and hour in which it came or went, and for each broker and hour in which it started.

    Rows of brokers have neither service nor peer.
    """
    return flaps(changes(events), options)


def _seconds(moment: str | Column) -> Column:
    return F.unix_micros(moment) / F.lit(1e6)
