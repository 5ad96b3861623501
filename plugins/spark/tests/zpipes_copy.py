"""A query in a process of its own, for tests that kill it: copies a pipe to another, with a task that fails once.

Run as ``python zpipes_copy.py ADDRESS SOURCE TARGET FOLDER WHERE``. WHERE is a place in the second batch at which it
stops and waits to be killed: when a task has staged its rows (``staged``), or when the batch has appeared and Spark has
yet to note it (``moved``). A file in the folder, named like the place, tells that it is there.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from scale0_spark.session import open_session
from scale0_spark.zpipes import ZpipesDataSource, register
from scale0_spark.zpipes.options import Options, read_options
from scale0_spark.zpipes.sink import PipeStreamWriter

SETTINGS = {"spark.driver.memory": "512m"}
BATCH = 200
"""Rows of a batch, which is the work of two tasks."""
LONGEST_WAIT = 300.0


def wait_to_be_killed(folder: str, where: str) -> None:
    """Tell that the place is reached, and stay there as long as the process that started this one lives."""
    parent, end = os.getppid(), time.monotonic() + LONGEST_WAIT
    Path(folder, where).touch()
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.05)
    os._exit(1)


class StoppingWriter(PipeStreamWriter):
    """Writes to a pipe, up to the place at which it stops."""

    def __init__(self, options: Options, folder: str, where: str) -> None:
        super().__init__(options)
        self._folder, self._where = folder, where

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        batches = list(iterator)
        message = super().write(iter(batches))
        if self._where == "staged" and any(int(batch.column("data")[0].as_py()) >= BATCH for batch in batches):
            wait_to_be_killed(self._folder, self._where)
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        super().commit(messages, batchId)
        if self._where == "moved" and batchId:
            wait_to_be_killed(self._folder, self._where)


class StoppingSink(ZpipesDataSource):
    """Pipes, written by the one that stops."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: StructType, overwrite: bool) -> PipeStreamWriter:
        given = dict(self.options)
        folder, where = given.pop("at"), given.pop("where")
        return StoppingWriter(read_options(given), folder, where)


def fails_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Fail the first attempt at the first task, when half of its rows are through."""
    context = TaskContext.get()
    for batch in batches:
        half = len(batch) // 2
        yield batch.slice(0, half)
        if context is not None and not context.attemptNumber() and batch.column("sequence")[0].as_py() == 1:
            raise RuntimeError("this attempt was meant to fail")
        yield batch.slice(half)


def copy(
    spark: SparkSession,
    address: str,
    source: str,
    target: str,
    folder: str,
    *,
    sink: str = "zpipes",
    through: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]] | None = None,
    **more: str,
) -> None:
    """Copy what is in the source and was not copied before."""
    register(spark)
    options = {"maxRowsPerTrigger": f"{BATCH}", "rowsPerPartition": f"{BATCH // 2}"}
    rows = spark.readStream.format("zpipes").options(**options, broker=address, pipe=source).load()
    if through is not None:
        rows = rows.mapInArrow(through, rows.schema)
    written = rows.select("data").writeStream.format(sink).options(broker=address, pipe=target, **more)
    written = written.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    written.start().awaitTermination()


def main(address: str, source: str, target: str, folder: str, where: str) -> None:
    """Copy up to the place."""
    tempfile.tempdir = folder  # it is killed, and what it leaves should not stay
    # a task is tried three times
    with open_session("copy", "local[2,3]", settings=SETTINGS) as spark:
        spark.dataSource.register(StoppingSink)
        copy(spark, address, source, target, folder, sink="stopping", through=fails_once, at=folder, where=where)


if __name__ == "__main__":
    main(*sys.argv[1:])
