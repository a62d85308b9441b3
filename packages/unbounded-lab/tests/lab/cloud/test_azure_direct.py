"""The SDK without a socket meets what it meets over one."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core.exceptions import AzureError
from azure.mgmt.compute.aio import ComputeManagementClient

from tests.lab.cloud.azure_direct import DirectTransport
from tests.lab.cloud.azure_support import Token, scene, swift
from tests.support.virtual_time import run_virtual
from unbounded_lab.cloud.azure import LabAzure, VmPower
from unbounded_lab.cloud.azure.local import GROUP


def client_of(cloud: LabAzure, **options: Any) -> Any:
    return ComputeManagementClient(
        Token(cloud),
        cloud.subscription,
        base_url=cloud.url,
        transport=DirectTransport(cloud),
        retry_total=0,
        **options,
    )


def test_operations_pass_in_virtual_time() -> None:
    async def story() -> None:
        async with LabAzure(port=None) as cloud, client_of(cloud) as client:
            cloud.add_machine("vm-1")
            began = cloud.clock.now()
            await (await client.virtual_machines.begin_deallocate(GROUP, "vm-1")).result()
            assert cloud.clock.now() - began == pytest.approx(1.0, abs=0.1)
            assert cloud.power("vm-1") is VmPower.DEALLOCATED

    run_virtual(story())


@pytest.mark.parametrize(
    "faults",
    [{"lost_before": 1}, {"lost_after": 1}, {"cut_off": 1}, {"stalls": 1}, {"stalls": 1, "stall_then": "acts-after"}],
)
@swift
async def test_transport_faults_are_the_same_as_over_a_socket(faults: dict[str, Any]) -> None:
    async with scene() as s, client_of(s.cloud) as direct:
        met = []
        for machines in (s.vms, direct.virtual_machines):
            ask = machines.get if "cut_off" in faults else machines.begin_restart
            s.cloud.set_faults(**faults, concurrent="preempts")
            with pytest.raises(AzureError) as raised:
                await ask(GROUP, "vm-1", read_timeout=10.0)
            met.append(type(raised.value))
        assert met[0] is met[1]
