"""Answers in order, chunks in order, and what waits has a bound: on virtual time."""

from __future__ import annotations

import gc
from random import Random

import pytest

from scale0_core.api import KIB
from scale0_core.testing import Script, SimDisk
from scale0_zpipes.batches import ROOM, pack_chunks, unpack_numbered
from scale0_zpipes.service import binary
from scale0_zpipes.service.answers import PROBE
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipe import BlockedWrite
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings


class Pipes(Script):
    """A script that shows what each connection was answered."""

    def __init__(self, *, durable=(), disk=None, job_delay=0.0, **settings):
        journal = Journal(disk or SimDisk()) if durable else None
        service = ZpipesService(ZpipesSettings(durable=durable, **settings), journal=journal)
        super().__init__(service, start=1.0, job_delay=job_delay)
        self.sleep(0.1)

    def say(self, peer, *frames):
        self.feed("pipes", peer, *(str(frame) if isinstance(frame, int) else frame for frame in frames))

    def open(self, *names, peer="o"):
        for name in names:
            self.say(peer, "OPEN", name)
        self.sleep(0.1)
        self.told(peer)

    def told(self, peer):
        """Take what a connection was answered since somebody looked: one word each, or the code of a refusal."""
        mine = [frames for _, frames in self.sent if frames[0] == peer.encode()]
        self.sent[:] = [send for send in self.sent if send[1][0] != peer.encode()]
        self._unexpected.clear()
        return [frames[2].decode() if frames[1] == b"ERROR" else frames[1].decode("latin-1") for frames in mine]

    def put(self, peer, writer, first, *chunks, name="p", ms=None):
        batch = pack_chunks(chunk.encode() for chunk in chunks)
        self.say(peer, "PUT", name, writer, first, batch, *(() if ms is None else (ms,)))

    def read_all(self, name="p", peer="r"):
        found = []
        while True:
            self.say(peer, "READ", name, "0")
            (answer,) = self.told(peer)
            if answer == "408":
                return found
            found.append(answer)


def numbers(count, start=0):
    return [str(number) for number in range(start, start + count)]


# --- answers in order -------------------------------------------------------------------------------------------------


def test_writes_sent_ahead_into_a_full_pipe_are_all_stored_in_order_and_answered_in_order():
    """The trial: 10 places, few writes may wait, 20 are sent ahead: 10 got OK, 6 got 429 at once, 4 got OK later."""
    pipes = Pipes(max_pipe_chunks=10, max_blocked=4)
    pipes.open("p")
    for number in range(20):
        pipes.say("w", "WRITE", "p", str(number))
    assert pipes.told("w") == ["OK"] * 10
    assert pipes.read_all() == numbers(20)
    assert pipes.told("w") == ["OK"] * 10


def test_beyond_the_bound_all_that_follows_is_refused_in_its_place():
    each = 256 + len("wWRITEp") + 1000
    pipes = Pipes(max_pipe_chunks=1, max_blocked_bytes=4 * 10 * each, max_message=1000)
    pipes.open("p")
    chunks = [f"{number:1000}" for number in range(40)]
    for chunk in chunks:
        pipes.say("w", "WRITE", "p", chunk)
    assert pipes.told("w") == ["OK"], "nothing overtakes the write that waits"
    stored = pipes.read_all()
    assert stored == chunks[:12], "one in the pipe, one that waits, and ten held: a quarter of the bound"
    assert pipes.told("w") == ["OK"] * 11 + ["429"] * 28
    pipes.say("w", "WRITE", "p", "again")
    assert pipes.told("w") == ["OK"]


def test_a_write_to_another_pipe_does_not_overtake_one_that_waits():
    pipes = Pipes(max_pipe_chunks=1)
    pipes.open("p", "q")
    for name, chunk in (("p", "1"), ("p", "2"), ("q", "3")):
        pipes.say("w", "WRITE", name, chunk)
    pipes.say("w", "WRITE", "nowhere", "4")
    pipes.say("w", "NONSENSE")
    pipes.say("w", "OPEN", "s")
    assert pipes.told("w") == ["OK"]
    pipes.say("w", "PING")
    assert pipes.told("w") == ["PONG"], "who only asks need not wait"
    assert pipes.read_all("p") == ["1", "2"]
    assert pipes.told("w") == ["OK", "OK", "404", "501", "OK"]


