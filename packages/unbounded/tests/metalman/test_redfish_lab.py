"""A patient caller reboots machines behind every misbehaviour of the lab: it succeeds, or names the cause.

Waits of the field are short here: a lie of 10 s lasts half a second, and the callers' limits are shorter, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import pytest

from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcBusy,
    BmcLimits,
    BmcPowerState,
    BmcUnreachable,
    BootEnabled,
    BootOverride,
    BootTarget,
    CertificateChanged,
    CircuitOpen,
    PasswordRejected,
    ResetType,
    TaskFailed,
    Unsupported,
)
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded_lab.bmc.power import HostPower as TruePower
from unbounded_lab.bmc.profiles import faults_for
from unbounded_lab.faults import changed

T = TypeVar("T")
LIMITS: Final = BmcLimits(call_s=0.5, connect_s=0.5, start_s=5.0, task_s=3.0, task_poll_s=0.1, task_poll_max_s=0.3)
PATIENCE_S: Final = 10.0
FLAPPING_S: Final = 60.0  # each call meets a closed door with a chance of one in three, and pauses are drawn
GRACE_S: Final = 1.0
ASK_AGAIN_S: Final = 1.0

# The failures that no patience resolves, with a word of their message.
NAMED: Final[dict[str, tuple[type[Failure], str]]] = {
    "accepts-and-does-nothing": (Transient, "still On"),
    "task-that-fails": (TaskFailed, "Exception"),
    "session-service-refuses": (PasswordRejected, "rejected the password"),
    "password-expired": (Rejected, "PasswordChangeRequired"),
    "several-systems": (Rejected, "Node1, Node2"),
    "stalls": (Transient, "no answer"),
    "acts-late": (Transient, "no answer"),
    "connection-refused": (Transient, "refused"),
}
# They carry out requests that their caller has abandoned, so there are unknown sessions.
ABANDONS_LOG_INS: Final = frozenset({"stalls", "acts-late"})
KEEPS_SESSIONS: Final = ABANDONS_LOG_INS | {"password-expired"}  # which refuses their deletion too
SHORTER: Final = {"stall_s": 1.5, "slow_s": (0.05, 0.2), "power_lie_s": 0.5, "power_cache_s": 0.3, "task_s": 0.4}
SHORTER_TOO: Final = {"unavailable_s": 0.5, "comes_back_s": 0.6, "flaps_s": (0.4, 0.2)}


def shortened(profile: str) -> BmcFaults:
    faults = faults_for(profile)
    ideal = BmcFaults()
    wanted = {
        name: value
        for name, value in (SHORTER | SHORTER_TOO).items()
        if getattr(faults, name) != getattr(ideal, name) or name == "task_s"
    }
    return changed(faults, wanted)


def lab(profile: str) -> LabBmc:
    return LabBmc(faults=shortened(profile), shutdown_s=0.2, boot_s=0.2)


def access(bmc: LabBmc, **changed: str) -> BmcAccount:
    fields = {
        "url": bmc.url,
        "username": bmc.username,
        "password": bmc.password,
        "cert_fingerprint": bmc.fingerprint,
    }
    return BmcAccount(**(fields | changed))


class PatientCaller:
    """Reads, requests, reads again; after a lost answer it observes before it repeats."""

    def __init__(self, bmc: PooledBmc, patience_s: float = PATIENCE_S) -> None:
        self._bmc, self._patience_s = bmc, patience_s
        self.last: Failure = Transient("nothing was tried")
        self.misses = 0

    async def reboot(self) -> None:
        await self._until(BmcPowerState.OFF, lambda since_s: (
            ResetType.GRACEFUL_SHUTDOWN if since_s < GRACE_S else ResetType.FORCE_OFF
        ))  # fmt: skip
        await self._until(BmcPowerState.ON, lambda _: ResetType.ON)

    async def _until(self, wanted: BmcPowerState, ask: Callable[[float], ResetType]) -> None:
        loop = asyncio.get_running_loop()
        start, asked = loop.time(), -ASK_AGAIN_S
        unsupported: set[ResetType] = set()
        while loop.time() < start + self._patience_s:
            state = await self.tried(self._bmc.system)
            if state is not None and state.power is wanted:
                return
            reset = ask(loop.time() - start)
            if reset in unsupported:
                reset = ResetType.FORCE_OFF
            if state is not None and state.power is not BmcPowerState.UNSETTLED and loop.time() - asked >= ASK_AGAIN_S:
                asked = loop.time()
                try:
                    await self.tried(lambda wanted=reset: self._bmc.reset(wanted))  # type: ignore[misc]  # bound now
                except Unsupported:
                    unsupported.add(reset)
                    asked = -ASK_AGAIN_S
            if state is not None:
                self.last = self.last if isinstance(self.last, TaskFailed) else Transient(f"still {state.power_text}")
            await asyncio.sleep(0.05)
        raise self.last

    async def tried(self, call: Callable[[], Awaitable[T]]) -> T | None:
        try:
            return await call()
        except BmcBusy as pause:
            if not isinstance(pause, CircuitOpen):
                self.last = pause
            await asyncio.sleep(min(pause.retry_after_s or 0.1, 1.0))
        except (Transient, Uncertain) as trouble:
            self.last = trouble
        return None


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["ideal", *MISBEHAVIOURS])
def test_a_reboot_ends_well_or_says_why(profile: str) -> None:
    run_swiftly(_reboot(profile))


async def _reboot(profile: str) -> None:
    async with lab(profile) as bmc, BmcPool(LIMITS) as pool:
        caller = PatientCaller(pool.bmc(access(bmc)), FLAPPING_S if profile == "flapping" else PATIENCE_S)
        if profile in NAMED:
            kind, word = NAMED[profile]
            with pytest.raises(kind, match=word):
                await caller.reboot()
        else:
            await caller.reboot()
            seen = [event.detail for event in bmc.history() if event.what == "power"]
            assert TruePower.OFF in seen
            assert bmc.power() in (TruePower.ON, TruePower.POWERING_ON)
        assert bmc.bmc.access.refused_logins <= 1
        if profile not in ABANDONS_LOG_INS:
            assert bmc.most_concurrent <= 1
    if profile not in KEEPS_SESSIONS:
        assert not _sessions(bmc), "a session was left behind"


def _sessions(bmc: LabBmc) -> list[object]:
    return list(bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults))


async def test_three_machines_with_a_wrong_password_do_not_lock_the_account() -> None:
    async with lab("locks-out") as bmc, BmcPool() as pool:
        for secret in ("one", "two", "three", "one"):
            with pytest.raises(PasswordRejected):
                await pool.bmc(access(bmc, password="wrong", secret=secret)).system()
        assert bmc.bmc.access.refused_logins == 1
        assert (await pool.bmc(access(bmc)).system()).power is BmcPowerState.ON


async def test_a_bmc_whose_certificate_changed_gets_no_password() -> None:
    async with lab("ideal") as bmc, BmcPool() as pool:
        before = access(bmc)
        await pool.bmc(before).system()
        await pool.bmc(before).close()
        await bmc.set_profile("certificate-changed")
        requests = bmc.bmc.requests
        async with BmcPool() as another:
            with pytest.raises(CertificateChanged):
                await another.bmc(before).system()
        assert bmc.bmc.requests == requests


async def test_plain_http_that_redirects_to_https_is_named() -> None:
    async with lab("redirects-to-https") as bmc, BmcPool() as pool:
        assert bmc.plain_url is not None
        with pytest.raises(Rejected, match=r"redirects to https://.*set it as url"):
            await pool.bmc(access(bmc, url=bmc.plain_url)).system()


@pytest.mark.slow
async def test_an_unplugged_bmc_is_unreachable_and_comes_back() -> None:
    async with lab("ideal") as bmc, BmcPool() as pool:
        handle = pool.bmc(access(bmc))
        await handle.system()
        await bmc.unplug()
        with pytest.raises(BmcUnreachable):
            await handle.system()
        await bmc.plug()
        async with asyncio.timeout(20):
            caller = PatientCaller(handle)
            while await caller.tried(handle.system) is None:
                caller.misses += 1
                await asyncio.sleep(0.1)
        assert (await handle.system()).power is BmcPowerState.OFF


PXE_ONCE: Final = BootOverride(BootEnabled.ONCE, BootTarget.PXE)
READ_BACK: Final = {
    "ideal": BootOverride("Once", "Pxe", "UEFI"),
    "if-match-required": BootOverride("Once", "Pxe", "UEFI"),
    "if-match-refused": BootOverride("Once", "Pxe", "UEFI"),
    "if-match-refused-on-actions": BootOverride("Once", "Pxe", "UEFI"),
    "weak-etags": BootOverride("Once", "Pxe", "UEFI"),
    "double-quoted-etags": BootOverride("Once", "Pxe", "UEFI"),
    "no-etags": BootOverride("Once", "Pxe", "UEFI"),
    "boot-mode-reverts": BootOverride("Once", "Pxe", "UEFI"),
    "boot-override-stays": BootOverride("Continuous", "Pxe", "UEFI"),
    "boot-override-dropped": BootOverride("Disabled", "None", "UEFI"),
}


@pytest.mark.parametrize("profile", READ_BACK)
async def test_the_boot_override_reads_back_as_the_bmc_took_it(profile: str) -> None:
    async with lab(profile) as bmc, BmcPool() as pool:
        handle = pool.bmc(access(bmc))
        assert await handle.set_boot_override(PXE_ONCE) == READ_BACK[profile]
        assert (await handle.disable_boot_override()).enabled == "Disabled"


async def test_a_refused_boot_override_is_unsupported() -> None:
    async with lab("boot-override-refused") as bmc, BmcPool() as pool:
        with pytest.raises(Unsupported, match="405"):
            await pool.bmc(access(bmc)).set_boot_override(PXE_ONCE)
