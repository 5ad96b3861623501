"""Pipes as a sink of Spark: each batch appears whole and once, whatever fails."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from scale0_core.testing import BrokerStarter
from scale0_spark.zpipes import register

from .zpipes_world import World, numbered

PATIENCE = 120


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with BrokerStarter() as starter:
        yield World(starter)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def sink(writer: Any, world: World, pipe: str, **options: str) -> Any:
    return writer.format("zpipes").option("broker", world.address).option("pipe", pipe).options(**options)


def copy(spark: SparkSession, world: World, source: str, target: str, folder: Path, **options: str) -> Any:
    """Copy one pipe to another, as far as it goes now."""
    reader = spark.readStream.format("zpipes").option("broker", world.address).option("pipe", source)
    rows = reader.options(**options).load().select("data")
    query = sink(rows.writeStream, world, target).option("checkpointLocation", str(folder / "checkpoint"))
    query = query.trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE)
    return query


def staged(world: World) -> list[str]:
    """Name what is left of staging."""
    with world.pipes() as pipes:
        pipes._send((b"LIST", b"spark-staging-"))
        answer = pipes._received(PATIENCE)
    return [row["name"] for row in json.loads(bytes(answer[1]))["pipes"]]


def test_a_table_is_written_to_a_pipe_and_read_again(spark, world):
    pipe = world.name()
    rows = spark.range(0, 3000, numPartitions=3).select(F.format_string("%06d", "id").alias("data"))
    sink(rows.write, world, pipe).mode("append").save()
    assert sorted(world.content(pipe)) == numbered(3000)
    sink(rows.limit(1).write, world, pipe).mode("append").save()
    assert len(world.content(pipe)) == 3001
    assert staged(world) == []


def test_events_are_written_as_arrow_and_read_again(spark, world):
    pipe = world.name()
    rows = spark.createDataFrame([("task", 1, 2.5), ("rpc", 2, None)], "kind string, seq long, value double")
    sink(rows.write, world, pipe, payload="events").mode("append").save()
    found = spark.read.format("zpipes").option("broker", world.address).option("pipe", pipe)
    found = found.option("payload", "events").load().select("kind", "seq", "value").orderBy("seq").collect()
    assert [tuple(row) for row in found] == [("task", 1, 2.5), ("rpc", 2, None)]


def test_a_stream_is_copied_and_batches_that_are_made_again_are_stored_once(spark, world, tmp_path):
    source, target = world.name("source"), world.name("target")
    world.fill(source, numbered(3000))
    copy(spark, world, source, target, tmp_path, maxRowsPerTrigger="1000", partitions="2")
    assert sorted(world.content(target)) == numbered(3000)
    commits = tmp_path / "checkpoint" / "commits"
    for path in (
        commits / "2",
        commits / ".2.crc",
    ):  # as if the driver had died before it noted it
        path.unlink(missing_ok=True)
    copy(spark, world, source, target, tmp_path)
    assert sorted(world.content(target)) == numbered(3000)
    world.fill(source, numbered(10, 3000), first=3001)
    copy(spark, world, source, target, tmp_path)
    assert sorted(world.content(target)) == numbered(3010)
    assert staged(world) == []


def test_a_query_with_a_new_checkpoint_is_another_writer(spark, world, tmp_path):
    """Its batches are counted from 0 again, and must not be taken for those of the query before."""
    source, target = world.name("source"), world.name("target")
    world.fill(source, numbered(10))
    copy(spark, world, source, target, tmp_path / "one", group="one")
    copy(spark, world, source, target, tmp_path / "two", group="two")
    assert sorted(world.content(target)) == sorted([*numbered(10), *numbered(10)])


def test_rows_of_tasks_that_fail_never_appear(spark, world, tmp_path):
    """Local masters do not try tasks again; what one task staged before another failed is discarded."""
    pipe = world.name()
    broken = F.when(F.col("id") == 1999, F.raise_error(F.lit("a row is bad"))).otherwise(F.col("id"))
    rows = spark.range(0, 2000, numPartitions=2).select(broken.cast("string").alias("data"))
    with pytest.raises(Exception, match="a row is bad"):
        sink(rows.write, world, pipe).mode("append").save()
    assert world.content(pipe) == []
    with pytest.raises(Exception, match="a row has no data"):
        sink(spark.sql("select cast(null as binary) as data").write, world, pipe).mode("append").save()
    assert world.content(pipe) == []


@pytest.mark.parametrize(
    ("columns", "mode", "options", "says"),
    [
        ("1 as other", "append", {}, "data"),
        ("'x' as data", "overwrite", {}, "append"),
        ("1 as kind, 2 as other", "append", {"payload": "events"}, "other"),
        ("'x' as data", "append", {"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_written_is_told(spark, world, columns, mode, options, says):
    with pytest.raises(AnalysisException, match=says):
        sink(spark.sql(f"select {columns}").write, world, world.name(), **options).mode(mode).save()
