"""Reimaging in the crash test: metalman's own table and sight on a simulated host that boots from the network."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any, Final

from tests.metalman.support.netboot_host import RESCUE as RESCUE_SYSTEM
from tests.metalman.support.netboot_host import NetbootHost, Story
from tests.operations.faults import Incarnation
from tests.operations.simulated import Host, Outside, PowerExecutor, Violation
from tests.operations.world import PROOF, Process, World
from tests.operations.world import Story as Told
from tests.support.virtual_time import virtual_now
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.port import Api
from unbounded.metalman import erase_stages, inspect_stages, power, replace, rescue_stages
from unbounded.metalman.erase_choice import is_begun
from unbounded.metalman.executor import NETBOOT_PROCEDURES, PROCEDURES
from unbounded.metalman.redfish.ports import BmcPowerState, BootOverride
from unbounded.metalman.replace_observation import ReplaceState as Seen
from unbounded.metalman.replace_observation import (
    boot_fact,
    boot_text,
    erasures_of,
    is_armed,
    observed_parts,
    power_fact,
    progress_of,
    restored,
)
from unbounded.operations import reasons
from unbounded.operations.ports import NotDone, Target
from unbounded.workflow.procedure import Observation, Procedure

REIMAGE: Final = "Reimage"  # what the judge calls a HostReplace of metalman's
PROOF[REIMAGE] = {power.SEEN_OFF, replace.SEEN_LOADER, replace.SEEN_WRITTEN, replace.SEEN_CLOUD_INIT}
PROOF[OperationKind.HOST_ERASE] = {
    replace.SEEN_LOADER,
    inspect_stages.SEEN_REPORT,
    erase_stages.SEEN_ERASED,
    erase_stages.SEEN_STAYS_OFF,
}
PROOF[OperationKind.HOST_INSPECT] = {replace.SEEN_LOADER, inspect_stages.SEEN_REPORT, inspect_stages.SEEN_RESTORED}
PROOF[OperationKind.HOST_RESCUE] = {replace.SEEN_LOADER, rescue_stages.SEEN_RESCUE, inspect_stages.SEEN_RESTORED}
LEAVE_SYSTEM: Final = (OperationKind.HOST_INSPECT, OperationKind.HOST_RESCUE)
RESCUE: Final = {"authorizedKeys": RESCUE_SYSTEM["hostKey"], "minutes": "1"}
ARMING: Final = {replace.BOOT_ONCE: "Once", replace.BOOT_TO_STAY: "Continuous", replace.CLEAR_BOOT: ""}


class NetbootExecutor(PowerExecutor):
    """metalman with all its tables."""

    kinds = frozenset(PROCEDURES)

    def __init__(self, name: str, life: Incarnation, outside: Outside, api: Api) -> None:
        super().__init__(name, life, outside)
        self.api = api

    def procedure(self, operation: MachineOperation) -> Procedure:
        return PROCEDURES[OperationKind(operation.spec.operation_kind)](operation)

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:
        return observed_parts(machine) if operation.spec.operation_kind in NETBOOT_PROCEDURES else None

    async def observe(self, target: Target) -> Observation:
        if target.operation.spec.operation_kind not in NETBOOT_PROCEDURES:
            return await super().observe(target)
        stage = target.run.stage or replace.WAITING_IMAGE
        told = Seen(stage, target.operation.metadata.uid, target.machine, None, target.run.boot_id)
        is_erase = target.operation.spec.operation_kind == OperationKind.HOST_ERASE

        async def read() -> Observation:
            seen = told
            undoes = replace.fact_source(stage) is replace.FactSource.UNDOING
            if undoes or (is_erase and stage in replace.RESTORING_STAGES):
                seen = dataclasses.replace(told, machine=await self.api.get(MACHINES, target.machine.name))
            fact = boot_fact(seen)
            if fact is None or replace.needs_power(stage, fact):
                await self.reach(float("inf"))
                host = self.outside.host(target.machine.name)
                if fact is None:
                    shown = BootOverride(host.armed or "Disabled", "Pxe" if host.armed else "None")
                    fact = power_fact(stage, BmcPowerState(host.power), armed=is_armed(seen, shown))
                    if stage in replace.RESTORING_STAGES:
                        was_on = inspect_stages.WAS_ON in {one.what for one in target.run.evidence}
                        fact = restored(fact, was_on=was_on and not is_begun(erasures_of(seen.machine, seen.boot)))
                elif host.power == "Off":
                    fact = replace.ReplaceFact.WRITTEN_OFF
            found = Observation(fact, boot_text(seen), "simulated BMC", boot_id="none", progress=progress_of(seen))
            return dataclasses.replace(found, erasures=erasures_of(seen.machine, seen.boot))

        return await self.life.through("observe", read)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        if action not in ARMING:
            await super().perform(target, action, before=before)
            return

        async def act() -> None:
            await self.reach(before)
            self.life.hold_if_dead()
            host = self.outside.host(target.machine.name)
            self.outside.record(target, action, satisfied=host.armed == ARMING[action], life=self.life.name)
            if self.outside.dice(self.outside.deaf):
                raise NotDone(reasons.NO_EFFECT, "the BMC took it, and shows something else")
            host.armed = ARMING[action]

        await self.life.through(f"perform {action}", act)
        await self.answered()


class Board:
    """The hardware of a simulated host."""

    def __init__(self, world: World, name: str) -> None:
        self._world, self._name = world, name

    @property
    def _host(self) -> Host:
        return self._world.outside.host(self._name)

    def boots(self) -> list[str]:
        return list(self._host.sources)

    def is_on(self) -> bool:
        return self._host.power == "On"

    def restart(self) -> None:
        if self.is_on():
            self._host.start()

    def switch_off(self) -> None:
        self._host.off_at = self._world.outside.now()


class NetbootWorld(World):
    """A World whose Machines have hosts that boot from the network; the API reports them correctly and at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.netboots: dict[str, NetbootHost] = {}
        self._hosts: list[asyncio.Task[None]] = []

    async def netboot(self, name: str, story: Story) -> Machine:
        """A Machine, and the host behind it."""
        machine = await self.machine(name)
        host = NetbootHost(self.api, virtual_now, name, Board(self, name), story)
        self.netboots[name] = host
        self._hosts.append(asyncio.create_task(host.run()))
        return machine

    async def operation(self, name: str, kind: str, machine: str | None = None, **spec: Any) -> MachineOperation:
        if kind == OperationKind.HOST_RESCUE:
            spec = {"parameters": RESCUE, **spec}
        made = await super().operation(name, kind, machine, **spec)
        if kind == OperationKind.HOST_REPLACE:
            self.kinds[name] = REIMAGE
        return made

    def metalman(self, name: str = "metalman/lab") -> Process:
        return self.executor(name, lambda life, api: NetbootExecutor(name, life, self.outside, api))

    def judge(self) -> None:
        """Check the rules of any schedule, and of installations: once for an operation, never for a cancelled one."""
        for task in self._hosts:
            if task.done():
                task.result()
        super().judge()
        installs = [boot for host in self.netboots.values() for boot in host.installs]
        if len(installs) != len(set(installs)):
            raise Violation(f"installed twice: {installs}")
        for uid, story in self.stories.items():
            if uid in installs and story.status.get("reason") == reasons.CANCELLED:
                raise Violation(f"{story} was cancelled, and its image was written")
            if uid in installs and self.kinds[story.name] in LEAVE_SYSTEM:
                raise Violation(f"{story} has written an image")
            self._judge_erasure(uid, story)

    def _judge_erasure(self, uid: str, story: Told) -> None:
        """Check that an ended HostErase calls no disk untouched that was begun, and none erased that was not."""
        begun = {disk for host in self.netboots.values() for boot, disk in host.begun if boot == uid}
        states = {one["serialNumber"]: one["state"] for one in story.status.get("erasures", ())}
        if self.kinds[story.name] != OperationKind.HOST_ERASE:
            if begun:
                raise Violation(f"{story} has erased {begun}")
            return
        if any(states.get(disk, "Untouched") == "Untouched" for disk in begun):
            raise Violation(f"{story} has begun {begun}, and its report is {states}")
        if any(state == "Erased" and disk not in begun for disk, state in states.items()):
            raise Violation(f"{story} has begun {begun}, and its report is {states}")

    def _happened(self, kind: str, story: Told) -> bool:
        if kind == OperationKind.HOST_ERASE:
            return story.power_at_end == power.BmcPowerFact.OFF
        if kind in LEAVE_SYSTEM:
            return story.power_at_end == story.power_at_claim
        if kind != REIMAGE:
            return super()._happened(kind, story)
        (uid,) = (uid for uid, one in self.stories.items() if one is story)
        host = self.outside.host(story.machine)
        went_off = story.power_at_claim == "Off" or any(at >= (story.claimed_at or 0.0) for at in host.was_off)
        return uid in self.netboots[story.machine].installs and went_off and story.power_at_end == power.BmcPowerFact.ON
