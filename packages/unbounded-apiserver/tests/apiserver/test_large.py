"""Answers of megabytes: complete, and without an effect on other clients."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import aiohttp
import pytest

from tests.apiserver.support import MADE_HERE, Client, admin_context, running
from unbounded_apiserver.http.reply import PART_BYTES

MAPS = "/api/v1/namespaces/default/configmaps"
TEXT = "x" * 400_000
COUNT = 12


async def filled(admin: Client) -> None:
    for number in range(COUNT):
        await admin.create(MAPS, {"metadata": {"name": f"m{number:02}"}, "data": {"text": f"{number}{TEXT}"}})


@pytest.mark.slow
async def test_a_large_list_comes_whole_compressed_or_not(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, admin):
        await filled(admin)
        for accepted in ("identity", "gzip"):
            answer = await admin.ask("GET", f"{MAPS}?{MADE_HERE}", headers={"Accept-Encoding": accepted})
            assert answer.headers.get("Content-Encoding", "identity") == accepted
            assert len(answer.text) > COUNT * len(TEXT) > 10 * PART_BYTES
            assert [item["data"]["text"] for item in answer.json()["items"]] == [f"{n}{TEXT}" for n in range(COUNT)]
        plain = await admin.ask("GET", f"{MAPS}?{MADE_HERE}", headers={"Accept-Encoding": "identity"})
        head = await admin.ask("HEAD", f"{MAPS}?{MADE_HERE}", headers={"Accept-Encoding": "identity"})
        assert (head.status, head.text) == (200, "")
        assert head.headers["Content-Length"] == str(len(plain.text))
        assert plain.headers["Transfer-Encoding"] == "chunked"  # it is sent while it is made
        assert head.headers["Content-Type"] == plain.headers["Content-Type"] == "application/json"


@pytest.mark.slow
async def test_slow_reader_of_a_large_list_delays_no_other_client(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        await filled(admin)
        connector = aiohttp.TCPConnector(ssl=admin_context(server.kubeconfig_path))
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1024) as slow:
            answer = await slow.get(f"{server.url}{MAPS}?{MADE_HERE}", headers={"Accept-Encoding": "identity"})
            async with asyncio.timeout(30):
                for number in range(COUNT):
                    await admin.get(f"{MAPS}/m{number:02}")
            assert len((await answer.json())["items"]) == COUNT


@pytest.mark.slow
async def test_who_goes_away_in_the_middle_is_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as (server, admin):
        await filled(admin)
        connector = aiohttp.TCPConnector(ssl=admin_context(server.kubeconfig_path))
        async with aiohttp.ClientSession(connector=connector, read_bufsize=1024) as session:
            for _ in range(5):
                answer = await session.get(f"{server.url}{MAPS}", headers={"Accept-Encoding": "identity"})
                await answer.content.readany()
                answer.close()
        await admin.get(f"{MAPS}/m00")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
