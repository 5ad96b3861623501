"""Connections to holders of songs, without I/O: each has one user at a time, and is kept for the next who needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from scale0_core.api import Frames, Scale0Error
from scale0_core.client.kit.sessions import BaseSession, Limits
from scale0_musicquest import wire
from scale0_musicquest.client.errors import MusicError, MusicTimeoutError, NoServerError, Stage, closed, refused
from scale0_musicquest.client.session import read_error

KEPT = 16
BATCH = 16
"""Chunks taken from a holder in one turn."""


class User(Protocol):
    """Who uses a connection."""

    def heard(self, holder: HolderSession, frames: Frames, now: float) -> None:
        """Take a message, whose frames are memoryviews; it may be an answer to whoever used the connection before."""

    def lost(self, holder: HolderSession, why: str, now: float) -> None:
        """Note that the connection broke, or did not come about."""


class HolderSession(BaseSession):
    """One connection to a holder; it ends when it breaks."""

    limits = Limits(batch=BATCH, linger_ms=0, views=True, report_failures=True)

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.user: User | None = None
        self.linked = False
        self._waiting: list[Frames] = []

    def send(self, frames: Frames) -> None:
        """Send, as soon as there is a connection."""
        (self.out if self.linked else self._waiting).append(frames)

    def on_linked(self, now: float) -> None:
        """Send what has waited."""
        self.linked = True
        self.out += self._waiting
        self._waiting.clear()

    def on_unlinked(self, now: float) -> None:
        """Note that the connection broke."""
        self._lose("the connection broke", now)

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that there is no connection."""
        self._lose("nobody listens there", now)

    def _lose(self, why: str, now: float) -> None:
        self.ended = True
        if self.user is not None:
            self.user.lost(self, why, now)

    def receive(self, frames: Frames, now: float) -> None:
        """Hand a message to the user."""
        if self.user is not None:
            self.user.heard(self, frames, now)


class Holders:
    """All connections to holders.

    :param add: has a session run.
    """

    def __init__(self, add: Callable[[HolderSession], object]) -> None:
        self._add = add
        self.idle: list[HolderSession] = []

    def take(self, address: str, user: User) -> HolderSession:
        """Return a connection to this address; ``give`` it back in the end."""
        self.idle = [holder for holder in self.idle if not holder.ended]
        holder = next((holder for holder in self.idle if holder.address == address), None)
        if holder is not None:
            self.idle.remove(holder)
        else:
            holder = HolderSession(address)
            try:
                self._add(holder)
            except Scale0Error as error:
                problem = error.problem
                raise NoServerError(problem.what, problem.why, "it is left out", stage=Stage.HOLDER) from error
        holder.user = user
        return holder

    def give(self, holder: HolderSession, now: float, *, clean: bool) -> None:
        """Take a connection back; only one on which nothing is open is used again."""
        holder.user = None
        if clean and holder.linked and not holder.ended:
            self.idle.append(holder)
        else:
            holder.stop(now)
        while len(self.idle) > KEPT:
            self.idle.pop(0).stop(now)


class HolderQuestion(BaseSession):
    """One question to a holder.

    :param done: gets the answer, a word and what follows the tag; or an error.
    """

    def __init__(
        self, holders: Holders, endpoint: str, request: Frames, timeout: float,
        done: Callable[[Frames | MusicError], object],
    ) -> None:  # fmt: skip
        super().__init__()
        self._holders, self._endpoint, self._request, self._done = holders, endpoint, request, done
        self._timeout, self._deadline = timeout, 0.0
        self._holder: HolderSession | None = None

    def start(self, now: float) -> None:
        """Ask."""
        self._deadline = now + self._timeout
        try:
            self._holder = self._holders.take(self._endpoint, self)
        except MusicError as error:
            self._end(error, now)
        else:
            self._holder.send(self._request)

    def heard(self, holder: HolderSession, frames: Frames, now: float) -> None:
        """Take the answer."""
        message = wire.split((b"", *map(bytes, frames)))
        if not message.extended or message.tag != self._request[2]:
            return
        if message.word == wire.ERROR:
            self._end(refused(self._endpoint, *read_error(message), Stage.HOLDER), now, clean=True)
        else:
            self._end((message.word, *message.rest), now, clean=True)

    def lost(self, holder: HolderSession, why: str, now: float) -> None:
        """Note that there will be no answer."""
        what = f"{self._endpoint} cannot be asked"
        self._end(NoServerError(what, why, "nothing came", stage=Stage.HOLDER), now)

    def next_deadline(self) -> float | None:
        """Return when the time is over."""
        return self._deadline

    def on_deadline(self, now: float) -> None:
        """End when the time is over."""
        if now < self._deadline or self.ended or self._holder is None:
            return
        if not self._holder.linked:
            self.lost(self._holder, "nobody listens there", now)
            return
        what = f"{self._endpoint} did not answer within {self._timeout:g} s"
        error = MusicTimeoutError(what, Stage.HOLDER.value, "nothing came", "try a longer timeout", stage=Stage.HOLDER)
        self._end(error, now)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End without an answer."""
        self._end(closed(), now)

    def _end(self, outcome: Frames | MusicError, now: float, *, clean: bool = False) -> None:
        if self.ended:
            return
        self.ended = True
        if self._holder is not None:
            self._holders.give(self._holder, now, clean=clean)
        self._done(outcome)
