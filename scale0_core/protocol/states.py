"""Which state follows which: the life of a client as the broker sees it, and the life of a broker.

Each is a table, and the diagrams in the docs are drawn from it. What a table does not list is not allowed: a client
that asks for it is told to negotiate (FORCENEGOTIATE), and the broker's own code may not do it (``step`` raises).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class ClientState(str, Enum):
    """How far a client has come."""

    UNKNOWN = "unknown"
    CHECKED = "checked"
    READY = "ready"
    BUSY = "busy"
    UNRESPONSIVE = "unresponsive"
    GONE = "gone"


class ClientEvent(str, Enum):
    """What happens to a client."""

    CHECKCONFIG = "CHECKCONFIG"
    READY = "READY"
    FULL = "as many tasks as it takes"
    FREE = "room for a task"
    SILENCE = "silence"
    SIGN = "sign of life"
    LEAVE = "DISCONNECT"
    LOST = "connection lost"
    REFUSED = "DISCONNECTERROR"


class BrokerState(str, Enum):
    """What a broker answers to: everything, only management, or nothing but being enabled."""

    JOINING = "joining"
    ACTIVE = "active"
    DISABLED = "disabled"


class BrokerEvent(str, Enum):
    """What happens to a broker."""

    CONFIGURED = "configuration received"
    DISABLE = "disable"
    ENABLE = "enable"


def _client_table() -> dict[tuple[ClientState, ClientEvent], ClientState]:
    unknown, checked, ready, busy, silent, gone = ClientState
    table = {
        (unknown, ClientEvent.CHECKCONFIG): checked,
        (checked, ClientEvent.CHECKCONFIG): checked,
        (ready, ClientEvent.CHECKCONFIG): ready,
        (busy, ClientEvent.CHECKCONFIG): busy,
        (silent, ClientEvent.CHECKCONFIG): silent,
        (checked, ClientEvent.READY): ready,
        (ready, ClientEvent.READY): ready,
        (busy, ClientEvent.READY): ready,
        (silent, ClientEvent.READY): ready,
        (ready, ClientEvent.FULL): busy,
        (busy, ClientEvent.FREE): ready,
        (ready, ClientEvent.SILENCE): silent,
        (busy, ClientEvent.SILENCE): silent,
        (checked, ClientEvent.SILENCE): gone,
        (silent, ClientEvent.SIGN): busy,
        (silent, ClientEvent.SILENCE): gone,
    }
    for state in (checked, ready, busy, silent):
        for event in (ClientEvent.LEAVE, ClientEvent.LOST, ClientEvent.REFUSED):
            table[state, event] = gone
    return table


CLIENT: Mapping[tuple[ClientState, ClientEvent], ClientState] = _client_table()
"""The life of a client. After a sign of life it is busy until there is room for a task again."""

BROKER: Mapping[tuple[BrokerState, BrokerEvent], BrokerState] = {
    (BrokerState.JOINING, BrokerEvent.CONFIGURED): BrokerState.ACTIVE,
    (BrokerState.ACTIVE, BrokerEvent.CONFIGURED): BrokerState.ACTIVE,
    (BrokerState.JOINING, BrokerEvent.DISABLE): BrokerState.DISABLED,
    (BrokerState.ACTIVE, BrokerEvent.DISABLE): BrokerState.DISABLED,
    (BrokerState.DISABLED, BrokerEvent.CONFIGURED): BrokerState.DISABLED,
    (BrokerState.DISABLED, BrokerEvent.DISABLE): BrokerState.DISABLED,
    (BrokerState.DISABLED, BrokerEvent.ENABLE): BrokerState.ACTIVE,
    (BrokerState.ACTIVE, BrokerEvent.ENABLE): BrokerState.ACTIVE,
}
"""The life of a broker."""


class LocalProtocolError(Exception):
    """The broker's own code asked for a transition that does not exist."""


def allowed(table: Mapping[tuple[S, E], S], state: S, event: E) -> bool:
    """Tell whether an event may happen in a state."""
    return (state, event) in table


def step(table: Mapping[tuple[S, E], S], state: S, event: E) -> S:
    """Give the state that follows."""
    try:
        return table[state, event]
    except KeyError:
        raise LocalProtocolError(f"{event.name} cannot happen in state {state.value}") from None


def draw(table: Mapping[tuple[S, E], S]) -> str:
    """Draw a table as a Mermaid diagram; events between the same two states share an arrow."""
    arrows: dict[tuple[S, S], list[str]] = {}
    for (state, event), following in table.items():
        arrows.setdefault((state, following), []).append(event.value)
    lines = [f"    {a.value} --> {b.value}: {', '.join(events)}" for (a, b), events in arrows.items()]
    first = next(iter(table))[0]
    return "\n".join(["stateDiagram-v2", f"    [*] --> {first.value}", *lines])
