"""BMCRotatePassword: store a new password in the Secret, set it once, log in with it, and use it.

At each moment, a password in the Secret opens the BMC: the new one is stored before it is set, and the former one is
removed after a log-in with the new one. What the BMC's answer leaves open, a log-in decides.

Until it is in use, the next password stands in the Secret under key `password-next`. Each change of the Secret is a
patch under the version that was read, so that a late one changes nothing.
"""

from __future__ import annotations

import secrets
import string
from base64 import b64encode
from collections.abc import Callable, Iterable
from enum import StrEnum
from itertools import pairwise
from typing import Final

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Transient
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import RedfishSpec, SecretKeySelector
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api, Forbidden, InvalidObject
from unbounded.kube.logs import Log
from unbounded.metalman import reasons
from unbounded.metalman.bmc_access import BmcAccess, next_key, redfish_of
from unbounded.metalman.power import SETTLE_LIMIT_S, Table, table_rows
from unbounded.metalman.redfish.bmc_interface import BmcAccount, BmcUser
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded.operations.execution_record import Run
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import authority_of
from unbounded.operations.reasons import NO_EFFECT
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

EVIDENCE_STORED: Final = "the Secret has the new password beside the present one"
EVIDENCE_LOGIN: Final = "the BMC opens with the new password"
EVIDENCE_USED: Final = "the Secret has the new password alone, and it opens the BMC"
EVIDENCE_DISCARDED: Final = "the BMC opens with the former password, and the Secret has it alone"
EVIDENCE_KEPT: Final = "the Secret has both passwords"

LIMIT_S: Final = 120.0
SECRET_LIMIT_S: Final = 600.0
LENGTH: Final = 16  # the users of IPMI, which many BMCs share with Redfish, have no longer passwords
SIGNS: Final = "-_."
CLASSES: Final = (string.ascii_lowercase, string.ascii_uppercase, string.digits, SIGNS)
LETTERS: Final = string.ascii_letters + string.digits

log = Log("metalman")

Change = Callable[[Secret], dict[str, str | None]]


class RotationFact(StrEnum):
    """Passwords in the Secret, and the one with which a log-in succeeded."""

    SINGLE = "Single"  # the Secret has one, and it opens the BMC
    PRESENT_OPENS = "PresentOpens"  # the Secret has two, and the present one opens the BMC
    NEXT_OPENS = "NextOpens"
    NEXT_CLOSED = "NextClosed"  # as PresentOpens, and the BMC has rejected a log-in with the next one
    REFUSED = "Refused"  # as PresentOpens, and the BMC has refused to set the next one
    OPEN = "Open"  # not observed: whether the BMC has the next one, another operation finds out