def test_who_reads_on_the_connection_that_waits_makes_room_for_itself():
    pipes = Pipes(max_pipe_chunks=1)
    pipes.open("p")
    for chunk in ("1", "2", "3"):
        pipes.say("w", "WRITE", "p", chunk)
    pipes.say("w", "READ", "p")
    assert pipes.told("w") == ["OK", "1", "OK"]


def test_puts_of_a_connection_are_answered_in_order_whatever_their_time():
    pipes = Pipes(max_pipe_chunks=1)
    pipes.open("p")
    pipes.put("w", "a", 1, "full")
    pipes.put("w", "b", 1, "long", ms=5000)
    pipes.put("w", "c", 1, "short", ms=1000)
    pipes.put("w", "d", 1, "hasty", ms=0)
    assert pipes.told("w") == ["OK"]
    pipes.sleep(4.999)
    assert pipes.told("w") == [], "the second has waited for too long, but the first has not"
    pipes.sleep(0.001)
    assert pipes.told("w") == ["408", "408", "429"]


def test_the_time_of_a_put_that_was_held_counts_from_when_it_came():
    pipes = Pipes(max_pipe_chunks=1)
    pipes.open("p")
    pipes.put("w", "a", 1, "full")
    pipes.put("w", "b", 1, "b", ms=3000)
    pipes.put("w", "c", 1, "c", ms=5000)
    pipes.sleep(3)
    assert pipes.told("w") == ["OK", "408"]
    pipes.sleep(1.999)
    assert pipes.told("w") == []
    pipes.sleep(0.001)
    assert pipes.told("w") == ["408"]


def test_what_is_answered_in_memory_does_not_overtake_what_the_disk_owes():
    pipes = Pipes(durable=("d",), job_delay=0.01)
    pipes.sleep(1)
    pipes.open("d", "m")
    for name in ("d", "d", "m"):
        pipes.say("w", "WRITE", name, "x")
    pipes.say("w", "WRITE", "nowhere", "x")
    pipes.say("w", "WRITE", "d", "x")
    pipes.put("w", "gap", 1, "x", name="d")
    pipes.put("w", "gap", 7, "x", name="d")
    assert pipes.told("w") == []
    pipes.sleep(1)
    assert pipes.told("w") == ["OK", "OK", "OK", "404", "OK", "OK", "409"]


def test_reads_beyond_the_bound_are_refused_in_their_place():
    pipes = Pipes(max_waiting=2)
    pipes.open("p")
    for _ in range(5):
        pipes.say("r", "READ", "p")
    assert pipes.told("r") == []
    for number in range(2):
        pipes.say("w", "WRITE", "p", str(number))
    assert pipes.told("r") == ["0", "1", "429", "429", "429"]
    pipes.say("r", "READ", "p")
    pipes.say("w", "WRITE", "p", "2")
    assert pipes.told("r") == ["2"]


def test_a_read_whose_time_is_over_waits_for_those_before_it():
    pipes = Pipes()
    pipes.open("p")
    pipes.say("r", "READ", "p", 5000)
    pipes.say("r", "READ", "p", 1000)
    pipes.say("r", "READ", "p")
    pipes.sleep(4)
    assert pipes.told("r") == []
    pipes.sleep(1)
    assert pipes.told("r") == ["408", "408"]
    pipes.say("r", "READ", "p", 1000)
    pipes.sleep(2)
    assert pipes.told("r") == []
    pipes.say("w", "WRITE", "p", "1")
    assert pipes.told("r") == ["1", "408"]


def test_of_a_leaving_reader_every_read_is_answered():
    pipes = Pipes(max_waiting=2)
    pipes.open("p", peer="r")
    for _ in range(4):
        pipes.say("r", "READ", "p")
    pipes.say("r", "CLOSE", "p")
    assert pipes.told("r") == ["404"] * 4 + ["OK"]


