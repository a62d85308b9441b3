"""A Machine as a link: its phase, its blocker, and the next subject. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from msgspec import structs

from unbounded.api.conditions import ConditionStatus, ConditionType
from unbounded.api.core import NODES
from unbounded.api.disruption import MAINTENANCE, DisruptionStage
from unbounded.api.machine import MACHINES, PROVISIONING, JoinPurpose, Machine, MachinePhase, RecentOperation
from unbounded.api.machine_status import AgentStage
from unbounded.api.meta import Condition
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind, OperationPhase
from unbounded.api.phase import CurrentPhase, machine_phase
from unbounded.containercloud.hosts.model import host_of_machine
from unbounded.explain.blockers import lock_holder
from unbounded.explain.conditions import agent_fixes, blocking_condition, condition, is_note, notices_of
from unbounded.explain.configurations import explain_update, image_note
from unbounded.explain.facts import MACHINA, ExplainFacts
from unbounded.explain.fix_commands import has_reported, manual_bootstrap, patch_machine
from unbounded.explain.fixes import fixes_for_disruption, fixes_for_maintenance
from unbounded.explain.links import PLUGIN, Explained, ExplainLink, Fix, LinkCode, LinkSubject, Topic
from unbounded.explain.ssh_fixes import OF_RESET
from unbounded.machina.csr_approval.plan import JOIN_ALLOWED, JOIN_REFUSED, open_causes
from unbounded.machina.machines.deletion import has_finalizer, requested_reset
from unbounded.machina.machines.eligibility import is_image_based, reason_against
from unbounded.machina.machines.model import PassIntervals
from unbounded.machina.settings import ProvisioningSettings
from unbounded.operations import reasons
from unbounded.operations.claim_gates import in_maintenance, order, paused
from unbounded.operations.executor_selection import ExecutorKind, executor_name
from unbounded.operations.machine_counters import due

Check = Callable[[Machine, ExplainFacts], Explained | None]


def explain_machine(name: str, facts: ExplainFacts) -> Explained:
    """Explain what blocks a Machine; the first check with a result decides."""
    machine = facts.machines.get(name)
    if machine is None:
        fix = Fix("kubectl get mach", "shows the existing ones")
        if facts.hides(MACHINES):
            words = "cannot be read: you have no permission"
            return Explained(ExplainLink(f"machine/{name}", words, LinkCode.NOT_READABLE))
        return Explained(ExplainLink(f"machine/{name}", "does not exist", LinkCode.NOT_FOUND, fixes=(fix,)))
    found = next(found for check in CHECKS if (found := check(machine, facts)) is not None)
    update = explain_update(machine, facts)
    found = found if update is None else _with_update(found, update)
    return replace(found, link=structs.replace(found.link, what=f"{found.link.what}{image_note(machine, facts)}"))


def _with_update(found: Explained, update: Explained) -> Explained:
    """Return a link with the state of the rolling update, which is the cause where nothing else is."""
    link, its = found.link, update.link
    link = structs.replace(link, what=f"{link.what}; {its.what}", fixes=tuple(dict.fromkeys((*link.fixes, *its.fixes))))
    if not link.held_by:
        link = structs.replace(link, code=its.code, held_by=its.held_by, since=its.since)
    return Explained(link, found.then or update.then)


def phase_of(machine: Machine, facts: ExplainFacts) -> CurrentPhase:
    """Return the phase computed from the present facts; the phase in the status may be older.

    It needs the Node. For a reader who may not read Nodes, the phase in the status counts.
    """
    status = machine.status
    if facts.hides(NODES) and status.phase is not None:
        return CurrentPhase(MachinePhase(status.phase), status.message or "", status.reason or "")
    return machine_phase(
        machine.spec,
        conditions=machine.status.conditions,
        node=facts.nodes.get(machine.name),
        slot=machine.status.active_operation,
        join=machine.status.join,
    )


def _link(
    machine: Machine,
    what: str,
    code: str,
    *,
    held_by: str = "",
    since: str = "",
    until: str = "",
    next_step: str = "",
    fixes: tuple[Fix, ...] = (),
) -> ExplainLink:
    about = f"machine/{machine.name}"
    return ExplainLink(about, what, code, held_by=held_by, since=since, until=until, next_step=next_step, fixes=fixes)


def _phase_text(machine: Machine, facts: ExplainFacts) -> str:
    now = phase_of(machine, facts)
    return f"{now.phase}: {now.message}"


def _by_machina(link: ExplainLink, facts: ExplainFacts) -> Explained:
    """Return a link that machina resolves, with machina as the next subject if it is away."""
    return Explained(link, LinkSubject(Topic.MACHINA) if facts.silence(MACHINA) is not None else None)


def _open_operation(machine: Machine, facts: ExplainFacts) -> LinkSubject | None:
    """Return the operation on it that is due first."""
    waiting = sorted((one for one in facts.on(machine.name) if not one.terminal), key=order)
    return LinkSubject(Topic.OPERATION, waiting[0].name) if waiting else None


# The checks, in their order


def _being_deleted(machine: Machine, facts: ExplainFacts) -> Explained | None:
    if machine.metadata.deletion_timestamp is None:
        return None
    if not has_finalizer(machine):
        return _foreign_finalizers(machine)
    holders = ", ".join(machine.metadata.finalizers)
    link = _link(
        machine,
        f"is being deleted, and waits for its finalizers: {holders}{_reset_text(machine)}",
        LinkCode.BEING_DELETED,
        held_by=holders,
        since=machine.metadata.deletion_timestamp,
        next_step=f"its host is reset first, for at most {PassIntervals().reset_s / 60:.0f} minutes; then the "
        "Machine is deleted",
        fixes=(
            *_reset_fixes(machine),
            Fix(patch_machine(machine.name, _NO_RESET), "deletes it without a reset; its host stays as it is"),
        ),
    )
    reset = requested_reset(machine, facts.operations.values())
    if reset is not None and not reset.terminal:
        return Explained(link, LinkSubject(Topic.OPERATION, reset.name))
    if paused(machine, facts.pause) is not None:
        return Explained(link, LinkSubject(Topic.PAUSE, machine.name))
    return _by_machina(link, facts)


def _foreign_finalizers(machine: Machine) -> Explained:
    """Explain finalizers of other projects: only their owners may remove them."""
    holders = ", ".join(machine.metadata.finalizers)
    fix = Fix(
        f"kubectl get mach {machine.name} -o jsonpath='{{.metadata.finalizers}}'",
        "shows the remaining finalizers; their owners remove them",
    )
    link = _link(
        machine,
        f"is being deleted, and waits for finalizers of others: {holders}" if holders else "is being deleted",
        LinkCode.BEING_DELETED,
        held_by=holders,
        since=machine.metadata.deletion_timestamp or "",
        next_step=f"it is deleted as soon as {'those are' if ',' in holders else 'that is'} removed" if holders else "",
        fixes=(fix,) if holders else (),
    )
    return Explained(link)


_NO_RESET: Final = {"spec": {"resetOnDelete": False}}


def _reset_text(machine: Machine) -> str:
    """Return the progress of the reset, as machina wrote it."""
    reported = condition(machine, ConditionType.HOST_RESET)
    return f"; {reported.message}" if reported is not None and reported.message else ""


def _reset_fixes(machine: Machine) -> tuple[Fix, ...]:
    """Return fixes for the cause that keeps the host from being reset."""
    reported = condition(machine, ConditionType.HOST_RESET)
    remedy = OF_RESET.get(reported.reason) if reported is not None else None
    return remedy(machine, reported) if reported is not None and remedy is not None else ()


def _locked(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check whether an operation, or an agent, holds the Machine's lock."""
    holder = machine.status.active_operation
    if holder is None or holder.kind == PROVISIONING:
        return None
    link = _link(machine, _phase_text(machine, facts), reasons.SLOT_HELD, held_by=holder.name, since=holder.since)
    return Explained(link, lock_holder(machine.name, facts))


