"""Answers that come late, in part or not at all, connections that break, and systems under other names."""

from __future__ import annotations

import asyncio
import hashlib
import ssl

import aiohttp
import msgspec
import pytest

from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import RESET, ROOT, SESSIONS, SYSTEM, Answer, Wire
from tests.support.waiting import eventually
from unbounded_lab.bmc import HostPower

CHECKS = Checks()


# Answers and connections


async def held_back(talk: Wire, seconds: float) -> asyncio.Task[Answer]:
    """A ForceOff whose answer does not come before the clock has moved so far."""
    asked = asyncio.create_task(talk.reset("ForceOff"))
    await eventually(lambda: talk.clock.sleepers == 1, state=lambda: "a request that waits")
    talk.clock.move(seconds - 0.01)
    assert talk.clock.sleepers == 1
    return asked


@CHECKS.shows
async def stalls(talk: Wire) -> None:
    asked = await held_back(talk, 30.0)
    assert talk.bmc.power() is HostPower.OFF
    talk.clock.move(0.01)
    assert (await asked).status == 204


@CHECKS.shows
async def acts_late(talk: Wire) -> None:
    asked = await held_back(talk, 30.0)
    asked.cancel()
    await asyncio.wait([asked])
    assert talk.bmc.power() is HostPower.ON
    talk.clock.move(0.01)
    await eventually(lambda: talk.bmc.power() is HostPower.OFF, state=lambda: "a reset whose client has left")


@CHECKS.shows
async def slow(talk: Wire) -> None:
    asked = await held_back(talk, 1.0)
    assert not asked.done()
    talk.clock.move(2.01)
    assert (await asked).status == 204


@CHECKS.shows
async def flooded(talk: Wire) -> None:
    assert [(await talk.get()).status for _ in range(6)] == [200] * 5 + [503]
    talk.clock.move(1.0)
    assert (await talk.get()).status == 200


async def lost(talk: Wire) -> None:
    with pytest.raises((aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)):
        await talk.reset("ForceOff")


@CHECKS.shows
async def answers_lost_after_acting(talk: Wire) -> None:
    await lost(talk)
    assert talk.bmc.power() is HostPower.OFF
    await lost(talk)
    assert (await talk.reset("On")).status == 204
    assert (await talk.get()).status == 200


@CHECKS.shows
async def answers_lost_before_acting(talk: Wire) -> None:
    await lost(talk)
    await lost(talk)
    assert talk.bmc.power() is HostPower.ON
    assert list(talk.bmc.history()) == []
    assert (await talk.reset("ForceOff")).status == 204


@CHECKS.shows
async def truncated_json(talk: Wire) -> None:
    for _ in range(3):
        answer = await talk.get()
        assert int(answer.headers["content-length"]) == len(answer.body)
        with pytest.raises(msgspec.DecodeError, match="truncated"):
            _ = answer.json
    assert await talk.shown_power() == "On"


@CHECKS.shows
async def body_cut_off(talk: Wire) -> None:
    for _ in range(3):
        with pytest.raises(aiohttp.ClientPayloadError):
            await talk.get()
    assert await talk.shown_power() == "On"


@CHECKS.shows
async def two_documents_in_one(talk: Wire) -> None:
    for _ in range(3):
        error, resource = (msgspec.json.decode(part) for part in (await talk.get()).body.split(b"\n"))
        assert "error" in error
        assert resource["PowerState"] == "On"
    assert await talk.shown_power() == "On"


@CHECKS.shows
async def wrong_content_type(talk: Wire) -> None:
    answer = await talk.get()
    assert answer.headers["content-type"] == "text/html"
    assert answer.json["PowerState"] == "On"


@CHECKS.shows
async def closes_each_connection(talk: Wire) -> None:
    assert (await talk.get()).headers["connection"] == "close"


@CHECKS.shows
async def unavailable_while_booting(talk: Wire) -> None:
    answer = await talk.get(ROOT)
    assert (answer.status, answer.headers["retry-after"]) == (503, "10")
    talk.clock.move(10.0)
    assert (await talk.get(ROOT)).status == 200


async def refused(talk: Wire) -> None:
    with pytest.raises(aiohttp.ClientConnectorError) as raised:
        await talk.get()
    assert isinstance(raised.value.os_error, ConnectionRefusedError)


@CHECKS.shows
async def connection_refused(talk: Wire) -> None:
    await refused(talk)
    await talk.bmc.set_profile("ideal")
    assert (await talk.get()).status == 200
    await talk.bmc.set_profile("connection-refused")
    await refused(talk)


@CHECKS.shows
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


@CHECKS.shows
async def certificate_changed(talk: Wire) -> None:
    changed = await fingerprint(talk)
    assert changed == talk.bmc.fingerprint
    await talk.bmc.set_profile("ideal")
    original = await fingerprint(talk)
    assert original == talk.bmc.fingerprint
    assert original != changed


@CHECKS.shows
async def redirects_to_https(talk: Wire) -> None:
    assert talk.bmc.plain_url is not None
    answer = await talk.ask("GET", SYSTEM, base=talk.bmc.plain_url)
    assert (answer.status, answer.headers["location"]) == (301, talk.bmc.url + SYSTEM)


@CHECKS.shows
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


@CHECKS.shows
async def system_of_another_name(talk: Wire) -> None:
    assert (await talk.get()).status == 404
    assert talk.bmc.device_ids == ("System.Embedded.1",)
    assert (await talk.get(f"{ROOT}/Systems/System.Embedded.1")).json["PowerState"] == "On"


@CHECKS.shows
async def several_systems(talk: Wire) -> None:
    members = (await talk.get(f"{ROOT}/Systems")).json["Members"]
    assert [member["@odata.id"] for member in members] == [f"{ROOT}/Systems/Node1", f"{ROOT}/Systems/Node2"]
    await talk.reset("ForceOff", f"{ROOT}/Systems/Node2/Actions/ComputerSystem.Reset")
    assert (talk.bmc.power("Node1"), talk.bmc.power("Node2")) == (HostPower.ON, HostPower.OFF)


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
