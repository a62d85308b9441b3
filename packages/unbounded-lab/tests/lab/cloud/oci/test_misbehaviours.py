"""Each misbehaviour of an Oracle cloud has the described effect through the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import oci
import pytest

from tests.lab.cloud.oci.sdk import Sdk, serving
from unbounded_lab.clock import ManualClock
from unbounded_lab.cloud.oci import InstanceState, LabOci, OciFaults
from unbounded_lab.cloud.oci.errors import ERRORS, GATEWAYS, STATUSES
from unbounded_lab.cloud.oci.misbehaviours import TABLE
from unbounded_lab.cloud.oci.model import OciInstance

pytestmark = pytest.mark.slow

LOST = oci.exceptions.RequestException
STALL_S = 30.0


@dataclass(frozen=True)
class Scene:
    """A cloud that misbehaves, with one instance that was there before."""

    cloud: LabOci
    sdk: Sdk
    clock: ManualClock
    ident: str

    async def act(self, action: str) -> str:
        answer = await self.sdk.ask(self.sdk.compute.instance_action, self.ident, action)
        return str(answer.data.lifecycle_state)

    async def launch(self, **options: Any) -> str:
        answer = await self.sdk.ask(self.sdk.compute.launch_instance, self.sdk.launch_details(), **options)
        return str(answer.data.id)

    async def terminate(self) -> Any:
        return await self.sdk.ask(self.sdk.compute.terminate_instance, self.ident)

    async def refusal(self, call: Callable[..., Any], *args: Any) -> tuple[int, str]:
        error = await self.sdk.failure(call, *args)
        return error.status, error.code

    async def launch_refusal(self) -> tuple[int, str]:
        return await self.refusal(self.sdk.compute.launch_instance, self.sdk.launch_details())

    async def action_refusal(self, action: str = "STOP") -> tuple[int, str]:
        return await self.refusal(self.sdk.compute.instance_action, self.ident, action)

    async def look_refusal(self) -> tuple[int, str]:
        return await self.refusal(self.sdk.compute.get_instance, self.ident)

    async def shown(self, ident: str | None = None) -> str:
        return await self.sdk.state(ident or self.ident)

    def truth(self) -> InstanceState:
        return self.cloud.machines()[self.ident].state


Check = Callable[[Scene], Awaitable[None]]

CHECKS: dict[str, Check] = {}


def shows(check: Check) -> Check:
    CHECKS[check.__name__.replace("_", "-")] = check
    return check


def test_every_misbehaviour_is_shown() -> None:
    assert CHECKS.keys() == TABLE.turns.keys()


async def test_every_error_arrives_under_its_code() -> None:
    async with serving(faults=OciFaults(errors=tuple(ERRORS))) as (_, sdk, _):
        for name, (code, message) in ERRORS.items():
            error = await sdk.failure(sdk.compute.get_instance, "any")
            status = GATEWAYS.get(name, STATUSES[code])
            assert (error.status, error.code, error.message) == (status, code, message)
        assert {code for code, _ in ERRORS.values()} >= STATUSES.keys() - {
            "CannotParseRequest",
            "NotFound",
            "MethodNotAllowed",
        }


@pytest.mark.parametrize("name", TABLE.turns)
async def test_it_does_what_it_says(name: str) -> None:
    async with serving(name) as (cloud, sdk, clock):
        await CHECKS[name](Scene(cloud, sdk, clock, cloud.add_instance("worker").id))


def fresh(scene: Scene) -> list[OciInstance]:
    """Return the launched instances that are not TERMINATED."""
    return [each for each in scene.cloud.machines().values() if each.name == "fresh"]


# On the way


@shows
async def answers_lost_before_acting(scene: Scene) -> None:
    for _ in range(2):
        with pytest.raises(LOST):
            await scene.act("STOP")
    assert scene.truth() is InstanceState.RUNNING
    assert await scene.shown() == "RUNNING"
    assert await scene.act("STOP") == "STOPPING"


@shows
async def answers_lost_after_acting(scene: Scene) -> None:
    with pytest.raises(LOST):
        await scene.launch(opc_retry_token="one")
    with pytest.raises(LOST):
        await scene.launch(opc_retry_token="one")
    ident = await scene.launch(opc_retry_token="one")
    assert [each.id for each in fresh(scene)] == [ident]


@shows
async def answers_cut_off(scene: Scene) -> None:
    with pytest.raises(LOST):
        await scene.act("STOP")
    with pytest.raises(LOST):
        await scene.shown()
    assert await scene.shown() == "STOPPING"


async def given_up(scene: Scene) -> None:
    """Request a STOP, and wait no longer than the SDK's read timeout."""
    scene.sdk.compute.base_client.timeout = (5.0, 0.2)
    with pytest.raises(LOST, match="Read timed out"):
        await scene.act("STOP")
    await all_wait(scene)  # the thread of the SDK may have given up before this loop has read the request
    scene.sdk.compute.base_client.timeout = (5.0, 5.0)


