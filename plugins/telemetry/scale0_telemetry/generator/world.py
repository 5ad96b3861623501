"""The world that the generated events come from: brokers, services, workers, and what goes wrong with them.

All of it is drawn from the seed before the first event is made, so that an event needs no memory of those before it and
millions can be made at once.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from scale0_telemetry.generator.music import Music, make_music
from scale0_telemetry.generator.plan import DAY_US, MINUTE_US, MINUTES, Plan

HOUR_US = 60 * MINUTE_US
GROUPS = ("east", "west", "north")
TASKS = ("resize", "transcode", "index", "mail", "ocr", "archive", "backup")
REQUESTS = ("account", "quote", "search", "geo", "rates")
SERVICES = TASKS + REQUESTS
EXPONENT = 1.1
"""Of Zipf's law for services: the n-th has 1/n^1.1 times the requests of the first."""
SLOTS = 2
SPREAD = 0.55
"""Sigma of the logarithm of service times."""
TAIL_SHARE, TAIL_FACTOR = 0.01, 8.0
MEAN_FACTOR = float(np.exp(SPREAD**2 / 2) * (1 + TAIL_SHARE * (TAIL_FACTOR - 1)))
"""The mean service time over its median."""
FASTEST_US, SLOWEST_US = 300.0, 5_000_000.0
GROWING = TASKS.index("transcode")
"""This service takes twice as long at the end as at the beginning."""
SHARES = {
    "task": 0.42, "rpc": 0.22, "song_search": 0.11, "song_download": 0.04, "pipe_write": 0.025, "pipe_read": 0.02,
    "key_change": 0.015, "drop": 0.01, "heartbeat": 0.12, "load": 0.02,
}  # fmt: skip
"""How the kinds of events share the day, on the average; ``join``, ``leave`` and others come as the world has them."""
STEADY = ("heartbeat", "load")
"""Kinds that do not follow the load."""
WEEK = np.array([1.0, 1.03, 1.05, 1.03, 0.98, 0.72, 0.62])
"""The load of Monday to Sunday."""


@attrs.frozen
class Incident:
    """Something that goes wrong for a while."""

    what: str
    """``errors``, ``slow`` or ``down``."""
    whom: int
    """A service, or the broker that is down."""
    start: int
    end: int
    strength: float = 0.0
    """The share of errors, or how many times slower."""


@attrs.frozen
class Absence:
    """A worker that is away for a while; ``outcome`` says why, None when its broker did not see it go."""

    worker: int
    start: int
    end: int
    outcome: str | None


