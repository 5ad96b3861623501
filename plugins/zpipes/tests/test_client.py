"""Pipes from Python, with real brokers; most tests run with threads and with asyncio."""

from __future__ import annotations

import contextlib
import csv
import gc
import io
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import zmq

import scale0_zpipes
from scale0_core.client import CallError, CallTimedOutError, NoBrokerError
from scale0_core.testing import Flavour
from scale0_zpipes import (
    Pipe,
    PipeBusyError,
    PipeClosedError,
    PipeError,
    PipeFullError,
    PipeGoneError,
    PipeLostError,
    PipeTimeoutError,
    PipeTooLargeError,
    Stage,
    aio,
)

pytestmark = pytest.mark.real


def address_of(broker) -> str:
    return broker.address("zpipes", "pipes", 1)


@pytest.fixture
def here(scale0_broker) -> str:
    """The address of the pipes of a broker."""
    return address_of(scale0_broker.in_thread(["zpipes"]))


@pytest.fixture
def pipe(flavour: Flavour):
    """Open pipes of one flavour, which are used as those of threads are."""

    def close(end: Any) -> None:
        with contextlib.suppress(PipeError):  # what was not written a test has seen
            end.close()

    def opened(name: str | bytes, mode: str, **options: Any) -> Any:
        return flavour.make(Pipe.open, aio.Pipe.open, name, mode, close=close, **options)

    return opened


@pytest.fixture
def folder():
    # short, since a unix socket's path has about 100 characters in all
    path = Path(tempfile.mkdtemp(prefix="s0-"))
    yield path
    shutil.rmtree(path)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def test_chunks_come_out_as_they_went_in(here, pipe):
    chunks = [b"a", b"", b"\x00\xff" * 1000, b"x" * 3_000_000, *numbered(5000)]
    with pipe("p", "w", broker=here) as writer:
        for chunk in chunks:
            writer.write(chunk)
    with pipe("p", "r", broker=here) as reader:
        assert [reader.read(timeout=30) for _ in chunks] == chunks
        assert reader.number == len(chunks)
        with pytest.raises(PipeTimeoutError) as late:
            reader.read(timeout=0.05)
    assert late.value.stage is Stage.CHUNK


def test_names_and_chunks_are_any_bytes(here, pipe):
    with pipe(b"\xff\x00", "w", broker=here) as writer:
        writer.write(bytearray(b"a"))
        writer.write(memoryview(b"b"))
        for wrong in ("text", 5, None):
            with pytest.raises(TypeError):
                writer.write(wrong)
    with pipe(b"\xff\x00", "r", broker=here) as reader:
        assert [reader.read(timeout=30), reader.read(timeout=30)] == [b"a", b"b"]
        assert list(reader.chunks(timeout=0.1)) == []
        assert list(reader.drain()) == []


@pytest.mark.parametrize("wrong", [("", "r"), ("x" * 256, "r"), ("x", "rw"), ("x", "")])
def test_wrong_use_is_told(wrong):
    with pytest.raises(ValueError, match=r"bytes|opened"):
        Pipe.open(*wrong)


def test_a_broker_is_found_by_its_name(scale0_broker, folder, monkeypatch, pipe):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    name = folder.name
    (folder / "scale0").mkdir()
    scale0_broker.in_thread(["zpipes"], {"broker": {"runtime_dir": str(folder / "scale0" / name)}}, name=name)
    with pipe("p", "w", broker=name) as writer:
        writer.write(b"a")
    with pipe("p", "r", broker=name) as reader:
        assert reader.read(timeout=30) == b"a"


def test_somebody_who_writes_seldom_is_heard_at_once(here, pipe):
    with pipe("p", "w", broker=here) as writer, pipe("p", "r", broker=here) as reader:
        for chunk in (b"a", b"b"):
            writer.write(chunk)
        assert list(islice(reader, 2)) == [b"a", b"b"]  # without a flush
        deadline = time.monotonic() + 30
        while writer.pending:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_written_through_is_written_when_it_returns(here, pipe):
    with pipe("p", "w", broker=here, batch=False) as writer:
        writer.write(b"a")
        assert writer.pending == 0
        with pipe("p", "r", broker=here) as reader:
            assert list(reader.drain()) == [b"a"]


