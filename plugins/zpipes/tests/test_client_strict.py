"""Whatever a broker answers, a client's session goes on or ends with an error that says why."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_zpipes.batches import pack_numbered
from scale0_zpipes.client.errors import PipeError
from scale0_zpipes.client.session import Session
from scale0_zpipes.client.sessions import ReaderSession, WriterSession

INFO: dict[str, Any] = {"made": 1, "links": 1, "next": 1, "durable": False, "max_chunk": 1000}

VALUES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.just([[]])
NUMBERS = (st.integers(-2, 9) | st.integers()).map(lambda number: b"%d" % number)
INFOS = st.dictionaries(st.sampled_from(sorted(INFO)), VALUES).map(lambda some: json.dumps({**INFO, **some}).encode())
BATCHES = st.lists(st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=3)), max_size=4).map(pack_numbered)
WORDS = st.sampled_from([b"OK", b"ERROR", b"INFO", b"BATCH", b"PONG", b"PROBE", b""])
CODES = st.sampled_from([b"404", b"408", b"409", b"410", b"413", b"429", b"501", b"507", b"\xc2\xb2", b"9" * 5000])
FRAMES = st.one_of(
    st.just((b"OK",)),
    st.tuples(st.just(b"OK"), NUMBERS),
    st.tuples(st.just(b"INFO"), INFOS),
    st.tuples(st.just(b"BATCH"), NUMBERS, BATCHES),
    st.tuples(st.just(b"ERROR"), CODES, st.binary(max_size=3)),
    st.builds(lambda word, rest: (word, *rest), WORDS, st.lists(st.one_of(NUMBERS, INFOS, st.binary(max_size=9)))),
    st.lists(st.binary(max_size=9)).map(tuple),
)
STEPS = st.lists(st.one_of(FRAMES, st.sampled_from(["use", "break", "later"])), max_size=40)


def writer() -> WriterSession:
    return WriterSession(b"p", "tcp://broker", random=Random(1), writer=b"me", batch_bytes=20, batch_chunks=3)


def readers() -> list[ReaderSession]:
    return [
        ReaderSession(b"p", "tcp://broker", random=Random(1), batch_bytes=20),
        ReaderSession(b"p", "tcp://broker", random=Random(1), group=b"g"),
        ReaderSession(b"p", "tcp://broker", random=Random(1), group=b"g", lease=1.0, auto_ack=False),
    ]


def use(session: Session, now: float) -> None:
    if isinstance(session, WriterSession):
        if session.has_room:
            session.write(b"chunk" * 3, now)
    elif isinstance(session, ReaderSession):
        session.take(now)
        session.ask_info()
        session.probe()
        session.ack(now)


def go_on(session: Session, steps: list[Any]) -> None:
    """Hand in what comes as an engine does: nothing comes from a connection that was given up."""
    now = 100.0
    session.start(now)
    session.on_linked(now)
    connection = session.connection
    for step in steps:
        now += 0.01
        if step == "use":
            use(session, now)
        elif step == "break":
            session.on_unlinked(now)
            session.on_linked(now)
        elif step == "later":
            due = session.next_deadline()
            now = max(now, now if due is None else due)
            session.on_deadline(now)
        else:
            session.receive(step, now)
        session.out.clear()
        while session.connection != connection:
            connection = session.connection
            if session.address:
                session.on_linked(now)
        assert session.fault(now, now) is session.error or session.error is None
        if session.ended:
            assert isinstance(session.error, PipeError)
            return
    session.leave(now)
    session.stop(now)


@given(INFOS, STEPS)
def test_whatever_a_broker_answers_a_session_does_not_raise(info: bytes, steps: list[Any]):
    opened = [(b"OK",), (b"INFO", info)]
    for before in ([], opened, [*opened, (b"OK", b"1"), "use"]):
        for session in (writer(), *readers()):
            go_on(session, [*before, *steps])


@pytest.mark.parametrize("name", ["links", "next", "max_chunk", "durable"])
@pytest.mark.parametrize("value", ["many", -1, [], 1.5])
def test_what_a_broker_says_of_a_pipe_is_read_strictly(name: str, value: object):
    for session in (writer(), *readers()):
        session.start(0.0)
        session.on_linked(0.0)
        session.receive((b"OK",), 0.0)
        session.receive((b"INFO", json.dumps({**INFO, name: value}).encode()), 0.0)
        assert session.ended
        assert "cannot be read" in str(session.error)
        assert name in str(session.error)
