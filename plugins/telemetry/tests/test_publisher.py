"""Events in a pipe: against a peer that answers as a test wants, over real sockets."""

import datetime
import json
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import EventKind, events
from scale0_core.testing import BrokerStarter
from scale0_telemetry.observer.columns import Columns
from scale0_telemetry.observer.publisher import CHUNK_ROWS, PUT_BYTES, SILENCE, Publisher, cut
from scale0_telemetry.schema import SCHEMA

pytestmark = pytest.mark.real

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc).timestamp()
TASK = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)
READ = (events.PIPE_READ, 1.5, "orders", 3, 300)


class Peer:
    """A broker that says what it is told to."""

    def __init__(self, most_bytes=1 << 20):
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.socket.linger = 0
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.publisher = Publisher(f"tcp://127.0.0.1:{port}", b"events", b"me", most_bytes)
        self.columns = Columns("left", 7)

    def close(self):
        self.publisher.close()
        self.context.destroy(linger=0)

    def put(self, *told):
        self.publisher.put(self.columns.convert([(NOON, [("scale0", list(told))])]))

    def asked(self):
        """Have a step taken until a request comes, and give it."""
        for _ in range(200):
            self.publisher.step(0.02)
            if self.socket.poll(20):
                self.peer, *request = self.socket.recv_multipart()
                return request
        raise AssertionError("no request came")

    def answer(self, *frames):
        self.socket.send_multipart([self.peer, *frames])

    def opened(self, made=1.5):
        assert self.asked() == [b"OPEN", b"events"]
        self.answer(b"OK")
        self.found(made)

    def found(self, made=1.5, links=1, **more):
        assert self.asked() == [b"INFO", b"events"]
        self.answer(b"INFO", json.dumps({"made": made, "links": links, **more}).encode())

    def said_while(self, work, *answers):
        """Give what is asked while something is done, and answer."""
        said = []
        with ThreadPoolExecutor(1) as pool:
            doing = pool.submit(work)
            while not doing.done():
                if self.socket.poll(20):
                    self.peer, *request = self.socket.recv_multipart()
                    said.append(request)
                    self.answer(*answers[len(said) - 1])
            doing.result()
        return said

    def cut_off(self, monkeypatch):
        """Have the publisher think that nobody answers."""
        with monkeypatch.context() as patch:
            patch.setattr("scale0_telemetry.observer.publisher.SILENCE", 0.0)
            self.publisher.step(0.0)


@pytest.fixture
def peer(real):
    peer = Peer()
    yield peer
    peer.close()


def chunks(batch):
    found = []
    while batch:
        size = int.from_bytes(batch[:4], "big")
        found.append(batch[4 : 4 + size])
        batch = batch[4 + size :]
    return found


@pytest.mark.quick
def test_a_chunk_is_a_stream_of_one_record_batch_of_all_kinds():
    batches = Columns("left", 7).convert([(NOON, [("scale0", [TASK, TASK]), ("zpipes", [READ])])])
    [chunk], too_large = cut(batches)
    assert not too_large
    with pa.ipc.open_stream(chunk.data) as reader:
        assert reader.schema.equals(SCHEMA, check_metadata=True)
        [rows] = reader
    assert chunk.rows == rows.num_rows == 3
    assert [(row["kind"], row["date"], row["seq"]) for row in rows.to_pylist()] == [
        ("task", datetime.date(2026, 3, 1), 1), ("task", datetime.date(2026, 3, 1), 2),
        ("pipe_read", datetime.date(2026, 3, 1), 3),
    ]  # fmt: skip


def numbers(chunk):
    """Give the numbers of the events in a chunk."""
    with pa.ipc.open_stream(chunk.data) as reader:
        [rows] = reader
    assert rows.num_rows == chunk.rows
    return rows.column("seq").to_pylist()


def single(batches):
    """Cut batches into such of one event."""
    return [batch._replace(rows=batch.rows.slice(row, 1)) for batch in batches for row in range(batch.rows.num_rows)]


