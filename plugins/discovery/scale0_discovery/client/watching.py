"""Watching without a gap: the recipe of the README as a state machine without I/O.

::

    watch = Watch("echo")
    # connect a SUB socket, subscribe to watch.topics in this order, and a DEALER socket; then until the end:
    #   send what request() gives, unless it is None or an answer is still awaited
    #   changes = watch.answered(frames)    for what the DEALER receives
    #   changes = watch.published(frames)   for what the SUB receives

Every change of a provider comes out exactly once and in order, also after a lost connection or a restart of the broker.
Where the broker can no longer tell what happened in between, the difference comes out as changes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from scale0_core.api import Frames, records

Row = Mapping[str, Any]
Key = tuple[str, str, str]


class RefusedError(Exception):
    """The service answered with an error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code}: {reason}")
        self.code, self.reason = code, reason


class Watch:
    """Follows one service, or all of them; ``known`` holds the providers as they are now."""

    def __init__(self, service: str | None = None, *, revision: int | None = None, epoch: str | None = None) -> None:
        self.service = service
        self.known: dict[Key, Row] = {}
        self.revision = revision
        self.epoch = epoch
        self._pages: list[Row] | None = None
        self._list_revision = 0
        self._list_epoch = ""
        self._after: list[str] | None = None
        self._behind = True
        self._heard: tuple[str | None, int] = (None, 0)

    @property
    def topics(self) -> tuple[bytes, bytes]:
        """What to subscribe to. The bookmarks come last: when the first is there, the changes are heard, too."""
        return (b"service/" if self.service is None else f"service/{self.service}/".encode(), b"bookmark/")

    def request(self) -> Frames | None:
        """Give what is to be asked; None when nothing is missing."""
        if not self._behind:
            return None
        options: dict[str, Any] = {} if self.service is None else {"service": self.service}
        if self.revision is None:
            options |= {} if self._after is None else {"after": self._after}
            return (b"LIST", json.dumps(options).encode())
        options |= {"revision": self.revision} | ({} if self.epoch is None else {"epoch": self.epoch})
        return (b"CHANGES", json.dumps(options).encode())

    def check(self) -> None:
        """Ask for what may have been missed, such as when nothing has been heard for long."""
        self._behind = True

    def answered(self, frames: Frames) -> list[Row]:
        """Take the answer to a request, and give the changes that it tells of."""
        if frames[0] == b"ERROR":
            code = int(frames[1])
            if code != 410:
                raise RefusedError(code, frames[2].decode(errors="replace"))
            self.revision = self._pages = self._after = None
            return []
        if (frames[0] == b"LIST") != (self.revision is None):
            return []  # late, the request was repeated meanwhile
        answer = records.object_from(frames[1])
        return self._listed(answer) if frames[0] == b"LIST" else self._caught_up(answer)

    def published(self, frames: Frames) -> list[Row]:
        """Take a message that was published, and give the changes that it tells of."""
        message = records.object_from(frames[1])
        is_change = message["kind"] != "bookmark"
        if is_change and not self._concerns(message):
            return []
        seen = self.revision
        if self._behind or seen is None or message["epoch"] != self.epoch:
            # the answer that is awaited has it; or it does not, and is asked for next
            self._behind, self._heard = True, (message["epoch"], message["revision"])
            return []
        if message["revision"] <= seen:
            return []
        if not is_change or not self._follows(message, seen):
            self._behind = True
            return []
        self.revision = message["revision"]
        return [self._apply(message)]

    def _follows(self, change: Row, seen: int) -> bool:
        """Tell whether nothing that concerns us can have happened in between."""
        return bool(change["revision"] == seen + 1 or (self.service is not None and change["previous"] <= seen))

    def _missed(self) -> bool:
        """Tell whether something was published that no answer has told of yet."""
        epoch, revision = self._heard
        return epoch == self.epoch and revision > (self.revision or 0)

    def _concerns(self, message: Row) -> bool:
        # a topic is a prefix: service/a/ is one of the service a/b, too
        return self.service is None or message["provider"]["service"] == self.service

    def _caught_up(self, answer: Row) -> list[Row]:
        assert self.revision is not None
        self.epoch = answer["epoch"]
        changes = [change for change in answer["changes"] if change["revision"] > self.revision]
        self.revision = max(self.revision, answer["revision"])
        self._behind = answer["more"] or self._missed()
        return [self._apply(change) for change in changes]

    def _listed(self, answer: Row) -> list[Row]:
        if self._pages is None or answer["epoch"] != self._list_epoch:
            # the revision of the first page: what changed while the others came is asked for afterwards
            self._pages, self._list_revision, self._list_epoch = [], answer["revision"], answer["epoch"]
        self._pages += answer["providers"]
        self._after = answer["more"]
        if self._after is not None:
            return []
        pages, self._pages = self._pages, None
        self.revision, self.epoch = self._list_revision, self._list_epoch
        self._behind = answer["revision"] != self.revision or self._missed()
        return self._difference({_key(row): row for row in pages})

    def _difference(self, now: Mapping[Key, Row]) -> list[Row]:
        """Tell a list from what was known before."""
        gone = [("removed", row) for key, row in self.known.items() if key not in now]
        new = [
            ("changed" if key in self.known else "added", row) for key, row in now.items() if self.known.get(key) != row
        ]
        return [self._apply({"kind": kind, "revision": self.revision, "provider": row}) for kind, row in gone + new]

    def _apply(self, change: Row) -> Row:
        row = change["provider"]
        if change["kind"] == "removed":
            self.known.pop(_key(row), None)
        else:
            self.known[_key(row)] = row
        return change


def _key(row: Row) -> Key:
    return (row["service"], row["provider"], row["kind"])
