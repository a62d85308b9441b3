"""What a preflight looks at, as data: a host, and the answers of what its configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from unbounded.agent.model import Applied, Slot
from unbounded.agent.steps.sysctl import Refused


@dataclass(frozen=True)
class Graphics:
    """Args:
    cards: NVIDIA's on the PCI bus.
    devices: /dev/nvidia0 and so on.
    driver: version of the loaded kernel driver; empty without one.
    """

    cards: int = 0
    devices: int = 0
    driver: str = ""


@dataclass(frozen=True)
class Found:
    """What is found of a slot on the disk.

    Args:
        exists: there is a root file system, whole or not.
        running: its nspawn machine is up.
        broken: why what it was made from cannot be read; empty where it can.
    """

    exists: bool = False
    applied: Applied | None = None
    broken: str = ""
    running: bool = False


@dataclass(frozen=True)
class Host:
    """Args:
    system: ID of os-release, such as debian; like: what it is derived from.
    arch: as the kernel says it.
    init: name of the process with number 1.
    manager: the program that installs packages; empty without one that is known.
    programs: those that were looked for and are there.
    systemd: its version; 0 where it does not say.
    cgroup_version: 2, 1, or 0 without any.
    controllers: of the unified hierarchy.
    swaps: files and devices in use.
    docker: its units that are active.
    free_bytes, free_inodes: below /var/lib.
    unwritable: folders that start writes to and cannot.
    refused: kernel parameters with whose values kubelet does not start.
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
    refused: tuple[Refused, ...] = ()
    graphics: Graphics = Graphics()
    slots: Mapping[Slot, Found] = field(default_factory=dict)
    resetting: bool = False
    tpm: bool = False


class Trouble(StrEnum):
    """Why something on the network is not to be had: words without an address."""

    NONE = ""
    UNRESOLVED = "its name cannot be resolved"
    REFUSED = "nothing listens there: the connection is refused"
    SILENT = "no answer in time"
    UNREACHABLE = "it cannot be reached"
    UNTRUSTED = "its certificate is not trusted"
    UNTRUSTED_CA = "its certificate is not of Cluster.CaCertBase64"
    NO_TLS = "it does not speak TLS as it should"
    NO_IMAGE = "this is no name of an image, such as registry/repository:tag"
    WRONG = "what it answers makes no sense"


@dataclass(frozen=True)
class Reached:
    """One thing on the network, and how it answered.

    Args:
        what: for people, such as `kubelet 1.34.0`.
        key: of the configuration, where it is named.
        status: of HTTP; 0 where there was no answer.
        kept: it is in the cache of this host, and was not asked for.
        unchecked: nobody has published a sha256 of it, and the configuration names none.
        proxy: key of the proxy through which it is asked for; empty for a direct connection.
    """

    what: str
    key: str
    status: int = 0
    trouble: Trouble = Trouble.NONE
    kept: bool = False
    unchecked: bool = False
    proxy: str = ""
