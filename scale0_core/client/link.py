"""One connection to a broker, and the engine that runs a dialog without I/O on it."""

from __future__ import annotations

import contextlib
import os
import struct
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from random import uniform
from typing import Any, ClassVar, Protocol, cast

import zmq

from scale0_core.client.listening import why_nobody_listens
from scale0_core.config.addresses import is_local
from scale0_core.errors import AddressError
from scale0_core.logs import get_logger
from scale0_core.service import MIB, Frames

LOG = get_logger("client")

BATCH = 500
"""Messages taken in one turn, so that deadlines and sends have theirs."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two attempts to connect to the same address."""

LOCAL_SHARE, REMOTE_SHARE = 0.01, 0.1
"""The longest pause as a share of the time without a connection. A broker that dies again and again may be up for a
fraction of a second only; at a local address an attempt costs next to nothing, so the first 10 seconds have many."""

NEVER_MS = 86_400_000

# the last comes when ZeroMQ would connect again, so after every try that failed
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED

OPTIONS: dict[int, int] = {
    zmq.SNDHWM: 10_000,
    zmq.RCVHWM: 100_000,  # what the broker cannot deliver here is lost, so there is room
    zmq.MAXMSGSIZE: MIB,
    # What was sent to a broker that died would go to its successor. So a socket has one connection in its life, and the
    # engine makes another socket for the next. The options IMMEDIATE and RECONNECT_IVL -1 are no way out: with them
    # libzmq 4.3.5 takes away the pipe of a broken connection even while the first frames of a message were read from
    # it, and aborts the process (fq.cpp: !_more).
    zmq.RECONNECT_IVL: NEVER_MS,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.CONNECT_TIMEOUT: 5000,
    zmq.HEARTBEAT_IVL: 5000,
    zmq.HEARTBEAT_TIMEOUT: 20_000,
    zmq.TCP_KEEPALIVE: 1,
    zmq.IPV6: 1,
}

RECONNECTING = {**OPTIONS, zmq.RECONNECT_IVL: 100, zmq.RECONNECT_IVL_MAX: 1000}
"""For requests that may as well go to a successor."""

Socket = zmq.Socket[bytes]


def client_socket(
    context: zmq.Context[Socket], kind: int, options: Mapping[int, int] = RECONNECTING, linger_ms: int = 0
) -> Socket:
    """Open a socket of a client; every one is opened here, so that each has all its limits and no dangerous option."""
    socket = context.socket(kind)
    for option, value in {**options, zmq.LINGER: linger_ms}.items():
        socket.setsockopt(option, value)
    return socket


def ready(socket: Socket) -> int:
    """Say what a socket is ready for: POLLIN, POLLOUT."""
    return cast("int", socket.getsockopt(zmq.EVENTS))


def wait(sockets: Sequence[tuple[Any, int]], seconds: float | None) -> None:
    """Wait until a socket or descriptor is ready, at most so many seconds; without any, sleep."""
    if sockets:
        zmq.zmq_poll(sockets, -1 if seconds is None else int(seconds * 1000) + (seconds > 0))
    else:
        time.sleep(seconds or 0.0)  # zmq_poll of nothing returns immediately, whatever its timeout


class Dialog(Protocol):
    """What runs on a link: ``Frontend`` or ``Session``."""

    connection: int
    out: list[Frames]

    @property
    def address(self) -> str:
        """Where to connect; empty for nowhere."""

    def start(self, now: float) -> None:
        """Begin."""

    def on_linked(self, now: float) -> None:
        """Note that there is a connection."""

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone."""

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens at a local address, and that there was no connection so far."""

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""

    def next_deadline(self) -> float | None:
        """Say when something is due."""

    def on_deadline(self, now: float) -> None:
        """Do what is due."""


class Link:
    """A DEALER socket for one connection, and the monitor that tells when it came about and when it broke."""

    options: ClassVar[Mapping[int, int]] = OPTIONS

    def __init__(
        self,
        context: zmq.Context[Socket],
        address: str,
        linger_ms: int = 0,
        options: Mapping[int, int] | None = None,
    ) -> None:
        self.address = address
        self.socket = client_socket(context, zmq.DEALER, self.options if options is None else options, linger_ms)
        self.outbox: deque[Frames] = deque()
        self.events: deque[bool] = deque()
        self.up = False
        """Whether there ever was a connection."""
        self.broken = False
        self.monitor: Socket | None = None
        try:
            self.monitor = self.socket.get_monitor_socket(EVENTS)
            self.monitor.setsockopt(zmq.LINGER, 0)
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            raise AddressError(
                f"cannot connect to {address}",
                str(error),
                "nothing is sent",
                "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path; a name is that of a broker here",
            ) from error

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
                self.socket.send_multipart(frames, zmq.DONTWAIT)
            except zmq.Again:
                # there may be room again, of which the socket learns by looking
                if not ready(self.socket) & zmq.POLLOUT:
                    return False
            else:
                return True
        return False

    def messages(self) -> list[Frames]:
        """Take what has come, at most one batch."""
        found: list[Frames] = []
        receive = self.socket.recv_multipart
        with contextlib.suppress(zmq.Again):
            while len(found) < BATCH:
                found.append(tuple(receive(zmq.DONTWAIT)))
        return found

    def look(self) -> None:
        """Note in ``events`` what happened to the connection: True when it came about, False when it is no more."""
        monitor = self.monitor
        with contextlib.suppress(zmq.Again):
            while monitor is not None:
                (number,) = struct.unpack("=H", monitor.recv_multipart(zmq.DONTWAIT)[0][:2])
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
                return tuple(self.socket.recv_multipart(zmq.DONTWAIT))
            left = end - time.monotonic()
            if broken or left <= 0 or self.monitor is None:
                return None
            zmq.zmq_poll([(self.socket, zmq.POLLIN), (self.monitor, zmq.POLLIN)], int(left * 1000) + 1)

    def close(self) -> None:
        """Close; what was sent has until the linger ends to leave."""
        self.flush()
        self.outbox.clear()
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.monitor = None
        self.socket.close()

    def drop(self) -> None:
        """Close when the connection is no more: what was meant for it goes nowhere."""
        self.outbox.clear()
        self.socket.setsockopt(zmq.LINGER, 0)
        self.close()


