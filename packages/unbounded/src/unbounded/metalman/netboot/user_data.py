"""Machine's own cloud-init user-data, from the ConfigMap that its spec refers to."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import ConfigMapKeySelector
from unbounded.api.names import NAMESPACE
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.port import Api

EMPTY_USER_DATA: Final = b"#cloud-config\n"  # cloud-init requires the file; this one configures nothing


class UserDataMissing(Exception):
    """The key of the Machine's user-data does not exist; the message names ConfigMap and key, and the existing keys."""


class UserDataForbidden(Exception):
    """The ConfigMap may not be read, so that its existence is unknown. The host waits until the user corrects the
    access.
    """


def reference_of(machine: Machine) -> ConfigMapKeySelector | None:
    """Return the ConfigMap key that the Machine's spec refers to."""
    pxe = machine.spec.pxe
    return None if pxe is None or pxe.cloud_init is None else pxe.cloud_init.user_data_config_map_ref


def value_of(config_map: ConfigMap, key: str, where: str) -> bytes:
    """Return the value of a key, in data or binaryData.

    Raises:
        UserDataMissing: there is no such key.
    """
    if key in config_map.data:
        return config_map.data[key].encode()
    if key in config_map.binary_data:
        try:
            return base64.b64decode(config_map.binary_data[key], validate=True)
        except (binascii.Error, ValueError):
            raise UserDataMissing(f"{where}: binaryData.{key} is not base64") from None
    there = ", ".join(sorted({*config_map.data, *config_map.binary_data})) or "none"
    raise UserDataMissing(f"{where} has no key {key!r}; its keys are: {there}")


async def user_data(api: Api, machine: Machine) -> tuple[bytes | None, str]:
    """Return the Machine's user-data and a warning, which is empty if there is none.

    The data is None if the Machine's spec refers to none. A ConfigMap that does not exist counts as empty user-data,
    with a warning, so that the install can continue.

    Raises:
        UserDataMissing: the ConfigMap exists without the key.
        UserDataForbidden: metalman may not read the ConfigMap.
        ApiError: the read failed.
    """
    named = reference_of(machine)
    if named is None:
        return None, ""
    where = f"spec.pxe.cloudInit.userDataConfigMapRef: ConfigMap {named.namespace}/{named.name}"
    try:
        found = await api.get(CONFIG_MAPS, named.name, namespace=named.namespace)
    except NotFound:
        return EMPTY_USER_DATA, f"{where} does not exist; the host receives empty user-data"
    except Forbidden as error:
        text = (
            f"metalman has no permission to read {where}; it reads ConfigMaps of namespace {NAMESPACE}, and "
            "of others with a Role there"
        )
        raise UserDataForbidden(text) from error
    return value_of(found, named.key, where), ""
