"""A slow or limited subscription or VM delays no other one of the same login."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.lab.cloud.azure_support import CheckedAzure
from tests.machineops.azure.world import SITE, AzureWorld, azure_world, swift
from tests.operations.staging import result
from unbounded.api.machine import MACHINES
from unbounded_lab.cloud.azure.resource_manager import CountedRequest as Counted
from unbounded_lab.faults import FOR_EVER

OPERATIONS: Final = 12  # in each subscription; more than are worked on at once
STALL_S: Final = 30.0


async def _ask(world: AzureWorld, subscription: str) -> list[str]:
    """Reboot as many virtual machines of a subscription; the names of the operations."""
    names = [f"{subscription}-{number}" for number in range(OPERATIONS)]
    for name in names:
        provider_id = f"azure://{world.cloud.add_machine(name, subscription=subscription)}"
        labels = {"unbounded-cloud.io/site": SITE}
        spec = {"provider": "AzureVM", "providerID": provider_id}
        await world.api.create(MACHINES, {"metadata": {"name": name, "labels": labels}, "spec": spec})
        await world.operation(f"op-{name}", "HostReboot", name)
    return [f"op-{name}" for name in names]


def _took_s(*, stalled: bool) -> float:
    """Return the duration of the operations of the second subscription; those of the first one are older."""
    found: list[float] = []

    @swift
    async def story() -> None:
        async with azure_world(subscriptions=2) as world:
            await world.begin()
            first, second = world.cloud.subscriptions
            if stalled:
                world.cloud.set_faults(accounts=(first,), stalls=FOR_EVER, stall_s=STALL_S)
            world.controller().start()
            late, others = await _ask(world, first), await _ask(world, second)
            began = asyncio.get_running_loop().time()
            for name in others:
                assert result(await world.ended(name, within_s=600)) == ("Complete", "Succeeded")
            found.append(asyncio.get_running_loop().time() - began)
            for name in late:
                assert result(await world.ended(name, within_s=600)) == ("Complete", "Succeeded")

    story()
    return found[0]


@pytest.mark.slow
def test_a_subscription_that_answers_after_30_s_does_not_delay_another_one() -> None:
    assert _took_s(stalled=True) <= 1.1 * _took_s(stalled=False)


@pytest.mark.slow
@swift
async def test_a_vm_that_has_used_up_its_own_limit_waits_by_itself() -> None:
    async with azure_world() as world:
        await world.begin()
        cloud, (subscription,) = world.cloud, world.cloud.subscriptions
        assert isinstance(cloud, CheckedAzure)
        other = f"azure://{cloud.add_machine('vm-2')}"
        labels = {"unbounded-cloud.io/site": SITE}
        spec = {"provider": "AzureVM", "providerID": other}
        await world.api.create(MACHINES, {"metadata": {"name": "m2", "labels": labels}, "spec": spec})
        somebody = Counted(subscription, "somebody else", "writes", "UpdateVM", cloud.machines()["vm-1"].id.key)
        for _ in range(12):
            cloud.checked.throttling.admit(somebody, cloud.clock.now())
        world.controller().start()
        await world.operation("op-1", "HostReboot", "m1")
        held = "the last attempt failed: restart VM vm-1: OperationNotAllowed"
        await world.until("op-1", lambda one: held in (one.status.message or ""), within_s=10)
        await world.operation("op-2", "HostReboot", "m2")
        for name in ("op-2", "op-1"):
            assert result(await world.ended(name, within_s=120)) == ("Complete", "Succeeded")
        asked = [one for one in cloud.journal if one.call == "VirtualMachines.Restart"]
        first, second = ([one for one in asked if f"/{name}/" in one.path] for name in ("vm-1", "vm-2"))
        assert [one.status for one in first] == [429, 202]
        assert [one.status for one in second] == [202]
        assert second[0].at < first[0].at + 5 < first[0].at + 14 < first[1].at
