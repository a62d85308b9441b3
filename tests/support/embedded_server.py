"""An embedded API server in a thread of its own, with the project's CRDs installed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml

from tests.support.paths import ROOT
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.servers import api_server
from unbounded.kube.api import AlreadyExists, Api, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

CRDS: Final[Kind[dict[str, Any]]] = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", dict
)
CRD_FILES: Final = ROOT / "deploy" / "crd"
START_S: Final = 30.0


@contextmanager
def embedded_server(data: Path) -> Iterator[Path]:
    """Run a server on loopback while entered; yields the path of its administrator's kubeconfig.

    It has a thread and an event loop of its own, so that one server can serve many tests, each with its own loop.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="embedded API server", daemon=True)
    thread.start()

    def do(work: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await work()

        asyncio.run_coroutine_threadsafe(main(), loop).result(START_S)

    server = api_server(data)
    try:
        do(server.start)
        try:
            yield server.kubeconfig_path
        finally:
            do(server.stop)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_S)
        loop.close()


async def install_crds(kubeconfig: Path, group: str = GROUP) -> list[str]:
    """Create the project's CRDs where they are missing, and wait until their kinds are served; the CRDs' names.

    Args:
        group: where their kinds are served.
    """
    names = []
    async with HttpApi(from_kubeconfig(kubeconfig)) as api:
        for path in sorted(CRD_FILES.glob("*.yaml")):
            definition = yaml.load(path.read_bytes(), Loader=yaml.CSafeLoader)
            name = f"{definition['spec']['names']['plural']}.{group}"
            definition["metadata"]["name"], definition["spec"]["group"] = name, group
            names.append(name)
            with suppress(AlreadyExists):
                await api.create(CRDS, definition)
        async with asyncio.timeout(START_S):
            for kind in (MACHINES, MACHINE_OPERATIONS):
                await _wait_served(api, replace(kind, group=group))
    return names


async def _wait_served(api: Api, kind: Kind[Any]) -> None:
    while True:
        try:
            await api.list(kind)
        except NotFound:
            await asyncio.sleep(0.05)
        else:
            return
