"""Reimaging in the crash test: metalman's own table and sight on a simulated host that boots from the network."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, Final, cast

from tests.metalman.support.netboot_host import RESCUE as RESCUE_SYSTEM
from tests.metalman.support.netboot_host import NetbootHost, Story
from tests.operations.faults import Incarnation
from tests.operations.simulated import Host, Outside, PowerExecutor, Violation
from tests.operations.world import PROOF, Process, World, run_engine
from tests.operations.world import Story as Told
from tests.support.virtual_time import virtual_now
from unbounded.api.failures import Failure, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.api import Api
from unbounded.metalman import erase_stages, inspect_stages, power, replace_table
from unbounded.metalman.boot_override import as_booted, boots_by_media, media_boot, network_target
from unbounded.metalman.disks_to_erase import is_begun
from unbounded.metalman.executor import NETBOOT_PROCEDURES, PROCEDURES
from unbounded.metalman.media.tickets import MediaUrls, TicketKey
from unbounded.metalman.redfish.bmc_interface import BmcPowerState, BootOverride
from unbounded.metalman.redfish.virtual_media import MediaDrive
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
from unbounded.metalman.replace_stages import by_media as by_media_of
from unbounded.metalman.virtual_media_boot import BootMedia
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import NotDone, Target
from unbounded.workflow.procedure import Observation, Procedure

REIMAGE: Final = "Reimage"  # what the judge calls a HostReplace of metalman's
PROOF[REIMAGE] = {
    power.EVIDENCE_OFF,
    replace_table.EVIDENCE_LOADER,
    replace_table.EVIDENCE_WRITTEN,
    replace_table.EVIDENCE_CLOUD_INIT,
}
PROOF[OperationKind.HOST_ERASE] = {
    replace_table.EVIDENCE_LOADER,
    inspect_stages.EVIDENCE_REPORT,
    erase_stages.EVIDENCE_ERASED,
    erase_stages.EVIDENCE_STAYS_OFF,
}
PROOF[OperationKind.HOST_INSPECT] = {
    replace_table.EVIDENCE_LOADER,
    inspect_stages.EVIDENCE_REPORT,
    inspect_stages.EVIDENCE_RESTORED,
}
PROOF[OperationKind.HOST_RESCUE] = {
    replace_table.EVIDENCE_LOADER,
    inspect_stages.EVIDENCE_RESCUE,
    inspect_stages.EVIDENCE_RESTORED,
}
LEAVE_SYSTEM: Final = (OperationKind.HOST_INSPECT, OperationKind.HOST_RESCUE)
RESCUE: Final = {"authorizedKeys": RESCUE_SYSTEM["hostKey"], "minutes": "1"}
CLEANED_EVERY_S: Final = 20.0
MEDIA: Final = {
    "image": "i",
    "bootMode": "VirtualMedia",
    "dhcpLeases": [
        {"ipv4": "10.0.0.5", "mac": "52:54:00:00:00:01", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1"}
    ],
    "redfish": {"url": "https://192.0.2.7", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}},
}
ARMING: Final = {
    replace_table.BOOT_ONCE: "Once",
    replace_table.BOOT_TO_STAY: "Continuous",
    replace_table.CLEAR_BOOT: "",
}


class KnownMachines:
    """The Machines that a process has read; as much of a cache as boot media need."""

    def __init__(self) -> None:
        self._known: dict[str, Machine] = {}

    def get(self, name: str) -> Machine | None:
        return self._known.get(name)

    def observe(self, machine: Machine) -> None:
        self._known[machine.name] = machine


class SimulatedDrive:
    """The virtual CD drive of a host, as its BMC offers it to an executor; an operation uses it."""

    url = ""

    def __init__(self, executor: NetbootExecutor, machine: str, operation: str = "") -> None:
        self._executor, self._machine, self._operation = executor, machine, operation

    @property
    def _host(self) -> Host:
        return self._executor.outside.host(self._machine)

    def _shown(self) -> MediaDrive:
        return MediaDrive("/Cd", self._host.image, bool(self._host.image), "/Insert", "/Eject")

    async def media_drive(self) -> MediaDrive:
        return await self._call("read drive", float("inf"), self._shown)

    async def insert_media(self, url: str, *, leave_by: float) -> MediaDrive:
        def insert() -> MediaDrive:
            host = self._host
            if host.image and host.image_of != self._operation:
                raise Violation(f"{self._operation} inserts an image beside that of {host.image_of}")
            host.image, host.image_of = url, self._operation
            return self._shown()

        drive = await self._call("insert", leave_by, insert)
        await self._executor.answered()
        return drive

    async def eject_media(self, *, leave_by: float) -> MediaDrive:
        def eject() -> MediaDrive:
            self._host.image = self._host.image_of = ""
            return self._shown()

        drive = await self._call("eject", leave_by, eject)
        await self._executor.answered()
        return drive

    async def _call(self, what: str, before: float, effect: Callable[[], MediaDrive]) -> MediaDrive:
        async def act() -> MediaDrive:
            await self._executor.reach(before)
            self._executor.life.hold_if_dead()
            return effect()

        return await self._executor.life.through(what, act)


class NetbootExecutor(PowerExecutor):
    """metalman with all its tables, and its own handling of boot media."""

    kinds = frozenset(PROCEDURES)

    def __init__(self, name: str, life: Incarnation, outside: Outside, api: Api) -> None:
        super().__init__(name, life, outside)
        self.api = api
        self.machines = KnownMachines()
        urls = MediaUrls("https://192.0.2.1:8443", timedelta(hours=1), virtual_now)
        urls.open(TicketKey(bytes(32)))
        self.media = BootMedia(api, cast(Any, self.machines), urls)

    async def clean(self) -> None:
        """Eject what ended operations have left, until cancelled."""
        while True:
            await asyncio.sleep(CLEANED_EVERY_S)
            for name in list(self.outside.hosts):
                if self.outside.host(name).by_media:
                    with contextlib.suppress(Failure):
                        self.machines.observe(await self.api.get(MACHINES, name))
                        access = LeftDrive(self)
                        await self.media.eject_left(name, cast(Any, access), cast(Any, access))

    def procedure(self, operation: MachineOperation) -> Procedure:
        kind = OperationKind(operation.spec.operation_kind)
        plain = PROCEDURES[kind](operation)
        by_media = kind in NETBOOT_PROCEDURES and self.outside.host(operation.spec.machine_ref or "").by_media
        return by_media_of(plain) if by_media else plain

    async def _has_media(self, target: Target, stage: str) -> bool:
        if not boots_by_media(target.machine):
            return True
        uid, name = target.operation.metadata.uid, target.machine.name
        if stage not in replace_table.SETTING_STAGES:
            return False
        return await self.media.is_inserted(target.machine, uid, cast(Any, SimulatedDrive(self, name, uid)))

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:
        return observed_parts(machine) if operation.spec.operation_kind in NETBOOT_PROCEDURES else None

    async def observe(self, target: Target) -> Observation:
        if target.operation.spec.operation_kind not in NETBOOT_PROCEDURES:
            return await super().observe(target)
        target = dataclasses.replace(target, machine=as_booted(target.machine, target.operation.metadata.uid))
        stage = target.run.stage or replace_table.WAITING_IMAGE
        told = Seen(stage, target.operation.metadata.uid, target.machine, None, target.run.boot_id)
        is_erase = target.operation.spec.operation_kind == OperationKind.HOST_ERASE

        async def read() -> Observation:
            seen = told
            undoes = replace_table.fact_source(stage) is replace_table.FactSource.UNDOING
            if undoes or (is_erase and stage in replace_table.RESTORING_STAGES):
                seen = dataclasses.replace(told, machine=await self.api.get(MACHINES, target.machine.name))
            fact = boot_fact(seen)
            if fact is None or replace_table.needs_power(stage, fact):
                await self.reach(float("inf"))
                host = self.outside.host(target.machine.name)
                if fact is None:
                    source = network_target(target.machine, None) if host.armed else "None"
                    shown = BootOverride(host.armed or "Disabled", source)
                    has_media = await self._has_media(target, stage)
                    armed = is_armed(seen, shown, has_media=has_media)
                    fact = power_fact(stage, BmcPowerState(host.power), armed=armed)
                    if stage in replace_table.RESTORING_STAGES:
                        was_on = inspect_stages.WAS_ON in {one.what for one in target.run.evidence}
                        fact = restored(fact, was_on=was_on and not is_begun(erasures_of(seen.machine, seen.boot)))
                elif host.power == "Off":
                    fact = replace_table.ReplaceFact.WRITTEN_OFF
            found = Observation(fact, boot_text(seen), "simulated BMC", boot_id="none", progress=progress_of(seen))
            return dataclasses.replace(found, erasures=erasures_of(seen.machine, seen.boot))

        return await self.life.through("observe", read)

    async def _prepare(self, target: Target, action: str, before: float) -> None:
        """Insert or eject the image of a boot, as `RedfishExecutor` does before the action itself."""
        uid, machine = target.operation.metadata.uid, target.machine
        drive = cast(Any, SimulatedDrive(self, machine.name, uid))
        is_again = action == replace_table.START and replace_table.is_started_again(
            target.run.stage, target.run.attempt
        )
        if action in (replace_table.BOOT_ONCE, replace_table.BOOT_TO_STAY, replace_table.START) and not is_again:
            await self.media.insert(machine, uid, drive, before)
        try:
            if is_again:
                await self.media.insert(machine, uid, drive, before)
            elif action == power.SWITCH_ON and media_boot(machine) == uid:
                await self.media.eject(machine, uid, drive, before)
        except (Transient, Uncertain) as error:
            if target.run.attempt <= 1:
                raise NotDone(reasons.NO_ANSWER, str(error)) from error

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        uid = target.operation.metadata.uid
        target = dataclasses.replace(target, machine=as_booted(target.machine, uid))
        requested, action = action, replace_table.NETWORK_ACTIONS.get(action, action)
        is_boot = boots_by_media(target.machine)
        if is_boot and target.operation.spec.operation_kind in NETBOOT_PROCEDURES:
            await self._prepare(target, action, before)
        if action not in ARMING:
            await super().perform(target, requested, before=before)
            return

        async def act() -> None:
            await self.reach(before)
            self.life.hold_if_dead()
            host = self.outside.host(target.machine.name)
            # an ejection is repeated until its record is removed, too
            satisfied = host.armed == ARMING[action] and not (is_boot and action == replace_table.CLEAR_BOOT)
            self.outside.record(target, requested, satisfied=satisfied, life=self.life.name)
            if self.outside.dice(self.outside.deaf):
                raise NotDone(reasons.NO_EFFECT, "the BMC took it, and shows something else")
            host.armed = ARMING[action]

        failed: Failure | None = None
        try:
            await self.life.through(f"perform {action}", act)
            await self.answered()
        except Failure as error:
            failed = error
        if action == replace_table.CLEAR_BOOT and is_boot:
            drive = SimulatedDrive(self, target.machine.name, uid)
            await self.media.eject(target.machine, uid, cast(Any, drive), before)
        if failed is not None:
            raise failed


class LeftDrive:
    """Access and pool of a process, as the ejection of left images uses them."""

    def __init__(self, executor: NetbootExecutor) -> None:
        self._executor = executor

    async def of(self, machine: Machine) -> SimulatedDrive:
        return SimulatedDrive(self._executor, machine.name)

    def bmc(self, account: SimulatedDrive) -> SimulatedDrive:
        return account

    def release_soon(self, url: str) -> None:
        """There are no sessions."""


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


async def _beside(engine: Coroutine[Any, Any, None], cleaner: Coroutine[Any, Any, None]) -> None:
    beside = asyncio.create_task(cleaner)
    try:
        await engine
    finally:
        beside.cancel()


class NetbootWorld(World):
    """A World whose Machines have hosts that boot from the network; the API reports them correctly and at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.netboots: dict[str, NetbootHost] = {}
        self._hosts: list[asyncio.Task[None]] = []

    async def netboot(self, name: str, story: Story, *, by_media: bool = False, **spec: Any) -> Machine:
        """A Machine, and the host behind it."""
        machine = await self.machine(name, **({"pxe": MEDIA} if by_media else spec))
        self.outside.host(name).by_media = by_media
        host = NetbootHost(self.api, virtual_now, name, Board(self, name), story)
        self.netboots[name] = host
        self._hosts.append(asyncio.create_task(host.run()))
        return machine

    async def operation(self, name: str, kind: str, machine: str | None = None, **spec: Any) -> MachineOperation:
        if kind == OperationKind.HOST_RESCUE:
            spec = {"parameters": RESCUE, **spec}
        return await super().operation(name, kind, machine, **spec)

    def _write_down(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._write_down(kind, old, new)
        if kind.kind == "MachineOperation" and new["spec"]["operationKind"] == OperationKind.HOST_REPLACE:
            self.kinds[new["metadata"]["name"]] = REIMAGE

    def metalman(self, name: str = "metalman/lab") -> Process:
        def main(life: Incarnation, api: Api) -> Coroutine[Any, Any, None]:
            executor = NetbootExecutor(name, life, self.outside, api)
            engine = run_engine(life, api, executor, self.announce, concurrent=10, alone=False, watches_pause=True)
            return _beside(engine, executor.clean())

        return Process(self, name, main)

    def judge(self) -> None:
        """Check the rules of any schedule, and of installations: once for an operation, never for a cancelled one."""
        for task in self._hosts:
            if task.done():
                task.result()
        super().judge()
        installs = [boot for host in self.netboots.values() for boot in host.installs]
        if len(installs) != len(set(installs)):
            raise Violation(f"installed twice: {installs}")
        for host in self.outside.hosts.values():
            if host.image:
                raise Violation(f"the image of {host.image_of} stays in the drive of {host.name}")
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
