"""The command `scale0 telemetry generate`."""
# does I/O: it is an application

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scale0_core.cli import kit

if TYPE_CHECKING:
    from scale0_telemetry.generator.writing import Progress, Summary

BETWEEN_LINES = 1.0
"""Seconds from one line about progress to the next."""


class _Lines:
    """Tells people how far it is, from time to time and at the end."""

    def __init__(self) -> None:
        self._next = time.monotonic() + BETWEEN_LINES

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + BETWEEN_LINES
            kit.say(
                f"{progress.rows:,} of {progress.total:,} rows, {progress.rate:,.0f} rows/s,"
                f" {progress.remaining:,.0f} s remaining"
            )


_late = click.option(
    "--late", default=0.0, show_default=True, metavar="SHARE",
    help="Of the events so many are stored after others that happened later.",
)  # fmt: skip
_duplicates = click.option(
    "--duplicates", default=0.0, show_default=True, metavar="SHARE",
    help="Of the rows so many repeat another one: same broker, epoch and number.",
)  # fmt: skip


@click.command()
@click.option("--rows", required=True, metavar="N", type=int, help="How many rows to write.")
@click.option("--seed", default=0, show_default=True, metavar="S", help="The same seed gives the same events.")
@click.option("--out", required=True, metavar="DIR", type=click.Path(path_type=Path), help="The folder for events.")
@click.option("--days", default=28, show_default=True, metavar="D", help="Over how many days they are spread.")
@click.option("--start", metavar="DATE", help="The first day, such as 2026-01-05, which is the default.")
@click.option("--brokers", default=3, show_default=True, metavar="B", help="From how many brokers they come.")
@_late
@_duplicates
@click.option("--force", is_flag=True, help="Remove the events that are in the folder.")
@click.option("--append", is_flag=True, help="Add to the events that are in the folder.")
@click.option("--quiet", is_flag=True, help="No lines about progress.")
@kit.output_option
def generate(*, out: Path, start: str | None, force: bool, append: bool, quiet: bool, **options: Any) -> None:
    """Make events of a network that does not exist, and store them as a broker would.

    The load follows day and week, few services and songs get most of it, one service gets slower and slower, and every
    week there are errors, a slow hour and a broker that is down.

    \b
    Examples:
      scale0 telemetry generate --rows 1000000 --out events
      scale0 telemetry generate --rows 100000 --days 7 --seed 3 --late 0.01 --duplicates 0.01 --out events --force
    """  # noqa: D301
    from scale0_telemetry.generator.writing import generate as write_events

    if force and append:
        raise kit.UsageError(
            "--force and --append do not go together", "one removes what the other adds to", "nothing was written",
            "leave one of them out",
        )  # fmt: skip
    if start is not None:
        options["start"] = start
    summary = write_events(out, force=force, append=append, progress=None if quiet else _Lines(), **options)
    _show(summary)


def _show(summary: Summary) -> None:
    import attrs

    data = attrs.asdict(summary)
    kinds = data["kinds"]
    text = ", ".join(f"{kind} {count:,}" for kind, count in sorted(kinds.items(), key=lambda item: -item[1]))
    form = kit.output_format()
    kit.emit("scale0.telemetry.generated/1", {**data, "kinds": text} if form == "table" else data)
