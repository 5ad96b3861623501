"""The journal against a simple model, with crashes at any operation of the disk."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from random import Random
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scale0_core.testing import DiskCrashed, SimDisk
from scale0_zpipes.service.contents import Recovered
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.records import Acked, Dropped, GroupDropped, Purged, Record, Removed, Stored


@attrs.define
class ModelPipe:
    next_number: int = 1
    chunks: dict[int, bytes] = attrs.field(factory=dict)
    groups: dict[bytes, int] = attrs.field(factory=dict)
    writers: dict[bytes, int] = attrs.field(factory=dict)


class Model:
    """What the records mean, in the plainest way."""

    def __init__(self) -> None:
        self.pipes: dict[bytes, ModelPipe] = {}

    def apply(self, records: Sequence[Record]) -> None:
        for record in records:
            if isinstance(record, Dropped):
                self.pipes.pop(record.pipe, None)
                continue
            pipe = self.pipes.get(record.pipe, ModelPipe())
            if isinstance(record, Stored | Acked):
                self.pipes[record.pipe] = pipe
            if isinstance(record, Stored):
                pipe.chunks[record.number] = record.chunk
                pipe.next_number = max(pipe.next_number, record.number + 1)
                if record.writer:
                    pipe.writers[record.writer] = record.writer_number
            elif isinstance(record, Removed):
                pipe.chunks = {n: chunk for n, chunk in pipe.chunks.items() if n not in record.numbers}
            elif isinstance(record, Purged):
                pipe.chunks = {n: chunk for n, chunk in pipe.chunks.items() if n >= record.before}
            elif isinstance(record, Acked):
                pipe.groups[record.group] = record.upto
            else:
                pipe.groups.pop(record.group, None)

    def state(self) -> dict[bytes, tuple[Any, ...]]:
        return {
            name: (pipe.next_number, sorted(pipe.chunks.items()), pipe.groups, pipe.writers)
            for name, pipe in self.pipes.items()
        }


def state_of(found: Recovered) -> dict[bytes, tuple[Any, ...]]:
    return {
        name: (pipe.next_number, pipe.chunks, pipe.groups, pipe.writers)  # a chunk twice would not be equal
        for name, pipe in found.pipes.items()
    }


def states_after(model: Model, groups: Sequence[Sequence[Record]]) -> list[Model]:
    """Give the model before and after each of the groups."""
    models = [model]
    for group in groups:
        following = copy.deepcopy(models[-1])
        following.apply(group)
        models.append(following)
    return models


def random_record(random: Random, model: Model, serial: int) -> Record:
    """Make a record as a service would, given what the pipes hold."""
    name = random.choice([b"a", b"b", b"c" * 40])
    pipe = model.pipes.get(name, ModelPipe())
    kind = random.random()
    if kind < 0.5:
        writer = random.choice([b"", b"w1", b"w2"])
        text = b"%s:%d:%d" % (name, pipe.next_number, serial)
        number = pipe.next_number + random.choice([0, 0, 0, 0, 3])
        return Stored(name, number, writer, serial if writer else 0, text * random.choice([0, 1, 1, 1, 9]))
    if kind < 0.75:
        held = sorted(pipe.chunks) or [1]
        return Removed(name, random.sample(held, random.randint(1, min(3, len(held)))))
    if kind < 0.85:
        return Acked(name, random.choice([b"", b"g", b"h"]), random.randint(0, pipe.next_number))
    if kind < 0.88:
        return GroupDropped(name, random.choice([b"g", b"h"]))
    if kind < 0.98:
        return Purged(name, random.randint(0, pipe.next_number + 2))
    return Dropped(name)


def random_commit(random: Random, model: Model, serial: int) -> list[list[Record]]:
    scratch = copy.deepcopy(model)
    groups = []
    for _ in range(random.randint(1, 4)):
        group = []
        for _ in range(random.choice([0, 1, 1, 1, 2, 5])):
            record = random_record(random, scratch, serial)
            scratch.apply([record])
            group.append(record)
            serial += 1
        groups.append(group)
    return groups


def live_through(disk: SimDisk, model: Model, commits: int, random: Random, segment_bytes: int) -> list[Model]:
    """Commit until all is done or the disk goes down; gives the states that may be found afterwards."""
    possible = [model]
    try:
        journal = Journal(disk, segment_bytes)
        found = journal.open()
        assert state_of(found) == model.state()
        for serial in range(commits):
            groups = random_commit(random, possible[-1], serial * 100)
            possible = states_after(possible[-1], groups)
            assert journal.commit(groups) == [None] * len(groups)
            possible = possible[-1:]
    except DiskCrashed:
        pass
    return possible


def found_among(possible: list[Model], disk: SimDisk) -> Model:
    state = state_of(Journal(copy_of(disk)).open())
    for model in possible:
        if model.state() == state:
            return model
    pytest.fail(f"found {state}, not one of {[model.state() for model in possible]}")


def copy_of(disk: SimDisk) -> SimDisk:
    other = SimDisk()
    for name in disk.names():
        other.append(name, disk.read(name))
        other.fsync(name)
    return other


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 2**32),
    segment_bytes=st.sampled_from([1, 100, 300, 1000, 100_000]),
    crashes=st.lists(st.integers(0, 60), min_size=1, max_size=5),
)
def test_nothing_committed_is_lost_or_doubled_by_crashes_at_any_time(seed, segment_bytes, crashes):
    random = Random(seed)
    disk, model = SimDisk(), Model()
    for operations in crashes:
        disk.crash_after(operations)
        possible = live_through(disk, model, 25, random, segment_bytes)
        disk.crash(random)
        model = found_among(possible, disk)
    assert live_through(disk, model, 3, random, segment_bytes)[-1].state() == state_of(Journal(disk).open())


def runs_until(crash_after: int | None, segment_bytes: int, seed: int) -> tuple[SimDisk, list[Model]]:
    disk = SimDisk()
    if crash_after is not None:
        disk.crash_after(crash_after)
    return disk, live_through(disk, Model(), 40, Random(seed), segment_bytes)


@pytest.mark.seeds(3)
@pytest.mark.parametrize("segment_bytes", [150, 600])
def test_a_crash_at_each_operation_in_turn(segment_bytes, seed):
    """Segments begin, are copied from and deleted all the time here, so each step of that is interrupted."""
    whole, _ = runs_until(None, segment_bytes, seed=7)
    assert int(whole.names()[0][-12:]) > 2, "no segment was ever deleted"
    for operations in range(whole.operations):
        disk, possible = runs_until(operations, segment_bytes, seed=7)
        disk.crash(Random(seed))
        found_among(possible, disk)


@pytest.mark.seeds(100)
@pytest.mark.parametrize("segment_bytes", [150, 600])
def test_a_crash_while_opening(segment_bytes, seed):
    disk, possible = runs_until(10 + seed, segment_bytes, seed)
    disk.crash(Random(seed))
    for operations in range(4):
        disk.crash_after(operations)
        try:
            Journal(disk, segment_bytes).open()
        except DiskCrashed:
            disk.crash(Random(seed + operations))
    disk.crash(Random(seed))
    found_among(possible, disk)


class KilledDisk(SimDisk):
    """A process that is killed, not the machine: all that was written is there, synced or not."""

    def crash(self, random: Random) -> None:
        for name in self.names():
            self._file(name).sync()
        super().crash(random)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), operations=st.integers(0, 60))
def test_nothing_is_lost_or_doubled_by_kills(seed, operations):
    disk, model, random = KilledDisk(), Model(), Random(seed)
    for _ in range(3):
        disk.crash_after(operations)
        possible = live_through(disk, model, 20, random, 300)
        disk.crash(random)
        model = found_among(possible, disk)


class FlakyDisk(SimDisk):
    """Refuses operations at random while ``refusing``; what was refused once may be refused for a while."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self.refusing = False
        self._random = random
        self._likely = random.choice([0.05, 0.3, 0.7])
        self._longest = random.choice([0, 0, 3, 10])
        self._refusals = 0

    def _operate(self) -> None:
        super()._operate()
        if not self.refusing:
            return
        if not self._refusals and self._random.random() < self._likely:
            self._refusals = 1 + self._random.randint(0, self._longest)
        if self._refusals:
            self._refusals -= 1
            raise OSError(5, "the disk refuses")


