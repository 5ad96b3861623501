"""The same tables in plain Python, slow and plain to see; rows are told apart by their keys."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from .event_rows import DAY, HOUR, MONDAY, Row, seconds

SECONDS = {"minute": 60.0, "hour": HOUR, "day": DAY}

BEGINNING = MONDAY.timestamp()

Table = dict[tuple[Any, ...], Row]


def at(row: Row) -> float:
    return seconds(row["ts"])


def window(row: Row, every: str = "hour") -> float:
    return at(row) // SECONDS[every] * SECONDS[every]


def grouped(rows: Iterable[Row], key: Callable[[Row], tuple[Any, ...]]) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[key(row)].append(row)
    return found


def weight(rows: Iterable[Row]) -> float:
    return sum(row["weight"] for row in rows)


def of(rows: Iterable[Row], *kinds: str) -> list[Row]:
    return [row for row in rows if row["kind"] in kinds]


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def nearest_rank(values: list[int], rank: float) -> float | None:
    ordered = sorted(values)
    return float(ordered[max(math.ceil(rank * len(ordered)), 1) - 1]) if ordered else None


def trends(rows: list[Row], every: str) -> Table:
    table = {}
    for key, some in grouped(
        of(rows, "task", "rpc"), lambda row: (window(row, every), row["service"], row["kind"])
    ).items():
        requests = weight(some)
        errors = weight(row for row in some if row["outcome"] not in ("ok", "cancelled"))
        table[key] = {"requests": requests, "errors": errors, "rate_per_s": requests / SECONDS[every]}
        table[key]["error_share"] = share(errors, requests)
        passed = [row for row in some if row["kind"] == "task" and not row["peer"] and row["service_us"] is not None]
        table[key]["passed_on"] = weight(passed)
        table[key]["passed_on_errors"] = weight(row for row in passed if row["outcome"] not in ("ok", "cancelled"))
        for name in ("queue", "service"):
            values = [row[f"{name}_us"] for row in some if row[f"{name}_us"] is not None]
            for rank in (50, 95, 99):
                table[key][f"{name}_p{rank}"] = nearest_rank(values, rank / 100)
    return table


def popularity(rows: list[Row], half_life_days: float = 7.0, as_of: float | None = None) -> Table:
    told = [row for row in of(rows, "song_search", "song_download") if row["subject"] is not None]
    last = max(map(at, told)) if as_of is None else as_of
    table: Table = {}
    for (song,), some in grouped(told, lambda row: (row["subject"],)).items():
        table[song,] = {
            "requests": weight(of(some, "song_search")),
            "downloads": weight(of(some, "song_download")),
            "score": sum(row["weight"] * 0.5 ** ((last - at(row)) / DAY / half_life_days) for row in some),
        }
    for rank, key in enumerate(sorted(table, key=lambda key: (-table[key]["score"], key)), 1):
        table[key]["rank"] = rank
    return table


def cache_rates(rows: list[Row]) -> Table:
    table = {}
    for key, some in grouped(of(rows, "song_search"), lambda row: (window(row), row["peer"])).items():
        counts = {
            name: weight(row for row in some if row["outcome"] in outcomes)
            for name, outcomes in {
                "hits": ["hit"],
                "cached": ["cached"],
                "found": ["found"],
                "misses": ["miss", "timeout"],
            }.items()
        }
        searches = weight(some)
        rates = {
            "hit_rate": share(counts["hits"] + counts["cached"], searches),
            "cache_hit_rate": share(counts["cached"], searches - counts["hits"]),
        }
        table[key] = {"searches": searches, **counts, **rates}
    return table


def availability(rows: list[Row]) -> Table:
    return _workers_availability(rows) | _brokers_availability(rows)


def _brokers_availability(rows: list[Row]) -> Table:
    told = of(rows, "join", "leave", "heartbeat", "load")
    table: Table = {}
    for (broker,), some in grouped(told, lambda row: (row["broker"],)).items():
        starts = grouped(some, lambda row: (row["epoch"],))
        spans = [(min(map(at, starts[epoch])), max(map(at, starts[epoch]))) for epoch in sorted(starts)]
        up = sum(end - begin for begin, end in spans)
        down = sum(max(spans[place][0] - spans[place - 1][1], 0.0) for place in range(1, len(spans)))
        table[broker, None, None] = {
            "first_seen": min(map(at, some)),
            "last_seen": max(map(at, some)),
            "up_s": up,
            "down_s": down,
            "availability": up / (up + down) if up + down else 1.0,
            "joins": float(len(spans)),
            "leaves": float(len(spans) - 1),
            "lost": None,
        }
    return table


def _workers_availability(rows: list[Row]) -> Table:
    told = of(rows, "join", "leave", "heartbeat", "load")
    ends = {key: max(map(at, some)) for key, some in grouped(told, lambda row: (row["broker"], row["epoch"])).items()}
    workers = of(told, "join", "leave", "heartbeat")
    table: Table = {}
    for key, some in grouped(workers, lambda row: (row["broker"], row["service"], row["peer"])).items():
        up = down = 0.0
        for (epoch,), signs in grouped(some, lambda row: (row["epoch"],)).items():
            ordered = sorted(signs, key=lambda row: (row["ts"], row["seq"]))
            for place, sign in enumerate(ordered):
                until = at(ordered[place + 1]) if place + 1 < len(ordered) else ends[key[0], epoch]
                if sign["kind"] != "leave":
                    up += until - at(sign)
                elif sign["outcome"] != "left":
                    down += until - at(sign)
        table[key] = {
            "first_seen": min(map(at, some)),
            "last_seen": max(map(at, some)),
            "up_s": up,
            "down_s": down,
            "availability": up / (up + down) if up + down else 1.0,
            "joins": weight(of(some, "join")),
            "leaves": weight(of(some, "leave")),
            "lost": weight(row for row in of(some, "leave") if row["outcome"] != "left"),
        }
    return table


def flapping(rows: list[Row]) -> Table:
    moves = grouped(of(rows, "join", "leave"), lambda row: (row["broker"], row["service"], row["peer"], window(row)))
    table = {}
    for key, some in moves.items():
        lost = weight(row for row in of(some, "leave") if row["outcome"] != "left")
        table[key] = {"changes": weight(some), "flaps": lost if lost >= 3 else 0.0}
    told = of(rows, "join", "leave", "load")
    starts = {(row["broker"], row["epoch"]) for row in told}
    begun = [{"broker": broker, "hour": (epoch / 1e6 - BEGINNING) // HOUR * HOUR} for broker, epoch in starts]
    known = [row for row in begun if row["hour"] >= min(map(window, told))]
    for (broker, hour), some in grouped(known, lambda row: (row["broker"], row["hour"])).items():
        table[broker, None, None, hour] = {"changes": len(some), "flaps": len(some) if len(some) >= 3 else 0.0}
    return table


def _worker(row: Row) -> tuple[Any, ...]:
    return row["broker"], row["service"], row["peer"]


def _slots(joins: list[Row], hour: float) -> int:
    """Give how many tasks at once a worker said that it takes, when it last joined up to the end of an hour."""
    so_far = [row for row in joins if window(row) <= hour]
    return max(so_far, key=lambda row: (row["ts"], row["seq"]))["count"] or 1 if so_far else 1


def capacity(rows: list[Row], least_days: int) -> Table:
    told = of(rows, "task", "rpc", "join", "heartbeat")
    heard = max(map(at, told))
    not_over = heard // HOUR * HOUR
    joins = grouped(of(rows, "join"), _worker)
    served = [row for row in of(rows, "task", "rpc") if row["peer"] and row["service_us"] is not None]
    begin = min(map(window, served + of(rows, "heartbeat")))
    there = [row for row in served + of(rows, "heartbeat", "join") if window(row) >= begin]
    table: Table = {}
    for key, some in grouped(there, lambda row: (window(row), row["service"])).items():
        workers = {_worker(row) for row in some}
        busy = sum(row["service_us"] * row["weight"] for row in of(some, "task", "rpc")) / 1e6
        had = max(heard - not_over, 60.0) if key[0] == not_over else HOUR
        slots = sum(_slots(joins[worker], key[0]) for worker in workers)
        table[key] = {"workers": len(workers), "busy_s": busy, "utilisation": busy / had / slots}
    for service in {service for _, service in table}:
        own = {start: values["utilisation"] for (start, name), values in table.items() if name == service}
        forecast = _forecast(own, not_over, least_days)
        for start in own:
            table[start, service] |= forecast
    return table


def _forecast(hours: dict[float, float], end: float, least_days: int) -> Row:
    """Draw the line through days that end with the last whole hour, each as busy as its busy hours."""
    days: dict[float, float] = {}
    until = end
    while until - DAY > min(hours):
        if some := [use for start, use in hours.items() if until - DAY <= start < until]:
            days[until] = percentile(sorted(some), 0.95)
        until -= DAY
    if len(days) < least_days or end not in days:  # a service that is gone fills up no more
        return {"forecast_per_day": None, "forecast_now": None, "saturation_at": None}
    line = statistics.linear_regression([(moment - end) / DAY for moment in days], list(days.values()))
    rising = (1.0 - line.intercept) / line.slope if line.slope > 0 else math.inf
    left = 0.0 if line.intercept >= 1.0 else rising
    full_at = end + left * DAY if left <= 365.0 else None
    return {"forecast_per_day": line.slope, "forecast_now": line.intercept, "saturation_at": full_at}


def replication_plan(
    rows: list[Row], wanted: float, per_server: int, half_life_days: float = 7.0, alive_days: float = 7.0,
    as_of: float | None = None,
) -> Table:  # fmt: skip
    told = [row for row in of(rows, "song_search", "song_download", "song_replica") if row["peer"]]
    now = max(map(at, told)) if as_of is None else as_of
    silent = {key: now - max(map(at, some)) for key, some in grouped(told, lambda row: (row["peer"],)).items()}
    alive = {server for (server,), seconds_ago in silent.items() if seconds_ago <= alive_days * DAY}
    since: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    held: dict[tuple[Any, ...], float] = {}
    # one after the other, those that show that it is held last; a search that it does not answer by itself ends that
    for row in sorted((row for row in told if row["subject"] is not None), key=lambda row: (at(row), _holds(row))):
        pair = (row["subject"], row["peer"])
        if _holds(row):
            held[pair] = at(row)
            since[pair] = []
        elif row["kind"] == "song_search":
            since[pair].append(row)
    holds = {pair: when for pair, when in held.items() if not since[pair] and pair[1] in alive}
    plan: Table = {}
    for (song, server), some in since.items():
        holders = sorted((-seen, holder) for (name, holder), seen in holds.items() if name == song)
        score = sum(row["weight"] * 0.5 ** ((now - at(row)) / DAY / half_life_days) for row in some)
        if some and holders and server in alive and weight(some) >= wanted and score >= wanted / 2:
            plan[song, server] = {"source": holders[0][1], "score": score, "wanted": weight(some)}
    best: Table = {}
    for keys in grouped([{"key": key} for key in plan], lambda row: (row["key"][1],)).values():
        ordered = sorted((row["key"] for row in keys), key=lambda key: (-plan[key]["score"], key))
        best |= {key: plan[key] for key in ordered[:per_server]}
    return best


def _holds(row: Row) -> bool:
    proof = {"song_replica": None, "song_download": "ok", "song_search": "hit"}[row["kind"]]
    return proof is None or row["outcome"] == proof


def _here(rows: list[Row]) -> dict[tuple[Any, ...], list[int]]:
    """Give, by service and group, how many tasks at once each of the workers takes that are here."""
    started = {broker: max(row["epoch"] for row in some) for (broker,), some in _by_broker(rows).items()}
    heard = {broker: max(map(at, some)) for (broker,), some in _by_broker(rows).items()}
    found: dict[tuple[Any, ...], list[int]] = defaultdict(list)
    signs = [row for row in of(rows, "join", "leave", "heartbeat") if row["epoch"] == started[row["broker"]]]
    for (broker, service, _), some in grouped(signs, lambda row: (row["broker"], row["service"], row["peer"])).items():
        by_time = sorted(some, key=lambda row: (row["ts"], row["kind"] == "leave"))
        joins = sorted(of(some, "join"), key=lambda row: (row["ts"], row["seq"]))
        if by_time[-1]["kind"] != "leave" and max(heard.values()) - heard[broker] <= 7 * DAY:
            group = max(some, key=lambda row: (row["ts"], row["seq"]))["group"]
            found[service, group or ""].append(joins[-1]["count"] or 1 if joins else 1)
    return found


def _by_broker(rows: list[Row]) -> dict[tuple[Any, ...], list[Row]]:
    return grouped(rows, lambda row: (row["broker"],))


def _busy(rows: list[Row]) -> dict[tuple[Any, ...], float]:
    """Give, by service and group, how many tasks at once were worked on in busy hours."""
    served = [row for row in of(rows, "task", "rpc") if row["peer"] and row["service_us"] is not None]
    hours: dict[tuple[Any, ...], dict[float, float]] = defaultdict(lambda: defaultdict(float))
    by_peer = grouped(served, lambda row: (window(row), row["broker"], row["service"], row["peer"]))
    for (start, _, service, _), some in by_peer.items():
        group = max(some, key=lambda row: (row["ts"], row["seq"]))["group"]
        hours[service, group or ""][start] += sum(row["service_us"] * row["weight"] for row in some) / 1e6 / HOUR
    return {place: percentile(sorted(loads.values()), 0.95) for place, loads in hours.items()}


def percentile(ordered: list[float], rank: float) -> float:
    """Give a value between two neighbours, as Spark's `percentile` does."""
    place = rank * (len(ordered) - 1)
    low, high = math.floor(place), math.ceil(place)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def placement_plan(rows: list[Row]) -> Table:
    """Give the plan, with the options that there are by default."""
    told = of(rows, "task", "rpc", "join", "leave", "heartbeat")
    yesterday = max(map(window, told)) - DAY  # the hours after that one are recent
    requests = [row for row in of(told, "task", "rpc") if row["peer"] or row["service_us"] is None]
    answered = [row for row in of(told, "task", "rpc") if row["peer"] and row["service_us"] is not None]
    with_worker = [row for row in of(told, "join", "leave", "heartbeat") if row["peer"]]
    offered = {row["service"] for row in answered + with_worker}
    demand = grouped(requests, lambda row: (row["service"], row["group"] or ""))
    here, busy = _here(told), _busy(told)
    plan: Table = {}
    for place in (place for place in {*demand, *here} if place[0] in offered):
        some, slots, load = demand.get(place, []), here.get(place, []), busy.get(place, 0.0)
        part = share(weight(some), weight(row for row in requests if row["service"] == place[0]))
        lately = [row for row in some if window(row) > yesterday]
        in_vain = share(weight(row for row in lately if row["outcome"] in ("refused", "timeout")), weight(lately))
        each, now = (statistics.mean(slots) if slots else 1.0), len(slots)
        least = 1 if part >= 0.05 else 0
        wanted = max(math.ceil(load / (each * 0.6)), least)
        if in_vain > 0.01:
            wanted = max(wanted, now + 1)
        if wanted < now:
            wanted = min(now, max(math.ceil(load / (each * 0.6) * 1.5), least))
        plan[place] = {"workers_now": now, "workers_wanted": wanted, "share": part}
        plan[place] |= {"requests": weight(some), "load": load, "utilisation": load / (now * each) if now else 0.0}
    for (service, _), row in plan.items():
        more = row["workers_wanted"] > row["workers_now"]
        fewer = row["workers_wanted"] < row["workers_now"]
        elsewhere = any(
            other["workers_wanted"] > other["workers_now"] for (name, _), other in plan.items() if name == service
        )
        taken = "move" if row["share"] < 0.05 and elsewhere else "remove"
        row["advice"] = "add" if more else taken if fewer else "keep"
    return plan