TEXTS = st.integers(0, 12_000).map("x".__mul__) | st.just("")
MARGIN = 1024
"""A row may take some bytes more beside others: those that say which values are null."""
TOLD = st.lists(st.tuples(st.sampled_from("ab"), TEXTS), min_size=1, max_size=30)


@pytest.mark.quick
@settings(max_examples=100, deadline=None)
@given(st.lists(TOLD, min_size=1, max_size=5), st.integers(1, 40), st.integers(4_000, 20_000))
def test_any_batches_come_out_in_chunks_within_the_limits(puts, most_rows, most_bytes):
    kinds = {name: EventKind(name, "", ("subject", "more")) for name in "ab"}
    columns = Columns("left", 7)
    batches = []
    for told in puts:
        batches += columns.convert([(NOON, [("scale0", [(kinds[name], 1.5, text, text) for name, text in told])])])
    chunks, too_large = cut(batches, most_rows, most_bytes)
    assert all(0 < chunk.rows <= most_rows and len(chunk.data) <= most_bytes for chunk in chunks)
    found = [number for chunk in chunks for number in numbers(chunk)]
    wanted = [number for batch in batches for number in batch.rows.column("seq").to_pylist()]
    assert found == [number for number in wanted if number in set(found)], "each at most once, and in order"
    assert len(found) + too_large == len(wanted)
    fitting = [batch for batch in single(batches) if cut([batch], 1, most_bytes - MARGIN)[0]]
    assert set(found) >= {batch.rows.column("seq")[0].as_py() for batch in fitting}


@pytest.mark.real
def test_a_burst_is_sent_in_requests_that_a_pipe_takes():
    peer = Peer(most_bytes=64 << 20)
    try:
        peer.put(*[TASK] * 40_000)
        peer.opened()
        told = []
        first = 1
        while len(told) < 40_000:
            request = peer.asked()
            found = [pa.ipc.open_stream(chunk).read_all().column("seq").to_pylist() for chunk in chunks(request[4])]
            assert (request[3], len(request[4]) <= PUT_BYTES) == (b"%d" % first, True)
            assert max(map(len, found)) <= CHUNK_ROWS
            told += [number for each in found for number in each]
            first += len(found)
            peer.answer(b"OK", b"%d" % first)
        assert told == list(range(1, 40_001))
    finally:
        peer.close()


def test_an_event_that_is_too_large_for_a_pipe_is_counted(peer):
    peer.put(TASK, (events.PIPE_READ, 1.5, "x" * PUT_BYTES, 3, 300), READ)
    peer.opened()
    found = [pa.ipc.open_stream(chunk).read_all() for chunk in chunks(peer.asked()[4])]
    assert [number for table in found for number in table.column("seq").to_pylist()] == [1, 3]
    assert peer.publisher.lost == {"large": 1}


@pytest.mark.parametrize("largest", [20_000, 100_000])
@pytest.mark.real
def test_all_events_reach_a_broker_that_takes_small_chunks(largest):
    """A request of more than twice ``max_message`` and 64 KiB has the connection cut, whatever is sent again."""
    pytest.importorskip("scale0_zpipes", reason="the plugin zpipes is not here")
    settings = {"plugin": {"zpipes": {"max_message": largest}}}
    with BrokerStarter() as start:
        address = start.in_thread(["zpipes"], settings).address("zpipes", "pipes", 1)
        publisher, columns = Publisher(address, b"events", b"me", 1 << 30), Columns("left", 7)
        try:
            for _ in range(2):  # what comes before it is known how large a chunk may be, and what comes then
                for _ in range(20):
                    publisher.put(columns.convert([(NOON, [("scale0", [TASK] * 100)])]))
                    publisher._close_chunk()
                end = time.monotonic() + 20
                while publisher.waiting:
                    publisher.step(0.2)
                    assert time.monotonic() < end
            publisher.put(columns.convert([(NOON, [("scale0", [TASK] * 2 * CHUNK_ROWS)])]))
            end = time.monotonic() + 20
            while publisher.waiting or publisher._batches:
                publisher.step(0.2)
                assert time.monotonic() < end
            assert not publisher.lost
        finally:
            publisher.close()


