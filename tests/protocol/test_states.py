"""The transition tables: complete where they must be, closed, and drawn as they are."""

from __future__ import annotations

import pytest

from scale0_core.protocol.codes import CODES, Code
from scale0_core.protocol.states import (
    BROKER,
    CLIENT,
    BrokerEvent,
    BrokerState,
    ClientEvent,
    ClientState,
    LocalProtocolError,
    allowed,
    draw,
    step,
)


def reachable(table, first):
    found, new = set(), {first}
    while new:
        found |= new
        new = {after for (before, _), after in table.items() if before in found} - found
    return found


@pytest.mark.requirement("R63")
def test_every_state_can_be_reached():
    assert reachable(CLIENT, ClientState.UNKNOWN) == set(ClientState)
    assert reachable(BROKER, BrokerState.JOINING) == set(BrokerState)


def test_nothing_happens_to_a_client_that_is_gone():
    assert [event for event in ClientEvent if allowed(CLIENT, ClientState.GONE, event)] == []


@pytest.mark.parametrize("event", [ClientEvent.LEAVE, ClientEvent.LOST, ClientEvent.REFUSED])
def test_every_known_client_may_go(event: ClientEvent):
    known = set(ClientState) - {ClientState.UNKNOWN, ClientState.GONE}
    assert {step(CLIENT, state, event) for state in known} == {ClientState.GONE}


@pytest.mark.requirement("R37")
@pytest.mark.requirement("R55")
def test_an_unknown_client_may_do_nothing_but_negotiate():
    assert [event for event in ClientEvent if allowed(CLIENT, ClientState.UNKNOWN, event)] == [ClientEvent.CHECKCONFIG]


@pytest.mark.requirement("R65")
@pytest.mark.requirement("R66")
def test_the_life_of_a_broker():
    state = step(BROKER, BrokerState.JOINING, BrokerEvent.CONFIGURED)
    assert state is BrokerState.ACTIVE
    assert step(BROKER, state, BrokerEvent.DISABLE) is BrokerState.DISABLED
    assert step(BROKER, BrokerState.DISABLED, BrokerEvent.CONFIGURED) is BrokerState.DISABLED
    assert step(BROKER, BrokerState.DISABLED, BrokerEvent.ENABLE) is BrokerState.ACTIVE
    assert not allowed(BROKER, BrokerState.JOINING, BrokerEvent.ENABLE)


def test_a_step_that_is_not_in_the_table_is_an_error_of_the_broker():
    with pytest.raises(LocalProtocolError, match="READY cannot happen in state unknown"):
        step(CLIENT, ClientState.UNKNOWN, ClientEvent.READY)


@pytest.mark.parametrize("table", [CLIENT, BROKER])
def test_a_drawing_has_every_transition_and_no_other(table):
    kind, first, *arrows = draw(table).splitlines()
    assert (kind, first.strip()) == ("stateDiagram-v2", f"[*] --> {next(iter(table))[0].value}")
    drawn = set()
    for arrow in arrows:
        ends, _, events = arrow.strip().partition(": ")
        before, _, after = ends.partition(" --> ")
        drawn |= {(before, event, after) for event in events.split(", ")}
    assert drawn == {(before.value, event.value, after.value) for (before, event), after in table.items()}


@pytest.mark.requirement("R53")
def test_codes_are_https_numbers_with_a_meaning_and_a_remedy():
    assert set(CODES) == set(Code)
    for info in CODES.values():
        assert 100 <= info.code <= 599
        assert info.meaning
        assert info.remedy
