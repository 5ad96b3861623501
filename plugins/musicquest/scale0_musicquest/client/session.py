"""A client's talk with its server and with the broker, without I/O.

``MusicSession`` finds a server, asks it, shows that it lives, and goes to another one when it dies. Every message
begins with the empty frame of a REQ socket, since it stands for one; several questions are open at once, told apart by
their tags. ``BrokerSession`` asks the broker one question.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from scale0_core.api import Frames, printable, records
from scale0_core.client.kit.sessions import BaseSession, Limits
from scale0_musicquest import wire
from scale0_musicquest.client.errors import (
    START_BROKER,
    MusicError,
    MusicTimeoutError,
    NoBrokerError,
    NoServerError,
    Stage,
    closed,
    refused,
    unreadable,
)
from scale0_musicquest.songs import endpoint_of

FIRST_REST, LONGEST_REST = 1.0, 8.0
"""Seconds until the broker is asked again: 1, 2, 4, 8, 8..."""
GREETING_PATIENCE = 3.0
HEARTBEAT = 2.0
SHORTEST_HEARTBEAT = 0.05
SILENT_BEATS = 3
AVOIDED = 8
"""Servers that were lost lately, which the broker is asked not to give."""


@attrs.define(eq=False)
class Question:
    """Something to be asked of the server; ``done`` is called once there is an answer or an error."""

    word: bytes
    rest: Callable[[float], Frames]
    """What follows the tag, for so many seconds left."""
    deadline: float
    done: Callable[[Question], None]
    word_back: bytes = b""
    answer: Frames = ()
    error: MusicError | None = None
    tag: bytes = b""
    """Of the message that is under way; a new one each time it is asked."""

    def reply(self) -> Frames:
        """Return the word of the answer and what follows its tag, or raise the error."""
        if self.error is not None:
            raise self.error
        return (self.word_back, *self.answer)


Heard = Callable[["Frames | MusicError | None", float], None]


class BrokerSession(BaseSession):
    """One question to the broker, or to one after the other of several.

    :param choices: targets of the brokers, which have equal shares of the time.
    :param done: gets the answer; an error if nobody listens or the client is closed; None if nothing came in time.
    """

    limits = Limits(max_message=2 * wire.MAX_JSON, linger_ms=0)

    def __init__(self, choices: Sequence[str], request: Frames, timeout: float, done: Heard) -> None:
        super().__init__()
        self._choices, self._request, self._done = choices, (b"", *request), done
        self._timeout = timeout
        self._end_at = self._until = 0.0
        self._tried = 0
        self._reasons: list[str] = []
        """Why nobody can be asked, of those where nobody listens."""

    def start(self, now: float) -> None:
        """Ask the first."""
        self._end_at = now + self._timeout
        self._next(now)

    def _next(self, now: float) -> None:
        left = len(self._choices) - self._tried
        if left:
            self.address = self._choices[self._tried]
            self.connection += 1
            self._tried += 1
            self._until = now + (self._end_at - now) / left
        elif len(self._reasons) < self._tried:
            self._finish(None, now)
        else:
            what, why = f"no broker at {' | '.join(self._choices)}", "; ".join(self._reasons)
            self._finish(NoBrokerError(what, why, "nothing was asked", START_BROKER, stage=Stage.BROKER), now)

    def on_linked(self, now: float) -> None:
        """Ask; again, should the broker be started anew."""
        self.out.append(self._request)

    def on_nobody(self, reason: str, now: float) -> None:
        """Ask the next."""
        self._reasons.append(reason)
        self._next(now)

    def receive(self, frames: Frames, now: float) -> None:
        """Take the answer."""
        self._finish(frames, now)

    def next_deadline(self) -> float | None:
        """Return when the time of this broker is over."""
        return self._until

    def on_deadline(self, now: float) -> None:
        """Ask the next."""
        if now >= self._until and not self.ended:
            self._next(now)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End without an answer."""
        self._finish(closed(), now)

    def _finish(self, said: Frames | MusicError | None, now: float) -> None:
        if not self.ended:
            self.ended = True
            self._done(said, now)


