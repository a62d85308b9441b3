"""Checks of a host: from observations to findings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unbounded.agent.model import NodeGoal
from unbounded.agent.preflight.observations import HostObservation
from unbounded.agent.preflight.report import PreflightFinding, error, fine, warning
from unbounded.agent.steps.packages import MANAGERS, PROGRAMS
from unbounded.agent.steps.sysctl import KUBELET, REMEDY

LEAST_BYTES: Final = 8 << 30
LEAST_INODES: Final = 200_000  # a root file system has about 30,000, and there are two
LEAST_SYSTEMD: Final = 239  # needed for SystemCallFilter in .nspawn files
ARCHITECTURES: Final = ("x86_64", "aarch64")
TRIED: Final = ("debian", "ubuntu", "azurelinux", "mariner", "fedora", "rhel")
CONTROLLERS: Final = ("cpu", "memory", "pids")  # kubelet does not start without these


def host_findings(
    host: HostObservation, goal: NodeGoal | None, *, debootstrap: bool = False
) -> Iterator[PreflightFinding]:
    """Yield the findings about a host.

    Args:
        goal: of the node; None where the configuration cannot be read.
    """
    yield privileged(host)
    yield from packages(host, debootstrap=debootstrap)
    yield from system(host)
    yield from kernel_parameters(host)
    yield runtime(host)
    yield docker(host)
    yield swap(host)
    yield from disk(host)
    yield cgroups(host)
    yield nvidia(host)
    yield from slots(host, goal)


def privileged(host: HostObservation) -> PreflightFinding:
    name, target = "is-privileged-user", "user"
    if host.uid != 0:
        return error(name, target, "start must run as root, for example with sudo")
    return fine(name, target, "root")


def packages(host: HostObservation, *, debootstrap: bool) -> Iterator[PreflightFinding]:
    wanted = [*PROGRAMS, *(["debootstrap"] if debootstrap else [])]
    missing = [program for program in wanted if program not in host.programs]
    name, target = "host-packages", "packages"
    if not missing:
        yield fine(name, target, f"{', '.join(wanted)} are installed")
    elif host.manager:
        yield warning(name, target, f"start installs {', '.join(missing)} with {host.manager}")
    else:
        known = ", ".join(manager.program for manager in MANAGERS)
        yield error(name, target, f"{', '.join(missing)}: install them by hand, as this host has none of {known}")


def system(host: HostObservation) -> Iterator[PreflightFinding]:
    name = "host-os-configuration"
    wrong = list(_system_faults(host))
    for target, message in wrong:
        yield error(name, target, message)
    if not wrong:
        known = {host.system, *host.like} & {*TRIED}
        told = fine if known else warning
        message = host.system or "no ID in /etc/os-release"
        yield told(name, "system", message if known else f"{message}: the agent has not been tested on this system")


def _system_faults(host: HostObservation) -> Iterator[tuple[str, str]]:
    if host.arch not in ARCHITECTURES:
        yield "architecture", f"{host.arch}: the agent supports {' and '.join(ARCHITECTURES)}"
    if host.init != "systemd":
        yield "init", f"process 1 is {host.init or 'unknown'}: the agent needs systemd"
    for folder in host.unwritable:
        yield folder, "start writes here, but the file system is read-only or rejects writes"


def kernel_parameters(host: HostObservation) -> Iterator[PreflightFinding]:
    """Yield findings about kernel parameters with whose values kubelet exits at each start."""
    name = "kernel-parameters"
    fixed = [one for one in host.refused if not one.settable]
    for one in fixed:
        yield error(name, one.key, f"{one}; this host cannot set it: {REMEDY}")
    if not fixed:
        later = ", ".join(f"{one.key}={one.needed}" for one in host.refused)
        yield fine(name, "/proc/sys", f"start sets {later}" if later else f"{len(KUBELET)} have what kubelet needs")


def runtime(host: HostObservation) -> PreflightFinding:
    name, target = "nspawn-runtime", "systemd-nspawn"
    if "systemd-nspawn" not in host.programs:
        return warning(name, target, "not installed yet: package systemd-container contains it")
    if host.systemd and host.systemd < LEAST_SYSTEMD:
        return warning(name, target, f"systemd {host.systemd} is older than {LEAST_SYSTEMD}: update it")
    return fine(name, target, f"systemd {host.systemd}" if host.systemd else "it exists")


def docker(host: HostObservation) -> PreflightFinding:
    name, target = "docker-active", "docker"
    if host.docker:
        return warning(name, target, f"start stops and masks {', '.join(host.docker)}: its rules drop Pod traffic")
    return fine(name, target, "not active")


def swap(host: HostObservation) -> PreflightFinding:
    name, target = "swap-active", "swap"
    if host.swaps:
        return warning(name, target, f"start switches off {', '.join(host.swaps)}: kubelet does not start with swap")
    return fine(name, target, "none in use")


def disk(host: HostObservation) -> Iterator[PreflightFinding]:
    name, target = "disk-space", "/var/lib"
    free = f"{host.free_bytes / (1 << 30):.1f} GiB free"
    told = warning if any(found.applied for found in host.slots.values()) else error  # the host has a node already
    if host.free_bytes < LEAST_BYTES:
        yield told(name, target, f"{free}: two root file systems and images need {LEAST_BYTES >> 30} GiB")
    elif 0 < host.free_inodes < LEAST_INODES:
        yield told(name, target, f"{host.free_inodes} inodes free: {LEAST_INODES} are needed")
    else:
        yield fine(name, target, free)


def cgroups(host: HostObservation) -> PreflightFinding:
    name, target = "cgroups", "/sys/fs/cgroup"
    if host.cgroup_version != 2:
        what = "version 1" if host.cgroup_version else "not mounted"
        return error(name, target, f"{what}: start the kernel with systemd.unified_cgroup_hierarchy=1")
    missing = [one for one in CONTROLLERS if one not in host.controllers]
    if missing:
        return error(
            name, target, f"no {', '.join(missing)}: remove cgroup_no_v1, cgroup_disable and v1 mounts from this host"
        )
    return fine(name, target, "version 2")


def nvidia(host: HostObservation) -> PreflightFinding:
    name, target = "nvidia-driver", "NVIDIA"
    seen = host.graphics
    if not seen.cards and not seen.devices:
        return fine(name, target, "no cards")
    if seen.devices and not seen.driver:
        return error(name, target, "devices in /dev, but no driver: its module is not loaded")
    if not seen.driver:
        return warning(name, target, f"{seen.cards} cards, but no driver: the node will not offer them")
    if not seen.devices:
        return warning(name, target, f"driver {seen.driver}, but no devices in /dev: run nvidia-modprobe")
    return fine(name, target, f"driver {seen.driver}, {seen.devices} devices")


def slots(host: HostObservation, goal: NodeGoal | None) -> Iterator[PreflightFinding]:
    """Yield findings about existing slots of this host, compared with the goal."""
    name = "nspawn-machine-provisioning"
    if host.resetting:
        yield error(name, "reset", "a reset has started and not finished: finish it with `unbounded-agent reset`")
    for slot, found in sorted(host.slots.items()):
        if found.broken:
            yield error(name, slot, f"{found.broken}: run `unbounded-agent reset` to start over")
        elif found.applied is not None and goal is not None and found.applied.goal.machine != goal.machine:
            theirs = found.applied.goal.machine
            yield error(name, slot, f"it is the node of Machine {theirs!r}: run `unbounded-agent reset` first")
        elif found.applied is not None:
            yield fine(name, slot, f"Kubernetes {found.applied.goal.kubernetes_version}")
        elif found.exists:
            yield warning(name, slot, "it is incomplete: start builds it again")
    if not host.resetting and not any(found.exists or found.applied for found in host.slots.values()):
        yield fine(name, "slots", "free")
