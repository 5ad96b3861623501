"""How many rows a second a stream of a pipe's chunks brings into a windowed aggregation of Spark.

A real broker in its own process holds a pipe that was filled before. Spark, on as many cores as are asked for, reads it
as a stream, takes the time and a key out of each chunk, and counts and sums by window and key. The session is the one
that users get, warmed up on another pipe first, since its start is measured elsewhere; that of the query counts.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from scale0_core.testing import BrokerStarter

START_MS = 1_700_000_000_000
KEYS = 50
MIB = 1024 * 1024


def measure(
    rows: int = 2_000_000, *, size: int = 100, cores: int = 2, runs: int = 3, trigger: int | None = None
) -> float:
    """Give the rows per second of the best of several runs; ``trigger`` limits the rows of a batch."""
    from scale0_spark.session import open_session
    from scale0_spark.zpipes import register

    settings = {
        "plugin": {"zpipes": {"max_pipe_bytes": 1024 * MIB, "max_bytes": 4096 * MIB, "max_pipe_chunks": 2 * rows}}
    }
    with BrokerStarter() as start, tempfile.TemporaryDirectory() as folder:
        address = start(["zpipes"], settings).address("zpipes", "pipes")
        with open_session("bench of pipes", f"local[{cores}]") as spark:
            register(spark)
            best = 0.0
            for run in range(runs + 1):
                _fill(address, f"run{run}", rows, size)
                seconds = _run(spark, address, f"run{run}", rows, Path(folder), trigger)
                if run:  # the first one warms up
                    best = max(best, rows / seconds)
    return best


def _fill(address: str, pipe: str, rows: int, size: int) -> None:
    """Fill a pipe: the time in milliseconds, a key, and stuffing."""
    import pyarrow as pa

    from scale0_spark.zpipes.payloads import batches_of
    from scale0_spark.zpipes.wire import Pipes

    with Pipes(address, 60.0) as pipes:
        pipes.ask("OPEN", pipe)
        pipes.make_group(pipe, "spark", "first")
        first = 1
        for start in range(0, rows, 100_000):
            some = range(start, min(start + 100_000, rows))
            chunks = [b"%d %02d".ljust(size, b".") % (START_MS + number, number % KEYS) for number in some]
            for count, frame in batches_of(pa.array([chunk[:size] for chunk in chunks], pa.binary())):
                pipes.put(pipe, "bench", first, frame)
                first += count


def _run(spark: Any, address: str, pipe: str, rows: int, folder: Path, trigger: int | None) -> float:
    """Run a query to the end of the pipe; give the seconds it took, and insist that it counted every row."""
    from pyspark.sql import functions as F  # noqa: N812

    reader = spark.readStream.format("zpipes").option("broker", address).option("pipe", pipe)
    if trigger is not None:
        reader = reader.option("maxRowsPerTrigger", str(trigger))
    text = F.col("data").cast("string")
    counted = (
        reader.load()
        .select(
            F.timestamp_millis(F.substring(text, 1, 13).cast("long")).alias("at"),
            F.substring(text, 15, 2).alias("key"),
            F.length("data").alias("bytes"),
        )
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "key")
        .agg(F.count("*").alias("rows"), F.sum("bytes").alias("bytes"))
    )
    begin = time.perf_counter()
    query = (
        counted.writeStream.outputMode("complete")
        .format("memory")
        .queryName(pipe)
        .option("checkpointLocation", str(folder / f"checkpoint-{pipe}"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    seconds = time.perf_counter() - begin
    found = spark.table(pipe).agg(F.sum("rows")).first()[0]
    if found != rows:
        raise AssertionError(f"{found} rows were counted, not {rows}")
    spark.catalog.dropTempView(pipe)
    return seconds


if __name__ == "__main__":
    print(f"{measure():.0f} rows/s")
