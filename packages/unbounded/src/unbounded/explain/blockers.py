"""Blockers other than Machines and operations: a pause, a Machine's lock, a process, a Node. Pure."""

from __future__ import annotations

import shlex
from typing import Final

from unbounded.api.conditions import ConditionType
from unbounded.api.core import Node
from unbounded.api.machine import ActiveOperation, Machine
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.explain.conditions import agent_fixes, condition
from unbounded.explain.facts import MACHINA, ExplainFacts, scopes_of
from unbounded.explain.fix_commands import has_reported, manual_bootstrap
from unbounded.explain.links import PLUGIN, Explained, ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.machineops.settings import deployment_name
from unbounded.operations import reasons
from unbounded.operations.claim_gates import NO_PROGRESS_S, is_paused, is_recreation, lock_gate
from unbounded.operations.executor_selection import ExecutorKind, executor_of

_KINDS: Final = frozenset(OperationKind)


def explain_pause(machine: str, facts: ExplainFacts) -> Explained:
    """Explain the annotation that pauses a Machine, or everything."""
    found = facts.machines.get(machine)
    if found is not None and is_paused(found.metadata.annotations):
        value = found.metadata.annotations[ANNOTATION_PAUSED]
        fix = Fix(f"{PLUGIN} machine resume {machine}", "removes the annotation")
        return Explained(_paused(f"machine/{machine}", value, fix))
    value = facts.pause.metadata.annotations.get(ANNOTATION_PAUSED, "") if facts.pause is not None else ""
    fix = Fix(f"{PLUGIN} machine resume --all", "removes the annotation")
    return Explained(_paused(f"ConfigMap {NAMESPACE}/{CONFIGMAP_OPERATIONS}", value, fix))


def _paused(about: str, value: str, fix: Fix) -> ExplainLink:
    reason = f": {value}" if value.lower() not in {"", "true"} else ""
    step = "nothing starts until the annotation is removed; operations in progress continue"
    what = f"has the annotation {ANNOTATION_PAUSED}{reason}"
    return ExplainLink(about, what, reasons.PAUSED, next_step=step, fixes=(fix,))


def lock_holder(machine: str, facts: ExplainFacts) -> LinkSubject:
    """Return the holder of a Machine's lock as the next subject: a running operation, or the lock itself."""
    holder = facts.machines[machine].status.active_operation
    live = holder is not None and not holder.lost and _live(holder, facts) is not None
    return (
        LinkSubject(Topic.OPERATION, holder.name) if live and holder is not None else LinkSubject(Topic.LOCK, machine)
    )


def _live(holder: ActiveOperation, facts: ExplainFacts) -> MachineOperation | None:
    """Return the operation that holds a lock, if it has not ended."""
    return next((one for one in facts.operations.values() if one.metadata.uid == holder.uid and not one.terminal), None)


def explain_lock(machine: str, facts: ExplainFacts) -> Explained:
    """Explain the lock of a Machine that no running operation holds."""
    found = facts.machines[machine]
    holder = found.status.active_operation
    if holder is None:
        return Explained(ExplainLink(f"machine/{machine}", "it has released the lock", LinkCode.LOCK_RELEASED))
    if is_recreation(holder):
        return _recreation(found, holder)
    if holder.kind not in _KINDS:  # machina provisions the Machine
        return Explained(
            _slot(found, holder, "machina releases the lock when the attempt ends"), LinkSubject(Topic.MACHINE, machine)
        )
    if holder.lost:
        step = f"the next operation of {holder.executor} observes the host, then takes the lock"
        return Explained(_slot(found, holder, step), LinkSubject(Topic.EXECUTOR, holder.executor))
    if any(one.metadata.uid == holder.uid for one in facts.operations.values()):
        link = _slot(found, holder, f"it has ended: {holder.executor} releases the lock")
        return Explained(link, LinkSubject(Topic.EXECUTOR, holder.executor))
    if facts.hides(MACHINE_OPERATIONS):
        return Explained(_slot(found, holder, "you have no permission to read its operation"))
    link = _slot(found, holder, "its operation does not exist any more: machina releases the lock")
    return Explained(link, LinkSubject(Topic.MACHINA) if facts.silence(MACHINA) is not None else None)


def _slot(machine: Machine, holder: ActiveOperation, step: str) -> ExplainLink:
    gate = lock_gate(machine, holder)
    return ExplainLink(
        f"machine/{machine.name}", gate.text, gate.reason, held_by=gate.held_by, since=holder.since, next_step=step
    )


