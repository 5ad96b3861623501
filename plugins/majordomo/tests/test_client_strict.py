"""Whatever a broker says, the sessions of clients and workers go on: what makes no sense is counted or left out."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.client.kit.calls import Reply
from scale0_core.client.kit.sessions import Answer
from scale0_majordomo.client import CallError
from scale0_majordomo.client.codec import make_call, told_by_broker
from scale0_majordomo.client.session import ClientSession, Request, WorkerSession
from scale0_majordomo.dialects import Dialect

IDENTS = st.integers(0, 6).map(lambda number: number.to_bytes(8, "big"))
OPTIONS = st.sampled_from([
    b"", b"{}", b"[]", b"null", b'{"seq":0}', b'{"seq":1}', b'{"seq":"one"}', b'{"seq":null,"empty":1}',
    b'{"empty":true}', b'{"timeout":"long","traceparent":5}', b"404", b"429", b"503", b"\xc2\xb2", b"999",
])  # fmt: skip
WORDS = st.integers(0, 9).map(lambda number: bytes([number]))
FRAME = st.one_of(WORDS, IDENTS, OPTIONS, st.binary(max_size=9), st.just(b"s"))
HEADS = {
    Dialect.OWN: [(b"S0MC01",), (b"S0MW01",)],
    Dialect.MDP02: [(b"MDPC02",), (b"MDPW02",)],
    Dialect.MDP01: [(b"", b"MDPC01"), (b"", b"MDPW01")],
}
SAID = st.one_of(
    st.tuples(st.sampled_from([b"\x02", b"\x03", b"\x04"]), IDENTS, st.just(b"s"), OPTIONS, FRAME),
    st.lists(FRAME, max_size=7).map(tuple),
)
MESSAGES = st.tuples(st.booleans(), SAID)
SENT = st.sampled_from(["open", "late", "break"])
STEPS = st.lists(st.one_of(SENT, MESSAGES), max_size=30)


class Sink:
    def __init__(self) -> None:
        self.ends = 0

    def final(self, reply: object) -> None:
        self.ends += 1

    def fail(self, error: object) -> None:
        self.ends += 1


@given(st.sampled_from(Dialect), STEPS)
def test_whatever_a_broker_says_every_call_ends_once(dialect: Dialect, steps: list[Any]):
    session, sinks, now = ClientSession("tcp://x", random=Random(1), dialect=dialect), [], 50.0
    session.start(now)
    session.on_linked(now)
    for step in steps:
        now += 0.1
        connection = session.connection
        if step == "open":
            call = make_call("s", (b"x",), timeout=1.0, retry=len(sinks) % 2 == 0)
            sinks.append(Sink())
            call.sink = sinks[-1]
            session.open(call, now)
        elif step == "late":
            session.on_deadline(now + 0.5)
        elif step == "break":
            session.on_unlinked(now)
            session.on_linked(now)
        else:
            session.receive((*HEADS[dialect][0], *step[1]) if step[0] else step[1], now)
        session.out.clear()
        if session.connection != connection:
            session.on_linked(now)
    session.stop(now)
    assert [sink.ends for sink in sinks] == [1] * len(sinks)


@given(st.sampled_from(Dialect), STEPS)
def test_whatever_a_broker_says_a_worker_goes_on(dialect: Dialect, steps: list[Any]):
    tasks: list[Request] = []
    session = WorkerSession(
        "tcp://x", "s", begin=tasks.append, cancel=lambda request: None, random=Random(1), dialect=dialect
    )
    now = 50.0
    session.start(now)
    session.on_linked(now)
    for step in steps:
        now += 0.1
        connection = session.connection
        if step == "open":
            for task in tasks:
                assert isinstance(task.options, dict)
                session.answer(task, Answer(b"x", frames=(b"x",)), now)
            tasks.clear()
        elif step == "late":
            now = max(now, session.next_deadline() or now)
            session.on_deadline(now)
        elif step == "break":
            session.on_unlinked(now)
            session.on_linked(now)
        else:
            session.receive((*HEADS[dialect][1], *step[1]) if step[0] else step[1], now)
        session.out.clear()
        if session.connection != connection and session.address:
            session.on_linked(now)
    session.stop(now)
    assert session.ended


@given(st.lists(st.one_of(OPTIONS, st.just(b"200"), st.just(b"9" * 5000), st.binary(max_size=5)), max_size=4))
@pytest.mark.parametrize("kind", [dict, list])
def test_what_a_broker_tells_is_what_was_asked_for_or_an_error(kind: type, frames: list[bytes]):
    with contextlib.suppress(CallError):
        assert type(told_by_broker("mmi.stats", Reply(frames), kind)) is kind
