"""Begins of sessions with an OpenID Connect provider: the authorization code flow with PKCE.

The session's token is the ID token, which the API server has to accept. A log-in in progress is in its browser alone:
in a cookie, encrypted with a key of this process. So no number of begun log-ins uses up the memory of the process, or
ends another one.
"""

from __future__ import annotations

import html
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from unbounded.console import urls
from unbounded.console.guard import ConsoleOrigin
from unbounded.console.login import LogInRefused, TokenLogin
from unbounded.console.oidc_provider import AuthorizationRequest, OidcCredentials, OidcError, OidcProvider, refusal
from unbounded.console.sessions import identity_of
from unbounded.kube.logs import Log

PENDING_S: Final = 600  # for the user at the provider
MAX_USED: Final = 10_000  # log-ins in ten minutes
SECRET_BYTES: Final = 32
VERIFIER_BYTES: Final = 48  # 64 characters
CODE_CHARACTERS: Final = 4096
COOKIE_CHARACTERS: Final = 3800  # browsers drop a cookie of more than 4096, with its name and attributes
_STALE: Final = "This log-in is not of this browser, was used before, or took longer than ten minutes. Begin again."
_RESTARTED: Final = "This console has not begun this log-in, or has restarted since. Begin again."

log = Log(__name__)


@dataclass(frozen=True)
class _Pending:
    """A log-in in progress.

    Attributes:
        to: where the browser goes then.
        until: it ends at this time.
    """

    request: AuthorizationRequest
    to: str
    until: float


class OidcLogin:
    """Sessions that begin at a provider.

    Args:
        now: monotonic.
        max_used: log-ins in ten minutes; one more is refused.
    """

    def __init__(
        self, provider: OidcProvider, own: ConsoleOrigin, now: Callable[[], float], max_used: int = MAX_USED
    ) -> None:
        self._provider, self._own, self._now, self._max_used = provider, own, now, max_used
        self._cookie = f"{own.cookie}-login"
        self._fernet = Fernet(Fernet.generate_key())
        self._used: dict[str, float] = {}  # states that open a session or have, with the time after which none is valid

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
            pending = self._begin(request.headers["host"], to)
            try:
                url = await self._provider.authorization_url(pending.request)
            except OidcError as error:
                return self._refused(login, str(error), to)
            answer = RedirectResponse(url, 303)
            answer.set_cookie(
                self._cookie,
                self._sealed(pending),
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
            try:
                pending = self._unsealed(state, request.cookies.get(self._cookie, ""))
            except LogInRefused as refused:
                return login.prompt(str(refused))
            if iss not in ("", self._provider.settings.issuer):  # RFC 9207
                return self._forget(self._refused(login, "another provider has answered", pending.to))
            if error or not 0 < len(code) <= CODE_CHARACTERS:
                fault = refusal(error or "it has sent no code", error_description)
                return self._forget(self._refused(login, fault, pending.to))
            try:
                with self._one_use(state):
                    tokens = await self._provider.redeem(code, pending.request)
                    credentials = OidcCredentials(self._provider, tokens)
                    session = await login.begin(credentials, identity_of(tokens.id_token))
            except (OidcError, LogInRefused) as cause:
                return self._forget(self._refused(login, str(cause), pending.to))
            return self._forget(login.open(request, session, pending.to))

    def _begin(self, host: str, to: str) -> _Pending:
        request = AuthorizationRequest(
            redirect_uri=f"{self._own.origin(host)}{urls.OIDC_CALLBACK}",
            state=secrets.token_urlsafe(SECRET_BYTES),
            nonce=secrets.token_urlsafe(SECRET_BYTES),
            verifier=secrets.token_urlsafe(VERIFIER_BYTES),
        )
        return _Pending(request, to, self._now() + PENDING_S)

    def _sealed(self, pending: _Pending) -> str:
        """Return the cookie of a log-in, which leads to the fleet where the address of its page is too long."""

        def seal(one: _Pending) -> str:
            return self._fernet.encrypt(msgspec.json.encode(one)).decode()

        cookie = seal(pending)
        return cookie if len(cookie) <= COOKIE_CHARACTERS else seal(replace(pending, to=urls.FLEET))

    def _unsealed(self, state: str, cookie: str) -> _Pending:
        """Return the log-in of a browser. Raises LogInRefused for one of another browser, or one that has ended."""
        if not cookie:
            raise LogInRefused(_STALE)
        try:
            pending = msgspec.json.decode(self._fernet.decrypt(cookie.encode()), type=_Pending)
        except InvalidToken:
            raise LogInRefused(_RESTARTED) from None
        is_own = secrets.compare_digest(pending.request.state.encode(), state.encode())
        if not is_own or state in self._used or self._now() >= pending.until:
            raise LogInRefused(_STALE)
        return pending

    @contextmanager
    def _one_use(self, state: str) -> Iterator[None]:
        """Let a log-in open a session inside of the context, and then no other one.

        One that has opened none is not recorded, so that only users whom the API server accepts use memory.
        """
        now = self._now()
        while self._used and (oldest := next(iter(self._used.items())))[1] <= now:
            del self._used[oldest[0]]
        if len(self._used) >= self._max_used:
            raise LogInRefused("too many log-ins in the last ten minutes: try again later")
        self._used[state] = now + PENDING_S
        try:
            yield
        except BaseException:
            self._used.pop(state, None)
            raise

    def _refused(self, login: TokenLogin, cause: str, to: str) -> Response:
        log.info("log-in with the provider refused", cause=cause)
        return login.prompt(cause, target=to)

    def _forget(self, answer: Response) -> Response:
        answer.delete_cookie(self._cookie, path="/", secure=self._own.secure, httponly=True, samesite="lax")
        return answer
