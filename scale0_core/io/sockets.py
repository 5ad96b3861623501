"""Opening sockets with safe settings, and closing them without leaving files behind."""

from __future__ import annotations

import ctypes
import errno
import os
import socket as bsd
from collections.abc import Mapping
from pathlib import Path

import attrs
import zmq

from scale0_core.config.addresses import EXAMPLE, bind_fault, ipc_path, is_local
from scale0_core.config.settings import WireSettings
from scale0_core.container.connections import ID_IN_USE
from scale0_core.errors import AddressError, AddressInUseError
from scale0_core.service import Connect, Disconnect, Endpoint, SocketKind

BACKLOG = 4096
ROOT = 0


@attrs.frozen
class OpenSocket:
    """A socket that is open, and the addresses at which it can be reached."""

    socket: zmq.Socket[bytes]
    bound: tuple[str, ...]
    connected: tuple[str, ...] = ()

    @property
    def addresses(self) -> tuple[str, ...]:
        """All its addresses, its own and those of others."""
        return (*self.bound, *self.connected)

    def connect(self, effect: Connect) -> str:
        """Connect it to one more address; give the reason if that cannot be."""
        try:
            if effect.routing_id:
                if _has_peer(self.socket, effect.routing_id):
                    return ID_IN_USE
                self.socket.setsockopt(zmq.CONNECT_ROUTING_ID, effect.routing_id)
            self.socket.connect(effect.address)
        except zmq.ZMQError as error:
            if effect.routing_id:
                _use_up_routing_id(self.socket)
            return _errno_name(error)
        return ""

    def disconnect(self, effect: Disconnect) -> str:
        """End a connection; give the reason if that cannot be."""
        try:
            self.socket.disconnect(effect.address)
        except zmq.ZMQError as error:
            return "" if error.errno == errno.ENOENT else _errno_name(error)
        return ""

    def close(self) -> None:
        """Close it and remove the files of the ipc addresses that are its own."""
        self.socket.close()
        for address in self.bound:
            if path := ipc_path(address):
                path.unlink(missing_ok=True)


def open_socket(context: zmq.Context[zmq.Socket[bytes]], endpoint: Endpoint, wire: WireSettings) -> OpenSocket:
    """Open one endpoint: all its addresses, or none and an AddressError."""
    if endpoint.kind is SocketKind.ROUTER:
        _seed_routing_ids()
    socket = context.socket(getattr(zmq, endpoint.kind.value))
    bound: list[str] = []
    try:
        for name, value in _options(endpoint, wire).items():
            socket.setsockopt(getattr(zmq, name), value)
        if not wire.other_users and any(address.startswith("ipc://@") for address in endpoint.bind):
            for user in {os.getuid(), ROOT}:
                socket.setsockopt(zmq.IPC_FILTER_UID, user)
        for topic in endpoint.subscribe:
            socket.setsockopt(zmq.SUBSCRIBE, topic)
        bound.extend(_bind(socket, address, wire) for address in endpoint.bind)
        for address in endpoint.connect:
            _connect(socket, address)
    except BaseException:
        OpenSocket(socket, tuple(bound)).close()
        raise
    return OpenSocket(socket, tuple(bound), endpoint.connect)


def _seed_routing_ids() -> None:
    """Make the routing ids of the next ROUTER's nameless peers unpredictable.

    libzmq 4.3.5 counts them up from a value of C's ``rand``, which it never seeds: they would be the same in every
    process, and a peer that claims one of them in advance makes libzmq abort when it comes to that number.
    """
    ctypes.CDLL(None).srand(ctypes.c_uint(int.from_bytes(os.urandom(4), "little")))


def _has_peer(socket: zmq.Socket[bytes], routing_id: bytes) -> bool:
    """Tell whether a ROUTER has a peer of that name, which then gets an empty message.

    libzmq ends the process when a name is used twice, and has no other way to ask. A ROUTER that was made not to tell
    of peers that are gone (``ROUTER_MANDATORY``) cannot tell here either, and is taken to have every peer.
    """
    try:
        socket.send(routing_id, zmq.SNDMORE | zmq.DONTWAIT)
        socket.send(b"", zmq.DONTWAIT)
    except zmq.ZMQError as error:
        return error.errno != zmq.EHOSTUNREACH
    return True


