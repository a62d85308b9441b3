"""The command `events`: Events about one Machine and the objects around it, or about all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from unbounded.api.container_cloud.names import GROUPS
from unbounded.api.core import EVENTS, NODES
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind, Object
from unbounded.api.names import GROUP
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession
from unbounded.cli.plugin.output import table
from unbounded.cli.plugin.watching import GrowingTable, followed_cache
from unbounded.cli.tree import subject_of
from unbounded.explain.chain import KINDS
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.facts_reader import EVENTS_OF_CLUSTER, FactsReader
from unbounded.explain.links import Topic
from unbounded.kube.api import Api, ApiError, Forbidden, NotFound, key_of, version_number
from unbounded.kube.clock import age, utc_now
from unbounded.plan.intent import Raw

HEADS: Final = ("LAST SEEN", "TYPE", "REASON", "OBJECT", "MESSAGE")
OUR_GROUPS: Final = frozenset({GROUP, *GROUPS})


@dataclass(frozen=True)
class EventReference:
    """The object that an Event is about."""

    group: str
    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, event: Raw) -> EventReference:
        about = event.get("involvedObject") or {}
        group, slash, _ = about.get("apiVersion", "").partition("/")
        kind, namespace = about.get("kind", ""), about.get("namespace", "")
        return cls(group if slash else "", kind, namespace, about.get("name", ""))

    @property
    def is_operation(self) -> bool:
        return (self.group, self.kind) == (GROUP, MACHINE_OPERATIONS.kind)

    @property
    def is_node(self) -> bool:
        return (self.group, self.kind) == ("", NODES.kind)

    def __str__(self) -> str:
        text = f"{self.kind.lower()}.{self.group}/{self.name}" if self.group not in ("", GROUP) else ""
        return text or f"{self.kind.lower()}/{self.name}"


class AllObjects:
    """All objects of the project, and all Nodes."""

    async def covers(self, event: Raw) -> bool:
        about = EventReference.of(event)
        return about.group in OUR_GROUPS or about.is_node


@dataclass
class RelatedObjects:
    """A Machine and the objects around it.

    Args:
        machine: its name; operations on it are covered, those to come included.
        uids: of the objects; another object of the same name is not covered. A Node is covered by its name: kubelets
            give that for the UID.
    """

    api: Api
    machine: str
    uids: dict[EventReference, str]
    _operations: dict[str, bool] = field(default_factory=dict)  # by UID: whether it acts on the Machine

    async def covers(self, event: Raw) -> bool:
        about = EventReference.of(event)
        uid = event["involvedObject"].get("uid", "")
        if about in self.uids:
            return about.is_node or uid in ("", self.uids[about])
        return bool(self.machine) and about.is_operation and await self._is_on_machine(about.name, uid)

    async def _is_on_machine(self, name: str, uid: str) -> bool:
        if uid not in self._operations:
            try:
                operation = await self.api.get(MACHINE_OPERATIONS, name)
            except (NotFound, Forbidden):
                return False
            self._operations[operation.metadata.uid] = operation.spec.machine_ref == self.machine
        return self._operations.get(uid, False)


Scope = AllObjects | RelatedObjects


async def run(session: CommandSession) -> int:
    """Run `events [NAME]`; returns the exit status."""
    args = session.invocation.args
    if args.watch and args.output:
        raise CliError(f"-o {args.output}: a watch prints only text", status=USAGE)
    if args.output == "wide":
        raise CliError("-o wide: all columns are printed always", status=USAGE)
    scope, namespaces = await _scope(session)
    if args.watch:
        return await _watch(session, scope, namespaces)
    found: list[Raw] = []
    for namespace in await _readable(session, namespaces):
        listed = await session.api.list(EVENTS.raw(), namespace=namespace)
        found += [event for event in listed.items if await scope.covers(event)]
    found.sort(key=_order)
    if session.printer.whole or args.output == "name" or not found:
        session.printer.objects(EVENTS, found)
        return DONE
    for line in table(HEADS, [_row(event) for event in found], session.invocation.style):
        print(line, file=session.invocation.out)
    return DONE


async def _scope(session: CommandSession) -> tuple[Scope, Sequence[str]]:
    """Return the objects whose Events are shown, and the namespaces of those Events; an empty one for all."""
    args = session.invocation.args
    if not args.name:
        return AllObjects(), [args.namespace]
    found = await subject_of(session)
    facts = await FactsReader(session.api, utc_now, ApiError).related(found)
    return scope_of(session.api, facts)


def scope_of(api: Api, facts: ExplainFacts) -> tuple[Scope, Sequence[str]]:
    """Return the objects around a Machine, whose Events are shown, and the namespaces of those Events."""
    uids = uids_of(facts)
    namespaces = {EVENTS_OF_CLUSTER} | {about.namespace for about in uids if about.namespace}
    return RelatedObjects(api, next(iter(facts.machines), ""), uids), sorted(namespaces)


def uids_of(facts: ExplainFacts) -> dict[EventReference, str]:
    """Return the UIDs of the objects around a Machine, those of its last operations included."""
    found: dict[EventReference, str] = {}
    for topic, items in (
        (Topic.MACHINE, facts.machines),
        (Topic.OPERATION, facts.operations),
        (Topic.CONFIGURATION, facts.configurations),
        (Topic.HOST, facts.hosts),
        (Topic.CLAIM, facts.claims),
    ):
        found |= {_reference(KINDS[topic], item): item.metadata.uid for item in items.values()}
    for machine in facts.machines.values():
        found[EventReference("", NODES.kind, "", _node_name(machine, facts))] = ""
        for recent in machine.status.recent_operations:
            found.setdefault(EventReference(GROUP, MACHINE_OPERATIONS.kind, "", recent.name), recent.uid)
    return found


def _node_name(machine: Machine, facts: ExplainFacts) -> str:
    node = facts.nodes.get(machine.name)
    return machine.name if node is None else node.metadata.name


def _reference(kind: Kind[Any], item: Object) -> EventReference:
    key = key_of(item)
    return EventReference(kind.group, kind.kind, key.namespace, key.name)


async def _readable(session: CommandSession, namespaces: Sequence[str]) -> list[str]:
    """Return the namespaces whose Events the user may list, with a note about the others. Raises Forbidden for none."""
    readable: list[str] = []
    for namespace in namespaces:
        try:
            await session.api.list(EVENTS.raw(), namespace=namespace, fields="metadata.name=-")
        except Forbidden:
            if len(namespaces) == 1:
                raise
            session.printer.warn(f"note: you may not list the Events of namespace {namespace}; they are left out")
        else:
            readable.append(namespace)
    return readable


def _order(event: Raw) -> tuple[str, int]:
    return _last_seen(event), version_number(event["metadata"].get("resourceVersion", ""))


def _last_seen(event: Raw) -> str:
    """Return the time at which something happened last; Events of events.k8s.io/v1 have it in other fields."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next(filter(None, times), event["metadata"].get("creationTimestamp") or "")


