"""Columns of generated events, many rows at a time: one function for each kind of events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from scale0_telemetry.generator.music import Music
from scale0_telemetry.generator.plan import DAY_US, MINUTE_US, MINUTES
from scale0_telemetry.generator.world import (
    GROUPS,
    SERVICES,
    SHARES,
    SLOTS,
    SPREAD,
    STEADY,
    TAIL_FACTOR,
    TAIL_SHARE,
    World,
    group_of,
    service_weights,
)

KINDS = tuple(SHARES)
DRAWS = 4096
"""A kind and a service are drawn from tables of so many places: one random number and one look."""
FAILED = 0.004
"""The share of errors when nothing is wrong."""
FULLEST = 0.97
"""No queue is longer than that of workers that are busy for this share of their time."""
HEARTBEAT_WEIGHT = 60.0
"""Heartbeats are many and alike: one in sixty is kept, and says so."""
OUTCOMES = ("ok", "error", "timeout", "lost", "refused", "cancelled")
FAILURES = np.array([1] * 19 + [2] * 6 + [3] * 2 + [4] * 3 + [5] * 2, dtype=np.int8)
OK, ERROR, TIMEOUT, REFUSED = 0, 1, 2, 4
TIMEOUT_US = 30_000_000
"""When the time of a request is up."""
PIPES = ("events", "orders", "frames", "audit", "uploads", "metrics", "mail", "debug")
DROPS = (
    ("scale0", "EHOSTUNREACH"), ("majordomo", "EHOSTUNREACH"), ("scale0", "EAGAIN"), ("zpipes", "EAGAIN"),
    ("musicquest-server", "EAGAIN"), ("telemetry", "queue"), ("scale0", "closed"), ("zpipes", "too many frames"),
)  # fmt: skip
"""The services of a broker that drop messages, and why, the most frequent first; telemetry drops events."""
CLIENTS = 40
KEYS = 400
WORDS = tuple(
    json.dumps({"text": f"{one} {other}"})
    for one in ("blue", "river", "live", "summer", "night", "radio")
    for other in ("song", "remix", "parade", "letter", "machine")
)
UNKNOWN = tuple(f"Unknown Tune {number:03d}.ogg" for number in range(50))


@attrs.frozen(eq=False)
class Coded:
    """A column of few different strings: the number of each row's string, and whether a row has none."""

    codes: np.ndarray
    words: Sequence[str]
    missing: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> Coded:
        """Give some of the rows."""
        return Coded(self.codes[rows], self.words, None if self.missing is None else self.missing[rows])

    def arrow(self) -> Any:
        """Give the strings."""
        return pa.array(self.words, pa.string()).take(pa.array(self.codes, mask=self.missing))


@attrs.frozen(eq=False)
class Numbers:
    """A column of numbers, and whether a row has none."""

    values: np.ndarray
    missing: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> Numbers:
        """Give some of the rows."""
        return Numbers(self.values[rows], None if self.missing is None else self.missing[rows])

    def arrow(self) -> Any:
        """Give the numbers."""
        kind = pa.float64() if self.values.dtype.kind == "f" else pa.int64()
        return pa.array(self.values, kind, mask=self.missing)


Columns = Mapping[str, Coded | Numbers]
Rows = tuple[np.ndarray, Columns]
"""The broker of each row, and what the rows tell."""


