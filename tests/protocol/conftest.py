"""Conversations with the broker's own service, on virtual time: ``talk`` makes a broker to talk to."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest

from scale0_core.config.changes import Changes
from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig
from scale0_core.container.container import Container
from scale0_core.container.registry import Registry
from scale0_core.network import management
from scale0_core.network.negotiation import RunningConfig
from scale0_core.network.service import BrokerService, Reloaded
from scale0_core.network.sockets import NetworkSockets
from scale0_core.protocol.states import BrokerState
from scale0_core.testing import Script

WALL = 1_700_000_000.0
SOCKETS = NetworkSockets(
    frontend=("ipc:///tmp/f",), backend=("ipc:///tmp/b",), config=("ipc:///tmp/c",), management=("ipc:///tmp/m",)
)


def as_json(config: ClientConfig) -> bytes:
    return json.dumps(attrs.asdict(config)).encode()


class MemoryStore:
    """Keeps what must survive in lists; ``following`` is what the next reload finds."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.following: NetworkConfig | None = None
        self.error: Exception | None = None
        self.changes = Changes()

    def save_state(self, state: str) -> None:
        if self.error is not None:
            raise self.error
        self.states.append(state)

    def reload(self, known: RunningConfig, *, force: bool = False) -> Reloaded:
        if self.error is not None:
            raise self.error
        return Reloaded(self._found(known), "broker.toml", self.changes)

    def _found(self, known: RunningConfig) -> RunningConfig:
        if self.following is None:
            return known
        network = self.following
        own = next((group for group in network.group_config if group.name == network.group), None)
        return RunningConfig(
            network, known.version + 1, f"hash-{known.version + 1}", own or GroupConfig(name=network.group),
            known.writers,
        )  # fmt: skip


@attrs.frozen
class Said:
    """One message of the broker."""

    socket: str
    to: str
    delimited: bool
    header: str
    command: str
    options: dict[str, Any]
    body: tuple[bytes, ...]

    @property
    def code(self) -> int | None:
        return self.options.get("code")

    @property
    def result(self) -> Any:
        """What a MANAGEMENTREP answers."""
        return json.loads(self.body[0])

    @property
    def number(self) -> str:
        """The number of a task, or its id at the client."""
        return self.body[1].decode("latin-1")


def said(socket: str, frames: Sequence[bytes]) -> Said:
    delimited = frames[1] == b""
    header, command, options, *body = frames[2 if delimited else 1 :]
    read = json.loads(options) if options else {}
    return Said(socket, frames[0].decode("latin-1"), delimited, header.decode(), command.decode(), read, tuple(body))


