"""Durable pipes on virtual time and a simulated disk."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.testing import DiskCrashed, Script, SimDisk, check_service
from scale0_zpipes.batches import pack_chunks, unpack_numbered
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings

DURABLE = ZpipesSettings(durable=("d*",))


def broker(disk: SimDisk, *, job_delay: float = 0.0, **more) -> Script:
    """Start a broker on this disk; what was on it before is read."""
    settings_ = ZpipesSettings(durable=("d*",), **more)
    return Script(ZpipesService(settings_, journal=Journal(disk)), start=1.0, job_delay=job_delay)


def ok(script: Script, *frames) -> None:
    script.feed("pipes", "c", *frames)
    script.expect("pipes", "c", "OK")


def read(script: Script, name: str, *chunks: str) -> None:
    for chunk in chunks:
        script.feed("pipes", "c", "READ", name)
        script.expect("pipes", "c", chunk)


def info(script: Script, name: str) -> dict:
    script.feed("pipes", "c", "INFO", name)
    return json.loads(script.expect("pipes", "c", "INFO", ...)[-1])


def test_the_answer_to_a_write_comes_when_it_is_on_disk():
    disk = SimDisk()
    script = broker(disk, job_delay=0.01)
    script.sleep(0.1)
    ok(script, "OPEN", "d")
    script.feed("pipes", "r", "READ", "d")
    script.feed("pipes", "w", "WRITE", "d", "x")
    script.expect_nothing()
    script.sleep(0.02)
    script.expect("pipes", "r", "x")
    script.expect("pipes", "w", "OK")


def test_chunks_groups_and_writers_survive_a_crash():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    for chunk in ("1", "2", "3"):
        ok(script, "WRITE", "d", chunk)
    script.feed("pipes", "c", "PUT", "d", "me", "1", pack_chunks([b"4", b"5"]))
    script.expect("pipes", "c", "OK", "3")
    script.feed("pipes", "c", "GROUP", "d", "g")
    script.expect("pipes", "c", "OK", "1")
    ok(script, "ACK", "d", "g", "2")
    disk.crash(Random(1))

    script = broker(disk)
    row = info(script, "d")
    assert (row["first"], row["next"], row["chunks"], row["durable"]) == (3, 6, 3, True)
    assert row["groups"] == {"g": {"next": 3}}
    script.feed("pipes", "c", "PUT", "d", "me", "2", pack_chunks([b"5", b"6"]))
    script.expect("pipes", "c", "OK", "4")
    script.feed("pipes", "c", "FETCH", "d", "g", "3", "10", "100", "0")
    batch = script.expect("pipes", "c", "BATCH", "7", ...)[-1]
    assert list(unpack_numbered(batch)) == [(3, b"3"), (4, b"4"), (5, b"5"), (6, b"6")]


def test_what_was_read_does_not_come_again_after_a_proper_stop():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    for chunk in ("1", "2"):
        ok(script, "WRITE", "d", chunk)
    read(script, "d", "1")
    script.stop()
    disk.crash(Random(1))
    script = broker(disk)
    ok(script, "OPEN", "d")
    read(script, "d", "2")
    assert info(script, "d")["next"] == 3


def test_what_was_read_a_while_ago_does_not_come_again_after_a_crash():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    for chunk in ("1", "2"):
        ok(script, "WRITE", "d", chunk)
    read(script, "d", "1")
    script.sleep(1)
    disk.crash(Random(1))
    script = broker(disk)
    read(script, "d", "2")


def test_what_was_read_is_on_disk_with_the_next_write_or_a_few_milliseconds_later():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    for chunk in ("1", "2", "3"):
        ok(script, "WRITE", "d", chunk)
    read(script, "d", "1")
    script.sleep(0.001)  # so that it is known to be delivered
    ok(script, "WRITE", "d", "4")
    assert info(crashed(disk), "d")["first"] == 2
    read(script, "d", "2")
    script.sleep(0.006)
    assert info(crashed(disk), "d")["first"] == 3


def test_an_acknowledgement_is_answered_when_it_is_on_disk():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    for chunk in ("1", "2"):
        ok(script, "WRITE", "d", chunk)
    script.feed("pipes", "c", "FETCH", "d", "", "", "1", "100", "0")
    script.expect("pipes", "c", "BATCH", "2", ...)
    ok(script, "ACK", "d", "", "1")
    disk.crash(Random(1))
    read(broker(disk), "d", "2")


def test_a_chunk_for_a_vanished_reader_is_still_there():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    ok(script, "WRITE", "d", "1")
    script.refuse("pipes", "dead")
    script.feed("pipes", "dead", "READ", "d")
    script.sleep(1)
    assert info(script, "d")["chunks"] == 1
    script.stop()
    read(broker(disk), "d", "1")


def test_a_disk_that_refuses_is_told_and_nothing_is_kept():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    disk.fail_next(OSError(28, "No space left on device"))
    script.feed("pipes", "c", "WRITE", "d", "lost")
    assert b"No space" in script.expect("pipes", "c", "ERROR", "507", ...)[-1]
    assert info(script, "d") | {"chunks": 0, "bytes": 0} == info(script, "d")
    script.fail_next_job(RuntimeError("broken"))
    script.feed("pipes", "c", "PUT", "d", "me", "1", pack_chunks([b"a"]))
    script.expect("pipes", "c", "ERROR", "507", ...)
    script.feed("pipes", "c", "PUT", "d", "me", "1", pack_chunks([b"a"]))
    script.expect("pipes", "c", "OK", "2")
    read(script, "d", "a")


def test_a_journal_that_cannot_be_read_refuses_writes_and_other_pipes_go_on():
    class Broken(Journal):
        def open(self):
            raise OSError(5, "Input/output error")

    script = Script(ZpipesService(DURABLE, journal=Broken(SimDisk())), start=1.0)
    for name in ("d", "other"):
        ok(script, "OPEN", name)
    script.feed("pipes", "c", "WRITE", "d", "x")
    script.expect("pipes", "c", "ERROR", "507", ...)
    ok(script, "WRITE", "other", "x")
    read(script, "other", "x")


def test_requests_wait_until_the_pipes_on_disk_are_known():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    ok(script, "WRITE", "d", "1")
    script = broker(disk, job_delay=0.5)
    script.feed("pipes", "c", "READ", "d")
    script.expect_nothing()
    script.sleep(0.5)
    script.expect("pipes", "c", "1")


def test_a_pipe_that_is_forgotten_is_forgotten_on_disk():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    ok(script, "WRITE", "d", "1")
    read(script, "d", "1")
    script.sleep(1)
    ok(script, "CLOSE", "d")
    script = broker(disk)
    script.feed("pipes", "c", "READ", "d")
    script.expect("pipes", "c", "ERROR", "404", ...)


def test_a_pipe_with_writers_that_count_is_not_forgotten_at_once():
    """Its last answer may have been lost: then the writer puts the same again."""
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    script.feed("pipes", "c", "PUT", "d", "me", "1", pack_chunks([b"1"]))
    script.expect("pipes", "c", "OK", "2")
    read(script, "d", "1")
    ok(script, "CLOSE", "d")
    script.sleep(1)
    ok(script, "OPEN", "d")
    script.feed("pipes", "c", "PUT", "d", "me", "1", pack_chunks([b"1"]))
    script.expect("pipes", "c", "OK", "2")
    assert info(script, "d")["chunks"] == 0


def test_purge_is_on_disk_too():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "d")
    ok(script, "WRITE", "d", "1")
    script.feed("pipes", "c", "PURGE", "d")
    script.expect("pipes", "c", "OK", "1")
    disk.crash(Random(1))
    row = info(broker(disk), "d")
    assert (row["chunks"], row["next"]) == (0, 2)


@pytest.mark.requirement("R112")
def test_pipes_that_are_not_named_are_not_kept():
    disk = SimDisk()
    script = broker(disk)
    ok(script, "OPEN", "other")
    ok(script, "WRITE", "other", "1")
    script.stop()
    script = broker(disk)
    script.feed("pipes", "c", "READ", "other")
    script.expect("pipes", "c", "ERROR", "404", ...)


@settings(deadline=None, max_examples=150)
@given(
    steps=st.lists(st.sampled_from(["write", "put", "fetch", "crash"]), min_size=5, max_size=60),
    seed=st.integers(0, 2**32),
)
def test_whatever_was_acknowledged_is_read_once_and_in_order(steps, seed):
    """Crashes in the middle of writes; the reader acknowledges what it was given."""
    random, disk = Random(seed), SimDisk()
    run = Run(disk)
    for step in steps:
        try:
            if step == "crash":
                disk.crash_after(random.randint(0, 3))
            elif step == "fetch":
                run.fetch()
            else:
                run.put(random.randint(1, 3))
        except DiskCrashed:
            disk.crash(random)
            run.start()
    disk.crash(random)
    run.start()
    run.put(1)
    for _ in range(run.acknowledged + 1):
        run.fetch()
    assert run.got == list(range(1, run.acknowledged + 1))


class Run:
    """A writer that puts again what was not acknowledged, and a reader that leaves out what it had before."""

    def __init__(self, disk: SimDisk) -> None:
        self.disk = disk
        self.tried = self.acknowledged = self.last = 0
        self.got: list[int] = []
        self.start()

    def start(self) -> None:
        self.script = broker(self.disk)
        ok(self.script, "OPEN", "d")

    def put(self, more: int) -> None:
        chunks = [
            b"%d" % number for number in range(self.acknowledged + 1, max(self.tried, self.acknowledged) + more + 1)
        ]
        self.tried = self.acknowledged + len(chunks)
        self.script.feed("pipes", "c", "PUT", "d", "me", str(self.acknowledged + 1), pack_chunks(chunks))
        self.script.expect("pipes", "c", "OK", str(self.tried + 1))
        self.acknowledged = self.tried

    def fetch(self) -> None:
        self.script.feed("pipes", "c", "FETCH", "d", "", "", "3", "100", "0")
        batch = list(unpack_numbered(self.script.expect("pipes", "c", "BATCH", ..., ...)[-1]))
        if batch:
            self.got += [int(chunk) for number, chunk in batch if number > self.last]
            self.last = max(self.last, batch[-1][0])
            ok(self.script, "ACK", "d", "", str(batch[-1][0]))


@pytest.mark.seeds(3)
def test_conformance_with_a_journal(seed):
    check_service(lambda: ZpipesService(ZpipesSettings(durable=("*",)), journal=Journal(SimDisk())), seed=seed)


# --- every acknowledgement ----------------------------------------------------------------------------------------


def chunks_of(script: Script) -> list[bytes]:
    script.feed("pipes", "c", "FETCH", "d", "", "", "1000", "100000", "0")
    return [chunk for _, chunk in unpack_numbered(script.expect("pipes", "c", "BATCH", ..., ...)[-1])]


def crashed(disk: SimDisk) -> Script:
    """Start a broker on what a crash at this moment leaves."""
    after = copy.deepcopy(disk)
    after.crash(Random(1))
    script = broker(after)
    ok(script, "OPEN", "d")
    return script


def slow_broker() -> tuple[Script, SimDisk]:
    """Start a broker with a durable pipe and three for a time, on a disk that takes a while."""
    disk = SimDisk()
    script = broker(disk, job_delay=0.01)
    script.sleep(0.1)
    ok(script, "OPEN", "d")
    for name in ("s1", "s2", "s3"):
        ok(script, "OPEN", name, "60000")
        ok(script, "WRITE", name, name)
    return script, disk


def answers(script: Script, *requests: tuple[str | bytes, ...]) -> Iterator[list[bytes]]:
    """Send requests, each while those before it are on their way to the disk; give each answer as it comes."""
    place = len(script.sent)
    for step in range(1000):
        if step % 4 == 0 and step // 4 < len(requests):
            script.feed("pipes", "c", *requests[step // 4])
        script.sleep(0.001)
        while len(script.sent) > place:
            yield [bytes(frame) for frame in script.sent[place][1][1:]]
            place += 1


def test_each_answer_to_puts_sent_ahead_covers_what_is_on_disk_and_no_more():
    chunks = [b"%d" % number for number in range(1, 11)]
    script, disk = slow_broker()
    puts = [("PUT", "d", "me", str(n), pack_chunks(chunks[n - 1 : n + 1])) for n in (1, 3, 5, 3, 7, 9)]
    acknowledged = []
    for says, following in answers(script, *puts):
        assert says == b"OK"
        acknowledged.append(int(following))
        found = chunks_of(crashed(disk))
        assert len(found) >= int(following) - 1
        assert found == chunks[: len(found)]
    assert acknowledged == [3, 5, 7, 7, 9, 11]


def test_each_answer_to_writes_sent_ahead_covers_what_is_on_disk():
    chunks = [b"%d" % number for number in range(1, 11)]
    script, disk = slow_broker()
    acknowledged = 0
    for answer in answers(script, *(("WRITE", "d", chunk) for chunk in chunks)):
        assert answer == [b"OK"]
        acknowledged += 1
        found = chunks_of(crashed(disk))
        assert len(found) >= acknowledged
        assert found == chunks[: len(found)]
    assert acknowledged == len(chunks)


def test_each_answer_to_moves_sent_ahead_covers_what_is_on_disk_and_no_more():
    script, disk = slow_broker()
    acknowledged = []
    for says, following in answers(script, *(("MOVE", "d", "me", str(n), f"s{n}") for n in (1, 2, 2, 3))):
        assert says == b"OK"
        acknowledged.append(int(following))
        found = chunks_of(crashed(disk))
        assert found == [b"s1", b"s2", b"s3"][: len(found)]
        assert len(found) >= int(following) - 1
    assert acknowledged == [2, 3, 3, 4]


@pytest.mark.parametrize("group", ["", "g"])
def test_each_answer_to_acks_sent_ahead_is_on_disk(group):
    script, disk = slow_broker()
    list(answers(script, ("PUT", "d", "me", "1", pack_chunks(b"%d" % n for n in range(1, 6)))))
    list(answers(script, ("GROUP", "d", group) if group else ("FETCH", "d", "", "", "5", "1000", "0")))
    acknowledged = [1, 1, 2, 3, 3]
    places = iter(acknowledged)
    for answer in answers(script, *(("ACK", "d", group, str(upto)) for upto in acknowledged)):
        assert answer == [b"OK"]
        upto, after = next(places), crashed(disk)
        if group:
            assert info(after, "d")["groups"][group]["next"] > upto
        else:
            assert int(chunks_of(after)[0]) > upto
    assert not list(places)


def test_a_group_that_is_made_twice_is_on_disk_before_either_answer():
    script, disk = slow_broker()
    count = 0
    for answer in answers(script, ("GROUP", "d", "g"), ("GROUP", "d", "g")):
        assert answer == [b"OK", b"1"]
        assert list(info(crashed(disk), "d")["groups"]) == ["g"]
        count += 1
    assert count == 2


def test_what_recovery_lost_is_shown_by_pipe():
    disk = SimDisk()
    script = broker(disk)
    for name in ("d", "d.other"):
        ok(script, "OPEN", name)
        ok(script, "WRITE", name, "1")
    place = disk.size(disk.names()[0])
    for chunk in ("2", "3"):
        ok(script, "WRITE", "d", chunk)
    ok(script, "WRITE", "d.other", "2")
    disk.write(disk.names()[0], b"#", place + 20)
    script = broker(disk)
    assert (info(script, "d")["lost"], info(script, "d.other")["lost"]) == (1, 0)
    ok(script, "OPEN", "d")
    read(script, "d", "1", "3")
