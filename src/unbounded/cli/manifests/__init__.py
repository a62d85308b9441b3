"""The rights of the components and the admission policies, brought to a server; deploy/ holds the same for a cluster.

One file for each component: rbac/ with its ServiceAccount and roles, policy/ with what those who hold them are kept to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from importlib.resources import files
from typing import Any, Final

import yaml

from unbounded.api.kinds import Kind
from unbounded.kube.errors import AlreadyExists
from unbounded.kube.port import Api

AT_ONCE: Final = 8  # each opens a connection, which costs more than what is written over it
FOLDERS: Final = ("rbac", "policy")
_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"


def _kind(group: str, kind: str, plural: str = "", *, namespaced: bool = False) -> Kind[dict[str, Any]]:
    return Kind(group, "v1", kind, plural or f"{kind.lower()}s", dict, namespaced)


KINDS: Final = {
    kind.kind: kind
    for kind in (
        _kind("", "ServiceAccount", namespaced=True),
        _kind(_RBAC, "ClusterRole"),
        _kind(_RBAC, "ClusterRoleBinding"),
        _kind(_RBAC, "Role", namespaced=True),
        _kind(_RBAC, "RoleBinding", namespaced=True),
        _kind(_ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
        _kind(_ADMISSION, "ValidatingAdmissionPolicyBinding"),
    )
}


def sources() -> dict[str, str]:
    """The text of each file by its path, such as rbac/machina.yaml."""
    here = files(__name__)
    return {
        f"{folder}/{file.name}": file.read_text()
        for folder in FOLDERS
        for file in sorted((here / folder).iterdir(), key=lambda file: file.name)
    }


def manifests() -> Iterator[dict[str, Any]]:
    """Every object."""
    for text in sources().values():
        yield from yaml.load_all(text, Loader=yaml.CSafeLoader)  # the safe loader, in C


async def install_manifests(api: Api) -> None:
    """Create what is missing, and give back to the rest what it is to say; what is as it should be is not written."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def install(manifest: dict[str, Any]) -> None:
        async with turns:
            await _install(api, manifest)

    await asyncio.gather(*map(install, manifests()))


async def _install(api: Api, manifest: dict[str, Any]) -> None:
    kind, meta = KINDS[manifest["kind"]], manifest["metadata"]
    try:
        await api.create(kind, manifest)
    except AlreadyExists:
        said = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind", "metadata"}}
        if said:
            await api.patch(kind, meta["name"], said, namespace=meta.get("namespace", ""))
