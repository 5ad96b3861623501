"""Songs over HTTP: any range of any song, in chunks from whoever holds it, so that a browser can play and seek."""

# does I/O: remembers for some seconds, by the clock, where songs are

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from pathlib import PurePosixPath
from typing import TypeVar

import attrs
from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from scale0_musicquest.names import name_fault
from scale0_musicquest.songs import Hit
from scale0_musicquest.web.pages import problem
from scale0_musicquest.web.ranges import Span, UnsatisfiableError, asked_span
from scale0_musicquest.web.source import MusicSource, Trouble

FIRST_CHUNK = 64 * 1024
"""The first read is small: the sooner it is here, the sooner the song plays."""
CHUNK = 250_000
MAX_STREAMS = 64
MAX_KNOWN = 512
KNOWN_SECONDS = 60.0

TYPES = {
    ".aac": "audio/aac",
    ".flac": "audio/flac",
    ".m4a": "audio/mp4",
    ".mp3": "audio/mpeg",
    ".oga": "audio/ogg",
    ".ogg": "audio/ogg",
    ".opus": "audio/ogg",
    ".wav": "audio/wav",
    ".weba": "audio/webm",
    ".webm": "audio/webm",
}

log = logging.getLogger("scale0.musicquest.web")

_Answer = TypeVar("_Answer")


class BrokenOffError(Exception):
    """A song stopped in the middle; the browser learns it by the connection, and asks again from there."""


def content_type(name: str) -> str:
    """Tell a browser what a song is; what is not known to be sound is not shown as anything else."""
    return TYPES.get(PurePosixPath(name).suffix.lower(), "application/octet-stream")


class Whereabouts:
    """Where songs are, as far as searches told: bounded, and forgotten after a while."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[str, tuple[float, tuple[Hit, ...]]] = OrderedDict()

    def learn(self, name: str, hits: tuple[Hit, ...]) -> None:
        """Remember what a search for one name found."""
        self._known[name] = (self._clock() + KNOWN_SECONDS, hits)
        self._known.move_to_end(name)
        while len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)

    def find(self, name: str, sha256: str) -> Hit | None:
        """Give the song of this name, and of this content if it matters."""
        until, hits = self._known.get(name, (0.0, ()))
        return pick(hits, sha256) if until > self._clock() else None

    def forget(self, name: str) -> None:
        """Forget a song whose holders failed."""
        self._known.pop(name, None)


def pick(hits: tuple[Hit, ...], sha256: str) -> Hit | None:
    """Choose the hit with this content; without one named, the first."""
    return next((hit for hit in hits if sha256 in ("", hit.song.sha256)), None)


@attrs.define
class Gateway:
    """Serves ranges of songs; each listener costs one chunk of memory, and a thread only while it reads."""

    source: MusicSource
    known: Whereabouts = attrs.Factory(Whereabouts)
    streams: int = 0
    _readers: CapacityLimiter | None = None

    async def find(self, name: str, sha256: str, *, fresh: bool = False) -> Hit | None:
        """Find a song by its exact name."""
        hit = None if fresh else self.known.find(name, sha256)
        if hit is None:
            found = await self.run(lambda: self.source.search(name=name, limit=20, fresh=fresh))
            hits = tuple(hit for hit in found.hits if hit.song.name == name)
            self.known.learn(name, hits)
            hit = pick(hits, sha256)
        return hit

    async def run(self, work: Callable[[], _Answer]) -> _Answer:
        """Run what blocks in a thread; songs have threads of their own, so that searches need not wait for them."""
        if self._readers is None:
            self._readers = CapacityLimiter(24)
        return await to_thread.run_sync(work, limiter=self._readers)

    async def answer(self, request: Request, name: str) -> Response:
        """Answer a browser that wants a song, or a part of it."""
        sha256 = request.query_params.get("sha", "")
        hit = None if name_fault(name) else await self.find(name, sha256)
        if hit is None:
            return problem(404, Trouble(f"No server has the song {name[:200]!r} now.", "", "Search for it again."))
        if self.streams >= MAX_STREAMS:
            busy = problem(503, Trouble("Too many songs are being sent.", f"At most {MAX_STREAMS} at a time."))
            busy.headers["Retry-After"] = "2"
            return busy
        return self.song_response(request, hit)

    def song_response(self, request: Request, hit: Hit) -> Response:
        """Choose the answer by the request's conditions and its range."""
        size, tag = hit.song.size, f'"{hit.song.sha256}"'
        headers = {
            "Accept-Ranges": "bytes",
            "ETag": tag,
            "Cache-Control": "private, max-age=3600" if request.query_params.get("sha") else "private, no-cache",
        }
        if tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
            return Response(status_code=304, headers=headers)
        try:
            span = asked_span(request.headers.get("range"), size)
        except UnsatisfiableError:
            return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
        if request.headers.get("if-range", tag) != tag or request.method != "GET":
            span = None  # a range is for GET, and for the same content as before
        if span is not None:
            headers["Content-Range"] = f"bytes {span.start}-{span.end - 1}/{size}"
        whole = span or Span(0, size)
        headers["Content-Length"] = str(whole.size)
        status, kind = (206 if span else 200), content_type(hit.song.name)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=kind)
        return StreamingResponse(self.bytes_of(hit, whole), status, headers, kind)

    async def bytes_of(self, hit: Hit, span: Span) -> AsyncIterator[bytes]:
        """Give a range's bytes; the next chunk is read only when the one before has been taken."""
        self.streams += 1
        try:
            at, chunk = span.start, FIRST_CHUNK
            while at < span.end:
                data = await self.chunk(hit, at, min(chunk, span.end - at))
                yield data
                at, chunk = at + len(data), CHUNK
        finally:
            self.streams -= 1

    async def chunk(self, hit: Hit, offset: int, size: int) -> bytes:
        """Read a chunk; when all known holders fail, look for others once."""
        try:
            return await self._read(hit, offset, size)
        except Exception as error:
            log.warning("%r at byte %d: %s; looking for other holders", hit.song.name, offset, error)
        self.known.forget(hit.song.name)
        try:
            other = await self.find(hit.song.name, hit.song.sha256, fresh=True)
            if other is None:
                raise BrokenOffError("no server has it any more")
            return await self._read(other, offset, size)
        except Exception as error:
            raise BrokenOffError(f"{hit.song.name!r} broke off at byte {offset}: {error}") from error

    async def _read(self, hit: Hit, offset: int, size: int) -> bytes:
        data = await self.run(lambda: self.source.read(hit, offset, size))
        if len(data) != size:
            raise BrokenOffError(f"{len(data)} bytes came in place of {size}")
        return data
