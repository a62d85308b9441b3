"""Each misbehaviour does over HTTPS what its description says."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import Awaitable, Callable

import aiohttp
import msgspec
import pytest

from tests.lab.wire import PXE_ONCE, RESET, ROOT, SESSIONS, SYSTEM, Answer, Wire, eventually, wire
from unbounded.lab.bmc import Power
from unbounded.lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded.lab.bmc.power import Override

Check = Callable[[Wire], Awaitable[None]]

CHECKS: dict[str, Check] = {}


def shows(check: Check) -> Check:
    CHECKS[check.__name__.replace("_", "-")] = check
    return check


def test_every_misbehaviour_is_shown() -> None:
    assert CHECKS.keys() == MISBEHAVIOURS.keys()


@pytest.mark.parametrize("name", MISBEHAVIOURS)
async def test_it_does_what_it_says(name: str) -> None:
    async with wire(name) as talk:
        await CHECKS[name](talk)


async def test_without_faults_a_machine_is_rebooted() -> None:
    async with wire("ideal") as talk:
        assert (await talk.reset("GracefulShutdown")).status == 204
        talk.clock.move(1.0)
        assert await talk.shown_power() == "Off"
        assert (await talk.reset("On")).status == 204
        talk.clock.move(2.0)
        assert await talk.shown_power() == "On"
        assert [event.detail for event in talk.bmc.history()] == [
            *("GracefulShutdown", "PoweringOff", "Off"),
            *("On", "PoweringOn", "Hdd", "On"),
        ]


# Power actions


async def deaf(talk: Wire, times: int) -> None:
    for _ in range(times):
        assert (await talk.reset("ForceOff")).status == 204
    assert talk.bmc.power() is Power.ON
    assert [event.what for event in talk.bmc.history()] == ["unheard"] * times


@shows
async def accepts_and_does_nothing(talk: Wire) -> None:
    await deaf(talk, 5)


@shows
async def accepts_and_does_nothing_twice(talk: Wire) -> None:
    await deaf(talk, 2)
    await talk.reset("ForceOff")
    assert talk.bmc.power() is Power.OFF


@shows
async def refuses_what_is_so_already(talk: Wire) -> None:
    answer = await talk.reset("On")
    assert (answer.status, answer.message_id) == (409, "IDRAC.2.1.PSU501")
    assert b"already powered ON" in answer.body


@shows
async def bad_request_when_so_already(talk: Wire) -> None:
    await talk.reset("ForceOff")
    answer = await talk.reset("ForceOff")
    assert (answer.status, answer.message_id) == (400, "iLO.2.18.InvalidOperationForSystemState")


@shows
async def reset_fails_inside(talk: Wire) -> None:
    assert [(await talk.reset("ForceOff")).status for _ in range(2)] == [500, 500]
    assert talk.bmc.power() is Power.ON
    assert (await talk.reset("ForceOff")).status == 204


async def allowable_values(talk: Wire) -> tuple[list[str] | None, list[str] | None]:
    """As they stand at the action, and in its ActionInfo."""
    action = (await talk.get()).json["Actions"]["#ComputerSystem.Reset"]
    assert action["target"] == RESET
    info = action.get("@Redfish.ActionInfo")
    values = (await talk.get(info)).json["Parameters"][0]["AllowableValues"] if info else None
    return action.get("ResetType@Redfish.AllowableValues"), values


@shows
async def no_allowable_values(talk: Wire) -> None:
    assert await allowable_values(talk) == (None, None)
    assert (await talk.reset("ForceOff")).status == 204


@shows
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


@shows
async def no_graceful_shutdown(talk: Wire) -> None:
    await lacks(talk, "GracefulShutdown")


@shows
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
    assert talk.bmc.power() is Power.ON
    talk.clock.move(0.1)
    return answer.json["@odata.id"], monitor


@shows
async def task_that_succeeds_slowly(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is Power.OFF
    assert (await talk.get(task)).json["TaskState"] == "Completed"
    assert (await talk.get(monitor)).status == 204


@shows
async def task_that_fails(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is Power.ON
    state = (await talk.get(task)).json
    assert (state["TaskState"], state["TaskStatus"]) == ("Exception", "Critical")
    assert (await talk.get(monitor)).status == 500


@shows
async def task_that_vanishes(talk: Wire) -> None:
    task, monitor = await accepted_task(talk)
    assert talk.bmc.power() is Power.OFF
    assert (await talk.get(task)).status == (await talk.get(monitor)).status == 404


# The host


@shows
async def os_ignores_shutdown(talk: Wire) -> None:
    assert (await talk.reset("GracefulShutdown")).status == 204
    talk.clock.move(3600.0)
    assert talk.bmc.power() is Power.ON
    await talk.reset("ForceOff")
    assert talk.bmc.power() is Power.OFF


@shows
async def switches_itself_on_again(talk: Wire) -> None:
    await talk.reset("ForceOff")
    assert await talk.shown_power() == "Off"
    talk.clock.move(3.0)
    assert await talk.shown_power() == "PoweringOn"


# What is said of the power


@shows
async def lies_about_power(talk: Wire) -> None:
    await talk.reset("ForceOff")
    assert talk.bmc.power() is Power.OFF
    talk.clock.move(9.9)
    assert await talk.shown_power() == "On"
    talk.clock.move(0.1)
    assert await talk.shown_power() == "Off"


@shows
async def stale_power(talk: Wire) -> None:
    assert await talk.shown_power() == "On"
    await talk.reset("ForceOff")
    talk.clock.move(4.9)
    assert await talk.shown_power() == "On"
    talk.clock.move(0.1)
    assert await talk.shown_power() == "Off"


async def in_transition(talk: Wire) -> Answer:
    await talk.reset("GracefulShutdown")
    assert talk.bmc.power() is Power.POWERING_OFF
    changing = await talk.get()
    talk.clock.move(1.0)
    assert await talk.shown_power() == "Off"
    return changing


@shows
async def hides_transitions(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "On"
    await talk.reset("On")
    assert await talk.shown_power() == "On"
    assert talk.bmc.power() is Power.POWERING_ON


@shows
async def null_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] is None


@shows
async def no_power_in_transition(talk: Wire) -> None:
    assert "PowerState" not in (await in_transition(talk)).json


@shows
async def unknown_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "Unknown"


@shows
async def odd_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "Starting"


@shows
async def empty_system_in_transition(talk: Wire) -> None:
    changing = await in_transition(talk)
    assert (changing.status, changing.body) == (200, b"")


# Boot override


async def patched(talk: Wire, **headers: str) -> Answer:
    return await talk.ask("PATCH", SYSTEM, PXE_ONCE, **headers)


async def boot_source(talk: Wire) -> str:
    """What the host boots from when it is reset."""
    await talk.reset("ForceRestart")
    return [event.detail for event in talk.bmc.history() if event.what == "boot"][-1]


@shows
async def boot_override_dropped(talk: Wire) -> None:
    assert (await patched(talk)).status == 200
    assert (await talk.get()).json["Boot"]["BootSourceOverrideEnabled"] == "Disabled"


@shows
async def boot_override_not_followed(talk: Wire) -> None:
    await patched(talk)
    assert (await talk.get()).json["Boot"]["BootSourceOverrideTarget"] == "Pxe"
    assert await boot_source(talk) == "Hdd"


@shows
async def boot_override_refused(talk: Wire) -> None:
    assert (await patched(talk)).status == 405
    assert talk.bmc.host().boot.enabled is Override.DISABLED


@shows
async def boot_override_stays(talk: Wire) -> None:
    assert (await patched(talk)).json["Boot"]["BootSourceOverrideEnabled"] == "Continuous"
    assert [await boot_source(talk) for _ in range(2)] == ["Pxe", "Pxe"]


@shows
async def boot_override_fails_when_off(talk: Wire) -> None:
    assert (await patched(talk)).status == 200
    await talk.reset("ForceOff")
    assert (await patched(talk)).status == 500


@shows
async def no_uefi_http(talk: Wire) -> None:
    listed = (await talk.get()).json["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"]
    assert "Pxe" in listed
    assert "UefiHttp" not in listed
    http = {"Boot": {**PXE_ONCE["Boot"], "BootSourceOverrideTarget": "UefiHttp"}}
    answer = await talk.ask("PATCH", SYSTEM, http)
    assert (answer.status, answer.message_id) == (400, "Base.1.18.PropertyValueNotInList")
    assert (await patched(talk)).status == 200


@shows
async def boot_mode_reverts(talk: Wire) -> None:
    assert (await patched(talk)).json["Boot"]["BootSourceOverrideMode"] == "Legacy"
    named = {"Boot": {**PXE_ONCE["Boot"], "BootSourceOverrideMode": "UEFI"}}
    assert (await talk.ask("PATCH", SYSTEM, named)).json["Boot"]["BootSourceOverrideMode"] == "UEFI"


# Sessions and accounts


@shows
async def few_sessions(talk: Wire) -> None:
    logins = [await talk.login() for _ in range(8)]
    assert {answer.status for answer in logins} == {201}
    refused = await talk.login()
    assert (refused.status, refused.message_id) == (503, "Base.1.18.SessionLimitExceeded")
    first = logins[0].headers
    assert (await talk.ask("DELETE", first["location"], token=first["x-auth-token"])).status == 204
    assert (await talk.login()).status == 201


@shows
async def leaked_sessions(talk: Wire) -> None:
    assert (await talk.login()).status == 503
    assert (await talk.get()).status == 200


@shows
async def no_session_service(talk: Wire) -> None:
    root = (await talk.get(ROOT)).json
    assert "SessionService" not in root
    assert (await talk.login()).status == (await talk.get(SESSIONS)).status == 404
    assert (await talk.get()).status == 200


@shows
async def session_service_refuses(talk: Wire) -> None:
    assert (await talk.get(f"{ROOT}/SessionService")).json["ServiceEnabled"] is False
    assert (await talk.login()).status == 401
    assert (await talk.get()).status == 200


@shows
async def session_ends_midway(talk: Wire) -> None:
    token = (await talk.login()).headers["x-auth-token"]
    assert [(await talk.ask("GET", SYSTEM, token=token)).status for _ in range(6)] == [200] * 5 + [401]
    assert (await talk.login()).status == 201


@shows
async def locks_out(talk: Wire) -> None:
    for _ in range(3):
        assert (await talk.login("wrong")).status == 401
    assert (await talk.login()).status == (await talk.get()).status == 401
    talk.clock.move(300.0)
    assert (await talk.login()).status == 201


@shows
async def password_expired(talk: Wire) -> None:
    login = await talk.login()
    assert login.status == 201
    token = login.headers["x-auth-token"]
    refused = await talk.ask("GET", SYSTEM, token=token)
    assert (refused.status, refused.message_id) == (403, "Base.1.18.PasswordChangeRequired")
    another = (await talk.login()).headers
    assert (await talk.ask("DELETE", another["location"], token=another["x-auth-token"])).status == 204
    account = f"{ROOT}/AccountService/Accounts/1"
    assert (await talk.ask("PATCH", account, {"Password": "a new one"}, token=token)).status == 200
    assert (await talk.ask("GET", SYSTEM, token=token)).status == (await talk.get()).status == 200


# ETags


@shows
async def if_match_required(talk: Wire) -> None:
    assert (await patched(talk)).status == 428
    etag = (await talk.get()).headers["etag"]
    assert (await patched(talk, if_match=etag)).status == 200


@shows
async def if_match_refused(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert (await patched(talk, if_match=etag)).status == 412
    assert (await patched(talk)).status == 200


@shows
async def if_match_refused_on_actions(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert (await talk.reset("ForceOff", if_match=etag)).status == 412
    assert talk.bmc.power() is Power.ON
    assert (await talk.reset("ForceOff")).status == 204


@shows
async def weak_etags(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert etag.startswith('W/"')
    assert (await patched(talk, if_match=etag.removeprefix("W/"))).status == 412
    assert (await patched(talk, if_match=etag)).status == 200


@shows
async def double_quoted_etags(talk: Wire) -> None:
    answer = await talk.get()
    in_header, in_body = answer.headers["etag"], answer.json["@odata.etag"]
    assert in_header == f'"{in_body}"'
    assert (await patched(talk, if_match=in_header)).status == 412
    assert (await patched(talk, if_match=in_body)).status == 200


@shows
async def no_etags(talk: Wire) -> None:
    answer = await talk.get()
    assert "etag" not in answer.headers
    assert "@odata.etag" not in answer.json
    assert (await patched(talk, if_match='"anything"')).status == 200


# Answers and connections


async def held_back(talk: Wire, seconds: float) -> asyncio.Task[Answer]:
    """A ForceOff whose answer does not come before the clock has moved so far."""
    asked = asyncio.create_task(talk.reset("ForceOff"))
    await eventually(lambda: talk.clock.sleepers == 1, what="a request that waits")
    talk.clock.move(seconds - 0.01)
    assert talk.clock.sleepers == 1
    return asked


@shows
async def stalls(talk: Wire) -> None:
    asked = await held_back(talk, 30.0)
    assert talk.bmc.power() is Power.OFF
    talk.clock.move(0.01)
    assert (await asked).status == 204


@shows
async def acts_late(talk: Wire) -> None:
    asked = await held_back(talk, 30.0)
    asked.cancel()
    await asyncio.wait([asked])
    assert talk.bmc.power() is Power.ON
    talk.clock.move(0.01)
    await eventually(lambda: talk.bmc.power() is Power.OFF, what="a reset whose client has left")


@shows
async def slow(talk: Wire) -> None:
    asked = await held_back(talk, 1.0)
    assert not asked.done()
    talk.clock.move(2.01)
    assert (await asked).status == 204


@shows
async def flooded(talk: Wire) -> None:
    assert [(await talk.get()).status for _ in range(6)] == [200] * 5 + [503]
    talk.clock.move(1.0)
    assert (await talk.get()).status == 200


async def lost(talk: Wire) -> None:
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await talk.reset("ForceOff")


@shows
async def answers_lost_after_acting(talk: Wire) -> None:
    await lost(talk)
    assert talk.bmc.power() is Power.OFF
    await lost(talk)
    assert (await talk.reset("On")).status == 204
    assert (await talk.get()).status == 200


@shows
async def answers_lost_before_acting(talk: Wire) -> None:
    await lost(talk)
    await lost(talk)
    assert talk.bmc.power() is Power.ON
    assert list(talk.bmc.history()) == []
    assert (await talk.reset("ForceOff")).status == 204


@shows
async def truncated_json(talk: Wire) -> None:
    for _ in range(3):
        answer = await talk.get()
        assert int(answer.headers["content-length"]) == len(answer.body)
        with pytest.raises(msgspec.DecodeError, match="truncated"):
            _ = answer.json
    assert await talk.shown_power() == "On"


@shows
async def body_cut_off(talk: Wire) -> None:
    for _ in range(3):
        with pytest.raises(aiohttp.ClientPayloadError):
            await talk.get()
    assert await talk.shown_power() == "On"


@shows
async def two_documents_in_one(talk: Wire) -> None:
    for _ in range(3):
        error, resource = (msgspec.json.decode(part) for part in (await talk.get()).body.split(b"\n"))
        assert "error" in error
        assert resource["PowerState"] == "On"
    assert await talk.shown_power() == "On"


@shows
async def wrong_content_type(talk: Wire) -> None:
    answer = await talk.get()
    assert answer.headers["content-type"] == "text/html"
    assert answer.json["PowerState"] == "On"


@shows
async def closes_each_connection(talk: Wire) -> None:
    assert (await talk.get()).headers["connection"] == "close"


@shows
async def unavailable_while_booting(talk: Wire) -> None:
    answer = await talk.get(ROOT)
    assert (answer.status, answer.headers["retry-after"]) == (503, "10")
    talk.clock.move(10.0)
    assert (await talk.get(ROOT)).status == 200


async def refused(talk: Wire) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as raised:
        await talk.get()
    assert isinstance(raised.value.os_error, ConnectionRefusedError)


@shows
async def connection_refused(talk: Wire) -> None:
    await refused(talk)
    await talk.bmc.set_profile("ideal")
    assert (await talk.get()).status == 200
    await talk.bmc.set_profile("connection-refused")
    await refused(talk)


@shows
async def flapping(talk: Wire) -> None:
    for _ in range(2):
        assert (await talk.get()).status == 200
        talk.clock.move(2.0)
        await eventually(lambda: talk.clock.sleepers == 1)
        await refused(talk)
        talk.clock.move(1.0)
        await eventually(lambda: talk.clock.sleepers == 1)


async def fingerprint(talk: Wire) -> str:
    """As a client sees it, in a connection of its own."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    host, port = talk.bmc.url.removeprefix("https://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return hashlib.sha256(certificate).digest().hex(":")
    finally:
        writer.close()


