"""Sockets of clients: the only place that creates them, so that each has all its limits and no dangerous option.

``Link`` is one connection: an engine makes one after the other. ``CONTEXT`` has ZeroMQ's threads, which all clients of
a process share, renewed in a forked child.

Facts about libzmq 4.3.5 that everything here keeps to:

- IMMEDIATE, and RECONNECT_IVL -1, abort the process (fq.cpp: !_more) when a connection breaks between the frames of a
  message: the pipe is taken away while the message is read from it. Neither is set anywhere.
- What was sent to a broker that died would go to its successor. So the socket of an engine has one connection in its
  life, and the next has a socket of its own.
"""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import zmq

from scale0_core.client.kit.sessions import Limits
from scale0_core.errors import AddressError
from scale0_core.logs import printable
from scale0_core.service import Frames

NEVER_MS = 86_400_000
MOST_SOCKETS = 20_000
"""Of a process; a link takes three."""
FEWER = "close clients that are not needed, or allow the process more open files (ulimit -n)"

# the last comes when ZeroMQ would connect again, so after every try that failed
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED

_FIXED: dict[int, int] = {
    zmq.HANDSHAKE_IVL: 5000,
    zmq.CONNECT_TIMEOUT: 5000,
    zmq.HEARTBEAT_IVL: 5000,
    zmq.HEARTBEAT_TIMEOUT: 20_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.IPV6: 1,
}

# plain numbers: what pyzmq has are enums, each operation on which takes a microsecond
IN, OUT, NOW, READY = int(zmq.POLLIN), int(zmq.POLLOUT), int(zmq.DONTWAIT), int(zmq.EVENTS)

Socket = zmq.Socket[bytes]
DEFAULT = Limits()


