"""Reboot, power off and power on of a virtual machine of Azure, from end to end."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from tests.machineops.azure.world import azure_world, running_azure, swift
from tests.operations.staging import result
from unbounded.api.machine import MACHINES
from unbounded.kube.tls import client_context
from unbounded.machineops import power, reasons
from unbounded.machineops.provider import AuthMode, Login
from unbounded.machineops.provider import Power as Running
from unbounded.machineops.providers.azure import AzureVM
from unbounded.machineops.rate_limits import ScopeBudget
from unbounded.operations import reasons as common
from unbounded_lab.cloud.azure import LabAzure
from unbounded_lab.cloud.azure.misbehaviours import MISBEHAVIOURS
from unbounded_lab.cloud.azure.model import VmPower

COMPLETE = ("Complete", "Succeeded")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "parameters", "before", "asked", "after"),
    [
        ("HostReboot", {}, None, ["Restart"], VmPower.RUNNING),
        ("HostPowerOff", {}, None, ["PowerOff"], VmPower.STOPPED),
        ("HostPowerOff", {"force": "true"}, None, ["PowerOff"], VmPower.STOPPED),
        ("HostPowerOff", {"deallocate": "true"}, None, ["Deallocate"], VmPower.DEALLOCATED),
        ("HostPowerOff", {"deallocate": "true"}, "PowerOff", ["PowerOff", "Deallocate"], VmPower.DEALLOCATED),
        ("HostPowerOn", {}, "Deallocate", ["Deallocate", "Start"], VmPower.RUNNING),
        ("HostPowerOn", {}, None, [], VmPower.RUNNING),
    ],
)
@swift
async def test_each_operation_is_the_call_of_the_table(
    kind: str, parameters: dict[str, str], before: str | None, asked: list[str], after: VmPower
) -> None:
    async with running_azure() as world:
        if before:
            given = {"deallocate": "true"} if before == "Deallocate" else {}
            await world.operation("before", "HostPowerOff", "m1", parameters=given)
            await world.ended("before")
        ended = await world.carried_out(kind, parameters)
        assert result(ended) == COMPLETE
        assert world.asked() == asked
        assert world.cloud.power("vm-1") is after
        skipped = any("skipShutdown=true" in each.path for each in world.cloud.journal)
        assert skipped is ("force" in parameters)


@pytest.mark.slow
@swift
async def test_a_restart_takes_few_calls_and_the_polls_that_azure_asks_for() -> None:
    async with running_azure() as world:
        await asyncio.sleep(10)  # a new Machine is written to
        ended = await world.carried_out("HostReboot")
        assert [evidence.what for evidence in ended.status.evidence] == [power.EVIDENCE_RESTARTED]
        calls = world.asked(reads=True)
        assert [call for call in calls if call != "Operations.Get"] == ["InstanceView", "Restart"]
        polls = [each.at for each in world.cloud.journal if each.call == "Operations.Get"]
        assert len(polls) <= 3  # 1.5 s, and a poll each second


@pytest.mark.slow
@swift
async def test_a_long_call_is_followed_by_a_successor() -> None:
    async with azure_world("stop-never-ends") as world:
        await world.begin()
        first = world.controller().start()
        await world.operation("op", "HostPowerOff", "m1")
        await world.until("op", lambda one: bool(one.status.execution and one.status.execution.handle), within_s=30)
        await first.stop()
        world.cloud.set_faults(hanging=())
        world.controller().start()
        assert result(await world.ended("op", within_s=300)) == COMPLETE
        assert world.asked() == ["PowerOff"]


@pytest.mark.slow
@pytest.mark.parametrize("was_seen", [True, False])
@swift
async def test_restart_with_vanished_async_operation_needs_the_activity_record(was_seen: bool) -> None:
    async with azure_world("operation-status-vanishes") as world:
        await world.begin()
        first = world.controller().start()
        await world.operation("op", "HostReboot", "m1")
        await world.until("op", lambda one: bool(one.status.execution and one.status.execution.handle), within_s=30)
        if not was_seen:
            await first.stop()
            await asyncio.sleep(300)  # it is over long since
            world.controller().start()
        ended = await world.ended("op", within_s=200)  # an earlier controller's call settles first
        silent = "no agent on the host reports its boot ID"
        told = f"{silent} as proof: Azure has no status of the asynchronous operation any more; VM vm-1: "
        assert result(ended) == (COMPLETE if was_seen else UNKNOWN), ended.status.message
        assert was_seen or told in (ended.status.message or "")
        assert world.asked() == ["Restart"]


BROKEN = ("Failed", reasons.PROVIDER_OPERATION_FAILED)
UNKNOWN = ("Failed", common.OUTCOME_UNKNOWN)
OTHERWISE: Final = {
    ("operation-fails", "HostReboot"): (BROKEN, "InternalExecutionError"),
    ("operation-fails", "HostPowerOff"): (BROKEN, "InternalExecutionError"),
    ("operation-fails-after-acting", "HostReboot"): (BROKEN, "InternalExecutionError"),
    ("operation-fails-after-acting", "HostPowerOff"): (BROKEN, "InternalExecutionError"),
    ("answers-lost-after-acting", "HostReboot"): (UNKNOWN, "the result of Restart cannot be observed"),
    ("answers-lost-before-acting", "HostReboot"): (UNKNOWN, "the result of Restart cannot be observed"),
    ("gateway-times-out", "HostReboot"): (UNKNOWN, "the result of Restart cannot be observed"),
    **{
        (profile, kind): (("Failed", reasons.PROVIDER_REFUSED), code)
        for kind in ("HostReboot", "HostPowerOff")
        for profile, code in (
            ("subscription-disabled", "ReadOnlyDisabledSubscription"),
            ("subscription-not-registered", "MissingSubscriptionRegistration"),
            ("older-apis", "NoRegisteredProviderFound"),
        )
    },
    ("stop-never-ends", "HostPowerOff"): (("Failed", common.TIMED_OUT), "InProgress"),
    ("restart-never-ends", "HostReboot"): (("Failed", common.TIMED_OUT), "InProgress"),
    ("not-authorized", "HostReboot"): (("Failed", reasons.AUTH_REFUSED), "MachineOperationCredential azure"),
    ("not-authorized", "HostPowerOff"): (("Failed", reasons.AUTH_REFUSED), "AuthorizationFailed"),
}
"""What does not end with Complete, and words of the message."""
FOR_REPLACEMENTS: Final = (
    *("delete-", "create-", "disk-", "image-", "provisioning-", "size-", "quota-", "terms-", "zone-", "stale-lists"),
)
PROFILES: Final = [name for name in MISBEHAVIOURS.names() if name != "ideal" and not name.startswith(FOR_REPLACEMENTS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff"])
@pytest.mark.parametrize("profile", PROFILES)
@swift
async def test_under_each_misbehaviour_it_succeeds_or_says_why(profile: str, kind: str) -> None:
    async with running_azure(profile) as world:
        ended = await world.carried_out(kind)
        wanted, words = OTHERWISE.get((profile, kind), (COMPLETE, ""))
        assert result(ended) == wanted, ended.status.message
        assert words in (ended.status.message or "")
        if wanted == COMPLETE:
            assert world.cloud.power("vm-1") is (VmPower.RUNNING if kind == "HostReboot" else VmPower.STOPPED)
        went_off = [event for event in world.cloud.history.of("VirtualMachine", "vm-1") if event.what == "off"]
        assert len(went_off) <= 1


@swift
async def test_a_login_that_is_refused_names_the_credential() -> None:
    async with azure_world() as world:
        await world.begin(secret="wrong")
        world.controller().start()
        ended = await world.carried_out("HostReboot")
        assert result(ended) == ("Failed", reasons.AUTH_REFUSED)
        assert "MachineOperationCredential azure" in (ended.status.message or "")
        assert "AADSTS7000215" in (ended.status.message or "")
        assert world.asked(reads=True) == []


@swift
async def test_a_machine_that_azure_does_not_know_is_said() -> None:
    async with azure_world() as world:
        await world.begin()
        await world.api.patch(MACHINES, "m1", {"spec": {"providerID": f"azure://{world.cloud.id_of('vm-2')}"}})
        world.controller().start()
        ended = await world.carried_out("HostPowerOn")
        assert result(ended) == ("Failed", reasons.INSTANCE_NOT_FOUND)
        assert "ResourceNotFound" in (ended.status.message or "")


@pytest.mark.slow
async def test_a_workload_logs_in_by_its_own_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    async with LabAzure() as cloud:
        cloud.add_machine("vm-1")
        for name, value in cloud.environment().items():
            monkeypatch.setenv(name, value)
        provider = AzureVM(endpoint=cloud.url, context=lambda: client_context(ca=cloud.ca))
        session = provider.connect(Login("azure", AuthMode.WORKLOAD_IDENTITY), ScopeBudget(provider.rates))
        record = await session.look(provider.instance(f"azure://{cloud.id_of('vm-1')}"))
        await session.close()
        assert record.power is Running.RUNNING
        assert [each.call for each in cloud.journal] == ["Login.Token", "VirtualMachines.InstanceView"]
