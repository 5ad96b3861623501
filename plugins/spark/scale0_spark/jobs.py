"""The jobs: which events each reads, and which tables it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

import attrs
from pyspark.sql import DataFrame

from scale0_spark.transforms import (
    anomalies,
    availability,
    caches,
    capacity,
    placement,
    popularity,
    replication,
    trends,
)
from scale0_spark.transforms.order import in_order


@attrs.frozen
class Options:
    """What all jobs depend on."""

    accuracy: int = attrs.field(default=trends.ACCURACY, validator=attrs.validators.ge(1))
    """Ranks of percentiles are off by one in this many at most."""
    availability: availability.Availability = attrs.field(factory=availability.Availability)
    capacity: capacity.Capacity = attrs.field(factory=capacity.Capacity)
    popularity: popularity.Popularity = attrs.field(factory=popularity.Popularity)
    replication: replication.Replication = attrs.field(factory=replication.Replication)
    placement: placement.Placement = attrs.field(factory=placement.Placement)
    anomalies: anomalies.Anomalies = attrs.field(factory=anomalies.Anomalies)


Transform = Callable[[DataFrame, Options], DataFrame]


@attrs.frozen
class Job:
    """A name for something that turns events into tables."""

    name: str
    summary: str
    kinds: tuple[str, ...]
    tables: Mapping[str, Transform]
    earlier: tuple[str, ...] = ()
    """Kinds of which it needs events from before the span, too: how many tasks at once, a worker says when it joins."""
    weeks_before: Callable[[Options], int] | None = None
    """How many weeks before the span it needs all its kinds of, for rows of the span alone; none if None."""

    def reach(self, options: Options) -> dict[str, timedelta | None]:
        """Give how far before the span it reads events of each of its kinds; None for all that there are."""
        back = timedelta(weeks=self.weeks_before(options) if self.weeks_before is not None else 0)
        return {kind: None if kind in self.earlier else back for kind in self.kinds}


def _trends(every: str) -> Transform:
    return lambda events, options: in_order(trends.trends(events, every, accuracy=options.accuracy), *trends.KEYS)


_ALL = (
    Job(
        "trends",
        "requests, errors and times of services by minute, hour and day",
        trends.KINDS,
        {f"trends_{every}": _trends(every) for every in ("minute", "hour", "day")},
    ),
    Job(
        "seconds",
        "the same by second, for what was short",
        trends.KINDS,
        {"trends_second": _trends("second")},
    ),
    Job(
        "availability",
        "how long workers and brokers were there, and which come and go",
        availability.KINDS,
        {
            "availability": lambda events, options: availability.availability(events),
            "flapping": lambda events, options: availability.flapping(events, options.availability),
        },
    ),
    Job(
        "capacity",
        "how busy the workers of services are, and when they will be full",
        capacity.KINDS,
        {"capacity": lambda events, options: capacity.capacity(events, options.capacity)},
        earlier=("join",),
    ),
    Job(
        "popularity",
        "how popular songs are",
        popularity.KINDS,
        {"popularity": lambda events, options: popularity.popularity(events, options.popularity).orderBy("rank")},
    ),
    Job(
        "caches",
        "how many searches music servers answer by themselves",
        caches.KINDS,
        {"cache_rates": lambda events, options: in_order(caches.cache_rates(events), *caches.KEYS)},
    ),
    Job(
        "replication",
        "which songs should be copied to which music servers",
        replication.KINDS,
        {"replication_plan": lambda events, options: replication.replication_plan(events, options.replication)},
    ),
    Job(
        "placement",
        "how many workers each service should have in each group",
        placement.KINDS,
        {"placement_plan": lambda events, options: placement.placement_plan(events, options.placement)},
        earlier=("join", "leave"),
    ),
    Job(
        "anomalies",
        "hours that are unlike those of the weeks before",
        anomalies.KINDS,
        {"anomalies": lambda events, options: anomalies.anomalies(events, options.anomalies)},
        weeks_before=lambda options: options.anomalies.weeks,
    ),
)

JOBS: Mapping[str, Job] = {job.name: job for job in _ALL}
"""The jobs by name."""


def reach(jobs: Iterable[Job], options: Options) -> dict[str, timedelta | None]:
    """Give how far before the span jobs together read events of each of their kinds; None for all that there are."""
    found: dict[str, timedelta | None] = {}
    for job in jobs:
        for kind, back in job.reach(options).items():
            other = found.get(kind, back)
            found[kind] = None if back is None or other is None else max(back, other)
    return found


def run(job: Job, events: DataFrame, options: Options | None = None) -> dict[str, DataFrame]:
    """Give the tables of a job, by name; nothing is computed before they are read.

    `events` should be each of them once (`events.deduplicated`); kinds that the job does not read are no harm.
    """
    chosen = options or Options()
    return {name: transform(events, chosen) for name, transform in job.tables.items()}
