"""``MusicClient`` for programs without asyncio: a thread of its own has its connections."""

# does I/O: a thread and sockets behind calls that wait

from __future__ import annotations

from pathlib import Path
from typing import Any

from scale0_core.client.kit.drivers import ThreadDriver
from scale0_core.client.kit.flows import run
from scale0_musicquest.client.answers import SearchResult, ServerRow, TopRow
from scale0_musicquest.client.session import MusicSession
from scale0_musicquest.client.setup import BaseMusicClient, Stop, Watcher
from scale0_musicquest.songs import Hit, Query, Song

__all__ = ["Hit", "MusicClient", "Query", "SearchResult", "ServerRow", "Song", "TopRow"]


class MusicClient(BaseMusicClient):
    """Finds songs and downloads them; any thread may use it, and several at once.

    ::

        with MusicClient() as client:
            hit = client.search("quest").hits[0]
            client.download(hit, Path(hit.song.name))
    """

    def _driven(self, session: MusicSession) -> ThreadDriver[MusicSession]:
        driver = ThreadDriver(session, "musicquest client")
        driver.start()
        return driver

    def search(
        self, text: str = "", *, name: str = "", title: str = "", artist: str = "", album: str = "", limit: int = 20,
        timeout: float | None = None, fresh: bool = False,
    ) -> SearchResult:  # fmt: skip
        """Look for one song by its exact name, or for songs by parts of what is known of them.

        :param fresh: ask everybody and wait for them, also when the server remembers an answer or has the song.
        """
        query = Query(name, text, title, artist, album, limit)
        return run(self._search(query, timeout, fresh=fresh))

    def hit(
        self, name: str, *, number: int = 0, digest: str = "", server: str = "", timeout: float | None = None
    ) -> Hit:
        """Find the song of this name; raise a NotFoundError, or an AmbiguousError when several songs have it.

        All servers are asked. Songs are the same when their digests are; they are sorted by them.

        :param number: choose by the place among the songs of this name, from 1 on.
        :param digest: choose by the SHA-256, or how it begins.
        :param server: choose by a holder's endpoint, and download from it first.
        """
        return run(self._hit(name, number, digest, server, timeout))

    def songs(self, endpoint: str = "", offset: int = 0, limit: int = 1000) -> tuple[int, list[Song]]:
        """List the songs of a server, its own by default: how many there are, and a page of them."""
        return run(self._songs(endpoint, offset, limit))

    def top(self, limit: int = 10, endpoint: str = "") -> list[TopRow]:
        """List the songs that are asked for most often at a server, its own by default."""
        return run(self._top(limit, endpoint))

    def stats(self, endpoint: str = "") -> dict[str, Any]:
        """Return what a server knows about itself, its own by default."""
        return run(self._stats(endpoint))

    def plan(self, endpoint: str, songs: list[dict[str, Any]]) -> dict[str, Any]:
        """Have a server fetch songs from others: name, size, sha256 and holders of each."""
        return run(self._plan(endpoint, songs))

    def servers(self) -> list[ServerRow]:
        """List the servers that the broker knows."""
        return run(self._servers())

    def download(
        self, hit: Hit, target: Path, *, progress: Watcher | None = None, stop: Stop | None = None,
        force: bool = False,
    ) -> Path:  # fmt: skip
        """Download a song to a file, from several holders at once; goes on where a download before it ended.

        A file that is there stays: nothing is done if it is this song, else a FileThereError is raised, unless
        ``force`` says to overwrite it.

        What comes is written to ``TARGET.part``, which becomes the target when its digest is right. When a holder is
        lost, others are looked for. A damaged song is fetched again, from others.

        :param progress: is called with how far it came; on the thread that calls.
        :param stop: ends it with a MusicStoppedError when it is set; another thread may do that.
        """
        return run(self._download(hit, target, progress, stop, force=force))

    def read(self, hit: Hit, offset: int, size: int) -> bytes:
        """Read a part of a song from whoever has it; shorter where the song ends."""
        return run(self._read(hit, offset, size))

    def advert(self) -> tuple[str, bytes] | None:
        """Get an advert from its own server: a file's name and content; None when it has none."""
        return run(self._advert())

    def close(self) -> None:
        """Say goodbye, end what is under way, and let go of all sockets."""
        run(self._close())

    def __enter__(self) -> MusicClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