def _powered_off(machine: Machine, facts: ExplainFacts) -> Explained | None:
    off = condition(machine, ConditionType.POWERED_OFF)
    if off is None or off.status != ConditionStatus.TRUE:
        return None
    following = _open_operation(machine, facts)
    operation = None if following is None else facts.operations.get(following.name)
    fixes: tuple[Fix, ...] = ()
    if operation is None or OperationKind(operation.spec.operation_kind) not in _SWITCHING:
        fixes = (Fix(f"{PLUGIN} machine power-on {machine.name}", "switches it on"),)
    return Explained(_link(machine, _phase_text(machine, facts), off.reason, since=off.since, fixes=fixes), following)


_SWITCHING: Final = frozenset({OperationKind.HOST_REPLACE, OperationKind.HOST_POWER_ON, OperationKind.HOST_REBOOT})
"""Operations that switch on a host that is off."""


def _paused(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a pause where work is pending; other problems are still shown when the pause ends."""
    gate, now = paused(machine, facts.pause), phase_of(machine, facts)
    if gate is None or now.phase in {MachinePhase.READY, MachinePhase.JOINING}:
        return None
    words, since, fixes = _phase_text(machine, facts), "", tuple[Fix, ...]()
    if (found := blocking_condition(machine)) is not None:
        trouble, reported = found
        words, since, fixes = (
            _condition_text(now, reported),
            trouble.since(machine, reported),
            trouble.fixes(machine, reported),
        )
    words = words if gate.text in words else f"{words}; {gate.text}"
    link = _link(machine, words, gate.reason, held_by=gate.held_by, since=since, fixes=fixes)
    return Explained(link, LinkSubject(Topic.PAUSE, machine.name))


def explain_condition(name: str, facts: ExplainFacts) -> Explained:
    """Explain the condition that blocks a Machine, which must exist."""
    return _explain_blocking_condition(facts.machines[name], facts) or explain_machine(name, facts)


def _blocked(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a condition with a problem. On a Machine that serves, a waiting operation has precedence."""
    serves = phase_of(machine, facts).phase is MachinePhase.READY
    return (
        None if serves and _open_operation(machine, facts) is not None else _explain_blocking_condition(machine, facts)
    )


def _explain_blocking_condition(machine: Machine, facts: ExplainFacts) -> Explained | None:
    found = blocking_condition(machine)
    if found is None:
        return None
    trouble, reported = found
    link = _link(
        machine,
        _condition_text(phase_of(machine, facts), reported),
        reported.reason,
        held_by=f"condition {reported.type}={reported.status} ({reported.reason})",
        since=trouble.since(machine, reported),
        until=trouble.until(machine),
        next_step=trouble.next_step,
        fixes=trouble.fixes(machine, reported),
    )
    return _by_machina(link, facts) if reported.type in _MACHINAS else Explained(link)


def _condition_text(now: CurrentPhase, reported: Condition) -> str:
    """Return the phase with the message of a condition, after its own message where the Machine serves all the same."""
    words = reported.message or reported.reason
    if now.phase is MachinePhase.READY and words not in now.message:
        words = f"{now.message}; {words}"
    return f"{now.phase}: {words}"


_MACHINAS: Final = frozenset(
    {
        ConditionType.SSH_REACHABLE,
        ConditionType.PROVISIONING,
        ConditionType.PROVISIONED,
        ConditionType.CONFIGURATION_PENDING,
    }
)


def _join_refused(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check whether a certificate request of its agent or its kubelet was denied."""
    refused = next((one for one in reversed(facts.events) if one.reason in _JOINS), None)
    if refused is None or refused.reason != JOIN_REFUSED or facts.nodes.get(machine.name) is not None:
        return None
    may = all(open_causes(machine, purpose) for purpose in JoinPurpose)
    asks = "the host requests it again"
    link = _link(
        machine,
        f"{phase_of(machine, facts).phase}: {refused.message}",
        refused.reason,
        held_by="machina, which approves certificates",
        since=refused.last_timestamp or "",
        next_step=f"it may join now; {asks}, and needs a token that was not created for another Machine"
        if may
        else asks,
        fixes=(_new_token(machine) if may else Fix(_allow_join(machine), "lets it join once more"),),
    )
    return Explained(link)


_JOINS: Final = frozenset({JOIN_REFUSED, JOIN_ALLOWED})


def _new_token(machine: Machine) -> Fix:
    """Return the fix for a host with a wrong token."""
    if machine.spec.ssh is not None:
        return Fix(_allow_join(machine), "sets up its host over SSH, with another token")
    return Fix(manual_bootstrap(machine), "prints the commands that give its host another token")


def _allow_join(machine: Machine) -> str:
    return f"{PLUGIN} machine allow-join {machine.name}"


def _provisioning(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check whether machina is setting up the host."""
    attempt = machine.status.provisioning
    if attempt is None or attempt.ended_at is not None or machine.spec.ssh is None:
        return None
    minutes = ProvisioningSettings().provisioning_timeout_s / 60
    link = _link(
        machine,
        _phase_text(machine, facts),
        LinkCode.PROVISIONING,
        held_by=MACHINA,
        since=attempt.started_at,
        next_step=f"the attempt ends by itself: its limit is {minutes:.0f} minutes unless --provisioning-timeout "
        "changes it",
        fixes=(Fix(f"{PLUGIN} logs {machine.name} --part install --follow", "shows its output"),),
    )
    return _by_machina(link, facts)


def _not_set_up(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a reachable host that machina must not set up, as it has an agent or a Node of other origin."""
    node = facts.nodes.get(machine.name)
    if machine.spec.ssh is None or machine.spec.kubernetes is None or machine.status.provisioning is not None:
        return None
    words = reason_against(machine, node)
    if words is None or (node is not None and node.ready):
        return None
    if is_image_based(machine):
        fix = Fix(f"{PLUGIN} machine replace {machine.name}", "writes its image")
    else:
        fix = Fix(_allow_join(machine), "sets up its host over SSH")
    link = _link(machine, f"{phase_of(machine, facts).phase}: {words}", LinkCode.NOT_SET_UP, fixes=(fix,))
    return Explained(link, LinkSubject(Topic.NODE, machine.name) if node is not None else None)


_WORK: Final[Mapping[str, str]] = {
    AgentStage.PREPARING: "downloads what the Node needs, and builds its root file system",
    AgentStage.STARTING: "has started the node, and waits for kubelet to register the Node",
}


def _joining(machine: Machine, facts: ExplainFacts) -> Explained | None:
    if phase_of(machine, facts).phase is not MachinePhase.JOINING:
        return None
    reported = condition(machine, ConditionType.PROVISIONED) or condition(machine, ConditionType.AGENT_BOOTSTRAPPED)
    agent = machine.status.agent
    if agent is None or not (agent.version or agent.stage):
        heard = "its agent has not reported"
    else:
        version = f" ({agent.version})" if agent.version else ""
        heard = f"its agent{version} {_WORK.get(agent.stage or '', 'has reported, but kubelet has not')}"
    link = _link(
        machine,
        f"{_phase_text(machine, facts)}; {heard}",
        LinkCode.JOINING,
        held_by=f"unbounded-agent/{machine.name}",
        since=reported.since if reported is not None else "",
        next_step="it is Ready as soon as its Node registers",
        fixes=agent_fixes(machine),
    )
    return Explained(link)


def _counted(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a raised counter without its operation."""
    due_operation = due(machine)
    if due_operation is None or due_operation.name in facts.operations or facts.hides(MACHINE_OPERATIONS):
        return None
    executor = executor_name(due_operation.kind, machine)
    text = f"spec.operations requests {due_operation.kind} {due_operation.name}, which does not exist yet"
    if executor is None:
        fix = Fix(f"kubectl edit mach {machine.name}", "sets its BMC (spec.pxe.redfish), which counters need")
        return Explained(
            _link(machine, f"{text}: counters need spec.pxe.redfish", LinkCode.COUNTER_RAISED, fixes=(fix,))
        )
    link = _link(
        machine, text, LinkCode.COUNTER_RAISED, held_by=executor, next_step="metalman creates it within seconds"
    )
    return Explained(link, LinkSubject(Topic.EXECUTOR, executor) if facts.silence(executor) is not None else None)


def _operated(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for an operation that has not started."""
    waiting = _open_operation(machine, facts)
    if waiting is None:
        return None
    if _waits_for_agent(machine, facts.operations[waiting.name]):
        state = _unready(machine, facts) or _noticed(machine, facts) or _unblocked(machine, facts)
        return state if state.then is not None else Explained(state.link, waiting)
    return Explained(
        _link(machine, _phase_text(machine, facts), LinkCode.OPERATION_OPEN, held_by=waiting.name), waiting
    )


def _waits_for_agent(machine: Machine, operation: MachineOperation) -> bool:
    """Return whether the operation waits for an agent on the host, and not the Machine for the operation."""
    agent = f"{ExecutorKind.AGENT}/{machine.name}"
    return not has_reported(machine) and agent == executor_name(OperationKind(operation.spec.operation_kind), machine)


def _disrupted(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for maintenance, and for a Node that has not returned from an operation."""
    record, node = machine.status.disruption, facts.nodes.get(machine.name)
    is_maintained = record is not None and record.holder.kind == MAINTENANCE
    if record is None or not (is_maintained or record.stage == DisruptionStage.RETURNING):
        return None
    find = fixes_for_maintenance if is_maintained and in_maintenance(machine) else fixes_for_disruption
    link = _link(
        machine,
        f"{_phase_text(machine, facts)}; {record.message or record.holder}",
        record.reason or record.stage,
        held_by=record.held_by or "",
        since=record.since,
        fixes=find(machine, facts),
    )
    is_away = record.stage == DisruptionStage.RETURNING and node is not None and not node.ready
    return Explained(link, LinkSubject(Topic.NODE, machine.name) if is_away else None)


def _unready(machine: Machine, facts: ExplainFacts) -> Explained | None:
    node = facts.nodes.get(machine.name)
    if node is None or node.ready:
        return None
    link = _link(machine, _phase_text(machine, facts), LinkCode.NODE_NOT_READY, held_by=f"node/{node.metadata.name}")
    return Explained(link, LinkSubject(Topic.NODE, machine.name))


def _noticed(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a notice on a Machine that serves."""
    found = notices_of(machine)
    if explain_update(machine, facts) is not None:  # the Node is not to be deleted by hand
        found = [(notice, one) for notice, one in found if one.type != ConditionType.REPAVE_PENDING]
    first = next(((notice, reported) for notice, reported in found if not is_note(notice)), None)
    if first is None:
        return None
    notice, reported = first
    gone = reported.type == ConditionType.REPAVE_PENDING and facts.nodes.get(machine.name) is None
    link = _link(
        machine,
        f"{_phase_text(machine, facts)}{_notices(machine)}",
        reported.reason,
        held_by=f"condition {reported.type}={reported.status} ({reported.reason})",
        since=reported.since,
        next_step=notice.next_step,
        fixes=() if gone else tuple(fix for row, one in found for fix in row.fixes(machine, one)),
    )
    return Explained(link)


def _notices(machine: Machine) -> str:
    """Return the messages of all notices, to append to the phase."""
    return "".join(f"; {reported.message or reported.reason}" for _, reported in notices_of(machine))


def _of_host(machine: Machine, facts: ExplainFacts) -> Explained | None:
    """Check for a host of Container Cloud that is no node: container-cloud installs it for a Machine that claims it."""
    host = host_of_machine(machine)
    if host is None or machine.spec.kubernetes is not None:
        return None
    fix = Fix(f"{PLUGIN} why bmh/{host.name} -n {host.namespace}", "shows the state of the host")
    link = _link(
        machine, f"{_phase_text(machine, facts)}; it is that of BareMetalHost {host}", LinkCode.OF_HOST, fixes=(fix,)
    )
    return Explained(link)


def _unblocked(machine: Machine, facts: ExplainFacts) -> Explained:
    """Explain a Machine without a known blocker; if it is not Ready, machina has not handled it yet."""
    now = phase_of(machine, facts)
    if now.phase is MachinePhase.READY:
        gate = paused(machine, facts.pause)
        if gate is not None:
            link = _link(
                machine,
                f"{now.phase}: {now.message}; {gate.text}{_notices(machine)}",
                gate.reason,
                held_by=gate.held_by,
            )
            return Explained(link, LinkSubject(Topic.PAUSE, machine.name))
        is_busy = _open_operation(machine, facts) is not None or explain_update(machine, facts) is not None
        idle = "" if is_busy else "; nothing blocks it"
        return Explained(_link(machine, f"{now.phase}: {now.message}{idle}{_notices(machine)}", LinkCode.READY))
    if machine.spec.ssh is not None:
        return Explained(
            _link(machine, f"{now.phase}: {now.message}", now.reason or now.phase, held_by=MACHINA),
            LinkSubject(Topic.MACHINA),
        )
    by = "lets its provider recreate it" if machine.provider else "installs it from the network, where it has a BMC"
    fixes: tuple[Fix, ...] = (
        Fix(f"{PLUGIN} machine replace {machine.name}", by),
        Fix(manual_bootstrap(machine), "prints the commands to run on it"),
    )
    last = _last(machine)
    if last is not None and last.reason == reasons.TARGET_CHANGED:  # a replacement would act on the other host
        fixes = (Fix(f"{PLUGIN} why operation/{last.name}", "shows its former binding"),)
    what = f"{now.phase}: {now.message}{_last_failure(machine)}"
    return _by_machina(
        _link(machine, what, LinkCode.NOT_SET_UP, held_by="an administrator, by setting up its host", fixes=fixes),
        facts,
    )


def _last_failure(machine: Machine) -> str:
    """Describe the failure of the last operation, which may be deleted and may have left the host half-done."""
    last = _last(machine)
    if last is None or last.phase != OperationPhase.FAILED:
        return ""
    return f"; its last operation, {last.kind} {last.name}, failed: {last.reason}: {last.message}"


def _last(machine: Machine) -> RecentOperation | None:
    return next(reversed(machine.status.recent_operations), None)


CHECKS: Final[tuple[Check, ...]] = (
    _being_deleted,
    _locked,
    _powered_off,
    _paused,
    _blocked,
    _provisioning,
    _join_refused,
    _not_set_up,
    _joining,
    _counted,
    _operated,
    _disrupted,
    _unready,
    _noticed,
    _of_host,
    _unblocked,
)
