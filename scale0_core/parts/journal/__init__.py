"""A group-commit journal: many records, one write and one fsync; what was confirmed survives a crash at any moment."""

from scale0_core.parts.journal.committer import Committer, Told
from scale0_core.parts.journal.disk import Disk, FolderDisk
from scale0_core.parts.journal.journal import Journal
from scale0_core.parts.journal.recovery import OtherVersionError
from scale0_core.parts.journal.segments import FRAME, Contents, Frame, Segments

__all__ = [
    "FRAME",
    "Committer",
    "Contents",
    "Disk",
    "FolderDisk",
    "Frame",
    "Journal",
    "OtherVersionError",
    "Segments",
    "Told",
]
