"""What passes between the core and its plugins through hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import attrs

from scale0_core.container.container import Container
from scale0_core.container.host import HostCounts
from scale0_core.container.registry import Registry
from scale0_core.events import Event
from scale0_core.service import JobResult, SendFailure

API_VERSION = 2
"""Grows by one when plugins written for the version before would no longer work."""


@attrs.frozen(kw_only=True)
class PluginInfo:
    """What a plugin says of itself."""

    summary: str
    api: tuple[int, int]
    """The lowest and the highest API_VERSION that the plugin works with. It has no default: a plugin must know."""
    settings: type | None = None
    safe_by_default: bool = False
    observes_events: bool = False
    """Whether ``scale0_batch`` of this plugin wants the events of services; if no plugin does, none are made."""


def _no_broker(service: str, result: JobResult) -> None:
    raise RuntimeError(f"a result was posted to {service}, and no broker runs")


@attrs.frozen(kw_only=True)
class BrokerContext:
    """What a plugin may know of the broker when it makes its services."""

    name: str
    runtime_dir: str
    data_dir: str
    group: str = ""
    """The group of brokers that it belongs to."""
    registry: Registry = attrs.field(factory=Registry, eq=False)
    services: Container = attrs.field(factory=Container, eq=False)
    """All services of the broker, for one that manages the others: whether they serve, and which are quarantined."""
    post: Callable[[str, JobResult], None] = attrs.field(default=_no_broker, eq=False, repr=False)
    """Hands a result to a service of this broker, by its name: it arrives at ``on_job``, like that of a job.

    Any thread may use this, so that a plugin can have threads of its own. Once the broker has stopped, it does nothing.
    """

    def address(self, template: str) -> str:
        """Fill ``{name}`` and ``{runtime}`` in an address, as in ``ipc://{runtime}/echo``."""
        return template.replace("{runtime}", self.runtime_dir).replace("{name}", self.name)


@attrs.frozen(kw_only=True)
class RunningBroker:
    """A broker whose sockets are open."""

    name: str
    wire: str
    addresses: Mapping[str, Mapping[str, Sequence[str]]]
    counts: Mapping[str, HostCounts]
    state: str = "active"
    """``active``, ``disabled`` or ``joining``: whether it serves."""


class BatchReport(NamedTuple):
    """What one turn of the loop did."""

    now: float
    seconds: float
    received: Mapping[str, int]
    sent: int
    failed: Sequence[tuple[str, SendFailure]]
    events: Sequence[tuple[str, Sequence[Event]]] = ()
    """The names of services, and what happened there, in order; empty if nothing did, or no plugin observes events."""
