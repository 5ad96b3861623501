"""Sockets: a REQ for each question to the broker, and DEALERs to holders, kept for the next who needs them."""

# does I/O: sockets and the clock

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
from collections.abc import Callable

import zmq

from scale0_core.api import Frames, Scale0Error
from scale0_core.client.kit.link import Link, client_socket, wait
from scale0_core.client.kit.listening import why_nobody_listens
from scale0_core.client.kit.route import BETWEEN, resolve
from scale0_core.client.kit.sessions import Limits
from scale0_core.client.threads import FORKED
from scale0_musicquest import wire
from scale0_musicquest.client.errors import (
    START_BROKER,
    MusicClosedError,
    MusicError,
    MusicTimeoutError,
    NoBrokerError,
    NoServerError,
    Stage,
    closed,
    refused,
)
from scale0_musicquest.client.session import read_error

SLICE_MS = 100
"""How often one who waits for the broker looks whether it is still wanted."""
KEPT_LINKS = 16
CLOSE_SECONDS = 10.0

Socket = zmq.Socket[bytes]


def new_tag() -> bytes:
    """Draw a tag."""
    return secrets.token_hex(8).encode()


def ask_broker(target: str, request: Frames, timeout: float, given_up: Callable[[], bool]) -> Frames | None:
    """Ask the broker, or one after the other of several; return None if there is no answer.

    Raise a NoBrokerError if nobody listens there.
    """
    by = time.monotonic() + timeout
    choices = target.count(BETWEEN) + 1
    for attempt in range(choices):
        share = (by - time.monotonic()) / (choices - attempt)
        answer = _ask_at(resolve(target, attempt)[0], request, share, given_up)
        if answer is not None or given_up():
            return answer
    if reason := why_nobody_listens(target):
        raise NoBrokerError(f"no broker at {target}", reason, "nothing was asked", START_BROKER, stage=Stage.BROKER)
    return None


def _ask_at(address: str, request: Frames, timeout: float, given_up: Callable[[], bool]) -> Frames | None:
    """Ask by a REQ socket of its own, which is never stuck for that."""
    by = time.monotonic() + timeout
    looked = False
    limits = Limits(reconnect=True, max_message=2 * wire.MAX_JSON, linger_ms=0)
    with (
        contextlib.suppress(zmq.ZMQError),
        zmq.Context() as context,
        client_socket(context, zmq.REQ, limits) as socket,
    ):
        socket.connect(address)
        socket.send_multipart(request)
        while not given_up() and (left := by - time.monotonic()) > 0:
            if socket.poll(min(SLICE_MS, int(left * 1000) + 1)):
                return tuple(socket.recv_multipart())
            if not looked and why_nobody_listens(address):
                return None
            looked = True
    return None


def forked() -> MusicClosedError:
    """Make the error for a client in a forked child."""
    what, remedy = "this client belongs to another process", "make another one after the fork"
    return MusicClosedError(what, FORKED, "nothing was asked", remedy, stage=Stage.CLOSED)


class Links:
    """Connections to holders; each is used by one thread at a time, and kept for a while."""

    def __init__(self) -> None:
        self._kept: list[Link] = []
        self._used = 0
        self._process = os.getpid()
        self._changed = threading.Condition()
        self.closed = False

    def take(self, address: str) -> Link:
        """Give a connection to this address; ``give`` it back in the end."""
        if self.forked:
            raise forked()
        with self._changed:
            if self.closed:
                raise closed()
            found = self._take_kept(address)
            if found is None:
                try:
                    found = Link(address)
                except Scale0Error as error:
                    problem = error.problem
                    raise NoServerError(problem.what, problem.why, "it is left out", stage=Stage.HOLDER) from error
            self._used += 1
            return found

    def _take_kept(self, address: str) -> Link | None:
        for link in [link for link in self._kept if link.address == address]:
            self._kept.remove(link)
            if not link.look_for_breaks():
                return link
            link.drop()
        return None

    def give(self, link: Link, *, clean: bool) -> None:
        """Give a connection back; only one on which nothing is open is used again."""
        with self._changed:
            self._used -= 1
            if clean and not self.closed and not link.look_for_breaks():
                self._kept.append(link)
                while len(self._kept) > KEPT_LINKS:
                    self._kept.pop(0).drop()
            else:
                link.drop()
            self._changed.notify_all()

    @property
    def forked(self) -> bool:
        """Whether this is a forked child, whose parent has the connections."""
        return os.getpid() != self._process

    def close(self) -> None:
        """Close all, once those who use one have noticed; in a forked child nothing is done."""
        if self.forked:
            return
        with self._changed:
            if self.closed:
                return
            self.closed = True
            for link in self._kept:
                link.drop()
            self._kept.clear()
            self._changed.wait_for(lambda: not self._used, CLOSE_SECONDS)

    def ask(self, address: str, word: bytes, *rest: bytes, timeout: float) -> tuple[bytes, Frames]:
        """Ask the server at an address one question, and wait for its answer: a word and what follows the tag."""
        tag = new_tag()
        message = self._exchange(address, wire.extended(word, tag, *rest), tag, timeout)
        if message.word == wire.ERROR:
            raise refused(address, *read_error(message), Stage.HOLDER)
        return message.word, message.rest

    def _exchange(self, address: str, request: Frames, tag: bytes, timeout: float) -> wire.Message:
        link = self.take(address)
        clean = False
        try:
            link.send(request)
            message = self._answer(link, tag, timeout)
            clean = True
        finally:
            self.give(link, clean=clean)
        return message

    def _answer(self, link: Link, tag: bytes, timeout: float) -> wire.Message:
        by = time.monotonic() + timeout
        while (left := by - time.monotonic()) > 0 and not self.closed:
            wait(link.polled, min(SLICE_MS / 1000, left))
            broken = link.look_for_breaks()  # before the messages, so that all that was said before is among them
            for frames in link.messages():
                message = wire.split((b"", *frames))
                if message.extended and message.tag == tag:
                    return message
            if broken:
                raise self._nobody(link)
        if self.closed:
            raise closed()
        if not link.up:
            raise self._nobody(link)
        what = f"{link.address} did not answer within {timeout:g} s"
        raise MusicTimeoutError(what, Stage.HOLDER.value, "nothing came", "try a longer timeout", stage=Stage.HOLDER)

    @staticmethod
    def _nobody(link: Link) -> MusicError:
        why = "the connection broke" if link.up else "nobody listens there"
        return NoServerError(f"{link.address} cannot be asked", why, "nothing came", stage=Stage.HOLDER)
