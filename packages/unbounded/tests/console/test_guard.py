"""The guard of the console: hosts, origins, cookies and websockets; and the life of sessions."""

from __future__ import annotations

from typing import Any, cast

import pytest

from unbounded.console import urls
from unbounded.console.guard import COOKIE, ConsoleOrigin, Guard, Message, Scope
from unbounded.console.sessions import (
    MAX_LOGINS,
    MAX_OF_USER,
    MAX_PAGES,
    BrowserSession,
    BrowserSessions,
    OneTimeUrls,
    identity_of,
)
from unbounded.kube.client import HttpApi

HOST = "127.0.0.1:8642"
ORIGIN = f"http://{HOST}"


class NoApi:
    """An API that no test calls."""


class EndedPage:
    def __init__(self) -> None:
        self.reasons: list[str] = []

    def end(self, reason: str) -> None:
        self.reasons.append(reason)

    def retire(self, reason: str) -> None:
        self.reasons.append(f"retired: {reason}")


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def new_sessions(clock: Clock | None = None) -> BrowserSessions:
    return BrowserSessions(idle_s=60, absolute_s=600, now=clock or Clock())


def begin(sessions: BrowserSessions, token: str = "t", name: str = "") -> BrowserSession:
    return sessions.begin(identity_of(token), name or token, cast("HttpApi", NoApi()))


class Served:
    """A guard, and what reached the application behind it."""

    def __init__(self) -> None:
        self.sessions = new_sessions()
        self.session = begin(self.sessions)
        self.session.pages["page-1"] = EndedPage()
        self.reached: list[str] = []
        own = ConsoleOrigin(frozenset({HOST}))
        self.guard = Guard(self._app("app"), own=own, sessions=self.sessions, refuse=self._app("log-in"))

    def _app(self, name: str) -> Any:
        async def app(scope: Scope, receive: Any, send: Any) -> None:
            self.reached.append(name)
            if scope["type"] == "http":
                await send({"type": "http.response.start", "status": 200, "headers": []})

        return app

    async def request(self, path: str = "/", kind: str = "http", method: str = "GET", **headers: str) -> list[Message]:
        named = {"host": HOST, **{name.replace("_", "-"): text for name, text in headers.items()}}
        path, _, query = path.partition("?")
        scope: Scope = {
            "type": kind,
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": [(name.encode(), text.encode()) for name, text in named.items() if text],
        }
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        await self.guard(scope, cast("Any", None), send)
        return sent

    @property
    def cookie(self) -> str:
        return f"{COOKIE}={self.session.id}"


async def test_a_page_is_served_to_its_session_and_others_log_in() -> None:
    served = Served()
    await served.request(cookie=served.cookie)
    await served.request()
    await served.request(cookie=f"{COOKIE}=other")
    assert served.reached == ["app", "log-in", "log-in"]


async def test_static_files_and_the_first_address_need_no_session() -> None:
    served = Served()
    for path in ("/static/console.css", "/_nicegui/3/static/nicegui.js", "/start/x", "/login"):
        await served.request(path)
    assert served.reached == ["app"] * 4


@pytest.mark.parametrize("path", ["/loginfoo", "/login/x", "/favicon.icox", "/start/x/y"])
async def test_no_other_path_is_served_without_a_session(path: str) -> None:
    served = Served()
    await served.request(path)
    assert served.reached == ["log-in"]


@pytest.mark.parametrize("other", ['prefs={"a":1}', "x=a b c", "a[b]=1", "foo", 'a="', "user@x=1", "a=\xe9"])
async def test_cookies_of_other_ports_do_not_hide_the_session(other: str) -> None:
    served = Served()
    await served.request(cookie=f"{other}; {served.cookie}; {other}")
    assert served.reached == ["app"]


@pytest.mark.parametrize("host", ["", "evil.example:8642", "127.0.0.1", "127.0.0.1:8642, evil.example"])
async def test_another_host_is_refused(host: str) -> None:
    """A name of an attacker may resolve to loopback."""
    served = Served()
    assert (await served.request(host=host, cookie=served.cookie))[0]["status"] == 421
    assert served.reached == []


@pytest.mark.parametrize(
    "origin", ["", "null", "http://evil.example", "http://127.0.0.1:9999", f"{ORIGIN}.evil.example"]
)
async def test_a_write_or_websocket_from_elsewhere_is_refused(origin: str) -> None:
    served = Served()
    answer = await served.request("/end", method="POST", cookie=served.cookie, origin=origin)
    assert answer[0]["status"] == 403
    path = "/_nicegui_ws/socket.io?client_id=page-1"
    assert (await served.request(path, "websocket", cookie=served.cookie, origin=origin))[0][
        "type"
    ] == "websocket.close"
    assert served.reached == []


async def test_a_write_of_the_console_itself_is_served() -> None:
    served = Served()
    await served.request("/end", method="POST", cookie=served.cookie, origin=ORIGIN, sec_fetch_site="same-origin")
    assert served.reached == ["app"]
    crossed = await served.request(
        "/end", method="POST", cookie=served.cookie, origin=ORIGIN, sec_fetch_site="same-site"
    )
    assert crossed[0]["status"] == 403


