"""How clients come, show that they live, and go: CHECKCONFIG, READY, HEARTBEAT, DISCONNECT.

A worker that is silent is first *unresponsive*: it gets no new task, but what it has in hand is awaited, for it may
just be busy. A message to it then tells whether its connection still stands; only when that is gone, or after a very
long silence, is the worker given up.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping

import attrs

from scale0_core.api import Deadlines, FormatError, Frames, Send, printable
from scale0_core.config.network import ClientConfig, GroupConfig, NetworkConfig
from scale0_core.network.dispatch import Dispatcher
from scale0_core.network.workers import ClientKey, Worker
from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Message, Options
from scale0_core.protocol.states import CLIENT, ClientEvent, ClientState, allowed

MISMATCHES = 3
"""Intervals with heartbeats of an outdated configuration after which a client is disconnected."""

MOST_WORKERS = 100_000
"""Workers that are known at once; those beyond are turned away."""

LONGEST_BEAT = 128
"""Bytes of the options that a heartbeat has as a rule: the time and the version, as every client writes them."""

LARGEST_WINDOW = 10_000

LONGEST_UNASKED = 60.0
"""Seconds of silence after which a worker is asked whatever interval it was granted; one that left would stay long."""

Writer = Callable[[ClientConfig], bytes]


@attrs.frozen
class RunningConfig:
    """The configuration in force, and how it is written for clients."""

    network: NetworkConfig
    version: int
    hash: str
    own_group: GroupConfig
    writers: Mapping[str, Writer]
    client_hash: str = attrs.field(default=attrs.Factory(lambda self: self.hash, takes_self=True))
    """Of what clients are given: the addresses that are really open may change while the version does not."""


@attrs.define
class Claim:
    """A newcomer that wants an identity which an older connection has; it is asked whether it is still there."""

    identity: str
    newcomer: Message
    key: ClientKey
    holder: Worker
    asked: float


class Negotiator:
    """Brings workers to the dispatcher and takes them away."""

    def __init__(
        self,
        running: RunningConfig,
        dispatcher: Dispatcher,
        wall_time: Callable[[], float],
        offence: Callable[[ClientKey, str, float], None] = lambda key, reason, now: None,
    ) -> None:
        self.running = running
        self.crowded = 0
        self._offence = offence
        self._dispatcher = dispatcher
        self._wall_time = wall_time
        self._identities: dict[str, Worker] = {}
        self._checks: Deadlines[ClientKey, Worker] = Deadlines()
        self.claims: dict[str, Claim] = {}
        self._owed: Deadlines[ClientKey, Worker] = Deadlines()

    # --- messages ---------------------------------------------------------------------------------------------------

    def check_config(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """CHECKCONFIG: acknowledge the version that the client has, or give it its configuration."""
        options = message.options
        kind = self._config_type(options)
        if kind and kind not in self.running.writers:
            types = sorted(self.running.writers)
            reason = f"config_type {kind} is not offered; there are {', '.join(types)}"
            return [answer(key, message, wire.ERROR, code=int(Code.CONFIG_TYPE), message=reason, types=types)]
        identity, services = read.identity(options), read.services(options)
        if message.header == wire.BACKEND:
            self._check_identity(key, identity)
            holder = self._identities.get(identity)
            if holder is not None and holder.key != key:
                return self._claim(Claim(identity, message, key, holder, now))
            if self._admit(key, identity, message, now) is None:
                self.crowded += 1
                reason = "this broker has as many workers as it takes"
                return [answer(key, message, wire.ERROR, code=int(Code.UNAVAILABLE), message=reason)]
        elif not services:  # a worker on its way to the backend names its services
            frontend = self._dispatcher.frontends.get(key) or self._dispatcher.remember(key, now)
            if frontend is not None:
                frontend.identity, frontend.last_seen = identity, now
        return [self._config(key, message, identity, services, kind)]

    def _config_type(self, options: Options) -> str:
        """Give the type that is asked for; who names none takes JSON, and goes without where that is not installed."""
        if not self.running.network.config_service:
            return ""
        return read.text(options, "config_type", "JSON" if "JSON" in self.running.writers else "", 64).upper()

    def _check_identity(self, key: ClientKey, identity: str) -> None:
        worker = self._dispatcher.workers.get(key)
        if worker is not None and worker.identity != identity:
            raise MalformedError("a connection has one identity", Code.IDENTITY_IN_USE)
        if identity == self.running.network.identity:
            raise MalformedError("this identity is the broker's own", Code.IDENTITY_IN_USE)

    def _config(self, key: ClientKey, message: Message, identity: str, services: tuple[str, ...], kind: str) -> Send:
        running = self.running
        known = read.version(message.options) == running.version
        if known and read.text(message.options, "config_hash") in ("", running.client_hash):
            return answer(key, message, wire.CONFIGACK, config_version=running.version)
        if not running.network.config_service and message.header != wire.BACKEND:
            return answer(key, message, wire.ERROR, code=503, message="this broker gives no configurations")
        if not kind:  # a worker is let in all the same, and told which version to go by
            return answer(key, message, wire.CONFIGACK, config_version=running.version)
        try:
            text = running.writers[kind](running.network.client_config(identity, services, running.own_group))
        except FormatError as error:  # an identity with a line break, say, for which not every format has a place
            reason = f"the configuration cannot be written as {kind}: {error.reason}"
            return answer(key, message, wire.ERROR, code=int(Code.FAILURE), message=printable(reason))
        options = wire.write_options(config_type=kind, config_version=running.version, config_hash=running.client_hash)
        return (key[0], (*message.envelope, message.header, wire.CONFIG, options, text))

    def _admit(self, key: ClientKey, identity: str, message: Message, now: float) -> Worker | None:
        worker = self._dispatcher.workers.get(key)
        if worker is None:
            if len(self._dispatcher.workers) >= MOST_WORKERS:
                return None
            granted = self.running.network.default_heartbeat_interval / 1000
            worker = self._dispatcher.workers[key] = Worker(key, identity, now, granted)
        worker.happen(ClientEvent.CHECKCONFIG)
        worker.last_seen = now
        worker.mismatches = 0
        worker.delimiter = len(message.envelope) > 1
        self._identities[identity] = worker
        self._watch(worker, now)
        return worker

    def ready(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """READY: the worker offers its services from now on, or offers others than before."""
        worker = self._dispatcher.workers.get(key)
        if worker is None or not allowed(CLIENT, worker.state, ClientEvent.READY):
            return [_negotiate(key, message, "negotiate first: this broker does not know you")]
        options = message.options
        if not worker.responsive:
            self._dispatcher.heard_again(worker)
        names = read.services(options)
        window = read.whole(options, "window", 0, 0, LARGEST_WINDOW)
        asked = read.interval(options)
        worker.heartbeats = read.flag(options, "heartbeat", default=True)
        worker.cancels = read.flag(options, "cancel")
        worker.describe(_metadata(options))
        refusal = self._check_sender(worker, key, message, now)
        if refusal is not None:
            return refusal
        network = self.running.network
        worker.granted = max(asked or 0.0, network.default_heartbeat_interval / 1000)
        services, refused = self._dispatcher.permitted(names)
        for number in [number for number, task in worker.in_hand.items() if task.done]:
            del worker.in_hand[number]
        worker.window = window or None
        worker.limit = window or len(worker.in_hand) + 1
        if [*worker.services] != services:
            self._dispatcher.offer(worker, services, now)
        worker.happen(ClientEvent.READY)
        if len(worker.in_hand) >= worker.limit:
            worker.happen(ClientEvent.FULL)
            worker.leave_queues()
        self._dispatcher.announce(worker)
        work = self._dispatcher.give_work(worker, now)
        self._watch(worker, now)
        accepted = answer(
            key, message, wire.READYOK,
            hbeatinterval=round(worker.granted * 1000), liveness=network.liveness, time=self._wall_time(),
            config_version=self.running.version, refused=refused or None, task_timeout=network.task_timeout,
        )  # fmt: skip
        if not worker.delimiter:
            return [accepted, *work]
        # a REQ socket takes one answer: the task if there is one, else READYOK when a heartbeat interval has passed
        if not work:
            worker.owes_answer = True
            self._owed.set(key, now + min(worker.granted, LONGEST_UNASKED), worker)
        return work

    def heartbeat(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """HEARTBEAT: answered with one, unless something is wrong with the sender."""
        worker = self._dispatcher.workers.get(key)
        if worker is None or worker.state is ClientState.UNKNOWN:
            return [_negotiate(key, message, "negotiate first: this broker does not know you")]
        refusal = self._check_sender(worker, key, message, now)
        if refusal is not None:
            return refusal
        sends = self.sign_of_life(worker, now)
        if self._dispatcher.telling is not None:
            self._dispatcher.telling.beat(worker, now)
        # always there, or the worker would take the answer for a question, answer it, and be answered for ever
        reply_to = message.options.get("time") or 0
        return [
            answer(
                key, message, wire.HEARTBEAT,
                time=self._wall_time(), config_version=self.running.version, reply_to=reply_to,
            ),
            *sends,
        ]  # fmt: skip

    def quick_heartbeat(self, worker: Worker, options: bytes, now: float) -> bytes | None:
        """Answer an ordinary heartbeat with which nothing is wrong; None when it needs a closer look."""
        beat = wire.read_heartbeat(options) if len(options) <= LONGEST_BEAT else None
        running = self.running
        if beat is None or self.claims or not worker.responsive or beat[1] != running.version:
            return None
        sent, version, echo = beat
        wall = self._wall_time()
        skew, limit = sent - wall, running.network.max_clock_skew
        if limit and not -limit <= skew * 1000 <= limit:
            return None
        worker.skew, worker.config_version, worker.mismatches, worker.last_seen = skew, version, 0, now
        if self._dispatcher.telling is not None:
            self._dispatcher.telling.beat(worker, now)
        return wire.HEARTBEAT_ANSWER % (wall, version, echo)

    def leave(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """DISCONNECT: the client goes; a worker's unfinished tasks go back."""
        worker = self._dispatcher.workers.get(key)
        if worker is None:
            return self._dispatcher.frontend_gone(key, now)
        return self.drop(worker, ClientEvent.LEAVE, now)

    def _check_sender(self, worker: Worker, key: ClientKey, message: Message, now: float) -> list[Send] | None:
        """Look at the clock and the version that a worker sends along; None when nothing is wrong."""
        if reason := self.clock_off(worker, message.options):
            return self.refuse(worker, message, Code.CLOCK_OFF, reason, now)
        version = read.version(message.options)
        worker.config_version = version if version is not None else worker.config_version
        if version is None or version == self.running.version:
            worker.mismatches = 0
            return None
        worker.last_seen = now
        if now - worker.mismatched >= worker.granted:
            # those that waited in a worker that stood still come all at once, before it has read the answer to any
            worker.mismatched = now
            worker.mismatches += 1
        if worker.mismatches > MISMATCHES:
            return self.refuse(worker, message, Code.CONFIG_OUTDATED, "the configuration stays outdated", now)
        reason = f"the configuration is now version {self.running.version}"
        return [_negotiate(key, message, reason, Code.CONFIG_OUTDATED)]

    def clock_off(self, worker: Worker, options: Options) -> str:
        """Measure how far a worker's clock is off; say so if it is too far."""
        limit = self.running.network.max_clock_skew / 1000
        sent = read.time(options)
        if sent is None:
            return ""
        worker.skew = sent - self._wall_time()
        if not limit or abs(worker.skew) <= limit:
            return ""
        kind = "ahead" if worker.skew > 0 else "behind, or the message was very late"
        return f"your clock is {abs(worker.skew):.1f} s {kind}"

    def refuse(self, worker: Worker, message: Message, code: Code, reason: str, now: float) -> list[Send]:
        """Disconnect a worker for something that it did wrong."""
        self._offence(worker.key, reason, now)
        told = answer(worker.key, message, wire.DISCONNECTERROR, code=int(code), message=reason)
        return [told, *self.drop(worker, ClientEvent.REFUSED, now)]

    # --- two connections, one identity ------------------------------------------------------------------------------

    def _claim(self, claim: Claim) -> list[Send]:
        """Ask the older connection whether it is still there before the newcomer is answered."""
        earlier = self.claims.get(claim.identity)
        if earlier is not None and earlier.key != claim.key:
            return [answer(claim.key, claim.newcomer, wire.DISCONNECTERROR, code=409, message="identity in use")]
        self.claims[claim.identity] = claim
        if earlier is None:  # who asks again and again must not put the decision off
            self._checks.set(claim.holder.key, claim.asked + self._patience(claim.holder), claim.holder)
        return [self._probe(claim.holder)]

    def _settle_claims(self, worker: Worker, now: float, *, lives: bool) -> list[Send]:
        claim = self.claims.pop(worker.identity, None)
        if claim is None or claim.holder is not worker:
            return []
        if lives:
            return [answer(claim.key, claim.newcomer, wire.DISCONNECTERROR, code=409, message="identity in use")]
        if claim.key in self._dispatcher.workers:
            return []  # it took another identity meanwhile
        return self.check_config(claim.key, claim.newcomer, now)

    # --- liveness ---------------------------------------------------------------------------------------------------

    def sign_of_life(self, worker: Worker, now: float) -> list[Send]:
        """Note that a worker was heard of; one that was unresponsive gets work again."""
        worker.last_seen = now
        sends: list[Send] = []
        if worker.state is ClientState.UNRESPONSIVE:
            self._dispatcher.heard_again(worker)
            worker.happen(ClientEvent.SIGN)
            if len(worker.in_hand) < worker.limit:
                worker.happen(ClientEvent.FREE)
                sends += self._dispatcher.give_work(worker, now)
            self._dispatcher.announce(worker)
        if worker.identity in self.claims:
            sends += self._settle_claims(worker, now, lives=True)
        return sends

    def drop(self, worker: Worker, event: ClientEvent, now: float) -> list[Send]:
        """Forget a worker."""
        self._checks.remove(worker.key)
        self._owed.remove(worker.key)
        if self._identities.get(worker.identity) is worker:
            del self._identities[worker.identity]
        sends = self._dispatcher.lose(worker, event, now)
        return sends + self._settle_claims(worker, now, lives=False)

    def probe_busy(self, sockets: Container[str]) -> list[Send]:
        """Say something to every worker that has tasks: to one whose connection is gone it cannot be sent."""
        workers = self._dispatcher.workers.values()
        return [self._probe(worker) for worker in workers if worker.in_hand and worker.key[0] in sockets]

    def next_deadline(self) -> float | None:
        """Say when a worker's silence is to be looked at, or an answer is owed."""
        checks, owed = self._checks.next(), self._owed.next()
        return owed if checks is None else checks if owed is None else min(checks, owed)

    def on_deadline(self, now: float) -> list[Send]:
        """Look at those who have been silent, and answer the REQ workers that waited in vain."""
        sends: list[Send] = []
        for worker in self._checks.take(now):
            sends += self._check(worker, now)
        for worker in self._owed.take(now):
            if worker.owes_answer:
                sends.append(self._answer_owed(worker))
        return sends

    def _check(self, worker: Worker, now: float) -> list[Send]:
        silent = now - worker.last_seen
        patience = self._patience(worker)
        if silent < patience and worker.identity not in self.claims:
            self._watch(worker, now)
            return [self._probe(worker)] if silent >= LONGEST_UNASKED else []
        if worker.state is ClientState.CHECKED or self._given_up(worker, silent):
            socket, routing_id = worker.key
            told = (socket, _to(worker, routing_id, wire.DISCONNECTERROR, code=408, message="heartbeats missed"))
            return [told, *self.drop(worker, ClientEvent.SILENCE if self._silenced(worker) else ClientEvent.LOST, now)]
        if worker.heartbeats and silent >= patience and worker.state is not ClientState.UNRESPONSIVE:
            worker.leave_queues()
            worker.happen(ClientEvent.SILENCE)
            self._dispatcher.announce(worker)
        self._checks.set(worker.key, now + worker.granted, worker)
        if worker.identity in self.claims and silent >= patience:
            return self.drop(worker, ClientEvent.LOST, now)
        shared = self._dispatcher.share(worker, now) if worker.heartbeats and silent >= patience else []
        return [self._probe(worker), *shared]

    def _given_up(self, worker: Worker, silent: float) -> bool:
        """Tell whether the silence has lasted too long; one without heartbeats may be silent while it works."""
        at_work = not worker.heartbeats and any(not task.done for task in worker.in_hand.values())
        return silent > self.running.network.max_silence / 1000 and not at_work

    def _silenced(self, worker: Worker) -> bool:
        return worker.state in (ClientState.CHECKED, ClientState.UNRESPONSIVE)

    def _answer_owed(self, worker: Worker) -> Send:
        # it can take no task until it speaks again, so it waits in no queue meanwhile
        worker.owes_answer = False
        worker.limit = len(worker.in_hand)
        worker.leave_queues()
        if worker.ready:
            worker.happen(ClientEvent.FULL)
        socket, routing_id = worker.key
        interval = round(worker.granted * 1000)
        options = {"hbeatinterval": interval, "liveness": self.running.network.liveness, "time": self._wall_time()}
        return (socket, _to(worker, routing_id, wire.READYOK, **options, config_version=self.running.version))

    def _patience(self, worker: Worker) -> float:
        return worker.granted * self.running.network.liveness

    def _watch(self, worker: Worker, now: float) -> None:
        due = worker.last_seen + min(self._patience(worker), LONGEST_UNASKED)
        self._checks.set(worker.key, due if due > now else now + LONGEST_UNASKED, worker)

    def _probe(self, worker: Worker) -> Send:
        if worker.owes_answer:
            return self._answer_owed(worker)  # a REQ socket would take any message for the answer
        socket, routing_id = worker.key
        frames = _to(worker, routing_id, wire.HEARTBEAT, time=self._wall_time(), config_version=self.running.version)
        return (socket, frames)


def answer(key: ClientKey, message: Message, command: bytes, /, **options: object) -> Send:
    """Answer a message to where it came from, in its own dialog."""
    return (key[0], (*message.envelope, message.header, command, wire.write_options(options)))


def _to(worker: Worker, routing_id: bytes, command: bytes, /, **options: object) -> Frames:
    envelope: Frames = (routing_id, b"") if worker.delimiter else (routing_id,)
    return (*envelope, wire.BACKEND, command, wire.write_options(options))


def _negotiate(key: ClientKey, message: Message, reason: str, code: Code | None = None) -> Send:
    return answer(key, message, wire.FORCENEGOTIATE, code=None if code is None else int(code), reason=reason)


def _metadata(options: Options) -> dict[str, str]:
    value = options.get("metadata", {})
    if not isinstance(value, dict) or len(value) > 32:
        raise MalformedError("metadata is an object of at most 32 texts")
    if not all(isinstance(entry, str) and len(key) <= 64 and len(entry) <= 256 for key, entry in value.items()):
        raise MalformedError("metadata is an object of short texts")
    return dict(value)
