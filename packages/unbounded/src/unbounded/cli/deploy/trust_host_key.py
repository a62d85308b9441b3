"""`kubectl unbounded machine trust-host-key`: trust in another host key of a Machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unbounded.api.conditions import ConditionReason, ConditionStatus
from unbounded.api.machine import MACHINES, Machine, SSHHop
from unbounded.api.machine_spec import BastionSSHSpec, SSHSpec
from unbounded.cli.deploy import validation
from unbounded.cli.operation_commands import lookup
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.cli.plugin.intents import execute_intent
from unbounded.explain.ssh_fixes import hop_of
from unbounded.machina.machines.credentials import pinned, untrusted, without_untrusted
from unbounded.machina.ssh.keys import HostKey, host_key
from unbounded.plan.intent import Intent, IntentPatch

VERB = "patched"


@dataclass(frozen=True)
class TrustedHostKey:
    """A key to trust.

    Attributes:
        line: the whole key, as spec.ssh.hostKeys has it; empty where only its fingerprint is known.
        typed: whether a flag gives it, so that the user has it from another source.
    """

    hop: SSHHop
    fingerprint: str
    line: str = ""
    typed: bool = False


async def intend(session: CommandSession) -> Intent:
    """Return the patch that trusts the key; without a flag for the key, the user has to confirm.

    Raises:
        CliError: no key is known, or it cannot be the one that the server shows.
    """
    args = session.invocation.args
    machine = await lookup.machine(session, args.name)
    key = key_of(
        machine, fingerprint=args.fingerprint or "", line=args.host_key, bastion=args.bastion, force=args.force
    )
    before = _trusted(machine, key.hop)
    if key.fingerprint in before:
        return Intent(notes=(f"the key {key.fingerprint} is trusted already",))
    until_now = f"{' and '.join(before) or 'none'} was trusted until now"
    loses = f"the {key.hop} shows the key {key.fingerprint}, and {until_now}; {KEY_HOLDER}"
    return Intent(
        patches=(patch_of(machine, key),),
        notes=(f"the {key.hop}'s key {key.fingerprint} is trusted from now on",) if key.typed else (),
        destroys=() if key.typed else (machine.name,),
        loses=loses,
    )


KEY_HOLDER = "machina sends its credentials to the holder of that key"


async def run(session: CommandSession) -> int:
    """Trust the key after the user's confirmation; returns the exit status."""
    return await execute_intent(session, await intend(session), wait=False, timeout_s=None)


def key_of(
    machine: Machine, *, fingerprint: str = "", line: str = "", bastion: bool = False, force: bool = False
) -> TrustedHostKey:
    """Return the key to trust: the one from the flags, else the one that the server shows.

    Args:
        fingerprint, line: from the flags; empty where they were not given.
        force: accept a key from the flags that differs from the one that the server shows.
        bastion: it is the bastion's. Otherwise that of the server whose key has changed, else the host's.

    Raises:
        CliError: naming the flag and the expected value.
    """
    if machine.spec.ssh is None:
        raise CliError(f"Machine {machine.name} has no spec.ssh: machina does not log in there")
    hop = SSHHop.BASTION if bastion else _changed_hop(machine)
    server = _server(machine.spec.ssh, hop, machine.name)
    shown = untrusted(machine, hop) or ""
    typed = _typed(line) if line else None
    desired = typed.fingerprint if typed is not None else fingerprint
    if fingerprint and fingerprint != desired:
        raise CliError(f"--fingerprint: --host-key is the key {desired}, not {fingerprint}", status=USAGE)
    if server.host_keys and typed is None:
        field = "spec.ssh.bastion.hostKeys" if hop is SSHHop.BASTION else "spec.ssh.hostKeys"
        raise CliError(
            f"--host-key: {field} lists the trusted keys, and needs the whole key",
            next_step="`ssh-keyscan -t ed25519 HOST` prints it; compare it with the host's own console",
            status=USAGE,
        )
    if not desired and not shown:
        raise CliError(
            f"the {hop} of Machine {machine.name} has shown no key but the trusted one",
            next_step="trust a key that it has not shown yet with --fingerprint SHA256:…",
        )
    if desired and shown and desired != shown and not force:
        flag = "--host-key" if line else "--fingerprint"
        raise CliError(
            f"{flag}: the {hop} shows the key {shown}, not {desired}",
            next_step="trust it anyway with --force, such as a key of another kind of the same server",
            status=USAGE,
        )
    return TrustedHostKey(hop, desired or shown, line=_line(line), typed=bool(desired))


def patch_of(machine: Machine, key: TrustedHostKey) -> IntentPatch:
    """Return the patch that pins a key: in the spec, where that lists keys, else in the status."""
    version = {"resourceVersion": machine.metadata.resource_version}
    ssh = machine.spec.ssh
    if ssh is not None and _server(ssh, key.hop, machine.name).host_keys:
        change: dict[str, Any] = {"hostKeys": [key.line]}
        spec = {"ssh": {"bastion": change} if key.hop is SSHHop.BASTION else change}
        return IntentPatch(MACHINES, machine.name, {"metadata": version, "spec": spec})
    field = "bastionFingerprint" if key.hop is SSHHop.BASTION else "fingerprint"
    status = {"ssh": {field: key.fingerprint, "untrusted": without_untrusted(machine, key.hop)}}
    return IntentPatch(MACHINES, machine.name, {"metadata": version, "status": status}, status=True)


def _trusted(machine: Machine, hop: SSHHop) -> tuple[str, ...]:
    """Return the fingerprints of the keys that are trusted now."""
    ssh = machine.spec.ssh
    lines = _server(ssh, hop, machine.name).host_keys if ssh is not None else ()
    if lines:
        return tuple(key.fingerprint for key in map(host_key, lines) if key is not None)
    known = pinned(machine, hop)
    return (known,) if known else ()


def _changed_hop(machine: Machine) -> SSHHop:
    reason = ConditionReason.HOST_KEY_CHANGED
    changed = (one for one in machine.status.conditions if one.reason == reason and one.status == ConditionStatus.FALSE)
    condition = next(changed, None)
    return hop_of(machine, condition) if condition is not None else SSHHop.HOST


def _server(ssh: SSHSpec, hop: SSHHop, name: str) -> SSHSpec | BastionSSHSpec:
    if hop is SSHHop.HOST:
        return ssh
    if ssh.bastion is None:
        raise CliError(f"--bastion: Machine {name} has no spec.ssh.bastion", status=USAGE)
    return ssh.bastion


def _line(text: str) -> str:
    return validation.flagged("--host-key", validation.host_key, text) if text else ""


def _typed(text: str) -> HostKey:
    try:
        found = host_key(_line(text))
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    if found is None:
        raise CliError("--host-key: not a key of a kind that SSH servers use today", status=USAGE)
    return found
