"""Events that happen at their own time, whatever the load: workers that come and go, copies of songs, new settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from scale0_telemetry.generator.plan import DAY_US, MINUTE_US
from scale0_telemetry.generator.world import GROUPS, SERVICES, SLOTS, World, group_of

SHARE = 5
"""At most one of so many events is of this sort: few events of a large world would tell of nothing else."""
CHANGES_A_WEEK = 2


class Scheduled(NamedTuple):
    """One event: its time, its kind, the broker that tells of it, and its fields by name."""

    ts: int
    kind: str
    broker: int
    fields: Mapping[str, Any]


def schedule_of(world: World) -> list[Scheduled]:
    """Give all such events, in order of time."""
    room = world.plan.originals // SHARE
    found: list[Scheduled] = []
    for unit in (_replicas(world), _changes(world), *_workers(world)):
        if len(found) + len(unit) <= room:
            found += unit
    return sorted(found, key=lambda event: event.ts)


def _awake(world: World, broker: int, when: int) -> int:
    """Give the time at which a broker tells of something: later when it is down, before the end in any case."""
    for down in world.downs():
        if down.whom == broker and down.start <= when < down.end:
            return down.end + 1_000_000 + when % 1_000_000
    return min(when, world.plan.end_us - 1)


def _replicas(world: World) -> list[Scheduled]:
    music, found = world.music, []
    for number, (when, song, server, source) in enumerate(music.replicas):
        broker = server % len(world.brokers)
        fields = {
            "peer": music.servers[server],
            "subject": music.songs[song],
            "source": music.servers[source],
            "outcome": "plan" if number % 3 else "popular",
            "bytes": 3_000_000 + song * 997 % 6_000_000,
        }
        found.append(Scheduled(_awake(world, broker, when), "song_replica", broker, fields))
    return found


def _changes(world: World) -> list[Scheduled]:
    """Give new versions of configurations, and brokers that are disabled before they are taken down on purpose."""
    chance, plan, found = world.plan.chance(3), world.plan, []
    for broker in range(len(world.brokers)):
        times = plan.start_us + chance.integers(0, plan.days * DAY_US, CHANGES_A_WEEK * ((plan.days + 6) // 7))
        version = int(chance.integers(2, 9))
        for number, when in enumerate(sorted(_awake(world, broker, int(when)) for when in times)):
            found.append(_change(when, broker, "config", "applied", version + number))
    for down in world.downs()[::2]:
        found.append(_change(down.start - 1, down.whom, "state", "disabled", None))
        found.append(_change(down.end + 1, down.whom, "state", "active", None))
    return found


def _change(when: int, broker: int, subject: str, outcome: str, count: int | None) -> Scheduled:
    return Scheduled(when, "config_change", broker, {"subject": subject, "outcome": outcome, "count": count})


def _workers(world: World) -> Iterator[list[Scheduled]]:
    """Give the joins and leaves of one worker after the other."""
    chance = world.plan.chance(4)
    by_worker = sorted(world.absences, key=lambda absence: (absence.worker, absence.start))
    absences = {worker: list(group) for worker, group in groupby(by_worker, key=lambda absence: absence.worker)}
    for worker in range(len(world.workers)):
        broker = int(world.worker_broker[worker])
        who = {
            "service": SERVICES[world.worker_service[worker]],
            "peer": world.workers[worker],
            "group": GROUPS[group_of(broker)],
        }
        joined = world.plan.start_us + int(chance.integers(1, MINUTE_US))
        found = [Scheduled(joined, "join", broker, {**who, "count": SLOTS})]
        for absence in absences.get(worker, ()):
            gone = max(joined + 1, absence.start)
            if absence.outcome is not None and gone < world.plan.end_us:
                value = round((gone - joined) / 1e6, 3)
                found.append(Scheduled(gone, "leave", broker, {**who, "outcome": absence.outcome, "value": value}))
            joined = max(gone + 1, _awake(world, broker, absence.end))
            if absence.end < world.plan.end_us and joined < world.plan.end_us:
                found.append(Scheduled(joined, "join", broker, {**who, "count": SLOTS}))
        yield found
