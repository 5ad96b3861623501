"""Plans as messages, without I/O: checks rows of result tables, writes plans and advice, reads what servers answer.

What is said here is written down in the pages of the protocols of Music Quest and of discovery.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, isnan
from operator import itemgetter
from typing import Any

import attrs

from scale0_core.api import KIB, Frames, printable, records

HEADER = b"ZMQ01"
OK, ERROR, NOT_FOUND = b"OK", b"ERROR", b"NF"
STAT, SEARCH, FOUND, PLAN, HELLO = b"stat", b"search", b"found", b"plan", b"hello"

MOST_IN_A_PLAN = 200
LARGEST_PLAN = 256 * KIB
"""A server takes 1,000 songs and 1 MiB; less at once leaves it time for others."""
LONGEST_NAME = 255
LONGEST_ADDRESS = 300
LONGEST_WHY = 300
TAGS = ("title", "artist", "album")
UNTOLD = "0" * 64
"""The digest of a song on an original server, which tells none."""

MOST_ADVICE = 2000
LARGEST_ADVICE = 512 * KIB
LONGEST_REASON = 500

_SHA256 = re.compile(r"[0-9a-f]{64}").fullmatch
_ADDRESS = re.compile(r"(tcp|ipc)://\S+").fullmatch


class PlanError(ValueError):
    """A row is not what a plan has; the text says which, and why."""


# --- replication ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Wanted:
    """A song that should be at a server, and where it may be had."""

    song: str
    server: str
    source: str


def read_replication(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Wanted], list[tuple[Wanted, str]]]:
    """Read the rows of a replication plan: those that can be followed, and the others, each with what is wrong.

    A song that is wanted twice at a server is asked for once.
    """
    found: dict[tuple[str, str], Wanted] = {}
    wrong: list[tuple[Wanted, str]] = []
    for number, row in enumerate(rows, 1):
        missing = {"song", "server", "source"} - row.keys()
        if missing:
            raise PlanError(f"row {number} has no {min(missing)}")
        song, server, source = row["song"], row["server"], row["source"]
        try:
            wanted = Wanted(_song(song), address(server), address(source))
        except ValueError as error:
            wrong.append((Wanted(_shown(song), _shown(server), _shown(source)), str(error)))
        else:
            found.setdefault((wanted.song, wanted.server), wanted)
    return list(found.values()), wrong


def _song(value: object) -> str:
    if not isinstance(value, str) or not value or len(value.encode(errors="replace")) > LONGEST_NAME:
        raise ValueError(f"song is a text of at most {LONGEST_NAME} bytes")
    return value


def address(value: object) -> str:
    """Insist on an address that can be connected to from another process."""
    if not isinstance(value, str) or len(value) > LONGEST_ADDRESS or not _ADDRESS(value):
        raise ValueError(f"{_shown(value)} is not an address such as tcp://127.0.0.1:5556")
    return value


def _shown(value: object) -> str:
    return printable(value, 60) if isinstance(value, str) else repr(value)[:60]


@attrs.frozen
class Answer:
    """What somebody said: a word and its frames."""

    word: bytes
    rest: Frames


def read_answer(frames: Sequence[bytes]) -> tuple[bytes, Answer] | None:
    """Give the tag and the answer; None when it is something else."""
    if len(frames) < 3 or frames[0] != HEADER:
        return None
    return frames[2], Answer(frames[1], tuple(frames[3:]))


def refusal(answer: Answer) -> str:
    """Give why something is refused, in words that can be shown."""
    if answer.word == ERROR and len(answer.rest) >= 2:
        return printable(answer.rest[1].decode(errors="replace"), LONGEST_WHY)
    return f"it answers {printable(answer.word.decode(errors='replace'), 20)}, which makes no sense here"


def read_json(answer: Answer) -> Any:
    """Read the JSON of an answer; None when there is none."""
    if not answer.rest:
        return None
    try:
        return records.from_json(answer.rest[0])
    except records.MalformedError:
        return None


def search_for(song: str) -> bytes:
    """Write a search for one song by its name, which no cache answers."""
    return json.dumps({"name": song, "fresh": True}).encode()


@attrs.frozen
class Details:
    """What a plan tells of a song: enough to know it again, and where to fetch it."""

    name: str
    size: int
    sha256: str
    tags: Mapping[str, Any]
    holders: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        own = {"name": self.name, "size": self.size, "sha256": self.sha256, "holders": list(self.holders)}
        return {**self.tags, **own}


def read_details(told: object, name: str, holders: Iterable[str]) -> Details | None:
    """Read what a server says of a song; None when that is not this song, or cannot be fetched."""
    if not isinstance(told, dict) or told.get("name") != name:
        return None
    size, sha256 = told.get("size"), told.get("sha256")
    if type(size) is not int or size < 0 or not isinstance(sha256, str) or not _SHA256(sha256) or sha256 == UNTOLD:
        return None
    tags = {tag: told[tag] for tag in TAGS if isinstance(told.get(tag), str)}
    return Details(name, size, sha256, tags, tuple(holders))


def read_found(told: object, name: str) -> Details | None:
    """Read the answer to a search for one song; None when nobody has it."""
    hits = told.get("hits") if isinstance(told, dict) else None
    for hit in hits if isinstance(hits, list) else ():
        holders = hit.get("holders") if isinstance(hit, dict) else None
        places = (
            [each.get("endpoint") for each in holders if isinstance(each, dict)] if isinstance(holders, list) else []
        )
        usable = [place for place in places if isinstance(place, str) and _ADDRESS(place)]
        details = read_details(hit, name, usable)
        if details is not None and usable:
            return details
    return None


def write_plans(songs: Iterable[Details]) -> Iterator[tuple[bytes, list[str]]]:
    """Write plans, each not too large, with the names of the songs that it has."""
    texts: list[str] = []
    names: list[str] = []
    size = 0
    for song in songs:
        text = json.dumps(song.to_json())
        if names and (len(names) == MOST_IN_A_PLAN or size + len(text) > LARGEST_PLAN):
            yield _plan(texts), names
            texts, names, size = [], [], 0
        texts.append(text)
        names.append(song.name)
        size += len(text)
    if names:
        yield _plan(texts), names


def _plan(texts: Iterable[str]) -> bytes:
    return f'{{"songs":[{",".join(texts)}]}}'.encode()


def read_verdict(told: object, names: Iterable[str]) -> dict[str, str]:
    """Read what a server says to a plan: for each song why it is refused, or nothing when it is accepted."""
    table = told if isinstance(told, dict) else {}
    accepted, refused = table.get("accepted"), table.get("refused")
    verdict = dict.fromkeys(names, "the server said nothing of it")
    for name in accepted if isinstance(accepted, list) else ():
        if isinstance(name, str) and name in verdict:
            verdict[name] = ""
    for row in refused if isinstance(refused, list) else ():
        name = row.get("name") if isinstance(row, dict) else None
        if isinstance(name, str) and name in verdict:
            verdict[name] = printable(str(row.get("why") or "refused"), LONGEST_WHY)
    return verdict


# --- placement --------------------------------------------------------------------------------------------------------


@attrs.frozen
class AdviceMessage:
    """Advice as it is sent to discovery."""

    body: bytes
    rows: int
    left_out: int


def write_advice(rows: Iterable[Mapping[str, Any]], as_of: str) -> AdviceMessage:
    """Write the rows of a placement plan as far as they fit, those that matter most first.

    Where workers are missing comes before where there are too many, and both before where nothing changes; among these
    the places with the highest load, then those with the most requests.

    :param as_of: when the plan was made, in UTC: 2026-01-31T12:00:00Z.
    """
    checked: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    left_out = 0
    for number, row in enumerate(rows, 1):
        if not (_fits(row.get("service")) and (_is_null(row.get("group")) or _fits(row["group"], least=0))):
            left_out += 1  # what clients ask for may be called anything, and one of them is no reason to tell nothing
            continue
        try:
            checked.append((_importance(row), _advice(row)))
        except ValueError as error:
            raise PlanError(f"row {number}: {error}") from None
    checked.sort(key=itemgetter(0))
    texts: list[str] = []
    room = LARGEST_ADVICE - KIB
    for text in (json.dumps(advice) for _, advice in checked[:MOST_ADVICE]):
        room -= len(text) + 1
        if room < 0:
            break
        texts.append(text)
    body = f'{{"as_of":{json.dumps(as_of)},"rows":[{",".join(texts)}]}}'.encode()
    return AdviceMessage(body, len(texts), left_out + len(checked) - len(texts))


_FIRST = {"add": 0, "keep": 2}
"""Too few workers harm somebody, too many only cost; no change can wait."""


def _importance(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Give what rows are put in order by; a table of an earlier version has neither load nor requests."""
    load, requests = (_number(row, name) or 0.0 for name in ("load", "requests"))
    group = (1, "") if _is_null(row.get("group")) else (0, row["group"])
    return _FIRST.get(_text(row, "advice"), 1), -load, -requests, row["service"], group


