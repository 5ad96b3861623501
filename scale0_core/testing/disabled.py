"""A real broker that is disabled: its owner's requests, and the silence of its services."""

# does I/O: real sockets

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import zmq

from scale0_core.client.kit.link import client_socket
from scale0_core.client.kit.sessions import Limits
from scale0_core.parts import records
from scale0_core.protocol import messages as wire
from scale0_core.testing.broker import ProcessBroker, RealBroker

PATIENCE_MS = 20_000
SILENCE_MS = 300


def manage(broker: RealBroker, command: str, **arguments: Any) -> tuple[int, Any]:
    """Send a management request over the owner's socket; return the code and what was answered, or the reason."""
    request = wire.write_options(command=command, args=arguments)
    with zmq.Context() as context, client_socket(context, zmq.DEALER, Limits(reconnect=True, linger_ms=0)) as socket:
        socket.connect(broker.address("scale0", "management"))
        socket.send_multipart([wire.FRONTEND, wire.MANAGEMENTREQ, request])
        if not socket.poll(PATIENCE_MS):
            raise AssertionError(f"the broker {broker.name} does not answer {command}")
        reply = wire.read_message(tuple(socket.recv_multipart()), routed=False)
    code = int(reply.options["code"])
    return code, records.from_json(reply.body[0]) if code == 200 else reply.options["message"]


def check_disabled(
    broker: ProcessBroker,
    service: str,
    socket: str,
    request: Sequence[bytes],
    *,
    answered: Callable[[list[bytes]], bool] = bool,
) -> None:
    """Check that a service does not answer while its broker is disabled, that this is counted, and that it comes back.

    ``request`` is what a DEALER sends; ``answered`` tells its answer from what else may come, such as a heartbeat. Ends
    the broker.
    """
    with zmq.Context() as context, client_socket(context, zmq.DEALER, Limits(reconnect=True, linger_ms=0)) as peer:
        peer.connect(broker.address(service, socket))
        _ask(peer, request, answered)
        assert manage(broker, "disable") == (200, {"state": "disabled"})
        peer.send_multipart(request)
        while peer.poll(SILENCE_MS):
            frames = peer.recv_multipart()
            assert not answered(frames), f"{service} answers while the broker is disabled: {frames}"
        assert manage(broker, "state")[1]["state"] == "disabled"
        assert manage(broker, "enable") == (200, {"state": "active"})
        _ask(peer, request, answered)
    broker.stop()
    totals = broker.wait_for("totals", service=service)
    assert "disabled: 1" in totals.get("dropped_by", ""), totals


def _ask(peer: zmq.Socket[bytes], request: Sequence[bytes], answered: Callable[[list[bytes]], bool]) -> None:
    peer.send_multipart(request)
    while True:
        assert peer.poll(PATIENCE_MS), f"no answer to {request}"
        if answered(peer.recv_multipart()):
            return
