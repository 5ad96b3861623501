"""A run goes into the tables that are there: other windows stay, half windows replace none, and no row is lost."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from scale0_spark import command, jobs, running, tables
from scale0_spark.merging import SHAPES, NoSuccessorError, Shape, merged, missing, reading, united
from scale0_spark.tables import Coverage, RowsLostError

NOON = datetime(2026, 1, 10, 12, tzinfo=timezone.utc)
HOUR = timedelta(hours=1)
HOURLY = SHAPES["trends_hour"]
SCALE0 = shutil.which("scale0", path=str(Path(sys.executable).parent)) or "scale0"


def hourly(*hours: int, value: int = 0, service: str | None = "s") -> pa.Table:
    """Make rows of hours from NOON on."""
    times = pa.array([NOON + hour * HOUR for hour in hours], pa.timestamp("us", "UTC"))
    columns = {"window_start": times, "service": pa.array([service] * len(hours), pa.string())}
    kinds, requests = pa.array(["task"] * len(hours), pa.string()), pa.array([value] * len(hours), pa.int64())
    return pa.table({**columns, "kind": kinds, "requests": requests})


def found(table: pa.Table) -> dict[int, int]:
    return {(row["window_start"] - NOON) // HOUR: row["requests"] for row in table.to_pylist()}


def test_every_table_has_a_shape():
    assert set(SHAPES) == set(tables.TABLES)
    assert {name for name, shape in SHAPES.items() if shape.every} >= {"capacity", "anomalies", "trends_second"}


def test_a_span_is_computed_in_whole_windows_up_to_those_that_begin_with_it():
    just, inside = NOON, NOON + timedelta(microseconds=1)
    read = reading(HOURLY, Coverage(just, just + 2 * HOUR), None)
    assert (read.since, read.until) == (NOON, NOON + 2 * HOUR)
    read = reading(HOURLY, Coverage(inside, inside + HOUR), None)
    assert (read.since, read.until) == (NOON, NOON + 2 * HOUR)
    read = reading(SHAPES["trends_day"], Coverage(inside, None), None)
    assert (read.since, read.until) == (NOON - 12 * HOUR, None)
    assert reading(HOURLY, Coverage(), None) == Coverage()


def test_what_depends_on_all_events_is_made_of_all_that_the_table_has_and_of_the_span():
    before = Coverage(NOON - 9 * HOUR, NOON)
    read = reading(SHAPES["popularity"], Coverage(NOON - HOUR, NOON + HOUR), before)
    assert (read.since, read.until) == (NOON - 9 * HOUR, NOON + HOUR)
    assert reading(SHAPES["popularity"], Coverage(NOON, None), Coverage()).since is None
    assert reading(SHAPES["popularity"], Coverage(NOON, None), None).since == NOON
    assert reading(HOURLY, Coverage(NOON, None), before).since == NOON


def test_windows_of_the_span_are_replaced_and_all_others_stay():
    before = (hourly(0, 1, 2, 3, 4), Coverage(first=date(2026, 1, 10)))
    read = Coverage(NOON + HOUR, NOON + 3 * HOUR, date(2026, 1, 10))
    into = merged(HOURLY, before, hourly(1, 2, value=7), read)
    assert found(into.table) == {0: 0, 1: 7, 2: 7, 3: 0, 4: 0}
    assert into.table.column("window_start").to_pylist() == [NOON + hour * HOUR for hour in range(5)]
    assert (into.kept, into.lost, into.gone) == (3, 0, False)
    assert into.coverage == Coverage(first=date(2026, 1, 10))


def test_a_span_without_events_changes_nothing():
    before = (hourly(0, 1), Coverage(first=date(2026, 1, 10)))
    into = merged(HOURLY, before, hourly(), Coverage(NOON + 99 * HOUR, None, date(2026, 1, 10)))
    assert into.table.equals(before[0])
    assert not into.lost


def test_rows_in_the_span_that_nothing_replaces_are_lost_and_counted():
    before = (hourly(0, 1, 2), Coverage(first=date(2026, 1, 10)))
    into = merged(HOURLY, before, hourly(1), Coverage(NOON + HOUR, None, date(2026, 1, 10)))
    assert (into.lost, into.gone) == (1, False)


def test_rows_are_told_apart_by_all_keys_and_null_is_one_of_them():
    before = pa.concat_tables([hourly(0, service=None), hourly(0, service="a")])
    assert missing(HOURLY.keys, before, hourly(0, service="a")) == 1
    assert missing(HOURLY.keys, before, before) == 0
    assert missing(HOURLY.keys, hourly(), hourly(0)) == 0


def test_a_table_in_which_rows_come_and_go_may_have_as_many_but_others():
    before = (hourly(0, 1), Coverage(first=date(2026, 1, 10)))
    assert merged(HOURLY, before, hourly(2, 3, 4), Coverage(None, None, date(2026, 1, 10))).lost == 2


@pytest.mark.parametrize("noted", [date(2026, 1, 9), None], ids=["noted", "by an older version"])
def test_what_a_table_tells_of_events_that_are_no_longer_stored_stays(noted: date | None):
    """The quota removed the 9th and some of the 10th: of that day the old rows are the whole ones."""
    before = (hourly(-24, 0, 1, 12), Coverage(first=noted))
    into = merged(HOURLY, before, hourly(1, 2, 12, value=7), Coverage(None, None, date(2026, 1, 10)))
    assert found(into.table) == {-24: 0, 0: 0, 1: 0, 2: 7, 12: 7}
    assert (into.lost, into.gone) == (0, True)
    assert into.coverage.first == (noted or date(2026, 1, 10))


def test_hours_that_can_no_longer_be_compared_keep_what_was_found_in_them():
    before = (hourly(0, 24 * 8), Coverage(first=date(2026, 1, 1)))
    read = Coverage(None, None, date(2026, 1, 10))
    assert found(merged(HOURLY, before, hourly(), read, timedelta(weeks=1)).table) == {0: 0}


def test_of_a_table_that_is_not_by_time_rows_go_with_their_events():
    songs = Shape(("song",), whole=True)
    before = (pa.table({"song": ["a", "b"]}), Coverage(first=date(2026, 1, 1)))
    into = merged(songs, before, pa.table({"song": ["b"]}), Coverage(None, None, date(2026, 1, 2)))
    assert (into.lost, into.gone) == (1, True)
    into = merged(songs, before, pa.table({"song": ["b"]}), Coverage(None, None, date(2026, 1, 1)))
    assert (into.lost, into.gone) == (1, False)
    nothing = merged(songs, before, pa.table({"song": pa.array([], pa.string())}), Coverage())
    assert (nothing.lost, nothing.gone) == (2, False), "without any event of it, it is another folder"


def test_a_table_of_other_columns_is_not_merged_into():
    with pytest.raises(NoSuccessorError):
        merged(HOURLY, (hourly(0).drop_columns("requests"), Coverage()), hourly(0), Coverage())


def test_spans_are_united():
    one, other = Coverage(NOON, NOON + HOUR, date(2026, 1, 2)), Coverage(NOON - HOUR, NOON, None)
    assert united(one, other) == Coverage(NOON - HOUR, NOON + HOUR, date(2026, 1, 2))
    assert united(one, Coverage()) == Coverage(first=date(2026, 1, 2))


def test_what_a_table_was_made_of_is_noted_in_it_and_in_the_json(tmp_path: Path):
    noted = Coverage(NOON, None, date(2026, 1, 2))
    assert tables.coverage(tmp_path, "popularity") is None
    tables.write(tmp_path, "popularity", pa.table({"song": ["a"]}), coverage=noted)
    assert tables.coverage(tmp_path, "popularity") == noted
    told = {"since": "2026-01-10T12:00:00+00:00", "until": None, "first": "2026-01-02"}
    assert (
        f'"coverage": {str(told).replace(chr(39), chr(34)).replace("None", "null")}'
        in (tmp_path / "popularity.json").read_text()
    )
    tables.write(tmp_path, "popularity", pa.table({"song": ["a"]}))
    assert tables.coverage(tmp_path, "popularity") == Coverage()


# --- by the command, with Spark -----------------------------------------------------------------------------------


def generate(folder: Path, *more: str, rows: int = 20_000, days: int = 10) -> Path:
    words = [SCALE0, "telemetry", "generate", "--rows", str(rows), "--days", str(days), "--brokers", "2", "--quiet"]
    done = subprocess.run(
        [*words, "--out", str(folder), *more], check=False, capture_output=True, text=True, timeout=120,
        env=dict(os.environ),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def everything(out: Path) -> dict[str, list[dict[str, Any]]]:
    return {name: tables.read(out, name).to_pylist() for name in sorted(tables.TABLES) if (out / name).is_dir()}


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def refused(*words: str) -> Result:
    return CliRunner().invoke(command.main, words)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_runs_of_spans_leave_the_tables_that_a_run_of_everything_makes(run_here: Callable[..., Result], tmp_path: Path):
    events, whole, out = generate(tmp_path / "events"), tmp_path / "whole", tmp_path / "out"
    place = ("--events", str(events), "--quiet")
    run_here("run", *place, "--out", str(whole))
    run_here("run", *place, "--out", str(out))
    wanted = everything(whole)
    assert all(wanted[name] for name in ("trends_day", "popularity", "availability", "capacity", "flapping"))

    for span in (
        ("--since", "7d"),  # generated events are of January
        ("--since", "2026-01-08T13:07:11"),
        ("--since", "2026-01-03T10:59", "--until", "2026-01-05T17:01:30"),
        ("--until", "2026-01-04T23:59:59"),
    ):
        run_here("run", *place, "--out", str(out), *span)
        assert_same(everything(out), wanted, span)


def assert_same(got: dict[str, list[dict[str, Any]]], wanted: dict[str, list[dict[str, Any]]], span: object) -> None:
    assert got.keys() == wanted.keys()
    for name, rows in wanted.items():
        assert len(got[name]) == len(rows), (name, span)
        for one, other in zip(got[name], rows, strict=True):
            exact = {key: value for key, value in other.items() if not isinstance(value, float)}
            assert {key: one[key] for key in exact} == exact, (name, span)
            numbers = {key: value for key, value in other.items() if isinstance(value, float)}
            assert {key: one[key] for key in numbers} == pytest.approx(numbers, rel=1e-6), (name, span, one)


@pytest.mark.timeout(900)
def test_a_run_that_would_lose_rows_changes_nothing_until_it_may_replace(
    run_here: Callable[..., Result], tmp_path: Path
):
    events, others, out = generate(tmp_path / "events"), tmp_path / "others", tmp_path / "out"
    generate(others, "--seed", "5", rows=500, days=2)
    run_here("trends", "--events", str(events), "--out", str(out), "--quiet")
    run_here("popularity", "--events", str(events), "--out", str(out), "--quiet")
    before, rows = files(out), len(tables.read(out, "trends_hour"))

    for job in ("trends", "popularity"):
        done = refused(job, "--events", str(others), "--out", str(out), "--quiet")
        assert isinstance(done.exception, RowsLostError)
        assert done.exception.exit_code == 1
        assert "would lose" in done.exception.problem.what
        assert "--replace" in done.exception.problem.remedy
        assert files(out) == before

    run_here("trends", "--events", str(others), "--out", str(out), "--quiet", "--replace")
    assert 0 < len(tables.read(out, "trends_hour")) < rows
    assert tables.read(out, "popularity").num_rows, "only what was run is replaced"


@pytest.mark.timeout(900)
def test_a_stream_with_a_new_checkpoint_that_would_lose_rows_changes_nothing_until_it_may_replace(
    run_here: Callable[..., Result], tmp_path: Path
):
    events, others, out = generate(tmp_path / "events"), tmp_path / "others", tmp_path / "out"
    generate(others, "--seed", "5", rows=500, days=2)
    words = ("--out", str(out), "--quiet", "--once", "--tables", "trends_day,popularity")
    run_here("run", "--events", str(events), "--out", str(out), "--quiet")
    run_here("stream", "--events", str(events), *words)  # of the same events: nothing is lost
    tables_then = everything(out)

    shutil.rmtree(out / running.CHECKPOINTS)
    done = refused("stream", "--events", str(others), *words)
    assert isinstance(done.exception, RowsLostError)
    assert "would lose" in done.exception.problem.why
    assert "--replace" in done.exception.problem.remedy
    assert everything(out) == tables_then

    run_here("stream", "--events", str(others), *words, "--replace")
    assert len(tables.read(out, "popularity")) < len(tables_then["popularity"])


def test_a_job_that_fails_keeps_what_the_others_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The tables of the jobs before it are written, and the error is raised."""
    made = running._Result(jobs.JOBS["trends"], "trends_hour", Coverage(), hourly(0))
    failure = running.JobError("the job capacity failed", "", "", "")
    monkeypatch.setattr(running, "_computed", lambda *_, **__: ([made], failure))
    monkeypatch.setattr(running, "session", lambda *_: __import__("contextlib").nullcontext())
    (tmp_path / "events").mkdir()
    with pytest.raises(running.JobError):
        running.run_jobs(
            ["trends", "capacity"], running.Span(tmp_path / "events"), tmp_path, running.Place("local[1]"),
            running.Progress(quiet=True),
        )  # fmt: skip
    assert tables.read(tmp_path, "trends_hour").num_rows == 1
