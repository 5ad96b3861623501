"""The sessions of clients and workers on virtual time, against the real service."""

from __future__ import annotations

import json
from collections import deque
from random import Random

import pytest

from scale0_core.client.kit.sessions import Answer
from scale0_majordomo.client import (
    BrokerLostError,
    CallTimedOutError,
    ClosedError,
    RemoteError,
    Stage,
    TooManyError,
    UnavailableError,
    WorkerLostError,
)
from scale0_majordomo.client.codec import make_call
from scale0_majordomo.client.session import ClientSession, WorkerSession, WorkerState
from scale0_majordomo.dialects import Dialect
from scale0_majordomo.settings import ServiceSettings

from .test_client_world import Caller, Server, World

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


# --- calls ------------------------------------------------------------------------------------------------------------


def test_a_call_gets_the_reply_to_its_own_request():
    world = World()
    client, server = Caller(world), Server(world, credit=10)
    calls = [client.call("s", b"%d" % number) for number in range(3)]
    world.deliver()
    assert [request.body for request in server.requests] == [b"0", b"1", b"2"]
    server.requests.reverse()
    for number in (2, 1, 0):
        server.answer(b"reply", b"%d" % number)
    assert [outcome.reply for outcome in calls] == [(b"reply", b"%d" % number) for number in range(3)]
    assert calls[0].reply.body == b"reply0"
    assert calls[0].reply.text == "reply0"
    assert len(client.session.calls) == 0
    assert client.session.next_deadline() is None


def test_what_is_said_of_a_request_reaches_the_worker():
    world = World()
    client, server = Caller(world), Server(world)
    client.call("s", b"a", b"b", timeout=10, priority=3, key="k", retry=True, traceparent=TRACE)
    world.deliver()
    request = server.requests[0]
    assert request == (b"a", b"b")
    assert request.service == "s"
    assert request.traceparent == TRACE
    told = {"timeout": 9800, "priority": 3, "key": "k", "retry": True, "traceparent": TRACE}
    assert request.options == told
    server.answer()
    client.call()
    world.deliver()
    assert server.requests[0].options == {"timeout": 9800}
    assert server.requests[0].traceparent == ""


@pytest.mark.parametrize(
    "wrong",
    [{"timeout": 0}, {"priority": 1.5}, {"priority": 2**32}, {"key": "x" * 5000}, {"traceparent": "00-1"}],
)
def test_wrong_options_are_told_at_once(wrong):
    with pytest.raises(ValueError, match=r"timeout|priority|key|traceparent"):
        make_call("s", (b"",), **{"timeout": 1, **wrong})


@pytest.mark.parametrize("name", ["", "x" * 256])
def test_a_name_has_1_to_255_bytes(name):
    with pytest.raises(ValueError, match="255"):
        make_call(name, (b"",), timeout=1)
    with pytest.raises(TypeError):
        make_call("s", (5,), timeout=1)


def test_an_empty_body_is_one_empty_frame():
    assert make_call("s", (), timeout=1).body == (b"",)
    assert make_call("s", ("ä", bytearray(b"x")), timeout=1).body == ("ä".encode(), b"x")


def test_a_streamed_reply_comes_in_parts_or_as_a_whole():
    world = World()
    client, server = Caller(world), Server(world, credit=2)
    stream, whole = client.call(stream=True), client.call()
    world.deliver()
    for _ in range(2):
        server.part(b"1", seq=0)
        server.part(b"2", seq=1)
        server.end_parts(2, None)
    assert (stream.parts, stream.reply) == ([(b"1",), (b"2",)], ())
    assert whole.reply == (b"1", b"2")


def test_a_hole_in_a_streamed_reply_is_noticed():
    world = World()
    client, server = Caller(world), Server(world, credit=2)
    first, second = client.call(stream=True), client.call()
    world.deliver()
    server.part(b"1", seq=0)
    server.part(b"3", seq=2)
    assert isinstance(first.error, BrokerLostError)
    assert first.error.stage is Stage.REPLY
    assert [request.cancelled for request in server.requests] == [True, False]
    server.requests.pop(0)
    server.part(b"1", seq=0)
    server.end_parts(2, b"y")
    assert isinstance(second.error, BrokerLostError)


