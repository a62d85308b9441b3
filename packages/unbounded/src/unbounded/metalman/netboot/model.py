"""Requested network boots and the servers' observations of them, as frozen data, and the interfaces of network boot.

The interfaces are to images on disk, facts of the cluster, attestation, and MACs of neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final, Protocol

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.hardware import HardwareStatus
from unbounded.api.machine import LayoutRecord, Machine, NetbootMilestone
from unbounded.api.machine_status import DiskErasure, DiskErasureRecord, RescueSystem
from unbounded.api.operation import MachineOperation
from unbounded.metalman.dhcp.model import Loader
from unbounded.metalman.http.boot_service import NotReadyYet, ReportAnswer
from unbounded.metalman.netboot.template_context import TemplateContext


class BootWindow(Enum):
    """Access that a requested boot has now."""

    INSTALLING = "installing"  # boot options, the loader's files by source address, everything under the prefix
    SUSPENDED = "suspended"  # no files for now, and under the prefix the answer to retry: the boot may resume
    # the image is written: no boot options and no files by source address; the prefix still works
    FINISHING = "finishing"


@dataclass(frozen=True, slots=True)
class BootRequest:
    """Requested network boot of a Machine.

    Args:
        uid: UID of the Machine.
        boot: the UID of the operation that requests it, or `repave-N`; the value of `status.netboot.boot`.
        operation: name of the operation; empty for a counter.
        executor: executor of that operation, such as metalman/lab.
        repave: the counter's value that the end of this boot reaches; None for an operation, whose executor counts.
        inspects: the boot is for a HostInspect.
        erases: the boot is for a HostErase.
        rescues: the boot is for a HostRescue.
        by_media: the host boots from virtual media, and neither DHCP nor its source address gives it a file.
        media_open: the BMC may read the image.
    """

    machine: str
    uid: str
    boot: str
    window: BootWindow
    operation: str = ""
    executor: str = ""
    repave: int | None = None
    inspects: bool = False
    erases: bool = False
    rescues: bool = False
    by_media: bool = False
    media_open: bool = False

    @property
    def installs(self) -> bool:
        """Return whether the installer may get an image, user data and a token."""
        return not self.inspects and not self.erases and not self.rescues

    @property
    def no_install(self) -> str:
        """Return the answer to a request that only an install makes, where the boot is none."""
        kind = "HostErase" if self.erases else "HostRescue" if self.rescues else "HostInspect"
        return f"this boot is for a {kind}, which installs nothing"


@dataclass(frozen=True, slots=True)
class BootVisit:
    """Request that belongs to a boot."""

    request: BootRequest
    machine: Machine


@dataclass(frozen=True, slots=True)
class ConditionState:
    """Content of a condition."""

    status: ConditionStatus
    reason: ConditionReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class BootObservation:
    """Observations since the last write; see `status_writer.merge_observations`.

    Args:
        boot: the boot that they belong to; empty for conditions that belong to none.
        loads: number of times that the server sent the loader.
        image: reference of the image that the server has; None where it is not known.
        conditions: updates of conditions; None removes one.
        repave: the counter's value that was reached.
        disk: path of the disk that the installer writes.
        hardware: the installer's inspection.
        erasure: the disk with data of others that the installer may write.
        erasures: disks of a HostErase whose state has changed.
        is_erased: a disk of the last install is lost: the status claims no installed system any more.
        layout: the layout that was compiled for the boot.
        rescue: the SSH server of a rescue system.
    """

    boot: str = ""
    milestone: NetbootMilestone | None = None
    percent: int | None = None
    loads: int = 0
    message: str | None = None
    image: str | None = None
    image_digest: str | None = None
    conditions: Mapping[ConditionType, ConditionState | None] = field(default_factory=dict)
    repave: int | None = None
    disk: str | None = None
    hardware: HardwareStatus | None = None
    erasure: DiskErasure | None = None
    erasures: tuple[DiskErasureRecord, ...] = ()
    is_erased: bool = False
    layout: LayoutRecord | None = None
    rescue: RescueSystem | None = None

    @property
    def urgent(self) -> bool:
        """Return whether there is more than a percentage and its message, which can wait for the next ones."""
        progress = self.milestone in (None, NetbootMilestone.IMAGE_WRITING)
        return (
            not progress or bool(self.loads or self.conditions) or self.repave is not None or self.hardware is not None
        )


MILESTONE_RANKS: Final[Mapping[str, int]] = {
    milestone: rank
    for rank, milestone in enumerate(
        (
            NetbootMilestone.OFFERED,
            NetbootMilestone.LOADER_FETCHED,
            NetbootMilestone.KERNEL_FETCHED,
            NetbootMilestone.INSTALLER_STARTED,
            NetbootMilestone.HARDWARE_REPORTED,
            NetbootMilestone.IMAGE_WRITING,
            NetbootMilestone.FAILED,  # a host that the user restarts may still reach the next one
            NetbootMilestone.DISKS_ERASED,
            NetbootMilestone.RESCUE_STARTED,
            NetbootMilestone.RESCUE_ENDED,
            NetbootMilestone.IMAGE_WRITTEN,
            NetbootMilestone.CONTESTED,
        ),
        1,
    )
}


def milestone_rank(milestone: str | None) -> int:
    """Return the order of a milestone: 0 for None, the highest for one that a later version wrote."""
    return 0 if milestone is None else MILESTONE_RANKS.get(milestone, len(MILESTONE_RANKS) + 1)


@dataclass(frozen=True, slots=True)
class NetbootImage:
    """OCI image that is completely on disk. `root` is its directory `disk`, whose content never changes."""

    root: Path
    digest: str

    @property
    def is_on_disk(self) -> bool:
        """Return whether the files are still on disk; an administrator may have removed the folder."""
        return self.root.is_dir()


@dataclass(frozen=True, slots=True)
class BootImages:
    """Images that a Machine boots from.

    Args:
        loaders: the boot files that `metadata.yaml` of the netboot image names.
        disk_sha256: hex digest of the disk image from the `metadata.yaml` beside it; empty if the file has none.
        disk_reference: of `disk`, as the Machine had it; empty for images of an earlier process, which has recorded it.
    """

    netboot: NetbootImage
    disk: NetbootImage
    loaders: Mapping[Loader, str]
    disk_sha256: str = ""
    disk_reference: str = ""

    @property
    def is_on_disk(self) -> bool:
        """Return whether the files of both images are still on disk."""
        return self.netboot.is_on_disk and self.disk.is_on_disk


@dataclass(frozen=True, slots=True)
class UefiLoader:
    """Boot file by which UEFI firmware starts without a network.

    Args:
        key: its key in `metadata.yaml`.
        machine_type: UEFI's name of the processors, a part of the names of loaders (UEFI 2.10, 3.5.1.1).
    """

    loader: Loader
    key: str
    machine_type: str


UEFI_LOADERS: Final[Mapping[str, UefiLoader]] = {
    "amd64": UefiLoader(Loader.X64, "dhcpBootImageName", "X64"),
    "arm64": UefiLoader(Loader.ARM64, "bootFiles.arm64", "AA64"),
}
"""By `spec.pxe.architecture`."""


def no_uefi_loader(architecture: str) -> str:
    """Return the fault of a netboot image without a loader for the UEFI firmware of an architecture."""
    return f"names no loader for {architecture} UEFI ({UEFI_LOADERS[architecture].key} in its metadata.yaml)"


class BootImageSource(Protocol):
    def of(self, machine: Machine) -> BootImages | NotReadyYet:
        """Return the images of a Machine, or `NotReadyYet` with the reason if they are not on disk. Does not block."""
        ...


class FactUnknown(Exception):
    """A value that templates need is not available now; the message names it."""


class TemplateContextSource(Protocol):
    async def template_context(self, machine: Machine, serve_url: str, *, private: bool) -> TemplateContext:
        """Return the values that templates get besides the Machine.

        Args:
            serve_url: the URL of this boot, with its prefix.
            private: the client knows the prefix; only then may the file contain a token.
        Raises:
            FactUnknown: a value is not available now.
            Rejected: the user has to correct a setting, which the message names.
        """
        ...


class Attester(Protocol):
    async def answer(
        self, machine: Machine, request: bytes, boot: str, operation: MachineOperation | None
    ) -> ReportAnswer:
        """Answer an attestation request of a TPM that claims to be the Machine's, in a boot that an operation or a
        counter requests.
        """
        ...


MacLookup = Callable[[str], str | None]
"""Lookup of the MAC behind an IPv4 address, in lower case; None if the kernel has no entry."""
