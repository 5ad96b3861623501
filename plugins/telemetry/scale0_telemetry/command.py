"""The command `scale0 telemetry`: look at events that are on disk, and make some."""
# does I/O: it is an application

from __future__ import annotations

import datetime
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scale0_core.cli import kit
from scale0_telemetry.generator.command import generate

if TYPE_CHECKING:
    from scale0_telemetry.segments import Segment

_SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

_folder_option = click.option(
    "--events", "folder", metavar="DIR", type=click.Path(path_type=Path),
    help="Where the events are; by default telemetry in the data folder of the broker.",
)  # fmt: skip
_broker_option = kit.broker_option("-n", "--name")


def _when(_: click.Context, __: click.Parameter, value: str | None) -> datetime.datetime | None:
    return None if value is None else kit.moment(value, datetime.datetime.now(datetime.timezone.utc))


def _bytes(_: click.Context, __: click.Parameter, value: str | None) -> int | None:
    """Read a number of bytes, as in 500M."""
    if value is None:
        return None
    found = re.fullmatch(r"(\d{1,15})([kmg]?)i?b?", value.lower())
    if not found:
        raise click.BadParameter(f"{value!r} is no number of bytes, as in 500M or 2G")
    return int(found[1]) * _SIZES[found[2]]


@click.group()
def main() -> None:
    """Events of all services, as they are on disk."""


main.add_command(generate)


@main.command()
@_folder_option
@_broker_option
@click.option("--segments", "single", is_flag=True, help="Every file instead of a line for each kind.")
@kit.output_option
def ls(folder: Path | None, broker: str | None, *, single: bool) -> None:
    """List what is there: events, bytes and time span of each kind."""
    root = _existing(folder, broker)
    rows = [_about(segment, root) for segment in sorted(_segments(root))]
    if single:
        kit.emit("scale0.telemetry.segments/1", rows)
        return
    kinds = defaultdict(list)
    for row in rows:
        kinds[row["kind"]].append(row)
    kit.emit("scale0.telemetry.kinds-stored/1", [_summed(kind, found) for kind, found in sorted(kinds.items())])


