"""Bootstrap tokens of Machines and of sites, and their Secrets in kube-system.

A token authenticates as `system:bootstrap:ID` with two groups. One may request certificates. The other carries the UID
of its Machine, from which an approver knows the permitted name without further reads. The token also signs
cluster-info, so that its host can verify the cluster before it sends the token.

The token of a Machine lets it request a certificate within one hour. Its id is written into the Machine's status before
the Secret is created. So a Machine has one token at a time, from any component, and no component needs to list or read
Secrets to find the former one. A site's token is valid for many hosts and a limited time.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from unbounded.api import core, names
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.kube.api import Api, NotFound
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.logs import Log, SecretStr
from unbounded.kube.status_writer import StatusWriter

NAMESPACE: Final = "kube-system"
TYPE: Final = "bootstrap.kubernetes.io/token"
GOOD_FOR: Final = timedelta(hours=1)
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH: Final = 6
_SECRET_LENGTH: Final = 16  # 82 bits
_NAME: Final = re.compile(rf"bootstrap-token-[a-z0-9]{{{_ID_LENGTH}}}")
_MACHINE_GROUP: Final = "system:bootstrappers:unbounded-machine:"

LEAST_LEFT: Final = timedelta(minutes=1)  # a host that gets it later cannot join in time
_ID: Final = re.compile(r"[a-z0-9]{6}")
_SECRET: Final = re.compile(r"[a-z0-9]{16}")
_TIME: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2})"  # RFC 3339
)
_GROUP: Final = re.compile(r"system:bootstrappers:[a-z0-9:-]{0,255}[a-z0-9]")

log = Log("join")


@dataclass(frozen=True)
class MachineToken:
    """A new bootstrap token.

    Args:
        text: `id.secret`.
    """

    id: str
    text: SecretStr
    expires: datetime


def machine_group(uid: str) -> str:
    """Return the group of the tokens of one Machine."""
    return f"{_MACHINE_GROUP}{uid}"


def new_token(now: datetime) -> MachineToken:
    """Return a new random token."""
    identity = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    return MachineToken(identity, SecretStr(f"{identity}.{secret}"), now + GOOD_FOR)


def secret_name(identity: str) -> str:
    return f"bootstrap-token-{identity}"


def is_secret_name(name: str) -> bool:
    """Return whether a Secret of this name can be a bootstrap token: an API server reads no other."""
    return _NAME.fullmatch(name) is not None


def secret_manifest(token: MachineToken, machine: Machine) -> dict[str, Any]:
    """Return the Secret of a token."""
    data = {
        "description": f"Joins Machine {machine.name}.",
        "token-id": token.id,
        "token-secret": token.text.reveal().partition(".")[2],
        "expiration": rfc3339(token.expires),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": f"{names.GROUP_BOOTSTRAP},{machine_group(machine.metadata.uid)}",
    }
    return {
        "metadata": {
            "name": secret_name(token.id),
            "namespace": NAMESPACE,
            "labels": {names.LABEL_MACHINE: machine.name},
            "annotations": {names.ANNOTATION_MACHINE_UID: machine.metadata.uid},
        },
        "type": TYPE,
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


class TokenIssuer:
    """Issues tokens; a new one replaces the Machine's former one."""

    def __init__(self, api: Api, *, now: WallClock = utc_now) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=("bootstrapTokenID", "conditions", "tpm"))
        self._now = now

    async def issue(self, machine: Machine, status: Mapping[str, Any] | None = None) -> tuple[MachineToken, Machine]:
        """Issue a new token for a Machine; return it with the updated Machine.

        Args:
            machine: as last read; if it has changed since, Conflict is raised and no token is created.
            status: further fields of its status for the same write.
        Raises:
            ApiError: of the write to the Machine, of the removal of the former token, or of the new one's creation.
        """
        token = new_token(self._now())
        written = await self._status.write(machine, {**(status or {}), "bootstrapTokenID": token.id})
        if (before := machine.status.bootstrap_token_id) is not None:
            with suppress(NotFound):  # it has expired, or was never created
                await self._api.delete(SECRETS, secret_name(before), namespace=NAMESPACE)
        await self._api.create(SECRETS, secret_manifest(token, machine), namespace=NAMESPACE)
        log.info("bootstrap token created", machine=machine.name, token=token.id, expires=rfc3339(token.expires))
        return token, written or machine


@dataclass(frozen=True)
class UsableToken:
    """A token that lets a host join now.

    Args:
        text: `id.secret`.
        expires: None for one without expiry.
    """

    id: str
    text: SecretStr
    expires: datetime | None


def token_in(secret: core.Secret, *, now: datetime, machine_uid: str | None = None) -> UsableToken:
    """Return the token of a Secret, if an API server would accept it now.

    Args:
        machine_uid: of the Machine that joins; a token of another Machine is rejected.
    Raises:
        Rejected: no host can join with it; the message names the Secret, the key, and a valid value.
    """
    where = f"Secret {NAMESPACE}/{secret.metadata.name}"
    if secret.type != TYPE:
        raise Rejected(f"{where} is of type {secret.type or 'Opaque'}, but a bootstrap token is of type {TYPE}")
    if secret.metadata.deletion_timestamp:
        raise Rejected(f"{where} is being deleted")
    identity = _matching(secret, where, "token-id", _ID, "6 characters of a-z and 0-9")
    text = _matching(secret, where, "token-secret", _SECRET, "16 characters of a-z and 0-9")
    if secret.metadata.name != secret_name(identity):
        raise Rejected(f"{where} must be named {secret_name(identity)}, as its token-id is {identity}")
    expires = _expiry(secret, where, now)
    if _text(secret, where, "usage-bootstrap-authentication") != "true":
        raise Rejected(f"{where}, key usage-bootstrap-authentication: must be true, or the token authenticates no host")
    _check_groups(_text(secret, where, "auth-extra-groups"), where, machine_uid)
    return UsableToken(identity, SecretStr(f"{identity}.{text}"), expires)


