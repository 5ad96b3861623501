"""What a journal does beside surviving: versions, limits, and commits that wait for others."""

from __future__ import annotations

import errno
from zlib import crc32

import pytest

from scale0_core.parts.journal import Committer, OtherVersionError, Told
from scale0_core.parts.journal.frames import start_of_sum
from scale0_core.testing import SimDisk

from .key_values import Put, Record, a_journal


def put(version: int, size: int = 1) -> list[Record]:
    return [Put(b"%d" % version, b"x" * size, version)]


def test_a_journal_of_another_version_is_refused_and_kept():
    disk = SimDisk()
    journal = a_journal(disk)
    journal.open()
    assert journal.commit([put(1)]) == [None]
    [name] = disk.names()
    data = bytearray(disk.read(name))
    size = int.from_bytes(data[4:8], "big")
    data[:4] = b"S0J2"
    start = start_of_sum(1, 0, 0, int.from_bytes(b"S0J2", "big"))
    data[8:12] = crc32(data[16 : 16 + size], start).to_bytes(4, "big")
    disk.write(name, bytes(data))
    with pytest.raises(OtherVersionError, match=name):
        a_journal(disk).open()
    assert disk.read(name) == data


def test_after_a_group_too_large_for_a_commit_none_is_written(monkeypatch):
    """What comes next must not be there without what was before it."""
    monkeypatch.setattr("scale0_core.parts.journal.frames._LARGEST_COMMIT", 1000)
    disk = SimDisk()
    journal = a_journal(disk)
    journal.open()
    outcomes = journal.commit([put(1), put(2, 1000), put(3)])
    assert [outcome is None for outcome in outcomes] == [True, False, False]
    assert list(a_journal(disk).open().values) == [b"1"]


def test_when_a_write_fails_those_that_were_under_way_fail_as_well():
    disk = SimDisk()
    journal = a_journal(disk)
    journal.open()
    committer = Committer(journal)
    assert committer.commit([Told(0, False, put(1))]) == [None]
    disk.fail_next(OSError(errno.EIO, "input/output error"))
    [outcome] = committer.commit([Told(0, False, put(2))])
    assert "input/output" in str(outcome)
    outcomes = committer.commit([Told(0, False, put(3)), Told(0, True, []), Told(1, False, put(4))])
    assert [outcome is None for outcome in outcomes] == [False, True, True]
    assert list(a_journal(disk).open().values) == [b"1", b"4"]
