"""The wire: batches of messages between ZeroMQ and Python.

Two implementations behind one interface: the native one (``_wire.c``, there when a compiler was at hand when the wheel
was built) and the pure one below. Both keep to the same rules: a drain takes what is there and never waits; a send
never waits, and each one that fails comes back with its place and a reason; a malformed send is refused whole.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import zmq
from zmq.backend import Socket as BareSocket

from scale0_core.broker.seat import MALFORMED
from scale0_core.errors import Scale0Error
from scale0_core.service import Frames, Send

CLOSED = "closed"


class Port(Protocol):
    """One open socket."""

    def drain(self, limit: int, /) -> list[Frames]:
        """Take at most ``limit`` messages, without waiting."""

    def close(self) -> None:
        """Let go of the socket."""


class Poller(Protocol):
    """Waits for messages on several ports, or for a descriptor."""

    def wait(self, milliseconds: int, /) -> Sequence[Port | None]:
        """Give the ports that have messages, and None when the descriptor is readable; -1 waits for ever."""


class Wire(Protocol):
    """What both implementations offer."""

    name: str

    def port(self, socket: zmq.Socket[bytes], blob_over: int | None) -> Port:
        """Take an open socket into use."""

    def poller(self, ports: tuple[Port, ...], fd: int) -> Poller:
        """Make a poller over ports and one descriptor."""

    def send(self, ports: dict[str, Port], sends: list[Send]) -> list[tuple[int, str]]:
        """Send all, without waiting; give (index, reason) of those that failed."""


class NativeWire:
    """The wire written in C."""

    name = "native"

    def __init__(self) -> None:
        from zmq.backend.cython import _zmq

        from scale0_core.io import _wire

        _wire.load_library(_zmq.__file__)
        self.port = cast("Any", _wire.Port)
        self.poller = cast("Any", _wire.Poller)
        self.send = cast("Any", _wire.send)


class PureWire:
    """The wire written in Python, for where no compiler is."""

    name = "pure"

    def port(self, socket: zmq.Socket[bytes], blob_over: int | None) -> Port:
        """Take an open socket into use."""
        return PurePort(socket, blob_over)

    def poller(self, ports: tuple[Port, ...], fd: int) -> Poller:
        """Make a poller over ports and one descriptor."""
        return PurePoller(cast("tuple[PurePort, ...]", ports), fd)

    def send(self, ports: dict[str, Port], sends: list[Send]) -> list[tuple[int, str]]:
        """Send all, without waiting; give (index, reason) of those that failed."""
        failures = []
        for index, send in enumerate(sends):
            try:
                name, frames = send
                cast("PurePort", ports[name]).send_frames(frames)
            except zmq.ZMQError as error:
                failures.append((index, errno.errorcode.get(error.errno or 0, str(error))))
            except _PortClosedError:
                failures.append((index, CLOSED))
            except (TypeError, ValueError, KeyError):
                failures.append((index, MALFORMED))
        return failures


class _PortClosedError(Exception):
    pass


_WHOLE = zmq.DONTWAIT
_PART = zmq.DONTWAIT | zmq.SNDMORE


class PurePort:
    """One open socket, used through pyzmq's compiled base class: its Python layer would double the cost of a frame."""

    def __init__(self, socket: zmq.Socket[bytes], blob_over: int | None) -> None:
        self.socket: zmq.Socket[bytes] | None = socket
        self._recv = partial(BareSocket.recv, socket, zmq.DONTWAIT, False)
        self._send = partial(BareSocket.send, socket)
        self._blob_over = blob_over

    def drain(self, limit: int, /) -> list[Frames]:
        """Take at most ``limit`` messages, without waiting."""
        if self.socket is None:
            raise ValueError("the port is closed")
        recv, blob_over = self._recv, self._blob_over
        messages: list[Frames] = []
        try:
            for _ in range(limit):
                frame = recv()
                if blob_over is None:
                    frames = [frame.bytes]
                    while frame.more:
                        frame = recv()
                        frames.append(frame.bytes)
                else:
                    frames = [frame.bytes if len(frame) <= blob_over else frame]
                    while frame.more:
                        frame = recv()
                        frames.append(frame.bytes if len(frame) <= blob_over else frame)
                messages.append(tuple(frames))
        except zmq.Again:
            pass
        return messages

    def send_frames(self, frames: Frames) -> None:
        """Send one whole message, or raise before its first frame has gone."""
        if self.socket is None:
            raise _PortClosedError
        if type(frames) is not tuple or not frames:
            raise TypeError("frames come as a tuple that is not empty")
        if not all(map(_is_sendable, frames)):
            raise TypeError("a frame is bytes or a buffer")
        send = self._send
        *parts, last = frames
        for part in parts:
            send(part, _PART, type(part) is not zmq.Frame)
        send(last, _WHOLE, type(last) is not zmq.Frame)

    def close(self) -> None:
        """Let go of the socket."""
        self.socket = None


def _is_sendable(frame: object) -> bool:
    if type(frame) is bytes or type(frame) is zmq.Frame:
        return True
    try:
        memoryview(frame)  # type: ignore[arg-type]
    except TypeError:
        return False
    return True


class PurePoller:
    """Waits by pyzmq's own poller."""

    def __init__(self, ports: tuple[PurePort, ...], fd: int) -> None:
        self._poller = zmq.Poller()
        self._ports: dict[object, PurePort | None] = {fd: None}
        self._poller.register(fd, zmq.POLLIN)
        for port in ports:
            if port.socket is None:
                raise ValueError("the port is closed")
            self._poller.register(port.socket, zmq.POLLIN)
            self._ports[port.socket] = port

    def wait(self, milliseconds: int, /) -> Sequence[Port | None]:
        """Give the ports that have messages, and None when the descriptor is readable; -1 waits for ever."""
        return [self._ports[ready] for ready, _ in self._poller.poll(milliseconds)]


def native_problem() -> str:
    """Say why the native wire cannot be used here; empty when it can."""
    try:
        NativeWire()
    except (ImportError, OSError) as error:
        return str(error)
    return ""


def choose_wire(implementation: str) -> Wire:
    """Give the wire named ``native`` or ``pure``; ``auto`` takes the native one where it is there."""
    if implementation == "pure":
        return PureWire()
    problem = native_problem()
    if not problem:
        return NativeWire()
    if implementation == "native":
        raise Scale0Error(
            "the native wire cannot be used",
            problem,
            "the broker does not start, since the setting wire.implementation asks for it",
            "install scale0-core where a C compiler is at hand, or set wire.implementation to auto",
        )
    return PureWire()
