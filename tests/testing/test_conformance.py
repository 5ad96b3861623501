"""check_service: what it finds, and that it finds it again."""

from __future__ import annotations

from itertools import pairwise
from typing import ClassVar

import pytest

from scale0_core.service import Endpoint, FastPath, Job
from scale0_core.testing import ConformanceError, check_service

ROUTER = Endpoint(kind="ROUTER", bind=("tcp://127.0.0.1:1",))


class Echo:
    name = "echo"
    endpoints: ClassVar = {"front": ROUTER}

    def receive(self, socket, frames, now):
        return [(socket, frames)] if len(frames) > 1 else ()

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Busy(Echo):
    """Uses all there is: several sockets, deadlines, jobs, and messages that come back."""

    name = "busy"
    endpoints: ClassVar = {
        "front": ROUTER,
        "answers": Endpoint(kind="REP"),
        "asks": Endpoint(kind="REQ"),
        "news": Endpoint(kind="XPUB"),
        "work": Endpoint(kind="PULL"),
        "out": Endpoint(kind="PUSH"),
    }

    def __init__(self):
        self.due = 1000.5
        self.asked = False
        self.seen = set()

    def receive(self, socket, frames, now):
        self.seen.add(socket)
        if socket == "answers":
            return [Job("disk", len, frames, token="answers")]
        if socket == "asks":
            self.asked = False
        if socket == "news":
            return [("news", (b"topic", b"x"))]
        return [Job("disk", self.group, frames, token=socket, grouped=True)]

    def group(self, messages):
        return map(len, messages)

    def on_job(self, result, now):
        if result.token == "answers":
            return [("answers", (b"ok" if result.error is None else b"failed",))]
        return [("out", (b"done",))]

    def on_undelivered(self, socket, frames, reason, now):
        self.seen.add(reason)
        return ()

    def next_deadline(self):
        return self.due

    def on_deadline(self, now):
        self.due = now + 0.1
        if self.asked:
            return ()
        self.asked = True
        return [("asks", (b"well?",))]


def test_a_good_service_passes_and_the_report_says_what_was_tried():
    report = check_service(Echo)
    assert report.seed == 0
    assert report.messages == 2000
    assert report.undelivered > 0
    assert report.sends + report.undelivered > 1500


def test_every_feature_is_exercised():
    made = []

    def factory():
        made.append(Busy())
        return made[-1]

    report = check_service(factory, messages=5000)
    assert report.messages == 5000
    assert min(report.sends, report.jobs, report.jobs_failed, report.deadlines) > 50
    assert made[0].seen == {"front", "answers", "asks", "news", "work", "EAGAIN"}


def test_the_same_seed_gives_the_same_run_and_another_one_another():
    def messages(seed):
        seen = []

        class Recorder(Echo):
            def receive(self, socket, frames, now):
                seen.append((now, frames))
                return super().receive(socket, frames, now)

        check_service(Recorder, seed=seed, messages=500)
        return seen

    assert messages(1) == messages(1)
    assert messages(1) != messages(2)


class Shortcut(Echo):
    """Has a fast path that does something else when a message is long."""

    @property
    def fast_paths(self):
        return (FastPath("front", range(2, 9), 1, b"LOGIN", self.take),)

    def take(self, socket, frames, now):
        return self.receive(socket, frames if len(frames) < 4 else frames[:-1], now)


def test_a_fast_path_does_what_receive_does():
    check_service(Shortcut, samples=[("front", ("peer", "LOGIN"))], messages=20)
    with pytest.raises(ConformanceError, match="by a fast path") as told:
        check_service(Shortcut, samples=[("front", ("peer", "LOGIN", "me", "secret"))])
    assert told.value.frames[1] == b"LOGIN"
    Shortcut.fast_paths = property(lambda self: (FastPath("front", range(1, 9), 1, b"LOGIN", self.take),))
    with pytest.raises(ConformanceError, match="no frame 1 in some"):
        check_service(Shortcut)


def test_messages_are_of_every_sort():
    seen = []

    class Recorder(Echo):
        def receive(self, socket, frames, now):
            seen.append((now, frames[1:]))
            return ()

    check_service(Recorder, samples=[("front", ("peer", "LOGIN", "secret"))])
    bodies = [body for _, body in seen]
    assert () in bodies
    assert (b"",) in bodies
    assert (b"LOGIN", b"secret") in bodies
    assert any(body[:1] == (b"LOGIN",) and body != (b"LOGIN", b"secret") for body in bodies)
    assert any(len(body) >= 1000 for body in bodies)
    assert any(len(frame) >= 100_000 for body in bodies for frame in body)
    assert any(b"\xff" in frame for body in bodies for frame in body)
    times = [now for now, _ in seen]
    assert any(one == other for one, other in pairwise(times))
    assert times == sorted(times)
    assert times[-1] - times[0] > 60


def test_frames_over_the_limit_of_an_endpoint_never_come():
    class Small(Echo):
        endpoints: ClassVar = {"front": Endpoint(kind="PULL", max_message=100)}

        def receive(self, socket, frames, now):
            assert all(len(frame) <= 100 for frame in frames)
            return ()

    check_service(Small)


def broken(**members):
    return type("Broken", (Echo,), {"name": "broken", **members})


def raising(self, socket, frames, now):
    if len(frames) == 4:
        raise LookupError("on purpose")
    return ()