def _use_up_routing_id(socket: zmq.Socket[bytes]) -> None:
    """Let a name go that was set and not used: libzmq would give it to the next connection, whichever that is."""
    nobody = "inproc://scale0-nobody"
    socket.connect(nobody)
    socket.disconnect(nobody)


def _errno_name(error: zmq.ZMQError) -> str:
    return errno.errorcode.get(error.errno or 0, str(error))


def _options(endpoint: Endpoint, wire: WireSettings) -> Mapping[str, int | bytes]:
    options: dict[str, int | bytes] = {
        "LINGER": wire.linger_ms,
        "SNDHWM": endpoint.high_water,
        "RCVHWM": endpoint.high_water,
        "MAXMSGSIZE": endpoint.max_message,
        "HANDSHAKE_IVL": wire.handshake_ms,
        "HEARTBEAT_IVL": wire.heartbeat_ms,
        "HEARTBEAT_TIMEOUT": wire.heartbeat_timeout_ms,
        "TCP_KEEPALIVE": 1,
        "RECONNECT_IVL": 100,
        "RECONNECT_IVL_MAX": 5000,
        "BACKLOG": BACKLOG,
    }
    if endpoint.kind is SocketKind.ROUTER:
        options["ROUTER_MANDATORY"] = 1
    return {**options, **endpoint.options}


def _bind(socket: zmq.Socket[bytes], address: str, wire: WireSettings) -> str:
    if fault := bind_fault("", address):
        remedy = fault.hint or EXAMPLE
        raise AddressError(f"cannot bind {address}", fault.message, "the socket stays closed", remedy)
    if not wire.insecure and not is_local(address):
        raise AddressError(
            f"{address} is not opened",
            "it can be reached from other machines, and nothing on it is encrypted or authenticated",
            "the socket stays closed",
            "bind to 127.0.0.1, or set wire.insecure = true if the network is trusted",
        )
    _check_before_bind(address)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        raise _refused("bind", address, error) from error
    return str(socket.get_string(zmq.LAST_ENDPOINT))


def _check_before_bind(address: str) -> None:
    """Refuse what libzmq would do without a word: remove a file, take a living program's socket."""
    path = ipc_path(address)
    if path is not None and path.exists() and not path.is_socket():
        raise AddressError(f"cannot bind {address}", "a file is there", "it is left alone", "choose another path")
    if path is not None and _somebody_listens(path):
        raise AddressInUseError(f"{address} is in use", "another program listens there", "", "choose another path")


def _connect(socket: zmq.Socket[bytes], address: str) -> None:
    try:
        socket.connect(address)
    except zmq.ZMQError as error:
        raise _refused("connect", address, error) from error


def _refused(verb: str, address: str, error: zmq.ZMQError) -> AddressError:
    remedy = {
        errno.EADDRINUSE: "end the program that uses it, or choose another address",
        errno.EINVAL: EXAMPLE,
        errno.ENODEV: "an address of this machine is needed, such as tcp://127.0.0.1:5555",
        errno.ENOENT: "make the folder first",
        errno.EACCES: "choose a path or port that this user may use",
        errno.ENAMETOOLONG: "choose a shorter path: a unix socket has about 100 characters",
    }.get(error.errno or 0, "check the address")
    kind = AddressInUseError if error.errno == errno.EADDRINUSE else AddressError
    return kind(f"cannot {verb} {address}", str(error), "the socket stays closed", remedy)


def _somebody_listens(path: Path) -> bool:
    try:
        with bsd.socket(bsd.AF_UNIX) as probe:
            probe.settimeout(1)
            probe.connect(os.fspath(path))
    except OSError:
        return False
    return True
