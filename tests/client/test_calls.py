"""Open calls on virtual time: numbers, deadlines, stages, sending again."""

from __future__ import annotations

import gc
import json
import weakref
from itertools import pairwise
from random import Random

import pytest

from scale0_core.client.frontend import LARGEST_FRAME, ClientSession, check_call
from scale0_core.client.kit.calls import Call, Reply
from scale0_core.client.kit.errors import (
    BrokerLostError,
    CallError,
    CallTimedOutError,
    ClosedError,
    NoServiceError,
    RemoteError,
    Stage,
    TooLargeError,
    TooManyError,
    UnavailableError,
)
from scale0_core.client.kit.route import Place, Route
from scale0_core.protocol import messages as wire


class Outcome:
    def __init__(self) -> None:
        self.parts: list[Reply] = []
        self.replies: list[Reply] = []
        self.errors: list[CallError] = []

    def final(self, reply: Reply) -> None:
        self.replies.append(reply)

    def fail(self, error: CallError) -> None:
        self.errors.append(error)

    @property
    def ends(self) -> int:
        return len(self.replies) + len(self.errors)


class Desk:
    """Calls and a clock."""

    def __init__(self, retries: int = 3, *, online: bool = True) -> None:
        self.session = ClientSession(Route(Place("ipc://somewhere")), identity="me", retries=retries, random=Random(1))
        self.calls, self.out = self.session.calls, self.session.out
        self.now = 100.0
        if online:
            self.calls.connected(self.now)

    def open(self, service: str = "echo", *payload: bytes, timeout: float = 10.0, **options) -> Outcome:
        outcome = Outcome()
        if options.pop("streams", False):
            options["on_part"] = outcome.parts.append
        self.calls.open(Call(service, payload, outcome, timeout=timeout, **options), self.now)
        return outcome

    def sent(self) -> list:
        taken, self.out[:] = list(self.out), []
        return taken

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.calls.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.calls.on_deadline(self.now)
        self.now = end

    def reply(self, frames, *payload: bytes, **options) -> None:
        options = wire.write_options(options)
        self.session.receive((wire.FRONTEND, wire.TASKREPLY, options, *frames[3:5], *payload), self.now)

    def error(self, frames, code: int) -> None:
        options = wire.write_options(code=code, message="so it is")
        self.session.receive((wire.FRONTEND, wire.ERROR, options, *frames[3:5]), self.now)


def test_a_call_is_a_task_with_a_timeout_a_little_shorter_than_the_callers():
    desk = Desk()
    desk.open("echo", b"a", b"b", timeout=10.0)
    ((header, command, options, service, number, *payload),) = desk.sent()
    assert (header, command, service, payload) == (b"S0C01", b"TASK", b"echo", [b"a", b"b"])
    assert json.loads(options) == {"timeout": 9800}
    assert len(number) == 8


def test_a_call_that_may_be_repeated_says_so():
    desk = Desk()
    desk.open(retry=True)
    assert json.loads(desk.sent()[0][2])["retry"] is True


def test_replies_go_to_the_calls_they_belong_to_in_any_order():
    desk = Desk()
    outcomes = [desk.open("echo", b"%d" % number) for number in range(5)]
    for frames in reversed(desk.sent()):
        desk.reply(frames, b"re:" + frames[5])
    assert [outcome.replies for outcome in outcomes] == [[(b"re:%d" % number,)] for number in range(5)]
    assert len(desk.calls) == 0
    assert desk.calls.next_deadline() is None


def test_a_call_that_is_over_is_let_go_long_before_its_deadline():
    desk = Desk()
    answered, unwanted = (Call("echo", (bytes(1000),), Outcome(), timeout=3600.0) for _ in range(2))
    gone = [weakref.ref(call.sink) for call in (answered, unwanted)]
    for call in (answered, unwanted):
        desk.calls.open(call, desk.now)
    first, second = desk.sent()
    desk.reply(first, b"re")
    desk.calls.cancel(unwanted)
    assert desk.sent() == [(b"S0C01", b"CANCEL", b"", b"echo", second[4])]
    del answered, unwanted, call
    gc.collect()
    assert [sink() for sink in gone] == [None, None]