def test_two_writers_and_one_reader_at_once(here, pipe):
    def write(letter: bytes) -> None:
        with pipe("p", "w", broker=here) as writer:
            for number in range(3000):
                writer.write(letter + b"%d" % number)

    threads = [threading.Thread(target=write, args=(letter,)) for letter in (b"a", b"b")]
    for thread in threads:
        thread.start()
    with pipe("p", "r", broker=here) as reader:
        found = list(islice(reader.chunks(timeout=30), 6000))
    for thread in threads:
        thread.join()
    for letter in (b"a", b"b"):
        assert [chunk for chunk in found if chunk[:1] == letter] == [letter + number for number in numbered(3000)]


# --- what does not go well --------------------------------------------------------------------------------------------


def test_no_broker_is_an_error_immediately(folder, pipe):
    began = time.monotonic()
    with pytest.raises(PipeLostError) as lost:
        pipe("p", "r", broker=f"ipc://{folder}/nobody", timeout=60)
    assert time.monotonic() - began < 20
    assert lost.value.stage is Stage.CONNECTING
    assert "scale0 broker" in lost.value.problem.remedy


def test_somebody_who_does_not_answer_is_an_error_after_the_timeout(pipe):
    with zmq.Context() as context, context.socket(zmq.ROUTER) as silent:
        port = silent.bind_to_random_port("tcp://127.0.0.1")
        with pytest.raises(PipeLostError) as lost:
            pipe("p", "r", broker=f"tcp://127.0.0.1:{port}", timeout=0.3)
    assert lost.value.stage in (Stage.OPENING, Stage.CONNECTING)


def test_errors_are_caught_as_those_of_all_clients(here, folder, pipe):
    with pytest.raises(NoBrokerError):
        pipe("p", "r", broker=f"ipc://{folder}/nobody")
    with pipe("p", "r", broker=here) as reader:
        with pytest.raises(CallTimedOutError) as late:
            reader.read(timeout=0.05)
        with pytest.raises(CallError):
            reader.read(timeout=0)
    assert (late.value.code, late.value.pipe, late.value.service) == (408, b"p", "zpipes")


def test_an_address_that_is_none_is_told_at_once(pipe):
    with pytest.raises(PipeError, match="cannot connect"):
        pipe("p", "r", broker="nowhere://here")


def test_a_full_pipe_is_told_and_nothing_is_lost(scale0_broker, pipe):
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 100}}}))
    with pipe("p", "w", broker=here, batch=False) as writer:
        writer.write(b"x" * 100)
        with pytest.raises(PipeFullError) as full:
            writer.write(b"a", timeout=1.5)
        assert full.value.problem.consequence == "nothing was written"
        assert writer.pending == 0
        with pytest.raises(PipeTooLargeError):
            writer.write(b"x" * 101)
    with pipe("p", "w", broker=here, batch_bytes=50, window=2) as writer:
        for _ in range(10):
            writer.write(b"y" * 10, timeout=1.5)
        with pytest.raises(PipeFullError):
            writer.write(b"y" * 10, timeout=1.5)
        pending = writer.pending
        assert pending >= 10
        with pytest.raises(PipeFullError):
            writer.flush(timeout=1)
        with pipe("p", "r", broker=here) as reader:
            found = [reader.read(timeout=30) for _ in range(1 + pending)]
            assert list(reader.chunks(timeout=0.1)) == []
        writer.flush(timeout=30)
    assert found == [b"x" * 100] + [b"y" * 10] * pending


def test_closing_a_full_pipe_says_what_was_not_written(scale0_broker, pipe):
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 10}}}))
    writer = pipe("p", "w", broker=here)
    writer.write(b"x" * 10)
    writer.write(b"y")
    with pytest.raises(PipeFullError, match="1 chunks are not confirmed"):
        writer.close(timeout=2)
    assert writer.closed
    writer.close()
    with pytest.raises(PipeClosedError):
        writer.write(b"z")


