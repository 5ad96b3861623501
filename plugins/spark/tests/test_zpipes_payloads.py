"""Chunks as rows, and rows as chunks: whatever bytes a broker may send. Without Spark."""

from __future__ import annotations

import datetime
import json
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from scale0_core.api import events
from scale0_spark.zpipes.errors import AnswerError, OptionError, PayloadError
from scale0_spark.zpipes.payloads import (
    CHUNKS,
    EVENT_COLUMNS,
    EVENTS,
    batches_of,
    check_columns,
    chunks_of,
    columns_in,
    events_in,
    gone,
)
from scale0_spark.zpipes.wire import PipeState


def answer(numbers, chunks, following=None):
    """Make the answer to ROWS, as the protocol says."""
    ends = np.cumsum([0, *map(len, chunks)]).astype("<i4")
    after = following if following is not None else (numbers[-1] + 1 if numbers else 1)
    return [b"%d" % after, np.array(numbers, "<i8").tobytes(), ends.tobytes(), b"".join(chunks)]


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 2**60), st.data())
def test_rows_are_the_chunks_with_their_numbers(chunks, start, data):
    gaps = data.draw(st.lists(st.integers(1, 3), min_size=len(chunks), max_size=len(chunks)))
    numbers = list(np.cumsum([start, *gaps])[1:].tolist()) if chunks else []
    following, batch = columns_in("p", answer(numbers, chunks, start + sum(gaps) + 1), start)
    batch.validate(full=True)
    assert batch.schema == CHUNKS
    assert following == start + sum(gaps) + 1
    assert batch.to_pydict() == {"pipe": ["p"] * len(chunks), "sequence": numbers, "data": chunks}


def test_rows_that_do_not_lie_where_numbers_may_lie_are_copied():
    frames = [memoryview(b"x" + frame)[1:] for frame in answer([1, 2], [b"one", b"two"])]
    _, batch = columns_in("p", frames, 1)
    assert batch.column("sequence").to_pylist() == [1, 2]
    assert batch.column("sequence").buffers()[1].address % 8 == 0


WELL_FORMED = answer([1, 2, 3], [b"one", b"", b"three"])


@settings(max_examples=300)
@given(st.data())
def test_any_answer_gives_valid_rows_or_a_clear_error(data):
    """Bytes that have nothing to do with an answer, and answers with bytes that were changed, cut off or added."""
    frames = [bytearray(frame) for frame in WELL_FORMED]
    for _ in range(data.draw(st.integers(1, 3))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        change = data.draw(st.sampled_from(["set", "cut", "add", "replace"]))
        if change == "set" and frame:
            frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
        elif change == "cut":
            del frame[data.draw(st.integers(0, len(frame))) :]
        elif change == "add":
            frame += data.draw(st.binary(max_size=9))
        else:
            frame[:] = data.draw(st.binary(max_size=40))
    if data.draw(st.booleans()):
        frames = frames[: data.draw(st.integers(0, 4))] + data.draw(st.lists(st.binary(max_size=9), max_size=2))
    try:
        following, batch = columns_in("p", frames, 1)
    except AnswerError as error:
        assert "pipe p" in str(error)  # noqa: PT017
    else:
        batch.validate(full=True)
        assert all(1 <= number < following for number in batch.column("sequence").to_pylist())


@given(st.binary(max_size=60) | st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.floats(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["made", "first", "next", "links", "durable", "groups", "g"]), inner, max_size=6),
    max_leaves=8).map(lambda tree: json.dumps(tree).encode()))  # fmt: skip
@example(b'{"made": 0, "first": 1, "next": 1, "links": 1, "durable": true, "groups": [1]}')
@example(b'{"made": 0, "first": Infinity, "next": 1, "links": 1, "durable": true, "groups": {}}')
def test_any_account_of_a_pipe_is_read_or_refused(text):
    try:
        PipeState.read("p", text)
    except AnswerError as error:
        assert "pipe p" in str(error)  # noqa: PT017


def test_the_account_of_a_pipe():
    row = {"made": 1.5, "first": 3, "next": 9, "links": 1, "durable": True, "groups": {"g": {"next": 4}}, "more": 1}
    assert PipeState.read("p", json.dumps(row).encode()) == PipeState(1.5, 3, 9, 1, durable=True, groups={"g": 4})


# --- events -----------------------------------------------------------------------------------------------------------

MOMENT = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)


def event_rows(count):
    return pa.RecordBatch.from_pylist(
        [
            {"v": 1, "broker": "b", "epoch": 7, "seq": number, "ts": MOMENT, "weight": 1.0, "kind": "task",
             "service": "echo", "service_us": number, "date": MOMENT.date()}
            for number in range(count)
        ],
        EVENT_COLUMNS,
    )  # fmt: skip


def as_chunks(chunks):
    rows = len(chunks)
    return pa.RecordBatch.from_arrays(
        [pa.repeat("p", rows), pa.array(range(1, rows + 1)), pa.array(chunks, pa.binary())], schema=CHUNKS
    )


def test_events_come_back_from_chunks():
    batch = event_rows(45_000)
    chunks = chunks_of(batch, "events")
    assert len(chunks) == 3
    found = list(events_in(as_chunks(chunks.to_pylist())))
    assert all(each.schema == EVENTS for each in found)
    table = pa.Table.from_batches(found)
    assert table.select(EVENT_COLUMNS.names).equals(pa.Table.from_batches([batch]))
    assert table.column("sequence").unique().to_pylist() == [1, 2, 3]


