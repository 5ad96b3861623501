"""The journal of durable pipes: what comes back, what is given up, and how much room it takes."""

from __future__ import annotations

import errno
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from scale0_core.testing import SimDisk
from scale0_zpipes.service import index
from scale0_zpipes.service.contents import Recovered
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.records import Acked, Dropped, GroupDropped, Purged, Record, Removed, Stored

FULL = OSError(errno.ENOSPC, "No space left on device")


def opened(disk: SimDisk, segment_bytes: int = 1 << 20) -> Journal:
    journal = Journal(disk, segment_bytes)
    journal.open()
    return journal


def recovered(disk: SimDisk) -> Recovered:
    return Journal(disk).open()


def commit(journal: Journal, *records: Record) -> None:
    assert journal.commit([list(records)]) == [None]


def chunk(number: int, pipe: bytes = b"p", size: int = 20) -> Stored:
    return Stored(pipe, number, b"", 0, (b"%d of %s " % (number, pipe)).ljust(size, b"."))


def numbers(found: Recovered, pipe: bytes = b"p") -> list[int]:
    return [number for number, _ in found.pipes[pipe].chunks]


def copy_of(disk: SimDisk) -> SimDisk:
    other = SimDisk()
    for name in disk.names():
        other.append(name, disk.read(name))
        other.fsync(name)
    return other


class CountingDisk(SimDisk):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def append(self, path: str, data: bytes) -> int:
        self.calls.append("append")
        return super().append(path, data)

    def fsync(self, path: str) -> None:
        self.calls.append("fsync")
        super().fsync(path)


