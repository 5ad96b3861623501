"""Signals are heeded for a while, and then as before."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from types import FrameType

import pytest

from scale0_core.client.kit.drivers import HeededSignals
from scale0_core.client.kit.loop import heeding

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def own(number: int, frame: FrameType | None) -> None: ...


def test_a_handler_that_is_not_pythons_gives_way_to_the_default():
    with HeededSignals(lambda count: None) as signals:
        signals._before[signal.SIGTERM] = None  # what signal.signal returns then
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_loop_has_the_handlers_back_that_it_had():
    counts: list[int] = []

    async def main() -> None:
        signal.signal(signal.SIGTERM, own)
        before = [signal.getsignal(number) for number in NUMBERS]  # that of asyncio.run for INT
        with heeding(counts.append):
            for number in NUMBERS:
                signal.raise_signal(number)
            while len(counts) < 2:
                await asyncio.sleep(0.01)
        assert [signal.getsignal(number) for number in NUMBERS] == before

    asyncio.run(main())
    assert counts == [1, 2]


def test_a_handler_of_the_loop_is_not_left_without_its_loop():
    async def main() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: None)
        with heeding(lambda count: None):
            pass
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    asyncio.run(main())
