"""Chromium for tests, and what a page did in it that no page may do."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

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
SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
AXE: Final = Path(AXE_FILE_PATH).read_text()
# a page without data has no script: its style sheet alone follows the browser
_HAS_SCHEME: Final = "one => document.body.matches(`.plain, .body--${one}`)"
# what is reached by keyboard: all that acts, and what an author has put in between
_TABBABLE: Final = "a[href], button:enabled, input:enabled:not([type=hidden]), select:enabled, textarea:enabled"
_BEGIN_WALK: Final = """(tabbable) => {
  document.activeElement?.blur();  // a focus by mouse need not be visible
  window.walk = {reached: [], unseen: [], all: () => [...document.querySelectorAll(`${tabbable}, [tabindex]`)].filter(
    (one) => one.checkVisibility({visibilityProperty: true}) && (one.matches(tabbable) || one.tabIndex >= 0))};
  return window.walk.all().length;
}"""
_STEP: Final = """() => {
  const one = document.activeElement, walk = window.walk;
  if (!one || one === document.body) return true;
  if (walk.reached.includes(one)) return false;
  walk.reached.push(one);
  const box = one.getBoundingClientRect(), style = getComputedStyle(one);
  const outline = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  const inView = box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight;
  if (!one.matches(":focus-visible") || !outline || !inView) walk.unseen.push(one);
  return true;
}"""
_END_WALK: Final = """() => {
  const {reached, unseen, all} = window.walk, text = (one) => one.cloneNode(false).outerHTML;
  axe.setup(document);
  const named = (one) => axe.commons.text.accessibleText(one).trim();
  const found = [
    ...all().filter((one) => !reached.includes(one)).map((one) => `not reached: ${text(one)}`),
    ...unseen.map((one) => `no visible focus: ${text(one)}`),
    ...reached.filter((one) => !named(one)).map((one) => `no name: ${text(one)}`),
  ];
  axe.teardown();
  return found;
}"""
_LAYOUT: Final = """() => {
  const unseen = [...document.querySelectorAll(".sr-only, thead")];
  const cut = unseen.filter((one) => getComputedStyle(one).clipPath !== "none");
  const isCut = (one) => one.closest(".skip, .clamp") || cut.some((part) => part.contains(one));
  const isSeen = (one) => one.checkVisibility({visibilityProperty: true}) && !isCut(one);
  const crosses = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const found = [], text = (one) => one.textContent.trim().slice(0, 40);
  const cards = [...document.querySelectorAll("main section, main .card")].filter(isSeen);
  for (const card of cards) {
    const title = card.querySelector("h2")?.innerText ?? "";
    if (!card.innerText.replace(title, "").trim()) found.push(`blank: ${title}`);
    for (const other of cards) {
      const isApart = !card.contains(other) && !other.contains(card);
      if (isApart && crosses(card.getBoundingClientRect(), other.getBoundingClientRect())) {
        found.push(`cards overlap: ${text(card)}, ${text(other)}`);
      }
    }
  }
  const all = [...document.querySelectorAll("body *")];
  const leaves = all.filter((one) => !one.children.length && text(one) && isSeen(one));
  const texts = leaves.map((one) => {
    const range = document.createRange();
    range.selectNodeContents(one);
    return [one, [...range.getClientRects()]];
  });
  texts.forEach(([one, boxes], number) => {
    for (const [other, others] of texts.slice(number + 1)) {
      if (boxes.some((a) => others.some((b) => crosses(a, b)))) {
        found.push(`texts overlap: ${text(one)}, ${text(other)}`);
      }
    }
  });
  return found;
}"""
LIVE_S: Final = 1.0  # the limit of a change until it is on the screen
CHANGES: Final = 20  # one after another, of which one may be later: their p95
BLOCKS: Final = 3  # changes among which the machine was busy with other work are made again
APPEARS_S: Final = 30.0
LIMIT_S: Final = 30.0  # until a page shows something, on a busy machine
expect.set_options(timeout=LIMIT_S * 1000)
# the time at which a text is first in the page, by the clock that Python has, too
_APPEARS: Final = """(text) => {
  const main = document.querySelector("main");
  window.appeared = new Promise((done) => {
    const look = () => {
      if (!main.textContent.includes(text)) return;
      observer.disconnect();
      requestAnimationFrame(() => done(Date.now() / 1000));
    };
    const observer = new MutationObserver(look);
    observer.observe(main, {subtree: true, childList: true, characterData: true});
    look();
  });
}"""
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

    def check(self) -> None:
        """Raise AssertionError for what went wrong in the page since the last check."""
        errors, strays = list(self.errors), list(self.strays)
        self.errors.clear()
        self.strays.clear()
        assert errors == []
        assert strays == []

    async def visit(self, path: str) -> None:
        """Open another page of the console."""
        await self.page.goto("/".join(self.page.url.split("/")[:3]) + path)

    def button(self, name: str) -> Locator:
        return self.page.get_by_role("button", name=name, exact=True)

    async def shows(self, text: str, *, within_s: float = LIMIT_S) -> None:
        """Wait until a text is visible, also where hidden elements have it before."""
        await self.page.get_by_text(text).filter(visible=True).first.wait_for(timeout=within_s * 1000)

    async def lacks(self, text: str, *, within_s: float = LIMIT_S) -> None:
        """Wait until a text is nowhere in the document."""
        await self.page.wait_for_function(
            "text => !document.documentElement.outerHTML.includes(text)", arg=text, timeout=within_s * 1000
        )

    @property
    def rows(self) -> Locator:
        """The rows of the list of Machines."""
        return self.page.locator("section >> nth=2").locator("tbody tr")

    async def begins_with(self, *names: str) -> None:
        """Wait until the list begins with these Machines: what decides on their order comes by several watches."""
        for number, name in enumerate(names):
            await expect(self.rows.nth(number).locator("td:first-child")).to_have_text(name)

    async def lists(self, names: Sequence[str], *, within_s: float = LIMIT_S) -> None:
        """Wait until the list has these Machines in this order, and no others."""
        await expect(self.rows.locator("td:first-child")).to_have_text(names, timeout=within_s * 1000)

    async def serious_findings(self) -> list[str]:
        """Return what axe finds serious or critical."""
        await self._load_axe()
        found: dict[str, Any] = await self.page.evaluate("axe.run({resultTypes: ['violations']})")
        return [
            f"{one['id']}: {one['help']}: {[node['target'] for node in one['nodes']][:3]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]

    async def layout_findings(self) -> list[str]:
        """Return the cards without a content, and the cards and texts that overlap."""
        found: list[str] = await self.page.evaluate(_LAYOUT)
        return found

    async def findings_on_all_screens(self) -> list[str]:
        """Return what axe finds serious on wide and narrow screens, light and dark, and faults of their layouts."""
        found: list[str] = []
        try:
            for size in (WIDE, NARROW):
                await self.page.set_viewport_size(size)
                for scheme in SCHEMES:
                    await self.page.emulate_media(color_scheme=scheme)
                    await self.page.wait_for_function(_HAS_SCHEME, arg=scheme)
                    found += [f"{size['width']} {scheme}: {one}" for one in await self.serious_findings()]
                width = await self.page.evaluate("document.documentElement.scrollWidth")
                found += [f"{size['width']}: {width} wide"] if width > size["width"] else []
                found += [f"{size['width']}: {one}" for one in await self.layout_findings()]
        finally:
            await self.page.set_viewport_size(WIDE)
            await self.page.emulate_media(color_scheme=SCHEMES[0])
        return found

    async def keyboard_findings(self) -> list[str]:
        """Walk through the page by the Tab key; return what is not reached, or has no visible focus or no name."""
        await self._load_axe()
        steps = 2 * await self.page.evaluate(_BEGIN_WALK, _TABBABLE) + 2
        while steps and await self.page.evaluate(_STEP):
            await self.page.keyboard.press("Tab")
            steps -= 1
        found: list[str] = await self.page.evaluate(_END_WALK)
        return found

    async def _load_axe(self) -> None:
        if await self.page.evaluate("typeof axe") == "undefined":
            await self.page.evaluate(AXE)


async def late_changes(found: Tab, write: Callable[[int], Awaitable[None]], text: Callable[[int], str]) -> list[float]:
    """Return the times of changes that exceed LIVE_S, from before the write until the browser draws the text.

    The list is empty where at most one of CHANGES in a row is late. Otherwise they are made again, up to BLOCKS times:
    tests run on machines with two cores that other work uses as well.

    Args:
        write: makes the change of a number; each number is used once.
        text: of the page after that change, and never before.
    """
    late: list[float] = []
    for block in range(BLOCKS):
        waits = [await _wait_s(found, write, text, block * CHANGES + one) for one in range(CHANGES)]
        late = [wait for wait in waits if wait >= LIVE_S]
        if len(late) <= 1:
            return []
    return late


async def _wait_s(
    found: Tab, write: Callable[[int], Awaitable[None]], text: Callable[[int], str], number: int
) -> float:
    await found.page.evaluate(_APPEARS, text(number))
    began = time.time()
    await write(number)
    async with asyncio.timeout(APPEARS_S):
        shown: float = await found.page.evaluate("window.appeared")
    await found.shows(text(number))
    return shown - began


@asynccontextmanager
async def tab(browser: Browser, url: str, **options: Any) -> AsyncIterator[Tab]:
    """Open a URL in a browser context of its own; at the end, nothing went wrong in the page."""
    context = await browser.new_context(viewport=options.pop("viewport", WIDE), **options)
    try:
        found = Tab(await context.new_page(), "/".join(url.split("/")[:3]))
        await found.page.goto(url)
        yield found
        found.check()
    finally:
        await context.close()


async def log_in(found: Tab, token: str) -> None:
    """Log in to the console of a cluster with a token."""
    await found.page.get_by_label("Token of the API server").fill(token)
    await found.page.get_by_role("button", name="Log in").click()
