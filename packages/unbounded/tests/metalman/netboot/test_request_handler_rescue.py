"""The boot of a HostRescue: what the servers give it, and what they record of its SSH server."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.support.netboot_host import RESCUE
from tests.metalman.support.netboot_objects import ADDRESS, REDFISH, machine_body
from tests.metalman.support.netboot_site import World, netboot_site
from unbounded.api.hardware import HardwareFacts
from unbounded.api.machine_status import RescueSystem, host_key_fingerprint
from unbounded.metalman.http.boot_service import FileRejected, HardwareReport, OnDisk, ReportAnswer, RescueReport
from unbounded.metalman.http.requests import rescue_report

WITH_BMC: Final[dict[str, Any]] = {"pxe": {"redfish": REDFISH}}
HOST_KEY: Final = RESCUE["hostKey"]
OTHER_KEY: Final = HOST_KEY.replace("IHqcz", "IHqcA")
KEYS: Final = f"{OTHER_KEY} a\n{OTHER_KEY} b"
PARAMETERS: Final = {"authorizedKeys": KEYS, "minutes": "5"}
ANSWER: Final = ReportAnswer(200, {"status": "ok", "authorizedKeys": KEYS, "seconds": "300"})


async def rescuing(world: World, stage: str = "WaitingReport", kind: str = "HostRescue") -> str:
    """Have a HostRescue in a stage; gives the prefix of its boot."""
    await world.machine(machine_body(**WITH_BMC))
    await world.replace(kind=kind, stage=stage, parameters=PARAMETERS if kind == "HostRescue" else {})
    return world.prefix()


async def posted(world: World, prefix: str, key: str = HOST_KEY, *, ended: bool = False) -> ReportAnswer:
    answer = await world.site.rescue(ADDRESS, prefix, RescueReport(host_key=key, ended=ended))
    await world.caught_up()
    return answer


async def test_a_rescue_gets_keys_and_neither_image_nor_user_data_nor_token(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world)
        for path in ("disk.img.gz", "cloud-init/user-data"):
            assert isinstance(await world.site.file(ADDRESS, prefix, path), FileRejected), path
        assert isinstance(await world.site.file(ADDRESS, prefix, "vmlinuz"), OnDisk)
        assert (await world.site.attest(ADDRESS, prefix, b"{}")).code == 409
        assert (await world.site.disable(ADDRESS, prefix)).code == 409
        report = await world.site.hardware(ADDRESS, prefix, HardwareReport(hardware=HardwareFacts(cpus=4)))
        assert report == ReportAnswer(200, {"status": "ok", "action": "Rescue"})
        assert await posted(world, prefix) == ANSWER


async def test_the_status_has_the_host_key_before_the_keys_are_sent(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world)
        await world.site.rescue(ADDRESS, prefix, RescueReport(host_key=HOST_KEY))
        seen = (await world.status()).status.netboot
        assert seen is not None
        assert (seen.milestone, seen.rescue) == ("RescueStarted", RescueSystem(address=ADDRESS, host_key=HOST_KEY))
        assert f"ssh root@{ADDRESS}, host key {host_key_fingerprint(HOST_KEY)}" in (seen.message or "")
        before = (await world.status()).metadata.resource_version
        assert await posted(world, prefix) == ANSWER
        assert (await world.status()).metadata.resource_version == before


async def test_a_host_that_starts_again_reports_its_new_key(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world)
        await posted(world, prefix)
        assert await posted(world, prefix, OTHER_KEY) == ANSWER
        seen = (await world.status()).status.netboot
        assert seen is not None
        assert seen.rescue == RescueSystem(address=ADDRESS, host_key=OTHER_KEY)
        assert host_key_fingerprint(OTHER_KEY) in (seen.message or "")


async def test_a_rescue_that_the_user_ends_inside_gets_no_keys_any_more(tmp_path: Path) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world)
        await posted(world, prefix)
        assert (await posted(world, prefix, ended=True)).code == 200
        seen = (await world.status()).status.netboot
        assert seen is not None
        assert seen.milestone == "RescueEnded"
        assert (await posted(world, prefix)).code == 409


@pytest.mark.parametrize("stage", ["EndingRescue", "ShuttingDownRescue", "Restoring"])
async def test_a_rescue_that_is_over_gets_nothing(tmp_path: Path, stage: str) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world, "Rescuing")
        assert await posted(world, prefix) == ANSWER
        await world.stage(stage)
        assert (await posted(world, prefix)).code == 404


@pytest.mark.parametrize("kind", ["HostReplace", "HostInspect"])
async def test_another_boot_has_no_rescue_system(tmp_path: Path, kind: str) -> None:
    async with netboot_site(tmp_path) as world:
        prefix = await rescuing(world, kind=kind)
        assert (await posted(world, prefix)).code == 409
        assert (await world.status()).status.netboot is None


@pytest.mark.parametrize(
    "key", ["", "ssh-rsa AAAA", HOST_KEY[:-4], f"{HOST_KEY} root@host", HOST_KEY.replace("AAAAC3", "AAAAD3")]
)
def test_a_host_key_of_another_form_is_refused_by_name(key: str) -> None:
    with pytest.raises(ValueError, match="hostKey: must be a public key"):
        rescue_report(b'{"hostKey": "%s"}' % key.encode())
