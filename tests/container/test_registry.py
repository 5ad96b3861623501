"""The registry: who is there, what changed, and what time does to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.container import registry as module
from scale0_core.container.registry import Provider, Registry, ServiceStats


def worker(service="x", provider="w1", **more):
    return Provider(**{"service": service, "provider": provider, "kind": "worker", "state": "responsive", **more})


def hosted(service="echo", provider="here", **more):
    return worker(service, provider, kind="hosted", **more)


def told(registry, since=0):
    return [(change.kind, change.provider.service, change.provider.state) for change in registry.since(since)]


@pytest.fixture
def registry():
    return Registry()


@pytest.fixture
def tended(registry):
    """One that is tended at times a test names: 10 s of grace, 60 s of memory."""
    registry.keep(grace=10.0, memory=60.0)
    registry.tend(100.0)
    return registry


# --- who is there -----------------------------------------------------------------------------------------------------


def test_every_change_has_a_number_and_what_changes_nothing_has_none(registry):
    registry.put(worker())
    registry.put(worker())
    registry.put(worker(version="2"))
    registry.remove("x", "w1")
    registry.remove("x", "w1")
    assert [kind for kind, _, _ in told(registry)] == ["added", "changed", "removed"]
    assert [change.revision for change in registry.changes] == [1, 2, 3]
    assert registry.providers() == []


def test_a_worker_replaces_what_it_offers(registry):
    registry.services_of("w1", [worker("x"), worker("y")])
    registry.services_of("w1", [worker("y"), worker("z")])
    assert [each.service for each in registry.providers()] == ["y", "z"]
    registry.services_of("w1", [])
    assert registry.providers() == []


def test_a_worker_that_takes_the_name_of_the_broker_does_not_touch_what_it_hosts(registry):
    registry.put(hosted("echo", "here"))
    registry.services_of("here", [worker("echo", "here")])
    assert [each.kind for each in registry.providers()] == ["hosted", "worker"]
    registry.services_of("here", [])
    registry.lose("here")
    assert registry.providers() == [hosted("echo", "here")]


def test_a_hosted_service_can_be_put_out(registry):
    registry.put(hosted())
    registry.set_state("echo", "here", "quarantined")
    registry.set_state("nobody", "here", "quarantined")
    assert told(registry, 1) == [("changed", "echo", "quarantined")]
    assert not registry.providers()[0].live


def test_workers_are_listed_by_service_and_name(registry):
    for service, name in (("b", "w2"), ("a", "w9"), ("b", "w1")):
        registry.put(worker(service, name))
    assert [(each.service, each.provider) for each in registry.providers()] == [("a", "w9"), ("b", "w1"), ("b", "w2")]


def test_what_one_worker_does_costs_nothing_for_the_number_of_others(registry):
    for number in range(5000):
        registry.services_of(f"w{number}", [worker("x", f"w{number}")])
    # with a walk through all for each, this would be 25 million steps
    for number in range(5000):
        registry.services_of(f"w{number}", [])
    assert registry.revision == 10_000


# --- changes ----------------------------------------------------------------------------------------------------------


def test_changes_are_given_from_any_revision_that_is_kept(registry, monkeypatch):
    monkeypatch.setattr(module, "CHANGES_KEPT", 5)
    registry = Registry()
    assert registry.since(0) == []
    for number in range(8):
        registry.put(worker(f"s{number}"))
    assert registry.since(8) == []
    assert [change.revision for change in registry.since(3)] == [4, 5, 6, 7, 8]
    assert registry.since(2) is None
    assert registry.since(9) is None, "of a revision that was never reached nothing can be said"


def test_a_change_names_the_one_before_it_of_the_same_service(registry):
    registry.put(worker("x"))
    registry.put(worker("y"))
    registry.put(worker("x", "w2"))
    registry.remove("x", "w1")
    assert [change.previous for change in registry.changes] == [0, 0, 1, 3]


def test_where_the_change_before_is_forgotten_the_log_begins_after_it(monkeypatch):
    monkeypatch.setattr(module, "CHANGES_KEPT", 4)
    registry = Registry()
    registry.put(worker("old"))
    for number in range(20):
        registry.put(worker(f"s{number}"))
    assert len(registry._last_change) <= 9
    registry.put(worker("old", version="2"))
    # 17 is before all that is kept: who has seen less cannot know, and asks
    assert [change.revision for change in registry.changes] == [19, 20, 21, 22]
    assert registry.changes[-1].previous == 17


def test_watchers_are_told_and_one_that_raises_is_left_out(registry):
    seen = []

    def broken(change):
        raise ValueError("no")

    registry.watch(broken)
    registry.watch(seen.append)
    registry.put(worker())
    registry.put(worker("y"))
    assert seen == list(registry.changes)
    assert broken not in registry._watchers


def test_figures_come_from_whoever_measures(registry):
    assert registry.stats("x", "worker") == ServiceStats()
    registry.measure_by("worker", lambda service: ServiceStats(requests=3) if service == "x" else None)
    assert registry.stats("x", "worker").requests == 3
    assert registry.stats("y", "worker") == ServiceStats()
    assert registry.stats("y", "worker").p50_ms is None, "not measured is not zero"


# --- time -------------------------------------------------------------------------------------------------------------


def test_where_nobody_tends_the_lost_go_at_once_and_nothing_is_remembered(registry):
    registry.put(worker())
    registry.lose("w1")
    assert (registry.providers(), registry.gone(), registry.next_tending()) == ([], [], None)


def test_who_leaves_goes_at_once_and_is_remembered_for_a_while(tended):
    tended.put(worker())
    tended.services_of("w1", [])
    assert tended.providers() == []
    tended.tend(101.0)
    assert [(change.revision, change.provider) for change in tended.gone()] == [(2, worker())]
    tended.tend(160.0)
    assert tended.gone()
    tended.tend(163.0)
    assert (tended.gone(), tended.next_tending()) == ([], None)


def test_who_is_lost_is_waited_for_and_then_goes(tended):
    tended.services_of("w1", [worker("x"), worker("y")])
    tended.lose("w1")
    tended.lose("w1")
    assert {each.state for each in tended.providers()} == {"lost"}
    tended.tend(101.0)
    tended.tend(110.9)
    assert len(tended.providers()) == 2
    tended.tend(111.2)
    assert tended.providers() == []
    assert [kind for kind, _, _ in told(tended, 2)] == ["changed", "changed", "removed", "removed"]
    assert len(tended.gone()) == 2


def test_who_is_back_in_time_has_changed_and_not_gone(tended):
    tended.services_of("w1", [worker("x"), worker("y")])
    tended.lose("w1")
    tended.tend(101.0)
    tended.services_of("w1", [worker("x")])
    tended.tend(200.0)
    assert tended.providers() == [worker("x")]
    assert told(tended, 4) == [("removed", "y", "lost"), ("changed", "x", "responsive")]


def test_who_comes_back_after_it_went_is_no_longer_among_those(tended):
    tended.put(worker())
    tended.remove("x", "w1")
    tended.tend(101.0)
    tended.put(worker())
    assert tended.gone() == []
    tended.tend(1000.0)
    assert tended.providers() == [worker()]


def test_a_lease_is_renewed_or_runs_out(tended):
    tended.put(worker(), lease=5.0)
    tended.tend(100.0)
    tended.tend(104.0)
    tended.put(worker(), lease=5.0)
    assert tended.next_tending() <= 104.0
    tended.tend(104.0)
    tended.tend(108.9)
    assert tended.providers()[0].live
    tended.tend(109.2)
    assert tended.providers()[0].state == "lost"
    tended.tend(119.0)
    assert tended.providers()
    tended.tend(119.5)
    assert tended.providers() == []


def test_a_lease_renewed_at_the_last_moment_holds(tended):
    tended.put(worker(), lease=5.0)
    tended.tend(100.0)
    tended.put(worker(), lease=5.0)
    tended.tend(500.0)
    assert tended.providers()[0].live
    tended.tend(506.0)
    tended.put(worker(), lease=5.0)
    assert tended.providers()[0].live, "lost, and back"
    tended.put(worker())
    tended.tend(10_000.0)
    assert tended.providers()[0].live, "without a lease nothing runs out"


def test_no_more_are_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(module, "MOST_LOST", 3)
    monkeypatch.setattr(module, "MOST_GONE", 4)
    registry = Registry()
    registry.keep(grace=10.0, memory=60.0)
    for number in range(20):
        registry.put(worker("x", f"w{number:02}"))
        registry.lose(f"w{number:02}")
    assert [each.provider for each in registry.providers()] == ["w17", "w18", "w19"]
    assert [change.provider.provider for change in registry.gone()] == ["w13", "w14", "w15", "w16"]
    registry.tend(1.0)
    registry.tend(100.0)
    registry.tend(200.0)
    assert (registry.providers(), registry.gone(), registry.next_tending()) == ([], [], None)


NAMES = st.sampled_from(["w1", "w2", "w3"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("offer"), NAMES, st.sets(st.sampled_from("xyz"))),
        st.tuples(st.just("lose"), NAMES),
        st.tuples(st.just("lease"), NAMES, st.sampled_from([1.0, 30.0])),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("pass"), st.sampled_from([0.0, 0.5, 5.0, 20.0, 100.0])),
    ),
    max_size=40,
)


def play(registry, step, now):
    match step:
        case ("offer", name, services):
            registry.services_of(name, [worker(service, name) for service in sorted(services)])
        case ("lose", name):
            registry.lose(name)
        case ("lease", name, seconds):
            registry.put(worker("leased", name), lease=seconds)
        case ("remove", name):
            registry.remove("x", name)
        case ("pass", seconds):
            now += seconds
    registry.tend(now)
    return now


@settings(deadline=None, max_examples=200)
@given(STEPS)
def test_whatever_happens_the_changes_tell_it_all_and_in_the_end_nothing_stale_is_left(steps):
    registry = Registry()
    registry.keep(grace=10.0, memory=60.0)
    copy, last, now = {}, {}, 100.0
    for step in steps:
        before = registry.revision
        now = play(registry, step, now)
        for change in registry.since(before):
            key = change.provider.key
            assert change.kind == {True: "changed", False: "added"}[key in copy] or change.kind == "removed"
            assert change.previous == last.get(change.provider.service, 0)
            last[change.provider.service] = change.revision
            if change.kind == "removed":
                del copy[key]
            else:
                copy[key] = change.provider
        assert sorted(copy.values(), key=lambda each: each.key) == sorted(
            registry.providers(), key=lambda each: each.key
        )
        assert not set(copy) & {change.provider.key for change in registry.gone()}
        due = registry.next_tending()
        assert due is None or due > now
    for seconds in (40.0, 20.0, 100.0):
        now = play(registry, ("pass", seconds), now)
    assert all(each.live and each.service != "leased" for each in registry.providers())
    assert (registry.gone(), registry.next_tending()) == ([], None)
