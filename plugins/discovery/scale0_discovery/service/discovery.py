"""The service itself: a state machine without I/O.

A request has an optional empty frame (a REQ socket puts it there), a command, and options as one JSON object, which may
be left out. The answer is the command and a JSON object, or ``ERROR``, a code and a reason:

===========  ========================================================  ================================================
command      options                                                   answer
===========  ========================================================  ================================================
`LIST`       `service`, `version`, `metadata`, `state`, `gone`,        providers that fit
             `limit`, `after`
`INFO`       `service`                                                 all about one service
`STATS`      `service`                                                 its figures
`PING`       `service`                                                 whether somebody there can be expected to answer
`CHANGES`    `revision`, `epoch`, `service`, `limit`                   what happened since
`ADVISE`     `as_of`, `rows`                                           takes advice on where workers should be
`ADVICE`     `service`                                                 shows it
===========  ========================================================  ================================================

On the other socket every change is published under the topic ``service/NAME/``, that there is other advice under
``advice/``, and from time to time a bookmark with the current revision under ``bookmark/``. The README has the recipe
for watching without a gap.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from scale0_core.api import (
    KIB,
    Change,
    Effect,
    Endpoint,
    Frames,
    Provider,
    ProviderKind,
    Registry,
    Send,
    SocketKind,
    records,
    split_envelope,
)
from scale0_discovery.service import requests as read
from scale0_discovery.service.advice import LARGEST, AdviceBoard, read_advice
from scale0_discovery.service.requests import MOST_ROWS, ROWS, SMALL, Options, RefusedError
from scale0_discovery.settings import DiscoverySettings

BOOKMARK, ADVICE = b"bookmark/", b"advice/"
SOON = 0.1
"""Seconds within which newcomers share a bookmark."""

ADVISE_EVERY = 1.0
"""Seconds between two advices that are looked at: reading a large one takes some milliseconds of the broker's loop."""

Row = dict[str, Any]
Answer = Mapping[str, Any]


