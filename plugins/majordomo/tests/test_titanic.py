"""Titanic on virtual time, with a real SQLite file; a crash is a copy of the file at a moment."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from scale0_core.api import Effect, Endpoint, Frames, JobResult, SocketKind
from scale0_core.testing import Script
from scale0_majordomo.service import titanic, titanic_store
from scale0_majordomo.service.titanic import Titanic
from scale0_majordomo.service.titanic_store import Store

SOCKET = "requests"
HOUR = 3600.0
BROKEN = (b"500", titanic.UNUSABLE)


class Desk:
    """The least that Titanic needs of a service: those who offer something have their requests in ``hands``."""

    name = "desk"
    endpoints: ClassVar = {SOCKET: Endpoint(kind=SocketKind.ROUTER, bind=["inproc://desk"])}

    def __init__(self, store: Store, offered: Iterable[bytes] = (), **settings: object) -> None:
        numbers = count(1)
        settings.setdefault("new_id", lambda: f"{next(numbers):032x}")
        self.titanic = Titanic(store, self, **settings)  # type: ignore[arg-type]
        self.offered = set(offered)
        self.hands: dict[str, tuple[bytes, Frames]] = {}
        self.executions: list[str] = []
        self.refuse_all = False

    def offers(self, service: bytes) -> bool:
        return service in self.offered

    def execute(self, ident: str, service: bytes, body: Frames, now: float) -> Iterable[Effect]:
        assert service in self.offered
        assert ident not in self.hands
        self.executions.append(ident)
        if self.refuse_all:
            return self.titanic.executed(ident, None, now)
        self.hands[ident] = service, body
        return []

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        peer, service, *body = frames
        if service == b"READY":
            self.offered.add(body[0])
            return self.titanic.offered(body[0], now)
        if service in (b"DONE", b"FAILED"):
            ident = body[0].decode()
            del self.hands[ident]
            return self.titanic.executed(ident, tuple(body[1:]) if service == b"DONE" else None, now)
        assert self.titanic.handles(service)
        return self.titanic.request(service, tuple(body), lambda reply: [(SOCKET, (peer, *reply))], now)

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        return self.titanic.on_job(result, now)

    def next_deadline(self) -> float | None:
        return self.titanic.next_deadline()

    def on_deadline(self, now: float) -> Iterable[Effect]:
        return self.titanic.on_deadline(now)

    def on_stop(self, now: float) -> Iterable[Effect]:
        return self.titanic.on_stop()


class Life:
    """A broker from its start to its end, and what a client and a worker say to it."""

    def __init__(self, folder: Path, *offered: bytes, job_delay: float = 0.0, start: float = 1.0, **settings) -> None:
        self.folder = folder
        self.script: Script | None = None
        self.store = Store(folder / "titanic.db", lambda: self.script.now if self.script else start)
        self.desk = Desk(self.store, offered, **settings)
        self.script = Script(self.desk, start=start, job_delay=job_delay)

    @property
    def titanic(self) -> Titanic:
        return self.desk.titanic

    @property
    def hands(self) -> dict[str, tuple[bytes, Frames]]:
        return self.desk.hands

    def ask(self, service: str, *body: bytes | str) -> tuple[bytes, ...]:
        """Ask, and give the answer that has come at once."""
        self.script.feed(SOCKET, "client", f"titanic.{service}", *body)
        assert self.script._unexpected, "no answer"
        (_, frames) = self.script._unexpected.popleft()
        self.script.expect_nothing()
        return frames[1:]

    def store_request(self, service: str = "echo", *body: bytes | str) -> str:
        status, ident = self.ask("request", service, *body)
        assert status == b"200"
        return ident.decode()

    def done(self, ident: str, *body: bytes | str) -> None:
        self.script.feed(SOCKET, "worker", "DONE", ident, *body)

    def failed(self, ident: str) -> None:
        self.script.feed(SOCKET, "worker", "FAILED", ident)

    def end(self) -> None:
        self.store.close()

    def crash(self, target: Path, *offered: bytes, **settings) -> Life:
        """Go on from what lies on disk now."""
        target.mkdir()
        for path in self.folder.glob("*"):
            shutil.copy(path, target / path.name)
        now = self.script.now
        self.end()
        return Life(target, *offered, start=now + 1, **settings)


@pytest.fixture
def lives(tmp_path):
    """Make lives that are ended when the test is."""
    made: list[Life] = []

    def make(*offered: bytes, **settings) -> Life:
        made.append(Life(tmp_path / f"life-{len(made)}", *offered, **settings))
        return made[-1]

    yield make
    for life in made:
        life.end()


# --- RFC 9 ------------------------------------------------------------------------------------------------------------


def test_a_request_is_stored_executed_fetched_and_closed(lives):
    life = lives(b"echo")
    ident = life.store_request("echo", "hello", "", "world")
    assert life.hands == {ident: (b"echo", (b"hello", b"", b"world"))}
    assert life.ask("reply", ident) == (b"300",)
    life.done(ident, "HELLO", "")
    for _ in range(3):
        assert life.ask("reply", ident) == (b"200", b"HELLO", b"")
    for _ in range(2):
        assert life.ask("close", ident) == (b"200",)
    assert life.ask("reply", ident) == (b"400",)
    assert (life.titanic.rows, life.titanic.bytes, life.titanic.in_flight) == (0, 0, 0)


def test_the_answer_comes_when_the_request_is_on_disk_and_no_sooner(lives, tmp_path):
    life = lives(b"echo", job_delay=0.25)
    life.script.sleep(0.5)
    life.script.feed(SOCKET, "client", "titanic.request", "echo", "x")
    life.script.sleep(0.125)
    life.script.expect_nothing()
    assert not life.hands
    life.script.sleep(0.125)
    ident = life.script.expect(SOCKET, "client", "200", ...)[2]
    after = life.crash(tmp_path / "after", b"echo")
    assert after.hands == {ident.decode(): (b"echo", (b"x",))}
    after.end()


def test_a_request_without_a_body_has_an_empty_one(lives):
    life = lives(b"echo")
    ident = life.store_request("echo")
    assert life.hands[ident] == (b"echo", (b"",))


@pytest.mark.parametrize(
    "body", [(b"",), (b"s" * 256, b"x"), (b"titanic.request", b"echo", b"x"), (b"mmi.service", b"x")]
)
def test_a_request_for_what_cannot_be_called_is_refused(lives, body):
    life = lives(b"echo")
    assert life.ask("request", *body) == (b"500",)
    assert life.titanic.counts["refused"] == 1


def test_uuids_are_taken_in_either_case_and_given_in_one(lives):
    life = lives(b"echo", new_id=lambda: "ab" * 16)
    assert life.store_request("echo", "x") == "ab" * 16
    life.done("ab" * 16, "y")
    for text in ("ab" * 16, "AB" * 16, "aB" * 16):
        assert life.ask("reply", text) == (b"200", b"y")
    assert life.ask("close", "Ab" * 16) == (b"200",)
    assert life.ask("reply", "ab" * 16) == (b"400",)


def test_requests_that_come_while_the_disk_is_read_wait_for_it(lives):
    life = lives(b"echo", job_delay=1.0)
    life.script.feed(SOCKET, "client", "titanic.request", "echo", "x")
    life.script.sleep(3)
    ident = life.script.expect(SOCKET, "client", "200", ...)[2]
    assert life.hands == {ident.decode(): (b"echo", (b"x",))}


# --- limits, expiry, faults -------------------------------------------------------------------------------------------


def test_no_more_requests_than_allowed_are_kept(lives):
    life = lives(max_open=2)
    first, _ = life.store_request("echo", "1"), life.store_request("echo", "2")
    assert life.ask("request", "echo", "3") == (b"500",)
    assert life.ask("close", first) == (b"200",)
    life.store_request("echo", "3")


def test_no_more_bytes_than_allowed_are_kept(lives):
    life = lives(b"echo", max_bytes=1000)
    ident = life.store_request("echo", "x" * 900)
    assert life.ask("request", "echo", "x" * 100) == (b"500",)
    life.done(ident, "y")
    life.store_request("echo", "x" * 900)


def test_the_limits_hold_after_a_restart(lives, tmp_path):
    life = lives(max_open=2)
    life.store_request("echo", "1"), life.store_request("echo", "2")
    after = life.crash(tmp_path / "after", max_open=2)
    assert after.ask("request", "echo", "3") == (b"500",)
    assert (after.titanic.rows, after.titanic.bytes) == (life.titanic.rows, life.titanic.bytes)
    after.end()


def test_a_reply_that_nobody_fetches_expires(lives):
    life = lives(b"echo", expiry=HOUR)
    ident = life.store_request("echo", "x")
    life.script.sleep(HOUR / 2)
    life.done(ident, "y")
    life.script.sleep(HOUR * 0.9)
    assert life.ask("reply", ident) == (b"200", b"y")
    life.script.sleep(HOUR * 0.2)
    assert life.ask("reply", ident) == (b"400",)
    assert (life.titanic.counts["expired"], life.titanic.rows, life.titanic.bytes) == (1, 0, 0)


def test_nothing_expires_when_that_is_not_wanted(lives):
    life = lives(b"echo", expiry=0.0)
    idents = [life.store_request("echo", "x"), life.store_request("nobody", "x")]
    life.done(idents[0], "y")
    life.script.sleep(HOUR * 5)
    assert [life.ask("reply", ident) for ident in idents] == [(b"200", b"y"), (b"300",)]


def test_a_request_that_nobody_executes_is_given_up_and_later_forgotten(lives, tmp_path):
    life = lives(expiry=HOUR)
    ident = life.store_request("nobody", "x")
    life.script.sleep(HOUR * 0.9)
    assert life.ask("reply", ident) == (b"300",)
    life.script.sleep(HOUR * 0.2)
    assert life.ask("reply", ident) == (b"500",)
    life.script.feed(SOCKET, "worker", "READY", "nobody")
    life.script.sleep(10)
    assert not life.desk.executions
    after = life.crash(tmp_path / "after", b"nobody", expiry=HOUR)
    assert not after.hands
    assert after.ask("reply", ident) == (b"500",)
    after.script.sleep(HOUR * 1.1)
    assert after.ask("reply", ident) == (b"400",)
    assert after.titanic.rows == 0
    after.end()


def test_a_reply_to_a_request_that_was_given_up_meanwhile_is_kept(lives):
    life = lives(b"slow", expiry=HOUR)
    first, second = life.store_request("slow", "x"), life.store_request("slow", "x")
    life.script.sleep(HOUR * 1.1)
    life.done(first, "late")
    life.failed(second)
    life.script.sleep(HOUR / 2)
    assert life.ask("reply", first) == (b"200", b"late")
    assert life.ask("reply", second) == (b"500",)
    assert life.desk.executions == [first, second]
    assert life.titanic.in_flight == 0


def test_when_the_disk_fails_the_answer_is_500_and_nothing_is_kept(lives):
    life = lives(b"echo")
    kept = life.store_request("echo", "x")
    life.done(kept, "y")
    for service, body in (("request", ("echo", "x")), ("reply", (kept,)), ("close", (kept,))):
        life.script.fail_next_job(OSError("the disk is on fire"))
        assert life.ask(service, *body) == BROKEN
    assert (life.titanic.rows, life.titanic.counts["errors"]) == (1, 3)
    assert life.ask("reply", kept) == (b"200", b"y")


def test_a_reply_that_cannot_be_stored_is_stored_later_and_not_fetched_again(lives):
    life = lives(b"echo", parallel=2)
    first = life.store_request("echo", "x")
    life.script.fail_next_job(OSError("full"))
    life.script.fail_next_job(OSError("full"))
    life.done(first, "y")
    assert life.ask("reply", first) == (b"300",)
    assert life.titanic.in_flight == 1
    life.script.sleep(0.5 + titanic.PAUSE + 2 * titanic.PAUSE)
    assert life.ask("reply", first) == (b"200", b"y")
    assert (life.desk.executions, life.titanic.in_flight) == ([first], 0)


def test_a_store_that_cannot_be_opened_is_tried_again(lives, tmp_path, monkeypatch):
    monkeypatch.setattr(titanic_store, "LOCK_WAIT", 0.01)
    old = lives()
    ident = old.store_request("echo", "x")
    new = Life(old.folder, b"echo")
    assert new.ask("request", "echo", "x") == BROKEN
    assert new.ask("reply", ident) == BROKEN
    assert new.ask("close", ident) == BROKEN
    old.end()
    new.script.sleep(titanic.REOPEN_PAUSE)
    assert new.hands == {ident: (b"echo", (b"x",))}
    new.end()


def early(life, service, *body):
    """Ask while the store is being opened: nothing comes yet."""
    life.script.feed(SOCKET, "client", f"titanic.{service}", *body)
    life.script.expect_nothing()


def answers(life):
    found = [frames[1:] for _, frames in life.script._unexpected]
    life.script._unexpected.clear()
    return found


def test_what_comes_before_the_store_is_open_waits_for_it(lives, tmp_path):
    before = lives()
    ident = before.store_request("echo", "old")
    life = before.crash(tmp_path / "after", b"echo", job_delay=1.0, new_id=lambda: "a" * 32)
    early(life, "reply", ident)
    early(life, "request", "echo", "new")
    early(life, "reply", "0" * 31 + "f")
    assert life.titanic.rows == 0
    life.script.sleep(1.0)
    assert answers(life) == [(b"300",)]
    life.script.sleep(1.0)
    assert [status for status, *_ in answers(life)] == [b"200", b"400"]
    life.script.sleep(1.0)
    assert sorted(body for _, (body,) in life.hands.values()) == [b"new", b"old"]
    life.end()


def test_what_waits_for_a_store_that_cannot_be_opened_is_answered_500(lives):
    life = lives(b"echo", job_delay=1.0)
    life.script.fail_next_job(OSError("no such disk"))
    early(life, "request", "echo", "x")
    early(life, "close", "0" * 32)
    life.script.sleep(1.0)
    assert answers(life) == [BROKEN, BROKEN]
    life.script.sleep(titanic.REOPEN_PAUSE + 1.0)
    early(life, "request", "echo", "x")
    life.script.sleep(1.0)
    assert [status for status, *_ in answers(life)] == [b"200"]


@pytest.mark.parametrize("bound", ["MAX_EARLY", "MAX_EARLY_BYTES"])
def test_not_any_number_of_requests_waits_for_the_store(lives, monkeypatch, bound):
    monkeypatch.setattr(titanic, bound, 2 if bound == "MAX_EARLY" else 12)
    life = lives(job_delay=1.0)
    for body in "ab":
        early(life, "request", "echo", body)
    assert life.ask("request", "echo", "cccc") == (b"500", titanic.TOO_EARLY)
    life.script.sleep(2.0)
    assert [status for status, *_ in answers(life)] == [b"200", b"200"]
    assert (life.titanic.rows, life.titanic.counts["refused"]) == (2, 1)


def test_who_waits_for_the_store_is_told_when_the_broker_stops(lives):
    life = lives(job_delay=1.0)
    early(life, "request", "echo", "x")
    life.script.stop()
    assert answers(life) == [(b"500", titanic.STOPPED)]


def test_a_damaged_file_is_500_for_all_and_stays_as_it_is(lives, tmp_path):
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "titanic.db").write_bytes(b"rubbish" * 1000)
    life = Life(folder, b"echo")
    assert life.ask("request", "echo", "x") == BROKEN
    assert life.ask("close", "0" * 32) == BROKEN
    life.script.sleep(60)
    assert (folder / "titanic.db").read_bytes() == b"rubbish" * 1000
    assert not life.hands


def test_the_file_is_closed_at_the_end(lives):
    life = lives(b"echo")
    life.store_request("echo", "x")
    life.script.stop()
    assert life.store._connection is None
    assert [path.name for path in life.folder.iterdir()] == ["titanic.db"]


# --- carrying out -----------------------------------------------------------------------------------------------------


def test_a_request_is_executed_when_its_service_comes(lives):
    life = lives()
    ident = life.store_request("late", "x")
    life.script.sleep(100)
    assert not life.hands
    life.script.feed(SOCKET, "worker", "READY", "late")
    assert life.hands == {ident: (b"late", (b"x",))}


def test_a_service_that_comes_untold_is_found_by_looking(lives):
    life = lives()
    ident = life.store_request("late", "x")
    life.desk.offered.add(b"late")
    life.script.sleep(titanic.ABSENT_PAUSE)
    assert life.hands == {ident: (b"late", (b"x",))}


def test_a_failed_request_is_tried_again_less_and_less_often(lives):
    life = lives(b"echo")
    ident = life.store_request("echo", "x")
    for pause in (1, 2, 4, 8, 16, 32, 60, 60):
        life.failed(ident)
        life.script.sleep(pause - 0.125)
        assert not life.hands
        assert life.ask("reply", ident) == (b"300",)
        life.script.sleep(0.125)
        assert life.hands == {ident: (b"echo", (b"x",))}
    life.done(ident, "y")
    assert life.ask("reply", ident) == (b"200", b"y")


def test_a_request_that_kills_its_workers_does_not_hold_up_the_others(lives):
    life = lives(b"echo")
    poison = life.store_request("echo", "poison")
    life.failed(poison)
    others = [life.store_request("echo", "x") for _ in range(20)]
    for other in others:
        assert next(iter(life.hands)) == other, "one at a time until one succeeds, then several"
        life.done(other, "y")
    assert life.titanic.counts["executed"] == 20


def test_an_executor_that_refuses_at_once_is_asked_again_later(lives):
    life = lives(b"echo")
    life.desk.refuse_all = True
    idents = [life.store_request("echo", "x") for _ in range(3)]
    life.script.sleep(0.5)
    assert life.desk.executions == idents
    assert life.titanic.in_flight == 0
    life.desk.refuse_all = False
    life.script.sleep(1)
    assert len(life.hands) == 1, "one is tried"
    life.done(next(iter(life.hands)), "y")
    assert len(life.hands) == 2, "it went well, so all the others follow"


def test_several_are_executed_at_a_time_and_never_more_than_allowed(lives):
    life = lives(b"a", b"b", b"c", parallel=8)
    idents = [life.store_request(service, "x") for _ in range(20) for service in "abc"]
    assert len(life.hands) <= 8
    served = {service: sum(1 for name, _ in life.hands.values() if name == service) for service in (b"a", b"b", b"c")}
    assert all(count >= 2 for count in served.values())
    finished = 0
    while life.hands:
        assert life.titanic.in_flight == len(life.hands) <= 8
        life.done(next(iter(life.hands)), "y")
        finished += 1
    assert finished == len(idents)
    assert all(life.ask("reply", ident) == (b"200", b"y") for ident in idents)


def test_requests_of_a_service_are_handed_out_in_their_order(lives, tmp_path):
    life = lives(parallel=4)
    idents = [life.store_request("echo", str(number)) for number in range(30)]
    after = life.crash(tmp_path / "after", b"echo", parallel=4)
    while after.hands:
        after.done(next(iter(after.hands)), "y")
    assert after.desk.executions == idents
    after.end()


def test_a_request_that_is_closed_before_its_turn_is_not_executed(lives):
    life = lives(b"echo", parallel=2)
    first, second, third = (life.store_request("echo", "x") for _ in range(3))
    assert list(life.hands) == [first]
    assert life.ask("close", second) == (b"200",)
    life.done(first, "y")
    assert list(life.hands) == [third]
    assert life.ask("reply", second) == (b"400",)


def test_a_request_that_is_closed_while_it_is_executed_leaves_nothing_behind(lives):
    life = lives(b"echo")
    first, second = life.store_request("echo", "x"), life.store_request("echo", "x")
    for ident in (first, second):
        assert life.ask("close", ident) == (b"200",)
        assert life.ask("reply", ident) == (b"400",)
    life.done(first, "y")
    life.failed(second)
    life.script.sleep(100)
    assert life.ask("reply", first) == (b"400",)
    assert (life.desk.executions, life.titanic.in_flight) == ([first, second], 0)
    assert (life.titanic.rows, life.titanic.bytes, life.titanic._lanes) == (0, 0, {})


# --- traps of the reference implementations, by their number in the specification -------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_trap_29_with_two_pending_each_is_marked_for_itself(lives, tmp_path, order):
    """The one that has run is done, the other is executed; also after a restart, and each just once."""
    life = lives(b"echo")
    idents = [life.store_request("echo", str(number)) for number in range(2)]
    done, other = (idents[place] for place in order)
    life.done(done, "y")
    after = life.crash(tmp_path / "after", b"echo")
    assert list(after.hands) == [other]
    assert after.ask("reply", done) == (b"200", b"y")
    after.done(other, "z")
    after.script.sleep(100)
    assert after.desk.executions == [other]
    assert after.ask("reply", other) == (b"200", b"z")
    after.end()


@pytest.mark.parametrize(
    "text",
    [b"../x", b"", b"0" * 31, b"0" * 33, b"g" * 32, b"0" * 31 + b"\n", b"0" * 31 + b"\0", b"\xd9\xa0" * 16],
)
def test_trap_30_what_is_no_uuid_never_reaches_the_disk(lives, text):
    life = lives(b"echo")
    life.done(life.store_request("echo", "x"), "y")
    life.script.fail_next_job(AssertionError("the disk was asked"))
    assert life.ask("reply", text) == (b"400",)
    assert life.ask("reply", b"0" * 32, b"more") == (b"400",)
    assert life.ask("close", text) == (b"200",)
    assert life.titanic.counts["errors"] == 0


def test_trap_31_a_dead_service_holds_up_nobody(lives):
    """Neither one without workers, nor those whose workers take requests and never answer."""
    life = lives(b"hung", b"hung too", b"echo", parallel=8)
    for _ in range(50):
        life.store_request("nobody", "x"), life.store_request("hung", "x"), life.store_request("hung too", "x")
    for number in range(20):
        ident = life.store_request("echo", str(number))
        assert ident in life.hands, "at once, without a pause"
        life.done(ident, "y")
        assert life.ask("reply", ident) == (b"200", b"y")


def test_trap_31_several_run_at_once_and_without_pauses(lives):
    life = lives(b"echo", parallel=16)
    idents = [life.store_request("echo", "x") for _ in range(100)]
    assert len(life.hands) == 8
    before = life.script.now
    while life.hands:
        life.done(next(iter(life.hands)), "y")
    assert life.script.now == before
    assert life.titanic.counts["executed"] == len(idents)


def test_trap_31_the_file_gives_back_what_was_closed(lives, monkeypatch):
    monkeypatch.setattr(titanic_store, "VACUUM_OVER", 16)
    life = lives(b"echo")
    idents = [life.store_request("echo", "x" * 10_000) for _ in range(100)]
    while life.hands:
        life.done(next(iter(life.hands)), "y" * 10_000)
    for ident in idents:
        life.ask("close", ident)
    life.end()
    assert (life.folder / "titanic.db").stat().st_size < 300_000


def test_trap_31_after_a_close_and_after_expiry_the_answer_is_400(lives):
    """They look the same on the wire, as there is one code for both; the counts tell them apart."""
    life = lives(b"echo", expiry=HOUR)
    first, second = life.store_request("echo", "x"), life.store_request("echo", "x")
    life.done(first, "y"), life.done(second, "y")
    life.ask("close", first)
    life.script.sleep(HOUR * 1.3)
    assert life.ask("reply", first) == life.ask("reply", second) == (b"400",)
    assert (life.titanic.counts["closed"], life.titanic.counts["expired"]) == (1, 1)


# --- all at random ----------------------------------------------------------------------------------------------------


class World:
    """Clients, workers that fail, disks that fail, and crashes at any moment, jobs in flight or not."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random = Random(seed)
        self.folder = folder
        numbers = count(1)
        self.settings = {
            "parallel": random.choice([1, 2, 8]),
            "job_delay": random.choice([0.0, 0.02]),
            "new_id": lambda: f"{next(numbers):032x}",
        }
        self.services = [b"a", b"b", b"c", b"nobody"]
        self.offered = self.services[:3]
        self.life = Life(folder / "first", *self.offered, **self.settings)
        self.bodies: dict[str, bytes] = {}
        """Confirmed requests, by uuid."""
        self.closing: set[str] = set()
        self.closed: set[str] = set()
        self.executed: set[str] = set()
        self.replied: set[str] = set()
        self.asked: dict[str, tuple[str, str]] = {}
        """What clients wait for, each with a name of its own for each question."""

    def step(self) -> None:
        """Let something happen."""
        kinds = [self.send, self.fetch, self.close, self.work, self.break_disk, self.crash, self.sleep]
        self.random.choices(kinds, [35, 10, 5, 30, 3, 4, 13])[0]()
        self.listen()
        assert self.life.titanic.in_flight <= self.settings["parallel"]

    def ask(self, kind: str, about: str, *body: bytes | str) -> None:
        peer = f"{self.random.getrandbits(64):x}"
        self.asked[peer] = kind, about
        self.life.script.feed(SOCKET, peer, f"titanic.{kind}", *body)

    def send(self) -> None:
        text = f"body {self.random.getrandbits(64)}"
        self.ask("request", text, self.random.choice(self.services), text)

    def fetch(self) -> None:
        if self.bodies:
            ident = self.random.choice(sorted(self.bodies))
            self.ask("reply", ident, self.random.choice([ident, ident.upper()]))

    def close(self) -> None:
        if self.bodies:
            ident = self.random.choice(sorted(self.bodies))
            self.closing.add(ident)
            self.ask("close", ident, ident)

    def work(self, failing: float = 0.3) -> None:
        hands = self.life.hands
        if not hands:
            return
        ident = self.random.choice(sorted(hands))
        if self.random.random() < failing:
            self.life.failed(ident)
        else:
            self.executed.add(ident)
            self.life.done(ident, b"reply to " + hands[ident][1][0])

    def break_disk(self) -> None:
        self.life.script.fail_next_job(OSError("no"))

    def crash(self, **settings) -> None:
        self.asked.clear()  # the clients that wait learn nothing
        target = self.folder / f"{self.random.getrandbits(64):x}"
        self.life = self.life.crash(target, *self.offered, **{**self.settings, **settings})

    def sleep(self) -> None:
        self.life.script.sleep(self.random.choice([0.01, 0.1, 3.0]))

    def listen(self) -> None:
        while self.life.script._unexpected:
            _, (peer, status, *rest) = self.life.script._unexpected.popleft()
            kind, about = self.asked.pop(peer.decode())
            if kind == "request" and status == b"200":
                self.bodies[rest[0].decode()] = about.encode()
            elif kind == "close" and status == b"200":
                self.closed.add(about)
            elif kind == "reply":
                self.judge(about, status, rest)

    def judge(self, ident: str, status: bytes, reply: list[bytes]) -> None:
        if status == b"200":
            assert reply == [b"reply to " + self.bodies[ident]]
            assert ident in self.executed
            self.replied.add(ident)
        elif ident not in self.closing:
            assert status == b"500" or (status == b"300" and ident not in self.replied)


@pytest.mark.seeds(40)
def test_what_was_confirmed_is_executed_and_its_reply_stays_readable(tmp_path, seed):
    world = World(tmp_path, seed)
    for _ in range(150):
        world.step()
    world.offered = world.services
    world.crash(job_delay=0.0)
    life = world.life
    while life.hands:
        world.work(failing=0.0)
    assert world.bodies.keys() - world.closing <= world.executed
    for ident, body in world.bodies.items():
        answer = life.ask("reply", ident)
        if ident in world.closed:
            assert answer == (b"400",)
        elif ident in world.closing:
            assert answer in ((b"200", b"reply to " + body), (b"400",))
        else:
            assert answer == (b"200", b"reply to " + body)
        assert life.ask("close", ident) == (b"200",)
    assert life.titanic.in_flight == 0
    life.end()
