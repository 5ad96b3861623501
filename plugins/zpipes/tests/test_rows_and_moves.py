"""Answers in columns, pipes that are opened for a time, and moves, on virtual time."""

from __future__ import annotations

import json
from array import array
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.testing import Script, SimDisk
from scale0_zpipes.batches import pack_chunks, unpack_numbered
from scale0_zpipes.service import forgotten
from scale0_zpipes.service import pipe as pipe_module
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipe import Log
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings


class Pipes(Script):
    """A script with the words that are tried here."""

    def __init__(self, *, disk=None, **settings):
        journal = Journal(disk) if disk is not None else None
        super().__init__(ZpipesService(ZpipesSettings(**settings), journal=journal), start=1.0)

    def ask(self, *frames):
        self.feed("pipes", "c", *frames)
        ((_, answer),) = self.taken()
        return list(answer[1:])

    def taken(self):
        """Give what was sent, and forget it."""
        taken = list(self.sent)
        self.sent.clear()
        self._unexpected.clear()
        return taken

    def ok(self, *frames, says=(b"OK",)):
        assert self.ask(*frames) == list(says)

    def refused(self, code, *frames):
        answer = self.ask(*frames)
        assert answer[:2] == [b"ERROR", b"%d" % code], answer
        return answer[2].decode()

    def rows(self, name, group, start, chunks=100, size=100_000, ms=0):
        return in_rows(self.ask("ROWS", name, group, str(start), str(chunks), str(size), str(ms)))

    def info(self, name):
        return json.loads(self.ask("INFO", name)[1])

    def put(self, name, *chunks, writer="t", first=1):
        self.ok("PUT", name, writer, str(first), pack_chunks(chunks), says=(b"OK", b"%d" % (first + len(chunks))))


def in_rows(answer):
    """Read the answer to ROWS as a reader would: no byte may be over."""
    word, following, numbers, offsets, data = answer
    assert word == b"ROWS"
    counted, ends = array("q", numbers), array("i", offsets)
    assert len(ends) == len(counted) + 1
    assert (ends[0], ends[-1]) == (0, len(data))
    chunks = [data[start:end] for start, end in pairwise(ends)]
    return int(following), list(zip(counted, chunks, strict=True))


@pytest.fixture
def pipes():
    script = Pipes()
    script.ok("OPEN", "p")
    script.ok("GROUP", "p", "g", says=(b"OK", b"1"))
    return script


# --- ROWS -------------------------------------------------------------------------------------------------------------


def test_rows_are_what_fetch_gives_in_columns(pipes):
    pipes.put("p", b"one", b"", b"three")
    assert pipes.rows("p", "g", 1) == (4, [(1, b"one"), (2, b""), (3, b"three")])
    assert pipes.rows("p", "g", 2, chunks=1) == (3, [(2, b"")])
    assert pipes.rows("p", "g", 1, size=4) == (3, [(1, b"one"), (2, b"")])
    assert pipes.rows("p", "g", 3, size=1) == (4, [(3, b"three")])
    pipes.ok("ACK", "p", "g", "2")
    assert "acknowledged" in pipes.refused(410, "ROWS", "p", "g", "2", "9", "9", "0")
    assert pipes.rows("p", "g", 3) == (4, [(3, b"three")])


def test_rows_wait_and_are_empty_when_the_time_is_over(pipes):
    pipes.feed("pipes", "r", "ROWS", "p", "g", "1", "9", "99", "500")
    pipes.expect_nothing()
    pipes.sleep(0.5)
    ((_, frames),) = pipes.taken()
    assert in_rows(frames[1:]) == (1, [])
    assert pipes.rows("p", "g", 1) == (1, [])


def test_numbers_that_the_disk_refused_are_missing_and_nothing_is_lost():
    disk = SimDisk()
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.ok("OPEN", "d")
    pipes.ok("GROUP", "d", "g", says=(b"OK", b"1"))
    pipes.put("d", b"a")
    disk.fail_next(OSError("the disk is full"))
    pipes.refused(507, "PUT", "d", "t", "2", pack_chunks([b"b", b"c"]))
    pipes.put("d", b"b", b"c", first=2)
    assert pipes.rows("d", "g", 1) == (6, [(1, b"a"), (4, b"b"), (5, b"c")])
    pipes.ok("ACK", "d", "g", "1")
    assert pipes.rows("d", "g", 2) == (6, [(4, b"b"), (5, b"c")])


