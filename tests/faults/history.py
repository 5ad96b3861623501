"""What happened during a run, and whether it was as promised.

A ``History`` is written by the run: every call when it is made and when it ends, every execution of a task by a worker,
every version of the configuration that somebody saw, every life of the broker with its own counters. ``check`` then
looks for what must not be, by the guarantees of the project:

(a) every call ends in exactly one of reply or error before its deadline, and a reply belongs to its call;
(b) a task reaches at most one worker unless it is marked ``retry``;
(c) the version of the configuration that a client or worker runs never goes back;
(d) no message is dropped without a counter and a reason;
(e) a disabled broker answers nothing but ``enable``.

Times are seconds of the machine's monotonic clock, which all its processes share. Nothing here does I/O.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise

import attrs

GRACE = 1.0
"""Seconds by which an end may be noted after its deadline: the threads of the run itself wait for a processor too."""

ON_ITS_WAY = 0.5
"""Seconds that a call may take from the thread that made it to the broker."""


@attrs.frozen
class Call:
    """A call was made: by which client, for which service, and when it has to end."""

    id: str
    client: str
    service: str
    retry: bool
    at: float
    deadline: float


@attrs.frozen
class End:
    """A call ended: with a reply, which names its call and the worker, or with an error.

    ``told`` says whether the broker or a worker said so; what the client found out by itself (its time was up, the
    connection broke) is not told. ``sent`` is false where the call never left the client.
    """

    call: str
    at: float
    reply_to: str = ""
    worker: str = ""
    pid: int = 0
    code: int | None = None
    error: str = ""
    told: bool = True
    sent: bool = True

    @property
    def is_reply(self) -> bool:
        """Tell whether it is a reply."""
        return self.code is None

    @property
    def is_own_timeout(self) -> bool:
        """Tell whether the client waited in vain for an answer to what it had sent."""
        return self.code == 408 and not self.told and self.sent


@attrs.frozen
class Execution:
    """A worker began to work on a task."""

    call: str
    worker: str
    pid: int
    at: float


@attrs.frozen
class VersionSeen:
    """Somebody ran a version of the configuration at a time."""

    who: str
    version: int
    at: float


@attrs.frozen
class BrokerLife:
    """A broker process from its start to its end.

    ``clean`` when it ended by itself and told its totals. ``counts`` are those it told last when asked for its state,
    ``undelivered`` and ``dropped`` its totals, ``reasons`` the sum of its log lines on messages that could not be sent,
    ``to_clients`` those of them that were meant for clients. ``cancelled`` has, by client, the open tasks that it took
    back, as the broker told last before its end.
    """

    began: float
    ended: float
    clean: bool
    counts: Mapping[str, int] = attrs.field(factory=dict)
    undelivered: int = 0
    dropped: int = 0
    reasons: Mapping[str, int] = attrs.field(factory=dict)
    to_clients: int = 0
    cancelled: Mapping[str, int] = attrs.field(factory=dict)
    errors: int = 0


@attrs.frozen
class Span:
    """A while in which somebody stood still: the broker, which could answer nothing, or the run itself."""

    since: float
    until: float

    def within(self, begin: float, end: float) -> float:
        """Give the seconds of it that lie between two moments."""
        return max(min(self.until, end) - max(self.since, begin), 0.0)


@attrs.frozen
class Disabled:
    """The broker was disabled.

    It was ``asked`` to be, had confirmed that ``since`` then, was asked to enable ``until`` then, and confirmed that
    when it was ``over``. What it did between ``since`` and ``until`` it did while disabled; beside that, it may have.
    """

    since: float
    until: float
    asked: float
    over: float


@attrs.frozen
class Violation:
    """Something that must not be: the letter of the guarantee, and what happened."""

    guarantee: str
    what: str

    def __str__(self) -> str:
        return f"({self.guarantee}) {self.what}"


@attrs.define
class History:
    """All that happened. Lists are only appended to, which several threads may do at once."""

    calls: list[Call] = attrs.field(factory=list)
    ends: list[End] = attrs.field(factory=list)
    executions: list[Execution] = attrs.field(factory=list)
    versions: list[VersionSeen] = attrs.field(factory=list)
    lives: list[BrokerLife] = attrs.field(factory=list)
    frozen: list[Span] = attrs.field(factory=list)
    """When the broker's process was stopped."""
    stalls: list[Span] = attrs.field(factory=list)
    """When no thread of the run's own process had a turn: the clients in it could note nothing then."""
    disabled: list[Disabled] = attrs.field(factory=list)
    late_answers: dict[str, int] = attrs.field(factory=dict)
    """By client: answers that came when their call had ended already."""

    def errors_by_code(self) -> dict[str, int]:
        """Count the calls that ended in an error; code 0 is a connection that broke."""
        return {str(code): n for code, n in sorted(Counter(e.code for e in self.ends if e.code is not None).items())}


