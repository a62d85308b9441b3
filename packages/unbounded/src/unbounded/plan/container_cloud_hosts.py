"""Plans of BareMetalHosts: registration, inspection, power, login, claim and end, by the decisions of their controller.

`read_host` reads what decides on a host. `forecast_host` is pure: it repeats the controller's `plan_host`, and takes it
that each action succeeds, and that the BMC answers.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import msgspec

from unbounded.api.container_cloud.cluster import CLUSTERS, Cluster
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOSTS,
    BareMetalHost,
    BareMetalHostCredential,
    ProvisioningState,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.names import ANNOTATION_CREDENTIAL, FINALIZER_HOST
from unbounded.api.core import NAMESPACES, NODES, SECRETS, Secret
from unbounded.api.hardware import HardwareSource
from unbounded.api.machine import MACHINES, Machine, MachinePower
from unbounded.api.meta import Kind, Object
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.containercloud.claims import DEFAULT_SHARED, ClaimStep, ClaimView, plan_claim
from unbounded.containercloud.hosts.credentials import STORED, plan_credential
from unbounded.containercloud.hosts.model import (
    KEY_PASSWORD,
    KEY_SOURCE,
    KEY_SOURCE_USER,
    BmcLogin,
    ChangeMachine,
    CreateMachine,
    DeleteHostMachine,
    DeleteHostNode,
    DeleteLogin,
    HostAction,
    HostPlan,
    HostView,
    NameCredentials,
    SetHostFinalizer,
    StartOperation,
    StoreLogin,
    consumer_of,
    host_key,
    is_free,
    login_name,
    machine_of_host,
    power_operation,
)
from unbounded.containercloud.hosts.plan import plan_host
from unbounded.containercloud.hosts.surroundings import (
    RIVAL_INDEXES,
    login_secret,
    parse_login,
    rivals_of,
    secret_of_credential,
    site_of,
)
from unbounded.explain.links import UnreadFact
from unbounded.kube.api import Api, Forbidden, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.operations.caches import by_bmc
from unbounded.plan.effects import merged

Raw = dict[str, Any]
T = TypeVar("T", bound=Object)
MOST_STEPS: Final = 20  # of one forecast
PLANNED_UID: Final = "planned"
NOT_CHECKED: Final = "not checked: the login of its BMC"
_S = ProvisioningState
_ENTERED: Final[Mapping[ProvisioningState, str]] = {
    _S.INSPECTING: "metalman{site} reads its BMC, then the inventory of its hardware",
    _S.AVAILABLE: "it is available to Machines",
    _S.EXTERNALLY_PROVISIONED: "it is externally provisioned: a Machine that pins it may adopt it, and writes no disk",
}


@dataclass(frozen=True)
class HostPlanView:
    """All that a forecast of a host depends on.

    Args:
        before: the host as it is; None for a new one.
        login_is_known: whether the login of the BMC and metalman's copy could be read.
        waiting: Machines without a host, and their Clusters by NAMESPACE/NAME.
    """

    view: HostView
    before: BareMetalHost | None = None
    login_is_known: bool = True
    waiting: tuple[ContainerCloudMachine, ...] = ()
    clusters: Mapping[str, Cluster] = field(default_factory=dict)
    unread: tuple[UnreadFact, ...] = ()


@dataclass(frozen=True)
class HostForecast:
    """The next steps of a host.

    Args:
        operation: manifest of the operation that container-cloud creates next; None for none.
    """

    lines: tuple[str, ...]
    operation: Raw | None = None


# ---- reads


async def read_host(
    api: Api, host: BareMetalHost, before: BareMetalHost | None, *, reads_secrets: bool = True
) -> HostPlanView:
    """Return the facts about a host as it would be.

    Args:
        reads_secrets: read the login of the BMC, and metalman's copy.
    """
    namespace, name = host.metadata.namespace or "", machine_of_host(host)
    credential = await _got(api, BARE_METAL_HOST_CREDENTIALS, _credential(host), namespace)
    secret_name, key = secret_of_credential(credential), login_name(host)
    named = login_secret(host, secret_name, credential)
    hosts, machines = (await api.list(BARE_METAL_HOSTS)).items, (await api.list(MACHINES)).items
    machine = next((one for one in machines if one.name == name), None)
    unread, copy, is_known = list[UnreadFact](), None, reads_secrets
    login: BmcLogin | str = named if isinstance(named, str) else _unchecked(named, machine)
    if reads_secrets and isinstance(named, ObjectKey):
        try:
            login = parse_login(named, await _got(api, SECRETS, named.name, named.namespace))
            copy = await _got(api, SECRETS, key.name, key.namespace)
        except Forbidden as error:
            is_known = False
            unread.append(UnreadFact("secrets", "the login of the BMC", "Forbidden", str(error)))
    power, consumer = host.status.power, consumer_of(host)
    waiting = [one for one in (await api.list(CONTAINER_CLOUD_MACHINES)).items if _waits(one)]
    namespaces = {one.metadata.namespace or "" for one in waiting}
    view = HostView(
        host=host,
        now=utc_now(),
        site=site_of(host, await _got(api, NAMESPACES, namespace), "" if machine is None else machine.site),
        machine=machine,
        secret_name=secret_name,
        login=login,
        copy=copy,
        rivals=tuple(_rivals(host, hosts, machines)),
        operation=None if power is None else await _got(api, MACHINE_OPERATIONS, power.operation or ""),
        consumer=None
        if consumer is None
        else await _got(api, CONTAINER_CLOUD_MACHINES, consumer.name, consumer.namespace),
        node=await _got(api, NODES, name),
    )
    clusters = [one for ns in sorted(namespaces) for one in await _clusters(api, ns)]
    return HostPlanView(
        view,
        before,
        login_is_known=is_known,
        waiting=tuple(waiting),
        clusters={str(key_of(one)): one for one in clusters},
        unread=tuple(unread),
    )


async def _clusters(api: Api, namespace: str) -> Iterable[Cluster]:
    return (await api.list(CLUSTERS, namespace=namespace)).items


def _credential(host: BareMetalHost) -> str:
    return host.metadata.annotations.get(ANNOTATION_CREDENTIAL, "")


async def _got(api: Api, kind: Kind[T], name: str, namespace: str = "") -> T | None:
    if not name:
        return None
    try:
        return await api.get(kind, name, namespace=namespace)
    except NotFound:
        return None


def _unchecked(secret: ObjectKey, machine: Machine | None) -> BmcLogin:
    """Return a login that may not be read as one that changes nothing."""
    redfish = machine.spec.pxe.redfish if machine is not None and machine.spec.pxe is not None else None
    return BmcLogin(secret.name, "", "" if redfish is None else redfish.username, b"unchecked")


def _waits(machine: ContainerCloudMachine) -> bool:
    execution = machine.status.execution
    return execution is None or execution.host is None


def _rivals(host: BareMetalHost, hosts: Iterable[BareMetalHost], machines: Iterable[Machine]) -> Iterator[str]:
    keys, beside, known = dict(RIVAL_INDEXES), tuple(hosts), tuple(machines)
    return rivals_of(
        host,
        lambda index, text: [one for one in beside if text in keys[index](one)],
        lambda text: [one for one in known if text in by_bmc(one)],
    )


# ---- the forecast


def forecast_host(facts: HostPlanView) -> HostForecast:
    """Return the next steps of a host, and what it waits for then."""
    view, lines, first = facts.view, list[str](), None
    entered: set[ProvisioningState] = set()
    for _step in range(MOST_STEPS):
        plan = plan_host(view)
        if FINALIZER_HOST in view.host.metadata.finalizers:
            lines += _entered(view, plan, entered)
        actions = [one for one in plan.actions if facts.login_is_known or not isinstance(one, StoreLogin)]
        for action in actions:
            if isinstance(action, StartOperation) and first is None and facts.view.machine is not None:
                first = power_operation(facts.view.machine, action)
            lines += _action_lines(view, action, is_new=facts.view.machine is None)
        after = _after(view, plan, actions)
        if after is None:
            return HostForecast(tuple(lines), first)
        if after == view:
            break
        view = after
    if not lines and facts.before is not None:
        lines.append(f"nothing changes: it is {facts.before.state or ProvisioningState.REGISTERING}")
    if not facts.login_is_known and view.host.metadata.deletion_timestamp is None:
        lines.append(NOT_CHECKED)
    return HostForecast((*lines, *_end(facts, view, plan_host(view))), first)


def _entered(view: HostView, plan: HostPlan, entered: set[ProvisioningState]) -> Iterator[str]:
    """Yield a line for a state that the host enters."""
    state = ProvisioningState(plan.status.provisioning.state or ProvisioningState.REGISTERING)
    if state.value == view.host.state or state in entered:
        return
    entered.add(state)
    if state in _ENTERED:
        yield _ENTERED[state].format(site=f" of site {view.site}" if view.site else "")
    elif state is _S.DEPROVISIONING:
        yield plan.message


def _action_lines(view: HostView, action: HostAction, *, is_new: bool) -> Iterator[str]:
    name = machine_of_host(view.host)
    match action:
        case NameCredentials(secret=secret):
            yield f"takes the login from Secret {secret} of its BareMetalHostCredential"
        case StoreLogin(login=login):
            new = "hands" if view.copy is None else "rotates the login of the BMC: hands"
            yield f"{new} user {login.username} and the password of Secret {login.secret} to metalman"
        case CreateMachine(body=body):
            redfish = body["spec"]["pxe"]["redfish"]
            mode = body["spec"]["pxe"]["bootMode"]
            yield f"creates Machine {name} with the BMC at {redfish['url']}, boot mode {mode}"
        case ChangeMachine(fields=fields):
            yield f"changes Machine {name}: {', '.join(fields)}"
        case StartOperation(kind=kind):
            power, other = ("on", "off") if kind is OperationKind.HOST_POWER_ON else ("off", "on")
            yield f"{kind} switches the host {power}{f', if it is {other}' if is_new else ''}"
        case DeleteHostNode(node=node):
            yield f"deletes Node {node.name}, which the host registered again"
        case DeleteHostMachine():
            yield f"deletes Machine {name}, with its history"
        case DeleteLogin():
            yield "deletes metalman's copy of the login"
        case SetHostFinalizer(present=present):
            if not present:
                yield "the host is gone then"


def _after(view: HostView, plan: HostPlan, actions: Iterable[HostAction]) -> HostView | None:
    """Return the view once the actions have succeeded; None once the host is gone."""
    host = msgspec.structs.replace(view.host, status=plan.status)
    after = replace(view, host=host)
    for action in actions:
        match action:
            case SetHostFinalizer(present=False):
                return None
            case SetHostFinalizer():
                meta = msgspec.structs.replace(
                    after.host.metadata, finalizers=(*after.host.metadata.finalizers, FINALIZER_HOST)
                )
                after = replace(after, host=msgspec.structs.replace(after.host, metadata=meta))
            case NameCredentials(secret=secret) if after.host.spec.bmc is not None:
                bmc = msgspec.structs.replace(after.host.spec.bmc, credentials_name=secret)
                spec = msgspec.structs.replace(after.host.spec, bmc=bmc)
                after = replace(after, host=msgspec.structs.replace(after.host, spec=spec))
            case StoreLogin(login=login):
                after = replace(after, copy=_copied(after, login))
            case CreateMachine(body=body):
                after = replace(after, machine=_answering(after, _machine({**body, "status": {}})))
            case ChangeMachine(patch=patch) if after.machine is not None:
                raw = msgspec.to_builtins(after.machine)
                after = replace(after, machine=_machine(merged(raw, patch)))
            case DeleteHostMachine():
                after = replace(after, machine=None)
            case DeleteHostNode():
                after = replace(after, node=None)
            case DeleteLogin():
                after = replace(after, copy=None)
            case StartOperation(kind=kind) if after.machine is not None:
                power = MachinePower.ON if kind is OperationKind.HOST_POWER_ON else MachinePower.OFF
                after = replace(after, machine=_with_power(after, after.machine, power), operation=None)
            case _:
                pass
    return after


def _copied(view: HostView, login: BmcLogin) -> Secret:
    """Return metalman's copy of a login, as a version that the BMC has not refused."""
    password, user = (base64.b64encode(one).decode() for one in (login.password, login.username.encode()))
    key = login_name(view.host)
    body = {
        "metadata": {"name": key.name, "namespace": key.namespace, "uid": PLANNED_UID},
        "data": {KEY_PASSWORD: password, KEY_SOURCE: password, KEY_SOURCE_USER: user},
    }
    return msgspec.convert(body, Secret)


