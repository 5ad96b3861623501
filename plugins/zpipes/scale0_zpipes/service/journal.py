"""The journal of all durable pipes of a broker."""

from __future__ import annotations

from scale0_core.api import MIB, journal
from scale0_zpipes.service.contents import Contents, Recovered
from scale0_zpipes.service.records import AnyRecord


class Journal(journal.Journal[AnyRecord, Recovered]):
    """Keeps the chunks of durable pipes on a disk."""

    def __init__(self, disk: journal.Disk, segment_bytes: int = 64 * MIB, reserve_bytes: int = 0) -> None:
        super().__init__(disk, Contents, segment_bytes, reserve_bytes)
