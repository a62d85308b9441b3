"""Machines of Container Cloud on a machine with real firmware: `unbounded up` with metalman and container-cloud."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.boot.rack import SEEN, Rack, blank_disk, rack, seen
from tests.boot.test_network import HOST, HOST_IN_VLAN, VlanPeer, pings
from tests.boot.test_replace import host_image, is_joined, is_node_of_the_agent
from tests.boot.test_rolling_update import beside, kubelet
from tests.boot.thin import joining_image
from tests.cli.running import KUBECTL
from tests.fetch.layers import Built
from tests.fetch.registries import push
from tests.support.agent_release import agent_release
from tests.support.hosts import agent_tools
from tests.support.hosts.images import images_on
from tests.support.hosts.mirror import mirror_on
from tests.support.paths import ROOT
from tests.support.qemu import Hardware, Segment
from tests.support.qemu.segment import ip
from unbounded.containercloud.machines.report import FACTS_S
from unbounded_lab.bmc.power import HostBootOverride, HostPower

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(7000),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

EXAMPLE: Final = ROOT / "examples" / "container-cloud" / "machine.yaml"
PROJECT: Final = "example-ns"
MACHINE: Final = "example-control-plane"
NAME: Final = "master-0.default"
GATEWAY: Final = "192.0.2.1"  # of the example's Subnet
MAC: Final = "52:54:00:12:34:56"  # of the example's BareMetalHost
SECOND_MAC: Final = "52:54:00:12:34:57"
VERSION: Final = "1.34.0"
STOCKED_S: Final = 120.0
INSTALLS_S: Final = 1500.0
JOINS_S: Final = 2700.0  # installed and joined, in an emulated machine beside others
ANSWERS_S: Final = 60.0
WORDS: Final = ["Provision", "Uninitialized", "Pending", "Prepare", "Deploy", "Reconfigure", "Ready"]
REPORT: Final = {
    "nics": [{"name": "eth0", "mac": MAC, "onboardIndex": 1}],
    "disks": [
        {
            "name": "vda",
            "sizeBytes": 8 << 30,
            "sectorBytes": 512,
            "bus": "virtio",
            "transport": "virtio",
            "serialNumber": "disk0",
            "byID": ["virtio-disk0"],
            "state": "Blank",
        }
    ],
}
"""The hardware that the thin installer reports."""
ON_A_BOND: Final = """\
version: 2
ethernets:
  {{nic 0}}: {dhcp4: false, match: {macaddress: "{{mac 0}}"}, set-name: {{nic 0}}}
  {{nic 1}}: {dhcp4: false, match: {macaddress: "{{mac 1}}"}, set-name: {{nic 1}}}
bonds:
  bond0:
    interfaces: [{{nic 0}}, {{nic 1}}]
    parameters: {mode: active-backup, mii-monitor-interval: 100}
    addresses: [{{ip "bond0:lcm"}}]
    routes: [{to: default, via: {{gateway_from_subnet "lcm"}}}]
vlans:
  storage: {id: 10, link: bond0, addresses: [{{ip "storage:storage"}}]}
