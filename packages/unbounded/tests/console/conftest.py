"""One API server, one console and one Chromium for the tests of a module. All run on the module's event loop."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import aiohttp
import pytest
import pytest_asyncio
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.console.running import Console, console
from tests.console.served import FLEET, ROLES, SITES, create_machine, create_reader
from tests.console.staging import stage
from tests.support.embedded_server import embedded_server, install_crds
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

if TYPE_CHECKING:
    from playwright.async_api import Browser

    from tests.console.browser import Tab

READ_METRICS: Final = [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(kubeconfig: Path) -> AsyncIterator[HttpApi]:
    """The API of the administrator, with FLEET Machines."""
    await install_crds(kubeconfig)
    async with HttpApi(from_kubeconfig(kubeconfig)) as admin:
        for number in range(FLEET):
            await create_machine(admin, f"m-{number:03}", f"site-{number % SITES}")
        yield admin


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(kubeconfig: Path, api: HttpApi) -> AsyncIterator[Console]:
    """A console with the rights of the administrator."""
    async with console(kubeconfig) as found:
        await found.url()
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    from tests.console.browser import chromium  # not for the quick tests beside those in a browser

    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scrape(api: HttpApi) -> AsyncIterator[Callable[[], Awaitable[list[Sample]]]]:
    """Reads the metrics of the API server."""
    token = await create_reader(api, "scraper")
    await api.patch(ROLES, "scraper", {"rules": READ_METRICS})
    trusted = ssl.create_default_context(cadata=(api.config.ca or b"").decode())
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session:

        async def read() -> list[Sample]:
            async with session.get(f"{api.config.server}/metrics", ssl=trusted) as answer:
                assert answer.status == 200, await answer.text()
                families = text_string_to_metric_families(await answer.text())
                return [sample for family in families for sample in family.samples]

        yield read


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def staged(api: HttpApi) -> HttpApi:
    """The API with an object of each kind."""
    await stage(api)
    return api


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def admin_tab(running: Console, browser: Browser, staged: HttpApi) -> AsyncIterator[Tab]:
    from tests.console.browser import tab

    async with tab(browser, await running.next_url()) as found:
        yield found


@pytest.fixture
def admin(admin_tab: Tab) -> Iterator[Tab]:
    """A browser of the administrator, for the tests one after another."""
    yield admin_tab
    admin_tab.check()
