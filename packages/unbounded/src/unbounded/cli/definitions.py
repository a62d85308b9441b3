"""Installation of the project's CustomResourceDefinitions on a server."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from unbounded.api.crd import DEFINITIONS, custom_resource_definitions
from unbounded.api.meta import Kind
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.port import Api

CRDS: Final[Kind[dict[str, Any]]] = Kind(
    "apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", dict
)
SERVED_WITHIN_S: Final = 20.0
POLL_S: Final = 0.02


async def install_definitions(api: Api) -> None:
    """Create or update all definitions, and wait until their kinds are served.

    Raises:
        TimeoutError: a kind was not served in time.
    """
    for body in custom_resource_definitions():
        try:
            await api.create(CRDS, body)
        except AlreadyExists:  # the server does not write an equal one
            await api.patch(CRDS, body["metadata"]["name"], {"spec": body["spec"]})
    await wait_served(api)


async def wait_served(api: Api) -> None:
    """Wait until the server serves the kinds of all definitions.

    Raises:
        TimeoutError: a kind was not served in time.
    """
    async with asyncio.timeout(SERVED_WITHIN_S):
        for definition in DEFINITIONS:
            await _wait_served(api, definition.kind)


async def _wait_served(api: Api, kind: Kind[Any]) -> None:
    while True:
        try:
            await api.get(kind, "whether-the-kind-is-served")
        except NotFound as error:
            if error.status.get("details", {}).get("name"):  # the error for an unknown path names no object
                return
        else:
            return
        await asyncio.sleep(POLL_S)
