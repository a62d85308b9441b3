"""Deletions whose writes the API server refuses: a wait with its cause, or, by force, a record; no host is lost."""

from __future__ import annotations

import asyncio
import json
import shlex
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pytest

from tests.containercloud.refusals import ANSWERS, HOLDERS, WEBHOOK, WRITES
from tests.containercloud.site import Site, site
from tests.containercloud.test_site import HOST, LONE, MANAGER, NAME, begun, in_stock, is_draining
from tests.explain.staging import ALIVE, commands, why
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import MachineStage
from unbounded.api.container_cloud.network import SUBNETS
from unbounded.api.core import NODES
from unbounded.containercloud.machines.deletion import FORCED_S, FORCED_WAIT_S, REFUSED_S
from unbounded.explain.links import Topic
from unbounded.kube.clock import rfc3339

TARGET: Final = "master-0.default"
HOST_NAME: Final = "default/master-0"
VERBS: Final = {
    "drain": f"cannot change maintenance of Machine {TARGET}: ",
    "return": f"cannot change maintenance of Machine {TARGET}: ",
    "request": "cannot create ",
    "cancel": "cannot cancel HostReplace cc-",
    "leave": f"cannot change kubernetes and maintenance of Machine {TARGET}: ",
    "node": f"cannot delete Node {TARGET}: ",
    "release": f"cannot release BareMetalHost {HOST_NAME}: ",
    "delete": "cannot delete this Machine: ",
    "finalizer": "cannot remove the finalizer of this Machine: ",
}
LAST: Final = ("delete", "finalizer")  # after which nothing is left to do
HELD_UP: Final = [
    (policy, write)
    for policy in ("graceful", "unsafe", "forced")
    for write in WRITES
    if (write in LAST or policy != "forced")
    and not (policy == "unsafe" and write == "drain")
    and not (policy == "graceful" and write == "return")
]
RECORDED: Final = [write for write in WRITES if write not in ("drain", *LAST)]


async def deletes(world: Site, write: str, policy: str, *answers: str) -> None:
    """Request a deletion, one of whose writes is refused from now on."""
    if write == "return":
        await is_draining(world)
        world.refusals.begin(write, *answers)
        await world.change(deletionPolicy=policy)
        return
    if write == "cancel":
        world.silent_agents.add(TARGET)
    await begun(world)
    if write == "cancel":
        await world.until_machine(lambda one: stage(one) == MachineStage.BOOTING)
    else:
        await world.until_word("Ready")
    world.refusals.begin(write, *answers)
    await world.change(delete=True, deletionPolicy=policy)


def stage(machine: Any) -> str:
    execution = machine.status.execution
    return "" if execution is None else execution.stage


def message_of(machine: Any) -> str:
    return machine.status.execution.message or "" if machine.status.execution is not None else ""


def is_refused(machine: Any, text: str = "") -> bool:
    waiting = machine.status.execution.waiting if machine.status.execution is not None else None
    return waiting is not None and waiting.reason == "WriteRefused" and text in message_of(machine)


async def addresses(world: Site) -> tuple[str, ...]:
    (subnet,) = (await world.api.list(SUBNETS)).items
    return tuple(one.partition(":")[0] for one in subnet.status.allocated_ips)


def dirty(host: BareMetalHost) -> tuple[str, str]:
    found = next((one for one in host.status.conditions if one.type == "Dirty"), None)
    return ("", "") if found is None else (found.reason, found.message)


