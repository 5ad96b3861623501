"""Range headers: whatever a browser writes there, the answer is a part of the song, the whole, or a clear no."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scale0_musicquest.web.ranges import Span, UnsatisfiableError, asked_span


@pytest.mark.parametrize(
    ("header", "span"),
    [
        (None, None),
        ("", None),
        ("bytes=0-", Span(0, 1000)),
        ("bytes=0-0", Span(0, 1)),
        ("bytes=10-19", Span(10, 20)),
        ("Bytes = 10 - 19", Span(10, 20)),
        ("bytes=999-", Span(999, 1000)),
        ("bytes=990-5000", Span(990, 1000)),
        ("bytes=-1", Span(999, 1000)),
        ("bytes=-5000", Span(0, 1000)),
        # what is not understood, or not one range, is answered by the whole
        ("bytes=-", None),
        ("bytes=20-10", None),
        ("bytes=0-1,5-6", None),
        ("songs=0-1", None),
        ("bytes=+1-2", None),
        ("bytes=0x1-2", None),
        ("bytes=\u0661-\u0662", None),
        ("bytes=" + "9" * 300 + "-", None),
    ],
)
def test_a_header_gives_a_span(header: str | None, span: Span | None):
    assert asked_span(header, 1000) == span


@pytest.mark.parametrize("header", ["bytes=1000-", "bytes=5000-6000", "bytes=-0", "bytes=9999999999999999999-"])
def test_what_lies_outside_is_refused(header: str):
    with pytest.raises(UnsatisfiableError):
        asked_span(header, 1000)


@pytest.mark.parametrize("header", ["bytes=0-", "bytes=0-0", "bytes=-1"])
def test_an_empty_song_has_no_ranges(header: str):
    with pytest.raises(UnsatisfiableError):
        asked_span(header, 0)


HEADERS = st.one_of(
    st.text(max_size=40),
    st.from_regex(r"bytes ?= ?[0-9]{0,20}-[0-9]{0,20}", fullmatch=True),
    st.tuples(st.integers(0, 2000), st.integers(0, 2000)).map(lambda pair: f"bytes={pair[0]}-{pair[1]}"),
)


@given(HEADERS, st.integers(0, 1500))
def test_any_header_gives_bytes_of_the_song_or_a_refusal(header: str, size: int):
    try:
        span = asked_span(header, size)
    except UnsatisfiableError:
        return
    if span is not None:
        assert 0 <= span.start < span.end <= size
        assert span.size == span.end - span.start
