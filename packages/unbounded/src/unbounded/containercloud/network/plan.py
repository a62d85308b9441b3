"""The next step of the network of one Machine: template, addresses, configuration, hand-over, and release. Pure.

An IpamHost has the name and the namespace of its Machine, and owns its addresses from their allocation until it is
released. Edits of an IpamHost, template or Subnet count at the next install. Addresses that a host has stay until the
release, as it may still run with them.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from unbounded.api.container_cloud.host import BareMetalHost, ProvisioningState
from unbounded.api.container_cloud.machine import ClaimedHost, ContainerCloudMachine, MachineStage
from unbounded.api.container_cloud.names import (
    ANNOTATION_HOST,
    ANNOTATION_INSTALLED,
    ANNOTATION_NETWORK_OF,
    FINALIZER_ADDRESSES,
    GROUP_CLUSTER,
    LABEL_CLUSTER,
    LABEL_LEASE_SUBNET,
    LABEL_LOAD_BALANCER,
    V1ALPHA1,
)
from unbounded.api.container_cloud.network import (
    InterfaceMAC,
    IpamHost,
    L2Template,
    NetconfigFile,
    Subnet,
)
from unbounded.api.hardware import HardwareSource
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import BootMode, DHCPLease, NetworkConfigKeySelector
from unbounded.api.names import ANNOTATION_FOR_BOOT, NAMESPACE
from unbounded.containercloud.hosts.machine_fields import boots_from_media
from unbounded.containercloud.hosts.model import consumer_of, consumer_uid
from unbounded.containercloud.network.model import (
    CONFIG_KEY,
    CONFIG_PREFIX,
    DIRTY,
    MAX_CARDS,
    NETPLAN_PATH,
    RENDERED,
    Allocate,
    CreateIpamHost,
    DeleteConfig,
    IpamReport,
    NetworkAction,
    NetworkPlan,
    NetworkView,
    PatchIpamHost,
    PatchTarget,
    ReleaseAddresses,
    WriteConfig,
)
from unbounded.containercloud.network.rendering import (
    NetworkCard,
    NetworkInputs,
    NetworkReason,
    RenderedNetwork,
    TemplateNetworkFault,
    TemplateSubnet,
    render_network,
    services,
    systemd_names,
)
from unbounded.containercloud.network.selection import choose_template, full_name, layout_subnets, pool_of
from unbounded.containercloud.network.subnets import (
    OK,
    SubnetFull,
    addresses_of,
    allocate,
    interface_key,
)
from unbounded.kube.api import key_of


def config_name(ipam: IpamHost) -> str:
    """Return the name of the ConfigMap with the configuration of an IpamHost."""
    return f"{CONFIG_PREFIX}{ipam.metadata.uid}"


def plan_network(view: NetworkView) -> NetworkPlan:
    """Return the next step of the network of a Machine."""
    ipam, machine = view.ipam, view.machine
    if ipam is None:
        if machine is None or machine.status.execution is None or _is_released(machine):
            return NetworkPlan()  # a new Machine: its first status tells whether it has a host
        return NetworkPlan((_creation(machine),))
    if ipam.metadata.deletion_timestamp is not None:
        return _release(view, ipam)
    if machine is None or not owns(machine, ipam):
        return NetworkPlan()  # the garbage collector deletes it
    if FINALIZER_ADDRESSES not in ipam.metadata.finalizers:
        finalizers = [*ipam.metadata.finalizers, FINALIZER_ADDRESSES]
        return NetworkPlan((PatchIpamHost({"metadata": {"finalizers": finalizers}}),))
    if view.host is not None and consumer_of(view.host) != key_of(machine):  # what it is given would stay in stock
        return NetworkPlan()
    if view.target is None:
        name = ipam.metadata.annotations.get(ANNOTATION_NETWORK_OF)
        text = f"Machine {name} of the host does not exist" if name else "the Machine has not claimed a host yet"
        return NetworkPlan(report=_fault(NetworkReason.NOT_CLAIMED, text))
    if view.host is not None and view.host.spec.externally_provisioned:
        text = f"BareMetalHost {view.host.name} is externallyProvisioned: its network stays as it is"
        return NetworkPlan(report=IpamReport("ExternallyProvisioned", text, allocated=True, rendered=True, state=OK))
    if patch := _facts(view, ipam, machine):
        return NetworkPlan((PatchIpamHost(patch),))
    try:
        plan = _handover(view, ipam, view.target, machine)
    except TemplateNetworkFault as fault:
        actions = (DeleteConfig(),) if view.config is not None else ()
        plan = NetworkPlan(actions, _fault(fault.reason, str(fault)))
    return _left_to_install(machine, _kept(view, ipam, plan))


def _left_to_install(machine: ContainerCloudMachine, plan: NetworkPlan) -> NetworkPlan:
    """Return the plan without the change of the host's Machine while the install of the Machine is planned."""
    execution = machine.status.execution
    if execution is None or execution.stage != MachineStage.PLANNING:
        return plan
    change = next((one.pxe for one in plan.actions if isinstance(one, PatchTarget)), {})
    actions = tuple(one for one in plan.actions if not isinstance(one, PatchTarget))
    return replace(plan, actions=actions, handover=change)


