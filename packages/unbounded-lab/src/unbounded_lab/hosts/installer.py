"""The installer of a host: it reports the hardware, does what the answer says, and fetches all that it would write."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from unbounded_lab.hosts.wire import BootServer, HostFailed

IMAGES: Final = ("disk.img.zst", "disk.img.gz")
ROOTFS: Final = "rootfs.tar.zst"
SEED: Final = {"meta-data": True, "user-data": True, "vendor-data": False, "network-config": False}  # needed or not
NIC_NAMES: Final = ("eno1", "enp0s0")  # udev of the installed system makes them of NIC_PLACES
NIC_PLACES: Final[Sequence[dict[str, Any]]] = (
    {"pciAddress": "0000:31:00.0", "onboardIndex": 1},
    {"pciAddress": "0000:00:00.0"},
)
INSPECTED: Final = ("state", "contents", "onboardIndex")  # facts of disks and cards that only an installer looks for
WAIT_S: Final = 1.0
REPORTS: Final = 5  # reports without `final`, while metalman waits for late disks
_WORD: Final = re.compile(r"unbounded\.([a-z0-9_]+)=(\S+)")
_KERNEL: Final = re.compile(rb"^\s*linux\s+/?\S+ ([^\n]*unbounded\.serve_url=[^\n]*)$", re.MULTILINE)


class InstallEnd(StrEnum):
    """The end of an installer."""

    INSTALLED = "installed"  # the host restarts from its disk
    POWER_OFF = "power off"  # an inspection


@dataclass(frozen=True)
class LabDisk:
    """A disk of a host, as the installer's kernel finds it."""

    name: str
    serial_number: str
    size_bytes: int
    owner: str = ""  # UID of the Machine whose image it has

    def facts(self, machine_uid: str) -> dict[str, Any]:
        state = {"": "Blank", machine_uid: "Own"}.get(self.owner, "Foreign")
        return {
            "name": self.name,
            "sizeBytes": self.size_bytes,
            "sectorBytes": 512,
            "rotational": False,
            "bus": "ata",
            "transport": "ata",
            "serialNumber": self.serial_number,
            "byID": [f"ata-{self.serial_number}"],
            "state": state,
            **({"contents": f"an install of Machine {self.owner}"} if state == "Foreign" else {}),
        }


@dataclass(frozen=True)
class LabHardware:
    """The hardware of a host, as an installer finds it."""

    disks: tuple[LabDisk, ...]
    macs: tuple[str, ...]
    cpus: int
    memory_bytes: int

    def facts(self, machine_uid: str) -> dict[str, Any]:
        return {
            "firmware": {"mode": "UEFI"},
            "cpus": self.cpus,
            "processor": {"architecture": "x86_64"},
            "memoryBytes": self.memory_bytes,
            "nics": [
                {"name": f"eth{number}", "mac": mac, "link": True, "speedMbps": 10_000, **NIC_PLACES[number]}
                for number, mac in enumerate(self.macs)
            ],
            "disks": [disk.facts(machine_uid) for disk in self.disks],
        }

    def agent_facts(self) -> dict[str, Any]:
        """Return the hardware as the agent of the installed system reports it."""
        found = self.facts("")
        disks = [{key: fact for key, fact in disk.items() if key not in INSPECTED} for disk in found["disks"]]
        named = zip(NIC_NAMES, found["nics"], strict=False)
        nics = [
            {key: fact for key, fact in nic.items() if key not in INSPECTED} | {"name": name} for name, nic in named
        ]
        return {key: found[key] for key in ("cpus", "processor", "memoryBytes")} | {"disks": disks, "nics": nics}


@dataclass(frozen=True)
class InstalledSystem:
    """The system that an install leaves on the disk of a host.

    Attributes:
        seed: files of cloud-init by name.
    """

    machine: str
    machine_uid: str
    address: str
    serve_url: str
    image_sha256: str
    seed: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def agent_config(self) -> dict[str, Any]:
        """The configuration of the agent, from cloud-init's vendor-data; empty if it has none."""
        text = self.seed.get("vendor-data", "")
        found = re.search(
            r"^- path: /etc/unbounded/agent/config\.json\n(?:  .*\n)*?  content: \|\n((?:    .*\n)+)", text, re.M
        )
        return dict(json.loads(found[1])) if found else {}


@dataclass(frozen=True)
class BootParameters:
    """The words of the project on the kernel command line of an installer.

    Attributes:
        leases: MAC address and IPv4 address of each lease.
    """

    serve_url: str
    machine: str
    machine_uid: str
    needs_tpm: bool
    leases: tuple[tuple[str, str], ...]

    def address(self, macs: Sequence[str]) -> str:
        """Return the address of the first lease for a card of the host.

        Raises:
            HostFailed: it has no such card.
        """
        for mac, address in self.leases:
            if mac.lower() in macs:
                return address
        raise HostFailed("no network card of this host has a lease")


