"""Procedure of HostReplace: the purpose and the time limits of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace as changed
from typing import Final, overload

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.operation import MachineOperation
from unbounded.metalman import power, reasons
from unbounded.metalman import replace_table as netboot
from unbounded.operations.parameters import grace_s
from unbounded.workflow.procedure import (
    COMPLETE,
    Cancel,
    Capacity,
    ConditionUpdate,
    Procedure,
    Stage,
    Step,
)

WINDOW_CLOSES_S: Final = 10.0  # until all servers know that an operation has left its boot stages
IMAGE_LIMIT_S: Final = 1800.0
BOOT_ORDER_LIMIT_S: Final = 90.0
LOADER_LIMIT_S: Final = 600.0  # the self-test of a large server takes minutes
INSTALLER_LIMIT_S: Final = 900.0
WRITE_LIMIT_S: Final = 5400.0
WRITE_STILL_S: Final = 600.0  # without another percent of the image, the installer counts as stalled
RETURN_LIMIT_S: Final = 1200.0
CLOUD_INIT_LIMIT_S: Final = 1800.0
NODE_LIMIT_S: Final = 1800.0


def _ends_as(reason: str) -> Step:
    """Fail with a reason of its own at a time limit or after the last attempt."""
    return Step(COMPLETE, fail=reason)


def image_stage() -> Stage:
    return Stage(
        "the image to be ready, and a power state that is On or Off",
        limit_s=IMAGE_LIMIT_S,
        on_timeout=_ends_as(reasons.IMAGE_NOT_READY),
        cancel=Cancel.AT_ONCE,
        capacity=Capacity.YIELD,
    )


def off_stages(grace: int) -> Mapping[str, Stage]:
    undo = Step(netboot.UNDOING_SHUTDOWN)
    return {
        power.SHUTTING_DOWN: Stage(
            "the host to shut down",
            limit_s=max(float(grace), 1.0),
            on_timeout=Step(power.WAITING_OFF, action=power.SWITCH_OFF),
            cancel=Cancel.UNDO,
            undo=undo,
            condition=power.IS_POWERING_OFF,
        ),
        power.WAITING_OFF: Stage(
            "the host to be Off",
            limit_s=power.POWER_LIMIT_S,
            cancel=Cancel.UNDO,
            undo=undo,
            condition=power.IS_POWERING_OFF,
        ),
    }


def _setting(waits_for: str, otherwise: Step, mark: ConditionUpdate = power.IS_POWERING_ON) -> Stage:
    return Stage(
        waits_for,
        limit_s=BOOT_ORDER_LIMIT_S,
        attempts=2,
        retry_after_s=10.0,
        on_timeout=otherwise,
        cancel=Cancel.UNDO,
        undo=Step(power.UNDOING),
        condition=mark,
        cleanup_stage=netboot.CLEANING_UP,
    )


def _before_loader(waits_for: str, limit_s: float, *, otherwise: Step | None = None, mark: ConditionUpdate) -> Stage:
    return Stage(
        waits_for,
        limit_s=limit_s,
        on_timeout=otherwise,
        cancel=Cancel.UNDO,
        undo=Step(power.UNDOING),
        condition=mark,
        cleanup_stage=netboot.CLEANING_UP,
    )


def boot_stages() -> Mapping[str, Stage]:
    """Return the stages from a host that is off to one that has fetched its loader, in two rounds."""
    again, loader = Step(netboot.SETTING_BOOT_AGAIN), "the host to fetch its boot loader"
    return {
        netboot.SETTING_BOOT: _setting(
            "the BMC to report one boot from the network",
            Step(netboot.SETTING_BOOT_TO_STAY, action=netboot.BOOT_TO_STAY),
        ),
        netboot.SETTING_BOOT_TO_STAY: _setting(
            "the BMC to report boots from the network", Step(power.WAITING_ON, action=netboot.START)
        ),
        power.WAITING_ON: _before_loader("the host to be On", power.POWER_LIMIT_S, mark=power.IS_POWERING_ON),
        netboot.WAITING_LOADER: _before_loader(loader, LOADER_LIMIT_S, otherwise=again, mark=power.IS_ON),
        netboot.SETTING_BOOT_AGAIN: _setting(
            "the BMC to report a boot from the network, set while the host is On",
            Step(power.WAITING_OFF_AGAIN, action=power.SWITCH_OFF),
            power.IS_ON,
        ),
        power.WAITING_OFF_AGAIN: _before_loader(
            "the host to be Off, as it did not fetch its loader", power.POWER_LIMIT_S, mark=power.IS_POWERING_OFF
        ),
        power.WAITING_ON_AGAIN: _before_loader(
            "the host to be On again", power.POWER_LIMIT_S, mark=power.IS_POWERING_ON
        ),
        netboot.WAITING_LOADER_AGAIN: _before_loader(
            f"{loader}, at its second start", LOADER_LIMIT_S, otherwise=netboot.DID_NOT_NETBOOT, mark=power.IS_ON
        ),
    }  # fmt: skip


def _install_stages() -> Mapping[str, Stage]:
    return {
        netboot.WAITING_INSTALLER: Stage(
            "the installer to start",
            INSTALLER_LIMIT_S,
            on_timeout=netboot.TIMED_OUT,
            condition=power.IS_ON,
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.WAITING_REPAVE: Stage(
            "the image to be written",
            WRITE_LIMIT_S,
            on_timeout=netboot.TIMED_OUT,
            condition=power.IS_ON,
            stalled_s=WRITE_STILL_S,
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.CLEARING_BOOT: Stage(
            "the BMC to report a boot from disk",
            limit_s=BOOT_ORDER_LIMIT_S,
            retry_after_s=10.0,
            on_timeout=Step(netboot.WAITING_RETURN),
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.WAITING_RETURN: Stage(
            "the host to boot from its disk, and cloud-init to report",
            limit_s=RETURN_LIMIT_S,
            retry_after_s=60.0,
            on_timeout=_ends_as(reasons.DID_NOT_COME_BACK),
            # clearing was abandoned if the BMC did not answer for long; it may answer now
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.WAITING_CLOUD_INIT: Stage(
            "cloud-init to finish",
            CLOUD_INIT_LIMIT_S,
            on_timeout=_ends_as(reasons.CLOUD_INIT_TIMED_OUT),
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.WAITING_NODE: Stage(
            "the Node to be Ready since the new boot",
            NODE_LIMIT_S,
            on_timeout=_ends_as(reasons.NODE_NOT_READY),
            cleanup_stage=netboot.CLEANING_UP,
        ),
    }


def _end_stages(grace: int) -> Mapping[str, Stage]:
    """Return the stages that undo, and the one that cleans up before a failure is reported."""
    cleaning_up = Stage(
        "the boot override to be cleared", limit_s=BOOT_ORDER_LIMIT_S, attempts=2, retry_after_s=10.0, is_cleanup=True
    )
    return {**_undoing_stages(grace), netboot.CLEANING_UP: cleaning_up}


def _undoing_stages(grace: int) -> Mapping[str, Stage]:
    undone = "the host to be On, and to boot from its disk"
    return {
        # The servers close the boot's window when they observe this stage; a boot that began earlier is reported by
        # then.
        power.UNDOING: Stage(
            undone,
            limit_s=power.POWER_LIMIT_S,
            dwell_s=WINDOW_CLOSES_S,
            condition=power.IS_POWERING_ON,
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.UNDOING_LOADER: Stage(
            "the host, which has only its loader, to be Off",
            limit_s=power.POWER_LIMIT_S,
            condition=power.IS_POWERING_OFF,
            cleanup_stage=netboot.CLEANING_UP,
        ),
        netboot.UNDOING_START: Stage(
            undone, limit_s=power.POWER_LIMIT_S, condition=power.IS_POWERING_ON, cleanup_stage=netboot.CLEANING_UP
        ),
        # A requested shutdown can still take effect until its grace has passed.
        netboot.UNDOING_SHUTDOWN: Stage(
            f"{undone}, after {grace} s, within which the shutdown can still take effect",
            limit_s=power.POWER_LIMIT_S + grace,
            dwell_s=float(grace),
            condition=power.IS_POWERING_ON,
            cleanup_stage=netboot.CLEANING_UP,
        ),
    }


MEDIA_LIMIT_S: Final = 300.0  # a BMC may load the whole image before it accepts the insertion
MEDIA_RETRY_S: Final = 20.0  # until a BMC that could not load it is asked again: the server may have been away
MEDIA_LOADER_LIMIT_S: Final = LOADER_LIMIT_S + INSTALLER_LIMIT_S  # the first report is that of the installer
_STARTS: Final = "the host to start the installer from its virtual CD drive"
_EJECTED: Final = "the BMC to eject the boot image, and to report a boot from disk"
_EJECTED_ON: Final = f"{_EJECTED}, and the host to be On"
_MEDIA_STAGES: Final[Mapping[str, tuple[str, float]]] = {
    netboot.SETTING_BOOT: ("the BMC to insert the boot image, and to report one boot from it", MEDIA_LIMIT_S),
    netboot.SETTING_BOOT_TO_STAY: ("the BMC to insert the boot image, and to report boots from it", MEDIA_LIMIT_S),
    netboot.WAITING_LOADER: (_STARTS, MEDIA_LOADER_LIMIT_S),
    netboot.SETTING_BOOT_AGAIN: (
        "the BMC to insert the boot image again, and to report boots from it, set while the host is On",
        MEDIA_LIMIT_S,
    ),
    power.WAITING_OFF_AGAIN: ("the host to be Off, as it did not start the installer", power.POWER_LIMIT_S),
    netboot.WAITING_LOADER_AGAIN: (f"{_STARTS}, at its second start", MEDIA_LOADER_LIMIT_S),
    netboot.CLEARING_BOOT: (_EJECTED, BOOT_ORDER_LIMIT_S),
    netboot.CLEANING_UP: (_EJECTED_ON, BOOT_ORDER_LIMIT_S + power.POWER_LIMIT_S),
}
_NOT_BOOTED: Final = "the host was started twice from its virtual CD drive, and never started the installer"


def by_media(procedure: Procedure) -> Procedure:
    """Return a procedure that boots the installer from the virtual CD drive: the same stages, with its own words.

    The servers do not see the loader start, so the stage that waits for it has the time of the installer, too. A boot
    from the network starts its host although the BMC refuses the boot override; a refused image ends the boot while the
    host is Off, so the cleanup switches it on.
    """
    stages = dict(procedure.stages)
    for name, (waits_for, limit_s) in _MEDIA_STAGES.items():
        if name in stages:
            stages[name] = changed(stages[name], waits_for=waits_for, limit_s=limit_s)
            if name in netboot.SETTING_STAGES:
                stages[name] = changed(stages[name], attempts=None, retry_after_s=MEDIA_RETRY_S)
    last = stages[netboot.WAITING_LOADER_AGAIN]
    if last.on_timeout is not None:
        failed = changed(last.on_timeout, fail=reasons.DID_NOT_BOOT_MEDIA, message=_NOT_BOOTED)
        stages[netboot.WAITING_LOADER_AGAIN] = changed(last, on_timeout=failed)
    stages = {name: changed(stage, on_timeout=_by_media(stage.on_timeout)) for name, stage in stages.items()}
    table = {row: _by_media(step) for row, step in procedure.table.items()}
    if netboot.CLEANING_UP in stages:
        table[netboot.CLEANING_UP, netboot.ReplaceFact.OFF] = Step(netboot.CLEANING_UP, action=power.SWITCH_ON)
    return changed(procedure, stages=stages, table=table)


@overload
def _by_media(step: Step) -> Step: ...
@overload
def _by_media(step: Step | None) -> Step | None: ...
def _by_media(step: Step | None) -> Step | None:
    action = None if step is None or step.action is None else netboot.MEDIA_ACTIONS.get(step.action)
    return step if step is None or action is None else changed(step, action=action)


FORMER_STAGES: Final = {
    f"Ending{reason}": netboot.CLEANING_UP
    for reason in ("Failed", "DidNotNetboot", "InstallTimedOut", "BootLoop", "InstallFailed", "BootContested")
}
"""Stages of 0.1.0: an operation that an earlier metalman left in one of them removes the boot override, too."""
_PENDING: Final = ConditionUpdate(ConditionType.REPAVED, ConditionStatus.FALSE, ConditionReason.PENDING)
_REPAVED: Final = ConditionUpdate(
    ConditionType.REPAVED, ConditionStatus.TRUE, ConditionReason.SUCCEEDED, where=ConditionStatus.FALSE
)
_NOT_PENDING: Final = ConditionUpdate(ConditionType.REPAVED, None, where=ConditionStatus.FALSE)
_NO_CLOUD_INIT: Final = ConditionUpdate(ConditionType.CLOUD_INIT_DONE, None)


def replace(operation: MachineOperation) -> Procedure:
    """Return the procedure of HostReplace: off, network boot, on, installed, back from disk, and a Node if one is
    requested.
    """
    grace = max(grace_s(operation), 1)
    return Procedure(
        start=netboot.WAITING_IMAGE,
        facts=netboot.ReplaceFact,
        stages={
            netboot.WAITING_IMAGE: image_stage(),
            **off_stages(grace),
            **boot_stages(),
            **_install_stages(),
            **_end_stages(grace),
        },
        table=netboot.TABLE,
        former_stages=FORMER_STAGES,
        actions={
            **power.ACTIONS,
            **netboot.BOOT_ACTIONS,
        },
        proof=frozenset(
            {power.EVIDENCE_OFF, netboot.EVIDENCE_LOADER, netboot.EVIDENCE_WRITTEN, netboot.EVIDENCE_CLOUD_INIT}
        ),
        start_conditions=(_PENDING, _NO_CLOUD_INIT),
        end_conditions=(power.IS_ON, _REPAVED),
        failure_conditions=(power.IS_ON, _NOT_PENDING),
        fact_conditions={
            **dict.fromkeys((netboot.ReplaceFact.ON, netboot.ReplaceFact.ON_ARMED), power.IS_ON),
            **dict.fromkeys(
                (netboot.ReplaceFact.OFF, netboot.ReplaceFact.OFF_ARMED, netboot.ReplaceFact.WRITTEN_OFF), power.IS_OFF
            ),
        },
    )
