"""The limits of an agent, as a table: its requests, and the messages with which a server refuses them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.apiserver.support import Client

AGENTS = "unbounded-agent-daemons"
AGENT = "system:node:m1"
NEWCOMER, NEWCOMERS = "system:bootstrap:abcdef", "system:bootstrappers:unbounded-agent-daemons"
OURS = "/apis/unbounded-cloud.io/v1alpha3"
MACHINES, OPERATIONS = f"{OURS}/machines", f"{OURS}/machineoperations"
NODES = "/api/v1/nodes"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
NOW = "2026-01-01T00:00:00Z"
MERGE = {"Content-Type": "application/merge-patch+json"}


async def stage(admin: Client) -> None:
    """Two Machines, their Nodes, and operations on them."""
    for name in ("m1", "m2"):
        await admin.create(MACHINES, obj("Machine", name))
        await admin.create(NODES, {"metadata": {"name": name}})
    await admin.create(OPERATIONS, obj("MachineOperation", "mine", machineRef="m1", operationKind="NodeReboot"))
    await admin.create(OPERATIONS, obj("MachineOperation", "other", machineRef="m2", operationKind="NodeReboot"))
    await admin.create(OPERATIONS, obj("MachineOperation", "host", machineRef="m1", operationKind="HostReplace"))
    await admin.create(OPERATIONS, obj("MachineOperation", "taken", machineRef="m1", operationKind="HostReboot"))
    claimed = {"execution": execution("metalman/lab"), "targets": [{"machineRef": "m1"}]}
    await status(admin, OPERATIONS, "taken", claimed)
    power = {"type": "PoweredOff", "status": "True", "reason": "PoweredOff", "lastTransitionTime": NOW}
    known = {"phase": "Ready", "conditions": [power], "recentOperations": [recent("old")]}
    await status(admin, MACHINES, "m1", known | {"disruption": drained("uid-x")})


def obj(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": kind, "metadata": {"name": name}, "spec": spec}


def execution(executor: str) -> dict[str, Any]:
    return {"executor": executor, "incarnation": "i", "machineUID": "u", "binding": "b"}


DONE_BY_AGENTS = "NodeReboot, AgentUpgrade, AgentReset, HostReboot and NodeRecreation"


def recent(name: str) -> dict[str, Any]:
    return {"name": name, "uid": f"uid-{name}", "kind": "NodeReboot", "phase": "Complete"}


def active(executor: str, *, lost: bool = False) -> dict[str, Any]:
    told = {"uid": "uid-x", "name": "x", "kind": "NodeReboot", "executor": executor, "since": NOW}
    return told | ({"lost": True} if lost else {})


def drained(uid: str) -> dict[str, Any]:
    """Return the record of a Node that was drained for the operation of this UID."""
    holder = {"kind": "NodeReboot", "name": "x", "uid": uid}
    return {"holder": holder, "stage": "Drained", "message": "it is drained", "since": NOW}


async def status(admin: Client, path: str, name: str, content: dict[str, Any]) -> None:
    await admin.merge(f"{path}/{name}/status", {"status": content})


@dataclass(frozen=True)
class Refused:
    """A request of an agent and its refusal; `policy` is '' if the agent's role already refuses."""

    what: str
    path: str
    body: dict[str, Any] | None
    said: str
    policy: str = ""
    method: str = "PATCH"
    user: str = AGENT
    wide: bool = False  # with all rights that roles can give
    groups: tuple[str, ...] = field(default=(AGENTS,))


def no_right(verb: str, resource: str, group: str = "unbounded-cloud.io", user: str = AGENT) -> str:
    where = "at the cluster scope"
    return f'User "{user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'


def no_lease(verb: str, namespace: str) -> str:
    where = f'in the namespace "{namespace}"'
    return f'User "{AGENT}" cannot {verb} resource "leases" in API group "coordination.k8s.io" {where}'


