"""One page with everything in it, whatever names the events brought."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from scale0_core.cli.kit import NegativeError
from scale0_spark import command, tables
from scale0_spark.report import charts, drawing, page
from scale0_spark.report.drawing import DARK, LIGHT, label
from scale0_spark.report.page import ReportError, write_report

_HERE = Path(__file__).parent
_SPEC = importlib.util.spec_from_file_location("sample_tables", _HERE / "sample_tables.py")
assert _SPEC is not None
assert _SPEC.loader is not None
sample_tables = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(sample_tables)

HOSTILE = (
    '<script>alert("1")</script>',
    "</svg><img src=x onerror=alert(2)>",
    "$\\frac{1}{$ \x00\x1b[31m\u202egnp.exe",
)
VOID = {"meta", "link", "br", "img", "input", "hr", "path", "use"}


class Page(HTMLParser):
    """Reads a page, and notes what a browser would see."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Page]:
    out = tmp_path_factory.mktemp("report")
    sample_tables.write_all(out)
    done = CliRunner().invoke(command.main, ["report", "--out", str(out), "-o", "json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["charts"] == [str(path) for path in sorted((out / "charts").iterdir())]
    return out, Page(Path(told["page"]).read_text(encoding="utf-8"))


def test_the_page_needs_nothing_else(report: tuple[Path, Page]):
    out, page = report
    text = (out / "report.html").read_text()
    assert not {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object", "embed", "img", "base", "form"}
    addresses = [
        value for _, attrs in page.tags for name, value in attrs.items() if name in ("href", "src", "xlink:href")
    ]
    assert addresses
    assert all(value is not None and value.startswith("#") for value in addresses)
    assert "@import" not in text
    assert re.findall(r"url\((?!#)", text) == []
    policy = next(meta for meta in page.all("meta") if meta.get("http-equiv"))
    assert policy["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_every_chart_is_told_in_words_and_numbers(report: tuple[Path, Page]):
    _, page = report
    pictures = page.all("svg")
    ids = [attrs["id"] for _, attrs in page.tags if attrs.get("id")]
    assert len(ids) == len(set(ids))
    assert len(pictures) == len(page.all("figure")) == len(page.all("details")) == 10
    for picture in pictures:
        assert picture["role"] == "img"
        assert {picture["aria-labelledby"], picture["aria-describedby"]} <= set(ids)
    assert len(page.all("table")) == len(page.all("caption"))
    assert page.all("html") == [{"lang": "en"}]
    assert page.open == []  # every element is closed


def test_every_chart_is_a_png_too(report: tuple[Path, Page]):
    out, page = report
    pictures = sorted(path.name for path in (out / "charts").iterdir())
    assert len(pictures) == len(page.all("svg"))
    assert {"requests.png", "songs.png", "capacity.png", "availability.png", "caches.png"} <= set(pictures)
    assert all((out / "charts" / name).read_bytes().startswith(b"\x89PNG") for name in pictures)


def test_it_can_be_read_in_light_and_dark_and_on_a_phone(report: tuple[Path, Page]):
    out, _ = report
    text = (out / "report.html").read_text()
    assert LIGHT.ink in text
    assert DARK.ink in text
    assert "prefers-color-scheme:dark" in text
    assert 'content="width=device-width, initial-scale=1"' in text
    charts = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert re.findall(r"#[0-9a-f]{6}\b", charts) == []  # charts have the page's colours only


def test_names_from_events_stay_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rendered = drawing._rendered
    # names in a PNG do no harm, and it takes as long to draw as the rest
    monkeypatch.setattr(drawing, "_rendered", lambda *how: rendered(*how) if how[-1] == "svg" else b"")
    sample_tables.write_all(tmp_path, services=HOSTILE, days=2, song=HOSTILE[1])
    text = write_report(tmp_path).page.read_text(encoding="utf-8")
    page = Page(text)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert page.open == []
    assert any('<script>alert("1")</script>' in part for part in page.texts)
    assert not {"\x00", "\x1b", "\u202e"} & set(text)


def test_tables_without_rows_give_a_page_without_charts(tmp_path: Path):
    names = ("song", "requests", "downloads", "score", "rank")
    tables.write(tmp_path, "popularity", pa.table({name: pa.array([], pa.float64()) for name in names}))
    written = write_report(tmp_path)
    assert written.charts == ()
    assert Page(written.page.read_text()).all("figure") == []


def songs(out: Path) -> None:
    """Write the smallest table that gives a chart."""
    song = {"song": "a", "requests": 1.0, "downloads": 1.0, "score": 2.0, "rank": 1}
    tables.write(out, "popularity", pa.table({name: [value] for name, value in song.items()}))


def test_charts_of_an_earlier_report_go(tmp_path: Path):
    songs(tmp_path)
    (tmp_path / "charts").mkdir()
    for name in ("errors", "latency-12", "songs", "my-own", "songs-of-mine", "latency"):
        (tmp_path / "charts" / f"{name}.png").write_bytes(b"")
    assert [path.name for path in write_report(tmp_path).charts] == ["songs.png"]
    left = {path.stem for path in (tmp_path / "charts").iterdir()}
    assert left == {"songs", "my-own", "songs-of-mine", "latency"}, "what is the user's own stays"


def test_every_chart_has_a_name_by_which_it_is_known_later(report: tuple[Path, Page]):
    out, _ = report
    assert all(page.CHARTS.fullmatch(path.stem) for path in (out / "charts").iterdir())


@pytest.mark.parametrize(
    ("hours", "drawn"),
    [(3, {"trends_minute", "trends_day"}), (48, {"trends_hour", "trends_day"}), (1500, {"trends_day"})],
)
def test_only_what_is_drawn_is_read_whole(hours: int, drawn: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    times = {"trends_minute": 1 / 60, "trends_hour": 1.0, "trends_day": 24.0, "trends_second": 1.0}
    for name, step in times.items():
        starts = [sample_tables.START + timedelta(hours=step * place) for place in range(int(hours / step) + 1)]
        rows = [trend("a", "task", 5.0) | {"window_start": start, "errors": 1.0} for start in starts[:2] + starts[-1:]]
        tables.write(tmp_path, name, pa.Table.from_pylist(rows))
    songs(tmp_path)
    read: dict[str, Any] = {}
    plain = tables.read

    def noting(out: Path, name: str, columns: Any = None) -> pa.Table:
        read.setdefault(str(columns), set()).add(name)
        return plain(out, name, columns)

    monkeypatch.setattr(tables, "read", noting)
    monkeypatch.setattr(page, "_draw", lambda wanted: {})
    monkeypatch.setattr(page, "_section", lambda *_: "")
    monkeypatch.setattr(page.charts, "latencies", lambda _: [])
    write_report(tmp_path)
    assert read["None"] == {*drawn, "popularity"}


def test_a_grain_that_turns_out_damaged_is_replaced_by_another(tmp_path: Path):
    rows = [trend("a", "task", 5.0, errors=1.0) | {"service": f"{number}"} for number in range(1000)]
    for name in ("trends_minute", "trends_hour"):
        tables.write(tmp_path, name, pa.Table.from_pylist(rows))
    place = tmp_path / "trends_minute" / "trends_minute.parquet"
    content, middle = place.read_bytes(), place.stat().st_size // 2
    place.write_bytes(content[: middle - 200] + bytes(400) + content[middle + 200 :])
    found = page._found(tmp_path)
    assert (found.grain, set(found.damaged)) == ("trends_hour", {"trends_minute"})
    assert len(found.rows["trends_hour"]) == 1000


def test_without_tables_there_is_no_report(tmp_path: Path):
    with pytest.raises(NegativeError):
        write_report(tmp_path)


def test_without_matplotlib_a_sentence_says_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sample_tables.write_all(tmp_path, days=1)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ReportError) as caught:
        write_report(tmp_path)
    assert 'pip install "scale0-spark[report]"' in caught.value.problem.remedy


def test_a_damaged_table_is_named_and_the_page_is_of_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    songs(tmp_path)
    for name in ("trends_day", "anomalies"):
        tables.write(tmp_path, name, pa.table({"n": range(1000)}))
    (tmp_path / "trends_day" / "trends_day.parquet").write_bytes(b"PAR1 not really")
    place = tmp_path / "anomalies" / "anomalies.parquet"  # of which only the values are damaged
    place.write_bytes(place.read_bytes()[:4] + bytes(500) + place.read_bytes()[504:])
    written = write_report(tmp_path)
    assert (len(written.charts), set(written.damaged)) == (1, {"trends_day", "anomalies"})
    assert "The table trends_day cannot be read" in written.page.read_text()
    assert len(capsys.readouterr().err.splitlines()) == 2
    (tmp_path / "popularity" / "popularity.parquet").write_bytes(b"")
    with pytest.raises(tables.TableDamagedError):
        write_report(tmp_path)


def trend(service: str, kind: str, requests: float, **more: float | None) -> dict[str, Any]:
    served = {"service_p50": 1.0, "passed_on": 0.0, "passed_on_errors": 0.0, "errors": 0.0} | more
    shares = {"rate_per_s": requests / 60, "error_share": (served["errors"] or 0.0) / requests}
    return (
        {"window_start": sample_tables.START, "service": service, "kind": kind, "requests": requests} | served | shares
    )


def test_a_request_that_crosses_a_bridge_is_counted_once():
    rows = [
        trend("bridged", "task", 100.0, errors=10.0, passed_on=100.0, passed_on_errors=10.0),
        trend("bridged", "rpc", 130.0, errors=13.0),
        trend("both", "task", 60.0, errors=6.0, passed_on=20.0, passed_on_errors=6.0),  # it has workers of both kinds
        trend("both", "rpc", 20.0, errors=6.0),
        trend("inner", "task", 50.0, passed_on=50.0),  # a service of the broker itself
        trend("inner", "rpc", 1.0, errors=1.0, service_p50=None),  # which no worker of Majordomo offers
    ]
    chart = charts.requests(charts.each_once(rows))
    assert chart is not None
    counted = {name: (requests, errors) for name, requests, errors, _ in chart.values}
    assert counted == {"bridged": (130, 13), "both": (60, 6), "inner": (51, 1)}
    assert {row["service"]: row["rate_per_s"] for row in charts.each_once(rows)[1:2]} == {"both": 40 / 60}
    assert dict(page._summary({"trends_day": rows}))["requests"] == "241"


def test_a_forecast_goes_on_from_the_line_and_not_from_an_odd_last_hour():
    start = sample_tables.START
    hour = {"service": "a", "workers": 1, "busy_s": 9.0, "forecast_per_day": 0.1, "forecast_now": 0.5}
    hour["saturation_at"] = start + timedelta(days=5, hours=1)
    rows = [{**hour, "window_start": start, "utilisation": 0.4}]
    rows += [{**hour, "window_start": start + timedelta(hours=1), "utilisation": 7.0}]
    rows += [{**rows[0], "service": "gone", "forecast_per_day": -0.1}, {**rows[0], "service": "flat"}]
    rows[-1] |= {"forecast_per_day": 0.0}
    now = start.timestamp() + 3600
    ahead = {row["service"]: charts._forecast(row, now) for row in rows}
    assert ahead["a"] == [(now, 0.5), (hour["saturation_at"].timestamp(), 1.0)]
    assert ahead["gone"] == [(now, 0.5), (now + 14 * 86400, 0.0)]
    assert ahead["flat"] == []
    assert charts._forecast({"forecast_per_day": 0.1}, now) == [], "a table of an earlier version"
    chart = charts.capacity(rows)
    assert chart is not None
    figure = Figure()
    chart.paint(figure, LIGHT)
    dotted = [line for line in figure.axes[0].get_lines() if line.get_linestyle() == ":" and len(line.get_ydata()) == 2]
    assert {float(line.get_ydata()[0]) for line in dotted} == {0.5}


@given(st.text())
def test_a_label_is_short_and_has_no_signs_that_steer(text: str):
    shown = label(text)
    assert 1 <= len(shown) <= 32
    assert shown.isprintable() or "\u00a0" in shown or any(sign.isspace() for sign in shown)
    assert not set("\x00\x1b\n\r\u202e\u2028") & set(shown)
