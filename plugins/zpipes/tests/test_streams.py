"""Conversations in the binary dialect, on virtual time: what the reference promises, and what it meant to."""

import pytest

from scale0_core.api import MIB
from scale0_zpipes.service import binary
from scale0_zpipes.service.streams import FULL, MANY

from .streams_model import Broker, data, read_to_the_end

READ_FAILED = binary.with_string(binary.READ_FAILED)
WRITE_FAILED = binary.with_string(binary.WRITE_FAILED)


@pytest.fixture
def broker():
    return Broker()


# --- the reference's selftest ---------------------------------------------------------------------------------------


def test_selftest_1_basic(broker):
    writer = broker.writer()
    writer.send(binary.write(b"Hello, World", 100))
    broker.sleep(0.099)
    writer.expect()
    broker.sleep(0.001)
    writer.expect(binary.WRITE_TIMEOUT)
    reader = broker.reader()
    reader.send(binary.read(12, 100))
    broker.sleep(0.1)
    reader.expect(binary.READ_TIMEOUT)
    writer.write(b"Hello, World", timeout=100)
    reader.read(12, b"Hello, World", timeout=100)
    reader.read(0, binary.READ_END)
    writer.close()
    reader.read(12, binary.READ_END)
    reader.close()
    assert (broker.streams.clients, broker.streams.pipes, broker.streams.buffered) == (0, 0, 0)


def test_selftest_2_pipelining(broker):
    writer, reader = broker.writer(), broker.reader()
    reader.send(*[binary.read(12, 100)] * 3)
    reader.expect()
    broker.sleep(0.1)
    reader.expect(binary.READ_TIMEOUT)
    writer.write(b"Hello, World")
    reader.expect(data(b"Hello, World"))
    reader.ask(binary.PING, binary.PING_OK)
    writer.close()
    reader.expect(binary.READ_END)
    reader.close()
    reader.read(12, binary.INVALID)
    reader.close(binary.INVALID)


def test_selftest_3_a_close_while_reading(broker):
    broker.writer()
    reader = broker.reader()
    reader.send(binary.read(12, 100), binary.read(12, 100))
    reader.ask(binary.PING, binary.PING_OK)
    reader.close(READ_FAILED, binary.CLOSE_OK, binary.INVALID)


def test_selftest_4_reads_of_other_sizes_than_the_chunk(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"Hello, World")
    writer.close()
    for size, expected in ((1, b"H"), (2, b"el"), (3, b"lo,"), (3, b" Wo"), (100, b"rld")):
        reader.read(size, expected)
    reader.read(100, binary.READ_END)


def test_selftest_5_expiry():
    broker = Broker(timeout=0.2)
    reader = broker.reader()
    reader.send(binary.read(12))
    broker.sleep(0.3)
    reader.expect()
    reader.read(12, binary.INVALID)
    reader.input(b"pipe")
    writer = broker.writer()
    writer.write(b"Hello, World")
    broker.sleep(0.3)
    assert broker.streams.clients == 0
    reader.input(b"pipe")
    writer.output(b"pipe")
    reader.send(binary.read(12, 100))
    broker.sleep(0.1)
    reader.expect(binary.READ_TIMEOUT)


def test_selftest_6_the_writer_closes_early(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"Hello, World")
    writer.close()
    writer.output(b"pipe")
    reader.read(12, b"Hello, World")
    second = broker.reader()
    writer.write(b"Hello, World")
    reader.read(0, binary.READ_END)
    reader.close()
    second.read(12, b"Hello, World")
    writer.close()
    second.read(12, binary.READ_END)
    second.read(12, binary.READ_END)


def test_selftest_7_the_reader_closes_early(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"Hello, World")
    reader.read(12, b"Hello, World")
    reader.close()
    writer.write(b"Hello, World", WRITE_FAILED)
    writer.write(b"Hello, World", WRITE_FAILED)
    writer.close()


def test_selftest_8_a_second_writer_and_a_second_reader_are_refused(broker):
    writer, reader = broker.writer(), broker.reader()
    second = broker.client()
    second.output(b"pipe", binary.with_string(binary.OUTPUT_FAILED))
    second.input(b"pipe", binary.with_string(binary.INPUT_FAILED))
    assert broker.streams.clients == 2
    second.output(b"other")
    writer.write(b"x")
    reader.read(1, b"x")


