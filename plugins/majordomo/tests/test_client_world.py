"""A broker, clients and workers on virtual time; and that every call ends once, whatever breaks."""

from __future__ import annotations

from collections import deque
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import Deadlines
from scale0_core.client.kit.calls import GRAIN, Call
from scale0_core.client.kit.sessions import Answer
from scale0_core.testing import Script
from scale0_majordomo.client import CallError, RemoteError, Reply, Request
from scale0_majordomo.client.codec import make_call
from scale0_majordomo.client.session import ClientSession, WorkerSession
from scale0_majordomo.service.majordomo import MajordomoService
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

SOCKET = "requests"
NEVER = float("inf")


class Line:
    """A session's connection to the broker, as the engine makes it: messages on their way are lost when it breaks."""

    def __init__(self, world: World, session) -> None:
        self.world, self.session = world, session
        self.number = 0
        self.again = NEVER
        self.peer = b""
        self.there: deque = deque()
        self.back: deque = deque()
        self.said: list = []

    def follow(self) -> None:
        """Do what the session wants: send, then connect elsewhere."""
        out, self.session.out[:] = list(self.session.out), []
        if self.peer:
            self.there.extend(out)
            self.said += out
        if self.session.connection != self.number:
            while self.peer and self.there and self.world.script is not None:
                self.world.feed(self)  # a socket that is closed sends what it has
            self.cut()
            self.connect()

    def connect(self) -> None:
        self.number, self.again = self.session.connection, NEVER
        if not self.session.address:
            return
        if self.world.script is None:
            self.again = self.world.now + 0.5
            return
        self.peer = b"peer-%d" % self.world.next_peer()
        self.world.lines[self.peer] = self
        self.session.on_linked(self.world.now)
        self.follow()

    def cut(self) -> None:
        """Let the connection go, with all that is on its way."""
        if self.peer:
            self.world.lines.pop(self.peer, None)
            if self.world.script is not None:
                self.world.script.refuse(SOCKET, self.peer)
                self.world.script.lose_peer(SOCKET)
        self.peer = b""
        self.there.clear()
        self.back.clear()

    def break_(self) -> None:
        if self.peer:
            self.cut()
            self.again = self.world.now + 0.5
            self.session.on_unlinked(self.world.now)
            self.follow()

    def deliver(self) -> bool:
        """Let one message arrive, at the broker or here."""
        if self.peer and self.there and self.world.script is not None:
            self.world.feed(self)
        elif self.peer and self.back:
            self.session.receive(self.back.popleft(), self.world.now)
        else:
            return False
        self.follow()
        return True

    def due(self) -> float:
        deadline = self.session.next_deadline()
        return min(self.again, NEVER if deadline is None else deadline)

    def tick(self) -> None:
        deadline = self.session.next_deadline()
        if deadline is not None and deadline <= self.world.now:
            self.session.on_deadline(self.world.now)
        self.follow()
        if self.again <= self.world.now:
            self.connect()


class World:
    """A broker that can be restarted, on virtual time, and the sessions that talk to it."""

    def __init__(self, **options) -> None:
        self.now = 0.0
        self.settings = MajordomoSettings(**options)
        self.lines: dict[bytes, Line] = {}
        self.all: list[Line] = []
        self.peers = 0
        self.script: Script | None = None
        self.start()

    def next_peer(self) -> int:
        self.peers += 1
        return self.peers

    def start(self) -> None:
        self.script = Script(MajordomoService(self.settings), self.now)

    def kill(self) -> None:
        self.script = None
        for line in self.all:
            line.break_()

    def stop(self) -> None:
        """Let the broker stop as it should, with its last words."""
        self.script.stop()
        self.collect()
        self.script.sent.clear()
        for line in self.all:
            while line.back:
                line.session.receive(line.back.popleft(), self.now)
                line.follow()
        self.kill()

    def feed(self, line: Line) -> None:
        self.script.feed(SOCKET, line.peer, *line.there.popleft())
        self.collect()

    def add(self, session) -> Line:
        line = Line(self, session)
        self.all.append(line)
        session.start(self.now)
        line.follow()
        return line

    def collect(self) -> None:
        sent, self.script.sent[:] = list(self.script.sent), []
        for _, (peer, *frames) in sent:
            if peer in self.lines:
                self.lines[peer].back.append(tuple(bytes(frame) for frame in frames))

    def sleep(self, seconds: float) -> None:
        """Let time pass; deadlines come at their moment, and messages arrive at once."""
        end = self.now + seconds
        while True:
            self.deliver()
            due = min(line.due() for line in self.all)
            if self.script is not None:
                due = min(due, self.script.service.next_deadline() or NEVER)
            self.now = min(max(due, self.now), end)
            if self.script is not None:
                self.script.sleep(self.now - self.script.now)
                self.collect()
            for line in self.all:
                line.tick()
            self.deliver()
            if self.now >= end:
                return

    def deliver(self) -> None:
        while sum(line.deliver() for line in self.all):
            pass