async def test_a_websocket_belongs_to_a_page_of_its_session() -> None:
    served = Served()
    other = begin(served.sessions, "other")
    other.pages["page-2"] = EndedPage()
    tried = {}
    for page in ("page-1", "page-2", "closed", ""):
        path = f"/_nicegui_ws/socket.io?client_id={page}"
        answer = await served.request(path, "websocket", cookie=served.cookie, origin=ORIGIN)
        tried[page] = not answer
    assert tried == {"page-1": True, "page-2": False, "closed": True, "": False}
    for page in ("page-1", "closed"):
        without = await served.request(f"/_nicegui_ws/socket.io?client_id={page}", "websocket", origin=ORIGIN)
        assert without[0]["type"] == "websocket.close"
    for page, is_left in (("page-1", False), ("closed", True)):  # to NiceGUI, which refuses an unknown page at once
        path = f"/_nicegui_ws/socket.io?client_id={page}&implicit_handshake=true"
        assert bool(await served.request(path, "websocket", origin=ORIGIN)) is not is_left


async def test_polling_in_place_of_a_websocket_is_refused() -> None:
    served = Served()
    answer = await served.request("/_nicegui_ws/socket.io?client_id=page-1&transport=polling", cookie=served.cookie)
    assert answer[0]["status"] == 403


def test_sessions_end_after_idleness_and_after_their_time() -> None:
    clock = Clock()
    sessions = new_sessions(clock)
    idle, used = begin(sessions), begin(sessions)
    page = EndedPage()
    used.pages["p"] = page
    clock.now_s = 61
    assert sessions.find(idle.id) is None
    assert sessions.find(used.id) is used  # a page of it is open
    clock.now_s = 601
    assert sessions.find(used.id) is None
    assert page.reasons == ["the session has expired"]


def test_users_share_data_only_with_the_same_credentials() -> None:
    sessions = new_sessions()
    first, second, other = begin(sessions, "a"), begin(sessions, "a"), begin(sessions, "b")
    assert first.user.live is second.user.live
    assert first.user.live is not other.user.live
    sessions.end_user(first.user.identity, "revoked")
    assert sessions.find(first.id) is sessions.find(second.id) is None
    assert sessions.find(other.id) is other


def test_a_prepared_user_stays_without_a_session() -> None:
    sessions = new_sessions()
    user = sessions.prepare(identity_of("a"), "a", cast("HttpApi", NoApi()))
    for _ in range(2):
        session = begin(sessions, "a")
        assert session.user is user
        sessions.end(session, "over")


def test_the_oldest_session_of_a_user_ends_for_one_too_many() -> None:
    clock = Clock()
    sessions = new_sessions(clock)
    begun = []
    for _ in range(MAX_OF_USER + 1):
        clock.now_s += 1
        begun.append(begin(sessions))
    assert [sessions.find(one.id) is None for one in begun] == [True] + [False] * MAX_OF_USER


def test_the_oldest_login_of_a_user_ends_for_one_too_many() -> None:
    """Each token of `kubectl create token` is another login, with live data of its own."""
    clock = Clock()
    sessions = new_sessions(clock)
    other = begin(sessions, "other")
    begun = []
    for number in range(MAX_LOGINS + 1):
        clock.now_s += 1
        begun += [begin(sessions, f"token-{number}", "alice") for _ in range(2)]
    assert [sessions.find(one.id) is None for one in begun] == [True] * 2 + [False] * 2 * MAX_LOGINS
    assert sessions.find(other.id) is other


def test_the_first_page_of_a_session_ends_for_one_too_many() -> None:
    sessions = new_sessions()
    session, other = begin(sessions), begin(sessions)
    pages = [EndedPage() for _ in range(MAX_PAGES + 1)]
    other.open_page("other", kept := EndedPage())
    for number, page in enumerate(pages):
        session.open_page(f"page-{number}", page)
    assert pages[0].reasons == [f"retired: {MAX_PAGES} newer pages are open"]
    assert list(session.pages.values()) == pages[1:]
    assert kept.reasons == []


@pytest.mark.parametrize("target", ["/", "/?text=a%20b&site=%2F%2F", "/machine/lab-01?x=1", "/host/ns/a%5Cb"])
def test_a_target_is_a_page_of_the_console(target: str) -> None:
    assert urls.own_target(target) == target


@pytest.mark.parametrize(
    "target",
    [
        "",
        "//example.com",
        "/\\example.com",
        "/a\\b",
        "/\t/example.com",
        "/a\n",
        "https://example.com",
        "a",
        "/\x7f",
        "/é",
    ],
)
def test_another_target_leads_to_the_fleet(target: str) -> None:
    assert urls.own_target(target) == urls.FLEET


def test_an_address_is_of_use_once_and_the_next_one_is_another() -> None:
    issued: list[str] = []
    urls = OneTimeUrls(issued.append)
    assert not urls.redeem("")
    urls.issue()
    assert not urls.redeem("x")
    assert urls.redeem(issued[0])
    assert not urls.redeem(issued[0])
    assert len(set(issued)) == 2
    assert urls.redeem(issued[1])
