"""Several messages in one turn of the loop: what was sent is known only when all of them were taken.

Also messages that wait in the core for a slow reader, and writes that fail while others are on their way to the disk.
"""

from __future__ import annotations

import json
from random import Random

import pytest

from scale0_core.api import Job, JobResult
from scale0_core.testing import Script, SimDisk
from scale0_zpipes.batches import pack_chunks, unpack_numbered
from scale0_zpipes.service import binary
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings


def outcome(job: Job) -> JobResult:
    """Run a job."""
    value = job.function([job.argument])[0] if job.grouped else job.function(job.argument)
    return JobResult(job.token, error=value) if isinstance(value, Exception) else JobResult(job.token, value)


class Turns:
    """A service that takes several messages, then hears what became of its answers."""

    def __init__(self, *, durable=False, disk=None, **settings):
        journal = Journal(disk or SimDisk()) if durable else None
        self.service = ZpipesService(ZpipesSettings(durable=("*",) if durable else (), **settings), journal=journal)
        self.now = 1.0
        self.sent = []
        if durable:
            self.run(self.service.on_deadline(self.now))

    def run(self, effects):
        """Carry out jobs at once, give what is to be sent."""
        sends = []
        for effect in effects:
            if isinstance(effect, Job):
                sends += self.run(self.service.on_job(outcome(effect), self.now))
            else:
                sends.append(effect)
        return sends

    def turn(self, *messages, dead=(), delayed=()):
        """Let messages arrive in one turn; answers to ``dead`` peers fail, those to ``delayed`` ones wait."""
        self.now += 0.01
        answers = []
        for message in messages:
            frames = tuple(part.encode() if isinstance(part, str) else part for part in message)
            answers += self.run(self.service.receive("pipes", frames, self.now))
        told = []
        for socket, frames in answers:
            peer = frames[0].decode()
            if peer in dead:
                self.run(self.service.on_undelivered(socket, frames, "EHOSTUNREACH", self.now))
            elif peer in delayed:
                self.service.on_delayed(socket, frames, self.now)
                self.sent.append((socket, frames))
            else:
                told.append((peer, *frames[1:]))
        return told

    def pass_time(self):
        self.now += 1.0
        while (due := self.service.next_deadline()) is not None and due <= self.now:
            self.run(self.service.on_deadline(self.now))

    def info(self, name="p"):
        ((*_, text),) = self.turn(("i", "INFO", name))
        return json.loads(text)


OPEN = ("w", "OPEN", "p")


def write(chunk, peer="w"):
    return (peer, "WRITE", "p", chunk)


def read(peer="r"):
    return (peer, "READ", "p")


def test_a_chunk_is_not_lost_when_the_successor_comes_in_the_same_turn():
    turns = Turns()
    turns.turn(OPEN, read("old"))
    turns.service.on_peer_lost("pipes", turns.now + 0.001)
    told = turns.turn(write("a"), read("new"), dead=["old"])
    assert told == [("w", b"OK")]
    assert turns.info()["chunks"] == 1
    assert turns.turn(read("new")) == [("new", b"a")]


def test_a_chunk_that_was_purged_meanwhile_does_not_come_back():
    turns = Turns(durable=True)
    turns.turn(OPEN)
    turns.turn(write("a"))
    turns.turn(read("dead"), ("x", "PURGE", "p"), dead=["dead"])
    assert turns.info()["chunks"] == 0
    turns.turn(write("b"))
    assert turns.turn(read()) == [("r", b"b")]


def test_a_chunk_comes_back_though_the_pipe_got_its_first_group_meanwhile():
    turns = Turns()
    turns.turn(OPEN, write("a"), write("b"))
    turns.turn(read("dead"))
    turns.turn(write("c"))
    turns.turn(read("dead"), ("g", "GROUP", "p", "g"), dead=["dead"])
    assert turns.info()["chunks"] == 2
    assert [turns.turn(read()) for _ in range(2)] == [[("r", b"b")], [("r", b"c")]]


@pytest.mark.parametrize("request_", [b"\xaa\xa0\x63", binary.PING, binary.with_string(binary.CLOSE)], ids=repr)
@pytest.mark.parametrize("way", ["dead", "delayed"])
def test_an_answer_of_the_binary_dialect_is_never_taken_for_a_chunk_of_a_reader(request_, way):
    turns = Turns()
    turns.turn(OPEN, write("a"), read("both"))
    turns.turn(*[("both", request_)] * 5, **{way: ["both"]})
    for socket, frames in turns.sent:
        turns.run(turns.service.on_undelivered(socket, frames, "EHOSTUNREACH", turns.now))
    assert (turns.info()["chunks"], turns.info()["first"]) == (0, 2)


