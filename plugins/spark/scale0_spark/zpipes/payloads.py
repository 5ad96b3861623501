"""Chunks of pipes as rows of Spark, and back. No I/O; whatever is wrong with bytes from outside is found here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from scale0_core.api import events
from scale0_spark.columns import COLUMNS, too_new
from scale0_spark.zpipes.arrow_streams import read_plain
from scale0_spark.zpipes.errors import AnswerError, OptionError, PayloadError

LOG = logging.getLogger(__name__)

CHUNKS = pa.schema([("pipe", pa.string()), ("sequence", pa.int64()), ("data", pa.binary())])
"""Rows of ``payload`` chunks: one for each chunk."""

GONE = pa.schema([("pipe", pa.string()), ("sequence", pa.int64()), ("count", pa.int64())])
"""Chunks in a row that are there no more: the first of them, and how many."""

_TYPES = {
    "short": pa.int16(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "timestamp": pa.timestamp("us", "UTC"),
    "date": pa.date32(),
}

EVENT_COLUMNS = pa.schema([(name, _TYPES[kind]) for name, kind in COLUMNS.items()])
"""What a chunk of events holds: an Arrow IPC stream with these columns."""

EVENTS = pa.schema([*EVENT_COLUMNS, CHUNKS.field("pipe"), CHUNKS.field("sequence")])
"""Rows of ``payload`` events: many for each chunk."""

SCHEMAS = {"chunks": CHUNKS, "events": EVENTS}

MOST_BYTES_IN_CHUNK = 4 * 1024 * 1024
EVENTS_IN_CHUNK = 20_000


# --- from the broker --------------------------------------------------------------------------------------------------


def columns_in(pipe: str, frames: Sequence[Any], start: int) -> tuple[int, pa.RecordBatch]:
    """Make rows of the answer to ROWS; give the number to go on from, and the rows. Nothing is copied."""
    try:
        following, numbers, offsets, data = frames
        after = int(bytes(following))
        number = np.frombuffer(numbers, "<i8")
        offset = np.frombuffer(offsets, "<i4")
    except ValueError as error:
        raise AnswerError(f"the broker's answer for pipe {pipe} is malformed", str(error)) from None
    rows = len(number)
    if len(offset) != rows + 1 or offset[0] != 0 or offset[-1] != len(data) or (np.diff(offset) < 0).any():
        raise AnswerError(f"the broker's answer for pipe {pipe} is malformed", "its offsets do not fit its bytes")
    increasing = not rows or (number[0] >= start and number[-1] < after and bool((np.diff(number) > 0).all()))
    if not increasing or not start <= after < 2**63:
        raise AnswerError(f"the broker's answer for pipe {pipe} is malformed", "its numbers are not in order")
    sequence = pa.Array.from_buffers(pa.int64(), rows, [None, _aligned(numbers)])
    chunks = pa.Array.from_buffers(pa.binary(), rows, [None, _aligned(offsets), pa.py_buffer(data)])
    return after, pa.RecordBatch.from_arrays([pa.repeat(pipe, rows), sequence, chunks], schema=CHUNKS)


def _aligned(frame: Any) -> pa.Buffer:
    """Give a buffer whose numbers lie where numbers may lie."""
    buffer = pa.py_buffer(frame)
    return buffer if buffer.address % 8 == 0 else pa.py_buffer(bytes(frame))


def events_in(chunks: pa.RecordBatch, *, skip_bad: bool = False, mark: bool = False) -> Iterator[pa.RecordBatch]:
    """Make rows of events of rows of chunks; a chunk that holds no events is an error, or left out with a warning.

    With `mark`, a row that has only pipe, sequence and `count` stands for a chunk that is left out, or for as many that
    are gone as it says.
    """
    if chunks.schema == GONE:
        yield _marks(*chunks.columns)
        return
    for pipe, sequence, data in zip(*chunks.columns, strict=True):
        try:
            table = read_plain(data.as_buffer())
            _check_kinds(table)
            columns = [_column(table, field) for field in EVENT_COLUMNS]
            _check_version(columns[EVENT_COLUMNS.get_field_index("v")])
        except (pa.ArrowException, ValueError, OSError, TypeError) as error:
            what, why = (
                f"chunk {sequence.as_py()} of pipe {pipe.as_py()} holds no events that can be read",
                str(error).partition("\n")[0],
            )
            if not skip_bad:
                remedy = "read it with payload chunks, or leave such chunks out with failOnDataLoss false"
                raise PayloadError(what, why, "the query cannot go on", remedy) from None
            LOG.warning("%s and is left out: %s", what, why)
            if mark:
                yield _marks(pa.repeat(pipe, 1), pa.repeat(sequence, 1), pa.array([1], pa.int64()))
            continue
        rows = table.num_rows
        columns += [pa.chunked_array([pa.repeat(value, rows)]) for value in (pipe, sequence)]
        yield from pa.Table.from_arrays(columns, schema=EVENTS).to_batches()


def gone(pipe: str, start: int, end: int) -> pa.RecordBatch:
    """Give one row for all chunks of a range that are there no more, which may be many."""
    return pa.RecordBatch.from_pylist([{"pipe": pipe, "sequence": start, "count": end - start}], GONE)


def _marks(pipes: pa.Array, sequences: pa.Array, counts: pa.Array) -> pa.RecordBatch:
    """Give rows that stand for chunks, and have nothing of an event but how many chunks they stand for."""
    given = {"count": counts, "pipe": pipes, "sequence": sequences}
    columns = [given.get(field.name, pa.nulls(len(pipes), field.type)) for field in EVENTS]
    return pa.RecordBatch.from_arrays(columns, schema=EVENTS)


def _check_kinds(table: pa.Table) -> None:
    """Refuse what any Arrow stream may hold: an event says of which kind it is."""
    if "kind" not in table.column_names or table.column("kind").null_count:
        raise ValueError("it holds rows that do not say of which kind of events they are")


def _check_version(versions: pa.ChunkedArray) -> None:
    latest = pc.max(versions).as_py()
    if latest is not None and latest > events.VERSION:
        raise ValueError(too_new(latest))


def _column(table: pa.Table, field: pa.Field) -> pa.ChunkedArray:
    places = table.schema.get_all_field_indices(field.name)
    if not places:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    if len(places) > 1:
        raise ValueError(f"it has the column {field.name} twice")
    return table.column(places[0]).cast(field.type)


# --- to the broker ----------------------------------------------------------------------------------------------------


def check_columns(names: Sequence[str], payload: str) -> None:
    """Refuse columns that a sink of this payload cannot write."""
    if payload == "chunks":
        if list(names) != ["data"]:
            given = ", ".join(names) or "none"
            raise OptionError(
                f"the columns are {given}", "a pipe takes one column, data", "", 'write .select("data") before'
            )
        return
    unknown = [name for name in names if name not in EVENTS.names]
    if unknown:
        raise OptionError(f"there is no column {', '.join(unknown)} in events", "", "", "leave it out by .drop(...)")
    if "kind" not in names:
        raise OptionError("the column kind is missing", "events have one")


def chunks_of(batch: pa.RecordBatch, payload: str) -> pa.BinaryArray:
    """Give the chunks in which rows are written."""
    if payload == "chunks":
        data = batch.column("data")
        if data.null_count:
            raise PayloadError("a row has no data", "", "nothing was written", "leave such rows out")
        return data.cast(pa.binary())
    columns = [_column(pa.Table.from_batches([batch]), field) for field in EVENT_COLUMNS]
    table = pa.Table.from_arrays(columns, schema=EVENT_COLUMNS)
    return pa.array(
        [_stream(table.slice(start, EVENTS_IN_CHUNK)) for start in range(0, len(table), EVENTS_IN_CHUNK)], pa.binary()
    )


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(batch)
    return bytes(sink.getvalue())


def batches_of(chunks: pa.BinaryArray, most_bytes: int = MOST_BYTES_IN_CHUNK) -> Iterator[tuple[int, Any]]:
    """Give frames as PUT takes them, with how many chunks are in each: a length in 4 bytes before each chunk."""
    if not len(chunks):
        return
    lengths = pc.binary_length(chunks).to_numpy(zero_copy_only=False)
    places = np.cumsum(lengths + 4)
    start = 0
    while start < len(chunks):
        before = int(places[start - 1]) if start else 0
        end = max(start + 1, int(np.searchsorted(places, before + most_bytes, "right")))
        heads = lengths[start:end].astype(">u4").tobytes()
        prefixes = pa.Array.from_buffers(pa.binary(4), end - start, [None, pa.py_buffer(heads)]).cast(pa.binary())
        joined = pc.binary_join_element_wise(prefixes, chunks.slice(start, end - start), b"")
        yield end - start, joined.buffers()[2][: int(places[end - 1]) - before]
        start = end
