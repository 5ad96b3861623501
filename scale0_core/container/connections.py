"""What the sockets of a service are connected to, and which new connections they may have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scale0_core.config.addresses import connect_fault, is_local
from scale0_core.service import Connect, Disconnect, Endpoint, SocketKind

NO_SOCKET = "no such socket"
MALFORMED_ADDRESS = "malformed address"
MALFORMED_ID = "malformed routing id"
NOT_LOCAL = "not local"
ID_IN_USE = "routing id in use"
OTHER_ID = "connected under another routing id"
CLOSED = "closed"

LONGEST_ID = 255
REUSE_AFTER = 10.0
"""Seconds after ``wire.linger_ms`` until a routing id that was let go can be used again. ZeroMQ lets go of it on a
thread of its own, does not say when, and ends the whole process if it is used again before."""


class Connections:
    """The connections of one service's sockets; those that peers have made are not among them."""

    def __init__(self, endpoints: Mapping[str, Endpoint], *, insecure: bool, linger: float) -> None:
        self._endpoints = endpoints
        self._insecure = insecure
        self._reuse_after = linger + REUSE_AFTER
        self._ids: dict[tuple[str, str], bytes] = {
            (name, address): b"" for name, endpoint in endpoints.items() for address in endpoint.connect
        }
        self._resting: dict[tuple[str, bytes], float] = {}
        """Routing ids that were let go, and when they can be used again; in that order."""

    def fault(self, effect: Connect | Disconnect, now: float) -> str:
        """Say why an effect is refused; nothing, when it may be carried out."""
        # addresses come from peers more often than not, and not every plugin has its types checked
        socket: Any = effect.socket
        address: Any = effect.address
        if not isinstance(socket, str) or socket not in self._endpoints:
            return NO_SOCKET
        if not isinstance(address, str) or connect_fault("", address):
            return MALFORMED_ADDRESS
        if isinstance(effect, Disconnect):
            return ""
        if not self._insecure and not is_local(address):
            return NOT_LOCAL
        return self._id_fault(effect, now)

    def changes(self, effect: Connect | Disconnect) -> bool:
        """Tell whether there is anything to do."""
        return ((effect.socket, effect.address) in self._ids) is isinstance(effect, Disconnect)

    def made(self) -> list[Connect]:
        """List the connections that the service asked for at run time."""
        return [
            Connect(socket, address, routing_id)
            for (socket, address), routing_id in self._ids.items()
            if address not in self._endpoints[socket].connect
        ]

    def connected(self, effect: Connect) -> None:
        """Note a connection that was made."""
        self._ids[effect.socket, effect.address] = effect.routing_id

    def disconnected(self, effect: Disconnect, now: float) -> bytes:
        """Note a connection that was ended; give the routing id that it had, if any."""
        routing_id = self._ids.pop((effect.socket, effect.address))
        self.rest(effect.socket, routing_id, now)
        return routing_id

    def rest(self, socket: str, routing_id: bytes, now: float) -> None:
        """Keep a routing id from being used again too soon."""
        if routing_id:
            self._resting[socket, routing_id] = now + self._reuse_after

    def _id_fault(self, effect: Connect, now: float) -> str:
        routing_id: Any = effect.routing_id
        if not isinstance(routing_id, bytes) or len(routing_id) > LONGEST_ID:
            return MALFORMED_ID
        if routing_id and self._endpoints[effect.socket].kind is not SocketKind.ROUTER:
            return MALFORMED_ID
        present = self._ids.get((effect.socket, effect.address))
        if present is not None:
            return "" if present == routing_id else OTHER_ID
        return ID_IN_USE if routing_id and self._in_use(effect.socket, routing_id, now) else ""

    def _in_use(self, socket: str, routing_id: bytes, now: float) -> bool:
        while self._resting and now >= next(iter(self._resting.values())):
            del self._resting[next(iter(self._resting))]
        if (socket, routing_id) in self._resting:
            return True
        return any(name == socket and routing_id == used for (name, _), used in self._ids.items())