def test_errors_of_workers_are_errors():
    world = World()
    client, server = Caller(world), Server(world)
    for code in (500, 555):
        outcome = client.call()
        world.deliver()
        server.fail(code, "no\x1b[2J")
        assert isinstance(outcome.error, RemoteError)
        assert (outcome.error.code, outcome.error.message) == (code, "no\x1b[2J")
        assert "\x1b" not in str(outcome.error)
        assert outcome.error.service == "s"


def test_too_many_requests_are_refused_and_with_retry_tried_again():
    world = World(default=ServiceSettings(max_queue=1))
    client = Caller(world)
    first, second, third = client.call(), client.call(), client.call(retry=True)
    world.deliver()
    assert isinstance(second.error, TooManyError)
    assert second.error.code == 429
    assert third.error is None
    client.session.cancel(first.call)
    client.line.follow()
    server = Server(world)
    world.sleep(2.5)
    server.answer()
    assert third.reply == (b"y",)
    assert first.count == 0


def test_what_is_refused_to_the_end_of_its_time_says_why():
    world = World(default=ServiceSettings(max_queue=0))
    outcome = Caller(world).call(retry=True, timeout=1)
    world.sleep(2)
    assert isinstance(outcome.error, TooManyError)


# --- time and cancelling ----------------------------------------------------------------------------------------------


def test_a_call_without_a_connection_ends_in_time_and_says_so():
    world = World()
    world.script = None
    outcome = Caller(world).call(timeout=1.0)
    world.sleep(0.98)
    assert outcome.count == 0
    world.sleep(0.03)
    assert isinstance(outcome.error, CallTimedOutError)
    assert outcome.error.stage is Stage.CONNECTING
    assert outcome.error.problem.consequence == "nothing was sent"
    assert outcome.error.exit_code == 69


def test_the_broker_tells_of_a_timeout_first_since_it_knows_more():
    world = World()
    client = Caller(world)
    waiting = client.call("nobody", timeout=1)
    server = Server(world)
    worked_on = client.call("s", timeout=1)
    world.sleep(0.81)
    for outcome, where in ((waiting, "waited for a worker"), (worked_on, "was worked on")):
        assert isinstance(outcome.error, CallTimedOutError)
        assert outcome.error.code == 408
        assert where in outcome.error.problem.why
    assert server.cancelled == server.requests
    assert server.requests[0].cancelled


def test_a_broker_that_says_nothing_is_told_from_one_without_a_worker():
    world = World()
    client = Caller(world)
    outcome = client.call(timeout=1)
    client.line.there.clear()  # the broker hangs
    world.sleep(1.01)
    assert isinstance(outcome.error, CallTimedOutError)
    assert outcome.error.stage is Stage.BROKER
    assert "may have been" in outcome.error.problem.consequence


def test_a_call_that_timed_out_is_cancelled():
    world = World()
    client, server = Caller(world), Server(world)
    client.call(timeout=1)
    world.deliver()
    request = server.requests[0]
    client.line.back = deque(maxlen=0)  # what the broker says gets lost
    world.sleep(1.1)
    assert request.cancelled
    assert client.line.said[-1][:2] == (b"S0MC01", b"\x05")


def test_a_cancelled_call_reaches_the_worker_and_its_late_reply_nobody():
    world = World()
    client, server = Caller(world), Server(world)
    outcome = client.call()
    world.deliver()
    client.session.cancel(outcome.call)
    client.line.follow()
    world.deliver()
    assert server.requests[0].cancelled
    late = client.session.calls.late
    server.answer(b"late")
    next_one = client.call()
    world.deliver()
    server.answer(b"right")
    assert outcome.count == 0
    assert next_one.reply == (b"right",)
    assert client.session.calls.late == late  # the broker throws it away already
    client.session.cancel(outcome.call)  # again, which is nothing