@main.command()
@_folder_option
@_broker_option
@click.option("--kind", "kinds", multiple=True, metavar="KIND", help="Events of this kind; may be given several times.")
@click.option("--service", metavar="NAME", help="Events of this service.")
@click.option(
    "--since", metavar="TIME", callback=_when, help="Events from then on: a time, or how long ago, as in 90m."
)
@click.option("--until", metavar="TIME", callback=_when, help="Events before then.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), metavar="N", help="The last N of them.")
@kit.output_option
def show(
    folder: Path | None, broker: str | None, kinds: tuple[str, ...], service: str | None,
    since: datetime.datetime | None, until: datetime.datetime | None, limit: int,
) -> None:  # fmt: skip
    """Show events, the last ones last."""
    root = _existing(folder, broker)
    found = _events(root, kinds, service, since, until, limit)
    empty = {column for column in (found[0] if found else {}) if all(row[column] is None for row in found)}
    columns = [column for column in _SHOWN if column not in empty]
    kit.emit("scale0.telemetry.events/1", found, columns={column: column for column in columns})


@main.command()
@kit.output_option
def kinds() -> None:
    """List the kinds of events that Scale0's own services tell of, and the fields of each."""
    from scale0_core.api import events

    rows = [{"kind": kind.name, "fields": list(kind.fields), "meaning": kind.summary} for kind in events.KINDS.values()]
    kit.emit("scale0.telemetry.kinds/1", rows)


@main.command()
@kit.output_option
def columns() -> None:
    """List the columns that stored events have."""
    from scale0_telemetry.schema import COLUMNS, PARTITIONS

    rows = [
        {"column": column, "type": str(kind), "meaning": meaning}
        for column, (kind, meaning) in {**COLUMNS, **PARTITIONS}.items()
    ]
    kit.emit("scale0.telemetry.columns/1", rows)


@main.command()
@_folder_option
@_broker_option
@click.option(
    "--keep",
    metavar="BYTES",
    callback=_bytes,
    help="Remove the oldest segments until no more than so many bytes are left.",
)
@click.option(
    "--before", metavar="TIME", callback=_when, help="Remove segments of days before this one, or so long ago."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@kit.output_option
def prune(
    folder: Path | None, broker: str | None, keep: int | None, before: datetime.datetime | None, *, yes: bool
) -> None:
    """Remove old segments; those that are still written stay."""
    if keep is None and before is None:
        raise kit.UsageError(
            "nothing says what to remove", "neither --keep nor --before is given", "nothing was removed",
            "scale0 telemetry prune --before 30d, or --keep 500M",
        )  # fmt: skip
    root = _existing(folder, broker)
    from scale0_telemetry.segments import over_quota, remove

    found = sorted(_segments(root))
    day = before.astimezone(datetime.timezone.utc).date().isoformat() if before else ""
    old = [segment for segment in found if segment.date < day]
    left = found[len(old) :]
    old += over_quota(left, keep) if keep is not None else []
    size = sum(segment.bytes for segment in old)
    if old and not yes:
        click.confirm(f"Remove {len(old)} of {len(found)} segments, {size:,} bytes, in {root}?", abort=True, err=True)
    rows, removed = remove(old, root)
    told = {"segments": len(old), "events": rows, "bytes": removed, "left": len(found) - len(old)}
    kit.emit("scale0.telemetry.prune/1", told)


_SHOWN = (
    "ts", "kind", "service", "peer", "group", "subject", "source", "outcome", "queue_us", "service_us", "bytes",
    "count", "value", "weight", "details",
)  # fmt: skip


def _existing(folder: Path | None, broker: str | None) -> Path:
    """Give the folder of events; a NegativeError says that there is none."""
    root = folder or kit.data_dir(broker) / "telemetry"
    if not root.is_dir():
        raise kit.NegativeError(
            f"there are no events at {root}", "there is no such folder", "nothing can be shown",
            "enable the plugin telemetry in broker.plugins, or name the folder with --events",
        )  # fmt: skip
    return root


def _segments(root: Path) -> Iterator[Segment]:
    from scale0_telemetry.segments import segments_in

    return segments_in(root)


def _about(segment: Segment, root: Path) -> dict[str, Any]:
    """Describe a segment; one that cannot be read has no rows and no times."""
    first, last = segment.span()
    return {
        "kind": segment.kind,
        "date": segment.date,
        "events": segment.rows,
        "bytes": segment.bytes,
        "first": first,
        "last": last,
        "file": str(segment.path.relative_to(root)),
    }


def _summed(kind: str, rows: list[dict[str, Any]]) -> Mapping[str, Any]:
    return {
        "kind": kind,
        "segments": len(rows),
        "events": sum(row["events"] for row in rows),
        "bytes": sum(row["bytes"] for row in rows),
        "first": min((row["first"] for row in rows if row["first"]), default=None),
        "last": max((row["last"] for row in rows if row["last"]), default=None),
    }


def _events(
    root: Path, kinds: tuple[str, ...], service: str | None,
    since: datetime.datetime | None, until: datetime.datetime | None, limit: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """Read the last events that fit, from the newest segments back until there are enough of them."""
    first, last = (time.astimezone(datetime.timezone.utc) if time else None for time in (since, until))
    days = (first.date().isoformat() if first else "", last.date().isoformat() if last else "9999-12-31")
    by_day: dict[str, list[Segment]] = defaultdict(list)
    for segment in _segments(root):
        if (not kinds or segment.kind in kinds) and days[0] <= segment.date <= days[1]:
            by_day[segment.date].append(segment)
    found: list[dict[str, Any]] = []
    for day in sorted(by_day, reverse=True):  # events of a day are in all segments of it, in no order
        found = _last([*_read(by_day[day], service, first, last, limit), *found], limit)
        if len(found) >= limit:
            break
    return [{**row, "ts": row["ts"].isoformat(timespec="microseconds")} for row in found]


def _last(rows: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: (row["ts"], row["seq"]))[-limit:]


def _read(
    segments: list[Segment], service: str | None, since: datetime.datetime | None, until: datetime.datetime | None,
    limit: int,
) -> list[dict[str, Any]]:  # fmt: skip
    import pyarrow as pa
    import pyarrow.compute as pc

    # masks, and no expressions: those are for threads of Arrow
    tests: list[tuple[str, Callable[..., Any], Any]] = []
    tests += [("service", pc.equal, service)] if service is not None else []
    tests += [("ts", pc.greater_equal, since)] if since else []
    tests += [("ts", pc.less, until)] if until else []
    rows: list[dict[str, Any]] = []
    for segment in segments:
        try:
            table = segment.table()
        except (OSError, pa.ArrowException) as error:
            kit.say(f"{segment.path} cannot be read: {error}")
            continue
        for column, test, value in tests:
            table = table.filter(test(table[column], pa.scalar(value, table.schema.field(column).type)))
        table = table.sort_by([("ts", "ascending"), ("seq", "ascending")])
        table = table.slice(max(0, table.num_rows - limit))
        rows = _last([*rows, *({"kind": segment.kind, **row} for row in table.to_pylist())], limit)
    return rows
