"""Machines of cluster.k8s.io, hosts, Clusters and MachinePools as links, down to the Machine of the host. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from unbounded.api.conditions import ConditionStatus
from unbounded.api.container_cloud.cluster import Cluster, ClusterConditionType, MachinePool
from unbounded.api.container_cloud.host import BareMetalHost, HostErrorType
from unbounded.api.container_cloud.machine import (
    ContainerCloudMachine,
    MachineStage,
    ProviderCondition,
    ProviderConditionType,
)
from unbounded.api.container_cloud.names import ANNOTATION_CREDENTIAL, scoped_name
from unbounded.api.machine import Machine
from unbounded.api.meta import Condition
from unbounded.containercloud.claims import ClaimReason, host_test
from unbounded.containercloud.cluster_plan import ClusterReason
from unbounded.containercloud.hosts.model import (
    CONDITION_AVAILABLE,
    CONDITION_DIRTY,
    HostReason,
    consumer_of,
    is_adopted,
    is_free,
    machine_of_host,
)
from unbounded.containercloud.machines.model import DELETION_STAGES
from unbounded.containercloud.pools import CONDITION_COMPLETE
from unbounded.explain.conditions import blocking_condition
from unbounded.explain.container_cloud_fixes import (
    CLUSTER,
    CONTAINER_CLOUD_FIXES,
    DELETION,
    HOST,
    LOST_HOST,
    MACHINE,
    POOL,
    ReasonRow,
)
from unbounded.explain.facts import CONTAINER_CLOUD, MACHINA, ExplainFacts
from unbounded.explain.links import PLUGIN, Explained, ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.kube.api import ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.operations.executor_selection import ExecutorKind

SHOWN: Final = 5  # hosts or Machines in a message
SETTLED: Final = frozenset({MachineStage.READY, MachineStage.MAINTAINED})


# Machines of cluster.k8s.io


def explain_claim(name: str, facts: ExplainFacts) -> Explained:
    """Explain what a Machine of cluster.k8s.io waits for."""
    machine = facts.claims.get(name)
    if machine is None:
        return _missing("machine.cluster.k8s.io", "ma", name)
    about, execution = _about("machine.cluster.k8s.io", key_of(machine)), machine.status.execution
    if execution is None:
        link = ExplainLink(
            about, "has not been processed by container-cloud", LinkCode.NOT_PROCESSED, held_by=CONTAINER_CLOUD
        )
        return _by_container_cloud(link, facts)
    waiting = execution.waiting
    if waiting is None:
        return _going_on(machine, facts)
    row = _machine_row(machine, waiting.reason)
    message = machine.status.error_message or execution.message or waiting.reason
    link = ExplainLink(
        about,
        f"{_state(machine)}: {message}{_hosts_note(machine, facts)}{_unproven(machine)}",
        waiting.reason,
        held_by=waiting.held_by or "",
        since=waiting.since or "",
        until=waiting.until or "",
        until_event=waiting.until_event or "",
        then=waiting.then or "",
        next_step=row.next_step,
        fixes=row.fixes(_machine_fields(machine, facts)),
    )
    if facts.silence(CONTAINER_CLOUD) is not None:
        return Explained(link, LinkSubject(Topic.CONTAINER_CLOUD))
    return Explained(link, _after_machine(row, machine, facts))


def _machine_row(machine: ContainerCloudMachine, reason: str) -> ReasonRow:
    execution = machine.status.execution
    if execution is not None and execution.stage in DELETION_STAGES and reason in DELETION:
        return DELETION[reason]
    if execution is not None and execution.host is not None and reason in LOST_HOST:
        return LOST_HOST[reason]
    return MACHINE.get(reason, ReasonRow("", ()))


def _state(machine: ContainerCloudMachine) -> str:
    """Return the word that a user reads in the column, and the stage where that says more."""
    word, execution = machine.provider_status.status or "", machine.status.execution
    stage = "" if execution is None else execution.stage
    return stage if word in ("", stage) else f"{word} ({stage})"


def _unproven(machine: ContainerCloudMachine) -> str:
    execution = machine.status.execution
    steps = () if execution is None else execution.unproven
    return f"; not proven: {', '.join(steps)}" if steps else ""


def _going_on(machine: ContainerCloudMachine, facts: ExplainFacts) -> Explained:
    """Explain a Machine that waits for nothing: it serves, or container-cloud is at work."""
    execution, about = machine.status.execution, _about("machine.cluster.k8s.io", key_of(machine))
    if execution is None or execution.stage not in SETTLED:
        link = ExplainLink(
            about, f"{_state(machine)}: the next step is due", LinkCode.NEXT_STEP_DUE, held_by=CONTAINER_CLOUD
        )
        return _by_container_cloud(link, facts)
    unready = [one for one in machine.provider_status.conditions if not one.ready]
    failed = [one for one in unready if one.type != ProviderConditionType.REBOOT]
    text = "; ".join(map(_condition_text, unready)) or "nothing blocks it"
    fixes: tuple[Fix, ...] = ()
    if len(failed) < len(unready) and execution.machine is not None:
        fixes = (Fix(f"{PLUGIN} machine host-reboot {execution.machine}", "reboots the host"),)
    link = ExplainLink(
        about,
        f"{_state(machine)}: {text}",
        (failed[0].reason if failed else None) or LinkCode.READY,
        held_by=f"condition {failed[0].type} ({failed[0].reason})" if failed else "",
        fixes=fixes,
    )
    return Explained(link, _target(execution.machine or "", facts) if failed else None)


def _condition_text(condition: ProviderCondition) -> str:
    return condition.message or f"condition {condition.type} is {condition.reason}"


def is_settled(machine: ContainerCloudMachine) -> bool:
    """Return whether nothing blocks a Machine; a reboot that is due does not."""
    execution = machine.status.execution
    is_idle = execution is not None and execution.stage in SETTLED and execution.waiting is None
    conditions = machine.provider_status.conditions
    return is_idle and all(one.ready or one.type == ProviderConditionType.REBOOT for one in conditions)


def _after_machine(row: ReasonRow, machine: ContainerCloudMachine, facts: ExplainFacts) -> LinkSubject | None:
    execution = machine.status.execution
    match row.follow:
        case Topic.HOST:
            host = host_of(machine)
            return LinkSubject(Topic.HOST, str(host)) if str(host) in facts.hosts else None
        case Topic.MACHINE:
            return _target((execution.machine if execution is not None else None) or "", facts)
        case Topic.OPERATION:
            used = facts.hosts.get(str(host_of(machine)))
            if used is not None and _is_login_refused(used, facts):
                return LinkSubject(Topic.HOST, str(key_of(used)))
            name = (execution.operation if execution is not None else None) or ""
            return LinkSubject(Topic.OPERATION, name) if name in facts.operations else None
        case Topic.CLUSTER:
            name = f"{machine.metadata.namespace}/{machine.cluster}"
            return LinkSubject(Topic.CLUSTER, name) if name in facts.clusters else None
        case Topic.MACHINA:
            return LinkSubject(Topic.MACHINA) if facts.silence(MACHINA) is not None else None
        case _:
            return None


def host_of(machine: ContainerCloudMachine) -> ObjectKey | None:
    """Return the host that a Machine has claimed, or that it pins."""
    execution = machine.status.execution
    if execution is not None and execution.host is not None:
        return ObjectKey(execution.host.namespace, execution.host.name)
    pin = machine.pinned_host
    return None if pin is None else ObjectKey(*pin)


def _target(name: str, facts: ExplainFacts) -> LinkSubject | None:
    """Return the Machine of a host as the next subject, if something blocks it or is at work on it."""
    machine = facts.machines.get(name)
    if machine is None or not _is_busy(machine, facts):
        return None
    return LinkSubject(Topic.MACHINE, name)


def _is_busy(machine: Machine, facts: ExplainFacts) -> bool:
    status, node = machine.status, facts.nodes.get(machine.name)
    is_operated = status.active_operation is not None or any(not one.terminal for one in facts.on(machine.name))
    is_blocked = blocking_condition(machine) is not None or (node is not None and not node.ready)
    is_disrupted = status.disruption is not None or status.node_update is not None
    return is_operated or is_blocked or is_disrupted or machine.metadata.deletion_timestamp is not None


def _hosts_note(machine: ContainerCloudMachine, facts: ExplainFacts) -> str:
    """Return what keeps each host of the namespace from a Machine that finds none."""
    execution = machine.status.execution
    waiting = None if execution is None else execution.waiting
    if waiting is None or waiting.reason != ClaimReason.INSUFFICIENT_RESOURCES:
        return ""
    accepts = host_test(machine.value.host_selector)
    hosts = [one for one in facts.hosts.values() if one.metadata.namespace == machine.metadata.namespace]
    fitting = sorted((one for one in hosts if accepts(one.metadata.labels)), key=lambda one: one.name)
    if not fitting:
        return f"; {len(hosts)} hosts there, none has the labels" if hosts else "; there is none"
    texts = [f"{one.name}: {'it is free' if is_free(one) else _availability(one)[1]}" for one in fitting[:SHOWN]]
    more = f"; {len(fitting) - SHOWN} more" if len(fitting) > SHOWN else ""
    return f"; {'; '.join(texts)}{more}"


def _machine_fields(machine: ContainerCloudMachine, facts: ExplainFacts) -> Mapping[str, str]:
    execution, host = machine.status.execution, host_of(machine)
    waiting = None if execution is None else execution.waiting
    profile, namespace = machine.value.bare_metal_host_profile, machine.metadata.namespace or ""
    return {
        "name": machine.name,
        "namespace": namespace,
        "cluster": machine.cluster,
        "host_name": "" if host is None else host.name,
        "host_namespace": "" if host is None else host.namespace,
        "target": (execution.machine if execution is not None else None) or "",
        "holder": ((waiting.held_by if waiting is not None else None) or "").rpartition(" ")[2],
        "profile": "" if profile is None else profile.name,
        "profile_namespace": (None if profile is None else profile.namespace) or namespace,
        "now": rfc3339(facts.read_at),
    }


# Hosts


def explain_host(name: str, facts: ExplainFacts) -> Explained:
    """Explain the state of a BareMetalHost, and what keeps it from a claim."""
    host = facts.hosts.get(name)
    if host is None:
        return _missing("bmh", "bmh", name)
    reason, message, since = _availability(host)
    key, consumer = key_of(host), consumer_of(host)
    if not reason:
        link = ExplainLink(
            _about("bmh", key),
            "has not been processed by container-cloud",
            LinkCode.NOT_PROCESSED,
            held_by=CONTAINER_CLOUD,
        )
        return _by_container_cloud(link, facts)
    is_chained = consumer is not None and str(consumer) in facts.claims
    error = host.status.error_message or ""
    more = f"; {error}" if error and error not in message else ""
    is_refused = reason == HostReason.IN_USE and _is_login_refused(host, facts)
    row = HOST[HostReason.CREDENTIALS_REFUSED] if is_refused else HOST.get(reason, ReasonRow("", ()))
    link = ExplainLink(
        _about("bmh", key),
        f"{host.state or 'unregistered'}: {message}{more}",
        reason,
        held_by=f"Machine {consumer}" if consumer is not None and not is_chained else "",
        since=since,
        next_step="" if is_chained and not is_refused else row.next_step,
        fixes=() if is_chained and reason == HostReason.IN_USE and not is_refused else row.fixes(_host_fields(host)),
    )
    if facts.silence(CONTAINER_CLOUD) is not None:
        return Explained(link, LinkSubject(Topic.CONTAINER_CLOUD))
    return Explained(link, _install_of(host, facts) if is_refused else _after_host(row, host, facts))


def _is_login_refused(host: BareMetalHost, facts: ExplainFacts) -> bool:
    """Return whether the BMC of a host has refused the login that container-cloud copies for metalman."""
    machine = facts.machines.get(machine_of_host(host))
    redfish = None if machine is None or is_adopted(host) else machine.status.redfish
    is_refused = redfish is not None and redfish.refused_secret_version is not None
    return is_refused and host.status.error_type == HostErrorType.REGISTRATION


def _install_of(host: BareMetalHost, facts: ExplainFacts) -> LinkSubject | None:
    """Return the operation of the Machine that uses a host as the next subject."""
    machine = facts.claims.get(str(consumer_of(host)))
    execution = None if machine is None else machine.status.execution
    name = (None if execution is None else execution.operation) or ""
    return LinkSubject(Topic.OPERATION, name) if name in facts.operations else None


def _availability(host: BareMetalHost) -> tuple[str, str, str]:
    """Return reason, message and time of what keeps a host from a claim; empty before the first report."""
    found = {one.type: one for one in host.status.conditions}
    dirty = found.get(CONDITION_DIRTY)
    shown = dirty if dirty is not None and dirty.status == ConditionStatus.TRUE else found.get(CONDITION_AVAILABLE)
    return ("", "", "") if shown is None else (shown.reason, shown.message or shown.reason, shown.since)


def _after_host(row: ReasonRow, host: BareMetalHost, facts: ExplainFacts) -> LinkSubject | None:
    name = machine_of_host(host)
    machine = facts.machines.get(name)
    if row.follow is Topic.EXECUTOR and machine is not None and machine.site:
        metalman = f"{ExecutorKind.METALMAN}/{machine.site}"
        if facts.silence(metalman) is not None:
            return LinkSubject(Topic.EXECUTOR, metalman)
    return None if row.follow is None else _target(name, facts)


def _host_fields(host: BareMetalHost) -> Mapping[str, str]:
    key, consumer, bmc = key_of(host), consumer_of(host), host.spec.bmc
    return {
        "name": key.name,
        "namespace": key.namespace,
        "machine": machine_of_host(host),
        "secret": (bmc.credentials_name if bmc is not None else None) or "",
        "credential": host.metadata.annotations.get(ANNOTATION_CREDENTIAL, ""),
        "consumer_name": "" if consumer is None else consumer.name,
        "consumer_namespace": "" if consumer is None else consumer.namespace,
    }


def is_idle(host: BareMetalHost) -> bool:
    """Return whether a host is available or in use, without an error."""
    reason = _availability(host)[0]
    return reason in (HostReason.AVAILABLE, HostReason.IN_USE) and not host.status.error_type


# Clusters


_READY: Final = frozenset({ClusterReason.USABLE, ClusterReason.NODES_READY, ClusterReason.UPDATED})
_ORDER: Final = (ClusterConditionType.RELEASE, ClusterConditionType.UPDATE, ClusterConditionType.NODES)


def explain_cluster(name: str, facts: ExplainFacts) -> Explained:
    """Explain what a Cluster waits for: its release, its update, or its Machines."""
    cluster = facts.clusters.get(name)
    if cluster is None:
        return _missing("cluster.cluster.k8s.io", "clusters.cluster.k8s.io", name)
    about = _about("cluster.cluster.k8s.io", key_of(cluster))
    status = cluster.status.provider_status
    if status is None or not status.conditions:
        link = ExplainLink(
            about, "has not been processed by container-cloud", LinkCode.NOT_PROCESSED, held_by=CONTAINER_CLOUD
        )
        return _by_container_cloud(link, facts)
    first = unready_condition(cluster)
    if first is None:
        return Explained(ExplainLink(about, "Ready: nothing blocks it", LinkCode.READY))
    row = CLUSTER.get(first.reason or "", ReasonRow("", ()))
    link = ExplainLink(
        about,
        f"{first.type}: {first.message or first.reason}{_machines_note(cluster, facts)}",
        first.reason or first.type,
        held_by=f"condition {first.type} ({first.reason})",
        next_step=row.next_step,
        fixes=row.fixes(_cluster_fields(cluster)),
    )
    if facts.silence(CONTAINER_CLOUD) is not None:
        return Explained(link, LinkSubject(Topic.CONTAINER_CLOUD))
    return Explained(link, _after_cluster(row, cluster, facts))


def unready_condition(cluster: Cluster) -> ProviderCondition | None:
    """Return the condition that blocks a Cluster first; None for a Cluster that is ready."""
    found = {one.type: one for one in cluster.provider_status.conditions if not one.ready}
    return next((found[one] for one in _ORDER if one in found), None)


def unready_machines(cluster: Cluster, facts: ExplainFacts) -> Sequence[ContainerCloudMachine]:
    """Return the Machines of a Cluster that are not ready, by name."""
    whose = (cluster.metadata.namespace, cluster.name)
    return unready(one for one in facts.claims.values() if (one.metadata.namespace, one.cluster) == whose)


def unready(machines: Iterable[ContainerCloudMachine]) -> Sequence[ContainerCloudMachine]:
    """Return the Machines that are not ready, by name."""
    return sorted((one for one in machines if not one.provider_status.ready), key=lambda one: one.name)


def _machines_note(cluster: Cluster, facts: ExplainFacts) -> str:
    """Return the Machines that are not ready, with their states."""
    first = unready_condition(cluster)
    if first is None or first.type != ClusterConditionType.NODES:
        return ""
    found = [f"{one.name} {_state(one)}" for one in unready_machines(cluster, facts)]
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return f": {', '.join(found[:SHOWN])}{more}" if found else ""


def _after_cluster(row: ReasonRow, cluster: Cluster, facts: ExplainFacts) -> LinkSubject | None:
    configuration = scoped_name(cluster.metadata.namespace or "", cluster.name)
    if row.follow is Topic.CONFIGURATION and configuration in facts.configurations:
        return LinkSubject(Topic.CONFIGURATION, configuration)
    waiting = unready_machines(cluster, facts) if row.follow is Topic.CLAIM else ()
    return LinkSubject(Topic.CLAIM, str(key_of(waiting[0]))) if waiting else None


def _cluster_fields(cluster: Cluster) -> Mapping[str, str]:
    key = key_of(cluster)
    return {
        "name": key.name,
        "namespace": key.namespace,
        "release": cluster.value.release,
        "configuration": scoped_name(key.namespace, key.name),
    }


# Pools


def explain_pool(name: str, facts: ExplainFacts) -> Explained:
    """Explain what a MachinePool waits for: itself, or its first Machine that is not ready."""
    pool = facts.pools.get(name)
    if pool is None:
        return _missing("mp", "machinepools.kaas.mirantis.com", name)
    about, found = _about("mp", key_of(pool)), _completeness(pool)
    if found is None:
        link = ExplainLink(
            about, "has not been processed by container-cloud", LinkCode.NOT_PROCESSED, held_by=CONTAINER_CLOUD
        )
        return _by_container_cloud(link, facts)
    row = ReasonRow("", ()) if found.status == ConditionStatus.TRUE else POOL[found.reason]
    waiting = unready(facts.claims.values())
    names = ", ".join(f"{one.name} {_state(one)}" for one in waiting[:SHOWN])
    link = ExplainLink(
        about,
        f"{found.message}{f'; not ready: {names}' if names else ''}",
        found.reason,
        held_by="" if found.status == ConditionStatus.TRUE else f"condition {found.type} ({found.reason})",
        since="" if found.status == ConditionStatus.TRUE else found.since,
        next_step=row.next_step,
        fixes=row.fixes({"name": pool.name, "namespace": pool.metadata.namespace or ""}),
    )
    if facts.silence(CONTAINER_CLOUD) is not None:
        return Explained(link, LinkSubject(Topic.CONTAINER_CLOUD))
    if row.follow is Topic.CLUSTER:
        cluster = f"{pool.metadata.namespace}/{pool.cluster}"
        return Explained(link, LinkSubject(Topic.CLUSTER, cluster) if cluster in facts.clusters else None)
    return Explained(link, LinkSubject(Topic.CLAIM, str(key_of(waiting[0]))) if waiting else None)


def _completeness(pool: MachinePool) -> Condition | None:
    return next((one for one in pool.status.conditions if one.type == CONDITION_COMPLETE), None)


def is_whole(pool: MachinePool) -> bool:
    """Return whether a pool has all its Machines, and all of them are ready."""
    found, status = _completeness(pool), pool.status
    return found is not None and found.status == ConditionStatus.TRUE and status.ready_replicas == status.replicas


# The process


def explain_container_cloud(_name: str, facts: ExplainFacts) -> Explained:
    """Explain container-cloud, which writes the states of Machines, hosts and Clusters."""
    silence = facts.silence(CONTAINER_CLOUD)
    if silence is None:
        text = "is running: it acts within seconds"
        step = "run the command again in a few seconds"
        return Explained(ExplainLink(CONTAINER_CLOUD, text, LinkCode.RUNNING, next_step=step))
    step = "its successor continues from the recorded states"
    what = f"is not running: {silence}"
    link = ExplainLink(CONTAINER_CLOUD, what, LinkCode.NOT_RUNNING, next_step=step, fixes=CONTAINER_CLOUD_FIXES)
    return Explained(link)


def _by_container_cloud(link: ExplainLink, facts: ExplainFacts) -> Explained:
    is_away = facts.silence(CONTAINER_CLOUD) is not None
    return Explained(link, LinkSubject(Topic.CONTAINER_CLOUD) if is_away else None)


def _about(kind: str, key: ObjectKey) -> str:
    """Return an object as a user types it behind `why`."""
    return f"{kind}/{key.name} -n {key.namespace}"


def _missing(kind: str, plural: str, name: str) -> Explained:
    namespace, _, own = name.partition("/")
    fix = Fix(f"kubectl get {plural} -n {namespace}", "shows the existing ones")
    about = _about(kind, ObjectKey(namespace, own))
    return Explained(ExplainLink(about, "does not exist", LinkCode.NOT_FOUND, fixes=(fix,)))