def test_a_client_that_is_closed_cancels_its_calls():
    world = World()
    client, server = Caller(world), Server(world)
    sent = client.call()
    world.deliver()
    client.session.stop(world.now)
    client.line.follow()
    world.deliver()
    assert isinstance(sent.error, ClosedError)
    assert server.requests[0].cancelled


# --- lost connections -------------------------------------------------------------------------------------------------


def test_after_a_lost_connection_only_what_may_be_repeated_is_sent_again():
    world = World()
    client, server = Caller(world), Server(world, credit=10)
    once, twice, streamed = client.call(), client.call(retry=True), client.call(retry=True, stream=True)
    world.deliver()
    server.session.part(server.requests[2], 0, (b"part",), world.now)
    server.line.follow()
    world.deliver()
    assert streamed.parts == [(b"part",)]
    client.line.break_()
    for outcome in (once, streamed):
        assert isinstance(outcome.error, BrokerLostError)
        assert "unknown" in outcome.error.problem.consequence
        assert outcome.error.code == 0
    assert twice.count == 0
    before = len(server.requests)
    world.sleep(1)
    assert len(server.requests) == before + 1
    del server.requests[:before]
    server.answer(b"again")
    assert twice.reply == (b"again",)


def test_what_was_not_sent_waits_for_the_next_connection():
    world = World()
    client = Caller(world)
    world.kill()
    outcome = client.call()
    world.sleep(1)
    world.start()
    server = Server(world)
    world.sleep(1)
    server.answer()
    assert outcome.reply == (b"y",)


def test_a_call_is_sent_again_only_so_often():
    world = World()
    client = Caller(world, retries=2)
    outcome = client.call(retry=True, timeout=100)
    for _ in range(2):
        client.line.break_()
        world.sleep(1)
        assert outcome.count == 0
    client.line.break_()
    assert isinstance(outcome.error, BrokerLostError)


def test_a_broker_that_stops_says_so():
    world = World()
    client = Caller(world)
    once, twice = client.call(), client.call(retry=True)
    world.deliver()
    world.stop()
    assert isinstance(once.error, UnavailableError)
    assert twice.count == 0
    world.start()
    server = Server(world)
    world.sleep(1)
    server.answer()
    assert twice.reply == (b"y",)


def test_a_request_survives_its_worker():
    world = World()
    client = Caller(world)
    first, second = Server(world), Server(world)
    outcome, kept = client.call(), client.call(retry=False)
    world.deliver()
    assert len(first.requests) == len(second.requests) == 1
    both = {id(first): first, id(second): second}
    holder = next(each for each in both.values() if each.requests[0].options.get("retry") is None)
    other = next(each for each in both.values() if each is not holder)
    other.answer(b"kept")
    assert kept.reply == (b"kept",)
    holder.line.break_()
    assert holder.requests[0].cancelled
    world.sleep(0.2)
    other.answer(b"by the other")
    assert outcome.reply == (b"by the other",)
    last = client.call(retry=False)
    world.sleep(0.2)
    (other if other.requests else holder).line.break_()
    world.sleep(0.2)
    assert isinstance(last.error, WorkerLostError)


@pytest.mark.parametrize(
    "frames",
    [
        (b"",),
        (b"S0MC01",),
        (b"S0MC01", b"\x03"),
        (b"S0MC01", b"\x03", b"id", b"s"),
        (b"S0MC01", b"\x09", b"", b"", b""),
    ],
)
def test_messages_that_make_no_sense_are_counted(frames):
    session = ClientSession("here", random=Random(1))
    session.receive(frames, 0.0)
    assert session.malformed == 1
    worker = WorkerSession("here", "s", begin=lambda _: None, cancel=lambda _: None, random=Random(1))
    for wrong in ((b"",), (b"S0MW01",), (b"S0MW01", b"\x02", b"a", b"s", b""), (b"S0MW01", b"\x08"), (b"S0MW01", b"x")):
        worker.receive(wrong, 0.0)
    assert worker.malformed == 5