def test_a_chunk_that_was_made_before_the_limit_was_known_is_counted(peer):
    peer.put(*[TASK] * 1000)
    peer.publisher._close_chunk()
    peer.put(TASK)
    assert peer.asked() == [b"OPEN", b"events"]
    peer.answer(b"OK")
    peer.found(max_chunk=10_000)
    request = peer.asked()
    assert len(chunks(request[4])) == 1
    assert peer.publisher.lost == {"large": 1000}


def test_chunks_are_numbered_on(peer):
    peer.put(TASK)
    peer.opened()
    verb, pipe, writer, first, batch, _ = peer.asked()
    assert (verb, pipe, writer, first, len(chunks(batch))) == (b"PUT", b"events", b"me", b"1", 1)
    peer.answer(b"OK", b"2")
    peer.put(TASK)
    peer.publisher.step(0)
    peer.put(TASK)
    assert peer.asked()[3] == b"2"
    assert not peer.publisher.lost


@pytest.mark.parametrize("code", [b"408", b"429", b"507"])
def test_what_was_refused_for_now_comes_again_with_the_same_number(peer, code):
    peer.put(TASK)
    peer.opened()
    once = peer.asked()
    peer.answer(b"ERROR", code, b"not now")
    assert peer.asked() == once
    assert not peer.publisher.lost


def test_a_pipe_that_is_gone_is_opened_again(peer):
    peer.put(TASK)
    peer.opened()
    once = peer.asked()
    peer.answer(b"ERROR", b"404", b"no such pipe")
    peer.opened()
    assert peer.asked() == once


def test_a_number_that_does_not_follow_makes_a_new_writer(peer):
    peer.put(TASK)
    peer.opened()
    once = peer.asked()
    peer.answer(b"ERROR", b"409", b"a gap")
    assert peer.asked() == [*once[:2], b"me-1", *once[3:]]


def test_what_is_refused_for_good_is_counted(peer):
    peer.put(TASK, TASK)
    peer.opened()
    peer.asked()
    peer.answer(b"ERROR", b"413", b"too large")
    peer.put(TASK)
    assert peer.asked()[3] == b"2"
    assert peer.publisher.lost == {"pipe": 2}


def test_silence_makes_a_new_connection(peer, monkeypatch):
    peer.put(TASK)
    peer.opened()
    once, who = peer.asked(), peer.peer
    peer.cut_off(monkeypatch)
    peer.found()
    assert peer.asked() == once
    assert peer.peer != who


@pytest.mark.parametrize("found", [{"made": 2.5}, {"links": 0}])
def test_a_pipe_that_was_made_anew_is_opened_again(peer, monkeypatch, found):
    peer.put(TASK)
    peer.opened()
    once = peer.asked()
    peer.cut_off(monkeypatch)
    peer.found(**found)
    peer.opened(2.5)
    assert peer.asked() == once


def test_a_pipe_is_closed_in_the_end(peer):
    peer.put(TASK)
    peer.opened()
    peer.asked()
    peer.answer(b"OK", b"2")
    peer.publisher.step()
    said = peer.said_while(lambda: peer.publisher.close(20), [b"INFO", b'{"made": 1.5, "links": 1}'], [b"OK"])
    assert said == [[b"INFO", b"events"], [b"CLOSE", b"events"]]


def test_a_link_that_may_be_another_s_is_left_alone(peer):
    peer.put(TASK)
    peer.opened()
    peer.asked()
    peer.answer(b"OK", b"2")
    peer.publisher.step()
    said = peer.said_while(lambda: peer.publisher.close(20), [b"INFO", b'{"made": 2.5, "links": 1}'])
    assert said == [[b"INFO", b"events"]]


@pytest.mark.real
def test_the_buffer_is_bounded_and_the_rest_is_counted():
    peer = Peer(most_bytes=2048)
    try:
        for _ in range(10):
            peer.put(TASK, TASK)
            peer.publisher.step(0.0)
        lost = peer.publisher.lost["pipe"]
        assert 0 < lost < 20
        peer.publisher.give_up()
        assert peer.publisher.lost["pipe"] == 20
    finally:
        peer.close()


