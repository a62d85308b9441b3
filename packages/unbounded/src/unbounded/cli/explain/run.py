"""The command `why`: find the subject, read the facts, follow the chain, and print it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS, Cluster, MachinePool
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.explain.blockers import explain_executor, explain_lock, explain_machina, explain_node, explain_pause
from unbounded.cli.explain.configurations import SETTLED, explain_configuration, explain_rolling_update
from unbounded.cli.explain.container_cloud import (
    explain_claim,
    explain_cluster,
    explain_container_cloud,
    explain_host,
    explain_pool,
    is_idle,
    is_settled,
    is_whole,
    unready_condition,
)
from unbounded.cli.explain.facts import ExplainFacts
from unbounded.cli.explain.facts_reader import FactsReader
from unbounded.cli.explain.links import (
    PLUGIN,
    Explained,
    ExplainLink,
    LinkSubject,
    Topic,
    links_data,
    links_text,
    links_with_program,
)
from unbounded.cli.explain.machines import explain_condition, explain_machine
from unbounded.cli.explain.operations import explain_operation
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.output import as_yaml
from unbounded.kube.api import Api, ApiError, NotFound, key_of
from unbounded.kube.clock import WallClock, utc_now

EXPLAIN: Final[Mapping[Topic, Callable[[str, ExplainFacts], Explained]]] = {
    Topic.MACHINE: explain_machine,
    Topic.OPERATION: explain_operation,
    Topic.PAUSE: explain_pause,
    Topic.SLOT: explain_lock,
    Topic.EXECUTOR: explain_executor,
    Topic.MACHINA: explain_machina,
    Topic.NODE: explain_node,
    Topic.CONDITION: explain_condition,
    Topic.CONFIGURATION: explain_rolling_update,
    Topic.CLAIM: explain_claim,
    Topic.HOST: explain_host,
    Topic.CLUSTER: explain_cluster,
    Topic.POOL: explain_pool,
    Topic.CONTAINER_CLOUD: explain_container_cloud,
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


_KINDS: Final[Mapping[Topic, Kind[Any]]] = {
    Topic.MACHINE: MACHINES,
    Topic.OPERATION: MACHINE_OPERATIONS,
    Topic.CONFIGURATION: MACHINE_CONFIGURATIONS,
    Topic.CLAIM: CONTAINER_CLOUD_MACHINES,
    Topic.HOST: BARE_METAL_HOSTS,
    Topic.CLUSTER: CLUSTERS,
    Topic.POOL: MACHINE_POOLS,
}
WATCH_EVERY_S: Final = 2.0
KINDS: Final = {
    **dict.fromkeys(("machine", "machines", "mach", "machine.unbounded-cloud.io"), Topic.MACHINE),
    **dict.fromkeys(
        ("configuration", "configurations", "mc", "machineconfiguration", "machineconfigurations"), Topic.CONFIGURATION
    ),
    **dict.fromkeys(("operation", "operations", "mop", "machineoperation", "machineoperations"), Topic.OPERATION),
    **dict.fromkeys(("ma", "machine.cluster.k8s.io", "machines.cluster.k8s.io"), Topic.CLAIM),
    **dict.fromkeys(
        ("bmh", "baremetalhost", "baremetalhosts", "baremetalhost.metal3.io", "baremetalhosts.metal3.io"), Topic.HOST
    ),
    **dict.fromkeys(("cluster.cluster.k8s.io", "clusters.cluster.k8s.io"), Topic.CLUSTER),
    **dict.fromkeys(
        ("mp", "machinepool", "machinepools", "machinepool.kaas.mirantis.com", "machinepools.kaas.mirantis.com"),
        Topic.POOL,
    ),
}

Found = (
    Machine | MachineOperation | MachineConfiguration | ContainerCloudMachine | BareMetalHost | Cluster | MachinePool
)


async def run(session: CommandSession) -> int:
    """Run `why NAME`: print the chain once, or with --watch after each change until nothing blocks any more."""
    refuse_output(session.invocation, "name", "wide", what="an answer can be text, json or yaml")
    args, program = session.invocation.args, session.invocation.program
    topic, name = parsed(args.name, program)
    is_namespaced = topic is not None and _KINDS[topic].namespaced
    namespace = (args.namespace or session.api.config.namespace) if is_namespaced else ""
    before: tuple[ExplainLink, ...] = ()
    while True:
        links, settled, unread = await explained(session.api, topic, name, namespace=namespace, program=program)
        if links != before:
            show(session, links, unread)
        if settled or not args.watch:
            return DONE
        before = links
        await asyncio.sleep(WATCH_EVERY_S)


def parsed(text: str, program: str = PLUGIN) -> tuple[Topic | None, str]:
    """Parse `machine/m1`, `operation/op`, `configuration/c`, `ma/m`, `bmh/h`, `cluster.cluster.k8s.io/c`, `mp/p`, or
    a bare name, to the topic and the name.

    Raises:
        CliError
    """
    kind, slash, name = text.partition("/")
    if not slash:
        return None, text
    topic = KINDS.get(kind.lower())
    if topic is None or not name:
        raise CliError(
            f"{text!r} is neither machine/NAME nor operation/NAME nor configuration/NAME, nor, of Container Cloud, "
            "machine.cluster.k8s.io/NAME, bmh/NAME, cluster.cluster.k8s.io/NAME or mp/NAME",
            next_step=f"{program} why machine/NAME",
            status=USAGE,
        )
    return topic, name


async def explained(
    api: Api,
    topic: Topic | None,
    name: str,
    *,
    namespace: str = "",
    now: WallClock = utc_now,
    program: str = PLUGIN,
) -> tuple[tuple[ExplainLink, ...], bool, tuple[str, ...]]:
    """Return the chain of an object, whether nothing blocks it any more, and what could not be read.

    Args:
        namespace: of an object of Container Cloud.
    """
    found = await find(api, topic, name, program, namespace)
    if isinstance(found, MachineConfiguration):
        link = explain_configuration(found)
        rollout = found.status.rollout
        return links_with_program((link,), program), rollout is None or rollout.phase in SETTLED, ()
    reader = FactsReader(api, now, ApiError)
    if isinstance(found, Machine):
        facts = await reader.of_machine(found)
        subject = LinkSubject(Topic.MACHINE, found.name)
        links = links_with_program(chain(facts, subject), program)
        return links, len(links) == 1 and not links[0].held_by and not links[0].fixes, facts.unread
    if not isinstance(found, MachineOperation):
        facts, topic, settled = await _of_container_cloud(reader, found)
        links = links_with_program(chain(facts, LinkSubject(topic, str(key_of(found)))), program)
        return links, settled, facts.unread
    facts = await reader.of_operation(found)
    links = links_with_program(chain(facts, LinkSubject(Topic.OPERATION, found.name)), program)
    return links, found.terminal, facts.unread


async def _of_container_cloud(
    reader: FactsReader, found: ContainerCloudMachine | BareMetalHost | Cluster | MachinePool
) -> tuple[ExplainFacts, Topic, bool]:
    """Read the facts on an object of Container Cloud; return them, its topic, and whether nothing blocks it."""
    match found:
        case ContainerCloudMachine():
            return await reader.of_claim(found), Topic.CLAIM, is_settled(found)
        case BareMetalHost():
            return await reader.of_host(found), Topic.HOST, is_idle(found)
        case Cluster():
            is_ready = found.provider_status.ready and unready_condition(found) is None
            return await reader.of_cluster(found), Topic.CLUSTER, is_ready
        case MachinePool():
            return await reader.of_pool(found), Topic.POOL, is_whole(found)


async def find(api: Api, topic: Topic | None, name: str, program: str = PLUGIN, namespace: str = "") -> Found:
    """Return the object of this name.

    Raises:
        CliError: there is none, or a Machine and an operation have the same name.
    """
    kinds: list[Kind[Any]] = [MACHINES, MACHINE_OPERATIONS] if topic is None else [_KINDS[topic]]
    found = [
        one for one in await asyncio.gather(*(_get(api, kind, name, namespace) for kind in kinds)) if one is not None
    ]
    if len(found) > 1:
        raise CliError(
            f"both a Machine and an operation have the name {name}",
            next_step=f"{program} why machine/{name}, or {program} why operation/{name}",
            status=USAGE,
        )
    if not found:
        kind = None if topic is None else _KINDS[topic]
        if kind is not None and kind.namespaced:
            where = f"{kind.kind} {name} of {kind.group} does not exist in namespace {namespace}"
            raise CliError(where, next_step=f"kubectl get {kind.plural}.{kind.group} --all-namespaces")
        what = "Machine or operation" if kind is None else kind.kind
        raise CliError(f"{what} {name} does not exist", next_step="kubectl get mach,machineoperations")
    first: Found = found[0]
    return first


async def _get(api: Api, kind: Kind[Any], name: str, namespace: str) -> Any:
    try:
        return await api.get(kind, name, namespace=namespace if kind.namespaced else "")
    except NotFound:
        return None


def show(session: CommandSession, links: tuple[ExplainLink, ...], unread: tuple[str, ...]) -> None:
    """Print a chain in the format of -o."""
    form = getattr(session.invocation.args, "output", "")
    if form == "json":
        session.invocation.out.write(
            msgspec.json.format(msgspec.json.encode(links_data(links)), indent=2).decode() + "\n"
        )
    elif form == "yaml":
        session.invocation.out.write(as_yaml(links_data(links)))
    else:
        session.invocation.out.write("\n".join(links_text(links, utc_now(), session.invocation.style)) + "\n")
    for what in unread:
        session.printer.warn(f"note: {what}; the answer ignores it")
