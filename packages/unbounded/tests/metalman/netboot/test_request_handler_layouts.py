"""Installs by a MachineProfile: the layout is compiled from the report, recorded before the answer, and served."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from msgspec.structs import replace

from tests.api.test_profile_rules import MIRROR
from tests.metalman.layout.support import FOREIGN, OWN, disk, path
from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import NETBOOT_FILES, World, netboot_site, put
from unbounded.api.hardware import DiskFacts, HardwareFacts
from unbounded.api.machine import MACHINES, LayoutRecord
from unbounded.api.machine_status import DiskErasure
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.metalman.http.boot_service import (
    FileRejected,
    HardwareReport,
    NotReadyYet,
    OnDisk,
    ProgressReport,
    Rendered,
    ReportAnswer,
)
from unbounded.metalman.netboot.installs import BY_PROFILE, NO_LAYOUT, WITHHELD
from unbounded.metalman.replace_observation import erasure_evidence

A, B, C = disk("sda"), disk("sdb"), disk("sdc")
WITH_PROFILE: Final[dict[str, Any]] = {"pxe": {"redfish": REDFISH, "profileRef": {"name": "mirror"}}}
SPEC: Final = yaml.safe_load(MIRROR)


async def requested(world: World, spec: Any = SPEC, **boot: Any) -> str:
    """Request an install of a Machine with a profile, whose image has both files; give the boot."""
    await world.api.create(MACHINE_PROFILES, {"metadata": {"name": "mirror"}, "spec": spec})
    put(world.images.said.disk.root, {"rootfs.tar.zst": "of root", "rootfs.tar.zst.sha256": "digest"})  # type: ignore[union-attr]
    await world.machine(machine_body(**WITH_PROFILE))
    return await world.replace(**boot)


async def reported(world: World, *disks: DiskFacts, final: bool = False) -> ReportAnswer:
    return await world.site.hardware(
        ADDRESS, world.prefix(), HardwareReport(hardware=HardwareFacts(disks=disks), final=final)
    )


async def fetched(world: World, name: str) -> object:
    await world.caught_up()
    return await world.site.file(ADDRESS, world.prefix(), name)


async def recorded(world: World) -> LayoutRecord:
    record = (await world.api.get(MACHINES, "m1")).status.layout
    assert record is not None
    return record


async def test_a_layout_is_recorded_before_its_answer_and_served_with_its_digest(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        boot = await requested(world)
        assert isinstance(await fetched(world, "layout"), NotReadyYet)
        assert await fetched(world, "rootfs.tar.zst") == NO_LAYOUT
        assert await fetched(world, "disk.img.gz") == BY_PROFILE
        answer = await reported(world, A, B)
        record = await recorded(world)
        assert answer == ReportAnswer(200, {"status": "ok", "action": "Layout", "layout": record.digest})
        assert (record.boot, record.profile, record.erasures) == (boot, "mirror", ())
        assert record.disks == (path("sda"), path("sdb"))
        text = await fetched(world, "layout")
        assert isinstance(text, Rendered)
        assert hashlib.sha256(text.content).hexdigest() == record.digest
        assert isinstance(await fetched(world, "rootfs.tar.zst"), OnDisk)
        assert isinstance(await fetched(world, "rootfs.tar.zst.sha256"), OnDisk)
        assert await fetched(world, "disk.img.gz") == BY_PROFILE
        assert await reported(world, B, A) == answer  # the installer reports once more before it writes
        assert await recorded(world) == record
        await world.stage("WaitingCloudInit")
        assert isinstance(await fetched(world, "layout"), FileRejected)


async def test_the_disks_of_an_install_stay_those_of_the_profile_at_the_next(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await requested(world)
        await reported(world, B, C)
        await world.stage("WaitingLoader", phase="Complete")
        await world.replace(name="again")
        own = replace(B, state=OWN), replace(C, state=OWN)
        assert (await reported(world, A, *own)).body["action"] == "Layout"
        assert (await recorded(world)).disks == (path("sdb"), path("sdc"))
        gone = await reported(world, A, own[0])
        assert gone.body["action"] == "Wait"
        refused = await reported(world, A, own[0], final=True)
        assert refused.code == 409
        assert "spec.devices[1]" in str(refused.body["error"])


async def test_a_missing_disk_is_awaited_and_then_refused(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await requested(world)
        waits = await reported(world, A)
        assert (waits.code, waits.body["action"]) == (200, "Wait")
        refused = await reported(world, A, final=True)
        assert refused.code == 409
        machine = await world.api.get(MACHINES, "m1")
        assert machine.status.netboot is not None
        assert machine.status.netboot.message == refused.body["error"]
        assert machine.status.layout is None
        assert await fetched(world, "rootfs.tar.zst") == NO_LAYOUT


async def test_foreign_disks_are_written_with_consent_that_is_recorded_and_valid_once(tmp_path: Path) -> None:
    foreign = [replace(one, state=FOREIGN, contents="LVM") for one in (A, B)]
    async with netboot_site(tmp_path) as world:
        boot = await requested(world, erase="S-sda,S-sdb")
        answer = await reported(world, *foreign)
        assert answer.body["erase"] == "S-sda,S-sdb"
        erasures = tuple(DiskErasure(serial_number=f"S-{one.name}", contents="LVM") for one in (A, B))
        assert (await recorded(world)).erasures == erasures
        assert isinstance(await fetched(world, "layout"), Rendered)
        other = await reported(world, replace(foreign[0], contents="xfs"), foreign[1])
        assert "consent is valid once" in str(other.body["error"])
        assert (await recorded(world)).erasures == erasures
        machine = await world.api.get(MACHINES, "m1")
        assert erasure_evidence(machine, boot, "alice") == tuple(
            f"the erasure of disk {serial} was permitted: it held LVM; requested by alice or MachineProfile mirror"
            for serial in ("S-sda", "S-sdb")
        )
        assert erasure_evidence(machine, "another boot", "alice") == ()
    async with netboot_site(tmp_path / "without") as world:
        await requested(world)
        refused = await reported(world, *foreign)
        assert str(refused.body["error"]).endswith("--erase-disk S-sda\n")


async def test_a_layout_that_is_not_the_announced_one_is_not_served(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await requested(world)
        await reported(world, A, B)
        changed = {"spec": {"kernelParameters": {"sysctl": {"kernel.panic": "20"}}}}
        await world.api.patch(MACHINE_PROFILES, "mirror", changed)
        refused = await fetched(world, "layout")
        assert isinstance(refused, FileRejected)
        assert refused.code == 409


async def test_a_profile_that_is_not_there_and_one_with_scripts_are_refused(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(**WITH_PROFILE))
        await world.replace()
        missing = await reported(world, A, B)
        assert missing.body["error"] == "spec.pxe.profileRef: there is no MachineProfile mirror"
    async with netboot_site(tmp_path / "scripts") as world:
        await requested(world, SPEC | {"postDeployScript": "reboot"})
        assert "--allow-profile-scripts" in str((await reported(world, A, B)).body["error"])


async def test_a_layout_that_a_signed_image_cannot_have_is_refused_at_the_report(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, files={**NETBOOT_FILES, "statement.tmpl": "words"}) as world:
        await requested(world, SPEC | {"grubConfig": {"defaultGrubOptions": ["GRUB_CMDLINE_LINUX=quiet"]}})
        refused = await reported(world, A, B)
        assert refused.code == 409
        assert "spec.grubConfig.defaultGrubOptions[0]: a signed image" in str(refused.body["error"])
        assert (await world.api.get(MACHINES, "m1")).status.layout is None


async def test_an_esp_that_is_too_small_for_the_image_is_refused_at_the_report(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await requested(world)
        put(world.images.said.disk.root, {"rootfs.tar.zst.loader": f"{220 << 20}\n"})  # type: ignore[union-attr]
        refused = await reported(world, A, B)
        assert refused.code == 409
        assert "spec.devices[0].partitions[0].size: the loader of this image has 230.7 MB" in str(refused.body["error"])
        assert (await world.api.get(MACHINES, "m1")).status.layout is None


SCRIPT: Final = "curl -u deploy:Canary/one https://example.com\nregister --token canary-two\n"
SAID: Final = "sh script failed: + curl -u deploy:Canary/one https://me:canary-3@example.com --token canary-two"


async def message_after(world: World, report: ProgressReport) -> str:
    await world.site.progress(ADDRESS, world.prefix(), report)
    await world.site.flush("m1")
    status = (await world.api.get(MACHINES, "m1")).status
    assert status.netboot is not None
    return status.netboot.message or ""


@pytest.mark.parametrize("restarted", [False, True], ids=["the same replica", "another replica"])
async def test_a_failed_script_is_reported_without_its_secrets(tmp_path: Path, restarted: bool) -> None:
    async with netboot_site(tmp_path, allow_profile_scripts=True) as world:
        await requested(world, SPEC | {"postDeployScript": SCRIPT})
        await reported(world, A, B)
        if restarted:
            world.site._layouts._secrets.clear()
        report = ProgressReport(stage="Preparing", message=SAID, failed=True)
        assert await message_after(world, report) == (
            "Preparing: sh script failed: + curl -u deploy:[redacted] https://[redacted]@example.com --token [redacted]"
        )


async def test_a_report_that_may_show_secrets_of_a_lost_profile_is_withheld(tmp_path: Path) -> None:
    async with netboot_site(tmp_path, allow_profile_scripts=True) as world:
        await requested(world, SPEC | {"postDeployScript": SCRIPT})
        await reported(world, A, B)
        world.site._layouts._secrets.clear()
        await world.api.delete(MACHINE_PROFILES, "mirror")
        report = ProgressReport(stage="Preparing", message=SAID, failed=True)
        assert await message_after(world, report) == f"Preparing: {WITHHELD}"


async def test_a_machine_without_profile_gets_no_layout_and_no_archive(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        await world.machine(machine_body(pxe={"redfish": REDFISH}))
        await world.replace()
        assert (await reported(world, A)).body["action"] == "Write"
        assert isinstance(await fetched(world, "layout"), FileRejected)
        assert await fetched(world, "rootfs.tar.zst") == BY_PROFILE
