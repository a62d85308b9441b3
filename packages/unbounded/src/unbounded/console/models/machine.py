"""The view of one Machine: its state, what blocks it, the objects around it, its Node, hardware, network and BMC, and
its history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from unbounded.api.conditions import ConditionStatus
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import Node, NodeCondition, NodeTaint
from unbounded.api.hardware import DiskFacts, HardwareStatus, NICFacts, ReportedHardware
from unbounded.api.machine import MACHINES, ActiveOperation, Machine, RecentOperation
from unbounded.api.meta import Condition
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.api.operation import MACHINE_OPERATIONS, OperationKind
from unbounded.console import urls
from unbounded.console.models.parts import (
    FactList,
    NotRead,
    ObjectRows,
    Tone,
    TreeRow,
    ViewData,
    ViewSection,
    ViewTable,
    ViewText,
    blockers,
    facts,
    memory,
    note_unread,
    phase,
    size,
    unread_notes,
    words,
)
from unbounded.explain.results import Explanation
from unbounded.explain.tree import ObjectTree, TreeNode
from unbounded.operations.claim_gates import in_maintenance, is_paused
from unbounded.operations.observed_power import bmc_state, power_of

_KINDS: Final = frozenset(map(str, OperationKind))
UNHEALTHY_FIRST: Final = {"Critical": 0, "Warning": 1}
NODE_READY: Final = "Ready"  # all other conditions of a Node are true where something is wrong


def machine_view(
    machine: Machine, tree: ObjectTree | None, explanation: Explanation | None, node: Node | NotRead | None = None
) -> ViewData:
    """Return the view of a Machine.

    Args:
        tree: of the Machine; None until it is read.
        explanation: of the Machine; None until it is known.
        node: of the Machine; None where it has none.
    """
    sections: list[ViewSection] = [_state(machine), blockers(explanation)]
    if tree is not None:
        sections.append(object_rows(tree))
    sections += [_conditions(machine.status.conditions), *_node(node)]
    sections += [*_hardware(machine), *_network(machine), *_bmc(machine)]
    sections.append(_history(machine))
    active = machine.status.active_operation
    return ViewData(f"Machine {machine.name}", phase(machine.status.phase), tuple(sections), runs=active is not None)


def _state(machine: Machine) -> FactList:
    status, active, disruption = machine.status, machine.status.active_operation, machine.status.disruption
    maintenance, pause = machine.spec.maintenance, machine.metadata.annotations
    configuration, agent = status.configuration, status.agent
    host = None if agent is None else agent.host
    return facts(
        "State",
        (
            ("Phase", phase(status.phase)),
            ("Reason", status.reason),
            ("Message", status.message),
            ("Site", ViewText(machine.site, urls.site(machine.site)) if machine.site else None),
            ("Provider", machine.provider),
            ("Power", power_of(machine)),
            ("Operation", None if active is None else ViewText(f"{active.kind} {active.name}", _path_of(active))),
            ("Executor", None if active is None else active.executor),
            ("Disruption", None if disruption is None else f"{disruption.stage} for {disruption.holder}"),
            ("Progress", None if disruption is None else disruption.message),
            ("Maintenance", (maintenance.reason or "yes") if maintenance and in_maintenance(machine) else None),
            ("Paused", pause.get(ANNOTATION_PAUSED, "") if is_paused(pause) else None),
            ("Configuration", None if configuration is None else configuration.version_name),
            ("Image", None if status.image is None else status.image.image),
            ("Agent", None if agent is None else agent.version),
            ("Agent's work", None if agent is None else agent.stage),
            ("Addresses", None if host is None else ", ".join(dict.fromkeys(one.address for one in host.addresses))),
            ("Operating system", None if host is None else " ".join(filter(None, (host.os_id, host.os_version)))),
            ("Kernel", None if host is None else host.kernel),
            ("Reboot", "required by its packages" if host is not None and host.reboot_required else None),
            ("Labels", ", ".join(f"{key}={value}" for key, value in sorted(machine.metadata.labels.items()))),
            ("Created", machine.metadata.creation_timestamp),
        ),
    )


def _path_of(run: ActiveOperation | RecentOperation) -> str:
    """Return the path of an operation; empty for a recreation of the Node or a provisioning, which are no objects."""
    return urls.operation(run.name) if run.kind in _KINDS else ""


def _conditions(conditions: tuple[Condition, ...]) -> ViewTable:
    return ViewTable(
        "Conditions",
        ("Type", "Status", "Reason", "Message", "Since"),
        tuple(tuple(map(words, (one.type, one.status, one.reason, one.message, one.since))) for one in conditions),
    )


def _node(node: Node | NotRead | None) -> Iterator[ViewSection]:
    conditions = ViewTable("Conditions of the Node", ("Type", "Status", "Reason", "Message", "Since"), ())
    if isinstance(node, Node):
        yield _node_facts(node)
        yield replace(conditions, rows=tuple(map(_node_condition, node.status.conditions)))
    elif node is not None:
        yield note_unread(conditions, node)


def _node_facts(node: Node) -> FactList:
    spec, info = node.spec, node.status.node_info
    return facts(
        "Node",
        (
            ("Name", node.metadata.name),
            ("Kubelet", None if info is None else info.kubelet_version),
            ("Container runtime", None if info is None else info.container_runtime_version),
            ("Operating system", None if info is None else info.os_image),
            ("Kernel", None if info is None else info.kernel_version),
            ("Addresses", ", ".join(f"{one.type} {one.address}" for one in node.status.addresses)),
            ("Scheduling", words("disabled: it is cordoned", tone=Tone.WARN) if spec.unschedulable else None),
            ("Taints", ", ".join(map(_taint, spec.taints))),
            ("Provider ID", spec.provider_id),
            ("Created", node.metadata.creation_timestamp),
        ),
    )


def _taint(taint: NodeTaint) -> str:
    """Return a taint as `kubectl taint` has it."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _node_condition(found: NodeCondition) -> tuple[ViewText, ...]:
    rest = map(words, (found.reason, found.message, found.last_transition_time))
    return (words(found.type), words(found.status, tone=_node_tone(found)), *rest)


