"""Logging in: one session, given back; basic auth where there are none; a refused password offered once."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from aiohttp import web

from tests.metalman.fake_bmc import PASSWORD, RESET, SESSIONS, SYSTEM, FakeBmc, Handler, error, says, slow
from tests.support.waiting import eventually
from unbounded.metalman.redfish.bmc_interface import BmcBusy, BmcLimits, BmcPowerState, PasswordRejected, ResetType
from unbounded.metalman.redfish.pool import CONCURRENT_DELETIONS, BmcPool


async def test_one_session_serves_all_calls_and_is_deleted_at_the_end(bmc: FakeBmc) -> None:
    async with BmcPool() as pool:
        handle = pool.bmc(bmc.access())
        assert (await handle.system()).power is BmcPowerState.ON
        await handle.reset(ResetType.FORCE_OFF)
        assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.OFF
        assert bmc.opened == 1
        assert len(bmc.tokens) == 1
    assert not bmc.tokens
    assert bmc.requests[-1] == ("DELETE", f"{SESSIONS}/1")


async def test_close_deletes_the_session_and_the_next_call_opens_another(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await handle.system()
    await handle.close()
    assert not bmc.tokens
    await handle.system()
    assert bmc.opened == 2


BUSY = says(lambda: error(503, "ServiceTemporarilyUnavailable", **{"Retry-After": "0.1"}))


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_a_session_that_a_busy_bmc_keeps_is_deleted_later(bmc: FakeBmc, status: int) -> None:
    bmc.once("DELETE", f"{SESSIONS}/1", says(lambda: error(status, "ServiceTemporarilyUnavailable")))
    async with BmcPool() as pool:
        await pool.bmc(bmc.access()).system()
    assert not bmc.tokens
    assert bmc.count("DELETE", f"{SESSIONS}/1") == 2


async def test_a_session_whose_deletion_failed_at_its_release_is_deleted_when_idle(bmc: FakeBmc) -> None:
    bmc.once("DELETE", f"{SESSIONS}/1", BUSY)
    async with BmcPool(BmcLimits(release_s=0.1, release_call_s=0.4, idle_s=0.2)) as pool:
        await pool.bmc(bmc.access()).system()
        pool.release_soon(bmc.access().url)
        await eventually(lambda: not bmc.tokens)
    assert bmc.opened == 1


async def test_a_new_log_in_does_not_depend_on_the_deletion_of_the_session(bmc: FakeBmc) -> None:
    bmc.always("DELETE", f"{SESSIONS}/1", BUSY)
    async with BmcPool(BmcLimits(close_s=0.1)) as pool:
        await pool.bmc(bmc.access()).system()
        await pool.client(bmc.access()).channel.log_in_again()
        await pool.bmc(bmc.access()).system()
    assert bmc.opened == 2


async def test_a_session_that_nobody_uses_is_deleted(bmc: FakeBmc) -> None:
    async with BmcPool(BmcLimits(idle_s=0.1)) as pool:
        await pool.bmc(bmc.access()).system()
        await eventually(lambda: not bmc.tokens)
        assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON


@pytest.mark.slow
async def test_session_whose_login_outlasts_the_idle_time_is_deleted(bmc: FakeBmc) -> None:
    bmc.once("POST", SESSIONS, slow(0.5, bmc.normal))
    async with BmcPool(BmcLimits(idle_s=0.1)) as pool:
        await pool.bmc(bmc.access()).system()
        await eventually(lambda: not bmc.tokens, within_s=10)


async def test_a_session_is_given_back_soon_after_parting_over_the_same_connection(bmc: FakeBmc) -> None:
    peers: list[object] = []

    async def noted(request: web.Request) -> web.StreamResponse:
        peers.append(request.transport and request.transport.get_extra_info("peername"))
        return await bmc.normal(request)

    bmc.once("POST", SESSIONS, noted)
    bmc.once("DELETE", f"{SESSIONS}/1", noted)
    async with BmcPool(BmcLimits(release_s=0.2)) as pool:
        await pool.bmc(bmc.access()).system()
        pool.release_soon(f"{bmc.access().url}/redfish/v1")
        await eventually(lambda: not bmc.tokens)
    assert len(peers) == 2
    assert len(set(peers)) == 1


@pytest.mark.slow
async def test_a_session_that_is_used_after_parting_stays(bmc: FakeBmc) -> None:
    async with BmcPool(BmcLimits(release_s=0.5)) as pool:
        await pool.bmc(bmc.access()).system()
        pool.release_soon(bmc.access().url)
        until = asyncio.get_running_loop().time() + 1.0
        while asyncio.get_running_loop().time() < until:
            await pool.bmc(bmc.access()).system()
        assert bmc.opened == 1


async def test_parting_from_a_bmc_that_nobody_knows_is_nothing(bmc: FakeBmc, pool: BmcPool) -> None:
    pool.release_soon("https://127.0.0.1:9")
    assert (await pool.bmc(bmc.access()).system()).device_id == "1"


@pytest.mark.slow
async def test_deletion_of_idle_sessions_has_a_concurrency_limit() -> None:
    under_way, most = 0, 0

    def counted(bmc: FakeBmc) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.05)
            under_way -= 1
            return await bmc.normal(request)

        return answer

    async with AsyncExitStack() as stack:
        bmcs = [await stack.enter_async_context(FakeBmc(tls=None)) for _ in range(2 * CONCURRENT_DELETIONS)]
        pool = await stack.enter_async_context(BmcPool(BmcLimits(idle_s=0.2)))
        for bmc in bmcs:
            bmc.once("DELETE", f"{SESSIONS}/1", counted(bmc))
            await pool.bmc(bmc.access()).system()
        await eventually(lambda: not any(bmc.tokens for bmc in bmcs))
    assert most <= CONCURRENT_DELETIONS


async def test_an_expired_session_is_renewed_once_and_the_call_repeated(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await handle.system()
    bmc.tokens.clear()
    await handle.reset(ResetType.FORCE_OFF)
    assert bmc.resets == [("1", "ForceOff")]
    assert bmc.opened == 2


async def test_sessions_that_are_never_honoured_are_not_asked_for_again_and_again(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.always("GET", SYSTEM, says(lambda: error(401, "NoValidSession")))
    with pytest.raises(Exception, match="rejects the session"):
        await pool.bmc(bmc.access()).system()
    assert bmc.opened == 2


@pytest.mark.parametrize("status", [404, 405, 501])
async def test_a_bmc_without_sessions_gets_basic_auth(bmc: FakeBmc, pool: BmcPool, status: int) -> None:
    bmc.always("POST", SESSIONS, says(lambda: error(status, "ResourceMissingAtURI")))
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON
    await pool.bmc(bmc.access()).system()
    assert bmc.headers[-1]["Authorization"].startswith("Basic ")
    assert bmc.count("POST", SESSIONS) == 1


async def test_a_reached_session_limit_means_basic_auth(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.always("POST", SESSIONS, says(lambda: error(503, "SessionLimitExceeded", "Too many sessions")))
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON
    assert bmc.headers[-1]["Authorization"].startswith("Basic ")


async def test_401_from_a_service_without_sessions_is_no_wrong_password(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.sessions_served = False
    bmc.always("POST", SESSIONS, says(lambda: error(401, "Unauthorized")))
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON
    assert bmc.wrong_passwords == 0


@pytest.mark.parametrize("sessions", [True, False])
async def test_a_refused_password_is_offered_only_once(bmc: FakeBmc, pool: BmcPool, sessions: bool) -> None:
    bmc.password, bmc.sessions_served = "another", sessions
    for _ in range(4):
        with pytest.raises(PasswordRejected) as refused:
            await pool.bmc(bmc.access()).system()
        assert PASSWORD not in str(refused.value)
    assert bmc.wrong_passwords == 1


async def test_a_400_that_means_a_wrong_password_is_one(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.always("POST", SESSIONS, says(lambda: error(400, "UnauthorizedLoginAttempt")))
    for _ in range(2):
        with pytest.raises(PasswordRejected):
            await pool.bmc(bmc.access()).system()
    assert bmc.count("POST", SESSIONS) == 1
    assert bmc.count("GET", SYSTEM) == 0


async def test_another_password_or_a_touched_secret_is_tried_at_once(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.password = "another"
    with pytest.raises(PasswordRejected):
        await pool.bmc(bmc.access(secret="bmc", secret_version="1")).system()
    assert (await pool.bmc(bmc.access(password="another", secret="bmc", secret_version="2")).system()).device_id == "1"
    bmc.password = PASSWORD  # a user set it on the BMC, and updated the Secret
    with pytest.raises(PasswordRejected):
        await pool.bmc(bmc.access(secret="bmc", secret_version="1")).system()
    assert (await pool.bmc(bmc.access(secret="bmc", secret_version="3")).system()).device_id == "1"
    assert bmc.wrong_passwords == 1


async def test_the_same_wrong_password_in_another_secret_is_not_offered_either(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.password = "another"
    for secret in ("blade-1", "blade-2", "blade-3", "blade-4"):
        with pytest.raises(PasswordRejected):
            await pool.bmc(bmc.access(secret=secret, secret_version="7")).system()
    assert bmc.wrong_passwords == 1


async def test_a_password_changed_under_a_running_session_is_refused_once(bmc: FakeBmc, pool: BmcPool) -> None:
    await pool.bmc(bmc.access()).system()
    bmc.tokens.clear()
    bmc.password = "another"
    for _ in range(3):
        with pytest.raises(PasswordRejected):
            await pool.bmc(bmc.access()).system()
    assert bmc.wrong_passwords == 1


async def test_a_busy_log_in_says_when_to_come_back(bmc: FakeBmc, pool: BmcPool) -> None:
    bmc.once("POST", SESSIONS, says(lambda: error(503, "ServiceTemporarilyUnavailable", **{"Retry-After": "7"})))
    with pytest.raises(BmcBusy) as busy:
        await pool.bmc(bmc.access()).system()
    assert busy.value.retry_after_s == 7


async def test_a_caller_cancelled_while_logging_in_leaves_no_session_behind(bmc: FakeBmc) -> None:
    bmc.once("POST", SESSIONS, slow(0.2, bmc.normal))
    async with BmcPool() as pool:
        call = asyncio.create_task(pool.bmc(bmc.access()).system())
        await eventually(lambda: bmc.requests)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert len(bmc.tokens) == 1
    assert not bmc.tokens


async def test_a_pool_that_is_cancelled_while_stopping_still_deletes_its_sessions(bmc: FakeBmc) -> None:
    ready = asyncio.Event()

    async def life() -> None:
        async with BmcPool() as pool:
            await pool.bmc(bmc.access()).system()
            ready.set()

    bmc.once("DELETE", f"{SESSIONS}/1", slow(0.2, bmc.normal))
    task = asyncio.create_task(life())
    await ready.wait()
    await eventually(lambda: bmc.count("DELETE", f"{SESSIONS}/1"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not bmc.tokens


async def test_stopping_is_bounded_when_the_bmc_stalls(bmc: FakeBmc) -> None:
    limits = BmcLimits(close_s=0.2)
    bmc.once("DELETE", f"{SESSIONS}/1", slow(40, bmc.normal))
    async with asyncio.timeout(20):
        async with BmcPool(limits) as pool:
            await pool.bmc(bmc.access()).system()


async def test_nothing_is_sent_after_the_time_that_the_caller_gave(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    past = asyncio.get_running_loop().time() - 1
    with pytest.raises(BmcBusy, match="nothing was sent"):
        await handle.reset(ResetType.FORCE_OFF, leave_by=past)
    with pytest.raises(BmcBusy, match="nothing was sent"):
        await handle.disable_boot_override(leave_by=past)
    assert not {"PATCH"} & {method for method, _ in bmc.requests}
    assert bmc.count("POST", RESET) == 0


async def test_an_action_whose_log_in_took_too_long_is_not_sent(bmc: FakeBmc) -> None:
    async with BmcPool(BmcLimits(start_s=0.5)) as pool:
        handle = pool.bmc(bmc.access())
        await handle.system()
        bmc.tokens.clear()
        bmc.once("POST", SESSIONS, slow(1.0, bmc.normal))
        with pytest.raises(BmcBusy, match="nothing was sent"):
            await handle.reset(ResetType.FORCE_OFF)
    assert not bmc.resets
    assert bmc.count("POST", RESET) == 1  # the one with the expired token, which did nothing


@pytest.mark.parametrize("sessions_served", [True, False])
async def test_while_a_password_is_rotated_the_next_one_is_offered_after_the_first(
    bmc: FakeBmc, pool: BmcPool, sessions_served: bool
) -> None:
    bmc.sessions_served = sessions_served
    handle = pool.bmc(bmc.access(next_password="next"))
    await handle.system()
    assert bmc.wrong_passwords == 0
    bmc.password, bmc.tokens = "next", {}
    await handle.system()
    await handle.close()
    await handle.system()
    assert bmc.wrong_passwords == 1, "the former one is not offered again"
    bmc.password, bmc.tokens = "of somebody else", {}
    for _ in range(2):
        with pytest.raises(PasswordRejected, match="rejected the password of 'admin'"):
            await handle.system()
    assert bmc.wrong_passwords == 3, "each was offered once since the last change"


async def test_callers_with_a_former_secret_use_the_client_of_the_present_one(bmc: FakeBmc, pool: BmcPool) -> None:
    former = bmc.access(secret="s", secret_version="1")
    stored = bmc.access(secret="s", secret_version="2", next_password="next")
    promoted = bmc.access(secret="s", secret_version="3", password="next")
    await pool.bmc(former).system()
    await pool.supersede(former, stored)
    bmc.password, bmc.tokens = "next", {}
    await pool.bmc(former).system()
    assert bmc.wrong_passwords == 1
    await pool.supersede(stored, promoted)
    for access in (former, stored, promoted):
        await pool.bmc(access).system()
    assert bmc.wrong_passwords == 1
    with pytest.raises(PasswordRejected):
        await pool.bmc(bmc.access(secret="s", secret_version="4")).system()
    assert bmc.wrong_passwords == 2, "the Secret has the former password again, which is offered"
