"""Chain of blockers from a subject to the first cause. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from unbounded.cli.why.facts import Facts
from unbounded.cli.why.holders import explain_executor, explain_machina, explain_node, explain_pause, explain_slot
from unbounded.cli.why.links import Explained, Link, Subject, Topic
from unbounded.cli.why.machines import explain_condition, explain_machine
from unbounded.cli.why.operations import explain_operation

EXPLAIN: Final[Mapping[Topic, Callable[[str, Facts], Explained]]] = {
    Topic.MACHINE: explain_machine,
    Topic.OPERATION: explain_operation,
    Topic.PAUSE: explain_pause,
    Topic.SLOT: explain_slot,
    Topic.EXECUTOR: explain_executor,
    Topic.MACHINA: explain_machina,
    Topic.NODE: explain_node,
    Topic.CONDITION: explain_condition,
}


def chain(facts: Facts, subject: Subject) -> tuple[Link, ...]:
    """Return the links from a subject on; the last one is the first cause. No subject occurs twice."""
    links: list[Link] = []
    seen: set[Subject] = set()
    following: Subject | None = subject
    while following is not None and following not in seen:
        seen.add(following)
        found = EXPLAIN[following.topic](following.name, facts)
        links.append(found.link)
        following = found.then
    return tuple(links)
