"""One connection after the other: what was meant for one never goes to the next."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.link import Link
from scale0_core.client.kit.sessions import Limits
from scale0_core.service import Frames

pytestmark = pytest.mark.real

Router = Callable[[], "zmq.Socket[bytes]"]


class Notes:
    """A session that writes down what happens and says what the test wants."""

    limits = Limits(linger_ms=1000)
    ended = False

    def __init__(self, address: str) -> None:
        self.address = address
        self.connection = 1
        self.out: list[Frames] = []
        self.events: list[str] = []
        self.nobody = 0

    def start(self, now: float) -> None: ...

    def on_linked(self, now: float) -> None:
        self.events.append("linked")

    def on_unlinked(self, now: float) -> None:
        self.events.append("unlinked")

    def on_nobody(self, reason: str, now: float) -> None:
        self.nobody += 1

    def receive(self, frames: Frames, now: float) -> None:
        self.events.append(frames[0].decode())

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> None: ...

    def stop(self, now: float, error: BaseException | None = None) -> None: ...


@pytest.fixture
def address(tmp_path: Path) -> str:
    return f"ipc://{tmp_path}/router"


@pytest.fixture
def router(address: str) -> Iterator[Router]:
    with ExitStack() as stack:
        context = stack.enter_context(zmq.Context())

        def bind() -> zmq.Socket[bytes]:
            socket = stack.enter_context(context.socket(zmq.ROUTER))
            socket.linger = 0
            socket.rcvtimeo = 10_000
            socket.bind(address)
            return socket

        yield bind


@pytest.fixture
def engine(address: str) -> Iterator[Engine]:
    engine = Engine(Notes(address))
    engine.start()
    yield engine
    engine.close()


def turn_until(engine: Engine, *events: str) -> None:
    """Have turns until the session has been told just this."""
    end = time.monotonic() + 10
    session = engine.session
    assert isinstance(session, Notes)
    while session.events != list(events):
        assert time.monotonic() < end, session.events
        engine.turn()
        time.sleep(0.005)
    session.events.clear()


def say(engine: Engine, text: bytes) -> None:
    engine.session.out.append((text,))
    engine.apply()


def test_what_was_sent_to_a_broker_that_is_gone_does_not_reach_the_next(engine: Engine, router: Router):
    first = router()
    turn_until(engine, "linked")
    say(engine, b"hello")
    assert first.recv_multipart()[1] == b"hello"
    first.close()
    say(engine, b"stale")  # nobody has noticed yet
    second = router()
    assert not second.poll(500)  # in which time ZeroMQ would connect again by itself
    turn_until(engine, "unlinked", "linked")
    say(engine, b"fresh")
    assert second.recv_multipart()[1] == b"fresh"


def test_tries_go_on_until_somebody_is_there(engine: Engine, router: Router):
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        engine.turn()
        timeout = engine.timeout()
        assert timeout is None or timeout <= 1.0
    router()
    turn_until(engine, "linked")


def test_a_connection_that_broke_the_rules_is_followed_by_another(engine: Engine, router: Router):
    """A frame that is too large ends a connection for good, as far as ZeroMQ is concerned."""
    broker = router()
    turn_until(engine, "linked")
    say(engine, b"hello")
    peer, _ = broker.recv_multipart()
    broker.send_multipart([peer, b"x" * (2 << 20)])
    turn_until(engine, "unlinked", "linked")
    say(engine, b"again")
    assert broker.recv_multipart()[1] == b"again"


def test_a_link_without_an_engine_knows_whether_somebody_is_there(address: str, router: Router) -> None:
    alone = Link(address)
    assert not alone.wait_until_connected(10)
    assert (alone.broken, alone.up) == (True, False)
    alone.drop()
    broker = router()
    link = Link(address)
    assert link.wait_until_connected(10)
    link.send((b"question",))
    peer, question = broker.recv_multipart()
    assert question == b"question"
    assert link.receive(0.01) is None
    assert link.connected
    broker.send_multipart([peer, b"answer"])
    assert link.receive(10) == (b"answer",)
    broker.close()
    assert link.receive(10) is None
    assert (link.broken, link.up, link.connected) == (True, True, False)
    link.drop()


def test_a_patient_link_waits_for_one_who_comes_late(address: str, router: Router) -> None:
    link = Link(address, Limits(reconnect=True))
    assert not link.wait_until_connected(0.05, patient=True)
    router()
    assert link.wait_until_connected(10, patient=True)
    link.drop()
