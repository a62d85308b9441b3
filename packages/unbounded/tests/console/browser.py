"""Chromium for tests, and what a page did in it that no page may do."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from axe_playwright_python.base import AXE_FILE_PATH
from playwright.async_api import Browser, ConsoleMessage, Locator, Page, ViewportSize, async_playwright, expect

from tests.cli.running import PATH

CHROMIUM: Final = shutil.which("chromium", path=PATH)
FLAGS: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDE: Final[ViewportSize] = {"width": 1280, "height": 900}
NARROW: Final[ViewportSize] = {"width": 390, "height": 844}
AXE: Final = Path(AXE_FILE_PATH).read_text()
_LOST: Final = ("Failed to load resource", "WebSocket connection to")  # Chromium's own words about a lost server


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Run Debian's Chromium inside of the context, with a profile of its own."""
    assert CHROMIUM is not None
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            await browser.close()


class Tab:
    """A page of a browser context of its own, with its errors and the requests that left the console."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self.strays: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        page.on("request", lambda one: self._on_request(one.url, origin))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(_LOST):
            self.errors.append(message.text)

    def _on_request(self, url: str, origin: str) -> None:
        if not url.startswith((f"{origin}/", "data:")):
            self.strays.append(url)

    async def shows(self, text: str, *, within_s: float = 10.0) -> None:
        """Wait until a text is visible."""
        await self.page.get_by_text(text, exact=False).first.wait_for(state="visible", timeout=within_s * 1000)

    async def lacks(self, text: str, *, within_s: float = 10.0) -> None:
        """Wait until a text is nowhere in the document."""
        await self.page.wait_for_function(
            "text => !document.documentElement.outerHTML.includes(text)", arg=text, timeout=within_s * 1000
        )

    @property
    def rows(self) -> Locator:
        """The rows of the list of Machines."""
        return self.page.locator("section >> nth=2").locator("tbody tr")

    async def names(self) -> list[str]:
        """Return the Machines of the list in their order."""
        return await self.rows.locator("td:first-child").all_inner_texts()

    async def lists(self, names: Sequence[str], *, within_s: float = 10.0) -> None:
        """Wait until the list has these Machines in this order, and no others."""
        await expect(self.rows.locator("td:first-child")).to_have_text(names, timeout=within_s * 1000)

    async def serious_findings(self) -> list[str]:
        """Return what axe finds serious or critical."""
        await self.page.evaluate(AXE)
        found: dict[str, Any] = await self.page.evaluate("axe.run()")
        return [
            f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]


@asynccontextmanager
async def tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Tab]:
    """Open a URL in a browser context of its own; at the end, nothing went wrong in the page."""
    context = await browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    try:
        found = Tab(await context.new_page(), "/".join(url.split("/")[:3]))
        await found.page.goto(url)
        yield found
        assert found.errors == []
        assert found.strays == []
    finally:
        await context.close()


async def log_in(found: Tab, token: str) -> None:
    """Log in to the console of a cluster with a token."""
    await found.page.get_by_label("Token of the API server").fill(token)
    await found.page.get_by_role("button", name="Log in").click()