@shows
async def certificate_changed(talk: Wire) -> None:
    changed = await fingerprint(talk)
    assert changed == talk.bmc.fingerprint
    await talk.bmc.set_profile("ideal")
    original = await fingerprint(talk)
    assert original == talk.bmc.fingerprint
    assert original != changed


@shows
async def redirects_to_https(talk: Wire) -> None:
    assert talk.bmc.plain_url is not None
    answer = await talk.ask("GET", SYSTEM, base=talk.bmc.plain_url)
    assert (answer.status, answer.headers["location"]) == (301, talk.bmc.url + SYSTEM)


@shows
async def redirects_to_slashes(talk: Wire) -> None:
    answer = await talk.get()
    assert (answer.status, answer.headers["location"]) == (308, f"{SYSTEM}/")
    assert (await talk.login()).status == 308
    body = (await talk.get(f"{SYSTEM}/")).json
    assert body["@odata.id"] == f"{SYSTEM}/"
    assert body["Actions"]["#ComputerSystem.Reset"]["target"] == f"{RESET}/"
    login = await talk.ask("POST", f"{SESSIONS}/", {"UserName": "admin", "Password": talk.bmc.password})
    assert login.headers["location"] == f"{SESSIONS}/1/"


# Names


@shows
async def system_of_another_name(talk: Wire) -> None:
    assert (await talk.get()).status == 404
    assert talk.bmc.device_ids == ("System.Embedded.1",)
    assert (await talk.get(f"{ROOT}/Systems/System.Embedded.1")).json["PowerState"] == "On"


@shows
async def several_systems(talk: Wire) -> None:
    members = (await talk.get(f"{ROOT}/Systems")).json["Members"]
    assert [member["@odata.id"] for member in members] == [f"{ROOT}/Systems/Node1", f"{ROOT}/Systems/Node2"]
    await talk.reset("ForceOff", f"{ROOT}/Systems/Node2/Actions/ComputerSystem.Reset")
    assert (talk.bmc.power("Node1"), talk.bmc.power("Node2")) == (Power.ON, Power.OFF)
