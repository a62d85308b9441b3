"""Identifiers of OCI instances (providerIDs, OCIDs), and their lifecycle states as the engine's power states."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from unbounded.machineops.provider import Instance, Power

SCHEME: Final = "oci://"
OCID: Final = re.compile(r"ocid1\.instance\.(?P<realm>[a-z0-9-]+)\.(?P<region>[a-z0-9-]+)\.[a-z0-9.]+")
LONGEST: Final = 255
NAME_CHARS: Final = 6
PROVISIONING: Final = "PROVISIONING"
RUNNING: Final = "RUNNING"
STOPPED: Final = "STOPPED"
STARTING: Final = "STARTING"
STOPPING: Final = "STOPPING"
TERMINATED: Final = "TERMINATED"
TERMINATING: Final = "TERMINATING"

RESTARTING: Final = frozenset({STOPPING, STARTING})
"""States during a restart."""
ENDED: Final = frozenset({TERMINATING, TERMINATED})

_POWERS: Final[Mapping[str, Power]] = {
    RUNNING: Power.RUNNING,
    STOPPED: Power.STOPPED,
    TERMINATED: Power.GONE,
}


def instance(provider_id: str) -> Instance:
    """Parse a providerID.

    Raises:
        ValueError: not an instance; the message names the right form.
    """
    ocid = provider_id.strip().removeprefix(SCHEME)
    found = OCID.fullmatch(ocid.lower()) if len(ocid) <= LONGEST else None
    if found is None:
        raise ValueError(f"{provider_id[:LONGEST]!r} is not {SCHEME}ocid1.instance.<realm>.<region>.<unique id>")
    if not provider_id.strip().startswith(SCHEME):
        raise ValueError(f"{provider_id!r} is the OCID alone; write {SCHEME}{found.group()}")
    return Instance(found.group(), f"{found['realm']}.{found['region']}", short(found.group()))


def provider_id(ocid: str) -> str:
    return f"{SCHEME}{ocid}"


def short(ocid: str) -> str:
    """Shorten an OCID to its kind and its last characters, as the console does."""
    parts = ocid.split(".")
    return f"{parts[1]} …{parts[-1][-NAME_CHARS:]}"


def region_key(instance: Instance) -> str:
    """Return the region in the instance's OCID: a name, or the key of a region, such as `phx`."""
    return instance.scope.partition(".")[2]


def power(lifecycle_state: str) -> Power:
    """Return the power state. All other states are transitions: PROVISIONING, STARTING, STOPPING, TERMINATING, MOVING,

    CREATING_IMAGE.
    """
    return _POWERS.get(lifecycle_state, Power.CHANGING)
