"""Advice on where services should have how many workers: taken as a whole, shown, and forgotten after a while.

Somebody else makes it, such as a job that looks at what happened in the last weeks. It only informs.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Mapping
from typing import Any

import attrs

from scale0_core.api import KIB, records
from scale0_discovery.service.requests import Options, RefusedError

LARGEST = 512 * KIB
"""Bytes of one advice; all of it is read in one turn of the broker's loop."""
MOST_ADVICE = 2000
LONGEST_NAME = 255
LONGEST_REASON = 500
MOST_WORKERS = 1_000_000
KINDS = ("add", "remove", "keep", "move")
FIELDS = (
    "service", "group", "workers_now", "workers_wanted", "utilisation", "share", "advice", "reason",
)  # fmt: skip

Row = Mapping[str, Any]

_TIME = re.compile(
    r"(?!0000)(\d{4})-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,6})?Z", re.ASCII
).fullmatch


@attrs.frozen
class Advice:
    """All that was advised at one time."""

    as_of: str
    rows: tuple[Row, ...]
    """Each a service in a group, with all of FIELDS."""
    received: float


class AdviceBoard:
    """Holds the last advice until it is too old; every change has the next number."""

    def __init__(self, keep: float) -> None:
        self.number = 0
        self._keep = keep
        self._advice: Advice | None = None

    def put(self, advice: Advice) -> None:
        """Replace all that was advised before."""
        self._advice = advice
        self.number += 1

    def due(self) -> float | None:
        """Say when it becomes too old."""
        return None if self._advice is None else self._advice.received + self._keep

    def tend(self, now: float) -> bool:
        """Forget what is too old; tells whether something was."""
        due = self.due()
        if due is None or now < due:
            return False
        self._advice = None
        self.number += 1
        return True

    def show(self, service: str | None, now: float) -> dict[str, Any]:
        """Give what is advised for a service, or for all, as JSON's types."""
        due = self.due()
        advice = self._advice if due is not None and now < due else None
        if advice is None:
            return {"as_of": None, "age_s": None, "rows": []}
        rows = [row for row in advice.rows if service is None or row["service"] == service]
        return {"as_of": advice.as_of, "age_s": round(now - advice.received, 3), "rows": rows}

    def news(self) -> dict[str, Any]:
        """Give what watchers are told: enough to know whether to ask for it."""
        advice = self._advice
        if advice is None:
            return {"kind": "expired", "number": self.number, "as_of": None, "rows": 0}
        return {"kind": "advised", "number": self.number, "as_of": advice.as_of, "rows": len(advice.rows)}


# --- reading what somebody sends --------------------------------------------------------------------------------------


def read_advice(options: Options, now: float) -> Advice:
    """Read the options of a request; what is wrong anywhere refuses all of it."""
    rows = options.get("rows")
    if not isinstance(rows, list) or len(rows) > MOST_ADVICE:
        raise RefusedError(400, f"rows is a list of at most {MOST_ADVICE} objects")
    advice = Advice(_time(options.get("as_of")), tuple(_row(row, number) for number, row in enumerate(rows, 1)), now)
    places = {(row["service"], row["group"]) for row in advice.rows}
    if len(places) < len(advice.rows):
        raise RefusedError(400, "there is one row for a service in a group; some have two")
    return advice


def _time(value: object) -> str:
    found = _TIME(value) if isinstance(value, str) else None
    if found is None or int(found[3]) > monthrange(int(found[1]), int(found[2]))[1]:
        raise RefusedError(400, "as_of is a time in UTC, such as 2026-01-31T12:00:00Z")
    return found[0]


def _row(value: object, number: int) -> Row:
    if not isinstance(value, dict) or value.keys() != set(FIELDS):
        raise RefusedError(400, f"row {number} is an object of {', '.join(FIELDS)}")
    try:
        return {
            "service": records.text_of(value, "service", least=1, most=LONGEST_NAME),
            "group": records.or_none(records.text_of, value, "group", most=LONGEST_NAME),
            "workers_now": records.whole_of(value, "workers_now", most=MOST_WORKERS),
            "workers_wanted": records.whole_of(value, "workers_wanted", most=MOST_WORKERS),
            "utilisation": records.or_none(records.number_of, value, "utilisation", most=1e6),
            "share": records.or_none(records.number_of, value, "share", most=1.0),
            "advice": _kind(value["advice"]),
            "reason": records.text_of(value, "reason", most=LONGEST_REASON),
        }
    except ValueError as error:
        raise RefusedError(400, f"row {number}: {error}") from None


def _kind(value: object) -> str:
    if not isinstance(value, str) or value not in KINDS:
        raise ValueError(f"advice is one of {', '.join(KINDS)}")
    return value
