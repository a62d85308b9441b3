"""Kinds of the objects that intents write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, NODES, SECRETS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.plan.intent import Raw

_KINDS: Final[Mapping[tuple[str, str], Kind[Any]]] = {
    (kind.api_version, kind.kind): kind
    for kind in (
        *(MACHINES, MACHINE_OPERATIONS, MACHINE_CONFIGURATIONS, MACHINE_CONFIGURATION_VERSIONS),
        *(MACHINE_OPERATION_CREDENTIALS, SECRETS, CONFIG_MAPS, NODES, NAMESPACES, BARE_METAL_HOSTS),
    )
}


def kind_of(manifest: Raw) -> Kind[dict[str, Any]]:
    """Return the kind of a manifest, decoded as plain JSON. Raises KeyError for a kind that no intent has."""
    return _KINDS[str(manifest["apiVersion"]), str(manifest["kind"])].raw()
