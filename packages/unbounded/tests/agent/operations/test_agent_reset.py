"""AgentReset in virtual time: its proof, what it leaves behind when something stays, and an agent cut off anywhere."""

from __future__ import annotations

import asyncio
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.made_up_host import in_memory
from tests.agent.made_up_start import MadeUpStart, made_up_start
from tests.operations.faults import Incarnation
from tests.operations.world import World
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.model import Slot
from unbounded.agent.operations.agent_reset import PROCEDURE, REMOVED, AgentReset, stop_after_reset
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.reset import remove_all_parts
from unbounded.agent.reset_parts import ResetContext
from unbounded.agent.steps.start_steps import start_steps
from unbounded.agent.steps.step import StepHost, add_all
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api

SOAK = bool(os.environ.get("UNBOUNDED_SOAK"))
EVERY = 1 if SOAK else 3


@pytest.fixture
def folders() -> Iterator[Callable[[], Path]]:
    """Fresh folders in memory."""
    with in_memory() as folder:
        yield lambda: Path(tempfile.mkdtemp(dir=folder))


@pytest.fixture(autouse=True)
def _without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    monkeypatch.setattr(asyncio, "to_thread", at_once)  # no thread could wake a virtual clock


class Through:
    """A part of a host as one life of an agent has it: every call may be its last."""

    def __init__(self, part: object, life: Incarnation) -> None:
        self._part, self._life = part, life

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._part, name)
        if not asyncio.iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await self._life.through(name, lambda: method(*args, **kwargs))

        return call


class Place:
    """A control plane with one Machine, and its host, which has been started."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.world = World(random.Random(seed))
        self.host: MadeUpStart = made_up_start(root)
        self.works: list[AgentReset] = []
        self.agent = self.world.executor("agent", self._executor, alone=True, watches_pause=False)

    def _executor(self, life: Incarnation, api: Api) -> AgentExecutor:
        made = self.host.made
        commands, units = Through(made.commands, life), Through(made.units, life)
        resetting = ResetContext(StepHost(made.paths, commands, units), Through(self.host.nodes, life))
        self.works.append(AgentReset(resetting, RecreationStatusWriter(api, "m1", now=virtual_now)))
        return AgentExecutor("m1", {OperationKind.AGENT_RESET: self.works[-1]}, host_id="host")

    async def begin(self) -> dict[str, Any]:
        """The tree as it was before start."""
        before = self.tree()
        await add_all(start_steps(debootstrap=False), self.host.starting(), lambda _words: None)
        await self.world.machine("m1")
        self.world.steward().start()
        return before

    def tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = self.host.made.tree()
        for volatile in ("run/unbounded-agent/", "run/unbounded-agent/host.lock"):
            tree.pop(volatile, None)
        return tree

    async def ended(self, name: str = "op") -> MachineOperation:
        return await self.world.ended(name, within_s=1800)

    @property
    def can_start(self) -> bool:
        """Return whether systemd could start the daemon again."""
        paths = self.host.paths
        return paths.current.exists() and paths.config.exists() and (paths.units / DAEMON_UNIT).exists()


def test_its_table_has_no_holes() -> None:
    assert PROCEDURE.faults() == []


@pytest.mark.slow
def test_reset_completes_without_leftovers_and_the_daemon_stops_afterwards(folders: Callable[[], Path]) -> None:
    async def story() -> None:
        place = Place(folders())
        before = await place.begin()
        place.agent.start()
        await asyncio.sleep(1)
        ended: list[str] = []

        def settled() -> bool:
            assert not place.can_start, "files go before the end is written"
            return bool(ended)

        parting = asyncio.create_task(stop_after_reset(place.works[-1], settled, place.host.made.commands))
        await place.world.operation("op", "AgentReset", "m1")
        operation = await place.ended()
        assert operation.status.phase == "Complete", operation.status
        assert [one.what for one in operation.status.evidence] == [REMOVED]
        machine = await place.world.api.get(MACHINES, "m1")
        assert [(one.type, one.status, one.reason) for one in machine.status.conditions] == [
            ("AgentBootstrapped", "False", "Reset")
        ]
        assert place.tree() == before
        assert not place.host.made.commands.lines("systemd-run"), "the daemon is stopped before its operation has ended"
        ended.append("yes")
        await parting
        parted = place.host.made.commands.lines("systemd-run")
        assert len(parted) == 1
        assert f"systemctl stop {DAEMON_UNIT}; systemctl daemon-reload;" in parted[0]
        machine = await place.world.api.get(MACHINES, "m1")
        assert machine.status.active_operation is None

    run_virtual(story())


@pytest.mark.slow
def test_reset_names_leftovers_keeps_the_agent_and_can_be_repeated(folders: Callable[[], Path]) -> None:
    async def story() -> None:
        place = Place(folders())
        before = await place.begin()
        place.agent.start()
        place.host.nodes.stubborn = {"remove kube1"}
        await place.world.operation("op", "AgentReset", "m1")
        operation = await place.ended()
        assert (operation.status.phase, operation.status.reason) == ("Failed", "ResourcesLeft")
        assert "kube1: remove kube1: it does not" in (operation.status.message or "")
        assert place.can_start
        assert not place.works[-1].gone.is_set()
        place.host.nodes.stubborn = set()
        await place.world.operation("again", "AgentReset", "m1")
        assert (await place.ended("again")).status.phase == "Complete"
        assert place.tree() == before

    run_virtual(story())


def _awaits(folder: Path) -> int:
    async def story() -> int:
        place = Place(folder)
        await place.begin()
        place.agent.start()
        await place.world.operation("op", "AgentReset", "m1")
        assert (await place.ended()).status.phase == "Complete"
        return max(life.awaits for life in place.world.lives if life.name.startswith("agent"))

    return run_virtual(story())


@pytest.mark.slow
def test_an_agent_that_is_cut_off_anywhere_finishes_when_it_is_back(folders: Callable[[], Path]) -> None:
    """If its own files are gone already, it cannot return: then another reset by hand finds the remains."""
    count = _awaits(folders())
    assert count > 40
    orphaned = 0
    for crash_at in range(0, count + 1, EVERY):

        async def story(crash_at: int = crash_at) -> bool:
            place = Place(folders(), crash_at)
            before = await place.begin()
            running = place.agent.start(crash_at=crash_at)
            await place.world.operation("op", "AgentReset", "m1")
            crash, end = asyncio.create_task(running.life.dead.wait()), asyncio.create_task(place.ended())
            await asyncio.wait({crash, end}, return_when=asyncio.FIRST_COMPLETED)
            crash.cancel()
            await running.stop()
            place.host.nodes.running = dict.fromkeys(Slot, False)
            if not end.done() and not place.can_start:
                end.cancel()
                await remove_all_parts(ResetContext(place.host.made.host, place.host.nodes), lambda _words: None)
                assert place.tree() == before, crash_at
                return True
            place.agent.start()
            operation = await end
            assert operation.status.phase == "Complete", (crash_at, operation.status)
            assert place.tree() == before, crash_at
            return False

        orphaned += run_virtual(story())
    assert orphaned < count / EVERY / 3
