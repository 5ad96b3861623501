"""The bytes of the binary dialect."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_zpipes.service import binary
from scale0_zpipes.service.binary import Message

STRINGS = [kind for kind, name in binary.NAMES.items() if name in ("INPUT", "OUTPUT") or name.endswith("FAILED")]
BARE = [kind for kind in binary.NAMES if kind not in (*STRINGS, binary.READ, binary.READ_OK, binary.WRITE)]
NUMBERS = st.integers(0, binary.MOST)

MESSAGES = st.one_of(
    st.sampled_from(BARE).map(Message),
    st.tuples(st.sampled_from(STRINGS), st.binary(max_size=255)).map(lambda drawn: Message(*drawn)),
    st.tuples(NUMBERS, NUMBERS).map(lambda drawn: Message(binary.READ, b"", *drawn)),
    st.binary().map(lambda chunk: Message(binary.READ_OK, chunk)),
    st.tuples(st.binary(), NUMBERS).map(lambda drawn: Message(binary.WRITE, drawn[0], 0, drawn[1])),
)

EXAMPLES = [
    ("AAA001 04 74657374", Message(binary.INPUT, b"test")),
    ("AAA002", Message(binary.INPUT_OK)),
    ("AAA003 00", Message(binary.INPUT_FAILED)),
    ("AAA004 04 74657374", Message(binary.OUTPUT, b"test")),
    ("AAA005", Message(binary.OUTPUT_OK)),
    ("AAA006 00", Message(binary.OUTPUT_FAILED)),
    ("AAA007 0000000C 00000064", Message(binary.READ, size=12, timeout=100)),
    ("AAA008 00000003 616263", Message(binary.READ_OK, b"abc")),
    ("AAA009", Message(binary.READ_END)),
    ("AAA00A", Message(binary.READ_TIMEOUT)),
    ("AAA00B 00", Message(binary.READ_FAILED)),
    ("AAA00C 00000003 616263 00000064", Message(binary.WRITE, b"abc", timeout=100)),
    ("AAA00D", Message(binary.WRITE_OK)),
    ("AAA00E", Message(binary.WRITE_TIMEOUT)),
    ("AAA00F 00", Message(binary.WRITE_FAILED)),
    ("AAA010", Message(binary.CLOSE)),
    ("AAA011", Message(binary.CLOSE_OK)),
    ("AAA012 00", Message(binary.CLOSE_FAILED)),
    ("AAA013", Message(binary.PING)),
    ("AAA014", Message(binary.PING_OK)),
    ("AAA015", Message(binary.INVALID)),
]


@pytest.mark.parametrize(("digits", "message"), EXAMPLES)
def test_each_message_has_the_bytes_of_the_reference(digits, message):
    assert binary.encode(message).hex().upper() == digits.replace(" ", "")
    assert binary.decode(bytes.fromhex(digits)) == message


def test_there_are_21_kinds():
    assert [kind[2] for kind in binary.NAMES] == list(range(1, 22))
    assert [binary.NAMES[message.kind] for _, message in EXAMPLES] == list(binary.NAMES.values())


@given(MESSAGES, st.binary(max_size=5))
def test_every_message_comes_back_and_what_follows_it_is_ignored(message, more):
    assert binary.decode(binary.encode(message) + more) == message


@given(MESSAGES, st.data())
def test_a_part_of_a_message_is_none(message, data):
    frame = binary.encode(message)
    assert binary.decode(frame[: data.draw(st.integers(0, len(frame) - 1))]) is None


@given(st.one_of(st.binary(), st.binary().map(lambda rest: binary.SIGNATURE + rest)))
def test_any_bytes_are_a_message_or_none(frame):
    message = binary.decode(frame)
    assert message is None or frame.startswith(binary.encode(message))


@pytest.mark.parametrize(
    "frame", [b"", b"\xaa", b"\xaa\xa0", b"\xaa\xa0\x00", b"\xaa\xa0\x16", b"\xaa\xa1\x13", b"OPEN"]
)
def test_what_is_no_message_is_none(frame):
    assert binary.decode(frame) is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="at most 255 bytes, not 256"):
        binary.with_string(binary.INPUT, bytes(256))
    for write in (lambda: binary.read(2**32), lambda: binary.read(1, -1), lambda: binary.write(b"", 2**32)):
        with pytest.raises(ValueError, match="between 0 and 4294967295"):
            write()
