"""Recorder of the answers of the explanation API of another revision, for the test that two releases understand.

    python -m scripts.record_explain_answers REVISION

It runs the `unbounded up` of that revision, and writes what it has answered, with its OpenAPI document, to FOLDER.
Record the last commit of a minor release when the next one begins.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGINT
from tempfile import TemporaryDirectory
from typing import Any, Final

from scripts.packages import ROOT
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.names import LABEL_CLUSTER, LABEL_PROVIDER
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig
from unbounded.kube.http_pool import HttpAddress, HttpPool, split_server

FOLDER: Final = "packages/unbounded/tests/explain_api/recorded"
DOCUMENT: Final = "docs/reference/explain-openapi.json"
SOURCES: Final = ("packages", DOCUMENT)
FLAGS: Final = ("--port", "0", "--health-port", "0", "--container-cloud")
PROCESSED_S: Final = 60.0
NOT_PROCESSED: Final = '"NotProcessed"'
READY: Final = b"Ctrl-C stops"
_BMC: Final = {
    "url": "https://127.0.0.1:9",
    "username": "u",
    "passwordRef": {"name": "bmc", "namespace": NAMESPACE, "key": "password"},
}
_API: Final = MACHINE_OPERATIONS.api_version
_PROVIDED: Final = {LABEL_PROVIDER: "baremetal"}
_CLUSTER: Final = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec"}
_CLAIM: Final = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
_CLAIM_LABELS: Final = {**_PROVIDED, LABEL_CLUSTER: "cluster-1"}
_HOST_BMC: Final = {"address": "redfish://127.0.0.1:9/redfish/v1/Systems/1", "credentialsName": "none"}
KINDS: Final[Mapping[str, Kind[Any]]] = {
    "machines": MACHINES,
    "operations": MACHINE_OPERATIONS,
    "clusters": CLUSTERS,
    "hosts": BARE_METAL_HOSTS,
    "claims": CONTAINER_CLOUD_MACHINES,
    "pools": MACHINE_POOLS,
}
OBJECTS: Final[Mapping[str, Any]] = {
    "machines": [
        {
            "metadata": {"name": "m1", "labels": {LABEL_SITE: "lab"}},
            "spec": {"kubernetes": {}, "pxe": {"image": "registry.example.com/ubuntu:1", "redfish": _BMC}},
        },
        {"metadata": {"name": "m2"}, "spec": {}},
    ],
    "operations": [
        {"metadata": {"name": "reboot-m1"}, "spec": {"operationKind": "NodeReboot", "machineRef": "m1"}},
        {"metadata": {"name": "off-m2"}, "spec": {"operationKind": "HostPowerOff", "machineRef": "m2"}},
    ],
    "clusters": [
        {
            "metadata": {"name": "cluster-1", "labels": _PROVIDED},
            "spec": {"providerSpec": {"value": {**_CLUSTER, "release": "none"}}},
        }
    ],
    "hosts": [
        {"metadata": {"name": "host-1"}, "spec": {"bmc": _HOST_BMC, "bootMACAddress": "52:54:00:00:00:09"}},
    ],
    "claims": [
        {"metadata": {"name": "claim-1", "labels": _CLAIM_LABELS}, "spec": {"providerSpec": {"value": _CLAIM}}},
    ],
    "pools": [
        {
            "metadata": {"name": "pool-1", "labels": _CLAIM_LABELS},
            "spec": {"replicas": 1, "machineSpec": {"providerSpec": {"value": _CLAIM}}},
        }
    ],
}
PROJECT: Final = "default"  # of the objects of Container Cloud
_PLANNED: Final = {"apiVersion": _API, "kind": "MachineOperation", "metadata": {"name": "planned"}}
REQUESTS: Final[tuple[tuple[str, Any], ...]] = (
    ("/explain/machine/m1", None),
    ("/explain/machine/m2", None),
    ("/explain/operation/reboot-m1", None),
    ("/explain/operation/off-m2", None),
    ("/explain/machine/none", None),
    (f"/explain/ma/{PROJECT}/claim-1", None),
    (f"/explain/bmh/{PROJECT}/host-1", None),
    (f"/explain/cluster.cluster.k8s.io/{PROJECT}/cluster-1", None),
    (f"/explain/mp/{PROJECT}/pool-1", None),
    (f"/explain/bmh/{PROJECT}/none", None),
    ("/plan", {"creates": [{**_PLANNED, "spec": {"operationKind": "HostReplace", "machineRef": "m1"}}]}),
    (
        "/plan",
        {"patches": [{"apiVersion": _API, "kind": "Machine", "name": "m1", "patch": {"spec": {"maintenance": {}}}}]},
    ),
    (
        "/plan",
        {
            "objects": [
                {
                    "apiVersion": CONTAINER_CLOUD_MACHINES.api_version,
                    "kind": CONTAINER_CLOUD_MACHINES.kind,
                    "metadata": {"name": "claim-2", "namespace": PROJECT, "labels": _CLAIM_LABELS},
                    "spec": {"providerSpec": {"value": _CLAIM}},
                }
            ]
        },
    ),
)


async def record(revision: str) -> None:
    """Write the answers of a revision."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        commit = _unpack(revision, root / "sources")
        packages = ":".join(map(str, sorted((root / "sources").glob("packages/*/src"))))
        async with _serving(packages, root / "data") as config:
            async with HttpApi(config) as api:
                await create_objects(api, OBJECTS)
            await _wait_processed(config)
            answers = [await _answer(config, path, body) for path, body in REQUESTS]
        document = json.loads((root / "sources" / DOCUMENT).read_text())
    found = {"commit": commit, "objects": OBJECTS, "answers": answers, "document": document}
    release = document["info"]["version"]
    file = ROOT / FOLDER / f"{release}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")


