"""State machine of HostReplace: the names of its stages, the facts observed in them, and the table.

`replace_stages` has the time limits of the stages.

The host is switched off, set to boot from the network, and started. Its loader and installer are followed by the
servers' observations (`Machine.status.netboot`), and its first boot from disk by cloud-init and by its Node. A host
that never requested its loader is set to boot from the network a second time, by other means.

CleaningUp, the cleanup stage of every stage in which the boot override may be set, removes the override before the
operation ends with its failure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

from unbounded.api.operation import BOOT_CONTESTED, IMAGE_WRITTEN, OperationKind
from unbounded.metalman import reasons
from unbounded.metalman.power import (
    EVIDENCE_OFF,
    EVIDENCE_ON,
    SHUT_DOWN,
    SHUTTING_DOWN,
    SWITCH_OFF,
    SWITCH_ON,
    UNDOING,
    WAITING_OFF,
    WAITING_OFF_AGAIN,
    WAITING_ON,
    WAITING_ON_AGAIN,
    table_rows,
)
from unbounded.operations.reasons import OUTCOME_UNKNOWN
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Repeat, Step

WAITING_IMAGE: Final = "WaitingImage"
SETTING_BOOT: Final = "SettingBoot"
SETTING_BOOT_TO_STAY: Final = "SettingBootToStay"
WAITING_LOADER: Final = "WaitingLoader"
SETTING_BOOT_AGAIN: Final = "SettingBootAgain"
WAITING_LOADER_AGAIN: Final = "WaitingLoaderAgain"
WAITING_INSTALLER: Final = "WaitingInstaller"
WAITING_REPAVE: Final = "WaitingRepave"
CLEARING_BOOT: Final = "ClearingBoot"
WAITING_RETURN: Final = "WaitingReturn"
WAITING_CLOUD_INIT: Final = "WaitingCloudInit"
WAITING_NODE: Final = "WaitingNode"
UNDOING_SHUTDOWN: Final = "UndoingShutdown"
UNDOING_LOADER: Final = "UndoingLoader"
UNDOING_START: Final = "UndoingStart"
CLEANING_UP: Final = "CleaningUp"  # the boot override is removed; the record has the failure
# of HostInspect, HostErase and HostRescue; see `inspect_stages`
WAITING_REPORT: Final = "WaitingReport"
WAITING_ERASE: Final = "WaitingErase"  # of HostErase only; see `erase_stages`
RESTORING: Final = "Restoring"
RESTORING_AFTER_SHUTDOWN: Final = "RestoringAfterShutdown"
RESTORING_AFTER_CANCEL: Final = "RestoringAfterCancel"
RESTORING_AFTER_FAILURE: Final = "RestoringAfterFailure"
CLEANING_UP_SHUTDOWN: Final = "CleaningUpShutdown"
# of HostRescue only; see `inspect_stages`
RESCUING: Final = "Rescuing"

BOOTING_KINDS: Final = frozenset(
    {OperationKind.HOST_REPLACE, OperationKind.HOST_INSPECT, OperationKind.HOST_ERASE, OperationKind.HOST_RESCUE}
)
"""Operations that boot the installer."""
BOOT_STAGES: Final = frozenset(
    {
        WAITING_ON,
        WAITING_LOADER,
        SETTING_BOOT_AGAIN,
        WAITING_OFF_AGAIN,
        WAITING_ON_AGAIN,
        WAITING_LOADER_AGAIN,
        WAITING_INSTALLER,
        WAITING_REPAVE,
        WAITING_REPORT,
        WAITING_ERASE,
        RESCUING,
    }
)
"""Stages in which the host is to boot from the network: only in these, the window of its boot is open."""
BEFORE_INSTALLER: Final = frozenset(
    {
        WAITING_IMAGE,
        SHUTTING_DOWN,
        WAITING_OFF,
        SETTING_BOOT,
        SETTING_BOOT_TO_STAY,
        WAITING_ON,
        WAITING_LOADER,
        SETTING_BOOT_AGAIN,
        WAITING_OFF_AGAIN,
        WAITING_ON_AGAIN,
        WAITING_LOADER_AGAIN,
    }
)
"""Stages up to the loader, which all kinds that boot the installer share."""
RETURN_STAGES: Final = frozenset({CLEARING_BOOT, WAITING_RETURN, WAITING_CLOUD_INIT, WAITING_NODE})
"""Later stages, in which the installed system may still use the boot's prefix: cloud-init and attestation."""

