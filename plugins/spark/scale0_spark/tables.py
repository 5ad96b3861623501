"""Result tables in a folder: each one Parquet file, with a small JSON beside it for pages to show.

A table is written beside its place and put there by one rename, so that readers see the old one or the new one,
whole. The JSON follows by a rename of its own; both have the same mark, so that between the two, or after a crash
there, it is seen that the JSON is of the table before. The driver writes them: the folder is the user's own, also when
the work was done by a cluster.
"""
# does I/O: it keeps tables on disk

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from scale0_core.api import Scale0Error, files, records
from scale0_core.cli.kit import Exit, NegativeError, UsageError, say

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = "scale0.table/2"
MARK = b"scale0.mark"
"""Where the mark stands in the Parquet file's metadata."""
COVERAGE = b"scale0.coverage"
"""Where it stands there which events the table was made of."""
MOST_ITEMS = 2000
"""How many rows stand in the JSON beside a table."""
TIME = "window_start"
"""Tables with this column tell what was when: of them, the newest rows are of interest."""

LOCK = ".lock"
"""A file that is locked while tables of its folder are changed."""

SUMS = "sums_of_"
"""What the sums are called from which a stream finishes a table; they are kept beside it, and tell people nothing."""

beside = partial(files.new_file, durable=True, mode=0o666)
"""Yields a file that takes the place of another when it is whole, and is on disk then."""

Part = Literal["first", "newest"]
_PARTS: Mapping[str, Part] = {"first": "first", "newest": "newest"}

TABLES = {
    "trends_minute": "requests, errors and latencies of each service, by minute",
    "trends_second": "the same by second, for what was short",
    "trends_hour": "the same by hour",
    "trends_day": "the same by day",
    "availability": "how long each worker and each broker was there",
    "flapping": "workers that left unexpectedly, and brokers that started, again and again",
    "capacity": "how busy the workers of each service are, and when they will be full",
    "popularity": "songs by requests, the recent ones counting more",
    "cache_rates": "how many searches each music server answered by itself",
    "replication_plan": "which songs should be copied to which music servers",
    "placement_plan": "which services should have more or fewer workers in which group",
    "anomalies": "hours unlike the same hour of the weeks before",
}
"""The tables that the jobs write, and what each tells."""


class TableDamagedError(Scale0Error):
    """A file of a table cannot be read."""

    exit_code = Exit.DATA


class RowsLostError(Scale0Error):
    """A table would have fewer rows than before, though nobody asked for that."""

    exit_code = Exit.NEGATIVE


@attrs.frozen
class Coverage:
    """Which events a table was made of: those from `since` on and before `until`; None for all."""

    since: datetime | None = None
    until: datetime | None = None
    first: date | None = None
    """The first day of which events were stored; None if that is not known."""

    def as_json(self) -> dict[str, str | None]:
        """Return it as JSON has it."""
        return {key: None if value is None else str(plain(value)) for key, value in attrs.asdict(self).items()}

    @classmethod
    def from_json(cls, found: Mapping[str, str | None]) -> Coverage:
        """Return what `as_json` made."""
        since, until = (datetime.fromisoformat(text) if (text := found[key]) else None for key in ("since", "until"))
        first = found["first"]
        return cls(since, until, date.fromisoformat(first) if first else None)


@attrs.frozen
class Entry:
    """What is known of a table without reading it."""

    name: str
    rows: int
    columns: tuple[str, ...]
    written: str
    """When, in UTC, as ISO 8601."""
    bytes: int
    part: Part = "first"
    """Which rows `items` are, if not all: the first ones, or the newest ones of a table by time."""
    items: tuple[dict[str, Any], ...] = attrs.field(default=(), repr=False)
    """Rows in the order of the table, as plain values: times are ISO 8601 in UTC."""


@attrs.frozen
class Survey:
    """What lies in a folder of tables."""

    entries: list[Entry]
    damaged: dict[str, TableDamagedError]
    """Why tables cannot be read, by their names."""


def file_of(out: Path, name: str) -> Path:
    """Give the Parquet file of a table."""
    if not name.isidentifier():  # it becomes a path
        raise UsageError(
            f"{name!r} is not the name of a table", "", "nothing was read or written", "scale0 spark tables"
        )
    return out / name / f"{name}.parquet"


def write(
    out: Path, name: str, table: pa.Table, now: datetime | None = None, coverage: Coverage | None = None
) -> Entry:
    """Write a table, or put it in the place of the one that is there; when it returns, the table is on disk."""
    import pyarrow.parquet as pq

    covered = (coverage or Coverage()).as_json()
    path, mark = file_of(out, name), secrets.token_hex(8)
    with beside(path) as file:
        noted = {MARK: mark, COVERAGE: json.dumps(covered)}
        pq.write_table(table.replace_schema_metadata(noted), file, compression="zstd")
        size = os.fstat(file.fileno()).st_size
    written = (now or datetime.now(timezone.utc)).astimezone(timezone.utc).isoformat(timespec="seconds")
    entry = _described(name, table, written, size)
    with beside(out / f"{name}.json") as file:
        told = {**_as_json(entry, table, mark), "coverage": covered}
        file.write(json.dumps(told, ensure_ascii=False, allow_nan=False).encode())
    return entry


