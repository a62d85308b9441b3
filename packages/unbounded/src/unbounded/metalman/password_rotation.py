"""BMCRotatePassword: store a new password, set it once, log in with it, and use it.

At each moment, a password in the Secret opens the BMC: the new one is stored before it is set, and the former one is
removed after a log-in with the new one. What the BMC's answer leaves open, a log-in decides.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from unbounded.api.failures import Transient
from unbounded.api.operation import MachineOperation
from unbounded.metalman.power import SETTLE_LIMIT_S, Table
from unbounded.metalman.reasons import NEW_PASSWORD_REFUSED
from unbounded.metalman.redfish.pool import PooledBmc
from unbounded.metalman.redfish.ports import BmcAccount, BmcUser
from unbounded.operations.reasons import NO_EFFECT
from unbounded.operations.record import Run
from unbounded.workflow.procedure import COMPLETE, Cancel, Observation, Procedure, Repeat, Stage, Step

READING_ACCOUNT: Final = "ReadingAccount"
STORING: Final = "StoringPassword"
SETTING: Final = "SettingPassword"
PROMOTING: Final = "PromotingPassword"
DISCARDING: Final = "DiscardingPassword"

STORE: Final = "StorePassword"
SET: Final = "SetPassword"
PROMOTE: Final = "PromotePassword"
DISCARD: Final = "DiscardPassword"

SEEN_STORED: Final = "the Secret has the new password beside the present one"
SEEN_LOGIN: Final = "the BMC opens with the new password"
SEEN_USED: Final = "the Secret has the new password alone, and it opens the BMC"
SEEN_DISCARDED: Final = "the BMC opens with the former password, and the Secret has it alone"
SEEN_KEPT: Final = "the Secret has both passwords"

LIMIT_S: Final = 120.0
SECRET_LIMIT_S: Final = 600.0


class RotationFact(StrEnum):
    """Passwords in the Secret, and the one with which a log-in succeeded."""

    SINGLE = "Single"  # the Secret has one, and it opens the BMC
    PRESENT_OPENS = "PresentOpens"  # the Secret has two, and the present one opens the BMC
    NEXT_OPENS = "NextOpens"
    NEXT_CLOSED = "NextClosed"  # as PresentOpens, and the BMC has rejected a log-in with the next one
    REFUSED = "Refused"  # as PresentOpens, and the BMC has refused to set the next one
    OPEN = "Open"  # not observed: whether the BMC has the next one, another operation finds out


def _rows(stage: str, named: dict[RotationFact, Step]) -> Table:
    return {(stage, fact): named.get(fact, Step(stage)) for fact in RotationFact}


def _table() -> Table:
    store, opens = Step(STORING, action=STORE), Step(PROMOTING, action=PROMOTE, evidence=SEEN_LOGIN)
    kept = Step(DISCARDING, fail=NEW_PASSWORD_REFUSED, evidence=SEEN_KEPT)
    return {
        **_rows(
            READING_ACCOUNT,
            {
                RotationFact.SINGLE: store,
                RotationFact.PRESENT_OPENS: store,
                # an earlier rotation has set it
                RotationFact.NEXT_OPENS: Step(READING_ACCOUNT, action=PROMOTE),
            },
        ),
        **_rows(
            STORING,
            {
                RotationFact.SINGLE: store,
                RotationFact.PRESENT_OPENS: Step(SETTING, action=SET, evidence=SEEN_STORED),
                RotationFact.NEXT_OPENS: opens,
            },
        ),
        **_rows(
            SETTING,
            {
                RotationFact.PRESENT_OPENS: Step(SETTING, action=SET),
                RotationFact.NEXT_OPENS: opens,
                RotationFact.NEXT_CLOSED: Step(
                    SETTING, fail=NO_EFFECT, message="the BMC accepted the new password, and does not open with it"
                ),
            },
        ),
        **_rows(
            PROMOTING,
            {
                RotationFact.NEXT_OPENS: Step(PROMOTING, action=PROMOTE),
                RotationFact.SINGLE: Step(COMPLETE, evidence=SEEN_USED),
            },
        ),
        **_rows(
            DISCARDING,
            {
                RotationFact.REFUSED: Step(DISCARDING, action=DISCARD),
                RotationFact.SINGLE: Step(DISCARDING, fail=NEW_PASSWORD_REFUSED, evidence=SEEN_DISCARDED),
                RotationFact.PRESENT_OPENS: kept,
                RotationFact.NEXT_OPENS: kept,
                RotationFact.OPEN: kept,
            },
        ),
    }


TABLE: Final = _table()


def rotate(_operation: MachineOperation) -> Procedure:
    return Procedure(
        start=READING_ACCOUNT,
        facts=RotationFact,
        stages={
            READING_ACCOUNT: Stage("the BMC to list its account", limit_s=SETTLE_LIMIT_S, cancel=Cancel.AT_ONCE),
            STORING: Stage("the Secret to have the new password", limit_s=LIMIT_S),
            SETTING: Stage("the BMC to open with the new password", limit_s=LIMIT_S, cleanup_stage=DISCARDING),
            PROMOTING: Stage(
                "the Secret to have the new password alone",
                limit_s=SECRET_LIMIT_S,
                attempts=None,
                lingers="the Secret has both passwords, and metalman logs in with the one that the BMC accepts",
            ),
            DISCARDING: Stage("the Secret to have the former password alone", limit_s=LIMIT_S, is_cleanup=True),
        },
        table=TABLE,
        actions={
            STORE: Repeat.SETS_STATE,
            SET: Repeat.ONCE,
            PROMOTE: Repeat.SETS_STATE,
            DISCARD: Repeat.SETS_STATE,
        },
        proof=frozenset({SEEN_LOGIN, SEEN_USED}),
    )


async def observe(run: Run, bmc: PooledBmc, access: BmcAccount) -> Observation:
    """Log in anew, and compare the password that the BMC accepted with those in the Secret.

    A log-in that nothing depends on is spared: it could be the second that the BMC rejects.
    """
    is_refused = run.failing is not None and run.failing.reason == NEW_PASSWORD_REFUSED
    if run.stage == DISCARDING and access.next_password and not is_refused:
        return Observation(RotationFact.OPEN, f"Secret {access.secret} has two passwords", access.url)
    user = await bmc.user()
    where = f"{access.url} {user.path}"
    if not access.next_password:
        if user.password_in_use != access.password:
            raise Transient(f"{access.url}: the session of the former password is not over yet")
        return Observation(RotationFact.SINGLE, f"Secret {access.secret} has one password, which opens the BMC", where)
    if user.password_in_use == access.next_password:
        fact, which = RotationFact.NEXT_OPENS, "next"
    else:
        fact, which = _present_fact(run.stage, user, is_refused=is_refused), "present"
    return Observation(fact, f"the {which} password of the two in Secret {access.secret} opens the BMC", where)


def _present_fact(stage: str, user: BmcUser, *, is_refused: bool) -> RotationFact:
    if stage == SETTING and user.is_next_rejected:
        return RotationFact.NEXT_CLOSED
    return RotationFact.REFUSED if is_refused and stage == DISCARDING else RotationFact.PRESENT_OPENS
