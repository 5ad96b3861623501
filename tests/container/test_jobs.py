"""Jobs: order per key, grouping, and failures as results."""

from __future__ import annotations

import random
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.container.jobs import JobQueue, run_batch
from scale0_core.io.jobs import JobThreads
from scale0_core.service import Job, JobResult


def one(argument: Any) -> Any:
    return argument * 2


def many(arguments: list[Any]) -> list[Any]:
    return [argument * 2 for argument in arguments]


def other_many(arguments: list[Any]) -> list[Any]:
    return arguments


def job(key: Any, number: int, *, function: Callable[[Any], Any] | None = None, grouped: bool = False) -> Job:
    return Job(key, function or (many if grouped else one), number, ("token", number), grouped)


def queue_of(*jobs: Job) -> JobQueue:
    queue = JobQueue()
    for entry in jobs:
        queue.add(entry)
    return queue


def numbers(batch: list[Job] | None) -> list[int] | None:
    return None if batch is None else [entry.argument for entry in batch]


# order


def test_nothing_to_take_from_an_empty_queue():
    assert JobQueue().take() is None


def test_jobs_of_one_key_run_one_after_the_other():
    queue = queue_of(job("a", 1), job("a", 2))
    first = queue.take()
    assert (numbers(first), queue.take()) == ([1], None)
    assert first is not None
    queue.finished(first)
    assert numbers(queue.take()) == [2]


def test_jobs_of_different_keys_run_side_by_side_in_the_order_they_came():
    queue = queue_of(job("a", 1), job("b", 2), job("a", 3), job("c", 4))
    assert [numbers(queue.take()) for _ in range(4)] == [[1], [2], [4], None]


def test_a_key_that_has_been_idle_can_be_used_again():
    queue = queue_of(job("a", 1))
    batch = queue.take()
    assert batch is not None
    queue.finished(batch)
    queue.add(job("a", 2))
    assert (numbers(queue.take()), queue.in_flight) == ([2], 1)


def test_a_busy_key_does_not_keep_the_others_from_starting():
    queue = queue_of(*(job("busy", n) for n in range(5)), job("b", 9))
    assert [numbers(queue.take()) for _ in range(3)] == [[0], [9], None]


def test_keys_take_turns():
    queue = queue_of(job("a", 1), job("a", 2), job("b", 3), job("b", 4))
    order = []
    while (batch := queue.take()) is not None:
        order += [entry.argument for entry in batch]
        queue.finished(batch)
    assert order == [1, 3, 2, 4]


def test_jobs_in_flight_are_those_that_wait_and_those_that_run():
    queue = queue_of(job("a", 1), job("a", 2), job("b", 3))
    counts = [queue.in_flight]
    batch = queue.take()
    assert batch is not None
    counts.append(queue.in_flight)
    queue.finished(batch)
    counts.append(queue.in_flight)
    assert counts == [3, 3, 2]


def test_a_key_that_cannot_be_hashed_is_refused_when_the_job_is_made():
    with pytest.raises(TypeError, match="unhashable"):
        Job(["no", "key"], one)  # type: ignore[arg-type]


# grouping


def test_grouped_jobs_that_wait_in_a_row_are_taken_together():
    queue = queue_of(*(job("a", n, grouped=True) for n in range(4)))
    assert [numbers(queue.take()), queue.take()] == [[0, 1, 2, 3], None]


def test_what_comes_while_a_group_runs_makes_the_next_group():
    queue = queue_of(job("a", 1, grouped=True))
    batch = queue.take()
    assert batch is not None
    queue.add(job("a", 2, grouped=True))
    queue.add(job("a", 3, grouped=True))
    assert queue.take() is None
    queue.finished(batch)
    assert numbers(queue.take()) == [2, 3]


@pytest.mark.parametrize(
    "between",
    [job("a", 1), job("a", 1, function=other_many, grouped=True)],
    ids=["a single job", "another function"],
)
def test_a_group_ends_where_something_else_stands_in_the_row(between: Job):
    queue = queue_of(job("a", 0, grouped=True), between, job("a", 2, grouped=True))
    taken = []
    while (batch := queue.take()) is not None:
        taken.append(numbers(batch))
        queue.finished(batch)
    assert taken == [[0], [1], [2]]


def test_a_single_job_takes_no_grouped_one_with_it_even_if_they_share_a_function():
    queue = queue_of(job("a", 0, function=many), job("a", 1, grouped=True))
    assert [numbers(queue.take()), queue.take()] == [[0], None]


