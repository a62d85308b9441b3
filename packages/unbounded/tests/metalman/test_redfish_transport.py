"""Faults of the wire: what was certainly not done, what may have been, and who is made to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import Fingerprint, web

from tests.metalman.fake_bmc import RESET, ROOT, SYSTEM, FakeBmc, error, hang_up, held, says, slow
from tests.support.waiting import eventually
from unbounded.api.failures import Rejected, Transient, Uncertain
from unbounded.metalman.redfish.bmc_interface import (
    BmcAnswerLost,
    BmcBusy,
    BmcLimits,
    BmcPowerState,
    BmcUnreachable,
    CircuitOpen,
    Garbled,
    ResetType,
    SystemState,
)
from unbounded.metalman.redfish.circuit_breaker import SILENCES
from unbounded.metalman.redfish.endpoint import endpoint_of
from unbounded.metalman.redfish.http import BmcConnections, Http
from unbounded.metalman.redfish.pool import BmcPool


async def acts_and_hangs_up(bmc: FakeBmc, request: web.Request) -> web.StreamResponse:
    await bmc.reset(request)
    return await hang_up(request)


async def test_a_refused_connection_changed_nothing(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await handle.system()
    await bmc.deafen()
    with pytest.raises(BmcUnreachable, match="refused"):
        await handle.reset(ResetType.FORCE_OFF)


async def test_an_answer_lost_after_acting_is_uncertain(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("POST", RESET, lambda request: acts_and_hangs_up(bmc, request))
    with pytest.raises(BmcAnswerLost):
        await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert bmc.resets == [("1", "ForceOff")]
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.OFF


async def test_a_reset_whose_answer_was_lost_is_never_sent_twice(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("POST", RESET, hang_up, hang_up, hang_up)
    with pytest.raises(BmcAnswerLost):
        await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
    assert bmc.count("POST", RESET) == 1


@pytest.mark.slow
async def test_a_stalled_action_is_uncertain_and_a_stalled_reading_is_not(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    handle = hasty_pool.bmc(bmc.access())
    await handle.system()
    bmc.once("POST", RESET, slow(4, bmc.normal))
    with pytest.raises(BmcAnswerLost, match="no answer in time"):
        await handle.reset(ResetType.FORCE_OFF)
    bmc.once("GET", SYSTEM, slow(4, bmc.normal))
    with pytest.raises(BmcUnreachable, match="no answer in time"):
        await handle.system()


async def test_a_change_that_ends_while_connecting_was_not_sent() -> None:
    async with await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]  # accepts, and says nothing in the TLS handshake
        endpoint = endpoint_of(f"https://127.0.0.1:{port}")
        async with BmcConnections() as connections:
            http = Http(connections, endpoint, Fingerprint(bytes(32)), BmcLimits())
            with pytest.raises(BmcUnreachable, match="no answer in time"):
                await http.send("POST", RESET, within_s=0.3, body={"ResetType": "On"}, changes=True)


async def test_truncated_json_is_transient_when_reading(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("GET", SYSTEM, says(lambda: web.Response(body=b'{"PowerState": "O')))
    with pytest.raises(Garbled):
        await pool.bmc(bmc.access()).system()
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON


async def test_an_action_that_was_taken_on_needs_no_readable_body(bmc: FakeBmc, pool: BmcPool) -> None:
    async def cut_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(status=200, headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b'{"half')
        return await hang_up(request)

    bmc.once("POST", RESET, cut_off, says(lambda: web.Response(status=200, body=b"<html>ok")))
    for _ in range(2):
        assert (await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)).sent == "ForceOff"


@pytest.mark.slow
async def test_an_endless_answer_is_cut(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("GET", SYSTEM, says(lambda: web.Response(body=b" " * (5 * 1024 * 1024))))
    with pytest.raises(BmcUnreachable, match="more than"):
        await pool.bmc(bmc.access()).system()


async def test_a_wrong_content_type_and_redirects_on_the_same_host_are_tolerated(bmc: FakeBmc, pool: BmcPool) -> None:
    body = b'{"Id": "1", "PowerState": "PoweringOn"}'
    bmc.once(
        "GET",
        SYSTEM,
        says(lambda: web.Response(status=301, headers={"Location": f"{SYSTEM}/"})),
    )
    bmc.once("GET", f"{SYSTEM}/", says(lambda: web.Response(body=body, content_type="text/html")))
    state = await pool.bmc(bmc.access()).system()
    assert (state.power, state.power_text) == (BmcPowerState.UNSETTLED, "PoweringOn")


async def test_redirects_in_circles_end(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.always("GET", SYSTEM, says(lambda: web.Response(status=302, headers={"Location": SYSTEM})))
    with pytest.raises(Rejected, match="in a loop"):
        await pool.bmc(bmc.access()).system()


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_bmc_did_nothing_and_says_when_to_come_back(bmc: FakeBmc, pool: BmcPool, status: int) -> None:
    busy = says(lambda: error(status, "ServiceTemporarilyUnavailable", "starting", **{"Retry-After": "12"}))
    bmc.once("POST", RESET, busy)
    bmc.once("GET", SYSTEM, busy)
    for call in (pool.bmc(bmc.access()).system, lambda: pool.bmc(bmc.access()).reset(ResetType.ON)):
        with pytest.raises(BmcBusy, match="starting") as caught:
            await call()
        assert caught.value.retry_after_s == 12


async def test_a_server_error_leaves_an_action_in_doubt_and_a_reading_not(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("POST", RESET, says(lambda: error(500, "InternalError")))
    with pytest.raises(Uncertain):
        await pool.bmc(bmc.access()).reset(ResetType.ON)
    bmc.once("GET", SYSTEM, says(lambda: error(500, "InternalError")))
    with pytest.raises(Transient):
        await pool.bmc(bmc.access()).system()


async def test_bmc_gets_one_request_at_a_time_from_all_machines() -> None:
    async with FakeBmc(members=("1", "2", "3")) as bmc, BmcPool() as pool:
        bmc.answers = {("GET", f"/redfish/v1/Systems/{n}"): [slow(0.02, bmc.normal)] * 9 for n in (1, 2, 3)}
        handles = [pool.bmc(bmc.access(device_id=str(n))) for n in (1, 2, 3)]
        states = await asyncio.gather(*(handle.system() for handle in handles * 3))
        assert bmc.most_at_once == 1
        assert bmc.opened == 1
        assert [state.device_id for state in states] == ["1", "2", "3"] * 3


async def test_accounts_of_one_bmc_have_own_sessions_but_share_the_queue(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.answers = {("GET", SYSTEM): [slow(0.02, bmc.normal)] * 9}
    handles = [pool.bmc(bmc.access(username=name)) for name in ("admin", "operator")]
    await asyncio.gather(*(handle.system() for handle in handles * 3))
    assert (bmc.opened, bmc.most_at_once) == (2, 1)


async def test_nobody_waits_for_somebody_elses_dead_bmc(bmc: FakeBmc, pool: BmcPool) -> None:
    async with FakeBmc() as dead:
        dead.always("GET", SYSTEM, slow(60, dead.normal))
        stuck = [asyncio.create_task(pool.bmc(dead.access()).system()) for _ in range(5)]
        await eventually(lambda: dead.count("GET", SYSTEM))
        async with asyncio.timeout(10):
            await pool.bmc(bmc.access()).reset(ResetType.FORCE_OFF)
        assert not any(task.done() for task in stuck)
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)


@pytest.mark.slow
async def test_a_change_that_waits_too_long_for_its_turn_is_not_sent(bmc: FakeBmc) -> None:
    async with BmcPool(BmcLimits(start_s=0.2)) as pool:
        handle = pool.bmc(bmc.access())
        await handle.system()
        tried = asyncio.Event()
        bmc.once("GET", SYSTEM, held(tried, bmc.normal))
        reading = asyncio.create_task(handle.system())
        await eventually(lambda: bmc.count("GET", SYSTEM) == 2)
        with pytest.raises(BmcBusy, match="nothing was sent"):
            await handle.reset(ResetType.FORCE_OFF)
        tried.set()
        await reading
    assert bmc.count("POST", RESET) == 0


@pytest.mark.slow
async def test_circuit_opens_after_silences_and_one_call_probes(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await bmc.deafen()
    for _ in range(SILENCES):
        with pytest.raises(BmcUnreachable):
            await handle.system()
    with pytest.raises(
        CircuitOpen, match=r"not sent: 3 consecutive calls .* since 20.*refused.*next attempt at 20"
    ) as open_:
        await handle.system()
    assert open_.value.retry_after_s is not None
    assert 0 < open_.value.retry_after_s <= 1
    await bmc.listen()
    tried = asyncio.Event()
    bmc.once("GET", SYSTEM, held(tried, bmc.normal))
    probe = asyncio.create_task(_until_admitted(handle.system))
    await eventually(lambda: bmc.count("GET", SYSTEM))
    with pytest.raises(CircuitOpen):
        await handle.system()
    tried.set()
    assert await probe is BmcPowerState.ON
    assert (await handle.system()).power is BmcPowerState.ON


async def _until_admitted(read: Callable[[], Awaitable[SystemState]]) -> BmcPowerState:
    while True:
        try:
            return (await read()).power
        except CircuitOpen as pause:
            await asyncio.sleep(pause.retry_after_s or 0.1)


@pytest.mark.slow
async def test_queued_calls_fail_at_once_when_the_circuit_opens(bmc: FakeBmc, hasty_pool: BmcPool) -> None:
    handle = hasty_pool.bmc(bmc.access())
    await handle.system()
    bmc.always("GET", SYSTEM, slow(5, bmc.normal))
    results = await asyncio.gather(*(handle.system() for _ in range(SILENCES + 5)), return_exceptions=True)
    kinds = [type(result) for result in results]
    assert kinds == [BmcUnreachable] * SILENCES + [CircuitOpen] * 5


async def test_a_stream_of_events_that_stops_being_http_ends(bmc: FakeBmc, pool: BmcPool) -> None:
    async def breaks(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await answer.prepare(request)
        await answer.write(b": welcome\n\n")
        assert request.transport is not None
        request.transport.write(b"zz\r\nno chunk\r\n")
        await asyncio.sleep(30)
        return answer

    root, service = {"EventService": {"@odata.id": f"{ROOT}/EventService"}}, {"ServerSentEventUri": f"{ROOT}/SSE"}
    bmc.once("GET", f"{ROOT}/", says(lambda: web.json_response(root)))
    bmc.once("GET", f"{ROOT}/EventService", says(lambda: web.json_response(service)))
    bmc.once("GET", f"{ROOT}/SSE", breaks)
    async with asyncio.timeout(10):
        with pytest.raises(BmcUnreachable, match="not HTTP"):
            async for _origins in pool.bmc(bmc.access()).events():
                pass