def _machine(body: Mapping[str, Any]) -> Machine:
    return msgspec.convert({**body, "metadata": {"uid": PLANNED_UID, **body["metadata"]}}, Machine)


def _answering(view: HostView, machine: Machine) -> Machine:
    """Return a new Machine whose BMC has answered: it is off where the host is to be on, and the other way round."""
    power = MachinePower.OFF if view.host.spec.online else MachinePower.ON
    facts = {"source": HardwareSource.REDFISH.value, "at": rfc3339(view.now), "digest": ""}
    raw = msgspec.to_builtins(machine)
    inspected = _machine({**raw, "status": {**raw.get("status", {}), "hardware": facts}})
    return _with_power(view, inspected, power)


def _with_power(view: HostView, machine: Machine, power: MachinePower) -> Machine:
    raw = msgspec.to_builtins(machine)
    state = {"state": power.value, "at": rfc3339(view.now)}
    return _machine({**raw, "status": {**raw.get("status", {}), "power": state, "activeOperation": None}})


def _end(facts: HostPlanView, view: HostView, plan: HostPlan) -> Iterator[str]:
    """Yield what the host waits for at the end, or the Machine that claims it."""
    if plan.status.error_message:
        yield f"it would wait ({plan.reason}): {plan.status.error_message}"
        return
    host = msgspec.structs.replace(view.host, status=plan.status)
    if not is_free(host):
        if plan.reason.value not in ("ExternallyProvisioned", "InUse"):
            yield f"it would wait ({plan.reason}): {plan.message}"
        elif consumer_of(host) is not None:
            yield plan.message
        return
    claimers = list(_claimers(facts, host))
    if len(claimers) == 1:
        yield f"Machine {claimers[0]} claims it"
    elif claimers:
        yield f"one of the Machines {', '.join(map(str, claimers[:5]))} claims it"


