"""What a spec.providerID of Azure names."""

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
    """A virtual machine's place in Resource Manager, which takes its parts in any case."""

    subscription: str
    group: str
    name: str

    def __str__(self) -> str:
        return (
            f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"
            f"/providers/Microsoft.Compute/virtualMachines/{self.name}"
        )


def vm_id(text: str) -> VmId:
    """The parts of an id, as they were written.

    Raises:
        ValueError: it is not one of a virtual machine; the words are for who wrote it.
    """
    found = _ID.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no id of an Azure virtual machine; it has to be {FORM}")
    return VmId(found["subscription"], found["group"], found["name"])


def instance(provider_id: str) -> Instance:
    """What a providerID names; its id is in lower case, as the same one may be written in others.

    Raises:
        ValueError: it names no virtual machine.
    """
    found = vm_id(provider_id)
    return Instance(str(found).lower(), found.subscription.lower(), found.name)
