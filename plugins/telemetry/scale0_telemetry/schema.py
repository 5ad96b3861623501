"""How events are stored: one row an event, the same columns for all kinds. Pure, and needs no broker.

(broker, epoch, seq) is the id of an event: a row that comes twice has it twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from scale0_core.api import events

METADATA_KEY = b"scale0.events"

TIMESTAMP = pa.timestamp("us", tz="UTC")

_TYPES: Mapping[type, Any] = {str: pa.string(), int: pa.int64(), float: pa.float64()}

COLUMNS: Mapping[str, tuple[Any, str]] = {
    "v": (pa.int16(), "version of the schema"),
    "broker": (pa.string(), "name of the broker"),
    "epoch": (pa.int64(), "when the broker started, in microseconds UTC"),
    "seq": (pa.int64(), "number of the event since then, from 1 on"),
    "ts": (TIMESTAMP, "when it happened"),
    "weight": (pa.float64(), "how many events this one stands for: 1 / the rate of sampling"),
    **{name: (_TYPES[field.type], field.summary) for name, field in events.FIELDS.items()},
    "details": (pa.string(), "a JSON object of fields that have no column, and of values that do not fit into theirs"),
}
"""The columns of a file: types and meanings."""

PARTITIONS: Mapping[str, tuple[Any, str]] = {
    "kind": (pa.string(), "kind of the event; in files only a part of the path"),
    "date": (pa.date32(), "its day in UTC; in files only a part of the path"),
}

_METADATA = {METADATA_KEY: str(events.VERSION).encode()}

FILE_SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()], metadata=_METADATA)
"""What is in a Parquet file."""

_TEXT = pa.dictionary(pa.int32(), pa.string())
_REPEATED = {name for name, (kind, _) in COLUMNS.items() if kind == pa.string()} - {"details"}

ROWS_SCHEMA = pa.schema(
    [(name, _TEXT if name in _REPEATED else kind) for name, (kind, _) in COLUMNS.items()], metadata=_METADATA
)
"""The same in memory: of texts that stand in many rows, each row has a number. Parquet files have them so, too."""

SCHEMA = pa.schema([(name, kind) for name, (kind, _) in {**COLUMNS, **PARTITIONS}.items()], metadata=_METADATA)
"""What is in a pipe, and what a reader of files gets that looks at their paths."""