def confirmed(journal: Journal, disk: FlakyDisk, groups: Sequence[Sequence[Record]]) -> bool:
    """Commit on a disk that may refuse; tells whether it was confirmed."""
    disk.refusing = True
    try:
        outcomes = journal.commit(groups)
    finally:
        disk.refusing = False
    if outcomes == [None] * len(groups):
        return True
    assert all(isinstance(outcome, OSError) for outcome in outcomes)
    return False


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), segment_bytes=st.sampled_from([100, 400, 100_000]))
def test_a_disk_that_refuses_at_random_never_stores_what_it_refused(seed, segment_bytes):
    random = Random(seed)
    disk, model = FlakyDisk(random), Model()
    journal = Journal(disk, segment_bytes)
    journal.open()
    for serial in range(30):
        groups = random_commit(random, model, serial * 100)
        if confirmed(journal, disk, groups):
            model = states_after(model, groups)[-1]
    assert journal.commit([[Acked(b"a", b"last", 0)]]) == [None]  # the disk is well again, so what is left is cut off
    model.apply([Acked(b"a", b"last", 0)])
    disk.crash(random)
    assert state_of(Journal(disk).open()) == model.state()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 2**32), segment_bytes=st.sampled_from([100, 400, 100_000]))
def test_nothing_confirmed_is_lost_or_doubled_by_crashes_of_a_disk_that_refuses(seed, segment_bytes):
    """What was refused since the last confirmed commit may be there after a crash, some first groups of one commit."""
    random = Random(seed)
    disk, possible = FlakyDisk(random), [Model()]
    journal = Journal(disk, segment_bytes)
    journal.open()
    for serial in range(40):
        groups = random_commit(random, possible[0], serial * 100)
        following = states_after(possible[0], groups)
        if random.random() < 0.1:
            disk.crash_after(random.randint(0, 6))
        try:
            done = confirmed(journal, disk, groups)
        except DiskCrashed:
            disk.crash(random)
            crashed = True
        else:
            disk.crash_after(1_000_000)
            crashed = random.random() < 0.1
            if crashed and random.random() < 0.5:
                disk.crash(random)  # else the process is killed, and all that was written is there
            if done:
                possible, following = following[-1:], []
        possible += following[1:]
        if crashed:
            possible = [found_among(possible, disk)]
            journal = Journal(disk, segment_bytes)
            assert state_of(journal.open()) == possible[0].state()


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), flips=st.integers(1, 20))
def test_bits_that_flip_anywhere_never_raise(seed, flips):
    random = Random(seed)
    disk, _ = runs_until(None, random.choice([200, 1000, 100_000]), seed)
    sent = {content for pipe in live_contents(disk).values() for content in pipe}
    for _ in range(flips):
        name = random.choice(disk.names())
        offset = random.randrange(disk.size(name))
        disk.write(name, bytes([disk.read(name, offset, 1)[0] ^ (1 << random.randrange(8))]), offset)
    found = Journal(disk).open()
    for name, pipe in found.pipes.items():
        for number, chunk in pipe.chunks:
            # what was removed may be back, but never something that nobody wrote
            assert chunk in sent or not chunk or chunk.startswith(b"%s:" % name), (number, chunk)
    journal = Journal(disk, 300)
    before = state_of(journal.open())
    assert journal.commit([[Stored(b"new", 1, b"", 0, b"x")]]) == [None]
    after = state_of(Journal(disk).open())
    assert after.pop(b"new") == (2, [(1, b"x")], {}, {})
    assert after == before


def live_contents(disk: SimDisk) -> dict[bytes, list[bytes]]:
    found = Journal(copy_of(disk)).open()
    return {name: [chunk for _, chunk in pipe.chunks] for name, pipe in found.pipes.items()}
