"""Calls of the client: the system, the ResetType, tasks, refusals, and the boot override."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web

from tests.metalman.fake_bmc import PASSWORD, RESET, ROOT, SYSTEM, FakeBmc, Handler, error, hang_up, says, slow
from unbounded.api.failures import Rejected, Transient, Uncertain
from unbounded.metalman.redfish.bmc_interface import (
    BmcLimits,
    BmcPowerState,
    BootEnabled,
    BootOverride,
    BootTarget,
    ResetType,
    TaskFailed,
    Unsupported,
)
from unbounded.metalman.redfish.pool import BmcPool

TASK = f"{ROOT}/TaskService/TaskMonitors/7"


@pytest.mark.parametrize(
    ("said", "power"),
    [("On", BmcPowerState.ON), ("Off", BmcPowerState.OFF), ("off", BmcPowerState.OFF)]
    + [(text, BmcPowerState.UNSETTLED) for text in ("PoweringOn", "PoweringOff", "Paused", "Unknown", None, 7)],
)
async def test_power_is_on_off_or_unsettled(bmc: FakeBmc, pool: BmcPool, said: object, power: BmcPowerState) -> None:
    bmc.power = said
    state = await pool.bmc(bmc.access()).system()
    assert (state.power, state.power_text) == (power, said if isinstance(said, str) else "")


async def test_machines_behind_one_chassis_never_share_a_device_id(pool: BmcPool) -> None:
    async with FakeBmc(members=("1", "2")) as chassis:
        first, second = (pool.bmc(chassis.access(device_id=device)) for device in ("1", "2"))
        await first.system()
        await second.reset(ResetType.FORCE_OFF)
        await first.reset(ResetType.ON)
        assert chassis.resets == [("2", "ForceOff"), ("1", "On")]
        assert chassis.opened == 1


@pytest.mark.parametrize("asked", ["1", ""])
async def test_the_default_device_is_the_only_member_where_there_is_no_1(pool: BmcPool, asked: str) -> None:
    async with FakeBmc(members=("System.Embedded.1",)) as bmc:
        handle = pool.bmc(bmc.access(device_id=asked))
        assert (await handle.system()).device_id == "System.Embedded.1"
        await handle.reset(ResetType.FORCE_OFF)
        assert bmc.resets == [("System.Embedded.1", "ForceOff")]
        assert bmc.count("GET", f"{ROOT}/Systems") == 1, "it is looked up once"


@pytest.mark.parametrize(("asked", "there"), [("1", ("a", "b")), ("c", ("a", "b")), ("c", ("a",)), ("..", ("a",))])
async def test_a_device_that_is_not_there_is_rejected_with_those_that_are(
    pool: BmcPool, asked: str, there: tuple[str, ...]
) -> None:
    async with FakeBmc(members=there) as bmc:
        with pytest.raises(Rejected, match=f"set deviceID to one of: {', '.join(there)}"):
            await pool.bmc(bmc.access(device_id=asked)).reset(ResetType.FORCE_OFF)
        assert not bmc.resets


async def test_a_bmc_that_lists_no_systems_yet_is_asked_again_later(pool: BmcPool) -> None:
    async with FakeBmc(members=()) as bmc:
        with pytest.raises(Transient, match="lists no systems"):
            await pool.bmc(bmc.access()).system()


@pytest.mark.parametrize(
    ("wanted", "allowable", "sent"),
    [
        (ResetType.ON, ["On", "ForceOn"], "On"),
        (ResetType.ON, ["ForceOn"], "ForceOn"),
        (ResetType.ON, [], "On"),
        (ResetType.ON, None, "On"),
        (ResetType.FORCE_OFF, None, "ForceOff"),
        (ResetType.GRACEFUL_SHUTDOWN, ["GracefulShutdown", "PushPowerButton"], "GracefulShutdown"),
        (ResetType.GRACEFUL_SHUTDOWN, ["On", "ForceOff", "PushPowerButton"], "PushPowerButton"),
    ],
)
async def test_what_is_sent_is_what_the_bmc_lists(
    bmc: FakeBmc, pool: BmcPool, wanted: ResetType, allowable: list[str] | None, sent: str
) -> None:
    bmc.allowable = allowable
    accepted = await pool.bmc(bmc.access()).reset(wanted)
    assert bmc.resets == [("1", sent)]
    assert accepted.sent == sent
    assert (accepted.note != "") == (sent != wanted)


@pytest.mark.parametrize(
    ("wanted", "allowable"),
    [
        (ResetType.ON, ["ForceOff", "PushPowerButton"]),
        (ResetType.FORCE_OFF, ["On", "GracefulShutdown"]),
        (ResetType.GRACEFUL_SHUTDOWN, ["On", "ForceOff"]),
    ],
)
async def test_what_the_bmc_does_not_offer_is_unsupported_and_not_sent(
    bmc: FakeBmc, pool: BmcPool, wanted: ResetType, allowable: list[str]
) -> None:
    bmc.allowable = allowable
    with pytest.raises(Unsupported, match=", ".join(allowable)):
        await pool.bmc(bmc.access()).reset(wanted)
    assert not bmc.resets


@pytest.mark.parametrize(("power", "already"), [("Off", True), ("PoweringOff", False)])
async def test_the_power_button_is_pushed_only_while_power_is_on(
    bmc: FakeBmc, pool: BmcPool, power: str, already: bool
) -> None:
    bmc.allowable, bmc.power = ["On", "ForceOff", "PushPowerButton"], power
    handle = pool.bmc(bmc.access())
    if already:
        assert (await handle.reset(ResetType.GRACEFUL_SHUTDOWN)).already
    else:
        with pytest.raises(Transient):
            await handle.reset(ResetType.GRACEFUL_SHUTDOWN)
    assert not bmc.resets


async def test_an_action_info_says_what_may_be_sent(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.allowable = None
    bmc.extra = {"Actions": {"#ComputerSystem.Reset": {"target": RESET, "@Redfish.ActionInfo": f"{SYSTEM}/ResetInfo"}}}
    info = {"Parameters": [{"Name": "ResetType", "AllowableValues": ["ForceOn", "ForceOff"]}]}
    bmc.always("GET", f"{SYSTEM}/ResetInfo", says(lambda: web.json_response(info)))
    handle = pool.bmc(bmc.access())
    assert (await handle.reset(ResetType.ON)).sent == "ForceOn"
    await handle.system()
    await handle.reset(ResetType.FORCE_OFF)
    assert bmc.count("GET", f"{SYSTEM}/ResetInfo") == 1


async def test_a_refused_value_is_replaced_where_the_bmc_lists_none(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.allowable = None
    bmc.once("POST", RESET, says(lambda: error(400, "ActionParameterValueNotInList")))
    assert (await pool.bmc(bmc.access()).reset(ResetType.ON)).sent == "ForceOn"
    assert bmc.resets == [("1", "ForceOn")]


@pytest.mark.parametrize(
    "answer",
    [
        lambda: error(409, "GeneralError", "The server is already powered OFF."),
        lambda: error(400, "InvalidOperationForSystemState"),
        lambda: error(400, "NoOperation"),
    ],
)
async def test_a_refusal_that_means_already_is_checked_by_a_reading(
    bmc: FakeBmc, pool: BmcPool, answer: Callable[[], web.Response]
) -> None:
    bmc.always("POST", RESET, says(answer))
    handle = pool.bmc(bmc.access())
    with pytest.raises(Transient, match="while the power state is 'On'"):
        await handle.reset(ResetType.FORCE_OFF)
    bmc.power = "Off"
    accepted = await handle.reset(ResetType.FORCE_OFF)
    assert (accepted.sent, accepted.already) == ("ForceOff", True)


@pytest.mark.parametrize("status", [400, 404, 405, 410, 501])
async def test_a_refused_action_is_unsupported_in_the_bmcs_own_words(bmc: FakeBmc, pool: BmcPool, status: int) -> None:
    said = f"no such\n\x1b[31maction{'!' * 5000} {PASSWORD}"
    bmc.always("POST", RESET, says(lambda: error(status, "ActionNotSupported", said)))
    with pytest.raises(Unsupported, match=f"{status}.*ActionNotSupported: no such .*action!") as refused:
        await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert len(str(refused.value)) <= 1024
    assert str(refused.value).isprintable()


async def test_password_in_a_bmc_error_is_redacted(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.always("POST", RESET, says(lambda: error(400, "Oops", f"you said {PASSWORD} and token-1")))
    with pytest.raises(Unsupported, match=r"you said \*\*\* and \*\*\*"):
        await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)


async def test_action_has_if_match_only_after_precondition_required(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.extra = {"@odata.etag": 'W/"5"'}
    handle = pool.bmc(bmc.access())
    await handle.reset(ResetType.FORCE_OFF)
    assert "If-Match" not in bmc.headers[-1]
    bmc.once("POST", RESET, says(lambda: error(428, "PreconditionRequired")))
    await handle.reset(ResetType.ON)
    assert bmc.headers[-1]["If-Match"] == 'W/"5"'
    assert bmc.resets == [("1", "ForceOff"), ("1", "On")]


def task(state: str, text: str = "", identity: str = "Any") -> Handler:
    messages = [{"MessageId": f"Base.1.8.{identity}", "Message": text}] if text else []
    return says(lambda: web.json_response({"Id": "7", "TaskState": state, "Messages": messages}))


def accept_as_task(bmc: FakeBmc) -> None:
    async def accepted(request: web.Request) -> web.StreamResponse:
        await bmc.reset(request)
        return web.json_response({"@odata.id": TASK}, status=202, headers={"Location": TASK})

    bmc.once("POST", RESET, accepted)


async def test_a_task_is_followed_to_its_end(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    accept_as_task(bmc)
    monitor = says(lambda: web.Response(status=202))
    bmc.once("GET", TASK, task("New"), monitor, hang_up, hang_up, task("Running"), task("Completed", "done"))
    accepted = await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert (accepted.settled, accepted.note) == (True, "Base.1.8.Any: done")


async def test_a_task_monitor_that_answers_as_the_action_has_ended(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    accept_as_task(bmc)
    bmc.once("GET", TASK, says(lambda: web.Response(status=204)))
    assert (await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)).settled


@pytest.mark.parametrize(
    ("handler", "kind"),
    [
        (task("Exception", "the host did not react"), TaskFailed),
        (task("Killed", "the host did not react"), TaskFailed),
        (task("Exception", "the host did not react", "ActionNotSupported"), Rejected),
        (says(lambda: error(400, "PropertyValueNotInList", "the host did not react")), Rejected),
        (says(lambda: error(500, "InternalError", "the host did not react")), Uncertain),
    ],
)
async def test_a_task_that_fails_says_why(
    bmc: FakeBmc, hasty_pool: BmcPool, handler: Handler, kind: type[Exception]
) -> None:
    accept_as_task(bmc)
    bmc.once("GET", TASK, handler)
    with pytest.raises(kind, match="the host did not react"):
        await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert len(bmc.resets) == 1


@pytest.mark.parametrize("status", [404, 410])
async def test_a_task_that_is_gone_leaves_its_end_unknown(bmc: FakeBmc, hasty_pool: BmcPool, status: int) -> None:
    accept_as_task(bmc)
    bmc.once("GET", TASK, says(lambda: error(status, "ResourceMissingAtURI")))
    with pytest.raises(Uncertain, match="does not exist any more"):
        await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert len(bmc.resets) == 1


@pytest.mark.slow
async def test_task_running_at_the_limit_is_accepted_but_unsettled(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    accept_as_task(bmc)
    bmc.always("GET", TASK, task("Running"))
    accepted = await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert (accepted.sent, accepted.settled) == ("ForceOff", False)


@pytest.mark.slow
async def test_task_still_runs_when_the_limit_interrupts_its_poll(bmc: FakeBmc) -> None:
    accept_as_task(bmc)
    bmc.once("GET", TASK, task("Running"), slow(40, says(web.Response)))
    async with BmcPool(BmcLimits(task_s=1.5, task_poll_s=0.02)) as pool:
        accepted = await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert (accepted.sent, accepted.settled) == ("ForceOff", False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "look", [says(lambda: error(503, "ServiceTemporarilyUnavailable")), slow(40, says(web.Response))]
)
async def test_a_task_that_cannot_be_looked_at_leaves_its_end_unknown(bmc: FakeBmc, look: Handler) -> None:
    accept_as_task(bmc)
    bmc.always("GET", TASK, look)
    async with asyncio.timeout(20), BmcPool(BmcLimits(task_s=0.5, task_poll_s=0.1)) as pool:
        with pytest.raises(Uncertain, match="cannot be followed"):
            await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)


async def test_an_error_of_the_monitor_itself_is_held_against_the_task(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    resource = f"{ROOT}/TaskService/Tasks/7"

    async def accepted(request: web.Request) -> web.StreamResponse:
        return web.json_response({"@odata.id": resource}, status=202, headers={"Location": TASK})

    bmc.always("POST", RESET, accepted)
    bmc.always("GET", TASK, says(lambda: error(500, "InternalError")))
    bmc.once("GET", resource, task("Completed"), task("Exception", "no power supply"))
    assert (await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)).settled
    with pytest.raises(TaskFailed, match="no power supply"):
        await hasty_pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)


PXE_ONCE = BootOverride(BootEnabled.ONCE, BootTarget.PXE)


async def test_the_boot_override_is_written_with_its_mode_and_read_back(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    assert (await handle.system()).boot == BootOverride("Disabled", "None", None)
    assert await handle.set_boot_override(PXE_ONCE) == BootOverride("Once", "Pxe", "UEFI")
    bmc.boot["BootSourceOverrideMode"] = "Legacy"
    assert await handle.set_boot_override(PXE_ONCE) == BootOverride("Once", "Pxe", "Legacy")
    assert await handle.disable_boot_override() == BootOverride("Disabled", "Pxe", "Legacy")


async def test_ignored_boot_override_is_detected_by_reading_it_back(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("PATCH", SYSTEM, says(lambda: web.Response(status=200)))
    assert (await pool.bmc(bmc.access()).set_boot_override(PXE_ONCE)).enabled == "Disabled"


async def test_a_bmc_without_boot_override_is_unsupported(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.boot = {}
    with pytest.raises(Unsupported, match="no boot override"):
        await pool.bmc(bmc.access()).set_boot_override(PXE_ONCE)
    assert bmc.count("PATCH", SYSTEM) == 0


async def test_unrequested_boot_mode_is_omitted_when_rejected(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("PATCH", SYSTEM, says(lambda: error(400, "PropertyNotWritable", "BootSourceOverrideMode")))
    assert await pool.bmc(bmc.access()).set_boot_override(PXE_ONCE) == BootOverride("Once", "Pxe", None)


async def test_disk_for_ever_stands_for_disabled_where_that_is_refused(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("PATCH", SYSTEM, *[says(lambda: error(400, "PropertyValueNotInList"))] * 4)
    assert await pool.bmc(bmc.access()).disable_boot_override() == BootOverride("Continuous", "Hdd", "UEFI")


async def test_changes_go_to_the_settings_object_where_the_system_takes_none(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.extra = {"@Redfish.Settings": {"SettingsObject": {"@odata.id": f"{SYSTEM}/SD"}}}
    bmc.once("PATCH", SYSTEM, says(lambda: error(405, "OperationNotAllowed")))
    bmc.once("PATCH", f"{SYSTEM}/SD", says(lambda: web.Response(status=204)))
    await pool.bmc(bmc.access()).set_boot_override(PXE_ONCE)
    assert bmc.count("PATCH", f"{SYSTEM}/SD") == 1


@pytest.mark.parametrize(
    ("etag", "wants"), [('"5"', '"5"'), ('W/"5"', 'W/"5"'), ('W/"5"', '"5"'), ('"5"', 'W/"5"'), ('"5"', "*")]
)
@pytest.mark.parametrize("status", [412, 428])
async def test_accepted_if_match_form_is_remembered(
    bmc: FakeBmc, pool: BmcPool, etag: str, wants: str, status: int
) -> None:
    bmc.extra = {"@odata.etag": etag}

    async def strict(request: web.Request) -> web.StreamResponse:
        if request.headers.get("If-Match") != wants:
            return error(status, "PreconditionFailed")
        return await bmc.normal(request)

    bmc.always("PATCH", SYSTEM, strict)
    handle = pool.bmc(bmc.access())
    assert (await handle.set_boot_override(PXE_ONCE)).target == "Pxe"
    tries = bmc.count("PATCH", SYSTEM)
    await handle.disable_boot_override()
    assert bmc.count("PATCH", SYSTEM) == tries + 1


async def test_junk_of_any_type_in_a_system_is_read_as_not_said(bmc: FakeBmc, pool: BmcPool) -> None:
    junk: list[dict[str, Any]] = [
        {"Boot": [], "Actions": None, "UUID": 5, "@odata.etag": {}},
        {"Actions": {"#ComputerSystem.Reset": {"ResetType@Redfish.AllowableValues": "On", "target": 7}}},
        {"Actions": {"#ComputerSystem.Reset": {"ResetType@Redfish.AllowableValues": [1, None]}}, "Boot": {"x": 1}},
    ]
    for extra in junk:
        bmc.extra = extra
        state = await pool.bmc(bmc.access()).system()
        assert not state.allowable
        assert state.uuid is None
