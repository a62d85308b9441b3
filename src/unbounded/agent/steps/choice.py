"""Which slot a start uses, and whether it has to be made: pure, from what is seen of both."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from unbounded.agent.model import NodeGoal, Slot, SlotFacts
from unbounded.api.failures import Rejected


@dataclass(frozen=True)
class Choice:
    """Args:

    slot: which one holds the node, or will. build: it has to be made first. start: its machine, or its kubelet, does
    not run.
    """

    slot: Slot
    build: bool
    start: bool


def choose(one: SlotFacts, two: SlotFacts, goal: NodeGoal) -> Choice:
    """A slot stays as it is once a Node was registered here, whatever the configuration says: what a node is made from
    changes by recreation alone. Before that it is made anew when it was made from something else.

    Raises:
        Rejected: the node on this host belongs to another Machine.
    """
    whole = sorted((facts for facts in (one, two) if facts.applied is not None), key=_preference)
    for facts in whole:
        if facts.applied is not None and facts.applied.goal.machine != goal.machine:
            other = facts.applied.goal.machine
            raise Rejected(
                f"this host is Machine {other}: run `unbounded-agent reset` before it becomes {goal.machine}"
            )
    if not whole:
        return Choice(Slot.KUBE1, build=True, start=True)
    facts = whole[0]
    build = not was_a_node(*whole) and not _is_made_from(facts, goal)
    return Choice(facts.slot, build=build, start=build or not (facts.running and facts.kubelet and facts.containerd))


def was_a_node(*slots: SlotFacts) -> bool:
    """A Node was registered from one of them."""
    return any(facts.applied is not None and facts.applied.node_uid for facts in slots)


def _preference(facts: SlotFacts) -> tuple[bool, bool]:
    """Before others: the one that runs, then one that was a Node."""
    return not facts.running, not (facts.applied and facts.applied.node_uid)


def _is_made_from(facts: SlotFacts, goal: NodeGoal) -> bool:
    """Whichever version of a configuration it came from: another one with the same content is no other node."""
    made = None if facts.applied is None else facts.applied.goal
    return made is not None and msgspec.structs.replace(made, configuration=goal.configuration) == goal
