"""Parquet files: ``<folder>/date=YYYY-MM-DD/kind=<kind>/<broker>-<epoch>-<first seq>.parquet``.

A segment that is still written has a name that begins with a dot, which Spark, DuckDB and pyarrow pass over; it gets
its name when it is whole and on disk. Whoever kills the process loses open segments and nothing else.
"""
# does I/O: it writes and removes files

from __future__ import annotations

import contextlib
import datetime
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from scale0_core.api import KIB, MIB, files, get_logger
from scale0_telemetry.schema import FILE_SCHEMA

LOG = get_logger("plugin.telemetry")

SUFFIX = ".parquet"

GROUP_ROWS = 131_072
GROUP_BYTES = 16 * MIB
"""Rows wait in memory until there are so many, or so many bytes of them: then a group of rows is written."""

MOST_WAITING = 4 * GROUP_ROWS
MOST_BYTES = 8 * GROUP_BYTES
"""Rows of one kind, and bytes of them, that are kept while the disk refuses them."""

QUOTA_PARTS = 4
LEAST_PART = 4 * KIB
"""A segment is finished when it has one of so many parts of the quota, so that there is room for some of them; but not
before it has so many bytes."""

RETRY_AFTER = 5.0
"""Seconds until a disk that refused is tried again."""

DISK, QUOTA = "disk", "quota"
"""Why events are lost."""

_NUMBER = re.compile(rf"-([0-9]{{1,19}})(\.[0-9]+)?{re.escape(SUFFIX)}$")
_DICTIONARIES = ["v", "broker", "epoch", "weight", "service", "peer", "group", "subject", "source", "outcome", "value"]
_DELTAS = dict.fromkeys(("seq", "ts", "queue_us", "service_us", "bytes", "count"), "DELTA_BINARY_PACKED")


