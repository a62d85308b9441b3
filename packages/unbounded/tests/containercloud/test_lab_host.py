"""Machines of cluster.k8s.io from `kubectl apply` to Ready and back, in `unbounded up`, on lab hosts that boot."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli import test_lab_hosts as lab_hosts
from tests.cli.running import KUBECTL, Up
from tests.containercloud.objects import NODE_LABELS
from tests.support.waiting import eventually
from unbounded.api.container_cloud.cluster import CLUSTER_RELEASES, CLUSTERS
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.network import L2_TEMPLATES
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
FLAGS: Final = ("--container-cloud", "--min-other-managers", "0")
WITHIN_S: Final = 200.0
LAYOUT: Final[Mapping[str, Any]] = {
    "devices": [
        {
            "device": {"minSize": "100Gi"},
            "partitions": [{"name": "uefi", "size": "200Mi", "partflags": ["esp"]}, {"name": "root", "size": 0}],
        }
    ],
    "fileSystems": [
        {"fileSystem": "vfat", "partition": "uefi", "mountPoint": "/boot/efi"},
        {"fileSystem": "ext4", "partition": "root", "mountPoint": "/"},
    ],
}
MISBEHAVIOURS: Final[Mapping[str, tuple[dict[str, Any], str, str]]] = {
    "small-disks": ({"bareMetalHostProfile": {"name": "large"}}, "InstallFailed", "100Gi"),
    "nic-vanishes": ({"l2TemplateSelector": {"name": "two"}}, "InstallFailed", "no network card enp0s0"),
    "second-client": ({}, "InstallFailed", "127.255.255.254"),
    "agent-never-joins": ({}, "AwaitingAgent", "has not reported yet"),
}
"""By misbehaviour: fields of the Machine, the reason for which it waits, and a part of what its status says."""


def release(name: str, version: str, image: str) -> dict[str, Any]:
    spec = {
        "version": "17.3.0",
        "kubernetes": {"version": version},
        "allowedDistributions": [
            {"id": "ubuntu/jammy", "default": True, "image": {"url": image}},
            {"id": "ubuntu/bare", "image": {"url": image.replace(":v1", ":no-rootfs")}},
        ],
        "allowedNodeLabels": list(NODE_LABELS),
    }
    kind = {"apiVersion": CLUSTER_RELEASES.api_version, "kind": "ClusterRelease"}
    return {**kind, "metadata": {"name": name}, "spec": spec}


def around(image: str) -> list[dict[str, Any]]:
    """Release, Cluster and network of the Machine."""
    value = {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BaremetalClusterProviderSpec", "release": "r1"}
    two = NETPLAN + '  {{nic 1}}: {match: {macaddress: "{{mac 1}}"}, set-name: {{nic 1}}, dhcp4: false}\n'
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
        {
            "apiVersion": L2_TEMPLATES.api_version,
            "kind": "L2Template",
            "metadata": {"name": "two", "namespace": PROJECT, "labels": CLUSTER},
            "spec": template | {"npTemplate": two},
        },
    ]


def host(bmc: LabBmc) -> list[dict[str, Any]]:
    """A host in the namespace default, and its credential."""
    credential = {"username": bmc.username, "password": {"value": bmc.password}}
    spec = {
        "bmc": {"address": f"{bmc.url.replace('https', 'redfish-virtualmedia')}/redfish/v1/Systems/1"},
        "bootMACAddress": bmc.identity.mac(0),
        "rootDeviceHints": {"serialNumber": bmc.boards["1"].disks[0].serial_number},
    }
    annotations = {"kaas.mirantis.com/baremetalhost-credentials-name": bmc.name}
    annotations["unbounded-cloud.io/bootstrap-token"] = lab_hosts.TOKEN  # it has no TPM
    meta = {"name": bmc.name, "namespace": "default", "annotations": annotations}
    meta["labels"] = {"unbounded-cloud.io/site": "lab"}
    return [
        {
            "apiVersion": BARE_METAL_HOST_CREDENTIALS.api_version,
            "kind": "BareMetalHostCredential",
            "metadata": {"name": bmc.name, "namespace": "default"},
            "spec": credential,
        },
        {"apiVersion": BARE_METAL_HOSTS.api_version, "kind": "BareMetalHost", "metadata": meta, "spec": spec},
    ]


def machine(name: str, host: str, *, manager: bool = False, **fields: Any) -> dict[str, Any]:
    """A Machine that pins a host."""
    value = fields | {"apiVersion": "baremetal.k8s.io/v1alpha1", "kind": "BareMetalMachineProviderSpec"}
    labels = PROVIDER | CLUSTER | ({"cluster.sigs.k8s.io/control-plane": "true"} if manager else {})
    pin = {"metal3.io/BareMetalHost": f"default/{host}"}
    return {
        "apiVersion": CONTAINER_CLOUD_MACHINES.api_version,
        "kind": "Machine",
        "metadata": {"name": name, "namespace": PROJECT, "labels": labels, "annotations": pin},
        "spec": {"providerSpec": {"value": value}},
    }


def lab_bmc(name: str, authority: str, profile: str = "ideal") -> LabBmc:
    """A BMC whose host boots, and is off."""
    return LabBmc(
        name, profile=profile, power=HostPower.OFF, boot_s=0.2, shutdown_s=0.2, media_ca=authority, boots=True
    )


async def in_stock(lab: lab_hosts.Site, bmc: LabBmc) -> None:
    """Create a host, and wait until a Machine may claim it."""
    await lab.running.apply(*host(bmc))
    await status_when(lab.running, BARE_METAL_HOSTS, "default", bmc.name, "provisioning.state", "available")


async def status_when(
    running: Up, kind: Kind[Any], namespace: str, name: str, path: str, value: str, *, says: str = ""
) -> dict[str, Any]:
    """Wait until a field of an object's status has this value, and the status says this; return the object."""
    last: list[Any] = []

    async def check() -> dict[str, Any] | None:
        found = await running.get(f"{kind.plural}.{kind.group}", "-n", namespace, name)
        last[:] = [found.get("status")]
        part: Any = found.get("status", {})
        for key in path.split("."):
            part = part.get(key, {})
        return found if part == value and says in json.dumps(found["status"]) else None

    return await eventually(check, lambda: last, within_s=WITHIN_S, every_s=1)


