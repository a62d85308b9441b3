"""Resource ids of Azure Resource Manager, which compare without regard to case and keep the given case."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

COMPUTE: Final = "Microsoft.Compute"
NETWORK: Final = "Microsoft.Network"
MANAGED_IDENTITY: Final = "Microsoft.ManagedIdentity"

MACHINES: Final = f"{COMPUTE}/virtualMachines"
SCALE_SETS: Final = f"{COMPUTE}/virtualMachineScaleSets"
DISKS: Final = f"{COMPUTE}/disks"
AVAILABILITY_SETS: Final = f"{COMPUTE}/availabilitySets"
EXTENSIONS: Final = f"{COMPUTE}/virtualMachines/extensions"
NICS: Final = f"{NETWORK}/networkInterfaces"
IDENTITIES: Final = f"{MANAGED_IDENTITY}/userAssignedIdentities"

_ID: Final = re.compile(
    r"/subscriptions/(?P<subscription>[^/]+)/resourceGroups/(?P<group>[^/]+)"
    r"/providers/(?P<type>[^/]+/[^/]+)/(?P<name>[^/]+)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class ResourceId:
    subscription: str = field(compare=False)
    group: str = field(compare=False)
    type: str = field(compare=False)
    name: str = field(compare=False)
    key: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", str(self).lower())

    def __str__(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}/providers/{self.type}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> ResourceId | None:
        found = _ID.fullmatch(text)
        return None if found is None else cls(**found.groupdict())

    def sibling(self, resource_type: str, name: str) -> ResourceId:
        """Return the id of another resource in the same group."""
        return ResourceId(self.subscription, self.group, resource_type, name)

    def is_in(self, subscription: str, group: str | None) -> bool:
        """Return whether it is in a subscription, and in a group of it where one is named."""
        return self.subscription.lower() == subscription.lower() and (
            group is None or self.group.lower() == group.lower()
        )
