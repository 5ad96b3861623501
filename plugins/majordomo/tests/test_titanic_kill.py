"""Titanic against kill -9: what was acknowledged is there, on a disk whose writes and fsyncs are slow."""

from __future__ import annotations

import time

import pytest
import zmq

from scale0_core.testing.killing import KilledBroker

pytestmark = pytest.mark.real

SETTINGS = {"plugin": {"majordomo": {"bind": ["ipc://{runtime}/majordomo"], "titanic": True, "bridge": False}}}
PATIENCE_MS = 20_000

ACKNOWLEDGES_TOO_EARLY = """
from functools import partial
from scale0_majordomo.service import titanic

def acknowledge_before_commit(self, body, answer, now):
    put = titanic.Put(self._new_id(), bytes(body[0]), tuple(map(bytes, body[1:])))
    stored = partial(self._stored, put, 0, lambda reply: [])
    return [*answer((b"200", put.ident.encode())), self._job(put, stored)]

titanic.Titanic._request = acknowledge_before_commit
"""


def ask(broker, service, *body):
    """Ask one of Titanic's services; give its reply."""
    with zmq.Context() as context, context.socket(zmq.REQ) as socket:
        socket.linger, socket.rcvtimeo, socket.sndtimeo = 0, PATIENCE_MS, PATIENCE_MS
        socket.connect(broker.address("majordomo", "requests"))
        socket.send_multipart([b"MDPC01", service, *body])
        return socket.recv_multipart()[2:]


def reply_to(broker, ident):
    """Ask for a reply until it is stored."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while (reply := ask(broker, b"titanic.reply", ident)) == [b"300"]:
        assert time.monotonic() < end, "answered by a worker, and not stored"
    return reply


def serve_one(broker):
    """Be a worker for one request, and answer it in capitals."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger, socket.rcvtimeo = 2000, PATIENCE_MS
        socket.connect(broker.address("majordomo", "requests"))
        socket.send_multipart([b"", b"MDPW01", b"\1", b"upper"])
        while (frames := socket.recv_multipart())[2] != b"\2":
            pass
        socket.send_multipart([b"", b"MDPW01", b"\3", frames[3], b"", frames[5].upper()])
        socket.send_multipart([b"", b"MDPW01", b"\5"])
        return frames[5]


def store(broker, number, after):
    """Store requests, and close each third: all that was acknowledged."""
    stored, closed = {}, []
    for part in range(1 + number % 3):
        code, ident = ask(broker, b"titanic.request", b"upper", b"%d.%d" % (number, part))
        assert code == b"200"
        stored[ident] = b"%d.%d" % (number, part)
    if number % 3 == 2:
        ident = next(iter(stored))
        assert ask(broker, b"titanic.close", ident) == [b"200"]
        closed.append(ident)
        del stored[ident]
    return stored, closed


def check(broker, acknowledged):
    """What was stored is there and is carried out once; what was closed is gone."""
    stored, closed = acknowledged
    for ident in closed:
        assert ask(broker, b"titanic.reply", ident) == [b"400"], "closed, and there again"
    for ident in stored:
        assert ask(broker, b"titanic.reply", ident) == [b"300"], "acknowledged, and lost"
    assert sorted(serve_one(broker) for _ in stored) == sorted(stored.values())
    for ident, body in stored.items():
        assert reply_to(broker, ident) == [b"200", body.upper()]
        assert ask(broker, b"titanic.close", ident) == [b"200"]


def campaign(rounds):
    with KilledBroker(["majordomo"], SETTINGS) as killed:
        killed.rounds(rounds, store, check)


def test_what_titanic_acknowledged_is_there_after_kill_9():
    campaign(3)


@pytest.mark.soak
def test_what_titanic_acknowledged_is_there_after_200_kills():
    campaign(200)


def test_a_titanic_that_acknowledges_before_the_commit_is_caught():
    with (
        KilledBroker(["majordomo"], SETTINGS, plant=ACKNOWLEDGES_TOO_EARLY, sync_ms=200.0) as killed,
        pytest.raises(AssertionError, match=r"acknowledged, and lost|closed, and there"),
    ):
        killed.rounds(5, store, check)


def test_a_reply_that_was_given_once_is_there_after_kill_9():
    with KilledBroker(["majordomo"], SETTINGS) as killed:
        _, ident = ask(killed.broker, b"titanic.request", b"upper", b"x")
        serve_one(killed.broker)
        reply = reply_to(killed.broker, ident)
        killed.kill()
        assert ask(killed.start(), b"titanic.reply", ident) == reply == [b"200", b"X"]


def test_a_full_disk_is_told_and_nothing_is_lost():
    with KilledBroker(["majordomo"], SETTINGS, write_ms=0, sync_ms=0, capacity=2_000_000) as killed:
        stored = []
        for _ in range(100):
            code, ident = ask(killed.broker, b"titanic.request", b"upper", bytes(50_000))
            if code != b"200":
                break
            stored.append(ident)
        assert code == b"500"
        assert len(stored) > 3
        killed.kill()
        broker = killed.start()
        for ident in stored:
            assert ask(broker, b"titanic.reply", ident) == [b"300"]
