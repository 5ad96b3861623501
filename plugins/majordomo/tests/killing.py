"""Real workers that are killed in mid-request, round after round, while clients count what they get.

Each round asks for one thing over each of four clients: stock DEALERs that speak MDP 0.1, MDP 0.2 and our own dialect,
and the client library. One of the requests is the victim: the worker that has begun it is killed with KILL, before it
can answer. In some rounds the next worker to begin it is killed as well, at the moment at which it may answer: then the
reply has left or it has not. All else is answered at once. A round is over when every request is answered.

No time is waited for anywhere: workers tell when they begin, and answer when they are told to.
"""

from __future__ import annotations

import json
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path
from random import Random

import attrs
import zmq

from scale0_majordomo.client import Client

ZYGOTE = Path(__file__).with_name("zygote.py")
SERVICE = "job"
KINDS = ("mdp01", "mdp02", "own")
POOL = 5
"""Workers at a time: so many that a request finds another one at once."""
PATIENCE = 60.0
"""Seconds after which a request counts as lost."""
SLOWEST = 60.0
"""Seconds for what takes a moment."""
RACING = 0.4
"""How many rounds have a second kill."""

SETTINGS = {"heartbeat": 10.0, "bridge": False, "default": {"max_tries": 10}}
"""Of the plugin. A worker is noticed to be gone by its connection, long before it would have been silent for too long.

A request may meet more than the two workers that are killed for its sake: one that was killed at its reply a moment ago
may still be taken for idle, and what is sent to it then is a try.
"""


@attrs.define
class Outcome:
    """What came of it."""

    rounds: int = 0
    requests: int = 0
    answers: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: int = 0
    """Answers that are not those to what was asked, and errors."""
    sent_away: int = 0
    """Workers that ended by themselves."""
    kills: int = 0
    """In mid-request: the worker had begun it and was never told to answer."""
    racing_kills: int = 0
    """At the moment of the reply."""
    begun: int = 0
    """How often workers began a request."""
    seconds: float = 0.0
    longest_ms: float = 0.0
    """The longest that a victim waited for its answer after its worker's death."""
    killed: Counter[str] = attrs.field(factory=Counter)
    victims: Counter[str] = attrs.field(factory=Counter)
    books: dict[str, int] = attrs.field(factory=dict)
    """What the broker has counted."""
    notes: list[str] = attrs.field(factory=list)

    def faults(self) -> dict[str, int]:
        """Give what may not be; all are 0 when all is well."""
        in_books = sum(self.books.get(name, 1) for name in ("failed", "expired", "refused", "waiting", "in_hand"))
        in_books += abs(self.books.get("requests", 0) - self.requests) + abs(
            self.books.get("replies", 0) - self.requests
        )
        return {
            "lost": self.lost, "doubled": self.doubled, "wrong": self.wrong, "sent_away": self.sent_away,
            "wrong_books": in_books,
        }  # fmt: skip


class Dealer:
    """A stock client of one dialect."""

    def __init__(self, context: zmq.Context, broker: str, kind: str) -> None:
        self.kind = kind
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(broker)

    def ask(self, body: bytes) -> None:
        service = SERVICE.encode()
        frames = {
            "mdp01": (b"", b"MDPC01", service, body),
            "mdp02": (b"MDPC02", b"\x01", service, body),
            "own": (b"S0MC01", b"\x01", body, service, b"", body),
        }[self.kind]
        self.socket.send_multipart(frames)

    def answers(self) -> list[bytes]:
        """Give what has come; an error is what its code is."""
        found = []
        while self.socket.get(zmq.EVENTS) & zmq.POLLIN:
            frames = self.socket.recv_multipart()
            found.append(frames[-1] if b"\x04" not in frames[1:2] else b" ".join(frames[2:]))
        return found


