"""The implementations of the API port that the contract runs against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.embedded_server import embedded_server, install_crds
from tests.support.memory_api import MemoryApi
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.port import Api

CLUSTER: Final = os.environ.get("UNBOUNDED_TEST_KUBECONFIG", "")  # a cluster that may be written to
IMPLEMENTATIONS: Final = ("memory", "embedded", *(("cluster",) if CLUSTER else ()))


@pytest.fixture(scope="session")
def embedded_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("apiserver")) as kubeconfig:
        asyncio.run(install_crds(kubeconfig))
        yield kubeconfig


@pytest.fixture(scope="session")
def cluster_kubeconfig() -> Path:
    asyncio.run(install_crds(Path(CLUSTER)))
    return Path(CLUSTER)


@pytest.fixture(params=IMPLEMENTATIONS)
def server(request: pytest.FixtureRequest) -> Path | None:
    """Each implementation in turn: the kubeconfig of a server, or None for the one in memory."""
    if request.param == "memory":
        return None
    kubeconfig: Path = request.getfixturevalue(f"{request.param}_kubeconfig")
    return kubeconfig


@pytest.fixture
async def api(server: Path | None) -> AsyncIterator[Api]:
    if server is None:
        yield MemoryApi()
        return
    async with HttpApi(from_kubeconfig(server)) as http:
        yield http