class SharedContext:
    """ZeroMQ's threads, which all clients of a process share as long as there is one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the garbage collector may close a client in between
        self._context: zmq.Context[Socket] | None = None
        self._users = 0

    def acquire(self) -> zmq.Context[Socket]:
        """Return the context; ``release`` it in the end."""
        with self._lock:
            if self._context is None:
                self._context, self._users = zmq.Context(), 0
                self._context.set(zmq.MAX_SOCKETS, MOST_SOCKETS)
            self._users += 1
            return self._context

    def release(self, context: zmq.Context[Socket]) -> None:
        """End ZeroMQ's threads if nobody else needs them; waits for what lingers. Ignores a parent's context."""
        with self._lock:
            if context is not self._context:
                return
            self._users -= 1
            if self._users:
                return
            self._context = None
        context.term()

    def start_anew(self) -> None:
        """Forget the context of the parent process, and who had the lock when this one was forked."""
        self._lock, self._context = threading.RLock(), None


CONTEXT = SharedContext()
os.register_at_fork(after_in_child=CONTEXT.start_anew)


def client_socket(context: zmq.Context[Socket], kind: int, limits: Limits) -> Socket:
    """Open a socket of a client."""
    socket = context.socket(kind)
    options = {
        **_FIXED,
        zmq.MAXMSGSIZE: limits.max_message,
        zmq.SNDHWM: limits.send_queue,
        zmq.RCVHWM: limits.receive_queue,
        zmq.RECONNECT_IVL: 100 if limits.reconnect else NEVER_MS,
        zmq.LINGER: limits.linger_ms,
    }
    if limits.reconnect:
        options[zmq.RECONNECT_IVL_MAX] = 1000
    try:
        for option, value in options.items():
            socket.setsockopt(option, value)
    except BaseException:
        socket.close(0)
        raise
    return socket


@contextlib.contextmanager
def _or_undone(address: str, undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was begun when a socket cannot be opened, and say so in an AddressError."""
    try:
        yield
    except BaseException as error:
        undo()
        if not isinstance(error, zmq.ZMQError | UnicodeError):
            raise
        few = isinstance(error, zmq.ZMQError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
        looks = "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path; a name is that of a broker here"
        remedy = FEWER if few else looks
        raise AddressError(f"cannot connect to {printable(address)}", str(error), "nothing is sent", remedy) from error


def ready(socket: Socket) -> int:
    """Return what a socket is ready for: POLLIN, POLLOUT."""
    return cast("int", socket.getsockopt(READY))


def wait(sockets: Sequence[tuple[Any, int]], seconds: float | None) -> list[tuple[Any, int]]:
    """Wait until a socket or descriptor is ready, at most so many seconds, and return those that are."""
    if sockets:
        return zmq.zmq_poll(sockets, -1 if seconds is None else int(seconds * 1000) + (seconds > 0))
    time.sleep(seconds or 0.0)  # zmq_poll of nothing returns immediately, whatever its timeout
    return []


class Link:
    """A socket for one connection, and the monitor that tells when it came about and when it broke.

    An engine uses ``send``, ``messages``, ``look`` and ``events``. Without one there are also
    ``wait_until_connected``, ``look_for_breaks`` and ``receive``, for one question asked by the thread that calls.
    """

    def __init__(self, address: str, limits: Limits = DEFAULT) -> None:
        self.address, self.limits = address, limits
        self.outbox: deque[Frames] = deque()
        """What had no room. It has no bound of its own: a session bounds what it sends, and who makes much waits until
        the engine is clear (``Engine.when_clear``)."""
        self.events: deque[bool] = deque()
        self.up = False
        """Whether there ever was a connection."""
        self.broken = False
        self.monitor: Socket | None = None
        self._copy = not limits.zero_copy
        self._context = CONTEXT.acquire()
        with _or_undone(address, partial(CONTEXT.release, self._context)):
            self.socket = client_socket(self._context, zmq.DEALER if limits.topics is None else zmq.SUB, limits)
        with _or_undone(address, self.drop):
            self.monitor = self.socket.get_monitor_socket(EVENTS)
            self.monitor.setsockopt(zmq.LINGER, 0)
            for topic in limits.topics or ():
                self.socket.setsockopt(zmq.SUBSCRIBE, topic)
            self.socket.connect(address)

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()

    def send(self, frames: Frames) -> None:
        """Send, or keep for when there is room."""
        if self.outbox or not self._try(frames):
            self.outbox.append(frames)

    def flush(self) -> None:
        """Send what was kept."""
        while self.outbox and self._try(self.outbox[0]):
            self.outbox.popleft()

    def _try(self, frames: Frames) -> bool:
        for _ in range(2):
            try:
                self.socket.send_multipart(frames, NOW, copy=self._copy)
            except zmq.Again:
                # there may be room again, of which the socket learns by looking
                if not ready(self.socket) & OUT:
                    return False
            else:
                return True
        return False

    def messages(self) -> list[Frames]:
        """Take what has come, at most one batch."""
        found: list[Frames] = []
        receive, batch = self.socket.recv_multipart, self.limits.batch
        with contextlib.suppress(zmq.Again):
            if self.limits.views:
                while len(found) < batch:
                    frames: list[Any] = receive(NOW, copy=False)
                    found.append(tuple(frame.buffer for frame in frames))
            while len(found) < batch:
                found.append(tuple(receive(NOW)))
        return found

    @property
    def readable(self) -> bool:
        """Whether there is something to read, on the connection or about it."""
        monitor = self.monitor
        return monitor is not None and bool((ready(self.socket) | ready(monitor)) & IN)

    @property
    def polled(self) -> list[tuple[Socket, int]]:
        """What to wait for: messages, room for what was kept, and what happens to the connection."""
        monitor = self.monitor
        if monitor is None:
            return []
        return [(self.socket, IN | OUT if self.outbox else IN), (monitor, IN)]

    def look(self) -> None:
        """Note in ``events`` what happened to the connection: True when it came about, False when it is no more."""
        monitor = self.monitor
        while monitor is not None and ready(monitor) & IN:
            (number,) = struct.unpack("=H", monitor.recv_multipart(NOW)[0][:2])
            self.events.append(number == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    @property
    def connected(self) -> bool:
        """Whether there was a connection when somebody last looked."""
        return self.up and not self.broken

    def look_for_breaks(self) -> bool:
        """Return whether the connection is no more, or did not come about; for those who have no engine."""
        self.look()
        while self.events:
            if self.events.popleft():
                self.up, self.broken = True, False
            else:
                self.broken = True
        return self.broken

    def wait_until_connected(self, seconds: float, *, patient: bool = False) -> bool:
        """Wait for the connection, and return whether it is there; one who is patient goes on after failures."""
        end = time.monotonic() + seconds
        while not self.look_for_breaks() or patient:
            left = end - time.monotonic()
            if self.connected or left <= 0 or self.monitor is None:
                break
            self.monitor.poll(int(left * 1000) + 1)
        return self.connected

    def receive(self, seconds: float) -> Frames | None:
        """Wait for a message; return None when there is none in time, or the connection breaks."""
        end = time.monotonic() + seconds
        while True:
            broken = self.look_for_breaks()  # before the messages, so that all that was said before is among them
            with contextlib.suppress(zmq.Again):
                return tuple(self.socket.recv_multipart(NOW))
            left = end - time.monotonic()
            if broken or left <= 0 or self.monitor is None:
                return None
            wait(self.polled, left)

    def close(self) -> None:
        """Close; what was sent has until the linger ends to leave."""
        if self.socket.closed:
            return
        self.flush()
        self.outbox.clear()
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.monitor = None
        self.socket.close()
        CONTEXT.release(self._context)

    def drop(self) -> None:
        """Close when the connection is no more: what was meant for it goes nowhere."""
        if not self.socket.closed:
            self.outbox.clear()
            self.socket.setsockopt(zmq.LINGER, 0)
            self.close()
