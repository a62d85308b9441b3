"""A control plane in a process of its own, a user's shell, and Machines observed through the API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.cli.running import Up, up
from tests.docs.runner import Shell
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

LIMIT_S: Final = 90.0
START_S: Final = 180.0  # where others keep the machine busy; it is no promise
_LOOK_S: Final = 0.2


@dataclass
class Plane:
    running: Up
    api: HttpApi
    shell: Shell

    async def wait(self, name: str, wanted: Callable[[Machine], bool], *, within_s: float = LIMIT_S) -> Machine:
        """Wait until a Machine has the desired state."""
        seen: Machine | None = None
        try:
            async with asyncio.timeout(within_s):
                while True:
                    try:
                        seen = await self.api.get(MACHINES, name)
                    except NotFound:
                        seen = None
                    if seen is not None and wanted(seen):
                        return seen
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            said = f"{seen.status.phase}: {seen.status.message}\n{seen.status.conditions}" if seen else "there is none"
            raise AssertionError(f"{name} after {within_s:g} s: {said}\n{self.running.printed[-3000:]}") from None

    async def gone(self, name: str, *, within_s: float = LIMIT_S) -> None:
        async with asyncio.timeout(within_s):
            while True:
                try:
                    await self.api.get(MACHINES, name)
                except NotFound:
                    return
                await asyncio.sleep(_LOOK_S)


@asynccontextmanager
async def plane(data: Path, *arguments: str) -> AsyncIterator[Plane]:
    """`unbounded up` on loopback while inside."""
    async with up(data, "--port", "0", *arguments) as running:
        await running.says("Ctrl-C stops", within_s=START_S)
        async with HttpApi(from_kubeconfig(data / "kubeconfig")) as api:
            folder = data.parent / "home"
            folder.mkdir(exist_ok=True)
            yield Plane(running, api, Shell(folder, data / "kubeconfig", {}))


def reason(machine: Machine, kind: str) -> str:
    """Of a condition, as `status/reason`; empty where there is none."""
    found = [one for one in machine.status.conditions if one.type == kind]
    return f"{found[0].status}/{found[0].reason}" if found else ""


def phase_is(wanted: str) -> Callable[[Machine], bool]:
    return lambda machine: machine.status.phase == wanted


def object_of(name: str, spec: dict[str, Any], **labels: str) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": name, "labels": labels} if labels else {"name": name}
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": meta, "spec": spec}
