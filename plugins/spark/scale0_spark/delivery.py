"""Brings plans to those who can act on them: songs to music servers, advice to discovery.

Both take rows of a result table as plain dictionaries. Servers decide for themselves what they take; the outcome tells
what became of every row.
"""

# does I/O: it talks to music servers and to brokers

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Literal

import attrs

from scale0_core.api import printable
from scale0_core.cli import kit
from scale0_core.client.kit.route import Broker, address_of, resolve, target
from scale0_spark import plans
from scale0_spark.asking import Question, Silence, ask_all
from scale0_spark.plans import Answer, Details, Wanted

State = Literal["accepted", "present", "arrived", "late", "refused", "unreachable"]
"""accepted: the server fetches it; present: it was there before; arrived: it is there now; late: it did not come in
time; refused: the server, or nobody who holds the song, wants it; unreachable: there was no answer."""
GOOD: frozenset[State] = frozenset({"accepted", "present", "arrived"})
LOOK_AGAIN = 0.3
"""Seconds between two looks at whether songs have arrived."""
ADVISE_AGAIN = 0.5
"""Seconds after which discovery is asked again, when it has just looked at advice of somebody else."""

Progress = Callable[[str], None]
Key = tuple[str, str]


@attrs.frozen
class Delivered:
    """What became of one row."""

    song: str
    server: str
    source: str
    state: State
    why: str = ""


