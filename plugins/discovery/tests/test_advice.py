"""Advice on where services should have workers: taken, shown, told to watchers, and forgotten."""

import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.api import Provider, Registry
from scale0_core.testing import Script
from scale0_discovery.service.advice import FIELDS, LARGEST, LONGEST_NAME, LONGEST_REASON, MOST_ADVICE
from scale0_discovery.service.discovery import ADVISE_EVERY, SMALL, DiscoveryService
from scale0_discovery.settings import DiscoverySettings

AS_OF = "2026-01-31T12:00:00Z"
DAY = 24 * 3600


def row(service="x", group="eu", **more):
    return {
        "service": service, "group": group, "workers_now": 2, "workers_wanted": 3, "utilisation": 0.91, "share": 0.5,
        "advice": "add", "reason": "more than 80 % busy at the peak", **more,
    }  # fmt: skip


class Talk(Script):
    """A script with words for what is asked here."""

    def __init__(self, **settings):
        self.registry = Registry()
        self.registry.put(Provider(service="x", provider="w1", kind="worker", state="responsive"))
        super().__init__(DiscoveryService(self.registry, DiscoverySettings(**settings), epoch="e1"))

    def ask(self, command, **options):
        return self.ask_raw(command, json.dumps(options).encode())

    def ask_raw(self, command, body):
        if command == "ADVISE":
            self.sleep(ADVISE_EVERY)  # more often it is not taken
        return self.ask_at_once(command, body)

    def ask_at_once(self, command, body):
        before = len(self.sent)
        self.feed("requests", "client", command, body)
        ((_, frames),) = [send for send in self.sent[before:] if send[0] == "requests"]
        if frames[1] == b"ERROR":
            return int(frames[2]), frames[3].decode()
        return json.loads(frames[2])

    def advise(self, *rows, as_of=AS_OF):
        return self.ask("ADVISE", as_of=as_of, rows=list(rows))

    def news(self):
        """Give what was published on advice so far."""
        return [json.loads(frames[1]) for socket, frames in self.sent if frames[0] == b"advice/" and socket == "watch"]


@pytest.fixture
def talk():
    return Talk()


def test_it_is_shown_with_its_age(talk):
    assert talk.ask("ADVICE") == {"as_of": None, "age_s": None, "rows": [], "number": 0, "epoch": "e1"}
    told = talk.advise(row(), row("y", None, utilisation=None, share=None))
    assert told == {"rows": 2, "number": 1, "keep_s": 7 * DAY, "epoch": "e1"}
    talk.sleep(60)
    shown = talk.ask("ADVICE")
    assert (shown["as_of"], shown["age_s"], shown["number"]) == (AS_OF, 60, 1)
    assert shown["rows"] == [row(), row("y", None, utilisation=None, share=None)]
    assert talk.ask("ADVICE", service="y")["rows"] == shown["rows"][1:]


def test_a_service_is_shown_with_what_is_advised_for_it(talk):
    assert talk.ask("INFO", service="x")["advice"] == {"as_of": None, "age_s": None, "rows": []}
    talk.advise(row(), row("y"))
    assert talk.ask("INFO", service="x")["advice"] == {"as_of": AS_OF, "age_s": 0, "rows": [row()]}


def test_new_advice_replaces_all_of_the_old(talk):
    talk.advise(row("x"), row("y"))
    talk.advise(row("z"), as_of="2026-02-01T00:00:00.5Z")
    shown = talk.ask("ADVICE")
    assert ([each["service"] for each in shown["rows"]], shown["number"]) == (["z"], 2)
    talk.advise()
    assert talk.ask("ADVICE")["rows"] == []


def test_it_is_forgotten_when_it_is_not_renewed():
    talk = Talk(advice_keep=700.0)
    talk.advise(row())
    talk.sleep(600)
    talk.advise(row())
    talk.sleep(699)
    assert talk.ask("ADVICE")["rows"] == [row()]
    talk.sleep(2)
    assert talk.ask("ADVICE") == {"as_of": None, "age_s": None, "rows": [], "number": 3, "epoch": "e1"}
    assert talk.ask("INFO", service="x")["advice"]["rows"] == []