def test_what_was_thrown_away_is_told_also_after_a_restart():
    disk = SimDisk()
    pipes = Pipes(disk=disk, durable=("d",))
    for name in ("d", "p"):
        pipes.ok("OPEN", name)
        pipes.ok("GROUP", name, "g", says=(b"OK", b"1"))
        pipes.put(name, b"a", b"b")
        pipes.ok("PURGE", name, says=(b"OK", b"2"))
        pipes.put(name, b"c", first=3)
        assert "thrown away" in pipes.refused(410, "ROWS", name, "g", "2", "9", "99", "0")
        assert pipes.rows(name, "g", 3) == (4, [(3, b"c")])
    disk.crash(Random(1))
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.refused(410, "ROWS", "d", "g", "2", "9", "99", "0")
    assert pipes.rows("d", "g", 3) == (4, [(3, b"c")])


def test_rows_are_for_named_groups(pipes):
    assert "name" in pipes.refused(400, "ROWS", "p", "", "", "9", "9", "0")
    pipes.refused(404, "ROWS", "p", "other", "1", "9", "9", "0")
    pipes.refused(404, "ROWS", "q", "g", "1", "9", "9", "0")


@settings(max_examples=60, deadline=None)
@given(
    chunks=st.lists(st.binary(max_size=9), max_size=40),
    taken=st.integers(0, 40),
    start=st.integers(1, 45),
    most=st.integers(1, 45),
    size=st.integers(0, 120),
)
def test_rows_and_fetch_agree(chunks, taken, start, most, size):
    """Also where chunks are missing in between, since the nameless reader took them before the group came."""
    pipes = Pipes()
    pipes.ok("OPEN", "p")
    for place, chunk in enumerate(chunks):
        pipes.feed("pipes", f"w{place % 3}", "WRITE", "p", chunk)
    pipes.taken()
    pipes.ask("GROUP", "p", "lease", "first", "1000")
    for _ in range(min(taken, len(chunks))):
        pipes.ask("READ", "p")
    pipes.sleep(2)  # the lease is over, and with it goes what was taken
    pipes.ask("GROUP", "p", "g")
    arguments = ("p", "g", str(start), str(most), str(size), "0")
    fetched = pipes.ask("FETCH", *arguments)
    answer = pipes.ask("ROWS", *arguments)
    if fetched[0] == b"ERROR":
        assert answer == fetched
        return
    following, rows = in_rows(answer)
    assert (following, rows) == (int(fetched[1]), list(unpack_numbered(fetched[2])))
    total = sum(len(chunk) for _, chunk in rows)
    assert len(rows) <= 1 or total <= size
    there = [n for n in range(start, following) if n in {number for number, _ in rows}]
    assert there == [number for number, _ in rows]


def test_a_long_pipe_is_read_in_strides_to_its_end():
    pipes = Pipes()
    pipes.ok("OPEN", "p")
    pipes.ok("GROUP", "p", "g", says=(b"OK", b"1"))
    chunks = [b"%d" % number for number in range(5000)]
    pipes.put("p", *chunks)
    assert pipes.rows("p", "g", 1, chunks=4000) == (4001, list(enumerate(chunks[:4000], 1)))
    following, rows = pipes.rows("p", "g", 1, chunks=9000, size=10_000)
    assert sum(map(len, chunks[: len(rows)])) <= 10_000 < sum(map(len, chunks[: len(rows) + 1]))
    assert following == len(rows) + 1


# --- pipes for a time -------------------------------------------------------------------------------------------------


def test_a_pipe_that_was_opened_for_a_time_is_forgotten_when_nobody_uses_it():
    pipes = Pipes()
    pipes.ok("OPEN", "t", "1000")
    pipes.put("t", b"x")
    pipes.sleep(0.9)
    pipes.put("t", b"y", first=2)
    pipes.sleep(0.9)
    assert pipes.info("t")["chunks"] == 2
    pipes.sleep(1.1)
    pipes.refused(404, "INFO", "t")
    assert pipes.service._stock.depth == pipes.service._stock.bytes == 0