class StubbornDisk(SimDisk):
    """Refuses what ``refused`` names, for as long as it does, and ``refused_once`` once."""

    def __init__(self) -> None:
        super().__init__()
        self.refused: set[str] = set()
        self.refused_once: set[str] = set()

    def _try(self, what: str) -> None:
        if what in self.refused | self.refused_once:
            self.refused_once.discard(what)
            raise FULL

    def append(self, path: str, data: bytes) -> int:
        if "append" in self.refused | self.refused_once:
            super().append(path, data[: len(data) // 2])  # a full disk takes a part
        self._try("append")
        return super().append(path, data)

    def fsync(self, path: str) -> None:
        self._try("fsync")
        super().fsync(path)

    def truncate(self, path: str, size: int = 0) -> None:
        self._try("truncate")
        super().truncate(path, size)

    def remove(self, path: str) -> None:
        self._try("remove")
        super().remove(path)


# what comes back


def test_an_empty_disk_gives_nothing():
    disk = SimDisk()
    found = recovered(disk)
    assert (found.pipes, found.problems, found.lost) == ({}, [], 0)
    assert disk.names() == []


def test_all_kinds_of_records_come_back():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, *(Stored(b"p", number, b"w", 100 + number, b"%d" % number) for number in range(1, 8)))
    commit(journal, Removed(b"p", (5, 3)), Acked(b"p", b"g", 2), Acked(b"p", b"h", 1), Acked(b"new", b"", 0))
    commit(journal, Purged(b"p", 2), GroupDropped(b"p", b"h"), Stored(b"q", 1, b"", 0, b""), chunk(1, b"r"))
    commit(journal, Dropped(b"r"))
    journal.close()
    found = recovered(disk)
    assert found.problems == []
    assert set(found.pipes) == {b"p", b"q", b"new"}
    assert found.pipes[b"p"].chunks == [(2, b"2"), (4, b"4"), (6, b"6"), (7, b"7")]
    assert found.pipes[b"p"].next_number == 8
    assert found.pipes[b"p"].groups == {b"g": 2}
    assert found.pipes[b"p"].writers == {b"w": 107}
    assert found.pipes[b"q"].chunks == [(1, b"")]
    assert found.pipes[b"new"].groups == {b"": 0}


def test_a_commit_is_one_write_and_one_fsync():
    disk = CountingDisk()
    journal = opened(disk)
    assert journal.commit([[chunk(number)] for number in range(1, 1001)]) == [None] * 1000
    assert journal.commit([[chunk(number)] for number in range(1001, 2001)]) == [None] * 1000
    assert disk.calls == ["append", "fsync"] * 2


def test_a_commit_of_nothing_touches_no_disk():
    disk = SimDisk()
    journal = opened(disk)
    assert journal.commit([]) == []
    assert journal.commit([[], []]) == [None, None]
    assert disk.operations == 0


def test_a_group_that_cannot_be_written_fails_alone():
    disk = SimDisk()
    journal = opened(disk)
    bad: list[list[Any]] = [[chunk(8), Stored(b"x" * 256, 1, b"", 0, b"")], [Acked(b"p", b"g", -1)], ["nonsense"]]
    outcomes = journal.commit([[chunk(1)], *bad, [chunk(2)]])
    assert [outcome is None for outcome in outcomes] == [True, False, False, False, True]
    found = recovered(disk)
    assert numbers(found) == [1, 2]
    assert found.pipes[b"p"].groups == {}


def test_names_of_any_bytes_and_chunks_that_are_no_bytes_objects():
    disk = SimDisk()
    journal = opened(disk)
    blob: Any = memoryview(b"S0J1" * 5000)
    commit(journal, Stored(b"\0" * 255, 2**63, b"\xff" * 255, 2**64 - 1, blob), Acked(b"\0" * 255, b"", 5))
    pipe = recovered(disk).pipes[b"\0" * 255]
    assert pipe.chunks == [(2**63, b"S0J1" * 5000)]
    assert pipe.writers == {b"\xff" * 255: 2**64 - 1}


def test_the_writers_of_a_pipe_are_bounded_and_the_longest_silent_is_forgotten(monkeypatch):
    monkeypatch.setattr(index, "MOST_WRITERS", 3)
    disk = SimDisk()
    journal = opened(disk, segment_bytes=200)
    for number, writer in enumerate([b"a", b"b", b"c", b"a", b"d", b"d", b"e"], 1):
        commit(journal, Stored(b"p", number, writer, number, b"x"))
    assert recovered(disk).pipes[b"p"].writers == {b"a": 4, b"d": 6, b"e": 7}


def test_a_journal_that_was_not_opened_or_is_closed_takes_nothing():
    disk = SimDisk()
    commit(opened(disk), chunk(1))
    journal = Journal(disk)
    with pytest.raises(RuntimeError, match="opened"):
        journal.commit([[chunk(2)]])
    journal.open()
    journal.close()
    with pytest.raises(RuntimeError, match="opened"):
        journal.commit([[chunk(2)]])
    assert numbers(recovered(disk)) == [1]


def test_other_files_are_left_alone():
    disk = SimDisk()
    disk.append("journal-notes.txt", b"mine")
    commit(opened(disk), chunk(1))
    assert numbers(recovered(disk)) == [1]
    assert disk.read("journal-notes.txt") == b"mine"


def test_what_was_found_stays_even_if_a_killed_process_had_not_made_it_safe():
    disk = SimDisk()
    commit(opened(disk), chunk(1))
    [name] = disk.names()
    written = SimDisk()
    written.append(name, disk.read(name))
    assert numbers(recovered(written)) == [1]
    written.crash(Random(1))
    assert numbers(recovered(written)) == [1]


# torn and damaged


def test_a_tear_at_any_byte_loses_no_more_than_the_groups_it_touches():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, chunk(1), Acked(b"p", b"g", 0))
    [name] = disk.names()
    safe = disk.size(name)
    groups = [[chunk(2, size=3000), chunk(3, size=3000)], [chunk(4)], [chunk(5), chunk(6)], [Removed(b"p", (1,))]]
    assert journal.commit(groups) == [None] * 4
    whole = disk.read(name)
    seen = set()
    for size in range(safe, len(whole) + 1):
        for rest in (b"", bytes(len(whole) - size)):
            torn = SimDisk()
            torn.append(name, whole[:size] + rest)
            found = recovered(torn)
            seen.add(tuple(numbers(found)))
            assert (found.problems == []) == (torn.size(name) == len(whole[:size] + rest))
            assert recovered(torn).problems == []  # it is cut off for good
            assert found.pipes[b"p"].groups == {b"g": 0}
    assert seen == {(1,), (1, 2, 3), (2, 3, 4, 5, 6)}  # the three small groups share a frame


