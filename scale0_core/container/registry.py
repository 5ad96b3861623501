"""Who offers which service: workers at other places and services hosted by plugins alike.

Filled by the broker, read by plugins such as discovery and management. Every change has a number, so that somebody who
watches can ask for what happened since.

What depends on time is done by whoever tends the registry: it says ``keep`` once, and calls ``tend`` with the time
whenever ``next_tending`` is due. A provider whose connection was lost then stays as ``lost`` for a while, one whose
lease ran out becomes ``lost``, and those that went are remembered. Where nobody tends, leases do not run out, and
providers that are lost go at once and without a trace.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import attrs

from scale0_core.logs import get_logger
from scale0_core.parts.timers import Deadlines

LOG = get_logger("registry")

CHANGES_KEPT = 10_000
MOST_LOST = 10_000
"""So many lost providers are kept; beyond that the one lost first goes before its time."""
MOST_GONE = 10_000

RESPONSIVE = "responsive"
LOST = "lost"

ProviderKind = Literal["worker", "hosted"]
ChangeKind = Literal["added", "changed", "removed"]
Key = tuple[ProviderKind, str, str]
"""Kind, provider and service: a worker that takes the broker's own name does not touch what the broker hosts."""


@attrs.frozen(kw_only=True)
class Provider:
    """One that offers a service.

    ``state`` is ``responsive``; ``unresponsive`` while it is silent; ``lost`` when its connection is gone and it may
    come back; ``quarantined`` when the broker no longer calls it. ``endpoints`` are all its addresses, ``sockets`` the
    same by the name of the socket. ``tasks`` tells whether a TASK with the service's name reaches it: always a worker,
    and a service of a plugin when that takes tasks.
    """

    service: str
    provider: str
    kind: ProviderKind
    state: str
    version: str = ""
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    endpoints: tuple[str, ...] = ()
    sockets: Mapping[str, tuple[str, ...]] = attrs.field(factory=dict)
    tasks: bool = attrs.field(default=attrs.Factory(lambda self: self.kind == "worker", takes_self=True))

    @property
    def live(self) -> bool:
        """Tell whether it can be expected to answer."""
        return self.state == RESPONSIVE

    @property
    def key(self) -> Key:
        """What tells it from all others."""
        return (self.kind, self.provider, self.service)


@attrs.frozen
class Change:
    """Something that happened to a provider; ``previous`` is the number of the last change of the same service."""

    revision: int
    kind: ChangeKind
    provider: Provider
    previous: int = 0


@attrs.frozen(kw_only=True)
class ServiceStats:
    """How a service is doing; times are None where nobody measures them."""

    requests: int = 0
    errors: int = 0
    last_error: str = ""
    waiting: int = 0
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None


