"""Providers and browsers that try to log somebody in who has not logged in. Few of them get as far as an API server.

The hostile provider of these tests signs whatever a test wants. What it signs rightly gets as far as the API server.
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import ssl
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import trustme
from aiohttp import web
from fastapi import FastAPI
from joserfc import jwt
from joserfc.jwk import RSAKey

from tests.console.oidc_proxy import oidc_proxy
from tests.support.waiting import eventually
from unbounded.console import oidc_login, oidc_provider, urls
from unbounded.console.guard import ConsoleOrigin, Guard
from unbounded.console.login import TokenLogin
from unbounded.console.oidc_login import OidcLogin
from unbounded.console.oidc_provider import AuthorizationRequest, OidcCredentials, OidcError, OidcProvider, OidcTokens
from unbounded.console.oidc_settings import OIDC_OPTIONS, OidcSettings, oidc_settings
from unbounded.console.sessions import BrowserSessions, ConsoleUser
from unbounded.kube.config import ClientConfig
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.options import OptionValues, SettingsError, add_options

pytestmark = pytest.mark.slow

CLIENT: Final = "console"
HOST: Final = "127.0.0.1:8090"
ORIGIN: Final = f"http://{HOST}"
OWN: Final = ConsoleOrigin(frozenset({HOST}))
ACCEPTED: Final = (
    "no connection to 127.0.0.1:1: refused"  # by the API server, which these tests have not: all before it has passed
)
KEY: Final = RSAKey.generate_key(2048, {"kid": "one"})
NO_SERVER: Final = ClientConfig("http://127.0.0.1:1")
LOGIN_COOKIE: Final = "unbounded-console-login"
OTHER_KEY: Final = RSAKey.generate_key(2048, {"kid": "one"})


class HostileProvider:
    """A provider whose answers a test can bend."""

    def __init__(self) -> None:
        self.issuer = ""
        self.metadata: dict[str, Any] = {}
        self.claims: dict[str, Any] = {}
        self.sign: Callable[[dict[str, Any]], str] = lambda claims: jwt.encode(
            {"alg": "RS256", "kid": "one"}, claims, KEY
        )
        self.answer: dict[str, Any] = {}
        self.nonce = ""
        self.answers = asyncio.Event()  # the token endpoint
        self.answers.set()
        self.asked: list[dict[str, Any]] = []

    def id_token(self) -> str:
        now = int(time.time())
        claims = {"iss": self.issuer, "aud": CLIENT, "sub": "alice", "iat": now, "exp": now + 60, "nonce": self.nonce}
        return self.sign({name: value for name, value in (claims | self.claims).items() if value is not None})

    async def discovery(self, _request: web.Request) -> web.Response:
        names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
        found = {name: f"{self.issuer}/{name}" for name in names}
        return web.json_response({"issuer": self.issuer, **found, **self.metadata})

    async def keys(self, _request: web.Request) -> web.Response:
        return web.json_response({"keys": [KEY.as_dict(private=False)]})

    async def token(self, request: web.Request) -> web.Response:
        self.asked.append(dict(await request.post()))
        await self.answers.wait()
        answer = {"access_token": "a", "token_type": "Bearer", "id_token": self.id_token(), **self.answer}
        return web.json_response(
            {k: v for k, v in answer.items() if v is not None}, status=400 if "error" in answer else 200
        )


@asynccontextmanager
async def hostile(tls: ssl.SSLContext | None = None) -> AsyncIterator[HostileProvider]:
    found = HostileProvider()
    app = web.Application()
    app.router.add_get("/.well-known/openid-configuration", found.discovery)
    for path in ("/jwks_uri", "/.well-known/jwks.json"):
        app.router.add_get(path, found.keys)
    app.router.add_post("/token_endpoint", found.token)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    address: Any = runner.addresses[0]
    found.issuer = f"{'https' if tls else 'http'}://127.0.0.1:{address[1]}"
    try:
        yield found
    finally:
        await runner.cleanup()


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Served:
    """The log-in of a console, behind its guard.

    Args:
        server: the API server; one that gives no answer where it is left out.
    """

    def __init__(
        self,
        provider: HostileProvider,
        own: ConsoleOrigin = OWN,
        *,
        server: ClientConfig = NO_SERVER,
        max_used: int = oidc_login.MAX_USED,
    ) -> None:
        self.provider, self.clock, self.server = provider, Clock(), server
        self._ended: list[ConsoleUser] = []
        sessions = self._sessions = BrowserSessions(
            idle_s=60, absolute_s=600, now=self.clock, forget=self._ended.append
        )
        oidc = OidcLogin(
            OidcProvider(OidcSettings(issuer=provider.issuer, client_id=CLIENT)), own, self.clock, max_used
        )
        login = TokenLogin(sessions, server, ControllerMetrics(), own, oidc)
        app = FastAPI()
        login.add_routes(app)
        self.app = Guard(app, own=own, sessions=sessions, refuse=login.prompt())

    def browser(self) -> httpx2.AsyncClient:
        transport: Any = httpx2.ASGITransport(app=self.app)
        return httpx2.AsyncClient(transport=transport, base_url=ORIGIN)

    async def begin(self, browser: httpx2.AsyncClient, to: str = "/") -> str:
        """Begin a log-in; returns its state."""
        answer = await browser.get(urls.OIDC_LOGIN, params={"to": to})
        assert answer.status_code == 303, answer.text
        asked = parse_qs(urlsplit(answer.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["redirect_uri"] == [f"{ORIGIN}{urls.OIDC_CALLBACK}"]
        self.provider.nonce = asked["nonce"][0]
        return asked["state"][0]

    async def come_back(self, browser: httpx2.AsyncClient, **query: str) -> str:
        answer = await browser.get(urls.OIDC_CALLBACK, params=query)
        assert answer.status_code == 401
        assert "unbounded-console=" not in str(answer.headers.get_list("set-cookie"))
        return answer.text.lower()

    async def log_in(self, browser: httpx2.AsyncClient, state: str) -> int:
        """Come back with a code; returns the status, which is 303 where that opens a session."""
        answer = await browser.get(urls.OIDC_CALLBACK, params={"state": state, "code": "c"})
        return int(answer.status_code)

    async def close(self) -> None:
        self.clock.time += 10_000
        self._sessions.end_expired()
        for user in self._ended:
            await user.api.close()


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with hostile() as provider:
        yield Served(provider)


@pytest.fixture
async def opening(served: Served, kubeconfig: Path) -> AsyncIterator[Served]:
    """A console before an API server that accepts ID tokens of the provider, and one log-in at a time."""
    async with oidc_proxy(kubeconfig, served.provider.issuer, CLIENT) as proxy:
        found = Served(served.provider, server=ClientConfig(proxy.url, ca=proxy.ca), max_used=1)
        yield found
        await found.close()


async def test_what_is_signed_rightly_gets_as_far_as_the_api_server(served: Served) -> None:
    async with served.browser() as browser:
        state = await served.begin(browser)
        assert ACCEPTED in await served.come_back(browser, state=state, code="c")
    [asked] = served.provider.asked
    assert asked["client_id"] == CLIENT
    assert len(asked["code_verifier"]) == 64
    assert browser.cookies.get("unbounded-console-login") is None


async def test_the_cookie_of_a_log_in_is_for_the_way_back_alone(served: Served) -> None:
    async with Served(
        served.provider, ConsoleOrigin(secure=True, cookie="__Host-unbounded-console")
    ).browser() as browser:
        answer = await browser.get(urls.OIDC_LOGIN, headers={"host": "console.example.com"})
    name, *attributes = answer.headers["set-cookie"].split("; ")
    assert name.startswith("__Host-unbounded-console-login=")
    assert sorted(attributes) == ["HttpOnly", "Max-Age=600", "Path=/", "SameSite=lax", "Secure"]
    asked = parse_qs(urlsplit(answer.headers["location"]).query)
    assert asked["redirect_uri"] == [f"https://console.example.com{urls.OIDC_CALLBACK}"]
    assert asked["scope"] == ["openid"]


async def test_a_provider_needs_a_certificate_of_an_authority_that_is_trusted(tmp_path: Path) -> None:
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    ca, garbage = tmp_path / "ca.crt", tmp_path / "garbage.crt"
    authority.cert_pem.write_to_path(str(ca))
    garbage.write_text("garbage")
    request = AuthorizationRequest("https://c/login/oidc/callback", "s", "n", "v" * 43)
    async with hostile(context) as found:
        known = OidcSettings(issuer=found.issuer, client_id=CLIENT)
        assert (await OidcProvider(replace(known, ca_file=ca)).authorization_url(request)).startswith(found.issuer)
        for settings, told in (
            (known, "certificate verify failed"),
            (replace(known, ca_file=garbage), f"the console cannot use {garbage}"),
            (
                replace(known, ca_file=tmp_path / "none"),
                f"the console cannot use {tmp_path / 'none'}: No such file",
            ),
            (
                replace(known, ca_file=ca, client_secret_file=tmp_path / "x"),
                f"cannot use {tmp_path / 'x'}: No such",
            ),
        ):
            with pytest.raises(OidcError, match=told):
                await OidcProvider(settings).authorization_url(request)


def unsigned(claims: dict[str, Any]) -> str:
    return _signed_by_hand({"alg": "none"}, claims, lambda _text: b"")


def with_public_key_as_secret(claims: dict[str, Any]) -> str:
    secret = KEY.as_pem(private=False)
    return _signed_by_hand({"alg": "HS256", "kid": "one"}, claims, lambda text: hmac.digest(secret, text, "sha256"))


def _signed_by_hand(header: dict[str, Any], claims: dict[str, Any], sign: Callable[[bytes], bytes]) -> str:
    text = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    return b".".join((text, urlsafe_b64encode(sign(text)).rstrip(b"="))).decode()


def with_another_key(claims: dict[str, Any]) -> str:
    return jwt.encode({"alg": "RS256", "kid": "one"}, claims, OTHER_KEY)


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"aud": "another"}, "aud"),
        ({"aud": "another", "azp": CLIENT}, "aud"),
        ({"aud": [CLIENT, "another"], "azp": "another"}, "azp"),
        ({"aud": None}, "aud"),
        ({"iss": "https://evil.example.com"}, "iss"),
        ({"iss": None}, "iss"),
        ({"nonce": "another"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"exp": 1}, "expired"),
        ({"exp": None}, "exp"),
        ({"sub": None}, "sub"),
        ({"at_hash": "AAAA"}, "at_hash"),
    ],
)
async def test_an_id_token_with_other_claims_is_refused(served: Served, claims: dict[str, Any], told: str) -> None:
    served.provider.claims = claims
    async with served.browser() as browser:
        answer = await served.come_back(browser, state=await served.begin(browser), code="c")
    assert "the id token of the provider is not valid" in answer
    assert told in answer
    assert ACCEPTED not in answer


@pytest.mark.parametrize("sign", [unsigned, with_public_key_as_secret, with_another_key, lambda _claims: "a.b.c"])
async def test_an_id_token_that_the_provider_has_not_signed_is_refused(
    served: Served, sign: Callable[[dict[str, Any]], str]
) -> None:
    served.provider.sign = sign
    async with served.browser() as browser:
        answer = await served.come_back(browser, state=await served.begin(browser), code="c")
    assert "the id token of the provider is not valid" in answer
    assert ACCEPTED not in answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"id_token": None}, "no id token"),
        ({"error": "invalid_grant", "error_description": "<script>alert(1)</script>"}, "invalid_grant: &lt;script&gt;"),
        ({"error": "x" * 5000}, "x" * 200),
        ({"error": "a\x1b[2J\u202e", "error_description": "b\ud800\r\n"}, r"a\u001b[2j\u202e: b\ud800\r\n"),
    ],
)
async def test_an_error_of_the_provider_is_shown_as_text(served: Served, answer: dict[str, Any], told: str) -> None:
    served.provider.answer = answer
    async with served.browser() as browser:
        shown = await served.come_back(browser, state=await served.begin(browser), code="c")
    assert told in shown
    assert "<script" not in shown
    assert len(shown) < 3000


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example.com"},
        {"token_endpoint": "http://evil.example.com/token"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": "https://idp.example.com/\ud800"},
        {"authorization_endpoint": "https://idp.example.com/\r\nSet-Cookie: a=b"},
        {"jwks_uri": None},
    ],
)
async def test_a_provider_that_leads_elsewhere_is_not_used(served: Served, metadata: dict[str, Any]) -> None:
    served.provider.metadata = metadata
    async with served.browser() as browser:
        answer = await browser.get(urls.OIDC_LOGIN)
    assert answer.status_code == 401
    assert "provider" in answer.text
    assert 'name="token"' in answer.text  # the log-in with a token is offered all the same
    assert "location" not in answer.headers


async def test_a_state_is_of_use_once_in_its_browser_for_ten_minutes(served: Served) -> None:
    stale = "this log-in is not of this browser"
    async with served.browser() as browser, served.browser() as other:
        state = await served.begin(browser)
        assert stale in await served.come_back(browser, state="wrong", code="c")
        assert stale in await served.come_back(browser, code="c")
        assert stale in await served.come_back(other, state=state, code="c")
        await served.begin(other)
        assert stale in await served.come_back(other, state=state, code="c")
        assert served.provider.asked == []
        state = await served.begin(browser)
        assert ACCEPTED in await served.come_back(browser, state=state, code="c")
        assert stale in await served.come_back(browser, state=state, code="c")
        state = await served.begin(browser)
        served.clock.time += oidc_login.PENDING_S
        assert stale in await served.come_back(browser, state=state, code="c")
        assert len(served.provider.asked) == 1


async def test_an_error_or_another_issuer_uses_a_log_in_up(served: Served) -> None:
    async with served.browser() as browser:
        told = {"error": "access_denied", "error_description": "<b>no</b>"}
        state = await served.begin(browser)
        answer = await served.come_back(browser, state=state, **told)
        assert "access_denied: &lt;b&gt;no&lt;/b&gt;" in answer
        assert "not of this browser" in await served.come_back(browser, state=state, code="c")
        state = await served.begin(browser)
        answer = await served.come_back(browser, state=state, code="c", iss="https://evil.example.com")
        assert "another provider has answered" in answer
        foreign = await served.come_back(browser, state="wrong", **told)
        assert "access_denied" not in foreign  # nobody else can put words on this page
        assert served.provider.asked == []


async def test_another_site_cannot_begin_a_log_in(served: Served) -> None:
    async with served.browser() as browser:
        for site in ("cross-site", "same-site"):
            answer = await browser.get(urls.OIDC_LOGIN, headers={"sec-fetch-site": site})
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers


async def test_no_number_of_begun_log_ins_ends_another_one(served: Served) -> None:
    served = Served(served.provider, max_used=1)
    async with served.browser() as browser, served.browser() as flood:
        state, nonce = await served.begin(browser), served.provider.nonce
        for _ in range(3):
            await served.begin(flood)
        served.provider.nonce = nonce
        assert ACCEPTED in await served.come_back(browser, state=state, code="c")


async def test_a_copy_of_the_cookie_of_a_log_in_opens_no_second_session(opening: Served) -> None:
    """Before a provider that takes a code more than once."""
    async with opening.browser() as browser, opening.browser() as copy:
        state = await opening.begin(browser)
        copy.cookies.update(browser.cookies)
        assert await opening.log_in(browser, state) == 303
        assert browser.cookies.get(LOGIN_COOKIE) is None
        assert "not of this browser" in await opening.come_back(copy, state=state, code="c")
        opening.clock.time += oidc_login.PENDING_S
        assert "not of this browser" in await opening.come_back(copy, state=state, code="c")
        assert len(opening.provider.asked) == 1


async def test_a_log_in_is_of_use_once_at_the_same_time(served: Served) -> None:
    async with served.browser() as browser, served.browser() as copy:
        state = await served.begin(browser)
        copy.cookies.update(browser.cookies)
        served.provider.answers.clear()
        first = asyncio.create_task(served.come_back(browser, state=state, code="c"))
        await eventually(lambda: served.provider.asked)
        assert "not of this browser" in await served.come_back(copy, state=state, code="c")
        served.provider.answers.set()
        assert ACCEPTED in await first
        assert len(served.provider.asked) == 1


async def test_one_session_too_many_waits_until_the_log_ins_before_it_have_expired(opening: Served) -> None:
    async with opening.browser() as browser, opening.browser() as other:
        assert await opening.log_in(browser, await opening.begin(browser)) == 303
        answer = await opening.come_back(other, state=await opening.begin(other), code="c")
        assert "too many log-ins in the last ten minutes" in answer
        opening.clock.time += oidc_login.PENDING_S
        assert await opening.log_in(other, await opening.begin(other)) == 303


async def test_log_ins_that_open_no_session_use_no_memory(served: Served) -> None:
    served = Served(served.provider, max_used=1)
    async with served.browser() as browser:
        for _ in range(2):
            assert ACCEPTED in await served.come_back(browser, state=await served.begin(browser), code="c")


async def test_a_cookie_that_this_process_has_not_sealed_is_refused(served: Served) -> None:
    other = Served(served.provider)  # as after a restart
    async with served.browser() as browser:
        state = await served.begin(browser)
        sealed = browser.cookies[LOGIN_COOKIE]
        async with other.browser() as restarted:
            restarted.cookies.update(browser.cookies)
            assert "has restarted since" in await other.come_back(restarted, state=state, code="c")
            begun = await other.begin(restarted)  # as the page offers it
            assert ACCEPTED in await other.come_back(restarted, state=begun, code="c")
        asked = len(served.provider.asked)
        for forged in ("x", "gAAAAA", f"{sealed[:-6]}AAAAA=", f"A{sealed[1:]}", f"{sealed[:40]}AAAA{sealed[44:]}"):
            browser.cookies.clear()
            browser.cookies.set(LOGIN_COOKIE, forged)
            assert "has restarted since" in await served.come_back(browser, state=state, code="c")
        browser.cookies.clear()
        headers = {b"cookie": LOGIN_COOKIE.encode() + b"=\xe9"}
        answer = await browser.get(urls.OIDC_CALLBACK, params={"state": state, "code": "c"}, headers=headers)
        assert (answer.status_code, "has restarted since" in answer.text) == (401, True)
        assert len(served.provider.asked) == asked


async def test_a_cookie_of_a_log_in_tells_nothing_of_it_and_fits_into_a_browser(served: Served) -> None:
    async with served.browser() as browser:
        for length, kept in ((2000, True), (4000, False)):
            to = f"/machine/{'a' * length}"
            answer = await browser.get(urls.OIDC_LOGIN, params={"to": to})
            asked = parse_qs(urlsplit(answer.headers["location"]).query)
            cookie = answer.headers["set-cookie"]
            assert len(cookie) < 4096
            sealed = urlsafe_b64decode(browser.cookies[LOGIN_COOKIE].strip('"'))
            for text in (asked["state"][0], asked["nonce"][0], "verifier", "machine"):
                assert text.encode() not in sealed
            served.provider.claims = {"aud": "another"}
            served.provider.nonce = asked["nonce"][0]
            page = await served.come_back(browser, state=asked["state"][0], code="c")
            assert (f'value="{to}"' in page) is kept


@pytest.mark.parametrize(
    "to", ["//evil.example.com", "/\\evil.example.com", "https://evil.example.com", "/\t/evil.example.com"]
)
async def test_a_log_in_leads_to_no_other_site(served: Served, to: str) -> None:
    async with served.browser() as browser:
        served.provider.claims = {"aud": "another"}
        answer = await served.come_back(browser, state=await served.begin(browser, to), code="c")
        assert "evil" not in answer
        state = await served.begin(browser, "/machine/a?b=%22")
        answer = await served.come_back(browser, state=state, code="c")
        assert 'value="/machine/a?b=%22"' in answer
        assert f'href="{urls.OIDC_LOGIN}?to=%2fmachine%2fa%3fb%3d%2522"' in answer


async def test_a_renewed_id_token_is_validated_as_the_first_one_was(served: Served) -> None:
    provider = OidcProvider(OidcSettings(issuer=served.provider.issuer, client_id=CLIENT))
    tokens = OidcTokens("old", "r", "alice", time.time())
    for claims in ({"sub": "mallory"}, {"aud": "another"}, {"iss": "https://evil.example.com"}, {"exp": 1}):
        served.provider.claims = claims
        with pytest.raises(OidcError):
            await provider.renew(tokens)
        credentials = OidcCredentials(provider, tokens)
        assert (await credentials.login()).token == "old"
        asked = len(served.provider.asked)
        assert (await credentials.login()).token == "old"
        assert len(served.provider.asked) == asked  # a refresh token that has failed is not used again
    served.provider.claims = {"nonce": None}  # as the standard has it
    fresh = await provider.renew(tokens)
    assert (fresh.subject, fresh.refresh_token) == ("alice", "r")
    assert fresh.id_token not in repr(fresh)
    served.provider.answer = {"refresh_token": "r2"}
    assert (await provider.renew(tokens)).refresh_token == "r2"


async def test_a_renewal_outlives_the_request_that_began_it(served: Served) -> None:
    """As a refresh token may be of use once: the page that was closed meanwhile must not end the session."""
    credentials = OidcCredentials(
        OidcProvider(OidcSettings(issuer=served.provider.issuer, client_id=CLIENT)),
        OidcTokens("old", "r", "alice", time.time()),
    )
    served.provider.nonce = ""
    served.provider.claims, served.provider.answer = {"nonce": None}, {"refresh_token": "r2"}
    served.provider.answers.clear()
    requests = [asyncio.create_task(credentials.login()) for _ in range(2)]
    async with asyncio.timeout(10):
        while not served.provider.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        requests[0].cancel()
        await asyncio.wait(requests[:1])
        served.provider.answers.set()
        fresh = (await requests[1]).token
    assert fresh not in ("old", None)
    assert (await credentials.login()).token == fresh
    assert [one["refresh_token"] for one in served.provider.asked] == ["r"]


async def test_no_request_waits_for_the_renewal_of_a_token_that_is_still_valid(served: Served) -> None:
    now = time.time()
    provider = OidcProvider(OidcSettings(issuer=served.provider.issuer, client_id=CLIENT), now=lambda: now)
    credentials = OidcCredentials(provider, OidcTokens("old", "r", "alice", now))
    served.provider.claims = {"nonce": None}
    served.provider.answers.clear()
    now -= 1  # by the clock of the provider, there is some time left
    async with asyncio.timeout(10):
        assert (await credentials.login()).token == "old"
        while not served.provider.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (await credentials.login()).token == "old"
        served.provider.answers.set()
        while (await credentials.login()).token == "old":  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert len(served.provider.asked) == 1


@pytest.mark.parametrize("error", ["invalid_client", "temporarily_unavailable"])
async def test_an_error_that_is_not_about_the_user_keeps_the_refresh_token(
    served: Served, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a new secret of the client, which the console does not have yet."""
    monkeypatch.setattr(oidc_provider, "RETRY_S", 0.0)
    provider = OidcProvider(OidcSettings(issuer=served.provider.issuer, client_id=CLIENT))
    credentials = OidcCredentials(provider, OidcTokens("old", "r", "alice", time.time()))
    served.provider.claims, served.provider.answer = {"nonce": None}, {"error": error}
    assert (await credentials.login()).token == "old"
    served.provider.answer = {}
    assert (await credentials.login()).token != "old"


