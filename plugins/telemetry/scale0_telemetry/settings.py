"""The table [plugin.telemetry] of broker.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import attrs
from attrs.validators import ge, gt

from scale0_core.api import KIB, MIB, events, setting

STATES = frozenset(kind.name for kind in (events.JOIN, events.LEAVE, events.SONG_REPLICA, events.CONFIG_CHANGE))
"""Kinds that tell what is so from then on: no weight makes up for one that is missing."""


def _rates(_: Any, field: attrs.Attribute[Any], value: Mapping[str, float]) -> None:
    wrong = [f"{kind} = {rate:g}" for kind, rate in value.items() if not 0.0 <= rate <= 1.0]
    states = [kind for kind, rate in value.items() if kind in STATES and rate != 1.0]
    faults = [f"must have rates from 0 to 1, not {', '.join(wrong)}"] if wrong else []
    if states:
        why = "they tell of states, and nothing makes up for one that is missing"
        faults.append(f"must leave {', '.join(states)} out: {why}")
    if faults:
        raise ValueError(f"'{field.name}' {'; and '.join(faults)}")


LEAST_QUOTA = 16 * KIB
"""A file of one event takes about 3 KiB, and there should be some."""


def _quota(_: Any, field: attrs.Attribute[Any], value: int) -> None:
    if value and value < LEAST_QUOTA:
        raise ValueError(f"'{field.name}' must be 0 or at least {LEAST_QUOTA}, not {value}")


_BROKER = re.compile(r"ipc://.+|tcp://.+:[0-9]{1,5}|[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}|")


def _broker(_: Any, field: attrs.Attribute[Any], value: str | tuple[str, ...]) -> None:
    for each in (value,) if isinstance(value, str) else value:
        if not _BROKER.fullmatch(each):
            raise ValueError(f"'{field.name}' must be a name or an address, as in tcp://127.0.0.1:5560, not {each!r}")


@attrs.frozen
class TelemetrySettings:
    """What an operator may set."""

    files: bool = setting(True, "Write events into Parquet files.")
    folder: str = setting("", "Where the files are; empty: telemetry in the broker's data folder.")
    segment_bytes: int = setting(
        64 * MIB,
        "A file of this size, or of a quarter of the quota, is finished and the next one begun. It is looked at when a"
        " group of rows was written, of 131,072 events or 16 MiB in memory, or of more that came at once; so a file may"
        " be larger by one group.",
        validator=ge(KIB),
    )
    segment_seconds: float = setting(
        300.0, "A file of this age is finished; so many seconds of events a crash may cost.", validator=gt(0)
    )
    quota_bytes: int = setting(
        1024 * MIB,
        "Bytes of all files of this broker, those that are still written included; the oldest are removed when there"
        " are more. It is looked at when a group of rows was written, so for a moment there may be more by one group."
        " At least 16 KiB; 0: any.",
        validator=_quota,
    )
    pipe: str = setting(
        "", "Name of a pipe to which events are published as Arrow streams of up to 4 MiB; empty: none."
    )
    pipe_broker: str | tuple[str, ...] = setting(
        "", "Broker of the pipe: a name on this machine, an address of a service zpipes, or several, tried in order; "
        "empty: this one.",
        validator=_broker,
    )  # fmt: skip
    pipe_buffer: int = setting(
        16 * MIB,
        "Bytes kept while the pipe takes none; beyond that, events are dropped and counted.",
        validator=ge(KIB),
    )
    sampling: Mapping[str, float] = setting(
        {}, "The chance with which an event of a kind is kept, as in task = 0.1; all of those that are not named. Kinds"
        " that tell of states are always kept: join, leave, song_replica, config_change.",
        validator=_rates,
    )  # fmt: skip
    load_interval: float = setting(
        10.0, "Seconds between two events on the broker's load, and on what was dropped.", validator=ge(0.1)
    )
    max_queue: int = setting(
        200_000, "Events that may wait for the thread that stores them; beyond that, they are dropped and counted.",
        validator=ge(1),
    )  # fmt: skip
