"""Links that cannot be made leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from scale0_core.client.kit import link
from scale0_core.client.kit.link import CONTEXT, Link
from scale0_core.client.kit.sessions import Limits
from scale0_core.errors import AddressError

pytestmark = pytest.mark.real


@pytest.mark.parametrize("room", [3, 4])  # not even the first of its sockets has room, or its monitor has none
def test_a_link_for_which_there_is_no_socket_says_so_and_leaves_nothing(
    real: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, room: int
):
    assert CONTEXT._context is None
    monkeypatch.setattr(link, "MOST_SOCKETS", room)
    first = Link(f"ipc://{tmp_path}/first")
    for _ in range(3):
        with pytest.raises(AddressError, match="Too many open files") as caught:
            Link(f"ipc://{tmp_path}/second")
        assert "ulimit" in caught.value.problem.remedy
    assert CONTEXT._users == 1
    first.drop()
    assert CONTEXT._context is None


def test_a_link_whose_limits_are_wrong_leaves_nothing(real: None, tmp_path: Path):
    for limits in (Limits(linger_ms=-7), Limits(topics=("text",))):  # type: ignore[arg-type]
        with pytest.raises((AddressError, TypeError)):
            Link(f"ipc://{tmp_path}/x", limits)
    with pytest.raises(AddressError):
        Link("ipc:///no text is this: \udc80")
    assert CONTEXT._context is None
