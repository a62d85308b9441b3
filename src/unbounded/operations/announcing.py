"""Events for people: what `kubectl describe` shows of how an operation ended."""

from __future__ import annotations

from collections.abc import Callable

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.events import EventRecorder, object_reference

Announce = Callable[[MachineOperation | Machine, str, str, str], None]
"""(object, Normal or Warning, reason, message): an Event for people."""


def silence(_about: MachineOperation | Machine, _type: str, _reason: str, _message: str) -> None:
    """Announce nothing."""


def announcer(events: EventRecorder | None) -> Announce:
    """Announce through the recorder of a process, if it has one."""
    if events is None:
        return silence

    def announce(about: MachineOperation | Machine, type_: str, reason: str, message: str) -> None:
        kind = MACHINES if isinstance(about, Machine) else MACHINE_OPERATIONS
        events.event(object_reference(kind, about), type_, reason, message)

    return announce
