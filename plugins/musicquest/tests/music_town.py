"""A real music broker and real servers, each in a process of its own."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

from scale0_core.testing import Flavour
from scale0_core.testing.broker import BrokerStarter, ProcessBroker
from scale0_musicquest.client import MusicClient

from .music_peers import client_of

ANY = "tcp://127.0.0.1:*"
PATIENCE = 60.0


class Town:
    """A broker, and as many servers as a test wants."""

    def __init__(self, start: BrokerStarter, folder: Path, flavour: Flavour | None = None) -> None:
        self._make = MusicClient if flavour is None else partial(client_of, flavour)
        self._start, self._folder = start, folder
        # on a busy machine all may stand still for seconds, and nobody is to be taken for dead
        table = {"bind_servers": [ANY], "bind_clients": [ANY], "lease": 15.0}
        self.broker = start(["musicquest-broker"], {"plugin": {"musicquest-broker": table}})
        self.servers: list[ProcessBroker] = []

    @property
    def address(self) -> str:
        """Where clients ask for a server."""
        return self.broker.address("musicquest-broker", "clients")

    def add(self, songs: dict[str, bytes], **settings: Any) -> ProcessBroker:
        """Start a server with these songs."""
        music = self._folder / f"music-{len(self.servers)}"
        music.mkdir()
        for name, data in songs.items():
            (music / name).write_bytes(data)
        table = {
            "music": str(music), "clients": [ANY], "children": [ANY], "heartbeat": 2.0, "rescan": 0.5,
            "broker": self.broker.address("musicquest-broker", "servers"), **settings,
        }  # fmt: skip
        server = self._start(["musicquest-server"], {"plugin": {"musicquest-server": table}})
        self.servers.append(server)
        return server

    def client(self, **options: Any) -> Any:
        """Return a client."""
        return self._make(self.address, timeout=PATIENCE, **options)

    def wait_for_songs(self, client: Any, *songs: str, holders: int = 1) -> None:
        """Wait until all of them are found, each at so many holders."""
        end = time.monotonic() + PATIENCE
        while True:
            found = [client.search(name=song, fresh=True).hits for song in songs]
            if all(hits and len(hits[0].holders) >= holders for hits in found):
                return
            assert time.monotonic() < end, found
            time.sleep(0.1)


def endpoint_of(server: ProcessBroker) -> str:
    """Give where a server takes clients."""
    return server.address("musicquest-server", "clients")
