"""Script: conversations with one service on virtual time."""

from __future__ import annotations

from typing import ClassVar

import pytest

from scale0_core.errors import ServiceFaultError
from scale0_core.service import Endpoint, Job
from scale0_core.testing import Script

ROUTER = Endpoint(kind="ROUTER", bind=("tcp://127.0.0.1:1",))


class Quiet:
    name = "quiet"
    endpoints: ClassVar = {"front": ROUTER}

    def receive(self, socket, frames, now):
        return ()

    def next_deadline(self):
        return None

    def on_deadline(self, now):
        return ()


class Echo(Quiet):
    name = "echo"

    def receive(self, socket, frames, now):
        return [(socket, frames)]


class Delayed(Quiet):
    """Answers one second later, with the time."""

    name = "delayed"

    def __init__(self):
        self.waiting = []

    def receive(self, socket, frames, now):
        self.waiting.append((now + 1.0, frames[0]))
        return ()

    def next_deadline(self):
        return self.waiting[0][0] if self.waiting else None

    def on_deadline(self, now):
        due = [peer for time, peer in self.waiting if time <= now]
        self.waiting = [entry for entry in self.waiting if entry[0] > now]
        return [("front", (peer, f"{now:g}".encode())) for peer in due]


class Hashing(Quiet):
    """Answers with what a job made of the message, or with its error."""

    name = "hashing"
    grouped = False

    def receive(self, socket, frames, now):
        function = self.group if self.grouped else bytes.upper
        return [Job("disk", function, frames[1], token=frames[0], grouped=self.grouped)]

    def group(self, bodies):
        return [b"%s of %d" % (body, len(bodies)) for body in bodies]

    def on_job(self, result, now):
        return [("front", (result.token, result.value or str(result.error).encode()))]


class Careful(Echo):
    name = "careful"

    def __init__(self):
        self.returned = []

    def on_undelivered(self, socket, frames, reason, now):
        self.returned.append((socket, frames, reason, now))
        return [("front", (b"watcher", reason.encode()))]


def test_feed_and_expect_take_text_and_bytes():
    script = Script(Echo())
    script.feed("front", "client", b"\xff", "ü")
    assert script.expect("front", b"client", b"\xff", "ü") == (b"client", b"\xff", "ü".encode())
    script.expect_nothing()
    assert script.sent == [("front", (b"client", b"\xff", "ü".encode()))]


def test_ellipsis_expects_any_frame():
    script = Script(Echo())
    script.feed("front", "client", "random-id", "x")
    script.expect("front", "client", ..., "x")


def test_expect_says_what_came_instead():
    script = Script(Echo(), start=5.0)
    script.feed("front", "client", "hello")
    with pytest.raises(AssertionError, match=r"b'goodbye'\)\nbut sent was 'front': \(b'client', b'hello'\).*5.0"):
        script.expect("front", "client", "goodbye")
    script.expect("front", "client", "hello")
    with pytest.raises(AssertionError, match="but nothing was sent"):
        script.expect("front", "client", "hello")


def test_expect_nothing_says_what_came():
    script = Script(Echo())
    script.feed("front", "client", "x" * 1000)
    with pytest.raises(AssertionError, match=r"expected nothing.*\n.*'front': \(b'client', b'x+'\.\.\. 1000 bytes\)"):
        script.expect_nothing()


def test_an_undeclared_socket_is_named():
    with pytest.raises(AssertionError, match="no socket 'back'; it has 'front'"):
        Script(Echo()).feed("back", "x")


def test_each_deadline_fires_at_its_moment():
    script = Script(Delayed(), start=10.0)
    script.feed("front", "a")
    script.sleep(0.5)
    script.feed("front", "b")
    script.sleep(0.25)
    script.expect_nothing()
    script.sleep(100)
    script.expect("front", "a", "11")
    script.expect("front", "b", "11.5")
    script.expect_nothing()
    assert script.now == 110.75


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="backwards"):
        Script(Quiet()).sleep(-1)


