"""How many workers each service should have in each group.

Work is measured in busy tasks: seconds of work in an hour, divided by 3,600. A group needs so many workers that the
busiest hours, but for one in twenty of those in which it worked, load them to the wanted utilisation. Requests that
nobody took count as well: where some were refused of late, or waited until it was too late, one more worker is asked
for. What is long over asks for nobody, nor do names that clients ask for and nobody ever offered.
"""

from __future__ import annotations

import attrs
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from scale0_spark.transforms.capacity import BUSY_HOURS, DAY, HOUR
from scale0_spark.transforms.order import in_order
from scale0_spark.transforms.windows import share
from scale0_spark.transforms.worker_hours import REQUESTS, SIGNS, busy_workers, worker_hours

KINDS = (*REQUESTS, *SIGNS)
"""The kinds of events that the plan is made of."""

PLACE = ["service", "group"]


@attrs.frozen
class Placement:
    """What the plan depends on."""

    utilisation: float = attrs.field(
        default=0.6, validator=attrs.validators.and_(attrs.validators.gt(0), attrs.validators.le(1))
    )
    """How busy workers should be in busy hours."""
    slack: float = attrs.field(default=0.5, validator=attrs.validators.ge(0))
    """A worker is taken away only where the others could bear this share of load more."""
    turned_away: float = attrs.field(default=0.01, validator=attrs.validators.ge(0))
    """Which share of recent requests may be refused or time out before one more worker is asked for."""
    recent_days: float = attrs.field(default=1.0, validator=attrs.validators.gt(0))
    """How far back from the last hour requests are recent."""
    small_share: float = attrs.field(default=0.05, validator=attrs.validators.ge(0))
    """A group with a smaller share of a service's requests can do with the workers of others."""
    alive_days: float = attrs.field(default=7.0, validator=attrs.validators.gt(0))
    """Brokers of which nothing was heard for longer have no workers."""


def placement_plan(events: DataFrame, options: Placement = Placement()) -> DataFrame:
    """Give a row for each service and group that has requests for it or workers of it.

    A service of which no worker was ever seen is none: nobody can be asked to offer it.
    """
    return of_hours(worker_hours(events), options)


def of_hours(hours: DataFrame, options: Placement = Placement()) -> DataFrame:
    """Make the plan from what services and workers did by hour."""
    demand, work, workers = _demand(hours, options), _work(hours), _workers(hours, options)
    rows = (
        demand.join(workers, PLACE, "full_outer")
        .join(work, PLACE, "left_outer")
        .fillna(0.0, ["requests", "share", "turned_away", "load"])
        .fillna(0, ["workers_now"])
        .withColumn("slots", F.coalesce("slots", F.lit(1.0)))
    )
    return in_order(_advised(rows, options), "service", "group")


def _demand(hours: DataFrame, options: Placement) -> DataFrame:
    last = F.max(F.unix_micros("window_start")).over(Window.partitionBy(F.lit(0)))
    offered = F.max(_shows_a_worker()).over(Window.partitionBy("service"))
    recent = F.unix_micros("window_start") > F.col("last") - F.lit(options.recent_days * DAY * 1e6)
    known = hours.withColumns({"last": last, "offered": offered, "group": _group()})
    asked = known.where((F.col("told") > 0) & F.col("offered"))
    counted = asked.groupBy(*PLACE).agg(
        F.sum("requests").alias("requests"),
        share(_sum_where(recent, "turned_away"), _sum_where(recent, "requests")).alias("turned_away"),
    )
    whole = F.sum("requests").over(Window.partitionBy("service"))
    return counted.withColumn("share", share(F.col("requests"), whole))


def _sum_where(condition: Column, column: str) -> Column:
    return F.sum(F.when(condition, F.col(column)).otherwise(F.lit(0.0)))


def _shows_a_worker() -> Column:
    """Tell whether a service had a worker, or a request that one answered."""
    return F.col("peer").isNotNull() & (F.col("sign_at").isNotNull() | F.col("busy_s").isNotNull())


def _work(hours: DataFrame) -> DataFrame:
    """Give how many tasks at once were worked on in busy hours, among those in which there was work."""
    busy = (
        busy_workers(hours)
        .withColumn("group", _group())
        .groupBy("window_start", *PLACE)
        .agg((F.sum("busy_s") / F.lit(HOUR)).alias("busy"))
    )
    return busy.groupBy(*PLACE).agg(F.percentile("busy", BUSY_HOURS).alias("load"))


