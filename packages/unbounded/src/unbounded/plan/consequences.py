"""Consequences of commands in words, for a plan and for the question of the command itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from unbounded.api.operation import OperationKind

DESTROYS: Final[Mapping[OperationKind, str]] = {  # with what is lost
    OperationKind.HOST_REPLACE: "everything on its disk: the host is reinstalled from its image",
    OperationKind.HOST_ERASE: "everything on the disks that it erases, for good; the host stays Off",
    OperationKind.AGENT_RESET: "the agent, and the node with everything that runs on it; the host itself stays",
}
INSTALLS: Final = "machina runs the install script on its host again, over SSH"
UNDER_NODE: Final = f"it is Ready, and {INSTALLS}, under the Node that runs now"
