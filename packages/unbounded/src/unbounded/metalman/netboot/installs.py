"""Installs by the installer's report, before the first byte: the disk of an image, or the layout of a MachineProfile.

A layout is compiled again for each request from what the status has, so any replica serves it. The record of the boot
in `status.layout` says which one was announced. The refusals need no report: the executor and `plan` check them before
the host is changed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from unbounded.api.conditions import ConditionReason, ConditionType
from unbounded.api.hardware import HardwareFacts
from unbounded.api.machine import MACHINES, LayoutRecord, Machine
from unbounded.api.profile import MACHINE_PROFILES, MachineProfile
from unbounded.api.profile_check import ProfileFault
from unbounded.kube.api import Api, ApiError, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.secret_text import secrets_of_profile
from unbounded.metalman import disk_choice
from unbounded.metalman.boot_override import boots_by_media
from unbounded.metalman.console_text import redacted
from unbounded.metalman.host_network import installer_fault, missing_nics, network_faults
from unbounded.metalman.http.boot_service import FileRejected, HardwareReport, NotReadyYet, Rendered, ReportAnswer
from unbounded.metalman.layout.compiler import LayoutRequest, check_signed, compile_layout
from unbounded.metalman.layout.disk_matching import DiskConsent
from unbounded.metalman.layout.model import (
    DiskLayout,
    LayoutChoice,
    LayoutImage,
    LayoutRefused,
    LayoutWait,
)
from unbounded.metalman.netboot.boot_files import has_network_config
from unbounded.metalman.netboot.boot_requests import boot_record
from unbounded.metalman.netboot.image_paths import content_etag
from unbounded.metalman.reasons import NETWORK_INVALID, NO_IMAGE, PROFILE_INVALID
from unbounded.operations.executor_protocol import Refusal

UNREPORTED: Final = FileRejected(
    409,
    "spec.pxe.rootDeviceHints: the image is sent after the installer has reported the hardware; that of an older "
    "netboot image never does: use an image of this release, or spec.pxe.targetDisk instead of the hints",
)
UNPLANTED: Final = FileRejected(
    409,
    "the Machine has a network configuration, which the installer of an older netboot image does not write: use an "
    "image of this release",
)
BY_PROFILE: Final = FileRejected(
    409,
    "a Machine with spec.pxe.profileRef is installed from rootfs.tar.zst, and other Machines from the image of a whole "
    "disk; an older netboot image knows no profiles: use an image of this release",
)
NO_LAYOUT: Final = FileRejected(409, "no layout of the present profile was compiled for this boot")
UNAWARE: Final = (
    "the installer of an older netboot image writes only disks with sectors of 512; use a netboot image of this release"
)
WITHHELD: Final = "a report that metalman withholds: it may show secrets of the MachineProfile, which cannot be read"
LAYOUT: Final = "layout"
REMEMBERED_BOOTS: Final = 1024
RETRY_S: Final = 5
_PERSISTENT: Final = "/dev/disk/"
Record = Callable[[str, LayoutRecord | None], Awaitable[ReportAnswer | None]]

log = Log("metalman.netboot")


def choose_install_disk(
    machine: Machine, boot: str, erase: tuple[str, ...], report: HardwareReport, sectors: Collection[int]
) -> disk_choice.DiskChoice:
    """Choose the disk of an install, if the host also has the network cards of the Machine's network.

    A card may appear as late as a disk.

    Args:
        erase: serial numbers of the disks that the operation permits to be erased.
        sectors: sector sizes of the disks that there is an image for.
    """
    obstacle = network_obstacle(machine, report.hardware)
    if obstacle:
        return (
            disk_choice.DiskRefused(obstacle)
            if report.final or has_faults(machine)
            else disk_choice.AwaitedDisk(obstacle)
        )
    selection = _selection(machine, boot, erase)
    disks, size = report.hardware.disks, report.image_bytes
    choice = disk_choice.choose_disk(disks, selection, image_bytes=size, sectors=sectors, final=report.final)
    is_large = isinstance(choice, disk_choice.ChosenDisk) and choice.disk.sector_bytes == disk_choice.LARGE_SECTOR_BYTES
    if isinstance(choice, disk_choice.ChosenDisk) and is_large and not report.large_sectors:
        return disk_choice.DiskRefused(
            f"disk {choice.disk.name} has sectors of {disk_choice.LARGE_SECTOR_BYTES} bytes: {UNAWARE}"
        )
    return choice


def network_obstacle(machine: Machine, hardware: HardwareFacts) -> str:
    """Return why a host with this hardware cannot have the Machine's network; empty if it can."""
    network = machine.spec.network
    if network is None:
        return ""
    return "; ".join(network_faults(network)) or missing_nics(network, hardware.nics)


