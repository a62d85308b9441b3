"""Oracle's SDK in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import oci
import pytest

from tests.lab.cloud.oci.direct import connect
from tests.lab.cloud.oci.sdk import Sdk
from tests.support.virtual_time import run_virtual
from unbounded_lab.cloud.oci import InstanceState, LabOci, OciFaults, OciTimes

pytestmark = pytest.mark.slow

LONG: OciTimes = OciTimes(provision_s=600.0, stop_s=120.0)


def connected(cloud: LabOci) -> Sdk:
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
        async with LabOci(times=LONG, port=None) as cloud:
            sdk = connected(cloud)
            old = cloud.add_instance("worker").id
            await sdk.ask(sdk.compute.instance_action, old, "STOP")
            assert await until(sdk, old, "STOPPED") == pytest.approx(120.0, abs=15.0)
            new = (await sdk.ask(sdk.compute.launch_instance, sdk.launch_details())).data.id
            assert await until(sdk, new, "RUNNING") == pytest.approx(600.0, abs=15.0)
            assert cloud.alive() == [new]

    run_virtual(story())


@pytest.mark.parametrize(
    "faults",
    [{"lost_before": 1}, {"lost_after": 1}, {"cut_off": 1}, {"stalls": 1}, {"stalls": 1, "stall_then": "acts-after"}],
)
async def test_transport_faults_are_the_same_as_over_a_socket(faults: dict[str, Any]) -> None:
    async with LabOci(faults=OciFaults(already="accepted")) as cloud:
        ident, over_socket, direct = cloud.add_instance("worker").id, Sdk(cloud), Sdk(cloud)
        connect(direct.compute, cloud)
        for sdk in (over_socket, direct):
            sdk.compute.base_client.timeout = (5.0, 0.3)
        cloud.set_faults(**faults)
        with pytest.raises(oci.exceptions.RequestException) as met:
            await over_socket.ask(over_socket.compute.instance_action, ident, "STOP")
        cloud.set_faults(**faults)
        with pytest.raises(oci.exceptions.RequestException) as met_directly:
            direct.compute.instance_action(ident, "STOP")  # in the loop's own thread, as intended
        assert type(met.value.args[0]) is type(met_directly.value.args[0])


def test_what_waits_before_it_is_acted_upon_is_done_without_its_client() -> None:
    async def story() -> None:
        async with LabOci(profile="stalls-before-acting", port=None) as cloud:
            sdk = connected(cloud)
            ident = cloud.add_instance("worker").id
            with pytest.raises(oci.exceptions.RequestException, match="Read timed out"):
                await sdk.ask(sdk.compute.instance_action, ident, "STOP")
            await asyncio.sleep(29.0)
            assert cloud.machines()[ident].state == InstanceState.RUNNING
            await asyncio.sleep(1.5)
            assert cloud.machines()[ident].state == InstanceState.STOPPING

    run_virtual(story())
