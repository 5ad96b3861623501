"""Whether an address to bind to is well formed; whether this machine has it is a question for ``cli.addresses``."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from pathlib import Path

from scale0_core.config.structure import nearest, shown
from scale0_core.errors import Fault

TRANSPORTS = ("inproc", "ipc", "tcp")
EXAMPLE = "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path"
LONGEST_PATH = 107
"""The bytes that a unix socket's path may have."""

NETWORK_PORTS = ("frontend_port", "backend_port", "config_pub_port")
"""The settings of [network] that say where the broker's own sockets are."""


def bind_fault(place: str, address: str) -> Fault | None:
    """Say what is wrong with the form of an address; libzmq takes some of it for another port without a word."""
    transport, separator, rest = address.partition("://")
    if not separator:
        return Fault(place, f"{shown(address)} is not an address", EXAMPLE)
    if transport not in TRANSPORTS:
        return Fault(place, f"{shown(address)}: there is no transport {transport!r}", nearest(transport, TRANSPORTS))
    if not rest:
        return Fault(place, f"{shown(address)}: nothing follows {transport}://", EXAMPLE)
    if transport == "ipc" and len(rest.encode("utf-8", "surrogatepass")) > LONGEST_PATH:
        return Fault(
            place, f"{shown(address)}: a socket's path has at most {LONGEST_PATH} bytes", "choose a shorter one"
        )
    return _tcp_fault(place, address, rest) if transport == "tcp" else None


def connect_fault(place: str, address: str) -> Fault | None:
    """Say what is wrong with the form of an address to connect to: here one host and one port are needed."""
    if fault := bind_fault(place, address):
        return fault
    if any(not character.isprintable() for character in address):
        return Fault(place, f"{shown(address)} has characters that cannot be printed", EXAMPLE)
    if not address.startswith("tcp://"):
        return None
    port = address.rpartition(":")[2]
    if tcp_host(address) == "*" or port == "*" or int(port) == 0:
        return Fault(place, f"{shown(address)}: nobody can connect there", "say which host and which port")
    return None


def tcp_host(address: str) -> str | None:
    """Give the host of a TCP address, without the brackets around an IPv6 one; None for other transports."""
    if not address.startswith("tcp://"):
        return None
    host = address.removeprefix("tcp://").rpartition(":")[0]
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_local(address: str) -> bool:
    """Tell whether an address can only be reached from this machine."""
    if address.startswith(("ipc://", "inproc://")):
        return True
    host = tcp_host(address)
    try:
        return host is not None and (host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback)
    except ValueError:
        return False


def ipc_path(address: str) -> Path | None:
    """Give the file of an ipc address; None for abstract names and other transports."""
    path = address.removeprefix("ipc://")
    return Path(path) if path != address and not path.startswith("@") else None


def network_faults(table: object) -> list[Fault]:
    """List the addresses of the table [network], not structured yet, that are not well formed."""
    if not isinstance(table, Mapping):
        return []
    faults = [
        bind_fault(f"network.{key}", _filled(value))
        for key in NETWORK_PORTS
        if isinstance(value := table.get(key), str) and value and not value.isdecimal()
    ]
    host = table.get("bind_address")
    if isinstance(host, str):
        faults.append(_host_fault("network.bind_address", shown(host), host))
    return [fault for fault in faults if fault]


def _filled(template: str) -> str:
    """Put something short for the parts that a broker fills in."""
    return template.replace("{runtime}", "/run").replace("{name}", "name")


def _tcp_fault(place: str, address: str, rest: str) -> Fault | None:
    host, colon, port = rest.rpartition(":")
    if not colon:
        return Fault(
            place, f"{shown(address)}: the port is missing", "an asterisk takes any free one, as in tcp://lo:*"
        )
    if port != "*" and not (re.fullmatch("[0-9]{1,5}", port) and int(port) <= 65535):
        message = f"{shown(address)}: {port!r} is no port"
        return Fault(place, message, "it is a number of at most 65535, or * for any free one")
    return _host_fault(place, shown(address), host)


def _host_fault(place: str, said: str, host: str) -> Fault | None:
    if not host:
        return Fault(place, f"{said}: the host is missing", "127.0.0.1 for this machine alone, * for all its addresses")
    # an IPv6 address has colons, and at its end perhaps the name of an interface
    if not re.fullmatch(r"\*|\[[^\[\]\s/;]+\]|[^\[\]\s/;:]+", host):
        return Fault(place, f"{said}: {host!r} is no host", "an address of this machine, or the name of an interface")
    return None
