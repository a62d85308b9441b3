"""Resets that are not carried out, or differ from the request, and hosts that ignore them."""

from __future__ import annotations

import pytest

from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import RESET, Wire
from unbounded_lab.bmc import HostPower

CHECKS = Checks()


# Power actions


async def deaf(talk: Wire, times: int) -> None:
    for _ in range(times):
        assert (await talk.reset("ForceOff")).status == 204
    assert talk.bmc.power() is HostPower.ON
    assert [event.what for event in talk.bmc.history()] == ["unheard"] * times


@CHECKS.shows
async def accepts_and_does_nothing(talk: Wire) -> None:
    await deaf(talk, 5)


@CHECKS.shows
async def accepts_and_does_nothing_twice(talk: Wire) -> None:
    await deaf(talk, 2)
    await talk.reset("ForceOff")
    assert talk.bmc.power() is HostPower.OFF


@CHECKS.shows
async def refuses_what_is_so_already(talk: Wire) -> None:
    answer = await talk.reset("On")
    assert (answer.status, answer.message_id) == (409, "IDRAC.2.1.PSU501")
    assert b"already powered ON" in answer.body


@CHECKS.shows
async def bad_request_when_so_already(talk: Wire) -> None:
    await talk.reset("ForceOff")
    answer = await talk.reset("ForceOff")
    assert (answer.status, answer.message_id) == (400, "iLO.2.18.InvalidOperationForSystemState")


@CHECKS.shows
async def reset_fails_inside(talk: Wire) -> None:
    assert [(await talk.reset("ForceOff")).status for _ in range(2)] == [500, 500]
    assert talk.bmc.power() is HostPower.ON
    assert (await talk.reset("ForceOff")).status == 204


async def allowable_values(talk: Wire) -> tuple[list[str] | None, list[str] | None]:
    """Return the values at the action, and in its ActionInfo."""
    action = (await talk.get()).json["Actions"]["#ComputerSystem.Reset"]
    assert action["target"] == RESET
    info = action.get("@Redfish.ActionInfo")
    values = (await talk.get(info)).json["Parameters"][0]["AllowableValues"] if info else None
    return action.get("ResetType@Redfish.AllowableValues"), values


@CHECKS.shows
async def no_allowable_values(talk: Wire) -> None:
    assert await allowable_values(talk) == (None, None)
    assert (await talk.reset("ForceOff")).status == 204


@CHECKS.shows
async def allowable_values_in_action_info_only(talk: Wire) -> None:
    inline, info = await allowable_values(talk)
    assert inline is None
    assert info is not None
    assert "ForceOff" in info


async def lacks(talk: Wire, reset_type: str) -> None:
    inline, info = await allowable_values(talk)
    assert inline == info
    assert inline is not None
    assert reset_type not in inline
    answer = await talk.reset(reset_type)
    assert (answer.status, answer.message_id) == (400, "Base.1.18.ActionParameterValueNotInList")


@CHECKS.shows
async def no_graceful_shutdown(talk: Wire) -> None:
    await lacks(talk, "GracefulShutdown")


@CHECKS.shows
async def no_force_off(talk: Wire) -> None:
    await lacks(talk, "ForceOff")


async def accepted_task(talk: Wire) -> tuple[str, str]:
    """The paths of a reset's Task and of its monitor."""
    answer = await talk.reset("ForceOff")
    assert answer.status == 202
    monitor = answer.headers["location"]
    assert answer.json["TaskMonitor"] == monitor
    assert (await talk.get(monitor)).status == 202
    assert (await talk.get(answer.json["@odata.id"])).json["TaskState"] == "Running"
    talk.clock.move(4.9)
    assert talk.bmc.power() is HostPower.ON
    talk.clock.move(0.1)
    return answer.json["@odata.id"], monitor


@CHECKS.shows
async def task_that_succeeds_slowly(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is HostPower.OFF
    assert (await talk.get(task)).json["TaskState"] == "Completed"
    assert (await talk.get(monitor)).status == 204


@CHECKS.shows
async def task_that_fails(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is HostPower.ON
    state = (await talk.get(task)).json
    assert (state["TaskState"], state["TaskStatus"]) == ("Exception", "Critical")
    assert (await talk.get(monitor)).status == 500


@CHECKS.shows
async def task_that_vanishes(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is HostPower.OFF
    assert (await talk.get(task)).status == (await talk.get(monitor)).status == 404


# The host


@CHECKS.shows
async def os_ignores_shutdown(talk: Wire) -> None:
    assert (await talk.reset("GracefulShutdown")).status == 204
    talk.clock.move(3600.0)
    assert talk.bmc.power() is HostPower.ON
    await talk.reset("ForceOff")
    assert talk.bmc.power() is HostPower.OFF


@CHECKS.shows
async def switches_itself_on_again(talk: Wire) -> None:
    await talk.reset("ForceOff")
    assert await talk.shown_power() == "Off"
    talk.clock.move(3.0)
    assert await talk.shown_power() == "PoweringOn"


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
