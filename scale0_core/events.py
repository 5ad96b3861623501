"""What services tell of: the kinds of events, and the names under which they tell it.

One schema for all services, so that whoever stores or counts events needs to know nothing of them. An event is a plain
tuple, ``(kind, now, *values)`` with a value for each field of its kind: the cheapest thing that Python can make, and a
broker makes one for each task. ``now`` is the time that the service was given; who observes knows what o'clock it was.

A plugin may make kinds of its own. Their fields should be those of ``FIELDS``; what goes by another name is kept as a
detail, which costs more to store and to ask for.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import attrs

VERSION = 1
"""Grows by one when a field or a kind changes its meaning; new ones may come at any time."""

Event = tuple[Any, ...]
"""The kind of an event, its time, and the values of its fields; None where nothing is known.

A field that has whole numbers may be told as a float, which costs less than to make it whole for each event: whoever
stores it cuts off what is behind the point.
"""


class Field(NamedTuple):
    """Something that events tell."""

    type: type[str] | type[int] | type[float]
    summary: str


FIELDS: Mapping[str, Field] = {
    "service": Field(str, "the service that is concerned"),
    "peer": Field(str, "who did it or had it done: a worker, a client, a music server"),
    "group": Field(str, "the group of brokers in which it happened"),
    "subject": Field(str, "what it was done to: a pipe, a song, a key, a setting"),
    "source": Field(str, "where it came from: the address of another server"),
    "outcome": Field(str, "how it ended, or why it happened; `ok` when all was well"),
    "queue_us": Field(int, "how long it waited before somebody took it, in microseconds"),
    "service_us": Field(int, "how long it took once it was taken, in microseconds"),
    "bytes": Field(int, "how many bytes were moved"),
    "count": Field(int, "how many of them there were, when one event tells of many"),
    "value": Field(float, "a number whose meaning depends on the kind"),
}
"""The fields that every store of events has a column for."""


@attrs.frozen(eq=False)
class EventKind:
    """A kind of events, and the fields that each of them has."""

    name: str
    summary: str
    fields: tuple[str, ...]

    def table(self, event: Event) -> dict[str, Any]:
        """Give what an event of this kind tells, by name."""
        return dict(zip(self.fields, event[2:], strict=True))


def _kind(name: str, summary: str, *fields: str) -> EventKind:
    return EventKind(name, summary, fields)


HEARTBEAT = _kind(
    "heartbeat",
    "a worker showed that it lives; one for each service that it offers, at most once a second",
    "service", "peer", "group",
)  # fmt: skip
JOIN = _kind(
    "join",
    "a worker offers a service from now on; `count`: how many tasks at once; services of the broker itself and bridges"
    " are no workers: they neither join nor leave nor beat",
    "service", "peer", "group", "count",
)  # fmt: skip
LEAVE = _kind(
    "leave",
    "a worker offers a service no longer; `outcome`: `left` (it said so), `lost` (its connection is gone), `silent` (it"
    " was, for too long), `refused` (it broke the rules, or was sent away); `value`: seconds since it joined",
    "service", "peer", "group", "outcome", "value",
)  # fmt: skip
TASK = _kind(
    "task",
    "a task of the Scale0 protocol is over; `outcome`: `ok`, `error` (its worker said so), `timeout`, `lost` (its"
    " worker is gone, and no other may have it), `refused` (nobody offers it, or too many wait), `cancelled` (by its"
    " client, or its client is gone or does not read); `peer`: the worker; a task given to none has neither this nor"
    " `service_us`, one given to a service of the broker itself or to a bridge only the latter; `bytes`: of the reply",
    "service", "peer", "group", "outcome", "queue_us", "service_us", "bytes",
)  # fmt: skip
RPC = _kind(
    "rpc",
    "a request of Majordomo is over; all as in `task`",
    "service", "peer", "group", "outcome", "queue_us", "service_us", "bytes",
)  # fmt: skip
PIPE_WRITE = _kind(
    "pipe_write",
    "chunks were written to a pipe of zpipes since the last such event; at most once a second for each pipe, of a name"
    " and a dialect",
    "subject", "count", "bytes",
)  # fmt: skip
PIPE_READ = _kind(
    "pipe_read",
    "chunks were read from a pipe, by all who were to have them; otherwise as `pipe_write`",
    "subject", "count", "bytes",
)  # fmt: skip
KEY_CHANGE = _kind(
    "key_change",
    "a key was set or deleted; no service tells of it yet: it is for Clone, which is planned",
    "service", "peer", "subject", "outcome", "bytes",
)  # fmt: skip
SONG_SEARCH = _kind(
    "song_search",
    "a music server answered a search of a client; `subject`: the song, for searches by its name; `text`: the words of"
    " others; `outcome`: `hit` (it holds the song), `cached` (it knew who does), `found` (another server said so),"
    " `miss` (nobody has it), `timeout` (nothing was found, and not all answered in time)",
    "peer", "subject", "text", "outcome", "service_us",
)  # fmt: skip
SONG_DOWNLOAD = _kind(
    "song_download",
    "a music server gave a song, or a part of it, to a client; `ok`, or `broken` when its end was not sent: the client"
    " left, began anew, or has the end from another server",
    "peer", "subject", "outcome", "bytes",
)  # fmt: skip
SONG_REPLICA = _kind(
    "song_replica",
    "a music server holds a song of another from now on; `outcome`: what made it (`plan`, `popular`)",
    "peer", "subject", "source", "outcome", "bytes",
)  # fmt: skip
CONFIG_CHANGE = _kind(
    "config_change",
    "the broker goes by another configuration (`subject`: `config`, `outcome`: `applied`, `count`: its version), or is"
    " in another state (`state`; `active`, `disabled`)",
    "subject", "outcome", "count",
)  # fmt: skip
DROP = _kind("drop", "messages were dropped or not delivered, and why", "service", "outcome", "count")
LOAD = _kind(
    "load",
    "what the broker did in the last seconds; `value`: CPU seconds a second, `count`: messages received,"
    " `service_us`: time spent in turns of the loop, `queue_us`: length of the longest turn, `bytes`: memory in use",
    "group", "value", "count", "service_us", "queue_us", "bytes",
)  # fmt: skip

KINDS: Mapping[str, EventKind] = {
    kind.name: kind
    for kind in (
        HEARTBEAT, JOIN, LEAVE, TASK, RPC, PIPE_WRITE, PIPE_READ, KEY_CHANGE, SONG_SEARCH, SONG_DOWNLOAD, SONG_REPLICA,
        CONFIG_CHANGE, DROP, LOAD,
    )
}  # fmt: skip
"""The kinds of events that Scale0's own services tell of, by name."""