def test_a_pipe_is_opened_for_a_time_or_for_good():
    pipes = Pipes()
    pipes.ok("OPEN", "p")
    pipes.refused(409, "OPEN", "p", "1000")
    pipes.refused(400, "OPEN", "q", "0")
    pipes.refused(400, "OPEN", "q", "soon")
    pipes.ok("OPEN", "q", "1000")
    pipes.ok("OPEN", "q", "3000")
    pipes.sleep(2)
    assert pipes.info("q")["chunks"] == 0


# --- moves ------------------------------------------------------------------------------------------------------------


def staged(pipes, name, *chunks):
    pipes.ok("OPEN", name, "60000")
    if chunks:
        pipes.put(name, *chunks)


def test_a_move_puts_all_at_the_end_in_order_and_takes_the_pipes_away(pipes):
    pipes.put("p", b"0", writer="w")
    staged(pipes, "t1", b"1", b"2")
    staged(pipes, "t2")
    staged(pipes, "t3", b"3")
    pipes.ok("MOVE", "p", "query", "1", "t1", "t2", "t3", says=(b"OK", b"2"))
    assert pipes.rows("p", "g", 1) == (5, [(1, b"0"), (2, b"1"), (3, b"2"), (4, b"3")])
    for name in ("t1", "t2", "t3"):
        pipes.refused(404, "INFO", name)
    assert pipes.service._stock.depth == 4
    assert pipes.service._stock.bytes == 4


def test_a_move_of_a_number_that_was_moved_before_stores_nothing(pipes):
    staged(pipes, "t1", b"1")
    pipes.ok("MOVE", "p", "query", "1", "t1", says=(b"OK", b"2"))
    pipes.ok("MOVE", "p", "query", "1", "t1", says=(b"OK", b"2"))
    staged(pipes, "again", b"other")
    pipes.ok("MOVE", "p", "query", "1", "again", says=(b"OK", b"2"))
    pipes.refused(404, "INFO", "again")
    staged(pipes, "t7", b"7")
    pipes.ok("MOVE", "p", "query", "7", "t7", says=(b"OK", b"8"))
    pipes.ok("MOVE", "p", "query", "8", says=(b"OK", b"9"))
    pipes.ok("MOVE", "p", "query", "5", "gone", says=(b"OK", b"9"))
    assert pipes.rows("p", "g", 1) == (3, [(1, b"1"), (2, b"7")])


def test_readers_that_wait_get_what_is_moved(pipes):
    staged(pipes, "t", b"1", b"2")
    pipes.feed("pipes", "r", "ROWS", "p", "g", "1", "9", "99", "500")
    pipes.feed("pipes", "c", "MOVE", "p", "query", "1", "t")
    (_, rows), (_, answer) = pipes.taken()
    assert in_rows(rows[1:]) == (3, [(1, b"1"), (2, b"2")])
    assert answer[1:] == (b"OK", b"2")


def test_what_cannot_be_moved_stays_where_it_is():
    pipes = Pipes(max_pipe_chunks=3)
    pipes.ok("OPEN", "p")
    staged(pipes, "t1", b"1", b"2")
    staged(pipes, "t2", b"3", b"4")
    pipes.refused(413, "MOVE", "p", "query", "1", "t1", "t2")
    pipes.put("p", b"a", b"b", writer="w")
    pipes.refused(429, "MOVE", "p", "query", "1", "t1")
    pipes.refused(404, "MOVE", "p", "query", "1", "t1", "none")
    pipes.refused(404, "MOVE", "none", "query", "1", "t1")
    pipes.refused(400, "MOVE", "p", "query", "1", "t1", "t1")
    pipes.refused(400, "MOVE", "t1", "query", "1", "t1")
    pipes.refused(400, "MOVE", "t1", "query", "1", "p")
    pipes.refused(400, "MOVE", "p", "query", "0", "t1")
    pipes.refused(400, "MOVE", "p", "", "1", "t1")
    pipes.refused(400, "MOVE", "p", "query")
    assert pipes.info("t1")["chunks"] == 2
    assert pipes.ask("READ", "p") == [b"a"]
    pipes.ok("MOVE", "p", "query", "1", "t1", says=(b"OK", b"2"))
    assert pipes.info("p")["chunks"] == 3


