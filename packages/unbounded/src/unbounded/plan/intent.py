"""Writes that a user intends: the input of a plan. No large module is imported here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unbounded.api.meta import Kind

Raw = dict[str, Any]


@dataclass(frozen=True)
class IntentPatch:
    """A merge patch, for an Intent. `metadata.resourceVersion` in its body limits it to that version, and
    `metadata.uid` to that object (`bound_to`).

    Args:
        verb: the change in the output, such as `patched`.
    """

    kind: Kind[Any]
    name: str
    body: Raw
    status: bool = False
    namespace: str = ""
    verb: str = "patched"


@dataclass(frozen=True)
class Intent:
    """Writes that a command intends: `plan` shows them, the command performs them.

    Args:
        creates: whole objects.
        patches: changes of existing objects.
        destroys: Machines that lose something, whose names the user has to type.
        loses: what they lose.
        dry_run: none, client or server.
        notes: messages to print before.
        made: the change in the output for created objects.
    """

    creates: tuple[Raw, ...] = ()
    patches: tuple[IntentPatch, ...] = ()
    destroys: tuple[str, ...] = ()
    dry_run: str = "none"
    notes: tuple[str, ...] = field(default=())
    loses: str = ""
    made: str = "created"


def bound_to(uid: str, body: Raw) -> Raw:
    """Return a merge patch that the server refuses for a later object of the same name, as a UID never changes."""
    return {**body, "metadata": {**body.get("metadata", {}), "uid": uid}}


def full_name(kind: Kind[Any], name: str) -> str:
    """Return the name as kubectl writes it: machine.unbounded-cloud.io/m1, secret/s1."""
    singular = kind.kind.lower()
    return f"{singular}.{kind.group}/{name}" if kind.group else f"{singular}/{name}"
