"""The history checker finds what it is there to find."""

from __future__ import annotations

import attrs
import pytest

from .history import BrokerLife, Call, Disabled, End, Execution, History, Span, VersionSeen, check

ONCE = Call("once", "c1", "echo", retry=False, at=10.0, deadline=15.0)
AGAIN = Call("again", "c2", "echo", retry=True, at=10.0, deadline=15.0)
DONE = Execution("once", "w1", 100, at=10.5)
DONE_TOO = Execution("again", "w2", 200, at=10.5)
REPLY = End("once", 11.0, reply_to="once", worker="w1", pid=100)
REPLY_TOO = End("again", 11.0, reply_to="again", worker="w2", pid=200)
TIMEOUT = End("once", 15.0, code=408, error="CallTimedOutError", told=False)
LIFE = BrokerLife(
    0.0, 100.0, clean=True, counts={"undelivered EHOSTUNREACH": 2}, undelivered=3, reasons={"EHOSTUNREACH": 3}
)  # fmt: skip
DISABLED = Disabled(9.0, 12.0, asked=8.9, over=12.1)
DISABLED_EARLY = Disabled(9.0, 10.4, asked=8.9, over=10.5)


def history(**changes: list) -> History:
    """A history in which all is well, but for the changes."""
    good = {
        "calls": [ONCE, AGAIN],
        "executions": [DONE, DONE_TOO],
        "ends": [REPLY, REPLY_TOO],
        "versions": [VersionSeen("c1", 1, 10.0), VersionSeen("c2", 1, 10.0), VersionSeen("c1", 2, 11.0)],
        "lives": [LIFE],
    }
    return History(**{**good, **changes})


def guarantees(found: History) -> str:
    return "".join(sorted({violation.guarantee for violation in check(found)}))


@pytest.mark.parametrize(
    "good",
    [
        history(),
        history(ends=[TIMEOUT, REPLY_TOO], lives=[attrs.evolve(LIFE, to_clients=1)]),
        history(executions=[DONE, DONE_TOO, Execution("again", "w1", 100, 10.7)]),
        # the broker was frozen, and its answer came late
        history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 100.0, clean=True)], late_answers={"c1": 1}),
        # the run itself stood still, and saw late what had come in time
        history(ends=[attrs.evolve(REPLY, at=18.0), REPLY_TOO], stalls=[Span(14.0, 16.5)]),
        # it was killed, and its counters with it
        history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 12.0, clean=False)]),
        # the same, when it stood still at the deadline and until shortly before
        history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 18.0, clean=False)], frozen=[Span(11.0, 17.5)]),
        # the client took the call back before the broker could answer
        history(ends=[TIMEOUT, REPLY_TOO], lives=[attrs.evolve(LIFE, cancelled={"c1": 1})]),
        # it was disabled, and passed over the call
        history(
            ends=[TIMEOUT, REPLY_TOO], executions=[DONE_TOO], disabled=[DISABLED_EARLY],
            lives=[BrokerLife(0.0, 100.0, clean=True, counts={"disabled": 1})],
        ),
        # one that never left the client needs no counter
        history(ends=[attrs.evolve(TIMEOUT, sent=False), REPLY_TOO], executions=[DONE_TOO], lives=[]),
        history(ends=[attrs.evolve(TIMEOUT, at=15.3, told=True), REPLY_TOO]),
    ],
)  # fmt: skip
def test_what_is_promised_is_no_violation(good: History) -> None:
    assert check(good) == []


