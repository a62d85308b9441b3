"""The log-in with an OpenID Connect provider in Chromium, before an API server that accepts its ID tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Route, expect

from tests.console.browser import CHROMIUM, LIMIT_S, Tab, log_in, tab
from tests.console.hostile import PAYLOADS, check_texts
from tests.console.oidc_proxy import PREFIX, OidcProxy, oidc_proxy
from tests.console.openid_provider import (
    CONFIDENTIAL,
    PASSWORD,
    PUBLIC,
    SECRET,
    USER,
    Provider,
    issuer,
    provider,
)
from tests.console.running import console_of
from tests.console.served import BINDINGS, RBAC, ROLES, create_new, create_reader
from tests.support.ports import free_ports
from unbounded.api.names import GROUP
from unbounded.kube.client import HttpApi
from unbounded.kube.visible_text import visible_text

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
LIFE_S = 10  # of an ID token that is to expire
HOSTILE: Final = (  # names of users
    " ".join(PAYLOADS),
    "system:masters\r\nERROR forged\r\nSet-Cookie: a=b\x1b[2J\x9b2J\x07\0",
    "\u202enimda:metsys\u2066\u200b\u200f\u2028",
    "very-long-" * 150,
)


@dataclass
class Served:
    url: str
    port: int
    provider: Provider
    proxy: OidcProxy
    printed: list[str]
    ended: list[str] = field(default_factory=list)  # names whose login has ended, as pages show them


@asynccontextmanager
async def oidc_console(
    kubeconfig: Path, folder: Path, *flags: str, client: str = PUBLIC, life_s: int = 600, names: Sequence[str] = ()
) -> AsyncIterator[Served]:
    """Run a provider, a proxy and a console inside of the context."""
    port, own = free_ports(2)
    redirect = f"http://127.0.0.1:{own}/login/oidc/callback"
    async with (
        provider(folder, port, redirect, life_s=life_s, names=names) as running,
        oidc_proxy(kubeconfig, running.issuer, client) as proxy,
        console_of(
            *(proxy.url, proxy.ca, folder, "--plain-addr", f"127.0.0.1:{own}"),
            *("--oidc-issuer-url", running.issuer, "--oidc-client-id", client, "--log-level", "debug", *flags),
        ) as (address, printed),
    ):
        yield Served(f"http://{address}", port, running, proxy, printed)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def reader(api: HttpApi) -> None:
    """Let the user of the provider read Machines."""
    rules = [{"apiGroups": [GROUP], "resources": ["machines", "machineoperations"], "verbs": ["get", "list", "watch"]}]
    await create_new(api, ROLES, {"metadata": {"name": "oidc-reader"}, "rules": rules})
    ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "oidc-reader"}
    subject = {"apiGroup": RBAC, "kind": "User", "name": f"{PREFIX}1"}
    await create_new(api, BINDINGS, {"metadata": {"name": "oidc-reader"}, "roleRef": ref, "subjects": [subject]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(kubeconfig: Path, reader: None, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Served]:
    async with oidc_console(kubeconfig, tmp_path_factory.mktemp("oidc"), names=HOSTILE) as found:
        yield found
    printed = "".join(found.printed)
    assert [one for one in printed if not one.isprintable() and one != "\n"] == []
    assert "\nERROR" not in printed
    for name in found.ended:
        assert name[:20] in printed
    assert "DEBUG" in printed
    assert [one for one in found.proxy.accepted if one in printed or one.split(".")[2] in printed] == []
    assert "code=" not in printed


async def to_provider(found: Tab) -> None:
    await found.page.get_by_role("link", name="Log in with 127.0.0.1").click()


async def sign_in(found: Tab, user: str = USER, *, allow: bool = True) -> None:
    """Log in at the provider, and let it tell the console."""
    await authenticate(found, user)
    await found.page.get_by_role("button", name="Authorize" if allow else "Cancel").click()


async def authenticate(found: Tab, user: str = USER) -> None:
    await to_provider(found)
    await found.page.get_by_label("Username").fill(user)
    await found.page.get_by_label("Password").fill(PASSWORD)
    await found.page.get_by_role("button", name="Sign in").click()


async def caught_callback(found: Tab, *, signed_in: bool = False) -> str:
    """Log in at the provider, and return the address to which that leads back, without going there."""
    caught: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def catch(route: Route) -> None:
        answer = await route.fetch(max_redirects=0)
        caught.set_result(answer.headers["location"])
        await route.fulfill(body="caught")

    await (to_provider if signed_in else authenticate)(found)
    await found.page.get_by_role("button", name="Authorize").wait_for()
    await found.page.route("**/o/authorize/**", catch)
    await found.page.get_by_role("button", name="Authorize").click()
    async with asyncio.timeout(LIMIT_S):
        url = await caught
    await found.page.unroute("**/o/authorize/**")
    return url


def done(found: Tab) -> None:
    """Accept that Chromium reports the status 401 of the log-in, and that the tab was at the provider."""
    found.errors.clear()
    found.strays.clear()


async def test_the_provider_opens_a_session_and_leads_to_the_page_that_was_asked_for(
    served: Served, browser: Browser
) -> None:
    async with tab(browser, f"{served.url}/machine/m-003?x=%22%3E1&y=2") as found:
        urls: list[str] = []
        found.page.on("request", lambda one: urls.append(one.url) if one.is_navigation_request() else None)
        assert await found.findings_on_all_screens() == []
        assert await found.keyboard_findings() == []
        await sign_in(found)
        await found.shows("m-003")
        await found.shows(f"{PREFIX}1")
        assert found.page.url == f"{served.url}/machine/m-003?x=%22%3E1&y=2"
        [cookie] = [one for one in await found.page.context.cookies() if one["name"].startswith("unbounded")]
        assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Lax")
        token = served.proxy.accepted[-1]
        assert token not in await found.page.content()
        assert token not in str(await found.page.context.cookies())
        assert not any(token in one for one in urls)
        asked = next(parse_qs(urlsplit(one).query) for one in urls if "next=" in one)["next"][0]
        assert parse_qs(urlsplit(asked).query)["scope"] == ["openid offline_access"]
        callback = next(one for one in urls if "/callback?" in one)
        await found.page.get_by_role("button", name="Log out").click()
        await found.shows("Token of the API server")
        await found.page.goto(callback)  # the same code once more
        await found.shows("This log-in is not of this browser, was used before")
        done(found)


async def test_a_user_who_refuses_is_told_so_and_may_use_a_token(
    served: Served, browser: Browser, api: HttpApi
) -> None:
    token = await create_reader(api, "beside-oidc", "machines", "machineoperations")
    async with tab(browser, served.url) as found:
        await sign_in(found, allow=False)
        await found.shows("the provider has refused: access_denied")
        await log_in(found, token)
        await found.shows("system:serviceaccount:default:beside-oidc")
        done(found)


@pytest.mark.parametrize("number", range(len(HOSTILE)))
async def test_a_hostile_name_of_a_user_is_text(served: Served, browser: Browser, number: int) -> None:
    """The name of a user, as the provider has it, is neither markup nor a command, and hides no other text."""
    shown = f"{PREFIX}{visible_text(HOSTILE[number])}"
    served.proxy.claim = "preferred_username"
    try:
        async with tab(browser, served.url) as found:
            await sign_in(found, f"user-{number}")
            await found.shows("You may not read machines.")
            await found.lacks("0 Machines")  # as nobody knows that
            found.strays.clear()  # at the provider
            await check_texts(found, [shown], shown[:40], part=".user")
            assert (await found.page.locator(".user").text_content() or "").isprintable()
            assert await found.page.locator("header :is(script, img, iframe, svg, b)").count() == 0
            if "long" in shown:
                assert await found.findings_on_all_screens() == []
            box = await found.page.locator("header").bounding_box()
            assert box is not None
            assert box["height"] < 200
            served.proxy.accepts = False
            await found.shows("Token of the API server")
            served.ended.append(shown)
            done(found)
    finally:
        served.proxy.claim, served.proxy.accepts = "sub", True


async def test_a_user_whose_address_is_not_verified_gets_no_session(served: Served, browser: Browser) -> None:
    """As the API server names users by their addresses, and refuses one that anybody can choose."""
    served.proxy.claim = "email"
    try:
        async with tab(browser, served.url) as found:
            await sign_in(found, "user-0")
            await found.shows("The API server does not accept this token.")
            assert "unbounded-console" not in [one["name"] for one in await found.page.context.cookies()]
            done(found)
    finally:
        served.proxy.claim = "sub"


async def test_a_log_in_of_another_browser_is_refused(served: Served, browser: Browser) -> None:
    """An attacker sends a victim the address that would log the victim in as the attacker."""
    async with tab(browser, served.url) as attacker, tab(browser, served.url) as victim:
        caught = await caught_callback(attacker)
        await victim.page.goto(caught)
        await victim.shows("This log-in is not of this browser")
        await to_provider(victim)  # and with a cookie of a log-in of its own
        await victim.page.get_by_label("Username").wait_for()
        await victim.page.goto(caught)
        await victim.shows("This log-in is not of this browser")
        names = [one["name"] for one in await victim.page.context.cookies()]
        assert "unbounded-console" not in names
        await attacker.page.goto(caught)  # nothing has used it up
        await attacker.shows("120 Machines")
        await attacker.page.get_by_role("button", name="Log out").click()
        await attacker.shows("Token of the API server")
        code = parse_qs(urlsplit(await caught_callback(attacker, signed_in=True)).query)["code"][0]
        await victim.page.goto(served.url)
        own = await caught_callback(victim)
        await victim.page.goto(own.replace(parse_qs(urlsplit(own).query)["code"][0], code))
        await victim.shows("the provider has refused: invalid_grant")  # as the verifier is another one (PKCE)
        done(attacker)
        done(victim)


async def test_a_copy_of_the_cookie_of_a_log_in_is_of_no_use_after_it(served: Served, browser: Browser) -> None:
    async with tab(browser, served.url) as found:
        caught = await caught_callback(found)
        [copied] = [one for one in await found.page.context.cookies(served.url) if "-login" in one.get("name", "")]
        await found.page.goto(caught)
        await found.shows("120 Machines")
        await found.page.get_by_role("button", name="Log out").click()
        await found.shows("Token of the API server")
        await found.page.context.add_cookies([{"name": copied["name"], "value": copied["value"], "url": served.url}])
        await found.page.goto(caught)
        await found.shows("This log-in is not of this browser, was used before")  # before the provider is asked
        done(found)


async def test_a_restart_of_the_console_ends_a_log_in_and_says_so(
    kubeconfig: Path, reader: None, browser: Browser, tmp_path: Path
) -> None:
    port, own = free_ports(2)
    redirect = f"http://127.0.0.1:{own}/login/oidc/callback"
    async with provider(tmp_path, port, redirect) as running, oidc_proxy(kubeconfig, running.issuer, PUBLIC) as proxy:
        flags = (*("--plain-addr", f"127.0.0.1:{own}"), *("--oidc-issuer-url", running.issuer))
        words = (proxy.url, proxy.ca, tmp_path, *flags, "--oidc-client-id", PUBLIC)
        async with AsyncExitStack() as first, AsyncExitStack() as second:
            address, _ = await first.enter_async_context(console_of(*words))
            async with tab(browser, f"http://{address}") as found:
                caught = await caught_callback(found)
                await first.aclose()
                await second.enter_async_context(console_of(*words))
                await found.page.goto(caught)
                await found.shows("This console has not begun this log-in, or has restarted since. Begin again.")
                await to_provider(found)
                await found.page.get_by_role("button", name="Authorize").click()
                await found.shows("120 Machines")
                done(found)


async def test_a_log_in_ends_the_former_session_of_its_browser(served: Served, browser: Browser, api: HttpApi) -> None:
    token = await create_reader(api, "before-oidc", "machines", "machineoperations")
    async with tab(browser, served.url) as found:
        caught = await caught_callback(found)
        former = await found.page.context.new_page()
        await former.goto(served.url)
        await log_in(Tab(former, served.url), token)
        name = former.locator(".user")
        await expect(name).to_have_text("system:serviceaccount:default:before-oidc")
        await found.page.goto(caught)
        await found.shows(f"{PREFIX}1")
        await expect(name).to_have_text(f"{PREFIX}1")
        done(found)


async def test_an_id_token_is_renewed_until_the_provider_ends_it(
    kubeconfig: Path, reader: None, browser: Browser, tmp_path: Path
) -> None:
    """With a secret of the client. The session outlives its ID tokens, and then ends with the last one."""
    secret = tmp_path / "secret"
    secret.write_text(f"{SECRET}\n")
    flags = ("--oidc-client-secret-file", str(secret))
    async with (
        oidc_console(kubeconfig, tmp_path, *flags, client=CONFIDENTIAL, life_s=LIFE_S) as served,
        tab(browser, served.url) as found,
    ):
        await sign_in(found)
        await found.shows("120 Machines")
        async with asyncio.timeout(60):
            for _ in range(2):
                await served.proxy.fresh.get()
        assert served.proxy.refused == []
        await found.shows("120 Machines")
        async with httpx2.AsyncClient() as client:
            forgotten = f"{served.provider.issuer.removesuffix('/o')}/forget-refresh-tokens"
            assert (await client.post(forgotten)).status_code == 204
        await found.shows("Token of the API server", within_s=60)
        await found.page.goto(f"{served.url}/machine/m-001")
        await found.shows("Token of the API server")
        assert set(served.proxy.refused) == {"ExpiredSignatureError"}
        done(found)


async def test_a_provider_may_be_down(
    kubeconfig: Path, reader: None, browser: Browser, api: HttpApi, tmp_path: Path
) -> None:
    """When the console starts, and when the user comes back from it; the log-in with a token works all the time."""
    token = await create_reader(api, "without-provider", "machines", "machineoperations")
    port, own = free_ports(2)
    redirect = f"http://127.0.0.1:{own}/login/oidc/callback"
    async with (
        oidc_proxy(kubeconfig, issuer(port), PUBLIC) as proxy,
        console_of(
            *(proxy.url, proxy.ca, tmp_path, "--plain-addr", f"127.0.0.1:{own}"),
            *("--oidc-issuer-url", issuer(port), "--oidc-client-id", PUBLIC),
        ) as (address, _printed),
        tab(browser, f"http://{address}") as found,
    ):
        await to_provider(found)
        await found.shows(f"the provider {issuer(port)} gives no answer")
        async with provider(tmp_path, port, redirect):
            caught = await caught_callback(found)
        await found.page.goto(caught)
        await found.shows(f"the provider {issuer(port)} gives no answer")
        await log_in(found, token)
        await found.shows("120 Machines")
        done(found)