def tpm_obstacle(machine: Machine, hardware: HardwareFacts) -> str:
    """Return why the installer of a host with this hardware stops before it writes; empty if its TPM is no reason."""
    kubernetes, tpm = machine.spec.kubernetes, hardware.tpm
    if kubernetes is None or kubernetes.bootstrap_token_ref is not None or (tpm is not None and tpm.version == "2.0"):
        return ""
    found = f"a TPM {tpm.version}" if tpm is not None and tpm.version else "no TPM"
    return (
        f"it has {found}, and gets its token by a TPM 2.0; without one, name a Secret in kubernetes.bootstrapTokenRef"
    )


def has_faults(machine: Machine) -> bool:
    return machine.spec.network is not None and bool(network_faults(machine.spec.network))


def layout_obstacle(machine: Machine, boot: str, *, rootfs: bool) -> FileRejected | None:
    """Return why a boot may not have an image, of a Machine with a profile or an image for one; None if it may."""
    pxe, record, hardware = machine.spec.pxe, machine.status.layout, machine.status.hardware
    if not rootfs or pxe is None or pxe.profile_ref is None:
        return BY_PROFILE
    is_compiled = record is not None and (record.boot, record.profile) == (boot, pxe.profile_ref.name)
    return None if is_compiled and hardware is not None and hardware.boot == boot else NO_LAYOUT


def write_obstacle(
    machine: Machine, boot: str, erase: tuple[str, ...], sectors: Collection[int], *, rootfs: bool = False
) -> FileRejected | None:
    """Return why a boot may not write a disk, by its report and the present spec; None if it may.

    A boot without a report has an older installer, which chooses by itself, cannot do that by hints, and writes no
    network configuration.

    Args:
        erase: serial numbers of the disks that the operation permits to be erased.
        sectors: sector sizes of the disks that there is an image for.
        rootfs: the image is the archive of the root file system, and not that of a whole disk.
    """
    hardware, pxe = machine.status.hardware, machine.spec.pxe
    if rootfs or (pxe is not None and pxe.profile_ref is not None):
        return layout_obstacle(machine, boot, rootfs=rootfs)
    if hardware is None or hardware.boot != boot:
        if has_network_config(machine):
            return UNPLANTED
        return UNREPORTED if pxe is not None and pxe.root_device_hints is not None else None
    obstacle = network_obstacle(machine, hardware)
    if obstacle:
        return FileRejected(409, obstacle)
    choice = disk_choice.choose_disk(hardware.disks, _selection(machine, boot, erase), sectors=sectors)
    return None if isinstance(choice, disk_choice.ChosenDisk) else FileRejected(409, choice.message)


def _selection(machine: Machine, boot: str, erase: tuple[str, ...]) -> disk_choice.DiskSelection:
    seen = boot_record(machine, boot)
    return disk_choice.DiskSelection.of(machine, erase, None if seen is None else seen.erasure)


def profile_name(machine: Machine) -> str:
    """Return the name of a Machine's MachineProfile; empty if it has none."""
    pxe = machine.spec.pxe
    return "" if pxe is None or pxe.profile_ref is None else pxe.profile_ref.name


def layout_request(
    machine: Machine,
    profile: MachineProfile,
    boot: str,
    erase: tuple[str, ...],
    image: LayoutImage,
    *,
    allow_scripts: bool,
) -> LayoutRequest:
    """Return what the layout of a Machine is compiled from, beside the disks.

    Args:
        boot: the boot that installs; empty for a forecast.
        erase: serial numbers of the disks that the operation permits to be erased.
    """
    last, pxe = machine.status.layout, machine.spec.pxe
    consent = DiskConsent(
        recorded=() if last is None else last.disks,
        erase=erase,
        used=last.erasures if last is not None and last.boot == boot else (),
        machine=machine.name if pxe is not None and pxe.redfish is not None else "",
    )
    return LayoutRequest(profile.name, profile.spec, machine.lasting_uid, consent, allow_scripts, image)