@pytest.mark.parametrize("durable", [False, True])
def test_chunks_that_wait_for_a_slow_reader_are_still_the_pipes_when_it_dies(durable):
    turns = Turns(durable=durable)
    turns.turn(OPEN)
    turns.turn(*(write(str(number)) for number in range(10)))
    turns.turn(*(read("slow") for _ in range(10)), delayed=["slow"])
    turns.pass_time()
    if durable:
        assert turns.info()["chunks"] == 10
    sent, rest = turns.sent[:4], turns.sent[4:]
    for socket, frames in sent:
        turns.service.on_sent(socket, frames, turns.now)
    for socket, frames in rest:
        turns.run(turns.service.on_undelivered(socket, frames, "EHOSTUNREACH", turns.now))
    turns.pass_time()
    assert turns.info()["chunks"] == 6
    assert [turns.turn(read())[0][1] for _ in range(6)] == [b"%d" % number for number in range(4, 10)]


def test_a_reader_that_is_too_far_behind_is_dropped_and_its_chunks_stay_in_order():
    turns = Turns()
    turns.turn(OPEN, *(read("slow") for _ in range(3)))
    turns.now += 0.01
    (answer, ok) = turns.service.receive("pipes", (b"w", b"WRITE", b"p", b"a"), turns.now)
    assert ok[1] == (b"w", b"OK")
    turns.run(turns.service.on_undelivered(*answer, "EAGAIN", turns.now))
    turns.turn(write("b"), write("c"))
    assert [turns.turn(read())[0][1] for _ in range(3)] == [b"a", b"b", b"c"]


def test_a_batch_that_could_not_be_sent_goes_back():
    turns = Turns()
    turns.turn(OPEN, write("a"))
    turns.now += 0.01
    (answer,) = turns.service.receive("pipes", (b"r", b"FETCH", b"p", b"", b"", b"9", b"99", b"0"), turns.now)
    turns.run(turns.service.on_undelivered(*answer, "EAGAIN", turns.now))
    assert turns.turn(read("other")) == [("other", b"a")]


# --- PUT --------------------------------------------------------------------------------------------------------------


def put(first, *chunks, ms=None, peer="w"):
    more = () if ms is None else (str(ms),)
    return (peer, "PUT", "p", "me", str(first), pack_chunks(chunk.encode() for chunk in chunks), *more)


def test_what_follows_a_put_that_timed_out_is_not_stored_without_it():
    script = Script(ZpipesService(ZpipesSettings(max_pipe_chunks=1)))
    for frames in (OPEN, write("full")):
        script.feed("pipes", *frames)
        script.expect("pipes", "w", "OK")
    script.feed("pipes", *put(1, "one", ms=1000))
    script.sleep(0.5)
    script.feed("pipes", *put(2, "two", ms=1000))
    script.sleep(0.5)
    script.expect("pipes", "w", "ERROR", "408", ...)
    script.expect("pipes", "w", "ERROR", "409", ...)
    script.feed("pipes", *read())
    script.expect("pipes", "r", "full")
    script.feed("pipes", *put(1, "one"))
    script.expect("pipes", "w", "OK", "2")


def test_when_a_write_to_disk_fails_those_under_way_fail_as_well():
    """Or the second would be stored and the first not, and sent again both would come twice."""
    disk = SimDisk()
    service = ZpipesService(ZpipesSettings(durable=("*",)), journal=Journal(disk))
    script = Script(service, start=1.0, job_delay=0.01)
    script.sleep(0.1)
    script.feed("pipes", *OPEN)
    script.expect("pipes", "w", "OK")
    disk.fail_next(OSError(28, "No space left on device"))
    script.feed("pipes", *put(1, "1", "2"))
    script.sleep(0.005)
    script.feed("pipes", *put(3, "3", "4"))
    script.sleep(0.1)
    script.expect("pipes", "w", "ERROR", "507", ...)
    script.expect("pipes", "w", "ERROR", "507", ...)
    script.feed("pipes", *put(1, "1", "2", "3", "4"))
    script.sleep(0.1)
    script.expect("pipes", "w", "OK", "5")
    script.feed("pipes", "r", "FETCH", "p", "", "", "100", "1000", "0")
    batch = script.expect("pipes", "r", "BATCH", ..., ...)[-1]
    assert [chunk for _, chunk in unpack_numbered(batch)] == [b"1", b"2", b"3", b"4"]


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_that_comes_late_gets_all_that_is_there():
    turns = Turns()
    turns.turn(OPEN, *(write(str(number)) for number in range(1, 8)))
    turns.turn(read("r"))
    turns.turn(("g", "GROUP", "p", "g1"))
    turns.turn(("g", "ACK", "p", "g1", "6"))
    assert turns.turn(("g", "GROUP", "p", "g2", "first")) == [("g", b"OK", b"2")]
    assert [turns.turn(read())[0][1] for _ in range(2)] == [b"2", b"3"]
    turns.pass_time()
    ((_, _, _, batch),) = turns.turn(("g", "FETCH", "p", "g2", "2", "100", "1000", "0"))
    assert [number for number, _ in unpack_numbered(batch)] == [2, 3, 4, 5, 6, 7]


