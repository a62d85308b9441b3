"""Machines of cluster.k8s.io from `kubectl apply` to Ready and back, in `unbounded up`, on lab hosts that boot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli import test_lab_hosts as lab_hosts
from tests.cli.running import KUBECTL, Up
from tests.containercloud.objects import NODE_LABELS
from tests.support.waiting import eventually
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostPower

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(500),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]
PROJECT: Final = "example-ns"
PROVIDER: Final = {"kaas.mirantis.com/provider": "baremetal"}
CLUSTER: Final = {"cluster.sigs.k8s.io/cluster-name": "example-cluster"}
NETPLAN: Final = """version: 2
ethernets:
  {{nic 0}}: {match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}, addresses: [{{ip "0:lcm"}}]}
"""
WITHIN_S: Final = 120.0


def release(name: str, version: str, image: str) -> dict[str, Any]:
    spec = {
        "version": "17.3.0",
        "kubernetes": {"version": version},
        "allowedDistributions": [{"id": "ubuntu/jammy", "default": True, "image": {"url": image}}],
        "allowedNodeLabels": list(NODE_LABELS),
    }
    kind = {"apiVersion": CLUSTER_RELEASES.api_version, "kind": "ClusterRelease"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def around(image: str) -> list[dict[str, Any]]:
    """Release, Cluster and network of the Machine."""
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    subnet = {"cidr": "127.40.0.0/24", "includeRanges": ["127.40.0.10-127.40.0.99"], "gateway": "127.40.0.1"}
    template = {"ifMapping": ["eno1", "enp0s0"], "l3Layout": [{"subnetName": "lcm"}], "npTemplate": NETPLAN}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROJECT}},
        release("r1", "v1.34.0", image),
        {
            "apiVersion": "cluster.k8s.io/v1alpha1",
            "kind": "Cluster",
            "metadata": {"name": "example-cluster", "namespace": PROJECT, "labels": PROVIDER},
            "spec": {"providerSpec": {"value": value}},
        },
        {
            "apiVersion": "ipam.mirantis.com/v1alpha1",
            "kind": "Subnet",
            "metadata": {"name": "lcm", "namespace": PROJECT, "labels": {"ipam/SVC-k8s-lcm": "1"}},
            "spec": subnet,
        },
        {
            "apiVersion": "ipam.mirantis.com/v1alpha1",
            "kind": "L2Template",
            "metadata": {"name": "t", "namespace": PROJECT, "labels": CLUSTER | {"ipam/DefaultForCluster": "1"}},
            "spec": template,
        },
    ]


def host(bmc: LabBmc) -> list[dict[str, Any]]:
    """The host default/master-0, and its credential."""
    credential = {"username": bmc.username, "password": {"value": bmc.password}}
    spec = {
        "bmc": {"address": f"{bmc.url.replace('https', 'redfish-virtualmedia')}/redfish/v1/Systems/1"},
        "bootMACAddress": bmc.identity.mac(0),
        "rootDeviceHints": {"serialNumber": bmc.boards["1"].disks[0].serial_number},
    }
    annotations = {"kaas.mirantis.com/baremetalhost-credentials-name": "master-0"}
    meta = {"name": "master-0", "namespace": "default", "annotations": annotations}
    meta["labels"] = {"unbounded-cloud.io/site": "lab"}
    return [
        {
            "apiVersion": BARE_METAL_HOST_CREDENTIALS.api_version,
            "kind": "BareMetalHostCredential",
            "metadata": {"name": "master-0", "namespace": "default"},
            "spec": credential,
        },
        {"apiVersion": BARE_METAL_HOSTS.api_version, "kind": "BareMetalHost", "metadata": meta, "spec": spec},
    ]


def machine() -> dict[str, Any]:
    value = {
        "apiVersion": "baremetal.k8s.io/v1alpha1",
        "kind": "BareMetalMachineProviderSpec",
        "nodeLabels": [{"key": "stacklight", "value": "enabled"}],
        "distribution": "ubuntu/jammy",
    }
    labels = PROVIDER | CLUSTER | {"cluster.sigs.k8s.io/control-plane": "true"}
    pin = {"metal3.io/BareMetalHost": "default/master-0"}
    return {
        "apiVersion": CONTAINER_CLOUD_MACHINES.api_version,
        "kind": "Machine",
        "metadata": {"name": "m1", "namespace": PROJECT, "labels": labels, "annotations": pin},
        "spec": {"providerSpec": {"value": value}},
    }


async def status_when(running: Up, kind: Kind[Any], namespace: str, name: str, path: str, value: str) -> dict[str, Any]:
    """Wait until a field of an object's status has this value; return the object."""
    last: list[Any] = []

    async def check() -> dict[str, Any] | None:
        found = await running.get(f"{kind.plural}.{kind.group}", "-n", namespace, name)
        last[:] = [found.get("status")]
        part: Any = found.get("status", {})
        for key in path.split("."):
            part = part.get(key, {})
        return found if part == value else None

    return await eventually(check, lambda: last, within_s=WITHIN_S, every_s=1)