BOOT_ONCE: Final = "BootFromNetworkOnce"
BOOT_TO_STAY: Final = "BootFromNetwork"
CLEAR_BOOT: Final = "BootFromDisk"
START: Final = "OnFromNetwork"
MEDIA_ACTIONS: Final = {
    BOOT_ONCE: "BootFromMediaOnce",
    BOOT_TO_STAY: "BootFromMedia",
    CLEAR_BOOT: "EjectMedia",
    START: "OnFromMedia",
}
"""Actions of a boot from the virtual CD drive, by those of a network boot."""
NETWORK_ACTIONS: Final = {media: action for action, media in MEDIA_ACTIONS.items()}
BOOT_ACTIONS: Final = dict.fromkeys((*MEDIA_ACTIONS, *NETWORK_ACTIONS), Repeat.SETS_STATE)
"""Actions of every procedure that boots the installer: its Machine's boot mode may change between two of them."""

LOADS_MAX: Final = 5  # a firmware that retries fetches its loader a few times; more without a result is a loop

EVIDENCE_LOADER: Final = "the host fetched its boot loader"
EVIDENCE_INSTALLER: Final = "the installer started"
EVIDENCE_WRITTEN: Final = IMAGE_WRITTEN
EVIDENCE_CLOUD_INIT: Final = "cloud-init finished"
EVIDENCE_NODE: Final = "the Node is Ready since the new boot"


class ReplaceFact(StrEnum):
    """Fact from one observation. The View of a stage determines the facts that it can meet.

    Armed: the boot override sends the host to the network, or, in a stage that clears it, anywhere but to its disk.
    """

    NO_IMAGE = "NoImage"
    ON = "On"
    ON_ARMED = "OnArmed"
    OFF = "Off"
    OFF_ARMED = "OffArmed"
    ON_AS_BEFORE = "OnAsBefore"  # a stage that restores the power has reached its end
    OFF_AS_BEFORE = "OffAsBefore"
    UNSETTLED = "Unsettled"
    BETWEEN = "Between"  # On and Off, in a stage that only clears the override and so does not wait
    BETWEEN_ARMED = "BetweenArmed"
    LOOPING = "Looping"
    INSTALL_FAILED = "InstallFailed"
    CONTESTED = "Contested"
    LOADED = "Loaded"
    INSTALLING = "Installing"
    REPORTED = "Reported"  # the installer has reported the hardware of a HostInspect or HostErase
    ERASED = "Erased"  # the installer has erased the disks of a HostErase
    RESCUED = "Rescued"  # the SSH server of a HostRescue runs
    LEFT = "Left"  # the user has switched the rescue system off from inside
    WRITTEN = "Written"
    WRITTEN_OFF = "WrittenOff"  # and the host is off
    BOOTED = "Booted"  # cloud-init has started
    CLOUD_INIT_FAILED = "CloudInitFailed"
    NOT_ATTESTED = "NotAttested"  # the host received no token, as the PCR policy is Required
    CONFIGURED = "Configured"  # cloud-init is done; the Node is missing
    JOINED = "Joined"
    FINISHED = "Finished"  # cloud-init is done, and no Node is requested


class FactSource(Enum):
    """Sources of a stage's fact, in their order: the first available one decides."""

    IMAGE = "the image, then the power"
    POWER = "the power and the boot override"
    BOOT = "the boot from its loader on, then the power and the boot override"
    UNDOING = "the same, from a Machine that was read for it"