@attrs.frozen
class ReplicationOutcome:
    """What became of a replication plan."""

    rows: tuple[Delivered, ...]

    @property
    def counts(self) -> dict[str, int]:
        """How many rows ended in which state."""
        return dict(Counter(row.state for row in self.rows))

    @property
    def complete(self) -> bool:
        """Whether every song is there, or on its way."""
        return all(row.state in GOOD for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return {"counts": self.counts, "rows": [attrs.asdict(row) for row in self.rows]}


def apply_replication(
    rows: Iterable[Mapping[str, Any]],
    *,
    broker: Broker | None = None,
    timeout: float = 10.0,
    wait: float = 0.0,
    progress: Progress | None = None,
) -> ReplicationOutcome:
    """Tell music servers which songs of others to keep.

    :param rows: those of the table ``replication_plan``: at least ``song``, ``server`` and ``source``.
    :param broker: the name of a broker on this machine, an address where its music broker takes requests, or several of
        these; by it another holder is found when the source has gone.
    :param timeout: seconds after which a server that says nothing is given up.
    :param wait: seconds to wait until the songs are there; 0 does not wait.
    :param progress: is told in a few words how far it came.
    """
    try:
        wanted, wrong = plans.read_replication(rows)
        place = None if broker is None else target(broker, "musicquest-broker", "clients")
    except ValueError as error:
        remedy = "give rows of the table replication_plan, and addresses such as tcp://127.0.0.1:6667"
        raise kit.UsageError("this is no replication plan", str(error), "nothing was sent", remedy) from error
    delivery = _Replication(wanted, timeout, progress or _say_nothing)
    delivery.learn(place)
    delivery.send()
    if wait > 0:
        delivery.wait(wait)
    refused = (Delivered(each.song, each.server, each.source, "refused", why) for each, why in wrong)
    return ReplicationOutcome((*delivery.rows(), *refused))


def _say_nothing(text: str) -> None:
    """Leave out what would be said."""


class _Replication:
    """One plan on its way: what is known of each row."""

    def __init__(self, wanted: Sequence[Wanted], timeout: float, progress: Progress) -> None:
        self._wanted = {(each.song, each.server): each for each in wanted}
        self._timeout = timeout
        self._progress = progress
        self._details: dict[Key, Details] = {}
        self._ended: dict[Key, tuple[State, str]] = {}

    def rows(self) -> Iterable[Delivered]:
        """Give what became of each row."""
        for key, each in self._wanted.items():
            yield Delivered(each.song, each.server, each.source, *self._ended[key])

    # --- what is known of the songs -----------------------------------------------------------------------------------

    def learn(self, music_broker: str | None) -> None:
        """Ask those who hold the songs what there is to know of them, and the music broker for those that are gone."""
        places = list(dict.fromkeys((each.song, each.source) for each in self._wanted.values()))
        self._progress(f"asking {len({source for _, source in places})} servers for {len(places)} songs")
        known: dict[Key, Details | tuple[State, str]] = {}
        for place, answer in zip(places, _stat(places, self._timeout), strict=True):
            known[place] = _details(place, answer)
        missing = list(dict.fromkeys(song for (song, _), told in known.items() if isinstance(told, tuple)))
        elsewhere = self._search(missing, music_broker) if missing and music_broker is not None else {}
        for key, each in self._wanted.items():
            told = known[each.song, each.source]
            if isinstance(told, tuple):
                told = elsewhere.get(each.song, told)
            if isinstance(told, tuple):
                self._ended[key] = told
            else:
                self._details[key] = told

    def _search(self, songs: Sequence[str], place: str) -> dict[str, Details | tuple[State, str]]:
        """Look in the tree for songs that are not where the plan says."""
        music_broker, reason = resolve(place)
        if reason:  # what is known of the songs says more
            self._progress(f"no music broker is asked: {reason}")
            return {}
        self._progress(f"looking for {len(songs)} songs elsewhere")
        (greeting,) = ask_all([Question(music_broker, plans.HELLO, (b"{}",))], self._timeout)
        told = plans.read_json(greeting) if isinstance(greeting, Answer) and greeting.word == plans.HELLO else None
        try:
            server = plans.address(told.get("endpoint") if isinstance(told, dict) else None)
        except ValueError:
            why = greeting.why if isinstance(greeting, Silence) else "it knows no server"
            return dict.fromkeys(songs, ("unreachable", f"the music broker at {music_broker}: {why}"))
        questions = [Question(server, plans.SEARCH, (plans.search_for(song),)) for song in songs]
        answers = zip(songs, ask_all(questions, self._timeout), strict=True)
        return {song: _found(song, server, answer) for song, answer in answers}

    # --- the plan -----------------------------------------------------------------------------------------------------

    def send(self) -> None:
        """Send each server its part of the plan, and take what it says to it."""
        by_server: dict[str, list[Details]] = {}
        for (_, server), details in self._details.items():
            by_server.setdefault(server, []).append(details)
        parts = [(server, body, names) for server, own in by_server.items() for body, names in plans.write_plans(own)]
        self._progress(f"sending a plan of {len(self._details)} songs to {len(by_server)} servers")
        answers = ask_all([Question(server, plans.PLAN, (body,)) for server, body, _ in parts], self._timeout)
        for (server, _, names), answer in zip(parts, answers, strict=True):
            for name, ended in _verdict(answer, names).items():
                self._ended[name, server] = ended
        self._look_at_refused()

    def _look_at_refused(self) -> None:
        """Tell what is there already from what is really refused."""
        refused = [key for key in self._details if self._ended[key][0] == "refused"]
        for key in self._those_there(refused, self._timeout):
            self._ended[key] = ("present", "it was there already")

    def _those_there(self, keys: Sequence[Key], timeout: float) -> list[Key]:
        """Give those whose server has just this song."""
        there = []
        for key, answer in zip(keys, _stat(keys, timeout), strict=True):
            told = _details(key, answer)
            if isinstance(told, Details) and told.sha256 == self._details[key].sha256:
                there.append(key)
        return there

    def wait(self, seconds: float) -> None:
        """Wait until what was accepted has arrived, or the time is over."""
        end = time.monotonic() + seconds
        missing = [key for key, (state, _) in self._ended.items() if state == "accepted"]
        count = len(missing)
        told = -1
        while missing:
            for key in self._those_there(missing, min(self._timeout, max(LOOK_AGAIN, end - time.monotonic()))):
                self._ended[key] = ("arrived", "")
            missing = [key for key in missing if self._ended[key][0] == "accepted"]
            if told != count - len(missing):
                told = count - len(missing)
                self._progress(f"{told} of {count} songs have arrived")
            if time.monotonic() >= end:
                break
            if missing:
                time.sleep(min(LOOK_AGAIN, max(0.0, end - time.monotonic())))
        for key in missing:
            self._ended[key] = ("late", f"accepted, but not there after {seconds:g} s")


def _stat(places: Iterable[Key], timeout: float) -> list[Answer | Silence]:
    questions = [Question(server, plans.STAT, (song.encode(errors="replace"),)) for song, server in places]
    return ask_all(questions, timeout)


def _details(place: Key, answer: Answer | Silence) -> Details | tuple[State, str]:
    """Read what a server says of a song: its details, or why there are none."""
    song, server = place
    if isinstance(answer, Silence):
        return "unreachable", f"{server}: {answer.why}"
    if answer.word == plans.NOT_FOUND:
        return "refused", f"{server} does not hold this song"
    if answer.word != plans.STAT:
        return "refused", f"{server}: {plans.refusal(answer)}"
    details = plans.read_details(plans.read_json(answer), song, [server])
    return details or ("refused", f"{server} tells neither size nor digest of it")


def _found(song: str, server: str, answer: Answer | Silence) -> Details | tuple[State, str]:
    if isinstance(answer, Silence):
        return "unreachable", f"{server}: {answer.why}"
    if answer.word != plans.FOUND:
        return "refused", f"{server}: {plans.refusal(answer)}"
    return plans.read_found(plans.read_json(answer), song) or ("refused", "no server holds this song")


def _verdict(answer: Answer | Silence, names: Sequence[str]) -> dict[str, tuple[State, str]]:
    if isinstance(answer, Silence):
        return dict.fromkeys(names, ("unreachable", answer.why))
    if answer.word != plans.OK:
        return dict.fromkeys(names, ("refused", plans.refusal(answer)))
    verdict = plans.read_verdict(plans.read_json(answer), names)
    return {name: ("refused", why) if why else ("accepted", "") for name, why in verdict.items()}


# --- placement --------------------------------------------------------------------------------------------------------


@attrs.frozen
class PlacementOutcome:
    """What became of a placement plan: how many rows discovery shows now, and how many did not fit."""

    address: str
    as_of: str
    rows: int
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Give it as JSON's types."""
        return attrs.asdict(self)


def apply_placement(
    rows: Iterable[Mapping[str, Any]],
    *,
    broker: Broker = "default",
    timeout: float = 5.0,
    as_of: datetime | None = None,
) -> PlacementOutcome:
    """Have discovery show a placement plan, instead of all that it showed before.

    :param rows: those of the table ``placement_plan``.
    :param broker: the name of a broker on this machine, an address where discovery takes requests, or several of these.
    :param timeout: seconds to connect, and to wait for the answer.
    :param as_of: when the plan was made; now, if it is not given.
    """
    made = (as_of or datetime.now(timezone.utc)).astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    try:
        message = plans.write_advice(rows, made)
        place = target(broker, "discovery", "requests")
    except ValueError as error:
        remedy = "give rows of the table placement_plan, and the name of a broker or the address of its discovery"
        raise kit.UsageError("this is no placement plan", str(error), "nothing was sent", remedy) from error
    remedy = "is there a broker with the plugin discovery? scale0 discovery show discovery tells the address"
    end = time.monotonic() + timeout
    answer = kit.ask(place, [b"ADVISE", message.body], timeout, remedy=remedy)
    while answer[:2] == [b"ERROR", b"429"] and (left := end - time.monotonic()) > 0:  # somebody else was just before
        time.sleep(min(left, ADVISE_AGAIN))
        answer = kit.ask(place, [b"ADVISE", message.body], timeout, remedy=remedy)
    if answer[0] != b"ADVISE":
        why = printable(b": ".join(answer[1:3]).decode(errors="replace"), plans.LONGEST_WHY)
        raise kit.NegativeError(
            f"discovery at {place} refuses the advice", why, "it shows what it showed before", "see the reason"
        )
    return PlacementOutcome(address_of(place), made, message.rows, message.left_out)
