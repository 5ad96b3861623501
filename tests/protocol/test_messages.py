"""Bytes from outside: whatever they are, reading them gives a message or a MalformedError."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_core.protocol import messages as wire
from scale0_core.protocol import options as read
from scale0_core.protocol.codes import Code
from scale0_core.protocol.messages import MalformedError, read_message, read_options, write_options

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
NAMES = ("identity", "services", "hbeatinterval", "time", "config_version", "flag", "whole", "text", "texts")
READERS = (
    read.identity,
    read.services,
    read.interval,
    read.time,
    read.version,
    lambda options: read.flag(options, "flag"),
    lambda options: read.whole(options, "whole", 1, 0, 9),
    lambda options: read.text(options, "text"),
    lambda options: read.texts(options, "texts"),
)
LIKELY_FRAMES = st.sampled_from([b"", b"S0C01", b"S0W01", b"S0P01", b"TASK", b"CANCEL", b"{}", b'{"a":1}', b"x"])


def outcome(reading: Callable[[], Any]) -> Any:
    """Give what was read, or the MalformedError; any other exception is the test's failure."""
    try:
        return reading()
    except MalformedError as error:
        return error


# whole messages


@given(st.lists(st.binary(max_size=40) | LIKELY_FRAMES, max_size=40), st.booleans())
def test_any_frames_are_a_message_or_malformed(frames: list[bytes], routed: bool):
    message = outcome(lambda: read_message(tuple(frames), routed=routed))
    if isinstance(message, MalformedError):
        assert message.code in (Code.MALFORMED, Code.TOO_LARGE)
        assert message.reason
    else:
        assert message.header in wire.HEADERS
        assert len(frames) <= wire.MOST_FRAMES
        assert message.envelope == tuple(frames[: len(message.envelope)])
        assert message.body == tuple(frames[len(message.envelope) + 3 :])


@given(
    st.sampled_from(sorted(wire.HEADERS)),
    st.binary(min_size=1, max_size=20),
    st.dictionaries(st.text(), st.integers() | st.text() | st.booleans(), max_size=4),
    st.lists(st.binary(max_size=20), max_size=5),
    st.booleans(),
)
def test_what_is_written_is_read_again(header, command, options, body, delimiter):
    envelope = (b"peer", b"") if delimiter else (b"peer",)
    message = read_message((*envelope, header, command, write_options(options), *body))
    kept = {key: value for key, value in options.items() if value is not None}
    assert message == wire.Message(envelope, header, command, message.options, tuple(body))
    assert dict(message.options) == kept


@pytest.mark.requirement("R4")
def test_the_empty_frame_of_a_req_socket_belongs_to_the_envelope():
    plain = read_message((b"peer", b"S0C01", b"PING", b""))
    asked = read_message((b"peer", b"", b"S0C01", b"PING", b""))
    assert (plain.envelope, asked.envelope) == ((b"peer",), (b"peer", b""))
    assert (plain.header, plain.command, plain.body) == (asked.header, asked.command, asked.body)


def test_a_message_may_end_after_the_command():
    assert read_message((b"peer", b"S0C01", b"PING")).options == {}


def test_without_a_router_there_is_no_routing_id():
    assert read_message((b"S0C01", b"PONG", b'{"time":1}'), routed=False).options == {"time": 1}


@pytest.mark.parametrize(
    "frames",
    [(), (b"peer",), (b"peer", b""), (b"peer", b"S0C01"), (b"peer", b"", b"S0C01"), (b"peer", b"MDPC01", b"PING", b"")],
)
def test_too_little_or_a_foreign_header_is_malformed(frames):
    with pytest.raises(MalformedError) as raised:
        read_message(frames)
    assert raised.value.code is Code.MALFORMED


def test_a_message_has_at_most_32_frames():
    assert read_message((b"peer", b"S0C01", b"PING", b"", *[b"x"] * 28)).body == (b"x",) * 28
    with pytest.raises(MalformedError) as raised:
        read_message((b"peer", b"S0C01", b"PING", b"", *[b"x"] * 29))
    assert raised.value.code is Code.TOO_LARGE


@pytest.mark.parametrize("place", [1, 2, 3, 4])
def test_large_frames_may_be_blobs_anywhere(place: int):
    frames = [b"peer", b"S0C01", b"PING", b"", b""]
    frames[place] = array("B", b"x" * 9000)  # type: ignore[call-overload]  # can do no more than a blob can
    message = outcome(lambda: read_message(tuple(frames)))
    assert isinstance(message, MalformedError) == (place in (1, 3))


# options


@given(st.binary(max_size=200))
def test_any_bytes_are_options_or_malformed(frame: bytes):
    try:
        options = read_options(frame)
    except MalformedError:
        return
    assert write_options(options) is not None


@given(JSON)
def test_any_json_is_options_or_malformed(value: object):
    frame = json.dumps(value).encode()
    try:
        options = read_options(frame)
    except MalformedError:
        return
    assert isinstance(value, dict)
    assert read_options(write_options(options) or b"{}") == {k: v for k, v in options.items() if v is not None}