@pytest.mark.parametrize(
    ("letter", "bad"),
    [
        pytest.param("a", history(ends=[REPLY]), id="never ended"),
        pytest.param("a", history(ends=[REPLY, REPLY, REPLY_TOO]), id="ended twice"),
        pytest.param("a", history(ends=[REPLY, attrs.evolve(TIMEOUT, told=True), REPLY_TOO]), id="reply and error"),
        pytest.param("a", history(ends=[attrs.evolve(REPLY, at=20.0), REPLY_TOO]), id="late"),
        pytest.param(
            "a", history(ends=[attrs.evolve(REPLY, at=18.0), REPLY_TOO], stalls=[Span(1.0, 9.0)]), id="late, no stall"
        ),
        pytest.param("a", history(ends=[REPLY, REPLY_TOO, End("strange", 11.0, code=503)]), id="never made"),
        pytest.param("a", history(ends=[attrs.evolve(REPLY, reply_to="again"), REPLY_TOO]), id="another's reply"),
        pytest.param("a", history(ends=[attrs.evolve(REPLY, pid=999), REPLY_TOO]), id="reply of one not asked"),
        pytest.param("a", history(executions=[DONE_TOO]), id="reply without work"),
        pytest.param("a", history(executions=[attrs.evolve(DONE, at=12.0), DONE_TOO]), id="reply before work"),
        pytest.param("a", history(late_answers={"c1": 1}), id="answered twice"),
        pytest.param("a", history(calls=[ONCE, AGAIN, ONCE]), id="one id twice"),
        pytest.param("b", history(executions=[DONE, DONE_TOO, attrs.evolve(DONE, worker="w2")]), id="done twice"),
        pytest.param("b", history(executions=[DONE, DONE_TOO, Execution("x", "w2", 200, 1.0)]), id="work from nowhere"),
        pytest.param("c", history(versions=[VersionSeen("c1", 2, 1.0), VersionSeen("c1", 1, 2.0)]), id="version back"),
        pytest.param("d", history(lives=[attrs.evolve(LIFE, undelivered=4)]), id="loss without a reason"),
        pytest.param("d", history(lives=[attrs.evolve(LIFE, dropped=1)]), id="dropped"),
        pytest.param("d", history(lives=[attrs.evolve(LIFE, errors=1)]), id="the broker raised"),
        pytest.param("d", history(lives=[attrs.evolve(LIFE, counts={"undelivered EHOSTUNREACH": 9})]), id="too few"),
        pytest.param(
            "d",
            history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 100.0, clean=True)]),
            id="no answer, no counter",
        ),
        pytest.param(
            "d",
            history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 5.0, clean=False)]),
            id="killed before the call",
        ),
        pytest.param(
            "d",
            history(ends=[TIMEOUT, REPLY_TOO], lives=[BrokerLife(0.0, 18.0, clean=False)]),
            id="killed when it should have answered long ago",
        ),
        pytest.param(
            "d",
            history(
                ends=[TIMEOUT, REPLY_TOO],
                lives=[BrokerLife(0.0, 18.0, clean=False)],
                frozen=[Span(11.0, 14.0), Span(15.5, 17.5)],
            ),
            id="killed long after it had heard that the call was taken back",
        ),
        pytest.param(
            "d",
            history(ends=[TIMEOUT, REPLY_TOO], lives=[attrs.evolve(LIFE, cancelled={"c1": 0, "c2": 9})]),
            id="cancelled by another client",
        ),
        pytest.param(
            "d",
            history(
                ends=[TIMEOUT, REPLY_TOO],
                lives=[
                    BrokerLife(0.0, 5.0, clean=False, cancelled={"c1": 9}),
                    BrokerLife(5.0, 30.0, clean=False),
                    BrokerLife(30.0, 100.0, clean=True, cancelled={"c1": 9}),
                ],
            ),
            id="cancelled at another time",
        ),
        pytest.param(
            "d",
            history(
                calls=[ONCE, AGAIN, attrs.evolve(ONCE, id="too")],
                ends=[TIMEOUT, REPLY_TOO, attrs.evolve(TIMEOUT, call="too")],
                lives=[attrs.evolve(LIFE, cancelled={"c1": 1})],
            ),
            id="one cancelled, two without an answer",
        ),
        pytest.param(
            "d",
            history(ends=[TIMEOUT, REPLY_TOO], executions=[DONE_TOO], disabled=[DISABLED_EARLY]),
            id="passed over, not counted",
        ),
        pytest.param("d", history(ends=[TIMEOUT, REPLY_TOO]), id="no answer, counters of others"),
        pytest.param("e", history(disabled=[DISABLED], executions=[DONE, DONE_TOO]), id="disabled"),
        pytest.param(
            "e",
            history(disabled=[DISABLED], ends=[attrs.evolve(REPLY, at=13.0), attrs.evolve(REPLY_TOO, at=13.0)]),
            id="handed over while disabled",
        ),
    ],
)
def test_what_must_not_be_is_found(letter: str, bad: History) -> None:
    assert guarantees(bad) == letter


def test_errors_are_counted_by_code() -> None:
    ends = [TIMEOUT, End("a", 1.0, code=0), End("b", 1.0, code=503), End("c", 1.0, code=503), REPLY]
    assert History(ends=ends).errors_by_code() == {"0": 1, "503": 2, "408": 1}
