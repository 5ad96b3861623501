"""The text dialect on virtual time."""

from __future__ import annotations

import json

import pytest

from scale0_core.api import MIB
from scale0_core.testing import Script, check_service
from scale0_zpipes.batches import pack_chunks, pack_numbered, unpack_numbered
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings


class Pipes(Script):
    """A script with the words of the text dialect."""

    def __init__(self, **settings):
        super().__init__(ZpipesService(ZpipesSettings(**settings)))

    def ask(self, peer, *frames):
        self.feed("pipes", peer, *frames)

    def answer(self, peer, *frames):
        return self.expect("pipes", peer, *frames)[1:]

    def ok(self, peer, *frames):
        self.ask(peer, *frames)
        self.answer(peer, "OK")

    def refused(self, code, peer, *frames):
        self.ask(peer, *frames)
        return self.answer(peer, "ERROR", str(code), ...)[-1].decode()

    def write(self, name, *chunks, peer="w"):
        for chunk in chunks:
            self.ok(peer, "WRITE", name, chunk)

    def read(self, name, *chunks, peer="r"):
        for chunk in chunks:
            self.ask(peer, "READ", name)
            self.answer(peer, chunk)

    def fetch(self, name, group="", start="", chunks=100, size=100_000, ms=0, peer="r"):
        self.ask(peer, "FETCH", name, group, str(start), str(chunks), str(size), str(ms))
        return self.batch(peer)

    def batch(self, peer="r"):
        _, following, batch = self.answer(peer, "BATCH", ..., ...)
        return int(following), list(unpack_numbered(batch))

    def info(self, name):
        self.ask("i", "INFO", name)
        return json.loads(self.answer("i", "INFO", ...)[-1])

    def groups(self, name):
        self.ask("i", "GROUPS", name)
        return json.loads(self.answer("i", "GROUPS", ...)[-1])["groups"]

    def pipes(self, *arguments):
        self.ask("i", "LIST", *arguments)
        return json.loads(self.answer("i", "LIST", ...)[-1])


@pytest.fixture
def pipes():
    script = Pipes()
    script.ok("w", "OPEN", "p")
    return script


# --- the four commands ------------------------------------------------------------------------------------------------


@pytest.mark.requirement("R96")
def test_whole_chunks_come_out_as_they_went_in(pipes):
    """A one-way stream of chunks."""
    pipes.write("p", "one", "", "OK")
    pipes.read("p", "one", "", "OK")
    pipes.expect_nothing()


@pytest.mark.requirement("R110")
def test_a_read_of_an_empty_pipe_waits(pipes):
    pipes.ask("r", "READ", "p")
    pipes.sleep(3600)
    pipes.expect_nothing()
    pipes.ask("w", "WRITE", "p", "late")
    pipes.answer("r", "late")
    pipes.answer("w", "OK")


def test_a_req_socket_gets_its_empty_frame_back(pipes):
    pipes.ask("q", "", "OPEN", "p")
    pipes.answer("q", "", "OK")
    pipes.ask("q", "", "READ", "p")
    pipes.ask("q2", "", "WRITE", "p", "x")
    pipes.answer("q", "", "x")
    pipes.answer("q2", "", "OK")
    pipes.ask("q", "", "NONSENSE")
    pipes.answer("q", "", "ERROR", "501", ...)


@pytest.mark.requirement("R111")
def test_commands_may_be_sent_ahead_and_reads_are_answered_in_order(pipes):
    for _ in range(3):
        pipes.ask("r", "READ", "p")
    pipes.ask("r", "PING")
    pipes.answer("r", "PONG")
    for chunk in ("1", "2", "3", "4"):
        pipes.ask("w", "WRITE", "p", chunk)
    for chunk in ("1", "2", "3"):
        pipes.answer("r", chunk)
        pipes.answer("w", "OK")
    pipes.answer("w", "OK")
    pipes.read("p", "4")


def test_a_read_may_have_a_time_limit(pipes):
    pipes.ask("r", "READ", "p", "500")
    pipes.sleep(0.499)
    pipes.expect_nothing()
    pipes.sleep(0.001)
    pipes.answer("r", "ERROR", "408", ...)
    pipes.write("p", "kept")
    pipes.read("p", "kept")
    assert "no chunk" in pipes.refused(408, "r", "READ", "p", "0")


