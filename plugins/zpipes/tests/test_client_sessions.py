"""Writing and reading, as the client library does it, on virtual time."""

from __future__ import annotations

import pytest

from scale0_zpipes.client.errors import (
    PipeBusyError,
    PipeError,
    PipeFullError,
    PipeLostError,
    PipeTimeoutError,
    PipeTooLargeError,
    Stage,
)
from scale0_zpipes.client.session import NEVER

from .client_world import World, all_of, reader, taken, write, writer

# --- writing ----------------------------------------------------------------------------------------------------------


def test_chunks_are_collected_and_come_in_order():
    world = World()
    out, into = writer(world), reader(world)
    world.settle()
    write(out, *(b"%d" % number for number in range(100)))
    assert len(out.there) == 1  # the first at once, the others wait for company
    world.settle(0.1)
    assert out.session.idle
    assert all_of(into) == [b"%d" % number for number in range(100)]


def test_a_full_batch_does_not_wait_for_the_delay():
    world = World()
    out = writer(world, batch_chunks=10, delay=100.0)
    world.settle()
    write(out, *(b"x" for _ in range(21)))
    assert [frame[3] for frame in out.there] == [b"1", b"2", b"12"]
    out = writer(world, b"q", batch_bytes=10, delay=100.0)
    world.settle()
    write(out, b"xxxx", b"xxxx", b"xxxx", b"xxxxxxxxxx")
    assert [frame[3] for frame in out.there] == [b"1", b"2", b"4"]


def test_no_more_batches_are_under_way_than_the_window_allows():
    world = World()
    out = writer(world, batch_chunks=1, window=3, batch_bytes=10)
    world.settle()
    write(out, *(b"0123456789" for _ in range(5)))
    assert len(out.there) == 3
    assert not out.session.has_room
    world.settle()
    assert out.session.idle
    assert out.session.has_room


def test_what_had_no_answer_is_sent_again_and_stored_once():
    world = World(durable=("d.*",))
    out = writer(world)
    world.settle()
    write(out, b"a")
    out.deliver()
    assert out.back  # it is stored, and nobody here knows
    out.break_()
    write(out, b"b")
    world.settle(2.0)
    assert out.session.idle
    assert all_of(reader(world)) == [b"a", b"b"]


def test_a_broker_that_comes_back_is_found():
    world = World()
    out = writer(world)
    world.settle()
    world.kill()
    world.sleep(8.0)
    assert out.session.fault(world.now, 0.0) is None
    world.start()
    write(out, b"a")
    world.settle(2.0)
    assert out.session.idle


def test_a_broker_that_refuses_is_asked_again_after_a_pause_that_grows():
    world = World(max_pipes=1)
    first = writer(world, b"q")
    world.settle()
    out = writer(world)
    world.settle()
    waits = []
    for _ in range(8):
        assert (out.up, out.session.address, out.session.refusal[0]) == (False, "", 429)
        waits.append(out.next_deadline() - world.now)
        world.sleep(waits[-1])
        world.settle()
    assert 0.025 <= waits[0] <= 0.05
    assert all(0.5 <= wait <= 1.0 for wait in waits[-2:])
    assert out.session.fault(world.now, 0.0) is None
    first.session.leave(world.now)
    first.follow()
    write(out, b"a")
    world.settle(2.0)
    assert out.session.idle


def test_a_broker_that_stays_away_is_an_error_that_says_so():
    world = World()
    out = writer(world, patience=5.0)
    world.settle()
    write(out, b"a")
    world.kill()
    world.sleep(4.9)
    assert out.session.fault(world.now, 0.0) is None
    world.sleep(0.2)
    fault = out.session.fault(world.now, 0.0)
    assert isinstance(fault, PipeLostError)
    assert (fault.stage, fault.exit_code) == (Stage.CONNECTING, 69)
    assert "1 chunks are not confirmed" in fault.problem.consequence
    assert out.session.fault(world.now, began=world.now) is None  # another call has all its time


def test_a_broker_that_does_not_answer_is_left_for_a_new_connection():
    world = World()
    out = writer(world, patience=5.0)
    world.settle()
    write(out, b"a")
    out.there.clear()
    world.sleep(15.1)
    world.settle(2.0)
    assert out.session.idle
    assert all_of(reader(world)) == [b"a"]


