"""Tables on disk: whole for every reader, and told of by a small JSON beside."""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import files
from scale0_core.cli.kit import NegativeError, UsageError
from scale0_spark import command, tables


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


NOON = datetime(2030, 1, 2, 12, tzinfo=timezone.utc)


def test_a_table_comes_back_as_it_was_written(tmp_path: Path):
    table = pa.table(
        {
            "window_start": pa.array([NOON, None], pa.timestamp("us", "UTC")),
            "service": ["a", None],
            "rate": [1.5, math.nan],
        }
    )
    entry = tables.write(tmp_path, "trends_hour", table, NOON)
    assert tables.read(tmp_path, "trends_hour").equals(table) or math.isnan(
        tables.read(tmp_path, "trends_hour")["rate"][1].as_py()
    )
    assert (entry.rows, entry.columns) == (2, ("window_start", "service", "rate"))
    told = json.loads((tmp_path / "trends_hour.json").read_text())
    assert told["schema"] == "scale0.table/2"
    assert told["rows"] == 2
    assert told["written"] == "2030-01-02T12:00:00+00:00"
    assert told["columns"][0] == {"name": "window_start", "type": "timestamp[us, tz=UTC]"}
    assert told["part"] == "newest"
    assert told["items"] == [
        {"window_start": "2030-01-02T12:00:00+00:00", "service": "a", "rate": 1.5},
        {"window_start": None, "service": None, "rate": None},
    ]
    assert tables.entries(tmp_path) == [entry]


def test_of_a_long_table_the_first_rows_stand_in_the_json(tmp_path: Path):
    entry = tables.write(tmp_path, "popularity", pa.table({"rank": range(5000)}))
    assert (entry.rows, entry.part) == (5000, "first")
    assert [item["rank"] for item in entry.items] == list(range(tables.MOST_ITEMS))
    assert tables.entries(tmp_path) == [entry]


def test_of_a_long_table_by_time_the_newest_rows_stand_in_the_json_in_the_order_of_the_table(tmp_path: Path):
    """As that of capacity, which has one service after the other."""
    hours = [NOON + timedelta(hours=hour) for hour in range(3000)]
    columns = {"service": ["a"] * 3000 + ["b"] * 3000, "window_start": pa.array(hours * 2, pa.timestamp("us", "UTC"))}
    entry = tables.write(tmp_path, "capacity", pa.table(columns))
    each = tables.MOST_ITEMS // 2
    assert (entry.rows, entry.part, len(entry.items)) == (6000, "newest", 2 * each)
    newest = [moment.isoformat() for moment in hours[-each:]]
    wanted = [(service, moment) for service in "ab" for moment in newest]
    assert [(item["service"], item["window_start"]) for item in entry.items] == wanted
    assert tables.entries(tmp_path) == [entry]


def test_a_reader_never_sees_a_table_that_is_not_whole(tmp_path: Path):
    """Each table has one number in all its rows; a reader that sees two, or none, saw something half written."""
    tables.write(tmp_path, "popularity", pa.table({"n": [0] * 1000}))
    ended = threading.Event()

    def write() -> None:
        for number in range(1, 100):
            tables.write(tmp_path, "popularity", pa.table({"n": [number] * 1000}))
        ended.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not ended.is_set():
        numbers = set(tables.read(tmp_path, "popularity")["n"].to_pylist())
        assert len(numbers) == 1
        assert len(tables.entries(tmp_path)) == 1
        seen |= numbers
    writer.join()
    assert set(tables.read(tmp_path, "popularity")["n"].to_pylist()) == {99}
    assert seen
    assert names(tmp_path) == ["popularity", "popularity.json"]
    assert names(tmp_path / "popularity") == ["popularity.parquet"]


def test_a_write_that_fails_leaves_the_old_table_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pyarrow.parquet as pq

    tables.write(tmp_path, "popularity", pa.table({"n": [1]}))

    def fail(table: pa.Table, file: object, **_: object) -> None:
        file.write(b"PAR1")  # type: ignore[attr-defined]
        raise OSError("no space left")

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(OSError, match="no space"):
        tables.write(tmp_path, "popularity", pa.table({"n": [2]}))
    assert tables.read(tmp_path, "popularity")["n"].to_pylist() == [1]
    assert names(tmp_path / "popularity") == ["popularity.parquet"]