_TOWARDS_BOOT: Final = frozenset({SETTING_BOOT, SETTING_BOOT_TO_STAY, SHUTTING_DOWN, WAITING_OFF, WAITING_OFF_AGAIN})
RESTORING_STAGES: Final = frozenset(
    {RESTORING, RESTORING_AFTER_SHUTDOWN, RESTORING_AFTER_CANCEL, RESTORING_AFTER_FAILURE, CLEANING_UP_SHUTDOWN}
)
CLEARING: Final = RESTORING_STAGES | {
    CLEARING_BOOT,
    UNDOING,
    UNDOING_SHUTDOWN,
    UNDOING_LOADER,
    UNDOING_START,
    CLEANING_UP,
}


def fact_source(stage: str) -> FactSource:
    if stage == WAITING_IMAGE:
        return FactSource.IMAGE
    if stage in (UNDOING, UNDOING_SHUTDOWN):
        return FactSource.UNDOING
    is_booting = stage in BOOT_STAGES | RETURN_STAGES and stage not in _TOWARDS_BOOT | CLEARING
    return FactSource.BOOT if is_booting else FactSource.POWER


SETTING_STAGES: Final = frozenset({SETTING_BOOT, SETTING_BOOT_TO_STAY, SETTING_BOOT_AGAIN})
"""Stages in which the boot override is set, and an image inserted."""


def is_clearing(stage: str) -> bool:
    """Return whether the stage lets the host boot from its disk again."""
    return stage in CLEARING


def is_about_boot_order(stage: str) -> bool:
    """Return whether the stage is only for the boot override."""
    return stage in (CLEARING_BOOT, CLEANING_UP)


def needs_power(stage: str, fact: ReplaceFact) -> bool:
    """Return whether the power matters although the boot has a fact: an installed host may be off."""
    return stage == WAITING_RETURN and fact is ReplaceFact.WRITTEN


def is_independent_of_power(stage: str) -> bool:
    """Return whether the stage can do without the BMC: the host is installed, or the stage only cleans up."""
    return stage in RETURN_STAGES or stage == CLEANING_UP


def is_started_again(stage: str | None, attempt: int) -> bool:
    """Return whether a start repeats an earlier one of the same boot, which may have consumed the boot override."""
    return attempt > 1 or stage in (WAITING_LOADER, WAITING_LOADER_AGAIN)


def is_second_round(stage: str | None) -> bool:
    """Return whether the host was set to boot from the network a second time, by a permanent override."""
    return stage in (WAITING_ON_AGAIN, WAITING_LOADER_AGAIN)


def is_before_boot(stage: str) -> bool:
    """Return whether the present Node is from before the requested boot."""
    return stage in (WAITING_IMAGE, SETTING_BOOT_AGAIN) or stage in _TOWARDS_BOOT


_PROGRESS: Final = (
    ReplaceFact.LOADED,
    ReplaceFact.INSTALLING,
    ReplaceFact.REPORTED,
    ReplaceFact.ERASED,
    ReplaceFact.RESCUED,
    ReplaceFact.LEFT,
    ReplaceFact.WRITTEN,
    ReplaceFact.WRITTEN_OFF,
    ReplaceFact.BOOTED,
    ReplaceFact.CLOUD_INIT_FAILED,
    ReplaceFact.NOT_ATTESTED,
    ReplaceFact.CONFIGURED,
    ReplaceFact.JOINED,
    ReplaceFact.FINISHED,
)
Table = Mapping[tuple[str, StrEnum], Step]


def _rows(stage: str, *steps: Mapping[ReplaceFact, Step]) -> Table:
    """Return the rows of a stage: unnamed facts stay in it, and later mappings override earlier ones."""
    named = {fact: step for some in steps for fact, step in some.items()}
    return table_rows(stage, ReplaceFact, named)


def _boot_order(*, done: Step, clear: Step) -> Mapping[ReplaceFact, Step]:
    """Map the readings of a stage that only clears the boot override, whatever the power is."""
    armed = (ReplaceFact.ON_ARMED, ReplaceFact.OFF_ARMED, ReplaceFact.BETWEEN_ARMED)
    return {
        **dict.fromkeys((ReplaceFact.ON, ReplaceFact.OFF, ReplaceFact.BETWEEN), done),
        **dict.fromkeys(armed, clear),
    }


