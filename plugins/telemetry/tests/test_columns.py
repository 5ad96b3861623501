"""Events become columns: what goes in can be read again, and nothing that a service tells can break it."""

import datetime
import json
import math
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.api import EventKind, Packing, events
from scale0_core.api import packing as forms
from scale0_telemetry.observer.columns import DAY_US, Columns
from scale0_telemetry.schema import FILE_SCHEMA, ROWS_SCHEMA, SCHEMA

RECORD = forms.RECORD

NOON = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc).timestamp()
NAMES = {str: st.text(st.characters(exclude_categories=("Cs",))), int: st.integers(-(2**63), 2**63 - 1)}
NAMES[float] = st.floats(allow_nan=False)

TASK = (events.TASK, 1.5, "echo", "worker", None, "ok", 10, 20, 100)


def rows_of(batches):
    """Give all rows of batches, in order of their numbers, as tables without what is null."""
    rows = []
    for kind, day, batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(ROWS_SCHEMA, check_metadata=True)
        date = datetime.date(1970, 1, 1) + datetime.timedelta(day)
        rows += [{"kind": kind, "date": date, **row} for row in batch.to_pylist()]
    rows.sort(key=lambda row: row["seq"])
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def test_the_schema_is_the_one_that_readers_rely_on():
    assert FILE_SCHEMA.names == [
        "v", "broker", "epoch", "seq", "ts", "weight", "service", "peer", "group", "subject", "source", "outcome",
        "queue_us", "service_us", "bytes", "count", "value", "details",
    ]  # fmt: skip
    assert [*FILE_SCHEMA.names, "kind", "date"] == SCHEMA.names
    assert SCHEMA.field("ts").type == pa.timestamp("us", tz="UTC")
    assert (SCHEMA.field("seq").type, SCHEMA.field("value").type) == (pa.int64(), pa.float64())
    assert FILE_SCHEMA.metadata == {b"scale0.events": b"1"}


def test_an_event_becomes_a_row():
    [row] = rows_of(Columns("left", 7).convert([(NOON - 1.5, [("scale0", [TASK])])]))
    assert row == {
        "kind": "task", "date": datetime.date(2026, 3, 1), "v": 1, "broker": "left", "epoch": 7, "seq": 1,
        "ts": datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.timezone.utc), "weight": 1.0,
        "service": "echo", "peer": "worker", "outcome": "ok", "queue_us": 10, "service_us": 20, "bytes": 100,
    }  # fmt: skip


