"""Choice of the slot that a start uses, and whether it has to be built: pure, from the observation of both."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from unbounded.agent.model import NodeGoal, Slot, SlotFacts
from unbounded.api.failures import Rejected


@dataclass(frozen=True)
class SlotChoice:
    """Work that a start has to do on the slots.

    Args:
        slot: of the node, present or future.
        build: it has to be built first.
        start: its machine, or its kubelet, does not run.
    """

    slot: Slot
    build: bool
    start: bool


def choose_slot(one: SlotFacts, two: SlotFacts, spec: NodeGoal) -> SlotChoice:
    """Return the slot of the node, and its missing parts.

    A slot stays unchanged once it has registered a Node, whatever the configuration: a node's goal changes by
    recreation alone. Before that it is rebuilt when its goal differs.

    Raises:
        Rejected: the node on this host belongs to another Machine.
    """
    whole = sorted((facts for facts in (one, two) if facts.applied is not None), key=_preference)
    for facts in whole:
        if facts.applied is not None and facts.applied.goal.machine != spec.machine:
            other = facts.applied.goal.machine
            raise Rejected(
                f"this host is Machine {other}: run `unbounded-agent reset` before it becomes {spec.machine}"
            )
    if not whole:
        return SlotChoice(Slot.KUBE1, build=True, start=True)
    facts = whole[0]
    build = not has_registered(*whole) and not _is_made_from(facts, spec)
    return SlotChoice(
        facts.slot, build=build, start=build or not (facts.running and facts.kubelet and facts.containerd)
    )


def has_registered(*slots: SlotFacts) -> bool:
    """Return whether one of the slots has registered a Node."""
    return any(facts.applied is not None and facts.applied.node_uid for facts in slots)


def _preference(facts: SlotFacts) -> tuple[bool, bool]:
    """Return a sort key: a running slot first, then one that has registered a Node."""
    return not facts.running, not (facts.applied and facts.applied.node_uid)


def _is_made_from(facts: SlotFacts, spec: NodeGoal) -> bool:
    """Return whether the slot has this goal, from any configuration version: another one with equal content is the same
    node.
    """
    made = None if facts.applied is None else facts.applied.goal
    return made is not None and msgspec.structs.replace(made, configuration=spec.configuration) == spec
