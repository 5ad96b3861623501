"""The zpipes protocol as a source and a sink need it: one link, one request at a time, asked again until answered.

Requests that may be made twice are sent again as long as there is no answer, so that a broker that was away, or was
started anew, is simply asked again. OPEN and CLOSE may not, since each of them counts: ``link`` and ``unlink`` are for
these. A link belongs to the process that opened it and is never pickled.
"""

# does I/O: it talks to a broker

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import attrs
import numpy as np
import pyarrow as pa

from scale0_core.api import Scale0Error, records
from scale0_core.client.kit.link import Link, wait
from scale0_core.client.kit.route import BETWEEN, address_of, resolve, target
from scale0_core.client.kit.sessions import Limits
from scale0_spark.zpipes.errors import AnswerError, DataLossError, RefusedError, UnreachedError
from scale0_spark.zpipes.payloads import columns_in

FIRST_WAIT = 2.0
"""Seconds until a request is sent anew; they double each time."""
PAUSE = 0.05
ROWS_AT_ONCE = 65_536
BYTES_AT_ONCE = 8 * 1024 * 1024
MOST_IN_FRAME = 64 * 1024 * 1024
"""Bytes that a frame of an answer may have: more than that no broker sends that is set as most are."""
BUSY = 429
PASSES = (408, BUSY, 507)
"""Codes of refusals that may pass: it is tried again."""

Answer = list[memoryview]
"""The frames of an answer, which may be large and are not copied."""


@attrs.frozen
class PipeState:
    """What is known of a pipe; ``groups`` has the number each of them reads next."""

    made: float
    first: int
    next: int
    links: int
    durable: bool
    groups: Mapping[str, int]
    max_chunk: int | None = None
    """Bytes in one chunk, at most; None where the broker does not say."""

    @classmethod
    def read(cls, pipe: str, text: bytes) -> PipeState:
        """Take it from the answer to INFO."""
        try:
            row = records.from_json(text)
            groups = {str(name): int(group["next"]) for name, group in row["groups"].items()}
            numbers = (int(row["first"]), int(row["next"]), int(row["links"]))
            limit = row.get("max_chunk")
            most = None if limit is None else int(limit)
            return cls(float(row["made"]), *numbers, durable=bool(row["durable"]), groups=groups, max_chunk=most)
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError) as error:
            raise AnswerError(f"the broker's account of pipe {pipe} is malformed", repr(error)) from None


def pipes_at(brokers: Sequence[str]) -> str:
    """Return where the pipes of these brokers are: addresses, and targets for names that are not there yet."""
    return BETWEEN.join(map(address_of, target(brokers, "zpipes", "pipes").split(BETWEEN)))