def test_numbers_go_on_and_kinds_and_days_are_kept_apart():
    columns = Columns("left", 7)
    read = (events.PIPE_READ, 0.0, "orders", 3, 300)
    late = (events.TASK, 86_400.0, *TASK[2:])
    first = columns.convert([(NOON, [("scale0", [TASK, late, TASK]), ("zpipes", [read])])])
    assert sorted((batch.kind, batch.day - int(NOON * 1e6) // DAY_US, batch.rows.num_rows) for batch in first) == [
        ("pipe_read", 0, 1), ("task", 0, 2), ("task", 1, 1),
    ]  # fmt: skip
    second = columns.convert([(NOON, [("scale0", [TASK])])])
    assert [row["seq"] for row in rows_of([*first, *second])] == [1, 2, 3, 4, 5]


def test_numbers_are_in_the_order_in_which_events_were_told():
    """Also when kinds take turns, some events are none, and some are left out by sampling."""
    join, leave = (events.JOIN, 0.0, "echo", "w", "", 1), (events.LEAVE, 0.0, "echo", "w", "", "lost", 1.0)
    read = (events.PIPE_READ, 0.0, "orders", 3, 300)
    turns = [
        (NOON, [("scale0", [join, TASK, leave, join, "none", TASK]), ("zpipes", [read]), ("others", [read])]),
        (NOON, [("scale0", [TASK, TASK])]),
        (NOON, [("zpipes", [read]), ("scale0", [leave, TASK, (events.TASK, 0.0)])]),
    ]
    first = ["join", "task", "leave", "join", "task", "pipe_read", "pipe_read"]
    told = [*first, "task", "task", "pipe_read", "leave", "task"]
    for epoch in range(20):
        columns = Columns("left", epoch, {"task": 0.5})
        rows = rows_of(columns.convert(turns))
        kinds = [row["kind"] for row in rows]
        assert [kind for kind in kinds if kind != "task"] == [kind for kind in told if kind != "task"]
        assert is_within(kinds, told)
        assert [row["seq"] for row in rows] == list(range(1, len(rows) + 1))
        assert columns.lost["malformed"] in (1, 2), "the event that is none; the task that is none may be left out"


def is_within(some, all_of_them):
    """Tell whether nothing but leaving out makes the one of the other."""
    rest = iter(all_of_them)
    return all(each in rest for each in some)


@given(st.lists(st.lists(st.sampled_from([events.JOIN, events.LOAD, events.DROP]), max_size=6), max_size=6))
def test_the_order_of_numbers_is_that_of_any_turns(turns):
    columns, told = Columns("left", 7), []

    def event(kind):
        told.append((kind.name, len(told)))
        return (kind, 0.0, *("x" if events.FIELDS[name].type is str else len(told) - 1 for name in kind.fields))

    batches = columns.convert([(NOON, [("one", [event(kind) for kind in kinds])]) for kinds in turns])
    rows = rows_of(batches)
    assert [(row["kind"], row["count"]) for row in rows] == told
    assert [row["seq"] for row in rows] == list(range(1, len(told) + 1))


def test_who_told_of_it_is_the_service_of_kinds_that_name_none():
    told = [("zpipes", [(events.PIPE_READ, 0.0, "a", 1, 1)]), ("others", [(events.PIPE_READ, 0.0, "b", 1, 1)])]
    rows = rows_of(Columns("left", 7).convert([(NOON, told)]))
    assert {row["subject"]: row["service"] for row in rows} == {"a": "zpipes", "b": "others"}


def test_fields_without_a_column_are_details():
    searches = [
        (events.SONG_SEARCH, 0.0, "tcp://a", None, "blue moon", "hit", 5),
        (events.SONG_SEARCH, 0.0, "tcp://a", "song", None, "hit", 5),
    ]
    first, second = rows_of(Columns("left", 7).convert([(NOON, [("music", searches)])]))
    assert json.loads(first["details"]) == {"text": "blue moon"}
    assert "details" not in second


def test_values_that_do_not_fit_are_details():
    odd = [
        (events.TASK, 0.0, "echo", b"\xff\x00", "\udc80", 7, 2**70, 1.5, 10**5000),
        (events.TASK, 0.0, "echo", b"name", "g", "ok", True, 2.0, math.nan),
        TASK,
    ]
    columns = Columns("left", 7)
    first, second, third = rows_of(columns.convert([(NOON, [("scale0", odd)])]))
    assert (first["peer"], first["group"]) == ("0xff00", "\\udc80")
    assert json.loads(first["details"]) == {"outcome": 7, "queue_us": 2**70, "bytes": "a int"}
    assert first["service_us"] == 1
    assert (second["peer"], second["queue_us"], second["service_us"]) == ("name", 1, 2)
    assert json.loads(second["details"]) == {"bytes": "nan"}
    assert third["queue_us"] == 10
    assert not columns.lost


FLOATS = st.none() | st.floats() | st.floats(-1e6, 1e6) | st.integers(-(2**70), 2**70)


@given(st.lists(FLOATS, min_size=1, max_size=20))
def test_whole_numbers_may_be_told_as_floats(numbers):
    told = [(*TASK[:7], number, 100) for number in numbers]
    rows = rows_of(Columns("left", 7).convert([(NOON, [("scale0", told)])]))
    for row, number in zip(rows, numbers, strict=True):
        if number is not None and math.isfinite(number) and -(2**63) <= number < 2**63:
            assert (row["service_us"], "details" in row) == (int(number), False)
        else:
            assert "service_us" not in row
            assert ("details" in row) == (number is not None)


@pytest.mark.parametrize(
    "wrong",
    [
        (), None, 7, "task", [events.TASK, 0.0], (events.TASK,), ("task", 0.0), TASK[:-1], (*TASK, 1),
        (events.TASK, None, *TASK[2:]), (events.TASK, "now", *TASK[2:]), (events.TASK, math.nan, *TASK[2:]),
        (events.TASK, math.inf, *TASK[2:]), (events.TASK, -NOON - 1, *TASK[2:]), (events.TASK, 10**400, *TASK[2:]),
    ],
    ids=repr,
)  # fmt: skip
def test_what_is_no_event_is_counted_and_left_out(wrong):
    columns = Columns("left", 7)
    rows = rows_of(columns.convert([(NOON, [("scale0", [TASK, wrong, TASK])])]))
    assert [row["seq"] for row in rows] == [1, 2]
    assert columns.lost == {"malformed": 1}
    assert columns.convert([(NOON, [("scale0", [wrong])])]) == []
    assert columns.lost == {"malformed": 2}


@given(st.sampled_from(list(events.KINDS.values())), st.data())
def test_what_is_told_can_be_read(kind, data):
    """Columns round trip, whatever the kind and the values."""
    fields = [field for field in kind.fields if field in events.FIELDS]
    values = [st.none() | NAMES[events.FIELDS[field].type] for field in fields]
    told = data.draw(st.lists(st.tuples(st.floats(0, 3600), *values), min_size=1, max_size=20))
    plain = EventKind(kind.name, kind.summary, tuple(fields))
    turns = [
        (NOON, [("told", [(plain, *row) for row in told[:7]])]),
        (NOON, [("told", [(plain, *row) for row in told[7:]])]),
    ]
    rows = rows_of(Columns("left", 7).convert(turns))
    assert len(rows) == len(told)
    for row, (now, *wanted) in zip(rows, told, strict=True):
        assert abs(row["ts"].timestamp() - NOON - now) < 1e-5
        assert [row.get(field) for field in fields] == wanted
        assert "details" not in row


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.lists(st.integers()),
    st.text(st.characters(categories=("Cs",))), st.just(2**64), st.just(-(2**70)), st.just(10**5000),
)  # fmt: skip
ANY_EVENT = st.one_of(
    ANYTHING,
    st.tuples(st.sampled_from(list(events.KINDS.values())), ANYTHING, *[ANYTHING] * 3),
    st.tuples(st.just(events.JOIN), st.floats(0, 60), *[ANYTHING] * 4),
    st.tuples(st.just(events.PIPE_READ), st.floats(0, 60), *[ANYTHING] * 3),
    st.tuples(st.just(events.SONG_SEARCH), st.floats(0, 60), *[ANYTHING] * 5),
)