def read(out: Path, name: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a table, or some of its columns; a NegativeError says that it is not there."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = file_of(out, name)
    try:
        # Opened once, by Arrow itself: a table that is replaced meanwhile is still read whole. With a file of Python,
        # or by `read_table`, threads of Arrow let go of Python's objects, which aborts a process that exits then.
        with pq.ParquetFile(path, pre_buffer=False) as file:
            return file.read(columns, use_threads=False).replace_schema_metadata(None)
    except FileNotFoundError:
        raise _missing(out, name) from None
    except (pa.ArrowException, OSError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = "make it anew: run the job with --replace"
        raise TableDamagedError(f"{path} cannot be read", why, "nothing was read", remedy) from error


def coverage(out: Path, name: str) -> Coverage | None:
    """Return which events a table was made of, all if it does not say so; None if there is no table."""
    path = file_of(out, name)
    if not path.exists():
        return None
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return Coverage.from_json(records.from_json(_metadata(path)[COVERAGE]))
    return Coverage()


@contextlib.contextmanager
def locked(out: Path) -> Iterator[None]:
    """Have the tables of a folder to oneself: who reads one to write it anew loses nothing of another's."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # it goes with the file, also when the process is killed
        yield


def entry(out: Path, name: str) -> Entry:
    """Tell what is known of a table; a NegativeError says that it is not there."""
    try:
        return _entry(out, name)
    except FileNotFoundError:
        raise _missing(out, name) from None


def _missing(out: Path, name: str) -> NegativeError:
    return NegativeError(
        f"there is no table {name} in {out}", "no job has written it", "nothing was read", "scale0 spark run"
    )


def survey(out: Path) -> Survey:
    """List the tables of a folder by what stands beside them; a table whose JSON is of another is read itself."""
    names = sorted(path.parent.name for path in out.glob("*/*.parquet") if path.stem == path.parent.name)
    found = Survey([], {})
    for name in names:
        if name.isidentifier():
            try:
                found.entries.append(_entry(out, name))
            except TableDamagedError as error:
                found.damaged[name] = error
    return found


def entries(out: Path) -> list[Entry]:
    """List the tables of a folder that can be read, and say which cannot."""
    found = survey(out)
    say_damaged(found.damaged)
    return found.entries


def say_damaged(damaged: Mapping[str, TableDamagedError]) -> None:
    """Tell people which tables cannot be read: the others can."""
    for name, error in damaged.items():
        problem = error.problem
        say(f"the table {name} is left out: {problem.what}: {problem.why}; {problem.remedy}")


def _entry(out: Path, name: str) -> Entry:
    found = file_of(out, name).stat()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        told = records.from_json((out / f"{name}.json").read_bytes())
        if told["mark"] == _mark(file_of(out, name)):
            columns = tuple(str(column["name"]) for column in told["columns"])
            items, part = tuple(map(dict, told["items"])), _PARTS[told["part"]]
            return Entry(name, int(told["rows"]), columns, str(told["written"]), int(told["bytes"]), part, items)
    table = read(out, name)
    written = datetime.fromtimestamp(found.st_mtime, timezone.utc).isoformat(timespec="seconds")
    return _described(name, table, written, found.st_size)


def _described(name: str, table: pa.Table, written: str, size: int) -> Entry:
    part: Part = "newest" if TIME in table.column_names else "first"
    shown = _newest(table) if part == "newest" else table.slice(0, MOST_ITEMS)
    items = tuple(_plain(row) for row in shown.to_pylist())
    return Entry(name, table.num_rows, tuple(table.column_names), written, size, part, items)


def _newest(table: pa.Table) -> pa.Table:
    """Give the rows of the last times, in the order of the table, which need not be that of time."""
    if table.num_rows <= MOST_ITEMS:
        return table
    import pyarrow.compute as pc

    newest = pc.sort_indices(table, [(TIME, "descending")])[:MOST_ITEMS]
    return table.take(newest.sort())


def _mark(path: Path) -> str | None:
    """Give the mark of a table's file; None if it has none."""
    found = _metadata(path).get(MARK)
    return None if found is None else found.decode()


def _metadata(path: Path) -> Mapping[bytes, bytes]:
    import pyarrow.parquet as pq

    return pq.read_metadata(path).metadata or {}


def _as_json(entry: Entry, table: pa.Table, mark: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "table": entry.name,
        "about": TABLES.get(entry.name, ""),
        "file": f"{entry.name}/{entry.name}.parquet",
        "mark": mark,
        "written": entry.written,
        "rows": entry.rows,
        "bytes": entry.bytes,
        "columns": [{"name": field.name, "type": str(field.type)} for field in table.schema],
        "part": entry.part,
        "items": entry.items,
    }


def plain(value: object) -> object:
    """Give a value as JSON has it: times as ISO 8601 in UTC, no NaN."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=timezone.utc)
        return aware.astimezone(timezone.utc).isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    return {key: plain(value) for key, value in row.items()}