def test_a_pipe_that_somebody_reads_is_not_moved(pipes):
    staged(pipes, "t")
    pipes.feed("pipes", "r", "READ", "t")
    pipes.refused(409, "MOVE", "p", "query", "1", "t")
    staged(pipes, "u", b"1")
    pipes.ok("GROUP", "u", "g", says=(b"OK", b"1"))
    pipes.refused(409, "MOVE", "p", "query", "1", "u")


def drained(pipes, name):
    """Read all, and close the only link, as a consumer does that is done."""
    while pipes.info(name)["chunks"]:
        pipes.ask("READ", name)
    pipes.ok("CLOSE", name)
    pipes.sleep(0.5)
    pipes.refused(404, "INFO", name)


def test_a_move_is_made_once_though_its_pipe_was_drained_and_forgotten_in_between():
    """A consumer has the only link; the writer dies after the move, and makes it again when it is back."""
    pipes = Pipes()
    pipes.ok("OPEN", "p")
    staged(pipes, "t1", b"1")
    pipes.ok("MOVE", "p", "query", "1", "t1", says=(b"OK", b"2"))
    drained(pipes, "p")
    pipes.ok("OPEN", "p")
    staged(pipes, "t2", b"1")
    pipes.ok("MOVE", "p", "query", "1", "t2", says=(b"OK", b"2"))
    pipes.refused(404, "INFO", "t2")
    assert pipes.info("p")["chunks"] == 0
    drained(pipes, "p")
    pipes.ok("OPEN", "p")
    staged(pipes, "t3", b"2")
    pipes.ok("MOVE", "p", "query", "1", says=(b"OK", b"2"))
    pipes.ok("MOVE", "p", "query", "2", "t3", says=(b"OK", b"3"))
    assert pipes.ask("READ", "p") == [b"2"]


def test_chunks_that_are_put_again_are_known_though_their_pipe_was_forgotten_in_between():
    pipes = Pipes()
    pipes.ok("OPEN", "p")
    pipes.put("p", b"1", b"2", writer="w")
    drained(pipes, "p")
    pipes.ok("OPEN", "p")
    pipes.put("p", b"1", b"2", writer="w")
    pipes.put("p", b"3", writer="w", first=3)
    pipes.put("p", b"1", writer="another")
    assert pipes.info("p")["chunks"] == 2


def test_writers_of_a_forgotten_pipe_are_known_as_long_as_an_empty_pipe_is_kept():
    for seconds, chunks in ((8, 0), (11, 1)):
        pipes = Pipes(expire_empty=10.0)
        pipes.ok("OPEN", "p")
        pipes.put("p", b"1", writer="w")
        drained(pipes, "p")
        pipes.sleep(seconds)
        pipes.ok("OPEN", "p")
        pipes.put("p", b"1", writer="w")
        assert pipes.info("p")["chunks"] == chunks


def test_of_very_many_writers_of_forgotten_pipes_the_oldest_are_dropped(monkeypatch):
    monkeypatch.setattr(forgotten, "MOST_NUMBERS", 3)
    pipes = Pipes(expire_empty=0.0)
    for name in ("a", "b", "c"):
        pipes.ok("OPEN", name)
        pipes.put(name, b"1", writer="w")
        pipes.put(name, b"1", writer="v")
        drained(pipes, name)
    for name, chunks in (("a", 1), ("b", 1), ("c", 0)):
        pipes.ok("OPEN", name)
        pipes.put(name, b"1", writer="w")
        assert pipes.info(name)["chunks"] == chunks


def test_what_was_written_to_a_pipe_for_a_time_is_not_known_later():
    pipes = Pipes()
    staged(pipes, "t", b"1")
    pipes.ok("PURGE", "t", says=(b"OK", b"1"))
    staged(pipes, "t", b"1")
    assert pipes.info("t")["chunks"] == 1


