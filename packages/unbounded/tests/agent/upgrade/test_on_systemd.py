"""The way back on a real systemd, with agents that are shell scripts: what the units promise is what it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.agent.upgrade.on_hosts import CRASHES, CRASHES_SLOWLY, GOOD, HANGS, NEVER_READY, TrialHost
from tests.support.hosts import AgentTools, booted
from tests.support.qemu import Segment
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_UNIT
from unbounded.agent.upgrade.trial import RollbackNote

pytestmark = [pytest.mark.slow, pytest.mark.root, pytest.mark.timeout(240)]

FAILING = {
    "crashes": (CRASHES, "it failed again and again; it ended with status 3; it wrote last: this release crashes"),
    "crashes-slowly": (CRASHES_SLOWLY, "it was not proven in time; it ended with status 5"),
    "hangs": (HANGS, "it was not proven in time"),
    "never-ready": (NEVER_READY, "it was not proven in time"),
}


@pytest.fixture
async def trial_hosts(hosts: AgentTools, lan: Segment, disks: Path) -> AsyncIterator[list[TrialHost]]:
    """One for each way to fail: they mostly wait."""
    async with AsyncExitStack() as stack:
        made = []
        for number in range(len(FAILING)):
            up = await stack.enter_async_context(booted(hosts, lan, disks, f"up{number}", f"10.88.0.{31 + number}"))
            made.append(TrialHost(up))
        for one in made:
            await one.install()
        yield made


async def test_releases_that_fail_are_taken_back_and_the_cause_is_known(trial_hosts: list[TrialHost]) -> None:
    async def tried(host: TrialHost, daemon: str) -> RollbackNote | None:
        await host.upgrade("2", daemon, window_s=3)
        assert host.ground.releases.selection().on_trial
        await host.wait_running("1", within_s=60.0)
        return host.ground.store.rollback_note()

    pairs = zip(trial_hosts, FAILING.values(), strict=True)
    backs = await asyncio.gather(*(tried(host, daemon) for host, (daemon, _words) in pairs))
    assert backs == [RollbackNote("green", words) for _daemon, words in FAILING.values()]
    await asyncio.gather(
        _a_proven_agent_that_fails_comes_back(trial_hosts[0]),
        _a_power_cut_during_a_trial_ends_with_the_last_good_release(trial_hosts[1]),
        _a_proven_agent_that_hangs_is_started_again(trial_hosts[2]),
    )


async def _a_proven_agent_that_fails_comes_back(host: TrialHost) -> None:
    """As when something outside makes it fail for a while: there is nothing to go back to."""
    script = host.ground.releases.executable(host.ground.releases.free().other)
    good = script.read_text()
    script.write_text(f"#!/bin/sh\n[ -e /healed ] || exit 7\n{good}")
    host.host.put(
        f"/etc/systemd/system/{RECOVERY_UNIT}.d/quick.conf",
        b"[Service]\nEnvironment=UNBOUNDED_AGENT_RECOVERY_PAUSE=3\n",
    )
    await host.ground.units.reload()
    await host.ground.units.restart(DAEMON_UNIT, block=False)
    async with asyncio.timeout(60):
        while (await host.ground.units.observe(RECOVERY_UNIT)).active == "inactive":  # noqa: ASYNC110  # of another system
            await asyncio.sleep(0.2)
    host.host.put("/healed", b"")
    await host.wait_running("1", within_s=60.0)


async def _a_proven_agent_that_hangs_is_started_again(host: TrialHost) -> None:
    """By the watchdog: it has proven itself, so there is no trial that would end."""
    ground = host.ground
    ground.releases.executable(ground.releases.free().other).write_text(f"#!/bin/sh\n{_HANGS_WHEN_TOLD}\n")
    host.host.put(f"/etc/systemd/system/{DAEMON_UNIT}.d/quick.conf", b"[Service]\nWatchdogSec=3\n")
    await ground.units.reload()
    await ground.units.restart(DAEMON_UNIT)
    hung = (await ground.units.observe(DAEMON_UNIT)).main_pid
    host.host.put("/hang", b"")
    async with asyncio.timeout(60):
        while (await ground.units.observe(DAEMON_UNIT)).main_pid in (None, 0, hung):  # noqa: ASYNC110  # of another system
            await asyncio.sleep(0.2)
    await host.wait_running("1", within_s=60.0)
    assert "watchdog" in (await host.host.journal("--lines=40", f"--unit={DAEMON_UNIT}")).lower()


_HANGS_WHEN_TOLD = """\
[ $1 = version ] && exec echo unbounded-agent 1
systemd-notify --ready
while ! rm /hang 2>/dev/null; do systemd-notify WATCHDOG=1; sleep 1; done
exec sleep 1000"""


async def _a_power_cut_during_a_trial_ends_with_the_last_good_release(host: TrialHost) -> None:
    await host.upgrade("3", GOOD, window_s=3)
    host.host.cut()
    await host.host.up()
    assert host.ground.releases.selection().on_trial, "the trial goes on after the power is back"
    assert host.ground.store.starts() >= 1
    await host.wait_running("1", within_s=60.0)
