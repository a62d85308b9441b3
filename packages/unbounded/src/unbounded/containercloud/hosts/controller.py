"""The controller of BareMetalHosts: it observes a host and its Machine, and executes what `plan` decides."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, assert_never

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import ConditionStatus, remove_condition, set_condition
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOSTS,
    BareMetalHost,
    BareMetalHostCredential,
    ProvisioningState,
)
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import (
    ANNOTATION_CREDENTIAL,
    ANNOTATION_FOR_UID,
    ANNOTATION_MACHINE_HOST,
    FINALIZER_HOST,
    HOST_SECRET,
    LABEL_HOST_SECRET,
)
from unbounded.api.core import NODES, SECRETS, Namespace, Node, Secret
from unbounded.api.failures import Rejected, Stale
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationKind
from unbounded.containercloud.caches import (
    INDEX_ADOPTED,
    INDEX_CREDENTIAL,
    INDEX_NAMESPACE,
    INDEX_SECRET,
    ControllerContext,
)
from unbounded.containercloud.hosts.model import (
    CONDITION_AVAILABLE,
    CONDITION_DIRTY,
    IN_USE,
    KEY_PASSWORD,
    KEY_SOURCE,
    KEY_SOURCE_USER,
    BmcLogin,
    CancelLeftOperation,
    ChangeMachine,
    CreateMachine,
    DeleteHostMachine,
    DeleteHostNode,
    DeleteLogin,
    HostAction,
    HostPlan,
    HostReason,
    HostView,
    NameCredentials,
    SetHostFinalizer,
    StartOperation,
    StoreLogin,
    consumer_of,
    host_key,
    host_of_machine,
    login_name,
    machine_of_host,
    power_operation,
    write_text,
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
from unbounded.containercloud.refused import RefusalEvents, RefusedWrites, WriteAttempt
from unbounded.kube.api import (
    AlreadyExists,
    Conflict,
    Forbidden,
    NotFound,
    ObjectKey,
    key_of,
)
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusDebounce, StatusWriter
from unbounded.operations.caches import INDEX_BMC, INDEX_MACHINE, by_bmc, node_by_machine, node_of
from unbounded.operations.execution_record import with_nulls

Raw = dict[str, Any]

FIELDS: Final = (
    "provisioning",
    "poweredOn",
    "power",
    "operationalStatus",
    "errorType",
    "errorMessage",
    "errorCount",
    "hardware",
    "goodCredentials",
    "lastUpdated",
    "conditions",
)
NEWS_S: Final = 5.0  # a change of the power can wait for so long
# one of the hardware, as an installer reports it shortly before it writes the image, or of the power by an operation
FACTS_S: Final = 120.0
PUT_BACK: Final = "PutBack"
WRITER: Final = "hosts"  # of the register of refused writes
WRITE_STATUS: Final = "write the status of this host"

log = Log("hosts")


class HostController:
    """Controller of all BareMetalHosts.

    Args:
        site: of hosts for which neither they nor their namespaces name one; empty for none.
    """

    def __init__(self, context: ControllerContext, *, site: str = "") -> None:
        self._api, self._epoch = context.api, context.epoch
        self._caches = caches = context.caches
        self._site = site
        self._emit, self._now = context.emit_event, context.now
        self._status = StatusWriter(context.api, BARE_METAL_HOSTS, fields=FIELDS, cache=caches.hosts)
        self._debounce = StatusDebounce()
        self._settled: dict[ObjectKey, tuple[str, str]] = {}  # host and login whose Machine had all its fields
        self._refused = RefusedWrites()  # for hosts
        self._unwritten = RefusalEvents(context.emit_event)  # about the status itself
        self._controller: Controller[ObjectKey] = Controller("hosts", self._reconcile, metrics=context.metrics)
        self._refused.subscribe(self._controller.enqueue)
        follow = self._controller.follow
        follow(caches.hosts, self._hosts_beside)
        follow(caches.host_machines, self._hosts_of_machine)
        follow(caches.operations, self._hosts_of_operation)
        follow(caches.secrets, self._hosts_of_secret)
        follow(caches.credentials, self._hosts_of_credential)
        follow(caches.namespaces, self._hosts_of_namespace)
        follow(caches.machines, self._hosts_of_consumer)
        follow(caches.nodes, self._hosts_of_node)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    # ---- events

    def _hosts_beside(self, host: BareMetalHost) -> Iterator[ObjectKey]:
        """Yield the host, and those that may be its rivals."""
        yield host_key(host)
        for index, keys in RIVAL_INDEXES:
            for key in keys(host):
                yield from map(host_key, self._caches.hosts.by(index, key))

    def _hosts_of_machine(self, machine: Machine) -> Iterator[ObjectKey]:
        """Yield the host of a Machine, and those with its BMC, which it may keep from their registration."""
        for bmc in by_bmc(machine):
            yield from map(host_key, self._caches.hosts.by(INDEX_BMC, bmc))
        if (host := host_of_machine(machine)) is not None:
            yield host
        yield from map(host_key, self._caches.hosts.by(INDEX_ADOPTED, machine.name))
        name, _, namespace = machine.name.rpartition(".")
        if name and self._caches.hosts.get(name, namespace) is not None:
            yield ObjectKey(namespace, name)

    def _hosts_of_operation(self, operation: MachineOperation) -> Iterator[ObjectKey]:
        machine = self._caches.host_machines.get(operation.spec.machine_ref or "")
        host = None if machine is None else host_of_machine(machine)
        if host is not None:
            yield host

    def _hosts_of_secret(self, secret: Secret) -> Iterator[ObjectKey]:
        yield from map(host_key, self._caches.hosts.by(INDEX_SECRET, str(key_of(secret))))
        namespace, found, name = secret.metadata.annotations.get(ANNOTATION_MACHINE_HOST, "").partition("/")
        if found:
            yield ObjectKey(namespace, name)

    def _hosts_of_credential(self, credential: BareMetalHostCredential) -> Iterable[ObjectKey]:
        return map(host_key, self._caches.hosts.by(INDEX_CREDENTIAL, str(key_of(credential))))

    def _hosts_of_namespace(self, namespace: Namespace) -> Iterable[ObjectKey]:
        return map(host_key, self._caches.hosts.by(INDEX_NAMESPACE, namespace.name))

    def _hosts_of_consumer(self, machine: ContainerCloudMachine) -> Iterator[ObjectKey]:
        execution = machine.status.execution
        if execution is not None and execution.host is not None:
            yield ObjectKey(execution.host.namespace, execution.host.name)

    def _hosts_of_node(self, node: Node) -> Iterator[ObjectKey]:
        """Yield the host of a Node, if it returns to stock: the Node is to be gone then."""
        for name in {node.name, *node_by_machine(node)}:
            machine = self._caches.host_machines.get(name)
            key = None if machine is None else host_of_machine(machine)
            host = None if key is None else self._caches.hosts.get(key.name, key.namespace)
            if key is not None and host is not None and host.state == ProvisioningState.DEPROVISIONING:
                yield key

    # ---- observation

    async def _reconcile(self, key: ObjectKey) -> float | None:
        host = self._caches.hosts.get(key.name, key.namespace)
        if host is None:
            self._settled.pop(key, None)
            self._refused.forget(key)
            self._unwritten.forget(key)
            return None
        with self._refused.recorded(key, WRITER) as attempt:
            attempt.what = "read and label the Secret of the host"
            view = await self._view(host)
            return await self._perform(view, plan_host(view), attempt)

    async def _view(self, host: BareMetalHost) -> HostView:
        caches, power = self._caches, host.status.power
        copy, consumer, name = login_name(host), consumer_of(host), machine_of_host(host)
        secret_name = secret_of_credential(self._credential_of(host))
        return HostView(
            host=host,
            now=self._now(),
            site=self._site_of(host),
            machine=caches.host_machines.get(name),
            secret_name=secret_name,
            login=await self._login(host, secret_name),
            copy=caches.secrets.get(copy.name, copy.namespace),
            rivals=tuple(self._rivals(host)),
            operation=caches.operations.get(power.operation) if power is not None and power.operation else None,
            consumer=None if consumer is None else caches.machines.get(consumer.name, consumer.namespace),
            node=node_of(caches.nodes, name),
            left=() if consumer is not None else tuple(self._left(name)),
            refused=self._refused.of(host_key(host)),
        )

    def _left(self, name: str) -> Iterator[MachineOperation]:
        """Yield the operations of earlier claims that may still start on a Machine, and the installs of an update."""
        for one in self._caches.operations.by(INDEX_MACHINE, name):
            is_install = one.spec.operation_kind == OperationKind.HOST_REPLACE
            is_of_claim = is_install or ANNOTATION_FOR_UID in one.metadata.annotations
            if is_of_claim and not one.terminal and not one.spec.cancel:
                yield one

    def _site_of(self, host: BareMetalHost) -> str:
        return site_of(host, self._caches.namespaces.get(host.metadata.namespace or ""), self._site)

    def _credential_of(self, host: BareMetalHost) -> BareMetalHostCredential | None:
        name = host.metadata.annotations.get(ANNOTATION_CREDENTIAL, "")
        return self._caches.credentials.get(name, host.metadata.namespace or "")

    async def _login(self, host: BareMetalHost, secret_name: str) -> BmcLogin | str:
        """Return the login of the host's BMC; a text where the host has none."""
        key = login_secret(host, secret_name, self._credential_of(host))
        if isinstance(key, str):
            return key
        try:
            return parse_login(key, await self._secret(key))
        except NotFound:
            return parse_login(key, None)
        except Forbidden as error:
            return f"bmc.credentialsName: Secret {key} cannot be read: {error}"

    async def _secret(self, key: ObjectKey) -> Secret:
        """Return a Secret; one without the label is read once, and gets it, so that its changes are events.

        Raises:
            NotFound: it does not exist.
            Forbidden: it may not be read, or not be labelled.
        """
        cached = self._caches.secrets.get(key.name, key.namespace)
        if cached is not None:
            return cached
        live = await self._api.get(SECRETS, key.name, namespace=key.namespace)
        patch = {
            "metadata": {
                "labels": {LABEL_HOST_SECRET: HOST_SECRET},
                "resourceVersion": live.metadata.resource_version,
            }
        }
        labelled = await self._api.patch(SECRETS, key.name, patch, namespace=key.namespace)
        self._caches.secrets.observe(labelled)
        return labelled

    def _rivals(self, host: BareMetalHost) -> Iterator[str]:
        caches = self._caches
        return rivals_of(host, caches.hosts.by, lambda bmc: caches.host_machines.by(INDEX_BMC, bmc))

    # ---- execution

    async def _perform(self, view: HostView, plan: HostPlan, attempt: WriteAttempt) -> float | None:
        self._epoch.check_leads()
        waits_s = _can_wait_s(view, plan)
        left_s = self._debounce.left_s(host_key(view.host), view.now, waits_s=waits_s)
        attempt.what = WRITE_STATUS
        host = view.host if left_s else await self._write(view, plan)
        changes = False
        for action in plan.actions:
            self._epoch.check_leads()
            changes |= isinstance(action, ChangeMachine)
            attempt.what = write_text(view, action)
            await self._execute(view, host, action)
        login = view.login.version if isinstance(view.login, BmcLogin) else ""
        if view.machine is not None and not changes:
            self._settled[host_key(host)] = (str(host.metadata.generation), login)
        return plan.requeue_s if not left_s or (plan.requeue_s or math.inf) < left_s else left_s

    async def _write(self, view: HostView, plan: HostPlan) -> BareMetalHost:
        """Write the status if it differs; return the host as it is then."""
        host, now = view.host, rfc3339(view.now)
        conditions = _conditions(host, plan, now)
        if plan.status == host.status and conditions is None:
            return host
        status = with_nulls(replace(plan.status, conditions=(), last_updated=now))
        del status["conditions"]
        if conditions is not None:
            status["conditions"] = conditions
        with self._unwritten.recorded(host, WRITE_STATUS):
            written = await self._status.write(host, status)
        before, after = host.status, plan.status
        if before.provisioning.state != after.provisioning.state:
            log.info("state of a host", host=str(host_key(host)), state=after.provisioning.state)
            if after.provisioning.state not in IN_USE:  # an install has the Event of its operation
                self._emit(host, "Normal", "StateChanged", f"the host is {after.provisioning.state}")
        if after.error_message and before.error_message != after.error_message:
            self._emit(host, "Warning", plan.reason.value, after.error_message)
        return written or host

    async def _execute(self, view: HostView, host: BareMetalHost, action: HostAction) -> None:
        match action:
            case SetHostFinalizer(present=present):
                others = [one for one in host.metadata.finalizers if one != FINALIZER_HOST]
                await self._patch_host(host, {"finalizers": [*others, *([FINALIZER_HOST] if present else [])]})
            case NameCredentials(secret=secret):
                await self._patch_host(host, {}, {"bmc": {"credentialsName": secret}})
            case StoreLogin(login=login):
                await self._store(view, login)
            case DeleteLogin():
                await self._delete_login(view)
            case CreateMachine(body=body):
                await self._create_machine(view, body)
            case ChangeMachine():
                await self._change_machine(view, action)
            case DeleteHostMachine():
                await self._delete_machine(view)
            case DeleteHostNode(node=node):
                with suppress(NotFound):
                    await self._api.delete(NODES, node.name, uid=node.metadata.uid)
            case CancelLeftOperation(operation=operation):
                patch = {"metadata": {"uid": operation.metadata.uid}, "spec": {"cancel": True}}
                with suppress(NotFound):
                    self._caches.operations.observe(await self._api.patch(MACHINE_OPERATIONS, operation.name, patch))
            case StartOperation():
                await self._start(view, action)
            case _:
                assert_never(action)

    async def _patch_host(self, host: BareMetalHost, metadata: Raw, spec: Raw | None = None) -> None:
        patch: Raw = {"metadata": {"resourceVersion": host.metadata.resource_version, **metadata}}
        if spec is not None:
            patch["spec"] = spec
        key = host_key(host)
        try:
            written = await self._api.patch(BARE_METAL_HOSTS, key.name, patch, namespace=key.namespace)
        except NotFound:  # its last finalizer was removed meanwhile
            return
        self._caches.hosts.observe(written)

    async def _store(self, view: HostView, login: BmcLogin) -> None:
        key, host = login_name(view.host), str(host_key(view.host))
        password = base64.b64encode(login.password).decode()
        user = base64.b64encode(login.username.encode()).decode()
        data = {KEY_PASSWORD: password, KEY_SOURCE: password, KEY_SOURCE_USER: user}
        metadata = {"labels": {LABEL_HOST_SECRET: HOST_SECRET}, "annotations": {ANNOTATION_MACHINE_HOST: host}}
        if view.copy is None:
            body = {"metadata": {"name": key.name, **metadata}, "type": "Opaque", "data": data}
            try:
                stored = await self._api.create(SECRETS, body, namespace=key.namespace)
            except AlreadyExists:
                stored = await self._take_over(key, host, data, metadata)
        else:
            version = {"resourceVersion": view.copy.metadata.resource_version}
            patch = {"metadata": {**metadata, **version}, "data": data}
            stored = await self._api.patch(SECRETS, key.name, patch, namespace=key.namespace)
        self._caches.secrets.observe(stored)
        log.info("password of a BMC stored for metalman", host=host, secret=str(key))

    async def _take_over(self, key: ObjectKey, host: str, data: Raw, metadata: Raw) -> Secret:
        live = await self._api.get(SECRETS, key.name, namespace=key.namespace)
        if live.metadata.annotations.get(ANNOTATION_MACHINE_HOST) != host:
            raise Rejected(f"Secret {key} exists, and is not that of BareMetalHost {host}: delete it")
        patch = {"metadata": {**metadata, "resourceVersion": live.metadata.resource_version}, "data": data}
        return await self._api.patch(SECRETS, key.name, patch, namespace=key.namespace)

    async def _delete_login(self, view: HostView) -> None:
        if view.copy is None:
            return
        key = key_of(view.copy)
        try:
            await self._api.delete(SECRETS, key.name, namespace=key.namespace, uid=view.copy.metadata.uid)
        except NotFound:
            return

    async def _create_machine(self, view: HostView, body: Any) -> None:
        name = body["metadata"]["name"]
        try:
            made = await self._api.create(MACHINES, body)
        except AlreadyExists:
            raise Stale(f"Machine {name} exists") from None
        self._caches.host_machines.observe(made)
        log.info("Machine created for a host", host=str(host_key(view.host)), machine=name)

    async def _change_machine(self, view: HostView, change: ChangeMachine) -> None:
        machine = view.machine
        if machine is None:
            return
        written = await self._api.patch(MACHINES, machine.name, change.patch)
        self._caches.host_machines.observe(written)
        key, login = host_key(view.host), view.login.version if isinstance(view.login, BmcLogin) else ""
        if self._settled.get(key) == (str(view.host.metadata.generation), login):  # only the Machine has changed
            text = f"{', '.join(change.fields)} put back: BareMetalHost {key} has them"
            self._emit(machine, "Warning", PUT_BACK, text)
        log.info("Machine of a host changed", host=str(key), machine=machine.name, fields=list(change.fields))

    async def _delete_machine(self, view: HostView) -> None:
        machine = view.machine
        if machine is None or machine.metadata.deletion_timestamp is not None:
            return
        try:
            await self._api.delete(MACHINES, machine.name, uid=machine.metadata.uid)
        except (NotFound, Conflict):  # it is gone, or another one has its name: the watch delivers it
            return
        log.info("Machine of a host deleted", host=str(host_key(view.host)), machine=machine.name)

    async def _start(self, view: HostView, action: StartOperation) -> None:
        machine = view.machine
        if machine is None:
            return
        body = power_operation(machine, action)
        try:
            made = await self._api.create(MACHINE_OPERATIONS, body)
        except AlreadyExists:  # an earlier pass was cut off after it had created it
            return
        self._caches.operations.observe(made)
        log.info("power of a host requested", host=str(host_key(view.host)), operation=action.name)