def test_an_error_of_the_program_is_not_hidden_by_one_of_the_pipe(scale0_broker, pipe):
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 10}}}))

    def fail() -> None:
        with pipe("p", "w", broker=here, timeout=3) as writer:
            writer.write(b"x" * 10)
            writer.write(b"y")
            raise KeyError

    with pytest.raises(KeyError):
        fail()


def test_a_second_reader_is_told(here, pipe):
    with pipe("p", "r", broker=here) as first, pipe("p", "r", broker=here) as second:
        list(first.drain())
        with pytest.raises(PipeBusyError):
            second.read()


def test_readers_one_after_the_other_do_not_disturb_each_other(here, pipe):
    with pipe("p", "w", broker=here) as writer:
        for number in range(20):
            writer.write(b"%d" % number)
            writer.flush()
            with pipe("p", "r", broker=here) as reader:
                assert reader.read(timeout=30) == b"%d" % number


def test_a_chunk_that_an_error_kept_from_being_used_goes_back(here, pipe):
    with pipe("p", "w", broker=here) as writer:
        for chunk in numbered(3):
            writer.write(chunk)

    def fail() -> None:
        with pipe("p", "r", broker=here) as reader:
            assert list(islice(reader, 2)) == numbered(2)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    with pipe("p", "r", broker=here) as reader:
        assert reader.read(timeout=30) == b"1"
        reader.done()
        assert list(reader.drain()) == [b"2"]


def test_a_thread_that_waits_ends_when_the_pipe_is_closed(here, pipe):
    reader = pipe("p", "r", broker=here)
    ended = []

    def read() -> None:
        try:
            reader.read()
        except PipeClosedError as error:
            ended.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    reader.close()
    thread.join(10)
    assert len(ended) == 1


def test_a_pipe_that_nobody_closes_is_no_trouble(here):
    reader = Pipe.open("p", "r", broker=here)
    writer = Pipe.open("p", "w", broker=here)
    writer.write(b"a")
    writer.flush()
    del reader, writer
    gc.collect()


def test_importing_the_plugin_does_not_import_its_client():
    code = "import sys, scale0_zpipes, scale0_zpipes.plugin; print('zmq' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split()[0] == "False"
    with pytest.raises(AttributeError):
        _ = scale0_zpipes.nothing


def test_both_flavours_have_the_same_names():
    from scale0_zpipes import aio, client

    ours, others = (
        {name for name, found in vars(module).items() if isinstance(found, type)} for module in (client, aio)
    )
    assert ours == others
    assert scale0_zpipes.Pipe is client.Pipe


# --- groups -----------------------------------------------------------------------------------------------------------


def test_a_group_acknowledges_what_it_is_told_to(here, pipe):
    with pipe("p", "w", broker=here) as writer:
        for chunk in numbered(10):
            writer.write(chunk)
        writer.flush()
        with pipe("p", "r", broker=here, group="g") as reader:
            assert [reader.read(timeout=30) for _ in range(6)] == numbered(6)
            assert (reader.number, reader.position) == (6, 7)
            reader.ack(4)
            reader.seek(5)
            assert reader.read(timeout=30) == b"4"
            with pytest.raises(PipeGoneError):
                reader.seek(2)
        with pipe("p", "r", broker=here, group=b"g") as reader:
            assert reader.read(timeout=30) == b"4"
            reader.ack()
            assert reader.info()["groups"] == {"g": {"next": 6}}
        with pipe("p", "r", broker=here, group="g", auto_ack=True) as reader:
            assert list(reader.drain()) == numbered(10)[5:]
        with pipe("p", "r", broker=here, group="late", start="next") as reader:
            writer.write(b"new")
            assert reader.read(timeout=30) == b"new"
            reader.close(drop_group=True)
        with pipe("p", "r", broker=here) as reader, pytest.raises(ValueError, match="group"):
            reader.seek(1)