@shows
async def stalls(scene: Scene) -> None:
    await given_up(scene)
    assert scene.truth() is InstanceState.STOPPING
    scene.clock.move(STALL_S)
    late = asyncio.create_task(scene.shown())
    await all_wait(scene)
    scene.clock.move(STALL_S)
    assert await late == "STOPPED"


@shows
async def stalls_before_acting(scene: Scene) -> None:
    await given_up(scene)
    assert scene.truth() is InstanceState.RUNNING
    scene.clock.move(STALL_S)
    await asyncio.sleep(0)  # the abandoned request is carried out now
    assert scene.truth() is InstanceState.STOPPING


@shows
async def slow(scene: Scene) -> None:
    look = asyncio.create_task(scene.shown())
    await all_wait(scene)
    scene.clock.move(2.9)
    assert scene.clock.sleepers == 1
    scene.clock.move(0.1)
    assert await look == "RUNNING"


async def all_wait(scene: Scene) -> None:
    """Until a request waits for the clock, which real time brings about."""
    async with asyncio.timeout(60.0):
        while not scene.clock.sleepers:  # noqa: ASYNC110 - the clock tells nobody
            await asyncio.sleep(0.005)


async def throttled(scene: Scene, *, hint: str | None, says: str = "for the user") -> None:
    for _ in range(5):
        error = await scene.sdk.failure(scene.sdk.compute.get_instance, scene.ident)
        assert (error.status, error.code, error.headers.get("retry-after")) == (429, "TooManyRequests", hint)
        assert error.message.endswith(says)
    assert await scene.shown() == "RUNNING"


@shows
async def throttles(scene: Scene) -> None:
    await throttled(scene, hint="5")


@shows
async def throttles_without_a_hint(scene: Scene) -> None:
    await throttled(scene, hint=None)


@shows
async def throttles_the_tenancy(scene: Scene) -> None:
    await throttled(scene, hint=None, says="for the tenant")


@shows
async def internal_errors(scene: Scene) -> None:
    assert [await scene.action_refusal() for _ in range(3)] == [(500, "InternalServerError")] * 3
    assert scene.truth() is InstanceState.RUNNING
    assert await scene.act("STOP") == "STOPPING"


@shows
async def unavailable(scene: Scene) -> None:
    assert [await scene.look_refusal() for _ in range(3)] == [(503, "ServiceUnavailable")] * 3
    assert await scene.shown() == "RUNNING"


@shows
async def stale_reads(scene: Scene) -> None:
    ident = await scene.launch()
    get, find = scene.sdk.compute.get_instance, scene.sdk.compute.list_instances
    where = scene.cloud.tenancy.compartment_id
    scene.clock.move(9.9)
    assert await scene.refusal(get, ident) == (404, "NotAuthorizedOrNotFound")
    assert (await scene.sdk.ask(find, where, display_name="fresh")).data == []
    scene.clock.move(0.1)
    assert await scene.shown(ident) == "PROVISIONING"  # as it was
    assert len((await scene.sdk.ask(find, where, display_name="fresh")).data) == 1


@shows
async def stale_lists(scene: Scene) -> None:
    ident = await scene.launch()
    assert await scene.shown(ident) == "PROVISIONING"
    find, where = scene.sdk.compute.list_instances, scene.cloud.tenancy.compartment_id
    scene.clock.move(29.9)
    assert (await scene.sdk.ask(find, where, display_name="fresh")).data == []
    scene.clock.move(0.1)
    assert [each.id for each in (await scene.sdk.ask(find, where, display_name="fresh")).data] == [ident]


# Launching


async def refused_launches(scene: Scene, refusal: tuple[int, str], *, times: int) -> None:
    assert [await scene.launch_refusal() for _ in range(times)] == [refusal] * times
    assert fresh(scene) == []
    assert scene.cloud.strays() == []
    await scene.launch()


@shows
async def out_of_host_capacity(scene: Scene) -> None:
    error = await scene.sdk.failure(scene.sdk.compute.launch_instance, scene.sdk.launch_details())
    assert error.message == "Out of host capacity."
    await refused_launches(scene, (500, "InternalError"), times=1)


@shows
async def out_of_host_capacity_by_its_code(scene: Scene) -> None:
    await refused_launches(scene, (500, "OutOfHostCapacity"), times=2)


