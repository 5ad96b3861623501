"""Majordomo with a bridge: services of Scale0 for MDP clients, services of MDP workers for Scale0 clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scale0_core.api import Change, Effect, Frames, Provider, Registry, WorkerCancel, WorkerTask
from scale0_majordomo import dialects
from scale0_majordomo.dialects import Dialect, Said, Terms, Word
from scale0_majordomo.service.bridge import TASKS, TIMED_OUT, Answer, Bridge, fits
from scale0_majordomo.service.desk import Inside, Outcome, Parts, Request, Worker
from scale0_majordomo.service.majordomo import NO_TERMS, SOCKET, MajordomoService
from scale0_majordomo.service.titanic_store import Store
from scale0_majordomo.settings import MajordomoSettings

MOST_ABROAD = 100_000
NOTHING: Frames = (b"",)
"""The body of a reply without one: in MDP each has at least one frame, and stock clients insist."""
EMPTY = b'{"empty":true}'
PAUSE = 0.05
"""Seconds until the broker is told of services that came or went: several at once are one message."""


class Abroad(NamedTuple):
    """A request that Scale0 has: whom its reply is for, a client or, ``inside``, Titanic."""

    service: bytes
    dialect: Dialect
    back: Frames
    parts: Parts
    open_as: Frames = ()
    """Envelope and id, where the client gave it one: by these it may be cancelled."""
    inside: Inside | None = None


class BridgedMajordomo(MajordomoService):
    """The same service, which is also a frontend and a worker of the Scale0 protocol."""

    def __init__(
        self, settings: MajordomoSettings, bind: Iterable[str], store: Store | None, bridge: Bridge, registry: Registry,
        *, group: str = "",
    ) -> None:  # fmt: skip
        super().__init__(settings, bind, store, group=group)
        self.endpoints = {**self.endpoints, **bridge.endpoints}
        self._bridge = bridge
        self._registry = registry
        self._abroad: dict[bytes, Abroad] = {}
        self._abroad_as: dict[Frames, bytes] = {}
        self._tasks: dict[bytes, Request] = {}
        """Tasks of Scale0 that workers of MDP have, by their numbers."""
        self._elsewhere: dict[bytes, set[tuple[str, str, str]]] = {}
        """Who of Scale0 takes tasks for a service; the bridge itself does not count."""
        self._offer_due = float("inf")
        self._claims: dict[bytes, float] = {}
        """Names that workers of MDP have served, and until when nobody else does, now that these are gone."""
        self._found: set[bytes] = set()
        """Services that somebody of Scale0 offers now, and for which requests wait here."""
        for provider in registry.providers():
            self._note(provider, is_there=True)
        registry.watch(self._registry_changed)

    def _receive_elsewhere(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take a message of the Scale0 protocol."""
        if socket == TASKS:
            answer = self._bridge.answer(frames)
            return self._came_back(answer, now) if answer is not None else ()
        sends, task = self._bridge.worker.receive(frames, now)
        if isinstance(task, WorkerCancel):
            return [*sends, *self._cancel_task(task.number, now)]
        return [*sends, *self._carry_out(task, now)] if task is not None else sends

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        if self._found:
            return self._now
        due = min(self._bridge.worker.due, self._offer_due, next(iter(self._claims.values()), float("inf")))
        own = super().next_deadline()
        if own is not None and own < due:
            return own
        return None if due == float("inf") else due

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        while self._claims and (first := next(iter(self._claims.items())))[1] <= now:
            del self._claims[first[0]]
            self._found.add(first[0])
        effects = [*super().on_deadline(now), *self._send_waiting(now)]
        if self._offer_due <= now:
            self._offer_due = float("inf")
            offered = [name for name, service in self._services.items() if service.workers]
            effects += self._bridge.offer(offered, now)
        if self._bridge.worker.due <= now:
            effects += self._bridge.worker.on_deadline(now)
        return effects

    def on_undelivered(self, socket: str, frames: Frames, reason: str, now: float) -> Iterable[Effect]:
        """Note that a message could not be sent; to the broker itself, it is said again in time."""
        if socket == SOCKET:
            return super().on_undelivered(socket, frames, reason, now)
        if socket == TASKS and len(frames) > 4:
            return self._came_back(Answer(bytes(frames[4]), (), code=503, reason="the broker takes no tasks"), now)
        self._bridge.worker.undelivered(frames, now)
        return ()

    def finishes(self, socket: str, frames: Frames) -> bool:
        """Return whether a message comes from a worker, which may have requests that were taken before."""
        return frames[0] in self._workers

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Take leave of everybody."""
        return [*super().on_stop(now), *self._bridge.worker.leave()]

    # --- requests of MDP clients for services of Scale0 ---------------------------------------------------------------

    def _client_said(self, said: Said, now: float) -> Iterable[Effect]:
        if said.word is Word.CANCEL and (number := self._abroad_as.get((*said.envelope, said.ident))) is not None:
            told = self._bridge.cancel(self._abroad[number].service, number)
            return [told, *self._came_back(Answer(number, (), code=410, reason="cancelled"), now)]
        if said.word is not Word.REQUEST or not self._goes_abroad(said.service):
            return super()._client_said(said, now)
        self.counts["requests"] += 1
        back = dialects.final_head(said.dialect, said.envelope, said.ident, said.service)
        if said.dialect is not Dialect.OWN:
            return self._go_abroad(Abroad(said.service, said.dialect, back, Parts()), said.body, NO_TERMS, now)
        terms = dialects.read_terms(said.options) if said.options else NO_TERMS
        key = (*said.envelope, said.ident)
        if isinstance(terms, str) or key in self._abroad_as:
            self.counts["malformed"] += 1
            fault = terms if isinstance(terms, str) else "there is a request of this id already"
            return [(SOCKET, dialects.error(back, 400, fault))]
        return self._go_abroad(Abroad(said.service, said.dialect, back, Parts(), key), said.body, terms, now)

    def _go_abroad(self, abroad: Abroad, body: Frames, terms: Terms, now: float) -> Iterable[Effect]:
        default = self._settings.default
        timeout = default.expiry if terms.timeout is None else terms.timeout
        retry = default.resend if terms.retry is None else terms.retry
        number, send = self._bridge.call(abroad.service, body, timeout, retry=retry)
        full = len(self._abroad) >= MOST_ABROAD
        self._abroad[number] = abroad
        if abroad.open_as:
            self._abroad_as[abroad.open_as] = number
        if full:
            return self._came_back(Answer(number, (), code=429, reason="too many requests are with Scale0"), now)
        if not fits(body):
            return self._came_back(Answer(number, (), code=413, reason="too large for a task"), now)
        return (send,)

    def _note(self, provider: Provider, *, is_there: bool) -> None:
        """Keep in mind who takes tasks for a service."""
        if provider.provider == self._bridge.identity:
            return
        name = provider.service.encode(errors="replace")
        if is_there and provider.tasks:
            self._elsewhere.setdefault(name, set()).add(provider.key)
        elif (known := self._elsewhere.get(name)) is not None:
            known.discard(provider.key)
            if not known:
                del self._elsewhere[name]

    def _registry_changed(self, change: Change) -> None:
        """Note who came or went, and that requests which wait for a worker of MDP can go elsewhere now."""
        self._note(change.provider, is_there=change.kind != "removed")
        name = change.provider.service.encode(errors="replace")
        if self._goes_abroad(name):
            self._found.add(name)

    def _send_waiting(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        found, self._found = self._found, set()
        for name in found:
            service = self._services.get(name)
            if service is not None and self._goes_abroad(name):
                for request in [each for each in service.all_waiting() if each.inside is None]:
                    body, terms = request.body, Terms(retry=request.retry)
                    if request.timed:
                        terms = terms._replace(timeout=max(request.ends - now, 0.001))
                    service.drop(request)
                    self._finish(request)
                    abroad = Abroad(name, request.dialect, request.back, Parts(), request.open_as)
                    effects += self._go_abroad(abroad, body, terms, now)
                self._tidy(service)
            if self._titanic is not None:
                effects += self._titanic.offered(name, now)
        return effects

    def _is_here(self, service: bytes) -> bool:
        """Tell whether a worker of MDP offers a service."""
        return super().offers(service)

    def _goes_abroad(self, service: bytes) -> bool:
        """Tell whether requests go to Scale0: it has the service, and no worker of MDP has, nor had a while ago."""
        return service in self._elsewhere and service not in self._claims and not self._is_here(service)

    def _is_there(self, service: bytes) -> bool:
        return super()._is_there(service) or self._goes_abroad(service)

    def offers(self, service: bytes) -> bool:
        """Tell whether anybody offers a service, here or by Scale0."""
        return self._is_here(service) or self._goes_abroad(service)

    def _note_claim(self, worker: Worker, now: float) -> None:
        """Keep the name of a service for workers of MDP whose last one is gone."""
        service = worker.service
        self._claims.pop(service.name, None)
        if not service.workers and self._settings.claim:
            if len(self._claims) >= self._settings.max_services:
                del self._claims[next(iter(self._claims))]
            self._claims[service.name] = now + self._settings.claim

    def execute(self, ident: str, service: bytes, body: Frames, now: float) -> Iterable[Effect]:
        """Send a request that Titanic has stored to a worker, of MDP or else of Scale0."""
        titanic = self._titanic
        if titanic is None or not self._goes_abroad(service):
            return super().execute(ident, service, body, now)
        back = Abroad(service, Dialect.MDP01, (), Parts(), inside=titanic.taker(ident))
        return self._go_abroad(back, body, NO_TERMS, now)

    def _abandon(self, now: float) -> list[Effect]:
        """End the requests of clients that are gone for good, also those that Scale0 has."""
        gone = self._gone
        effects = super()._abandon(now)
        for number, abroad in [each for each in self._abroad.items() if each[1].back[:1] and each[1].back[0] in gone]:
            del self._abroad[number]
            self._abroad_as.pop(abroad.open_as, None)
            self.counts["abandoned"] += 1
            effects.append(self._bridge.cancel(abroad.service, number))
        return effects

    def _came_back(self, answer: Answer, now: float) -> Iterable[Effect]:
        abroad = self._abroad.get(answer.number)
        if abroad is None:
            return ()
        if answer.more:
            if abroad.dialect is Dialect.MDP01:
                abroad.parts.add(answer.body)
                if abroad.parts.size <= self._settings.max_message:
                    return ()
                reason = "its parts are too many to be put together"
                return self._came_back(Answer(answer.number, (), code=500, reason=reason), now)
            return [(SOCKET, dialects.partial(abroad.dialect, abroad.back, b"", answer.body or NOTHING))]
        del self._abroad[answer.number]
        self._abroad_as.pop(abroad.open_as, None)
        body = (*abroad.parts.frames, *answer.body) or NOTHING
        self.counts["errors" if answer.code else "replies"] += 1
        if abroad.inside is not None:
            return abroad.inside(Outcome(body, answer.code, answer.reason), now)
        if not answer.code:
            options = b"" if answer.body else EMPTY
            return [(SOCKET, dialects.final(abroad.dialect, abroad.back, options, body))]
        return self._error(abroad.dialect, abroad.back, abroad.back[-1], answer.code, answer.reason)

    # --- tasks of Scale0 clients for MDP workers ----------------------------------------------------------------------

    def _carry_out(self, task: WorkerTask, now: float) -> Iterable[Effect]:
        reply = self._bridge.worker.reply
        service = self._services.get(task.service)
        if service is None or not service.workers:
            return reply(task, (), code=503, reason="its workers are gone")
        back = (b"\0scale0",)
        request = Request(b"%d" % next(self._addresses), Dialect.MDP01, back, service, task.body or NOTHING)

        def answered(outcome: Outcome, now: float) -> Iterable[Effect]:
            self._tasks.pop(task.number, None)
            code = TIMED_OUT.get(outcome.code, outcome.code)
            return reply(task, outcome.body, code=code, reason=outcome.reason)

        request.inside = answered
        request.part = lambda body: reply(task, body, more=True)
        request.retry = task.options.get("retry") is True  # a task that does not say so reaches one worker at most
        self._tasks[task.number] = request
        return self._requested(request, now)

    def _cancel_task(self, number: bytes, now: float) -> Iterable[Effect]:
        """End a task that nobody waits for; its worker is told where its dialect has a word for it."""
        self._now = now
        request = self._tasks.get(number)
        return self._cancel(request) if request is not None else ()

    def _ready(self, peer: bytes, said: Said, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        return super()._ready(peer, said, now)

    def _drain(self, worker: Worker, begun: Frames, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        effects = super()._drain(worker, begun, now)
        self._note_claim(worker, now)
        return effects

    def _lose(self, worker: Worker, why: str, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        effects = super()._lose(worker, why, now)
        self._note_claim(worker, now)
        return effects
