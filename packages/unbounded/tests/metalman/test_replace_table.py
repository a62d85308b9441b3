"""The table of HostReplace: the result of each observation of a Machine in it."""

from __future__ import annotations

from itertools import product
from typing import Any, Final

import msgspec
import pytest

from unbounded.api.core import Node
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.metalman import power
from unbounded.metalman import replace_table as table
from unbounded.metalman.boot_override import desired_override, missing_target, sends_to_network
from unbounded.metalman.redfish.bmc_interface import BmcLimits, BmcPowerState, BootEnabled, BootOverride
from unbounded.metalman.replace_observation import (
    ReplaceState,
    boot_fact,
    boot_text,
    is_armed,
    node_identity,
    node_name,
    node_problem,
    power_fact,
    progress_of,
)
from unbounded.metalman.replace_stages import WINDOW_CLOSES_S, replace
from unbounded.metalman.replace_table import TABLE, FactSource, ReplaceFact, fact_source, is_about_boot_order
from unbounded.operations.deadline import LOST_AFTER_S
from unbounded.operations.executor_claim import MARGIN_S
from unbounded.workflow.procedure import ENDS, Cancel
from unbounded.workflow.run_state import ACT_WITHIN_S

PROCEDURE: Final = replace(MachineOperation(spec=MachineOperationSpec(operation_kind="HostReplace")))
UID: Final = "op-uid"


def machine_with(
    *,
    netboot: dict[str, Any] | None = None,
    tpm: dict[str, Any] | None = None,
    spec: dict[str, Any] | None = None,
    generation: int = 1,
    **conditions: Any,
) -> Machine:
    """A Machine with what the servers saw, and with conditions as (status, reason, message, generation)."""
    now = "2030-01-01T00:00:00Z"
    said = [
        {
            "type": kind,
            **dict(zip(("status", "reason", "message", "observedGeneration"), said, strict=False)),
            "lastTransitionTime": now,
        }
        for kind, said in conditions.items()
    ]
    raw = {
        "metadata": {"name": "m1", "uid": "m1-uid", "generation": generation},
        "spec": {"pxe": {"image": "i"}, **(spec or {})},
        "status": {"netboot": netboot, "tpm": tpm, "conditions": said},
    }
    return msgspec.convert(raw, Machine)


def told(stage: str, machine: Machine, node: Node | None = None, before: str | None = None) -> ReplaceState:
    return ReplaceState(stage, UID, machine, node, before)


def node(ready: str = "True", *, boot_id: str = "b1", heartbeat: str = "t1", uid: str = "n1") -> Node:
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat, "message": "cni not there"}
    raw = {
        "metadata": {"name": "m1", "uid": uid},
        "status": {"conditions": [condition], "nodeInfo": {"bootID": boot_id}},
    }
    return msgspec.convert(raw, Node)


def test_nothing_can_be_undone_once_the_loader_was_fetched() -> None:
    loaded = {step.stage for (stage, fact), step in TABLE.items() if fact is ReplaceFact.LOADED and step.stage != stage}
    assert loaded == {table.WAITING_INSTALLER, table.UNDOING_LOADER}  # the latter when it was cancelled before
    after = [table.WAITING_INSTALLER, table.WAITING_REPAVE, *table.RETURN_STAGES]
    assert {PROCEDURE.stages[stage].cancel for stage in after} == {Cancel.TOO_LATE}
    before = table.BOOT_STAGES & PROCEDURE.stages.keys() - {table.WAITING_INSTALLER, table.WAITING_REPAVE}
    assert {PROCEDURE.stages[stage].cancel for stage in before} == {Cancel.UNDO}


@pytest.mark.parametrize("stage", sorted(PROCEDURE.stages))
def test_a_host_is_switched_off_only_before_its_installer_started(stage: str) -> None:
    undoing = stage.startswith("Undoing")
    for fact in ReplaceFact:
        if TABLE[stage, fact].action in (power.SWITCH_OFF, power.SHUT_DOWN):
            before = (ReplaceFact.ON, ReplaceFact.ON_ARMED)
            assert fact in (
                (*before, ReplaceFact.LOADED, ReplaceFact.LOOPING, ReplaceFact.CONTESTED) if undoing else before
            )
            assert undoing or PROCEDURE.stages[stage].cancel in (Cancel.UNDO, Cancel.AT_ONCE)


@pytest.mark.parametrize("stage", [power.UNDOING, table.UNDOING_SHUTDOWN])
def test_what_is_being_undone_goes_on_when_the_installer_has_started(stage: str) -> None:
    for fact in (ReplaceFact.INSTALLING, ReplaceFact.WRITTEN, ReplaceFact.BOOTED, ReplaceFact.FINISHED):
        assert TABLE[stage, fact].stage == table.WAITING_INSTALLER
    assert PROCEDURE.stages[stage].dwell_s >= WINDOW_CLOSES_S


