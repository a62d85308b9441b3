"""Courses of power operations: one thing goes wrong at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from tests.operations.building import slot_of
from tests.operations.courses import METALMAN, Recorded, RecordedPower, agent, course, until_ended
from tests.operations.faults import Weather
from tests.operations.staging import in_stage, machine, pause, resume
from tests.operations.world import Process, Running
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Transient
from unbounded.api.fields import Cause
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.metalman import power
from unbounded.operations.executor_protocol import NotDone, Refusal, Target
from unbounded.workflow.procedure import Observation, Procedure

Failure = Callable[[], Exception]
GRACE: Final[dict[str, Any]] = {"parameters": {"graceSeconds": "15"}}
FORCE: Final[dict[str, Any]] = {"parameters": {"force": "true"}}


async def _alone(world: Recorded, kind: str, *, off: bool = False, deaf: bool = False, **spec: Any) -> None:
    await world.machine("m1")
    if off:
        world.outside.host("m1").power = "Off"
    world.outside.deaf = 1.0 if deaf else 0.0
    world.steward().start()
    world.metalman().start()
    await world.operation("op", kind, "m1", **spec)


@course
async def reboot(world: Recorded) -> None:
    await _alone(world, "HostReboot")
    await until_ended(world, "op")


@course
async def reboot_of_a_deaf_host(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await until_ended(world, "op")


@course
async def reboot_by_force_of_a_host_that_is_off(world: Recorded) -> None:
    await _alone(world, "HostReboot", off=True, **FORCE)
    await until_ended(world, "op")


@course
async def power_off_and_off_again(world: Recorded) -> None:
    await _alone(world, "HostPowerOff")
    await world.operation("then", "HostPowerOff", "m1")
    await until_ended(world, "op", "then")


@course
async def power_on_and_on_again(world: Recorded) -> None:
    await _alone(world, "HostPowerOn", off=True)
    await world.operation("then", "HostPowerOn", "m1")
    await until_ended(world, "op", "then")


@course
async def a_host_that_comes_back_by_itself(world: Recorded) -> None:
    await _alone(world, "HostPowerOff", **FORCE)
    for _ in range(2):
        await world.until("op", lambda op: "Confirming" in str(op.status.targets), within_s=60)
        host = world.outside.host("m1")
        host.on_at = world.outside.now() + 0.5
        await asyncio.sleep(8)
    await until_ended(world, "op")


@course
async def cancelled_before_the_look_ends(world: Recorded) -> None:
    world.outside.unreachable = 1.0
    await _alone(world, "HostReboot")
    await in_stage(world, "op", power.STARTING)
    await world.cancel("op")
    await until_ended(world, "op")


@course
async def power_off_is_undone(world: Recorded) -> None:
    await _alone(world, "HostPowerOff", **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.cancel("op")
    await until_ended(world, "op")


@course
async def deleted_past_the_point_of_no_return(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.api.delete(MACHINE_OPERATIONS, "op")
    await asyncio.sleep(120)


@course
async def deadline_in_a_grace(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, deadlineSeconds=30)
    await until_ended(world, "op")


@course
async def deadline_before_the_first_ask(world: Recorded) -> None:
    world.outside.unreachable = 1.0
    await _alone(world, "HostPowerOn", deadlineSeconds=20)
    await until_ended(world, "op")


@course
async def a_bmc_that_is_silent_for_a_while(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await asyncio.sleep(4)
    world.outside.unreachable = 1.0
    await asyncio.sleep(30)
    world.outside.unreachable = 0.0
    await until_ended(world, "op")


@course
async def a_bmc_that_is_silent_for_good(world: Recorded) -> None:
    await _alone(world, "HostReboot", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    world.outside.unreachable = 1.0
    await until_ended(world, "op")


@course
async def answers_that_are_lost(world: Recorded) -> None:
    world.outside.lost = 1.0
    await _alone(world, "HostReboot", **GRACE)
    await until_ended(world, "op")


class BoundByUrl(RecordedPower):
    """Acts on the host that the Machine's BMC URL names."""

    def target_digest(self, machine: Any) -> str:
        return f"host:{machine.spec.pxe.redfish.url}"


