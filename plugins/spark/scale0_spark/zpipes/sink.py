"""Writing pipes: tasks stage what they write, and the driver lets all of it appear at once and once only.

Each task fills a pipe that the broker keeps for a time. The driver's commit moves them to the end of the pipe that is
written, under the query's id and the number of the batch, and the broker does nothing for a number that it has moved
before (docs/adr/0022).
"""

# does I/O: it talks to a broker

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator, Sequence

import attrs
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from scale0_spark.zpipes.errors import OptionError, RefusedError, ZpipesError
from scale0_spark.zpipes.options import Options
from scale0_spark.zpipes.payloads import MOST_BYTES_IN_CHUNK, batches_of, chunks_of
from scale0_spark.zpipes.wire import Pipes

QUERY_ID = "sql.streaming.queryId"
"""The property in which Spark tells tasks the id of their query, which is the same after a restart."""

MOST_TRIES = 3
"""How often a pipe is made again that was forgotten before something was moved to it."""

TASK = "task"
"""What a task calls itself as the only writer of the pipe that it stages in."""


@attrs.frozen
class Staged(WriterCommitMessage):
    """What one task wrote: where it is, and for which query; nowhere if there was nothing."""

    pipe: str | None
    query: str


def stage(batches: Iterable[pa.RecordBatch], options: Options) -> str | None:
    """Write rows to a pipe of their own; give its name."""
    name = f"spark-staging-{secrets.token_hex(12)}"
    opened = False
    with Pipes(options.broker, options.timeout) as pipes:
        limit: int | None = None
        try:
            first = 1
            for batch in batches:
                chunks = chunks_of(batch, options.payload)
                if len(chunks) and not opened:
                    opened = True
                    pipes.ask("OPEN", name, str(int(options.staging_timeout * 1000)))
                    state = pipes.state(name)
                    limit = None if state is None else state.max_chunk
                for count, frame in batches_of(chunks, _most_bytes(chunks, limit)):
                    first = _put(pipes, name, first, count, frame)
        except BaseException:
            if opened:
                discard(pipes, [name])
            raise
    return name if opened else None


def _most_bytes(chunks: pa.BinaryArray, limit: int | None) -> int:
    """Return the bytes for one request: the broker cuts the connection of whoever sends far more than a chunk."""
    largest = pc.max(pc.binary_length(chunks)).as_py() or 0
    if limit is not None and largest > limit:
        raise ZpipesError(
            f"a chunk of {largest} bytes is too large", f"the broker takes at most {limit} bytes",
            "nothing of this batch was written", "make chunks smaller, or raise max_message of the broker",
        )  # fmt: skip
    return MOST_BYTES_IN_CHUNK if limit is None else min(MOST_BYTES_IN_CHUNK, limit)


def _put(pipes: Pipes, name: str, first: int, count: int, frame: pa.Buffer) -> int:
    try:
        following = pipes.put(name, TASK, first, frame)
    except RefusedError as error:
        raise _without_room(error) if error.code in (408, 413, 429) else error from None
    if following != first + count:
        raise ZpipesError(
            "what a task staged is gone",
            "the broker was started anew, or stagingTimeout is over",
            "the task is tried again",
        )
    return following


def _without_room(error: RefusedError) -> ZpipesError:
    return ZpipesError(
        "the pipe has no room for a batch", str(error), "nothing of this batch was written",
        "read the pipe, make batches smaller, or raise max_pipe_bytes and max_pipe_chunks of the broker",
    )  # fmt: skip


def discard(pipes: Pipes, names: Iterable[str]) -> None:
    """Throw away what was staged; if that fails, the broker forgets it in time."""
    for name in names:
        try:
            pipes.ask("PURGE", name)
        except ZpipesError:
            return


def publish(options: Options, writer: str, number: int, staged: list[str]) -> None:
    """Let what was staged appear, unless that was done before."""
    pipe = options.pipe
    with Pipes(options.broker, options.timeout) as pipes:
        try:
            following = _moved(pipes, pipe, writer, number, staged)
        except RefusedError as error:
            if error.code in (413, 429):
                raise _without_room(error) from None
            if error.code == 404:
                raise ZpipesError(
                    "what the tasks staged is gone", "the broker was started anew, or stagingTimeout is over",
                    "nothing of this batch was written", "start the query again: it goes on with this batch",
                ) from None  # fmt: skip
            raise
        if following <= number:
            raise ZpipesError("the broker did not keep the batch", "", "", "start the query again")


def _moved(pipes: Pipes, pipe: str, writer: str, number: int, staged: list[str], tries: int = MOST_TRIES) -> int:
    """Move what was staged to a pipe, which is there meanwhile; whoever closes the last link may be faster than that.

    Nobody needs to hold the pipe until the next batch: the broker knows its writers also when it was forgotten.
    """
    link = pipes.link(pipe)
    try:
        return pipes.move(pipe, writer, number, staged)
    except RefusedError as error:
        if error.code != 404 or tries <= 1 or pipes.state(pipe) is not None:
            raise
    finally:
        if link is not None:
            pipes.unlink(pipe, link)
    return _moved(pipes, pipe, writer, number, staged, tries - 1)


def _names(messages: Sequence[WriterCommitMessage | None]) -> Iterator[str]:
    for each in messages:
        if isinstance(each, Staged) and each.pipe is not None:
            yield each.pipe


class PipeWriter(DataSourceArrowWriter):
    """Writes a table to a pipe: all of it, or nothing."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._id = f"spark-{secrets.token_hex(12)}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        return Staged(stage(iterator, self._options), self._id)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Let the rows of all tasks appear."""
        publish(self._options, self._id, 1, list(_names(messages)))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Throw away what was staged."""
        with Pipes(self._options.broker, self._options.timeout) as pipes:
            discard(pipes, _names(messages))


class PipeStreamWriter(DataSourceStreamArrowWriter):
    """Writes a stream to a pipe: each batch once."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query = context.getLocalProperty(QUERY_ID) if context is not None else None
        if not query:
            raise OptionError("Spark does not say which query this is", "without that, batches could be written twice")
        return Staged(stage(iterator, self._options), query)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Let the rows of all tasks appear, if this batch did not before."""
        staged = list(_names(messages))
        queries = {each.query for each in messages if isinstance(each, Staged)}
        if staged:
            (query,) = queries
            publish(self._options, f"spark-{query}", batchId + 1, staged)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Throw away what was staged."""
        with Pipes(self._options.broker, self._options.timeout) as pipes:
            discard(pipes, _names(messages))