def test_a_call_ends_once_whatever_comes_later():
    desk = Desk()
    outcome = desk.open(timeout=1.0)
    (frames,) = desk.sent()
    desk.sleep(2.0)
    desk.reply(frames, b"late")
    desk.error(frames, 504)
    assert outcome.ends == 1
    assert desk.calls.late == 2


def test_a_late_reply_is_not_taken_for_the_next_call():
    desk = Desk()
    first = desk.open(timeout=1.0)
    (late,) = desk.sent()
    desk.sleep(2.0)
    second = desk.open()
    desk.reply(late, b"for the first")
    assert isinstance(first.errors[0], CallTimedOutError)
    assert second.ends == 0
    cancel, task = desk.sent()
    assert cancel[1:] == (b"CANCEL", b"", b"echo", late[4])
    desk.reply(task, b"for the second")
    assert second.replies == [(b"for the second",)]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (404, NoServiceError),
        (413, TooLargeError),
        (429, TooManyError),
        (503, UnavailableError),
        (504, CallTimedOutError),
    ],
)
def test_every_code_has_an_error_of_its_own(code: int, kind: type[CallError]):
    desk = Desk()
    outcome = desk.open()
    desk.error(desk.sent()[0], code)
    (error,) = outcome.errors
    assert type(error) is kind
    assert (error.code, error.service, error.stage) == (kind.code, "echo", Stage.WORKER)
    assert "so it is" in str(error)
    assert "ipc://somewhere" in str(error)


def test_an_unknown_code_is_an_error_too():
    desk = Desk()
    outcome = desk.open()
    desk.error(desk.sent()[0], 599)
    assert outcome.errors[0].code == 599


def test_a_failure_of_the_worker_is_a_remote_error():
    desk = Desk()
    outcome = desk.open()
    desk.reply(desk.sent()[0], code=500, message="ValueError: no")
    (error,) = outcome.errors
    assert isinstance(error, RemoteError)
    assert (error.code, error.message, error.stage) == (500, "ValueError: no", Stage.REPLY)


# --- deadlines and stages ---------------------------------------------------------------------------------------------


def test_a_call_ends_at_its_deadline_and_not_later():
    desk = Desk()
    outcome = desk.open(timeout=3.0)
    desk.sleep(2.98)
    assert outcome.ends == 0
    desk.sleep(0.02)
    assert isinstance(outcome.errors[0], CallTimedOutError)


def test_without_a_connection_it_was_connecting():
    desk = Desk(online=False)
    outcome = desk.open(timeout=3.0)
    desk.sleep(3.0)
    (error,) = outcome.errors
    assert error.stage is Stage.CONNECTING
    assert "3 s" in str(error)
    assert "connecting to the broker" in str(error)
    assert "ipc://somewhere" in str(error)
    assert desk.sent() == []


def test_with_a_silent_broker_it_was_waiting_for_the_broker():
    desk = Desk()
    outcome = desk.open(timeout=3.0)
    desk.sleep(3.0)
    assert outcome.errors[0].stage is Stage.BROKER


def test_with_a_broker_that_speaks_it_was_waiting_for_a_worker():
    desk = Desk()
    outcome = desk.open(timeout=3.0)
    desk.sleep(1.0)
    desk.calls.heard = desk.now
    desk.sleep(2.0)
    assert outcome.errors[0].stage is Stage.WORKER


def test_with_parts_of_a_reply_it_was_receiving_it():
    desk = Desk()
    outcome = desk.open(timeout=3.0, streams=True)
    desk.reply(desk.sent()[0], b"part", more=True)
    desk.sleep(3.0)
    assert outcome.parts == [(b"part",)]
    assert outcome.errors[0].stage is Stage.REPLY


