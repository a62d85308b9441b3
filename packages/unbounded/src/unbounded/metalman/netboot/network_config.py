"""Network configuration of the installed system, which cloud-init applies at its first start: `network-config`.

It is rendered from `spec.network`, or in the ConfigMap that the Machine's spec refers to. A host that cannot be reached
is worse than one that is not installed: what cloud-init would ignore or misread is rejected before the disk is written.
"""

from __future__ import annotations

from typing import Final

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.metalman.foreign_yaml import load_foreign
from unbounded.metalman.host_network import network_faults, render_network
from unbounded.metalman.netboot.template_data import UserDataMissing, value_of

FIELD: Final = "spec.pxe.cloudInit.networkConfigConfigMapRef"
LARGEST_BYTES: Final = 64 << 10
VERSIONS: Final = (1, 2)  # of cloud-init's format; 2 is netplan's


class NetworkConfigMissing(Exception):
    """The network configuration does not exist, or metalman may not read it; the installation waits for it."""


class NetworkConfigInvalid(Exception):
    """cloud-init would not apply this network configuration; the message names the fault."""


def has_network_config(machine: Machine) -> bool:
    """Return whether the Machine's spec has a network configuration for the installed system."""
    pxe = machine.spec.pxe
    if machine.spec.network is not None:
        return True
    return pxe is not None and pxe.cloud_init is not None and pxe.cloud_init.network_config_config_map_ref is not None


async def network_config(api: Api, machine: Machine) -> bytes | None:
    """Return the Machine's network configuration; None if its spec has none.

    Raises:
        NetworkConfigMissing: the ConfigMap or its key does not exist, or metalman may not read it.
        NetworkConfigInvalid: spec.network has faults, or the value is not a network configuration.
        ApiError: the read failed.
    """
    if machine.spec.network is not None:
        if faults := network_faults(machine.spec.network):
            raise NetworkConfigInvalid("; ".join(faults))
        return render_network(machine.spec.network)
    pxe = machine.spec.pxe
    named = None if pxe is None or pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
    if named is None:
        return None
    where = f"{FIELD}: ConfigMap {named.namespace}/{named.name}"
    try:
        found = await api.get(CONFIG_MAPS, named.name, namespace=named.namespace)
        content = value_of(found, named.key, where)
    except NotFound as error:
        raise NetworkConfigMissing(f"{where} does not exist; the installation waits for it") from error
    except Forbidden as error:
        text = (
            f"metalman has no permission to read {where}; it reads ConfigMaps of namespace {NAMESPACE}, and of others"
        )
        raise NetworkConfigMissing(f"{text} with a Role there") from error
    except UserDataMissing as error:
        raise NetworkConfigMissing(f"{error}; the installation waits for it") from error
    check_network_config(content, f"{where}, key {named.key}")
    return content


def check_network_config(content: bytes, where: str) -> None:
    """Check that cloud-init reads a text as a network configuration.

    Raises:
        NetworkConfigInvalid: it is too large or too deep, not YAML, or no mapping with a version.
    """
    if len(content) > LARGEST_BYTES:
        raise NetworkConfigInvalid(f"{where}: {len(content)} bytes; the limit is {LARGEST_BYTES}")
    try:
        body = load_foreign(content)
    except ValueError as error:
        raise NetworkConfigInvalid(f"{where}: {error}") from error
    if not isinstance(body, dict):
        raise NetworkConfigInvalid(f"{where}: must be a mapping with `version: 2`, as cloud-init reads it")
    if "network" in body and "version" not in body:
        raise NetworkConfigInvalid(f"{where}: remove `network:` and indent the rest less: `version` stands at the top")
    if body.get("version") not in VERSIONS:
        raise NetworkConfigInvalid(f"{where}: version must be 2, or 1 of cloud-init's older format")
