"""The listening page: an HTTP server on this machine alone, between browsers and the tree of music servers."""

# does I/O: serves HTTP

from __future__ import annotations

import logging
import signal
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import attrs
import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from scale0_core.api import Scale0Error
from scale0_core.cli.kit import NotReachedError
from scale0_musicquest.names import name_fault
from scale0_musicquest.songs import MAX_TEXT
from scale0_musicquest.web import pages
from scale0_musicquest.web.gateway import BrokenOffError, Gateway
from scale0_musicquest.web.guard import Guard, Keys
from scale0_musicquest.web.pages import problem
from scale0_musicquest.web.source import Found, MusicSource, Trouble, found_json, song_json
from scale0_musicquest.web.state import MAX_WATCHERS, Watch

MAX_LIMIT = 100
STATIC_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

log = logging.getLogger("scale0.musicquest.web")

_Answer = TypeVar("_Answer")
Endpoint = Callable[[Request], Awaitable[Response]]


def explain(error: Exception) -> Trouble:
    """Put a failure of the client into words for the page."""
    if isinstance(error, Scale0Error):
        known = error.problem
        return Trouble(_sentence(known.what), _sentence(known.why), _sentence(known.remedy))
    log.error("a fault of this program", exc_info=error)
    return Trouble("This page failed.", f"{type(error).__name__}: {error}", "Its log has more.")


def _sentence(text: str) -> str:
    return text and text[0].upper() + text[1:] + ("" if text[-1:] in ".!?" else ".")


def _static_files() -> dict[str, tuple[bytes, str]]:
    """Read what browsers fetch beside the page; it is small."""
    found = {}
    for path in pages.STATIC.iterdir():
        suffix = path.name[path.name.rfind(".") :]
        if suffix in STATIC_TYPES:
            found[path.name] = (path.read_bytes(), STATIC_TYPES[suffix])
    return found


