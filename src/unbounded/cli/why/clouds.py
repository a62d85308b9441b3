"""The commands that undo why an operation on a cloud waits or has failed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import msgspec

from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.cli.why.facts import Facts
from unbounded.cli.why.fixing import (
    Remedy,
    again,
    asked_again,
    digest_fixes,
    is_of_cloud,
    patch,
    release_fixes,
    token_fixes,
)
from unbounded.cli.why.links import PLUGIN, Fix
from unbounded.join.finding import NAME_ANOTHER
from unbounded.join.install import NO_DIGEST, NO_RELEASE
from unbounded.machineops import reasons as cloud
from unbounded.machineops.joining import NO_CONFIGURATION, NO_KUBERNETES
from unbounded.operations import reasons


def _bad_login(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    """For a login that cannot be meant: what the message names is put right."""
    message = operation.status.message or ""
    if machine is not None and not machine.site:
        label = f"kubectl label machine {machine.name} {LABEL_SITE}=SITE"
        return (Fix(label, "puts it in a site, by which its credential is found"), again(operation))
    for found, does in (
        (_LACKING_IN.search(message), "writes what the login's Secret lacks"),
        (_WRONG_IN.search(message), "corrects what is wrong in the login's Secret"),
    ):
        if found is not None:
            change = json.dumps({"stringData": dict.fromkeys((found["keys"] or "KEY").split(", "), "VALUE")})
            write = f"kubectl -n {found['namespace']} patch secret {found['name']} --type=merge"
            return (Fix(f"{write} -p {shlex.quote(change)}", does), again(operation))
    return _named_credential(machine, operation, facts)


def _named_credential(machine: Machine | None, operation: MachineOperation, facts: Facts) -> tuple[Fix, ...]:
    credential = _CREDENTIAL_IN.search(operation.status.message or "")
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
_WRONG_IN: Final = re.compile(rf"{_SECRET_IN.pattern} is wrong(?: in (?P<keys>[\w.-]+(?:, [\w.-]+)*))?: ")
_NEEDS_IN: Final = re.compile(r" needs in it: (?P<keys>[\w.-]+(?:, [\w.-]+)*)")
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
    needs = _NEEDS_IN.search(operation.status.message or "")
    keys = " ".join(f"--from-file={key}=FILE" for key in (needs["keys"].split(", ") if needs is not None else ["KEY"]))
    words = f"kubectl -n {secret['namespace']} create secret generic {secret['name']} {keys}"
    return (Fix(words, "makes the Secret that the MachineOperationCredential names"), again(operation))


def _token(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    message = operation.status.message or ""
    if machine is not None and NO_KUBERNETES in message:
        change = {"spec": {"kubernetes": {"version": "VERSION"}}}
        return (Fix(patch("machine", machine.name, change), "lets a host of it become a node"), again(operation))
    if machine is not None and message.startswith(NO_CONFIGURATION):
        does = "has spec.configurationRef name one that `kubectl get machineconfigurationversions` shows"
        return (Fix(f"kubectl edit machine {machine.name}", does), again(operation))
    if machine is not None and (source := _source(machine, message)):
        return (*source, again(operation))
    return (*token_fixes(machine, unknown=NAME_ANOTHER in message), again(operation))


def _source(machine: Machine, message: str) -> tuple[Fix, ...]:
    if NO_DIGEST in message:
        return digest_fixes(machine)
    return release_fixes(machine) if NO_RELEASE in message else ()


def _instance(words: str) -> Remedy:
    def remedy(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
        if machine is None:
            return ()
        lost = _NO_MODEL_IN.search(operation.status.message or "")
        if lost is not None:  # and the instance with it
            does = f"brings Secret {lost['name']} back, if there is a copy of it: what is kept there is gone on from"
            return (Fix(f"kubectl -n {lost['namespace']} apply -f SECRET.yaml", does), again(operation))
        successors = _SUCCESSOR_IN.findall(operation.status.message or "")
        named = successors[0] if len(successors) == 1 else "PROVIDER-ID"
        change = {"spec": {"providerID": named}}
        bind = Fix(patch("machine", machine.name, change), f"binds it to {words}", once_ended=True)
        return (bind, again(operation))

    return remedy


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
    given = operation.spec.parameters
    losses = [one for one in operation.status.losses if "keep" in given or one.lessens_security]
    if losses:
        named = [one.strip() for one in given.get("accept", "").split(",") if one.strip()]
        accept = ",".join(dict.fromkeys([*named, *(one.field for one in losses)]))
        spec = msgspec.structs.replace(operation.spec, parameters={**given, "accept": accept})
        accepting = msgspec.structs.replace(operation, spec=spec)
        return (again(accepting, "accepts each loss that is named in it; what comes of them is in status.losses"),)
    if "keep" in given:
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
    left = _LEFT_IN.search(message)
    if left is not None:
        look = _INSTANCE["OCIInstance"].format(left["id"])
        return (
            Fix(look, "shows what is left of an earlier one: the message says what to do about it"),
            again(operation),
        )
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


def _cloud_again(_machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    """For a cloud that was not there, or took no more requests: it is asked again by itself, until it has ended."""
    return (again(operation),) if is_of_cloud(operation) else ()


def _look_there(machine: Machine | None, operation: MachineOperation, _facts: Facts) -> tuple[Fix, ...]:
    """For what may have been done on a cloud, and may not: nobody is told to do it again without having looked."""
    if not is_of_cloud(operation):
        return ()
    show = _INSTANCE.get((machine.provider if machine is not None else None) or "")
    provider_id = (machine.spec.provider_id if machine is not None else None) or ""
    if show is None or not provider_id:
        return (again(operation),)
    words = show.format(shlex.quote(provider_id.partition("://")[2]))
    return (Fix(words, "shows what the instance is doing now"), again(operation))


def _group(machine: Machine | None) -> Mapping[str, str]:
    """Resource group and subscription of a VM of Azure, for commands."""
    found = _GROUP_IN.search((machine.spec.provider_id if machine is not None else None) or "")
    unknown = {"group": "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP", "subscription": "SUBSCRIPTION"}
    return unknown if found is None else found.groupdict()


_GROUP_IN: Final = re.compile(r"(?i)(?P<group>/subscriptions/(?P<subscription>[\w-]+)/resourceGroups/[\w.()-]+)")
_POLICY_IN: Final = re.compile(r'"policyAssignment":\{"name":"(?P<name>[^"]*)","id":"(?P<id>[^"\']*)"')
_LEFT_IN: Final = re.compile(
    r"\binstance (?P<id>ocid1\.[\w.-]+), which is \w+, (?:was launched in place|is still there)"
)
_SUCCESSOR_IN: Final = re.compile(r"have spec\.providerID of Machine \S+ name ([a-z][a-z0-9+.-]*://[\w./:-]*\w)")
_NO_MODEL_IN: Final = re.compile(rf"no model of it in {_SECRET_IN.pattern}")
_QUOTA: Final = {
    "AzureVM": "az vm list-usage --subscription {subscription} --location LOCATION --output table",
    "OCIInstance": "oci limits value list --compartment-id TENANCY --service-name compute --all --output table",
}
_INSTANCE: Final = {
    "AzureVM": "az vm get-instance-view --ids {}",
    "OCIInstance": "oci compute instance get --instance-id {}",
}
_GUIDE: Final = {
    "AzureVM": "docs/azure.md#when-a-replacement-does-not-go-on",
    "OCIInstance": "docs/oci.md#when-a-replacement-does-not-go-on",
}


CLOUD: Final[Mapping[str, Remedy]] = {
    reasons.NO_ANSWER: _cloud_again,
    reasons.OUTCOME_UNKNOWN: _look_there,
    cloud.AUTH_NOT_FOUND: _credential(_APPLY),
    cloud.AUTH_AMBIGUOUS: _credential(_SHOW),
    cloud.AUTH_INVALID: _bad_login,
    cloud.AUTH_SECRET_FORBIDDEN: _named_credential,
    cloud.AUTH_SECRET_NOT_FOUND: _no_secret,
    cloud.AUTH_REFUSED: _refused_login,
    cloud.BOOTSTRAP_DATA_FAILED: _token,
    cloud.INVALID_PROVIDER_ID: _instance("an instance that there is"),
    cloud.INSTANCE_NOT_FOUND: _instance("an instance that there is"),
    cloud.PROVIDER_ID_SHARED: _instance("an instance of its own"),
    cloud.INSTANCE_NOT_RUNNING: _power_on,
    cloud.KEEPING_FAILED: asked_again,
    cloud.KEPT_IS_GONE: _kept,
    cloud.NO_CAPACITY: asked_again,
    cloud.QUOTA_EXCEEDED: _quota,
    cloud.PROVIDER_REFUSED: _refused,
    cloud.PROVIDER_OPERATION_FAILED: asked_again,
    cloud.DOES_NOT_STAY_OFF: asked_again,
    cloud.DOES_NOT_STAY_ON: asked_again,
    cloud.WOULD_BE_LOST: _lost,
}