def check(history: History, grace: float = GRACE) -> list[Violation]:
    """Look for everything that breaks a guarantee."""
    return [
        *check_ends(history, grace),
        *check_replies(history),
        *check_executions(history),
        *check_versions(history),
        *check_counters(history),
        *check_answers(history),
        *check_disabled(history),
    ]


# --- (a) --------------------------------------------------------------------------------------------------------------


def check_ends(history: History, grace: float = GRACE) -> Iterable[Violation]:
    """(a) Every call ends once, in time; nothing ends that was not begun."""
    ends: defaultdict[str, list[End]] = defaultdict(list)
    for end in history.ends:
        ends[end.call].append(end)
    known = {call.id for call in history.calls}
    for stranger in ends.keys() - known:
        yield Violation("a", f"{stranger} ended and was never made")
    if len(known) != len(history.calls):
        yield Violation("a", "two calls have one id: the run itself is wrong")
    for call in history.calls:
        found = ends.get(call.id, [])
        if len(found) != 1:
            yield Violation("a", f"{call.id} ended {len(found)} times")
        for end in found:
            if end.at > call.deadline + grace + sum(span.within(call.at, end.at) for span in history.stalls):
                yield Violation("a", f"{call.id} ended {end.at - call.deadline:.3f} s after its deadline: {end}")


def check_replies(history: History) -> Iterable[Violation]:
    """(a) A reply belongs to its call, and comes from a worker that was given the task before."""
    begun: defaultdict[tuple[str, str, int], list[float]] = defaultdict(list)
    for execution in history.executions:
        begun[execution.call, execution.worker, execution.pid].append(execution.at)
    for end in history.ends:
        if not end.is_reply:
            continue
        if end.reply_to != end.call:
            yield Violation("a", f"{end.call} was given the reply to {end.reply_to}")
        elif not any(at <= end.at for at in begun.get((end.call, end.worker, end.pid), ())):
            yield Violation("a", f"{end.call} has a reply of {end.worker} ({end.pid}), which had no such task")


# --- (b) --------------------------------------------------------------------------------------------------------------


def check_executions(history: History) -> Iterable[Violation]:
    """(b) What may not be repeated was carried out at most once; nothing was carried out that nobody asked for."""
    times = Counter(execution.call for execution in history.executions)
    for call in history.calls:
        count = times.pop(call.id, 0)
        if count > 1 and not call.retry:
            workers = [f"{e.worker} ({e.pid}) at {e.at:.3f}" for e in history.executions if e.call == call.id]
            yield Violation("b", f"{call.id} may not be repeated, and was begun by {', '.join(workers)}")
    for stranger in times:
        yield Violation("b", f"{stranger} was carried out, and nobody has made such a call")


# --- (c) --------------------------------------------------------------------------------------------------------------


def check_versions(history: History) -> Iterable[Violation]:
    """(c) Versions grow, for everybody."""
    by_name: defaultdict[str, list[VersionSeen]] = defaultdict(list)
    for seen in history.versions:
        by_name[seen.who].append(seen)
    for who, seen_by in by_name.items():
        for before, after in pairwise(sorted(seen_by, key=lambda seen: seen.at)):
            if after.version < before.version:
                yield Violation("c", f"{who} ran version {after.version} after version {before.version}")


# --- (d) --------------------------------------------------------------------------------------------------------------


