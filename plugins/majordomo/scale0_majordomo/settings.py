"""The table [plugin.majordomo] of broker.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import attrs
from attrs.validators import ge

from scale0_core.api import MIB, setting


@attrs.frozen
class ServiceSettings:
    """How the requests of a service are treated."""

    scheduling: Literal["lru", "least", "priority", "sticky"] = setting(
        "lru",
        "Who gets a request: lru, the worker that has been idle longest; least, the one with fewest in hand; priority, "
        "as lru, but urgent requests first; sticky, always the same one for a key.",
    )
    resend: bool = setting(True, "Whether a request whose worker died goes to another one.")
    max_tries: int = setting(3, "How many workers may get a request, one after the other.", validator=ge(1))
    expiry: float = setting(60.0, "Seconds for which a request may wait for a worker.", validator=ge(0.001))
    max_queue: int = setting(
        131_072,
        "Maximum number of waiting requests; one client may have at most four times as many as are free.",
        validator=ge(0),
    )
    max_queue_bytes: int = setting(
        64 * MIB,
        "Maximum memory of waiting requests in bytes: of each its body, 448, and 64 a frame. One client may have at "
        "most four times as much as is free.",
        validator=ge(0),
    )
    error_replies: bool = setting(
        False,
        "Send clients of MDP 0.1 and 0.2 a reply of two frames, code and reason, when their request is refused, "
        "expires or fails. MDP has no errors: without this they get nothing, with it a reply that only they can tell "
        "from one of the service.",
    )


@attrs.frozen
class MajordomoSettings:
    """What an operator may set."""

    bind: tuple[str, ...] = setting(
        ("tcp://127.0.0.1:5555",),
        "Addresses to listen on; {runtime} is the broker's private folder, {name} its name.",
    )
    heartbeat: float = setting(2.5, "Seconds between heartbeats to a worker.", validator=ge(0.001))
    liveness: int = setting(3, "An idle worker that is silent for so many heartbeats is forgotten.", validator=ge(1))
    busy_timeout: float = setting(
        900.0, "Seconds for which a worker may be silent while it works on a request.", validator=ge(0.001)
    )
    max_message: int = setting(16 * MIB, "Bytes in one frame; a peer that sends more is disconnected.", validator=ge(1))
    max_services: int = setting(10_000, "Names of services at a time.", validator=ge(1))
    max_workers: int = setting(100_000, "Workers at a time.", validator=ge(1))
    bridge: bool = setting(
        True,
        "Let Scale0's workers and plugins be called by MDP, and MDP workers by Scale0's clients, through this broker.",
    )
    bridge_frontend: str = setting("", "Address at which a broker takes tasks; empty: this broker's own.")
    bridge_backend: str = setting("", "Address at which a broker takes workers; empty: this broker's own.")
    claim: float = setting(
        600.0,
        "Seconds for which a name that MDP workers have served stays theirs after the last one left: requests wait for "
        "the next one rather than go to a service of Scale0 of the same name.",
        validator=ge(0),
    )
    titanic: bool = setting(False, "Offer titanic.request, titanic.reply and titanic.close: requests kept on disk.")
    titanic_expiry: float = setting(
        604800.0,
        "Seconds for which a stored request and its reply are kept; 0: until they are closed.",
        validator=ge(0),
    )
    titanic_parallel: int = setting(64, "Stored requests carried out at the same time.", validator=ge(1))
    default: ServiceSettings = attrs.field(
        factory=ServiceSettings, metadata={"help": "How services are treated that have no table of their own."}
    )
    services: Mapping[str, ServiceSettings] = attrs.field(
        factory=dict, metadata={"help": "Tables for services by name: [plugin.majordomo.services.thumbnails]."}
    )
