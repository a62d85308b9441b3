"""Reboot, stop and start of cloud instances: the tables of HostReboot, HostPowerOff and HostPowerOn.

The evidence is the cloud's own record. A power state is read twice, five seconds apart. A reboot is proven by the end
of the cloud's long call, if it has such calls. Otherwise the instance must be observed in transition and then running,
after the restart was accepted. Earlier observations do not count, nor do those after a lost answer: another client may
have caused them.

If the cloud accepts a restart and shows no more of it, the boot ID that the host's agent reports proves it. Without an
agent nothing does. If a repeated request of one operation does not restart twice, a lost answer is requested again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.machineops import reasons
from unbounded.machineops.provider import Action, Power, Progress, Record, State
from unbounded.operations import reasons as common
from unbounded.workflow.procedure import COMPLETE, Cancel, Capacity, Observation, Procedure, Repeat, Stage, Step

STARTING: Final = "Starting"
RESTARTING: Final = "Restarting"
COMING_BACK: Final = "ComingBack"
AWAITING_HOST: Final = "AwaitingHost"
STOPPING: Final = "Stopping"
CONFIRMING_OFF: Final = "ConfirmingOff"
POWERING_ON: Final = "PoweringOn"
CONFIRMING_ON: Final = "ConfirmingOn"

CONFIRM_S: Final = 5.0
CHANGE_LIMIT_S: Final = 900.0  # clouds give a guest five minutes and more to shut down
OFF_LIMIT_S: Final = 1020.0  # Oracle gives it a quarter of an hour before it cuts the power
SETTLE_LIMIT_S: Final = 300.0
CONFIRM_LIMIT_S: Final = 120.0  # enough for a record that lags
ATTEMPTS: Final = 10  # a throttled request counts as an attempt

EVIDENCE_ACCEPTED: Final = "the provider accepted the restart, and its record shows nothing more"
EVIDENCE_RESTARTED: Final = "the restart was observed"  # in the provider's record, or by the host's boot ID
EVIDENCE_OFF: Final = "the provider's record shows the instance off"
EVIDENCE_OFF_AGAIN: Final = f"the provider's record shows the instance off again, {CONFIRM_S:.0f} s later"
EVIDENCE_ON: Final = "the provider's record shows the instance running"
EVIDENCE_ON_AGAIN: Final = f"the provider's record shows the instance running again, {CONFIRM_S:.0f} s later"


class CloudPowerFact(StrEnum):
    """Result of one observation: the instance's power, or the progress of the long call."""

    RUNNING = "Running"
    STOPPED = "Stopped"
    RELEASED = "Released"
    CHANGING = "Changing"
    FOLLOWING = "Following"  # in transition since the action was accepted
    GONE = "Gone"
    WORKING = "Working"
    DONE = "Done"
    BROKEN = "Broken"
    UNSHOWN = "Unshown"  # accepted, and the instance is running: the host's boot ID can prove the restart
    UNPROVABLE = "Unprovable"  # the same, but the host has no agent that could prove it


ACTIONS: Final[Mapping[str, Repeat]] = {
    Action.RESTART: Repeat.ONCE,
    Action.POWER_OFF: Repeat.SETS_STATE,
    Action.DEALLOCATE: Repeat.SETS_STATE,
    Action.POWER_ON: Repeat.SETS_STATE,
}

Table = Mapping[tuple[str, StrEnum], Step]


def _rows(stage: str, **steps: Step) -> Table:
    """Return the rows of a stage, by fact. Other facts stay in the stage, except those that waiting cannot change."""
    named = {CloudPowerFact[name.upper()]: step for name, step in steps.items()}
    always = {
        CloudPowerFact.GONE: Step(stage, fail=reasons.INSTANCE_NOT_FOUND),
        CloudPowerFact.BROKEN: Step(stage, fail=reasons.PROVIDER_OPERATION_FAILED),
    }
    return {(stage, fact): ({fact: Step(stage)} | always | named)[fact] for fact in CloudPowerFact}


