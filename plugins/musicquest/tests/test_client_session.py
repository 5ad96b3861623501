"""A client's talk with its server, without sockets and on virtual time."""

from __future__ import annotations

import contextlib
import itertools
import json
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_musicquest import wire
from scale0_musicquest.client.answers import (
    read_advert,
    read_answer,
    read_list,
    read_part,
    read_result,
    read_servers,
    read_table,
    read_top,
)
from scale0_musicquest.client.errors import (
    MusicError,
    MusicTimeoutError,
    NoBrokerError,
    NoServerError,
    RefusedError,
    Stage,
)
from scale0_musicquest.client.session import FIRST_REST, GREETING_PATIENCE, BrokerSession, MusicSession, Question

NAMES = st.sampled_from(["hits", "songs", "total", "name", "size", "sha256", "endpoint", "holders", "song", "count"])
HELLO = {"id": "s", "heartbeat_ms": 2000, "chunk": 250_000}


class Talk:
    """A session, the questions it put, and what is under way."""

    def __init__(self, server: str = "") -> None:
        self.asked: list = []
        """What the broker was asked."""
        self.done: list[Question] = []
        tags = (b"t%d" % number for number in itertools.count())
        self.session = MusicSession(
            "me", "tcp://broker", ask_broker=self.asked.append, new_tag=lambda: next(tags), server=server
        )

    def ask(self, now: float, word: bytes = wire.SEARCH, deadline: float = 100.0) -> Question:
        question = Question(word, lambda left: (b"%d" % left,), deadline, self.done.append)
        self.session.ask(question, now)
        return question

    def broker(self, word: bytes, told: dict, now: float) -> None:
        tag = self.asked[-1][2]
        self.session.on_broker((wire.HEADER, word, tag, wire.to_json(told)), now)

    def sent(self) -> list[tuple[bytes, ...]]:
        found, self.session.out[:] = list(self.session.out), []
        assert all(frames[0] == b"" and frames[1] == wire.HEADER for frames in found)
        return [frames[2:] for frames in found]

    def server(self, word: bytes, tag: bytes, *rest: bytes, now: float) -> None:
        self.session.receive((b"", wire.HEADER, word, tag, *rest), now)

    def greeted(self, now: float, endpoint: str = "tcp://a") -> None:
        """Have a server given and greeted."""
        self.broker(wire.HELLO, {"id": "s", "endpoint": endpoint}, now)
        self.session.on_linked(now)
        (hello,) = self.sent()
        assert (hello[0], json.loads(hello[2])) == (wire.HELLO, {"id": "me"})
        self.server(wire.HELLO, hello[1], wire.to_json(HELLO), now=now)


@pytest.mark.requirement("M2")
@pytest.mark.requirement("M3")
@pytest.mark.requirement("M4")
def test_the_broker_is_asked_for_a_server_which_is_asked_from_then_on():
    talk = Talk()
    assert (talk.asked, talk.session.next_deadline()) == ([], None)
    question = talk.ask(0.0)
    assert [frames[1] for frames in talk.asked] == [wire.HELLO]
    talk.greeted(0.1)
    assert talk.session.address == "tcp://a"
    ((word, tag, left),) = talk.sent()
    assert (word, left) == (wire.SEARCH, b"99")
    talk.server(wire.FOUND, tag, b"{}", now=0.2)
    assert (talk.done, question.word_back, question.answer) == ([question], wire.FOUND, (b"{}",))
    talk.ask(0.3)
    assert len(talk.sent()) == 1
    assert len(talk.asked) == 1


def test_answers_come_in_any_order_and_by_their_tags():
    talk = Talk("tcp://told")
    first, second = talk.ask(0.0), talk.ask(0.0)
    assert talk.asked == []
    talk.session.on_linked(0.0)
    ((_, tag, _),) = talk.sent()
    talk.server(wire.HELLO, tag, wire.to_json(HELLO), now=0.0)
    one, two = talk.sent()
    talk.server(wire.FOUND, two[1], b"2", now=0.1)
    talk.server(wire.FOUND, two[1], b"again", now=0.1)
    talk.server(wire.FOUND, b"unknown", b"3", now=0.1)
    assert (talk.done, second.answer) == ([second], (b"2",))
    talk.server(wire.ERROR, one[1], b"429", b"too many", now=0.1)
    assert isinstance(first.error, RefusedError)
    assert (first.error.code, first.error.problem.why) == (429, "too many")


