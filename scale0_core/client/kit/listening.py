"""Whether anybody listens at a local address, so that a client fails immediately where waiting is in vain."""

from __future__ import annotations

import errno
import os
import socket

from scale0_core.client.kit.route import BETWEEN, resolve
from scale0_core.config.addresses import is_local, tcp_host

PROBE_SECONDS = 1.0
"""A local listener accepts or refuses immediately; one that takes longer is busy, so it is there."""

HOPELESS = (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED, errno.EACCES, errno.EPROTOTYPE)


def why_nobody_listens(target: str) -> str:
    """Return why nobody can be reached at a target, or "" if somebody listens or only time can tell.

    Addresses of other machines and in-process ones give "". It looks once: whoever wants to wait for a broker that is
    being started retries. The probe is a connection at the listener, so call this after connecting has failed.
    """
    reasons = []
    for attempt in range(target.count(BETWEEN) + 1):
        address, reason = resolve(target, attempt)
        if not (reason := reason or _why_nobody_is_at(address)):
            return ""
        reasons.append(reason)
    return "; ".join(reasons)


def _why_nobody_is_at(address: str) -> str:
    if not is_local(address) or address.startswith("inproc://"):
        return ""
    reason = ""
    for family, place in _places(address):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.settimeout(PROBE_SECONDS)
                probe.connect(place)
        except OSError as error:
            if error.errno not in HOPELESS:
                return ""
            reason = reason or f"nobody listens at {address}: {os.strerror(error.errno or 0)}"
        else:
            return ""
    return reason


def _places(address: str) -> list[tuple[int, bytes | tuple[str, int]]]:
    """List where an address may be; an address that no socket could have is nowhere."""
    host = tcp_host(address)
    if host is None:
        path = os.fsencode(address.removeprefix("ipc://"))
        return [(socket.AF_UNIX, b"\0" + path[1:] if path.startswith(b"@") else path)]
    try:
        port = int(address.rpartition(":")[2])
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (ValueError, OverflowError, OSError):
        return []
    return [(family, (str(place[0]), int(place[1]))) for family, _, _, _, place in found]
