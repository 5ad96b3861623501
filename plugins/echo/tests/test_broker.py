"""The service in a real broker, over real sockets."""

import hashlib

import pytest
import zmq

SETTINGS = {"plugin": {"echo": {"bind": ["ipc://{runtime}/echo", "tcp://127.0.0.1:*"]}}}


@pytest.fixture
def ask(scale0_broker):
    """Start a broker and give a function that sends it one request, on a socket of the kind it is given."""
    broker = scale0_broker(["echo"], SETTINGS)
    with zmq.Context() as context:

        def ask(kind, *frames, number=0):
            with context.socket(kind) as socket:
                socket.linger = 0
                socket.connect(broker.address("echo", "requests", number))
                socket.send_multipart(frames)
                assert socket.poll(10_000), broker.text()
                return socket.recv_multipart()

        yield ask
        assert broker.stop() == 0


@pytest.mark.parametrize("number", [0, 1], ids=["ipc", "tcp"])
@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ], ids=["DEALER", "REQ"])
def test_sends_back(ask, kind, number):
    assert ask(kind, b"ECHO", b"", b"hello", b"world", number=number) == [b"hello", b"world"]


def test_sends_back_later_and_as_a_digest(ask):
    assert ask(zmq.DEALER, b"LATER", b"20", b"hello") == [b"hello"]
    assert [hashlib.sha256(b"hello").hexdigest().encode()] == ask(zmq.REQ, b"DIGEST", b"", b"hello")


def test_refuses_and_goes_on(ask):
    assert ask(zmq.DEALER, b"SHOUT", b"", b"hello")[:2] == [b"ERROR", b"501"]
    assert ask(zmq.DEALER, b"ECHO", b"", b"hello") == [b"hello"]