def test_without_a_server_the_broker_is_asked_again_after_1_2_4_seconds():
    talk = Talk()
    question = talk.ask(0.0, deadline=20.0)
    now = 0.0
    for rest in (1.0, 2.0, 4.0, 8.0):
        talk.broker(wire.BYE, {"retry_ms": 1000}, now)
        asked = len(talk.asked)
        assert talk.session.next_deadline() == now + rest
        talk.session.on_deadline(now + rest - 0.01)
        assert len(talk.asked) == asked
        now += rest
        talk.session.on_deadline(now)
        assert len(talk.asked) == asked + 1
    talk.broker(wire.BYE, {}, now)
    talk.session.on_deadline(20.0)
    assert isinstance(question.error, NoServerError)
    assert question.error.stage is Stage.BROKER
    assert "knows no server" in str(question.error)


@pytest.mark.parametrize("answer", [None, (b"nonsense",), (wire.HEADER, wire.HELLO, b"t", b"[]"), (wire.HEADER,)])
def test_a_broker_that_says_nothing_or_nonsense_is_told(answer):
    talk = Talk()
    question = talk.ask(0.0, deadline=5.0)
    talk.session.on_broker(answer, 2.0)
    talk.session.on_deadline(3.0)
    talk.session.on_deadline(5.0)
    assert question.error is not None
    assert isinstance(question.error, NoBrokerError) == (answer is None)
    assert "tcp://broker" in str(question.error)


def test_a_question_without_an_answer_ends_in_time_and_says_the_stage():
    talk = Talk()
    early = talk.ask(0.0, deadline=1.0)
    talk.session.on_deadline(1.0)
    assert isinstance(early.error, NoBrokerError)
    greeting = talk.ask(1.0, deadline=2.0)
    talk.broker(wire.HELLO, {"id": "s", "endpoint": "tcp://a"}, 1.0)
    talk.session.on_deadline(2.0)
    assert isinstance(greeting.error, MusicTimeoutError)
    assert greeting.error.stage is Stage.GREETING
    talk.session.on_linked(2.0)
    talk.server(wire.HELLO, b"", wire.to_json(HELLO), now=2.0)
    late = talk.ask(2.0, deadline=3.0)
    talk.session.on_deadline(3.0)
    assert isinstance(late.error, MusicTimeoutError)
    assert late.error.stage is Stage.ANSWER
    assert "tcp://a" in str(late.error)


def test_heartbeats_are_sent_while_idle_and_a_silent_server_is_lost():
    talk = Talk()
    talk.ask(0.0, deadline=1000.0)
    talk.greeted(0.0)
    ((_, tag, _),) = talk.sent()
    talk.server(wire.FOUND, tag, b"{}", now=0.0)
    assert talk.session.next_deadline() == 2.0
    talk.session.on_deadline(2.0)
    assert [frames[0] for frames in talk.sent()] == [wire.HUGZ]
    talk.server(wire.HUGZ, b"", now=2.1)
    for now in (4.0, 6.0, 8.0):
        talk.session.on_deadline(now)
    assert talk.session.ready
    talk.session.on_deadline(8.2)
    assert not talk.session.ready
    assert json.loads(talk.asked[-1][3]) == {"avoid": ["tcp://a"]}


def test_questions_are_asked_again_at_another_server_with_a_tag_of_their_own():
    talk = Talk()
    question = talk.ask(0.0)
    talk.greeted(0.0)
    ((_, first, _),) = talk.sent()
    before = talk.session.connection
    talk.session.on_unlinked(1.0)
    assert (talk.session.address, talk.session.connection > before) == ("", True)
    talk.greeted(1.1, "tcp://b")
    ((word, second, left),) = talk.sent()
    assert (word, left) == (wire.SEARCH, b"98")
    assert first != second
    talk.server(wire.FOUND, first, b"old", now=1.2)
    assert talk.done == []
    talk.server(wire.FOUND, second, b"new", now=1.2)
    assert question.answer == (b"new",)


@pytest.mark.parametrize("how", ["silent", "refuses", "nonsense"])
def test_a_server_that_does_not_greet_is_left(how):
    talk = Talk()
    talk.ask(0.0)
    talk.broker(wire.HELLO, {"id": "s", "endpoint": "tcp://a"}, 0.0)
    talk.session.on_linked(0.0)
    if how == "silent":
        talk.session.on_deadline(GREETING_PATIENCE)
    elif how == "refuses":
        talk.server(wire.ERROR, b"", b"503", b"going", now=0.1)
    else:
        talk.server(wire.HELLO, b"", b"[]", now=0.1)
    assert talk.session.address == ""
    talk.session.on_deadline(10.0)
    assert json.loads(talk.asked[-1][3]) == {"avoid": ["tcp://a"]}


def test_leaving_says_goodbye_and_ends_what_is_open():
    talk = Talk()
    talk.ask(0.0)
    talk.greeted(0.0)
    talk.sent()
    talk.session.stop(0.0)
    assert [frames[0] for frames in talk.sent()] == [wire.BYE]
    assert [question.error.stage for question in talk.done] == [Stage.CLOSED]
    assert talk.ask(1.0).error.stage is Stage.CLOSED


