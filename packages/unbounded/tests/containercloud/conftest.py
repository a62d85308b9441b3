"""One API server for all tests of Container Cloud, with all of deploy/ on it: each test has objects of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.containercloud import unread
from tests.support.embedded_server import embedded_server
from unbounded.cli.manifests import install_container_cloud, install_definitions, install_manifests
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of its administrator."""

    async def prepare(kubeconfig: Path) -> None:
        async with HttpApi(from_kubeconfig(kubeconfig)) as api:
            await install_definitions(api)
            await install_manifests(api)
            await install_container_cloud(api)

    with embedded_server(tmp_path_factory.mktemp("containercloud")) as kubeconfig:
        asyncio.run(prepare(kubeconfig))
        yield kubeconfig


@pytest.fixture
async def admin(server: Path) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(server)) as api:
        yield api


@pytest.fixture(autouse=True)
def _reads() -> Iterator[None]:
    """Fail a test in which a controller has read a field that the caches leave out."""
    unread.faults.clear()
    yield
    assert not unread.faults, (
        "container-cloud reads fields that its caches leave out: see unbounded.containercloud.caches"
    )