"""


@dataclass
class ContainerCloudRack:
    """A rack whose machine is the host default/master-0 of the example, with images that it can get."""

    rack: Rack
    folder: Path
    example: str

    def documents(self) -> dict[str, dict[str, Any]]:
        """Return the objects of the example by kind; there is one of each."""
        return {one["kind"]: one for one in yaml.safe_load_all(self.example)}

    async def apply(self, text: str) -> None:
        file = self.folder / "applied.yaml"
        file.write_text(text)
        await self.rack.up.kubectl("apply", "--validate=strict", "-f", str(file))

    async def until(self, kind: str, name: str, path: str, value: Any, *, within_s: float) -> dict[str, Any]:
        """Wait until a field of the object has this value; return the object."""
        namespace = "default" if kind == "bmh" else PROJECT
        last: list[Any] = []

        async def look() -> dict[str, Any] | None:
            found = await self.rack.up.get(kind, name, "--namespace", namespace)
            part: Any = found
            for key in path.split("."):
                part = part.get(key, {})
            last[:] = [found.get("status")]
            return found if part == value else None

        try:
            return await self.rack.until(look, f"{path} of {kind} {name} is {value}", within_s=within_s, every_s=4)
        except AssertionError as error:
            error.add_note(f"--- status of {kind} {name}\n{json.dumps(last, indent=1)}")
            raise

    async def patch(self, kind: str, name: str, spec: dict[str, Any], *, namespace: str = PROJECT) -> None:
        body = json.dumps({"spec": spec})
        await self.rack.up.kubectl("patch", kind, name, "--namespace", namespace, "--type=merge", "-p", body)

    async def state(self, state: str, *, within_s: float) -> dict[str, Any]:
        """Wait until the host is in this state."""
        return await self.until("bmh", "master-0", "status.provisioning.state", state, within_s=within_s)

    async def ready(self) -> dict[str, Any]:
        return await self.until("ma", MACHINE, "status.providerStatus.status", "Ready", within_s=JOINS_S)

    async def replaced(self) -> dict[str, Any]:
        """Return the status of the only HostReplace that the host has had."""
        status = (await self.rack.up.get("mach", NAME))["status"]
        (name,) = [one["name"] for one in status["recentOperations"] if one["kind"] == "HostReplace"]
        found: dict[str, Any] = (await self.rack.up.get("mop", name))["status"]
        return found

    async def answers(self, *, within_s: float) -> None:
        """Wait until the installed host answers at its address."""

        async def look() -> bool | None:
            return await pings(HOST) or None

        await self.rack.until(look, f"{HOST} answers", within_s=within_s)

    async def returned(self, **fields: Any) -> None:
        """Delete the Machine by its own field, and wait until its host is in stock again."""
        await self.patch("ma", MACHINE, {"providerSpec": {"value": {"delete": True} | fields}})
        up = self.rack.up
        await self.rack.until(self._is_gone, "the Machine is gone", within_s=INSTALLS_S)
        host = await self.state("available", within_s=STOCKED_S)
        assert "consumerRef" not in host["spec"]
        assert NAME not in await up.kubectl("get", "nodes", "-o", "name")
        assert "example" not in await up.kubectl("get", "ipamhosts", "--namespace", PROJECT, "-o", "name")
        subnet = await up.get("subnets.ipam.mirantis.com", "lcm", "--namespace", PROJECT)
        assert not subnet["status"].get("allocatedIPs")
        target = await up.get("mach", NAME)
        assert "image" not in target["spec"]["pxe"]
        assert "kubernetes" not in target["spec"]

    async def _is_gone(self) -> bool | None:
        return MACHINE not in await self.rack.up.kubectl("get", "ma", "--namespace", PROJECT, "-o", "name") or None

    @asynccontextmanager
    async def words(self) -> AsyncIterator[list[str]]:
        """Fill a list with the words of the Machine's status, each once, in the order that a watch gives them."""
        found: list[str] = []
        process = await asyncio.create_subprocess_exec(
            *(KUBECTL or "kubectl", "--kubeconfig", str(self.rack.up.data / "kubeconfig"), "get", "ma", MACHINE),
            *("--namespace", PROJECT, "--watch", "-o", 'jsonpath={.status.providerStatus.status}{"\\n"}'),
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        stream = process.stdout

        async def read() -> None:
            async for line in stream:
                if (word := line.decode().strip()) and word not in found:
                    found.append(word)

        task = asyncio.create_task(read())
        try:
            yield found
        finally:
            process.kill()
            await process.wait()
            await task

    async def watched(self, word: str, words: Sequence[str]) -> None:
        """Wait until the watch behind `words`, which may lag behind a read, has shown a word."""

        async def look() -> bool | None:
            return word in words or None

        await self.rack.until(look, f"a watch shows {word}", within_s=ANSWERS_S)


@asynccontextmanager
async def container_cloud_rack(
    hardware: Hardware, net: Segment, folder: Path, image: Built | None = None
) -> AsyncIterator[ContainerCloudRack]:
    """A rack with the network of the example, its kinds, and the image of its distribution.

    Args:
        image: of the distribution; None for Debian with the agent, and all that a node is made from.
    """
    ip(f"addr add {GATEWAY}/24 dev {net.bridge}")
    ip(f"addr del {net.address}/{net.length} dev {net.bridge}")
    ip(f"addr add {net.address}/{net.length} dev {net.bridge}")  # a registry by HTTP needs a private address
    node_image = f"{GATEWAY}:8880/no/node:v1"  # metalman has none
    flags = ["--container-cloud", "--min-other-managers", "0"]
    with ExitStack() as stack:
        if image is None:
            tools, image = agent_tools(), host_image()
            nodes = stack.enter_context(images_on(net.address, tools, folder / "images"))
            mirror = stack.enter_context(mirror_on(GATEWAY, tools))
            mirror.add_kubernetes(VERSION)
            mirror.add_default_versions()
            flags += ["--artifact-mirror", mirror.base]
            node_image = f"{nodes.host}/lab/node:v1"
        async with rack(hardware, replace(net, address=GATEWAY), folder, *flags) as it:
            it.name = NAME
            await it.up.says("Ctrl-C stops")
            await push(it.registry, "images/host", "v1", image)
            yield ContainerCloudRack(it, folder, example(it, node_image))


def example(it: Rack, node_image: str) -> str:
    """Return the text of the example with the addresses, the images and the login of this rack."""
    text = EXAMPLE.read_text()
    changes = {
        "redfish+https://192.0.2.130/redfish/v1/Systems/1": f"redfish+{it.bmc.url}/redfish/v1/Systems/1",
        "username: admin": f"username: {it.bmc.username}",
        "replace-me": it.bmc.password,
        "registry.example.com/unbounded/ubuntu-jammy:1": f"{it.registry}/images/host:v1",
        "registry.example.com/unbounded/node:v1.34.0": node_image,
    }
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def as_text(documents: Iterable[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(list(documents))


async def test_a_thin_system_joins_and_its_host_returns_to_stock(net: Segment, tmp_path: Path) -> None:
    """The agent as it is released, without systemd: after its join, the test reports the Node in its place."""
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, 8 << 30), tpm=True, memory_mib=768)
    image = joining_image(agent_release(), report=json.dumps({"final": True, "hardware": REPORT}))
    async with container_cloud_rack(hardware, net, tmp_path, image) as cloud:
        it, objects = cloud.rack, cloud.documents()
        del objects["BareMetalHostProfile"]  # the image has no archive
        value = objects["Machine"]["spec"]["providerSpec"]["value"]
        del value["bareMetalHostProfile"]
        await cloud.apply(as_text(objects.values()))
        taint = {"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}
        async with cloud.words() as words, beside(kubelet(it, taint)):
            await cloud.ready()
            await cloud.watched("Ready", words)
            assert words == WORDS
        status = await cloud.replaced()
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots[-2:] == ["Pxe", "Hdd"]
        await is_joined(it)
        node = await it.up.get("node", NAME)
        assert node["metadata"]["labels"]["stacklight"] == "enabled"
        await cloud.returned(deletionPolicy="unsafe")  # without systemd there is nothing to reset
        assert it.bmc.power() is HostPower.OFF
        assert not it.machine.running


@pytest.mark.soak
async def test_the_example_becomes_a_node_and_its_host_returns_to_stock(net: Segment, tmp_path: Path) -> None:
    """The example as it stands: / and data on LVM on RAID 1. kubelet is a stand-in that reports its Node."""
    disks = [blank_disk(tmp_path, 16 << 30, f"{name}.img") for name in ("first", "second")]
    hardware = Hardware(
        mac=MAC,
        onboard_index=1,
        disk=disks[0],
        second_disk=disks[1],
        solid_state=True,
        tpm=True,
        memory_mib=2048,
        cpus=2,
    )
    async with container_cloud_rack(hardware, net, tmp_path) as cloud:
        await cloud.apply(cloud.example)
        async with cloud.words() as words:
            await cloud.ready()
            await cloud.watched("Ready", words)
            assert words == WORDS
        await is_ready_by_the_example(cloud)
        await cloud.returned()
        assert cloud.rack.bmc.power() is HostPower.OFF


async def is_ready_by_the_example(cloud: ContainerCloudRack) -> None:
    it = cloud.rack
    status = await cloud.replaced()
    assert status["phase"] == "Complete", status
    assert seen(status) >= SEEN
    assert it.machine.boots[-2:] == ["Pxe", "Hdd"]
    await is_node_of_the_agent(it)
    node = await it.up.get("node", NAME)
    labels = node["metadata"]["labels"]
    assert (labels["stacklight"], labels["node-role.kubernetes.io/control-plane"]) == ("enabled", "")
    assert node["spec"]["providerID"] == f"metal3://default/master-0/{MACHINE}"
    machine = await it.up.get("ma", MACHINE, "--namespace", PROJECT)
    assert machine["status"]["nodeRef"]["name"] == NAME
    assert [one["size"] for one in machine["status"]["providerStatus"]["hardware"]["storage"]] == [17, 17]
    path = "status.providerStatus.currentDistribution"
    await cloud.until("ma", MACHINE, path, "debian/bookworm", within_s=FACTS_S + 60)  # what it runs
    assert machine["status"]["providerStatus"]["privateIp"] == HOST
    reported = (await it.up.get("mach", NAME))["status"]["agent"]["host"]["hardware"]
    assert [(one["name"], one["mac"]) for one in reported["nics"]] == [("eno1", MAC)]
    assert await pings(HOST)


@pytest.mark.soak
async def test_a_bond_on_a_mirror_loses_a_cable_and_a_disk(net: Segment, tmp_path: Path) -> None:
    """The profile of the example, and a template with a bond and a VLAN, as seen from outside."""
    disks = [blank_disk(tmp_path, 16 << 30, f"{name}.img") for name in ("first", "second")]
    hardware = Hardware(
        mac=MAC,
        onboard_index=1,
        second_mac=SECOND_MAC,
        disk=disks[0],
        second_disk=disks[1],
        solid_state=True,
        tpm=True,
        memory_mib=1536,
        cpus=2,
    )
    async with container_cloud_rack(hardware, net, tmp_path, host_image()) as cloud:
        it, objects = cloud.rack, cloud.documents()
        template = objects["L2Template"]["spec"]
        template["npTemplate"] = ON_A_BOND
        template["l3Layout"].append({"subnetName": "storage", "scope": "namespace"})
        storage = {"cidr": "198.51.100.0/24", "includeRanges": [f"{HOST_IN_VLAN}-198.51.100.99"]}
        meta = {"name": "storage", "namespace": PROJECT}
        subnet = {"apiVersion": "ipam.mirantis.com/v1alpha1", "kind": "Subnet", "metadata": meta, "spec": storage}
        await cloud.apply(as_text([*objects.values(), subnet]))
        await it.machine.shows("from Hdd ---", within_s=INSTALLS_S)  # the installer has the same address
        await cloud.answers(within_s=INSTALLS_S)
        await loses_cables(cloud, net)
        it.machine.halt()
        it.machine.hardware = replace(hardware, disk=None)
        at = len(it.machine.console())
        it.machine.start(HostBootOverride())
        await cloud.answers(within_s=INSTALLS_S)
        starts = it.machine.console()[at:]
        assert re.search(r"raid1:md\d+: active with 1 out of 2 mirrors", starts), starts[-6000:]
        assert "Mounted var-lib-data.mount - /var/lib/data" in starts, starts[-6000:]


async def loses_cables(cloud: ContainerCloudRack, net: Segment) -> None:
    """Pull each cable of the bond, and at last both."""
    it, vlan = cloud.rack, VlanPeer(net)
    assert await vlan.hears(10, within_s=ANSWERS_S)
    assert not await vlan.hears(11, within_s=3)
    for pulled, other in ((0, 1), (1, 0)):
        it.machine.pull(other, plugged=True)
        it.machine.pull(pulled)
        await cloud.answers(within_s=ANSWERS_S)
        assert await vlan.hears(10, within_s=ANSWERS_S)
    it.machine.pull(0)
    await asyncio.sleep(1)
    assert not await pings(HOST)
