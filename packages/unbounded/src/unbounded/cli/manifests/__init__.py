"""Installation of the definitions, the components' rights and the admission policies; deploy/ has them for a cluster.

Each component has a file in rbac/ with its ServiceAccount and roles, and one in policy/ with limits for its account.
container_cloud/ has those of Container Cloud, which are installed on request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import yaml

from unbounded.api.container_cloud.names import GROUPS
from unbounded.api.crd import (
    CONTAINER_CLOUD_DEFINITIONS,
    DEFINITIONS,
    MANAGED_BY,
    KindDefinition,
    custom_resource_definition,
)
from unbounded.api.meta import Kind
from unbounded.kube.api import AlreadyExists, Api, NotFound

CRDS: Final[Kind[dict[str, Any]]] = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", dict
)
SERVED_WITHIN_S: Final = 20.0
POLL_S: Final = 0.02


async def install_definitions(api: Api) -> None:
    """Create or update the definitions of every installation, and wait until their kinds are served.

    Raises:
        TimeoutError: a kind was not served in time.
    """
    await _install_definitions(api, DEFINITIONS)


async def install_container_cloud(api: Api) -> None:
    """Create or update the definitions, rights and policies of Container Cloud, and wait until its kinds are served.

    Raises:
        TimeoutError: a kind was not served in time.
    """
    await _install_definitions(api, CONTAINER_CLOUD_DEFINITIONS)
    await _install_all(api, container_cloud_manifests())


async def foreign_definitions(api: Api) -> list[str]:
    """Return the definitions in the groups of Container Cloud that others have created, by their names."""
    found = (await api.list(CRDS)).items
    return sorted(
        str(one["metadata"]["name"])
        for one in found
        if one["spec"]["group"] in GROUPS and not MANAGED_BY.items() <= (one["metadata"].get("labels") or {}).items()
    )


async def _install_definitions(api: Api, definitions: Sequence[KindDefinition]) -> None:
    for body in map(custom_resource_definition, definitions):
        try:
            await api.create(CRDS, body)
        except AlreadyExists:  # the server does not write an equal one
            await api.patch(CRDS, body["metadata"]["name"], {"spec": body["spec"]})
    await wait_served(api, definitions)


async def wait_served(api: Api, definitions: Sequence[KindDefinition] = DEFINITIONS) -> None:
    """Wait until the server serves the kinds of all definitions.

    Raises:
        TimeoutError: a kind was not served in time.
    """
    async with asyncio.timeout(SERVED_WITHIN_S):
        for definition in definitions:
            await _wait_served(api, definition.kind)


async def _wait_served(api: Api, kind: Kind[Any]) -> None:
    while True:
        try:
            await api.get(kind, "whether-the-kind-is-served", namespace="default")
        except NotFound as error:
            if error.status.get("details", {}).get("name"):  # the error for an unknown path names no object
                return
        else:
            return
        await asyncio.sleep(POLL_S)


AT_ONCE: Final = 8  # each opens a connection, which costs more than the write
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
    """Return the text of each file of every installation by its path, such as rbac/machina.yaml."""
    return {path: text for folder in FOLDERS for path, text in _files(folder).items()}


def container_cloud_sources() -> dict[str, str]:
    """Return the text of each file of Container Cloud by its path, such as container_cloud/rbac.yaml."""
    return _files("container_cloud")


def _files(folder: str) -> dict[str, str]:
    found = sorted((files(__name__) / folder).iterdir(), key=lambda file: file.name)
    return {f"{folder}/{file.name}": file.read_text() for file in found}


def manifests() -> Iterator[dict[str, Any]]:
    """Yield every object of every installation."""
    return _objects(sources())


def container_cloud_manifests() -> Iterator[dict[str, Any]]:
    """Yield every object of Container Cloud."""
    return _objects(container_cloud_sources())


def _objects(texts: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    for text in texts.values():
        yield from yaml.load_all(text, Loader=yaml.CSafeLoader)  # the safe loader, in C


async def install_manifests(api: Api) -> None:
    """Create missing objects of every installation and reset changed ones; the server does not write equal ones."""
    await _install_all(api, manifests())


async def _install_all(api: Api, bodies: Iterable[dict[str, Any]]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def install(manifest: dict[str, Any]) -> None:
        async with turns:
            await _install(api, manifest)

    await asyncio.gather(*map(install, bodies))


async def _install(api: Api, manifest: dict[str, Any]) -> None:
    kind, meta = KINDS[manifest["kind"]], manifest["metadata"]
    try:
        await api.create(kind, manifest)
    except AlreadyExists:
        values = {key: value for key, value in manifest.items() if key not in {"apiVersion", "kind", "metadata"}}
        if values:
            await api.patch(kind, meta["name"], values, namespace=meta.get("namespace", ""))
