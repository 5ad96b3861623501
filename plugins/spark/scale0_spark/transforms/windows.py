"""Windows of time, and sums over sampled events."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
"""How long the windows are that tables are made for."""


def window(every: str) -> Column:
    """Give the window of an event, in UTC whatever the session's time zone; streams forget windows by it."""
    return F.window("ts", f"{SECONDS[every]} seconds").alias("window")


def window_start(every: str) -> Column:
    """Give when the window of an event began; a batch needs no more, and a number is quicker to group by."""
    return F.window("ts", f"{SECONDS[every]} seconds").start.alias("window_start")


def total(condition: Column | None = None) -> Column:
    """Say how many events there were: each stands for as many as its weight says."""
    weight = F.col("weight")
    return F.sum(weight if condition is None else F.when(condition, weight).otherwise(F.lit(0.0)))


def share(part: Column, whole: Column) -> Column:
    """Give a part of a whole; 0 where there is nothing."""
    return F.when(whole > 0, part / whole).otherwise(F.lit(0.0))
