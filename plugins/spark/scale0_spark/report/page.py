"""One page that needs nothing else: no script, no request, charts and tables in it; and the charts as PNG files."""
# does I/O: it writes the files, and says when

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import attrs

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import Exit, NegativeError
from scale0_spark import tables

from . import charts
from .charts import Chart, Row, percent, short
from .drawing import DARK, LIGHT, Picture, draw, label, variables_css

HOUR = 3600.0
SECONDS_UP_TO = HOUR / 4
"""How long a time may be whose seconds are shown, if they were counted."""
MINUTES_UP_TO = 6 * HOUR
"""A span up to this is shown by minute, longer ones by hour, and very long ones by day."""
HOURS_UP_TO = 60 * 24 * HOUR
TRENDS = "trends_"
"""What the tables of trends begin with."""
CHARTS = re.compile(r"requests|errors|latency-\d+|capacity|availability|anomalies|songs|caches")
"""What charts are called: such files of an earlier report are removed, and no others, which are the user's own."""
MOST_ROWS = 100
"""Rows of a plan on the page; all of them are in the table."""


class ReportError(Scale0Error):
    """The report cannot be written."""

    exit_code = Exit.CONFIG


@attrs.frozen
class Written:
    """What a report consists of."""

    page: Path
    charts: tuple[Path, ...]
    damaged: tuple[str, ...] = ()
    """Tables that cannot be read; the page is of the others."""


@attrs.frozen
class Section:
    """A part of the page: a heading, charts, and a plan as a table."""

    title: str
    about: str
    charts: Sequence[Chart] = ()
    columns: tuple[str, ...] = ()
    rows: Sequence[Row] = ()
    total: int = 0


def write_report(out: Path, now: datetime | None = None) -> Written:
    """Write `report.html` and `charts/*.png` from the tables of a folder."""
    found = _found(out)
    rows, damaged = found.rows, found.damaged
    if not rows:
        if damaged:
            raise next(iter(damaged.values()))
        raise NegativeError(
            f"there are no tables in {out}", "the report is made of what the jobs write there", "no report was written",
            "run the jobs first: scale0 spark run",
        )  # fmt: skip
    tables.say_damaged(damaged)
    sections = [section for section in _sections(rows, found.grain) if section.charts or section.rows]
    pictures = _draw([chart for section in sections for chart in section.charts])
    files = _write_pictures(out / "charts", pictures)
    moment = (now or datetime.now(timezone.utc)).astimezone(timezone.utc)
    page = out / "report.html"
    with tables.beside(page) as file:
        file.write(_page(sections, pictures, _summary(rows), moment, damaged).encode())
    return Written(page, tuple(files), tuple(damaged))


Rows = dict[str, list[dict[str, Any]]]


@attrs.frozen
class Found:
    """What the page is made of: the rows of the tables that it shows, and why others cannot be read."""

    rows: Rows
    grain: str
    """The table of trends that is drawn."""
    damaged: dict[str, tables.TableDamagedError]


def _found(out: Path) -> Found:
    """Read what is shown. Of the tables of trends, which can be large, that is the one that is drawn, and the days."""
    surveyed = tables.survey(out)
    damaged = {name: error for name, error in surveyed.damaged.items() if name in tables.TABLES}
    names = [entry.name for entry in surveyed.entries if entry.name in tables.TABLES]
    rows: Rows = {}
    lengths: dict[str, float] = {}
    for name in names:
        try:  # what stands beside a damaged table may be in order
            if name.startswith(TRENDS):
                lengths |= _length(out, name)
                rows[name] = []
            else:
                rows[name] = tables.read(out, name).to_pylist()
        except tables.TableDamagedError as error:
            damaged[name] = error

    def read_first(wanted: Iterable[str]) -> str:
        for name in wanted:
            if name in lengths and name not in damaged:
                try:
                    rows[name] = rows[name] or tables.read(out, name).to_pylist()
                except tables.TableDamagedError as error:
                    damaged[name] = error
                    rows.pop(name)
                else:
                    return name
        return "trends_hour"

    grain = read_first(_grains(lengths))
    read_first(_SUMMED)
    return Found(rows, grain, damaged)


def _length(out: Path, name: str) -> dict[str, float]:
    """Give how many seconds a table by time is long; nothing for one without rows."""
    import pyarrow.compute as pc

    table = tables.read(out, name, [tables.TIME])
    if not table.num_rows or not table.num_columns:
        return {}
    ends = pc.min_max(table.column(tables.TIME)).as_py()
    return {name: (ends["max"] - ends["min"]).total_seconds()}


def _grains(lengths: Mapping[str, float]) -> list[str]:
    """Put the tables of trends in order: first the one that has not too many points for a picture, and not too few."""
    measured = [lengths[name] for name in ("trends_hour", "trends_minute", "trends_day") if name in lengths]
    span = measured[0] if measured else 0.0
    wanted = "trends_minute" if span <= MINUTES_UP_TO else "trends_hour" if span <= HOURS_UP_TO else "trends_day"
    short = ["trends_second"] if lengths.get("trends_second", HOUR) <= SECONDS_UP_TO else []
    return [*short, wanted, "trends_hour", "trends_day", "trends_minute"]


