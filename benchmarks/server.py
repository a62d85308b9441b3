"""A child process with an embedded API server: `python -m benchmarks.server DATA [--bare]`.

The project's CRDs are installed in it, unless it is to be bare.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, Final

from benchmarks import children
from unbounded.api.crd import custom_resource_definitions
from unbounded.api.kinds import Kind
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.apiserver.server import ApiServer
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.errors import NotFound
from unbounded.kube.port import Api

SERVED_S: Final = 30.0
CRDS: Final[Kind[dict[str, Any]]] = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", dict
)


async def main(data: Path, *, bare: bool) -> None:
    server = ApiServer(data)
    await server.start()
    try:
        if not bare:
            async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
                await _install(api)
        await children.serve({"kubeconfig": str(server.kubeconfig_path)})
    finally:
        await server.stop()


async def _install(api: Api) -> None:
    for definition in custom_resource_definitions():
        await api.create(CRDS, definition)
    async with asyncio.timeout(SERVED_S):
        for kind in (MACHINES, MACHINE_OPERATIONS):
            await _served(api, kind)


async def _served(api: Api, kind: Kind[Any]) -> None:
    while True:
        try:
            await api.list(kind)
        except NotFound:
            await asyncio.sleep(0.05)
        else:
            return


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), bare="--bare" in sys.argv[2:]))
