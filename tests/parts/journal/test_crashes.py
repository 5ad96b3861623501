"""The journal against a dict, with crashes at any operation of the disk, and kills on a slow one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_core.testing import DiskCrashed, SimDisk, SlowDisk, killed_program

from .key_values import Deleted, Found, Put, Record, a_journal

KEYS = [b"a", b"b", b"c" * 40, b""]
State = tuple[dict[bytes, bytes], int]


def state_of(found: Found) -> State:
    return found.values, found.version


def after(state: State, groups: Sequence[Sequence[Record]]) -> list[State]:
    """Return the state before and after each of the groups."""
    states = [state]
    for group in groups:
        values, version = dict(states[-1][0]), states[-1][1]
        for record in group:
            version = record.version
            if isinstance(record, Put):
                values[record.key] = record.value
            elif isinstance(record, Deleted):
                values.pop(record.key, None)
        states.append((values, version))
    return states


def random_groups(random: Random, version: int) -> list[list[Record]]:
    groups: list[list[Record]] = []
    for _ in range(random.randint(1, 4)):
        group: list[Record] = []
        for _ in range(random.choice([0, 1, 1, 1, 2, 5])):
            version += 1
            key = random.choice(KEYS)
            value = b"%d " % version * random.choice([0, 1, 1, 9])
            group.append(Put(key, value, version) if random.random() < 0.6 else Deleted(key, version))
        groups.append(group)
    return groups


def live_through(disk: SimDisk, state: State, commits: int, random: Random, segment_bytes: int) -> list[State]:
    """Commit until all is done or the disk goes down; return the states that may be found afterwards."""
    possible = [state]
    try:
        journal = a_journal(disk, segment_bytes)
        assert state_of(journal.open()) == state
        for _ in range(commits):
            groups = random_groups(random, possible[-1][1])
            possible = after(possible[-1], groups)
            assert journal.commit(groups) == [None] * len(groups)
            possible = possible[-1:]
    except DiskCrashed:
        pass
    return possible


def copy_of(disk: SimDisk) -> SimDisk:
    other = SimDisk()
    for name in disk.names():
        other.append(name, disk.read(name))
        other.fsync(name)
    return other


def found_among(possible: list[State], disk: SimDisk) -> State:
    state = state_of(a_journal(copy_of(disk)).open())
    assert state in possible
    return state


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    segment_bytes=st.sampled_from([1, 100, 300, 1000, 100_000]),
    crashes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
)
def test_nothing_committed_is_lost_or_doubled_by_crashes_at_any_time(seed, segment_bytes, crashes):
    random = Random(seed)
    disk, state = SimDisk(), State(({}, 0))
    for operations in crashes:
        disk.crash_after(operations)
        possible = live_through(disk, state, 25, random, segment_bytes)
        disk.crash(random)
        state = found_among(possible, disk)
    assert live_through(disk, state, 3, random, segment_bytes)[-1] == state_of(a_journal(disk).open())


def runs_until(crash_after: int | None, segment_bytes: int, seed: int) -> tuple[SimDisk, list[State]]:
    disk = SimDisk()
    if crash_after is not None:
        disk.crash_after(crash_after)
    return disk, live_through(disk, ({}, 0), 40, Random(seed), segment_bytes)


@pytest.mark.parametrize("segment_bytes", [150, 600])
def test_a_crash_at_each_operation_in_turn(segment_bytes):
    """Segments begin, are copied from and deleted all the time here, so each step of that is interrupted."""
    whole, _ = runs_until(None, segment_bytes, seed=7)
    assert int(whole.names()[0][-12:]) > 2, "no segment was ever deleted"
    for operations in range(whole.operations):
        for seed in range(3):
            disk, possible = runs_until(operations, segment_bytes, seed=7)
            disk.crash(Random(seed))
            found_among(possible, disk)


@pytest.mark.parametrize("segment_bytes", [150, 600])
def test_a_crash_while_opening(segment_bytes):
    for seed in range(100):
        disk, possible = runs_until(10 + seed, segment_bytes, seed)
        disk.crash(Random(seed))
        for operations in range(4):
            disk.crash_after(operations)
            try:
                a_journal(disk, segment_bytes).open()
            except DiskCrashed:
                disk.crash(Random(seed + operations))
        disk.crash(Random(seed))
        found_among(possible, disk)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), capacity=st.integers(400, 4000), reserve=st.sampled_from([0, 200, 800]))
def test_a_full_disk_refuses_and_what_was_confirmed_stays(seed, capacity, reserve):
    random = Random(seed)
    disk, state = SimDisk(capacity), State(({}, 0))
    journal = a_journal(disk, 300, reserve)
    journal.open()
    for _ in range(30):
        groups = random_groups(random, state[1])
        outcomes = journal.commit(groups)
        if outcomes == [None] * len(groups):
            state = after(state, groups)[-1]
        else:
            assert all(isinstance(outcome, OSError) for outcome in outcomes)
    disk.crash(random)
    assert state_of(a_journal(disk).open()) == state


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 20))
def test_bits_that_flip_anywhere_never_raise(seed, flips):
    random = Random(seed)
    disk, _ = runs_until(None, random.choice([200, 1000, 100_000]), seed)
    for _ in range(flips):
        name = random.choice(disk.names())
        offset = random.randrange(disk.size(name))
        disk.write(name, bytes([disk.read(name, offset, 1)[0] ^ (1 << random.randrange(8))]), offset)
    journal = a_journal(disk, 300)
    values, version = state_of(journal.open())
    assert all(not value or value.split()[0].isdigit() for value in values.values()), "nothing that nobody wrote"
    assert journal.commit([[Put(b"new", b"x", version + 1)]]) == [None]
    assert state_of(a_journal(disk).open()) == ({**values, b"new": b"x"}, version + 1)


def test_a_commit_is_one_write_and_one_fsync_in_a_real_folder_too(tmp_path: Path):
    journal = a_journal(tmp_path / "journal", 10_000)
    journal.open()
    for version in range(1, 1001, 10):
        groups = [[Put(b"key", b"%d " % number * 9, number)] for number in range(version, version + 10)]
        assert journal.commit(groups) == [None] * 10
    journal.close()
    found = a_journal(tmp_path / "journal").open()
    assert (found.values, found.version, found.problems) == ({b"key": b"1000 " * 9}, 1000, [])
    assert sum(path.stat().st_size for path in (tmp_path / "journal").iterdir()) == journal.size < 3 * 10_000


# killed

WRITER = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
from pathlib import Path
from key_values import Put, a_journal
{{plant}}
journal, number = a_journal(Path(sys.argv[1]) / "journal", 500), int(sys.argv[2])
journal.open()
while True:
    number += 1
    print("done" if journal.commit([[Put(b"key", b"%d " % number * 20, number)]]) == [None] else "refused", number)
"""