class MusicSession(BaseSession):
    """A client's server, and what was asked of it.

    Large, since one connection serves the questions of all callers while the server changes under them.
    """

    def __init__(
        self, ident: str, broker: str, *, ask_broker: Callable[[Frames], None], new_tag: Callable[[], bytes],
        server: str = "", first_rest: float = FIRST_REST, wait_for_broker: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.ident, self.broker = ident, broker
        self.ready = False
        self._fixed = server
        self._wait_for_broker = wait_for_broker
        self._ready_before = False
        self._ask_broker, self._new_tag = ask_broker, new_tag
        self._first_rest = self._rest = first_rest
        self._heartbeat = HEARTBEAT
        self._open: dict[Question, None] = {}
        self._by_tag: dict[bytes, Question] = {}
        self._avoid: list[str] = []
        self._asking = False
        self._trouble: MusicError | None = None
        """Why there is no server yet."""
        self._again_at: float | None = None
        self._soonest = 0.0
        """When the broker may be asked again, however long the pause is."""
        self._greet_by: float | None = None
        self._heard = self._said = 0.0

    # --- the engine's calls -------------------------------------------------------------------------------------------

    def on_linked(self, now: float) -> None:
        """There is a connection: say hello."""
        if self.address and not self.ready:
            self._say(wire.HELLO, self._new_tag(), wire.to_json({"id": self.ident}), now=now)

    def on_unlinked(self, now: float) -> None:
        """Note that the connection broke: its server is lost."""
        self._lose(f"the connection to {self.address} broke", now)

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens at the server's address; without a broker to ask for another one, that is final."""
        fixed = self._fixed
        self._lose(reason, now)
        if fixed:
            self._give_up(NoServerError(f"no server at {fixed}", reason, "nothing was asked", stage=Stage.GREETING))

    def _give_up(self, error: MusicError) -> None:
        """Fail what is open, unless there was a server before or one is to be waited for."""
        if not self._ready_before and not self._wait_for_broker:
            for question in list(self._open):
                self._end(question, error)

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        due = [question.deadline for question in self._open]
        due += [moment for moment in (self._again_at, self._greet_by) if moment is not None]
        if self.ready:
            due += [self._said + self._heartbeat, self._heard + SILENT_BEATS * self._heartbeat]
        return min(due, default=None)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        for question in [question for question in self._open if question.deadline <= now]:
            self._end(question, self._too_late(question))
        if self._again_at is not None and self._again_at <= now:
            self._find(now)
        if self._greet_by is not None and self._greet_by <= now:
            self._lose(f"{self.address} does not answer a greeting within {GREETING_PATIENCE:g} s", now)
        if self.ready and self._heard + SILENT_BEATS * self._heartbeat <= now:
            self._lose(f"{self.address} said nothing for {SILENT_BEATS} heartbeats", now)
        if self.ready and self._said + self._heartbeat <= now:
            self._say(wire.HUGZ, b"", now=now)

    # --- questions ----------------------------------------------------------------------------------------------------

    def ask(self, question: Question, now: float) -> None:
        """Ask the server as soon as there is one; again, should it be lost before it answers."""
        if self.ended:
            self._end(question, closed())
            return
        first = not self._open
        self._open[question] = None
        if self.ready:
            self._send(question, now)
        elif not self.address and not self._asking:
            if self._again_at is None:
                self._find(now)
            elif first:  # nobody waited meanwhile: whoever does now does not wait for a long pause to end
                self._rest, self._again_at = self._first_rest, max(now, self._soonest)

    def cancel(self, question: Question) -> None:
        """Forget a question that nobody waits for any more."""
        self._open.pop(question, None)
        self._by_tag.pop(question.tag, None)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Say goodbye; what is open ends with an error."""
        self.ended = True
        if self.ready:
            self.out.append((b"", *wire.extended(wire.BYE, b"")))
        self.ready = False
        for question in list(self._open):
            self._end(question, closed())

    def _send(self, question: Question, now: float) -> None:
        # a server that has seen a search's uuid takes it for a repetition, so each has its own
        self._by_tag.pop(question.tag, None)
        question.tag = self._new_tag()
        self._by_tag[question.tag] = question
        self._say(question.word, question.tag, *question.rest(max(question.deadline - now, 0.0)), now=now)

    def _say(self, word: bytes, tag: bytes, *rest: bytes, now: float) -> None:
        self._said = now
        self.out.append((b"", *wire.extended(word, tag, *rest)))

    def _end(self, question: Question, error: MusicError | None = None) -> None:
        self.cancel(question)
        question.error = error
        question.done(question)

    def _too_late(self, question: Question) -> MusicError:
        if self.ready or (self.address and self._trouble is None):
            stage = Stage.ANSWER if self.ready else Stage.GREETING
            asked = question.word.decode()
            return MusicTimeoutError(
                f"{self.address} did not answer a {asked} in time", stage.value, "nothing came", "try a longer timeout",
                stage=stage,
            )  # fmt: skip
        if self._trouble is not None:
            return self._trouble
        return nobody_answers(self.broker, "no server was found")

    # --- finding a server ---------------------------------------------------------------------------------------------

    def _find(self, now: float) -> None:
        self._again_at = None
        if self._fixed:
            self._connect(self._fixed, now)
        elif not self._asking:
            self._asking = True
            request = wire.extended(wire.HELLO, self._new_tag(), wire.to_json({"avoid": self._avoid}))
            self._ask_broker(request)

    def on_broker(self, said: Frames | MusicError | None, now: float) -> None:
        """Take what the broker said; an error when nobody listens there, None when it said nothing in its time."""
        self._asking = False
        if self.ended or self.address:
            return
        try:
            if said is None:
                raise nobody_answers(self.broker, "no server was found")
            if isinstance(said, MusicError):
                raise said
            self._connect(read_hello(said), now)
            return
        except records.MalformedError as error:
            self._trouble = unreadable(self.broker, str(error), Stage.BROKER)
        except MusicError as error:
            self._trouble = error
        self._avoid.clear()  # one that was lost is better than none
        self._pause(now)
        if isinstance(said, MusicError):
            self._give_up(said)

    def _connect(self, endpoint: str, now: float) -> None:
        self.address = endpoint
        self.connection += 1
        self._greet_by = now + GREETING_PATIENCE

    def _lose(self, why: str, now: float) -> None:
        """Let the server go, and look for another one; all questions are asked there again."""
        lost = self.address
        if not lost or self.ended:
            return
        was_ready, self.ready = self.ready, False
        self._trouble = NoServerError(
            why, Stage.GREETING.value, "no other server was found yet", "", stage=Stage.GREETING
        )
        self.address = ""
        self.connection += 1
        self._greet_by = None
        self.out.clear()
        self._by_tag.clear()
        self._avoid = [*[endpoint for endpoint in self._avoid if endpoint != lost], lost][-AVOIDED:]
        if was_ready and not self._fixed:
            self._find(now)
        else:
            self._pause(now)

    def _pause(self, now: float) -> None:
        self._soonest, self._again_at = now + self._first_rest, now + self._rest
        self._rest = min(self._rest * 2, LONGEST_REST)

    # --- what the server says -----------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message of the server."""
        message = wire.split((b"", *frames))
        if not message.extended:
            return
        self._heard = now
        if not self.ready:
            self._greeted(message, now)
        elif (question := self._by_tag.get(message.tag)) is not None:
            self._answered(question, message)

    def _greeted(self, message: wire.Message, now: float) -> None:
        if message.word == wire.ERROR:
            self._lose(f"{self.address} refuses: {read_error(message)[1]}", now)
            return
        if message.word != wire.HELLO:
            return
        try:
            told = records.table_of(wire.one_json(message))
            self._heartbeat = max(
                records.whole_of(told, "heartbeat_ms", 2000, most=3_600_000) / 1000, SHORTEST_HEARTBEAT
            )
        except records.MalformedError as error:
            self._lose(f"the greeting of {self.address} cannot be read: {error}", now)
            return
        self.ready, self._greet_by, self._trouble = True, None, None
        self._ready_before = True
        self._rest = self._first_rest
        for question in list(self._open):
            self._send(question, now)

    def _answered(self, question: Question, message: wire.Message) -> None:
        if message.word == wire.ERROR:
            self._end(question, refused(self.address, *read_error(message), Stage.ANSWER))
            return
        question.word_back, question.answer = message.word, message.rest
        self._end(question)


def nobody_answers(broker: str, consequence: str) -> NoBrokerError:
    """Make the error for a broker that said nothing in time."""
    what = f"nobody answers at {broker}"
    return NoBrokerError(what, Stage.BROKER.value, consequence, START_BROKER, stage=Stage.BROKER)


def read_hello(frames: Frames) -> str:
    """Return the endpoint of the server that the broker gives; raise a NoServerError when it knows none."""
    message = wire.split((b"", *frames))
    if message.extended and message.word == wire.HELLO:
        return endpoint_of(records.table_of(wire.one_json(message)), "endpoint")
    if message.extended and message.word == wire.BYE:
        raise NoServerError(
            "the broker knows no server", Stage.BROKER.value, "nothing can be searched",
            "start one: a broker with the plugin musicquest-server", stage=Stage.BROKER,
        )  # fmt: skip
    if message.word == wire.ERROR:
        raise refused("the broker", *read_error(message), Stage.BROKER)
    raise records.MalformedError(f"a hello is answered by hello or bye, not by {printable(message.word)}")


def read_error(message: wire.Message) -> tuple[int, str]:
    """Read an error's code and reason, whatever is wrong with them."""
    code = bytes(message.rest[0]) if message.rest and len(message.rest[0]) <= 3 else b""
    reason = bytes(message.rest[1][:1000]).decode(errors="replace") if len(message.rest) > 1 else "no reason given"
    return (int(code) if code.isdigit() else 0), printable(reason, 1000)