def _is_released(machine: ContainerCloudMachine) -> bool:
    execution = machine.status.execution
    is_releasing = execution is not None and execution.stage == MachineStage.RELEASING
    return is_releasing or machine.metadata.deletion_timestamp is not None


def owns(machine: ContainerCloudMachine, ipam: IpamHost) -> bool:
    """Return whether an IpamHost is that of a Machine, and not of an earlier one of its name."""
    owners = ipam.metadata.owner_references
    return not owners or any(one.uid == machine.metadata.uid for one in owners)


def _creation(machine: ContainerCloudMachine) -> CreateIpamHost:
    """Return the IpamHost of a Machine: selector and override are copied this once."""
    value, meta = machine.value, machine.metadata
    spec: dict[str, Any] = {}
    if value.l2_template_selector is not None:
        spec["l2TemplateSelector"] = msgspec.to_builtins(value.l2_template_selector)
    if value.l2_template_if_mapping_override:
        spec["ifMappingOverride"] = list(value.l2_template_if_mapping_override)
    owner = {
        "apiVersion": f"{GROUP_CLUSTER}/{V1ALPHA1}",
        "kind": "Machine",
        "name": meta.name,
        "uid": meta.uid,
        "controller": True,
    }
    labels = {LABEL_CLUSTER: machine.cluster} if machine.cluster else {}
    execution = machine.status.execution
    target, host = (None, None) if execution is None else (execution.machine, execution.host)
    metadata = {
        "name": meta.name,
        "labels": labels,
        **({"annotations": _claimed(target, host)} if target and host is not None else {}),
        "finalizers": [FINALIZER_ADDRESSES],
        "ownerReferences": [owner],
    }
    return CreateIpamHost({"metadata": metadata, "spec": spec})


def _fault(reason: NetworkReason, text: str) -> IpamReport:
    is_wait = reason is NetworkReason.NOT_CLAIMED
    return IpamReport(reason, text, state=None if is_wait else f"ERR: {text}")


# ---- the cards and the host of an IpamHost


def _facts(view: NetworkView, ipam: IpamHost, machine: ContainerCloudMachine) -> dict[str, Any]:
    """Return the patch of an IpamHost with its host and network cards; empty if it has them."""
    patch: dict[str, Any] = {}
    claimed = machine.status.execution.host if machine.status.execution is not None else None
    known = _claimed(view.target.name if view.target is not None else "", claimed)
    if claimed is not None and any(ipam.metadata.annotations.get(key) != value for key, value in known.items()):
        patch["metadata"] = {"annotations": known}
    cards = tuple(_reported(view, ipam))
    if cards != ipam.spec.nic_mac_map:
        patch["spec"] = {"nicMACmap": msgspec.to_builtins(cards)}
    return patch


def _claimed(target: str, host: ClaimedHost | None) -> dict[str, str]:
    return {ANNOTATION_NETWORK_OF: target, ANNOTATION_HOST: str(host)}


