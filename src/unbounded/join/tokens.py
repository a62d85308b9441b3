"""Bootstrap tokens: with each one Machine introduces itself, within one hour, and asks for a certificate.

A token is a Secret of kube-system. It authenticates as `system:bootstrap:ID` with two groups: the one that may ask for
certificates, and one that carries the UID of its Machine, by which an approver knows from the request alone whose name
it may ask for. It signs cluster-info, too, so that its host can verify the cluster before it shows the token.

Its id is written into the Machine's status before the Secret is made. So there is one token for a Machine at a time,
whoever makes it, and nobody has to list or read Secrets to find the one before.
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
from unbounded.kube.logs import Log, Secret
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
class BootstrapToken:
    """Args:
    text: `id.secret`.
    """

    id: str
    text: Secret
    expires: datetime


def machine_group(uid: str) -> str:
    """The group of the tokens of one Machine."""
    return f"{_MACHINE_GROUP}{uid}"


def new_token(now: datetime) -> BootstrapToken:
    """A token that nobody knows yet."""
    identity = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_LENGTH))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(_SECRET_LENGTH))
    return BootstrapToken(identity, Secret(f"{identity}.{secret}"), now + GOOD_FOR)


def secret_name(identity: str) -> str:
    return f"bootstrap-token-{identity}"


def is_secret_name(name: str) -> bool:
    """Whether a Secret of this name can be a bootstrap token: an API server looks for no other."""
    return _NAME.fullmatch(name) is not None


def secret_manifest(token: BootstrapToken, machine: Machine) -> dict[str, Any]:
    """The Secret of a token."""
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


class Tokens:
    """Makes tokens, each in place of the one before."""

    def __init__(self, api: Api, *, now: WallClock = utc_now) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=("bootstrapTokenID", "conditions", "tpm"))
        self._now = now

    async def issue(self, machine: Machine, status: Mapping[str, Any] | None = None) -> tuple[BootstrapToken, Machine]:
        """A new token for a Machine, and the Machine as it is after that.

        Args:
            machine: as it was read; one that has changed since raises Conflict, and nothing is made.
            status: what else to write into its status in the same breath.
        Raises:
            ApiError: of the write to the Machine, of the removal of the token before, or of the new one's creation.
        """
        token = new_token(self._now())
        written = await self._status.write(machine, {**(status or {}), "bootstrapTokenID": token.id})
        if (before := machine.status.bootstrap_token_id) is not None:
            with suppress(NotFound):  # it has expired, or was never made
                await self._api.delete(SECRETS, secret_name(before), namespace=NAMESPACE)
        await self._api.create(SECRETS, secret_manifest(token, machine), namespace=NAMESPACE)
        log.info("bootstrap token made", machine=machine.name, token=token.id, expires=rfc3339(token.expires))
        return token, written or machine
