"""Lines about what Spark is doing."""

from __future__ import annotations

import io
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from scale0_spark import progress
from scale0_spark.progress import (
    Missed,
    Progress,
    StreamWatch,
    Work,
    batch_of,
    duration,
    number,
    stream_line,
    work_line,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime(2030, 1, 2, 12, tzinfo=timezone.utc)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_has_one_line_that_is_written_over():
    stream = Terminal()
    looked = threading.Event()

    def look() -> str:
        if "stages 1/2" in stream.getvalue():
            looked.set()
        return "stages 1/2"

    shown = Progress(stream, every=0.01)
    with shown.during("trends", look):
        assert looked.wait(60)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.splitlines()[-1].split("\r")[-1].startswith("trends: ")
    assert "\r" in text


def test_a_terminal_gets_the_brief_look_and_at_the_end_the_whole_one():
    stream, looked = Terminal(), threading.Event()

    def brief() -> str:
        looked.set()
        return "6 tables"

    with Progress(stream, every=0.01).during("streams", lambda: "a: 1 | b: 2", brief):
        assert looked.wait(60)
        looked.clear()
        assert looked.wait(60)
    assert "6 tables" in stream.getvalue()
    assert stream.getvalue().count("a: 1 | b: 2") == 1
    assert stream.getvalue().endswith("a: 1 | b: 2\n")


def test_a_file_gets_plain_lines(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress, "PLAIN_EVERY", 0.01)
    stream, looked = io.StringIO(), threading.Event()
    counter = iter(range(100000))

    def look() -> str:
        if next(counter) > 3:
            looked.set()
        return "tasks 1/4"

    with Progress(stream).during("trends", look):
        assert looked.wait(60)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "trends ..."
    assert all("\r" not in line for line in lines)
    assert lines[-1].startswith("trends: ")


def test_quiet_is_quiet():
    stream = Terminal()
    shown = Progress(stream, quiet=True)
    with shown.during("trends", lambda: "x"):
        shown.say("y")
    assert stream.getvalue() == ""


def test_a_failure_is_told_and_passes_through():
    stream = io.StringIO()
    with pytest.raises(KeyError), Progress(stream).during("trends"):
        raise KeyError
    assert "failed after" in stream.getvalue()


def test_a_look_that_fails_does_no_harm():
    def look() -> str:
        raise RuntimeError("the session is gone")

    stream = io.StringIO()
    with Progress(stream).during("trends", look):
        pass
    assert stream.getvalue().splitlines()[-1].startswith("trends: ")


def test_numbers_are_read_at_a_glance():
    assert [number(value) for value in (0, 950, 12345, 4_560_000, 2.5e9)] == ["0", "950", "12.3k", "4.56M", "2.5G"]


def test_the_line_of_a_job():
    assert work_line(Work(1, 3, 5, 8, 2_000_000), 4.0) == "stages 1/3 · tasks 5/8 · 2M rows · 500k rows/s"
    assert work_line(Work(), 4.0) == ""
    assert work_line(Work(1, 3, 5, 8, bytes=6_000_000), 4.0) == "stages 1/3 · tasks 5/8 · 6MB read · 1.5MB/s"


def test_spans_are_read_at_a_glance():
    told = [duration(seconds) for seconds in (0, 1.25, 119, 120, 5400, 19_000, 86_400 * 312)]
    assert told == ["0.0 s", "1.2 s", "119.0 s", "2 min", "90 min", "5.28 h", "312 d"]


def test_the_line_of_a_stream_has_batch_rate_and_lag():
    told = {
        "batchId": 7, "numInputRows": 1500, "processedRowsPerSecond": 3000.0,
        "eventTime": {"max": "2030-01-02T11:59:58.500Z", "watermark": "2030-01-02T11:50:00.000Z"},
    }  # fmt: skip
    assert line("trends", told) == "trends: batch 7 · 1.5k rows · 3k rows/s · lag 1.5 s"
    assert line("trends", {"batchId": 8, "numInputRows": 0}) == "trends: batch 8 · 0 rows"
    assert "lag 0.0 s" in line("x", {"eventTime": {"max": "soon"}})


def line(name: str, told: dict[str, Any]) -> str:
    return stream_line(batch_of(name, told, NOON))


class Query:
    """A streaming query, as far as progress asks it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recentProgress: list[dict[str, Any]] = []

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        return self.recentProgress[-1] if self.recentProgress else None

    def tell(self, batch: int, dropped: int, seconds: float = 1.0) -> None:
        self.recentProgress.append(
            {
                "batchId": batch, "numInputRows": 100, "processedRowsPerSecond": 100 / seconds,
                "batchDuration": seconds * 1000,
                "stateOperators": [{"numRowsDroppedByWatermark": dropped}, {"numRowsDroppedByWatermark": 0}],
            }
        )  # fmt: skip


def test_events_that_came_too_late_are_counted_over_all_batches_each_once():
    query = Query("trends_hour")
    watch = StreamWatch([query])
    watch.count()
    assert (watch.look(), watch.missed()) == ("", {"trends_hour": Missed()})
    query.tell(0, 0)
    watch.count()
    for batch, dropped in ((1, 5), (2, 7), (3, 0), (3, 4), (3, 0)):  # Spark tells of a batch before it has rows, too
        query.tell(batch, dropped)
    assert watch.look() == "trends_hour: batch 3 · 100 rows · 100 rows/s · 16 too late"
    assert watch.look() == watch.brief()
    assert watch.missed() == {"trends_hour": Missed(too_late=16)}


def test_chunks_that_were_left_out_are_counted_and_the_first_of_them_named():
    query = Query("trends_hour")
    watch = StreamWatch([query])
    for batch, numbers in ((0, [3, 4]), (0, [3, 4]), (1, []), (2, list(range(20, 32)))):
        query.tell(batch, 0)
        named = {"chunks": len(numbers), "named": numbers[: progress.MOST_NAMED]}
        query.recentProgress[-1]["observedMetrics"] = {progress.SKIPPED: named}
    assert watch.look() == "trends_hour: batch 2 · 100 rows · 100 rows/s · 14 chunks skipped"
    missed = watch.missed()["trends_hour"]
    assert (missed.skipped, missed.too_late, missed.named) == (14, 0, (3, 4, *range(20, 28)))


def test_one_line_tells_of_all_streams_and_names_the_slowest():
    queries = [Query(name) for name in ("trends_minute", "trends_hour", "trends_day", "popularity", "cache_rates")]
    for place, query in enumerate(queries):
        query.tell(place, place, seconds=150.0 if place == 3 else 0.5)
    told = StreamWatch(queries).brief()
    assert told == "5 tables · 500 rows · 801 rows/s · slowest popularity 2.5 min · 10 too late"
    assert len(f"streams 86400 s · {told}") < progress.WIDTH


def test_a_connect_session_has_one_handler_however_many_looks_there_were():
    class Session:
        def __init__(self) -> None:
            self.handlers: list[Any] = []

        def registerProgressHandler(self, handler: Any) -> None:
            self.handlers.append(handler)

    Session.__module__ = "pyspark.sql.connect.session"
    session: Any = Session()

    def run(operation: str) -> None:
        stage = SimpleNamespace(done=True, num_completed_tasks=2, num_tasks=2, num_bytes_read=1000)
        for handler in session.handlers:
            handler(stages=[stage], inflight_tasks=0, operation_id=operation, done=False)
            handler(stages=[stage], inflight_tasks=0, operation_id=operation, done=True)

    for number_of_job in range(3):
        look = progress.job_look(session, clock=iter((0.0, 1.0)).__next__)
        run(f"operation-{number_of_job}")
        assert look() == "stages 1/1 · tasks 2/2 · 1kB read · 1kB/s"
    assert len(session.handlers) == 1


def test_stages_tasks_and_rows_of_a_job_are_counted(spark: SparkSession, tmp_path: Path):
    spark.range(0, 20_000, 1, 4).write.parquet(str(tmp_path / "numbers"))
    look = progress.job_look(spark)
    assert spark.read.parquet(str(tmp_path / "numbers")).selectExpr("id % 7 AS k").distinct().count() == 7
    end = time.monotonic() + 60
    while "20k rows" not in look() and time.monotonic() < end:  # another thread of Spark's tells the store of stages
        time.sleep(0.05)
    assert "20k rows" in look()
    assert "stages" in look()
