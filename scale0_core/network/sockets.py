"""The sockets of the broker's own service."""

from __future__ import annotations

import attrs

from scale0_core.api import KIB, Endpoint, SocketKind
from scale0_core.network.dispatch import HOSTED
from scale0_core.network.hosting import ENDPOINT as HOSTED_ENDPOINT

IN_PROCESS = "in_process"
CLIENTS = ("frontend", "backend", IN_PROCESS)
"""Sockets on which tasks and replies come."""


@attrs.frozen
class NetworkSockets:
    """Where the broker listens."""

    frontend: tuple[str, ...]
    backend: tuple[str, ...]
    config: tuple[str, ...]
    management: tuple[str, ...]


def endpoints(sockets: NetworkSockets) -> dict[str, Endpoint]:
    """Return the endpoints by name; without those that have no address."""
    # workers have heartbeats of their own; ZeroMQ's timers, which it looks for one by one, stall it with thousands
    heartbeats = {"HEARTBEAT_IVL": 0}
    found = {
        "frontend": Endpoint(kind=SocketKind.ROUTER, bind=sockets.frontend, blob_over=8 * KIB, watch_peers=True),
        "backend": Endpoint(
            kind=SocketKind.ROUTER, bind=sockets.backend, blob_over=8 * KIB, watch_peers=True, options=heartbeats
        ),
        IN_PROCESS: Endpoint(kind=SocketKind.ROUTER, bind="@scale0", blob_over=8 * KIB, watch_peers=True),
        HOSTED: HOSTED_ENDPOINT,
        "config": Endpoint(kind=SocketKind.XPUB, bind=sockets.config),
        "management": Endpoint(kind=SocketKind.ROUTER, bind=sockets.management, max_message=64 * KIB),
    }
    return {name: endpoint for name, endpoint in found.items() if endpoint.bind}
