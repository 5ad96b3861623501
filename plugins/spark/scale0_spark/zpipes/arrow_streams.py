"""Arrow streams from anybody: read so that a small one cannot become large in memory. No I/O.

A body may be compressed, rows may have no bytes at all, and dictionaries, runs and views give many values for the bytes
of one. Nothing of that is needed for events, and all of it is refused before it is unpacked.
"""

from __future__ import annotations

from struct import Struct, error
from typing import Any

import pyarrow as pa

COMPRESSION = 3
"""Which field of a record batch says how it is compressed, in the order of Arrow's own description of its messages."""
HEADER = 2
"""Which field of a message has the record batch."""

_PLACE = Struct("<I")
_BACK = Struct("<i")
_ENTRY = Struct("<H")


def read_plain(data: pa.Buffer) -> pa.Table:
    """Read a stream of record batches; whatever is wrong is a ValueError or an error of Arrow's."""
    messages = pa.ipc.MessageReader.open_stream(data)
    try:
        schema = _schema(messages.read_next_message())
    except StopIteration:
        raise ValueError("it is empty") from None
    for field in schema:
        if not _is_plain(field.type):
            raise ValueError(f"its column {field.name} is of the type {field.type}")
    batches = [_batch(message, schema) for message in messages]
    if sum(batch.num_rows for batch in batches) > len(data):
        raise ValueError("it says that it has more rows than bytes")
    table = pa.Table.from_batches(batches, schema)
    table.validate(full=True)
    return table


def _schema(message: Any) -> pa.Schema:
    # Arrow takes any message for a schema here, and reads where there is nothing
    if message.type != "schema":
        raise ValueError(f"it begins with a message of the type {message.type}")
    return pa.ipc.read_schema(message)


def _batch(message: Any, schema: pa.Schema) -> pa.RecordBatch:
    if message.type != "record batch":
        raise ValueError(f"it has a message of the type {message.type}")
    if _is_compressed(bytes(message.metadata)):
        raise ValueError("it is compressed")
    return pa.ipc.read_record_batch(message, schema)


def _is_plain(kind: pa.DataType) -> bool:
    of_bytes = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return bool(pa.types.is_primitive(kind) or pa.types.is_null(kind) or any(each(kind) for each in of_bytes))


def _is_compressed(metadata: bytes) -> bool:
    """Look into the table of tables that describes a record batch, which Arrow's Python does not show."""
    try:
        message = _PLACE.unpack_from(metadata, 0)[0]
        header = _field(metadata, message, HEADER)
        if header is None:
            raise ValueError("it has a message without a record batch")
        return _field(metadata, header + _PLACE.unpack_from(metadata, header)[0], COMPRESSION) is not None
    except error:
        raise ValueError("it has a message that is cut off") from None


def _field(metadata: bytes, table: int, number: int) -> int | None:
    """Give the place of a field of a table; None if it is left out."""
    entries = table - _BACK.unpack_from(metadata, table)[0]
    entry = 4 + 2 * number
    if entries < 0 or entry + _ENTRY.size > _ENTRY.unpack_from(metadata, entries)[0]:
        return None
    offset = _ENTRY.unpack_from(metadata, entries + entry)[0]
    return table + offset if offset else None
