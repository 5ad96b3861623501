"""Whether this machine could open the addresses of a configuration, looked at without opening one."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from scale0_core.config.addresses import NETWORK_PORTS, bind_fault, ipc_path, is_local, tcp_host
from scale0_core.config.network import NetworkConfig
from scale0_core.config.structure import nearest, shown
from scale0_core.errors import Fault
from scale0_core.plugin_types import BrokerContext
from scale0_core.service import Endpoint


def endpoint_faults(
    place: str, address: str, endpoint: Endpoint, context: BrokerContext, *, insecure: bool
) -> list[Fault]:
    """List all that keeps this machine from binding an endpoint to one of its addresses."""
    malformed = bind_fault(place, address)
    if malformed:
        return [malformed]
    faults = [_not_here(place, address, ipv6=bool(endpoint.options.get("IPV6"))), _no_folder(place, address, context)]
    if not insecure and not is_local(address):
        message = f"{shown(address)}: other machines can reach it, and nothing on it is encrypted or authenticated"
        faults.append(Fault(place, message, "bind to 127.0.0.1, or set wire.insecure = true if the network is trusted"))
    return [fault for fault in faults if fault]


def network_endpoints(network: NetworkConfig, context: BrokerContext) -> dict[str, str]:
    """Give the addresses of the broker's own sockets by the setting that is to blame for each."""
    ports = attrs.asdict(network, recurse=False)
    found = {}
    for key in NETWORK_PORTS:
        port = ports[key]
        if isinstance(port, int):
            # wrong for one is wrong for all, so it is said once
            found["network.bind_address"] = f"tcp://{network.bind_address}:{port or '*'}"
        elif port:
            found[f"network.{key}"] = context.address(port)
    return found


def place_of(address: str, table: str, settings: Any, context: BrokerContext) -> str | None:
    """Find the setting of a plugin that an address came from; None when it is the plugin's own idea."""
    values: Mapping[str, Any] = attrs.asdict(settings, recurse=False) if settings is not None else {}
    for key, value in values.items():
        if isinstance(value, str) and context.address(value) == address:
            return f"{table}.{key}"
        for index, item in enumerate(value if isinstance(value, list | tuple) else ()):
            if isinstance(item, str) and context.address(item) == address:
                return f"{table}.{key}[{index}]"
    return None


def _not_here(place: str, address: str, *, ipv6: bool) -> Fault | None:
    host = tcp_host(address)
    if host is None or host == "*":
        return None
    if ":" in host and not ipv6:
        return Fault(place, f"{shown(address)}: this socket takes no IPv6 addresses", "take one of IPv4")
    interfaces = [name for _, name in socket.if_nameindex()]
    if host in interfaces or _has(host):
        return None
    hint = "an address of this machine is needed, such as 127.0.0.1"
    if not host.replace(".", "").isdecimal() and ":" not in host:
        hint = f"{hint}, or an interface: {nearest(host, interfaces)}"
    return Fault(place, f"{shown(address)}: this machine has no {host}", hint)


def _has(host: str) -> bool:
    """Tell whether this machine has an address, by a datagram socket at a port of the system's choice.

    Nothing can be in its way and nobody can connect to it; a list of all addresses is not to be had from Python.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(place)
    except (OSError, UnicodeError):
        return False
    return True


def _no_folder(place: str, address: str, context: BrokerContext) -> Fault | None:
    path = ipc_path(address)
    # the broker makes its own folder when it starts
    if path is None or path.parent == Path(context.runtime_dir) or path.parent.is_dir():
        return None
    return Fault(place, f"{shown(address)}: there is no folder {path.parent}", "make it first")
