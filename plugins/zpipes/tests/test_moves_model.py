"""Moves, pipes for a time and answers in columns, among writes, acknowledgements and purges, against a simple model.

One pipe is in memory and one on disk; both have a group, so that chunks go when it is done with them. Now and then the
disk refuses.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from scale0_core.testing import SimDisk

from .test_rows_and_moves import Pipes, in_rows
from .text_model import ModelPipe

MOST = 6
LEASE = 1.0
KEPT = st.sampled_from(["p", "d"])
STAGED = st.sampled_from(["s", "t"])
NAMES = st.sampled_from(["p", "d", "s", "t"])


class Kept:
    """A pipe with one group, and nobody who reads without a name."""

    def __init__(self) -> None:
        self.links = 1
        self.chunks: dict[int, bytes] = {}
        self.written = self.last = self.acknowledged = self.purged = 0
        self.moved: dict[str, int] = {}

    @property
    def depth(self) -> int:
        return len(self.chunks)

    def store(self, chunks: list[bytes], *, refused: bool) -> None:
        """Give chunks numbers, which are used up even if the disk refuses."""
        numbered = dict(enumerate(chunks, self.written + 1))
        self.written += len(chunks)
        if not refused:
            self.chunks.update(numbered)
            self.last = self.written if chunks else self.last

    def rows(self, start: int, most: int) -> tuple[int, list[tuple[int, bytes]]]:
        found = [(number, chunk) for number, chunk in sorted(self.chunks.items()) if number >= start][:most]
        return max(start, found[-1][0] + 1 if len(found) == most else self.last + 1), found


class Staged(ModelPipe):
    """A pipe that was opened for a time."""

    def __init__(self, now: float) -> None:
        super().__init__()
        self.used = now


class Work(RuleBasedStateMachine):
    """All of it in any order."""

    @initialize()
    def begin(self) -> None:
        self.disk = SimDisk()
        self.real = Pipes(disk=self.disk, durable=("d",), max_pipe_chunks=MOST, when_full="refuse")
        self.kept = {name: Kept() for name in ("p", "d")}
        for name in self.kept:
            self.real.ok("OPEN", name)
            self.real.ok("GROUP", name, "g", says=(b"OK", b"1"))
        self.staged: dict[str, Staged] = {}
        self.now = 0.0
        self.number = 0

    def same(self, wanted: int | tuple[bytes, ...], *frames: str) -> None:
        if isinstance(wanted, int):
            self.real.refused(wanted, *frames)
        else:
            self.real.ok(*frames, says=wanted)

    @rule(quarters=st.integers(1, 5))
    def wait(self, quarters: int) -> None:
        self.real.sleep(quarters / 4)
        self.now += quarters / 4
        self.staged = {name: pipe for name, pipe in self.staged.items() if pipe.used + LEASE > self.now}

    @rule(name=NAMES)
    def open_for_a_time(self, name: str) -> None:
        self.same(409 if name in self.kept else (b"OK",), "OPEN", name, f"{LEASE * 1000:.0f}")
        if name in self.staged:
            self.staged[name].used = self.now
        elif name not in self.kept:
            self.staged[name] = Staged(self.now)

    @rule(name=KEPT)
    def open(self, name: str) -> None:
        self.same((b"OK",), "OPEN", name)
        self.kept[name].links += 1

    @rule(name=NAMES)
    def close(self, name: str) -> None:
        linked = name in self.kept and self.kept[name].links > 0
        self.same((b"OK",) if linked else 404, "CLOSE", name)
        if linked:
            self.kept[name].links -= 1

    @rule(name=NAMES, peer=st.sampled_from(["a", "b"]), refuse=st.booleans())
    def write(self, name: str, peer: str, refuse: bool) -> None:
        self.number += 1
        chunk = b"%d" % self.number
        pipe = self.kept.get(name) or self.staged.get(name)
        refused = refuse and name == "d" and self.kept["d"].depth < MOST
        if refused:
            self.disk.fail_next(OSError("the disk is full"))
        self.real.feed("pipes", peer, "WRITE", name, chunk)
        ((_, (_, *answer)),) = self.real.taken()
        if pipe is None or pipe.depth >= MOST or refused:
            assert answer[:2] == [b"ERROR", b"404" if pipe is None else b"507" if refused else b"429"]
        else:
            assert answer == [b"OK"]
        if isinstance(pipe, Kept) and pipe.depth < MOST:
            pipe.store([chunk], refused=refused)
        elif isinstance(pipe, Staged) and pipe.depth < MOST:
            pipe.push(peer, chunk)
            pipe.used = self.now

    @rule(
        name=KEPT,
        names=st.lists(NAMES, max_size=3),
        writer=st.sampled_from(["w", "v"]),
        step=st.integers(-1, 2),
        refuse=st.booleans(),
    )
    def move(self, name: str, names: list[str], writer: str, step: int, refuse: bool) -> None:
        pipe = self.kept[name]
        before = pipe.moved.get(writer, 0)
        number = max(1, before + step)
        request = ("MOVE", name, writer, str(number), *names)
        code = self.why_not(pipe, before, number, names)
        if code is not None:
            self.same(code, *request)
            return
        again = number <= before
        if refuse and name == "d" and not again:
            self.disk.fail_next(OSError("the disk is full"))
            self.same(507, *request)
            pipe.store([b""] * sum(self.staged[each].depth for each in names), refused=True)
            for each in names:  # it is put back as the work of one writer
                one = Staged(self.staged[each].used)
                for chunk in self.emptied(each):
                    one.push("one", chunk)
                self.staged[each] = one
            return
        self.same((b"OK", b"%d" % (max(before, number) + 1)), *request)
        pipe.moved[writer] = max(before, number)
        chunks = [chunk for each in names if each in self.staged for chunk in self.emptied(each)]
        if not again:
            pipe.store(chunks, refused=False)

    def why_not(self, pipe: Kept, before: int, number: int, names: list[str]) -> int | None:
        if number <= before:
            return None
        if any(each not in self.kept and each not in self.staged for each in names):
            return 404
        if len(set(names)) < len(names) or any(each in self.kept for each in names):
            return 400
        chunks = sum(self.staged[each].depth for each in names)
        return 413 if chunks > MOST else 429 if pipe.depth + chunks > MOST else None

    def emptied(self, name: str) -> list[bytes]:
        pipe = self.staged.pop(name)
        return [pipe.pop() for _ in range(pipe.depth)]

    @rule(name=NAMES)
    def purge(self, name: str) -> None:
        pipe = self.kept.get(name) or self.staged.pop(name, None)
        self.same(404 if pipe is None else (b"OK", b"%d" % pipe.depth), "PURGE", name)
        if isinstance(pipe, Kept):
            pipe.chunks.clear()
            pipe.purged = pipe.last

    @rule(name=KEPT, ahead=st.integers(-1, 5))
    def acknowledge(self, name: str, ahead: int) -> None:
        pipe = self.kept[name]
        number = max(0, pipe.acknowledged + ahead)
        self.same(400 if number > pipe.last else (b"OK",), "ACK", name, "g", str(number))
        if number <= pipe.last:
            pipe.acknowledged = max(pipe.acknowledged, number)
            pipe.chunks = {each: chunk for each, chunk in pipe.chunks.items() if each > pipe.acknowledged}

    @rule(name=NAMES, ahead=st.integers(0, 8), most=st.integers(1, 8))
    def rows(self, name: str, ahead: int, most: int) -> None:
        pipe = self.kept.get(name)
        start = (pipe.acknowledged if pipe else 0) + ahead
        answer = self.real.ask("ROWS", name, "g", str(start), str(most), "1000", "0")
        if pipe is None or start <= max(pipe.acknowledged, pipe.purged):
            assert answer[:2] == [b"ERROR", b"410" if pipe else b"404"]
        else:
            assert in_rows(answer) == pipe.rows(start, most)

    @invariant()
    def same_depth(self) -> None:
        if hasattr(self, "real"):
            found = {name.decode(): pipe.depth for name, pipe in self.real.service._pipes.items()}
            assert found == {name: pipe.depth for name, pipe in {**self.kept, **self.staged}.items()}
            assert self.real.service._stock.depth == sum(found.values())


TestWork = Work.TestCase
TestWork.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
