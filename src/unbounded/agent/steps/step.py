"""The shape of a step; a list of them is what start walks forward and reset walks back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from unbounded.agent.ports import Tell

W = TypeVar("W")  # what the step works on: the host, a slot


@dataclass(frozen=True)
class Step(Generic[W]):
    """One change. `present` looks at what is there, and changes nothing: a step that was cut off is simply not present.

    Args:
        name: what people read, such as "nftables table"; unique in its list.
        add: make it so; may be called on what an earlier call left half done.
        remove: take it back; succeeds when there is nothing to take back.
        after: names of steps that must be present before; others may run at the same time.
    """

    name: str
    present: Callable[[W], Awaitable[bool]]
    add: Callable[[W, Tell], Awaitable[None]]
    remove: Callable[[W], Awaitable[None]]
    after: tuple[str, ...] = ()
