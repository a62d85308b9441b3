"""A BMC in the test's own process: its port, its clock, and what it leaves behind."""

from __future__ import annotations

import asyncio
import socket
import time

import aiohttp
import pytest
from aiohttp import web

from tests.lab.boot_server import serving
from tests.lab.wire import SYSTEM, wire
from tests.support.waiting import eventually
from unbounded_lab.bmc import HostPower, LabBmc, ManualClock


async def test_bmc_clock_defaults_to_the_clock_of_the_event_loop() -> None:
    async with LabBmc() as bmc:
        loop = asyncio.get_running_loop()
        before = bmc.clock.now() - loop.time()
        assert abs(bmc.clock.now() - time.time()) < 5.0
        assert bmc.clock.now() - loop.time() == pytest.approx(before, abs=1.0)


async def test_faults_can_be_combined_and_turned_back() -> None:
    async with wire("wrong-content-type+no-etags") as talk:
        assert talk.bmc.profile == "wrong-content-type+no-etags"
        answer = await talk.get()
        assert answer.headers["content-type"] == "text/html"
        assert "etag" not in answer.headers
        await talk.bmc.set_faults(etags="strong")
        assert talk.bmc.profile == "custom"
        answer = await talk.get()
        assert answer.headers["content-type"] == "text/html"
        assert "etag" in answer.headers
        await talk.bmc.set_profile("ideal")
        assert (await talk.get()).headers["content-type"].startswith("application/json")


async def test_a_kept_connection_is_broken_when_the_mains_go() -> None:
    async with wire("ideal") as talk:
        assert (await talk.get()).status == 200
        await talk.bmc.unplug()
        with pytest.raises(aiohttp.ClientConnectionError):
            await talk.get()
        assert talk.bmc.power() is HostPower.OFF
        await talk.bmc.plug()
        assert (await talk.get()).status == 503
        talk.clock.move(3.0)
        assert (await talk.get()).status == 200


async def test_plain_http_can_be_served_beside_https() -> None:
    async with wire("ideal") as talk:
        assert talk.bmc.plain_url is None
        await talk.bmc.set_faults(plain_http="serves")
        assert talk.bmc.plain_url is not None
        answer = await talk.ask("GET", SYSTEM, base=talk.bmc.plain_url)
        assert answer.json["PowerState"] == "On"
        await talk.bmc.set_faults(plain_http="closed")
        assert talk.bmc.plain_url is None


async def test_a_bmc_fetches_its_media_from_its_own_address() -> None:
    clients: list[str | None] = []

    async def image(request: web.BaseRequest) -> web.StreamResponse:
        clients.append(request.remote)
        return web.Response(body=b"an image")

    async with wire("ideal", address="127.1.0.7") as talk, serving(image) as url:
        assert talk.bmc.url.startswith("https://127.1.0.7:")
        insert = f"{SYSTEM}/VirtualMedia/Cd/Actions/VirtualMedia.InsertMedia"
        assert (await talk.ask("POST", insert, {"Image": f"{url}/boot.iso"})).status == 204
        assert talk.bmc.media_content == b"an image"
    assert clients == ["127.1.0.7"]


async def test_a_shut_port_is_kept_for_the_bmc() -> None:
    async with LabBmc(profile="connection-refused") as bmc:
        port = int(bmc.url.rpartition(":")[2])
        with socket.socket() as thief, pytest.raises(OSError, match="in use"):
            thief.bind(("127.0.0.1", port))


async def test_requests_at_the_same_time_are_counted() -> None:
    async with wire("stalls") as talk:
        asked = [asyncio.create_task(talk.get()) for _ in range(3)]
        await eventually(lambda: talk.clock.sleepers == 3)
        assert (talk.bmc.concurrent, talk.bmc.most_concurrent) == (3, 3)
        talk.clock.move(30.0)
        assert [(await each).status for each in asked] == [200] * 3
        assert talk.bmc.concurrent == 0


async def test_it_stops_at_once_while_requests_are_stalled() -> None:
    clock = ManualClock()
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=False)) as http:
        async with LabBmc(profile="stalls", clock=clock) as bmc:
            asked = asyncio.create_task(http.get(bmc.url + SYSTEM))
            await eventually(lambda: clock.sleepers == 1)
            started = time.monotonic()
        assert time.monotonic() - started < 20.0  # a stall has no end
        with pytest.raises(aiohttp.ClientConnectionError):
            await asked


async def test_a_clock_wakes_those_whose_time_has_come() -> None:
    clock = ManualClock(start=0.0)
    woken: list[str] = []

    async def sleeper(name: str, seconds: float) -> None:
        await clock.sleep(seconds)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, seconds in (("late", 2.0), ("early", 1.0), ("early too", 1.0)):
            tasks.create_task(sleeper(name, seconds))
        await eventually(lambda: clock.sleepers == 3)
        clock.move(1.0)
        await eventually(lambda: len(woken) == 2)
        assert woken == ["early", "early too"]
        clock.move(5.0)
    assert woken == ["early", "early too", "late"]
    assert clock.now() == 6.0
