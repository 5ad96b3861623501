"""Limits, as seen from outside: real brokers, real sockets, the real command line."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
import zmq

from scale0_zpipes import Pipe, PipeLostError, PipeTimeoutError, PipeTooLargeError, aio
from scale0_zpipes.batches import pack_chunks
from scale0_zpipes.service import binary

pytestmark = pytest.mark.real

MIB = 1024 * 1024
MAX_MESSAGE = MIB


def address_of(broker) -> str:
    return broker.address("zpipes", "pipes", 1)


@pytest.fixture
def peer():
    """Give a function that makes a DEALER socket."""
    context, made = zmq.Context(), []

    def make(address):
        dealer = context.socket(zmq.DEALER)
        dealer.linger, dealer.rcvtimeo, dealer.sndhwm = 0, 20_000, 0
        dealer.connect(address)
        made.append(dealer)
        return dealer

    yield make
    for dealer in made:
        dealer.close()
    context.term()


def ask(dealer, *frames):
    dealer.send_multipart(frames)
    return dealer.recv_multipart()


def peak_mib(process: int) -> float:
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_broker_does_not_keep_writes_that_waited_until_their_time_would_be_over(scale0_broker, peer):
    """A pipe of 8 MiB, 400 MiB put through it by writes that wait for up to a minute."""
    broker = scale0_broker(
        ["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 8 * MIB, "max_blocked_bytes": 16 * MIB}}}
    )
    writer, reader = peer(address_of(broker)), peer(address_of(broker))
    assert ask(writer, b"OPEN", b"p") == [b"OK"]
    before = peak_mib(broker.process.pid)
    batch = pack_chunks([b"x" * MIB])
    for number in range(1, 401):
        writer.send_multipart([b"PUT", b"p", b"me", b"%d" % number, batch, b"60000"])
        if number > 10:
            assert len(ask(reader, b"READ", b"p")[0]) == MIB
            assert writer.recv_multipart()[0] == b"OK"
    assert peak_mib(broker.process.pid) - before < 100


def test_a_writer_that_sends_without_end_into_a_full_pipe_does_not_fill_the_memory(scale0_broker, peer):
    broker = scale0_broker(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": MIB, "max_blocked_bytes": 16 * MIB}}})
    writer, other = peer(address_of(broker)), peer(address_of(broker))
    assert ask(writer, b"OPEN", b"p") == [b"OK"]
    before = peak_mib(broker.process.pid)
    for _ in range(400):
        writer.send_multipart([b"WRITE", b"p", b"x" * MIB])
    assert writer.recv_multipart() == [b"OK"]
    writer.send_multipart([b"PING"])
    assert writer.recv_multipart() == [b"PONG"], "all of it was received"
    assert peak_mib(broker.process.pid) - before < 150
    stored = 0
    while ask(other, b"READ", b"p", b"0")[0] != b"ERROR":
        stored += 1
    answers = [writer.recv_multipart()[0] for _ in range(399)]
    assert answers == [b"OK"] * (stored - 1) + [b"ERROR"] * (400 - stored)


def test_a_broker_lets_go_of_what_waited_for_a_reader_of_the_binary_dialect_that_has_left(scale0_broker, peer):
    """Twelve readers leave with 20 MiB each, long before the broker would have taken them for dead."""
    broker = scale0_broker(["zpipes"])
    before = peak_mib(broker.process.pid)
    for number in range(12):
        reader, writer = peer(address_of(broker)), peer(address_of(broker))
        assert ask(reader, binary.with_string(binary.INPUT, b"p%d" % number)) == [binary.INPUT_OK]
        assert ask(writer, binary.with_string(binary.OUTPUT, b"p%d" % number)) == [binary.OUTPUT_OK]
        for _ in range(20):
            assert ask(writer, binary.write(b"x" * MIB)) == [binary.WRITE_OK]
        assert ask(reader, binary.CLOSE) == [binary.CLOSE_OK]
    assert peak_mib(broker.process.pid) - before < 100


# --- files one after the other ----------------------------------------------------------------------------------------


def run(address, *arguments, data=b""):
    command = [sys.executable, "-m", "scale0_core", "zpipes", *arguments, "--broker", address]
    return subprocess.run(command, input=data, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize("durable", [[], ["x"]])
def test_files_written_one_after_the_other_come_out_one_after_the_other(scale0_broker, durable):
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"durable": durable}}}))
    files = [bytes([letter]) * 300_000 for letter in b"ABC"]
    for data in files:
        assert run(here, "write", "x", data=data).returncode == 0
    for data in files:
        done = run(here, "read", "x")
        assert (done.returncode, done.stdout == data) == (0, True)


def feed(stdin, size):
    """Write to a process that may be killed; its stdin stays open."""
    with contextlib.suppress(BrokenPipeError):
        stdin.write(b"A" * size)
        stdin.flush()


def test_what_a_killed_writer_left_comes_before_the_next_file_and_purge_drops_what_it_had_waiting(scale0_broker, peer):
    settings = {"max_pipe_bytes": 4 * MIB}
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": settings}}))
    watch = peer(here)

    def info(answer):
        return json.loads(answer[1]) if answer[0] == b"INFO" else {"bytes": 0, "blocked": 0}

    def kill_a_writer(size, done_with):
        """Have a writer write, and kill it when the pipe looks as it should."""
        command = [sys.executable, "-m", "scale0_core", "zpipes", "write", "x", "--broker", here]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:
            feeder = threading.Thread(target=feed, args=(writer.stdin, size), daemon=True)
            feeder.start()
            end = time.monotonic() + 30
            while not done_with(ask(watch, b"INFO", b"x")):
                assert time.monotonic() < end
                time.sleep(0.01)
            writer.send_signal(signal.SIGKILL)
            assert writer.wait(20) == -signal.SIGKILL
            feeder.join(20)

    kill_a_writer(2 * MIB, lambda answer: info(answer)["bytes"] == 2 * MIB)
    assert run(here, "write", "x", data=b"B" * 300_000).returncode == 0
    found = run(here, "read", "x").stdout
    assert found == b"A" * (len(found) - 300_000) + b"B" * 300_000
    kill_a_writer(20 * MIB, lambda answer: info(answer)["blocked"] > 4)
    assert run(here, "purge", "x").returncode == 0
    assert ask(watch, b"READ", b"x", b"0")[:2] == [b"ERROR", b"408"]
    assert info(ask(watch, b"INFO", b"x"))["blocked"] == 0


# --- the largest chunk ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(scale0_broker):
    """A broker in a process of its own that takes chunks of 1 MiB."""
    return scale0_broker(["zpipes"], {"plugin": {"zpipes": {"max_message": MAX_MESSAGE}}})


def test_a_chunk_of_exactly_max_message_passes_in_every_dialect_and_one_byte_more_is_refused(small, peer):
    here = address_of(small)
    text = peer(here)
    assert ask(text, b"OPEN", b"p") == [b"OK"]
    assert ask(text, b"WRITE", b"p", b"x" * MAX_MESSAGE) == [b"OK"]
    assert ask(text, b"WRITE", b"p", b"x" * (MAX_MESSAGE + 1))[:2] == [b"ERROR", b"413"]
    assert ask(text, b"PUT", b"p", b"w", b"1", pack_chunks([b"x" * (MAX_MESSAGE + 1)]))[:2] == [b"ERROR", b"413"]
    small.wait_for("chunk too large, refused", pipe="p")
    assert len(ask(text, b"READ", b"p")[0]) == MAX_MESSAGE
    writer, reader = peer(here), peer(here)
    assert ask(reader, binary.with_string(binary.INPUT, b"p")) == [binary.INPUT_OK]
    assert ask(writer, binary.with_string(binary.OUTPUT, b"p")) == [binary.OUTPUT_OK]
    assert ask(writer, binary.write(b"x" * MAX_MESSAGE)) == [binary.WRITE_OK]
    assert ask(writer, binary.write(b"x" * (MAX_MESSAGE + 1)))[0].startswith(binary.WRITE_FAILED)
    assert ask(reader, binary.read(MAX_MESSAGE)) == [binary.read_ok(b"x" * MAX_MESSAGE)]


@pytest.mark.parametrize("batch", [True, False])
def test_our_client_refuses_a_chunk_that_is_too_large_at_once(small, batch):
    here = address_of(small)
    with Pipe.open("p", "w", broker=here, batch=batch) as writer, Pipe.open("p", "r", broker=here) as reader:
        writer.write(b"x" * MAX_MESSAGE)
        began = time.monotonic()
        with pytest.raises(PipeTooLargeError, match=f"at most {MAX_MESSAGE} bytes"):
            writer.write(b"x" * (MAX_MESSAGE + 1))
        assert time.monotonic() - began < 1
        writer.write(b"end")
        writer.flush(timeout=20)
        assert [len(reader.read(timeout=20)) for _ in range(2)] == [MAX_MESSAGE, 3]


def test_the_asyncio_client_too(small):
    async def use():
        async with aio.Pipe.open("p", "w", broker=address_of(small)) as writer:
            await writer.write(b"x" * MAX_MESSAGE)
            with pytest.raises(PipeTooLargeError, match=f"at most {MAX_MESSAGE} bytes"):
                await writer.write(b"x" * (MAX_MESSAGE + 1))
            await writer.flush(timeout=20)
        async with aio.Pipe.open("p", "r", broker=address_of(small)) as reader:
            return len(await reader.read(timeout=20))

    assert asyncio.run(use()) == MAX_MESSAGE


def test_batches_are_no_larger_than_the_broker_takes(small):
    here = address_of(small)
    with Pipe.open("p", "w", broker=here, batch_bytes=64 * MIB) as writer:
        for _ in range(40):
            writer.write(b"x" * 100_000)
        writer.flush(timeout=20)
        assert writer.pending == 0


def test_many_empty_chunks_in_a_batch_are_no_more_than_a_frame_takes(scale0_broker):
    here = address_of(scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"max_message": 1000}}}))
    with Pipe.open("p", "w", broker=here, batch_chunks=1_000_000) as writer:
        for _ in range(40_000):
            writer.write(b"")
        writer.flush(timeout=20)
        assert writer.pending == 0


@pytest.mark.parametrize(("size", "count", "fits"), [(100_000, 20, True), (MIB, 3, False)])
def test_a_writer_hears_that_a_broker_which_was_started_anew_takes_less(scale0_broker, size, count, fits):
    """What waits here would make frames for which libzmq cuts the connection, again and again."""
    here = f"ipc://@scale0-limits-{uuid.uuid4().hex}"
    first = scale0_broker(["zpipes"], {"plugin": {"zpipes": {"bind": [here]}}})
    writer = Pipe.open("p", "w", broker=here)
    first.kill()
    for _ in range(count):
        writer.write(b"x" * size, timeout=20)
        writer.write(b"")
    scale0_broker(["zpipes"], {"plugin": {"zpipes": {"bind": [here], "max_message": 200_000}}})
    if fits:
        writer.close(timeout=20)
        with Pipe.open("p", "r", broker=here) as reader:
            assert [len(reader.read(timeout=20)) for _ in range(2 * count)] == [size, 0] * count
        return
    with pytest.raises(PipeTooLargeError, match="at most 200000 bytes"):
        writer.flush(timeout=20)
    with pytest.raises(PipeTooLargeError):
        writer.close()


# --- nothing hangs ----------------------------------------------------------------------------------------------------


def test_opening_fails_at_once_where_nobody_listens_at_a_local_address(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = f"ipc://{os.path.relpath(tmp_path)}/nobody"
    for address in (path, f"ipc://@scale0-nobody-{port}", f"tcp://127.0.0.1:{port}"):
        for mode in ("r", "w"):
            began = time.monotonic()
            with pytest.raises(PipeLostError, match="nobody listens"):
                Pipe.open("p", mode, broker=address)

            async def use(address=address, mode=mode):
                await aio.Pipe.open("p", mode, broker=address)

            with pytest.raises(PipeLostError, match="nobody listens"):
                asyncio.run(use())
            assert time.monotonic() - began < 5, "the timeout is 30 s"


FORK = """
import os, sys, threading
from scale0_zpipes import Pipe, PipeError
address, how = sys.argv[1:]
writer = Pipe.open("p", "w", broker=address)
reader = Pipe.open("p", "r", broker=address)
writer.write(b"before")
if how == "locked":  # as when the writer's thread works while the process is forked
    held, go = threading.Event(), threading.Event()
    def hold():
        with writer._driver.lock, reader._driver.lock:
            held.set()
            go.wait()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