# --- streams ----------------------------------------------------------------------------------------------------------


def test_parts_come_one_by_one_and_the_end_has_none():
    desk = Desk()
    outcome = desk.open(streams=True)
    (frames,) = desk.sent()
    for seq, text in enumerate((b"a", b"b")):
        desk.reply(frames, text, more=True, seq=seq)
    desk.reply(frames, seq=2)
    assert outcome.parts == [(b"a",), (b"b",)]
    assert outcome.replies == [()]


def test_a_call_collects_the_parts():
    desk = Desk()
    outcome = desk.open()
    (frames,) = desk.sent()
    desk.reply(frames, b"a", b"b", more=True, seq=0)
    desk.reply(frames, b"c", more=True, seq=1)
    desk.reply(frames, seq=2)
    assert outcome.replies == [(b"a", b"b", b"c")]
    assert outcome.replies[0].body == b"abc"


def test_a_worker_that_does_not_count_its_parts_is_understood():
    desk = Desk()
    outcome = desk.open()
    (frames,) = desk.sent()
    desk.reply(frames, b"a", more=True)
    desk.reply(frames, b"b")
    assert outcome.replies == [(b"a", b"b")]


def test_a_hole_in_a_stream_is_an_error():
    desk = Desk()
    outcome = desk.open(streams=True)
    (frames,) = desk.sent()
    desk.reply(frames, b"a", more=True, seq=0)
    desk.reply(frames, b"c", more=True, seq=2)
    assert isinstance(outcome.errors[0], BrokerLostError)
    assert "1 parts are missing" in str(outcome.errors[0])


# --- sending again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [404, 429, 503])
def test_a_repeatable_call_is_sent_again_after_a_pause(code: int):
    desk = Desk()
    outcome = desk.open(retry=True)
    (first,) = desk.sent()
    desk.error(first, code)
    assert desk.sent() == []
    desk.sleep(0.2)
    (second,) = desk.sent()
    assert second[4] != first[4]
    desk.reply(second, b"done")
    assert outcome.replies == [(b"done",)]


def test_pauses_grow_and_end_in_the_last_error():
    desk = Desk(retries=3)
    outcome = desk.open(retry=True)
    moments = []
    while not outcome.ends:
        for frames in desk.sent():
            moments.append(desk.now)
            desk.error(frames, 503)
        desk.sleep(0.01)
    pauses = [after - before for before, after in pairwise(moments)]
    assert len(moments) == 4
    for pause, longest in zip(pauses, (0.1, 0.2, 0.4), strict=True):
        assert longest / 2 <= pause <= longest + 0.03
    assert isinstance(outcome.errors[0], UnavailableError)


def test_the_pauses_of_many_differ():
    desk = Desk()
    for _ in range(20):
        desk.open(retry=True)
    for frames in desk.sent():
        desk.error(frames, 503)
    sizes = set()
    for _ in range(10):
        desk.sleep(0.01)
        sizes.add(len(desk.sent()))
    assert len(sizes) > 2


def test_a_deadline_during_the_pauses_gives_the_last_error():
    desk = Desk(retries=100)
    outcome = desk.open(retry=True, timeout=1.0)
    for _ in range(100):
        for frames in desk.sent():
            desk.error(frames, 404)
        desk.sleep(0.01)
    assert isinstance(outcome.errors[0], NoServiceError)


def test_any_other_call_is_sent_once():
    desk = Desk()
    outcome = desk.open()
    desk.error(desk.sent()[0], 503)
    desk.sleep(5.0)
    assert desk.sent() == []
    assert outcome.ends == 1


