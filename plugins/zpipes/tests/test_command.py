"""The command `scale0 zpipes`, as a shell calls it."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import random
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
import zmq

from scale0_core.cli import kit
from scale0_zpipes import Pipe
from scale0_zpipes.service import binary

pytestmark = pytest.mark.real


def command(*arguments) -> list[str]:
    return [sys.executable, "-m", "scale0_core", "zpipes", *arguments]


def run(*arguments, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run the command line in a process of its own."""
    return subprocess.run(command(*arguments), input=data, capture_output=True, timeout=60, check=False)


@pytest.fixture
def here(scale0_broker) -> str:
    return scale0_broker.in_thread(["zpipes"]).address("zpipes", "pipes", 1)


@pytest.fixture
def use(here):
    """Give a function that runs a command at the broker."""
    return lambda name, *arguments, data=b"": run(name, *arguments, "--broker", here, data=data)


def chunks_of(here: str, name: str) -> list[bytes]:
    with Pipe.open(name, "r", broker=here) as reader:
        return list(reader.drain())


def fill(here: str, name: str, *chunks: bytes) -> None:
    with Pipe.open(name, "w", broker=here) as writer:
        for chunk in chunks:
            writer.write(chunk)


def test_what_is_written_is_read(use):
    done = use("write", "x", data=b"hello\n\x00\xff")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    done = use("read", "x")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"hello\n\x00\xff", b"")
    assert use("read", "x").returncode == 1  # nothing there


def test_nothing_is_a_stream_too(use):
    assert use("write", "x").returncode == 0
    done = use("read", "x")
    assert (done.returncode, done.stdout) == (0, b"")


def test_lines_are_chunks(here, use):
    assert use("write", "x", "--lines", data=b"a\n\nb").returncode == 0
    assert chunks_of(here, "x") == [b"a", b"", b"b"]
    fill(here, "x", b"a", b"", b"b")
    done = use("read", "x", "--lines", "--count", "2")
    assert (done.returncode, done.stdout) == (0, b"a\n\n")
    assert use("read", "x", "--lines").stdout == b"b\n"


def test_an_end_mark_is_written_and_heeded_as_asked(here, use):
    use("write", "x", "--no-end", data=b"a")
    use("write", "x", "--whole", data=b"b\nc\n")
    use("write", "x", "--whole", "--end", data=b"d")
    assert chunks_of(here, "x") == [b"a", b"b\nc\n", b"d", b""]
    fill(here, "x", b"a", b"", b"b", b"")
    assert use("read", "x").stdout == b"a"
    assert use("read", "x").stdout == b"b"


def test_a_large_file_is_copied_byte_by_byte(scale0_broker, tmp_path):
    here = scale0_broker(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 4_000_000}}}).address(
        "zpipes", "pipes", 1
    )
    data = random.Random(1).randbytes(20_000_003)
    (tmp_path / "big").write_bytes(data)
    with (tmp_path / "copy").open("wb") as copy:
        reading = subprocess.Popen(command("read", "x", "--wait", "--broker", here), stdout=copy)
        cat = subprocess.Popen(["cat", tmp_path / "big"], stdout=subprocess.PIPE)
        writing = subprocess.Popen(command("write", "x", "--broker", here), stdin=cat.stdout)
        cat.stdout.close()
        assert [process.wait(60) for process in (cat, writing, reading)] == [0, 0, 0]
    assert hashlib.sha256((tmp_path / "copy").read_bytes()).digest() == hashlib.sha256(data).digest()


def test_reading_goes_on_as_long_as_a_writer_is_there(here):
    with Pipe.open("x", "w", broker=here) as writer:
        writer.write(b"a")
        writer.flush()
        process = subprocess.Popen(command("read", "x", "--broker", here), stdout=subprocess.PIPE)
        with process:
            assert process.stdout.read(1) == b"a"
            writer.write(b"b")
            assert process.stdout.read(1) == b"b"
            writer.close()
            assert process.stdout.read() == b""
            assert process.wait(20) == 0


def test_following_goes_on_until_it_is_interrupted(here):
    process = subprocess.Popen(command("read", "x", "--follow", "--broker", here), stdout=subprocess.PIPE)
    with process:
        for chunk in (b"a", b"b"):
            fill(here, "x", chunk, b"")
            assert process.stdout.read(1) == chunk
        end = time.monotonic() + 20
        while json.loads(kit.ask(here, [b"INFO", b"x"], 5)[1])["chunks"]:
            assert time.monotonic() < end
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130
    fill(here, "x", b"c")
    assert chunks_of(here, "x") == [b"c"]


