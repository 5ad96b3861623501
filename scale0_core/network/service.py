"""The broker's own service: the Scale0 protocol on its sockets.

Reads messages, keeps the broker's state, and hands each message to the part that knows: the negotiator (who is there),
the dispatcher (tasks), the management. Tasks and replies, which are most of the traffic, have fast paths.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Protocol

import attrs

from scale0_core.api import (
    Container,
    Effect,
    Endpoint,
    Event,
    FastPath,
    FormatError,
    Frames,
    JobResult,
    Packing,
    Provider,
    Registry,
    Send,
    ServiceStats,
    get_logger,
    printable,
)
from scale0_core.config.changes import Changes
from scale0_core.config.network import ALL, GroupBroker, NetworkConfig
from scale0_core.config.tree import to_tree, tree_hash
from scale0_core.events import CONFIG_CHANGE
from scale0_core.network.commands import Commands
from scale0_core.network.dispatch import HOSTED, Dispatcher, task_error
from scale0_core.network.hosting import Hosting
from scale0_core.network.management import (
    DeferredReply,
    Management,
    Pending,
)
from scale0_core.network.negotiation import Negotiator, RunningConfig, answer
from scale0_core.network.offenders import Offenders
from scale0_core.network.sockets import CLIENTS, IN_PROCESS, NetworkSockets, endpoints
from scale0_core.network.telling import Telling
from scale0_core.network.workers import ClientKey, Worker
from scale0_core.parts.envelopes import body_at
from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, Message
from scale0_core.protocol.states import BROKER, BrokerEvent, BrokerState, ClientEvent, step

LOG = get_logger("network")

DRAIN_SECONDS = 10.0
"""How long a broker that was disabled still passes on replies to tasks it had taken."""

PROBES = (0.02, 0.2, 2.0)
"""Seconds after which lost connections are looked into together; the first may be too early to tell, and a client that
was killed may have left more messages than are read by then."""

LAST_WORDS = 0.05
"""Seconds in which the replies are read that a worker sent before it was gone."""

JUST_NOW = 0.1
"""Seconds since its last message within which a client is not probed."""


@attrs.frozen
class Reloaded:
    """A configuration that was read again: from where, what came into force, and what waits for a restart."""

    running: RunningConfig
    """The same object as before when nothing changed."""
    source: str = ""
    changes: Changes = Changes()


class Store(Protocol):
    """Where the broker keeps what must survive; the functions run as jobs."""

    def save_state(self, state: str) -> None:
        """Keep the broker's state."""

    def reload(self, known: RunningConfig, *, force: bool = False) -> Reloaded:
        """Read the configuration again and keep a new version; refuse a file that is not whole unless forced."""