@attrs.frozen(eq=False)
class Day:
    """What is the same for all events of a day: tables by service and minute."""

    world: World
    number: int
    kinds: np.ndarray
    """For each hour a table from which kinds are drawn."""
    intensity: np.ndarray
    shape: np.ndarray
    service_us: np.ndarray
    queue_us: np.ndarray
    failing: np.ndarray

    @property
    def midnight(self) -> int:
        """The time at which it begins."""
        return self.world.plan.start_us + self.number * DAY_US

    def minute(self, ts: np.ndarray) -> np.ndarray:
        """Give the minute of the day."""
        return ((ts - self.midnight) // MINUTE_US).astype(np.int32)


def make_day(world: World, number: int) -> Day:
    """Work out the tables of a day."""
    shape, growth = world.shape(number), world.growth(number)
    slow, failing = np.ones((len(SERVICES), MINUTES)), np.full((len(SERVICES), MINUTES), FAILED)
    for incident in world.incidents:
        if incident.what == "slow":
            slow[incident.whom, world.minutes_of(number, incident)] = incident.strength
        elif incident.what == "errors":
            failing[incident.whom, world.minutes_of(number, incident)] = incident.strength
    service_us = (world.median_us * growth)[:, None] * slow
    full = np.minimum((world.busy * growth)[:, None] * shape, FULLEST)
    waits = 80.0 + service_us * full**3 / (1 - full) / SLOTS
    return Day(
        world, number, _kind_table(shape), world.intensity(number), shape,
        service_us.astype(np.float32), waits.astype(np.float32), failing.astype(np.float32),
    )  # fmt: skip


def _kind_table(shape: np.ndarray) -> np.ndarray:
    table = np.empty((24, DRAWS), dtype=np.uint8)
    for hour in range(24):
        load = shape[hour * 60 : hour * 60 + 60].mean()
        table[hour] = _draws(np.array([SHARES[kind] * (1 if kind in STEADY else load) for kind in KINDS]))
    return table


def _draws(weights: np.ndarray) -> np.ndarray:
    """Make a table in which each number has as many places as its weight says."""
    edges = np.cumsum(weights / weights.sum())
    return np.searchsorted(edges[:-1], (np.arange(DRAWS) + 0.5) / DRAWS, side="right")


_SERVICE_DRAWS = {kind: _draws(service_weights(kind)).astype(np.uint8) for kind in ("task", "rpc")}


def _few(chance: np.random.Generator, count: int) -> np.ndarray:
    return chance.integers(0, DRAWS, count, dtype=np.uint16)


def _lognormal(chance: np.random.Generator, count: int, median: float, spread: float) -> np.ndarray:
    return np.asarray(median * np.exp(spread * chance.standard_normal(count, dtype=np.float32)))


def _groups(broker: np.ndarray) -> Coded:
    return Coded(group_of(broker).astype(np.int8), GROUPS)


# --- requests and workers ---------------------------------------------------------------------------------------------


def present(world: World, worker: np.ndarray, ts: np.ndarray) -> np.ndarray:
    """Put another worker of the same service in the place of each that is away at the time."""
    for unseen in (False, True):
        for away in world.absences:
            if away.start <= ts[-1] and away.end > ts[0] and (away.outcome is None) is unseen:
                some = worker[np.searchsorted(ts, away.start) : np.searchsorted(ts, away.end)]
                some[some == away.worker] = world.substitute[away.worker]
    return worker


def requests(day: Day, kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make tasks or requests of Majordomo."""
    world, count = day.world, len(ts)
    service = _SERVICE_DRAWS[kind][_few(chance, count)]
    worker = world.worker_table[service, chance.integers(0, 256, count, dtype=np.uint8)]
    worker = present(world, worker, ts)
    place = service.astype(np.int32) * MINUTES + day.minute(ts)
    outcome = np.zeros(count, dtype=np.int8)
    failed = np.flatnonzero(chance.random(count, dtype=np.float32) < day.failing.ravel()[place])
    outcome[failed] = FAILURES[chance.integers(0, len(FAILURES), len(failed))]
    taken_us, queue_us = _times(day, place, chance)
    # who was refused, and half of those whose time was up, never got to a worker
    never = (outcome == REFUSED) | ((outcome == TIMEOUT) & (chance.random(count, dtype=np.float32) < 0.5))
    late = np.flatnonzero(outcome == TIMEOUT)
    taken_us[late] = np.where(never[late], 0, np.minimum(taken_us[late].astype(np.int64), TIMEOUT_US))
    queue_us[late] = TIMEOUT_US - taken_us[late]
    answered = (outcome == OK) | (outcome == ERROR) if kind == "task" else outcome == OK
    size = _lognormal(chance, count, 800.0, 0.9)
    broker = world.worker_broker[worker]
    return broker, {
        "service": Coded(service, SERVICES),
        "peer": Coded(worker, world.workers, never),
        "group": _groups(broker),
        "outcome": Coded(outcome, OUTCOMES),
        "queue_us": Numbers(queue_us.astype(np.int64), outcome == REFUSED),
        "service_us": Numbers(taken_us.astype(np.int64), never),
        "bytes": Numbers(np.where(answered, size, 0).astype(np.int64)),
    }


def _times(day: Day, place: np.ndarray, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw service times, log-normal with a long tail, and the times in the queue, longer at the peaks."""
    count = len(place)
    taken_us = day.service_us.ravel()[place] * _lognormal(chance, count, 1.0, SPREAD)
    tail = np.flatnonzero(chance.random(count, dtype=np.float32) < TAIL_SHARE)
    taken_us[tail] *= 1 + (TAIL_FACTOR - 1) * chance.standard_exponential(len(tail), dtype=np.float32)
    queue_us = day.queue_us.ravel()[place] * chance.standard_exponential(count, dtype=np.float32)
    return taken_us, queue_us


def heartbeats(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make heartbeats of workers that are there."""
    world = day.world
    worker = present(world, chance.integers(0, len(world.workers), len(ts), dtype=np.uint8), ts)
    broker = world.worker_broker[worker]
    return broker, {
        "weight": Numbers(np.full(len(ts), HEARTBEAT_WEIGHT)),
        "service": Coded(world.worker_service[worker], SERVICES),
        "peer": Coded(worker, world.workers),
        "group": _groups(broker),
    }


# --- music ------------------------------------------------------------------------------------------------------------


def _songs(day: Day, server: np.ndarray, chance: np.random.Generator) -> np.ndarray:
    """Draw songs by the ranking of the day; a third of the listeners of each server have a taste of their own."""
    music, count = day.world.music, len(server)
    rank = np.searchsorted(music.cumulated[:-1], chance.random(count, dtype=np.float32), side="right")
    own = chance.random(count, dtype=np.float32) < 0.33
    ranking = music.ranking[day.number]
    return np.asarray(ranking[(rank + own * (server.astype(np.int32) + 1) * 61) % len(ranking)], dtype=np.int32)


def _servers(music: Music, count: int, chance: np.random.Generator) -> np.ndarray:
    return np.asarray(_draws(music.server_share)[_few(chance, count)], dtype=np.int8)


def searches(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make searches: most by the name of a song, some by words, a few for what nobody has."""
    music, count = day.world.music, len(ts)
    server = _servers(music, count, chance)
    song = _songs(day, server, chance)
    draw = chance.random((3, count), dtype=np.float32)
    by_words, unknown = draw[0] < 0.15, draw[0] > 0.97
    outcome = np.where(draw[1] < 0.35, 1, np.where(draw[1] < 0.99, 2, 4)).astype(np.int8)
    outcome[music.held_since[song, server] <= day.number] = 0
    outcome[unknown] = 3
    subject = np.where(unknown, len(music.songs) + song % len(UNKNOWN), song)
    takes_us = np.array([400, 250, 9000, 60_000, 2_000_000], dtype=np.float32)[outcome] * (0.5 + draw[2])
    return server % len(day.world.brokers), {
        "peer": Coded(server, music.servers),
        "subject": Coded(subject, music.songs + UNKNOWN, by_words),
        "outcome": Coded(outcome, ("hit", "cached", "found", "miss", "timeout")),
        "service_us": Numbers(takes_us.astype(np.int64)),
        "details": Coded(song % len(WORDS), WORDS, ~by_words),
    }


def downloads(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make downloads: from the server one asks if it has the song, else from the song's home."""
    music, count = day.world.music, len(ts)
    server = _servers(music, count, chance)
    song = _songs(day, server, chance)
    here = music.held_since[song, server] <= day.number
    server = np.where(here, server, music.home[song]).astype(np.int8)
    draw = chance.random((2, count), dtype=np.float32)
    whole = 3_000_000 + song.astype(np.int64) * 997 % 6_000_000
    broken = draw[0] < 0.03
    return server % len(day.world.brokers), {
        "peer": Coded(server, music.servers),
        "subject": Coded(song, music.songs),
        "outcome": Coded(broken.astype(np.int8), ("ok", "broken")),
        "bytes": Numbers(np.where(broken, whole * draw[1], whole).astype(np.int64)),
    }


# --- all else ---------------------------------------------------------------------------------------------------------


def _any_broker(day: Day, count: int, chance: np.random.Generator) -> np.ndarray:
    return chance.integers(0, len(day.world.brokers), count, dtype=np.uint8)


def pipes(day: Day, kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make summaries of what was written to and read from pipes."""
    count = len(ts)
    chunks = 1 + _lognormal(chance, count, 30.0 if kind == "pipe_write" else 37.0, 1.1).astype(np.int64)
    size = np.array([120, 400, 64_000, 200, 30_000, 150, 2_000, 90])
    pipe = (chance.random(count, dtype=np.float32) ** 2 * len(PIPES)).astype(np.int8)
    return _any_broker(day, count, chance), {
        "subject": Coded(pipe, PIPES),
        "count": Numbers(chunks),
        "bytes": Numbers(chunks * size[pipe]),
    }


def keys(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make changes of keys."""
    count = len(ts)
    deleted = chance.random(count, dtype=np.float32) < 0.1
    key = (chance.random(count, dtype=np.float32) ** 3 * KEYS).astype(np.int16)
    return _any_broker(day, count, chance), {
        "service": Coded(np.zeros(count, dtype=np.int8), ("clone",)),
        "peer": Coded(chance.integers(0, CLIENTS, count), tuple(f"client-{number:02d}" for number in range(CLIENTS))),
        "subject": Coded(key, tuple(f"/settings/{number:03d}" for number in range(KEYS))),
        "outcome": Coded(deleted.astype(np.int8), ("set", "deleted")),
        "bytes": Numbers(np.where(deleted, 0, _lognormal(chance, count, 60.0, 0.8)).astype(np.int64)),
    }


def drops(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make messages that were dropped."""
    count = len(ts)
    drop = (chance.random(count, dtype=np.float32) ** 2 * len(DROPS)).astype(np.int8)
    services, reasons = zip(*DROPS, strict=True)
    return _any_broker(day, count, chance), {
        "service": Coded(drop, services),
        "outcome": Coded(drop, reasons),
        "count": Numbers(1 + chance.standard_exponential(count, dtype=np.float32).astype(np.int64)),
    }


def loads(day: Day, _kind: str, ts: np.ndarray, chance: np.random.Generator) -> Rows:
    """Make what brokers tell of themselves."""
    count = len(ts)
    broker = _any_broker(day, count, chance)
    noise = 0.8 + 0.4 * chance.random(count)
    level = np.minimum(0.3 * day.shape[day.minute(ts)] * noise, 0.99)
    return broker, {
        "group": _groups(broker),
        "value": Numbers(np.round(level, 4)),
        "count": Numbers((level * 200_000).astype(np.int64)),
        "service_us": Numbers((level * 9_000_000).astype(np.int64)),
        "queue_us": Numbers((2_000 + 30_000 * level * noise).astype(np.int64)),
        "bytes": Numbers((60_000_000 + 40_000_000 * level).astype(np.int64)),
    }


MAKERS: Mapping[str, Callable[[Day, str, np.ndarray, np.random.Generator], Rows]] = {
    "task": requests, "rpc": requests, "song_search": searches, "song_download": downloads, "pipe_write": pipes,
    "pipe_read": pipes, "key_change": keys, "drop": drops, "heartbeat": heartbeats, "load": loads,
}  # fmt: skip