def _power(
    *, on: Step, off: Step, on_armed: Step | None = None, off_armed: Step | None = None
) -> Mapping[ReplaceFact, Step]:
    """Map the four readings of power and boot override; an armed one defaults to its unarmed counterpart."""
    return {
        ReplaceFact.ON: on,
        ReplaceFact.OFF: off,
        ReplaceFact.ON_ARMED: on_armed or on,
        ReplaceFact.OFF_ARMED: off_armed or off,
    }


def _since(first: ReplaceFact, step: Step) -> Mapping[ReplaceFact, Step]:
    """Map a fact and all later ones to the same step, so that evidence is gathered stage by stage."""
    return dict.fromkeys(_PROGRESS[_PROGRESS.index(first) :], step)


def _failure(reason: str, message: str) -> Step:
    """Return the step of a failed boot; its cleanup stage follows."""
    return Step(CLEANING_UP, fail=reason, message=message)


DID_NOT_NETBOOT: Final = _failure(
    reasons.DID_NOT_NETBOOT, "the host was started twice for a network boot, and never fetched its loader"
)
TIMED_OUT: Final = _failure(reasons.INSTALL_TIMED_OUT, "the image was not written in time")
_CONTESTED: Final = {ReplaceFact.CONTESTED: _failure(BOOT_CONTESTED, "a second client took part in the same boot")}
FAILURES: Final = {
    ReplaceFact.LOOPING: _failure(
        reasons.BOOT_LOOP, f"the host fetched the loader more than {LOADS_MAX} times without a result"
    ),
    ReplaceFact.INSTALL_FAILED: _failure(reasons.INSTALL_FAILED, "the installer stopped"),
    **_CONTESTED,
}
"""The failures of a boot from its loader on."""


def _cleanup_rows() -> Table:
    # The engine replaces this failure by the recorded one.
    fail = Step(CLEANING_UP, fail=OUTCOME_UNKNOWN, message="the record names no failure")
    clear = Step(CLEANING_UP, action=CLEAR_BOOT)
    return _rows(CLEANING_UP, _boot_order(done=fail, clear=clear))


def _undo_rows(stage: str) -> Table:
    """Return the rows of an undoing stage.

    A host that has begun to install cannot be restored any more; one that has only its loader is started again.
    """
    clear, off = Step(stage, action=CLEAR_BOOT), Step(UNDOING_LOADER, action=SWITCH_OFF)
    return _rows(
        stage,
        _power(
            on=Step(CANCELLED, evidence=EVIDENCE_ON), off=Step(stage, action=SWITCH_ON), on_armed=clear, off_armed=clear
        ),
        FAILURES,
        dict.fromkeys((ReplaceFact.LOADED, ReplaceFact.LOOPING, ReplaceFact.CONTESTED), off),
        _since(ReplaceFact.INSTALLING, Step(WAITING_INSTALLER, evidence=EVIDENCE_LOADER)),
    )


def _restart_rows() -> Table:
    off, on = Step(UNDOING_LOADER, action=SWITCH_OFF), Step(UNDOING_START, action=SWITCH_ON)
    clear, done = Step(UNDOING_START, action=CLEAR_BOOT), Step(CANCELLED, evidence=EVIDENCE_ON)
    return {
        **_rows(UNDOING_LOADER, _power(on=off, off=on)),
        **_rows(UNDOING_START, _power(on=done, off=on, on_armed=clear, off_armed=clear)),
    }


