"""Parser of Azure's spec.providerID."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from unbounded.machineops.provider import Instance

FORM: Final = "azure:///subscriptions/…/resourceGroups/…/providers/Microsoft.Compute/virtualMachines/…"
_ID: Final = re.compile(
    r"(?:azure:(?://)?)?"
    r"/subscriptions/(?P<subscription>[0-9a-z-]{1,64})"
    r"/resourceGroups/(?P<group>[-\w.()]{1,90})"
    r"/providers/Microsoft\.Compute"
    r"/virtualMachines/(?P<name>[-\w.]{1,64})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class VmId:
    """Id of a virtual machine in Resource Manager. Its parts are case-insensitive."""

    subscription: str
    group: str
    name: str

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.Compute/virtualMachines/{self.name}"
        )


def vm_id(text: str) -> VmId:
    """Split an id into its parts, in their original case.

    Raises:
        ValueError: not an id of a virtual machine; with a message for the user.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not the ID of an Azure virtual machine; expected {FORM}")
    return VmId(found["subscription"], found["group"], found["name"])


def instance(provider_id: str) -> Instance:
    """Parse a providerID; the id is in lower case, as ids are case-insensitive.

    Raises:
        ValueError: not a virtual machine.
    """
    found = vm_id(provider_id)
    return Instance(str(found).lower(), found.subscription.lower(), found.name)
