"""The binary dialect in the plainest way, every rule once, nothing fast; and how to talk to the real one in tests.

The model notes what happens, and then looks at all clients again and again until nobody has anything to do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from math import inf

from scale0_zpipes.service import binary
from scale0_zpipes.service.streams import Reply, Streams

REQUESTS = {1: "INPUT", 4: "OUTPUT", 7: "READ", 12: "WRITE", 16: "CLOSE", 19: "PING"}
REPLIES = {
    "INPUT_OK": "02", "INPUT_FAILED": "0300", "OUTPUT_OK": "05", "OUTPUT_FAILED": "0600", "READ_END": "09",
    "READ_TIMEOUT": "0a", "READ_FAILED": "0b00", "WRITE_OK": "0d", "WRITE_TIMEOUT": "0e", "WRITE_FAILED": "0f00",
    "CLOSE_OK": "11", "PING_OK": "14", "INVALID": "15",
}  # fmt: skip


class Request:
    """A request as it was read, with what it asks for."""

    def __init__(self, kind: str, name: bytes = b"", chunk: bytes = b"", size: int = 0, timeout: int = 0) -> None:
        self.kind, self.name, self.chunk, self.size, self.timeout = kind, name, chunk, size, timeout


def parse(frame: bytes) -> Request | None:
    """Read a request byte by byte."""
    if len(frame) < 3 or frame[0] != 0xAA or frame[1] != 0xA0 or frame[2] not in REQUESTS:
        return None
    kind, body = REQUESTS[frame[2]], frame[3:]
    number = int.from_bytes
    if kind in ("CLOSE", "PING"):
        return Request(kind)
    if kind in ("INPUT", "OUTPUT"):
        return Request(kind, name=body[1 : 1 + body[0]]) if body and len(body) > body[0] else None
    if kind == "READ":
        return Request(kind, size=number(body[:4], "big"), timeout=number(body[4:8], "big")) if len(body) >= 8 else None
    size = number(body[:4], "big")
    if len(body) < 8 + size:
        return None
    return Request(kind, chunk=body[4 : 4 + size], timeout=number(body[4 + size : 8 + size], "big"))


class Pipe:
    """The two ends of a name."""

    def __init__(self) -> None:
        self.reader: Known | None = None
        self.writer: Known | None = None


class Known:
    """A connection; its role is empty as long as it has no pipe open."""

    def __init__(self, peer: bytes) -> None:
        self.peer = peer
        self.role = ""
        self.name = b""
        self.pipe: Pipe | None = None
        self.data = b""
        self.pending: Request | None = None
        self.due = inf
        self.heard = 0.0
        self.waiting: list[Request] = []


class Model:
    """What a server should do."""

    def __init__(self, timeout: float, max_buffered: int, max_mailbox: int) -> None:
        self.timeout, self.max_buffered, self.max_mailbox = timeout, max_buffered, max_mailbox
        self.clients: dict[bytes, Known] = {}
        self.pipes: dict[bytes, Pipe] = {}
        self.replies: dict[bytes, list[bytes]] = defaultdict(list)
        self.turns: list[Known] = []

    def receive(self, peer: bytes, frame: bytes, now: float) -> None:
        """Take a message."""
        client = self.clients.setdefault(peer, Known(peer))
        client.heard = now
        request = parse(frame)
        if request is None:
            self.reply(client, "INVALID")
        elif client.pending is not None and request.kind not in ("CLOSE", "PING"):
            size = sum(len(each.chunk) for each in client.waiting)
            if len(client.waiting) >= self.max_mailbox or (request.chunk and size >= self.max_buffered):
                self.reply(client, "INVALID")
                self.leave(client)
                client.waiting.clear()
            else:
                client.waiting.append(request)
        else:
            self.turns.append(client)
            self.do(client, request, now)
        self.run(now)

    def gone(self, peer: bytes, now: float) -> None:
        """Take note that a connection is lost."""
        client = self.clients.pop(peer, None)
        if client is not None:
            self.leave(client)
        self.run(now)

    def on_deadline(self, now: float) -> None:
        """Do what the time asks for, the earliest first."""
        while True:
            times = [(client.due, 0, client) for client in self.clients.values() if client.pending is not None]
            times += [(client.heard + self.timeout, 1, client) for client in self.clients.values() if client.role]
            when, silent, client = min(times, key=lambda each: each[:2], default=(inf, 0, Known(b"")))
            if when > now:
                return
            if silent:
                del self.clients[client.peer]
                self.leave(client)
            else:
                self.reply(client, "READ_TIMEOUT" if client.role == "reader" else "WRITE_TIMEOUT")
                client.pending = None
                self.turns.append(client)
            self.run(now)

    def run(self, now: float) -> None:
        """Go on until nobody has anything to do; who was answered last has the first turn."""
        while True:
            answered = next((client for client in self.clients.values() if self.answer(client)), None)
            if answered is not None:
                answered.pending = None
                self.turns.append(answered)
                continue
            while self.turns and (self.turns[-1].pending is not None or not self.turns[-1].waiting):
                self.turns.pop()
            if not self.turns:
                return
            self.do(self.turns[-1], self.turns[-1].waiting.pop(0), now)

    def answer(self, client: Known) -> bool:
        """Answer what is pending, if that is possible."""
        if client.pending is None:
            return False
        return self.try_write(client) if client.role == "writer" else self.try_read(client)

    def do(self, client: Known, request: Request, now: float) -> None:
        """Do what a client asks for that is not waiting."""
        kind = request.kind
        if kind == "PING":
            self.reply(client, "PING_OK")
        elif not client.role and kind in ("INPUT", "OUTPUT"):
            self.open(client, request)
        elif client.role and kind == "CLOSE":
            if client.pending is not None:
                self.reply(client, "READ_FAILED" if client.role == "reader" else "WRITE_FAILED")
            self.leave(client)
            self.reply(client, "CLOSE_OK")
        elif (client.role, kind) in (("reader", "READ"), ("writer", "WRITE")):
            client.pending = request
            client.due = now + request.timeout / 1000 if request.timeout else inf
        else:
            self.reply(client, "INVALID")
            if (client.role, kind) not in (("reader", "WRITE"), ("writer", "READ")):
                self.leave(client)
                client.waiting.clear()

    def open(self, client: Known, request: Request) -> None:
        """Put a client to one end of a pipe, if that is free."""
        pipe = self.pipes.setdefault(request.name, Pipe())
        role = "reader" if request.kind == "INPUT" else "writer"
        if getattr(pipe, role) is not None:
            self.reply(client, f"{request.kind}_FAILED")
            return
        setattr(pipe, role, client)
        client.role, client.name, client.pipe, client.data = role, request.name, pipe, b""
        self.reply(client, f"{request.kind}_OK")

    def leave(self, client: Known) -> None:
        """Take a client from its pipe, which ends."""
        if client.pipe is not None:
            del self.pipes[client.name]
            for end in (client.pipe.reader, client.pipe.writer):
                if end is not None:
                    end.pipe = None
        client.role, client.pipe, client.data, client.pending = "", None, b"", None

    def try_write(self, client: Known) -> bool:
        """Hand over the chunk that is pending, if that is possible."""
        assert client.pending is not None
        if client.pipe is None:
            self.reply(client, "WRITE_FAILED")
            return True
        reader = client.pipe.reader
        if reader is None or len(reader.data) >= self.max_buffered:
            return False
        reader.data += client.pending.chunk
        self.reply(client, "WRITE_OK")
        return True

    def try_read(self, client: Known) -> bool:
        """Answer the READ that is pending, if that is possible."""
        assert client.pending is not None
        size = client.pending.size
        if not size:
            self.reply(client, "READ_END")
        elif len(client.data) >= size or (client.pipe is None and client.data):
            taken, client.data = client.data[:size], client.data[size:]
            self.replies[client.peer].append(b"\xaa\xa0\x08" + len(taken).to_bytes(4, "big") + taken)
        elif client.pipe is None:
            self.reply(client, "READ_END")
        elif len(client.data) >= self.max_buffered:
            self.reply(client, "FULL")
        else:
            return False
        return True

    def reply(self, client: Known, kind: str) -> None:
        """Note a reply."""
        reason = b"more than is kept for one reader; ask for less"
        full = b"\xaa\xa0\x0b" + bytes([len(reason)]) + reason
        self.replies[client.peer].append(full if kind == "FULL" else bytes.fromhex("aaa0" + REPLIES[kind]))


class Broker:
    """The real thing, with a clock and an inbox for each client."""

    def __init__(self, **settings: float) -> None:
        self.streams = Streams(**settings)  # type: ignore[arg-type]
        self.now = 100.0
        self.inboxes: dict[bytes, list[bytes]] = {}
        self._peers = count(1)

    def client(self) -> Client:
        """Make a connection."""
        return Client(self, b"peer %d" % next(self._peers))

    def reader(self, name: bytes = b"pipe") -> Client:
        """Make a connection that reads a pipe."""
        return self.client().input(name)

    def writer(self, name: bytes = b"pipe") -> Client:
        """Make a connection that writes to a pipe."""
        return self.client().output(name)

    def deliver(self, replies: Iterable[Reply]) -> None:
        """Put replies into the inboxes."""
        for _, (peer, frame) in replies:
            self.inboxes.setdefault(peer, []).append(frame)

    def sleep(self, seconds: float) -> None:
        """Let time pass, with every deadline at its moment."""
        end = self.now + seconds
        while (due := self.streams.next_deadline()) is not None and due <= end:
            self.now = max(due, self.now)
            self.deliver(self.streams.on_deadline(self.now))
            following = self.streams.next_deadline()
            assert following is None or following > self.now
        self.now = end


class Client:
    """One connection to it."""

    def __init__(self, broker: Broker, peer: bytes) -> None:
        self.broker, self.peer = broker, peer
        self.inbox = broker.inboxes.setdefault(peer, [])

    def send(self, *frames: bytes) -> None:
        """Send messages."""
        for frame in frames:
            self.broker.deliver(self.broker.streams.receive(self.peer, frame, self.broker.now))

    def expect(self, *frames: bytes) -> Client:
        """Insist that this has arrived, and nothing else."""
        assert self.inbox == list(frames)
        self.inbox.clear()
        return self

    def ask(self, request: bytes, *replies: bytes) -> Client:
        """Send a request, and insist on the replies."""
        self.expect()
        self.send(request)
        return self.expect(*replies)

    def input(self, name: bytes, reply: bytes = binary.INPUT_OK) -> Client:
        """Open a pipe for reading."""
        return self.ask(binary.with_string(binary.INPUT, name), reply)

    def output(self, name: bytes, reply: bytes = binary.OUTPUT_OK) -> Client:
        """Open a pipe for writing."""
        return self.ask(binary.with_string(binary.OUTPUT, name), reply)

    def write(self, chunk: bytes, *replies: bytes, timeout: int = 0) -> Client:
        """Write; it is done if nothing else is expected."""
        return self.ask(binary.write(chunk, timeout), *(replies or (binary.WRITE_OK,)))

    def read(self, size: int, *replies: bytes, timeout: int = 0) -> Client:
        """Read; expected are data, or other replies than READ_OK."""
        return self.ask(binary.read(size, timeout), *(each if each in binary.NAMES else data(each) for each in replies))

    def close(self, *replies: bytes) -> Client:
        """Close; it is done if nothing else is expected."""
        return self.ask(binary.CLOSE, *(replies or (binary.CLOSE_OK,)))


def data(chunk: bytes) -> bytes:
    """Give the reply that brings data."""
    return binary.read_ok(chunk)


def read_to_the_end(client: Client) -> bytes:
    """Read as python-zbroker does: again and again, until there is nothing more."""
    found = b""
    while True:
        client.send(binary.read(4096))
        message = binary.decode(client.inbox.pop())
        assert message is not None
        if message.kind == binary.READ_END:
            return found
        found += message.body
