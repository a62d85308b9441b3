"""Judgement of replaced virtual machines: their state before, and that nothing is left."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from tests.machineops.azure.world import AzureWorld
from unbounded.api.core import SECRETS, Secret
from unbounded.api.names import NAMESPACE
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.views import machine_document

RICH: Final = VmShape(
    data_disks=2,
    nics=2,
    zones=("2",),
    system_identity=True,
    identities=("kubelet", "registry"),
    extensions=("Acme.Agent", "Acme.Monitor"),
    plan=("server", "almalinux", "almalinux-x86_64"),
    tags={"role": "worker"},
    license_type="RHEL_BYOS",
    nic_delete_option="Delete",
    data_disk_delete_option="Delete",
)
PLAIN: Final = VmShape(data_disks=1, nic_delete_option="Delete", data_disk_delete_option="Delete")
DIFFERS: Final = {"etag", "vmId", "timeCreated", "principalId", "exactVersion", "provisioningState"}
"""What another virtual machine cannot have in common with the old one, beside its OS disk."""


def document(world: AzureWorld) -> dict[str, Any]:
    """The virtual machine as Azure shows it, without what has to differ."""
    machine = world.cloud.machines()["vm-1"]
    extensions = world.cloud.estate.extensions_of(machine.id)
    document = msgspec.json.decode(msgspec.json.encode(machine_document(world.cloud.estate, machine, extensions)))
    disk = document["properties"]["storageProfile"]["osDisk"]
    disk["name"], disk["managedDisk"]["id"] = "", ""
    found = _without(document)
    assert isinstance(found, dict)
    found["resources"] = sorted(found.get("resources", []), key=lambda one: str(one["name"]))
    return found


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without(inner) for name, inner in value.items() if name not in DIFFERS}
    return [_without(inner) for inner in value] if isinstance(value, list) else value


async def nothing_is_left(world: AzureWorld) -> None:
    cloud = world.cloud
    assert (cloud.stray_disks(), cloud.stray_nics()) == ([], [])
    assert len(cloud.machines()) == 1
    assert cloud.history.max_concurrent("on", "off", kind="VirtualMachine", name="vm-1") == 1
    secrets = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    assert [secret.metadata.name for secret in secrets] == ["azure-auth"]


async def of_replacements(world: AzureWorld) -> list[Secret]:
    """Return the stored state of instances."""
    secrets = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    return [secret for secret in secrets if secret.type == "unbounded-cloud.io/replacement"]