def test_events_of_a_later_version_are_refused_or_left_out():
    later = event_rows(2).set_column(0, EVENT_COLUMNS.field("v"), pa.array([1, events.VERSION + 1], pa.int16()))
    chunks = as_chunks([*chunks_of(later, "events").to_pylist(), *chunks_of(event_rows(2), "events").to_pylist()])
    with pytest.raises(PayloadError, match=f"events of version {events.VERSION + 1}"):
        list(events_in(chunks))
    (left,) = events_in(chunks, skip_bad=True)
    assert left.column("sequence").to_pylist() == [2, 2]


def as_stream(batch, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


LONG = "x" * 1000


@pytest.mark.parametrize(
    ("chunk", "says"),
    [
        (as_stream(pa.RecordBatch.from_pydict({"kind": [LONG] * 9}), compression="zstd"), "compressed"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": [LONG] * 9}), compression="lz4"), "compressed"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": pa.array([LONG] * 9).dictionary_encode()})), "type dictionary"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": pa.array([LONG] * 9, pa.string_view())})), "type string_view"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": [[1]]})), "type list"),
        (as_stream(pa.RecordBatch.from_pydict({"x": [1, 2]})), "of which kind"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": ["task", None]})), "of which kind"),
        (as_stream(pa.RecordBatch.from_pydict({"kind": pa.nulls(10**9)})), "more rows than bytes"),
        (b"", "empty"),
    ],
)
def test_a_chunk_that_would_become_large_or_holds_something_else_is_refused(chunk, says):
    with pytest.raises(PayloadError, match=says):
        list(events_in(as_chunks([chunk])))
    assert list(events_in(as_chunks([chunk]), skip_bad=True)) == []


def test_a_chunk_that_is_left_out_is_named_in_the_log_and_marked_if_that_is_wanted(caplog):
    chunks = as_chunks([GOOD_STREAM, b"no events", GOOD_STREAM])
    assert sum(len(rows) for rows in events_in(chunks, skip_bad=True)) == 6
    assert "chunk 2 of pipe p holds no events" in caplog.text
    marked = pa.Table.from_batches(events_in(chunks, skip_bad=True, mark=True)).to_pylist()
    (mark,) = [row for row in marked if row["kind"] is None]
    told = {"pipe": "p", "sequence": 2, "count": 1}
    assert {name: value for name, value in mark.items() if value is not None} == told
    (lost,) = pa.Table.from_batches(events_in(gone("p", 5, 10**12), skip_bad=True, mark=True)).to_pylist()
    told = {"pipe": "p", "sequence": 5, "count": 10**12 - 5}
    assert {name: value for name, value in lost.items() if value is not None} == told


def test_a_chunk_that_begins_with_another_message_than_a_schema_is_refused():
    """Arrow itself takes any first message for a schema, reads where there is nothing, and ends the process."""
    schema, *_ = pa.ipc.MessageReader.open_stream(pa.py_buffer(GOOD_STREAM))
    batches = GOOD_STREAM[schema.serialize().size :]
    with pytest.raises(PayloadError, match="begins with a message of the type record batch"):
        list(events_in(as_chunks([batches])))


def test_events_without_some_columns_have_what_they_have():
    batch = pa.RecordBatch.from_pydict({"kind": ["task"], "seq": pa.array([5], pa.int32()), "later": ["x"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    (row,) = pa.Table.from_batches(events_in(as_chunks([sink.getvalue().to_pybytes()]))).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "kind": "task", "seq": 5, "pipe": "p", "sequence": 1,
    }  # fmt: skip


GOOD_STREAM = chunks_of(event_rows(3), "events").to_pylist()[0]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_chunk_gives_valid_events_or_a_clear_error(data):
    chunk = bytearray(GOOD_STREAM)
    if data.draw(st.booleans()):
        for _ in range(data.draw(st.integers(1, 4))):
            chunk[data.draw(st.integers(0, len(chunk) - 1))] = data.draw(st.integers(0, 255))
        del chunk[data.draw(st.integers(0, len(chunk))) :]
    else:
        chunk[:] = data.draw(st.binary(max_size=50))
    try:
        for batch in events_in(as_chunks([bytes(chunk)])):
            batch.validate(full=True)
            assert batch.schema == EVENTS
    except PayloadError as error:
        assert "chunk 1 of pipe p" in str(error)  # noqa: PT017
    list(events_in(as_chunks([bytes(chunk)]), skip_bad=True))


# --- writing ----------------------------------------------------------------------------------------------------------


def unpacked(frame):
    frame, chunks, at = bytes(frame), [], 0
    while at < len(frame):
        (length,) = struct.unpack_from(">I", frame, at)
        chunks.append(frame[at + 4 : at + 4 + length])
        assert len(chunks[-1]) == length
        at += 4 + length
    return chunks


@given(st.lists(st.binary(max_size=30), max_size=40), st.integers(1, 200), st.integers(0, 5))
def test_frames_for_put_hold_every_chunk_once(chunks, most, skipped):
    array = pa.array(chunks, pa.binary()).slice(skipped)
    found = []
    for count, frame in batches_of(array, most):
        some = unpacked(frame)
        assert len(some) == count
        assert count == 1 or len(frame) <= most
        found += some
    assert found == chunks[skipped:]


def test_a_sink_takes_data_or_events_and_nothing_else():
    check_columns(["data"], "chunks")
    check_columns(EVENTS.names, "events")
    for names, payload in ((["data", "x"], "chunks"), ([], "chunks"), (["kind", "x"], "events"), (["seq"], "events")):
        with pytest.raises(OptionError, match="column"):
            check_columns(names, payload)
    with pytest.raises(PayloadError, match="no data"):
        chunks_of(pa.RecordBatch.from_pydict({"data": [b"x", None]}), "chunks")
    assert chunks_of(pa.RecordBatch.from_pydict({"data": ["text"]}), "chunks").to_pylist() == [b"text"]
