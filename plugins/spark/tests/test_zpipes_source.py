"""Pipes as a source of Spark: real sessions, a real broker."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.datasource import ReadAllAvailable

from scale0_core.testing import BrokerStarter
from scale0_spark.zpipes import register
from scale0_spark.zpipes.errors import DataLossError
from scale0_spark.zpipes.options import read_options
from scale0_spark.zpipes.payloads import EVENT_COLUMNS, chunks_of
from scale0_spark.zpipes.source import PipeStreamReader

from .zpipes_world import World, numbered

PATIENCE = 120


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with BrokerStarter() as starter:
        yield World(starter)


@pytest.fixture
def own_world() -> Iterator[World]:
    """A broker that the test may end."""
    with BrokerStarter() as starter:
        yield World(starter)


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def stream(spark: SparkSession, world: World, pipe: str, **options: Any) -> Any:
    reader = spark.readStream.format("zpipes").option("broker", world.address).option("pipe", pipe)
    return reader.options(**options).load()


def table(spark: SparkSession, world: World, pipe: str, **options: Any) -> Any:
    reader = spark.read.format("zpipes").option("broker", world.address).option("pipe", pipe)
    return reader.options(**options).load()


def to_parquet(rows: Any, folder: Path, *, now: bool = True) -> Any:
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    writer = writer.trigger(availableNow=True) if now else writer.trigger(processingTime="0 seconds")
    return writer.start(str(folder / "rows"))


def finished(query: Any) -> Any:
    assert query.awaitTermination(PATIENCE)
    return query


def written(spark: SparkSession, folder: Path) -> list[bytes]:
    rows = spark.read.parquet(str(folder / "rows")).orderBy("sequence").collect()
    assert [row.sequence for row in rows] == list(range(1, len(rows) + 1))
    return [bytes(row.data) for row in rows]


def test_a_stream_is_taken_up_where_it_was_left_and_nothing_is_lost_or_doubled(spark, world, tmp_path):
    pipe = world.name()
    world.fill(pipe, numbered(2500))
    rows = stream(spark, world, pipe, maxRowsPerTrigger="1000", partitions="2")
    assert rows.columns == ["pipe", "sequence", "data"]
    query = finished(to_parquet(rows, tmp_path))
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sizes == [1000, 1000, 500]
    with world.pipes() as pipes:
        # Spark commits a batch when the next one begins
        assert pipes.state(pipe).first == 2001
    world.fill(pipe, numbered(500, 2500), first=2501)
    finished(to_parquet(rows, tmp_path))
    assert written(spark, tmp_path) == numbered(3000)
    with world.pipes() as pipes:
        assert pipes.state(pipe).first == 2501


def test_a_stream_into_a_windowed_aggregation(spark, world, tmp_path):
    pipe = world.name()
    world.fill(pipe, [b"%d" % (1_700_000_000 + number) for number in range(600)])
    at = F.timestamp_seconds(F.col("data").cast("string").cast("long"))
    counts = stream(spark, world, pipe, rowsPerPartition="200").groupBy(F.window(at, "1 minute")).count()
    query = counts.writeStream.outputMode("complete").format("memory").queryName("windows").trigger(availableNow=True)
    finished(query.option("checkpointLocation", str(tmp_path)).start())
    found = [row["count"] for row in spark.table("windows").orderBy("window").collect()]
    assert (sum(found), max(found)) == (600, 60)


def reader(world: World, pipes: str, **options: str) -> PipeStreamReader:
    return PipeStreamReader(read_options({"broker": world.address, "pipes": pipes, **options}))


def ranges(parts: Sequence[Any]) -> list[tuple[str, int, int]]:
    return [(part.pipe, part.start, part.end) for part in parts]


def test_a_batch_that_comes_again_knows_nothing_of_pipes_that_were_added_since(world):
    """The query was killed with a batch planned, and comes back with one pipe more."""
    old, new = world.name("a"), world.name("b")
    world.fill(old, numbered(5))
    world.fill(new, numbered(3))
    before = reader(world, old)
    start = before.initialOffset()
    end = before.latestOffset(start, ReadAllAvailable())
    after = reader(world, f"{old},{new}")
    assert ranges(after.partitions(start, end)) == [(old, 1, 6)]
    following = after.latestOffset(end, ReadAllAvailable())
    assert ranges(after.partitions(end, following)) == [(new, 1, 4)]
    with pytest.raises(DataLossError, match=f"the checkpoint is about {new}"):
        before.partitions(end, following)
    before.stop()
    after.stop()


def test_a_pipe_that_is_added_at_its_end_begins_where_it_was_then_also_after_a_crash(world):
    old, new = world.name("a"), world.name("b")
    world.fill(old, numbered(5))
    world.fill(new, numbered(3), group=None)
    first = reader(world, old)
    start = first.initialOffset()
    adding = reader(world, f"{old},{new}", startingSequence="next")
    adding.latestOffset(start, ReadAllAvailable())
    world.fill(new, numbered(4, 3), first=4, group=None)
    end = adding.latestOffset(start, ReadAllAvailable())
    again = reader(world, f"{old},{new}", startingSequence="next")
    for each in (adding, again):
        assert ranges(each.partitions(start, end)) == [(old, 1, 6), (new, 4, 8)]
        each.stop()
    first.stop()


def test_a_broker_that_is_killed_in_mid_query_and_comes_back_costs_nothing(spark, own_world, tmp_path):
    pipe = own_world.name("durable")
    own_world.fill(pipe, numbered(2000))
    query = to_parquet(stream(spark, own_world, pipe, maxRowsPerTrigger="200"), tmp_path, now=False)
    try:
        wait_for_rows(query, 400)
        own_world.ends()
        own_world.begins_again()
        own_world.fill(pipe, numbered(500, 2000), first=2001)
        query.processAllAvailable()
    finally:
        query.stop()
    assert written(spark, tmp_path) == numbered(2500)


def wait_for_rows(query: Any, rows: int) -> None:
    """Wait until a query has read so many rows, or ended."""
    pause, end = threading.Event(), time.monotonic() + PATIENCE
    while query.isActive and sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        assert time.monotonic() < end, query.status
        pause.wait(0.05)
    assert query.exception() is None


def test_events_in_chunks_become_rows_of_events(spark, world, tmp_path):
    pipe = world.name()
    events = pa.RecordBatch.from_pylist(
        [
            {"v": 1, "broker": "b", "epoch": 1, "seq": number, "kind": "task", "service_us": number}
            for number in range(10)
        ],
        EVENT_COLUMNS,
    )
    world.fill(
        pipe, [*chunks_of(events.slice(0, 4), "events").to_pylist(), *chunks_of(events.slice(4), "events").to_pylist()]
    )
    rows = table(spark, world, pipe, payload="events")
    assert rows.columns == [*EVENT_COLUMNS.names, "pipe", "sequence"]
    found = rows.groupBy("sequence").agg(F.sum("service_us"), F.min("seq")).orderBy("sequence").collect()
    assert [tuple(row) for row in found] == [(1, 6, 0), (2, 39, 4)]
    world.fill(pipe, [b"no events"], first=3)
    with pytest.raises(Exception, match="chunk 3 of pipe"):
        table(spark, world, pipe, payload="events").collect()
    assert table(spark, world, pipe, payload="events", failOnDataLoss="false").count() == 10


def test_filters_on_the_sequence_decide_what_is_fetched(spark, world, tmp_path):
    """What the broker gave is counted in the plan: Spark gets no row that the filter leaves out."""
    pipe = world.name()
    world.fill(pipe, numbered(5000), group=None)
    rows = table(spark, world, pipe, partitions="2")
    assert rows.count() == 5000
    number = F.col("sequence")
    for wanted, first, count in [
        (number == 7, 7, 1),
        ((number > 4000) & (number <= 4010), 4001, 10),
        ((number >= 10) & (number < 12), 10, 2),
        (number.isin(30, 33), 30, 2),
        (number > 9999, None, 0),
        (number == F.lit(8).cast("decimal(20,1)"), 8, 1),
    ]:
        found = rows.where(wanted).orderBy("sequence").collect()
        assert len(found) == count
        assert not found or found[0].sequence == first
    assert fetched(spark, rows.where(number.between(100, 149))) == 50
    assert fetched(spark, rows.where(number.isin(30, 33))) == 4
    assert world.content(pipe) == numbered(5000), "nothing is removed"
    assert table(spark, world, pipe, startingSequence="4999").count() == 2


def fetched(spark: SparkSession, rows: Any) -> int:
    """Count the rows that came out of the scan, by its metrics, before any filter of Spark's."""
    plan = rows._jdf.queryExecution()
    rows._jdf.collectToPython()
    text = plan.executedPlan()
    found: list[int] = []

    def walk(node: Any) -> None:
        if "BatchScan" in node.nodeName():
            found.append(node.metrics().apply("numOutputRows").value())
        children = node.children()
        for place in range(children.size()):
            walk(children.apply(place))

    walk(text)
    return sum(found)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"pipe": "p"}, "broker"),
        ({"broker": "tcp://127.0.0.1:1", "pipe": "p", "maxRows": "1"}, "maxrows"),
        ({"broker": "tcp://127.0.0.1:1", "pipe": "p", "startingSequence": "last"}, "startingSequence"),
    ],
)
def test_bad_options_are_told_before_anything_is_read(spark, options, says):
    for reader in (spark.read, spark.readStream):
        with pytest.raises(AnalysisException, match=says):
            reader.format("zpipes").options(**options).load()


def test_a_query_on_a_pipe_that_was_made_anew_ends_with_a_clear_error(spark, world, tmp_path):
    pipe = world.name()
    world.fill(pipe, numbered(10))
    rows = stream(spark, world, pipe)
    finished(to_parquet(rows, tmp_path))
    with world.pipes() as pipes:
        for frames in (("UNGROUP", pipe, "spark"), ("PURGE", pipe), ("CLOSE", pipe)):
            pipes.ask(*frames)
    world.fill(pipe, numbered(20))
    with pytest.raises(StreamingQueryException, match="another pipe has its name now"):
        finished(to_parquet(rows, tmp_path))


def test_a_broker_that_does_not_come_back_ends_the_query_with_a_clear_error(spark, own_world, tmp_path):
    pipe = own_world.name()
    rows = stream(spark, own_world, pipe, timeout="1")
    own_world.ends()
    with pytest.raises(StreamingQueryException, match="does not answer"):
        finished(to_parquet(rows, tmp_path))
