"""Which charts there are, and how each is made from the rows of a table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from .drawing import DASHES, Paint, Theme, label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Rows = Sequence[Row]
Line = list[tuple[float, float]]
"""Points: seconds since 1970, and a value."""

MOST_LINES = 6
"""More lines in one chart cannot be told apart; the others are added up."""
MOST_BARS = 15
MOST_LATENCIES = 4
OTHERS = "all others"
DAY = 86400.0
FORECAST_DAYS = 14


@attrs.frozen
class Chart:
    """One chart: what it shows in words and in numbers, and how it is painted."""

    name: str
    title: str
    alt: str
    """What can be seen in it, for those who do not see it."""
    columns: tuple[str, ...]
    values: list[tuple[Any, ...]]
    paint: Paint = attrs.field(repr=False)
    height: float = 3.0


def seconds(row: Row, column: str = "window_start") -> float:
    """Give a time of a row as seconds since 1970."""
    return float(row[column].timestamp())


def iso(moment: float) -> str:
    """Write seconds since 1970 for people, in UTC."""
    import numpy as np

    return str(np.datetime64(int(moment), "s")).replace("T", " ")


# --- over time --------------------------------------------------------------------------------------------------------


def lines_by(
    rows: Rows, key: str, value: Callable[[Row], float | None], weight: Callable[[Row], float]
) -> dict[str, Line]:
    """Give the lines of the heaviest names; the others are one line, added up at each time."""
    weights: dict[str, float] = defaultdict(float)
    for row in rows:
        weights[row[key] or ""] += weight(row)
    heaviest = sorted(weights, key=lambda name: (-weights[name], name))[:MOST_LINES]
    points: dict[str, dict[float, float]] = {name: {} for name in heaviest}
    for row in rows:
        name = row[key] or ""
        kept = points[name] if name in points else points.setdefault(OTHERS, {})
        found = value(row)
        if found is not None:
            kept[seconds(row)] = kept.get(seconds(row), 0.0) + found
    return {name: sorted(line.items()) for name, line in points.items() if line}


def _over_time(axes: Axes, lines: Mapping[str, Line], theme: Theme) -> None:
    for number, (name, line) in enumerate(lines.items()):
        times, values = _axis([moment for moment, _ in line]), [value for _, value in line]
        mark = "o" if len(line) <= 2 else None  # a line of one point cannot be seen
        axes.plot(
            times, values, label=label(name), color=theme.series[number % len(theme.series)],
            linestyle=DASHES[number % len(DASHES)], marker=mark, markersize=4,
        )  # fmt: skip
    moments = {moment for line in lines.values() for moment, _ in line}
    if len(moments) == 1:  # or the axis would be of years
        (only,) = moments
        axes.set_xlim(*_axis([only - 30, only + 30]))
    _dates(axes)
    _legend(axes)


def _axis(moments: Iterable[float]) -> Any:
    import numpy as np

    return np.asarray([round(moment * 1e6) for moment in moments], dtype="datetime64[us]")


def _dates(axes: Axes) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = AutoDateLocator(minticks=3, maxticks=6)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.grid(visible=False, axis="x")


def _legend(axes: Axes) -> None:
    """Put a legend above the axes, in as many columns as there is room for."""
    longest = max((len(text) for text in axes.get_legend_handles_labels()[1]), default=0)
    columns = max(1, min(4, 66 // (longest + 8)))
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2, handlelength=2.4)


def _short(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))


def _percent(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:.4g} %"))


def short(value: float) -> str:
    """Write a number so that it is read at a glance."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{unit}"
    return f"{value:.3g}"


def each_once(rows: Rows) -> list[Row]:
    """Leave out requests that a bridge passed on where those who got them tell of them, too.

    A broker tells of them as tasks that no worker had, and Majordomo as those that its workers answered. Of a service
    that no worker of Majordomo answers, such tasks are its own: a service of the broker itself has them.
    """
    bridged = {row["service"] for row in rows if row["kind"] == "rpc" and row["service_p50"] is not None}
    counted = [_without_passed_on(row) if row["service"] in bridged and row.get("passed_on") else row for row in rows]
    return [row for row in counted if row["requests"]]


