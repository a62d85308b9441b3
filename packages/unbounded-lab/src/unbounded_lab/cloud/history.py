"""The true events of a simulated cloud, whatever it reports to its clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CloudEvent:
    """A true event.

    Args:
        kind: of the resource: VirtualMachine, Disk, Instance …
        name: of the resource, in the form of its cloud.
        what: the change: created, deleted, on, off, attached, detached …
        identity: distinguishes resources with one name: a VM's vmId, an OCID.
    """

    at: float
    kind: str
    name: str
    what: str
    detail: str = ""
    identity: str = ""


class CloudHistory:
    def __init__(self) -> None:
        self.events: list[CloudEvent] = []

    def add(self, event: CloudEvent) -> None:
        self.events.append(event)

    def of(self, kind: str, name: str | None = None) -> Iterator[CloudEvent]:
        """Yield the events of all resources of a kind, or of those with one name, oldest first."""
        return (event for event in self.events if event.kind == kind and name in (None, event.name))

    def max_concurrent(self, begins: str, ends: str, *, kind: str, name: str | None = None) -> int:
        """Return the maximum number of resources at one time: one kind of event adds one, another removes one."""
        there = most = 0
        for event in self.of(kind, name):
            there += (event.what == begins) - (event.what == ends)
            most = max(most, there)
        return most