def layout_record(layout: DiskLayout, boot: str) -> LayoutRecord:
    """Return the record of a layout. A path that another disk may have at the next boot is left out."""
    paths = tuple(one.path if one.path.startswith(_PERSISTENT) else "" for one in layout.disks)
    return LayoutRecord(boot=boot, profile=layout.profile, digest=layout.digest, disks=paths, erasures=layout.erasures)


class BootLayouts:
    """Answers of one server to the reports and requests of installers of Machines with a profile.

    Args:
        allow_scripts: commands of profiles may run on hosts.
    """

    def __init__(self, api: Api, *, allow_scripts: bool) -> None:
        self._api = api
        self._allow_scripts = allow_scripts
        self._secrets: OrderedDict[str, frozenset[str]] = OrderedDict()  # of the profile, by boot

    async def answer(
        self,
        machine: Machine,
        boot: str,
        erase: tuple[str, ...],
        image: LayoutImage,
        report: HardwareReport,
        record: Record,
    ) -> ReportAnswer:
        """Compile the layout of a report, and record it.

        Args:
            record: writes the report with a message and a layout; returns an answer if it could not.
        """
        try:
            choice = await self._compiled(machine, boot, erase, image, report.hardware, final=report.final)
        except ApiError as error:
            return _unreadable(error, machine)
        if isinstance(choice, LayoutWait):
            return ReportAnswer(200, {"status": "ok", "action": "Wait", "message": choice.message})
        if isinstance(choice, LayoutRefused):
            return await record(choice.message, None) or ReportAnswer(409, {"error": choice.message})
        made = layout_record(choice, boot)
        refused = await record(f"metalman has compiled layout {choice.digest} of MachineProfile {choice.profile}", made)
        if refused is not None:
            return refused
        try:  # a write for a boot that has just ended is dropped
            seen = (await self._api.get(MACHINES, machine.name)).status.layout
        except ApiError as error:
            return _unreadable(error, machine)
        if seen is None or merged_record(seen, made) != seen:
            return ReportAnswer(503, {"error": "cannot record the layout now"}, RETRY_S)
        serials = ",".join(one.serial_number for one in choice.erasures)
        erases = {"erase": serials} if serials else {}
        log.info("layout compiled", machine=machine.name, boot=boot, layout=choice.digest, **erases)
        return ReportAnswer(200, {"status": "ok", "action": "Layout", "layout": choice.digest, **erases})

    async def text(
        self, name: str, boot: str, erase: tuple[str, ...], image: LayoutImage
    ) -> Rendered | NotReadyYet | FileRejected:
        """Return the text of the layout that was announced to a boot."""
        try:
            machine = await self._api.get(MACHINES, name)
            if not profile_name(machine):
                return FileRejected(404, "the Machine has no profile")
            hardware, record = machine.status.hardware, machine.status.layout
            if hardware is None or record is None or hardware.boot != boot or record.boot != boot:
                return NotReadyYet(RETRY_S, "the installer has not reported the hardware yet")
            choice = await self._compiled(machine, boot, erase, image, hardware, final=True)
        except ApiError as error:
            log.warning("cannot read the layout", error=error, machine=name)
            return NotReadyYet(RETRY_S, "cannot read the layout now")
        if not isinstance(choice, DiskLayout) or choice.digest != record.digest:
            return FileRejected(409, "the layout is not the announced one any more: the profile or the disks changed")
        content = choice.text.encode()
        return Rendered(content, content_etag(content), "text/plain; charset=utf-8")

    async def without_secrets(self, machine: Machine, boot: str, text: str) -> str:
        """Return a report of the installer without secrets of the commands in the Machine's profile.

        A command that fails is reported with the last line of its output.
        """
        if not text or not profile_name(machine):
            return text
        if boot not in self._secrets:  # another replica has compiled the layout
            layout = machine.status.layout
            try:
                await self._profile(machine, boot)
            except ApiError as error:
                if isinstance(error, NotFound) and (layout is None or layout.boot != boot):
                    return text  # no command has run
                log.warning("cannot read the profile", error=error, machine=machine.name)
                return WITHHELD
        return redacted(text.encode(), self._secrets[boot]).strip()

    async def _profile(self, machine: Machine, boot: str) -> MachineProfile:
        """Read the profile of a Machine, and remember its secrets for the reports of the boot.

        Raises:
            ApiError: it cannot be read.
        """
        profile = await self._api.get(MACHINE_PROFILES, profile_name(machine))
        self._secrets[boot] = self._secrets.get(boot, frozenset()) | secrets_of_profile(profile.spec)
        self._secrets.move_to_end(boot)
        if len(self._secrets) > REMEMBERED_BOOTS:
            self._secrets.popitem(last=False)
        return profile

    async def _compiled(
        self,
        machine: Machine,
        boot: str,
        erase: tuple[str, ...],
        image: LayoutImage,
        hardware: HardwareFacts,
        *,
        final: bool,
    ) -> LayoutChoice:
        """Compile the layout of a Machine, if the host has the network cards of the Machine's network."""
        if obstacle := network_obstacle(machine, hardware):
            return LayoutRefused(obstacle) if final or has_faults(machine) else LayoutWait(obstacle)
        try:
            profile = await self._profile(machine, boot)
        except NotFound:
            return LayoutRefused(f"spec.pxe.profileRef: there is no MachineProfile {profile_name(machine)}")
        request = layout_request(machine, profile, boot, erase, image, allow_scripts=self._allow_scripts)
        return compile_layout(request, hardware.disks, final=final)


