"""Watching without a gap: whatever is lost on the way, every change comes out once and in order."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import Provider, Registry
from scale0_discovery.client.watching import RefusedError, Watch
from scale0_discovery.service.discovery import DiscoveryService


def worker(service, provider="w1", **more):
    return Provider(**{"service": service, "provider": provider, "kind": "worker", "state": "responsive", **more})


class Broker:
    """The service, and a network that a test lets lose what it likes."""

    def __init__(self):
        self.runs = 0
        self.now = 0.0
        self.restart()

    def restart(self):
        self.runs += 1
        self.registry = Registry()
        self.service = DiscoveryService(self.registry, epoch=f"run {self.runs}")
        self.publish()

    def publish(self):
        """Give what is published now."""
        return [frames for _, frames in self.service.on_deadline(self.now)]

    def bookmark(self):
        self.now += 10.0
        return self.publish()

    def answer(self, request):
        ((_, frames),) = self.service.receive("requests", (b"client", *request), self.now)
        return frames[1:]


class Follower:
    """A watch, and a copy of the registry made of nothing but the changes that came out."""

    def __init__(self, broker, service=None):
        self.broker = broker
        self.watch = Watch(service)
        self.copy = {}
        self.asked = 0
        self.told = []

    def hear(self, messages):
        for frames in messages:
            if frames[0].startswith(self.watch.topics):
                self.take(self.watch.published(frames))

    def catch_up(self):
        while (request := self.watch.request()) is not None:
            self.asked += 1
            self.take(self.watch.answered(self.broker.answer(request)))

    def take(self, changes):
        for change in changes:
            row = change["provider"]
            key = (row["service"], row["provider"])
            assert (key in self.copy) == (change["kind"] != "added"), "each change once, and in order"
            self.told.append(change["kind"])
            if change["kind"] == "removed":
                del self.copy[key]
            else:
                self.copy[key] = row["version"]

    def insist(self):
        """Insist that the copy is what the broker has."""
        service = self.watch.service
        truth = [each for each in self.broker.registry.providers() if service in (None, each.service)]
        assert self.copy == {(each.service, each.provider): each.version for each in truth}
        assert len(self.watch.known) == len(self.copy)


@pytest.fixture
def broker():
    return Broker()


def follow(broker, service=None):
    follower = Follower(broker, service)
    follower.catch_up()
    return follower


def test_begins_with_what_is_there(broker):
    broker.registry.put(worker("x"))
    follower = follow(broker)
    follower.insist()
    assert follower.told == ["added"]


def test_what_is_heard_in_order_needs_no_question(broker):
    follower = follow(broker)
    asked = follower.asked
    for version in range(5):
        broker.registry.put(worker("x", version=str(version)))
        follower.hear(broker.publish())
    follower.insist()
    assert follower.watch.request() is None
    assert follower.asked == asked


def test_changes_of_other_services_are_no_gap(broker):
    follower = follow(broker, "x")
    asked = follower.asked
    for version in range(5):
        broker.registry.put(worker("other", version=str(version)))
        broker.registry.put(worker("x", version=str(version)))
        follower.hear(broker.publish())
    follower.insist()
    assert (follower.watch.request(), follower.asked) == (None, asked)


def test_a_topic_is_a_prefix_but_a_service_is_not(broker):
    follower = follow(broker, "a")
    broker.registry.put(worker("a/b"))
    broker.registry.put(worker("a"))
    follower.hear(broker.publish())
    follower.catch_up()
    follower.insist()


def test_what_was_missed_is_asked_for_at_the_next_change(broker):
    follower = follow(broker)
    broker.registry.put(worker("x"))
    broker.publish()  # lost
    broker.registry.put(worker("y"))
    follower.hear(broker.publish())
    assert follower.copy == {}
    follower.catch_up()
    follower.insist()


def test_what_was_missed_is_asked_for_at_the_next_bookmark(broker):
    follower = follow(broker, "x")
    broker.registry.put(worker("x"))
    broker.publish()  # lost
    follower.hear(broker.bookmark())
    follower.catch_up()
    follower.insist()
    asked = follower.asked
    follower.hear(broker.bookmark())
    follower.catch_up()
    assert follower.asked == asked


def test_what_is_published_while_a_list_is_under_way_is_not_missed(broker):
    follower = Follower(broker)
    answer = broker.answer(follower.watch.request())
    broker.registry.put(worker("x"))
    follower.hear(broker.publish())
    follower.take(follower.watch.answered(answer))
    follower.catch_up()
    follower.insist()


def test_long_lists_and_long_gaps_come_in_pages(broker):
    for number in range(2500):
        broker.registry.put(worker("x", f"w{number}"))
    broker.publish()
    follower = Follower(broker)
    follower.take(follower.watch.answered(broker.answer(follower.watch.request())))
    broker.registry.remove("x", "w1")  # while the pages come
    follower.catch_up()
    follower.insist()
    for number in range(2500):
        broker.registry.put(worker("y", f"w{number}"))
    follower.watch.check()
    follower.catch_up()
    follower.insist()


def test_when_too_much_was_missed_the_difference_comes_out(broker):
    broker.registry.put(worker("x"))
    broker.registry.put(worker("y"))
    follower = follow(broker)
    broker.registry.remove("y", "w1")
    for version in range(10_001):
        broker.registry.put(worker("x", version=str(version)))
    follower.watch.check()
    follower.catch_up()
    follower.insist()
    assert follower.told == ["added", "added", "removed", "changed"]


def test_a_restart_of_the_broker_is_noticed_although_its_revisions_look_alike(broker):
    broker.registry.put(worker("x"))
    broker.registry.put(worker("y"))
    follower = follow(broker)
    broker.restart()
    for service in ("y", "z", "x"):
        broker.registry.put(worker(service, version="2"))
    broker.registry.remove("x", "w1")
    follower.hear(broker.publish())
    follower.catch_up()
    follower.insist()


def test_answers_that_come_twice_do_no_harm(broker):
    broker.registry.put(worker("x"))
    follower = Follower(broker)
    listed = broker.answer(follower.watch.request())
    follower.take(follower.watch.answered(listed))
    follower.take(follower.watch.answered(listed))
    broker.registry.put(worker("y"))
    follower.watch.check()
    changes = broker.answer(follower.watch.request())
    follower.take(follower.watch.answered(changes))
    follower.take(follower.watch.answered(changes))
    follower.insist()


def test_an_error_is_raised():
    with pytest.raises(RefusedError, match="400: no"):
        Watch().answered((b"ERROR", b"400", b"no"))


def test_resumes_from_a_revision_that_it_was_given(broker):
    for version in range(4):
        broker.registry.put(worker("x", version=str(version)))
    watch = Watch(revision=2)
    changes = watch.answered(broker.answer(watch.request()))
    assert [change["revision"] for change in changes] == [3, 4]
    assert (watch.revision, watch.epoch) == (4, json.loads(broker.answer((b"LIST",))[1])["epoch"])


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "remove", "restart", "bookmark", "ask"]),
        st.sampled_from(["x", "y", "x/y"]),
        st.sampled_from(["w1", "w2"]),
        st.booleans(),  # whether what is published arrives
        st.booleans(),  # whether the answer to a question arrives now, or later
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(STEPS, st.sampled_from([None, "x", "y"]))
def test_whatever_is_lost_or_late_every_change_comes_out_once_and_the_copy_is_right(steps, service):
    broker = Broker()
    follower = Follower(broker, service)
    late = None
    for number, (what, name, provider, arrives, now) in enumerate(steps):
        if what == "put":
            broker.registry.put(worker(name, provider, version=str(number)))
        elif what == "remove":
            broker.registry.remove(name, provider)
        elif what == "restart":
            broker.restart()
        elif what == "ask" and late is None and (request := follower.watch.request()) is not None:
            late = broker.answer(request)
        published = broker.bookmark() if what == "bookmark" else broker.publish()
        if arrives:
            follower.hear(published)
        if now and late is not None:
            follower.take(follower.watch.answered(late))
            late = None
    if late is not None:
        follower.take(follower.watch.answered(late))
    follower.catch_up()
    follower.hear(broker.bookmark())
    follower.catch_up()
    follower.insist()