async def test_a_secret_of_the_client_that_is_being_replaced_keeps_the_refresh_token(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(oidc_provider, "RETRY_S", 0.0)
    secret = tmp_path / "secret"
    provider = OidcProvider(OidcSettings(issuer=served.provider.issuer, client_id=CLIENT, client_secret_file=secret))
    credentials = OidcCredentials(provider, OidcTokens("old", "r", "alice", time.time()))
    served.provider.claims = {"nonce": None}
    assert (await credentials.login()).token == "old"
    secret.write_text("s")
    assert (await credentials.login()).token != "old"


def parse(*flags: str) -> OidcSettings | None:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, "UNBOUNDED_CONSOLE", OIDC_OPTIONS)
    return oidc_settings(OptionValues(parser.parse_args(flags), "UNBOUNDED_CONSOLE", {}, OIDC_OPTIONS))


@pytest.mark.parametrize(
    "url",
    [
        "http://idp.example.com",
        "https://",
        "idp.example.com",
        "https://a?b",
        "https://a#b",
        "https://u:p@a",
        "https://a:x",
    ],
)
def test_an_issuer_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(argparse.ArgumentError, match="oidc-issuer-url"):
        parse("--oidc-issuer-url", url, "--oidc-client-id", "c")


@pytest.mark.parametrize(
    "url", ["https://idp.example.com/realms/a/", "http://127.0.0.1:1/o", "http://[::1]:1", "http://localhost"]
)
def test_an_issuer_is_kept_as_it_was_given(url: str) -> None:
    found = parse(
        "--oidc-issuer-url", url, "--oidc-client-id", "c", "--oidc-scopes", "email", "--oidc-scopes", "groups"
    )
    assert found == OidcSettings(issuer=url, client_id="c", scopes=("openid", "email", "groups"))


@pytest.mark.parametrize("scope", ['a"b', "a\\b", "é", "a\x7f"])
def test_a_scope_that_cannot_be_one_is_refused(scope: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=r"oidc-scopes: .* is not a scope"):
        parse("--oidc-issuer-url", "https://a", "--oidc-client-id", "c", "--oidc-scopes", f"groups {scope}")


def test_settings_of_a_provider_belong_together() -> None:
    assert parse() is None
    with pytest.raises(SettingsError, match="--oidc-client-id has no meaning without --oidc-issuer-url"):
        parse("--oidc-client-id", "c")
    with pytest.raises(SettingsError, match="needs --oidc-client-id"):
        parse("--oidc-issuer-url", "https://a")