def test_watchers_are_told_that_there_is_other_advice():
    talk = Talk(advice_keep=700.0)
    talk.sleep(1)
    talk.advise(row())
    talk.sleep(800)
    assert talk.news() == [
        {"kind": "advised", "number": 1, "as_of": AS_OF, "rows": 1, "epoch": "e1"},
        {"kind": "expired", "number": 2, "as_of": None, "rows": 0, "epoch": "e1"},
    ]
    bookmarks = [json.loads(frames[1]) for _, frames in talk.sent if frames[0] == b"bookmark/"]
    assert (bookmarks[0]["advice"], bookmarks[-1]["advice"]) == (1, 2), "who missed it finds out by these"


def test_it_can_be_switched_off():
    talk = Talk(advice=False)
    code, reason = talk.advise(row())
    assert (code, "plugin.discovery.advice" in reason) == (403, True)
    assert talk.ask("ADVICE")["rows"] == []


def test_what_was_refused_leaves_the_old_as_it_was(talk):
    talk.advise(row())
    assert talk.advise(row("y"), row("z", advice="dance"))[0] == 400
    assert talk.ask("ADVICE")["rows"] == [row()]


def test_it_is_looked_at_once_a_second(talk):
    """Also what is refused: reading it is what takes time."""
    body = json.dumps({"as_of": AS_OF, "rows": [row()]}).encode()
    assert talk.ask_at_once("ADVISE", b"{")[0] == 400
    for _ in range(3):
        code, reason = talk.ask_at_once("ADVISE", body)
        assert (code, "later" in reason) == (429, True)
    talk.sleep(ADVISE_EVERY)
    assert talk.ask_at_once("ADVISE", body)["rows"] == 1
    assert talk.ask_at_once("ADVISE", body)[0] == 429
    assert talk.ask("ADVICE")["rows"] == [row()]


@pytest.mark.parametrize("command", ["LIST", "INFO", "STATS", "PING", "CHANGES", "ADVICE"])
def test_only_advice_may_be_large(talk, command):
    code, reason = talk.ask_raw(command, b'{"service":"%s"}' % (b"x" * SMALL))
    assert (code, str(SMALL) in reason) == (413, True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"service": ""}, "service is a text"),
        ({"service": None}, "service is a text"),
        ({"service": "x" * (LONGEST_NAME + 1)}, "service is a text"),
        ({"group": 1}, "group is a text"),
        ({"workers_now": -1}, "workers_now is a whole number"),
        ({"workers_now": True}, "workers_now is a whole number"),
        ({"workers_wanted": 2.0}, "workers_wanted is a whole number"),
        ({"utilisation": -0.1}, "utilisation is a number"),
        ({"utilisation": "1"}, "utilisation is a number"),
        ({"share": 1.01}, "share is a number"),
        ({"share": 10**400}, "share is a number"),
        ({"advice": "dance"}, "add, remove, keep, move"),
        ({"advice": ["add"]}, "add, remove, keep, move"),
        ({"reason": None}, "reason is a text"),
        ({"reason": "x" * (LONGEST_REASON + 1)}, "reason is a text"),
        ({"more": 1}, "is an object of service, group"),
    ],
)
def test_a_wrong_row_is_told_by_its_number(talk, change, told):
    code, reason = talk.advise(row(), row(**{"group": "us"} | change))
    assert (code, "row 2" in reason, told in reason) == (400, True, True), reason