def test_a_lost_connection_ends_calls_that_may_not_be_repeated():
    desk = Desk()
    once, again, later = desk.open(), desk.open(retry=True), None
    first = desk.sent()
    desk.calls.disconnected()
    (error,) = once.errors
    assert isinstance(error, BrokerLostError)
    assert "may have been carried out" in str(error)
    later = desk.open()
    assert desk.sent() == []
    desk.calls.connected(desk.now)
    sent = desk.sent()
    assert len(sent) == 2
    desk.reply(first[1], b"from the old connection")
    assert again.ends == 0
    for frames in sent:
        desk.reply(frames, b"ok")
    assert again.replies == later.replies == [(b"ok",)]


def test_time_without_a_connection_counts():
    desk = Desk(online=False)
    desk.open(timeout=10.0)
    desk.sleep(4.0)
    desk.calls.connected(desk.now)
    assert json.loads(desk.sent()[0][2]) == {"timeout": 5800}


def test_a_stream_that_has_begun_is_not_started_anew():
    desk = Desk()
    outcome = desk.open(retry=True, streams=True)
    desk.reply(desk.sent()[0], b"a", more=True, seq=0)
    desk.calls.disconnected()
    assert isinstance(outcome.errors[0], BrokerLostError)


def test_a_collected_reply_is_started_anew_from_the_beginning():
    desk = Desk()
    outcome = desk.open(retry=True)
    desk.reply(desk.sent()[0], b"lost", more=True, seq=0)
    desk.calls.disconnected()
    desk.calls.connected(desk.now)
    (frames,) = desk.sent()
    desk.reply(frames, b"whole", more=True, seq=0)
    desk.reply(frames, seq=1)
    assert outcome.replies == [(b"whole",)]


def test_after_a_silence_repeatable_calls_are_sent_again_unless_a_reply_comes():
    desk = Desk()
    answered, lost, once = desk.open(retry=True), desk.open(retry=True), desk.open()
    first, second, _ = desk.sent()
    desk.sleep(3.0)
    desk.calls.resume(desk.now)
    desk.reply(first, b"was there after all")
    desk.sleep(0.6)
    (again,) = desk.sent()
    desk.reply(second, b"late")
    desk.reply(again, b"twice")
    assert answered.replies == [(b"was there after all",)]
    assert lost.replies == [(b"late",)]
    assert once.ends == 0


def test_closing_ends_all():
    desk = Desk()
    outcomes = [desk.open() for _ in range(3)]
    desk.calls.close(ClosedError("closed"))
    assert [type(outcome.errors[0]) for outcome in outcomes] == [ClosedError] * 3
    assert desk.calls.next_deadline() is None


def test_a_forgotten_call_gets_nothing_more():
    desk = Desk()
    outcome = Outcome()
    call = Call("echo", (), outcome, timeout=1.0)
    desk.calls.open(call, desk.now)
    desk.calls.cancel(call)
    desk.reply(desk.sent()[0], b"x")
    desk.sleep(2.0)
    assert outcome.ends == 0


def test_nothing_is_left_of_many_calls_under_faults():
    """Every call ends exactly once, whatever happens, and leaves nothing behind."""
    random = Random(7)
    desk = Desk(retries=2)
    outcomes = []
    known: list = []
    for _ in range(3000):
        chance = random.random()
        if chance < 0.4:
            outcomes.append(desk.open(timeout=random.uniform(0.1, 3), retry=random.random() < 0.5))
        elif chance < 0.7 and known:
            desk.reply(random.choice(known), b"x", **random.choice([{}, {"more": True}, {"code": 500, "message": ""}]))
        elif chance < 0.8 and known:
            desk.error(random.choice(known), random.choice([404, 429, 503, 504]))
        elif chance < 0.85:
            desk.calls.disconnected()
        elif chance < 0.9:
            desk.calls.connected(desk.now)
        elif chance < 0.92:
            desk.calls.resume(desk.now)
        else:
            desk.sleep(random.uniform(0, 0.3))
        known = [*known, *desk.sent()][-50:]
        assert all(outcome.ends <= 1 for outcome in outcomes[-60:])
    desk.sleep(4.0)
    assert [outcome.ends for outcome in outcomes] == [1] * len(outcomes)
    assert len(desk.calls) == 0
    assert desk.calls._by_ident == {}
    assert desk.calls.next_deadline() is None


