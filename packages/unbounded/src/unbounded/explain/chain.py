"""Explanations: find the subject, read the facts, and follow the chain to the first cause."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import structs

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS, Cluster, MachinePool
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.explain.blockers import explain_executor, explain_lock, explain_machina, explain_node, explain_pause
from unbounded.explain.configurations import SETTLED, explain_configuration, explain_rolling_update
from unbounded.explain.container_cloud import (
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
from unbounded.explain.container_cloud_objects import OBJECTS, ContainerCloudObject, explain_object, topic_of
from unbounded.explain.facts import ExplainFacts, procedure_of
from unbounded.explain.facts_reader import FactsReader, ReadApi
from unbounded.explain.links import (
    PLUGIN,
    Explained,
    ExplainLink,
    LinkSubject,
    Topic,
    links_with_program,
)
from unbounded.explain.machines import explain_condition, explain_machine
from unbounded.explain.operations import explain_operation
from unbounded.explain.results import Explanation
from unbounded.explain.timeline import OperationTimeline, timeline_of
from unbounded.kube.api import ApiError, NotFound, key_of
from unbounded.kube.clock import WallClock, rfc3339, utc_now

EXPLAIN: Final[Mapping[Topic, Callable[[str, ExplainFacts], Explained]]] = {
    Topic.MACHINE: explain_machine,
    Topic.OPERATION: explain_operation,
    Topic.PAUSE: explain_pause,
    Topic.LOCK: explain_lock,
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
        links.append(_about(found.link, following))
        following = found.then
    return tuple(links)


def _about(link: ExplainLink, subject: LinkSubject) -> ExplainLink:
    """Return a link with its subject."""
    namespace, _, name = subject.name.rpartition("/") if subject.topic in NAMESPACED else ("", "", subject.name)
    return structs.replace(link, topic=subject.topic.value, namespace=namespace, name=name)


KINDS: Final[Mapping[Topic, Kind[Any]]] = {
    Topic.MACHINE: MACHINES,
    Topic.OPERATION: MACHINE_OPERATIONS,
    Topic.CONFIGURATION: MACHINE_CONFIGURATIONS,
    Topic.CLAIM: CONTAINER_CLOUD_MACHINES,
    Topic.HOST: BARE_METAL_HOSTS,
    Topic.CLUSTER: CLUSTERS,
    Topic.POOL: MACHINE_POOLS,
    **OBJECTS,
}


def _names(kind: Kind[Any]) -> tuple[str, ...]:
    """Return the names of a kind, as kubectl takes them."""
    singular = kind.kind.lower()
    return singular, kind.plural, f"{singular}.{kind.group}", f"{kind.plural}.{kind.group}"


NAMESPACED: Final = frozenset(topic for topic, kind in KINDS.items() if kind.namespaced)
TOPICS: Final = {
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
    **{name: topic for topic, kind in OBJECTS.items() for name in _names(kind)},
    **{"bmhc": Topic.CREDENTIAL, "bmhp": Topic.PROFILE, "l2t": Topic.TEMPLATE},
}

Found = (
    Machine
    | MachineOperation
    | MachineConfiguration
    | ContainerCloudMachine
    | BareMetalHost
    | Cluster
    | MachinePool
    | ContainerCloudObject
)


async def explain(
    api: ReadApi,
    topic: Topic | None,
    name: str,
    *,
    namespace: str = "",
    now: WallClock = utc_now,
    program: str = PLUGIN,
    is_late: Callable[[str], bool] | None = None,
) -> Explanation:
    """Explain what blocks an object, with what the reader may read.

    Args:
        topic: one of KINDS; None for a Machine or an operation, whichever has the name.
        namespace: of an object of Container Cloud.
        program: first words of the commands in the answer.
        is_late: as for a FactsReader.

    Raises:
        SubjectNotFound, SubjectAmbiguous
        ApiError: the object cannot be read.
    """
    found = await find(api, topic, name, namespace)
    links, settled, facts = await _chain_of(FactsReader(api, now, ApiError, is_late), found)
    unread = () if facts is None else facts.unread
    return Explanation(
        links=links_with_program(links, program),
        settled=settled,
        timeline=_timeline(found, facts, now()) if isinstance(found, MachineOperation) and facts is not None else None,
        complete=not unread,
        unread=unread,
        read_at=rfc3339(now()),
    )


def _timeline(operation: MachineOperation, facts: ExplainFacts, now: datetime) -> OperationTimeline | None:
    execution, machine = operation.status.execution, facts.machines.get(operation.spec.machine_ref or "")
    procedure = None if execution is None else procedure_of(operation, execution.executor, machine)
    return timeline_of(operation, procedure, now)


async def _chain_of(reader: FactsReader, found: Found) -> tuple[tuple[ExplainLink, ...], bool, ExplainFacts | None]:
    """Return the chain of an object, whether nothing blocks it any more, and the facts on it, if any were read."""
    if isinstance(found, MachineConfiguration):
        rollout = found.status.rollout
        subject = LinkSubject(Topic.CONFIGURATION, found.metadata.name)
        return (_about(explain_configuration(found), subject),), rollout is None or rollout.phase in SETTLED, None
    if isinstance(found, Machine):
        facts = await reader.of_machine(found)
        links = chain(facts, LinkSubject(Topic.MACHINE, found.name))
        return links, len(links) == 1 and not links[0].held_by and not links[0].fixes, facts
    if isinstance(found, MachineOperation):
        facts = await reader.of_operation(found)
        return chain(facts, LinkSubject(Topic.OPERATION, found.name)), found.terminal, facts
    if isinstance(found, ContainerCloudObject):
        link, settled = explain_object(found)
        return (_about(link, LinkSubject(topic_of(found), str(key_of(found)))),), settled, None
    facts, topic, settled = await _of_container_cloud(reader, found)
    return chain(facts, LinkSubject(topic, str(key_of(found)))), settled, facts


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


class SubjectNotFound(Rejected):
    """No object of this kind and name exists; `kind` is None where neither a Machine nor an operation does."""

    def __init__(self, kind: Kind[Any] | None, name: str, namespace: str = "") -> None:
        self.kind, self.name = kind, name
        if kind is not None and kind.namespaced:
            super().__init__(f"{kind.kind} {name} of {kind.group} does not exist in namespace {namespace}")
        else:
            super().__init__(f"{'Machine or operation' if kind is None else kind.kind} {name} does not exist")


class SubjectAmbiguous(Rejected):
    """Both a Machine and an operation have the name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"both a Machine and an operation have the name {name}")


async def find(api: ReadApi, topic: Topic | None, name: str, namespace: str = "") -> Found:
    """Return the object of this name; a Machine or an operation where no topic is given.

    Raises:
        SubjectNotFound, SubjectAmbiguous, ApiError
    """
    kinds: list[Kind[Any]] = [MACHINES, MACHINE_OPERATIONS] if topic is None else [KINDS[topic]]
    found: list[Found] = [
        one for one in await asyncio.gather(*(_get(api, kind, name, namespace) for kind in kinds)) if one is not None
    ]
    if len(found) > 1:
        raise SubjectAmbiguous(name)
    if not found:
        raise SubjectNotFound(None if topic is None else KINDS[topic], name, namespace)
    return found[0]


async def _get(api: ReadApi, kind: Kind[Any], name: str, namespace: str) -> Any:
    try:
        return await api.get(kind, name, namespace=namespace if kind.namespaced else "")
    except NotFound:
        return None