def check_counters(history: History) -> Iterable[Violation]:
    """(d) The broker's counters agree with each other: its totals, the reasons in its log, and its state."""
    for number, life in enumerate(history.lives):
        if life.errors:
            yield Violation("d", f"life {number}: {life.errors} exceptions in the broker's own code")
        if not life.clean:
            continue  # killed: it could not tell
        by_reason = sum(life.reasons.values())
        if by_reason != life.undelivered:
            yield Violation("d", f"life {number}: {life.undelivered} not sent, reasons are told for {by_reason}")
        if life.dropped:
            yield Violation("d", f"life {number}: {life.dropped} messages dropped, for which its log has no reason")
        for reason, count in life.reasons.items():
            told = life.counts.get(f"undelivered {reason}", 0)
            if told > count:
                yield Violation("d", f"life {number}: state tells of {told} times {reason}, the log of {count}")


def check_answers(history: History) -> Iterable[Violation]:
    """(d) Where a client heard nothing, a counter says why; (a) nothing is answered twice.

    This looks at clients that repeat no call: there each call is sent once, so that an answer which comes too late
    belongs to a call that ended by itself. A client takes back what it gives up, by CANCEL. So a call to which no
    answer came at all was passed over by a disabled broker, was open when the broker was killed, is counted by the
    broker of that time as cancelled by this client, or is counted as an answer that could not be delivered.
    """
    repeating = {call.client for call in history.calls if call.retry}
    calls = {call.id: call for call in history.calls if call.client not in repeating}
    silent: Counter[str] = Counter()
    owed: Counter[tuple[str, int]] = Counter()
    passed_over = 0
    for end in history.ends:
        if end.is_own_timeout and end.call in calls:
            call = calls[end.call]
            silent[call.client] += 1
            if _passed_over(history.disabled, call.at):
                passed_over += 1
            elif not _killed(history, call):
                owed[call.client, _life_at(history, end.at)] += 1
    missing: Counter[str] = Counter()
    for (client, life), count in owed.items():
        cancelled = history.lives[life].cancelled.get(client, 0) if history.lives else 0
        missing[client] += max(count - cancelled, 0)
    unexplained = 0
    for client in {call.client for call in calls.values()}:
        late = history.late_answers.get(client, 0)
        if late > silent[client]:
            yield Violation("a", f"{client} got {late} late answers, but only {silent[client]} calls ended without one")
        unexplained += max(missing[client] - late, 0)
    undelivered = sum(life.to_clients for life in history.lives)
    if unexplained > undelivered:
        what = f"{unexplained} calls were never answered, and nothing explains it"
        yield Violation("d", f"{what}: {undelivered} answers are counted as not delivered")
    counted = sum(life.counts.get("disabled", 0) for life in history.lives)
    if passed_over - sum(history.late_answers.values()) > counted:
        what = f"{passed_over} calls came to a disabled broker without an answer"
        yield Violation("d", f"{what}, and it counted only {counted} messages")


def _life_at(history: History, at: float) -> int:
    """Give the number of the life in which the broker was told something that was sent at a time."""
    return max(sum(life.began <= at for life in history.lives) - 1, 0)


def _killed(history: History, call: Call) -> bool:
    """Tell whether a broker was killed while it owed the answer to a call; its counters went with it.

    It owes the answer until the deadline, when the client takes the call back; one that stands still then hears of
    that when it goes on.
    """
    kills = (life.ended for life in history.lives if not life.clean and life.ended >= call.at)
    kill = min(kills, default=math.inf)
    heard = max((span.until for span in history.frozen if span.since <= call.deadline < span.until), default=0.0)
    return kill <= max(call.deadline, heard) + GRACE


def _passed_over(times: Iterable[Disabled], at: float) -> bool:
    """Tell whether a call was made when the broker may have been disabled; it may have been on its way for a while."""
    return any(time.asked - ON_ITS_WAY <= at <= time.over for time in times)


# --- (e) --------------------------------------------------------------------------------------------------------------


def check_disabled(history: History) -> Iterable[Violation]:
    """(e) No call that was made while the broker was disabled was answered or carried out before it was enabled."""
    ends = {end.call: end for end in history.ends}
    begun: dict[str, float] = {}
    for execution in history.executions:
        begun[execution.call] = min(execution.at, begun.get(execution.call, execution.at))
    for time in history.disabled:
        for call in history.calls:
            if not time.since < call.at < time.until:
                continue
            end = ends.get(call.id)
            if end is not None and end.told and end.at < time.until:
                yield Violation("e", f"{call.id} was answered by a disabled broker: {end}")
            if begun.get(call.id, time.until) < time.until:
                yield Violation("e", f"{call.id} was handed to a worker by a disabled broker")
