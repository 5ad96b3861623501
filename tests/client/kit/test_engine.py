"""Engines: what they hold, and what they give to a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0_core.client.kit.engine import Engine
from scale0_core.client.kit.link import CONTEXT
from scale0_core.client.kit.sessions import BaseSession

pytestmark = pytest.mark.real


class Unwilling(BaseSession):
    def start(self, now: float) -> None:
        raise ValueError("a fault of the session")


def test_an_engine_whose_session_does_not_start_holds_nothing(real: None, tmp_path: Path):
    engine = Engine(Unwilling(f"ipc://{tmp_path}/x"))
    with pytest.raises(ValueError, match="a fault"):
        engine.start()
    assert CONTEXT._context is None