class BrokerService:
    """Speaks the Scale0 protocol.

    Large, since it is where everything meets: a method for each message, and a part that it hands it to.
    """

    name = "scale0"

    def __init__(
        self,
        running: RunningConfig,
        sockets: NetworkSockets,
        *,
        store: Store,
        registry: Registry,
        services: Container,
        wall_time: Callable[[], float],
        state: BrokerState = BrokerState.ACTIVE,
        remote_sockets: frozenset[str] = frozenset(),
    ) -> None:
        self._state = state
        self.services = services
        self.counts: Counter[str] = Counter()
        self.registry = registry
        self.store, self._wall_time = store, wall_time
        self._remote_sockets = remote_sockets
        self.endpoints: Mapping[str, Endpoint] = endpoints(sockets)
        # workers outlive a broker: the numbers of its tasks must not come again when the next one starts
        first_number = int(wall_time() * 1000) << 20
        self.dispatcher = Dispatcher(running.network, self._worker_changed, first_number)
        self.hosting = Hosting(self.dispatcher, lambda: self.running.network.identity)
        self.negotiator = Negotiator(running, self.dispatcher, wall_time, self._offence)
        self.offenders = Offenders(*_error_client_limits(running.network))
        self.management = Management(running.network.users, Commands(self).table())
        registry.measure_by("worker", self._stats)
        self._addresses: Mapping[str, tuple[str, ...]] = {}
        self._drain_until = -math.inf
        self._probes: list[float] = []
        self._leaving: dict[Worker, float] = {}
        """Workers that cannot be reached, and until when their last replies are taken."""
        self._lost: dict[str, float] = {}
        """When connections of a socket were last lost, by socket, until all who may be concerned were probed."""
        self._started: float | None = None
        self.now = -math.inf
        """When the last job ended."""
        self._handlers = {
            wire.CHECKCONFIG: self.negotiator.check_config,
            wire.READY: self.negotiator.ready,
            wire.HEARTBEAT: self.negotiator.heartbeat,
            wire.DISCONNECT: self.negotiator.leave,
            wire.PING: self._ping,
            wire.TASK: self._task,
            wire.TASKREPLY: self._task_reply,
            wire.CANCEL: self._cancel,
            wire.NEEDBROKER: self._need_broker,
        }
        self._suspend_services()

    @property
    def running(self) -> RunningConfig:
        """The configuration in force."""
        return self.negotiator.running

    @property
    def state(self) -> BrokerState:
        """The state of the broker, which is that of all its services."""
        return self._state

    def set_state(self, state: BrokerState, now: float) -> None:
        """Go to a state, and take all other services along."""
        if state is self._state:
            return
        self._state = state
        self._drain_until = now + DRAIN_SECONDS if state is BrokerState.DISABLED else -math.inf
        if state is BrokerState.ACTIVE:
            self.dispatcher.closed = False
        if state is BrokerState.DISABLED:
            LOG.warning("disabled: nothing but a request to enable is answered")
        else:
            LOG.info("enabled")
        self._tell_change("state", state.value, None, now)
        self._suspend_services()

    def _suspend_services(self) -> None:
        """Have all other services serve their peers only while the broker does."""
        reason = "" if self._state is BrokerState.ACTIVE else self._state.value
        self.services.suspend(reason, self._drain_until, exempt=self.name)

    @property
    def events(self) -> list[Event] | None:
        """What happened since the last turn, or None while nobody observes."""
        telling = self.dispatcher.telling
        return None if telling is None else telling.events

    @events.setter
    def events(self, events: list[Event] | None) -> None:
        dispatcher, group = self.dispatcher, self.running.network.group
        dispatcher.telling = None if events is None else Telling(events, group, dispatcher.packing)

    @property
    def packing(self) -> Packing:
        """What packed events among those mean."""
        return self.dispatcher.packing

    def _tell_change(self, subject: str, outcome: str, count: int | None, now: float) -> None:
        if self.events is not None:
            self.events.append((CONFIG_CHANGE, now, subject, outcome, count))

    # --- the service interface --------------------------------------------------------------------------------------

    @property
    def fast_paths(self) -> Iterable[FastPath]:
        """Heartbeats, and tasks and replies without an empty frame in front: of DEALER sockets on either side."""
        lengths = range(6, wire.MOST_FRAMES + 1)
        return (
            *(FastPath(socket, 4, 2, wire.HEARTBEAT, self._fast_heartbeat) for socket in CLIENTS[1:]),
            *(FastPath(socket, lengths, 2, wire.TASK, self._fast_task) for socket in CLIENTS),
            *(FastPath(socket, lengths, 2, wire.TASKREPLY, self._fast_reply) for socket in CLIENTS),
        )

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take one message."""
        if socket == HOSTED:
            return self._unless_disabled([*self.hosting.receive(frames, now)], now)
        return self._receive_any(socket, frames, now)

    def _fast_task(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        key = (socket, frames[0])
        if frames[1] != wire.FRONTEND or len(frames[4]) > 255 or len(frames[5]) > 255:
            return None
        if self._state is not BrokerState.ACTIVE or key in self.offenders.silenced:
            return None
        try:
            return self.dispatcher.submit(key, frames[:1], frames[3], frames[4:], now)
        except MalformedError as error:
            return self._malformed(key, frames, error, now)

    def _fast_reply(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        key = (socket, frames[0])
        if frames[1] != wire.BACKEND or len(frames[5]) > 255 or self._state is not BrokerState.ACTIVE:
            return None
        worker = self.dispatcher.workers.get(key)
        if worker is None or not worker.responsive or not self._says_nothing_more(frames[3]):
            return None
        worker.last_seen = now
        try:
            return self.dispatcher.reply(key, frames[3], frames[4:], now)
        except MalformedError as error:
            return self._malformed(key, frames, error, now)

    def _says_nothing_more(self, options: bytes) -> bool:
        """Tell whether a reply is a reply and nothing else: no clock to look at, nobody else waits for a sign of it."""
        return not self.negotiator.claims and (not options or (len(options) <= 128 and b'"time"' not in options))

    def _fast_heartbeat(self, socket: str, frames: Frames, now: float) -> Iterable[Effect] | None:
        key = (socket, frames[0])
        worker = self.dispatcher.workers.get(key)
        if worker is None or self._state is not BrokerState.ACTIVE or frames[1] != wire.BACKEND:
            return None
        if key in self.offenders.silenced:
            return None
        options = self.negotiator.quick_heartbeat(worker, frames[3], now)
        return None if options is None else ((socket, (key[1], wire.BACKEND, wire.HEARTBEAT, options)),)

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        tasks, clients = self.dispatcher.next_deadline(), self.negotiator.next_deadline()
        first = clients if tasks is None or (clients is not None and clients < tasks) else tasks
        if not self._probes and not self._leaving:
            return first
        soon = [*self._probes[:1], *islice(self._leaving.values(), 1)]
        return min(soon if first is None else [first, *soon])

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        self.dispatcher.closed = self._silent(now)
        sends: list[Send] = [*self.dispatcher.on_deadline(now), *self.negotiator.on_deadline(now)]
        while self._leaving and next(iter(self._leaving.values())) <= now:
            sends += self._drop_leaving(next(iter(self._leaving)), now)
        if self._probes and self._probes[0] <= now:
            self._probes = [moment for moment in self._probes if moment > now]
            sends += [*self.negotiator.probe_busy(self._lost), *self._probe_frontends(now)]
            if not self._probes:
                self._lost.clear()
        return self._unless_disabled(sends, now)

    def on_peer_lost(self, socket: str, now: float) -> Iterable[Effect]:
        """Ask all that have tasks, soon: a connection was lost, and whose is not known."""
        self._lost[socket] = now
        first, *others = PROBES
        wanted = [] if self._probes else [now + first]
        # one that is due at about that time serves as well: losses in a row are looked into together
        wanted += [
            now + later
            for later in others
            if not any(now + later / 2 <= due <= now + 2 * later for due in self._probes)
        ]
        self._probes = sorted(self._probes + wanted)
        return ()

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Find out whom a message did not reach: a worker, whose tasks go elsewhere, or a frontend."""
        self.counts[f"undelivered {reason}"] += 1
        self.dispatcher.closed = self._silent(now)
        if socket == HOSTED:
            return self._unless_disabled(self.hosting.undelivered(frames, now), now)
        key = (socket, frames[0])
        worker = self.dispatcher.workers.get(key)
        if worker is None:
            if reason != "EAGAIN":
                return self._unless_disabled(self.dispatcher.frontend_gone(key, now), now)
            if socket in ("frontend", IN_PROCESS):
                return self._unless_disabled(self.dispatcher.undelivered_answer(key, frames, now), now)
            return ()
        start = 2 if worker.delimiter else 1
        sends: list[Send] = []
        if frames[start + 1] == wire.TASK:
            sends = self.dispatcher.undelivered_task(bytes(frames[start + 4]), worker, reason, now)
        if reason != "EAGAIN":
            sends += self._unreachable(worker, now)
        return self._unless_disabled(sends, now)

    def _unreachable(self, worker: Worker, now: float) -> list[Send]:
        """Let go of a worker whose connection is gone; for a moment it keeps its tasks: its replies may be unread.

        ZeroMQ takes nothing more for a peer that has left, while messages that it sent before still wait to be read.
        """
        if not worker.in_hand:
            return self._drop_leaving(worker, now)
        if worker not in self._leaving:
            self.dispatcher.withdraw(worker, now)
            self._leaving[worker] = now + LAST_WORDS
        return []

    def _drop_leaving(self, worker: Worker, now: float) -> list[Send]:
        self._leaving.pop(worker, None)
        known = self.dispatcher.workers.get(worker.key) is worker
        return self.negotiator.drop(worker, ClientEvent.LOST, now) if known else []

    def _from_leaving(self, worker: Worker, message: Message, now: float) -> Iterable[Send]:
        """Take what a worker said before it was gone, or says now that it is back under the same name."""
        if message.command == wire.HEARTBEAT:
            return ()
        handler = self._handlers.get(message.command, self._unknown_command)
        if message.command in (wire.CHECKCONFIG, wire.READY):
            return [*self._drop_leaving(worker, now), *handler(worker.key, message, now)]
        sends = handler(worker.key, message, now)
        return sends if worker.in_hand else [*sends, *self._drop_leaving(worker, now)]

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Go on where a job was waited for."""
        self.now, token = now, result.token
        if isinstance(token, Pending):
            if self.state is BrokerState.DISABLED and token.command.name != "enable":
                return self.management.too_late()
            if result.value is False and not token.silent:
                self._offence(token.key, "wrong credentials", now)
            return self.management.checked(token, result.value is True, now)
        if isinstance(token, DeferredReply):
            return self.management.ended(token, result)
        if result.error is not None:
            LOG.error("the broker's records could not be kept", what=str(token), error=repr(result.error))
            return ()
        return ()

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive_any(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        key = (socket, frames[0] if frames else b"")
        if socket == "config":
            return ()  # somebody subscribes or leaves
        if self.offenders.silenced and self.offenders.ignores(key, now):
            self.counts["ignored"] += 1
            return ()
        try:
            message = wire.read_message(frames)
            if message.command == wire.MANAGEMENTREQ:
                return self._management(key, message, now)
            if self.state is not BrokerState.ACTIVE:
                return self._not_active(key, message, now)
            worker = self.dispatcher.workers.get(key)
            if worker is not None and worker in self._leaving:
                return self._from_leaving(worker, message, now)
            handler = self._handlers.get(message.command, self._unknown_command)
            sends = handler(key, message, now)
            return sends if worker is None else [*sends, *self._heard_of(worker, message, now)]
        except MalformedError as error:
            return self._malformed(key, frames, error, now)

    def _heard_of(self, worker: Worker, message: Message, now: float) -> list[Send]:
        """Take a message as a sign of life, if the worker is still there; a heartbeat has been taken as one already."""
        if message.command == wire.HEARTBEAT or self.dispatcher.workers.get(worker.key) is not worker:
            return []
        return self.negotiator.sign_of_life(worker, now)

    def _unknown_command(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        self.counts["unknown command"] += 1
        reason = f"unknown command {printable(message.command)}"
        return [answer(key, message, wire.ERROR, code=int(Code.UNKNOWN_COMMAND), message=reason)]

    def _malformed(self, key: ClientKey, frames: Frames, error: MalformedError, now: float) -> list[Effect]:
        """Tell a sender what was wrong, unless it breaks the rules too often."""
        self.counts[f"malformed {int(error.code)}"] += 1
        if not frames or self.state is BrokerState.DISABLED:
            return []
        self._offence(key, error.reason, now)
        at = body_at(frames)
        envelope = frames[:at]
        header = bytes(frames[at]) if len(frames) > at and wire.is_header(frames[at]) else wire.FRONTEND
        options = wire.write_options(code=int(error.code), message=error.reason)
        if error.code is Code.TOO_LARGE:
            return [(key[0], (*envelope, header, wire.ERROR, options))]
        sends: list[Effect] = [(key[0], (*envelope, header, wire.DISCONNECTERROR, options))]
        worker = self.dispatcher.workers.get(key)
        return [*sends, *self.negotiator.drop(worker, ClientEvent.REFUSED, now)] if worker else sends

    def _offence(self, key: ClientKey, reason: str, now: float) -> None:
        """Count something that a connection did wrong."""
        worker = self.dispatcher.workers.get(key)
        identity = worker.identity if worker else ""
        if self.offenders.note(key, reason, now, identity):
            LOG.warning("client silenced", connection=f"{key[0]}/{key[1].hex()}", identity=identity, reason=reason)

    def _not_active(self, key: ClientKey, message: Message, now: float) -> Iterable[Effect]:
        if self.state is BrokerState.JOINING:
            reason, body = "this broker has no configuration yet", message.body
            if message.command == wire.TASK and len(body) >= 2 and max(len(body[0]), len(body[1])) < 256:
                named = (bytes(body[0]), bytes(body[1]))
                if self.dispatcher.telling is not None:
                    self.dispatcher.telling.refused(named[0], now)
                return [task_error(key, message.envelope, Code.UNAVAILABLE, reason, named)]
            return [answer(key, message, wire.ERROR, code=int(Code.UNAVAILABLE), message=reason)]
        if message.command in (wire.TASKREPLY, wire.CANCEL) and now < self._drain_until and len(message.body) >= 2:
            return self._handlers[message.command](key, message, now)
        self.counts["disabled"] += 1
        return ()

    def _silent(self, now: float) -> bool:
        """Tell whether it keeps to itself: while disabled, once the time is over in which open tasks may end."""
        return self.state is BrokerState.DISABLED and now >= self._drain_until

    def _unless_disabled(self, sends: list[Send], now: float) -> list[Send]:
        if not self._silent(now):
            return sends
        for socket, frames in sends:
            command = frames[1] if socket == HOSTED else frames[2 if frames[1] else 3]
            self.counts[f"unsent while disabled {command.decode()}"] += 1
        return []

    def _probe_frontends(self, now: float) -> list[Send]:
        """Send a PONG to every client that may be the one that was lost: what it has open is cancelled if it was.

        One that was heard of since the loss may be it all the same: what it had sent is read after it is gone.
        """
        options = wire.write_options(time=self._wall_time(), config_version=self.running.version)
        return [
            (frontend.key[0], (frontend.key[1], wire.FRONTEND, wire.PONG, options))
            for frontend in self.dispatcher.frontends.values()
            if frontend.takes_probes
            and (lost := self._lost.get(frontend.key[0])) is not None
            and frontend.last_seen <= max(lost, now - JUST_NOW)
        ]

    def _ping(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        options = wire.write_options(time=self._wall_time(), config_version=self.running.version)
        return [(key[0], (*message.envelope, message.header, wire.PONG, options, *message.body))]

    def _task(self, key: ClientKey, message: Message, now: float) -> Iterable[Send]:
        if len(message.body) < 2:
            raise MalformedError("a TASK has a service, an id and a payload")
        service, task_id = bytes(message.body[0]), bytes(message.body[1])
        if len(service) > read.LONGEST_SERVICE or len(task_id) > wire.LONGEST_IDENTITY:
            raise MalformedError("the service and the id have at most 255 bytes")
        body = (service, task_id, *message.body[2:])
        return self.dispatcher.submit(key, message.envelope, wire.write_options(message.options), body, now)

    def _task_reply(self, key: ClientKey, message: Message, now: float) -> Iterable[Send]:
        if len(message.body) < 2:
            raise MalformedError("a TASKREPLY has a service, an id and a payload")
        body = (bytes(message.body[0]), bytes(message.body[1]), *message.body[2:])
        worker = self.dispatcher.workers.get(key)
        clock_off = self.negotiator.clock_off(worker, message.options) if worker else ""
        if worker is None or not clock_off:
            return self.dispatcher.reply(key, wire.write_options(message.options), body, now)
        worker.limit = 0  # the reply is passed on, and nothing more comes to a worker that is disconnected
        sends = self.dispatcher.reply(key, wire.write_options(message.options), body, now)
        return [*sends, *self.negotiator.refuse(worker, message, Code.CLOCK_OFF, clock_off, now)]

    def _cancel(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """CANCEL: a client does not want a task any more. It is not answered."""
        if len(message.body) != 2:
            raise MalformedError("a CANCEL has a service and an id")
        return self.dispatcher.cancel(key, bytes(message.body[0]), bytes(message.body[1]), now)

    def _need_broker(self, key: ClientKey, message: Message, now: float) -> list[Send]:
        """NEEDBROKER: name other brokers that serve what is wanted, the own group's first."""
        services = read.services(message.options)
        unreachable = set(read.texts(message.options, "unreachable"))
        brokers = [
            {"identity": broker.identity, "group": group, "frontend": broker.frontend, "backend": broker.backend}
            for group, broker in self.known_brokers()
            if broker.identity not in unreachable and _serves(broker, services)
        ]
        if not brokers:
            return [answer(key, message, wire.ERROR, code=503, message="no broker is known that could help")]
        return [answer(key, message, wire.CHANGEBROKER, brokers=brokers, reason="asked for")]

    def known_brokers(self) -> list[tuple[str, GroupBroker]]:
        """Give the brokers of the configuration with their groups, the own group first."""
        running = self.running
        groups = {group.name: group for group in running.network.group_config}
        groups[running.own_group.name] = running.own_group
        order = [running.own_group.name, *running.network.fallback_groups]
        return [(name, broker) for name in order if name in groups for broker in groups[name].brokers]

    # --- configuration ----------------------------------------------------------------------------------------------

    def set_addresses(self, addresses: Mapping[str, tuple[str, ...]]) -> None:
        """Take note of where the sockets are really open, which is what clients are told."""
        if not addresses:
            return
        running, self._addresses = self.running, addresses
        identity = running.network.identity
        written = [broker for broker in running.own_group.brokers if broker.identity == identity]
        known = written[0] if written else GroupBroker(identity=identity)
        # what the operator wrote wins: behind a gateway the broker does not know where it is reached
        own = attrs.evolve(
            known,
            services=running.network.services,
            frontend=known.frontend or next(iter(addresses.get("frontend", ())), ""),
            backend=known.backend or next(iter(addresses.get("backend", ())), ""),
            config_sub_port=known.config_sub_port or next(iter(addresses.get("config", ())), ""),
        )
        others = tuple(broker for broker in running.own_group.brokers if broker.identity != own.identity)
        group = attrs.evolve(running.own_group, brokers=(own, *others))
        given = tree_hash(to_tree(running.network.client_config("", (), group), "client"))
        self.negotiator.running = attrs.evolve(running, own_group=group, client_hash=given)

    def apply(self, running: RunningConfig) -> list[Effect]:
        """Put a new version of the configuration into force, and publish it."""
        if running.version == self.running.version and self.state is not BrokerState.JOINING:
            return []
        self.negotiator.running = running
        self.set_addresses(self._addresses)
        self.dispatcher.configure(running.network)
        hosted = self.hosting.offer(self.now)
        offenders = self.offenders
        offenders.threshold, offenders.window, offenders.penalty = _error_client_limits(running.network)
        self.management.set_users(running.network.users)
        self.set_state(step(BROKER, self.state, BrokerEvent.CONFIGURED), self.now)
        LOG.info("new configuration", version=running.version, hash=running.hash[:12])
        if self.dispatcher.telling is not None:
            self.dispatcher.telling.regroup(running.network.group)
        self._tell_change("config", "applied", running.version, self.now)
        published = self._publication() if "config" in self.endpoints and running.network.config_service else []
        return [*hosted, *published]

    def _publication(self) -> list[Effect]:
        """Announce the configuration, with what every client may know of it: who listens is not known."""
        running = self.running
        network = running.network
        kind = "JSON" if "JSON" in running.writers else next(iter(sorted(running.writers)), None)
        text: Frames = ()
        if kind is not None:
            try:
                text = (running.writers[kind](network.client_config("", (), running.own_group)),)
            except FormatError as error:
                LOG.error("the configuration is published without its text", config_type=kind, reason=error.reason)
                kind = None
        options = wire.write_options(
            config_version=running.version, config_hash=running.hash, config_type=kind, origin=network.identity,
            time=self._wall_time(),
        )  # fmt: skip
        return [("config", (f"CONFIG/{network.group}/".encode(), wire.PEER, wire.CONFIG, options, *text))]

    # --- registry ---------------------------------------------------------------------------------------------------

    def _worker_changed(self, worker: Worker) -> None:
        if worker.hosted:  # the registry has it already, and once
            name = worker.key[1].decode()
            self.registry.set_tasks(name, worker.identity.removesuffix(f".{name}"), tasks=bool(worker.services))
            return
        names = ",".join(service.name.decode("utf-8", "replace") for service in worker.services)
        LOG.debug("worker changed", identity=worker.identity, state=worker.state.value, services=names)
        if worker.lost:
            self.registry.lose(worker.identity)
            return
        self.registry.services_of(
            worker.identity,
            (
                Provider(
                    service=service.name.decode("utf-8", "replace"),
                    provider=worker.identity,
                    kind="worker",
                    state="responsive" if worker.state.value in ("ready", "busy") else worker.state.value,
                    version=worker.metadata.get("version", ""),
                    metadata=worker.metadata,
                    endpoints=tuple(self._addresses.get("frontend", ())),
                )
                for service in worker.services
            ),
        )

    def _stats(self, service: str) -> ServiceStats | None:
        queue = self.dispatcher.services.get(service.encode())
        if queue is None:
            return None
        p50, p95, p99 = (round(value * 1000, 3) for value in queue.service_time.percentiles())
        return ServiceStats(
            requests=queue.requests, errors=queue.errors, last_error=queue.last_error, waiting=queue.waiting(),
            p50_ms=p50, p95_ms=p95, p99_ms=p99,
        )  # fmt: skip

    # --- management -------------------------------------------------------------------------------------------------

    def _management(self, key: ClientKey, message: Message, now: float) -> list[Effect]:
        silent = self.state is BrokerState.DISABLED
        trusted = key[0] == "management"
        if key[0] in self._remote_sockets and not self.running.network.management_insecure:
            self.counts["management refused"] += 1
            reason = "management takes passwords over ipc and loopback only; network.management_insecure allows more"
            return [] if silent else [answer(key, message, wire.MANAGEMENTREP, code=403, message=reason)]
        return self.management.request(key, message, now, trusted=trusted, silent=silent)


def _serves(broker: GroupBroker, services: tuple[str, ...]) -> bool:
    return broker.services == ALL or not services or bool(set(services) & set(broker.services))


def _error_client_limits(network: NetworkConfig) -> tuple[int, float, float]:
    return network.error_client_threshold, network.error_client_window / 1000, network.error_client_penalty / 1000
