"""`unbounded up --pxe-interface`: a machine on its segment is reimaged, from `kubectl apply` to the evidence.

The machine is a script (`pxe_machine`) in a network namespace; its BMC is the lab's, and starts it. Once the installer
of `images/` runs there, on a loop device and from our own templates.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shlex
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.cli.running import KUBECTL, Up, up
from tests.images.content import MIB, packed
from tests.images.loops import loop_devices, loop_disk, planted, system, that_takes_loops
from tests.images.support import TOP, Host, needed
from tests.metalman.support.dhcp_lab import NEAR_MAC, Lab, ip, lab
from tests.metalman.support.surrounding import around, play
from tests.support.authority import PEM

pytestmark = [
    pytest.mark.slow,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="namespaces need root"),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]

NETBOOT: Final = TOP / "images" / "host-debian12" / "netboot"
AGENT: Final = b"#!/bin/sh\n"
INIT: Final = """
for part in base report http lldp network disks; do . "$INSTALLER/$part.sh"; done
bring_up_network && sh "$INSTALLER/install"
"""
INSPECTED: Final = 3  # the installer's exit code, at which its init switches the machine off
SERVER: Final = "10.66.0.1"
STOP_S: Final = 60.0
ADDRESS: Final = "10.66.0.50"
DNS: Final = "10.66.0.53"
LEASE: Final = {"mac": NEAR_MAC.upper(), "ipv4": ADDRESS, "subnetMask": "255.255.255.0", "gateway": SERVER}
DISK: Final = "the disk\n" * 100_000
CONFIG: Final = """set timeout=0
linux vmlinuz unbounded.serve_url={{ .ServeURL }} ip={{ (index .Machine.Spec.PXE.DHCPLeases 0).IPv4 }}
initrd initrd
"""
CONFIGURATION: Final = {
    "apiVersion": "unbounded-cloud.io/v1alpha3",
    "kind": "MachineConfiguration",
    "metadata": {"name": "edge"},
    "spec": {"template": {"proxy": {"https": "http://proxy:3128"}, "caBundle": PEM}},
}
AGENT_FILE: Final = "/etc/unbounded/agent/config.json"
IMAGE: Final = {
    "disk/metadata.yaml": "dhcpBootImageName: shimx64.efi\n"
    f"diskImageSHA256: {hashlib.sha256(DISK.encode()).hexdigest()}\n",
    "disk/shimx64.efi": "a loader" * 1000,
    "disk/vmlinuz": "a kernel" * 10_000,
    "disk/initrd": "an initrd" * 10_000,
    "disk/disk.img.gz": DISK,
    "disk/grub/grub.cfg.tmpl": CONFIG,
    "disk/cloud-init/meta-data.tmpl": "instance-id: {{ .Machine.Name }}\n",
}


@pytest.fixture(scope="module")
def network() -> Iterator[Lab]:
    with lab() as made:
        yield made


@asynccontextmanager
async def serving(network: Lab, data: Path) -> AsyncIterator[Up]:
    within = ("ip", "netns", "exec", network.ns("server"))
    async with up(data, "--pxe-interface", "sw0", "--log-level", "info", within=within) as running:
        await running.says(r"netboot     http://10\.66\.0\.1:8880, TFTP and DHCP on sw0")
        await running.says("Ctrl-C stops")
        yield running


async def apply(running: Up, *objects: dict[str, Any]) -> None:
    file = running.data / "to-apply.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))
    await running.kubectl("apply", "-f", str(file))


def operation_of(machine: str, kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineOperation",
        "metadata": {"name": name},
        "spec": {"machineRef": machine, "operationKind": kind},
    }


def replace(machine: str) -> dict[str, Any]:
    return operation_of(machine, "HostReplace", "replace")


async def ended(running: Up, name: str, *, within_s: float = 90) -> dict[str, Any]:
    operation: dict[str, Any] = {}
    try:
        async with asyncio.timeout(within_s):
            while operation.get("status", {}).get("phase") not in {"Complete", "Failed"}:
                operation = await running.get("mop", name)
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"{name} did not end: {operation.get('status')}\n{running.printed}") from None
    return operation


def refused(data: Path) -> list[str]:
    """Return the refused requests of service accounts."""
    lines = (json.loads(line) for line in (data / "audit.log").read_text().splitlines())
    return [
        f"{line['verb']} {line['requestURI']}"
        for line in lines
        if line["responseStatus"]["code"] == 403 and line["user"]["username"].startswith("system:serviceaccount")
    ]


def installable(folder: Path) -> dict[str, str | bytes]:
    """An image as `images/host-debian12` makes it, with its templates, a disk of some pieces and a small agent."""
    (folder / "root").mkdir(parents=True)
    (folder / "root" / "filler").write_bytes(random.Random(1).randbytes(3 * MIB))
    disk = packed(system(folder), "gz")
    digests = {"disk.img.gz": hashlib.sha256(disk).hexdigest(), "unbounded-agent": hashlib.sha256(AGENT).hexdigest()}
    return {
        **IMAGE,
        "disk/metadata.yaml": "dhcpBootImageName: shimx64.efi\n",
        "disk/disk.img.gz": disk,
        "disk/unbounded-agent": AGENT,
        **{f"disk/{name}.sha256": f"{digest}  {name}\n" for name, digest in digests.items()},
        **{f"disk/{path.relative_to(NETBOOT)}": path.read_text() for path in NETBOOT.rglob("*.tmpl")},
    }


async def install(network: Lab, host: Host, config: str) -> tuple[int, str]:
    """Do what the installer's init does, in the namespace of the machine that GRUB started with this configuration."""
    ip(f"-n {network.ns('near')} addr flush dev eth0")  # the loader's, which a kernel does not keep
    (host.root / "sys/class").mkdir()
    (host.root / "sys/class/net").symlink_to("/sys/class/net")
    (line,) = (line for line in config.splitlines() if line.strip().startswith("linux "))
    return await host.sh(INIT, INSTALLER=str(that_takes_loops(host)), CMDLINE=" ".join(shlex.split(line)[2:]))


