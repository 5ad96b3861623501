"""A worker's life with its broker: finding it, negotiating, heartbeats, tasks, leaving. Without I/O.

The states are a table (``WORKER``), from which the diagram in the docs is drawn. A connection and what was negotiated
on it belong together: when the connection breaks, the tasks in hand are the broker's to give to others, and their
replies are not sent any more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from random import Random
from typing import Any

from scale0_core.client.errors import refused
from scale0_core.client.frontend import LARGEST_FRAME, MOST_PAYLOAD_FRAMES
from scale0_core.client.kit.errors import RemoteError, WorkerError
from scale0_core.client.kit.route import Route
from scale0_core.client.kit.sessions import Answer, Limits, frames_of
from scale0_core.client.storage import JSON, Stored, other_type, read_config
from scale0_core.logs import get_logger, printable
from scale0_core.parts.backoff import Backoff
from scale0_core.parts.timers import Deadlines
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import CODES, Code
from scale0_core.protocol.messages import MalformedError, Message
from scale0_core.protocol.states import allowed, step
from scale0_core.service import Frames

LOG = get_logger("worker")

LINK_PATIENCE = 3.0
"""Seconds for a connection to come about where there is another way to try."""

ANSWER_PATIENCE = 5.0
CLAIM_PATIENCE = 10.0
"""A broker may first have to find out whether an older connection of the same identity is still there."""

HOLD = 30.0
"""Seconds for which a worker with tasks in hand keeps a connection on which the broker is silent: it may be frozen."""

OVERTIME = 0.25
"""Seconds past its deadline after which a worker stops a task by itself. A broker that is there says so before."""

FIRST_REST, LONGEST_REST = 0.1, 5.0
MOST_BREAK_RESTS = 3
"""How often the rest doubles when connections break while the worker is being taken on: up to 0.8 s."""
MOST_NEGOTIATIONS = 5


class WorkerState(str, Enum):
    """How far a worker has come."""

    RESTING = "resting"
    LOCATING = "locating"
    CHECKING = "checking"
    OFFERING = "offering"
    SERVING = "serving"
    LEFT = "left"


class WorkerEvent(str, Enum):
    """What happens to a worker."""

    RESTED = "rested"
    LOCATED = "backend address known"
    CHECKED = "CONFIG or CONFIGACK"
    READYOK = "READYOK"
    NEGOTIATE = "FORCENEGOTIATE"
    LOST = "connection lost, silence or DISCONNECTERROR"
    LEAVE = "drained or stopped"


def _table() -> dict[tuple[WorkerState, WorkerEvent], WorkerState]:
    resting, locating, checking, offering, serving, left = WorkerState
    table = {
        (resting, WorkerEvent.RESTED): locating,
        (locating, WorkerEvent.LOCATED): checking,
        (checking, WorkerEvent.CHECKED): offering,
        (offering, WorkerEvent.READYOK): serving,
        (serving, WorkerEvent.READYOK): serving,
        (offering, WorkerEvent.NEGOTIATE): checking,
        (serving, WorkerEvent.NEGOTIATE): checking,
    }
    for state in (locating, checking, offering, serving):
        table[state, WorkerEvent.LOST] = resting
    for state in (resting, locating, checking, offering, serving):
        table[state, WorkerEvent.LEAVE] = left
    return table


WORKER: Mapping[tuple[WorkerState, WorkerEvent], WorkerState] = _table()
"""The life of a worker, as it sees it itself."""


class Task:
    """A task in a worker's hands; ``alive`` while a reply can still be delivered.

    ``over`` is 0, or the code with which it ends because nobody waits for it any more: its handler is to stop.
    """

    __slots__ = ("alive", "begun", "deadline", "number", "over", "payload", "service")

    def __init__(self, service: bytes, number: bytes, payload: Frames, deadline: float = math.inf) -> None:
        self.service, self.number, self.payload, self.deadline = service, number, payload, deadline
        self.alive = True
        self.begun = False
        self.over = 0

    @property
    def arguments(self) -> Frames:
        """What its handler is called with."""
        return self.payload

    @property
    def about(self) -> dict[str, Any]:
        """What the log says about it."""
        return {"service": self.service, "task": self.number.hex()}


class WorkerSession:
    """A worker's side of its connection; says where to connect, what to send and what to do.

    Large, since the life of a worker is one state machine: connecting, negotiation, heartbeats, tasks, farewell.
    """

    limits = Limits(linger_ms=1000)

    def __init__(
        self, route: Route, *, identity: str, begin: Callable[[Task], None], wall_time: Callable[[], float],
        window: int = 1, interval: float = 2.5, metadata: Mapping[str, str] | None = None, config_type: str = JSON,
        stored: Stored | None = None, random: Random | None = None,
        store: Callable[[Stored], None] = lambda stored: None,
        cancel: Callable[[Task], None] = lambda task: None,
    ) -> None:  # fmt: skip
        """Begin at rest.

        :param begin: has a task done; ``finish`` ends it.
        :param cancel: is told of a task that nobody waits for any more; it is to be finished all the same.
        """
        self.route, self.identity, self.stored = route, identity, stored
        self.state = WorkerState.RESTING
        self.address, self.connection, self.reached = "", 0, ""
        self.linked = self.draining = False
        self.fault: WorkerError | None = None
        self.granted, self.liveness = interval, 3
        self.in_hand: dict[bytes, Task] = {}
        self.dropped = self.malformed = self.late_cancels = 0
        self.out: list[Frames] = []
        self._begin, self._store, self._wall_time = begin, store, wall_time
        self._cancel = cancel
        self._deadlines: Deadlines[bytes, Task] = Deadlines()
        self._task_timeout: int | None = None
        """Milliseconds that a task has whose client named no timeout, as the broker says."""
        self._window, self._interval, self._metadata = window, interval, dict(metadata or {})
        self._config_type, self._random = config_type, random or Random()  # noqa: S311
        self._services: tuple[str, ...] = ()
        self._offered: tuple[str, ...] = ()
        self._until: float | None = None
        self._beat_at = self._heard = self._replied = 0.0
        self._unanswered: float | None = None
        self._readies = self._negotiations = 0
        self._backoff = Backoff(FIRST_REST, LONGEST_REST, self._random)
        self._distrust = self._going = self._keep_place = self._was_serving = False
        if stored is not None:
            route.config = stored.config

    # --- what the user does -----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Begin to look for the broker."""
        self._happen(WorkerEvent.RESTED)
        self._locate(now)

    def offer(self, services: Iterable[str], now: float) -> None:
        """Change the services on offer, at once if the worker serves."""
        self._services = tuple(services)
        if self.state is WorkerState.SERVING and not self.draining:
            self._send_ready()

    def offers(self, services: Iterable[str]) -> bool:
        """Tell whether the broker has taken just these services."""
        return self.state is WorkerState.SERVING and not self._readies and self._offered == tuple(services)

    @staticmethod
    def frames_of(result: Any) -> Frames:
        """Make frames of what a handler returned; any thread may use it."""
        frames = frames_of(result)
        if len(frames) > MOST_PAYLOAD_FRAMES or any(len(frame) > LARGEST_FRAME for frame in frames):
            limit = f"a reply has at most {MOST_PAYLOAD_FRAMES} frames of at most {LARGEST_FRAME} bytes"
            raise RemoteError(f"{limit}; yield larger ones in parts", 413)
        return frames

    def part(self, task: Task, seq: int, frames: Frames, now: float) -> None:
        """Send a part of a reply; they are counted, so that the caller notices when one is missing."""
        self.reply(task, wire.write_options(more=True, seq=seq), frames, now)

    def answer(self, task: Task, answer: Answer, now: float) -> None:
        """Send how a task ends; what a generator returns at its end is not sent."""
        if task.over:
            self.reply(task, wire.write_options(code=int(task.over), message=CODES[Code(task.over)].meaning), (), now)
        elif answer.code:
            self.reply(task, wire.write_options(code=answer.code, message=answer.message), (), now)
        elif answer.parts >= 0:
            self.reply(task, wire.write_options(seq=answer.parts), (), now)
        else:
            self.reply(task, b"", answer.frames, now)
        self.finish(task, now)

    @property
    def ended(self) -> bool:
        """Whether it has left."""
        return self.state is WorkerState.LEFT

    def reply(self, task: Task, options: bytes, frames: Frames, now: float) -> bool:
        """Answer a task; False when nobody waits for it any more. ``more`` in the options leaves the task in hand."""
        if not task.alive:
            self.dropped += 1
            return False
        self.out.append((wire.BACKEND, wire.TASKREPLY, options, task.service, task.number, *frames))
        self._replied = now
        return True

    def finish(self, task: Task, now: float) -> None:
        """Note that the last reply to a task was given."""
        if task.alive:
            task.alive = False
            self.in_hand.pop(task.number, None)
            self._deadlines.remove(task.number)
            self._perhaps_leave(now)

    def drain(self, now: float) -> None:
        """Take no more tasks; leave when those in hand are done."""
        if self.draining or not self._may(WorkerEvent.LEAVE):
            return
        self.draining = True
        if self.state is WorkerState.SERVING:
            self._send_ready()
        elif not self.in_hand:
            self.stop(now)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """Leave immediately."""
        if not self._may(WorkerEvent.LEAVE):
            return
        if self.linked and self.state is not WorkerState.LOCATING:
            self.out.append((wire.BACKEND, wire.DISCONNECT, wire.write_options(reason="leaving")))
        self._abandon()
        self._until = None
        self._happen(WorkerEvent.LEAVE)

    def _perhaps_leave(self, now: float) -> None:
        if self.in_hand:
            return
        if self.draining and not self._readies:
            self.stop(now)
        elif self._going:
            self._go(now)

    # --- the connection ---------------------------------------------------------------------------------------------

    def on_linked(self, now: float) -> None:
        """There is a connection: say who is there."""
        self.linked, self._heard, self._unanswered = True, now, None
        if self.state is WorkerState.LOCATING:
            self._until = now + ANSWER_PATIENCE
            self.route.linked(self.reached)
            if self.route.asking:
                self._need_broker()
            else:
                self._check_config(wire.FRONTEND)
        elif self.state is WorkerState.CHECKING:
            self._until = now + CLAIM_PATIENCE
            self._check_config(wire.BACKEND)

    def on_unlinked(self, now: float) -> None:
        """Note that the connection is gone; start again."""
        if not self.linked:
            return
        self.linked = False
        if self.state is WorkerState.LOCATING:
            self._until = now + LINK_PATIENCE  # the engine connects again by itself
        elif self._may(WorkerEvent.LOST):
            # a broker that died did not refuse this worker: be there when it is up again, which may be for a moment
            failures = min(self._backoff.failures, MOST_BREAK_RESTS)
            self._backoff.failures = 0 if self.state is WorkerState.SERVING else failures
            self._lost(now, self._unreached("the connection broke"))

    def on_nobody(self, reason: str, now: float) -> None:
        """Note that nobody listens at a local address; a worker waits for its broker to be started."""
        self._report(self._unreached(reason))

    def _locate(self, now: float) -> None:
        """Connect to where the configuration is given, or straight to the backend when that is known."""
        here = self.route.here
        if here.backend and not self.route.asking:
            self._connect_backend(now)
        else:
            self._connect(here.frontend, now)

    def _connect(self, address: str, now: float) -> None:
        self.address, self.linked = address, False
        self.connection += 1
        self._until = now + LINK_PATIENCE

    def _connect_backend(self, now: float) -> None:
        address = self.route.backend()
        if not address:
            why = "the broker gave no configuration, and by TCP there is no record of it that says where its backend is"
            self._lost(now, self._unreached(why, "give the address of its backend: Worker(..., backend=ADDRESS)"))
            return
        self._happen(WorkerEvent.LOCATED)
        self._was_serving = False
        self._negotiations = 0
        self._connect(address, now)

    def _lost(self, now: float, error: WorkerError) -> None:
        """Let go of the connection, and try again after a while that grows and is never the same for all."""
        self._abandon()
        if self.draining:
            self._until = None
            self._happen(WorkerEvent.LEAVE)
            return
        self._happen(WorkerEvent.LOST)
        self._report(error)
        self.address, self.linked = "", False
        self.connection += 1
        self._until = now + self._backoff.next()

    def _abandon(self) -> None:
        given_up, self.in_hand = self.in_hand, {}
        for task in given_up.values():
            task.alive = False
            self._give_up(task, Code.CANCELLED)
        self._readies = 0
        self._unanswered = None

    def _elsewhere(self, now: float, error: WorkerError) -> None:
        """Try another broker if one is known, else this one again."""
        self._report(error)
        if self.route.elsewhere():
            LOG.warning("another broker is tried", other=self.route.here.frontend)
            self._locate(now)
        elif self.linked:
            self._lost(now, error)
        else:
            self._until = now + LONGEST_REST  # the engine goes on trying; look again whether others are known

    def _go(self, now: float) -> None:
        """Follow the broker's word to go elsewhere."""
        self._going, self._keep_place = False, True
        self.out.append((wire.BACKEND, wire.DISCONNECT, wire.write_options(reason="changing the broker")))
        self._lost(now, self._unreached("it sends its workers elsewhere"))

    # --- what the broker says ---------------------------------------------------------------------------------------

    def receive(self, frames: Frames, now: float) -> None:
        """Take a message from the broker."""
        self._heard = now
        if self._unanswered is not None:
            self._unanswered = None
            self._backoff.reset()
        try:
            if len(frames) > 4 and frames[1] == wire.TASK:
                self._on_task(frames, now)
            else:
                self._receive_any(wire.read_message(frames, routed=False), now)
        except MalformedError as error:
            self.malformed += 1
            LOG.warning("the broker sent something that cannot be read", broker=self.address, reason=error.reason)

    def _on_task(self, frames: Frames, now: float) -> None:
        if not self._takes_tasks():
            self.dropped += 1
            return
        timeout = wire.read_options(frames[2]).get("timeout", self._task_timeout)
        deadline = now + timeout / 1000 if type(timeout) is int else math.inf
        task = Task(frames[3], frames[4], frames[5:], deadline)
        self.in_hand[task.number] = task
        if deadline != math.inf:
            self._deadlines.set(task.number, deadline + OVERTIME, task)
        self._begin(task)

    def _on_cancel(self, message: Message) -> None:
        if len(message.body) != 2:
            raise MalformedError("a CANCEL has a service and an id")
        task = self.in_hand.get(message.body[1])
        if task is None:
            self.late_cancels += 1  # it crossed the reply on the way
        else:
            self._give_up(task, Code.CANCELLED)

    def _give_up(self, task: Task, code: Code) -> None:
        self._deadlines.remove(task.number)
        if not task.over:
            task.over = code
            self._cancel(task)

    def _takes_tasks(self) -> bool:
        """Tell whether the broker may count on this worker; it does so also while both negotiate anew."""
        checking_again = self.state is WorkerState.CHECKING and self._was_serving
        return checking_again or self.state in (WorkerState.SERVING, WorkerState.OFFERING)

    def _receive_any(self, message: Message, now: float) -> None:
        command, state = message.command, self.state
        if command == wire.HEARTBEAT:
            if "reply_to" not in message.options and state is WorkerState.SERVING:
                self._send_heartbeat()
        elif command in (wire.CONFIG, wire.CONFIGACK):
            self._on_config(message, now)
        elif command == wire.READYOK:
            self._on_readyok(message, now)
        elif command == wire.FORCENEGOTIATE:
            self._on_negotiate(now)
        elif command == wire.DISCONNECTERROR:
            self._on_refused(message, now)
        elif command == wire.ERROR:
            self._on_error(message, now)
        elif command == wire.CHANGEBROKER:
            self._on_change(message, now)
        elif command == wire.CANCEL:
            self._on_cancel(message)

    def _on_config(self, message: Message, now: float) -> None:
        fresh = message.command == wire.CONFIG
        stored = read_config(message) if fresh else self._acknowledged(message)
        if stored is not None and stored is not self.stored:
            self.stored = stored
            self.route.config = stored.config or self.route.config
            self._store(stored)
        if self.state is WorkerState.LOCATING and not self.route.asking:
            self._distrust = False
            self._connect_backend(now)
        elif self._may(WorkerEvent.CHECKED):
            if self._was_serving and not fresh:
                self._abandon()  # the version was right, so the broker did not know us: it has no tasks of ours either
            self._happen(WorkerEvent.CHECKED)
            self._until = now + ANSWER_PATIENCE
            self._send_ready()

    def _acknowledged(self, message: Message) -> Stored | None:
        version = message.options.get("config_version")
        if self.stored is not None and self.stored.version == version:
            return self.stored
        return Stored(version) if isinstance(version, int | str) else None

    def _on_readyok(self, message: Message, now: float) -> None:
        if not self._may(WorkerEvent.READYOK):
            return
        granted, liveness = message.options.get("hbeatinterval"), message.options.get("liveness")
        self._task_timeout = message.options.get("task_timeout")
        if type(granted) is int and granted > 0:
            self.granted = granted / 1000
        if type(liveness) is int and liveness > 0:
            self.liveness = liveness
        began = self.state is WorkerState.OFFERING
        self._happen(WorkerEvent.READYOK)
        self._readies = max(self._readies - 1, 0)
        self._negotiations, self._until = 0, None
        self.route.arrived()
        if began:
            self._beat_at = now + self.granted
        self._clear_fault(message)
        if self._offered != self._wanted():
            self._send_ready()
        self._perhaps_leave(now)

    def _clear_fault(self, message: Message) -> None:
        refused_services = message.options.get("refused")
        if isinstance(refused_services, list) and refused_services:
            names = ", ".join(printable(name) for name in refused_services)
            self._report(refused(self.address, 404, f"these services are not managed here: {names}"))
        else:
            self.fault = None

    def _on_negotiate(self, now: float) -> None:
        if not self._may(WorkerEvent.NEGOTIATE):
            return  # under way already
        self._negotiations += 1
        if self._negotiations > MOST_NEGOTIATIONS:
            self._lost(now, self._unreached("it asks for negotiation again and again"))
            return
        self._was_serving, self._readies = True, 0
        self._happen(WorkerEvent.NEGOTIATE)
        self._until = now + CLAIM_PATIENCE
        self._check_config(wire.BACKEND)

    def _on_refused(self, message: Message, now: float) -> None:
        if not self._may(WorkerEvent.LOST):
            return
        code, text = message.options.get("code"), message.options.get("message", "")
        self._backoff.failures = max(self._backoff.failures, 3)
        self._lost(now, refused(self.address, code if type(code) is int else 0, str(text)))

    def _on_error(self, message: Message, now: float) -> None:
        code, text = message.options.get("code"), str(message.options.get("message", ""))
        if code == 415:
            kind = other_type(message.options.get("types"))
            if kind != self._config_type and self.state in (WorkerState.LOCATING, WorkerState.CHECKING):
                self._config_type = kind
                self._check_config(wire.FRONTEND if self.state is WorkerState.LOCATING else wire.BACKEND)
                return
        error = refused(self.address, code if type(code) is int else 0, text)
        if self.state is WorkerState.LOCATING:
            if self.route.asking:
                self._elsewhere(now, error)
            elif self.route.backend():
                self._connect_backend(now)  # it gives no configurations, which need not mean that it takes no workers
            else:
                self._lost(now, error)
        elif self.state in (WorkerState.CHECKING, WorkerState.OFFERING):
            self._lost(now, error)
        else:
            LOG.warning("the broker objects", broker=self.address, code=code, message=text)

    def _on_change(self, message: Message, now: float) -> None:
        if self.state is WorkerState.LOCATING:
            if self.route.sent_to(message.options) or not self.route.here.backend:
                self._locate(now)
            else:
                self._connect_backend(now)
        elif self.state is WorkerState.SERVING and self.route.sent_to(message.options):
            self._going = True
            self._perhaps_leave(now)

    # --- what is sent -----------------------------------------------------------------------------------------------

    def _check_config(self, header: bytes) -> None:
        known = self.stored if self.stored and not self._distrust else None
        options = wire.write_options(
            identity=self.identity, services=list(self._services), config_type=self._config_type or None,
            config_version=known.version if known else None, config_hash=known.hash or None if known else None,
        )  # fmt: skip
        self.out.append((header, wire.CHECKCONFIG, options))

    def _need_broker(self) -> None:
        options = wire.write_options(
            identity=self.identity, services=list(self._services), group=self.route.here.group,
            unreachable=self.route.unreachable,
        )  # fmt: skip
        self.out.append((wire.FRONTEND, wire.NEEDBROKER, options))

    def _wanted(self) -> tuple[str, ...]:
        return () if self.draining else self._services

    def _send_ready(self) -> None:
        self._offered = self._wanted()
        options = wire.write_options(
            services=list(self._offered), heartbeat=True, cancel=True, hbeatinterval=round(self._interval * 1000),
            time=self._wall_time(), config_version=self.stored.version if self.stored else None, window=self._window,
            metadata=self._metadata,
        )  # fmt: skip
        self._readies += 1
        self.out.append((wire.BACKEND, wire.READY, options))

    def _send_heartbeat(self) -> None:
        version = self.stored.version if self.stored else None
        options = wire.write_options(time=self._wall_time(), config_version=version)
        self.out.append((wire.BACKEND, wire.HEARTBEAT, options))

    # --- time -------------------------------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        ends, dialog = self._deadlines.next(), self._dialog_due()
        return dialog if ends is None else ends if dialog is None else min(ends, dialog)

    def _dialog_due(self) -> float | None:
        if self.state is not WorkerState.SERVING:
            return self._until
        silence = self._silent_at()
        return self._beat_at if silence is None else min(self._beat_at, silence)

    def on_deadline(self, now: float) -> None:
        """Do what is due: a heartbeat, another try, or giving up on a task or on a broker that is silent."""
        for task in self._deadlines.take(now):
            self._give_up(task, Code.DEADLINE)
        if self.state is WorkerState.SERVING:
            silence = self._silent_at()
            if silence is not None and silence <= now:
                self._lost(now, self._unreached(f"it has been silent for {now - self._heard:.1f} s"))
            elif self._beat_at <= now:
                self._send_heartbeat()
                self._beat_at = now + self.granted
                self._unanswered = now if self._unanswered is None else self._unanswered
        elif self._until is not None and self._until <= now:
            self._until = None
            self._waited_in_vain(now)

    def _silent_at(self) -> float | None:
        """Say when silence is too long; counted from the first heartbeat unanswered, so own stalls do not matter."""
        if self._unanswered is None:
            return None
        owing = bool(self.in_hand) or self._replied > self._heard
        patience = self.liveness * self.granted
        return self._unanswered + (max(HOLD, patience) if owing else patience)

    def _waited_in_vain(self, now: float) -> None:
        if self.state is WorkerState.RESTING:
            if not self._keep_place:
                self.route.back()
            self._keep_place = False
            self.start(now)
        elif self.state is WorkerState.LOCATING:
            why = "it does not answer" if self.linked else "there is no connection"
            self._elsewhere(now, self._unreached(why))
        elif self.state is WorkerState.CHECKING and not self.linked:
            self._distrust = True  # perhaps what is stored is no longer true
            self._lost(now, self._unreached("there is no connection"))
        elif self.state in (WorkerState.CHECKING, WorkerState.OFFERING):
            self._lost(now, self._unreached("it does not answer"))

    # --- small things -----------------------------------------------------------------------------------------------

    def _may(self, event: WorkerEvent) -> bool:
        return allowed(WORKER, self.state, event)

    def _happen(self, event: WorkerEvent) -> None:
        self.state = step(WORKER, self.state, event)

    def _report(self, error: WorkerError) -> None:
        if str(error) != str(self.fault):
            LOG.warning(error.problem.what, why=error.problem.why, remedy=error.problem.remedy)
        self.fault = error

    def _unreached(self, why: str, remedy: str = "is the broker running, and is the address right?") -> WorkerError:
        address = self.address or self.route.here.frontend
        return WorkerError(f"no broker at {address}", why, "the worker tries again and again", remedy)
