"""Commands that resolve a cause, by its reason. Capital words in them are placeholders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from unbounded.api.conditions import split_commands
from unbounded.api.disruption import DisruptionStage, DisruptionStatus
from unbounded.api.machine import Machine
from unbounded.api.machine_names import name_of
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.containercloud.hosts.model import host_with_login
from unbounded.explain import fix_commands
from unbounded.explain.cloud_fixes import CLOUD
from unbounded.explain.conditions import agent_fixes
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.links import PLUGIN, Fix
from unbounded.metalman import reasons as metal
from unbounded.metalman.reasons import grant_commands
from unbounded.operations import reasons
from unbounded.operations.execution_record import run_of

NAMED: Final = "is the one that the message means"


def fixes_for(
    reason: str, machine: Machine | None, operation: MachineOperation, facts: ExplainFacts
) -> tuple[Fix, ...]:
    """Return fixes for the reason for which an operation waits or has failed; empty where none is known."""
    remedy = OPERATION.get(reason)
    found = () if remedy is None else remedy(machine, operation, facts)
    named = split_commands(operation.status.message or "")[1]
    found += tuple(Fix(one, NAMED) for one in named if one not in {fix.command for fix in found})
    under_way = not operation.terminal and run_of(operation) is not None
    return tuple(fix for fix in found if not (under_way and fix.once_ended))


def _password(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None or machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return ()
    if (host := host_with_login(machine)) is not None:
        return (Fix(f"{PLUGIN} why bmh/{host.name} -n {host.namespace}", "names the login of the host to correct"),)
    return (fix_commands.secret_fix(machine.spec.pxe.redfish.password_ref, "--from-literal={key}=PASSWORD"),)


def _password_grant(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None or machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return ()
    role, binding = grant_commands(machine.spec.pxe.redfish.password_ref)
    return (
        Fix(role, "creates the right to change the Secret, which a policy limits to rotations"),
        Fix(binding, "gives it to metalman"),
    )


def _certificate(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    change = {"status": {"redfish": {"certFingerprint": None}}}
    return (
        Fix(
            fix_commands.patch_machine(machine.name, change, status=True),
            "pins the certificate that the BMC presents now, if the change is expected",
        ),
    )


def _redfish(change: Mapping[str, Any], does: str) -> fix_commands.Remedy:
    def remedy(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
        if machine is None:
            return ()
        return (Fix(fix_commands.patch_machine(machine.name, {"spec": {"pxe": {"redfish": change}}}), does),)

    return remedy


def _unsupported(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    fixes = (Fix(f"kubectl edit mach {machine.name}", "sets its BMC (spec.pxe.redfish), or a provider"),)
    if operation.spec.operation_kind == OperationKind.HOST_REBOOT and machine.spec.ssh is not None:
        return (*fixes, Fix(f"{PLUGIN} why machine/{machine.name}", "explains why its agent has not reported"))
    return fixes


def _parameters(_machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    target = f" --machine {operation.spec.machine_ref}" if operation.spec.machine_ref else " -l SELECTOR"
    kind = operation.spec.operation_kind
    name = fix_commands.fresh_name(operation)
    words = f"{PLUGIN} machine operation create {name} --kind {kind}{target} --param NAME=VALUE"
    return (Fix(words, "requests it with valid parameters", once_ended=True),)


def _no_machine(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is not None:  # it exists, and is being deleted
        return ()
    if fix_commands.is_of_cloud(operation):
        does = "creates it again, with its former spec.provider and spec.providerID"
        return (Fix("kubectl apply -f MACHINE.yaml", does, once_ended=True), fix_commands.create_again(operation))
    return (
        Fix("kubectl get mach", "shows the existing ones"),
        _register(operation.spec.machine_ref or "", facts),
    )


def _register(name: str, facts: ExplainFacts) -> Fix:
    """Return the command that registers the Machine of this name, whose prefix is its site."""
    login = "--host HOST --ssh-username USER --ssh-private-key FILE"
    for site, rest in _splits(name):
        if facts.is_site(site) and name_of(site, rest) == name:
            return Fix(f"{PLUGIN} machine register --site {site} --name {rest} {login}", "creates it")
    return Fix(f"{PLUGIN} machine register --site SITE --name NAME {login}", "creates one with the name SITE-NAME")


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """Yield SITE and NAME of SITE-NAME, the longest site first."""
    at = name.rfind("-")
    while at > 0:
        if at + 1 < len(name):
            yield name[:at], name[at + 1 :]
        at = name.rfind("-", 0, at)


def _definitions(_machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} install", "updates the CRDs"), fix_commands.create_again(operation))


def _image(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None or machine.spec.pxe is None:
        return ()
    change = {"spec": {"pxe": {"image": "IMAGE"}}}
    return (
        Fix(fix_commands.patch_machine(machine.name, change), "sets another image"),
        fix_commands.create_again(operation),
    )


def _other_target(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for a changed target. A new request is not proposed, as it would act on the other host."""
    if machine is None:
        return ()
    name, change = machine.name, {"spec": {"providerID": "PROVIDER-ID"}}
    lookup = Fix(f"kubectl get mach {name} -o yaml", "shows its present binding, on which operations would act")
    if not machine.provider:
        return (lookup,)
    does = f"binds it again to the host that {operation.name} was created for"
    return (lookup, Fix(fix_commands.patch_machine(name, change), does, once_ended=True))