def condition(kind: str, state: str) -> dict[str, Any]:
    return {"type": kind, "status": state, "reason": "Pending", "lastTransitionTime": NOW}


POWER = condition("PoweredOff", "True") | {"reason": "PoweredOff"}
NOT_OURS = (
    "an agent may write only agent, configuration, activeOperation, recentOperations and conditions in the status of "
    "its Machine"
)
CONDITIONS_OURS = (
    "an agent may write only the conditions NodeUpdated, RepavePending, AgentBootstrapped, GPUsDescribed, "
    "ClusterAccessCurrent, NodeModified and ReleaseKeyCurrent of its Machine"
)
NO_START = (
    "an agent may change a disruption of its Machine only from Drained to Working, as it takes the lock for its holder"
)
TABLE = [
    Refused(
        "the status of another Machine",
        f"{MACHINES}/m2/status",
        {"status": {"agent": {"version": "v1"}}},
        f"an agent may write the status of its own Machine only, and m2 is not that of {AGENT}",
        "machines",
    ),
    *(
        Refused(
            f"a disk with {what}",
            f"{MACHINES}/m1/status",
            {"status": {"agent": {"host": {"hardware": {"disks": [{"name": "sda", **fact}]}}}}},
            "an agent may report at most 4 names of a disk below by-id, and 4 below by-path, and no contents",
            "machines",
        )
        for what, fact in (
            ("many names", {"byID": [f"ata-{number}" for number in range(5)]}),
            ("many paths", {"byPath": [f"pci-{number}" for number in range(5)]}),
            ("contents", {"contents": "text"}),
        )
    ),
    Refused("a spec", f"{MACHINES}/m1", {"spec": {"provider": "Mine"}}, no_right("patch", "machines")),
    Refused(
        "a spec, with a wider role",
        f"{MACHINES}/m1",
        {"spec": {"provider": "Mine"}},
        "an agent may change only the status of a Machine",
        "machines",
        wide=True,
    ),
    Refused("to delete a Machine", f"{MACHINES}/m1", None, no_right("delete", "machines"), method="DELETE"),
    Refused(
        "to delete a Machine, with a wider role",
        f"{MACHINES}/m1",
        None,
        "an agent may change only the status of a Machine",
        "machines",
        method="DELETE",
        wide=True,
    ),
    Refused(
        "the phase",
        f"{MACHINES}/m1/status",
        {"status": {"phase": "Failed"}},
        NOT_OURS,
        "machines",
    ),
    Refused(
        "the pin of the BMC",
        f"{MACHINES}/m1/status",
        {"status": {"redfish": {"certFingerprint": "aa:bb"}}},
        NOT_OURS,
        "machines",
    ),
    Refused(
        "to work without the lock",
        f"{MACHINES}/m1/status",
        {"status": {"disruption": {"stage": "Working"}}},
        NOT_OURS,
        "machines",
    ),
    Refused(
        "to work on a Node that was drained for another operation",
        f"{MACHINES}/m1/status",
        {
            "status": {
                "activeOperation": active("unbounded-agent/m1") | {"uid": "y"},
                "disruption": {"stage": "Working"},
            }
        },
        NOT_OURS,
        "machines",
    ),
    Refused(
        "to return a Node with the lock",
        f"{MACHINES}/m1/status",
        {"status": {"activeOperation": active("unbounded-agent/m1"), "disruption": {"stage": "Returning"}}},
        NO_START,
        "machines",
    ),
    Refused(
        "to have worked already",
        f"{MACHINES}/m1/status",
        {
            "status": {
                "activeOperation": active("unbounded-agent/m1"),
                "disruption": {"stage": "Working", "worked": True},
            }
        },
        NO_START,
        "machines",
    ),
    Refused(
        "a condition of metalman's",
        f"{MACHINES}/m1/status",
        {"status": {"conditions": [POWER | {"status": "False"}]}},
        CONDITIONS_OURS,
        "machines",
    ),
    Refused(
        "to drop a condition of metalman's",
        f"{MACHINES}/m1/status",
        {"status": {"conditions": [condition("RepavePending", "True")]}},
        CONDITIONS_OURS,
        "machines",
    ),
    Refused(
        "to take the slot for somebody else",
        f"{MACHINES}/m1/status",
        {"status": {"activeOperation": active("metalman/lab")}},
        "an agent may acquire a free lock, and release its own",
        "machines",
    ),
    Refused(
        "to take the slot for what no agent does",
        f"{MACHINES}/m1/status",
        {"status": {"activeOperation": active("unbounded-agent/m1") | {"kind": "HostReplace"}}},
        f"an agent may acquire the lock for {DONE_BY_AGENTS} only",
        "machines",
    ),
    Refused(
        "to have been made anew",
        f"{MACHINES}/m1/status",
        {"status": {"recentOperations": [recent("old"), recent("made-up") | {"kind": "HostReplace"}]}},
        f"an agent may add only {DONE_BY_AGENTS} to recentOperations",
        "machines",
    ),
    Refused(
        "to make up a past",
        f"{MACHINES}/m1/status",
        {"status": {"recentOperations": [recent("old"), recent("made-up")]}},
        "an agent may add the operation that it executes to recentOperations, and change no other",
        "machines",
    ),
    Refused(
        "to forget the past",
        f"{MACHINES}/m1/status",
        {"status": {"recentOperations": []}},
        "an agent may add the operation that it executes to recentOperations, and change no other",
        "machines",
    ),
    Refused(
        "the status of another's operation",
        f"{OPERATIONS}/other/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        f"an agent may write operations on its own Machine only, and other is not on that of {AGENT}",
        "operations",
    ),
    Refused(
        "the status of a kind that is not an agent's",
        f"{OPERATIONS}/host/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        "an agent does not execute HostReplace",
        "operations",
    ),
    Refused(
        "the status of an operation that metalman carries out",
        f"{OPERATIONS}/taken/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        "an agent may write the status only of operations that it executes",
        "operations",
    ),
    Refused(
        "to claim for somebody else",
        f"{OPERATIONS}/mine/status",
        {"status": {"execution": execution("metalman/lab")}},
        "an agent may write the status only of operations that it executes",
        "operations",
    ),
    Refused(
        "to end an operation without a claim",
        f"{OPERATIONS}/mine/status",
        {"status": {"phase": "Complete"}},
        "an agent may write the status only of operations that it executes",
        "operations",
    ),
    Refused(
        "to cancel",
        f"{OPERATIONS}/mine",
        {"spec": {"cancel": True}},
        "an agent may change only the finalizers and the status of an operation",
        "operations",
    ),
    Refused(
        "labels of an operation",
        f"{OPERATIONS}/mine",
        {"metadata": {"labels": {"a": "b"}}},
        "an agent may change only the finalizers and the status of an operation",
        "operations",
    ),
    Refused(
        "to create an operation",
        OPERATIONS,
        obj("MachineOperation", "new", machineRef="m1", operationKind="NodeReboot"),
        no_right("create", "machineoperations"),
        method="POST",
    ),
    Refused(
        "to create an operation, with a wider role",
        OPERATIONS,
        obj("MachineOperation", "new", machineRef="m1", operationKind="NodeReboot"),
        "an agent may neither create nor delete operations",
        "operations",
        method="POST",
        wide=True,
    ),
    Refused(
        "to delete an operation, with a wider role",
        f"{OPERATIONS}/mine",
        None,
        "an agent may neither create nor delete operations",
        "operations",
        method="DELETE",
        wide=True,
    ),
    Refused(
        "another's Node",
        f"{NODES}/m2",
        {"spec": {"unschedulable": True}},
        f"an agent may write its own Node only, and m2 is not that of {AGENT}",
        "nodes",
    ),
    Refused(
        "to pass its Node off as another Machine's",
        f"{NODES}/m1",
        {"metadata": {"labels": {"unbounded-cloud.io/machine": "m2"}}},
        "the label unbounded-cloud.io/machine of a Node must name its own Machine",
        "nodes",
    ),
    Refused(
        "a role for its Node",
        f"{NODES}/m1",
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        "an agent may not change labels of node-role.kubernetes.io or node-restriction.kubernetes.io",
        "nodes",
    ),
    Refused(
        "anything, under a name that is no node's",
        f"{MACHINES}/m1/status",
        {"status": {"agent": {"version": "v1"}}},
        "an agent may write the status of its own Machine only, and m1 is not that of m1",
        "machines",
        user="m1",
    ),
    Refused(
        "anything, outside of the group",
        f"{MACHINES}/m1/status",
        {"status": {"agent": {"version": "v1"}}},
        no_right("patch", "machines/status"),
        groups=("some",),
    ),
    Refused("Secrets", "/api/v1/secrets", None, no_right("list", "secrets", ""), method="GET"),
    Refused(
        "to create a Machine",
        MACHINES,
        obj("Machine", "m3"),
        no_right("create", "machines"),
        method="POST",
    ),
    Refused("a lease of a Node", f"{LEASES}/m2", {"spec": {}}, no_lease("patch", "kube-node-lease")),
    Refused("its own lease, which is kubelet's", f"{LEASES}/m1", {"spec": {}}, no_lease("patch", "kube-node-lease")),
    Refused("all leases of Nodes", LEASES, None, no_lease("list", "kube-node-lease"), method="GET"),
    Refused(
        "the lease of the steward",
        f"{LEASES.replace('kube-node-lease', 'unbounded-kube')}/unbounded-operations",
        None,
        no_lease("get", "unbounded-kube"),
        method="GET",
    ),
    Refused("what kubelet reports", f"{NODES}/m1/status", {"status": {}}, no_right("patch", "nodes/status", "")),
    Refused("Pods", "/api/v1/pods", None, no_right("list", "pods", ""), method="GET"),
    Refused(
        "to approve a certificate",
        f"{REQUESTS}/csr/approval",
        {"status": {}},
        no_right("patch", "certificatesigningrequests/approval", "certificates.k8s.io"),
    ),
    Refused(
        "an agent's status, as the kubelet of that Machine",
        f"{MACHINES}/m1/status",
        {"status": {"agent": {"version": "v1"}}},
        no_right("patch", "machines/status"),
        groups=("system:nodes",),
    ),
    Refused(
        "an operation, as the kubelet of that Machine",
        f"{OPERATIONS}/mine/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        no_right("patch", "machineoperations/status"),
        groups=("system:nodes",),
    ),
    *(
        Refused(
            f"to {verb} Machines, with a bootstrap token",
            path,
            None,
            no_right(verb, "machines", user=NEWCOMER),
            method="GET",
            user=NEWCOMER,
            groups=(NEWCOMERS,),
        )
        for verb, path in (("get", f"{MACHINES}/m1"), ("list", MACHINES))
    ),
]


def expected(row: Refused) -> str:
    """Return the whole message; a policy's message starts with the policy's name."""
    parts = row.path.strip("/").split("/")
    group, place = (parts[1], parts[3:]) if parts[0] == "apis" else ("", parts[2:])
    plural, *rest = place[2:] if place[0] == "namespaces" else place
    name = rest[0] if rest else ((row.body or {}).get("metadata", {}).get("name", "") if row.policy else "")
    subject = f"{plural}.{group}" if group else plural
    policy = f"unbounded-agent-{row.policy}"
    through = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: " if row.policy else ""
    return (f'{subject} "{name}"' if name else subject) + f" is forbidden: {through}{row.said}"


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


async def widen(admin: Client) -> None:
    subjects = [{"kind": "Group", "name": AGENTS}]
    role = {"kind": "ClusterRole", "name": "cluster-admin"}
    await admin.create(BINDINGS, {"metadata": {"name": "wide"}, "roleRef": role, "subjects": subjects})
