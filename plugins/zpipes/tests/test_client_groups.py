"""Groups and links of the client library, and all that can happen, on virtual time."""

from __future__ import annotations

import json
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_zpipes.client.errors import (
    PipeGoneError,
)

from .client_world import World, all_of, reader, taken, write, writer

# --- groups -----------------------------------------------------------------------------------------------------------


def numbers(*values: int) -> list[bytes]:
    return [b"%d" % value for value in values]


def test_groups_read_all_at_their_own_pace():
    world = World()
    out = writer(world)
    one = reader(world, group=b"one", auto_ack=False)
    two = reader(world, group=b"two", auto_ack=True)
    world.settle()
    write(out, *numbers(1, 2, 3))
    world.settle(0.1)
    assert all_of(one) == all_of(two) == numbers(1, 2, 3)
    assert one.session.number == 3
    assert one.session.position == 4
    one.session.ack(world.now, 2)
    one.follow()
    assert not one.session.acks_confirmed
    world.settle()
    assert one.session.acks_confirmed
    one.cut()
    assert all_of(reader(world, group=b"one")) == numbers(3)


def test_a_group_goes_back_to_what_is_not_acknowledged():
    world = World()
    out, into = writer(world), reader(world, group=b"g", auto_ack=False)
    world.settle()
    write(out, *numbers(1, 2, 3, 4))
    world.settle(0.1)
    assert all_of(into) == numbers(1, 2, 3, 4)
    into.session.seek(2, world.now)
    into.follow()
    assert all_of(into) == numbers(2, 3, 4)
    into.session.ack(world.now, 3)
    into.follow()
    world.settle()
    into.session.seek(2, world.now)
    into.follow()
    world.settle()
    fault = into.session.fault(world.now, 0.0)
    assert isinstance(fault, PipeGoneError)
    assert fault.code == 410


def test_a_group_on_a_durable_pipe_goes_on_where_it_was_after_a_restart():
    world = World(durable=("d.*",))
    out, into = writer(world), reader(world, group=b"g", auto_ack=False)
    world.settle()
    write(out, *numbers(1, 2, 3))
    world.settle(0.1)
    assert all_of(into) == numbers(1, 2, 3)
    into.session.ack(world.now, 2)  # it is on its way when the broker dies
    into.follow()
    world.restart()
    write(out, *numbers(4))
    world.settle(3.0)
    assert all_of(into) == numbers(4)
    assert into.session.acks_confirmed
    into.cut()
    assert all_of(reader(world, group=b"g")) == numbers(3, 4)


def test_a_group_in_memory_finds_the_pipe_of_another_broker():
    world = World()
    out, into = writer(world, delay=0.0), reader(world, group=b"g", auto_ack=False)
    world.settle()
    write(out, *numbers(1, 2, 3))
    world.settle(0.1)
    assert all_of(into) == numbers(1, 2, 3)
    world.restart()
    world.settle(2.0)
    write(out, *numbers(4, 5))
    world.settle(0.1)
    assert all_of(into) == numbers(4, 5)


def test_a_group_with_a_lease_is_forgotten_when_nobody_uses_it():
    world = World()
    out = writer(world)
    world.settle()
    write(out, b"0")
    into = reader(world, group=b"g", start=b"next", lease=6.0)
    world.settle(20.0)  # as long as it is there it asks again in time
    assert info(world)["groups"] == {"g": {"next": 2}}
    assert info(world)["links"] == 1  # the writer's
    write(out, b"1")
    assert all_of(into) == [b"1"]
    into.cut()
    world.sleep(6.1)
    assert info(world)["groups"] == {}
    assert all_of(reader(world)) == [b"0", b"1"]  # it has taken nothing away


def test_a_group_that_was_forgotten_begins_as_it_began():
    world = World()
    out = writer(world)
    new, old = (reader(world, group=start, start=start, lease=6.0) for start in (b"next", b"first"))
    world.settle()
    for line in (new, old):
        line.break_()
        line.again_at = world.now + 20.0  # longer than the lease
    world.settle()
    write(out, b"a")
    world.settle(10.0)
    assert info(world)["groups"] == {}
    world.settle(15.0)
    write(out, b"b")
    assert all_of(new) == [b"b"]
    assert all_of(old) == [b"a", b"b"]


def test_who_drops_its_group_leaves_in_order():
    world = World()
    out, into = writer(world), reader(world, group=b"g")
    world.settle()
    write(out, b"a")
    assert all_of(into) == [b"a"]
    into.session.drop_group()
    into.session.leave(world.now)
    into.follow()
    world.settle()
    assert into.session.left
    assert into.session.refusal is None
    assert (info(world)["groups"], info(world)["links"]) == ({}, 1)


# --- links ------------------------------------------------------------------------------------------------------------


def info(world: World, name: bytes = b"d.p") -> dict:
    """Ask the broker about a pipe; nothing when it is not there."""
    world.collect()
    world.script.feed("pipes", b"somebody", b"INFO", name)
    answers = [frames for _, (peer, *frames) in world.script.sent if peer == b"somebody"]
    world.collect()
    return json.loads(answers[-1][1]) if answers[-1][0] == b"INFO" else {}