def _workers(hours: DataFrame, options: Placement) -> DataFrame:
    """Count the workers that are here at the end: they gave a sign of life after they last left, if they ever did.

    A broker that was killed tells of nobody's leaving. So only its last start counts, and that only if it was heard of.
    """
    brokers = hours.groupBy("broker").agg(F.max("epoch").alias("epoch"), F.max("heard").alias("heard"))
    latest = F.max(F.unix_micros("heard")).over(Window.partitionBy(F.lit(0)))
    silence = (latest - F.unix_micros("heard")) / F.lit(DAY * 1e6)
    running = brokers.withColumn("silence", silence).where(F.col("silence") <= options.alive_days)
    signs = hours.where(F.col("sign_at").isNotNull() & F.col("peer").isNotNull())
    of_running = signs.join(F.broadcast(running.select("broker", "epoch")), ["broker", "epoch"], "left_semi")
    last = of_running.groupBy("broker", "service", "peer").agg(
        F.max("left_at").alias("left_at"),
        F.max("seen_at").alias("seen_at"),
        F.max_by("group", "sign_at").alias("group"),
        F.max_by("slots", "joined_at").alias("slots"),
    )
    # at the same time it left: a turn of the loop has one time, and a worker that is back shows it soon
    here = last.where(F.col("left_at").isNull() | (F.col("seen_at") > F.col("left_at"))).withColumn("group", _group())
    return here.groupBy(*PLACE).agg(
        F.count(F.lit(1)).alias("workers_now"),
        F.avg(F.greatest(F.coalesce("slots", F.lit(1)), F.lit(1))).alias("slots"),
    )


def _group() -> Column:
    return F.coalesce(F.col("group"), F.lit(""))


def _advised(rows: DataFrame, options: Placement) -> DataFrame:
    now, wanted = F.col("workers_now"), F.col("workers_wanted")
    sized = (
        rows.withColumn("needed", F.col("load") / (F.col("slots") * F.lit(options.utilisation)))
        .withColumn("workers_wanted", _wanted(options))
        .withColumn("utilisation", F.when(now > 0, F.col("load") / (now * F.col("slots"))).otherwise(F.lit(0.0)))
    )
    elsewhere = F.max(F.col("workers_wanted") > F.col("workers_now")).over(Window.partitionBy("service"))
    moves = (F.col("share") < options.small_share) & elsewhere & (wanted < now)
    advice = F.when(wanted > now, "add").when(moves, "move").when(wanted < now, "remove").otherwise("keep")
    return sized.withColumn("advice", advice).select(
        *PLACE,
        now.cast("long").alias("workers_now"),
        wanted.cast("long").alias("workers_wanted"),
        "utilisation", "share", "requests", "load", "advice",
        _reason(options).alias("reason"),
    )  # fmt: skip


def _wanted(options: Placement) -> Column:
    """Give the number of workers: never fewer than one where there is demand, and taken away with care."""
    now = F.col("workers_now")
    least = F.when((F.col("share") >= options.small_share) & (F.col("share") > 0), 1).otherwise(0)
    needed = F.greatest(F.ceil(F.col("needed")), least)
    more = F.when(F.col("turned_away") > options.turned_away, F.greatest(needed, now + 1)).otherwise(needed)
    with_room = F.greatest(F.ceil(F.col("needed") * F.lit(1 + options.slack)), least)
    return F.when(more >= now, more).otherwise(F.least(now, with_room))


def _reason(options: Placement) -> Column:
    percent = F.lit(100.0)
    return (
        F.when(
            (F.col("advice") == "add") & (F.col("turned_away") > options.turned_away),
            F.format_string("%.1f %% of the recent requests were refused or timed out", F.col("turned_away") * percent),
        )
        .when(
            (F.col("advice") == "add") & (F.col("workers_now") == 0),
            F.format_string("%.1f %% of the requests come here, and no worker is", F.col("share") * percent),
        )
        .when(
            F.col("advice") == "move",
            F.format_string(
                "only %.1f %% of the requests come here; other groups want workers", F.col("share") * percent
            ),
        )
        .otherwise(F.format_string("busy hours load the workers to %.1f %%", F.col("utilisation") * percent))
    )
