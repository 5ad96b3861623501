"""Events of tasks that were answered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scale0_core.events import TASK
from scale0_core.network.telling import Telling
from scale0_core.network.workers import Task, Worker
from scale0_core.packing import Packing

SERVICES = [type("Queue", (), {"label": label})() for label in ("echo", "sum")]

times = st.floats(0, 1e9) | st.integers(0, 1000)
frames = st.binary(max_size=20) | st.binary(max_size=20).map(memoryview)
answers = st.tuples(
    st.sampled_from([0, 1]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["ok", "ok", "error"]),
    st.lists(frames, min_size=2, max_size=5).map(tuple) | st.tuples(st.just(b"s"), st.just(b"n"), frames),
    times,
    times,
    times,
    st.booleans(),
)


def make_worker(number: int) -> Worker:
    worker = Worker.__new__(Worker)
    worker.label, worker.abouts = f"worker {number}", {}
    return worker


def make_task(service: int, created: float, sent: float, *, streamed: bool = False) -> Task:
    task = Task.__new__(Task)
    task.number, task.service, task.created, task.sent, task.streamed = b"n", SERVICES[service], created, sent, streamed
    return task


@given(st.lists(answers, max_size=20))
def test_each_answer_is_told_as_it_was(told):
    events: list = []
    one, expected = Packing(TASK), []
    telling = Telling(events, "g", one)
    workers = [make_worker(number) for number in range(3)]
    for service, worker, outcome, body, created, sent, now, streamed in told:
        task = make_task(service, created, sent, streamed=streamed)
        size = sum(map(len, body[2:]))
        if streamed:
            telling.part(task, (b"s", b"n", b"a part"))
            size += len(b"a part")
        telling.answered(task, workers[worker], outcome, body, now)
        times = (float(sent) - created) * 1e6, (float(now) - sent) * 1e6
        expected.append((TASK, now, SERVICES[service].label, f"worker {worker}", "g", outcome, *times, size))
    found = one.told(events)
    assert (list(found), found.packed) == (expected, len(told))


def test_a_group_that_changes_is_told():
    events: list = []
    one = Packing(TASK)
    telling, worker = Telling(events, "before", one), make_worker(0)
    for group in ("before", "after"):
        telling.regroup(group)
        for _ in range(2):
            telling.answered(make_task(0, 1.0, 1.5), worker, "ok", (b"s", b"n", b""), 2.0)
    assert [event[4] for event in one.told(events)] == ["before", "before", "after", "after"]
