"""SimDisk, and a durable service whose promises hold after a crash at any moment."""

from __future__ import annotations

import struct
from random import Random
from typing import ClassVar
from zlib import crc32

import pytest

from scale0_core.service import Endpoint, Job
from scale0_core.testing import DiskCrashed, SimDisk, SimNetwork

HUB = "tcp://hub:1"


def test_a_disk_reads_what_was_written():
    disk = SimDisk()
    assert disk.append("log", b"hello ") == 0
    assert disk.append("log", b"world") == 6
    disk.write("log", b"W", 6)
    assert disk.read("log") == b"hello World"
    assert disk.read("log", 6, 3) == b"Wor"
    disk.truncate("log", 5)
    assert (disk.read("log"), disk.size("log")) == (b"hello", 5)
    disk.write("log", b"!", 7)
    assert disk.read("log") == b"hello\0\0!"


def test_names():
    disk = SimDisk()
    disk.append("b/2", b"two")
    disk.append("a/1", b"one")
    assert disk.names() == ["a/1", "b/2"]
    assert disk.names("b/") == ["b/2"]
    disk.rename("b/2", "a/1")
    assert disk.names() == ["a/1"]
    assert disk.read("a/1") == b"two"
    disk.remove("a/1")
    assert not disk.exists("a/1")
    for operation in (disk.read, disk.size, disk.fsync, disk.remove, disk.truncate):
        with pytest.raises(FileNotFoundError):
            operation("a/1")


def test_a_crash_keeps_what_was_synced_and_a_beginning_of_the_rest():
    lengths = set()
    for seed in range(200):
        disk = SimDisk()
        disk.append("log", b"safe")
        disk.fsync("log")
        disk.append("log", b"123")
        disk.append("log", b"456")
        disk.crash(Random(seed))
        content = disk.read("log")
        assert b"safe123456".startswith(content)
        lengths.add(len(content))
    assert lengths == set(range(4, 11))


def test_a_crash_tears_what_was_written_over_and_cut():
    contents = set()
    for seed in range(100):
        disk = SimDisk()
        disk.append("f", b"aaa")
        disk.fsync("f")
        disk.write("f", b"bb")
        disk.truncate("f", 1)
        disk.crash(Random(seed))
        contents.add(disk.read("f"))
    assert contents == {b"aaa", b"baa", b"bba", b"b"}


def test_renaming_what_was_not_synced_leaves_a_torn_file():
    disk = SimDisk()
    disk.append("new", b"x" * 1000)
    disk.rename("new", "old")
    disk.crash(Random(1))
    assert disk.names() == ["old"]
    assert disk.size("old") < 1000


def test_the_next_operation_fails_on_demand():
    disk = SimDisk()
    disk.append("f", b"x")
    disk.fail_next(OSError(28, "no space left"))
    with pytest.raises(OSError, match="no space"):
        disk.fsync("f")
    disk.fsync("f")


def test_a_crash_in_the_middle_of_a_job():
    disk = SimDisk()
    disk.crash_after(1)
    disk.append("f", b"x")
    for _ in range(2):
        with pytest.raises(DiskCrashed):
            disk.fsync("f")
    disk.crash(Random(0))
    disk.fsync("f")


class Ledger:
    """Writes each entry to a log and answers when it is safe: many answers wait for one fsync."""

    name = "ledger"
    endpoints: ClassVar = {"front": Endpoint(kind="ROUTER", bind=(HUB,))}
    syncs = True

    def __init__(self, node):
        self.disk = node.disk
        self.entries = []
        self.batches = []
        self.torn = False
        if self.disk.exists("log"):
            self.recover()

    def recover(self):
        log, place = self.disk.read("log"), 0
        while len(log) - place >= 8:
            size, check = struct.unpack_from(">II", log, place)
            entry = log[place + 8 : place + 8 + size]
            if len(entry) < size or crc32(entry) != check:
                break
            self.entries.append(entry)
            place += 8 + size
        self.torn = place < len(log)
        self.disk.truncate("log", place)

    def receive(self, socket, frames, now):
        return [Job("log", self.commit, frames[1], token=frames, grouped=True)]

    def commit(self, entries):
        for entry in entries:
            self.disk.append("log", struct.pack(">II", len(entry), crc32(entry)) + entry)
        if self.syncs:
            self.disk.fsync("log")
        self.batches.append(len(entries))
        return entries

    def on_job(self, result, now):
        if result.error is not None:
            return ()
        self.entries.append(result.value)
        return [("front", result.token)]

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Careless(Ledger):
    """Answers before the entry is safe."""

    syncs = False


