"""Secrets of a Machine's boot that objects other than Secrets hold: cloud-init's ConfigMaps, and the MachineProfile.

A text that a host has printed may have them. They are read to be found there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol, TypeVar

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.kube.api import NotFound
from unbounded.kube.secret_text import secrets_of_profile, secrets_of_user_data

T = TypeVar("T")


class GetApi(Protocol):
    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T: ...


async def boot_secrets(api: GetApi, machine: Machine) -> set[str]:
    """Return what may be secret in the user data and in the profile of a Machine.

    Raises:
        ApiError: they cannot be read.
    """
    pxe, found = machine.spec.pxe, set[str]()
    if pxe is None:
        return found
    cloud_init = pxe.cloud_init
    references = (
        () if cloud_init is None else (cloud_init.user_data_config_map_ref, cloud_init.network_config_config_map_ref)
    )
    for reference in references:
        if reference is not None:
            with contextlib.suppress(NotFound):
                data = await api.get(CONFIG_MAPS, reference.name, namespace=reference.namespace)
                found |= await asyncio.to_thread(secrets_of_user_data, data.data.get(reference.key, ""))
    if pxe.profile_ref is not None:
        with contextlib.suppress(NotFound):
            spec = (await api.get(MACHINE_PROFILES, pxe.profile_ref.name)).spec
            found |= await asyncio.to_thread(secrets_of_profile, spec)
    return found
