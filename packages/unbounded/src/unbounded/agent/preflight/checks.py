"""Checks of a host, and of the services that the configuration names: from observations and answers to findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from unbounded.agent.model import NodeGoal
from unbounded.agent.node.containerd import ARCHIVE
from unbounded.agent.node_spec import NO_IMAGE
from unbounded.agent.preflight.observations import HostObservation, NetworkFault, ServiceAnswer
from unbounded.agent.preflight.report import PreflightFinding, Severity, error, fine, warning
from unbounded.agent.steps.kernel import KUBELET, REMEDY
from unbounded.agent.steps.packages import MANAGERS, PROGRAMS
from unbounded.join.agent_config import AgentConfig

LEAST_BYTES: Final = 8 << 30
LEAST_INODES: Final = 200_000  # a root file system has about 30,000, and there are two
LEAST_SYSTEMD: Final = 239  # needed for SystemCallFilter in .nspawn files
ARCHITECTURES: Final = ("x86_64", "aarch64")
TRIED: Final = ("debian", "ubuntu", "azurelinux", "mariner", "fedora", "rhel")
CONTROLLERS: Final = ("cpu", "memory", "pids")  # kubelet does not start without these


def host_findings(
    host: HostObservation, spec: NodeGoal | None, *, debootstrap: bool = False
) -> Iterator[PreflightFinding]:
    """Yield the findings about a host.

    Args:
        spec: of the node; None where the configuration cannot be read.
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
    yield from slots(host, spec)


def privileged(host: HostObservation) -> PreflightFinding:
    name, target = "is-privileged-user", "user"
    if host.uid != 0:
        return error(name, target, "start must run as root, for example with sudo")
    return fine(name, target, "root")


def packages(host: HostObservation, *, debootstrap: bool) -> Iterator[PreflightFinding]:
    desired = [*PROGRAMS, *(["debootstrap"] if debootstrap else [])]
    missing = [program for program in desired if program not in host.programs]
    name, target = "host-packages", "packages"
    if not missing:
        yield fine(name, target, f"{', '.join(desired)} are installed")
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
        severity = fine if known else warning
        message = host.system or "no ID in /etc/os-release"
        yield severity(name, "system", message if known else f"{message}: the agent has not been tested on this system")


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
    severity = warning if any(found.applied for found in host.slots.values()) else error  # the host has a node already
    if host.free_bytes < LEAST_BYTES:
        yield severity(name, target, f"{free}: two root file systems and images need {LEAST_BYTES >> 30} GiB")
    elif 0 < host.free_inodes < LEAST_INODES:
        yield severity(name, target, f"{host.free_inodes} inodes free: {LEAST_INODES} are needed")
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
    graphics = host.graphics
    if not graphics.cards and not graphics.devices:
        return fine(name, target, "no cards")
    if graphics.devices and not graphics.driver:
        return error(name, target, "devices in /dev, but no driver: its module is not loaded")
    if not graphics.driver:
        return warning(name, target, f"{graphics.cards} cards, but no driver: the node will not offer them")
    if not graphics.devices:
        return warning(name, target, f"driver {graphics.driver}, but no devices in /dev: run nvidia-modprobe")
    return fine(name, target, f"driver {graphics.driver}, {graphics.devices} devices")


def slots(host: HostObservation, spec: NodeGoal | None) -> Iterator[PreflightFinding]:
    """Yield findings about existing slots of this host, compared with the goal."""
    name = "nspawn-machine-provisioning"
    if host.resetting:
        yield error(name, "reset", "a reset has started and not finished: finish it with `unbounded-agent reset`")
    for slot, found in sorted(host.slots.items()):
        if found.broken:
            yield error(name, slot, f"{found.broken}: run `unbounded-agent reset` to start over")
        elif found.applied is not None and spec is not None and found.applied.goal.machine != spec.machine:
            theirs = found.applied.goal.machine
            yield error(name, slot, f"it is the node of Machine {theirs!r}: run `unbounded-agent reset` first")
        elif found.applied is not None:
            yield fine(name, slot, f"Kubernetes {found.applied.goal.kubernetes_version}")
        elif found.exists:
            yield warning(name, slot, "it is incomplete: start builds it again")
    if not host.resetting and not any(found.exists or found.applied for found in host.slots.values()):
        yield fine(name, "slots", "free")


ARTIFACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "kubernetes-artifacts": ("kubelet", "kubectl", "kube-proxy"),
    "cri-artifacts": ("containerd", "runc", "crictl", "sandbox"),
    "cni-artifacts": ("cni",),
}
_REFUSED: Final = (401, 403)


def api_server(reached: ServiceAnswer) -> PreflightFinding:
    """Accept any answer but a 5xx as that of an API server: before the host has joined, 401 and 403 are expected."""
    name = "api-server-reachable"
    if reached.fault:
        return error(name, reached.key, _answer_text(reached))
    if reached.status >= 500:
        return error(name, reached.key, f"it answers {reached.status}: it is not ready")
    return fine(name, reached.key, f"it answers {reached.status}")


