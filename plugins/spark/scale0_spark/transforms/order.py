"""Tables in order."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame


def in_order(rows: DataFrame, *columns: str | Column) -> DataFrame:
    """Put the rows of a table in order.

    A table is read as a whole by one process in the end, so one task can sort it. Spark's `orderBy` would have several
    do so, and compute what was aggregated twice for that: first only to see how to spread it among them. Where one task
    has all rows already, `orderBy` is as good.
    """
    return rows.repartition(1).sortWithinPartitions(*columns)
