"""Two servers for the tests of a folder: one that `unbounded up` has prepared, and one in place of a cluster.

The cluster has definitions in place of apps/v1 and networking.k8s.io/v1, which the embedded server does not serve.
Requests and answers are real, and the tests play the controller of Deployments.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.plugin.conftest import Cli
from tests.support.embedded_server import embedded_server
from unbounded.cli.deploy import components
from unbounded.cli.deploy.server_side_apply import DEPLOYMENTS, NETWORK_POLICIES
from unbounded.cli.manifests import CRDS, install_definitions, install_manifests
from unbounded.cli.servers import publish_cluster_info
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver import crd_validation

Raw = dict[str, Any]


def stand_in(group: str, kind: str, plural: str, *, namespaced: bool = True) -> Raw:
    """A definition that lets anything be written into objects of a kind."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {**anything, "properties": {"spec": anything, "status": anything}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }
    return {
        "metadata": {
            "name": f"{plural}.{group}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, it stands in for a built-in kind"},
        },
        "spec": {
            "group": group,
            "scope": "Namespaced" if namespaced else "Cluster",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [version],
        },
    }


async def serve(api: HttpApi, kind: Any) -> None:
    await api.create(CRDS, stand_in(kind.group, kind.kind, kind.plural, namespaced=kind.namespaced))
    async with asyncio.timeout(30):
        while True:
            try:
                await api.list(kind, namespace="default" if kind.namespaced else "")
            except Exception:
                await asyncio.sleep(0.05)
            else:
                return


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server as `unbounded up` prepares it."""

    async def prepare(kubeconfig: Path) -> None:
        config = from_kubeconfig(kubeconfig)
        async with HttpApi(config) as api:
            await install_definitions(api)
            await install_manifests(api)
            await publish_cluster_info(api, config.server, config.ca or b"")
            await components.publish(api, {})

    with embedded_server(tmp_path_factory.mktemp("beside")) as kubeconfig:
        asyncio.run(prepare(kubeconfig))
        yield kubeconfig


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of a server that has nothing of the project yet."""

    async def prepare(kubeconfig: Path) -> None:
        async with HttpApi(from_kubeconfig(kubeconfig)) as api:
            with pytest.MonkeyPatch.context() as patching:  # a group of Kubernetes' own has no dot
                patching.setattr(crd_validation, "_rules_group", lambda _spec: [])
                for kind in (DEPLOYMENTS, NETWORK_POLICIES):
                    await serve(api, kind)

    with embedded_server(tmp_path_factory.mktemp("cluster")) as kubeconfig:
        asyncio.run(prepare(kubeconfig))
        yield kubeconfig


@pytest.fixture
def up_cli(beside: Path) -> Cli:
    return Cli(beside)


@pytest.fixture
async def up_api(beside: Path) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(beside)) as api:
        yield api


@pytest.fixture
def cluster_cli(cluster: Path) -> Cli:
    return Cli(cluster)


@pytest.fixture
async def cluster_api(cluster: Path) -> AsyncIterator[HttpApi]:
    async with HttpApi(from_kubeconfig(cluster)) as api:
        yield api
