"""docs/pictures/*.svg: state machines from the tables of all executors, and the pictures that the documents show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from scripts.drawing import BLUE, GREEN, RED, YELLOW, Edge, Message, Node, flow, sequence
from scripts.operation_reference import cloud_procedures, procedures
from scripts.state_pictures import picture_name, procedure_picture
from unbounded.api.machine import MachinePhase
from unbounded.api.operation import OperationPhase
from unbounded.machineops.providers.azure import replacement_plan as azure
from unbounded.operations.disruption.stages import PROCEDURE as DISRUPTION

FOLDER: Final = "docs/pictures"


def files() -> Mapping[str, str]:
    """Return each picture by its path."""
    drawn = {name: draw() for name, draw in DRAWN.items()}
    made = (*procedures(), *cloud_procedures())
    tables = {
        picture_name(kind, executor): procedure_picture(f"{kind} ({executor})", one) for kind, executor, one in made
    }
    tables["disruption"] = procedure_picture("The disruption of a Node", DISRUPTION)
    return {f"{FOLDER}/{name}.svg": svg for name, svg in (drawn | tables).items()}


def _architecture() -> str:
    nodes = (
        Node(
            1, 0, "kubectl, GitOps, scripts", ("Machines, MachineOperations, MachineConfigurations",), BLUE, columns=2
        ),
        Node(0, 1, "Kubernetes API", ("a cluster, or the embedded server of unbounded up",), YELLOW, columns=4),
        Node(0, 2, "metalman", ("for each site:", "Redfish, DHCP, TFTP, HTTP"), BLUE),
        Node(1, 2, "machina", ("SSH, certificates,", "supervisor of operations"), BLUE),
        Node(2, 2, "machine-ops-controller", ("an engine for each site", "and provider"), BLUE),
        Node(3, 2, "unbounded-agent", ("on each host: start, upgrade,", "recreation, reset"), BLUE),
        Node(0, 3.2, "BMCs, booting hosts", ("bare metal",)),
        Node(1, 3.2, "hosts over SSH", ("behind bastions, too",)),
        Node(2, 3.2, "clouds", ("Azure, Oracle Cloud,", "your provider")),
        Node(3, 3.2, "the node", ("systemd-nspawn with", "kubelet and containerd")),
    )
    edges = (
        Edge("kubectl, GitOps, scripts", "Kubernetes API", "spec"),
        Edge("Kubernetes API", "metalman", "watch, status"),
        Edge("Kubernetes API", "machina", "watch, status"),
        Edge("Kubernetes API", "machine-ops-controller", "watch, status"),
        Edge("Kubernetes API", "unbounded-agent", "watch, status"),
        Edge("metalman", "BMCs, booting hosts", "power, boot"),
        Edge("machina", "hosts over SSH", "install, reset"),
        Edge("machine-ops-controller", "clouds", "power, replace"),
        Edge("unbounded-agent", "the node", "runs"),
    )
    return flow("Components and what they drive", nodes, edges)


def _operation() -> str:
    pending, working = str(OperationPhase.PENDING), str(OperationPhase.IN_PROGRESS)
    complete, failed = str(OperationPhase.COMPLETE), str(OperationPhase.FAILED)
    nodes = (
        Node(0, 0, "MachineOperation", ("kubectl apply",), BLUE),
        Node(0, 1, pending, ("the supervisor validates it, and", "reports what it waits for")),
        Node(0, 2.15, "claim", ("lock the Machine:", "status.activeOperation"), YELLOW),
        Node(1.35, 2.15, "observe", ("BMC, cloud or host;", "evidence goes to the status")),
        Node(2.7, 2.15, "decide", ("a pure function over", "the table of the kind")),
        Node(2.7, 1, "write the intent", ("stage, action, attempt, epoch",)),
        Node(1.35, 1, working, ("call, and store the outcome",), BLUE),
        Node(2.7, 3.3, complete, ("all evidence is in the status",), GREEN),
        Node(4.05, 2.15, failed, ("status.cause and", "the reason of the failure"), RED),
        Node(1.35, 3.3, "lock released", ("TTL deletes the object",)),
    )
    edges = (
        Edge("MachineOperation", pending),
        Edge(pending, "claim"),
        Edge("claim", "observe"),
        Edge("observe", "decide"),
        Edge("decide", "write the intent", "action"),
        Edge("write the intent", working),
        Edge(working, "observe", "again"),
        Edge("decide", complete, "proven"),
        Edge("decide", failed, "limit"),
        Edge(complete, "lock released"),
    )
    return flow("The life of a MachineOperation", nodes, edges)


def _machine() -> str:
    phase = {one: str(one) for one in MachinePhase}
    nodes = (
        Node(0, 0, phase[MachinePhase.PENDING], ("nothing reported yet, or", "the host is off")),
        Node(1.35, 0, phase[MachinePhase.PROVISIONING], ("SSH install, network boot,", "or a HostReplace"), YELLOW),
        Node(2.7, 0, phase[MachinePhase.JOINING], ("installed;", "waits for the Node"), YELLOW),
        Node(2.7, 1.3, phase[MachinePhase.READY], ("the Node is there,", "or none is required"), GREEN),
        Node(1.35, 1.3, phase[MachinePhase.FAILED], ("status.reason", "names the cause"), RED),
        Node(2.7, 2.6, phase[MachinePhase.REBOOTING], ("a HostReboot", "has the lock"), BLUE),
    )
    edges = (
        Edge(phase[MachinePhase.PENDING], phase[MachinePhase.PROVISIONING], "reachable"),
        Edge(phase[MachinePhase.PROVISIONING], phase[MachinePhase.JOINING], "installed"),
        Edge(phase[MachinePhase.JOINING], phase[MachinePhase.READY], "Node Ready"),
        Edge(phase[MachinePhase.PROVISIONING], phase[MachinePhase.FAILED], "not possible as it is", dashed=True),
        Edge(phase[MachinePhase.READY], phase[MachinePhase.REBOOTING], "claim", bend=-30),
        Edge(phase[MachinePhase.REBOOTING], phase[MachinePhase.READY], "release", bend=30),
    )
    return flow("The life of a Machine: status.phase", nodes, edges)


def _network_boot() -> str:
    executor, api, servers, host = "executor (metalman)", "Machine in the API", "DHCP, TFTP, HTTP", "host and its BMC"
    steps = (
        Message(executor, executor, "HostReplace: wait for the image"),
        Message(executor, api, "lock, stage: opens the boot window"),
        Message(executor, host, "Redfish: shut down, boot override, power on"),
        Message(host, servers, "DHCP discover from a known MAC"),
        Message(servers, host, "address, next server, loader", dashed=True),
        Message(host, servers, "TFTP or HTTP: loader, kernel, initrd"),
        Message(servers, api, "milestones: LoaderFetched, KernelFetched"),
        Message(host, servers, "HTTP: installer fetches the image"),
        Message(servers, api, "percentage, ImageWritten"),
        Message(executor, host, "take the boot override away"),
        Message(host, servers, "cloud-init; the TPM answers a challenge"),
        Message(servers, host, "bootstrap token, wrapped for the TPM", dashed=True),
        Message(host, api, "agent joins: Node Ready"),
        Message(executor, api, "Complete, with evidence; lock released"),
    )
    return sequence("A network boot", (executor, api, servers, host), steps)


def _replacement() -> str:
    controller, api, cloud = "machine-ops-controller", "API", "Azure"
    host = "new VM"
    steps = [
        Message(controller, api, "lock; preflight names every loss"),
        *(
            message
            for step in azure.STEPS
            for message in (
                Message(controller, cloud, f"{step.stage}: {step.action}"),
                Message(cloud, controller, step.seen, dashed=True),
            )
        ),
        Message(cloud, host, "boots with the user data"),
        Message(host, api, "agent joins: Node Ready"),
        Message(controller, api, "Complete, with evidence; lock released"),
    ]
    return sequence("A replacement in the cloud", (api, controller, cloud, host), steps)


DRAWN: Final[Mapping[str, Callable[[], str]]] = {
    "architecture": _architecture,
    "life-of-an-operation": _operation,
    "life-of-a-machine": _machine,
    "network-boot": _network_boot,
    "replacement-in-the-cloud": _replacement,
}
