"""The commands that undo a cause, by the reason that names it. Capital words in them are to be filled in."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from unbounded.api.machine import Machine, SecretKeySelector
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.cli.deploying.machines import name_of
from unbounded.cli.why.facts import Facts
from unbounded.cli.why.links import PLUGIN, Fix
from unbounded.join.finding import NAME_ANOTHER
from unbounded.machina.ssh.model import host_port
from unbounded.machineops import reasons as cloud
from unbounded.machineops.joining import NO_KUBERNETES
from unbounded.metalman import reasons as metal
from unbounded.operations import reasons
from unbounded.operations.ownership import Executor
from unbounded.operations.record import run_of

SSH_PORT: Final = 22

Remedy = Callable[[Machine | None, MachineOperation, Facts], tuple[Fix, ...]]


def fixes_for(reason: str, machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    """What undoes the reason for which an operation waits or has failed; empty where nothing is known to."""
    remedy = OPERATION.get(reason)
    found = () if remedy is None else remedy(machine, operation, facts)
    under_way = not operation.terminal and run_of(operation) is not None
    return tuple(fix for fix in found if not (under_way and fix.once_ended))


def patch(kind: str, name: str, change: Mapping[str, Any], *, status: bool = False) -> str:
    """A `kubectl patch` as it can be typed."""
    subresource = " --subresource=status" if status else ""
    return f"kubectl patch {kind} {name}{subresource} --type=merge -p {shlex.quote(json.dumps(change))}"


def ssh_command(machine: Machine | None) -> str:
    """What goes before a command that is to run on the host; empty for a Machine that is not reached over SSH."""
    ssh = machine.spec.ssh if machine is not None else None
    if ssh is None:
        return ""
    words = ["ssh", *(("-J", _jump(ssh.bastion.username, ssh.bastion.host)) if ssh.bastion is not None else ())]
    host, port = _where(ssh.host)  # not as ssh://, which takes no IPv6 address, with or without brackets
    words += ["-p", port] if port else []
    return f"{shlex.join([*words, f'{ssh.username}@{host}'])} "


def _jump(user: str, host: str) -> str:
    """A bastion as -J takes it: an IPv6 address, whose colons are no port's, in brackets."""
    where, port = _where(host)
    return f"{user}@{f'[{where}]' if ':' in where else where}{f':{port}' if port else ''}"


def _where(host: str) -> tuple[str, str]:
    """Name or address, and the port where it is no usual one. A host that cannot be meant is shown as it is."""
    try:
        found = host_port(host)
    except ValueError:  # a condition of its Machine says so
        return host, ""
    return found.host, "" if found.port == SSH_PORT else str(found.port)


def again(operation: MachineOperation, does: str = "asks for it once more", *, but: str = "") -> Fix:
    """Ask for the same once more.

    Args:
        but: a parameter that is left out.
    """
    target, kind = operation.spec.machine_ref, operation.spec.operation_kind
    if target is None:
        return Fix(f"{PLUGIN} machine operation create NAME --kind {kind} -l SELECTOR", does, once_ended=True)
    kept = {key: value for key, value in operation.spec.parameters.items() if key != but}
    given = "".join(f" --param {shlex.quote(f'{key}={value}')}" for key, value in kept.items())
    words = f"{PLUGIN} machine operation create {fresh_name(operation)} --kind {kind} --machine {target}{given}"
    return Fix(words, does, once_ended=True)


def fresh_name(operation: MachineOperation) -> str:
    """A name that the next one can have."""
    head, _, number = operation.name.rpartition("-again-")
    return f"{head}-again-{int(number) + 1}" if head and number.isdecimal() else f"{operation.name}-again-1"


def secret_fix(ref: SecretKeySelector, source: str) -> Fix:
    """Write one key of a Secret; `source` is an option of `kubectl create secret generic`, with {key} in it."""
    make = f"kubectl -n {ref.namespace} create secret generic {ref.name} {source.format(key=ref.key)}"
    return Fix(f"{make} --dry-run=client -o yaml | kubectl apply -f -", f"writes the Secret {ref.name}")


def token_fixes(machine: Machine | None, said: str) -> tuple[Fix, ...]:
    """For a host that has no token to join with, by what was said of it: the site's are made anew under their names."""
    site = (machine.site if machine is not None else "") or "SITE"
    init = f"{PLUGIN} site init --name {site}"
    if machine is None or NAME_ANOTHER not in said:
        return (Fix(init, "makes a bootstrap token that is valid"),)
    change = {"spec": {"kubernetes": {"bootstrapTokenRef": None}}}
    return (
        Fix(patch("machine", machine.name, change), "has it join with a default token"),
        Fix(init, "makes a default token, if there is none"),
    )