class DiscoveryService:
    """Answers questions about the registry, publishes its changes, and tends it."""

    name = "discovery"

    def __init__(
        self,
        registry: Registry | None = None,
        settings: DiscoverySettings | None = None,
        *,
        bind: Iterable[str] = ("inproc://discovery",),
        watch: Iterable[str] = ("inproc://discovery-watch",),
        epoch: str = "1",
    ) -> None:
        self.registry = Registry() if registry is None else registry
        self._settings = settings or DiscoverySettings()
        self._epoch = epoch
        self._started = False
        self._published = 0
        self._board = AdviceBoard(self._settings.advice_keep)
        self._advice_published = 0
        self._advise_from = float("-inf")
        self._now = 0.0
        self._bookmark_at = 0.0
        self._last_bookmark = 0.0
        self.endpoints: Mapping[str, Endpoint] = {
            "requests": Endpoint(kind=SocketKind.ROUTER, bind=bind, max_message=LARGEST, tasks=True),
            # verbose: every newcomer is seen, and not only the first of a topic
            "watch": Endpoint(
                kind=SocketKind.XPUB, bind=watch, max_message=KIB, high_water=10_000, options={"XPUB_VERBOSE": 1}
            ),
        }
        self._commands: dict[bytes, tuple[Callable[[Options], Answer], frozenset[str]]] = {
            b"LIST": (
                self._list,
                frozenset({"service", "version", "metadata", "state", "gone", "limit", "after"}),
            ),
            b"INFO": (self._info, frozenset({"service"})),
            b"STATS": (self._stats, frozenset({"service"})),
            b"PING": (self._ping, frozenset({"service"})),
            b"CHANGES": (self._changes, frozenset({"revision", "epoch", "service", "limit"})),
            b"ADVISE": (self._advise, frozenset({"as_of", "rows"})),
            b"ADVICE": (self._advice, frozenset({"service"})),
        }

    # --- the service interface --------------------------------------------------------------------------------------

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Answer a request, or take note of a subscription."""
        self._now = now
        if socket == "watch":
            if frames and frames[0][:1] == b"\x01":
                # tells the newcomer that it is heard from now on, and where the others are
                self._bookmark_at = min(self._bookmark_at, max(now, self._last_bookmark + SOON))
            return ()
        envelope, request = split_envelope(frames)
        if not envelope:
            return ()
        try:
            if not request:
                raise RefusedError(400, "a request has a command")
            command = self._commands.get(request[0])
            if command is None:
                raise RefusedError(501, f"commands are {', '.join(name.decode() for name in self._commands)}")
            self._admit(request)
            answer, options = command
            found = answer(read.read_options(request, options))
            return [("requests", (*envelope, request[0], _json({**found, "epoch": self._epoch})))]
        except (RefusedError, records.MalformedError) as error:
            code = error.code if isinstance(error, RefusedError) else 400
            return [("requests", (*envelope, b"ERROR", b"%d" % code, str(error).encode()))]

    def _admit(self, request: Frames) -> None:
        """Refuse, before it is read, what would hold the loop for longer than it should."""
        if request[0] != b"ADVISE":
            if sum(map(len, request)) > SMALL:
                raise RefusedError(413, f"a request has at most {SMALL} bytes")
            return
        if not self._settings.advice:
            raise RefusedError(403, "advice is not taken here: plugin.discovery.advice is false")
        if self._now < self._advise_from:
            raise RefusedError(429, f"advice is looked at every {ADVISE_EVERY:g} s; send it again later")
        self._advise_from = self._now + ADVISE_EVERY

    def next_deadline(self) -> float | None:
        """Say when something is due: at once when there is something to publish."""
        if not self._started or self.registry.revision != self._published:
            return self._now
        if self._board.number != self._advice_published:
            return self._now
        dues = (self.registry.next_tending(), self._board.due(), self._bookmark_at)
        return min(due for due in dues if due is not None)

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Tend the registry, publish what changed, and send a bookmark when it is time."""
        self._now = now
        if not self._started:
            self._start(now)
        self.registry.tend(now)
        self._board.tend(now)
        sends = self._publish()
        if self._bookmark_at <= now:
            sends.append(("watch", (BOOKMARK, _json(self._bookmark()))))
            self._last_bookmark, self._bookmark_at = now, now + self._settings.bookmark
        return sends

    # --- publishing -------------------------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        # not when it is made: a service that is made only to be looked at must not change the registry
        self._started = True
        self.registry.keep(grace=self._settings.grace, memory=self._settings.memory)
        self._published = self.registry.revision
        self._bookmark_at = now + self._settings.bookmark

    def _publish(self) -> list[Send]:
        changes = self.registry.since(self._published)
        self._published = self.registry.revision
        # None: more at once than are kept; watchers find out by the next revision they see
        sends: list[Send] = [("watch", (_topic(change), _json(self._change(change)))) for change in changes or ()]
        if self._board.number != self._advice_published:
            self._advice_published = self._board.number
            sends.append(("watch", (ADVICE, _json({**self._board.news(), "epoch": self._epoch}))))
        return sends

    def _change(self, change: Change) -> Row:
        return {**_change(change), "epoch": self._epoch}

    def _bookmark(self) -> Row:
        return {
            "kind": "bookmark",
            "revision": self.registry.revision,
            "advice": self._board.number,
            "epoch": self._epoch,
        }

    # --- questions --------------------------------------------------------------------------------------------------

    def _list(self, options: Options) -> Answer:
        fits = _filter(options)
        limit = records.whole_of(options, "limit", ROWS, least=1, most=MOST_ROWS)
        after = read.place(options, "after")
        revision = self.registry.revision
        if records.flag_of(options, "gone"):
            gone = [change for change in self.registry.gone() if fits(change.provider)]
            gone.sort(key=lambda change: _place(change.provider))
            page, more = _page(gone, lambda change: _place(change.provider), after, limit)
            rows = [{**_row(change.provider), "removed": change.revision} for change in page]
        else:
            found, more = _page([each for each in self.registry.providers() if fits(each)], _place, after, limit)
            rows = [_row(each) for each in found]
        return {"revision": revision, "providers": rows, "more": more}

    def _info(self, options: Options) -> Answer:
        service, found, gone = self._known(options)
        return {
            "service": service,
            "revision": self.registry.revision,
            "alive": any(each.live for each in found),
            "providers": [_row(each) for each in found[:MOST_ROWS]],
            "gone": [{**_row(change.provider), "removed": change.revision} for change in gone[:MOST_ROWS]],
            "stats": self._figures(service, found, gone),
            "advice": self._board.show(service, self._now),
        }

    def _stats(self, options: Options) -> Answer:
        service, found, gone = self._known(options)
        return {"service": service, "stats": self._figures(service, found, gone)}

    def _ping(self, options: Options) -> Answer:
        service, found, _ = self._known(options)
        live = sum(each.live for each in found)
        return {"service": service, "alive": live > 0, "live": live, "providers": len(found)}

    def _changes(self, options: Options) -> Answer:
        registry = self.registry
        revision = records.whole_of(options, "revision", most=2**53)
        limit = records.whole_of(options, "limit", ROWS, least=1, most=MOST_ROWS)
        epoch, service = read.text(options, "epoch"), read.text(options, "service")
        same_run = epoch is None or epoch == self._epoch
        changes = registry.since(revision) if same_run else None
        if changes is None:
            why = "is no longer kept" if same_run else "belongs to an earlier run of the broker"
            raise RefusedError(410, f"revision {revision} {why}; now it is {registry.revision}: ask for LIST")
        wanted = [change for change in changes if service is None or change.provider.service == service]
        more = len(wanted) > limit
        return {
            "revision": wanted[limit - 1].revision if more else registry.revision,
            "changes": [_change(change) for change in wanted[:limit]],
            "more": more,
        }

    def _advise(self, options: Options) -> Answer:
        advice = read_advice(options, self._now)
        self._board.put(advice)
        return {"rows": len(advice.rows), "number": self._board.number, "keep_s": self._settings.advice_keep}

    def _advice(self, options: Options) -> Answer:
        self._board.tend(self._now)
        return {"number": self._board.number, **self._board.show(read.text(options, "service"), self._now)}

    def _known(self, options: Options) -> tuple[str, list[Provider], list[Change]]:
        """Give a service's name, those who offer it, and those who did."""
        service = read.text(options, "service")
        if not service:
            raise RefusedError(400, "service is the name of a service")
        found = [each for each in self.registry.providers() if each.service == service]
        gone = [change for change in self.registry.gone() if change.provider.service == service]
        if not found and not gone:
            raise RefusedError(404, "nobody offers this service")
        return service, found, gone

    def _figures(self, service: str, found: Sequence[Provider], gone: Sequence[Change]) -> dict[ProviderKind, Row]:
        kinds = {each.kind for each in (*found, *(change.provider for change in gone))}
        return {kind: attrs.asdict(self.registry.stats(service, kind)) for kind in sorted(kinds)}


