"""Operations that wait during a move are carried out on the target, once, by the controllers there, under their
accounts.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from tests.cli.migrate.cutting import Life
from tests.cli.migrate.test_flow import copied, moved
from tests.cli.migrate.world import SITE, World, b64, world
from tests.support.waiting import eventually
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.servers import component_runtime
from unbounded.kube.api import Api
from unbounded.kube.metrics import ControllerMetrics
from unbounded.machina import controller as machina
from unbounded.metalman import controller as metalman
from unbounded.metalman.settings import MetalmanSettings
from unbounded_lab.bmc import HostPower, LabBmc

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NAME: Final = "m-000"
STILL_S: Final = 6.0  # long enough for controllers to act that are not held


async def controllers(it: World) -> None:
    """machina and the metalman of the site, as a cluster runs them: each leads by its Lease."""
    async with (
        component_runtime("machina", it.target.api, metrics=ControllerMetrics(), elects=True) as as_machina,
        component_runtime("metalman", it.target.api, metrics=ControllerMetrics(), elects=True) as as_metalman,
        asyncio.TaskGroup() as group,
    ):
        group.create_task(machina.run(as_machina))
        group.create_task(metalman.run(as_metalman, MetalmanSettings(site=SITE, netboots=False)))


async def has_bmc(it: World, bmc: LabBmc) -> None:
    """The Machine's BMC is real, and its password is not refused."""
    redfish = {"url": bmc.url, "username": bmc.username, "deviceID": "1"}
    await it.source.api.patch(MACHINES, NAME, {"spec": {"pxe": {"redfish": redfish}}})
    password = {"data": {"password": b64(bmc.password)}}
    await it.source.api.patch(SECRETS, f"{NAME}-bmc", password, namespace=NAMESPACE)
    learnt = {"status": {"redfish": None}}
    await it.source.api.patch(MACHINES, NAME, learnt, subresource="status")


async def names(api: Api) -> set[str]:
    return {one.name for one in (await api.list(MACHINE_OPERATIONS)).items}


async def test_a_waiting_reboot_is_carried_out_once_and_nothing_else_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with LabBmc(power=HostPower.ON, boot_s=0.2, shutdown_s=0.2) as bmc, world(tmp_path, machines=1) as it:
        await has_bmc(it, bmc)
        before = await names(it.source.api)
        status: Any = (await it.source.api.get(MACHINES, NAME)).status
        await copied(it)
        running = asyncio.create_task(controllers(it))
        try:
            await asyncio.sleep(STILL_S)
            assert not running.done(), running.exception()
            assert bmc.history() == [], "the target acts before the hand-over"
            await moved(it, Life())

            async def complete() -> bool:
                return (await it.target.api.get(MACHINE_OPERATIONS, f"{NAME}-waits")).status.phase == "Complete"

            await eventually(complete, within_s=90)
            await asyncio.sleep(STILL_S)
            assert not running.done(), running.exception()
        finally:
            running.cancel()
            await asyncio.wait({running})
        pressed = [event.detail for event in bmc.history() if event.what == "pressed"]
        assert pressed == ["GracefulShutdown", "On"]
        assert await names(it.target.api) == before
        there = (await it.target.api.get(MACHINES, NAME)).status
        assert there.operations == status.operations
        versions = (await it.target.api.list(MACHINE_CONFIGURATION_VERSIONS)).items
        assert [(one.metadata.name, one.status.deployed) for one in versions] == [("workers-v1", True)]
        assert "reconcile failed" not in caplog.text
        assert [one.name for one in there.recent_operations] == [f"{NAME}-replace", f"{NAME}-waits"]