def image(reached: ServiceAnswer | None, *, debootstrap: bool) -> PreflightFinding:
    """Report a rejected login as a warning: `start` reads the cluster's Secrets later, when the host has joined.

    Args:
        reached: None where the configuration names no image.
    """
    name = "oci-image-reachable"
    if reached is None and not debootstrap:
        return warning(name, "OCIImage", f"not checked, as the Machine may name one: {NO_IMAGE}")
    if reached is None:
        return fine(name, "OCIImage", "not needed: the root file system comes from debootstrap")
    if reached.status in _REFUSED:
        later = "start reads the logins of containerd.pullSecrets when the host has joined"
        return warning(name, reached.what, f"{_answer_text(reached)} ({_named(reached)}); {later}")
    return _artifact(name, reached)


def artifact(reached: ServiceAnswer) -> PreflightFinding:
    """Check a file of a release; `what` begins with its name."""
    own = reached.what.partition(" ")[0]
    return _artifact(next(name for name, artifacts in ARTIFACTS.items() if own in artifacts), reached)


def sandbox(reached: ServiceAnswer | None, *, has_image: bool) -> PreflightFinding:
    """Check the archive of the sandbox image, which a node image may contain.

    Args:
        reached: None where no mirror is named for it.
        has_image: the root file system comes from a node image, whose files are unknown until it is unpacked.
    """
    name = "cri-artifacts"
    if reached is None:
        named = "no mirror is configured for it (Downloads.Sandbox)"
        if has_image:
            return fine(name, "sandbox", f"{named}: the node image must contain {ARCHIVE}")
        return error(name, "sandbox", f"{named}, and debootstrap does not provide it")
    found = artifact(reached)
    if has_image and found.severity is Severity.ERROR and reached.status in (403, 404, 410):
        return warning(name, found.target, f"{found.message}; the node image must contain {ARCHIVE}")
    return found


def _artifact(name: str, reached: ServiceAnswer) -> PreflightFinding:
    if not reached.cached and (reached.fault or not 200 <= reached.status < 300):
        authority = ": CaBundle must contain its authority" if reached.fault is NetworkFault.UNTRUSTED else ""
        return error(name, reached.what, f"{_answer_text(reached)}{authority} ({_named(reached)})")
    there = "it is on this host" if reached.cached else "available"
    if reached.unchecked:
        remedy = (
            "publish it there" if name == "kubernetes-artifacts" else f"publish it there, or set {reached.key}.SHA256"
        )
        return warning(name, reached.what, f"{there}, but unverified: no sha256 is published beside it; {remedy}")
    return fine(name, reached.what, there)


def _named(reached: ServiceAnswer) -> str:
    """Return the configuration keys that name the service."""
    return f"{reached.key}, through {reached.proxy}" if reached.proxy else reached.key


def _answer_text(reached: ServiceAnswer) -> str:
    if reached.fault:
        return reached.fault.value
    if reached.status in (404, 410):
        return f"it does not exist: {reached.status}"
    if reached.status in _REFUSED:
        return f"this host has no permission: {reached.status}"
    return f"the answer is {reached.status}"


def configuration(config: AgentConfig, unknown_keys: Iterable[str], *, joined: bool) -> Iterator[PreflightFinding]:
    """Yield findings about a valid configuration.

    Args:
        joined: the host has a certificate of its own.
    """
    name, odd = "agent-config", False
    for words in unknown_keys:
        odd = True
        yield warning(name, "configuration", words)
    if config.kubelet.auth.exec_credential is not None and not joined:
        odd = True
        by_hand = "kubectl certificate approve NAME"
        yield warning(
            name,
            "Kubelet.Auth.ExecCredential",
            f"machina approves only requests of bootstrap tokens: start waits until an administrator runs `{by_hand}`",
        )
    if not odd:
        yield fine(name, "configuration", "no errors")


def attestation(
    config: AgentConfig, host: HostObservation, reached: ServiceAnswer | None
) -> Iterator[PreflightFinding]:
    """Yield findings about attestation; none where a token or a program is configured."""
    name = "attestation"
    if not config.attest.url:
        return
    if not host.tpm:
        yield error(name, "TPM", "/dev/tpmrm0 does not exist: enable the TPM 2.0 in the firmware, or configure a token")
    if reached is not None:
        severity = (
            error if reached.fault in (NetworkFault.WRONG, NetworkFault.UNTRUSTED, NetworkFault.NO_TLS) else warning
        )
        if reached.fault:
            yield severity(
                name, reached.key, f"{_answer_text(reached)}; the URL exists only during a replacement of the host"
            )
        elif host.tpm:
            yield fine(name, reached.key, f"it answers {reached.status}")


def not_checked(names: Iterable[str]) -> Iterator[PreflightFinding]:
    """Yield findings for checks that need a configuration, where there is no valid one."""
    for name in names:
        yield warning(name, "configuration", "not checked: the configuration is invalid")