def test_a_move_to_a_durable_pipe_is_there_whole_after_a_crash_and_is_not_made_again():
    disk = SimDisk()
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.ok("OPEN", "d")
    staged(pipes, "t1", b"1", b"2")
    staged(pipes, "t2", b"3")
    pipes.ok("MOVE", "d", "query", "1", "t1", "t2", says=(b"OK", b"2"))
    pipes.ok("MOVE", "d", "query", "2", says=(b"OK", b"3"))
    disk.crash(Random(1))
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.ok("GROUP", "d", "g", says=(b"OK", b"1"))
    staged(pipes, "t3", b"other")
    pipes.ok("MOVE", "d", "query", "2", "t3", says=(b"OK", b"3"))
    assert pipes.rows("d", "g", 1) == (4, [(1, b"1"), (2, b"2"), (3, b"3")])


def test_a_staging_pipe_is_never_on_disk():
    disk = SimDisk()
    pipes = Pipes(disk=disk, durable=("*",))
    staged(pipes, "t", b"1")
    assert pipes.info("t")["durable"] is False
    disk.crash(Random(1))
    Pipes(disk=disk, durable=("*",)).refused(404, "INFO", "t")


def test_a_move_that_the_disk_refuses_may_be_made_again():
    disk = SimDisk()
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.ok("OPEN", "d")
    staged(pipes, "t0", b"0")
    pipes.ok("MOVE", "d", "query", "1", "t0", says=(b"OK", b"2"))
    staged(pipes, "t1", b"1", b"2")
    disk.fail_next(OSError("the disk is full"))
    assert "full" in pipes.refused(507, "MOVE", "d", "query", "2", "t1")
    assert (pipes.info("d")["chunks"], pipes.info("t1")["chunks"]) == (1, 2)
    pipes.ok("MOVE", "d", "query", "2", "t1", says=(b"OK", b"3"))
    assert pipes.info("d")["chunks"] == 3
    assert pipes.service._stock.depth == 3


@settings(max_examples=40, deadline=None)
@given(batches=st.lists(st.lists(st.binary(max_size=5), max_size=6), max_size=5), seed=st.integers(0, 2**32))
def test_moves_that_are_repeated_across_crashes_store_each_batch_once(batches, seed):
    random, disk = Random(seed), SimDisk()
    pipes = Pipes(disk=disk, durable=("d",))
    pipes.ok("OPEN", "d")
    pipes.ok("GROUP", "d", "g", says=(b"OK", b"1"))
    for number, chunks in enumerate(batches, 1):
        for attempt in range(3):
            middle = random.randint(0, len(chunks))
            staged(pipes, f"a{attempt}", *chunks[:middle])
            staged(pipes, f"b{attempt}", *chunks[middle:])
            said = pipes.ask("MOVE", "d", "query", str(number), f"a{attempt}", f"b{attempt}")
            assert said == [b"OK", b"%d" % (number + 1)]
            if random.random() < 0.5:
                disk.crash(random)
                pipes = Pipes(disk=disk, durable=("d",))
    wanted = [chunk for chunks in batches for chunk in chunks]
    assert pipes.rows("d", "g", 1) == (len(wanted) + 1, list(enumerate(wanted, 1)))


@given(
    sizes=st.dictionaries(st.integers(1, 60), st.integers(0, 9), max_size=60) | st.lists(st.integers(0, 9)).map(
        lambda all_of: dict(enumerate(all_of, 1))
    ),
    start=st.integers(1, 70),
    most=st.integers(1, 70),
    size=st.integers(0, 200),
    stride=st.sampled_from([1, 2, 7, 1024]),
)  # fmt: skip
def test_what_is_chosen_is_what_a_plain_loop_chooses(sizes, start, most, size, stride):
    log = Log(1)
    log.chunks = {number: bytes(length) for number, length in sorted(sizes.items())}
    log.last = max(log.chunks, default=0)
    wanted, total = [], 0
    for number, chunk in log.chunks.items():
        if number >= start and len(wanted) < most and (not wanted or total + len(chunk) <= size):
            wanted.append(number)
            total += len(chunk)
        elif number >= start:
            break
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipe_module, "_STRIDE", stride)
        numbers, chunks, following = log.chosen(start, most, size)
    assert (list(numbers), chunks) == (wanted, [log.chunks[number] for number in wanted])
    assert not any(number in log.chunks for number in range(max([start - 1, *wanted]) + 1, following))
