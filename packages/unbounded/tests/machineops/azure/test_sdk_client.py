"""Calls of Azure that are made without the SDK's models, and how they get there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from azure.core import MatchConditions

from tests.lab.cloud.azure_support import CheckedAzure, Scene, Token, scene, swift
from unbounded.kube.tls import client_context
from unbounded.machineops.provider import Action, Instance, Job, OperationKind, Refusal, Transient
from unbounded.machineops.providers.azure import AzureVM, replacement_plan
from unbounded.machineops.providers.azure.errors import ArmRequest
from unbounded.machineops.providers.azure.provider import AzureSession
from unbounded.machineops.providers.azure.sdk_client import AzureClient
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


SENT = ("if-match", "if-none-match", "content-type")


async def _by_sdk(world: Scene, change: LabRequest) -> None:
    """Request a change by the SDK's own client."""
    body = msgspec.json.decode(change.body) if change.body else None
    *_, kind, name = change.path.split("/")
    etag = change.headers.get("if-match")
    match change.method, kind.lower():
        case "POST", _:
            skips = {"skip_shutdown": True} if "skipShutdown" in change.query else {}
            method = {"powerOff": "power_off"}.get(name, name)
            await getattr(world.vms, f"begin_{method}")(GROUP, "vm-1", **skips, polling=False)
        case "PATCH", "virtualmachines":
            unchanged = {"etag": etag, "match_condition": MatchConditions.IfNotModified}
            await world.vms.begin_update(GROUP, name, body, polling=False, **unchanged)
        case "PUT", "virtualmachines":
            missing = MatchConditions.IfMissing
            await world.vms.begin_create_or_update(GROUP, name, body, polling=False, match_condition=missing)
        case "PUT", "extensions":
            extensions = world.client.virtual_machine_extensions
            await extensions.begin_create_or_update(GROUP, "vm-1", name, body, polling=False)
        case "DELETE", "virtualmachines":
            await world.vms.begin_delete(GROUP, name, polling=False)
        case "DELETE", "disks":
            await world.client.disks.begin_delete(GROUP, name, polling=False)
        case other:
            raise AssertionError(other)


def _on_the_wire(change: LabRequest) -> tuple[object, ...]:
    query = sorted(change.query.lower().split("&"))
    headers = {name: change.headers.get(name) for name in SENT}
    return change.method, change.path.lower(), query, headers, change.body and msgspec.json.decode(change.body)


@pytest.mark.slow
@swift
async def test_changes_are_the_requests_of_the_sdk() -> None:
    shape = VmShape(nic_delete_option="Delete", extensions=("pub.lisher.Type",))
    changes: list[LabRequest] = []
    with pytest.MonkeyPatch.context() as patch:
        async with scene(shape=shape) as world, _calls(world.cloud) as calls:
            exchange = world.cloud.exchange

            async def noting(request: LabRequest) -> LabReply:
                if request.method != "GET":
                    changes.append(request)
                return await exchange(request)

            patch.setattr(world.cloud, "exchange", noting)
            session, keep, loop = AzureSession(calls), Kept(), asyncio.get_running_loop()
            target = vm_instance(str(world.cloud.id_of("vm-1")))
            for action, parameters in [*((action, {}) for action in Action), (Action.POWER_OFF, {"force": "true"})]:
                job = Job("op", "0" * 8, OperationKind.HOST_REBOOT, "m1", "1", target, parameters)
                await session.ask(job, action, before=loop.time() + 10)
                await asyncio.sleep(600)
            job = Job("op", "0" * 8, OperationKind.HOST_REPLACE, "m1", "1", target)
            while (step := (await session.look_replace(job, keep)).step) is not None:
                await session.act_replace(job, step, keep, "#cloud-config", before=loop.time() + 10)
                await asyncio.sleep(600)
            left = f"{target.id.rpartition('/virtualmachines/')[0]}/disks/left"
            request = ArmRequest("delete disk", "left", target, changes=True)
            await calls.change(request, "DELETE", left, before=loop.time() + 10)
            ours, changes[:] = changes[:], []
            assert {(one.method, one.path.rpartition("/")[0].lower().rpartition("/")[2]) for one in ours} >= {
                ("PATCH", "virtualmachines"),
                ("PUT", "virtualmachines"),
                ("PUT", "extensions"),
                ("DELETE", "virtualmachines"),
                ("DELETE", "disks"),
                ("POST", "vm-1"),
            }

            async def accepting(request: LabRequest) -> LabReply:
                changes.append(request)
                return LabReply(200, b"{}", {"content-type": "application/json"})

            patch.setattr(world.cloud, "exchange", accepting)
            for change in ours:
                await _by_sdk(world, change)
            assert [*map(_on_the_wire, ours)] == [*map(_on_the_wire, changes)]


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
