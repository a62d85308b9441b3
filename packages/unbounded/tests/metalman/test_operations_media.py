"""Boots from the virtual CD drive of a lab BMC: the image is inserted for one boot, and ejected at every end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final, Literal

import pytest
from aiohttp import web

from tests.metalman.support.netboot_host import LabHardware, NetbootHost, Story, living, result, stages_of
from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly, swift_now
from unbounded.api.machine import MACHINES
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.cache import Cache
from unbounded.metalman.media.tickets import MediaUrls, TicketKey, machine_of
from unbounded.metalman.redfish.bmc_interface import BmcAccount
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.metalman.virtual_media_boot import BootMedia
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride, HostPower, OverrideEnabled
from unbounded_lab.http import LabReply

KINDS: Final = ("HostReplace", "HostInspect", "HostErase", "HostRescue")
RESCUE: Final = {"authorizedKeys": "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+"}
LEASE: Final = {"ipv4": "10.0.0.5", "mac": "52:54:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
MEDIA: Final = {"spec": {"pxe": {"bootMode": "VirtualMedia", "dhcpLeases": [LEASE]}}}
NETWORK: Final = {"spec": {"pxe": {"bootMode": "Network"}}}
CLEANED_S: Final = 900.0  # the cleaner's longest pause, and then some


def urls() -> MediaUrls:
    found = MediaUrls("https://10.0.0.1:8443", timedelta(hours=1), swift_now)
    found.open(TicketKey(b"k" * 32))
    return found


class MediaCluster(Cluster):
    """A cluster whose writes are points at which a process can end."""

    def __init__(self) -> None:
        super().__init__()
        self.points = 0
        self.cut_at: int | None = None
        self.cut = asyncio.Event()

    def _note(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._note(kind, old, new)
        self.point()

    def point(self) -> None:
        self.points += 1
        if self.points == self.cut_at:
            self.cut.set()


class MediaBmc(LabBmc):
    """A BMC that fetches each image successfully, and notes what it fetched; its requests are points, too."""

    cluster: MediaCluster | None = None

    @property
    def inserted(self) -> str | None:
        return self.bmc.systems[0].image

    async def start(self) -> None:
        self.fetched: list[str] = []
        await super().start()

    fetch_s = 0.0
    fails = 0  # fetches that fail yet

    async def _fetch(self, url: str) -> bool:
        self.fetched.append(url)
        await asyncio.sleep(self.fetch_s)
        self.fails -= 1
        return self.fails < 0

    async def _reply(self, http: web.BaseRequest) -> LabReply | web.StreamResponse:
        if self.cluster is not None:
            self.cluster.point()
        try:
            return await super()._reply(http)
        finally:
            if self.cluster is not None:
                self.cluster.point()


class CdHardware(LabHardware):
    """A board that boots its virtual CD drive only while an image is in it."""

    def __init__(self, bmc: MediaBmc) -> None:
        super().__init__(bmc)
        self._media_bmc = bmc
        self._sources: list[str] = []
        bmc.host().board = self

    def boots(self) -> list[str]:
        return list(self._sources)

    def start(self, boot: HostBootOverride) -> None:
        is_empty = boot.source == "Cd" and self._media_bmc.inserted is None
        self._sources.append("Hdd" if is_empty else boot.source)

    def halt(self) -> None:
        """Nothing runs here."""

    def press_button(self) -> None:
        bmc = self._media_bmc
        asyncio.get_running_loop().call_later(1.0, lambda: bmc.host().board_ended(bmc.clock.now()))


@asynccontextmanager
async def host_of(
    cluster: Cluster, bmc: MediaBmc, story: Story | None = None
) -> AsyncIterator[tuple[str, NetbootHost, CdHardware]]:
    """A Machine that boots by virtual media, and its host."""
    (machine,) = await cluster.add(bmc)
    await cluster.api.patch(MACHINES, machine, MEDIA)
    hardware = CdHardware(bmc)
    async with living(cluster, machine, hardware, story or Story(leaves_s=30.0)) as host:
        yield machine, host, hardware


async def ask(cluster: Cluster, kind: str, machine: str, **spec: Any) -> str:
    parameters = RESCUE if kind == "HostRescue" else {}
    return await cluster.ask(kind, machine, parameters=dict(parameters), **spec)


def check_clean(bmc: MediaBmc) -> None:
    assert bmc.inserted is None, "an image stays in the drive"
    assert bmc.host().boot.enabled is OverrideEnabled.DISABLED


async def record_of(cluster: Cluster, machine: str) -> str | None:
    redfish = (await cluster.machine(machine)).status.redfish
    return None if redfish is None else redfish.media_boot


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_host_boots_from_its_drive_which_is_empty_at_the_end(kind: str) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with MediaBmc() as bmc, metalman(cluster, media_urls=urls()), host_of(cluster, bmc) as each:
            machine, host, hardware = each
            operation = await cluster.ended(await ask(cluster, kind, machine), within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert hardware.boots()[0] == "Cd"
            assert "Pxe" not in hardware.boots()
            assert [machine_of(url) for url in bmc.fetched] == [machine]
            assert await record_of(cluster, machine) is None
            check_clean(bmc)
            if kind == "HostReplace":
                assert host.sources == ["network", "disk"]
                assert stages_of(cluster, operation.name)[:4] == [
                    "ShuttingDown", "SettingBoot", "WaitingOn", "WaitingLoader",
                ]  # fmt: skip
            messages = [str(write.new["status"].get("message", "")) for write in cluster.written
                        if write.name == operation.name and "status" in write.new]  # fmt: skip
            assert not any("network" in text or "fetch its boot loader" in text for text in messages)
            assert any("the host to start the installer from its virtual CD drive" in text for text in messages)

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", ["SettingBoot", "WaitingLoader", "WaitingReport", "WaitingInstaller"])
def test_a_cancel_ejects_the_image(kind: str, stage: str) -> None:
    if (stage == "WaitingInstaller") is not (kind == "HostReplace") and stage.startswith("WaitingI"):
        return
    if stage == "WaitingReport" and kind == "HostReplace":
        return

    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=BmcFaults(slow_s=(0.3, 0.3))) as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc, Story(step_s=20.0)) as (machine, _, _),
        ):
            name = await ask(cluster, kind, machine)
            await cluster.in_stage(name, stage)
            await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
            operation = await cluster.ended(name, within_s=14_400.0)
            assert operation.status.reason in ("Cancelled", "Succeeded"), operation.status.message
            check_clean(bmc)
            assert await record_of(cluster, machine) is None

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HostReplace", "HostInspect"])
def test_an_image_that_arrives_after_a_cancel_is_ejected(kind: str) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc() as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc) as (machine, _, _),
        ):
            bmc.fetch_s = 200.0  # longer than a call to the BMC
            name = await ask(cluster, kind, machine)
            await cluster.in_stage(name, "SettingBoot")
            await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
            operation = await cluster.ended(name, within_s=14_400.0)
            assert operation.status.reason == "Cancelled", operation.status.message
            await asyncio.sleep(CLEANED_S)
            check_clean(bmc)
            assert await record_of(cluster, machine) is None

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("story", "reason"),
    [(Story(fails="two disks"), "InstallFailed"), (Story(until="LoaderFetched"), "InstallTimedOut")],
    ids=["fails", "hangs"],
)
def test_a_failure_ejects_the_image(story: Story, reason: str) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc() as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc, story) as (machine, _, _),
        ):
            operation = await cluster.ended(await ask(cluster, "HostReplace", machine), within_s=14_400.0)
            assert result(operation) == ("Failed", reason), operation.status.message
            check_clean(bmc)

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(BmcFaults(media="manager"), id="of the manager"),
        pytest.param(BmcFaults(media_refused="without-fields"), id="wants all fields"),
        pytest.param(BmcFaults(media_shown_after_s=4.0), id="shows late"),
        pytest.param(BmcFaults(second_ejection="refused"), id="refuses twice"),
        pytest.param(BmcFaults(override="fails-when-off", ignores_shutdown=True), id="only when On"),
    ],
)
def test_a_bmc_with_ways_of_its_own_boots_its_host(faults: BmcFaults) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=faults) as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc) as (machine, _, hardware),
        ):
            operation = await cluster.ended(await ask(cluster, "HostReplace", machine), within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert "Cd" in hardware.boots()
            check_clean(bmc)

    run_swiftly(scene(), limit_s=4 * 3600.0)


@pytest.mark.slow
def test_a_host_whose_image_is_lost_is_started_with_it_once_more() -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc() as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc, Story(step_s=1e6)) as (machine, host, hardware),
        ):
            name = await ask(cluster, "HostInspect", machine)
            await cluster.in_stage(name, "WaitingLoader")
            bmc.bmc.systems[0].image = None
            host.story.step_s = 3.0
            operation = await cluster.ended(name, within_s=14_400.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert hardware.boots()[:2] == ["Cd", "Cd"]
            assert len(bmc.fetched) == 2
            check_clean(bmc)

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
def test_a_host_that_never_starts_the_installer_fails_with_a_reason_of_its_own() -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=BmcFaults(ignores_override=True)) as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc) as (machine, _, _),
        ):
            operation = await cluster.ended(await ask(cluster, "HostReplace", machine), within_s=14_400.0)
            assert result(operation) == ("Failed", "DidNotBootMedia"), operation.status.message
            check_clean(bmc)

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "has_urls", "spec", "reason", "text"),
    [
        (BmcFaults(media="absent"), True, {}, "BMCRefused", "has no CD drive"),
        (BmcFaults(), False, {}, "UnsupportedOperation", "--media-certificate"),
        (
            BmcFaults(),
            True,
            {"pxe": {"dhcpLeases": []}, "network": {"ethernets": [{"name": "a", "mac": LEASE["mac"], "dhcp4": True}]}},
            "NetworkInvalid",
            "spec.network has no address for the installer",
        ),
    ],
    ids=["no drive", "no server", "no address"],
)
def test_a_boot_that_cannot_be_is_refused_before_the_host_is_touched(
    faults: BmcFaults, has_urls: bool, spec: dict[str, Any], reason: str, text: str
) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=faults) as bmc,
            metalman(cluster, media_urls=urls() if has_urls else None),
            host_of(cluster, bmc) as (machine, _, _),
        ):
            await cluster.api.patch(MACHINES, machine, {"spec": spec})
            operation = await cluster.ended(await ask(cluster, "HostReplace", machine))
            assert result(operation) == ("Failed", reason), operation.status.message
            assert text in (operation.status.message or "")
            assert bmc.power() is HostPower.ON
            assert not [event for event in bmc.history() if event.what == "pressed"]

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HostInspect", "HostReplace"])
def test_an_image_that_the_bmc_refuses_ends_the_operation_with_its_words(kind: str) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=BmcFaults(media_refused="plain")) as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc) as (machine, _, _),
        ):
            operation = await cluster.ended(await ask(cluster, kind, machine), within_s=7200.0)
            assert result(operation) == ("Failed", "BMCRefused"), operation.status.message
            assert "ActionParameterValueNotInList" in (operation.status.message or "")
            assert bmc.fetched, "the BMC read no URL"
            for url in bmc.fetched:
                tag = url.split("/")[-2].partition(".")[2]
                assert all(tag not in str(write.new) for write in cluster.written), "the URL is in the API"
            await asyncio.sleep(60.0)  # the last power-on may be accepted, and not complete yet
            assert bmc.power() is HostPower.ON
            check_clean(bmc)

    run_swiftly(scene())


@pytest.mark.slow
def test_a_bmc_that_could_not_fetch_its_image_is_asked_until_it_can() -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc() as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc) as (machine, _, _),
        ):
            bmc.fails = 6
            name = await ask(cluster, "HostReplace", machine)
            operation = await cluster.ended(name, within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert len(bmc.fetched) == 7
            assert "SettingBootToStay" not in stages_of(cluster, name)
            check_clean(bmc)

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["ShuttingDown", "SettingBoot", "WaitingOn", "WaitingLoader", "WaitingRepave"])
@pytest.mark.parametrize(("before", "after"), [(MEDIA, NETWORK), (NETWORK, MEDIA)], ids=["to network", "to media"])
def test_a_changed_boot_mode_leaves_no_image(stage: str, before: dict[str, Any], after: dict[str, Any]) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with (
            MediaBmc(faults=BmcFaults(slow_s=(0.3, 0.3))) as bmc,
            metalman(cluster, media_urls=urls()),
            host_of(cluster, bmc, Story(step_s=10.0)) as (machine, _, _),
        ):
            await cluster.api.patch(MACHINES, machine, before)
            name = await ask(cluster, "HostReplace", machine)
            await cluster.in_stage(name, stage)
            await cluster.api.patch(MACHINES, machine, after)
            operation = await cluster.ended(name, within_s=14_400.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            check_clean(bmc)
            assert await record_of(cluster, machine) is None

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
def test_an_image_of_an_operation_that_was_deleted_is_ejected_by_the_next_process() -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with MediaBmc() as bmc, host_of(cluster, bmc, Story(step_s=1e6)) as (machine, _, _):
            async with metalman(cluster, media_urls=urls()):
                name = await ask(cluster, "HostReplace", machine)
                await cluster.in_stage(name, "WaitingLoader")
            assert bmc.inserted is not None
            await cluster.api.patch(MACHINES, machine, {"status": {"activeOperation": None}}, subresource="status")
            await cluster.api.delete(MACHINE_OPERATIONS, name)
            async with metalman(cluster):  # one that serves no images, too
                await asyncio.sleep(60.0)
                assert bmc.inserted is None
                assert await record_of(cluster, machine) is None

    run_swiftly(scene(), limit_s=6 * 3600.0)


@pytest.mark.slow
def test_an_image_of_somebody_else_stays_where_none_is_to_be_inserted() -> None:
    foreign = "https://files.example.com/memtest.iso"

    async def scene() -> None:
        cluster = MediaCluster()
        async with MediaBmc() as bmc, host_of(cluster, bmc) as (machine, _, _):
            bmc.bmc.systems[0].image = foreign
            left = {"status": {"redfish": {"mediaBoot": "an-earlier-operation"}}}
            await cluster.api.patch(MACHINES, machine, left, subresource="status")
            async with metalman(cluster, media_urls=urls()):
                await asyncio.sleep(60.0)
                assert bmc.inserted == foreign
                assert await record_of(cluster, machine) is None
                operation = await cluster.ended(await ask(cluster, "HostInspect", machine), within_s=7200.0)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.inserted is None

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shows", "image", "record", "stays"),
    [
        ("name", "https://files.example.com/memtest.iso", "boot-1", True),
        ("nothing", "https://files.example.com/memtest.iso", "", True),
        ("name", "https://metalman.example.com/boot.iso", "", True),
        ("name", "https://metalman.example.com/boot.iso", "boot-1", False),
        ("nothing", "https://metalman.example.com/boot.iso", "boot-1", False),
    ],
)
def test_an_image_with_a_hidden_url_is_ejected_by_its_record_alone(
    shows: Literal["name", "nothing"], image: str, record: str, stays: bool
) -> None:
    async def scene() -> None:
        cluster = MediaCluster()
        async with MediaBmc() as bmc, host_of(cluster, bmc) as (name, _, _), BmcPool() as pool:
            bmc.bmc.systems[0].image = image
            await bmc.set_faults(media_shows=shows)
            if record:
                change = {"status": {"redfish": {"mediaBoot": record}}}
                await cluster.api.patch(MACHINES, name, change, subresource="status")
            machines = Cache(cluster.api, MACHINES)
            machine = await cluster.api.get(MACHINES, name)
            account = BmcAccount(bmc.url, bmc.username, bmc.password, cert_fingerprint=bmc.fingerprint)
            before = asyncio.get_running_loop().time() + 60.0
            await BootMedia(cluster.api, machines, urls()).eject(machine, "boot-1", pool.bmc(account), before)
            assert bmc.inserted == (image if stays else None)
            assert await record_of(cluster, name) is None

    run_swiftly(scene())


async def cut(kind: str, cut_at: int, turns: int = 0, *, mode_changes: bool = False) -> bool:
    """Run an operation whose process ends at a point, and its successor; return whether the first was cut."""
    cluster = MediaCluster()
    async with (
        MediaBmc() as bmc,
        host_of(cluster, bmc, Story(writes_s=10.0, leaves_s=9.0)) as (machine, host, hardware),
    ):
        bmc.cluster = cluster
        name = await ask(cluster, kind, machine)
        cluster.cut_at = cluster.points + cut_at
        async with metalman(cluster, media_urls=urls()):
            ended = asyncio.create_task(cluster.ended(name, within_s=7200.0))
            reached = asyncio.create_task(cluster.cut.wait())
            await asyncio.wait({ended, reached}, return_when=asyncio.FIRST_COMPLETED)
            is_cut = not ended.done()
            for _ in range(turns):
                await asyncio.sleep(0)
            ended.cancel()
            reached.cancel()
        if mode_changes:
            await cluster.api.patch(MACHINES, machine, NETWORK)
        async with metalman(cluster, media_urls=urls()):
            operation = await cluster.ended(name, within_s=7200.0)
            judge(operation, bmc, host, kind)
            assert bmc.inserted is None or await record_of(cluster, machine), "an image without a record"
            await asyncio.sleep(CLEANED_S)
            check_clean(bmc)
            assert await record_of(cluster, machine) is None
        assert len(host.installs) == (kind == "HostReplace")
        assert hardware.boots()[-1:] != ["Cd"] or kind == "HostErase"
        return is_cut


def judge(operation: MachineOperation, bmc: MediaBmc, host: NetbootHost, kind: str) -> None:
    assert result(operation) == ("Complete", "Succeeded"), operation.status.message
    assert bmc.bmc.access.refused_logins == 0
    assert len(set(host.installs)) == len(host.installs)


@pytest.mark.parametrize(
    ("kind", "stride"),
    [
        pytest.param("HostInspect", 7, marks=pytest.mark.slow, id="some points"),
        *(pytest.param(kind, 1, marks=[pytest.mark.soak, pytest.mark.timeout(7200)], id=kind) for kind in KINDS),
    ],
)
@pytest.mark.parametrize("mode_changes", [False, True], ids=["same mode", "to network"])
def test_a_process_that_ends_at_any_request_or_write_leaves_no_image(
    kind: str, stride: int, mode_changes: bool
) -> None:
    cuts = 1
    while run_swiftly(cut(kind, cuts, mode_changes=mode_changes), limit_s=6 * 3600.0):
        cuts += stride
    assert cuts > 30