def _recreation(machine: Machine, holder: ActiveOperation) -> Explained:
    """Explain a recreation of the node by the agent; a condition has its progress."""
    reported = condition(machine, ConditionType.NODE_UPDATED)
    how_far = f": {reported.message}" if reported is not None and reported.message else ""
    step = (
        f"the agent releases the lock at its end; after {NO_PROGRESS_S:.0f} s without progress, host "
        "operations take precedence"
    )
    link = ExplainLink(
        f"machine/{machine.name}",
        f"{holder.executor} recreates the node{how_far}",
        LinkCode.NODE_RECREATION,
        held_by=holder.executor,
        since=holder.since,
        next_step=step,
    )
    return Explained(link)


# Processes


def explain_executor(name: str, facts: ExplainFacts) -> Explained:
    """Explain whether an executor is alive, and what it may be busy with."""
    kind, _, where = name.partition("/")
    match kind:
        case ExecutorKind.AGENT:
            return _agent(where, facts)
        case ExecutorKind.METALMAN:
            return _metalman(name, where, facts)
        case _:
            return _cloud(name, where, facts)


def _metalman(name: str, site: str, facts: ExplainFacts) -> Explained:
    silence = facts.silence(name)
    if silence is None:
        text = "is running: it works on other operations, or waits for the answer of a BMC"
        fix = Fix(f"{PLUGIN} machine operation list --phase InProgress", "shows its operations in progress")
        return Explained(ExplainLink(name, text, LinkCode.RUNNING, next_step=_CLAIMS_OLDEST, fixes=(fix,)))
    deployment = f"deployment/metalman-controller-{site}" if site else "deployment/metalman-controller"
    fixes = (
        Fix(f"{PLUGIN} site deploy-pxe --site {site}", "deploys it, if it is not deployed"),
        Fix(f"kubectl -n {NAMESPACE} logs {deployment} --tail=50", "shows why it stopped"),
    )
    return Explained(
        ExplainLink(
            name,
            f"is not running: {silence}",
            LinkCode.NOT_RUNNING,
            next_step=_SUCCESSOR_CONTINUES,
            fixes=fixes if site else fixes[1:],
        )
    )


_CLAIMS_OLDEST: Final = "it claims the oldest operation as soon as it has capacity"
_SUCCESSOR_CONTINUES: Final = "its successor continues from the recorded state"


def _cloud(name: str, where: str, facts: ExplainFacts) -> Explained:
    site, _, provider = where.rpartition("/")
    if facts.embedded:
        return _explain_embedded_provider(name, facts)
    beats, silence = facts.leases_of_process(name), facts.silence(name)
    if not beats:
        scope = f"site {site} and provider {provider}" if site else f"provider {provider}"
        text = f"has no Lease here: no machine-ops-controller has run for {scope}, or it is deployed separately"
        if facts.leader_leases is None:
            text = "has a Lease that cannot be read, so its state is unknown"
        install = f"{PLUGIN} install --enable-machine-ops-controller --provider {shlex.quote(provider)}"
        fixes = (
            Fix(install, "deploys machine-ops-controller for all sites"),
            Fix("kubectl get deployments --all-namespaces", "shows whether one is deployed"),
        )
        code = LinkCode.NOT_READABLE if facts.leader_leases is None else LinkCode.NOT_RUNNING
        return Explained(ExplainLink(name, text, code, next_step=_CLAIMS, fixes=fixes))
    scopes = scopes_of(name)
    logs = tuple(
        Fix(
            f"kubectl -n {NAMESPACE} logs deployment/{deployment_name(*scopes[beat.name])} --tail=50",
            f"shows {'why it stopped' if silence else 'its current work'}",
        )
        for beat in beats
    )
    if silence is not None:
        what = f"is not running: {silence}"
        link = ExplainLink(name, what, LinkCode.NOT_RUNNING, next_step=_SUCCESSOR_CONTINUES, fixes=logs)
        return Explained(link)
    text = f"is running: it works on other operations, waits for its cloud, or has no provider {provider}"
    return Explained(ExplainLink(name, text, LinkCode.RUNNING, next_step=_CLAIMS_OLDEST, fixes=logs))


def _explain_embedded_provider(name: str, facts: ExplainFacts) -> Explained:
    """Explain a provider process of `unbounded up`, or a controller elsewhere that a Lease shows."""
    absence, beats = facts.absence(name), facts.leases_of_process(name)
    text = "is a process of `unbounded up`, and is running: it works on other operations, or waits for its cloud"
    if absence is not None:
        text = f"is a process of `unbounded up`, and {'does not serve' if absence.is_problem else 'is starting'}"
        text += f": {absence.whole}"
    fixes = [Fix("machine-ops-controller providers", "lists the installed providers, where `unbounded up` runs")]
    for beat in beats:
        who = f"Lease {NAMESPACE}/{beat.name}, last renewed at {beat.renewed} by {beat.holder or 'nobody'}"
        text += f"; or it is deployed separately ({who})"
        lookup = f"kubectl -n {NAMESPACE} get lease {beat.name} -o yaml"
        fixes.insert(0, Fix(lookup, "shows the holder: see the log of that controller"))
    code = LinkCode.RUNNING
    if absence is not None:
        code = LinkCode.NOT_RUNNING if absence.is_problem else LinkCode.STARTING
    return Explained(ExplainLink(name, text, code, next_step=_CLAIMS, fixes=tuple(fixes)))


