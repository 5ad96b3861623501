"""A real broker that is disabled, with a service of a plugin; the other plugins have such tests of their own."""

from __future__ import annotations

import subprocess
import sys

from scale0_core.testing import check_disabled, manage


def test_a_service_is_silent_while_the_broker_is_disabled(scale0_broker):
    check_disabled(scale0_broker(["echo"]), "echo", "requests", [b"ECHO", b"", b"hello"])


def test_the_command_of_a_plugin_gets_no_answer_from_a_disabled_broker(scale0_broker):
    broker = scale0_broker(["echo"])
    command = [sys.executable, "-m", "scale0_core", "echo", "--timeout", "0.5", "hello"]
    command += ["--broker", broker.address("echo", "requests")]

    def echo() -> tuple[int, str]:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        return done.returncode, done.stdout

    assert echo() == (0, "hello\n")
    manage(broker, "disable")
    assert echo() == (75, "")
    manage(broker, "enable")
    assert echo() == (0, "hello\n")


def test_a_broker_that_starts_disabled_says_so_and_its_services_are_silent(scale0_broker):
    broker = scale0_broker(["echo"], {"network": {"state": "disabled"}})
    assert broker.log[-1]["event"] == "disabled"
    assert not [line for line in broker.log if line["event"] == "ready"]
    manage(broker, "enable")
    check_disabled(broker, "echo", "requests", [b"ECHO", b"", b"hello"])


def test_the_services_of_a_joining_broker_are_silent(scale0_broker):
    broker = scale0_broker(["echo"], {"network": {"state": "joining"}})
    assert broker.log[-1]["event"] == "joining"
    manage(broker, "reload_config")
    check_disabled(broker, "echo", "requests", [b"ECHO", b"", b"hello"])
