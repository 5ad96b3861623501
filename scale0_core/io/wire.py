"""The wire: batches of messages between ZeroMQ and Python.

Two implementations behind one interface: the native one (``_wire.c``, there when a compiler was at hand when the wheel
was built) and the pure one below. Both keep to the same rules: a drain takes what is there and never waits; a send
never waits, and each one that fails comes back with its place and a reason; a malformed send is refused whole. After a
failure nothing more of the batch is sent to the same peer: messages may fail, but none overtakes another.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import zmq
from zmq.backend import Socket as BareSocket

from scale0_core.container.host import ReceiveBatch
from scale0_core.container.outbox import MALFORMED
from scale0_core.errors import WireMissingError
from scale0_core.service import Frames, Send

CLOSED = "closed"


class Port(Protocol):
    """One open socket."""

    dropped: int
    """Messages that were dropped since somebody last set this to 0: they had too many frames, or no end."""
    incomplete: int
    """Those of them that had no end. libzmq's XPUB leaves half a message of some that peers send."""

    def drain(self, limit: int, /) -> list[Frames]:
        """Take at most ``limit`` messages, without waiting."""

    def close(self) -> None:
        """Let go of the socket."""


class Poller(Protocol):
    """Waits for messages on several ports, or for a descriptor."""

    def wait(self, milliseconds: int, /) -> Sequence[Port | None]:
        """Give the ports that have messages, and None when the descriptor is readable; -1 waits for ever."""


class Queues(NamedTuple):
    """Where messages come from and go to in a rush."""

    socket: str
    limit: int
    """So many messages are taken at once."""
    ports: dict[str, Port]
    sends: list[Send]
    """What ``receive`` has to send."""


class Rushed(NamedTuple):
    """What came of a rush: how many messages were received and sent; ``now`` is the time of the last call.

    ``longest`` are the seconds of the longest call, ``slept`` those of waiting for messages. ``batch`` is what was
    being sent when something failed: (index, reason) of each that did is in ``failures``. ``error`` is what the service
    raised, and ``left`` are the messages that it had not taken by then.
    """

    received: int
    sent: int
    now: float
    longest: float
    slept: float
    batch: list[Send]
    failures: list[tuple[int, str]]
    error: Exception | SystemExit | None = None
    left: Iterator[Frames] = iter(())


class Wire(Protocol):
    """What both implementations offer."""

    name: str

    def port(self, socket: zmq.Socket[bytes], blob_over: int | None, most_frames: int = sys.maxsize) -> Port:
        """Take an open socket into use."""

    def poller(self, ports: tuple[Port, ...], fd: int) -> Poller:
        """Make a poller over ports and one descriptor."""

    def send(self, ports: dict[str, Port], sends: list[Send]) -> list[tuple[int, str]]:
        """Send all, without waiting; give (index, reason) of those that failed."""

    def rush(
        self,
        poller: Poller,
        port: Port,
        receive: ReceiveBatch,
        queues: Queues,
        now: float,
        seconds: float,
    ) -> Rushed | None:
        """Serve one busy port alone, for so long at most, until anything else is to be done; None if that cannot be."""


class NativeWire:
    """The wire written in C."""

    name = "native"

    def __init__(self) -> None:
        from zmq.backend.cython import _zmq

        from scale0_core.io import _wire

        _wire.load_library(_zmq.__file__)
        self._wire = _wire

    def port(self, socket: zmq.Socket[bytes], blob_over: int | None, most_frames: int = sys.maxsize) -> Port:
        """Take an open socket into use."""
        return self._wire.Port(socket, blob_over, _least_frames(socket), most_frames)

    def poller(self, ports: tuple[Port, ...], fd: int) -> Poller:
        """Make a poller over ports and one descriptor."""
        return self._wire.Poller(cast("Any", ports), fd)

    def send(self, ports: dict[str, Port], sends: list[Send]) -> list[tuple[int, str]]:
        """Send all, without waiting; give (index, reason) of those that failed."""
        failures = self._wire.send(cast("Any", ports), sends)
        return [(index, _reason(code)) for index, code in failures] if failures else []

    def rush(
        self,
        poller: Poller,
        port: Port,
        receive: ReceiveBatch,
        queues: Queues,
        now: float,
        seconds: float,
    ) -> Rushed | None:
        """Serve one busy port alone, for so long at most, until anything else is to be done."""
        socket, limit, ports, sends = queues
        received, sent, now, longest, slept, batch, failures, error, left = cast("Any", poller).rush(
            port, limit, receive, socket, sends, ports, now, seconds
        )
        reasons = [(index, _reason(code)) for index, code in failures or ()]
        return Rushed(received, sent, now, longest, slept, batch or [], reasons, error, left or iter(()))


