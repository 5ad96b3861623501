"""Connections of the simulated network, and the carrier that delays, loses and repeats what passes through them."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import TYPE_CHECKING, TypeAlias

import attrs

from scale0_core.service import Frames
from scale0_core.testing.virtual import Agenda

if TYPE_CHECKING:
    from scale0_core.testing.simsockets import Connector, SimSocket

Range: TypeAlias = tuple[float, float]
"""The least and the most seconds of something that takes time."""

REORDERED_BY = 5.0
"""A message that is overtaken takes up to so many times the longest delay."""


def _probability(_: object, attribute: attrs.Attribute[float], value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{attribute.name} is a probability, not {value}")


def _range(_: object, attribute: attrs.Attribute[Range], value: Range) -> None:
    if not 0.0 <= value[0] <= value[1]:
        raise ValueError(f"{attribute.name} is (least, most) seconds, not {value}")


@attrs.frozen(kw_only=True)
class Weather:
    """How bad the simulated network is: how long things take, and how likely they go wrong."""

    delay: Range = attrs.field(default=(0.0, 0.01), validator=_range)
    loss: float = attrs.field(default=0.0, validator=_probability)
    duplication: float = attrs.field(default=0.0, validator=_probability)
    reordering: float = attrs.field(default=0.0, validator=_probability)
    job_delay: Range = attrs.field(default=(0.0, 0.005), validator=_range)
    job_failure: float = attrs.field(default=0.0, validator=_probability)
    reconnect: Range = attrs.field(default=(0.01, 0.1), validator=_range)
    detection: Range = attrs.field(default=(0.0, 1.0), validator=_range)


@attrs.define
class NetCounts:
    """What became of every message: ``handed + duplicates == delivered + in flight + all that was dropped``.

    A message published to three subscribers is three messages. One that a socket refused is dropped, by its errno.
    """

    handed: int = 0
    duplicates: int = 0
    delivered: int = 0
    dropped: Counter[str] = attrs.field(factory=Counter)

    @property
    def in_flight(self) -> int:
        """How many messages must be under way, if all was counted."""
        return self.handed + self.duplicates - self.delivered - sum(self.dropped.values())


class Pipe:
    """One direction of a connection; ``routing_id`` is how the receiver, if a ROUTER, names the sender."""

    __slots__ = ("connection", "cut", "flying", "last_arrival", "receiver", "routing_id", "sender", "topics", "waiting")

    def __init__(self, sender: SimSocket, receiver: SimSocket, routing_id: bytes) -> None:
        self.sender = sender
        self.receiver = receiver
        self.routing_id = routing_id
        self.connection: Connection
        self.flying = 0
        """Messages under way; when the pipe is cut, they are lost."""
        self.waiting = 0
        self.last_arrival = 0.0
        self.topics: dict[bytes, None] = {}
        self.cut = ""

    @property
    def full(self) -> bool:
        """True while the receiver has not taken as many messages as the sender may have under way."""
        limit = self.sender.endpoint.high_water
        return bool(limit) and self.flying + self.waiting >= limit


class Connection:
    """One connection: a pipe each way. Once cut it never works again; a new one takes its place."""

    __slots__ = ("backward", "closed", "connector", "forward")

    def __init__(self, connector: Connector, forward: Pipe, backward: Pipe) -> None:
        self.connector = connector
        self.forward = forward
        self.backward = backward
        self.closed = False
        forward.connection = backward.connection = self

    def opposite(self, pipe: Pipe) -> Pipe:
        """Give the pipe of the other direction."""
        return self.backward if pipe is self.forward else self.forward


class Carrier:
    """Takes messages through pipes, as badly as the weather demands, and counts what becomes of each."""

    def __init__(self, agenda: Agenda, random: Random, weather: Weather) -> None:
        self.agenda = agenda
        self.random = random
        self.weather = weather
        self.counts = NetCounts()
        self.trace: list[tuple[object, ...]] | None = None

    def carry(self, pipe: Pipe, frames: Frames) -> None:
        """Send a message on its way; it arrives whole, later, or not at all."""
        weather, random = self.weather, self.random
        if pipe.cut:
            self.drop(pipe.cut)
        elif weather.loss and random.random() < weather.loss:
            self.drop("lost")
        else:
            self._launch(pipe, frames)
            if weather.duplication and random.random() < weather.duplication:
                self.counts.duplicates += 1
                self._launch(pipe, frames)

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that will not arrive."""
        if count:
            self.counts.dropped[reason] += count
            self.note("drop", reason, count)

    def cut(self, pipe: Pipe, reason: str) -> None:
        """Drop all that is under way in a pipe, and all that will be sent into it."""
        self.drop(reason, pipe.flying)
        pipe.flying = 0
        pipe.cut = reason

    def duration(self, of: Range) -> float:
        """Choose how long something takes."""
        least, most = of
        return least + (most - least) * self.random.random()

    def note(self, *event: object) -> None:
        """Write an event into the trace, if one is kept."""
        if self.trace is not None:
            self.trace.append((self.agenda.now, *event))

    def _launch(self, pipe: Pipe, frames: Frames) -> None:
        weather, now = self.weather, self.agenda.now
        arrival = now + self.duration(weather.delay)
        if weather.reordering and self.random.random() < weather.reordering:
            arrival += self.random.random() * REORDERED_BY * weather.delay[1]
        else:
            arrival = pipe.last_arrival = max(arrival, pipe.last_arrival)
        pipe.flying += 1
        self.agenda.at(arrival, _arrive, pipe, frames)


def _arrive(pipe: Pipe, frames: Frames) -> None:
    if not pipe.cut:  # else it was lost, and counted
        pipe.flying -= 1
        pipe.receiver.arrived(pipe, frames)
