"""A broker put together from the services of its plugins, for whoever runs them: the event loop or a simulated node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from scale0_core.container.host import HostCounts, ServiceHost
from scale0_core.container.registry import Provider, Registry, ServiceStats
from scale0_core.errors import LEFT_OUT, PluginContractError
from scale0_core.service import Service

MakeHost = Callable[[Service, str], ServiceHost]
"""Makes the host of a service of the plugin named."""


class Station(Protocol):
    """A host with its sockets."""

    host: ServiceHost

    @property
    def addresses(self) -> Mapping[str, Sequence[str]]:
        """Where its sockets are bound, by name."""


S = TypeVar("S", bound=Station)


class Runner(Protocol[S]):
    """Runs services."""

    def add(self, host: ServiceHost) -> S:
        """Open the sockets of a service and serve it from now on; all of them, or none and an error."""

    def remove(self, station: S) -> None:
        """Close the sockets of a service and forget it."""


class Assembly(Generic[S]):
    """The services of one broker, in the order in which they were started."""

    def __init__(self, runner: Runner[S], make_host: MakeHost) -> None:
        self.stations: list[S] = []
        self._runner, self._make_host = runner, make_host

    def start(self, plugin: str, services: Iterable[Service]) -> None:
        """Run the services of a plugin; all of them, or none and an error."""
        before = len(self.stations)
        try:
            for service in services:
                if service.name in self.counts:
                    raise PluginContractError(
                        plugin, f"plugin {plugin} offers a service that exists already", f"its name is {service.name}",
                        LEFT_OUT, "give it another name",
                    )  # fmt: skip
                self.stations.append(self._runner.add(self._make_host(service, plugin)))
        except Exception:
            for station in self.stations[before:]:
                self._runner.remove(station)
            del self.stations[before:]
            raise

    def register(self, registry: Registry, provider: str, versions: Mapping[str, str], default_version: str) -> None:
        """Put the services into the registry, beside those that workers will offer."""
        for station in self.stations:
            host, service = station.host, station.host.service.name
            sockets = {name: tuple(bound) for name, bound in station.addresses.items()}
            registry.put(
                Provider(
                    service=service,
                    provider=provider,
                    kind="hosted",
                    state="responsive",
                    version=versions.get(host.plugin, default_version),
                    endpoints=tuple(address for bound in sockets.values() for address in bound),
                    sockets=sockets,
                )
            )
            host.on_quarantine.append(partial(registry.set_state, service, provider, "quarantined"))
            host.on_resume.append(partial(registry.set_state, service, provider, "responsive"))
        registry.measure_by("hosted", self._stats)

    @property
    def addresses(self) -> dict[str, Mapping[str, Sequence[str]]]:
        """Where the sockets of each service are bound."""
        return {station.host.service.name: station.addresses for station in self.stations}

    @property
    def counts(self) -> dict[str, HostCounts]:
        """What happened at each service."""
        return {station.host.service.name: station.host.counts for station in self.stations}

    def _stats(self, service: str) -> ServiceStats | None:
        counts = self.counts.get(service)
        if counts is None:
            return None
        return ServiceStats(requests=counts.received, errors=counts.errors, last_error=counts.last_error)