class Writer:
    """Sends entries quickly and remembers those that were confirmed."""

    name = "writer"
    endpoints: ClassVar = {"s": Endpoint(kind="DEALER", connect=(HUB,))}

    def __init__(self, node):
        self.random = node.random
        self.due = node.now
        self.sent = 0
        self.confirmed = []

    def receive(self, socket, frames, now):
        self.confirmed.append(frames[0])
        return ()

    def next_deadline(self):
        return self.due

    def on_deadline(self, now):
        self.due = now + self.random.expovariate(500.0)
        self.sent += 1
        return [("s", (b"%d:" % self.sent + bytes(self.sent % 50),))]


def play_ledger(seed, ledger):
    """Kill the ledger at random moments; what was confirmed must be there after each restart."""
    net = SimNetwork(seed, job_delay=(0.0, 0.02), job_failure=0.02)
    net.add("ledger", lambda node: [ledger(node)])
    writer = net.add("writer", lambda node: [Writer(node)]).services[0]
    random = Random(seed)
    for _ in range(3):
        net.run(random.uniform(0.05, 0.4))
        net.kill("ledger")
        net.restart("ledger")
        kept = net.nodes["ledger"].services[0].entries
        missing = set(writer.confirmed) - set(kept)
        assert not missing, f"seed {seed}: {len(missing)} confirmed entries are gone"
    return net


def test_what_was_confirmed_outlives_every_crash():
    confirmed = torn = 0
    for seed in range(100):
        net = play_ledger(seed, Ledger)
        confirmed += len(net.nodes["writer"].services[0].confirmed)
        torn += net.nodes["ledger"].services[0].torn
    assert confirmed > 5000
    assert torn > 10


def test_a_promise_made_too_early_is_found():
    with pytest.raises(AssertionError, match="confirmed entries are gone"):
        [play_ledger(seed, Careless) for seed in range(20)]


def test_many_answers_wait_for_one_fsync():
    net = SimNetwork(1, job_delay=(0.02, 0.02))
    net.add("ledger", lambda node: [Ledger(node)])
    net.add("writer", lambda node: [Writer(node)])
    net.run(2)
    batches = net.nodes["ledger"].services[0].batches
    assert sum(batches) / len(batches) > 5


def test_a_crash_tears_running_jobs():
    """Of a group that runs when the machine goes down, any number of entries may be in the file, also half a one."""
    kept = set()
    torn = 0
    for seed in range(200):
        net = SimNetwork(seed, job_delay=(0.02, 0.02))
        ledger = net.add("ledger", lambda node: [Ledger(node)])
        net.add("writer", lambda node: [Writer(node)])
        net.run_until(lambda ledger=ledger: len(ledger.hosts[0].running) >= 5)
        safe, running = len(ledger.services[0].entries), len(ledger.hosts[0].running)
        net.restart("ledger")
        after = len(ledger.services[0].entries)
        assert safe <= after <= safe + running
        kept.add("none" if after == safe else "all" if after == safe + running else "some")
        torn += ledger.services[0].torn
    assert kept == {"none", "some", "all"}
    assert torn > 10


def test_a_service_error_in_a_job_function_is_a_result_not_a_failure():
    class Wrong(Ledger):
        def commit(self, entries):
            raise LookupError("on purpose")

    net = SimNetwork(1)
    net.add("ledger", lambda node: [Wrong(node)])
    net.add("writer", lambda node: [Writer(node)])
    net.run(0.5)
    counts = net.nodes["ledger"].service_hosts[0].counts
    assert counts.jobs_failed == counts.jobs > 0


def test_a_disk_with_a_capacity_cuts_a_write_short_where_it_is_full():
    disk = SimDisk(capacity=10)
    disk.append("a", b"123456")
    with pytest.raises(OSError, match="No space left"):
        disk.append("b", b"12345")
    assert disk.read("b") == b"1234"
    assert disk.used == 10
    disk.write("a", b"654321")  # needs no room
    disk.truncate("b")
    disk.append("b", b"4321")  # exactly what fits
    disk.capacity = None
    disk.append("b", b"more")


def test_allocated_room_is_taken_at_once_and_given_back_by_a_cut():
    disk = SimDisk(capacity=10)
    with pytest.raises(OSError, match="No space left"):
        disk.allocate("room", 11)
    assert disk.used == 0
    disk.allocate("room", 10)
    with pytest.raises(OSError, match="No space left"):
        disk.append("a", b"1")
    disk.crash(Random(1))
    assert disk.size("room") == 10
    disk.truncate("room", 9)
    disk.append("a", b"1")