_CLAIMS: Final = "it claims the operation once it is running"


def explain_machina(_name: str, facts: ExplainFacts) -> Explained:
    """Explain machina, which writes the wait reasons of operations, and watches Machines."""
    silence = facts.silence(MACHINA)
    if silence is None:
        return Explained(
            ExplainLink(
                MACHINA,
                "is running: it acts within seconds",
                LinkCode.RUNNING,
                next_step="run the command again in a few seconds",
            )
        )
    fixes = (
        Fix(f"kubectl -n {NAMESPACE} rollout restart deployment/machina-controller", "starts it again"),
        Fix(f"kubectl -n {NAMESPACE} logs deployment/machina-controller --tail=50", "shows why it stopped"),
        Fix(f"{PLUGIN} install", "deploys it, if it is not deployed"),
    )
    what = f"is not running: {silence}"
    link = ExplainLink(MACHINA, what, LinkCode.NOT_RUNNING, next_step=_SUCCESSOR_CONTINUES, fixes=fixes)
    return Explained(link)


def _agent(machine: str, facts: ExplainFacts) -> Explained:
    found, node = facts.machines.get(machine), facts.nodes.get(machine)
    name = f"{ExecutorKind.AGENT}/{machine}"
    heard = facts.node_leases.get(machine)
    renewed = (heard.spec.renew_time or "") if heard is not None else ""
    lease = f"; the lease of its Node was last renewed at {renewed}" if renewed else "; its Node has no lease"
    if found is not None and not has_reported(found):
        text = "has not reported to this Machine yet: its host has no agent, or has not joined"
        step = "it claims operations as soon as it has joined"
        return Explained(
            ExplainLink(name, text, LinkCode.NOT_REPORTED, next_step=step, fixes=_agent_install_fixes(found, node)),
            LinkSubject(Topic.MACHINE, machine),
        )
    fixes = agent_fixes(found)
    if node is not None and not node.ready:
        step = "it claims operations when its host is back"
        link = ExplainLink(name, f"is silent{lease}", LinkCode.SILENT, next_step=step)
        return Explained(link, LinkSubject(Topic.NODE, machine))
    version = found.status.agent.version if found is not None and found.status.agent is not None else ""
    text = f"(version {version}) does not claim it, although its Node is alive{lease}" if node else f"is silent{lease}"
    step = "it claims operations when it runs again"
    return Explained(ExplainLink(name, text, LinkCode.SILENT, next_step=step, fixes=fixes))


def _agent_install_fixes(machine: Machine, node: Node | None) -> tuple[Fix, ...]:
    """Return fixes that install an agent on a host; none where the Machine itself is blocked, which its own link
    explains.
    """
    if machine.spec.kubernetes is None:
        does = "sets spec.kubernetes: a host gets an agent when it becomes a node"
        return (Fix(f"kubectl edit mach {machine.name}", does),)
    if node is None or not node.ready:
        return ()
    status, _ = agent_fixes(machine)
    by_hand = Fix(manual_bootstrap(machine), "prints the commands that install an agent")
    if not _is_rebooted_from_outside(machine):
        return (status, by_hand)
    return (status, by_hand, Fix(f"{PLUGIN} machine host-reboot {machine.name}", "reboots its host without an agent"))


def _is_rebooted_from_outside(machine: Machine) -> bool:
    return executor_of(OperationKind.HOST_REBOOT, machine) in {ExecutorKind.METALMAN, ExecutorKind.CLOUD}


def explain_node(machine: str, facts: ExplainFacts) -> Explained:
    """Explain a Node that is not Ready, with kubelet's message."""
    node = facts.nodes[machine]
    ready = node.ready_condition
    why = (
        "nothing has reported its conditions"
        if ready is None
        else ready.message or ready.reason or "no reason was reported"
    )
    fixes: tuple[Fix, ...] = (Fix(f"kubectl describe node {node.metadata.name}", "shows its other conditions"),)
    found = facts.machines.get(machine)
    if found is None or (has_reported(found) and not _is_rebooted(machine, facts)):
        reboot = f"{PLUGIN} machine node-reboot {machine}"
        fixes = (*fixes, Fix(reboot, "restarts the node, if its agent is alive"))
    return Explained(
        ExplainLink(f"node/{node.metadata.name}", f"is not Ready: {why}", LinkCode.NODE_NOT_READY, fixes=fixes)
    )


def _is_rebooted(machine: str, facts: ExplainFacts) -> bool:
    on_it = (one for one in facts.on(machine) if not one.terminal)
    return any(one.spec.operation_kind == OperationKind.NODE_REBOOT for one in on_it)