def _installed(view: NetworkView, ipam: IpamHost) -> tuple[str, str]:
    """Return the boot of the last install, and the digest of the network configuration that it had; empty for none.

    It is the present configuration, unless that has been changed since: the annotation then has the earlier one.
    """
    boot, _, digest = ipam.metadata.annotations.get(ANNOTATION_INSTALLED, "").rpartition(" ")
    image = view.target.status.image if view.target is not None else None
    if image is None or view.config is None or boot == image.boot:
        return boot, digest
    return image.boot, _digest(view.config.data.get(CONFIG_KEY, ""))


def _kept(view: NetworkView, ipam: IpamHost, plan: NetworkPlan) -> NetworkPlan:
    """Return the plan, or the note of the installed configuration that has to come before it."""
    boot, digest = _installed(view, ipam)
    known = f"{boot} {digest}"
    is_noted = not boot or ipam.metadata.annotations.get(ANNOTATION_INSTALLED) == known
    if is_noted or not any(isinstance(one, WriteConfig | DeleteConfig) for one in plan.actions):
        return plan
    return NetworkPlan((PatchIpamHost({"metadata": {"annotations": {ANNOTATION_INSTALLED: known}}}),))


def _digest(config: str) -> str:
    return hashlib.sha256(config.encode()).hexdigest()


def _reported(view: NetworkView, ipam: IpamHost) -> Iterator[InterfaceMAC]:
    """Yield the entries that a user or an earlier report has made, then those of cards that have none."""
    yield from ipam.spec.nic_mac_map
    present, names = len(ipam.spec.nic_mac_map), {one.name for one in ipam.spec.nic_mac_map}
    known, boot = {one.mac.lower() for one in ipam.spec.nic_mac_map}, _boot_mac(view)
    hardware = view.target.status.hardware if view.target is not None else None
    if hardware is None or hardware.source != HardwareSource.INSTALLER:
        return
    for nic in hardware.nics:
        mac, name = (nic.mac or "").lower(), nic.name or nic.mac or ""
        if mac and mac not in known and name not in names and present < MAX_CARDS:
            present += 1
            yield InterfaceMAC(name=name, mac=mac, primary=mac == boot)


def _boot_mac(view: NetworkView) -> str:
    return (view.host.spec.boot_mac_address or "").lower() if view.host is not None else ""


def network_cards(view: NetworkView, ipam: IpamHost) -> list[NetworkCard] | None:
    """Return the network cards of the host, under the names of nicMACmap; None before an installer reported them."""
    names = {one.mac.lower(): one.name for one in ipam.spec.nic_mac_map}
    hardware, boot = view.target.status.hardware if view.target is not None else None, _boot_mac(view)
    if hardware is None or hardware.source != HardwareSource.INSTALLER:
        return [NetworkCard(name, mac, mac == boot) for mac, name in names.items()] or None
    cards = []
    for nic in hardware.nics:
        mac = (nic.mac or "").lower()
        aliases = (*((nic.name,) if nic.name else ()), *systemd_names(nic))
        if mac:
            cards.append(NetworkCard(names.get(mac, nic.name or mac), mac, mac == boot, aliases))
    return _last_named(cards, ipam.spec.if_mapping_override)


def _last_named(cards: list[NetworkCard], override: Sequence[str]) -> list[NetworkCard]:
    """Give the last card the last name of an override, which names all cards of the host."""
    known = {name for card in cards for name in (card.name, *card.aliases)}
    names = [name for name in override if name not in known]
    rest = [card for card in cards if not {card.name, *card.aliases} & set(override)]
    if len(names) != 1 or len(rest) != 1 or len(override) != len(cards):
        return cards
    return [replace(card, aliases=(*card.aliases, *names)) if card in rest else card for card in cards]


# ---- the configuration


def _load_balancer(view: NetworkView, cluster: str) -> str:
    """Return the address of the Cluster's load balancer; empty if no Subnet has it."""
    for subnet in sorted(view.subnets, key=lambda one: one.name):
        labels = subnet.metadata.labels
        is_own = subnet.metadata.namespace == view.namespace and labels.get(LABEL_CLUSTER, cluster) == cluster
        if LABEL_LOAD_BALANCER in labels and is_own:
            return str(pool_of(subnet).first)
    return ""


