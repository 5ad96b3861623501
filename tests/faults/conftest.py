"""Workers in processes and clients, all of which go away with the test."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scale0_core.client import Client
from scale0_core.testing.broker import ProcessBroker

from .processes import Crew

ClientMaker = Callable[..., Client]


@pytest.fixture
def crew(real: None, tmp_path: Path) -> Iterator[Crew]:
    """Start workers: ``crew(address, identity)``."""
    with Crew(tmp_path) as workers:
        yield workers


@pytest.fixture
def client(real: None, tmp_path: Path) -> Iterator[ClientMaker]:
    """Make clients of a broker."""
    with contextlib.ExitStack() as stack:

        def make(broker: ProcessBroker, **options: Any) -> Client:
            folder = tempfile.mkdtemp(dir=tmp_path)
            made = Client(broker.address("scale0", "frontend"), config_dir=folder, **options)
            return stack.enter_context(made)

        yield make