async def patch(running: Up, kind: Kind[Any], namespace: str, name: str, spec: dict[str, Any]) -> None:
    """Merge fields into `spec.providerSpec.value` of an object."""
    body = json.dumps({"spec": {"providerSpec": {"value": spec}}})
    await running.kubectl("patch", f"{kind.plural}.{kind.group}", "-n", namespace, name, "--type=merge", "-p", body)


async def test_a_machine_becomes_a_node_is_updated_and_gives_its_host_back(tmp_path: Path) -> None:
    flags = ("--container-cloud", "--min-other-managers", "0")
    async with (
        lab_hosts.site(tmp_path, *flags) as lab,
        LabBmc("master-0", power=HostPower.OFF, boot_s=0.2, shutdown_s=0.2, media_ca=lab.authority, boots=True) as bmc,
    ):
        running = lab.running
        await running.apply(*around(lab.image), *host(bmc))
        await status_when(running, BARE_METAL_HOSTS, "default", "master-0", "provisioning.state", "available")
        token = {"spec": {"kubernetes": {"bootstrapTokenRef": {"name": lab_hosts.TOKEN}}}}  # the host has no TPM
        await lab.api.patch(MACHINES, "master-0.default", token)
        await running.apply(machine())
        kind = CONTAINER_CLOUD_MACHINES
        ready = await status_when(running, kind, PROJECT, "m1", "providerStatus.status", "Ready")
        assert ready["status"]["providerStatus"]["hardware"]["cpu"] == 64
        node = await running.get("node", "master-0.default")
        assert node["metadata"]["labels"]["stacklight"] == "enabled"
        assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.0"

        await running.apply(release("r2", "v1.35.0", lab.image))
        await patch(running, CLUSTERS, PROJECT, "example-cluster", {"release": "r2"})
        await status_when(
            running, CLUSTERS, PROJECT, "example-cluster", "providerStatus.releaseRefs.current.name", "r2"
        )
        renewed = await running.get("node", "master-0.default")
        assert renewed["status"]["nodeInfo"]["kubeletVersion"] == "v1.35.0"
        assert renewed["metadata"]["uid"] != node["metadata"]["uid"]
        await status_when(running, kind, PROJECT, "m1", "providerStatus.status", "Ready")

        await patch(running, kind, PROJECT, "m1", {"deletionPolicy": "graceful", "delete": True})
        await status_when(running, BARE_METAL_HOSTS, "default", "master-0", "provisioning.state", "available")
        assert bmc.power() is HostPower.OFF
        assert [event.detail for event in bmc.history() if event.what == "reset"] == ["master-0.default"]
        assert "master-0.default" not in await running.kubectl("get", "nodes", "-o", "name")
        history = (await running.get("mach", "master-0.default"))["status"]["recentOperations"]
        assert [one["kind"] for one in history if one["kind"] == "AgentReset"] == ["AgentReset"]
        assert "Traceback" not in running.printed
