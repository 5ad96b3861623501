"""What the sessions of writers and readers have in common, without I/O: opening a pipe, on any connection that comes.

Sessions as ``scale0_core.client.kit.sessions`` says it. What was said on a connection belongs to it: when it breaks, a
session finds the pipe again on the next one and repeats what had no answer.

The broker counts OPENs and CLOSEs, and does not know whose they were. So a session opens a pipe once, also if its
connection breaks; again only if the broker does not know the pipe any more, or made it anew. In the end it closes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from random import Random
from typing import Any

from scale0_core.api import Backoff, Frames, printable, records
from scale0_core.client.kit.sessions import Limits
from scale0_zpipes.client.errors import (
    PipeError,
    PipeFullError,
    PipeLostError,
    PipeTimeoutError,
    Stage,
    nobody_there,
    refused,
)

FIRST_REST, LONGEST_REST = 0.05, 1.0

NEVER = float("inf")


def read_info(frame: bytes) -> dict[str, Any]:
    """Read what a broker says of a pipe; what sessions go by is as it should be, or a MalformedError says why not."""
    info = records.object_from(frame)
    records.flag_of(info, "durable")
    records.whole_of(info, "links")
    records.whole_of(info, "next", 1)
    records.or_none(records.whole_of, info, "max_chunk", least=1)
    return info


class Session(ABC):
    """What writers and readers have in common: opening the pipe on each connection, and what becomes of calls.

    Large, since it has a method for each thing that an engine tells, and one for each that writers and readers do.
    """

    reached = ""
    limits = Limits(max_message=-1, send_queue=0, receive_queue=0, batch=100, zero_copy=True)
    """How large a chunk may be is the broker's to say; a session has a bound of its own for what is under way."""

    def __init__(self, name: bytes, target: str, *, random: Random, patience: float = 30.0) -> None:
        self.name, self.target = name, target
        self.patience = patience
        self.out: list[Frames] = []
        self.connection = 0
        self.linked = self.ready = self.ended = False
        self.error: PipeError | None = None
        """What ended the session."""
        self.refusal: tuple[int, str] | None = None
        """What the broker refused last, until something goes well."""
        self.breaks = 0
        """How often the connection broke since something went well."""
        self.goodbyes = 0
        """Answers that are still to come after ``leave``."""
        self.counted = False
        """Whether a link at the broker is this session's."""
        self.info: dict[str, Any] = {}
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, random)
        self._away = 0.0
        self._rested_at = self._due = NEVER
        self._greetings: deque[Frames] = deque()
        self._opens = False
        """Whether the pipe was opened on this connection."""

    @property
    def busy(self) -> bool:
        """Whether something is to be done while its user does other things."""
        return False

    # --- the connection -----------------------------------------------------------------------------------------------

    @property
    def address(self) -> str:
        """Where to connect; nowhere while it rests after a refusal, and after the end."""
        return "" if self.ended or self._rested_at != NEVER else self.target

    def start(self, now: float) -> None:
        """Begin to connect."""
        self._away = now
        self.connection += 1

    def on_linked(self, now: float) -> None:
        """Open the pipe on a new connection."""
        self.linked = True
        self._greet(now)

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone; there will be another one."""
        self.breaks += 1
        self.linked = False
        self._forget(now)

    def on_nobody(self, reason: str, now: float) -> None:
        """End, for there has never been anybody."""
        self.end(nobody_there(self.name, self.target, reason), now)

    def next_deadline(self) -> float | None:
        """Return when something is due, or None."""
        deadline = self._next_due()
        return None if deadline == NEVER else deadline

    def _next_due(self) -> float:
        return min(self._rested_at, self._due)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        if self._rested_at <= now:
            self._rested_at = NEVER
            self.connection += 1
        if self._due <= now:
            self._drop(now)  # the broker does not answer

    def _drop(self, now: float, *, at_once: bool = False) -> None:
        """Have another connection, after a backoff unless it is needed at once."""
        self._forget(now)
        if not at_once:
            self._rested_at = now + self._backoff.next()
        self.connection += 1

    def _forget(self, now: float) -> None:
        """Let go of all that was said on a connection; what remains to be said on it is that the pipe is closed."""
        if self.ready:
            self._away = now
        unsure = any(request[0] == b"OPEN" for request in self._greetings)
        self.out.clear()
        if unsure or self.ended:
            self._close_pipe()
        if unsure:
            self.counted = False  # rather a link too many than one that is taken from somebody else
        self.linked = self.ready = False
        self._due = NEVER
        self.goodbyes = 0
        self._greetings.clear()
        self._forget_connection()

    def _close_pipe(self) -> None:
        """Close the pipe if there is a connection, without waiting for the answer."""
        if self.linked and self.counted:
            self.out.append((b"CLOSE", self.name))
            self.counted = False

    @abstractmethod
    def _forget_connection(self) -> None:
        """Let go of what was said on the connection that is gone."""

    def end(self, error: PipeError, now: float) -> None:
        """End the session: nothing is sent any more."""
        self.error, self.ended = self.error or error, True
        self._forget(now)
        self._rested_at = NEVER
        self.connection += 1

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Close the pipe, without waiting for the answer, unless that was done."""
        if error is not None and self.error is None:
            what = f"pipe {printable(self.name)}: the client failed"
            self.error = PipeError(what, repr(error), self._consequence(), pipe=self.name, stage=self.stage)
        self.ended = True
        self._close_pipe()

    # --- what the broker says -----------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message."""
        if frames == (b"PROBE",):
            return  # the broker wanted to know whether it can be delivered
        try:
            if self.goodbyes and frames[0] in (b"OK", b"ERROR") and self._is_goodbye(frames):
                self.goodbyes -= 1
            elif not self.ready:
                self._greeted(frames, now)
            else:
                self._answer(frames, now)
        except (ValueError, LookupError) as error:  # BatchError is one, and what json and int say
            what = f"pipe {printable(self.name)}: the answer of {self.target} cannot be read"
            remedy = "is a broker with the plugin zpipes at this address?"
            self.end(PipeError(what, repr(error), self._consequence(), remedy, pipe=self.name, stage=self.stage), now)

    def _is_goodbye(self, frames: Frames) -> bool:
        return True

    def _requests_to_open(self) -> list[Frames]:
        asking = (b"INFO", self.name)
        return [asking] if self.counted else [(b"OPEN", self.name), asking]

    def _greet(self, now: float) -> None:
        self.ready = False
        self._opens = not self.counted
        self._greetings = deque(self._requests_to_open())
        self.counted = self._greetings[-1][0] != b"CLOSE"
        self.out += self._greetings
        self._due = now + self.patience

    def _greeted(self, frames: Frames, now: float) -> None:
        """Take an answer to one of the requests that open the pipe."""
        if not self._greetings or frames[0] == b"PONG":
            return
        if frames[0] == b"ERROR":
            self._refused_opening(*self._read_error(frames), now)
            return
        request = self._greetings.popleft()
        if request[0] == b"INFO":
            known, self.info = self.info, read_info(frames[1])
            if not self._opens and not (self.info["links"] and self.info.get("made") == known.get("made")):
                self._open_anew(now)
                return
        self._understood(request[0], frames)
        if not self._greetings and self.error is not None:
            self.end(self.error, now)
        elif not self._greetings:
            self.ready = True
            self._due = NEVER
            self._backoff.reset()
            self._opened(now)

    def _open_anew(self, now: float) -> None:
        """Begin again, since the pipe of which this session had a link is gone."""
        self.counted = False
        self._drop(now, at_once=True)  # on a new connection, since there may be answers on their way

    def _refused_opening(self, code: int, reason: str, now: float) -> None:
        if self._greetings[0][0] == b"OPEN":
            self._greetings.clear()
            self.counted = False
        if code == 404 and not self._opens:
            self._open_anew(now)
        elif code in (400, 410, 413, 501):
            self.end(refused(self.name, code, reason, Stage.OPENING, "the pipe is not opened"), now)
        else:
            self._drop(now)

    def _read_error(self, frames: Frames) -> tuple[int, str]:
        code = int(frames[1]) if len(frames) > 1 and bytes(frames[1]).isdigit() else 0
        reason = bytes(frames[2]).decode("utf-8", "replace") if len(frames) > 2 else ""
        self.refusal = (code, reason)
        return self.refusal

    @abstractmethod
    def _understood(self, command: bytes, frames: Frames) -> None:
        """Look at the answer to a request that opens the pipe."""

    @abstractmethod
    def _opened(self, now: float) -> None:
        """Go on when the pipe is open."""

    @abstractmethod
    def _answer(self, frames: Frames, now: float) -> None:
        """Take a message on a pipe that is open."""

    def _well(self) -> None:
        self.refusal = None
        self.breaks = 0

    # --- how it ends --------------------------------------------------------------------------------------------------

    def leave(self, now: float) -> None:
        """Say good-bye; it is done when ``left``."""
        if self.ready and self.counted:
            self.out.append((b"CLOSE", self.name))
            self.goodbyes += 1
            self.counted = False

    @property
    def left(self) -> bool:
        """Whether nothing is to come any more."""
        return not self.ready or not self.goodbyes

    def fault(self, now: float, began: float) -> PipeError | None:
        """Give what a call that began then must end with, if it must."""
        if self.error is not None:
            return self.error
        if not self.ready and now - max(self._away, began) >= self.patience:
            why, remedy = self._whereabouts()
            what = f"pipe {printable(self.name)}: the broker at {self.target} cannot be reached"
            why = f"{self.stage.value}: {why} for {self.patience:g} s"
            return PipeLostError(what, why, self._consequence(), remedy, pipe=self.name, stage=self.stage)
        return None

    def late(self, timeout: float) -> PipeError:
        """Make the error for a call whose time is over."""
        what = f"pipe {printable(self.name)}: not done within {timeout:g} s"
        why, remedy = self._whereabouts()
        stage = self.stage
        kind = PipeFullError if stage is Stage.ROOM else PipeTimeoutError
        return kind(what, f"{stage.value}: {why}", self._consequence(), remedy, pipe=self.name, stage=stage)

    @property
    def stage(self) -> Stage:
        """How far things have come."""
        if not self.linked:
            return Stage.CONNECTING
        return self._stage_when_ready() if self.ready else Stage.OPENING

    def _stage_when_ready(self) -> Stage:
        return Stage.ANSWER

    def _whereabouts(self) -> tuple[str, str]:
        """Give why nothing goes on, and what to do."""
        if self.refusal is not None:
            return f"the broker says {self.refusal[0]}: {printable(self.refusal[1], 500)}", "scale0 zpipes info"
        if self.breaks > 2:
            return f"the connection broke {self.breaks} times", "is a chunk larger than plugin.zpipes.max_message?"
        if self.ready:
            return "no answer so far", "try a longer timeout"
        return f"no answer from {self.target}", "start a broker with the plugin zpipes: scale0 broker"

    def _consequence(self) -> str:
        return ""
