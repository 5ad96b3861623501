"""The services of one broker: their hosts, and what they send each other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from scale0_core.container.host import ServiceHost
from scale0_core.container.in_process import InProcessSocket, Receiver, Switchboard
from scale0_core.container.task_host import READY, TASKS, TaskHost, task_socket


class Container:
    """All hosts of one broker. Services that may manage others get it as ``context.services``."""

    def __init__(self, secret: bytes = b"") -> None:
        self.hosts: list[ServiceHost] = []
        self._secret = secret
        self._board = Switchboard()
        self._receivers: dict[ServiceHost, list[Receiver]] = {}
        self._suspension: tuple[str, float] = ("", -math.inf)
        self._exempt = ""
        self.on_suspend: list[Callable[[], None]] = []
        """Called when the services are suspended, or serve again."""

    def add(self, host: ServiceHost) -> None:
        """Take in a service; all of its in-process endpoints are connected, or none and an error."""
        endpoints = dict(host.service.endpoints)
        sockets = {
            name: InProcessSocket(host, name, endpoint, self._board)
            for name, endpoint in endpoints.items()
            if endpoint.in_process
        }
        tasks = task_socket(endpoints)
        for socket in sockets.values():
            (self._board.bind if socket.binds else self._board.connect)(socket.address, socket)
        host.in_process = {name: socket.send for name, socket in sockets.items()}
        host.may_be_rushed = not any(socket.binds for socket in sockets.values())
        receivers: list[Receiver] = [*sockets.values()]
        if tasks is not None:
            host.tasks = TaskHost(host, tasks, endpoints[tasks], self._board, self._secret)
            self._board.connect(TASKS, host.tasks)
            receivers.append(host.tasks)
        self.hosts.append(host)
        self._receivers[host] = receivers
        host.on_quarantine.append(partial(self._quarantined, host))
        self._suspend(host)

    def remove(self, host: ServiceHost) -> None:
        """Forget a service."""
        self.hosts.remove(host)
        for receiver in self._receivers.pop(host):
            self._board.leave(receiver)

    def start(self, now: float) -> None:
        """Let the services have tasks that take some."""
        for host in self.hosts:
            if host.tasks is not None:
                host.tasks.say(READY)
        for receiver in self.ready:
            receiver.deliver(now)

    @property
    def ready(self) -> list[Receiver]:
        """Receivers to which messages can be delivered now."""
        return [receiver for receiver in self._board.posted if receiver.ready] if self._board.posted else []

    # --- for services that manage others ------------------------------------------------------------------------------

    @property
    def suspended(self) -> str:
        """Why the services do not serve, or an empty text."""
        return self._suspension[0]

    def suspend(self, reason: str, drain_until: float = -math.inf, *, exempt: str = "") -> None:
        """Suspend all services but one; see ``ServiceHost.suspend``. An empty reason lets them serve again."""
        self._suspension, self._exempt = (reason, drain_until), exempt
        for host in self.hosts:
            self._suspend(host)
        for call in self.on_suspend:
            call()

    def _suspend(self, host: ServiceHost) -> None:
        if host.service.name != self._exempt:
            host.suspend(*self._suspension)

    def quarantined(self) -> list[Mapping[str, Any]]:
        """List the services that are quarantined, of which plugin, and why."""
        return [
            {"service": host.service.name, "plugin": host.plugin, "errors": host.counts.errors,
             "last_error": host.counts.last_error}
            for host in self.hosts
            if host.quarantined
        ]  # fmt: skip

    def resume(self, name: str) -> list[str]:
        """Take the services of a plugin, or one by its own name, out of quarantine; return their names.

        Raise a Scale0Error if a socket cannot be opened again.
        """
        found = [host for host in self.hosts if host.quarantined and name in (host.plugin, host.service.name)]
        for host in found:
            host.resume()
            if host.tasks is not None:
                host.tasks.say(READY)
        return [host.service.name for host in found]

    def _quarantined(self, host: ServiceHost) -> None:
        """Let others know that a service is no longer there."""
        if host.tasks is not None:
            host.tasks.quarantined()
        for receiver in self._receivers[host]:
            if isinstance(receiver, InProcessSocket) and not receiver.binds:
                binder = self._board.binder(receiver.address)
                if isinstance(binder, InProcessSocket):
                    binder.lose_peer(host.now)