def test_a_tear_of_the_very_first_commit():
    disk = SimDisk()
    commit(opened(disk), chunk(1))
    [name] = disk.names()
    whole = disk.read(name)
    for size in range(len(whole)):
        torn = SimDisk()
        torn.append(name, whole[:size])
        found = recovered(torn)
        assert found.pipes == {}
        assert found.lost in (size, size - torn.size(name) if torn.exists(name) else size)
        journal = opened(torn)
        commit(journal, chunk(1))
        assert numbers(recovered(torn)) == [1]


def test_a_problem_is_told_in_words():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, chunk(1))
    [name] = disk.names()
    end = disk.size(name)
    disk.append(name, b"torn")
    found = recovered(disk)
    assert found.lost == 4
    assert found.problems == [
        f"{name}: 4 bytes from {end} on were cut off: the last write was not finished, or is damaged"
    ]


def test_a_last_commit_of_which_a_later_page_is_there_and_an_earlier_is_not_is_given_up_from_the_gap_on():
    """Else a writer's later numbers would hide that its earlier ones are missing."""
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, chunk(1))
    [name] = disk.names()
    start = disk.size(name)
    sent = [[Stored(b"p", number, b"w", number, b"x" * 5000)] for number in (2, 3, 4)]
    journal.commit(sent)
    disk.write(name, bytes(100), start + 5100)
    found = recovered(disk)
    assert numbers(found) == [1, 2]
    assert found.pipes[b"p"].writers == {b"w": 2}


def test_damage_before_the_last_commit_is_skipped_and_all_else_is_kept():
    disk = SimDisk()
    journal = opened(disk)
    places = []
    for number in range(1, 6):
        places.append(disk.size(disk.names()[0]) if number > 1 else 0)
        commit(journal, chunk(number))
    [name] = disk.names()
    disk.write(name, b"#", places[2] + 30)
    found = recovered(disk)
    assert numbers(found) == [1, 2, 4, 5]
    assert found.problems == [f"{name}: {places[3] - places[2]} bytes from {places[2]} on are damaged and were skipped"]
    assert found.lost == places[3] - places[2]
    assert found.pipes[b"p"].lost == 1
    commit(opened(disk), chunk(6))
    assert numbers(recovered(disk)) == [1, 2, 4, 5, 6]