def test_selftest_9_a_short_read_when_the_writer_closes(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"Hello, World")
    reader.read(1000)
    writer.close()
    reader.expect(data(b"Hello, World"))
    reader.read(0, binary.READ_END)


# --- the reference's defects: what was meant -------------------------------------------------------------------------


def test_defect_1_a_writer_that_comes_while_a_read_is_blocked(broker):
    reader = broker.reader()
    reader.read(3)
    writer = broker.writer()
    reader.expect()
    writer.write(b"abc")
    reader.expect(data(b"abc"))


def test_defect_2_a_ping_while_a_write_is_blocked(broker):
    writer = broker.writer()
    writer.send(binary.write(b"abc", 300))
    writer.ask(binary.PING, binary.PING_OK)
    reader = broker.reader()
    writer.expect(binary.WRITE_OK)
    reader.read(3, b"abc")


def test_defect_3_a_ping_while_a_read_is_blocked(broker):
    writer, reader = broker.writer(), broker.reader()
    for arrives in (True, False):
        reader.send(binary.read(4, 300))
        broker.sleep(0.2)
        reader.ask(binary.PING, binary.PING_OK)
        if arrives:
            writer.write(b"abcd")
            reader.expect(data(b"abcd"))
        else:
            broker.sleep(0.1)
            reader.expect(binary.READ_TIMEOUT)


@pytest.mark.parametrize("kind", [binary.INPUT, binary.OUTPUT])
def test_defect_4_a_second_open_ends_the_first(broker, kind):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"abc")
    writer.ask(binary.with_string(kind, b"other"), binary.INVALID)
    reader.read(4, b"abc")
    reader.read(4, binary.READ_END)
    reader.ask(binary.with_string(kind, b"other"), binary.INVALID)
    assert (broker.streams.clients, broker.streams.pipes) == (0, 0)
    writer.output(b"pipe")
    reader.input(b"pipe")
    reader.ask(binary.with_string(kind, b"other"), binary.INVALID)
    writer.write(b"abc", WRITE_FAILED)
    broker.reader().close()


def test_defect_5_what_was_not_read_does_not_turn_up_in_the_next_pipe(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"old")
    reader.close()
    assert broker.streams.buffered == 0
    reader.input(b"next")
    broker.writer(b"next").write(b"new")
    reader.read(3, b"new")


MALFORMED = [
    b"", b"\xaa", b"\xaa\xa0", b"\xaa\xa0\x00", b"\xaa\xa0\x63", bytes(40), binary.write(b"abc")[:-1],
    binary.read(1, 1)[:-1], b"\xaa\xa0\x01", b"\xaa\xa0\x01\x05abcd", b"\xaa\xa0\x0c" + b"\xff" * 12,
]  # fmt: skip


@pytest.mark.parametrize("frame", [*MALFORMED, binary.WRITE_OK, data(b"abc"), READ_FAILED])
def test_defect_6_what_is_no_request_is_invalid_and_changes_nothing(broker, frame):
    broker.client().ask(frame, binary.INVALID)
    writer, reader = broker.writer(), broker.reader()
    writer.ask(frame, binary.INVALID)
    reader.read(3)
    reader.ask(frame, binary.INVALID)
    writer.write(b"abc")
    reader.expect(data(b"abc"))
    blocked = broker.writer(b"other")
    blocked.send(binary.write(b"abc"))
    blocked.ask(frame, binary.INVALID)
    broker.reader(b"other").read(3, b"abc")
    blocked.expect(binary.WRITE_OK)


def test_defect_7_a_read_with_a_part_of_its_data_ends_in_time(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"ab")
    reader.send(binary.read(4, 300))
    broker.sleep(0.3)
    reader.expect(binary.READ_TIMEOUT)
    reader.send(binary.read(4, 300))
    broker.sleep(0.2)
    writer.write(b"c")
    broker.sleep(0.1)
    reader.expect(binary.READ_TIMEOUT)
    reader.read(3, b"abc")


# --- more of the state machine --------------------------------------------------------------------------------------


