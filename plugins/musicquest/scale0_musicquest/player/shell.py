"""The interactive player: commands by lines, from a terminal or a script."""

# does I/O: the terminal, and the clock

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

from scale0_core.api import Scale0Error, printable
from scale0_musicquest.client import MusicClient, SearchResult
from scale0_musicquest.player import playlists
from scale0_musicquest.player.deck import Deck, clock_text
from scale0_musicquest.player.queue import QueueError, Repeat, State, Track
from scale0_musicquest.songs import Hit

PROMPT = "> "
WIDTH = 60
LOOK = 0.05

HELP = """\
search TEXT     look for songs; the numbers can be used with add
add TEXT        add the song of this name, else the best that is found; add 2 is number 2 of the last search
del N           take number N out of the list
play [N]        play, or go on; with N, that number
pause           hold still, or go on
next, prev      the next track, the one before
stop            stop
list            show the list
shuffle         mix what is to come
repeat all      after the last comes the first; repeat one, repeat off
save NAME       save the list as a playlist
load NAME       add a playlist to the list
status          show what is played
wait            wait until the list was played
exit            end"""


class Status:
    """The last line of a terminal, which shows what is played; the others scroll above it."""

    def __init__(self, out: TextIO, text: Callable[[], str]) -> None:
        self._out, self._text = out, text
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="musicquest status", daemon=True)

    def __enter__(self) -> Status:
        rows = shutil.get_terminal_size().lines
        self._out.write(f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A")
        self._out.flush()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        rows = shutil.get_terminal_size().lines
        self._out.write(f"\x1b7\x1b[r\x1b[{rows};1H\x1b[2K\x1b8")
        self._out.flush()

    def _run(self) -> None:
        while not self._end.wait(0.5):
            size = shutil.get_terminal_size()
            text = printable(self._text(), size.columns - 1)[: size.columns - 1]
            self._out.write(f"\x1b7\x1b[1;{size.lines - 1}r\x1b[{size.lines};1H\x1b[2K\x1b[7m{text}\x1b[0m\x1b8")
            self._out.flush()


class Shell:
    """Reads commands and has the deck do them."""

    def __init__(self, client: MusicClient, deck: Deck, folder: Path, out: TextIO) -> None:
        self.client, self.deck, self._folder, self._out = client, deck, folder, out
        self._last: tuple[Hit, ...] = ()
        self._commands: dict[str, Callable[[str], None]] = {
            "add": self._add, "del": self._del, "next": self._next, "prev": self._prev, "stop": self._stop,
            "play": self._play, "pause": self._pause, "list": self._list, "search": self._search, "save": self._save,
            "load": self._load, "shuffle": self._shuffle, "repeat": self._repeat, "status": self._status,
            "wait": lambda _: self.wait(), "help": lambda _: self.say(HELP),
        }  # fmt: skip

    def say(self, text: str) -> None:
        """Tell the listener something."""
        self._out.write(text + "\n")
        self._out.flush()

    def run(self, lines: Iterator[str], *, to_the_end: bool) -> None:
        """Do what the lines say; after the last one, wait for the music if that is wanted."""
        self.deck.start()
        for line in lines:
            if line.strip() in ("exit", "quit"):
                return
            self.do(line)
        if to_the_end:
            self.wait()

    def do(self, line: str) -> None:
        """Do one command."""
        word, _, rest = line.strip().partition(" ")
        if word and not word.startswith("#"):
            command = self._commands.get(word.lower())
            try:
                if command is None:
                    self.say(f"there is no {printable(word)}; help shows what there is")
                else:
                    command(rest.strip())
            except (QueueError, ValueError, OSError) as error:
                self.say(printable(str(error), 1000))
            except Scale0Error as error:
                problem = error.problem
                self.say(": ".join(part for part in (problem.what, problem.why) if part))
        self._tell_notes()

    def wait(self) -> None:
        """Wait until the list was played."""
        with self.deck.lock:
            if self.deck.queue.state is State.STOPPED:
                return
        while not self.deck.idle:
            self._tell_notes()
            time.sleep(LOOK)
        self._tell_notes()

    def _tell_notes(self) -> None:
        while self.deck.notes:
            self.say(printable(self.deck.notes.pop(0), 1000))

    # --- finding ------------------------------------------------------------------------------------------------------

    def _search(self, text: str) -> None:
        found = self.client.search(text)
        self._last = found.hits
        for number, hit in enumerate(found.hits, 1):
            song = hit.song
            called = printable(Track.of(hit).label, WIDTH)
            self.say(f"{number:3}  {called:{WIDTH}}  {clock_text(song.duration):>6}  {printable(song.name, 100)}")
        if not found.hits:
            self._nothing(text, found)

    def _nothing(self, text: str, found: SearchResult) -> None:
        meant = (
            f"; did you mean {', '.join(printable(name) for name in found.suggestions)}?" if found.suggestions else ""
        )
        self.say(f"nothing is found for {printable(text)}{meant}")

    def _add(self, text: str) -> None:
        if not text:
            raise QueueError("add what? its name, a part of it, or its number in the last search")
        hit = self._pick(text)
        if hit is not None:
            self.deck.add(Track.of(hit))
            self.say(f"added {printable(hit.song.name, 255)}")

    def _pick(self, text: str) -> Hit | None:
        if text.isdecimal() and 1 <= int(text) <= len(self._last):
            return self._last[int(text) - 1]
        try:
            exact = self.client.search(name=text).hits
        except ValueError:
            exact = ()  # no song can be called so
        if exact:
            return exact[0]
        found = self.client.search(text)
        if not found.hits:
            self._nothing(text, found)
            return None
        if len(found.hits) > 1:
            self.say(f"{len(found.hits)} are found, this is the first; search {printable(text)} shows all")
        return found.hits[0]

    # --- the list -----------------------------------------------------------------------------------------------------

    def _list(self, _: str) -> None:
        with self.deck.lock:
            for number, entry in enumerate(self.deck.queue, 1):
                mark = "*" if entry is self.deck.queue.current else " "
                track = entry.track
                length = clock_text(track.duration) if track.duration else ""
                self.say(f"{mark}{number:3}  {printable(track.label, WIDTH):{WIDTH}}  {length:>6}")
            if not len(self.deck.queue):
                self.say("the list is empty")

    def _del(self, text: str) -> None:
        entry = self.deck.delete(_number(text))
        self.say(f"deleted {printable(entry.track.name, 255)}")

    def _shuffle(self, _: str) -> None:
        with self.deck.lock:
            self.deck.queue.shuffle()

    def _repeat(self, text: str) -> None:
        if text not in [mode.value for mode in Repeat]:
            raise QueueError("repeat all, repeat one or repeat off")
        with self.deck.lock:
            self.deck.queue.repeat = Repeat(text)

    def _save(self, name: str) -> None:
        with self.deck.lock:
            tracks = [entry.track for entry in self.deck.queue]
        self.say(f"saved as {playlists.save(self._folder, name, tracks)}")

    def _load(self, name: str) -> None:
        missing = 0
        for song in playlists.load(self._folder, name):
            hits = self.client.search(name=song).hits
            if hits:
                self.deck.add(Track.of(hits[0]))
            else:
                missing += 1
                self.say(f"nobody has {printable(song, 255)}")
        self.say(f"loaded {printable(name)}" + (f"; {missing} are missing" if missing else ""))

    # --- playing ------------------------------------------------------------------------------------------------------

    def _play(self, text: str) -> None:
        number = _number(text) if text else None
        self._change(lambda: self.deck.queue.play(number))

    def _pause(self, _: str) -> None:
        self._change(self.deck.queue.pause)

    def _next(self, _: str) -> None:
        self._change(self.deck.queue.next)

    def _prev(self, _: str) -> None:
        self._change(self.deck.queue.prev)

    def _stop(self, _: str) -> None:
        self._change(self.deck.queue.stop)

    def _change(self, change: Callable[[], None]) -> None:
        with self.deck.lock:
            change()
            self.deck.tick()

    def _status(self, _: str) -> None:
        self.say(printable(self.deck.status(), 1000))


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:
        raise QueueError("a number of the list is needed; list shows them")
    return int(text)


def terminal_lines() -> Iterator[str]:
    """Give what a person types, with a history to go back in."""
    import readline  # noqa: F401  it changes what input does

    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            return
        except KeyboardInterrupt:
            print()  # noqa: T201


def script_lines() -> Iterator[str]:
    """Give the lines of a script."""
    yield from sys.stdin
