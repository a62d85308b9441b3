"""Each check of a host: what it makes of what was seen, and what is read from a made-up root."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.agent.preflight.support import GOAL, NoCommands, NoUnits
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight import checks
from unbounded.agent.preflight.observations import Graphics, HostObservation, SlotObservation
from unbounded.agent.preflight.observe import observe_host
from unbounded.agent.preflight.report import CHECKS, PreflightFinding, Severity
from unbounded.agent.steps.kernel import KUBELET, RejectedParameter

GOOD = HostObservation(
    uid=0,
    system="debian",
    arch="x86_64",
    init="systemd",
    manager="apt-get",
    programs=frozenset({"machinectl", "nft", "ip", "systemd-nspawn"}),
    systemd=252,
    cgroup_version=2,
    controllers=frozenset({"cpu", "memory", "pids", "io"}),
    free_bytes=20 << 30,
    free_inodes=5_000_000,
    slots={slot: SlotObservation() for slot in Slot},
)
OK, WARNING, ERROR = Severity.OK, Severity.WARNING, Severity.ERROR


def applied(machine: str = "m1") -> BuildRecord:
    return BuildRecord(goal=msgspec.structs.replace(GOAL, machine=machine))


def worst(findings: Iterable[PreflightFinding], name: str) -> Severity:
    mine = [one.severity for one in findings if one.name == name]
    assert mine, f"nothing is said of {name}"
    return max(mine, key=list(Severity).index)


def test_good_host_passes_every_host_check() -> None:
    findings = list(checks.host_findings(GOOD, GOAL))
    assert {one.severity for one in findings} == {OK}
    network = {"agent-config", "attestation", "api-server-reachable", "oci-image-reachable"}
    assert {one.name for one in findings} == {one for one in CHECKS if one not in network and "artifacts" not in one}


@pytest.mark.parametrize(
    ("name", "severity", "changes", "words"),
    [
        ("is-privileged-user", ERROR, {"uid": 1000}, "root"),
        ("host-packages", WARNING, {"programs": frozenset({"ip"})}, "start installs machinectl, nft with apt-get"),
        ("host-packages", ERROR, {"programs": frozenset({"ip"}), "manager": ""}, "none of apt-get"),
        ("host-os-configuration", ERROR, {"init": "init"}, "needs systemd"),
        ("host-os-configuration", ERROR, {"arch": "riscv64"}, "x86_64 and aarch64"),
        ("host-os-configuration", ERROR, {"unwritable": ("/usr/local",)}, "read-only"),
        ("host-os-configuration", WARNING, {"system": "gentoo"}, "has not been tested"),
        ("host-os-configuration", OK, {"system": "mint", "like": ("ubuntu", "debian")}, "mint"),
        (
            "kernel-parameters",
            ERROR,
            {"refused": (RejectedParameter("kernel.panic", "0", "10"),)},
            "panic is 0, but kubelet needs 10",
        ),
        (
            "kernel-parameters",
            ERROR,
            {"refused": (RejectedParameter("kernel.panic", None, "10"),)},
            "has no kernel.panic, but kub",
        ),
        (
            "kernel-parameters",
            OK,
            {"refused": (RejectedParameter("kernel.panic", "0", "10", True),)},
            "start sets kernel.panic=10",
        ),
        ("nspawn-runtime", WARNING, {"programs": frozenset({"machinectl", "nft", "ip"})}, "systemd-container"),
        ("nspawn-runtime", WARNING, {"systemd": 237}, "older than 239"),
        ("docker-active", WARNING, {"docker": ("docker.service",)}, "start stops and masks docker.service"),
        ("swap-active", WARNING, {"swaps": ("/swapfile",)}, "start switches off /swapfile"),
        ("disk-space", ERROR, {"free_bytes": 7 << 30}, "7.0 GiB free"),
        ("disk-space", ERROR, {"free_inodes": 1000}, "1000 inodes"),
        ("disk-space", OK, {"free_inodes": 0}, "20.0 GiB"),
        (
            "disk-space",
            WARNING,
            {"free_bytes": 1 << 30, "slots": {Slot.KUBE1: SlotObservation(True, applied())}},
            "1.0 GiB",
        ),
        ("cgroups", ERROR, {"cgroup_version": 1}, "unified_cgroup_hierarchy"),
        ("cgroups", ERROR, {"cgroup_version": 0}, "not mounted"),
        ("cgroups", ERROR, {"controllers": frozenset({"cpu"})}, "no memory, pids"),
        ("nvidia-driver", WARNING, {"graphics": Graphics(cards=2)}, "2 cards, but no driver"),
        ("nvidia-driver", ERROR, {"graphics": Graphics(cards=1, devices=1)}, "module is not loaded"),
        ("nvidia-driver", WARNING, {"graphics": Graphics(cards=1, driver="550.1")}, "nvidia-modprobe"),
        ("nvidia-driver", OK, {"graphics": Graphics(cards=1, devices=1, driver="550.1")}, "driver 550.1"),
        (
            "nspawn-machine-provisioning",
            OK,
            {"slots": {Slot.KUBE1: SlotObservation(True, applied())}},
            "Kubernetes 1.34.0",
        ),
        ("nspawn-machine-provisioning", WARNING, {"slots": {Slot.KUBE1: SlotObservation(True)}}, "it is incomplete"),
        (
            "nspawn-machine-provisioning",
            ERROR,
            {"slots": {Slot.KUBE2: SlotObservation(True, applied("m2"))}},
            "Machine 'm2'",
        ),
        ("nspawn-machine-provisioning", ERROR, {"slots": {Slot.KUBE1: SlotObservation(broken="damaged")}}, "damaged"),
        ("nspawn-machine-provisioning", ERROR, {"resetting": True}, "unbounded-agent reset"),
    ],
    ids=lambda value: value.replace(" ", "_") if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said(name: str, severity: Severity, changes: dict[str, object], words: str) -> None:
    findings = list(checks.host_findings(replace(GOOD, **changes), GOAL))  # type: ignore[arg-type]
    assert worst(findings, name) is severity
    assert any(words in one.message for one in findings if one.name == name), findings
    others = [one for one in findings if one.name != name and one.severity is ERROR]
    assert others == []


def test_debootstrap_is_only_wanted_without_an_image() -> None:
    without = msgspec.structs.replace(GOAL, image="")
    assert worst(checks.host_findings(GOOD, without, debootstrap=True), "host-packages") is WARNING
    assert worst(checks.host_findings(GOOD, None), "host-packages") is OK


# Readers


def put(root: Path, path: str, content: str = "") -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


async def seen(root: Path, **active: bool) -> HostObservation:
    return await observe_host(HostPaths(root), NoCommands("systemd 255 (255.4-1ubuntu8)\n+PAM"), NoUnits(active))


async def test_a_host_is_read_from_its_files(tmp_path: Path) -> None:
    put(tmp_path, "/etc/os-release", 'NAME="Ubuntu"\nID=ubuntu\nID_LIKE="debian"\n')
    put(tmp_path, "/proc/1/comm", "systemd\n")
    put(
        tmp_path, "/proc/swaps", "Filename Type Size Used Priority\n/dev/sda2 partition 1 0 -2\n/swapfile file 1 0 -3\n"
    )
    put(tmp_path, "/proc/self/mounts", "proc /proc proc rw 0 0\ncgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    put(tmp_path, "/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n")
    put(tmp_path, "/usr/bin/apt-get")
    put(tmp_path, "/usr/sbin/nft")
    put(tmp_path, "/dev/tpmrm0")
    host = await seen(tmp_path, **{"docker.socket": True})
    assert (host.system, host.like, host.init, host.systemd) == ("ubuntu", ("debian",), "systemd", 255)
    assert host.swaps == ("/dev/sda2", "/swapfile")
    assert (host.cgroup_version, host.controllers) == (2, frozenset({"cpuset", "cpu", "io", "memory", "pids"}))
    assert (host.manager, host.programs, host.tpm) == ("apt-get", frozenset({"nft"}), True)
    assert host.docker == ("docker.socket",)
    assert host.free_bytes > 0
    assert host.unwritable == ()


@pytest.mark.root
@pytest.mark.parametrize("key", KUBELET)
async def test_each_parameter_that_kubelet_refuses_is_found(tmp_path: Path, key: str) -> None:
    for one, needed in KUBELET.items():
        put(tmp_path, f"/proc/sys/{one.replace('.', '/')}", f"{needed if one != key else 7}\n")
    assert (await seen(tmp_path)).refused == (RejectedParameter(key, "7", KUBELET[key], settable=True),)
    (tmp_path / "proc/sys" / key.replace(".", "/")).unlink()
    assert (await seen(tmp_path)).refused == (RejectedParameter(key, None, KUBELET[key]),)


@pytest.mark.parametrize(
    ("mounts", "version"),
    [
        ("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n", 2),
        ("tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n"
         "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n", 1),
        ("tmpfs /tmp tmpfs rw 0 0\n", 0),
    ],
    ids=["unified", "hybrid", "none"],
)  # fmt: skip
async def test_cgroup_version_is_detected(tmp_path: Path, mounts: str, version: int) -> None:
    put(tmp_path, "/proc/self/mounts", mounts)
    assert (await seen(tmp_path)).cgroup_version == version


async def test_cards_devices_and_driver_of_nvidia_are_counted(tmp_path: Path) -> None:
    for number, (vendor, kind) in enumerate(
        [("0x10de", "0x030200"), ("0x10de", "0x040300"), ("0x8086", "0x030000"), ("0x10de", "0x030000")]
    ):
        put(tmp_path, f"/sys/bus/pci/devices/0000:0{number}:00.0/vendor", f"{vendor}\n")
        put(tmp_path, f"/sys/bus/pci/devices/0000:0{number}:00.0/class", f"{kind}\n")
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        put(tmp_path, f"/dev/{name}")
    told = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    put(tmp_path, "/proc/driver/nvidia/version", told)
    assert (await seen(tmp_path)).graphics == Graphics(cards=2, devices=2, driver="550.54.15")


async def test_slots_are_whole_half_built_or_damaged(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    content = msgspec.json.encode(applied())
    put(tmp_path, str(paths.applied("kube1").relative_to(tmp_path)), content.decode())
    beside = str(paths.applied("kube1").relative_to(tmp_path)) + ".sha256"
    put(tmp_path, beside, hashlib.sha256(content).hexdigest())
    paths.rootfs("kube1").mkdir(parents=True)
    paths.rootfs("kube2").mkdir(parents=True)
    slots = (await seen(tmp_path)).slots
    assert slots[Slot.KUBE1] == SlotObservation(True, applied())
    assert slots[Slot.KUBE2] == SlotObservation(True)
    put(tmp_path, beside, "0" * 64)
    assert "checksum" in (await seen(tmp_path)).slots[Slot.KUBE1].broken


async def test_an_empty_root_is_read_without_an_error(tmp_path: Path) -> None:
    host = await seen(tmp_path)
    assert (host.init, host.manager, host.cgroup_version, host.swaps) == ("", "", 0, ())