def _row(event: Raw) -> list[str]:
    count = (event.get("series") or {}).get("count") or event.get("count") or 1
    times = f" (x{count})" if count > 1 else ""
    seen, message = age(_last_seen(event), utc_now()), event.get("message") or ""
    return [
        f"{seen}{times}",
        event.get("type") or "",
        event.get("reason") or "",
        str(EventReference.of(event)),
        message,
    ]


async def _watch(session: CommandSession, scope: Scope, namespaces: Sequence[str]) -> int:
    """Print the Events, the oldest first, then each new or repeated one, until Ctrl-C."""
    changed: asyncio.Queue[Raw] = asyncio.Queue()
    async with contextlib.AsyncExitStack() as stack:
        following = []
        for namespace in await _readable(session, namespaces):
            cache, task = await stack.enter_async_context(
                followed_cache(session.api, EVENTS.raw(), namespace=namespace)
            )
            following.append(task)
            stack.enter_context(cache.subscribed(lambda _old, new: None if new is None else changed.put_nowait(new)))
        first = sorted([changed.get_nowait() for _ in range(changed.qsize())], key=_order)
        first = [event for event in first if await scope.covers(event)]
        lines = GrowingTable(session.invocation.out, HEADS, [_row(event) for event in first])
        lines.print_heads()
        for event in first:
            lines.print(_row(event))
        printing = asyncio.create_task(_print_changes(changed, scope, lines))
        try:
            await asyncio.gather(printing, *following)
        finally:
            printing.cancel()
    return DONE


async def _print_changes(changed: asyncio.Queue[Raw], scope: Scope, lines: GrowingTable) -> None:
    while True:
        event = await changed.get()
        if await scope.covers(event):
            lines.print(_row(event))
