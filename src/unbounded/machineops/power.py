"""How a cloud's instances are rebooted, stopped and started: the tables of HostReboot, HostPowerOff and HostPowerOn.

The proof is the cloud's own record. A power state is read twice, five seconds apart. A reboot is proven by the end of
the cloud's long call, where it has such calls, or by the instance having been seen on its way and then running again,
after the restart was accepted: before that, and where the answer was lost, somebody else may have changed it. Where a
second restart for the same operation is no other one, a lost answer is asked for again, until there is one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.machineops import reasons
from unbounded.machineops.provider import Action, Power, Progress, Record, State
from unbounded.operations import reasons as common
from unbounded.operations.procedure import COMPLETE, Cancel, Procedure, Repeat, Sight, Stage, Step

STARTING: Final = "Starting"
RESTARTING: Final = "Restarting"
COMING_BACK: Final = "ComingBack"
STOPPING: Final = "Stopping"
CONFIRMING_OFF: Final = "ConfirmingOff"
POWERING_ON: Final = "PoweringOn"
CONFIRMING_ON: Final = "ConfirmingOn"

CONFIRM_S: Final = 5.0
CHANGE_LIMIT_S: Final = 900.0  # clouds give a guest five minutes and more for its own shutdown
SETTLE_LIMIT_S: Final = 300.0
CONFIRM_LIMIT_S: Final = 120.0  # a record that lags behind has caught up by then
ATTEMPTS: Final = 10  # what a cloud throttles is an attempt too

SEEN_RESTARTED: Final = "the provider's record shows the restart"
SEEN_OFF: Final = "the provider's record shows the instance off"
SEEN_OFF_AGAIN: Final = f"the provider's record shows the instance off again, {CONFIRM_S:.0f} s later"
SEEN_ON: Final = "the provider's record shows the instance running"
SEEN_ON_AGAIN: Final = f"the provider's record shows the instance running again, {CONFIRM_S:.0f} s later"


class Seen(StrEnum):
    """What one look finds: the instance's power, or how far the long call is that was asked for."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    RELEASED = "Released"
    CHANGING = "Changing"
    FOLLOWING = "Following"  # changing, since what was asked for was accepted
    GONE = "Gone"
    WORKING = "Working"
    DONE = "Done"
    BROKEN = "Broken"
    FORGOTTEN = "Forgotten"  # the call, and the instance is running: it may have been restarted, or not


ACTIONS: Final[Mapping[str, Repeat]] = {
    Action.RESTART: Repeat.ONCE,
    Action.POWER_OFF: Repeat.SETS_STATE,
    Action.DEALLOCATE: Repeat.SETS_STATE,
    Action.POWER_ON: Repeat.SETS_STATE,
}

Table = Mapping[tuple[str, StrEnum], Step]


def _rows(stage: str, **steps: Step) -> Table:
    """The rows of a stage, named by the facts; what is not named stays, but for what no waiting changes."""
    named = {Seen[name.upper()]: step for name, step in steps.items()}
    always = {
        Seen.GONE: Step(stage, fail=reasons.INSTANCE_NOT_FOUND),
        Seen.BROKEN: Step(stage, fail=reasons.PROVIDER_OPERATION_FAILED),
    }
    return {(stage, fact): ({fact: Step(stage)} | always | named)[fact] for fact in Seen}


@functools.cache  # as the others: every pass asks for it
def reboot() -> Procedure:
    off = Step(STARTING, fail=reasons.INSTANCE_NOT_RUNNING)
    done = Step(COMPLETE, seen=SEEN_RESTARTED)
    unknown = Step(RESTARTING, fail=common.OUTCOME_UNKNOWN, words="whether it was restarted cannot be seen")
    return Procedure(
        start=STARTING,
        facts=Seen,
        stages={
            STARTING: _start(),
            RESTARTING: _changing("the provider to record the restart"),
            COMING_BACK: _changing("the instance to be running again"),
        },
        table={
            **_rows(STARTING, running=Step(RESTARTING, ask=Action.RESTART), stopped=off, released=off),
            **_rows(
                RESTARTING,
                running=Step(RESTARTING, ask=Action.RESTART),
                following=Step(COMING_BACK),
                done=done,
                forgotten=unknown,
            ),
            **_rows(COMING_BACK, running=done, done=done, forgotten=done),
        },
        actions=ACTIONS,
        proof=frozenset({SEEN_RESTARTED}),
    )


