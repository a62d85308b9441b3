"""A step, and its subject, the host; start runs a list of steps forward, and reset runs it backward."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands, OnProgress, Units

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


W = TypeVar("W")  # subject of the step: the host, a slot


@dataclass(frozen=True)
class ReversibleStep(Generic[W]):
    """One change. `present` only observes: a step that was interrupted is simply not present.

    Args:
        name: for users, such as "nftables table"; unique in its list.
        add: makes the change; may be called on the remains of an earlier call.
        remove: undoes it; succeeds when there is nothing to undo.
        after: names of steps that must be present before; others may run concurrently.
    """

    name: str
    present: Callable[[W], Awaitable[bool]]
    add: Callable[[W, OnProgress], Awaitable[None]]
    remove: Callable[[W], Awaitable[None]]
    after: tuple[str, ...] = ()