def boot_parameters(content: bytes) -> BootParameters:
    """Return the parameters that GRUB's configuration passes to the kernel.

    Args:
        content: the configuration, or an image of a CD with it.

    Raises:
        HostFailed: there are none.
    """
    found = _KERNEL.search(content)
    if found is None:
        raise HostFailed("the boot medium has no kernel with unbounded.serve_url")
    words = _WORD.findall(found[1].decode(errors="replace"))
    values = dict(words)
    return BootParameters(
        serve_url=values["serve_url"],
        machine=values.get("machine", ""),
        machine_uid=values.get("machine_uid", ""),
        needs_tpm=values.get("tpm") == "required",
        leases=tuple((text.split(",")[0], text.split(",")[1]) for name, text in words if name == "lease"),
    )


async def install(
    server: BootServer, words: BootParameters, hardware: LabHardware
) -> tuple[InstallEnd, InstalledSystem | None, Sequence[LabDisk]]:
    """Install a host; return the end, the system on its disk, and its disks.

    Raises:
        HostFailed: the installer gave up, and has reported that.
    """
    await _progress(server, "Starting", None, "the installer runs")
    try:
        answer, system = await _fetched(server, words, hardware)
    except HostFailed as failure:
        await server.patiently("POST", "progress", {"stage": "Installing", "message": str(failure), "failed": True})
        raise
    if system is None:
        return InstallEnd.POWER_OFF, None, hardware.disks
    disk = str(answer.get("disk", ""))
    await _progress(server, "Written", 100, f"the image with SHA-256 {system.image_sha256} is written", disk=disk)
    await server.report("pxe/disable", {})
    return InstallEnd.INSTALLED, system, _written(hardware.disks, system.machine_uid, disk)


async def _fetched(
    server: BootServer, words: BootParameters, hardware: LabHardware
) -> tuple[dict[str, Any], InstalledSystem | None]:
    """Report the hardware, and fetch what the answer names; return the answer and what is to be on the disk."""
    uid = words.machine_uid
    image, size = await _image(server)
    answer = await _chosen(server, hardware.facts(uid), size)
    action = answer.get("action")
    if action == "Write" and not image:  # some images are served only to a host that has reported its hardware
        image, size = await _image(server)
        answer = await _chosen(server, hardware.facts(uid), size)
    if action == "PowerOff":
        return answer, None
    if action not in ("Write", "Layout"):
        raise HostFailed(f"a lab host cannot do {action}")
    if words.needs_tpm:
        raise HostFailed("this host has no TPM 2.0: name a token in spec.kubernetes.bootstrapTokenRef")
    seed = await _seed(server)
    if action == "Layout" and hashlib.sha256(await server.content("layout")).hexdigest() != answer.get("layout"):
        raise HostFailed("the layout is not the one that metalman announced")
    name = ROOTFS if action == "Layout" else image
    await _progress(server, "Writing", 0, f"{name} is written")
    digest = hashlib.sha256(await server.content(name)).hexdigest()
    said = (await server.content(f"{name}.sha256"))[:64].decode(errors="replace")
    if said != digest:
        raise HostFailed(f"{name} has the SHA-256 {digest}, and {name}.sha256 says {said}")
    return answer, InstalledSystem(words.machine, uid, words.address(hardware.macs), server.url, digest, seed)


def _written(disks: Sequence[LabDisk], uid: str, path: str) -> tuple[LabDisk, ...]:
    """Return the disks after an install: the chosen one, or all of a layout, are the Machine's."""
    chosen = {one.name for one in disks if not path or path.endswith((f"/{one.name}", f"ata-{one.serial_number}"))}
    return tuple(
        LabDisk(one.name, one.serial_number, one.size_bytes, uid if one.name in chosen else one.owner) for one in disks
    )


async def _progress(server: BootServer, stage: str, percent: int | None, message: str, *, disk: str = "") -> None:
    body: dict[str, Any] = {"stage": stage, "message": message, "failed": False}
    if percent is not None:
        body["percent"] = percent
    if disk.startswith("/dev/disk/by-id/"):
        body["disk"] = disk
    await server.once("POST", "progress", body)


async def _image(server: BootServer) -> tuple[str, int]:
    """Return the name of the whole-disk image and its unpacked size; empty where none is served now."""
    for name in IMAGES:
        status, _ = await server.patiently("GET", name, Range="bytes=0-17")
        if status in (200, 206):
            status, content = await server.patiently("GET", f"{name}.size")
            return name, int(content) if status == 200 and content.strip().isdigit() else 0
    return "", 0


async def _chosen(server: BootServer, facts: dict[str, Any], image_bytes: int) -> dict[str, Any]:
    """Report the hardware until metalman has chosen what to do."""
    number = 0
    while True:
        number += 1
        body = {"hardware": facts, "final": number >= REPORTS, "imageBytes": image_bytes, "largeSectors": True}
        answer = await server.report("hardware", body)
        if answer.get("action") != "Wait":
            return answer
        await asyncio.sleep(WAIT_S)


async def _seed(server: BootServer) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, is_needed in SEED.items():
        status, content = await server.patiently("GET", f"cloud-init/{name}")
        if status == 200:
            found[name] = content.decode()
        elif is_needed or status != 404:
            raise HostFailed(f"cloud-init/{name} could not be had: HTTP {status}")
    return found