# ---- the configuration


def _handover(view: NetworkView, ipam: IpamHost, target: Machine, machine: ContainerCloudMachine) -> NetworkPlan:
    """Plan addresses, configuration and hand-over.

    Raises:
        TemplateNetworkFault: something has to be corrected.
    """
    if target.spec.network is not None:
        raise TemplateNetworkFault(
            NetworkReason.MACHINE_HAS_NETWORK,
            f"Machine {target.name} has spec.network, which excludes the network of Container Cloud: remove it",
        )
    template = choose_template(ipam, machine, view.templates)
    subnets = layout_subnets(template, machine.cluster, view.subnets)
    network = _host_network(view, ipam, machine, template, subnets)
    rendered, absent = _rendered(network)
    missing: dict[str, list[str]] = {}
    for name, interface in rendered.missing:
        missing.setdefault(full_name(subnets[name]), []).append(interface)
    lease = _lease(view, ipam, target, network, rendered, subnets)
    if isinstance(lease, MissingLease) and not rendered.missing:
        missing.setdefault(full_name(lease.subnet), []).append(lease.interface)
    if missing:
        return NetworkPlan(tuple(_allocations(view, ipam, missing)))
    actions = [*_config_actions(view, rendered, target), *_target_actions(view, ipam, target, lease)]
    report = _report(view, ipam, template, network, rendered)
    if absent is not None:  # the next boot may find the card: it is no reason to boot no more
        report = replace(report, reason=absent.reason, message=str(absent), state=f"ERR: {absent}")
    return NetworkPlan(tuple(actions), report)


def _rendered(network: NetworkInputs) -> tuple[RenderedNetwork, TemplateNetworkFault | None]:
    """Return the network, and the fault of a card that the last report lacks: the network then awaits another report.

    Raises:
        TemplateNetworkFault: something has to be corrected.
    """
    try:
        return render_network(network), None
    except TemplateNetworkFault as fault:
        if fault.reason is not NetworkReason.CARD_MISSING or network.cards is None:
            raise
        return render_network(replace(network, cards=None)), fault


def _host_network(
    view: NetworkView,
    ipam: IpamHost,
    machine: ContainerCloudMachine,
    template: L2Template,
    subnets: Mapping[str, Subnet],
) -> NetworkInputs:
    uid = ipam.metadata.uid
    return NetworkInputs(
        template=full_name(template),
        text=ipam.spec.np_template_override or template.spec.np_template,
        if_mapping=ipam.spec.if_mapping_override or template.spec.if_mapping,
        priorities=template.spec.auto_if_mapping_prio,
        cards=network_cards(view, ipam),
        subnets={
            name: TemplateSubnet(full_name(one), pool_of(one), one.metadata.labels, addresses_of(one, uid))
            for name, one in subnets.items()
        },
        load_balancer=_load_balancer(view, machine.cluster),
    )


def _allocations(view: NetworkView, ipam: IpamHost, missing: Mapping[str, Sequence[str]]) -> Iterator[Allocate]:
    for subnet in view.subnets:
        if interfaces := missing.get(full_name(subnet)):
            if subnet.metadata.deletion_timestamp is not None:
                raise TemplateNetworkFault(NetworkReason.SUBNET_INVALID, f"Subnet {full_name(subnet)} is being deleted")
            try:
                allocate(subnet, ipam.metadata.uid, interfaces)
            except SubnetFull as full:
                raise TemplateNetworkFault(NetworkReason.SUBNET_FULL, f"Subnet {full_name(subnet)}: {full}") from full
            yield Allocate(subnet, tuple(interfaces))


def _config_actions(view: NetworkView, rendered: RenderedNetwork, target: Machine) -> Iterator[NetworkAction]:
    hardware = target.status.hardware
    boot = hardware.boot if rendered.uses_cards and hardware is not None else None
    if not rendered.config:
        if view.config is not None:
            yield DeleteConfig()
    elif (
        view.config is None
        or view.config.data.get(CONFIG_KEY) != rendered.config
        or view.config.metadata.annotations.get(ANNOTATION_FOR_BOOT) != boot
    ):
        yield WriteConfig(rendered.config, boot)