async def patch(running: Up, kind: Kind[Any], namespace: str, name: str, spec: dict[str, Any]) -> None:
    """Merge fields into `spec.providerSpec.value` of an object."""
    body = json.dumps({"spec": {"providerSpec": {"value": spec}}})
    await running.kubectl("patch", f"{kind.plural}.{kind.group}", "-n", namespace, name, "--type=merge", "-p", body)


async def unbounded(running: Up, *arguments: str) -> None:
    """Run a command of the plugin."""
    program, config = Path(sys.executable).with_name("kubectl-unbounded"), running.data / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        *(str(program), *arguments, "--kubeconfig", str(config)), stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(WITHIN_S):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def test_a_machine_becomes_a_node_is_updated_and_gives_its_host_back(tmp_path: Path) -> None:
    async with lab_hosts.site(tmp_path, *FLAGS) as lab, lab_bmc("master-0", lab.authority) as bmc:
        running = lab.running
        await running.apply(*around(lab.image))
        await in_stock(lab, bmc)
        labels = [{"key": "stacklight", "value": "enabled"}]
        await running.apply(machine("m1", "master-0", manager=True, nodeLabels=labels, distribution="ubuntu/jammy"))
        kind = CONTAINER_CLOUD_MACHINES
        ready = await status_when(running, kind, PROJECT, "m1", "providerStatus.status", "Ready")
        assert ready["status"]["providerStatus"]["hardware"]["cpu"] == 64
        agent = (await running.get("mach", "master-0.default"))["status"]["agent"]
        assert (agent["stage"], agent["host"]["hardware"]["cpus"]) == ("Running", 64)
        assert [one["name"] for one in agent["host"]["hardware"]["nics"]] == ["eno1", "enp0s0"]
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


