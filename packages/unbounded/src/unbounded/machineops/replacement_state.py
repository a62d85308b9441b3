"""Replacement state: a Secret with all that a replacement needs to resume, named after the original instance.

The operation owns the Secret, which is deleted with it. When the Secret is the only record of the instance, the
Machine becomes an owner as well (`hold`). Then the Secret outlives a failed operation, and the next replacement of the
instance adopts it.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind, Object
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.api import AlreadyExists, Api, ApiError, Conflict, NotFound
from unbounded.machineops import reasons
from unbounded.machineops.provider import NotDone, Transient

KEY: Final = "model"
OPERATION: Final = "operation"  # name of the operation, beside its UID: the garbage collector removes deleted owners
UID: Final = "operationUID"
MAX_BYTES: Final = 900_000  # of a Secret's 1 MiB, without the overhead of the object
_TRIES: Final = 10  # of a write that conflicts each time


class ReplacementSecret:
    """Replacement state of one operation. A forbidden request raises NotDone, as rights can be granted.

    Args:
        binding: target digest of the Machine at the start of the operation.
    """

    def __init__(self, api: Api, operation: MachineOperation, machine: Machine, binding: str) -> None:
        self._api = api
        self._operation = operation
        self._machine = machine
        self.name = f"replacement-{binding.rpartition(':')[2]}"

    @property
    def place(self) -> str:
        return f"Secret {self.secret}"

    @property
    def secret(self) -> str:
        """NAMESPACE/NAME."""
        return f"{NAMESPACE}/{self.name}"

    async def load(self) -> bytes | None:
        """Return the last stored state of this operation; None if it has stored nothing."""
        with self._translating("read"):
            secret = await self._read()
        return secret.value(KEY) if secret is not None and self._is_mine(secret) else None

    async def former(self) -> bytes | None:
        """Return the state of an earlier replacement of the instance that did not complete; None without one.

        Raises:
            Transient: that replacement is running, for another Machine with the same instance.
        """
        with self._translating("read"):
            secret = await self._read()
            if secret is None or self._is_mine(secret):
                return None
            keeper = await self._ended_owner(secret)
        is_done = keeper is not None and keeper.status.phase == OperationPhase.COMPLETE
        return None if is_done else secret.value(KEY)

    async def store(self, content: bytes) -> None:
        """Store the state durably.

        Raises:
            ValueError: it is too large for a Secret.
            Transient: another running operation has a state for the same instance.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content)} bytes exceed the limit of a Secret, {MAX_BYTES}")
        with self._translating("written"):
            try:
                await self._api.create(SECRETS, self._body(content), namespace=NAMESPACE)
            except AlreadyExists:
                await _retry_conflicts(lambda: self._overwrite(content))

    async def _overwrite(self, content: bytes) -> None:
        there = await self._api.get(SECRETS, self.name, namespace=NAMESPACE)
        if not self._is_mine(there):
            await self._ended_owner(there)
        await self._patch(there, {"data": self._data(content)}, held=_outlives_operation(there))

    async def outlive_operation(self) -> None:
        """Let the state outlive the operation, as long as the Machine exists.

        Raises:
            Transient: this operation has no stored state.
        """
        with self._translating("written"):
            await _retry_conflicts(self._add_machine_owner)

    async def _add_machine_owner(self) -> None:
        there = await self._read()
        if there is None or not self._is_mine(there):
            raise Transient(f"{self.place} does not exist, or belongs to another operation")
        if not _outlives_operation(there):
            await self._patch(there, {}, held=True)

    async def delete(self) -> None:
        """Delete the state."""
        with self._translating("removed", ApiError):
            await _retry_conflicts(self._delete_once)

    async def _delete_once(self) -> None:
        secret = await self._read()
        if secret is None or not self._is_mine(secret):
            return
        version = secret.metadata.resource_version
        try:
            await self._api.delete(SECRETS, self.name, namespace=NAMESPACE, resource_version=version)
        except NotFound:
            return

    @contextmanager
    def _translating(self, what: str, trouble: type[Failure] = Rejected) -> Iterator[None]:
        try:
            yield
        except trouble as error:
            raise NotDone(reasons.STATE_NOT_STORED, f"{self.place} cannot be {what}: {error}") from error

    async def _read(self) -> Secret | None:
        try:
            return await self._api.get(SECRETS, self.name, namespace=NAMESPACE)
        except NotFound:
            return None

    def _is_mine(self, secret: Secret) -> bool:
        return secret.value(UID) == self._operation.metadata.uid.encode()

    async def _ended_owner(self, secret: Secret) -> MachineOperation | None:
        """Return the ended operation that stored the state; None if it is gone."""
        name = (secret.value(OPERATION) or b"").decode()
        try:
            keeper = await self._api.get(MACHINE_OPERATIONS, name)
        except NotFound:
            return None
        if (secret.value(UID) or b"").decode() != keeper.metadata.uid:
            return None
        if not keeper.terminal:
            raise Transient(
                f"HostReplace {name} of Machine {keeper.spec.machine_ref} is in progress on the same instance"
            )
        return keeper

    async def _patch(self, secret: Secret, change: dict[str, Any], *, held: bool) -> None:
        meta = {"resourceVersion": secret.metadata.resource_version, "ownerReferences": self._owners(held=held)}
        await self._api.patch(SECRETS, self.name, {"metadata": meta, **change}, namespace=NAMESPACE)

    def _body(self, content: bytes) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": NAMESPACE, "ownerReferences": self._owners(held=False)},
            "type": "unbounded-cloud.io/replacement",
            "data": self._data(content),
        }

    def _data(self, content: bytes) -> dict[str, str]:
        uid = self._operation.metadata.uid
        values = {KEY: content, OPERATION: self._operation.name.encode(), UID: uid.encode()}
        return {key: base64.b64encode(value).decode() for key, value in values.items()}

    def _owners(self, *, held: bool) -> list[dict[str, str]]:
        owners = [_reference(MACHINE_OPERATIONS, self._operation)]
        return [*owners, _reference(MACHINES, self._machine)] if held else owners


async def _retry_conflicts(write: Callable[[], Awaitable[None]]) -> None:
    """Repeat a read and write after a conflict, for example with the garbage collector."""
    for _ in range(_TRIES - 1):
        with suppress(Conflict):
            return await write()
    return await write()


def _reference(kind: Kind[Any], owner: Object) -> dict[str, str]:
    named = {"name": owner.metadata.name, "uid": owner.metadata.uid}
    return {"apiVersion": kind.api_version, "kind": kind.kind, **named}


def _outlives_operation(secret: Secret) -> bool:
    return any(owner.kind == MACHINES.kind for owner in secret.metadata.owner_references)
