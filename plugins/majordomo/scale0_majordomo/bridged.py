"""Majordomo with a bridge: services of Scale0 for MDP clients, services of MDP workers for Scale0 clients."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scale0_core.api import Change, Effect, Frames, InnerTask, Registry
from scale0_majordomo import dialects
from scale0_majordomo.bridge import TASKS, Answer, Bridge, fits
from scale0_majordomo.desk import Parts, Request, Worker
from scale0_majordomo.dialects import Dialect, Said, Word
from scale0_majordomo.service import SOCKET, MajordomoService
from scale0_majordomo.settings import MajordomoSettings
from scale0_majordomo.titanic_store import Store

MOST_ABROAD = 100_000
PAUSE = 0.05
"""Seconds until the broker is told of services that came or went: several at once are one message."""


class Abroad(NamedTuple):
    """A request that Scale0 has."""

    dialect: Dialect
    back: Frames
    parts: Parts


class BridgedMajordomo(MajordomoService):
    """The same service, which is also a frontend and a worker of the Scale0 protocol."""

    def __init__(
        self, settings: MajordomoSettings, bind: Iterable[str], store: Store | None, bridge: Bridge, registry: Registry
    ) -> None:
        super().__init__(settings, bind, store)
        self.endpoints = {**self.endpoints, **bridge.endpoints}
        self._bridge = bridge
        self._registry = registry
        self._abroad: dict[bytes, Abroad] = {}
        self._offer_due = float("inf")
        self._found: set[bytes] = set()
        """Services that somebody of Scale0 offers now, and for which requests wait here."""
        registry.watch(self._registry_changed)

    def _receive_elsewhere(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Take a message of the Scale0 protocol."""
        if socket == TASKS:
            answer = self._bridge.answer(frames)
            return self._came_back(answer) if answer is not None else ()
        sends, task = self._bridge.worker.receive(frames, now)
        return [*sends, *self._carry_out(task, now)] if task is not None else sends

    def next_deadline(self) -> float | None:
        """Say when something is due."""
        if self._found:
            return self._now
        due = min(self._bridge.worker.due, self._offer_due)
        own = super().next_deadline()
        if own is not None and own < due:
            return own
        return None if due == float("inf") else due

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do what is due."""
        effects = [*super().on_deadline(now), *self._send_waiting()]
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
            return self._came_back(Answer(bytes(frames[4]), (), code=503, reason="the broker takes no tasks"))
        self._bridge.worker.undelivered(frames, now)
        return ()

    def on_stop(self, now: float) -> Iterable[Effect]:
        """Take leave of everybody."""
        return [*super().on_stop(now), *self._bridge.worker.leave()]

    # --- requests of MDP clients for services of Scale0 ---------------------------------------------------------------

    def _client_said(self, said: Said, now: float) -> Iterable[Effect]:
        known = self._services.get(said.service)
        if (known is None or not known.workers) and said.word is Word.REQUEST and self._is_elsewhere(said.service):
            back = dialects.final_head(said.dialect, said.envelope, said.ident, said.service)
            self.counts["requests"] += 1
            return self._go_abroad(said.dialect, back, said.service, said.body)
        return super()._client_said(said, now)

    def _go_abroad(self, dialect: Dialect, back: Frames, service: bytes, body: Frames) -> Iterable[Effect]:
        number, send = self._bridge.call(
            service, body, self._settings.default.expiry, retry=self._settings.default.resend
        )
        full = len(self._abroad) >= MOST_ABROAD
        self._abroad[number] = Abroad(dialect, back, Parts())
        if full:
            return self._came_back(Answer(number, (), code=429, reason="too many requests are with Scale0"))
        if not fits(body):
            return self._came_back(Answer(number, (), code=413, reason="too large for a task"))
        return (send,)

    def _registry_changed(self, change: Change) -> None:
        """Note that requests which wait for a worker of MDP can go elsewhere now."""
        provider = change.provider
        if provider.tasks and change.kind != "removed" and provider.provider != self._bridge.identity:
            service = self._services.get(provider.service.encode(errors="replace"))
            if service is not None and service.waiting and not service.workers:
                self._found.add(service.name)

    def _send_waiting(self) -> list[Effect]:
        effects: list[Effect] = []
        found, self._found = self._found, set()
        for service in [self._services[name] for name in found if name in self._services]:
            waiting = [] if service.workers else [each for each in service.all_waiting() if each.inside is None]
            for request in waiting:
                body = request.body
                service.drop(request)
                self._finish(request)
                effects += self._go_abroad(request.dialect, request.back, service.name, body)
            self._tidy(service)
        return effects

    def _is_elsewhere(self, service: bytes) -> bool:
        """Tell whether a worker or a plugin of Scale0 takes tasks for a service; the bridge itself does not count."""
        name = service.decode("utf-8", "replace")
        return any(
            provider.service == name and provider.tasks and provider.provider != self._bridge.identity
            for provider in self._registry.providers()
        )

    def _is_there(self, service: bytes) -> bool:
        return super()._is_there(service) or self._is_elsewhere(service)

    def _came_back(self, answer: Answer) -> Iterable[Effect]:
        abroad = self._abroad.get(answer.number)
        if abroad is None:
            return ()
        if answer.more:
            if abroad.dialect is Dialect.MDP01:
                abroad.parts.add(answer.body)
                return ()
            return [(SOCKET, dialects.partial(abroad.dialect, abroad.back, b"", answer.body))]
        del self._abroad[answer.number]
        if not answer.code:
            self.counts["replies"] += 1
            body = (*abroad.parts.frames, *answer.body)
            return [(SOCKET, dialects.final(abroad.dialect, abroad.back, b"", body))]
        self.counts["errors"] += 1
        if abroad.dialect is not Dialect.OWN:
            return ()
        return [(SOCKET, dialects.error(abroad.back, answer.code, answer.reason))]

    # --- tasks of Scale0 clients for MDP workers ----------------------------------------------------------------------

    def _carry_out(self, task: InnerTask, now: float) -> Iterable[Effect]:
        reply = self._bridge.worker.reply
        service = self._services.get(task.service)
        if service is None or not service.workers:
            return reply(task, (), code=503, reason="its workers are gone")
        request = Request(b"%d" % next(self._addresses), Dialect.MDP01, (b"",), service, task.body or (b"",))

        def answered(body: Frames | None, now: float) -> Iterable[Effect]:
            return (
                reply(task, (), code=502, reason="no worker of MDP answered it") if body is None else reply(task, body)
            )

        request.inside = answered
        request.part = lambda body: reply(task, body, more=True)
        return self._requested(request, now)

    def _ready(self, peer: bytes, said: Said, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        return super()._ready(peer, said, now)

    def _drain(self, worker: Worker, begun: Frames, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        return super()._drain(worker, begun, now)

    def _lose(self, worker: Worker, why: str, now: float) -> Iterable[Effect]:
        self._offer_due = min(self._offer_due, now + PAUSE)
        return super()._lose(worker, why, now)