@functools.cache
def power_off(*, release: bool) -> Procedure:
    """
    Args:
        release: whether its hardware is given back, too.
    """
    ask = Step(STOPPING, ask=Action.DEALLOCATE if release else Action.POWER_OFF)
    confirm, done = Step(CONFIRMING_OFF, seen=SEEN_OFF), Step(COMPLETE, seen=SEEN_OFF_AGAIN)
    stopped = ask if release else confirm  # off is not enough where the hardware is to be given back
    came_back = Step(CONFIRMING_OFF, fail=reasons.DOES_NOT_STAY_OFF, words="it did not stay off")
    return Procedure(
        start=STARTING,
        facts=Seen,
        stages={
            STARTING: _start(),
            STOPPING: _changing("the instance to be off"),
            CONFIRMING_OFF: _confirming("off", came_back),
        },
        table={
            **_rows(STARTING, running=ask, stopped=stopped, released=confirm),
            **_rows(STOPPING, running=ask, stopped=stopped, released=confirm),
            **_rows(CONFIRMING_OFF, stopped=Step(CONFIRMING_OFF) if release else done, released=done),
        },
        actions=ACTIONS,
        proof=frozenset({SEEN_OFF, SEEN_OFF_AGAIN}),
    )


@functools.cache
def power_on() -> Procedure:
    ask = Step(POWERING_ON, ask=Action.POWER_ON)
    confirm, done = Step(CONFIRMING_ON, seen=SEEN_ON), Step(COMPLETE, seen=SEEN_ON_AGAIN)
    went_off = Step(CONFIRMING_ON, fail=reasons.DOES_NOT_STAY_ON, words="it did not stay on")
    return Procedure(
        start=STARTING,
        facts=Seen,
        stages={
            STARTING: _start(),
            POWERING_ON: _changing("the instance to be running"),
            CONFIRMING_ON: _confirming("running", went_off),
        },
        table={
            **_rows(STARTING, running=confirm, stopped=ask, released=ask),
            **_rows(POWERING_ON, running=confirm, stopped=ask, released=ask),
            **_rows(CONFIRMING_ON, running=done),
        },
        actions=ACTIONS,
        proof=frozenset({SEEN_ON, SEEN_ON_AGAIN}),
    )


def _start() -> Stage:
    return Stage("an instance that is running or off", limit_s=SETTLE_LIMIT_S, cancel=Cancel.AT_ONCE, idles=True)


def _changing(what: str) -> Stage:
    return Stage(what, limit_s=CHANGE_LIMIT_S, attempts=ATTEMPTS, ask_again_s=60.0, idles=True)


def _confirming(state: str, otherwise: Step) -> Stage:
    what = f"a second record of the instance being {state}, {CONFIRM_S:.0f} s after the first"
    return Stage(what, limit_s=CONFIRM_LIMIT_S, dwell_s=CONFIRM_S, otherwise=otherwise, idles=True)


def accepted(standing: str) -> Sight:
    """What there is to say of a long call that a cloud has just accepted.

    Args:
        standing: what the look before that has found.
    """
    return Sight(Seen.WORKING, standing)


def followed(progress: Progress) -> Sight:
    """How far a long call is, as a fact of the procedures."""
    return Sight(_FACT_OF[progress.state], progress.detail, progress.where, progress=progress.detail)


def shown(record: Record, *, accepted: bool) -> Sight:
    """What the record shows, as a fact of the procedures.

    Args:
        accepted: the cloud has accepted what was asked for last.
    """
    fact = Seen(record.power.value)
    return Sight(Seen.FOLLOWING if accepted and fact is Seen.CHANGING else fact, record.detail, record.where)


def forgotten(progress: Progress, record: Record, kind: OperationKind) -> Sight:
    """What the record shows where the cloud has forgotten the long call: of a restart that is over, nothing."""
    unknown = kind is OperationKind.HOST_REBOOT and record.power is Power.RUNNING
    sight = Sight(Seen.FORGOTTEN) if unknown else shown(record, accepted=True)
    return replace(sight, detail=f"{progress.detail}; {record.detail}", where=record.where)


def procedure(operation: MachineOperation, kind: OperationKind, *, restarts_once: bool) -> Procedure:
    """
    Args:
        restarts_once: asking for the restart of an operation again does not do it again.
    """
    made = PROCEDURES[kind](operation)
    if not restarts_once or kind is not OperationKind.HOST_REBOOT:
        return made
    as_long_as_it_may_take = replace(made.stages[RESTARTING], attempts=None)
    stages = {**made.stages, RESTARTING: as_long_as_it_may_take}
    return replace(made, stages=stages, actions={**ACTIONS, Action.RESTART: Repeat.KEYED})


_FACT_OF: Final = {
    State.RUNNING: Seen.WORKING,
    State.ON_ITS_WAY: Seen.FOLLOWING,
    State.DONE: Seen.DONE,
    State.FAILED: Seen.BROKEN,
}

PROCEDURES: Final[Mapping[OperationKind, Callable[[MachineOperation], Procedure]]] = {
    OperationKind.HOST_REBOOT: lambda _operation: reboot(),
    OperationKind.HOST_POWER_OFF: lambda operation: power_off(release=_says(operation, "deallocate")),
    OperationKind.HOST_POWER_ON: lambda _operation: power_on(),
}


def _says(operation: MachineOperation, parameter: str) -> bool:
    return operation.spec.parameters.get(parameter) == "true"
