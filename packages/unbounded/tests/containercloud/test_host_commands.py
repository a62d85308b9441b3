"""`kubectl unbounded host list` and `host adopt` on the embedded server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cli.plugin.conftest import Cli
from tests.containercloud import objects
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.core import NODES
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi

REDFISH = {"username": "u", "passwordRef": {"name": "pw", "namespace": "unbounded-kube", "key": "password"}}


async def plain_machine(admin: HttpApi, name: str, **spec: Any) -> str:
    """Create a Machine that is not the one of a host; return its name."""
    body = spec or {"pxe": {"redfish": REDFISH | {"url": f"https://{name}.example"}, "image": "r.example/i:1"}}
    return (await admin.create(MACHINES, {"metadata": {"name": name}, "spec": body})).name


async def host(admin: HttpApi, namespace: str, name: str, *, state: str = "available", **spec: Any) -> None:
    await admin.create(BARE_METAL_HOSTS, {"metadata": {"name": name}, "spec": spec}, namespace=namespace)
    condition = {
        "type": "Available",
        "status": "True" if state == "available" else "False",
        "reason": "Available",
        "message": f"the host is {state}",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    provisioning = {"state": state, "ID": f"{name}.{namespace}"}
    status = {"provisioning": provisioning, "poweredOn": True, "operationalStatus": "OK", "conditions": [condition]}
    await admin.patch(BARE_METAL_HOSTS, name, {"status": status}, namespace=namespace, subresource="status")


async def test_hosts_are_listed_with_state_power_and_user(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    user = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "namespace": namespace, "name": "m1"}
    await host(admin, namespace, "b")
    await host(admin, namespace, "a", state="provisioned", consumerRef=user)
    ran = await Cli(server)("host", "list", "-n", namespace)
    assert ran.status == 0, ran.err
    heads, *rows = (line.split("   ") for line in ran.out.splitlines())
    assert [cell.strip() for cell in heads if cell.strip()] == [
        "NAME",
        "STATE",
        "POWER",
        "USED BY",
        "MACHINE",
        "MESSAGE",
    ]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert cells == [
        ["a", "provisioned", "On", f"{namespace}/m1", f"a.{namespace}", "the host is provisioned"],
        ["b", "available", "On", "<none>", f"b.{namespace}", "the host is available"],
    ]
    ran = await Cli(server)("host", "list", "-A", "--available", "-o", "name")
    assert "baremetalhost.metal3.io/b" in ran.out.splitlines()
    assert "baremetalhost.metal3.io/a" not in ran.out.splitlines()


async def test_an_invalid_selector_is_refused_by_its_flag(server: Path) -> None:
    ran = await Cli(server)("host", "list", "-l", "a in b")
    assert (ran.status, "--selector" in ran.err) == (2, True)


async def test_a_machine_is_adopted_into_a_namespace(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    name = await plain_machine(admin, f"rack-{namespace}")
    dry = await Cli(server)("host", "adopt", name, "-n", namespace, "--dry-run=client", "-o", "yaml")
    assert yaml.safe_load(dry.out)["metadata"]["annotations"] == {"unbounded-cloud.io/machine": name}
    assert (await admin.list(BARE_METAL_HOSTS, namespace=namespace)).items == ()
    ran = await Cli(server)("host", "adopt", name, "-n", namespace, "--name", "h1", "--label", "size=big")
    assert (ran.status, ran.out) == (0, "baremetalhost.metal3.io/h1 created\n"), ran.err
    made = await admin.get(BARE_METAL_HOSTS, "h1", namespace=namespace)
    assert (made.adopts, made.metadata.labels, made.spec.externally_provisioned) == (name, {"size": "big"}, False)


async def test_machines_that_a_claim_would_destroy_are_adopted_as_they_are(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    ssh = {"host": "192.0.2.7", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube", "key": "key"}}
    over_ssh = await plain_machine(admin, f"ssh-{namespace}", ssh=ssh)
    node = await plain_machine(admin, f"node-{namespace}")
    await admin.create(NODES, {"metadata": {"name": node}})
    for name, why in ((over_ssh, "has spec.ssh"), (node, "has a Node")):
        ran = await Cli(server)("host", "adopt", name, "-n", namespace)
        assert (ran.status, why in ran.err, "--externally-provisioned" in ran.err) == (1, True, True)
        ran = await Cli(server)("host", "adopt", name, "-n", namespace, "--externally-provisioned")
        assert ran.status == 0, ran.err
        assert (await admin.get(BARE_METAL_HOSTS, name, namespace=namespace)).spec.externally_provisioned


async def test_the_machine_of_a_host_is_not_adopted_again(server: Path, admin: HttpApi) -> None:
    namespace = await objects.project(admin)
    name = await plain_machine(admin, f"taken-{namespace}")
    link = {"metadata": {"annotations": {"unbounded-cloud.io/bare-metal-host": f"{namespace}/h9"}}}
    await admin.patch(MACHINES, name, link)
    ran = await Cli(server)("host", "adopt", name, "-n", namespace)
    assert (ran.status, f"that of BareMetalHost {namespace}/h9" in ran.err) == (1, True)
