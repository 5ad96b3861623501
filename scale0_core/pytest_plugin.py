"""Fixtures and lanes for pytest; they are there wherever scale0-core is installed."""

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


LANES = {
    "quick": "opens no sockets and starts no processes",
    "real": "opens sockets, starts processes or takes seconds",
    "soak": "takes minutes; runs with --lane soak only",
}
"""The lanes of tests (see `scale0_core.testing.lanes`), and what a test in one does."""

EXAMPLES = {"quick": 0.1, "real": 1.0, "soak": 10.0}
"""How many examples a property test has in a lane, as a share of those it asks for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--lane`` and the setting ``scale0_lanes``."""
    parser.getgroup("scale0").addoption("--lane", choices=list(LANES), help="run the tests of one lane")
    parser.addini("scale0_lanes", "put tests into lanes in runs without --lane, too", type="bool", default=False)


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the lanes, and turn the lanes on if they are wanted."""
    for name, what in LANES.items():
        config.addinivalue_line("markers", f"{name}: {what}")
    config.addinivalue_line(
        "markers", "seeds(count): has an argument `seed`, which is so many numbers in the lane real"
    )
    if config.getoption("--lane") or config.getini("scale0_lanes"):
        from scale0_core.testing.lanes import Lanes

        config.pluginmanager.register(Lanes(config.getoption("--lane")), "scale0-lanes")
    heed_signals()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize tests with the marker ``seeds``: a tenth as many in the lane quick, ten times as many in soak."""
    for mark in metafunc.definition.iter_markers("seeds"):
        metafunc.parametrize("seed", range(scaled(metafunc.config, mark.args[0], fewest=1)))


def scaled(config: pytest.Config, count: int, *, fewest: int) -> int:
    """Return how many examples a property test has in the lane that runs, which asks for so many."""
    share = EXAMPLES[config.getoption("--lane") or "real"]
    return max(min(count, fewest), round(count * share))


def heed_signals() -> None:
    """Have children heed INT and HUP, which tests send; under ``nohup`` they would inherit that these are ignored."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)  # ignored here as before; children get the default


@pytest.fixture(scope="session")
def real() -> None:
    """Put all tests that use this fixture into the lane `real`; fixtures that open sockets ask for it."""


@pytest.fixture
def scale0_broker(real: None) -> Iterator[BrokerStarter]:
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
