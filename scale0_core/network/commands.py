"""The management commands: what each shows, and what it changes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from scale0_core.api import Effect, Frames, Job, Provider, Scale0Error, Send, printable
from scale0_core.network.dispatch import client_rows, service_rows
from scale0_core.network.management import Answer, Arguments, Deferred, ManagementCommand, ManagementError
from scale0_core.protocol import messages as wire
from scale0_core.protocol.codes import Code
from scale0_core.protocol.states import BROKER, BrokerEvent, BrokerState, ClientEvent, allowed, step

if TYPE_CHECKING:
    from scale0_core.network.service import BrokerService, Reloaded


class Commands:
    """What operators ask of a broker, and have it do."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker

    def table(self) -> list[ManagementCommand]:
        """Return all commands."""
        return [
            ManagementCommand("state", "viewer", "the broker's state and totals", self._show_state),
            ManagementCommand("list_clients", "viewer", "all frontends and backends", self._list_clients),
            ManagementCommand("list_services", "viewer", "all services", self._list_services),
            ManagementCommand("list_peers", "viewer", "other brokers that are configured", self._list_peers),
            ManagementCommand("list_error_clients", "viewer", "connections met with silence", self._list_error_clients),
            ManagementCommand("config", "viewer", "the configuration's version and hash", self._show_config),
            ManagementCommand(
                "clear_error_client", "operator", "forgive silenced connections", self._clear_error_client
            ),
            ManagementCommand("kick", "operator", "disconnect a worker by its identity", self._kick),
            ManagementCommand("resume", "operator", "take a service out of quarantine", self._resume),
            ManagementCommand("disable", "admin", "answer nothing but enable", self._disable),
            ManagementCommand("enable", "admin", "answer again", self._enable),
            ManagementCommand("reload_config", "admin", "read the configuration again", self._reload),
        ]

    def _show_state(self, _: Arguments, now: float) -> Answer:
        dispatcher = self._broker.dispatcher
        return {
            "identity": self._broker.running.network.identity,
            "state": self._broker.state.value,
            "config_version": self._broker.running.version,
            "config_hash": self._broker.running.hash,
            "workers": sum(not worker.hosted for worker in dispatcher.workers.values()),
            "frontends": len(dispatcher.frontends),
            "services": len(dispatcher.services),
            "open_tasks": len(dispatcher.tasks),
            "quarantined": self._broker.services.quarantined(),
            "counts": {
                **attrs.asdict(dispatcher.counts),
                "crowded": self._broker.negotiator.crowded,
                **self._broker.counts,
            },
        }, []

    def _list_clients(self, _: Arguments, now: float) -> Answer:
        return client_rows(self._broker.dispatcher, now), []

    def _list_services(self, _: Arguments, now: float) -> Answer:
        rows = {row["service"]: {**row, "kind": "worker"} for row in service_rows(self._broker.dispatcher.services)}
        hosted = []
        for entry in self._broker.registry.providers():
            if entry.kind == "hosted":
                # where no worker elsewhere offers it, the figures of its tasks are its own, and no service beside it
                alone = entry.tasks and rows.get(entry.service, {}).get("workers") == 1
                hosted.append(self._hosted_row(entry, rows.pop(entry.service) if alone else {}))
        return [*rows.values(), *hosted], []

    def _hosted_row(self, entry: Provider, tasks: Mapping[str, Any]) -> dict[str, Any]:
        stats = self._broker.registry.stats(entry.service, "hosted")
        told = {"service": entry.service, "kind": "hosted", "endpoints": list(entry.endpoints), "workers": 1}
        counted = {"requests": stats.requests, "errors": stats.errors, "last_error": stats.last_error}
        return {**tasks, **told, "state": entry.state, "tasks": entry.tasks, **counted}

    def _list_peers(self, _: Arguments, now: float) -> Answer:
        own = self._broker.running.network.identity
        return [
            {"identity": broker.identity, "group": group, "frontend": broker.frontend, "backend": broker.backend}
            for group, broker in self._broker.known_brokers()
            if broker.identity != own
        ], []

    def _list_error_clients(self, _: Arguments, now: float) -> Answer:
        return self._broker.offenders.listing(now), []

    def _show_config(self, _: Arguments, now: float) -> Answer:
        return {"config_version": self._broker.running.version, "config_hash": self._broker.running.hash}, []

    def _clear_error_client(self, arguments: Arguments, now: float) -> Answer:
        return {"cleared": self._broker.offenders.clear(str(arguments.get("identity", "")))}, []

    def _kick(self, arguments: Arguments, now: float) -> Answer:
        identity = arguments.get("identity")
        workers = self._broker.dispatcher.workers.values()
        found = [worker for worker in workers if worker.identity == identity and not worker.hosted]
        if not found:
            raise ManagementError(Code.NO_SERVICE, f"there is no worker {printable(identity)}")
        effects: list[Effect] = []
        for worker in found:
            envelope: Frames = (worker.key[1], b"") if worker.delimiter else (worker.key[1],)
            options = wire.write_options(code=403, message="disconnected by an operator")
            effects.append((worker.key[0], (*envelope, wire.BACKEND, wire.DISCONNECTERROR, options)))
            effects += self._broker.negotiator.drop(worker, ClientEvent.REFUSED, now)
        return {"kicked": len(found)}, effects

    def _resume(self, arguments: Arguments, now: float) -> Answer:
        name = arguments.get("name")
        try:
            resumed = self._broker.services.resume(str(name))
        except Scale0Error as error:
            raise ManagementError(Code.FAILURE, f"{error.problem.what}: {error.problem.why}") from error
        if not resumed:
            raise ManagementError(Code.NO_SERVICE, f"no service of {printable(name)} is quarantined")
        return {"resumed": resumed}, []

    def _disable(self, _: Arguments, now: float) -> Answer:
        return self._change_state(BrokerEvent.DISABLE), []

    def _enable(self, _: Arguments, now: float) -> Answer:
        if not allowed(BROKER, self._broker.state, BrokerEvent.ENABLE):
            raise ManagementError(Code.UNAVAILABLE, "this broker has no configuration yet")
        return self._change_state(BrokerEvent.ENABLE), []

    def _change_state(self, event: BrokerEvent) -> Deferred:
        """Go to the state that follows when it is on record, and not before: what fails there changes nothing."""

        def recorded(_: object) -> Answer:
            state = step(BROKER, self._broker.state, event)
            sent_away = self._send_away() if state is BrokerState.DISABLED is not self._broker.state else []
            self._broker.set_state(state, self._broker.now)
            return {"state": state.value}, [*sent_away]

        return Deferred(
            Job("store", self._broker.store.save_state, step(BROKER, self._broker.state, event).value), recorded
        )

    def _reload(self, arguments: Arguments, now: float) -> Answer:
        read_again = partial(self._broker.store.reload, force=arguments.get("force") is True)
        return Deferred(Job("store", read_again, self._broker.running), self._reloaded), []

    def _reloaded(self, reloaded: Reloaded) -> Answer:
        before = self._broker.running.version, self._broker.state
        effects = self._broker.apply(reloaded.running)
        return {
            "read": reloaded.source,
            "config_version": reloaded.running.version,
            "changed": before != (reloaded.running.version, self._broker.state),
            "took_effect": list(reloaded.changes.applied),
            "needs_restart": list(reloaded.changes.restart),
        }, effects

    def _send_away(self) -> list[Send]:
        """Tell everybody who is known where else to go, before the broker falls silent."""
        own = self._broker.running.network.identity
        brokers = [
            {"identity": broker.identity, "group": group, "frontend": broker.frontend, "backend": broker.backend}
            for group, broker in self._broker.known_brokers()
            if broker.identity != own
        ]
        options = wire.write_options(brokers=brokers, reason="disabled", code=int(Code.OTHER_BROKER))
        known = self._broker.dispatcher.workers.values()
        workers = [worker.key for worker in known if not worker.delimiter and not worker.hosted]
        return [
            *((socket, (routing_id, wire.BACKEND, wire.CHANGEBROKER, options)) for socket, routing_id in workers),
            *(
                (socket, (rid, wire.FRONTEND, wire.CHANGEBROKER, options))
                for socket, rid in self._broker.dispatcher.frontends
            ),
        ]