def test_binary_writes_sent_ahead_are_answered_in_order_when_the_reader_is_slow():
    pipes = Pipes(max_pipe_bytes=50)
    pipes.feed("pipes", "r", binary.with_string(binary.INPUT, b"p"))
    pipes.feed("pipes", "w", binary.with_string(binary.OUTPUT, b"p"))
    for number in range(20):
        pipes.feed("pipes", "w", binary.write(b"%05d" % number))
    assert len(pipes.told("w")) == 11
    for number in range(20):
        pipes.feed("pipes", "r", binary.read(5))
        assert pipes.told("r")[-1].encode("latin-1") == binary.read_ok(b"%05d" % number)
    assert pipes.told("w") == [binary.WRITE_OK.decode("latin-1")] * 10


# --- what waits is bounded --------------------------------------------------------------------------------------------


def waiting_writes():
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is BlockedWrite]


def test_a_put_that_waited_is_let_go_of_when_it_is_answered():
    before = len(waiting_writes())
    pipes = Pipes(max_pipe_chunks=1)
    pipes.open("p")
    pipes.say("w", "WRITE", "p", "x")
    for number in range(50):
        pipes.put(f"c{number}", f"w{number}", 1, "x" * 1000, ms=60_000)
    assert len(waiting_writes()) == before + 50
    assert len(pipes.read_all()) == 51
    assert len(waiting_writes()) == before
    assert pipes.service._writers.ordering.size == 0


def test_the_bytes_of_all_that_waits_are_bounded_at_the_exact_value():
    cost = 256 + 1000 + 64
    for most, second in ((2 * cost, []), (2 * cost - 1, ["429"])):
        pipes = Pipes(max_pipe_chunks=1, max_blocked_bytes=most)
        pipes.open("p")
        pipes.say("o", "WRITE", "p", "x")
        pipes.say("one", "WRITE", "p", "x" * 1000)
        pipes.say("two", "WRITE", "p", "x" * 1000)
        assert (pipes.told("one"), pipes.told("two")) == ([], second)


def test_what_comes_before_the_disk_was_read_is_bounded_and_answered_in_order():
    each = 256 + len("wWRITEd") + 1000
    pipes = Pipes(durable=("d",), job_delay=1.0, max_blocked_bytes=4 * 10 * each)
    pipes.say("w", "OPEN", "d")
    for number in range(30):
        pipes.say("w", "WRITE", "d", f"{number:1000}")
    pipes.say("w", "WRITE", "d", "small enough, but one before it was refused")
    pipes.say("other", "OPEN", "q")
    assert (pipes.told("w"), pipes.told("other")) == ([], []), "nothing overtakes what is held"
    pipes.sleep(5)
    assert pipes.told("w") == ["OK"] * 10 + ["429"] * 22
    assert pipes.told("other") == ["OK"], "one connection has a quarter of the bound"
    assert pipes.read_all("d") == [f"{number:1000}" for number in range(9)]
    pipes.say("w", "WRITE", "d", "again")
    pipes.sleep(2)
    assert pipes.told("w") == ["OK"]


# --- whose turn it is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [(), ("p",)])
@pytest.mark.parametrize("kind", ["WRITE", "PUT"])
def test_what_a_writer_left_comes_before_all_of_one_that_began_later(durable, kind):
    pipes = Pipes(durable=durable)
    for writer in ("a", "b", "c"):
        pipes.open("p", peer=writer)
        for number in range(3):
            if kind == "WRITE":
                pipes.say(writer, "WRITE", "p", f"{writer}{number}")
            else:
                pipes.put(writer, writer, number + 1, f"{writer}{number}")
        pipes.say(writer, "CLOSE", "p")
    assert pipes.read_all() == [f"{writer}{number}" for writer in "abc" for number in range(3)]