def test_a_full_pipe_is_waited_for():
    world = World(max_pipe_bytes=100)
    out, into = writer(world, batch_bytes=40), reader(world, batch_bytes=40)
    world.settle()
    chunks = [b"%020d" % number for number in range(30)]
    write(out, *chunks)
    world.settle(1.0)
    assert not out.session.idle
    late = out.session.late(1.0)
    assert isinstance(late, PipeFullError)
    assert (late.stage, late.exit_code) == (Stage.ROOM, 75)
    found = []
    while len(found) < 30:
        found += taken(into)
        world.settle(0.1)
    world.settle(0.2)
    assert found == chunks
    assert out.session.idle


def test_a_full_pipe_that_refuses_is_tried_again():
    world = World(max_pipe_bytes=100, when_full="refuse")
    out = writer(world, batch_bytes=40)
    world.settle()
    chunks = [b"%020d" % number for number in range(10)]
    write(out, *chunks)
    world.settle(3.0)
    assert isinstance(out.session.late(3.0), PipeFullError)
    into = reader(world, batch_bytes=40)
    found = []
    while len(found) < 10:
        world.settle(1.1)
        found += taken(into)
    assert found == chunks


def test_a_full_pipe_refuses_for_certain_before_the_time_is_over():
    world = World(max_pipe_bytes=10)
    out = writer(world)
    world.settle()
    write(out, b"0123456789")
    world.settle()
    out.session.give_up_at(world.now + 0.9, world.now)
    write(out, b"a")
    world.settle(0.8)
    assert not out.session.withdraw()  # it may still be stored
    out.deliver()
    world.sleep(0.1)
    out.deliver()
    assert out.session.withdraw()
    assert out.session.idle
    out.session.give_up_at(NEVER, world.now)
    write(out, b"b")
    assert taken(into := reader(world)) == []
    assert all_of(into) == [b"0123456789", b"b"]


def test_a_chunk_too_large_is_told_and_the_others_are_written():
    world = World(max_pipe_bytes=100)
    out = writer(world, delay=0.01)
    world.settle()
    write(out, b"first", b"a", b"x" * 101, b"b")
    world.settle(0.5)
    assert out.session.idle
    (failure,) = out.session.failures
    assert isinstance(failure, PipeTooLargeError)
    assert (failure.code, failure.exit_code) == (413, 65)
    assert all_of(reader(world)) == [b"first", b"a", b"b"]


def test_a_pipe_that_was_forgotten_meanwhile_is_opened_again():
    world = World(expire_empty=10.0)
    out = writer(world)
    world.settle(30.0)
    write(out, b"a")
    world.settle(0.1)
    assert out.session.idle
    assert all_of(reader(world)) == [b"a"]


def test_a_disk_that_refuses_is_an_error_after_a_while_and_no_chunk_is_lost():
    world = World(durable=("d.*",))
    out = writer(world, patience=3.0)
    world.settle()
    for _ in range(100):
        world.script.fail_next_job(OSError("no space"))
    write(out, b"a")
    world.settle(3.5)
    fault = out.session.fault(world.now, 0.0)
    assert (fault.code, "no space" in fault.problem.why) == (507, True)
    world.settle(120.0)
    assert out.session.idle
    assert all_of(reader(world)) == [b"a"]


def test_what_cannot_be_a_broker_of_pipes_is_an_error():
    world = World()
    out = writer(world)
    out.session.receive((b"OK",), 0.0)
    out.session.receive((b"INFO", b"{}"), 0.0)
    write(out, b"a")
    out.session.receive((b"OK", b"soon"), 0.0)
    assert isinstance(out.session.fault(0.0, 0.0), PipeError)


# --- reading ----------------------------------------------------------------------------------------------------------


