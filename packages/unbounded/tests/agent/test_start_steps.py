"""A start from end to end on a made-up host: in order, again, from where it was cut off, and which slot it uses."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.agent.made_up_start import CONFIG, GOAL, MadeUpStart, made_up_start
from unbounded.agent.model import BuildRecord, ConfigurationId, NodeGoal, Slot, SlotFacts
from unbounded.agent.paths import DAEMON_UNIT
from unbounded.agent.settings import read_stored_config, without_token
from unbounded.agent.steps.start_steps import MACHINE, SLOT, SlotChoice, choose_slot, start_steps
from unbounded.agent.steps.step import add_all, faults
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import ExecCredential, KubeletAuth

STEPS = start_steps(debootstrap=False)
NAMES = [step.name for step in STEPS]


def silent(_words: str) -> None:
    pass


@pytest.fixture
def world(tmp_path: Path) -> MadeUpStart:
    return made_up_start(tmp_path)


async def is_ready(world: MadeUpStart) -> bool:
    daemon = await world.made.units.observe(DAEMON_UNIT)
    facts = await world.nodes.observe(Slot.KUBE1)
    kept = read_stored_config(world.paths) == without_token(world.config)
    return kept and facts.running and facts.applied is not None and daemon.active == "active"


@pytest.mark.parametrize("debootstrap", [True, False])
def test_the_steps_of_a_start_can_be_walked(debootstrap: bool) -> None:
    steps = start_steps(debootstrap=debootstrap)
    assert faults(steps) == []
    waits = {step.name: step.after for step in steps}
    assert ("packages" in waits["node file system"]) is debootstrap


@pytest.mark.slow
async def test_a_second_start_on_a_ready_host_changes_nothing(world: MadeUpStart) -> None:
    assert "node" in await add_all(STEPS, world.starting(), silent)
    assert await is_ready(world)
    before, did = world.made.tree(), list(world.nodes.did)
    assert await add_all(STEPS, world.starting(), silent) == ()
    assert (world.made.tree(), world.nodes.did) == (before, did)
    assert world.did.count("join") == 1


@pytest.mark.slow
async def test_the_token_is_nowhere_on_the_host(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    contents = [content for _mode, content in world.made.tree().values() if isinstance(content, bytes)]
    assert not any(b"0123456789abcdef" in content for content in contents)


async def test_what_is_broken_on_a_ready_host_is_repaired_and_nothing_else(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    world.nodes.running.clear()
    await world.made.units.stop(DAEMON_UNIT)
    world.paths.at("/etc/sysctl.d/99-kubernetes.conf").unlink()
    assert set(await add_all(STEPS, world.starting(), silent)) == {"sysctl", "node", "agent daemon"}
    assert [did for did in world.nodes.did if did.startswith("build")] == ["build kube1"]


BOUND = msgspec.structs.replace(
    GOAL, kubernetes_version="1.35.0", configuration=ConfigurationId(name="c", version=2, version_name="c-v2")
)


@pytest.mark.slow
async def test_the_first_node_is_made_from_what_its_machine_says(world: MadeUpStart) -> None:
    world.wanted = BOUND
    await add_all(STEPS, world.starting(), silent)
    assert world.nodes.goals[Slot.KUBE1].goal == BOUND
    assert world.said == [
        "Preparing: `unbounded-agent start` builds kube1",
        "Starting: `unbounded-agent start` starts kube1",
    ]
    assert await add_all(STEPS, world.starting(), silent) == ()
    world.wanted = msgspec.structs.replace(BOUND, kubernetes_version="1.36.0")
    assert await add_all(STEPS, world.starting(), silent) == (SLOT, MACHINE)
    world.nodes.goals[Slot.KUBE1] = BuildRecord(goal=world.wanted, node_uid="u1")
    world.wanted, asked = BOUND, world.asked
    assert await add_all(STEPS, world.starting(), silent) == ()
    assert world.asked == asked, "of a Machine that is a Node nobody needs to know it"


async def test_a_kubelet_whose_certificate_has_run_out_gets_another_one(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    world.nodes.goals[Slot.KUBE1] = BuildRecord(goal=GOAL, node_uid="u1")
    world.nodes.certificates.clear()
    world.nodes.did.clear()
    assert await add_all(STEPS, world.starting(), silent) == (MACHINE,)
    assert world.nodes.did == ["introduce kube1", "start kube1"]
    assert await add_all(STEPS, world.starting(), silent) == ()


async def test_a_kubelet_with_a_program_for_its_credential_needs_no_certificate(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    world.nodes.certificates.clear()
    auth = KubeletAuth(exec_credential=ExecCredential(command="/bin/credential"))
    world.config = msgspec.structs.replace(CONFIG, kubelet=msgspec.structs.replace(CONFIG.kubelet, auth=auth))
    assert await add_all(STEPS, world.starting(), silent) == ("agent configuration",)


async def test_a_half_built_slot_is_stopped_and_made_anew(world: MadeUpStart) -> None:
    world.paths.rootfs("kube1").mkdir(parents=True)
    world.nodes.running[Slot.KUBE1] = True
    await add_all(STEPS, world.starting(), silent)
    assert world.nodes.did == ["stop kube1", "build kube1", "start kube1"]


async def test_the_slots_are_the_daemons_while_a_recreation_is_under_way(world: MadeUpStart) -> None:
    world.paths.etc.mkdir(parents=True)
    world.paths.recreation.write_text("{}")
    await add_all(STEPS, world.starting(), silent)
    assert world.nodes.did == []
    assert (await world.made.units.observe(DAEMON_UNIT)).active == "active"


async def test_a_daemon_that_gave_up_is_started_again(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    await world.made.units.kill(DAEMON_UNIT)
    await add_all(STEPS, world.starting(), silent)
    assert world.made.units.did[-2:] == [f"reset-failed {DAEMON_UNIT}", f"start {DAEMON_UNIT}"]


async def test_a_changed_configuration_is_kept_for_the_daemon_and_touches_no_node(world: MadeUpStart) -> None:
    await add_all(STEPS, world.starting(), silent)
    world.nodes.goals[Slot.KUBE1] = BuildRecord(goal=GOAL, node_uid="u1")
    world.config = msgspec.structs.replace(CONFIG, oci_image="other")
    world.goal = msgspec.structs.replace(GOAL, image="other")
    assert await add_all(STEPS, world.starting(), silent) == ("agent configuration",)


# The choice of a slot

NEWER = msgspec.structs.replace(
    GOAL, kubernetes_version="1.35.0", configuration=ConfigurationId(name="c", version=2, version_name="c-v2")
)


def facts(slot: Slot, goal: NodeGoal | None = None, uid: str = "", *, runs: bool = False) -> SlotFacts:
    applied = None if goal is None else BuildRecord(goal=goal, node_uid=uid)
    return SlotFacts(slot, exists=True, applied=applied, running=runs, kubelet=runs, containerd=runs)


ONE, TWO = Slot.KUBE1, Slot.KUBE2
CHOICES = {
    "nothing there": (facts(ONE), facts(TWO), SlotChoice(ONE, build=True, start=True)),
    "ready": (facts(ONE, GOAL, "u1", runs=True), facts(TWO), SlotChoice(ONE, build=False, start=False)),
    "down": (facts(ONE, GOAL, "u1"), facts(TWO), SlotChoice(ONE, build=False, start=True)),
    "in the other slot": (facts(ONE), facts(TWO, GOAL, "u1"), SlotChoice(TWO, build=False, start=True)),
    "a later version": (facts(ONE), facts(TWO, NEWER, "u1", runs=True), SlotChoice(TWO, build=False, start=False)),
    "never a Node, of the goal": (facts(ONE, GOAL, runs=True), facts(TWO), SlotChoice(ONE, build=False, start=False)),
    "never a Node, of another version with the same content": (
        facts(ONE, msgspec.structs.replace(GOAL, configuration=NEWER.configuration), runs=True),
        facts(TWO),
        SlotChoice(ONE, build=False, start=False),
    ),
    "never a Node, of another goal": (facts(ONE, NEWER), facts(TWO), SlotChoice(ONE, build=True, start=True)),
    "both whole": (facts(ONE, GOAL, "u1"), facts(TWO, NEWER, runs=True), SlotChoice(TWO, build=False, start=False)),
    "both whole and down": (facts(ONE, GOAL), facts(TWO, NEWER, "u1"), SlotChoice(TWO, build=False, start=True)),
}


@pytest.mark.parametrize("name", CHOICES)
def test_which_slot_a_start_uses(name: str) -> None:
    one, two, choice = CHOICES[name]
    assert choose_slot(one, two, GOAL) == choice


def test_a_host_that_is_another_machine_has_to_be_reset_first() -> None:
    with pytest.raises(Rejected, match="this host is Machine other: run `unbounded-agent reset`"):
        choose_slot(facts(ONE, msgspec.structs.replace(GOAL, machine="other"), "u1"), facts(TWO), GOAL)