def test_ping_and_requests_without_a_pipe(broker):
    client = broker.client().ask(binary.PING, binary.PING_OK)
    for request in (binary.read(1), binary.write(b"x"), binary.CLOSE):
        client.ask(request, binary.INVALID)
    assert broker.streams.clients == 0
    assert broker.streams.next_deadline() is None


def test_the_wrong_direction_is_invalid_and_changes_nothing(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.read(3, binary.INVALID)
    reader.write(b"abc", binary.INVALID)
    writer.write(b"abc")
    reader.read(3, b"abc")


def test_replies_to_requests_sent_ahead_come_in_order(broker):
    writer = broker.writer()
    writer.send(*(binary.write(b"%d" % number) for number in range(5)), binary.read(1))
    writer.expect()
    reader = broker.reader()
    writer.expect(*[binary.WRITE_OK] * 5, binary.INVALID)
    reader.send(binary.read(2), binary.read(3), binary.read(1), binary.read(0), binary.read(2), binary.write(b"x"))
    reader.expect(data(b"01"), data(b"234"))
    writer.write(b"567")
    reader.expect(data(b"5"), binary.READ_END, data(b"67"), binary.INVALID)


def test_a_close_overtakes_what_waits(broker):
    writer = broker.writer()
    writer.send(*[binary.write(b"abc")] * 3)
    writer.close(WRITE_FAILED, binary.CLOSE_OK, binary.INVALID)
    broker.reader().read(3)
    assert broker.streams.clients == 1


def test_what_waits_behind_a_close_may_open_the_next_pipe(broker):
    reader = broker.reader()
    reader.send(binary.read(1), binary.with_string(binary.INPUT, b"next"), binary.read(2), binary.read(3))
    reader.close(READ_FAILED, binary.CLOSE_OK, binary.INPUT_OK)
    broker.writer(b"next").write(b"abcde")
    reader.expect(data(b"ab"), data(b"cde"))


def test_a_timeout_lets_the_next_one_begin(broker):
    writer = broker.writer()
    writer.send(binary.write(b"a", 100), binary.write(b"b", 100), binary.write(b"c"))
    broker.sleep(0.1)
    writer.expect(binary.WRITE_TIMEOUT)
    broker.sleep(0.1)
    writer.expect(binary.WRITE_TIMEOUT)
    broker.reader().read(1, b"c")
    writer.expect(binary.WRITE_OK)


def test_an_empty_chunk_is_taken_and_delivers_nothing(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"")
    reader.read(1)
    writer.write(b"")
    reader.expect()
    writer.close()
    reader.expect(binary.READ_END)


def test_names_are_any_bytes(broker):
    for name in (b"", b"a\0b", b"a\0c", b"a", b"A", bytes(255)):
        broker.reader(name)
    assert broker.streams.pipes == 6


def test_a_large_chunk_is_streamed(broker):
    writer, reader = broker.writer(), broker.reader()
    chunk = bytes(range(256)) * (16 * MIB // 256)
    writer.write(chunk)
    reader.read(16 * MIB, chunk)
    writer.write(chunk)
    reader.read(5, chunk[:5])
    reader.read(16 * MIB - 5, chunk[5:])
    assert broker.streams.buffered == 0


def test_bytes_behind_a_message_are_ignored(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.ask(binary.write(b"abc") + b"more", binary.WRITE_OK)
    reader.ask(binary.read(3) + b"more", data(b"abc"))


def test_many_small_chunks_take_no_more_memory_than_their_bytes(broker):
    writer, reader = broker.writer(), broker.reader()
    sent = b"".join(b"%06d" % number for number in range(3 * MANY))
    for start in range(0, len(sent), 6):
        writer.write(sent[start : start + 6])
        if start == 600:
            reader.read(3, sent[:3])
    assert len(broker.streams._readers[reader.peer].chunks) < MANY + 10
    assert broker.streams.buffered == len(sent) - 3
    writer.close()
    assert read_to_the_end(reader) == sent[3:]


# --- clients that vanish --------------------------------------------------------------------------------------------


def test_a_silent_writer_is_dropped_and_the_reader_gets_the_rest(broker):
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"abc")
    broker.sleep(59)
    reader.read(2, b"ab")
    reader.read(2)
    broker.sleep(1)
    reader.expect(data(b"c"))
    reader.read(2, binary.READ_END)
    writer.write(b"x", binary.INVALID)
    assert broker.streams.dropped["silent"] == 1


def test_a_silent_reader_is_dropped_and_the_writer_learns(broker):
    reader, writer = broker.reader(), broker.writer()
    reader.read(1)
    broker.sleep(30)
    writer.ask(binary.PING, binary.PING_OK)
    broker.sleep(30)
    writer.write(b"x", WRITE_FAILED)
    reader.expect()
    broker.reader()


def test_a_request_whose_time_ends_with_its_client_is_answered_first():
    broker = Broker(timeout=0.5)
    reader = broker.reader()
    reader.send(binary.read(1, 500))
    broker.sleep(1)
    reader.expect(binary.READ_TIMEOUT)
    assert broker.streams.clients == 0


def test_every_message_is_a_sign_of_life(broker):
    writer, reader = broker.writer(), broker.reader()
    reader.read(1)
    for frame in (binary.PING, b"malformed", binary.read(1)) * 5:
        broker.sleep(50)
        reader.send(frame)
        writer.send(binary.PING)
    reader.inbox.clear()
    writer.inbox.clear()
    writer.write(b"x")
    reader.expect(data(b"x"))


def test_a_lost_connection_is_as_good_as_closed(broker):
    streams = broker.streams
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"abcdef")
    reader.read(3, b"abc")
    broker.deliver(streams.undelivered(reader.peer, data(b"abc"), gone=True, now=broker.now))
    writer.write(b"x", WRITE_FAILED)
    assert streams.buffered == 0
    reader = broker.reader()
    reader.read(1)
    writer.close()
    writer.output(b"pipe", binary.OUTPUT_OK)
    broker.deliver(streams.undelivered(writer.peer, binary.OUTPUT_OK, gone=True, now=broker.now))
    reader.expect(binary.READ_END)
    assert streams.undelivered(b"nobody", binary.PING_OK, gone=True, now=broker.now) == []
    assert streams.dropped["gone"] == 2


def test_a_client_that_missed_a_reply_is_dropped_and_learns(broker):
    writer, reader = broker.writer(), broker.reader()
    undelivered = broker.streams.undelivered
    assert undelivered(reader.peer, binary.PING_OK, gone=False, now=broker.now) == []
    writer.write(b"abc")
    reader.read(3, b"abc")
    assert undelivered(reader.peer, data(b"abc"), gone=False, now=broker.now) == []
    reader.read(3, binary.INVALID)
    writer.write(b"x", WRITE_FAILED)


def test_clients_that_come_and_go_leave_nothing(broker):
    for _ in range(5000):
        broker.client().input(b"pipe").close()
    assert len(broker.streams._alarms) == 0
    assert broker.streams.next_deadline() is None
    assert broker.streams.rows() == []


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_a_write_waits_until_the_reader_has_room():
    broker = Broker(max_buffered=10)
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"12345678")
    writer.write(b"90ab")
    writer.send(binary.write(b"cd", 100), binary.write(b"ef"), binary.write(b"gh"))
    writer.expect()
    broker.sleep(0.1)
    writer.expect(binary.WRITE_TIMEOUT)
    reader.read(1, b"1")
    reader.read(1, b"2")
    writer.expect()
    reader.read(1, b"3")
    writer.expect(binary.WRITE_OK)
    reader.read(11, b"4567890abef")
    writer.expect(binary.WRITE_OK)
    reader.close()
    writer.write(b"x", WRITE_FAILED)


