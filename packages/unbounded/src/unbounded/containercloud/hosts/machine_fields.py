"""The Machine of a BareMetalHost: its fields that container-cloud owns, and patches of those that differ. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from unbounded.api.container_cloud.host import BareMetalHost, ProvisioningState
from unbounded.api.container_cloud.names import ANNOTATION_BEFORE_CLAIM, ANNOTATION_MACHINE_HOST
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode
from unbounded.api.names import ANNOTATION_BOUND, LABEL_SITE
from unbounded.containercloud.hosts.adoption import CLAIM_LABELS, claim_marks, given_back
from unbounded.containercloud.hosts.model import (
    KEY_PASSWORD,
    BmcAddress,
    BmcLogin,
    ChangeMachine,
    HostView,
    host_key,
    is_adopted,
    login_name,
    machine_of_host,
    parse_bmc_address,
)

Raw = dict[str, Any]
Fields = dict[str, Any]
"""Values by path, such as `spec.pxe/redfish.url` and `metadata.labels/unbounded-cloud.io/site`; None if absent."""

_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_OF_CLAIM: Final[Mapping[str, tuple[str, ...]]] = {
    "spec": ("kubernetes", "agent", "network", "configurationRef", "maintenance"),
    "spec.pxe": ("image", "pullSecretRef", "netbootImage", "dhcpLeases", "cloudInit", "profileRef", "targetDisk"),
    "metadata.labels": CLAIM_LABELS,
    "metadata.annotations": (ANNOTATION_BOUND, ANNOTATION_BEFORE_CLAIM),
}
"""The fields that a claim gives a Machine, and that one in stock does not have."""


def link(view: HostView) -> Fields:
    """Return the fields of an adopted Machine that container-cloud owns."""
    return {f"metadata.annotations/{ANNOTATION_MACHINE_HOST}": str(host_key(view.host))}


def owned(view: HostView, address: BmcAddress, login: BmcLogin) -> Fields:
    """Return the fields of a Machine that was made for its host, and that container-cloud owns."""
    secret = login_name(view.host)
    reference = {"name": secret.name, "namespace": secret.namespace, "key": KEY_PASSWORD}
    hints = view.host.spec.root_device_hints
    pxe = view.machine.spec.pxe if view.machine is not None else None
    has_profile = pxe is not None and pxe.profile_ref is not None  # it excludes hints
    return link(view) | {
        f"metadata.labels/{LABEL_SITE}": view.site or None,
        "spec.pxe/redfish.url": address.url,
        "spec.pxe/redfish.deviceID": address.device_id,
        "spec.pxe/redfish.username": login.username,
        "spec.pxe/redfish.passwordRef": reference,
        "spec.pxe/architecture": _architecture(view),
        "spec.pxe/bootMode": _boot_mode(view, address).value,
        "spec.pxe/rootDeviceHints": None if hints is None or has_profile else msgspec.to_builtins(hints),
    }


def _boot_mode(view: HostView, address: BmcAddress) -> BootMode:
    """Return the boot mode of the BMC's driver; a host boots from virtual media only with an address of its own."""
    pxe = view.machine.spec.pxe if view.machine is not None else None
    has_address = pxe is not None and bool(pxe.dhcp_leases)
    return BootMode.NETWORK if address.boot_mode is BootMode.VIRTUAL_MEDIA and not has_address else address.boot_mode


def boots_from_media(host: BareMetalHost) -> bool:
    """Return whether the Machine that was made for a host boots from virtual media, once it has an address."""
    if host.spec.bmc is None or is_adopted(host):
        return False
    try:
        return parse_bmc_address(host.spec.bmc.address).boot_mode is BootMode.VIRTUAL_MEDIA
    except ValueError:
        return False


def _architecture(view: HostView) -> str:
    hardware = view.machine.status.hardware if view.machine is not None else None
    found = hardware.processor.architecture if hardware is not None and hardware.processor is not None else None
    return _ARCHITECTURES.get(view.host.spec.architecture or found or "", "amd64")


def claim_fields(machine: Machine | None, host: BareMetalHost) -> tuple[str, ...]:
    """Return the paths of the fields that a claim of the host has given its Machine."""
    if machine is None or host.spec.externally_provisioned:
        return claim_marks(machine)
    raw = _raw(machine)
    paths = (f"{holder}/{name}" for holder, names in _OF_CLAIM.items() for name in names)
    return tuple(path for path in paths if _get(raw, path) not in (None, {}, []))


def released(view: HostView, state: ProvisioningState) -> Fields:
    """Return the fields of a claim as absent, or as before, for a host that returns to stock; nothing for another."""
    if state is not ProvisioningState.DEPROVISIONING or view.machine is None:
        return {}
    if view.host.spec.externally_provisioned:
        return given_back(view.machine)
    absent: Fields = dict.fromkeys(claim_fields(view.machine, view.host))
    pxe = view.machine.spec.pxe
    if pxe is not None and pxe.boot_mode == BootMode.VIRTUAL_MEDIA:  # it needs the leases
        absent["spec.pxe/bootMode"] = BootMode.NETWORK.value
    return absent


def manifest(view: HostView, fields: Fields) -> Raw:
    """Return the Machine of a host."""
    body: Raw = {"metadata": {"name": machine_of_host(view.host)}, "spec": {"pxe": {}}}
    for path, value in fields.items():
        if value is not None:
            _put(body, path, value)
    return body


def change(machine: Machine, fields: Fields) -> ChangeMachine | None:
    """Return the patch that gives a Machine these fields; None where it has them."""
    raw = _raw(machine)
    differing = {path: value for path, value in fields.items() if _get(raw, path) != value}
    if not differing:
        return None
    patch: Raw = {"metadata": {"resourceVersion": machine.metadata.resource_version}}
    for path, value in differing.items():
        _put(patch, path, value)
    return ChangeMachine(patch, tuple(path.replace("/", ".", 1) for path in differing))


def _raw(machine: Machine) -> Raw:
    """Return metadata and spec of a Machine as JSON, with the defaults of the fields that are compared."""
    raw: Raw = {"metadata": msgspec.to_builtins(machine.metadata), "spec": msgspec.to_builtins(machine.spec)}
    pxe = machine.spec.pxe
    if pxe is not None:
        raw["spec"]["pxe"] |= {"architecture": pxe.architecture, "bootMode": pxe.boot_mode}
        if pxe.redfish is not None:
            raw["spec"]["pxe"]["redfish"]["deviceID"] = pxe.redfish.device_id
            reference = msgspec.to_builtins(pxe.redfish.password_ref)
            raw["spec"]["pxe"]["redfish"]["passwordRef"] = reference | {"key": pxe.redfish.password_ref.key}
    return raw


def _keys(path: str) -> list[str]:
    """Split `spec.pxe/redfish.url` or `metadata.labels/unbounded-cloud.io/site`: keys of metadata have dots."""
    holder, _, name = path.partition("/")
    return [*holder.split("."), *([name] if holder.startswith("metadata") else name.split("."))]


def _get(raw: Raw, path: str) -> Any:
    value: Any = raw
    for key in _keys(path):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _put(raw: Raw, path: str, value: Any) -> None:
    *holders, last = _keys(path)
    for key in holders:
        raw = raw.setdefault(key, {})
    raw[last] = value
