"""Bootstrap tokens, each of which lets one Machine request a certificate within one hour.

A token is a Secret of kube-system. It authenticates as `system:bootstrap:ID` with two groups. One may request
certificates. The other carries the UID of its Machine, from which an approver knows the permitted name without further
reads. The token also signs cluster-info, so that its host can verify the cluster before it sends the token.

Its id is written into the Machine's status before the Secret is created. So a Machine has one token at a time, from any
component, and no component needs to list or read Secrets to find the former one.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_MACHINE_UID, GROUP_BOOTSTRAP, LABEL_MACHINE
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.errors import NotFound
from unbounded.kube.logs import Log, SecretStr
from unbounded.kube.port import Api
from unbounded.kube.status_writer import StatusWriter

NAMESPACE: Final = "kube-system"
TYPE: Final = "bootstrap.kubernetes.io/token"
GOOD_FOR: Final = timedelta(hours=1)
_ALPHABET: Final = "abcdefghijklmnopqrstuvwxyz0123456789"
_ID_LENGTH: Final = 6
_SECRET_LENGTH: Final = 16  # 82 bits
_NAME: Final = re.compile(rf"bootstrap-token-[a-z0-9]{{{_ID_LENGTH}}}")
_MACHINE_GROUP: Final = "system:bootstrappers:unbounded-machine:"

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
        "auth-extra-groups": f"{GROUP_BOOTSTRAP},{machine_group(machine.metadata.uid)}",
    }
    return {
        "metadata": {
            "name": secret_name(token.id),
            "namespace": NAMESPACE,
            "labels": {LABEL_MACHINE: machine.name},
            "annotations": {ANNOTATION_MACHINE_UID: machine.metadata.uid},
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