def _without_passed_on(row: Row) -> Row:
    requests, errors = row["requests"] - row["passed_on"], row["errors"] - row["passed_on_errors"]
    rate = row["rate_per_s"] * requests / row["requests"]
    share = errors / requests if requests else 0.0
    return {**row, "requests": requests, "errors": errors, "rate_per_s": rate, "error_share": share}


def requests(rows: Rows) -> Chart | None:
    """Show the requests of each service over time."""
    lines = lines_by(rows, "service", lambda row: row["rate_per_s"], lambda row: row["requests"] or 0.0)
    if not lines:
        return None

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _over_time(axes, lines, theme)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("requests/s")
        _short(axes.yaxis)

    totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in rows:
        totals[row["service"] or ""][0] += row["requests"] or 0.0
        totals[row["service"] or ""][1] += row["errors"] or 0.0
    table = [(name, round(all_), round(bad), bad / all_ if all_ else 0.0) for name, (all_, bad) in totals.items()]
    table.sort(key=lambda line: -line[1])
    alt = f"Lines over time. The busiest service is {label(table[0][0])} with {short(table[0][1])} requests in all."
    return Chart("requests", "Requests by service", alt, ("service", "requests", "errors", "error share"), table, paint)


def errors(rows: Rows) -> Chart | None:
    """Show what share of each service's requests failed, over time."""
    failed = [row for row in rows if row["errors"]]
    if not failed:
        return None
    guilty = {row["service"] for row in failed}
    merged = _shares([row for row in rows if row["service"] in guilty])
    lines = dict(sorted(merged.items(), key=lambda item: -max(value for _, value in item[1]))[:MOST_LINES])

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _over_time(axes, lines, theme)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("share that failed")
        _percent(axes.yaxis)

    worst = sorted(failed, key=lambda row: -(row["error_share"] or 0.0))[:50]
    table = [(iso(seconds(row)), row["service"], round(row["errors"]), row["error_share"]) for row in worst]
    alt = (
        f"Lines over time. The worst is {label(table[0][1])} at {table[0][0]} UTC with {percent(table[0][3])} failing."
    )
    return Chart("errors", "Errors by service", alt, ("from", "service", "errors", "error share"), table, paint)


def _shares(rows: Rows) -> dict[str, Line]:
    """Give the share of errors of each service over time, its kinds of requests taken together."""
    sums: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for row in rows:
        point = sums[row["service"] or ""][seconds(row)]
        point[0] += row["errors"] or 0.0
        point[1] += row["requests"] or 0.0
    return {
        name: sorted((moment, bad / all_ if all_ else 0.0) for moment, (bad, all_) in points.items())
        for name, points in sums.items()
    }


def percent(share: float | None) -> str:
    """Write a share for people; near to all and to nothing it needs more digits."""
    if share is None:
        return "-"
    digits = 0 if share in (0, 1) else 1 if 0.01 <= share <= 0.99 else 3
    return f"{100 * share:.{digits}f}\N{NO-BREAK SPACE}%"


def latencies(rows: Rows) -> list[Chart]:
    """How long requests of the busiest services took: one chart for each."""
    weights: dict[tuple[str, str], float] = defaultdict(float)
    for row in rows:
        weights[row["service"] or "", row["kind"] or ""] += row["requests"] or 0.0
    busiest = sorted(weights, key=lambda key: (-weights[key], key))[:MOST_LATENCIES]
    return [chart for number, key in enumerate(busiest) if (chart := _latency(rows, *key, number))]


_PERCENTILES = (
    ("service_p50", "half (p50)"), ("service_p95", "95 % (p95)"), ("service_p99", "99 % (p99)"),
    ("queue_p95", "queue, 95 %"),
)  # fmt: skip