def _target_actions(
    view: NetworkView, ipam: IpamHost, target: Machine, lease: DHCPLease | MissingLease | None
) -> Iterator[NetworkAction]:
    """Yield the change of the host's Machine that hands the configuration over, with the address of its installer."""
    pxe = target.spec.pxe
    if pxe is None:
        return
    change: dict[str, Any] = {}
    reference = None if pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
    named = NetworkConfigKeySelector(name=config_name(ipam), namespace=NAMESPACE, key=CONFIG_KEY)
    if reference != named:
        change["cloudInit"] = {"networkConfigConfigMapRef": {**msgspec.to_builtins(named), "key": CONFIG_KEY}}
    if isinstance(lease, DHCPLease) and lease not in pxe.dhcp_leases:
        others = [one for one in pxe.dhcp_leases if one.mac.lower() != lease.mac.lower()]
        change["dhcpLeases"] = msgspec.to_builtins([*others, lease])
        if view.host is not None and boots_from_media(view.host):  # it needs the lease
            change["bootMode"] = BootMode.VIRTUAL_MEDIA.value
    if change:
        yield PatchTarget(change)


def _report(
    view: NetworkView, ipam: IpamHost, template: L2Template, network: NetworkInputs, rendered: RenderedNetwork
) -> IpamReport:
    reference = f"{full_name(template)}@{template.metadata.resource_version}"
    found = services(network, rendered.used)
    if not rendered.config:
        text = "the installer has to report the network cards of the host; the rest of its network follows from them"
        return IpamReport("AwaitingHardware", text, allocated=True, template=reference, services=found)
    content = base64.b64encode(rendered.netplan.encode()).decode()
    addresses = ", ".join(f"{one.address} on {one.interface}" for one in rendered.used)
    outdated = _installed(view, ipam)[1] not in ("", _digest(rendered.config))
    return IpamReport(
        RENDERED,
        f"addresses: {addresses}",
        allocated=True,
        rendered=True,
        outdated=outdated,
        state=OK,
        template=reference,
        files=(NetconfigFile(path=NETPLAN_PATH, content=content),),
        services=found,
    )


# ---- the address of the installer


@dataclass(frozen=True)
class MissingLease:
    """The installer needs an address of this Subnet first."""

    subnet: Subnet
    interface: str


def _lease(
    view: NetworkView,
    ipam: IpamHost,
    target: Machine,
    network: NetworkInputs,
    rendered: RenderedNetwork,
    subnets: Mapping[str, Subnet],
) -> DHCPLease | MissingLease | None:
    """Return the lease of the installer; None where the Machine has one that others made.

    It is an address of the Subnet for leases, or else that of the host in the management network: no second one is
    used up, and the network that the host boots from is the one that it has later.

    Raises:
        TemplateNetworkFault: there is no Subnet for it.
    """
    mac = _boot_mac(view)
    uid = ipam.metadata.uid
    held = {address for subnet in view.subnets for address in addresses_of(subnet, uid).values()}
    foreign = [one for one in _leases(target) if one.mac.lower() == mac and one.ipv4 not in held]
    if not mac or foreign:
        return None
    ranges = [one for one in view.subnets if LABEL_LEASE_SUBNET in one.metadata.labels]
    ranges.sort(key=lambda one: (one.metadata.namespace != view.namespace, one.name))
    lcm = [name for name, one in network.subnets.items() if one.is_lcm]
    if not ranges and not lcm:
        raise TemplateNetworkFault(
            NetworkReason.NO_LEASE, f"L2Template {network.template}: no Subnet of spec.l3Layout is one of the LCM"
        )
    subnet = ranges[0] if ranges else subnets[lcm[0]]
    pool = pool_of(subnet)
    if pool.network.version != 4 or pool.gateway is None:
        raise TemplateNetworkFault(
            NetworkReason.NO_LEASE,
            f"Subnet {full_name(subnet)}: the installer needs a lease with an IPv4 address and spec.gateway; give a "
            f"Subnet for leases the label {LABEL_LEASE_SUBNET}, or set spec.pxe.dhcpLeases of Machine {target.name}",
        )
    own = addresses_of(subnet, uid)
    later = [one for one in rendered.used if not ranges and one.subnet in lcm]
    address = own.get(interface_key(mac)) or (later[0].address.partition("/")[0] if later else "")
    if not address:
        return MissingLease(subnet, interface_key(mac))
    return DHCPLease(
        ipv4=address,
        mac=mac,
        subnet_mask=str(pool.network.netmask),
        gateway=str(pool.gateway),
        dns=tuple(str(one) for one in pool.nameservers if one.version == 4)[:8],
    )