class Pipes:
    """The pipes of a broker."""

    def __init__(self, broker: str, timeout: float) -> None:
        self._broker = broker
        self._attempts = 0
        """How often there was no answer: of several brokers the next one is asked."""
        self._timeout = timeout
        self._link: Link | None = None
        self._asked: list[Any] = []

    def __enter__(self) -> Pipes:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __getstate__(self) -> tuple[str, float]:
        """Leave the link out."""
        return self._broker, self._timeout

    def __setstate__(self, state: tuple[str, float]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def close(self) -> None:
        """Close the link; it is opened again when it is needed."""
        if self._link is not None:
            self._link.drop()
            self._link = None

    # --- asking -------------------------------------------------------------------------------------------------------

    def ask(self, *frames: Any) -> Answer:
        """Send a request that may be made twice, and give the answer, without its first word."""
        self._send(frames)
        return self._answer()

    def _send(self, frames: tuple[Any, ...]) -> None:
        self._asked = [frame.encode() if isinstance(frame, str) else frame for frame in frames]
        if self._link is None:
            limits = Limits(reconnect=True, max_message=MOST_IN_FRAME, batch=1, linger_ms=0, zero_copy=True, views=True)
            try:
                self._link = Link(resolve(self._broker, self._attempts)[0], limits)
            except Scale0Error as error:
                raise UnreachedError(f"{self._broker} cannot be connected to", error.problem.why) from None
        self._link.send(tuple(self._asked))

    def _answer(self) -> Answer:
        """Wait for the answer to what was sent; send it again as long as there is none."""
        end = time.monotonic() + self._timeout
        wait, passing = FIRST_WAIT, None
        while True:
            left = end - time.monotonic()
            answer = self._received(min(wait, max(left, 0.001)))
            if answer is not None:
                code = _code(answer)
                if code not in PASSES or left <= 0:
                    return self._checked(answer, code)
                passing = answer
                time.sleep(PAUSE)
            elif left <= 0:
                unanswered = self._unanswered()
                if passing is None:
                    raise unanswered
                return self._checked(passing, _code(passing))  # it did answer, and the last try had no time left
            else:
                passing = passing if left < wait else None
                wait *= 2
                self._attempts += 1
                self.close()  # so that a late answer is not taken for that to a later request
            self._send(tuple(self._asked))

    def _asked_once(self, seconds: float, *frames: str) -> Answer | None:
        """Send a request that may not be made twice; give the answer as it came, or None if there is none in time."""
        self._send(frames)
        answer = self._received(seconds)
        if answer is None:
            self.close()  # so that a late answer is not taken for that to a later request
        return answer

    def _unanswered(self) -> UnreachedError:
        self.close()
        return UnreachedError(
            f"the broker at {self._broker} does not answer", f"it was asked for {self._timeout:g} seconds", "",
            "start it, or give it longer by the option timeout; what was read or written so far is not lost",
        )  # fmt: skip

    def _received(self, seconds: float) -> Answer | None:
        end = time.monotonic() + seconds
        while (link := self._link) is not None:
            link.look_for_breaks()  # it connects again by itself; what is not looked at would wake us for ever
            link.flush()
            found = link.messages()
            if not found:
                left = end - time.monotonic()
                if left <= 0:
                    break
                wait(link.polled, left)
            elif len(found[0]) > 1 or bytes(found[0][0][:6]) != b"PROBE":
                return cast("Answer", list(found[0]))  # of memoryviews, as the limits say
        return None

    def _checked(self, answer: Answer, code: int | None) -> Answer:
        request = bytes(self._asked[0]).decode()
        if code is not None:
            reason = bytes(answer[2]).decode("utf-8", "replace") if len(answer) > 2 else ""
            what = f"the broker at {self._broker} refused {request} ({code})"
            raise RefusedError(what, reason, "", "", code)
        word, wanted = bytes(answer[0]), request.encode() if request in ("ROWS", "INFO") else b"OK"
        if word != wanted:
            raise AnswerError(f"{self._broker} does not serve pipes", f"it answered {word[:20]!r} to {request}")
        return answer[1:]

    # --- requests -----------------------------------------------------------------------------------------------------

    def state(self, pipe: str) -> PipeState | None:
        """Look at a pipe; None if it is not there."""
        try:
            answer = self.ask("INFO", pipe)
        except RefusedError as error:
            if error.code == 404:
                return None
            raise
        return PipeState.read(pipe, bytes(answer[0]) if answer else b"")

    def link(self, pipe: str) -> float | None:
        """Have a link to a pipe, which is made if it is not there; one that is new is given, to take away later.

        Where no answer came, the pipe is looked at before it is opened again: one link is enough, whosever it is. Links
        have no names; what is given is when the pipe was made.
        """
        end, wait = time.monotonic() + self._timeout, FIRST_WAIT
        while True:
            state = self.state(pipe)
            if state is not None and state.links:
                return None
            answer = self._asked_once(wait, "OPEN", pipe)
            is_over = time.monotonic() >= end
            if answer is None:
                if is_over:
                    raise self._unanswered()
                wait *= 2
            elif (code := _code(answer)) not in PASSES or is_over:
                self._checked(answer, code)
                state = self.state(pipe)
                return None if state is None else state.made
            else:
                time.sleep(PAUSE)

    def unlink(self, pipe: str, link: float) -> None:
        """Take a link away, unless the pipe is another one by now, whose links are those of others.

        It is asked for once: should that get lost, the broker forgets an unused pipe in time.
        """
        state = self.state(pipe)
        if state is not None and state.made == link:
            self._asked_once(FIRST_WAIT, "CLOSE", pipe)

    def make_group(self, pipe: str, group: str, start: str | int, lease_ms: int = 0) -> int:
        """Make a group that begins at a number, or find it; give the number of its first chunk."""
        lease = (str(lease_ms),) if lease_ms else ()
        answer = self.ask("GROUP", pipe, group, str(start), *lease)
        return self._number(answer)

    def acknowledge(self, pipe: str, group: str, number: int) -> None:
        """Let the broker remove all up to a number, as far as this group is concerned."""
        self.ask("ACK", pipe, group, str(number))

    def rows(self, pipe: str, group: str, start: int, end: int) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Give the chunks from one number up to before another: where each part begins and ends, and its rows.

        The next part is under way while the last one is worked on.
        """
        if start >= end:
            return
        self._send(self._rows(pipe, group, start, end))
        while start < end:
            following, batch = columns_in(pipe, self._answer(), start)
            if following <= start:
                raise DataLossError(f"pipe {pipe} ends at chunk {start}", f"chunks up to {end - 1} were there before")
            following = min(following, end)
            if following < end:
                self._send(self._rows(pipe, group, following, end))
            if len(batch) and batch.column(1)[-1].as_py() >= end:  # where numbers are missing, more came than was asked
                batch = batch.slice(0, int(np.searchsorted(batch.column(1).to_numpy(), end)))
            yield start, following, batch
            start = following

    @staticmethod
    def _rows(pipe: str, group: str, start: int, end: int) -> tuple[str, ...]:
        return ("ROWS", pipe, group, str(start), str(min(ROWS_AT_ONCE, end - start)), str(BYTES_AT_ONCE), "0")

    def put(self, pipe: str, writer: str, first: int, batch: Any) -> int:
        """Add chunks that the writer has counted; give the number that it may send next."""
        return self._number(self.ask("PUT", pipe, writer, str(first), batch, "0"))

    def move(self, pipe: str, writer: str, number: int, staged: list[str]) -> int:
        """Let what was staged appear in a pipe, once for each number; give the number after the last move."""
        return self._number(self.ask("MOVE", pipe, writer, str(number), *staged))

    @staticmethod
    def _number(answer: Answer) -> int:
        digits = bytes(answer[0]) if answer else b""
        if not digits.isdigit() or len(digits) > 19:
            raise AnswerError("the broker's answer has no number", f"but {digits[:20]!r}")
        return int(digits)


def _code(answer: Answer) -> int | None:
    """Give the code of a refusal; None if it is none."""
    if bytes(answer[0][:6]) != b"ERROR":
        return None
    digits = bytes(answer[1]) if len(answer) > 1 else b""
    return int(digits) if digits.isdigit() and len(digits) < 5 else 0