def after_setting_boot() -> set[str]:
    """The stages in which the override may be set: all that follow from setting it, as clearing it may have failed."""
    reached, todo = {table.SETTING_BOOT}, [table.SETTING_BOOT]
    while todo:
        here = todo.pop()
        stage = PROCEDURE.stages[here]
        steps = [step for (each, _), step in TABLE.items() if each == here]
        steps += [extra for extra in (stage.on_timeout, stage.undo) if extra is not None]
        new = {step.stage for step in steps if step.fail is None} - reached - ENDS
        reached |= new
        todo += sorted(new)
    return reached


ARMED: Final = sorted(after_setting_boot())


@pytest.mark.parametrize("stage", ARMED)
def test_no_failure_leaves_a_boot_override_behind(stage: str) -> None:
    assert PROCEDURE.stages[stage].cleanup_stage == table.CLEANING_UP


def test_cleanup_of_a_restarted_executor_ends_before_the_lost_limit() -> None:
    call_s = BmcLimits().act_s
    settling_s = ACT_WITHIN_S + call_s + MARGIN_S
    assert settling_s + PROCEDURE.stages[table.CLEANING_UP].limit_s + call_s < LOST_AFTER_S


def test_the_boot_override_is_cleared_before_the_host_is_waited_for() -> None:
    assert {power.WAITING_ON, table.WAITING_REPAVE, power.UNDOING, *table.RETURN_STAGES} <= set(ARMED)
    assert {TABLE[table.CLEANING_UP, fact].action for fact in (ReplaceFact.ON_ARMED, ReplaceFact.OFF_ARMED)} == {
        table.CLEAR_BOOT
    }
    assert PROCEDURE.stages[table.CLEANING_UP].is_cleanup
    returns = [here for (here, _), step in TABLE.items() if step.stage == table.WAITING_RETURN and here != step.stage]
    assert set(returns) == {table.CLEARING_BOOT}


def test_only_what_a_stage_can_see_leads_out_of_it() -> None:
    """Rows that cannot be are there for the table to be whole, and do nothing."""
    powers = {ReplaceFact.ON, ReplaceFact.ON_ARMED, ReplaceFact.OFF, ReplaceFact.OFF_ARMED, ReplaceFact.UNSETTLED}
    between = {ReplaceFact.BETWEEN, ReplaceFact.BETWEEN_ARMED}
    for (stage, fact), step in TABLE.items():
        seen = powers | between if is_about_boot_order(stage) else powers
        if fact_source(stage) is FactSource.POWER and fact not in seen:
            assert step.stage == stage
            assert step.action is None
            assert step.fail is None


# Results of observations

MILESTONES: Final = {
    "Offered": None,
    "LoaderFetched": ReplaceFact.LOADED,
    "KernelFetched": ReplaceFact.LOADED,
    "InstallerStarted": ReplaceFact.INSTALLING,
    "HardwareReported": ReplaceFact.REPORTED,
    "ImageWriting": ReplaceFact.INSTALLING,
    "ImageWritten": ReplaceFact.WRITTEN,
    "Failed": ReplaceFact.INSTALL_FAILED,
    "Contested": ReplaceFact.CONTESTED,
}


@pytest.mark.parametrize("milestone", MILESTONES)
def test_a_milestone_is_a_fact_while_the_host_boots(milestone: str) -> None:
    machine = machine_with(netboot={"boot": UID, "milestone": milestone})
    assert boot_fact(told(table.WAITING_LOADER, machine)) is MILESTONES[milestone]


@pytest.mark.parametrize("stage", [stage for stage in PROCEDURE.stages if stage != table.WAITING_IMAGE])
def test_the_milestone_of_another_boot_counts_for_nothing(stage: str) -> None:
    for milestone in MILESTONES:
        assert boot_fact(told(stage, machine_with(netboot={"boot": "other", "milestone": milestone}))) is None


@pytest.mark.parametrize(("loads", "loops"), [(1, False), (table.LOADS_MAX, False), (table.LOADS_MAX + 1, True)])
def test_repeated_loader_fetches_are_a_loop_until_the_image_is_written(loads: int, loops: bool) -> None:
    for milestone, fact in (("LoaderFetched", ReplaceFact.LOADED), ("ImageWriting", ReplaceFact.INSTALLING)):
        machine = machine_with(netboot={"boot": UID, "milestone": milestone, "loads": loads})
        assert boot_fact(told(table.WAITING_INSTALLER, machine)) is (ReplaceFact.LOOPING if loops else fact)
    machine = machine_with(netboot={"boot": UID, "milestone": "ImageWritten", "loads": loads})
    assert boot_fact(told(table.WAITING_REPAVE, machine)) is ReplaceFact.WRITTEN


