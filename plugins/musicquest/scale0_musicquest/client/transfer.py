"""A download on its way: a connection to each holder, and others looked for when one is lost."""

# does I/O: sockets and the clock

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

import attrs
import zmq

from scale0_core.api import printable, records
from scale0_core.client.kit.link import Link, wait
from scale0_musicquest import wire
from scale0_musicquest.client.errors import MusicError, MusicStoppedError, NoServerError, Stage, closed
from scale0_musicquest.client.link import Links, new_tag
from scale0_musicquest.client.session import read_error
from scale0_musicquest.client.storage import Sink
from scale0_musicquest.download import Download, Request
from scale0_musicquest.songs import Song

MAX_HOLDERS = 4
"""Holders a song comes from at once."""
BATCH = 16
"""Chunks taken from a holder in one turn."""
LOOK = 0.05
"""Seconds between two looks at what no socket tells."""
TRIES = 6
"""Times others are looked for without a byte in between."""
SHOW_EVERY = 0.1

Locate = Callable[[Song, list[str]], "Future[tuple[str, ...]]"]
"""Asks the server afresh who holds a song, and tells it who did not."""


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

    def __init__(self, download: Download, tell: Callable[[Progress], None] | None, now: float) -> None:
        self._download, self._tell = download, tell
        self._shown, self._bytes, self.rate = now, download.received, 0.0

    def show(self, now: float, *, at_once: bool = False) -> None:
        """Tell how far it came, unless that was just told."""
        if self._tell is None or not (at_once or now - self._shown >= SHOW_EVERY):
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