async def test_machine_is_reimaged_from_the_network_with_evidence_in_the_operation(
    network: Lab, tmp_path: Path
) -> None:
    image = installable(tmp_path / "image")
    host = Host(tmp_path / "host", within=(needed("ip"), "netns", "exec", network.ns("near")))
    with loop_devices() as attach:
        disk = loop_disk(host, tmp_path, attach)
        async with (
            around(network, tmp_path, {"lab/host:v1": image}, LEASE | {"dns": [DNS]}) as beside,
            serving(network, tmp_path / "data") as running,
        ):
            name = beside.machine["metadata"]["name"]
            beside.machine["spec"]["pxe"]["targetDisk"] = f"/dev/{disk.name}"
            beside.machine["spec"]["configurationRef"] = {"name": "edge"}
            await apply(running, CONFIGURATION, beside.secret, beside.machine)
            assert (await play(network))["leased"]["loader"] == ""  # no boot is requested
            await apply(running, replace(name))
            assert await beside.next("boot") == "Pxe"
            said = await play(network, until="kernel")
            assert said["leased"] == {"address": ADDRESS, "server": SERVER, "loader": "shimx64.efi"}
            url = said["kernel"]["url"]
            code, out = await install(network, host, said["config"]["text"])
            assert code == 0, (out, host.said(), running.printed)
            assert (host.root / "resolv.conf").read_text() == f"nameserver {DNS}\n"
            assert "done; the host starts from" in host.said()
            there = planted(disk.part, host.root / "installed")
            assert there["usr/local/bin/unbounded-agent"] == AGENT.decode()
            seed = {file.rpartition("/")[2]: text for file, text in there.items() if "/seed/nocloud/" in file}
            assert seed.keys() == {"meta-data", "user-data", "vendor-data"}
            assert seed["user-data"] == "#cloud-config\n"
            assert seed["meta-data"] == f"instance-id: {name}\nlocal-hostname: {name}\n"
            assert f'endpoint: "{url}/cloudinit/log"' in seed["vendor-data"]
            (agent,) = (
                file for file in yaml.safe_load(seed["vendor-data"])["write_files"] if AGENT_FILE in file["path"]
            )
            told = json.loads(agent["content"])
            assert (told["Proxy"], told["CaBundle"]) == ({"HTTPS": "http://proxy:3128"}, PEM)
            said = await play(network, installed=url)
            assert list(said)[-1] == "cloud-init done", said
            operation = await ended(running, "replace")
            assert operation["status"]["phase"] == "Complete", (operation["status"], running.printed)
            proof = [one["what"] for one in operation["status"]["evidence"]]
            assert proof[-3:] == ["the installer started", "the image was written", "cloud-init finished"], proof
            machine = await running.get("machine", name)
            conditions = {one["type"]: (one["status"], one["reason"]) for one in machine["status"]["conditions"]}
            assert conditions["Repaved"] == ("True", "Succeeded")
            assert conditions["CloudInitDone"] == ("True", "Succeeded")
            assert conditions["NetbootImageReady"] == ("True", "Pulled")
            seen = machine["status"]["netboot"]
            assert (seen["milestone"], seen["percent"]) == ("ImageWritten", 100)
            hardware = machine["status"]["hardware"]
            assert (hardware["source"], hardware["boot"]) == ("Installer", seen["boot"])
            (written,) = hardware["disks"]
            assert (written["name"], written["sizeBytes"], written["state"]) == (disk.name, 40 * MIB, "Blank")
            assert (await play(network))["leased"]["loader"] == ""
            assert "Traceback" not in running.printed
            assert refused(tmp_path / "data") == []


