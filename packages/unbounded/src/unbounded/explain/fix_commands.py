"""Commands that fixes are made of."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any, Final

from unbounded.api.machine import Machine, SSHHop
from unbounded.api.machine_spec import BastionSSHSpec, SecretKeySelector, SSHSpec
from unbounded.api.operation import MachineOperation
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.links import PLUGIN, Fix
from unbounded.machina.ssh.model import HostPort, host_port
from unbounded.operations.execution_record import run_of
from unbounded.operations.executor_selection import ExecutorKind

SSH_PORT: Final = 22

Remedy = Callable[[Machine | None, MachineOperation, ExplainFacts], tuple[Fix, ...]]


def patch_machine(name: str, change: Mapping[str, Any], *, status: bool = False) -> str:
    """Return a `kubectl patch` of a Machine, quoted for a shell."""
    subresource = " --subresource=status" if status else ""
    return f"kubectl patch mach {name}{subresource} --type=merge -p {shlex.quote(json.dumps(change))}"


def patch_operation(name: str, change: Mapping[str, Any]) -> str:
    """Return a `kubectl patch` of a MachineOperation, quoted for a shell."""
    return f"kubectl patch mop {name} --type=merge -p {shlex.quote(json.dumps(change))}"


def ssh_command(machine: Machine | None) -> str:
    """Return the prefix that runs a command on the host; empty for a Machine without SSH."""
    ssh = machine.spec.ssh if machine is not None else None
    if ssh is None:
        return ""
    jump = ["-J", _jump(ssh.bastion.username, ssh.bastion.host)] if ssh.bastion is not None else []
    return f"{shlex.join(['ssh', *jump, *_login(ssh.username, ssh.host)])} "


def bastion_command(bastion: BastionSSHSpec) -> str:
    """Return the prefix that runs a command on a bastion."""
    return f"{shlex.join(['ssh', *_login(bastion.username, bastion.host)])} "


def copy_id(ssh: SSHSpec, hop: SSHHop) -> str:
    """Return the command that adds a public key on a server; existing keys stay."""
    words = ["ssh-copy-id", "-i", "KEY.pub"]
    if hop is SSHHop.BASTION and ssh.bastion is not None:
        return shlex.join([*words, *_login(ssh.bastion.username, ssh.bastion.host)])
    if ssh.bastion is not None:
        words += ["-o", f"ProxyJump={_jump(ssh.bastion.username, ssh.bastion.host)}"]
    return shlex.join([*words, *_login(ssh.username, ssh.host)])


def _login(user: str, where: str) -> list[str]:
    host, port = _where(where)  # not as ssh://, which takes no IPv6 address, with or without brackets
    return [*(["-p", port] if port else []), f"{user}@{host}"]


def _jump(user: str, host: str) -> str:
    """Return a bastion in the form of -J: an IPv6 address is in brackets, as its colons do not begin a port."""
    where, port = _where(host)
    return f"{user}@{f'[{where}]' if ':' in where else where}{f':{port}' if port else ''}"


def host_and_port(text: str) -> HostPort:
    """Parse a host of a spec; an invalid one is shown unchanged."""
    try:
        return host_port(text)
    except ValueError:  # a condition of its Machine reports that
        return HostPort(text)


def _where(host: str) -> tuple[str, str]:
    """Return name or address, and the port unless it is 22."""
    found = host_and_port(host)
    return found.host, "" if found.port == SSH_PORT else str(found.port)


def create_again(operation: MachineOperation, does: str = "requests it again", *, but: str = "") -> Fix:
    """Return the command that requests the same operation again.

    Args:
        but: a parameter to leave out.
    """
    target, kind = operation.spec.machine_ref, operation.spec.operation_kind
    if target is None:
        return Fix(f"{PLUGIN} machine operation create NAME --kind {kind} -l SELECTOR", does, once_ended=True)
    parameters = {key: value for key, value in operation.spec.parameters.items() if key != but}
    given = "".join(f" --param {shlex.quote(f'{key}={value}')}" for key, value in parameters.items())
    words = f"{PLUGIN} machine operation create {fresh_name(operation)} --kind {kind} --machine {target}{given}"
    return Fix(words, does, once_ended=True)


def fresh_name(operation: MachineOperation) -> str:
    """Return an unused name for the next operation."""
    head, _, number = operation.name.rpartition("-again-")
    return f"{head}-again-{int(number) + 1}" if head and number.isdecimal() else f"{operation.name}-again-1"


def secret_fix(ref: SecretKeySelector, source: str) -> Fix:
    """Return the command that writes one key of a Secret.

    Args:
        source: an option of `kubectl create secret generic`, with {key} in it.
    """
    make = f"kubectl -n {ref.namespace} create secret generic {ref.name} {source.format(key=ref.key)}"
    return Fix(f"{make} --dry-run=client -o yaml | kubectl apply -f -", f"writes the Secret {ref.name}")


def token_fixes(machine: Machine | None, *, unknown: bool) -> tuple[Fix, ...]:
    """Return fixes that give a host a bootstrap token.

    Args:
        unknown: the Machine names a token that `site init` did not make. `site init` renews the site's own under their
            names.
    """
    site = (machine.site if machine is not None else "") or "SITE"
    init = f"{PLUGIN} site init --name {site}"
    if machine is None or not unknown:
        return (Fix(init, "creates a valid bootstrap token"),)
    change = {"spec": {"kubernetes": {"bootstrapTokenRef": None}}}
    return (
        Fix(patch_machine(machine.name, change), "lets it join with a default token"),
        Fix(init, "creates a default token, if none exists"),
    )


def fix_create_again(_machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    return (create_again(operation),)


def is_of_cloud(operation: MachineOperation) -> bool:
    run = run_of(operation)
    return run is not None and run.executor.startswith(f"{ExecutorKind.CLOUD}/")


def release_fixes(machine: Machine) -> tuple[Fix, ...]:
    """Return fixes that set the release of a host's agent."""
    return named_source(machine, "url", "--agent-url", "URL", "the release of its agent")


def digest_fixes(machine: Machine) -> tuple[Fix, ...]:
    """Return fixes that set the digest of a release that comes over plain http."""
    return named_source(machine, "sha256", "--agent-sha256", "DIGEST", "the digest of its agent's tarball")


def facts_fixes() -> tuple[Fix, ...]:
    """Return fixes that set the facts of a cluster that machina cannot find."""
    return (
        Fix(
            f"{PLUGIN} install --api-server-endpoint HOST:PORT --cluster-dns IP",
            "gives machina the facts that it cannot find",
        ),
        Fix(
            "unbounded up --bind 0.0.0.0 --advertise-address IP --cluster-dns IP",
            "sets them where machina runs in `unbounded up`",
        ),
    )


def named_source(machine: Machine, field: str, flag: str, value: str, what: str) -> tuple[Fix, ...]:
    """Return fixes that set one field of spec.agent, for the Machine or for all Machines."""
    own = patch_machine(machine.name, {"spec": {"agent": {field: value}}})
    return (
        Fix(own, f"names {what}"),
        Fix(f"{PLUGIN} install {flag} {value}", "sets it for all Machines"),
        Fix(f"unbounded up {flag} {value}", "sets it for all Machines where machina runs in `unbounded up`"),
    )


def manual_bootstrap(machine: Machine) -> str:
    """Return the command that prints the manual installation of a host's agent."""
    return f"{PLUGIN} machine manual-bootstrap {machine.name} --site {machine.site or 'SITE'}"


def has_reported(machine: Machine) -> bool:
    """Return whether an agent has ever reported from the host of a Machine."""
    return machine.has_agent
