"""Three lanes of tests: `quick` opens no sockets and starts no processes, `real` does, `soak` takes minutes.

A test is in the lane of its nearest marker. Without one it is in `real` if it, or a fixture that it uses, asks for the
fixture ``real`` (``scale0_broker`` does), else in `quick`. Property tests, those of Hypothesis and those with the
marker ``seeds``, run in their lane and in those after it, with ten times as many examples in each.

``pytest --lane quick`` runs one lane. Without ``--lane`` all tests run but those of `soak`, if the setting
``scale0_lanes`` is on; else nothing here happens. A test in `quick` that opens a socket or starts a process fails.
"""

# does I/O: sees whether a test opens sockets or starts processes

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import Any

import pytest
import zmq

from scale0_core.pytest_plugin import LANES, scaled

FORBIDDEN = {
    "subprocess.Popen": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.system": "starts a process",
    "os.fork": "forks",
    "os.forkpty": "forks",
    "socket.bind": "binds a socket",
    "socket.connect": "connects a socket",
    "socket.sendto": "sends to a socket",
}
"""Audit events that no test in `quick` causes. A pair of sockets, as asyncio loops have, is allowed."""


def lane_of(item: pytest.Item) -> str:
    """Return the lane of a test."""
    named = next((mark.name for mark in item.iter_markers() if mark.name in LANES), None)
    return named or ("real" if "real" in getattr(item, "fixturenames", ()) else "quick")


def is_property_test(item: pytest.Item) -> bool:
    """Return whether a test has as many examples as one likes."""
    by_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return bool(by_hypothesis) or item.get_closest_marker("seeds") is not None


def _scale(item: pytest.Item, done: set[object]) -> None:
    """Change how many examples Hypothesis tries. Settings of a test go before those of a profile, so change them."""
    from hypothesis import settings

    def fewer(asked: settings) -> settings:
        return settings(asked, max_examples=scaled(item.config, asked.max_examples, fewest=10), deadline=None)

    method: Any = getattr(item, "obj", None)
    function = getattr(method, "__func__", method)
    asked = getattr(function, "_hypothesis_internal_use_settings", None)
    if asked is not None and function not in done:
        function._hypothesis_internal_use_settings = fewer(asked)  # noqa: SLF001 -- there is no other way
    machine: Any = getattr(item, "cls", None)  # of a state machine
    if machine is not None and isinstance(vars(machine).get("settings"), settings) and machine not in done:
        machine.settings = fewer(machine.settings)
    done |= {function, machine}


class Lanes:
    """The pytest plugin: puts each test into a lane, selects those that run, and guards `quick`."""

    def __init__(self, lane: str | None) -> None:
        self._lane = lane
        self._guarded: str | None = None
        self._broken = ""
        self._patch = pytest.MonkeyPatch()
        sys.addaudithook(self._audit)
        self._watch(zmq.Context, "makes a zmq context")
        self._watch(zmq.Socket, "opens a zmq socket")

    # which tests run

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Mark each test with its lane, and deselect those of other lanes."""
        scaled_already: set[object] = set()  # a function of many items
        kept: list[pytest.Item] = []
        left: list[pytest.Item] = []
        for item in items:
            lane = lane_of(item)
            item.add_marker(lane)
            (kept if self._runs(lane, is_property_test(item)) else left).append(item)
            if is_property_test(item):
                _scale(item, scaled_already)
        items[:] = kept
        if left:
            config.hook.pytest_deselected(items=left)

    def _runs(self, lane: str, has_examples: bool) -> bool:
        if self._lane is None:
            return lane != "soak"
        return lane == self._lane or (has_examples and self._lane != "quick" and lane != "soak")

    # what tests in `quick` may not do

    def _watch(self, kind: Any, what: str) -> None:
        make = kind.__init__

        def checked(made: Any, *arguments: Any, **options: Any) -> None:
            self._refuse(what)
            make(made, *arguments, **options)

        self._patch.setattr(kind, "__init__", checked)

    def pytest_unconfigure(self) -> None:
        """Watch no longer."""
        self._patch.undo()

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self._guarded is not None and event in FORBIDDEN:
            self._refuse(FORBIDDEN[event])

    def _refuse(self, what: str) -> None:
        if self._guarded is not None:
            self._broken = (
                f"{self._guarded} {what}, but is in the lane `quick`: mark it with `@pytest.mark.real`, or its module "
                "with `pytestmark = pytest.mark.real`, or let the fixture that does it ask for the fixture `real`"
            )
            pytest.fail(self._broken)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Guard a test of `quick`, from before its fixtures are set up until they are torn down."""
        self._guarded = item.nodeid if item.get_closest_marker("quick") else None
        self._broken = ""
        try:
            return (yield)
        finally:
            self._guarded = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, object, object]:
        """Fail a test that went on after it was refused something, as another thread does."""
        result = yield
        if self._broken:
            pytest.fail(self._broken, pytrace=False)
        return result
