"""FirmwareUpdate on a lab BMC: sent once, followed by its task, with the versions before and after as evidence."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.metalman.firmware_update import EVIDENCE_DONE
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc

pytestmark = pytest.mark.slow

IMAGE: Final = "https://images.example.com/BIOS-2.5.0.bin"
NEW_BIOS: Final = "after the update: BIOS 2.5.0"
OLD_BIOS: Final = "before the update: BIOS 2.4.1"


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def whats(operation: MachineOperation) -> set[str]:
    return {one.what for one in operation.status.evidence}


async def updated(cluster: Cluster, bmc: LabBmc, **parameters: str) -> MachineOperation:
    (machine,) = await cluster.add(bmc)
    return await cluster.done(
        "FirmwareUpdate", machine, parameters={"imageURI": IMAGE, "targets": "BIOS", **parameters}
    )


@pytest.mark.parametrize("faults", [BmcFaults(), BmcFaults(update_protocols=None), BmcFaults(lost_after=1)])
def test_an_update_is_sent_once_and_followed_to_its_end(faults: BmcFaults) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            operation = await updated(cluster, bmc)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.bmc.updates == [IMAGE]
            assert {OLD_BIOS, EVIDENCE_DONE, NEW_BIOS} <= whats(operation)
            assert bmc.history() == []

    run_swiftly(scene())


def test_an_update_says_that_the_reference_of_boots_is_older() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            reference = {"boot": "repave-1", "at": "2026-01-01T00:00:00Z"}
            await cluster.api.patch(
                MACHINES, machine, {"status": {"tpm": {"reference": reference}}}, subresource="status"
            )
            operation = await cluster.done("FirmwareUpdate", machine, parameters={"imageURI": IMAGE, "targets": "BIOS"})
            flags = "--accept-pcr 0 --accept-pcr 1 --accept-pcr 2 --accept-pcr 3"
            command = f"`kubectl unbounded machine replace {machine} {flags}` accepts other firmware"
            stale = f"status.tpm.reference is of 2026-01-01T00:00:00Z, before this update: {command}"
            assert [one for one in whats(operation) if "reference" in one] == [stale]

    run_swiftly(scene())


@pytest.mark.parametrize("gone_s", [390.0, 300.0])  # it answers with 503 for the rest
def test_a_bmc_that_loses_its_task_proves_the_update_by_its_version(gone_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(restart_s=400.0, restart_gone_s=gone_s)
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            image = "http://images.example.com/BMC-1.1.0.bin"
            operation = await updated(cluster, bmc, imageURI=image, targets="BMC")
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert bmc.bmc.updates == [image]
            assert {"before the update: BMC 1.0.0", EVIDENCE_DONE, "after the update: BMC 1.1.0"} <= whats(operation)

    run_swiftly(scene())


@pytest.mark.parametrize(
    ("faults", "parameters", "ends", "text"),
    [
        (
            BmcFaults(firmware_update="absent"),
            {},
            ("Failed", "BMCRefused"),
            "has no action #UpdateService.SimpleUpdate",
        ),
        (BmcFaults(update_protocols=("HTTP",)), {}, ("Failed", "BMCRefused"), "loads images by HTTP, not by HTTPS"),
        (
            BmcFaults(),
            {"targets": "BOOT"},
            ("Failed", "BMCRefused"),
            "it lists no firmware BOOT; it lists BIOS, BMC, NIC1; the BMC lists no firmware BOOT",
        ),
        (BmcFaults(), {"targets": "NIC1"}, ("Failed", "TaskFailed"), "Verification of image"),
        (BmcFaults(lost_before=1), {}, ("Failed", "OutcomeUnknown"), "the result of SimpleUpdate cannot be observed"),
        (BmcFaults(firmware_update="same-version"), {}, ("Complete", "Succeeded"), "to list another version"),
        (
            BmcFaults(firmware_update="vanishes", update_s=30.0),
            {"imageURI": "https://images.example.com/BIOS-2.4.1.bin"},
            ("Failed", "TimedOut"),
            "the BMC lists BIOS 2.4.1",
        ),
    ],
)
def test_what_a_bmc_answers_decides_the_end(
    faults: BmcFaults, parameters: dict[str, str], ends: tuple[str, str], text: str
) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            operation = await updated(cluster, bmc, **parameters)
            assert result(operation) == ends, operation.status.message
            assert text in (operation.status.message or "")
            assert len(bmc.bmc.updates) <= 1

    run_swiftly(scene())


def test_an_update_waits_for_one_that_somebody_else_has_started() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(systems=("1", "2"), update_s=100.0)) as bmc, metalman(cluster):
            first, second = await cluster.add(bmc)
            spec: dict[str, Any] = {"parameters": {"imageURI": IMAGE}}
            running = await cluster.ask("FirmwareUpdate", first, **spec)
            await cluster.in_stage(running, "UpdatingFirmware")
            await asyncio.sleep(5.0)
            waiting = await cluster.ask(
                "FirmwareUpdate", second, parameters={"imageURI": IMAGE.replace("BIOS", "NIC1")}
            )
            await asyncio.sleep(20.0)
            message = (await cluster.operation(waiting)).status.message or ""
            assert len(bmc.bmc.updates) == 1, message
            assert result(await cluster.ended(running)) == ("Complete", "Succeeded")
            assert result(await cluster.ended(waiting)) == ("Complete", "Succeeded")
            assert len(bmc.bmc.updates) == 2

    run_swiftly(scene())


@pytest.mark.parametrize("after_s", [0.0, 0.5, 10.0])
def test_a_successor_follows_the_task_and_sends_no_second_update(after_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc:
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster):
                parameters = {"imageURI": IMAGE, "targets": "BIOS"}
                name = await cluster.ask("FirmwareUpdate", machine, parameters=parameters)
                await cluster.in_stage(name, "UpdatingFirmware")
                await asyncio.sleep(after_s)
            async with metalman(cluster):
                operation = await cluster.ended(name)
            sent = len(bmc.bmc.updates)
            assert result(operation) == (("Complete", "Succeeded") if sent else ("Failed", "OutcomeUnknown"))
            assert sent <= 1
            if after_s:
                assert sent == 1

    run_swiftly(scene())


def test_a_cancel_has_no_effect_once_the_update_was_sent() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask("FirmwareUpdate", machine, parameters={"imageURI": IMAGE})
            await cluster.in_stage(name, "UpdatingFirmware")
            await cluster.api.patch(MACHINE_OPERATIONS, name, {"spec": {"cancel": True}})
            assert result(await cluster.ended(name)) == ("Complete", "Succeeded")
            assert bmc.bmc.firmware["BIOS"] == "2.5.0"

    run_swiftly(scene())
