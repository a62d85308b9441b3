"""Middleware before all pages: hosts, origins, sessions, and the headers of answers.

A page of another site can send requests to the console, with the user's cookie if the browser lets it. So a request
that changes something, and each websocket, has to come from a page of the console. A websocket has to belong to a page
that the same session has opened.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs

from starlette.requests import cookie_parser

from unbounded.console import urls
from unbounded.console.sessions import BrowserSession, BrowserSessions

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

WEBSOCKETS: Final = "/_nicegui_ws/"
LIBRARY: Final = "/_nicegui/"  # scripts and styles of NiceGUI, the same for everybody
STATIC: Final = "/static/"  # those of the console
PUBLIC: Final = frozenset({urls.LOGIN, urls.OIDC_LOGIN, urls.OIDC_CALLBACK, "/favicon.ico"})
SAFE_METHODS: Final = ("GET", "HEAD")
NONCE_BYTES: Final = 16
COOKIE: Final = "unbounded-console"
_HANDSHAKE: Final = "implicit_handshake"  # NiceGUI refuses the websocket of an unknown page before any message of it

_HEADERS: Final = (
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)


def content_security_policy(nonce: str, websocket: str) -> str:
    """Return the policy of a page.

    Scripts come from the console itself, or carry the nonce of the answer; the browser compiles no text. Styles may be
    inline, as Vue and Quasar set them on elements. Nothing is fetched from elsewhere.
    """
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'nonce-{nonce}'",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data:",
            "font-src 'self'",
            f"connect-src 'self' {websocket}".rstrip(),
            "form-action 'self'",
            "frame-ancestors 'none'",
            "base-uri 'none'",
            "object-src 'none'",
        )
    )


@dataclass(frozen=True)
class ConsoleOrigin:
    """The addresses of a console.

    Args:
        hosts: values of the header Host that are served; none for all, where a session begins with a log-in.
        secure: browsers reach the console over HTTPS.
        cookie: the name of its cookie.
    """

    hosts: frozenset[str] = frozenset()
    secure: bool = False
    cookie: str = COOKIE

    def origin(self, host: str) -> str:
        return f"{'https' if self.secure else 'http'}://{host}"


class Guard:
    """Middleware that serves the pages of a session to that session alone."""

    def __init__(self, app: AsgiApp, *, own: ConsoleOrigin, sessions: BrowserSessions, refuse: AsgiApp) -> None:
        self._app = app
        self._own = own
        self._sessions = sessions
        self._refuse = refuse  # serves who has no session: the log-in

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = _headers(scope)
        host = headers.get("host", "")
        if (self._own.hosts and host not in self._own.hosts) or not host:
            await _reject(scope, send, 421, f"this console is not {host!r}: use the address that it has printed")
            return
        if not self._is_same_origin(scope, headers, host):
            await _reject(scope, send, 403, "the request does not come from a page of the console")
            return
        session = self._sessions.find(_cookie(headers, self._own.cookie))
        nonce = secrets.token_urlsafe(NONCE_BYTES)
        scope.setdefault("state", {}).update(session=session, csp_nonce=nonce)
        if scope["type"] == "websocket":
            if self._may_connect(scope, session):
                await self._app(scope, receive, send)
            else:
                await _reject(scope, send, 403, "")
            return
        scheme = "wss" if self._own.secure else "ws"
        decorated = _with_headers(send, content_security_policy(nonce, f"{scheme}://{host}"), scope["path"])
        app = self._app if session is not None or _is_public(scope["path"]) else self._refuse
        await app(scope, receive, decorated)

    def _may_connect(self, scope: Scope, session: BrowserSession | None) -> bool:
        """Return whether a websocket may open: that of a page of its session.

        A page that is not open any more, such as one of the process before this one, is left to NiceGUI, which refuses
        it so that the browser loads the page again.
        """
        page = page_of(scope)
        owner = self._sessions.owner(page)
        if not page or owner is not None:
            return bool(page) and owner is session
        return session is not None or _query_value(scope, _HANDSHAKE) == "true"

    def _is_same_origin(self, scope: Scope, headers: dict[str, str], host: str) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        path: str = scope["path"]
        if scope["type"] == "websocket":
            return origin == self._own.origin(host)
        if path.startswith(WEBSOCKETS):
            return False  # polling in place of a websocket, which browsers send without an Origin
        if scope["method"] in SAFE_METHODS:
            return True
        return origin == self._own.origin(host) and site in (None, "same-origin")


def _is_public(path: str) -> bool:
    """Return whether a path is served without a session. None of them makes a page of NiceGUI."""
    is_start = path.startswith(urls.START) and "/" not in path.removeprefix(urls.START)
    return path in PUBLIC or is_start or path.startswith((LIBRARY, STATIC))


def page_of(scope: Scope) -> str:
    """Return the id of the page that a websocket names in its address."""
    return _query_value(scope, "client_id")


def _query_value(scope: Scope, name: str) -> str:
    query: bytes = scope.get("query_string", b"")
    return parse_qs(query.decode("latin-1")).get(name, [""])[0]


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers by their names; of one that comes twice, such as Host or Origin, what nothing equals."""
    found: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name = raw.decode("latin-1").lower()
        text = value.decode("latin-1")
        if name == "cookie" and name in found:
            text = f"{found[name]}; {text}"
        elif name in found:
            text = f"{found[name]}, {text}"
        found[name] = text
    return found


def _cookie(headers: dict[str, str], name: str) -> str:
    """Return a cookie. Others of the same host, from any port, may have any form, and do not hide it."""
    return cookie_parser(headers.get("cookie", "")).get(name, "")


async def _reject(scope: Scope, send: Send, code: int, text: str) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})  # before it was accepted: HTTP 403
        return
    body = f"{text}\n".encode()
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"content-length", str(len(body)).encode()),
        (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send, policy: str, path: str) -> Send:
    async def decorated(message: Message) -> None:
        if message["type"] == "http.response.start":
            given: Iterable[tuple[bytes, bytes]] = message.get("headers", ())
            ours = dict((*_HEADERS, ("content-security-policy", policy)))
            if not path.startswith((LIBRARY, STATIC)):
                ours["cache-control"] = "no-store"
            kept = [(name, value) for name, value in given if name.decode("latin-1").lower() not in ours]
            message["headers"] = [*kept, *((name.encode(), value.encode("latin-1")) for name, value in ours.items())]
        await send(message)

    return decorated


def session_of(scope: Scope) -> BrowserSession:
    """Return the session that the guard has found for a request."""
    session: BrowserSession | None = scope["state"]["session"]
    if session is None:
        raise TypeError("a page was built for a request without a session")
    return session