def _least_frames(socket: zmq.Socket[bytes]) -> int:
    """Give the frames a message must have at least: a ROUTER drops a lone routing id without a word."""
    return 2 if socket.type == zmq.ROUTER else 1


def _reason(code: int | None) -> str:
    """Name a failure: an errno, libzmq's own included, or one of the wire's."""
    if code in _OWN_REASONS:
        return _OWN_REASONS[code]
    try:
        return zmq.Errno(code or 0).name
    except ValueError:
        return errno.errorcode.get(code or 0, f"errno {code}")


_OWN_REASONS = {-1: MALFORMED, -2: CLOSED}


class PureWire:
    """The wire written in Python, for where no compiler is."""

    name = "pure"

    def port(self, socket: zmq.Socket[bytes], blob_over: int | None, most_frames: int = sys.maxsize) -> Port:
        """Take an open socket into use."""
        return PurePort(socket, blob_over, most_frames)

    def poller(self, ports: tuple[Port, ...], fd: int) -> Poller:
        """Make a poller over ports and one descriptor."""
        return PurePoller(cast("tuple[PurePort, ...]", ports), fd)

    def send(self, ports: dict[str, Port], sends: list[Send]) -> list[tuple[int, str]]:
        """Send all, without waiting; give (index, reason) of those that failed."""
        failures: list[tuple[int, str]] = []
        unreached: dict[tuple[str, bytes], str] = {}
        pure_ports = cast("dict[str, PurePort]", ports)
        for index, send in enumerate(sends):
            try:
                name, frames = send
                if unreached and (earlier := unreached.get(pure_ports[name].peer_key(name, frames))):
                    failures.append((index, earlier))  # or it might overtake what has failed
                    continue
                pure_ports[name].send_frames(frames)
            except zmq.ZMQError as error:
                failures.append((index, _reason(error.errno)))
                unreached[pure_ports[name].peer_key(name, frames)] = _reason(error.errno)
            except _PortClosedError:
                failures.append((index, CLOSED))
            except (TypeError, ValueError, KeyError, BufferError):
                failures.append((index, MALFORMED))
        return failures

    def rush(
        self,
        poller: Poller,
        port: Port,
        receive: ReceiveBatch,
        queues: Queues,
        now: float,
        seconds: float,
    ) -> Rushed | None:
        """Give None: in Python it would be nothing but another turn."""
        return None


class _PortClosedError(Exception):
    pass


BYTES_PER_DRAIN = 256 * 1024
"""A drain ends when it has taken so many bytes, so that large bodies are sent on while they are still in the cache."""

_WHOLE = int(zmq.DONTWAIT)
_PART = int(zmq.DONTWAIT | zmq.SNDMORE)
_PLAIN_FRAMES = frozenset((bytes, zmq.Frame))