@given(st.lists(st.lists(ANY_EVENT, max_size=8), max_size=4))
def test_every_event_is_stored_or_counted(turns):
    columns = Columns("left", 7, {"join": 0.5})
    kept = sum(1 for found in turns for event in found if type(event) is tuple and event[:1] == (events.JOIN,))
    batches = columns.convert([(NOON, [("told", found)]) for found in turns])
    rows = rows_of(batches)
    for row in rows:
        assert isinstance(json.loads(row.get("details", "{}")), dict)
    count = sum(map(len, turns))
    assert count - kept <= len(rows) + columns.lost["malformed"] <= count


def sampled(rate, told, epoch=7, piece=1000):
    """Give the rows that are kept of some events, which come in pieces."""
    columns = Columns("left", epoch, {told[0][0].name: rate})
    pieces = [told[start : start + piece] for start in range(0, len(told), piece)]
    rows = [row for some in pieces for row in rows_of(columns.convert([(NOON, [("scale0", some)])]))]
    assert not columns.lost
    return rows


def spread(count, rate):
    """Give how far from the mean the number of those that are kept may be: five standard errors."""
    return 5 * math.sqrt(count * rate * (1 - rate))


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.25, 1 / 3, 0.5, 0.9])
def test_weights_make_up_for_sampling(rate):
    rows = sampled(rate, [(*TASK[:8], number) for number in range(20_000)])
    assert abs(len(rows) - 20_000 * rate) <= spread(20_000, rate)
    assert {row["weight"] for row in rows} == {1 / rate}
    assert abs(sum(row["weight"] for row in rows) - 20_000) <= spread(20_000, rate) / rate
    early = sum(row["bytes"] < 10_000 for row in rows)
    for half in (early, len(rows) - early):
        assert abs(half - 10_000 * rate) <= spread(10_000, rate)