def test_writers_that_are_open_at_the_same_time_have_their_turns():
    pipes = Pipes()
    for writer in ("heavy", "light"):
        pipes.open("p", peer=writer)
    for number in range(100):
        pipes.say("heavy", "WRITE", "p", f"h{number}")
    pipes.say("light", "WRITE", "p", "l0")
    for writer in ("heavy", "light"):
        pipes.say(writer, "CLOSE", "p")
    pipes.open("p", peer="late")
    pipes.say("late", "WRITE", "p", "late")
    found = pipes.read_all()
    assert found.index("l0") == 1
    assert found[-1] == "late"


def test_a_writer_that_stays_open_is_not_delayed_by_what_others_leave():
    pipes = Pipes()
    pipes.open("p", peer="steady")
    pipes.say("steady", "WRITE", "p", "s0")
    assert pipes.read_all() == ["s0"]
    for writer in ("a", "b"):
        pipes.open("p", peer=writer)
        for number in range(50):
            pipes.say(writer, "WRITE", "p", f"{writer}{number}")
        pipes.say(writer, "CLOSE", "p")
    pipes.say("steady", "WRITE", "p", "s1")
    found = pipes.read_all()
    assert found.index("s1") == 1
    assert [chunk for chunk in found if chunk != "s1"] == [f"{w}{number}" for w in "ab" for number in range(50)]


def test_a_connection_that_closes_and_opens_again_is_another_writer():
    pipes = Pipes()
    for round_ in range(2):
        for writer in ("a", "b"):
            pipes.open("p", peer=writer)
            pipes.say(writer, "WRITE", "p", f"{writer}{round_}")
            pipes.say(writer, "CLOSE", "p")
    assert pipes.read_all() == ["a0", "b0", "a1", "b1"]


@pytest.mark.parametrize("kind", ["WRITE", "PUT"])
def test_what_a_writer_that_died_left_comes_first(kind):
    pipes = Pipes()

    def write(writer, number, peer):
        if kind == "WRITE":
            pipes.say(peer, "WRITE", "p", f"{writer}{number}")
        else:
            pipes.put(peer, writer, number + 1, f"{writer}{number}")

    pipes.open("p", peer="dead")
    for number in range(3):
        write("dead", number, "dead")
    pipes.refuse("pipes", "dead")
    pipes.sleep(1)
    pipes.lose_peer("pipes")
    pipes.sleep(1)
    pipes.open("p", peer="next")
    pipes.sleep(1)
    for number in range(3):
        write("next", number, "next")
    assert pipes.read_all() == [f"{writer}{number}" for writer in ("dead", "next") for number in range(3)]


def test_a_writer_that_was_taken_for_dead_has_its_turns_again_when_it_writes():
    pipes = Pipes()
    pipes.open("p", peer="quiet")
    for number in range(5):
        pipes.say("quiet", "WRITE", "p", f"q{number}")
    pipes.sleep(1)
    pipes.lose_peer("pipes")
    pipes.open("p", peer="next")
    pipes.say("next", "WRITE", "p", "n")
    pipes.say("quiet", "WRITE", "p", "q5")
    assert pipes.read_all().index("n") == 1


def test_a_writer_that_puts_and_lives_is_asked_and_keeps_its_turns():
    pipes = Pipes()
    pipes.open("p", peer="quiet")
    pipes.put("quiet", "quiet", 1, *(f"q{number}" for number in range(5)))
    pipes.told("quiet")
    pipes.sleep(1)
    pipes.lose_peer("pipes")
    pipes.open("p", peer="next")
    assert pipes.told("quiet") == [PROBE.decode()]
    pipes.put("next", "next", 1, "n")
    assert pipes.read_all().index("n") == 1


