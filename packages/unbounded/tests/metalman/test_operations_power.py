"""Effects of host operations on a machine: conditions, boot override, grace, and the number of calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from tests.metalman.support.site import Cluster, Written, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.conditions import ConditionType
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation
from unbounded_lab.bmc.faults import RESET_TYPES, BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride, HostPower, OverrideEnabled

FROM_NETWORK: Final = HostBootOverride(OverrideEnabled.CONTINUOUS, "Pxe", "UEFI")
MOST_REQUESTS: Final = 12  # for one reboot of a BMC without faults, log-in and log-out included


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def pressed(bmc: LabBmc) -> list[str]:
    return [event.detail for event in bmc.history() if event.what == "pressed"]


def boots(bmc: LabBmc) -> list[str]:
    return [event.detail for event in bmc.history() if event.what == "boot"]


# Conditions


@pytest.mark.slow
def test_powered_off_follows_a_reboot_and_is_gone_after_it() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(boot_s=20.0) as bmc, metalman(cluster):  # a stage that is over in a moment shows nothing
            (machine,) = await cluster.add(bmc)
            assert result(await cluster.done("HostReboot", machine)) == ("Complete", "Succeeded")
            steps = cluster.conditions_over_time(machine, ConditionType.POWERED_OFF)
            assert steps == [None, ("False", "PoweringOff"), ("True", "PoweringOn"), None]

    run_swiftly(scene())


@pytest.mark.slow
def test_powered_off_stays_after_a_power_off_until_a_power_on() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            assert result(await cluster.done("HostPowerOff", machine)) == ("Complete", "Succeeded")
            await asyncio.sleep(3600)
            assert await cluster.condition(machine, ConditionType.POWERED_OFF) == ("True", "PoweredOff")
            assert result(await cluster.done("HostPowerOn", machine)) == ("Complete", "Succeeded")
            steps = cluster.conditions_over_time(machine, ConditionType.POWERED_OFF)
            assert steps == [None, ("False", "PoweringOff"), ("True", "PoweredOff"), ("True", "PoweringOn"), None]

    run_swiftly(scene())


# Boot override


@pytest.mark.slow
def test_machine_without_a_boot_request_starts_from_disk() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            bmc.host().boot = FROM_NETWORK
            assert result(await cluster.done("HostReboot", machine)) == ("Complete", "Succeeded")
            assert boots(bmc) == ["Hdd"]
            assert bmc.host().boot.enabled is OverrideEnabled.DISABLED
            assert await cluster.condition(machine, ConditionType.BOOT_ORDER_CONFIG_SUPPORTED) is None

    run_swiftly(scene())


@pytest.mark.slow
@pytest.mark.parametrize("override", ["refused", "dropped", "fails-when-off"])
def test_bmc_without_boot_order_is_noted_and_its_host_started(override: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        kind = ConditionType.BOOT_ORDER_CONFIG_SUPPORTED
        async with LabBmc(faults=BmcFaults(override=override)) as bmc, metalman(cluster):  # type: ignore[arg-type]  # a Literal
            (machine,) = await cluster.add(bmc)
            bmc.host().boot = FROM_NETWORK
            assert result(await cluster.done("HostReboot", machine, name="first")) == ("Complete", "Succeeded")
            assert boots(bmc) == ["Pxe"]
            assert await cluster.condition(machine, kind) == ("False", "NotSupported")
            await bmc.set_faults(override="kept")
            assert result(await cluster.done("HostReboot", machine, name="second")) == ("Complete", "Succeeded")
            assert boots(bmc) == ["Pxe", "Hdd"]
            assert await cluster.condition(machine, kind) == ("True", "Supported")

    run_swiftly(scene())


@pytest.mark.slow
def test_lost_boot_override_change_is_retried_before_the_start() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(power=HostPower.OFF, faults=BmcFaults(lost_before=1)) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            bmc.host().boot = FROM_NETWORK
            assert result(await cluster.done("HostPowerOn", machine)) == ("Complete", "Succeeded")
            assert boots(bmc) == ["Hdd"]
            assert await cluster.condition(machine, ConditionType.BOOT_ORDER_CONFIG_SUPPORTED) is None

    run_swiftly(scene())


# Grace


@asynccontextmanager
async def ended(kind: str, faults: BmcFaults, **parameters: str) -> AsyncIterator[tuple[LabBmc, MachineOperation]]:
    cluster = Cluster()
    async with LabBmc(faults=faults) as bmc, metalman(cluster):
        (machine,) = await cluster.add(bmc)
        yield bmc, await cluster.done(kind, machine, parameters=parameters)


@pytest.mark.slow
def test_force_skips_the_grace() -> None:
    async def scene() -> None:
        async with ended("HostReboot", BmcFaults(), force="true") as (bmc, operation):
            assert result(operation) == ("Complete", "Succeeded")
            assert pressed(bmc) == ["ForceOff", "On"]

    run_swiftly(scene())


@pytest.mark.slow
def test_host_that_ignores_shutdown_is_forced_off_after_the_grace_period() -> None:
    async def scene() -> None:
        async with ended("HostPowerOff", BmcFaults(ignores_shutdown=True), graceSeconds="20") as (bmc, operation):
            assert result(operation) == ("Complete", "Succeeded")
            first, second = (event.at for event in bmc.history() if event.what == "pressed")
            assert pressed(bmc) == ["GracefulShutdown", "ForceOff"]
            assert second - first == pytest.approx(20, abs=1.5)

    run_swiftly(scene())


def without(*names: str) -> tuple[str, ...]:
    return tuple(name for name in RESET_TYPES if name not in names)


@pytest.mark.slow
def test_bmc_without_graceful_shutdown_gets_force_off_at_once() -> None:
    async def scene() -> None:
        faults = BmcFaults(reset_types=without("GracefulShutdown", "PushPowerButton"))
        async with ended("HostReboot", faults) as (bmc, operation):
            assert result(operation) == ("Complete", "Succeeded")
            assert pressed(bmc) == ["ForceOff", "On"]
            asked, *_ = (event.at for event in bmc.history() if event.what == "pressed")
            assert asked - bmc.bmc.journal[0].at < 3

    run_swiftly(scene())


@pytest.mark.slow
def test_bmc_without_force_off_is_rejected_with_its_reset_types() -> None:
    async def scene() -> None:
        async with ended("HostPowerOff", BmcFaults(ignores_shutdown=True, reset_types=without("ForceOff"))) as (
            bmc,
            operation,
        ):
            assert result(operation) == ("Failed", "BMCRefused")
            message = operation.status.message or ""
            assert f"{bmc.url}: system 1 supports no reset type for ForceOff; it lists On, ForceOn" in message

    run_swiftly(scene())


@pytest.mark.slow
def test_unknown_device_id_is_rejected_with_the_available_ones() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="several-systems") as bmc, metalman(cluster):
            machine, _ = await cluster.add(bmc, deviceID="1")
            operation = await cluster.done("HostReboot", machine)
            assert result(operation) == ("Failed", "BMCRefused")
            assert "set deviceID to one of: Node1, Node2" in (operation.status.message or "")
            assert pressed(bmc) == []

    run_swiftly(scene())


def test_a_reboot_asks_little_of_a_bmc() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            async with metalman(cluster):
                (machine,) = await cluster.add(bmc)
                assert result(await cluster.done("HostReboot", machine)) == ("Complete", "Succeeded")
            requests = [(each.method, each.path) for each in bmc.bmc.journal]
            assert len(requests) <= MOST_REQUESTS, requests
            assert requests[-1][0] == "DELETE"

    run_swiftly(scene())


# Counters


async def count(cluster: Cluster, machine: str, reboots: int) -> None:
    await cluster.api.patch(MACHINES, machine, {"spec": {"operations": {"rebootCounter": reboots}}})


@pytest.mark.slow
def test_reboot_counter_creates_one_named_operation_and_updates_status() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            for value in (1, 2):
                await count(cluster, machine, value)
                await cluster.counted(machine, value)
                assert result(await cluster.operation(f"{machine}-reboot-{value}")) == ("Complete", "Succeeded")
            assert boots(bmc) == ["Hdd", "Hdd"]

    run_swiftly(scene())


@pytest.mark.slow
def test_a_counter_that_is_ahead_by_more_is_one_reboot() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await count(cluster, machine, 5)
            await cluster.counted(machine, 5)
            assert boots(bmc) == ["Hdd"]

    run_swiftly(scene())


def apart_from_inventories(cluster: Cluster) -> list[Written]:
    """Return all writes but those of what a BMC knows of its machine, which is read once a day."""

    def hardware(body: dict[str, Any] | None) -> object:
        return (body or {}).get("status", {}).get("hardware")

    return [write for write in cluster.written if hardware(write.old) == hardware(write.new)]


@pytest.mark.slow
def test_failed_reboot_advances_its_counter_and_is_not_retried() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="accepts-and-does-nothing") as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await count(cluster, machine, 1)
            await cluster.counted(machine, 1)
            assert result(await cluster.operation(f"{machine}-reboot-1")) == ("Failed", "NoEffect")
            await asyncio.sleep(60)
            writes = apart_from_inventories(cluster)
            await asyncio.sleep(3600)
            assert apart_from_inventories(cluster) == writes

    run_swiftly(scene())
