"""An installer's report of the hardware: recorded before the answer, which names the disk or refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import LOADERS, World, netboot_site, put
from tests.support.memory_api import MemoryApi
from unbounded.api.hardware import DiskFacts, DiskState, HardwareFacts, SystemFirmware
from unbounded.api.machine import MACHINES
from unbounded.api.machine_status import DiskErasure
from unbounded.api.meta import Kind
from unbounded.kube.api import ServerUnreachable
from unbounded.metalman.http.boot_service import (
    CloudInitEvent,
    FileRejected,
    HardwareReport,
    NotReadyYet,
    OnDisk,
    ProgressReport,
    Rendered,
    ReportAnswer,
)
from unbounded.metalman.netboot.model import BootImages, NetbootImage

T = TypeVar("T")

WITH_HINTS: Final[dict[str, Any]] = {"pxe": {"redfish": REDFISH, "rootDeviceHints": {"serialNumber": "S1"}}}
WITH_BMC: Final[dict[str, Any]] = {"pxe": {"redfish": REDFISH}}
SDA: Final = DiskFacts(
    name="sda",
    size_bytes=480_000_000_000,
    sector_bytes=512,
    serial_number="S1",
    by_id=("wwn-0xa1",),
    state=DiskState.BLANK,
)
FACTS: Final = HardwareFacts(cpus=4, disks=(SDA,), firmware=SystemFirmware(mode="UEFI", version="1.2"))
WRITE: Final = ReportAnswer(200, {"status": "ok", "action": "Write", "disk": "/dev/disk/by-id/wwn-0xa1"})


class Unreadable(MemoryApi):
    """Gives no object while it is away."""

    away = False

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        if self.away:
            raise ServerUnreachable("fault: away")
        return await super().get(kind, name, namespace=namespace)


async def reported(world: World, hardware: HardwareFacts = FACTS, *, final: bool = False) -> ReportAnswer:
    return await world.site.hardware(ADDRESS, world.prefix(), HardwareReport(hardware=hardware, final=final))


async def test_a_report_is_in_the_status_before_its_answer(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        boot = await world.replace()
        assert await reported(world) == WRITE
        machine = await world.api.get(MACHINES, "m1")
        hardware = machine.status.hardware
        assert hardware is not None
        assert (hardware.source, hardware.boot, hardware.disks) == ("Installer", boot, (SDA,))
        assert machine.status.netboot is not None
        netboot = machine.status.netboot
        assert (netboot.milestone, netboot.message) == (
            "InstallerStarted",
            "metalman has chosen /dev/disk/by-id/wwn-0xa1",
        )
        assert machine.status.target_disk is None  # recorded when it is written
        version = machine.metadata.resource_version
        assert await reported(world) == WRITE
        assert (await world.api.get(MACHINES, "m1")).metadata.resource_version == version


async def test_a_later_boot_says_what_differs_and_clears_what_is_gone(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        await reported(world)
        await world.stage("WaitingLoader", phase="Complete")
        await world.replace(name="second")
        other = DiskFacts(name="sda", serial_number="S2", size_bytes=4_000_000_000, sector_bytes=512, state="Blank")
        answer = await reported(world, HardwareFacts(disks=(other,), firmware=SystemFirmware(version="1.3")))
        assert answer.body["disk"] == "/dev/sda"
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.hardware is not None
        assert machine.status.hardware.cpus is None
        assert machine.status.hardware.firmware == SystemFirmware(version="1.3")
        (changed,) = (each for each in machine.status.conditions if each.type == "HardwareChanged")
        assert (changed.status, changed.reason) == ("True", "PartsMissing")
        assert changed.message.endswith("missing: disk S1 (480000 MB); new: disk S2 (4000 MB)")


async def test_a_missing_disk_is_awaited_and_then_refused(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_HINTS))
        await world.replace()
        none = HardwareFacts(cpus=4)
        answer = await reported(world, none)
        assert (answer.code, answer.body["action"]) == (200, "Wait")
        assert (await world.api.get(MACHINES, "m1")).status.hardware is None
        answer = await reported(world, none, final=True)
        assert answer.code == 409
        assert str(answer.body["error"]).startswith("no disk matches spec.pxe.rootDeviceHints (serialNumber=S1)")
        status = (await world.api.get(MACHINES, "m1")).status
        assert status.hardware is not None
        assert status.netboot is not None
        assert status.netboot.message == answer.body["error"]


async def test_the_image_size_of_the_report_counts(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        report = HardwareReport(hardware=FACTS, image_bytes=1 << 40)
        answer = await world.site.hardware(ADDRESS, world.prefix(), report)
        assert "too small for the image" in str(answer.body["error"])


async def test_disk_with_large_sectors_needs_an_image_and_an_installer_that_know_it(tmp_path: Path) -> None:
    facts = HardwareFacts(disks=(replace(SDA, sector_bytes=4096),))
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        report = HardwareReport(hardware=facts, large_sectors=True)
        answer = await world.site.hardware(ADDRESS, world.prefix(), report)
        assert (answer.code, str(answer.body["error"])[-30:]) == (409, "the image has no disk.img.4k.zst"[-30:])
        put(tmp_path / "large", {"disk.img.zst": "512", "disk.img.4k.zst": "4096"})
        assert isinstance(world.images.said, BootImages)
        disk = NetbootImage(tmp_path / "large", "sha256:3")
        world.images.said = BootImages(world.images.said.netboot, disk, LOADERS, disk_sha256="a" * 64)
        answer = await reported(world, facts)
        assert answer.code == 409
        assert "older netboot image writes only disks with sectors of 512" in str(answer.body["error"])
        assert await world.site.hardware(ADDRESS, world.prefix(), report) == WRITE
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), "disk.img.4k.zst"), OnDisk)
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), "disk.img.zst.sha256"), Rendered)
        wrong = await world.site.file(ADDRESS, world.prefix(), "disk.img.4k.zst.sha256")
        assert isinstance(wrong, FileRejected)  # the metadata has the digest of the other image


async def test_with_hints_the_image_is_served_only_after_the_report(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_HINTS))
        await world.replace()
        prefix = world.prefix()
        found = await world.site.file(ADDRESS, prefix, "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert found.code == 409
        await world.site.flush("m1")
        netboot = (await world.status()).status.netboot
        assert netboot is not None
        assert (netboot.milestone, netboot.message) == (None, found.text)
        size = await world.site.file(ADDRESS, prefix, "disk.img.gz.size")
        assert not isinstance(size, FileRejected) or size.code == 404
        assert await reported(world) == WRITE
        assert isinstance(await world.site.file(ADDRESS, prefix, "disk.img.gz"), OnDisk | Rendered)
        await world.stage("WaitingLoader", phase="Complete")
        await world.replace(name="second")
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), "disk.img.gz"), FileRejected)


async def test_a_refused_report_opens_no_image(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_HINTS))
        await world.replace()
        foreign = HardwareFacts(disks=(replace(SDA, state=DiskState.FOREIGN, contents="LVM"),))
        refused = await reported(world, foreign)
        assert refused.code == 409
        found = await world.site.file(ADDRESS, world.prefix(), "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert (found.code, found.text) == (409, refused.body["error"])
        assert await reported(world) == WRITE  # the disk was erased, and the installer started again
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), "disk.img.gz"), OnDisk)


async def test_a_spec_that_changes_after_the_report_closes_the_image(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        assert await reported(world) == WRITE
        await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"targetDisk": "/dev/disk/by-id/wwn-0xb2"}}})
        await world.caught_up()
        found = await world.site.file(ADDRESS, world.prefix(), "disk.img.gz")
        assert isinstance(found, FileRejected)
        assert found.text.startswith("targetDisk /dev/disk/by-id/wwn-0xb2 is no disk here")


async def test_the_disk_is_chosen_by_the_present_spec_and_not_by_a_cached_one(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        other = replace(SDA, name="sdb", serial_number="S2", by_id=("wwn-0xb2",))
        await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"targetDisk": "/dev/disk/by-id/wwn-0xb2"}}})
        answer = await reported(world, HardwareFacts(disks=(replace(SDA, state=DiskState.OWN), other)))
        assert answer.body["disk"] == "/dev/disk/by-id/wwn-0xb2"


async def test_an_api_without_answer_makes_a_host_with_hints_ask_again(tmp_path: Path) -> None:
    api = Unreadable()
    async with netboot_site(tmp_path, api=api) as world:
        await world.machine(machine_body(**WITH_HINTS))
        await world.replace()
        prefix = world.prefix()
        api.away = True
        assert isinstance(await world.site.file(ADDRESS, prefix, "disk.img.gz"), NotReadyYet)
        answer = await world.site.hardware(ADDRESS, prefix, HardwareReport(hardware=FACTS))
        assert (answer.code, answer.retry_after_s) == (503, 5)


async def test_a_host_inspect_names_no_disk_of_an_install(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(kind="HostInspect", stage="WaitingReport")
        writing = ProgressReport(stage="Writing", percent=1, disk="/dev/disk/by-id/wwn-0xb2")
        await world.site.progress(ADDRESS, world.prefix(), writing)
        assert (await world.status()).status.target_disk is None


async def test_a_report_after_the_image_or_of_no_boot_is_refused(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        prefix = world.prefix()
        await world.site.disable(ADDRESS, prefix)
        await world.caught_up()
        assert (await reported(world)).code == 409
        answer = await world.site.hardware(ADDRESS, "a" * 32, HardwareReport(hardware=FACTS))
        assert answer.code == 404


async def test_a_host_inspect_gets_no_image_no_user_data_and_no_token(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        boot = await world.replace(kind="HostInspect", stage="WaitingReport")
        prefix = world.prefix()
        for path in ("disk.img.gz", "cloud-init/user-data"):
            found = await world.site.file(ADDRESS, prefix, path)
            assert isinstance(found, FileRejected), path
            assert "installs nothing" in found.text
        assert (await world.site.attest(ADDRESS, prefix, b"{}")).code == 409
        assert (await world.site.disable(ADDRESS, prefix)).code == 409
        assert await reported(world) == ReportAnswer(200, {"status": "ok", "action": "PowerOff"})
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.hardware is not None
        assert machine.status.hardware.boot == boot
        assert machine.status.netboot is not None
        assert machine.status.netboot.milestone == "HardwareReported"


async def test_a_host_inspect_without_a_disk_is_reported_at_once(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_HINTS))
        await world.replace(kind="HostInspect", stage="WaitingReport")
        assert (await reported(world, HardwareFacts(cpus=4))).body["action"] == "PowerOff"


async def test_a_host_inspect_keeps_what_cloud_init_reported_of_the_installed_system(tmp_path: Path) -> None:
    at = "2026-01-01T00:00:00Z"
    done = {"type": "CloudInitDone", "status": "True", "reason": "Succeeded", "message": "", "lastTransitionTime": at}
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC) | {"status": {"conditions": [done]}})
        boot = await world.replace(kind="HostInspect", stage="WaitingReport")
        active = {"name": "replace", "uid": boot, "kind": "HostInspect", "executor": "metalman", "since": at}
        await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": active}}, subresource="status")
        await world.caught_up()
        event = CloudInitEvent(name="modules-final", event_type="finish", result="FAIL")
        assert (await world.site.cloud_init(ADDRESS, world.prefix(), event)).code == 409
        await reported(world)
        conditions = (await world.status()).status.conditions
        assert [(one.type, one.status) for one in conditions] == [("CloudInitDone", "True")]


FOREIGN: Final = replace(SDA, state=DiskState.FOREIGN, contents="ext4 LABEL=data")
ERASED: Final = DiskErasure(serial_number="S1", contents="ext4 LABEL=data")


async def test_a_foreign_disk_is_refused_with_the_command_that_permits_erasure(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace()
        answer = await reported(world, HardwareFacts(disks=(FOREIGN,)))
        command = "kubectl unbounded machine replace m1 --erase-disk S1"
        assert answer.code == 409
        assert str(answer.body["error"]).endswith(f"ext4 LABEL=data; the command at the end erases it\n{command}\n")
        netboot = (await world.status()).status.netboot
        assert netboot is not None
        assert (netboot.message, netboot.erasure) == (answer.body["error"], None)


async def test_a_foreign_disk_is_erased_once_and_for_its_operation_only(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(erase="S1")
        facts = HardwareFacts(disks=(FOREIGN,))
        erase = ReportAnswer(200, {**WRITE.body, "erase": "S1"})
        assert await reported(world, facts) == erase
        netboot = (await world.status()).status.netboot
        assert netboot is not None
        assert netboot.erasure == ERASED
        assert isinstance(await world.site.file(ADDRESS, world.prefix(), "disk.img.gz"), OnDisk | Rendered)
        assert await reported(world, facts) == erase  # the installer was restarted before it wrote
        own = HardwareFacts(disks=(replace(SDA, state=DiskState.OWN),))
        assert await reported(world, own) == WRITE
        other = await reported(world, HardwareFacts(disks=(replace(FOREIGN, contents="ZFS"),)))
        assert other.code == 409
        assert "consent is valid once" in str(other.body["error"])
        netboot = (await world.status()).status.netboot
        assert netboot is not None
        assert netboot.erasure == ERASED
        await world.stage("WaitingLoader", phase="Complete")
        await world.replace(name="second")
        assert (await reported(world, facts)).code == 409
        netboot = (await world.status()).status.netboot
        assert netboot is not None
        assert netboot.erasure is None


async def test_nobody_erases_without_a_name(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(erase="S1", by="")
        assert (await reported(world, HardwareFacts(disks=(FOREIGN,)))).code == 409


async def test_an_inspection_erases_nothing(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_BMC))
        await world.replace(kind="HostInspect", stage="WaitingReport", erase="S1")
        answer = await reported(world, HardwareFacts(disks=(FOREIGN,)))
        assert answer == ReportAnswer(200, {"status": "ok", "action": "PowerOff"})
