"""`kubectl unbounded tree` on the embedded server, for Machines with and without Container Cloud."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.cli.plugin.conftest import Cli
from tests.containercloud import objects
from tests.containercloud.test_host_commands import host, plain_machine
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.core import NODES
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.kube.client import HttpApi

RBAC = "rbac.authorization.k8s.io"
ROLES: Kind[dict[str, Any]] = Kind(RBAC, "v1", "ClusterRole", "clusterroles", dict)
BINDINGS: Kind[dict[str, Any]] = Kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", dict)


async def operation(admin: HttpApi, name: str, machine: str, kind: str = "HostReboot") -> None:
    spec = {"machineRef": machine, "operationKind": kind}
    await admin.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})


def shape(node: dict[str, Any]) -> Any:
    """Return kind and name of each node, with those below it."""
    return f"{node['kind']} {node['name']}", [shape(child) for child in node.get("children", ())]


async def shape_of(server: Path, *words: str) -> Any:
    ran = await Cli(server)("tree", *words, "-o", "json")
    assert ran.status == 0, ran.err
    found = json.loads(ran.out)
    assert found["complete"], found
    return shape(found["root"])


async def test_machine_has_its_own_objects_below_it(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    name, other = [await plain_machine(admin, f"{one}-{namespace}") for one in ("tree", "other")]
    budget = {"machineSelector": {"matchLabels": {"rack": namespace}}, "maxUnavailable": 1}
    await admin.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": namespace}, "spec": budget})
    await admin.patch(
        MACHINES,
        name,
        {
            "metadata": {"labels": {"rack": namespace}},
            "spec": {"kubernetes": {"nodeRef": {"name": name}}, "providerID": f"lab://{name}"},
        },
    )
    status = {"phase": "Ready", "message": "as\x1b[2J it\nshould", "disruptionBudgets": [namespace]}
    await admin.patch(MACHINES, name, {"status": status}, subresource="status")
    await operation(admin, f"reboot-{name}", name)
    await operation(admin, f"reboot-{other}", other)
    failed = {"phase": "Failed", "reason": "OutcomeUnknown", "message": "the answer was lost"}
    await admin.patch(MACHINE_OPERATIONS, f"reboot-{name}", {"status": failed}, subresource="status")
    missing = await Cli(server)("tree", name)
    assert f"node/{name}" in missing.out
    assert "Missing" in missing.out
    await admin.create(NODES, {"metadata": {"name": name}, "spec": {"unschedulable": True}})
    assert await shape_of(server, name) == (
        f"Machine {name}",
        [
            (f"BMC https://{name}.example Systems/1", []),
            (f"Instance lab://{name}", []),
            (f"Node {name}", []),
            (f"MachineOperation reboot-{name}", []),
            (f"MachineDisruptionBudget {namespace}", []),
        ],
    )
    text = (await Cli(server)("tree", f"machine/{name}")).out
    lines = [[cell.strip() for cell in line.split("   ") if cell.strip()] for line in text.splitlines()]
    assert lines[0] == ["OBJECT", "PHASE", "AGE", "MESSAGE"]
    assert lines[1][:2] == [f"machine/{name}", "Ready"]
    assert lines[1][3] == "as\\x1b[2J it should"
    assert lines[4][:2] == [f"├─ node/{name}", "NotReady"]
    assert lines[4][3] == "cordoned"
    assert lines[5][:2] == [f"├─ machineoperation/reboot-{name}", "Failed"]
    assert lines[5][3] == "HostReboot: OutcomeUnknown: the answer was lost"
    assert lines[6][0] == f"└─ machinedisruptionbudget/{namespace}"


async def test_claim_leads_to_host_and_machine_and_back(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    user = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "namespace": namespace, "name": "web"}
    await host(admin, namespace, "rack-1", state="provisioned", consumerRef=user)
    name = await plain_machine(admin, f"rack-1.{namespace}")
    marks = {"annotations": {"unbounded-cloud.io/bare-metal-host": f"{namespace}/rack-1"}}
    await admin.patch(MACHINES, name, {"metadata": marks})
    await objects.machine(admin, namespace, "web")
    await objects.machine(admin, namespace, "pinned")
    execution = {"host": {"namespace": namespace, "name": "rack-1", "uid": "u"}, "machine": name, "stage": "Ready"}
    await admin.patch(
        CONTAINER_CLOUD_MACHINES,
        "web",
        {"status": {"execution": execution}},
        namespace=namespace,
        subresource="status",
    )
    pin = {"metadata": {"annotations": {"metal3.io/BareMetalHost": f"{namespace}/rack-1"}}}
    await admin.patch(CONTAINER_CLOUD_MACHINES, "pinned", pin, namespace=namespace)
    nothing = list[Any]()
    bmc = (f"BMC https://{name}.example Systems/1", nothing)
    claim, machine = ("Machine web", nothing), (f"Machine {name}", [bmc])
    assert await shape_of(server, "ma/web", "-n", namespace) == (
        "Machine web",
        [("BareMetalHost rack-1", [machine])],
    )
    assert await shape_of(server, "bmh/rack-1", "-n", namespace) == ("BareMetalHost rack-1", [claim, machine])
    assert await shape_of(server, name) == (f"Machine {name}", [("BareMetalHost rack-1", [claim]), bmc])
    in_use = await shape_of(server, "ma/pinned", "-n", namespace)
    assert in_use == ("Machine pinned", [("BareMetalHost rack-1", [])]), "another Machine has claimed the host"
    text = (await Cli(server)("tree", "ma/web", "-n", namespace)).out
    assert re.search(rf"^└─ baremetalhost\.metal3\.io/rack-1 -n {namespace} +provisioned ", text, re.MULTILINE)
    assert f"\n   └─ machine/{name} " in text


async def test_tree_leaves_out_what_the_user_may_not_read(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    name = await plain_machine(admin, f"tree-{namespace}")
    await admin.create(NODES, {"metadata": {"name": name}})
    await operation(admin, f"secret-{name}", name)
    rules = [{"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "verbs": ["get"]}]
    subject = {"apiGroup": RBAC, "kind": "User", "name": namespace}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": namespace}
    await admin.create(ROLES, {"metadata": {"name": namespace}, "rules": rules})
    await admin.create(BINDINGS, {"metadata": {"name": namespace}, "roleRef": role, "subjects": [subject]})
    ran = await Cli(server)("tree", name, "--as", namespace)
    assert (ran.status, "node/" in ran.out, "secret-" in ran.out) == (0, False, False)
    assert "note: its Node you have no permission to read it; the answer ignores it" in ran.err
    assert "note: its operations you have no permission to read it; the answer ignores it" in ran.err
    found = json.loads((await Cli(server)("tree", name, "--as", namespace, "-o", "json")).out)
    assert (found["complete"], len(found["unread"])) == (False, 2)


async def test_other_names_and_formats_are_refused(server: Path) -> None:
    for words, status, says in (
        (["nothing"], 1, "Machine nothing does not exist"),
        (["ma/nothing", "-n", "default"], 1, "Machine nothing of cluster.k8s.io does not exist in namespace default"),
        (["operation/a"], 2, "neither machine/NAME nor"),
        (["secret/a"], 2, "neither machine/NAME nor"),
        (["a", "-o", "wide"], 2, "-o wide: a tree can be text, json or yaml"),
    ):
        ran = await Cli(server)("tree", *words)
        assert (ran.status, ran.out, says in ran.err) == (status, "", True), ran