@pytest.mark.parametrize(
    ("said", "generation", "ready"),
    [
        (("True", "Pulled", "", 4), 4, True),
        (("True", "Pulled", "", 3), 4, False),
        (("True", "Pulled", ""), 4, True),
        (("False", "Pulling", "", 4), 4, False),
    ],
)
def test_image_is_ready_only_for_the_present_spec_generation(said: Any, generation: int, ready: bool) -> None:
    machine = machine_with(generation=generation, NetbootImageReady=said)
    fact = boot_fact(told(table.WAITING_IMAGE, machine))
    assert fact is (None if ready else ReplaceFact.NO_IMAGE)


@pytest.mark.parametrize("stage", [table.WAITING_LOADER, "CleaningUp"])
def test_what_keeps_a_host_from_booting_is_told_before_anything_was_seen(stage: str) -> None:
    machine = machine_with(netboot={"boot": UID, "message": "its lease is also that of m2"})
    assert "its lease is also that of m2" in boot_text(told(stage, machine))
    assert progress_of(told(table.WAITING_LOADER, machine)) == "its lease is also that of m2"


@pytest.mark.parametrize(
    ("condition", "fact"),
    [
        (None, ReplaceFact.WRITTEN),
        (("False", "Running", ""), ReplaceFact.BOOTED),
        (("False", "Failed", "boom"), ReplaceFact.CLOUD_INIT_FAILED),
        (("True", "Succeeded", ""), ReplaceFact.FINISHED),
    ],
)
def test_cloud_init_tells_how_far_an_installed_host_is(condition: Any, fact: ReplaceFact) -> None:
    conditions = {} if condition is None else {"CloudInitDone": condition}
    machine = machine_with(netboot={"boot": UID, "milestone": "ImageWritten"}, **conditions)
    assert boot_fact(told(table.WAITING_RETURN, machine)) is fact


@pytest.mark.parametrize(
    ("attested", "boot", "refused"),
    [
        (("False", "PCRMismatch", "PCR 7 deviates"), UID, True),
        (("False", "QuoteMissing", "PCR 7 deviates"), UID, True),
        (("False", "ForeignEK", "PCR 7 deviates"), UID, False),  # anybody on the segment can show another key
        (("False", "PCRMismatch", "PCR 7 deviates"), "another", False),
        (("True", "Succeeded", ""), UID, False),
    ],
)
@pytest.mark.parametrize("stage", [table.WAITING_RETURN, table.WAITING_CLOUD_INIT, table.WAITING_NODE])
def test_only_a_refused_quote_of_this_boot_ends_it(stage: str, attested: Any, boot: str, *, refused: bool) -> None:
    machine = machine_with(
        netboot={"boot": UID, "milestone": "ImageWritten"},
        tpm={"quote": {"boot": boot, "at": "2026-01-01T00:00:00Z"}},
        spec={"kubernetes": {}},
        Attested=attested,
        CloudInitDone=("True", "Succeeded", ""),
    )
    snapshot = told(stage, machine)
    assert (boot_fact(snapshot) is ReplaceFact.NOT_ATTESTED) is refused
    assert boot_text(snapshot).startswith("PCR 7 deviates; ") is refused
    if refused:
        assert TABLE[stage, ReplaceFact.NOT_ATTESTED].fail == "NotAttested"


@pytest.mark.parametrize("stage", PROCEDURE.stages)
def test_every_observation_in_every_stage_is_a_fact_of_the_table(stage: str) -> None:
    images: tuple[dict[str, Any], ...] = ({}, {"NetbootImageReady": ("True", "Pulled", "")})
    inits: tuple[dict[str, Any], ...] = (
        {},
        {"CloudInitDone": ("True", "Succeeded", "")},
        {"CloudInitDone": ("False", "Failed", "")},
    )
    for milestone, image, init, spec in product([None, *MILESTONES], images, inits, ({}, {"kubernetes": {}})):
        netboot = {"boot": UID, "milestone": milestone} if milestone else None
        seen = told(stage, machine_with(netboot=netboot, spec=spec, **image, **init))
        fact = boot_fact(seen)
        assert fact is None or (stage, fact) in TABLE
        assert boot_text(seen)
        assert isinstance(progress_of(seen), str)


@pytest.mark.parametrize(
    ("protocol", "shown", "armed"),
    [
        ("PXE", BootOverride("Once", "Pxe", "UEFI"), True),
        ("PXE", BootOverride("Continuous", "Pxe", "Legacy"), True),
        ("PXE", BootOverride("Disabled", "Pxe"), False),
        ("PXE", BootOverride("Once", "UefiHttp"), False),
        ("HTTP", BootOverride("Once", "UefiHttp"), True),
        ("HTTP", BootOverride("Once", "Pxe"), False),
        ("PXE", BootOverride("Continuous", "Hdd"), False),
        ("PXE", None, False),
    ],
)
def test_a_host_is_armed_when_its_override_is_the_wanted_one(
    protocol: str, shown: BootOverride | None, armed: bool
) -> None:
    machine = machine_with(spec={"pxe": {"image": "i", "bootProtocol": protocol}})
    assert is_armed(told(table.SETTING_BOOT, machine), shown) is armed


