"""Begins of sessions: a one-time URL on loopback, and the log-in with a token of the API server."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import parse_qs

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from unbounded.console import urls
from unbounded.console.guard import ConsoleOrigin
from unbounded.console.sessions import BrowserSession, BrowserSessions, TooManySessions, identity_of
from unbounded.intents.operations import user_name
from unbounded.kube.api import ApiError, Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo, ClientCredentials, StaticCredentials
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics

if TYPE_CHECKING:
    from unbounded.console.oidc_login import OidcLogin

TITLE: Final = "Unbounded"
AGENT: Final = "unbounded-console"
BODY_BYTES: Final = 32 * 1024
LOGINS: Final = 4  # at a time: each asks the API server
TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750
_FORM: Final = f"""<form method="post" action="{urls.LOGIN}" class="stack">
<input type="hidden" name="target" value="{{target}}">
<label class="field"><span>Token of the API server</span>
<input class="control" type="password" name="token" autocomplete="off" required autofocus></label>
<button class="primary" type="submit">Log in</button></form>
<p class="faint">Such as that of <code>kubectl create token NAME -n NAMESPACE</code>. The console keeps it in memory,
until you log out.</p>"""

log = Log(__name__)


class LogInRefused(Exception):
    """No session has begun; the message tells the user why."""


class SessionStart(Protocol):
    """A way to begin sessions."""

    def prompt(self, fault: str = "", *, target: str = urls.FLEET) -> Response:
        """Return the page for a browser without a session, which has asked for the page at `target`."""
        ...

    def add_routes(self, app: FastAPI) -> None:
        """Serve the begin of sessions."""
        ...


class OneTimeLogin:
    """Sessions that begin at a one-time URL.

    Args:
        redeem: given the secret of the URL, returns a new session; None for a secret that is not valid (any more).
        hint: how to get another address.
    """

    def __init__(self, redeem: Callable[[str], BrowserSession | None], hint: str, own: ConsoleOrigin) -> None:
        self._redeem, self._hint, self._own = redeem, hint, own

    def prompt(self, fault: str = "", *, target: str = urls.FLEET) -> Response:  # noqa: ARG002
        return plain_page("No session", f"<p>{html.escape(' '.join(filter(None, (fault, self._hint))))}</p>")

    def add_routes(self, app: FastAPI) -> None:
        @app.get(f"{urls.START}{{secret}}")
        async def begin(request: Request, secret: str) -> Response:
            if request.state.session is not None:
                return RedirectResponse(urls.FLEET, 303)
            session = self._redeem(secret)
            if session is None:
                return self.prompt("This address was used before, or is not valid.")
            return opened(session, self._own, urls.FLEET)


class TokenLogin:
    """Sessions that begin with a token of the API server; all that they read is read with that.

    Args:
        config: of the API server; its credentials are not used.
        metrics: count the requests of all users.
        oidc: a provider that issues such tokens.
    """

    def __init__(
        self,
        sessions: BrowserSessions,
        config: ClientConfig,
        metrics: ControllerMetrics,
        own: ConsoleOrigin,
        oidc: OidcLogin | None = None,
    ) -> None:
        self._sessions, self._config, self._metrics, self._own = sessions, config, metrics, own
        self._oidc = oidc
        self._turns = asyncio.Semaphore(LOGINS)

    def prompt(self, fault: str = "", *, target: str = urls.FLEET) -> Response:
        alert = f'<p class="banner denied" role="alert">{html.escape(fault)}</p>' if fault else ""
        provider = "" if self._oidc is None else self._oidc.link(target)
        return plain_page("Log in", alert + provider + _FORM.format(target=html.escape(target)))

    def add_routes(self, app: FastAPI) -> None:
        if self._oidc is not None:
            self._oidc.add_routes(app, self)

        @app.post(urls.LOGIN)
        async def log_in(request: Request) -> Response:
            form = await _form(request)
            token, target = form.get("token", ""), urls.own_target(form.get("target", ""))
            if not TOKEN.fullmatch(token):
                fault = "This is no token: it has other characters than those of a bearer token."
                return self.prompt(fault, target=target)
            try:
                session = await self.begin(StaticCredentials(AuthInfo(token)), identity_of(token))
            except LogInRefused as error:
                return self.prompt(str(error), target=target)
            return self.open(request, session, target)

    async def begin(self, credentials: ClientCredentials, identity: str) -> BrowserSession:
        """Begin a session with a token of which `identity` is the digest. Raises LogInRefused."""
        try:
            async with self._turns:
                return await self._begin(credentials, identity)
        except Forbidden as error:
            log.info("log-in refused", cause=str(error))
            if error.code == 401:
                raise LogInRefused("The API server does not accept this token.") from error
            raise LogInRefused(f"The API server refuses to name this user: {error}") from error
        except (ApiError, TooManySessions) as error:
            raise LogInRefused(str(error)) from error

    def open(self, request: Request, session: BrowserSession, target: str) -> Response:
        """Give a session to the browser of a request in place of its former one, and lead it to a page."""
        if request.state.session is not None:
            self._sessions.end(request.state.session, "another log-in has taken its place")
        return opened(session, self._own, target)

    async def _begin(self, credentials: ClientCredentials, identity: str) -> BrowserSession:
        api = HttpApi(replace(self._config, credentials=credentials), user_agent=AGENT, metrics=self._metrics)
        try:
            name = await user_name(api)  # always asked: a session of the same token may be older than its end
            session = self._sessions.begin(identity, name, api)
        except BaseException:
            await api.close()
            raise
        if session.user.api is not api:  # that of the other sessions of this user
            await api.close()
        return session


def opened(session: BrowserSession, own: ConsoleOrigin, target: str) -> Response:
    """Give a session to the browser, which ends with the browser, and lead it to a page.

    The cookie is `SameSite=Lax`: a link from another site, such as a chat, opens a page of the session.
    """
    answer = RedirectResponse(target, 303)
    answer.set_cookie(own.cookie, session.id, path="/", httponly=True, samesite="lax", secure=own.secure)
    return answer


def plain_page(heading: str, content: str, status: int = 401) -> HTMLResponse:
    """Return a page without data: that of a browser without a session, or of an error.

    Args:
        content: HTML, in which every text is escaped.
    """
    body = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{heading} · {TITLE}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="stylesheet" href="/static/console.css"><link rel="icon" href="/static/icon.svg"></head>
<body class="plain"><main class="stack"><h1>{heading}</h1>{content}</main></body></html>
"""
    return HTMLResponse(body, status)


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form; none where the form is larger than a log-in."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > BODY_BYTES:
            return {}
    return {name: values[0].strip() for name, values in parse_qs(body.decode("latin-1")).items()}
