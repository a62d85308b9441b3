"""Conditions of a Machine that hold it up: what happens next by itself, and the commands that undo each. A table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.agent.goal import NO_IMAGE
from unbounded.agent.layout import DAEMON_UNIT
from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.machine import Machine, MachinePhase, SSHHop
from unbounded.api.meta import Condition
from unbounded.cli.why.fixing import named_source, patch, secret_fix, source_fixes, ssh_command, token_fixes
from unbounded.cli.why.links import PLUGIN, Fix
from unbounded.kube.errors import MAY_NOT_BE_READ
from unbounded.machina.machines.credentials import PASSPHRASE
from unbounded.machina.machines.model import LOOKS, Times
from unbounded.machina.machines.settings import Settings

Remedy = Callable[[Machine, Condition], tuple[Fix, ...]]


@dataclass(frozen=True)
class Trouble:
    """A condition that says what is wrong.

    Attributes:
        next_step: what happens without anybody.
        retried: whether that comes at the time which the status has.
    """

    type: ConditionType
    statuses: frozenset[ConditionStatus]
    reasons: frozenset[ConditionReason]
    next_step: str
    fixes: Remedy
    retried: bool = False

    def until(self, machine: Machine) -> str:
        """RFC 3339; empty where nobody knows."""
        attempt = machine.status.provisioning
        return (attempt.retry_at or "") if self.retried and attempt is not None else ""

    def fits(self, said: Condition) -> bool:
        return said.type == self.type and said.status in self.statuses and said.reason in self.reasons


def trouble_of(machine: Machine) -> tuple[Trouble, Condition] | None:
    """The first condition of a Machine that holds it up."""
    said = machine.status.conditions
    return next(((row, one) for row in TABLE for one in said if row.fits(one)), None)


def condition(machine: Machine, kind: ConditionType) -> Condition | None:
    """One condition of a Machine."""
    return next((one for one in machine.status.conditions if one.type == kind), None)


# SSH


def _unreachable(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    at_bastion = _hop(machine, said) is SSHHop.BASTION
    whose = " of the bastion" if at_bastion else ""
    return (
        Fix(f"{ssh_command(machine)}true", "tries the same way from here"),
        Fix(_ssh_patch(machine, said, {"host": "HOST:PORT"}), f"corrects the address{whose}"),
    )


def _host_key(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    ssh, hop = machine.spec.ssh, _hop(machine, said)
    at = ssh.bastion if ssh is not None and hop is SSHHop.BASTION else ssh
    if at is not None and at.host_keys:
        return (Fix(_ssh_patch(machine, said, {"hostKeys": ["KEY"]}), "names the new key, if it is to be trusted"),)
    field = "bastionFingerprint" if hop is SSHHop.BASTION else "fingerprint"
    change = patch("machine", machine.name, {"status": {"ssh": {field: None}}}, status=True)
    return (Fix(change, "trusts the key that the server shows next, if that may be"),)


def _login(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    user = Fix(_ssh_patch(machine, said, {"username": "USER"}), "corrects the user name")
    return (*_key(machine, said), user)


def _key(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    ssh = machine.spec.ssh
    if ssh is None:
        return ()
    if MAY_NOT_BE_READ in said.message:
        return (_RIGHTS,)
    at_bastion = _hop(machine, said) is SSHHop.BASTION
    own = ssh.bastion.private_key_ref if ssh.bastion is not None and at_bastion else None
    source = "--from-file={key}=FILE"
    if "passphrase" in said.message:
        words = ssh.bastion.passphrase_key if ssh.bastion is not None and at_bastion else None
        source += f" --from-literal={words or ssh.passphrase_key or PASSPHRASE}=PASSPHRASE"
    return (secret_fix(own or ssh.private_key_ref, source),)


_RIGHTS: Final = Fix(f"{PLUGIN} install", "gives machina its rights again")
_OF_BASTION: Final = ("bastion ", "the bastion ", "spec.ssh.bastion.")  # how what goes wrong there begins


def _hop(machine: Machine, said: Condition) -> SSHHop:
    """Whose trouble it is. A probe logs in to the bastion alone."""
    ssh = machine.spec.ssh
    if ssh is None or ssh.bastion is None:
        return SSHHop.HOST
    in_probe = said.type == ConditionType.SSH_REACHABLE and said.reason != ConditionReason.UNREACHABLE
    return SSHHop.BASTION if in_probe or said.message.startswith(_OF_BASTION) else SSHHop.HOST


def _ssh_patch(machine: Machine, said: Condition, change: Mapping[str, Any]) -> str:
    ssh = {"bastion": change} if _hop(machine, said) is SSHHop.BASTION else change
    return patch("machine", machine.name, {"spec": {"ssh": ssh}})


def _attempt(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    image = named_source(machine, "image", "--agent-image", "IMAGE", "the image of its node")
    return (
        *(image if NO_IMAGE in said.message else ()),
        Fix(f"kubectl events --for machine/{machine.name}", "shows the end of what the install script said"),
        Fix(f"{ssh_command(machine)}sudo -n true", "logs in and asks for root as the install does"),
        Fix(f"{PLUGIN} machine allow-join {machine.name}", "has it tried again at once, when the cause is gone"),
    )


def _token(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    if MAY_NOT_BE_READ in said.message:
        kubernetes = machine.spec.kubernetes
        named = kubernetes is not None and kubernetes.bootstrap_token_ref is not None
        change = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-ID"}}}}
        name_it = Fix(patch("machine", machine.name, change), "names the token, which machina then reads by its name")
        return (_RIGHTS,) if named else (name_it, _RIGHTS)
    return token_fixes(machine, said.message)


def _source(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    return source_fixes(machine, said.message)


def _facts(_machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (
        Fix(f"{PLUGIN} install --api-server-endpoint HOST:PORT --cluster-dns IP", "tells machina what it cannot find"),
        Fix(
            "unbounded up --bind 0.0.0.0 --advertise-address IP --cluster-dns IP",
            "tells it where machina runs in `unbounded up`",
        ),
    )


def _allow_join(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} machine allow-join {machine.name}", "lets it join once more"),)


# Configurations, network boot, node


def configuration_fixes(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    """Bind the Machine to a MachineConfiguration that exists."""
    ref = machine.spec.configuration_ref
    name = ref.name if ref is not None else "NAME"
    fixes = (
        Fix(f"{PLUGIN} config create {name} --kubernetes-version VERSION", "makes it"),
        Fix(f"{PLUGIN} config assign OTHER {machine.name}", "binds the Machine to another one"),
    )
    return fixes if ref is not None else fixes[1:]


def _image(machine: Machine, said: Condition) -> tuple[Fix, ...]:
    change = {"spec": {"pxe": {"image": "IMAGE"}}}
    another = Fix(patch("machine", machine.name, change), "names an image that can be used")
    pxe = machine.spec.pxe
    if pxe is None or said.reason != ConditionReason.PULL_FAILED:
        return (another,)
    ref = pxe.netboot_pull_secret_ref if "netbootPullSecretRef" in said.message else pxe.pull_secret_ref
    if ref is None:
        return (another,)
    login = "--docker-server=REGISTRY --docker-username=USER --docker-password=PASSWORD"
    make = f"kubectl -n {ref.namespace} create secret docker-registry {ref.name} {login}"
    return (Fix(f"{make} --dry-run=client -o yaml | kubectl apply -f -", f"writes the Secret {ref.name}"), another)


def _leases(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (Fix(f"kubectl edit machine {machine.name}", "corrects spec.pxe.dhcpLeases"),)


def _attested(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    attestation = machine.spec.pxe.attestation if machine.spec.pxe else None
    if attestation is not None and attestation.ek_public_key_sha256:
        field = "spec.pxe.attestation.ekPublicKeySHA256"
        return (Fix(f"kubectl edit machine {machine.name}", f"corrects {field}, if this TPM is the machine's own"),)
    change = {"status": {"tpm": {"ekPublicKey": None}}}
    return (Fix(patch("machine", machine.name, change, status=True), "trusts the next TPM that is seen, if it may be"),)


def _replace(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} machine replace {machine.name}", "writes its image anew"),)


def _agent(machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return agent_fixes(machine)


def agent_fixes(machine: Machine | None) -> tuple[Fix, ...]:
    """How to look at an agent: on its host."""
    on_host = ssh_command(machine)
    return (
        Fix(f"{on_host}sudo unbounded-agent status", "says what the host's agent does, and what it lacks"),
        Fix(f"{on_host}sudo systemctl restart {DAEMON_UNIT}", "starts it again"),
    )


# The table

_T: Final = frozenset({ConditionStatus.TRUE})
_F: Final = frozenset({ConditionStatus.FALSE})
_U: Final = frozenset({ConditionStatus.UNKNOWN})
_R = ConditionReason
_TIMES: Final = Times()
_RETRY: Final = Settings().retry
_PROBED: Final = f"the SSH port is tried again every {LOOKS[MachinePhase.PENDING]:.0f} s"
_LOOKED_AT: Final = (
    f"its Secrets and its spec are looked at every {_TIMES.secret_s:.0f} s, more rarely where many wait for theirs;"
    " nothing is sent there before they change"
)
_TRIED: Final = (
    f"it is tried again by itself, {_RETRY.base_s / 2:.0f} s to {_RETRY.max_s / 60:.0f} minutes after it failed;"
    " a change of the Machine or its Secrets counts at once"
)
_CONNECTED: Final = (
    f"{_TRIED}, and so does a pin that is taken away; nothing is sent to a host that shows another key than the pinned"
)
_PULLED: Final = "it is pulled again and again"


def row(
    kind: ConditionType,
    statuses: frozenset[ConditionStatus],
    reasons: tuple[ConditionReason, ...],
    next_step: str,
    fixes: Remedy,
    *,
    retried: bool = False,
) -> Trouble:
    """Return a row of the table, or of the one in `notices`."""
    return Trouble(kind, statuses, frozenset(reasons), next_step, fixes, retried)


def _nothing(_machine: Machine, _said: Condition) -> tuple[Fix, ...]:
    return ()


_C = ConditionType
TABLE: Final = (
    row(_C.SSH_REACHABLE, _F, (_R.HOST_KEY_CHANGED,), _PROBED, _host_key),
    row(_C.SSH_REACHABLE, _F, (_R.CREDENTIALS_REFUSED,), _LOOKED_AT, _login),
    row(_C.SSH_REACHABLE, _F, (_R.SECRET_UNUSABLE,), _LOOKED_AT, _key),
    row(_C.SSH_REACHABLE, _F, (_R.UNREACHABLE,), _PROBED, _unreachable),
    row(_C.CONFIGURATION_PENDING, _T, (_R.PENDING,), "it goes on as soon as there is one", configuration_fixes),
    row(_C.PROVISIONING, _F, (_R.HOST_KEY_CHANGED,), _CONNECTED, _host_key, retried=True),
    row(_C.PROVISIONING, _F, (_R.CREDENTIALS_REFUSED,), _LOOKED_AT, _login),
    row(_C.PROVISIONING, _F, (_R.SECRET_UNUSABLE,), _LOOKED_AT, _key),
    row(_C.PROVISIONING, _F, (_R.TOKEN_UNUSABLE,), _LOOKED_AT, _token),
    row(_C.PROVISIONING, _F, (_R.SOURCE_MISSING,), _LOOKED_AT, _source),
    row(_C.PROVISIONING, _F | _U, (_R.WAITING,), "it goes on as soon as that is over", _nothing),
    row(_C.PROVISIONING, _F | _U, (_R.FACTS_MISSING,), "it goes on as soon as they are known", _facts),
    row(_C.PROVISIONING, _F, (_R.FAILED, _R.TIMED_OUT), _TRIED, _attempt, retried=True),
    row(_C.PROVISIONED, _F, (_R.RESET,), "it stays down until it is allowed to join", _allow_join),
    row(_C.NETBOOT_IMAGE_READY, _F, (_R.PULL_FAILED, _R.UNUSABLE_IMAGE), _PULLED, _image),
    row(_C.NETBOOT_IMAGE_READY, _F, (_R.PULLING,), "the host boots from it as soon as it is there", _nothing),
    row(
        _C.NETBOOT_SERVED,
        _F,
        (_R.NO_BOOT_FILE, _R.ADDRESS_IN_USE, _R.DUPLICATE_LEASE, _R.INVALID_LEASE),
        "it is served as soon as that is put right",
        _leases,
    ),
    row(_C.ATTESTED, _F, (_R.FOREIGN_EK,), "it is asked again at its next boot", _attested),
    row(
        _C.ATTESTED,
        _F,
        (_R.EK_NOT_TRUSTED,),
        "it is asked again at its next boot; the roots that count are those in the file of metalman's --ek-ca",
        _nothing,
    ),
    row(_C.CLOUD_INIT_DONE, _F, (_R.FAILED, _R.TIMED_OUT), "nothing, until it is made anew", _replace),
    row(
        _C.NODE_UPDATED,
        _F,
        (_R.ROLLED_BACK, _R.NO_WORKING_NODE, _R.WAITING),
        "the agent tries it again by itself",
        _agent,
    ),
    row(_C.NODE_UPDATED, _U, (_R.FAILED,), "nothing, until somebody has looked", _agent),
)
