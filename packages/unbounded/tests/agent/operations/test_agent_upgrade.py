"""AgentUpgrade beside what else happens on a host: another release, a start, a reset, old files."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import pytest

from tests.agent.upgrade.making import digest_of, host_with, place_release, release_tarball
from tests.agent.upgrade.simulated_host import no_key
from tests.agent.upgrade.test_units import RecordingUnits
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.host import HostCommands
from unbounded.agent.lock import host_lock
from unbounded.agent.operations.agent_upgrade import AgentUpgrade
from unbounded.agent.upgrade import procedure as table
from unbounded.agent.upgrade.health import UpgradeContext
from unbounded.agent.upgrade.procedure import UpgradeState
from unbounded.agent.upgrade.releases import Colour
from unbounded.agent.upgrade.staging import Fetch, ReleaseRequest, TarballLimits, fetch_release
from unbounded.agent.upgrade.switching import make_trial, put_on_trial
from unbounded.agent.upgrade.trial import TrialProgress
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.fetch.download import OnBytes
from unbounded.join.agent_config import UpgradeConfig
from unbounded.operations.execution_record import Run
from unbounded.operations.executor_protocol import Target

MACHINE: Final = "m1"
ACT_WITHIN_S: Final = 10.0


class Story:
    """One agent of version 1 in the blue slot; `running` is the slot of this process."""

    def __init__(self, root: Path, tasks: asyncio.TaskGroup, *, running: Colour, fetch: Fetch = fetch_release) -> None:
        paths = host_with(root / "host", "1")
        self.ground = UpgradeContext.of(paths, RecordingUnits(), paths.release(running) / "unbounded-agent")
        self.api = MemoryApi(now=virtual_now)
        self.key: Callable[[], Awaitable[str]] = no_key

        async def key() -> str:
            return await self.key()

        self.work = AgentUpgrade(
            self.ground, HostCommands(), self.api, UpgradeConfig(), tasks=tasks, key=key, fetch=fetch
        )

    async def target(self, name: str, stage: str = table.DOWNLOADING) -> Target:
        spec = {
            "operationKind": "AgentUpgrade",
            "machineRef": MACHINE,
            "parameters": {"downloadURL": f"https://{name}"},
        }
        made = await self.api.create(MACHINE_OPERATIONS, {"metadata": {"name": name}, "spec": spec})
        machine = await self.api.create(MACHINES, {"metadata": {"name": f"{MACHINE}-{name}"}, "spec": {}})
        return Target(made, machine, Run(MACHINE, machine.metadata.uid, "agent", "b", "", epoch="i", stage=stage))

    async def do(self, target: Target, action: str) -> None:
        await self.work.perform(target, action, before=asyncio.get_running_loop().time() + ACT_WITHIN_S)

    async def trial(self, *, switched: bool) -> Target:
        """Version 2 in the green slot, which was switched to or is about to be."""
        target = await self.target("up", table.SWITCHING)
        colour = place_release(self.ground.releases, "2")
        trial = make_trial(
            self.ground,
            release=colour,
            version="2",
            window_s=20,
            progress=TrialProgress.VERIFIED,
            operation="up",
            uid=target.operation.metadata.uid,
        )
        self.ground.store.write(trial)
        if switched:
            await put_on_trial(self.ground, trial)
        return target

    def state(self) -> tuple[object, ...]:
        """Return the state that an action may change."""
        paths = self.ground.paths
        units = sorted(path.name for path in paths.units.rglob("*")) if paths.units.exists() else []
        return self.ground.releases.selection(), self.ground.store.read(), units


def play(told: Callable[[asyncio.TaskGroup], Coroutine[Any, Any, None]]) -> None:
    async def story() -> None:
        async with asyncio.TaskGroup() as tasks:
            await told(tasks)

    run_virtual(story())


def test_fetch_of_a_release_waits_for_the_previous_fetch_to_end(tmp_path: Path) -> None:
    """Its operation may have ended, by its deadline, while a thread still works on the archive."""
    order: list[str] = []

    async def fetch(wish: ReleaseRequest, archive: Path, _limits: TarballLimits, _told: OnBytes) -> str:
        order.append(f"{wish.operation} begins")
        try:
            if wish.operation == "first":
                await asyncio.sleep(3600)
            return digest_of(release_tarball(archive, "2"))
        finally:
            await asyncio.sleep(3)
            order.append(f"{wish.operation} ends")

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.BLUE, fetch=fetch)
        first, second = await story.target("first"), await story.target("second")
        await story.do(first, table.FETCH)
        await asyncio.sleep(1)
        await story.do(second, table.FETCH)
        await asyncio.sleep(10)
        assert (await story.work.observe(second)).fact is UpgradeState.STAGED

    play(told)
    assert order == ["first begins", "first ends", "second begins", "second ends"]


def test_a_fetch_that_has_to_wait_too_long_is_asked_for_again(tmp_path: Path) -> None:
    async def fetch(_wish: ReleaseRequest, _archive: Path, _limits: TarballLimits, _told: OnBytes) -> str:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(ACT_WITHIN_S + 1)
        raise AssertionError

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.BLUE, fetch=fetch)
        first, second = await story.target("first"), await story.target("second")
        await story.do(first, table.FETCH)
        await asyncio.sleep(1)
        with pytest.raises(Transient, match="the time limit for the action has passed"):
            await story.do(second, table.FETCH)
        assert (await story.work.observe(second)).fact is UpgradeState.ABSENT

    play(told)


def test_release_is_verified_with_the_present_public_key(tmp_path: Path) -> None:
    asked: list[str] = []

    async def fetch(wish: ReleaseRequest, archive: Path, _limits: TarballLimits, _told: OnBytes) -> str:
        asked.append(wish.public_key)
        return digest_of(release_tarball(archive, "2"))

    async def refused() -> str:
        raise Rejected("ConfigMap unbounded-kube/unbounded-releases, key publicKey: expected the PEM")

    away = [Transient("no answer"), Transient("no answer")]

    async def given() -> str:
        if away:
            raise away.pop()
        return "the key"

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.BLUE, fetch=fetch)
        for name, key, fact in (("one", refused, UpgradeState.FETCH_FAILED), ("two", given, UpgradeState.STAGED)):
            story.key = key
            target = await story.target(name)
            await story.do(target, table.FETCH)
            await asyncio.sleep(30)
            sight = await story.work.observe(target)
            assert sight.fact is fact
            assert ("key publicKey: expected the PEM" in sight.detail) == (key is refused)

    play(told)
    assert asked == ["the key"]


CHANGES: Final = {
    table.SWITCH: False,
    table.TAKE_BACK: True,
    table.PROVE: True,
}  # and whether it was switched to before


@pytest.mark.parametrize("action", [table.SWITCH, table.TAKE_BACK])
def test_upgrade_changes_nothing_while_the_host_is_locked(tmp_path: Path, action: str) -> None:
    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.GREEN)
        target = await story.trial(switched=CHANGES[action])
        before = story.state()
        async with host_lock(story.ground.paths, "unbounded-agent start"):
            began = asyncio.get_running_loop().time()
            with pytest.raises(Transient, match=r"unbounded-agent start \(pid \d+\) holds the lock of this host"):
                await story.do(target, action)
            assert asyncio.get_running_loop().time() <= began + ACT_WITHIN_S + 1, "later it may not begin"
            assert story.state() == before
        await story.do(target, action)
        assert story.state() != before

    play(told)


def test_release_is_proven_despite_a_locked_host(tmp_path: Path) -> None:
    """Its timer reverts it without a wait for others."""

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.GREEN)
        target = await story.trial(switched=True)
        async with host_lock(story.ground.paths, "unbounded-agent start"):
            await story.do(target, table.PROVE)
        assert not story.ground.releases.selection().on_trial

    play(told)


@pytest.mark.parametrize("action", list(CHANGES))
def test_nothing_is_changed_after_a_reset_has_begun(tmp_path: Path, action: str) -> None:
    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.GREEN)
        target = await story.trial(switched=CHANGES[action])
        story.ground.paths.reset_state.write_text("{}")
        before = story.state()
        with pytest.raises(Transient, match="a reset of this host has started"):
            await story.do(target, action)
        assert story.state() == before

    play(told)


def test_trial_record_of_a_later_agent_does_not_block_after_its_trial(tmp_path: Path) -> None:
    async def fetch(_wish: ReleaseRequest, archive: Path, _limits: TarballLimits, _told: OnBytes) -> str:
        return digest_of(release_tarball(archive, "2"))

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.BLUE, fetch=fetch)
        story.ground.paths.etc.mkdir(parents=True)
        story.ground.paths.upgrade.write_text('{"format": 9, "progress": {"in": "another form"}}')
        target = await story.target("up")
        assert (await story.work.observe(target)).fact is UpgradeState.ABSENT
        await story.do(target, table.FETCH)
        while (await story.work.observe(target)).fact is UpgradeState.FETCHING:  # noqa: ASYNC110  # as the engine looks
            await asyncio.sleep(0.01)
        assert (await story.work.observe(target)).fact is UpgradeState.STAGED
        await story.do(target, table.VERIFY)
        assert (await story.work.observe(target)).fact is UpgradeState.VERIFIED

    async def real() -> None:  # the release is run: no virtual time
        async with asyncio.TaskGroup() as tasks:
            await told(tasks)

    asyncio.run(real())


def test_running_trial_record_of_a_later_agent_is_unreadable_and_unchanged(tmp_path: Path) -> None:
    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.GREEN)
        target = await story.trial(switched=True)
        story.ground.paths.upgrade.write_text('{"format": 9}')
        assert (await story.work.observe(target)).fact is UpgradeState.UNREADABLE
        assert (await story.work.observe(await story.target("next"))).fact is UpgradeState.UNREADABLE
        assert story.ground.paths.upgrade.read_text() == '{"format": 9}'

    play(told)


def test_an_operation_whose_traces_cannot_be_read_is_not_begun_anew(tmp_path: Path) -> None:
    """It may have come to its switch: what became of that is not known."""

    async def told(tasks: asyncio.TaskGroup) -> None:
        story = Story(tmp_path, tasks, running=Colour.BLUE)
        target = await story.trial(switched=False)
        story.ground.paths.upgrade.write_text('{"format": 9}')
        assert (await story.work.observe(target)).fact is UpgradeState.UNREADABLE

    play(told)