def test_jobs_run_at_once():
    script = Script(Hashing())
    script.feed("front", "client", "abc")
    script.expect("front", "client", "ABC")
    assert script.jobs_in_flight == 0


def test_jobs_run_late_and_in_groups():
    service = Hashing()
    service.grouped = True
    script = Script(service, job_delay=1.0)
    for body in "abc":
        script.feed("front", "client", body)
    assert script.jobs_in_flight == 3
    script.sleep(0.9)
    script.expect_nothing()
    script.sleep(0.1)
    script.expect("front", "client", "a of 1")
    script.sleep(1.0)
    script.expect("front", "client", "b of 2")
    script.expect("front", "client", "c of 2")


def test_a_job_fails_on_demand_and_only_once():
    script = Script(Hashing())
    script.fail_next_job(OSError("disk full"))
    script.feed("front", "client", "abc")
    script.expect("front", "client", "disk full")
    script.feed("front", "client", "abc")
    script.expect("front", "client", "ABC")


def test_a_refused_send_comes_back_to_the_service():
    service = Careful()
    script = Script(service, start=3.0)
    script.refuse("front", "gone")
    script.feed("front", "gone", "x")
    script.expect("front", "watcher", "EHOSTUNREACH")
    assert service.returned == [("front", (b"gone", b"x"), "EHOSTUNREACH", 3.0)]
    script.refuse("front", "gone", "EAGAIN")
    script.feed("front", "gone", "x")
    script.expect("front", "watcher", "EAGAIN")
    script.accept("front", "gone")
    script.feed("front", "gone", "x")
    script.expect("front", "gone", "x")
    script.expect_nothing()


def test_a_service_that_insists_on_a_peer_that_is_gone_is_stopped():
    class Stubborn(Echo):
        def on_undelivered(self, socket, frames, reason, now):
            return [(socket, frames)]

    script = Script(Stubborn())
    script.refuse("front", "gone")
    with pytest.raises(ServiceFaultError, match="without end"):
        script.feed("front", "gone", "x")


def test_what_a_service_raises_the_test_sees():
    class Broken(Quiet):
        def receive(self, socket, frames, now):
            raise LookupError("on purpose")

    script = Script(Broken())
    for _ in range(20):  # more often than a broker's budget allows
        with pytest.raises(LookupError, match="on purpose"):
            script.feed("front", "client")


def test_a_stuck_deadline_is_raised():
    class Stuck(Quiet):
        def next_deadline(self):
            return 1.0

    script = Script(Stuck())
    with pytest.raises(ServiceFaultError, match="did not move"):
        script.sleep(1)


@pytest.mark.parametrize("due", [float("nan"), float("inf"), "soon"])
def test_a_deadline_that_cannot_come_is_raised(due):
    class Wrong(Quiet):
        def next_deadline(self):
            return due

    with pytest.raises(ServiceFaultError, match="next_deadline"):
        Script(Wrong())


def test_jobs_without_end_at_one_instant_are_stopped():
    class Endless(Hashing):
        def on_job(self, result, now):
            return [Job("disk", bytes.upper, b"x")]

    script = Script(Endless())
    with pytest.raises(ServiceFaultError, match="time stands still"):
        script.feed("front", "client", "x")


def test_large_frames_arrive_as_blobs_where_the_endpoint_says_so():
    class Blobs(Echo):
        endpoints: ClassVar = {"front": Endpoint(kind="ROUTER", blob_over=10)}

        def receive(self, socket, frames, now):
            self.types = [isinstance(frame, bytes) for frame in frames]
            return [(socket, frames)]

    service = Blobs()
    script = Script(service)
    script.feed("front", "client", "x" * 10, "y" * 11)
    assert service.types == [True, True, False]
    script.expect("front", "client", "x" * 10, "y" * 11)