@attrs.frozen(eq=False)
class World:
    """Everything that events tell of."""

    plan: Plan
    music: Music
    brokers: tuple[str, ...]
    workers: tuple[str, ...]
    worker_service: np.ndarray
    worker_broker: np.ndarray
    worker_table: np.ndarray
    """For each service 256 workers; one of them is drawn for a request, so that busy groups get more."""
    substitute: np.ndarray
    """For each worker the one that works in its place: of the same service, at another broker if there is one."""
    busy: np.ndarray
    """The share of their time for which the workers of each service are busy, at the beginning."""
    median_us: np.ndarray
    incidents: tuple[Incident, ...]
    absences: tuple[Absence, ...]
    epochs: tuple[tuple[int, ...], ...]
    """For each broker the times at which it was started."""
    day_noise: np.ndarray

    def downs(self) -> tuple[Incident, ...]:
        """Give the times at which brokers are down."""
        return tuple(incident for incident in self.incidents if incident.what == "down")

    def shape(self, day: int) -> np.ndarray:
        """Give the load of each minute of a day; its mean over the weeks is about 1."""
        minute = np.arange(MINUTES)
        noon = np.exp(-(((minute - 13.5 * 60) / (4.2 * 60)) ** 2))
        evening = 0.55 * np.exp(-(((minute - 20.5 * 60) / (1.6 * 60)) ** 2))
        weekday = (self.plan.start_us // DAY_US + day + 3) % 7  # 1970 began on a Thursday
        return np.asarray((0.25 + 1.7 * noon + evening) * float(WEEK[weekday] * self.day_noise[day]))

    def intensity(self, day: int) -> np.ndarray:
        """Give how many events each minute of a day has, in proportion."""
        steady = sum(SHARES[kind] for kind in STEADY)
        minutes = (1 - steady) * self.shape(day) + steady
        if len(self.brokers) == 1:
            for down in self.downs():
                minutes[self.minutes_of(day, down)] = 0
        return minutes

    def minutes_of(self, day: int, incident: Incident) -> slice:
        """Give the minutes of a day that an incident takes; there may be none."""
        midnight = self.plan.start_us + day * DAY_US
        first, last = (incident.start - midnight) // MINUTE_US, (incident.end - midnight) // MINUTE_US
        return slice(int(np.clip(first, 0, MINUTES)), int(np.clip(last, 0, MINUTES)))

    def growth(self, day: int) -> np.ndarray:
        """Give for each service how many times longer it takes on this day than on the first."""
        factors = np.ones(len(SERVICES))
        factors[GROWING] += day / max(1, self.plan.days - 1)
        return factors


def service_weights(kind: str) -> np.ndarray:
    """Give each service's share of the requests of a kind, and none to those of the other kind."""
    weights = np.zeros(len(SERVICES))
    names = TASKS if kind == "task" else REQUESTS
    first = SERVICES.index(names[0])
    weights[first : first + len(names)] = 1.0 / np.arange(1, len(names) + 1) ** EXPONENT
    return np.asarray(weights / weights.sum())


def group_of(broker: Any) -> Any:
    """Give the group that a broker belongs to, or each of many."""
    return broker % len(GROUPS)


def make_world(plan: Plan) -> World:
    """Draw the world of a plan."""
    chance = plan.chance(1)
    services = np.repeat(np.arange(len(SERVICES)), _worker_counts())
    place = np.concatenate([np.arange(count) for count in _worker_counts()])
    brokers = (place + services) % plan.brokers
    busy = chance.uniform(0.25, 0.5, len(SERVICES))
    busy[GROWING] = 0.4
    incidents = _incidents(plan, chance)
    return World(
        plan=plan,
        music=make_music(plan),
        brokers=tuple(f"broker-{number}" for number in range(1, plan.brokers + 1)),
        workers=tuple(f"{SERVICES[s]}-{n + 1:02d}" for s, n in zip(services, place, strict=True)),
        worker_service=services,
        worker_broker=brokers,
        worker_table=_worker_table(services, brokers, chance),
        substitute=_substitutes(services, brokers),
        busy=busy,
        median_us=_medians(plan, busy),
        incidents=incidents,
        absences=_absences(plan, brokers, incidents, chance),
        epochs=_epochs(plan, incidents, chance),
        day_noise=chance.normal(1.0, 0.02, plan.days),
    )


def _worker_counts() -> np.ndarray:
    weights = service_weights("task") + service_weights("rpc")
    return np.asarray(np.maximum(3, np.round(weights * 14)), dtype=np.int64)


def _worker_table(services: np.ndarray, brokers: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Give workers requests by the demand of their groups, which is another for each service."""
    table = np.empty((len(SERVICES), 256), dtype=np.uint8)
    for service in range(len(SERVICES)):
        workers = np.flatnonzero(services == service)
        groups = brokers[workers] % len(GROUPS)
        demand = chance.dirichlet(np.full(len(GROUPS), 3.0))
        weights = demand[groups] / np.bincount(groups, minlength=len(GROUPS))[groups] + 1e-6
        edges = np.cumsum(weights / weights.sum())
        table[service] = workers[np.minimum(np.searchsorted(edges, (np.arange(256) + 0.5) / 256), len(workers) - 1)]
    return table


def _substitutes(services: np.ndarray, brokers: np.ndarray) -> np.ndarray:
    found = np.empty(len(services), dtype=np.uint8)
    for worker in range(len(services)):
        others = [*range(worker + 1, len(services)), *range(worker)]
        same = [other for other in others if services[other] == services[worker]]
        found[worker] = next((other for other in same if brokers[other] != brokers[worker]), same[0])
    return found


def _medians(plan: Plan, busy: np.ndarray) -> np.ndarray:
    """Let service times be such that the workers are as busy as meant, within what is believable."""
    shares = SHARES["task"] * service_weights("task") + SHARES["rpc"] * service_weights("rpc")
    slots_us = _worker_counts() * SLOTS * plan.days * DAY_US
    return np.asarray(np.clip(busy * slots_us / (plan.originals * shares * MEAN_FACTOR), FASTEST_US, SLOWEST_US))


def _incidents(plan: Plan, chance: np.random.Generator) -> tuple[Incident, ...]:
    """Draw one burst of errors, one slow hour and one failure of a broker for each week, in the second half of it."""
    found = []
    for week in range((plan.days + 6) // 7):
        first, last = week * 7 * 24, min(plan.days, week * 7 + 7) * 24
        hours = chance.integers((first + last) // 2, last - 2, 3)
        services = chance.integers(0, len(SERVICES), 2)
        starts = [plan.start_us + int(hour) * HOUR_US for hour in hours]
        found += [
            Incident("errors", int(services[0]), starts[0], starts[0] + 30 * MINUTE_US, 0.35),
            Incident("slow", int(services[1]), starts[1], starts[1] + HOUR_US, 6.0),
            Incident("down", int(chance.integers(plan.brokers)), starts[2], starts[2] + 25 * MINUTE_US),
        ]
    return tuple(found)


def _absences(
    plan: Plan, brokers: np.ndarray, incidents: tuple[Incident, ...], chance: np.random.Generator
) -> tuple[Absence, ...]:
    """Draw when workers are away: new versions every week, two that flap, and all of a broker that is down."""
    found = []
    for down in (incident for incident in incidents if incident.what == "down"):
        found += [
            Absence(int(worker), down.start, down.end + int(chance.integers(1, 20)) * 1_000_000, None)
            for worker in np.flatnonzero(brokers == down.whom)
        ]
    for worker in range(len(brokers)):
        for day in range(int(chance.integers(0, 7)), plan.days, 7):
            start = plan.start_us + day * DAY_US + 9 * HOUR_US + int(chance.integers(HOUR_US))
            outcome = str(chance.choice(["left", "left", "left", "lost", "silent"]))
            found.append(Absence(worker, start, start + int(chance.integers(5, 90)) * 1_000_000, outcome))
    for worker in chance.choice(len(brokers), 2, replace=False):
        hour = int(chance.integers(0, plan.days * 24 - 3)) if plan.days * 24 > 3 else 0
        found += _flaps(int(worker), plan.start_us + hour * HOUR_US, chance)
    return tuple(sorted(_apart(found), key=lambda absence: (absence.start, absence.worker)))


def _flaps(worker: int, start: int, chance: np.random.Generator) -> list[Absence]:
    """Let a worker come and go for three hours, every five minutes or so."""
    found = []
    for number in range(36):
        gone = start + number * 5 * MINUTE_US + int(chance.integers(2 * MINUTE_US))
        outcome = "lost" if chance.random() < 0.7 else "silent"
        found.append(Absence(worker, gone, gone + int(chance.integers(10, 120)) * 1_000_000, outcome))
    return found


def _apart(absences: list[Absence]) -> list[Absence]:
    """Leave out absences that begin before another of the same worker is over."""
    kept: list[Absence] = []
    free: dict[int, int] = {}
    for absence in sorted(absences, key=lambda one: (one.start, one.outcome is not None)):
        if absence.start > free.get(absence.worker, -1):
            kept.append(absence)
            free[absence.worker] = absence.end
    return kept


def _epochs(plan: Plan, incidents: tuple[Incident, ...], chance: np.random.Generator) -> tuple[tuple[int, ...], ...]:
    """Give the starts of each broker: some time before the first event, and after each time it was down."""
    return tuple(
        (
            plan.start_us - int(chance.integers(1, HOUR_US)),
            *sorted({one.end for one in incidents if one.what == "down" and one.whom == broker}),
        )
        for broker in range(plan.brokers)
    )