def test_a_write_that_waits_for_room_fails_when_the_reader_leaves():
    broker = Broker(max_buffered=3)
    writer, reader = broker.writer(), broker.reader()
    writer.write(b"abc")
    writer.send(binary.write(b"d"), binary.write(b"e"))
    reader.close()
    writer.expect(WRITE_FAILED, WRITE_FAILED)


def test_a_read_of_more_than_is_kept_fails_instead_of_waiting_for_ever():
    broker = Broker(max_buffered=10)
    writer, reader = broker.writer(), broker.reader()
    reader.send(binary.read(20), binary.read(4), binary.read(20))
    writer.write(b"123456")
    reader.expect()
    writer.write(b"7890")
    reader.expect(FULL, data(b"1234"))
    writer.write(b"abc")
    reader.expect()
    writer.write(b"defghijklmnop")
    reader.expect(data(b"567890abcdefghijklmn"))
    writer.write(b"1234567890")
    reader.ask(binary.read(20), FULL)
    writer.close()
    reader.read(20, b"op1234567890")


def test_all_pipes_together_are_bounded_and_who_waited_longest_goes_first():
    broker = Broker(max_total=10)
    pairs = [(broker.writer(name), broker.reader(name)) for name in (b"a", b"b", b"c")]
    (a, from_a), (b, from_b), (c, from_c) = pairs
    a.write(b"1234567890")
    b.send(binary.write(b"123"))
    c.send(binary.write(b"12345"))
    b.expect()
    c.expect()
    from_c.read(5, b"12345")
    c.expect(binary.WRITE_OK)
    c.send(binary.write(b"123", 100))
    from_a.read(1, b"1")
    b.expect(binary.WRITE_OK)
    c.expect()
    from_b.read(3, b"123")
    c.expect(binary.WRITE_OK)
    c.send(binary.write(b"456", 100))
    broker.sleep(0.1)
    c.expect(binary.WRITE_TIMEOUT)
    assert not broker.streams._stalled
    c.send(binary.write(b"456", 100))
    from_a.close()
    c.expect(binary.WRITE_OK)
    from_c.read(6, b"123456")
    assert broker.streams.buffered == 0


