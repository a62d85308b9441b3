"""Reads the host: files of /proc, /sys, /dev and /etc, and the state of systemd. It changes nothing."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.model import Slot
from unbounded.agent.node.build_record import read_build_record
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.ports import Commands, Units
from unbounded.agent.preflight.observations import Graphics, HostObservation, SlotObservation
from unbounded.agent.steps import docker, sysctl
from unbounded.agent.steps.packages import MANAGERS, PROGRAMS
from unbounded.agent.steps.step import StepHost as Programs
from unbounded.api.failures import Failure, Rejected

WRITTEN: Final = ("/etc", "/etc/systemd/system", "/usr/local", "/var/lib", "/run")
NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"  # prefix of PCI class codes of display controllers
_CALL_S: Final = 10.0


async def observe_host(layout: Layout, commands: Commands, units: Units) -> HostObservation:
    """Return the observed state of the host. An unreadable value counts as absent."""
    has = Programs(layout, commands, units).has
    release = _os_release(layout.at("/etc/os-release"))
    version, controllers = _cgroups(layout)
    free_bytes, free_inodes = _free(layout.at("/var/lib"))
    return HostObservation(
        uid=os.geteuid(),
        system=release.get("ID", ""),
        like=tuple(release.get("ID_LIKE", "").split()),
        arch=platform.machine(),
        init=_text(layout.at("/proc/1/comm")),
        manager=next((one.program for one in MANAGERS if has(one.program)), ""),
        programs=frozenset(name for name in (*PROGRAMS, "systemd-nspawn", "debootstrap") if has(name)),
        systemd=await _systemd(commands),
        cgroup_version=version,
        controllers=controllers,
        swaps=_swaps(layout.at("/proc/swaps")),
        docker=tuple([unit for unit in docker.UNITS if await _active(units, unit)]),
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        unwritable=_unwritable(layout),
        refused=sysctl.refused_by_kubelet(layout) if os.geteuid() == 0 else (),  # other users may set none
        graphics=graphics(layout),
        slots={slot: await _slot(layout, units, slot) for slot in Slot},
        resetting=layout.reset_state.exists(),
        tpm=layout.at("/dev/tpmrm0").exists(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _os_release(path: Path) -> dict[str, str]:
    lines = (line.partition("=") for line in _text(path).splitlines() if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip().strip("\"'").lower() for name, _, value in lines}


def _cgroups(layout: Layout) -> tuple[int, frozenset[str]]:
    """Return the cgroup version, and the controllers of version 2. Where both are mounted, version 1 has the
    controllers.
    """
    mounts = [line.split() for line in _text(layout.at("/proc/self/mounts")).splitlines()]
    kinds = {fields[1]: fields[2] for fields in mounts if len(fields) > 2}
    if kinds.get("/sys/fs/cgroup") == "cgroup2":
        return 2, frozenset(_text(layout.at("/sys/fs/cgroup/cgroup.controllers")).split())
    return (1 if "cgroup" in kinds.values() else 0), frozenset()


def _free(path: Path) -> tuple[int, int]:
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_favail


def _swaps(path: Path) -> tuple[str, ...]:
    return tuple(line.split()[0] for line in _text(path).splitlines()[1:] if line.strip())


def _unwritable(layout: Layout) -> tuple[str, ...]:
    if os.geteuid() != 0:  # another check reports the missing privilege; without it, this list would hold every folder
        return ()
    return tuple(path for path in WRITTEN if layout.at(path).is_dir() and not os.access(layout.at(path), os.W_OK))


def graphics(layout: Layout) -> Graphics:
    """Return NVIDIA's cards, their devices, and the driver."""
    cards = [
        device
        for device in layout.at("/sys/bus/pci/devices").glob("*")
        if _text(device / "vendor") == NVIDIA_VENDOR and _text(device / "class").startswith(_DISPLAY)
    ]
    devices = [path for path in layout.at("/dev").glob("nvidia*") if re.fullmatch("nvidia[0-9]+", path.name)]
    match = re.search(r"Kernel Module(?: for \S+)?\s+([0-9][0-9.]*)", _text(layout.at("/proc/driver/nvidia/version")))
    return Graphics(len(cards), len(devices), match[1] if match else "")


async def _slot(layout: Layout, units: Units, slot: Slot) -> SlotObservation:
    exists = layout.rootfs(slot).is_dir()
    try:
        applied = read_build_record(layout, slot)
        return SlotObservation(exists, applied, running=applied is not None and await _active(units, unit_of(slot)))
    except Rejected as failure:
        unseen = isinstance(failure.__cause__, PermissionError)  # only root can read it
        return SlotObservation(exists, broken="" if unseen else str(failure))


async def _systemd(commands: Commands) -> int:
    try:
        output = (await commands.run("systemctl", "--version", timeout_s=_CALL_S)).stdout
    except Failure:
        return 0
    found = re.match(r"systemd ([0-9]+)", output)
    return int(found[1]) if found else 0


async def _active(units: Units, unit: str) -> bool:
    try:
        return (await units.observe(unit)).active in ("active", "activating", "reloading")
    except Failure:
        return False