child = os.fork()
if not child:
    said = []
    for use in (writer.flush, lambda: writer.write(b"x"), lambda: reader.read(1), reader.ack, reader.info):
        try:
            use()
        except PipeError as error:
            said.append("before a fork" in str(error))
    writer.close(), reader.close()
    with Pipe.open("q", "w", broker=address) as own:
        own.write(b"child")
    os.write(1, repr(said).encode())
    sys.exit(0)
if how == "locked":
    go.set()
assert os.waitpid(child, 0)[1] == 0
writer.flush(20)
assert reader.read(20) == b"before"
with Pipe.open("q", "r", broker=address) as own:
    assert own.read(20) == b"child"
writer.close(), reader.close()
"""


@pytest.mark.parametrize("how", ["idle", "locked"])
def test_a_pipe_that_was_opened_before_a_fork_says_so_in_the_child(scale0_broker, how):
    here = address_of(scale0_broker.in_thread(["zpipes"]))
    command = [sys.executable, "-c", FORK, here, how]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"[True, True, True, True, True]"), done.stderr.decode()


FORK_OF_ASYNCIO = """
import asyncio, os, sys
from scale0_zpipes import PipeError, aio
address = sys.argv[1]
async def parent():
    writer = await aio.Pipe.open("p", "w", broker=address)
    reader = await aio.Pipe.open("p", "r", broker=address)
    await writer.write(b"before")
    child = os.fork()
    if not child:  # it leaves the parent's loop as it is: its selector is the parent's as well
        os.write(1, repr(asyncio.run(use(writer, reader))).encode())
        os._exit(0)
    assert (await asyncio.get_running_loop().run_in_executor(None, os.waitpid, child, 0))[1] == 0
    await writer.flush(20)
    assert await reader.read(20) == b"before"
    await writer.close()
    await reader.close()
