"""The implementations of the API port that the contract runs against."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.embedded_server import embedded_server, install_crds
from tests.support.memory_api import MemoryApi
from tests.support.own_group import OwnGroup, own_group
from unbounded.kube.api import Api
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig

CLUSTER: Final = os.environ.get("UNBOUNDED_TEST_KUBECONFIG", "")  # a cluster that may be written to
IMPLEMENTATIONS: Final = ("memory", "embedded", *(("cluster",) if CLUSTER else ()))


@pytest.fixture(scope="session")
def embedded_kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with embedded_server(tmp_path_factory.mktemp("apiserver")) as kubeconfig:
        asyncio.run(install_crds(kubeconfig))
        yield kubeconfig


@pytest.fixture(scope="session")
def cluster_group() -> Iterator[str]:
    """The group in which our kinds are served on the cluster, for as long as the tests take."""
    with own_group(Path(CLUSTER)) as group:
        yield group


def implementations(*, memory: bool) -> list[Any]:
    """Return the names of the implementations as values of a parameter; a server makes a test a slow one."""
    values = [pytest.param(name, marks=pytest.mark.slow) for name in IMPLEMENTATIONS if name != "memory"]
    return [*([pytest.param("memory")] if memory else []), *values]


def connector(request: pytest.FixtureRequest, name: str) -> tuple[ClientConfig, Callable[..., HttpApi]]:
    """Return the configuration of one of the servers, and the function that makes a client from it (and options)."""
    if name == "cluster":
        group = request.getfixturevalue("cluster_group")
        return from_kubeconfig(Path(CLUSTER)), lambda config, **options: OwnGroup(config, group, **options)
    return from_kubeconfig(request.getfixturevalue("embedded_kubeconfig")), HttpApi


@pytest.fixture(params=implementations(memory=True))
def connection(request: pytest.FixtureRequest) -> tuple[ClientConfig, Callable[..., HttpApi]] | None:
    """Each implementation in turn; None is the one in memory."""
    return None if request.param == "memory" else connector(request, request.param)


@pytest.fixture
async def api(connection: tuple[ClientConfig, Callable[..., HttpApi]] | None) -> AsyncIterator[Api]:
    if connection is None:
        yield MemoryApi()
        return
    config, connect = connection
    async with connect(config) as http:
        yield http
