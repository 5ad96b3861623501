"""Every frame of every dialect, as the RFCs have them; and whatever else may come."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.testing import check_service
from scale0_majordomo import dialects
from scale0_majordomo.dialects import Dialect, Said, Side, Word

from .conversation import SOCKET, Majordomo, conserved, make_service

OWN, MDP01, MDP02 = Dialect.OWN, Dialect.MDP01, Dialect.MDP02
P = b"\0peer"


def client(dialect, word, envelope, ident=b"", service=b"", options=b"", body=()):
    return Said(dialect, Side.CLIENT, word, envelope, ident, service, options, body)


def worker(dialect, word, envelope, ident=b"", service=b"", options=b"", body=()):
    return Said(dialect, Side.WORKER, word, envelope, ident, service, options, body)


E1C, E1W = (P, b"", b"MDPC01"), (P, b"", b"MDPW01")
E2C, E2W = (P, b"MDPC02"), (P, b"MDPW02")
E3C, E3W = (P, b"S0MC01"), (P, b"S0MW01")
S, A, B = b"echo", b"17", (b"body", b"")

UNDERSTOOD = [
    ((*E1C, S, *B), client(MDP01, Word.REQUEST, E1C, b"", S, b"", B)),
    ((*E1C, S, b""), client(MDP01, Word.REQUEST, E1C, b"", S, b"", (b"",))),
    ((*E1W, b"\1", S), worker(MDP01, Word.READY, E1W, b"", S)),
    ((*E1W, b"\2", A, b"", *B), worker(MDP01, Word.REQUEST, E1W)),
    ((*E1W, b"\3", A, b"", *B), worker(MDP01, Word.FINAL, E1W, A, b"", b"", B)),
    ((*E1W, b"\4"), worker(MDP01, Word.HEARTBEAT, E1W)),
    ((*E1W, b"\5"), worker(MDP01, Word.DISCONNECT, E1W)),
    ((*E2C, b"\1", S, *B), client(MDP02, Word.REQUEST, E2C, b"", S, b"", B)),
    ((*E2W, b"\1", S), worker(MDP02, Word.READY, E2W, b"", S)),
    ((*E2W, b"\2", A, b"", *B), worker(MDP02, Word.REQUEST, E2W)),
    ((*E2W, b"\3", A, b"", *B), worker(MDP02, Word.PARTIAL, E2W, A, b"", b"", B)),
    ((*E2W, b"\4", A, b"", *B), worker(MDP02, Word.FINAL, E2W, A, b"", b"", B)),
    ((*E2W, b"\5"), worker(MDP02, Word.HEARTBEAT, E2W)),
    ((*E2W, b"\6"), worker(MDP02, Word.DISCONNECT, E2W)),
    ((*E3C, b"\1", b"id", S, b"{}", *B), client(OWN, Word.REQUEST, E3C, b"id", S, b"{}", B)),
    ((*E3C, b"\5", b"id"), client(OWN, Word.CANCEL, E3C, b"id")),
    ((*E3W, b"\1", S), worker(OWN, Word.READY, E3W, b"", S)),
    ((*E3W, b"\1", S, b"{}"), worker(OWN, Word.READY, E3W, b"", S, b"{}")),
    ((*E3W, b"\3", A, b"{}", *B), worker(OWN, Word.PARTIAL, E3W, A, b"", b"{}", B)),
    ((*E3W, b"\4", A, b"{}", *B), worker(OWN, Word.FINAL, E3W, A, b"", b"{}", B)),
    ((*E3W, b"\7", A, b"500", b"why"), worker(OWN, Word.ERROR, E3W, A, b"", b"500", (b"why",))),
    ((*E3W, b"\5"), worker(OWN, Word.HEARTBEAT, E3W)),
    ((*E3W, b"\6"), worker(OWN, Word.DISCONNECT, E3W)),
    ((*E3W, b"\x09"), worker(OWN, Word.DRAIN, E3W)),
    ((*E3W, b"\x09", A, b"18"), worker(OWN, Word.DRAIN, E3W, body=(A, b"18"))),
]


@pytest.mark.parametrize(("frames", "said"), UNDERSTOOD)
def test_every_message_of_every_dialect_is_understood(frames, said):
    assert dialects.read(frames) == said


@pytest.mark.parametrize(("frames", "said"), UNDERSTOOD)
@pytest.mark.parametrize("extra", [(b"\0\0\0\7", b""), (b"proxy",), (b"p1", b"p2", b"p3")])
def test_what_stands_in_front_of_the_header_is_the_envelope(frames, said, extra):
    """REQ_CORRELATE and proxies add frames."""
    found = dialects.read((P, *extra, *frames[1:]))
    assert found == said._replace(envelope=(P, *extra, *said.envelope[1:]))


@pytest.mark.parametrize(
    "frames",
    [
        (P,),
        (P, b""),
        (P, b"", b""),
        (P, b"junk"),
        (P, b"", b"junk", S, b"x"),
        (P, b"MDPC01", S, b"x"),  # 0.1 without its empty frame
        (P, b"MDPW01", b"\1", S),
        (P, b"x", b"MDPC01", S, b"x"),
        E1C,
        (*E1C, S),  # no body
        (*E1C, b"", b"x"),  # no name
        (*E1C, b"n" * 256, b"x"),
        E1W,
        (*E1W, b""),
        (*E1W, b"\0"),
        (*E1W, b"\6"),
        (*E1W, b"\1\1", S),
        (*E1W, b"\1"),
        (*E1W, b"\1", b""),
        (*E1W, b"\1", S, b"{}"),  # only our own dialect has options
        (*E1W, b"\1", b"n" * 256),
        (*E1W, b"\3"),
        (*E1W, b"\3", A),
        (*E1W, b"\3", A, b""),  # no body
        (*E1W, b"\3", A, b"x", b"y"),  # no empty frame
        (*E1W, b"\3", b"", b"", b"y"),
        (*E1W, b"\3", b"a" * 65, b"", b"y"),
        E2C,
        (*E2C, b"\2", S, b"x"),  # PARTIAL and FINAL come from the broker
        (*E2C, b"\3", S, b"x"),
        (*E2C, S, b"x"),  # 0.1's layout under 0.2's header
        (*E2C, b"\1", S),
        E2W,
        (*E2W, b"\7"),
        (*E2W, b"\4", A, b"x", b"y"),
        E3C,
        (*E3C, b"\1", b"id", S, b""),
        (*E3C, b"\1", b"", S, b"", b"x"),
        (*E3C, b"\1", b"i" * 65, S, b"", b"x"),
        (*E3C, b"\1", b"id", S, b"o" * 4097, b"x"),
        (*E3C, b"\5"),
        (*E3C, b"\5", b"id", b"more"),
        (*E3W, b"\1", S, b"{}", b"more"),
        (*E3W, b"\1", S, b"o" * 4097),
        (*E3W, b"\4", A, b"o" * 4097, b"x"),
        (*E3W, b"\7", A, b"500"),
        (*E3W, b"\x08", A),  # CANCEL comes from the broker
        (*E3W, b"\x09", A, b""),
        (*E3W, b"\x09", b"a" * 65),
        (*E1W, b"\x09", A),  # only our own dialect has DRAIN
        (*E2W, b"\x09", A),
        (P, *[b"x"] * 9, b"MDPC02", b"\1", S, b"x"),  # an envelope without end
        (P, b"\xaa\xa4\1"),  # zeromq/majordomo's own packing
        (P, b"MDPC0X", b"\1", S, b"x"),  # libmdp's
    ],
)
def test_whatever_else_comes_is_malformed_and_counted(frames):
    assert dialects.read(frames) is None
    majordomo = Majordomo()
    majordomo.feed(SOCKET, *frames)
    majordomo.expect_nothing()
    assert majordomo.totals["malformed"] == 1


@pytest.mark.parametrize("place", range(1, 7))
@pytest.mark.parametrize("sample", [frames for frames, _ in UNDERSTOOD])
def test_a_huge_frame_in_any_place_is_no_trouble(sample, place):
    """Large frames come as blobs, which can neither be compared nor be looked up."""
    majordomo = Majordomo()
    majordomo.ready("w")
    majordomo.ask("c")
    majordomo.feed(SOCKET, *sample[:place], b"x" * 9000, *sample[place + 1 :])
    majordomo.feed(SOCKET, "w", *sample[1:place], b"x" * 9000, *sample[place + 1 :])
    conserved(majordomo.service)


def test_a_blob_is_not_mistaken_for_a_name():
    blob = array("B", b"n" * 9000)
    assert dialects.read((*E1C, blob, b"x")) is None
    assert dialects.read((*E1W, b"\3", blob, b"", b"x")) is None
    assert dialects.read((P, blob, b"MDPC02", b"\1", S, b"x")) is None
    assert dialects.read((P, blob, b"", b"MDPC01", S, b"x")) is None


WRITTEN = [
    (MDP01, Word.FINAL, E1C, (*E1C, S, *B)),
    (MDP02, Word.PARTIAL, E2C, (*E2C, b"\2", S, *B)),
    (MDP02, Word.FINAL, E2C, (*E2C, b"\3", S, *B)),
    (OWN, Word.PARTIAL, E3C, (*E3C, b"\2", b"id", S, b"{}", *B)),
    (OWN, Word.FINAL, E3C, (*E3C, b"\3", b"id", S, b"{}", *B)),
]


@pytest.mark.parametrize(("dialect", "word", "envelope", "frames"), WRITTEN)
def test_what_the_broker_says_to_clients(dialect, word, envelope, frames):
    assert dialects.answer(dialect, envelope, word, b"id", S, b"{}", B) == frames


def test_errors_are_written_for_our_own_clients():
    head = dialects.final_head(OWN, E3C, b"id", S)
    assert dialects.error(head, 408, "its time is over") == (*E3C, b"\4", b"id", S, b"408", b"its time is over")


@pytest.mark.parametrize(
    ("dialect", "envelope", "request_", "heartbeat", "disconnect"),
    [(MDP01, E1W, b"\2", b"\4", b"\5"), (MDP02, E2W, b"\2", b"\5", b"\6"), (OWN, E3W, b"\2", b"\5", b"\6")],
)
def test_what_the_broker_says_to_workers(dialect, envelope, request_, heartbeat, disconnect):
    assert dialects.worker_head(dialect, envelope) == (*envelope, request_)
    assert dialects.to_worker(dialect, envelope, Word.HEARTBEAT) == (*envelope, heartbeat)
    assert dialects.to_worker(dialect, envelope, Word.DISCONNECT) == (*envelope, disconnect)


@pytest.mark.parametrize("text", [b"{", b"[]", b"1", b"null", b"\xff", b"[" * 4000, b'"' + b"x" * 4000])
def test_options_that_make_no_sense_are_none(text):
    assert dialects.read_options(text) is None


def test_options_are_an_object_or_nothing():
    assert dialects.read_options(b"") == {}
    assert dialects.read_options(b'{"credit": 3}') == {"credit": 3}


# --- anything may come ------------------------------------------------------------------------------------------------

SAMPLES = [(SOCKET, frames) for frames, _ in UNDERSTOOD] + [
    (SOCKET, (*E3C, b"\1", b"id", S, b'{"timeout": 50, "priority": 2, "key": "k", "retry": true}', b"x")),
    (SOCKET, (*E3W, b"\1", S, b'{"credit": 3}')),
    (SOCKET, (*E1C, b"mmi.service", S)),
    (SOCKET, (*E2C, b"\1", b"mmi.stats", b"")),
    (SOCKET, (*E2C, b"\1", b"mmi.workers", b"")),
]


@pytest.mark.parametrize("scheduling", ["lru", "least", "priority", "sticky"])
def test_it_keeps_the_contract_of_a_service(scheduling):
    made = []

    def factory():
        made.append(make_service(scheduling=scheduling, heartbeat=0.05, busy_timeout=1.0, expiry=0.5, max_queue=20))
        return made[-1]

    check_service(factory, messages=4000, samples=SAMPLES)
    for service in made:
        conserved(service)


FRAME = st.one_of(
    st.sampled_from(sorted({frame for frames, _ in UNDERSTOOD for frame in frames} | {b"2", b"3", b"mmi.service"})),
    st.binary(max_size=9),
)
PEER = st.sampled_from([b"\0a", b"\0b", b"c"])
ANYTHING = st.tuples(PEER, st.lists(FRAME, max_size=8)).map(lambda both: (both[0], *both[1]))
CHANGED = st.tuples(PEER, st.sampled_from([frames for frames, _ in UNDERSTOOD]), st.integers(0, 7), FRAME).map(
    lambda four: (four[0], *four[1][1 : four[2]], four[3], *four[1][four[2] + 1 :])
)
GOOD = st.tuples(PEER, st.sampled_from([frames for frames, _ in UNDERSTOOD])).map(lambda two: (two[0], *two[1][1:]))


@given(st.lists(st.one_of(ANYTHING, CHANGED, GOOD), max_size=60))
@settings(max_examples=200, deadline=None)
def test_no_frames_ever_raise_and_none_upset_the_books(messages):
    majordomo = Majordomo(max_queue=5, max_services=4)
    malformed = 0
    for frames in messages:
        known = dialects.read(frames)
        majordomo.feed(SOCKET, *frames)
        malformed += known is None
        majordomo.sleep(0.1)
    assert malformed <= majordomo.totals["malformed"] <= malformed + len(messages)
    conserved(majordomo.service)