async def test_inspected_machine_is_reported_by_the_installer_and_not_written(network: Lab, tmp_path: Path) -> None:
    image = installable(tmp_path / "image")
    host = Host(tmp_path / "host", within=(needed("ip"), "netns", "exec", network.ns("near")))
    with loop_devices() as attach:
        disk = loop_disk(host, tmp_path, attach)
        async with (
            around(network, tmp_path, {"lab/host:v1": image}, LEASE) as beside,
            serving(network, tmp_path / "data") as running,
        ):
            name = beside.machine["metadata"]["name"]
            await apply(running, beside.secret, beside.machine, operation_of(name, "HostInspect", "inspect"))
            assert await beside.next("boot") == "Pxe"
            said = await play(network, until="kernel")
            code, out = await install(network, host, said["config"]["text"])
            assert code == INSPECTED, (out, host.said(), running.printed)
            operation = await ended(running, "inspect")
            assert operation["status"]["phase"] == "Complete", (operation["status"], running.printed)
            machine = await running.get("machine", name)
    hardware = machine["status"]["hardware"]
    (seen,) = hardware["disks"]
    assert (hardware["source"], seen["name"], seen["state"]) == ("Installer", disk.name, "Blank")
    assert not any((tmp_path / "disk.img").read_bytes())
    assert "targetDisk" not in machine["status"]


async def test_network_installation_resumes_after_all_processes_are_killed(network: Lab, tmp_path: Path) -> None:
    async with around(network, tmp_path, {"lab/host:v1": IMAGE}, LEASE) as beside:
        async with serving(network, tmp_path / "data") as running:
            name = beside.machine["metadata"]["name"]
            await apply(running, beside.secret, beside.machine, replace(name))
            assert await beside.next("boot") == "Pxe"
            said = await play(network, until="installer")
            assert list(said)[-1] == "chosen", said  # the installer has reported the hardware
            running.process.kill()
        async with serving(network, tmp_path / "data") as running:
            again = await play(network, resume=said["kernel"]["url"])
            assert list(again)[-1] == "cloud-init done", again
            assert again["image"]["digest"] == hashlib.sha256(DISK.encode()).hexdigest()
            assert again["disable by GET"]["code"] == 405
            assert again["user-data"]["text"] == "#cloud-config\n"
            operation = await ended(running, "replace")
            assert operation["status"]["phase"] == "Complete", (operation["status"], running.printed)


async def test_machine_without_a_bmc_is_installed_by_its_repave_counter(network: Lab, tmp_path: Path) -> None:
    async with (
        around(network, tmp_path, {"lab/host:v1": IMAGE}, LEASE) as beside,
        serving(network, tmp_path / "data") as running,
    ):
        name = beside.machine["metadata"]["name"]
        del beside.machine["spec"]["pxe"]["redfish"]
        await apply(running, beside.machine | {"spec": beside.machine["spec"] | {"operations": {"repaveCounter": 1}}})
        said = {}
        async with asyncio.timeout(60):
            while "loader" not in said:  # its image is being pulled
                said = await play(network)
        assert list(said)[-1] == "cloud-init done", said
        machine = await running.get("machine", name)
        assert machine["status"]["operations"]["repaveCounter"] == 1
        assert machine["status"]["netboot"]["boot"] == "repave-1"
        assert (await play(network))["leased"]["loader"] == ""
        began = time.monotonic()
        running.signal(signal.SIGINT)
        assert await running.ended() == 0
        assert time.monotonic() - began < STOP_S
        assert "give=--pxe-cluster-dns" in running.printed
