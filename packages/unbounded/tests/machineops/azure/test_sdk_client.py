"""Calls of Azure that are made without the SDK's models, and how they get there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.lab.cloud.azure_support import CheckedAzure, Scene, Token, scene, swift
from unbounded.kube.tls import client_context
from unbounded.machineops.provider import Instance, Job, OperationKind, Refusal, Transient
from unbounded.machineops.providers.azure import AzureVM, replacement_plan
from unbounded.machineops.providers.azure.errors import ArmRequest
from unbounded.machineops.providers.azure.sdk_client import AzureClient
from unbounded.machineops.providers.azure.session import AzureSession
from unbounded.machineops.providers.azure.vm_properties import instance as vm_instance
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.local import GROUP
from unbounded_lab.http import LabReply, LabRequest


@asynccontextmanager
async def _calls(cloud: CheckedAzure, endpoint: str = "") -> AsyncIterator[AzureClient]:
    calls = AzureClient(
        "azure",
        lambda _transport: Token(cloud),
        ScopeBudget(AzureVM.rates),
        endpoint=endpoint or cloud.url,
        context=lambda: client_context(ca=cloud.ca),
    )
    try:
        yield calls
    finally:
        await calls.close()


def _asked(cloud: CheckedAzure) -> ArmRequest:
    return ArmRequest("look at", "it", Instance(str(cloud.id_of("vm-1")), cloud.subscription, "vm-1"))


def _noted(world: Scene, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Path and query of each request from now on."""
    noted, exchange = [], world.cloud.exchange

    async def noting(request: LabRequest) -> LabReply:
        noted.append((request.path.lower(), request.query.lower()))
        return await exchange(request)

    monkeypatch.setattr(world.cloud, "exchange", noting)
    return noted


@pytest.mark.slow
@swift
async def test_what_is_shown_is_asked_for_as_the_sdk_does() -> None:
    with pytest.MonkeyPatch.context() as patch:
        async with scene() as world, _calls(world.cloud) as calls:
            group = f"/subscriptions/{world.cloud.subscription}/resourceGroups/{GROUP}/providers/Microsoft.Compute"
            disk = (await world.get()).storage_profile.os_disk.name
            noted = _noted(world, patch)
            seen = [
                (await world.get(expand="instanceView")).as_dict(),
                (await world.vms.instance_view(GROUP, "vm-1")).as_dict(),
                (await world.client.disks.get(GROUP, disk)).as_dict(),
            ]
            asked = [noted.pop(0) for _ in seen]
            shown = [
                await calls.show(_asked(world.cloud), f"{group}/virtualMachines/vm-1", **{"$expand": "instanceView"}),
                await calls.show(_asked(world.cloud), f"{group}/virtualMachines/vm-1/instanceView"),
                await calls.show(_asked(world.cloud), f"{group}/disks/{disk}"),
            ]
            assert [(path, sorted(query.split("&"))) for path, query in noted] == [
                (path, sorted(query.split("&"))) for path, query in asked
            ]
            assert shown == seen


@swift
async def test_what_is_not_there_is_said_as_of_any_call() -> None:
    async with scene() as world, _calls(world.cloud) as calls:
        place = f"/subscriptions/{world.cloud.subscription}/resourceGroups/{GROUP}/providers/Microsoft.Compute"
        with pytest.raises(Refusal, match="look at it: ResourceNotFound") as refused:
            await calls.show(_asked(world.cloud), f"{place}/disks/none")
        assert refused.value.reason == "InstanceNotFound"


async def test_a_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server, CheckedAzure() as cloud:
        cloud.add_machine("vm-1")
        port = server.sockets[0].getsockname()[1]
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        async with _calls(cloud, "https://management.example") as calls:
            with pytest.raises(Transient):
                await calls.show(_asked(cloud), "/providers/Microsoft.Compute/disks/none")
        assert [line.split()[:2] for line in asked[:1]] == [[b"CONNECT", b"management.example:443"]]


class Kept:
    """Keeps in memory, and counts how often it is read."""

    place = "memory"

    def __init__(self) -> None:
        self.content: bytes | None = None
        self.loads = 0

    async def load(self) -> bytes | None:
        self.loads += 1
        return self.content

    async def former(self) -> bytes | None:
        return None

    async def store(self, content: bytes) -> None:
        self.content = content


@pytest.mark.parametrize("lost", [False, True])
@swift
async def test_what_is_kept_is_read_again_once_there_is_something_to_do(lost: bool) -> None:
    async with scene(shape=VmShape(nic_delete_option="Delete")) as world, _calls(world.cloud) as calls:
        session, keep = AzureSession(calls), Kept()
        job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", vm_instance(str(world.cloud.id_of("vm-1"))))
        for step in (replacement_plan.SAVING, replacement_plan.DETACHING):
            assert (await session.look_replace(job, keep)).step == step
            await session.act_replace(job, step, keep, "", before=asyncio.get_running_loop().time() + 10)
        assert (await session.look_replace(job, keep)).under_way
        keep.loads = 0
        assert (await session.look_replace(job, keep)).under_way
        assert keep.loads == 0
        if lost:
            keep.content = None
        await asyncio.sleep(60)
        assert (await session.look_replace(job, keep)).step == (
            replacement_plan.SAVING if lost else replacement_plan.DELETING
        )
        assert keep.loads == (2 if lost else 1)
