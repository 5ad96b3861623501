"""What services and their workers did, by hour: sums that capacity and placement are made of.

They add up, so that a stream may keep them: its state has a row for each worker and hour, however many its requests.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.windows import total, window

REQUESTS = ("task", "rpc")
SIGNS = ("join", "leave", "heartbeat")
"""The kinds that tell whether a worker is here. A task is no sign: it may be told after its worker is gone."""
TURNED_AWAY = ("refused", "timeout")

KEYS = ("window_start", "broker", "epoch", "service", "peer", "group")
"""What rows are told apart by; requests that reached no worker have no peer."""


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
    """Give the seconds that each worker was busy in each hour, and how many tasks it may do at once."""
    busy = hours.where(F.col("busy_s").isNotNull()).groupBy("window_start", "broker", "service", "peer")
    return (
        busy.agg(F.sum("busy_s").alias("busy_s"), F.max_by("group", "served_at").alias("group"))
        .join(_slots(hours), ["broker", "service", "peer"], "left")
        .fillna(1, ["slots"])
    )


def _slots(hours: DataFrame) -> DataFrame:
    """Give how many tasks at once each worker was ready for when it last joined; at least one."""
    joined = hours.where(F.col("joined_at").isNotNull()).groupBy("broker", "service", "peer")
    return joined.agg(F.greatest(F.coalesce(F.max_by("slots", "joined_at"), F.lit(1)), F.lit(1)).alias("slots"))
