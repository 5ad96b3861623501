"""How many searches music servers answer by themselves."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.windows import share, total, window

KINDS = ("song_search",)
"""The kinds of events that these rates are made of."""

KEYS = ("window_start", "server")
"""What rows are told apart by."""


def cache_rates(events: DataFrame) -> DataFrame:
    """Give a row for each hour and music server.

    `hit_rate` is the share of searches that were answered without asking others: by the library or the cache.
    `cache_hit_rate` is the share that the cache answered of those which the library could not.
    """
    outcome = F.col("outcome")
    counted = (
        events.where(F.col("kind").isin(*KINDS))
        .groupBy(window("hour"), F.col("peer").alias("server"))
        .agg(
            total().alias("searches"),
            total(outcome == "hit").alias("hits"),
            total(outcome == "cached").alias("cached"),
            total(outcome == "found").alias("found"),
            total(outcome.isin("miss", "timeout")).alias("misses"),
        )
    )
    beyond = F.col("cached") + F.col("found") + F.col("misses")
    return counted.select(
        F.col("window.start").alias("window_start"),
        "server", "searches", "hits", "cached", "found", "misses",
        share(F.col("hits") + F.col("cached"), F.col("searches")).alias("hit_rate"),
        share(F.col("cached"), beyond).alias("cache_hit_rate"),
    )  # fmt: skip
