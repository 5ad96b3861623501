"""The wire against a real broker, and against peers that are none. Without Spark."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator

import pytest
import zmq
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from scale0_core.testing import BrokerStarter
from scale0_spark.zpipes import wire
from scale0_spark.zpipes.errors import (
    AnswerError,
    DataLossError,
    OptionError,
    RefusedError,
    UnreachedError,
    ZpipesError,
)
from scale0_spark.zpipes.options import Options
from scale0_spark.zpipes.ranges import from_json
from scale0_spark.zpipes.sink import PipeWriter, Staged, publish, stage
from scale0_spark.zpipes.source import PipeReader, PipeStreamReader, Range
from scale0_spark.zpipes.wire import Pipes

from .zpipes_world import World, numbered


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with BrokerStarter() as starter:
        yield World(starter, max_pipe_chunks=5000)


@pytest.fixture
def own_world() -> Iterator[World]:
    """A broker that the test may end."""
    with BrokerStarter() as starter:
        yield World(starter)


class Streams:
    """Makes readers of streams, and stops them at the end."""

    def __init__(self) -> None:
        self._made: list[PipeStreamReader] = []

    def __call__(self, given: Options) -> PipeStreamReader:
        return self.own(PipeStreamReader(given))

    def own(self, reader: PipeStreamReader) -> PipeStreamReader:
        self._made.append(reader)
        return reader

    def stop(self) -> None:
        for reader in self._made:
            reader.stop()


@pytest.fixture
def streams() -> Iterator[Streams]:
    streams = Streams()
    yield streams
    streams.stop()


def options(world: World, *pipes: str, **more) -> Options:
    return Options(world.address, pipes, **{"timeout": 30.0, **more})


def read(reader, *parts):
    return [chunk for part in parts for batch in reader.read(part) for chunk in batch.column("data").to_pylist()]


def step(reader, start, limit=None):
    """Read one batch of a stream, as Spark does."""
    end = reader.latestOffset(start, limit or reader.getDefaultReadLimit())
    return end, read(reader, *reader.partitions(start, end))


def test_a_stream_reads_what_comes_and_acknowledges_what_is_committed(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(3000), group=None)
    reader = streams(options(world, pipe, partitions=2, max_rows=2000))
    start = reader.initialOffset()
    assert isinstance(reader.getDefaultReadLimit(), ReadMaxRows)
    end, rows = step(reader, start)
    assert len(reader.partitions(start, end)) == 2
    assert rows == numbered(2000)
    reader.commit(end)
    with world.pipes() as pipes:
        assert pipes.state(pipe).first == 2001
    later, rows = step(reader, end)
    assert rows == numbered(1000, 2000)
    assert step(reader, end, ReadAllAvailable()) == (later, rows), "what is not committed may be read again"
    assert step(reader, later) == (later, [])
    assert from_json(reader.reportLatestOffset())[pipe].next == 3001
    reader.stop()


def test_a_pipe_that_is_not_there_yet_is_made_and_stays(world, streams):
    pipe = world.name()
    reader = streams(options(world, pipe))
    start = reader.initialOffset()
    world.fill(pipe, [b"x"], group=None)
    assert step(reader, start)[1] == [b"x"]


def test_available_now_ends_where_the_pipe_ended(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(5))
    reader = streams(options(world, pipe))
    reader.prepareForTriggerAvailableNow()
    start = reader.initialOffset()
    world.fill(pipe, numbered(5, 5), first=6)
    end, rows = step(reader, start)
    assert rows == numbered(5)
    assert reader.latestOffset(end, ReadAllAvailable()) == end


def test_several_pipes_share_the_rows_of_a_batch(world, streams):
    few, many = world.name("a"), world.name("b")
    world.fill(few, numbered(2))
    world.fill(many, numbered(100))
    reader = streams(options(world, few, many))
    end, rows = step(reader, reader.initialOffset(), ReadMaxRows(10))
    assert (len(rows), from_json(end)[few].next, from_json(end)[many].next) == (10, 3, 9)
    with pytest.raises(DataLossError, match=few):
        streams(options(world, many)).latestOffset(end, ReadAllAvailable())
    more = world.name("c")
    world.fill(more, [b"new"])
    assert b"new" in step(streams(options(world, few, many, more)), end)[1]


@pytest.mark.parametrize(("starting", "rows"), [("first", 10), ("next", 0), (4, 7), (11, 0)])
def test_a_stream_begins_where_it_is_told(world, starting, rows, streams):
    pipe = world.name()
    world.fill(pipe, numbered(10), group=None)
    for attempt in range(2):  # the second time the group is there already
        reader = streams(options(world, pipe, starting=starting))
        assert len(step(reader, reader.initialOffset())[1]) == rows, attempt


def test_a_stream_cannot_begin_with_what_is_gone_or_not_there(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(10))
    with world.pipes() as pipes:
        pipes.acknowledge(pipe, "spark", 5)
    for group in ("spark", "other"):
        with pytest.raises(DataLossError, match="chunk 3"):
            streams(options(world, pipe, starting=3, group=group)).initialOffset()
    with pytest.raises(DataLossError, match="chunk 99"):
        streams(options(world, pipe, starting=99, group="third")).initialOffset()


def test_a_pipe_that_was_made_anew_is_noticed(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(10))
    reader = streams(options(world, pipe))
    end, _ = step(reader, reader.initialOffset())
    with world.pipes() as pipes:
        for frames in (("UNGROUP", pipe, "spark"), ("PURGE", pipe), ("CLOSE", pipe)):
            pipes.ask(*frames)
        assert pipes.state(pipe) is None
    with pytest.raises(DataLossError, match="is gone"):
        reader.latestOffset(end, ReadAllAvailable())
    world.fill(pipe, numbered(20))
    with pytest.raises(DataLossError, match="another pipe"):
        reader.latestOffset(end, ReadAllAvailable())
    again = world.name()
    world.fill(again, [b"x"])
    with pytest.raises(DataLossError, match="gone"):
        reader.commit({pipe: {"next": 99, "made": 1.0}})


def test_chunks_that_are_gone_are_an_error_unless_told_otherwise(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(10))
    strict, lenient = (streams(options(world, pipe, fail_on_data_loss=loss)) for loss in (True, False))
    start = strict.initialOffset()
    end = strict.latestOffset(start, ReadAllAvailable())
    parts = strict.partitions(start, end)
    with world.pipes() as pipes:
        pipes.ask("PURGE", pipe)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        read(strict, *parts)
    assert read(lenient, *parts) == []
    with world.pipes() as pipes:
        pipes.acknowledge(pipe, "spark", 4)
    with pytest.raises(DataLossError, match="acknowledged"):
        read(strict, *parts)
    assert read(lenient, *parts) == []


def test_what_is_there_behind_what_is_gone_is_kept(world, streams):
    pipe = world.name()
    world.fill(pipe, numbered(10))
    strict, lenient = (streams(options(world, pipe, fail_on_data_loss=loss)) for loss in (True, False))
    start = strict.initialOffset()
    with world.pipes() as pipes:
        pipes.ask("PURGE", pipe)
    world.fill(pipe, numbered(10, 10), first=11)
    parts = strict.partitions(start, strict.latestOffset(start, ReadAllAvailable()))
    with pytest.raises(DataLossError, match="thrown away"):
        read(strict, *parts)
    assert read(lenient, *parts) == numbered(10, 10)
    marking = PipeStreamReader(options(world, pipe, fail_on_data_loss=False, mark_skipped=True))
    lost, *there = (batch for part in parts for batch in marking.read(part))
    assert lost.to_pylist() == [{"pipe": pipe, "sequence": 1, "count": 10}]
    assert [chunk for batch in there for chunk in batch.column("data").to_pylist()] == numbered(10, 10)
    with world.pipes() as pipes:
        pipes.acknowledge(pipe, "spark", 14)
    with pytest.raises(DataLossError, match="acknowledged"):
        read(strict, *parts)
    assert read(lenient, *parts) == numbered(6, 14)


def take(pipes: Pipes, pipe: str) -> bytes:
    """Take a chunk out, as the nameless reader does."""
    pipes._send(("READ", pipe))
    return bytes(pipes._received(30)[0])


def test_numbers_that_are_missing_are_no_loss(world, streams):
    pipe = world.name("durable")
    with world.pipes() as pipes, world.pipes() as other, world.pipes() as nameless:
        for writer, start in ((pipes, 0), (other, 3)):
            writer.ask("OPEN", pipe)
            for chunk in numbered(3, start):
                writer.ask("WRITE", pipe, chunk)
        assert [take(nameless, pipe) for _ in range(2)] == [b"000000", b"000003"]
        reader = streams(options(world, pipe))
        end, rows = step(reader, reader.initialOffset())
    assert rows == [b"000001", b"000002", b"000004", b"000005"]
    reader.commit(end)


def test_a_part_never_gives_what_lies_behind_its_end(world):
    """Also when chunks before are missing, and the broker gives as many others."""
    pipe = world.name("durable")
    with world.pipes() as pipes, world.pipes() as other, world.pipes() as nameless:
        pipes.ask("OPEN", pipe)
        for writer, start in ((pipes, 0), (other, 3)):
            for chunk in numbered(3, start):
                writer.ask("WRITE", pipe, chunk)
        for taken in (b"000000", b"000003"):  # each writer has its turn
            assert take(nameless, pipe) == taken
        pipes.make_group(pipe, "late", "first", 60_000)
        rows = [batch.column("sequence").to_pylist() for *_, batch in pipes.rows(pipe, "late", 2, 5)]
    assert rows == [[2, 3]]


def test_a_broker_that_is_away_is_waited_for(own_world, monkeypatch, streams):
    monkeypatch.setattr(wire, "FIRST_WAIT", 0.3)
    pipe = own_world.name("durable")
    own_world.fill(pipe, numbered(100))
    reader = streams(options(own_world, pipe))
    start = reader.initialOffset()
    own_world.ends()
    with pytest.raises(UnreachedError, match=r"does not answer.*timeout"):
        streams(options(own_world, pipe, timeout=0.5)).initialOffset()
    back = threading.Timer(1.0, own_world.begins_again)
    back.start()
    end, rows = step(reader, start)
    back.join()
    assert rows == numbered(100)
    assert from_json(end)[pipe].made != from_json(start)[pipe].made
    reader.commit(end)


def test_a_pipe_in_memory_does_not_survive_its_broker_and_that_is_said(own_world, streams):
    pipe = own_world.name()
    own_world.fill(pipe, numbered(5))
    reader = streams(options(own_world, pipe))
    start = reader.initialOffset()
    own_world.ends()
    own_world.begins_again()
    with pytest.raises(DataLossError, match="durable"):
        reader.latestOffset(start, ReadAllAvailable())


def test_a_reader_is_pickled_without_its_socket(world, streams):
    pipe = world.name()
    world.fill(pipe, [b"x"])
    reader = streams(options(world, pipe))
    start = reader.initialOffset()
    assert step(streams.own(pickle.loads(pickle.dumps(reader))), start)[1] == [b"x"]
    assert pickle.loads(pickle.dumps(Range("p", "g", 1, 2))).end == 2


# --- batches ----------------------------------------------------------------------------------------------------------


def test_a_batch_reads_what_is_there_and_leaves_it(world):
    pipe = world.name()
    world.fill(pipe, numbered(50), group=None)
    for _ in range(2):
        reader = PipeReader(options(world, pipe, rows_per_partition=20))
        parts = reader.partitions()
        assert (len(parts), read(reader, *parts)) == (3, numbered(50))
    with pytest.raises(DataLossError, match="no pipe"):
        PipeReader(options(world, world.name())).partitions()


def test_a_batch_whose_group_was_forgotten_makes_it_again(world):
    pipe = world.name()
    world.fill(pipe, numbered(50), group=None)
    reader = PipeReader(options(world, pipe))
    parts = reader.partitions()
    with world.pipes() as pipes:
        pipes.ask("UNGROUP", pipe, parts[0].group)
    assert read(reader, *parts) == numbered(50)


def test_a_batch_reads_what_others_left_since_it_looked(world, monkeypatch):
    pipe = world.name()
    world.fill(pipe, numbered(50), group=None)
    look = Pipes.state

    def looked(pipes, name):
        state = look(pipes, name)
        with world.pipes() as nameless:
            assert [take(nameless, pipe) for _ in range(5)] == numbered(5)
        return state

    reader = PipeReader(options(world, pipe))
    monkeypatch.setattr(Pipes, "state", looked)
    parts = reader.partitions()
    monkeypatch.undo()
    assert read(reader, *parts) == numbered(45, 5)


def test_a_batch_that_lost_its_group_and_chunks_says_so_or_reads_the_rest(world):
    pipe = world.name()
    world.fill(pipe, numbered(50), group=None)
    strict, lenient = (PipeReader(options(world, pipe, fail_on_data_loss=loss)) for loss in (True, False))
    both = [strict.partitions(), lenient.partitions()]
    with world.pipes() as pipes:
        for parts in both:
            pipes.ask("UNGROUP", pipe, parts[0].group)
        assert [take(pipes, pipe) for _ in range(5)] == numbered(5)
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        read(strict, *both[0])
    assert read(lenient, *both[1]) == numbered(45, 5)


# --- staging ----------------------------------------------------------------------------------------------------------


def batch_of(*chunks):
    import pyarrow as pa

    return pa.RecordBatch.from_pydict({"data": pa.array(chunks, pa.binary())})


def test_what_is_staged_appears_at_once_and_once(world):
    pipe = world.name()
    sink = options(world, pipe)
    first, second = stage([batch_of(b"1", b"2"), batch_of(b"3")], sink), stage([batch_of(b"4")], sink)
    assert stage([batch_of()], sink) is None
    assert world.content(pipe) == []
    publish(sink, "query", 1, [first, second])
    publish(sink, "query", 1, [first, second])
    publish(sink, "query", 1, [stage([batch_of(b"other")], sink)])
    assert world.content(pipe) == [b"1", b"2", b"3", b"4"]
    with pytest.raises(ZpipesError, match=r"gone.*start the query again"):
        publish(sink, "query", 2, ["never-staged"])


def test_a_task_that_fails_leaves_nothing_behind(world):
    def rows():
        yield batch_of(b"1")
        raise RuntimeError("the task fails")

    with pytest.raises(RuntimeError):
        stage(rows(), options(world, world.name()))
    writer = PipeWriter(options(world, world.name()))
    message = writer.write(iter([batch_of(b"1")]))
    assert isinstance(message, Staged)
    writer.abort([message, None])
    with world.pipes() as pipes:
        assert pipes.state(message.pipe) is None


def test_requests_are_no_larger_than_the_broker_takes_and_a_chunk_that_is_fails_immediately():
    """A request of more than twice ``max_message`` and 64 KiB has the connection cut, whatever is sent again."""
    with BrokerStarter() as starter:
        world = World(starter, max_message=100_000)
        pipe = world.name()
        sink = options(world, pipe, timeout=20.0)
        staged = stage([batch_of(*[b"x" * 100_000] * 30, b"end")], sink)
        publish(sink, "query", 1, [staged])
        assert [len(chunk) for chunk in world.content(pipe)] == [100_000] * 30 + [3]
        began = time.monotonic()
        with pytest.raises(ZpipesError, match="at most 100000 bytes"):
            stage([batch_of(b"small", b"x" * 100_001)], sink)
        with pytest.raises(ZpipesError, match="at most 100000 bytes"):
            stage([batch_of(b"x" * 1_000_000)], sink)
        assert time.monotonic() - began < 10


def test_a_batch_that_is_larger_than_a_pipe_is_refused_with_advice(world):
    pipe = world.name()
    sink = options(world, pipe, timeout=0.2)
    with pytest.raises(ZpipesError, match="max_pipe_chunks"):
        stage([batch_of(*numbered(6000))], sink)
    halves = [stage([batch_of(*numbered(3000))], sink) for _ in range(2)]
    with pytest.raises(ZpipesError, match="max_pipe_chunks"):
        publish(sink, "query", 1, halves)
    publish(sink, "query", 1, halves[:1])
    with pytest.raises(ZpipesError, match="no room"):
        publish(sink, "query", 2, halves[1:])
    assert len(world.content(pipe)) == 3000
    with pytest.raises(OptionError):
        publish(options(world, "a", "b"), "query", 1, [])


@pytest.mark.parametrize(("first_wait", "told"), [(3.0, "refused INFO"), (0.05, "does not answer")])
def test_who_had_no_room_until_the_end_is_not_taken_for_one_who_is_silent(world, monkeypatch, first_wait, told):
    """The last try may have no time left; only a whole wait without an answer is silence."""
    monkeypatch.setattr(wire, "FIRST_WAIT", first_wait)
    full = [memoryview(part) for part in (b"ERROR", str(min(wire.PASSES)).encode(), b"full")]
    answers = [full]

    def received(pipes, seconds):
        if answers:
            return answers.pop()
        time.sleep(seconds)
        return None

    monkeypatch.setattr(Pipes, "_received", received)
    with Pipes(world.address, 0.5) as pipes, pytest.raises(ZpipesError, match=told):
        pipes.ask("INFO", "a")


@pytest.fixture
def deaf(monkeypatch):
    """Have the first answers to OPEN and CLOSE get lost."""
    monkeypatch.setattr(wire, "FIRST_WAIT", 0.3)
    receive, lost = Pipes._received, set()

    def received(pipes, seconds):
        answer, asked = receive(pipes, seconds), bytes(pipes._asked[0])
        if asked in (b"OPEN", b"CLOSE") and asked not in lost:
            lost.add(asked)
            return None
        return answer

    monkeypatch.setattr(Pipes, "_received", received)
    return lost


def links(world, pipe):
    with world.pipes() as pipes:
        return pipes.state(pipe).links


def test_a_request_for_a_link_that_got_no_answer_leaves_one_link(world, deaf):
    pipe = world.name()
    with world.pipes() as pipes:
        assert pipes.link(pipe) is None
        assert links(world, pipe) == 1
        assert pipes.link(pipe) is None, "there is one"
        pipes.unlink(pipe, pipes.state(pipe).made)
        assert deaf == {b"OPEN", b"CLOSE"}
        assert pipes.state(pipe) is None
        link = pipes.link(pipe)
        pipes.unlink(pipe, link)
        pipes.unlink(pipe, link)
        assert pipes.state(pipe) is None


def test_a_link_to_a_pipe_that_is_another_one_by_now_is_not_taken_away(world):
    """As after a start of the broker: pipes in memory are gone, and others open one of the same name."""
    pipe = world.name()
    with world.pipes() as pipes, world.pipes() as consumer:
        link = pipes.link(pipe)
        pipes.unlink(pipe, link)
        consumer.ask("OPEN", pipe)
        pipes.unlink(pipe, link)
        assert links(world, pipe) == 1


def test_a_source_leaves_no_link_and_takes_none_of_others(world, streams):
    pipe = world.name()
    streams(options(world, pipe)).initialOffset()
    assert links(world, pipe) == 0, "the pipe is there for the group's sake"
    other = world.name()
    with world.pipes() as pipes:
        pipes.ask("OPEN", other)
    streams(options(world, other)).initialOffset()
    assert links(world, other) == 1


def test_a_sink_leaves_no_link_and_takes_none_of_others(world):
    pipe = world.name()
    sink = options(world, pipe)
    publish(sink, "query", 1, [stage([batch_of(b"1")], sink)])
    assert links(world, pipe) == 0
    with world.pipes() as consumer:
        consumer.ask("OPEN", pipe)
        publish(sink, "query", 2, [stage([batch_of(b"2")], sink)])
        assert links(world, pipe) == 1
    assert world.content(pipe) == [b"1", b"2"]


def test_a_batch_is_stored_once_though_its_pipe_was_drained_and_closed_before_the_driver_came_back(world):
    pipe = world.name()
    sink = options(world, pipe)
    with world.pipes() as consumer:
        consumer.ask("OPEN", pipe)
        publish(sink, "query", 1, [stage([batch_of(b"1")], sink)])
        assert take(consumer, pipe) == b"1"
        consumer.ask("CLOSE", pipe)
    publish(sink, "query", 1, [stage([batch_of(b"1")], sink)])  # the driver died before it noted the batch
    assert world.content(pipe) == []
    publish(sink, "query", 2, [stage([batch_of(b"2")], sink)])
    assert world.content(pipe) == [b"2"]


def test_a_pipe_whose_last_link_goes_before_the_move_is_made_again(world, monkeypatch):
    pipe = world.name()
    sink = options(world, pipe)
    move = Pipes.move

    def after_the_last_link(pipes, *given):
        monkeypatch.undo()
        pipes.ask("CLOSE", pipe)
        return move(pipes, *given)

    monkeypatch.setattr(Pipes, "move", after_the_last_link)
    publish(sink, "query", 1, [stage([batch_of(b"1")], sink)])
    assert world.content(pipe) == [b"1"]


# --- peers that are no brokers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "error"),
    [
        ([b"HELLO"], AnswerError), ([b""], AnswerError), ([b"INFO"], AnswerError), ([b"INFO", b"{"], AnswerError),
        ([b"INFO", b"[1]"], AnswerError), ([b"ERROR"], RefusedError), ([b"ERROR", b"x", b"\xff"], RefusedError),
        ([b"ERROR", b"400", b"no"], RefusedError), ([b"PROBE"], UnreachedError),
    ],
)  # fmt: skip
def test_a_peer_that_is_no_broker_gives_a_clear_error(says, error, monkeypatch):
    monkeypatch.setattr(wire, "FIRST_WAIT", 0.2)
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    done = threading.Event()

    def serve():
        while not done.is_set():
            if socket.poll(20):
                peer, *_ = socket.recv_multipart()
                socket.send_multipart([peer, *says])

    server = threading.Thread(target=serve)
    server.start()
    try:
        with Pipes(f"tcp://127.0.0.1:{port}", 1.0) as pipes, pytest.raises(error):
            pipes.state("p")
    finally:
        done.set()
        server.join()
        socket.close()
        context.term()


def test_an_answer_that_is_too_large_is_not_taken_in(world, monkeypatch):
    monkeypatch.setattr(wire, "FIRST_WAIT", 0.2)
    monkeypatch.setattr(wire, "MOST_IN_FRAME", 10_000)
    pipe = world.name()
    with Pipes(world.address, 2.0) as pipes:
        world.fill(pipe, [b"x" * 20_000])
        with pytest.raises(UnreachedError):
            list(pipes.rows(pipe, "spark", 1, 2))


def test_an_address_that_cannot_be_connected_to_is_named():
    with Pipes("tcp://not an address", 1.0) as pipes, pytest.raises(UnreachedError, match="not an address"):
        pipes.state("p")
