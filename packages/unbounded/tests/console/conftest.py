"""One API server, one console and one Chromium for the tests of a module. All run on the module's event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

from tests.console.running import Console, console
from tests.console.served import FLEET, SITES, create_machine
from tests.support.embedded_server import embedded_server, install_crds
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

if TYPE_CHECKING:
    from playwright.async_api import Browser


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