# --- what may be sent -------------------------------------------------------------------------------------------------


def test_payloads_are_bytes():
    assert check_call("echo", [b"a", bytearray(b"b"), memoryview(b"c")]) == (b"a", b"b", b"c")
    with pytest.raises(TypeError, match="a payload is bytes, not str"):
        check_call("echo", ["text"])


@pytest.mark.parametrize("service", ["", "x" * 256])
def test_services_have_names(service: str):
    with pytest.raises(ValueError, match="the name of a service"):
        check_call(service, [])


@pytest.mark.parametrize("payload", [[b"x" * (LARGEST_FRAME + 1)], [b""] * 25])
def test_what_is_too_large_is_not_sent(payload: list[bytes]):
    with pytest.raises(TooLargeError) as caught:
        check_call("echo", payload)
    assert caught.value.code == 413


# --- cancelling -------------------------------------------------------------------------------------------------------


def cancelled(desk: Desk) -> list[bytes]:
    """Give the ids of the tasks that the broker is told to cancel."""
    return [frames[4] for frames in desk.sent() if frames[:3] == (b"S0C01", b"CANCEL", b"") and frames[3] == b"echo"]


def test_who_cancels_a_call_has_the_broker_told_once():
    desk = Desk()
    call = Call("echo", (), Outcome(), timeout=10.0)
    desk.calls.open(call, desk.now)
    ((*_, number),) = desk.sent()
    desk.calls.cancel(call)
    desk.calls.cancel(call)
    assert cancelled(desk) == [number]
    assert (len(desk.calls), desk.calls.next_deadline()) == (0, None)


def test_a_call_whose_time_is_up_is_cancelled():
    desk = Desk()
    desk.open(timeout=1.0)
    ((*_, number),) = desk.sent()
    desk.sleep(1.1)
    assert cancelled(desk) == [number]


@pytest.mark.parametrize("how", ["reply", "parts", "remote error", "error", "ping", "close"])
def test_what_is_over_or_ends_with_the_connection_is_not_cancelled(how: str):
    desk = Desk()
    desk.open("" if how == "ping" else "echo", timeout=1.0)
    (frames,) = desk.sent()
    if how == "reply":
        desk.reply(frames, b"x")
    elif how == "parts":
        desk.reply(frames, b"x", more=True, seq=0)
        desk.reply(frames, seq=1)
    elif how == "remote error":
        desk.reply(frames, code=500, message="no")
    elif how == "error":
        desk.error(frames, 504)
    elif how == "close":
        desk.calls.close(ClosedError("closed"))
    desk.sleep(2.0)
    assert len(desk.calls) == 0
    assert desk.sent() == []


def test_a_stream_with_a_hole_is_cancelled():
    desk = Desk()
    outcome = desk.open(streams=True)
    (frames,) = desk.sent()
    desk.reply(frames, b"x", more=True, seq=0)
    desk.reply(frames, b"x", more=True, seq=2)
    assert isinstance(outcome.errors[0], BrokerLostError)
    assert cancelled(desk) == [frames[4]]


def test_what_was_sent_twice_is_cancelled_where_it_was_not_answered():
    desk = Desk()
    outcome = desk.open(retry=True)
    (first,) = desk.sent()
    desk.calls.resume(desk.now)
    desk.sleep(1.0)
    (second,) = desk.sent()
    desk.reply(second, b"x")
    assert outcome.replies == [(b"x",)]
    assert cancelled(desk) == [first[4]]


def test_without_a_connection_nobody_is_told():
    desk = Desk()
    call = Call("echo", (), Outcome(), timeout=10.0, retry=True)
    desk.calls.open(call, desk.now)
    desk.sent()
    desk.calls.disconnected()
    desk.calls.cancel(call)
    desk.calls.connected(desk.now)
    assert desk.sent() == []
