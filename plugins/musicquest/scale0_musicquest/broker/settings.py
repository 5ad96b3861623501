"""The table [plugin.musicquest-broker] of broker.toml."""

from __future__ import annotations

import attrs
from attrs.validators import ge

from scale0_core.api import KIB, setting


@attrs.frozen
class MusicBrokerSettings:
    """What an operator may set."""

    bind_servers: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:6668",),
        "Addresses where servers announce themselves; {runtime} is the broker's private folder, {name} its name.",
    )
    bind_clients: tuple[str, ...] = setting(("tcp://127.0.0.1:6667",), "Addresses where clients ask for a server.")
    lease: float = setting(
        10.0,
        "Seconds after which a silent server is forgotten; servers report three times as often.",
        validator=ge(0.1),
    )
    original_lease: float = setting(
        86400.0,
        "Seconds for which a server is kept that gave its address and nothing else, as the original does, once and "
        "never again; 0: for ever.",
        validator=ge(0),
    )
    original_stay: float = setting(
        600.0,
        "Seconds in which half of the clients of such a server are taken to leave: it never says how many it has.",
        validator=ge(0.1),
    )
    retry_least: float = setting(
        1.0, "Seconds after which a client is to ask again when there is no server.", validator=ge(0.001)
    )
    retry_most: float = setting(30.0, "To what these seconds grow while there is still no server.", validator=ge(0.001))
    max_servers: int = setting(1_000, "Servers at a time.", validator=ge(1))
    max_message: int = setting(
        256 * KIB, "Bytes in one frame; a peer that sends more is disconnected.", validator=ge(1_000)
    )