@functools.cache  # cached, as every pass needs it
def reboot() -> Procedure:
    off = Step(STARTING, fail=reasons.INSTANCE_NOT_RUNNING)
    done = Step(COMPLETE, evidence=EVIDENCE_RESTARTED)
    unknown = Step(
        RESTARTING,
        fail=common.OUTCOME_UNKNOWN,
        evidence=EVIDENCE_ACCEPTED,
        message="the provider accepted the restart, but no agent on the host reports its boot ID as proof",
    )
    return Procedure(
        start=STARTING,
        facts=CloudPowerFact,
        stages={
            STARTING: _start(),
            RESTARTING: _changing("the provider to record the restart"),
            COMING_BACK: _changing("the instance to be running again"),
            AWAITING_HOST: _awaiting_host(),
        },
        table={
            **_rows(STARTING, running=Step(RESTARTING, action=Action.RESTART), stopped=off, released=off),
            **_rows(
                RESTARTING,
                running=Step(RESTARTING, action=Action.RESTART),
                following=Step(COMING_BACK),
                done=done,
                unshown=Step(AWAITING_HOST, evidence=EVIDENCE_ACCEPTED),
                unprovable=unknown,
            ),
            **_rows(COMING_BACK, running=done, done=done, unshown=done, unprovable=done),
            **_rows(AWAITING_HOST, following=Step(COMING_BACK), done=done),
        },
        actions=ACTIONS,
        proof=frozenset({EVIDENCE_RESTARTED}),
    )


@functools.cache
def power_off(*, release: bool) -> Procedure:
    """Return the procedure of HostPowerOff.

    Args:
        release: the hardware is released, too.
    """
    ask = Step(STOPPING, action=Action.DEALLOCATE if release else Action.POWER_OFF)
    confirm, done = Step(CONFIRMING_OFF, evidence=EVIDENCE_OFF), Step(COMPLETE, evidence=EVIDENCE_OFF_AGAIN)
    stopped = ask if release else confirm  # off is not enough if the hardware must be released
    came_back = Step(CONFIRMING_OFF, fail=reasons.DOES_NOT_STAY_OFF, message="the instance did not stay off")
    return Procedure(
        start=STARTING,
        facts=CloudPowerFact,
        stages={
            STARTING: _start(),
            STOPPING: _changing("the instance to be off", OFF_LIMIT_S),
            CONFIRMING_OFF: _confirming("off", came_back),
        },
        table={
            **_rows(STARTING, running=ask, stopped=stopped, released=confirm),
            **_rows(STOPPING, running=ask, stopped=stopped, released=confirm),
            **_rows(CONFIRMING_OFF, stopped=Step(CONFIRMING_OFF) if release else done, released=done),
        },
        actions=ACTIONS,
        proof=frozenset({EVIDENCE_OFF, EVIDENCE_OFF_AGAIN}),
        final=frozenset({Action.DEALLOCATE if release else Action.POWER_OFF}),
    )


@functools.cache
def power_on() -> Procedure:
    ask = Step(POWERING_ON, action=Action.POWER_ON)
    confirm, done = Step(CONFIRMING_ON, evidence=EVIDENCE_ON), Step(COMPLETE, evidence=EVIDENCE_ON_AGAIN)
    went_off = Step(CONFIRMING_ON, fail=reasons.DOES_NOT_STAY_ON, message="the instance did not stay on")
    return Procedure(
        start=STARTING,
        facts=CloudPowerFact,
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
        proof=frozenset({EVIDENCE_ON, EVIDENCE_ON_AGAIN}),
        final=frozenset({Action.POWER_ON}),
    )


def _start() -> Stage:
    return Stage(
        "an instance that is running or off",
        limit_s=SETTLE_LIMIT_S,
        cancel=Cancel.AT_ONCE,
        capacity=Capacity.BACKGROUND,
    )


def _changing(what: str, limit_s: float = CHANGE_LIMIT_S) -> Stage:
    return Stage(what, limit_s=limit_s, attempts=ATTEMPTS, retry_after_s=60.0, capacity=Capacity.BACKGROUND)


def _awaiting_host() -> Stage:
    silent = Step(
        AWAITING_HOST,
        fail=common.OUTCOME_UNKNOWN,
        message="the provider accepted the restart, but the host's agent reports no other boot ID as proof",
    )
    what = "the host's agent to report another boot ID, the only proof of the restart"
    return Stage(what, limit_s=CHANGE_LIMIT_S, on_timeout=silent, capacity=Capacity.BACKGROUND)


