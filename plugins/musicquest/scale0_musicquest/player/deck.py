"""The list, the player and the downloads together: plays while a song comes, and fetches the next one meanwhile."""

# does I/O: threads that download, and files

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from scale0_core.api import Scale0Error
from scale0_musicquest.client import MusicClient, MusicStoppedError, Progress
from scale0_musicquest.player.players import Player, Source
from scale0_musicquest.player.queue import Entry, PlayQueue, State, Track
from scale0_musicquest.songs import Hit

TICK = 0.1
"""Seconds between two looks at what is to be done."""
JOIN_SECONDS = 10.0


class Fetch:
    """A track on its way to a file."""

    def __init__(self, client: MusicClient, track: Track, folder: Path) -> None:
        self._client, self._track = client, track
        self._stop = threading.Event()
        self.error = ""
        self.progress: Progress | None = None
        self._thread: threading.Thread | None = None
        suffix = Path(track.name).suffix
        if track.hit is None:
            self.target = Path(track.file)
            self.source = Source(self.target, suffix, track.duration, self.target.stat().st_size)
            self.source.available = self.source.size
            return
        song = track.hit.song
        # songs may have the same name and be different ones
        self.target = folder / f"{song.sha256[:16]}{suffix}"
        part = self.target.with_name(f"{self.target.name}.part")
        self.source = Source(self.target if self.target.exists() else part, suffix, song.duration, song.size)
        self._thread = threading.Thread(target=self._run, name=f"download {song.name}", daemon=True)
        self._thread.start()

    def is_for(self, hit: Hit) -> bool:
        """Say whether it brings this very song."""
        return self._track.hit is not None and self._track.hit.song.sha256 == hit.song.sha256

    def _run(self) -> None:
        hit = self._track.hit
        assert hit is not None
        try:
            self._client.download(hit, self.target, progress=self._note, stop=self._stop)
        except MusicStoppedError:
            self.source.given_up = True
        except (Scale0Error, OSError) as error:
            self._fail(str(error))
        except Exception as error:  # nobody planned it, and the listener waits all the same
            self._fail(_named(error))
        else:
            # one who has the file open does not mind that it has another name now
            self.source.file = self.target
            self.source.available = self.source.size

    def _fail(self, why: str) -> None:
        self.error = why
        self.source.given_up = True

    def _note(self, progress: Progress) -> None:
        self.progress = progress
        # not all of it: the last is told when the file has its own name
        self.source.available = min(progress.position, max(progress.size - 1, 0))

    @property
    def stopped(self) -> bool:
        """Whether it was told to end."""
        return self._stop.is_set()

    @property
    def ended(self) -> bool:
        """Whether nothing is under way any more."""
        return self._thread is None or not self._thread.is_alive()

    def stop(self) -> None:
        """Have it end soon."""
        self._stop.set()

    def join(self) -> None:
        """Wait until it has ended."""
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)


