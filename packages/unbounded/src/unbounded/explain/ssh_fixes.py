"""Commands that resolve why machina cannot set up a host, by the reason of the condition and the server concerned.

A Secret with an SSH key is never overwritten: other Machines of its site log in with it.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded.api.conditions import ConditionReason, ConditionType
from unbounded.api.machine import Machine, SSHHop
from unbounded.api.machine_spec import SSH_PRIVATE_KEY, BastionSSHSpec, SecretKeySelector, SSHSpec
from unbounded.api.meta import Condition
from unbounded.api.names import NAMESPACE
from unbounded.explain.fix_commands import (
    bastion_command,
    copy_id,
    digest_fixes,
    host_and_port,
    named_source,
    patch_machine,
    release_fixes,
    ssh_command,
    token_fixes,
)
from unbounded.explain.links import PLUGIN, Fix
from unbounded.machina.machines.credentials import PASSPHRASE, untrusted

Remedy = Callable[[Machine, Condition], tuple[Fix, ...]]


def _unreachable(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{ssh_command(machine)}true", "tries the same route from here"), _address(machine, reported))


def _address(machine: Machine, reported: Condition) -> Fix:
    whose = " of the bastion" if hop_of(machine, reported) is SSHHop.BASTION else ""
    return Fix(_ssh_patch(machine, reported, {"host": "HOST:PORT"}), f"corrects the address{whose}")


def _no_route(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    """Return fixes for a server without a route: another login does not help, another route does."""
    show = _where_it_fails(machine, reported, f"ip route get {_host(machine, reported)}", "shows the route")
    if hop_of(machine, reported) is SSHHop.BASTION:
        return (show, _address(machine, reported))
    bastion = {"spec": {"ssh": {"bastion": {"host": "BASTION", "username": "USER"}}}}
    by_way = Fix(patch_machine(machine.name, bastion), "connects through a bastion with a route to it")
    return (
        (show, _address(machine, reported))
        if _bastion(machine) is not None
        else (show, by_way, _address(machine, reported))
    )


def _no_name(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    lookup = _where_it_fails(machine, reported, f"getent hosts {_host(machine, reported)}", "resolves the name")
    return (lookup, _address(machine, reported))


def _where_it_fails(machine: Machine, reported: Condition, command: str, does: str) -> Fix:
    """Return a command for the place that cannot reach a server: the bastion for its host, machina for all others."""
    bastion = _bastion(machine)
    if bastion is None or hop_of(machine, reported) is SSHHop.BASTION:
        return Fix(command, f"{does}, where machina runs")
    return Fix(f"{bastion_command(bastion)}{command}", f"{does}, at the bastion")


def _not_listening(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    at_bastion = hop_of(machine, reported) is SSHHop.BASTION
    where = "the bastion's" if at_bastion else "the host's"
    return (
        Fix("systemctl status ssh sshd", f"shows at {where} own console whether its SSH server runs"),
        _address(machine, reported),
    )


def _no_forwarding(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    """Return fixes for a bastion that accepts the login and forwards nothing: its settings, or another bastion."""
    bastion = _bastion(machine)
    if bastion is None or machine.spec.ssh is None:
        return ()
    words = "sudo sshd -T | grep -i -e forwarding -e permitopen"
    target = host_and_port(machine.spec.ssh.host)
    does = f"shows its restrictions: AllowTcpForwarding must be yes or local, and PermitOpen must allow {target}"
    another = {"spec": {"ssh": {"bastion": {"host": "HOST:PORT"}}}}
    return (
        Fix(f"{bastion_command(bastion)}{shlex.quote(words)}", does),
        Fix(patch_machine(machine.name, another), "connects through another bastion"),
    )


def _too_many(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    bastion = _bastion(machine)
    at_bastion = hop_of(machine, reported) is SSHHop.BASTION and bastion is not None
    login = bastion_command(bastion) if at_bastion and bastion is not None else ssh_command(machine)
    words = "sudo sshd -T | grep -i -e maxstartups -e maxsessions -e persource"
    return (Fix(f"{login}{shlex.quote(words)}", "shows how many logins its SSH server accepts at once"),)


def _host_key(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    ssh, hop = machine.spec.ssh, hop_of(machine, reported)
    at = ssh.bastion if ssh is not None and hop is SSHHop.BASTION else ssh
    trust = f"{PLUGIN} machine trust-host-key {machine.name}"
    if at is not None and at.host_keys:
        return (Fix(f"{trust} --host-key KEY", "trusts the new key, if it is the server's own"),)
    shown = untrusted(machine, hop)
    return (Fix(trust, f"trusts the key {shown or 'that it presents'}, if it is the server's own"),)


def _login(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    """Return fixes for a refused login: the server gets the key. The Secret stays, as other Machines use it."""
    ssh, hop = machine.spec.ssh, hop_of(machine, reported)
    if ssh is None:
        return ()
    ref = _key_ref(ssh, hop)
    known = machine.status.ssh.refused if machine.status.ssh is not None else ()
    print_of = next((one.fingerprint for one in known if one.hop == hop and one.fingerprint), None)
    which = f" (ssh-keygen -lf KEY.pub shows {print_of})" if print_of else ""
    return (
        Fix(copy_id(ssh, hop), f"accepts the key of Secret {ref.namespace}/{ref.name}{which} there"),
        Fix(_ssh_patch(machine, reported, {"username": "USER"}), "corrects the user name"),
        *_own_key(machine, reported),
    )


def _own_key(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    """Return fixes that give the Machine its own Secret. An existing one is never overwritten: others may share it."""
    own = f"ssh-{machine.name}{'-bastion' if hop_of(machine, reported) is SSHHop.BASTION else ''}"
    make = f"kubectl -n {NAMESPACE} create secret generic {own} --from-file={SSH_PRIVATE_KEY}=FILE"
    ref = {"privateKeyRef": {"name": own, "namespace": NAMESPACE, "key": SSH_PRIVATE_KEY}}
    return (
        Fix(make, f"creates a Secret for this Machine alone, {own}, from another private key"),
        Fix(_ssh_patch(machine, reported, ref), "lets the Machine log in with that"),
    )


def _secret_missing(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    ssh = machine.spec.ssh
    if ssh is None:
        return ()
    ref = _key_ref(ssh, hop_of(machine, reported))
    make = f"kubectl -n {ref.namespace} create secret generic {ref.name} --from-file={ref.key}=FILE"
    return (Fix(make, f"creates the Secret {ref.name}"),)


def _key_unusable(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    ssh = machine.spec.ssh
    if ssh is None:
        return ()
    ref = _key_ref(ssh, hop_of(machine, reported))
    show = f"kubectl -n {ref.namespace} describe secret {ref.name}"
    other = _ssh_patch(
        machine, reported, {"privateKeyRef": {"name": ref.name, "namespace": ref.namespace, "key": "KEY"}}
    )
    return (
        Fix(show, "shows the keys of the Secret"),
        Fix(other, "names the one that holds the private key"),
        *_own_key(machine, reported),
    )


def _passphrase(machine: Machine, reported: Condition) -> tuple[Fix, ...]:
    ssh = machine.spec.ssh
    if ssh is None:
        return ()
    hop = hop_of(machine, reported)
    ref = _key_ref(ssh, hop)
    words = ssh.bastion.passphrase_key if ssh.bastion is not None and hop is SSHHop.BASTION else None
    change = {"stringData": {words or ssh.passphrase_key or PASSPHRASE: "PASSPHRASE"}}
    write = f"kubectl -n {ref.namespace} patch secret {ref.name} --type=merge -p {shlex.quote(json.dumps(change))}"
    return (Fix(write, "writes the passphrase of the private key"), *_own_key(machine, reported))


def _rights(_machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (_RIGHTS,)


_RIGHTS: Final = Fix(f"{PLUGIN} install", "restores machina's permissions")


def _bastion(machine: Machine) -> BastionSSHSpec | None:
    return machine.spec.ssh.bastion if machine.spec.ssh is not None else None


def _key_ref(ssh: SSHSpec, hop: SSHHop) -> SecretKeySelector:
    own = ssh.bastion.private_key_ref if ssh.bastion is not None and hop is SSHHop.BASTION else None
    return own or ssh.private_key_ref


def hop_of(machine: Machine, reported: Condition) -> SSHHop:
    """Return the server that a condition of SSH is about, as machina wrote it."""
    status = machine.status
    if _bastion(machine) is None:
        return SSHHop.HOST
    if reported.type == ConditionType.SSH_REACHABLE:
        hop = status.ssh.failed_hop if status.ssh is not None else None
    elif reported.type == ConditionType.HOST_RESET:
        hop = status.ssh.reset_failed_hop if status.ssh is not None else None
    else:  # a missing input before a login concerns the host, whatever server an earlier attempt failed at
        attempt = status.provisioning
        hop = attempt.failed_hop if attempt is not None and attempt.failure == reported.reason else None
    return SSHHop(hop) if hop is not None else SSHHop.HOST


def _host(machine: Machine, reported: Condition) -> str:
    """Return name or address of the server that a condition is about."""
    ssh, bastion = machine.spec.ssh, _bastion(machine)
    where = (
        bastion.host if bastion is not None and hop_of(machine, reported) is SSHHop.BASTION else ssh.host if ssh else ""
    )
    return host_and_port(where).host


def _ssh_patch(machine: Machine, reported: Condition, change: Mapping[str, Any]) -> str:
    ssh = {"bastion": change} if hop_of(machine, reported) is SSHHop.BASTION else change
    return patch_machine(machine.name, {"spec": {"ssh": ssh}})


# The install on the host


def _again(machine: Machine) -> Fix:
    return Fix(f"{PLUGIN} machine allow-join {machine.name}", "retries at once, when the cause is removed")


def _by_hand(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return (Fix(f"{ssh_command(machine)}sudo unbounded-agent reset", "resets the host by hand"),)


def _show_script_output(machine: Machine) -> Fix:
    return Fix(f"{PLUGIN} logs {machine.name} --part install", "shows the last output of the install script")


def _attempt(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    root = Fix(f"{ssh_command(machine)}sudo -n true", "logs in and becomes root as the install does")
    return (_show_script_output(machine), root, _again(machine))


def _sudo(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    user = machine.spec.ssh.username if machine.spec.ssh is not None else "USER"
    allow = f'echo "{user} ALL=(ALL) NOPASSWD: ALL" | sudo tee /etc/sudoers.d/unbounded'
    as_root = patch_machine(machine.name, {"spec": {"ssh": {"username": "root"}}})
    return (
        Fix(f"{ssh_command(machine)}-t {shlex.quote(allow)}", f"lets {user} become root without a password"),
        Fix(as_root, "logs in as root"),
        _again(machine),
    )


def _disk_full(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    show = Fix(
        f"{ssh_command(machine)}df -h / /var /var/lib", "shows which file system of the host is full: free some space"
    )
    return (show, _show_script_output(machine), _again(machine))


def _no_command(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    names = "curl tar openssl util-linux"
    install = f'sudo sh -c "apt-get install -y {names} || dnf install -y {names}"'
    does = "installs what the install script needs: curl or wget, tar, flock, and openssl where releases are signed"
    return (Fix(f"{ssh_command(machine)}{shlex.quote(install)}", does), _show_script_output(machine), _again(machine))


def _no_release(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    """Return fixes for a missing file on the server of releases: for all hosts, or for this Machine's version."""
    return (*release_fixes(machine), _show_script_output(machine))