def test_all_are_kept_or_none():
    told = [(*TASK[:8], number) for number in range(5000)]
    assert sampled(0.0, told) == []
    assert [(row["bytes"], row["weight"]) for row in sampled(1.0, told)] == [(number, 1.0) for number in range(5000)]


def test_services_that_take_turns_are_both_there():
    told = [(*TASK[:2], ("echo", "sum")[number % 2], *TASK[3:]) for number in range(10_000)]
    counts = Counter(row["service"] for row in sampled(0.5, told))
    assert counts.keys() == {"echo", "sum"}
    assert all(abs(count - 2500) <= spread(5000, 0.5) for count in counts.values())


def test_workers_that_beat_in_a_fixed_order_are_all_there():
    told = [(events.HEARTBEAT, 0.0, "echo", f"worker-{number % 10}", "north") for number in range(20_000)]
    counts = Counter(row["peer"] for row in sampled(0.1, told))
    assert len(counts) == 10
    assert all(abs(count - 200) <= spread(2000, 0.1) for count in counts.values())


def test_the_same_start_of_a_broker_makes_the_same_choice_and_another_one_does_not():
    told = [(*TASK[:8], number) for number in range(2000)]
    assert sampled(0.5, told) == sampled(0.5, told)
    assert sampled(0.5, told, epoch=8) != sampled(0.5, told)
    kept = [[row["seq"] for row in rows_of(Columns(name, 7, {"task": 0.5}).convert([(NOON, [("scale0", told)])]))]
            for name in ("left", "right")]  # fmt: skip
    assert kept[0] != kept[1]


SAMPLED = st.lists(st.sampled_from([events.TASK, events.HEARTBEAT, events.JOIN]), max_size=60)


@given(SAMPLED, st.integers(1, 60), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**53))
def test_whether_an_event_is_kept_depends_on_its_place_alone(kinds, piece, tasks, beats, epoch):
    """Neither on those that are converted with it, nor on the rates of others."""
    told = [(kind, float(n), *([None] * len(kind.fields))) for n, kind in enumerate(kinds)]

    def kept(rates, size):
        columns = Columns("left", epoch, rates)
        turns = [(NOON, [("scale0", told[start : start + size])]) for start in range(0, len(told), size)]
        return [(row["kind"], row["ts"], row["weight"]) for turn in turns for row in rows_of(columns.convert([turn]))]

    rates = {"task": tasks, "heartbeat": beats}
    both = kept(rates, 60)
    assert kept(rates, piece) == both
    assert sum(kind == "join" for kind, *_ in both) == kinds.count(events.JOIN)
    if tasks < 1:
        alone = kept({"task": tasks}, piece)
        assert [row for row in alone if row[0] == "task"] == [row for row in both if row[0] == "task"]
    assert {weight for kind, _, weight in both if kind == "task"} <= {tasks and 1 / tasks}


def test_only_the_kinds_that_are_named_are_sampled():
    columns = Columns("left", 7, {"task": 0.5})
    join = (events.JOIN, 0.0, "echo", "worker", None, 1)
    rows = rows_of(columns.convert([(NOON, [("scale0", [TASK, join] * 100)])]))
    counts = Counter((row["kind"], row["weight"]) for row in rows)
    assert counts.keys() == {("join", 1.0), ("task", 2.0)}
    assert counts["join", 1.0] == 100
    assert 25 <= counts["task", 2.0] <= 75


def test_kinds_of_others_are_stored_too():
    kind = EventKind("weather", "how it is outside", ("subject", "value", "sky"))
    [row] = rows_of(Columns("left", 7).convert([(NOON, [("weather", [(kind, 0.0, "Bonn", 21.5, ["blue"])])])]))
    assert (row["kind"], row["subject"], row["value"]) == ("weather", "Bonn", 21.5)
    assert json.loads(row["details"]) == {"sky": "['blue']"}