def _latency(rows: Rows, service: str, kind: str, number: int) -> Chart | None:
    own = sorted((row for row in rows if (row["service"] or "", row["kind"] or "") == (service, kind)), key=seconds)
    lines = {
        title: [(seconds(row), row[column] / 1000) for row in own if row[column] is not None and row[column] > 0]
        for column, title in _PERCENTILES
    }
    lines = {title: line for title, line in lines.items() if line}
    if not lines:
        return None
    values = [value for line in lines.values() for _, value in line]
    wide = max(values) >= 10 * min(values)

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _over_time(axes, lines, theme)
        axes.set_ylabel("milliseconds")
        if wide:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 1.1 * max(values))
        _short(axes.yaxis)
        axes.yaxis.set_minor_formatter(lambda *_: "")

    columns = ("from", *(column for column, _ in _PERCENTILES))
    table = [(iso(seconds(row)), *(_ms(row[column]) for column in columns[1:])) for row in own[-50:]]
    scale = ", on a logarithmic scale" if wide else ""
    alt = f"Lines over time in milliseconds{scale}. The highest value is {short(max(values))} ms."
    what = f"Time of {label(service)} ({label(kind)})"
    return Chart(
        f"latency-{number + 1}", what, alt, (columns[0], *(f"{name}, ms" for name in columns[1:])), table, paint
    )


def _ms(microseconds: float | None) -> float | None:
    return None if microseconds is None else round(microseconds / 1000, 3)


def capacity(rows: Rows) -> Chart | None:
    """How busy each service is, and where that leads."""
    known = [row for row in rows if row["utilisation"] is not None]
    lines = lines_by(known, "service", lambda row: row["utilisation"], lambda row: row["busy_s"] or 0.0)
    lines.pop(OTHERS, None)  # a sum of shares says nothing
    if not lines:
        return None
    last = {row["service"] or "": row for row in sorted(known, key=seconds)}
    whole = max(map(seconds, known))  # the last hour is not over; days are counted until it begins
    ahead = {name: _forecast(last[name], whole) for name in lines}

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _over_time(axes, lines, theme)
        for number, line in enumerate(ahead.values()):
            moments, values = _axis(moment for moment, _ in line), [value for _, value in line]
            colour = theme.series[number % len(theme.series)]
            axes.plot(moments, values, color=colour, linestyle=":", linewidth=1.1)
        axes.axhline(1.0, color=theme.ink, linewidth=1)
        axes.annotate("full", (1, 1.0), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=9)
        axes.set_ylim(bottom=0)
        axes.set_ylabel("share of time busy")
        _percent(axes.yaxis)

    table = [
        (
            name,
            last[name]["workers"],
            last[name]["utilisation"],
            last[name]["forecast_per_day"],
            last[name]["saturation_at"],
        )
        for name in sorted(last, key=lambda name: -(last[name]["utilisation"] or 0.0))
    ]
    full = [name for name, row in last.items() if row["saturation_at"] is not None]
    alt = f"Lines over time, dotted where forecast. {len(full)} of {len(last)} services are full, or will be."
    columns = ("service", "workers", "busy", "more a day", "full at")
    return Chart("capacity", "How busy services are", alt, columns, table, paint)


def _forecast(row: Row, now: float) -> Line:
    """Give the way along the line through the last days: to being full, but no further than the next weeks."""
    slope, value = row["forecast_per_day"], row.get("forecast_now")  # which tables of an earlier version lack
    if not slope or value is None:
        return []
    days = FORECAST_DAYS if slope < 0 else min(FORECAST_DAYS, max(0.0, (1.0 - value) / slope))
    return [(now, value), (now + days * DAY, max(0.0, value + slope * days))]


# --- bars -------------------------------------------------------------------------------------------------------------


def _bars(axes: Axes, names: Sequence[str], parts: Mapping[str, Sequence[float]], theme: Theme) -> None:
    lefts = [0.0] * len(names)
    for number, (title, widths) in enumerate(parts.items()):
        axes.barh(range(len(names)), widths, left=lefts, label=title, color=theme.series[number], height=0.7)
        lefts = [left + width for left, width in zip(lefts, widths, strict=True)]
    axes.set_yticks(range(len(names)), [label(name, 24) for name in names])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def songs(rows: Rows) -> Chart | None:
    """Which songs are asked for most."""
    top = sorted(rows, key=lambda row: row["rank"])[:MOST_BARS]
    if not top:
        return None

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _bars(axes, [row["song"] or "" for row in top], {"score": [row["score"] or 0.0 for row in top]}, theme)
        axes.set_xlabel("score: requests and downloads, recent ones counting more")
        _short(axes.xaxis)

    table = [(row["rank"], row["song"], row["requests"], row["downloads"], row["score"]) for row in top]
    alt = f"Bars. The first of {len(rows)} songs is {label(top[0]['song'])}."
    columns = ("rank", "song", "requests", "downloads", "score")
    return Chart("songs", "Songs most asked for", alt, columns, table, paint, _height(len(top)))


