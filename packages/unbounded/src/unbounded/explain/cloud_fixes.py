"""Commands that resolve why an operation on a cloud waits or has failed."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from unbounded.api.conditions import ConditionReason
from unbounded.api.machine import Machine
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.fix_commands import (
    Remedy,
    create_again,
    digest_fixes,
    facts_fixes,
    fix_create_again,
    is_of_cloud,
    patch_machine,
    release_fixes,
    token_fixes,
)
from unbounded.explain.links import PLUGIN, Fix
from unbounded.machineops import reasons as cloud
from unbounded.operations import reasons


def _about(operation: MachineOperation, *codes: str) -> Mapping[str, str]:
    """Return the details of an operation's cause; empty for a cause with another code."""
    cause = operation.status.cause
    return cause.about if cause is not None and (not codes or cause.code in codes) else {}


def _code(operation: MachineOperation) -> str:
    return operation.status.cause.code if operation.status.cause is not None else ""


def _bad_login(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for an invalid login: they correct the object that the cause names."""
    if machine is not None and _code(operation) == cloud.SITE_MISSING:
        label = f"kubectl label mach {machine.name} {LABEL_SITE}=SITE"
        return (Fix(label, "adds it to a site, which selects its credential"), create_again(operation))
    does = _IN_SECRET.get(_code(operation))
    about = _about(operation)
    if does is None or cloud.SECRET not in about:
        return _named_credential(machine, operation, facts)
    change = json.dumps({"stringData": dict.fromkeys(_keys(about), "VALUE")})
    write = f"kubectl {_secret(about, 'patch secret')} --type=merge -p {shlex.quote(change)}"
    return (Fix(write, does), create_again(operation))


_IN_SECRET: Final = {
    cloud.SECRET_INCOMPLETE: "adds the missing keys to the login's Secret",
    cloud.SECRET_INVALID: "corrects the login's Secret",
}


def _secret(about: Mapping[str, str], verb: str) -> str:
    """Return a command about the Secret of a cause, without `kubectl`."""
    namespace, _slash, name = about[cloud.SECRET].partition("/")
    return f"-n {shlex.quote(namespace)} {verb} {shlex.quote(name)}"


def _keys(about: Mapping[str, str]) -> list[str]:
    return about.get(cloud.KEYS, "KEY").split(", ")


def _named_credential(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    name = _about(operation).get(cloud.CREDENTIAL)
    if name is None:
        return _credential(_EDIT)(machine, operation, facts)
    edit = f"kubectl edit machineoperationcredential {shlex.quote(name)}"
    return (Fix(edit, "corrects the field that the message names"), create_again(operation))


def _refused_login(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    name = _about(operation).get(cloud.CREDENTIAL)
    if name is None:
        return _credential(_EDIT)(machine, operation, facts)
    show = f"kubectl get machineoperationcredential {shlex.quote(name)} -o jsonpath='{{.spec.auth}}'"
    does = "shows the login: the cloud rejects it, or the permission that the message names is missing"
    return (Fix(show, does), create_again(operation))


def _credential(words: str) -> Remedy:
    def remedy(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
        if machine is None or machine.provider is None:
            return ()
        place = f"for spec.siteName {machine.site} and spec.provider {machine.provider}"
        return (Fix(words, f"{_DOES[words]} {place}"), create_again(operation))

    return remedy


_SHOW: Final = "kubectl get machineoperationcredentials"
_APPLY: Final = "kubectl apply -f CREDENTIAL.yaml"
_EDIT: Final = "kubectl edit machineoperationcredential NAME"
_SECRET: Final = f"kubectl -n {NAMESPACE} create secret generic NAME --from-file=KEY=FILE"
_DOES: Final = {
    _SHOW: "lists them; keep one of them",
    _APPLY: "creates a MachineOperationCredential",
    _EDIT: "corrects the MachineOperationCredential",
    _SECRET: "creates the Secret of the MachineOperationCredential",
}


def _no_secret(machine: Machine | None, operation: MachineOperation, facts: ExplainFacts) -> tuple[Fix, ...]:
    about = _about(operation)
    if cloud.SECRET not in about:
        return _credential(_SECRET)(machine, operation, facts)
    keys = " ".join(f"--from-file={shlex.quote(key)}=FILE" for key in _keys(about))
    words = f"kubectl {_secret(about, 'create secret generic')} {keys}"
    return (Fix(words, "creates the Secret that the MachineOperationCredential names"), create_again(operation))


def _bootstrap(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for a missing input of a new host's user data."""
    code = _code(operation)
    if code in _OF_CONTROLLER:
        return (*_OF_CONTROLLER[code](), create_again(operation))
    if machine is None or code not in _LACKS:
        return (*token_fixes(machine, unknown=code == ConditionReason.TOKEN_NOT_RENEWABLE), create_again(operation))
    return (*_LACKS[code](machine), create_again(operation))


def _nothing() -> tuple[Fix, ...]:
    return ()


_OF_CONTROLLER: Final[Mapping[str, Callable[[], tuple[Fix, ...]]]] = {
    cloud.FACTS_MISSING: facts_fixes,
    cloud.USER_DATA_TOO_LONG: _nothing,
}


def _no_kubernetes(machine: Machine) -> tuple[Fix, ...]:
    change = {"spec": {"kubernetes": {"version": "VERSION"}}}
    return (Fix(patch_machine(machine.name, change), "enables its host to become a node"),)


def _no_configuration(machine: Machine) -> tuple[Fix, ...]:
    does = "sets spec.configurationRef to one that `kubectl get machineconfigurationversions` shows"
    return (Fix(f"kubectl edit mach {machine.name}", does),)


_LACKS: Final[Mapping[str, Callable[[Machine], tuple[Fix, ...]]]] = {
    cloud.KUBERNETES_MISSING: _no_kubernetes,
    cloud.CONFIGURATION_MISSING: _no_configuration,
    cloud.DIGEST_MISSING: digest_fixes,
    cloud.SOURCE_MISSING: release_fixes,
}


def _instance(words: str) -> Remedy:
    def remedy(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
        if machine is None:
            return ()
        lost = _about(operation, cloud.MODEL_MISSING)
        if cloud.SECRET in lost:  # the replacement's state Secret, and the instance with it
            namespace, _slash, name = lost[cloud.SECRET].partition("/")
            does = f"restores Secret {name} from a copy: the replacement continues from it"
            return (Fix(f"kubectl -n {shlex.quote(namespace)} apply -f SECRET.yaml", does), create_again(operation))
        named = _about(operation, cloud.INSTANCE_REPLACED).get(cloud.PROVIDER_ID, "PROVIDER-ID")
        change = {"spec": {"providerID": named}}
        bind = Fix(patch_machine(machine.name, change), f"binds it to {words}", once_ended=True)
        return (bind, create_again(operation))

    return remedy


def _state_secret_lost(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    which = _about(operation).get(cloud.SECRET, "that the message names")
    back = Fix("kubectl apply -f SECRET.yaml", f"restores the Secret {which} from a copy")
    if machine is None:
        return (back,)
    bind = patch_machine(machine.name, {"spec": {"providerID": "PROVIDER-ID"}})
    by_hand = "binds it to an instance that you create by hand from the resources in the message"
    return (
        back,
        create_again(operation, "requests it again, with that Secret"),
        Fix(bind, by_hand, once_ended=True),
    )


def _power_on(machine: Machine | None, _operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    if machine is None:
        return ()
    return (Fix(f"{PLUGIN} machine power-on {machine.name}", "starts it"),)


def _would_lose(_machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    given = operation.spec.parameters
    losses = [one for one in operation.status.losses if "keep" in given or one.lessens_security]
    if losses:
        named = [one.strip() for one in given.get("accept", "").split(",") if one.strip()]
        accept = ",".join(dict.fromkeys([*named, *(one.field for one in losses)]))
        spec = msgspec.structs.replace(operation.spec, parameters={**given, "accept": accept})
        accepting = msgspec.structs.replace(operation, spec=spec)
        return (create_again(accepting, "accepts each loss that it names; status.losses has their effects"),)
    if "keep" in given:
        return (create_again(operation, "requests it anyway, and loses what the message names", but="keep"),)
    return (create_again(operation, "requests it again, when the obstacle in the message is removed"),)


def _rejected(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for a request that the cloud rejects in its present state."""
    code, about, group = _code(operation), _about(operation), _group(machine)
    if code == "RequestDisallowedByPolicy":
        return (_by_hand(_policy(about, group), machine), create_again(operation))
    if code == "MissingSubscriptionRegistration":
        register = f"az provider register --namespace Microsoft.Compute --subscription {group['subscription']}"
        return (_by_hand(Fix(register, "registers the subscription for it"), machine), create_again(operation))
    lookup = _show_instance((machine.provider if machine is not None else None) or "", about.get(cloud.INSTANCE, ""))
    if code == cloud.EARLIER_INSTANCE and lookup:
        return (
            Fix(lookup, "shows the rest of an earlier one: follow the message"),
            create_again(operation),
        )
    return (create_again(operation),)


def _policy(about: Mapping[str, str], group: Mapping[str, str]) -> Fix:
    name, query = about.get(cloud.POLICY) or "its name", ""
    if cloud.POLICY_ID in about:
        by_id = f"[?id=='{about[cloud.POLICY_ID]}']"
        query = f" --query {shlex.quote(by_id)}"
    show = f"az policy assignment list --disable-scope-strict-match --scope {group['group']}{query}"
    return Fix(show, f"shows the policy ({name}): exempt the VM from it, or change it")


def _quota(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    show = _QUOTA.get((machine.provider if machine is not None else None) or "")
    if show is None:
        return (create_again(operation),)
    does = "shows the quotas; the message names the exhausted one: request more, or delete resources"
    return (_by_hand(Fix(show.format(**_group(machine)), does), machine), create_again(operation))


def _by_hand(fix: Fix, machine: Machine | None) -> Fix:
    """Add the guide to a fix in the cloud itself; a running operation retries by itself."""
    guide = _GUIDE.get((machine.provider if machine is not None else None) or "")
    return msgspec.structs.replace(fix, does=f"{fix.does}{f'; see {guide}' if guide else ''}")


def _cloud_again(_machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for an unreachable or throttling cloud. The operation retries by itself until it has ended."""
    return (create_again(operation),) if is_of_cloud(operation) else ()


def _check_instance(machine: Machine | None, operation: MachineOperation, _facts: ExplainFacts) -> tuple[Fix, ...]:
    """Return fixes for an unknown outcome on a cloud: the user has to check the instance before a retry."""
    if not is_of_cloud(operation):
        return ()
    provider_id = (machine.spec.provider_id if machine is not None else None) or ""
    words = _show_instance((machine.provider if machine is not None else None) or "", provider_id.partition("://")[2])
    if not words:
        return (create_again(operation),)
    return (Fix(words, "shows the state of the instance"), create_again(operation))


def _show_instance(provider: str, instance: str) -> str:
    """Return the command that shows an instance in its cloud; empty where there is none."""
    show = _INSTANCE.get(provider)
    return show.format(shlex.quote(instance)) if show is not None and instance else ""


def _group(machine: Machine | None) -> Mapping[str, str]:
    """Return resource group and subscription of a VM of Azure, for commands."""
    found = _GROUP_IN.search((machine.spec.provider_id if machine is not None else None) or "")
    unknown = {"group": "/subscriptions/SUBSCRIPTION/resourceGroups/GROUP", "subscription": "SUBSCRIPTION"}
    return unknown if found is None else found.groupdict()


_GROUP_IN: Final = re.compile(r"(?i)(?P<group>/subscriptions/(?P<subscription>[\w-]+)/resourceGroups/[\w.()-]+)")
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
    reasons.OUTCOME_UNKNOWN: _check_instance,
    cloud.AUTH_NOT_FOUND: _credential(_APPLY),
    cloud.AUTH_AMBIGUOUS: _credential(_SHOW),
    cloud.AUTH_INVALID: _bad_login,
    cloud.AUTH_SECRET_FORBIDDEN: _named_credential,
    cloud.AUTH_SECRET_NOT_FOUND: _no_secret,
    cloud.AUTH_REFUSED: _refused_login,
    cloud.BOOTSTRAP_DATA_FAILED: _bootstrap,
    cloud.INVALID_PROVIDER_ID: _instance("an existing instance"),
    cloud.INSTANCE_NOT_FOUND: _instance("an existing instance"),
    cloud.PROVIDER_ID_SHARED: _instance("an instance of its own"),
    cloud.INSTANCE_NOT_RUNNING: _power_on,
    cloud.STATE_NOT_STORED: fix_create_again,
    cloud.STATE_IS_GONE: _state_secret_lost,
    cloud.NO_CAPACITY: fix_create_again,
    cloud.QUOTA_EXCEEDED: _quota,
    cloud.PROVIDER_REFUSED: _rejected,
    cloud.PROVIDER_OPERATION_FAILED: fix_create_again,
    cloud.DOES_NOT_STAY_OFF: fix_create_again,
    cloud.DOES_NOT_STAY_ON: fix_create_again,
    cloud.WOULD_BE_LOST: _would_lose,
}
