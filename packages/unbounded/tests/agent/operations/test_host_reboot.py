"""HostReboot by the agent, in virtual time: done with another boot id, and never done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tests.operations.faults import Incarnation
from tests.operations.world import World
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.agent.executor import AgentExecutor
from unbounded.agent.interfaces import HostCommandResult
from unbounded.agent.operations.host_reboot import EVIDENCE_BOOTED, HOST_REBOOT, HostReboot
from unbounded.api.failures import Transient
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api


class Host:
    """A host that goes down some seconds after the command, with the agent.

    Args:
        fails: how often systemctl refuses first; `slow`: how often it takes too long, and acts.
    """

    def __init__(self, *, fails: int = 0, slow: int = 0) -> None:
        self.boot = 1
        self.asked_in: list[int] = []
        self.fails, self.slow = fails, slow
        self.going = asyncio.Event()

    def boot_id(self) -> str:
        return f"boot-{self.boot}"


class Systemctl:
    """The port `Commands`, as one life of an agent has it."""

    def __init__(self, host: Host, life: Incarnation) -> None:
        self.host = host
        self.life = life

    async def run(self, *argv: str, timeout_s: float = 60.0, stdin: bytes | None = None,
                  env: Mapping[str, str] | None = None, check: bool = True) -> HostCommandResult:  # fmt: skip
        assert argv == ("systemctl", "reboot")

        async def ask() -> HostCommandResult:
            self.life.hold_if_dead()
            if self.host.fails:
                self.host.fails -= 1
                return HostCommandResult(argv, 1, "", "Failed to reboot: busy")
            self.host.asked_in.append(self.host.boot)
            self.host.going.set()
            if self.host.slow:
                self.host.slow -= 1
                await asyncio.sleep(timeout_s)
                raise Transient("systemctl reboot: not complete within 30 s")
            return HostCommandResult(argv, 0, "", "")

        return await self.life.through("systemctl reboot", ask)


class Place:
    """A Machine without BMC and provider, and its agent, which dies and comes back with its host."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = World(random.Random(1))
        self.world.api = MemoryApi(admit=self.world._write_down, now=virtual_now)

        def executor(life: Incarnation, api: Api) -> AgentExecutor:
            work = HostReboot(Systemctl(host, life), host.boot_id)
            return AgentExecutor("m1", {OperationKind.HOST_REBOOT: work}, host_id="host")

        self.agent = self.world.executor("agent", executor, alone=True, watches_pause=False)

    async def begin(self) -> None:
        await self.world.machine("m1", kubernetes={})
        status = {"status": {"agent": {"version": "1", "hostBootID": self.host.boot_id()}}}
        await self.world.api.patch(MACHINES, "m1", status, subresource="status")
        self.world.steward().start()

    async def live(self, crash_at: int | None = None) -> None:
        while True:
            running = self.agent.start(crash_at=crash_at)
            dies = asyncio.create_task(running.life.dead.wait())
            goes = asyncio.create_task(self.host.going.wait())
            await asyncio.wait({dies, goes}, return_when=asyncio.FIRST_COMPLETED)
            if self.host.going.is_set():
                await asyncio.sleep(5)  # until systemd comes to it
                await running.stop()
                self.host.boot, self.host.going = self.host.boot + 1, asyncio.Event()
                await asyncio.sleep(60)
            await running.stop()
            crash_at = None
            await asyncio.sleep(2)


def rebooted(host: Host, *, crash_at: int | None = None, **spec: Any) -> tuple[MachineOperation, int]:
    """Return the end of the operation, and the number of the first agent's awaits."""

    async def story() -> tuple[MachineOperation, int]:
        host.going = asyncio.Event()
        place = Place(host)
        await place.begin()
        living = asyncio.create_task(place.live(crash_at))
        await place.world.operation("op", "HostReboot", "m1", startDeadlineSeconds=3600, **spec)
        operation = await place.world.ended("op", within_s=3600)
        await asyncio.sleep(600)
        living.cancel()
        agents = [life.awaits for life in place.world.lives if life.name.startswith("agent")]
        return operation, max(agents)

    return run_virtual(story())


def test_the_table_has_no_holes_and_no_lies() -> None:
    assert HOST_REBOOT.faults() == []


def test_it_is_complete_when_the_agent_is_back_with_another_boot_id() -> None:
    operation, _ = rebooted(host := Host())
    assert (operation.status.phase, operation.status.reason) == ("Complete", "Succeeded")
    (evidence,) = operation.status.evidence
    assert (evidence.what, evidence.where) == (EVIDENCE_BOOTED, "the host, boot id boot-2")
    assert host.asked_in == [1]


@pytest.mark.slow
def test_wherever_the_agent_is_cut_off_the_host_is_rebooted_once() -> None:
    _, awaits = rebooted(Host())
    for crash_at in range(awaits + 2):
        operation, _ = rebooted(host := Host(), crash_at=crash_at)
        assert operation.status.phase == "Complete", (crash_at, operation.status)
        assert host.boot == 2, crash_at
        assert set(host.asked_in) == {1}, crash_at


@pytest.mark.parametrize("host", [Host(fails=1), Host(slow=1)], ids=["refused-once", "answer-lost"])
def test_failed_reboot_call_is_retried_and_uncertain_one_observed_first(host: Host) -> None:
    operation, _ = rebooted(host)
    assert operation.status.phase == "Complete", operation.status
    assert host.boot == 2


def test_a_host_that_does_not_go_down_is_said_so() -> None:
    operation, _ = rebooted(host := Host(fails=99))
    assert operation.status.phase == "Failed"
    assert "and the last attempt failed: systemctl reboot: status 1: Failed to reboot: busy" in (
        operation.status.message or ""
    )
    assert host.boot == 1


def test_a_boot_that_came_in_between_is_the_reboot() -> None:
    """The agent was interrupted before it acted, and a user rebooted the host."""

    async def story() -> tuple[str | None, list[int]]:
        host = Host()
        place = Place(host)
        await place.begin()
        first = place.agent.start()
        await place.world.operation("op", "HostReboot", "m1", startDeadlineSeconds=3600)
        await place.world.until("op", lambda op: op.status.execution is not None, within_s=30)
        await first.stop()
        host.boot, host.asked_in = 2, []
        place.agent.start()
        operation = await place.world.ended("op", within_s=600)
        return operation.status.phase, host.asked_in

    assert run_virtual(story()) == ("Complete", [])
