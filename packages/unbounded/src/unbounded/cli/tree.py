"""The command `tree`: print a Machine and the objects around it, from `unbounded.explain.tree`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Final, cast

from unbounded.api.container_cloud.host import BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.machine import Machine
from unbounded.api.names import GROUP
from unbounded.cli.explain import parsed, subject_errors, warn_unread
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.output import print_struct, table
from unbounded.explain.chain import KINDS, find
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.tree import TreeNode, tree_of
from unbounded.kube.api import ApiError
from unbounded.kube.clock import age, utc_now

HEADS: Final = ("OBJECT", "PHASE", "AGE", "MESSAGE")
TOPICS: Final = frozenset({Topic.MACHINE, Topic.CLAIM, Topic.HOST})

Subject = Machine | BareMetalHost | ContainerCloudMachine


async def run(session: CommandSession) -> int:
    """Run `tree NAME`; returns the exit status."""
    refuse_output(session.invocation, "name", "wide", what="a tree can be text, json or yaml")
    found = await subject_of(session)
    tree = tree_of(found, await FactsReader(session.api, utc_now, ApiError).related(found))
    if not print_struct(session.invocation, tree):
        for line in table(HEADS, list(rows_of(tree.root, utc_now())), session.invocation.style):
            print(line, file=session.invocation.out)
    warn_unread(session, tree.unread)
    return DONE


async def subject_of(session: CommandSession) -> Subject:
    """Return the Machine, host or Machine of Container Cloud that the command names. Raises CliError, ApiError."""
    args, program = session.invocation.args, session.invocation.program
    topic, name = parsed(args.name, program)
    topic = topic or Topic.MACHINE
    if topic not in TOPICS:
        raise CliError(
            f"{args.name!r} is neither machine/NAME nor, of Container Cloud, machine.cluster.k8s.io/NAME or bmh/NAME",
            next_step=f"{program} why {args.name}",
            status=USAGE,
        )
    namespace = (args.namespace or session.api.config.namespace) if KINDS[topic].namespaced else ""
    with subject_errors(program, name):
        return cast("Subject", await find(session.api, topic, name, namespace))


def rows_of(node: TreeNode, now: datetime, *, first: str = "", others: str = "") -> Iterator[list[str]]:
    """Yield a row for a node and for each one below it.

    Args:
        first, others: what is in front of the node's own name, and in front of those below it.
    """
    yield [first + label(node), node.phase, age(node.created, now), node.message]
    for child in node.children:
        is_last = child is node.children[-1]
        branch, below = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
        yield from rows_of(child, now, first=others + branch, others=others + below)


def label(node: TreeNode) -> str:
    """Return a node as kubectl names an object; those of unbounded-cloud.io and Kubernetes go without their group."""
    if not node.created and not node.group and node.kind != "Node":
        return f"{node.kind} {node.name}"
    kind = node.kind.lower() if node.group in ("", GROUP) else f"{node.kind.lower()}.{node.group}"
    name = f"{kind}/{node.name}"
    return f"{name} -n {node.namespace}" if node.namespace else name
