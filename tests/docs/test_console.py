"""docs/console.md: its commands print an address that opens the console, once."""

from __future__ import annotations

import asyncio
import re
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from tests.cli.running import up
from tests.console.running import URL, console
from tests.docs.runner import DOCS, follow
from tests.e2e.plane import plane

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]


async def check_address(url: str) -> None:
    opener = build_opener(HTTPCookieProcessor(CookieJar()))

    def page_at(address: str) -> str:
        with opener.open(address, timeout=20) as answer:
            text: str = answer.read().decode()
            return text

    page = await asyncio.to_thread(page_at, url)
    while "lab-02" not in page:  # it is there once the watch has begun
        page = await asyncio.to_thread(page_at, url.rpartition("start/")[0])
    with pytest.raises(HTTPError, match="401"):
        await asyncio.to_thread(build_opener().open, url, timeout=20)


async def test_the_commands_of_the_guide(tmp_path: Path) -> None:
    async def run_up() -> None:
        async with up(tmp_path / "other", "--lab", "3", "--console") as running:
            await check_address((await running.says(URL.pattern)).group(0))
            assert await running.stops() < 40

    async with plane(tmp_path / "data", "--lab", "2") as it:

        async def run_console() -> None:
            async with console(tmp_path / "data" / "kubeconfig") as running:
                await check_address(await running.url())
                assert re.search(r"Ctrl-C ends it", running.printed)

        starts = {"kubectl unbounded console": run_console, "unbounded up --lab 3 --console": run_up}
        await follow(DOCS / "console.md", it.shell, starts=starts)