# --- packed events ------------------------------------------------------------------------------------------------

MOMENTS = st.floats(0, 3600) | st.sampled_from([-1e300, 1e300, math.nan, math.inf, -2e9, 86_400.0])
TEXTS = st.sampled_from(["echo", "sum", "Bär", "\udc80", ""])
ABOUTS = st.tuples(TEXTS, st.none() | TEXTS, TEXTS, st.sampled_from(["ok", "error"]))
REQUESTS = st.tuples(MOMENTS, MOMENTS, MOMENTS, st.integers(-(2**63), 2**63 - 1), ABOUTS)
OTHERS = st.sampled_from([TASK, (events.JOIN, 0.0, "echo", "worker", None, 1), (events.TASK, 0.0), "none"])


def packed_turn(packing, numbers, turn):
    told = []
    for each in turn:
        if len(each) == 5 and isinstance(each[4], tuple):
            if each[4] not in numbers:
                packing.number(numbers, each[4], each[4])
            packing.add(told, *each[:4], numbers[each[4]])
        else:
            told.append(each)
    return packing.told(told)


@given(st.lists(st.lists(REQUESTS | OTHERS, max_size=8), max_size=4), st.sampled_from([1.0, 0.5, 0.3]), st.booleans())
def test_packed_events_give_the_same_rows_as_tuples(turns, rate, anew):
    packing, numbers = Packing(events.TASK), {}
    packed = []
    for turn in turns:
        packed.append(packed_turn(packing, numbers, turn))
        if anew:
            packing, numbers = Packing(events.TASK), {}
    one, other = Columns("left", 7), Columns("left", 7)
    rows = rows_of(one.convert([(NOON, [("scale0", found)]) for found in packed]))
    plain = rows_of(other.convert([(NOON, [("scale0", list(found))]) for found in packed]))
    assert repr(rows) == repr(plain)
    assert (one.seq, one.lost) == (other.seq, other.lost)
    one, other = Columns("left", 7, {"task": rate}), Columns("left", 7, {"task": rate})
    rows = rows_of(one.convert([(NOON, [("scale0", found)]) for found in packed]))
    plain = rows_of(other.convert([(NOON, [("scale0", list(found))]) for found in packed]))
    assert repr(rows) == repr(plain)
    assert (one.seq, one.lost) == (other.seq, other.lost)


def test_packed_events_that_make_no_sense_are_counted_and_left_out():
    packing, columns = Packing(events.TASK), Columns("left", 7)
    about = packing.number({}, "", ("echo", None, "g", "ok"))
    records = [(3.0, 1.0, 2.0, 100, about), (3.0, 1.0, 2.0, 100, 1), (math.nan, 1.0, 2.0, 1, 0)]
    good, unknown, never = (bytearray(RECORD.pack(*record)) for record in records)
    told = [good, unknown, b"short", never, good]
    rows = rows_of(columns.convert([(NOON, [("scale0", packing.told(told))])]))
    assert [(row["seq"], row["service"], "peer" in row) for row in rows] == [(1, "echo", False), (2, "echo", False)]
    assert columns.lost == {"malformed": 3}
    assert columns.convert([(NOON, [("scale0", packing.told(told[1:4]))])]) == []


@pytest.mark.parametrize("rate", [0.1, 0.25, 1.0])
def test_packed_events_are_sampled_too(rate):
    packing, numbers = Packing(events.TASK), {}
    columns = Columns("left", 7, {"task": rate})
    turn = [(2.0, 1.0, 1.5, size, ("echo", "w", "g", "ok")) for size in range(100)]
    rows = rows_of(columns.convert([(NOON, [("scale0", packed_turn(packing, numbers, turn))])] * 10))
    assert abs(len(rows) - 1000 * rate) <= spread(1000, rate)
    assert {row["weight"] for row in rows} == {1 / rate}
    different = 100 * (1 - (1 - rate) ** 10)
    assert len({row["bytes"] for row in rows}) > different - 25, "not the same ones of each turn"
