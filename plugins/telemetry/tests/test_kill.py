"""Kill -9 right after telemetry said that something is stored: a segment with its name, a count, a chunk in a pipe."""

import datetime
import importlib.metadata
import random
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zmq

from scale0_core.api import MIB, events
from scale0_core.testing import KilledBroker, SlowDisk, killed_program
from scale0_telemetry.observer.columns import Columns
from scale0_telemetry.observer.publisher import PipeSession, Publisher

pytestmark = pytest.mark.real

TASK = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)
NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc).timestamp()

WRITER = """
import datetime, sys
from pathlib import Path
from scale0_core.api import events
from scale0_telemetry import segments as module
from scale0_telemetry.observer.columns import Columns
{plant}
folder, epoch = Path(sys.argv[1]), int(sys.argv[2])
task = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)
columns = Columns("left", epoch)
segments = module.Segments(folder, "left", epoch, module.Limits(segment_seconds=0))
segments.clean()
offered = now = 0
while True:
    now += 10  # so that a disk that refused is tried again
    offered += 20
    for kind, day, rows in columns.convert([({noon}, [("scale0", [task] * 20)])]):
        segments.write(kind, datetime.date(1970, 1, 1) + datetime.timedelta(day), rows, now)
    segments.tick(now)
    print(offered, segments.written, sum(segments.lost.values()))
"""

TOO_EARLY = """
import threading
def finish(self, *, durable, finish=module._OpenFile.finish):
    threading.Thread(target=finish, args=(self,), kwargs={"durable": durable}, daemon=True).start()
module._OpenFile.finish = finish
module.Segments._total = None
"""
"""Counts a segment that is not on disk yet."""

HALF = """
def finish(self, *, durable):
    self.path.rename(self.final)
    self.writer.close()
    self.sink.close()
module._OpenFile.finish = finish
"""
"""Gives a segment its name before it is whole."""


def rounds_of_segments(tmp_path, count, plant=""):
    """Kill a writer again and again: after a count, after a name, or while the disk is full; check all it ever said."""
    source = WRITER.format(plant=plant, noon=NOON)
    acknowledged = {}
    chance = random.Random(count)
    with SlowDisk(tmp_path / "disk", write_ms=2, sync_ms=5) as disk:
        for number in range(1, count + 1):
            way = ("count", "name", "full")[number % 3]
            wanted = chance.randint(1, 4)

            if way == "full":
                disk.change(capacity=disk.used + 9000)
            until = {"count": counted, "name": named, "full": full}[way](disk, number, wanted)
            lines = killed_program(source, [disk.folder, number], disk.environment, until)
            disk.make_room()
            offered, written, lost = map(int, lines[-1].split())
            assert written + lost <= offered
            acknowledged[number] = written
            check_segments(disk.folder, acknowledged)
    assert len(acknowledged) == count
    return acknowledged


def counted(disk, number, wanted):
    """Kill after so many lines."""
    return lambda lines: len(lines) >= wanted


def named(disk, number, wanted):
    """Kill when the next segment has its name."""

    def until(lines):
        if len(lines) < wanted:
            return False
        before, end = len(whole_segments(disk.folder, number)), time.monotonic() + 30
        while len(whole_segments(disk.folder, number)) <= before:
            assert time.monotonic() < end
        return True

    return until


def full(disk, number, wanted):
    """Kill after the disk was full, and has room again, and what waited is stored."""
    stuck = []

    def until(lines):
        written = [int(line.split()[1]) for line in lines]
        if not stuck and written[-4:] == [written[-1]] * 4:
            stuck.append(written[-1])
            disk.make_room()
        return bool(stuck) and written[-1] > stuck[0]

    return until


def whole_segments(folder, epoch="*"):
    return list(folder.glob(f"date=*/kind=task/left-{epoch}-*.parquet"))


def check_segments(folder, acknowledged):
    """Look for all that was acknowledged, once; a segment with a name can be read."""
    rows = Counter()
    for path in whole_segments(folder):
        try:
            found = pq.ParquetFile(path, pre_buffer=False).read(["epoch", "seq"], use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise AssertionError(f"{path.name} is not whole: {error}") from error
        rows.update(zip(found["epoch"].to_pylist(), found["seq"].to_pylist(), strict=True))
    assert not [row for row, times in rows.items() if times > 1]
    stored = Counter(epoch for epoch, _ in rows)
    missing = {epoch: written - stored[epoch] for epoch, written in acknowledged.items() if stored[epoch] < written}
    assert not missing, f"{missing} events were said to be stored and are not"


@pytest.mark.parametrize(
    "count", [3, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])], ids=["short", "campaign"]
)
def test_segments_that_were_said_to_be_stored_survive_kill_9(tmp_path, count):
    assert sum(rounds_of_segments(tmp_path, count).values()) > 0