def test_a_group_with_a_lease_takes_nothing_away_and_has_no_link(here, pipe):
    with pipe("p", "w", broker=here) as writer:
        writer.write(b"a")
        writer.flush()
        with pipe("p", "r", broker=here, group="g", start="next", lease=5) as group:
            with pipe("p", "r", broker=here) as reader:
                assert reader.read(timeout=30) == b"a"
                assert reader.info()["links"] == 2
                writer.write(b"b")
                assert reader.read(timeout=30) == group.read(timeout=30) == b"b"
            group.close(drop_group=True)
        assert links(here, "p") == 1
    for wrong in ({"lease": 5}, {"lease": 0, "group": "g"}, {"lease": 1e9, "group": "g"}):
        with pytest.raises(ValueError, match="lease"):
            pipe("p", "r", broker=here, **wrong)


# --- links ------------------------------------------------------------------------------------------------------------


def links(here: str, name: str) -> int:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(here)
        socket.send_multipart([b"INFO", name.encode()])
        return json.loads(socket.recv_multipart()[1])["links"]


def wait_for_links(here: str, name: str, count: int) -> None:
    deadline = time.monotonic() + 30
    while links(here, name) != count:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_link_is_closed(here, pipe):
    with pipe("p", "w", broker=here) as writer:
        for chunk in numbered(3):
            writer.write(chunk)
        writer.flush()
        with pipe("p", "r", broker=here, group="g") as reader:
            for _ in range(3):
                reader.seek(1)
            assert reader.info()["links"] == 2
        wait_for_links(here, "p", 1)
        with pipe("p", "r", broker=here, group="g") as reader:
            assert [reader.read(timeout=30) for _ in range(3)] == numbered(3)
            reader.ack()
            with pytest.raises(PipeGoneError):
                reader.seek(1)
        wait_for_links(here, "p", 1)


def test_the_link_of_a_pipe_that_nobody_closes_is_closed(here):
    with Pipe.open("p", "w", broker=here):
        forgotten = Pipe.open("p", "r", broker=here, group="g")
        wait_for_links(here, "p", 2)
        del forgotten
        gc.collect()
        wait_for_links(here, "p", 1)


# --- files ------------------------------------------------------------------------------------------------------------


def test_a_file_is_copied_through_a_pipe(here):
    data = bytes(range(256)) * 4000

    def write() -> None:
        with Pipe.open("p", "w", broker=here) as pipe, pipe.file() as file:
            shutil.copyfileobj(io.BytesIO(data), file)

    thread = threading.Thread(target=write)
    thread.start()
    copy = io.BytesIO()
    with Pipe.open("p", "r", broker=here) as pipe, pipe.file() as file:
        shutil.copyfileobj(file, copy)
        assert file.read() == b""  # the end stays the end
    thread.join()
    assert copy.getvalue() == data


def test_text_is_printed_and_tables_are_read(here):
    with Pipe.open("p", "w", broker=here) as pipe:
        with pipe.file(encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["größe", 1], ["two\nlines", 2]])
        with pipe.file(encoding="utf-8") as file:
            print("hello", file=file)
            print(file=file, end="")
        with pipe.file(end=False) as file:
            file.write(b"no end")
        pipe.write(b"")
    with Pipe.open("p", "r", broker=here) as pipe:
        with pipe.file(encoding="utf-8", newline="") as file:
            assert list(csv.reader(file)) == [["größe", "1"], ["two\nlines", "2"]]
        with pipe.file(encoding="utf-8") as file:
            assert list(file) == ["hello\n"]
        with pipe.file() as file:
            assert file.read() == b"no end"


# --- what breaks ------------------------------------------------------------------------------------------------------

READER = """
import sys
from scale0_zpipes import Pipe
with Pipe.open("p", "r", broker=sys.argv[1], batch_chunks=50) as pipe:
    for chunk in pipe:
        print(chunk.decode(), flush=True)
"""


