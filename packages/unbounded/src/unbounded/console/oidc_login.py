"""Begins of sessions with an OpenID Connect provider: the authorization code flow with PKCE.

The session's token is the ID token, which the API server has to accept. A log-in in progress is bound to one browser
by a cookie of its own.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from unbounded.console import urls
from unbounded.console.guard import ConsoleOrigin
from unbounded.console.login import LogInRefused, TokenLogin
from unbounded.console.oidc_provider import AuthorizationRequest, OidcCredentials, OidcError, OidcProvider, refusal
from unbounded.console.sessions import identity_of
from unbounded.kube.logs import Log

PENDING_S: Final = 600  # for the user at the provider
MAX_PENDING: Final = 1000
SECRET_BYTES: Final = 32
VERIFIER_BYTES: Final = 48  # 64 characters
CODE_CHARACTERS: Final = 4096
_STALE: Final = "This log-in is not of this browser, was used before, or took longer than ten minutes. Begin again."

log = Log(__name__)


@dataclass(frozen=True)
class _Pending:
    """A log-in in progress.

    Attributes:
        browser: the secret in the cookie of the browser that has begun it.
        to: where the browser goes then.
        until: it ends at this time.
    """

    browser: str = field(repr=False)
    request: AuthorizationRequest
    to: str
    until: float


class OidcLogin:
    """Sessions that begin at a provider.

    Args:
        now: monotonic.
        max_pending: log-ins at a time; the oldest one ends for a new one.
    """

    def __init__(
        self, provider: OidcProvider, own: ConsoleOrigin, now: Callable[[], float], max_pending: int = MAX_PENDING
    ) -> None:
        self._provider, self._own, self._now, self._max_pending = provider, own, now, max_pending
        self._cookie = f"{own.cookie}-login"
        self._pending: dict[str, _Pending] = {}  # by their state, the oldest one first

    def link(self, to: str) -> str:
        """Return HTML that leads to the provider.

        It is no form: browsers refuse a form whose answer leads to another site, as the Content-Security-Policy has it.
        """
        name = html.escape(urlsplit(self._provider.settings.issuer).netloc)
        query = "" if (safe := urls.own_target(to)) == urls.FLEET else f"?to={quote(safe, safe='')}"
        return f'<p><a class="button" href="{urls.OIDC_LOGIN}{query}">Log in with {name}</a></p>'

    def add_routes(self, app: FastAPI, login: TokenLogin) -> None:
        @app.get(urls.OIDC_LOGIN)
        async def lead_there(request: Request, to: str = urls.FLEET) -> Response:
            to = urls.own_target(to)
            if request.state.session is not None:
                return RedirectResponse(to, 303)
            if request.headers.get("sec-fetch-site") not in (None, "none", "same-origin"):
                return login.prompt(target=to)  # another site must not begin a log-in
            browser, pending = self._begin(request.headers["host"], to)
            try:
                url = await self._provider.authorization_url(pending.request)
            except OidcError as error:
                self._pending.pop(pending.request.state, None)
                return self._refused(login, str(error), to)
            answer = RedirectResponse(url, 303)
            answer.set_cookie(
                self._cookie,
                browser,
                max_age=PENDING_S,
                path="/",
                httponly=True,
                samesite="lax",
                secure=self._own.secure,
            )
            return answer

        @app.get(urls.OIDC_CALLBACK)
        async def come_back(
            request: Request,
            state: str = "",
            code: str = "",
            error: str = "",
            error_description: str = "",
            iss: str = "",
        ) -> Response:
            pending = self._take(state, request.cookies.get(self._cookie, ""))
            if pending is None:
                return login.prompt(_STALE)
            if iss not in ("", self._provider.settings.issuer):  # RFC 9207
                return self._forget(self._refused(login, "another provider has answered", pending.to))
            if error or not 0 < len(code) <= CODE_CHARACTERS:
                fault = refusal(error or "it has sent no code", error_description)
                return self._forget(self._refused(login, fault, pending.to))
            try:
                tokens = await self._provider.redeem(code, pending.request)
                credentials = OidcCredentials(self._provider, tokens)
                session = await login.begin(credentials, identity_of(tokens.id_token))
            except (OidcError, LogInRefused) as cause:
                return self._forget(self._refused(login, str(cause), pending.to))
            return self._forget(login.open(request, session, pending.to))

    def _begin(self, host: str, to: str) -> tuple[str, _Pending]:
        """Return the secret for the browser's cookie, and its log-in."""
        now = self._now()
        for state, one in tuple(self._pending.items()):
            if one.until > now and len(self._pending) < self._max_pending:
                break
            del self._pending[state]
        request = AuthorizationRequest(
            redirect_uri=f"{self._own.origin(host)}{urls.OIDC_CALLBACK}",
            state=secrets.token_urlsafe(SECRET_BYTES),
            nonce=secrets.token_urlsafe(SECRET_BYTES),
            verifier=secrets.token_urlsafe(VERIFIER_BYTES),
        )
        browser = secrets.token_urlsafe(SECRET_BYTES)
        pending = self._pending[request.state] = _Pending(browser, request, to, now + PENDING_S)
        return browser, pending

    def _take(self, state: str, browser: str) -> _Pending | None:
        """Return a log-in of a browser, and use it up; None for one of another browser, or one that has ended."""
        pending = self._pending.get(state)
        if pending is None or not secrets.compare_digest(pending.browser.encode(), browser.encode()):
            return None
        del self._pending[state]
        return pending if self._now() < pending.until else None

    def _refused(self, login: TokenLogin, cause: str, to: str) -> Response:
        log.info("log-in with the provider refused", cause=cause)
        return login.prompt(cause, target=to)

    def _forget(self, answer: Response) -> Response:
        answer.delete_cookie(self._cookie, path="/", secure=self._own.secure, httponly=True, samesite="lax")
        return answer