@pytest.mark.timeout(600)
async def test_a_misbehaving_host_is_named_and_goes_on_once_it_behaves(tmp_path: Path) -> None:
    async with lab_hosts.site(tmp_path, *FLAGS) as lab, AsyncExitStack() as stack:
        meta = {"name": "large", "namespace": PROJECT}
        head = {"apiVersion": BARE_METAL_HOST_PROFILES.api_version, "kind": "BareMetalHostProfile"}
        profile = {**head, "metadata": meta, "spec": LAYOUT}
        await lab.running.apply(*around(lab.image), profile)
        kind = CONTAINER_CLOUD_MACHINES

        async def story(name: str) -> None:
            fields, reason, text = MISBEHAVIOURS[name]
            bmc = await stack.enter_async_context(lab_bmc(name, lab.authority, name))
            await in_stock(lab, bmc)
            await lab.running.apply(machine(name, name, **fields))
            await status_when(lab.running, kind, PROJECT, name, "execution.waiting.reason", reason, says=text)
            await bmc.set_profile("ideal")
            await status_when(lab.running, kind, PROJECT, name, "providerStatus.status", "Ready")

        async def story_of_image() -> None:
            """An image without the archive that a layout is installed from, on a host that behaves."""
            bmc = await stack.enter_async_context(lab_bmc("no-rootfs", lab.authority))
            await in_stock(lab, bmc)
            fields: dict[str, Any] = {"bareMetalHostProfile": {"name": "large"}, "distribution": "ubuntu/bare"}
            await lab.running.apply(machine("no-rootfs", "no-rootfs", **fields))
            await status_when(
                lab.running, kind, PROJECT, "no-rootfs", "execution.waiting.reason", "InstallFailed", says="rootfs"
            )
            await patch(lab.running, kind, PROJECT, "no-rootfs", {"distribution": "ubuntu/jammy"})
            await status_when(lab.running, kind, PROJECT, "no-rootfs", "providerStatus.status", "Ready")

        async def story_of_data() -> None:
            """A disk with the data of others, which the profile names by its path: a person consents to its erasure."""
            name, entry = "data-of-others", {"device": {"byName": "/dev/sda", "wipe": True}}
            devices = [{**LAYOUT["devices"][0], **entry}]
            await lab.running.apply(
                {**profile, "metadata": meta | {"name": "path"}, "spec": {**LAYOUT, "devices": devices}}
            )
            bmc = await stack.enter_async_context(lab_bmc(name, lab.authority))
            board = bmc.boards["1"]
            board.disks = (replace(board.disks[0], owner="another"), *board.disks[1:])
            command = f"machine replace {name}.default --erase-disk {board.disks[0].serial_number}"
            await in_stock(lab, bmc)
            await lab.running.apply(machine(name, name, bareMetalHostProfile={"name": "path"}))
            await status_when(
                lab.running, kind, PROJECT, name, "execution.waiting.reason", "InstallFailed", says=command
            )
            await unbounded(lab.running, *command.split(), "--force")
            retry = "unbounded-cloud.io/retry=1"
            await lab.running.kubectl("annotate", f"{kind.plural}.{kind.group}", name, "-n", PROJECT, retry)
            await status_when(lab.running, kind, PROJECT, name, "providerStatus.status", "Ready")
            history = (await lab.running.get("mach", f"{name}.default"))["status"]["recentOperations"]
            assert [one["phase"] for one in history if one["kind"] == "HostReplace"][-2:] == ["Complete", "Complete"]

        await asyncio.gather(*map(story, MISBEHAVIOURS), story_of_image(), story_of_data())
        await patch(lab.running, kind, PROJECT, "second-client", {"delete": True})
        await status_when(lab.running, BARE_METAL_HOSTS, "default", "second-client", "provisioning.state", "available")
        assert "Traceback" not in lab.running.printed