# --- workers ----------------------------------------------------------------------------------------------------------


def test_a_worker_is_serving_when_the_broker_has_taken_it():
    world = World()
    server = Server(world, credit=7)
    assert server.session.state is WorkerState.SERVING
    client = Caller(world)
    told = client.call("mmi.workers", b"")
    world.deliver()
    assert [(row["service"], row["credit"]) for row in json.loads(told.reply[1])] == [("s", 7)]


def test_heartbeats_go_on_while_a_request_is_worked_on():
    world = World()
    client, server = Caller(world), Server(world)
    outcome = client.call(timeout=200)
    world.sleep(100)
    beats = [frames for frames in server.line.said if frames == (b"S0MW01", b"\x05")]
    assert 35 <= len(beats) <= 40
    server.answer()
    assert outcome.reply == (b"y",)
    assert server.line.peer == b"peer-2"  # it is the same connection


def test_an_idle_worker_stays_however_slow_the_brokers_heartbeats_are():
    world = World(heartbeat=60.0)
    server = Server(world)
    world.sleep(300)
    assert server.line.peer == b"peer-1"
    assert server.session.state is WorkerState.SERVING


def test_a_worker_leaves_a_broker_that_is_silent_and_comes_back():
    world = World()
    server = Server(world)
    server.line.there = deque(maxlen=0)  # nothing arrives
    server.line.back = deque(maxlen=0)
    world.sleep(7.5)
    assert server.session.state is not WorkerState.SERVING
    assert "silent" in server.session.fault.problem.why
    server.line.there, server.line.back = deque(), deque()
    world.sleep(1)
    assert server.session.state is WorkerState.SERVING
    assert server.session.fault is None
    assert server.line.peer == b"peer-2"


def test_a_worker_that_is_unknown_begins_anew_on_another_connection():
    world = World()
    server = Server(world)
    world.start()  # another broker, on the same connection: it does not know the worker
    world.sleep(3)
    assert server.line.peer == b"peer-2"
    assert server.session.state is WorkerState.SERVING


def test_a_worker_that_is_refused_waits_longer_each_time():
    world = World(max_services=1)
    Server(world, "taken")
    server = Server(world, "one too many")
    world.sleep(60)
    assert 10 < world.peers < 30
    assert server.session.fault is not None
    assert "sent it away" in server.session.fault.problem.why


def test_a_worker_comes_back_to_a_broker_that_was_restarted():
    world = World()
    client, server = Caller(world), Server(world)
    world.stop()
    world.sleep(10)
    world.start()
    world.sleep(6)
    assert server.session.state is WorkerState.SERVING
    outcome = client.call()
    world.deliver()
    server.answer()
    assert outcome.reply == (b"y",)


def test_a_worker_that_drains_finishes_what_it_has_and_others_get_the_rest():
    world = World()
    client, server = Caller(world), Server(world)
    first, second = client.call(), client.call()
    world.deliver()
    server.session.drain(world.now)
    assert server.session.state is WorkerState.SERVING
    server.answer(b"done")
    assert first.reply == (b"done",)
    assert server.session.state is WorkerState.LEFT
    assert server.requests == []
    other = Server(world)
    world.sleep(0.1)
    other.answer(b"by another")
    assert second.reply == (b"by another",)


