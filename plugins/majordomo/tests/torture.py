"""Malformed messages for Majordomo, in large numbers: to the service itself, and to a real broker.

They are made by the fuzzer of ``scale0_core.testing`` from valid messages of all three dialects and both sides, of
Titanic and of the bridge.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from pathlib import Path
from random import Random

import attrs
import zmq

from scale0_core.api import Effect, Endpoint, Frames, Provider, Registry, SocketKind
from scale0_core.testing import check_service
from scale0_core.testing.fuzz import Fuzzer
from scale0_majordomo import dialects
from scale0_majordomo.service.bridge import Bridge
from scale0_majordomo.service.bridged import BridgedMajordomo
from scale0_majordomo.service.majordomo import SOCKET, MajordomoService
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.settings import MajordomoSettings, ServiceSettings

from .conversation import conserved, nothing_left

KINDS = ("plain", "titanic", "bridged", "bridged and titanic")
SCHEDULING = ("lru", "least", "priority", "sticky")

SHORT = {"heartbeat": 0.05, "busy_timeout": 1.0, "max_services": 200, "max_workers": 200, "titanic_expiry": 5.0}
SHORT_SERVICE = {"expiry": 0.5, "max_queue": 50}

PEERS = (b"\0c1", b"\0c2", b"\0w1", b"\0w2", b"\0w3")
UUID = b"0123456789abcdef0123456789abcdef"


def samples() -> list[tuple[str, Frames]]:
    """Give messages of all dialects and both sides, and of Titanic."""
    client, other, w1, w2, w3 = PEERS
    bodies = [
        (client, b"", b"MDPC01", b"echo", b"x"), (client, b"MDPC02", b"\1", b"echo", b"x", b""),
        (client, b"S0MC01", b"\1", b"id", b"echo", b"", b"x"), (client, b"S0MC01", b"\5", b"id"),
        (other, b"S0MC01", b"\1", b"2", b"echo", b'{"timeout": 50, "priority": 2, "key": "k", "retry": true}', b"x"),
        (other, b"\0\0\0\7", b"", b"MDPC01", b"echo", b"correlated"),
        (w1, b"", b"MDPW01", b"\1", b"echo"), (w1, b"", b"MDPW01", b"\3", b"1", b"", b"y"),
        (w1, b"", b"MDPW01", b"\4"), (w1, b"", b"MDPW01", b"\5"),
        (w2, b"MDPW02", b"\1", b"echo"), (w2, b"MDPW02", b"\3", b"2", b"", b"y"),
        (w2, b"MDPW02", b"\4", b"2", b"", b"y"), (w2, b"MDPW02", b"\5"), (w2, b"MDPW02", b"\6"),
        (w3, b"S0MW01", b"\1", b"echo", b'{"credit": 3}'), (w3, b"S0MW01", b"\3", b"3", b'{"seq":0}', b"y"),
        (w3, b"S0MW01", b"\4", b"3", b"", b"y"), (w3, b"S0MW01", b"\7", b"3", b"500", b"why"),
        (w3, b"S0MW01", b"\5"), (w3, b"S0MW01", b"\6"), (w3, b"S0MW01", b"\x09", b"3"),
        (client, b"", b"MDPC01", b"mmi.service", b"echo"), (client, b"MDPC02", b"\1", b"mmi.stats", b""),
        (client, b"MDPC02", b"\1", b"mmi.workers", b""), (client, b"", b"MDPC01", b"upper", b"x"),
        (client, b"", b"MDPC01", b"titanic.request", b"echo", b"x"), (client, b"", b"MDPC01", b"titanic.reply", UUID),
        (client, b"MDPC02", b"\1", b"titanic.close", UUID),
        (other, b"S0MC01", b"\1", b"3", b"titanic.request", b"", b"echo", b"x"),
    ]  # fmt: skip
    return [(SOCKET, frames) for frames in bodies]


def bridge_samples() -> list[tuple[str, Frames]]:
    """Give what a broker of Scale0 says to the bridge."""
    return [
        ("tasks", (b"S0C01", b"TASKREPLY", b'{"more":true}', b"upper", b"1", b"X")),
        ("tasks", (b"S0C01", b"TASKREPLY", b"", b"upper", b"1", b"X")),
        ("tasks", (b"S0C01", b"ERROR", b'{"code":504,"message":"late"}', b"upper", b"2")),
        ("offers", (b"S0W01", b"CONFIGACK", b'{"config_version": 7}')),
        ("offers", (b"S0W01", b"READYOK", b'{"hbeatinterval": 1000}')),
        ("offers", (b"S0W01", b"TASK", b"", b"echo", b"17", b"x")),
        ("offers", (b"S0W01", b"HEARTBEAT", b"")), ("offers", (b"S0W01", b"FORCENEGOTIATE", b"")),
        ("offers", (b"S0W01", b"DISCONNECTERROR", b"")),
    ]  # fmt: skip


# --- the service itself -----------------------------------------------------------------------------------------------


class Watched(MajordomoService):
    """Looks at each message whether it was counted as it should be."""

    uncounted = 0
    malformed = 0

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        before = self.counts["malformed"]
        effects = list(super().receive(socket, frames, now))
        if socket == SOCKET:
            wrong = dialects.read(frames) is None
            self.malformed += wrong
            self.uncounted += self.counts["malformed"] - before != (wrong or any(map(_is_refused, effects)))
        return effects


class WatchedBridge(Watched, BridgedMajordomo):
    """The same with a bridge."""


def _is_refused(effect: Effect) -> bool:
    """Tell whether a client of our own dialect is told that its request makes no sense."""
    return isinstance(effect, tuple) and effect[1][-2:-1] == (b"400",) and effect[1][-5] == dialects.ERROR


@attrs.frozen
class Torture:
    """What came of it."""

    messages: int
    malformed: int
    uncounted: int


def make(kind: str, folder: Path, number: int) -> Watched:
    """Make a service to be tortured; how it schedules depends on the number."""
    default = ServiceSettings(scheduling=SCHEDULING[number % len(SCHEDULING)], **SHORT_SERVICE)
    settings = MajordomoSettings(default=default, **SHORT)
    store = Store(folder / f"{number}.sqlite") if "titanic" in kind else None
    if "bridged" not in kind:
        return Watched(settings, store=store)
    registry = Registry()
    registry.put(Provider(service="upper", provider="w", kind="worker", state="responsive"))
    bridge = Bridge("here.majordomo", "inproc://frontend", "inproc://backend")
    return WatchedBridge(settings, ("inproc://majordomo",), store, bridge, registry)


def torture(kind: str, messages: int, seed: int, folder: Path) -> Torture:
    """Feed a service; raises when it breaks its contract, or when anything is left of it all in the end."""
    service = make(kind, folder, seed)
    good = samples() + (bridge_samples() if "bridged" in kind else [])
    report = check_service(lambda: service, messages=messages, seed=seed, samples=good)
    conserved(service)
    quieten(service)
    nothing_left(service)
    return Torture(report.messages, service.malformed, service.uncounted)


def quieten(service: MajordomoService) -> None:
    """Let so much time pass that everybody is gone and everything has expired."""
    now = 1e9  # after whatever the check has let pass
    for _ in range(20):
        now += 10.0
        list(service.on_deadline(now))


# --- a real broker ----------------------------------------------------------------------------------------------------

FLOOD_SETTINGS = {**SHORT, "titanic": True, "default": SHORT_SERVICE}
CONNECTIONS = 8
BATCH = 500
PATIENCE_MS = 60_000


class Flood:
    """Connections to a broker over which malformed messages are sent."""

    def __init__(self, address: str, seed: int) -> None:
        endpoint = Endpoint(kind=SocketKind.ROUTER, bind=["inproc://nowhere"])
        self._fuzzer = Fuzzer(Random(seed), {SOCKET: endpoint}, samples())
        self._context = zmq.Context()
        self._sockets = [self._context.socket(zmq.DEALER) for _ in range(CONNECTIONS)]
        for socket in self._sockets:
            socket.linger = 0
            socket.sndtimeo = PATIENCE_MS
            socket.connect(address)
        self.sent = self.answers = 0

    def __enter__(self) -> Flood:
        return self

    def __exit__(self, *_: object) -> None:
        for socket in self._sockets:
            socket.close()
        self._context.term()

    def send(self, messages: int) -> None:
        """Send so many, on all connections in turn; what comes back is read, and each must be answered in the end."""
        end = self.sent + messages
        number = 0
        while self.sent < end:
            socket = self._sockets[number % CONNECTIONS]
            number += 1
            for _ in range(min(BATCH, end - self.sent)):
                frames = self._fuzzer.message(SOCKET)[1:] or (b"",)  # ZeroMQ has no message without a frame
                socket.send_multipart(list(map(bytes, frames)))
                self.sent += 1
            self._ping(socket)

    def _ping(self, socket: zmq.Socket) -> None:
        """Insist on an answer to a good request after all that was none."""
        ident = b"ping %d" % self.sent
        socket.send_multipart([b"S0MC01", b"\1", ident, b"mmi.service", b"", b"x"])
        while True:
            if not socket.poll(PATIENCE_MS):
                raise AssertionError(f"the broker is silent after {self.sent} messages")
            self.answers += 1
            if socket.recv_multipart()[2:3] == [ident]:
                return

    def wait_until_forgotten(self) -> None:
        """Wait until the broker has no service left: all that was sent has expired."""
        socket = self._sockets[0]
        end = time.monotonic() + PATIENCE_MS / 1000
        while True:
            ident = b"stats %d" % time.monotonic_ns()
            socket.send_multipart([b"S0MC01", b"\1", ident, b"mmi.stats", b"", b""])
            while (frames := socket.recv_multipart())[2:3] != [ident]:
                pass
            if json.loads(frames[-1]) == {}:
                return
            assert time.monotonic() < end, f"still there: {frames[-1][:1000]!r}"
            time.sleep(0.1)
