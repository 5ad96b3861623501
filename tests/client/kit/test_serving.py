"""What workers do with their lines and with handlers that stream, beside what workers show of it."""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import zmq

from scale0_core.client.kit.loop_serving import LoopServing
from scale0_core.client.kit.serving import PARTS_AT_ONCE, Handling, ThreadServing
from scale0_core.client.kit.sessions import Answer, BaseSession, Limits, frames_of
from scale0_core.service import Frames

pytestmark = pytest.mark.real

PATIENCE = 20.0


class Job:
    arguments = ()
    about: dict[str, Any] = {}  # noqa: RUF012
    over = 0
    begun = False


class Serves(BaseSession):
    """Has one task, from when it is linked."""

    limits = Limits(send_queue=1, linger_ms=0)
    fault = None
    draining = False

    def __init__(self, address: str, handling: Handling) -> None:
        super().__init__(address)
        self.job = Job()
        self.parts = 0
        self.answered: list[Answer] = []
        self._handling = handling

    def on_linked(self, now: float) -> None:
        self._handling.begin(self.job)

    def offers(self, services: object) -> bool:
        return True

    @staticmethod
    def frames_of(result: Any) -> Frames:
        return frames_of(result)

    def part(self, task: Any, seq: int, frames: Frames, now: float) -> None:
        self.parts += 1
        self.out.append(frames)

    def answer(self, task: Any, answer: Answer, now: float) -> None:
        self.answered.append(answer)

    def drain(self, now: float) -> None:
        self.ended = True

    def give_up(self) -> None:
        self.job.over = 408
        self._handling.cancel(self.job)


# --- lines that come and go -------------------------------------------------------------------------------------------


class Leaving(Serves):
    """Lets another thread remove a line whenever it is looked at."""

    lines: dict[str, Any] = {}  # noqa: RUF012
    looked = 0

    def _take_away(self) -> None:
        thread = threading.Thread(target=lambda: self.lines.popitem() if self.lines else None)
        thread.start()
        thread.join(PATIENCE)

    @property
    def ended(self) -> bool:
        self._take_away()
        return True

    @ended.setter
    def ended(self, value: bool) -> None: ...


def test_lines_may_come_and_go_while_they_are_looked_at(real: None, tmp_path: Path):
    serving: ThreadServing[Any] = ThreadServing()

    def lines() -> None:
        for name in "abc":
            serving.open(
                name, lambda handling: Leaving(f"ipc://{tmp_path}/nobody", handling), lambda task: None,
                threads=1, at_once=1, name=name,
            )  # fmt: skip

    lines()
    opened = list(serving.lines.values())
    Leaving.lines = serving.lines
    try:
        assert serving.left
    finally:
        Leaving.lines = {}
        for line in opened:
            serving.run(serving._close(line))


# --- streams on a link that is stuck ----------------------------------------------------------------------------------


QUICK = 1000


class QuickSelector(selectors.DefaultSelector):  # type: ignore[valid-type,misc]
    def select(self, timeout: float | None = None) -> Any:
        return super().select(timeout and timeout / QUICK)


class QuickLoop(asyncio.SelectorEventLoop):
    """A second of its time is a millisecond of ours."""

    def __init__(self) -> None:
        super().__init__(QuickSelector())

    def time(self) -> float:
        return time.monotonic() * QUICK


def test_a_stream_waits_as_long_as_somebody_waits_for_it(real: None, tmp_path: Path):
    address = f"ipc://{tmp_path}/stuck"
    piece = bytes(1 << 20)

    async def endless() -> AsyncGenerator[bytes, None]:
        while True:
            yield piece

    async def main() -> None:
        serving: LoopServing[Serves] = LoopServing()
        session = serving.open(
            "x", lambda handling: Serves(address, handling), lambda task: endless,
            threads=1, at_once=1, name="test",
        )  # fmt: skip
        end = time.monotonic() + PATIENCE
        while session.parts < PARTS_AT_ONCE:
            assert time.monotonic() < end
            await asyncio.sleep(1)
        await asyncio.sleep(200)
        assert (session.parts, session.answered) == (PARTS_AT_ONCE, [])
        session.give_up()
        while not session.answered:
            assert time.monotonic() < end
            await asyncio.sleep(1)
        await serving.run(serving.stop())

    loop = QuickLoop()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.linger, router.rcvhwm = 0, 1
        router.bind(address)
        try:
            loop.run_until_complete(main())
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