def test_a_bit_that_flips_anywhere_is_found_and_costs_one_frame():
    disk = SimDisk()
    journal = opened(disk, segment_bytes=300)
    sent = {number: chunk(number) for number in range(1, 25)}
    for number, record in sent.items():
        commit(journal, record._replace(writer=b"w", writer_number=number), Acked(b"p", b"g", number // 2))
    assert len(disk.names()) > 3
    for name in disk.names():
        for offset in range(disk.size(name)):
            damaged = copy_of(disk)
            byte = damaged.read(name, offset, 1)[0] ^ (1 << offset % 8)
            damaged.write(name, bytes([byte]), offset)
            found = recovered(damaged)
            assert found.problems, (name, offset)
            assert found.lost > 0
            assert len(found.pipes[b"p"].chunks) >= len(sent) - 4  # at worst the last segment, with few commits
            assert all(content == sent[number].chunk for number, content in found.pipes[b"p"].chunks)
            after = found.pipes[b"p"].next_number
            assert found.pipes[b"p"].lost == after - 1 - len(found.pipes[b"p"].chunks)
            commit(opened(damaged, 300), chunk(after))
            assert numbers(recovered(damaged)) == [*numbers(found), after]


def test_a_file_of_noise_is_no_reason_to_fail():
    disk = SimDisk()
    journal = opened(disk, 200)
    for number in range(1, 20):
        commit(journal, chunk(number))
    names = disk.names()
    for name in names[1:3]:
        disk.truncate(name)
        disk.append(name, b"S0J1\0\0\0\1" * 500)
    found = recovered(disk)
    assert numbers(found)[-1] == 19
    assert len(found.problems) == 2


def test_a_segment_that_is_missing_is_told():
    disk = SimDisk()
    journal = opened(disk, 200)
    for number in range(1, 20):
        commit(journal, chunk(number))
    disk.remove(disk.names()[1])
    found = recovered(disk)
    assert "1 segments are missing" in found.problems[0]
    assert found.pipes[b"p"].lost == 19 - len(found.pipes[b"p"].chunks) > 0
    assert found.pipes[b"p"].next_number == 20


def test_what_damage_has_hidden_is_put_right_by_the_next_segment():
    disk = SimDisk()
    journal = opened(disk, 400)
    commit(journal, *(chunk(number) for number in range(1, 6)), Acked(b"p", b"g", 3), chunk(1, b"gone"))
    [first] = disk.names()
    start = disk.size(first)
    commit(journal, Dropped(b"gone"), Purged(b"p", 4), GroupDropped(b"p", b"g"), Acked(b"p", b"h", 3), Dropped(b"p2"))
    commit(journal, chunk(6, size=400))
    commit(journal, chunk(7))
    assert len(disk.names()) > 1
    disk.write(first, b"#", start + 20)
    found = recovered(disk)
    assert len(found.problems) == 1
    assert numbers(found) == [4, 5, 6, 7]
    assert found.pipes[b"p"].groups == {b"h": 3}
    assert b"gone" not in found.pipes


def test_a_pipe_made_anew_does_not_get_chunks_of_its_forerunner_when_damage_hides_the_drop():
    disk = SimDisk()
    journal = opened(disk, 400)
    commit(journal, *(chunk(number) for number in range(1, 6)))
    [first] = disk.names()
    start = disk.size(first)
    commit(journal, Dropped(b"p"))
    commit(journal, Stored(b"p", 1, b"", 0, b"new" * 150))
    commit(journal, chunk(2))
    disk.write(first, b"#", start + 20)
    found = recovered(disk)
    assert found.pipes[b"p"].chunks == [(1, b"new" * 150), (2, chunk(2).chunk)]
    assert found.pipes[b"p"].next_number == 3


def test_a_journal_inside_a_chunk_is_never_taken_for_the_journal():
    inner = SimDisk()
    commit(opened(inner), chunk(1, b"inner"), chunk(2, b"inner"))
    [name] = inner.names()
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, Stored(b"p", 1, b"", 0, b"x" * 1000 + inner.read(name) * 20))
    commit(journal, chunk(2))
    disk.write(name, b"#", 500)
    found = recovered(disk)
    assert b"inner" not in found.pipes
    assert len(found.problems) == 1


def test_chunks_made_to_look_like_frames_do_not_hold_up_recovery():
    disk = SimDisk()
    journal = opened(disk)
    fake = b"S0J1" + (500_000).to_bytes(4, "big") + bytes(8)
    commit(journal, Stored(b"p", 1, b"", 0, fake * 65_000))
    disk.write(disk.names()[0], b"#", 100)
    assert recovered(disk).lost > 1_000_000


# a disk that refuses


@pytest.mark.parametrize("operation", ["append", "fsync"])
def test_a_full_disk_fails_the_commit_and_leaves_nothing(operation):
    disk = StubbornDisk()
    journal = opened(disk)
    commit(journal, chunk(1))
    [name] = disk.names()
    size = disk.size(name)
    disk.refused_once = {operation}
    outcomes = journal.commit([[chunk(2)], [Acked(b"p", b"g", 1)]])
    assert [type(outcome) for outcome in outcomes] == [OSError, OSError]
    assert disk.size(name) == size
    assert numbers(recovered(copy_of(disk))) == [1]
    commit(journal, chunk(2, size=50))
    found = recovered(disk)
    assert numbers(found) == [1, 2]
    assert (found.pipes[b"p"].groups, found.problems) == ({}, [])


@pytest.mark.parametrize("refused", [{"fsync"}, {"append", "truncate"}, {"append", "fsync", "truncate", "remove"}])
def test_while_a_failed_commit_cannot_be_cut_off_all_commits_are_refused(refused):
    disk = StubbornDisk()
    journal = opened(disk)
    commit(journal, chunk(1))
    for _ in range(3):
        disk.refused = set(refused)
        assert journal.commit([[chunk(2), Stored(b"p", 3, b"w", 9, b"refused" * 10)], []]) == [FULL, FULL]
        for repair in ("truncate", "fsync"):  # it would write now, but the cut is not safe yet
            disk.refused = {repair}
            assert journal.commit([[chunk(2)], [chunk(3)]]) == [FULL, FULL]
    assert len(disk.names()) == 1
    disk.refused.clear()
    commit(journal, chunk(2, size=50))
    assert len(disk.names()) == 1
    disk.crash(Random(1))
    for disk_then in (copy_of(disk), disk):
        found = recovered(disk_then)
        assert found.pipes[b"p"].chunks == [(1, chunk(1).chunk), (2, chunk(2, size=50).chunk)]
        assert found.pipes[b"p"].next_number == 3
        assert (found.pipes[b"p"].writers, found.problems) == ({}, [])


@pytest.mark.parametrize("first", [True, False], ids=["new segment", "same segment"])
@pytest.mark.parametrize("refused", ["append", "fsync"])
def test_what_was_refused_and_cut_off_is_never_back_after_a_crash(refused, first):
    for seed in range(50):
        disk = StubbornDisk()
        journal = opened(disk)
        if not first:
            commit(journal, chunk(1))
        disk.refused_once = {refused}
        assert journal.commit([[chunk(2)]]) == [FULL]
        disk.crash(Random(seed))
        found = recovered(disk)
        assert (list(found.pipes), found.problems) == ([] if first else [b"p"], [])
        assert first or numbers(found) == [1]


def test_a_cut_that_is_seen_but_not_safe_is_made_safe_by_the_next_commit():
    for seed in range(50):
        disk = StubbornDisk()
        journal = opened(disk)
        commit(journal, chunk(1))
        [name] = disk.names()
        size = disk.size(name)
        disk.refused = {"fsync"}
        assert journal.commit([[chunk(2)]]) == [FULL]
        assert disk.size(name) == size
        disk.refused.clear()
        assert journal.commit([]) == []  # has nothing to write, but the cut is made safe
        disk.crash(Random(seed))
        assert disk.size(name) == size


def test_what_was_refused_may_be_back_after_a_crash_but_never_instead_of_what_was_confirmed():
    seen = set()
    for seed in range(200):
        disk = StubbornDisk()
        journal = opened(disk)
        commit(journal, chunk(1))
        disk.refused = {"fsync"}
        assert journal.commit([[chunk(2)]]) == [FULL]
        assert journal.commit([[Removed(b"p", (1,))]]) == [FULL]
        disk.crash(Random(seed))
        disk.refused.clear()
        seen.add(tuple(numbers(recovered(disk))))
    assert seen == {(1,), (1, 2)}


@pytest.mark.parametrize("refused", [{"append"}, {"fsync"}, {"append", "truncate"}, {"fsync", "truncate"}])
@pytest.mark.parametrize("chunks", [0, 1, 2])
def test_a_disk_that_refuses_a_new_segment(refused, chunks):
    disk = StubbornDisk()
    journal = opened(disk, 300)
    for number in range(1, chunks + 1):  # each so large that the next commit begins a segment
        commit(journal, chunk(number, size=400))
    assert len(disk.names()) == chunks
    number = chunks + 1
    for _ in range(3):
        disk.refused = set(refused)
        assert journal.commit([[chunk(number), chunk(number + 1)]]) == [FULL]
        disk.refused.clear()
        assert len(disk.names()) == number
        if chunks:
            assert numbers(recovered(copy_of(disk)))[:chunks] == list(range(1, number))
    for later in range(number, number + 5):
        commit(journal, chunk(later, size=100))
    disk.crash(Random(1))
    found = recovered(disk)
    assert numbers(found) == list(range(1, number + 5))
    assert found.problems == []


def test_a_new_segment_that_was_refused_and_is_empty_is_no_problem():
    disk = StubbornDisk()
    journal = opened(disk, 300)
    commit(journal, chunk(1, size=400))
    disk.refused_once = {"append"}
    assert journal.commit([[chunk(2)]]) == [FULL]
    assert [disk.size(name) > 0 for name in disk.names()] == [True, False]
    journal = Journal(disk, 300)
    found = journal.open()
    assert (numbers(found), found.problems, len(disk.names())) == ([1], [], 1)
    commit(journal, chunk(2))
    assert numbers(recovered(disk)) == [1, 2]


def test_a_new_segment_of_which_not_even_the_file_is_made():
    disk = SimDisk()
    journal = opened(disk)
    disk.fail_next(FULL)
    assert journal.commit([[chunk(1)]]) == [FULL]
    assert disk.names() == []
    commit(journal, chunk(1))
    assert numbers(recovered(disk)) == [1]


def test_a_segment_that_cannot_be_deleted_is_deleted_later():
    disk = StubbornDisk()
    journal = opened(disk, 200)
    disk.refused = {"remove"}
    for number in range(1, 20):
        commit(journal, chunk(number), Removed(b"p", (number,)))
    assert len(disk.names()) > 3
    disk.refused.clear()
    commit(journal, chunk(20))
    assert len(disk.names()) <= 2


def test_a_file_that_somebody_else_has_written_to_is_cut_back():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, chunk(1))
    disk.append(disk.names()[0], b"foreign")
    assert isinstance(journal.commit([[chunk(2)]])[0], OSError)
    commit(journal, chunk(2))
    found = recovered(disk)
    assert (numbers(found), found.problems) == ([1, 2], [])


