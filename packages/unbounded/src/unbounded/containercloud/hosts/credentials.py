"""BareMetalHostCredentials: the password moves into a Secret, and is erased where it was written in clear text."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded.api.conditions import ConditionStatus, set_condition
from unbounded.api.container_cloud.host import BARE_METAL_HOST_CREDENTIALS, BareMetalHostCredential
from unbounded.api.container_cloud.names import HOST_SECRET, LABEL_HOST_SECRET
from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Stale
from unbounded.containercloud.caches import ControllerContext
from unbounded.containercloud.hosts.model import KEY_PASSWORD, KEY_USER
from unbounded.containercloud.refused import RefusalEvents, WriteAttempt
from unbounded.kube.api import AlreadyExists, NotFound, ObjectKey, key_of
from unbounded.kube.clock import rfc3339
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.status_writer import StatusWriter

Raw = dict[str, Any]

LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
CONDITION_STORED: Final = "Stored"
STORED: Final = "Stored"
NAME_TAKEN: Final = "NameTaken"
PASSWORD_MISSING: Final = "PasswordMissing"  # noqa: S105 - a reason

log = Log("hosts")


@dataclass(frozen=True)
class CredentialPlan:
    """The next writes for a credential, in their order.

    Args:
        data: of the Secret; empty where it stays.
        patch: of the credential, which erases the password; None where there is none to erase.
        reason, message: of condition Stored, which is True with reason Stored.
    """

    secret: str
    data: dict[str, str]
    patch: Raw | None
    reason: str
    message: str

    def __repr__(self) -> str:
        return f"CredentialPlan({self.secret!r}, {self.reason})"


def plan_credential(credential: BareMetalHostCredential, secret: Secret | None) -> CredentialPlan:
    """Return the next writes for a credential.

    Args:
        secret: the one with the name that the credential has for its Secret.
    """
    password, key = credential.spec.password, key_of(credential)
    value = password.value if password is not None else None
    recorded = password.name if password is not None else None
    name = recorded or key.name
    if secret is not None and value is not None and not is_of(secret, credential):
        text = f"Secret {key.namespace}/{name} was not made for this credential: delete it, or rename the credential"
        return CredentialPlan(name, {}, None, NAME_TAKEN, text)
    if secret is None and value is None:
        text = f"password.value is absent, and Secret {key.namespace}/{name} does not exist"
        return CredentialPlan(name, {}, None, PASSWORD_MISSING, text)
    wanted = {KEY_USER: _encoded(credential.spec.username)}
    if value is not None:
        wanted[KEY_PASSWORD] = _encoded(value)
    present = secret.data if secret is not None else {}
    differing = {item: text for item, text in wanted.items() if present.get(item) != text}
    if value is None and secret is not None and not is_of(secret, credential):
        differing = {}  # a Secret of the user, which has its own user name
    text = f"user and password are in Secret {key.namespace}/{name}"
    return CredentialPlan(name, differing, _erasure(credential, name), STORED, text)


def _erasure(credential: BareMetalHostCredential, name: str) -> Raw | None:
    """Return the patch that erases the password, also in the copy that kubectl keeps in an annotation."""
    password, patch = credential.spec.password, dict[str, Any]()
    if password is None or password.value is not None or password.name != name:
        patch["spec"] = {"password": {"value": None, "name": name}}
    annotations = credential.metadata.annotations
    if _has_password(annotations.get(LAST_APPLIED, "")):
        patch["metadata"] = {"annotations": {LAST_APPLIED: None}}
    if not patch:
        return None
    version = credential.metadata.resource_version
    return {**patch, "metadata": {**patch.get("metadata", {}), "resourceVersion": version}}


def _has_password(applied: str) -> bool:
    """Return whether the text that kubectl keeps may hold a password; one that cannot be parsed may."""
    if not applied:
        return False
    try:
        spec = msgspec.json.decode(applied).get("spec") or {}
        return (spec.get("password") or {}).get("value") is not None
    except (msgspec.DecodeError, AttributeError):
        return True


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def is_of(secret: Secret, credential: BareMetalHostCredential) -> bool:
    """Return whether a Secret was made for the credential."""
    return any(owner.uid == credential.metadata.uid for owner in secret.metadata.owner_references)


class CredentialController:
    """Controller of all BareMetalHostCredentials."""

    def __init__(self, context: ControllerContext) -> None:
        self._api, self._epoch, self._now = context.api, context.epoch, context.now
        self._caches = caches = context.caches
        self._status = StatusWriter(
            context.api, BARE_METAL_HOST_CREDENTIALS, fields=("conditions",), cache=caches.credentials
        )
        self._refused = RefusalEvents(context.emit_event)
        self._controller: Controller[ObjectKey] = Controller("credentials", self._reconcile, metrics=context.metrics)
        self._controller.follow(caches.credentials, lambda credential: (key_of(credential),))
        self._controller.follow(caches.secrets, self._credentials_of)

    async def run(self) -> None:
        """Run until cancelled."""
        await self._controller.run()

    def _credentials_of(self, secret: Secret) -> list[ObjectKey]:
        namespace = secret.metadata.namespace or ""
        return [ObjectKey(namespace, owner.name) for owner in secret.metadata.owner_references]

    async def _reconcile(self, key: ObjectKey) -> float | None:
        credential = self._caches.credentials.get(key.name, key.namespace)
        if credential is None or credential.metadata.deletion_timestamp is not None:
            self._refused.forget(key)
            return None
        with self._refused.recorded(credential, "read the Secret of this BareMetalHostCredential") as attempt:
            await self._pass(key, credential, attempt)
        return None

    async def _pass(self, key: ObjectKey, credential: BareMetalHostCredential, attempt: WriteAttempt) -> None:
        password = credential.spec.password
        name = (password.name if password is not None else None) or key.name
        secret = await self._secret(ObjectKey(key.namespace, name))
        plan = plan_credential(credential, secret)
        self._epoch.check_leads()
        if plan.data:
            attempt.what = f"write Secret {key.namespace}/{plan.secret}"
            await self._store(credential, secret, plan)
        if plan.patch is not None:
            attempt.what = "erase the password of this BareMetalHostCredential"
            credential = await self._api.patch(
                BARE_METAL_HOST_CREDENTIALS, key.name, plan.patch, namespace=key.namespace
            )
            self._caches.credentials.observe(credential)
            log.info("password of a credential moved to its Secret", credential=str(key), secret=plan.secret)
        present = [msgspec.to_builtins(one) for one in credential.status.conditions]
        status = ConditionStatus.TRUE if plan.reason == STORED else ConditionStatus.FALSE
        conditions = set_condition(present, CONDITION_STORED, status, plan.reason, plan.message, rfc3339(self._now()))
        if conditions is not None:
            attempt.what = "write the status of this BareMetalHostCredential"
            await self._status.write(credential, {"conditions": conditions})

    async def _secret(self, key: ObjectKey) -> Secret | None:
        cached = self._caches.secrets.get(key.name, key.namespace)
        if cached is not None:
            return cached
        try:
            return await self._api.get(SECRETS, key.name, namespace=key.namespace)
        except NotFound:
            return None

    async def _store(self, credential: BareMetalHostCredential, secret: Secret | None, plan: CredentialPlan) -> None:
        key = key_of(credential)
        labels: Raw = {"labels": {LABEL_HOST_SECRET: HOST_SECRET}}
        if secret is not None:
            metadata = {**labels, "resourceVersion": secret.metadata.resource_version}
            patch = {"metadata": metadata, "data": plan.data}
            stored = await self._api.patch(SECRETS, plan.secret, patch, namespace=key.namespace)
        else:
            owner = {
                "apiVersion": BARE_METAL_HOST_CREDENTIALS.api_version,
                "kind": BARE_METAL_HOST_CREDENTIALS.kind,
                "name": key.name,
                "uid": credential.metadata.uid,
            }
            metadata = {"name": plan.secret, **labels, "ownerReferences": [owner]}
            body = {"metadata": metadata, "type": "Opaque", "data": plan.data}
            try:
                stored = await self._api.create(SECRETS, body, namespace=key.namespace)
            except AlreadyExists:
                raise Stale(f"Secret {key.namespace}/{plan.secret} exists") from None
        self._caches.secrets.observe(stored)
