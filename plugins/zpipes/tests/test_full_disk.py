"""A full disk: chunks are refused, but the pipes can be drained, and what was read does not come back."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from contextlib import ExitStack
from random import Random

import pytest
import zmq

from scale0_core.testing import KilledBroker, ProcessBroker, Script, SimDisk
from scale0_zpipes.batches import pack_chunks, unpack_numbered
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.service.records import Removed, Stored
from scale0_zpipes.settings import ZpipesSettings

KIB = 1024
SEGMENTS = [pytest.param((8 * KIB, 2 * KIB), id="many segments"), pytest.param((200 * KIB, 12 * KIB), id="one segment")]
CAPACITY = 100 * KIB


def broker(disk: SimDisk, segment_bytes: int = 8 * KIB, reserve_bytes: int = 2 * KIB) -> Script:
    """Start a broker on this disk; what was on it before is read."""
    journal = Journal(disk, segment_bytes, reserve_bytes)
    return Script(ZpipesService(ZpipesSettings(durable=("d*",)), journal=journal), start=1.0)


def ask(script: Script, *frames: str | bytes) -> tuple[bytes, ...]:
    script.feed("pipes", "c", *frames)
    answer = script.sent[-1][1]
    script.expect("pipes", *[...] * len(answer))
    return tuple(map(bytes, answer[1:]))


def fill(script: Script, name: str, size: int = 100) -> list[bytes]:
    """Write until the disk refuses; give what was written."""
    written: list[bytes] = []
    assert ask(script, "OPEN", name) == (b"OK",)
    while True:
        chunk = (b"%d." % len(written)).ljust(size, b".")
        answer = ask(script, "WRITE", name, chunk)
        if answer != (b"OK",):
            assert answer[:2] == (b"ERROR", b"507")
            return written
        written.append(chunk)


def rows(script: Script) -> dict[str, int]:
    return {row["name"]: row["chunks"] for row in json.loads(ask(script, "LIST")[1])["pipes"]}


def read_all(script: Script, name: str, chunks: list[bytes]) -> None:
    for chunk in chunks:
        assert ask(script, "READ", name) == (chunk,)


def fetch_all(script: Script, name: str, chunks: list[bytes]) -> None:
    while chunks:
        batch = list(unpack_numbered(ask(script, "FETCH", name, "", "", "50", "100000", "0")[2]))
        assert [chunk for _, chunk in batch] == chunks[: len(batch)]
        assert ask(script, "ACK", name, "", str(batch[-1][0])) == (b"OK",)
        chunks = chunks[len(batch) :]


def purge_all(script: Script, name: str, chunks: list[bytes]) -> None:
    assert ask(script, "PURGE", name) == (b"OK", b"%d" % len(chunks))


@pytest.mark.parametrize("sizes", SEGMENTS)
@pytest.mark.parametrize("drain", [read_all, fetch_all, purge_all])
def test_a_full_disk_is_drained_and_can_be_filled_again(drain, sizes):
    disk = SimDisk(CAPACITY)
    script = broker(disk, *sizes)
    for _ in range(3):
        written = fill(script, "d")
        assert len(written) > 500
        drain(script, "d", written)
        script.sleep(1)
    assert disk.used < CAPACITY / 2 or drain is purge_all, "room is made when it is needed"
    assert len(fill(script, "d")) > 500
    disk.crash(Random(1))
    assert rows(broker(disk, *sizes))["d"] > 500


@pytest.mark.parametrize("sizes", SEGMENTS)
@pytest.mark.parametrize("ends", ["stop", "crash"])
def test_what_was_read_from_a_full_disk_does_not_come_back(sizes, ends):
    disk = SimDisk(CAPACITY)
    script = broker(disk, *sizes)
    written = fill(script, "d")
    read_all(script, "d", written[:-3])
    if ends == "stop":
        script.stop()
    else:
        script.sleep(1)
    disk.crash(Random(1))
    script = broker(disk, *sizes)
    read_all(script, "d", written[-3:])
    assert ask(script, "READ", "d", "0")[:2] == (b"ERROR", b"408")


def test_a_pipe_that_is_not_read_keeps_no_other_from_being_drained():
    """Its chunks are in the oldest segment, which goes only when they are copied: they use the reserve."""
    disk = SimDisk(CAPACITY)
    script = broker(disk)
    assert ask(script, "OPEN", "d.kept") == (b"OK",)
    for number in range(5):
        assert ask(script, "WRITE", "d.kept", str(number)) == (b"OK",)
    written = fill(script, "d.read")
    read_all(script, "d.read", written)
    script.sleep(1)
    assert disk.used < CAPACITY / 2
    assert ask(script, "WRITE", "d.read", "more") == (b"OK",)
    disk.crash(Random(1))
    script = broker(disk)
    read_all(script, "d.kept", [b"0", b"1", b"2", b"3", b"4"])
    read_all(script, "d.read", [b"more"])


def test_chunks_are_refused_before_the_reserve_is_touched():
    disk = SimDisk(CAPACITY)
    script = broker(disk, reserve_bytes=5000)
    fill(script, "d", size=10)
    assert disk.size("reserve") == 5000
    disk.capacity = disk.used + 49  # exactly one chunk more, of 10 bytes
    assert ask(script, "WRITE", "d", "." * 10)[1] == b"507"
    disk.capacity += 1
    assert ask(script, "WRITE", "d", "." * 10) == (b"OK",)
    disk.capacity = disk.used - 1  # somebody else has filled the disk
    read_all(script, "d", [b"0.".ljust(10, b".")])
    script.sleep(0.1)
    assert disk.size("reserve") < 5000, "the removal was written where the reserve was"
    disk.capacity = disk.used + 624
    assert ask(script, "WRITE", "d", ".")[1] == b"507", "the reserve comes first"
    disk.capacity = None
    assert ask(script, "WRITE", "d", ".") == (b"OK",)
    assert disk.size("reserve") == 5000


class Refusing(SimDisk):
    """Refuses to grow by a single byte while ``refuses``, and counts how often."""

    refuses = False
    times = 0

    def append(self, path: str, data: bytes) -> int:
        if self.refuses:
            self.times += 1
            raise OSError(28, "No space left on device")
        return super().append(path, data)


def refused(script: Script, *frames: str | bytes) -> None:
    assert ask(script, *frames)[:2] == (b"ERROR", b"507")


def test_what_the_disk_refused_to_note_is_repeated_with_backoff_until_it_is_noted():
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    assert ask(script, "OPEN", "d") == (b"OK",)
    for number in range(20):
        assert ask(script, "WRITE", "d", str(number)) == (b"OK",)
    disk.refuses = True
    read_all(script, "d", [b"%d" % number for number in range(15)])
    script.sleep(60)
    assert 30 < disk.times < 300
    refused(script, "WRITE", "d", "x")
    disk.refuses = False
    script.sleep(1)
    assert ask(script, "WRITE", "d", "y") == (b"OK",)
    disk.crash(Random(1))
    script = broker(disk)
    read_all(script, "d", [b"15", b"16", b"17", b"18", b"19", b"y"])


def test_what_was_refused_is_written_at_the_stop():
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    assert ask(script, "OPEN", "d") == (b"OK",)
    for number in range(3):
        assert ask(script, "WRITE", "d", str(number)) == (b"OK",)
    disk.refuses = True
    read_all(script, "d", [b"0"])
    script.sleep(0.2)
    disk.refuses = False
    script.stop()
    assert rows(broker(disk)) == {"d": 2}


def test_segments_that_nobody_needs_go_even_if_nothing_can_be_written():
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    assert ask(script, "OPEN", "d") == (b"OK",)
    chunks = [b"%d".ljust(500, b".") % number for number in range(100)]
    for chunk in chunks:
        assert ask(script, "WRITE", "d", chunk) == (b"OK",)
    before = disk.used
    disk.refuses = True
    read_all(script, "d", chunks)
    script.sleep(2)
    assert disk.used < before / 4
    disk.crash(Random(1))
    assert rows(broker(disk))["d"] < 20, "what is left is in the last segment"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (("ACK", "d", "g", "2"), (b"OK",)),
        (("GROUP", "d", "h"), (b"OK", b"1")),
        (("PURGE", "d"), (b"OK", b"0")),
    ],
)
def test_a_request_that_was_refused_is_acknowledged_only_when_it_is_on_disk(request_, says):
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    assert ask(script, "OPEN", "d") == (b"OK",)
    assert ask(script, "GROUP", "d", "g") == (b"OK", b"1")
    for number in range(3):
        assert ask(script, "WRITE", "d", str(number)) == (b"OK",)
    disk.refuses = True
    refused(script, *request_)
    refused(script, *request_)
    disk.refuses = False
    script.sleep(1)
    assert ask(script, *request_) == says
    kept = json.loads(ask(script, "INFO", "d")[1])
    disk.crash(Random(1))
    found = json.loads(ask(broker(disk), "INFO", "d")[1])
    assert [found[key] for key in ("chunks", "groups", "next")] == [kept[key] for key in ("chunks", "groups", "next")]


def test_a_pipe_that_was_forgotten_and_made_again_keeps_its_new_chunks():
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    for name in ("d", "d.other"):
        assert ask(script, "OPEN", name) == (b"OK",)
        assert ask(script, "WRITE", name, "old") == (b"OK",)
    disk.refuses = True
    read_all(script, "d", [b"old"])
    script.sleep(0.01)
    assert ask(script, "CLOSE", "d") == (b"OK",)
    assert ask(script, "OPEN", "d") == (b"OK",)
    refused(script, "WRITE", "d", "new")
    disk.refuses = False
    script.sleep(1)
    assert ask(script, "WRITE", "d", "new") == (b"OK",)
    script.sleep(5)
    disk.crash(Random(1))
    script = broker(disk)
    read_all(script, "d", [b"new"])
    read_all(script, "d.other", [b"old"])


def test_the_log_says_it_once_a_minute(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging.getLogger("scale0"), "propagate", True)
    caplog.set_level(logging.INFO, "scale0")
    disk = Refusing()
    script = broker(disk, reserve_bytes=0)
    assert ask(script, "OPEN", "d") == (b"OK",)
    for number in range(200):
        assert ask(script, "WRITE", "d", str(number)) == (b"OK",)
    disk.refuses = True
    for number in range(120):
        read_all(script, "d", [b"%d" % number])
        refused(script, "WRITE", "d", "x")
        script.sleep(1)
    disk.refuses = False
    script.sleep(2)
    assert ask(script, "WRITE", "d", "x") == (b"OK",)
    lines = [record.getMessage() for record in caplog.records]
    assert 1 <= lines.count("durable pipes: disk refuses") <= 4
    assert lines.count("durable pipes: disk takes writes again") == 2, "chunks, and what was read"


def test_a_journal_on_a_disk_with_room_for_less_than_its_reserve_takes_no_chunk():
    disk = SimDisk(1000)
    journal = Journal(disk, 8 * KIB, 2 * KIB)
    journal.open()
    (error,) = journal.commit([[Stored(b"p", 1, b"", 0, b"x")]])
    assert isinstance(error, OSError)
    assert journal.free([[Removed(b"p", [1])]]) == [None]


class Run:
    """A writer and a group at one pipe, which know what was acknowledged to them."""

    def __init__(self, seed: int) -> None:
        self.random, self.disk = Random(seed), SimDisk()
        self.written = 0
        """All up to this number were acknowledged to the writer."""
        self.given: set[int] = set()
        """What the group was given, and has tried to acknowledge."""
        self.done: set[int] = set()
        """Of which that was acknowledged."""
        self.start()
        assert ask(self.script, "GROUP", "d", "g") == (b"OK", b"1")

    def start(self) -> None:
        self.disk.crash(self.random)
        self.script = broker(self.disk, reserve_bytes=self.random.choice([0, 200, 2000]))
        assert ask(self.script, "OPEN", "d") == (b"OK",)

    def put(self) -> None:
        numbers = range(self.written + 1, self.written + 4)
        chunks = [(b"%d." % number).ljust(self.random.choice([5, 300]), b".") for number in numbers]
        says, number, *_ = ask(self.script, "PUT", "d", "me", str(numbers[0]), pack_chunks(chunks))
        if says == b"OK":
            assert int(number) == numbers[-1] + 1
            self.written = numbers[-1]
        else:
            assert number == b"507"

    def fetch(self, most: int) -> dict[int, int]:
        info = json.loads(ask(self.script, "INFO", "d")[1])
        begin = str(info["groups"]["g"]["next"])
        batch = ask(self.script, "FETCH", "d", "g", begin, str(most), "1000000", "0")[2]
        return {number: int(chunk.split(b".")[0]) for number, chunk in unpack_numbered(batch)}

    def read(self) -> None:
        found = self.fetch(4)
        if found:
            self.given.update(found.values())
            if ask(self.script, "ACK", "d", "g", str(max(found))) == (b"OK",):
                self.done.update(found.values())

    def resize(self) -> None:
        self.disk.capacity = self.random.choice([None, *(self.disk.used + more for more in (-100, 50, 3000))])

    def sleep(self) -> None:
        self.script.sleep(self.random.choice([0.01, 0.5, 3]))

    def stop(self) -> None:
        self.script.stop()
        self.start()

    def check(self) -> None:
        found = list(self.fetch(100_000).values())
        assert found == sorted(set(found)), "nothing twice, and in order"
        assert set(range(1, self.written + 1)) - self.given <= set(found), "what was written and not read is there"
        assert not self.done & set(found), "what its reader has acknowledged is gone"


@pytest.mark.seeds(30)
def test_whatever_was_acknowledged_holds_on_a_disk_that_is_full_now_and_then(seed):
    """Writes, reads that acknowledge, a disk that changes its size, crashes and stops, in any order."""
    run = Run(seed)
    steps = [run.put, run.read, run.resize, run.sleep, run.start, run.stop]
    for _ in range(150):
        (step,) = run.random.choices(steps, [50, 25, 10, 5, 5, 3])
        step()
        if step in (run.start, run.stop):
            run.check()
    run.disk.capacity = None
    run.script.sleep(3)
    run.stop()
    run.check()
    assert run.written > 20
    assert run.done


def settings() -> dict[str, object]:
    return {"plugin": {"zpipes": {"durable": ["d*"], "segment_bytes": 64 * KIB}}}


class Client:
    def __init__(self, broker: ProcessBroker, closing: ExitStack) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        closing.callback(self.socket.close, 0)
        self.socket.rcvtimeo = 30_000
        self.socket.connect(broker.address("zpipes", "pipes", 1))

    def ask(self, *frames: str | bytes) -> list[bytes]:
        self.socket.send_multipart([frame.encode() if isinstance(frame, str) else frame for frame in frames])
        return self.socket.recv_multipart()


@pytest.mark.real
def test_a_real_disk_that_is_full_is_drained_and_filled_again():
    with (
        KilledBroker(["zpipes"], settings(), write_ms=0, sync_ms=0, capacity=400 * KIB) as killed,
        ExitStack() as stack,
    ):
        client = Client(killed.broker, stack)
        client.ask("OPEN", "d")
        for _ in range(2):
            written = 0
            while (answer := client.ask("WRITE", "d", (b"%d." % written).ljust(4000, b"."))) == [b"OK"]:
                written += 1
            assert answer[:2] == [b"ERROR", b"507"]
            assert b"No space left" in answer[2]
            assert written > 60
            assert [client.ask("READ", "d")[0].split(b".")[0] for _ in range(written)] == [
                b"%d" % n for n in range(written)
            ]
            assert client.ask("GROUP", "d", "g")[0] == b"OK", "when this is on disk, all before it is"
            assert client.ask("UNGROUP", "d", "g") == [b"OK"]
            assert killed.disk.used < 200 * KIB
        refusals = [line for line in killed.broker.log if line["event"] == "durable pipes: disk refuses"]
        assert len(refusals) == 1
        assert client.ask("WRITE", "d", "last") == [b"OK"]
        assert killed.broker.stop() == 0
        client = Client(killed.start(), stack)
        assert client.ask("OPEN", "d") == [b"OK"]
        assert client.ask("READ", "d") == [b"last"]
        assert client.ask("READ", "d", "0")[1] == b"408"


@pytest.mark.real
def test_the_command_shows_what_recovery_lost():
    """A byte of the journal is spoiled while the broker is away."""
    with KilledBroker(["zpipes"], settings(), write_ms=0, sync_ms=0) as killed, ExitStack() as stack:
        client = Client(killed.broker, stack)
        client.ask("OPEN", "d")
        for number in range(5):
            assert client.ask("WRITE", "d", str(number) * 100) == [b"OK"]
        killed.kill()
        (journal,) = killed.disk.folder.rglob("journal-*")
        data = journal.read_bytes()
        journal.write_bytes(data.replace(b"2" * 100, b"x" * 100))
        broker = killed.start()
        broker.wait_for("durable pipes: chunks lost to a damaged file", chunks=1)
        command = [sys.executable, "-m", "scale0_core", "zpipes", "info", "d"]
        address = ["--broker", broker.address("zpipes", "pipes", 1)]
        shown = subprocess.run([*command, *address], capture_output=True, timeout=60, check=True, text=True).stdout
        assert ["lost", "1"] in [line.split() for line in shown.splitlines()]