async def _edited_in(world: Recorded, stage: str) -> None:
    await world.machine("m1")
    world.executor(METALMAN, lambda life, _api: BoundByUrl(METALMAN, life, world)).start()
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await in_stage(world, "op", stage)
    await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": {"url": "https://elsewhere"}}}})
    await until_ended(world, "op")


@course
async def a_machine_edited_before_an_ask(world: Recorded) -> None:
    world.outside.deaf = 1.0
    await _edited_in(world, power.SHUTTING_DOWN)


@course
async def a_machine_edited_before_the_first_call(world: Recorded) -> None:
    """Without a call, the executor does not observe the former host again."""
    world.outside.unreachable = 1.0
    await _edited_in(world, power.STARTING)


@course
async def a_machine_edited_under_a_lagging_watch(world: Recorded) -> None:
    """The live Machine, read before the intent, shows the edit before the watch does."""
    world.outside.deaf = 1.0
    await world.machine("m1")
    life = world.executor(METALMAN, lambda life, _api: BoundByUrl(METALMAN, life, world))
    life.start(weather=Weather(staleness_s=20.0))
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(14.5)
    await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": {"url": "https://elsewhere"}}}})
    await until_ended(world, "op")


@course
async def a_machine_deleted_before_an_ask(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.take_away("m1")
    await until_ended(world, "op")


@course
async def a_slot_that_another_took(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    slot = {**slot_of("other"), "kind": "NodeRecreation"}
    for value in (None, slot):
        await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": value}}, subresource="status")
    await asyncio.sleep(40)
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": None}}, subresource="status")
    await until_ended(world, "op")


@course
async def two_at_one_place(world: Recorded) -> None:
    for name in ("m1", "m2", "m3"):
        await world.machine(name)
    world.outside.deaf = 1.0
    world.steward().start()
    world.metalman(concurrent=1).start()
    for name in ("m1", "m2", "m3"):
        await world.operation(f"op-{name}", "HostReboot", name, **GRACE)
    await until_ended(world, "op-m1", "op-m2", "op-m3")


@course
async def a_silent_bmc_gives_its_place_away(world: Recorded) -> None:
    class Silent(RecordedPower):
        async def observe(self, target: Target) -> Observation:
            if target.machine.name == "m1" and self.outside.now() < 60:
                await asyncio.sleep(20)
            return await super().observe(target)

    await world.machine("m1")
    await world.machine("m2")
    world.executor(METALMAN, lambda life, _api: Silent(METALMAN, life, world), concurrent=1).start()
    await world.operation("op-m1", "HostReboot", "m1", **FORCE)
    await world.operation("op-m2", "HostReboot", "m2", **FORCE)
    await until_ended(world, "op-m1", "op-m2")


@course
async def paused_and_resumed(world: Recorded) -> None:
    await world.machine("m1")
    await pause(world, "m1")
    world.steward().start()
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await asyncio.sleep(30)
    world.user("resumed")
    await resume(world, "m1")
    await until_ended(world, "op")


@course
async def killed_after_an_ask(world: Recorded) -> None:
    """A successor that knows of the end repeats it, and watches for what may arrive late."""
    await world.machine("m1")
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await first.stop()
    world.user("killed")
    metalman.start()
    await until_ended(world, "op")


@course
async def another_process_of_which_nothing_is_known(world: Recorded) -> None:
    world.reaps = False
    await world.machine("m1")
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await first.stop()
    world.user("killed")
    metalman.start()
    await until_ended(world, "op")


@course
async def killed_after_the_shutdown(world: Recorded) -> None:
    """A call that is sent once is not repeated, and counts as possibly done."""
    await world.machine("m1")
    world.outside.deaf = 1.0
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await first.stop()
    world.user("killed")
    await asyncio.sleep(20)
    metalman.start()
    await until_ended(world, "op")


@course
async def stopped_with_an_answer_that_is_not_stored(world: Recorded) -> None:
    await world.machine("m1")
    world.outside.deaf = 1.0
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "30"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(1)
    await first.terminate()
    world.user("stopped")
    await first.stop()
    metalman.start()
    await until_ended(world, "op")


@course
async def stopped_with_an_answer_while_the_watch_lags(world: Recorded) -> None:
    """The answer is stored over a write of the user that the watch has not shown yet."""
    await world.machine("m1")
    world.outside.deaf = 1.0
    metalman = world.metalman()
    first = metalman.start(weather=Weather(staleness_s=20.0))
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "30"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await asyncio.sleep(1)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"labels": {"ticket": "1"}}})
    await first.terminate()
    world.user("stopped")
    await first.stop()
    metalman.start()
    await until_ended(world, "op")


