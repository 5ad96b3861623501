"""Writes generated events into a folder, as the sink of a broker would."""
# does I/O: it writes files, in threads, and says how far it is

from __future__ import annotations

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs

from scale0_telemetry.generator.batches import Batch, parts
from scale0_telemetry.generator.plan import GeneratorError, Plan
from scale0_telemetry.segments import Limits, Segments

BYTES_A_ROW = 40
"""What a row takes on disk at most, on the average."""
THREADS = 2
LIMITS = Limits(segment_seconds=float("inf"), durable=False)


@attrs.frozen
class Progress:
    """How far it is."""

    rows: int
    total: int
    seconds: float

    @property
    def rate(self) -> float:
        """Rows a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    @property
    def remaining(self) -> float:
        """Seconds until the end, if it goes on like this."""
        return (self.total - self.rows) / self.rate if self.rate else 0.0


@attrs.frozen
class Summary:
    """What was written."""

    folder: str
    rows: int
    events: int
    duplicates: int
    late: int
    files: int
    bytes: int
    seconds: float
    rows_per_s: int
    kinds: dict[str, int]


def generate(
    folder: Path | str,
    *,
    rows: int,
    seed: int = 0,
    force: bool = False,
    append: bool = False,
    progress: Callable[[Progress], None] | None = None,
    **options: Any,
) -> Summary:
    """Write generated events into a folder; the same numbers give the same events.

    :param options: the others of :class:`Plan`: ``days``, ``start``, ``brokers``, ``late``, ``duplicates``.
    :param force: remove the events that are there.
    :param append: add to the events that are there.
    """
    plan, root = Plan(rows=rows, seed=seed, **options), Path(folder)
    _prepare(root, plan, force=force, append=append)
    began = time.monotonic()
    writer = _Writer(root)
    late = 0
    try:
        delayed: tuple[Batch, ...] = ()
        for part in parts(plan):
            writer.write(part.batches, delayed)
            delayed, late = part.delayed, late + part.late
            if progress is not None:
                progress(Progress(writer.rows, plan.rows, time.monotonic() - began))
        writer.write((), delayed)
        writer.finish()
    finally:
        writer.close()
    if progress is not None:
        progress(Progress(writer.rows, plan.rows, time.monotonic() - began))
    seconds = time.monotonic() - began
    files = [path.stat().st_size for path in _files(root)]
    return Summary(
        folder=str(root), rows=writer.rows, events=plan.originals, duplicates=plan.copies, late=late, files=len(files),
        bytes=sum(files), seconds=round(seconds, 3), rows_per_s=round(writer.rows / max(seconds, 1e-9)),
        kinds=dict(sorted(writer.kinds.items())),
    )  # fmt: skip


def _files(root: Path) -> Iterable[Path]:
    return root.glob("date=*/kind=*/*.parquet")


def _prepare(root: Path, plan: Plan, *, force: bool, append: bool) -> None:
    """Make the folder; refuse one that has something in it, or too little room."""
    nothing = "nothing was written"
    try:
        root.mkdir(parents=True, exist_ok=True)
        if force:
            for path in root.glob("date=*"):
                shutil.rmtree(path)
        if not append and any(root.iterdir()):
            raise GeneratorError(
                f"the folder {root} is not empty", "events that are there would be mixed with new ones", nothing,
                "name another folder; or use --force to replace its events, or --append to add to them",
            )  # fmt: skip
        free = shutil.disk_usage(root).free
    except OSError as error:
        remedy = "name another folder with --out"
        raise GeneratorError(f"events cannot be written to {root}", str(error), nothing, remedy) from error
    needed = plan.rows * BYTES_A_ROW
    if free < needed:
        why = f"{plan.rows:,} events take up to {needed / 1e9:,.1f} GB, and {free / 1e9:,.1f} GB are free"
        raise GeneratorError(f"there is no room in {root}", why, nothing, "make fewer, or name another folder")


class _Writer:
    """Hands batches to threads, those of one broker to one thread at a time."""

    def __init__(self, root: Path) -> None:
        self.rows = 0
        self.kinds: dict[str, int] = {}
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="generate")
        self._shelves: defaultdict[str, _BrokerFiles] = defaultdict(lambda: _BrokerFiles(root))
        self._running: list[Future[None]] = []

    def write(self, batches: Iterable[Batch], delayed: Iterable[Batch]) -> None:
        """Write batches; what is delayed comes after them, into files of its own. Waits for what came before."""
        jobs: defaultdict[str, tuple[list[Batch], list[Batch]]] = defaultdict(lambda: ([], []))
        for place, some in enumerate((batches, delayed)):
            for batch in some:
                jobs[batch.broker][place].append(batch)
                self.rows += batch.rows.num_rows
                self.kinds[batch.kind] = self.kinds.get(batch.kind, 0) + batch.rows.num_rows
        self.wait()
        self._running = [self._pool.submit(self._shelves[broker].write, *job) for broker, job in jobs.items()]

    def wait(self) -> None:
        """Wait until all is written that was handed over."""
        running, self._running = self._running, []
        for job in running:
            job.result()

    def finish(self) -> None:
        """Finish all files."""
        self.wait()
        self._running = [self._pool.submit(files.finish) for files in self._shelves.values()]
        self.wait()

    def close(self) -> None:
        """End the threads."""
        self._pool.shutdown(cancel_futures=True)


class _BrokerFiles:
    """The files of one broker, whose days are finished one after the other."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[tuple[str, int], Segments] = {}
        self._day: int | None = None

    def write(self, batches: list[Batch], delayed: list[Batch]) -> None:
        for batch in batches:
            if batch.day != self._day:
                self.finish()
                self._day = batch.day
            _write(self._open, self._root, batch)
        apart: dict[tuple[str, int], Segments] = {}
        for batch in delayed:
            _write(apart, self._root, batch)
        _finish(apart)

    def finish(self) -> None:
        _finish(self._open)


def _write(files: dict[tuple[str, int], Segments], root: Path, batch: Batch) -> None:
    key = (batch.broker, batch.epoch)
    if key not in files:
        files[key] = Segments(root, *key, LIMITS)
    files[key].write(batch.kind, batch.rows.column("ts")[0].as_py().date(), batch.rows)


def _finish(files: dict[tuple[str, int], Segments]) -> None:
    for segments in files.values():
        segments.close()
        if segments.lost:
            raise GeneratorError(
                f"{sum(segments.lost.values()):,} events could not be written",
                "the disk refused them; the log says why",
                "the events in the folder are not all",
                "make room, and generate again with --force",
            )
    files.clear()