class Talk(Script):
    """A broker to talk to. Options are given by name, and what it said since the last look is in ``heard()``."""

    def __init__(
        self,
        *,
        state: BrokerState = BrokerState.ACTIVE,
        remote: Sequence[str] = (),
        writers: Mapping[str, Callable[[ClientConfig], bytes]] | None = None,
        sockets: NetworkSockets = SOCKETS,
        job_delay: float = 0.0,
        started: float = 0.0,
        **settings: Any,
    ) -> None:
        network = NetworkConfig(**{"identity": "b1", **settings})
        own = next((group for group in network.group_config if group.name == network.group), None)
        running = RunningConfig(
            network, 1, "hash-1", own or GroupConfig(name=network.group),
            {"JSON": as_json, "XML": lambda config: b"<client/>"} if writers is None else writers,
        )  # fmt: skip
        self.store = MemoryStore()
        self.registry = Registry()
        self.skew = started
        self.services = Container(b"secret")
        self.broker = BrokerService(
            running, sockets, store=self.store, registry=self.registry, wall_time=lambda: self.wall,
            services=self.services, state=state, remote_sockets=frozenset(remote),
        )  # fmt: skip
        self._looked_at = 0
        super().__init__(self.broker, job_delay=job_delay)

    # what the broker says

    def heard(self) -> list[Said]:
        """All that was sent since the last look, but for publications."""
        new = self.sent[self._looked_at :]
        self._looked_at = len(self.sent)
        return [said(socket, frames) for socket, frames in new if socket != "config"]

    def one(self) -> Said:
        """The one message that was sent since the last look."""
        (only,) = self.heard()
        return only

    def commands(self) -> list[tuple[str, str]]:
        return [(message.to, message.command) for message in self.heard()]

    # what others say

    def say(self, socket: str, who: str, word: str, /, *body: str | bytes, req: bool = False, **options: Any) -> None:
        header = {"backend": "S0W01", "frontend": "S0C01", "management": "S0C01"}[socket]
        text = json.dumps(options) if options else ""
        self.feed(socket, who.encode("latin-1"), *([""] if req else []), header, word, text, *body)

    def check(self, who: str, socket: str = "backend", *, req: bool = False, **options: Any) -> Said:
        """Send CHECKCONFIG."""
        self.say(socket, who, "CHECKCONFIG", req=req, **{"identity": who, "config_type": "JSON", **options})
        return self.one()

    def ready(self, who: str, *services: str, req: bool = False, **options: Any) -> list[Said]:
        """Send READY."""
        self.say("backend", who, "READY", req=req, **{"services": list(services), **options})
        return self.heard()

    def join(self, who: str, *services: str, req: bool = False, **options: Any) -> list[Said]:
        """Bring a worker from nothing to READY."""
        assert self.check(who, req=req).command == "CONFIG"
        return self.ready(who, *services, req=req, **options)

    def beat(self, who: str, *, req: bool = False, **options: Any) -> list[Said]:
        self.say("backend", who, "HEARTBEAT", req=req, **options)
        return self.heard()

    def task(self, who: str, service: str, number: str = "1", *payload: bytes, req: bool = False, **options: Any):
        """Send a TASK, and give all that the broker says to it."""
        self.say("frontend", who, "TASK", service, number, *(payload or (b"work",)), req=req, **options)
        return self.heard()

    def given(self, who: str, service: str, number: str = "1", *payload: bytes, **options: Any) -> Said:
        """Send a TASK that goes to a worker at once."""
        (task,) = self.task(who, service, number, *payload, **options)
        assert task.command == "TASK", task
        return task

    def reply(self, who: str, task: Said | str, *payload: bytes, req: bool = False, **options: Any) -> list[Said]:
        number = task if isinstance(task, str) else task.number
        service = "?" if isinstance(task, str) else task.body[0]
        body = (service, number.encode("latin-1"), *(payload or (b"done",)))
        self.say("backend", who, "TASKREPLY", *body, req=req, **options)
        return self.heard()

    def ask(self, command: str, args: Any = None, socket: str = "management", who: str = "m", **options: Any) -> Said:
        """Send a management request, and give the answer; other messages are in ``others``."""
        answers = self.request(command, args, socket, who, **options)
        assert [answer.command for answer in answers] == ["MANAGEMENTREP"]
        return answers[0]

    def request(
        self, command: str, args: Any = None, socket: str = "management", who: str = "m", **options: Any
    ) -> list[Said]:
        more = {} if args is None else {"args": args}
        self.say(socket, who, "MANAGEMENTREQ", command=command, **more, **options)
        heard = self.heard()
        self.others = [message for message in heard if message.command != "MANAGEMENTREP"]
        return [message for message in heard if message.command == "MANAGEMENTREP"]

    # what can be seen from inside

    @property
    def wall(self) -> float:
        agenda = getattr(self, "_agenda", None)  # none yet while the broker is made
        return WALL + self.skew + (agenda.now if agenda else 0.0)

    def state_of(self, identity: str) -> str | None:
        workers = self.broker.dispatcher.workers.values()
        return next((worker.state.value for worker in workers if worker.identity == identity), None)

    def beating(self, seconds: float, *workers: str, every: float = 1.0) -> list[Said]:
        """Let time pass while these workers send heartbeats; gives all but the answers to them."""
        heard = []
        for _ in range(round(seconds / every)):
            self.sleep(every)
            heard += self.heard()
            for worker in workers:
                heard += self.beat(worker)
        return [message for message in heard if message.command != "HEARTBEAT"]


@pytest.fixture
def talk() -> type[Talk]:
    return Talk


@pytest.fixture
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords are kept as they are: scrypt has its own tests."""
    monkeypatch.setattr(management, "password_matches", lambda password, kept: password == kept)
    monkeypatch.setattr(management, "hash_password", lambda password, salt: "")
