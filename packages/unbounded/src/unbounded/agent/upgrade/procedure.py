"""AgentUpgrade as a table: from the download to a proven release, or to the former one that runs again.

The facts come from the disk and from the observing process's own release, so restarts of the agent in between do not
matter. "Healthy at both ends of the window" is two actions, Begin and Prove. The engine writes the operation before
each of them, and each reads the API.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Final

from unbounded.operations.reasons import OUTCOME_UNKNOWN
from unbounded.workflow.procedure import CANCELLED, COMPLETE, Cancel, Procedure, Repeat, Stage, Step

DOWNLOADING: Final = "Downloading"
STAGED: Final = "Staged"
SWITCHING: Final = "Switching"
VERIFYING: Final = "Verifying"
PROVING: Final = "Proving"
TAKING_BACK: Final = "TakingBack"
UNDOING: Final = "Undoing"

FETCH: Final = "Fetch"
VERIFY: Final = "Verify"
SWITCH: Final = "Switch"
BEGIN: Final = "Begin"
PROVE: Final = "Prove"
TAKE_BACK: Final = "TakeBack"
DISCARD: Final = "Discard"

DAEMON_FAILED: Final = "DaemonFailed"
DOWNLOAD_FAILED: Final = "DownloadFailed"
FAILED_BEFORE: Final = "FailedBefore"
PREFLIGHT_FAILED: Final = "PreflightFailed"
RESTART_FAILED: Final = "RestartFailed"
UNUSABLE_RELEASE: Final = "UnusableRelease"

MEANING: Final[Mapping[str, str]] = {
    DAEMON_FAILED: "The new version of the agent did not stay healthy; the former one runs again.",
    DOWNLOAD_FAILED: "The release could not be fetched; the agent is unchanged.",
    FAILED_BEFORE: "A release of this digest failed on this host before; retryFailedDigest retries it.",
    PREFLIGHT_FAILED: "The new version does not answer `unbounded-agent version`; the agent is unchanged.",
    RESTART_FAILED: "The daemon could not be restarted as the new version; the former one is in use again.",
    UNUSABLE_RELEASE: "The download is not a release, or not safe to unpack; the agent is unchanged.",
}

EVIDENCE_VERSION: Final = "the new version answers on this host"
EVIDENCE_RUNNING: Final = "the new version runs as the daemon"
EVIDENCE_HEALTHY: Final = "the new version stayed healthy for its window"

FETCH_LIMIT_S: Final = 600.0
_STAGE_LIMIT_S: Final = FETCH_LIMIT_S + 300.0


class UpgradeState(StrEnum):
    """Observed progress of an upgrade on the host."""

    ABSENT = "Absent"  # no part of it is on the host
    HELD = "Held"  # another release is on trial, so no slot is free
    FETCHING = "Fetching"
    FETCH_FAILED = "FetchFailed"
    UNUSABLE = "Unusable"
    KNOWN_BAD = "KnownBad"
    STAGED = "Staged"  # the release is in its slot
    VERIFIED = "Verified"  # and its executable reports its version
    WITHDRAWN = "Withdrawn"  # staged or verified, and the operation is cancelled
    SWITCHED = "Switched"  # the release is in use, and this process is the former one
    STARTED = "Started"  # this process is the new version
    HEALTHY = "Healthy"  # and its window has begun
    DUE = "Due"  # and its window is over
    PROVEN = "Proven"
    LEAVING = "Leaving"  # this process is a release that was rolled back, and is about to be stopped
    TAKEN_BACK = "TakenBack"
    UNREADABLE = "Unreadable"  # a later agent wrote the file


Row = Mapping[UpgradeState, Step]

_FAILURES: Final[Row] = {
    UpgradeState.FETCH_FAILED: Step(DOWNLOADING, fail=DOWNLOAD_FAILED, message="the agent is unchanged"),
    UpgradeState.UNUSABLE: Step(DOWNLOADING, fail=UNUSABLE_RELEASE, message="the agent is unchanged"),
    UpgradeState.KNOWN_BAD: Step(DOWNLOADING, fail=FAILED_BEFORE, message="the agent is unchanged"),
    UpgradeState.UNREADABLE: Step(DOWNLOADING, fail=OUTCOME_UNKNOWN, message="the agent is unchanged"),
    UpgradeState.TAKEN_BACK: Step(DOWNLOADING, fail=DAEMON_FAILED, message="the former version runs again"),
}

_RUNNING: Final[Row] = {
    UpgradeState.SWITCHED: Step(SWITCHING, action=SWITCH),
    UpgradeState.STARTED: Step(VERIFYING, action=BEGIN),
    UpgradeState.HEALTHY: Step(VERIFYING),
    UpgradeState.DUE: Step(PROVING, action=PROVE, evidence=EVIDENCE_RUNNING),
    UpgradeState.PROVEN: Step(COMPLETE, evidence=EVIDENCE_HEALTHY),
}

_BEFORE: Final[Row] = {
    **_FAILURES,
    **_RUNNING,
    UpgradeState.ABSENT: Step(DOWNLOADING, action=FETCH),
    UpgradeState.HELD: Step(DOWNLOADING),
    UpgradeState.FETCHING: Step(DOWNLOADING),
    UpgradeState.STAGED: Step(STAGED, action=VERIFY),
    UpgradeState.VERIFIED: Step(SWITCHING, action=SWITCH, evidence=EVIDENCE_VERSION),
    UpgradeState.WITHDRAWN: Step(UNDOING, action=DISCARD),
}

# After the switch, an absent release was rolled back, even where the note of the cause is lost.
_LOST: Final = Step(VERIFYING, fail=DAEMON_FAILED, message="the former version runs again, and no cause was recorded")
_ON_TRIAL: Final[Row] = {
    **_FAILURES,
    **dict.fromkeys(
        (
            UpgradeState.ABSENT,
            UpgradeState.HELD,
            UpgradeState.FETCHING,
            UpgradeState.STAGED,
            UpgradeState.VERIFIED,
            UpgradeState.WITHDRAWN,
        ),
        _LOST,
    ),
    **_RUNNING,
    UpgradeState.UNREADABLE: Step(VERIFYING),
    UpgradeState.SWITCHED: Step(VERIFYING),
}

_NOT_SWITCHED: Final = (UpgradeState.STAGED, UpgradeState.VERIFIED, UpgradeState.WITHDRAWN)
_GONE: Final = (
    UpgradeState.ABSENT,
    UpgradeState.HELD,
    UpgradeState.FETCH_FAILED,
    UpgradeState.UNUSABLE,
    UpgradeState.KNOWN_BAD,
    UpgradeState.UNREADABLE,
)

_ROWS: Final[Mapping[str, Row]] = {
    DOWNLOADING: _BEFORE,
    STAGED: _BEFORE,
    SWITCHING: {**_BEFORE, UpgradeState.WITHDRAWN: Step(SWITCHING, action=SWITCH)},
    VERIFYING: _ON_TRIAL,
    PROVING: _ON_TRIAL,
    TAKING_BACK: {
        **_ON_TRIAL,
        UpgradeState.SWITCHED: Step(TAKING_BACK, action=TAKE_BACK),
        **dict.fromkeys(
            _NOT_SWITCHED, Step(TAKING_BACK, fail=RESTART_FAILED, message="the former version is in use again")
        ),
    },
    UNDOING: {
        **_BEFORE,
        **dict.fromkeys((*_NOT_SWITCHED, UpgradeState.FETCHING), Step(UNDOING, action=DISCARD)),
        **dict.fromkeys(_GONE, Step(CANCELLED)),
    },
}

_DISCARD: Final = Step(UNDOING, action=DISCARD)


def _stages(trial_s: float) -> Mapping[str, Stage]:
    return {
        DOWNLOADING: Stage(
            "the release to be fetched and unpacked",
            _STAGE_LIMIT_S,
            retry_after_s=2.0,
            cancel=Cancel.UNDO,
            undo=_DISCARD,
        ),
        STAGED: Stage("the release to answer", 180.0, retry_after_s=40.0, cancel=Cancel.UNDO, undo=_DISCARD),
        SWITCHING: Stage(
            "the daemon to be restarted as the new version",
            180.0,
            retry_after_s=45.0,
            on_timeout=Step(TAKING_BACK, action=TAKE_BACK),
        ),
        VERIFYING: Stage("the new version to stay healthy for its window", trial_s, attempts=20, retry_after_s=1.0),
        PROVING: Stage("the new version to be confirmed", trial_s, attempts=20, retry_after_s=2.0),
        TAKING_BACK: Stage("the former version to be in use again", trial_s, attempts=10),
        UNDOING: Stage("the download to be removed", 120.0, attempts=10, retry_after_s=5.0),
    }


def procedure(*, trial_s: float, stage: str = "") -> Procedure:
    """Return the procedure.

    Args:
        trial_s: limit, from the switch, after which a release that is not proven has been rolled back.
        stage: of the operation. An unknown one is a later agent's name for a part of the trial, in which that agent was
            replaced by this one.
    """
    stages, rows = dict(_stages(trial_s)), dict(_ROWS)
    if stage and stage not in stages:
        stages[stage] = replace(stages[VERIFYING], waits_for="the trial of a release that another version started")
        rows[stage] = _ON_TRIAL
    return Procedure(
        start=DOWNLOADING,
        facts=UpgradeState,
        stages=stages,
        table={
            (name, fact): step
            for name, row in rows.items()
            for fact, step in {
                **row,
                UpgradeState.LEAVING: Step(name),
            }.items()  # the recovered version reports the result
        },
        actions=dict.fromkeys((FETCH, VERIFY, SWITCH, BEGIN, PROVE, TAKE_BACK, DISCARD), Repeat.SETS_STATE),
        proof=frozenset({EVIDENCE_RUNNING, EVIDENCE_HEALTHY}),
    )
