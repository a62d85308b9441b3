"""Observations of a preflight, as data: a host, and the answers of network services."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.steps.kernel import RejectedParameter


@dataclass(frozen=True)
class Graphics:
    """NVIDIA hardware and driver of a host.

    Args:
        cards: NVIDIA's on the PCI bus.
        devices: /dev/nvidia0 and so on.
        driver: version of the loaded kernel driver; empty without one.
    """

    cards: int = 0
    devices: int = 0
    driver: str = ""


@dataclass(frozen=True)
class SlotObservation:
    """Observed state of a slot on the disk.

    Args:
        exists: there is a root file system, complete or not.
        running: its nspawn machine is up.
        broken: why the record of its build cannot be read; empty where it can.
    """

    exists: bool = False
    applied: BuildRecord | None = None
    broken: str = ""
    running: bool = False


@dataclass(frozen=True)
class HostObservation:
    """Observed state of a host.

    Args:
        system: ID of os-release, such as debian; like: its ID_LIKE.
        arch: in the kernel's words.
        init: name of the process with number 1.
        manager: the package manager; empty without a supported one.
        programs: required programs that are installed.
        systemd: its version; 0 where unknown.
        cgroup_version: 2, 1, or 0 without any.
        controllers: of the unified hierarchy.
        swaps: files and devices in use.
        docker: its active units.
        free_bytes, free_inodes: below /var/lib.
        unwritable: folders that start needs to write to and cannot.
        refused: kernel parameters with values that kubelet rejects.
        resetting: a reset has begun and not ended.
        tpm: there is one that the kernel manages.
    """

    uid: int = 0
    system: str = ""
    like: tuple[str, ...] = ()
    arch: str = ""
    init: str = ""
    manager: str = ""
    programs: frozenset[str] = frozenset()
    systemd: int = 0
    cgroup_version: int = 0
    controllers: frozenset[str] = frozenset()
    swaps: tuple[str, ...] = ()
    docker: tuple[str, ...] = ()
    free_bytes: int = 0
    free_inodes: int = 0
    unwritable: tuple[str, ...] = ()
    refused: tuple[RejectedParameter, ...] = ()
    graphics: Graphics = Graphics()
    slots: Mapping[Slot, SlotObservation] = field(default_factory=dict)
    resetting: bool = False
    tpm: bool = False


class NetworkFault(StrEnum):
    """Causes why a network service is unavailable, in words without an address."""

    NONE = ""
    UNRESOLVED = "its name cannot be resolved"
    REFUSED = "connection refused: nothing listens there"
    SILENT = "no answer in time"
    UNREACHABLE = "it cannot be reached"
    UNTRUSTED = "its certificate is not trusted"
    UNTRUSTED_CA = "its certificate is not signed by Cluster.CaCertBase64"
    NO_TLS = "its TLS handshake fails"
    NO_IMAGE = "this is not an image name, such as registry/repository:tag"
    WRONG = "its answer is invalid"


@dataclass(frozen=True)
class ServiceAnswer:
    """Answer of one network service.

    Args:
        what: for messages, such as `kubelet 1.34.0`.
        key: of the configuration that names it.
        status: of HTTP; 0 where there was no answer.
        kept: the host's cache has the content, so that there was no request.
        unchecked: the source publishes no sha256 of it, and the configuration names none.
        proxy: key of the request's proxy; empty for a direct connection.
    """

    what: str
    key: str
    status: int = 0
    fault: NetworkFault = NetworkFault.NONE
    cached: bool = False
    unchecked: bool = False
    proxy: str = ""
