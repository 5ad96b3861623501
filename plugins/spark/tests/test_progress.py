"""Lines about what Spark is doing."""

from __future__ import annotations

import io
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from scale0_spark import progress
from scale0_spark.progress import Progress, Work, number, stream_line, work_line

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


def test_the_line_of_a_stream_has_batch_rate_and_lag():
    told = {
        "batchId": 7, "numInputRows": 1500, "processedRowsPerSecond": 3000.0,
        "eventTime": {"max": "2030-01-02T11:59:58.500Z", "watermark": "2030-01-02T11:50:00.000Z"},
    }  # fmt: skip
    assert stream_line("trends", told, NOON) == "trends: batch 7 · 1.5k rows · 3k rows/s · lag 1.5 s"
    assert stream_line("trends", {"batchId": 8, "numInputRows": 0}, NOON) == "trends: batch 8 · 0 rows"
    assert "lag 0.0 s" in stream_line("x", {"eventTime": {"max": "soon"}}, NOON)


def test_stages_tasks_and_rows_of_a_job_are_counted(spark: SparkSession, tmp_path: Path):
    spark.range(0, 20_000, 1, 4).write.parquet(str(tmp_path / "numbers"))
    look = progress.job_look(spark)
    assert spark.read.parquet(str(tmp_path / "numbers")).selectExpr("id % 7 AS k").distinct().count() == 7
    end = time.monotonic() + 60
    while "20k rows" not in look() and time.monotonic() < end:  # another thread of Spark's tells the store of stages
        time.sleep(0.05)
    assert "20k rows" in look()
    assert "stages" in look()
