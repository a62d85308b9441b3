"""Subject of the host's steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands, Units

_PROGRAMS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


@dataclass(frozen=True)
class StepHost:
    """A host, as far as `start` changes it.

    Args:
        debootstrap: the root file system is made by debootstrap, not from an image.
    """

    layout: Layout
    commands: Commands
    units: Units
    debootstrap: bool = False

    def has(self, program: str) -> bool:
        """Return whether this program is installed."""
        return any((self.layout.at(folder) / program).exists() for folder in _PROGRAMS)
