"""The page as the server writes it: complete and readable without JavaScript, which then makes it live."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import quote_plus

from starlette.responses import HTMLResponse, JSONResponse, Response

from scale0_musicquest.songs import Hit
from scale0_musicquest.web.source import Found, Trouble, song_url
from scale0_musicquest.web.state import View

STATIC = files("scale0_musicquest.web") / "static"

WHERE_THE_LINK_IS = (
    "The program that serves it printed a link with a token. Open that link. If you have just done so from "
    "another site, <a href='/'>go on from here</a>."
)


def problem(status: int, trouble: Trouble) -> JSONResponse:
    """Tell a script what failed."""
    return JSONResponse({"error": trouble.to_json()}, status)


def refusal(status: int, what: str, why: str) -> Response:
    """Tell a person that there is no way in; ``why`` is this program's own HTML."""
    page = Template((STATIC / "refusal.html").read_text("utf-8"))
    return HTMLResponse(page.substitute(what=escape(what), why=why), status)


def index(query: str, found: Found | None, view: View, trouble: Trouble | None) -> Response:
    """Write the whole page."""
    page = Template((STATIC / "page.html").read_text("utf-8"))
    return HTMLResponse(
        page.substitute(
            query=escape(query),
            verdict=escape(verdict(view)),
            results=_trouble(trouble) if trouble else _results(query, found),
            top=_top(view.top),
            tree=_tree(view.servers),
        )
    )


def counted(number: int, one: str, many: str) -> str:
    """Write a number with its word."""
    return f"{number:,} {one if number == 1 else many}"


def verdict(view: View) -> str:
    """Say in one line how things are, what is wrong first."""
    if view.trouble:
        return view.trouble.what
    if not view.servers:
        return "No server is there yet."
    songs = sum(server["songs"] for server in view.servers)
    clients = sum(server["clients"] for server in view.servers)
    parts = (
        counted(len(view.servers), "server", "servers"),
        counted(songs, "song", "songs"),
        counted(clients, "listener", "listeners"),
    )
    return " · ".join(parts)


def _trouble(trouble: Trouble) -> str:
    rest = " ".join(part for part in (trouble.why, trouble.remedy) if part)
    return f"<div class='empty'><p class='lead'>{escape(trouble.what)}</p><p>{escape(rest)}</p></div>"


def _results(query: str, found: Found | None) -> str:
    if found is None:
        return (
            "<div class='empty'><p class='lead'>What would you like to hear?</p>"
            "<p>Type a title, an artist, an album, or the name of a file. Every server of the tree is asked.</p></div>"
        )
    if not found.hits:
        return _nothing(query, found.suggestions)
    return f"<ul class='songs'>{''.join(map(_song, found.hits))}</ul>"


def _nothing(query: str, suggestions: Iterable[str]) -> str:
    links = "".join(
        f"<li><a class='chip' href='/?q={escape(quote_plus(one))}'>{escape(one)}</a></li>" for one in suggestions
    )
    meant = f"<p>Did you mean</p><ul class='chips'>{links}</ul>" if links else "<p>Try fewer or shorter words.</p>"
    return f"<div class='empty'><p class='lead'>No server has “{escape(query)}”.</p>{meant}</div>"


def _song(hit: Hit) -> str:
    song = hit.song
    by = " · ".join(part for part in (song.artist, song.album) if part)
    return (
        f"<li class='song'><a class='name' href='{escape(song_url(song.name, song.sha256))}'>"
        f"<span class='title'>{escape(song.title or song.name)}</span><span class='by'>{escape(by)}</span></a>"
        f"<span class='facts'>{minutes(song.duration)} {counted(len(hit.holders), 'holder', 'holders')}</span></li>"
    )


def minutes(seconds: float) -> str:
    """Write a duration; one that is not known is empty."""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}" if whole else ""


def _top(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "<p class='quiet'>What is played here shows up in this place.</p>"
    items = "".join(
        f"<li><a class='name' href='{escape(row['url'])}'><span class='title'>{escape(row['title'])}</span>"
        f"<span class='by'>{escape(row['artist'])}</span></a><span class='facts'>{row['count']:,}</span></li>"
        for row in rows
    )
    return f"<ol class='toplist'>{items}</ol>"


def _tree(servers: Sequence[Mapping[str, Any]]) -> str:
    """Write the tree as nested lists; every server is written once, even when fathers are named in a circle."""
    if not servers:
        return "<p class='quiet'>Start a server that names this broker; it appears here by itself.</p>"
    known = {server["id"] for server in servers}
    children: dict[str, list[Mapping[str, Any]]] = {}
    for server in servers:
        children.setdefault(server["father"] if server["father"] in known else "", []).append(server)
    written: set[str] = set()

    def branch(level: Iterable[Mapping[str, Any]]) -> str:
        items = []
        for server in level:
            if server["id"] not in written:
                written.add(server["id"])
                items.append(f"<li>{_server(server)}{branch(children.get(server['id'], ()))}</li>")
        return f"<ul>{''.join(items)}</ul>" if items else ""

    return branch(children.get("", ())) + branch(servers)


def _server(server: Mapping[str, Any]) -> str:
    facts = (
        f"{server['clients']:,} of {counted(server['capacity'], 'listener', 'listeners')}, "
        f"{counted(server['songs'], 'song', 'songs')}"
    )
    marks = ", ".join(mark for mark, there in (("root", server["root"]), ("yours", server["own"])) if there)
    return f"<strong>{escape(server['label'])}</strong> {facts}{f' ({marks})' if marks else ''}"
