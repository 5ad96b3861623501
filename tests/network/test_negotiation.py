"""The negotiator against random conversations: no transition that is not in the table, and tables that agree."""

from __future__ import annotations

import json

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from scale0_core.config.network import GroupConfig, NetworkConfig
from scale0_core.network.dispatch import Dispatcher
from scale0_core.network.negotiation import Negotiator, RunningConfig
from scale0_core.protocol.messages import MalformedError, read_message
from scale0_core.protocol.states import ClientEvent, ClientState
from scale0_core.service import Send

CONNECTIONS = st.integers(0, 3)
IDENTITIES = st.sampled_from(["anna", "bert"])
DEALER = st.booleans()


class NegotiationMachine(RuleBasedStateMachine):
    """Four connections share two identities; they come, beat, fall silent, and are lost."""

    def __init__(self) -> None:
        super().__init__()
        network = NetworkConfig(identity="b1", max_silence=60_000)
        self.now = 100.0
        self.dispatcher = Dispatcher(network)
        running = RunningConfig(network, 1, "hash", GroupConfig(), {"JSON": lambda config: b"{}"})
        self.negotiator = Negotiator(running, self.dispatcher, lambda: 1e9 + self.now)
        self.handlers = {
            "CHECKCONFIG": self.negotiator.check_config,
            "READY": self.negotiator.ready,
            "HEARTBEAT": self.negotiator.heartbeat,
            "DISCONNECT": self.negotiator.leave,
        }

    def tell(self, number: int, command: str, req: bool, **options: object) -> list[Send]:
        key = ("backend", b"%d" % number)
        envelope = (key[1], b"") if req else (key[1],)
        message = read_message((*envelope, b"S0W01", command.encode(), json.dumps(options).encode()))
        try:
            return self.handlers[command](key, message, self.now)
        except MalformedError:
            worker = self.dispatcher.workers.get(key)
            return self.negotiator.drop(worker, ClientEvent.REFUSED, self.now) if worker else []

    @rule(number=CONNECTIONS, identity=IDENTITIES, req=DEALER)
    def check_config(self, number: int, identity: str, req: bool) -> None:
        self.tell(number, "CHECKCONFIG", req, identity=identity)

    @rule(
        number=CONNECTIONS,
        services=st.sets(st.sampled_from("xyz")),
        window=st.integers(0, 2),
        heartbeat=st.booleans(),
        interval=st.integers(0, 9000),
        version=st.sampled_from([None, 1, 2]),
        req=DEALER,
    )
    def ready(self, number, services, window, heartbeat, interval, version, req) -> None:
        self.tell(
            number, "READY", req, services=sorted(services), window=window, heartbeat=heartbeat,
            hbeatinterval=interval, config_version=version,
        )  # fmt: skip

    @rule(number=CONNECTIONS, off=st.sampled_from([None, 0, 100, -100]), version=st.sampled_from([None, 1, 2]))
    def heartbeat(self, number: int, off: float | None, version: int | None) -> None:
        time = None if off is None else 1e9 + self.now + off
        self.tell(number, "HEARTBEAT", req=False, time=time, config_version=version)

    @rule(number=CONNECTIONS)
    def leave(self, number: int) -> None:
        self.tell(number, "DISCONNECT", req=False)

    @rule(number=CONNECTIONS)
    def lost(self, number: int) -> None:
        worker = self.dispatcher.workers.get(("backend", b"%d" % number))
        if worker is not None:
            self.negotiator.drop(worker, ClientEvent.LOST, self.now)

    @rule(service=st.sampled_from("xyz"))
    def task(self, service: str) -> None:
        key = ("frontend", b"c")
        list(self.dispatcher.submit(key, (b"c",), b"", (service.encode(), b"1", b""), self.now))

    @rule(seconds=st.floats(0, 30))
    def wait(self, seconds: float) -> None:
        until = self.now + seconds
        while (due := self.negotiator.next_deadline()) is not None and due <= until:
            self.now = max(due, self.now)
            self.negotiator.on_deadline(self.now)
            following = self.negotiator.next_deadline()
            assert following is None or following > self.now
        self.now = until
        self.dispatcher.on_deadline(self.now)

    @rule()
    def probe(self) -> None:
        asked = [frames[0] for _, frames in self.negotiator.probe_busy({"backend"})]
        assert asked == [key[1] for key, worker in self.dispatcher.workers.items() if worker.in_hand]

    @invariant()
    def one_connection_for_each_identity(self) -> None:
        workers = list(self.dispatcher.workers.values())
        assert len({worker.identity for worker in workers}) == len(workers)
        assert {worker.identity: worker for worker in workers} == self.negotiator._identities

    @invariant()
    def every_worker_is_watched_and_nobody_else(self) -> None:
        assert all(key in self.negotiator._checks for key in self.dispatcher.workers)
        assert len(self.negotiator._checks) == len(self.dispatcher.workers)
        assert all(claim.holder.key in self.dispatcher.workers for claim in self.negotiator.claims.values())

    @invariant()
    def who_waits_is_ready(self) -> None:
        known = (ClientState.CHECKED, ClientState.READY, ClientState.BUSY, ClientState.UNRESPONSIVE)
        for worker in self.dispatcher.workers.values():
            assert worker.state in known
            waits = any(worker in service.idle for service in self.dispatcher.services.values())
            assert waits == (worker.ready and bool(worker.services))

    def teardown(self) -> None:
        self.wait(200.0)
        self.wait(3600.0)
        busy_without_heartbeats = [worker for worker in self.dispatcher.workers.values() if worker.in_hand]
        assert list(self.dispatcher.workers.values()) == busy_without_heartbeats == []
        assert self.negotiator.claims == self.negotiator._identities == {}
        assert self.negotiator.next_deadline() is None


TestNegotiation = NegotiationMachine.TestCase
TestNegotiation.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
