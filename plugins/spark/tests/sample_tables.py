"""Result tables as the jobs write them, made by hand, for the tests of the report."""

from __future__ import annotations

import math
import random
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa

from scale0_spark import tables

START = datetime(2030, 1, 1, tzinfo=timezone.utc)
TIME = pa.timestamp("us", "UTC")


def write_all(
    out: Path, services: tuple[str, ...] = ("echo", "music", "thumbs"), days: int = 7, song: str = "Song"
) -> None:
    """Write every table, with the names that are given."""
    chance = random.Random(7)
    hours = [START + timedelta(hours=hour) for hour in range(24 * days)]
    trends = [_trend(hour, service, number, chance) for hour in hours for number, service in enumerate(services)]
    for name in ("trends_minute", "trends_hour", "trends_day"):
        _write(out, name, trends)
    capacity = [_capacity(hour, service, number, days) for hour in hours for number, service in enumerate(services)]
    _write(out, "capacity", capacity)
    _write(out, "availability", [_availability(services[number % len(services)], number) for number in range(20)])
    flap = {
        "broker": "b",
        "service": services[0],
        "peer": f"{services[0]}-1",
        "window_start": hours[0],
        "changes": 8,
        "flaps": 4,
    }
    _write(out, "flapping", [flap, {**flap, "service": None, "peer": None}])
    songs = [
        {"song": f"{song} {number}", "requests": 1000.0 / number, "downloads": 90.0 / number, "score": 2000.0 / number,
         "rank": number}
        for number in range(1, 40)
    ]  # fmt: skip
    _write(out, "popularity", songs)
    rates = [
        {"window_start": hour, "server": f"tcp://127.0.0.1:{4401 + server}", "searches": 100.0,
         "hits": 40.0 + server * 10, "cached": 20.0, "found": 25.0 - server * 5, "misses": 15.0 - server * 5,
         "hit_rate": 0.4, "cache_hit_rate": 0.2}
        for hour in hours for server in range(3)
    ]  # fmt: skip
    _write(out, "cache_rates", rates)
    _write(out, "replication_plan", [{
        "song": f"{song} {number}", "server": "tcp://127.0.0.1:4402", "source": "tcp://127.0.0.1:4401",
        "score": 50.0 / number, "wanted": 20.0, "reason": "asked for here 20 times and held elsewhere",
    } for number in range(1, 6)])  # fmt: skip
    _write(out, "placement_plan", [{
        "service": service, "group": "west", "workers_now": 2, "workers_wanted": 3, "utilisation": 0.93, "share": 0.6,
        "advice": "add", "reason": "busy more than 80 % of the time",
    } for service in services])  # fmt: skip
    _write(out, "anomalies", [{
        "window_start": hours[5 * number], "service": services[0], "kind": "task", "measure": measure, "value": 900.0,
        "expected": 300.0, "deviation": 12.5 * (number + 1) * (-1) ** number, "weeks": 4,
    } for number, measure in enumerate(("requests", "error_share", "service_p99", "requests"))])  # fmt: skip


def _write(out: Path, name: str, rows: list[dict[str, object]]) -> None:
    times = {"window_start", "saturation_at", "first_seen", "last_seen"}
    fields = [pa.field(key, TIME) if key in times else None for key in rows[0]]
    columns = {
        key: pa.array([row[key] for row in rows], field.type if field else None)
        for key, field in zip(rows[0], fields, strict=True)
    }
    tables.write(out, name, pa.table(columns), START)


def _trend(hour: datetime, service: str, number: int, chance: random.Random) -> dict[str, object]:
    day = 1 + 0.8 * math.sin((hour.hour - 9) / 24 * 2 * math.pi)
    requests = round(36000 * day / (number + 1) * chance.uniform(0.9, 1.1))
    errors = requests * (0.2 if (number, hour.day, hour.hour) == (0, 4, 13) else 0.001 * chance.random())
    service_time = 2000 * (number + 1) * day * chance.uniform(0.9, 1.2)
    times = {f"service_p{p}": service_time * factor for p, factor in ((50, 1), (95, 3), (99, 9))}
    queue = {f"queue_p{p}": service_time * factor / 10 for p, factor in ((50, 1), (95, 4), (99, 20))}
    return {
        "window_start": hour, "service": service, "kind": "task", "requests": float(requests), "errors": errors,
        "rate_per_s": requests / 3600, "error_share": errors / requests, **queue, **times,
        "passed_on": 0.0, "passed_on_errors": 0.0,
    }  # fmt: skip


def _capacity(hour: datetime, service: str, number: int, days: int) -> dict[str, object]:
    age = (hour - START) / timedelta(days=1)
    use = 0.6 / (number + 1) + 0.03 * age + 0.1 * math.sin(hour.hour / 24 * 2 * math.pi)
    full = START + timedelta(days=days + 3) if number == 0 else None
    return {
        "window_start": hour, "service": service, "workers": 4, "busy_s": use * 4 * 3600, "utilisation": use,
        "forecast_per_day": 0.03, "forecast_now": 0.6 / (number + 1) + 0.03 * days + 0.1, "saturation_at": full,
    }  # fmt: skip


def _availability(service: str, number: int) -> dict[str, object]:
    share = 1 - 0.3 / (number + 1) ** 2
    return {
        "broker": "b", "service": service, "peer": f"{service}-{number}", "group": "west", "first_seen": START,
        "last_seen": START + timedelta(days=7), "up_s": share * 604800, "down_s": (1 - share) * 604800,
        "availability": share, "joins": 3, "leaves": 2, "lost": 1,
    }  # fmt: skip
