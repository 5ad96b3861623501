"""FolderDisk does in a real folder what SimDisk does in memory."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.parts import files
from scale0_core.parts.journal.disk import MOST_OPEN, Disk, FolderDisk
from scale0_core.testing import SimDisk

NAMES = st.sampled_from(["a", "b", "ab", "c", "d", "e"])
DATA = st.binary(max_size=20)
PLACES = st.integers(0, 30)

OPERATIONS = st.one_of(
    st.tuples(st.just("append"), NAMES, DATA),
    st.tuples(st.just("write"), NAMES, DATA.filter(bool), PLACES),
    st.tuples(st.just("allocate"), NAMES, PLACES),
    st.tuples(st.just("truncate"), NAMES, PLACES),
    st.tuples(st.just("fsync"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("read"), NAMES),
    st.tuples(st.just("read"), NAMES, PLACES, PLACES),
    st.tuples(st.just("size"), NAMES),
    st.tuples(st.just("exists"), NAMES),
    st.tuples(st.just("names"), st.sampled_from(["", "a"])),
)


def outcome(disk: Disk, operation: tuple[Any, ...]) -> Any:
    name, *arguments = operation
    methods = {
        "append": disk.append, "write": disk.write, "allocate": disk.allocate, "truncate": disk.truncate,
        "fsync": disk.fsync, "rename": disk.rename, "remove": disk.remove, "read": disk.read, "size": disk.size,
        "exists": disk.exists, "names": disk.names,
    }  # fmt: skip
    try:
        return methods[name](*arguments)
    except FileNotFoundError:
        return FileNotFoundError


@settings(max_examples=100, deadline=None)
@given(st.lists(OPERATIONS, max_size=40))
def test_a_folder_behaves_like_the_disk_of_the_simulation(operations):
    simulated = SimDisk()
    with tempfile.TemporaryDirectory() as folder:
        real = FolderDisk(Path(folder) / "disk")
        for operation in operations:
            assert outcome(real, operation) == outcome(simulated, operation), operation
        real.close()
        again = FolderDisk(Path(folder) / "disk")
        assert {name: again.read(name) for name in again.names()} == {n: simulated.read(n) for n in simulated.names()}


def test_nobody_else_can_look_into_it(tmp_path):
    folder = tmp_path / "above" / "disk"
    folder.mkdir(parents=True, mode=0o755)
    disk = FolderDisk(folder)
    disk.append("log", b"secret")
    disk.close()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["", ".", "..", "../other", "/etc/passwd", "a/b"])
def test_a_name_stays_in_the_folder(tmp_path, name):
    disk = FolderDisk(tmp_path / "disk")
    with pytest.raises(ValueError, match="not the name of a file"):
        disk.append(name, b"x")


def test_few_files_are_kept_open_and_none_after_close(tmp_path):
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    disk = FolderDisk(tmp_path / "disk")
    for number in range(20):
        disk.append(f"file {number}", b"x")
        disk.fsync(f"file {number}")
    assert descriptors() == before + MOST_OPEN
    disk.close()
    assert descriptors() == before


def test_a_write_that_is_taken_in_parts_is_finished(tmp_path, monkeypatch):
    write = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: write(descriptor, data[:3], offset))
    disk = FolderDisk(tmp_path / "disk")
    disk.append("log", b"0123456789")
    assert disk.append("log", b"abcdefg") == 10
    assert disk.read("log") == b"0123456789abcdefg"


def test_names_are_made_safe_with_the_files(tmp_path, monkeypatch):
    disk = FolderDisk(tmp_path / "disk")
    calls: list[str] = []
    sync = files.sync_path
    monkeypatch.setattr(files, "sync_path", lambda folder: (calls.append(folder.name), sync(folder)))
    disk.append("a", b"x")
    disk.fsync("a")
    assert calls == ["disk"]
    disk.append("a", b"x")
    disk.fsync("a")
    assert calls == ["disk"]  # once is enough
    disk.rename("a", "b")
    disk.remove("b")
    assert calls == ["disk"] * 3


def test_a_name_that_could_not_be_made_safe_is_tried_again(tmp_path, monkeypatch):
    disk = FolderDisk(tmp_path / "disk")
    sync, failures = files.sync_path, [OSError(5, "not now")]

    def unsteady(folder: Path) -> None:
        if failures:
            raise failures.pop()
        sync(folder)

    monkeypatch.setattr(files, "sync_path", unsteady)
    disk.append("a", b"x")
    with pytest.raises(OSError, match="not now"):
        disk.fsync("a")
    disk.fsync("a")
    assert disk.read("a") == b"x"
