"""``MusicClient`` for programs with asyncio: the same names as in ``scale0_musicquest.client``, with coroutines."""

# does I/O: sockets on the loop

from __future__ import annotations

from pathlib import Path
from typing import Any

from scale0_core.client.kit.flows import arun
from scale0_core.client.kit.loop import LoopDriver
from scale0_musicquest.client.answers import SearchResult, ServerRow, TopRow
from scale0_musicquest.client.session import MusicSession
from scale0_musicquest.client.setup import BaseMusicClient, Stop, Watcher
from scale0_musicquest.songs import Hit, Query, Song

__all__ = ["Hit", "MusicClient", "Query", "SearchResult", "ServerRow", "Song", "TopRow"]


class MusicClient(BaseMusicClient):
    """Finds songs and downloads them, from the coroutines of one loop; files are written on other threads.

    ::

        async with MusicClient() as client:
            hit = (await client.search("quest")).hits[0]
            await client.download(hit, Path(hit.song.name))

    A coroutine that is cancelled ends what it began; a download that is cancelled keeps what is there.
    """

    def _driven(self, session: MusicSession) -> LoopDriver[MusicSession]:
        return LoopDriver(session)

    async def search(
        self, text: str = "", *, name: str = "", title: str = "", artist: str = "", album: str = "", limit: int = 20,
        timeout: float | None = None, fresh: bool = False,
    ) -> SearchResult:  # fmt: skip
        """Look for one song by its exact name, or for songs by parts of what is known of them.

        :param fresh: ask everybody and wait for them, also when the server remembers an answer or has the song.
        """
        query = Query(name, text, title, artist, album, limit)
        return await arun(self._search(query, timeout, fresh=fresh))

    async def hit(
        self, name: str, *, number: int = 0, digest: str = "", server: str = "", timeout: float | None = None
    ) -> Hit:
        """Find the song of this name; raise a NotFoundError, or an AmbiguousError when several songs have it.

        All servers are asked. Songs are the same when their digests are; they are sorted by them.

        :param number: choose by the place among the songs of this name, from 1 on.
        :param digest: choose by the SHA-256, or how it begins.
        :param server: choose by a holder's endpoint, and download from it first.
        """
        return await arun(self._hit(name, number, digest, server, timeout))

    async def songs(self, endpoint: str = "", offset: int = 0, limit: int = 1000) -> tuple[int, list[Song]]:
        """List the songs of a server, its own by default: how many there are, and a page of them."""
        return await arun(self._songs(endpoint, offset, limit))

    async def top(self, limit: int = 10, endpoint: str = "") -> list[TopRow]:
        """List the songs that are asked for most often at a server, its own by default."""
        return await arun(self._top(limit, endpoint))

    async def stats(self, endpoint: str = "") -> dict[str, Any]:
        """Return what a server knows about itself, its own by default."""
        return await arun(self._stats(endpoint))

    async def plan(self, endpoint: str, songs: list[dict[str, Any]]) -> dict[str, Any]:
        """Have a server fetch songs from others: name, size, sha256 and holders of each."""
        return await arun(self._plan(endpoint, songs))

    async def servers(self) -> list[ServerRow]:
        """List the servers that the broker knows."""
        return await arun(self._servers())

    async def download(
        self, hit: Hit, target: Path, *, progress: Watcher | None = None, stop: Stop | None = None,
        force: bool = False,
    ) -> Path:  # fmt: skip
        """Download a song to a file, from several holders at once; goes on where a download before it ended.

        A file that is there stays: nothing is done if it is this song, else a FileThereError is raised, unless
        ``force`` says to overwrite it.

        What comes is written to ``TARGET.part``, which becomes the target when its digest is right. When a holder is
        lost, others are looked for. A damaged song is fetched again, from others.

        :param progress: is called with how far it came; on the loop.
        :param stop: ends it with a MusicStoppedError when it is set; or cancel it.
        """
        return await arun(self._download(hit, target, progress, stop, force=force))

    async def read(self, hit: Hit, offset: int, size: int) -> bytes:
        """Read a part of a song from whoever has it; shorter where the song ends."""
        return await arun(self._read(hit, offset, size))

    async def advert(self) -> tuple[str, bytes] | None:
        """Get an advert from its own server: a file's name and content; None when it has none."""
        return await arun(self._advert())

    async def close(self) -> None:
        """Say goodbye, end what is under way, and let go of all sockets."""
        await arun(self._close())

    async def __aenter__(self) -> MusicClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
