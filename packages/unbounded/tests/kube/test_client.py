"""The HTTP client against servers that do what no healthy one does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partialmethod
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.scripted_http import Exchange, Handler, ScriptedServer, scripted_server
from unbounded.api.core import CONFIG_MAPS, LEASES, ConfigMap
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import (
    ApiError,
    Conflict,
    EventType,
    Expired,
    Forbidden,
    InvalidObject,
    NotFound,
    ReadFailed,
    ResponseLost,
    ServerBusy,
    ServerError,
    ServerUnreachable,
    WatchEvent,
)
from unbounded.kube.client import CONNECTIONS, HttpApi
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo
from unbounded.kube.http_pool import HttpPool
from unbounded.kube.metrics import ControllerMetrics


def config_map(name: str, version: int = 1, **data: str) -> dict[str, Any]:
    meta = {"name": name, "namespace": "n", "resourceVersion": str(version), "managedFields": [{"manager": "x"}]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def status(code: int, reason: str, message: str) -> dict[str, Any]:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "reason": reason, "message": message}


@contextlib.asynccontextmanager
async def talking(handler: Handler, **options: Any) -> AsyncIterator[tuple[HttpApi, ScriptedServer]]:
    config = options.pop("config", None)
    async with scripted_server(handler) as server, HttpApi(config or ClientConfig(server.url), **options) as api:
        if config is not None:
            api.config = ClientConfig(server.url, credentials=config.credentials)
        yield api, server


async def collect(stream: AsyncIterator[WatchEvent[Any]]) -> list[WatchEvent[Any]]:
    async with asyncio.timeout(10):
        return [event async for event in stream]


# ---- requests


async def test_requests_are_what_kubernetes_expects() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(200, config_map("a"))

    async with talking(handler, user_agent="metalman/1") as (api, server):
        await api.get(CONFIG_MAPS, "a", namespace="n")
        await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n")
        await api.patch(CONFIG_MAPS, "a", {"data": {"k": None}}, namespace="n", subresource="status")
        await api.delete(CONFIG_MAPS, "a", namespace="n", uid="u")
        lines = [(one.method, one.target) for one in server.exchanges]
    assert lines == [
        ("GET", "/api/v1/namespaces/n/configmaps/a"),
        ("POST", "/api/v1/namespaces/n/configmaps"),
        ("PATCH", "/api/v1/namespaces/n/configmaps/a/status"),
        ("DELETE", "/api/v1/namespaces/n/configmaps/a"),
    ]
    _, created, patched, deleted = server.exchanges
    assert created.json == {"metadata": {"name": "a"}, "apiVersion": "v1", "kind": "ConfigMap"}
    assert patched.json == {"data": {"k": None}}
    assert patched.headers["content-type"] == "application/merge-patch+json"
    assert (deleted.json["preconditions"], deleted.json["propagationPolicy"]) == ({"uid": "u"}, "Background")
    assert created.headers["user-agent"] == "metalman/1"
    assert server.connections == 1  # kept alive


async def test_a_list_is_read_in_pages() -> None:
    async def handler(exchange: Exchange) -> None:
        query = parse_qs(urlsplit(exchange.target).query)
        assert query["labelSelector"] == ["site in (a,b)"]
        if "continue" not in query:
            meta = {"resourceVersion": "7", "continue": "more/=="}
            await exchange.answer(200, {"metadata": meta, "items": [{"metadata": {"name": "a"}}]})
        else:
            assert query["continue"] == ["more/=="]
            await exchange.answer(200, {"metadata": {"resourceVersion": "7"}, "items": [config_map("b")]})

    async with talking(handler) as (api, _):
        listing = await api.list(CONFIG_MAPS, namespace="n", labels="site in (a,b)")
    assert [item.metadata.name for item in listing.items] == ["a", "b"]
    assert listing.resource_version == "7"
    assert {(item.api_version, item.kind) for item in listing.items} == {("v1", "ConfigMap")}


async def test_managed_fields_are_dropped_from_plain_json() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(200, config_map("a"))

    async with talking(handler) as (api, _):
        assert "managedFields" not in (await api.get(CONFIG_MAPS.raw(), "a", namespace="n"))["metadata"]


async def test_an_object_that_cannot_be_read_does_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(exchange: Exchange) -> None:
        broken = {"metadata": {"name": "broken"}, "spec": {"operationKind": 5}}
        whole = {"metadata": {"name": "whole"}, "spec": {"operationKind": "HostReboot"}}
        await exchange.answer(200, {"metadata": {"resourceVersion": "7"}, "items": [broken, whole]})

    async with talking(handler) as (api, _):
        listing = await api.list(MACHINE_OPERATIONS)
    assert [item.name for item in listing.items] == ["whole"]
    assert "ignored object" in caplog.text


@pytest.mark.parametrize(
    ("code", "reason", "reading", "writing"),
    [
        (404, "NotFound", NotFound, NotFound),
        (409, "Conflict", Conflict, Conflict),
        (410, "Expired", Expired, Expired),
        (422, "Invalid", InvalidObject, InvalidObject),
        (400, "BadRequest", InvalidObject, InvalidObject),
        (415, "UnsupportedMediaType", InvalidObject, InvalidObject),
        (403, "Forbidden", Forbidden, Forbidden),
        (401, "Unauthorized", Forbidden, Forbidden),
        (500, "InternalError", ReadFailed, ServerError),
        (504, "Timeout", ReadFailed, ServerError),
    ],
)
async def test_answers_become_failures_with_the_servers_words(
    code: int, reason: str, reading: type[ApiError], writing: type[ApiError]
) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(code, status(code, reason, "as the server says"))

    async with talking(handler) as (api, _):
        with pytest.raises(ApiError, match=r"^as the server says$") as read:
            await api.get(CONFIG_MAPS, "a", namespace="n")
        with pytest.raises(ApiError, match=r"^as the server says$") as written:
            await api.patch(CONFIG_MAPS, "a", {}, namespace="n")
    assert (type(read.value), type(written.value)) == (reading, writing)
    assert (read.value.code, read.value.reason, read.value.status["code"]) == (code, reason, code)


async def test_an_answer_that_is_no_status_is_quoted() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(404, b"404 page not found\n")

    async with talking(handler) as (api, _):
        with pytest.raises(NotFound, match=r"get /api/v1/namespaces/n/configmaps/a: 404 page not found"):
            await api.get(CONFIG_MAPS, "a", namespace="n")


# ---- trouble on the way


async def test_a_refused_connection_is_unreachable() -> None:
    async with talking(lambda exchange: exchange.answer(200, {})) as (api, server):
        pass
    async with HttpApi(ClientConfig(server.url)) as api:
        with pytest.raises(
            ServerUnreachable, match=rf"no connection to 127.0.0.1:{urlsplit(server.url).port}: refused$"
        ):
            await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n")


async def test_a_connection_that_nobody_accepts_has_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HttpPool, "request", partialmethod(HttpPool.request, connect_s=0.2))
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]  # accepts, and says nothing in the TLS handshake
        async with HttpApi(ClientConfig(f"https://127.0.0.1:{port}")) as api:
            with pytest.raises(ServerUnreachable, match=rf"no connection to 127.0.0.1:{port}: no answer in time$"):
                await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n")


async def test_a_create_may_have_a_limit_of_its_own() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(429, {}, Retry_After="3")

    async with talking(handler) as (api, _):
        with pytest.raises(ServerBusy):
            await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="n", limit_s=0.2)


async def test_a_write_that_ends_while_connecting_was_not_sent() -> None:
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]  # accepts, and says nothing in the TLS handshake
        async with HttpApi(ClientConfig(f"https://127.0.0.1:{port}"), call_s=0.3) as api:
            with pytest.raises(ServerUnreachable, match="no answer in time"):
                await api.patch(CONFIG_MAPS, "a", {}, namespace="n")


@pytest.mark.parametrize(
    ("name", "namespace"), [("", "n"), ("..", "n"), ("a/status", "n"), ("a%2fb", "n"), ("a", "..")]
)
async def test_a_name_that_leads_elsewhere_is_not_sent(name: str, namespace: str) -> None:
    async with talking(lambda exchange: exchange.answer(200, {})) as (api, server):
        for call in (
            api.get(CONFIG_MAPS, name, namespace=namespace),
            api.patch(CONFIG_MAPS, name, {}, namespace=namespace),
            api.delete(CONFIG_MAPS, name, namespace=namespace),
        ):
            with pytest.raises(NotFound, match=r"configmaps: metadata\.name(space)? is"):
                await call
    assert not server.exchanges


@pytest.mark.parametrize("namespace", ["..", "n/pods", "n%2fpods"])
async def test_a_namespace_that_leads_elsewhere_is_not_sent(namespace: str) -> None:
    async with talking(lambda exchange: exchange.answer(200, {})) as (api, server):
        with pytest.raises(NotFound, match=r"configmaps: metadata\.namespace is"):
            await api.list(CONFIG_MAPS, namespace=namespace)
        with pytest.raises(NotFound, match=r"configmaps: metadata\.namespace is"):
            await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace=namespace)
        with pytest.raises(NotFound, match=r"configmaps: metadata\.namespace is"):
            async for _event in api.watch(CONFIG_MAPS, resource_version="", namespace=namespace):
                pass
    assert not server.exchanges


@pytest.mark.parametrize("how", ["drop", "truncate", "stall", "nonsense"])
async def test_write_with_lost_answer_is_uncertain_and_read_is_not(how: str) -> None:
    async def handler(exchange: Exchange) -> None:
        match how:
            case "truncate":
                exchange.writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
                await exchange.writer.drain()
                exchange.writer.close()
            case "stall":
                await asyncio.sleep(10)
            case "nonsense":
                await exchange.answer(200, b"<html>")
            case _:
                exchange.drop()

    async with talking(handler, call_s=1.0 if how == "stall" else 60.0) as (api, server):
        with pytest.raises(ResponseLost):
            await api.patch(CONFIG_MAPS, "a", {}, namespace="n")
        assert len(server.exchanges) == 1  # not sent again
        with pytest.raises(ReadFailed):
            await api.get(CONFIG_MAPS, "a", namespace="n")


async def test_a_busy_server_is_asked_again_within_the_limit() -> None:
    refusals = iter([429, 503])

    async def handler(exchange: Exchange) -> None:
        code = next(refusals, None)
        if code is None:
            await exchange.answer(200, config_map("a"))
        else:
            await exchange.answer(code, status(code, "TooManyRequests", "later"), Retry_After="0")

    async with talking(handler, call_s=5) as (api, server):
        api_busy = api.patch(CONFIG_MAPS, "a", {}, namespace="n")
        assert (await api_busy).metadata.name == "a"
    assert len(server.exchanges) == 3


async def test_a_server_that_stays_busy_is_reported_with_its_wish() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(429, status(429, "TooManyRequests", "later"), Retry_After="60")

    async with talking(handler, call_s=5) as (api, server):
        with pytest.raises(ServerBusy, match="later") as caught:
            await api.get(CONFIG_MAPS, "a", namespace="n")
    assert caught.value.retry_after_s == 60
    assert len(server.exchanges) == 1


async def test_a_lease_is_renewed_however_many_calls_wait_for_the_server() -> None:
    crowded = asyncio.Semaphore(0)

    async def handler(exchange: Exchange) -> None:
        if "/leases/" in exchange.target:
            await exchange.answer(200, {"metadata": {"name": "a"}})
        crowded.release()

    async with talking(handler) as (api, server), asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(api.get(CONFIG_MAPS, "a", namespace="n")) for _ in range(2 * CONNECTIONS)]
        for _ in range(CONNECTIONS):
            await crowded.acquire()
        async with asyncio.timeout(10):
            assert (await api.get(LEASES, "a", namespace="n")).metadata.name == "a"
        assert len(server.exchanges) == CONNECTIONS + 1
        for one in waiting:
            one.cancel()


async def test_a_refused_login_is_renewed_once() -> None:
    class Renewing:
        def __init__(self) -> None:
            self.number = 1

        async def login(self) -> AuthInfo:
            return AuthInfo(token=f"t{self.number}")

        def refused(self, login: AuthInfo) -> bool:
            self.number += 1
            return True

    accepted = "Bearer t2"

    async def handler(exchange: Exchange) -> None:
        if exchange.headers["authorization"] == accepted:
            await exchange.answer(200, config_map("a"))
        else:
            await exchange.answer(401, status(401, "Unauthorized", "Unauthorized"))

    async with talking(handler, config=ClientConfig("http://replaced", credentials=Renewing())) as (api, server):
        assert (await api.patch(CONFIG_MAPS, "a", {}, namespace="n")).metadata.name == "a"
        accepted = "none"
        with pytest.raises(Forbidden, match="Unauthorized"):
            await api.get(CONFIG_MAPS, "a", namespace="n")
    assert [one.headers["authorization"] for one in server.exchanges] == ["Bearer t1", *["Bearer t2"] * 2, "Bearer t3"]


async def test_calls_are_counted_by_verb_kind_and_code() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.answer(404, status(404, "NotFound", "no"))

    metrics = ControllerMetrics()
    async with talking(handler, metrics=metrics) as (api, _):
        with pytest.raises(NotFound):
            await api.get(CONFIG_MAPS, "a", namespace="n")
    assert b'unbounded_api_requests_total{code="404",kind="configmaps",verb="get"} 1.0' in metrics.text()


# ---- watches


async def test_a_watch_asks_for_bookmarks_and_an_end() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.end_stream()

    async with talking(handler) as (api, server):
        assert (
            await collect(api.watch(CONFIG_MAPS, resource_version="5", namespace="n", fields="metadata.name=a")) == []
        )
        assert await collect(api.watch(CONFIG_MAPS, resource_version="")) == []
    first, second = (parse_qs(urlsplit(one.target).query) for one in server.exchanges)
    assert (first["resourceVersion"], first["allowWatchBookmarks"], first["watch"]) == (["5"], ["true"], ["true"])
    assert first["fieldSelector"] == ["metadata.name=a"]
    assert 300 <= int(first["timeoutSeconds"][0]) <= 600
    assert (second["sendInitialEvents"], second["resourceVersionMatch"]) == (["true"], ["NotOlderThan"])
    assert "resourceVersion" not in second


async def test_frames_are_found_however_they_are_cut() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        text = b'{"type":"ADDED","object":{"metadata":{"name":"a","resourceVersion":"6"},"data":{"k":"v\\n"}}}\n'
        bookmark = (
            b'{"type":"BOOKMARK","object":{"kind":"ConfigMap","metadata":{"resourceVersion":"9",'
            b'"annotations":{"k8s.io/initial-events-end":"true"}}}}\n'
        )
        whole = text + text.replace(b"ADDED", b"DELETED") + b"\n" + bookmark
        for start in range(0, len(whole), 7):
            await exchange.chunk(whole[start : start + 7])
        await exchange.end_stream()

    async with talking(handler) as (api, _):
        events = await collect(api.watch(CONFIG_MAPS, resource_version="5"))
    assert [(event.type, event.resource_version, event.synced) for event in events] == [
        (EventType.ADDED, "6", False),
        (EventType.DELETED, "6", False),
        (EventType.BOOKMARK, "9", True),
    ]
    assert isinstance(events[0].object, ConfigMap)
    assert events[0].object.data == {"k": "v\n"}


async def test_long_frames_pass() -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.event("ADDED", config_map("a", k="x" * 1_000_000))
        await exchange.end_stream()

    async with talking(handler) as (api, _):
        (event,) = await collect(api.watch(CONFIG_MAPS, resource_version="5"))
    assert event.object is not None
    assert len(event.object.data["k"]) == 1_000_000


@pytest.mark.parametrize("as_status", [True, False])
async def test_a_version_that_is_too_old_is_expired(as_status: bool) -> None:
    async def handler(exchange: Exchange) -> None:
        gone = status(410, "Expired", "too old resource version: 5 (9)")
        if as_status:
            await exchange.answer(410, gone)
        else:
            await exchange.begin_stream()
            await exchange.event("ERROR", gone)
            await exchange.end_stream()

    async with talking(handler) as (api, _):
        with pytest.raises(Expired, match="too old resource version"):
            await collect(api.watch(CONFIG_MAPS, resource_version="5"))


@pytest.mark.parametrize("how", ["drop", "garbage"])
async def test_broken_watch_fails_as_a_read_after_its_events(how: str) -> None:
    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.event("ADDED", config_map("a", 6))
        if how == "drop":
            await exchange.chunk(b'{"type":"ADDED","object":{"meta')
            exchange.drop()
        else:
            await exchange.chunk(b"<html>\n")

    async with talking(handler) as (api, _):
        stream = api.watch(CONFIG_MAPS, resource_version="5")
        assert (await anext(stream)).resource_version == "6"
        async with asyncio.timeout(30):
            with pytest.raises(ReadFailed):
                await anext(stream)


async def test_a_silent_watch_ends_as_one_that_the_server_ends() -> None:
    """A server promises no bookmarks: that there are none is no failure."""

    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.event("ADDED", config_map("a", 6))
        await asyncio.sleep(10)

    async with talking(handler, silence_s=0.2) as (api, _), asyncio.timeout(30):
        told = [event.resource_version async for event in api.watch(CONFIG_MAPS, resource_version="5")]
    assert told == ["6"]


async def test_a_server_that_does_not_begin_a_watch_is_a_failed_read() -> None:
    async def handler(exchange: Exchange) -> None:
        await asyncio.sleep(10)

    async with talking(handler, silence_s=0.2) as (api, _), asyncio.timeout(30):
        with pytest.raises(ReadFailed):
            await anext(aiter(api.watch(CONFIG_MAPS, resource_version="5")))


async def test_a_watch_that_is_left_closes_its_connection() -> None:
    closed = asyncio.Event()

    async def handler(exchange: Exchange) -> None:
        await exchange.begin_stream()
        await exchange.event("ADDED", config_map("a", 6))
        await exchange.left()
        closed.set()

    async with talking(handler) as (api, _):
        stream = api.watch(CONFIG_MAPS, resource_version="5")
        await anext(stream)
        assert isinstance(stream, AsyncGenerator)
        await stream.aclose()
        async with asyncio.timeout(30):
            await closed.wait()