def _can_wait_s(view: HostView, plan: HostPlan) -> float:
    """Return for how long a change of the status can wait for further ones; 0 for not at all, and without a change."""
    host = view.host
    facts = replace(host.status, hardware=plan.status.hardware, powered_on=plan.status.powered_on)
    if host.status == plan.status or plan.status != facts or _conditions(host, plan, rfc3339(view.now)) is not None:
        return 0.0
    is_switched = view.machine is not None and view.machine.status.active_operation is not None
    return FACTS_S if is_switched or host.status.powered_on == plan.status.powered_on else NEWS_S


def _conditions(host: BareMetalHost, plan: HostPlan, now: str) -> list[Raw] | None:
    """Return all conditions of the host after a plan; None if they stay."""
    present = [msgspec.to_builtins(one) for one in host.status.conditions]
    is_available = plan.reason is HostReason.AVAILABLE
    status = ConditionStatus.TRUE if is_available else ConditionStatus.FALSE
    changed = set_condition(present, CONDITION_AVAILABLE, status, plan.reason, plan.message, now)
    if plan.dirty is None:
        cleaned = remove_condition(changed or present, CONDITION_DIRTY)
    else:
        cleaned = set_condition(changed or present, CONDITION_DIRTY, ConditionStatus.TRUE, *plan.dirty, now)
    return cleaned if cleaned is not None else changed
