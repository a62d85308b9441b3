"""Replacement of UIDs and other server-assigned names by those of another server. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded.machineops.replacement_state import UID as REPLACEMENT_UID

Raw = dict[str, Any]

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Keys of Secrets that name objects by their UID. Other keys are not changed: a provider's state of a replacement names
# cloud resources by the UID that the operation had then.
_SECRET_KEYS: Final = ("auth-extra-groups", REPLACEMENT_UID)


def translated(value: Any, uids: Mapping[str, str]) -> Any:
    """Return a JSON value with each UID in its texts replaced, and others as they are."""
    match value:
        case str():
            return _UUID.sub(lambda found: uids.get(found[0], found[0]), value)
        case dict():
            return {translated(key, uids): translated(one, uids) for key, one in value.items()}
        case list():
            return [translated(one, uids) for one in value]
    return value


def translated_data(data: Mapping[str, str], uids: Mapping[str, str]) -> dict[str, str]:
    """Return the data of a Secret, base64, with the UIDs in the keys that name objects replaced."""
    return {key: _recoded(text, uids) if key in _SECRET_KEYS else text for key, text in data.items()}


def _recoded(text: str, uids: Mapping[str, str]) -> str:
    changed = translated(_decoded(text), uids)
    return base64.b64encode(changed.encode("latin-1")).decode()


def _decoded(text: str) -> str:
    """Return the bytes of a value, each as one character, whatever its encoding is."""
    return base64.b64decode(text).decode("latin-1")


def uids_in(value: Any) -> Iterator[str]:
    """Yield the UIDs in a JSON value."""
    match value:
        case str():
            yield from _UUID.findall(value)
        case dict():
            for key, one in value.items():
                yield from uids_in(key)
                yield from uids_in(one)
        case list():
            for one in value:
                yield from uids_in(one)


def uids_in_data(data: Mapping[str, str]) -> Iterator[str]:
    """Yield the UIDs in the keys of a Secret that name objects."""
    for key in _SECRET_KEYS:
        yield from uids_in(_decoded(data.get(key, "")))


def machine_status(status: Raw, versions: Mapping[str, str], generations: Mapping[int, int]) -> Raw:
    """Return the status of a Machine for another server.

    Args:
        versions: resourceVersion of each Secret on the source, and on the target.
        generations: of the Machine on the source, and on the target. An older generation becomes 0, below all later
            ones.
    """
    changed: Raw = regenerated(status, generations)
    ssh, redfish = dict(changed.get("ssh", {})), dict(changed.get("redfish", {}))
    if "refused" in ssh:
        ssh["refused"] = [one for old in ssh["refused"] if (one := _refused(old, versions))]
        changed["ssh"] = ssh
    if (offered := redfish.pop("refusedSecretVersion", None)) is not None:
        changed["redfish"] = redfish | ({"refusedSecretVersion": versions[offered]} if offered in versions else {})
    return changed


def _refused(refused: Raw, versions: Mapping[str, str]) -> Raw:
    """Return a key that a host refused; empty where its Secret has changed since."""
    name, _, version = str(refused["secretVersion"]).rpartition("@")
    return refused | {"secretVersion": f"{name}@{versions[version]}"} if version in versions else {}


def regenerated(value: Any, generations: Mapping[int, int]) -> Any:
    """Return a status with the generations of its object as another server counts them."""
    match value:
        case dict():
            return {
                key: generations.get(one, 0)
                if key in {"generation", "observedGeneration"} and isinstance(one, int)
                else regenerated(one, generations)
                for key, one in value.items()
            }
        case list():
            return [regenerated(one, generations) for one in value]
    return value