class Library:
    """The client library; whatever comes beside its replies is counted by its session."""

    kind = "library"

    def __init__(self, broker: str) -> None:
        self.client = Client(broker, timeout=PATIENCE * 2)
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._came: list[bytes] = []

    def fileno(self) -> int:
        return self._reader.fileno()

    def ask(self, body: bytes) -> None:
        self.client.submit(SERVICE, body).add_done_callback(self._done)

    def _done(self, future) -> None:
        error = future.exception()
        self._came.append(future.result().body if error is None else str(error).encode())
        self._writer.send(b"!")

    def answers(self) -> list[bytes]:
        """Give what has come."""
        try:
            number = len(self._reader.recv(4096))
        except BlockingIOError:
            return []
        found, self._came[:number] = self._came[:number], []
        return found

    @property
    def doubled(self) -> int:
        return self.client.late + self.client._session.malformed

    def close(self) -> None:
        self.client.close()
        self._reader.close()
        self._writer.close()


class Pool:
    """Workers, and the lines to them."""

    def __init__(self, broker: str, folder: Path, poller: selectors.BaseSelector) -> None:
        path = str(folder / "control")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen(POOL * 2)
        command = [sys.executable, str(ZYGOTE), broker, path]
        self._zygote = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._poller = poller
        self._lines: dict[socket.socket, tuple[str, str]] = {}
        self._texts: dict[socket.socket, bytes] = {}
        poller.register(self._listener, selectors.EVENT_READ, self._accept)

    def fork(self, kind: str) -> None:
        self._order(f"fork {kind}")

    def kill(self, line: socket.socket) -> str:
        """Kill a worker; give its kind."""
        pid, kind = self._lines[line]
        self._order(f"kill {pid}")
        self._forget(line)
        return kind

    @staticmethod
    def go_on(line: socket.socket) -> None:
        line.send(b"\n")

    def _order(self, order: str) -> None:
        self._zygote.stdin.write(order + "\n")
        self._zygote.stdin.flush()
        if not self._zygote.stdout.readline():
            raise AssertionError("the process that forks the workers has ended")

    def _accept(self) -> list[tuple[socket.socket, bytes]]:
        line, _ = self._listener.accept()
        self._texts[line] = b""
        self._poller.register(line, selectors.EVENT_READ, lambda: self._read(line))
        return []

    def _read(self, line: socket.socket) -> list[tuple[socket.socket, bytes | None]]:
        """Give which requests a worker has begun; None when it has ended by itself."""
        if line not in self._texts:
            return []  # it was killed a moment ago
        text = line.recv(4096)
        if not text:
            known = self._lines.get(line)
            self._forget(line)
            return [(line, None)] if known else []
        *whole, self._texts[line] = (self._texts[line] + text).split(b"\n")
        if whole and line not in self._lines:
            pid, kind = whole.pop(0).decode().split()
            self._lines[line] = pid, kind
        return [(line, each.removeprefix(b"begun ")) for each in whole]

    def _forget(self, line: socket.socket) -> None:
        self._poller.unregister(line)
        self._lines.pop(line, None)
        self._texts.pop(line, None)
        line.close()

    def close(self) -> None:
        self._zygote.stdin.close()  # it ends all workers, and itself
        try:
            self._zygote.wait(SLOWEST)
        finally:
            self._zygote.kill()
            self._zygote.stdout.close()
            for line in list(self._texts):
                self._forget(line)
            self._listener.close()


