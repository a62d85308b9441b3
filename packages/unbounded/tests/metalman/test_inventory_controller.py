"""Inventories of BMCs in `status.hardware`: what a reading changes, when a BMC is read, and what it gives way to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from tests.operations.building import slot_of
from unbounded.api.core import SECRETS
from unbounded.api.hardware import (
    DiskFacts,
    FirmwareVersion,
    HardwareFacts,
    HardwareStatus,
    PowerSupplyFacts,
    ProcessorFacts,
    SystemIdentity,
)
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.metalman.bmc_access import USELESS_FOR_S
from unbounded.metalman.hardware_merge import hardware_change, merged, reported
from unbounded.metalman.inspection import inspected, is_repetition
from unbounded.metalman.inventory_controller import BUSY, DAY, RETRY, SETTLE_S, SPREAD_S, next_reading
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded_lab import machines as lab_machines
from unbounded_lab.bmc.local import LabBmc

AT, LATER = "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"
DAY_S = DAY.total_seconds()
DRIVES = (DiskFacts(name="bay0", serial_number="d-1", health="OK"), DiskFacts(name="bay1", wwn="0x50a", health="Bad"))
PROCESSOR = ProcessorFacts(model="A model", sockets=2)
READ = HardwareFacts(
    system=SystemIdentity(manufacturer="Maker", product="Model"),
    cpus=8,
    processor=PROCESSOR,
    memory_bytes=64,
    disks=DRIVES,
    firmware_inventory=(FirmwareVersion(name="BIOS", version="1"),),
    power_supplies=(PowerSupplyFacts(name="PSU 1", health="OK"),),
)
REPORT = HardwareFacts(
    system=SystemIdentity(manufacturer="Reported"),
    cpus=6,
    disks=(
        DiskFacts(name="sda", serial_number=" D-1", state="Own"),
        DiskFacts(name="sdb", wwn="naa.50A", state="Foreign", contents="ext4"),
        DiskFacts(name="sdc", serial_number="of the SAN", state="Blank"),
    ),
)


def a_report() -> HardwareStatus:
    return inspected(REPORT, "Installer", AT, "boot-1")  # type: ignore[arg-type]  # a StrEnum is its text


def test_a_first_reading_becomes_the_hardware() -> None:
    new = merged(None, Inventory(READ), AT)
    assert (new.source, new.boot, new.at, new.cpus, new.disks) == ("Redfish", None, AT, 8, DRIVES)


def test_redfish_adds_to_a_report_of_an_installer_and_changes_nothing_in_it() -> None:
    old = a_report()
    new = merged(old, Inventory(READ), LATER)
    assert (new.source, new.boot, new.at, new.cpus) == ("Installer", "boot-1", AT, 6)
    assert new.system == SystemIdentity(manufacturer="Reported", product="Model")
    assert (new.memory_bytes, new.processor) == (64, PROCESSOR)
    assert [(disk.name, disk.state, disk.contents) for disk in new.disks] == [
        (disk.name, disk.state, disk.contents) for disk in old.disks
    ]
    assert [disk.health for disk in new.disks] == ["OK", "Bad", None]
    assert (new.firmware_inventory, new.power_supplies) == (READ.firmware_inventory, READ.power_supplies)
    assert new.digest != old.digest
    assert merged(new, Inventory(READ), LATER) == new, "the same again changes nothing"
    without_drives = merged(new, Inventory(HardwareFacts()), LATER)
    assert [disk.health for disk in without_drives.disks] == [None] * 3


def test_a_report_keeps_what_only_the_bmc_knew() -> None:
    assert reported(None, a_report()) == a_report()
    for old in (merged(None, Inventory(READ), AT), merged(a_report(), Inventory(READ), AT)):
        new = reported(old, a_report())
        assert (new.source, new.boot, new.cpus) == ("Installer", "boot-1", 6)
        assert [disk.health for disk in new.disks] == ["OK", "Bad", None]
        assert (new.firmware_inventory, new.power_supplies) == (READ.firmware_inventory, READ.power_supplies)
        assert is_repetition(new, reported(new, a_report())), "the same report again changes nothing"


def test_parts_that_cannot_be_read_stay_as_they_were() -> None:
    failed = dict.fromkeys(("Processors", "Storage", "FirmwareInventory", "PowerSupplies"), "500")
    for old in (merged(None, Inventory(READ), AT), merged(a_report(), Inventory(READ), AT)):
        new = merged(old, Inventory(HardwareFacts(memory_bytes=64), failed), LATER)
        for name in ("processor", "disks", "firmware_inventory", "power_supplies", "cpus"):
            assert getattr(new, name) == getattr(old, name), name


def test_a_patch_clears_what_is_gone_and_an_equal_reading_writes_nothing() -> None:
    old = merged(None, Inventory(READ), AT)
    assert hardware_change(old, old) is None
    change = hardware_change(old, merged(old, Inventory(HardwareFacts(system=SystemIdentity(product="New"))), LATER))
    assert change is not None
    assert change["system"] == {"manufacturer": None, "product": "New", "serialNumber": None, "uuid": None}
    assert [change[name] for name in ("disks", "processor", "powerSupplies", "boot")] == [None] * 4
    assert (change["source"], change["at"]) == ("Redfish", LATER)


TIMES = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))  # hypothesis adds it


@given(st.text(max_size=40), TIMES, st.timedeltas(timedelta(0), timedelta(days=9)))
def test_each_machine_is_read_once_a_day_at_its_own_time(uid: str, last: datetime, passed: timedelta) -> None:
    hardware, now = merged(None, Inventory(READ), last.isoformat()), last + passed
    due = next_reading(hardware, uid, None, now)
    assert last < due <= last + DAY
    assert next_reading(hardware, uid, due, due) == due + DAY
    assert next_reading(hardware, uid, last, now) == due, "this process or an earlier one has read it"


def test_a_machine_without_facts_of_redfish_is_read_now() -> None:
    now = datetime(2026, 5, 1, tzinfo=UTC)
    assert next_reading(None, "uid", now, now) == now
    assert next_reading(a_report(), "uid", None, now) == now
    assert next_reading(a_report(), "uid", now, now) > now, "a BMC that knows nothing is not asked again and again"
    assert next_reading(merged(a_report(), Inventory(READ), AT), "uid", None, now) > now


# ---- with a BMC


def run(scene: Coroutine[Any, Any, None], *, limit_s: float = 7200.0) -> None:
    run_swiftly(scene, limit_s=limit_s)


async def hardware_of(cluster: Cluster, name: str) -> HardwareStatus | None:
    return (await cluster.machine(name)).status.hardware


def test_a_new_machine_is_read_and_then_once_a_day() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(SETTLE_S - 1)
            assert bmc.bmc.requests == 0, "nothing waits for it"
            await asyncio.sleep(SPREAD_S + 30)
            first = await hardware_of(cluster, machine)
            assert first is not None
            assert (first.source, first.cpus, len(first.disks)) == ("Redfish", 64, 2)
            assert [disk.health for disk in first.disks] == ["OK", "OK"]
            assert not list(bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults)), "its session is given back"
            await asyncio.sleep(DAY_S)
            second = await hardware_of(cluster, machine)
            assert second is not None
            assert (second.digest, second.at > first.at) == (first.digest, True)
            assert bmc.bmc.access.logins == 2
            assert bmc.bmc.requests <= 2 * 26

    run(scene(), limit_s=3 * DAY_S)


def test_a_host_in_stock_is_read_at_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster, reads_per_s=5.0):
            await cluster.api.create(SECRETS, lab_machines.secret(bmc), namespace=NAMESPACE)
            (manifest,) = lab_machines.machines(bmc)
            del manifest["spec"]["pxe"]["image"]
            name = (await cluster.api.create(MACHINES, manifest)).name
            await asyncio.sleep(SETTLE_S / 4)
            status = (await cluster.machine(name)).status
            assert status.hardware is not None
            assert status.power is not None
            assert (status.hardware.source, status.power.state) == ("Redfish", "On")

    run(scene())


def test_a_restarted_metalman_reads_nothing_that_was_read_today() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            async with metalman(cluster):
                (machine,) = await cluster.add(bmc)
                await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
                assert await hardware_of(cluster, machine) is not None
            asked = bmc.bmc.requests
            async with metalman(cluster):
                await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            assert bmc.bmc.requests == asked

    run(scene())


def test_a_reading_gives_way_to_an_operation_and_comes_after_it() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(shutdown_s=400.0) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done("HostPowerOff", machine)
            assert operation.status.phase == "Complete"
            assert cluster.ended_at(operation.name) > SETTLE_S + SPREAD_S, "a reading was due before"
            assert await hardware_of(cluster, machine) is None
            await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            assert await hardware_of(cluster, machine) is not None
        read = [each.path for each in bmc.bmc.journal].index("/redfish/v1/Systems/1/Processors")
        assert all(each.method == "GET" or "Sessions" in each.path for each in list(bmc.bmc.journal)[read:])

    run(scene())


def test_no_reading_begins_while_the_site_is_busy() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            busy = [f"busy-{number}" for number in range(BUSY)]
            for name in busy:
                await cluster.api.create(MACHINES, {"metadata": {"name": name}, "spec": {}})
                slot = {"status": {"activeOperation": slot_of("recreation", kind="NodeRecreation", executor="agent")}}
                await cluster.api.patch(MACHINES, name, slot, subresource="status")
            await asyncio.sleep(SETTLE_S + SPREAD_S + 200)
            assert await hardware_of(cluster, machine) is None
            await cluster.api.delete(MACHINES, busy[0])
            await asyncio.sleep(SPREAD_S + 30)
            assert await hardware_of(cluster, machine) is not None

    run(scene())


def test_a_bmc_that_breaks_off_is_read_again_after_a_pause() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(1)  # its certificate is pinned
            await bmc.set_faults(busy_above_per_s=5.0)
            await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            partial = await hardware_of(cluster, machine)
            assert partial is not None
            assert (partial.system is not None, partial.power_supplies) == (True, ()), "what it answered is kept"
            await bmc.set_faults(busy_above_per_s=None)
            await asyncio.sleep(RETRY.base_s + 30)
            whole = await hardware_of(cluster, machine)
            assert whole is not None
            assert len(whole.power_supplies) == 2
            assert not (await cluster.machine(machine)).status.conditions, "no alarm"

    run(scene())


def test_a_wrong_password_is_offered_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            version = await cluster.set_password(bmc, "wrong")
            await asyncio.sleep(DAY_S / 2)
            redfish = (await cluster.machine(machine)).status.redfish
            assert redfish is not None
            assert redfish.refused_secret_version == version
            assert bmc.bmc.access.refused_logins == 1
            await cluster.set_password(bmc, bmc.password)
            await asyncio.sleep(DAY_S / 2)
            assert await hardware_of(cluster, machine) is not None

    run(scene(), limit_s=3 * DAY_S)


def test_a_host_in_stock_is_read_soon_after_its_login_is_corrected() -> None:
    """A claim waits for it; other Machines are read again after five minutes."""

    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            await cluster.api.create(SECRETS, lab_machines.secret(bmc), namespace=NAMESPACE)
            await cluster.set_password(bmc, "wrong")
            (manifest,) = lab_machines.machines(bmc)
            del manifest["spec"]["pxe"]["image"]
            name = (await cluster.api.create(MACHINES, manifest)).name
            await asyncio.sleep(30)
            assert bmc.bmc.access.refused_logins == 1
            await cluster.set_password(bmc, bmc.password)
            await asyncio.sleep(USELESS_FOR_S + SETTLE_S / 4)
            assert await hardware_of(cluster, name) is not None

    run(scene())


def test_a_disk_that_the_bmc_no_longer_lists_stays_an_alarm() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            first = await hardware_of(cluster, machine)
            assert first is not None
            assert first.bmc is not None
            disk = next(part for part in first.bmc.parts if part.kind == "disk")
            third = msgspec.structs.replace(disk, name="Z9", identities=("disk serial number z9",))
            before = {"hardware": {"bmc": {"parts": msgspec.to_builtins((*first.bmc.parts, third))}}}
            await cluster.api.patch(MACHINES, machine, {"status": before}, subresource="status")
            await asyncio.sleep(2 * DAY_S)
            (condition,) = (await cluster.machine(machine)).status.conditions
            assert (condition.type, condition.status, condition.reason) == ("HardwareChanged", "True", "PartsMissing")
            assert condition.message.endswith("missing: disk Z9")

    run(scene(), limit_s=4 * DAY_S)


def test_an_installers_report_gets_what_only_the_bmc_knows() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            report = {"hardware": msgspec.to_builtins(a_report())}
            await cluster.api.patch(MACHINES, machine, {"status": report}, subresource="status")
            await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            found = await hardware_of(cluster, machine)
            assert found is not None
            assert (found.source, found.boot, found.cpus) == ("Installer", "boot-1", 6)
            assert [disk.state for disk in found.disks] == ["Own", "Foreign", "Blank"]
            assert (len(found.power_supplies), len(found.firmware_inventory)) == (2, 3)
            again = {"hardware": {"boot": "boot-2", "powerSupplies": None}}
            await cluster.api.patch(MACHINES, machine, {"status": again}, subresource="status")
            await asyncio.sleep(SETTLE_S + SPREAD_S + 30)
            found = await hardware_of(cluster, machine)
            assert found is not None
            assert (found.boot, len(found.power_supplies)) == ("boot-2", 2), "another report is completed, too"

    run(scene())
