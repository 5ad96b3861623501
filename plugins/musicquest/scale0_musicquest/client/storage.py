"""Where the bytes of a download go: a partial file that is always a beginning of the song, or memory.

Chunks that come out of order are kept in memory until those before them are there; so a partial file can be gone on
with, whatever ended its download. Hashing is done in order on a thread of its own, beside receiving.
"""

# does I/O: files, and the thread that hashes

from __future__ import annotations

import fcntl
import hashlib
import os
import queue
import threading
from collections.abc import Iterable
from pathlib import Path

from scale0_core.api import files
from scale0_musicquest.client.errors import DATA, FileThereError, MusicError, Stage
from scale0_musicquest.songs import Song

HASH_BLOCK = 1024 * 1024
WAITING_CHUNKS = 32
"""Chunks that wait to be hashed; then receiving waits."""

Buffer = bytes | memoryview


class Ordered:
    """Gives chunks on in order."""

    def __init__(self, position: int) -> None:
        self.position = position
        self._early: dict[int, Buffer] = {}

    def put_all(self, chunks: Iterable[tuple[int, Buffer]]) -> None:
        """Take chunks, and give on what is now in order."""
        for offset, data in chunks:
            self._early[offset] = data
            while (chunk := self._early.pop(self.position, None)) is not None:
                self.write(chunk)
                self.position += len(chunk)

    def write(self, data: Buffer) -> None:
        """Take what comes next."""
        raise AssertionError("a kind of sink says what it does with it")


class Memory(Ordered):
    """Keeps a part of a song in memory."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self._parts: list[Buffer] = []

    def write(self, data: Buffer) -> None:
        """Take what comes next."""
        self._parts.append(data)

    def content(self) -> bytes:
        """Give all of it."""
        return b"".join(self._parts)


class Hasher:
    """Computes a digest on a thread of its own: first of what a file has, then of what comes."""

    def __init__(self, descriptor: int, have: int) -> None:
        self._descriptor, self._have = descriptor, have
        self._digest = hashlib.sha256()
        self._waiting: queue.Queue[Buffer | None] = queue.Queue(WAITING_CHUNKS)
        self._abandoned = False
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="musicquest hash", daemon=True)
        self._thread.start()

    def put(self, data: Buffer) -> None:
        """Take what comes next; waits while too much does."""
        self._waiting.put(data)

    def result(self) -> str:
        """Give the digest of all."""
        self._waiting.put(None)
        self._thread.join()
        if self.error is not None:
            raise self.error
        return self._digest.hexdigest()

    def abandon(self) -> None:
        """End without a result."""
        self._abandoned = True
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._hash_file()
        except OSError as error:
            self.error = error
        while (data := self._waiting.get()) is not None:
            if not self._abandoned:
                self._digest.update(data)

    def _hash_file(self) -> None:
        offset = 0
        while offset < self._have and not self._abandoned:
            block = os.pread(self._descriptor, min(HASH_BLOCK, self._have - offset), offset)
            if not block:
                raise OSError("the partial file became shorter")
            self._digest.update(block)
            offset += len(block)


class PartialFile(Ordered):
    """The file ``TARGET.part`` and its digest; one download at a time has it."""

    def __init__(self, target: Path, song: Song) -> None:
        self.target, self.song = target, song
        self.path = target.with_name(f"{target.name}.part")
        self._descriptor = _open_alone(self.path)
        size = os.fstat(self._descriptor).st_size
        if size > song.size:  # of something else
            os.ftruncate(self._descriptor, 0)
            size = 0
        super().__init__(size)
        self._lock = threading.Lock()  # who is cancelled may close it while a thread still uses it
        self._closed = False
        self.resumed = size > 0
        self._hasher = Hasher(self._descriptor, size)

    def put_all(self, chunks: Iterable[tuple[int, Buffer]]) -> None:
        """Write what is now in order, unless the file was closed."""
        with self._lock:
            if not self._closed:
                super().put_all(chunks)

    def write(self, data: Buffer) -> None:
        """Write what comes next, and have it hashed."""
        try:
            files.write_all(self._descriptor, data, self.position)
        except OSError as error:
            raise storing(self.path, error) from error
        self._hasher.put(data)

    def is_whole(self) -> bool:
        """Say whether all that came is the song."""
        try:
            return self._hasher.result() == self.song.sha256
        except OSError as error:
            raise storing(self.path, error) from error

    def restart(self) -> None:
        """Begin anew."""
        self._hasher.abandon()
        os.ftruncate(self._descriptor, 0)
        self.position, self.resumed = 0, False
        self._early.clear()
        self._hasher = Hasher(self._descriptor, 0)

    def discard(self) -> None:
        """Take it away."""
        self.path.unlink(missing_ok=True)

    def finish(self, *, force: bool) -> None:
        """Make it the file that was wanted, safe on the disk; ``force`` overwrites what is there."""
        with self._lock:
            if not self._closed:
                self._finish(force=force)

    def _finish(self, *, force: bool) -> None:
        try:
            files.sync_file(self._descriptor)
            put = files.put_in_place if force else files.put_in_new_place
            put(self.path, self.target, durable=True)
        except FileExistsError as error:
            raise FileThereError(self.target) from error
        except OSError as error:
            raise storing(self.target, error) from error

    def close(self) -> None:
        """Let go of the file, and leave it."""
        with self._lock:
            self._closed = True
            self._hasher.abandon()
            os.close(self._descriptor)


def _open_alone(path: Path) -> int:
    """Open a partial file and lock it; raise a MusicError if another download has it, or if it cannot be opened."""
    while True:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storing(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        except OSError as error:
            os.close(descriptor)
            busy = MusicError(
                f"{path} is in use", "another download writes it", "nothing was downloaded", "wait for it to end",
                stage=Stage.STORE,
            )  # fmt: skip
            raise busy from error
        os.close(descriptor)  # another download has just ended, and this is its whole file under its final name


def is_there(target: Path, song: Song) -> bool:
    """Say whether a file is this song already."""
    try:
        if target.stat().st_size != song.size:
            return False
        with target.open("rb") as file:
            digest = hashlib.sha256()
            while block := file.read(HASH_BLOCK):
                digest.update(block)
        return digest.hexdigest() == song.sha256
    except OSError:
        return False


def storing(path: Path, error: OSError) -> MusicError:
    """Make the error for a file that cannot be written."""
    found = MusicError(
        f"{path} cannot be written", error.strerror or str(error), "what came before is kept",
        "look at the disk and the folder, then try again", stage=Stage.STORE,
    )  # fmt: skip
    found.exit_code = DATA
    return found
