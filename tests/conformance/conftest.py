"""A server for the tests of this folder: the cluster of UNBOUNDED_TEST_KUBECONFIG, or an embedded one."""

from __future__ import annotations

import asyncio
import fcntl
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.support import golden_definitions
from tests.conformance.support import CLUSTER, Kubectl, unique
from tests.support.embedded_server import embedded_server
from tests.support.waiting import eventually
from unbounded.api.core import NAMESPACES
from unbounded.api.meta import Kind
from unbounded.kube.api import Api, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

CRDS: Kind[dict[str, Any]] = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", dict
)
ESTABLISHED_S = 30.0


@dataclass(frozen=True)
class Cluster:
    """A server, and the group of our definitions on it."""

    kubeconfig: Path
    group: str


@pytest.fixture(scope="session")
def any_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an administrator."""
    if CLUSTER:
        yield Path(CLUSTER)
        return
    with embedded_server(tmp_path_factory.mktemp("apiserver")) as kubeconfig:
        yield kubeconfig


@pytest.fixture
def server(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server that no other test runs controllers on meanwhile, in another process neither."""
    if not CLUSTER:
        with embedded_server(tmp_path / "data") as kubeconfig:
            yield kubeconfig
        return
    with (tmp_path_factory.getbasetemp().parent / "controllers.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(CLUSTER)


@pytest.fixture(scope="session")
def cluster(any_server: Path) -> Iterator[Cluster]:
    """The server with the definitions of Widget and Gadget, in a group that is ours alone."""
    group = f"{unique('conformance')}.example.com"
    text = json.dumps(golden_definitions()).replace("example.com", group)
    definitions: list[dict[str, Any]] = json.loads(text)
    asyncio.run(_define(any_server, definitions))
    yield Cluster(any_server, group)
    asyncio.run(_remove(any_server, definitions))


async def _define(kubeconfig: Path, definitions: list[dict[str, Any]]) -> None:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api:
        for definition in definitions:
            await api.create(CRDS, definition)
        for definition in definitions:
            await eventually(partial(_served, api, definition), within_s=ESTABLISHED_S)


async def _served(api: Api, definition: dict[str, Any]) -> bool:
    names, group = definition["spec"]["names"], definition["spec"]["group"]
    for version in definition["spec"]["versions"]:
        if version["served"]:
            kind: Kind[dict[str, Any]] = Kind(group, version["name"], names["kind"], names["plural"], dict)
            try:
                await api.list(kind)
            except NotFound:
                return False
    return True


async def _remove(kubeconfig: Path, definitions: list[dict[str, Any]]) -> None:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api:
        for definition in definitions:
            await api.delete(CRDS, definition["metadata"]["name"])


@pytest.fixture
async def namespace(any_server: Path) -> AsyncIterator[str]:
    """A namespace that is removed after the test."""
    name = unique("conformance")
    async with HttpApi(from_kubeconfig(any_server)) as api:
        await api.create(NAMESPACES, {"metadata": {"name": name}})
        yield name
        await api.delete(NAMESPACES, name)


@pytest.fixture(scope="session")
def discovery_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache of kubectl between two commands."""
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
async def kubectl(cluster: Cluster, namespace: str, discovery_cache: Path, tmp_path: Path) -> AsyncIterator[Kubectl]:
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    command = Kubectl(tmp_path, config, namespace, cluster.group, discovery_cache)
    command.configure()
    yield command
    for process in command.started:
        if process.returncode is None:
            process.kill()
            await process.wait()
