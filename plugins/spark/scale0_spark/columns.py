"""The columns of stored events, by name: what Spark's schema and that of chunks in pipes are made from."""

from __future__ import annotations

from collections.abc import Mapping

from scale0_core.api import events

_TYPES = {str: "string", int: "long", float: "double"}

COLUMNS: Mapping[str, str] = {
    "v": "short",
    "broker": "string",
    "epoch": "long",
    "seq": "long",
    "ts": "timestamp",
    "weight": "double",
    **{name: _TYPES[field.type] for name, field in events.FIELDS.items()},
    "details": "string",
    "kind": "string",
    "date": "date",
}
"""Names and types, in order. In files, `kind` and `date` are only in the names of the folders."""


def too_new(version: object) -> str:
    """Say why events of a later version cannot be read: something in them means another thing than here."""
    return f"there are events of version {version}, and this scale0-spark knows version {events.VERSION}: update it"
