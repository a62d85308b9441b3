"""What really happened in a simulated cloud, whatever it told its clients."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """Something that came true.

    Args:
        kind: of the thing: VirtualMachine, Disk, Instance …
        name: of the thing, as its cloud names it.
        what: what became of it: created, deleted, on, off, attached, detached …
        identity: tells things of one name apart: a VM's vmId, an OCID.
    """

    at: float
    kind: str
    name: str
    what: str
    detail: str = ""
    identity: str = ""


class History:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)

    def of(self, kind: str, name: str | None = None) -> Iterator[Event]:
        """What happened to the things of a kind, or to those of one name, oldest first."""
        return (event for event in self.events if event.kind == kind and name in (None, event.name))

    def most_at_once(self, begins: str, ends: str, *, kind: str, name: str | None = None) -> int:
        """The most things that were there at the same time: counted up by one kind of event, down by another."""
        there = most = 0
        for event in self.of(kind, name):
            there += (event.what == begins) - (event.what == ends)
            most = max(most, there)
        return most