@pytest.mark.parametrize(
    ("protocol", "targets", "target"),
    [
        ("PXE", None, "Pxe"),
        ("PXE", ("None", "Hdd"), "Pxe"),
        ("HTTP", None, "UefiHttp"),
        ("HTTP", (), "UefiHttp"),
        ("HTTP", ("None", "Pxe", "UefiHttp"), "UefiHttp"),
        ("HTTP", ("None", "Pxe"), "Pxe"),
    ],
)
def test_the_target_is_one_that_the_bmc_offers(protocol: str, targets: Any, target: str) -> None:
    machine = machine_with(spec={"pxe": {"image": "i", "bootProtocol": protocol}})
    wanted = desired_override(machine, BootEnabled.ONCE, targets)
    assert (wanted.enabled, wanted.target, wanted.mode) == ("Once", target, "UEFI" if target == "UefiHttp" else None)
    assert sends_to_network(machine, wanted, targets)
    assert bool(missing_target(machine, targets)) is (protocol == "HTTP" and target == "Pxe")


@pytest.mark.parametrize("stage", [table.CLEARING_BOOT, power.UNDOING, "CleaningUp"])
def test_what_is_cleared_is_any_override_but_that_of_the_disk(stage: str) -> None:
    cleared = (None, BootOverride(None), BootOverride("Disabled", "None"), BootOverride("Continuous", "Hdd"))
    assert [is_armed(told(stage, machine_with()), shown) for shown in cleared] == [False] * 4
    kept = (BootOverride("Once", "Pxe"), BootOverride("Continuous", "UefiHttp"), BootOverride("Once", "Usb"))
    assert [is_armed(told(stage, machine_with()), shown) for shown in kept] == [True] * 3


def test_power_and_override_are_one_fact() -> None:
    facts = {power_fact(table.SETTING_BOOT, power, armed=armed) for power in BmcPowerState for armed in (False, True)}
    assert facts == {
        ReplaceFact.ON,
        ReplaceFact.ON_ARMED,
        ReplaceFact.OFF,
        ReplaceFact.OFF_ARMED,
        ReplaceFact.UNSETTLED,
    }


@pytest.mark.parametrize("stage", [table.CLEARING_BOOT, "CleaningUp"])
def test_an_override_is_cleared_also_while_the_host_is_about_to_start(stage: str) -> None:
    fact = power_fact(stage, BmcPowerState.UNSETTLED, armed=True)
    assert TABLE[stage, fact].action == table.CLEAR_BOOT
    assert power_fact(power.UNDOING, BmcPowerState.UNSETTLED, armed=False) is ReplaceFact.UNSETTLED


@pytest.mark.parametrize("stage", [table.CLEARING_BOOT, table.CLEANING_UP])
def test_a_host_between_on_and_off_is_not_called_on(stage: str) -> None:
    fact = power_fact(stage, BmcPowerState.UNSETTLED, armed=False)
    assert TABLE[stage, fact] == TABLE[stage, ReplaceFact.ON]
    assert fact not in PROCEDURE.fact_conditions


# The Node


@pytest.mark.parametrize(
    ("now", "trouble"),
    [
        (None, "Node m1 does not exist"),
        (node(), "Node m1 has not reported since the boot"),
        (node("False", boot_id="b2"), "Node m1 is not Ready: cni not there"),
        (node(boot_id="b2"), None),
        (node(uid="n2"), None),
        (node(heartbeat="t2"), None),
    ],
)
def test_the_node_proves_the_boot_when_it_has_reported_ready_since(now: Node | None, trouble: str | None) -> None:
    machine = machine_with(netboot={"boot": UID, "milestone": "ImageWritten"}, spec={"kubernetes": {}},
                           CloudInitDone=("True", "Succeeded", ""))  # fmt: skip
    seen = told(table.WAITING_NODE, machine, now, node_identity(node()))
    assert node_problem(seen) == trouble
    assert progress_of(seen) == (trouble or "")
    assert boot_fact(seen) is (ReplaceFact.JOINED if trouble is None else ReplaceFact.CONFIGURED)


def test_new_ready_node_is_evidence_of_the_boot() -> None:
    machine = machine_with(spec={"kubernetes": {"nodeRef": {"name": "n7"}}})
    assert node_name(machine) == "n7"
    assert node_problem(told(table.WAITING_NODE, machine, node(), node_identity(None))) is None


def test_ends_are_no_stages() -> None:
    assert not ENDS & PROCEDURE.stages.keys()