def test_what_a_killed_write_left_behind_is_removed_by_a_later_one(tmp_path: Path):
    tables.write(tmp_path, "popularity", pa.table({"n": [1]}))
    folder = tmp_path / "popularity"
    leftovers = [folder / ".popularity.parquet-old", tmp_path / ".popularity.json-old"]
    others = [folder / ".popularity.parquet-young", tmp_path / ".capacity.json-old"]
    for path in (*leftovers, *others):
        path.write_bytes(b"half")
        age = 0.0 if path.name.endswith("young") else files.LEFT_BEHIND + 1
        os.utime(path, (time.time() - age,) * 2)
    tables.write(tmp_path, "popularity", pa.table({"n": [2]}))
    assert [path.exists() for path in leftovers] == [False, False]
    assert [path.exists() for path in others] == [True, True]


def test_a_json_that_is_of_the_table_before_is_not_believed(tmp_path: Path):
    """As between the two renames of a write, or after a crash there."""
    tables.write(tmp_path, "popularity", pa.table({"n": [1]}))
    before = (tmp_path / "popularity.json").read_bytes()
    entry = tables.write(tmp_path, "popularity", pa.table({"n": [2]}))
    (tmp_path / "popularity.json").write_bytes(before)
    (found,) = tables.entries(tmp_path)
    assert (found.rows, found.items) == (1, ({"n": 2},))
    assert found.items == entry.items
    told = json.loads(before)
    assert told["file"] == "popularity/popularity.parquet"
    assert (tmp_path / told["file"]).exists()


def test_threads_that_write_at_once_leave_the_umask_and_the_rights_alone(tmp_path: Path):
    mask = os.umask(0o027)
    try:
        with ThreadPoolExecutor(6) as pool:
            for number in range(20):
                list(pool.map(partial(tables.write, tmp_path, table=pa.table({"n": [number]})), "abcdef"))
    finally:
        left = os.umask(mask)
    assert left == 0o027
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*.*")} == {0o640}


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "a b"])
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str):
    with pytest.raises(UsageError):
        tables.read(tmp_path, name)


def test_a_table_that_is_not_there(tmp_path: Path):
    assert tables.entries(tmp_path) == []
    assert tables.entries(tmp_path / "nowhere") == []
    with pytest.raises(NegativeError):
        tables.read(tmp_path, "trends_day")


def test_a_damaged_table_is_said_to_be_damaged(tmp_path: Path):
    tables.write(tmp_path, "popularity", pa.table({"n": [1]}))
    (tmp_path / "popularity" / "popularity.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(tables.TableDamagedError):
        tables.read(tmp_path, "popularity")


def test_beside_a_damaged_table_the_others_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    for name in ("anomalies", "popularity", "trends_day"):
        tables.write(tmp_path, name, pa.table({"n": [1]}))
    (tmp_path / "popularity" / "popularity.parquet").write_bytes(b"PAR1 not really")
    found = tables.survey(tmp_path)
    assert ([entry.name for entry in found.entries], list(found.damaged)) == (
        ["anomalies", "trends_day"],
        ["popularity"],
    )
    assert tables.entries(tmp_path) == found.entries
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("the table popularity is left out: ")
    assert line.endswith("; make it anew: run the job with --replace")
    listed = CliRunner().invoke(command.main, ["tables", "--out", str(tmp_path), "-o", "json"])
    assert [item["table"] for item in json.loads(listed.stdout)["items"]] == ["anomalies", "trends_day"]
    assert (listed.stderr, listed.exit_code) == (f"{line}\n", 1)


@settings(deadline=None)
@given(st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(
    lambda value: json.dumps(value).encode()
))  # fmt: skip
def test_whatever_stands_in_the_json_the_table_is_listed(tmp_path_factory: pytest.TempPathFactory, text: bytes):
    folder = tmp_path_factory.mktemp("tables")
    wanted = tables.write(folder, "popularity", pa.table({"n": [1]}))
    (folder / "popularity.json").write_bytes(text)
    entry = tables.entries(folder)[0]
    assert (entry.rows, entry.columns, entry.items) == (wanted.rows, wanted.columns, wanted.items)