# room


def test_numbers_groups_and_writers_outlive_the_segments_they_were_written_to():
    disk = SimDisk()
    journal = opened(disk, 500)
    commit(journal, Acked(b"p", b"g", 0), Stored(b"quiet", 7, b"w", 3, b"x"), Removed(b"quiet", (7,)))
    for number in range(1, 200):
        commit(journal, Stored(b"p", number, b"w%d" % (number % 2), number, b"x" * 30), Acked(b"p", b"g", number))
        commit(journal, Purged(b"p", number + 1))
    assert len(disk.names()) <= 2
    assert disk.names()[0] > "journal-000000000020"
    found = recovered(disk)
    assert found.problems == []
    assert (found.pipes[b"p"].chunks, found.pipes[b"p"].next_number) == ([], 200)
    assert found.pipes[b"p"].groups == {b"g": 199}
    assert found.pipes[b"p"].writers == {b"w0": 198, b"w1": 199}
    assert (found.pipes[b"quiet"].next_number, found.pipes[b"quiet"].writers) == (8, {b"w": 3})


def test_a_few_old_chunks_do_not_hold_all_the_room():
    disk = SimDisk()
    journal = opened(disk, 2000)
    old = [Stored(b"old", number, b"w", number, b"%d" % number * 40) for number in range(1, 6)]
    sizes = []
    for number in range(1, 1000):
        if number % 10 == 0 and number <= 50:
            commit(journal, old[number // 10 - 1])
        commit(journal, chunk(number))
        commit(journal, Removed(b"p", (number,)))
        sizes.append(sum(disk.size(name) for name in disk.names()))
        assert journal.size == sizes[-1]
        if number % 100 == 0:  # a restart in between changes nothing
            journal = Journal(disk, 2000)
            assert journal.open().pipes[b"old"].chunks == [(record.number, record.chunk) for record in old]
    assert max(sizes) <= 2 * journal.live + 4 * 2000
    found = recovered(disk)
    assert found.pipes[b"old"].chunks == [(record.number, record.chunk) for record in old]
    assert found.pipes[b"old"].writers == {b"w": 5}


def test_chunks_that_are_needed_stay_where_they_are():
    disk = SimDisk()
    journal = opened(disk, 1000)
    for number in range(1, 301):
        commit(journal, chunk(number, size=100))
    assert disk.names()[0].endswith("01")
    assert journal.size < journal.live * 1.5


def test_a_chunk_of_a_pipe_that_was_dropped_is_not_copied_in_place_of_its_successor():
    disk = SimDisk()
    journal = opened(disk, 1000)
    second = b"second life" * 10  # so large that the first is copied by a commit before
    commit(journal, Stored(b"again", 1, b"", 0, b"first life"))
    commit(journal, Dropped(b"again"))
    commit(journal, Stored(b"again", 1, b"", 0, second))
    first = disk.names()[0]
    number = 1
    while first in disk.names():
        commit(journal, chunk(number), Removed(b"p", (number,)))
        assert recovered(copy_of(disk)).pipes[b"again"].chunks == [(1, second)]
        number += 1
    assert number < 200


def test_an_old_segment_that_has_become_unreadable_is_kept_as_long_as_its_chunks_are_needed():
    disk = SimDisk()
    journal = opened(disk, 500)
    commit(journal, chunk(1, b"old"), chunk(2, b"old"))
    [first] = disk.names()
    for number in range(1, 30):
        commit(journal, chunk(number), Removed(b"p", (number,)))
        if number == 3:
            disk.write(first, bytes(disk.size(first)))
    assert first in disk.names()
    commit(journal, Purged(b"old", 3))
    assert first not in disk.names()
    assert recovered(disk).problems == []


def test_a_large_beginning_does_not_make_every_commit_a_segment():
    disk = SimDisk()
    journal = opened(disk, 500)
    commit(journal, *(Acked(b"p", b"group %d" % number, number) for number in range(200)))
    names = set()
    total = 0
    for number in range(1, 400):
        commit(journal, chunk(number), Removed(b"p", (number,)))
        names.update(disk.names())
        total = max(total, journal.size)
    assert len(names) < 12
    assert total < 60_000
    assert len(recovered(disk).pipes[b"p"].groups) == 200


def test_a_purge_far_beyond_the_end_is_cheap_and_keeps_the_numbers():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, chunk(1), chunk(2**50), Purged(b"p", 2**63))
    commit(journal, chunk(2**50 + 1))
    found = recovered(disk)
    assert numbers(found) == [2**50 + 1]
    assert found.pipes[b"p"].next_number == 2**50 + 2


def test_segments_are_numbered_without_gaps():
    disk = SimDisk()
    journal = opened(disk, 100)
    for number in range(1, 20):
        commit(journal, chunk(number))
    found = [int(name[-12:]) for name in disk.names()]
    assert all(after == before + 1 for before, after in pairwise(found))


def test_what_was_lost_is_counted_by_pipe_and_only_while_somebody_may_miss_it():
    disk = SimDisk()
    journal = opened(disk)
    commit(journal, *(chunk(number, pipe) for number in range(1, 4) for pipe in (b"p", b"q", b"r", b"s")))
    start = disk.size(disk.names()[0])
    commit(journal, *(chunk(number, pipe) for number in range(4, 8) for pipe in (b"p", b"q", b"r", b"s", b"new")))
    commit(journal, Removed(b"p", [1, 4, 5]), Purged(b"q", 7), Dropped(b"r"))
    for pipe in (b"p", b"q", b"r", b"s", b"new", b"other"):
        commit(journal, chunk(8 if pipe not in (b"r", b"other") else 1, pipe))
    disk.write(disk.names()[0], b"#", start + 100)
    found = recovered(disk)
    assert {name: pipe.lost for name, pipe in found.pipes.items()} == {
        b"p": 2, b"q": 1, b"r": 0, b"s": 4, b"new": 7, b"other": 0,
    }  # fmt: skip