def test_bound_methods_are_grouped_although_each_look_makes_a_new_one():
    class Disk:
        def sync(self, arguments: list[Any]) -> list[Any]:
            return arguments

    disk = Disk()
    queue = queue_of(*(job("a", n, function=disk.sync, grouped=True) for n in range(3)))
    assert numbers(queue.take()) == [0, 1, 2]


# running


def test_a_single_job():
    assert [JobResult(("token", 3), 6)] == run_batch([job("a", 3)])


def test_a_group_is_one_call():
    calls = []

    def sync(arguments: list[int]) -> list[int]:
        calls.append(arguments)
        return [argument + 1 for argument in arguments]

    results = run_batch([job("a", n, function=sync, grouped=True) for n in (1, 2)])
    assert [JobResult(("token", 1), 2), JobResult(("token", 2), 3)] == results
    assert calls == [[1, 2]]


def test_a_group_of_one_is_called_with_a_list_too():
    assert [JobResult(("token", 4), 8)] == run_batch([job("a", 4, grouped=True)])


def test_what_a_job_raises_is_its_result():
    error = OSError("disk full")

    def fail(_: Any) -> Any:
        raise error

    assert [JobResult(("token", 1), None, error)] == run_batch([job("a", 1, function=fail)])


def test_what_a_group_raises_is_the_result_of_each():
    error = OSError("disk full")

    def fail(_: Any) -> Any:
        raise error

    results = run_batch([job("a", n, function=fail, grouped=True) for n in (1, 2)])
    assert [JobResult(("token", 1), None, error), JobResult(("token", 2), None, error)] == results


def test_one_of_a_group_may_fail_alone():
    error = OSError("torn")
    results = run_batch([job("a", n, function=lambda _: [5, error], grouped=True) for n in (1, 2)])
    assert [JobResult(("token", 1), 5), JobResult(("token", 2), None, error)] == results


@pytest.mark.parametrize("values", [[], [1], [1, 2, 3]])
def test_a_group_that_returns_a_wrong_count_has_failed(values: list[int]):
    results = run_batch([job("a", n, function=lambda _: values, grouped=True) for n in (1, 2)])
    message = f"a grouped job returned {len(values)} values for 2 arguments"
    assert [(("token", 1), None, message), (("token", 2), None, message)] == [
        (result.token, result.value, str(result.error)) for result in results
    ]


@pytest.mark.parametrize("values", [None, 5])
def test_a_group_that_returns_no_list_has_failed(values: object):
    results = run_batch([job("a", n, function=lambda _: values, grouped=True) for n in (1, 2)])
    assert [TypeError, TypeError] == [type(result.error) for result in results]


# threads


@pytest.mark.parametrize("error", [SystemExit(3), OSError("disk full")])
def test_a_job_that_wants_to_end_its_thread_is_a_result_and_the_thread_goes_on(error: BaseException):
    def fail(_: Any) -> Any:
        raise error

    results: SimpleQueue[list[JobResult]] = SimpleQueue()
    threads = JobThreads(1)
    threads.start([job("a", 1, function=fail), job("a", 2, function=fail)], results.put)
    threads.start([job("b", 3)], results.put)
    expected = [JobResult(("token", 1), None, error), JobResult(("token", 2), None, error)]
    assert expected == results.get(timeout=10)
    assert [JobResult(("token", 3), 6)] == results.get(timeout=10)
    threads.close()


# everything at once


@settings(deadline=None)
@given(
    wanted=st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.booleans()), max_size=60),
    seed=st.integers(0, 2**32),
)
def test_any_mix_is_handed_out_once_and_in_order_per_key(wanted: list[tuple[int, bool, bool]], seed: int):
    chance = random.Random(seed)
    jobs = [
        job(key, number, grouped=grouped, function=other_many if grouped and other else None)
        for number, (key, grouped, other) in enumerate(wanted)
    ]
    to_add = list(jobs)
    queue, running, done = JobQueue(), [], []
    while to_add or running or queue.in_flight:
        step = chance.randrange(3)
        if step == 0 and to_add:
            queue.add(to_add.pop(0))
        elif step == 1 and (batch := queue.take()) is not None:
            assert batch[0].key not in [other[0].key for other in running]
            assert len(batch) == 1 or len({(entry.key, entry.function, entry.grouped) for entry in batch}) == 1
            assert batch[0].grouped or len(batch) == 1
            running.append(batch)
        elif step == 2 and running:
            batch = running.pop(chance.randrange(len(running)))
            queue.finished(batch)
            done += batch
        assert len(jobs) - len(to_add) - len(done) == queue.in_flight
    assert queue.take() is None
    for key in range(4):
        assert [entry.argument for entry in jobs if entry.key == key] == [e.argument for e in done if e.key == key]