@pytest.mark.parametrize("plant", [TOO_EARLY, HALF], ids=["counted too early", "named too early"])
def test_a_segment_that_is_announced_too_early_is_caught_within_5_rounds(tmp_path, plant):
    with pytest.raises(AssertionError, match=r"said to be stored|not whole"):
        rounds_of_segments(tmp_path, 5, plant)


# --- a pipe ---------------------------------------------------------------------------------------------------------

needs_pipes = pytest.mark.skipif(
    not importlib.metadata.entry_points(group="scale0.plugins", name="zpipes"), reason="the plugin zpipes is not here"
)
DURABLE = {"plugin": {"zpipes": {"durable": ["events"]}}}


class HastySession(PipeSession):
    """Takes what was sent for stored."""

    def _ask(self, now):
        super()._ask(now)
        if self._in_flight:
            self._drop(self._in_flight)
            self._asked, self._in_flight = None, 0  # it does not wait for the answer


class HastyPublisher(Publisher):
    """Takes what was sent for stored."""

    make_session = HastySession


def publishing(publisher_class):
    """Make the step of a round: it publishes until some chunks were acknowledged, and returns their events."""

    def step(broker, number, after):
        publisher = publisher_class(broker.address("zpipes", "pipes", 1), b"events", b"w%d" % number, MIB)
        after.callback(publisher.close)
        columns, end, offered = Columns("left", number), time.monotonic() + 60, 0
        for _ in range(number % 3 + 1):
            publisher.put(columns.convert([(NOON, [("scale0", [TASK] * 10)])]))
            offered += 10
            acknowledged = offered - 10
            while acknowledged < offered:
                assert time.monotonic() < end
                publisher.step(0.5)
                acknowledged = offered - sum(chunk.rows for chunk in publisher.session.chunks)
        assert not publisher.lost
        return number, offered

    return step


def checking():
    """Make the check of a round: all that was ever acknowledged is in the pipe once, in order."""
    acknowledged = {}

    def check(broker, told):
        acknowledged.update([told])
        rows = Counter(rows_in_pipe(broker.address("zpipes", "pipes", 1)))
        assert not [row for row, times in rows.items() if times > 1]
        stored = Counter(epoch for epoch, _ in rows)
        assert {epoch: stored[epoch] for epoch in acknowledged} == acknowledged

    return check


def ask(socket, *frames):
    socket.send_multipart(frames)
    assert socket.poll(60_000)
    return socket.recv_multipart()


def rows_in_pipe(address):
    """Read the ids of all events that are in the pipe, without removing them."""
    rows, start = [], b"1"
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(address)
        if ask(socket, b"GROUP", b"events", b"reader", b"first")[0] != b"OK":
            return []
        while True:
            _, start, batch = ask(socket, b"FETCH", b"events", b"reader", start, b"1000", b"4000000", b"0")
            if not batch:
                return rows
            while batch:
                size = int.from_bytes(batch[8:12], "big")
                with pa.ipc.open_stream(batch[12 : 12 + size]) as reader:
                    rows += [(row["epoch"], row["seq"]) for row in reader.read_all().to_pylist()]
                batch = batch[12 + size :]


@needs_pipes
@pytest.mark.parametrize(
    "count", [2, pytest.param(200, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])], ids=["short", "campaign"]
)
def test_chunks_that_the_pipe_acknowledged_to_the_publisher_survive_kill_9(count):
    with KilledBroker(["zpipes"], DURABLE, write_ms=5, sync_ms=5) as killed:
        killed.rounds(count, publishing(Publisher), checking())


@needs_pipes
def test_a_publisher_that_takes_sent_chunks_for_stored_is_caught_within_5_rounds():
    with (
        KilledBroker(["zpipes"], DURABLE, write_ms=200, sync_ms=50) as killed,
        pytest.raises(AssertionError, match="round"),
    ):
        killed.rounds(5, publishing(HastyPublisher), checking())
