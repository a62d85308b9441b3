"""The console in Chromium: 10,000 Machines, 500 operations, and five sessions of one user, each with another view.

API server, console and Chromium are processes of their own. A change counts from before its write until the browser has
its text in the document, by the clock of the machine. The cost of the API server is its CPU from the start of the
watches to the last of the same writes: with the five sessions, over that with one plain watch of each kind. Most of
that is the writes themselves, whose cost varies with other work of the machine and with the server's history. So blocks
of writes with plain watches and with the console alternate, and the means of both are compared.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from benchmarks import children
from benchmarks.fleet_data import RACK, RACK_MACHINES, SITES
from benchmarks.frame import Limit, Measured, percentile, print_progress, run_benchmark
from unbounded.api.core import LEASES, SERVICE_ACCOUNTS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import rfc3339
from unbounded.kube.config import from_kubeconfig

START_S: Final = 60.0
SHOWN_S: Final = 30.0
RBAC: Final = "rbac.authorization.k8s.io"
BINDINGS: Final[Kind[dict[str, Any]]] = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", dict)
SERVING: Final = re.compile(r"serving the console .*port=([0-9]+)")
SETTLED_S: Final = 3.0
CHROMIUM_FLAGS: Final = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync")
PATH: Final = str(Path(sys.prefix) / "tools" / "bin")

VIEWS: Final = ("/", "/site/site-1", "/machine/machine-1", "/operation/reboot-1", "/rollouts")  # of the sessions

# In the page: when rows were there first, since the navigation began; and when a text came, by the machine's clock.
FIRST_ROWS: Final = """() => new Promise(done => {
  const look = () => document.querySelector("table.live tbody tr td:first-child a, table.live tbody tr td:first-child")
    && document.body.innerText.includes(" of ") ? done(performance.now()) : requestAnimationFrame(look);
  look();
})"""
NOTE_TEXTS: Final = """() => {
  window.seen = {};
  new MutationObserver(() => {
    const at = performance.timeOrigin + performance.now();
    for (const found of document.body.innerText.matchAll(/change-[0-9]+-/g)) window.seen[found[0]] ??= at;
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
FILTER: Final = """([given]) => new Promise((done, fail) => {
  const field = document.querySelector(`.filters [name="${given.field}"]`);
  const began = performance.now();
  const observer = new MutationObserver(() => {
    if (!document.body.innerText.includes(` of ${given.count} Machine`)) return;
    observer.disconnect();
    clearTimeout(late);
    done(performance.now() - began);
  });
  observer.observe(document.body, {subtree: true, childList: true, characterData: true});
  const late = setTimeout(() => fail(new Error(`${given.field}=${given.value} shows no ${given.count}`)), 20000);
  field.value = given.value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", {bubbles: true}));
})"""

AMOUNT: Final = "{machines:g} Machines, {operations:g} operations, {sessions:g} sessions of one user"
LIMITS: Final[Mapping[str, Limit]] = {
    "first_paint_ms": Limit("from the navigation to the first rows, ms", most=1500),
    "first_session_ms": Limit("the same for the first session of a user, whose watches begin with it, ms", most=1500),
    "filter_text_ms": Limit("from a key in the search to the rows, ms", most=200),
    "filter_labels_ms": Limit("from a key in the filter by labels to the rows, ms", most=200),
    "filter_site_ms": Limit("from the choice of a site to the rows, ms", most=200),
    "filter_phase_ms": Limit("from the choice of a phase to the rows, ms", most=200),
    "filter_reason_ms": Limit("from the choice of a reason to the rows, ms", most=200),
    "change_p95_ms": Limit("from before a write to its text on the screen, p95, ms", most=500),
    "change_busy_p95_ms": Limit("the same among 100 writes a second, p95, ms"),
    "memory_mib": Limit("memory of the console with the sessions, MiB", most=250),
    "memory_idle_mib": Limit("memory before the first session, MiB"),
    "memory_further_user_mib": Limit("memory for another user with a session, MiB"),
    "api_cost_vs_plain_watch": Limit(
        "CPU of the API server for the same writes, over that with one plain watch of each kind", most=1.1
    ),
    "cpu_percent": Limit("share of a core of the console, with 5 sessions and 100 changes a second, %"),
}


@dataclass(frozen=True)
class Size:
    machines: int
    operations: int
    sessions: int
    loads: int
    filters: int
    changes: int
    busy: int  # changes at 100 a second, in each block
    blocks: int  # with the console, each between two with plain watches


FULL: Final = Size(machines=10_000, operations=500, sessions=5, loads=7, filters=15, changes=60, busy=1000, blocks=6)
QUICK: Final = Size(machines=120, operations=20, sessions=2, loads=2, filters=3, changes=6, busy=100, blocks=1)
BUSY_RATE: Final = 100
FAILING, FAILED, REASON = 10, "Failed", "ProbeFailed"  # so many Machines fail, the ones of the first page
RENEWED: Final = 10  # one of so many changes comes with the renewal of a Lease: each is renewed every two seconds


def chromium() -> str | None:
    return shutil.which("chromium", path=PATH) or shutil.which("chromium")


def missing() -> str | None:
    """Return a missing requirement; None if there is none."""
    if find_spec("nicegui") is None:
        return "unbounded[console]"
    if find_spec("playwright") is None:
        return "playwright"
    return None if chromium() else "chromium (scripts/browser-tools)"


async def run(quick: bool) -> Measured:
    lacking = missing()
    if lacking is not None:
        raise SystemExit(f"this needs {lacking}")
    size = QUICK if quick else FULL
    with TemporaryDirectory(prefix="unbounded-benchmark-") as folder:
        data = Path(folder) / "data"
        arguments = (str(data), str(size.machines), str(size.operations))
        filled = await asyncio.create_subprocess_exec(sys.executable, "-m", "benchmarks.fleet_data", *arguments)
        if await filled.wait():
            raise RuntimeError("cannot create the fleet")
        async with (
            children.start("benchmarks.server", str(data)) as server,
            HttpApi(from_kubeconfig(Path(server.ready["kubeconfig"]))) as api,
        ):
            return await Run(size, Path(folder), server, api).measured()


@dataclass
class Opened:
    """A console with its sessions.

    Attributes:
        first_ms: from the navigation to the first rows of the first session.
        began_s: CPU of the API server before the sessions were opened.
        cpu_percent: share of a core of the console while the changes were written.
    """

    stack: AsyncExitStack
    process: Process
    url: str
    browser: Any
    pages: list[Any]
    first_ms: float
    began_s: float
    idle_mib: float
    cpu_percent: float = 0.0


class Run:
    """One measurement."""

    def __init__(self, size: Size, folder: Path, server: children.Child, api: HttpApi) -> None:
        self._size = size
        self._folder = folder
        self._server = server
        self._api = api
        self._written: dict[str, float] = {}
        self._numbers = itertools.count()  # of texts: none occurs twice

    async def measured(self) -> Measured:
        tokens = [await self._user(f"user-{number}") for number in range(2)]
        await self._create_leases()
        await self._server_cost()  # the first writes cost more
        plain_s, console_s, first_ms = [await self._plain_cost()], list[float](), list[float]()
        figures: dict[str, float] = {}
        for block in range(self._size.blocks):
            async with self._sessions(tokens[0]) as opened:
                console_s.append(await self._console_cost(opened))
                first_ms.append(opened.first_ms)
                if block == self._size.blocks - 1:
                    figures = await self._console_figures(opened, tokens)
            plain_s.append(await self._plain_cost())
        size = self._size
        amounts = {"machines": size.machines, "operations": size.operations, "sessions": size.sessions}
        figures |= {"first_session_ms": percentile(first_ms, 0.5)}
        ratio = (sum(console_s) / len(console_s)) / (sum(plain_s) / len(plain_s))
        return Measured(figures=amounts | figures, ratios={"api_cost_vs_plain_watch": ratio})

    async def _plain_cost(self) -> float:
        """Return the CPU of the API server with plain watches."""
        began_s = self._server.cpu_s()
        async with children.start("benchmarks.plain_watch", self._server.ready["kubeconfig"]):
            cost_s = await self._server_cost(began_s)
        print_progress(f"CPU of the API server: {cost_s:.2f} s with plain watches")
        return cost_s

    @asynccontextmanager
    async def _sessions(self, token: str) -> AsyncIterator[Opened]:
        """Start a console, and open its sessions."""
        async with AsyncExitStack() as stack:
            process, url = await stack.enter_async_context(self._console())
            idle_mib = children.memory_mib(process.pid)
            browser = await stack.enter_async_context(running_browser())
            began_s = self._server.cpu_s()
            pages, first_ms = await self._open_sessions(stack, browser, url, token)
            yield Opened(stack, process, url, browser, pages, first_ms, began_s, idle_mib)

    async def _console_cost(self, opened: Opened) -> float:
        """Return the CPU of the API server with the console, from before its sessions were opened."""
        cpu_s, at = children.cpu_s(opened.process.pid), time.monotonic()
        self._written.clear()  # what the page shows already was written earlier
        await opened.pages[0].evaluate(NOTE_TEXTS)
        cost_s = await self._server_cost(opened.began_s)
        opened.cpu_percent = 100 * (children.cpu_s(opened.process.pid) - cpu_s) / (time.monotonic() - at)
        print_progress(f"CPU of the API server: {cost_s:.2f} s with the console")
        return cost_s

    async def _console_figures(self, opened: Opened, tokens: Sequence[str]) -> dict[str, float]:
        """Return what is measured of the console, after its writes."""
        pid, page = opened.process.pid, opened.pages[0]
        busy = await self._delays(page)
        changes = await self._changes(page)
        filters = await self._filters(page)
        loads = [await self._load(opened.browser, opened.url, tokens[0]) for _ in range(self._size.loads)]
        await asyncio.sleep(SETTLED_S)
        memory_mib = children.memory_mib(pid)
        await self._open_sessions(opened.stack, opened.browser, opened.url, tokens[1], sessions=1)
        await asyncio.sleep(SETTLED_S)
        return {
            "first_paint_ms": percentile(loads, 0.5),
            **{f"filter_{field}_ms": percentile(times, 0.5) for field, times in filters.items()},
            "change_p95_ms": percentile(changes, 0.95),
            "change_busy_p95_ms": percentile(busy, 0.95),
            "memory_mib": memory_mib,
            "memory_idle_mib": opened.idle_mib,
            "memory_further_user_mib": children.memory_mib(pid) - memory_mib,
            "cpu_percent": opened.cpu_percent,
        }

    async def _user(self, name: str) -> str:
        """Create a user who may read everything; returns a token."""
        await self._api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, namespace="default")
        ref = {"apiGroup": RBAC, "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
        await self._api.create(BINDINGS, {"metadata": {"name": name}, "roleRef": ref, "subjects": [subject]})
        return (await self._api.token(name, namespace="default")).token

    async def _create_leases(self) -> None:
        """Create a Lease of metalman for each site."""
        for site in range(SITES):
            body = {"metadata": {"name": f"metalman-site-{site}"}, "spec": {"holderIdentity": f"pod-{site}"}}
            await self._api.create(LEASES, body, namespace=NAMESPACE)

    async def _renew(self, number: int) -> None:
        spec = {"spec": {"renewTime": rfc3339(micro=True)}}
        await self._api.patch(LEASES, f"metalman-site-{number % SITES}", spec, namespace=NAMESPACE)

    @asynccontextmanager
    async def _console(self) -> AsyncIterator[tuple[Process, str]]:
        config = from_kubeconfig(Path(self._server.ready["kubeconfig"]))
        ca = self._folder / "ca.crt"
        ca.write_bytes(config.ca or b"")
        flags = ("--api-server", config.server, "--api-server-ca", str(ca), "--plain-addr", "127.0.0.1:0")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "unbounded.console.main", *flags, "--health-addr", "0", "--log-format", "text"),
            stdin=DEVNULL,
            stderr=PIPE,
        )
        try:
            yield process, f"http://127.0.0.1:{await _port(process)}"
        finally:
            process.terminate()
            await process.wait()

    async def _server_cost(self, began_s: float | None = None) -> float:
        """Write changes at BUSY_RATE; return the CPU of the API server since then, or since `began_s`."""
        since = self._server.cpu_s() if began_s is None else began_s
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in range(self._size.busy):
                await asyncio.sleep(began + number / BUSY_RATE - time.monotonic())
                # the first page of the list has a hundredth of the changes: the others show nothing
                machine = number * 7 % self._size.machines if number % 10 else number // 10 % FAILING
                group.create_task(self._write(machine))
                if number % RENEWED == 0:
                    group.create_task(self._renew(number // RENEWED))
        await asyncio.sleep(1.0)
        return self._server.cpu_s() - since

    async def _write(self, machine: int) -> None:
        text = f"change-{next(self._numbers)}-"
        self._written[text] = time.time() * 1000
        # the message shows in the list where the Machine needs attention, which brings it to the first page
        phase, reason = (FAILED, REASON) if machine < FAILING else ("Ready", None)
        status = {"status": {"phase": phase, "message": text, "reason": reason}}
        await self._api.patch(MACHINES, f"machine-{machine}", status, subresource="status")

    async def _changes(self, page: Any) -> list[float]:
        self._written.clear()
        await page.evaluate("window.seen = {}")
        for number in range(self._size.changes):
            await self._write(number % FAILING)
            await asyncio.sleep(0.37)  # no multiple of the console's own interval
        return await self._delays(page)

    async def _delays(self, page: Any) -> list[float]:
        """Return the milliseconds from each write to its text on the screen, of those that were shown."""
        await asyncio.sleep(1.0)
        seen: dict[str, float] = await page.evaluate("window.seen")
        return [at - self._written[text] for text, at in seen.items() if text in self._written]

    async def _filters(self, page: Any) -> dict[str, list[float]]:
        """Return the milliseconds from each change of a filter to the rows, by the field; each is cleared again."""
        size, found = self._size, defaultdict[str, list[float]](list)
        for number in range(size.filters):
            for field, value in self._choices(number).items():
                count = sum(self._is_chosen(other, field, value) for other in range(size.machines))
                given = {"field": field, "value": value, "count": f"{count:,}"}
                found[field].append(await page.evaluate(FILTER, [given]))
                await page.evaluate(FILTER, [{"field": field, "value": "", "count": f"{size.machines:,}"}])
        return found

    def _choices(self, number: int) -> dict[str, str]:
        rack = number % (self._size.machines // RACK_MACHINES)
        return {
            "text": f"machine-{self._size.machines - 1 - number}",
            "labels": f"{RACK}=rack-{rack}",
            "site": f"site-{number % SITES}",
            "phase": FAILED,
            "reason": REASON,
        }

    def _is_chosen(self, number: int, field: str, value: str) -> bool:
        """Return whether a filter shows a Machine."""
        if field == "text":
            return value in f"machine-{number}"
        if field == "labels":
            return value == f"{RACK}=rack-{number // RACK_MACHINES}"
        return value == f"site-{number % SITES}" if field == "site" else number < FAILING

    async def _load(self, browser: Any, url: str, token: str) -> float:
        """Load the page in a browser without a cache, after a log-in; return the milliseconds to the first rows."""
        context = await browser.new_context(viewport={"width": 1280, "height": 900})
        try:
            page = await log_in(context, url, token)
            await page.evaluate(FIRST_ROWS)
            again = await context.new_page()
            client = await context.new_cdp_session(again)
            await client.send("Network.setCacheDisabled", {"cacheDisabled": True})
            await again.goto(url, wait_until="commit")
            milliseconds: float = await again.evaluate(FIRST_ROWS)
            return milliseconds
        finally:
            await context.close()

    async def _open_sessions(
        self, stack: AsyncExitStack, browser: Any, url: str, token: str, *, sessions: int | None = None
    ) -> tuple[list[Any], float]:
        """Open sessions that stay; return their pages, and the milliseconds to the first rows of the first one."""
        pages, first_ms = [], 0.0
        for number in range(self._size.sessions if sessions is None else sessions):
            context = await browser.new_context(viewport={"width": 1280, "height": 900})
            stack.push_async_callback(context.close)
            page = await log_in(context, url, token)
            milliseconds = await page.evaluate(FIRST_ROWS)
            first_ms = first_ms if number else milliseconds
            if number:
                await page.goto(f"{url}{VIEWS[number % len(VIEWS)]}")
                await page.wait_for_selector("h1")
            pages.append(page)
        return pages, first_ms


async def _port(process: Process) -> str:
    """Return the port that a console reports."""
    async with asyncio.timeout(START_S):
        while process.stderr is not None and (line := await process.stderr.readline()):
            if found := SERVING.search(line.decode()):
                return found[1]
    raise RuntimeError("the console has ended")


async def log_in(context: Any, url: str, token: str) -> Any:
    page = await context.new_page()
    await page.goto(url)
    await page.fill("[name=token]", token)
    await page.click("button")
    await page.wait_for_url(f"{url}/")
    return page


@asynccontextmanager
async def running_browser() -> AsyncIterator[Any]:
    from playwright.async_api import async_playwright  # noqa: PLC0415  # of the group dev

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=list(CHROMIUM_FLAGS))
        try:
            yield browser
        finally:
            await browser.close()


if __name__ == "__main__":
    run_benchmark("console", run)