@shows
async def over_the_limit(scene: Scene) -> None:
    await refused_launches(scene, (400, "LimitExceeded"), times=1)


@shows
async def over_the_quota(scene: Scene) -> None:
    await refused_launches(scene, (400, "QuotaExceeded"), times=1)


@shows
async def launch_is_invalid(scene: Scene) -> None:
    await refused_launches(scene, (400, "InvalidParameter"), times=1)


@shows
async def launch_lacks_a_parameter(scene: Scene) -> None:
    await refused_launches(scene, (400, "MissingParameter"), times=1)


@shows
async def launch_names_what_is_not_there(scene: Scene) -> None:
    await refused_launches(scene, (400, "RelatedResourceNotAuthorizedOrNotFound"), times=1)


@shows
async def retry_tokens_are_invalidated(scene: Scene) -> None:
    await refused_launches(scene, (409, "InvalidatedRetryToken"), times=1)


@shows
async def capacity_is_missing_later(scene: Scene) -> None:
    launched = await scene.sdk.ask(scene.sdk.compute.launch_instance, scene.sdk.launch_details())
    work = launched.headers["opc-work-request-id"]
    scene.clock.move(2.0)
    assert await scene.shown(launched.data.id) == "TERMINATED"
    assert (await scene.sdk.ask(scene.sdk.work.get_work_request, work)).data.status == "FAILED"
    errors = (await scene.sdk.ask(scene.sdk.work.list_work_request_errors, work)).data
    assert [(each.code, each.message) for each in errors] == [("OutOfHostCapacity", "Out of host capacity.")]
    assert scene.cloud.strays() == []


@shows
async def launch_never_ends(scene: Scene) -> None:
    launched = await scene.sdk.ask(scene.sdk.compute.launch_instance, scene.sdk.launch_details())
    ident, work = launched.data.id, launched.headers["opc-work-request-id"]
    scene.clock.move(86_400.0)
    assert await scene.shown(ident) == "PROVISIONING"
    assert (await scene.sdk.ask(scene.sdk.work.get_work_request, work)).data.status == "IN_PROGRESS"
    await scene.sdk.ask(scene.sdk.compute.terminate_instance, ident)
    assert (await scene.sdk.ask(scene.sdk.work.get_work_request, work)).data.status == "FAILED"
    scene.clock.move(1.0)
    assert await scene.shown(ident) == "TERMINATED"
    assert scene.cloud.strays() == []


@shows
async def vnic_comes_late(scene: Scene) -> None:
    ident = await scene.launch()
    find, where = scene.sdk.compute.list_vnic_attachments, scene.cloud.tenancy.compartment_id
    scene.clock.move(29.9)
    assert await scene.shown(ident) == "RUNNING"
    assert (await scene.sdk.ask(find, where, instance_id=ident)).data == []
    scene.clock.move(0.1)
    found = (await scene.sdk.ask(find, where, instance_id=ident)).data
    assert [each.lifecycle_state for each in found] == ["ATTACHED"]


@shows
async def retry_tokens_are_forgotten(scene: Scene) -> None:
    assert await scene.launch(opc_retry_token="one") != await scene.launch(opc_retry_token="one")
    assert len(fresh(scene)) == 2


# Power


@shows
async def ignores_actions(scene: Scene) -> None:
    assert [await scene.act("STOP") for _ in range(2)] == ["RUNNING"] * 2
    assert scene.truth() is InstanceState.RUNNING
    assert await scene.act("STOP") == "STOPPING"


async def overtaken(scene: Scene, state: InstanceState, *, seconds: float, is_on: bool) -> None:
    """A power action is refused, and so are all others while the state is shown; then the instance is as before."""
    calls = (
        (scene.sdk.compute.instance_action, scene.ident, "STOP"),
        (scene.sdk.compute.terminate_instance, scene.ident),
    )
    assert await scene.action_refusal("RESET") == (409, "IncorrectState")
    scene.clock.move(seconds - 0.1)
    assert await scene.shown() == state
    assert (scene.cloud.alive() == [scene.ident]) is is_on
    assert [await scene.refusal(*call) for call in calls] == [(409, "IncorrectState")] * 2
    scene.clock.move(0.1)
    assert await scene.shown() == "RUNNING"
    assert await scene.act("RESET") == "STOPPING"


@shows
async def is_imaged_first(scene: Scene) -> None:
    await overtaken(scene, InstanceState.CREATING_IMAGE, seconds=60.0, is_on=False)


@shows
async def is_moved_first(scene: Scene) -> None:
    await overtaken(scene, InstanceState.MOVING, seconds=30.0, is_on=True)