TOO_EARLY = """
import threading
from scale0_core.parts.journal import FolderDisk
append, fsync = FolderDisk.append, FolderDisk.fsync
def early(disk, path, data):
    offset = disk.size(path) if disk.exists(path) else 0
    disk.late = threading.Timer(0.03, append, (disk, path, data))
    disk.late.start()
    return offset
FolderDisk.append, FolderDisk.fsync = early, lambda disk, path: None
"""


def rounds(folder: Path, count: int, plant: str = "") -> None:
    """Kill a writer again and again, also one whose disk is full; what it said to be done must be there."""
    random, number = Random(count), 0
    with SlowDisk(folder, write_ms=5, sync_ms=5) as disk:
        for each in range(1, count + 1):
            if each % 3 == 0:
                disk.change(capacity=disk.used + 700)
            wanted = random.randint(1, 4)
            lines = killed_program(
                WRITER.format(plant=plant), [disk.folder, number], disk.environment,
                lambda lines, wanted=wanted: len(lines) >= wanted,
            )  # fmt: skip
            disk.make_room()
            last = max([number, *(int(line.split()[1]) for line in lines if line.startswith("done"))])
            found = a_journal(disk.folder / "journal").open()
            assert found.version >= last, f"{last} was said to be done, {found.version} is there"
            assert found.values.get(b"key", b"") == b"%d " % found.version * 20 * bool(found.version)
            number = found.version


@pytest.mark.real
def test_what_was_confirmed_survives_kill_9(tmp_path: Path):
    rounds(tmp_path / "disk", 4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_what_was_confirmed_survives_kill_9_at_length(tmp_path: Path):
    rounds(tmp_path / "disk", 200)


@pytest.mark.real
def test_a_journal_that_confirms_too_early_is_caught(tmp_path: Path):
    with pytest.raises(AssertionError, match="was said to be done"):
        rounds(tmp_path / "disk", 5, TOO_EARLY)
