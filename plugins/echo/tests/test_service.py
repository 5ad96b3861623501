"""The service alone: conversations on virtual time, no socket is opened."""

import hashlib

import pytest

from scale0_core.testing import Script, check_service
from scale0_echo.service import EchoService
from scale0_echo.settings import EchoSettings


@pytest.fixture
def script():
    return Script(EchoService())


def test_sends_back_at_once(script):
    script.feed("requests", "client", "ECHO", "", "hello", "world")
    script.expect("requests", "client", "hello", "world")
    script.expect_nothing()


def test_sends_back_a_single_frame(script):
    script.feed("requests", "client", "ECHO", "", "hello")
    script.expect("requests", "client", "hello")


def test_answers_a_req_socket_with_its_empty_frame(script):
    script.feed("requests", "client", "", "ECHO", "", "hello")
    script.expect("requests", "client", "", "hello")


def test_sends_back_large_bodies(script):
    body = b"x" * 100_000
    script.feed("requests", "client", "ECHO", "", body)
    script.expect("requests", "client", body)


def test_sends_back_later(script):
    script.feed("requests", "client", "LATER", "250", "hello")
    script.sleep(0.249)
    script.expect_nothing()
    script.sleep(0.001)
    script.expect("requests", "client", "hello")


def test_sends_back_in_the_order_in_which_they_are_due(script):
    script.feed("requests", "client", "LATER", "20", "second")
    script.feed("requests", "client", "LATER", "10", "first")
    script.feed("requests", "client", "LATER", "20", "third")
    script.sleep(1)
    for body in ("first", "second", "third"):
        script.expect("requests", "client", body)
    script.expect_nothing()


def test_has_no_deadline_when_nothing_waits(script):
    assert script.service.next_deadline() is None


@pytest.mark.parametrize("options", ["", "soon", "-1", "1.5", "3600001", "99999999999"])
def test_refuses_a_delay_that_is_none(script, options):
    script.feed("requests", "client", "LATER", options, "hello")
    script.expect("requests", "client", "ERROR", "400", ...)


def test_refuses_when_too_many_wait():
    script = Script(EchoService(EchoSettings(max_waiting=1)))
    script.feed("requests", "client", "LATER", "10", "one")
    script.feed("requests", "client", "LATER", "10", "two")
    script.expect("requests", "client", "ERROR", "429", ...)
    script.sleep(1)
    script.expect("requests", "client", "one")
    script.expect_nothing()


def test_digests_in_a_job(script):
    script.feed("requests", "client", "", "DIGEST", "", "hello ", "world")
    script.expect("requests", "client", "", hashlib.sha256(b"hello world").hexdigest())


def test_tells_when_a_digest_fails(script):
    script.fail_next_job(OSError("no more entropy"))
    script.feed("requests", "client", "DIGEST", "", "hello")
    script.expect("requests", "client", "ERROR", "500", "no more entropy")


@pytest.mark.parametrize("request_frames", [(), ("ECHO",), ("ECHO", ""), ("", "ECHO", "")])
def test_refuses_what_is_too_short(script, request_frames):
    script.feed("requests", "client", *request_frames)
    *envelope, error, code, _ = script.sent[0][1]
    assert ([error, code], envelope[0]) == ([b"ERROR", b"400"], b"client")


@pytest.mark.parametrize("command", [("SHOUT", ""), ("ECHO", "options"), ("DIGEST", "options"), ("echo", "")])
def test_refuses_unknown_commands(script, command):
    script.feed("requests", "client", *command, "hello")
    script.expect("requests", "client", "ERROR", "501", ...)


def test_keeps_its_contract_whatever_comes():
    samples = [
        ("requests", (b"client", b"ECHO", b"", b"hello")),
        ("requests", (b"client", b"", b"LATER", b"10", b"hello")),
        ("requests", (b"client", b"DIGEST", b"", b"hello")),
    ]
    report = check_service(EchoService, samples=samples)
    assert report.sends > 0
    assert report.jobs > 0
