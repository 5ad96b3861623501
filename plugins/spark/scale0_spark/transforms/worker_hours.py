"""What services and their workers did, by hour: sums that capacity and placement are made of.

They add up, so that a stream may keep them: its state has a row for each worker and hour, however many its requests.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.windows import total, window

REQUESTS = ("task", "rpc")
SIGNS = ("join", "leave", "heartbeat")
"""The kinds that tell whether a worker is here. A task is no sign: it may be told after its worker is gone."""
TURNED_AWAY = ("refused", "timeout")

KEYS = ("window_start", "broker", "epoch", "service", "peer", "group")
"""What rows are told apart by; requests that reached no worker have no peer."""

WORKER = ("broker", "service", "peer")
"""What workers are told apart by; one that is back after its broker's start is the same."""


def worker_hours(events: DataFrame) -> DataFrame:
    """Sum up requests, work and signs of life; times are those of the last event of their sort."""
    kind, peer, took, moment = F.col("kind"), F.col("peer"), F.col("service_us"), F.struct("ts", "seq")
    asked = kind.isin(*REQUESTS)
    # a bridge passed these on, and who has them tells of them; or they were for a service of the broker itself
    wanted = asked & ~(peer.isNull() & took.isNotNull())
    served = asked & peer.isNotNull() & took.isNotNull()
    sign, joined, left = kind.isin(*SIGNS), kind == "join", kind == "leave"
    sums = (
        events.where(asked | sign)
        .groupBy(window("hour"), *KEYS[1:])
        .agg(
            F.count_if(wanted).alias("told"),
            total(wanted).alias("requests"),
            total(wanted & F.col("outcome").isin(*TURNED_AWAY)).alias("turned_away"),
            (F.sum(F.when(served, took * F.col("weight"))) / F.lit(1e6)).alias("busy_s"),
            F.max(F.when(served, moment)).alias("served_at"),
            F.count_if(kind == "heartbeat").alias("beats"),
            F.max(F.when(sign, moment)).alias("sign_at"),
            F.max(F.when(left, F.col("ts"))).alias("left_at"),
            F.max(F.when(sign & ~left, F.col("ts"))).alias("seen_at"),
            F.max(F.when(joined, moment)).alias("joined_at"),
            F.max_by("count", F.when(joined, moment)).alias("slots"),
            F.max("ts").alias("heard"),
        )
    )
    return sums.select(
        F.col("window.start").alias("window_start"), *(name for name in sums.columns if name != "window")
    )


def busy_workers(hours: DataFrame) -> DataFrame:
    """Give the seconds that each worker was busy in each hour in which it was."""
    busy = hours.where(F.col("busy_s").isNotNull()).groupBy("window_start", *WORKER)
    return busy.agg(F.sum("busy_s").alias("busy_s"), F.max_by("group", "served_at").alias("group"))


def present_workers(hours: DataFrame, *beside: str) -> DataFrame:
    """Give the workers of each hour, idle ones as well: how long each was busy, and how many tasks it may do at once.

    A worker was there if it served, joined or beat in that hour. It may do as many tasks as it said in its last join up
    to the end of the hour. `beside` are columns that are the same in all rows, to be taken along.
    """
    of_worker = hours.where(F.col("peer").isNotNull()).groupBy("window_start", *WORKER)
    told = of_worker.agg(
        *(F.max(name).alias(name) for name in beside),
        F.sum("busy_s").alias("busy_s"),
        (F.sum("beats") > 0).alias("beat"),
        F.max("seen_at").alias("seen_at"),
        F.when(F.max("joined_at").isNotNull(), _at_least_one(F.max_by("slots", "joined_at"))).alias("joined_for"),
    )
    # by order of hours: until now, and no further
    so_far = Window.partitionBy(*WORKER).orderBy("window_start")
    slots = F.coalesce(F.last("joined_for", ignorenulls=True).over(so_far), F.lit(1))
    served = F.col("busy_s").isNotNull()
    return (
        told.withColumn("slots", slots)
        .where(served | F.col("seen_at").isNotNull())
        .select(
            "window_start", *WORKER, F.coalesce("busy_s", F.lit(0.0)).alias("busy_s"), "slots",
            (served | F.col("beat")).alias("more_than_joined"), *beside,
        )
    )  # fmt: skip


def _at_least_one(slots: Column) -> Column:
    return F.greatest(F.coalesce(slots, F.lit(1)), F.lit(1))
