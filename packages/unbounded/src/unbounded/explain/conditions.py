"""Conditions of a Machine: what happens next by itself, and the commands that resolve each. Two tables.

`TABLE` has the conditions that block a Machine, and `NOTICES` those of a Machine that serves with a deficiency. A row
without a fix is a note: a fact to know before acting.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from unbounded.agent.paths import DAEMON_UNIT
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine, MachinePhase
from unbounded.api.machine_status import accept_command
from unbounded.api.meta import Condition
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.explain.fix_commands import facts_fixes, patch_machine, ssh_command
from unbounded.explain.links import PLUGIN, Fix
from unbounded.explain.ssh_fixes import BEFORE_LOGIN, OF_KEYS, OF_LOGIN, ON_HOST, Remedy
from unbounded.machina.machines.model import INTERVALS_BY_PHASE, PassIntervals
from unbounded.machina.settings import ProvisioningSettings


@dataclass(frozen=True)
class ConditionRow:
    """A condition that reports a problem.

    Attributes:
        next_step: what happens without intervention.
        retried: whether the status has the time of that.
    """

    type: ConditionType
    statuses: frozenset[ConditionStatus]
    reasons: frozenset[ConditionReason]
    next_step: str
    fixes: Remedy
    retried: bool = False

    def until(self, machine: Machine) -> str:
        """Return the time of the next attempt, RFC 3339; empty where it is unknown."""
        attempt = machine.status.provisioning
        return (attempt.retry_at or "") if self.retried and attempt is not None else ""

    def since(self, machine: Machine, reported: Condition) -> str:
        """Return when the cause began, RFC 3339: for repeated attempts, the first one that failed with it."""
        attempt = machine.status.provisioning
        if self.retried and attempt is not None and attempt.failure == reported.reason and attempt.failing_since:
            return attempt.failing_since
        return reported.since

    def fits(self, reported: Condition) -> bool:
        return reported.type == self.type and reported.status in self.statuses and reported.reason in self.reasons


def blocking_condition(machine: Machine) -> tuple[ConditionRow, Condition] | None:
    """Return the first condition of a Machine that blocks it, with its row."""
    reported = machine.status.conditions
    return next(((row, one) for row in TABLE for one in reported if row.fits(one)), None)


def condition_fixes(machine: Machine, kind: ConditionType) -> tuple[Fix, ...]:
    """Return the commands that resolve a condition of a Machine; empty where it blocks nothing."""
    reported = machine.current_condition(kind)
    row = None if reported is None else next((row for row in TABLE if row.fits(reported)), None)
    return () if row is None or reported is None else row.fixes(machine, reported)


def condition(machine: Machine, kind: ConditionType) -> Condition | None:
    """Return one condition of a Machine."""
    return next((one for one in machine.status.conditions if one.type == kind), None)


def _facts(_machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return facts_fixes()


def duplicate_host(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    """Return fixes that leave one Machine for a host."""
    which = "-o custom-columns=NAME:.metadata.name,HOST:.spec.ssh.host,PHASE:.status.phase"
    return (
        Fix(f"kubectl get mach {which}", "shows which Machines name this host"),
        Fix(f"kubectl delete mach {machine.name}", "deletes this one, if the other is right"),
        Fix(f"kubectl edit mach {machine.name}", "corrects spec.ssh.host, if it is wrong here"),
    )


def _allow_join(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} machine allow-join {machine.name}", "lets it join once more"),)


# Configurations, network boot, node


def configuration_fixes(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    """Return fixes that bind the Machine to a MachineConfiguration that exists."""
    ref = machine.spec.configuration_ref
    name = ref.name if ref is not None else "NAME"
    fixes = (
        Fix(f"{PLUGIN} config create {name} --kubernetes-version VERSION", "creates it"),
        Fix(f"{PLUGIN} config assign OTHER {machine.name}", "binds the Machine to another one"),
    )
    return fixes if ref is not None else fixes[1:]


def _image(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    change = {"spec": {"pxe": {"image": "IMAGE"}}}
    another = Fix(patch_machine(machine.name, change), "sets another image")
    pxe = machine.spec.pxe
    if pxe is None or reported.reason != ConditionReason.PULL_FAILED:
        return (another,)
    refs = dict.fromkeys(ref for ref in (pxe.pull_secret_ref, pxe.netboot_pull_secret_ref) if ref is not None)
    login = "--docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD"
    logins = (
        Fix(
            f"kubectl -n {ref.namespace} create secret docker-registry {ref.name} {login}"
            " --dry-run=client -o yaml | kubectl apply -f -",
            f"writes the Secret {ref.name}, if the registry rejects its login",
        )
        for ref in refs
    )
    return (*logins, another)


def _leases(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (Fix(f"kubectl edit mach {machine.name}", "corrects spec.pxe.dhcpLeases"),)


def _attested(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    attestation = machine.spec.pxe.attestation if machine.spec.pxe else None
    if attestation is not None and attestation.ek_public_key_sha256:
        field = "spec.pxe.attestation.ekPublicKeySHA256"
        return (Fix(f"kubectl edit mach {machine.name}", f"corrects {field}, if this TPM is the machine's own"),)
    change = {"status": {"tpm": {"ekPublicKey": None}}}
    return (
        Fix(
            patch_machine(machine.name, change, status=True),
            "trusts the next TPM that proves its identity, if the exchange is expected",
        ),
    )


def boot_fixes(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    """Return the command that accepts the PCRs in which the last boot deviates."""
    tpm = machine.status.tpm
    if tpm is None or tpm.reference is None or tpm.quote is None:
        return ()
    command = accept_command(machine.name, tpm.quote.deviations(tpm.reference))
    return (Fix(command, "writes its image again, and accepts the change, if it is expected"),)


def _replace(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} machine replace {machine.name}", "writes its image again"),)


def _agent(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return agent_fixes(machine)


def agent_fixes(machine: Machine | None) -> tuple[Fix, ...]:
    """Return the commands that examine and restart an agent on its host."""
    on_host = ssh_command(machine)
    return (
        Fix(f"{on_host}sudo unbounded-agent status", "shows the state of the host's agent, and the problem"),
        Fix(f"{on_host}sudo systemctl restart {DAEMON_UNIT}", "starts it again"),
    )


# The table

_T: Final = frozenset({ConditionStatus.TRUE})
_F: Final = frozenset({ConditionStatus.FALSE})
_U: Final = frozenset({ConditionStatus.UNKNOWN})
_R = ConditionReason
_TIMES: Final = PassIntervals()
_RETRY: Final = ProvisioningSettings().retry
_PROBED: Final = f"machina tries the SSH port again every {INTERVALS_BY_PHASE[MachinePhase.PENDING]:.0f} s"
_NO_WAY: Final = f"no packet of machina reaches it, so nothing is sent; {_PROBED}"
_RETRIED_ON_CHANGE: Final = (
    f"machina reads its Secrets and its spec every {_TIMES.secret_s:.0f} s, less often where many "
    "wait for theirs; it sends nothing to the host before they change"
)
_TRIED: Final = (
    f"machina retries {_RETRY.base_s / 2:.0f} s to {_RETRY.max_s / 60:.0f} minutes after a failure; a "
    "change of the Machine or its Secrets causes a retry at once"
)
_CONNECTED: Final = (
    f"{_TRIED}, as does the removal of a pin; machina sends nothing to a host that presents a key "
    "other than the pinned one"
)
_PULLED: Final = "metalman pulls it again and again"


def row(
    kind: ConditionType,
    statuses: frozenset[ConditionStatus],
    reasons: tuple[ConditionReason, ...],
    next_step: str,
    fixes: Remedy,
    *,
    retried: bool = False,
) -> ConditionRow:
    """Return a row of either table."""
    return ConditionRow(kind, statuses, frozenset(reasons), next_step, fixes, retried)


def _nothing(_machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return ()


_C = ConditionType


def _probe_rows() -> Iterator[ConditionRow]:
    for reason, fixes in OF_LOGIN:
        step = _RETRIED_ON_CHANGE if fixes in OF_KEYS else _NO_WAY if reason is _R.NO_ROUTE else _PROBED
        yield row(_C.SSH_REACHABLE, _F, (reason,), step, fixes)


def _attempt_rows() -> Iterator[ConditionRow]:
    for reason, fixes in OF_LOGIN:
        if reason is not _R.TIMED_OUT:  # an install can time out, too
            step = _RETRIED_ON_CHANGE if fixes in OF_KEYS else _CONNECTED if reason is _R.HOST_KEY_CHANGED else _TRIED
            yield row(_C.PROVISIONING, _F, (reason,), step, fixes, retried=fixes not in OF_KEYS)
    for reason, fixes in BEFORE_LOGIN:
        yield row(_C.PROVISIONING, _F, (reason,), _RETRIED_ON_CHANGE, fixes)
    for reason, fixes in ON_HOST:
        yield row(_C.PROVISIONING, _F, (reason,), _TRIED, fixes, retried=True)


TABLE: Final = (
    row(
        _C.PROVISIONING,
        _U,
        (_R.DUPLICATE_HOST,),
        "it continues when one of them names another host",
        duplicate_host,
    ),
    *_probe_rows(),
    row(_C.CONFIGURATION_PENDING, _T, (_R.PENDING,), "it continues as soon as one exists", configuration_fixes),
    *_attempt_rows(),
    row(_C.PROVISIONING, _F | _U, (_R.WAITING,), "it continues as soon as that ends", _nothing),
    row(_C.PROVISIONING, _F | _U, (_R.FACTS_MISSING,), "it continues as soon as they are known", _facts),
    row(_C.PROVISIONED, _F, (_R.RESET,), "the node stays down until the Machine is allowed to join", _allow_join),
    row(_C.AGENT_BOOTSTRAPPED, _F, (_R.RESET,), "the node stays down until its agent is started again", _nothing),
    row(_C.NETBOOT_IMAGE_READY, _F, (_R.PULL_FAILED, _R.UNUSABLE_IMAGE, _R.NO_IMAGE), _PULLED, _image),
    row(_C.NETBOOT_IMAGE_READY, _F, (_R.PULLING,), "the host boots from it as soon as it is available", _nothing),
    row(
        _C.NETBOOT_SERVED,
        _F,
        (_R.NO_BOOT_FILE, _R.ADDRESS_IN_USE, _R.DUPLICATE_LEASE, _R.INVALID_LEASE),
        "metalman serves it as soon as that is corrected",
        _leases,
    ),
    row(_C.ATTESTED, _F, (_R.FOREIGN_EK,), "metalman challenges it again at its next boot", _attested),
    row(
        _C.ATTESTED,
        _F,
        (_R.EK_NOT_TRUSTED,),
        "metalman challenges it again at its next boot, with the roots in the file of its --ek-ca",
        _nothing,
    ),
    row(_C.ATTESTED, _F, (_R.PCR_MISMATCH,), "the host gets no token, until the change is accepted", boot_fixes),
    row(
        _C.ATTESTED,
        _F,
        (_R.QUOTE_MISSING,),
        "the host gets no token, until its image has an agent that quotes the TPM's PCRs",
        _image,
    ),
    row(_C.CLOUD_INIT_DONE, _F, (_R.FAILED, _R.TIMED_OUT), "nothing, until the host is reinstalled", _replace),
    row(
        _C.NODE_UPDATED,
        _F,
        (_R.ROLLED_BACK, _R.NO_WORKING_NODE, _R.WAITING),
        "the agent retries",
        _agent,
    ),
    row(_C.NODE_UPDATED, _U, (_R.FAILED,), "nothing, until you have checked it", _agent),
)


def notices_of(machine: Machine) -> list[tuple[ConditionRow, Condition]]:
    """Return the rows that fit the Machine's conditions, in the order of the table."""
    return [(notice, one) for notice in NOTICES for one in machine.status.conditions if notice.fits(one)]


