"""Kill -9 right after an acknowledgement, on a slow disk: what was acknowledged is there, once."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from typing import NamedTuple

import pytest
import zmq

from scale0_core.testing import KilledBroker, ProcessBroker
from scale0_zpipes import Pipe, aio
from scale0_zpipes.batches import pack_chunks, unpack_numbered

pytestmark = pytest.mark.real

ROUNDS = [pytest.param(3, id="short"), pytest.param(200, id="campaign", marks=pytest.mark.soak)]
CAUGHT_IN = 5
PATIENCE_MS = 30_000
PACE = 0.002
"""Seconds between requests that are sent ahead: the disk takes five times as long, so they are not in one commit."""


class Client:
    """A DEALER socket that insists on answers."""

    def __init__(self, broker: ProcessBroker, closing: ExitStack) -> None:
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        closing.callback(self.socket.close, 0)
        self.socket.rcvtimeo = PATIENCE_MS
        self.socket.connect(broker.address("zpipes", "pipes", 1))

    def send(self, *frames: str | bytes) -> None:
        self.socket.send_multipart([frame.encode() if isinstance(frame, str) else frame for frame in frames])

    def answer(self) -> list[bytes]:
        return self.socket.recv_multipart()

    def ask(self, *frames: str | bytes) -> list[bytes]:
        self.send(*frames)
        return self.answer()


def killed(plant: str = "") -> KilledBroker:
    return KilledBroker(["zpipes"], {"plugin": {"zpipes": {"durable": ["d*"]}}}, plant=plant)


def chunks_in(client: Client, name: str) -> list[bytes]:
    """Give all that is in a pipe, without taking it out."""
    _, _, batch = client.ask("FETCH", name, "", "", "10000", "10000000", "0")
    return [chunk for _, chunk in unpack_numbered(batch)]


class Acknowledged(NamedTuple):
    """What a round has written: all of it, and how much of it was acknowledged before the kill."""

    pipe: str
    chunks: list[bytes]
    count: int


def kept(broker: ProcessBroker, done: Acknowledged) -> None:
    """Check that a pipe has what was acknowledged, perhaps more of what was sent, in order and nothing twice."""
    with ExitStack() as closing:
        client = Client(broker, closing)
        assert client.ask("OPEN", done.pipe) == [b"OK"]
        found = chunks_in(client, done.pipe)
        assert len(found) >= done.count, f"{done.count} chunks were acknowledged, {len(found)} are there"
        assert found == done.chunks[: len(found)]
        assert client.ask("PURGE", done.pipe) == [b"OK", b"%d" % len(found)]


def writes(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    client = Client(broker, after)
    name = f"d-{number}"
    assert client.ask("OPEN", name) == [b"OK"]
    chunks = [b"%d" % place for place in range(1, 21)]
    for chunk in chunks:
        client.send("WRITE", name, chunk)
    count = 0
    while count < number % len(chunks) + 1:
        assert client.answer() == [b"OK"]
        count += 1
    return Acknowledged(name, chunks, count)


def puts(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    """Send batches ahead; each answer says what is acknowledged so far."""
    client = Client(broker, after)
    name = f"d-{number}"
    assert client.ask("OPEN", name) == [b"OK"]
    chunks = [b"%d" % place for place in range(1, 61)]
    for first in range(0, len(chunks), 5):
        client.send("PUT", name, "me", str(first + 1), pack_chunks(chunks[first : first + 5]))
        time.sleep(PACE)
    following = 1
    for _ in range((1, 2, 12)[number % 3]):  # also all of them: the last is the one that a slow disk is late with
        says, number_ = client.answer()
        assert says == b"OK"
        following = int(number_)
    return Acknowledged(name, chunks, following - 1)


def put_again(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    """Send a batch twice, the second time on another connection: it has nothing new, and yet must wait for the disk."""
    client, other = Client(broker, after), Client(broker, after)
    name = f"d-{number}"
    assert client.ask("OPEN", name) == [b"OK"]
    assert other.ask("PING") == [b"PONG"]
    chunks = [b"%d" % place for place in range(1, 6)]
    for each in (client, other):
        each.send("PUT", name, "me", "1", pack_chunks(chunks))
        time.sleep(PACE)
    assert other.answer() == [b"OK", b"6"]
    return Acknowledged(name, chunks, len(chunks))


def flushes(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    """Write by the client library, batch by batch, and flush."""
    name = f"d-{number}"
    pipe = Pipe.open(name, "w", broker=broker.address("zpipes", "pipes", 1), batch_chunks=10)

    def give_up() -> None:
        pipe._driver.close()  # whatever it still has to say, it has nobody to say it to

    after.callback(give_up)
    chunks = [b"%d" % place for place in range(1, 52)]
    for chunk in chunks:
        pipe.write(chunk)
    pipe.flush()
    return Acknowledged(name, chunks, len(chunks))


def closes(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    name = f"d-{number}"
    chunks = [b"%d" % place for place in range(1, 52)]
    with Pipe.open(name, "w", broker=broker.address("zpipes", "pipes", 1), batch_chunks=10) as pipe:
        for chunk in chunks:
            pipe.write(chunk)
    return Acknowledged(name, chunks, len(chunks))


def flushes_by_asyncio(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    name = f"d-{number}"
    chunks = [b"%d" % place for place in range(1, 52)]
    loop = asyncio.new_event_loop()
    after.callback(loop.close)

    async def work() -> aio.PipeWriter:
        pipe = await aio.Pipe.open(name, "w", broker=broker.address("zpipes", "pipes", 1), batch_chunks=10)
        for chunk in chunks:
            await pipe.write(chunk)
        await pipe.flush()
        return pipe

    pipe = loop.run_until_complete(work())

    after.callback(lambda: loop.run_until_complete(pipe._driver.closing()))
    return Acknowledged(name, chunks, len(chunks))


def moves(broker: ProcessBroker, number: int, after: ExitStack) -> Acknowledged:
    """Send moves ahead, the last of them twice, and count those that an answer says are done."""
    client = Client(broker, after)
    name = f"d-{number}"
    assert client.ask("OPEN", name) == [b"OK"]
    chunks = [b"%d" % place for place in range(1, 16)]
    for move in (1, 2, 3):
        staged = f"staged-{move}"
        assert client.ask("OPEN", staged, "60000") == [b"OK"]
        batch = pack_chunks(chunks[5 * move - 5 : 5 * move])
        assert client.ask("PUT", staged, "me", "1", batch) == [b"OK", b"6"]
    for move in (1, 2, 3, 3):
        client.send("MOVE", name, "mover", str(move), f"staged-{move}")
        time.sleep(PACE)
    moved = 0
    for _ in range(number % 4 + 1):
        says, following = client.answer()
        assert says == b"OK"
        moved = int(following) - 1
    return Acknowledged(name, chunks, 5 * moved)


STEPS = [writes, puts, put_again, flushes, closes, flushes_by_asyncio, moves]


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("step", STEPS)
def test_what_was_acknowledged_is_there_after_kill_9(step, rounds):
    with killed() as broker:
        broker.rounds(rounds, step, kept)


class Read(NamedTuple):
    """What a reader has acknowledged: all chunks up to a number, in a group or in the nameless one."""

    pipe: str
    group: str
    upto: int
    chunks: int


def prepare(client: Client, name: str, group: str, chunks: int = 20) -> None:
    assert client.ask("OPEN", name) == [b"OK"]
    assert client.ask("PUT", name, "me", "1", pack_chunks(b"%d" % place for place in range(1, chunks + 1)))[0] == b"OK"
    if group:
        assert client.ask("GROUP", name, group)[0] == b"OK"
    else:
        assert client.ask("FETCH", name, "", "", str(chunks), "100000", "0")[0] == b"BATCH"


def acks(broker: ProcessBroker, number: int, after: ExitStack) -> Read:
    """Acknowledge chunks one by one, ahead of the answers, and each twice."""
    client = Client(broker, after)
    name, group = f"d-{number}", "g" if number % 2 else ""
    prepare(client, name, group)
    for upto in range(1, 6):
        for _ in range(2):
            client.send("ACK", name, group, str(upto))
            time.sleep(PACE / 2)
    count = number % 10 + 1
    for _ in range(count):
        assert client.answer() == [b"OK"]
    return Read(name, group, (count + 1) // 2, 20)


def gone(broker: ProcessBroker, done: Read) -> None:
    """Check that what was acknowledged does not come again, and all else is there once."""
    with ExitStack() as closing:
        client = Client(broker, closing)
        assert client.ask("OPEN", done.pipe) == [b"OK"]
        if done.group:
            row = json.loads(client.ask("INFO", done.pipe)[1])
            assert done.group in row["groups"]
            begin = row["groups"][done.group]["next"]
            _, _, batch = client.ask("FETCH", done.pipe, done.group, str(begin), "10000", "10000000", "0")
            found = [chunk for _, chunk in unpack_numbered(batch)]
        else:
            found = chunks_in(client, done.pipe)
        first = int(found[0])
        assert first > done.upto, f"all up to {done.upto} was acknowledged, and {first} comes again"
        assert found == [b"%d" % place for place in range(first, done.chunks + 1)]
        assert client.ask("PURGE", done.pipe)[0] == b"OK"


@pytest.mark.parametrize("rounds", ROUNDS)
def test_what_was_acknowledged_by_its_reader_does_not_come_again(rounds):
    with killed() as broker:
        broker.rounds(rounds, acks, gone)


def purges_and_groups(broker: ProcessBroker, number: int, after: ExitStack) -> tuple[str, str]:
    """Do what is done once in a while, each of it also a second time from elsewhere, before the first was answered."""
    client, other = Client(broker, after), Client(broker, after)
    name, what = f"d-{number}", ("GROUP", "PURGE", "UNGROUP")[number % 3]
    prepare(client, name, "old")
    assert other.ask("PING") == [b"PONG"]
    client.send(what, name, *({"GROUP": ["new", "next"], "UNGROUP": ["old"]}.get(what, [])))
    time.sleep(PACE)
    if what == "GROUP":
        other.send(what, name, "new")
        assert other.answer() == [b"OK", b"21"]
    else:
        assert client.answer()[0] == b"OK"
    return what, name


def still_so(broker: ProcessBroker, done: tuple[str, str]) -> None:
    what, name = done
    with ExitStack() as closing:
        client = Client(broker, closing)
        answer = client.ask("INFO", name)
        assert answer[0] == b"INFO", answer
        row = json.loads(answer[1])
        groups = {"GROUP": {"old": {"next": 1}, "new": {"next": 21}}, "PURGE": {"old": {"next": 1}}, "UNGROUP": {}}
        assert row["groups"] == groups[what]
        assert row["chunks"] == (0 if what == "PURGE" else 20)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_groups_and_purges_that_were_acknowledged_stay(rounds):
    with killed() as broker:
        broker.rounds(rounds, purges_and_groups, still_so)


ANSWERS_WITH_WHAT_IS_IN_MEMORY = """
from scale0_zpipes.service import keeper, writers