def _claimers(facts: HostPlanView, host: BareMetalHost) -> Iterator[ObjectKey]:
    """Yield the Machines that would claim the host if it were free now, the oldest first."""
    for machine in sorted(facts.waiting, key=lambda one: (one.metadata.creation_timestamp or "", one.name)):
        key, pin = key_of(machine), machine.pinned_host
        is_pinned = pin is not None and ObjectKey(*pin) == host_key(host)
        claim = plan_claim(
            ClaimView(
                machine=machine,
                cluster=facts.clusters.get(f"{key.namespace}/{machine.cluster}"),
                pinned=host if is_pinned else None,
                free=[host] if key.namespace == host.metadata.namespace else [],
                shared=DEFAULT_SHARED,
            )
        )
        if claim.step is ClaimStep.TAKE and claim.host is not None:
            yield key


# ---- logins


async def credential_lines(
    api: Api, credential: BareMetalHostCredential, *, reads_secrets: bool = True
) -> tuple[str, ...]:
    """Return what becomes of a BareMetalHostCredential, and of the hosts that name it."""
    namespace, password = credential.metadata.namespace or "", credential.spec.password
    name = (password.name if password is not None else None) or credential.name
    hosts = (await api.list(BARE_METAL_HOSTS, namespace=namespace)).items
    users = sorted(one.name for one in hosts if _credential(one) == credential.name)
    of_hosts = f"BareMetalHosts that name it: {', '.join(users)}" if users else "no BareMetalHost names it"
    try:
        secret = await _got(api, SECRETS, name, namespace) if reads_secrets else None
    except Forbidden:
        reads_secrets = False
    if not reads_secrets:
        return f"not checked: Secret {namespace}/{name}", of_hosts
    planned = plan_credential(credential, secret)
    lines = []
    if planned.data:
        what = " and ".join(sorted(planned.data, reverse=True))
        lines.append(f"stores {what} in Secret {namespace}/{planned.secret}")
    if planned.patch is not None:
        lines.append("erases the password here, also in the annotation of kubectl")
    if planned.reason != STORED:
        return *lines, f"it would wait ({planned.reason}): {planned.message}", of_hosts
    if planned.data and users:
        rotated = "the login of its BMC is rotated: metalman gets the new one"
        return *lines, *(f"BareMetalHost {namespace}/{one}: {rotated}" for one in users)
    return *(lines or ["nothing changes"]), of_hosts
