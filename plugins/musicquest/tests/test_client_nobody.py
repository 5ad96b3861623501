"""A client without a broker or a server, and one in a forked child: it fails immediately."""

from __future__ import annotations

import os
import signal
import time

import attrs
import pytest

from scale0_musicquest.client import MusicClient, NoBrokerError, NoServerError

from .music_peers import FakeBroker, FakeServer, client_of, peers
from .test_client import nobody

pytestmark = pytest.mark.real

SONG = {"a.wav": b"a"}
PORTS = {"plugin": {"musicquest-broker": {name: ["tcp://127.0.0.1:*"] for name in ("bind_servers", "bind_clients")}}}


def test_without_a_broker_questions_fail_immediately(flavour):
    began = time.monotonic()
    with client_of(flavour, nobody(), timeout=60.0) as client:
        for ask in (lambda: client.search("x"), client.servers, client.stats):
            with pytest.raises(NoBrokerError, match="nobody listens"):
                ask()
    with (
        client_of(flavour, nobody(), server=nobody(), timeout=60.0) as client,
        pytest.raises(NoServerError, match="nobody listens"),
    ):
        client.search("x")
    assert time.monotonic() - began < 20


def test_a_question_that_cannot_be_begun_is_not_waited_for(flavour):
    with peers() as note:
        server = note(FakeServer(SONG))
        broker = note(FakeBroker(server))
        with client_of(flavour, broker.endpoint, timeout=60.0) as client:
            hit = client.hit("a.wav")
            with pytest.raises(NoServerError, match="cannot connect"):
                client.stats("tcp://\udc80:1")
            with pytest.raises(AttributeError):
                client.stats(5)
            with pytest.raises(AttributeError):
                client.read(attrs.evolve(hit, holders=(attrs.evolve(hit.holders[0], endpoint=5),)), 0, 1)
            assert client.stats()  # it goes on


def test_one_who_waits_for_the_broker_gets_an_answer_when_it_is_there(flavour):
    with peers() as note:
        address = nobody()
        with client_of(flavour, address, timeout=30.0, wait_for_broker=True) as client:
            server = note(FakeServer(SONG))
            with pytest.raises(NoBrokerError):
                client.search("a", timeout=0.3)
            note(FakeBroker(server, address=address))
            assert client.search("a").hits


def test_in_a_forked_child_questions_fail_immediately():
    with peers() as note:
        server = note(FakeServer(SONG))
        broker = note(FakeBroker(server))
        with MusicClient(broker.endpoint, timeout=30.0) as client:
            hit = client.hit("a.wav")
            for use in (
                lambda: client.search("a"),
                lambda: client.read(hit, 0, 1),
                lambda: client.songs(server.endpoint),
            ):
                reading, writing = os.pipe()
                pid = os.fork()
                if not pid:
                    try:
                        signal.alarm(20)
                        try:
                            use()
                        except Exception as error:
                            os.write(writing, str(error).encode())
                        client.close()
                    finally:
                        os._exit(0)
                os.close(writing)
                with os.fdopen(reading) as file:
                    told = file.read()
                os.waitpid(pid, 0)
                assert told.startswith("this client belongs to another process"), told
            assert client.read(hit, 0, 1) == b"a"


def test_a_broker_is_found_by_its_name_or_as_the_first_of_several_that_is_there(scale0_broker, flavour):
    broker = scale0_broker.in_thread(["musicquest-broker"], PORTS)
    for name in (broker.name, ["gone", nobody(), broker.name]):
        with client_of(flavour, name, timeout=30.0) as client:
            assert client.servers() == []
    with (
        client_of(flavour, "gone") as client,
        pytest.raises(NoBrokerError, match="no broker gone runs on this"),
    ):
        client.servers()