@pytest.mark.parametrize(
    "frame",
    [
        b"[]", b"1", b"null", b"{", b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":1e999}', b"\xff{}",
        b'{"a":"\\ud800"}', b'{"\\udfff":1}', b'{"a":"\xed\xa0\x80"}', b"[" * 60_000, b'{"a":' * 10_000,
        "{}".encode("utf-16"), "{}".encode("utf-32"), b"\xef\xbb\xbf{}", b'{"a":' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
def test_what_is_not_one_json_object_in_utf_8_is_malformed(frame: bytes):
    with pytest.raises(MalformedError) as raised:
        read_options(frame)
    assert raised.value.code is Code.MALFORMED


def test_whole_characters_beyond_the_first_plane_are_fine():
    assert read_options(b'{"a":"\\ud83d\\ude00"}') == {"a": "\U0001f600"}


def test_an_empty_frame_stands_for_no_options():
    assert read_options(b"") == {}
    assert write_options() == write_options({"a": None}) == b""


def test_options_have_at_most_64_kib():
    assert read_options(b" " * (wire.LONGEST_OPTIONS - 2) + b"{}") == {}
    with pytest.raises(MalformedError) as raised:
        read_options(b" " * (wire.LONGEST_OPTIONS - 1) + b"{}")
    assert raised.value.code is Code.TOO_LARGE


def test_options_cannot_be_changed():
    with pytest.raises(TypeError):
        read_options(b'{"a":1}')["a"] = 2  # type: ignore[index]


# single options


@given(st.dictionaries(st.sampled_from(NAMES), JSON), st.sampled_from(READERS))
def test_a_reader_gives_a_value_or_malformed(options, reader):
    value = outcome(lambda: reader(options))
    assert not isinstance(value, MalformedError) or value.reason


@pytest.mark.parametrize("name", ["a", "x" * 255, "ü" * 127])
def test_identities(name: str):
    assert read.identity({"identity": name}) == name


@pytest.mark.parametrize("value", [None, "", 1, ["a"], "x" * 256, "ü" * 128])
def test_what_is_no_identity(value: object):
    with pytest.raises(MalformedError):
        read.identity({"identity": value})


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, ()), ([], ()), (["a", "b", "a"], ("a", "b")), ("a, b,c", ("a", "b", "c")), ("a", ("a",))],
)
def test_services_are_a_list_or_a_text_with_commas(value: object, names: tuple[str, ...]):
    assert read.services({"services": value}) == names


@pytest.mark.parametrize("value", ["", "a,,b", [""], [1], {"a": 1}, 5, ["x" * 256], ["s"] * 257])
def test_what_is_no_list_of_services(value: object):
    with pytest.raises(MalformedError):
        read.services({"services": value})


def test_intervals_are_milliseconds_on_the_wire_and_seconds_inside():
    assert (read.interval({"hbeatinterval": 2500}), read.interval({})) == (2.5, None)


@pytest.mark.parametrize("value", [-1, 1.5, True, "5", 24 * 3600 * 1000 + 1])
def test_what_is_no_interval(value: object):
    with pytest.raises(MalformedError):
        read.interval({"hbeatinterval": value})


def test_times_may_have_a_fraction():
    assert (read.time({"time": 1.25}), read.time({"time": 5}), read.time({})) == (1.25, 5.0, None)


@pytest.mark.parametrize("value", [-1, True, "1", 2**40, [1], math.inf, math.nan])
def test_what_is_no_time(value: object):
    with pytest.raises(MalformedError):
        read.time({"time": value})


@pytest.mark.parametrize(("value", "version"), [(7, 7), ("v7", "v7"), (None, None), ("", None), (0, 0)])
def test_versions_are_numbers_or_short_texts(value: object, version: object):
    assert read.version({"config_version": value}) == version


@pytest.mark.parametrize("value", [True, -1, 1.5, [1], 2**53 + 1, "x" * 65])
def test_what_is_no_version(value: object):
    with pytest.raises(MalformedError):
        read.version({"config_version": value})


def test_flags_numbers_and_texts_have_defaults():
    assert read.flag({}, "more") is False
    assert read.flag({"more": True}, "more") is True
    assert read.whole({}, "window", 3, 0, 9) == 3
    assert read.text({}, "reason", "none") == "none"
    assert read.texts({}, "unreachable") == ()


@pytest.mark.parametrize(
    "reading",
    [
        lambda: read.flag({"more": 1}, "more"),
        lambda: read.whole({"window": 10}, "window", 0, 0, 9),
        lambda: read.whole({"window": True}, "window", 0, 0, 9),
        lambda: read.text({"reason": 5}, "reason"),
        lambda: read.text({"reason": "x" * 1025}, "reason"),
        lambda: read.texts({"unreachable": "b1"}, "unreachable"),
        lambda: read.texts({"unreachable": [1]}, "unreachable"),
        lambda: read.texts({"unreachable": ["b"] * 257}, "unreachable"),
    ],
)
def test_values_of_another_kind_are_malformed(reading):
    with pytest.raises(MalformedError):
        reading()
