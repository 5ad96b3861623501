"""Which songs should be copied to which music servers.

A song is wanted at a server when clients search for it there by name and the server does not hold it. It is held by
those that gave it to a client, answered a search with it, or made a replica of it, unless a later search shows that
they hold it no longer: servers give up replicas, and people delete songs. Demand fades as popularity does: searches
that just reach the threshold are no reason for a copy when they are older than a half-life, on the whole.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.order import in_order
from scale0_spark.transforms.windows import total

KINDS = ("song_search", "song_download", "song_replica")
"""The kinds of events that the plan is made of."""

ELSEWHERE = ("found", "cached", "miss", "timeout")
"""Outcomes of searches at servers that do not hold the song."""

DAY = 86_400.0


@attrs.frozen
class Replication:
    """What the plan depends on."""

    per_server: int = attrs.field(default=20, validator=attrs.validators.ge(1))
    """How many songs a server is given at most."""
    wanted: float = attrs.field(default=3.0, validator=attrs.validators.ge(0))
    """How many searches a song needs at a server; faded, half of it must be left."""
    half_life_days: float = attrs.field(default=7.0, validator=attrs.validators.gt(0))
    """After how many days a search counts half."""
    alive_days: float = attrs.field(default=7.0, validator=attrs.validators.gt(0))
    """Servers of which nothing was heard for longer neither give nor get songs."""
    as_of: float | None = None
    """The time of the plan, in seconds since 1970; the last event's if None."""


def replication_plan(events: DataFrame, options: Replication = Replication()) -> DataFrame:
    """Give songs and the servers that should get them, the most wanted first; the same events give the same plan."""
    told = _placed_in_time(events.where(F.col("kind").isin(*KINDS) & F.col("peer").isNotNull()), options)
    alive = told.groupBy(F.col("peer").alias("server")).agg(F.min("age_days").alias("silent_days"))
    alive = alive.where(F.col("silent_days") <= options.alive_days).select("server")
    songs = told.where(F.col("subject").isNotNull()).withColumnsRenamed({"subject": "song", "peer": "server"})
    known = _known(songs, options).join(alive, "server", "left_semi")
    held = known.where(F.col("held_at") >= F.coalesce("missed_at", "held_at"))
    enough = (F.col("wanted") >= options.wanted) & (F.col("score") >= options.wanted / 2)
    missing = known.where((F.col("searches") > 0) & enough)
    return _limited(missing.join(_sources(held), "song"), options)


def _placed_in_time(events: DataFrame, options: Replication) -> DataFrame:
    seconds = F.unix_micros("ts") / F.lit(1e6)
    if options.as_of is not None:
        return events.withColumn("age_days", (F.lit(options.as_of) - seconds) / F.lit(DAY))
    latest = events.agg(F.max("ts").alias("latest"))
    age = (F.unix_micros("latest") / F.lit(1e6) - seconds) / F.lit(DAY)
    return events.crossJoin(F.broadcast(latest)).withColumn("age_days", age)


def _known(songs: DataFrame, options: Replication) -> DataFrame:
    """Give when each server was last seen with a song and without it, and what was wanted there since the former."""
    outcome = F.coalesce(F.col("outcome"), F.lit("ok"))
    has_it = (
        (F.col("kind") == "song_replica")
        | ((F.col("kind") == "song_download") & (outcome == "ok"))
        | ((F.col("kind") == "song_search") & (outcome == "hit"))
    )
    lacks_it = (F.col("kind") == "song_search") & outcome.isin(*ELSEWHERE)
    of_pair = Window.partitionBy("song", "server")
    dated = songs.withColumn("held_at", F.max(F.when(has_it, F.col("ts"))).over(of_pair))
    since = lacks_it & (F.col("held_at").isNull() | (F.col("ts") > F.col("held_at")))
    fading = F.pow(F.lit(0.5), F.col("age_days") / F.lit(options.half_life_days))
    return dated.groupBy("song", "server").agg(
        F.max("held_at").alias("held_at"),
        F.max(F.when(lacks_it, F.col("ts"))).alias("missed_at"),
        F.count_if(since).alias("searches"),
        total(since).alias("wanted"),
        F.sum(F.when(since, F.col("weight") * fading).otherwise(F.lit(0.0))).alias("score"),
    )


def _sources(held: DataFrame) -> DataFrame:
    """Choose for each song the holder that was last seen with it."""
    order = F.struct(-F.unix_micros("held_at"), "server")
    return held.groupBy("song").agg(F.min_by("server", order).alias("source"))


def _limited(plan: DataFrame, options: Replication) -> DataFrame:
    best = Window.partitionBy("server").orderBy(F.desc("score"), "song")
    chosen = (
        plan.withColumn("place", F.row_number().over(best))
        .where(F.col("place") <= options.per_server)
        .select("song", "server", "source", "score", "wanted", _reason().alias("reason"))
    )
    return in_order(chosen, F.desc("score"), "song", "server")


def _reason() -> Column:
    return F.format_string("%.0f searches there for a song that it does not hold", "wanted")
