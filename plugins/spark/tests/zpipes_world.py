"""What the tests of pipes in Spark share: a real broker, and pipes filled and emptied without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pyarrow as pa

from scale0_core.testing import BrokerStarter
from scale0_spark.zpipes.payloads import batches_of
from scale0_spark.zpipes.wire import Pipes

PATIENCE = 60.0


class World:
    """A broker with pipes; those whose names begin with ``durable`` are kept on disk."""

    def __init__(self, starter: BrokerStarter, **settings: object) -> None:
        self._starter = starter
        self._settings = {"plugin": {"zpipes": {"durable": ["durable*"], **settings}}}
        self.broker = starter(["zpipes"], self._settings)
        self.address = self.broker.address("zpipes", "pipes", 1)

    def ends(self) -> None:
        """End the broker by KILL."""
        self.broker.kill()

    def begins_again(self) -> None:
        """Start a broker of the same name, on the same folders."""
        path = self.broker.folder / "broker.toml"
        arguments = ["--config", str(path)]
        self.broker = type(self.broker)(self.broker.name, self.broker.folder, arguments)
        self._starter._cleanup.callback(self.broker.stop)

    @contextmanager
    def pipes(self) -> Iterator[Pipes]:
        with Pipes(self.address, PATIENCE) as pipes:
            yield pipes

    def name(self, stem: str = "pipe") -> str:
        return f"{stem}-{uuid.uuid4().hex[:8]}"

    def fill(self, pipe: str, chunks: Iterable[bytes], *, first: int = 1, group: str | None = "spark") -> None:
        """Write chunks as one writer that counts them."""
        with self.pipes() as pipes:
            if pipes.state(pipe) is None:
                pipes.ask("OPEN", pipe)
            if group is not None:
                pipes.make_group(pipe, group, "first")
            for count, frame in batches_of(pa.array(list(chunks), pa.binary())):
                assert pipes.put(pipe, "test", first, frame) == first + count
                first += count

    def content(self, pipe: str) -> list[bytes]:
        """Give what is in a pipe, and leave it there."""
        with self.pipes() as pipes:
            state = pipes.state(pipe)
            if state is None:
                return []
            group = f"look-{uuid.uuid4().hex[:8]}"
            pipes.make_group(pipe, group, "first", 60_000)
            parts = [batch for *_, batch in pipes.rows(pipe, group, state.first, state.next)]
            pipes.ask("UNGROUP", pipe, group)
        return [chunk for batch in parts for chunk in batch.column("data").to_pylist()]


def numbered(count: int, start: int = 0) -> list[bytes]:
    """Make chunks that tell their number."""
    return [b"%06d" % number for number in range(start, start + count)]
