"""Every field of the SDK's models of an instance, its VNIC and its boot volume is kept, reported as lost, or needs
neither.

A new field fails the test until it is classified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pytest
from oci.core import models

from unbounded.machineops.provider import Instance, Job, Loss, OperationKind
from unbounded.machineops.providers.oci import launch

OLD: Final[Mapping[str, Any]] = {
    "id": "ocid1.instance.oc1.phx.old",
    "compartmentId": "ocid1.compartment.oc1..c",
    "availabilityDomain": "AD-1",
    "shape": "VM.Standard3.Flex",
}
VNIC: Final[Mapping[str, Any]] = {"id": "ocid1.vnic.oc1.phx.v", "isPrimary": True, "subnetId": "ocid1.subnet.oc1.phx.s"}
VOLUME: Final[Mapping[str, Any]] = {"id": "ocid1.bootvolume.oc1.phx.b"}

NEITHER: Final[Mapping[str, Mapping[str, str]]] = {
    "Instance": {
        "lifecycleState": "read",
        "timeCreated": "read",
        "timeMaintenanceRebootDue": "read",
        "systemTags": "the service's",
        "securityAttributesState": "read",
        "region": "the same",
        "imageId": "what it was once made of: the parameter imageID, or the newest",
        "sourceDetails": "what it was once made of",
        "launchMode": "of the image",
        "isCrossNumaNode": "the shape's",
    },
    "InstanceShapeConfig": {
        "gpuDescription": "the shape's",
        "gpus": "the shape's",
        "localDiskDescription": "the shape's",
        "localDisksTotalSizeInGBs": "the shape's",
        "maxVnicAttachments": "the shape's",
        "networkingBandwidthInGbps": "the shape's",
        "processorDescription": "the shape's",
        "vcpus": "follows from ocpus",
    },
    "LaunchOptions": {},
    "Vnic": {
        "id": "its own",
        "lifecycleState": "read",
        "timeCreated": "read",
        "systemTags": "the service's",
        "availabilityDomain": "the instance's",
        "compartmentId": "the instance's",
        "isPrimary": "the primary one",
        "macAddress": "its own",
        "vlanId": "refused: there is no subnet then",
    },
    "BootVolume": {
        "id": "its own",
        "lifecycleState": "read",
        "timeCreated": "read",
        "systemTags": "the service's",
        "availabilityDomain": "the instance's",
        "compartmentId": "the instance's",
        "displayName": "the service names it after the instance",
        "imageId": "what it was once made of",
        "sourceDetails": "what it was once made of",
        "isHydrated": "read",
        "autoTunedVpusPerGB": "read",
        "sizeInMBs": "as sizeInGBs",
    },
}
VALUES: Final[Mapping[str, Any]] = {
    "shape": "VM.Standard4.Flex",
    "sizeInGBs": 77,
    "vpusPerGB": 20,
    "isPrimary": True,
    "definedTags": {"ours": {"a": "b"}},
    "freeformTags": {"a": "b"},
    "metadata": {"a": "b"},
    "ipv6Addresses": ["2001:db8::1"],
    "nsgIds": ["ocid1.networksecuritygroup.oc1.phx.n"],
    "bootVolumeReplicas": [{"id": "r"}],
    "autotunePolicies": [{"autotuneType": "DETACHED_VOLUME"}],
    "ocpus": 3.0,
    "platformConfig": {"type": "AMD_VM", "isSecureBootEnabled": True},
}
NESTED: Final = {("Instance", "shapeConfig"), ("Instance", "launchOptions")}


def _fields() -> Iterator[tuple[str, str]]:
    for kind in NEITHER:
        names: Mapping[str, str] = getattr(models, kind)().attribute_map
        yield from ((kind, name) for name in names.values() if (kind, name) not in NESTED)


def _made(kind: str = "", name: str = "", value: Any = None) -> tuple[launch.Body, list[Loss]]:
    """Return the launch details of a replacement and its losses, with this field set."""
    bodies: dict[str, dict[str, Any]] = {"Instance": {**OLD}, "Vnic": {**VNIC}, "BootVolume": {**VOLUME}}
    if kind in ("InstanceShapeConfig", "LaunchOptions"):
        part = "shapeConfig" if kind == "InstanceShapeConfig" else "launchOptions"
        bodies["Instance"][part] = {name: VALUES.get(name, True)}
    elif kind:
        bodies[kind][name] = value or VALUES.get(name, f"another {name}")
    old, vnic, volume = bodies.values()
    named = Instance(f"oci://{OLD['id']}", "tenancy", str(OLD["id"]))
    job = Job("op", "uid", OperationKind.HOST_REPLACE, "m1", "1", named)
    image: dict[str, Any] = {"id": "ocid1.image.oc1.phx.i"}
    body = launch.details(old, vnic, image, volume, job=job, user_data="#cloud-config")
    return body, launch.losses(old, [vnic], image, volume)


@pytest.mark.parametrize(("kind", "name"), list(_fields()))
def test_every_field_is_kept_or_told_as_lost_or_needs_neither(kind: str, name: str) -> None:
    (before, lost_before), (after, lost_after) = _made(), _made(kind, name)
    is_kept = after != before
    is_told = lost_after != lost_before
    if name in NEITHER[kind]:
        assert (is_kept, is_told) == (False, False), f"{kind}.{name} is accounted for: take it off the table"
    else:
        assert is_kept or is_told, f"{kind}.{name} is new in the SDK: keep it, or tell that it is lost"


def _platforms() -> list[str]:
    """Return the kinds of PlatformConfig, by the SDK's names."""
    return [
        name
        for name, kind in vars(models).items()
        if isinstance(kind, type) and issubclass(kind, models.PlatformConfig) and kind is not models.PlatformConfig
    ]


@pytest.mark.parametrize("kind", _platforms())
def test_a_launch_takes_each_platform_setting_that_is_shown(kind: str) -> None:
    """The models of the SDK are the oracle: what they show of a platform, its launch takes under the same names."""
    shown = getattr(models, kind)()
    taken = getattr(models, kind.replace("PlatformConfig", "LaunchInstancePlatformConfig"))()
    assert (shown.type, shown.attribute_map, shown.swagger_types) == (
        taken.type,
        taken.attribute_map,
        taken.swagger_types,
    )
    config = {name: VALUES.get(name, True) for name in shown.attribute_map.values()} | {"type": shown.type}
    body, lost = _made("Instance", "platformConfig", config)
    assert body["platformConfig"] == config
    assert not lost[1:]


def test_the_old_preemption_is_what_a_launch_takes() -> None:
    shown, taken = models.Instance().swagger_types, models.LaunchInstanceDetails().swagger_types
    assert shown["preemptible_instance_config"] == taken["preemptible_instance_config"]


def test_what_needs_neither_is_there() -> None:
    fields = set(_fields())
    assert [(kind, name) for kind, names in NEITHER.items() for name in names if (kind, name) not in fields] == []
