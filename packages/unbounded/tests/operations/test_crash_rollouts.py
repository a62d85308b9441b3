"""The crash test of stages: supervisors are cut off, two lead at once, Nodes fail, and users pause, retry and cancel.

Replay a failing schedule with: UNBOUNDED_SEED=1234 .venv/bin/python -m pytest -k one_rollout
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from typing import Final

import pytest

from tests.operations.faults import FAIR, STORM
from tests.operations.rollouts import PARENT, RolloutWorld, draw_strategy, finish, meddle
from tests.operations.simulated import Violation
from tests.support.bugs import noted
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual
from unbounded.api.core import NODES
from unbounded.api.names import LABEL_MACHINE, LABEL_SITE
from unbounded.kube.api import ApiError

SCHEDULES: Final = 2_000 if os.environ.get("UNBOUNDED_SOAK") else 50
DEEDS: Final = (
    "pause",
    "resume",
    "resume",
    "retry",
    "fail",
    "fail",
    "fail",
    "fail",
    "lose",
    "lose",
    "delete",
    "cancel",
)


async def _schedule(seed: int) -> None:
    chance = random.Random(seed)
    world = RolloutWorld(chance, weather=STORM if chance.random() < 0.7 else FAIR, reaps=chance.random() < 0.7)
    machines = [f"m{number}" for number in range(chance.randint(2, 5))]
    for name in machines:
        await world.machine(name)
        await world.api.create(NODES, {"metadata": {"name": name, "labels": {LABEL_MACHINE: name}}})
    processes = [world.steward(), world.redfish(), *([world.steward()] if chance.random() < 0.5 else [])]
    tasks = [asyncio.create_task(world.kubelets())]
    tasks += [
        asyncio.create_task(one.keep(crashes=[chance.randrange(60) for _ in range(chance.randrange(4))]))
        for one in processes
    ]
    selector, policy = {"matchLabels": {LABEL_SITE: "lab"}}, draw_strategy(chance)
    await world.operation(
        PARENT, "HostReboot", machineSelector=selector, strategy=policy, maxConcurrent=chance.randint(1, 3)
    )
    for _ in range(chance.randrange(4, 20)):
        await asyncio.sleep(chance.uniform(0, 40))
        with contextlib.suppress(ApiError):
            await meddle(world, chance, chance.choice(DEEDS))
    world.weather = FAIR
    for life in world.lives:
        life.weather = FAIR
    world.lost.clear()
    await finish(world, chance)
    await asyncio.sleep(120)
    world.judge()
    for task in tasks:
        task.cancel()


def run_rollout(seed: int) -> None:
    with noted() as bugs:
        run_virtual(_schedule(seed))
    if bugs:
        raise Violation(f"logged: {bugs[0]}")


@pytest.mark.slow
def test_rollouts_keep_their_stages_over_crashes_and_two_leaders() -> None:
    first = first_seed()
    for seed in range(first, first + SCHEDULES):
        try:
            run_rollout(seed)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}: {error}\nreplay: UNBOUNDED_SEED={seed} pytest -k one_rollout"
            ) from error


@pytest.mark.slow
def test_one_rollout() -> None:
    run_rollout(int(os.environ.get("UNBOUNDED_SEED", "1")))