def test_a_timed_read_is_answered_in_time_and_only_once(pipes):
    pipes.ask("r", "READ", "p", "500")
    pipes.ask("w", "WRITE", "p", "x")
    pipes.answer("r", "x")
    pipes.answer("w", "OK")
    pipes.sleep(1)
    pipes.expect_nothing()


@pytest.mark.requirement("R99")
@pytest.mark.parametrize("name", [b"a/b", b"\x00", b"\xff\xfe", "größe".encode(), b"x" * 255, b"a\0b", b" "])
def test_a_name_is_any_bytes(name):
    script = Pipes()
    script.ok("w", "OPEN", name)
    script.ok("w", "WRITE", name, "x")
    script.read(name, "x")
    assert script.info(name)["id"] == name.hex()


def test_names_that_differ_behind_a_zero_byte_are_two_pipes():
    script = Pipes()
    script.ok("w", "OPEN", b"a\0b")
    script.refused(404, "w", "WRITE", b"a", "x")


@pytest.mark.requirement("R100")
@pytest.mark.requirement("R113")
def test_chunks_survive_the_applications_and_a_proper_close():
    """And the pipe is forgotten when it is closed and empty."""
    script = Pipes()
    script.ok("w1", "OPEN", "p")
    script.write("p", "1", "2", peer="w1")
    script.ok("w1", "CLOSE", "p")
    script.read("p", "1", peer="r1")
    script.ok("r2", "OPEN", "p")
    script.read("p", "2", peer="r2")
    script.ok("r2", "CLOSE", "p")
    script.refused(404, "r2", "READ", "p")
    assert script.pipes()["pipes"] == []


def test_a_pipe_that_was_closed_with_chunks_goes_with_the_last_one():
    script = Pipes()
    script.ok("w", "OPEN", "p")
    script.write("p", "1")
    script.ok("w", "CLOSE", "p")
    script.read("p", "1")
    script.sleep(1)
    assert script.pipes()["pipes"] == []


@pytest.mark.requirement("R114")
def test_streams_never_end(pipes):
    """A writer that leaves does not end the stream; what marks an end is the applications' affair."""
    pipes.write("p", "END")
    pipes.ok("w", "OPEN", "p")
    pipes.ok("w", "CLOSE", "p")
    pipes.read("p", "END")
    pipes.ask("r", "READ", "p")
    pipes.expect_nothing()


def test_a_reader_that_closes_while_it_waits_is_answered(pipes):
    pipes.ask("r", "READ", "p")
    pipes.ask("r", "CLOSE", "p")
    pipes.answer("r", "ERROR", "404", ...)
    pipes.answer("r", "OK")
    pipes.expect_nothing()


