"""What can be said in ``.option(...)``: read once, all checked, with a sentence about whatever is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs

from scale0_spark.zpipes.errors import OptionError
from scale0_spark.zpipes.wire import pipes_at

SPARKS_OWN = {"checkpointlocation", "queryname"}
"""What Spark hands on though it is meant for itself."""

MAX_NAME = 255
LARGEST = 2**63 - 1
DEFAULT_GROUP = "spark"


@attrs.frozen
class Options:
    """Where the pipes are, and how they are read and written."""

    broker: str
    """Where the pipes are, as `pipes_at` says it."""
    pipes: tuple[str, ...]
    group: str = DEFAULT_GROUP
    payload: Literal["chunks", "events"] = "chunks"
    starting: Literal["first", "next"] | int = "first"
    max_rows: int | None = None
    rows_per_partition: int | None = None
    partitions: int = 1
    fail_on_data_loss: bool = True
    mark_skipped: bool = False
    """Whether a row that has only pipe, sequence and count stands for chunks that were left out; of events only."""
    timeout: float = 60.0
    """Seconds for which a broker that does not answer is asked again."""
    staging_timeout: float = 3600.0
    """Seconds for which the broker keeps what tasks wrote for a batch that is not committed."""

    @property
    def pipe(self) -> str:
        """The one pipe that is written to."""
        if len(self.pipes) != 1:
            raise OptionError(f"the option pipes names {len(self.pipes)} pipes", "a sink writes to one")
        return self.pipes[0]


def read_options(given: Mapping[str, str]) -> Options:
    """Make options of what was given, or say what is wrong."""
    left = {name.lower(): value for name, value in given.items()}
    for name in SPARKS_OWN:
        left.pop(name, None)
    if "path" in left:
        raise OptionError("a pipe has no path", "", "", 'write .option("pipe", "name").load()')
    if "pipe" in left and "pipes" in left:
        raise OptionError("there are the options pipe and pipes", "", "", "name all pipes in the option pipes")
    values: dict[str, Any] = {}
    for name, (field, reader) in READERS.items():
        text = left.pop(name.lower(), None)
        if text is not None:
            values[field] = reader(name, text)
    if left:
        unknown = ", ".join(sorted(left))
        raise OptionError(f"there is no option {unknown}", "", "", f"there are {', '.join(READERS)}")
    for name in ("broker", "pipes"):
        if name not in values:
            says = "broker, a name or an address" if name == "broker" else "pipe, or pipes with several"
            raise OptionError(f"the option {says}, is missing")
    if values.get("mark_skipped") and values.get("payload") != "events":
        raise OptionError("the option markSkipped is true", "", "", "it is for payload events")
    values.setdefault("partitions", os.cpu_count() or 1)
    return Options(**values)


def _broker(name: str, text: str) -> str:
    """Read names and addresses; a name becomes an address here, since executors may be on other machines."""
    brokers = [each.strip() for each in text.split(",")]
    if wrong := [each for each in brokers if "://" in each and not each.startswith(("tcp://", "ipc://"))]:
        raise OptionError(f"the option {name} is {wrong[0]!r}", "an address begins with tcp:// or ipc://")
    try:
        return pipes_at(brokers)
    except ValueError as error:
        raise OptionError(f"the option {name} is {text!r}", str(error)) from None


def _name(name: str, text: str) -> str:
    if not 1 <= len(text.encode()) <= MAX_NAME:
        raise OptionError(f"the option {name} is {text!r}", f"a name has 1 to {MAX_NAME} bytes")
    return text


def _pipes(name: str, text: str) -> tuple[str, ...]:
    names = [each.strip() for each in text.split(",")] if name == "pipes" else [text]
    if len(set(names)) < len(names):
        raise OptionError(f"the option {name} is {text!r}", "a pipe is named twice")
    return tuple(sorted(_name(name, each) for each in names))


def _one_of(*words: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text.lower() not in words:
            raise OptionError(f"the option {name} is {text!r}", "", "", f"it may be {' or '.join(words)}")
        return text.lower()

    return read


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 19 or not 1 <= int(text) <= LARGEST:
        raise OptionError(f"the option {name} is {text!r}", f"it is a whole number from 1 to {LARGEST}")
    return int(text)


def _starting(name: str, text: str) -> str | int:
    if text.lower() in ("first", "next"):
        return text.lower()
    try:
        return _number(name, text)
    except OptionError:
        raise OptionError(f"the option {name} is {text!r}", "it is first, next, or the number of a chunk") from None


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 86_400:
        raise OptionError(f"the option {name} is {text!r}", "it is a number of seconds, above 0 and up to a day")
    return seconds


def _yes_or_no(name: str, text: str) -> bool:
    return _one_of("true", "false")(name, text) == "true"


READERS: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "broker": ("broker", _broker),
    "pipe": ("pipes", _pipes),
    "pipes": ("pipes", _pipes),
    "group": ("group", _name),
    "payload": ("payload", _one_of("chunks", "events")),
    "startingSequence": ("starting", _starting),
    "maxRowsPerTrigger": ("max_rows", _number),
    "rowsPerPartition": ("rows_per_partition", _number),
    "partitions": ("partitions", _number),
    "failOnDataLoss": ("fail_on_data_loss", _yes_or_no),
    "markSkipped": ("mark_skipped", _yes_or_no),
    "timeout": ("timeout", _seconds),
    "stagingTimeout": ("staging_timeout", _seconds),
}
"""Each option with the field that it becomes, and how its text is read."""