def _unreadable(error: ApiError, machine: Machine) -> ReportAnswer:
    log.warning("cannot read the Machine or its profile", error=error, machine=machine.name)
    return ReportAnswer(503, {"error": "cannot read the Machine or its profile now"}, RETRY_S)


def merged_record(old: LayoutRecord | None, new: LayoutRecord) -> LayoutRecord:
    """Return the record after another layout of the same boot: permitted erasures stay, as consent is valid once."""
    if old is None or old.boot != new.boot:
        return new
    before = tuple(one for one in old.erasures if one not in new.erasures)
    return msgspec.structs.replace(new, erasures=(*before, *new.erasures))


def image_refusal(machine: Machine, *, installs: bool) -> Refusal | None:
    """Return why a Machine cannot boot the installer, or be installed, without an image; None if it can."""
    pxe = machine.spec.pxe
    if installs and pxe is not None and pxe.image is None:
        return Refusal(NO_IMAGE, "spec.pxe.image is absent: the host is in stock, and there is nothing to install")
    state = machine.current_condition(ConditionType.NETBOOT_IMAGE_READY)
    return None if state is None or state.reason != ConditionReason.NO_IMAGE else Refusal(NO_IMAGE, state.message)


def network_refusal(machine: Machine, *, installs: bool) -> Refusal | None:
    """Return why a Machine cannot boot the installer, or be installed, with its declared network; None if it can."""
    network = machine.spec.network
    faults = [*network_faults(network)] if installs and network is not None else []
    if boots_by_media(machine) and (fault := installer_fault(machine)):
        faults.append(fault)
    return Refusal(NETWORK_INVALID, "; ".join(faults)) if faults else None


def boots_signed_image(machine: Machine) -> bool:
    """Return whether the programs of the Machine's image are signed, as metalman's condition says."""
    return any(
        one.type == ConditionType.NETBOOT_IMAGE_READY and one.reason == ConditionReason.PULLED_SIGNED
        for one in machine.status.conditions
    )


def profile_refusal(machine: Machine, profile: MachineProfile) -> Refusal | None:
    """Return why the Machine's image cannot be installed by its profile; None if it can, whatever the disks are."""
    if not boots_signed_image(machine):
        return None
    try:
        check_signed(profile.spec)
    except ProfileFault as error:
        return Refusal(PROFILE_INVALID, f"MachineProfile {profile.name}: {error}")
    return None