async def create_objects(api: HttpApi, objects: Mapping[str, Any]) -> None:
    """Create objects, by the names of KINDS."""
    for name, bodies in objects.items():
        kind = KINDS[name]
        for body in bodies:
            await api.create(kind.raw(), body, namespace=PROJECT if kind.namespaced else "")


def _unpack(revision: str, to: Path) -> str:
    """Unpack the sources of a revision; returns its commit."""
    git = [shutil.which("git") or "git", "-C", str(ROOT)]
    parsed = subprocess.run([*git, "rev-parse", f"{revision}^{{commit}}"], check=True, capture_output=True)  # noqa: S603
    commit = parsed.stdout.decode().strip()
    archive = subprocess.run([*git, "archive", commit, *SOURCES], check=True, capture_output=True)  # noqa: S603
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(to, filter="data")
    return commit


@asynccontextmanager
async def _serving(packages: str, data: Path) -> AsyncIterator[ClientConfig]:
    """Run `unbounded up` of these packages inside of the context."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "unbounded.cli.main", "up", "--data", str(data), *FLAGS),
        env={**os.environ, "PYTHONPATH": packages},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        if process.stdout is None:
            raise RuntimeError("unbounded up has no output")
        await process.stdout.readuntil(READY)
        yield from_kubeconfig(data / "kubeconfig")
    finally:
        process.send_signal(SIGINT)
        await process.communicate()


async def _wait_processed(config: ClientConfig) -> None:
    """Wait until the controllers have processed the objects, so that answers have causes."""
    async with asyncio.timeout(PROCESSED_S):
        for path in (path for path, body in REQUESTS if body is None):
            while NOT_PROCESSED in json.dumps(await _answer(config, path, None)):  # noqa: ASYNC110  # of another process
                await asyncio.sleep(0.1)


async def _answer(config: ClientConfig, path: str, body: Any) -> dict[str, Any]:
    """Return a request with its answer."""
    login = await config.credentials.login()
    host, port, _ = split_server(config.server)
    pool, content = HttpPool(), None if body is None else json.dumps(body).encode()
    try:
        address = HttpAddress(host, port, config.ssl_context(login.certificate), config.tls_server_name)
        headers = [("Accept", "application/json"), *login.headers()]
        headers += [] if content is None else [("Content-Type", "application/json")]
        response = await pool.request(address, "GET" if content is None else "POST", path, headers, content)
        answer = json.loads(await response.read())
    finally:
        await pool.close()
    return {"path": path, "body": body, "status": response.status, "answer": answer}


if __name__ == "__main__":
    asyncio.run(record(sys.argv[1]))
