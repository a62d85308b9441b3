"""Oracle's SDK in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import oci
import pytest

from tests.lab.cloud.oci.direct import connect
from tests.lab.cloud.oci.sdk import Sdk
from tests.metalman.support.swift_time import run_swiftly
from unbounded.lab.cloud.oci import LabOci, State, Times

LONG: Times = Times(provision_s=600.0, stop_s=120.0)


async def connected(cloud: LabOci) -> Sdk:
    sdk = Sdk(cloud)
    for client in (sdk.compute, sdk.network):
        connect(client, cloud)
    return sdk


async def until(sdk: Sdk, ident: str, state: str) -> float:
    """Poll as a controller does; returns how long it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    while await sdk.state(ident) != state:  # noqa: ASYNC110 - a cloud tells nobody
        await asyncio.sleep(15.0)
    return loop.time() - began


def test_a_long_operation_passes_in_no_time() -> None:
    async def story() -> None:
        async with LabOci(times=LONG) as cloud:
            sdk = await connected(cloud)
            old = cloud.add_instance("worker").id
            await sdk.ask(sdk.compute.instance_action, old, "STOP")
            assert await until(sdk, old, "STOPPED") == pytest.approx(120.0, abs=15.0)
            new = (await sdk.ask(sdk.compute.launch_instance, sdk.launch_details())).data.id
            assert await until(sdk, new, "RUNNING") == pytest.approx(600.0, abs=15.0)
            assert cloud.alive() == [new]

    run_swiftly(story())


def test_faults_are_those_of_the_dials() -> None:
    async def lost(sdk: Sdk, call: Any, *args: Any) -> str:
        with pytest.raises(oci.exceptions.RequestException) as raised:
            await sdk.ask(call, *args)
        return str(raised.value)

    async def story() -> None:
        async with LabOci(profile="answers-lost-before-acting") as cloud:
            sdk = await connected(cloud)
            ident = cloud.add_instance("worker").id
            stop = (sdk.compute.instance_action, ident, "STOP")
            assert "Connection aborted" in await lost(sdk, *stop)
            assert cloud.machines()[ident].state is State.RUNNING
            cloud.set_profile("answers-lost-after-acting")
            assert "Connection aborted" in await lost(sdk, *stop)
            assert cloud.machines()[ident].state == State.STOPPING
            await asyncio.sleep(1.0)
            cloud.set_profile("stalls-before-acting")
            assert "Read timed out" in await lost(sdk, sdk.compute.instance_action, ident, "START")
            await asyncio.sleep(29.0)
            assert cloud.machines()[ident].state == State.STOPPED
            await asyncio.sleep(1.5)
            assert cloud.machines()[ident].state == State.STARTING
            cloud.set_profile("throttles")
            assert (await sdk.failure(sdk.compute.get_instance, ident)).status == 429

    run_swiftly(story())
