"""Kill -9 right after a table was said to be written, on a slow disk and on a full one: it is there, and whole."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from scale0_core.cli.kit import NegativeError
from scale0_core.testing import SlowDisk, killed_program
from scale0_spark import tables

ROWS = 500

WRITER = """
import sys
from pathlib import Path
import pyarrow as pa
from scale0_spark import tables
{plant}
out, number = Path(sys.argv[1]), int(sys.argv[2])
while True:
    number += 1
    try:
        tables.write(out, "popularity", pa.table({{"n": [number] * {rows}}}))
    except OSError as error:
        print("refused", number, error.strerror)
    else:
        print("done", number)
"""

TOO_EARLY = """
import contextlib, threading
@contextlib.contextmanager
def later(path, beside=tables.beside):
    import io
    whole = io.BytesIO()
    whole.fileno = lambda: 0
    yield whole
    def write():
        with beside(path) as file:
            file.write(whole.getvalue())
    threading.Thread(target=write, daemon=True).start()
tables.beside = later
"""
"""Says that a table is written while it is in memory."""

IN_PLACE = """
import contextlib, time
@contextlib.contextmanager
def in_place(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        yield file
        time.sleep(0.05 if path.suffix == ".parquet" else 0)
tables.beside = in_place
"""
"""Writes a table where readers see it."""


def rounds(tmp_path: Path, count: int, plant: str = "") -> int:
    """Kill a writer again and again, and return how many tables it wrote."""
    chance, number = random.Random(count), 0
    source = WRITER.format(plant=plant, rows=ROWS)
    with SlowDisk(tmp_path / "disk", write_ms=5, sync_ms=5) as disk:
        for each in range(1, count + 1):
            wanted = chance.randint(1, 3)
            if each % 3 == 0:
                disk.change(capacity=disk.used + 700)

            def enough(lines: list[str], wanted: int = wanted) -> bool:
                if len(lines) < wanted:
                    return False
                time.sleep(chance.uniform(0, 0.03))  # the end comes at any moment of the next write, or right before it
                return True

            lines = killed_program(source, [disk.folder, number], disk.environment, enough)
            disk.make_room()
            done = [int(line.split()[1]) for line in lines if line.startswith("done")]
            assert done or each % 3 == 0, lines
            last = max([number, *done])
            number = check(disk.folder, last)
    return number


def check(out: Path, last: int) -> int:
    """Look for the last table that was said to be written, or the one that was on its way; return which it is."""
    try:
        values = set(tables.read(out, "popularity").column("n").to_pylist())
        (entry,) = tables.survey(out).entries
    except (NegativeError, tables.TableDamagedError, ValueError) as error:
        raise AssertionError(f"the table cannot be read: {error}") from error
    assert len(values) == 1, f"the table is of two writes: {values}"
    (value,) = values
    assert entry.rows == ROWS
    assert value >= last, f"{last} was said to be written, {value} is there"
    return int(value)


@pytest.mark.parametrize(
    "count", [3, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["short", "campaign"]
)
def test_tables_that_were_said_to_be_written_survive_kill_9(tmp_path: Path, count: int):
    assert rounds(tmp_path, count) >= count // 2


@pytest.mark.parametrize("plant", [TOO_EARLY, IN_PLACE], ids=["said too early", "written in place"])
def test_a_table_that_is_announced_too_early_or_written_in_place_is_caught_within_5_rounds(tmp_path: Path, plant: str):
    with pytest.raises(AssertionError, match=r"said to be written|cannot be read"):
        rounds(tmp_path, 5, plant)


def test_a_full_disk_leaves_the_table_that_was_there(tmp_path: Path):
    with SlowDisk(tmp_path / "disk") as disk:
        source = WRITER.format(plant="", rows=ROWS)
        killed_program(source, [disk.folder, 0], disk.environment, lambda lines: len(lines) == 1)
        number = check(disk.folder, 1)
        disk.change(capacity=disk.used + 100)
        lines = killed_program(
            source, [disk.folder, number], disk.environment, lambda lines: lines[-1].startswith("refused")
        )
        assert "No space left" in lines[-1]
        assert check(disk.folder, number) == number
        assert not list(disk.folder.rglob(".popularity*"))[2:], "at most one for each kill"