def test_a_reader_that_is_killed_loses_nothing(scale0_broker, pipe):
    here = address_of(scale0_broker(["zpipes"]))
    with pipe("p", "w", broker=here) as writer:
        for chunk in numbered(2000):
            writer.write(chunk)
    seen: list[int] = []
    for rounds in range(3):
        process = subprocess.Popen([sys.executable, "-c", READER, here], stdout=subprocess.PIPE, text=True)
        with process:
            seen += [int(process.stdout.readline()) for _ in range(300 + 7 * rounds)]
            process.send_signal(signal.SIGKILL)
            # what it had written already it had made use of
            seen += [int(line) for line in process.stdout if line.endswith("\n")]
    with pipe("p", "r", broker=here) as reader:
        seen += map(int, reader.drain())
    assert sorted(set(seen)) == list(range(2000))
    assert len(seen) < 2000 + 3 * 101  # only what was not acknowledged came again


def durable(folder: Path) -> dict:
    return {
        "broker": {"runtime_dir": str(folder / "run"), "data_dir": str(folder / "data")},
        "plugin": {"zpipes": {"durable": ["d.*"]}},
    }


def test_a_broker_that_is_killed_and_started_again_loses_and_doubles_nothing(scale0_broker, folder, pipe):
    broker = scale0_broker(["zpipes"], durable(folder), name="d-" + folder.name)
    here = address_of(broker)
    found: list[bytes] = []

    def read() -> None:
        with pipe("d.p", "r", broker=here) as reader:
            found.extend(islice(reader.chunks(timeout=30), 6000))

    thread = threading.Thread(target=read)
    thread.start()
    with pipe("d.p", "w", broker=here, batch_chunks=20) as writer:
        for number, chunk in enumerate(numbered(6000)):
            writer.write(chunk)
            if number in (2000, 4000):
                broker.kill()
                broker = scale0_broker(["zpipes"], durable(folder), name="d-" + folder.name)
    thread.join(30)
    assert found == numbered(6000)


def test_a_broker_in_memory_that_is_started_again_is_used_again(scale0_broker, folder, pipe):
    settings = {"broker": {"runtime_dir": str(folder / "run")}}
    broker = scale0_broker.in_thread(["zpipes"], settings)
    here = address_of(broker)
    with pipe("p", "w", broker=here) as writer, pipe("p", "r", broker=here) as reader:
        writer.write(b"a")
        assert reader.read(timeout=30) == b"a"
        broker.stop()
        with pytest.raises(PipeTimeoutError) as late:
            reader.read(timeout=2)
        assert late.value.stage is Stage.CONNECTING
        scale0_broker.in_thread(["zpipes"], settings)
        writer.write(b"b")
        assert reader.read(timeout=30) == b"b"


def test_a_reader_ends_when_the_broker_stays_away(scale0_broker, pipe):
    broker = scale0_broker.in_thread(["zpipes"])
    with pipe("p", "r", broker=address_of(broker), timeout=3) as reader:
        assert list(reader.drain()) == []
        broker.stop()
        with pytest.raises(PipeLostError):
            reader.read()


def test_the_example_runs(here):
    example = Path(__file__).parents[3] / "examples" / "pipes.py"
    done = subprocess.run([sys.executable, example, here], capture_output=True, text=True, timeout=50, check=False)
    assert (done.stdout, done.stderr) == ("1000 jobs\n1000000 bytes\n", "")


def test_a_pipe_is_found_by_the_name_of_its_broker_or_at_the_first_of_several_that_is_there(scale0_broker, pipe):
    broker = scale0_broker.in_thread(["zpipes"])
    with pipe("p", "w", broker=broker.name) as writer:
        writer.write(b"a")
    with pipe("p", "r", broker=["gone", "tcp://127.0.0.1:1", broker.name], timeout=30) as reader:
        assert reader.read() == b"a"
    with pytest.raises(PipeLostError, match="no broker gone runs on this machine"):
        pipe("p", "r", broker="gone")
    with pytest.raises(PipeLostError, match="has no service zpipes"):
        pipe("p", "r", broker=scale0_broker.in_thread().name)
    with pytest.raises(ValueError, match="by its name or by an address"):
        pipe("p", "r", broker="no/where")