def _password(machine: Machine | None, _operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if machine is None or machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return ()
    return (secret_fix(machine.spec.pxe.redfish.password_ref, "--from-literal={key}=PASSWORD"),)


def _certificate(machine: Machine | None, _operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    change = {"status": {"redfish": {"certFingerprint": None}}}
    return (
        Fix(
            patch("machine", machine.name, change, status=True),
            "pins the certificate that the BMC shows now, if it may",
        ),
    )


def _redfish(change: Mapping[str, Any], does: str) -> Remedy:
    def remedy(machine: Machine | None, _operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
        if machine is None:
            return ()
        return (Fix(patch("machine", machine.name, {"spec": {"pxe": {"redfish": change}}}), does),)

    return remedy


def _unsupported(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    fixes = (Fix(f"kubectl edit machine {machine.name}", "gives it a BMC (spec.pxe.redfish), or a provider"),)
    if operation.spec.operation_kind == OperationKind.HOST_REBOOT and machine.spec.ssh is not None:
        return (*fixes, Fix(f"{PLUGIN} why machine/{machine.name}", "says why its agent has not reported"))
    return fixes


def _parameters(_machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    target = f" --machine {operation.spec.machine_ref}" if operation.spec.machine_ref else " -l SELECTOR"
    kind = operation.spec.operation_kind
    words = f"{PLUGIN} machine operation create {fresh_name(operation)} --kind {kind}{target} --param NAME=VALUE"
    return (Fix(words, "asks for it with parameters that are right", once_ended=True),)


def _no_machine(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    if machine is not None:  # it is there, and about to go
        return ()
    run = run_of(operation)
    if run is not None and run.executor.startswith(f"{Executor.CLOUD}/"):
        does = "makes it again, with the spec.provider and the spec.providerID that it had"
        return (Fix("kubectl apply -f MACHINE.yaml", does, once_ended=True), again(operation))
    return (
        Fix("kubectl get machines", "shows how it may be spelled"),
        _register(operation.spec.machine_ref or "", facts),
    )


def _register(name: str, facts: Facts) -> Fix:
    """What makes the Machine of this name, whose beginning is its site."""
    login = "--host HOST --ssh-username USER --ssh-private-key FILE"
    for site, rest in _splits(name):
        if facts.is_site(site) and name_of(site, rest) == name:
            return Fix(f"{PLUGIN} machine register --site {site} --name {rest} {login}", "makes it")
    return Fix(f"{PLUGIN} machine register --site SITE --name NAME {login}", "makes one, which is called SITE-NAME")


def _splits(name: str) -> Iterator[tuple[str, str]]:
    """SITE and NAME of SITE-NAME, the longest site first."""
    at = name.rfind("-")
    while at > 0:
        if at + 1 < len(name):
            yield name[:at], name[at + 1 :]
        at = name.rfind("-", 0, at)


def _again(_machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    return (again(operation),)


def _definitions(_machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    return (Fix(f"{PLUGIN} install", "brings the CRDs up to date"), again(operation))


def _image(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if machine is None or machine.spec.pxe is None:
        return ()
    change = {"spec": {"pxe": {"image": "IMAGE"}}}
    return (Fix(patch("machine", machine.name, change), "names an image that can be pulled"), again(operation))


def _bad_login(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    """For a login that cannot be meant: what the message names is put right."""
    message = operation.status.message or ""
    lacking, credential = _LACKING_IN.search(message), _CREDENTIAL_IN.search(message)
    if lacking is not None:
        change = json.dumps({"stringData": dict.fromkeys(lacking["keys"].split(", "), "VALUE")})
        write = f"kubectl -n {lacking['namespace']} patch secret {lacking['name']} --type=merge"
        return (Fix(f"{write} -p {shlex.quote(change)}", "writes what the login's Secret lacks"), again(operation))
    if credential is not None:
        edit = f"kubectl edit machineoperationcredential {credential['name']}"
        return (Fix(edit, "corrects what the message names"), again(operation))
    return _credential(_EDIT)(machine, operation, facts)


def _refused_login(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    credential = _CREDENTIAL_IN.search(operation.status.message or "")
    if credential is None:
        return _credential(_EDIT)(machine, operation, facts)
    show = f"kubectl get machineoperationcredential {credential['name']} -o jsonpath='{{.spec.auth}}'"
    does = "shows who it logs in as: there the cloud refuses the login, or the right that the message names is missing"
    return (Fix(show, does), again(operation))


def _credential(words: str) -> Remedy:
    def remedy(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
        if machine is None or machine.provider is None:
            return ()
        place = f"for spec.siteName {machine.site} and spec.provider {machine.provider}"
        return (Fix(words, f"{_DOES[words]} {place}"), again(operation))

    return remedy


_SECRET_IN: Final = re.compile(r"\bSecret (?P<namespace>[a-z0-9-]+)/(?P<name>[a-z0-9.-]*[a-z0-9])")
_CREDENTIAL_IN: Final = re.compile(r"\bMachineOperationCredential (?P<name>[a-z0-9.-]*[a-z0-9])")
_LACKING_IN: Final = re.compile(
    rf"{_SECRET_IN.pattern} lacks (?P<keys>[\w.-]+(?:, [\w.-]+)*), which "  # as the controller words it
)
_SHOW: Final = "kubectl get machineoperationcredentials"
_APPLY: Final = "kubectl apply -f CREDENTIAL.yaml"
_EDIT: Final = "kubectl edit machineoperationcredential NAME"
_SECRET: Final = f"kubectl -n {NAMESPACE} create secret generic NAME --from-file=KEY=FILE"
_DOES: Final = {
    _SHOW: "shows those there are, of which one is to stay",
    _APPLY: "brings a MachineOperationCredential",
    _EDIT: "corrects the MachineOperationCredential",
    _SECRET: "makes the Secret of the MachineOperationCredential",
}


def _no_secret(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    secret = _SECRET_IN.search(operation.status.message or "")
    if secret is None:
        return _credential(_SECRET)(machine, operation, facts)
    words = f"kubectl -n {secret['namespace']} create secret generic {secret['name']} --from-file=KEY=FILE"
    return (Fix(words, "makes the Secret that the MachineOperationCredential names"), again(operation))


def _token(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    message = operation.status.message or ""
    if machine is not None and NO_KUBERNETES in message:
        change = {"spec": {"kubernetes": {"version": "VERSION"}}}
        return (Fix(patch("machine", machine.name, change), "lets a host of it become a node"), again(operation))
    return (*token_fixes(machine, message), again(operation))


def _instance(words: str) -> Remedy:
    def remedy(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
        if machine is None:
            return ()
        lost = _NO_MODEL_IN.search(operation.status.message or "")
        if lost is not None:  # and the instance with it
            does = f"brings Secret {lost['name']} back, if there is a copy of it: what is kept there is gone on from"
            return (Fix(f"kubectl -n {lost['namespace']} apply -f SECRET.yaml", does), again(operation))
        change = {"spec": {"providerID": "PROVIDER-ID"}}
        bind = Fix(patch("machine", machine.name, change), f"binds it to {words}", once_ended=True)
        return (bind, again(operation))

    return remedy


def _other_target(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    """What is asked for once more would be done to the other host: that is not proposed."""
    if machine is None:
        return ()
    name, change = machine.name, {"spec": {"providerID": "PROVIDER-ID"}}
    look = Fix(f"kubectl get machine {name} -o yaml", "shows what it is bound to now, and operations would be done to")
    if not machine.provider:
        return (look,)
    does = f"binds it again to what {operation.name} was asked for"
    return (look, Fix(patch("machine", name, change), does, once_ended=True))


def _kept(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    back = Fix("kubectl apply -f SECRET.yaml", "puts the Secret that the message names back, if there is a copy of it")
    if machine is None:
        return (back,)
    bind = patch("machine", machine.name, {"spec": {"providerID": "PROVIDER-ID"}})
    by_hand = "binds it to an instance that was made by hand, of what the message names"
    return (back, again(operation, "asks for it once more, with that Secret"), Fix(bind, by_hand, once_ended=True))


def _power_on(machine: Machine | None, _operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    return (Fix(f"{PLUGIN} machine power-on {machine.name}", "starts it"),)


def _lost(_machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    if "keep" in operation.spec.parameters:
        return (again(operation, "asks for it all the same: what the message names is lost then", but="keep"),)
    return (again(operation, "asks for it once more, when what the message names is out of its way"),)


def _refused(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    """For what the cloud does not take as things stand there."""
    message, group = operation.status.message or "", _group(machine)
    if "RequestDisallowedByPolicy" in message:
        return (_by_hand(_policy(message, group), machine), again(operation))
    if "MissingSubscriptionRegistration" in message:
        register = f"az provider register --namespace Microsoft.Compute --subscription {group['subscription']}"
        return (_by_hand(Fix(register, "registers the subscription to use it"), machine), again(operation))
    return (again(operation),)


def _policy(message: str, group: Mapping[str, str]) -> Fix:
    found = _POLICY_IN.search(message)
    name, query = "what it is called", ""
    if found is not None:
        name, by_id = found["name"], f"[?id=='{found['id']}']"
        query = f" --query {shlex.quote(by_id)}"
    show = f"az policy assignment list --disable-scope-strict-match --scope {group['group']}{query}"
    return Fix(show, f"shows the policy ({name}): exempt the VM from it, or change it")


def _quota(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    show = _QUOTA.get((machine.provider if machine is not None else None) or "")
    if show is None:
        return (again(operation),)
    does = "shows what may be used, of which the message names what is used up: ask for more, or remove something"
    return (_by_hand(Fix(show.format(**_group(machine)), does), machine), again(operation))


def _by_hand(fix: Fix, machine: Machine | None) -> Fix:
    """What is done where the machine is; an operation that goes on asks for the same again by itself."""
    guide = _GUIDE.get((machine.provider if machine is not None else None) or "")
    return replace(fix, does=f"{fix.does}{f'; {guide} says what happens then' if guide else ''}")


def _group(machine: Machine | None) -> Mapping[str, str]:
    """Resource group and subscription of a VM of Azure, for commands."""
    found = _GROUP_IN.search((machine.spec.provider_id if machine is not None else None) or "")
    unknown = {"group": "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP", "subscription": "SUBSCRIPTION"}
    return unknown if found is None else found.groupdict()


_GROUP_IN: Final = re.compile(r"(?i)(?P<group>/subscriptions/(?P<subscription>[\w-]+)/resourceGroups/[\w.()-]+)")
_POLICY_IN: Final = re.compile(r'"policyAssignment":\{"name":"(?P<name>[^"]*)","id":"(?P<id>[^"\']*)"')
_NO_MODEL_IN: Final = re.compile(rf"no model of it in {_SECRET_IN.pattern}")
_QUOTA: Final = {
    "AzureVM": "az vm list-usage --subscription {subscription} --location LOCATION --output table",
    "OCIInstance": "oci limits value list --compartment-id TENANCY --service-name compute --all --output table",
}
_GUIDE: Final = {
    "AzureVM": "docs/azure.md#when-a-replacement-does-not-go-on",
    "OCIInstance": "docs/oci.md#when-a-replacement-does-not-go-on",
}

OPERATION: Final[Mapping[str, Remedy]] = {
    reasons.UNSUPPORTED_TARGET: _unsupported,
    reasons.INVALID_PARAMETERS: _parameters,
    reasons.MACHINE_NOT_FOUND: _no_machine,
    reasons.WAITING_FOR_MACHINE: _no_machine,
    reasons.CRD_OUTDATED: _definitions,
    reasons.NOT_STARTED: _again,
    reasons.CANCELLED: _again,
    reasons.PREEMPTED: _again,
    reasons.TIMED_OUT: _again,
    reasons.DEADLINE_EXCEEDED: _again,
    reasons.EXECUTOR_LOST: _again,
    reasons.TARGET_CHANGED: _other_target,
    metal.CREDENTIALS_MISSING: _password,
    metal.CREDENTIALS_REFUSED: _password,
    metal.CERTIFICATE_CHANGED: _certificate,
    metal.CERTIFICATE_UNTRUSTED: _redfish({"caBundle": "PEM"}, "trusts another authority"),
    metal.ADDRESS_INVALID: _redfish({"url": "https://BMC"}, "names the BMC"),
    metal.IMAGE_NOT_READY: _image,
    cloud.AUTH_NOT_FOUND: _credential(_APPLY),
    cloud.AUTH_AMBIGUOUS: _credential(_SHOW),
    cloud.AUTH_INVALID: _bad_login,
    cloud.AUTH_SECRET_FORBIDDEN: _credential(_EDIT),
    cloud.AUTH_SECRET_NOT_FOUND: _no_secret,
    cloud.AUTH_REFUSED: _refused_login,
    cloud.BOOTSTRAP_DATA_FAILED: _token,
    cloud.INVALID_PROVIDER_ID: _instance("an instance that there is"),
    cloud.INSTANCE_NOT_FOUND: _instance("an instance that there is"),
    cloud.PROVIDER_ID_SHARED: _instance("an instance of its own"),
    cloud.INSTANCE_NOT_RUNNING: _power_on,
    cloud.KEEPING_FAILED: _again,
    cloud.KEPT_IS_GONE: _kept,
    cloud.NO_CAPACITY: _again,
    cloud.QUOTA_EXCEEDED: _quota,
    cloud.PROVIDER_REFUSED: _refused,
    cloud.PROVIDER_OPERATION_FAILED: _again,
    cloud.DOES_NOT_STAY_OFF: _again,
    cloud.DOES_NOT_STAY_ON: _again,
    cloud.WOULD_BE_LOST: _lost,
}