class Outcome:
    """Where a call's outcome goes."""

    call: Call

    def __init__(self) -> None:
        self.reply: Reply | None = None
        self.error: CallError | None = None
        self.parts: list[Reply] = []
        self.count = 0

    def final(self, reply: Reply) -> None:
        self.reply = reply
        self.count += 1

    def fail(self, error: CallError) -> None:
        self.error = error
        self.count += 1


class Caller:
    """A client."""

    def __init__(self, world: World, **options) -> None:
        self.world = world
        self.session = ClientSession("here", random=Random(1), **options)
        self.line = world.add(self.session)

    def call(self, service: str = "s", *body: bytes, stream: bool = False, timeout: float = 10.0, **options) -> Outcome:
        outcome = Outcome()
        outcome.call = call = make_call(service, body or (b"x",), timeout=timeout, **options)
        call.sink, call.on_part = outcome, outcome.parts.append if stream else None
        self.session.open(call, self.world.now)
        self.line.follow()
        return outcome


class Server:
    """A worker that collects requests; the test answers them."""

    def __init__(self, world: World, service: str = "s", **options) -> None:
        self.world = world
        self.requests: list[Request] = []
        self.cancelled: list[Request] = []
        self.session = WorkerSession(
            "here", service, begin=self.requests.append, cancel=self.cancelled.append, random=Random(2), **options
        )
        self.line = world.add(self.session)
        world.deliver()

    def end(self, answer: Answer) -> None:
        self.session.answer(self.requests.pop(0), answer, self.world.now)
        self.line.follow()
        self.world.deliver()

    def answer(self, *body: bytes) -> None:
        self.end(Answer(body, frames=body or (b"y",)))

    def part(self, *body: bytes, seq: int) -> None:
        self.session.part(self.requests[0], seq, body, self.world.now)
        self.line.follow()
        self.world.deliver()

    def end_parts(self, parts: int, result: object) -> None:
        self.end(Answer(result, parts, frames=self.session.frames_of(result)))

    def fail(self, code: int, reason: str) -> None:
        self.end(Answer(code=code, message=reason))


# --- whatever happens -------------------------------------------------------------------------------------------------


class Storm:
    """Calls, answers, cancels and breaks by chance."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.world = World(default=ServiceSettings(max_queue=20, expiry=5.0))
        self.clients = [Caller(self.world) for _ in range(2)]
        self.servers = [Server(self.world, credit=random.choice((1, 3))) for _ in range(3)]
        self.calls: list[tuple[Caller, bytes, Outcome]] = []
        self.cancelled: set[int] = set()

    def step(self, number: int) -> None:
        actions = (self.call, self.answer, self.sleep, self.break_, self.restart, self.cancel)
        (action,) = self.random.choices(actions, (40, 30, 10, 5, 2, 5))
        action(number)
        self.random.choice(self.world.all).deliver()

    def call(self, number: int) -> None:
        client, body = self.random.choice(self.clients), b"%d" % number
        outcome = client.call("s", body, timeout=8, retry=self.random.choice((True, False, None)))
        self.calls.append((client, body, outcome))

    def answer(self, number: int) -> None:
        server = self.random.choice(self.servers)
        if server.requests:
            body = server.requests[0].body
            if self.random.random() < 0.9:
                server.answer(body)
            else:
                server.fail(500, body.decode())

    def sleep(self, number: int) -> None:
        self.world.sleep(self.random.random())

    def break_(self, number: int) -> None:
        self.random.choice(self.world.all).break_()

    def restart(self, number: int) -> None:
        self.world.kill()
        self.sleep(number)
        self.world.start()

    def cancel(self, number: int) -> None:
        if self.calls:
            client, _, outcome = self.random.choice(self.calls)
            client.session.cancel(outcome.call)
            client.line.follow()
            self.cancelled.add(id(outcome))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32))
def test_every_call_ends_once_whatever_breaks(seed):
    """And what a service answered is what its own caller gets."""
    storm = Storm(seed)
    for number in range(150):
        storm.step(number)
    storm.world.sleep(10)
    for _, body, outcome in storm.calls:
        assert outcome.count == 1 or (id(outcome) in storm.cancelled and outcome.count == 0)
        if outcome.reply is not None:
            assert outcome.reply == (body,)
        if isinstance(outcome.error, RemoteError):
            assert outcome.error.message == body.decode()
    assert all(len(client.session.calls) == 0 for client in storm.clients)


def test_timers_come_in_order_and_none_early():
    random = Random(1)
    timers: Deadlines[int, int] = Deadlines(GRAIN)
    when = {number: random.uniform(0, 5) for number in range(200)}
    for number, moment in when.items():
        timers.set(number, random.uniform(0, 5), number)
        timers.set(number, moment, number)
    for number in range(0, 200, 3):
        timers.remove(number)
        assert number not in timers
    found: dict[int, float] = {}
    while (now := timers.next()) is not None:
        found.update(dict.fromkeys(timers.take(now), now))
    assert set(found) == {number for number in when if number % 3}
    assert all(0 <= found[number] - when[number] <= 0.011 for number in found)
