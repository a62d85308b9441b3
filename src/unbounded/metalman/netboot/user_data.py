"""The Machine's own cloud-init user-data, from the ConfigMap that it names."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.machine import ConfigMapKeySelector, Machine
from unbounded.api.names import NAMESPACE
from unbounded.kube.errors import Forbidden, NotFound
from unbounded.kube.port import Api

NOTHING: Final = b"#cloud-config\n"  # cloud-init wants the file, and this asks for nothing


class NoUserData(Exception):
    """The Machine names user-data that is not there; the text names ConfigMap and key, and says what would be right."""


class OutOfReach(Exception):
    """The ConfigMap may not be read; whether it is there is not known. The host waits for who corrects that."""


def reference_of(machine: Machine) -> ConfigMapKeySelector | None:
    """The ConfigMap key that a Machine names."""
    pxe = machine.spec.pxe
    return None if pxe is None or pxe.cloud_init is None else pxe.cloud_init.user_data_config_map_ref


def value_of(config_map: ConfigMap, key: str, where: str) -> bytes:
    """The value of a key, in data or binaryData.

    Raises:
        NoUserData: there is no such key.
    """
    if key in config_map.data:
        return config_map.data[key].encode()
    if key in config_map.binary_data:
        try:
            return base64.b64decode(config_map.binary_data[key], validate=True)
        except (binascii.Error, ValueError):
            raise NoUserData(f"{where}: binaryData.{key} is not base64") from None
    there = ", ".join(sorted({*config_map.data, *config_map.binary_data})) or "none"
    raise NoUserData(f"{where} has no key {key!r}; its keys are: {there}")


async def user_data(api: Api, machine: Machine) -> tuple[bytes | None, str]:
    """The Machine's user-data, and what is wrong with it.

    None where the Machine names none. A ConfigMap that is not there stands for empty user-data, with a warning: the
    host is installed all the same.

    Raises:
        NoUserData: the ConfigMap is there, and the key is not.
        OutOfReach
        ApiError: it cannot be read.
    """
    named = reference_of(machine)
    if named is None:
        return None, ""
    where = f"spec.pxe.cloudInit.userDataConfigMapRef: ConfigMap {named.namespace}/{named.name}"
    try:
        found = await api.get(CONFIG_MAPS, named.name, namespace=named.namespace)
    except NotFound:
        return NOTHING, f"{where} does not exist; the host gets empty user-data"
    except Forbidden as error:
        text = f"{where} is out of metalman's reach; it reads those of namespace {NAMESPACE}, in others by a Role there"
        raise OutOfReach(text) from error
    return value_of(found, named.key, where), ""