@shows
async def hides_resets(scene: Scene) -> None:
    assert await scene.act("RESET") == "RUNNING"
    for true in (InstanceState.STOPPING, InstanceState.STARTING, InstanceState.RUNNING):
        assert scene.truth() is true
        assert await scene.shown() == "RUNNING"
        scene.clock.move(1.0)
    assert await scene.act("STOP") == "STOPPING"


@shows
async def resets_at_once(scene: Scene) -> None:
    assert await scene.act("RESET") == "STOPPING"
    assert await scene.shown() == "RUNNING"
    assert [each.detail for each in scene.cloud.history.of("Instance", "worker") if each.what == "state"][-3:] == [
        "STOPPING",
        "STARTING",
        "RUNNING",
    ]
    assert await scene.act("STOP") == "STOPPING"
    assert await scene.shown() == "STOPPING"


@shows
async def resets_unseen(scene: Scene) -> None:
    answer = await scene.sdk.ask(scene.sdk.compute.instance_action, scene.ident, "RESET")
    assert answer.data.lifecycle_state == await scene.shown() == "RUNNING"
    assert "opc-work-request-id" not in answer.headers
    where = scene.cloud.tenancy.compartment_id
    (work,) = (await scene.sdk.ask(scene.sdk.work.list_work_requests, where, resource_id=scene.ident)).data
    assert (work.operation_type, work.status) == ("InstanceAction", "SUCCEEDED")
    assert parsedate_to_datetime(answer.headers["date"]) <= work.time_accepted <= work.time_finished


@shows
async def actions_have_work_requests(scene: Scene) -> None:
    ask, look = scene.sdk.compute.instance_action, scene.sdk.work.get_work_request
    first = await scene.sdk.ask(ask, scene.ident, "RESET", opc_retry_token="token")
    again = await scene.sdk.ask(ask, scene.ident, "RESET", opc_retry_token="token")
    ident = first.headers["opc-work-request-id"]
    assert again.headers["opc-work-request-id"] == ident
    shown = await scene.sdk.ask(look, ident)
    assert (shown.data.status, shown.headers["retry-after"]) == ("ACCEPTED", "5")
    scene.clock.move(1.5)
    assert (await scene.sdk.ask(look, ident)).data.status == "IN_PROGRESS"
    scene.clock.move(0.5)
    assert (await scene.sdk.ask(look, ident)).data.status == "SUCCEEDED"
    assert await scene.shown() == "RUNNING"


@shows
async def accepts_what_is_so_already(scene: Scene) -> None:
    assert await scene.act("START") == "RUNNING"
    await scene.act("STOP")
    assert await scene.act("STOP") == "STOPPING"
    scene.clock.move(1.0)
    assert await scene.act("STOP") == "STOPPED"


@shows
async def os_ignores_shutdown(scene: Scene) -> None:
    await scene.act("SOFTSTOP")
    scene.clock.move(899.0)
    assert await scene.shown() == "STOPPING"
    scene.clock.move(1.0)
    assert await scene.shown() == "STOPPED"


@shows
async def stop_never_ends(scene: Scene) -> None:
    await scene.act("STOP")
    scene.clock.move(86_400.0)
    assert await scene.shown() == "STOPPING"
    await scene.terminate()
    scene.clock.move(1.0)
    assert await scene.shown() == "TERMINATED"


@shows
async def starts_fail(scene: Scene) -> None:
    await scene.act("RESET")
    scene.clock.move(1.0)
    assert await scene.shown() == "STARTING"
    for _ in range(2):
        scene.clock.move(1.0)
        assert await scene.shown() == "STOPPED"
        assert await scene.act("START") == "STARTING"
    scene.clock.move(1.0)
    assert await scene.shown() == "RUNNING"


@shows
async def busy_after_changes(scene: Scene) -> None:
    await scene.act("STOP")
    scene.clock.move(9.9)
    assert await scene.action_refusal("START") == (409, "Conflict")
    assert await scene.refusal(scene.sdk.compute.terminate_instance, scene.ident) == (409, "Conflict")
    scene.clock.move(0.1)
    assert await scene.act("START") == "STARTING"


@shows
async def conflicts(scene: Scene) -> None:
    assert [await scene.action_refusal() for _ in range(2)] == [(409, "IncorrectState")] * 2
    assert await scene.act("STOP") == "STOPPING"


# Terminating


@shows
async def terminate_gets_stuck(scene: Scene) -> None:
    await scene.terminate()
    scene.clock.move(86_400.0)
    assert await scene.shown() == "TERMINATING"
    assert await scene.action_refusal("START") == (409, "IncorrectState")
    assert len(scene.cloud.machines()) == 1


