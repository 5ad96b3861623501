"""Files that are there whole or not at all; durable ones survive a power cut."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scale0_core.parts import files


def steps_of(monkeypatch: pytest.MonkeyPatch, *, fail_at: str = "") -> list[str]:
    """Note what reaches the disk, in order; one of the calls may fail."""
    steps: list[str] = []

    def noted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            if name == fail_at:
                raise OSError(28, "No space left on device")
            steps.append(name)
            return real(*arguments)

        return call

    for place, name in ((os, "fsync"), (os, "fdatasync"), (Path, "replace")):
        monkeypatch.setattr(place, name, noted(name, getattr(place, name)))
    return steps


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_durable_file_is_on_disk_before_its_name_and_both_when_it_is_written(tmp_path: Path, monkeypatch):
    steps = steps_of(monkeypatch)
    files.write_atomically(tmp_path / "a" / "b" / "state", "text", durable=True)
    assert steps == ["fsync", "fsync", "fdatasync", "replace", "fsync"], "two folders, the bytes, the name"
    assert (tmp_path / "a" / "b" / "state").read_text() == "text"


def test_what_need_not_be_durable_costs_no_sync(tmp_path: Path, monkeypatch):
    steps = steps_of(monkeypatch)
    files.write_atomically(tmp_path / "a" / "cache", b"bytes", durable=False)
    assert steps == ["replace"]


@pytest.mark.parametrize("fail_at", ["fdatasync", "replace"])
def test_after_an_error_the_old_file_is_there_and_nothing_else(tmp_path: Path, monkeypatch, fail_at: str):
    path = tmp_path / "state"
    files.write_atomically(path, "old", durable=True)
    with monkeypatch.context() as patch:
        steps_of(patch, fail_at=fail_at)
        with pytest.raises(OSError, match="No space"):
            files.write_atomically(path, "new", durable=True)
    assert (path.read_text(), names(tmp_path)) == ("old", ["state"])


def test_an_error_of_the_writer_leaves_the_old_file(tmp_path: Path):
    path = tmp_path / "state"
    files.write_atomically(path, "old", durable=False)
    with pytest.raises(TypeError), files.new_file(path, durable=False) as file:
        file.writelines([b"ne", None])  # type: ignore[list-item]
    assert (path.read_text(), names(tmp_path)) == ("old", ["state"])


def test_files_and_their_folders_are_private_unless_said_otherwise(tmp_path: Path):
    files.write_atomically(tmp_path / "own" / "state", "", durable=False)
    files.write_atomically(tmp_path / "shared" / "table", "", durable=False, mode=0o644)
    rights = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert rights == {"own": 0o700, "state": 0o600, "shared": 0o755, "table": 0o644}


@pytest.mark.parametrize("name", ["x" * 255, "ü" * 127, "\U0001f600" * 63])
def test_the_longest_names_can_be_written(tmp_path: Path, name: str):
    files.write_atomically(tmp_path / name, "text", durable=False)
    assert names(tmp_path) == [name]


def test_what_a_killed_write_left_is_removed_by_a_later_one(tmp_path: Path):
    old, young, other = (tmp_path / name for name in (".state-old", ".state-young", ".other-old"))
    for path in (old, young, other):
        path.write_bytes(b"half")
        age = 0.0 if path is young else files.LEFT_BEHIND + 1
        os.utime(path, (time.time() - age,) * 2)
    files.write_atomically(tmp_path / "state", "text", durable=False)
    assert names(tmp_path) == [".other-old", ".state-young", "state"]


def test_all_of_the_data_is_written_where_the_system_takes_it_in_pieces(tmp_path: Path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda number, data, at: real(number, data[:3], at))
    with (tmp_path / "file").open("w+b") as file:
        files.write_all(file.fileno(), b"0123456789", 2)
        assert os.pread(file.fileno(), 20, 0) == b"\0\x000123456789"


@pytest.mark.parametrize("links", [True, False])
def test_a_file_in_a_new_place_replaces_none(tmp_path: Path, monkeypatch, links: bool):
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(95, "Operation not supported")

    if not links:  # as on some file systems
        monkeypatch.setattr("os.link", refuse)
    (tmp_path / "fresh").write_text("new")
    (tmp_path / "there").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        files.put_in_new_place(tmp_path / "fresh", tmp_path / "there", durable=True)
    assert names(tmp_path) == ["fresh", "there"]
    files.put_in_new_place(tmp_path / "fresh", tmp_path / "free", durable=True)
    assert (names(tmp_path), (tmp_path / "free").read_text()) == (["free", "there"], "new")