class Campaign:
    """So many rounds."""

    def __init__(self, broker: str, seed: int, folder: Path, stack: ExitStack) -> None:
        self.outcome = Outcome()
        self._broker = broker
        self._random = Random(seed)
        self._poller = stack.enter_context(selectors.DefaultSelector())
        self._pool = stack.enter_context(closing(Pool(broker, folder, self._poller)))
        context = stack.enter_context(zmq.Context())
        self._context = context
        self._library = stack.enter_context(closing(Library(broker)))
        dealers = [Dealer(context, broker, kind) for kind in KINDS]
        for dealer in dealers:
            stack.callback(dealer.socket.close)
            self._poller.register(dealer.socket.fileno(), selectors.EVENT_READ, dealer)
        self._poller.register(self._library, selectors.EVENT_READ, self._library)
        self._clients = [*dealers, self._library]
        self._answers: Counter[bytes] = Counter()
        self._open: dict[bytes, str] = {}
        self._victim = b""
        self._deaths: list[str] = []
        """How the workers that begin the victim are to die."""
        self._died_at = 0.0

    def play(self, rounds: int) -> Outcome:
        """Play the rounds, then look at the books."""
        outcome = self.outcome
        started = time.monotonic()
        for _ in range(POOL):
            self._fork()
        for _ in range(rounds):
            outcome.rounds += 1
            self._round()
        self._last_words()
        outcome.seconds = time.monotonic() - started
        outcome.answers = sum(self._answers.values())
        outcome.doubled += self._library.doubled + sum(number - 1 for number in self._answers.values() if number > 1)
        outcome.books = self._books()
        return outcome

    def _fork(self) -> None:
        self._pool.fork(self._random.choice(KINDS))

    def _round(self) -> None:
        """Ask once over each client; the victim's worker dies, perhaps two of them."""
        clients = self._random.sample(self._clients, len(self._clients))
        self._deaths = ["held", "racing"] if self._random.random() < RACING else ["held"]
        for client in clients:
            self.outcome.requests += 1
            body = b"%d" % self.outcome.requests
            self._open[body] = client.kind
            if client is clients[0]:
                self._victim = body
                self.outcome.victims[client.kind] += 1
            client.ask(body)
        self._until_answered()

    def _last_words(self) -> None:
        """One more request over each client: whatever else was on its way has come before its answer."""
        self._victim = b""
        for client in self._clients:
            self.outcome.requests += 1
            body = b"%d" % self.outcome.requests
            self._open[body] = client.kind
            client.ask(body)
        self._until_answered()

    def _until_answered(self) -> None:
        end = time.monotonic() + PATIENCE
        while self._open:
            for client in self._clients:
                self._listen(client)  # a ZeroMQ socket tells of news once, so all are looked at
            if not self._open:
                return
            if time.monotonic() > end:
                self.outcome.lost += len(self._open)
                self.outcome.notes += [
                    f"request {body.decode()} over {kind} is lost" for body, kind in self._open.items()
                ]
                self._open.clear()
                return
            for key, _ in self._poller.select(1.0):
                if callable(key.data):
                    for line, body in key.data():
                        self._begun(line, body)

    def _begun(self, line: socket.socket, body: bytes | None) -> None:
        if body is None:
            self.outcome.sent_away += 1
            self.outcome.notes.append("a worker has ended by itself")
            self._fork()
            return
        self.outcome.begun += 1
        if body != self._victim or not self._deaths:
            self._pool.go_on(line)
            return
        if self._deaths.pop(0) == "racing":
            self.outcome.racing_kills += 1
            self._pool.go_on(line)
            time.sleep(self._random.uniform(0.0, 0.002))  # so that it dies before, while and after it answers
        else:
            self.outcome.kills += 1
        self.outcome.killed[self._pool.kill(line)] += 1
        self._died_at = time.monotonic()
        self._fork()

    def _listen(self, client: Dealer | Library) -> None:
        for answer in client.answers():
            body = answer.removesuffix(b" done")
            self._answers[body] += 1
            if self._open.get(body) == client.kind and answer.endswith(b" done"):
                del self._open[body]
                if body == self._victim:
                    waited = (time.monotonic() - self._died_at) * 1000
                    self.outcome.longest_ms = max(self.outcome.longest_ms, waited)
            elif self._answers[body] == 1:
                self.outcome.wrong += 1
                self.outcome.notes.append(f"{client.kind} got {answer[:100]!r}")

    def _books(self) -> dict[str, int]:
        with self._context.socket(zmq.REQ) as asking:
            asking.linger = 0
            asking.rcvtimeo = int(SLOWEST * 1000)
            asking.connect(self._broker)
            asking.send_multipart([b"MDPC01", b"mmi.stats", SERVICE.encode()])
            return json.loads(asking.recv_multipart()[-1])[SERVICE]


def run(broker: str, rounds: int, seed: int, folder: Path) -> Outcome:
    """Kill so many workers of a broker that runs already; ``folder`` has a short path, for a unix socket."""
    with ExitStack() as stack:
        return Campaign(broker, seed, folder, stack).play(rounds)