def _table() -> Table:
    start, off = Step(WAITING_ON, action=START), Step(SETTING_BOOT, action=BOOT_ONCE, evidence=EVIDENCE_OFF)
    armed, started = Step(WAITING_ON, action=START, evidence=EVIDENCE_OFF), Step(WAITING_LOADER, evidence=EVIDENCE_ON)
    loaded = _since(ReplaceFact.LOADED, Step(WAITING_INSTALLER, evidence=EVIDENCE_LOADER))
    once, stays = Step(SETTING_BOOT, action=BOOT_ONCE), Step(SETTING_BOOT_TO_STAY, action=BOOT_TO_STAY)
    again, once_more = Step(SETTING_BOOT_AGAIN, action=BOOT_TO_STAY), Step(WAITING_ON_AGAIN, action=START)
    off_again = Step(WAITING_OFF_AGAIN, action=SWITCH_OFF)
    shut_down, switch_off = Step(SHUTTING_DOWN, action=SHUT_DOWN), Step(WAITING_OFF, action=SWITCH_OFF)
    written = _since(ReplaceFact.WRITTEN, Step(CLEARING_BOOT, evidence=EVIDENCE_WRITTEN))
    back, configured = Step(WAITING_RETURN), Step(WAITING_NODE, evidence=EVIDENCE_CLOUD_INIT)
    clear = Step(CLEARING_BOOT, action=CLEAR_BOOT)
    refused = {ReplaceFact.NOT_ATTESTED: Step(WAITING_NODE, fail=reasons.NOT_ATTESTED)}
    unconfigured = {
        ReplaceFact.CLOUD_INIT_FAILED: Step(WAITING_CLOUD_INIT, fail=reasons.CLOUD_INIT_FAILED),
        **refused,
        **_CONTESTED,
    }
    done = {
        ReplaceFact.CONFIGURED: configured,
        ReplaceFact.JOINED: configured,
        ReplaceFact.FINISHED: Step(COMPLETE, evidence=EVIDENCE_CLOUD_INIT),
    }
    return {
        **_rows(WAITING_IMAGE, _power(on=shut_down, off=off, off_armed=armed)),
        **_rows(SHUTTING_DOWN, _power(on=shut_down, off=off, off_armed=armed)),
        **_rows(WAITING_OFF, _power(on=switch_off, off=off, off_armed=armed)),
        **_rows(SETTING_BOOT, _power(on=started, off=once, off_armed=start)),
        **_rows(SETTING_BOOT_TO_STAY, _power(on=started, off=stays, off_armed=start)),
        **_rows(WAITING_ON, _power(on=started, off=start), loaded, FAILURES),
        **_rows(
            WAITING_LOADER,
            _power(on=Step(WAITING_LOADER), off=Step(WAITING_LOADER, action=START)),
            loaded,
            FAILURES,
        ),
        **_rows(SETTING_BOOT_AGAIN, _power(on=again, off=again, on_armed=off_again, off_armed=once_more), loaded,
                FAILURES),
        **_rows(WAITING_OFF_AGAIN,
                _power(on=off_again, off=Step(WAITING_ON_AGAIN, action=START, evidence=EVIDENCE_OFF))),
        **_rows(WAITING_ON_AGAIN, _power(on=Step(WAITING_LOADER_AGAIN, evidence=EVIDENCE_ON), off=once_more), loaded,
                FAILURES),
        **_rows(
            WAITING_LOADER_AGAIN,
            _power(on=Step(WAITING_LOADER_AGAIN), off=Step(WAITING_LOADER_AGAIN, action=START)),
            loaded,
            FAILURES,
        ),
        **_rows(WAITING_INSTALLER, _since(ReplaceFact.INSTALLING, Step(WAITING_REPAVE, evidence=EVIDENCE_INSTALLER)),
                FAILURES),
        **_rows(WAITING_REPAVE, written, FAILURES),
        **_rows(CLEARING_BOOT, _boot_order(done=back, clear=clear)),
        **_rows(
            WAITING_RETURN,
            {ReplaceFact.WRITTEN_OFF: Step(WAITING_RETURN, action=SWITCH_ON),
             ReplaceFact.BOOTED: Step(WAITING_CLOUD_INIT)},
            unconfigured,
            done,
        ),
        **_rows(WAITING_CLOUD_INIT, unconfigured, done),
        **_rows(WAITING_NODE, {ReplaceFact.JOINED: Step(COMPLETE, evidence=EVIDENCE_NODE)},
                {ReplaceFact.FINISHED: done[ReplaceFact.FINISHED]}, refused, _CONTESTED),
        **_undo_rows(UNDOING),
        **_undo_rows(UNDOING_SHUTDOWN),
        **_restart_rows(),
        **_cleanup_rows(),
    }  # fmt: skip


TABLE: Final = _table()