def _leases(target: Machine) -> tuple[DHCPLease, ...]:
    return target.spec.pxe.dhcp_leases if target.spec.pxe is not None else ()


# ---- the release


def _release(view: NetworkView, ipam: IpamHost) -> NetworkPlan:
    """Plan the release of an IpamHost that is being deleted: first the hand-over, then the addresses, last the object.

    The addresses of a host that may still run stay until it was seen Off.
    """
    if FINALIZER_ADDRESSES not in ipam.metadata.finalizers:
        return NetworkPlan()
    holding = [one for one in view.subnets if addresses_of(one, ipam.metadata.uid)]
    actions: list[NetworkAction] = list(_taken_back(ipam, view.target, holding))
    if view.config is not None:
        actions.append(DeleteConfig())
    if view.host is not None and (why := _may_run(view.host, ipam)) is not None:
        text = f"the addresses stay in use: BareMetalHost {full_name(view.host)} {why}"
        return NetworkPlan(
            tuple(actions), IpamReport(NetworkReason.HOST_DIRTY, text, allocated=True, state=f"ERR: {text}")
        )
    actions += [ReleaseAddresses(one) for one in holding]
    left = [one for one in ipam.metadata.finalizers if one != FINALIZER_ADDRESSES]
    return NetworkPlan((*actions, PatchIpamHost({"metadata": {"finalizers": left}})))


def _taken_back(ipam: IpamHost, target: Machine | None, holding: Sequence[Subnet]) -> Iterator[NetworkAction]:
    pxe = None if target is None else target.spec.pxe
    if target is None or pxe is None:
        return
    change: dict[str, Any] = {}
    reference = None if pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
    if reference is not None and reference.name == config_name(ipam):
        change["cloudInit"] = {"networkConfigConfigMapRef": None}
    held = {address for subnet in holding for address in addresses_of(subnet, ipam.metadata.uid).values()}
    kept = [one for one in pxe.dhcp_leases if one.ipv4 not in held]
    if len(kept) != len(pxe.dhcp_leases):
        change["dhcpLeases"] = msgspec.to_builtins(kept) or None
        if not kept and pxe.boot_mode == BootMode.VIRTUAL_MEDIA:  # which needs an address
            change["bootMode"] = BootMode.NETWORK.value
    if change:
        yield PatchTarget(change)


def _may_run(host: BareMetalHost, ipam: IpamHost) -> str | None:
    """Return why a host may run with the addresses of an IpamHost; None where it cannot."""
    is_dirty = any(one.type == DIRTY and one.status == "True" for one in host.status.conditions)
    if host.state in (ProvisioningState.PROVISIONING, ProvisioningState.PROVISIONED):
        if consumer_uid(host) in {one.uid for one in ipam.metadata.owner_references}:
            return "belongs to the Machine still; they are released with it"
        is_dirty = consumer_of(host) is None  # its status has not followed the release yet
    return "was not seen Off, and may still run" if is_dirty else None


# ---- Subnets by themselves


def subnet_finalizers(subnet: Subnet) -> list[str] | None:
    """Return the finalizers that a Subnet is to have; None if it has them.

    A Subnet that is deleted while hosts have its addresses, and made anew, would give these addresses to others.
    """
    present = list(subnet.metadata.finalizers)
    if subnet.metadata.deletion_timestamp is None:
        return None if FINALIZER_ADDRESSES in present else [*present, FINALIZER_ADDRESSES]
    if subnet.status.allocated_ips or FINALIZER_ADDRESSES not in present:
        return None
    return [one for one in present if one != FINALIZER_ADDRESSES]