def test_a_pipe_is_opened_once_however_often_the_connection_breaks_and_closed_in_the_end():
    world = World()
    stays, out, into = writer(world), writer(world), reader(world, group=b"g", auto_ack=False)
    world.settle()
    write(stays, *numbers(1, 2, 3))
    for _ in range(3):
        out.break_()
        into.break_()
        world.settle(2.0)
        into.session.seek(2, world.now)
        into.follow()
        world.settle()
        assert info(world)["links"] == 3
    assert all_of(into) == numbers(2, 3)
    for line, left in ((out, 2), (into, 1)):
        line.session.leave(world.now)
        line.follow()
        world.settle()
        assert line.session.left
        assert info(world)["links"] == left


def test_a_pipe_that_is_gone_is_opened_again():
    world = World()
    out, into = writer(world), reader(world)
    world.settle()
    assert info(world)["links"] == 2
    world.restart()
    into.again_at = world.now + 10.0
    world.settle(5.0)
    assert info(world)["links"] == 1
    write(out, b"a")
    world.settle()
    assert all_of(into) == []
    for line in (into, out):
        line.session.leave(world.now)
        line.follow()
    world.settle()
    assert out.session.left


def test_a_pipe_from_disk_has_no_links_and_is_opened_again():
    world = World(durable=("d.*",))
    out = writer(world)
    world.settle()
    write(out, b"a")
    world.settle(0.1)
    world.restart()
    assert info(world)["links"] == 0
    world.settle(2.0)
    assert info(world)["links"] == 1


def test_a_pipe_that_was_made_anew_is_opened_again():
    world = World()
    out = writer(world)
    out.there.clear()
    out.session.receive((b"OK",), 0.0)
    out.session.receive((b"INFO", b'{"links": 1, "made": 1.5}'), 0.0)
    assert out.session.ready
    for made, again in ((1.5, False), (2.5, True)):
        out.break_()
        world.sleep(1.0)
        assert list(out.there) == [(b"INFO", b"d.p")]
        out.there.clear()
        out.session.receive((b"INFO", json.dumps({"links": 1, "made": made}).encode()), world.now)
        out.follow()
        assert out.session.ready is not again
    assert list(out.there) == [(b"OPEN", b"d.p"), (b"INFO", b"d.p")]


def test_who_ends_by_an_error_or_gets_no_answer_leaves_no_link():
    world = World()
    stays, into = writer(world), reader(world, group=b"g", auto_ack=False)
    world.settle()
    write(stays, *numbers(1, 2, 3))
    assert all_of(into) == numbers(1, 2, 3)
    into.session.ack(world.now, 3)
    into.follow()
    world.settle()
    into.session.seek(2, world.now)
    into.follow()
    world.settle()
    assert isinstance(into.session.error, PipeGoneError)
    assert info(world)["links"] == 1
    late = writer(world, patience=1.0)
    late.deliver()
    late.back.clear()  # opened, but the answer does not come
    assert info(world)["links"] == 2
    world.sleep(1.0)
    world.settle(1.0)
    assert late.session.ready
    assert info(world)["links"] == 2


# --- all that can happen ----------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 5)),
        st.tuples(st.just("deliver"), st.integers(0, 30)),
        st.tuples(st.just("sleep"), st.sampled_from([0.001, 0.01, 0.06, 1.0])),
        st.tuples(st.just("break_"), st.integers(0, 1)),
        st.tuples(st.just("restart"), st.integers(0, 1000)),
        st.tuples(st.just("read"), st.integers(1, 10)),
    ),
    max_size=60,
)


class Run:
    """A writer and a reader of a durable pipe, to which anything may happen."""

    def __init__(self, seed: int, window: int, max_bytes: int) -> None:
        self.random = Random(seed)
        self.world = World(job_delay=0.002, durable=("d.*",), max_pipe_bytes=max_bytes)
        self.out = writer(self.world, batch_chunks=3, batch_bytes=20, window=window)
        self.into = reader(self.world, batch_chunks=4, batch_bytes=20)
        self.lines = (self.out, self.into)
        self.written, self.found = 0, []

    def write(self, count: int) -> None:
        for _ in range(count):
            if self.out.session.has_room:
                self.written += 1
                write(self.out, b"%d" % self.written)

    def deliver(self, count: int) -> None:
        for _ in range(count):
            self.random.choice(self.lines).deliver()

    def sleep(self, seconds: float) -> None:
        self.world.sleep(seconds)

    def break_(self, which: int) -> None:
        self.lines[which].break_()

    def restart(self, seed: int) -> None:
        self.world.restart(Random(seed))

    def read(self, count: int) -> None:
        for _ in range(count):
            chunk = self.into.session.take(self.world.now)
            self.into.follow()
            if chunk is not None:
                self.found.append(chunk)

    def finish(self) -> None:
        for _ in range(400):
            self.world.settle(0.1)
            self.found += taken(self.into)
            if self.out.session.idle and len(self.found) >= self.written:
                break
        self.world.settle(1.0)
        self.found += taken(self.into)


@settings(max_examples=150, deadline=None)
@given(steps=STEPS, seed=st.integers(0, 1000), window=st.integers(1, 4), max_bytes=st.sampled_from([40, 1000]))
def test_every_chunk_is_there_once_and_in_order_whatever_breaks(steps, seed, window, max_bytes):
    """On a durable pipe: connections break and the broker is killed, with all that is on its way."""
    run = Run(seed, window, max_bytes)
    for step, value in steps:
        getattr(run, step)(value)
    run.finish()
    for line in run.lines:
        assert line.session.fault(run.world.now, run.world.now) is None
    assert run.out.session.failures == []
    assert run.found == [b"%d" % number for number in range(1, run.written + 1)]
    assert run.out.session.idle
