"""A broker and its clients on virtual time: connections that break, brokers that are killed."""

from __future__ import annotations

from collections import deque
from random import Random

from scale0_core.testing import Script, SimDisk
from scale0_zpipes.client.session import NEVER, Session
from scale0_zpipes.client.sessions import ReaderSession, WriterSession
from scale0_zpipes.service.journal import Journal
from scale0_zpipes.service.pipes import ZpipesService
from scale0_zpipes.settings import ZpipesSettings


class Line:
    """A session's connection to the broker: messages on their way, which go no further when it breaks.

    It keeps what an engine promises to a session.
    """

    def __init__(self, world: World, session: Session) -> None:
        self.world, self.session = world, session
        self.number = 0
        self.peer = b""
        self.again_at = NEVER
        self.there: deque = deque()
        self.back: deque = deque()

    @property
    def up(self) -> bool:
        return bool(self.peer)

    def follow(self) -> None:
        """Do what the session wants: send, let go, connect."""
        out, self.session.out[:] = list(self.session.out), []
        if self.up:
            self.there.extend(out)
        while self.session.connection != self.number:
            if self.up:
                if self.world.script is not None:
                    for frames in self.there:  # they linger, and last words are among them
                        self.world.script.feed("pipes", self.peer, *frames)
                self.cut()
            self.number = self.session.connection
            self.connect()

    def connect(self) -> None:
        self.again_at = NEVER
        if not self.session.address:
            return
        if self.world.script is None:
            self.again_at = self.world.now + self.world.random.uniform(0.05, 0.1)
            return
        self.peer = b"peer-%d" % self.world.next_peer()
        self.world.lines[self.peer] = self
        self.session.on_linked(self.world.now)
        self.follow()

    def cut(self) -> None:
        """Let the connection go, with all that is on its way."""
        self.world.lines.pop(self.peer, None)
        if self.world.script is not None:
            self.world.script.refuse("pipes", self.peer)
            self.world.script.lose_peer("pipes")
        self.peer = b""
        self.there.clear()
        self.back.clear()

    def break_(self) -> None:
        if self.up:
            self.cut()
            self.again_at = self.world.now + self.world.random.uniform(0.05, 0.1)
            self.session.on_unlinked(self.world.now)
            self.follow()

    def next_deadline(self) -> float:
        due = self.session.next_deadline()
        return self.again_at if due is None else min(self.again_at, due)

    def on_deadline(self) -> None:
        due = self.session.next_deadline()
        if due is not None and due <= self.world.now:
            self.session.on_deadline(self.world.now)
        if self.again_at <= self.world.now:
            self.connect()
        self.follow()

    def deliver(self) -> bool:
        """Let one message arrive, at the broker or here."""
        if self.up and self.there and self.world.script is not None:
            self.world.script.feed("pipes", self.peer, *self.there.popleft())
            self.world.collect()
        elif self.up and self.back:
            self.session.receive(self.back.popleft(), self.world.now)
        else:
            return False
        self.follow()
        return True


class World:
    """A broker that can be restarted, on virtual time, and the sessions that talk to it."""

    def __init__(self, job_delay: float = 0.0, **options) -> None:
        self.now = 0.0
        self.random = Random(0)
        self.options = options
        self.job_delay = job_delay
        self.disk = SimDisk()
        self.lines: dict[bytes, Line] = {}
        self.all: list[Line] = []
        self.peers = 0
        self.script: Script | None = None
        self.start()

    def next_peer(self) -> int:
        self.peers += 1
        return self.peers

    def start(self) -> None:
        settings = ZpipesSettings(**self.options)
        journal = Journal(self.disk) if settings.durable else None
        self.script = Script(ZpipesService(settings, journal=journal), self.now, job_delay=self.job_delay)

    def restart(self, random: Random | None = None) -> None:
        """Let the broker die and another one start; a ``random`` has the disk forget what was not safe."""
        self.kill(random)
        self.start()

    def kill(self, random: Random | None = None) -> None:
        self.script = None
        if random is not None:
            self.disk.crash(random)
        for line in self.all:
            line.break_()

    def add(self, session: Session) -> Line:
        line = Line(self, session)
        self.all.append(line)
        session.start(self.now)
        line.follow()
        return line

    def collect(self) -> None:
        """Put what the broker sent on its way."""
        if self.script is not None:
            sent, self.script.sent[:] = list(self.script.sent), []
            for _, (peer, *frames) in sent:
                if peer in self.lines:
                    self.lines[peer].back.append(tuple(frames))

    def sleep(self, seconds: float) -> None:
        """Let time pass; deadlines of the sessions come at their moment."""
        end = self.now + seconds
        while True:
            due = min((line.next_deadline() for line in self.all), default=NEVER)
            self.now = min(max(due, self.now), end)
            if self.script is not None and self.script.now < self.now:
                self.script.sleep(self.now - self.script.now)
                self.collect()
            for line in self.all:
                line.on_deadline()
            if self.now >= end:
                return

    def settle(self, seconds: float = 0.0) -> None:
        """Deliver all that is on its way, while so much time passes."""
        end = self.now + seconds
        while True:
            self.sleep(0.0)
            while sum(line.deliver() for line in self.all):
                pass
            if self.now >= end:
                return
            self.sleep(min(0.01, end - self.now))


def writer(world: World, name: bytes = b"d.p", **options) -> Line:
    return world.add(WriterSession(name, "here", writer=b"me", random=Random(1), **options))


def reader(world: World, name: bytes = b"d.p", **options) -> Line:
    return world.add(ReaderSession(name, "here", random=Random(2), **options))


def write(line: Line, *chunks: bytes) -> None:
    for chunk in chunks:
        line.session.write(chunk, line.world.now)
        line.follow()


def taken(line: Line) -> list[bytes]:
    """Take all that a reader has, and let it acknowledge and fetch."""
    found = []
    while (chunk := line.session.take(line.world.now)) is not None:
        found.append(chunk)
        line.follow()
    line.follow()
    return found


def all_of(line: Line) -> list[bytes]:
    found = []
    for _ in range(5):
        line.world.settle(0.2)  # a reader that was refused tries again
        found += taken(line)
    return found