def _node_tone(found: NodeCondition) -> Tone:
    if found.type == NODE_READY:
        return Tone.GOOD if found.status == ConditionStatus.TRUE else Tone.BAD
    return Tone.CALM if found.status == ConditionStatus.FALSE else Tone.WARN


def _hardware(machine: Machine) -> Iterator[ViewSection]:
    """Yield the hardware of the last inspection; of a host without one, what its agent reports."""
    agent = machine.status.agent
    reported = None if agent is None or agent.host is None else agent.host.hardware
    hardware = machine.status.hardware or reported
    if hardware is None:
        return
    yield _parts(hardware) if isinstance(hardware, HardwareStatus) else _reported_parts(hardware)
    yield ViewTable(
        "Disks",
        ("Name", "Serial number", "Model", "Size", "Bus", "Content", "Health"),
        tuple(map(_disk, hardware.disks)),
    )
    yield ViewTable(
        "Network interfaces",
        ("Name", "MAC", "Link", "Driver", "Switch", "Port"),
        tuple(map(_nic, hardware.nics)),
    )


def _reported_parts(hardware: ReportedHardware) -> FactList:
    processor = hardware.processor
    return facts(
        "Hardware",
        (
            ("Processor", None if processor is None else processor.model),
            ("CPUs", None if hardware.cpus is None else str(hardware.cpus)),
            ("Memory", memory(hardware.memory_bytes)),
            ("Inspected", "by its agent"),
        ),
    )


def _parts(hardware: HardwareStatus) -> FactList:
    system, firmware, processor = hardware.system, hardware.firmware, hardware.processor
    return facts(
        "Hardware",
        (
            ("Manufacturer", None if system is None else system.manufacturer),
            ("Product", None if system is None else system.product),
            ("Serial number", None if system is None else system.serial_number),
            ("Processor", None if processor is None else processor.model),
            ("CPUs", None if hardware.cpus is None else str(hardware.cpus)),
            ("Memory", memory(hardware.memory_bytes)),
            ("Firmware", None if firmware is None else " ".join(filter(None, (firmware.vendor, firmware.version)))),
            ("Secure Boot", _yes(None if firmware is None else firmware.secure_boot)),
            ("TPM", None if hardware.tpm is None else hardware.tpm.version),
            ("Accelerators", ", ".join(one.model or one.name or "" for one in hardware.accelerators)),
            ("Inspected", f"{hardware.at} by {hardware.source}"),
        ),
    )


