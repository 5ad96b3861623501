"""Commands that read a table exit: no thread of Arrow is left to abort the process (exit 134) after its output."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from scale0_spark import tables

THREADS = (
    "import os, sys\n"
    "from scale0_spark.command import main\n"
    "main(sys.argv[1:], standalone_mode=False)\n"
    "names = [open(f'/proc/self/task/{each}/comm').read().strip() for each in os.listdir('/proc/self/task')]\n"
    "print('threads', sum(name != 'jemalloc_bg_thd' for name in names))\n"
)
"""Runs a command and prints how many threads the process has then; jemalloc's own knows nothing of Python."""


def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # numpy's are no harm
    return subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, env=environment)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    for name in ("popularity", "trends_hour"):
        tables.write(tmp_path, name, pa.table({"n": range(3000), "name": ["x"] * 3000}))
    (tmp_path / "trends_hour.json").unlink()  # so that the list reads it
    return tmp_path


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("words", [["tables"], ["tables", "popularity"]])
def test_reading_tables_leaves_no_threads(words: list[str], out: Path):
    done = run([sys.executable, "-c", THREADS, *words, "--out", str(out)])
    assert done.stdout.splitlines()[-1] == "threads 1", done.stderr


@pytest.mark.soak
@pytest.mark.timeout(1200)
def test_no_run_of_200_ends_with_an_abort(out: Path):
    command = [sys.executable, "-m", "scale0_core", "spark", "tables", "popularity", "--limit", "2", "--out", str(out)]
    assert [done.returncode for done in (run(command) for _ in range(200)) if done.returncode] == []