class Slow(RecordedPower):
    """Calls take 12 s, and observations 6 s while a host is being switched off."""

    async def observe(self, target: Target) -> Observation:
        if target.run.stage == power.WAITING_OFF:
            await asyncio.sleep(6)
        return await super().observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        await super().perform(target, action, before=before)
        await asyncio.sleep(12)


@course
async def slow_looks_and_calls(world: Recorded) -> None:
    await world.machine("m1")
    world.executor(METALMAN, lambda life, _api: Slow(METALMAN, life, world)).start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def stopped_during_a_slow_call(world: Recorded) -> None:
    await world.machine("m1")
    metalman = world.executor(METALMAN, lambda life, _api: Slow(METALMAN, life, world))
    first = metalman.start()
    await world.operation("op", "HostPowerOff", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await asyncio.sleep(10)
    await first.terminate()
    world.user("stopped")
    await first.stop()
    metalman.start()
    await until_ended(world, "op")


async def _cut_off_during_a_slow_call(world: Recorded, *, stopped: bool) -> None:
    """A process ends with a call under way, and by its kind no call of it can arrive after that."""
    world.reaps = stopped
    await world.machine("m1")
    metalman = world.executor(METALMAN, lambda life, _api: Slow(METALMAN, life, world), alone=True)
    first = metalman.start()
    await world.operation("op", "HostPowerOff", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await asyncio.sleep(2)
    if stopped:
        await first.terminate()
    await first.stop()
    world.user("stopped" if stopped else "killed")
    metalman.start()
    await until_ended(world, "op")


@course
async def stopped_where_nothing_arrives_late(world: Recorded) -> None:
    await _cut_off_during_a_slow_call(world, stopped=True)


@course
async def killed_where_nothing_arrives_late(world: Recorded) -> None:
    await _cut_off_during_a_slow_call(world, stopped=False)


@course
async def the_deadline_comes_with_a_late_call_under_way(world: Recorded) -> None:
    """The lock outlasts the operation until nothing can arrive, and the next one observes first."""
    world.reaps = False
    await world.machine("m1")
    world.steward().start()
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostPowerOff", "m1", deadlineSeconds=25, **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await first.stop()
    world.outside.host("m1").off_at = None
    world.user("killed")
    metalman.start()
    await world.operation("next", "HostPowerOn", "m1")
    await until_ended(world, "op", "next")


@course
async def trouble_with_the_api(world: Recorded) -> None:
    """Each third call reaches no server, and each fifth loses its answer."""
    await world.machine("m1")
    world.steward().start()
    world.metalman().start(weather=Weather(unreachable=0.2, lost=0.2, conflict=0.2, staleness_s=1.0))
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def a_lagging_watch(world: Recorded) -> None:
    await world.machine("m1")
    world.metalman().start(weather=Weather(staleness_s=4.0))
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await until_ended(world, "op")


class Refusing(RecordedPower):
    """Refuses one action, or one observation."""

    def __init__(self, name: str, life: Any, world: Recorded, refused: str, failure: Failure) -> None:
        super().__init__(name, life, world)
        self.refused, self.failure = refused, failure

    def procedure(self, operation: Any) -> Procedure:
        if self.refused == "procedure":
            raise self.failure()
        return super().procedure(operation)

    async def observe(self, target: Target) -> Observation:
        if self.refused == "observe":
            raise self.failure()
        return await super().observe(target)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        if action == self.refused:
            raise self.failure()
        await super().perform(target, action, before=before)


async def _refused(world: Recorded, refused: str, failure: Failure, kind: str = "HostReboot", **spec: Any) -> None:
    await world.machine("m1")
    world.executor(METALMAN, lambda life, _api: Refusing(METALMAN, life, world, refused, failure)).start()
    await world.operation("op", kind, "m1", **spec)
    await until_ended(world, "op")


@course
async def a_refused_shutdown(world: Recorded) -> None:
    await _refused(world, power.SHUT_DOWN, lambda: Refusal("NoSuchAction", "the BMC knows no GracefulShutdown"))


@course
async def a_refused_start(world: Recorded) -> None:
    await _refused(
        world,
        power.SWITCH_ON,
        lambda: Refusal("Forbidden", "the user may not switch on", Cause(code="NoRight")),
        **FORCE,
    )


@course
async def a_start_that_is_not_done(world: Recorded) -> None:
    await _refused(world, power.SWITCH_ON, lambda: NotDone("Busy", "the BMC updates itself"), **FORCE)


@course
async def a_shutdown_that_is_not_done(world: Recorded) -> None:
    await _refused(
        world, power.SHUT_DOWN, lambda: NotDone("Busy", "the BMC updates itself"), parameters={"graceSeconds": "20"}
    )


@course
async def a_call_that_breaks(world: Recorded) -> None:
    await _refused(world, power.SWITCH_OFF, lambda: ValueError("no number"), **FORCE)


@course
async def a_refused_look(world: Recorded) -> None:
    await _refused(world, "observe", lambda: Refusal("Unauthorized", "the BMC refuses it", Cause(code="WrongPassword")))


@course
async def a_look_that_breaks(world: Recorded) -> None:
    await _refused(world, "observe", lambda: ValueError("no number"), deadlineSeconds=60)


@course
async def an_unsupported_kind(world: Recorded) -> None:
    await _refused(world, "procedure", lambda: Refusal("UnsupportedOperation", "not carried out yet"))


@course
async def an_agent_restarts_its_host(world: Recorded) -> None:
    await world.machine("m1")
    world.steward().start()
    keeper = asyncio.create_task(agent(world, "m1", alone=True).keep())
    await world.operation("op", "NodeReboot", "m1")
    await until_ended(world, "op")
    keeper.cancel()


@course
async def an_agent_killed_before_its_restart(world: Recorded) -> None:
    await world.machine("m1")
    keeper = asyncio.create_task(agent(world, "m1").keep(crashes=[14]))
    await world.operation("op", "NodeReboot", "m1")
    await until_ended(world, "op")
    keeper.cancel()


@course
async def a_cloud_replaces_a_vm(world: Recorded) -> None:
    await world.machine("m1", provider="Sim", providerID="sim://m1")
    world.steward().start()
    world.replacer().start()
    await world.operation("op", "HostReplace", "m1")
    await until_ended(world, "op")


@course
async def a_lost_slot_is_looked_at_afresh(world: Recorded) -> None:
    await world.machine("m1")
    slot = slot_of("gone", lost=True)
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.steward().start()
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def edits_that_do_not_matter(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    for number in range(3):
        await asyncio.sleep(0.3)
        await world.api.patch(MACHINES, "m1", {"metadata": {"labels": {"rack": str(number)}}})
        assert (await machine(world)).name == "m1"
    await until_ended(world, "op")


@course
async def cancelled_and_deleted_before_anybody_claims(world: Recorded) -> None:
    await world.machine("m1")
    world.steward().start()
    await world.operation("a", "HostReboot", "m1")
    await world.operation("b", "HostReboot", "m1")
    await world.cancel("a")
    await world.api.delete(MACHINE_OPERATIONS, "b")
    world.metalman().start()
    await until_ended(world, "a")


@course
async def the_claim_is_written_late(world: Recorded) -> None:
    """The API is away between the slot and the claim."""
    await world.machine("m1")
    world.api.away = 3
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def the_claim_meets_another_write(world: Recorded) -> None:
    """The lock is taken when the claim is refused: the next one uses the same observation."""
    await world.machine("m1")
    world.api.conflicts = 1
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


async def _claims_fail(world: Recorded) -> None:
    """One operation at a time may run, and the claims of the first fail."""
    for name in ("m1", "m2"):
        await world.machine(name)
    world.api.conflicts = 1000
    world.metalman(concurrent=1).start()
    await world.operation("op-m1", "HostReboot", "m1", **FORCE)
    await asyncio.sleep(5)
    await world.operation("op-m2", "HostReboot", "m2", **FORCE)
    await asyncio.sleep(5)


@course
async def a_failing_claim_is_paused(world: Recorded) -> None:
    await _claims_fail(world)
    world.user("paused")
    await pause(world, "m1")
    await asyncio.sleep(20)
    world.api.conflicts = 0
    await until_ended(world, "op-m2")


@course
async def a_failing_claim_is_cancelled(world: Recorded) -> None:
    await _claims_fail(world)
    world.user("cancelled")
    await world.cancel("op-m1")
    await asyncio.sleep(20)
    world.api.conflicts = 0
    await until_ended(world, "op-m2")


class SlowLooks(RecordedPower):
    """Observations take 8 s from a moment on."""

    after_s = 0.0

    async def observe(self, target: Target) -> Observation:
        if self.outside.now() >= self.after_s:
            await asyncio.sleep(8)
        return await super().observe(target)

    def target_digest(self, machine: Any) -> str:
        return f"host:{machine.spec.pxe.redfish.url}"


class SlowLater(SlowLooks):
    after_s = 5.0


def _slow(world: Recorded, kind: type[RecordedPower] = SlowLooks, **options: Any) -> Process:
    return world.executor(METALMAN, lambda life, _api: kind(METALMAN, life, world), **options)


@course
async def a_machine_edited_during_the_first_look(world: Recorded) -> None:
    await world.machine("m1")
    _slow(world).start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await asyncio.sleep(2)
    await world.api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": {"url": "https://elsewhere"}}}})
    await until_ended(world, "op")


@course
async def a_machine_deleted_during_a_slow_look(world: Recorded) -> None:
    await world.machine("m1")
    _slow(world, SlowLater).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await asyncio.sleep(8)
    await world.take_away("m1")
    await until_ended(world, "op")


@course
async def a_machine_deleted_while_its_bmc_is_silent(world: Recorded) -> None:
    await _alone(world, "HostReboot", deaf=True, **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    world.outside.unreachable = 1.0
    await world.take_away("m1")
    await until_ended(world, "op")


@course
async def a_deadline_during_a_slow_look(world: Recorded) -> None:
    await world.machine("m1")
    _slow(world, SlowLater).start()
    world.outside.deaf = 1.0
    await world.operation("op", "HostReboot", "m1", deadlineSeconds=12)
    await until_ended(world, "op")


@course
async def a_look_that_ends_while_a_wait_is_written(world: Recorded) -> None:
    await world.machine("m1")
    _slow(world).start(weather=Weather(latency_s=6.0))
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def a_bmc_that_cannot_be_reached_gives_its_place_away(world: Recorded) -> None:
    class Away(RecordedPower):
        async def observe(self, target: Target) -> Observation:
            if target.machine.name == "m1" and 5 < self.outside.now() < 40:
                raise Transient("the BMC was not reached")
            return await super().observe(target)

    for name in ("m1", "m2", "m3"):
        await world.machine(name)
    world.outside.deaf = 1.0
    _slow(world, Away, concurrent=1).start()
    await world.operation("op-m1", "HostReboot", "m1", parameters={"graceSeconds": "90"})
    await asyncio.sleep(10)
    await world.operation("op-m2", "HostReboot", "m2", **GRACE)
    await asyncio.sleep(40)
    await world.operation("op-m3", "HostReboot", "m3", **GRACE)  # the first one has its place again
    await until_ended(world, "op-m1", "op-m2", "op-m3")


@course
async def two_processes_at_once(world: Recorded) -> None:
    """The second one reads an intent that is open, and then the answer, which the first one stores late."""
    world.reaps = False
    await world.machine("m1")
    world.outside.deaf = 1.0
    _slow(world, Slow).start()
    await world.operation("op", "HostReboot", "m1", parameters={"graceSeconds": "40"})
    await in_stage(world, "op", power.SHUTTING_DOWN)
    world.user("a second one")
    _slow(world, Slow).start()
    await until_ended(world, "op")


@course
async def three_processes_one_after_the_other(world: Recorded) -> None:
    """Nothing is known of the end of any: what the first one may send is counted on by the third."""
    world.reaps = False
    await world.machine("m1")
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await first.stop()
    world.user("killed")
    second = metalman.start()
    await asyncio.sleep(20)
    await second.stop()
    world.user("killed")
    metalman.start()
    await until_ended(world, "op")


@course
async def places_of_a_successor(world: Recorded) -> None:
    """Operations in progress count against its capacity; one that settles yields its place, and waits for one then."""
    world.reaps = False
    for name in ("m1", "m2", "m3"):
        await world.machine(name)
    world.outside.deaf = 1.0
    first = world.metalman(concurrent=2).start()
    for name in ("m1", "m2"):
        await world.operation(f"op-{name}", "HostReboot", name, **GRACE)
    await in_stage(world, "op-m1", power.SHUTTING_DOWN)
    await in_stage(world, "op-m2", power.SHUTTING_DOWN)
    await asyncio.sleep(14.8)
    await first.stop()
    world.user("killed")
    await world.operation("op-m3", "HostReboot", "m3", **GRACE)
    world.metalman(concurrent=1).start()
    await until_ended(world, "op-m1", "op-m2", "op-m3")


@course
async def settling_gives_its_place_away(world: Recorded) -> None:
    world.reaps = False
    await world.machine("m1")
    await world.machine("m2")
    first = world.metalman(concurrent=1).start()
    await world.operation("op-m1", "HostReboot", "m1", **FORCE)
    await in_stage(world, "op-m1", power.WAITING_OFF)
    await first.stop()
    world.user("killed")
    world.outside.host("m1").off_at = None
    world.outside.deaf = 1.0
    world.metalman(concurrent=1).start()
    await asyncio.sleep(20)
    await world.operation("op-m2", "HostReboot", "m2", parameters={"graceSeconds": "60"})
    await until_ended(world, "op-m1", "op-m2")


@course
async def a_cancel_with_a_late_call_under_way(world: Recorded) -> None:
    """It is undone when that can no longer arrive."""
    await world.machine("m1")
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostPowerOff", "m1", parameters={"force": "true", "graceSeconds": "1"})
    await in_stage(world, "op", power.WAITING_OFF)
    await first.stop()
    world.user("killed")
    await world.cancel("op")
    metalman.start()
    await until_ended(world, "op")


@course
async def a_namesake_takes_the_place(world: Recorded) -> None:
    """One is taken away with its finalizers, and made again under its name."""
    await world.machine("m1")
    await world.machine("m2")
    world.outside.deaf = 1.0
    world.metalman(concurrent=1).start()
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"finalizers": []}})
    await world.api.delete(MACHINE_OPERATIONS, "op")
    await world.operation("op", "HostReboot", "m2", **GRACE)
    await until_ended(world, "op")


@course
async def a_password_changed_between_two_readings(world: Recorded) -> None:
    class Locked(RecordedPower):
        async def observe(self, target: Target) -> Observation:
            if target.run.stage == power.CONFIRMING_OFF:
                raise Refusal("Unauthorized", "the BMC refuses the password", Cause(code="WrongPassword"))
            return await super().observe(target)

    await world.machine("m1")
    _slow(world, Locked).start()
    await world.operation("op", "HostPowerOff", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def the_operation_of_another_executor(world: Recorded) -> None:
    await world.machine("m1")
    world.steward().start()
    world.metalman().start()
    await world.operation("op", "NodeReboot", "m1", startDeadlineSeconds=60)
    await until_ended(world, "op")


@course
async def a_recreation_that_moves_and_then_hangs(world: Recorded) -> None:
    await world.machine("m1")
    slot = {**slot_of("recreate-m1"), "kind": "NodeRecreation"}
    await world.api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await asyncio.sleep(40)
    moved = {"type": "NodeUpdated", "status": "False", "reason": "Building", "message": "half of it"}
    since = {"lastTransitionTime": "2030-01-01T00:00:40Z"}
    await world.api.patch(MACHINES, "m1", {"status": {"conditions": [moved | since]}}, subresource="status")
    await until_ended(world, "op")


@course
async def all_paused_and_resumed(world: Recorded) -> None:
    await world.machine("m1")
    pauses = {"name": CONFIGMAP_OPERATIONS, "annotations": {ANNOTATION_PAUSED: "true"}}
    await world.api.create(CONFIG_MAPS, {"metadata": pauses}, namespace=NAMESPACE)
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await asyncio.sleep(30)
    world.user("resumed")
    await world.api.delete(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
    await until_ended(world, "op")


@course
async def stopped_before_it_has_asked(world: Recorded) -> None:
    """A successor that has only followed stops, and does not change its predecessor's answer."""
    await world.machine("m1")
    world.outside.deaf = 1.0
    metalman = world.metalman()
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **GRACE)
    await in_stage(world, "op", power.SHUTTING_DOWN)
    await first.stop()
    second = metalman.start()
    await asyncio.sleep(3)
    await second.terminate()
    world.user(f"stopped: {_how(second)}")
    metalman.start()
    await until_ended(world, "op")


@course
async def stopped_when_its_operation_is_gone(world: Recorded) -> None:
    await world.machine("m1")
    metalman = _slow(world, Slow)
    first = metalman.start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await in_stage(world, "op", power.WAITING_OFF)
    await asyncio.sleep(0.5)
    first.task.cancel()
    await asyncio.sleep(0)
    await world.api.patch(MACHINE_OPERATIONS, "op", {"metadata": {"finalizers": []}})
    await world.api.delete(MACHINE_OPERATIONS, "op")
    await first.terminate()
    world.user(f"stopped: {_how(first)}")


async def _unknown(world: Recorded, field: str) -> None:
    world.unknown = field
    await world.machine("m1")
    world.metalman().start()
    await world.operation("op", "HostReboot", "m1", **FORCE)
    await until_ended(world, "op")


@course
async def a_server_that_does_not_know_of_slots(world: Recorded) -> None:
    await _unknown(world, "activeOperation")


@course
async def a_server_that_does_not_know_of_records(world: Recorded) -> None:
    await _unknown(world, "execution")


def _how(running: Running) -> str:
    """Return how a process has ended."""
    if running.task.cancelled():
        return "as it was told to"
    error = running.task.exception() if running.task.done() else None
    return f"broke with {type(error).__name__}" if error else "not yet" if not running.task.done() else "done"
