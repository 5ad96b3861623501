"""What applications use: ``MusicClient``, and how it can fail."""

from scale0_musicquest.client.errors import (
    AmbiguousError,
    DamagedError,
    FileThereError,
    MusicClosedError,
    MusicError,
    MusicStoppedError,
    MusicTimeoutError,
    NoBrokerError,
    NoServerError,
    NotFoundError,
    RefusedError,
    Stage,
    UntoldError,
)
from scale0_musicquest.client.sync import MusicClient, SearchResult, ServerRow, TopRow
from scale0_musicquest.client.transfer import Progress

__all__ = [
    "AmbiguousError",
    "DamagedError",
    "FileThereError",
    "MusicClient",
    "MusicClosedError",
    "MusicError",
    "MusicStoppedError",
    "MusicTimeoutError",
    "NoBrokerError",
    "NoServerError",
    "NotFoundError",
    "Progress",
    "RefusedError",
    "SearchResult",
    "ServerRow",
    "Stage",
    "TopRow",
    "UntoldError",
]