def _confirming(state: str, otherwise: Step) -> Stage:
    what = f"a second record of the instance being {state}, {CONFIRM_S:.0f} s after the first"
    return Stage(what, limit_s=CONFIRM_LIMIT_S, dwell_s=CONFIRM_S, on_timeout=otherwise, capacity=Capacity.BACKGROUND)


def call_accepted(standing: str) -> Observation:
    """Return the observation of a long call that the cloud has just accepted.

    Args:
        standing: message of the previous observation.
    """
    return Observation(CloudPowerFact.WORKING, standing)


def call_progress(progress: Progress) -> Observation:
    """Convert the progress of a long call to a fact of the procedures."""
    return Observation(_FACT_OF[progress.state], progress.detail, progress.where, progress=progress.detail)


def record_fact(record: Record, *, accepted: bool) -> Observation:
    """Convert a record to a fact of the procedures.

    Args:
        accepted: the cloud has accepted the last action.
    """
    fact = CloudPowerFact(record.power.value)
    return Observation(
        CloudPowerFact.FOLLOWING if accepted and fact is CloudPowerFact.CHANGING else fact, record.detail, record.where
    )


@dataclass(frozen=True)
class BootIDs:
    """Boot IDs that the agent of a host reports.

    Args:
        before: at the request of the restart; None if no agent had reported one.
        now: current one; None likewise.
        where: source of the values, for evidence.
    """

    before: str | None
    now: str | None
    where: str

    @property
    def differ(self) -> bool:
        return self.before is not None and self.now not in (None, self.before)


def call_unknown(progress: Progress, record: Record, kind: OperationKind, boots: BootIDs) -> Observation:
    """Return the observation where the cloud shows no long call (any more): only the host can prove a restart."""
    unknown = kind is OperationKind.HOST_REBOOT and record.power is Power.RUNNING
    if unknown and boots.differ:
        return host_fact(record, boots)
    fact = CloudPowerFact.UNPROVABLE if boots.before is None else CloudPowerFact.UNSHOWN
    observation = Observation(fact) if unknown else record_fact(record, accepted=True)
    return replace(observation, detail=f"{progress.detail}; {record.detail}", where=record.where)


def host_fact(record: Record, boots: BootIDs) -> Observation:
    """Return the observation of an accepted restart, from the host's boot ID and the record."""
    if record.power is Power.RUNNING and boots.differ:
        message = f"the host's boot ID was {boots.before} and is {boots.now}"
        return Observation(CloudPowerFact.DONE, f"{message}; {record.detail}", boots.where)
    return record_fact(record, accepted=True)


def procedure(operation: MachineOperation, kind: OperationKind, *, restarts_once: bool) -> Procedure:
    """Return the procedure of an operation.

    Args:
        restarts_once: a repeated request of one operation does not restart again.
    """
    made = PROCEDURES[kind](operation)
    if not restarts_once or kind is not OperationKind.HOST_REBOOT:
        return made
    as_long_as_it_may_take = replace(made.stages[RESTARTING], attempts=None)
    stages = {**made.stages, RESTARTING: as_long_as_it_may_take}
    return replace(made, stages=stages, actions={**ACTIONS, Action.RESTART: Repeat.KEYED})


_FACT_OF: Final = {
    State.RUNNING: CloudPowerFact.WORKING,
    State.ON_ITS_WAY: CloudPowerFact.FOLLOWING,
    State.DONE: CloudPowerFact.DONE,
    State.FAILED: CloudPowerFact.BROKEN,
}

PROCEDURES: Final[Mapping[OperationKind, Callable[[MachineOperation], Procedure]]] = {
    OperationKind.HOST_REBOOT: lambda _operation: reboot(),
    OperationKind.HOST_POWER_OFF: lambda operation: power_off(release=_is_set(operation, "deallocate")),
    OperationKind.HOST_POWER_ON: lambda _operation: power_on(),
}


def _is_set(operation: MachineOperation, parameter: str) -> bool:
    return operation.spec.parameters.get(parameter) == "true"
