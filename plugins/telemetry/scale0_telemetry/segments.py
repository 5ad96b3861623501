"""Parquet files: ``<folder>/date=YYYY-MM-DD/kind=<kind>/<broker>-<epoch>-<first seq>.parquet``.

A segment that is still written has a name that begins with a dot, which Spark, DuckDB and pyarrow pass over; it gets
its name when it is whole and on disk. Whoever kills the process loses open segments and nothing else.
"""
# does I/O: it writes and removes files

from __future__ import annotations

import contextlib
import datetime
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from scale0_core.api import MIB, get_logger
from scale0_telemetry.schema import FILE_SCHEMA

LOG = get_logger("plugin.telemetry")

SUFFIX = ".parquet"

GROUP_ROWS = 131_072
GROUP_BYTES = 16 * MIB
"""Rows wait in memory until there are so many, or so many bytes of them: then a group of rows is written."""

MOST_WAITING = 4 * GROUP_ROWS
MOST_BYTES = 8 * GROUP_BYTES
"""Rows of one kind, and bytes of them, that are kept while the disk refuses them."""

RETRY_AFTER = 5.0
"""Seconds until a disk that refused is tried again."""

DISK, QUOTA = "disk", "quota"
"""Why events are lost."""

_DICTIONARIES = ["v", "broker", "epoch", "weight", "service", "peer", "group", "subject", "source", "outcome", "value"]
_DELTAS = dict.fromkeys(("seq", "ts", "queue_us", "service_us", "bytes", "count"), "DELTA_BINARY_PACKED")


@attrs.frozen(kw_only=True)
class Limits:
    """How large and how old a segment gets, and how much all of them may take; 0 bytes of quota: any."""

    segment_bytes: int = 64 * MIB
    segment_seconds: float = 300.0
    quota_bytes: int = 0
    compression: str = "zstd"
    durable: bool = True
    """Whether a segment is forced to the disk before it gets its name; what can be made again needs no such wait."""


@attrs.frozen(order=True)
class Segment:
    """A whole segment on disk. They are in order of age."""

    date: str
    modified: float
    path: Path
    kind: str = attrs.field(order=False)
    bytes: int = attrs.field(order=False)

    @property
    def rows(self) -> int:
        """How many events are in it; 0 if that cannot be read."""
        try:
            return int(pq.read_metadata(self.path).num_rows)
        except (OSError, pa.ArrowException):
            return 0

    def span(self) -> tuple[str | None, str | None]:
        """When the first and the last of its events happened, as its footer says; None if that cannot be read."""
        try:
            footer = pq.read_metadata(self.path)
        except (OSError, pa.ArrowException):
            return None, None
        column = FILE_SCHEMA.get_field_index("ts")
        found = [footer.row_group(group).column(column).statistics for group in range(footer.num_row_groups)]
        known = [statistics for statistics in found if statistics is not None and statistics.has_min_max]
        if not known:
            return None, None
        return min(of.min for of in known).isoformat(), max(of.max for of in known).isoformat()


def folder_of(root: Path, kind: str, date: datetime.date) -> Path:
    """Give the folder in which segments of a kind and a day are."""
    # whatever a plugin calls its kind is one part of a path; readers of such trees take the escapes back
    return root / f"date={date.isoformat()}" / f"kind={quote(kind, safe='').replace('.', '%2E')}"


def segments_in(root: Path) -> Iterator[Segment]:
    """Find all whole segments, in no order; what is gone in the meantime is left out."""
    for path in root.glob(f"date=*/kind=*/*{SUFFIX}"):
        if not path.name.startswith((".", "_")):
            with contextlib.suppress(OSError):
                about = path.stat()
                date, kind = (part.partition("=")[2] for part in path.parts[-3:-1])
                yield Segment(date, about.st_mtime, path, unquote(kind), about.st_size)


def remove(segments: Iterable[Segment], root: Path) -> tuple[int, int]:
    """Remove segments, and folders that have become empty; give how many events and bytes that were."""
    rows = size = 0
    for segment in segments:
        count = segment.rows
        try:
            segment.path.unlink()
        except FileNotFoundError:
            continue
        rows, size = rows + count, size + segment.bytes
        for folder in segment.path.parents:
            if folder == root:
                break
            with contextlib.suppress(OSError):  # not empty
                folder.rmdir()
    return rows, size