def site_token_manifest(site: str, *, now: datetime, good_for: timedelta, default: bool) -> dict[str, Any]:
    """Return the Secret of a new token with which hosts of a site join.

    Args:
        default: Machines that name no token use it.
    """
    token = new_token(now)
    labels = {names.LABEL_SITE: site} | ({names.LABEL_DEFAULT_BOOTSTRAP_TOKEN: "true"} if default else {})
    data = {
        "description": f"Joins hosts of site {site}.",
        "token-id": token.id,
        "token-secret": token.text.reveal().partition(".")[2],
        "expiration": rfc3339(now + good_for),
        "usage-bootstrap-authentication": "true",
        "usage-bootstrap-signing": "true",
        "auth-extra-groups": names.GROUP_BOOTSTRAP,
    }
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": secret_name(token.id), "namespace": NAMESPACE, "labels": labels},
        "type": TYPE,
        "data": {key: b64encode(value.encode()).decode() for key, value in data.items()},
    }


def newest_usable(secrets: Iterable[core.Secret], site: str, *, now: datetime) -> UsableToken | None:
    """Return the newest of a site's tokens that lets a host join now."""
    return _newest((one for one in secrets if one.metadata.labels.get(names.LABEL_SITE) == site), now=now)


def default_token(secrets: Iterable[core.Secret], site: str, *, now: datetime) -> UsableToken | None:
    """Return the token of a Machine that names none: the newest default of its site, else of no site. A Machine without
    a site accepts any default.

    Args:
        site: of the Machine; empty for none.
    """
    defaults = [one for one in secrets if is_default(one)]
    places = (site, "") if site else ("", *sorted({one.metadata.labels.get(names.LABEL_SITE, "") for one in defaults}))
    found = (
        _newest((one for one in defaults if one.metadata.labels.get(names.LABEL_SITE, "") == place), now=now)
        for place in places
    )
    return next((token for token in found if token is not None), None)


def is_default(secret: core.Secret) -> bool:
    return secret.metadata.labels.get(names.LABEL_DEFAULT_BOOTSTRAP_TOKEN) == "true"


def _newest(secrets: Iterable[core.Secret], *, now: datetime) -> UsableToken | None:
    found: list[tuple[str, str, UsableToken]] = []
    for secret in secrets:
        try:
            token = token_in(secret, now=now)
        except Rejected:
            continue
        if not _is_of_one_machine(secret):
            found.append((secret.metadata.creation_timestamp or "", token.id, token))
    return max(found, key=lambda one: one[:2])[2] if found else None


def _is_of_one_machine(secret: core.Secret) -> bool:
    return machine_group("").encode() in (secret.value("auth-extra-groups") or b"")


def _expiry(secret: core.Secret, where: str, now: datetime) -> datetime | None:
    text = _text(secret, where, "expiration")
    if not text:
        return None
    where = f"{where}, key expiration"
    expires = _moment(text)
    if expires is None:
        raise Rejected(f"{where}: {text[:64]!r} is not a time such as {rfc3339(now)}")
    if expires <= now:
        raise Rejected(f"{where}: the token expired at {rfc3339(expires)}")
    if expires - now < LEAST_LEFT:
        raise Rejected(f"{where}: the token expires at {rfc3339(expires)}, before a host could join with it")
    return expires


def expiration(secret: core.Secret) -> datetime | None:
    """Return the time at which a token expires, also in the past; None for a token without a readable one."""
    try:
        return _moment(_text(secret, "", "expiration"))
    except Rejected:
        return None


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC) if _TIME.fullmatch(text) else None
    except (ValueError, OverflowError):
        return None


def _check_groups(text: str, where: str, machine_uid: str | None) -> None:
    groups = text.split(",")
    where = f"{where}, key auth-extra-groups"
    if names.GROUP_BOOTSTRAP not in groups:
        raise Rejected(f"{where}: must contain {names.GROUP_BOOTSTRAP}, whose members may request certificates")
    if not all(map(_GROUP.fullmatch, groups)):
        raise Rejected(f"{where}: must be comma-separated groups that begin with system:bootstrappers:")
    bound = [group for group in groups if group.startswith(machine_group(""))]
    if machine_uid is not None and bound and machine_group(machine_uid) not in bound:
        raise Rejected(f"{where}: the token was created for another Machine")


def _matching(secret: core.Secret, where: str, key: str, pattern: re.Pattern[str], right: str) -> str:
    """Return a value that is half of the token; the message about an invalid one omits the value."""
    text = _text(secret, where, key)
    if not text:
        raise Rejected(f"{where} has no key {key}")
    if not pattern.fullmatch(text):
        raise Rejected(f"{where}, key {key}: must be {right}")
    return text


def _text(secret: core.Secret, where: str, key: str) -> str:
    """Return the value of a key, empty where there is none."""
    try:
        return (secret.value(key) or b"").decode()
    except ValueError as error:
        raise Rejected(f"{where}, key {key}: is not text") from error
