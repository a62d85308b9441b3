"""A boot from the network that is wanted, and what the servers saw of it, as frozen data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import NetbootMilestone


class Window(Enum):
    """What a wanted boot may have now."""

    INSTALLING = "installing"  # boot options, the loader's files by source address, everything under the prefix
    SUSPENDED = "suspended"  # nothing for now, and under the prefix the word to ask again: it may go on
    FINISHING = "finishing"  # the image is written: no boot options, nothing by source address; under the prefix still


@dataclass(frozen=True, slots=True)
class Wanted:
    """A boot that is wanted of a Machine.

    Args:
        uid: of the Machine.
        boot: the UID of the HostReplace that wants it, or `repave-N`; what `status.netboot.boot` says.
        operation: name of the HostReplace; empty for a counter.
        executor: who carries that out, such as metalman/lab.
        repave: the counter's value that the end of this boot reaches; None for an operation, whose executor counts.
    """

    machine: str
    uid: str
    boot: str
    window: Window
    operation: str = ""
    executor: str = ""
    repave: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """What a condition is to say."""

    status: ConditionStatus
    reason: ConditionReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen since the last write; see `milestones.joined`.

    Args:
        boot: which boot it belongs to; empty for conditions that belong to none.
        loads: how often the loader went out.
        conditions: what they are to say; None removes one.
        repave: the counter's value that was reached.
        disk: the path of the disk that is being written.
    """

    boot: str = ""
    milestone: NetbootMilestone | None = None
    percent: int | None = None
    loads: int = 0
    message: str | None = None
    image_digest: str | None = None
    conditions: Mapping[ConditionType, Said | None] = field(default_factory=dict)
    repave: int | None = None
    disk: str | None = None

    @property
    def urgent(self) -> bool:
        """Whether it is more than a percentage and its words, which can wait for the next ones."""
        progress = self.milestone in (None, NetbootMilestone.IMAGE_WRITING)
        return not progress or bool(self.loads or self.conditions) or self.repave is not None


RANKS: Final[Mapping[str, int]] = {
    milestone: rank
    for rank, milestone in enumerate(
        (
            NetbootMilestone.OFFERED,
            NetbootMilestone.LOADER_FETCHED,
            NetbootMilestone.KERNEL_FETCHED,
            NetbootMilestone.INSTALLER_STARTED,
            NetbootMilestone.IMAGE_WRITING,
            NetbootMilestone.FAILED,  # a host that is started again by hand may still come to the next one
            NetbootMilestone.IMAGE_WRITTEN,
            NetbootMilestone.CONTESTED,
        ),
        1,
    )
}


def rank(milestone: str | None) -> int:
    """How far a milestone is; 0 before the first one, and for one that a later version wrote the furthest."""
    return 0 if milestone is None else RANKS.get(milestone, len(RANKS) + 1)
