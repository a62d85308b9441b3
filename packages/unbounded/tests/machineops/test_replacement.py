"""HostReplace on a cloud from end to end, as stories; what a crash does to it is in test_crash."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

import pytest

from tests.machineops.cloud import ANEW, BESIDE
from tests.machineops.world import CloudWorld, cloud_story
from tests.operations.staging import in_stage, result
from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Forbidden, NotFound, ResponseLost
from unbounded.machineops import reasons, replacement
from unbounded.machineops.provider import NotDone, Power, Refusal, Throttled, Transient, Uncertain
from unbounded.machineops.replacement_state import MAX_BYTES, ReplacementSecret
from unbounded.operations import reasons as common

T = TypeVar("T")
READS = ("look", "follow", "look_replace")


async def _start(world: CloudWorld, *, most_user_data: int = 1000) -> None:
    await world.instance()
    world.steward().start()
    world.controller(most_user_data=most_user_data).start()
    await world.operation("op", "HostReplace", "m1")


def _asked(world: CloudWorld) -> list[str]:
    return [call.what for call in world.cloud.calls if call.what not in READS]


@cloud_story()
async def test_an_instance_is_replaced_beside_the_old_one_and_handed_over(world: CloudWorld) -> None:
    await _start(world)
    ended = await world.ended("op", within_s=300)
    assert result(ended) == ("Complete", "Succeeded")
    assert [evidence.what for evidence in ended.status.evidence] == [step.seen for step in BESIDE]
    assert _asked(world) == ["StoppingOld", "Launching", "TerminatingOld"]
    machine = await world.api.get(MACHINES, "m1")
    assert machine.spec.provider_id == world.cloud.made[0].id != "sim://sub-1/m1"
    assert world.cloud.made[0].user_data == "#cloud-config of m1"
    assert ended.status.message == f"sim://sub-1/m1 is Gone, {machine.spec.provider_id} is there"


@cloud_story(flow="anew")
async def test_an_instance_is_deleted_and_made_anew_from_what_was_kept(world: CloudWorld) -> None:
    await _start(world)
    await in_stage(world, "op", "Deleting")
    (kept,) = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    assert kept.value("model") == b'{"old": "sim://sub-1/m1"}'
    assert [owner.name for owner in kept.metadata.owner_references] == ["op"]
    ended = await world.ended("op", within_s=300)
    assert result(ended) == ("Complete", "Succeeded")
    assert [evidence.what for evidence in ended.status.evidence] == [step.seen for step in ANEW]
    assert _asked(world) == ["Deleting", "Creating"]


@pytest.mark.parametrize("flow", ["nothing to join with", "too much of it", "refused"])
@cloud_story()
async def test_what_is_refused_at_the_check_leaves_everything_untouched(world: CloudWorld, flow: str) -> None:
    if flow == "refused":
        refusal, reason = "data disks would be lost: disk-1", reasons.WOULD_BE_LOST
        world.cloud.raises["look_replace"] = Refusal(reason, refusal)
    elif flow == "too much of it":
        refusal, reason = (
            "the user data of Machine m1 has 19 bytes; the limit of Sim is 18",
            reasons.BOOTSTRAP_DATA_FAILED,
        )
    else:
        refusal, reason = "no default bootstrap token for site lab exists", reasons.BOOTSTRAP_DATA_FAILED
        world.no_user_data = refusal
    await _start(world, most_user_data=18 if flow == "too much of it" else 19)
    ended = await world.ended("op", within_s=10)
    assert result(ended) == ("Failed", reason)
    assert ended.status.message == refusal
    assert _asked(world) == []
    assert world.cloud.vms["sim://sub-1/m1"].end is Power.RUNNING


@pytest.mark.slow
@pytest.mark.parametrize("flow", ["beside", "anew"])
def test_replacement_waits_for_user_data_after_the_old_host_stopped(flow: str) -> None:
    @cloud_story(flow=flow)
    async def story(world: CloudWorld) -> None:
        await _start(world)
        await in_stage(world, "op", "StoppingOld" if flow == "beside" else "Deleting")
        world.no_user_data = "the token has expired"
        makes = "Launching" if flow == "beside" else "Creating"
        waits = await world.until(
            "op", lambda one: (one.status.message or "").startswith("the token has expired"), within_s=30
        )
        assert waits.status.waiting is not None
        assert waits.status.waiting.reason == reasons.BOOTSTRAP_DATA_FAILED
        await asyncio.sleep(1200)
        assert makes not in _asked(world)
        world.no_user_data = ""
        assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")

    story()


@pytest.mark.slow
def test_replacement_survives_one_failure_to_create_user_data() -> None:
    asked: list[int] = []

    def told(missing_at: int) -> None:
        @cloud_story()
        async def story(world: CloudWorld) -> None:
            world.no_user_data_at = missing_at
            await _start(world)
            assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
            asked.append(world.asked_for_user_data)

        story()

    told(-1)
    told(asked[0])  # the last time, which is after the old instance was stopped


@pytest.mark.parametrize("flow", ["beside", "anew"])
def test_replacement_steps_are_polled_only_after_retry_after(flow: str) -> None:
    @cloud_story(flow=flow)
    async def story(world: CloudWorld) -> None:
        world.cloud.hint_s = 2.6  # less than each step takes, and between two regular observations
        await _start(world)
        assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
        calls = world.cloud.calls
        changes = [number for number, call in enumerate(calls) if call.what not in READS]
        assert len(changes) == (3 if flow == "beside" else 2)
        for number in changes:
            asked, first, second = calls[number : number + 3]
            assert {first.what, second.what} == {"look_replace"}
            assert first.at - asked.at >= world.cloud.hint_s
            assert second.at - first.at >= world.cloud.hint_s

    story()


@pytest.mark.parametrize(("deadline_s", "looks"), [(100, [100]), (7200, [250, 500, 600])])
@cloud_story()
async def test_final_observation_ignores_the_polling_hint_of_the_cloud(
    world: CloudWorld, deadline_s: int, looks: list[int]
) -> None:
    world.cloud.hint_s, world.cloud.takes_s = 250.0, 10_000.0
    await world.instance()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReplace", "m1", deadlineSeconds=deadline_s)
    ended = await world.ended("op", within_s=1000)
    assert ended.status.reason == (common.DEADLINE_EXCEEDED if deadline_s == 100 else common.TIMED_OUT)
    assert "m1 is Changing" in (ended.status.message or "")
    (asked,) = [call.at for call in world.cloud.calls if call.what not in READS]
    assert [call.at - asked for call in world.cloud.calls if call.at > asked] == pytest.approx(looks, abs=2.0)
    (kept,) = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)


@pytest.mark.slow
@cloud_story()
async def test_a_launch_whose_answer_is_lost_is_found_again(world: CloudWorld) -> None:
    world.cloud.loses.add("Launching")
    world.cloud.raises["StoppingOld"] = Uncertain("connection reset")
    await _start(world)
    assert result(await world.ended("op", within_s=600)) == ("Complete", "Succeeded")
    assert _asked(world) == ["StoppingOld", "Launching", "TerminatingOld"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [Refusal(reasons.PROVIDER_REFUSED, "it is locked"), Transient("refused: it is locked")]
)
@cloud_story()
async def test_a_failure_in_the_middle_names_what_is_there(world: CloudWorld, error: Exception) -> None:
    world.cloud.always["TerminatingOld"] = error
    await _start(world)
    ended = await world.ended("op", within_s=1500)
    assert ended.status.phase == "Failed"
    assert "it is locked; sim://sub-1/m1 is Stopped, sim://sub-1/new-" in (ended.status.message or "")
    assert (await world.api.get(MACHINES, "m1")).spec.provider_id == world.cloud.made[0].id
    world.cloud.vms["sim://sub-1/m1"].story.append((0.0, Power.GONE))  # as who has read that does
    (kept,) = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)


@pytest.mark.slow
@pytest.mark.parametrize("end", ["nothing can be read", "the Machine is deleted"])
@cloud_story()
async def test_a_failure_that_sees_nothing_names_what_was_there_last(world: CloudWorld, end: str) -> None:
    world.cloud.always["TerminatingOld"] = Transient("refused")
    await world.instance()
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReplace", "m1")
    await in_stage(world, "op", "TerminatingOld")
    await first.stop()
    world.cloud.always["look_replace"] = Refusal(reasons.AUTH_REFUSED, "no login")
    if end == "the Machine is deleted":
        await world.api.delete(MACHINES, "m1")
    world.controller().start()
    ended = await world.ended("op", within_s=2500)
    assert ended.status.phase == "Failed"
    assert "last observation: sim://sub-1/m1 is Stopped, sim://sub-1/new-" in (ended.status.message or "")
    for vm in world.cloud.alive():  # as who has read that does
        if vm.id not in world.bound.values():
            vm.story.append((0.0, Power.GONE))
    for kept in (await world.api.list(SECRETS, namespace=NAMESPACE)).items:
        await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [Throttled("too many requests", 30.0), NotDone(reasons.NO_CAPACITY, "there is no room")]
)
@cloud_story(flow="anew")
async def test_nine_of_ten_minutes_of_trouble_do_not_cost_what_was_deleted(world: CloudWorld, error: Exception) -> None:
    world.cloud.always["Creating"] = error
    await _start(world)
    failed = f"the last attempt failed: {error}"
    await world.until("op", lambda one: failed in (one.status.message or ""), within_s=60)
    await asyncio.sleep(540)
    world.cloud.always.clear()
    assert result(await world.ended("op", within_s=120)) == ("Complete", "Succeeded")


@pytest.mark.slow
@cloud_story(flow="anew")
async def test_what_does_not_pass_within_the_steps_limit_is_the_reason(world: CloudWorld) -> None:
    world.cloud.always["Creating"] = NotDone(reasons.QUOTA_EXCEEDED, "the quota is used up")
    await _start(world)
    ended = await world.ended("op", within_s=2000)
    assert result(ended) == ("Failed", reasons.QUOTA_EXCEEDED)
    assert "and the last attempt failed: the quota is used up; sim://sub-1/m1 is Gone" in (ended.status.message or "")
    assert (ended.status.targets[0].attempts or 0) > replacement.ATTEMPTS
    (kept,) = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)
    await world.take_away("m1")


async def _forbidden(*_: object, **__: object) -> None:
    raise Forbidden("secrets is forbidden")


async def _silent(*_: object, **__: object) -> None:
    raise ResponseLost("no answer")


REMOVAL: Final = {
    "forbidden": ("delete", _forbidden, "removed: secrets is forbidden"),
    "forbidden to look": ("get", _forbidden, "removed: secrets is forbidden"),
    "without an answer": ("delete", _silent, "removed: no answer"),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", REMOVAL)
@cloud_story()
async def test_complete_replacement_names_its_undeletable_state_secret(
    world: CloudWorld, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    name, instead, words = REMOVAL[trouble]
    call = getattr(world.api, name)

    async def of_secrets(kind: Kind[Any], *given: Any, **named: Any) -> Any:
        is_clearing = kind is SECRETS and (await world.get("op")).status.targets[0].stage == replacement.CLEARING
        return await (instead if is_clearing else call)(kind, *given, **named)

    await _start(world)
    monkeypatch.setattr(world.api, name, of_secrets)
    left = "Secret unbounded-kube/replacement-"
    await world.until("op", lambda one: f"the last attempt failed: {left}" in (one.status.message or ""), within_s=60)
    ended = await world.ended("op", within_s=310)
    assert result(ended) == ("Complete", "Succeeded")
    machine = await world.api.get(MACHINES, "m1")
    message = ended.status.message or ""
    assert message.startswith(f"sim://sub-1/m1 is Gone, {machine.spec.provider_id} is there; {left}")
    assert message.endswith(words)
    assert message.count("is left") == 1
    monkeypatch.undo()
    (kept,) = (await world.api.list(SECRETS, namespace=NAMESPACE)).items
    await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)


@pytest.mark.slow
@cloud_story()
async def test_status_that_is_written_meanwhile_does_not_keep_the_hand_over_off(world: CloudWorld) -> None:
    async def busy_agent() -> None:
        number = 0
        while True:
            number += 1
            await world.api.patch(MACHINES, "m1", {"status": {"message": f"beat {number}"}}, subresource="status")
            await asyncio.sleep(0.3)

    await _start(world)
    agent = asyncio.create_task(busy_agent())
    assert result(await world.ended("op", within_s=300)) == ("Complete", "Succeeded")
    agent.cancel()


@cloud_story()
async def test_a_cancel_at_the_check_leaves_all_as_it_was(world: CloudWorld) -> None:
    world.cloud.stalled["sub-1"] = 20.0
    await _start(world)
    await world.until("op", lambda one: one.status.phase == "InProgress", within_s=30)
    await world.cancel("op")
    assert result(await world.ended("op", within_s=30)) == ("Failed", common.CANCELLED)
    assert _asked(world) == []


@cloud_story()
async def test_a_cancel_while_a_model_is_kept_leaves_nothing_of_it(
    world: CloudWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ReplacementSecret.store

    async def slowly(keep: ReplacementSecret, content: bytes) -> None:
        await store(keep, content)
        await asyncio.sleep(5)

    monkeypatch.setattr(ReplacementSecret, "store", slowly)
    await _start(world)
    await in_stage(world, "op", "Saving")
    await world.cancel("op")
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", common.CANCELLED)
    assert ended.status.evidence[-1].what == replacement.EVIDENCE_NO_STATE
    assert _asked(world) == []
    assert not (await world.api.list(SECRETS, namespace=NAMESPACE)).items


def _keep(world: CloudWorld, operation: MachineOperation, machine: Machine) -> ReplacementSecret:
    return ReplacementSecret(world.api, operation, machine, "instance:0123")


@cloud_story()
async def test_what_is_kept_can_be_replaced_and_is_bounded(world: CloudWorld) -> None:
    await world.instance()
    keep = _keep(world, await world.operation("op", "HostReplace", "m1"), await world.api.get(MACHINES, "m1"))
    assert await keep.load() is None
    with pytest.raises(Transient, match="Secret unbounded-kube/replacement-0123 does not exist"):
        await keep.outlive_operation()
    await keep.store(b"one")
    await keep.store(b"two")
    assert await keep.load() == b"two"
    with pytest.raises(ValueError, match="900001 bytes exceed the limit of a Secret, 900000"):
        await keep.store(b"x" * (MAX_BYTES + 1))
    await keep.delete()
    await keep.delete()
    with pytest.raises(NotFound):
        await world.api.get(SECRETS, keep.name, namespace=NAMESPACE)


async def test_replacement_state_belongs_to_one_operation_at_a_time() -> None:
    api = MemoryApi()

    async def keep(operation: str, machine: str) -> ReplacementSecret:
        spec = {"machineRef": machine, "operationKind": "HostReplace"}
        asked = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": operation}, "spec": spec})
        return ReplacementSecret(
            api, asked, await api.create(MACHINES, {"metadata": {"name": machine}}), "instance:0123"
        )

    async def ends(operation: str, phase: str) -> None:
        await api.patch(MACHINE_OPERATIONS, operation, {"status": {"phase": phase}}, subresource="status")

    one, two = await keep("first", "m1"), await keep("second", "m2")
    await one.store(b"one")
    await one.outlive_operation()
    assert await two.load() is None
    for take in (two.former(), two.store(b"two")):
        with pytest.raises(Transient, match="HostReplace first of Machine m1 is in progress on the same instance"):
            await take
    with pytest.raises(Transient, match="belongs to another operation"):
        await two.outlive_operation()
    await ends("first", "Failed")
    assert await two.former() == b"one"
    await two.store(b"two")
    await one.delete()
    kept = await api.get(SECRETS, one.name, namespace=NAMESPACE)
    owners = [(owner.kind, owner.name) for owner in kept.metadata.owner_references]
    assert owners == [("MachineOperation", "second"), ("Machine", "m2")]
    assert (await one.load(), await two.former(), await two.load()) == (None, None, b"two")
    await ends("second", "Complete")
    assert await one.former() is None
    await api.delete(MACHINE_OPERATIONS, "second")
    assert await one.former() == b"two"


class CollectedApi(MemoryApi):
    """Right after each of the first two reads of a Secret, the garbage collector writes its owners."""

    collections = 2

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        read = await super().get(kind, name, namespace=namespace)
        if kind is SECRETS and self.collections:
            self.collections -= 1
            await self.patch(kind, name, {"metadata": {"ownerReferences": []}}, namespace=namespace)
        return read


@pytest.mark.parametrize(
    ("change", "left"),
    [
        (ReplacementSecret.delete, None),
        (ReplacementSecret.outlive_operation, ["MachineOperation", "Machine"]),
        (lambda keep: keep.store(b"two"), ["MachineOperation"]),
    ],
    ids=["drop", "hold", "store"],
)
async def test_the_garbage_collector_may_come_between(
    change: Callable[[ReplacementSecret], Awaitable[None]], left: list[str] | None
) -> None:
    api = CollectedApi()
    spec = {"machineRef": "m1", "operationKind": "HostReplace"}
    asked = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    keep = ReplacementSecret(api, asked, await api.create(MACHINES, {"metadata": {"name": "m1"}}), "instance:0123")
    await keep.store(b"one")
    await change(keep)
    there = (await api.list(SECRETS)).items
    assert [[owner.kind for owner in one.metadata.owner_references] for one in there] == (
        [] if left is None else [left]
    )


@pytest.mark.parametrize("user", ["deletes the Machine", "binds it to another instance"])
@cloud_story()
async def test_what_was_launched_is_named_where_the_machine_is_taken_away_meanwhile(
    world: CloudWorld, user: str
) -> None:
    world.cloud.stalled["sub-1"] = 4.0
    await _start(world)
    await in_stage(world, "op", "Launching")
    if user == "deletes the Machine":
        await world.take_away("m1")
    else:
        await world.api.patch(MACHINES, "m1", {"spec": {"providerID": "sim://sub-1/m2"}})
    ended = await world.ended("op", within_s=60)
    reason = common.MACHINE_NOT_FOUND if user == "deletes the Machine" else common.TARGET_CHANGED
    assert result(ended) == ("Failed", reason)
    (made,) = world.cloud.made
    assert f"{made.id} is there" in (ended.status.message or "")
    assert ("(was Sim sim://sub-1/m1)" in (ended.status.message or "")) is (reason == common.TARGET_CHANGED)
    assert _asked(world) == ["StoppingOld", "Launching"]
    world.cloud.vms.clear()  # as its user does, who knows of both
    for kept in (await world.api.list(SECRETS, namespace=NAMESPACE)).items:
        await world.api.delete(SECRETS, kept.metadata.name, namespace=NAMESPACE)
    if reason == common.TARGET_CHANGED:
        await world.take_away("m1")
