"""Fixtures for pytest; they are there wherever scale0-core is installed."""

# does I/O: signals

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from scale0_core.testing.broker import BrokerStarter
    from scale0_core.testing.flavours import Flavour


def pytest_configure() -> None:
    """Have children heed INT and HUP, which tests send; under ``nohup`` they would inherit that these are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # ignored here as before; children get the default


@pytest.fixture
def scale0_broker() -> Iterator[BrokerStarter]:
    """Start real brokers for a test; all of them end with it.

    ``broker = scale0_broker(["echo"])`` starts one; ``broker.address("echo", "requests")`` is where it answers.
    """
    # imported late, so that pytest runs that use no broker do not pay for zmq
    from scale0_core.testing.broker import BrokerStarter

    with BrokerStarter() as starter:
        yield starter


@pytest.fixture(params=["sync", "aio"])
def flavour(request: pytest.FixtureRequest) -> Iterator[Flavour]:
    """Run a test twice: with clients for threads, and with those for asyncio; ``flavour.make`` makes them."""
    from scale0_core.testing.flavours import Flavour

    with ExitStack() as stack:
        yield Flavour(request.param, stack)