async def use(writer, reader):
    said = []
    for each in (writer.flush, lambda: writer.write(b"x"), lambda: reader.read(1), reader.ack, reader.info):
        try:
            await each()
        except PipeError as error:
            said.append("before a fork" in str(error))
    await writer.close()
    await reader.close()
    async with aio.Pipe.open("q", "w", broker=address) as own:
        await own.write(b"child")
    return said
asyncio.run(parent())
"""


def test_so_does_one_of_asyncio(scale0_broker):
    here = address_of(scale0_broker.in_thread(["zpipes"]))
    command = [sys.executable, "-c", FORK_OF_ASYNCIO, here]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, b"[True, True, True, True, True]"), done.stderr.decode()


def test_a_read_without_time_gives_the_chunk_that_is_there(scale0_broker):
    here = address_of(scale0_broker.in_thread(["zpipes"]))
    with Pipe.open("p", "w", broker=here) as writer:
        for chunk in (b"1", b"2", b"3", b"4"):
            writer.write(chunk)
    with Pipe.open("p", "r", broker=here) as reader:
        assert [reader.read(timeout=0), reader.read(timeout=0.001)] == [b"1", b"2"]

    async def use():
        async with aio.Pipe.open("p", "r", broker=here) as reader:
            found = [await reader.read(timeout=0), await reader.read(timeout=0.001)]
            with pytest.raises(PipeTimeoutError):
                await reader.read(timeout=0)
            return found

    assert asyncio.run(use()) == [b"3", b"4"]
    with Pipe.open("p", "r", broker=here) as reader, pytest.raises(PipeTimeoutError):
        reader.read(timeout=0)