def _height(bars: int) -> float:
    return 1.1 + 0.24 * bars


_ANSWERS = {"hits": "had it", "cached": "knew where", "found": "asked others", "misses": "not found"}


def caches(rows: Rows) -> Chart | None:
    """How the music servers answered searches."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for row in rows:
        for column in ("searches", *_ANSWERS):
            sums[row["server"] or ""][column] += row[column] or 0.0
    names = sorted((name for name in sums if sums[name]["searches"]), key=lambda name: -sums[name]["searches"])
    names = names[:MOST_BARS]
    if not names:
        return None
    parts = {
        title: [sums[name][column] / sums[name]["searches"] for name in names] for column, title in _ANSWERS.items()
    }

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _bars(axes, names, parts, theme)
        axes.set_xlim(0, 1)
        _percent(axes.xaxis)
        _legend(axes)

    table = [(name, *(round(sums[name][column]) for column in ("searches", *_ANSWERS))) for name in names]
    own = sum(sums[name]["hits"] + sums[name]["cached"] for name in names) / sum(
        sums[name]["searches"] for name in names
    )
    alt = f"Stacked bars, one for each music server. {percent(own)} of searches were answered without asking others."
    columns = ("server", "searches", *_ANSWERS.values())
    return Chart("caches", "How searches were answered", alt, columns, table, paint, _height(len(names)) + 0.2)


def availability(rows: Rows) -> Chart | None:
    """Which workers were away longest."""
    known = [row for row in rows if row["availability"] is not None]
    worst = sorted(known, key=lambda row: (row["availability"], row["peer"] or ""))[:MOST_BARS]
    if not worst:
        return None
    names = [row["peer"] or row["broker"] or "" for row in worst]  # a broker has rows of its own, without a worker

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        _bars(axes, names, {"away": [1 - row["availability"] for row in worst]}, theme)
        axes.set_xlim(left=0)
        axes.set_xlabel("share of time away")
        _percent(axes.xaxis)

    table = [
        (name, row["service"], row["group"], row["availability"], round(row["down_s"] or 0.0), row["lost"])
        for name, row in zip(names, worst, strict=True)
    ]
    alt = (
        f"Bars, of {len(worst)} workers and brokers of {len(known)}. {label(names[0])} was away longest:"
        f" it was there {percent(worst[0]['availability'])} of the time."
    )
    columns = ("who", "service", "group", "availability", "seconds away", "lost")
    return Chart("availability", "Who was away longest", alt, columns, table, paint, _height(len(worst)))


def anomalies(rows: Rows) -> Chart | None:
    """Hours that are unlike the same hour of the weeks before."""
    found = sorted((row for row in rows if row["deviation"] is not None), key=lambda row: -abs(row["deviation"]))
    if not found:
        return None
    names = {"requests": "requests", "error_share": "share of errors", "service_p99": "time (p99)"}

    def paint(figure: Figure, theme: Theme) -> None:
        axes = figure.subplots()
        for number, (measure, title) in enumerate(names.items()):
            own = [row for row in found if row["measure"] == measure]
            if own:
                moments = _axis(seconds(row) for row in own)
                values = [row["deviation"] for row in own]
                axes.scatter(moments, values, s=26, color=theme.series[number], marker="o^s"[number], label=title)
        axes.set_yscale("symlog", linthresh=10)
        axes.axhline(0, color=theme.ink, linewidth=0.8)
        axes.set_ylabel("deviation")
        _short(axes.yaxis)
        _dates(axes)
        _legend(axes)

    table = [
        (iso(seconds(row)), row["service"], names.get(row["measure"], row["measure"]), row["value"], row["expected"],
         row["deviation"])
        for row in found[:50]
    ]  # fmt: skip
    first = table[0]
    alt = f"Points over time. The farthest is {first[2]} of {label(first[1])} at {first[0]} UTC."
    columns = ("from", "service", "what", "was", "expected", "deviation")
    return Chart("anomalies", "Unusual hours", alt, columns, table, paint)
