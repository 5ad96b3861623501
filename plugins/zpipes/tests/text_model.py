"""A simple model of the text dialect: lists, and no thought of speed."""

from __future__ import annotations

from collections import defaultdict


class ModelWriter:
    """What a writer has waiting, when it began, and when it closed."""

    def __init__(self, name: str, since: int) -> None:
        self.name, self.since, self.until = name, since, float("inf")
        self.chunks: list[bytes] = []


class ModelPipe:
    """One pipe: what each writer has waiting, whose turn it is, and who waits."""

    def __init__(self) -> None:
        self.links = 0
        self.head: list[bytes] = []
        self.turns: list[ModelWriter] = []
        self.later: list[ModelWriter] = []
        self.began: dict[str, int] = {}
        self.ticks = 0
        self.reads: list[str] = []
        self.reader: str | None = None

    @property
    def writers(self) -> list[ModelWriter]:
        return self.turns + self.later

    def push(self, writer: str, chunk: bytes) -> None:
        mine = next((each for each in self.writers if each.name == writer and each.until == float("inf")), None)
        if mine is None:
            if writer not in self.began:
                self.ticks += 1
                self.began[writer] = self.ticks
            mine = ModelWriter(writer, self.began[writer])
            self.later.append(mine)
        mine.chunks.append(chunk)
        self.let_in()

    def let_in(self) -> None:
        """Let those have their turns that began before any closed of whom something waits."""
        ends = min((each.until for each in self.writers), default=float("inf"))
        self.turns += sorted((each for each in self.later if each.since < ends), key=lambda each: each.since)
        self.later = [each for each in self.later if each not in self.turns]

    def left(self, peer: str) -> None:
        self.ticks += 1
        self.began.pop(peer, None)
        for each in self.writers:
            if each.name == peer:
                each.until = min(each.until, self.ticks)

    def pop(self) -> bytes:
        if self.head:
            return self.head.pop(0)
        writer = self.turns.pop(0)
        chunk = writer.chunks.pop(0)
        if writer.chunks:
            self.turns.append(writer)
        self.let_in()
        return chunk

    @property
    def depth(self) -> int:
        return len(self.head) + sum(len(each.chunks) for each in self.writers)


class Model:
    """All pipes. ``gone`` are peers that nothing can be delivered to."""

    def __init__(self, most_chunks: int) -> None:
        self.pipes: dict[str, ModelPipe] = {}
        self.blocked: dict[str, dict[str, bytes]] = defaultdict(dict)
        """By pipe and connection: the one write of it that waits for room."""
        self.held: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        """What came on a connection behind a write that waits."""
        self.most_chunks = most_chunks
        self.gone: set[str] = set()
        self.out: list[tuple[str, object]] = []
        self.in_turn = False
        """Whether several requests are taken in one turn: what could not be delivered is noticed at its end."""
        self.unheard: list[str] = []
        self.returned: list[tuple[ModelPipe, bytes]] = []

    def say(self, peer: str, what: object) -> None:
        if peer not in self.gone:
            self.out.append((peer, what))
        elif self.in_turn:
            self.unheard.append(peer)
        else:
            self.notice(peer)

    def notice(self, peer: str) -> None:
        for name, pipe in list(self.pipes.items()):
            if pipe.reader == peer:  # now it is noticed that the reader is gone
                pipe.reads, pipe.reader = [], None
                self.tidy(name)

    def take(self) -> list[tuple[str, object]]:
        out, self.out = self.out, []
        return out

    def ask(self, peer: str, *request: str) -> None:
        """Let a request come: READ is taken, others only if no write of the connection waits."""
        if request[0] != "read" and any(peer in blocked for blocked in self.blocked.values()):
            self.held[peer].append(request)
        else:
            self.do(peer, *request)

    def do(self, peer: str, command: str, *arguments: str) -> None:
        {"open": self.open, "close": self.close, "write": self.write, "read": self.read}[command](peer, *arguments)

    def open(self, peer: str, name: str) -> None:
        self.pipes.setdefault(name, ModelPipe()).links += 1
        self.say(peer, b"OK")

    def close(self, peer: str, name: str) -> None:
        pipe = self.pipes.get(name)
        if pipe is None or not pipe.links:
            self.say(peer, 404)
            return
        pipe.links -= 1
        pipe.left(peer)
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

    def write(self, peer: str, name: str, text: str) -> None:
        pipe, chunk = self.pipes.get(name), text.encode()
        if pipe is None:
            self.say(peer, 404)
        elif self.blocked[name] or (pipe.depth >= self.most_chunks and not pipe.reads):
            self.blocked[name][peer] = chunk
        else:
            self.store(peer, name, chunk)
            if not self.in_turn:
                self.tidy(name)

    def store(self, peer: str, name: str, chunk: bytes) -> None:
        pipe = self.pipes[name]
        if pipe.reads:
            reader = pipe.reads.pop(0)
            if reader in self.gone:
                self.returned.append((pipe, chunk))
                if not self.in_turn:
                    self.put_back()
            self.say(reader, chunk)
        else:
            pipe.push(peer, chunk)
        self.say(peer, b"OK")

    def put_back(self) -> None:
        for pipe, chunk in self.returned:
            pipe.head.append(chunk)
        self.returned.clear()

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
        self.in_turn = True
        ready = self.unblock()
        while ready:
            writer = ready.pop(0)
            while self.held[writer] and not any(writer in blocked for blocked in self.blocked.values()):
                self.do(writer, *self.held[writer].pop(0))
            ready += self.unblock()
        self.in_turn = False
        self.put_back()
        while self.unheard:
            self.notice(self.unheard.pop(0))
        for each in list(self.pipes):
            self.tidy(each)

    def unblock(self) -> list[str]:
        ready = []
        for name, blocked in self.blocked.items():
            while blocked and self.pipes[name].depth < self.most_chunks:
                writer = next(iter(blocked))
                self.store(writer, name, blocked.pop(writer))
                ready.append(writer)
        return ready
