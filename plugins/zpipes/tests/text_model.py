"""A simple model of the text dialect: lists, and no thought of speed."""

from __future__ import annotations

from collections import defaultdict


class ModelPipe:
    """One pipe: what each writer has waiting, whose turn it is, and who waits."""

    def __init__(self) -> None:
        self.links = 0
        self.head: list[bytes] = []
        self.waiting_chunks: dict[str, list[bytes]] = {}
        self.turns: list[str] = []
        self.reads: list[str] = []
        self.reader: str | None = None

    def push(self, writer: str, chunk: bytes) -> None:
        if writer not in self.waiting_chunks:
            self.waiting_chunks[writer] = []
            self.turns.append(writer)
        self.waiting_chunks[writer].append(chunk)

    def pop(self) -> bytes:
        if self.head:
            return self.head.pop(0)
        writer = self.turns.pop(0)
        chunk = self.waiting_chunks[writer].pop(0)
        if self.waiting_chunks[writer]:
            self.turns.append(writer)
        else:
            del self.waiting_chunks[writer]
        return chunk

    @property
    def depth(self) -> int:
        return len(self.head) + sum(map(len, self.waiting_chunks.values()))


class Model:
    """All pipes. ``gone`` are peers that nothing can be delivered to."""

    def __init__(self, most_chunks: int) -> None:
        self.pipes: dict[str, ModelPipe] = {}
        self.blocked: dict[str, dict[str, list[bytes]]] = defaultdict(dict)
        self.most_chunks = most_chunks
        self.gone: set[str] = set()
        self.out: list[tuple[str, object]] = []

    def say(self, peer: str, what: object) -> None:
        if peer not in self.gone:
            self.out.append((peer, what))
            return
        for name, pipe in list(self.pipes.items()):
            if pipe.reader == peer:  # now it is noticed that the reader is gone
                pipe.reads, pipe.reader = [], None
                self.tidy(name)

    def take(self) -> list[tuple[str, object]]:
        out, self.out = self.out, []
        return out

    def open(self, peer: str, name: str) -> None:
        self.pipes.setdefault(name, ModelPipe()).links += 1
        self.say(peer, b"OK")

    def close(self, peer: str, name: str) -> None:
        pipe = self.pipes.get(name)
        if pipe is None or not pipe.links:
            self.say(peer, 404)
            return
        pipe.links -= 1
        if not pipe.links and pipe.reader == peer:
            for reader in pipe.reads:
                self.say(reader, 404)
            pipe.reads = []
        self.say(peer, b"OK")
        self.tidy(name)

    def tidy(self, name: str) -> None:
        pipe = self.pipes.get(name)
        if pipe and not (pipe.links or pipe.depth or pipe.reads or self.blocked[name]):
            del self.pipes[name]

    def write(self, peer: str, name: str, chunk: bytes) -> None:
        pipe = self.pipes.get(name)
        if pipe is None:
            self.say(peer, 404)
        elif self.blocked[name] or (pipe.depth >= self.most_chunks and not pipe.reads):
            self.blocked[name].setdefault(peer, []).append(chunk)
        else:
            self.store(peer, name, chunk)
            self.tidy(name)

    def store(self, peer: str, name: str, chunk: bytes) -> None:
        pipe = self.pipes[name]
        if pipe.reads:
            reader = pipe.reads.pop(0)
            if reader in self.gone:
                pipe.head.append(chunk)
            self.say(reader, chunk)
        else:
            pipe.push(peer, chunk)
        self.say(peer, b"OK")

    def read(self, peer: str, name: str) -> None:
        pipe = self.pipes.get(name)
        if pipe is None:
            self.say(peer, 404)
            return
        if pipe.reads and pipe.reader != peer:
            self.say(peer, 409)
            return
        pipe.reader = peer
        if not pipe.depth:
            pipe.reads.append(peer)
            return
        self.say(peer, pipe.pop())
        while self.blocked[name] and pipe.depth < self.most_chunks:
            writer, chunks = next(iter(self.blocked[name].items()))
            del self.blocked[name][writer]
            pipe.push(writer, chunks.pop(0))
            if chunks:
                self.blocked[name][writer] = chunks
            self.say(writer, b"OK")
        self.tidy(name)