def is_note(notice: ConditionRow) -> bool:
    """Return whether the row needs no action."""
    return not notice.next_step


def _recreate(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    modified = condition(machine, ConditionType.NODE_MODIFIED)
    lost = modified is not None and modified.status == ConditionStatus.TRUE
    but = ", which discards the manual changes of files" if lost else ""
    return (Fix(f"kubectl delete node {machine.name}", f"recreates the node{but}"),)


def _access(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    published = "kubectl -n kube-public get configmap cluster-info -o yaml"
    return (Fix(published, "shows the address and the CA that the cluster publishes"), *agent_fixes(machine)[:1])


def _gpus(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"{ssh_command(machine)}nvidia-smi", "shows on the host whether its driver works"),
        Fix(f"{PLUGIN} machine node-reboot {machine.name}", "restarts the node, which describes the GPUs again"),
    )


def _release_key(_machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    show = f"kubectl -n {NAMESPACE} get configmap {CONFIGMAP_RELEASES} -o yaml"
    return (Fix(show, "shows the public key of releases, which machina publishes from its setting agentPublicKey"),)


def _duplicate(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"kubectl edit mach {machine.name}", "corrects spec.pxe.redfish, if it is wrong here"),
        Fix("kubectl get mach -o custom-columns=NAME:.metadata.name,BMC:.spec.pxe.redfish.url", "shows all BMCs"),
    )


def _hardware(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"kubectl get mach {machine.name} -o jsonpath='{{.status.hardware}}'", "shows what the inspection found"),
    )


