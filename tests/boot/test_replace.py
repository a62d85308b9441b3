"""From `kubectl apply` to Complete: HostReplace of a machine with real firmware, through a BMC, by `unbounded up`."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from cryptography.x509 import load_pem_x509_csr
from scripts import packages

from tests.boot.rack import MACHINE, SEEN, Rack, blank_disk, rack, seen
from tests.boot.thin import DISK_BYTES, joining_image, other_loader, thin_image
from tests.cli.running import KUBECTL
from tests.fetch.layers import Built, files, from_layout, with_layer
from tests.fetch.registries import push
from tests.support.agent_release import agent_release
from tests.support.hosts import agent_tools
from tests.support.hosts.images import images_on
from tests.support.hosts.mirror import CNI, CONTAINERD, RUNC, Mirror, mirror_on
from tests.support.qemu import Hardware, Segment
from tests.support.qemu.tools import built
from tests.support.token_groups import machine_of
from unbounded_lab.bmc.power import HostPower

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

VERSION: Final = "1.34.0"
BOOTS_S: Final = 300.0  # alone it takes a tenth of that; where others work as well, the firmware gets little of a CPU
MAC: Final = "52:54:00:00:00:0a"
REPLACES_S: Final = 600.0
EVIDENCE_NODE: Final = "the Node is Ready since the new boot"


def host_image() -> Built:
    """Debian with the agent of these sources."""
    layout = built("host-debian12/oci")
    if layout is None:
        pytest.skip("the image of Debian is not built; scripts/host-image does")
    file = agent_release().file
    beside = file.with_name(f"{file.name}.sha256")
    agent = files({f"disk/{one.name}": one.read_bytes() for one in (file, beside)})
    return with_layer(from_layout(layout), agent)


@pytest.mark.soak  # a node that is made within an emulated machine takes a quarter of an hour there
async def test_a_machine_with_a_tpm_is_installed_attests_and_becomes_a_node(net: Segment, tmp_path: Path) -> None:
    image, tools = host_image(), agent_tools()
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, 16 << 30), tpm=True, memory_mib=2048, cpus=2)
    async with rack(hardware, net, tmp_path) as it:
        with mirror_on(net.address, tools) as mirror, images_on(net.address, tools, tmp_path / "images") as images:
            mirror.add_kubernetes(VERSION)
            await push(it.registry, "images/host-debian12", "v1", image)
            agent = {"image": f"{images.host}/lab/node:v1", "downloads": downloads(mirror)}
            await it.add_machine("images/host-debian12:v1", kubernetes={"version": f"v{VERSION}"}, agent=agent)
            await it.ask("HostReplace")
            status = await it.ended("HostReplace", within_s=1500)
            assert status["phase"] == "Complete", status
            assert seen(status) >= SEEN | {EVIDENCE_NODE}
            assert it.machine.boots == ["Pxe", "Hdd"]
            disk = (await it.up.get("machine", MACHINE))["status"]["targetDisk"]
            assert disk == f"/dev/disk/by-id/virtio-{hardware.disk_serial}"
            await is_node_of_the_agent(it)


@pytest.mark.soak
async def test_general_image_with_drivers_of_real_machines_is_installed(net: Segment, tmp_path: Path) -> None:
    layout = built("host-debian12-general/oci")
    if layout is None:
        pytest.skip("the general image of Debian is not built; scripts/host-image general does")
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, 8 << 30), memory_mib=2048, cpus=2)
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/general", "v1", from_layout(layout))
        await it.add_machine("images/general:v1")
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=1700)
        assert status["phase"] == "Complete", status
        assert seen(status) >= SEEN
        assert it.machine.boots == ["Pxe", "Hdd"]


def downloads(mirror: Mirror) -> dict[str, dict[str, str]]:
    """All that a node is made from, from the mirror; what of it has versions of its own, as the mirror has them."""
    versions = {"containerd": CONTAINERD, "runc": RUNC, "cni": CNI}
    base = {"baseURL": mirror.base}
    return {"kubernetes": base, "crictl": base, "sandbox": base} | {
        name: {**base, "version": version} for name, version in versions.items()
    }


async def is_node_of_the_agent(it: Rack) -> None:
    machine = await it.up.get("mach", it.name)
    conditions = await it.conditions()
    assert {each: conditions[each][0] for each in ("Repaved", "CloudInitDone", "Attested")} == {
        "Repaved": "True",
        "CloudInitDone": "True",
        "Attested": "True",
    }
    assert machine["status"]["tpm"]["ekPublicKey"].startswith("-----BEGIN PUBLIC KEY-----")
    asked = await certificates_asked(it)
    assert set(asked) == {"kube-apiserver-client", "kube-apiserver-client-kubelet"}
    assert machine_of(tuple(asked["kube-apiserver-client"]["spec"]["groups"])) == machine["metadata"]["uid"]
    node = await it.up.get("node", it.name)
    assert node["status"]["nodeInfo"]["kubeletVersion"] == f"v{VERSION}"
    assert node["metadata"]["labels"]["unbounded-cloud.io/machine"] == it.name
    await it.up.kubectl("wait", f"node/{it.name}", "--for=condition=Ready", "--timeout=10s")

    async def version() -> str | None:
        told = (await it.up.get("mach", it.name)).get("status", {}).get("agent", {})
        return str(told["version"]) if "version" in told else None

    assert await it.until(version, "the daemon says its version", within_s=120) == packages.version()


async def test_machine_is_reimaged_by_uefi_http_and_boots_its_disk(net: Segment, tmp_path: Path) -> None:
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, DISK_BYTES))
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/thin", "v1", thin_image())
        await it.add_machine("images/thin:v1", pxe={"bootProtocol": "HTTP"})
        await it.ask("HostReplace")
        await it.machine.shows("guest: told pxe/disable", within_s=BOOTS_S)
        await it.machine.shows("guest: runs from its disk", within_s=BOOTS_S)
        await is_reimaged(it, "UefiHttp")


async def is_reimaged(it: Rack, source: str) -> None:
    status = await it.ended("HostReplace", within_s=120)
    assert status["phase"] == "Complete", status
    assert seen(status) >= SEEN
    assert it.machine.boots == [source, "Hdd"]
    assert it.bmc.power() is HostPower.ON
    conditions = await it.conditions()
    assert conditions["Repaved"] == ("True", "Succeeded")
    assert conditions["CloudInitDone"] == ("True", "Succeeded")
    assert (await it.up.get("machine", MACHINE))["status"]["netboot"]["milestone"] == "ImageWritten"


async def test_machine_with_tpm_is_reimaged_by_pxe_attests_and_joins(net: Segment, tmp_path: Path) -> None:
    """The agent as it is released. There is no systemd on this host: what needs one is where its start ends."""
    image = joining_image(agent_release())
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, DISK_BYTES), tpm=True, memory_mib=768)
    async with rack(hardware, net, tmp_path) as it:
        await push(it.registry, "images/joining", "v1", image)
        nowhere = f"{net.address}:8880/no/root-file-system:v1"  # metalman answers that there is none
        await it.add_machine("images/joining:v1", agent={"image": nowhere})
        await it.ask("HostReplace")
        await it.machine.shows("guest: told pxe/disable", within_s=BOOTS_S)
        at = await it.machine.shows("guest: the agent starts", within_s=BOOTS_S)
        await it.machine.shows("proving the TPM of this host", since=at, within_s=BOOTS_S)
        at = await it.machine.shows("guest: the agent's start has ended", since=at, within_s=BOOTS_S)
        await it.machine.shows("agent: error: node file system: ", within_s=1)
        await is_reimaged(it, "Pxe")
        await is_joined(it)
        assert await quoted(it, "reference") == read_pcrs(it)
        assert (await it.conditions())["BootChanged"] == ("False", "Recorded")
        await it.ask("HostPowerOff")
        await it.machine.shows("guest: button", since=at, within_s=60)
        assert (await it.ended("HostPowerOff", within_s=60))["phase"] == "Complete"
        assert not it.machine.running


async def quoted(it: Rack, part: str) -> dict[int, str]:
    """Return the values of the PCRs in status.tpm.reference or status.tpm.quote."""
    return {
        one["number"]: one["sha256"] for one in (await it.up.get("machine", MACHINE))["status"]["tpm"][part]["pcrs"]
    }


def read_pcrs(it: Rack) -> dict[int, str]:
    """Return the values that the kernel of the installed system read last."""
    found = re.findall(r"guest: pcr (\d+) is ([0-9A-F]{64})", it.machine.console())
    return {int(number): value.lower() for number, value in found}


def images_of_two_boots(part: str) -> tuple[Built, Built]:
    """Return two images whose installed systems differ in this part of the boot alone."""
    agent = agent_release()
    if part == "loader":
        return joining_image(agent), joining_image(agent, loader=other_loader())
    first, second = (f"UUID=6e1f0d2c-3b0a-4d52-9c11-5b1d6d0a001{last}\n".encode() for last in "23")
    return joining_image(agent, credential=first), joining_image(agent, credential=second)


CREDENTIALS: Final = "kernel command line and credentials of a unified kernel image"


@pytest.mark.soak  # four installations
@pytest.mark.parametrize(
    ("part", "pcr", "meaning"),
    [("loader", 4, "boot loader"), ("root.cred", 12, CREDENTIALS)],
    ids=["loader", "root.cred"],
)
async def test_changed_boot_gets_no_token_until_it_is_accepted(
    net: Segment, tmp_path: Path, part: str, pcr: int, meaning: str
) -> None:
    images = images_of_two_boots(part)
    hardware = Hardware(mac=MAC, disk=blank_disk(tmp_path, DISK_BYTES), tpm=True, memory_mib=768)
    async with rack(hardware, net, tmp_path) as it:
        for tag, image in zip(("v1", "v2"), images, strict=True):
            await push(it.registry, "images/joining", tag, image)
        nowhere = f"{net.address}:8880/no/root-file-system:v1"
        required = {"attestation": {"pcrPolicy": "Required"}}
        await it.add_machine("images/joining:v1", agent={"image": nowhere}, pxe=required)
        await it.ask("HostReplace")
        status = await it.ended("HostReplace", within_s=REPLACES_S)
        assert status["phase"] == "Complete", status
        first = read_pcrs(it)
        assert await quoted(it, "reference") == first
        same = await it.ended("", name=await it.replace("machine", "replace", MACHINE), within_s=REPLACES_S)
        assert same["phase"] == "Complete", same
        assert (await it.conditions())["BootChanged"] == ("False", "Unchanged")

        token = (await it.up.get("machine", MACHINE))["status"]["bootstrapTokenID"]
        change = {"spec": {"pxe": {"image": f"{it.registry}/images/joining:v2"}}}
        await it.up.kubectl("patch", "machine", MACHINE, "--type=merge", "-p", json.dumps(change))
        refused = await it.ended("", name=await it.replace("machine", "replace", MACHINE), within_s=REPLACES_S)
        assert (refused["phase"], refused["reason"]) == ("Failed", "NotAttested"), refused
        assert f"with another image: PCR {pcr} ({meaning}) is " in refused["message"]
        changed = {number for number, value in read_pcrs(it).items() if value != first[number]}
        assert changed == {pcr}
        machine = await it.up.get("machine", MACHINE)
        assert machine["status"]["bootstrapTokenID"] == token
        assert (await it.conditions())["Attested"] == ("False", "PCRMismatch")
        assert await quoted(it, "reference") == first
        assert await quoted(it, "quote") == read_pcrs(it)

        accepting = re.search(r"^kubectl unbounded (machine replace .+)$", refused["message"], re.MULTILINE)
        assert accepting is not None, refused
        accepted = await it.ended("", name=await it.replace(*accepting[1].split()), within_s=REPLACES_S)
        assert accepted["phase"] == "Complete", accepted
        assert any(each["what"].endswith(" accepted the PCRs of this boot") for each in accepted["evidence"]), accepted
        assert await quoted(it, "reference") == read_pcrs(it)
        assert (await it.conditions())["Attested"] == ("True", "Succeeded")


async def certificates_asked(it: Rack) -> dict[str, Any]:
    """Return the certificate requests of this Machine, by the signer; others may request theirs meanwhile."""

    def is_its(request: Any) -> bool:
        subject = load_pem_x509_csr(base64.b64decode(request["spec"]["request"])).subject
        return f"CN=system:node:{it.name}" in subject.rfc4514_string().split(",")

    requests = (await it.up.get("csr"))["items"]
    return {one["spec"]["signerName"].rpartition("/")[2]: one for one in requests if is_its(one)}


async def is_joined(it: Rack) -> None:
    """Check that it has joined by its TPM, under its own identity, with a certificate that it uses."""
    machine = await it.up.get("mach", it.name)
    uid = machine["metadata"]["uid"]
    assert (await it.conditions())["Attested"] == ("True", "Succeeded")
    assert machine["status"]["tpm"]["ekPublicKey"].startswith("-----BEGIN PUBLIC KEY-----")
    asked = await certificates_asked(it)
    assert set(asked) == {"kube-apiserver-client", "kube-apiserver-client-kubelet"}
    mine = asked["kube-apiserver-client"]
    assert machine_of(tuple(mine["spec"]["groups"])) == uid  # this one, and only one
    assert mine["spec"]["username"] == f"system:bootstrap:{machine['status']['bootstrapTokenID']}"
    assert mine["status"]["certificate"]
    with_certificate = asked["kube-apiserver-client-kubelet"]["spec"]
    assert with_certificate["username"] == f"system:node:{it.name}"

    async def version() -> str | None:
        told = (await it.up.get("mach", it.name)).get("status", {}).get("agent", {})
        return str(told["version"]) if "version" in told else None

    assert await it.until(version, "the daemon says its version", within_s=120) == packages.version()
