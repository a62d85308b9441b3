"""Check that a copy is complete, independent of the code that made it: both sides are brought to one form, with names
in

place of UIDs, and compared.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.cli.migrate.world import WIDGETS
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, LEASES, NODES, SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import KINDS
from unbounded.kube.api import Api, NotFound

Raw = dict[str, Any]

JUDGED: tuple[Kind[Any], ...] = (
    *(MACHINES, MACHINE_OPERATIONS, MACHINE_CONFIGURATIONS, MACHINE_CONFIGURATION_VERSIONS),
    *(NODES, SECRETS, CONFIG_MAPS, WIDGETS, KINDS["Role"], KINDS["ValidatingAdmissionPolicy"]),
)
ASSIGNED = {"uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"}
OF_A_SERVER = re.compile(
    r"^(kube-root-ca\.crt|cluster-info|unbounded-operations|unbounded-components|unbounded-migration)"
)


async def form(api: Api) -> dict[str, Any]:
    """All objects that count, by kind and name."""
    objects: dict[str, Raw] = {}
    for kind in JUDGED:
        try:
            items = (await api.list(kind.raw())).items
        except NotFound:
            continue
        for body in items:
            meta = body["metadata"]
            if not OF_A_SERVER.match(meta["name"]):
                objects[f"{kind.kind}/{meta.get('namespace', '')}/{meta['name']}"] = body
    names = {body["metadata"]["uid"]: name for name, body in objects.items()}
    versions = {
        body["metadata"]["resourceVersion"]: name for name, body in objects.items() if name.startswith("Secret/")
    }
    return {name: _shown(body, names, versions) for name, body in objects.items()}


def _shown(body: Raw, names: Mapping[str, str], versions: Mapping[str, str]) -> Raw:
    meta = {key: value for key, value in body["metadata"].items() if key not in ASSIGNED}
    annotations = {k: v for k, v in meta.pop("annotations", {}).items() if k != "unbounded-cloud.io/migrated-from"}
    status = dict(body.get("status", {}))
    status.pop("originalUID", None)
    if body["kind"] == "Machine":
        _number(status, body["metadata"]["generation"])
        redfish = status.get("redfish", {})
        if "refusedSecretVersion" in redfish:
            status["redfish"] = redfish | {"refusedSecretVersion": versions[redfish["refusedSecretVersion"]]}
    rest = {key: value for key, value in body.items() if key not in {"metadata", "status", "data"}}
    data = body.get("data", {})
    if body["kind"] == "Secret":
        data = {key: base64.b64decode(value).decode() for key, value in data.items()}
        kept = data.pop("replacement", None)  # for a cloud's eyes: as it was, letter by letter
        data |= {} if kept is None else {"letters": len(kept)}
    text = json.dumps({**rest, "data": data, "metadata": meta | {"annotations": annotations}, "status": status})
    for uid, name in names.items():
        text = text.replace(uid, name)
    found: Raw = json.loads(text)
    return found


def _number(value: Any, generation: int) -> None:
    """Replace a generation by whether the status describes the present spec."""
    for key, one in value.items() if isinstance(value, dict) else ():
        if key in {"generation", "observedGeneration"}:
            value[key] = "now" if one == generation else "before"
        _number(one, generation)
    for one in value if isinstance(value, list) else ():
        _number(one, generation)


async def copies_on(api: Api) -> list[str]:
    """The Machines that are there."""
    try:
        return sorted(one.name for one in (await api.list(MACHINES)).items)
    except NotFound:
        return []


async def holders(api: Api) -> dict[str, str]:
    """Return the leaders there, by Lease."""
    leases = (await api.list(LEASES, namespace=NAMESPACE)).items
    return {one.metadata.name: one.spec.holder_identity or "" for one in leases}
