"""What a stream's checkpoint is of: noted beside what Spark keeps there, so that no other stream goes on from it.

Spark itself takes the checkpoint of one folder for another's without a word, and fails at the first batch, or counts
from the wrong place, when a pipe is another one.
"""
# does I/O: it reads and writes the notes

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scale0_core.api import records
from scale0_core.cli.kit import UsageError

from .tables import beside

NOTE = "scale0.json"

Note = Mapping[str, Any]
"""What the state of a stream depends on: `folder`, or `pipe`, `address` and `group`; and for some tables more."""

UNNOTED: Note = {"half_life_days": 7.0}
"""What sums were made with before there were notes, and nobody could choose."""

ANEW = "go on as before; or begin anew with another folder for --checkpoints, and for --out"


def check_checkpoint(checkpoint: Path, note: Note) -> None:
    """Refuse a checkpoint that is of something else; one without a batch is of nothing yet."""
    found = _source_in(checkpoint)
    if found is None:
        _forget_beginning(checkpoint)
        return
    before = _read(checkpoint)
    if before is None:  # of a version that made no notes, or it was removed
        if not note_fits(found, note):
            raise _refused(checkpoint, found, in_words(note), ANEW)
        before = {**note, **{key: value for key, value in UNNOTED.items() if key in note}}
    if any(before.get(key, value) != value for key, value in note.items()) or before.keys() - note.keys():
        raise _refused(checkpoint, in_words(before), in_words(note), _remedy(checkpoint, before, note))


def _forget_beginning(checkpoint: Path) -> None:
    """Remove what a stream left that was killed while it planned its first batch: Spark wants the folder empty."""
    with contextlib.suppress(OSError):
        left = [*(checkpoint / "offsets").iterdir()]
        if all(path.name.startswith(".") for path in left):
            for path in left:
                path.unlink()


def note_down(checkpoint: Path, note: Note) -> None:
    """Note what a checkpoint is of."""
    with beside(checkpoint / NOTE) as file:
        file.write(json.dumps(note, ensure_ascii=False).encode())


def in_words(note: Note) -> str:
    """Write for people what a checkpoint is of."""
    source = (
        f"the pipe {note['pipe']} at {note.get('address')}, read by the group {note.get('group')}"
        if "pipe" in note
        else f"the files in {note.get('folder')}"
    )
    half_life = note.get("half_life_days")
    return source if half_life is None else f"{source}, with a half-life of {half_life} days"


def note_fits(found: str, note: Note) -> bool:
    """Tell whether a source that was found in Spark's own files may be that of a note."""
    return found == (f"the pipe {note['pipe']}" if "pipe" in note else "files")


def _refused(checkpoint: Path, before: str, now: str, remedy: str) -> UsageError:
    return UsageError(
        f"the checkpoint of {checkpoint.name} in {checkpoint.parent} is of {before}", f"this stream is of {now}",
        "no Spark session was started", remedy,
    )  # fmt: skip


def _remedy(checkpoint: Path, before: Note, note: Note) -> str:
    if "pipe" in note and {**before, "address": ""} == {**note, "address": ""}:
        return f"{ANEW}; or, if it is the same pipe at another address, write that into {checkpoint / NOTE}"
    return ANEW


def _read(checkpoint: Path) -> Note | None:
    with contextlib.suppress(OSError, ValueError):
        note = records.from_json((checkpoint / NOTE).read_bytes())
        return note if isinstance(note, dict) else None
    return None


def _source_in(checkpoint: Path) -> str | None:
    """Give where the events of a checkpoint come from, in words; None if it has no batch yet, or cannot be read."""
    with contextlib.suppress(OSError, ValueError, AttributeError, LookupError, TypeError):
        batches = [path for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()]
        newest = max(batches, key=lambda path: int(path.name))
        offset = records.from_json(newest.read_bytes().splitlines()[-1])
        return "files" if "logOffset" in offset else f"the pipe {', '.join(offset.keys())}"
    return None