@shows
async def terminate_leaves_the_boot_volume(scene: Scene) -> None:
    await scene.terminate()
    scene.clock.move(1.0)
    assert await scene.shown() == "TERMINATED"
    (stray,) = scene.cloud.strays()
    left = (await scene.sdk.ask(scene.sdk.storage.get_boot_volume, stray)).data
    assert (left.lifecycle_state, left.display_name) == ("AVAILABLE", "worker (Boot Volume)")
    await scene.sdk.ask(scene.sdk.storage.delete_boot_volume, stray)
    assert scene.cloud.strays() == []


@shows
async def terminate_leaves_the_vnic(scene: Scene) -> None:
    await scene.terminate()
    scene.clock.move(1.0)
    assert await scene.shown() == "TERMINATED"
    (stray,) = scene.cloud.strays()
    assert (await scene.sdk.ask(scene.sdk.network.get_vnic, stray)).data.lifecycle_state == "AVAILABLE"


@shows
async def terminated_is_gone_at_once(scene: Scene) -> None:
    await scene.terminate()
    assert await scene.shown() == "TERMINATING"
    scene.clock.move(1.0)
    assert await scene.look_refusal() == (404, "NotAuthorizedOrNotFound")
    assert await scene.refusal(scene.sdk.compute.terminate_instance, scene.ident) == (404, "NotAuthorizedOrNotFound")


@shows
async def work_requests_vanish(scene: Scene) -> None:
    work = (await scene.terminate()).headers["opc-work-request-id"]
    look = scene.sdk.work.get_work_request
    assert (await scene.sdk.ask(look, work)).data.status == "ACCEPTED"
    scene.clock.move(1.0)
    assert await scene.refusal(look, work) == (404, "NotAuthorizedOrNotFound")
    assert await scene.shown() == "TERMINATED"


# Access


@shows
async def bad_gateway(scene: Scene) -> None:
    assert [await scene.action_refusal() for _ in range(2)] == [(502, "InternalError")] * 2
    assert scene.truth() is InstanceState.RUNNING
    assert await scene.act("STOP") == "STOPPING"


@shows
async def gateway_times_out(scene: Scene) -> None:
    assert await scene.action_refusal() == (504, "InternalError")
    assert scene.truth() is InstanceState.STOPPING
    scene.clock.move(1.0)
    assert await scene.launch_refusal() == (504, "InternalError")
    assert len(fresh(scene)) == 1
    assert await scene.act("START") == "STARTING"


@shows
async def key_is_revoked(scene: Scene) -> None:
    assert await scene.look_refusal() == (401, "NotAuthenticated")
    scene.cloud.set_profile("ideal")
    assert await scene.shown() == "RUNNING"


@shows
async def clock_is_ahead(scene: Scene) -> None:
    error = await scene.sdk.failure(scene.sdk.compute.get_instance, scene.ident)
    assert (error.status, error.code) == (401, "NotAuthenticated")
    assert "more than 300 s" in error.message


@shows
async def no_permission(scene: Scene) -> None:
    assert [await scene.action_refusal() for _ in range(3)] == [(404, "NotAuthorizedOrNotFound")] * 3
    assert await scene.shown() == "RUNNING"


@shows
async def forbidden(scene: Scene) -> None:
    assert [await scene.action_refusal() for _ in range(3)] == [(403, "NotAuthorized")] * 3
    assert await scene.shown() == "RUNNING"
    assert scene.truth() is InstanceState.RUNNING


NOT_OBSERVED = (404, "NotAuthorizedOrNotFound")


@shows
async def no_permission_to_look(scene: Scene) -> None:
    assert [await scene.look_refusal() for _ in range(3)] == [NOT_OBSERVED] * 3
    assert await scene.act("STOP") == "STOPPING"


@shows
async def no_permission_for_networks(scene: Scene) -> None:
    (vnic,), subnet = scene.cloud.tenancy.vnics, scene.cloud.tenancy.public_subnet
    calls = (scene.sdk.network.get_vnic, vnic.id), (scene.sdk.network.get_subnet, subnet.id)
    assert [await scene.refusal(*call) for call in calls * 2] == [NOT_OBSERVED] * 4
    assert await scene.shown() == "RUNNING"


@shows
async def no_permission_for_volumes(scene: Scene) -> None:
    (volume,) = scene.cloud.tenancy.boot_volumes
    assert [await scene.refusal(scene.sdk.storage.get_boot_volume, volume.id) for _ in range(3)] == [NOT_OBSERVED] * 3
    assert await scene.shown() == "RUNNING"
