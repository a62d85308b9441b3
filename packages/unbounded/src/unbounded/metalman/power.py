"""Tables of the power operations: HostReboot, HostPowerOff and HostPowerOn.

Graceful first, unless `force` is "true": the host has `graceSeconds` to shut itself down before it is switched off.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final, TypeVar

from unbounded.api.conditions import ConditionReason, ConditionStatus, ConditionType
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.metalman.reasons import DOES_NOT_STAY_OFF, DOES_NOT_STAY_ON
from unbounded.operations.parameters import grace_s, is_forced
from unbounded.operations.reasons import NO_EFFECT
from unbounded.workflow.procedure import (
    CANCELLED,
    COMPLETE,
    Cancel,
    ConditionUpdate,
    Procedure,
    Repeat,
    Stage,
    Step,
)

STARTING: Final = "Starting"
SHUTTING_DOWN: Final = "ShuttingDown"
WAITING_OFF: Final = "WaitingOff"
CONFIRMING_OFF: Final = "ConfirmingOff"
WAITING_OFF_AGAIN: Final = "WaitingOffAgain"
CONFIRMING_OFF_AGAIN: Final = "ConfirmingOffAgain"
WAITING_ON: Final = "WaitingOn"
CONFIRMING_ON: Final = "ConfirmingOn"
WAITING_ON_AGAIN: Final = "WaitingOnAgain"
CONFIRMING_ON_AGAIN: Final = "ConfirmingOnAgain"
ALREADY_OFF: Final = "AlreadyOff"
UNDOING: Final = "Undoing"
RESTORING_POWER: Final = "RestoringPower"

SHUT_DOWN: Final = "GracefulShutdown"
SWITCH_OFF: Final = "ForceOff"
SWITCH_ON: Final = "On"

CONFIRM_S: Final = 5.0
SETTLE_LIMIT_S: Final = 300.0  # for a power state that is neither On nor Off
POWER_LIMIT_S: Final = 300.0
RESTORE_LIMIT_S: Final = 60.0

LINGERS: Final = "the host may still shut itself down"

EVIDENCE_OFF: Final = "the host was Off"
EVIDENCE_OFF_AGAIN: Final = f"the host was Off again, {CONFIRM_S:.0f} s later"
EVIDENCE_ON: Final = "the host was On"
EVIDENCE_ON_AGAIN: Final = f"the host was On again, {CONFIRM_S:.0f} s later"


class BmcPowerFact(StrEnum):
    """Observed PowerState."""

    ON = "On"
    OFF = "Off"
    UNSETTLED = "Unsettled"


# GracefulShutdown is sent again only if it certainly was not executed, as a late one could meet the host's next start.
# ForceOff completes what it did not do.
ACTIONS: Final = {SHUT_DOWN: Repeat.ONCE, SWITCH_OFF: Repeat.SETS_STATE, SWITCH_ON: Repeat.SETS_STATE}

IS_POWERING_OFF: Final = ConditionUpdate(ConditionType.POWERED_OFF, ConditionStatus.FALSE, ConditionReason.POWERING_OFF)
IS_OFF: Final = ConditionUpdate(ConditionType.POWERED_OFF, ConditionStatus.TRUE, ConditionReason.POWERED_OFF)
IS_POWERING_ON: Final = ConditionUpdate(ConditionType.POWERED_OFF, ConditionStatus.TRUE, ConditionReason.POWERING_ON)
IS_ON: Final = ConditionUpdate(ConditionType.POWERED_OFF, None)
FACT_CONDITIONS: Final[Mapping[StrEnum, ConditionUpdate]] = {BmcPowerFact.ON: IS_ON, BmcPowerFact.OFF: IS_OFF}

EFFECTS: Final[Mapping[str, tuple[str, BmcPowerFact]]] = {
    SHUTTING_DOWN: (SHUT_DOWN, BmcPowerFact.OFF),
    WAITING_OFF: (SWITCH_OFF, BmcPowerFact.OFF),
    WAITING_OFF_AGAIN: (SWITCH_OFF, BmcPowerFact.OFF),
    WAITING_ON: (SWITCH_ON, BmcPowerFact.ON),
    WAITING_ON_AGAIN: (SWITCH_ON, BmcPowerFact.ON),
}
"""The action whose effect a stage waits for, and the fact that shows it."""

Table = Mapping[tuple[str, StrEnum], Step]
F = TypeVar("F", bound=StrEnum)


def table_rows(stage: str, facts: type[F], named: Mapping[F, Step]) -> Table:
    """Return the rows of a stage; it stays for each fact that is not named."""
    return {(stage, fact): named.get(fact, Step(stage)) for fact in facts}


def _off_step(*, force: bool) -> Step:
    return Step(WAITING_OFF, action=SWITCH_OFF) if force else Step(SHUTTING_DOWN, action=SHUT_DOWN)


def _rows(stage: str, *, on: Step, off: Step) -> Table:
    """Return the rows of a stage; a reading that is neither On nor Off stays in it."""
    return {(stage, BmcPowerFact.ON): on, (stage, BmcPowerFact.OFF): off, (stage, BmcPowerFact.UNSETTLED): Step(stage)}


def _powering_off_rows(after: Step) -> Table:
    """Return the rows of the stages in which the host goes off; `after` follows once it was observed Off."""
    return {
        **_rows(SHUTTING_DOWN, on=Step(SHUTTING_DOWN, action=SHUT_DOWN), off=after),
        **_rows(WAITING_OFF, on=Step(WAITING_OFF, action=SWITCH_OFF), off=after),
    }


def _powering_on_rows(stage: str, done: Step) -> Table:
    return _rows(stage, on=done, off=Step(stage, action=SWITCH_ON))


def reboot_table(*, force: bool) -> Table:
    """Return the rows of HostReboot: switch off, observe Off, switch on, observe On."""
    switch_on = Step(WAITING_ON, action=SWITCH_ON, evidence=EVIDENCE_OFF)
    return {
        **_rows(STARTING, on=_off_step(force=force), off=switch_on),
        **_powering_off_rows(after=switch_on),
        **_powering_on_rows(WAITING_ON, Step(COMPLETE, evidence=EVIDENCE_ON)),
        # fails with the reason of the failure that led here
        **_powering_on_rows(RESTORING_POWER, Step(RESTORING_POWER, fail=NO_EFFECT, evidence=EVIDENCE_ON)),
    }


def power_off_table(*, force: bool) -> Table:
    """Return the rows of HostPowerOff: switch off, and observe Off twice.

    A host that comes back by itself is switched off once more, but not a third time.
    """
    done, again = Step(COMPLETE, evidence=EVIDENCE_OFF_AGAIN), Step(WAITING_OFF_AGAIN, action=SWITCH_OFF)
    came_back = Step(CONFIRMING_OFF_AGAIN, fail=DOES_NOT_STAY_OFF)
    return {
        **_rows(STARTING, on=_off_step(force=force), off=Step(ALREADY_OFF, evidence=EVIDENCE_OFF)),
        **_powering_off_rows(after=Step(CONFIRMING_OFF, evidence=EVIDENCE_OFF)),
        **_rows(ALREADY_OFF, on=_off_step(force=force), off=done),
        **_rows(CONFIRMING_OFF, on=again, off=done),
        **_rows(WAITING_OFF_AGAIN, on=again, off=Step(CONFIRMING_OFF_AGAIN, evidence=EVIDENCE_OFF)),
        **_rows(CONFIRMING_OFF_AGAIN, on=came_back, off=done),
        **_powering_on_rows(UNDOING, Step(CANCELLED, evidence=EVIDENCE_ON)),
    }


def power_on_table() -> Table:
    """Return the rows of HostPowerOn: switch on, and observe On twice.

    A host that goes off by itself is switched on once more, but not a third time.
    """
    confirm, done = Step(CONFIRMING_ON, evidence=EVIDENCE_ON), Step(COMPLETE, evidence=EVIDENCE_ON_AGAIN)
    again, went_off = Step(WAITING_ON_AGAIN, action=SWITCH_ON), Step(CONFIRMING_ON_AGAIN, fail=DOES_NOT_STAY_ON)
    return {
        **_rows(STARTING, on=confirm, off=Step(WAITING_ON, action=SWITCH_ON)),
        **_powering_on_rows(WAITING_ON, confirm),
        **_rows(CONFIRMING_ON, on=done, off=again),
        **_powering_on_rows(WAITING_ON_AGAIN, Step(CONFIRMING_ON_AGAIN, evidence=EVIDENCE_ON)),
        **_rows(CONFIRMING_ON_AGAIN, on=done, off=went_off),
    }


def _start() -> Stage:
    return Stage("a power state that is On or Off", limit_s=SETTLE_LIMIT_S, cancel=Cancel.AT_ONCE)


def _stages_off(grace: int, *, undo: Step | None) -> Mapping[str, Stage]:
    cancel = Cancel.UNDO if undo else Cancel.TOO_LATE
    return {
        SHUTTING_DOWN: Stage(
            "the host to shut down",
            limit_s=max(float(grace), 1.0),
            on_timeout=Step(WAITING_OFF, action=SWITCH_OFF),
            cancel=cancel,
            undo=undo,
            condition=IS_POWERING_OFF,
            lingers=LINGERS,
        ),
        WAITING_OFF: _waiting_off(undo),
    }


def _waiting_off(undo: Step | None) -> Stage:
    cancel = Cancel.UNDO if undo else Cancel.TOO_LATE
    return Stage("the host to be Off", limit_s=POWER_LIMIT_S, cancel=cancel, undo=undo, condition=IS_POWERING_OFF)


def _confirming_off(cancel: Cancel, undo: Step | None = None) -> Stage:
    return Stage(
        f"a second observation of Off, {CONFIRM_S:.0f} s after the first",
        limit_s=SETTLE_LIMIT_S,
        dwell_s=CONFIRM_S,
        cancel=cancel,
        undo=undo,
        condition=IS_OFF,
    )


def _confirming_on() -> Stage:
    return Stage(
        f"a second observation of On, {CONFIRM_S:.0f} s after the first",
        limit_s=SETTLE_LIMIT_S,
        dwell_s=CONFIRM_S,
        condition=IS_POWERING_ON,
    )


def _waiting_on() -> Stage:
    return Stage("the host to be On", limit_s=POWER_LIMIT_S, condition=IS_POWERING_ON)


def _with_power_restored(stages: Mapping[str, Stage]) -> Mapping[str, Stage]:
    """Return the stages with a cleanup that switches the host on after a failure."""
    return {name: replace(stage, cleanup_stage=RESTORING_POWER) for name, stage in stages.items()}


def reboot(operation: MachineOperation) -> Procedure:
    return Procedure(
        start=STARTING,
        facts=BmcPowerFact,
        stages={
            STARTING: _start(),
            **_with_power_restored(_stages_off(grace_s(operation), undo=None)),
            **_with_power_restored({WAITING_ON: _waiting_on()}),
            RESTORING_POWER: Stage(
                "the host to be On",
                RESTORE_LIMIT_S,
                dwell_s=CONFIRM_S,  # the last action may take effect after the first reading
                is_cleanup=True,
                blind=SWITCH_ON,
                left="left Off",
                condition=IS_POWERING_ON,
            ),
        },
        table=reboot_table(force=is_forced(operation)),
        actions=ACTIONS,
        proof=frozenset({EVIDENCE_OFF, EVIDENCE_ON}),
        end_conditions=(IS_ON,),
        fact_conditions=FACT_CONDITIONS,
        final=frozenset({SWITCH_ON}),
    )


def power_off(operation: MachineOperation) -> Procedure:
    undo, grace = Step(UNDOING), max(grace_s(operation), 1)
    return Procedure(
        start=STARTING,
        facts=BmcPowerFact,
        stages={
            STARTING: _start(),
            **_stages_off(grace, undo=undo),
            ALREADY_OFF: _confirming_off(Cancel.AT_ONCE),
            CONFIRMING_OFF: _confirming_off(Cancel.UNDO, undo),
            WAITING_OFF_AGAIN: _waiting_off(undo),
            CONFIRMING_OFF_AGAIN: _confirming_off(Cancel.UNDO, undo),
            # A requested shutdown can still take effect until its grace has passed.
            UNDOING: Stage(
                f"the host to be On after {grace} s, within which the shutdown can still take effect",
                limit_s=POWER_LIMIT_S + grace,
                dwell_s=float(grace),
                condition=IS_POWERING_ON,
            ),
        },
        table=power_off_table(force=is_forced(operation)),
        actions=ACTIONS,
        proof=frozenset({EVIDENCE_OFF, EVIDENCE_OFF_AGAIN}),
        end_conditions=(IS_OFF,),
        fact_conditions=FACT_CONDITIONS,
        final=frozenset({SHUT_DOWN, SWITCH_OFF}),
    )


def power_on(_operation: MachineOperation) -> Procedure:
    return Procedure(
        start=STARTING,
        facts=BmcPowerFact,
        stages={
            STARTING: _start(),
            WAITING_ON: _waiting_on(),
            CONFIRMING_ON: _confirming_on(),
            WAITING_ON_AGAIN: _waiting_on(),
            CONFIRMING_ON_AGAIN: _confirming_on(),
        },
        table=power_on_table(),
        actions=ACTIONS,
        proof=frozenset({EVIDENCE_ON, EVIDENCE_ON_AGAIN}),
        end_conditions=(IS_ON,),
        fact_conditions=FACT_CONDITIONS,
        final=frozenset({SWITCH_ON}),
    )


PROCEDURES: Final = {
    OperationKind.HOST_REBOOT: reboot,
    OperationKind.HOST_POWER_OFF: power_off,
    OperationKind.HOST_POWER_ON: power_on,
}
