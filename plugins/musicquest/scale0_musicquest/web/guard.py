"""Who may use the page: whoever opened the link from the terminal, and no other site in the same browser."""

# does I/O: draws tokens by chance

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable

import attrs
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scale0_musicquest.web import pages

MAX_SESSIONS = 32

PUBLIC = "/static/"
"""Nothing there is secret; who is refused should still see a tidy page."""

SAFE_METHODS = frozenset({"GET", "HEAD"})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # not no-referrer: with that a browser sends "Origin: null" with a form of this page itself
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Keys:
    """The link's token, which opens one session and is then spent, and the sessions that are open."""

    def __init__(self, draw: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> None:
        self._draw = draw
        self._sessions: OrderedDict[str, None] = OrderedDict()
        self._spent = ""
        self.token = draw()

    def open(self, token: str) -> str | None:
        """Open a session by the token, which is then spent; None when it is not the one."""
        if not secrets.compare_digest(token.encode(), self.token.encode()):
            return None
        self._spent, self.token = self.token, self._draw()
        session = self._draw()
        self._sessions[_digest(session)] = None
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def was_spent(self, token: str) -> bool:
        """Tell whether this was the right token, but used before."""
        return bool(self._spent) and secrets.compare_digest(token.encode(), self._spent.encode())

    def knows(self, session: str) -> bool:
        """Tell whether a session is open."""
        return _digest(session) in self._sessions

    def close(self, session: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(session), None)


def _digest(session: str) -> str:
    # what is looked up is a digest, so the time of the look-up tells nothing about a session
    return hashlib.sha256(session.encode()).hexdigest()


@attrs.define
class Guard:
    """Stands before the app: checks Host, Origin and session, and adds the headers that all answers have."""

    app: ASGIApp
    keys: Keys
    port: int
    announce: Callable[[str], None]

    @property
    def cookie(self) -> str:
        """The cookie's name; cookies know no ports, so the name does."""
        return f"musicquest-{self.port}"

    @property
    def link(self) -> str:
        """Where the page opens, once."""
        return f"http://127.0.0.1:{self.port}/?token={self.keys.token}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through to the app, or answer it here."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self.check(HTTPConnection(scope), scope["method"])
        await (answer or self.app)(scope, receive, send_with_headers)

    def check(self, request: HTTPConnection, method: str) -> Response | None:
        """Decide on a request: an answer that ends it here, or None to let it through."""
        if fault := self.site_fault(request.headers, method):
            return pages.refusal(403, "This request does not come from this page.", fault)
        session = request.cookies.get(self.cookie, "")
        token = request.query_params.get("token")
        if token is not None and request.url.path == "/" and method in SAFE_METHODS:
            return self.enter(token, is_known=self.keys.knows(session))
        if not self.keys.knows(session) and not request.url.path.startswith(PUBLIC):
            return pages.refusal(403, "This page opens by the link in the terminal.", pages.WHERE_THE_LINK_IS)
        return None

    def site_fault(self, headers: Headers, method: str) -> str:
        """Say why a request may come from another site; nothing when it does not."""
        hosts = [f"127.0.0.1:{self.port}", f"localhost:{self.port}"]
        if headers.getlist("host") not in [[host] for host in hosts]:
            return f"It names another host than {hosts[0]}."
        origins = headers.getlist("origin")
        if not _among(origins, (f"http://{host}" for host in hosts)):
            return "Its origin is another site."
        if method not in SAFE_METHODS and not origins:
            return "It would change something, and does not say where it comes from."
        # a site on another port of this machine counts as the same site, and would bring the cookie along
        if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
            return "Another site asked for it."
        return ""

    def enter(self, token: str, *, is_known: bool) -> Response:
        """Turn the link's token into a session, and take it out of the address."""
        inside = RedirectResponse("/", status_code=303)
        session = self.keys.open(token)
        if session is not None:
            inside.set_cookie(self.cookie, session, httponly=True, samesite="strict", path="/")
            return inside
        if is_known:
            return inside
        if self.keys.was_spent(token):
            self.announce(f"that link was used already; a new one: {self.link}")
            return pages.refusal(403, "This link was used already.", "There is a new one in the terminal.")
        return pages.refusal(403, "This link is not the right one.", pages.WHERE_THE_LINK_IS)


def _among(values: list[str], allowed: Iterable[str]) -> bool:
    known = set(allowed)
    return all(value in known for value in values) and len(values) <= 1