def _drain(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands for a drain that is blocked: for its first blockers, and to give it up."""
    if machine is None:
        return ()
    if operation.terminal:
        return _undrained(machine, facts)
    cancel = Fix(f"{PLUGIN} machine operation cancel {operation.name}", "gives up, and uncordons the Node")
    return (*_undrained(machine, facts), cancel)


def blocker_fixes(held_by: str) -> tuple[Fix, ...]:
    """Return the command for a pod that blocks a drain, for its budget, or for the hold of an application.

    Args:
        held_by: the object, as in the status of the drain.
    """
    kind, _, key = held_by.partition(" ")
    annotation, _, node = key.partition(" of Node ")
    if kind == "annotation" and node:
        remove = f"kubectl annotate node {node} {annotation}-"
        return (Fix(remove, "removes the hold, if the application does not need it"),)
    namespace, _, name = key.partition("/")
    if kind == "PodDisruptionBudget" and name:
        return (Fix(f"kubectl -n {namespace} describe pdb {name}", "shows why the budget allows no eviction"),)
    if kind == "Pod" and name:
        return (Fix(f"kubectl -n {namespace} delete pod {name}", "deletes the pod; nothing creates it again"),)
    return ()


def _unreturned(machine: Machine, record: DisruptionStatus, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands for a Node that has not proved its return."""
    node = facts.nodes.get(machine.name)
    if node is None:
        return agent_fixes(machine)[:1]
    shows = Fix(f"kubectl describe node {node.metadata.name}", "shows its conditions and its boot ID")
    info = node.status.node_info
    if not node.ready or record.boot_id is None or info is None or info.boot_id != record.boot_id:
        return (shows,)
    return (shows, Fix(f"{PLUGIN} machine host-reboot {machine.name}", "reboots the host again, for another boot ID"))


def _undrained(machine: Machine, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands for a refused cordon, for the pods that block, or for a Node that has not returned."""
    record, fixes = machine.status.disruption, list[Fix]()
    if record is not None and record.stage == DisruptionStage.RETURNING and record.worked:
        return _unreturned(machine, record, facts)
    if record is not None and record.stage == DisruptionStage.GRANTED:
        node = (record.held_by or "").removeprefix("Node ") or machine.name
        return (Fix(f"kubectl cordon {node} --dry-run=server", "shows the server's refusal to cordon the Node"),)
    held = [] if record is None or record.drain is None else [one.held_by or "" for one in record.drain.blockers]
    for holder in dict.fromkeys(held[:3]):
        fixes += blocker_fixes(holder)
    drained = facts.nodes.get(machine.name)
    name = machine.name if drained is None else drained.metadata.name
    pods = f"kubectl get pods --all-namespaces --field-selector spec.nodeName={name}"
    return (*fixes, Fix(pods, "shows the pods on the Node"))


_UNDRAINED: Final = (DisruptionStage.GRANTED, DisruptionStage.DRAINING, DisruptionStage.RETURNING)


def fixes_for_disruption(machine: Machine, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands for what the disruption of a Machine waits for."""
    record = machine.status.disruption
    if record is not None and record.stage in _UNDRAINED:
        return _undrained(machine, facts)
    if record is not None and record.reason == reasons.WAITING_FOR_BUDGET:
        return _budget_holder(machine, facts)
    is_held = record is not None and record.reason == reasons.WAITING_FOR_HOLD
    return blocker_fixes(record.held_by or "") if record is not None and is_held else ()


def fixes_for_maintenance(machine: Machine, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands for what the maintenance of a Machine waits for, and to end it."""
    found = fixes_for_disruption(machine, facts)
    return (*found, Fix(f"{PLUGIN} machine return {machine.name}", "ends the maintenance, and uncordons the Node"))


def _hold(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    record = None if machine is None else machine.status.disruption
    return () if record is None else blocker_fixes(record.held_by or "")


def _node(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    return (Fix(f"kubectl describe node {machine.name}", "shows the conditions of the other controller"),)


def _budget(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    holder = () if machine is None else _budget_holder(machine, facts)
    return (*holder, Fix(f"{PLUGIN} machine operation cancel {operation.name}", "gives up")) if holder else ()


def _budget_holder(machine: Machine, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return the commands that explain the holder of a grant of the budget that a Machine waits for."""
    record = machine.status.disruption
    kind, _, name = ("" if record is None else record.held_by or "").partition(" ")
    if kind != "MachineDisruptionBudget":
        return ()
    budget, message = facts.budgets.get(name), "" if record is None else record.message or ""
    grants = () if budget is None else budget.status.grants
    of_group = [one for one in grants if f"{one.machine} (" in message]
    if not of_group and budget is not None and not budget.spec.group_by:
        of_group = list(grants)
    first = [
        Fix(f"{PLUGIN} why machine/{one.machine}", f"explains {one.holder}, which has a grant since {one.since}")
        for one in of_group[:1]
    ]
    shows = "shows its groups, and the holders of its grants, and since when"
    return (*first, Fix(f"kubectl describe mdb {name}", shows))


def _outdated_agent(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    return (
        Fix(
            f"{PLUGIN} machine agent-upgrade {machine.name} --download-url URL",
            "installs an agent that waits for drains",
        ),
    )


OPERATION: Final[Mapping[str, fix_commands.Remedy]] = {
    reasons.AGENT_OUTDATED: _outdated_agent,
    reasons.DRAIN_TIMED_OUT: _drain,
    reasons.FOREIGN_MAINTENANCE: _node,
    reasons.WAITING_FOR_BUDGET: _budget,
    reasons.WAITING_FOR_DRAIN: _drain,
    reasons.WAITING_FOR_HOLD: _hold,
    reasons.UNSUPPORTED_TARGET: _unsupported,
    reasons.INVALID_PARAMETERS: _parameters,
    reasons.MACHINE_NOT_FOUND: _no_machine,
    reasons.WAITING_FOR_MACHINE: _no_machine,
    reasons.CRD_OUTDATED: _definitions,
    reasons.NOT_STARTED: fix_commands.fix_create_again,
    reasons.CANCELLED: fix_commands.fix_create_again,
    reasons.PREEMPTED: fix_commands.fix_create_again,
    reasons.TIMED_OUT: fix_commands.fix_create_again,
    reasons.DEADLINE_EXCEEDED: fix_commands.fix_create_again,
    reasons.EXECUTOR_LOST: fix_commands.fix_create_again,
    reasons.TARGET_CHANGED: _other_target,
    metal.CREDENTIALS_MISSING: _password,
    metal.CREDENTIALS_READ_ONLY: _password_grant,
    metal.CREDENTIALS_REFUSED: _password,
    metal.CERTIFICATE_CHANGED: _certificate,
    metal.CERTIFICATE_UNTRUSTED: _redfish({"caBundle": "PEM"}, "trusts another authority"),
    metal.ADDRESS_INVALID: _redfish({"url": "https://BMC"}, "names the BMC"),
    metal.IMAGE_NOT_READY: _image,
    metal.NO_IMAGE: _image,
    **CLOUD,
}