@pytest.mark.parametrize(
    ("code", "request_"),
    [
        (501, ["open", "p"]), (501, [b"x" * 100]), (501, [b"x" * 100_000]), (501, ["\N{SNOWMAN}"]),
        (400, ["OPEN"]), (400, ["OPEN", ""]), (400, ["OPEN", "x" * 256]), (400, ["OPEN", b"x" * 100_000]),
        (400, ["OPEN", "p", "q"]), (400, ["WRITE", "p"]), (400, ["WRITE", "p", "x", "y"]), (400, ["READ"]),
        (400, ["READ", "p", "soon"]), (400, ["READ", "p", "-1"]), (400, ["READ", "p", "9" * 30]),
        (400, ["READ", "p", ""]),
        (404, ["CLOSE", "q"]), (404, ["READ", "q"]), (404, ["WRITE", "q", "x"]), (404, ["INFO", "q"]),
        (404, ["PURGE", "q"]),
        (404, ["FETCH", "p", "g", "1", "1", "1", "1"]), (404, ["ACK", "p", "g", "0"]), (404, ["UNGROUP", "p", "g"]),
        (404, ["GROUPS", "q"]),
        (400, ["FETCH", "p", "", "1", "1", "1", "1"]), (400, ["ACK", "p", "", "1"]), (400, ["GROUP", "p", ""]),
        (410, ["GROUP", "p", "g", "7"]), (400, ["GROUP", "p", "g", "last"]),
        (400, ["PUT", "p", "", "1", ""]), (400, ["PUT", "p", "w", "0", ""]),
        (400, ["PUT", "p", "w", "1", b"\0\0\0\5abc"]), (400, ["PUT", "p", "w", "1", b"\0\0"]),
        (400, ["PUT", "p", "x" * 65, "1", ""]),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_answered(pipes, code, request_):
    assert pipes.refused(code, "x", *request_)
    pipes.expect_nothing()


def test_an_empty_message_is_answered(pipes):
    pipes.feed("pipes", "x")
    pipes.expect("pipes", "x", "ERROR", "400", ...)
    pipes.feed("pipes", "x", "")
    pipes.expect("pipes", "x", "", "ERROR", "400", ...)


def test_a_close_too_many_is_answered(pipes):
    pipes.write("p", "x")
    pipes.ok("w", "CLOSE", "p")
    pipes.refused(404, "w", "CLOSE", "p")


# --- several writers, one reader --------------------------------------------------------------------------------------


@pytest.mark.requirement("R98")
@pytest.mark.requirement("R115")
def test_several_writers_have_their_turns(pipes):
    """A heavy writer does not delay a light one."""
    pipes.write("p", *(f"h{number}" for number in range(100)), peer="heavy")
    pipes.write("p", "l1", "l2", peer="light")
    pipes.read("p", "h0", "l1", "h1", "l2", "h2", "h3")
    pipes.write("p", "l3", peer="light")
    pipes.read("p", "h4", "l3", "h5")


def test_one_reader_at_a_time_waits(pipes):
    pipes.ask("r", "READ", "p")
    pipes.refused(409, "other", "READ", "p")
    pipes.refused(409, "other", "FETCH", "p", "", "", "1", "1", "1")
    pipes.ask("w", "WRITE", "p", "x")
    pipes.answer("r", "x")
    pipes.answer("w", "OK")
    pipes.write("p", "y")
    pipes.read("p", "y", peer="other")


def test_a_reader_may_take_the_place_of_one_that_may_be_gone(pipes):
    pipes.ask("old", "READ", "p")
    pipes.ask("old", "READ", "p", "1000")
    pipes.sleep(1e-3)
    pipes.lose_peer("pipes")
    pipes.ask("new", "READ", "p")
    pipes.answer("old", "ERROR", "409", ...)
    pipes.answer("old", "ERROR", "409", ...)
    pipes.ask("w", "WRITE", "p", "x")
    pipes.answer("new", "x")
    pipes.answer("w", "OK")
    pipes.sleep(10)
    pipes.expect_nothing()


def test_chunks_for_a_vanished_reader_go_back_to_the_head_in_order(pipes):
    for _ in range(3):
        pipes.ask("dead", "READ", "p")
    pipes.refuse("pipes", "dead")
    pipes.write("p", "1", "2", "3")
    pipes.read("p", "1", "2", "3")


def test_chunks_for_a_vanished_reader_go_back_before_others(pipes):
    pipes.write("p", "0")
    pipes.read("p", "0", peer="dead")
    pipes.write("p", "1", "2", "3")
    pipes.refuse("pipes", "dead")
    pipes.ask("dead", "READ", "p")
    assert pipes.info("p")["chunks"] == 3
    pipes.read("p", "1", "2", "3")


def test_a_reader_of_two_pipes_gives_back_to_each_its_own():
    script = Pipes()
    for name in ("p", "q"):
        script.ok("w", "OPEN", name)
        script.ask("dead", "READ", name)
    script.refuse("pipes", "dead")
    script.write("q", "Q")
    script.write("p", "P")
    script.read("p", "P", peer="r1")
    script.read("q", "Q", peer="r2")


def test_the_last_chunk_of_a_closed_pipe_comes_back_too():
    script = Pipes()
    script.ok("w", "OPEN", "p")
    script.write("p", "1", "2")
    script.ok("w", "CLOSE", "p")
    script.read("p", "1", peer="dead")
    script.refuse("pipes", "dead")
    script.ask("dead", "READ", "p")
    script.read("p", "2")


# --- limits -----------------------------------------------------------------------------------------------------------


def test_a_write_to_a_full_pipe_waits_for_room():
    script = Pipes(max_pipe_chunks=2)
    script.ok("w", "OPEN", "p")
    script.write("p", "1", "2")
    script.ask("w", "WRITE", "p", "3")
    script.ask("w", "WRITE", "p", "4")
    script.expect_nothing()
    assert script.info("p")["blocked"] == 2
    script.read("p", "1")
    script.answer("w", "OK")
    script.ask("r", "READ", "p")
    script.answer("r", "2")
    script.answer("w", "OK")
    script.read("p", "3", "4")
    assert script.info("p")["blocked"] == 0


def test_a_write_to_a_full_pipe_is_refused_where_the_operator_wants_that():
    script = Pipes(max_pipe_bytes=10, when_full="refuse")
    script.ok("w", "OPEN", "p")
    script.write("p", "12345", "1234")
    assert "9 bytes" in script.refused(429, "w", "WRITE", "p", "12")
    script.write("p", "1")
    script.refused(413, "w", "WRITE", "p", "x" * 11)


def test_all_pipes_together_have_a_limit():
    script = Pipes(max_bytes=10)
    for name in ("p", "q"):
        script.ok("w", "OPEN", name)
    script.write("p", "12345678")
    script.ask("w", "WRITE", "q", "123")
    script.expect_nothing()
    script.ask("r", "READ", "p")
    script.answer("r", "12345678")
    script.answer("w", "OK")
    script.read("q", "123")


def test_writes_that_wait_have_a_limit_too():
    script = Pipes(max_pipe_chunks=1, max_blocked=1)
    script.ok("w", "OPEN", "p")
    script.write("p", "1")
    script.ask("w", "WRITE", "p", "2")
    script.refused(429, "other", "WRITE", "p", "3")
    script = Pipes(max_pipe_chunks=1, max_blocked_bytes=5)
    script.ok("w", "OPEN", "p")
    script.write("p", "1")
    script.refused(429, "w", "WRITE", "p", "123456")


def test_reads_that_wait_and_pipes_have_a_limit():
    script = Pipes(max_waiting=2, max_pipes=1)
    script.ok("w", "OPEN", "p")
    for _ in range(4):
        script.ask("r", "READ", "p")
    script.refused(429, "w", "OPEN", "q")
    script.ask("w", "WRITE", "p", "1")
    script.answer("r", "1")
    script.answer("w", "OK")
    script.ask("w", "WRITE", "p", "2")
    script.answer("r", "2")
    for _ in range(2):
        script.answer("r", "ERROR", "429", ...)
    script.answer("w", "OK")


def test_pipes_that_nobody_uses_expire():
    script = Pipes(expire_empty=100, expire=1000)
    for name in ("empty", "full", "waited"):
        script.ok("w", "OPEN", name)
    script.write("full", "x")
    script.ask("r", "READ", "waited")
    script.sleep(99)
    assert len(script.pipes()["pipes"]) == 3
    script.sleep(12)
    assert [row["name"] for row in script.pipes()["pipes"]] == ["full", "waited"]
    script.sleep(1000)
    assert [row["name"] for row in script.pipes()["pipes"]] == ["waited"]


def test_links_that_nobody_closed_do_not_keep_an_empty_pipe():
    script = Pipes()
    for peer in ("killed", "killed later"):
        script.ok(peer, "OPEN", "p")
    script.write("p", "x")
    script.read("p", "x")
    script.ok("w", "CLOSE", "p")
    assert script.info("p")["links"] == 1, "whose it was is not known"
    script.sleep(100_000)
    script.refused(404, "w", "INFO", "p")


def test_by_default_chunks_never_expire(pipes):
    pipes.write("p", "x")
    pipes.sleep(10_000_000)
    pipes.read("p", "x")


# --- PUT --------------------------------------------------------------------------------------------------------------


def put(script, first, *chunks, peer="w", writer="me", name="p"):
    script.ask(peer, "PUT", name, writer, str(first), pack_chunks(chunk.encode() for chunk in chunks))


def test_a_batch_is_stored_once_however_often_it_is_sent(pipes):
    put(pipes, 1, "a", "b")
    pipes.answer("w", "OK", "3")
    put(pipes, 1, "a", "b", peer="w-again")
    pipes.answer("w-again", "OK", "3")
    put(pipes, 2, "b", "c")
    pipes.answer("w", "OK", "4")
    put(pipes, 4)
    pipes.answer("w", "OK", "4")
    pipes.read("p", "a", "b", "c")
    pipes.expect_nothing()


def test_a_gap_is_refused_and_an_unknown_writer_may_begin_anywhere(pipes):
    put(pipes, 1, "a")
    pipes.answer("w", "OK", "2")
    put(pipes, 3, "c")
    pipes.answer("w", "ERROR", "409", ...)
    put(pipes, 7, "x", writer="other")
    pipes.answer("w", "OK", "8")


def test_a_batch_waits_for_room_as_a_whole():
    script = Pipes(max_pipe_chunks=3)
    script.ok("w", "OPEN", "p")
    script.write("p", "1", "2")
    put(script, 1, "a", "b")
    put(script, 1, "a", "b", peer="again")
    script.ask("v", "PUT", "p", "timed", "1", pack_chunks([b"t"]), "100")
    script.refused(429, "u", "PUT", "p", "hasty", "1", pack_chunks([b"t"]), "0")
    script.sleep(0.1)
    script.answer("v", "ERROR", "408", ...)
    script.ask("r", "READ", "p")
    script.answer("r", "1")
    script.answer("w", "OK", "3")
    script.answer("again", "OK", "3")
    script.read("p", "2", "a", "b")


# --- FETCH, ACK and groups --------------------------------------------------------------------------------------------


def test_what_is_lent_is_removed_when_it_is_acknowledged(pipes):
    pipes.write("p", "1", "2", "3")
    assert pipes.fetch("p", chunks=2) == (3, [(1, b"1"), (2, b"2")])
    assert pipes.info("p")["chunks"] == 3
    pipes.ok("r", "ACK", "p", "", "1")
    pipes.ok("r", "ACK", "p", "", "1")
    assert pipes.info("p")["first"] == 2
    pipes.refused(409, "r", "READ", "p")
    pipes.refused(409, "other", "ACK", "p", "", "2")
    assert pipes.fetch("p") == (4, [(3, b"3")])
    pipes.ok("r", "ACK", "p", "", "3")
    assert pipes.info("p")["chunks"] == 0


def test_what_was_lent_to_a_lost_reader_goes_to_the_next(pipes):
    pipes.write("p", "1", "2", "3")
    pipes.fetch("p", chunks=2, peer="dead")
    pipes.ok("dead", "ACK", "p", "", "1")
    pipes.sleep(1)
    pipes.refused(409, "r", "FETCH", "p", "", "", "9", "9", "0")
    pipes.lose_peer("pipes")
    pipes.ask("r", "FETCH", "p", "", "", "9", "9", "0")
    pipes.answer("dead", "PROBE")  # for a moment, libzmq may not know it yet
    pipes.answer("r", "ERROR", "409", ...)
    pipes.refuse("pipes", "dead")
    pipes.refused(409, "r", "FETCH", "p", "", "", "9", "9", "0")
    assert pipes.fetch("p") == (4, [(2, b"2"), (3, b"3")])


def test_a_reader_that_lives_is_asked_and_keeps_its_place(pipes):
    pipes.ask("r", "FETCH", "p", "", "", "9", "9", "10000")
    pipes.sleep(1)
    pipes.lose_peer("pipes")
    pipes.ask("other", "READ", "p")
    pipes.answer("r", "PROBE")
    pipes.answer("other", "ERROR", "409", ...)
    pipes.ask("w", "WRITE", "p", "x")
    assert pipes.batch() == (2, [(1, b"x")])
    pipes.answer("w", "OK")


def test_a_group_that_begins_later_leaves_the_chunks_before_it_alone(pipes):
    pipes.write("p", "1", "2")
    pipes.ask("g", "GROUP", "p", "g", "next")
    pipes.answer("g", "OK", "3")
    pipes.write("p", "3")
    pipes.ok("g", "ACK", "p", "g", "3")
    pipes.read("p", "1", "2", "3")


def test_a_fetch_waits_and_an_empty_batch_says_that_the_time_is_over(pipes):
    pipes.ask("r", "FETCH", "p", "", "", "10", "1000", "500")
    pipes.sleep(0.5)
    assert pipes.batch() == (1, [])
    pipes.ask("r", "FETCH", "p", "", "", "10", "1000", "500")
    pipes.ask("w", "WRITE", "p", "x")
    assert pipes.batch() == (2, [(1, b"x")])
    pipes.answer("w", "OK")


def test_a_fetch_gives_about_so_many_bytes(pipes):
    pipes.write("p", "12345", "12345", "12345")
    assert pipes.fetch("p", size=10)[0] == 3
    assert pipes.fetch("p", size=1) == (4, [(3, b"12345")])


def test_a_group_reads_without_removing_and_may_read_again(pipes):
    pipes.ask("g", "GROUP", "p", "g1")
    pipes.answer("g", "OK", "1")
    pipes.ask("g", "GROUP", "p", "g2", "next")
    pipes.answer("g", "OK", "1")
    pipes.write("p", "1", "2", "3")
    assert pipes.fetch("p", "g1", 1) == (4, [(1, b"1"), (2, b"2"), (3, b"3")])
    assert pipes.fetch("p", "g1", 2, chunks=1, peer="another") == (3, [(2, b"2")])
    pipes.ok("g", "ACK", "p", "g1", "2")
    pipes.refused(410, "g", "FETCH", "p", "g1", "2", "1", "1", "0")
    assert pipes.info("p")["first"] == 1
    pipes.ok("g", "ACK", "p", "g2", "3")
    assert pipes.info("p") | {"first": 3, "chunks": 1, "groups": {"g1": {"next": 3}, "g2": {"next": 4}}} == pipes.info(
        "p"
    )
    pipes.ask("g", "GROUP", "p", "g1")
    pipes.answer("g", "OK", "3")
    pipes.ok("g", "UNGROUP", "p", "g1")
    assert pipes.info("p")["chunks"] == 0


def test_a_group_waits_for_the_number_it_asks_for(pipes):
    pipes.ask("g", "GROUP", "p", "g")
    pipes.answer("g", "OK", "1")
    pipes.ask("r", "FETCH", "p", "g", "2", "10", "1000", "1000")
    pipes.write("p", "1")
    pipes.ask("w", "WRITE", "p", "2")
    assert pipes.batch() == (3, [(2, b"2")])
    pipes.answer("w", "OK")
    pipes.ask("r", "FETCH", "p", "g", "3", "10", "1000", "1000")
    pipes.sleep(1)
    assert pipes.batch() == (3, [])


def test_a_group_made_late_begins_with_what_is_there(pipes):
    pipes.write("p", "1", "2", "3", "4")
    pipes.read("p", "1")
    pipes.fetch("p", chunks=1)
    pipes.ask("g", "GROUP", "p", "g", "3")
    pipes.answer("g", "OK", "3")
    assert pipes.fetch("p", "g", 3, peer="g") == (5, [(3, b"3"), (4, b"4")])
    pipes.ok("g", "ACK", "p", "g", "4")
    assert pipes.info("p")["chunks"] == 3, "the nameless reader, which was there before, still needs them"
    pipes.ok("r", "ACK", "p", "", "2")
    assert pipes.fetch("p") == (5, [(3, b"3"), (4, b"4")])
    pipes.ok("r", "ACK", "p", "", "4")
    assert pipes.info("p")["chunks"] == 0


def test_without_a_nameless_reader_a_group_decides_alone_what_goes(pipes):
    pipes.ask("g", "GROUP", "p", "g")
    pipes.answer("g", "OK", "1")
    pipes.write("p", "1", "2", "3")
    pipes.ok("g", "ACK", "p", "g", "1")
    assert pipes.info("p")["chunks"] == 2
    pipes.read("p", "2")
    pipes.ok("g", "ACK", "p", "g", "3")
    pipes.sleep(1)
    assert pipes.info("p")["chunks"] == 1
    pipes.read("p", "3")
    pipes.sleep(1)
    assert pipes.info("p")["chunks"] == 0


def test_after_the_last_group_chunks_stay_for_the_nameless_reader(pipes):
    pipes.ask("g", "GROUP", "p", "g")
    pipes.answer("g", "OK", "1")
    pipes.write("p", "1", "2")
    pipes.ok("g", "UNGROUP", "p", "g")
    pipes.read("p", "1", "2")


def test_groups_are_listed_with_what_waits_for_them(pipes):
    assert pipes.groups("p") == []
    pipes.write("p", "1", "12", "123")
    for group in ("ahead", "b\xff"):
        pipes.ask("g", "GROUP", "p", group.encode("latin-1"))
        pipes.answer("g", "OK", "1")
    pipes.ask("g", "GROUP", "p", "leased", "next", "1500")
    pipes.answer("g", "OK", "4")
    pipes.write("p", "1234")
    pipes.ok("g", "ACK", "p", "ahead", "2")
    assert pipes.groups("p") == [
        {"name": "ahead", "id": b"ahead".hex(), "next": 3, "chunks": 2, "bytes": 7, "lease": None},
        {"name": "b\\xff", "id": "62ff", "next": 1, "chunks": 4, "bytes": 10, "lease": None},
        {"name": "leased", "id": b"leased".hex(), "next": 4, "chunks": 1, "bytes": 4, "lease": 1.5},
    ]
    pipes.ok("g", "UNGROUP", "p", b"b\xff")
    assert [row["name"] for row in pipes.groups("p")] == ["ahead", "leased"]
    assert pipes.info("p")["chunks"] == 2, "what was kept for that group alone is gone"
    pipes.ask("g", "PURGE", "p")
    pipes.answer("g", "OK", "2")
    assert [(row["chunks"], row["bytes"]) for row in pipes.groups("p")] == [(0, 0), (0, 0)]


# --- looking ----------------------------------------------------------------------------------------------------------


def test_info_tells_all_about_a_pipe(pipes):
    pipes.write("p", "12345", "123")
    pipes.read("p", "12345")
    pipes.sleep(2)
    assert pipes.info("p") == {
        "name": "p", "id": "70", "made": 0.0, "chunks": 1, "bytes": 3, "first": 2, "next": 3, "links": 1, "writers": 1,
        "readers": 0, "blocked": 0, "max_chunk": 16 * MIB,
        "durable": False, "lost": 0, "written": 2, "read": 1, "write_rate": 0.0, "read_rate": 0.0,
        "idle": 2.0, "groups": {},
    }  # fmt: skip
    pipes.write("p", "a", "b")
    pipes.read("p", "123")
    pipes.sleep(2)
    row = pipes.info("p")
    assert (row["write_rate"], row["read_rate"]) == (1.0, 0.5)


def test_pipes_are_listed_page_by_page():
    script = Pipes()
    for number in range(5):
        script.ok("w", "OPEN", f"a{number}")
    script.ok("w", "OPEN", "b")
    assert [row["name"] for row in script.pipes("a")["pipes"]] == ["a0", "a1", "a2", "a3", "a4"]
    page = script.pipes("", "", "2")
    assert ([row["name"] for row in page["pipes"]], bytes.fromhex(page["more"])) == (["a0", "a1"], b"a1")
    page = script.pipes("", "a4", "2")
    assert ([row["name"] for row in page["pipes"]], page["more"]) == (["b"], None)


def test_purge_throws_chunks_away(pipes):
    pipes.write("p", "1", "2", "3")
    pipes.fetch("p", chunks=1)
    pipes.ask("x", "PURGE", "p")
    pipes.answer("x", "OK", "3")
    assert pipes.info("p") | {"chunks": 0, "bytes": 0, "first": 4} == pipes.info("p")
    pipes.write("p", "4")
    assert pipes.fetch("p") == (5, [(4, b"4")])


def test_batches_come_back_as_they_were():
    chunks = [(1, b""), (2**63, b"x" * 1000)]
    assert list(unpack_numbered(pack_numbered(chunks))) == chunks


def test_conformance():
    check_service(ZpipesService)
    check_service(lambda: ZpipesService(ZpipesSettings(max_pipe_chunks=2, max_waiting=2, max_blocked=2)))
