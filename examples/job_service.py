"""A plugin with work that blocks: a journal that answers when an entry is safe on disk, one fsync for many entries.

``python examples/job_service.py`` runs it in a broker, writes some entries and tells how many fsyncs they took. In a
distribution of its own, the entry point ``journal = "job_service:JournalPlugin"`` in the group ``scale0.plugins``
would do the same.
"""

# does I/O: its jobs write files, and main() is an application

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from scale0_core.api import (
    BrokerContext,
    Effect,
    Endpoint,
    Frames,
    Job,
    JobResult,
    PluginInfo,
    Send,
    Service,
    SocketKind,
    hookimpl,
    setting,
)


@attrs.frozen
class JournalSettings:
    """The table [plugin.journal]."""

    bind: tuple[str, ...] = setting(("ipc://{runtime}/journal",), "Addresses to listen on.")
    longest_entry: int = setting(4096, "Bytes in one entry.")


class JournalFile:
    """The file. Its methods run in jobs, never on the loop's thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.commits = 0

    def append(self, entries: Sequence[bytes]) -> list[tuple[int, int]]:
        """Write entries and make them safe together; give the place of each, and the number of the commit."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        places = []
        with self.path.open("ab") as file:
            for entry in entries:
                places.append(file.tell())
                file.write(len(entry).to_bytes(4, "big") + entry)
            file.flush()
            os.fsync(file.fileno())
        self.commits += 1
        return [(place, self.commits) for place in places]


class JournalService:
    """Appends each entry and answers with ``OK``, its place and the commit's number, or ``ERROR`` and a reason."""

    name = "journal"

    def __init__(self, journal: JournalFile, settings: JournalSettings, bind: Iterable[str]) -> None:
        self._journal = journal
        self._settings = settings
        self.endpoints: Mapping[str, Endpoint] = {"requests": Endpoint(kind=SocketKind.ROUTER, bind=bind)}

    def receive(self, socket: str, frames: Frames, now: float) -> Iterable[Effect]:
        """Have one entry written; the answer comes from ``on_job``."""
        if len(frames) != 2 or len(frames[1]) > self._settings.longest_entry:
            return [_answer(frames[0], b"ERROR", b"an entry is one frame, not too long")] if frames else []
        # one key: the entries keep their order. grouped: those that wait meanwhile are written in one call
        return [Job(key="journal", function=self._journal.append, argument=frames[1], token=frames[0], grouped=True)]

    def on_job(self, result: JobResult, now: float) -> Iterable[Effect]:
        """Tell the client what became of its entry."""
        if result.error is not None:
            return [_answer(result.token, b"ERROR", str(result.error).encode())]
        place, commit = result.value
        return [_answer(result.token, b"OK", b"%d" % place, b"%d" % commit)]

    def next_deadline(self) -> float | None:
        """Nothing waits for time to pass."""
        return None

    def on_deadline(self, now: float) -> Iterable[Effect]:
        """Do nothing: no deadline is ever set."""
        return ()


def _answer(peer: bytes, *frames: bytes) -> Send:
    return ("requests", (peer, *frames))


class JournalPlugin:
    """The journal of one broker."""

    @hookimpl
    def scale0_plugin_info(self) -> PluginInfo:
        """Describe the plugin."""
        return PluginInfo(summary="keeps entries in a file", api=(2, 2), settings=JournalSettings)

    @hookimpl
    def scale0_services(self, settings: JournalSettings, context: BrokerContext) -> list[Service]:
        """Make the service. No file is opened here: that is left to the first job."""
        journal = JournalFile(Path(context.data_dir) / "journal")
        return [JournalService(journal, settings, [context.address(address) for address in settings.bind])]


def main(entries: int = 1000) -> None:
    """Write entries to a journal in a real broker, all in flight at once."""
    import zmq

    from scale0_core.testing import BrokerStarter

    with BrokerStarter() as start, zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        broker = start.in_thread(extra={"journal": JournalPlugin})
        socket.rcvtimeo = 10_000
        socket.connect(broker.address("journal", "requests"))
        for number in range(entries):
            socket.send(b"entry %d" % number)
        answers = [socket.recv_multipart() for _ in range(entries)]
        written = (broker.folder / "data" / "journal").stat().st_size
    assert all(answer[0] == b"OK" for answer in answers)
    print(f"{entries} entries, {written} bytes, {len({commit for *_, commit in answers})} fsyncs")


if __name__ == "__main__":
    main()