class PurePort:
    """One open socket, used through pyzmq's compiled base class: its Python layer would double the cost of a frame.

    Only a ``zmq.Frame`` knows whether more follows, and it costs three times as much as plain bytes. So the first frame
    on a ROUTER, the routing id, which is never the last one, is taken as plain bytes.
    """

    def __init__(self, socket: zmq.Socket[bytes], blob_over: int | None, most_frames: int) -> None:
        self.socket: zmq.Socket[bytes] | None = socket
        self.dropped = self.incomplete = 0
        # the routing id is taken before the others are counted
        self._most_frames = range(most_frames - 1 if socket.type == zmq.ROUTER else most_frames)
        self._recv: Callable[[], zmq.Frame] = cast("Any", partial(BareSocket.recv, socket, _WHOLE, False))
        self._recv_bytes: Callable[[], bytes] = cast("Any", partial(BareSocket.recv, socket, _WHOLE))
        self._send: Callable[[object, int], object] = cast("Any", partial(BareSocket.send, socket))
        self._least_frames = _least_frames(socket)
        self._is_router = socket.type == zmq.ROUTER
        self._blob_over = sys.maxsize if blob_over is None else blob_over

    def drain(self, limit: int, /) -> list[Frames]:
        """Take at most ``limit`` messages, without waiting."""
        if self.socket is None:
            raise ValueError("the port is closed")
        recv, recv_bytes, is_router, blob_over = self._recv, self._recv_bytes, self._is_router, self._blob_over
        most_frames = self._most_frames
        messages: list[Any] = []
        left = BYTES_PER_DRAIN
        frames: list[Any] = []
        try:
            for _ in range(limit):
                frames = []
                if is_router:
                    frames.append(recv_bytes())
                for _ in most_frames:
                    frame = recv()
                    size = len(frame)
                    left -= size
                    frames.append(frame.bytes if size <= blob_over else frame)
                    if not frame.more:
                        messages.append(tuple(frames))
                        break
                else:
                    self._discard_rest(frame)
                    self.dropped += 1
                if left <= 0:
                    break
        except zmq.ZMQError as error:
            if error.errno == zmq.EAGAIN and frames:
                self.dropped += 1
                self.incomplete += 1
            # EFSM: it is a REQ or REP socket's turn to send. What was taken is worth more than an error that returns
            if error.errno not in (zmq.EAGAIN, zmq.Errno.EFSM) and not messages:
                raise
        return messages

    def _discard_rest(self, frame: zmq.Frame) -> None:
        """Take the frames of a message that is too long out of the socket."""
        while frame.more:
            frame = self._recv()

    def send_frames(self, frames: Frames) -> None:
        """Send one whole message, or raise before its first frame has gone."""
        if self.socket is None:
            raise _PortClosedError
        if type(frames) is not tuple or len(frames) < self._least_frames:
            raise TypeError("frames come as a tuple; a ROUTER needs a routing id and something to send")
        send = self._send  # forwards a Frame without a copy, whatever its copy argument says
        if len(frames) == 2 and type(frames[0]) is bytes and type(frames[1]) in _PLAIN_FRAMES:
            send(frames[0], _PART)  # most answers: a routing id and a body
            send(frames[1], _WHOLE)
            return
        if not _PLAIN_FRAMES.issuperset(map(type, frames)):
            for frame in frames:
                if not memoryview(frame).c_contiguous:  # raises TypeError for what is no buffer
                    raise TypeError("a frame lies in one piece")
        if len(frames) == 1:
            send(frames[0], _WHOLE)
            return
        send(frames[0], _PART)
        try:
            for frame in frames[1:-1]:
                send(frame, _PART)
        finally:
            # even when a frame could not be sent: libzmq drops all up to the last one, so that has to come
            send(frames[-1], _WHOLE)

    def peer_key(self, name: str, frames: Frames) -> tuple[str, bytes]:
        """Say whom a message goes to: a ROUTER has many peers, any other socket one, so to speak."""
        return (name, bytes(frames[0]) if self._is_router and frames else b"")

    def close(self) -> None:
        """Let go of the socket."""
        self.socket = None


class PurePoller:
    """Waits by pyzmq's own poller."""

    def __init__(self, ports: tuple[PurePort, ...], fd: int) -> None:
        self._poller = zmq.Poller()
        self._ports: dict[object, PurePort | None] = {}
        for port in ports:
            if port.socket is None:
                raise ValueError("the port is closed")
            self._poller.register(port.socket, zmq.POLLIN)
            self._ports[port.socket] = port
        self._poller.register(fd, zmq.POLLIN)
        self._ports[fd] = None

    def wait(self, milliseconds: int, /) -> Sequence[Port | None]:
        """Give the ports that have messages, and None when the descriptor is readable; -1 waits for ever."""
        if any(port is not None and port.socket is None for port in self._ports.values()):
            raise ValueError("the port is closed")
        try:
            return [self._ports[ready] for ready, _ in self._poller.poll(milliseconds)]
        except zmq.ZMQError:
            # one socket is broken, and nobody says which: its own drain will
            return [port for port in self._ports.values() if port is not None]


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
        raise WireMissingError(
            "the native wire cannot be used",
            problem,
            "the broker does not start, since the setting wire.implementation asks for it",
            "install scale0-core where a C compiler is at hand, or set wire.implementation to auto",
        )
    return PureWire()
