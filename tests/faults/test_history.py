"""A few thousand calls while processes are killed and frozen: all that is promised holds."""

from __future__ import annotations

import pytest

from .campaign import Plan, run
from .history import check

pytestmark = pytest.mark.real


@pytest.mark.requirement("R5")
def test_the_guarantees_hold_under_faults() -> None:
    outcome = run(Plan(calls=4000, seed=1, rate=400))
    history = outcome.history
    assert len(history.calls) == 4000
    assert not [str(violation) for violation in check(history)]
    # and it was a trial: most calls were answered, things did happen, and some calls met them
    replies = sum(end.is_reply for end in history.ends)
    assert replies > len(history.calls) / 2, history.errors_by_code()
    assert outcome.faults["broker killed"]
    assert outcome.faults["worker killed"]
    assert history.errors_by_code()