class Transfer:
    """Runs one download on the thread that calls."""

    def __init__(
        self, links: Links, download: Download, sink: Sink, locate: Locate, *, song: Song | None = None,
        stop: threading.Event | None = None, tell: Callable[[Progress], None] | None = None,
    ) -> None:  # fmt: skip
        self._links, self._download, self._sink, self._locate = links, download, sink, locate
        self._song = song or download.song
        self._stop = stop
        self._tag = new_tag()
        self._open: dict[str, Link] = {}
        self._unanswered: dict[str, int] = {}
        """Requests to each holder without an answer."""
        self._name = self._song.name.encode()
        self._spare: list[str] = []
        """Holders that are known and not asked yet."""
        self._faults: dict[str, str] = {}
        """Holders that failed, and why."""
        self._untold: list[str] = []
        """Holders that failed since others were looked for."""
        self._looking: Future[tuple[str, ...]] | None = None
        self._look_at = 0.0
        self._tries = 0
        self._last_reason = ""
        self._tell = tell
        self.sources: set[str] = set()
        """The holders that bytes came from."""

    def run(self, holders: tuple[str, ...]) -> None:
        """Download all of it, or raise."""
        now = time.monotonic()
        meter = Meter(self._download, self._tell, now)
        self._spare = list(dict.fromkeys(holders))
        try:
            self._send(self._download.start(now), now)
            self._take_up(now)
            meter.show(now, at_once=True)
            while not self._download.done:
                self._check()
                self._turn()
                meter.show(time.monotonic())
            meter.show(time.monotonic(), at_once=True)
        finally:
            for name in list(self._open):
                self._let_go(name)

    def _check(self) -> None:
        if self._links.closed:
            raise closed()
        if self._stop is not None and self._stop.is_set():
            raise MusicStoppedError(
                f"the download of {self._song.name} was stopped", "", "what is there is kept", "start it again",
                stage=Stage.DOWNLOAD,
            )  # fmt: skip

    def _turn(self) -> None:
        self._wait()
        now = time.monotonic()
        for name, link in list(self._open.items()):
            broken = link.look_for_breaks()  # before the messages, so that all that was said before is among them
            more = self._receive(name, link)
            if broken and not more and self._open.get(name) is link:
                self._lose(name, "the connection broke" if link.up else "nobody listens there", time.monotonic())
        due = self._download.next_deadline()
        if due is not None and due <= now:
            before = set(self._download.active)
            requests = self._download.on_deadline(now)
            for name in before - set(self._download.active):
                self._dropped(name, "it is silent")
            self._send(requests, now)
        self._look(now)
        if self._spare:
            self._take_up(now)

    def _wait(self) -> None:
        seconds = LOOK if self._looking is not None or not self._open else 5 * LOOK
        due = self._download.next_deadline()
        if due is not None:
            seconds = min(seconds, max(due - time.monotonic(), 0.0))
        wait([item for link in self._open.values() for item in link.polled], seconds)

    # --- one holder ---------------------------------------------------------------------------------------------------

    def _receive(self, name: str, link: Link) -> bool:
        """Take what a holder sent; tell whether there may be more."""
        receive = link.socket.recv_multipart
        for _ in range(BATCH):
            if self._open.get(name) is not link:
                return False
            try:
                frames = receive(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return False
            self._take(name, [frame.buffer for frame in frames])
        return True

    def _take(self, name: str, frames: list[memoryview]) -> None:
        now = time.monotonic()
        if len(frames) < 3 or frames[0] != wire.HEADER or frames[2] != self._tag:
            return  # of somebody who used this connection before
        self._unanswered[name] -= 1
        word = bytes(frames[1][: wire.MAX_TAG])
        try:
            if word != wire.DATA or len(frames) != 5:
                self._lose(name, self._refusal(word, frames), now)
                return
            offset, data = wire.read_number(bytes(frames[3])), frames[4]
        except records.MalformedError as error:
            self._lose(name, str(error), now)
            return
        download = self._download
        if download.wanted(name, offset, len(data)):
            self._sink.put(offset, data)
            self._tries = 0
            self.sources.add(name)
        requests = download.data(name, offset, len(data), now)
        if name not in download.active:
            self._dropped(name, "it has another song under this name")
        self._send(requests, now)

    @staticmethod
    def _refusal(word: bytes, frames: list[memoryview]) -> str:
        if word == wire.NOT_FOUND:
            return "it does not have the song"
        if word == wire.ERROR:
            rest = tuple(bytes(frame[:1000]) for frame in frames[3:])
            code, reason = read_error(wire.Message((), True, word, b"", rest))
            return f"it refuses with code {code}: {reason}"
        return f"it answers with {printable(word)}"

    def _send(self, requests: list[Request], now: float) -> None:
        for holder, offset, size in requests:
            link = self._open.get(holder)
            if link is not None:
                link.send(
                    wire.extended(wire.FETCH, self._tag, self._name, wire.number(offset), wire.number(size))
                )  # fmt: skip
                self._unanswered[holder] += 1

    def _take_up(self, now: float) -> None:
        """Ask holders that are known, as many as should be asked at once."""
        while self._spare and len(self._open) < MAX_HOLDERS:
            name = self._spare.pop(0)
            if name in self._open:
                continue
            try:
                self._open[name] = self._links.take(name)
            except NoServerError as error:
                self._faults[name] = error.problem.why
                self._untold.append(name)
                continue
            self._unanswered[name] = 0
            self._send(self._download.add(name, now), now)

    def _lose(self, name: str, why: str, now: float) -> None:
        requests = self._download.lost(name, now)
        self._dropped(name, why)
        self._send(requests, now)

    def _dropped(self, name: str, why: str) -> None:
        self._faults[name] = why
        self._untold.append(name)
        self._let_go(name)

    def _let_go(self, name: str) -> None:
        link = self._open.pop(name, None)
        if link is not None:
            self._links.give(link, clean=not self._unanswered.pop(name) and not link.outbox)

    # --- others -------------------------------------------------------------------------------------------------------

    def _look(self, now: float) -> None:
        """Look for others when one was lost; give up when none is found again and again."""
        if self._looking is None:
            if (self._untold or self._download.needs_holders) and not self._spare and now >= self._look_at:
                self._tries += 1
                if self._tries > TRIES:
                    if self._download.needs_holders:
                        raise self._nobody()
                    return
                told, self._untold = self._untold, []
                self._looking = self._locate(self._song, told)
        elif self._looking.done():
            found, self._looking = self._looking, None
            self._look_at = now + LOOK * 2**self._tries
            error = found.exception()
            if error is not None:
                self._last_reason = str(error)
            else:
                fresh = [name for name in found.result() if name not in self._faults]
                # without others, one that was busy or started anew may have it again
                self._spare = fresh or ([] if self._download.active else list(found.result()))

    def _nobody(self) -> MusicError:
        whys = [f"{name}: {why}" for name, why in self._faults.items()]
        if self._last_reason:
            whys.append(f"looking for others: {self._last_reason}")
        return NoServerError(
            f"nobody is left who sends {self._song.name}", "; ".join(whys) or "no holder is known",
            f"{self._download.position} of {self._song.size} bytes are there", "start it again later: it goes on there",
            stage=Stage.DOWNLOAD,
        )  # fmt: skip
