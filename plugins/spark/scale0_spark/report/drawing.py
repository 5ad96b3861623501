"""From a drawing to a picture: an SVG that takes its colours from the page, and a PNG.

The SVG is drawn with placeholder colours, one for each part, which are then replaced by names of the page's own
colours: so one picture serves light and dark.
"""

from __future__ import annotations

import io
import re
import unicodedata
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH = 6.0
"""Inches. Small, so that letters can still be read when a phone shows it at its own width."""
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (5, 1.5, 1.5, 1.5)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)), "-")
"""Lines differ by more than their colour."""
LONGEST_LABEL = 32


@attrs.frozen
class Theme:
    """The colours of a picture."""

    ink: str
    grid: str
    surface: str
    series: tuple[str, ...]


LIGHT = Theme(
    "#24292f", "#d5dae0", "#ffffff", ("#0060a8", "#b34700", "#007a5a", "#9c3587", "#7a6200", "#4a5bc4", "#68707a")
)
DARK = Theme(
    "#e3e8ee", "#3a424d", "#161b22", ("#5cb3ff", "#ff9a57", "#3fcfa4", "#e58ad4", "#e0c34a", "#a3b0ff", "#9aa5b1")
)
PLACEHOLDERS = Theme(
    "#010101", "#020202", "#030303", tuple(f"#0401{number:02x}" for number in range(len(LIGHT.series)))
)

Paint = Callable[["Figure", Theme], None]


@attrs.frozen
class Picture:
    """One drawing in both forms."""

    svg: str
    png: bytes


def draw(name: str, paint: Paint, height: float = 3.2) -> Picture:
    """Draw a picture in both forms.

    :param name: goes into the ids of the SVG, which must differ on a page.
    """
    svg = _rendered(paint, PLACEHOLDERS, height, "svg").decode()
    return Picture(_embedded(svg, name), _rendered(paint, LIGHT, height, "png"))


def _rendered(paint: Paint, theme: Theme, height: float, form: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_style(theme)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # names may have letters that the font of the PNG lacks
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        paint(figure, theme)
        output = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else None  # the same tables give the same bytes
        figure.savefig(output, format=form, dpi=160, transparent=form == "svg", metadata=metadata)
    return output.getvalue()


def _style(theme: Theme) -> Any:
    from cycler import cycler

    inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inked, theme.ink),
        "axes.edgecolor": theme.grid,
        "grid.color": theme.grid,
        "axes.facecolor": theme.surface,
        "figure.facecolor": theme.surface,
        "axes.prop_cycle": cycler(color=theme.series),
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "grid.linewidth": 0.7,
        "lines.linewidth": 1.6,
        "xtick.major.size": 0,
        "ytick.major.size": 0,
        "ytick.minor.size": 0,
        "font.size": 10,
        "legend.fontsize": 9,
        "legend.frameon": False,
        "font.family": "DejaVu Sans",
        "svg.fonttype": "none",  # letters stay letters: searchable, and read out
        "svg.hashsalt": "scale0",
        "text.parse_math": False,  # a name with dollars is a name
        "timezone": "UTC",
    }


_ID = re.compile(r'(\bid="|xlink:href="#|url\(#)')
_HEAD = re.compile(r"\A.*?<svg\b", re.DOTALL)


def _embedded(svg: str, name: str) -> str:
    """Make an SVG a part of a page: no prologue, ids of its own, the page's colours, the page's letters, no size."""
    svg = _HEAD.sub("<svg", svg, count=1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _ID.sub(rf"\1{name}-", svg)
    opening, rest = svg.split(">", 1)
    opening = re.sub(r' (?:width|height|xmlns:xlink|xmlns|version)="[^"]*"', "", opening)
    rest = rest.replace("xlink:href", "href")
    rest = re.sub(r"<style[^>]*>.*?</style>", "", rest, count=1, flags=re.DOTALL)
    rest = re.sub(r"font: ([\d.]+px) '[^;\"]*", r"font-size: \1", rest)  # the page's own letters
    rest = re.sub(r"font-family: '[^;\"]*;? ?", "", rest)
    for colour, variable in _variables():
        rest = rest.replace(colour, f"var(--{variable})")
    return f'{opening} role="img" aria-labelledby="{name}-title" aria-describedby="{name}-alt">{rest}'


def _variables() -> list[tuple[str, str]]:
    named = zip(PLACEHOLDERS.series, (f"series-{number}" for number in range(len(PLACEHOLDERS.series))), strict=True)
    return [(PLACEHOLDERS.ink, "ink"), (PLACEHOLDERS.grid, "grid"), (PLACEHOLDERS.surface, "surface"), *named]


def variables_css(theme: Theme) -> str:
    """Write the colours of a theme as the page's variables."""
    series = "".join(f"--series-{number}:{colour};" for number, colour in enumerate(theme.series))
    return f"--ink:{theme.ink};--grid:{theme.grid};--surface:{theme.surface};{series}"


def label(text: object, longest: int = LONGEST_LABEL) -> str:
    """Make a name from outside fit for a picture: no signs that steer, and not too long."""
    clean = "".join(" " if unicodedata.category(sign) in _UNSEEN else sign for sign in str(text))
    clean = " ".join(clean.split()) or "(no name)"
    return clean if len(clean) <= longest else clean[: longest - 1] + "…"


_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