def _none(_machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return ()


_STAYS: Final = "the node stays as it is until its Node is deleted"
NOTICES: Final = (
    row(
        _C.CLUSTER_ACCESS_CURRENT,
        _F,
        (_R.PENDING,),
        "the host keeps its address and CA; its agent tries the published ones every minute",
        _access,
    ),
    row(
        _C.RELEASE_KEY_CURRENT,
        _F,
        (_R.PENDING,),
        "its agent runs no AgentUpgrade until the key is valid",
        _release_key,
    ),
    row(
        _C.BMC_EXCLUSIVE,
        _F,
        (_R.DUPLICATE_BMC,),
        "host operations on these Machines continue, one at a time, and each of them acts on the same host",
        _duplicate,
    ),
    row(
        _C.HOST_EXCLUSIVE,
        _F,
        (_R.DUPLICATE_HOST,),
        "the existing setup stays; machina sets up no other of these Machines on the host",
        duplicate_host,
    ),
    row(_C.REPAVE_PENDING, _T, (_R.PENDING, _R.ROLLED_BACK), _STAYS, _recreate),
    row(_C.REPAVE_PENDING, _U, (_R.CONFIGURATION_MISSING,), _STAYS, configuration_fixes),
    row(
        _C.GPUS_DESCRIBED,
        _F,
        (_R.NO_DRIVER, _R.FAILED),
        "its node serves without GPUs until the problem on the host is fixed and the node is restarted",
        _gpus,
    ),
    row(_C.GPUS_DESCRIBED, _F, (_R.NOT_FOUND,), "", _none),
    row(_C.BOOT_ORDER_CONFIG_SUPPORTED, _F, (_R.NOT_SUPPORTED,), "", _none),
    row(_C.NODE_MODIFIED, _T, (_R.MODIFIED,), "", _none),
    row(
        _C.BOOT_CHANGED,
        _T,
        (_R.PCR_MISMATCH,),
        "it is reported at each installation, until it is accepted or the boot is as before",
        boot_fixes,
    ),
    row(_C.HARDWARE_CHANGED, _T, (_R.PARTS_MISSING, _R.HEALTH_CHANGED), "", _hardware),
)
