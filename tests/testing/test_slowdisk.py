"""SlowDisk: a real process meets a disk that is slow, full, and has room again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scale0_core.testing import SlowDisk

pytestmark = pytest.mark.real


def run(disk: SlowDisk, code: str) -> str:
    environment = {**os.environ, **disk.environment}
    done = subprocess.run(
        [sys.executable, "-c", f"import os, time\nos.chdir({str(disk.folder)!r})\n{code}"],
        env=environment, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return done.stdout.strip()


TIMED = """
file = os.open("file", os.O_WRONLY | os.O_CREAT)
begin = time.monotonic()
os.write(file, b"x")
written = time.monotonic()
os.fsync(file)
print(round((written - begin) * 1000), round((time.monotonic() - written) * 1000))
"""


def test_writes_and_syncs_of_the_folder_take_longer(tmp_path: Path):
    with SlowDisk(tmp_path / "disk", write_ms=30, sync_ms=60) as disk:
        write_ms, sync_ms = map(int, run(disk, TIMED).split())
        assert write_ms >= 30
        assert sync_ms >= 60


def test_other_folders_keep_their_speed(tmp_path: Path):
    with SlowDisk(tmp_path / "disk", write_ms=5000, sync_ms=5000) as disk:
        begin = time.monotonic()
        run(disk, f"os.chdir({str(tmp_path)!r})\n{TIMED}")
        assert time.monotonic() - begin < 5


FILL = """
file = os.open("file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
print(os.write(file, bytes({size})))
try:
    print(os.write(file, bytes({size})))
except OSError as error:
    print(error.strerror)
"""


@pytest.mark.parametrize("size", [60, 100])
def test_a_write_is_cut_short_where_the_disk_is_full(tmp_path: Path, size: int):
    with SlowDisk(tmp_path / "disk", capacity=100) as disk:
        second = "40" if size == 60 else "No space left on device"
        assert run(disk, FILL.format(size=size)).split("\n") == [str(size), second]
        assert disk.used == 100


APPEND = """
try:
    os.write(os.open("new", os.O_WRONLY | os.O_CREAT | os.O_APPEND), b"x")
except OSError as error:
    print(error.strerror)
"""
FULL = "No space left on device"


def test_room_can_be_made_by_removing_files_or_by_the_test(tmp_path: Path):
    with SlowDisk(tmp_path / "disk", capacity=100) as disk:
        (disk.folder / "old").write_bytes(bytes(100))
        assert run(disk, APPEND) == FULL
        (disk.folder / "old").unlink()
        assert run(disk, APPEND) == ""
        disk.change(capacity=1)
        assert run(disk, APPEND) == FULL
        disk.make_room()
        assert run(disk, APPEND) == ""
        assert (disk.folder / "new").read_bytes() == b"xx"