def one_way(*effects):
    return lambda self, socket, frames, now: effects


def lazily(self, socket, frames, now):
    yield (socket, (*frames, b""))
    raise LookupError("on purpose")


FAULTS = {
    "raises": (broken(receive=raising), "LookupError: on purpose"),
    "raises in a generator": (broken(receive=lazily), "LookupError: on purpose"),
    "decodes without care": (
        broken(receive=lambda self, socket, frames, now: [f.decode() for f in frames[1:]] and ()),
        "UnicodeDecodeError",
    ),
    "counts on a frame": (broken(receive=lambda s, socket, frames, now: frames[1] and ()), "IndexError"),
    "returns nothing": (broken(receive=lambda self, socket, frames, now: None), "TypeError"),
    "sends no tuple": (broken(receive=one_way(["front", (b"a", b"b")])), "a send is a tuple"),
    "sends a list of frames": (broken(receive=one_way(("front", [b"a", b"b"]))), "the frames are a tuple"),
    "sends no frames": (broken(receive=one_way(("front", ()))), "at least one"),
    "sends text": (broken(receive=one_way(("front", (b"a", "b")))), "a frame is bytes, not str"),
    "sends to nowhere": (broken(receive=one_way(("back", (b"a", b"b")))), "no such socket; declared are 'front'"),
    "sends to nobody": (broken(receive=one_way(("front", (b"", b"b")))), "routing id, and this one is empty"),
    "sends nothing to somebody": (broken(receive=one_way(("front", (b"a",)))), "a message follows the routing id"),
    "sends where it can only receive": (
        broken(endpoints={"in": Endpoint(kind="PULL")}, receive=one_way(("in", (b"x",)))),
        "a PULL socket cannot send",
    ),
    "returns a job without on_job": (broken(receive=one_way(Job("k", len, b""))), "it has no on_job"),
    "returns a job that is none": (
        broken(receive=one_way(Job("k", 7)), on_job=lambda self, result, now: ()),
        "its function is 7",
    ),
    "makes a job with a bad key": (
        broken(receive=lambda self, socket, frames, now: [Job([], len, b"")], on_job=lambda self, result, now: ()),
        "unhashable",
    ),
    "raises when a job fails": (
        broken(
            receive=one_way(Job("k", len, b"abc")),
            on_job=lambda self, result, now: [("front", (b"a", b"%d" % result.value))],
        ),
        "TypeError",
    ),
    "raises in on_undelivered": (broken(on_undelivered=lambda self, s, f, reason, now: {}[reason]), "KeyError"),
    "insists on a peer that is gone": (
        broken(on_undelivered=lambda self, socket, frames, reason, now: [(socket, frames)]),
        "without end",
    ),
    "has a stuck deadline": (broken(next_deadline=lambda self: 1000.0), "did not move"),
    "has a deadline that crawls": (
        broken(
            due=1000.0,
            next_deadline=lambda self: self.due,
            on_deadline=lambda self, now: setattr(self, "due", now + 1e-9) or (),
        ),
        "no rest",
    ),
    "has a deadline that is no number": (broken(next_deadline=lambda self: float("nan")), "gave nan"),
    "has a deadline for ever": (broken(next_deadline=lambda self: float("inf")), "gave inf"),
    "answers twice": (
        broken(endpoints={"a": Endpoint(kind="REP")}, receive=one_way(("a", (b"x",)), ("a", (b"y",)))),
        "out of turn on REP",
    ),
    "never answers": (
        broken(endpoints={"a": Endpoint(kind="REP")}, receive=one_way()),
        "REP socket 'a' is stuck",
    ),
    "has no name": (broken(name=""), "the name is ''"),
    "has no mapping": (broken(endpoints=["front"]), "endpoints is a list"),
    "has a socket without a name": (broken(endpoints={"": ROUTER}), "the name of socket ''"),
    "has a socket that is none": (broken(endpoints={"front": "ROUTER"}), "'front' is a str"),
    "forgot the transport": (
        broken(endpoints={"front": Endpoint(kind="ROUTER", bind="127.0.0.1:1")}),
        "'127.0.0.1:1' is not an address",
    ),
    "subscribes where it cannot": (
        broken(endpoints={"front": Endpoint(kind="PULL", subscribe=(b"",))}),
        "a PULL socket does not subscribe",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_service_is_caught(fault):
    factory, message = FAULTS[fault]
    with pytest.raises(ConformanceError, match=message):
        check_service(factory)


def test_a_failure_names_seed_message_and_frames_and_plays_again():
    factory, _ = FAULTS["raises"]
    with pytest.raises(ConformanceError) as caught:
        check_service(factory, seed=7)
    first = caught.value
    assert isinstance(first.__cause__, LookupError)
    assert (first.seed, first.socket, len(first.frames)) == (7, "front", 4)
    assert f"seed 7, message {first.message}\n  last message: 'front': (b'" in str(first)
    with pytest.raises(ConformanceError) as again:
        check_service(factory, seed=7, messages=first.message + 1)
    assert str(again.value) == str(first)
    check_service(factory, seed=7, messages=first.message)


def test_a_sample_for_an_unknown_socket_is_refused():
    with pytest.raises(ValueError, match="'back'"):
        check_service(Echo, samples=[("back", ("x",))])
