"""Events of tasks are the same whether they are told in C or in Python."""

from __future__ import annotations

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core import packing
from scale0_core.events import TASK
from scale0_core.network import telling as telling_module
from scale0_core.network.telling import Telling
from scale0_core.network.workers import Task, Worker
from scale0_core.packing import Packing

native = pytest.mark.skipif(packing.Answered is None, reason="the core was built without a compiler")

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


def tell(told, *, as_built: bool):
    """Tell of answers; give the events as tuples, and how many of them are packed."""
    events: list = []
    one = Packing(TASK)
    telling = Telling(events, "g", one)
    workers = [make_worker(number) for number in range(3)]
    for service, worker, outcome, body, created, sent, now, streamed in told:
        task = make_task(service, created, sent, streamed=streamed)
        if streamed:
            telling.part(task, (b"s", b"n", b"a part"))
        (telling.answered if as_built else telling._answered)(task, workers[worker], outcome, body, now)
    found = one.told(events)
    return list(found), found.packed


@native
@given(st.lists(answers, max_size=20))
def test_both_tell_the_same(told):
    assert tell(told, as_built=True) == tell(told, as_built=False)


@native
def test_most_are_told_without_python(monkeypatch):
    asked = []
    answered = Telling._answered
    monkeypatch.setattr(Telling, "_answered", lambda *values: (asked.append(values), answered(*values)))
    told = [(0, number % 3, "ok", (b"s", b"n", b"x" * number), 1.0, 1.5, 2.0, False) for number in range(30)]
    found, packed = tell(told, as_built=True)
    assert len(asked) == 3, "once for each worker, to give it a number"
    assert (len(found), packed) == (30, 30)
    assert found[29] == (TASK, 2.0, "echo", "worker 2", "g", "ok", 500_000.0, 500_000.0, 29)


@native
def test_a_group_that_changes_is_told():
    events: list = []
    one = Packing(TASK)
    telling, worker = Telling(events, "before", one), make_worker(0)
    for group in ("before", "after"):
        telling.regroup(group)
        for _ in range(2):
            telling.answered(make_task(0, 1.0, 1.5), worker, "ok", (b"s", b"n", b""), 2.0)
    assert [event[4] for event in one.told(events)] == ["before", "before", "after", "after"]


@native
def test_what_it_is_made_of_must_fit():
    with pytest.raises(TypeError, match="no slot"):
        packing.Answered([], type("Task", (), {"created": 1.0}), Worker, print)
    with pytest.raises(AttributeError):
        packing.Answered([], object, Worker, print)
    with pytest.raises(TypeError):
        packing.Answered((), Task, Worker, print)
    telling = Telling([], "g", Packing(TASK))
    with pytest.raises(TypeError):
        telling.answered()
    with pytest.raises(TypeError):
        telling.answered(make_task(0, 1.0, 1.5), make_worker(0), "ok", (b"s", b"n", 7), 2.0)
    unfinished = Task.__new__(Task)
    with pytest.raises(AttributeError):
        telling.answered(unfinished, make_worker(0), "ok", (b"s", b"n", b""), 2.0)


def test_one_that_is_not_needed_any_more_is_gone():
    telling = Telling([], "g", Packing(TASK))
    gone = weakref.ref(telling)
    del telling
    gc.collect()
    assert gone() is None


def test_without_a_compiler_python_tells(monkeypatch):
    monkeypatch.setattr(telling_module, "Answered", None)
    telling = Telling([], "g", Packing(TASK))
    telling.answered(make_task(0, 1.0, 1.5), make_worker(0), "ok", (b"s", b"n", b"xyz"), 2.0)
    assert len(telling.events) == 1
