"""Pipes of Scale0 as a source and a sink of Spark, named ``zpipes``.

``register`` makes the name known to a session. What can be said in options is in ``options``; how the wire is spoken in
``wire``; how chunks become rows and back in ``payloads``; ``source`` and ``sink`` are what Spark calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from scale0_spark.zpipes.datasource import ZpipesDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ZpipesDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Let a session read and write ``format("zpipes")``."""
    spark.dataSource.register(ZpipesDataSource)
    # Spark refuses sources that take filters unless this is on
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