def _advice(row: Mapping[str, Any]) -> dict[str, Any]:
    share = _number(row, "share")
    return {
        "service": row["service"],
        "group": None if _is_null(row.get("group")) else row["group"],
        "workers_now": _workers(row, "workers_now"),
        "workers_wanted": _workers(row, "workers_wanted"),
        "utilisation": _number(row, "utilisation"),
        "share": None if share is None else min(1.0, share),
        "advice": _text(row, "advice"),
        "reason": "" if _is_null(row.get("reason")) else _text(row, "reason", cut=LONGEST_REASON),
    }


def _fits(name: object, least: int = 1) -> bool:
    return isinstance(name, str) and least <= len(name) <= LONGEST_NAME


def _is_null(value: object) -> bool:
    # what is null in a table of Spark may come as not-a-number
    return value is None or (isinstance(value, float) and isnan(value))


def _text(row: Mapping[str, Any], name: str, *, cut: int = 0) -> str:
    value = row.get(name)
    if not isinstance(value, str) or (not cut and len(value) > LONGEST_NAME):
        raise ValueError(f"{name} is a text of at most {LONGEST_NAME} characters")
    return value[:cut] if cut else value


def _workers(row: Mapping[str, Any], name: str) -> int:
    value = _number(row, name)
    if value is None or value != int(value):
        raise ValueError(f"{name} is a whole number")
    return int(value)


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if _is_null(value):
        return None
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = -1.0
    if not isfinite(number) or number < 0:
        raise ValueError(f"{name} is a number that is not negative")
    return number
