"""Chain of blockers from a subject to the first cause. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from unbounded.cli.explain.blockers import explain_executor, explain_lock, explain_machina, explain_node, explain_pause
from unbounded.cli.explain.facts import ExplainFacts
from unbounded.cli.explain.links import Explained, ExplainLink, LinkSubject, Topic
from unbounded.cli.explain.machines import explain_condition, explain_machine
from unbounded.cli.explain.operations import explain_operation

EXPLAIN: Final[Mapping[Topic, Callable[[str, ExplainFacts], Explained]]] = {
    Topic.MACHINE: explain_machine,
    Topic.OPERATION: explain_operation,
    Topic.PAUSE: explain_pause,
    Topic.SLOT: explain_lock,
    Topic.EXECUTOR: explain_executor,
    Topic.MACHINA: explain_machina,
    Topic.NODE: explain_node,
    Topic.CONDITION: explain_condition,
}


def chain(facts: ExplainFacts, subject: LinkSubject) -> tuple[ExplainLink, ...]:
    """Return the links from a subject on; the last one is the first cause. No subject occurs twice."""
    links: list[ExplainLink] = []
    seen: set[LinkSubject] = set()
    following: LinkSubject | None = subject
    while following is not None and following not in seen:
        seen.add(following)
        found = EXPLAIN[following.topic](following.name, facts)
        links.append(found.link)
        following = found.then
    return tuple(links)
