"""Asks many servers many questions at once, and waits for none of them longer than it must."""

# does I/O: it talks to music servers

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from scale0_core.api import Scale0Error
from scale0_core.client.kit.link import Link, wait
from scale0_core.client.kit.sessions import Limits
from scale0_spark.plans import HEADER, Answer, read_answer

MOST_OPEN = 64
"""Questions that one server has at a time: it holds up whoever does not take its answers."""
MOST_LINES = 64
"""Servers that are asked at a time."""
MOST_AT_ONCE = 1000
"""Messages that are read from one server before it is another's turn: one that never stops holds up nobody."""
MOST_IN_FRAME = 2 * 1024 * 1024
"""Bytes that a frame of an answer may have; who sends more is disconnected."""
MOST_SILENCES = 30
"""All questions together take at most so many times as long as one server may be silent."""
POLL_SECONDS = 0.1


@attrs.frozen
class Question:
    """What is asked, and where."""

    endpoint: str
    word: bytes
    rest: tuple[bytes, ...] = ()


@attrs.frozen
class Silence:
    """Why there is no answer."""

    why: str


class _Line:
    """One server, and what it is asked."""

    def __init__(self, endpoint: str, now: float) -> None:
        self.waiting: deque[tuple[int, Question]] = deque()
        self.open: dict[bytes, int] = {}
        self.heard = now
        self.fault = ""
        self.link: Link | None = None
        try:
            self.link = Link(endpoint, Limits(reconnect=True, max_message=MOST_IN_FRAME, linger_ms=0))
        except Scale0Error as error:
            self.fault = f"not an address: {error.problem.why}"

    @property
    def done(self) -> bool:
        return not self.waiting and not self.open

    @property
    def polled(self) -> Sequence[tuple[Any, int]]:
        """What to wait for: answers, and what happens to the connection."""
        return () if self.link is None else self.link.polled

    def send(self) -> None:
        """Send what may be sent; only when there is a connection, so that "sent" means that somebody was there."""
        if self.link is None:
            return
        self.link.look_for_breaks()
        while self.link.connected and self.waiting and len(self.open) < MOST_OPEN:
            number, question = self.waiting.popleft()
            tag = b"%d" % number
            self.link.send((HEADER, question.word, tag, *question.rest))
            self.open[tag] = number

    def receive(self, now: float) -> Iterable[tuple[int, Answer]]:
        """Give the answers that are there; what nobody asked for is left alone."""
        for _ in range(MOST_AT_ONCE):
            frames = None if self.link is None else self.link.receive(0)
            if frames is None:
                return
            found = read_answer(frames)
            if found is not None and found[0] in self.open:
                self.heard = now
                yield self.open.pop(found[0]), found[1]

    def give_up(self, when: str) -> Iterable[tuple[int, Silence]]:
        """Give all that is left without an answer."""
        reached = "no answer" if self.link is not None and self.link.up else "nobody is there"
        why = self.fault or f"{reached} {when}"
        numbers = [*self.open.values(), *(number for number, _ in self.waiting)]
        self.open.clear()
        self.waiting.clear()
        return [(number, Silence(why)) for number in numbers]


def ask_all(questions: Sequence[Question], timeout: float) -> list[Answer | Silence]:
    """Give an answer to each question, or why there is none.

    A server is given up when it has said nothing for ``timeout`` seconds; all are, when together they took too long.
    """
    answers: dict[int, Answer | Silence] = {}
    endpoints = list(dict.fromkeys(question.endpoint for question in questions))
    end = time.monotonic() + timeout * MOST_SILENCES
    for start in range(0, len(endpoints), MOST_LINES):
        some = endpoints[start : start + MOST_LINES]
        lines = {endpoint: _Line(endpoint, time.monotonic()) for endpoint in some}
        for number, question in enumerate(questions):
            if question.endpoint in lines:
                lines[question.endpoint].waiting.append((number, question))
        try:
            _talk(list(lines.values()), answers, timeout, end)
        finally:
            for line in lines.values():
                if line.link is not None:
                    line.link.drop()
    return [answers[number] for number in range(len(questions))]


def _talk(lines: Sequence[_Line], answers: dict[int, Answer | Silence], timeout: float, end: float) -> None:
    """Ask until all have answered or are given up."""
    active = list(lines)
    while active:
        for line in active:
            line.send()
        if polled := [pair for line in active for pair in line.polled]:
            wait(polled, min(POLL_SECONDS, timeout))
        now = time.monotonic()
        for line in active:
            answers.update(line.receive(now))
            if line.fault or now - line.heard > timeout:
                answers.update(line.give_up(f"within {timeout:g} s"))
            elif now > end:
                answers.update(line.give_up(f"before all had {timeout * MOST_SILENCES:g} s"))
        active = [line for line in active if not line.done]