def _no_artifact(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    version = patch_machine(machine.name, {"spec": {"kubernetes": {"version": "VERSION"}}})
    return (
        _show_script_output(machine),
        Fix(version, "sets a version that the mirror, or the project, has"),
        Fix(f"{PLUGIN} install --artifact-mirror URL", "sets another mirror for all Machines"),
    )


def _no_image(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return named_source(machine, "image", "--agent-image", "IMAGE", "the image of its node")


def _preflight(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    show = f"{ssh_command(machine)}sudo unbounded-agent preflight"
    return (
        _show_script_output(machine),
        Fix(show, "checks the host again, where the agent is installed"),
        _again(machine),
    )


def _token(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return token_fixes(machine, unknown=False)


def _token_not_renewable(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return token_fixes(machine, unknown=True)


def _token_forbidden(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    kubernetes = machine.spec.kubernetes
    if kubernetes is not None and kubernetes.bootstrap_token_ref is not None:
        return (_RIGHTS,)
    change = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-ID"}}}}
    return (
        Fix(patch_machine(machine.name, change), "sets the token, which machina then reads by its name"),
        _RIGHTS,
    )


def _source(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return release_fixes(machine)


def _digest(machine: Machine, _condition: Condition) -> tuple[Fix, ...]:
    return digest_fixes(machine)


_R = ConditionReason
OF_LOGIN: Final[tuple[tuple[ConditionReason, Remedy], ...]] = (  # for a login on the host or on its bastion
    (_R.HOST_KEY_CHANGED, _host_key),
    (_R.CREDENTIALS_REFUSED, _login),
    (_R.SECRET_MISSING, _secret_missing),
    (_R.SECRET_FORBIDDEN, _rights),
    (_R.SECRET_UNUSABLE, _key_unusable),
    (_R.PASSPHRASE_WRONG, _passphrase),
    (_R.FORWARDING_PROHIBITED, _no_forwarding),
    (_R.NO_ROUTE, _no_route),
    (_R.NAME_NOT_RESOLVED, _no_name),
    (_R.CONNECTION_REFUSED, _not_listening),
    (_R.NOT_SSH, _unreachable),
    (_R.TOO_MANY_SESSIONS, _too_many),
    (_R.CONNECTION_LOST, _unreachable),
    (_R.TIMED_OUT, _unreachable),
    (_R.UNREACHABLE, _unreachable),
)
OF_RESET: Final[Mapping[str, Remedy]] = {**dict(OF_LOGIN), _R.FAILED: _by_hand}  # while the Machine is being deleted
ON_HOST: Final[tuple[tuple[ConditionReason, Remedy], ...]] = (  # for the install on the host
    (_R.SUDO_REFUSED, _sudo),
    (_R.COMMAND_MISSING, _no_command),
    (_R.DISK_FULL, _disk_full),
    (_R.RELEASE_NOT_FOUND, _no_release),
    (_R.ARTIFACT_NOT_FOUND, _no_artifact),
    (_R.IMAGE_MISSING, _no_image),
    (_R.PREFLIGHT_FAILED, _preflight),
    (_R.FAILED, _attempt),
    (_R.TIMED_OUT, _attempt),
)
BEFORE_LOGIN: Final[tuple[tuple[ConditionReason, Remedy], ...]] = (  # for missing inputs besides a key
    (_R.TOKEN_UNUSABLE, _token),
    (_R.TOKEN_NOT_RENEWABLE, _token_not_renewable),
    (_R.TOKEN_FORBIDDEN, _token_forbidden),
    (_R.SOURCE_MISSING, _source),
    (_R.DIGEST_MISSING, _digest),
)
OF_KEYS: Final = frozenset({_login, _secret_missing, _rights, _key_unusable, _passphrase})
