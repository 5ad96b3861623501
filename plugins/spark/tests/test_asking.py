"""Servers that are hostile, mistaken or slow cost those who ask neither memory nor more time than they allow."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
import zmq

from scale0_spark import asking
from scale0_spark.asking import Question, Silence, ask_all
from scale0_spark.plans import HEADER

Serve = Callable[["zmq.Socket[bytes]", bytes, list[bytes]], None]


class Server(threading.Thread):
    """Answers each question as it was told to."""

    def __init__(self, serve: Serve) -> None:
        super().__init__()
        self._serve = serve
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self.endpoint = f"tcp://127.0.0.1:{self._socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.asked = 0
        self.over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self.over.is_set():
            if self._socket.poll(10):
                peer, *frames = self._socket.recv_multipart()
                self.asked += 1
                self._serve(self._socket, peer, frames)

    def stop(self) -> None:
        self.over.set()
        self.join()
        self._socket.close()
        self._context.term()


@pytest.fixture
def served() -> Iterator[Callable[[Serve], Server]]:
    servers: list[Server] = []

    def make(serve: Serve) -> Server:
        servers.append(Server(serve))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


def well(socket: zmq.Socket[bytes], peer: bytes, frames: list[bytes]) -> None:
    socket.send_multipart((peer, HEADER, b"OK", frames[2]))


def test_all_get_their_own_answers(served):
    servers = [served(well) for _ in range(3)]
    questions = [Question(servers[number % 3].endpoint, b"stat") for number in range(300)]
    assert [answer.word for answer in ask_all(questions, 30.0)] == [b"OK"] * 300
    assert [server.asked for server in servers] == [100] * 3


def test_an_answer_that_is_too_large_is_not_taken_in(served):
    def large(socket, peer, frames):
        socket.send_multipart((peer, HEADER, b"OK", frames[2], bytes(asking.MOST_IN_FRAME + 1)))

    good = served(well)
    found = ask_all([Question(served(large).endpoint, b"stat"), Question(good.endpoint, b"stat")], 1.0)
    assert isinstance(found[0], Silence)
    assert found[1].word == b"OK"


def test_one_that_talks_on_when_it_is_done_is_not_listened_to(served, monkeypatch):
    """Else it would wake us up again and again while we wait for others."""

    def chatty(socket, peer, frames):
        well(socket, peer, frames)
        for _ in range(500):
            socket.send_multipart((peer, b"and another thing"))

    polls = []
    poll = zmq.Poller.poll

    def counted(self, ms):
        if threading.current_thread() is threading.main_thread():
            polls.append(ms)
        return poll(self, ms)

    monkeypatch.setattr(zmq.Poller, "poll", counted)
    silent = served(lambda *_: None)
    found = ask_all([Question(served(chatty).endpoint, b"stat"), Question(silent.endpoint, b"stat")], 1.0)
    assert found[0].word == b"OK"
    assert found[1] == Silence("no answer within 1 s")
    assert len(polls) < 100


def test_one_that_answers_just_in_time_again_and_again_is_given_up(served, monkeypatch):
    monkeypatch.setattr(asking, "MOST_OPEN", 1)
    monkeypatch.setattr(asking, "MOST_SILENCES", 3)
    slow = served(lambda *question: (slow.over.wait(0.2), well(*question)))
    begin = time.monotonic()
    found = ask_all([Question(slow.endpoint, b"stat") for _ in range(1000)], 1.0)
    assert time.monotonic() - begin < 60
    assert found[0].word == b"OK"
    assert found[-1] == Silence("no answer before all had 3 s")


def test_an_address_that_is_none_is_told():
    (found,) = ask_all([Question("tcp://not an address", b"stat")], 1.0)
    assert "not an address" in found.why


def test_an_address_where_nobody_listens_is_told_apart_from_one_that_does_not_answer(served):
    silent = served(lambda *question: None)
    found = ask_all([Question("tcp://127.0.0.1:1", b"stat"), Question(silent.endpoint, b"stat")], 1.0)
    assert found == [Silence("nobody is there within 1 s"), Silence("no answer within 1 s")]