def test_chunks_are_fetched_ahead_and_acknowledged_when_the_next_is_asked_for():
    world = World()
    out, into = writer(world), reader(world, batch_chunks=2)
    world.settle()
    write(out, *(b"%d" % number for number in range(1, 6)))
    world.settle(0.1)
    acks = []

    def take() -> bytes | None:
        chunk = into.session.take(world.now)
        acks.extend(frames[3] for frames in into.session.out if frames[0] == b"ACK")
        into.follow()
        world.settle()
        return chunk

    assert [take() for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
    assert acks == [b"1", b"3"]  # the first came alone, and 5 is still in use
    assert take() is None
    assert acks == [b"1", b"3", b"5"]


def test_a_slow_reader_acknowledges_in_the_middle_of_a_batch():
    world = World()
    out, into = writer(world, batch_chunks=100), reader(world)
    write(out, *(b"%d" % number for number in range(100)))
    world.settle(0.1)
    for number in range(3):
        assert into.session.take(world.now) == b"%d" % number
        into.follow()
        world.settle(1.1)
    into.cut()
    assert all_of(reader(world))[0] == b"2"


def test_an_idle_reader_asks_again_and_again():
    world = World()
    into = reader(world)
    world.settle(60.0)
    out = writer(world)
    world.settle()
    write(out, b"a")
    assert all_of(into) == [b"a"]
    assert into.session.breaks == 0


def test_what_a_lost_reader_had_not_consumed_comes_to_the_next():
    world = World()
    out, into = writer(world), reader(world)
    world.settle()
    write(out, b"1", b"2", b"3", b"4")
    world.settle(0.1)
    assert [into.session.take(world.now) for _ in range(3)] == [b"1", b"2", b"3"]
    into.follow()
    world.settle()
    into.cut()
    assert all_of(reader(world)) == [b"2", b"3", b"4"]  # 1 was a batch of its own, so acknowledged


def test_who_leaves_acknowledges_what_was_consumed():
    world = World()
    out, into = writer(world), reader(world)
    world.settle()
    write(out, b"1", b"2", b"3", b"4")
    world.settle(0.1)
    assert [into.session.take(world.now) for _ in range(3)] == [b"1", b"2", b"3"]
    into.session.consume(world.now)
    into.session.leave(world.now)
    assert not into.session.left
    into.follow()
    world.settle()
    assert into.session.left
    into.cut()
    assert all_of(reader(world)) == [b"4"]


@pytest.mark.parametrize(("pipe", "again"), [(b"d.p", []), (b"memory", [b"1", b"2", b"3"])])
def test_after_a_broken_connection_a_reader_is_given_what_it_had_once_more_only_in_memory(pipe, again):
    world = World(durable=("d.*",))
    out, into = writer(world, pipe, delay=0.0), reader(world, pipe)
    world.settle()
    write(out, b"0")
    world.settle(0.1)
    write(out, b"1", b"2", b"3", b"4")
    world.settle(0.1)
    assert [into.session.take(world.now) for _ in range(4)] == [b"0", b"1", b"2", b"3"]
    into.follow()
    world.settle()
    into.break_()
    world.settle(2.0)
    found = all_of(into)
    assert found[-1] == b"4"
    assert found[:-1] == again[-len(found[:-1]) :] if again else found == [b"4"]


def test_a_second_reader_is_told_after_a_moment_of_grace():
    world = World()
    first, second = reader(world), reader(world)
    world.settle(0.5)
    assert second.session.fault(world.now, 0.0) is None
    assert isinstance(second.session.late(0.5), PipeBusyError)
    world.settle(0.7)
    fault = second.session.fault(world.now, 0.0)
    assert isinstance(fault, PipeBusyError)
    assert (fault.code, fault.stage) == (409, Stage.PLACE)
    assert first.session.fault(world.now, 0.0) is None


def test_a_second_reader_takes_over_when_the_first_leaves_in_time():
    world = World()
    first, second = reader(world), reader(world)
    world.settle(0.3)
    first.cut()
    first.session.end(PipeError("over"), world.now)
    out = writer(world)
    world.settle(2.0)
    write(out, b"a")
    assert second.session.fault(world.now, 0.0) is None
    assert all_of(second) == [b"a"]


def test_a_reader_that_lives_keeps_its_place_when_others_are_lost():
    world = World()
    first, out = reader(world), writer(world)
    world.settle()
    write(out, b"a")
    assert all_of(first) == [b"a"]
    world.settle(1.0)
    world.script.lose_peer("pipes")
    second = reader(world)
    world.settle(5.0)
    assert isinstance(second.session.fault(world.now, 0.0), PipeBusyError)
    assert first.session.fault(world.now, 0.0) is None
    write(out, b"b")
    assert all_of(first) == [b"b"]


def test_it_is_known_when_the_pipe_is_empty():
    world = World()
    out, into = writer(world), reader(world)
    write(out, b"a")
    world.settle(0.1)
    into.session.probe()
    into.follow()
    world.settle()
    assert not into.session.empty
    assert taken(into) == [b"a"]
    world.settle()
    into.session.probe()
    into.follow()
    assert not into.session.empty
    world.settle()
    assert into.session.empty


def test_a_timeout_says_what_was_waited_for():
    world = World()
    into = reader(world)
    world.settle()
    late = into.session.late(0.5)
    assert type(late) is PipeTimeoutError
    assert (late.stage, late.pipe) == (Stage.CHUNK, b"d.p")
    world.kill()
    assert into.session.late(0.5).stage is Stage.CONNECTING
