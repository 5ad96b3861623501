"""The cases and scripts by which python-zbroker's authors tested pipes, told anew, on virtual time."""

import heapq

import pytest

from scale0_zpipes.service import binary

from .streams_model import Broker, data, read_to_the_end


@pytest.fixture
def broker():
    return Broker()


# --- python-zbroker's nine cases ------------------------------------------------------------------------------------


@pytest.fixture
def ends(broker):
    """A reader and a writer, opened in this order, and closed in the end if that is still possible."""
    reader, writer = broker.reader(), broker.writer()
    yield reader, writer
    for client in (reader, writer):
        client.inbox.clear()
        client.send(binary.CLOSE)
        assert client.inbox[-1] in (binary.CLOSE_OK, binary.INVALID)
    assert broker.streams.pipes == 0


def test_case_0100_simple_read_and_write(ends):
    reader, writer = ends
    writer.write(b"test")
    reader.read(4, b"test")


def test_case_0101_noop(ends):
    assert ends


def test_case_0110_a_write_without_reader_blocks(broker):
    writer = broker.writer(b"new")
    writer.send(binary.write(b"hi"))
    broker.sleep(4)
    writer.expect()


def test_case_0111_a_read_without_writer_blocks(broker):
    reader = broker.reader(b"new")
    reader.read(1)
    broker.sleep(4)
    reader.expect()


def test_case_0120_a_read_without_data_blocks(broker, ends):
    reader, _ = ends
    reader.read(1)
    broker.sleep(4)
    reader.expect()


def test_case_0130_a_block_is_a_stream(ends):
    reader, writer = ends
    writer.write(b"test")
    for byte in (b"t", b"e", b"s", b"t"):
        reader.read(1, byte)


def test_case_0140_many_writes(ends):
    reader, writer = ends
    lines = [b"arf arf arf %d\n" % number for number in range(1000)]
    for line in lines:
        writer.write(line)
    writer.close()
    assert read_to_the_end(reader).splitlines(keepends=True) == lines


@pytest.mark.parametrize("anew", [True, False], ids=["new-connections", "same-connections"])
def test_case_0150_what_was_not_read_is_flushed_by_the_close(broker, ends, anew):
    reader, writer = ends
    writer.write(b"123")
    writer.write(b"456")
    reader.read(3, b"123")
    reader.close()
    writer.close()
    reader, writer = (broker.reader(), broker.writer()) if anew else (reader.input(b"pipe"), writer.output(b"pipe"))
    writer.write(b"789")
    reader.read(3, b"789")
    reader.close()
    writer.close()


def test_case_0160_read_until_the_end(ends):
    reader, writer = ends
    for chunk in (b"123", b"456", b"789"):
        writer.write(chunk)
    writer.close()
    for chunk in (b"123", b"456", b"789"):
        reader.read(3, chunk)
    reader.read(1, binary.READ_END)


# --- python-zbroker's eight scripts: one peer for each node, side by side -------------------------------------------

TIMED_OUT = "timed out"

SCRIPTS = {
    "simple_noop": ("open write; close", "open read; close"),
    "simple_writer": (
        "sleep 1; timeout 5000; open write; write abc; close",
        "sleep 1; timeout 5000; open read; read 3 abc; close",
    ),
    "blocks_are_streamish": (
        "sleep 1; timeout 0; open write; write abcdef; close",
        "sleep 1; timeout 0; open read; read 2 ab; read 2 cd; read 2 ef; close",
    ),
    "buffer_flush_on_close": (
        "timeout 9000; sleep 1; open write; write ab; write cd; write ef; close",
        "timeout 7000; sleep 1; open read; sleep 2; read 4096 abcdef; close",
    ),
    "pipe_flush_after_close": (
        "timeout 0; open write; write abc; write def; close; sleep 2; open write; write ghi; close",
        "timeout 0; open read; sleep 1; close; sleep 2; open read; read 3 ghi; close",
    ),
    "read_without_data_blocks": (
        "sleep 1; open write; sleep 6; close",
        "sleep 1; open read; timeout 1000; expect exception; read 1; close",
    ),
    "read_without_writer_blocks": ("", "open read; expect exception; read 1; close"),
    "write_without_reader_blocks": ("open write; expect exception; write abc; close", ""),
}


class Node:
    """Runs a script: a generator that gives seconds to sleep, or None to wait for a reply."""

    def __init__(self, broker, script):
        self.client = broker.client()
        self.timeout = 1000
        self.expects = False
        self.steps = self._run([line.split() for line in script.split("; ") if line])

    def _run(self, lines):
        for verb, *words in lines:
            if verb == "sleep":
                yield float(words[0])
            elif verb == "timeout":
                self.timeout = int(words[0])
            elif verb == "expect":
                self.expects = True
            else:
                wanted = getattr(self, f"_{verb}")(*words)
                while not self.client.inbox:
                    yield None
                self._check(self.client.inbox.pop(), wanted)
        assert not self.expects

    def _check(self, reply, wanted):
        if reply in (binary.READ_TIMEOUT, binary.WRITE_TIMEOUT):
            assert self.expects
            self.expects = False
        else:
            assert reply == wanted

    def _open(self, way):
        kind, wanted = (binary.INPUT, binary.INPUT_OK) if way == "read" else (binary.OUTPUT, binary.OUTPUT_OK)
        self.client.send(binary.with_string(kind, b"p"))
        return wanted

    def _read(self, size, expected=""):
        self.client.send(binary.read(int(size), self.timeout))
        return data(expected.encode())

    def _write(self, text):
        self.client.send(binary.write(text.encode(), self.timeout))
        return binary.WRITE_OK

    def _close(self):
        self.client.send(binary.CLOSE)
        return binary.CLOSE_OK


@pytest.mark.parametrize("reader_first", [False, True], ids=["writer-first", "reader-first"])
@pytest.mark.parametrize("script", SCRIPTS)
def test_script(script, reader_first):
    broker = Broker(timeout=10)
    nodes = [Node(broker, each) for each in SCRIPTS[script]]
    agenda = [(broker.now, number, node) for number, node in enumerate(nodes[:: -1 if reader_first else 1])]
    end = broker.now + 10
    while agenda:
        when, number, node = heapq.heappop(agenda)
        assert when <= end, "a script gets ten seconds"
        broker.sleep(when - broker.now)
        pause = next(node.steps, TIMED_OUT)
        if pause != TIMED_OUT:
            heapq.heappush(agenda, (broker.now + (0.01 if pause is None else pause), number, node))
    assert broker.streams.clients == 0
