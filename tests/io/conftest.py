from __future__ import annotations

from collections.abc import Iterator

import pytest
import zmq

from scale0_core.io.wire import native_problem

BOTH_WIRES = [
    pytest.param(
        "native", marks=pytest.mark.skipif(bool(native_problem()), reason=f"no native wire: {native_problem()}")
    ),
    "pure",
]


@pytest.fixture(params=BOTH_WIRES)
def implementation(request: pytest.FixtureRequest) -> str:
    """Every test that asks for it runs on both wires."""
    return str(request.param)


class KeepingContext(zmq.Context[zmq.Socket[bytes]]):
    """Keeps every socket until the end of the test, so that none is collected while it is open."""

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["opened"] = []

    def socket(self, *args, **kwargs):
        opened = super().socket(*args, **kwargs)
        self.__dict__["opened"].append(opened)
        return opened


@pytest.fixture
def context(real: None) -> Iterator[KeepingContext]:
    context = KeepingContext()
    yield context
    context.destroy(linger=0)
