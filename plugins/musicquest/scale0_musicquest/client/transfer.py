"""A download on its way, without I/O: several holders at once, and others looked for when one is lost.

What comes is handed on as ``Chunk``s, in any order; whoever writes them says how many are written, and as long as too
many are not, nothing more is taken from the holders.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import attrs

from scale0_core.api import Frames, printable, records
from scale0_core.client.kit.sessions import BaseSession
from scale0_musicquest import wire
from scale0_musicquest.client.errors import MusicError, MusicStoppedError, NoServerError, Stage, closed
from scale0_musicquest.client.holders import Holders, HolderSession
from scale0_musicquest.client.session import read_error
from scale0_musicquest.download import Download, Request
from scale0_musicquest.songs import Song

MAX_HOLDERS = 4
"""Holders a song comes from at once."""
AHEAD = 32
"""Chunks that wait to be written; then nothing more is taken."""
LOOK = 0.05
"""Seconds between two looks at what no message tells."""
TRIES = 6
"""Times others are looked for without a byte in between."""
SHOW_EVERY = 0.1

Found = Callable[["tuple[str, ...] | Exception", float], None]
Locate = Callable[[list[str], float, Found], None]
"""Asks the server afresh who holds the song, and tells it who did not."""


class Chunk(NamedTuple):
    """Bytes of a song."""

    offset: int
    data: memoryview


@attrs.frozen
class Progress:
    """How far a download came."""

    song: Song
    position: int
    """Bytes from the beginning that are there without a gap."""
    received: int
    size: int
    rate: float
    """Bytes a second, lately."""
    remaining: float | None
    """Seconds it will take; None as long as nobody knows."""
    holders: tuple[str, ...]


class Meter:
    """Measures the rate, and tells it now and then."""

    def __init__(self, download: Download, tell: Callable[[Progress], None], now: float) -> None:
        self._download, self._tell = download, tell
        self._shown, self._bytes, self.rate = now, download.received, 0.0

    def show(self, now: float, *, at_once: bool = False) -> None:
        """Tell how far it came, unless that was just told."""
        if not (at_once or now - self._shown >= SHOW_EVERY):
            return
        download = self._download
        if now > self._shown:
            current = (download.received - self._bytes) / (now - self._shown)
            self.rate = 0.7 * self.rate + 0.3 * current if self.rate else current
        self._shown, self._bytes = now, download.received
        size = download.song.size
        remaining = 0.0 if download.done else (size - download.received) / self.rate if self.rate else None
        holders = download.active
        self._tell(Progress(download.song, download.position, download.received, size, self.rate, remaining, holders))


class Transfer(BaseSession):
    """One download. It has no connection of its own, but those to its holders.

    :param put: gets each ``Chunk``, the ``Progress`` if ``shows``, and in the end None or an error.
    :param stopped: whether the caller wants it to end.

    Large, since a download is one state machine: its holders, what each was asked for, and what is there.
    """

    def __init__(
        self, holders: Holders, download: Download, endpoints: tuple[str, ...], locate: Locate, *,
        put: Callable[[Chunk | Progress | Exception | None], None], tag: bytes, song: Song | None = None,
        stopped: Callable[[], bool] = lambda: False, shows: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._holders, self._download, self._locate, self._put = holders, download, locate, put
        self._song = song or download.song
        self._name = self._song.name.encode()
        self._tag, self._stopped, self._shows = tag, stopped, shows
        self._meter: Meter | None = None
        self._unread: deque[tuple[HolderSession, Frames, str]] = deque()
        """What holders said, and why they were lost, while too much waits to be written."""
        self._taken = self._written = 0
        self.waiting = False
        self._open: dict[str, HolderSession] = {}
        self._unanswered: dict[str, int] = {}
        """Requests to each holder without an answer."""
        self._spare = list(dict.fromkeys(endpoints))
        """Holders that are known and not asked yet."""
        self._faults: dict[str, str] = {}
        """Holders that failed, and why."""
        self._untold: list[str] = []
        """Holders that failed since others were looked for."""
        self._looking = False
        self._look_at = self._tick_at = 0.0
        self._tries = 0
        self._last_reason = ""
        self.sources: set[str] = set()
        """The holders that bytes came from."""

    # --- what its driver calls ----------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Ask the holders that are known."""
        self._tick_at = now + LOOK
        if self._shows:
            self._meter = Meter(self._download, self._put, now)
            self._meter.show(now, at_once=True)
        self.go_on(now)

    def next_deadline(self) -> float | None:
        """Return when something is due, or None; no holder is late while nobody reads what it says."""
        due = [self._tick_at]
        if not self.waiting:
            if (late := self._download.next_deadline()) is not None:
                due.append(late)
            if self._wants_others:
                due.append(self._look_at)
        return min(due)

    def on_deadline(self, now: float) -> None:
        """Do what is due."""
        if self.ended:
            return
        if self._tick_at <= now:
            self._tick_at = now + LOOK
            if self._stopped():
                what, remedy = f"the download of {self._song.name} was stopped", "start it again"
                self._end(MusicStoppedError(what, "", "what is there is kept", remedy, stage=Stage.DOWNLOAD), now)
                return
        late = self._download.next_deadline()
        if not self.waiting and late is not None and late <= now:
            before = set(self._download.active)
            requests = self._download.on_deadline(now)
            for name in before - set(self._download.active):
                self._dropped(name, "it is silent", now)
            self._send(requests)
        self.go_on(now)

    def stop(self, now: float, error: BaseException | None = None) -> None:
        """End before all of it is there."""
        if not self.ended:
            self._end(closed(), now)

    def _end(self, error: MusicError | None, now: float) -> None:
        self.ended = True
        self._unread.clear()
        for name in list(self._open):
            self._let_go(name, now)
        self._put(error)

    # --- what comes ---------------------------------------------------------------------------------------------------

    def note_written(self, count: int) -> bool:
        """Note that so many more chunks are written; return whether ``go_on`` is waited for. For any thread."""
        self._written += count
        return self.waiting

    def heard(self, holder: HolderSession, frames: Frames, now: float) -> None:
        """Take what a holder sent."""
        self._unread.append((holder, frames, ""))
        self.go_on(now)

    def lost(self, holder: HolderSession, why: str, now: float) -> None:
        """Note that a holder is lost."""
        self._unread.append((holder, (), why))
        self.go_on(now)

    def go_on(self, now: float) -> None:
        """Take what has come, unless too much waits to be written; then do what follows from it."""
        while self._unread and not self.ended and not self._is_full():
            holder, frames, why = self._unread.popleft()
            if self._open.get(holder.address) is not holder:
                continue
            if why:
                self._lose(holder.address, why, now)
            else:
                self._take(holder.address, frames, now)
        if self.ended or self.waiting:
            return
        self._look(now)
        self._take_up(now)
        if self._meter is not None:
            self._meter.show(now, at_once=self._download.done)
        if self._download.done and not self.ended:
            self._end(None, now)

    def _is_full(self) -> bool:
        # looked at twice: what is written meanwhile is seen here, or its writer sees that somebody waits
        self.waiting = self._taken - self._written >= AHEAD
        if self.waiting:
            self.waiting = self._taken - self._written >= AHEAD
        return self.waiting

    def _take(self, name: str, frames: Frames, now: float) -> None:
        if len(frames) < 3 or frames[0] != wire.HEADER or frames[2] != self._tag:
            return  # of somebody who used this connection before
        self._unanswered[name] -= 1
        word = bytes(frames[1][: wire.MAX_TAG])
        try:
            if word != wire.DATA or len(frames) != 5:
                self._lose(name, self._refusal(word, frames), now)
                return
            offset, data = wire.read_number(bytes(frames[3])), memoryview(frames[4])
        except records.MalformedError as error:
            self._lose(name, str(error), now)
            return
        download = self._download
        if download.wanted(name, offset, len(data)):
            self._put(Chunk(offset, data))
            self._taken += 1
            self._tries = 0
            self.sources.add(name)
        requests = download.data(name, offset, len(data), now)
        if name not in download.active:
            self._dropped(name, "it has another song under this name", now)
        self._send(requests)

    @staticmethod
    def _refusal(word: bytes, frames: Frames) -> str:
        if word == wire.NOT_FOUND:
            return "it does not have the song"
        if word == wire.ERROR:
            rest = tuple(bytes(frame[:1000]) for frame in frames[3:])
            code, reason = read_error(wire.Message((), True, word, b"", rest))
            return f"it refuses with code {code}: {reason}"
        return f"it answers with {printable(word)}"

    # --- holders ------------------------------------------------------------------------------------------------------

    def _send(self, requests: list[Request]) -> None:
        for name, offset, size in requests:
            holder = self._open.get(name)
            if holder is not None:
                place = (wire.number(offset), wire.number(size))
                holder.send(wire.extended(wire.FETCH, self._tag, self._name, *place))
                self._unanswered[name] += 1

    def _take_up(self, now: float) -> None:
        """Ask holders that are known, as many as should be asked at once."""
        while self._spare and len(self._open) < MAX_HOLDERS and not self._download.done:
            name = self._spare.pop(0)
            if name in self._open:
                continue
            try:
                self._open[name] = self._holders.take(name, self)
            except NoServerError as error:
                self._faults[name] = error.problem.why
                self._untold.append(name)
                continue
            self._unanswered[name] = 0
            self._send(self._download.add(name, now))

    def _lose(self, name: str, why: str, now: float) -> None:
        requests = self._download.lost(name, now)
        self._dropped(name, why, now)
        self._send(requests)

    def _dropped(self, name: str, why: str, now: float) -> None:
        self._faults[name] = why
        self._untold.append(name)
        self._let_go(name, now)

    def _let_go(self, name: str, now: float) -> None:
        holder = self._open.pop(name, None)
        if holder is not None:
            self._holders.give(holder, now, clean=not self._unanswered.pop(name))

    # --- others -------------------------------------------------------------------------------------------------------

    @property
    def _wants_others(self) -> bool:
        if self._looking or self._spare:
            return False
        return self._download.needs_holders or bool(self._untold and self._tries < TRIES)

    def _look(self, now: float) -> None:
        """Look for others when one was lost; give up when none is found again and again."""
        if not self._wants_others or now < self._look_at:
            return
        if self._tries >= TRIES:
            self._end(self._nobody(), now)
            return
        self._tries += 1
        told, self._untold = self._untold, []
        self._looking = True
        self._locate(told, now, self._found)

    def _found(self, found: tuple[str, ...] | Exception, now: float) -> None:
        self._looking = False
        self._look_at = now + LOOK * 2**self._tries
        if isinstance(found, Exception):
            self._last_reason = str(found)
        else:
            fresh = [name for name in found if name not in self._faults]
            # without others, one that was busy or started anew may have it again
            self._spare = fresh or ([] if self._download.active else list(found))
        if not self.ended:
            self.go_on(now)

    def _nobody(self) -> MusicError:
        whys = [f"{name}: {why}" for name, why in self._faults.items()]
        if self._last_reason:
            whys.append(f"looking for others: {self._last_reason}")
        return NoServerError(
            f"nobody is left who sends {self._song.name}", "; ".join(whys) or "no holder is known",
            f"{self._download.position} of {self._song.size} bytes are there", "start it again later: it goes on there",
            stage=Stage.DOWNLOAD,
        )  # fmt: skip
