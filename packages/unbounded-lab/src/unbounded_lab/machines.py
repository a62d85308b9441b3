"""Manifests for lab machines: a Machine for each system of each BMC, and the Secret with its BMC's password."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Protocol

import yaml

from unbounded.api.names import API_VERSION, LABEL_SITE, NAMESPACE

SITE: Final = "lab"
IMAGE: Final = "lab.invalid/host:v1"
"""The image that lab machines name; nothing serves it, as a simulated host has no disk."""
PASSWORD_KEY: Final = "password"  # noqa: S105 - the name of a key
USUAL_DEVICE_ID: Final = "1"

Manifest = dict[str, Any]


class BmcInfo(Protocol):
    """Properties of a BMC for its manifests."""

    @property
    def name(self) -> str: ...
    @property
    def url(self) -> str: ...
    @property
    def username(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def device_ids(self) -> tuple[str, ...]: ...


def manifests(bmcs: Iterable[BmcInfo], *, site: str = SITE, image: str = IMAGE) -> list[Manifest]:
    """Return the objects to apply, each Secret before the Machines that refer to it."""
    return [manifest for bmc in bmcs for manifest in (secret(bmc), *machines(bmc, site=site, image=image))]


def secret(bmc: BmcInfo) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(bmc), "namespace": NAMESPACE},
        "type": "Opaque",
        "data": {PASSWORD_KEY: b64encode(bmc.password.encode()).decode()},
    }


def machines(bmc: BmcInfo, *, site: str = SITE, image: str = IMAGE) -> Iterator[Manifest]:
    """Yield a Machine for each system, named after its BMC, with the system's id as a suffix if there are several."""
    for device_id in bmc.device_ids:
        redfish: dict[str, Any] = {
            "url": bmc.url,
            "username": bmc.username,
            "passwordRef": {"name": secret_name(bmc), "namespace": NAMESPACE, "key": PASSWORD_KEY},
        }
        if device_id != USUAL_DEVICE_ID:
            redfish["deviceID"] = device_id
        yield {
            "apiVersion": API_VERSION,
            "kind": "Machine",
            "metadata": {"name": machine_name(bmc, device_id), "labels": {LABEL_SITE: site}},
            "spec": {"pxe": {"image": image, "redfish": redfish}},
        }


def machine_name(bmc: BmcInfo, device_id: str) -> str:
    if len(bmc.device_ids) == 1:
        return bmc.name
    return f"{bmc.name}-{re.sub('[^a-z0-9]+', '-', device_id.lower()).strip('-')}"


def secret_name(bmc: BmcInfo) -> str:
    return f"{bmc.name}-bmc"


def to_yaml(objects: Iterable[Mapping[str, Any]]) -> str:
    """Return one YAML stream in the form of `kubectl apply -f`."""
    return yaml.dump_all(objects, Dumper=yaml.CSafeDumper, sort_keys=False, explicit_start=True)