class Registry:
    """All providers of one broker, with a log of changes."""

    def __init__(self) -> None:
        self.revision = 0
        self.changes: deque[Change] = deque(maxlen=CHANGES_KEPT)
        self._providers: dict[Key, Provider] = {}
        self._services_of: dict[tuple[ProviderKind, str], dict[str, Key]] = {}
        self._sorted: list[Provider] | None = None
        self._last_change: dict[str, int] = {}
        self._statistics: dict[str, Callable[[str], ServiceStats | None]] = {}
        self._watchers: list[Callable[[Change], None]] = []
        # what depends on time; seconds of grace are None while nobody tends
        self._grace: float | None = None
        self._memory = 0.0
        self._tended = 0.0
        self._leases: dict[Key, float] = {}
        self._lost: dict[Key, None] = {}
        self._to_time: dict[Key, None] = {}
        self._due: Deadlines[Key, Key] = Deadlines()
        self._gone: dict[Key, Change] = {}
        self._forget: Deadlines[Key, Key] = Deadlines(grain=1.0)

    # --- who is there -----------------------------------------------------------------------------------------------

    def put(self, provider: Provider, lease: float | None = None) -> None:
        """Add a provider, note that it changed, or renew its lease.

        With a ``lease``, it counts as lost unless it is put again within so many seconds.
        """
        key = provider.key
        if lease is None:
            self._untime(key)
        else:
            self._leases[key] = lease
            self._lost.pop(key, None)
            self._to_time[key] = None
        self._store(provider)

    def remove(self, service: str, provider: str, kind: ProviderKind | None = None) -> None:
        """Take a provider away, at once."""
        kinds: tuple[ProviderKind, ...] = ("worker", "hosted") if kind is None else (kind,)
        for each in kinds:
            self._take((each, provider, service))

    def set_state(self, service: str, provider: str, state: str, kind: ProviderKind = "hosted") -> None:
        """Note that a provider is in another state, such as ``quarantined``."""
        known = self._providers.get((kind, provider, service))
        if known is not None:
            self._store(attrs.evolve(known, state=state))

    def set_tasks(self, service: str, provider: str, *, tasks: bool) -> bool:
        """Note that a service of a plugin takes tasks, or no longer; tell whether there is such a service."""
        known = self._providers.get(("hosted", provider, service))
        if known is not None:
            self._store(attrs.evolve(known, tasks=tasks))
        return known is not None

    def services_of(self, provider: str, services: Iterable[Provider]) -> None:
        """Replace all that one worker offers."""
        wanted = {entry.service: entry for entry in services}
        for service, key in list(self._services_of.get(("worker", provider), {}).items()):
            if service not in wanted:
                self._take(key)
        for entry in wanted.values():
            self.put(entry)

    def lose(self, provider: str) -> None:
        """Note that the connection of a worker was lost: it may be back soon, with the same services."""
        for key in list(self._services_of.get(("worker", provider), {}).values()):
            self._lose(key)

    def providers(self) -> Sequence[Provider]:
        """List all, by service and provider."""
        if self._sorted is None:
            self._sorted = sorted(self._providers.values(), key=lambda each: (each.service, each.provider, each.kind))
        return self._sorted

    def gone(self) -> Sequence[Change]:
        """List what those that went were last, and when they went, in that order; those that are back are not in it."""
        return list(self._gone.values())

    # --- changes ----------------------------------------------------------------------------------------------------

    def since(self, revision: int) -> list[Change] | None:
        """Give the changes after a revision; None when they are no longer kept and a full list is needed."""
        count = self.revision - revision
        if count < 0 or count > len(self.changes):
            return None
        return [self.changes[-place] for place in range(count, 0, -1)]

    def watch(self, watcher: Callable[[Change], None]) -> None:
        """Have a function called on every change, on the loop's thread."""
        self._watchers.append(watcher)

    # --- statistics -------------------------------------------------------------------------------------------------

    def measure_by(self, kind: ProviderKind, source: Callable[[str], ServiceStats | None]) -> None:
        """Say where the figures of a kind of provider come from."""
        self._statistics[kind] = source

    def stats(self, service: str, kind: ProviderKind) -> ServiceStats:
        """Give the figures of a service."""
        source = self._statistics.get(kind)
        return (source(service) if source else None) or ServiceStats()

    # --- time -------------------------------------------------------------------------------------------------------

    def keep(self, *, grace: float, memory: float) -> None:
        """Promise to call ``tend``.

        :param grace: seconds for which a lost provider is waited for.
        :param memory: seconds for which those that went are remembered.
        """
        self._grace, self._memory = grace, memory

    def next_tending(self) -> float | None:
        """Say when ``tend`` is due."""
        if self._to_time:
            return self._tended
        due, forget = self._due.next(), self._forget.next()
        return forget if due is None else due if forget is None else min(due, forget)

    def tend(self, now: float) -> None:
        """Do what is due: time the leases and the grace that began, let go of what had its time."""
        self._tended = now
        for key in self._due.take(now):
            if key in self._to_time:  # renewed at the last moment
                continue
            if key in self._lost:
                self._take(key)
            else:
                self._lose(key)
        starting, self._to_time = self._to_time, {}
        for key in starting:
            if key in self._gone:
                self._forget.set(key, now + self._memory, key)
            elif key in self._lost:
                self._due.set(key, now + (self._grace or 0.0), key)
            else:
                self._due.set(key, now + self._leases[key], key)
        for key in self._forget.take(now):
            self._gone.pop(key, None)

    def _untime(self, key: Key) -> None:
        self._leases.pop(key, None)
        self._lost.pop(key, None)
        self._to_time.pop(key, None)
        self._due.remove(key)

    # --- one provider -----------------------------------------------------------------------------------------------

    def _store(self, provider: Provider) -> None:
        key = provider.key
        known = self._providers.get(key)
        if known == provider:
            return
        self._providers[key] = provider
        if known is None:
            self._services_of.setdefault((provider.kind, provider.provider), {})[provider.service] = key
            self._gone.pop(key, None)
            self._forget.remove(key)
        self._note("added" if known is None else "changed", provider)

    def _take(self, key: Key) -> None:
        gone = self._providers.pop(key, None)
        if gone is None:
            return
        self._untime(key)
        siblings = self._services_of[gone.kind, gone.provider]
        del siblings[gone.service]
        if not siblings:
            del self._services_of[gone.kind, gone.provider]
        change = self._note("removed", gone)
        if self._grace is not None and self._memory > 0:
            self._remember(key, change)

    def _lose(self, key: Key) -> None:
        if key in self._lost:
            return
        if not self._grace:
            self._take(key)
            return
        self._untime(key)
        self._lost[key] = None
        self._to_time[key] = None
        self._store(attrs.evolve(self._providers[key], state=LOST))
        if len(self._lost) > MOST_LOST:
            self._take(next(iter(self._lost)))

    def _remember(self, key: Key, change: Change) -> None:
        self._gone[key] = change
        self._to_time[key] = None
        if len(self._gone) > MOST_GONE:
            oldest = next(iter(self._gone))
            del self._gone[oldest]
            self._forget.remove(oldest)
            self._to_time.pop(oldest, None)

    def _note(self, kind: ChangeKind, provider: Provider) -> Change:
        self._sorted = None
        self.revision += 1
        # a service that has no entry had its last change before the log begins
        before_log = self.changes[0].revision - 1 if self.changes else 0
        previous = self._last_change.get(provider.service, before_log)
        change = Change(self.revision, kind, provider, previous)
        self.changes.append(change)
        self._last_change[provider.service] = self.revision
        if len(self._last_change) > 2 * CHANGES_KEPT:
            first = self.changes[0].revision
            self._last_change = {name: last for name, last in self._last_change.items() if last >= first}
        for watcher in tuple(self._watchers):
            self._tell(watcher, change)
        return change

    def _tell(self, watcher: Callable[[Change], None], change: Change) -> None:
        try:
            watcher(change)
        except Exception as error:
            self._watchers.remove(watcher)
            LOG.error("a watcher raised and is no longer called", watcher=repr(watcher), error=repr(error))