_SUMMED = ("trends_day", "trends_hour", "trends_minute")
"""Which table of trends is summed up at the top of the page: the first that is there."""


def _draw(wanted: Iterable[Chart]) -> dict[str, Picture]:
    try:
        return {chart.name: draw(chart.name, chart.paint, chart.height) for chart in wanted}
    except ImportError as error:
        raise ReportError(
            "the charts cannot be drawn", f"{error}", "no report was written", 'pip install "scale0-spark[report]"'
        ) from error


def _write_pictures(folder: Path, pictures: Mapping[str, Picture]) -> list[Path]:
    for name, picture in pictures.items():
        with tables.beside(folder / f"{name}.png") as file:
            file.write(picture.png)
    wanted = {f"{name}.png" for name in pictures}
    for old in folder.glob("*.png"):
        if CHARTS.fullmatch(old.stem) and old.name not in wanted:  # it would tell what is no longer so
            old.unlink()
    return sorted(folder / name for name in wanted)


# --- what is on the page ----------------------------------------------------------------------------------------------


def _sections(rows: Mapping[str, list[dict[str, Any]]], table: str) -> list[Section]:
    trends = rows.get(table, [])
    counted = charts.each_once(trends)
    grain = table.removeprefix(TRENDS)
    return [
        Section("Traffic", f"What came in, and what failed, by {grain}.",
                _some(charts.requests(counted), charts.errors(counted))),
        Section("How long it took", f"Service time and queue of the busiest services, by {grain}.",
                charts.latencies(trends)),
        Section("Capacity and availability", "How busy the workers are, when they will be full, and who was away.",
                _some(charts.capacity(rows.get("capacity", [])), charts.availability(rows.get("availability", [])))),
        _plan("Flapping", "Workers that left unexpectedly, and brokers that started, again and again within an hour;"
              " the latest first. Rows without a service are brokers.",
              [row for row in reversed(rows.get("flapping", [])) if (row.get("flaps") or 0) > 0],
              ("window_start", "broker", "service", "peer", "changes", "flaps")),
        Section("Unusual hours", "Compared with the same hour of the same weekday in the weeks before.",
                _some(charts.anomalies(rows.get("anomalies", [])))),
        Section("Music", "What is asked for most, and how music servers answered.",
                _some(charts.songs(rows.get("popularity", [])), charts.caches(rows.get("cache_rates", [])))),
        _plan("Replication plan", "Songs that should be copied, and where to.", rows.get("replication_plan", []),
              ("song", "server", "source", "score", "wanted", "reason")),
        _plan("Placement plan", "Where services should have more or fewer workers.", rows.get("placement_plan", []),
              ("service", "group", "workers_now", "workers_wanted", "utilisation", "share", "advice", "reason")),
    ]  # fmt: skip


def _some(*found: Chart | None) -> list[Chart]:
    return [chart for chart in found if chart]


def _plan(title: str, about: str, rows: Sequence[Row], columns: tuple[str, ...]) -> Section:
    return Section(title, about, (), columns, rows[:MOST_ROWS], len(rows))