@pytest.mark.parametrize("durable", [(), ("p",)])
def test_purge_throws_away_what_waits_for_room_too(durable):
    disk = SimDisk()
    pipes = Pipes(durable=durable, disk=disk, max_pipe_chunks=2)
    pipes.open("p", "q")
    for number in range(6):
        pipes.say("dead", "WRITE", "p", str(number))
    pipes.say("dead", "WRITE", "q", "other")
    for number in range(4):
        pipes.put("alive", "me", number + 1, f"m{number}", ms=60_000)
    pipes.sleep(0.1)
    assert (pipes.told("dead"), pipes.told("alive")) == (["OK"] * 2, [])
    pipes.refuse("pipes", "dead")
    pipes.say("x", "PURGE", "p")
    pipes.sleep(0.1)
    assert [frames[2] for _, frames in pipes.sent if frames[0] == b"x"] == [b"10"]
    assert pipes.told("alive") == ["OK"] * 4
    assert pipes.read_all("p") == []
    assert pipes.read_all("q") == ["other"]
    pipes.put("alive", "me", 5, "m4")
    pipes.sleep(0.1)
    assert pipes.told("alive") == ["OK"]
    if durable:
        disk.crash(Random(1))
        pipes = Pipes(durable=durable, disk=disk)
        pipes.put("alive", "me", 6, "m5")
        pipes.sleep(0.1)
        assert pipes.told("alive") == ["OK"], "the writer's number was kept"
    assert pipes.read_all("p") == (["m4", "m5"] if durable else ["m4"])


# --- the largest chunk ------------------------------------------------------------------------------------------------


def test_a_chunk_of_exactly_max_message_is_taken_and_one_byte_more_is_refused():
    pipes = Pipes(max_message=1000)
    pipes.open("p")
    for size, word in ((1000, "OK"), (1001, "413")):
        pipes.say("w", "WRITE", "p", "x" * size)
        pipes.put("w", "me", 1, "x" * size)
        assert pipes.told("w") == [word] * 2
    pipes.say("r", "FETCH", "p", "", "", 10, 10_000, 0)
    batches = [frames for _, frames in pipes.sent if frames[0] == b"r"]
    assert [len(chunk) for _, chunk in unpack_numbered(batches[0][-1])] == [1000]
    assert pipes.service._too_large.count == 2


def test_a_chunk_that_is_too_large_is_refused_also_where_a_reader_waits():
    pipes = Pipes(max_message=1000)
    pipes.open("p")
    pipes.say("r", "READ", "p")
    pipes.say("w", "WRITE", "p", "x" * 1001)
    pipes.say("w", "WRITE", "p", "x" * 1000)
    assert pipes.told("w") == ["413", "OK"]
    assert pipes.told("r") == ["x" * 1000]


@pytest.mark.parametrize("waits", [False, True])
def test_the_same_in_the_binary_dialect(waits):
    pipes = Pipes(max_message=1000)
    pipes.feed("pipes", "r", binary.with_string(binary.INPUT, b"p"))
    pipes.feed("pipes", "w", binary.with_string(binary.OUTPUT, b"p"))
    if waits:
        pipes.feed("pipes", "r", binary.read(1000))
    pipes.told("w")
    for size in (1000, 1001, 1000):
        pipes.feed("pipes", "w", binary.write(b"x" * size))
    said = [word.encode("latin-1") for word in pipes.told("w")]
    assert [frame[:3] for frame in said] == [binary.WRITE_OK, binary.WRITE_FAILED, binary.WRITE_OK]
    assert b"1000 bytes" in said[1]


def test_a_batch_is_read_no_further_than_to_see_that_it_has_more_chunks_than_a_pipe_may_hold():
    """A frame of 32 MiB may have eight million empty chunks; to look at each stalls the broker for seconds."""
    pipes = Pipes(max_pipe_chunks=5)
    pipes.open("p")
    pipes.say("w", "PUT", "p", "me", 1, bytes(4 * 5))
    pipes.say("v", "PUT", "p", "you", 1, bytes(4 * 6) + b"and no batch behind that")
    assert (pipes.told("w"), pipes.told("v")) == (["OK"], ["413"])


def test_the_socket_takes_more_than_a_chunk_may_have():
    (endpoint,) = ZpipesService(ZpipesSettings(max_message=1000)).endpoints.values()
    assert endpoint.max_message == 2 * 1000 + ROOM
    assert ROOM >= 64 * KIB
