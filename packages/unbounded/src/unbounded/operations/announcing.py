"""Kubernetes Events about operations: `kubectl describe` shows the end of an operation."""

from __future__ import annotations

from collections.abc import Callable

from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.events import EventRecorder, object_reference

EventSink = Callable[[MachineOperation | Machine, str, str, str], None]
"""A function that creates an Event: (object, Normal or Warning, reason, message)."""


def no_events(_about: MachineOperation | Machine, _type: str, _reason: str, _message: str) -> None:
    """Create no Event."""


def event_sink(events: EventRecorder | None) -> EventSink:
    """Return a function that creates Events through the process's recorder; one without effect where there is none."""
    if events is None:
        return no_events

    def announce(about: MachineOperation | Machine, type_: str, reason: str, message: str) -> None:
        kind = MACHINES if isinstance(about, Machine) else MACHINE_OPERATIONS
        events.event(object_reference(kind, about), type_, reason, message)

    return announce
