"""Requests that nobody waits for any more: through the bridge, and by streams that are dropped."""

from __future__ import annotations

from scale0_core.api import Registry
from scale0_core.testing import Script
from scale0_majordomo.bridge import Bridge
from scale0_majordomo.bridged import BridgedMajordomo
from scale0_majordomo.settings import MajordomoSettings

# tasks of Scale0 for workers of MDP, on virtual time


def bridge_with(*worker: str) -> Script:
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    script = Script(BridgedMajordomo(MajordomoSettings(), ("inproc://majordomo",), None, bridge, Registry()), start=1.0)
    script.feed("requests", "w", *worker)
    script.sleep(0.1)
    script.expect("offers", "S0W01", "CHECKCONFIG", ...)
    script.feed("offers", "S0W01", "CONFIGACK", '{"config_version": 7}')
    assert b'"cancel":true' in script.expect("offers", "S0W01", "READY", ...)[2]
    script.feed("offers", "S0W01", "READYOK", '{"hbeatinterval": 60000}')
    return script


def test_a_cancelled_task_is_cancelled_at_a_worker_of_our_own_dialect():
    script = bridge_with("S0MW01", "\x01", "echo", '{"credit":2}')
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "S0MW01", "\x02", ..., "echo", "", "hello")[3]
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.expect("requests", "w", "S0MW01", "\x08", address)
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "17")  # which frees the slot
    script.feed("requests", "w", "S0MW01", "\x07", address, "410", "cancelled")
    script.expect_nothing()


def test_a_cancelled_task_frees_its_slot_also_where_the_worker_cannot_be_told():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")[4]
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "17")
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "late")
    script.expect_nothing()


def test_a_cancelled_task_that_waits_is_not_given_to_a_worker():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "first")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "first")[4]
    script.feed("offers", "S0W01", "TASK", "", "echo", "18", "second")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "18")
    script.expect("offers", "S0W01", "TASKREPLY", ..., "echo", "18")
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "done")
    script.expect("offers", "S0W01", "TASKREPLY", "", "echo", "17", "done")
    script.expect_nothing()


def test_a_cancel_of_a_task_that_is_over_or_was_never_there_does_nothing():
    script = bridge_with("", "MDPW01", "\x01", "echo")
    script.feed("offers", "S0W01", "TASK", "", "echo", "17", "hello")
    address = script.expect("requests", "w", "", "MDPW01", "\x02", ..., "", "hello")[4]
    script.feed("requests", "w", "", "MDPW01", "\x03", address, "", "done")
    script.expect("offers", "S0W01", "TASKREPLY", "", "echo", "17", "done")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "17")
    script.feed("offers", "S0W01", "CANCEL", "", "echo", "99")
    script.expect_nothing()