@attrs.frozen(kw_only=True)
class Limits:
    """How large and how old a segment gets, and how much all of them may take; 0 bytes of quota: any.

    Open segments count for the quota. It is kept whenever a group of rows was written.
    """

    segment_bytes: int = 64 * MIB
    segment_seconds: float = 300.0
    quota_bytes: int = 0
    compression: str = "zstd"
    durable: bool = True
    """Whether a segment is forced to the disk before it gets its name; what can be made again needs no such wait."""

    @property
    def part_bytes(self) -> int:
        """What one segment, or one group of rows in memory, may take of the quota; 0: any."""
        return self.quota_bytes and max(LEAST_PART, self.quota_bytes // QUOTA_PARTS)

    @property
    def finish_bytes(self) -> int:
        """The size at which a segment is finished."""
        return min(self.segment_bytes, self.part_bytes or self.segment_bytes)


@attrs.frozen(order=True)
class Segment:
    """A whole segment on disk. They are in order of age."""

    date: str
    modified: float
    number: int
    """That of its first event; disks have clocks that are too slow to tell two segments apart."""
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

    def table(self) -> Any:
        """Read all of its events; raise OSError or pa.ArrowException if that cannot be done.

        No thread of Arrow takes part: one that still lets go of something when a command exits would abort it.
        """
        with pq.ParquetFile(self.path, pre_buffer=False) as file:
            return file.read(use_threads=False)

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
                found = _NUMBER.search(path.name)
                number = int(found[1]) if found else 0
                yield Segment(date, about.st_mtime, number, path, unquote(kind), about.st_size)


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
            files.sync_path(self.path)
        files.put_in_place(self.path, self.final, durable=False)
        if durable:
            with contextlib.suppress(OSError):  # the segment is there and whole: it does not count as lost
                for entry in (self.final, *self.new_folders):
                    files.sync_path(entry.parent)

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

    def keep(self, rows: Any) -> None:
        """Leave out all but these."""
        self.clear()
        if rows.num_rows:  # of none, the texts that others had would count
            self.waiting, self.rows, self.bytes = rows.to_batches(), rows.num_rows, rows.nbytes

    def full(self, part_bytes: int) -> bool:
        return self.rows >= GROUP_ROWS or self.bytes >= min(GROUP_BYTES, part_bytes or GROUP_BYTES)


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
        self._quota_told = False

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
        if shelf.full(self.limits.part_bytes):
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
                self._store(shelf, now, finish=finish)
            except (OSError, pa.ArrowException) as error:
                self._failed(shelf, now, error)
            else:
                self._told = False
        if shelf.rows > MOST_WAITING or shelf.bytes > MOST_BYTES:
            self.lost[DISK] += shelf.rows
            shelf.clear()

    def _store(self, shelf: _Shelf, now: float, *, finish: bool) -> None:
        if shelf.waiting:
            # texts that are numbered alike in all batches are written by their numbers, which is half of the work
            rows = pa.Table.from_batches(shelf.waiting).unify_dictionaries()
            step = self._group_rows(shelf)
            for start in range(0, rows.num_rows, step):
                group = rows.slice(start, step)
                self._write_group(shelf, group if len(group) == len(rows) else _numbered_anew(group))
                shelf.keep(rows.slice(start + step))
                if shelf.file is not None and shelf.file.sink.tell() >= self.limits.finish_bytes:
                    self._finish(shelf)
                self._keep_quota(now)
        if finish and shelf.file is not None:
            self._finish(shelf)
            self._keep_quota(now)
        self._put_away(shelf)

    def _group_rows(self, shelf: _Shelf) -> int:
        """Give how many of the rows that wait are written at once: all, unless they may be too much for the quota."""
        part = self.limits.part_bytes
        return shelf.rows if not part or shelf.bytes <= part else max(1, shelf.rows * part // shelf.bytes)

    def _write_group(self, shelf: _Shelf, group: Any) -> None:
        if shelf.file is None:
            name = f"{self._prefix}{self._epoch}-{group.column('seq')[0].as_py()}"
            folder = folder_of(self.folder, shelf.kind, shelf.date)
            shelf.file = _OpenFile.make(folder, name, self.limits.compression, group.schema)
        shelf.file.writer.write_table(group, row_group_size=4 * GROUP_ROWS)
        shelf.file.rows += group.num_rows

    def _finish(self, shelf: _Shelf) -> None:
        file = shelf.file
        assert file is not None
        file.finish(durable=self.limits.durable)
        self.written += file.rows
        shelf.file = None
        if self._total is not None:
            self._total += file.final.stat().st_size

    def _put_away(self, shelf: _Shelf) -> None:
        """Forget a shelf that has nothing on it."""
        if not shelf.waiting and shelf.file is None:
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

    # --- the quota ----------------------------------------------------------------------------------------------------

    def _keep_quota(self, now: float) -> None:
        """Remove this broker's oldest segments while all of its own, and those that are open, take more than the quota.

        When there are only open ones left, the largest is finished first: what is in it is as old as anything.
        """
        quota = self.limits.quota_bytes
        if not quota:
            return
        try:
            if self._total is None:
                self._total = sum(segment.bytes for segment in self._own_segments())
            while self._total + (opened := self._open_bytes()) > quota:
                if not self._remove_oldest(quota - opened) and not self._finish_largest(now):
                    return
        except OSError as error:
            if not self._quota_told:
                LOG.error("segments cannot be listed or removed, so the quota is not kept", error=str(error))
            self._quota_told = True
        else:
            self._quota_told = False

    def _open_bytes(self) -> int:
        return sum(shelf.file.sink.tell() for shelf in self._shelves.values() if shelf.file is not None)

    def _remove_oldest(self, room: int) -> bool:
        """Remove segments until the others have room; say whether it made a difference."""
        before, found = self._total, self._own_segments()
        self._total = sum(segment.bytes for segment in found)
        oldest = over_quota(found, room)
        rows = size = 0
        try:
            for segment in oldest:
                gone = remove([segment], self.folder)
                rows, size = rows + gone[0], size + gone[1]
                self._total -= segment.bytes
        finally:
            if rows or size:
                self.lost[QUOTA] += rows
                LOG.warning("oldest segments removed to keep the quota", segments=len(oldest), events=rows, bytes=size)
        return bool(oldest) or self._total != before

    def _finish_largest(self, now: float) -> bool:
        """Finish the largest open segment; say whether there was one."""
        opened = [(shelf.file.sink.tell(), shelf) for shelf in self._shelves.values() if shelf.file is not None]
        if not opened:
            return False
        shelf = max(opened, key=itemgetter(0))[1]
        try:
            self._finish(shelf)
        except (OSError, pa.ArrowException) as error:
            self._failed(shelf, now, error)
        self._put_away(shelf)
        return True

    def _own_segments(self) -> list[Segment]:
        """Find the segments of this broker, since others may have theirs in the same folder."""
        return [each for each in segments_in(self.folder) if self._own_name.fullmatch(each.path.name)]


def _numbered_anew(rows: Any) -> Any:
    """Leave out the texts that these rows do not have: all that are numbered are written."""
    for place, field in enumerate(rows.schema):
        if pa.types.is_dictionary(field.type):
            texts = rows.column(place).cast(field.type.value_type)
            rows = rows.set_column(place, field, texts.dictionary_encode().cast(field.type))
    return rows.unify_dictionaries()


def _free(folder: Path, name: str) -> Path:
    """Give a path that nothing is at: a segment never takes the place of another."""
    path, number = folder / f"{name}{SUFFIX}", 0
    while path.exists():
        number += 1
        path = folder / f"{name}.{number}{SUFFIX}"
    return path
