"""A cluster for our controllers: with the project's definitions and rights, which are removed afterwards.

The definitions belong to the whole cluster, and so does the supervisor, which handles all Machines. So the tests do not
use a cluster that has them already.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import yaml

from unbounded.api.core import LEASES, NAMESPACES
from unbounded.api.crd import custom_resource_definitions
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import LEASE_SUPERVISOR, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import CRDS, KINDS, install_definitions, install_manifests, manifests
from unbounded.kube.api import Api, NotFound
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

GONE_S: Final = 60.0


class InUse(Exception):
    """The cluster has the project's definitions: a control plane may be at work there."""


@asynccontextmanager
async def prepared(kubeconfig: Path, *, leases: tuple[str, ...] = ()) -> AsyncIterator[HttpApi]:
    """Bring what the controllers need, and remove it at the end; yields an administrator.

    Args:
        leases: the names of those that the controllers take beside the steward's; they are removed too.
    Raises:
        InUse
    """
    async with HttpApi(from_kubeconfig(kubeconfig)) as admin, AsyncExitStack() as undo:
        names = [body["metadata"]["name"] for body in custom_resource_definitions()]
        there = [name for name in names if await _is_there(admin, CRDS, name)]
        if there:
            raise InUse(f"it has {', '.join(there)}")
        if not await _is_there(admin, NAMESPACES, NAMESPACE):
            await admin.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
            undo.push_async_callback(_remove, admin, NAMESPACES, NAMESPACE)
        for lease in (LEASE_SUPERVISOR, *leases):
            undo.push_async_callback(_remove, admin, LEASES, lease, NAMESPACE)
        for manifest in manifests():
            kind, meta = KINDS[manifest["kind"]], manifest["metadata"]
            where = (admin, kind, meta["name"], meta.get("namespace", ""))
            if not await _is_there(*where):
                undo.push_async_callback(_remove, *where)
        for name in names:
            undo.push_async_callback(_remove, admin, CRDS, name)
        await install_definitions(admin)
        undo.push_async_callback(_let_go, admin)
        await install_manifests(admin)
        yield admin


async def account_kubeconfig(admin: HttpApi, account: str, folder: Path) -> Path:
    """A kubeconfig for a component's service account, with the rights of deploy/ and no others."""
    issued = await admin.token(account, namespace=NAMESPACE)
    cluster: dict[str, Any] = {"server": admin.config.server}
    if admin.config.ca:
        cluster["certificate-authority-data"] = base64.b64encode(admin.config.ca).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": account, "user": {"token": issued.token}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": account}}],
        "current-context": "it",
    }
    own = folder / f"kubeconfig-{account}"
    own.write_text(yaml.safe_dump(config))
    own.chmod(0o600)
    return own


async def _is_there(api: Api, kind: Kind[Any], name: str, namespace: str = "") -> bool:
    try:
        await api.get(kind, name, namespace=namespace)
    except NotFound:
        return False
    return True


async def _remove(api: Api, kind: Kind[Any], name: str, namespace: str = "") -> None:
    """Delete the object if it exists, and wait until it is gone: the next test may create it again."""
    with suppress(NotFound):
        await api.delete(kind, name, namespace=namespace)
    async with asyncio.timeout(GONE_S):
        while True:
            if not await _is_there(api, kind, name, namespace):
                return
            await asyncio.sleep(0.05)


async def _let_go(api: Api) -> None:
    """Take off the finalizers that a controller would take off, which has ended by now."""
    for kind in (MACHINE_OPERATIONS.raw(), MACHINES.raw()):
        for one in (await api.list(kind)).items:
            with suppress(NotFound):
                await api.patch(kind, one["metadata"]["name"], {"metadata": {"finalizers": None}})
