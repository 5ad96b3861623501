"""The express in C and the service in Python do the same; and without the express all goes on as before."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.testing.frames import as_delivered
from scale0_majordomo.service import express, queues, records
from scale0_majordomo.service.express import make_express
from scale0_majordomo.service.majordomo import SOCKET

from .conversation import conserved, make_service

native = pytest.mark.skipif(make_express is None, reason="the plugin was built without a compiler")

WORKERS = [b"\0w%d" % number for number in range(3)]
CLIENTS = [b"\0c%d" % number for number in range(2)]
BODIES = [(b"x",), (b"x" * 100, b"y"), (b"z" * 9000,)]

requests = st.tuples(
    st.sampled_from(CLIENTS),
    st.sampled_from([(b"", b"MDPC01"), (b"MDPC02", b"\1"), (b"", b"MDPC01", b"mmi.service")]),
    st.sampled_from([b"echo", b"echo", b"nobody"]),
    st.sampled_from(BODIES),
).map(lambda parts: (parts[0], *parts[1], parts[2], *parts[3]))
readies = st.tuples(
    st.sampled_from(WORKERS),
    st.sampled_from([(b"", b"MDPW01", b"\1"), (b"MDPW02", b"\1"), (b"S0MW01", b"\1")]),
).map(lambda parts: (parts[0], *parts[1], b"echo"))
replies = st.tuples(
    st.sampled_from(WORKERS),
    st.sampled_from([((b"", b"MDPW01"), b"\3"), ((b"MDPW02",), b"\4"), ((b"MDPW02",), b"\3"), ((b"S0MW01",), b"\4")]),
    st.integers(1, 12),
    st.sampled_from(BODIES),
).map(lambda parts: (parts[0], *parts[1][0], parts[1][1], b"%d" % parts[2], b"", *parts[3]))
others = st.tuples(
    st.sampled_from(WORKERS),
    st.sampled_from(
        [(b"", b"MDPW01", b"\4"), (b"", b"MDPW01", b"\5"), (b"MDPW02", b"\6"), (b"", b"MDPC01"), (b"", b"")]
    ),
).map(lambda parts: (parts[0], *parts[1]))
messages = st.one_of(requests, requests, readies, replies, replies, others)


def plain(effects):
    """Give effects as they can be compared: blobs as bytes."""
    return [(socket, tuple(map(bytes, frames))) for socket, frames in effects]


def figures(service):
    """Give all that the express may change."""
    waiting = {name: (one.waiting, one.queue_bytes, one.next_due) for name, one in service._services.items()}
    hands = {
        peer: (sorted(worker.in_hand), worker.heard, worker.sent, worker.queued)
        for peer, worker in service._workers.items()
    }
    return service.totals(), waiting, hands, service._sweep_due


@native
@given(st.lists(st.lists(messages, max_size=12), max_size=12), st.sampled_from(["lru", "least", "priority", "sticky"]))
@settings(max_examples=300, deadline=None)
def test_the_express_does_what_the_service_does(batches, scheduling):
    slow, quick = (make_service(scheduling=scheduling, max_queue=4, expiry=3.0) for _ in range(2))
    for now, batch in enumerate(batches):
        delivered = [as_delivered(frames, 8192) for frames in batch]
        one_by_one = [effect for frames in delivered for effect in slow.receive(SOCKET, frames, float(now))]
        at_once = []
        quick.receive_batch(SOCKET, iter(delivered), float(now), at_once, at_once)
        assert plain(at_once) == plain(one_by_one)
        assert figures(quick) == figures(slow)
        for service in (slow, quick):
            conserved(service)
            due = service.next_deadline()
            if due is not None and due <= now:
                service.on_deadline(float(now))


def take(service, messages, now):
    """Let a service take messages; give what is to be sent at once, and what may wait."""
    effects, later = [], []
    service.receive_batch(SOCKET, iter(messages), now, effects, later)
    return effects, later


def saturated(workers=2, waiting=3):
    """Give a service with workers that are all busy and requests that wait, and what the workers got."""
    service = make_service()
    take(service, [(WORKERS[number], b"", b"MDPW01", b"\1", b"echo") for number in range(workers)], 0.0)
    asked = [(CLIENTS[0], b"", b"MDPC01", b"echo", b"%d" % number) for number in range(workers + waiting)]
    return service, take(service, asked, 1.0)[0]


def reply_to(request):
    return (request[0], b"", b"MDPW01", b"\3", request[4], b"", b"done")


@native
def test_a_reply_may_wait_while_requests_do_and_not_otherwise():
    service, ((_, request),) = saturated(workers=1, waiting=1)
    effects, later = take(service, [reply_to(request)], 2.0)
    assert [frames[2] for _, frames in later] == [b"MDPC01"]
    assert [frames[2] for _, frames in effects] == [b"MDPW01"]
    effects, later = take(service, [reply_to(effects[0][1])], 2.0)
    assert ([frames[2] for _, frames in effects], later) == ([b"MDPC01"], [])


@native
def test_replies_to_clients_keep_their_order():
    """What could wait goes first when anything else is for clients, in this batch or in a later one."""
    service, ((_, first),) = saturated(workers=1, waiting=1)
    effects, later = [], []
    service.receive_batch(SOCKET, iter([reply_to(first)]), 2.0, effects, later)
    (held,), ((_, second),) = list(later), effects
    effects.clear()
    service.receive_batch(SOCKET, iter([reply_to(second)]), 3.0, effects, later)
    assert (effects[0], [frames[2] for _, frames in effects], later) == (held, [b"MDPC01", b"MDPC01"], [])
    service, ((_, first),) = saturated(workers=1, waiting=1)
    effects, later = [], []
    asked = (CLIENTS[0], b"", b"MDPC01", b"mmi.service", b"echo")
    service.receive_batch(SOCKET, iter([reply_to(first), asked]), 2.0, effects, later)
    assert ([frames[3] for _, frames in effects], later) == ([b"\2", b"echo", b"mmi.service"], [])


@native
def test_frames_that_are_no_tuple_are_refused():
    service, ((_, request),) = saturated(workers=1, waiting=0)
    service._workers[WORKERS[0]].in_hand[request[4]].back = [b"a", b"list"]
    with pytest.raises(TypeError, match="tuple"):
        take(service, [reply_to(request)], 2.0)


@native
def test_a_service_that_raises_keeps_what_was_done_before_and_gets_the_rest(monkeypatch):
    service, _ = saturated(workers=1, waiting=0)
    take(service, [(WORKERS[1], b"", b"MDPW01", b"\1", b"echo")], 1.0)
    monkeypatch.setattr(service, "_understand", lambda frames, now: 1 / 0)
    request = (CLIENTS[0], b"", b"MDPC01", b"echo", b"x")
    messages, effects = iter([request, (CLIENTS[0], b"nonsense"), request]), []
    with pytest.raises(ZeroDivisionError):
        service.receive_batch(SOCKET, messages, 2.0, effects, effects)
    assert [frames[0] for _, frames in effects] == [WORKERS[1]]
    service.receive_batch(SOCKET, messages, 2.0, effects, effects)
    assert (list(messages), service._services[b"echo"].requests, len(effects)) == ([], 3, 1)


@native
def test_what_it_is_given_must_fit():
    service = make_service()
    for wrong in ((SOCKET, [], 0.0, [], []), (SOCKET, iter([]), 0.0, [], ()), (SOCKET, iter([]), 0.0, [])):
        with pytest.raises(TypeError, match="iterator"):
            service.receive_batch(*wrong)
    with pytest.raises(TypeError):
        service.receive_batch(SOCKET, iter([]), "now", [], [])
    with pytest.raises(TypeError, match="requests have their base here"):
        make_express(
            services={}, workers={}, addresses=iter(()), request_type=int, socket="s", receive=print,
            expect_due=print, mdp01=1, mdp02=2,
        )  # fmt: skip


@native
@pytest.mark.parametrize("looked_at", [False, True])
def test_a_request_is_the_same_whether_somebody_looked_at_it_or_not(looked_at):
    """Its message is cut into parts at the first look."""
    service, ((_, given),) = saturated(workers=1, waiting=0)
    (request,) = service._workers[WORKERS[0]].in_hand.values()
    for _ in range(2 * looked_at):
        assert (request.back, request.body) == ((CLIENTS[0], b"", b"MDPC01", b"echo"), (b"0",))
    effects, later = take(service, [reply_to(given)], 2.0)
    assert (effects, later) == ([(SOCKET, (CLIENTS[0], b"", b"MDPC01", b"echo", b"done"))], [])
    request.body = ()
    assert (request.back, request.body) == ((CLIENTS[0], b"", b"MDPC01", b"echo"), ())


@native
def test_messages_of_other_sockets_are_not_taken_for_its_own(monkeypatch):
    service = make_service()
    monkeypatch.setattr(service, "_receive_elsewhere", lambda socket, frames, now: [(socket, frames)])
    effects = []
    service.receive_batch("elsewhere", iter([(CLIENTS[0], b"", b"MDPC01", b"echo", b"x")]), 1.0, effects, effects)
    assert effects == [("elsewhere", (CLIENTS[0], b"", b"MDPC01", b"echo", b"x"))]
    assert service.totals()["requests"] == 0


@native
def test_nothing_is_left_in_memory():
    """Many requests come and go; the number of objects is what it was."""
    service, given = saturated()

    def turn(given):
        asked = (CLIENTS[0], b"", b"MDPC01", b"echo", b"q")
        effects, later = take(
            service, [reply_to(frames) if frames[2] == b"MDPW01" else asked for _, frames in given], 2.0
        )
        return effects + later

    for _ in range(100):
        given = turn(given)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(2000):
        given = turn(given)
    gc.collect()
    assert len(gc.get_objects()) - before < 50
    references = sys.getrefcount(WORKERS[0])
    for _ in range(2000):
        given = turn(given)
    assert sys.getrefcount(WORKERS[0]) - references < 50


STEPS = ["append", "put_back", "take", "drop", "hold", "release"]


@native
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3))))
@settings(max_examples=200, deadline=None)
def test_queues_in_c_and_in_python_do_the_same(steps):
    class Entry(express.RequestBase):
        __slots__ = ("number",)

    class Twin(records.RequestBase):
        number = 0

    def run(kind, share_kind, queue):
        shares, there, log = [share_kind(b"%d" % number) for number in range(4)], [], []
        for number, (what, which) in enumerate(steps):
            share = shares[which]
            if what in ("append", "put_back"):
                there.append(kind())
                there[-1].number = number
                getattr(queue, what)(there[-1], share)
            elif what == "take":
                taken = queue.take()
                log.append(taken and taken.number)
                there = [request for request in there if request is not taken]
            elif what == "drop" and there:
                request = there.pop(which % len(there))
                request.done = True
                request.line.drop()
            elif what in ("hold", "release"):
                share.held = what == "hold"
                getattr(queue, what)(share)
            log.append((queue.available, sorted(request.number for request in queue)))
        return log

    assert run(Entry, express.Share, express.FairQueue()) == run(Twin, queues.Share, queues.FairQueue())


@pytest.mark.real
def test_without_the_express_the_same_tests_pass():
    """Where no compiler is, the records and the way of all messages are those in Python."""
    here = Path(__file__).parent
    blocked = (
        "import sys; sys.modules['scale0_majordomo.service._express'] = None; import pytest; sys.exit(pytest.main())"
    )
    chosen = [str(here / name) for name in ("test_service.py", "test_queues.py", "test_draining.py", "test_express.py")]
    done = subprocess.run(
        [sys.executable, "-c", blocked, "-q", "-p", "no:cacheprovider", "-k", "not without_the_express", *chosen],
        cwd=here.parents[2], capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "11 skipped" in done.stdout