@pytest.mark.parametrize(("policy", "write"), HELD_UP)
def test_a_write_that_is_refused_is_a_wait_that_ends_by_itself(policy: str, write: str) -> None:
    """The answers follow each other."""

    async def scene() -> None:
        async with site(LONE) as world:
            await deletes(world, write, policy, *ANSWERS)
            for answer, (_code, _reason, text) in ANSWERS.items():
                machine = await world.until_machine(partial(is_refused, text=text))
                execution = machine.status.execution
                assert execution is not None
                assert execution.waiting is not None
                assert execution.waiting.held_by == HOLDERS[answer]
                assert (execution.waiting.until or "") >= rfc3339(virtual_now())
                assert (execution.message or "").startswith(VERBS[write])
                assert machine.status.error_reason == "DeleteError"
                assert execution.unproven == ()
                if write == "drain" or (policy, write) == ("graceful", "request"):
                    assert machine.provider_status.prepare_deletion_phase == "failed"
            await asyncio.sleep(1800)
            assert is_refused(await world.cc_machine())
            tries = world.refusals.attempts
            assert len(tries) < 20
            assert max(after - before for before, after in pairwise(tries)) < REFUSED_S[1] + 10
            host = await world.read("master-0")
            assert (host.spec.consumer_ref is None) is (write in LAST)
            world.refusals.end()
            await in_stock(world)

    run_virtual(scene())


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("write", RECORDED)
def test_a_refusal_holds_no_forced_deletion_up_and_loses_no_host(write: str, answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await deletes(world, write, "forced", answer)
            async with asyncio.timeout(3 * FORCED_WAIT_S + 30):
                await world.until_gone()
            await asyncio.sleep(30)
            recorded = [one.message for one in await world.events() if one.reason == "Unproven"]
            assert any(VERBS[write] in one for one in recorded), recorded
            assert any(ANSWERS[answer][2][:60] in one for one in recorded), recorded
            await asyncio.sleep(900)
            host = await world.read("master-0")
            if write in ("return", "cancel"):  # a later write, and the end of the install, have the same effect
                assert host.state == "available"
                assert all(one.terminal for one in await world.operations())
            else:
                assert host.state in ("provisioned", "deprovisioning")
            if write == "release":
                assert host.spec.consumer_ref is not None
                reason, message = dirty(host)
                assert reason == "NotReleased"
                assert message.startswith(f"Machine example-ns/{NAME} was deleted by force, ")
            if write in ("node", "leave"):
                text = await world.reason("Returning", "master-0")
                assert f"; {HOLDERS[answer]} refuses a write: " in text
                assert ANSWERS[answer][2] in text
            if write == "node":
                assert [one.name for one in (await world.api.list(NODES)).items] == [TARGET]
            if world.power[TARGET] == "On":
                assert dirty(host)[0] in ("NotReleased", "NotSeenOff")
            if dirty(host)[0]:
                assert await addresses(world) == ("10.0.0.10",)
            world.refusals.end()
            await in_stock(world)
            assert dirty(await world.read("master-0")) == ("", "")

    run_virtual(scene())


async def switched_off(world: Site) -> int:
    """Return how often the forced deletion has switched the host off; the host's controller does that, too."""
    return sum(one.spec.deadline_seconds == FORCED_S for one in await world.operations())


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_refused_status_holds_no_forced_deletion_up(answer: str) -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await deletes(world, "status", "forced", answer)
            async with asyncio.timeout(FORCED_WAIT_S + 30):
                await world.until_gone()
            assert await switched_off(world) == 1
            events = [one for one in await world.events() if one.reason == "WriteRefused"]
            begin = f"{HOLDERS[answer]} refuses a write: cannot write the status of this Machine: "
            assert any((one.message or "").startswith(begin) for one in events), events
            await in_stock(world)

    run_virtual(scene())


def test_a_refused_status_and_power_off_are_events_of_a_forced_deletion() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.refusals.begin("status", "denied", also="request")
            await world.change(delete=True, deletionPolicy="forced")
            async with asyncio.timeout(3 * FORCED_WAIT_S + 30):
                await world.until_gone()
            recorded = [one.message or "" for one in await world.events() if one.reason == "Unproven"]
            assert any("cannot create HostPowerOff" in one for one in recorded), recorded
            world.refusals.end()
            await in_stock(world)

    run_virtual(scene())


@pytest.mark.parametrize("write", LAST)
def test_what_still_holds_a_forced_deletion_up_is_an_event(write: str) -> None:
    """Its status is refused, too."""

    async def scene() -> None:
        async with site(LONE) as world:
            await begun(world)
            await world.until_word("Ready")
            world.refusals.begin("status", "denied", also=write)
            await world.change(delete=True, deletionPolicy="forced")
            await asyncio.sleep(3600)
            messages = [one.message or "" for one in await world.events() if one.reason == "WriteRefused"]
            assert any(one.startswith(VERBS[write]) and WEBHOOK in one for one in messages), messages
            tries = world.refusals.attempts
            assert len(set(tries)) < 60  # a pass tries the status and the write
            assert max(after - before for before, after in pairwise(tries)) < REFUSED_S[1] + 10
            assert await switched_off(world) == 1
            target = await world.machine(TARGET)
            assert target.spec.pxe is not None
            assert (target.spec.pxe.image, target.spec.pxe.profile_ref) == (None, None)
            assert (await world.read("master-0")).state == "available"
            world.refusals.end()
            await in_stock(world)

    run_virtual(scene())


def test_a_machine_that_is_made_anew_gets_no_host_that_was_not_released() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await world.surroundings()
            await world.apply(HOST.replace("NUMBER", "0"))
            await world.apply(MANAGER.replace("NAME", "again"))
            first = await world.until_word("Ready", "again")
            world.refusals.begin("release", "denied")
            await world.change("again", delete=True, deletionPolicy="forced")
            await world.until_gone("again")
            await world.apply(MANAGER.replace("NAME", "again"))
            await asyncio.sleep(900)
            second = await world.cc_machine("again")
            assert second.metadata.uid != first.metadata.uid
            assert second.status.execution is not None
            assert second.status.execution.host is None
            host = await world.read("host-0", "example-ns")
            assert dirty(host)[0] == "NotReleased"
            assert world.operated.count("HostReplace") == 1
            world.refusals.end()
            await world.until_word("Ready", "again")
            assert world.operated.count("HostReplace") == 2
            assert dirty(await world.read("host-0", "example-ns")) == ("", "")

    run_virtual(scene())


def test_a_user_can_remove_the_claim_that_was_not_released() -> None:
    """`why` prints the command."""

    async def scene() -> None:
        async with site(LONE) as world:
            await deletes(world, "release", "forced", "403")
            await world.until_gone()
            alive = (*ALIVE, "unbounded-container-cloud")
            links = await why(world.api, "master-0", topic=Topic.HOST, namespace="default", alive=alive)
            assert links[0].code == "NotReleased"
            (command,) = [one for one in commands(links) if "consumerRef" in one]
            words = shlex.split(command)
            assert words[:6] == ["kubectl", "patch", "bmh", "master-0", "-n", "default"]
            patch = json.loads(words[words.index("-p") + 1])
            await world.api.patch(BARE_METAL_HOSTS, "master-0", patch, namespace="default")
            await in_stock(world)

    run_virtual(scene())


def test_a_looser_policy_ends_the_wait_for_a_refused_write() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await deletes(world, "node", "unsafe", "denied")
            await world.until_machine(is_refused)
            await asyncio.sleep(1800)
            await world.change(deletionPolicy="forced")
            async with asyncio.timeout(60):
                await world.until_gone()

    run_virtual(scene())


def test_an_abort_whose_write_is_refused_has_failed_until_it_is_not() -> None:
    async def scene() -> None:
        async with site(LONE) as world:
            await is_draining(world)
            world.refusals.begin("return", "unreachable")
            await world.change(delete=False)
            machine = await world.until_machine(is_refused)
            assert machine.provider_status.prepare_deletion_phase == "failed"
            await asyncio.sleep(1800)
            world.refusals.end()
            machine = await world.until_machine(lambda one: stage(one) == MachineStage.READY)
            assert (machine.provider_status.prepare_deletion_phase, machine.status.error_reason) == ("", None)

    run_virtual(scene())
