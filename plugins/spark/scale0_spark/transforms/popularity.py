"""How popular songs are, with old requests worth less than new ones.

A search for a song by its name, or a download, is worth 1 when it happens and half as much after each half-life. A
batch knows when it looks, and counts each event by its age. A stream does not, so it adds up numbers that hold for any
time of looking: every event counts ``2 ** ((ts - ORIGIN) / half-life)``, and the sum is divided by the same power of
the time of looking. That is the same score, as long as the numbers are not too large for it.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.windows import total

KINDS = ("song_search", "song_download")
"""The kinds of events that popularity is made of."""

KEYS = ("song",)
"""What rows are told apart by."""

ORIGIN = 1_767_225_600.0
"""The time that a stream's sums are told by: 2026-01-01, UTC."""

MOST_HALF_LIVES = 950.0
"""How many half-lives before or after it a double can tell of, with room for sums."""

DAY = 86_400.0


@attrs.frozen
class Popularity:
    """What popularity depends on."""

    half_life_days: float = attrs.field(default=7.0, validator=attrs.validators.gt(0))
    """After how many days a request counts half."""
    as_of: float | None = None
    """The time of looking, in seconds since 1970; the last event's if None."""


def popularity(events: DataFrame, options: Popularity = Popularity()) -> DataFrame:
    """Give each song's requests and score, and its rank among all."""
    wanted = _wanted(events)
    if options.as_of is None:
        latest = F.broadcast(wanted.agg(F.max("ts").alias("latest")))
        wanted, looked_at = wanted.crossJoin(latest), _seconds("latest")
    else:
        looked_at = F.lit(options.as_of)
    fading = F.pow(F.lit(0.5), (looked_at - _seconds("ts")) / F.lit(options.half_life_days * DAY))
    scored = wanted.groupBy(F.col("subject").alias("song")).agg(
        total(F.col("kind") == "song_search").alias("requests"),
        total(F.col("kind") == "song_download").alias("downloads"),
        F.sum(F.col("weight") * fading).alias("score"),
    )
    return _with_rank(scored)


def _wanted(events: DataFrame) -> DataFrame:
    return events.where(F.col("kind").isin(*KINDS) & F.col("subject").isNotNull())


def totals(events: DataFrame, options: Popularity = Popularity()) -> DataFrame:
    """Add up what each song has got, for any time of looking."""
    return (
        _wanted(events)
        .groupBy(F.col("subject").alias("song"))
        .agg(
            total(F.col("kind") == "song_search").alias("requests"),
            total(F.col("kind") == "song_download").alias("downloads"),
            F.sum(F.col("weight") * _growth(_seconds("ts"), options)).alias("grown"),
            F.max("ts").alias("last_ts"),
        )
    )


def ranked(sums: DataFrame, options: Popularity = Popularity()) -> DataFrame:
    """Turn sums into scores as of a time, the highest first; songs of equal score are ordered by name."""
    if options.as_of is None:
        looked_at = F.max(_seconds("last_ts")).over(Window.partitionBy(F.lit(0)))
    else:
        looked_at = F.lit(options.as_of)
    scored = sums.select("song", "requests", "downloads", (F.col("grown") / _growth(looked_at, options)).alias("score"))
    return _with_rank(scored)


def _with_rank(scored: DataFrame) -> DataFrame:
    order = Window.partitionBy(F.lit(0)).orderBy(F.desc("score"), "song")
    return scored.withColumn("rank", F.row_number().over(order))


def _growth(seconds: Column, options: Popularity) -> Column:
    """Give the power, or end the query: beyond what a number can hold, all scores would be lost without a word."""
    half_lives = (seconds - F.lit(ORIGIN)) / F.lit(options.half_life_days * DAY)
    refused = F.raise_error(
        f"a half-life of {options.half_life_days:g} days is too short for a stream: its sums would be too large for a"
        " number; take a longer one, or run the job popularity"
    ).cast("double")
    return F.when(F.abs(half_lives) <= MOST_HALF_LIVES, F.pow(F.lit(2.0), half_lives)).otherwise(refused)


def _seconds(column: str) -> Column:
    return F.unix_micros(column) / F.lit(1e6)