@attrs.define
class Site:
    """What the addresses of the page answer."""

    source: MusicSource
    gateway: Gateway
    watch: Watch
    guard_cookie: str = ""
    close_session: Callable[[str], None] = lambda _: None
    static: dict[str, tuple[bytes, str]] = attrs.Factory(_static_files)

    def routes(self) -> list[Route]:
        """Give all addresses."""
        return [
            Route("/", self.index),
            Route("/static/{name}", self.static_file),
            Route("/api/search", _told(self.search)),
            Route("/api/song/{name:path}", _told(self.song)),
            Route("/api/holders/{name:path}", _told(self.holders)),
            Route("/api/tree", _told(self.tree)),
            Route("/api/songs", _told(self.songs)),
            Route("/api/top", _told(self.top)),
            Route("/api/live", self.live),
            Route("/leave", self.leave, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        """Write the page, with what was looked for."""
        query = request.query_params.get("q", "").strip()[:MAX_TEXT]
        found, trouble = None, None
        if query:
            try:
                found = await self._search(query, 50)
            except Exception as error:
                trouble = explain(error)
        return pages.index(query, found, await self.watch.glance(), trouble)

    async def static_file(self, request: Request) -> Response:
        """Give a file of the page."""
        known = self.static.get(request.path_params["name"])
        if known is None:
            raise HTTPException(404)
        return Response(known[0], media_type=known[1], headers={"Cache-Control": "no-cache"})

    async def search(self, request: Request) -> Response:
        """Look for songs by what was typed."""
        text = request.query_params.get("q", "").strip()
        if not text or len(text) > MAX_TEXT:
            return problem(400, Trouble(f"A search has from 1 to {MAX_TEXT} characters."))
        return JSONResponse(found_json(await self._search(text, _whole(request, "limit", 50, 1, MAX_LIMIT))))

    async def _search(self, text: str, limit: int) -> Found:
        return await to_thread.run_sync(lambda: self.source.search(text, limit=limit))

    async def song(self, request: Request) -> Response:
        """Give a song, or a range of it."""
        return await self.gateway.answer(request, request.path_params["name"])

    async def holders(self, request: Request) -> Response:
        """Tell who holds a song now."""
        name, sha256 = request.path_params["name"], request.query_params.get("sha", "")
        hit = None if name_fault(name) else await self.gateway.find(name, sha256, fresh=True)
        if hit is None:
            return problem(404, Trouble(f"No server has the song {name[:200]!r} now."))
        return JSONResponse({"name": name, "holders": [holder.to_json() for holder in hit.holders]})

    async def tree(self, _: Request) -> Response:
        """Tell of all servers."""
        view = await self.watch.look()
        return problem(503, view.trouble) if view.trouble else JSONResponse({"servers": list(view.servers)})

    async def songs(self, request: Request) -> Response:
        """List songs of one server of the tree, by its id."""
        ident = request.query_params.get("server", "")
        endpoint = next((row["endpoint"] for row in (await self.watch.look()).servers if row["id"] == ident), None)
        if endpoint is None:
            return problem(404, Trouble("No such server is there now."))
        offset, limit = _whole(request, "offset", 0, 0, 2**40), _whole(request, "limit", 50, 1, MAX_LIMIT)
        total, songs = await to_thread.run_sync(lambda: self.source.songs(endpoint, offset, limit))
        return JSONResponse({"total": total, "songs": [song_json(song) for song in songs]})

    async def top(self, _: Request) -> Response:
        """List what is played most."""
        view = await self.watch.look()
        return problem(503, view.trouble) if view.trouble else JSONResponse({"top": list(view.top)})

    async def live(self, _: Request) -> Response:
        """Tell the state whenever it changes."""
        if self.watch.watchers >= MAX_WATCHERS:
            return problem(503, Trouble(f"More than {MAX_WATCHERS} pages are open."))
        return StreamingResponse(self.watch.events(), media_type="text/event-stream")

    async def leave(self, request: Request) -> Response:
        """End the session of this browser."""
        self.close_session(request.cookies.get(self.guard_cookie, ""))
        gone = RedirectResponse("/", status_code=303)
        gone.delete_cookie(self.guard_cookie, path="/", httponly=True, samesite="strict")
        return gone


def _whole(request: Request, name: str, default: int, least: int, most: int) -> int:
    """Read a number of the address, within bounds."""
    text = request.query_params.get(name, "")
    return min(max(int(text), least), most) if text.isascii() and text.isdigit() and len(text) < 18 else default


def _told(endpoint: Endpoint) -> Endpoint:
    """Turn failures of the client into answers that say what failed."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except HTTPException:
            raise
        except Exception as error:
            log.warning("%s: %s", request.url.path, error)
            return problem(503, explain(error))

    return answer


@attrs.define
class Quiet:
    """Stands around everything: a fault is logged here, and never leaves a browser waiting."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app."""
        try:
            await self.app(scope, receive, send)
        except BrokenOffError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("the page failed")


class PageServer(uvicorn.Server):
    """Serves the page; when it ends, those who watch are let go first."""

    def __init__(self, source: MusicSource, listening: socket.socket, announce: Callable[[str], None]) -> None:
        port = listening.getsockname()[1]
        self.listening = listening
        self.watch = Watch(source, explain)
        keys = Keys()
        self.gateway = Gateway(source)
        site = Site(source, self.gateway, self.watch, close_session=keys.close)
        app = Starlette(routes=site.routes())
        app.router.redirect_slashes = False  # an address is right or it is not there
        self.guard = Guard(app, keys, port, announce)
        site.guard_cookie = self.guard.cookie
        super().__init__(
            uvicorn.Config(
                Quiet(self.guard),
                log_config=None,
                log_level="critical",  # faults are logged here, and requests carry the token
                access_log=False,
                lifespan="off",
                server_header=False,
                timeout_graceful_shutdown=1,
                h11_max_incomplete_event_size=16 * 1024,
            )
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End: watchers first, then all else."""
        self.watch.ending.set()
        await super().shutdown(sockets)


def listen(port: int) -> socket.socket:
    """Take a port of this machine, which no other machine reaches; 0 takes any."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        raise NotReachedError(
            f"port {port} cannot be taken", why, "the page was not started", "name another one, or 0 for any"
        ) from error
    return listening


def serve(broker: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve the page for a music broker until a signal ends it; ``announce`` gets the link."""
    from scale0_musicquest.client.sync import MusicClient

    with listen(port) as listening, MusicClient(broker) as client, _signals_end_it():
        page = PageServer(client, listening, announce)
        announce(page.guard.link)
        page.run(sockets=[listening])


@contextmanager
def _signals_end_it() -> Iterator[None]:
    """Let INT and TERM end the page and no more: uvicorn raises them once again, after it has ended by them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
