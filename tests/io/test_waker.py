"""How another thread hands work to the loop."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Iterator

import pytest

from scale0_core.io.waker import Waker


@pytest.fixture
def waker() -> Iterator[Waker]:
    waker = Waker()
    yield waker
    if waker.fd >= 0:
        waker.close()


def readable(waker: Waker) -> bool:
    return bool(select.select([waker.fd], [], [], 0)[0])


def test_a_call_makes_the_descriptor_readable_until_it_has_run(waker: Waker):
    calls: list[int] = []
    states = [readable(waker)]
    waker.call(lambda: calls.append(1))
    states.append(readable(waker))
    assert calls == []
    waker.run()
    states.append(readable(waker))
    assert (calls, states) == ([1], [False, True, False])


def test_calls_run_in_the_order_they_were_made_and_once(waker: Waker):
    calls: list[int] = []
    for number in range(3):
        waker.call(lambda number=number: calls.append(number))  # type: ignore[misc]
    waker.run()
    waker.run()
    assert calls == [0, 1, 2]


def test_wake_alone_runs_nothing(waker: Waker):
    waker.wake()
    assert readable(waker)
    waker.run()
    assert not readable(waker)


def test_run_with_nothing_to_do_does_not_block(waker: Waker):
    waker.run()
    assert not readable(waker)


def test_a_call_made_by_a_call_waits_for_the_next_run_and_wakes_the_loop(waker: Waker):
    calls: list[str] = []

    def first() -> None:
        calls.append("first")
        waker.call(lambda: calls.append("second"))

    waker.call(first)
    waker.run()
    assert (calls, readable(waker)) == (["first"], True)
    waker.run()
    assert calls == ["first", "second"]


def test_a_full_pipe_blocks_nobody_and_loses_no_call(waker: Waker):
    calls: list[int] = []
    for number in range(70_000):  # a pipe holds 64 KiB
        waker.call(lambda number=number: calls.append(number))  # type: ignore[misc]
    waker.run()
    assert list(range(70_000)) == calls
    assert not readable(waker)


def test_calls_from_many_threads_all_run(waker: Waker):
    calls: list[int] = []

    def work(base: int) -> None:
        for number in range(base, base + 1000):
            waker.call(lambda number=number: calls.append(number))  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(base,)) for base in range(0, 4000, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    waker.run()
    assert list(range(4000)) == sorted(calls)
    for base in range(0, 4000, 1000):
        own = [number for number in calls if base <= number < base + 1000]
        assert sorted(own) == own


def test_a_thread_that_comes_late_does_not_write_into_a_descriptor_that_is_somebody_elses(waker: Waker):
    old = waker.write_fd
    waker.close()
    reader, writer = os.pipe()
    taken = old not in (reader, writer)
    if taken:
        os.dup2(writer, old)  # as the next file that is opened would
    waker.call(lambda: None)
    waker.wake()
    assert select.select([reader], [], [], 0)[0] == []
    for descriptor in {reader, writer, *([old] if taken else [])}:
        os.close(descriptor)
