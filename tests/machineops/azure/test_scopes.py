"""A subscription whose answers come late holds up no other one of the same login."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.machineops.azure.world import SITE, AzureWorld, azure_world, swift
from tests.operations.staging import result
from unbounded.api.machine import MACHINES
from unbounded.lab.dials import FOR_EVER

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
    """How long the operations of the second subscription take; those of the first one are older."""
    found: list[float] = []

    @swift
    async def story() -> None:
        async with azure_world(subscriptions=2) as world:
            await world.begin()
            first, second = world.cloud.subscriptions
            if stalled:
                world.cloud.set_dials(accounts=(first,), stalls=FOR_EVER, stall_s=STALL_S)
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
