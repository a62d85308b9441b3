"""A control plane for hosts: `unbounded up` as a process of its own on the segment, used through kubectl.

The client of these sources polls for conditions: a kubectl costs as much as thirty reads.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.paths import PYTHONPATH
from tests.support.qemu.tools import command
from unbounded.api.core import NODES
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP_BOOTSTRAP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.api import NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

START_S: Final = 60.0
_POLL_S: Final = 0.1
_OPERATION: Final = "machineoperations.unbounded-cloud.io"


@dataclass
class ControlPlane:
    """Args:
    data: its folder.
    address: https://….
    """

    data: Path
    address: str
    _process: subprocess.Popen[bytes] | None = None

    @property
    def kubeconfig(self) -> Path:
        """An administrator's."""
        return self.data / "kubeconfig"

    @property
    def log(self) -> str:
        return (self.data / "up.log").read_text(errors="replace")

    @property
    def ca_base64(self) -> str:
        return base64.b64encode((self.data / "pki" / "ca.crt").read_bytes()).decode()

    @asynccontextmanager
    async def api(self) -> AsyncIterator[HttpApi]:
        async with HttpApi(from_kubeconfig(self.kubeconfig)) as admin:
            yield admin

    async def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        """Run kubectl and return its output; with `check` false also when it fails, with its errors."""
        process = await asyncio.create_subprocess_exec(
            command("kubectl"),
            f"--kubeconfig={self.kubeconfig}",
            *arguments,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.environ["PATH"], "HOME": str(self.data)},
        )
        async with asyncio.timeout(START_S):
            out, err = await process.communicate(None if stdin is None else stdin.encode())
        assert process.returncode == 0 or not check, f"kubectl {' '.join(arguments)}: {err.decode()}\n{out.decode()}"
        return out.decode() + ("" if process.returncode == 0 else err.decode())

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> dict[str, Any]:
        """The object; empty when there is none."""
        async with self.api() as admin:
            return await _read(admin, kind, name, namespace)

    async def apply(self, *manifests: Mapping[str, Any]) -> None:
        await self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        )

    async def site_token(self) -> str:
        """A bootstrap token of the site: with it a host may make its own Machine."""
        identity, secret = secrets.token_hex(3), secrets.token_hex(8)
        data = {
            "token-id": identity,
            "token-secret": secret,
            "usage-bootstrap-authentication": "true",
            "auth-extra-groups": GROUP_BOOTSTRAP,
        }
        meta = {"name": f"bootstrap-token-{identity}", "namespace": "kube-system"}
        kind = "bootstrap.kubernetes.io/token"
        await self.apply({"apiVersion": "v1", "kind": "Secret", "type": kind, "metadata": meta, "stringData": data})
        return f"{identity}.{secret}"

    async def operate(self, name: str, machine: str, kind: str, **parameters: str) -> None:
        """Request an operation, as a user does."""
        spec: dict[str, Any] = {"machineRef": machine, "operationKind": kind}
        if parameters:
            spec["parameters"] = parameters
        await self.apply(
            {
                "apiVersion": "unbounded-cloud.io/v1alpha3",
                "kind": "MachineOperation",
                "metadata": {"name": name},
                "spec": spec,
            }
        )

    async def forget(self, machine: str) -> None:
        """Delete the Machine, its operations and its Node, as far as they exist, without waiting for an executor."""
        found = json.loads(await self.kubectl("get", _OPERATION, "-o", "json"))["items"]
        for name in [one["metadata"]["name"] for one in found if one["spec"].get("machineRef") == machine]:
            alone = '{"metadata": {"finalizers": null}}'
            await self.kubectl("patch", _OPERATION, name, "--type=merge", "--patch", alone, check=False)
            await self.kubectl("delete", _OPERATION, name, "--ignore-not-found")
        for kind in ("machines.unbounded-cloud.io", "nodes"):
            await self.kubectl("delete", kind, machine, "--ignore-not-found")

    async def ended(self, operation: str, *, within_s: float = 120.0) -> dict[str, Any]:
        """Wait until it is Complete or Failed; the whole operation."""
        return await self.wait(
            MACHINE_OPERATIONS,
            operation,
            lambda seen: seen.get("status", {}).get("phase") in ("Complete", "Failed"),
            within_s=within_s,
        )

    async def ready(self, node: str, *, but: str = "", within_s: float = 120.0) -> dict[str, Any]:
        """Wait until a Node is Ready; but: the UID of one that does not count."""
        return await self.wait(
            NODES, node, lambda seen: is_ready(seen) and seen["metadata"]["uid"] != but, within_s=within_s
        )

    async def wait(
        self,
        kind: Kind[Any],
        name: str,
        wanted: Callable[[dict[str, Any]], object],
        *,
        namespace: str = "",
        within_s: float,
    ) -> dict[str, Any]:
        """Wait until an object has the desired state; a missing one is passed as {}."""
        limit = time.monotonic() + within_s
        async with self.api() as admin:
            while not wanted(seen := await _read(admin, kind, name, namespace)):
                what = f"{kind.kind} {name} after {within_s:g} s"
                assert time.monotonic() < limit, f"{what}: {_shown(seen)}\n{self.log[-2000:]}"
                await asyncio.sleep(_POLL_S)
            return seen


async def _read(admin: HttpApi, kind: Kind[Any], name: str, namespace: str) -> dict[str, Any]:
    try:
        return await admin.get(kind.raw(), name, namespace=namespace)
    except NotFound:
        return {}


def is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _shown(seen: Mapping[str, Any]) -> str:
    shown = {**seen, "metadata": {**seen.get("metadata", {}), "managedFields": None}}
    return json.dumps(shown, indent=1)


@contextmanager
def control_plane(data: Path, address: str, *more: str) -> Iterator[ControlPlane]:
    """Run one on this address of the network that the caller is in.

    Args:
        more: further flags.
    """
    data.mkdir(parents=True)
    told = [sys.executable, "-m", "unbounded.cli.main", "up", "--data", str(data), "--bind", address, "--port", "6443"]
    told += more
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "PYTHONUNBUFFERED": "1"}
    with (data / "up.log").open("wb") as log:
        process = subprocess.Popen(told, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
    plane = ControlPlane(data, f"https://{address}:6443", process)
    try:
        limit = time.monotonic() + START_S
        while "Ctrl-C stops" not in plane.log:
            assert process.poll() is None, plane.log
            assert time.monotonic() < limit, plane.log
            time.sleep(0.05)
        yield plane
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