@pytest.mark.parametrize("how", ["silent", "lost"])
def test_a_reader_that_vanishes_makes_room_for_others(how):
    broker = Broker(max_total=3)
    broker.reader(b"a")
    broker.writer(b"a").write(b"abc")
    hoarder = broker.streams._pipes[b"a"].reader.peer
    broker.sleep(30)
    writer, reader = broker.writer(), broker.reader()
    writer.send(binary.write(b"d"), binary.write(b"e"))
    writer.expect()
    if how == "silent":
        broker.sleep(30)
    else:
        broker.deliver(broker.streams.undelivered(hoarder, data(b"x"), gone=True, now=broker.now))
    writer.expect(binary.WRITE_OK, binary.WRITE_OK)
    reader.read(2, b"de")


def test_too_many_requests_that_wait_end_the_client():
    broker = Broker(max_mailbox=3, max_buffered=10)
    reader = broker.reader()
    reader.send(*[binary.read(1)] * 4)
    reader.expect()
    reader.ask(binary.read(1), binary.INVALID)
    writer = broker.writer()
    writer.send(binary.write(b"1"), binary.write(b"2345678901"))
    writer.expect()
    writer.ask(binary.write(b"x"), binary.INVALID)
    assert (broker.streams.clients, broker.streams._waiting) == (0, 0)
    assert broker.streams.dropped["overrun"] == 2


def test_chunks_that_wait_are_bounded_in_all():
    broker = Broker(max_total=10)
    first, second = broker.writer(b"a"), broker.writer(b"b")
    first.send(binary.write(b"x"), binary.write(b"1234567890"))
    second.send(binary.write(b"x"), binary.read(1))
    second.ask(binary.write(b"x"), binary.INVALID)
    first.close(WRITE_FAILED, binary.CLOSE_OK, binary.INVALID)
    assert broker.streams._waiting == 0


def test_the_rows_of_a_listing(broker):
    writer, reader = broker.writer(b"a"), broker.reader(b"a")
    broker.writer(b"b")
    broker.reader(b"c")
    writer.write(b"abc")
    assert broker.streams.rows() == [
        {"name": b"a", "has_reader": True, "has_writer": True, "bytes": 3},
        {"name": b"b", "has_reader": False, "has_writer": True, "bytes": 0},
        {"name": b"c", "has_reader": True, "has_writer": False, "bytes": 0},
    ]
    writer.close()
    assert broker.streams.rows()[2] == {"name": b"a", "has_reader": True, "has_writer": False, "bytes": 3}
    reader.read(3, b"abc")
    assert len(broker.streams.rows()) == 2
