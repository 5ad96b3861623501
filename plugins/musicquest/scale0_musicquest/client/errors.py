"""How looking for songs and downloading them can fail.

::

    MusicError (CallError)       has the stage that was reached, and the server's code or 0
    ├── NoBrokerError            nobody answers at the broker's address
    ├── NoServerError            the broker knows no server, or none answers (503)
    ├── NotFoundError            nobody has this song
    ├── AmbiguousError           several songs have this name; all of them are in ``hits``
    ├── FileThereError           the file is there already, with other content
    ├── RefusedError             a server does not do what it was asked; its code and reason are told
    ├── MusicTimeoutError        the time was over; the stage says where (408)
    ├── DamagedError             what came is not the song that was asked for
    ├── UntoldError              an original server has it, which told neither size nor digest
    ├── MusicStoppedError        the caller wanted it to end
    └── MusicClosedError         the client was closed, or belongs to another process

What has a meaning for every client is also an error of ``scale0_core.client``: ``except CallTimedOutError`` catches a
MusicTimeoutError.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from scale0_core.api import Scale0Error, printable
from scale0_core.client.kit import errors as kit
from scale0_musicquest.songs import Hit

__all__ = [
    "AmbiguousError", "DamagedError", "FileThereError", "MusicClosedError", "MusicError", "MusicStoppedError",
    "MusicTimeoutError", "NoBrokerError", "NoServerError", "NotFoundError", "RefusedError", "Stage", "UntoldError",
]  # fmt: skip

# the exit codes of the command line, which has no other use for plugins
_exit = type(Scale0Error.exit_code)
USAGE, DATA = map(_exit, (64, 65))

START_BROKER = "is a broker with the plugin musicquest-broker at this address? choose one: --broker NAME|ADDRESS"


class Stage(kit.AnyStage):
    """How far something came."""

    BROKER = "asking the broker for a server"
    GREETING = "greeting the server"
    ANSWER = "waiting for the server's answer"
    HOLDER = "asking a holder"
    DOWNLOAD = "downloading"
    CHECK = "checking the file"
    STORE = "writing the file"
    CLOSED = "closed"


class MusicError(kit.CallError):
    """Something could not be done as asked."""


class NoBrokerError(MusicError, kit.NoBrokerError):
    """Nobody answers at the broker's address."""


class NoServerError(MusicError, kit.UnavailableError):
    """The broker knows no server, or the server does not answer."""


class NotFoundError(MusicError):
    """Nobody has this song."""


class AmbiguousError(MusicError):
    """Several songs have this name, or none of them is the chosen one; ``hits`` has them all, sorted by digest."""

    exit_code = USAGE

    def __init__(self, what: str, hits: tuple[Hit, ...], note: str = "") -> None:
        self.hits = hits
        choices = [_choice(number, hit) for number, hit in enumerate(hits, 1)]
        remedy = "choose one: --digest, --number or --server"
        why = "\n".join(filter(None, (*choices, note)))
        super().__init__(what, why, "nothing was downloaded", remedy, stage=Stage.ANSWER)

    def details(self) -> dict[str, Any]:
        """Return the songs."""
        return {"choices": [{"number": number, **hit.to_json()} for number, hit in enumerate(self.hits, 1)]}


def _choice(number: int, hit: Hit) -> str:
    song, holders = hit.song, ", ".join(holder.endpoint for holder in hit.holders)
    label = " by ".join(printable(text) for text in (song.title, song.artist) if text)
    return f"{number}: {song.sha256[:12]}, {song.size} bytes{', ' + label if label else ''}, at {holders}"


class FileThereError(MusicError):
    """The file is there already, with other content; nothing was overwritten."""

    exit_code = DATA

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path} is there already", "it is another file, or another version of the song", "it was left as it is",
            "choose another file (--to), or overwrite it (--force)", stage=Stage.STORE,
        )  # fmt: skip


class RefusedError(MusicError):
    """A server or the broker does not do what it was asked."""


class MusicTimeoutError(MusicError, kit.CallTimedOutError):
    """The time was over; ``stage`` says how far it came."""


class DamagedError(MusicError):
    """What came is not the song that was asked for."""

    exit_code = DATA


class UntoldError(MusicError):
    """Only servers of the original form have it, which tell neither the size nor the digest of a song."""

    exit_code = DATA


class MusicStoppedError(MusicError):
    """The caller wanted a download to end; what is there is kept."""


class MusicClosedError(MusicError, kit.ClosedError):
    """The client was closed, or belongs to another process."""


def closed() -> MusicClosedError:
    """Make the error for a client that was closed."""
    return MusicClosedError("this client is closed", "", "nothing was asked", "make another one", stage=Stage.CLOSED)


def forked() -> MusicClosedError:
    """Make the error for a client in a forked child."""
    what, remedy = "this client belongs to another process", "make another one after the fork"
    return MusicClosedError(what, kit.FORKED, "nothing was asked", remedy, stage=Stage.CLOSED)


def refused(who: str, code: int, reason: str, stage: Stage) -> RefusedError:
    """Make the error for what a server or the broker refused."""
    what = f"{who} refuses with code {code}"
    return RefusedError(what, printable(reason, 1000), "nothing was done", "", stage=stage, code=code)


def unreadable(who: str, reason: str, stage: Stage) -> MusicError:
    """Make the error for an answer that makes no sense."""
    remedy = "is it of another version, or something else altogether?"
    return MusicError(
        f"the answer of {who} cannot be read", printable(reason, 300), "it is ignored", remedy, stage=stage
    )
