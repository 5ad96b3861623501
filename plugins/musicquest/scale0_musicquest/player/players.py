"""What makes the sound: a program that is found on this machine, or nothing at all but in real time.

A program gets the song by its standard input while it comes, so playing starts with the first part. It is held by
SIGSTOP. A program that needs the whole file gets its path, once it is there.
"""

# does I/O: processes, a thread that feeds them, and the clock

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import attrs

BLOCK = 64 * 1024
LOOK = 0.05
"""Seconds between two looks whether more of a song is there."""
OPEN_TRIES = 20
END_SECONDS = 2.0


class Source:
    """A song in a file that may still grow."""

    def __init__(self, file: Path, suffix: str, duration: float, size: int) -> None:
        self.file, self.suffix, self.duration, self.size = file, suffix.lower(), duration, size
        self.available = 0
        """Bytes from the beginning that are there."""
        self.given_up = False
        """Whether no more will come."""

    def open(self) -> BinaryIO:
        """Open the file, which has another name from the moment it is whole."""
        for _ in range(OPEN_TRIES):
            with contextlib.suppress(FileNotFoundError):
                return self.file.open("rb")
            time.sleep(LOOK)
        return self.file.open("rb")

    @property
    def whole(self) -> bool:
        """Whether all of it is there."""
        return self.available >= self.size


class Player(ABC):
    """Plays one song at a time."""

    name = ""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._source: Source | None = None
        self._began = self._held_at = 0.0
        self._held = False

    def ready_for(self, source: Source) -> bool:
        """Say whether enough of a song is there to begin."""
        return source.available >= min(source.size, BLOCK)

    def plays(self, source: Source) -> bool:
        """Say whether it can play such a file."""
        return True

    def play(self, source: Source) -> None:
        """Begin with a song; what was on is ended."""
        self.stop()
        self._source, self._began, self._held = source, self._clock(), False
        self._start(source)

    def hold(self) -> None:
        """Hold still."""
        if self._source is not None and not self._held:
            self._held, self._held_at = True, self._clock()
            self._signal(held=True)

    def go_on(self) -> None:
        """Go on after holding still."""
        if self._source is not None and self._held:
            self._held = False
            self._began += self._clock() - self._held_at
            self._signal(held=False)

    def stop(self) -> None:
        """End what is on."""
        if self._source is not None:
            self._source = None
            self._end()

    @property
    def elapsed(self) -> float:
        """Seconds that the song has been on."""
        if self._source is None:
            return 0.0
        seconds = (self._held_at if self._held else self._clock()) - self._began
        return min(seconds, self._source.duration) if self._source.duration else seconds

    @property
    def ended(self) -> bool:
        """Whether the song was played to its end."""
        return self._source is not None and not self._held and self._has_ended(self._source)

    @property
    def trouble(self) -> str:
        """What went wrong with the song that ended; empty when nothing did."""
        return ""

    @abstractmethod
    def _start(self, source: Source) -> None: ...

    @abstractmethod
    def _signal(self, *, held: bool) -> None: ...

    @abstractmethod
    def _end(self) -> None: ...

    @abstractmethod
    def _has_ended(self, source: Source) -> bool: ...


class NullPlayer(Player):
    """Plays silently, as long as the song is."""

    name = "null"

    def _start(self, source: Source) -> None:
        pass

    def _signal(self, *, held: bool) -> None:
        pass

    def _end(self) -> None:
        pass

    def _has_ended(self, source: Source) -> bool:
        return (source.whole or source.given_up) and self._clock() - self._began >= source.duration


@attrs.frozen
class Program:
    """A program that plays, and how it is called."""

    name: str
    arguments: tuple[str, ...]
    """What follows its name; without ``-`` among them, the path follows."""
    suffixes: frozenset[str] = frozenset()
    """What it can play; all, when it is empty."""

    @property
    def by_pipe(self) -> bool:
        """Whether it reads its standard input."""
        return "-" in self.arguments


PROGRAMS = (
    Program("mpv", ("--no-video", "--no-terminal", "--really-quiet", "-")),
    Program("ffplay", ("-nodisp", "-autoexit", "-loglevel", "quiet", "-i", "-")),
    Program("aplay", ("-q", "-"), frozenset({".wav", ".au"})),
    Program("paplay", (), frozenset({".wav", ".flac", ".ogg"})),
)


class ProgramPlayer(Player):
    """Plays by a program, one process for each song."""

    def __init__(self, program: Program, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.name = program.name
        self._program, self._path = program, path
        self._process: subprocess.Popen[bytes] | None = None

    def plays(self, source: Source) -> bool:
        """Say whether it can play such a file."""
        return not self._program.suffixes or source.suffix in self._program.suffixes

    def ready_for(self, source: Source) -> bool:
        """Say whether enough of a song is there to begin."""
        return super().ready_for(source) if self._program.by_pipe else source.whole

    @property
    def trouble(self) -> str:
        """What went wrong with the song that ended."""
        code = self._process.poll() if self._process is not None else None
        return f"{self.name} ended with {code}" if code else ""

    def _start(self, source: Source) -> None:
        command = [self._path, *self._program.arguments]
        if not self._program.by_pipe:
            command.append(str(source.file))
        self._process = subprocess.Popen(  # noqa: S603  a player that was found by its name
            command, stdin=subprocess.PIPE if self._program.by_pipe else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the shell
        )  # fmt: skip
        if self._program.by_pipe:
            feeding = threading.Thread(target=self._feed, args=(self._process, source), daemon=True)
            feeding.start()

    def _feed(self, process: subprocess.Popen[bytes], source: Source) -> None:
        """Write the song to the program's standard input as it comes."""
        assert process.stdin is not None
        given = 0
        with contextlib.suppress(OSError), process.stdin, source.open() as file:
            while process.poll() is None and given < source.size:
                block = file.read(min(BLOCK, source.available - given))
                if block:
                    process.stdin.write(block)
                    given += len(block)
                elif source.given_up:
                    return
                else:
                    time.sleep(LOOK)

    def _signal(self, *, held: bool) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGSTOP if held else signal.SIGCONT)

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGCONT)  # one that holds still would not hear the next
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def _has_ended(self, source: Source) -> bool:
        return self._process is not None and self._process.poll() is not None


def find_player(wanted: str = "", search_path: str | None = None) -> Player:
    """Give a player: the one that is wanted, else the first program that is found, else the silent one.

    Raises a LookupError when the wanted one is not there.
    """
    if wanted == NullPlayer.name:
        return NullPlayer()
    for program in PROGRAMS:
        if wanted in ("", program.name) and (path := shutil.which(program.name, path=search_path)):
            return ProgramPlayer(program, path)
    if wanted:
        known = ", ".join([*(program.name for program in PROGRAMS), NullPlayer.name])
        raise LookupError(f"{wanted} is not found; players are {known}")
    return NullPlayer()