def anomalies(rows: list[Row], weeks: int, least_weeks: int, deviation: float) -> Table:
    """Look at every hour of every service, one after the other; the floors are those by default."""
    floors = {"requests": 1.0, "error_share": 0.005, "service_p99": 100.0}
    hours = trends(rows, "hour")
    told = {window(row) for row in of(rows, "task", "rpc", "load")}
    begin, last = min(told), max(told)
    table: Table = {}
    for service, kind in {key[1:] for key in hours}:
        own = {start: values for (start, *name), values in hours.items() if name == [service, kind]}
        for start in (begin + HOUR * number for number in range(round((last - begin) / HOUR))):
            for measure, floor in floors.items():
                now = _in_hour(own, start, measure, silent=True)
                past = [start - 7 * DAY * week for week in range(1, weeks + 1)]
                found = [_in_hour(own, then, measure, silent=then in told and then > min(own)) for then in past]
                before = [value for value in found if value is not None]
                if len(before) < min(least_weeks, weeks) or now is None:
                    continue
                expected = statistics.median(before)
                usual = 1.4826 * statistics.median(abs(value - expected) for value in before)
                off = (now - expected) / max(usual, 0.05 * abs(expected), floor)
                if abs(off) >= deviation:
                    table[start, service, kind, measure] = {
                        "value": now, "expected": expected, "deviation": off, "weeks": len(before)
                    }  # fmt: skip
    return table


def _in_hour(own: dict[float, Row], start: float, measure: str, *, silent: bool) -> float | None:
    """Give what was measured in an hour; where nothing was, and it is known to be so, that is no request."""
    if start in own:
        return own[start][measure]
    return 0.0 if silent and measure == "requests" else None
