"""Titanic in the service and in a real broker: what was answered with 200 is carried out."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
import uuid

import pytest
import zmq

from scale0_core.testing import Script
from scale0_majordomo.service.majordomo import MajordomoService
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.settings import MajordomoSettings


@pytest.fixture
def script(tmp_path):
    return Script(MajordomoService(MajordomoSettings(), store=Store(tmp_path / "titanic.sqlite")), start=1.0)


def ask(script, service, *body):
    script.feed("requests", "c", "", "MDPC01", service, *body)
    return script.expect("requests", "c", "", "MDPC01", service, *(... for _ in script._unexpected[0][1][4:]))[4:]


def test_a_stored_request_is_carried_out_and_its_reply_kept(script):
    code, ident = ask(script, "titanic.request", "echo", "hello")
    assert code == b"200"
    assert ask(script, "titanic.reply", ident) == (b"300",)
    script.feed("requests", "w", "", "MDPW01", "\x01", "echo")
    request = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")
    script.feed("requests", "w", "", "MDPW01", "\x03", request[4], "", "HELLO")
    assert ask(script, "titanic.reply", ident) == (b"200", b"HELLO")
    assert ask(script, "titanic.close", ident) == (b"200",)
    assert ask(script, "titanic.reply", ident) == (b"400",)


def test_a_stored_request_survives_its_worker(script):
    _, ident = ask(script, "titanic.request", "echo", "hello")
    for worker in ("w1", "w2"):
        script.feed("requests", worker, "", "MDPW01", "\x01", "echo")
    request = script.expect("requests", "w1", "", "MDPW01", "\x02", ..., "", "hello")
    script.feed("requests", "w1", "", "MDPW01", "\x05")
    again = script.expect("requests", "w2", "", "MDPW01", "\x02", ..., "", "hello")
    script.feed("requests", "w2", "", "MDPW01", "\x03", again[4], "", "HELLO")
    assert request[4] == again[4]
    assert ask(script, "titanic.reply", ident) == (b"200", b"HELLO")


def test_the_names_are_the_brokers_own(script):
    assert ask(script, "mmi.service", "titanic.request") == (b"200",)
    script.feed("requests", "w", "", "MDPW01", "\x01", "titanic.reply")
    script.expect("requests", "w", "", "MDPW01", "\x05")


class Echo(threading.Thread):
    """A worker that comes back whenever the broker does, and keeps what it was asked."""

    def __init__(self, address):
        super().__init__(daemon=True)
        self.address, self.seen, self.over = address, set(), threading.Event()

    def run(self):
        with zmq.Context() as context:
            while not self.over.is_set():
                with context.socket(zmq.DEALER) as socket:
                    socket.linger = 0
                    socket.connect(self.address)
                    socket.send_multipart([b"", b"MDPW01", b"\x01", b"echo"])
                    self.serve(socket)

    def serve(self, socket):
        silent = 0
        while not self.over.is_set() and silent < 10:
            if not socket.poll(100):
                silent += 1
                socket.send_multipart([b"", b"MDPW01", b"\x04"])
                continue
            silent = 0
            _, _, command, *rest = socket.recv_multipart()
            if command == b"\x05":
                return
            if command == b"\x02":
                self.seen.add(rest[2])
                socket.send_multipart([b"", b"MDPW01", b"\x03", rest[0], b"", rest[2].upper()])


@pytest.mark.seeds(1)
def test_every_request_that_was_confirmed_is_carried_out_whatever_is_killed(scale0_broker, tmp_path, seed):
    """15 rounds: requests, kill -9 of the broker at a random moment, a new one; in the end every reply."""
    folder = tmp_path / "data"
    place = f"ipc:///tmp/s0-mj-{uuid.uuid4().hex[:10]}"
    settings = {
        "broker": {"data_dir": str(folder)},
        "plugin": {"majordomo": {"titanic": True, "bind": [place], "heartbeat": 0.2}},
    }
    name, chance = f"mj-{uuid.uuid4().hex[:8]}", random.Random(seed)
    confirmed: dict[bytes, bytes] = {}
    number = 0
    worker = Echo(place)
    worker.start()
    with zmq.Context() as context:

        def call(socket, service, *body):
            socket.send_multipart([b"MDPC01", service, *body])
            if not socket.poll(20_000):
                raise AssertionError("no answer")
            return socket.recv_multipart()[2:]

        def client():
            socket = context.socket(zmq.REQ)
            socket.linger = 0
            socket.connect(place)
            return socket

        try:
            for _ in range(15):
                broker = scale0_broker(["majordomo"], settings, name=name)
                with client() as socket:
                    end = time.monotonic() + chance.uniform(0, 0.05)
                    while time.monotonic() < end:
                        number += 1
                        body = b"request %d" % number
                        answer = call(socket, b"titanic.request", b"echo", body)
                        assert answer[0] == b"200", answer
                        confirmed[answer[1]] = body
                    socket.send_multipart([b"MDPC01", b"titanic.request", b"echo", b"perhaps"])
                    time.sleep(chance.uniform(0, 0.01))
                    os.kill(broker.process.pid, signal.SIGKILL)
                broker.kill()
            scale0_broker(["majordomo"], settings, name=name)
            with client() as socket:
                for ident, body in confirmed.items():
                    end = time.monotonic() + 60
                    while (answer := call(socket, b"titanic.reply", ident)) == [b"300"]:
                        assert time.monotonic() < end
                        time.sleep(0.01)
                    assert answer == [b"200", body.upper()]
        finally:
            worker.over.set()
            worker.join(20)
    assert len(confirmed) > 25
    assert set(confirmed.values()) <= worker.seen