@pytest.mark.real
def test_nobody_there_is_no_error():
    publisher = Publisher("tcp://127.0.0.1:9", b"events", b"me", 1 << 20)
    publisher.put(Columns("left", 7).convert([(NOON, [("scale0", [TASK])])]))
    publisher.step(0.0)
    publisher.give_up()
    publisher.close()
    assert publisher.lost == {"pipe": 1}


@pytest.mark.real
def test_an_address_that_is_none_is_no_error():
    publisher = Publisher("nowhere", b"events", b"me", 1 << 20)
    publisher.put(Columns("left", 7).convert([(NOON, [("scale0", [TASK])])]))
    publisher.step(0.0)
    publisher.give_up()
    publisher.close()
    assert publisher.lost == {"pipe": 1}


@pytest.mark.real
def test_a_broker_that_comes_late_gets_nothing_that_waited_in_a_socket(tmp_path_factory):
    address = f"ipc://{tmp_path_factory.mktemp('p')}/late"
    publisher = Publisher(address, b"events", b"me", 1 << 20)
    columns = Columns("left", 7)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as broker:
        broker.linger = 0
        for _ in range(10):  # each of these steps would send an OPEN if anybody were there
            publisher.put(columns.convert([(NOON, [("scale0", [TASK])])]))
            publisher.step(0.01)
        broker.bind(address)
        while not broker.poll(20):
            publisher.step(0.02)
        assert broker.recv_multipart()[1:] == [b"OPEN", b"events"]
        publisher.step(0.05)
        assert not broker.poll(50), "it was asked once"
        publisher.give_up()
        publisher.close()
    assert publisher.lost == {"pipe": 10}


@pytest.mark.real
def test_a_request_is_repeated_as_soon_as_its_connection_breaks(tmp_path_factory):
    address = f"ipc://{tmp_path_factory.mktemp('p')}/flaps"
    publisher = Publisher(address, b"events", b"me", 1 << 20)
    publisher.put(Columns("left", 7).convert([(NOON, [("scale0", [TASK])])]))
    end = time.monotonic() + SILENCE / 2
    with zmq.Context() as context:
        for _ in range(2):  # the broker dies with the first request, and its successor is asked without waiting long
            with context.socket(zmq.ROUTER) as broker:
                broker.linger = 0
                broker.bind(address)
                while not broker.poll(20):
                    assert time.monotonic() < end
                    publisher.step(0.02)
                assert broker.recv_multipart()[1:] == [b"OPEN", b"events"]
    publisher.give_up()
    publisher.close()


MADE = b'{"made": 1, "links": 1}'
ANSWERS = st.lists(
    st.sampled_from([b"OK", b"INFO", MADE, b"ERROR", b"404", b"409", b"429", b"413", b"", b"PROBE"])
    | st.binary(max_size=4),
    min_size=1, max_size=4,
)  # fmt: skip


@settings(max_examples=50)
@given(st.lists(ANSWERS, max_size=10))
def test_any_answer_is_taken_and_no_event_is_lost_without_a_count(answers):
    """The answers are handed to the session: all states, no waiting."""
    publisher = Publisher("inproc://nobody", b"events", b"me", 1 << 20)
    session, columns = publisher.session, Columns("left", 7)
    session.start(0.0)
    session.on_linked(0.0)
    taken = 0
    for answer in answers:
        publisher.put(columns.convert([(NOON, [("scale0", [TASK])])]))
        publisher._close_chunk()
        session.resume(0.0)
        before = len(session.chunks), sum(publisher.lost.values())
        session.receive(tuple(answer), 0.0)
        gone = before[0] - len(session.chunks)
        assert gone >= 0
        taken += gone - (sum(publisher.lost.values()) - before[1])
    publisher.give_up()
    assert taken + publisher.lost["pipe"] == len(answers)
