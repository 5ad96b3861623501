"""Discovery is a framework: a service of its own that is built on nothing but the broker's registry."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from scale0_core.container.registry import Change, Provider, Registry
from scale0_core.service import Effect, Endpoint, Frames, SocketKind
from scale0_core.testing import Script


class Guide:
    """Says who offers a service, and remembers what has changed; written like a plugin, it never asks the broker."""

    name = "guide"

    def __init__(self, registry: Registry) -> None:
        self.endpoints = {"requests": Endpoint(kind=SocketKind.ROUTER, bind="ipc:///tmp/g")}
        self.registry = registry
        self.news: list[tuple[str, str, str]] = []
        registry.put(Provider(service="guide", provider="b1", kind="hosted", state="responsive"))
        registry.watch(self._changed)

    def _changed(self, change: Change) -> None:
        self.news.append((change.kind, change.provider.service, change.provider.provider))

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        who, service = frames
        found = [each for each in self.registry.providers() if each.service == service.decode() and each.live]
        return [(socket, (who, service, *(each.provider.encode() for each in found)))]

    def next_deadline(self) -> float | None:
        return None

    def on_deadline(self, now: float) -> Iterable[Effect]:
        return []


@pytest.fixture
def broker(talk):
    return talk()


@pytest.fixture
def guide(broker):
    return Script(Guide(broker.registry))


def found(guide: Script, service: str) -> list[bytes]:
    guide.feed("requests", "who", service)
    return list(guide.sent[-1][1][2:])


@pytest.mark.requirement("R9")
def test_a_service_that_is_built_on_discovery_follows_workers_as_they_come_change_and_go(broker, guide):
    assert found(guide, "echo") == []
    broker.join("w1", "echo")
    broker.join("w2", "echo", "convert")
    assert (found(guide, "echo"), found(guide, "convert")) == ([b"w1", b"w2"], [b"w2"])
    broker.ready("w2", "convert")
    assert found(guide, "echo") == [b"w1"]
    broker.beating(8, "w2")  # the other is silent
    assert (found(guide, "echo"), found(guide, "convert")) == ([], [b"w2"])
    broker.beat("w1")
    assert found(guide, "echo") == [b"w1"]
    for who in ("w1", "w2"):
        broker.say("backend", who, "DISCONNECT")
    assert (found(guide, "echo"), found(guide, "convert")) == ([], [])
    assert guide.service.news == [
        ("added", "echo", "w1"), ("added", "echo", "w2"), ("added", "convert", "w2"), ("removed", "echo", "w2"),
        ("changed", "echo", "w1"), ("changed", "echo", "w1"), ("removed", "echo", "w1"), ("removed", "convert", "w2"),
    ]  # fmt: skip


@pytest.mark.requirement("R9")
def test_a_service_that_is_built_on_discovery_is_found_beside_the_workers(broker, guide):
    broker.join("w1", "echo")
    assert found(guide, "guide") == [b"b1"]
    rows = {row["service"]: row["kind"] for row in broker.ask("list_services").result}
    assert rows == {"echo": "worker", "guide": "hosted"}


@pytest.mark.requirement("R9")
def test_a_service_that_was_away_catches_up_from_the_revision_it_knows(broker, guide):
    broker.join("w1", "echo")
    known = broker.registry.revision
    broker.join("w2", "echo")
    broker.say("backend", "w1", "DISCONNECT")
    assert [(change.kind, change.provider.provider) for change in broker.registry.since(known)] == [
        ("added", "w2"), ("removed", "w1")
    ]  # fmt: skip