class Broker:
    """A question to some brokers, and what came of it."""

    def __init__(self, *choices: str) -> None:
        self.heard: list = []
        self.session = BrokerSession(choices, (wire.HEADER, wire.HELLO, b"t"), 6.0, self._note)
        self.session.start(0.0)

    def _note(self, said, now: float) -> None:
        self.heard.append((said, now))


def test_brokers_are_asked_one_after_the_other_with_a_share_of_the_time_each():
    broker = Broker("tcp://a", "tcp://b", "tcp://c")
    session = broker.session
    assert (session.address, session.next_deadline()) == ("tcp://a", 2.0)
    session.on_linked(0.5)
    assert session.out == [(b"", wire.HEADER, wire.HELLO, b"t")]
    session.out.clear()
    session.on_deadline(2.0)
    assert (session.address, session.next_deadline()) == ("tcp://b", 4.0)
    session.on_nobody("nobody is at b", 2.1)
    assert (session.address, session.next_deadline(), session.connection) == ("tcp://c", 6.0, 3)
    session.on_linked(2.2)
    session.receive((b"", b"answer"), 2.3)
    session.on_deadline(6.0)
    session.stop(7.0)
    assert broker.heard == [((b"", b"answer"), 2.3)]
    assert session.ended


def test_silence_of_a_broker_is_told_apart_from_nobody_there():
    silent, none, closing = (Broker("tcp://a", "tcp://b") for _ in range(3))
    silent.session.on_nobody("nobody is at a", 0.1)
    silent.session.on_deadline(6.0)
    assert silent.heard == [(None, 6.0)]
    none.session.on_nobody("nobody is at a", 0.1)
    none.session.on_nobody("nobody is at b", 0.2)
    ((error, _),) = none.heard
    assert isinstance(error, NoBrokerError)
    assert error.problem.why == "nobody is at a; nobody is at b"
    closing.session.stop(1.0)
    assert closing.heard[0][0].stage is Stage.CLOSED


@given(
    st.lists(st.binary(max_size=20) | st.sampled_from([wire.HEADER, wire.HELLO, wire.ERROR, b"{}", b""]), max_size=6)
)
def test_any_message_is_taken(frames):
    talk = Talk()
    talk.ask(0.0)
    talk.session.on_broker(tuple(frames), 0.0)
    if not talk.session.address:
        talk.session.on_deadline(1.0)
        talk.broker(wire.HELLO, {"endpoint": "tcp://a"}, 1.0)
    talk.session.on_linked(1.0)
    talk.session.receive(tuple(frames), 1.0)
    talk.session.receive((b"", *frames), 1.0)
    assert talk.session.next_deadline() is not None


def test_who_asks_after_a_long_absence_of_the_broker_does_not_wait_for_the_pause_to_end():
    talk = Talk()
    now = 0.0
    for _ in range(6):  # until the pauses are long
        question = talk.ask(now, deadline=now + 0.5)
        talk.session.on_broker(None, now)
        talk.session.on_deadline(now + 0.5)
        assert question.error is not None
        now += 0.5
    asked = len(talk.asked)
    talk.ask(now)
    assert talk.session.next_deadline() <= now + FIRST_REST
    talk.session.on_deadline(now + FIRST_REST)
    assert len(talk.asked) == asked + 1
    talk.session.on_broker(None, now + FIRST_REST)
    talk.ask(now + FIRST_REST)  # somebody waits already, in the pauses that grow
    talk.greeted(now + 2 * FIRST_REST)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)
FRAMES = st.lists(ANYTHING.map(wire.to_json) | st.binary(max_size=9), max_size=3)
READERS = {
    wire.FOUND: read_result, wire.STATS: read_table, wire.LIST: read_list, wire.TOP: read_top,
    wire.SERVERS: read_servers, wire.ADVERT: read_advert, wire.DATA: partial(read_part, offset=0),
}  # fmt: skip


@given(st.sampled_from(sorted(READERS)), FRAMES)
def test_whatever_an_answer_holds_it_is_read_or_refused(word, rest):
    with contextlib.suppress(MusicError):
        read_answer((word, *rest), word, READERS[word], "tcp://a")


@given(
    st.dictionaries(st.sampled_from(["endpoint", "heartbeat_ms", "id"]), ANYTHING),
    st.lists(st.tuples(st.sampled_from([wire.HELLO, wire.FOUND, wire.ERROR, wire.BYE]), FRAMES), max_size=6),
)
def test_whatever_broker_and_server_say_a_question_ends_once(told, answers):
    talk = Talk()
    question = talk.ask(0.0, deadline=5.0)
    talk.broker(wire.HELLO, told, 0.1)
    talk.session.on_linked(0.1)
    for word, rest in answers:
        talk.server(word, question.tag, *rest, now=0.2)
        talk.session.on_linked(0.3)
    talk.session.on_deadline(6.0)
    assert talk.done == [question]
