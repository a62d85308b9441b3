"""machina is cut off anywhere and the weather is bad: a host is set up all the same, and once."""

from __future__ import annotations

import asyncio
import os
import random

import pytest

from tests.machina.machines.world import HOST, Cluster, first_of
from tests.operations.faults import FAIR, STORM
from tests.support.virtual_time import run_virtual
from unbounded.machina.ssh.model import SshReason

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
STEP = 2  # between the awaits at which a process is cut off, where not all are tried


def _awaits() -> int:
    """Return the number of machina's awaits from a new Machine to one that has only to join."""

    async def story() -> int:
        cluster = Cluster()
        await cluster.secrets()
        await cluster.machine()
        async with cluster.machina() as running:
            await cluster.phase("Joining")
            return running.life.awaits

    return run_virtual(story())


@pytest.mark.slow
def test_a_process_is_cut_off_at_every_await() -> None:
    awaits = _awaits()
    assert awaits > 30
    for crash_at in range(0 if SOAK else awaits % STEP, awaits + 1, 1 if SOAK else STEP):

        async def story(crash_at: int = crash_at) -> None:
            cluster = Cluster(chance=random.Random(crash_at))
            await cluster.secrets()
            await cluster.machine()
            first = cluster.process(crash_at=crash_at)
            await first_of(first.life.dead.wait(), cluster.phase("Joining", within_s=900))
            await first.stop()
            await asyncio.sleep(crash_at % 3 * 40)
            async with cluster.machina():
                machine = await cluster.phase("Joining", within_s=200)
                await asyncio.sleep(5)
            assert len((await cluster.installs()).begun) == 1, crash_at
            assert machine.status.active_operation is None, crash_at

        run_virtual(story())


def _storm(seed: int) -> None:
    """Bad weather, crashes, hosts that go and come, edits: in the end the host is set up, and never twice at a time."""

    async def story() -> None:
        chance = random.Random(seed)
        cluster = Cluster(chance=chance, weather=STORM)
        await cluster.secrets()
        await cluster.machine()
        installs, host = await cluster.installs(), cluster.hosts[HOST]
        installs.takes_s = chance.choice([1, 30, 200])
        installs.loses_answer = chance.random() < 0.5
        for _ in range(chance.randrange(4)):
            running = cluster.process(crash_at=chance.randrange(150))
            for _ in range(chance.randrange(4)):
                await first_of(running.life.dead.wait(), asyncio.sleep(chance.uniform(1, 60)))
                host.down = chance.choice([None, None, SshReason.TIMED_OUT])
                if chance.random() < 0.5:
                    host.cut()
            await running.stop()
            await asyncio.sleep(chance.uniform(0, 60))
        host.down, cluster.weather = None, FAIR
        async with cluster.machina():
            machine = await cluster.phase("Joining", within_s=3600)
            await asyncio.sleep(700)
            assert (await cluster.get()).status.phase == "Joining"
        assert len(installs.begun) == 1, [install.attempt for install in installs.begun]
        assert machine.status.active_operation is None
        assert host.open == 0

    run_virtual(story())


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(4))
def test_whatever_the_weather_a_host_is_set_up_once(batch: int) -> None:
    count = 500 if SOAK else 10
    for seed in range(batch * count, (batch + 1) * count):
        try:
            _storm(seed)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
