"""The controller of networks: it observes IpamHosts, templates and Subnets, and executes the decisions of their plans.

An address belongs to a host once it stands in `Subnet.status.allocatedIPs`, which is written on top of the version that
was read. Allocations from one Subnet take turns within the process, so that they do not meet in conflicts.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar, assert_never

import msgspec

from unbounded.api.conditions import ConditionStatus, set_condition
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import ContainerCloudMachine
from unbounded.api.container_cloud.names import (
    ANNOTATION_HOST,
    ANNOTATION_IPAM_HOST,
    ANNOTATION_NETWORK_OF,
    LABEL_NETWORK_CONFIG,
)
from unbounded.api.container_cloud.network import (
    IPAM_HOSTS,
    L2_TEMPLATES,
    SUBNETS,
    IpamHost,
    IpamHostStatus,
    L2Template,
    Subnet,
)
from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.failures import Stale
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_FOR_BOOT, NAMESPACE
from unbounded.containercloud.caches import (
    INDEX_FAULTY,
    INDEX_HOST_MACHINE,
    INDEX_IPAM_HOST,
    INDEX_NAMESPACE,
    INDEX_NETWORK,
    ContainerCloudCaches,
    ControllerContext,
    confirm,
)
from unbounded.containercloud.network.model import (
    ADDRESSES,
    CONFIG_KEY,
    RENDERED,
    RESTART_NEEDED,
    Allocate,
    CreateIpamHost,
    DeleteConfig,
    IpamReport,
    NetworkAction,
    NetworkView,
    PatchIpamHost,
    PatchTarget,
    ReleaseAddresses,
    WriteConfig,
)
from unbounded.containercloud.network.plan import config_name, plan_network, subnet_finalizers
from unbounded.containercloud.network.selection import GLOBAL_NAMESPACE, check_layout
from unbounded.containercloud.network.subnets import OK, allocate_all, release, subnet_status
from unbounded.containercloud.refused import RefusalEvents, WriteAttempt
from unbounded.kube.api import AlreadyExists, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter
from unbounded.operations.execution_record import with_nulls

Raw = dict[str, Any]
T = TypeVar("T")

MAX_GONE: Final = 1000
TOGETHER_S: Final = 0.2  # before addresses are allocated, as many Machines ask for some together
MAX_TOGETHER: Final = 5  # such pauses before one write, while more Machines ask
OUTDATED: Final = "the host was installed with another network; the present one counts at the next install"

log = Log("containercloud.network")


class NetworkSubject(StrEnum):
    """Subject of a key of the controller."""

    HOST = "IpamHost"
    SUBNET = "Subnet"
    TEMPLATE = "L2Template"


class NetworkKey(NamedTuple):
    """An object of the controller; a Machine and its IpamHost have one key."""

    subject: NetworkSubject
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.subject} {self.namespace}/{self.name}"


class NetworkController:
    """Controller of IpamHosts, L2Templates and Subnets."""

    def __init__(self, context: ControllerContext) -> None:
        self._api, self._epoch, self._now = context.api, context.epoch, context.now
        self._refused = context.refused
        self._refused_subnets, self._refused_templates = (RefusalEvents(context.emit_event) for _ in range(2))
        api, self._caches = context.api, context.caches
        caches = self._caches
        self._machines = caches.machines
        self._ipam_hosts = caches.ipam_hosts
        self._hosts = caches.hosts
        self._targets = caches.host_machines
        self._templates = caches.templates
        self._subnets = caches.subnets
        self._configs = caches.network_configs
        self._ipam_status = StatusWriter(api, IPAM_HOSTS, fields=None, cache=caches.ipam_hosts)
        self._subnet_status = StatusWriter(api, SUBNETS, fields=None, cache=caches.subnets)
        self._template_status = StatusWriter(api, L2_TEMPLATES, fields=None, cache=caches.templates)
        self._turns: defaultdict[ObjectKey, asyncio.Lock] = defaultdict(asyncio.Lock)
        # IpamHosts that wait for a turn of a Subnet, by their UID, with the interfaces that need an address
        self._waiting: defaultdict[ObjectKey, dict[str, tuple[str, ...]]] = defaultdict(dict)
        # UIDs of IpamHosts: a frozen leader may still allocate for them
        self._gone: deque[str] = deque(maxlen=MAX_GONE)
        self._controller: Controller[NetworkKey] = Controller("networks", self._reconcile, metrics=context.metrics)
        follow = self._controller.follow
        follow(caches.machines, lambda machine: _keys(NetworkSubject.HOST, (machine,)), parts=_claim_of)
        follow(caches.ipam_hosts, lambda ipam: _keys(NetworkSubject.HOST, (ipam,)))
        follow(caches.hosts, self._of_host, parts=_parts_of_host)
        follow(caches.host_machines, self._of_target, parts=_parts_of_target)
        follow(caches.templates, self._of_template, parts=_content)
        follow(caches.subnets, lambda subnet: _keys(NetworkSubject.SUBNET, (subnet,)))
        follow(caches.subnets, self._of_subnet, parts=_content)
        follow(caches.network_configs, _of_config)

    async def run(self) -> None:
        """Run until cancelled."""
        with self._ipam_hosts.subscribed(self._ipam_changed), self._subnets.subscribed(self._subnet_changed):
            await self._controller.run()

    # ---- events

    def _ipam_changed(self, old: IpamHost | None, new: IpamHost | None) -> None:
        """Wake the Subnets that have addresses of an IpamHost that is gone."""
        if new is None and old is not None:
            uid = old.metadata.uid
            self._gone.append(uid)
            subnets = (one for one in self._subnets.all() if _has_addresses(one, uid))
            self._enqueue(_keys(NetworkSubject.SUBNET, subnets))

    def _subnet_changed(self, old: Subnet | None, new: Subnet | None) -> None:
        """Wake the hosts that wait for addresses after a release."""
        if old is not None and new is not None and len(new.status.allocated_ips) < len(old.status.allocated_ips):
            self._enqueue(_keys(NetworkSubject.HOST, self._ipam_hosts.by(INDEX_FAULTY, INDEX_FAULTY)))

    def _enqueue(self, keys: Iterable[NetworkKey]) -> None:
        for key in keys:
            self._controller.enqueue(key)

    def _of_host(self, host: BareMetalHost) -> Iterator[NetworkKey]:
        return _keys(NetworkSubject.HOST, self._ipam_hosts.by(INDEX_NETWORK, str(key_of(host))))

    def _of_target(self, target: Machine) -> Iterator[NetworkKey]:
        yield from _keys(NetworkSubject.HOST, self._ipam_hosts.by(INDEX_NETWORK, target.name))
        yield from _keys(NetworkSubject.HOST, self._machines.by(INDEX_HOST_MACHINE, target.name))

    def _of_template(self, template: L2Template) -> Iterator[NetworkKey]:
        yield from _keys(NetworkSubject.TEMPLATE, (template,))
        yield from _keys(NetworkSubject.HOST, self._ipam_hosts.by(INDEX_NAMESPACE, template.metadata.namespace or ""))

    def _of_subnet(self, subnet: Subnet) -> Iterator[NetworkKey]:
        namespace = subnet.metadata.namespace or ""
        is_global, templates, hosts = namespace == GLOBAL_NAMESPACE, self._templates, self._ipam_hosts
        yield from _keys(
            NetworkSubject.TEMPLATE, templates.all() if is_global else templates.by(INDEX_NAMESPACE, namespace)
        )
        yield from _keys(NetworkSubject.HOST, hosts.all() if is_global else hosts.by(INDEX_NAMESPACE, namespace))

    # ---- observation

    async def _reconcile(self, key: NetworkKey) -> float | None:
        match key.subject:
            case NetworkSubject.HOST:
                with self._refused.recorded(ObjectKey(key.namespace, key.name), "networks") as attempt:
                    return await self._reconcile_host(key.namespace, key.name, attempt)
            case NetworkSubject.SUBNET:
                return await self._reconcile_subnet(key.namespace, key.name)
            case NetworkSubject.TEMPLATE:
                return await self._reconcile_template(key.namespace, key.name)
            case _:
                assert_never(key.subject)

    # ---- execution

    async def _reconcile_host(self, namespace: str, name: str, attempt: WriteAttempt) -> float | None:
        attempt.what = f"delete the former network configuration of IpamHost {namespace}/{name}"
        await self._delete_orphans(namespace, name)
        view = network_view(self._caches, namespace, name)
        plan = plan_network(view)
        if any(isinstance(action, ReleaseAddresses) for action in plan.actions):
            await confirm(self._api, BARE_METAL_HOSTS, view.host, self._hosts)
        elif any(isinstance(action, PatchTarget) for action in plan.actions):
            await confirm(self._api, IPAM_HOSTS, view.ipam, self._ipam_hosts)
            await confirm(self._api, BARE_METAL_HOSTS, view.host, self._hosts)
        for action in plan.actions:
            self._epoch.check_leads()
            attempt.what = _write_of(view, action)
            await self._perform(view, action)
        if plan.report is not None and view.ipam is not None:
            attempt.what = f"write the status of IpamHost {namespace}/{name}"
            await self._write_report(view.ipam, plan.report)
            return None
        return 0.0 if plan.actions and view.ipam is not None and not _is_deleted(view.ipam) else None

    async def _perform(self, view: NetworkView, action: NetworkAction) -> None:
        match action:
            case CreateIpamHost(body=body):
                await self._create_ipam_host(view, body)
            case PatchIpamHost(patch=patch):
                await self._patch_ipam_host(view, patch)
            case Allocate(subnet=subnet, interfaces=interfaces):
                await self._allocate(view, subnet, interfaces)
            case ReleaseAddresses(subnet=subnet):
                await self._release(view, subnet)
            case WriteConfig():
                await self._write_config(view, action)
            case DeleteConfig():
                await self._delete_config(view)
            case PatchTarget(pxe=pxe):
                await self._patch_target(view, pxe)
            case _:
                assert_never(action)

    async def _create_ipam_host(self, view: NetworkView, body: Any) -> None:
        try:
            made = await self._api.create(IPAM_HOSTS, body, namespace=view.namespace)
        except AlreadyExists:
            raise Stale(f"IpamHost {view.namespace}/{view.name} exists") from None
        self._ipam_hosts.observe(made)
        log.info("IpamHost created", machine=f"{view.namespace}/{view.name}")

    async def _patch_ipam_host(self, view: NetworkView, patch: Any) -> None:
        if view.ipam is None:
            return
        version = {"resourceVersion": view.ipam.metadata.resource_version}
        body = {**patch, "metadata": {**patch.get("metadata", {}), **version}}
        try:
            written = await self._api.patch(IPAM_HOSTS, view.name, body, namespace=view.namespace)
        except NotFound:
            return
        if written.metadata.finalizers or written.metadata.deletion_timestamp is None:
            self._ipam_hosts.observe(written)

    async def _allocate(self, view: NetworkView, subnet: Subnet, interfaces: tuple[str, ...]) -> None:
        """Allocate the addresses; the next plan says so where others took the last ones, or the write failed.

        One write has the addresses of all that waited for the same turn.
        """
        if view.ipam is None:
            return
        key, uid = key_of(subnet), view.ipam.metadata.uid
        waiting = self._waiting[key]
        waiting[uid] = interfaces
        async with self._turns[key]:
            if uid not in waiting:  # the turn before has served it
                return
            for _ in range(MAX_TOGETHER):
                before = len(waiting)
                await asyncio.sleep(TOGETHER_S)
                if len(waiting) == before:
                    break
            self._epoch.check_leads()
            requests = dict(waiting)
            waiting.clear()
            current = self._subnets.get(key.name, key.namespace)
            if current is None or subnet_finalizers(current) is not None:
                raise Stale(f"Subnet {key} changed")
            await self._write_subnet(current, allocate_all(current, requests))
        log.info("addresses allocated", subnet=str(key), hosts=len(requests))

    async def _release(self, view: NetworkView, subnet: Subnet) -> None:
        key = key_of(subnet)
        async with self._turns[key]:
            current = self._subnets.get(key.name, key.namespace)
            if view.ipam is not None and current is not None:
                await self._write_subnet(current, release(current, {view.ipam.metadata.uid}))
        log.info("addresses released", machine=f"{view.namespace}/{view.name}", subnet=str(key))

    async def _write_subnet(self, subnet: Subnet, entries: list[str] | None = None) -> None:
        status = subnet_status(subnet, entries)
        if status != subnet.status:
            lists = {"allocatedIPs": list(status.allocated_ips)}
            await self._subnet_status.write(subnet, with_nulls(status) | lists)

    async def _write_config(self, view: NetworkView, action: WriteConfig) -> None:
        if view.ipam is None:
            return
        name, owner = config_name(view.ipam), f"{view.namespace}/{view.name}"
        notes: Raw = {ANNOTATION_IPAM_HOST: owner, ANNOTATION_FOR_BOOT: action.boot}
        body: Raw = {
            "metadata": {"name": name, "labels": {LABEL_NETWORK_CONFIG: "true"}, "annotations": notes},
            "data": {CONFIG_KEY: action.text},
        }
        if view.config is None:
            if action.boot is None:  # a null would be stored as an empty annotation, and be another boot
                del notes[ANNOTATION_FOR_BOOT]
            try:
                written = await self._api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
            except AlreadyExists:
                raise Stale(f"ConfigMap {name} exists") from None
        else:
            body["metadata"]["resourceVersion"] = view.config.metadata.resource_version
            written = await self._api.patch(CONFIG_MAPS, name, body, namespace=NAMESPACE)
        self._configs.observe(written)
        log.info("network configuration written", machine=owner, config=name)

    async def _delete_config(self, view: NetworkView) -> None:
        if view.config is None:
            return
        try:
            await self._api.delete(CONFIG_MAPS, view.config.name, namespace=NAMESPACE, uid=view.config.metadata.uid)
        except NotFound:
            return

    async def _delete_orphans(self, namespace: str, name: str) -> None:
        """Delete network configurations that were written too late, for an IpamHost that was gone."""
        known = self._ipam_hosts.get(name, namespace)
        own = config_name(known) if known is not None else ""
        for config in self._configs.by(INDEX_IPAM_HOST, f"{namespace}/{name}"):
            if config.name == own:
                continue
            with suppress(NotFound):
                live = await self._api.get(IPAM_HOSTS, name, namespace=namespace)
                if config.name == config_name(live):
                    raise Stale(f"IpamHost {namespace}/{name} changed")
            self._epoch.check_leads()
            with suppress(NotFound):
                await self._api.delete(CONFIG_MAPS, config.name, namespace=NAMESPACE, uid=config.metadata.uid)

    async def _patch_target(self, view: NetworkView, pxe: Any) -> None:
        if view.target is None:
            return
        body = {"metadata": {"resourceVersion": view.target.metadata.resource_version}, "spec": {"pxe": pxe}}
        self._targets.observe(await self._api.patch(MACHINES, view.target.name, body))

    async def _write_report(self, ipam: IpamHost, report: IpamReport) -> None:
        """Write the status of an IpamHost if it differs; its conditions say what an install may count on."""
        now, generation = rfc3339(self._now()), ipam.metadata.generation
        present = [msgspec.to_builtins(one) for one in ipam.status.conditions]
        conditions, cause = present, (report.reason, report.message)
        restart = ("NetworkChanged", OUTDATED) if report.outdated else ("NetworkUnchanged", "")
        for kind, holds, (reason, message) in (
            (ADDRESSES, report.allocated, cause),
            (RENDERED, report.rendered, cause),
            (RESTART_NEEDED, report.outdated, restart),
        ):
            status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
            changed = set_condition(conditions, kind, status, reason, message, now, observed_generation=generation)
            conditions = conditions if changed is None else changed
        new = IpamHostStatus(
            netconfig_files=report.files,
            state=report.state,
            service_map=dict(report.services),
            l2_template_ref=report.template,
            conditions=ipam.status.conditions,
        )
        if new == ipam.status and conditions == present:
            return
        lists = {
            "conditions": conditions,
            "netconfigFiles": msgspec.to_builtins(report.files),
            "serviceMap": {**dict.fromkeys(ipam.status.service_map), **msgspec.to_builtins(dict(report.services))},
        }
        await self._ipam_status.write(ipam, with_nulls(new) | lists)
        log.info("network of a host", machine=str(key_of(ipam)), state=report.reason, why=report.message)

    async def _reconcile_subnet(self, namespace: str, name: str) -> float | None:
        subnet = self._subnets.get(name, namespace)
        if subnet is None:
            self._refused_subnets.forget(ObjectKey(namespace, name))
            return None
        self._epoch.check_leads()
        with self._refused_subnets.recorded(subnet, "write the finalizer of this Subnet") as attempt:
            return await self._update_subnet(subnet, attempt)

    async def _update_subnet(self, subnet: Subnet, attempt: WriteAttempt) -> float | None:
        namespace, name = key_of(subnet)
        if (finalizers := subnet_finalizers(subnet)) is not None:
            version = subnet.metadata.resource_version
            patch = {"metadata": {"finalizers": finalizers, "resourceVersion": version}}
            written = await self._api.patch(SUBNETS, name, patch, namespace=namespace)
            if finalizers or written.metadata.deletion_timestamp is None:
                self._subnets.observe(written)
                return 0.0
            return None
        async with self._turns[key_of(subnet)]:
            current = self._subnets.get(name, namespace)
            if current is not None:
                attempt.what = "write the status of this Subnet"
                await self._write_subnet(current, release(current, self._gone))
        return None

    async def _reconcile_template(self, namespace: str, name: str) -> float | None:
        template = self._templates.get(name, namespace)
        if template is None:
            self._refused_templates.forget(ObjectKey(namespace, name))
            return None
        fault = check_layout(template, [one for one in self._subnets.all() if _concerns(one, namespace, "")])
        state, reason = ("ERR", fault) if fault else (OK, None)
        if (template.status.state, template.status.reason) != (state, reason):
            self._epoch.check_leads()
            with self._refused_templates.recorded(template, "write the status of this L2Template"):
                await self._template_status.write(template, {"state": state, "reason": reason})
        return None


def network_view(caches: ContainerCloudCaches, namespace: str, name: str) -> NetworkView:
    """Return all that decides on the network of a Machine, from the caches."""
    machine, ipam = caches.machines.get(name, namespace), caches.ipam_hosts.get(name, namespace)
    execution = machine.status.execution if machine is not None else None
    notes = ipam.metadata.annotations if ipam is not None else {}
    target, host = notes.get(ANNOTATION_NETWORK_OF, ""), notes.get(ANNOTATION_HOST, "")
    if execution is not None and execution.host is not None and not _is_deleted(ipam):
        target, host = execution.machine or "", str(execution.host)
    host_namespace, _, host_name = host.partition("/")
    uid = ipam.metadata.uid if ipam is not None else ""
    return NetworkView(
        name=name,
        namespace=namespace,
        machine=machine,
        ipam=ipam,
        host=caches.hosts.get(host_name, host_namespace),
        target=caches.host_machines.get(target),
        templates=caches.templates.by(INDEX_NAMESPACE, namespace),
        subnets=[one for one in caches.subnets.all() if _concerns(one, namespace, uid)],
        config=caches.network_configs.get(config_name(ipam), NAMESPACE) if ipam is not None else None,
    )


def _write_of(view: NetworkView, action: NetworkAction) -> str:
    """Return an action in words, as a verb with its object."""
    name = f"IpamHost {view.namespace}/{view.name}"
    match action:
        case CreateIpamHost():
            return f"create {name}"
        case PatchIpamHost():
            return f"change {name}"
        case Allocate(subnet=subnet):
            return f"allocate addresses of Subnet {key_of(subnet)}"
        case ReleaseAddresses(subnet=subnet):
            return f"release addresses of Subnet {key_of(subnet)}"
        case WriteConfig():
            return f"write the network configuration of {name}"
        case DeleteConfig():
            return f"delete the network configuration of {name}"
        case PatchTarget():
            target = "" if view.target is None else f" {view.target.name}"
            return f"change spec.pxe of Machine{target}"


def _keys(subject: NetworkSubject, items: Iterable[object]) -> Iterator[NetworkKey]:
    return (NetworkKey(subject, *key_of(item)) for item in items)


def _of_config(config: ConfigMap) -> Iterator[NetworkKey]:
    namespace, _, name = config.metadata.annotations.get(ANNOTATION_IPAM_HOST, "").partition("/")
    if name:
        yield NetworkKey(NetworkSubject.HOST, namespace, name)


def _is_deleted(ipam: IpamHost | None) -> bool:
    return ipam is not None and ipam.metadata.deletion_timestamp is not None


def _concerns(subnet: Subnet, namespace: str, uid: str) -> bool:
    """Return whether hosts of a namespace may use a Subnet, or an IpamHost has addresses of it."""
    if subnet.metadata.namespace in (namespace, GLOBAL_NAMESPACE):
        return True
    return bool(uid) and _has_addresses(subnet, uid)


def _has_addresses(subnet: Subnet, uid: str) -> bool:
    return any(uid in text for text in subnet.status.allocated_ips)


def _claim_of(machine: ContainerCloudMachine) -> tuple[object, ...]:
    execution, meta = machine.status.execution, machine.metadata
    claim = None if execution is None else (execution.host, execution.machine)
    return claim, meta.uid, meta.deletion_timestamp, meta.labels


def _parts_of_host(host: BareMetalHost) -> tuple[object, ...]:
    return host.spec, host.state, host.status.conditions


def _parts_of_target(target: Machine) -> tuple[object, ...]:
    return target.spec, target.status.hardware, target.status.image


def _content(item: L2Template | Subnet) -> tuple[object, ...]:
    return item.spec, item.metadata.labels, item.metadata.deletion_timestamp