@pytest.mark.parametrize("missing", FIELDS)
def test_a_field_may_not_be_missing(talk, missing):
    short = row()
    del short[missing]
    assert talk.advise(short)[0] == 400


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{}", b"[]", b'{"rows":[]}', b'{"as_of":"2026-01-31T12:00:00Z"}', b'{"as_of":5,"rows":[]}',
        b'{"as_of":"2026-02-29T12:00:00Z","rows":[]}', b'{"as_of":"0000-01-01T12:00:00Z","rows":[]}',
        b'{"as_of":"2026-13-01T12:00:00Z","rows":[]}',
        b'{"as_of":"2026-01-31T24:00:00Z","rows":[]}',
        b'{"as_of":"2026-01-31T12:00:00","rows":[]}',
        b'{"as_of":"2026-01-31T12:00:00Z","rows":{}}', b'{"as_of":"2026-01-31T12:00:00Z","rows":[1]}',
        b'{"as_of":"2026-01-31T12:00:00Z","rows":[],"more":1}',
        b'{"as_of":"2026-01-31T12:00:00Z","rows":[{"share":NaN}]}',
    ],
)  # fmt: skip
def test_what_is_malformed_is_told(talk, body):
    code, reason = talk.ask_raw("ADVISE", body)
    assert (code, bool(reason)) == (400, True)


def test_a_service_has_one_row_in_a_group(talk):
    code, reason = talk.advise(row(), row("y"), row())
    assert (code, "one row" in reason) == (400, True)


def test_there_are_not_too_many(talk):
    most = [row(f"s{number}") for number in range(MOST_ADVICE)]
    assert len(json.dumps(most)) < LARGEST, "as many rows as are taken fit into a message"
    assert talk.advise(*most)["rows"] == MOST_ADVICE
    code, reason = talk.advise(*most, row())
    assert (code, str(MOST_ADVICE) in reason) == (400, True)


@settings(deadline=None, max_examples=200)
@given(st.datetimes(), st.booleans())
def test_any_time_is_taken(time, exact):
    time = time if exact else time.replace(microsecond=0)
    assert Talk().advise(as_of=f"{time.isoformat()}Z")["rows"] == 0


@settings(deadline=None, max_examples=300)
@given(st.from_regex(r"[0-3]\d\d\d-[01]\d-[0-3]\dT[0-3]\d:[0-9]\d:[0-9]\dZ", fullmatch=True))
def test_times_that_are_none_are_told(text):
    try:
        datetime.fromisoformat(text[:-1])
    except ValueError:
        assert Talk().advise(as_of=text)[0] == 400
    else:
        assert Talk().advise(as_of=text)["rows"] == 0


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)
NEARLY = st.builds(
    lambda change, left_out: {key: value for key, value in row(**change).items() if key != left_out},
    st.dictionaries(st.sampled_from(FIELDS), ANY, max_size=2),
    st.none() | st.sampled_from(FIELDS),
)


@settings(deadline=None, max_examples=300)
@given(st.just(AS_OF) | ANY, st.lists(NEARLY | ANY, max_size=4) | ANY)
def test_any_advice_is_taken_as_a_whole_or_refused_as_a_whole(as_of, rows):
    talk = Talk()
    told = talk.ask("ADVISE", as_of=as_of, rows=rows)
    shown = talk.ask("ADVICE")["rows"]
    if isinstance(told, tuple):
        assert (told[0], shown) == (400, [])
    else:
        assert shown == rows


GOOD = st.fixed_dictionaries({
    "service": st.text(min_size=1, max_size=LONGEST_NAME), "group": st.none() | st.text(max_size=LONGEST_NAME),
    "workers_now": st.integers(0, 1_000_000), "workers_wanted": st.integers(0, 1_000_000),
    "utilisation": st.none() | st.floats(0, 1e6), "share": st.none() | st.floats(0, 1),
    "advice": st.sampled_from(["add", "remove", "keep", "move"]), "reason": st.text(max_size=LONGEST_REASON),
})  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.lists(GOOD, max_size=5, unique_by=lambda each: (each["service"], each["group"])))
def test_what_is_right_comes_back_as_it_was(rows):
    talk = Talk()
    assert talk.advise(*rows)["rows"] == len(rows)
    assert talk.ask("ADVICE")["rows"] == rows