def _filter(options: Options) -> Callable[[Provider], bool]:
    service, state = read.text(options, "service"), read.text(options, "state")
    versions = read.version_range(options, "version")
    metadata = read.texts(options, "metadata").items()

    def fits(each: Provider) -> bool:
        return (
            (service is None or each.service == service)
            and (state is None or each.state == state)
            and (versions is None or each.version in versions)
            and all(each.metadata.get(key) == value for key, value in metadata)
        )

    return fits


def _page(
    rows: Sequence[Any], place: Callable[[Any], tuple[str, str, str]], after: tuple[str, str, str] | None, limit: int
) -> tuple[Sequence[Any], tuple[str, str, str] | None]:
    """Give the rows after a place, and where to go on; None when these are the last."""
    if after is not None:
        rows = [row for row in rows if place(row) > after]
    return rows[:limit], place(rows[limit - 1]) if len(rows) > limit else None


def _place(provider: Provider) -> tuple[str, str, str]:
    return (provider.service, provider.provider, provider.kind)


def _row(provider: Provider) -> Row:
    return {
        "service": provider.service,
        "provider": provider.provider,
        "kind": provider.kind,
        "state": provider.state,
        "version": provider.version,
        "metadata": dict(provider.metadata),
        "endpoints": list(provider.endpoints),
        "sockets": {name: list(addresses) for name, addresses in provider.sockets.items()},
        "tasks": provider.tasks,
    }


def _change(change: Change) -> Row:
    return {
        "kind": change.kind,
        "revision": change.revision,
        "previous": change.previous,
        "provider": _row(change.provider),
    }


def _topic(change: Change) -> bytes:
    return f"service/{change.provider.service}/".encode(errors="replace")


def _json(value: object) -> bytes:
    # ASCII: whatever a worker has written into its metadata, this is UTF-8
    return json.dumps(value, separators=(",", ":")).encode()
