"""One connection: requests that come at once, in pieces, or with wishes for what follows, are answered in order."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from aiohttp import HttpVersion11
from aiohttp.http_parser import RawRequestMessage
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from tests.apiserver.support import Client, running
from tests.apiserver.test_connections import Streams, connection
from unbounded_apiserver.http.request_heads import KNOWN_BYTES, HeadCache
from unbounded_apiserver.server import ApiServer

HOST: Final = b"Host: localhost\r\n"
MAPS: Final = "/api/v1/namespaces/default/configmaps"
WAIT_S: Final = 30.0


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as both:
        yield both


@pytest.fixture
async def line(served: tuple[ApiServer, Client]) -> AsyncIterator[Streams]:
    async with connection(served[0]) as streams:
        yield streams


def request(method: str, path: str, body: bytes = b"", *, more: bytes = b"", version: str = "1.1") -> bytes:
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode() if body else b""
    return f"{method} {path} HTTP/{version}\r\n".encode() + HOST + length + more + b"\r\n" + body


def config_map(name: str) -> bytes:
    return json.dumps({"metadata": {"name": name}, "data": {"key": name}}).encode()


async def answer(reader: asyncio.StreamReader, *, head: bool = False) -> tuple[int, dict[str, str], Any]:
    """The next answer: code, headers, and the JSON in it."""
    async with asyncio.timeout(WAIT_S):
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[:-2]
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        body = b"" if head else await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), headers, json.loads(body) if body else None


@pytest.mark.slow
async def test_requests_that_come_at_once_are_answered_in_order(line: Streams) -> None:
    reader, writer = line
    made = [request("POST", MAPS, config_map(f"m{number}")) for number in range(3)]
    read = [request("GET", f"{MAPS}/m{number}") for number in range(3)]
    writer.write(b"".join([*made, *read]))
    found = [await answer(reader) for _ in range(6)]
    assert [code for code, _, _ in found] == [201, 201, 201, 200, 200, 200]
    assert [body["metadata"]["name"] for _, _, body in found] == ["m0", "m1", "m2", "m0", "m1", "m2"]


@pytest.mark.slow
async def test_a_request_that_comes_while_another_waits_is_next(line: Streams) -> None:
    reader, writer = line
    writer.write(request("POST", MAPS, config_map("one")))
    await asyncio.sleep(0)  # in a segment of its own
    writer.write(request("GET", f"{MAPS}/one"))
    assert [(await answer(reader))[0] for _ in range(2)] == [201, 200]


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 60, -20, -1])
async def test_a_request_in_pieces_is_one_request(line: Streams, at: int) -> None:
    reader, writer = line
    whole = request("POST", MAPS, config_map("one"))
    writer.write(whole[:at])
    await asyncio.sleep(0.05)
    writer.write(whole[at:])
    code, _, body = await answer(reader)
    assert (code, body["data"]) == (201, {"key": "one"})
    writer.write(request("GET", f"{MAPS}/one"))
    assert (await answer(reader))[0] == 200


@pytest.mark.slow
async def test_the_head_alone_is_followed_by_the_next_answer(line: Streams) -> None:
    reader, writer = line
    writer.write(request("HEAD", MAPS) + request("GET", MAPS))
    code, headers, _ = await answer(reader, head=True)
    again = await answer(reader)
    assert (code, headers["content-length"]) == (200, again[1]["content-length"])
    assert again[2]["kind"] == "ConfigMapList"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "wish", "said", "stays"),
    [
        ("1.1", b"", None, True),
        ("1.1", b"Connection: close\r\n", "close", False),
        ("1.0", b"", None, False),
        ("1.0", b"Connection: keep-alive\r\n", "keep-alive", True),
    ],
)
@pytest.mark.parametrize("writes", [False, True])
async def test_the_connection_stays_as_the_client_wishes(
    line: Streams, version: str, wish: bytes, said: str | None, stays: bool, writes: bool
) -> None:
    reader, writer = line
    body = config_map("one") if writes else b""
    writer.write(request("POST" if writes else "GET", MAPS, body, more=wish, version=version))
    _, headers, _ = await answer(reader)
    assert headers.get("connection") == said
    if stays:
        writer.write(request("GET", MAPS, version=version))
        assert (await answer(reader))[0] == 200
    else:
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""


@pytest.mark.slow
async def test_unsupported_upgrade_is_an_ordinary_request(line: Streams) -> None:
    reader, writer = line
    writer.write(request("GET", MAPS, more=b"Connection: Upgrade\r\nUpgrade: h2c\r\n"))
    assert (await answer(reader))[0] == 200
    writer.write(request("GET", MAPS))
    assert (await answer(reader))[0] == 200


@pytest.mark.slow
async def test_unread_body_is_not_parsed_as_a_request(line: Streams) -> None:
    reader, writer = line
    whole = request("POST", "/nowhere", b"GET / HTTP/1.1\r\n\r\n")
    writer.write(whole[:-18])
    assert (await asyncio.wait_for(reader.readuntil(b"404 page not found\n"), WAIT_S)).startswith(b"HTTP/1.1 404")
    writer.write(whole[-18:] + request("GET", MAPS))
    assert (await answer(reader))[2]["kind"] == "ConfigMapList"


@pytest.mark.slow
async def test_a_head_that_was_read_before_is_followed_by_its_own_body(served: tuple[ApiServer, Client]) -> None:
    """In whichever pieces requests with the same head come, each is carried out with its own body."""
    made = [f"m{number:02}" for number in range(14)]
    wholes = iter([request("POST", MAPS, config_map(name)) for name in made])
    a, b, c, d, e, f, g, h, i, j, k, m, n, o = wholes
    pieces = [(a,), (b,), (c[:-3], c[-3:]), (d,), (e[:20], e[20:]), (f,), (g + h,), (i,), (j + k[:-3], k[-3:]), (m,)]
    async with connection(served[0]) as (reader, writer), connection(served[0]) as (other_reader, other):
        found = []
        for segments in pieces:
            for segment in segments:
                writer.write(segment)
                await asyncio.sleep(0.02)
        found += [await answer(reader) for _ in range(12)]
        for segment in (n, request("DELETE", f"{MAPS}/m00"), request("DELETE", f"{MAPS}/m00"), o):
            other.write(segment)
            found.append(await answer(other_reader))
    deleted = found.pop(13), found.pop(13)
    assert [(code, body["metadata"]["name"]) for code, _, body in found] == [(201, name) for name in made]
    assert [code for code, _, _ in deleted] == [200, 404]


def test_head_cache_is_bounded_and_stores_only_heads_with_known_length() -> None:
    def message(headers: dict[str, str], *, chunked: bool = False, upgrade: bool = False) -> RawRequestMessage:
        given = CIMultiDictProxy(CIMultiDict(headers))
        return RawRequestMessage("POST", "/", HttpVersion11, given, (), False, None, upgrade, chunked, URL("/"))

    heads = HeadCache(limit=3)
    heads.add(b"chunked", message({}, chunked=True))
    heads.add(b"upgrade", message({}, upgrade=True))
    assert heads.find(b"chunked") is heads.find(b"upgrade") is None
    heads.add(b"x" * (KNOWN_BYTES + 1), message({}))
    assert heads.find(b"x" * (KNOWN_BYTES + 1)) is None
    for number in range(7):
        heads.add(b"%d" % number, message({"content-length": str(number)}))
    found = [head for number in range(7) if (head := heads.find(b"%d" % number)) is not None]
    assert 0 < len(found) <= 3
    assert found[-1].length == 6