def over_quota(segments: Iterable[Segment], quota: int) -> list[Segment]:
    """Give the oldest segments, without which the others take no more than the quota."""
    ordered = sorted(segments)
    excess = sum(segment.bytes for segment in ordered) - quota
    found = []
    for segment in ordered:
        if excess <= 0:
            break
        excess -= segment.bytes
        found.append(segment)
    return found


@attrs.define(eq=False)
class _OpenFile:
    """A segment that is being written."""

    path: Path
    final: Path
    sink: Any
    writer: Any
    new_folders: Sequence[Path]
    rows: int = 0

    @classmethod
    def make(cls, folder: Path, name: str, compression: str, schema: Any) -> _OpenFile:
        new_folders = [each for each in (folder, *folder.parents) if not each.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f".{name}{SUFFIX}"
        sink = pa.OSFile(str(path), "wb")
        try:
            writer = pq.ParquetWriter(
                sink, schema, compression=compression, use_dictionary=_DICTIONARIES, column_encoding=_DELTAS,
                write_statistics=["seq", "ts", "service"], store_schema=False,
            )  # fmt: skip
        except BaseException:
            sink.close()
            raise
        writer.add_key_value_metadata(FILE_SCHEMA.metadata)  # which goes with the schema of Arrow, if it is not stored
        return cls(path, _free(folder, name), sink, writer, new_folders)

    def finish(self, *, durable: bool) -> None:
        """Write the end, have it all on disk, and give the file its name."""
        self.writer.close()
        self.sink.close()
        if durable:
            _sync(self.path)
        self.path.rename(self.final)
        if durable:
            with contextlib.suppress(OSError):  # the segment is there and whole: it does not count as lost
                for entry in (self.final, *self.new_folders):
                    _sync(entry.parent)

    def abandon(self) -> None:
        """Throw away what was written."""
        for close in (self.writer.close, self.sink.close, self.path.unlink):
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):
                close()


@attrs.define(eq=False)
class _Shelf:
    """Rows of one kind and day: some wait in memory, some are in an open file."""

    kind: str
    date: datetime.date
    opened: float
    waiting: list[Any] = attrs.field(factory=list)
    rows: int = 0
    bytes: int = 0
    file: _OpenFile | None = None

    def add(self, batch: Any) -> None:
        self.waiting.append(batch)
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def clear(self) -> None:
        self.waiting, self.rows, self.bytes = [], 0, 0

    @property
    def full(self) -> bool:
        return self.rows >= GROUP_ROWS or self.bytes >= GROUP_BYTES


