"""One connection to a broker, and the engine that runs a session on it."""

# does I/O: sockets and the clock

from __future__ import annotations

import contextlib
import os
import struct
import threading
import time
from collections.abc import Callable

import zmq

from scale0_core.client.kit.link import client_socket
from scale0_core.client.kit.listening import why_nobody_listens
from scale0_core.client.kit.route import resolve
from scale0_core.client.kit.sessions import Limits
from scale0_zpipes.client.errors import PipeError, Stage, nobody_there
from scale0_zpipes.client.session import Session

BATCH = 100
"""Messages taken in one turn, so that deadlines and sends have theirs."""

LAST_WORDS_MS = 200
"""How long last words have to leave."""

# the last comes when ZeroMQ would connect again, so after every try that failed
EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED

LIMITS = Limits(max_message=-1, send_queue=0, receive_queue=0, linger_ms=0)
"""How large a chunk may be is the broker's to say; a session has a bound of its own for what is under way."""

Socket = zmq.Socket[bytes]


class SharedContext:
    """ZeroMQ's threads, which all pipes of a process share as long as there is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._context: zmq.Context[Socket] | None = None
        self._users = 0
        self._process = 0

    def acquire(self) -> zmq.Context[Socket]:
        """Give the context; ``release`` it in the end."""
        with self._lock:
            if self._context is None or self._process != os.getpid():
                # the threads of a parent process are not there after a fork
                self._context, self._users, self._process = zmq.Context(), 0, os.getpid()
            self._users += 1
            return self._context

    def release(self, context: zmq.Context[Socket]) -> None:
        """End ZeroMQ's threads if nobody else needs them."""
        with self._lock:
            if context is not self._context or self._process != os.getpid():
                return
            self._users -= 1
            if self._users:
                return
            self._context = None
        context.term()

    def start_anew(self) -> None:
        """Forget the context of the parent process, and who had the lock when this one was forked."""
        self._lock, self._context = threading.Lock(), None


CONTEXT = SharedContext()
os.register_at_fork(after_in_child=CONTEXT.start_anew)


class Link:
    """A DEALER socket for one connection, and the monitor that tells when it is there and when it broke."""

    def __init__(self, context: zmq.Context[Socket], address: str) -> None:
        self.socket = client_socket(context, zmq.DEALER, LIMITS)
        self.monitor: Socket | None = None
        try:
            self.monitor = self.socket.get_monitor_socket(EVENTS)
            self.monitor.setsockopt(zmq.LINGER, 0)
            self.socket.connect(address)
        except zmq.ZMQError as error:
            self.close()
            example = "an address looks like tcp://127.0.0.1:5555 or ipc:///run/some/path"
            raise PipeError(
                f"cannot connect to {address}", str(error), "nothing is sent", example, stage=Stage.CONNECTING
            ) from error  # fmt: skip

    def events(self) -> list[bool]:
        """Say what happened to the connection: True when it came about, False when it is no more."""
        found = []
        with contextlib.suppress(zmq.Again):
            while self.monitor is not None:
                (number,) = struct.unpack("=H", self.monitor.recv_multipart(zmq.DONTWAIT)[0][:2])
                found.append(number == zmq.EVENT_HANDSHAKE_SUCCEEDED)
        return found

    @property
    def readable(self) -> bool:
        """Whether there is something to read, of the connection or about it."""
        sockets = (self.socket, self.monitor)
        return any(socket is not None and int(socket.get(zmq.EVENTS)) & zmq.POLLIN for socket in sockets)

    def close(self, linger_ms: int = 0) -> None:
        """Close; what was sent has until the linger ends to leave."""
        if self.monitor is not None:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.monitor = None
        self.socket.close(linger_ms)


class Engine:
    """Runs a session: whoever drives it calls ``turn`` when there is something to read or the deadline has come."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.link: Link | None = None
        self.closed = False
        self.on_link: Callable[[Link | None], None] = lambda link: None
        self._context = CONTEXT.acquire()
        self._number = 0
        self._attempts = 0
        """How often connecting has failed since there was a connection."""
        self._process = os.getpid()

    @property
    def inherited(self) -> bool:
        """Whether this is another process than the one that made it: sockets and threads do not survive a fork."""
        return self._process != os.getpid()

    def start(self) -> None:
        """Begin to connect; raises a PipeError when the address is no address."""
        self.session.start(time.monotonic())
        try:
            self.apply()
        except PipeError:
            self.close()
            raise

    def turn(self) -> bool:
        """Do all there is to do; tell whether more may be waiting already."""
        if self.closed:
            return False
        now = time.monotonic()
        more = self.link is not None and self._read(self.link, now)
        if self.session.next_deadline() <= now:
            self.session.on_deadline(now)
        self.apply()
        return more

    def _read(self, link: Link, now: float) -> bool:
        session = self.session
        # before the messages, so that all that was said before the connection broke is among them
        events = link.events()
        receive = link.socket.recv_multipart
        if events and events[0] and not session.linked:
            events.pop(0)
            session.on_linked(now)
        with contextlib.suppress(zmq.Again):
            count = 0
            while events or count < BATCH:
                session.receive(tuple(receive(zmq.DONTWAIT)), now)
                if session.wanted != self._number:
                    return False  # the rest comes from a connection that was given up
                count += 1
            return True
        if events and session.wanted == self._number:
            # only on the first connection: a broker that was there once may come back
            reason = "" if session.reached else why_nobody_listens(session.address)
            self._attempts = 0 if session.linked else self._attempts + 1
            if reason:
                session.end(nobody_there(session.name, session.address, reason), now)
            else:
                session.on_unlinked(now)
        return False

    def apply(self) -> None:
        """Carry out what the session wants: another connection, and sending."""
        session = self.session
        if session.wanted != self._number:
            self._let_go()
            self._number = session.wanted
            if session.wanted:
                self.link = Link(self._context, resolve(session.address, self._attempts)[0])
                self.on_link(self.link)
        if session.out:
            if self.link is not None:
                for frames in session.out:
                    self.link.socket.send_multipart(frames, zmq.DONTWAIT, copy=False)
            session.out.clear()

    def wait(self, seconds: float) -> None:
        """Wait until there is something to do, no longer than that."""
        seconds = max(0.0, min(seconds, self.session.next_deadline() - time.monotonic()))
        if self.link is None or self.link.monitor is None:
            time.sleep(seconds)
        else:
            sockets = [(self.link.socket, int(zmq.POLLIN)), (self.link.monitor, int(zmq.POLLIN))]
            zmq.zmq_poll(sockets, int(seconds * 1000) + (seconds > 0))

    def close(self, linger_ms: int = 0) -> None:
        """Close everything; waits no longer than the linger."""
        if self.closed:
            return
        self.closed = True
        if self.inherited:
            return  # all of it is the parent's
        self.session.abandon()
        self._let_go(linger_ms)
        CONTEXT.release(self._context)

    def _let_go(self, linger_ms: int = 0) -> None:
        words, self.session.last_words = self.session.last_words, []
        if self.link is None:
            return
        self.on_link(None)
        if words:
            linger_ms = max(linger_ms, LAST_WORDS_MS)
            with contextlib.suppress(zmq.ZMQError):
                for frames in words:
                    self.link.socket.send_multipart(frames, zmq.DONTWAIT)
        self.link.close(linger_ms)
        self.link = None
