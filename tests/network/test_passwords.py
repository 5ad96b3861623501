"""Passwords at rest."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scale0_core.network import passwords
from scale0_core.network.passwords import hash_password, password_matches

KEPT = hash_password("correct horse", b"0123456789abcdef")


@pytest.mark.requirement("R50")
def test_only_the_right_password_matches():
    assert KEPT.startswith("scrypt$16384$8$1$")
    assert "correct" not in KEPT
    assert [password_matches(word, KEPT) for word in ("correct horse", "correct hors", "", "Correct horse")] == [
        True, False, False, False
    ]  # fmt: skip


def test_the_salt_makes_equal_passwords_different():
    assert hash_password("a", b"0123456789abcdef") != hash_password("a", b"fedcba9876543210")


@pytest.mark.parametrize(
    "kept",
    [
        "", "correct horse", "scrypt$16384$8$1$$", KEPT[:-1] + "!", KEPT + "x" * 100, KEPT.replace("16384", "16383"),
        KEPT.replace("16384", "99999999"), KEPT.replace("$8$", "$999$").replace("16384", "8388608"),
        KEPT.replace("16384", "0"), KEPT.replace("16384", "1"), KEPT.replace("$8$", "$0$"), KEPT.replace("$1$", "$0$"),
        KEPT.replace("scrypt", "md5"), KEPT + "\n", "scrypt$16384$8$1$AAAAAAAAA$" + "A" * 25,
    ],
)  # fmt: skip
def test_what_is_no_hash_matches_nothing(kept: str):
    assert password_matches("correct horse", kept) is False


@given(st.text(max_size=20) | st.builds("scrypt${}${}${}${}${}".format, *[st.integers(0, 64)] * 3, *[st.text()] * 2))
@settings(deadline=None)
def test_any_text_is_compared_without_an_exception(kept: str):
    assert password_matches("x", kept) is False


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(passwords, "_scrypt", lambda *arguments: asked.append(arguments) or b"")
    assert not password_matches("x", KEPT.replace("16384", "33554432"))
    assert asked == []
