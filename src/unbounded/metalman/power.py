"""How metalman carries out power operations: the tables of HostReboot, HostPowerOff and HostPowerOn.

Graceful first, unless `force` is "true": the host has `graceSeconds` to shut itself down before it is switched off.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from unbounded.api.conditions import ConditionType
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.parameters import grace_s, is_forced
from unbounded.operations.procedure import (
    CANCELLED,
    COMPLETE,
    Cancel,
    Mark,
    MarkStatus,
    Procedure,
    Repeat,
    Stage,
    Step,
)

STARTING: Final = "Starting"
SHUTTING_DOWN: Final = "ShuttingDown"
WAITING_OFF: Final = "WaitingOff"
CONFIRMING_OFF: Final = "ConfirmingOff"
WAITING_ON: Final = "WaitingOn"
CONFIRMING_ON: Final = "ConfirmingOn"
ALREADY_OFF: Final = "AlreadyOff"
UNDOING: Final = "Undoing"

SHUT_DOWN: Final = "GracefulShutdown"
SWITCH_OFF: Final = "ForceOff"
SWITCH_ON: Final = "On"

CONFIRM_S: Final = 5.0
SETTLE_LIMIT_S: Final = 300.0  # for a power state that is neither On nor Off
POWER_LIMIT_S: Final = 300.0

SEEN_OFF: Final = "the host was seen Off"
SEEN_OFF_AGAIN: Final = f"the host was seen Off again, {CONFIRM_S:.0f} s later"
SEEN_ON: Final = "the host was seen On"
SEEN_ON_AGAIN: Final = f"the host was seen On again, {CONFIRM_S:.0f} s later"


class Power(StrEnum):
    """What one reading of PowerState says."""

    ON = "On"
    OFF = "Off"
    UNSETTLED = "Unsettled"


# Sending GracefulShutdown again could meet the host's next start; what it did not do, ForceOff does.
ACTIONS: Final = {SHUT_DOWN: Repeat.ONCE, SWITCH_OFF: Repeat.SETS_STATE, SWITCH_ON: Repeat.SETS_STATE}

_GOING_OFF: Final = Mark(ConditionType.POWERED_OFF, MarkStatus.FALSE, "PoweringOff")
_IS_OFF: Final = Mark(ConditionType.POWERED_OFF, MarkStatus.TRUE, "PoweredOff")
_GOING_ON: Final = Mark(ConditionType.POWERED_OFF, MarkStatus.TRUE, "PoweringOn")
_IS_ON: Final = Mark(ConditionType.POWERED_OFF, None)

Table = Mapping[tuple[str, StrEnum], Step]


def _off_step(*, force: bool) -> Step:
    return Step(WAITING_OFF, ask=SWITCH_OFF) if force else Step(SHUTTING_DOWN, ask=SHUT_DOWN)


def _going_off(after: Step) -> Table:
    """The rows of the stages in which the host goes off; `after` is what follows once it was seen Off."""
    return {
        (SHUTTING_DOWN, Power.ON):        Step(SHUTTING_DOWN),
        (SHUTTING_DOWN, Power.OFF):       after,
        (SHUTTING_DOWN, Power.UNSETTLED): Step(SHUTTING_DOWN),
        (WAITING_OFF,   Power.ON):        Step(WAITING_OFF, ask=SWITCH_OFF),
        (WAITING_OFF,   Power.OFF):       after,
        (WAITING_OFF,   Power.UNSETTLED): Step(WAITING_OFF),
    }  # fmt: skip


def _starting(on: Step, off: Step) -> Table:
    return {
        (STARTING, Power.ON): on,
        (STARTING, Power.OFF): off,
        (STARTING, Power.UNSETTLED): Step(STARTING),
    }


def _going_on(stage: str, done: Step) -> Table:
    return {
        (stage, Power.ON): done,
        (stage, Power.OFF): Step(stage, ask=SWITCH_ON),
        (stage, Power.UNSETTLED): Step(stage),
    }


def reboot_table(*, force: bool) -> Table:
    """Off, seen off, on, seen on."""
    switch_on = Step(WAITING_ON, ask=SWITCH_ON, seen=SEEN_OFF)
    return {
        **_starting(on=_off_step(force=force), off=switch_on),
        **_going_off(after=switch_on),
        **_going_on(WAITING_ON, Step(COMPLETE, seen=SEEN_ON)),
    }


def power_off_table(*, force: bool) -> Table:
    """Off, and seen off twice."""
    confirm = Step(CONFIRMING_OFF, seen=SEEN_OFF)
    return {
        **_starting(on=_off_step(force=force), off=Step(ALREADY_OFF, seen=SEEN_OFF)),
        **_going_off(after=confirm),
        (ALREADY_OFF, Power.ON): _off_step(force=force),
        (ALREADY_OFF, Power.OFF): Step(COMPLETE, seen=SEEN_OFF_AGAIN),
        (ALREADY_OFF, Power.UNSETTLED): Step(ALREADY_OFF),
        (CONFIRMING_OFF, Power.ON): Step(WAITING_OFF, ask=SWITCH_OFF),
        (CONFIRMING_OFF, Power.OFF): Step(COMPLETE, seen=SEEN_OFF_AGAIN),
        (CONFIRMING_OFF, Power.UNSETTLED): Step(CONFIRMING_OFF),
        **_going_on(UNDOING, Step(CANCELLED, seen=SEEN_ON)),
    }


def power_on_table() -> Table:
    """On, and seen on twice."""
    confirm = Step(CONFIRMING_ON, seen=SEEN_ON)
    return {
        **_starting(on=confirm, off=Step(WAITING_ON, ask=SWITCH_ON)),
        **_going_on(WAITING_ON, confirm),
        (CONFIRMING_ON, Power.ON): Step(COMPLETE, seen=SEEN_ON_AGAIN),
        (CONFIRMING_ON, Power.OFF): Step(WAITING_ON, ask=SWITCH_ON),
        (CONFIRMING_ON, Power.UNSETTLED): Step(CONFIRMING_ON),
    }


def _start() -> Stage:
    return Stage("a power state that is On or Off", limit_s=SETTLE_LIMIT_S, cancel=Cancel.AT_ONCE)


def _stages_off(grace: int, *, undo: Step | None) -> Mapping[str, Stage]:
    cancel = Cancel.UNDO if undo else Cancel.TOO_LATE
    return {
        SHUTTING_DOWN: Stage(
            "the host to shut itself down",
            limit_s=max(float(grace), 1.0),
            otherwise=Step(WAITING_OFF, ask=SWITCH_OFF),
            cancel=cancel,
            undo=undo,
            mark=_GOING_OFF,
        ),
        WAITING_OFF: Stage("the host to be Off", limit_s=POWER_LIMIT_S, cancel=cancel, undo=undo, mark=_GOING_OFF),
    }


def reboot(operation: MachineOperation) -> Procedure:
    return Procedure(
        start=STARTING,
        facts=Power,
        stages={
            STARTING: _start(),
            **_stages_off(grace_s(operation), undo=None),
            WAITING_ON: Stage("the host to be On", limit_s=POWER_LIMIT_S, mark=_GOING_ON),
        },
        table=reboot_table(force=is_forced(operation)),
        actions=ACTIONS,
        proof=frozenset({SEEN_OFF, SEEN_ON}),
        end_marks=(_IS_ON,),
    )


def power_off(operation: MachineOperation) -> Procedure:
    undo, grace = Step(UNDOING), max(grace_s(operation), 1)
    return Procedure(
        start=STARTING,
        facts=Power,
        stages={
            STARTING: _start(),
            **_stages_off(grace, undo=undo),
            ALREADY_OFF: Stage(
                f"a second reading of Off, {CONFIRM_S:.0f} s after the first",
                limit_s=SETTLE_LIMIT_S,
                dwell_s=CONFIRM_S,
                cancel=Cancel.AT_ONCE,
                mark=_IS_OFF,
            ),
            CONFIRMING_OFF: Stage(
                f"a second reading of Off, {CONFIRM_S:.0f} s after the first",
                limit_s=SETTLE_LIMIT_S,
                dwell_s=CONFIRM_S,
                cancel=Cancel.UNDO,
                undo=undo,
                mark=_IS_OFF,
            ),
            # A shutdown that was asked for can still take effect, for as long as its grace lasts.
            UNDOING: Stage(
                f"the host to be On when {grace} s have passed, in which the shutdown can still take effect",
                limit_s=POWER_LIMIT_S + grace,
                dwell_s=float(grace),
                mark=_GOING_ON,
            ),
        },
        table=power_off_table(force=is_forced(operation)),
        actions=ACTIONS,
        proof=frozenset({SEEN_OFF, SEEN_OFF_AGAIN}),
        end_marks=(_IS_OFF,),
    )


def power_on(_operation: MachineOperation) -> Procedure:
    return Procedure(
        start=STARTING,
        facts=Power,
        stages={
            STARTING: _start(),
            WAITING_ON: Stage("the host to be On", limit_s=POWER_LIMIT_S, mark=_GOING_ON),
            CONFIRMING_ON: Stage(
                f"a second reading of On, {CONFIRM_S:.0f} s after the first",
                limit_s=SETTLE_LIMIT_S,
                dwell_s=CONFIRM_S,
                mark=_GOING_ON,
            ),
        },
        table=power_on_table(),
        actions=ACTIONS,
        proof=frozenset({SEEN_ON, SEEN_ON_AGAIN}),
        end_marks=(_IS_ON,),
    )


PROCEDURES: Final = {
    OperationKind.HOST_REBOOT: reboot,
    OperationKind.HOST_POWER_OFF: power_off,
    OperationKind.HOST_POWER_ON: power_on,
}