def test_what_nobody_wants_any_more_stays_in_the_pipe(here):
    fill(here, "x", *(b"%06d\n" % number for number in range(50_000)))
    process = subprocess.Popen(command("read", "x", "--broker", here), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout.read(7) == b"000000\n"
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == b""
    left = chunks_of(here, "x")
    assert 30_000 < len(left) < 50_000  # what a pipe of the system had taken is gone
    assert left[-1] == b"049999\n"
    assert left == [b"%06d\n" % number for number in range(50_000 - len(left), 50_000)]


def test_a_writer_that_is_interrupted_ends_soon(scale0_broker):
    here = scale0_broker.in_thread(["zpipes"], {"plugin": {"zpipes": {"max_pipe_bytes": 10}}}).address(
        "zpipes", "pipes", 1
    )
    process = subprocess.Popen(command("write", "x", "--lines", "--broker", here), stdin=subprocess.PIPE)
    with process:
        process.stdin.write(b"0123456789\nmore\n")
        process.stdin.flush()
        with Pipe.open("x", "r", broker=here) as reader:
            assert reader.read(timeout=20) == b"0123456789"
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def test_tail_shows_what_passes_and_leaves_it_there(here, use):
    fill(here, "x", b"before")
    process = subprocess.Popen(
        command("tail", "x", "-o", "jsonl", "--count", "2", "--broker", here), stdout=subprocess.PIPE, text=True
    )
    with process:
        end = time.monotonic() + 20
        while not json.loads(use("info", "x", "-o", "json").stdout)["groups"]:
            assert time.monotonic() < end
        fill(here, "x", b"\x1b[2J", b"b", b"c")
        rows = [json.loads(process.stdout.readline()) for _ in range(2)]
        assert process.wait(20) == 0
    assert [(row["number"], row["bytes"], row["chunk"]) for row in rows] == [(2, 4, "\x1b[2J"), (3, 1, "b")]
    assert json.loads(use("info", "x", "-o", "json").stdout)["groups"] == {}
    assert chunks_of(here, "x") == [b"before", b"\x1b[2J", b"b", b"c"]


@pytest.mark.parametrize(("option", "shown"), [(None, "\\x1b[2J"), ("--raw", "\x1b[2J")])
def test_tail_does_not_let_chunks_talk_to_the_terminal_unless_asked_to(here, use, option, shown):
    options = [option] if option else []
    process = subprocess.Popen(command("tail", "x", *options, "--broker", here), stdout=subprocess.PIPE, text=True)
    with process:
        end = time.monotonic() + 20
        while b'"groups": {"tail' not in use("info", "x", "-o", "json").stdout:
            assert time.monotonic() < end
        fill(here, "x", b"\x1b[2J\n")
        assert shown in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def groups_of(here: str, name: str) -> dict:
    told = kit.ask(here, [b"INFO", name.encode()], 5)
    return json.loads(told[1])["groups"] if told[0] == b"INFO" else {}


def wait_until(holds) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def links_of(here: str, name: str) -> int:
    told = kit.ask(here, [b"INFO", name.encode()], 5)
    return json.loads(told[1])["links"] if told[0] == b"INFO" else 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_tail_that_is_told_to_end_leaves_nothing(here, number):
    fill(here, "x", b"before")
    with subprocess.Popen(command("tail", "x", "--broker", here), stdout=subprocess.PIPE) as process:
        wait_until(lambda: groups_of(here, "x"))
        assert links_of(here, "x") == 0
        process.send_signal(number)
        assert process.wait(20) == 128 + number
    assert groups_of(here, "x") == {}
    assert chunks_of(here, "x") == [b"before"]


@pytest.mark.parametrize("arguments", [("read", "x", "--follow"), ("write", "x")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_others_that_are_told_to_end_close_their_pipe(here, arguments, number):
    with Pipe.open("x", "w", broker=here):
        process = subprocess.Popen(
            command(*arguments, "--broker", here),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            wait_until(lambda: links_of(here, "x") == 2)
            process.send_signal(number)
            assert process.wait(20) == 128 + number
            assert process.stderr.read() == b""
        wait_until(lambda: links_of(here, "x") == 1)


def test_what_is_to_outlive_its_terminal_does(here):
    with subprocess.Popen(
        ["nohup", *command("tail", "x", "--raw", "--broker", here)], stdout=subprocess.PIPE
    ) as process:
        wait_until(lambda: groups_of(here, "x"))
        process.send_signal(signal.SIGHUP)
        fill(here, "x", b"a")
        assert process.stdout.read(1) == b"a"
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 143


def test_tail_does_not_disturb_the_reader(here):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(here)

        def ask(*request: bytes) -> list[bytes]:
            socket.send_multipart(request)
            assert socket.poll(5000)
            return socket.recv_multipart()

        ask(b"OPEN", b"x")
        for number in range(4):
            ask(b"WRITE", b"x", b"%d" % number)
        assert ask(b"READ", b"x") == [b"0"]
        found = []
        with subprocess.Popen(command("tail", "x", "--raw", "--broker", here), stdout=subprocess.PIPE) as process:
            while not groups_of(here, "x"):
                if (answer := ask(b"READ", b"x", b"20"))[0] != b"ERROR" or answer[1] != b"408":
                    found.append(answer)
            ask(b"WRITE", b"x", b"4")
            while (answer := ask(b"READ", b"x", b"20"))[0] != b"ERROR":
                found.append(answer)
            assert process.stdout.read(1) == b"4"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0
        assert found == [[b"1"], [b"2"], [b"3"], [b"4"]]
        assert answer[1] == b"408"


def test_tail_does_not_keep_a_reader_from_its_end(here, use):
    fill(here, "x", b"a")
    with subprocess.Popen(command("tail", "x", "--broker", here), stdout=subprocess.PIPE) as process:
        wait_until(lambda: groups_of(here, "x"))
        done = use("read", "x")
        assert (done.returncode, done.stdout) == (0, b"a")
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


def test_lists_pipes_of_the_binary_dialect(here, use):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket, Pipe.open("b", "w", broker=here):
        socket.linger = 0
        socket.connect(here)
        socket.send(binary.with_string(binary.OUTPUT, b"a.1"))
        # its answer comes when there is a reader
        wait_until(lambda: json.loads(kit.ask(here, [b"LIST"], 5)[1])["streams"])
        rows = json.loads(use("ls", "-o", "json").stdout)["items"]
        assert [(row["name"], row["dialect"]) for row in rows] == [("a.1", "binary"), ("b", "text")]
        assert (rows[0]["has_writer"], rows[0]["has_reader"], rows[0]["bytes"]) == (True, False, 0)
        lines = [line.split() for line in use("ls").stdout.decode().splitlines()]
        assert [(line[0], line[-1]) for line in lines] == [("NAME", "DIALECT"), ("a.1", "binary"), ("b", "text")]
        assert [row["name"] for row in json.loads(use("ls", "b", "-o", "json").stdout)["items"]] == ["b"]


def test_lists_pipes(here, use):
    with Pipe.open("a.1", "w", broker=here) as writer:
        writer.write(b"abc")
        writer.flush()
        fill(here, "b\x1b[2J", b"abc", b"d")
        done = use("ls")
        lines = done.stdout.decode().splitlines()
        assert lines[0].split()[:5] == ["NAME", "CHUNKS", "BYTES", "IN/S", "OUT/S"]
        assert lines[1].split()[:3] == ["a.1", "1", "3"]
        assert lines[2].split()[:3] == ["b\\x1b[2J", "2", "4"]
        (row,) = json.loads(use("ls", "a.", "-o", "json").stdout)["items"]
        assert (row["name"], row["links"], row["durable"], row["id"]) == ("a.1", 1, False, b"a.1".hex())


def test_lists_more_pipes_than_come_at_once(here, use):
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(here)
        for number in range(1500):
            socket.send_multipart([b"OPEN", b"%04d" % number])
        for _ in range(1500):
            socket.recv_multipart()
        rows = json.loads(use("ls", "-o", "json").stdout)["items"]
    assert [row["name"] for row in rows] == [f"{number:04}" for number in range(1500)]


def test_shows_and_purges_a_pipe(here, use):
    fill(here, "x", b"a", b"b")
    shown = use("info", "x").stdout.decode()
    assert ["chunks", "2"] in [line.split() for line in shown.splitlines()]
    assert ["durable", "no"] in [line.split() for line in shown.splitlines()]
    done = use("purge", "x")
    assert (done.returncode, done.stdout) == (0, b"2 chunks of x are gone\n")
    done = use("info", "x", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"][:3]) == (1, "404")


def test_lists_the_groups_of_a_pipe_and_what_waits_for_them(here, use):
    fill(here, "x", b"a", b"bc", b"def")
    for group in (b"billing", b"gone\x1b[2J"):
        kit.ask(here, [b"GROUP", b"x", group], 5)
    kit.ask(here, [b"ACK", b"x", b"billing", b"2"], 5)
    lines = [line.split() for line in use("groups", "x").stdout.decode().splitlines()]
    assert lines == [
        ["NAME", "NEXT", "CHUNKS", "BYTES", "LEASE"],
        ["billing", "3", "1", "3", "-"],
        ["gone\\x1b[2J", "1", "3", "6", "-"],
    ]
    told = json.loads(use("groups", "x", "-o", "json").stdout)
    assert told["schema"] == "scale0.zpipes.groups/1"
    assert [(row["name"], row["chunks"], row["bytes"]) for row in told["items"]] == [
        ("billing", 1, 3), ("gone\x1b[2J", 3, 6)
    ]  # fmt: skip
    done = use("groups", "y", "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["why"][:3]) == (1, "404")


def test_removes_a_group_and_what_was_kept_for_it_alone(here, use):
    fill(here, "x", b"a", b"bc", b"def")
    for group in (b"billing", b"gone"):
        kit.ask(here, [b"GROUP", b"x", group], 5)
    kit.ask(here, [b"ACK", b"x", b"billing", b"2"], 5)
    done = use("ungroup", "x", "gone")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"group gone is removed; left in x: 1 chunks, 3 bytes\n"
    done = use("ungroup", "x", "gone", "-o", "json")
    told = json.loads(done.stderr)
    assert (done.returncode, told["what"], told["why"][:3]) == (1, "pipe x has no group gone", "404")
    assert "scale0 zpipes groups x" in told["remedy"]


def test_says_who_gets_what_is_left_when_the_last_group_is_removed(here, use):
    fill(here, "x", b"a", b"bc")
    kit.ask(here, [b"GROUP", b"x", b"gone"], 5)
    done = use("ungroup", "x", "gone", "-o", "json")
    assert json.loads(done.stdout) | {"name": "x", "group": "gone", "chunks": 2, "bytes": 3} == json.loads(done.stdout)
    assert b"scale0 zpipes purge x" in done.stderr
    assert chunks_of(here, "x") == [b"a", b"bc"]


def test_a_pipe_that_is_not_needed_without_its_group_goes_with_it(here, use):
    fill(here, "x", b"a")
    kit.ask(here, [b"GROUP", b"x", b"gone"], 5)
    kit.ask(here, [b"ACK", b"x", b"gone", b"1"], 5)
    done = use("ungroup", "x", "gone")
    assert done.stdout == b"group gone is removed; left in x: 0 chunks, 0 bytes\n"
    assert use("info", "x").returncode == 1


def test_says_at_which_stage_there_is_no_broker(tmp_path):
    for asked in (("ls",), ("read", "x"), ("write", "x"), ("tail", "x")):
        done = run(*asked, "--broker", f"ipc://{tmp_path}/nobody", "--timeout", "0.2")
        assert (done.returncode, b"connecting" in done.stderr, b"nobody listens" in done.stderr) == (69, True, True)
    done = run("read", "x", "--broker", "tcp://127.0.0.1:1", "--timeout", "0.2")
    assert (done.returncode, b"connecting to the broker" in done.stderr) == (69, True)


@pytest.mark.parametrize(
    "wrong", [("write",), ("read", "x" * 256), ("write", "x", "--lines", "--end"), ("read", "x", "--count", "0")]
)
def test_refuses_wrong_usage(wrong):
    assert run(*wrong).returncode == 64


def test_a_person_sees_progress(here, tmp_path):
    (tmp_path / "data").write_bytes(b"x" * 5_000_000)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with (tmp_path / "data").open("rb") as data:
        environment = {**os.environ, "TERM": "xterm"}
        process = subprocess.Popen(command("write", "x", "--broker", here), stdin=data, stderr=theirs, env=environment)
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other side is closed
            pass
        assert process.wait(20) == 0
    os.close(ours)
    assert b"5.0/5.0 MB" in shown
    assert b"/s" in shown
    assert sum(map(len, chunks_of(here, "x"))) == 5_000_000


def test_the_help_has_examples():
    for name in ("--help", "write", "read", "ls", "groups", "ungroup", "tail"):
        done = run(*((name,) if name == "--help" else (name, "--help")))
        assert b"Examples:\n" in done.stdout
