"""The table of commands, and the check of who is asking."""

from __future__ import annotations

import json

import pytest

from scale0_core.config.network import User
from scale0_core.network.management import (
    LOCK_AFTER,
    Deferred,
    DeferredReply,
    Management,
    ManagementCommand,
    ManagementError,
    Pending,
)
from scale0_core.network.passwords import hash_password
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import Message
from scale0_core.service import Job, JobResult

KEY = ("frontend", b"c")
USERS = [User("ada", hash_password("secret", b"0123456789abcdef"), "admin")]


def fail(arguments, now):
    raise ManagementError(Code.NO_SERVICE, "there is none")


COMMANDS = [
    ManagementCommand("show", "viewer", "", lambda arguments, now: ({"args": dict(arguments), "now": now}, [])),
    ManagementCommand("later", "viewer", "", lambda arguments, now: (Deferred(Job("k", str), lambda v: (v, [])), [])),
    ManagementCommand("fail", "viewer", "", fail),
    ManagementCommand("enable", "admin", "", lambda arguments, now: ("on", [])),
]


def message(command: str, **options: object) -> Message:
    return Message((b"c",), b"S0C01", b"MANAGEMENTREQ", {"command": command, **options}, ())


def request(command: str, *, trusted: bool = True, silent: bool = False, made: Management | None = None, **options):
    management = made or Management(USERS, COMMANDS)
    return management.request(KEY, message(command, **options), 7.0, trusted=trusted, silent=silent)


def answer(effects) -> tuple[int, object]:
    ((socket, frames),) = effects
    assert (socket, frames[:3]) == ("frontend", (b"c", b"S0C01", b"MANAGEMENTREP"))
    return json.loads(frames[3])["code"], json.loads(frames[4])


def test_a_trusted_request_is_carried_out_at_once():
    assert answer(request("show", args={"a": 1})) == (200, {"args": {"a": 1}, "now": 7.0})


def test_a_command_that_cannot_be_carried_out_says_why():
    assert answer(request("fail")) == (404, None)


@pytest.mark.requirement("R48")
def test_another_request_is_a_job_first():
    management = Management(USERS, COMMANDS)
    (job,) = request("show", trusted=False, made=management, auth_id="ada", auth_password="secret")
    assert isinstance(job, Job)
    assert isinstance(job.token, Pending)
    assert job.function(job.argument) is True
    assert answer(management.checked(job.token, True, 8.0)) == (200, {"args": {}, "now": 8.0})


def test_a_name_that_does_not_exist_takes_as_long_as_one_that_does(monkeypatch: pytest.MonkeyPatch):
    hashed = []
    monkeypatch.setattr("scale0_core.network.management.hash_password", lambda *a: hashed.append(a) or "")
    (job,) = request("show", trusted=False, auth_id="nobody", auth_password="x")
    assert job.function(job.argument) is False
    assert len(hashed) == 1


def test_a_user_who_is_taken_away_while_the_password_is_compared_is_refused():
    management = Management(USERS, COMMANDS)
    (job,) = request("show", trusted=False, made=management, auth_id="ada", auth_password="secret")
    management.set_users([])
    assert answer(management.checked(job.token, True, 8.0))[0] == 401


def test_an_answer_may_come_later():
    management = Management(USERS, COMMANDS)
    (job,) = request("later", made=management)
    assert isinstance(job.token, DeferredReply)
    assert answer(management.ended(job.token, JobResult(job.token, "value"))) == (200, "value")
    assert answer(management.ended(job.token, JobResult(job.token, error=OSError("disk")))) == (500, None)


@pytest.mark.requirement("R67")
def test_in_silence_only_enable_is_taken():
    assert request("show", silent=True) == []
    assert request("nonsense", silent=True) == []
    assert answer(request("enable", silent=True)) == (200, "on")
    management = Management(USERS, COMMANDS)
    (job,) = request("enable", trusted=False, silent=True, made=management, auth_id="ada", auth_password="x")
    assert management.checked(job.token, False, 8.0) == []


def test_failures_are_forgotten_in_time():
    management = Management(USERS, COMMANDS)
    for moment in range(LOCK_AFTER):
        management._checking += 1
        pending = Pending(KEY, message("show"), "ada", COMMANDS[0], silent=False)
        management.checked(pending, False, float(moment))
    assert management._locked("ada", 10.0)
    assert not management._locked("ada", 61.0)
    assert not management._locked("ada", 1000.0)
    assert management._failures == {}


def test_values_that_are_no_json_are_written_as_text():
    odd = ManagementCommand("odd", "viewer", "", lambda arguments, now: ({"path": object}, []))
    management = Management([], [odd])
    assert answer(request("odd", made=management))[1] == {"path": "<class 'object'>"}