class Segments:
    """Writes events into segments. One thread uses it; ``now`` is any clock that does not go back."""

    def __init__(self, folder: Path, broker: str, epoch: int, limits: Limits | None = None) -> None:
        self.folder = folder
        self.limits = limits or Limits()
        self.lost: Counter[str] = Counter()
        """Events that were lost, by reason; whoever tells of them clears it."""
        self.written = 0
        """Events in segments that are whole."""
        self._prefix = f"{quote(broker, safe='')}-".replace("_", "%5F", 1 if broker.startswith("_") else 0)
        # a broker named left-2 is not this one, if this one is named left
        self._own_name = re.compile(rf"\.?{re.escape(self._prefix)}(\d+)-\d+(\.\d+)?{re.escape(SUFFIX)}")
        self._epoch = epoch
        self._shelves: dict[tuple[datetime.date, str], _Shelf] = {}
        self._total: int | None = None
        self._not_before = float("-inf")
        self._told = False

    def clean(self) -> int:
        """Remove what an earlier process of this broker left unfinished; give the number of files."""
        count = 0
        for path in self.folder.glob(f"date=*/kind=*/.*{SUFFIX}"):
            found = self._own_name.fullmatch(path.name)
            if found and int(found[1]) != self._epoch:
                with contextlib.suppress(OSError):
                    path.unlink()
                    count += 1
        return count

    def write(self, kind: str, date: datetime.date, batch: Any, now: float = 0.0) -> None:
        """Take a record batch of ROWS_SCHEMA or FILE_SCHEMA, of one kind and one day, in order of ``seq``.

        All batches that go to one of these have the same of the two.
        """
        if batch.num_rows == 0:
            return
        shelf = self._shelves.get((date, kind))
        if shelf is None:
            shelf = self._shelves[date, kind] = _Shelf(kind, date, now)
        shelf.add(batch)
        if shelf.full:
            self._try(shelf, now, finish=False)

    def tick(self, now: float) -> None:
        """Finish the segments that are old enough."""
        for shelf in list(self._shelves.values()):
            if now - shelf.opened >= self.limits.segment_seconds:
                self._try(shelf, now, finish=True)

    def close(self, now: float = 0.0) -> None:
        """Finish all segments; what the disk refuses is lost and counted."""
        self._not_before = float("-inf")
        for shelf in list(self._shelves.values()):
            self._try(shelf, now, finish=True)
            self.lost[DISK] += shelf.rows
        self._shelves.clear()
        self.lost = +self.lost

    def _try(self, shelf: _Shelf, now: float, *, finish: bool) -> None:
        """Put rows on disk; on failure keep them for another try, up to a bound."""
        if now >= self._not_before:
            try:
                self._store(shelf, finish=finish)
            except (OSError, pa.ArrowException) as error:
                self._failed(shelf, now, error)
            else:
                self._told = False
        if shelf.rows > MOST_WAITING or shelf.bytes > MOST_BYTES:
            self.lost[DISK] += shelf.rows
            shelf.clear()

    def _store(self, shelf: _Shelf, *, finish: bool) -> None:
        if shelf.waiting:
            if shelf.file is None:
                first = shelf.waiting[0].column("seq")[0].as_py()
                name = f"{self._prefix}{self._epoch}-{first}"
                folder = folder_of(self.folder, shelf.kind, shelf.date)
                shelf.file = _OpenFile.make(folder, name, self.limits.compression, shelf.waiting[0].schema)
            # texts that are numbered alike in all batches are written by their numbers, which is half of the work
            rows = pa.Table.from_batches(shelf.waiting).unify_dictionaries()
            shelf.file.writer.write_table(rows, row_group_size=4 * GROUP_ROWS)
            shelf.file.rows += shelf.rows
            shelf.clear()
        if shelf.file is not None and (finish or shelf.file.sink.tell() >= self.limits.segment_bytes):
            shelf.file.finish(durable=self.limits.durable)
            self.written += shelf.file.rows
            size = shelf.file.final.stat().st_size
            shelf.file = None
            finish = True
            self._keep_quota(size)
        if finish:
            self._shelves.pop((shelf.date, shelf.kind), None)

    def _failed(self, shelf: _Shelf, now: float, error: Exception) -> None:
        if shelf.file is not None:
            self.lost[DISK] += shelf.file.rows
            shelf.file.abandon()
            shelf.file = None
        self._not_before = now + RETRY_AFTER
        if not self._told:
            self._told = True
            LOG.error("events cannot be written; it is tried again", folder=str(self.folder), error=str(error))

    def _keep_quota(self, size: int) -> None:
        """Remove this broker's oldest segments when all of its own take more than the quota."""
        if not self.limits.quota_bytes:
            return
        if self._total is None:
            self._total = sum(segment.bytes for segment in self._own_segments())
        else:
            self._total += size
        if self._total <= self.limits.quota_bytes:
            return
        found = self._own_segments()
        oldest = over_quota(found, self.limits.quota_bytes)
        rows, removed = remove(oldest, self.folder)
        self._total = sum(segment.bytes for segment in found) - removed
        if rows or removed:
            self.lost[QUOTA] += rows
            LOG.warning("oldest segments removed to keep the quota", segments=len(oldest), events=rows, bytes=removed)

    def _own_segments(self) -> list[Segment]:
        """Find the segments of this broker, since others may have theirs in the same folder."""
        return [each for each in segments_in(self.folder) if self._own_name.fullmatch(each.path.name)]


def _free(folder: Path, name: str) -> Path:
    """Give a path that nothing is at: a segment never takes the place of another."""
    path, number = folder / f"{name}{SUFFIX}", 0
    while path.exists():
        number += 1
        path = folder / f"{name}.{number}{SUFFIX}"
    return path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
