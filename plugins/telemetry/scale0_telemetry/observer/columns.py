"""From events to columns: whole columns at a time, since work for each event would cost the broker as much as a task.

Pure: what o'clock it was comes in beside the events.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, compress
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from scale0_core.api import Event, EventKind, PackedEvents, events, packing, printable
from scale0_telemetry.observer.packed import LAST_US, Records, joined, numbered_texts
from scale0_telemetry.schema import ROWS_SCHEMA, TIMESTAMP

Told = Sequence[tuple[str, Sequence[Event]]]
"""The names of services, and what happened there."""

Turn = tuple[float, Told]
"""What to add to the times of events to get seconds of UTC, and the events of one turn of the loop."""

MALFORMED = "malformed"
"""Why an event is lost that is none."""

DAY_US = 86_400_000_000

_MOST_DIGITS = 10**300
_NO_WHOLE = 2.0**63
_WRONG = (TypeError, ValueError, OverflowError, pa.ArrowException)
_kind_of = itemgetter(0)


class Batch(NamedTuple):
    """Events of one kind and one day (since 1970), as a record batch of ROWS_SCHEMA."""

    kind: str
    day: int
    rows: Any


_Part = tuple[float, int, Sequence[int] | None, Sequence[Event]]
"""What to add to times, how many events were told before, places after those (None: 0, 1, 2...), and the events."""


class _Group(NamedTuple):
    """Events of one kind with their offsets of time, and their places among all that are converted at once."""

    kind: EventKind
    service: str
    rows: Sequence[Event]
    offsets: Any
    places: Any

    def only(self, mask: Any) -> _Group:
        rows = list(compress(self.rows, mask))
        return _Group(self.kind, self.service, rows, self.offsets[mask], self.places[mask])


class _Whole(NamedTuple):
    """Events that are as they should be, column by column: values, an array of Arrow, or a text that all have."""

    kind: EventKind
    service: str
    times: Any
    columns: Sequence[Any]
    places: Any


class Columns:
    """Numbers, samples and converts the events of one broker since one start of it."""

    def __init__(self, broker: str, epoch: int, sampling: Mapping[str, float] | None = None) -> None:
        self.seq = 0
        """The number of the last event."""
        self.lost: Counter[str] = Counter()
        """Events that were lost, by reason; whoever tells of them clears it."""
        self._sampling = sampling or {}
        self._chance: np.random.Generator | None = None
        if any(rate < 1.0 for rate in self._sampling.values()):
            self._chance = np.random.default_rng([epoch, *broker.encode(errors="replace")])
        self._same: dict[Any, Any] = {}
        self._fixed = {"v": events.VERSION, "broker": broker, "epoch": epoch}

    def convert(self, turns: Iterable[Turn]) -> list[Batch]:
        """Make record batches of the events of some turns, each of one kind and one day."""
        groups, count = self._grouped(turns)
        if self._chance is not None:
            groups = self._sampled(groups, self._chance.random(count))
        wholes = [whole for group in groups for whole in self._whole(group)]
        made: list[Batch] = []
        for whole, numbers in zip(wholes, self._numbered([whole.places for whole in wholes], count), strict=True):
            made += _by_day(whole.kind.name, whole.times, self._batch(whole, numbers))
        return made

    def _grouped(self, turns: Iterable[Turn]) -> tuple[list[_Group | Records], int]:
        """Sort events by kind; those of a kind that does not name a service, by the service that told of them too.

        Give the groups, and how many events there are in all.
        """
        groups: dict[tuple[EventKind, str], list[_Part]] = {}
        packed: dict[int, tuple[PackedEvents, list[tuple[float, int, bytearray]]]] = {}
        count = 0
        for offset, service, found, run in _runs(turns):
            if isinstance(run, bytearray):
                packed.setdefault(id(found.abouts), (found, []))[1].append((offset, count, run))
                count += len(run) // packing.RECORD.size
                continue
            for kind, places, rows in self._by_kind(run):
                key = (kind, "" if "service" in kind.fields else service)
                groups.setdefault(key, []).append((offset, count, places, rows))
            count += len(run)
        made: list[_Group | Records] = [joined(found.kind, found.abouts, parts) for found, parts in packed.values()]
        return [*made, *(_joined(kind, service, parts) for (kind, service), parts in groups.items())], count

    def _by_kind(self, found: Sequence[Event]) -> Iterable[tuple[EventKind, Sequence[int] | None, Sequence[Event]]]:
        """Give each kind with its events and their places among all; None: one after the other."""
        try:
            kinds = set(map(_kind_of, found))
            if len(kinds) == 1 and isinstance(kind := kinds.pop(), EventKind):
                return [(kind, None, found)]  # most often a service tells of one kind in a turn
        except (*_WRONG, LookupError):
            pass
        sorted_out: dict[EventKind, tuple[list[int], list[Event]]] = {}
        for place, event in enumerate(found):
            if _has_kind(event):
                places, rows = sorted_out.setdefault(event[0], ([], []))
                places.append(place)
                rows.append(event)
            else:
                self.lost[MALFORMED] += 1
        return [(kind, places, rows) for kind, (places, rows) in sorted_out.items()]

    def _sampled(self, groups: Sequence[_Group | Records], draws: Any) -> list[_Group | Records]:
        """Leave out events by chance, each for itself: whoever counts them would keep one of two that take turns.

        There is a number for each event that was told, so that it does not matter which ones are converted at once.
        """
        rates = ((group, self._sampling.get(group.kind.name, 1.0)) for group in groups)
        return [group if rate >= 1.0 else group.only(draws[group.places] < rate) for group, rate in rates]

    def _whole(self, group: _Group | Records) -> list[_Whole]:
        """Turn rows to columns, without those that are not as they should be; none if no row is left."""
        if not len(group.rows):
            return []
        if isinstance(group, Records):
            return self._whole_records(group)
        width = 2 + len(group.kind.fields)
        times, columns = _transposed(group.rows, width, group.offsets)
        if times is None:
            each = zip(group.rows, group.offsets, strict=True)
            good = np.fromiter((_is_whole(row, width, offset) for row, offset in each), bool)
            self.lost[MALFORMED] += len(group.rows) - int(good.sum())
            group = group.only(good)
            times, columns = _transposed(group.rows, width, group.offsets) if group.rows else (None, [])
            if times is None:
                return []
        return [_Whole(group.kind, group.service, times, columns, group.places)]

    def _whole_records(self, group: Records) -> list[_Whole]:
        """Turn packed events to columns; those that do not fit into them are unpacked first."""
        measured = group.measured()
        fits = group.fitting(measured)
        if fits is not None:
            return [whole for part in (_unpacked(group.only(~fits)), group.only(fits)) for whole in self._whole(part)]
        try:
            columns = group.columns(measured)
        except _WRONG:  # a text that is none
            return self._whole(_unpacked(group))
        return [_Whole(group.kind, "", measured[0].astype(np.int64), columns, group.places)]

    def _numbered(self, places: Sequence[Any], count: int) -> list[Any]:
        """Give numbers in the order in which events were told; those that are left out have none."""
        first, kept = self.seq + 1, sum(map(len, places))
        self.seq += kept
        if kept == count:
            return [first + each for each in places]
        told = np.zeros(count, np.int64)
        for each in places:
            told[each] = 1
        numbers = np.cumsum(told) + (first - 1)
        return [numbers[each] for each in places]

    def _batch(self, whole: _Whole, numbers: Any) -> Any:
        kind, count = whole.kind, len(numbers)
        told = dict(zip(kind.fields, whole.columns, strict=True))
        made = {
            "seq": pa.array(numbers),
            "ts": pa.array(whole.times, TIMESTAMP),
            "weight": self._constant("weight", 1.0 / self._sampling.get(kind.name, 1.0), count),
            **{name: self._constant(name, value, count) for name, value in self._fixed.items()},
        }
        if "service" not in told:
            made["service"] = self._constant("service", printable(whole.service), count)
        details: dict[int, dict[str, Any]] = {}
        for name, values in told.items():
            if name in events.FIELDS:
                made[name] = self._column(name, values, count, details)
            else:
                _add_details(name, values, details)
        if details:
            texts = [_json(details[row]) if row in details else None for row in range(count)]
            made["details"] = pa.array(texts, pa.string())
        arrays = [made[name] if name in made else self._constant(name, None, count) for name in ROWS_SCHEMA.names]
        return pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA)

    def _column(self, name: str, values: Any, count: int, details: dict[int, dict[str, Any]]) -> Any:
        if isinstance(values, pa.Array):
            return values
        if values is None or isinstance(values, str):
            return self._constant(name, values, count)
        first = values[0]
        if first is values[-1] and values.count(first) == count and isinstance(first, str | int | None):
            try:
                return self._constant(name, first, count)
            except _WRONG:
                pass
        try:
            if events.FIELDS[name].type is int and float in (type(first), type(values[-1])):
                return _cut_off(values)
            return pa.array(values, ROWS_SCHEMA.field(name).type)
        except _WRONG:
            return _fitted(name, values, details)

    def _constant(self, name: str, value: Any, count: int) -> Any:
        """Give a column of one value; the last one of its name is kept, since it will be asked for again."""
        known = self._same.get(name)
        if known is None or known[0] != value or len(known[1]) < count:
            known = self._same[name] = (value, _repeated(value, ROWS_SCHEMA.field(name).type, max(count, 8192)))
        return known[1].slice(0, count)


def _repeated(value: Any, kind: Any, count: int) -> Any:
    if value is None:
        return pa.nulls(count, kind)
    if pa.types.is_dictionary(kind):
        return numbered_texts([value], np.zeros(count, np.int32))
    return pa.repeat(pa.scalar(value, kind), count)


def _runs(turns: Iterable[Turn]) -> Iterator[tuple[float, str, Any, packing.Run | Sequence[Event]]]:
    """Give what to add to times, who told of events, what they are in, and those that are told in the same way."""
    for offset, told in turns:
        for service, found in told:
            if isinstance(found, PackedEvents):
                yield from ((offset, service, found, run) for run in found.runs)
            else:
                yield offset, service, found, found


def _unpacked(group: Records) -> _Group:
    return _Group(group.kind, "", group.tuples(), group.offsets, group.places)


def _joined(kind: EventKind, service: str, parts: Sequence[_Part]) -> _Group:
    """Put the parts of all turns together."""
    lengths = [len(rows) for *_, rows in parts]
    rows = parts[0][3] if len(parts) == 1 else list(chain.from_iterable(rows for *_, rows in parts))
    offsets = np.repeat([offset for offset, *_ in parts], lengths)
    starts = np.array([before for _, before, *_ in parts])
    if any(places is not None for _, _, places, _ in parts):
        within = np.concatenate([range(len(rows)) if places is None else places for _, _, places, rows in parts])
        return _Group(kind, service, rows, offsets, np.repeat(starts, lengths) + within)
    # where each part begins among the rows, so that one range serves all parts
    begins = np.cumsum(lengths) - lengths
    return _Group(kind, service, rows, offsets, np.repeat(starts - begins, lengths) + np.arange(len(rows)))


def _transposed(rows: Sequence[Event], width: int, offsets: Any) -> tuple[Any, Sequence[Sequence[Any]]]:
    """Give the times in microseconds, and the columns of values; None if an event is not as it should be."""
    try:
        _, seconds, *columns = zip(*rows, strict=True)
        with np.errstate(over="ignore"):  # what comes of that does not fit
            times = np.rint((np.array(pa.array(seconds, pa.float64())) + offsets) * 1e6)
    except _WRONG:
        return None, []
    fits = len(columns) + 2 == width and np.isfinite(times).all() and times.min() >= 0 and times.max() <= LAST_US
    return (times.astype(np.int64), columns) if fits else (None, [])


def _cut_off(values: Sequence[Any]) -> Any:
    """Make whole numbers of floats, all at once."""
    numbers, nulls = pa.array(values, pa.float64()), None
    if numbers.null_count:
        nulls = numbers.is_null().to_numpy(zero_copy_only=False)
        numbers = numbers.fill_null(0.0)
    found = numbers.to_numpy()
    if not -_NO_WHOLE < found.min() <= found.max() < _NO_WHOLE:  # also when one is not a number at all
        raise ValueError("no whole numbers")
    return pa.array(found.astype(np.int64), mask=nulls)


def _has_kind(event: object) -> bool:
    return isinstance(event, tuple) and bool(event) and isinstance(event[0], EventKind)


def _is_whole(row: Event, width: int, offset: float) -> bool:
    if len(row) != width or not isinstance(row[1], int | float):
        return False
    try:
        return 0 <= (float(row[1]) + float(offset)) * 1e6 <= LAST_US
    except OverflowError:
        return False


def _by_day(kind: str, times: Any, batch: Any) -> list[Batch]:
    first, last = int(times.min()) // DAY_US, int(times.max()) // DAY_US
    if first == last:
        return [Batch(kind, first, batch)]
    days = times // DAY_US
    return [Batch(kind, int(day), batch.filter(pa.array(days == day))) for day in np.unique(days)]


# --- values that are not as their column wants them -----------------------------------------------------------


def _fitted(name: str, values: Sequence[Any], details: dict[int, dict[str, Any]]) -> Any:
    """Make a column value by value; one that cannot be in it becomes a detail of its event."""
    fit = _FITS[events.FIELDS[name].type]
    found = []
    for row, value in enumerate(values):
        fitting = fit(value)
        if fitting is None and value is not None:
            details.setdefault(row, {})[name] = value
        found.append(fitting)
    return pa.array(found, ROWS_SCHEMA.field(name).type)


def _text(value: Any) -> str | None:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    return printable(bytes(value)) if isinstance(value, bytes | bytearray | memoryview) else None


def _whole(value: Any) -> int | None:
    # parts of a microsecond or of a byte are nothing that anybody asks for, and pyarrow cuts them off too
    return int(value) if isinstance(value, int | float) and -(2**63) <= value < 2**63 else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, float) or (isinstance(value, int) and abs(value) < _MOST_DIGITS) else None


_FITS: Mapping[type, Callable[[Any], Any]] = {str: _text, int: _whole, float: _number}


def _add_details(name: str, values: Sequence[Any], details: dict[int, dict[str, Any]]) -> None:
    for row, value in enumerate(values):
        if value is not None:
            details.setdefault(row, {})[name] = value


def _json(table: Mapping[str, Any]) -> str:
    return json.dumps({name: _plain(value) for name, value in table.items()})


def _plain(value: Any) -> Any:
    """Give what JSON has a form for; of all else, how Python writes it."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and abs(value) < _MOST_DIGITS:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return printable(bytes(value))
    try:
        return repr(value)
    except Exception:  # whatever a plugin's own class raises; an int may have too many digits
        return f"a {type(value).__name__}"