def _table() -> Table:
    store, opens = Step(STORING, action=STORE), Step(PROMOTING, action=PROMOTE, evidence=EVIDENCE_LOGIN)
    kept = Step(DISCARDING, fail=reasons.NEW_PASSWORD_REFUSED, evidence=EVIDENCE_KEPT)
    return {
        **table_rows(
            READING_ACCOUNT,
            RotationFact,
            {
                RotationFact.SINGLE: store,
                RotationFact.PRESENT_OPENS: store,
                # an earlier rotation has set it
                RotationFact.NEXT_OPENS: Step(READING_ACCOUNT, action=PROMOTE),
            },
        ),
        **table_rows(
            STORING,
            RotationFact,
            {
                RotationFact.SINGLE: store,
                RotationFact.PRESENT_OPENS: Step(SETTING, action=SET, evidence=EVIDENCE_STORED),
                RotationFact.NEXT_OPENS: opens,
            },
        ),
        **table_rows(
            SETTING,
            RotationFact,
            {
                RotationFact.PRESENT_OPENS: Step(SETTING, action=SET),
                RotationFact.NEXT_OPENS: opens,
                RotationFact.NEXT_CLOSED: Step(
                    SETTING, fail=NO_EFFECT, message="the BMC accepted the new password, and does not open with it"
                ),
            },
        ),
        **table_rows(
            PROMOTING,
            RotationFact,
            {
                RotationFact.NEXT_OPENS: Step(PROMOTING, action=PROMOTE),
                RotationFact.SINGLE: Step(COMPLETE, evidence=EVIDENCE_USED),
            },
        ),
        **table_rows(
            DISCARDING,
            RotationFact,
            {
                RotationFact.REFUSED: Step(DISCARDING, action=DISCARD),
                RotationFact.SINGLE: Step(DISCARDING, fail=reasons.NEW_PASSWORD_REFUSED, evidence=EVIDENCE_DISCARDED),
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
        proof=frozenset({EVIDENCE_LOGIN, EVIDENCE_USED}),
    )


async def observe(run: Run, bmc: PooledBmc, access: BmcAccount) -> Observation:
    """Log in anew, and compare the password that the BMC accepted with those in the Secret.

    A log-in that nothing depends on is spared: it could be the second that the BMC rejects.
    """
    is_refused = run.failing is not None and run.failing.reason == reasons.NEW_PASSWORD_REFUSED
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


def generate(min_length: int | None, max_length: int | None) -> str:
    """Return a random password of 16 characters, or as near to that as the BMC's limits permit.

    It begins and ends with a letter or digit, has one character of each class, and repeats none in a row, as rules of
    BMCs demand.
    """
    length = max(LENGTH, min_length or 0)
    length = max(min(length, max_length or length), len(CLASSES))
    while True:
        middle = "".join(secrets.choice(LETTERS + SIGNS) for _ in range(length - 2))
        made = f"{secrets.choice(LETTERS)}{middle}{secrets.choice(LETTERS)}"
        repeats = any(one == other for one, other in pairwise(made))
        if not repeats and all(any(one in made for one in kind) for kind in CLASSES):
            return made


def secret_conflict(machine: Machine, machines: Iterable[Machine]) -> str | None:
    """Return why the password cannot be rotated: another Machine would be left with a wrong one; None if none would.

    Args:
        machines: of all sites.
    """
    own = redfish_of(machine)
    for other in machines:
        redfish = other.spec.pxe.redfish if other.spec.pxe is not None else None
        if redfish is None or other.name == machine.name:
            continue
        has_account = _account(redfish) == _account(own)
        if has_account and _selector(redfish.password_ref) != _selector(own.password_ref):
            return f"Machine {other.name} has the password of the same account in {_text(redfish.password_ref)}"
        if not has_account and _keys(redfish.password_ref) & _keys(own.password_ref):
            return f"Machine {other.name} has the password of another account in {_text(redfish.password_ref)}"
    return None


def _account(redfish: RedfishSpec) -> tuple[str, str]:
    return authority_of(redfish.url), redfish.username


def _selector(reference: SecretKeySelector) -> tuple[str, str, str]:
    return reference.namespace, reference.name, reference.key


def _keys(reference: SecretKeySelector) -> frozenset[tuple[str, str, str]]:
    """Return the keys that a rotation changes."""
    namespace, name, key = _selector(reference)
    return frozenset({(namespace, name, key), (namespace, name, next_key(reference))})


def _text(reference: SecretKeySelector) -> str:
    return f"key {reference.key} of Secret {reference.namespace}/{reference.name}"


class PasswordSecrets:
    """Changes of the Secrets of BMC passwords."""

    def __init__(self, api: Api, access: BmcAccess, pool: BmcPool) -> None:
        self._api = api
        self._access = access
        self._pool = pool
        # by UID of the Machine: reference and next password of its last rotation in this process
        self._begun: dict[str, tuple[SecretKeySelector, str]] = {}

    async def store_next(self, machine: Machine, min_length: int | None, max_length: int | None) -> None:
        """Store a new password as the next one; one that is stored already stays, and only the right is checked."""
        reference = redfish_of(machine).password_ref

        def stored(secret: Secret) -> dict[str, str | None]:
            made = b64encode(generate(min_length, max_length).encode()).decode()
            following = secret.data.get(next_key(reference)) or made
            self._begun[machine.metadata.uid] = reference, following
            return {next_key(reference): following}

        await self._change(machine, stored)

    async def keep_next(self, machine: Machine) -> None:
        """Store the next password again, if it was removed while the BMC may have it already.

        Raises:
            Refusal: the Machine names another Secret than the one in which the rotation has begun.
        """
        begun = self._begun.get(machine.metadata.uid)
        if begun is None:
            return
        (reference, following), present = begun, redfish_of(machine).password_ref
        if _selector(reference) != _selector(present):
            changed = f"passwordRef of Machine {machine.name} was changed during the rotation to {_text(present)}"
            raise Refusal(
                reasons.CREDENTIALS_MISSING, f"{changed}; a password that opens the BMC is in {_text(reference)}"
            )

        def kept(secret: Secret) -> dict[str, str | None]:
            is_there = following == secret.data.get(reference.key) or next_key(reference) in secret.data
            return {} if is_there else {next_key(reference): following}

        await self._change(machine, kept)

    async def promote_next(self, machine: Machine) -> None:
        """Let the next password be the present one."""
        reference = redfish_of(machine).password_ref

        def promoted(secret: Secret) -> dict[str, str | None]:
            following = secret.data.get(next_key(reference))
            return {reference.key: following, next_key(reference): None} if following else {}

        await self._change(machine, promoted)

    async def discard_next(self, machine: Machine) -> None:
        """Remove the next password, which the BMC has refused."""
        reference = redfish_of(machine).password_ref

        def discarded(secret: Secret) -> dict[str, str | None]:
            return {next_key(reference): None} if next_key(reference) in secret.data else {}

        await self._change(machine, discarded)

    async def _change(self, machine: Machine, change: Change) -> None:
        """Patch the Secret, and let all callers in this process log in with its new version.

        Raises:
            Refusal: metalman may not.
            Conflict: the Secret has changed since it was read.
        """
        reference = redfish_of(machine).password_ref
        self._access.forget(reference)
        former = await self._access.of(machine)
        secret = await self._api.get(SECRETS, reference.name, namespace=reference.namespace)
        data = change(secret)
        if not data:
            return
        patch = {"metadata": {"resourceVersion": secret.metadata.resource_version}, "data": data}
        try:
            await self._api.patch(SECRETS, reference.name, patch, namespace=reference.namespace)
        except (Forbidden, InvalidObject) as error:
            raise Refusal(reasons.CREDENTIALS_READ_ONLY, _read_only(reference, error)) from error
        finally:
            self._access.forget(reference)
        log.info("password Secret changed", machine=machine.name, secret=f"{reference.namespace}/{reference.name}")
        await self._pool.supersede(former, await self._access.of(machine))


def _read_only(reference: SecretKeySelector, error: Exception) -> str:
    where, commands = f"{reference.namespace}/{reference.name}", "\n".join(reasons.grant_commands(reference))
    return f"metalman cannot change Secret {where}: {error}; the commands at the end grant it\n{commands}\n"


def check_conflict(machine: Machine, machines: Iterable[Machine]) -> None:
    """Check that no other Machine would be left with a wrong password.

    Raises:
        Refusal: one would.
    """
    if (conflict := secret_conflict(machine, machines)) is not None:
        raise Refusal(reasons.CREDENTIALS_SHARED, f"{conflict}: the password is not rotated")
