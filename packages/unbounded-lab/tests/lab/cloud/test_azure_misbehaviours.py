"""Each named misbehaviour of a simulated Azure, as the official SDK meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    IncompleteReadError,
    ResourceExistsError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)

from tests.lab.cloud.azure_support import POLL_S, Scene, scene, swift
from tests.lab.cloud.test_azure_rules import another
from unbounded_lab.cloud.azure import VmShape
from unbounded_lab.cloud.azure.errors import ERRORS, LOGIN_ERRORS
from unbounded_lab.cloud.azure.local import GROUP
from unbounded_lab.cloud.azure.misbehaviours import MISBEHAVIOURS
from unbounded_lab.cloud.azure.resource_manager import required_action
from unbounded_lab.http import Delivery

pytestmark = pytest.mark.slow

Seen = Callable[[Scene], Awaitable[None]]

LOST = ServiceRequestError
"""What a lost answer is to the SDK on aiohttp. Its name says that nothing was sent, and that is not so."""

SEEN: dict[str, Seen] = {}
"""By the name of the misbehaviour: what is seen of it."""


def of(*names: str) -> Callable[[Seen], Seen]:
    def register(seen: Seen) -> Seen:
        for name in names:
            SEEN[name] = seen
        return seen

    return register


async def _ends(poller: Any, match: str) -> None:
    """Wait for an operation that has to fail."""
    with pytest.raises(HttpResponseError, match=match):
        await poller.result()


async def _fails(s: Scene, error: type[Exception], match: str | None = None, times: int = 1) -> None:
    """Request a restart that fails so often, and then once more."""
    for _ in range(times):
        with pytest.raises(error, match=match):
            await s.vms.begin_restart(GROUP, "vm-1")
    await s.vms.begin_restart(GROUP, "vm-1")


def _asked(s: Scene, call: str) -> list[str]:
    return [each.fate for each in s.cloud.journal if each.call == call]


@of("answers-lost-before-acting")
async def _(s: Scene) -> None:
    await _fails(s, LOST, times=2)
    assert _asked(s, "VirtualMachines.Restart") == ["lost on the way"] * 2 + ["sent"]
    await asyncio.sleep(5.0)
    assert _blinks(s) == 1


@of("answers-lost-after-acting")
async def _(s: Scene) -> None:
    with pytest.raises(LOST):
        await s.vms.begin_restart(GROUP, "vm-1")
    assert (await s.get()).properties.provisioning_state == "Updating"
    await asyncio.sleep(5.0)
    assert _blinks(s) == 1
    await s.vms.begin_delete(GROUP, "vm-1")  # aiohttp sends a DELETE again by itself
    assert _asked(s, "VirtualMachines.Delete") == ["dropped", "sent"]
    await asyncio.sleep(5.0)
    assert s.cloud.machines() == {}


@of("answers-cut-off")
async def _(s: Scene) -> None:
    for _ in range(2):
        with pytest.raises((ServiceResponseError, IncompleteReadError, HttpResponseError)):
            await s.get()
    assert _asked(s, "VirtualMachines.Get") == [Delivery.CUT_OFF.value] * 2
    await s.get()


@of("stalls", "stalls-before-acting")
async def _(s: Scene) -> None:
    began = s.cloud.clock.now()
    asking = asyncio.create_task(s.vms.begin_restart(GROUP, "vm-1"))
    await asyncio.sleep(10.0)
    assert _blinks(s) == (1 if s.cloud.profile == "stalls" else 0)
    await asking
    assert s.cloud.clock.now() - began == pytest.approx(30.0, abs=0.5)


@of("slow")
async def _(s: Scene) -> None:
    began = s.cloud.clock.now()
    await s.get()
    assert s.cloud.clock.now() - began == pytest.approx(3.0, abs=0.2)


@of("throttles", "throttles-without-a-hint")
async def _(s: Scene) -> None:
    hint = "5" if s.cloud.profile == "throttles" else None
    for _ in range(5):
        with pytest.raises(HttpResponseError) as raised:
            await s.get()
        answer: Any = raised.value.response
        assert (answer.status_code, answer.headers.get("retry-after")) == (429, hint)
    await s.get()


@of("internal-errors")
async def _(s: Scene) -> None:
    await _fails(s, HttpResponseError, "InternalServerError", times=3)
    assert _blinks(s) == 0


@of("unavailable")
async def _(s: Scene) -> None:
    await _fails(s, HttpResponseError, "ServiceUnavailable", times=3)


@of("stale-reads")
async def _(s: Scene) -> None:
    body = await another(s)
    poller = await s.vms.begin_create_or_update(GROUP, "vm-2", body)
    with pytest.raises(ResourceNotFoundError):
        await s.get("vm-2")
    await asyncio.sleep(9.0)
    assert [vm.name async for vm in s.vms.list(GROUP)] == ["vm-1"]
    assert len(s.cloud.alive("vm-2")) == 1
    await asyncio.sleep(2.0)
    assert (await s.get("vm-2")).properties.provisioning_state == "Creating"
    await poller.result()


@of("stale-lists")
async def _(s: Scene) -> None:
    await (await s.vms.begin_delete(GROUP, "vm-1")).result()
    with pytest.raises(ResourceNotFoundError):
        await s.get()
    assert [vm.name async for vm in s.vms.list(GROUP)] == ["vm-1"]
    await asyncio.sleep(30.0)
    assert [vm.name async for vm in s.vms.list(GROUP)] == []


@of("operation-fails")
async def _(s: Scene) -> None:
    await _ends(await s.vms.begin_power_off(GROUP, "vm-1"), "InternalExecutionError")
    assert (await s.power(), (await s.get()).properties.provisioning_state) == ("PowerState/running", "Failed")
    view = await s.vms.instance_view(GROUP, "vm-1")
    assert view.statuses[0].code == "ProvisioningState/failed/InternalExecutionError"
    await (await s.vms.begin_power_off(GROUP, "vm-1")).result()


@of("operation-fails-after-acting")
async def _(s: Scene) -> None:
    await _ends(await s.vms.begin_power_off(GROUP, "vm-1"), "InternalExecutionError")
    assert await s.power() == "PowerState/stopped"


@of("operation-status-vanishes")
async def _(s: Scene) -> None:
    poller = await s.vms.begin_power_off(GROUP, "vm-1")
    with pytest.raises(HttpResponseError) as raised:
        await poller.result()
    assert raised.value.status_code == 404
    await asyncio.sleep(5.0)
    assert await s.power() == "PowerState/stopped"


@of("no-polling-hints")
async def _(s: Scene) -> None:
    began = s.cloud.clock.now()
    await (await s.vms.begin_restart(GROUP, "vm-1")).result()
    polls = [each.at - began for each in s.cloud.journal if each.call == "Operations.Get"]
    assert polls[1] - polls[0] == pytest.approx(POLL_S, abs=0.05)


@of("operation-preempted")
async def _(s: Scene) -> None:
    first = await s.vms.begin_power_off(GROUP, "vm-1")
    second = await s.vms.begin_start(GROUP, "vm-1")
    await _ends(first, "OperationPreempted")
    await second.result()
    assert await s.power() == "PowerState/running"


@of("another-operation-is-running")
async def _(s: Scene) -> None:
    await _fails(s, ResourceExistsError, r"\(Conflict\)", times=3)


@of("gateway-unconnected")
async def _(s: Scene) -> None:
    await _fails(s, HttpResponseError, r"\(BadGatewayConnection\)", times=3)
    await asyncio.sleep(5.0)
    assert _blinks(s) == 1


@of("gateway-times-out")
async def _(s: Scene) -> None:
    with pytest.raises(HttpResponseError, match=r"\(GatewayTimeout\)") as raised:
        await s.vms.begin_restart(GROUP, "vm-1")
    assert raised.value.status_code == 504
    await asyncio.sleep(5.0)
    assert _blinks(s) == 1


@of("subscription-disabled", "subscription-not-registered")
async def _(s: Scene) -> None:
    said = "ReadOnlyDisabledSubscription" if s.cloud.profile == "subscription-disabled" else "MissingSubscription"
    for _ in range(3):
        with pytest.raises(ResourceExistsError, match=said) as raised:
            await s.vms.begin_restart(GROUP, "vm-1")
    shown = str(raised.value)
    assert (f"'{s.cloud.subscription}' is disabled" in shown) is (s.cloud.profile == "subscription-disabled")
    assert ("Target: Microsoft.Compute" in shown) is (s.cloud.profile == "subscription-not-registered")
    await s.get()


@of("older-apis")
async def _(s: Scene) -> None:
    with pytest.raises(HttpResponseError, match=r"NoRegisteredProviderFound.*'2024-07-01, 2024-11-01'"):
        await s.get()
    assert (await s.ask("GET", "networkInterfaces"))[0] == 200


@of("image-deprecated")
async def _(s: Scene) -> None:
    body = await another(s)
    with pytest.raises(ResourceNotFoundError, match="ImageVersionDeprecated"):
        await s.vms.begin_create_or_update(GROUP, "vm-2", body)
    image = body["properties"]["storageProfile"]["imageReference"]
    with pytest.raises(ResourceNotFoundError, match="Version: latest is deprecated"):
        await s.client.virtual_machine_images.get(
            "westeurope", image["publisher"], image["offer"], image["sku"], image["version"]
        )


@of("stop-never-ends")
async def _(s: Scene) -> None:
    poller = await s.vms.begin_power_off(GROUP, "vm-1")
    await asyncio.sleep(3000.0)
    assert (await s.power(), poller.done()) == ("PowerState/stopping", False)
    s.cloud.set_profile("ideal")
    await poller.result()
    assert await s.power() == "PowerState/stopped"


@of("restart-never-ends")
async def _(s: Scene) -> None:
    await s.vms.begin_restart(GROUP, "vm-1")
    await asyncio.sleep(3000.0)
    assert ((await s.get()).properties.provisioning_state, _blinks(s)) == ("Updating", 0)


@of("delete-gets-stuck")
async def _(s: Scene) -> None:
    await s.vms.begin_delete(GROUP, "vm-1")
    await asyncio.sleep(3000.0)
    assert (await s.get()).properties.provisioning_state == "Deleting"
    with pytest.raises(ResourceExistsError, match="marked for deletion"):
        await s.vms.begin_start(GROUP, "vm-1")


@of("delete-fails-midway")
async def _(s: Scene) -> None:
    await _ends(await s.vms.begin_delete(GROUP, "vm-1"), "InternalExecutionError")
    assert ((await s.get()).properties.provisioning_state, s.cloud.alive()) == ("Failed", [])
    with pytest.raises(ResourceExistsError, match="marked for deletion"):
        await s.vms.begin_update(GROUP, "vm-1", {"tags": {"a": "b"}})
    await (await s.vms.begin_delete(GROUP, "vm-1")).result()
    assert s.cloud.machines() == {}


@of("delete-leaves-disks", "delete-leaves-nics")
async def _(s: Scene) -> None:
    change = {"properties": {"networkProfile": {"networkInterfaces": [
        {**nic, "properties": {"primary": True, "deleteOption": "Delete"}}
        for nic in (await s.body())["properties"]["networkProfile"]["networkInterfaces"]
    ]}}}  # fmt: skip
    await (await s.vms.begin_update(GROUP, "vm-1", change)).result()
    await (await s.vms.begin_delete(GROUP, "vm-1")).result()
    left = (s.cloud.stray_disks(), s.cloud.stray_nics())
    assert left == ((["vm-1_OsDisk_1"], []) if s.cloud.profile == "delete-leaves-disks" else ([], ["vm-1-nic-0"]))


@of("create-never-ends")
async def _(s: Scene) -> None:
    await s.vms.begin_create_or_update(GROUP, "vm-2", await another(s))
    await asyncio.sleep(3000.0)
    assert (await s.get("vm-2")).properties.provisioning_state == "Creating"
    assert s.cloud.power("vm-2") is None


@of("create-fails-after-accepting", "create-fails-and-is-gone", "zone-is-full")
async def _(s: Scene) -> None:
    said = "OverconstrainedZonalAllocationRequest" if s.cloud.profile == "zone-is-full" else "AllocationFailed"
    await _ends(await s.vms.begin_create_or_update(GROUP, "vm-2", await another(s)), said)
    assert s.cloud.alive("vm-2") == []
    disks = [event.what for event in s.cloud.history.of("Disk") if event.name.startswith("vm-2")]
    if s.cloud.profile != "create-fails-and-is-gone":
        assert (await s.get("vm-2")).properties.provisioning_state == "Failed"
        assert (disks, s.cloud.stray_nics()) == (["created", "attached"], [])
    else:
        with pytest.raises(ResourceNotFoundError):
            await s.get("vm-2")
        assert (disks[-1], s.cloud.stray_nics(), s.cloud.stray_disks()) == ("deleted", ["vm-2-nic"], [])


@of("provisioning-times-out")
async def _(s: Scene) -> None:
    await _ends(await s.vms.begin_create_or_update(GROUP, "vm-2", await another(s)), "OSProvisioningTimedOut")
    assert len(s.cloud.alive("vm-2")) == 1
    assert (await s.get("vm-2")).provisioning_state == "Failed"


@of("disk-name-taken-is-found-later")
async def _(s: Scene) -> None:
    body = await another(s)
    body["properties"]["storageProfile"]["osDisk"]["name"] = "vm-1_OsDisk_1"
    await _ends(await s.vms.begin_create_or_update(GROUP, "vm-2", body), "Only CreateOption.Attach is supported")
    assert (await s.get("vm-2")).properties.provisioning_state == "Failed"
    disk = await s.client.disks.get(GROUP, "vm-1_OsDisk_1")
    assert disk.managed_by == str(s.cloud.id_of("vm-1"))


@of("size-not-available", "quota-exceeded")
async def _(s: Scene) -> None:
    body = await another(s)
    said = "SkuNotAvailable" if s.cloud.profile == "size-not-available" else "approved Total Regional Cores quota"
    with pytest.raises(ResourceExistsError, match=said):
        await s.vms.begin_create_or_update(GROUP, "vm-2", body)
    await s.vms.begin_create_or_update(GROUP, "vm-2", body)


@of("terms-not-accepted")
async def _(s: Scene) -> None:
    body = await another(s)
    body["plan"] = {"name": "server", "publisher": "almalinux", "product": "almalinux-x86_64"}
    body["properties"]["storageProfile"]["imageReference"] = {
        "publisher": "almalinux",
        "offer": "almalinux-x86_64",
        "sku": "server",
        "version": "latest",
    }
    with pytest.raises(HttpResponseError, match="MarketplacePurchaseEligibilityFailed"):
        await s.vms.begin_create_or_update(GROUP, "vm-2", body)


@of("policy-refuses-creations")
async def _(s: Scene) -> None:
    body = await another(s)
    for _ in range(2):
        with pytest.raises(HttpResponseError, match="RequestDisallowedByPolicy"):
            await s.vms.begin_create_or_update(GROUP, "vm-2", body)
    await (await s.vms.begin_update(GROUP, "vm-1", {"tags": {"a": "b"}})).result()


@of("long-lists")
async def _(s: Scene) -> None:
    for number in range(2, 6):
        s.cloud.add_machine(f"vm-{number}")
    assert [vm.name async for vm in s.vms.list(GROUP)] == [f"vm-{number}" for number in range(1, 6)]
    assert len([disk async for disk in s.client.disks.list_by_resource_group(GROUP)]) == 5
    assert len(_asked(s, "VirtualMachines.List")) == len(_asked(s, "Disks.ListByResourceGroup")) == 3


@of("short-tokens")
async def _(s: Scene) -> None:
    token = s.cloud.access_token()
    path = f"{s.cloud.id_of('vm-1')}?api-version=2026-04-01"
    assert (await s.ask("GET", path, authorization=f"Bearer {token}"))[0] == 200
    await asyncio.sleep(5.0)
    status, body, headers = await s.ask("GET", path, authorization=f"Bearer {token}")
    assert (status, body["error"]["code"]) == (401, "ExpiredAuthenticationToken")
    assert headers["www-authenticate"].startswith("Bearer authorization_uri=")


@of("token-refused")
async def _(s: Scene) -> None:
    await _fails(s, ClientAuthenticationError, "InvalidAuthenticationToken")


@of("not-authorized")
async def _(s: Scene) -> None:
    for _ in range(3):
        with pytest.raises(HttpResponseError, match="AuthorizationFailed") as raised:
            await s.vms.begin_restart(GROUP, "vm-1")
        assert raised.value.status_code == 403
        place = str(s.cloud.id_of("vm-1"))
        needed = f"perform action 'Microsoft.Compute/virtualMachines/restart/action' over scope '{place}' or"
        assert raised.value.message.startswith(f"(AuthorizationFailed) The client '{s.cloud.client_id}' with object id")
        assert needed in raised.value.message
    await s.get()


@pytest.mark.parametrize(
    ("call", "method", "below", "needed"),
    [
        ("VirtualMachines.Get", "GET", "/virtualMachines/vm-1", "virtualMachines/read over /virtualMachines/vm-1"),
        (
            *("VirtualMachines.InstanceView", "GET", "/virtualmachines/vm-1/instanceView"),
            "virtualMachines/instanceView/read over /virtualmachines/vm-1",
        ),
        (
            *("VirtualMachineExtensions.CreateOrUpdate", "PUT", "/virtualMachines/vm-1/extensions/E1"),
            "virtualMachines/extensions/write over /virtualMachines/vm-1/extensions/E1",
        ),
        ("Disks.Delete", "DELETE", "/disks/os", "disks/delete over /disks/os"),
    ],
)
def test_a_right_that_is_missing_is_named_as_roles_name_it(call: str, method: str, below: str, needed: str) -> None:
    above = "/subscriptions/0-1/resourceGroups/group/providers/Microsoft.Compute"
    action, place = required_action(call, method, above + below)
    assert f"{action} over {place.removeprefix(above)}" == f"Microsoft.Compute/{needed}"
    assert required_action("Disks.List", "GET", f"{above}/disks")[1] == "/subscriptions/0-1/resourceGroups/group"


@of("login-unavailable")
async def _(s: Scene) -> None:
    form = {"grant_type": "client_credentials"}
    answers = [await s.ask("POST", f"/{s.cloud.tenant}/oauth2/v2.0/token", **form) for _ in range(4)]
    assert [(status, body["error"]) for status, body, _ in answers] == [
        *[(503, "temporarily_unavailable")] * 3,
        (400, "invalid_request"),
    ]


def _blinks(s: Scene) -> int:
    """Return how often the machine went off."""
    return sum(event.what == "off" for event in s.cloud.history.of("VirtualMachine", "vm-1"))


@pytest.mark.parametrize("name", MISBEHAVIOURS.turns)
@swift
async def test_a_misbehaviour_is_seen_through_the_sdk(name: str) -> None:
    async with scene(name) as s:
        await SEEN[name](s)


@swift
async def test_every_error_can_be_asked_for() -> None:
    async with scene() as s:
        for name, row in [*ERRORS.items(), *LOGIN_ERRORS.items()]:
            s.cloud.set_faults(errors=(name,), rate_limits=False)
            with pytest.raises(HttpResponseError) as raised:
                await s.get()
            assert raised.value.status_code == row.status, name


@swift
async def test_a_failure_is_shown_until_something_succeeds() -> None:
    async with scene() as s:
        s.cloud.set_faults(operation_errors=("VMExtensionProvisioningError",))
        body = {"location": "westeurope", "properties": {"publisher": "a", "type": "b", "typeHandlerVersion": "1.0"}}
        extensions = s.client.virtual_machine_extensions
        await _ends(await extensions.begin_create_or_update(GROUP, "vm-1", "b", body), "VMExtensionProvisioningError")
        code = (await s.vms.instance_view(GROUP, "vm-1")).statuses[0].code
        assert code == "ProvisioningState/failed/VMExtensionProvisioningError"
        await (await extensions.begin_create_or_update(GROUP, "vm-1", "b", body)).result()
        assert (await s.vms.instance_view(GROUP, "vm-1")).statuses[0].code == "ProvisioningState/succeeded"


@swift
async def test_faults_name_errors_that_an_operation_can_end_with() -> None:
    async with scene() as s:
        with pytest.raises(ValueError, match="unknown error of operations: Odd; the errors are InvalidRequestContent"):
            s.cloud.set_faults(operation_errors=("Odd",))


@swift
async def test_an_operation_can_hang_and_fail_by_the_name_of_its_call() -> None:
    async with scene(shape=VmShape(data_disks=1)) as s:
        s.cloud.add_disk("loose")
        s.cloud.set_faults(operation_errors=("InternalExecutionError",), operation_errors_for=("Disks.*",))
        await (await s.vms.begin_restart(GROUP, "vm-1")).result()
        await _ends(await s.client.disks.begin_delete(GROUP, "loose"), "InternalExecutionError")
        assert s.cloud.stray_disks() == ["loose"]
        await (await s.client.disks.begin_delete(GROUP, "loose")).result()