class Deck:
    """What a listener works with; any thread may use it. ``tick`` does what is to be done, again and again."""

    def __init__(self, client: MusicClient, player: Player, queue: PlayQueue, folder: Path) -> None:
        self.client, self.player, self.queue = client, player, queue
        self.lock = threading.RLock()
        self.notes: list[str] = []
        """What the listener should be told."""
        self.history: list[Track] = []
        """Tracks that were played to their end."""
        self._folder = folder
        self._fetches: dict[Entry, Fetch] = {}
        self._on: Entry | None = None
        """The entry that the player has."""
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Have a thread do what is to be done."""
        self._thread = threading.Thread(target=self._run, name="musicquest player", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(TICK):
            self.tick()

    def close(self) -> None:
        """Stop the sound and the downloads."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        with self.lock:
            self.player.stop()
            fetches = list(self._fetches.values())
        for fetch in fetches:
            fetch.stop()
        for fetch in fetches:
            fetch.join()

    # --- what a listener does -----------------------------------------------------------------------------------------

    def add(self, track: Track) -> None:
        """Put a track at the end of the list, and an advert when one is due."""
        with self.lock:
            due = self.queue.add(track)
        if not due:
            return
        try:
            self._add_advert()
        except Scale0Error as error:
            self.notes.append(f"no advert: {error.problem.what}")
        except OSError as error:
            self.notes.append(f"no advert: {error}")

    def _add_advert(self) -> None:
        advert = self.client.advert()
        if advert is not None:
            name, content = advert
            file = self._folder / f"advert-{name}"
            file.write_bytes(content)
            with self.lock:
                self.queue.add_advert(Track(name, file=str(file)))

    def delete(self, number: int) -> Entry:
        """Take a track out of the list."""
        with self.lock:
            entry = self.queue.delete(number)
            self.tick()
            return entry

    @property
    def idle(self) -> bool:
        """Whether nothing is played and nothing will be."""
        with self.lock:
            return self.queue.state is State.STOPPED

    # --- what is to be done -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do what is to be done: download, begin, hold, go on to the next. After a fault it is stopped."""
        with self.lock:
            try:
                self._do()
            except Exception as error:  # whoever waits for the end of the list would wait forever
                self._fail(error)

    def _do(self) -> None:
        if self.queue.state is State.STOPPED:
            self._silence()
            return
        entry = self.queue.current
        self._stop_others(entry)
        fetch = self._fetch(entry) if entry is not None else None
        if entry is None or fetch is None:
            return
        if self._on is not entry:
            self._begin(entry, fetch)
        elif self.queue.state is State.PAUSED:
            self.player.hold()
        else:
            self.player.go_on()
            self._follow(entry, fetch)
        self._prefetch(fetch)

    def _fail(self, error: Exception) -> None:
        self.notes.append(f"the player failed and was stopped: {_named(error)}")
        self.queue.stop()
        self._on = None
        with suppress(Exception):  # it has failed already
            self.player.stop()

    def _silence(self) -> None:
        if self._on is not None:
            self._on = None
            self.player.stop()

    def _stop_others(self, current: Entry | None) -> None:
        """Stop downloads that are not wanted any more."""
        wanted = (current, self.queue.upcoming)
        for entry, fetch in list(self._fetches.items()):
            if entry not in wanted:
                fetch.stop()
            if fetch.stopped and fetch.ended:
                del self._fetches[entry]

    def _fetch(self, entry: Entry) -> Fetch | None:
        """Give the download of an entry, a new one if need be; None while it cannot begin."""
        found = self._fetches.get(entry)
        if found is not None:
            return None if found.stopped else found
        hit = entry.track.hit
        if hit is not None and any(other.is_for(hit) and not other.ended for other in self._fetches.values()):
            return None  # the same file is being written
        try:
            found = self._fetches[entry] = Fetch(self.client, entry.track, self._folder)
        except OSError as error:
            self._give_up(entry, str(error))
        return found

    def _begin(self, entry: Entry, fetch: Fetch) -> None:
        source = fetch.source
        if fetch.error:
            self._give_up(entry, fetch.error)
        elif not self.player.plays(source):
            self._give_up(entry, f"{self.player.name} does not play {source.suffix or 'it'}")
        elif self.queue.state is State.PLAYING and self.player.ready_for(source):
            try:
                self.player.play(source)
            except OSError as error:
                self._give_up(entry, str(error))
                return
            self._on = entry

    def _follow(self, entry: Entry, fetch: Fetch) -> None:
        if self.player.ended:  # after an error, too, what is there is played
            trouble = fetch.error or self.player.trouble
            if trouble:
                self.notes.append(f"{entry.track.name}: {trouble}")
            else:
                self.history.append(entry.track)
            self._silence()
            self._leave(entry)
            self.queue.ended()

    def _give_up(self, entry: Entry, why: str) -> None:
        self.notes.append(f"{entry.track.name} is left out: {why}")
        self._silence()
        self._leave(entry)
        self.queue.ended()

    def _leave(self, entry: Entry) -> None:
        """Have a download end; it is kept until it has, so that its file has one writer and ``close`` knows of it."""
        fetch = self._fetches.get(entry)
        if fetch is not None:
            fetch.stop()
            if fetch.ended:
                del self._fetches[entry]

    def _prefetch(self, current: Fetch) -> None:
        """Fetch the next track once the current one is there."""
        upcoming = self.queue.upcoming
        if upcoming is not None and current.source.whole and upcoming not in self._fetches:
            self._fetch(upcoming)

    # --- what is shown ------------------------------------------------------------------------------------------------

    def status(self) -> str:
        """Tell in a line what is played and what comes."""
        with self.lock:
            entry = self.queue.current
            if entry is None or self.queue.state is State.STOPPED:
                return f"stopped, {len(self.queue)} in the list"
            track = entry.track
            state = self.queue.state.value if self._on is entry else "waiting for the first part"
            total = f"/{clock_text(track.duration)}" if track.duration else ""
            place = f"{self.queue.position}/{len(self.queue)}"
            line = f"{place} {track.label}  {state} {clock_text(self.player.elapsed)}{total}"
            return line + "".join(self._download_text(found) for found in (entry, self.queue.upcoming) if found)

    def _download_text(self, entry: Entry) -> str:
        fetch = self._fetches.get(entry)
        progress = fetch.progress if fetch is not None else None
        if fetch is None or fetch.source.whole or progress is None or not progress.size:
            return ""
        percent = 100 * progress.received // progress.size
        return f"  [{entry.track.name} {percent} %, {progress.rate / 1e6:.1f} MB/s]"


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def clock_text(seconds: float) -> str:
    """Write seconds as minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
