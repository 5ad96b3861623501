"""Runs a session on one connection after the other; what a session must provide is in ``sessions``."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from random import uniform

import zmq

from scale0_core.client.kit.link import CONTEXT, Link, Socket
from scale0_core.client.kit.listening import why_nobody_listens
from scale0_core.client.kit.route import choice, resolve
from scale0_core.client.kit.sessions import Session
from scale0_core.config.addresses import is_local
from scale0_core.errors import AddressError
from scale0_core.logs import get_logger

LOG = get_logger("client")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 1.0
"""Seconds between two attempts to connect to the same address."""

LOCAL_SHARE, REMOTE_SHARE = 0.01, 0.1
"""The longest pause as a share of the time without a connection. A broker that dies again and again may be up for a
fraction of a second only; at a local address an attempt costs next to nothing, so the first 10 seconds have many."""


class Engine:
    """Runs a session: a driver calls ``turn`` when there is something to read or the deadline has come."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.link: Link | None = None
        self.on_link: Callable[[Link | None, Link | None], None] = lambda old, new: None
        self._process = 0
        self._context: zmq.Context[Socket] | None = None
        self._connection = 0
        self._choice = ""
        self._linked_before = False
        self._attempts = 0
        """How often connecting has failed since there was a connection."""
        self._unlinked_since = time.monotonic()
        self._again_at: float | None = None
        self._clear: list[Callable[[], None]] = []

    @property
    def forked(self) -> bool:
        """Whether this is another process than the one that has the connection: nothing can be done here."""
        return self._process != os.getpid() and self._process != 0

    def start(self) -> None:
        """Begin to connect; raises an AddressError when the address is not valid, or no socket can be opened."""
        self._process = os.getpid()
        self._context = CONTEXT.acquire()  # held between two links
        try:
            self.session.start(time.monotonic())
            self._reopen()
        except BaseException:
            self.close()
            raise

    def turn(self) -> bool:
        """Do all there is to do; return whether more is waiting already."""
        now = time.monotonic()
        more = self._read(now) if self.link is not None else False
        deadline = self.session.next_deadline()
        if deadline is not None and deadline <= now:
            self.session.on_deadline(now)
        if self._again_at is not None and self._again_at <= now:
            self._try_to_open()
        self.apply()
        return more

    def _read(self, now: float) -> bool:
        link, session = self.link, self.session
        assert link is not None
        link.look()  # before the messages, so that all that was said before the connection broke is among them
        if link.events and link.events[0]:
            link.events.popleft()
            self._linked_before = link.up = True
            self._attempts = 0
            session.reached = self._choice
            session.on_linked(now)
            if session.connection != self._connection:
                return False
        messages = link.messages()
        for frames in messages:
            session.receive(frames, now)
            if session.connection != self._connection:
                return False  # the rest comes from a connection that was given up
        if len(messages) == link.limits.batch:
            return True
        if link.events:
            self._broke(link, now)
        return False

    def _broke(self, link: Link, now: float) -> None:
        """Have the next attempt soon, with a socket of its own."""
        self.link = None
        self.on_link(link, None)
        link.drop()
        if link.up:
            self._unlinked_since = now
        else:
            self._attempts += 1
        self._pause(link.address)
        if link.up:
            self.session.on_unlinked(now)
        elif link.limits.report_failures:
            self.session.on_nobody(f"no connection to {link.address} came about", now)
        elif not self._linked_before and (reason := why_nobody_listens(self.session.address)):
            self.session.on_nobody(reason, now)

    def _pause(self, address: str) -> None:
        now = time.monotonic()
        share = LOCAL_SHARE if is_local(address) else REMOTE_SHARE
        longest = min(max(FIRST_PAUSE, share * (now - self._unlinked_since)), LONGEST_PAUSE)
        self._again_at = now + longest * uniform(0.5, 1.0)  # noqa: S311

    def apply(self) -> None:
        """Carry out what the session wants: send, and connect elsewhere."""
        out, link = self.session.out, self.link
        if link is not None:
            if link.outbox:
                link.flush()
            try:
                for frames in out:
                    link.send(frames)
            finally:
                out.clear()  # also if a frame is none, lest those before it are sent again
        else:
            out.clear()
        if self.session.connection != self._connection:
            self._try_to_open()
        if self._clear and not (self.link and self.link.outbox):
            waiting, self._clear = self._clear, []
            for call in waiting:
                call()

    @property
    def behind(self) -> bool:
        """Whether the session wants something that ``apply`` has not carried out."""
        return bool(self.session.out) or self.session.connection != self._connection

    def when_clear(self, call: Callable[[], None]) -> None:
        """Call back when nothing waits to be sent; for those who make much."""
        self._clear.append(call)

    def next_deadline(self) -> float | None:
        """Return when something is due, or None."""
        deadline, again = self.session.next_deadline(), self._again_at
        return deadline if again is None else again if deadline is None else min(deadline, again)

    def timeout(self) -> float | None:
        """Return the seconds until something is due, or None."""
        deadline = self.next_deadline()
        return None if deadline is None else max(deadline - time.monotonic(), 0.0)

    def _try_to_open(self) -> None:
        try:
            self._reopen()
        except AddressError as error:
            LOG.error(error.problem.what, why=error.problem.why)
            self._pause(self.session.address)

    def _reopen(self) -> None:
        old, self.link, self._again_at = self.link, None, None
        self._connection = self.session.connection
        try:
            if self.session.address:
                self._choice = choice(self.session.address, self._attempts)
                self.link = Link(resolve(self._choice)[0], self.session.limits)
        finally:
            self._replaced(old)

    def _replaced(self, old: Link | None) -> None:
        self.on_link(old, self.link)
        if old is not None:
            old.close()

    def close_link(self) -> None:
        """Close the connection; what was sent lingers."""
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
        """Let go of ZeroMQ's threads; if nobody else needs them, wait until what was sent has left."""
        context, self._context = self._context, None
        if context is not None:
            CONTEXT.release(context)