def test_that_the_nameless_reader_is_in_use_and_how_far_it_came_survives_a_crash():
    disk = SimDisk()
    turns = Turns(durable=True, disk=disk)
    turns.turn(OPEN, *(write(str(number)) for number in range(1, 6)))
    turns.turn(read(), read())
    turns.turn(("g", "GROUP", "p", "g"))
    turns.turn(read())
    turns.pass_time()
    turns.pass_time()
    disk.crash(Random(1))
    turns = Turns(durable=True, disk=disk)
    turns.turn(("g", "ACK", "p", "g", "5"))
    assert turns.info()["chunks"] == 2, "the nameless reader has not read them"
    assert [turns.turn(read())[0][1] for _ in range(2)] == [b"4", b"5"]


def test_a_group_with_a_lease_is_forgotten_when_nobody_uses_it():
    script = Script(ZpipesService())
    for frames in (OPEN, write("1")):
        script.feed("pipes", *frames)
        script.expect("pipes", "w", "OK")
    script.feed("pipes", "t", "GROUP", "p", "tail", "next", "10000")
    script.expect("pipes", "t", "OK", "2")
    script.feed("pipes", *write("2"))
    script.expect("pipes", "w", "OK")
    for _ in range(3):
        script.sleep(9)
        script.feed("pipes", "t", "FETCH", "p", "tail", "2", "10", "100", "0")
        script.expect("pipes", "t", "BATCH", "3", ...)
    script.feed("pipes", "t", "ACK", "p", "tail", "2")
    script.expect("pipes", "t", "OK")
    for chunk in ("1", "2"):
        script.feed("pipes", *read())
        script.expect("pipes", "r", chunk)
    script.sleep(11)
    script.feed("pipes", "t", "FETCH", "p", "tail", "3", "10", "100", "0")
    script.expect("pipes", "t", "ERROR", "404", ...)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_heavy_writer_does_not_delay_a_light_one_when_the_pipe_is_full():
    turns = Turns(max_pipe_chunks=1)
    turns.turn(OPEN, *(write(f"h{number}", peer="heavy") for number in range(10)), write("light", peer="light"))
    got = [told[-1] for _ in range(4) for told in turns.turn(read()) if told[0] == "r"]
    assert b"light" in got


def test_one_writer_may_not_use_up_the_places_of_all():
    turns = Turns(max_pipe_chunks=1, max_blocked_bytes=100_000)
    turns.turn(OPEN, *(write("x" * 5000, peer="heavy") for _ in range(100)))
    assert turns.turn(write("x" * 5000, peer="light")) == []
    assert turns.info()["blocked"] < 10


def test_reads_that_were_answered_leave_no_timers_behind():
    turns = Turns()
    turns.turn(OPEN)
    for _ in range(5000):
        turns.turn(("r", "READ", "p", "86400000"), write("x"))
    assert len(turns.service._readers.timers) == 0


def test_a_pipe_whose_reader_died_expires():
    script = Script(ZpipesService(ZpipesSettings(expire=10.0, expire_empty=10.0)))
    script.feed("pipes", *OPEN)
    script.expect("pipes", "w", "OK")
    script.feed("pipes", *read("dead"))
    script.sleep(1)
    script.refuse("pipes", "dead")
    script.lose_peer("pipes")
    script.sleep(30)
    script.feed("pipes", "i", "INFO", "p")
    script.expect("pipes", "i", "ERROR", "404", ...)


# --- dialects ---------------------------------------------------------------------------------------------------------


def test_frames_behind_a_binary_message_are_ignored():
    turns = Turns()
    assert turns.turn(("b", b"\xaa\xa0\x13", "more")) == [("b", b"\xaa\xa0\x14")]


def test_a_read_behind_a_fetch_that_waits_is_refused():
    turns = Turns()
    turns.turn(OPEN)
    told = turns.turn(("r", "FETCH", "p", "", "", "9", "99", "1000"), read())
    assert [answer[1:3] for answer in told] == [(b"ERROR", b"409")]