def _yes(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"


def _disk(disk: DiskFacts) -> tuple[ViewText, ...]:
    content = ": ".join(filter(None, (disk.state, disk.contents)))
    cells = (disk.name, disk.serial_number, disk.model, size(disk.size_bytes), disk.bus, content)
    return (*map(words, cells), phase(disk.health))


def _nic(nic: NICFacts) -> tuple[ViewText, ...]:
    speed = "" if nic.speed_mbps is None else f" {nic.speed_mbps} Mbit/s"
    link = None if nic.link is None else f"up{speed}" if nic.link else "down"
    switch, port = (None, None) if nic.lldp is None else (nic.lldp.system_name, nic.lldp.port_id)
    return tuple(map(words, (nic.name, nic.mac, link, nic.driver, switch, port)))


def _network(machine: Machine) -> Iterator[ViewSection]:
    pxe, ssh, netboot = machine.spec.pxe, machine.spec.ssh, machine.status.netboot
    if pxe is not None and pxe.dhcp_leases:
        yield ViewTable(
            "Leases",
            ("IPv4", "MAC", "Gateway", "DNS"),
            tuple(tuple(map(words, (one.ipv4, one.mac, one.gateway, ", ".join(one.dns)))) for one in pxe.dhcp_leases),
        )
    if netboot is not None:
        percent = None if netboot.percent is None else f"{netboot.percent} %"
        yield facts(
            "Last network boot",
            (
                ("Milestone", phase(netboot.milestone)),
                ("Image written", percent),
                ("Message", netboot.message),
                ("Image", netboot.image),
                ("Reached", netboot.at),
            ),
        )
    if ssh is not None:
        known = machine.status.ssh
        yield facts(
            "SSH",
            (
                ("Host", f"{ssh.username}@{ssh.host}"),
                ("Host key", None if known is None else known.fingerprint),
                ("Bastion", None if ssh.bastion is None else ssh.bastion.host),
            ),
        )


def _bmc(machine: Machine) -> Iterator[ViewSection]:
    redfish = None if machine.spec.pxe is None else machine.spec.pxe.redfish
    if redfish is None:
        return
    state, power, pinned = bmc_state(machine), machine.status.power, machine.status.redfish
    yield facts(
        "BMC",
        (
            ("Address", f"{redfish.url} Systems/{redfish.device_id}"),
            ("State", None if state is None else phase(state.value)),
            ("Power", None if power is None else f"{power.state} since {power.at}"),
            ("Certificate", None if pinned is None else pinned.cert_fingerprint),
        ),
    )
    reading = None if machine.status.hardware is None else machine.status.hardware.bmc
    if reading is not None:
        parts = sorted(reading.parts, key=lambda one: UNHEALTHY_FIRST.get(one.health or "", 2))
        yield ViewTable(
            "Parts that the BMC lists",
            ("Part", "Name", "Health"),
            tuple((words(one.kind), words(one.name), phase(one.health)) for one in parts),
        )


def _history(machine: Machine) -> ViewTable:
    return ViewTable(
        "History",
        ("Operation", "Kind", "Phase", "Reason", "Started", "Completed", "Message"),
        tuple(
            (
                ViewText(one.name, _path_of(one)),
                words(one.kind),
                phase(one.phase),
                *map(words, (one.reason, one.started_at, one.completed_at, one.message)),
            )
            for one in reversed(machine.status.recent_operations)
        ),
        empty="No operation has ended yet.",
    )


_PATHS: Final = {
    (MACHINES.group, MACHINES.kind): urls.machine,
    (MACHINE_OPERATIONS.group, MACHINE_OPERATIONS.kind): urls.operation,
}


def object_rows(tree: ObjectTree) -> ObjectRows:
    """Return the rows of a tree of objects."""
    notes = tuple(TreeRow(1, words(note), words(""), "") for note in unread_notes(tree.unread))
    return ObjectRows("Objects around it", (*_rows(tree.root, 0), *notes))


def _rows(node: TreeNode, depth: int) -> Iterator[TreeRow]:
    yield TreeRow(depth, ViewText(f"{node.kind} {_name(node)}", _path(node)), phase(node.phase), node.message)
    for child in node.children:
        yield from _rows(child, depth + 1)


def _name(node: TreeNode) -> str:
    return f"{node.namespace}/{node.name}" if node.namespace else node.name


def _path(node: TreeNode) -> str:
    if (node.group, node.kind) in _PATHS:
        return _PATHS[node.group, node.kind](node.name)
    if (node.group, node.kind) == (BARE_METAL_HOSTS.group, BARE_METAL_HOSTS.kind):
        return urls.host(node.namespace, node.name)
    return ""