def _summary(rows: Mapping[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """Give the figures at the top of the page."""
    trends = charts.each_once(next((rows[name] for name in _SUMMED if rows.get(name)), []))
    requests, errors = (sum(row[column] or 0.0 for row in trends) for column in ("requests", "errors"))
    figures = []
    if requests:
        figures += [("requests", short(requests)), ("failed", percent(errors / requests))]
        figures += [("services", str(len({row["service"] for row in trends})))]
    if present := [row["availability"] for row in rows.get("availability", []) if row["availability"] is not None]:
        figures.append(("availability", percent(sum(present) / len(present))))
    if full := {row["service"] for row in rows.get("capacity", []) if row["saturation_at"] is not None}:
        figures.append(("services filling up", str(len(full))))
    if "anomalies" in rows:
        figures.append(("unusual hours", str(len(rows["anomalies"]))))
    if rows.get("popularity"):
        figures.append(("songs asked for", short(len(rows["popularity"]))))
    if rows.get("replication_plan"):
        figures.append(("copies planned", str(len(rows["replication_plan"]))))
    return figures


# --- as HTML ----------------------------------------------------------------------------------------------------------


def _page(
    sections: Sequence[Section], pictures: Mapping[str, Picture], figures: list[tuple[str, str]], moment: datetime,
    damaged: Iterable[str] = (),
) -> str:  # fmt: skip
    tiles = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in figures)
    links = "".join(f'<li><a href="#{_anchor(one.title)}">{_text(one.title)}</a></li>' for one in sections)
    body = "\n".join(_section(section, pictures) for section in sections)
    written = moment.strftime("%Y-%m-%d %H:%M UTC")
    missing = "".join(f"<p>The table {_text(name)} cannot be read; run its job again.</p>" for name in damaged)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>Scale0 report, {written}</title>
<style>{_css()}</style>
</head>
<body>
<a class="skip" href="#content">To the charts</a>
<header><h1>Scale0 report</h1><p>Written {written}. All times are UTC.</p>{missing}
<dl class="tiles">{tiles}</dl>
<nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main id="content">
{body}
</main>
<footer><p>Every chart has its numbers below it. All rows are in the Parquet tables beside this page.</p></footer>
</body>
</html>
"""


def _section(section: Section, pictures: Mapping[str, Picture]) -> str:
    figures = "".join(_figure(chart, pictures[chart.name]) for chart in section.charts)
    parts = [f"<h2>{_text(section.title)}</h2>", f"<p>{_text(section.about)}</p>"]
    if figures:
        parts.append(f'<div class="charts">{figures}</div>')
    if section.rows:
        names = [name.replace("_", " ") for name in section.columns]
        lines = [[row.get(name) for name in section.columns] for row in section.rows]
        left = section.total - len(section.rows)
        parts.append(_table(section.title, names, lines))
        parts += [f"<p>{left} more rows are in the table.</p>"] if left else []
    return f'<section id="{_anchor(section.title)}">{"".join(parts)}</section>'


def _figure(chart: Chart, picture: Picture) -> str:
    title = f'<h3 id="{chart.name}-title">{_text(chart.title)}</h3>'
    alt = f'<p class="alt" id="{chart.name}-alt">{_text(chart.alt)}</p>'
    table = _table(chart.title, chart.columns, chart.values)
    numbers = (
        f"<details><summary>Numbers<span class='hidden'> of {_text(chart.title)}</span></summary>{table}</details>"
    )
    return f"<figure>{title}{picture.svg}<figcaption>{alt}</figcaption>{numbers}</figure>"


def _table(title: str, columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> str:
    lines = list(lines)
    numeric = [any(_is_number(line[place]) for line in lines) for place in range(len(columns))]
    head = "".join(
        f'<th scope="col"{_NUMBER if right else ""}>{_text(name)}</th>'
        for name, right in zip(columns, numeric, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, line))}</tr>" for line in lines)
    caption = f'<caption class="hidden">{_text(title)}</caption>'
    # what scrolls can be reached by keyboard
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{_text(title)}, table"><table>{caption}'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


_NUMBER = ' class="number"'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        form = ",.4g" if isinstance(value, float) and abs(value) < 1e4 else ",.0f"
        return f"<td{_NUMBER}>{value:{form}}</td>"
    if isinstance(value, datetime):
        return f"<td>{value.strftime('%Y-%m-%d %H:%M')}</td>"
    return f"<td>{_text('-' if value is None else label(value, 200))}</td>"


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def _css() -> str:
    return (
        f":root{{{variables_css(LIGHT)}--page:#f6f8fa;--quiet:#57606a}}"
        f"@media(prefers-color-scheme:dark){{:root{{{variables_css(DARK)}--page:#0d1117;--quiet:#9aa5b1}}}}" + _CSS
    )


_CSS = """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,sans-serif}
header,main,footer{max-width:74rem;margin:auto;padding:0 1rem}
h1{margin:1.5rem 0 0;font-size:1.6rem}h2{margin:2.5rem 0 0;font-size:1.25rem}h3{margin:0 0 .5rem;font-size:1rem}
header p,section>p,footer,.alt{color:var(--quiet);margin:.2rem 0 .8rem}
a{color:var(--series-0)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.5rem,1fr));gap:.75rem;margin:1rem 0}
.tiles div,figure,.plan{background:var(--surface);border:1px solid var(--grid);border-radius:.5rem}
.tiles div{padding:.6rem .9rem}
dt{color:var(--quiet);font-size:.85rem}dd{margin:0;font-size:1.4rem;font-weight:600}
nav ul{display:flex;flex-wrap:wrap;gap:.3rem 1rem;padding:0;list-style:none}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,28rem),1fr));gap:1rem;align-items:start}
figure{margin:0;padding:1rem;min-width:0}
svg{display:block;width:100%;height:auto;font-family:system-ui,sans-serif}
svg *{stroke-linejoin:round;stroke-linecap:butt}
.alt{font-size:.9rem;margin:.5rem 0}
summary{cursor:pointer;padding:.4rem 0}
.wide{overflow-x:auto;background:var(--surface);border:1px solid var(--grid);border-radius:.5rem}
details .wide{border:0;max-height:24rem;overflow-y:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.35rem .7rem;border-bottom:1px solid var(--grid);white-space:nowrap;vertical-align:top}
td:last-child{white-space:normal;min-width:16rem}
details td:last-child{min-width:0}
th.number,td.number{text-align:right;font-variant-numeric:tabular-nums}
tbody tr:last-child td{border-bottom:0}
.hidden,.skip:not(:focus){position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%);white-space:nowrap}
:focus-visible{outline:3px solid var(--series-0);outline-offset:2px}
footer{padding-bottom:2rem;margin-top:2rem}
@media print{details:not([open])>*{display:none}figure{break-inside:avoid}}
"""