def test_what_crosses_the_word_of_a_draining_worker_goes_to_others_at_no_cost():
    world = World(default=ServiceSettings(resend=False))
    client, server = Caller(world), Server(world, credit=3)
    first = client.call("s", b"1")
    world.deliver()
    server.session.drain(world.now)  # nothing has left yet
    second, third = client.call("s", b"2"), client.call("s", b"3")
    world.deliver()
    assert [request.body for request in server.requests] == [b"1"]
    other = Server(world, credit=2)
    world.deliver()
    assert [request.body for request in other.requests] == [b"2", b"3"], "though nothing is repeated here"
    server.answer(b"first")
    assert server.session.state is WorkerState.LEFT
    for reply in (b"second", b"third"):
        other.answer(reply)
    assert [call.reply for call in (first, second, third)] == [(b"first",), (b"second",), (b"third",)]
    assert world.script.service.totals()["failed"] == 0


@pytest.mark.parametrize("end", ["drain", "stop"])
def test_an_idle_worker_that_leaves_costs_nobody_a_try(end):
    world = World(default=ServiceSettings(resend=False))
    client, server = Caller(world), Server(world)
    getattr(server.session, end)(world.now)
    outcome = client.call()
    world.deliver()
    other = Server(world)
    world.deliver()
    other.answer(b"by another")
    assert (server.requests, outcome.reply) == ([], (b"by another",))


def test_a_worker_of_a_stock_broker_has_no_word_for_draining():
    world = World()
    client, server = Caller(world), Server(world, dialect=Dialect.MDP02)
    outcome = client.call()
    world.deliver()
    server.session.drain(world.now)
    assert server.session.out == []
    server.answer(b"done")
    assert outcome.reply == (b"done",)
    assert world.script.service.totals()["malformed"] == 0


def test_a_worker_that_stops_gives_back_what_it_has():
    world = World()
    client, server = Caller(world), Server(world)
    outcome = client.call()
    world.deliver()
    server.session.stop(world.now)
    server.line.follow()
    assert server.requests[0].cancelled
    other = Server(world)
    world.sleep(0.1)
    other.answer()
    assert outcome.reply == (b"y",)
    server.session.answer(server.requests[0], Answer(frames=(b"too late",)), world.now)
    assert server.session.out == []


def test_a_draining_worker_whose_connection_breaks_has_left():
    world = World()
    client, server = Caller(world), Server(world)
    client.call()
    world.deliver()
    server.session.drain(world.now)
    server.line.break_()
    assert server.session.state is WorkerState.LEFT


# --- stock brokers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of_client", list(Dialect))
@pytest.mark.parametrize("of_worker", list(Dialect))
def test_all_dialects_work_together(of_client, of_worker):
    world = World()
    client, server = Caller(world, dialect=of_client), Server(world, dialect=of_worker)
    assert server.session.state is WorkerState.SERVING
    calls = [client.call("s", b"a", b"%d" % number) for number in range(3)]
    world.deliver()
    for number in range(3):
        assert server.requests[0] == (b"a", b"%d" % number)
        server.answer(b"b", b"%d" % number)
    assert [outcome.reply for outcome in calls] == [(b"b", b"%d" % number) for number in range(3)]
    world.sleep(60)
    assert world.peers == 2


@pytest.mark.parametrize("dialect", [Dialect.MDP01, Dialect.MDP02])
def test_without_ids_a_late_reply_is_not_taken_for_another(dialect):
    world = World()
    client, server = Caller(world, dialect=dialect), Server(world)
    late, right = client.call("s", b"1", timeout=1), client.call("s", b"2", timeout=5)
    world.sleep(1.1)
    assert isinstance(late.error, CallTimedOutError)
    server.answer(b"late")
    world.sleep(1)
    server.answer(b"right")
    assert right.reply == (b"right",)


@pytest.mark.parametrize("dialect", [Dialect.MDP01, Dialect.MDP02])
def test_without_errors_a_handler_that_fails_is_a_worker_that_died(dialect):
    world = World(default=ServiceSettings(max_tries=2))
    client, server = Caller(world), Server(world, dialect=dialect)
    outcome = client.call()
    world.deliver()
    server.fail(500, "no")
    world.sleep(1)
    server.fail(500, "no")
    world.sleep(1)
    assert isinstance(outcome.error, WorkerLostError)
    assert server.session.state is WorkerState.SERVING