store = keeper.Keeper.store

def old(self, records, answer):
    writers_known = answer.__closure__ and {
        name: cell.cell_contents for name, cell in zip(answer.__code__.co_freevars, answer.__closure__)
    }
    def answer_now(result, now):
        effects = list(answer(result, now))
        if result.error is None and "write" in writers_known and effects:
            effects[-1] = ("pipes", writers.stored(writers_known["pipe"], writers_known["write"]))
        return effects
    return store(self, records, answer_now)

keeper.Keeper.store = old
"""

ANSWERS_BEFORE_THE_DISK = """
from scale0_core.api import JobResult
from scale0_zpipes.service import keeper

def hasty(method):
    def early(self, records, answer=None):
        answers = list(answer(JobResult(None), 0.0)) if answer is not None else []
        return [*method(self, records, lambda result, now: ()), *answers]
    return early

keeper.Keeper.store, keeper.Keeper.tell = hasty(keeper.Keeper.store), hasty(keeper.Keeper.tell)
"""


@pytest.mark.parametrize(
    ("plant", "step", "check"),
    [
        # without ``closes``: CLOSE is answered after all that the disk owes to the connection, whatever was said before
        *((ANSWERS_WITH_WHAT_IS_IN_MEMORY, step, kept) for step in (puts, flushes, flushes_by_asyncio, moves)),
        *((ANSWERS_BEFORE_THE_DISK, step, kept) for step in STEPS if step is not closes),
        (ANSWERS_BEFORE_THE_DISK, acks, gone),
        (ANSWERS_BEFORE_THE_DISK, purges_and_groups, still_so),
    ],
)
def test_a_broker_that_acknowledges_too_early_is_caught_at_once(plant, step, check):
    with killed(plant) as broker, pytest.raises(AssertionError, match=r"round [1-5]: "):
        broker.rounds(CAUGHT_IN, step, check)