class Engine:
    """Runs a dialog: whoever drives it calls ``turn`` when there is something to read or the deadline has come."""

    link_type: ClassVar[type[Link]] = Link

    def __init__(self, dialog: Dialog, linger_ms: int) -> None:
        self.dialog = dialog
        self._process = os.getpid()
        self.link: Link | None = None
        self.on_link: Callable[[Link | None, Link | None], None] = lambda old, new: None
        self._context: zmq.Context[Socket] = zmq.Context()
        # In a cycle that nobody refers to, the context could be finalized before its sockets, for which it would wait
        # for ever. This reference from outside has it go after them.
        self._keep = weakref.finalize(self, bool, self._context)
        self._keep.atexit = False
        self._linger_ms = linger_ms
        self._connection = 0
        self._linked_before = False
        self._unlinked_since = time.monotonic()
        self._again_at: float | None = None
        self._clear: list[Callable[[], None]] = []

    @property
    def forked(self) -> bool:
        """Whether this is another process than the one that has the connection: nothing can be done here."""
        return os.getpid() != self._process

    def start(self) -> None:
        """Begin to connect; raises an AddressError when the address is no address."""
        self.dialog.start(time.monotonic())
        try:
            self._reopen()
        except AddressError:
            self.close()
            raise

    def turn(self) -> bool:
        """Do all there is to do; tell whether more is waiting already."""
        now = time.monotonic()
        more = self._read(now) if self.link is not None else False
        deadline = self.dialog.next_deadline()
        if deadline is not None and deadline <= now:
            self.dialog.on_deadline(now)
        if self._again_at is not None and self._again_at <= now:
            self._try_to_open()
        self.apply()
        return more

    def _read(self, now: float) -> bool:
        link = self.link
        assert link is not None
        link.look()  # before the messages, so that all that was said before the connection broke is among them
        messages = link.messages()
        for frames in messages:
            self.dialog.receive(frames, now)
            if self.dialog.connection != self._connection:
                return False  # the rest comes from a connection that was given up
        if len(messages) == BATCH:
            return True
        while link.events and self.link is link:
            if link.events.popleft():
                self._linked_before = link.up = True
                self.dialog.on_linked(now)
            else:
                self._broke(link, now)
        return False

    def _broke(self, link: Link, now: float) -> None:
        """Have the next attempt soon, with a socket of its own."""
        self.link = None
        self.on_link(link, None)
        link.drop()
        if link.up:
            self._unlinked_since = now
        self._pause(link.address)
        if link.up:
            self.dialog.on_unlinked(now)
        elif not self._linked_before and (reason := why_nobody_listens(link.address)):
            self.dialog.on_nobody(reason, now)

    def _pause(self, address: str) -> None:
        now = time.monotonic()
        share = LOCAL_SHARE if is_local(address) else REMOTE_SHARE
        longest = min(max(FIRST_PAUSE, share * (now - self._unlinked_since)), LONGEST_PAUSE)
        self._again_at = now + longest * uniform(0.5, 1.0)  # noqa: S311

    def apply(self) -> None:
        """Carry out what the dialog wants: send, and connect elsewhere."""
        out, link = self.dialog.out, self.link
        if link is not None:
            if link.outbox:
                link.flush()
            for frames in out:
                link.send(frames)
        out.clear()
        if self.dialog.connection != self._connection:
            self._try_to_open()
        if self._clear and not (self.link and self.link.outbox):
            waiting, self._clear = self._clear, []
            for call in waiting:
                call()

    def when_clear(self, call: Callable[[], None]) -> None:
        """Call back when nothing waits to be sent; for those who make much."""
        self._clear.append(call)

    def next_deadline(self) -> float | None:
        """Say when something is due; None when nothing is."""
        deadline, again = self.dialog.next_deadline(), self._again_at
        return deadline if again is None else again if deadline is None else min(deadline, again)

    def timeout(self) -> float | None:
        """Give the seconds until something is due; None when nothing is."""
        deadline = self.next_deadline()
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def _try_to_open(self) -> None:
        try:
            self._reopen()
        except AddressError as error:
            LOG.error(error.problem.what, why=error.problem.why)
            self._pause(self.dialog.address)

    def _reopen(self) -> None:
        old, self.link, self._again_at = self.link, None, None
        self._connection = self.dialog.connection
        if self.dialog.address:
            try:
                self.link = self.link_type(self._context, self.dialog.address, self._linger_ms)
            finally:
                self._replaced(old)
        else:
            self._replaced(old)

    def _replaced(self, old: Link | None) -> None:
        self.on_link(old, self.link)
        if old is not None:
            old.close()

    def close_link(self) -> None:
        """Let go of the connection."""
        old, self.link, self._again_at = self.link, None, None
        self._replaced(old)
        waiting, self._clear = self._clear, []
        for call in waiting:
            call()

    def close(self) -> None:
        """Close everything; waits no longer than the linger."""
        self.close_link()
        self.terminate()

    def terminate(self) -> None:
        """End ZeroMQ's threads; waits until what was sent has left, no longer than the linger."""
        self._keep.detach()
        self._context.term()
