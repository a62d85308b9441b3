"""Steps of a replacement, and the decision about the next one. Pure.

The launch has a retry token and tags with the operation's UID, so that a lost answer does not lose the instance. The
launch request is stored before the old instance is stopped and never changes, as a token is valid for one request.
After an accepted launch without result, the next launch has another token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.machineops.provider import Cancel, Next, NotDone, ReplaceStep
from unbounded.machineops.providers.oci import instances
from unbounded.machineops.providers.oci.launch import TAG_UID

SAVING: Final = "Saving"
STOPPING_OLD: Final = "StoppingOld"
LAUNCHING: Final = "Launching"
HANDING_OVER: Final = "HandingOver"
TERMINATING_OLD: Final = "TerminatingOld"

STEPS: Final = (
    ReplaceStep(
        SAVING,
        "Save",
        "the launch parameters to be stored",
        "the launch parameters are stored",
        300.0,
        Cancel.AT_ONCE,
        needs_user_data=True,  # the complete request is known and allowed before the first change
        settles=False,
    ),
    ReplaceStep(
        STOPPING_OLD,
        "StopOld",
        "the old instance to be stopped",
        "the old instance is stopped, unless it is preemptible",  # Oracle does not allow stopping a preemptible one
        900.0,
        Cancel.AT_ONCE,
        undo=True,
        settles=False,
    ),
    ReplaceStep(LAUNCHING, "Launch", "the replacement to run", "the replacement runs", 1800.0, undo=True, late_s=900.0),
    ReplaceStep(
        HANDING_OVER,
        "HandOver",
        "the Machine to name its replacement",
        "the Machine names its replacement",
        600.0,
        hands_over=True,
        settles=False,
    ),
    ReplaceStep(
        TERMINATING_OLD,
        "TerminateOld",
        "the old instance and its boot volume to be deleted",
        "the old instance and its boot volume are deleted",
        900.0,
        settles=False,
    ),
)


class OciReplacementState(msgspec.Struct, frozen=True):
    """Replacement state: all that a replacement needs to resume.

    Args:
        launch: LaunchInstanceDetails; None if the launch has already happened.
        lost: properties of the old instance that the replacement does not have.
        orphans: boot volumes of launches without result.
        ended: number of accepted launches without result.
        new: the replacement, once it is known.
        was_off: the old instance was stopped before the first change.
        terminating: the termination of the old instance was or will be requested; without it, another actor ended it.
        work: work request of the last launch, if known.
        failed: failure of the launch before that.
        launching: a launch was or will be requested.
    """

    old: str
    launch: dict[str, Any] | None = None
    boot_volumes: tuple[str, ...] = ()
    vnics: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    ended: int = 0
    new: str | None = None
    was_off: bool = False
    terminating: bool = False
    work: str = ""
    failed: str = ""
    launching: bool = False

    @property
    def cannot_be_stopped(self) -> bool:
        """The old instance is preemptible: it runs until its end, and the replacement is launched beside it."""
        return bool((self.launch or {}).get("preemptibleInstanceConfig"))

    def may_launch(self, old: str) -> bool:
        """Return whether a replacement may be launched in this lifecycle state of the old instance."""
        return (
            old in ("", instances.STOPPED)
            or old in instances.ENDED
            or (old == instances.RUNNING and self.cannot_be_stopped)
        )

    def retry_token(self, uid: str) -> str:
        return f"unbounded-launch-{uid}-{self.ended}"

    def known(self, uid: str) -> str:
        """List all resources that may exist for this replacement, for a time when the cloud does not answer."""
        new = f"its replacement is {self.new}" if self.new else f"a replacement has the freeform tag {TAG_UID}: {uid}"
        parts = [f"the old instance is {self.old}", new]
        parts += [f"its boot volume {each}" for each in self.boot_volumes]
        parts += _describe_orphans(self.orphans)
        return f"last observation: {'; '.join(parts)}"


@dataclass(frozen=True)
class OciObservation:
    """Observation of a replacement.

    Args:
        bound: OCID in the Machine's spec.
        old: lifecycle state of the old instance; empty if it is not shown.
        new: lifecycle state of the replacement, likewise.
        boot_volumes: remaining ones of the old instance.
        vnics: likewise.
        orphans: possibly remaining volumes of launches without result.
        hidden: further parts that may remain: the login sees neither them nor such parts of the replacement.
        work: progress of the launch, from its work request.
        again_s: seconds after which the cloud wants to be polled for that.
        failed: failure of the launch.
        landing: the launched instance may exist and is not shown yet.
    """

    bound: str
    old: str
    new_id: str = ""
    new: str = ""
    boot_volumes: tuple[str, ...] = ()
    vnics: tuple[str, ...] = ()
    orphans: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    work: str = ""
    again_s: float | None = None
    failed: NotDone | None = None
    landing: bool = False

    @property
    def is_old_there(self) -> bool:
        return self.old != "" and self.old not in instances.ENDED

    @property
    def has_new(self) -> bool:
        return self.new != "" and self.new not in instances.ENDED


def next_step(observation: OciObservation, state: OciReplacementState, where: str) -> Next:
    """Decide the next step of a replacement."""
    description = describe(observation, state)
    if observation.bound != state.old:
        return _final_steps(observation, state, description, where)
    if observation.new == instances.RUNNING:
        return Next(HANDING_OVER, description, where, new_instance=instances.provider_id(observation.new_id))
    if observation.has_new:
        how_far = f" ({observation.work})" if observation.work else ""
        parts = (
            f"the replacement {observation.new_id} is {observation.new}{how_far}",
            *_earlier(state),
            describe_losses(state.lost),
        )
        progress = "; ".join(parts)
        under_way = observation.new != instances.STOPPED
        return Next(LAUNCHING, description, where, under_way=under_way, progress=progress, again_s=observation.again_s)
    as_it_was = (
        observation.old == (instances.STOPPED if state.was_off else instances.RUNNING) and not observation.landing
    )
    if state.may_launch(observation.old):
        return Next(LAUNCHING, description, where, is_as_it_was=as_it_was, failed=observation.failed)
    progress = f"it is {observation.old}; {describe_losses(state.lost)}"
    under_way = observation.old in (instances.STOPPING, instances.STARTING)
    return Next(STOPPING_OLD, description, where, under_way=under_way, progress=progress, is_as_it_was=as_it_was)


def _final_steps(observation: OciObservation, state: OciReplacementState, description: str, where: str) -> Next:
    """Decide the last steps, after the Machine names its replacement.

    A part that is not shown does not count as deleted by that alone: the login may have lost the right to see it.
    """
    terminating = Next(TERMINATING_OLD, description, where)
    waited_for = Next(TERMINATING_OLD, description, where, under_way=True, progress=description)
    if observation.new in instances.ENDED:
        return terminating  # and refused
    if observation.new == instances.RUNNING and (
        observation.is_old_there or (observation.boot_volumes and is_gone(observation, state))
    ):
        return terminating
    is_over = (
        observation.new == instances.RUNNING
        and is_gone(observation, state)
        and not observation.vnics
        and not observation.hidden
    )
    return (
        Next(None, final_message(observation, state), where) if is_over else waited_for
    )  # a VNIC cannot be deleted by itself


def is_gone(observation: OciObservation, state: OciReplacementState) -> bool:
    """Return whether the old instance has ended. After its termination was requested, a hidden instance counts as
    ended.
    """
    return observation.old == instances.TERMINATED or (observation.old == "" and state.terminating)


def changes_since_start(
    state: OciReplacementState,
    *,
    boot_volumes: Sequence[str],
    detached: Sequence[str],
    vnics: Sequence[str],
    volumes: Sequence[str],
) -> list[str]:
    """Return changes on the old instance since the start whose loss, or remainder, its termination would cause.

    Args:
        boot_volumes: currently attached ones, as vnics and volumes.
        detached: boot volumes that were attached and still exist.
    """
    came = [f"volume {each} was attached" for each in volumes]
    if state.launch is not None:  # else the original parts are unknown
        came += [f"boot volume {each} was attached" for each in boot_volumes if each not in state.boot_volumes]
        came += [f"boot volume {each} was detached" for each in detached]
        came += [f"VNIC {each} was attached" for each in vnics if each not in state.vnics]
    return came


def describe_losses(lost: Sequence[str]) -> str:
    """Describe the losses, before the old instance is terminated."""
    return f"losses: {', '.join(lost)}" if lost else "no losses"


def final_message(observation: OciObservation, state: OciReplacementState) -> str:
    """Return the final message of a replacement."""
    if state.launch is None:  # the losses are unknown
        return describe(observation, state)
    gone = f"instance {observation.new_id} runs; the old one {state.old} is gone, and its boot volume"
    loss = f"losses: {', '.join(state.lost)}" if state.lost else "no losses"
    return "; ".join((gone, loss, *_describe_orphans(observation.orphans)))


def _describe_orphans(orphans: Sequence[str]) -> list[str]:
    """Describe the boot volumes of launches without result. They are not deleted, as others may use them by now."""
    return [f"boot volume {each} may remain of a launch without a result" for each in orphans]


def _earlier(state: OciReplacementState) -> list[str]:
    return [f"the launch before that had no result: {state.failed}"] if state.failed else []


def _describe_launched(observation: OciObservation, state: OciReplacementState) -> list[str]:
    """Describe the launched instances to check before the old instance is started again.

    This may be the last observation before a launch.
    """
    if observation.has_new:
        return []
    if observation.bound != state.old:
        bind = f"bind the Machine to {instances.provider_id(state.old)} again, and start the old one with HostPowerOn"
        return [bind] if observation.old == instances.STOPPED else []
    if state.launch is None or not state.may_launch(observation.old):
        return []
    body = state.launch
    found = f"{TAG_UID}: {body['freeformTags'][TAG_UID]}, name {body['displayName']}, in {body['compartmentId']}"
    only = (
        "; HostPowerOn starts the old one again once no such instance exists"
        if observation.old == instances.STOPPED
        else ""
    )
    return [f"what is launched has freeform tag {found}{only}"]


def describe(observation: OciObservation, state: OciReplacementState) -> str:
    """Describe the resources of this replacement by name, the important ones first, as a status cuts long text."""
    parts = [f"the old instance {state.old} is {observation.old or 'not listed'}"]
    new = f"its replacement {observation.new_id} is {observation.new or 'not listed'}"
    parts.append(new if observation.new_id else "no replacement exists")
    parts += _describe_launched(observation, state)
    parts += _earlier(state) if observation.bound == state.old else []
    parts += [f"boot volume {each} is left" for each in observation.boot_volumes]
    parts += _describe_orphans(observation.orphans)
    parts += [f"VNIC {each} is left" for each in observation.vnics]
    parts += [f"{each} may be left, and is not listed" for each in observation.hidden]
    if state.launch is None and not state.terminating and observation.old in instances.ENDED:
        parts.append("the stored state is lost, so it is unknown whether its boot volume is left")
    parts += [describe_losses(state.lost)] if state.lost else []
    return "; ".join(parts)
