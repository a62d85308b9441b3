"""Requested boots, and the files that they may have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.netboot_objects import REDFISH, machine, replacing
from unbounded.api.machine import NetbootMilestone
from unbounded.api.operation import MachineOperation
from unbounded.metalman.netboot.boot_requests import BOOTING, FINISHING, UNDOING_BOOT, requested_boot
from unbounded.metalman.netboot.model import BootRequest, BootWindow

BMC: dict[str, Any] = {"pxe": {"redfish": REDFISH}}


def seen(boot: str, milestone: str | None) -> dict[str, Any]:
    return {"netboot": {"boot": boot, **({"milestone": milestone} if milestone else {})}}


@pytest.mark.parametrize("stage", sorted(BOOTING))
def test_a_replace_wants_a_boot_from_when_the_host_is_switched_on(stage: str) -> None:
    wanted = requested_boot(machine(**BMC), [replacing(stage)])
    assert wanted == BootRequest(
        "m1", "uid-m1", "op-uid", BootWindow.INSTALLING, operation="replace", executor="metalman/lab"
    )


@pytest.mark.parametrize("stage", sorted(FINISHING))
def test_the_installed_system_still_gets_its_data(stage: str) -> None:
    wanted = requested_boot(machine(**BMC), [replacing(stage)])
    assert wanted is not None
    assert wanted.window is BootWindow.FINISHING


@pytest.mark.parametrize(
    "operation",
    [
        replacing(None),
        replacing("WaitingImage"),
        replacing("ShuttingDown"),
        replacing("WaitingOff"),
        replacing("UndoingLoader"),
        replacing("CleaningUp"),
        replacing("WaitingLoader", phase="Complete"),
        replacing("WaitingLoader", phase="Failed"),
        replacing("WaitingLoader", kind="HostReboot"),
        replacing("WaitingLoader", executor="machine-ops-controller/lab/AzureVM"),
        replacing("WaitingLoader", executor="metalmanx/lab"),
        replacing("WaitingLoader", machine="m2"),
        replacing("WaitingLoader", machine_uid="of-an-earlier-m1"),
    ],
    ids=lambda operation: f"{operation.spec.operation_kind}-{operation.status.phase}-{operation.name}",
)
def test_no_other_operation_wants_one(operation: Any) -> None:
    assert requested_boot(machine(**BMC), [operation]) is None


def test_image_written_report_closes_the_install_window_before_the_executor() -> None:
    wanted = requested_boot(machine(**BMC, status=seen("op-uid", "ImageWritten")), [replacing("WaitingRepave")])
    assert wanted is not None
    assert wanted.window is BootWindow.FINISHING


@pytest.mark.parametrize("stage", sorted(UNDOING_BOOT))
def test_a_boot_whose_operation_is_being_undone_is_suspended(stage: str) -> None:
    wanted = requested_boot(machine(**BMC, status=seen("op-uid", "ImageWriting")), [replacing(stage)])
    assert wanted is not None
    assert wanted.window is BootWindow.SUSPENDED


def test_a_contested_boot_is_over_and_one_of_before_says_nothing() -> None:
    replace = replacing("WaitingRepave")
    assert requested_boot(machine(**BMC, status=seen("op-uid", "Contested")), [replace]) is None
    for milestone in ("Contested", "ImageWritten"):
        wanted = requested_boot(machine(**BMC, status=seen("another", milestone)), [replace])
        assert wanted is not None
        assert wanted.window is BootWindow.INSTALLING


def counters(asked: int, reached: int) -> dict[str, Any]:
    return {"spec": {"operations": {"repaveCounter": asked}}, "status": {"operations": {"repaveCounter": reached}}}


def test_a_counter_wants_a_boot_where_there_is_no_bmc() -> None:
    ahead = counters(3, 2)
    wanted = requested_boot(machine(**ahead), [])
    assert wanted == BootRequest("m1", "uid-m1", "repave-3", BootWindow.INSTALLING, repave=3)
    assert requested_boot(machine(**counters(2, 2)), []) is None
    assert requested_boot(machine(**ahead, **BMC), []) is None  # a HostReplace is made of it
    provider = {"spec": {**ahead["spec"], "provider": "Acme"}, "status": ahead["status"]}
    assert requested_boot(machine(**provider), []) is None


def test_after_its_counter_a_boot_lasts_until_cloud_init_is_done() -> None:
    reached = counters(3, 3)
    status = reached["status"] | seen("repave-3", "ImageWritten")
    wanted = requested_boot(machine(spec=reached["spec"], status=status), [])
    assert wanted is not None
    assert (wanted.boot, wanted.window) == ("repave-3", BootWindow.FINISHING)
    for state, is_over in (("True", True), ("False", False)):
        done = {"type": "CloudInitDone", "status": state, "reason": "x", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        there = requested_boot(machine(spec=reached["spec"], status=status | {"conditions": [done]}), [])
        assert (there is None) is is_over
        joins = {**reached["spec"], "kubernetes": {}}  # its agent attests when cloud-init is done
        assert requested_boot(machine(spec=joins, status=status | {"conditions": [done]}), []) is not None


def test_a_machine_that_is_deleted_or_without_pxe_boots_from_its_disk() -> None:
    replace = replacing("WaitingLoader")
    gone = machine(**BMC)
    deleted = type(gone)(
        metadata=type(gone.metadata)(name="m1", uid="uid-m1", deletion_timestamp="2030-01-01T00:00:00Z"),
        spec=gone.spec,
    )
    assert requested_boot(deleted, [replace]) is None
    assert requested_boot(type(gone)(metadata=gone.metadata), [replace]) is None


stages = st.sampled_from([None, "", "WaitingImage", "CleaningUp", *sorted(BOOTING | FINISHING | UNDOING_BOOT)])
operations = st.lists(
    st.builds(
        lambda stage, phase, number: replacing(stage, phase=phase, name=f"r{number}", uid=f"u{number}"),
        stages,
        st.sampled_from(["Pending", "InProgress", "Complete", "Failed"]),
        st.integers(1, 3),
    ),
    max_size=3,
    unique_by=lambda operation: operation.name,
)
netboots = st.one_of(
    st.just({}),
    st.builds(
        seen, st.sampled_from(["u1", "u2", "u3", "repave-1", "repave-2"]), st.sampled_from([None, *NetbootMilestone])
    ),
)


@pytest.mark.slow
@given(operations, netboots, st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_requested_boot_has_a_requester_and_never_contradicts_observations(
    running: list[MachineOperation], netboot: dict[str, Any], asked: int, reached: int, has_bmc: bool
) -> None:
    fields = counters(asked, reached)
    there = machine(spec=fields["spec"], status=fields["status"] | netboot, **(BMC if has_bmc else {}))
    wanted = requested_boot(there, running)
    if wanted is None:
        return
    claimed = {
        each.metadata.uid: each.status.targets[0].stage for each in running if each.claimed and not each.terminal
    }
    if wanted.operation:
        assert claimed[wanted.boot] in BOOTING | FINISHING | UNDOING_BOOT
        if wanted.window is BootWindow.INSTALLING:
            assert claimed[wanted.boot] in BOOTING
    else:
        assert not has_bmc
        assert wanted.boot == f"repave-{max(asked, reached)}"
        assert (wanted.window is BootWindow.INSTALLING) is (asked > reached)
    told = there.status.netboot
    if told is not None and told.boot == wanted.boot:
        assert told.milestone != NetbootMilestone.CONTESTED
        written = told.milestone == NetbootMilestone.IMAGE_WRITTEN and wanted.operation
        assert not (written and wanted.window is BootWindow.INSTALLING)
