"""AgentUpgrade interrupted anywhere, in virtual time: it ends with a true report, and a working agent is left."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.upgrade.making import digest_of, version_in_use
from tests.agent.upgrade.natures import FAILING, GOOD, SEES_LATE, WINDOW_S, WORKING, Nature
from tests.agent.upgrade.simulated_host import MACHINE, URL, SimulatedHost, deadly_file_system
from tests.operations.faults import STORM
from tests.operations.simulated import Violation
from tests.operations.world import World
from tests.support.seeds import first_seed
from tests.support.virtual_time import run_virtual
from unbounded.agent.upgrade import procedure as table
from unbounded.agent.upgrade.releases import ReleaseSlots
from unbounded.agent.upgrade.trial import TrialStore
from unbounded.api.operation import MachineOperation

WITHIN_S: Final = 7200.0
Told = Callable[[SimulatedHost], Awaitable[None]]


def upgrade(
    nature: Nature,
    *,
    seed: int = 1,
    crashes: list[int] | None = None,
    outages: float = 0.0,
    stormy: bool = False,
    parameters: dict[str, str] | None = None,
    meanwhile: Told | None = None,
    **spec: Any,
) -> tuple[MachineOperation, SimulatedHost, int]:
    """One AgentUpgrade from version 1 to 2; the operation at its end, the host, and how many points the first agent had
    at which it could have been cut off."""

    async def story() -> tuple[MachineOperation, SimulatedHost, int]:
        chance = random.Random(seed)
        world = World(chance, weather=STORM) if stormy else World(chance)
        host = SimulatedHost(world, Path(folder), {"1": GOOD, "2": nature})
        host.crashes, host.outages = list(crashes or []), outages
        await world.machine(MACHINE)
        world.steward().start()
        host.boot()
        await world.operation(
            "up", "AgentUpgrade", MACHINE, parameters={"downloadURL": URL, **(parameters or {})}, **spec
        )
        if meanwhile is not None:
            await meanwhile(host)
        operation = await world.ended("up", within_s=WITHIN_S)
        await _settled(host)
        host.check()
        _judge(operation, host)
        return operation, host, world.lives[1].awaits

    with tempfile.TemporaryDirectory() as folder, deadly_file_system():
        return run_virtual(story())


async def _settled(host: SimulatedHost) -> None:
    """Until no release is on trial and an agent runs."""
    for _ in range(600):
        if host.trouble:
            raise host.trouble[0]
        if host.version == version_in_use(host.paths) and not ReleaseSlots(host.paths).selection().on_trial:
            return
        await asyncio.sleep(1)
    raise Violation(f"{host.version or 'nothing'} runs, {ReleaseSlots(host.paths).selection()}")


def _judge(operation: MachineOperation, host: SimulatedHost) -> None:
    status = operation.status
    evidence = {one.what for one in status.evidence}
    if host.version != version_in_use(host.paths):
        raise Violation(f"{host.version} runs, and {version_in_use(host.paths)} is in use")
    if status.phase == "Complete":
        if host.version != "2" or host.natures["2"] not in WORKING:
            raise Violation(f"Complete, and {host.version} runs")
        if not {table.EVIDENCE_RUNNING, table.EVIDENCE_HEALTHY} <= evidence:
            raise Violation(f"Complete with {evidence}")
        if "unbounded-agent 2 runs" not in (status.message or ""):
            raise Violation(f"Complete, and it says {status.message}")
    elif host.version != "1":
        raise Violation(f"{status.phase} {status.reason}: {status.message}; and {host.version} runs")


@pytest.mark.slow
def test_a_good_release_is_proven_after_its_window() -> None:
    operation, host, _awaits = upgrade(GOOD)
    assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded")
    assert operation.status.message == f"unbounded-agent 2 runs and stayed healthy for {WINDOW_S} s"
    assert host.history == ["1", "2"]


@pytest.mark.slow
def test_the_window_begins_with_a_read_that_is_answered() -> None:
    took = [_took(upgrade(nature)[1]) for nature in (GOOD, SEES_LATE)]
    assert took[1] >= took[0] + 0.4 * WINDOW_S


def _took(host: SimulatedHost) -> float:
    (story,) = host.world.stories.values()
    assert story.ended_at is not None
    assert story.claimed_at is not None
    return story.ended_at - story.claimed_at


@pytest.mark.slow
@pytest.mark.parametrize("how", list(FAILING))
def test_a_release_that_fails_is_taken_back_and_remembered(how: str) -> None:
    seen: dict[str, bool] = {}

    async def look(host: SimulatedHost) -> None:
        await host.world.ended("up", within_s=WITHIN_S)
        seen["failed"] = digest_of(host.archive) in TrialStore(host.paths).failed()

    operation, host, _awaits = upgrade(FAILING[how], meanwhile=look)
    assert (operation.status.phase, operation.status.reason) == ("Failed", "DaemonFailed")
    words = {
        "crashes": "it failed again and again; it ended with status 3",
        "crashes-slowly": "it ended with status 3",
        "hangs": "the watchdog killed it",
        "deaf": "cannot use the API server",
        "blind": "get Machine: no answer",
        "goes-blind": "get Machine: no answer",
    }
    assert words[how] in (operation.status.message or "")
    assert "unbounded-agent 2 was rolled back" in (operation.status.message or "")
    assert seen["failed"]
    assert host.history[-1] == "1"


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        pytest.param({"downloadURL": "https://releases.example/missing"}, "DownloadFailed", id="missing"),
        pytest.param({"downloadURL": "ftp://releases.example/x"}, "InvalidParameters", id="ftp"),
        pytest.param({"downloadURL": ""}, "InvalidParameters", id="empty"),
        pytest.param({"downloadURL": "http://releases.example/x"}, "InvalidParameters", id="http"),
        pytest.param({"sha256": "12"}, "InvalidParameters", id="digest"),
    ],
)
def test_what_fails_before_the_switch_leaves_the_agent_alone(parameters: dict[str, str], reason: str) -> None:
    operation, host, _awaits = upgrade(GOOD, parameters=parameters)
    assert (operation.status.phase, operation.status.reason) == ("Failed", reason)
    assert host.history == ["1"]


def test_a_deadline_that_leaves_no_room_for_the_window_is_refused() -> None:
    operation, _host, _awaits = upgrade(GOOD, deadlineSeconds=WINDOW_S)
    assert (operation.status.phase, operation.status.reason) == ("Failed", "InvalidParameters")
    assert "the minimum is 100" in (operation.status.message or "")


@pytest.mark.slow
def test_an_operation_that_ends_otherwise_takes_its_release_with_it() -> None:
    """Failed means that the former version runs, whatever failed: here the deadline, in the middle of the window."""

    operation, host, _awaits = upgrade(CUT_SHORT, deadlineSeconds=100 + WINDOW_S)
    assert operation.status.reason in ("DeadlineExceeded", "DaemonFailed")
    assert host.history[-1] == "1"


CUT_SHORT: Final = Nature(lives_s=WINDOW_S - 5.0)


# In soak at every point; else at each nth, beginning somewhere.
EACH: Final = pytest.mark.parametrize(
    "step",
    [
        pytest.param(16, marks=pytest.mark.slow, id="some"),
        pytest.param(1, marks=[pytest.mark.soak, pytest.mark.timeout(900)], id="all"),
    ],
)
SCHEDULES: Final = pytest.mark.parametrize(
    "count",
    [
        pytest.param(3, marks=pytest.mark.slow, id="some"),
        pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(1800)], id="all"),
    ],
)


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.5, 2.0, 3.5, 5.0, 30.0])
def test_cancel_undoes_before_the_switch_and_is_too_late_after_it(after_s: float) -> None:
    async def cancel(host: SimulatedHost) -> None:
        await asyncio.sleep(after_s)
        await host.world.cancel("up")

    operation, host, _awaits = upgrade(GOOD, meanwhile=cancel)
    if operation.status.reason == "Cancelled":
        assert host.history == ["1"]
        assert not host.paths.release("green").exists()
        assert not host.paths.upgrade.exists()
    else:
        assert operation.status.phase == "Complete"
    assert after_s > 1 or operation.status.reason == "Cancelled"
    assert after_s < 30 or operation.status.phase == "Complete"


@EACH
@pytest.mark.parametrize("outages", [0.0, 1.0], ids=["process", "power"])
def test_the_former_agent_is_cut_off_at_any_point(outages: float, step: int) -> None:
    """At every call and every change of the file system from the claim to the restart."""
    _operation, _host, points = upgrade(GOOD)
    for crash_at in range(random.randrange(step), points + 1, step):
        _at(crash_at, [crash_at], outages)


@EACH
@pytest.mark.parametrize("outages", [0.0, 1.0], ids=["process", "power"])
def test_the_new_agent_is_cut_off_at_any_point(outages: float, step: int) -> None:
    """Its window starts again each time; when it no longer fits into the trial, the former release returns."""
    for crash_at in range(random.randrange(step), 120, step):
        _at(crash_at, [1_000_000, crash_at], outages)


def _at(point: int, crashes: list[int], outages: float) -> None:
    try:
        operation, _host, _awaits = upgrade(GOOD, crashes=crashes, outages=outages)
    except (AssertionError, Violation) as error:
        raise AssertionError(f"cut off at {point}: {error}") from error
    late = crashes[-1] == point and len(crashes) > 1 and operation.status.reason == "DaemonFailed"
    assert operation.status.phase == "Complete" or late, f"cut off once at {point}: {operation.status}"


@SCHEDULES
@pytest.mark.parametrize("how", ["good", *FAILING])
def test_random_schedules(how: str, count: int) -> None:
    """Storms, crashes and losses of power; UNBOUNDED_SEED repeats one."""
    first = int(os.environ.get("UNBOUNDED_SEED") or first_seed())
    for seed in range(first, first + count):
        chance = random.Random(seed)
        crashes = [chance.randrange(250) for _ in range(chance.randrange(4))]
        nature = GOOD if how == "good" else FAILING[how]
        try:
            upgrade(nature, seed=seed, crashes=crashes, outages=0.5, stormy=chance.random() < 0.5, deadlineSeconds=3600)
        except (AssertionError, Violation) as error:
            raise AssertionError(f"seed {seed}: {error}") from error
